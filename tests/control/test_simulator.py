"""The peg-in-hole task: seeds, ranges, what the force sensor tells at the rim, and jams."""

import numpy as np
import pytest

from equipoise.control import scene
from equipoise.control.simulator import MAX_SPEED, Observation, Simulator
from equipoise.util.errors import BadInput


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    return Simulator("rays")


def same(first: Observation, second: Observation) -> bool:
    return all(first[name].tobytes() == second[name].tobytes() for name in first)


def episode(simulator: Simulator, seed: int, steps: int = 15) -> list[Observation]:
    generator = np.random.default_rng(seed)
    start = simulator.reset(seed)
    return [start, *(simulator.step(generator.uniform(-0.05, 0.02, 3)) for _ in range(steps))]


def press(simulator: Simulator, offset: np.ndarray, clearance: float = 0.0007, speed: float = 0.018) -> np.ndarray:
    """Press on the plate with the peg this far from the hole, and return the mean force and torque."""
    hole = np.array([0.01, -0.02])
    simulator.place(np.append(hole + offset, 0.0005), hole, clearance, jammed=False)
    for _ in range(8):
        observation = simulator.step(np.array([0, 0, -speed]))
    return observation["force"].mean(1)


def test_shapes_and_types(simulator: Simulator) -> None:
    observation = simulator.reset(0)
    found = {name: (value.dtype.name, value.shape) for name, value in observation.items()}
    assert found == {
        "proprioception": ("float32", (9,)),
        "camera": ("uint8", (3, 64, 64)),
        "force": ("float32", (6, 10)),
    }


@pytest.mark.parametrize("seed", [0, 1, 12345678901])
def test_same_seed_same_bits(simulator: Simulator, seed: int) -> None:
    first = episode(simulator, seed)
    episode(simulator, seed + 1)  # leaves nothing behind
    for other in (simulator, Simulator("rays")):
        assert all(map(same, first, episode(other, seed)))
    assert not same(first[0], simulator.reset(seed + 1))


def test_what_is_not_observed_happens_all_the_same(simulator: Simulator) -> None:
    seen = episode(simulator, 3)
    generator = np.random.default_rng(3)
    simulator.reset(3)
    for observation in seen[1:]:
        simulator.advance(generator.uniform(-0.05, 0.02, 3))
        if simulator.steps in (4, len(seen) - 1):
            assert same(simulator.observe(), observation)
    assert simulator.steps == len(seen) - 1


def test_drawn_values_are_in_range(simulator: Simulator) -> None:
    drawn = []
    for seed in range(60):
        for holes, least, most in (("seen", 0.0, scene.SEEN), ("unseen", scene.SEEN, scene.UNSEEN)):
            simulator.reset(seed, holes)
            assert least <= np.abs(simulator.hole).max() <= most
            assert scene.CLEARANCES[0] <= simulator.clearance <= scene.CLEARANCES[1]
            assert np.abs(simulator.peg[:2]).max() <= 0.02
            assert 0.03 <= simulator.peg[2] <= 0.04
            assert simulator.stuck == simulator.jammed
            drawn.append((*simulator.hole, simulator.jammed))
    x, y, jammed = np.array(drawn).T
    assert min(x.min(), y.min()) < -0.03
    assert max(x.max(), y.max()) > 0.03
    assert 0.35 < jammed.mean() < 0.65


def test_peg_follows_the_commanded_velocity(simulator: Simulator) -> None:
    simulator.place(np.array([0.0, 0.0, 0.03]), np.zeros(2), 0.0007, jammed=False)
    velocity = np.array([0.03, -0.02, 0.01])
    for _ in range(6):
        simulator.step(velocity)
    before = simulator.peg
    reading = simulator.step(velocity)["proprioception"]
    np.testing.assert_allclose((simulator.peg - before) / scene.CONTROL_STEP, velocity, rtol=0.02)
    np.testing.assert_allclose(reading[3:6], velocity, rtol=0.02)
    # The spring balances the damping: stiffness × (set-point − position) = damping × velocity.
    np.testing.assert_allclose(reading[6:], scene.DAMPING / scene.STIFFNESS * velocity, rtol=0.15)


def test_push_is_bounded_by_the_command(simulator: Simulator) -> None:
    """At rest the push is stiffness × (0.3 mm + 60 ms × speed): 4.83 N, 8.4 N and 17.85 N."""
    for speed, push in ((0.018, 4.83), (0.035, 8.4), (0.08, 17.85), (1.0, 17.85)):
        assert press(simulator, np.array([0.005, 0.004]), speed=speed)[2] == pytest.approx(-push, rel=0.02)
        assert simulator.depth == 0


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("sign", [-1, 1])
def test_torque_tells_on_which_side_the_hole_is(simulator: Simulator, axis: int, sign: int) -> None:
    """A peg 2 mm beside a hole with 0.7 mm of clearance rests on a strip 3.7 to 5 mm from its axis, on the far side."""
    offset = np.zeros(2)
    offset[axis] = 0.002 * sign
    reading = press(simulator, offset)
    lever = np.array([0, 0, -scene.PEG_LENGTH])
    torque = reading[3:] - np.cross(lever, -reading[:3])  # of the forces at the tip, without friction's lever
    # The plate pushes up at r; the gantry's torque on the peg balances −r × push = (−r_y, r_x, 0) push.
    arm = np.array([torque[1], -torque[0]]) / -reading[2]
    assert 0.0037 <= arm[axis] * sign <= 0.005
    assert abs(arm[1 - axis]) < 0.001


def test_direction_to_the_hole_is_linear_in_the_force_reading(simulator: Simulator) -> None:
    generator, readings, directions = np.random.default_rng(0), [], []
    for _ in range(80):
        angle, distance = generator.uniform(0, 2 * np.pi), generator.uniform(0.0015, 0.003)
        direction = np.array([np.cos(angle), np.sin(angle)])
        readings.append(np.append(press(simulator, -distance * direction, generator.uniform(*scene.CLEARANCES)), 1.0))
        directions.append(direction)
    known, asked = np.array(readings[:55]), np.array(readings[55:])
    fitted = np.linalg.lstsq(known, np.array(directions[:55]), rcond=None)[0]
    truth = np.array(directions[55:])
    assert 1 - ((asked @ fitted - truth) ** 2).sum() / ((truth - truth.mean(0)) ** 2).sum() > 0.7


@pytest.mark.parametrize(("jammed", "speed", "through"), [(True, 0.05, False), (True, 0.07, True), (False, 0.05, True)])
def test_only_a_hard_push_loosens_a_jam(simulator: Simulator, jammed: bool, speed: float, through: bool) -> None:
    """50 mm/s gives 11.55 N, and 70 mm/s gives 15.75 N; the block gives way at 12 N."""
    simulator.place(np.array([0.02, 0.01, 0.002]), np.array([0.02, 0.01]), 0.0007, jammed=jammed)
    while not simulator.done:
        simulator.step(np.array([0, 0, -speed]))
    assert simulator.success == through
    assert simulator.stuck != through
    if jammed and not through:
        assert simulator.steps == 120
        assert simulator.depth == pytest.approx(scene.JAM_DEPTH, abs=0.0003)
        assert simulator.peak_force == pytest.approx(11.55, rel=0.02)


def test_jam_is_invisible(simulator: Simulator) -> None:
    peg, hole = np.array([-0.02, 0.01, 0.03]), np.array([0.01, -0.01])
    free, jammed = (simulator.place(peg, hole, 0.0007, jammed=jam)["camera"] for jam in (False, True))
    assert free.tobytes() == jammed.tobytes()


def test_walls_hold_the_peg_at_the_clearance(simulator: Simulator) -> None:
    for clearance in scene.CLEARANCES:
        for direction in np.array([[1, 0], [-1, 0], [0, 1], [0, -1]]):
            simulator.place(np.array([0, 0, -0.01]), np.zeros(2), clearance, jammed=False)
            for _ in range(10):
                simulator.step(np.append(0.02 * direction, 0))
            assert simulator.peg[:2] @ direction == pytest.approx(clearance, abs=0.0001)


def test_bad_input_is_refused(simulator: Simulator) -> None:
    for action in (np.zeros(2), np.array([0, np.nan, 0])):
        with pytest.raises(BadInput, match="expected three finite numbers"):
            simulator.step(action)
    with pytest.raises(BadInput, match="expected one of seen, unseen, found 'all'"):
        simulator.reset(0, "all")  # ty: ignore[invalid-argument-type]


def test_actions_are_clipped(simulator: Simulator) -> None:
    peg, hole = np.array([0.0, 0.0, 0.03]), np.array([0.03, 0.03])
    ends = []
    for speed in (MAX_SPEED, 5.0):
        simulator.place(peg, hole, 0.0007, jammed=False)
        ends.append(simulator.step(np.array([speed, -speed, 0.0])))
    assert same(*ends)

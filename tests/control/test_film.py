"""Films: what a recording keeps, the same as in rollouts, and the animated picture."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from control.made_up import rolled, row
from equipoise.control.conditions import CONDITIONS, Condition
from equipoise.control.film import EVERY, PAUSE, SIZE, STORY, FilmedEpisode, choose_episodes, films, record, write_gif
from equipoise.control.policy import PredictedChunks
from equipoise.control.rollout import RolloutPool
from equipoise.control.scene import CONTROL_STEP, FORCE_SAMPLES
from equipoise.control.simulator import LIMIT, Simulator
from equipoise.util.errors import BadInput

SEED = 10**9


class Known:
    """A policy that was told where the hole is: it goes there, and pushes. It keeps what it observed.

    Args:
        hole: Where it goes.
    """

    sensors = ("proprioception", "camera", "force")
    device = torch.device("cpu")
    horizon = 1
    monitor = None

    def __init__(self, hole: np.ndarray) -> None:
        self.hole = torch.from_numpy(hole).float()
        self.seen: list[dict[str, Tensor]] = []
        self.present: list[set[str]] = []

    def predict(self, observations: dict[str, Tensor], present: dict[str, Tensor] | None = None) -> PredictedChunks:
        self.seen.append({name: values.clone() for name, values in observations.items()})
        self.present.append({*self.sensors} - {name for name, mask in (present or {}).items() if not bool(mask.all())})
        way = self.hole - observations["proprioception"][:, :2]
        down = torch.where(way.norm(dim=1) < 0.0003, -0.08, 0.0)
        action = torch.cat([(5 * way).clamp(-0.06, 0.06), down[:, None]], dim=1)
        return PredictedChunks(action, action, torch.stack([action] * 3, dim=1), torch.zeros_like(action))


def policy(*, off: float = 0.0, seed: int = SEED) -> Any:
    """One that knows the hole of an episode, or is wrong by so many metres."""
    simulator = Simulator("rays")
    simulator.reset(seed)
    return Known(simulator.hole + off)


def recorded(
    condition: str | Condition = "clean", seed: int = SEED, *, off: float = 0.0, size: int = 64
) -> FilmedEpisode:
    chosen = CONDITIONS[condition] if isinstance(condition, str) else condition
    return record(policy(off=off, seed=seed), chosen, seed, line="known", size=size, renderer="rays")


def test_an_episode_is_kept_whole() -> None:
    won, lost = recorded(), recorded(off=0.02)
    assert (won.success, lost.success) == (True, False)
    assert len(lost.force) == LIMIT * FORCE_SAMPLES
    assert lost.seconds == pytest.approx(6)  # 120 steps of 50 ms
    assert lost.frame_steps == tuple(range(0, LIMIT + 1, EVERY))
    for one in (won, lost):
        assert one.frames.shape == (len(one.frame_steps), 64, 64, 3)
        assert one.frames.dtype == np.uint8
        assert one.frame_steps[-1] * FORCE_SAMPLES == len(one.force)
        assert (np.diff(one.frame_steps)[:-1] == EVERY).all()
        assert one.failed_at is None


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_the_same_seed_gives_the_same_film(seed: int, tmp_path: Path) -> None:
    first, again = recorded(seed=seed), recorded(seed=seed)
    assert first.frames.tobytes() == again.frames.tobytes()
    assert first.force.tobytes() == again.force.tobytes()
    files = [write_gif([one], tmp_path / name).read_bytes() for one, name in ((first, "a.gif"), (again, "b.gif"))]
    assert files[0] == files[1]
    assert recorded(seed=seed + 5).frames.tobytes() != first.frames.tobytes()


def test_the_force_is_that_of_the_simulator() -> None:
    knows, simulator = policy(off=0.02), Simulator("rays")
    one = record(knows, CONDITIONS["clean"], SEED, size=16, renderer="rays")
    observed, expected = simulator.reset(SEED), []
    for _ in range(LIMIT):
        batch = {name: torch.from_numpy(values[None]) for name, values in observed.items()}
        observed = simulator.step(knows.predict(batch).fused[0].numpy())
        expected.append(np.linalg.norm(observed["force"][:3], axis=0))
    assert one.force == pytest.approx(np.concatenate(expected))
    assert one.force.max() == pytest.approx(simulator.peak_force, rel=1e-5)
    frames = range(len(one.frame_steps))
    assert one.force_at(0) == 0.0
    assert max(one.force_at(frame) for frame in frames) == pytest.approx(one.force.max())
    assert one.force_at(3) == one.force[2 * EVERY * FORCE_SAMPLES : 3 * EVERY * FORCE_SAMPLES].max()


@pytest.mark.parametrize("name", ["camera_black", "force_dead"])
def test_a_dead_sensor_gives_zeros_to_the_policy_but_not_to_the_film(name: str) -> None:
    condition, knows = CONDITIONS[name], policy(off=0.02)
    one = record(knows, condition, SEED, size=16, renderer="rays")
    assert condition.dead is not None
    dead = [not bool(seen[condition.dead].any()) for seen in knows.seen]
    assert all(dead[condition.since :])
    assert name == "force_dead" or not any(dead[: condition.since])
    assert all(bool(seen["proprioception"].any()) for seen in knows.seen)
    assert one.failed_at == condition.since
    assert one.force.tobytes() == recorded(off=0.02).force.tobytes(), "this policy reads no other sensor"


def test_a_lost_sensor_is_one_that_the_policy_is_told_of() -> None:
    condition, knows = CONDITIONS["camera_lost_committee"], policy(off=0.02)
    assert record(knows, condition, SEED, size=16, renderer="rays").failed_at == condition.since
    assert ["camera" in present for present in knows.present] == [step < condition.since for step in range(LIMIT)]


def test_late_observations_are_late() -> None:
    knows, now = policy(off=0.02), policy(off=0.02)
    record(knows, CONDITIONS["delay"], SEED, size=16, renderer="rays")
    record(now, CONDITIONS["clean"], SEED, size=16, renderer="rays")
    late = CONDITIONS["delay"].delay
    first = now.seen[0]["proprioception"]
    assert all(torch.equal(seen["proprioception"], first) for seen in knows.seen[: late + 1])
    assert not torch.equal(knows.seen[late + 1]["proprioception"], first)


def test_unseen_holes_are_further_out() -> None:
    seen, unseen = recorded("clean"), recorded("unseen")
    assert seen.frames[0].tobytes() != unseen.frames[0].tobytes()


def test_a_policy_of_one_sensor_loses_none() -> None:
    knows = policy()
    knows.sensors = ("camera",)
    with pytest.raises(
        BadInput, match="camera_lost_zero: expected a policy with its sensors and another, found camera"
    ):
        record(knows, CONDITIONS["camera_lost_zero"], SEED)


@pytest.mark.slow
def test_a_film_shows_what_happened_in_the_rollouts() -> None:
    for name, off in (("clean", 0.0), ("camera_black", 0.0), ("delay", 0.02)):
        knows = policy(off=off)
        with RolloutPool(1, "rays") as pool:
            (outcome,) = pool.run(knows, [(CONDITIONS[name], SEED)])
        one = record(knows, CONDITIONS[name], SEED, size=16, renderer="rays")
        assert (one.success, round(one.seconds / CONTROL_STEP)) == (outcome.success, outcome.steps)
        assert one.force.max() == pytest.approx(outcome.peak_force, rel=1e-5)


# -- which episodes --


def test_the_first_episode_of_each_kind_is_chosen() -> None:
    results = {
        "clean": rolled([0, 1, 1], seed=[5, 6, 7]),
        "camera_lost_committee": rolled([0, 1, 1], steps=[120, 15, 16], seed=[5, 6, 7]),
    }
    chosen = choose_episodes(row("mimo", 0, results))
    assert [(condition.name, seed) for condition, seed in chosen] == [
        ("clean", 6),
        ("clean", 5),
        ("camera_lost_committee", 7),  # number 6 was over before the camera was lost
    ]


def test_what_never_happened_is_not_chosen() -> None:
    always = {"clean": rolled([1, 1])}
    assert [seed for _, seed in choose_episodes(row("mimo", 0, always))] == [0]
    never = {"clean": rolled([0]), "camera_lost_committee": rolled([0, 0])}
    assert [condition.name for condition, _ in choose_episodes(row("mimo", 0, never))] == [
        "clean",
        "camera_lost_committee",
    ]
    assert len(STORY) == 3


def test_films_are_those_of_the_row() -> None:
    results = {"clean": rolled([1], seed=[SEED]), "camera_lost_committee": rolled([1], seed=[SEED])}
    first, second = films(policy(), row("mimo", 0, results))
    assert (first.line, first.condition, first.seed, first.success) == ("mimo", "clean", SEED, True)
    assert (second.condition, second.failed_at) == ("camera_lost_committee", 15)
    assert first.frames.shape[1:] == (SIZE, SIZE, 3)


# -- the animated picture --


def test_the_picture_moves_in_real_time_until_the_longest_episode_ends(tmp_path: Path) -> None:
    won, lost = recorded(size=SIZE), recorded("camera_lost_committee", off=0.02, size=SIZE)
    path = write_gif([won, lost, lost], tmp_path / "film.gif")
    assert path.stat().st_size < 600_000
    with Image.open(path) as film:
        # Frames that are the same as the one before are one frame that lasts.
        durations = []
        for number in range(getattr(film, "n_frames", 1)):
            film.seek(number)
            durations.append(film.info["duration"])
        assert film.info["loop"] == 0
        assert sum(durations) == pytest.approx(1e3 * (lost.seconds + PAUSE))
        assert len(durations) <= len(lost.frames)
        assert film.size[0] > 3 * SIZE
        assert film.size[1] > SIZE


def test_the_film_shows_the_episode_and_marks_the_failure(tmp_path: Path) -> None:
    one = recorded("camera_lost_committee", off=0.02, size=64)
    with Image.open(write_gif([one], tmp_path / "film.gif")) as film:
        pictures = []
        for number in range(getattr(film, "n_frames", 1)):
            film.seek(number)
            pictures.append(np.array(film.convert("RGB"), dtype=int))
    size = one.frames.shape[1]
    assert one.failed_at is not None
    # The place of the picture: where the first one, which nothing frames, is found.
    found = [
        (y, x)
        for y in range(pictures[0].shape[0] - size + 1)
        for x in range(pictures[0].shape[1] - size + 1)
        if abs(pictures[0][y : y + size, x : x + size] - one.frames[0]).mean() < 4
    ]
    assert len(found) == 1
    ((y, x),) = found
    orange = [bool((abs(picture[y, x : x + size] - (217, 111, 20)).max(axis=1) < 24).all()) for picture in pictures]
    first = next(number for number, step in enumerate(one.frame_steps) if step >= one.failed_at)
    assert not any(orange[:first])
    assert all(orange[first:])


@pytest.mark.parametrize(("sizes", "found"), [((), "none"), ((64, 80), "64 × 64, 80 × 80"), ((63,), "63 × 63")])
def test_pictures_of_several_sizes_small_ones_or_none_are_refused(
    sizes: tuple[int, ...], found: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=f"one size, 64 pixels each way or more, found {found}$"):
        write_gif([recorded(size=size) for size in sizes], tmp_path / "film.gif")

"""Conditions of an episode, step by step: who is told of what, who decides, and what the monitor drops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from control.made_data import Scripted, always
from equipoise.control import worker
from equipoise.control.cloning import SENSORS
from equipoise.control.conditions import CONDITIONS, Condition, conditions_of
from equipoise.control.controller import Controller
from equipoise.control.policy import Ensembling
from equipoise.control.worker import NONE, ORDER, RESET, STEP, Block, Episode
from equipoise.deploy.monitor import SensorMonitor
from equipoise.util.errors import BadInput

CLEAN = CONDITIONS["clean"]


def alike(values: list[int], names: Iterable[str] = SENSORS) -> dict[str, list[int]]:
    return dict.fromkeys(names, values)


def observed(rows: int, value: float = 0.0) -> dict[str, Tensor]:
    return {name: torch.full((rows, *shape), value) for name, (shape, _) in worker.SENSORS.items()}


# -- what a policy observes --


class Counting:
    """Stands in for a simulator: each number that a sensor reads is the step, counted from 1."""

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, seed: int, holes: str) -> dict[str, np.ndarray]:
        self.steps, self.begun = 0, (seed, holes)
        return self.read()

    def step(self, action: np.ndarray) -> dict[str, np.ndarray]:
        assert action.shape == (3,)
        self.steps += 1
        return self.read()

    def read(self) -> dict[str, np.ndarray]:
        return {name: np.full(shape, self.steps + 1, kind) for name, (shape, kind) in worker.SENSORS.items()}


def seen_by_step(steps: int, *, dead: int = NONE, since: int = 0, delay: int = 0) -> dict[str, list[int]]:
    """What each sensor reads at each step, where that is one number."""
    episode, order = Episode(cast("Any", Counting())), np.zeros(1, ORDER)
    found: dict[str, list[int]] = {name: [] for name in SENSORS}
    for step in range(steps):
        order[0] = (STEP if step else RESET, 5, True, dead, since, delay, 0.0)
        for name, values in episode.move(order[0]).items():
            assert values.dtype == worker.SENSORS[name][1]
            found[name] += np.unique(values).tolist()
    assert vars(episode.simulator)["begun"] == (5, "unseen")
    return found


def test_a_clean_episode_shows_what_is_read() -> None:
    assert seen_by_step(4) == alike([1, 2, 3, 4])


@pytest.mark.parametrize("delay", [1, 2, 4])
def test_late_sensors_are_late_by_exactly_so_many_steps(delay: int) -> None:
    assert seen_by_step(8, delay=delay) == alike([max(1, 1 + step - delay) for step in range(8)])


@pytest.mark.parametrize("sensor", range(len(SENSORS)))
@pytest.mark.parametrize("since", [0, 3])
def test_a_dead_sensor_gives_zeros_from_its_step_on_and_the_others_go_on(sensor: int, since: int) -> None:
    found = seen_by_step(6, dead=sensor, since=since)
    assert found[SENSORS[sensor]] == [step + 1 if step < since else 0 for step in range(6)]
    others = {name: values for name, values in found.items() if name != SENSORS[sensor]}
    assert others == alike([1, 2, 3, 4, 5, 6], others)
    assert tuple(worker.SENSORS) == SENSORS  # by whose places orders name them


def test_an_episode_after_a_late_one_is_not_late() -> None:
    episode, order = Episode(cast("Any", Counting())), np.zeros(1, ORDER)
    for command, delay in ((RESET, 2), (STEP, 2), (STEP, 2), (RESET, 0), (STEP, 0)):
        order[0] = (command, 0, False, NONE, 0, delay, 0.0)
        found = episode.move(order[0])
    assert (found["force"] == 2).all()


def test_rows_of_a_block_do_not_overlap() -> None:
    memory = bytearray(Block.size_for(5))
    block = Block(memory, 5)
    arrays = [block.orders.view("u1"), block.reports.view("u1"), *(x.view("u1") for x in block.observations.values())]
    for number, array in enumerate(arrays, 1):
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(arrays, 1))
    assert 0 not in memory


# -- who is told, and who decides --


def test_a_lost_sensor_is_told_of_from_its_step_on_and_only_in_its_row() -> None:
    policy = Scripted(always(1, 1, 1), committee=always(2, 2, 2))
    controller = Controller(policy.as_policy(), 4)
    for row, condition in enumerate(
        (
            CLEAN,
            Condition("a", lost="camera", since=2, decision="committee"),
            Condition("b", lost="force", decision="fused"),
            Condition("c", dead="camera", decision="committee"),  # of which nobody is told
        )
    ):
        controller.begin(row, condition)
    actions = np.array([controller.act(observed(4))[:, 0] for _ in range(4)])
    assert policy.missing == [{"force": [2]}, {"force": [2]}, *[{"camera": [1], "force": [2]}] * 2]
    np.testing.assert_array_equal(actions, [[1, 1, 1, 1], [1, 1, 1, 1], [1, 2, 1, 1], [1, 2, 1, 1]])


def test_a_sensor_that_the_policy_does_not_have_cannot_be_lost() -> None:
    policy = Scripted(always(1, 1, 1), sensors=("camera",))
    controller = Controller(policy.as_policy(), 1)
    controller.begin(0, CONDITIONS["without_force"])
    controller.act(observed(1))
    assert policy.missing == [{}]


def test_a_row_begins_anew() -> None:
    """In every row, actions and facts are those of a controller that has this episode alone."""
    random = torch.Generator().manual_seed(0)
    stream = [torch.randn(3, 6, generator=random) for _ in range(9)]
    lost = Condition("lost", lost="camera", since=1, decision="committee")
    begins = {0: [(0, CLEAN), (1, lost), (2, CLEAN)], 3: [(1, CLEAN)], 5: [(0, lost), (2, lost)]}

    def chunks(seen: Any) -> Tensor:
        return seen["proprioception"]

    def policy() -> Scripted:
        return Scripted(chunks, committee=lambda seen: 2 * chunks(seen), horizon=2, radius=0.25)

    whole = Controller(policy().as_policy(), 3)
    alone: dict[int, Controller] = {}
    for step, said in enumerate(stream):
        for row, condition in begins.get(step, []):
            whole.begin(row, condition)
            alone[row] = Controller(policy().as_policy(), 1)
            alone[row].begin(0, condition)
        actions = whole.act({"proprioception": said})
        for row, one in alone.items():
            np.testing.assert_array_equal(one.act({"proprioception": said[row : row + 1]})[0], actions[row])
            assert one.facts(0) == whole.facts(row)
    assert whole.facts(1) == (pytest.approx(250), None, None)


def test_actions_are_those_of_ensembling_with_the_decay_of_all_policies() -> None:
    random = torch.Generator().manual_seed(1)
    controller = Controller(Scripted(lambda seen: seen["force"], horizon=4).as_policy(), 2, decay=0.5)
    ensembling = Ensembling(2, 4, 0.5)
    for row in range(2):
        controller.begin(row, CLEAN)
    for _ in range(6):
        said = torch.randn(2, 12, generator=random)
        np.testing.assert_array_equal(controller.act({"force": said}), ensembling(said))


def test_a_policy_that_diverged_stands_still() -> None:
    controller = Controller(Scripted(always(np.nan, np.inf, 0.5)).as_policy(), 1)
    controller.begin(0, CLEAN)
    assert controller.act(observed(1)).tolist() == [[0.0, 0.0, 0.5]]


# -- the monitor --

NUMBERS = 4


def healthy(rows: int, seed: int) -> Tensor:
    """What three heads say that mostly agree, [rows, 3, 4]."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 1, NUMBERS, generator=random) + 0.3 * torch.randn(rows, 3, NUMBERS, generator=random)


@pytest.fixture(scope="module")
def monitor() -> SensorMonitor:
    heads = dict(zip(SENSORS, healthy(1500, 0).unbind(dim=1), strict=True))
    return SensorMonitor.fit(heads, torch.arange(1500) // 100, kind="regression")


def test_the_monitor_drops_the_sensor_that_it_names_and_the_committee_goes_on(monitor: SensorMonitor) -> None:
    """Rows that begin at different steps are watched as each would be alone; the camera's head stands still."""
    steps, starts = 40, (0, 3, 7, 11)
    said = torch.stack([healthy(steps, 2 + row) for row in range(4)], dim=1)  # [T, S, 3, 4]
    said[15:, :3, SENSORS.index("camera")] = said[15, :3, SENSORS.index("camera")]
    said[:, 3] = healthy(steps, 9)
    clock = iter(said)
    policy = Scripted(always(1, 1, 1), committee=always(2, 2, 2), heads=lambda _: next(clock), monitor=monitor)
    watched = replace(CLEAN, monitored=True, decision="committee")
    conditions = (watched, watched, replace(watched, monitored=False), watched)
    controller, decided = Controller(policy.as_policy(), 4), []
    for step in range(steps):
        for row, start in enumerate(starts):
            if step == start:
                controller.begin(row, conditions[row])
        decided.append(controller.act(observed(4))[:, 0])

    for row, start in enumerate(starts):
        alone, expected = monitor.fresh(), None
        for step in range(start, steps):
            names = alone.update(dict(zip(SENSORS, said[step, row, None].unbind(dim=1), strict=True))).names()
            if names[0] is not None:
                expected = names[0], step - start
                break
        _, dropped, at = controller.facts(row)
        if row == 2:  # that nobody watches
            assert expected is not None
            expected = None
        assert (dropped, at) == (expected or (None, None))
        first = steps if expected is None else start + expected[1] + 1
        told = [step for step, missing in enumerate(policy.missing) if row in missing.get(str(dropped), [])]
        assert told == list(range(first, steps))
        assert [one[row] for one in decided[start:]] == [2.0 if step >= first else 1.0 for step in range(start, steps)]
    assert controller.facts(0)[1] == controller.facts(1)[1] == "camera"


def test_without_a_monitor_nobody_watches() -> None:
    policy = Scripted(always(1, 1, 1))
    controller = Controller(policy.as_policy(), 1)
    controller.begin(0, CONDITIONS["monitored"])
    for _ in range(20):
        controller.act(observed(1))
    assert controller.facts(0)[1:] == (None, None)


# -- the conditions of the study --


def test_conditions_by_name() -> None:
    assert [one.name for one in conditions_of(["delay", "clean"])] == ["delay", "clean"]
    assert all(name == one.name for name, one in CONDITIONS.items())
    with pytest.raises(BadInput, match="camera_lost"):
        conditions_of(["clean", "camera_los_zero"])


@pytest.mark.parametrize(
    ("sensors", "words"),
    [
        (SENSORS, ()),
        (("camera",), ("lost", "without", "monitored", "force")),
        (("proprioception", "force"), ("camera", "monitored")),
    ],
)
def test_a_policy_is_tried_where_it_has_the_sensor_that_fails_and_another(
    sensors: tuple[str, ...], words: tuple[str, ...]
) -> None:
    left_out = {name for name in CONDITIONS if any(word in name for word in words)}
    if len(sensors) > 1:
        left_out.discard("monitored_clean")  # in which no sensor fails
    assert {name for name, one in CONDITIONS.items() if not one.suits(sensors)} == left_out

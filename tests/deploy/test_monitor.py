"""The sensor monitor: dead sensors are found and named, healthy ones left alone, and streams kept apart."""

import contextlib
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.data.splits import Part
from equipoise.deploy import SensorMonitor, evaluate_monitor, fit_monitor, monitor_evaluation
from equipoise.deploy.monitor import Limits, averaged, bound_for_the_next, statistics
from equipoise.measure import training_statistics
from equipoise.models import LateFusion
from equipoise.models.encoders import MLP
from equipoise.util.errors import BadInput
from mutated_json import mutated_json

NAMES = ("front", "rear", "side")
PEOPLE, WINDOWS = 6, 120


def streams(count: int, windows: int = WINDOWS, sensors: int = 3, seed: int = 0) -> Tensor:
    """Heads that see the same slowly changing class through noise of their own, [count, windows, sensors, classes]."""
    random = torch.Generator().manual_seed(seed)
    classes = torch.randint(4, (count, windows // 12 + 1), generator=random).repeat_interleave(12, dim=1)[:, :windows]
    clear = 3 * torch.nn.functional.one_hot(classes, 4).float().unsqueeze(2)
    return clear + torch.randn(count, windows, sensors, 4, generator=random)


def heads(scores: Tensor) -> dict[str, Tensor]:
    return dict(zip(NAMES, scores.unbind(dim=-2), strict=False))


def fitted(sensors: int = 3) -> SensorMonitor:
    healthy = streams(PEOPLE, sensors=sensors)
    return SensorMonitor.fit(heads(healthy.flatten(0, 1)), torch.arange(PEOPLE).repeat_interleave(WINDOWS))


def watched(monitor: SensorMonitor, scores: Tensor) -> Tensor:
    """Which sensor is named at each window of each stream, [count, windows]."""
    monitor.reset()
    return torch.stack([monitor.update(heads(window)).failed for window in scores.unbind(dim=1)], dim=1)


@pytest.mark.parametrize("sensors", [2, 3])
@pytest.mark.parametrize("kind", ["stuck", "wild", "contrary"])
def test_a_sensor_that_fails_is_found_and_named(kind: str, sensors: int) -> None:
    monitor = fitted(sensors)
    healthy = streams(40, 60, sensors, seed=1)
    assert (watched(monitor, healthy) >= 0).double().mean() < 0.01
    for place in range(sensors):
        broken = healthy.clone()
        if kind == "stuck":
            broken[:, 30:, place] = healthy[:, 29:30, place]
        elif kind == "wild":
            broken[:, 30:, place] *= 12
        else:  # as sure and as lively as ever, of the wrong class: only disagreement can tell, and two cannot say who
            broken[:, 30:, place] = healthy[:, 30:, place].roll(1, dims=-1)
        told = watched(monitor, broken)[:, 30:40]
        if kind == "contrary" and sensors == 2:
            continue
        found = (told >= 0).any(dim=1).double().mean()
        assert found > (0.6 if kind == "contrary" else 0.95)
        named = told[torch.arange(40), (told >= 0).int().argmax(dim=1)]
        assert (named[named >= 0] == place).double().mean() > 0.9


def test_many_streams_are_watched_as_each_alone() -> None:
    monitor, scores = fitted(), streams(5, 30, seed=2)
    scores[3, 10:, 1] = scores[3, 9, 1]
    together = watched(monitor, scores)
    alone = torch.cat([watched(monitor, scores[at : at + 1]) for at in range(5)])
    assert torch.equal(together, alone)
    assert together[3, -1] == 1
    assert (together[[0, 1, 2, 4]] >= 0).double().mean() < 0.02


def test_the_order_of_sensors_does_not_matter() -> None:
    healthy, group = streams(PEOPLE).flatten(0, 1), torch.arange(PEOPLE).repeat_interleave(WINDOWS)
    turned = dict(reversed(heads(healthy).items()))
    one, other = SensorMonitor.fit(heads(healthy), group), SensorMonitor.fit(turned, group)
    window = streams(4, 1, seed=3)[:, 0]
    first, second = one.update(heads(window)), other.update(heads(window))
    torch.testing.assert_close(first.level, second.level.flip(dims=[1]))
    assert first.names() == second.names()


def test_streaming_gives_the_averages_of_the_whole_stream() -> None:
    monitor, scores = fitted(), streams(1, 25, seed=4)
    logs = scores[0].log_softmax(dim=-1)
    state, there = monitor.start(logs[:1]), torch.ones(1, 3, dtype=torch.bool)
    for window in logs:
        state, _ = monitor.step(state, window.unsqueeze(0), there)
    # By hand: an average that starts at the centre, movement from the second window on.
    expected = monitor.limits.centre.clone()
    for at in range(len(logs)):
        found, _ = statistics(logs[at : at + 1], logs[max(at - 1, 0)].unsqueeze(0), there, there)
        fresh = expected + 0.4 * (found[0] - expected)
        if at == 0:
            fresh[:, 0] = expected[:, 0]
        expected = fresh
    torch.testing.assert_close(state.average[0], expected)


def test_statistics_worked_out_by_hand() -> None:
    now = torch.tensor([[[0.5, 0.5], [0.8, 0.2], [0.1, 0.9]]]).log()
    before = torch.tensor([[[0.25, 0.75], [0.8, 0.2], [0.1, 0.9]]]).log()
    everybody = torch.ones(1, 3, dtype=torch.bool)
    found, known = statistics(now, before, everybody, everybody)
    assert known.all()
    movement = (math.log(2) + math.log(1.5)) / 2
    assert found[0, 0, 0].item() == pytest.approx(math.log(movement + 1e-4), abs=1e-5)
    assert found[0, 1, 0].item() == pytest.approx(math.log(1e-4), abs=1e-3)
    assert found[0, 1, 1].item() == pytest.approx(math.log(math.log(4) / 2 + 1e-4), abs=1e-5)
    rest = [(0.5 + 0.1) / 2, (0.5 + 0.9) / 2]  # of the other two, for the second
    assert found[0, 1, 2].item() == pytest.approx(-math.log(0.8 * rest[0] + 0.2 * rest[1]), abs=1e-5)


def test_a_sensor_known_to_be_missing_is_not_watched_and_not_compared_with() -> None:
    monitor, scores = fitted(), streams(1, 40, seed=5)
    monitor.reset()
    for at, window in enumerate(scores[0].unsqueeze(1)):
        rubbish = window.clone()
        rubbish[:, 1] = 50.0 * torch.tensor([1.0, -1.0, 0.0, 0.0])
        verdict = monitor.update(heads(rubbish), {"rear": torch.tensor([at < 0])})
    assert verdict.names() == [None]
    assert verdict.level[0, 1] == 0
    other = fitted(2)
    other.limits = Limits(
        *(each[[0, 2]] for each in (monitor.limits.centre, monitor.limits.below, monitor.limits.above))
    )
    other.heights = monitor.heights
    for window in scores[0].unsqueeze(1):
        alone = other.update({"front": window[:, 0], "rear": window[:, 2]})
    torch.testing.assert_close(verdict.level[0, [0, 2]], alone.level[0])


def test_statistics_leave_out_a_missing_sensor() -> None:
    now, before = streams(4, 1, seed=11)[:, 0].log_softmax(-1), streams(4, 1, seed=12)[:, 0].log_softmax(-1)
    there, two = torch.tensor([[True, False, True]]).expand(4, 3), torch.ones(4, 2, dtype=torch.bool)
    found, known = statistics(now, before, there, torch.ones(4, 3, dtype=torch.bool))
    alone, _ = statistics(now[:, [0, 2]], before[:, [0, 2]], two, two)
    torch.testing.assert_close(found[:, [0, 2]], alone)
    assert known.tolist() == [[[True] * 3, [False] * 3, [True] * 3]] * 4
    single = torch.tensor([[True, False, False]])
    _, known = statistics(now[:1], before[:1], single, torch.tensor([[False, True, True]]))
    assert known[0, 0].tolist() == [False, True, False]  # no window before, and nobody to disagree with


def test_an_alarm_ends_when_its_sensor_is_flagged() -> None:
    monitor, window = fitted(), streams(1, 1, seed=13)[:, 0]
    for at in range(15):
        now = streams(1, 1, seed=20 + at)[:, 0]
        now[:, 1] = window[:, 1]
        verdict = monitor.update(heads(now))
    assert verdict.names() == ["rear"]
    verdict = monitor.update(heads(streams(1, 1, seed=40)[:, 0]), {"rear": [False]})
    assert verdict.level[0, 1] == 0
    assert verdict.names() != ["rear"]


def test_a_trial_counts_windows_to_the_first_alarm_and_who_was_named_there() -> None:
    monitor, said = fitted(), streams(6, 10, seed=14)
    said[2:, :, 1] = said[2:, :1, 1]
    logs = said.log_softmax(dim=-1)
    outcome = monitor_evaluation._watch(monitor, monitor.start(logs[:, 0]), logs, place=1)
    for row, told in enumerate(watched(monitor, said).tolist()):
        first = next((at for at, sensor in enumerate(told) if sensor >= 0), None)
        assert outcome[row, 0] == (0 if first is None else first + 1)
        if first is not None:
            assert outcome[row, 1] == (told[first] == 1)
    assert (outcome[2:, 0] > 1).all()


def test_what_was_saved_says_the_same(tmp_path: Path) -> None:
    monitor, scores = fitted(), streams(3, 20, seed=6)
    scores[0, 8:, 2] = 0.0
    monitor.save(tmp_path / "monitor.json")
    again = SensorMonitor.load(tmp_path / "monitor.json")
    assert torch.equal(watched(monitor, scores), watched(again, scores))
    assert watched(again, scores)[0, -1] == 2
    assert again.facts == monitor.facts
    for text in ("{", "{}", "[]", "[" * 200_000, "null", ""):
        (tmp_path / "monitor.json").write_text(text)
        with pytest.raises(BadInput, match="expected a monitor"):
            SensorMonitor.load(tmp_path / "monitor.json")


@pytest.mark.parametrize("key", ["centre", "below", "above", "heights", "memory", "modalities", "calibration"])
def test_fields_of_other_types_are_named(key: str, tmp_path: Path) -> None:
    fitted().save(tmp_path / "monitor.json")
    whole = json.loads((tmp_path / "monitor.json").read_text())
    for value in (None, [None] * 5, [[0.0] * 3], [{}], 10**400, "a"):
        (tmp_path / "monitor.json").write_text(json.dumps({**whole, key: value}))
        with pytest.raises(BadInput, match=rf"monitor\.json: expected a monitor .*{key}.* Make one: "):
            SensorMonitor.load(tmp_path / "monitor.json")


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_mutated_monitors_are_refused_or_work(kind: Any, tmp_path: Path) -> None:
    if kind == "classes":
        fitted().save(tmp_path / "monitor.json")
    else:
        SensorMonitor.fit(people("regression", 200, 0), kind="regression").save(tmp_path / "monitor.json")
    whole, draw, read = json.loads((tmp_path / "monitor.json").read_text()), random.Random(0), 0
    for _ in range(int(os.environ.get("EQUIPOISE_CASES", "300"))):
        (tmp_path / "monitor.json").write_bytes(mutated_json(whole, draw))
        with contextlib.suppress(BadInput):
            monitor = SensorMonitor.load(tmp_path / "monitor.json")
            width = 4 if monitor.scale is None else monitor.scale.shape[1]
            output = monitor.update({name: torch.zeros(2, width) for name in monitor.modalities})
            assert len(output.names()) == 2
            read += 1
    assert read > 10


def test_reset_forgets_the_streams_and_other_streams_need_it() -> None:
    monitor = fitted()
    first = monitor.update(heads(streams(2, 1, seed=7)[:, 0])).level
    monitor.update(heads(streams(2, 1, seed=8)[:, 0]))
    with pytest.raises(ValueError, match=r"monitor\.reset\(\)"):
        monitor.update(heads(streams(3, 1)[:, 0]))
    monitor.reset()
    assert torch.equal(monitor.update(heads(streams(2, 1, seed=7)[:, 0])).level, first)


def test_heights_allow_for_streams_that_differ() -> None:
    assert bound_for_the_next(torch.tensor([[1.5, 3.0]])).tolist() == [3.0, 6.0]
    needs = torch.tensor([[1.0, 1.0], [math.e, 1.0]])
    # Variances 1/2 and 0 of the logs, mean 1/4; t = 2.92 with two degrees of freedom; √(1 + 1/2).
    wide, narrow = (math.sqrt((own + 0.25) / 2) for own in (0.5, 0.0))
    expected = [math.exp(0.5 + 2.92 * wide * math.sqrt(1.5)), math.exp(2.92 * narrow * math.sqrt(1.5))]
    assert bound_for_the_next(needs).tolist() == pytest.approx(expected, rel=1e-4)


def test_a_dead_sensor_is_found_however_odd_healthy_streams_are() -> None:
    scores = streams(3, seed=9) * torch.tensor([0.1, 1.0, 20.0])[:, None, None, None]  # people like day and night
    group = torch.arange(3).repeat_interleave(WINDOWS)
    monitor = SensorMonitor.fit(heads(scores.flatten(0, 1)), group)
    window = scores[1, :1]
    for _ in range(10 + 1):
        verdict = monitor.update(heads(window))
    assert verdict.names() != [None]


def test_limits_are_those_of_the_oddest_stream() -> None:
    calm, lively = torch.zeros(100, 1, 3), torch.linspace(-1, 3, 100)[:, None, None].expand(100, 1, 3)
    limits = Limits.of([calm, lively])
    assert limits.centre.tolist() == [[0.0, 0.0, 0.0]]
    assert limits.above[0, 0].item() == pytest.approx(2.96, abs=0.01)
    assert limits.below[0, 0].item() == pytest.approx(0.96, abs=0.01)
    levels = limits.levels(torch.tensor([[2.96, -0.96, -5.0]]))
    assert levels.tolist()[0] == pytest.approx([0, 1, 1, 0, 0], abs=0.02)  # to agree more than ever is no fault


def test_averages_begin_where_they_are_told() -> None:
    logs = streams(1, 4, seed=10)[0].log_softmax(dim=-1)
    centre = torch.full((3, 3), 7.0)
    first = averaged(logs, 0.25, centre)[0]
    there = torch.ones(1, 3, dtype=torch.bool)
    found, _ = statistics(logs[:1], logs[1:2], there, there)
    torch.testing.assert_close(first, 0.75 * centre + 0.25 * found[0])


def test_bad_calibration_data_is_refused_with_all_that_is_wrong() -> None:
    scores = heads(streams(1, 12)[0])
    with pytest.raises(ValueError, match=r"at least 15 windows; found one of 12") as found:
        SensorMonitor.fit(scores, false_alarms=2.0, memory=0.0)
    assert "false_alarms between 0 and 1; found 2.0" in str(found.value)
    assert "memory above 0" in str(found.value)
    with pytest.raises(ValueError, match="a group per window"):
        SensorMonitor.fit(scores, torch.zeros(5))
    with pytest.raises(ValueError, match="at least one sensor"):
        SensorMonitor.fit({"fused": torch.zeros(20, 3)})
    with pytest.raises(ValueError, match="head of 'side'"):
        fitted().update({"front": torch.zeros(1, 4), "rear": torch.zeros(1, 4)})


def test_a_trial_finds_dead_sensors_of_a_model_and_counts_what_it_tried() -> None:
    torch.manual_seed(0)
    centres = {name: 2 * torch.randn(3, 6) for name in ("left", "right")}

    def part(people: range) -> Part:
        label = torch.randint(3, (len(people), 5)).repeat_interleave(20, dim=1).flatten()
        inputs = {name: each[label] + torch.randn(len(label), 6) for name, each in centres.items()}
        return Part(inputs, label, torch.tensor(list(people)).repeat_interleave(100))

    train, validation, test = part(range(4)), part(range(4, 8)), part(range(8, 10))
    model = LateFusion({name: MLP(6, 8) for name in centres}, classes=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        losses = [torch.nn.functional.cross_entropy(each, train.label) for each in model(train.inputs).values()]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()

    monitor = fit_monitor(model, validation)
    found = evaluate_monitor(monitor, model, test, training_statistics(train))
    assert found.dead() == 1.0
    assert found.streams == 2
    assert found.stretches <= 0.02
    assert found.windows <= found.stretches <= found.worst
    assert {each.sensor for each in found.faults} == {"left", "right"}
    assert {each.trials for each in found.faults} == {8}  # onsets 20, 40, 60 and 80 of each of two people
    dead = [each for each in found.faults if each.fault == "stuck"]
    assert all(each.named is not None and each.named > 0.7 for each in dead)
    assert all(each.delay is not None and 1 <= each.delay <= 10 for each in dead)

    for windows in (11, 29, 49):  # a stream that is just longer than a stretch has a trial too
        short = test.take((torch.arange(200) % 100) < windows)
        trials = {each.trials for each in evaluate_monitor(monitor, model, short, training_statistics(train)).faults}
        assert trials == {2 * (1 + max(0, windows - 30) // 20)}

    monitor.heights = torch.full((5,), 1e-6)  # always alarmed, so that no onset is left to try
    alarmed = evaluate_monitor(monitor, model, test, training_statistics(train))
    assert (alarmed.stretches, alarmed.faults, alarmed.dead()) == (1.0, [], 0.0)

    with pytest.raises(ValueError, match="more than 100 windows; the longest group has 100"):
        evaluate_monitor(monitor, model, test, training_statistics(train), stretch=100)
    with pytest.raises(ValueError, match="'left' gives none"):
        evaluate_monitor(
            monitor, model, test, training_statistics(train)._replace(mean={"right": test.inputs["right"][0]})
        )

    silent = LateFusion({name: MLP(6, 8) for name in centres}, classes=3, unimodal=None)
    with pytest.raises(ValueError, match="unimodal=None"):
        fit_monitor(silent, validation)


# -- other tasks --


def people(kind: Any, windows: int, seed: int) -> dict[str, Tensor]:
    """What three heads say of the same truth, each with noise of its own."""
    random = torch.Generator().manual_seed(seed)
    truth = torch.randn(windows, 2, generator=random)
    says = {name: truth + 0.5 * torch.randn(windows, 2, generator=random) for name in ("a", "b", "c")}
    if kind == "regression":  # columns in units of their own
        return {name: torch.tensor([1000.0, -3.0]) + torch.tensor([50.0, 1e-3]) * each for name, each in says.items()}
    return {name: 3 * each for name, each in says.items()}


@pytest.mark.parametrize("kind", ["labels", "regression"])
def test_heads_of_any_task_are_watched(kind: Any, tmp_path: Path) -> None:
    monitor = SensorMonitor.fit(people(kind, 800, 0), torch.arange(800) // 100, kind=kind)
    monitor.save(tmp_path / "monitor.json")
    loaded = SensorMonitor.load(tmp_path / "monitor.json")
    healthy = people(kind, 300, 1)
    alarms = 0
    for window in range(300):
        now = {name: each[window : window + 1] for name, each in healthy.items()}
        verdict = loaded.update(now)
        assert torch.equal(verdict.level, monitor.update(now).level)
        alarms += verdict.names() != [None]
    assert alarms <= 9
    for sensor in healthy:
        stuck, fresh = people(kind, 12, 2), loaded.fresh()
        stuck[sensor] = stuck[sensor][:1].expand(12, -1)
        said = [fresh.update({name: each[[at]] for name, each in stuck.items()}).names()[0] for at in range(12)]
        assert said[-1] == sensor


def test_statistics_of_numbers_and_labels_by_hand() -> None:
    says = torch.tensor([[[1.0], [3.0], [5.0]]])
    last = torch.tensor([[[1.0], [1.0], [1.0]]])
    there = torch.ones(1, 3, dtype=torch.bool)
    values, known = statistics(says, last, there, there, "regression")
    assert known.all()
    torch.testing.assert_close(values[0, :, 0], (torch.tensor([0.0, 2.0, 4.0]) + 1e-4).log())
    torch.testing.assert_close(values[0, :, 1], (torch.tensor([1.0, 3.0, 5.0]) + 1e-4).log())
    torch.testing.assert_close(values[0, :, 2], torch.tensor([3.0, 0.0, 3.0]))
    odds = torch.tensor([[[0.0, 100.0], [0.0, -100.0]]])
    values, _ = statistics(odds, odds, there[:, :2], there[:, :2], "labels")
    # Even odds agree by half; two that are sure of the contrary by nothing.
    torch.testing.assert_close(values[0, :, 2], torch.full((2,), -(math.log(0.5 + 1e-9) + math.log(1e-9)) / 2))


def test_a_monitor_of_numbers_needs_their_scale(tmp_path: Path) -> None:
    SensorMonitor.fit(people("regression", 200, 0), kind="regression").save(tmp_path / "monitor.json")
    content = json.loads((tmp_path / "monitor.json").read_text())
    for change in ({"scale": None}, {"kind": "labels"}, {"kind": "numbers"}):
        (tmp_path / "monitor.json").write_text(json.dumps({**content, **change}))
        with pytest.raises(BadInput, match="Make one: equipoise monitor RUN"):
            SensorMonitor.load(tmp_path / "monitor.json")


def test_a_sensor_that_may_rest_raises_no_alarm_by_resting_and_others_still_do() -> None:
    torch.manual_seed(5)
    group = torch.arange(600) // 100
    force = torch.randn(600, 2).where((torch.arange(600) % 100 >= 50)[:, None], 0.3)  # half of each stream in free air
    heads = {"camera": torch.randn(600, 2), "force": force}
    strict = SensorMonitor.fit(heads, group, kind="regression")
    lenient = SensorMonitor.fit(heads, group, kind="regression", may_rest=["force"])

    def named(monitor: SensorMonitor, still: str) -> set[str | None]:
        monitor.reset()
        said = set()
        for _ in range(30):
            now = {name: torch.randn(1, 2) for name in heads} | {still: torch.full((1, 2), 0.3)}
            said.add(monitor.update(now).names()[0])
        return said

    assert "force" in named(strict, "force")
    assert named(lenient, "force") == {None}
    assert "camera" in named(lenient, "camera")
    with pytest.raises(ValueError, match=r"may_rest to name some of \['camera', 'force'\]; found \['touch'\]"):
        SensorMonitor.fit(heads, group, kind="regression", may_rest=["touch"])

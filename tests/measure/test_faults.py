import json
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.data import Part
from equipoise.measure import accuracy, accuracy_under_faults, decisions, faulty_parts, training_statistics
from equipoise.measure.faults import bursts, delayed, earlier_rows, frozen, has_time, noisy
from equipoise.models import MLP, LateFusion
from equipoise.models.late_fusion import Unimodal
from measure.constructed import names, random_model, random_part, reader, series_model, series_part, told

LEVELS = {
    "missing": ["zeros", "mean", "absent"],
    "noisy": ["0.5", "1", "2", "4"],
    "frozen": ["random"],
    "delayed": ["10%", "25%", "50%"],
    "bursts": ["25%", "50%"],
}


def cells(found: dict[str, Any], decision: str) -> list[list[float]]:
    """The accuracies of one decision, a row for each fault of each modality."""
    return [
        [answers[decision] for answers in levels.values()]
        for name, by_fault in found.items()
        if name not in ("mean", "worst")
        for levels in by_fault.values()
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_modality_has_every_fault(count: int) -> None:
    part = random_part(count)
    found = accuracy_under_faults(random_model(count), part, training_statistics(part), seed=0)
    assert list(found) == [*names(count), "mean", "worst"]
    for name in names(count):
        missing = LEVELS["missing"] if count > 1 else ["zeros", "mean"]  # without its only sensor a model is mute
        assert {fault: list(levels) for fault, levels in found[name].items()} == {**LEVELS, "missing": missing}
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("kind", ["vectors", "series", "ragged"])
@pytest.mark.parametrize("unimodal", ["head", "split", None])
def test_each_number_is_what_the_model_says_to_the_faulty_part(kind: str, unimodal: Unimodal | None) -> None:
    if kind == "vectors":
        model, part = random_model(2, unimodal=unimodal), random_part(2)
    else:
        model, part = series_model(unimodal=unimodal), series_part()
    if kind == "ragged":
        part = replace(part, inputs={**part.inputs, "imu_length": torch.arange(len(part)) % 20 + 3})
    training = training_statistics(part)
    found = accuracy_under_faults(model, part, training, seed=3, batch=16)
    for name in model.encoders:
        for fault, level, faulty in faulty_parts(part, name, training, seed=3):
            outputs = decisions(model, faulty, batch=16)
            committee = None if outputs.committee is None else accuracy(outputs.committee, part.label)
            expected = {"fused": accuracy(outputs.fused, part.label), "committee": committee}
            assert found[name][fault][level] == expected, (name, fault, level)


def test_missing_is_what_it_says() -> None:
    part, train = random_part(2), random_part(2, seed=9)
    ways = {
        level: faulty
        for fault, level, faulty in faulty_parts(part, "audio", training_statistics(train))
        if fault == "missing"
    }
    assert not ways["zeros"].inputs["audio"].any()
    torch.testing.assert_close(ways["mean"].inputs["audio"][7], train.inputs["audio"].mean(dim=0))
    assert list(ways["absent"].inputs) == ["cam_left"]


def test_only_the_broken_modality_changes() -> None:
    part = series_part()
    for _, level, faulty in faulty_parts(part, "audio", training_statistics(part)):
        assert faulty.inputs["imu"] is part.inputs["imu"]
        assert torch.equal(faulty.label, part.label)
        if level != "absent":
            assert not torch.equal(faulty.inputs["audio"], part.inputs["audio"])


def test_draws_follow_the_seed_and_the_modality_alone() -> None:
    same = torch.randn(30, 2, 24, generator=torch.Generator().manual_seed(0))
    part = Part({"audio": same, "imu": same}, torch.zeros(30))
    training = training_statistics(part)

    def broken(modality: str, seed: int) -> dict[tuple[str, str], torch.Tensor]:
        found = faulty_parts(part, modality, training, seed)
        return {(fault, level): each.inputs[modality] for fault, level, each in found if level != "absent"}

    first, again, other_seed, other_name = broken("audio", 0), broken("audio", 0), broken("audio", 1), broken("imu", 0)
    for key, value in first.items():
        assert torch.equal(value, again[key])
        by_chance = key[0] in ("noisy", "frozen", "bursts")
        assert torch.equal(value, other_seed[key]) != by_chance
        assert torch.equal(value, other_name[key]) != by_chance
    # All levels share their draws, so that a curve over levels is not rough by chance.
    torch.testing.assert_close(first["noisy", "4"] - same, 8 * (first["noisy", "0.5"] - same), rtol=1e-3, atol=1e-3)


def test_the_same_seed_gives_the_same_numbers() -> None:
    model, part = series_model(), series_part()
    training = training_statistics(part)
    assert accuracy_under_faults(model, part, training, seed=1) == accuracy_under_faults(model, part, training, seed=1)
    assert accuracy_under_faults(model, part, training, seed=1) != accuracy_under_faults(model, part, training, seed=2)


def test_mean_counts_faults_alike_and_worst_is_the_worst() -> None:
    part = random_part(3)
    found = accuracy_under_faults(random_model(3, seed=5), part, training_statistics(part))
    for decision in ("fused", "committee"):
        rows = cells(found, decision)
        assert found["mean"][decision] == pytest.approx(sum(sum(row) / len(row) for row in rows) / len(rows))
        assert found["worst"][decision] == min(min(row) for row in rows)
    assert found["mean"]["fused"] != pytest.approx(fmean(chain.from_iterable(cells(found, "fused"))), abs=1e-6)


def test_a_sensor_that_is_not_read_may_break() -> None:
    label = torch.arange(60) % 3
    part = Part({"audio": told(label), "video": told(label)}, label)
    model = reader({"audio": 1.0, "video": 0.0})
    found = accuracy_under_faults(model, part, training_statistics(part))
    assert {answers["fused"] for levels in found["video"].values() for answers in levels.values()} == {1.0}
    assert found["audio"]["missing"]["zeros"]["fused"] == pytest.approx(1 / 3)  # no vote: the first class
    assert found["audio"]["missing"]["absent"]["fused"] == pytest.approx(1 / 3)
    assert found["audio"]["missing"]["absent"]["committee"] == 1.0  # the head of video steps in
    assert found["audio"]["noisy"]["0.5"]["fused"] > found["audio"]["noisy"]["4"]["fused"]
    assert found["audio"]["bursts"]["50%"]["fused"] == pytest.approx(0.5 + 0.5 / 3, abs=0.15)


def test_without_unimodal_outputs_no_committee_answers() -> None:
    part = random_part(2)
    found = accuracy_under_faults(random_model(2, unimodal=None), part, training_statistics(part))
    assert {value for row in cells(found, "committee") for value in row} == {None}
    assert found["mean"]["committee"] is None
    assert found["worst"]["committee"] is None
    assert isinstance(found["worst"]["fused"], float)


def test_errors_say_what_to_do() -> None:
    part = random_part(2)
    model, training = random_model(2), training_statistics(part)
    with pytest.raises(ValueError, match=r"found torch\.int64 in 'audio'\. Type \.float\(\)"):
        accuracy_under_faults(
            model, replace(part, inputs={**part.inputs, "audio": part.inputs["audio"].long()}), training
        )
    with pytest.raises(ValueError, match=r"of 'cam_left' in the part and its training statistics"):
        accuracy_under_faults(model, part, training_statistics(random_part(1)))
    with pytest.raises(ValueError, match="No modality may be called 'mean'"):  # it would hide a summary
        LateFusion({"mean": MLP(3)}, classes=3)


SERIES = torch.randn(50, 3, 40, generator=torch.Generator().manual_seed(0))
VIDEO = torch.randn(20, 2, 12, 4, 5, generator=torch.Generator().manual_seed(1))
VECTORS = torch.randn(200, 6, generator=torch.Generator().manual_seed(2))
IMAGES = torch.randn(40, 3, 5, 6, generator=torch.Generator().manual_seed(3))
ARRAYS = pytest.mark.parametrize("array", [SERIES, VIDEO, VECTORS, IMAGES], ids=["series", "video", "vector", "image"])
TIMED = pytest.mark.parametrize("array", [SERIES, VIDEO], ids=["series", "video"])


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def statistics(array: Tensor) -> tuple[Tensor, Tensor]:
    training = training_statistics(Part({"x": array}, torch.zeros(len(array))))
    return training.mean["x"], training.deviation["x"]


def test_time_is_the_third_axis_of_series_and_video() -> None:
    assert [has_time(array) for array in (SERIES, VIDEO, VECTORS, IMAGES)] == [True, True, False, False]


@ARRAYS
def test_statistics_are_the_mean_sample_and_the_deviation_of_channels(array: Tensor) -> None:
    scaled = array * torch.arange(1.0, array.shape[1] + 1).reshape(-1, *[1] * (array.dim() - 2)) + 3
    mean, deviation = statistics(scaled)
    torch.testing.assert_close(mean, scaled.mean(dim=0))
    for channel in range(array.shape[1]):
        torch.testing.assert_close(deviation[channel].reshape(()), scaled[:, channel].std(correction=0))
    assert deviation.dim() == array.dim() - 1


@ARRAYS
def test_level_zero_changes_nothing(array: Tensor) -> None:
    mean, deviation = statistics(array)
    assert torch.equal(noisy(array, 0.0, deviation, draws()), array)
    assert torch.equal(delayed(array, 0.0, None), array)
    assert torch.equal(bursts(array, 0.0, mean, deviation, draws()), array)


@ARRAYS
def test_the_array_given_stays_and_draws_repeat(array: Tensor) -> None:
    mean, deviation = statistics(array)
    before = array.clone()
    ways = [
        lambda seed: noisy(array, 1.0, deviation, draws(seed)),
        lambda seed: frozen(array, None, draws(seed)),
        lambda seed: bursts(array, 0.5, mean, deviation, draws(seed)),
    ]
    for way in ways:
        assert torch.equal(way(0), way(0))
        assert not torch.equal(way(0), array)
    chance = [ways[0], ways[2], *([ways[1]] if has_time(array) else [])]
    assert not any(torch.equal(way(0), way(1)) for way in chance)
    delayed(array, 0.5, None)
    assert torch.equal(array, before)


@ARRAYS
@pytest.mark.parametrize("level", [0.5, 4.0])
def test_noise_is_as_strong_as_it_says_in_units_of_each_channel(array: Tensor, level: float) -> None:
    scaled = array * torch.arange(1.0, array.shape[1] + 1).reshape(-1, *[1] * (array.dim() - 2))
    _, deviation = statistics(scaled)
    noise = (noisy(scaled, level, deviation, draws()) - scaled) / deviation
    by_channel = noise.transpose(0, 1).flatten(1).std(dim=1)
    torch.testing.assert_close(by_channel, torch.full_like(by_channel, level), rtol=0.15, atol=0)


@TIMED
def test_a_frozen_signal_is_constant_from_its_time_on_and_true_before(array: Tensor) -> None:
    steps = array.shape[2]
    result = frozen(array, None, draws())
    times = array.movedim(2, 1).flatten(2), result.movedim(2, 1).flatten(2)  # [N, T, everything else]
    true = (times[0] == times[1]).all(dim=2)
    onset = true.long().cumprod(dim=1).sum(dim=1) - 1  # random numbers agree by no accident
    assert onset.min() >= 0
    assert len(onset.unique()) > 5
    for sample, start in enumerate(onset.tolist()):
        assert (times[1][sample, start:] == times[0][sample, start]).all()
    assert onset.float().mean() == pytest.approx((steps - 1) / 2, rel=0.25)


@TIMED
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_a_delayed_signal_is_the_shifted_one(array: Tensor, share: float) -> None:
    late = round(share * array.shape[2])
    result = delayed(array, share, None)
    assert late > 0
    assert torch.equal(result[:, :, late:], array[:, :, :-late])
    assert torch.equal(result[:, :, :late], array[:, :, :1].expand_as(result[:, :, :late]))


@TIMED
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_bursts_cover_their_share_in_stretches_of_loud_noise(array: Tensor, share: float) -> None:
    mean, deviation = statistics(array)
    result = bursts(array, share, mean, deviation, draws())
    changed = (result != array).movedim(2, 1).flatten(2)
    hit = changed.any(dim=2)
    assert torch.equal(hit, changed.all(dim=2))  # all channels and pixels of a step, or none
    assert hit.float().mean(dim=1) == pytest.approx(share, abs=0.02)
    assert len(hit.unique(dim=0)) > len(hit) / 2  # each sample at times of its own
    noise = ((result - mean) / deviation).movedim(2, 1)[hit]
    assert noise.std() == pytest.approx(5, rel=0.1)


def test_bursts_come_in_stretches_and_grow_with_the_share() -> None:
    array = torch.zeros(30, 1, 200)
    quarter, half = (bursts(array, share, torch.zeros(1, 200), torch.ones(1, 1), draws()) for share in (0.25, 0.5))
    hit = (quarter != 0)[:, 0]
    assert (hit[:, 1:] != hit[:, :-1]).sum(dim=1).max() <= 2 * 5  # five stretches of ten steps, at most ten edges
    assert torch.equal(half[:, 0][hit], quarter[:, 0][hit])


def test_a_window_shorter_than_the_stretches() -> None:
    array = torch.zeros(8, 2, 4)
    hit = bursts(array, 0.5, torch.zeros(2, 4), torch.ones(2, 1), draws()) != 0
    assert (hit[:, 0].sum(dim=1) == 2).all()
    assert torch.equal(frozen(array[:, :, :1] + 3, None, draws()), array[:, :, :1] + 3)


def test_earlier_rows_by_hand() -> None:
    group = torch.tensor([7, 3, 7, 7, 3])
    assert earlier_rows(5, group, lag=1).tolist() == [0, 1, 0, 2, 1]
    assert earlier_rows(5, group, lag=2).tolist() == [0, 1, 0, 0, 1]
    assert earlier_rows(5, group, share=0.5).tolist() == [0, 1, 0, 0, 1]  # two of three, one of two
    assert earlier_rows(5, None, lag=1).tolist() == [0, 0, 1, 2, 3]
    assert earlier_rows(5, None, share=0.4).tolist() == [0, 0, 0, 1, 2]


@pytest.mark.parametrize("array", [VECTORS, IMAGES], ids=["vector", "image"])
def test_without_time_samples_are_the_time_line(array: Tensor) -> None:
    assert torch.equal(frozen(array, None, draws())[1:], array[:-1])
    late = round(0.25 * len(array))
    result = delayed(array, 0.25, None)
    assert torch.equal(result[late:], array[:-late])
    assert torch.equal(result[:late], array[:1].expand_as(result[:late]))
    group = torch.arange(len(array)) % 3
    assert torch.equal(frozen(array, group, draws())[3:], array[:-3])

    mean, deviation = statistics(array)
    changed = (bursts(array, 0.25, mean, deviation, draws()) != array).flatten(1)
    assert torch.equal(changed.any(dim=1), changed.all(dim=1))
    assert changed.any(dim=1).float().mean() == pytest.approx(0.25)


def test_beams_are_not_delayed_and_stand_still_from_scan_to_scan() -> None:
    series = series_part()
    scans = replace(series, spatial=frozenset({"imu"}))
    training = training_statistics(series)
    timed = {(fault, level): faulty for fault, level, faulty in faulty_parts(series, "imu", training)}
    found = {(fault, level): faulty for fault, level, faulty in faulty_parts(scans, "imu", training)}
    assert {key for key in timed if key[0] != "delayed"} == found.keys() < timed.keys()
    array = series.inputs["imu"]
    before = earlier_rows(len(array), series.group, lag=1)
    assert torch.equal(found["frozen", "random"].inputs["imu"], array[before])
    hit = (found["bursts", "25%"].inputs["imu"] != array).flatten(1)
    assert (hit.all(dim=1) == hit.any(dim=1)).all(), "a burst takes whole scans"
    assert int(hit.any(dim=1).sum()) == round(0.25 * len(array))
    for key in found.keys() - {("frozen", "random"), ("bursts", "25%"), ("bursts", "50%")}:
        same = found[key].inputs
        assert all(torch.equal(values, timed[key].inputs[name]) for name, values in same.items()), key


def test_a_part_keeps_which_axes_are_not_time() -> None:
    scans = replace(series_part(), spatial=frozenset({"imu"}))
    for part in (scans.take(torch.arange(3)), scans.to("cpu"), scans.ready(), scans.in_memory()):
        assert part.spatial == {"imu"}

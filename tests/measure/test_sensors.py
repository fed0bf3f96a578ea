import json
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

import pytest
import torch

from equipoise.data import Part
from equipoise.measure import accuracy, decisions, faults, faulty_parts, training_statistics
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
    found = faults(random_model(count), part, training_statistics(part), seed=0)
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
    found = faults(model, part, training, seed=3, batch=16)
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
    assert faults(model, part, training, seed=1) == faults(model, part, training, seed=1)
    assert faults(model, part, training, seed=1) != faults(model, part, training, seed=2)


def test_mean_counts_faults_alike_and_worst_is_the_worst() -> None:
    part = random_part(3)
    found = faults(random_model(3, seed=5), part, training_statistics(part))
    for decision in ("fused", "committee"):
        rows = cells(found, decision)
        assert found["mean"][decision] == pytest.approx(sum(sum(row) / len(row) for row in rows) / len(rows))
        assert found["worst"][decision] == min(min(row) for row in rows)
    assert found["mean"]["fused"] != pytest.approx(fmean(chain.from_iterable(cells(found, "fused"))), abs=1e-6)


def test_a_sensor_that_is_not_read_may_break() -> None:
    label = torch.arange(60) % 3
    part = Part({"audio": told(label), "video": told(label)}, label)
    model = reader({"audio": 1.0, "video": 0.0})
    found = faults(model, part, training_statistics(part))
    assert {answers["fused"] for levels in found["video"].values() for answers in levels.values()} == {1.0}
    assert found["audio"]["missing"]["zeros"]["fused"] == pytest.approx(1 / 3)  # no vote: the first class
    assert found["audio"]["missing"]["absent"]["fused"] == pytest.approx(1 / 3)
    assert found["audio"]["missing"]["absent"]["committee"] == 1.0  # the head of video steps in
    assert found["audio"]["noisy"]["0.5"]["fused"] > found["audio"]["noisy"]["4"]["fused"]
    assert found["audio"]["bursts"]["50%"]["fused"] == pytest.approx(0.5 + 0.5 / 3, abs=0.15)


def test_without_unimodal_outputs_no_committee_answers() -> None:
    part = random_part(2)
    found = faults(random_model(2, unimodal=None), part, training_statistics(part))
    assert {value for row in cells(found, "committee") for value in row} == {None}
    assert found["mean"]["committee"] is None
    assert found["worst"]["committee"] is None
    assert isinstance(found["worst"]["fused"], float)


def test_errors_say_what_to_do() -> None:
    part = random_part(2)
    model, training = random_model(2), training_statistics(part)
    with pytest.raises(ValueError, match=r"found torch\.int64 in 'audio'\. Type \.float\(\)"):
        faults(model, replace(part, inputs={**part.inputs, "audio": part.inputs["audio"].long()}), training)
    with pytest.raises(ValueError, match=r"of 'cam_left' in the part and in its training statistics"):
        faults(model, part, training_statistics(random_part(1)))
    with pytest.raises(ValueError, match="No modality may be called 'mean'"):  # it would hide a summary
        LateFusion({"mean": MLP(3)}, classes=3)

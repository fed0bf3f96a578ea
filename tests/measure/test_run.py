import copy
import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from equipoise.data import Part, Splits
from equipoise.measure import (
    accuracy_under_faults,
    decisions,
    measure_run,
    scores,
    training_statistics,
    unimodal_accuracy,
)
from equipoise.models import fit_committee
from measure.constructed import names, random_model, random_splits, reader, series_model, series_part, told

DECISIONS = [f"{decision}{score}" for decision in ("fused", "committee") for score in ("", "_f1", "_ece", "_loss")]
ALIKE = ("says", "auroc", "auroc_interval")
SAYS = [*(f"{name}_{of}" for name in ("fused", "committee") for of in ALIKE), "committee_fit"]
BESIDE = ["baseline", "interval_over", "interval_groups", "samples", "events", "fused_interval", "committee_interval"]


def kinds(value: Any) -> set[type]:
    """The types of everything inside, dicts aside."""
    return set().union(*map(kinds, value.values())) if type(value) is dict else {type(value)}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("view", ["head", "detached", "split", None])
def test_a_row_holds_everything_under_its_name(count: int, view: str | None) -> None:
    found = measure_run(random_model(count, unimodal=view), random_splits(count), seed=0)
    own = list(dict.fromkeys([*([view] if view else []), "split"]))
    ends = ["disparity", "beats_best_single"]
    assert list(found["validation"]) == [*DECISIONS, "view", *own, "zeroed", "shapley", *ends, *SAYS]
    assert list(found["test"]) == [*DECISIONS, "view", *own, "probe", "zeroed", "shapley", *ends, *BESIDE, "faults"]
    assert found["test"]["view"] == view
    assert all(list(found["test"][protocol]) == names(count) for protocol in own)
    assert kinds(found) <= {float, int, bool, str, type(None), list}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    nothing = {key for key, value in found["test"].items() if value is None}
    absent = set() if view else {*DECISIONS[4:], "view", *ends, BESIDE[-1]}
    assert nothing == {"events", *absent}  # of three classes none is the positive one
    assert found["test"]["samples"] == len(random_splits(count).test)


def test_numbers_are_those_of_the_parts() -> None:
    model, splits = random_model(2), random_splits(2)
    found = measure_run(model, splits, seed=4)
    for name in ("validation", "test"):
        both = scores(decisions(model, splits.parts[name]))
        assert both["fused"] is not None
        assert both["committee"] is not None
        assert found[name]["fused"] == both["fused"]["accuracy"]
        assert found[name]["fused_ece"] == both["fused"]["ece"]
        assert found[name]["committee_f1"] == both["committee"]["f1"]
        assert found[name]["committee_loss"] == both["committee"]["loss"]
    protocols = unimodal_accuracy(model, splits.test, train=splits.train)
    assert {name: found["test"][name] for name in protocols} == protocols
    assert found["test"]["faults"] == accuracy_under_faults(
        model, splits.test, training_statistics(splits.train), seed=4
    )


def test_disparity_is_that_of_the_view() -> None:
    label = torch.arange(12) % 3
    half_right = torch.where(torch.arange(12) < 6, label, (label + 1) % 3)
    part = Part({"audio": told(label), "video": told(half_right)}, label)
    splits = Splits("made", part, part, part, ("a", "b", "c"))
    good = measure_run(reader({"audio": 1.0, "video": 0.0}), splits, seed=0, faults=False)["test"]
    assert good["disparity"] == 0.5
    assert good["beats_best_single"] is False  # as good as audio, and no better
    assert good["split"] != good["head"]
    bad = measure_run(reader({"audio": 0.0, "video": 1.0}, unimodal="split"), splits, seed=0, faults=False)["test"]
    assert bad["split"]["video"] == bad["fused"] == 0.5
    assert bad["beats_best_single"] is False


def test_fusing_can_beat_the_best() -> None:
    label = torch.arange(12) % 3
    wrong = (label + 1) % 3
    first = torch.arange(12) < 6
    # Each is right, and louder, where the other is wrong.
    audio = torch.where(first[:, None], told(label, size=9.0), told(wrong, size=1.0))
    video = torch.where(first[:, None], told(wrong, size=1.0), told(label, size=9.0))
    part = Part({"audio": audio, "video": video}, label)
    splits = Splits("made", part, part, part, ("a", "b", "c"))
    found = measure_run(reader({"audio": 1.0, "video": 1.0}), splits, seed=0, faults=False)["test"]
    assert found["head"] == {"audio": 0.5, "video": 0.5}
    assert found["fused"] == 1.0
    assert found["beats_best_single"] is True


def test_the_committee_is_fitted_on_validation_and_nothing_else_changes() -> None:
    model, splits = random_model(2), random_splits(2)
    twin, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    measure_run(model, splits, seed=0, faults=False)
    fit_committee(twin, (splits.validation.inputs, splits.validation.label), groups=splits.validation.group)
    torch.testing.assert_close(model.committee, twin.committee)
    assert not torch.equal(model.committee, before["committee"])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items() if key != "committee")
    assert model.training


def test_the_test_part_decides_nothing() -> None:
    splits = random_splits(2)
    other = replace(splits, test=replace(splits.test, label=(splits.test.label + 1) % 3))
    models = random_model(2), random_model(2)
    first, second = (measure_run(model, data, seed=0) for model, data in zip(models, (splits, other), strict=True))
    assert first["validation"] == second["validation"]
    assert torch.equal(models[0].committee, models[1].committee)
    assert first["test"]["fused"] != second["test"]["fused"]


def test_the_majority_and_an_interval_stand_beside_the_test_numbers() -> None:
    model, splits = random_model(2), random_splits(2)
    train = replace(splits.train, label=splits.train.label.clone().fill_(1))
    found = measure_run(model, replace(splits, train=train), seed=0, faults=False, protocols=False)
    assert found["test"]["baseline"] == pytest.approx((splits.test.label == 1).double().mean().item())
    for decision in ("fused", "committee"):
        low, high = found["test"][f"{decision}_interval"]
        assert low <= found["test"][decision] <= high
        assert low < high
    errors = measure_run(model, splits, seed=0, faults=False, protocols=False, metric="macro_f1")
    assert errors["test"]["baseline"] < errors["test"]["fused_interval"][1] < 1


def test_a_model_that_says_one_class_is_told() -> None:
    label = torch.arange(12) % 3
    part = Part({"audio": told(label), "video": told(label * 0 + 1)}, label)
    splits = Splits("told", part, part, part, ("0", "1", "2"))
    said = [
        measure_run(reader(votes), splits, seed=0, faults=False, protocols=False)["validation"]["fused_says"]
        for votes in ({"audio": 5.0, "video": 1.0}, {"audio": 1.0, "video": 5.0})
    ]
    assert said == [None, "'1'"]


def test_parts_can_be_left_out() -> None:
    found = measure_run(random_model(2), random_splits(2), seed=0, faults=False, protocols=False)
    expected = [*DECISIONS, "view", "head", "disparity", "beats_best_single"]
    assert list(found["validation"]) == [*expected, *SAYS]
    assert list(found["test"]) == [*expected, *BESIDE]


def test_series_twice_the_same() -> None:
    splits = Splits("series", series_part(seed=1), series_part(seed=2), series_part(seed=3), ("a", "b", "c"))
    assert measure_run(series_model(), splits, seed=0) == measure_run(series_model(), splits, seed=0)

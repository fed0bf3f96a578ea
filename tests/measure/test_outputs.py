import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from equipoise.data import Part
from equipoise.measure import Outputs, accuracy, calibration_error, decisions, macro_f1, scores
from measure.constructed import names, random_model, random_part, reader, series_model, series_part, told


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    ("unimodal", "fusion"),
    [("head", "concat"), ("detached", "gated"), ("split", "sum"), ("split", "concat"), (None, "concat")],
)
def test_decisions_are_those_of_the_model_for_every_subset_of_sensors(
    count: int, unimodal: str | None, fusion: str
) -> None:
    model, part = random_model(count, unimodal=unimodal, fusion=fusion), random_part(count)
    for size in range(1, count + 1):
        for subset in itertools.combinations(names(count), size):
            inputs = {name: part.inputs[name] for name in subset}
            outputs = decisions(model, replace(part, inputs=inputs), batch=16)
            torch.testing.assert_close(outputs.fused.exp().float(), model.predict(inputs))
            assert list(outputs.unimodal) == (list(subset) if unimodal else [])
            assert outputs.view == unimodal
            if unimodal is None:
                assert outputs.committee is None
                continue
            assert outputs.committee is not None
            torch.testing.assert_close(outputs.committee.float(), model.predict(inputs, "committee"))
            raw = model.eval()(inputs)
            for name, logs in outputs.unimodal.items():
                torch.testing.assert_close(logs.float(), raw[name].log_softmax(dim=1))


def test_the_size_of_a_batch_does_not_matter() -> None:
    model, part = random_model(2), random_part(2)
    whole, small = decisions(model, part), decisions(model, part, batch=7)
    torch.testing.assert_close(small.fused, whole.fused, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(small.committee, whole.committee, rtol=1e-5, atol=1e-6)
    assert torch.equal(small.label, part.label)


def test_looking_changes_nothing() -> None:
    model = series_model(dropout=0.5).train()
    model.encoders["imu"].eval()
    before = copy.deepcopy(model.state_dict())
    outputs = decisions(model, series_part())
    assert not outputs.fused.requires_grad
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert not model.encoders["imu"].training


def test_the_right_modality_gets_its_hits() -> None:
    # Published code once counted the hits of one modality for the other.
    label = torch.tensor([0, 1, 2, 1, 0])
    model = reader({"audio": 1.0, "video": 1.0})
    outputs = decisions(model, Part({"audio": told((label + 1) % 3), "video": told(label)}, label), batch=2)
    assert (outputs.unimodal["audio"].argmax(1) == label).sum() == 0
    assert (outputs.unimodal["video"].argmax(1) == label).sum() == 5


def test_ragged_time_is_read() -> None:
    model, part = series_model(), series_part()
    lengths = torch.randint(3, 24, (len(part),), generator=torch.Generator().manual_seed(1))
    outputs = decisions(model, replace(part, inputs={**part.inputs, "imu_length": lengths}), batch=8)
    torch.testing.assert_close(outputs.fused.exp().float(), model.predict(part.inputs, lengths={"imu": lengths}))


def test_errors_say_what_to_do() -> None:
    model, part = random_model(2), random_part(2)
    with pytest.raises(TypeError, match=r"expected a LateFusion; found DataParallel\. .*model\.module"):
        decisions(nn.DataParallel(model), part)  # ty: ignore[invalid-argument-type]
    with pytest.raises(ValueError, match="found 0 samples"):
        decisions(model, part.take(torch.arange(0)))
    with pytest.raises(ValueError, match="labels are 0 to 2; found 0 to 7"):
        decisions(model, replace(part, label=part.label.clone().index_fill_(0, torch.tensor([3]), 7)))


def two_classes(*confidences: float) -> torch.Tensor:
    """Probabilities of two classes, the first of them told with these confidences."""
    first = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([first, 1 - first], dim=1)


def test_calibration_error_by_hand() -> None:
    # Bins of width 1/15: 0.55 and 0.60 share (0.53, 0.60], 0.70 and 0.71 share (0.67, 0.73], 0.95 and 0.97 (0.93, 1].
    probabilities = two_classes(0.55, 0.60, 0.70, 0.71, 0.95, 0.97)
    label = torch.tensor([0, 1, 0, 1, 0, 1])
    first, second, third = 1 - 0.55 - 0.60, 1 - 0.70 - 0.71, 1 - 0.95 - 0.97
    expected = (abs(first) + abs(second) + abs(third)) / 6
    assert calibration_error(probabilities, label) == pytest.approx(expected, abs=1e-12)


def test_errors_cancel_within_a_bin_and_not_between_bins() -> None:
    within = two_classes(*[0.75] * 4)
    assert calibration_error(within, torch.tensor([0, 0, 0, 1])) == pytest.approx(0, abs=1e-12)
    between = two_classes(0.6, 0.9)  # 0.4 too low here, 0.9 too high there: no sum of signs may hide it
    assert calibration_error(between, torch.tensor([0, 1])) == pytest.approx((0.4 + 0.9) / 2)


def test_certainty_is_in_the_last_bin() -> None:
    assert calibration_error(two_classes(1.0, 1.0), torch.tensor([0, 1])) == pytest.approx(0.5)


def test_macro_f1_by_hand_leaves_absent_classes_out() -> None:
    label = torch.tensor([0, 0, 0, 1, 1, 2])
    predicted = torch.tensor([0, 0, 1, 1, 3, 2])  # nobody is of class 3
    # class 0: 2 hits, 1 missed; class 1: 1 hit, 1 missed, 1 false alarm; class 2: found
    assert macro_f1(predicted, label, classes=5) == pytest.approx((4 / 5 + 2 / 4 + 1) / 3, abs=1e-12)


def test_a_class_never_told_counts_nothing() -> None:
    assert macro_f1(torch.tensor([0, 0]), torch.tensor([0, 1]), classes=2) == pytest.approx((2 / 3 + 0) / 2)


def test_scores_are_those_of_the_decision_they_are_named_after() -> None:
    label = torch.tensor([0, 0, 1])
    fused, committee = two_classes(0.8, 0.8, 0.8), two_classes(0.9, 0.2, 0.1)
    found = scores(Outputs(label, fused.log(), {"audio": fused.log()}, committee, "head"))
    assert found["fused"] is not None
    assert found["committee"] is not None
    assert found["fused"]["accuracy"] == pytest.approx(2 / 3)
    assert found["fused"]["loss"] == pytest.approx(-(2 * math.log(0.8) + math.log(0.2)) / 3)
    assert found["committee"]["accuracy"] == pytest.approx(2 / 3)
    assert found["committee"]["loss"] == pytest.approx(-(2 * math.log(0.9) + math.log(0.2)) / 3)
    assert found["committee"]["f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert found["fused"]["f1"] == pytest.approx((4 / 5 + 0) / 2)
    assert found["fused"]["ece"] == pytest.approx(abs(2 - 2.4) / 3)


def test_without_unimodal_outputs_there_is_no_committee_to_score() -> None:
    found = scores(decisions(random_model(2, unimodal=None), random_part(2)))
    assert found["committee"] is None
    assert found["fused"] is not None


def test_a_committee_that_rules_out_the_right_class_has_a_finite_loss() -> None:
    committee = two_classes(1.0)
    found = scores(Outputs(torch.tensor([1]), committee.clamp(1e-9).log(), {}, committee, "head"))
    assert found["committee"] is not None
    assert 100 < found["committee"]["loss"] < 1000


@pytest.mark.parametrize("count", [1, 3])
def test_accuracy_counts_samples(count: int) -> None:
    part = random_part(count, samples=37)
    outputs = decisions(random_model(count), part)
    right = sum(int(row.argmax()) == int(answer) for row, answer in zip(outputs.fused, part.label, strict=True))
    assert accuracy(outputs.fused, part.label) == right / 37

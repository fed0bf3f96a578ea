import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from equipoise.data import Part
from equipoise.measure import decisions
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

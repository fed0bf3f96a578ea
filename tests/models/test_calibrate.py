from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from equipoise.models import MLP, CNN1d, LateFusion, fit_committee, fit_weights


def model_and_data(count: int = 2, samples: int = 90) -> tuple[LateFusion, dict[str, Tensor], Tensor]:
    encoders = {f"s{k}": nn.Sequential(nn.Dropout(0.5), MLP(3, features=4)) for k in range(count)}
    model = LateFusion(encoders, classes=3, dropout=0.5)
    inputs = {name: torch.randn(samples, 3) for name in encoders}
    return model, inputs, torch.randint(3, (samples,))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_fit_is_that_of_the_models_own_outputs_and_is_kept(count: int) -> None:
    model, inputs, _ = model_and_data(count)
    labels = model.eval()(inputs)["s0"].argmax(dim=1)  # the first modality is always right
    expected = fit_weights(torch.stack([out.log_softmax(dim=1) for out in model(inputs).values()], dim=1), labels)
    model.train()
    fit = fit_committee(model, (inputs, labels))
    assert model.training
    assert fit.reason == expected.reason
    torch.testing.assert_close(fit.weights, expected.weights)
    torch.testing.assert_close(model.committee, fit.weights.float())
    assert model.committee[1] > 1 / (count + 1)
    assert model.committee.dtype == torch.float32


def test_batches_of_any_size_give_the_same() -> None:
    model, inputs, labels = model_and_data()
    groups = torch.arange(90) % 6
    whole = fit_committee(model, (inputs, labels), groups)
    parts = [slice(0, 40), slice(40, 41), slice(41, 90)]
    batches = [({name: value[part] for name, value in inputs.items()}, labels[part]) for part in parts]
    named = [(*batch, [f"p{number}" for number in groups[part]]) for batch, part in zip(batches, parts, strict=True)]
    numbered = [(*batch, groups[part]) for batch, part in zip(batches, parts, strict=True)]
    for fit in (
        fit_committee(model, batches, groups),
        fit_committee(model, iter(batches), groups.tolist()),
        fit_committee(model, named),
        fit_committee(model, numbered),
        fit_committee(model, (inputs, labels, groups)),
    ):
        assert fit.reason.split(";")[0] == whole.reason.split(";")[0]
        torch.testing.assert_close(fit.weights, whole.weights, rtol=0, atol=1e-5)


def test_a_data_loader_and_ragged_time() -> None:
    model = LateFusion({"imu": CNN1d(2, width=4), "tags": MLP(3)}, classes=3)
    samples: Any = [
        ({"imu": torch.randn(2, 9), "imu_length": torch.tensor(1 + k % 9), "tags": torch.randn(3)}, k % 3)
        for k in range(30)
    ]
    assert fit_committee(model, DataLoader(samples, batch_size=8)).weights.shape == (3,)


def test_what_does_not_fit_is_named() -> None:
    model, inputs, labels = model_and_data()
    with pytest.raises(ValueError, match=r"at least one batch .*found none"):
        fit_committee(model, [])
    with pytest.raises(ValueError, match=r"in batch 0: 90 labels, and there are 80; 90 groups, and there are 5. Leave"):
        fit_committee(model, (inputs, labels[:80], labels[:5]))
    with pytest.raises(ValueError, match="in batch 1: an input for every modality, and 's1' is missing"):
        fit_committee(model, [(inputs, labels), ({"s0": inputs["s0"]}, labels)])
    with pytest.raises(ValueError, match="labels from 0 to 2, one per class; found 1 to 3"):
        fit_committee(model, (inputs, torch.arange(90) % 3 + 1))
    with pytest.raises(ValueError, match="found them in 1 of 2 batches and groups=None"):
        fit_committee(model, [(inputs, labels, labels), (inputs, labels)])
    with pytest.raises(ValueError, match="found them in 1 of 1 batches and groups=…"):
        fit_committee(model, (inputs, labels, labels), groups=labels)
    with pytest.raises(ValueError, match="expected 90 groups, one per sample; found 7"):
        fit_committee(model, (inputs, labels), groups=[1] * 7)


def test_models_that_cannot_vote() -> None:
    _, inputs, labels = model_and_data()
    stranger: Any = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"built with unimodal=None.*unimodal='head'"):
        fit_committee(LateFusion({"a": MLP(3)}, classes=3, unimodal=None), (inputs, labels))
    with pytest.raises(TypeError, match=r"expected a LateFusion; found Linear.*model.module"):
        fit_committee(stranger, (inputs, labels))
    regression = LateFusion({"s0": MLP(3), "s1": MLP(3)}, head=lambda size: nn.Linear(size, 1))
    with pytest.raises(ValueError, match="at least two classes"):
        fit_committee(regression, (inputs, labels))

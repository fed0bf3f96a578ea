import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from equipoise.models import MLP, CNN1d, LateFusion, fit_committee, fit_weights
from equipoise.models.committee import Derivatives, minimise_without_negatives, stationarity

MANY = [1, 2, 3, 5]


def votes(labels: Tensor, strength: Tensor | float, noise: float, classes: int = 4) -> Tensor:
    """Log-probabilities of a member that knows the label that well, and errs that much."""
    strength = torch.as_tensor(strength).expand(len(labels)).unsqueeze(1)
    return (strength * F.one_hot(labels, classes) + noise * torch.randn(len(labels), classes)).log_softmax(dim=1)


def weak_in_a_region(samples: int) -> tuple[Tensor, Tensor]:
    """A fused head that knows nothing in half of the samples, where the second modality knows much."""
    labels = torch.randint(4, (samples,))
    blind = torch.rand(samples) < 0.5
    fused = votes(labels, torch.where(blind, 0.0, 4.0), 1.0)
    audio = votes(labels, torch.where(blind, 0.0, 2.0), 1.0)
    video = votes(labels, torch.where(blind, 4.0, 0.0), 1.0)
    return torch.stack([fused, audio, video], dim=1), labels


def loss(weights: Tensor, logs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(torch.einsum("m,nmc->nc", weights, logs.double().clamp(min=-30)), labels)


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    return (probabilities.argmax(dim=1) == labels).double().mean().item()


def test_it_helps_where_the_fused_head_is_weak() -> None:
    fit = fit_weights(*weak_in_a_region(400))
    logs, labels = weak_in_a_region(2000)
    fused_alone = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    assert math.isfinite(fit.shrinkage)
    assert loss(fit.weights, logs, labels) < 0.6 * loss(fused_alone, logs, labels)
    together = torch.einsum("m,nmc->nc", fit.weights, logs.double())
    assert accuracy(together, labels) > accuracy(logs[:, 0], labels) + 0.15


@pytest.mark.parametrize(
    ("confidence", "other", "grouped"), [(0.5, 1.0, True), (3.0, 1.0, False), (3.0, 0.0, True), (1.0, 0.0, False)]
)
def test_a_noisy_modality_does_no_harm(confidence: float, other: float, grouped: bool) -> None:
    margins = []
    for seed in range(6):
        torch.manual_seed(seed)

        def draw(samples: int) -> tuple[Tensor, Tensor]:
            labels = torch.randint(4, (samples,))
            members = votes(labels, 2.0, 1.0), votes(labels, other, 1.0), votes(labels, 0.0, confidence)
            return torch.stack(members, dim=1), labels

        fit = fit_weights(*draw(200), groups=torch.arange(200) % 8 if grouped else None)
        logs, labels = draw(4000)
        together = torch.einsum("m,nmc->nc", fit.weights, logs.double())
        margins.append(accuracy(together, labels) - accuracy(logs[:, 0], labels))
    assert min(margins) > -0.015
    assert sum(margins) / 6 > (0.02 if other else -0.005)  # a good modality beside the noise helps all the same


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("seed", range(3))
def test_the_weights_meet_the_optimality_conditions(count: int, seed: int) -> None:
    torch.manual_seed(seed)
    labels = torch.randint(4, (300,))
    wrong = (labels + 1) % 4
    members = [votes(labels, 3.0, 1.0), votes(wrong, 3.0, 1.0), *(votes(labels, k / 2, 1.0) for k in range(count - 1))]
    logs = torch.stack(members, dim=1)
    fit = fit_weights(logs, labels)
    assert math.isfinite(fit.shrinkage)

    weights = fit.weights.clone().requires_grad_()
    pull = fit.shrinkage * (weights - 1 / (count + 1)).square().sum()
    (gradient,) = torch.autograd.grad(loss(weights, logs, labels) + pull, weights)
    assert (fit.weights >= 0).all()
    assert gradient[fit.weights > 0].abs().max() < 1e-6
    assert (gradient[fit.weights == 0] > -1e-6).all()
    assert fit.weights[1] == 0  # the member that is wrong on purpose


def test_a_slow_independent_solver_agrees() -> None:
    logs, labels = weak_in_a_region(120)
    fit = fit_weights(logs, labels)
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    for _ in range(4000):
        weights.requires_grad_()
        objective = loss(weights, logs, labels) + fit.shrinkage * (weights - 1 / 3).square().sum()
        (gradient,) = torch.autograd.grad(objective, weights)
        weights = (weights.detach() - 0.1 * gradient).clamp(min=0)
    torch.testing.assert_close(fit.weights, weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_sample_that_counts_three_times_is_three_samples_of_its_group(seed: int) -> None:
    torch.manual_seed(seed)
    labels, groups = torch.randint(4, (120,)), torch.arange(120) % 12
    logs = torch.stack([votes(labels, 2.0, 1.0), votes(labels, 1.0, 1.0), votes(labels, 0.0, 2.0)], dim=1)
    counts = labels % 3 + 1  # so that classes have weights
    copies = torch.arange(120).repeat_interleave(counts)
    fit, copied = (
        fit_weights(logs, labels, groups, counts=counts),
        fit_weights(logs[copies], labels[copies], groups[copies]),
    )
    assert math.isfinite(fit.shrinkage)
    assert (fit.shrinkage, fit.reason) == (copied.shrinkage, copied.reason)
    torch.testing.assert_close(fit.weights, copied.weights, rtol=0, atol=1e-8)
    assert (fit.weights - fit_weights(logs, labels, groups).weights).abs().max() > 1e-3


def test_members_that_agree_share_their_weight() -> None:
    labels = torch.randint(4, (300,))
    same = votes(labels, 2.0, 1.0)
    fit = fit_weights(torch.stack([same, same, votes(labels, 0.0, 2.0)], dim=1), labels)
    assert fit.weights[0].item() == pytest.approx(fit.weights[1].item(), abs=1e-9)


@pytest.mark.parametrize("count", MANY)
def test_permuting_the_members_permutes_the_weights(count: int) -> None:
    labels = torch.randint(4, (200,))
    logs = torch.stack([votes(labels, float(k), 1.0) for k in range(count + 1)], dim=1)
    order = torch.randperm(count + 1)
    torch.testing.assert_close(
        fit_weights(logs[:, order], labels).weights, fit_weights(logs, labels).weights[order], rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("groups", [["ann"] * 60 + ["ben"] * 60, torch.zeros(120), np.arange(120) % 2])
def test_fewer_than_three_groups_give_equal_weights(groups: list[str] | Tensor | np.ndarray) -> None:
    fit = fit_weights(*weak_in_a_region(120), groups=groups)
    assert torch.equal(fit.weights, torch.full((3,), 1 / 3, dtype=torch.float64))
    assert fit.shrinkage == math.inf
    assert "needs at least three" in fit.reason


def test_groups_of_any_kind_number_the_same_folds() -> None:
    logs, labels = weak_in_a_region(200)
    numbers = torch.arange(200) % 4
    by_number = fit_weights(logs, labels, numbers)
    by_name = fit_weights(logs, labels, [f"person {number}" for number in numbers.tolist()])
    assert torch.equal(by_number.weights, by_name.weights)
    assert "4 folds of 4 groups" in by_number.reason
    assert "10 folds of 50 groups" in fit_weights(logs, labels, torch.arange(200) % 50).reason
    assert "5 folds of 200 groups" in fit_weights(logs, labels).reason


def test_weights_that_fail_for_a_new_person_are_not_trusted() -> None:
    labels = torch.randint(4, (300,))
    person = torch.arange(300) // 100
    believed = torch.where(person == 2, (labels + 1) % 4, labels)  # right for two persons, wrong for the third
    logs = torch.stack([votes(labels, 1.0, 1.0), votes(believed, 4.0, 1.0)], dim=1)
    assert fit_weights(logs, labels, person).shrinkage == math.inf
    assert fit_weights(logs, labels).shrinkage < math.inf


def test_where_equal_weights_are_the_truth_they_are_kept() -> None:
    """The lowest left-out loss alone would choose a finite shrinkage for every other seed here, and so fit noise."""
    kept_equal = 0
    for seed in range(20):
        torch.manual_seed(seed)
        logs = (2 * torch.randn(200, 2, 4)).log_softmax(dim=2)
        labels = logs.mean(dim=1).softmax(dim=1).multinomial(1).squeeze(1)
        kept_equal += fit_weights(logs, labels).shrinkage == math.inf
    assert kept_equal >= 15


def test_certain_and_impossible_are_bounded() -> None:
    labels = torch.randint(3, (60,))
    sure = torch.where(F.one_hot(labels, 3).bool(), 0.0, -torch.inf)
    fooled = sure.roll(1, dims=1)
    fit = fit_weights(torch.stack([sure, fooled], dim=1), labels)
    assert fit.weights.isfinite().all()
    assert LateFusion({"a": MLP(1)}, classes=3).vote({"fused": sure, "a": fooled}).isfinite().all()


def test_all_problems_of_the_data_are_told_at_once() -> None:
    logs = torch.zeros(4, 2, 3)
    logs[0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="4 labels") as caught:
        fit_weights(logs, torch.tensor([0, 3, -1]), groups=[1, 2])
    for part in ("found the shape [3]", "from 0 to 2, one per class; found -1 to 3", "4 groups", "found NaN"):
        assert part in str(caught.value)
    with pytest.raises(ValueError, match=r"whole numbers for labels; found torch.float32"):
        fit_weights(torch.zeros(4, 2, 3), torch.zeros(4))


@pytest.mark.parametrize("shape", [(0, 2, 3), (4, 3), (4, 0, 3)])
def test_no_data(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one each; found"):
        fit_weights(torch.zeros(shape), torch.zeros(shape[0], dtype=torch.long))


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
    with pytest.raises(ValueError, match="in batch 1: an input for 's1', which is missing"):
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
    with pytest.raises(ValueError, match="knows its task"):
        fit_committee(regression, (inputs, labels))


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("seed", range(5))
def test_a_quadratic_meets_its_optimality_conditions(size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    hessian = root @ root.T + 1e-3 * torch.eye(size, dtype=torch.float64)  # badly conditioned: blocks must not mix
    slope = torch.randn(size, generator=generator, dtype=torch.float64)

    def quadratic(point: Tensor) -> Derivatives:
        return point @ hessian @ point / 2 + slope @ point, hessian @ point + slope, hessian

    found = minimise_without_negatives(quadratic, torch.ones(size, dtype=torch.float64))
    gradient = quadratic(found)[1]
    assert (found >= 0).all()
    assert gradient[found > 0].abs().sum() < 1e-6
    assert (gradient[found == 0] > -1e-6).all()


def test_a_step_too_far_is_shortened() -> None:
    def steep(point: Tensor) -> Derivatives:  # Newton's own steps diverge from 30
        x = point - 20
        return ((1 + x.square()).sqrt().sum(), x / (1 + x.square()).sqrt(), torch.diag((1 + x.square()).pow(-1.5)))

    found = minimise_without_negatives(steep, torch.tensor([30.0], dtype=torch.float64))
    assert found.item() == pytest.approx(20, abs=1e-8)


def test_stationarity_is_zero_only_at_the_optimum() -> None:
    point = torch.tensor([0.0, 2.0])
    assert stationarity(point, torch.tensor([3.0, 0.0])) == 0
    assert stationarity(point, torch.tensor([-0.5, 0.0])) == 0.5
    assert stationarity(point, torch.tensor([3.0, 0.25])) == 0.25

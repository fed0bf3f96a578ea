from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from equipoise.models import MLP, CNN1d, LateFusion, fit_committee, fit_weights
from equipoise.models.combine import SideBySide, combined, factor, fit_combined
from equipoise.models.committee import fit_mean_weights, weights_by_error
from equipoise.models.task import Classification, MultiLabel, Regression, Task
from equipoise.models.votes import read_votes

NAMES = ["left", "right", "top"]
TASKS = [
    Classification(["a", "b", "c"]),
    MultiLabel(["cough", "fever"]),
    Regression(["x", "y"], torch.tensor([3.0, -40.0]), torch.tensor([2.0, 0.1])),
]


def member(task: Task, features: int, fusion: str = "concat", modalities: int = 3, scale: float = 1.0) -> LateFusion:
    encoders = {name: MLP(5, features + number) for number, name in enumerate(NAMES[:modalities])}
    model = LateFusion(encoders, task=task, fusion=fusion, unimodal="detached" if features % 2 else "head")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model.eval()


def batch(samples: int = 20, modalities: int = 3) -> dict[str, Tensor]:
    return {name: torch.randn(samples, 5) for name in NAMES[:modalities]}


def labels(task: Task, samples: int) -> Tensor:
    if isinstance(task, Classification):
        return torch.randint(3, (samples,))
    drawn = torch.randn(samples, task.size)
    return (drawn > 0).float() if isinstance(task, MultiLabel) else task.member(drawn)


def drawn_weights(count: int, task: Task) -> Tensor:
    weights = torch.rand(count).double() * (torch.rand(count) > 0.3)
    weights[0] = 0.5
    return weights / weights.sum() if isinstance(task, Regression) else weights


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("scale", [1.0, 4.0])
@torch.no_grad()
def test_the_nested_pool_is_the_flat_one(task: Task, count: int, scale: float) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        models = [member(task, 4 + number, ["concat", "gated", "film"][number], scale=scale) for number in range(count)]
        weights, inputs = drawn_weights(4 * count, task), batch()
        one = combined(models, weights)
        members = [task.member(output) for model in models for output in model(inputs).values()]
        flat = task.pool(torch.stack(members, dim=1), weights.float())
        torch.testing.assert_close(one.predict(inputs, "committee"), flat, rtol=1e-5, atol=1e-6)


def test_factors_multiply_to_the_whole_and_an_output_without_weight_is_shared_equally() -> None:
    weights = torch.tensor([0.2, 0.0, 0.6, 0.6, 0.0, 0.2])
    inner, outer = factor(weights, members=2)
    torch.testing.assert_close((inner * outer).flatten(), weights.double())
    torch.testing.assert_close(inner.sum(dim=0), torch.ones(3).double())
    assert inner[:, 1].tolist() == [0.5, 0.5]
    assert outer.tolist() == pytest.approx([0.8, 0.0, 0.8])


@pytest.mark.parametrize("weights", [[0.5, -0.1, 0.2, 0.4], [0.5, 0.5, 0.5], [float("nan"), 1.0], []])
def test_what_are_no_weights_is_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="finite weights of at least zero, as many for each of 2 members"):
        factor(torch.tensor(weights), members=2)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
@torch.no_grad()
def test_a_missing_sensor_is_missing_for_each_member(task: Task) -> None:
    models = [member(task, 4), member(task, 7, "film")]
    one, inputs = combined(models), batch()
    for size in (1, 2, 3):
        for chosen in combinations(NAMES, size):
            some = {name: inputs[name] for name in chosen}
            outputs = [model(some) for model in models]
            assert list(one(some)) == ["fused", *chosen]
            for name, output in one(some).items():
                expected = task.weighted_vote([each[name] for each in outputs], torch.tensor([0.5, 0.5]))
                torch.testing.assert_close(output, expected)
    gaps = {**inputs, "left_present": torch.arange(20) % 2 == 0}
    expected = task.weighted_vote([model(gaps)["fused"] for model in models], torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(one(gaps)["fused"], expected)


class Steps(nn.Module):
    """The mean over the real steps."""

    features = 2

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        real = torch.arange(inputs.shape[2]) < (inputs.shape[2] if lengths is None else lengths.unsqueeze(1))
        return (inputs * real.unsqueeze(1)).sum(dim=2)


class Whole(nn.Module):
    features = 2

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sum(dim=2)


def test_lengths_go_to_the_members_that_take_them() -> None:
    inputs, lengths = torch.ones(2, 2, 6), torch.tensor([3, 6])
    encoder = SideBySide([Steps(), Whole()], [2, 2])
    assert encoder(inputs, lengths).tolist() == [[3, 3, 6, 6], [6, 6, 6, 6]]
    task = Classification(["a", "b"])
    ragged, fixed = (LateFusion({"audio": one}, task=task) for one in (Steps(), Whole()))
    assert combined([ragged, fixed])({"audio": inputs, "audio_length": lengths})["fused"].shape == (2, 2)
    with pytest.raises(ValueError, match="takes no lengths"):
        combined([fixed, fixed])({"audio": inputs, "audio_length": lengths})


def test_its_weights_are_those_of_the_members_and_survive_saving() -> None:
    models = [member(TASKS[2], 4), member(TASKS[2], 5)]
    one, again = combined(models, torch.arange(8) / 28), combined([member(TASKS[2], 4), member(TASKS[2], 5)])
    assert sum(p.numel() for p in one.parameters()) == sum(p.numel() for model in models for p in model.parameters())
    again.load_state_dict(one.state_dict())
    inputs = batch()
    torch.testing.assert_close(again.predict(inputs, "committee"), one.predict(inputs, "committee"))


def test_models_that_do_not_fit_are_refused_together() -> None:
    plain = member(TASKS[0], 4)
    other = member(TASKS[1], 4, modalities=2)
    split = LateFusion({name: MLP(5, 4) for name in NAMES}, task=TASKS[0], unimodal="split")
    with pytest.raises(ValueError, match="combined expected") as raised:
        combined([plain, other, split])
    for part in ("number 1 has ['left', 'right']", "one task", "number 2 has unimodal='split'"):
        assert part in str(raised.value)
    scaled = member(Regression(["x", "y"]), 4)
    with pytest.raises(ValueError, match="one scale of numbers"):
        combined([scaled, member(TASKS[2], 4)])
    with pytest.raises(ValueError, match="at least one model"):
        combined([])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_weights_are_fitted_over_all_heads(task: Task) -> None:
    torch.manual_seed(0)
    models = [member(task, 4), member(task, 5)]
    inputs, label = batch(60), labels(task, 60)
    votes = [read_votes(model, (inputs, label)) for model in models]
    fit = fit_combined(task, votes)
    assert fit.weights.shape == (8,)
    alone = fit_combined(task, votes[:1])
    torch.testing.assert_close(fit_committee(models[0], (inputs, label)).weights, alone.weights)


def test_a_committee_that_is_kept_is_not_fitted_again_but_numbers_are_calibrated() -> None:
    model, inputs = combined([member(TASKS[2], 4), member(TASKS[2], 5)], torch.arange(8) / 28), batch(40)
    before = model.committee.clone()
    fit = fit_committee(model, (inputs, labels(TASKS[2], 40)), keep="fitted with the model")
    assert torch.equal(model.committee, before)
    assert fit.reason == "fitted with the model"
    assert model.radii.isfinite().all()


# -- the prior --


def made_up(seed: int, samples: int = 40) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    right = torch.randint(3, (samples,))
    strength = torch.tensor([2.0, 1.0, 0.0])[:, None]
    logs = [(one * nn.functional.one_hot(right, 3) + torch.randn(samples, 3)).log_softmax(dim=1) for one in strength]
    return torch.stack(logs, dim=1), right


def test_with_too_few_groups_the_answer_is_the_prior() -> None:
    logs, right = made_up(0)
    prior = torch.tensor([0.7, 0.0, 0.0])
    for fit in (
        fit_weights(logs, right, groups=[0] * 40, prior=prior),
        fit_mean_weights(logs[:4], groups=[0] * 4, prior=torch.tensor([1.0, 0.0, 0.0])),
    ):
        assert fit.weights.tolist() == pytest.approx([float(fit.weights[0]), 0.0, 0.0])
        assert fit.weights[0] in (pytest.approx(0.7), 1.0)
        assert "the prior weights" in fit.reason


@pytest.mark.parametrize("seed", range(4))
def test_the_prior_that_is_taken_anyway_changes_nothing(seed: int) -> None:
    logs, right = made_up(seed)
    equal = torch.full((3,), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close(fit_weights(logs, right, prior=equal).weights, fit_weights(logs, right).weights)
    errors = torch.randn(50, 3, 1) + torch.tensor([0.0, 0.5, 2.0])[:, None]
    by_error = weights_by_error(errors)
    torch.testing.assert_close(fit_mean_weights(errors, prior=by_error).weights, fit_mean_weights(errors).weights)


@pytest.mark.parametrize("seed", range(4))
def test_shrunk_weights_are_the_minimum_that_scipy_finds(seed: int) -> None:
    torch.manual_seed(seed)
    errors = torch.randn(50, 3, 2).double() + torch.tensor([0.0, 0.5, 2.0])[:, None]
    prior = torch.tensor([0.1, 0.9, 0.0]).double()
    fit = fit_mean_weights(errors, prior=prior)
    assert np.isfinite(fit.shrinkage)
    numbers, pull = errors.transpose(0, 1).flatten(1).numpy(), prior.numpy()

    def value(weights: np.ndarray) -> float:
        return float(np.mean((weights @ numbers) ** 2) + fit.shrinkage * np.sum((weights - pull) ** 2))

    bound: dict[str, Any] = {"type": "eq", "fun": lambda weights: weights.sum() - 1}
    found = minimize(value, pull, bounds=[(0, None)] * 3, constraints=[bound], options={"ftol": 1e-14})
    np.testing.assert_allclose(fit.weights.numpy(), found.x, atol=1e-5)

    logs, right = made_up(seed, 200)
    fit = fit_weights(logs, right, prior=prior)
    assert np.isfinite(fit.shrinkage)
    margins = (logs - logs.gather(2, right[:, None, None].expand(-1, 3, 1))).double().numpy()

    def likelihood(weights: np.ndarray) -> float:
        scores = np.log(np.exp(np.einsum("m,nmc->nc", weights, margins)).sum(axis=1)).mean()
        return float(scores + fit.shrinkage * np.sum((weights - pull) ** 2))

    found = minimize(likelihood, pull, bounds=[(0, None)] * 3, options={"ftol": 1e-15, "gtol": 1e-9})
    np.testing.assert_allclose(fit.weights.numpy(), found.x, atol=1e-4)


@pytest.mark.parametrize("prior", [[0.5, 0.5], [0.5, -0.5, 1.0], [0.0, 0.0, 0.0], [float("inf"), 0.0, 0.0]])
def test_what_is_no_prior_is_refused(prior: list[float]) -> None:
    logs, right = made_up(0)
    with pytest.raises(ValueError, match="prior weights"):
        fit_weights(logs, right, prior=torch.tensor(prior))
    with pytest.raises(ValueError, match="prior weights"):
        fit_mean_weights(logs, prior=torch.tensor(prior))


def test_members_of_different_encoders_are_combined() -> None:
    task = Classification(["a", "b"])
    inputs = {"audio": torch.randn(4, 2, 30)}
    models = [LateFusion({"audio": one}, task=task).eval() for one in (CNN1d(2), CNN1d(2, features=16))]
    assert combined(models).predict(inputs, "committee").sum(dim=1).tolist() == pytest.approx([1.0] * 4)

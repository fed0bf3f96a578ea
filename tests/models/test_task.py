"""Tasks: losses against torch's, answers against independent formulas, and their round trips."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.models import MLP, LateFusion, fit_committee
from equipoise.models.committee import fit_mean_weights, weights_by_error
from equipoise.models.late_fusion import Decision
from equipoise.models.task import Classification, MultiLabel, Regression, Task, task_of

MEAN, DEVIATION = torch.tensor([10.0, -3.0]), torch.tensor([2.0, 0.5])


def tasks() -> list[Task]:
    return [
        Classification(["walk", "run", "sit"]),
        MultiLabel(["cough", "fever"]),
        Regression(["angle", "speed"], MEAN, DEVIATION),
    ]


def labels_of(task: Task, count: int) -> Tensor:
    if task.kind == "classes":
        return torch.randint(task.size, (count,))
    numbers = torch.randn(count, task.size)
    return (numbers > 0).float() if task.kind == "labels" else MEAN + DEVIATION * numbers


def test_losses_are_those_of_torch() -> None:
    torch.manual_seed(0)
    classes, labels, numbers = tasks()
    output, label = torch.randn(9, 3), torch.randint(3, (9,))
    assert torch.equal(classes.loss(output, label), F.cross_entropy(output, label, reduction="none"))
    output, label = torch.randn(9, 2), labels_of(labels, 9)
    expected = F.binary_cross_entropy(output.sigmoid(), label, reduction="none").mean(dim=1)
    torch.testing.assert_close(labels.loss(output, label), expected)
    label = labels_of(numbers, 9)
    standard = (label - MEAN) / DEVIATION
    gap = (output - standard).abs()
    huber = torch.where(gap < 1, gap.square() / 2, gap - 0.5).mean(dim=1)
    torch.testing.assert_close(numbers.loss(output, label), huber)
    for name, expected in {"mse": gap.square().mean(dim=1), "mae": gap.mean(dim=1)}.items():
        torch.testing.assert_close(Regression(["a", "b"], MEAN, DEVIATION, name).loss(output, label), expected)


@pytest.mark.parametrize("task", tasks(), ids=lambda task: task.kind)
def test_answers_and_members_are_inverse_and_losses_agree(task: Task) -> None:
    torch.manual_seed(1)
    output, label = torch.randn(20, task.size).double(), labels_of(task, 20)
    label = label if task.kind == "classes" else label.double()
    task = task.double()
    member = task.member(output)
    answer = task.answer(member)
    torch.testing.assert_close(task.member_of(answer), member)
    torch.testing.assert_close(task.member_loss(member, label), task.loss(output, label))
    assert ((task.hits(output, label) >= 0) & (task.hits(output, label) <= 1)).all()


@pytest.mark.parametrize("task", tasks(), ids=lambda task: task.kind)
def test_a_committee_of_one_says_what_its_member_says(task: Task) -> None:
    torch.manual_seed(2)
    member = task.member(torch.randn(7, task.size))
    pooled = task.pool(member[:, None], torch.ones(1))
    torch.testing.assert_close(pooled, task.answer(member))
    several = torch.stack([member, task.member(torch.randn(7, task.size))], dim=1)
    torch.testing.assert_close(task.pool(several, torch.tensor([1.0, 0.0]).expand(7, 2)), task.answer(member))


def test_no_sensor_at_all_says_nothing() -> None:
    classes, labels, numbers = tasks()
    three, two = torch.randn(2, 3), torch.randn(2, 2)
    torch.testing.assert_close(classes.answer(classes.nothing(three)), torch.full((2, 3), 1 / 3))
    torch.testing.assert_close(labels.answer(labels.nothing(two)), torch.full((2, 2), 0.5))
    torch.testing.assert_close(numbers.answer(numbers.nothing(two)), MEAN.expand(2, 2))


@pytest.mark.parametrize("task", tasks(), ids=lambda task: task.kind)
def test_a_task_is_made_again_from_plain_values(task: Task) -> None:
    again = task_of(task.as_dict())
    assert type(again) is type(task)
    assert (again.names, again.kind, again.size) == (task.names, task.kind, task.size)


def test_labels_that_do_not_fit_are_named() -> None:
    classes, labels, numbers = tasks()
    assert "labels are 0 to 2; found 1 to 3" in classes.problems(torch.tensor([1, 3]))[0]
    assert "whole numbers [N]; found torch.float32" in classes.problems(torch.zeros(2, 3))[0]
    assert "labels are floats [4, 2]" in labels.problems(torch.zeros(4))[0]
    assert numbers.problems(torch.zeros(4, 2)) == []


def regression(sensors: int = 2) -> tuple[LateFusion, dict[str, Tensor], Tensor]:
    """A model whose first sensor tells the target and whose second tells it with noise, with samples of it."""
    torch.manual_seed(3)
    names = [f"s{k}" for k in range(sensors)]
    model = LateFusion(
        {name: MLP(1, features=4) for name in names}, task=Regression(["angle"], MEAN[:1], DEVIATION[:1])
    )
    target = torch.randn(400, 1)
    inputs = {name: target + 0.5 * k * torch.randn(400, 1) for k, name in enumerate(names)}
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    label = MEAN[:1] + DEVIATION[:1] * target
    for _ in range(60):
        optimizer.zero_grad()
        losses = model.known_task().losses(model(inputs), label)
        torch.stack([loss.mean() for loss in losses.values()]).sum().backward()
        optimizer.step()
    return model.eval(), inputs, label


def test_the_committee_of_numbers_is_convex_and_its_interval_covers() -> None:
    model, inputs, label = regression()
    half = {name: x[:200] for name, x in inputs.items()}
    fit_committee(model, (half, label[:200]))
    assert (model.committee >= 0).all()
    assert model.committee.sum().item() == pytest.approx(1)
    assert model.committee[2] < 0.1  # the sensor with noise has little of a say
    rest = {name: x[200:] for name, x in inputs.items()}
    kinds: list[Decision] = ["fused", "committee"]
    for decision, kind in enumerate(kinds):
        answer = model.predict(rest, kind)
        inside = ((answer - label[200:]).abs() <= model.radius({}, 200, decision)).float().mean().item()
        assert 0.82 <= inside <= 0.98
    absent = {"s0": torch.zeros(200, dtype=torch.bool)}
    assert (model.radius(absent, 200) > model.radius({}, 200)).all()  # without the better sensor less is known
    answer = model.predict({"s1": rest["s1"]}, "committee")
    inside = ((answer - label[200:]).abs() <= model.radius(absent, 200)).float().mean().item()
    assert inside >= 0.82


@pytest.mark.parametrize("seed", range(6))
def test_mean_weights_are_those_of_a_quadratic_programme(seed: int) -> None:
    from scipy.optimize import minimize

    random = torch.Generator().manual_seed(seed)
    members = 2 + seed % 5
    # Members that share most of their error: the moments are far from diagonal, and some weights are zero.
    spread = 10 ** torch.linspace(-0.7, 0.7, members, dtype=torch.float64)[:, None]
    errors = torch.randn(300, 1, 2, generator=random) + spread * torch.randn(300, members, 2, generator=random)
    fit = fit_mean_weights(errors, prior=torch.full((members,), 1 / members))
    assert math.isfinite(fit.shrinkage)
    moments = torch.einsum("nmd,nkd->mk", errors, errors).numpy() / 600

    def loss(weights: np.ndarray) -> float:
        return float(weights @ moments @ weights + fit.shrinkage * ((weights - 1 / members) ** 2).sum())

    found = minimize(
        loss,
        np.full(members, 1 / members),
        bounds=[(0, 1)] * members,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert fit.weights.sum().item() == pytest.approx(1, abs=1e-12)
    assert loss(fit.weights.numpy()) <= found.fun + 1e-9
    np.testing.assert_allclose(fit.weights, found.x, atol=1e-4)


def test_weights_by_error_fall_with_its_fourth_power() -> None:
    errors = torch.tensor([[1.0, 2.0, 4.0], [-1.0, -2.0, 4.0]]).unsqueeze(2)
    expected = torch.tensor([1.0, 4.0**-4, 16.0**-4], dtype=torch.float64)  # of mean squares 1, 4 and 16
    torch.testing.assert_close(weights_by_error(errors), expected / expected.sum())
    torch.testing.assert_close(weights_by_error(1e-6 * errors), expected / expected.sum())
    assert weights_by_error(errors * torch.tensor([0.0, 1.0, 1.0])[:, None])[0] == pytest.approx(1)


def test_two_groups_do_not_let_the_worst_member_have_an_equal_say() -> None:
    torch.manual_seed(9)
    errors = torch.randn(120, 3, 1) * torch.tensor([0.1, 0.1, 3.0])[:, None]
    fit = fit_mean_weights(errors, torch.arange(120) // 60)
    assert fit.weights[2] < 0.02
    assert "no third group" in fit.reason


def test_a_multi_label_committee_weighs_members_by_their_log_odds() -> None:
    torch.manual_seed(5)
    model = LateFusion({"a": MLP(2), "b": MLP(2)}, task=MultiLabel(["x", "y"]))
    inputs = {name: torch.randn(60, 2) for name in ("a", "b")}
    label = (torch.randn(60, 2) > 0).float()
    fit_committee(model, (inputs, label))
    outputs, weights = model.eval()(inputs), model.committee
    odds = sum(w * outputs[name] for w, name in zip(weights, ("fused", "a", "b"), strict=True))
    torch.testing.assert_close(model.predict(inputs, "committee"), odds.sigmoid())


@pytest.mark.parametrize("task", tasks(), ids=lambda task: task.kind)
def test_a_sample_without_a_sensor_is_answered_as_if_the_sensor_were_missing(task: Task) -> None:
    torch.manual_seed(6)
    model = LateFusion({"a": MLP(2), "b": MLP(3)}, task=task).eval()
    inputs = {"a": torch.randn(6, 2), "b": torch.randn(6, 3)}
    mask = torch.tensor([True, False, True, True, False, True])
    for decision in ("fused", "committee"):
        answer = model.predict({**inputs, "b_present": mask}, decision)
        whole, without = (model.predict(some, decision) for some in (inputs, {"a": inputs["a"]}))
        torch.testing.assert_close(answer, torch.where(mask[:, None], whole, without))


def test_batch_statistics_are_those_of_the_samples_that_have_the_sensor() -> None:
    """A gap holds zeros, which would shift the running mean of a sensor whose signal is far from zero."""
    torch.manual_seed(7)
    norm = torch.nn.BatchNorm1d(3, momentum=1.0)
    model = LateFusion({"a": norm, "b": MLP(2)}, classes=2, features={"a": 3}).train()
    mask = torch.arange(8) % 2 == 0
    signal = torch.where(mask[:, None], 5 + torch.randn(8, 3), torch.zeros(8, 3))
    model({"a": signal, "a_present": mask, "b": torch.randn(8, 2)})
    torch.testing.assert_close(norm.running_mean, signal[mask].mean(dim=0))


def test_gaps_move_no_encoder() -> None:
    """Whatever stands in the place of a sensor that is not there, gradients are those of the samples that have it."""
    torch.manual_seed(8)
    model = LateFusion({"a": MLP(2), "b": MLP(3)}, classes=3)
    mask, label = torch.tensor([True, False, True, True]), torch.tensor([0, 1, 2, 0])
    gradients = []
    for filling in (0.0, 100.0):
        inputs = {"a": torch.ones(4, 2), "b": torch.arange(12.0).reshape(4, 3), "b_present": mask}
        inputs["b"] = inputs["b"].where(mask[:, None], filling)
        losses = model.known_task().losses(model(inputs), label)
        model.zero_grad()
        (losses["fused"].mean() + losses["b"][mask].mean()).backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_a_mask_of_another_length_is_named() -> None:
    model = LateFusion({"a": MLP(2), "b": MLP(3)}, classes=3)
    with pytest.raises(ValueError, match=r"b_present: expected one truth value per sample, \[4\]; found \[3\]"):
        model({"a": torch.ones(4, 2), "b": torch.ones(4, 3), "b_present": torch.ones(3, dtype=torch.bool)})


def test_numbers_are_standardised_in_full_precision() -> None:
    """In bfloat16 the heart rates 134.6 and 135 are the same number."""
    task = Regression(["rate"], torch.tensor([134.0]), torch.tensor([1.0]), "mae")
    output = torch.zeros(2, 1, dtype=torch.bfloat16)
    loss = task.loss(output, torch.tensor([[134.6], [135.0]]))
    torch.testing.assert_close(loss, torch.tensor([0.6, 1.0]), rtol=1e-4, atol=1e-4)

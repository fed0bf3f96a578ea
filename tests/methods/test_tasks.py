"""Scores of tasks other than classes, and the one task that a method refuses."""

import math

import pytest
import torch
from torch.nn import functional as F

from equipoise import AGM, DGL, OGM, LateFusion
from equipoise.balance.method import unmet
from equipoise.models.task import Regression
from equipoise.testing import gradients_of
from everything import METHODS, score_of

REFUSED = {
    "dgl": {"regression": "cannot all meet it"},
    "arl": {"regression": "cannot all meet it"},
    "arl-released": {"regression": "cannot all meet it"},
    "inforeg": {"regression": "cannot all meet it"},
    "relearn": dict.fromkeys(("labels", "regression"), "pure clusters of features are in classes"),
}
"""The tasks that a method is not for, with the reason."""


@pytest.mark.parametrize("kind", ["classes", "labels", "regression"])
def test_only_shares_of_a_number_and_clusters_without_classes_are_refused(kind: str) -> None:
    for method, make in METHODS.items():
        found, reason = unmet(make(), task=kind), REFUSED.get(method, {}).get(kind)
        assert len(found) == (reason is not None), method
        assert reason is None or reason in found[0]


def test_every_method_says_which_tasks_it_is_for() -> None:
    for make in METHODS.values():
        assert "\n    Tasks: " in str(type(make()).__doc__)


def test_the_score_of_a_sample_with_several_labels_is_the_geometric_mean_of_its_right_answers() -> None:
    logits, label = torch.tensor([[0.3, -1.2, 2.0], [1.0, 0.1, -0.4]]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    losses = F.binary_cross_entropy_with_logits(logits, label, reduction="none").mean(dim=1)
    right = torch.where(label == 1, logits.sigmoid(), 1 - logits.sigmoid())
    expected = right.prod(dim=1).pow(1 / 3).mean()
    assert math.exp(score_of(OGM(), losses)) == pytest.approx(float(expected))


def test_the_score_of_a_number_is_its_likelihood_up_to_a_factor() -> None:
    error = torch.tensor([0.0, 0.5, -2.0])
    gaussian = torch.distributions.Normal(0.0, 1.0)
    density = gaussian.log_prob(error).exp() / gaussian.log_prob(torch.zeros(())).exp()
    assert math.exp(score_of(OGM(), error.square() / 2)) == pytest.approx(float(density.mean()))


@pytest.mark.parametrize("balancer", [OGM(), AGM(form="fast")], ids=repr)
def test_the_share_that_explains_more_of_a_number_is_ahead(balancer: OGM | AGM) -> None:
    target = torch.randn(64, generator=torch.Generator().manual_seed(0))
    shares = (0.0, 0.3, 0.7, 1.0)
    scores = [score_of(balancer, F.huber_loss(part * target, target, reduction="none")) for part in shares]
    assert len(set(scores)) == len(scores)
    assert scores == sorted(scores, reverse=not balancer.needs.logarithmic)  # a score is a likelihood, or a loss


def test_shares_that_add_up_to_a_number_still_move_the_encoders_of_dgl() -> None:
    """The reason why DGL refuses regression: where the fused output is exact, its encoders are not at rest."""
    encoders = {"a": torch.nn.Linear(1, 1, bias=False), "b": torch.nn.Linear(1, 1, bias=False)}
    model = LateFusion(encoders, task=Regression(["y"]), unimodal="split")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0 if parameter.dim() > 1 else 0.0)
    inputs = torch.tensor([[1.0], [-2.0]])
    outputs = model({"a": inputs, "b": inputs})
    losses = {name: (answer - 2 * inputs).square().mean(dim=1) for name, answer in outputs.items()}
    assert float(losses["fused"].detach().sum()) == 0.0
    DGL(weight=1.0).attach(model)(losses).backward()
    # Each share x is half of the target 2x: the gradient of (w·x − 2x)² by w at 1 is −2x², mean −5.
    assert {name: float(g) for name, g in gradients_of(model).items() if name.startswith("encoders")} == {
        "encoders.a.weight": -5.0,
        "encoders.b.weight": -5.0,
    }

"""Methods beyond one weight per loss: further objectives, weights for each encoder, several scores, their own loss."""

from collections.abc import Mapping
from typing import ClassVar, final

import pytest
import torch
from torch import Tensor

from equipoise import Balancer, LossValues, Weights
from equipoise.testing import SmallModel, batch, gradients_of, losses_of, names


@final
class Crossed(Balancer):
    """Gives encoder b the further loss of modality m at one where b is m, and at `cross` elsewhere."""

    route = "table"
    further: ClassVar = "swapped"

    def __init__(self, cross: float = -1.0) -> None:
        super().__init__()
        self.cross = cross

    def weigh(self, values: LossValues) -> Weights:
        count = len(values.unimodal)
        own = torch.eye(count, dtype=values.fused.dtype)
        fused = torch.ones(1, count, dtype=values.fused.dtype)
        table = torch.cat([fused, own, own + self.cross * (1 - own)])
        return Weights(table, heads=torch.full_like(table[:, 0], 0.5))


@final
class Decayed(Balancer):
    """Joint training with a loss of the method's own: half the squared length of every output of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters_seen: list[Tensor] = []

    def weigh(self, values: LossValues) -> Weights:
        return Weights(torch.ones_like(values.all))

    def act(self, losses: Mapping[str, Tensor], weights: Weights, *, scored: bool) -> Tensor | None:  # noqa: ARG002
        return 0.5 * torch.stack([parameter.square().sum() for parameter in self.parameters_seen]).sum()


@final
class Scored(Balancer):
    """Weighs a loss by the product of its two scores."""

    scored_by = ("entropy", "magnitude")

    def weigh(self, values: LossValues) -> Weights:
        assert values.scores.shape == (len(values.unimodal), 2)
        return Weights(torch.cat([torch.ones_like(values.fused)[None], values.scores.prod(dim=1)]))


def swapped_losses(model: SmallModel, count: int) -> dict[str, Tensor]:
    """One further loss per modality that reaches every encoder: the fused loss of other samples, times a number."""
    return {
        name: (2 + place) * losses_of(model, batch(names(count), seed=place + 1))["fused"].square()
        for place, name in enumerate(names(count))
    }


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("tied", [False, True])
def test_each_encoder_gets_the_sum_of_its_column(count: int, tied: bool) -> None:
    modalities = names(count)
    model = SmallModel(modalities)
    if tied and count > 1:  # the first two encoders share their parameters: the mean of their columns
        model.encoders[modalities[1]] = model.encoders[modalities[0]]
    balancer = Crossed().attach(model)
    value = balancer(losses_of(model, batch(modalities)), further=swapped_losses(model, count))
    value.backward()
    delivered = gradients_of(model)
    assert balancer.table.objectives == ("fused", *modalities, *(f"swapped {name}" for name in modalities))
    table = Crossed().weigh(LossValues(torch.zeros((), dtype=torch.float64), torch.zeros(count), torch.zeros(count)))
    objectives = [*losses_of(model, batch(modalities)).values(), *swapped_losses(model, count).values()]
    expected = {name: torch.zeros_like(gradient) for name, gradient in delivered.items()}
    columns = table.losses.clone()
    if tied and count > 1:
        columns[:, :2] = columns[:, :2].mean(dim=1, keepdim=True)
    for row, loss in enumerate(objectives):
        model.zero_grad()
        loss.mean().backward(retain_graph=True)
        for name, gradient in gradients_of(model).items():
            block = modalities.index(name.split(".")[1]) if name.startswith("encoders.") else None
            expected[name] += (0.5 if block is None else columns[row, block]) * gradient
    torch.testing.assert_close(delivered, expected, rtol=1e-9, atol=1e-12)
    means = torch.stack([loss.mean() for loss in objectives]).detach()
    assert float(value.detach()) == pytest.approx(float(0.5 * means.sum()))


def test_further_objectives_are_checked() -> None:
    model = SmallModel(names(2))
    balancer, losses = Crossed().attach(model), losses_of(model, batch(names(2)))
    with pytest.raises(ValueError, match=r"one more objective per modality: pass further="):
        balancer(losses)
    with pytest.raises(ValueError, match=r"found none for \['video'\]"):
        balancer(losses, further={"audio": losses["audio"]})
    with pytest.raises(FloatingPointError, match="loss 'swapped audio' is NaN"):
        balancer(losses, further={"audio": losses["audio"] * torch.nan, "video": losses["video"]})
    with pytest.raises(ValueError, match="no objectives beyond one per modality"):
        Decayed()(losses, further={"audio": losses["audio"], "video": losses["video"]})


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_loss_of_its_own_counts_at_one(scale: float) -> None:
    model = SmallModel(names(2))
    balancer = Decayed()
    plain = Decayed()
    plain.parameters_seen = [torch.zeros((), dtype=torch.float64)]
    (plain(losses_of(model, batch(names(2)))) * scale).backward()
    without = gradients_of(model)
    balancer.parameters_seen = list(model.parameters())
    model.zero_grad()
    (balancer(losses_of(model, batch(names(2)))) * scale).backward()
    expected = {name: without[name] + scale * p.detach() for name, p in model.named_parameters()}
    torch.testing.assert_close(gradients_of(model), expected, rtol=1e-9, atol=1e-12)


def test_several_scores_are_means_over_the_samples_at_hand() -> None:
    model = SmallModel(names(2))
    losses = losses_of(model, batch(names(2)))
    scores = {name: torch.rand(12, 2, dtype=torch.float64) for name in names(2)}
    mask = torch.arange(12) < 5
    balancer = Scored()
    balancer(losses, scores=scores, present={"audio": mask})
    expected = [scores["audio"][mask].mean(0).prod(), scores["video"].mean(0).prod()]
    torch.testing.assert_close(balancer.table.values[1:, -1], torch.stack(expected))
    with pytest.raises(ValueError, match=r"by entropy and magnitude.*\[B, 2\]"):
        balancer(losses)

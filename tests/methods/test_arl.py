"""ARL: the published rule for two modalities beside plain torch, and its form for any number."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import ARL, LateFusion, Window
from equipoise.balance.method import unmet
from equipoise.data.splits import Part
from equipoise.models.task import Classification
from equipoise.testing import SmallModel, attached, balanced, batch, gradients_of, losses_of, names
from equipoise.training.step import losses_of as training_loss
from everything import part

Scores = dict[str, Tensor]


def factors(balancer: ARL, scores: Scores) -> list[float]:
    """The factor on each encoder for entropies and magnitudes."""
    modalities = list(scores)
    model = SmallModel(modalities)
    attached(balancer, model)
    balancer(losses_of(model, batch(modalities)), scores=scores)
    return [float(balancer.table.at("fused", name)) for name in modalities]


def scores_of(*rows: tuple[float, float]) -> Scores:
    return {name: torch.tensor(row, dtype=torch.float64) for name, row in zip(names(len(rows)), rows, strict=True)}


def published(entropies: tuple[float, float], sizes: tuple[float, float], sharpness: float) -> list[float]:
    """The rule for two modalities, step by step, with the floor of 0.3 under an entropy's share."""
    first, second = (max(h / sum(entropies), 0.3) for h in entropies)
    sure = [1 / first / (1 / first + 1 / second), 1 / second / (1 / first + 1 / second)]
    large = [size / sum(sizes) for size in sizes]
    powers = [math.exp(sharpness * large[1] * sure[0]), math.exp(sharpness * large[0] * sure[1])]
    return [1 + power / sum(powers) for power in powers]


def test_two_modalities_by_hand() -> None:
    # entropies 0.4 and 0.6 of their sum: inverse 0.6 and 0.4; magnitudes 0.25 and 0.75: 0.45 and 0.1
    found = factors(ARL(sharpness=8.0), scores_of((0.4, 1.0), (0.6, 3.0)))
    first = 1 / (1 + math.exp(8 * (0.1 - 0.45)))
    assert found == pytest.approx([1 + first, 2 - first])


def test_two_modalities_follow_the_published_rule() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        (h_1, h_2), (m_1, m_2) = (torch.rand(2, generator=draw, dtype=torch.float64).tolist() for _ in range(2))
        found = factors(ARL(sharpness=4.0), scores_of((h_1, m_1), (h_2, m_2)))
        assert found == pytest.approx(published((h_1, h_2), (m_1, m_2), 4.0))
        assert sum(found) == pytest.approx(3.0)


def test_an_entropy_counts_as_no_less_than_three_tenths_of_the_sum() -> None:
    # shares of 0 and 1: inverse 1 / 0.3 and 1, which are 10/13 and 3/13 of their sum; both halves of the magnitude
    first = 1 / (1 + math.exp(8 * 0.5 * (3 / 13 - 10 / 13)))
    assert factors(ARL(), scores_of((0.0, 1.0), (5.0, 1.0))) == pytest.approx([1 + first, 2 - first])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_equals_have_a_factor_of_one_and_a_half_and_one_alone_has_one(count: int) -> None:
    expected = 1.0 if count == 1 else 1.5
    assert factors(ARL(), scores_of(*[(0.7, 2.0)] * count)) == pytest.approx([expected] * count)
    assert factors(ARL(), scores_of(*[(0.0, 0.0)] * count)) == pytest.approx([expected] * count)
    assert factors(ARL(form="released"), scores_of(*[(0.3, 1.0 + count)] * count)) == [expected] * count


@pytest.mark.parametrize("count", [3, 4, 6])
def test_for_more_modalities_relative_differences_count_the_same(count: int) -> None:
    # one modality is as sure beside count − 1 equals as beside one: the exponent is that of its inverse share
    scores = [(0.9, 1.0), *[(1.0, 1.0)] * (count - 1)]
    found = factors(ARL(sharpness=8.0), scores_of(*scores))
    inverse = [1 / 0.9, *[1.0] * (count - 1)]
    powers = [math.exp(8 * count**2 / 4 * value / sum(inverse) / count) for value in inverse]
    assert found == pytest.approx([1 + count / 2 * power / sum(powers) for power in powers])
    assert sum(found) == pytest.approx(1.5 * count)
    assert found[0] > found[1]


def test_the_surer_modality_and_the_one_beside_larger_others_learn_faster() -> None:
    sure = factors(ARL(), scores_of((0.5, 1.0), (0.6, 1.0), (0.7, 1.0)))
    assert sure == sorted(sure, reverse=True)
    small = factors(ARL(), scores_of((0.5, 1.0), (0.5, 2.0), (0.5, 3.0)))
    assert small == sorted(small, reverse=True)


class Scaled(torch.autograd.Function):
    """Gives features as they are, and multiplies their gradient."""

    @staticmethod
    def forward(ctx, features: Tensor, factor: float) -> Tensor:  # noqa: ANN001 (torch's)
        ctx.factor = factor
        return features.view_as(features)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN001
        return ctx.factor * gradients[0], None


@pytest.mark.parametrize("form", ["published", "released"])
def test_gradients_are_those_of_scaled_features(form: str) -> None:
    """Encoders end in a function that scales the gradient, one head gives all outputs, all from one sum of losses."""
    torch.manual_seed(0)
    encoders = {name: nn.Sequential(nn.Linear(3, 4), nn.Tanh()) for name in names(2)}
    sizes = dict.fromkeys(names(2), 4)
    model = LateFusion(encoders, 3, unimodal="split", features=sizes).double()
    inputs, label = batch(names(2))
    balancer = attached(ARL(weight=3.0, sharpness=6.0, form=form), model)  # ty: ignore[invalid-argument-type]
    part = Part(inputs, label)
    loss, _ = training_loss(model, balancer, part)
    loss.backward()
    found = gradients_of(model)

    with torch.no_grad():
        outputs = model(inputs)
        entropies = [float(torch.distributions.Categorical(logits=outputs[n]).entropy().mean()) for n in names(2)]
        large = [float(outputs[n].abs().mean(dim=0).sum()) for n in names(2)]
    factor = [1.5, 1.5] if form == "released" else published((entropies[0], entropies[1]), (large[0], large[1]), 6.0)
    model.zero_grad()
    ends = {n: Scaled.apply(model.encoders[n](inputs[n]), f) for n, f in zip(names(2), factor, strict=True)}
    shares = model.fusion.share(ends)
    total = F.cross_entropy(model.fusion(ends), label)
    plain = total + 3.0 * sum(F.cross_entropy(shares[n], label) for n in names(2))
    plain.backward()
    assert float(loss.detach()) == pytest.approx(float(plain.detach()))
    torch.testing.assert_close(found, gradients_of(model), rtol=1e-6, atol=1e-9)  # scores are taken in float32


def test_before_its_first_epoch_all_losses_weigh_one() -> None:
    model = SmallModel(names(2))
    balancer = attached(ARL(weight=4.0, start=1), model)
    balanced(balancer, losses_of(model, batch(names(2)))).backward()
    ones = {"audio": 1.0, "video": 1.0}
    before = {"fused": {**ones, "fused head": 1.0}, **{n: {n: 1.0, "own heads": 1.0} for n in ones}}
    assert balancer.table.numbers() == before
    balancer.end_epoch()
    balanced(balancer, losses_of(model, batch(names(2)))).backward()
    for name in ones:
        factor = float(balancer.table.at("fused", name))
        assert factor > 1
        assert balancer.table.numbers()[name] == {name: pytest.approx(4 * factor), "own heads": 4.0}


def test_a_window_takes_several_scores_of_each_sample() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    scores = {name: torch.rand(12, 2, dtype=torch.float64) for name in names(2)}
    halves = [part(data, 0, 6), part(data, 6, 12)]
    whole, windowed = (attached(ARL(), model) for _ in range(2))
    whole(losses_of(model, data), scores=scores)
    assert abs(float(whole.table.at("fused", "audio")) - 1.5) > 1e-3
    with torch.no_grad():
        measured = [losses_of(model, half) for half in halves]
    for kind in ("samples", "means"):
        given = [{n: x[rows] for n, x in scores.items()} for rows in (slice(6), slice(6, 12))]
        given = given if kind == "samples" else [{n: x.mean(0) for n, x in one.items()} for one in given]
        with Window(windowed).open(measured, scores=given):
            windowed(losses_of(model, halves[0]))
        torch.testing.assert_close(windowed.table.values, whole.table.values, equal_nan=True)


def test_arl_asks_for_scores_and_is_not_for_numbers() -> None:
    model = SmallModel(names(2))
    balancer = attached(ARL(), model)
    with pytest.raises(ValueError, match=r"by entropy and magnitude.*pass scores=\{name: …\}, \[B, 2\]"):
        balancer(losses_of(model, batch(names(2))))
    attached(ARL(form="released"), model)(losses_of(model, batch(names(2))))
    assert "choose ew or mlb" in " ".join(unmet(ARL(), task="regression"))
    assert unmet(ARL(), task="classes") == unmet(ARL(), task="labels") == []
    with pytest.raises(ValueError, match="weight should be above zero"):
        ARL(weight=0.0)


def test_entropy_of_a_task_is_that_of_its_classes() -> None:
    task = Classification(["a", "b", "c"])
    even = task.entropy(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))
    assert float(even) == pytest.approx(math.log(3))

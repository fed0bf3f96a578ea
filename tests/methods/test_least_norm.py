"""The shortest vector in a convex hull: against non-negative least squares, in single and in double precision."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from equipoise import MGDA
from equipoise.balance import theory
from equipoise.balance.theory import least_norm

KINDS = (
    "plain",
    "around a common gradient",
    "nearly equal",
    "dependent",
    "equal",
    "opposite",
    "with zeros",
    "of all lengths",
    "around zero",
    "hardly around zero",
)


def sampled(kind: str, random: np.random.Generator) -> np.ndarray:
    """Up to 32 gradients, one to a row, of up to 40 numbers, the longest of which has length one."""
    count, size = int(random.integers(2, 33)), int(random.integers(1, 41))
    rows = random.standard_normal((count, size))
    common = random.standard_normal((1, size))
    match kind:
        case "around a common gradient":
            rows += random.uniform(0, 5) * common
        case "nearly equal":
            rows = common + 10 ** random.uniform(-8, 0) * rows
        case "dependent":
            rank = max(1, size // 3)
            rows = rows[:, :rank] @ random.standard_normal((rank, size))
        case "equal":
            rows = rows[random.integers(0, count, count)]
        case "opposite":
            rows = np.concatenate([rows[: max(1, count // 2)], -rows[: max(1, count // 2)]])
        case "with zeros":
            rows = np.concatenate([rows, rows[:1]])[:32]
            rows[random.integers(1, len(rows), max(1, len(rows) // 4))] = 0
            rows = rows if len(rows) > 2 else rows[[0, 0]]  # of two gradients one of length zero takes part
        case "of all lengths":
            rows *= 10 ** random.uniform(-10, 10, (count, 1))
        case "around zero":
            rows -= rows.mean(axis=0)
        case "hardly around zero":
            rows = np.concatenate([rows - rows.mean(axis=0), np.full((count, 1), 10 ** random.uniform(-9, 0))], axis=1)
    return rows / max(np.linalg.norm(rows, axis=1).max(), np.finfo(float).tiny)


def least_length(rows: np.ndarray) -> float:
    """A length that no mixture of the rows is shorter than, and that of the shortest as far as least squares find it.

    Any mixture v has ⟨g_i, v⟩ ≥ ‖v‖² for all rows only if it is the shortest; where it is not, min_i ⟨g_i, v⟩ / ‖v‖ is
    still a lower bound.
    """
    rows = rows[np.linalg.norm(rows, axis=1) > 0]
    if len(rows) == 0:
        return 0.0
    system = np.concatenate([rows.T, np.ones((1, len(rows)))])
    weights = nnls(system, np.eye(len(system))[-1], maxiter=10_000)[0]
    mixture = weights / weights.sum() @ rows
    length = float(np.linalg.norm(mixture))
    bound = max(0.0, float((rows @ mixture).min()) / length) if length > 0 else 0.0
    assert length - bound < 1e-7, "the reference is not the shortest"
    return bound


@pytest.mark.parametrize(
    ("given", "solved", "excess"),
    [
        (torch.float64, torch.float64, 1e-6),
        (torch.float32, torch.float64, 1e-3),
        (torch.float32, torch.float32, 1e-3),  # on a device without double precision
    ],
)
def test_of_two_thousand_gramians_no_mixture_is_longer_than_the_shortest(
    given: torch.dtype, solved: torch.dtype, excess: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theory, "wide", lambda _: solved)
    random = np.random.default_rng(0)
    kinds = [KINDS[number % len(KINDS)] for number in range(2000)]
    rows = [torch.from_numpy(sampled(kind, random)).to(given) for kind in kinds]
    by_count: dict[int, list[int]] = defaultdict(list)
    for place, each in enumerate(rows):
        by_count[len(each)].append(place)
    for places in by_count.values():
        # The common scale plays no role either.
        scales = torch.from_numpy(10 ** random.uniform(-8, 8, len(places))).to(given)
        grams = torch.stack([(s * rows[place]) @ (s * rows[place]).T for s, place in zip(scales, places, strict=True)])
        found = least_norm(grams)
        assert found.dtype == given
        assert bool((found >= 0).all())
        torch.testing.assert_close(found.sum(dim=1), torch.ones_like(scales))
        for place, weights in zip(places, found.double().numpy(), strict=True):
            exact = rows[place].double().numpy()
            too_long = float(np.linalg.norm(weights @ exact)) - least_length(exact)
            assert too_long <= excess, (kinds[place], exact.shape)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9, 10, 20])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-5, 1e-8])
def test_short_gradients_count_as_much_as_long_ones(count: int, scale: float) -> None:
    """Relative to the mixture d, which may be far shorter than the longest gradient.

    d·g_i ≥ ‖d‖², with equality where weights are positive.
    """
    random = torch.Generator().manual_seed(0)
    for _ in range(20 if count <= 4 else 5):
        vectors = torch.randn(count, 2 * count, dtype=torch.float64, generator=random)
        vectors[1:] *= scale
        weights = least_norm(vectors @ vectors.T)
        assert float(weights.min()) >= 0
        assert float(weights.sum()) == pytest.approx(1.0)
        mixture = weights @ vectors
        slack = (vectors @ mixture - mixture @ mixture) / (vectors.norm(dim=1) * mixture.norm())
        assert float(slack.min()) > -1e-7
        counts = weights * vectors.norm(dim=1) > 1e-7 * mixture.norm()
        assert float((slack * counts).abs().max()) < 1e-7


@pytest.mark.parametrize("count", [4, 9, 10, 17])
def test_the_order_of_gradients_and_a_zero_one_change_nothing(count: int) -> None:
    random = torch.Generator().manual_seed(count)
    vectors = torch.randn(count, count // 2 + 1, dtype=torch.float64, generator=random) + 0.5
    mixture = least_norm(vectors @ vectors.T) @ vectors
    turned = vectors[torch.randperm(count, generator=random)]
    torch.testing.assert_close(least_norm(turned @ turned.T) @ turned, mixture, rtol=0, atol=1e-6)
    padded = torch.cat([vectors, torch.zeros_like(vectors[:1])])
    weights = least_norm(padded @ padded.T)
    assert float(weights[-1]) == 0
    torch.testing.assert_close(weights @ padded, mixture, rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3, 9, 10, 32])
def test_gramians_that_say_nothing_give_weights_all_the_same(count: int) -> None:
    for gram in (
        torch.zeros(count, count),
        torch.ones(count, count),
        1e30 * torch.eye(count),
        1e-30 * torch.eye(count),
    ):
        weights = least_norm(gram)
        assert bool((weights >= 0).all())
        assert float(weights.sum()) == pytest.approx(1.0)
    torch.testing.assert_close(least_norm(1e30 * torch.eye(count)), torch.full((count,), 1 / count))
    assert bool(least_norm(torch.full((2, count, count), torch.nan)).isnan().all())  # of a step that is not taken


@pytest.mark.parametrize("count", [1, 2, 3, 9, 10, 20])
def test_nothing_waits_for_the_device(count: int) -> None:
    """A meta tensor has no values: to read one raises."""
    assert least_norm(torch.empty(4, count, count, device="meta")).shape == (4, count)


class Chained(nn.Module):
    """Twenty encoders of which each reads the one before: all losses reach the first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoders = nn.ModuleDict({f"sensor{number}": nn.Linear(4, 4, bias=False) for number in range(20)})
        self.double()

    def losses(self) -> dict[str, Tensor]:
        feature, found = torch.linspace(0, 1, 4, dtype=torch.float64), {}
        for number, (name, encoder) in enumerate(self.encoders.items()):
            feature = encoder(feature).tanh() + 0.1 * number
            found[name] = (feature - number % 3).square().sum()
        return {"fused": (feature + 1).square().sum(), **found}


def test_twenty_one_objectives_meet_at_one_encoder() -> None:
    model = Chained()
    names = list(model.encoders)
    first = model.encoders[names[0]].get_parameter("weight")
    losses = model.losses().values()
    alone = [torch.autograd.grad(loss, first, retain_graph=True)[0].flatten() for loss in losses]
    balancer = MGDA().attach(model, encoders={name: model.encoders[name] for name in names})
    with pytest.warns(UserWarning, match="reach the encoders of other modalities"):
        balancer(model.losses()).backward()
    assert first.grad is not None
    rows = torch.stack(alone).numpy()
    longest = float(np.linalg.norm(rows, axis=1).max())
    assert float(first.grad.norm()) / longest <= least_length(rows / longest) + 1e-6

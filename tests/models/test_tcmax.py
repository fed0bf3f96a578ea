"""TCMax against all B^K combinations, cross-entropy where the two agree, and derivatives; and training with it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import tcmax_loss


def sampled(count: int, samples: int = 3, classes: int = 4, seed: int = 0, scale: float = 1.0) -> tuple[dict, Tensor]:
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, samples, classes, generator=random, dtype=torch.float64)
    shares = {f"m{place}": scale * rows.clone() for place, rows in enumerate(drawn)}
    return shares, torch.randint(0, classes, (samples,), generator=random)


def by_all_combinations(shares: dict[str, Tensor], label: Tensor) -> Tensor:
    """The definition: every way to put a sample of each modality together, with every class."""
    rows = [z.tolist() for z in shares.values()]
    samples, classes = len(label), len(rows[0][0])
    total = 0.0
    for chosen in itertools.product(range(samples), repeat=len(rows)):
        for one in range(classes):
            total += math.exp(sum(z[i][one] for z, i in zip(rows, chosen, strict=True)))
    expected = math.log(total / samples ** len(rows))
    found = [expected - sum(z[i][y] for z in rows) for i, y in enumerate(label.tolist())]
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_mean_over_all_combinations(count: int, seed: int) -> None:
    shares, label = sampled(count, seed=seed)
    torch.testing.assert_close(tcmax_loss(shares, label), by_all_combinations(shares, label))


def test_one_modality_is_a_cross_entropy_normalised_over_the_batch() -> None:
    shares, label = sampled(1, samples=8)
    z = shares["m0"]
    plain = F.cross_entropy(z, label, reduction="none")
    assert float(tcmax_loss(shares, label).mean()) > float(plain.mean())  # the log of a mean is above the mean of logs
    normalised = {"m0": z.log_softmax(dim=1) + 3}
    torch.testing.assert_close(tcmax_loss(normalised, label), plain)
    torch.testing.assert_close(tcmax_loss({"m0": z[:1]}, label[:1]), plain[:1])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_batch_of_one_has_the_cross_entropy_of_the_sum(count: int) -> None:
    shares, label = sampled(count, samples=1)
    fused = torch.stack(list(shares.values())).sum(dim=0)
    torch.testing.assert_close(tcmax_loss(shares, label), F.cross_entropy(fused, label, reduction="none"))
    smoothed = F.cross_entropy(fused, label, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(tcmax_loss(shares, label, smoothing=0.1), smoothed)


def test_constants_move_between_modalities_without_a_trace() -> None:
    shares, label = sampled(3)
    expected = tcmax_loss(shares, label)
    torch.testing.assert_close(tcmax_loss(shares | {"m1": shares["m1"] + 5}, label), expected)  # any constant
    by_class = torch.linspace(-1, 2, 4)  # such as a bias of the fused head
    moved = {"m0": shares["m0"] + by_class, "m1": shares["m1"] - by_class, "m2": shares["m2"]}
    torch.testing.assert_close(tcmax_loss(moved, label), expected)
    torch.testing.assert_close(tcmax_loss(dict(reversed(shares.items())), label), expected)


def test_it_bounds_the_total_correlation_from_below() -> None:
    # Two sensors that each tell one of three equally likely classes: TC = I(a; v) + I(a, v; y) = 2 log 3.
    label = torch.arange(3)
    for sharp in (1.0, 5.0, 20.0):
        share = sharp * torch.eye(3, dtype=torch.float64)
        bound = math.log(3) - float(tcmax_loss({"a": share, "v": share}, label).mean())  # with every class alike
        assert bound <= 2 * math.log(3) + 1e-9
    assert bound == pytest.approx(2 * math.log(3), abs=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_derivatives(count: int) -> None:
    shares, label = sampled(count)
    leaves = [z.requires_grad_() for z in shares.values()]

    def loss(*given: Tensor) -> Tensor:
        return tcmax_loss(dict(zip(shares, given, strict=True)), label, smoothing=0.2)

    assert torch.autograd.gradcheck(loss, leaves)
    assert torch.autograd.gradgradcheck(loss, leaves)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4, 1e8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_large_outputs_stay_finite(scale: float, dtype: torch.dtype) -> None:
    shares, label = sampled(3, samples=5, scale=min(scale, 1e4) if dtype == torch.float16 else scale)
    given = {name: z.to(dtype).requires_grad_() for name, z in shares.items()}
    loss = tcmax_loss(given, label)
    loss.mean().backward()
    assert loss.dtype == torch.float32
    assert bool(loss.isfinite().all())
    assert all(z.grad is not None and bool(z.grad.isfinite().all()) for z in given.values())


@pytest.mark.parametrize(
    ("shares", "label"),
    [
        ({}, torch.zeros(2, dtype=torch.int64)),
        ({"a": torch.zeros(2, 3), "b": torch.zeros(2, 4)}, torch.zeros(2, dtype=torch.int64)),
        ({"a": torch.zeros(3, 3)}, torch.zeros(2, dtype=torch.int64)),
        ({"a": torch.zeros(2, 3)}, torch.zeros(2, 1, dtype=torch.int64)),
    ],
)
def test_shapes_that_do_not_fit_are_told(shares: dict[str, Tensor], label: Tensor) -> None:
    with pytest.raises(ValueError, match=r"tcmax_loss: expected shares of one shape .*model\.with_shares"):
        tcmax_loss(shares, label)

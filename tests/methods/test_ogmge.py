"""The noise of OGM-GE: normal, as large as each gradient, laid out like it, and never the same number twice."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.balance import tensors
from equipoise.methods import ogmge
from equipoise.methods.ogmge import BLOCK, Noise

SHAPES = [(1,), (7,), (BLOCK,), (BLOCK + 1,), (40, 30), (8, 3, 5, 5), (2, 3, 4, 5, 6), (0, 4)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients(seed: int, shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    random = generator(seed)
    made = [(10.0 ** (place % 4) * (3 + torch.randn(shape, generator=random))) for place, shape in enumerate(shapes)]
    return [one.to(dtype) for one in made]


@pytest.mark.parametrize("seed", range(12))
def test_each_gets_its_own_numbers_times_its_own_deviation(seed: int) -> None:
    """NumPy's deviations times the draws of one generator, in order, none of them used twice."""
    random = np.random.default_rng(seed)
    shapes = [SHAPES[place] for place in random.integers(0, len(SHAPES), 1 + seed % 6)]
    sized = gradients(seed, shapes)
    found = Noise().like(sized, generator(seed))
    blocks = [-(-one.numel() // BLOCK) for one in sized]
    drawn = torch.randn(sum(blocks), BLOCK, generator=generator(seed)).numpy().reshape(-1)
    start = 0
    for one, made, count in zip(sized, found, blocks, strict=True):
        deviation = np.std(one.double().numpy(), ddof=1) if one.numel() > 1 else 0.0
        expected = deviation * drawn[start : start + one.numel()].reshape(one.shape)
        np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5)
        start += count * BLOCK


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_it_is_normal_in_every_precision(dtype: torch.dtype) -> None:
    wide, other = gradients(1, [(300, 300), (11,)], dtype)
    found, _ = Noise().like([wide, other], generator())
    assert found.dtype == dtype
    normal = found.double() / wide.double().std()
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    expected = torch.distributions.Normal(0.0, 1.0).icdf(levels)
    torch.testing.assert_close(normal.quantile(levels), expected, rtol=0, atol=0.02)


def test_it_lies_in_memory_as_the_gradient_does() -> None:
    picture, video = torch.randn(8, 3, 5, 5), torch.randn(8, 3, 2, 5, 4)
    sized = [picture.to(memory_format=torch.channels_last), picture, torch.randn(6)]
    sized += [video.to(memory_format=torch.channels_last_3d), video]
    for one, made in zip(sized, Noise().like(sized, generator()), strict=True):
        assert made.shape == one.shape
        assert made.stride() == one.stride()


def test_a_copy_draws_the_same() -> None:
    first, sized = Noise(), gradients(2, [(20, 3), (5,)])
    first.like(sized, generator())
    for one, other in zip(first.like(sized, generator()), copy.deepcopy(first).like(sized, generator()), strict=True):
        assert torch.equal(one, other)


def test_a_device_without_float64_is_asked_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for one in made if isinstance(made, (list, tuple)) else [made]:
                assert not isinstance(one, Tensor) or one.dtype != torch.float64, func
            return made

    for module in (tensors, ogmge):
        monkeypatch.setattr(module, "wide", lambda _: torch.float32)
    sized = [torch.randn(50, 40), torch.randn(9)]
    with Narrow():
        found = Noise().like(sized, generator())
    assert float(found[0].std()) == pytest.approx(float(sized[0].std()), rel=0.05)

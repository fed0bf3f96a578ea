"""Normal noise as large as each of many gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance.linear_algebra import sums, wide

BLOCK = 256  # numbers of noise that have one size
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions


class _Blocks(NamedTuple):
    """How noise for gradients of some sizes lies in blocks: how many each has, whose each is, and the sizes."""

    per_gradient: list[int]
    owner: Tensor
    count: Tensor


@final
class Noise:
    """Draws noise for many gradients in few kernels, whatever their number; remembers sizes it has met.

    All is drawn in one go. What a gradient gets begins with a new block, so that every block has one size.
    """

    def __init__(self) -> None:
        self._met: dict[tuple[int, ...], _Blocks] = {}

    def like(self, gradients: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        """Noise with the standard deviation of each gradient, which lies in memory as the gradient does."""
        sizes = tuple(gradient.numel() for gradient in gradients)
        if sizes not in self._met:  # kept: bringing numbers to the device waits for it
            self._met[sizes] = _blocks(sizes, wide(gradients), generator.device)
        blocks = self._met[sizes]
        drawn = torch.randn(len(blocks.owner), BLOCK, generator=generator, device=generator.device)
        drawn *= _deviations(gradients, blocks.count).to(drawn.dtype)[blocks.owner].unsqueeze(1)
        parts = drawn.flatten().split([BLOCK * each for each in blocks.per_gradient])
        return [_laid_out(part, each).to(each.dtype) for part, each in zip(parts, gradients, strict=True)]

    def __reduce__(self) -> tuple[type[Noise], tuple[()]]:
        """A copy remembers nothing: it may be for another device."""
        return Noise, ()


def _blocks(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> _Blocks:
    per_gradient = [-(-size // BLOCK) for size in sizes]
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(per_gradient))
    return _Blocks(per_gradient, owner.to(device), torch.tensor(sizes, dtype=dtype, device=device))


def _deviations(gradients: Sequence[Tensor], count: Tensor) -> Tensor:
    """The standard deviation of each gradient; zero for a single number, which has none."""
    known = [gradient.float() if gradient.dtype.itemsize < 4 else gradient for gradient in gradients]
    squares = torch.stack(list(torch._foreach_norm(known, 2, dtype=count.dtype))).square()
    spread = (squares - sums(known).square() / count).clamp(min=0) / (count - 1).clamp(min=1)
    return torch.where(count > 1, spread.sqrt(), 0.0)


def _laid_out(numbers: Tensor, gradient: Tensor) -> Tensor:
    """As many numbers as a gradient has, in its shape; channels come last in memory where it has them there."""
    numbers = numbers[: gradient.numel()]
    channels_last = CHANNELS_LAST.get(gradient.dim())
    if channels_last is None or gradient.is_contiguous() or not gradient.is_contiguous(memory_format=channels_last):
        return numbers.view(gradient.shape)
    outputs, inputs, *others = gradient.shape
    return numbers.view(outputs, *others, inputs).movedim(-1, 1)

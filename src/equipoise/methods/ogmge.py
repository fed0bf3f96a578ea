"""OGM-GE: slow the modality that is ahead, and add noise as large as the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance.tensors import sums, wide
from equipoise.methods.ogm import TRIED, Modulated, OnTheFly

BLOCK = 256  # numbers of noise that have one size
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions


@final
class OGMGE(OnTheFly):
    """On-the-fly gradient modulation with generalisation enhancement.

    Encoder m moves along c_m · ∇f_mm + ε, c_m as in OGM. ε is normal noise, for each tensor with the standard
    deviation of its own gradient: before modulation (the authors' present code), or after (their first release and
    their word). Both are added to every modality.

    Tasks: any; modalities are compared as in OGM.

    Paper: Peng et al., "Balanced Multimodal Learning via On-the-fly Gradient Modulation" (CVPR 2022).
    Cost: one backward pass, and noise of the encoders' size.

    Args:
        strength: α, as in OGM.
        parameters: "all" tensors of an encoder, or the "kernels" of its convolutions only, as in the authors' code.
        noise: Take the standard deviation from the gradient "before" modulation or "after".
        seed: Of the noise. The ranks of a distributed run draw the same noise.
        start: First epoch that modulates and adds noise.
        stop: First epoch that no longer does.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = OGMGE(strength=0.8).attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> balancer({name: logits.square().mean(1) for name, logits in outputs.items()}).backward()
    """

    def __init__(
        self,
        strength: Annotated[float, TRIED] = 0.8,
        parameters: Modulated = "all",
        noise: Literal["before", "after"] = "before",
        seed: int = 0,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        super().__init__(strength, parameters, start, stop)
        self.noise, self._draws = noise, Noise()
        self.add_generator("random", seed)

    def transform(self, modality: str, gradient: list[Tensor], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:  # noqa: ARG002
        """Add noise to every tensor."""
        if any(one.is_sparse for one in gradient):
            raise RuntimeError("OGMGE: noise for sparse gradients is not supported; type sparse=False for embeddings")
        sources = parts[0] if self.noise == "before" else gradient
        return list(
            torch._foreach_add(gradient, self._draws.like(sources, self.generator("random", gradient[0].device)))
        )


class _Blocks(NamedTuple):
    """The layout of noise for some gradients: blocks per gradient, the gradient of each block, and the sizes."""

    per_gradient: list[int]
    owner: Tensor
    count: Tensor


@final
class Noise:
    """Draws noise for many gradients in few kernels, whatever their number; remembers sizes it has met.

    All is drawn in one go. What a gradient gets begins with a new block, so that every block has one size.
    """

    def __init__(self) -> None:
        self._met: dict[tuple[torch.device, tuple[int, ...]], _Blocks] = {}

    def like(self, gradients: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        """Noise with the standard deviation of each gradient, which lies in memory as the gradient does."""
        sizes = tuple(gradient.numel() for gradient in gradients)
        met = (generator.device, sizes)
        if met not in self._met:  # kept: bringing numbers to the device waits for it
            self._met[met] = _blocks(sizes, wide(gradients), generator.device)
        blocks = self._met[met]
        drawn = torch.randn(len(blocks.owner), BLOCK, generator=generator, device=generator.device)
        drawn *= _deviations(gradients, blocks.count).to(drawn.dtype)[blocks.owner].unsqueeze(1)
        parts = drawn.flatten().split([BLOCK * count for count in blocks.per_gradient])
        return [_laid_out(part, like).to(like.dtype) for part, like in zip(parts, gradients, strict=True)]

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

"""Arithmetic of many gradients at once, in few kernels and without waiting for the device."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def scaled(gradients: Sequence[Tensor], factor: Tensor) -> list[Tensor]:
    """Multiply every gradient by one factor that lives on the device."""
    if len({gradient.dtype for gradient in gradients}) == 1:
        return list(torch._foreach_mul(list(gradients), factor.to(gradients[0].dtype)))
    return [gradient * factor.to(gradient.dtype) for gradient in gradients]


def combined(parts: Sequence[Sequence[Tensor]], coefficients: Tensor) -> list[Tensor]:
    """Σ_i coefficients[i] · parts[i], tensor by tensor."""
    total = scaled(parts[0], coefficients[0])
    for part, coefficient in zip(parts[1:], coefficients[1:], strict=True):
        torch._foreach_add_(total, scaled(part, coefficient))
    return total


def gram_matrix(parts: Sequence[Sequence[Tensor]]) -> Tensor:
    """Compute the inner products ⟨parts[i], parts[j]⟩ over all tensors together.

    They are summed in float64 where the device has it. Products of single precision would overflow for gradients above
    1e19, and vanish below 1e-22: they are taken of parts that are divided by the power of two below the longest.
    """
    if any(tensor.is_sparse for part in parts for tensor in part):
        raise RuntimeError(
            "inner products of sparse gradients are not supported; type sparse=False for the embeddings of an encoder"
        )
    parts = [[tensor.float() if tensor.dtype.itemsize < 4 else tensor for tensor in part] for part in parts]
    squares = [torch.stack(list(torch._foreach_norm(part, 2, dtype=wide(part)))).square().sum() for part in parts]
    longest = torch.stack(squares).amax().sqrt()
    factor = (-longest.log2().floor().clamp(-126, 126)).exp2()
    rows = [[_inner(a, b, factor) for b in parts[:i]] + [squares[i] * factor] for i, a in enumerate(parts)]
    cells = [rows[max(i, j)][min(i, j)] for i in range(len(parts)) for j in range(len(parts))]
    return torch.stack(cells).view(len(parts), len(parts)) / factor


def _inner(a: Sequence[Tensor], b: Sequence[Tensor], factor: Tensor) -> Tensor:
    products = scaled(a, factor)
    torch._foreach_mul_(products, list(b))
    return sums(products).sum()


def sums(tensors: Sequence[Tensor]) -> Tensor:
    """Sum each tensor, in float64 where the device has it, for all of them in few kernels.

    There are such kernels for norms only: the sum is twice that of what is positive, less that of all magnitudes.
    """
    dtype = wide(tensors)
    positive = torch._foreach_norm(torch._foreach_clamp_min(list(tensors), 0.0), 1, dtype=dtype)
    magnitudes = torch._foreach_norm(list(tensors), 1, dtype=dtype)
    return 2 * torch.stack(list(positive)) - torch.stack(list(magnitudes))


def wide(tensors: Sequence[Tensor]) -> torch.dtype:
    """Return the widest type that the device of some tensors has."""
    return torch.float32 if tensors[0].device.type == "mps" else torch.float64


def all_finite(gradients: Iterable[Tensor]) -> Tensor:
    """Return True if every gradient is finite, as a tensor on the device: nothing waits for it."""
    values = [values_of(gradient) for gradient in gradients]
    return torch.stack(list(torch._foreach_norm(values, 2, dtype=wide(values)))).isfinite().all()


def values_of(gradient: Tensor) -> Tensor:
    """Return the numbers of a gradient that may be sparse."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient

"""Linear algebra of gradients: sums and scales of lists of tensors, inner products, and the shortest mixture."""

from __future__ import annotations

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
    """Compute the inner products ⟨parts[i], parts[j]⟩ over all tensors together, in float64 where the device has it."""
    if any(tensor.is_sparse for part in parts for tensor in part):
        raise RuntimeError(
            "inner products of sparse gradients are not supported; type sparse=False for the embeddings of an encoder"
        )
    parts = [[tensor.float() if tensor.dtype.itemsize < 4 else tensor for tensor in part] for part in parts]
    rows = [[_inner(a, b) for b in parts[: i + 1]] for i, a in enumerate(parts)]
    cells = [rows[max(i, j)][min(i, j)] for i in range(len(parts)) for j in range(len(parts))]
    return torch.stack(cells).view(len(parts), len(parts))


def _inner(a: list[Tensor], b: list[Tensor]) -> Tensor:
    if a is b:
        return torch.stack(list(torch._foreach_norm(a, 2, dtype=wide(a)))).square().sum()
    return sums(torch._foreach_mul(a, b)).sum()


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
    return torch.stack(list(torch._foreach_norm([values_of(gradient) for gradient in gradients]))).isfinite().all()


def values_of(gradient: Tensor) -> Tensor:
    """Return the numbers of a gradient that may be sparse."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def least_norm(gram: Tensor) -> Tensor:
    """Weights of the shortest vector in the convex hull of some gradients, from their inner products.

    Two gradients have a closed form. More are solved exactly, without a loop that waits for the device: every support
    is tried at once (2ⁿ − 1 linear systems of size n), and the shortest feasible vector wins.

    Args:
        gram: Inner products, shape [..., n, n], in float64 for more than two gradients.

    Returns:
        Weights on the simplex, shape [..., n].

    Example:
        >>> least_norm(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
        tensor([0.2000, 0.8000])
    """
    count = gram.shape[-1]
    if count == 1:
        return torch.ones_like(gram[..., 0])
    if count == 2:
        first, second, inner = gram[..., 0, 0], gram[..., 1, 1], gram[..., 0, 1]
        apart = first + second - 2 * inner
        share = torch.where(apart == 0, 0.5, (second - inner) / apart).clamp(0, 1)
        return torch.stack([share, 1 - share], dim=-1)
    if count > 16:
        raise ValueError(f"least_norm: expected at most 16 gradients that act on one block, found {count}")
    return _over_all_supports(gram)


def _over_all_supports(gram: Tensor) -> Tensor:
    count = gram.shape[-1]
    numbers = torch.arange(1, 2**count, device=gram.device)
    support = ((numbers[:, None] >> torch.arange(count, device=gram.device)) & 1).to(gram.dtype)
    identity = torch.eye(count, device=gram.device, dtype=gram.dtype)
    # In units of each gradient's own length, so that short gradients count as much as long ones: with C the cosines and
    # d the lengths, weights w that make d·w = y solve C y ∝ 1/d.
    squared = gram.diagonal(dim1=-2, dim2=-1)
    zero = squared <= 0
    length = torch.where(zero, 1.0, squared).sqrt()
    cosines = gram / length[..., :, None] / length[..., None, :]
    # A ridge far below the data makes dependent gradients solvable; it moves the answer by as little.
    inside = support[:, :, None] * support[:, None, :]
    systems = cosines[..., None, :, :] * inside + 1e-13 * identity + identity * (1 - support)[:, None, :]
    shortest = torch.where(zero, torch.inf, length).amin(dim=-1, keepdim=True)
    inverse = torch.where(zero, 1.0, shortest / length)  # at most one
    wanted = inverse[..., None, :] * support
    solution, _ = torch.linalg.solve_ex(systems, wanted[..., None])
    scaled = solution[..., 0] * support
    # A gradient of length zero is that of a loss that does not reach the block: it takes no part.
    absent = (zero[..., None, :] & (support > 0)).any(dim=-1)
    feasible = (scaled >= -1e-9 * scaled.abs().amax(dim=-1, keepdim=True)).all(dim=-1) & ~absent
    scaled = scaled.clamp(min=0)
    raw = scaled * inverse[..., None, :]
    total = raw.sum(dim=-1, keepdim=True)
    lengths = torch.einsum("...si,...ij,...sj->...s", scaled, cosines, scaled) / total[..., 0].square()
    best = torch.where(feasible & (total[..., 0] > 0), lengths, torch.inf).argmin(dim=-1)
    weights = raw / total
    return torch.gather(weights, -2, best[..., None, None].expand(*best.shape, 1, count)).squeeze(-2)

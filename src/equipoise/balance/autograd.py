"""The gradient path: one scalar whose backward pass hands every parameter the gradient its method decided on.

The scalar is an autograd node with every parameter as an input. Its backward asks torch.autograd.grad for the
gradients the method needs *there*, with the factor that arrives from above (so the scale of a GradScaler protects
half precision), mixes them, and returns one gradient per parameter. `.grad` is touched once, DDP sees each parameter
once, and whoever calls `backward` (a plain loop, Accelerate, Fabric, Lightning) needs to know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch._C._autograd import _get_current_graph_task_keep_graph as _keep_graph
from torch._compile import _disable_dynamo

Gradients = dict[int, Tensor]
Decide = Callable[[Tensor, bool], Gradients]
"""Computes the gradients of a step from the factor that arrives from above; the flag asks to keep the graph."""


class Pass(NamedTuple):
    """One run of autograd: losses with their weights, and the tensors whose gradients are wanted.

    Args:
        losses: What to differentiate.
        weights: One factor per loss, on the device; None means ones.
        tensors: Where the gradients are wanted.
    """

    losses: Sequence[Tensor | None]
    weights: Sequence[Tensor] | None
    tensors: Sequence[Tensor]

    def run(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """The gradients by identity of their tensor; a tensor that no loss reaches has none."""
        factors = self.weights if self.weights is not None else [scale.new_ones(())] * len(self.losses)
        live = [(loss, factor) for loss, factor in zip(self.losses, factors, strict=True) if _sends_gradient(loss)]
        if not live or not self.tensors:
            return {}
        gradients = torch.autograd.grad(
            [loss for loss, _ in live if loss is not None],
            self.tensors,
            [(factor * scale).to(loss.dtype) for loss, factor in live if loss is not None],
            retain_graph=keep_graph,
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
        return {id(t): g for t, g in zip(self.tensors, gradients, strict=True) if g is not None}


def _sends_gradient(loss: Tensor | None) -> bool:
    return loss is not None and loss.requires_grad


def run(passes: Sequence[Pass], scale: Tensor, *, keep_graph: bool) -> list[Gradients]:
    """Run passes in order. All but the last keep the graph, so the costly one belongs at the end."""
    return [step.run(scale, keep_graph=keep_graph or number + 1 < len(passes)) for number, step in enumerate(passes)]


@final
class _Deliver(torch.autograd.Function):
    """A scalar that, differentiated, gives every leaf what ``decide`` says."""

    @staticmethod
    def forward(ctx: Any, decide: Decide, value: Tensor, linear: bool, *leaves: Tensor) -> Tensor:
        ctx.decide, ctx.linear = decide, linear
        ctx.keys = [id(leaf) for leaf in leaves]
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:  # ty: ignore[incompatible-method-override]
        if torch.is_grad_enabled() and not ctx.linear:
            raise RuntimeError(SECOND_DERIVATIVES)
        if ctx.decide is None:
            msg = (
                "backward was called twice on one balanced loss; call the balancer again on fresh losses, or type "
                "loss.backward(retain_graph=True) the first time"
            )
            raise RuntimeError(msg)
        decide, keep_graph = ctx.decide, _keep_graph()
        if not keep_graph:
            ctx.decide = None  # lets go of the graph as soon as it is used
        found = decide(scale, keep_graph)
        return (None, None, None, *(found.get(key) for key in ctx.keys))


SECOND_DERIVATIVES = (
    "this method shapes gradients after they are taken, so that second derivatives through its loss are not known; "
    "found create_graph=True: take the gradient penalty of the losses themselves and pass it as "
    "balancer(losses, extra={'penalty': …}), or choose MIMO, EW or MSL, which are exact"
)


@_disable_dynamo  # a compiled step breaks off here: what the backward pass does depends on the graph under it
def deliver(decide: Decide, value: Tensor, leaves: Iterable[Tensor], *, linear: bool) -> Tensor:
    """Return a scalar of this value whose backward gives each leaf the gradient that ``decide`` finds for it.

    Args:
        decide: Computes the gradients.
        value: Of the scalar.
        leaves: The tensors that get a gradient.
        linear: Whether ``decide`` is a fixed linear map of the losses' gradients, which can be differentiated again.
    """
    return _Deliver.apply(decide, value, linear, *leaves)


def add(into: Gradients, more: Gradients) -> Gradients:
    """Add gradients tensor by tensor."""
    for key, gradient in more.items():
        into[key] = into[key] + gradient if key in into else gradient
    return into


def scaled(gradients: Sequence[Tensor], factor: Tensor) -> list[Tensor]:
    """Every gradient times one factor that lives on the device."""
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
    """Inner products ⟨parts[i], parts[j]⟩ over all tensors together, in float64 where the device has it."""
    if any(tensor.is_sparse for part in parts for tensor in part):
        msg = "inner products of sparse gradients are not supported; type sparse=False for the embeddings of an encoder"
        raise RuntimeError(msg)
    parts = [[_at_least_single(tensor) for tensor in part] for part in parts]
    rows = [[_inner(a, b) if j <= i else None for j, b in enumerate(parts)] for i, a in enumerate(parts)]
    cells = [rows[max(i, j)][min(i, j)] for i in range(len(parts)) for j in range(len(parts))]
    return torch.stack([cell for cell in cells if cell is not None]).view(len(parts), len(parts))


def _at_least_single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in {torch.float16, torch.bfloat16} else tensor


def _inner(a: list[Tensor], b: list[Tensor]) -> Tensor:
    if a is b:
        return torch.stack(list(torch._foreach_norm(a, 2, dtype=wide(a)))).square().sum()
    return sums(torch._foreach_mul(a, b)).sum()


def sums(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of each tensor, in float64 where the device has it, for all of them in few kernels.

    There are such kernels for norms only: the sum is twice that of what is positive, less that of all magnitudes.
    """
    dtype = wide(tensors)
    positive = torch._foreach_norm(torch._foreach_clamp_min(list(tensors), 0.0), 1, dtype=dtype)
    magnitudes = torch._foreach_norm(list(tensors), 1, dtype=dtype)
    return 2 * torch.stack(list(positive)) - torch.stack(list(magnitudes))


def wide(tensors: Sequence[Tensor]) -> torch.dtype:
    """The widest type that the device of some tensors has."""
    return torch.float32 if tensors[0].device.type == "mps" else torch.float64


def all_finite(gradients: Iterable[Tensor]) -> Tensor:
    """Whether every gradient is finite, as a tensor: asking costs no wait."""
    return torch.stack(list(torch._foreach_norm([values_of(each) for each in gradients]))).isfinite().all()


def values_of(gradient: Tensor) -> Tensor:
    """The numbers of a gradient that may be sparse."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient

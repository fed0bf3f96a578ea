"""The gradient path: one scalar whose backward pass hands every parameter the gradient its method decided on.

The scalar is an autograd node with every parameter as an input. Its backward asks torch.autograd.grad for the
gradients the method needs *there*, with the factor that arrives from above (so the scale of a GradScaler protects
half precision), mixes them, and returns one gradient per parameter. `.grad` is touched once, DDP sees each parameter
once, and whoever calls `backward` (a plain loop, Accelerate, Fabric, Lightning) needs to know nothing of it.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch._C._autograd import _get_current_graph_task_keep_graph as _keep_graph
from torch._compile import _disable_dynamo

Gradients = dict[int, Tensor]  # by the identity of their tensor
# Computes the gradients of a step from the factor that arrives from above; the flag asks to keep the graph.
Decide = Callable[[Tensor, bool], Gradients]


class Pass(NamedTuple):
    """One run of autograd: losses with their weights, and the tensors whose gradients are wanted.

    Args:
        losses: What to differentiate; None where a loss was not given.
        weights: One factor per loss, on the device; None means ones.
        tensors: Where the gradients are wanted.
    """

    losses: Sequence[Tensor | None]
    weights: Sequence[Tensor] | None
    tensors: Sequence[Tensor]

    def run(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """Return the gradients; a tensor that no loss reaches has none."""
        factors = self.weights if self.weights is not None else [scale.new_ones(())] * len(self.losses)
        given = [(loss, factor) for loss, factor in zip(self.losses, factors, strict=True) if loss is not None]
        pairs = [(loss, (factor * scale).to(loss.dtype)) for loss, factor in given if loss.requires_grad]
        if not pairs or not self.tensors:
            return {}
        losses, scales = zip(*pairs, strict=True)
        options = {"retain_graph": keep_graph, "create_graph": torch.is_grad_enabled(), "allow_unused": True}
        gradients = torch.autograd.grad(losses, self.tensors, scales, **options)
        return {id(t): g for t, g in zip(self.tensors, gradients, strict=True) if g is not None}


def run_passes(passes: Sequence[Pass], scale: Tensor, *, keep_graph: bool) -> list[Gradients]:
    """Run passes in order. All but the last keep the graph, so the costly one belongs at the end."""
    return [one.run(scale, keep_graph=keep_graph or one is not passes[-1]) for one in passes]


def add(into: Gradients, *others: Gradients) -> Gradients:
    """Add gradients tensor by tensor, in place."""
    for more in others:
        for key, gradient in more.items():
            into[key] = into[key] + gradient if key in into else gradient
    return into


@contextmanager
def hooks_disabled(tensors: Iterable[Tensor]) -> Generator[None]:
    """Disable the tensor hooks of parameters while gradients are taken that are not yet delivered.

    A hook belongs to the gradient that a parameter receives; that one passes it when it is delivered.
    """
    hooked = [tensor._backward_hooks for tensor in tensors if tensor._backward_hooks]
    saved = [dict(hooks) for hooks in hooked]
    for hooks in hooked:
        hooks.clear()  # autograd reads this very dictionary
    try:
        yield
    finally:
        for hooks, before in zip(hooked, saved, strict=True):
            hooks.update(before)


@final
class _Deliver(torch.autograd.Function):
    """A scalar that, differentiated, gives every leaf what ``decide`` says."""

    @staticmethod
    def forward(ctx: Any, decide: Decide, value: Tensor, linear: Callable[[], bool], *leaves: Tensor) -> Tensor:
        ctx.decide, ctx.linear = decide, linear
        ctx.keys = [id(leaf) for leaf in leaves]
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:  # ty: ignore[incompatible-method-override]
        if ctx.decide is None:
            raise RuntimeError(_CALLED_TWICE)
        if torch.is_grad_enabled() and not ctx.linear():
            raise RuntimeError(SECOND_DERIVATIVES)
        decide, keep_graph = ctx.decide, _keep_graph()
        if not keep_graph:
            ctx.decide = ctx.linear = None  # lets go of the graph as soon as it is used
        gradients = decide(scale, keep_graph)
        return (None, None, None, *(gradients.get(key) for key in ctx.keys))


SECOND_DERIVATIVES = (
    "this method shapes gradients after they are taken, so that second derivatives through its loss are not known; "
    "found create_graph=True: take the gradient penalty of the losses themselves and pass it as "
    "balancer(losses, extra={'penalty': …}), or choose mimo, ew or msl, which are exact"
)
_CALLED_TWICE = (
    "backward was called twice on one balanced loss; call the balancer again on fresh losses, or type "
    "loss.backward(retain_graph=True) the first time"
)


@_disable_dynamo  # a compiled step breaks off here: what the backward pass does depends on the graph under it
def deliver(decide: Decide, value: Tensor, leaves: Iterable[Tensor], linear: Callable[[], bool]) -> Tensor:
    """Return a scalar of this value whose backward gives each leaf the gradient that ``decide`` finds for it.

    Args:
        decide: Computes the gradients.
        value: Of the scalar.
        leaves: The tensors that get a gradient.
        linear: Tells whether ``decide`` is a fixed linear map of the losses' gradients, which can be differentiated
            again; asked where second derivatives are wanted.
    """
    return _Deliver.apply(decide, value, linear, *leaves)

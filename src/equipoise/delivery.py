"""The gradient path: one scalar whose backward pass hands every parameter the gradient its method decided on.

The scalar is an autograd node with every parameter as an input. Its backward asks torch.autograd.grad for the
gradients the method needs *there*, with the factor that arrives from above (so the scale of a GradScaler protects
half precision), mixes them, and returns one gradient per parameter. `.grad` is touched once, DDP sees each parameter
once, and whoever calls `backward` (a plain loop, Accelerate, Fabric, Lightning) needs to know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import Node

Gradients = dict[int, Tensor]


@final
class HiddenGraphError(RuntimeError):
    """Gradients taken through part of this graph would be wrong, or it cannot be seen through."""


def leaves_under(
    loss: Tensor,
    compiled: set[tuple[Node, int]] | None = None,
    *,
    ends: Collection[tuple[Node, int]] = (),
    met: set[tuple[Node, int]] | None = None,
) -> dict[int, Tensor]:
    """Every tensor that a loss would send a gradient to, by identity.

    Walked at each call: it costs about a hundredth of the backward pass, and a model may change what it uses.

    Args:
        loss: Where to start.
        compiled: Takes the outputs of compiled graphs that were met, by graph and number.
        ends: Edges of the graph beyond which not to look.
        met: Takes those of them that were met.
    """
    found: dict[int, Tensor] = {}
    if loss.grad_fn is None:
        return {id(loss): loss} if loss.requires_grad else {}
    seen: set[tuple[Node, int]] = set()
    waiting: list[tuple[Node, int]] = [(loss.grad_fn, loss.output_nr)]
    while waiting:
        node, index = waiting.pop()
        if (node, index) in ends:
            if met is not None:
                met.add((node, index))
            continue
        name = node.name()
        through_sink = name == "_DDPSinkBackward"
        if compiled is not None and name == "CompiledFunctionBackward":
            compiled.add((node, index))
        place = (node, index if through_sink else 0)
        if place in seen:
            continue
        seen.add(place)
        if name == "torch::autograd::AccumulateGrad":
            variable: Tensor = node.variable  # ty: ignore[missing-attribute]
            found[id(variable)] = variable
            continue
        if name == "CheckpointFunctionBackward":
            raise HiddenGraphError(_REENTRANT)
        edges = node.next_functions
        if through_sink:
            _refuse_static_graph(node)
            # DDP passes every output of a model through one node; output i comes from input i alone.
            edges = edges[index : index + 1]
        waiting.extend((following, number) for following, number in edges if following is not None)
    return found


_REENTRANT = (
    "this method takes gradients with torch.autograd.grad, through which reentrant activation checkpointing gives "
    "wrong gradients; expected non-reentrant checkpointing, found use_reentrant=True: type "
    "checkpoint(…, use_reentrant=False), or model.gradient_checkpointing_enable({'use_reentrant': False})"
)
STATIC_GRAPH = (
    "this method takes gradients with torch.autograd.grad, which DistributedDataParallel(static_graph=True) turns into "
    "wrong ones; expected static_graph=False: leave the option out"
)


def _refuse_static_graph(sink: Any) -> None:
    wrapper = sink.ddp_weakref()
    if wrapper is not None and wrapper.static_graph:
        raise HiddenGraphError(STATIC_GRAPH)


@final
class Reach:
    """Which leaves each loss reaches, sorted into encoder blocks and heads.

    Args:
        losses: The fused loss and one per modality, in the balancer's order, fused first; None where not given.
        extra: The sum of losses that belong to no modality.
        encoders: Trainable tensors per modality.
    """

    def __init__(
        self, losses: Sequence[Tensor | None], extra: Tensor | None, encoders: Sequence[Sequence[Tensor]]
    ) -> None:
        self.compiled: list[set[tuple[Node, int]]] = [set() for _ in losses]
        self.per_loss = [
            leaves_under(loss, met) if loss is not None else {} for loss, met in zip(losses, self.compiled, strict=True)
        ]
        self.under_extra = leaves_under(extra) if extra is not None else {}
        self.leaves: dict[int, Tensor] = {}
        for found in (*self.per_loss, self.under_extra):
            self.leaves.update(found)
        self.encoders = [[t for t in tensors if id(t) in self.leaves] for tensors in encoders]
        self.frozen = {block for block, tensors in enumerate(encoders) if not tensors}
        self.owners: dict[int, list[int]] = {}
        for block, tensors in enumerate(encoders):
            for tensor in tensors:
                self.owners.setdefault(id(tensor), []).append(block)
        outside = [key for key in self.leaves if key not in self.owners]
        self.fused_heads = [self.leaves[key] for key in outside if key in self.per_loss[0]]
        self.own_heads = [
            self.leaves[key]
            for key in outside
            if key not in self.per_loss[0] and any(key in found for found in self.per_loss[1:])
        ]

    @property
    def heads(self) -> list[Tensor]:
        """Leaves that belong to no encoder and that some loss of the step reaches."""
        return [*self.fused_heads, *self.own_heads]

    def reaches(self, loss: int, block: int) -> bool:
        """Whether loss number ``loss`` (0 is the fused one) sends a gradient into encoder ``block``."""
        return any(id(tensor) in self.per_loss[loss] for tensor in self.encoders[block])

    def separate(self) -> bool:
        """Whether each uni-modal loss reaches its own encoder only, so that one pass serves all of them.

        Encoders that share a parameter are not separate: a loss that reaches one reaches the other.
        """
        blocks = range(len(self.encoders))
        return not any(self.reaches(k + 1, b) for k in blocks for b in blocks if k != b)

    def shared_with_fused(self) -> bool:
        """Whether a uni-modal loss sends a gradient anywhere the fused loss does."""
        return any(key in self.per_loss[0] for found in self.per_loss[1:] for key in found)

    def blurred(self) -> bool:
        """Whether one compiled graph holds heads and gives several losses their outputs: whose heads cannot be told."""
        fused = self.compiled[0]
        mixed = {node for own in self.compiled[1:] for node, _ in own - fused} & {node for node, _ in fused}
        leaves = (following for node in mixed for following, _ in node.next_functions if following is not None)
        variables = (getattr(leaf, "variable", None) for leaf in leaves)
        return any(variable is not None and id(variable) not in self.owners for variable in variables)

    def groups(self) -> list[list[int]]:
        """Encoders that share parameters, together; an encoder that shares nothing, alone."""
        label = list(range(len(self.encoders)))
        for owners in self.owners.values():
            joined = {label[block] for block in owners}
            label = [min(joined) if old in joined else old for old in label]
        return [[b for b, mark in enumerate(label) if mark == first] for first in sorted(set(label))]


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
            allow_unused=True,
        )
        return {id(t): g for t, g in zip(self.tensors, gradients, strict=True) if g is not None}


def _sends_gradient(loss: Tensor | None) -> bool:
    return loss is not None and loss.requires_grad


def run(passes: Sequence[Pass], scale: Tensor) -> list[Gradients]:
    """Run passes in order. All but the last keep the graph, so the costly one belongs at the end."""
    return [step.run(scale, keep_graph=number + 1 < len(passes)) for number, step in enumerate(passes)]


@final
class _Deliver(torch.autograd.Function):
    """A scalar that, differentiated, gives every leaf what ``decide`` says."""

    @staticmethod
    def forward(ctx: Any, decide: Callable[[Tensor], Gradients], value: Tensor, *leaves: Tensor) -> Tensor:
        ctx.decide = decide
        ctx.keys = [id(leaf) for leaf in leaves]
        return value.detach().clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.decide is None:
            msg = "backward was called twice on one balanced loss; call the balancer again on fresh losses"
            raise RuntimeError(msg)
        decide, ctx.decide = ctx.decide, None  # lets go of the graph as soon as it is used
        found = decide(scale)
        return (None, None, *(found.get(key) for key in ctx.keys))


def deliver(decide: Callable[[Tensor], Gradients], value: Tensor, leaves: Iterable[Tensor]) -> Tensor:
    """A scalar of this value whose backward gives each leaf the gradient that ``decide(scale)`` finds for it."""
    return _Deliver.apply(decide, value, *leaves)


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
    return torch.stack(list(torch._foreach_norm(list(gradients)))).isfinite().all()

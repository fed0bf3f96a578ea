"""Which parameters each loss of a step sends a gradient to."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.graph import Node


@final
class HiddenGraphError(RuntimeError):
    """Gradients taken through part of this graph would be wrong, or it cannot be seen through."""


def leaves_under(
    loss: Tensor,
    *,
    ends: Collection[tuple[Node, int]] = (),
    met: set[tuple[Node, int]] | None = None,
) -> dict[int, Tensor]:
    """Every tensor that a loss would send a gradient to, by identity.

    Walked at each call: it costs about a hundredth of the backward pass, and a model may change what it uses.

    Args:
        loss: Where to start.
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
    """The leaves that each loss sends a gradient to, sorted into encoder blocks and heads.

    Args:
        losses: The fused loss and one per modality, in the balancer's order, fused first; None where not given.
        extra: The sum of losses that belong to no modality.
        encoders: Trainable tensors per modality.
        dependence: Remembers which connected leaves a loss really depends on.
    """

    def __init__(
        self,
        losses: Sequence[Tensor | None],
        extra: Tensor | None,
        encoders: Sequence[Sequence[Tensor]],
        dependence: Dependence,
    ) -> None:
        self.per_loss = [leaves_under(loss) if loss is not None else {} for loss in losses]
        self.owners: dict[int, list[int]] = {}
        for block, tensors in enumerate(encoders):
            for tensor in tensors:
                self.owners.setdefault(id(tensor), []).append(block)
        self.frozen = {block for block, tensors in enumerate(encoders) if not tensors}
        suspects = self._suspects(encoders)
        if suspects:
            dependence.prune(losses, self.per_loss, suspects)
        self.under_extra = leaves_under(extra) if extra is not None else {}
        self.leaves: dict[int, Tensor] = {}
        for found in (*self.per_loss, self.under_extra):
            self.leaves.update(found)
        self.encoders = [[t for t in tensors if id(t) in self.leaves] for tensors in encoders]
        fused = self.per_loss[0]
        own = {key: leaf for found in self.per_loss[1:] for key, leaf in found.items() if key not in fused}
        self.beside = list(own.values())
        """Leaves that a uni-modal loss reaches and the fused loss does not."""
        self.fused_heads = [leaf for key, leaf in fused.items() if key not in self.owners]
        self.own_heads = [leaf for key, leaf in own.items() if key not in self.owners]

    def _suspects(self, encoders: Sequence[Sequence[Tensor]]) -> set[int]:
        """Leaves connected to more losses than separate encoders with heads of their own would be."""
        fused, owned = self.per_loss[0].keys(), self.owners.keys()
        found: set[int] = set()
        for number, connected in enumerate(self.per_loss[1:]):
            keys = connected.keys()
            suspects = (keys & fused) - owned
            if number < len(encoders):
                suspects |= (keys & owned) - {id(tensor) for tensor in encoders[number]}
            if suspects:  # a connection that is not its own says nothing about the others either
                found |= suspects | (keys & owned)
        return found

    @property
    def heads(self) -> list[Tensor]:
        """Leaves that belong to no encoder and that some loss of the step reaches."""
        return [*self.fused_heads, *self.own_heads]

    def reaches(self, loss: int, block: int) -> bool:
        """Return True if loss number ``loss`` (0 is the fused one) sends a gradient into encoder ``block``."""
        return any(id(tensor) in self.per_loss[loss] for tensor in self.encoders[block])

    def rows(self) -> list[list[bool]]:
        """Say for each loss which encoders it sends a gradient into, and whether to any leaf outside of them."""
        blocks = range(len(self.encoders))
        return [
            [*(self.reaches(loss, block) for block in blocks), any(key not in self.owners for key in found)]
            for loss, found in enumerate(self.per_loss)
        ]

    def separate(self) -> bool:
        """Return True if each uni-modal loss reaches its own encoder only, so that one pass serves all of them.

        Encoders that share a parameter are not separate: a loss that reaches one reaches the other.
        """
        blocks = range(len(self.encoders))
        return not any(self.reaches(k + 1, b) for k in blocks for b in blocks if k != b)

    def shared_with_fused(self) -> bool:
        """Return True if a uni-modal loss sends a gradient anywhere the fused loss does."""
        return any(not self.per_loss[0].keys().isdisjoint(found) for found in self.per_loss[1:])

    def groups(self) -> list[list[int]]:
        """Group encoders that share parameters; an encoder that shares nothing is alone."""
        label = list(range(len(self.encoders)))
        for owners in self.owners.values():
            if len(owners) > 1:
                joined = {label[block] for block in owners}
                label = [min(joined) if old in joined else old for old in label]
        return [[b for b, mark in enumerate(label) if mark == first] for first in sorted(set(label))]


@final
class Dependence:
    """Remembers which losses a tensor's value enters, where the graph connects it to more losses than that.

    Losses that were cut from one tensor (a vectorised cross-entropy, a compiled step, DataParallel) are all connected
    to every parameter, and the gradients that they do not send are zeros. A zero may also be chance, so NaN is sent
    down the graph instead, once for each such tensor: it arrives wherever a gradient could.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}
        self._living: dict[int, weakref.ref[Tensor]] = {}

    def prune(
        self, losses: Sequence[Tensor | None], connected: Sequence[dict[int, Tensor]], suspects: set[int]
    ) -> None:
        """Drop suspects from the losses that do not depend on them, in place.

        Args:
            losses: The losses of the step.
            connected: The tensors that each is connected to, by identity.
            suspects: The tensors to ask about, by identity.
        """
        pairs = [(number, key) for number, found in enumerate(connected) for key in suspects & found.keys()]
        if not self._known.keys() >= set(pairs):
            self._probe(losses, connected, suspects)
        for number, key in pairs:
            if not self._known[number, key]:
                del connected[number][key]

    def _forget(self, key: int) -> None:
        """Drop what is known of a tensor that is gone: another may get its identity."""
        self._living.pop(key, None)
        for pair in [pair for pair in self._known if pair[1] == key]:
            del self._known[pair]

    def _probe(
        self, losses: Sequence[Tensor | None], connected: Sequence[dict[int, Tensor]], suspects: set[int]
    ) -> None:
        arrived: dict[tuple[int, int], Tensor] = {}
        for number, (loss, found) in enumerate(zip(losses, connected, strict=True)):
            asked = [tensor for key, tensor in found.items() if key in suspects]
            if loss is None or not asked:
                continue
            with torch.autograd.set_detect_anomaly(False), hooks_disabled(asked):
                nan = torch.full_like(loss, torch.nan)
                gradients = torch.autograd.grad(loss, asked, nan, retain_graph=True, allow_unused=True)
            for tensor, gradient in zip(asked, gradients, strict=True):
                arrived[number, id(tensor)] = (
                    loss.new_zeros((), dtype=torch.bool) if gradient is None else _any_nan(gradient)
                )
        answers = dict(zip(arrived, torch.stack(list(arrived.values())).tolist(), strict=True))
        reached = {key for (_, key), answer in answers.items() if answer}
        for (number, key), answer in answers.items():
            # A tensor that nothing reached, such as that of an unused expert, stays with what it is connected to.
            self._known[number, key] = answer or key not in reached
            if key not in self._living:
                self._living[key] = weakref.ref(connected[number][key], lambda _, key=key: self._forget(key))


def _any_nan(gradient: Tensor) -> Tensor:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return values.isnan().any()


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

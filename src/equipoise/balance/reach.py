"""Which parameters each loss of a step sends a gradient to."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from equipoise.balance import collectives
from equipoise.balance.autograd import values_of


@final
class HiddenGraphError(RuntimeError):
    """Gradients taken through part of this graph would be wrong, or it cannot be seen through."""


Place: TypeAlias = "tuple[Node, int]"
"""An output of a node of the graph, by its number."""


def leaves_under(
    loss: Tensor, *, ends: Collection[Place] = (), met: set[Place] | None = None, places: set[Place] | None = None
) -> dict[int, Tensor]:
    """Find every tensor that a loss is connected to, by identity.

    Walked at each call: it costs about a hundredth of the backward pass, and a model may change what it uses.

    Args:
        loss: Where to start.
        ends: Edges of the graph beyond which not to look.
        met: Takes those of them that were met.
        places: Takes every edge that was met.
    """
    if loss.grad_fn is None:
        return {id(loss): loss} if loss.requires_grad else {}
    return _leaves([(loss.grad_fn, loss.output_nr)], ends, met, places)


def _leaves(
    waiting: list[Place], ends: Collection[Place] = (), met: set[Place] | None = None, places: set[Place] | None = None
) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    seen: set[Place] = set()
    while waiting:
        node, index = waiting.pop()
        if (node, index) in ends:
            if met is not None:
                met.add((node, index))
            continue
        if places is not None:
            places.add((node, index))
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
        places: list[set[Place]] = [set() for _ in losses]
        self.per_loss = [
            leaves_under(loss, places=own) if loss is not None else {} for loss, own in zip(losses, places, strict=True)
        ]
        self.owners: dict[int, list[int]] = {}
        for block, tensors in enumerate(encoders):
            for tensor in tensors:
                self.owners.setdefault(id(tensor), []).append(block)
        self.frozen = {block for block, tensors in enumerate(encoders) if not tensors}
        below = _under_cuts(places)
        # Inputs that want gradients are new in every step, and nobody balances them.
        suspects = {key for key, leaf in below.items() if key in self.owners or isinstance(leaf, nn.Parameter)}
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


_PIECES = ("Select", "Slice", "Narrow", "Index", "IndexSelect", "Gather", "Unbind", "Split", "SplitWithSizes", "Chunk")
_CUTS = {f"{kind}Backward0" for kind in _PIECES}


def _under_cuts(places: Sequence[set[Place]]) -> dict[int, Tensor]:
    """Find the leaves below tensors of which losses have each their own piece.

    Such a tensor connects every leaf below it to every loss that has a piece of it: a vectorised cross-entropy, a
    compiled step, DataParallel. Elsewhere being connected and depending are the same.

    Args:
        places: The outputs of nodes that each loss is computed from, the fused loss first.
    """
    nodes = [{node for node, _ in own} for own in places]
    found: dict[int, Tensor] = {}
    met: set[Node] = set()
    for number in range(1, len(places)):
        for one, other in {(number, 0), (0, number), (number, number - 1), (number - 1, number)}:
            for node, _ in places[one] - places[other]:
                if node in met or node.name() == "_DDPSinkBackward":  # of which each output has an input of its own
                    continue
                if node in nodes[other]:  # another output of the same node
                    cut = [node]
                elif node.name() in _CUTS:  # a piece of a tensor that the other loss is computed from as well
                    cut = [following for following, _ in node.next_functions if following in nodes[other]]
                else:
                    continue
                for whole in cut:
                    met.add(node)
                    found.update(_leaves([(whole, 0)]))
    return found


@final
class Dependence:
    """Remembers which losses a tensor's value enters, where the graph connects it to more losses than that.

    The gradients that a piece of a tensor does not send are zeros. A zero may also be chance, so NaN is sent down the
    graph instead: it arrives wherever a gradient could. Some operations stop it, such as a mask that hides a missing
    sensor in a whole batch; so a "no" is asked for again, seldom, and a "yes" is for good.

    Args:
        group: The ranks that have to agree.
    """

    def __init__(self, group: collectives.Group) -> None:
        self.group = group
        self._calls = 0
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
        self._calls += 1
        pairs = [(number, key) for number, found in enumerate(connected) for key in found if key in suspects]
        asks_again = self._calls in (2, 3) or (self._calls >= 8 and self._calls & (self._calls - 1) == 0)
        if any(pair not in self._known for pair in pairs) or (asks_again and _may_wait(losses)):
            self._probe(losses, connected, [pair for pair in pairs if not self._known.get(pair, False)])
        reached = {key for number, key in pairs if self._known[number, key]}
        for number, key in pairs:
            # A tensor that nothing reached yet, such as that of an unused expert, stays with what it is connected to.
            if key in reached and not self._known[number, key]:
                del connected[number][key]

    def _probe(
        self, losses: Sequence[Tensor | None], connected: Sequence[dict[int, Tensor]], pairs: Sequence[tuple[int, int]]
    ) -> None:
        if not pairs:
            return
        arrived: dict[tuple[int, int], Tensor] = {}
        for number, (loss, found) in enumerate(zip(losses, connected, strict=True)):
            asked = [found[key] for place, key in pairs if place == number]
            if loss is None or not asked:
                continue
            with torch.autograd.set_detect_anomaly(False), hooks_disabled(asked):
                nan = torch.full_like(loss, torch.nan)
                gradients = torch.autograd.grad(loss, asked, nan, retain_graph=True, allow_unused=True)
            for tensor, gradient in zip(asked, gradients, strict=True):
                met = loss.new_zeros(()) if gradient is None else values_of(gradient).isnan().any()
                arrived[number, id(tensor)] = met.to(loss.dtype)
        together = collectives.total(torch.stack(list(arrived.values())).float(), self.group)
        for (number, key), answer in zip(arrived, together.tolist(), strict=True):
            self._known[number, key] = answer > 0
            if key not in self._living:
                self._living[key] = weakref.ref(connected[number][key], lambda _, key=key: self._forget(key))

    def _forget(self, key: int) -> None:
        """Drop what is known of a tensor that is gone: another may get its identity."""
        self._living.pop(key, None)
        for pair in [pair for pair in self._known if pair[1] == key]:
            del self._known[pair]


def _may_wait(losses: Sequence[Tensor | None]) -> bool:
    """Return False while a step is recorded, or watched for waits, on a GPU."""
    if not any(loss is not None and loss.is_cuda for loss in losses):
        return True
    return not torch.cuda.is_current_stream_capturing() and torch.cuda.get_sync_debug_mode() == 0


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

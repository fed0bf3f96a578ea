"""The autograd graph of a step: the leaves that each loss is computed from, and the features where encoders end."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from equipoise.balance import collectives
from equipoise.balance.passes import hooks_disabled
from equipoise.balance.tensors import values_of

Leaves = dict[int, Tensor]  # tensors that a graph ends in, by identity
Scalars = Sequence["Tensor | None"]  # with their graph; None where not given
Edge: TypeAlias = "tuple[Node, int]"
"""An output of a node of the graph, by its number."""

_LEAF, _CHECKPOINT = "torch::autograd::AccumulateGrad", "CheckpointFunctionBackward"
_DDP_SINK = "_DDPSinkBackward"
_REENTRANT = (
    "this method takes gradients with torch.autograd.grad, through which reentrant activation checkpointing gives "
    "wrong gradients; expected non-reentrant checkpointing, found use_reentrant=True: type "
    "checkpoint(…, use_reentrant=False), or model.gradient_checkpointing_enable({'use_reentrant': False})"
)
STATIC_GRAPH = (
    "this method takes gradients with torch.autograd.grad, which DistributedDataParallel(static_graph=True) turns into "
    "wrong ones; expected static_graph=False: leave the option out"
)


@final
class HiddenGraphError(RuntimeError):
    """Gradients taken through part of this graph would be wrong, or it cannot be seen through."""


def edges_of(*tensors: Tensor | None) -> list[Edge]:
    """Return the edges that the gradients of some tensors enter the graph by; a tensor without a graph has no edge."""
    edges = [get_gradient_edge(tensor) for tensor in tensors if tensor is not None and tensor.requires_grad]
    return [(edge.node, edge.output_nr) for edge in edges]


def leaves_under(edges: Iterable[Edge], visited: set[Edge] | None = None, ends: Collection[Edge] = ()) -> Leaves:
    """Find every leaf that some edges are connected to.

    Walked at each call: it costs about a hundredth of the backward pass, and a model may change what it uses. Every
    edge that is met is added to ``visited``; below ``ends`` it is not looked.
    """
    leaves: Leaves = {}
    waiting, expanded = list(edges), set()
    visited = set() if visited is None else visited
    while waiting:
        edge = waiting.pop()
        if edge in visited:
            continue
        visited.add(edge)
        node: Any = edge[0]
        if edge in ends or node in expanded:
            continue
        name = node.name()
        if name == _LEAF:
            leaves[id(node.variable)] = node.variable
            continue
        below = node.next_functions
        if name == _DDP_SINK:
            if getattr(node.ddp_weakref(), "static_graph", False):
                raise HiddenGraphError(STATIC_GRAPH)
            # DDP passes every output of a model through one node, of which output i comes from input i alone.
            below = below[edge[1] : edge[1] + 1]
        elif name == _CHECKPOINT:
            raise HiddenGraphError(_REENTRANT)
        else:
            expanded.add(node)
        waiting.extend([one for one in below if one[0] is not None])
    return leaves


@final
class Reach:
    """The leaves that each loss of a step is computed from.

    Args:
        losses: The scalar of each objective; None where it was not given.
    """

    def __init__(self, losses: Scalars) -> None:
        self._visited: list[set[Edge]] = [set() for _ in losses]
        self.per_loss = [leaves_under(edges_of(loss), own) for loss, own in zip(losses, self._visited, strict=True)]

    def overlaps(self) -> bool:
        """Return True if another loss sends a gradient somewhere the fused loss does."""
        return any(not self.per_loss[0].keys().isdisjoint(leaves) for leaves in self.per_loss[1:])

    def prune(
        self, losses: Scalars, dependence: Dependence, encoders: Sequence[Sequence[Tensor]], presence: Tensor | None
    ) -> None:
        """Drop the leaves that losses are connected with, but do not depend on: those of tensors they have pieces of.

        The losses are of all samples, also those that masks hide.
        """
        shared = _leaves_of_shared_tensors(self._visited)
        owned = {id(tensor) for tensors in encoders for tensor in tensors}
        # Inputs that want gradients are new in every step, and are not balanced.
        suspects = {key for key, leaf in shared.items() if key in owned or isinstance(leaf, nn.Parameter)}
        if not suspects:
            return
        connected = [dict(leaves) for leaves in self.per_loss]
        if not dependence.prune(losses, self.per_loss, suspects) or presence is None:
            return
        # A sensor that no sample has stays with the fused loss and its own, and is asked about anew in the next batch:
        # a model may hide it from its fused output, and a user its own loss; in other batches they do not.
        for block, tensors in enumerate(encoders):
            for loss in (0, block + 1):
                lost = {id(t): t for t in tensors if id(t) in connected[loss]}
                if lost and lost.keys().isdisjoint(self.per_loss[loss]) and not bool(presence[block] > 0):
                    self.per_loss[loss] |= lost
                    dependence.forget(loss, lost)


_PIECES = ("Select", "Slice", "Narrow", "Index", "IndexSelect", "Gather", "Unbind", "Split", "SplitWithSizes", "Chunk")
_PIECE_NODES = {f"{kind}Backward0" for kind in _PIECES}


def _leaves_of_shared_tensors(visited: Sequence[set[Edge]]) -> Leaves:
    """Find the leaves below tensors of which losses have each their own piece.

    Such a tensor connects every leaf below it to every loss that has a piece of it: a vectorised cross-entropy, a
    compiled step, DataParallel. Elsewhere being connected and depending are the same.
    """
    nodes = [{node for node, _ in own} for own in visited]
    leaves: Leaves = {}
    searched = set()
    pairs = {(0, number) for number in range(1, len(visited))} | set(pairwise(range(len(visited))))
    for one, other in pairs | {(other, one) for one, other in pairs}:
        if nodes[one].isdisjoint(nodes[other]):  # as of heads on detached features: nothing is shared
            continue
        for node, _ in visited[one] - visited[other]:
            if node in searched or node.name() == _DDP_SINK:  # of which each output has an input of its own
                continue
            if node in nodes[other]:  # another output of the same node
                shared = [node]
            elif node.name() in _PIECE_NODES:  # a piece of a tensor that the other loss is computed from as well
                shared = [below for below, _ in node.next_functions if below in nodes[other]]
            else:
                continue
            for tensor in shared:
                searched.add(node)
                leaves |= leaves_under([(tensor, 0)])
    return leaves


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
        self.unresolved = False
        """True if the last batch told nothing of some tensor: the sensor that its encoder reads may be missing."""
        self._calls = 0
        self._known: dict[tuple[int, int], bool] = {}
        self._living: dict[int, weakref.ref[Tensor]] = {}

    def prune(self, losses: Scalars, connected: Sequence[Leaves], suspects: set[int]) -> bool:
        """Drop suspects from the losses that do not depend on them, in place, and say whether this batch was asked.

        Args:
            losses: The losses of the step.
            connected: The tensors that each is connected to, by identity.
            suspects: The tensors to ask about, by identity.
        """
        self._calls += 1
        pairs = [(number, key) for number, leaves in enumerate(connected) for key in leaves if key in suspects]
        asks_again = self._calls in (2, 3) or (self._calls >= 8 and self._calls & (self._calls - 1) == 0)
        asks = any(pair not in self._known for pair in pairs) or (asks_again and _may_wait(losses))
        if asks:
            self._probe(losses, connected, [pair for pair in pairs if not self._known.get(pair, False)])
        reached = {key for number, key in pairs if self._known[number, key]}
        self.unresolved = not reached.issuperset(suspects)
        for number, key in pairs:
            # A tensor that nothing reached yet, such as that of an unused expert, stays with what it is connected to.
            if key in reached and not self._known[number, key]:
                del connected[number][key]
        return asks

    def _probe(self, losses: Scalars, connected: Sequence[Leaves], pairs: Sequence[tuple[int, int]]) -> None:
        arrived: dict[tuple[int, int], Tensor] = {}
        for number, (loss, leaves) in enumerate(zip(losses, connected, strict=True)):
            asked = [leaves[key] for place, key in pairs if place == number]
            if loss is None or not asked:
                continue
            with torch.autograd.set_detect_anomaly(False), hooks_disabled(asked):
                nan = torch.full_like(loss, torch.nan)
                gradients = torch.autograd.grad(loss, asked, nan, retain_graph=True, allow_unused=True)
            for tensor, gradient in zip(asked, gradients, strict=True):
                met = loss.new_zeros(()) if gradient is None else values_of(gradient).isnan().any()
                arrived[number, id(tensor)] = met.to(loss.dtype)
        if not arrived:
            return
        together = collectives.total(torch.stack(list(arrived.values())).float(), self.group)
        for (number, key), answer in zip(arrived, together.tolist(), strict=True):
            self._known[number, key] = answer > 0
            if key not in self._living:
                self._living[key] = weakref.ref(connected[number][key], lambda _, key=key: self._forget(key))

    def forget(self, loss: int, keys: Iterable[int]) -> None:
        """Ask anew, at the next call, whether a loss depends on some tensors."""
        for key in keys:
            self._known.pop((loss, key), None)

    def _forget(self, key: int) -> None:
        """Drop what is known of a tensor that is gone: another may get its identity."""
        self._living.pop(key, None)
        for pair in [pair for pair in self._known if pair[1] == key]:
            del self._known[pair]


def _may_wait(losses: Scalars) -> bool:
    """Return False while a step is recorded, or watched for waits, on a GPU."""
    if not any(loss is not None and loss.is_cuda for loss in losses):
        return True
    return not torch.cuda.is_current_stream_capturing() and torch.cuda.get_sync_debug_mode() == 0

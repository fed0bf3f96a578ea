"""Parameters that each loss of a step sends a gradient to, and the features where encoders end, read off its graph."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

from equipoise.balance import collectives
from equipoise.balance.autograd import hooks_disabled
from equipoise.balance.losses import Step
from equipoise.balance.theory import values_of
from equipoise.util.graph import DDP_SINK, Edge, edges_of, walk

Leaves = dict[int, Tensor]  # tensors that a graph ends in, by identity
Losses = Sequence["Tensor | None"]

_LEAF, _CHECKPOINT = "torch::autograd::AccumulateGrad", "CheckpointFunctionBackward"
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


def leaves_under(edges: Iterable[Edge], visited: set[Edge] | None = None, ends: Collection[Edge] = ()) -> Leaves:
    """Find every leaf that some edges are connected to.

    Walked at each call: it costs about a hundredth of the backward pass, and a model may change what it uses.

    Args:
        edges: Where to start.
        visited: Takes every edge that was met.
        ends: Edges beyond which not to look.
    """
    leaves: Leaves = {}
    for node, name in walk(edges, (_LEAF, _CHECKPOINT), set() if visited is None else visited, ends):
        if name == _LEAF:
            leaves[id(node.variable)] = node.variable
        elif name == _CHECKPOINT:
            raise HiddenGraphError(_REENTRANT)
        elif getattr(node.ddp_weakref(), "static_graph", False):
            raise HiddenGraphError(STATIC_GRAPH)
    return leaves


@final
class Reach:
    """The leaves that each loss sends a gradient to, sorted into encoder blocks and heads.

    Args:
        step: The losses.
        encoders: Trainable tensors per modality.
        dependence: Remembers which connected leaves a loss really depends on.
        trunk: Trainable tensors of the trunk; none without one.
    """

    def __init__(
        self, step: Step, encoders: Sequence[Sequence[Tensor]], dependence: Dependence, trunk: Sequence[Tensor] = ()
    ) -> None:
        visited: list[set[Edge]] = [set() for _ in step.losses]
        self.per_loss = [leaves_under(edges_of(loss), own) for loss, own in zip(step.losses, visited, strict=True)]
        self.owners: dict[int, list[int]] = {}
        for block, tensors in enumerate(encoders):
            for tensor in tensors:
                self.owners.setdefault(id(tensor), []).append(block)
        self.frozen = {block for block, tensors in enumerate(encoders) if not tensors}
        # Inputs that want gradients are new in every step, and nobody balances them.
        shared = _leaves_of_shared_tensors(visited)
        suspects = {key for key, leaf in shared.items() if key in self.owners or isinstance(leaf, nn.Parameter)}
        if suspects:
            connected = [dict(leaves) for leaves in self.per_loss]
            losses = step.losses if step.unmasked is None else step.unmasked
            if dependence.prune(losses, self.per_loss, suspects) and step.values.presence is not None:
                self._restore_absent(encoders, step.values.presence.tolist(), connected, dependence)
        self.leaves: Leaves = {}
        for leaves in (*self.per_loss, leaves_under(edges_of(step.extra))):
            self.leaves |= leaves
        self.encoders = [[t for t in tensors if id(t) in self.leaves] for tensors in encoders]
        self.has_trunk = bool(trunk)
        self.trunk = [tensor for tensor in trunk if id(tensor) in self.leaves]
        fused = self.per_loss[0]
        own = {key: leaf for leaves in self.per_loss[1:] for key, leaf in leaves.items() if key not in fused}
        self.beside = list(own.values())  # leaves that a uni-modal loss reaches and the fused loss does not
        self.fused_heads = [leaf for key, leaf in fused.items() if key not in self.owners]
        self.own_heads = [leaf for key, leaf in own.items() if key not in self.owners]
        self.heads = [*self.fused_heads, *self.own_heads]  # leaves of no encoder that some loss of the step reaches

    def _restore_absent(
        self,
        encoders: Sequence[Sequence[Tensor]],
        presence: list[float],
        connected: list[Leaves],
        dependence: Dependence,
    ) -> None:
        """Connect a sensor that no sample has with the fused loss and its own again, and ask anew in the next batch.

        A model may hide such a sensor from its fused output, and a user its own loss; in other batches they do not.
        """
        for block, tensors in enumerate(encoders):
            for loss in (0, block + 1):
                lost = {id(t): t for t in tensors if id(t) in connected[loss]}
                if presence[block] == 0 and lost.keys().isdisjoint(self.per_loss[loss]):
                    self.per_loss[loss] |= lost
                    dependence.forget(loss, lost)

    def reaches(self, loss: int, block: int) -> bool:
        """Return True if loss number ``loss`` (0 is the fused one) sends a gradient into encoder ``block``."""
        return any(id(tensor) in self.per_loss[loss] for tensor in self.encoders[block])

    def rows(self) -> list[list[bool]]:
        """Say for each loss which encoders it reaches, whether the trunk where there is one, and whether any head."""
        blocks, trunk = range(len(self.encoders)), {id(tensor) for tensor in self.trunk}
        rows = []
        for loss, leaves in enumerate(self.per_loss):
            shared = [not trunk.isdisjoint(leaves)] if self.has_trunk else []
            heads = any(key not in self.owners and key not in trunk for key in leaves)
            rows.append([*(self.reaches(loss, block) for block in blocks), *shared, heads])
        return rows

    def shares_trunk(self) -> bool:
        """Return True if a uni-modal loss reaches the trunk, so that its gradients there have to be told apart."""
        return any(id(tensor) in leaves for leaves in self.per_loss[1:] for tensor in self.trunk)

    def separate(self) -> bool:
        """Return True if each uni-modal loss reaches its own encoder only, so that one pass serves all of them.

        Encoders that share a parameter are not separate: a loss that reaches one reaches the other.
        """
        blocks = range(len(self.encoders))
        return not any(self.reaches(k + 1, b) for k in blocks for b in blocks if k != b)

    def shared_with_fused(self) -> bool:
        """Return True if a uni-modal loss sends a gradient anywhere the fused loss does."""
        return any(not self.per_loss[0].keys().isdisjoint(leaves) for leaves in self.per_loss[1:])

    def groups(self) -> list[list[int]]:
        """Group encoders that share parameters; an encoder that shares nothing is alone."""
        label = list(range(len(self.encoders)))
        for owners in self.owners.values():
            if len(owners) > 1:
                joined = {label[block] for block in owners}
                label = [min(joined) if old in joined else old for old in label]
        return [[block for block, mark in enumerate(label) if mark == first] for first in sorted(set(label))]


_PIECES = ("Select", "Slice", "Narrow", "Index", "IndexSelect", "Gather", "Unbind", "Split", "SplitWithSizes", "Chunk")
_PIECE_NODES = {f"{kind}Backward0" for kind in _PIECES}


def _leaves_of_shared_tensors(visited: Sequence[set[Edge]]) -> Leaves:
    """Find the leaves below tensors of which losses have each their own piece.

    Such a tensor connects every leaf below it to every loss that has a piece of it: a vectorised cross-entropy, a
    compiled step, DataParallel. Elsewhere being connected and depending are the same.

    Args:
        visited: The edges that each loss is computed from, the fused loss first.
    """
    nodes = [{node for node, _ in own} for own in visited]
    leaves: Leaves = {}
    searched = set()
    pairs = {(0, number) for number in range(1, len(visited))} | set(pairwise(range(len(visited))))
    for one, other in pairs | {(other, one) for one, other in pairs}:
        if nodes[one].isdisjoint(nodes[other]):  # as of heads on detached features: nothing is shared
            continue
        for node, _ in visited[one] - visited[other]:
            if node in searched or node.name() == DDP_SINK:  # of which each output has an input of its own
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
        self._calls = 0
        self._known: dict[tuple[int, int], bool] = {}
        self._living: dict[int, weakref.ref[Tensor]] = {}

    def prune(self, losses: Losses, connected: Sequence[Leaves], suspects: set[int]) -> bool:
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
        for number, key in pairs:
            # A tensor that nothing reached yet, such as that of an unused expert, stays with what it is connected to.
            if key in reached and not self._known[number, key]:
                del connected[number][key]
        return asks

    def _probe(self, losses: Losses, connected: Sequence[Leaves], pairs: Sequence[tuple[int, int]]) -> None:
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


def _may_wait(losses: Losses) -> bool:
    """Return False while a step is recorded, or watched for waits, on a GPU."""
    if not any(loss is not None and loss.is_cuda for loss in losses):
        return True
    return not torch.cuda.is_current_stream_capturing() and torch.cuda.get_sync_debug_mode() == 0


@final
class FeatureCut:
    """The features where the encoders of one step end: the tensors through which they act on the losses.

    Args:
        losses: Of the step; None where not given.
        outputs: The last outputs of each encoder; empty where it is not the one that was attached.
        reach: The leaves that belong to each encoder.
    """

    def __init__(self, losses: Losses, outputs: Sequence[Sequence[Tensor]], reach: Reach) -> None:
        self._reach = reach
        visited: set[Edge] = set()
        ends = set(edges_of(*(tensor for tensors in outputs for tensor in tensors)))
        above = leaves_under(edges_of(*losses), visited, ends)
        self.features = [[t for t in tensors if edges_of(t)[0] in visited] for tensors in outputs]
        self.tensors = _once(tensor for tensors in self.features for tensor in tensors)
        self._bypassed = {block for key in above for block in reach.owners.get(key, ())}

    def groups(self) -> list[tuple[list[int], list[Tensor]]]:
        """Return encoders with their features; encoders that share parameters come together."""
        groups = [(group, _once(t for b in group for t in self.features[b])) for group in self._reach.groups()]
        return [(group, tensors) for group, tensors in groups if tensors]

    def problems(self, modalities: Sequence[str], instead: str, only: Collection[str] | None = None) -> list[str]:
        """Say why this step cannot be decided at features; empty when it can.

        Args:
            modalities: Their names, in the order of the outputs.
            instead: Advice for such a model.
            only: The modalities that are decided on; None for all.
        """
        return [
            f"encoder {name!r} acts on the losses otherwise than by what it gave last: was it called twice, replaced "
            "after attaching (then attach again), compiled together with the heads (then compile the encoders alone), "
            f"or is one of its parameters used elsewhere? For such a model, {instead}"
            for block, name in enumerate(modalities)
            if block in self._bypassed and (only is None or name in only)
        ] + [
            f"encoder {name!r} reads what another encoder gives, or gives one output that was made of another; for "
            f"such a model, {instead}"
            for name, tensors in zip(modalities, self.features, strict=True)
            if self._chained(tensors)
        ]

    def _chained(self, tensors: Sequence[Tensor]) -> bool:
        """Return True if a feature lies under one of these: its gradient would be counted twice."""
        ends = set(edges_of(*self.tensors))
        for tensor in tensors:
            visited: set[Edge] = set()
            others = ends.difference(edges_of(tensor))
            leaves_under(edges_of(tensor), visited, others)
            if visited & others:
                return True
        return False


def _once(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({edges_of(tensor)[0]: tensor for tensor in tensors}.values())

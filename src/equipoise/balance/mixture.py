"""The delivery of methods that mix gradients: at each encoder a mixture that inner products decide."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.coefficients import TRUNK, Coefficients
from equipoise.balance.delivery import Delivery, EncoderGroup
from equipoise.balance.features import FeatureCut
from equipoise.balance.passes import Gradients, Pass, add, hooks_disabled, run_passes
from equipoise.balance.tensors import combined, gram_matrix, wide


class Gram(NamedTuple):
    """Inner products of the gradients of each block.

    Args:
        products: Shape [blocks, n, n].
        objectives: Of each block, the numbers of its n objectives in the order of the table; the fused one comes first.
            n is 2 (fused, own) where each loss reaches its own encoder alone, else K + 1, as it is at a trunk.
    """

    products: Tensor
    objectives: tuple[tuple[int, ...], ...]

    def relative(self) -> Tensor:
        """Return the products of each block in units of its largest."""
        largest = self.products.diagonal(dim1=1, dim2=2).amax(dim=1)[:, None, None]
        return torch.where(largest == 0, self.products, self.products / largest)

    def of(self, values: Tensor) -> Tensor:
        """Arrange one value per objective, [K + 1], as the objectives of each block, [blocks, n]."""
        each = values.unbind()
        return torch.stack([torch.stack([each[number] for number in row]) for row in self.objectives])


@final
class Mixed(Delivery):
    """A mixture of each encoder's gradients that their inner products decide; heads learn from all losses alike.

    Decided at parameters, it takes two passes through encoders, or K + 1 where they are entangled. Decided at features,
    where encoders end, one pass goes on from there: with z = E(x; θ) the features of a batch and J = ∂z/∂θ, the
    gradients at an encoder's parameters are Jᵀv₁, Jᵀv₂, …, where v₁, v₂, … are those at z. Inner products at parameters
    are vᵢᵀ(JJᵀ)vⱼ, inner products at features vᵢᵀvⱼ: a method decides alike by both wherever JJᵀ acts as a multiple of
    the identity on the vᵢ.

    A trunk that uni-modal losses reach learns from a mixture of all K + 1 gradients, decided at its parameters; one
    that they do not reach learns as the fused head does.

    Args:
        arguments: Those of `Delivery`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.separate = self.blocks.separate()
        self.shares_trunk = self.blocks.shares_trunk()
        self._one_sum = self.separate and not self.shares_trunk
        self.cut: FeatureCut | None = None
        if self.balancer.at == "features" and self.attachment is not None:
            hooks = self.attachment.output_hooks()
            self._hooks = [hooks[name] for name in self.names if name in hooks]
            outputs = [[t for t in hook.outputs if t.grad_fn is not None] if hook else [] for hook in self._hooks]
            self.cut = FeatureCut(self.scalars, outputs, self.blocks)

    def problems(self) -> list[str]:
        """Return why the step cannot be decided at features."""
        instead = f"type {type(self.balancer).__name__}(at='parameters')"
        return [] if self.cut is None else self.cut.problems(self.names, instead)

    def gradients(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """Mix the gradients of the objectives at each encoder, or where it ends."""
        blocks, cut = self.blocks, self.cut
        ends = blocks.encoder_tensors if cut is None else cut.tensors
        tensors = [*blocks.fused_head, *blocks.own_heads, *blocks.trunk, *ends]
        # One pass serves all uni-modal losses where no parameter has to tell them apart.
        unimodal = [self.scalars[1:]] if self._one_sum else [[loss] for loss in self.scalars[1:]]
        passes = [Pass(losses, None, tensors) for losses in (self.scalars[:1], *unimodal)]
        # The hooks of features are run by the pass that goes on from there.
        with nullcontext() if cut is None else hooks_disabled(cut.tensors):
            results = run_passes([*self.extra_pass(), *passes], scale, keep_graph=keep_graph or cut is not None)
        extra = results.pop(0) if self.step.extra is not None else {}
        trunk = self._take(results, blocks.trunk) if self.shares_trunk else []
        at_ends = {id(tensor) for tensor in ends}
        heads = add(extra, *({key: one for key, one in result.items() if key not in at_ends} for result in results))
        objectives = self.averaged(results, ends) if cut is None else results
        shared = [gradient for part in trunk for gradient in part]
        self.move([*heads.values(), *shared, *(one for result in objectives for one in result.values())])
        groups = self.groups(objectives[0]) if cut is None else cut.groups()
        mix = self._at_parameters if cut is None else partial(self._at_features, keep_graph=keep_graph)
        return add(mix(groups, objectives, trunk), heads)

    def _take(self, results: Sequence[Gradients], tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        """Take the gradients at some tensors out of those of each objective, averaged over ranks."""
        own = self.averaged(results, tensors)
        for result in results:
            for tensor in tensors:
                result.pop(id(tensor), None)
        return [[gradients[id(tensor)] for tensor in tensors] for gradients in own]

    def _own(self, objectives: Sequence[Gradients], group: Sequence[int]) -> list[Gradients]:
        """Return the gradients that are mixed at some encoders."""
        if not self.separate:
            return list(objectives)
        return [objectives[0], objectives[1 if self._one_sum else group[0] + 1]]

    def _at_parameters(
        self, groups: Sequence[EncoderGroup], objectives: Sequence[Gradients], trunk: Sequence[Sequence[Tensor]]
    ) -> Gradients:
        parts = [[[one[id(t)] for t in tensors] for one in self._own(objectives, group)] for group, tensors in groups]
        mixtures, of_trunk = self._decided(groups, [gram_matrix(part) for part in parts], trunk)
        delivered: Gradients = {}
        if of_trunk is not None:
            mixed = self.balancer.transformed(TRUNK, combined(trunk, of_trunk), trunk)
            delivered.update(zip(map(id, self.blocks.trunk), mixed, strict=True))
        for (group, tensors), part, coefficients in zip(groups, parts, mixtures, strict=True):
            mixed = self.balancer.transformed(self.names[group[0]], combined(part, coefficients), part)
            delivered.update(zip(map(id, tensors), mixed, strict=True))
        return delivered

    def _at_features(
        self,
        groups: Sequence[EncoderGroup],
        objectives: Sequence[Gradients],
        trunk: Sequence[Sequence[Tensor]],
        *,
        keep_graph: bool,
    ) -> Gradients:
        rows = [torch.stack([_row(tensors, one) for one in self._own(objectives, group)]) for group, tensors in groups]
        # Each rank has samples of its own, so that the inner products over all samples are sums over ranks.
        grams = list(collectives.mean_of_each([row @ row.T for row in rows], self.balancer.group)) if rows else []
        mixtures, of_trunk = self._decided(groups, grams, trunk)
        # Not transformed: at features, a method says all of it by its coefficients.
        combination = [] if of_trunk is None else combined(trunk, of_trunk)
        delivered = dict(zip(map(id, self.blocks.trunk if combination else ()), combination, strict=True))
        mixed = [
            piece.view_as(tensor).to(tensor.dtype)
            for (_, tensors), row, coefficients in zip(groups, rows, mixtures, strict=True)
            for tensor, piece in zip(tensors, (coefficients @ row).split([t.numel() for t in tensors]), strict=True)
        ]
        leaves = self.blocks.encoder_tensors
        if mixed and leaves:  # not all are frozen
            features = [tensor for _, tensors in groups for tensor in tensors]
            gradients = torch.autograd.grad(features, leaves, mixed, keep_graph, allow_unused=True)
            delivered |= {id(t): g for t, g in zip(leaves, gradients, strict=True) if g is not None}
        if not keep_graph and self.cut is not None:  # outputs that were used would hold on to the graph of the step
            used = {id(tensor) for tensors in self.cut.features for tensor in tensors}
            for hook in self._hooks:
                if hook is not None and any(id(tensor) in used for tensor in hook.outputs):
                    hook.outputs = []
        return delivered

    def _decided(
        self, groups: Sequence[EncoderGroup], grams: Sequence[Tensor], trunk: Sequence[Sequence[Tensor]]
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return the method's coefficients for each group, and for a trunk that is shared; keep them for the table."""
        every = tuple(range(1 + len(self.names)))
        numbers = tuple((0, group[0] + 1) if self.separate else every for group, _ in groups)
        method, losses = cast("Any", self.balancer), self.step.losses
        mixtures = list(method.mixed(Gram(torch.stack(list(grams)), numbers), losses)) if grams else []
        of_trunk = method.mixed(Gram(gram_matrix(trunk)[None], (every,)), losses)[0] if trunk else None
        like = next(iter(mixtures), self.step.losses.fused)
        owners = [group for group, _ in groups]
        self.balancer.answered = partial(_answer, like, len(self.names), owners, numbers, mixtures, of_trunk)
        return mixtures, of_trunk


def _answer(
    like: Tensor,
    modalities: int,
    groups: Sequence[Sequence[int]],
    numbers: Sequence[Sequence[int]],
    mixtures: Sequence[Tensor],
    trunk: Tensor | None,
) -> Coefficients:
    """Return the coefficients that mixtures stand for. Heads learn from every loss at weight one."""
    encoders = like.new_zeros(1 + modalities, modalities)
    for group, objectives, mixture in zip(groups, numbers, mixtures, strict=True):
        for row, coefficient in zip(objectives, mixture.unbind(), strict=True):
            for block in group:
                encoders[row, block] = coefficient
    return Coefficients(encoders, fused_head=like.new_ones(1 + modalities), trunk=trunk)


def _row(tensors: Sequence[Tensor], gradients: Gradients) -> Tensor:
    """Lay the gradient of one objective at all features of a group side by side, in float64: features are small."""
    pieces = [gradients.get(id(tensor), torch.zeros_like(tensor)) for tensor in tensors]
    return torch.cat([piece.detach().reshape(-1).to(wide(tensors)) for piece in pieces])

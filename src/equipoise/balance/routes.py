"""The routes from losses to gradients, one class each.

Encoders learn from the fused loss (`FusedRoute`), from a weighted sum (`WeightedRoute`), each from a sum of its own
(`TableRoute`), or from a mixture that their gradients decide, taken at their parameters (`ParameterMixture`) or at
their outputs (`FeatureMixture`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.attach import Attachment, tensors_held
from equipoise.balance.autograd import Gradients, Pass, add, deliver, hooks_disabled, run_passes
from equipoise.balance.graph import Dependence, FeatureCut, Reach
from equipoise.balance.losses import TRUNK, Step, Weights
from equipoise.balance.method import ScheduledMethod
from equipoise.balance.samples import SampleFactors
from equipoise.balance.theory import all_finite, combined, gram_matrix, scaled, wide

# Encoders that are decided on together, and where their gradients were taken.
Group: TypeAlias = "tuple[list[int], list[Tensor]]"


class Route(ABC):
    """One step on the gradient path.

    Args:
        method: The balancer whose step it is.
        attachment: The model; None for a method that needs no encoders.
        step: The losses, and the method's decision.
        dependence: Remembers which connected parameters a loss really depends on.
    """

    def __init__(
        self, method: ScheduledMethod, attachment: Attachment | None, step: Step, dependence: Dependence
    ) -> None:
        self.method, self.attachment, self.step, self.losses = method, attachment, step, step.losses
        parameters = attachment.parameters() if attachment is not None else {}
        encoders = [parameters[name] for name in method.modalities if name in parameters]
        self.reach = Reach(step, encoders, dependence, attachment.trunk() if attachment is not None else ())
        self.encoder_tensors = list({id(t): t for block in self.reach.encoders for t in block}.values())
        self.updates = attachment.updates if attachment is not None else []
        self._advanced = False

    def scalar(self) -> Tensor:
        """Return a scalar of the objective's value whose backward pass does the method's work."""
        value = self.step.value if self.step.extra is None else self.step.value + self.step.extra.detach()
        return deliver(self._deliver, value, self.reach.leaves.values(), linear=not self.method.needs_encoders)

    def _deliver(self, scale: Tensor, keep_graph: bool) -> Gradients:
        with hooks_disabled(self.reach.leaves.values()):
            gradients = self.gradients(scale, keep_graph=keep_graph)
        self._advanced = True
        return gradients

    @abstractmethod
    def gradients(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """Compute the gradient of every leaf, times the factor that arrives from above."""

    def problems(self) -> list[str]:
        """Say why this model and method do not fit; empty when they do."""
        method, reach, problems = self.method, self.reach, []
        learns_from_own = method.unimodal == "head" or method.route in {"weighted", "table"}
        for block, name in enumerate(method.modalities[: len(reach.encoders)]):
            if block in reach.frozen:
                continue
            if method.route in {"fused", "gram"} and not reach.reaches(0, block):
                problems.append(f"the fused loss sends no gradient to encoder {name!r}: is it the module that ran?")
            if learns_from_own and not reach.reaches(block + 1, block):
                problems.append(
                    f"loss {name!r} sends no gradient to encoder {name!r}, which this method needs: compute it on the "
                    f"encoder's own features, not on detached ones (LateFusion(…, unimodal={method.unimodal!r}))"
                )
            if method.modulates and not any(map(method.touches, reach.encoders[block])):
                problems.append(f"encoder {name!r} has no tensor that this method modulates; choose parameters='all'")
        return problems

    def extra_pass(self) -> list[Pass]:
        """Return the pass of the losses that belong to no modality, which count at weight one everywhere."""
        return [] if self.step.extra is None else [Pass([self.step.extra], None, list(self.reach.leaves.values()))]

    def advance(self, gradients: Sequence[Tensor], factors: Tensor | None = None) -> None:
        """Move the method's state on, and note the factors for the optimiser, once for each call of the balancer."""
        method = self.method
        if self._advanced or not (method.advances or (factors is not None and self.updates)):
            return
        finite = all_finite(gradients) if gradients else self.step.values.fused.isfinite()
        finite = collectives.all_true(finite, method.group)
        if method.advances:
            method.advance_once(self.step.values, finite)
        if factors is not None:
            for update in self.updates:
                update.note(dict(zip(method.modalities, factors.unbind(), strict=True)), finite)

    def split(self, gradients: Gradients) -> tuple[Gradients, Gradients]:
        """Separate the gradients of encoders from those of heads."""
        owned = {key: gradient for key, gradient in gradients.items() if key in self.reach.owners}
        return owned, {key: gradient for key, gradient in gradients.items() if key not in owned}

    def groups(self, gradients: Gradients) -> list[Group]:
        """Return encoders with their tensors that have a gradient; encoders that share parameters come together."""
        encoders = self.reach.encoders
        groups = [
            (group, list({id(t): t for block in group for t in encoders[block] if id(t) in gradients}.values()))
            for group in self.reach.groups()
        ]
        return [(group, tensors) for group, tensors in groups if tensors]

    def averaged(self, results: Sequence[Gradients], tensors: Sequence[Tensor] | None = None) -> list[Gradients]:
        """Average gradients over ranks, zeros where a loss does not reach: what decisions rest on.

        Args:
            results: The gradients of some objectives.
            tensors: Where; None for the encoders.
        """
        tensors = self.encoder_tensors if tensors is None else tensors
        whole = [result[id(t)] if id(t) in result else torch.zeros_like(t) for result in results for t in tensors]
        means = iter(collectives.mean_of_each(whole, self.method.group))
        return [{id(tensor): next(means) for tensor in tensors} for _ in results]


class _SumRoute(Route):
    """Encoders learn from a sum of losses, times a factor each: one pass through them.

    Args:
        arguments: Those of `Route`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        factors, attachment = self.step.factors, self.attachment
        self.samples = None
        if factors and attachment is not None:
            self.samples = SampleFactors(factors, self.losses, attachment, self.reach, self.method.modalities)

    def problems(self) -> list[str]:
        """Say why this model and method do not fit, or why its samples can have no factors of their own."""
        own = [] if self.samples is None else self.samples.problems()
        return super().problems() or own

    @abstractmethod
    def passes(self, weights: Weights) -> tuple[list[Pass], list[Pass]]:
        """Return the passes of a step through heads alone, and those through the encoders, each through some."""

    def gradients(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """Compute the sum, scale each encoder by its factor, and let the method refine it."""
        method, weights = self.method, self.step.weights
        assert weights is not None
        through_heads, through_encoders = self.passes(weights)
        others = run_passes([*self.extra_pass(), *through_heads], scale, keep_graph=True)
        with nullcontext() if self.samples is None else self.samples.applied(keep_graph=keep_graph):
            last = run_passes(through_encoders, scale, keep_graph=keep_graph)
        encoders, heads = self.split(add(*last))
        if method.refines:
            (encoders,) = self.averaged([encoders])
        factors = self._factors(weights) if method.modulates else None
        self.advance([gradient for result in (encoders, heads, *others) for gradient in result.values()], factors)
        # The factor of these acts on the optimiser's update and not on the gradient.
        scaled_later = {id(tensor) for update in self.updates for tensor in tensors_held(update.optimizer)}
        if factors is not None:
            self._scale_head_parts(heads, factors, scaled_later)
        if factors is not None or method.refines:
            encoders = self._modulated(encoders, factors, scaled_later)
        return add(encoders, *others, heads)

    def _factors(self, weights: Weights) -> Tensor | None:
        """Return the factor of each encoder; encoders that share parameters get the mean of theirs."""
        shared = [group for group in self.reach.groups() if len(group) > 1]
        if weights.encoders is None or not shared:
            return weights.encoders
        # Picked one by one: a list as an index would be copied to the device, and the device would wait.
        factors, means = weights.encoders.unbind(), {}
        for group in shared:
            means |= dict.fromkeys(group, torch.stack([factors[block] for block in group]).mean())
        together = torch.stack([means.get(block, factor) for block, factor in enumerate(factors)])
        self.method.fill_weights(weights._replace(encoders=together))
        return together

    def _modulated(self, gradients: Gradients, factors: Tensor | None, scaled_later: set[int]) -> Gradients:
        method = self.method
        delivered: Gradients = {}
        for group, tensors in self.groups(gradients):
            mixed = own = [gradients[id(tensor)] for tensor in tensors]
            scales = [id(tensor) not in scaled_later and method.touches(tensor) for tensor in tensors]
            if factors is not None and any(scales):
                moved = scaled(own, factors[group[0]])
                mixed = [new if scale else old for new, old, scale in zip(moved, own, scales, strict=True)]
            if method.refines:
                mixed = method.refined(method.modalities[group[0]], mixed, [own])
            delivered.update(zip(map(id, tensors), mixed, strict=True))
        return delivered

    def _scale_head_parts(self, heads: Gradients, factors: Tensor, scaled_later: set[int]) -> None:
        """Scale each modality's part of the fused head as its encoder, where the method does so."""
        parts = self.attachment.head_parts() if self.attachment is not None else {}
        copied: set[int] = set()
        for block, name in enumerate(self.method.modalities):
            for part in parts.get(name, []):
                key = id(part.tensor)
                if key not in heads or key in scaled_later or not self.method.touches(part.tensor):
                    continue
                if key not in copied:
                    heads[key] = heads[key].clone()
                    copied.add(key)
                part.of(heads[key]).mul_(factors[block].to(heads[key].dtype))


@final
class FusedRoute(_SumRoute):
    """Encoders and the fused head learn from the fused loss; uni-modal losses train what it does not reach."""

    def passes(self, weights: Weights) -> tuple[list[Pass], list[Pass]]:
        """Return one pass for the uni-modal losses, and one for the fused loss."""
        on_heads, reach = weights.on_heads.unbind(), self.reach
        beside = Pass(self.losses[1:], on_heads[1:], reach.beside)
        return [beside], [Pass(self.losses[:1], on_heads[:1], [*reach.fused_heads, *self.encoder_tensors])]


@final
class WeightedRoute(_SumRoute):
    """Encoders learn from their own weighted sum of all losses, heads from another."""

    def passes(self, weights: Weights) -> tuple[list[Pass], list[Pass]]:
        """Return passes for the heads, and one for the encoders."""
        on_heads, reach = weights.on_heads.unbind(), self.reach
        encoders = Pass(self.losses, weights.losses.unbind(), self.encoder_tensors)
        if self.method.unimodal == "head" or self.method.shares_train_heads:
            return [Pass(self.losses, on_heads, reach.heads)], [encoders]
        # The uni-modal outputs are shares of the fused head: it learns from the fused loss alone.
        own_heads = Pass(self.losses[1:], on_heads[1:], reach.own_heads)
        return [own_heads, Pass(self.losses[:1], on_heads[:1], reach.fused_heads)], [encoders]


@final
class TableRoute(_SumRoute):
    """Each encoder learns from a weighted sum of its own: a pass each, which goes through no other separate encoder."""

    def passes(self, weights: Weights) -> tuple[list[Pass], list[Pass]]:
        """Return a pass for the heads, and one for each encoder; those that share parameters have the mean weights."""
        heads, columns = Pass(self.losses, weights.on_heads.unbind(), self.reach.heads), weights.losses.unbind(dim=1)
        through = []
        for group in self.reach.groups():
            tensors = list({id(tensor): tensor for block in group for tensor in self.reach.encoders[block]}.values())
            column = torch.stack([columns[block] for block in group]).mean(dim=0)
            through.append(Pass(self.losses, column.unbind(), tensors))
        return [heads], through


class _MixtureRoute(Route):
    """Encoders learn from a mixture that their gradients decide, heads from every loss at weight one.

    A trunk that uni-modal losses reach learns from a mixture of all K + 1 gradients; one that they do not reach learns
    from the fused loss, as a head does.
    """

    def run(self, tensors: Sequence[Tensor], scale: Tensor, *, keep_graph: bool) -> list[Gradients]:
        """Return the gradients of the extra losses, then those of each objective.

        The objectives are the fused loss and the sum of all the others, or each of them where encoders are entangled
        or share a trunk.
        """
        unimodal = [self.losses[1:]] if self._one_sum() else [[loss] for loss in self.losses[1:]]
        objectives = [Pass(losses, None, tensors) for losses in (self.losses[:1], *unimodal)]
        results = run_passes([*self.extra_pass(), *objectives], scale, keep_graph=keep_graph)
        return [{}, *results] if self.step.extra is None else results

    def own_objectives(self, group: Sequence[int]) -> list[int]:
        """Return the numbers of the objectives whose gradients are mixed at some encoders."""
        if not self.reach.separate():
            return list(range(len(self.losses)))
        return [0, 1] if self._one_sum() else [0, group[0] + 1]

    def decided(self, groups: Sequence[Group], grams: Sequence[Tensor], shared: Tensor | None) -> list[Tensor]:
        """Return the method's coefficients for each group and for a shared trunk, and fill the table with them.

        Args:
            groups: The encoders.
            grams: Inner products of the gradients of each group, [n, n].
            shared: Those of the trunk, [K + 1, K + 1]; None where it is not shared.
        """
        mixtures = list(self._mixed(torch.stack(list(grams)))) if grams else []
        count, has_trunk = len(self.method.modalities), self.reach.has_trunk
        like = next(iter(mixtures), self.step.values.fused)
        table = like.new_zeros(count + 1, count + 1 + has_trunk)
        table[:, -1] = 1
        if has_trunk:
            table[0, -2] = 1
        for (group, _), coefficients in zip(groups, mixtures, strict=True):
            for block in group:
                rows = [0, block + 1] if self.reach.separate() else range(count + 1)
                for row, coefficient in zip(rows, coefficients.unbind(), strict=True):
                    table[row, block] = coefficient
        if shared is not None:
            mixtures.append(self._mixed(shared[None])[0])
            table[:, -2] = mixtures[-1]
        self.method.fill(table)
        return mixtures

    def trunk_parts(self, results: Sequence[Gradients]) -> list[list[Tensor]]:
        """Take the gradients of a shared trunk out of those of each objective, averaged over ranks; none without one.

        Args:
            results: The gradients of each objective.
        """
        if not self.reach.shares_trunk():
            return []
        own = self.averaged(results, self.reach.trunk)
        for result in results:
            for tensor in self.reach.trunk:
                result.pop(id(tensor), None)
        return [[gradients[id(tensor)] for tensor in self.reach.trunk] for gradients in own]

    def _one_sum(self) -> bool:
        """Return True if one pass serves all uni-modal losses."""
        return self.reach.separate() and not self.reach.shares_trunk()

    def _mixed(self, gram: Tensor) -> Tensor:
        largest = gram.diagonal(dim1=1, dim2=2).amax(dim=1)[:, None, None]
        return self.method.mixed(torch.where(largest == 0, gram, gram / largest))


@final
class ParameterMixture(_MixtureRoute):
    """The mixture is decided at parameters: two passes through encoders, or K + 1 where they are entangled."""

    def gradients(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """Mix the gradients of the objectives at each encoder, and let the method refine the mixture."""
        method = self.method
        extra, *results = self.run([*self.reach.heads, *self.encoder_tensors], scale, keep_graph=keep_graph)
        trunk = self.trunk_parts(results)
        split = [self.split(result) for result in results]
        heads = add(extra, *(own for _, own in split))
        objectives = self.averaged([encoders for encoders, _ in split])
        shared = [gradient for part in trunk for gradient in part]
        self.advance([*heads.values(), *shared, *(gradient for one in objectives for gradient in one.values())])
        groups = self.groups(objectives[0])
        parts = [
            [[objectives[row][id(t)] for t in tensors] for row in self.own_objectives(group)]
            for group, tensors in groups
        ]
        grams = [gram_matrix(part) for part in parts]
        mixtures = self.decided(groups, grams, gram_matrix(trunk) if trunk else None)
        delivered: Gradients = {}
        if trunk:
            mixed = method.refined(TRUNK, combined(trunk, mixtures.pop()), trunk)
            delivered.update(zip(map(id, self.reach.trunk), mixed, strict=True))
        for (group, tensors), part, coefficients in zip(groups, parts, mixtures, strict=True):
            mixed = method.refined(method.modalities[group[0]], combined(part, coefficients), part)
            delivered.update(zip(map(id, tensors), mixed, strict=True))
        return add(delivered, heads)


@final
class FeatureMixture(_MixtureRoute):
    """The mixture is decided where encoders end, and one pass goes on from there into the encoders.

    With z = E(x; θ) the features of a batch and J = ∂z/∂θ, the gradients at an encoder's parameters are Jᵀv₁, Jᵀv₂, …,
    where v₁, v₂, … are those at z. Inner products at parameters are vᵢᵀ(JJᵀ)vⱼ, inner products at features vᵢᵀvⱼ: a
    method decides alike by both wherever JJᵀ acts as a multiple of the identity on the vᵢ.

    Args:
        arguments: Those of `Route`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        hooks = self.attachment.output_hooks() if self.attachment is not None else {}
        self._hooks = [hooks[name] for name in self.method.modalities if name in hooks]
        outputs = [[t for t in hook.outputs if t.grad_fn is not None] if hook else [] for hook in self._hooks]
        self.cut = FeatureCut(self.losses, outputs, self.reach)

    def problems(self) -> list[str]:
        """Say why this model and method do not fit, or why the step cannot be decided at features."""
        instead = f"type {type(self.method).__name__}(at='parameters')"
        return super().problems() or self.cut.problems(self.method.modalities, instead)

    def gradients(self, scale: Tensor, *, keep_graph: bool) -> Gradients:
        """Run passes through the heads alone, mix the gradients at features, then run one pass through the encoders."""
        with hooks_disabled(self.cut.tensors):  # they are run by the pass that goes on from there
            extra, *results = self.run([*self.reach.heads, *self.cut.tensors], scale, keep_graph=True)
        trunk = self.trunk_parts(results)
        shared = [gradient for part in trunk for gradient in part]
        self.advance([*shared, *(gradient for result in results for gradient in result.values())])
        groups = self.cut.groups()
        rows = [
            torch.stack([_row(tensors, results[number]) for number in self.own_objectives(group)])
            for group, tensors in groups
        ]
        # Each rank has samples of its own, so that the inner products over all samples are sums over ranks.
        grams = list(collectives.mean_of_each([row @ row.T for row in rows], self.method.group)) if rows else []
        mixtures = self.decided(groups, grams, gram_matrix(trunk) if trunk else None)
        # Not refined: at features, a method says all of it by its coefficients.
        combination = combined(trunk, mixtures.pop()) if trunk else []
        of_trunk = dict(zip(map(id, self.reach.trunk if trunk else ()), combination, strict=True))
        mixed = [
            piece.view_as(tensor).to(tensor.dtype)
            for (_, tensors), row, coefficients in zip(groups, rows, mixtures, strict=True)
            for tensor, piece in zip(tensors, (coefficients @ row).split([t.numel() for t in tensors]), strict=True)
        ]
        delivered: Gradients = {}
        if mixed and self.encoder_tensors:  # not all are frozen
            features = [tensor for _, tensors in groups for tensor in tensors]
            gradients = torch.autograd.grad(features, self.encoder_tensors, mixed, keep_graph, allow_unused=True)
            delivered = {id(t): g for t, g in zip(self.encoder_tensors, gradients, strict=True) if g is not None}
        heads = {id(tensor) for tensor in self.reach.heads}
        on_heads = [{key: gradient for key, gradient in result.items() if key in heads} for result in results]
        if not keep_graph:  # outputs that were used would hold on to the graph of the step
            used = {id(tensor) for tensors in self.cut.features for tensor in tensors}
            for hook in self._hooks:
                if hook is not None and any(id(tensor) in used for tensor in hook.outputs):
                    hook.outputs = []
        return add(delivered, of_trunk, extra, *on_heads)


def _row(tensors: Sequence[Tensor], gradients: Gradients) -> Tensor:
    """Lay the gradient of one objective at all features of a group side by side, in float64: features are small."""
    pieces = [gradients.get(id(tensor), torch.zeros_like(tensor)) for tensor in tensors]
    return torch.cat([piece.detach().reshape(-1).to(wide(tensors)) for piece in pieces])


def route_of(method: ScheduledMethod) -> type[Route]:
    """Return the class of the route that a method takes."""
    if method.route == "gram":
        return FeatureMixture if method.at == "features" else ParameterMixture
    by_name: dict[str, type[Route]] = {"fused": FusedRoute, "table": TableRoute}
    return by_name.get(method.route, WeightedRoute)

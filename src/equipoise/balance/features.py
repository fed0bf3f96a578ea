"""Deciding at features: gradients are compared where encoders end, and one pass goes on from there into the encoders.

With z = E(x; θ) what an encoder gives for a batch and J = ∂z/∂θ, the gradients at its parameters are Jᵀv₁, Jᵀv₂, …,
where v₁, v₂, … are those at z. Inner products at parameters are vᵢᵀ(JJᵀ)vⱼ, inner products at features vᵢᵀvⱼ: a method
decides alike by both wherever JJᵀ acts as a multiple of the identity on the vᵢ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from equipoise.balance import autograd, collectives
from equipoise.balance.autograd import Gradients
from equipoise.balance.reach import Reach, hooks_disabled, leaves_under

if TYPE_CHECKING:
    from equipoise.balance.routes import Step


@final
class Tap:
    """A forward hook that remembers what a module gave last, where gradients will be asked for.

    A copy of a watched module gets a hook that remembers nothing: nobody would ever ask it.
    """

    def __init__(self) -> None:
        self.given: list[Tensor] = []
        self._awake = True

    def __call__(self, module: Any, inputs: Any, output: Any) -> None:  # noqa: ARG002
        """Remember an output."""
        if self._awake and torch.is_grad_enabled():
            self.given = [tensor for tensor in _tensors_in(output) if tensor.requires_grad]

    def __getstate__(self) -> dict[str, Any]:
        return {"given": [], "_awake": False}


def _tensors_in(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (list, tuple, Mapping)):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors_in(part)


@final
class Cut:
    """Where the encoders of one step end: the tensors through which they act on the losses.

    Args:
        losses: Of the step; None where not given.
        taps: One per encoder; None where the encoder is not the one that was attached.
        reach: Which leaves belong to which encoder.
    """

    def __init__(self, losses: Sequence[Tensor | None], taps: Sequence[Tap | None], reach: Reach) -> None:
        self._taps, self._reach = [tap for tap in taps if tap is not None], reach
        given = [[t for t in tap.given if t.grad_fn is not None] if tap is not None else [] for tap in taps]
        ends = {_edge(tensor) for tensors in given for tensor in tensors}
        met: set[Any] = set()
        above = [leaves_under(loss, ends=ends, met=met) for loss in losses if loss is not None]
        self.features = [[tensor for tensor in tensors if _edge(tensor) in met] for tensors in given]
        self._around = {block for found in above for key in found for block in reach.owners.get(key, ())}

    @property
    def tensors(self) -> list[Tensor]:
        """Every feature once."""
        return _once(tensor for tensors in self.features for tensor in tensors)

    def groups(self) -> list[tuple[list[int], list[Tensor]]]:
        """Encoders with their features; encoders that share parameters come together."""
        blocks = self._reach.groups()
        together = [(group, _once(t for block in group for t in self.features[block])) for group in blocks]
        return [(group, tensors) for group, tensors in together if tensors]

    def problems(self, modalities: Sequence[str], method: str) -> list[str]:
        """Why this step cannot be decided at features, in sentences; empty when it can."""
        instead = f"type {method}(at='parameters')"
        found = [
            f"encoder {name!r} acts on the losses otherwise than by what it gave last: was it called twice, replaced "
            "after attaching (then attach again), compiled together with the heads (then compile the encoders alone), "
            f"or is one of its parameters used elsewhere? For such a model, {instead}"
            for block, name in enumerate(modalities)
            if block in self._around
        ]
        found += [
            f"encoder {name!r} reads what another encoder gives, or gives one output that was made of another; for "
            f"such a model, {instead}"
            for name, tensors in zip(modalities, self.features, strict=True)
            if self._chained(tensors)
        ]
        return found

    def let_go(self) -> None:
        """Forget what was given, once it has been used: it would hold on to the graph of the step."""
        used = {id(tensor) for tensors in self.features for tensor in tensors}
        for tap in self._taps:
            if any(id(tensor) in used for tensor in tap.given):
                tap.given = []

    def _chained(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a feature lies under one of these: its gradient would be counted twice."""
        ends, met = {_edge(tensor) for tensor in self.tensors}, set()
        for tensor in tensors:
            leaves_under(tensor, ends=ends - {_edge(tensor)}, met=met)
        return bool(met)


def _edge(tensor: Tensor) -> tuple[Any, int]:
    return tensor.grad_fn, tensor.output_nr


def _once(tensors: Iterator[Tensor]) -> list[Tensor]:
    return list({_edge(tensor): tensor for tensor in tensors}.values())


def mixture(step: Step, cut: Cut, scale: Tensor, *, keep_graph: bool) -> Gradients:
    """The gradients of a step decided at features: passes through the heads alone, then one through the encoders."""
    separate = step.reach.separate()
    objectives = step.objectives([*step.reach.heads, *cut.tensors], separate=separate)
    passes = [*step.extra_pass(), *objectives]
    with hooks_disabled(cut.tensors):  # they are run by the pass that goes on from there
        results = autograd.run(passes, scale, keep_graph=True)
    extra, results = results[: -len(objectives)], results[-len(objectives) :]
    step.advance([gradient for result in results for gradient in result.values()])
    found = _into_encoders(step, cut, results, separate=separate, keep_graph=keep_graph)
    heads = {id(tensor) for tensor in step.reach.heads}
    on_heads = [{key: gradient for key, gradient in each.items() if key in heads} for each in results]
    for more in (*extra, *on_heads):
        autograd.add(found, more)
    if not keep_graph:
        cut.let_go()
    return found


def _into_encoders(
    step: Step, cut: Cut, results: Sequence[Gradients], *, separate: bool, keep_graph: bool
) -> Gradients:
    groups = cut.groups()
    rows = [torch.stack([_row(tensors, found) for found in results]) for _, tensors in groups]
    if not rows:
        step.fill([], None, separate=separate)
        return {}
    # Each rank has samples of its own, so that the inner products over all samples are sums over ranks.
    (gram,) = collectives.mean_of_each([torch.stack([row @ row.T for row in rows])], step.method.group)
    coefficients = step.decided(groups, gram, separate=separate)
    mixed = [
        piece.view_as(tensor).to(tensor.dtype)
        for (_, tensors), row, weights in zip(groups, rows, coefficients.unbind(), strict=True)
        for tensor, piece in zip(tensors, (weights @ row).split([t.numel() for t in tensors]), strict=True)
    ]
    if not step.encoder_tensors:  # all are frozen
        return {}
    features = [tensor for _, tensors in groups for tensor in tensors]
    gradients = torch.autograd.grad(features, step.encoder_tensors, mixed, retain_graph=keep_graph, allow_unused=True)
    return {id(t): g for t, g in zip(step.encoder_tensors, gradients, strict=True) if g is not None}


def _row(tensors: Sequence[Tensor], found: Gradients) -> Tensor:
    """The gradient of one objective at all features of a group, side by side; features are small enough for float64."""
    wide = autograd.wide(tensors)
    pieces = [found.get(id(tensor), torch.zeros_like(tensor)) for tensor in tensors]
    return torch.cat([piece.detach().reshape(-1).to(wide) for piece in pieces])

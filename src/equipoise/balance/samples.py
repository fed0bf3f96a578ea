"""A factor of each sample on the gradient where an encoder ends, from a score of that sample."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, final

import torch
from torch import nn

from equipoise.balance.graph import FeatureCut, leaves_under
from equipoise.util.graph import edges_of

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.balance.attach import Attachment
    from equipoise.balance.graph import Losses, Reach
    from equipoise.balance.losses import LossValues, Tensors
    from equipoise.balance.method import ScheduledMethod


def sample_scores(method: ScheduledMethod, scores: Tensors) -> dict[str, Tensor]:
    """Return the scores that a method reads, NaN for those out of range, which is then reported; zero elsewhere."""
    known = {name: torch.as_tensor(scores[name]) for name in method.scored_samples}
    known = {name: torch.where((score >= 0) & (score <= 1), score, torch.nan) for name, score in known.items()}
    nothing = next(iter(known.values())).new_zeros(())  # on their device: a copy from the host would make it wait
    return {name: known.get(name, nothing) for name in method.modalities}


def sample_factors(
    method: ScheduledMethod, values: LossValues, scores: Tensors | None, present: Tensors | None
) -> dict[str, Tensor] | None:
    """Return the factors of a step's samples by modality, within the method's epochs; None where nothing is learnt."""
    if not torch.is_grad_enabled():
        return None
    factors = {}
    for name in method.scored_samples:
        score = torch.as_tensor((scores or {})[name]).detach().to(values.fused)
        if name in (present or {}):  # what stands in the scores of the others, also NaN, changes nothing
            mean = values.scores[method.modalities.index(name)]
            score = score.where((present or {})[name].bool(), mean)
        factors[name] = method.gated(method.sample_factors(name, score))
    return factors


@final
class SampleFactors:
    """Multiplies the gradient of each sample on its way from the losses into an encoder.

    With z_i = E(x_i; θ) the features of sample i and g_i the gradient there, that of the encoder becomes Σ_i c_i J_iᵀ
    g_i, J_i = ∂z_i/∂θ: what the loss Σ_i c_i f_i would give, if nothing but this encoder learnt from it. It costs no
    pass of its own.

    Args:
        factors: One number per sample [B], by modality.
        losses: Of the step; None where not given.
        attachment: The model.
        reach: The leaves that belong to each encoder.
        modalities: All of them.
    """

    def __init__(
        self, factors: Tensors, losses: Losses, attachment: Attachment, reach: Reach, modalities: Sequence[str]
    ) -> None:
        self._factors, self._reach, self._modalities = factors, reach, modalities
        self._hooks = attachment.output_hooks()
        watched = [self._hooks.get(name) for name in modalities]
        outputs = [[t for t in hook.outputs if t.grad_fn is not None] if hook else [] for hook in watched]
        self._cut = FeatureCut(losses, outputs, reach)
        self.features = {name: own for name, own in zip(modalities, self._cut.features, strict=True) if own}

    def problems(self) -> list[str]:
        """Say why the samples of this step can have no factors of their own; empty when they can."""
        problems = self._cut.problems(self._modalities, "choose a method without factors per sample", [*self._factors])
        for name, features in self.features.items():
            block, under = self._modalities.index(name), leaves_under(edges_of(*features))
            foreign = [leaf for key, leaf in under.items() if block not in self._reach.owners.get(key, ())]
            if any(isinstance(leaf, nn.Parameter) for leaf in foreign):  # an input that wants gradients may be there
                problems.append(
                    f"encoder {name!r} reads what other parameters of the model give, which its factors would act on "
                    f"too; name all of it as its encoder: attach(model, encoders={{{name!r}: …}})"
                )
            count, wrong = len(self._factors[name]), [list(one.shape) for one in features]
            if any(shape[:1] != [count] for shape in wrong):
                problems.append(
                    f"encoder {name!r}: expected outputs whose first axis is that of the {count} samples that have a "
                    f"score, found outputs of shape {', '.join(map(str, wrong))}"
                )
        return problems

    @contextmanager
    def applied(self, *, keep_graph: bool) -> Generator[None]:
        """Multiply every gradient that passes the features inside of the context.

        Args:
            keep_graph: Whether another pass may follow; else the features are let go of, which hold on to the graph.
        """
        pairs = [(tensor, self._factors[name]) for name, own in self.features.items() for tensor in own]
        handles = [tensor.register_hook(partial(_times, factor)) for tensor, factor in pairs]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if not keep_graph:
            used = {id(tensor) for tensor, _ in pairs}
            for hook in self._hooks.values():
                if hook is not None and any(id(tensor) in used for tensor in hook.outputs):
                    hook.outputs = []


def _times(factor: Tensor, gradient: Tensor) -> Tensor:
    """Multiply in single precision at least, where the gradient has less."""
    return (gradient * factor.view(-1, *[1] * (gradient.dim() - 1))).to(gradient.dtype)

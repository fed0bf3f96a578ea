"""What a method answers. Four questions shape a step; the rest have answers that suit most methods."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from equipoise.balance.losses import LossValues
from equipoise.balance.routes import Weights
from equipoise.balance.state import PerModality

Route: TypeAlias = Literal["loss", "fused", "weighted", "gram"]
View: TypeAlias = Literal["head", "detached", "split"]


class MethodHooks(PerModality):
    """The questions that a balancer asks its method, and what it needs to know of it beforehand."""

    route: Route = "loss"
    """How encoders learn: "loss" (one weighted sum for all parameters), "fused" (from the fused loss, times a factor),
    "weighted" (from their own weighted sum, times a factor), "gram" (from a mixture that their gradients decide)."""
    at: Literal["parameters", "features"] = "parameters"
    """Where the "gram" route takes the gradients that decide: at an encoder's parameters, or at its output."""
    unimodal: ClassVar[View | None] = "head"
    """Which uni-modal outputs the method wants a model to offer."""
    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Values worth trying for each parameter, for tuning that gives every method the same number of trials."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Metrics per modality that `end_epoch` must be given."""
    needs_fused: ClassVar[bool] = True
    needs_unimodal: ClassVar[bool] = True
    needs_encoders: bool = True
    """Whether a method off the "loss" route has to know the encoders."""
    logarithmic_scores: ClassVar[bool] = False
    modulates: bool = False
    """True if `weigh` answers with a factor per encoder that acts on gradients or updates."""
    scales_heads: bool = False
    """True if the factor of an encoder also acts on its modality's part of an additive fused head."""
    refines: ClassVar[bool] = False
    restores: ClassVar[bool] = False
    """Whether the method puts encoders back itself after a step of the optimiser."""
    without_optimizer: ClassVar[str] = (
        "this method multiplies gradients, which Adam and its kin divide out again; with such an optimiser, type "
        "balancer.attach(…, optimizer=optimizer), and it will scale the updates instead"
    )
    advances: ClassVar[bool] = False
    """Whether the method keeps state that moves with every step that was not skipped."""

    def weigh(self, values: LossValues) -> Weights:
        """What the losses weigh, from their values. Every method but those on the "gram" route answers this."""
        raise NotImplementedError(type(self).__name__)

    def mix(self, gram: Tensor) -> Tensor:
        """How the gradients of each encoder mix.

        Args:
            gram: Inner products of the gradients at every encoder, shape [blocks, n, n], scaled so that the largest
                is one; entry 0 is the fused objective. n is 2 (fused, own) where encoders are separate, else K + 1.

        Returns:
            Coefficients of shape [blocks, n].
        """
        raise NotImplementedError(type(self).__name__)

    def refine(self, modality: str, mixed: list[Tensor], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:  # noqa: ARG002
        """A last change to the gradient of one encoder, tensor by tensor.

        Args:
            modality: Whose encoder it is.
            mixed: The gradient that the table gives.
            parts: The gradients it was made of, one list of tensors per objective.
        """
        return mixed

    def learn(self, metrics: dict[str, Tensor]) -> None:
        """What the end of an epoch teaches. ``metrics`` holds what ``needs`` names, one value per modality."""

    def score(self, losses: Tensor) -> Tensor:
        """A modality's score from the losses of its samples, for methods that compare modalities."""
        return losses.mean()

    def act(self, losses: Mapping[str, Tensor], weights: Weights, *, scored: bool) -> None:
        """Act on the graph of a step, once its weights are known, fresh or held.

        Args:
            losses: As they were passed, with their graph.
            weights: The method's decision.
            scored: True if scores were passed beside the losses.
        """

    def attached(self, model: nn.Module | None) -> None:
        """Called when a model was attached, unwrapped; the place to choose a form that fits it."""

    @property
    def remarks(self) -> dict[str, str]:
        """Remarks for a row of results on how the method ran, beyond its parameters."""
        return {}

    def touches(self, tensor: Tensor) -> bool:  # noqa: ARG002
        """Whether the factor of an encoder applies to this tensor of it."""
        return True

    def advance(self, values: LossValues, finite: Tensor) -> None:
        """Move the state on by a step; ``finite`` says, on the device, whether the step will be taken."""

    def stepped(self, taken: Tensor | int = 1) -> None:
        """Called after each step of the attached optimiser; ``taken`` is 0 where a fused one skipped it inside."""

    @property
    def phase(self) -> Hashable | None:
        """What a step depends on besides tensors that change in place.

        A step that was recorded into a CUDA graph is recorded again when this changes. None: a step is never recorded;
        so it is for every method that keeps a `host_state` and does not answer this.
        """
        return () if type(self).host_state is PerModality.host_state else None

    def generators(self) -> list[torch.Generator]:
        """What the method draws from in a step, besides the device's own generator."""
        return []

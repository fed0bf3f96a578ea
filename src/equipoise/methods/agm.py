"""AGM: modulate each modality by how far ahead it is now, compared with how far it usually is."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights, mean_of_others
from equipoise.util.errors import BadInput
from equipoise.util.graph import scaled_responses

_WORST = -math.log(1e-8)  # probabilities are not read below 1e-8
_LARGEST = 80.0


@final
class ApproximationWarning(UserWarning):
    """A method runs in an approximate form because the attached model does not allow the published one."""


@final
class AGM(Balancer):
    """Adaptive gradient modulation.

    The fused output is a sum of responses φ_m, one per modality, and the gradient that φ_m receives is multiplied by
    κ_m = exp(α · min(τ_m − r_m, cap)). r_m = exp(mean_{j≠m} s_j − s_m) says how far modality m is ahead in this batch,
    s_m the loss of φ_m; τ_m says the same of ŝ_m, the mean of s_m over all earlier steps. Whoever is further ahead than
    usual is slowed. Outside its epochs the factor is one.

    φ_m is the Shapley value of modality m. For a `LateFusion` whose fused output is a sum over modalities, without
    batch statistics and dropout, it is known from each encoder's response to zero input, and ``form="published"`` is
    the authors' update, encoders and fused head. Any other model has to be wrapped in `ShapleyResponses`, which runs
    their 2^K forward passes: ``AGM(responses=model)``.

    ``form="fast"`` is an approximation for any attached model: encoder m moves along κ_m · ∇f_mm, with s_m the loss
    that it is given for modality m. It leaves out the factors on the fused head, and what reaches encoders through zero
    input and through batch statistics of evaluation mode; with biases its κ_m differ, since s_m is not the loss of φ_m.

    Tasks: any. s_m is the loss of φ_m against the label. A number that is a sum of responses is not met by one of them,
    but the loss still says how much of the standardised number φ_m explains: it falls from φ_m = 0 on, until φ_m is all
    of it.

    Paper: Li et al., "Boosting Multi-modal Model Performance with Adaptive Gradient Modulation" (ICCV 2023).
    Cost: one backward pass. In the published form each encoder also reads one sample of zeros.

    Args:
        strength: α. The authors' example uses 2.5 for AV-MNIST, and they name 1.5 for CREMA-D.
        cap: Largest value of τ − r; the authors have 10 for CREMA-D, 7 for UR-FUNNY, none elsewhere.
        start: First epoch that modulates.
        stop: First epoch that no longer does. The authors' default is 20.
        responses: The model wrapped in `ShapleyResponses`, for models that are no such `LateFusion`.
        form: "published", "fast", or None for the published form where the attached model and the losses allow it and
            the fast one, with a warning, where they do not. The published form acts on gradients under every
            optimiser, as the authors' code does; the fast one scales the updates of Adam and its variants.

    Example:
        >>> from equipoise import LateFusion
        >>> encoders = {"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}
        >>> model = LateFusion(encoders, classes=2, unimodal="split")
        >>> balancer = AGM().attach(model)
        >>> outputs = model({"audio": torch.ones(1, 3), "video": torch.ones(1, 5)})
        >>> losses = {name: logits.square().mean(1) for name, logits in outputs.items()}
        >>> loss = balancer(losses, scores={"audio": torch.tensor(0.5), "video": torch.tensor(1.0)})
        >>> round(float(balancer.table.at("fused", "audio")), 4)  # exp(1 − e^0.5), since τ starts at one
        0.5227
    """

    route = "fused"
    unimodal = "split"
    search: ClassVar = {"strength": (0.3, 1.0, 2.5)}
    advances = True
    mean_score: Tensor
    steps: Tensor

    def __init__(
        self,
        strength: float = 1.0,
        cap: float | None = 10.0,
        start: int = 0,
        stop: int | None = None,
        responses: nn.Module | None = None,
        form: Literal["published", "fast"] | None = None,
    ) -> None:
        super().__init__(start=start, stop=stop)
        self.check_arguments(
            (strength >= 0, "strength should be zero or more", strength),
            (responses is None or form != "fast", "form should not be 'fast' where responses are given", form),
        )
        self.strength, self.cap = strength, math.inf if cap is None else cap
        self._asked = form
        self._wrapped = responses is not None
        self._take("fast" if responses is None else "published")
        self.add_state("mean_score")
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def attached(self, model: nn.Module | None) -> None:
        """Choose the form that was asked for, or that the model allows."""
        if self._wrapped or self._asked == "fast":
            return
        late_fusion = _giving_responses(model)
        unknown = ["it is no LateFusion, the kind that is known"]
        problems = unknown if late_fusion is None else late_fusion.response_problems()
        if problems:
            why = "the published update needs each modality's response, which this model does not give: "
            why += "; ".join(problems)
            instead = "wrap the model, ShapleyResponses(model, names), and type AGM(responses=…), or AGM(form='fast')"
            if self._asked == "published":
                raise BadInput(f"AGM: {why}; {instead}")
            if not self._warned:
                self._warned = True
                warnings.warn(f"AGM takes its approximate form: {why}; {instead}", ApproximationWarning, stacklevel=4)
            self._take("fast")
        else:
            late_fusion.respond(self)
            self._take("published")

    def _take(self, form: Literal["published", "fast"]) -> None:
        self.form = form
        # The published factors act inside the model, on the responses; the balancer then has nothing to scale.
        self.modulates = self.needs_encoders = form == "fast"

    @property
    def remarks(self) -> dict[str, str]:
        """The form that was taken."""
        left_out = ": an approximation without factors on the fused head and responses to zero input"
        return {"form": self.form + (left_out if self.form == "fast" else "")}

    def score(self, losses: Tensor) -> Tensor:
        """The mean loss, with no sample counted beyond a probability of 1e-8."""
        return losses.clamp(max=_WORST).mean()

    def weigh(self, values: LossValues) -> Weights:
        """A factor from now and from the history before this step."""
        usual = self.mean_score.to(values.scores.dtype)
        ahead_now = (mean_of_others(values.scores) - values.scores).exp()
        ahead_usually = (mean_of_others(usual) - usual).exp()
        exponent = self.strength * (ahead_usually - ahead_now).clamp(max=self.cap)
        factors = self.gated(exponent.clamp(max=_LARGEST).exp())
        return Weights.joint(values, factors)

    def act(self, losses: Mapping[str, Tensor], weights: Weights, *, scored: bool) -> None:
        """Write the factors to where the gradients of the responses will pass."""
        if self.form == "fast":
            return
        places = scaled_responses(losses["fused"])
        if not places:
            raise RuntimeError(
                "AGM: the fused loss was not computed from responses: expected the attached LateFusion in training "
                "mode, or ShapleyResponses; if one of them was copied, or another balancer was attached to the model, "
                "type balancer.attach(model) again"
            )
        if not (scored or self._wrapped):
            given = [place for place in places if place.modality in losses and place.source[0] is not None]
            foreign = [place.modality for place in given if not place.enters(losses[place.modality])]
            if foreign:
                self._fall_back(foreign)
                return
        assert weights.encoders is not None
        by_name = dict(zip(self.modalities, weights.encoders.unbind(), strict=True))
        for place in places:
            place.factor.copy_(by_name[place.modality])

    def _fall_back(self, modalities: Sequence[str]) -> None:
        """Take the approximate form where losses are those of other heads; refuse if the published one was asked."""
        why = (
            f"the losses of {', '.join(map(repr, modalities))} were not computed from responses, which the published "
            "update reads: expected the outputs of LateFusion(…, unimodal='split'), the shares of "
            "model.with_shares(inputs), or scores={…}"
        )
        if self._asked == "published":
            raise RuntimeError(f"AGM: {why}; for the losses of other heads, type AGM(form='fast')")
        warnings.warn(f"AGM takes its approximate form: {why}", ApproximationWarning, stacklevel=5)
        self._take("fast")
        if self._attachment is not None:
            late_fusion = _giving_responses(self._attachment.model)
            if late_fusion is not None:
                late_fusion.respond(None)
            self._attachment.follow(self)  # the optimisers, which the published form left alone

    def advance(self, values: LossValues, finite: Tensor) -> None:
        """ŝ becomes the mean over all steps that were taken, this one included."""
        counted = self.steps + finite
        share = finite / counted.clamp(min=1)
        self.mean_score.lerp_(values.scores.to(self.mean_score.dtype), share.to(self.mean_score.dtype))
        self.steps.copy_(counted)


def _giving_responses(model: nn.Module | None) -> Any:
    """Return the model if it can be asked for Shapley responses, as a `LateFusion` can."""
    return model if hasattr(model, "response_problems") else None

"""AGM: modulate each modality by how far ahead it is now, compared with how far it usually is."""

import math
from typing import Annotated, Literal, final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Coefficients, Losses, mean_of_others
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried

_LARGEST = 80.0


@final
class AGM(Weighting):
    """Adaptive gradient modulation.

    The fused output is a sum of responses φ_m, one per modality, and the gradient that φ_m receives is multiplied by
    κ_m = exp(α · min(τ_m − r_m, cap)). r_m = exp(mean_{j≠m} s_j − s_m) says how far modality m is ahead in this batch,
    s_m the loss of φ_m; τ_m says the same of ŝ_m, the mean of s_m over all earlier steps. Whoever is further ahead than
    usual is slowed. Outside its epochs the factor is one.

    φ_m is the Shapley value of modality m: `with_responses` of an additive `LateFusion` without batch statistics and
    dropout knows it from each encoder's response to zero input, and `ShapleyResponses` runs the authors' 2^K forward
    passes of any other model. In the published form the K objectives ⟨∂f_mm/∂φ_m, φ_m⟩ (`response_losses`) are given as
    ``further``: their gradients add up to that of f_mm, and each is weighed by κ_m, at encoders and fused head alike.

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
        form: "published", "fast", or None for the published form where responses are given and the fast one, with a
            warning, where they are not. The published form acts on gradients under every optimiser, as the authors'
            code does; the fast one scales the updates of Adam and its variants.

    Example:
        >>> from equipoise import LateFusion
        >>> from equipoise.models import response_losses
        >>> encoders = {"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}
        >>> model = LateFusion(encoders, classes=2, unimodal="split")
        >>> balancer = AGM(form="published")
        >>> outputs, responses = model.with_responses({"audio": torch.ones(1, 3), "video": torch.ones(1, 5)})
        >>> losses = {name: logits.square().mean(1) for name, logits in outputs.items()}
        >>> further = response_losses(losses["fused"], responses)
        >>> scores = {"audio": torch.tensor(0.5), "video": torch.tensor(1.0)}
        >>> balancer(losses, further=further, scores=scores).backward()
        >>> round(float(balancer.answer.encoders[3]), 4)  # of response audio: exp(1 − e^0.5), since τ starts at one
        0.5227
    """

    mean_score: Tensor
    seen: Tensor

    def __init__(
        self,
        strength: Annotated[float, Tried(0.3, 1.0, 2.5)] = 1.0,
        cap: float | None = 10.0,
        start: int = 0,
        stop: int | None = None,
        form: Literal["published", "fast"] | None = None,
    ) -> None:
        super().__init__(start=start, stop=stop)
        self.check_arguments((strength >= 0, "strength should be zero or more", strength))
        self.strength, self.cap = strength, math.inf if cap is None else cap
        published = form == "published"
        self.needs = Needs(
            unimodal="share",
            learns_from_own=False,
            encoders=not published,
            factors=not published,
            scores=("bounded loss",),
            further="" if form == "fast" else "response",
            instead="" if form is not None else "its approximate form",
        )
        self.add_state("mean_score")
        self.add_state("seen")  # steps in which the sensor was there

    def weigh(self, losses: Losses) -> Coefficients:
        """A factor from now and from the history before this step."""
        usual = self.mean_score.to(losses.scores.dtype)
        ahead_now = (mean_of_others(losses.scores) - losses.scores).exp()
        ahead_usually = (mean_of_others(usual) - usual).exp()
        exponent = self.strength * (ahead_usually - ahead_now).clamp(max=self.cap)
        factors = exponent.clamp(max=_LARGEST).exp()
        if losses.further is None and (self.needs.instead or not self.needs.further):
            return Coefficients.joint(losses, factors)
        nothing = torch.zeros_like(factors)
        modulated = torch.cat([nothing[:1], nothing, self.gated(factors)])
        own = torch.cat([nothing[:1], torch.ones_like(factors), nothing])
        return Coefficients(modulated, own_heads=own, value=losses.fused)

    def on_backward(self, losses: Losses, finite: Tensor) -> None:
        """ŝ becomes the mean over all steps that were taken with the sensor, this one included."""
        here = finite if losses.presence is None else finite & (losses.presence > 0)
        self.seen += here
        share = here / self.seen.clamp(min=1)
        self.mean_score.lerp_(losses.scores.to(self.mean_score.dtype), share)

    @property
    def remarks(self) -> dict[str, str]:
        """A note for a row of results: the form that was taken."""
        published = not self.needs.factors or (self.answer is not None and not self.answer.is_alone)
        left_out = ": an approximation without factors on the fused head and responses to zero input"
        return {"form": "published" if published else "fast" + left_out}

"""ARL: unequal learning on purpose, each modality as fast as the variance of its answers suggests."""

from typing import Annotated, Literal, final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Coefficients, Losses, mean_of_others
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried

_LEAST = 0.6  # of an even share: the authors' 0.3, for two modalities
_REGRESSION = (
    "ARL lets each modality learn to meet the target with its share of the fused output alone; shares of a number add "
    "up, so that they cannot all meet it; choose ew or mlb"
)


@final
class ARL(Weighting):
    """Asymmetric representation learning: encoders learn faster the surer their modality and the larger the others.

    Encoder k moves along (1 + K/2 · w_k) · ∇(f_mm + γ f_k), heads along ∇(f_mm + γ Σ_j f_j), with w =
    softmax_k(T · K²/4 · c_k · h_k). f_mm is the fused loss, f_k the loss of modality k, that of its share of the fused
    output (``LateFusion(…, unimodal="split")``). h_k is the inverse entropy of modality k: the mean entropies of its
    answers, divided by their sum over modalities and not counted below 0.6/K, are inverted, and divided by their sum
    again. c_k is the mean magnitude of the other modalities' outputs, as shares of the sum.

    A share is W_k h_k + b/K, so that shares add up. The authors' f_k is the loss of the fused head with zeros for the
    other modalities, W_k h_k + b: the two differ where the bias b is not small.

    For two modalities this is the authors' rule, with a factor 1 + w_k and a floor of 0.3. For others K/2 and 0.6/K
    keep the mean factor at 1.5 and the floor at the same part of an even share, and K²/4 lets equal relative
    differences count the same. One modality alone has factor one. Outside its epochs γ and all factors are one.

    The released code computes w and does not use it: both weights stay 0.5. That is ``form="released"``.

    Tasks: classes and labels; a label's probability has an entropy, and their mean counts. No regression: shares of a
    number add up to it, and cannot each meet it alone.

    Paper: Wei et al., "Improving Multimodal Learning via Imbalanced Learning" (ICCV 2025).
    Cost: one backward pass.

    Args:
        weight: γ. The authors use 4 for CREMA-D, 5 for AVE and 3 for Kinetics-Sounds.
        sharpness: T. The authors use 8 for CREMA-D and 4 for AVE.
        form: "published", or "released" for factors of 1.5 whatever the scores; then none need to be passed.
        start: First epoch that modulates. The authors begin with the seventh, ``start=6``.
        stop: First epoch that no longer does.

    Example:
        >>> from equipoise import LateFusion
        >>> encoders = {"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}
        >>> model = LateFusion(encoders, classes=2, unimodal="split")
        >>> balancer = ARL().attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> losses = {name: logits.square().mean(1) for name, logits in outputs.items()}
        >>> scores = {"audio": torch.tensor([0.4, 1.0]), "video": torch.tensor([0.6, 3.0])}  # entropy, magnitude
        >>> balancer(losses, scores=scores).backward()
        >>> round(float(balancer.table.at("fused", "audio")), 4)  # 1 + 1 / (1 + exp(−8 · (0.75 · 0.6 − 0.25 · 0.4)))
        1.9427
    """

    def __init__(
        self,
        weight: Annotated[float, Tried(1.0, 2.0, 4.0)] = 4.0,
        sharpness: float = 8.0,
        form: Literal["published", "released"] = "published",
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        super().__init__(start=start, stop=stop)
        self.check_arguments(
            (weight > 0, "weight should be above zero", weight),
            (sharpness >= 0, "sharpness should be zero or more", sharpness),
        )
        self.weight, self.sharpness, self.form = weight, sharpness, form
        scores = ("loss",) if form == "released" else ("entropy", "magnitude")
        self.needs = Needs(unimodal="share", factors=True, scores=scores, tasks={"regression": _REGRESSION})

    def weigh(self, losses: Losses) -> Coefficients:
        """A factor above one for every encoder, the larger the surer its modality and the larger the others."""
        count = len(losses.unimodal)
        if self.form == "released" or count == 1:
            factors = torch.full_like(losses.unimodal, 1.0 if count == 1 else 1.5)
        else:
            entropy, magnitude = (_shares(column) for column in losses.scores.unbind(dim=1))
            sureness = _shares(entropy.clamp(min=_LEAST / count).reciprocal())
            products = mean_of_others(magnitude) * sureness
            factors = 1 + count / 2 * (self.sharpness * count**2 / 4 * products).softmax(dim=0)
        regularised = self.gated(torch.full_like(losses.unimodal, self.weight))
        weights = torch.cat([torch.ones_like(losses.fused)[None], regularised])
        return Coefficients(weights, factors=factors)


def _shares(values: Tensor) -> Tensor:
    """Divide by the sum; even shares of nothing."""
    total = values.sum()
    return torch.where(total == 0, 1 / len(values), values / total)

"""DGL: encoders learn from their own losses, the fused head from the fused one."""

from typing import Annotated, final

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried

# Encoders and fused head would pull a number two ways: K shares that each meet it add up to K times of it.
_REGRESSION = (
    "DGL lets each encoder learn to meet the target with its share of the fused output alone; shares of a number add "
    "up, so that they cannot all meet it, and features grow without end; choose ew or mlb"
)


@final
class DGL(Weighting):
    """Disentangled gradient learning: encoders learn from uni-modal losses, the fused head from the fused one.

    Encoder m moves along α · ∇f_m, the fused head along ∇f_mm. f_m is the loss of modality m, that of its share of the
    fused output (``LateFusion(…, unimodal="split")``); dedicated uni-modal heads, where there are any, follow their own
    losses. A share is W_m h_m + b/K, so that shares add up. The authors' f_m is the loss of the fused head with zeros
    for the other modalities, W_m h_m + b: the two differ where the bias b is not small.

    Tasks: classes and labels. No regression where f_m is the loss of a share: shares of a number add up to it, and
    cannot each meet it alone.

    Paper: Wei et al., "Boosting Multimodal Learning via Disentangled Gradient Learning" (ICCV 2025).
    Cost: one backward pass.

    Args:
        weight: α. The authors use 4 to 5 for CREMA-D and 2 to 3 for Kinetics-Sounds.

    Example:
        >>> import torch
        >>> from equipoise import LateFusion
        >>> encoders = {"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}
        >>> model = LateFusion(encoders, classes=2, unimodal="split")
        >>> balancer = DGL().attach(model)
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> balancer({name: logits.square().mean() for name, logits in outputs.items()}).backward()
    """

    needs = Needs(unimodal="share", tasks={"regression": _REGRESSION})

    def __init__(self, weight: Annotated[float, Tried(1.0, 2.0, 4.0)] = 4.0) -> None:
        super().__init__()
        self.check_arguments((weight > 0, "weight should be above zero", weight))
        self.weight = weight

    def weigh(self, losses: Losses) -> Coefficients:
        """On encoders α for uni-modal losses and nothing for the fused one; on each head its own loss."""
        ones = losses.weights(1.0, 1.0)
        weights, value = losses.weights(0.0, self.weight), losses.fused + self.weight * losses.unimodal.sum()
        return Coefficients(weights, fused_head=ones[:1], own_heads=ones, value=value)

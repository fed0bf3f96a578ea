"""MCR: modalities compete for a say in the fused output, or share it, as a game has it."""

from typing import Annotated, Literal, final

import torch

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried

_SIGNS = {"greedy": -1.0, "independent": 0.0, "collaborative": 1.0}


@final
class MCR(Weighting):
    """Multimodal competition regularisation: an encoder is paid for how much the fused output depends on it.

    Encoder j moves along ∇(f_mm + w f_j) + λ(∇L_j + κ Σ_{k≠j} ∇L_k). f_mm is the fused loss, f_j that of modality j,
    and L_k = −JS(p, p_k) says how little the fused output depends on modality k: p is its distribution, p_k that with
    the features of modality k permuted in the batch, JS their Jensen-Shannon divergence. κ is −1 in the greedy game,
    where each encoder also lowers what depends on the others, 0 in the independent and 1 in the collaborative one.
    Heads move along ∇(f_mm + w Σ_j f_j + λ min(1 + κ, 1) Σ_k L_k), which for the greedy game is without L: in the
    authors' code its terms cancel at layers that modalities share.

    p counts as a constant. In the authors' code it has a gradient, which cancels in the greedy game. Their permuted
    outputs come from a second pass in evaluation mode, here from the features of the step; a modality's own columns of
    a linear fused head, which follow its encoder there, are part of the heads. Of three modalities they also permute
    two at a time. Left out are their supervised contrast between features and the loss of conditional entropy (CEB):
    pass such losses as ``extra``. A modality alone has no competitor, and no L.

    Tasks: any, by distances between 0 and 1: of several labels the mean divergence, of a number, in the place of the
    authors' squared error, which has no bound, 1 − exp(−d²/8) with d the difference of standardised numbers.

    Paper: Kontras et al., "Balancing Multimodal Training Through Game-Theoretic Regularization" (NeurIPS 2025).
    Cost: one backward pass, where encoders are separate, else K; and K · P passes through the fused head and back.

    Args:
        penalty: λ. The authors use 0.1 for CREMA-D and 0.01 for AVE.
        game: "greedy", "independent" or "collaborative". The authors advise the first.
        weight: w. The authors use 1, and 0.01 where encoders are trained beforehand.
        permutations: P, over how many permutations JS is averaged. The authors use 32.

    Example:
        >>> from equipoise import LateFusion
        >>> from equipoise.models import permutation_losses
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = MCR(penalty=0.1).attach(model)
        >>> features = model.features({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> outputs = model.outputs_from(features)
        >>> losses = {name: logits.square().mean(1) for name, logits in outputs.items()}
        >>> balancer(losses, further=permutation_losses(model, features, outputs["fused"], permutations=4)).backward()
        >>> round(float(balancer.table.at("permuted video", "audio")), 4)  # λκ
        -0.1
    """

    def __init__(
        self,
        penalty: Annotated[float, Tried(0.01, 0.1, 1.0)] = 0.1,
        game: Literal["greedy", "independent", "collaborative"] = "greedy",
        weight: float = 1.0,
        permutations: int = 8,
    ) -> None:
        super().__init__()
        self.check_arguments(
            (penalty >= 0, "penalty should be zero or more", penalty),
            (weight >= 0, "weight should be zero or more", weight),
            (permutations >= 1, "permutations should be at least one", permutations),
        )
        self.penalty, self.game, self.weight = penalty, game, weight
        self.needs = Needs(further="permuted", draws=permutations)

    def weigh(self, losses: Losses) -> Coefficients:
        """The fused loss at one, a modality's at w, the permuted ones at λ on the diagonal and λκ beside it."""
        count, sign = len(losses.unimodal), _SIGNS[self.game]
        penalty = self.penalty if count > 1 else 0.0
        own = torch.eye(count, dtype=losses.fused.dtype, device=losses.fused.device)
        fused, unimodal = torch.ones_like(own[:1]), torch.full_like(own, self.weight)
        encoders = torch.cat([fused, unimodal, penalty * (own + sign * (1 - own))])
        shared = torch.full_like(losses.unimodal, penalty * min(1 + sign, 1.0))
        value = losses.fused + self.weight * losses.unimodal.sum()
        if losses.further is not None:
            value = value + torch.dot(shared, losses.further)
        return Coefficients.full(encoders, heads=torch.cat([fused[0, :1], unimodal[0], shared]), value=value)

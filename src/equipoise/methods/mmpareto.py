"""MMPareto: a Pareto direction where gradients conflict, a plain sum where they agree, and the magnitude kept."""

from collections.abc import Sequence
from typing import Annotated, Literal, final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Losses
from equipoise.balance.kinds import Mixing
from equipoise.balance.mixture import Gram
from equipoise.balance.tensors import wide
from equipoise.balance.theory import least_norm
from equipoise.util.annotated import Tried


@final
class MMPareto(Mixing):
    """Pareto integration of the fused and the uni-modal gradient with its magnitude restored and enlarged.

    Encoder k moves along γ · (2α · ∇f_mm + 2(1 − α) · ∇f_k): α is ½ where the two gradients agree (cosine above
    zero), and that of the shortest mixture where they conflict. A mixture shorter than ∇(f_mm + f_k) is stretched to
    its length. γ is the boost, f_mm the fused loss, f_k the loss of modality k. Heads follow the plain sum.

    Tasks: any; gradients are compared.

    Paper: Wei and Hu, "MMPareto: Boosting Multimodal Learning with Innocent Unimodal Assistance" (ICML 2024).
    Cost: two backward passes through separate encoders, K + 1 otherwise.

    Args:
        boost: γ; the published code has 1.5 written into it.
        rescale: Restore the length per "tensor", as the published code does, or per "encoder", which keeps the
            direction.
        at: Decide by the gradients at the encoders' "parameters", or at their outputs, the "features": one pass through
            the encoders then. There is one length per encoder then, that at its features, whatever ``rescale`` says,
            and the table holds the stretch too. It agrees with ``rescale="encoder"`` where JJᵀ is a multiple of the
            identity, with J the derivative of an encoder's output by its parameters.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = MMPareto().attach(model)
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> balancer({name: logits.square().mean() for name, logits in outputs.items()}).backward()
        >>> bool((balancer.table.values[:, :2].nansum(0) - 3).abs().max() < 1e-6)  # 2 · γ · (α + 1 − α)
        True
    """

    def __init__(
        self,
        boost: Annotated[float, Tried(1.0, 1.5, 2.0)] = 1.5,
        rescale: Literal["tensor", "encoder"] = "tensor",
        at: Literal["parameters", "features"] = "parameters",
    ) -> None:
        super().__init__()
        self.check_arguments((boost > 0, "boost should be above zero", boost))
        self.boost, self.rescale, self.at = boost, rescale, at

    def mix(self, gram: Gram, losses: Losses) -> Tensor:  # noqa: ARG002
        """Equal weights where no two gradients conflict, else the shortest mixture; together n · γ."""
        products = gram.relative()
        present = products.diagonal(dim1=-2, dim2=-1) > 0  # a loss that does not reach an encoder takes no part
        count = present.sum(dim=-1, keepdim=True).clamp(min=1)
        apart = ~torch.eye(products.shape[-1], dtype=torch.bool, device=products.device)
        compared = present[..., :, None] & present[..., None, :] & apart
        agree = ((products > 0) | ~compared).flatten(-2).all(dim=-1, keepdim=True)
        mixture = count * torch.where(agree, present / count, least_norm(products))
        if self.at == "features":  # lengths there follow from inner products, which all ranks have in common
            mixture = (
                mixture * _stretch(_length(products, present.to(products.dtype)), _length(products, mixture))[..., None]
            )
        return self.boost * mixture

    def transform(self, modality: str, gradient: list[Tensor], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:  # noqa: ARG002
        """Stretch what came out shorter than the plain sum of the gradients."""
        plain = list(parts[0])
        for part in parts[1:]:
            plain = list(torch._foreach_add(plain, list(part)))
        # In double precision, whose squares neither overflow nor vanish for gradients of single precision.
        wanted, found = (torch.stack(list(torch._foreach_norm(one, 2, dtype=wide(one)))) for one in (plain, gradient))
        if self.rescale == "encoder":
            wanted, found = (torch.linalg.vector_norm(n).expand_as(n) for n in (wanted, found))
        return list(torch._foreach_mul(gradient, list(_stretch(self.boost * wanted, found).unbind())))


def _stretch(wanted: Tensor, found: Tensor) -> Tensor:
    """Return the factor that makes a length at least the wanted one; a mixture that cancelled has no direction: one."""
    return torch.where(found == 0, 1.0, wanted / found).clamp(min=1)


def _length(gram: Tensor, coefficients: Tensor) -> Tensor:
    """Return the length of a mixture, from inner products; what rounding leaves of zero is zero."""
    squared = (coefficients[..., None, :] @ gram @ coefficients[..., :, None])[..., 0, 0]
    least = torch.finfo(gram.dtype).eps * gram.diagonal(dim1=-2, dim2=-1).amax(dim=-1)
    return torch.where(squared <= 4 * least, torch.zeros_like(squared), squared.clamp(min=0)).sqrt()

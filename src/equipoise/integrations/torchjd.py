"""TorchJD: its weightings as balancing methods, and our methods that mix gradients as its weightings."""

import copy
from collections.abc import Hashable
from typing import final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.integrations import not_installed

try:
    from torchjd.aggregation import GramianWeightedAggregator, Weighting
    from torchjd.linalg import PSDMatrix
except ModuleNotFoundError:
    raise not_installed(__name__, "torchjd", "'equipoise[torchjd]'") from None


@final
class FromTorchJD(Balancer):
    """A weighting of TorchJD on each encoder by itself, over the fused and the uni-modal gradient there.

    Encoder k moves along w_0 · ∇f_mm + w_1 · ∇f_k with the weights w that TorchJD reads off the inner products of the
    two. f_mm is the fused loss, f_k the loss of modality k. Where a loss reaches several encoders, all K + 1 gradients
    are weighed; a loss that does not reach an encoder takes no part there. Heads follow their own losses.

    The inner products are divided by the largest first, so that the scale of half precision plays no role. Most
    weightings do not notice; FairGrad then gives the direction that it gives in TorchJD, and a length in proportion to
    the gradients.

    Every encoder has a copy of the weighting. What a copy remembers is not saved: a resumed run starts it anew.

    Paper: that of the weighting; Quinton and Rey, "Jacobian Descent for Multi-Objective Optimization" (2024).
    Cost: two backward passes through separate encoders, K + 1 otherwise. Weights are solved for on the host, so each
    step waits for the device.

    Args:
        weighting: One that reads a Gram matrix, such as `PCGradWeighting()`, or an aggregator made of one, `PCGrad()`.

    Example:
        >>> from equipoise import LateFusion
        >>> from torchjd.aggregation import PCGrad
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = FromTorchJD(PCGrad()).attach(model)
        >>> outputs = model({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)})
        >>> balancer({name: logits.square().mean() for name, logits in outputs.items()}).backward()
        >>> bool((balancer.table.values.nan_to_num() >= 0).all())
        True
    """

    route = "gram"
    unimodal = "head"

    def __init__(self, weighting: Weighting[PSDMatrix] | GramianWeightedAggregator) -> None:
        super().__init__()
        if isinstance(weighting, GramianWeightedAggregator):
            weighting = weighting.gramian_weighting
        if not isinstance(weighting, Weighting):
            raise TypeError(
                "FromTorchJD expected a weighting of TorchJD that reads a Gram matrix, or an aggregator made of one; "
                f"found {type(weighting).__name__}. Type FromTorchJD(torchjd.aggregation.PCGradWeighting())"
            )
        self._pattern = [weighting]  # in a list: what it remembers is none of this module's state
        self._copies: list[Weighting[PSDMatrix]] = []

    def mix(self, gram: Tensor) -> Tensor:
        """Compute the weights of each encoder, alike on all ranks although a weighting may draw at random."""
        self._copies += [copy.deepcopy(self._pattern[0]) for _ in range(len(gram) - len(self._copies))]
        weights = [self._weigh(*pair) for pair in zip(self._copies, gram.unbind(), strict=False)]
        return collectives.mean(torch.stack(weights), self.group)

    @staticmethod
    def _weigh(weighting: Weighting[PSDMatrix], gram: Tensor) -> Tensor:
        if not gram.isfinite().all():  # a step that will be skipped; solvers would raise
            return torch.full_like(gram[0], torch.nan)
        present = gram.diagonal() > 0
        weights = torch.zeros_like(gram[0])
        if present.any():
            weights[present] = weighting(gram[present][:, present]).to(weights)
        return weights

    @property
    def phase(self) -> Hashable | None:
        """None: solvers on the host cannot be recorded."""
        return None


@final
class ToTorchJD(Weighting[PSDMatrix]):
    """MGDA, MMPareto, or any method of ours that mixes gradients by their inner products, as a weighting of TorchJD.

    For `torchjd.autogram`, and by `GramianWeightedAggregator(ToTorchJD(MGDA()))` for `torchjd.autojac`. All parameters
    that TorchJD differentiates count as one encoder, and the first objective as the fused one. MMPareto's stretching is
    part of the weights; it is that of ``rescale="encoder"``, since a weighting knows no tensors.

    Args:
        balancer: The method; it need not be attached to anything.

    Example:
        >>> from equipoise import MGDA
        >>> ToTorchJD(MGDA())(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
        tensor([0.2000, 0.8000])
    """

    def __init__(self, balancer: Balancer) -> None:
        super().__init__()
        if balancer.route != "gram":
            hint = f"found {type(balancer).__name__}, which weighs losses. TorchJD calls those scalarizers"
            raise TypeError(f"ToTorchJD expected a method that mixes gradients, such as MGDA() or MMPareto(); {hint}")
        self.balancer = balancer

    def forward(self, gramian: PSDMatrix, /) -> Tensor:
        """Compute weights of the objectives from the inner products of their gradients."""
        wide = gramian.double()
        largest = wide.diagonal().amax()
        scaled = torch.where(largest == 0, wide, wide / largest)
        weights = self.balancer.mix(scaled[None])[0]
        if self.balancer.refines:
            weights = weights * self._stretch(scaled, weights)
        return weights.to(gramian.dtype)

    def _stretch(self, gram: Tensor, weights: Tensor) -> Tensor:
        """Compute by how much the method lengthens a mixture, on the smallest gradients with these inner products."""
        lengths, directions = torch.linalg.eigh(gram)
        gradients = (directions * lengths.clamp(min=0).sqrt()).unbind()
        mixed = [weights @ torch.stack(gradients)]
        refined = self.balancer.refine("", mixed, [[gradient] for gradient in gradients])
        before, after = mixed[0].norm(), refined[0].norm()
        return torch.where(before == 0, 1.0, after / before)

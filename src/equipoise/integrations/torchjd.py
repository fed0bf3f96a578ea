"""TorchJD: its weightings and scalarizers as balancing methods, and our methods that mix gradients as weightings."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.balance.coefficients import Coefficients, Losses, Tensors
from equipoise.balance.kinds import Mixing, Weighting
from equipoise.balance.mixture import Gram
from equipoise.balance.needs import Needs
from equipoise.balance.reading import GivenStep
from equipoise.balance.tensors import wide
from equipoise.balance.updates import tensors_held
from equipoise.util.extras import needs

with needs(__name__, "torchjd"):
    from torchjd.aggregation import GramianWeightedAggregator
    from torchjd.aggregation import Weighting as TheirWeighting
    from torchjd.linalg import PSDMatrix
    from torchjd.scalarization import DWA, FAMO, Scalarizer

_ORDER = "order"  # in which a scalarizer reads the losses, as bytes of their names


def from_torchjd(weighting: TheirWeighting[PSDMatrix] | GramianWeightedAggregator | Scalarizer) -> Balancer:
    """Make a method of a weighting of TorchJD, on each encoder by itself, or of a scalarizer, over all losses.

    Args:
        weighting: One that reads a Gram matrix, such as `PCGradWeighting()`, an aggregator made of one, `PCGrad()`, or
            a scalarizer, `STCH(mu=0.1)`, on the device of the losses.

    Example:
        >>> from torchjd.scalarization import GeometricMean
        >>> balancer = from_torchjd(GeometricMean())
        >>> loss = balancer({"fused": torch.tensor(1.0), "audio": torch.tensor(2.0), "video": torch.tensor(4.0)})
        >>> [round(weight, 4) for weight in balancer.answer.encoders.tolist()]
        [0.6667, 0.3333, 0.1667]
    """
    if isinstance(weighting, GramianWeightedAggregator):
        weighting = weighting.gramian_weighting
    if isinstance(weighting, Scalarizer):
        return TorchJDScalarizer(weighting)
    if isinstance(weighting, TheirWeighting):
        return TorchJDWeighting(weighting)
    raise TypeError(
        "from_torchjd expected a weighting of TorchJD that reads a Gram matrix, an aggregator made of one, or a "
        f"scalarizer; found {type(weighting).__name__}. Type "
        "from_torchjd(torchjd.aggregation.PCGradWeighting()) or from_torchjd(torchjd.scalarization.STCH(mu=0.1))"
    )


@final
class TorchJDWeighting(Mixing):
    """A weighting of TorchJD, on each encoder by itself.

    Encoder k moves along w_0 · ∇f_mm + w_1 · ∇f_k with the weights w that TorchJD reads off the inner products of the
    two. f_mm is the fused loss, f_k the loss of modality k. Where a loss reaches several encoders, all K + 1 gradients
    are weighed; a loss that does not reach an encoder takes no part there. Heads follow their own losses. The inner
    products are divided by the largest first, so that the scale of half precision plays no role. Most weightings do not
    notice; FairGrad then gives the direction that it gives in TorchJD, and a length in proportion to the gradients.
    Every encoder has a copy of the weighting. What a copy remembers is not saved: a resumed run starts it anew.

    Tasks: any.

    Paper: that of the weighting; Quinton and Rey, "Jacobian Descent for Multi-Objective Optimization" (2024).
    Cost: two backward passes through separate encoders, K + 1 otherwise. It is solved for on the host, so that each
    step waits for the device.

    Args:
        weighting: Of TorchJD.
    """

    def __init__(self, weighting: TheirWeighting[PSDMatrix]) -> None:
        super().__init__()
        self._pattern: list[Any] = [weighting]  # in a list: its parameters are not of this module
        self._weightings: list[TheirWeighting[PSDMatrix]] = []

    def mix(self, gram: Gram, losses: Losses) -> Tensor:  # noqa: ARG002
        """Compute the weights of each encoder, alike on all ranks although a weighting may draw at random."""
        products = gram.relative()
        self._weightings += [copy.deepcopy(self._pattern[0]) for _ in range(len(products) - len(self._weightings))]
        weights = [_weigh(*pair) for pair in zip(self._weightings, products.unbind(), strict=False)]
        return collectives.mean(torch.stack(weights), self.group)


def _weigh(weighting: TheirWeighting[PSDMatrix], gram: Tensor) -> Tensor:
    if not gram.isfinite().all():  # a step that will be skipped; solvers would raise
        return torch.full_like(gram[0], torch.nan)
    present = gram.diagonal() > 0
    weights = torch.zeros_like(gram[0])
    if present.any():
        weights[present] = weighting(gram[present][:, present]).to(weights)
    return weights


@final
class TorchJDScalarizer(Weighting):
    """A scalarizer S of TorchJD over all losses: every parameter moves along the gradient of S(f_mm, f_1, …, f_K).

    f_mm is the fused loss, f_k the loss of modality k. The losses stand in the order of the table: the fused one, then
    modalities as they were first named. The weights ∂S/∂f are taken where the losses of all ranks have their mean. A
    sensor that no sample has counts with the mean of the other losses, and weighs nothing. Parameters of the scalarizer
    (UW and IMTLL have some) belong to the optimiser, as in TorchJD: ``[*model.parameters(),
    *scalarizer.parameters()]``; the backward pass gives them their gradient. DWA rolls its history on with `end_epoch`,
    FAMO learns from `update`. Parameters and buffers of a scalarizer are saved with the balancer; what else it
    remembers (the history of DWA, the moments of FAMO's Adam) is not.

    Tasks: any.

    Paper: that of the scalarizer. Cost: one backward pass.

    Args:
        scalarizer: Of TorchJD.
    """

    needs = Needs(encoders=False)

    def __init__(self, scalarizer: Scalarizer) -> None:
        super().__init__()
        self._pattern: list[Any] = [scalarizer]  # in a list: its parameters are not of this module
        self._order: list[str] = []  # in which it reads the losses
        self._learnt: list[tuple[Tensor, Tensor]] = []  # its parameters, and their gradients in this step
        self._steps = 0  # taken since FAMO was last told what they led to

    def weigh(self, losses: Losses) -> Coefficients:
        """The scalarizer's derivative by each loss."""
        given = torch.cat([losses.fused[None], losses.unimodal])
        if given.requires_grad:  # second derivatives are wanted
            again = copy.deepcopy(self._pattern[0])(self._read_by_it(given, losses.presence))
            return Coefficients.shared(torch.autograd.grad(again, given, create_graph=True)[0])
        trains = self.training and torch.is_grad_enabled()
        with torch.inference_mode(False), torch.enable_grad():
            # An evaluation leaves no trace.
            scalarizer = self._pattern[0] if trains else copy.deepcopy(self._pattern[0])
            parameters = [parameter for parameter in scalarizer.parameters() if parameter.requires_grad]
            given = given.clone().requires_grad_()
            scalar = scalarizer(self._read_by_it(given, losses.presence))
            by_losses, *learnt = torch.autograd.grad(scalar, [given, *parameters], allow_unused=True)
        # A mean over ranks, since a scalarizer may draw at random.
        weights, value = collectives.mean(torch.stack([by_losses, scalar.detach().expand_as(by_losses)]), self.group)
        if trains:
            self._learnt = [pair for pair in zip(parameters, learnt, strict=True) if pair[1] is not None]
            self._look_for([parameter for parameter, _ in self._learnt])
        return Coefficients.shared(weights, value[0])

    def regulariser(self, scalars: Tensors, losses: Losses, answer: Coefficients | None) -> Tensor | None:  # noqa: ARG002
        """Return a loss of zero whose gradient is that of the scalarizer by its own parameters."""
        if not self._learnt:
            return None
        return torch.stack([(slope * (own - own.detach())).sum() for own, slope in self._learnt]).sum()

    def on_epoch(self, metrics: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Tell DWA that an epoch has ended."""
        if isinstance(self._pattern[0], DWA):
            self._pattern[0].step()

    def update(self, losses: Tensors, *, present: Tensors | None = None) -> None:
        """Tell FAMO the losses of the same batch after the step of the optimiser, without gradients.

        Args:
            losses: Those of the batch that the last step was taken on, computed anew.
            present: Its masks, where samples may lack a sensor.
        """
        scalarizer = self._pattern[0]
        if not isinstance(scalarizer, FAMO):
            found = f"found {type(scalarizer).__name__}, which learns nothing from them"
            raise TypeError(f"TorchJDScalarizer.update: expected FAMO, which reads losses after a step; {found}")
        values = self.read(GivenStep(losses, None, present)).losses
        scalarizer.update(self._read_by_it(torch.cat([values.fused[None], values.unimodal]), values.presence))
        self._steps = 0

    def on_step(self, taken: Tensor | int) -> None:
        """Warn where FAMO is not told what steps lead to, which would leave its weights as they are."""
        self._steps += int(isinstance(self._pattern[0], FAMO) and not (isinstance(taken, int) and taken == 0))
        if self._steps == 2:
            told = "type balancer.update(losses) after each optimizer.step(), with the losses of that batch anew"
            warnings.warn(f"FAMO learns its weights from losses after a step, and was told none: {told}", stacklevel=2)

    def host_values(self) -> dict[str, tuple[float, ...]]:
        """Return a number that equals nothing: what runs on the host cannot be recorded."""
        return {"scalarizer": (float("nan"),)}  # a new one each time: of one and the same, tuples are equal

    def _read_by_it(self, losses: Tensor, presence: Tensor | None) -> Tensor:
        """Put losses into the scalarizer's order; one that no sample has counts with the mean of the others."""
        objectives = ["fused", *self.modalities]
        self._order = self._order or objectives
        if presence is not None:
            here = torch.cat([torch.ones_like(presence[:1]), presence]) > 0
            mean = torch.where(here, losses, 0.0).sum() / here.sum()
            losses = torch.where(here, losses, mean.detach())
        return torch.stack([losses[objectives.index(name)] for name in self._order])

    def _look_for(self, parameters: Sequence[Tensor]) -> None:
        """Warn once where no attached optimiser moves the scalarizer's parameters."""
        optimizers = self.attachment.optimizers if self.attachment is not None else []
        held = {id(tensor) for optimizer in optimizers for tensor in tensors_held(optimizer)}
        if optimizers and not self._warned and not all(id(parameter) in held for parameter in parameters):
            self._warned = True
            kind = type(self._pattern[0]).__name__
            told = "type SGD([*model.parameters(), *scalarizer.parameters()], …), or attach the one that has them, too"
            warnings.warn(f"{kind} has parameters, which no attached optimiser moves: {told}", stacklevel=2)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        self._pattern[0].state_dict(destination=destination, prefix=f"{prefix}scalarizer.", keep_vars=keep_vars)
        destination[prefix + _ORDER] = torch.tensor(list("\n".join(self._order).encode()), dtype=torch.uint8)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state, own = dict(state_dict), f"{prefix}scalarizer."
        names = bytes(state.pop(prefix + _ORDER, torch.zeros(0)).tolist()).decode()
        self._order = names.split("\n") if names else []
        known = {key.removeprefix(own): state.pop(key) for key in list(state) if key.startswith(own)}
        if known:
            self._pattern[0].load_state_dict(known)
        super()._load_from_state_dict(state, prefix, *rest)


@final
class ToTorchJD(TheirWeighting[PSDMatrix]):
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
        if not isinstance(balancer, Mixing):
            hint = f"found {type(balancer).__name__}, which weighs losses. TorchJD calls those scalarizers"
            raise TypeError(f"ToTorchJD expected a method that mixes gradients, such as MGDA() or MMPareto(); {hint}")
        self.balancer = balancer
        if not self._mix(torch.eye(2)).isfinite().all():
            told = f"{type(balancer).__name__} reads values of losses, which TorchJD does not give to weightings"
            raise TypeError(f"ToTorchJD expected a method that decides by inner products alone; {told}")

    def _mix(self, products: Tensor) -> Tensor:
        every = tuple(range(len(products)))
        unknown = torch.full((len(products),), torch.nan, device=products.device)
        return self.balancer.mix(Gram(products[None], (every,)), Losses(unknown[0], unknown[1:], unknown[1:]))[0]

    def forward(self, gramian: PSDMatrix, /) -> Tensor:
        """Compute weights of the objectives from the inner products of their gradients."""
        gram = gramian.to(wide([gramian]))
        largest = gram.diagonal().amax()
        scaled = torch.where(largest == 0, gram, gram / largest)
        weights = self._mix(scaled)
        if self.balancer.transforms:
            # What rounding of inner products leaves of a mixture that cancels has no direction to be stretched along.
            least = 2 * torch.finfo(gramian.dtype).eps ** 0.5 * weights.sum()
            weights = weights * self._stretch(scaled, weights, least)
        return weights.to(gramian.dtype)

    def _stretch(self, gram: Tensor, weights: Tensor, least: Tensor) -> Tensor:
        """Compute by how much the method lengthens a mixture, on the smallest gradients with these inner products.

        One that is not longer than ``least`` stays as it is.
        """
        lengths, directions = torch.linalg.eigh(gram)
        gradients = (directions * lengths.clamp(min=0).sqrt()).unbind()
        mixed = [weights @ torch.stack(gradients)]
        changed = self.balancer.transform("", mixed, [[gradient] for gradient in gradients])
        before, after = mixed[0].norm(), changed[0].norm()
        return torch.where(before <= least, 1.0, after / before)

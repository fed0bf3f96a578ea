"""SMP: the weakest encoder learns alone, then the next, then all together."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import eq
from typing import Annotated, final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried


@final
class SMP(Weighting):
    """Sequential modality prioritisation: the weakest encoder learns alone, then the next weakest, then all.

    Encoder m moves along c_m · ∇f_mm, f_mm the fused loss. From epoch e₀ on there are K − 1 stages of τ epochs: in
    stage i, counted from zero, c_m is one for the encoder of rank r_m = i and zero for the others. After them, and
    before e₀, every c_m is one. r_m = 0 is the weakest of K modalities. Heads learn throughout.

    The ranks are given as ``order``; else they are those of the validation accuracies after epoch e₀ − 1, which
    `end_epoch` is then given, the lowest first. The authors rank by the confidence of uni-modal models that were
    trained before, in each batch anew, and have two modalities: the weaker one learns alone, then both.

    An encoder that waits gets a gradient of zero. Under Adam and its variants its weights stand still; under SGD what
    is left of the momentum, and weight decay, still move them, as in the authors' code, which zeroes the gradients of
    convolutions alone. Batch statistics follow the data at all times: every encoder runs in every step.

    Tasks: any. The accuracy is a score from 0 to 1: with several labels the share of right ones; of a number, the mean
    of exp(−f_m), f_m the error of the standardised number.

    Paper: Rakib and Bagavathi, "G2D: Boosting Multimodal Learning with Gradient-Guided Distillation" (ICCV 2025), its
    part without teachers.
    Cost: one backward pass.

    Args:
        stage: τ, epochs in which one encoder learns alone. The authors have 150 of 300 for CREMA-D.
        order: Names of the modalities, the weakest first; None ranks them by validation accuracy.
        start: e₀, the first epoch of the first stage. None means 0 where an order is given, and 1 where not.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = SMP(stage=10).attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> balancer.end_epoch({"audio": {"accuracy": 0.6}, "video": {"accuracy": 0.3}})
        >>> balancer.learning
        ['video']
    """

    order: Tensor  # the rank of each modality

    def __init__(
        self, stage: Annotated[int, Tried(2, 5, 10)] = 5, order: Sequence[str] | None = None, start: int | None = None
    ) -> None:
        super().__init__(start=start if start is not None else int(order is None))
        self.check_arguments(
            (stage >= 1, "stage should be at least one epoch", stage),
            (order is None or len(set(order)) == len(order) > 0, "order should name each modality once", order),
            (order is not None or self.start >= 1, "start should be at least 1, or an order given", start),
        )
        self.stage = stage
        self.needs = Needs(
            learns_from_own=False,
            factors=True,
            metrics=("accuracy",) if order is None else (),
            due=partial(eq, self.start),  # the epoch before the first stage alone
            modalities=tuple(order or ()),
        )
        if order is None:
            self.add_state("order", fill=torch.nan)
        else:
            self.add_given_state("order", {name: float(place) for place, name in enumerate(order)})

    def weigh(self, losses: Losses) -> Coefficients:
        """One for the encoder whose turn it is, zero for the others."""
        return Coefficients.joint(losses, self._turns().to(losses.fused.dtype))

    def on_epoch(self, metrics: Mapping[str, Tensor]) -> None:
        """Rank the modalities, the lowest accuracy first; of equals, the one that was named first."""
        if metrics:
            self.order.copy_(metrics["accuracy"].argsort(stable=True).argsort())

    @property
    def learning(self) -> list[str]:
        """The modalities whose encoders learn in the present epoch. Reading it waits for the device."""
        turns = self.gated(self._turns()).tolist()
        return [name for name, turn in zip(self.modalities, turns, strict=True) if turn]

    def _turns(self) -> Tensor:
        stage = (self.epoch - self.start) // self.stage
        return ((self.order == stage) | (stage >= len(self.order) - 1)).float()

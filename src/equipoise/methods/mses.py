"""MSES: early stopping for each modality by itself."""

from collections.abc import Mapping
from typing import Annotated, Literal, final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried

_OPTIMIZER = (
    "MSES gives a stopped encoder no gradient, but momentum, weight decay and batch statistics go on changing it; "
    "type balancer.attach(…, optimizer=optimizer), and it will stand still"
)


@final
class MSES(Weighting):
    """Modality-specific early stopping: an encoder whose validation loss has stopped falling is frozen.

    After epoch e the smoothed loss of modality m is S_m(e) = 0.6 · L_m(e − 1) + 0.4 · L_m(e), L_m(e) its validation
    loss: give it to `end_epoch`. When S_m has not fallen below its best for more than `patience` epochs, encoder m and
    its part of the fused head stand still for good: weights, momentum, weight decay and batch statistics, for which the
    optimiser has to be attached.

    Tasks: any; a modality is compared with itself, by the loss of the task.

    Paper: Fujimori et al., "Modality-Specific Learning Rate Control for Multimodal Classification" (ACPR 2019), with
    the rule of the code that published comparisons use.
    Cost: one backward pass, and a copy of each encoder and of the fused head.

    Args:
        patience: Epochs without a new best that are still borne. That code has 80 for CREMA-D, 30 for UR-FUNNY, 10
            for AV-MNIST.
        smoothing: "two-tap" mixes the last two losses, as that code does; "recursive" keeps a running average.
        rollback: Put a stopped encoder back to its best epoch (that encoder alone; the code rewinds the whole model).
        heads: "scaled" stops a modality's part of the fused head with its encoder, as that code does; see `MSLR`.
            "plain" stops encoders alone.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = MSES(patience=0).attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> balancer.end_epoch({"audio": {"loss": 1.0}, "video": {"loss": 1.0}})
        >>> balancer.end_epoch({"audio": {"loss": 2.0}, "video": {"loss": 0.5}})
        >>> balancer.stopped
        ['audio']
    """

    previous: Tensor
    best: Tensor
    best_epoch: Tensor
    running: Tensor

    def __init__(
        self,
        patience: Annotated[int, Tried(5, 10, 20)] = 10,
        smoothing: Literal["two-tap", "recursive"] = "two-tap",
        *,
        rollback: bool = False,
        heads: Literal["scaled", "plain"] = "scaled",
    ) -> None:
        super().__init__()
        self.check_arguments((patience >= 0, "patience should be zero epochs or more", patience))
        self.patience, self.smoothing, self.rollback = patience, smoothing, rollback
        # No factors: a stopped encoder is put where it stood after each step, whatever the optimiser.
        block = "with head" if heads == "scaled" else "all"
        self.needs = Needs(learns_from_own=False, block=block, optimizer=_OPTIMIZER, metrics=("loss",))
        self.add_state("previous", fill=torch.nan)
        self.add_state("best", fill=torch.inf)
        self.add_state("best_epoch")
        self.add_state("running", fill=1.0)
        self.add_copy("kept", of="everything")

    @property
    def stopped(self) -> list[str]:
        """The modalities that stand still. When it holds all of them, training has nothing left to do."""
        return [name for name, runs in zip(self.modalities, self.on_host("running"), strict=True) if not runs]

    def weigh(self, losses: Losses) -> Coefficients:
        """One while a modality runs, zero once it has stopped."""
        return Coefficients.joint(losses, self.running.to(losses.fused.dtype))

    def on_epoch(self, metrics: Mapping[str, Tensor]) -> None:
        """Smooth the losses, keep the best, stop a modality that has waited too long."""
        loss, epoch, ran = metrics["loss"], self.epoch + 1, self.running.tolist()
        smoothed = torch.where(self.previous.isnan(), loss, 0.6 * self.previous + 0.4 * loss)
        better = (smoothed < self.best) & (self.running > 0)
        self.best.copy_(torch.where(better, smoothed, self.best))
        self.best_epoch.copy_(torch.where(better, epoch.to(self.best_epoch.dtype), self.best_epoch))
        self.previous.copy_(loss if self.smoothing == "two-tap" else smoothed)
        self.running.copy_(torch.where(epoch - self.best_epoch > self.patience, 0.0, self.running))
        self.refresh_host()
        for name, improved, before in zip(self.modalities, better.tolist(), ran, strict=True):
            if improved if self.rollback else before and name in self.stopped:
                self.copy_encoder("kept", name)
        self.on_step(0)

    def on_step(self, taken: Tensor | int) -> None:  # noqa: ARG002
        """Put every stopped encoder back where it stopped."""
        for name in self.stopped:
            if not self.copied("kept", name):  # it was attached to another model, and stands still where that begins
                self.copy_encoder("kept", name)
            for tensor, kept in zip(self.tensors_of(name, "everything"), self.copied("kept", name), strict=False):
                tensor.copy_(kept)

"""MSES: early stopping for each modality by itself."""

from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights


@final
class MSES(Balancer):
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

    route = "fused"
    unimodal = "detached"
    search: ClassVar = {"patience": (5, 10, 20)}
    modulates = True
    restores = True
    needs = ("loss",)
    without_optimizer: ClassVar[str] = (
        "MSES gives a stopped encoder no gradient, but momentum, weight decay and batch statistics go on changing it; "
        "type balancer.attach(…, optimizer=optimizer), and it will stand still"
    )
    previous: Tensor
    best: Tensor
    best_epoch: Tensor
    running: Tensor

    def __init__(
        self,
        patience: int = 10,
        smoothing: Literal["two-tap", "recursive"] = "two-tap",
        *,
        rollback: bool = False,
        heads: Literal["scaled", "plain"] = "scaled",
    ) -> None:
        super().__init__()
        self.check_arguments((patience >= 0, "patience should be zero epochs or more", patience))
        self.scales_heads = heads == "scaled"
        self.patience, self.smoothing, self.rollback = patience, smoothing, rollback
        self.add_state("previous", fill=torch.nan)
        self.add_state("best", fill=torch.inf)
        self.add_state("best_epoch")
        self.add_state("running", fill=1.0)
        self._kept: dict[str, list[Tensor]] = {}
        self.stopped: list[str] = []
        """The modalities that stand still. When it holds all of them, training has nothing left to do."""

    def weigh(self, values: LossValues) -> Weights:
        """One while a modality runs, zero once it has stopped."""
        return Weights.joint(values, self.running.to(values.fused.dtype))

    def learn(self, metrics: dict[str, Tensor]) -> None:
        """Smooth the losses, keep the best, stop whoever has waited too long."""
        loss, epoch = metrics["loss"], self.epoch + 1
        smoothed = torch.where(self.previous.isnan(), loss, 0.6 * self.previous + 0.4 * loss)
        better = (smoothed < self.best) & (self.running > 0)
        self.best.copy_(torch.where(better, smoothed, self.best))
        self.best_epoch.copy_(torch.where(better, epoch.to(self.best_epoch.dtype), self.best_epoch))
        self.previous.copy_(loss if self.smoothing == "two-tap" else smoothed)
        self.running.copy_(torch.where(epoch - self.best_epoch > self.patience, 0.0, self.running))
        for name, improved, runs in zip(self.modalities, better.tolist(), self.running.tolist(), strict=True):
            stops = not runs and name not in self.stopped
            if improved if self.rollback else stops:
                self._kept[name] = [tensor.detach().clone() for tensor in self.tensors_of(name)]
            if stops:
                self.stopped.append(name)
        self.stepped()

    @torch.no_grad()
    def stepped(self, taken: Tensor | int = 1) -> None:  # noqa: ARG002
        """Put every stopped encoder back where it stopped."""
        for name in self.stopped:
            for tensor, kept in zip(self.tensors_of(name), self._kept.get(name, []), strict=False):
                tensor.copy_(kept)

    @property
    def phase(self) -> tuple[str, ...]:
        """The modalities that have stopped: only they are put back after a step."""
        return tuple(self.stopped)

    def host_state(self) -> dict[str, Any]:
        """Return the modalities that have stopped, and the tensors they stand at."""
        return {"kept": self._kept, "stopped": self.stopped}

    def load_host_state(self, state: dict[str, Any]) -> None:
        """Take over where stopped encoders stand."""
        self._kept = {name: list(tensors) for name, tensors in state["kept"].items()}
        self.stopped = list(state["stopped"])

"""Relearn: put each encoder back towards its initial weights, the further the worse its features generalise."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, final

import torch
from torch import Tensor

from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.balance.kinds import Weighting
from equipoise.balance.needs import Needs
from equipoise.util.annotated import Tried

_CLASSES = (
    "Relearn asks how pure clusters of features are in classes, which several labels and numbers do not have; choose "
    "msl, ogm or mslr"
)


@final
class Relearn(Weighting):
    """Diagnosing and re-learning: joint training that softly re-initialises encoders a few times.

    The loss is f_mm, the fused one. After every N-th epoch, M times at most, θ_m ← (1 − a_m) · θ_m + a_m · θ_m⁰ with
    a_m = tanh(λ · |P_m − Q_m|). θ_m are the parameters of encoder m, θ_m⁰ those it began with; P_m and Q_m are the
    purities of clusters of its features on training and validation data: how many samples are of the class that is most
    frequent in their cluster, for as many clusters as there are classes (`equipoise.models.purity`). `end_epoch` is
    given them in the epochs in which ``balancer.metrics_due`` asks for them.

    Encoders are put back after the first step of the next epoch, so that a training that ends there ends with what it
    has learnt; without an attached optimiser, at once. Batch statistics, momentum and heads are left alone, as in the
    authors' code, which counts epochs from zero and so re-learns after epochs 21, 41 and 61. θ_m⁰ is kept with the
    first step, and saved with the balancer.

    Tasks: classes. Clusters are as pure as they are of one class, which several labels and numbers do not have.

    Paper: Wei et al., "Diagnosing and Re-learning for Balanced Multimodal Learning" (ECCV 2024).
    Cost: one backward pass, a copy of each encoder, and k-means on features every N-th epoch.

    Args:
        strength: λ.
        every: N. The authors have 20 of 90 epochs.
        times: M.

    Example:
        >>> from equipoise import LateFusion
        >>> model = LateFusion({"audio": torch.nn.Linear(3, 4), "video": torch.nn.Linear(5, 4)}, classes=2)
        >>> balancer = Relearn(every=1).attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> audio = {"purity_train": 0.9, "purity_validation": 0.6}
        >>> balancer.end_epoch({"audio": audio, "video": {"purity_train": 0.5, "purity_validation": 0.5}})
        >>> [round(amount, 4) for amount in balancer.amount.tolist()]  # tanh(3 · 0.3) and 0
        [0.7163, 0.0]
    """

    amount: Tensor
    due: Tensor

    def __init__(self, strength: Annotated[float, Tried(1.0, 3.0, 6.0)] = 3.0, every: int = 20, times: int = 3) -> None:
        super().__init__()
        self.check_arguments(
            (strength >= 0, "strength should be zero or more", strength),
            (every >= 1, "every should be at least one epoch", every),
            (times >= 0, "times should be zero or more", times),
        )
        self.strength, self.every, self.times = strength, every, times
        self.needs = Needs(
            learns_from_own=False,
            metrics=("purity_train", "purity_validation"),
            due=partial(_is_due, every, times),
            tasks=dict.fromkeys(("labels", "regression"), _CLASSES),
        )
        self.add_state("amount")  # a_m of the last diagnosis
        self.add_state("due")  # one where an encoder waits for the first step of the next epoch
        self.add_copy("initial", of="parameters", at_first=True)

    def weigh(self, losses: Losses) -> Coefficients:
        """Joint training."""
        return Coefficients.joint(losses)

    def on_epoch(self, metrics: Mapping[str, Tensor]) -> None:
        """Decide how far each encoder is put back."""
        if metrics:
            gap = (metrics["purity_train"] - metrics["purity_validation"]).abs()
            self.amount.copy_(torch.tanh(self.strength * gap))
            self.due.fill_(1.0)
            if not self.follows_optimizer:
                self._put_back()

    def on_step(self, taken: Tensor | int) -> None:  # noqa: ARG002
        """Put encoders back, after the first step of an epoch that follows a diagnosis."""
        if any(self.on_host("due")):
            self._put_back()

    @torch.no_grad()
    def _put_back(self) -> None:
        for name, amount in zip(self.modalities, self.amount.unbind(), strict=True):
            for tensor, initial in zip(*self.beside_copies("initial", name), strict=True):
                tensor.lerp_(initial.to(tensor), amount.to(tensor.dtype))
        self.due.zero_()
        self.refresh_host()


def _is_due(every: int, times: int, epochs: int) -> bool:
    return epochs % every == 0 and epochs // every <= times

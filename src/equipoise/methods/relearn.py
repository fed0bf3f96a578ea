"""Relearn: put each encoder back towards its initial weights, the further the worse its features generalise."""

from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import LossValues, Weights


@final
class Relearn(Balancer):
    """Diagnosing and re-learning: joint training that softly re-initialises encoders a few times.

    The loss is f_mm, the fused one. After every N-th epoch, M times at most, θ_m ← (1 − a_m) · θ_m + a_m · θ_m⁰ with
    a_m = tanh(λ · |P_m − Q_m|). θ_m are the parameters of encoder m, θ_m⁰ those it began with; P_m and Q_m are the
    purities of clusters of its features on training and validation data: how many samples are of the class that is most
    frequent in their cluster, for as many clusters as there are classes (`equipoise.models.purity`). `end_epoch` is
    given them in the epochs in which ``balancer.needs_now`` asks for them.

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

    route = "fused"
    unimodal = "detached"
    search: ClassVar = {"strength": (1.0, 3.0, 6.0)}
    needs = ("purity_train", "purity_validation")
    amount: Tensor

    def __init__(self, strength: float = 3.0, every: int = 20, times: int = 3) -> None:
        super().__init__()
        self.check_arguments(
            (strength >= 0, "strength should be zero or more", strength),
            (every >= 1, "every should be at least one epoch", every),
            (times >= 0, "times should be zero or more", times),
        )
        self.strength, self.every, self.times = strength, every, times
        self.add_state("amount")  # a_m of the last diagnosis
        self._initial: dict[str, list[Tensor]] = {}
        self._waits = False  # for the first step of the next epoch

    def weigh(self, values: LossValues) -> Weights:
        """Joint training."""
        return Weights.joint(values)

    def act(self, losses: Mapping[str, Tensor], weights: Weights, *, scored: bool) -> None:  # noqa: ARG002
        """Keep the weights that encoders begin with, at the first step."""
        if not self._initial:
            for name, parameters in self.encoder_parameters().items():
                self._initial[name] = [tensor.detach().clone() for tensor in parameters]

    def attached(self, model: nn.Module | None) -> None:
        """Another model begins with other weights."""
        if self._attachment is not None and self._attachment.model is not model:
            self._initial = {}

    @property
    def needs_now(self) -> tuple[str, ...]:
        """Purities, in the epochs after which encoders re-learn."""
        done = int(self.epoch) + 1
        return self.needs if done % self.every == 0 and done // self.every <= self.times else ()

    def learn(self, metrics: dict[str, Tensor]) -> None:
        """Decide how far each encoder is put back."""
        if not metrics:
            return
        self.amount.copy_(torch.tanh(self.strength * (metrics["purity_train"] - metrics["purity_validation"]).abs()))
        self._waits = True
        if not self.follows_optimizer:
            self.stepped()

    @torch.no_grad()
    def stepped(self, taken: Tensor | int = 1) -> None:  # noqa: ARG002
        """Put encoders back, after the first step of an epoch that follows a diagnosis."""
        if not self._waits:
            return
        parameters = self.encoder_parameters()
        for name, amount in zip(self.modalities, self.amount.unbind(), strict=True):
            for tensor, initial in zip(parameters.get(name, []), self._initial.get(name, []), strict=False):
                tensor.lerp_(initial.to(tensor), amount.to(tensor.dtype))
        self._waits = False

    @property
    def phase(self) -> tuple[str, ...]:
        """A mark of the one step that puts encoders back."""
        return ("puts back",) if self._waits else ()

    def host_state(self) -> dict[str, Any]:
        """Return the weights that encoders began with."""
        return {"initial": self._initial, "waits": self._waits}

    def load_host_state(self, state: dict[str, Any]) -> None:
        """Go on with the weights that the saved run began with."""
        self._initial = {name: list(tensors) for name, tensors in state["initial"].items()}
        self._waits = state["waits"]

    def task_problem(self, kind: str) -> str:
        """Clusters are pure in classes."""
        return (
            ""
            if kind == "classes"
            else "Relearn asks how pure clusters of features are in classes, which several labels and numbers do not "
            "have; choose msl, ogm or mslr"
        )

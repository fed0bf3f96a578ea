"""The one loop: any method, any data, on Accelerate.

Read it top down: `train` is the story, the rest are its words. The test part is never touched here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import checkpoint
from equipoise.balancer import Balancer
from equipoise.data.splits import Part, Splits
from equipoise.machinery import batches, make_accelerator, make_optimizer, make_schedule, pieces
from equipoise.models import LateFusion, encoder_for
from equipoise.models.evaluation import evaluating
from equipoise.settings import Settings

Record = dict[str, Any]
"""What one epoch showed: its number, seconds, training losses, validation accuracies, and the balancing table."""


@final
@dataclass
class Trained:
    """What came out of a run.

    Args:
        model: With the weights of the selected epoch.
        curves: One record per epoch.
        epoch: The selected epoch, counted from one; 0 where nothing was trained.
        seconds: Time spent training, over all sittings.
        device: Where it ran.
    """

    model: LateFusion
    curves: list[Record] = field(default_factory=list)
    epoch: int = 0
    seconds: float = 0.0
    device: str = "cpu"


def train(
    splits: Splits,
    balancer: Balancer,
    settings: Settings | None = None,
    *,
    seed: int = 0,
    folder: Path | None = None,
    on_epoch: Callable[[Record], None] | None = None,
    checkpoint_seconds: float = 10.0,
    trackers: Sequence[str] = (),
) -> Trained:
    """Train a model on the training part, watching the validation part.

    Args:
        splits: The data.
        balancer: The method; a fresh one for each run.
        settings: How to build and train the model.
        seed: Of weights, batches and dropout.
        folder: Where to keep checkpoints. A run that finds one there goes on from it, to the same bits on a CPU.
        on_epoch: Called after each epoch with what it showed.
        checkpoint_seconds: Least time between two checkpoints.
        trackers: Names of Accelerate's trackers ("tensorboard", "wandb", "mlflow") to log every epoch to.

    Example:
        >>> from equipoise import MIMO
        >>> from equipoise.data.generated import two_sensors
        >>> result = train(two_sensors(samples=60), MIMO(), Settings(epochs=2, batch=20))
        >>> sorted(result.curves[-1]["validation"])
        ['easy', 'fused', 'hard']
    """
    settings = settings or Settings()
    run = _Run(splits, balancer, settings, seed, folder, trackers)
    run.resume()
    while run.epoch < settings.epochs and not run.finished():
        started = time.perf_counter()
        losses = run.one_epoch()
        record = run.look(losses, time.perf_counter() - started)
        if on_epoch is not None:
            on_epoch(record)
        if folder is not None and (run.since_checkpoint() >= checkpoint_seconds or run.epoch == settings.epochs):
            run.save()
    return run.result()


@final
class _Run:
    """The state of a run and the verbs of `train`."""

    def __init__(
        self,
        splits: Splits,
        balancer: Balancer,
        settings: Settings,
        seed: int,
        folder: Path | None,
        trackers: Sequence[str],
    ) -> None:
        torch.manual_seed(seed)
        self.settings, self.balancer, self.folder = settings, balancer, folder
        self.accelerator = make_accelerator(settings, trackers, folder)
        device = self.accelerator.device
        self.train, self.validation = splits.train.to(device), splits.validation.to(device)
        self.model = build_model(splits, balancer, settings).to(device)
        if settings.compile:
            self.model.compile_encoders()
        plain = make_optimizer(self.model, settings)
        self.optimizer = self.accelerator.prepare_optimizer(plain)
        self.schedule = make_schedule(plain, settings)
        balancer.to(device).attach(self.model, optimizer=plain)
        self.shuffle = torch.Generator().manual_seed(seed)
        self.curves: list[Record] = []
        self.epoch, self.seconds, self._saved = 0, 0.0, time.perf_counter()
        self.best: tuple[float, int, dict[str, Tensor]] = (-1.0, 0, {})

    def one_epoch(self) -> dict[str, float]:
        """Train on every batch once; the mean loss of each objective."""
        self.model.train()
        sums: dict[str, Tensor] = {}
        count = 0
        for part in batches(self.train, self.settings.batch, self.shuffle):
            for micro in pieces(part, self.settings.accumulate):
                with self.accelerator.autocast():
                    loss, seen = losses_of(self.model, self.balancer, micro)
                self.accelerator.backward(loss * (len(micro) / len(part)))
                for name, value in seen.items():
                    sums[name] = sums.get(name, 0) + value.detach().sum()
            if self.settings.clip is not None:
                self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            count += len(part)
        if self.schedule is not None:
            self.schedule.step()
        return {name: float(total) / max(count, 1) for name, total in sums.items()}

    def look(self, losses: dict[str, float], seconds: float) -> Record:
        """Evaluate on the validation part, tell the method, and keep the best."""
        self.epoch += 1
        self.seconds += seconds
        found = evaluate(self.model, self.validation)
        table = self.balancer.table.numbers()
        self.balancer.end_epoch({name: found[name] for name in self.balancer.modalities if name in found})
        validation = {name: values["accuracy"] for name, values in found.items()}
        record: Record = {"epoch": self.epoch, "seconds": seconds, "train": losses, "validation": validation}
        record["table"] = table
        self.curves.append(record)
        score = _headline(self.balancer, validation)
        if score > self.best[0]:
            keep = self.settings.select == "best"
            weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()} if keep else {}
            self.best = (score, self.epoch, weights)
        self.accelerator.log({f"validation/{name}": value for name, value in validation.items()}, step=self.epoch)
        return record

    def finished(self) -> bool:
        """Whether patience has run out."""
        patience = self.settings.patience
        return patience is not None and self.epoch - self.best[1] >= patience and self.epoch > 0

    def since_checkpoint(self) -> float:
        """Seconds since the state was last written."""
        return time.perf_counter() - self._saved

    def save(self) -> None:
        """Write everything that the rest of the run depends on."""
        assert self.folder is not None
        rest = {
            "epoch": self.epoch,
            "seconds": self.seconds,
            "curves": self.curves,
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "balancer": self.balancer.state_dict(),
            "scaler": None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict(),
            "shuffle": self.shuffle.get_state(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if self.accelerator.device.type == "cuda" else [],
        }
        checkpoint.save(self.folder, self.epoch, self.model, rest)
        self._saved = time.perf_counter()

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        rest = checkpoint.load(self.folder, self.model) if self.folder is not None else None
        if rest is None:
            return
        self.epoch, self.seconds, self.curves = rest["epoch"], rest["seconds"], rest["curves"]
        self.best = tuple(rest["best"])
        self.optimizer.load_state_dict(rest["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(rest["schedule"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(rest["scaler"])
        self.balancer.load_state_dict(rest["balancer"])
        self.shuffle.set_state(rest["shuffle"])
        torch.set_rng_state(rest["random"])
        if rest["random_cuda"]:
            torch.cuda.set_rng_state_all(rest["random_cuda"])

    def result(self) -> Trained:
        """The model of the selected epoch."""
        epoch = self.epoch
        if self.settings.select == "best" and self.best[2]:
            self.model.load_state_dict(self.best[2])
            epoch = self.best[1]
        self.accelerator.end_training()
        return Trained(self.model, self.curves, epoch, self.seconds, str(self.accelerator.device))


def build_model(splits: Splits, balancer: Balancer, settings: Settings) -> LateFusion:
    """A late-fusion model for this data, whose uni-modal heads learn with the encoders or beside them."""
    encoders = {name: encoder_for(shape, settings.features) for name, shape in splits.shapes.items()}
    view = "head" if balancer.unimodal == "head" else "detached"
    return LateFusion(encoders, len(splits.classes), fusion=settings.fusion, unimodal=view, dropout=settings.dropout)


def losses_of(model: LateFusion, balancer: Balancer, part: Part) -> tuple[Tensor, dict[str, Tensor]]:
    """The balanced loss of a batch, and the losses of its samples by objective."""
    compared, beside, seen = step_losses(model, balancer, part)
    return balancer(compared, extra=beside), seen


Losses = dict[str, Tensor]


def step_losses(model: LateFusion, balancer: Balancer, part: Part) -> tuple[Losses, Losses | None, Losses]:
    """What a balancer is given for a batch, what learns beside it, and the losses of the model's own outputs.

    A method that compares shares of the fused output gets those; the heads that are measured then learn beside it.
    """
    if balancer.unimodal == "split" and model.unimodal == "detached" and model.fusion.additive:
        outputs, shares = model.with_shares(part.inputs)
        seen = _cross_entropies(outputs, part.label)
        compared = {"fused": seen["fused"], **_cross_entropies(shares, part.label)}
        beside = torch.stack([loss.mean() for name, loss in seen.items() if name != "fused"]).sum()
        return compared, {"heads beside": beside}, seen
    seen = _cross_entropies(model(part.inputs), part.label)
    return seen, None, seen


def evaluate(model: LateFusion, part: Part, batch: int = 1024) -> dict[str, dict[str, float]]:
    """Loss and accuracy of the fused decision and of every head, counting each sample once."""
    sums: dict[str, Tensor] = {}
    with evaluating(model), torch.no_grad():
        for rows in torch.arange(len(part), device=part.label.device).split(batch):
            some = part.take(rows)
            for name, logits in model(some.inputs).items():
                loss = F.cross_entropy(logits, some.label, reduction="sum")
                hits = (logits.argmax(dim=1) == some.label).sum()
                sums[name] = sums.get(name, 0) + torch.stack([loss, hits])
    return {
        name: dict(zip(("loss", "accuracy"), (total / len(part)).tolist(), strict=True)) for name, total in sums.items()
    }


def _cross_entropies(outputs: dict[str, Tensor], label: Tensor) -> dict[str, Tensor]:
    return {name: F.cross_entropy(logits, label, reduction="none") for name, logits in outputs.items()}


def _headline(balancer: Balancer, validation: dict[str, float]) -> float:
    """What an epoch is judged by: the fused accuracy, or the mean of the modalities where none is fused."""
    if balancer.needs_fused:
        return validation["fused"]
    alone = [value for name, value in validation.items() if name != "fused"]
    return sum(alone) / len(alone)

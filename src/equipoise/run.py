"""A training run: its state, and the verbs that the loop is told in."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from equipoise import checkpoint, safe_step
from equipoise.balancer import Balancer
from equipoise.capture import EARNS, Player
from equipoise.compiling import Compiling
from equipoise.data.feed import Batch, Feed, epoch_rows
from equipoise.data.splits import Splits
from equipoise.machinery import (
    make_accelerator,
    make_optimizer,
    make_schedule,
    pieces,
    precision_of,
    why_not_captured,
)
from equipoise.models import LateFusion
from equipoise.settings import Settings
from equipoise.step import build_model, evaluate, losses_of
from equipoise.tracking import Trackers, numbers

WITHIN_EPOCH = 1.0  # seconds an epoch lasts at least before it is kept half done
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
        path: How: its precision, and whether steps were "captured" and encoders "compiled", or why not.
    """

    model: LateFusion
    curves: list[Record] = field(default_factory=list)
    epoch: int = 0
    seconds: float = 0.0
    device: str = "cpu"
    path: dict[str, str] = field(default_factory=dict)


@final
class Run:
    """The state of a run and the verbs of `train`, whose arguments it has."""

    def __init__(
        self,
        splits: Splits,
        balancer: Balancer,
        settings: Settings,
        seed: int,
        folder: Path | None,
        trackers: Trackers,
        checkpoint_seconds: float,
    ) -> None:
        torch.manual_seed(seed)
        self.settings, self.balancer, self.folder = settings, balancer, folder
        self.checkpoint_seconds = checkpoint_seconds
        self.accelerator = make_accelerator(settings, trackers, folder)
        device = self.accelerator.device
        self.train = Feed(splits.train, device, settings.feed, seed)
        self.validation = Feed(splits.validation, device, settings.feed)
        self.model = build_model(splits, balancer, settings).to(device)
        self.precision = precision_of(settings, device)
        if device.type == "cuda" and not settings.deterministic:
            # Matrix units read channels last; with few channels, batch statistics of the other layout take 3 × as long.
            self.model.to(memory_format=torch.channels_last)  # ty: ignore[no-matching-overload]
        self.compiling = Compiling(self.model, settings, splits.shapes, self.precision)
        steps = settings.epochs * (len(self.train) // settings.batch)
        why_not = why_not_captured(settings, device, self.accelerator.num_processes, steps, EARNS)
        self.plain = make_optimizer(self.model, settings, recorded=not why_not)
        self.optimizer = self.accelerator.prepare_optimizer(self.plain)
        self.schedule = make_schedule(self.plain, settings)
        self.attach()
        self.play = Player(self.step, self.attach, balancer, self.train, settings.batch, why_not)
        self.shuffle = torch.Generator().manual_seed(seed)
        self.shuffle_before = self.shuffle.get_state()  # of the epoch under way
        self.curves: list[Record] = []
        self.best: tuple[float, int, dict[str, Tensor]] = (-1.0, 0, {})
        self.epoch, self.seconds = 0, 0.0
        self.batch, self.samples, self.epoch_seconds = 0, 0, 0.0  # of the epoch under way
        self.sums: dict[str, Tensor] = {}
        self._saved, self._save_seconds = time.perf_counter(), 0.0

    def one_epoch(self) -> dict[str, float]:
        """Train on every batch once, or on those that were left; the mean loss of each objective."""
        self.model.train()
        self.shuffle_before = self.shuffle.get_state()
        rows = epoch_rows(len(self.train), self.settings.batch, self.shuffle)
        self._clock = time.perf_counter() - self.epoch_seconds
        for batch in self.train.batches(rows[self.batch :]):
            self.train.seed_views(self.epoch, self.batch)
            self.play(batch)
            self.samples += len(batch)
            self.batch += 1
            if self.batch < len(rows) and self.since_checkpoint() >= self._patience():
                self.save()
        if self.schedule is not None:
            self.schedule.step()
        return {name: float(total) / max(self.samples, 1) for name, total in self.sums.items()}

    def step(self, batch: Batch) -> None:
        """Everything one batch does; nothing here waits, and what outlives the step is changed in place."""
        part = self.train.made(batch)
        for micro in pieces(part, self.settings.accumulate):
            with self.accelerator.autocast():
                loss, seen = losses_of(self.model, self.balancer, micro)
            self.accelerator.backward(loss * (len(micro) / len(part)))
            for name, value in seen.items():
                total = value.detach().sum()
                self.sums.setdefault(name, torch.zeros_like(total)).add_(total)
        if self.settings.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def attach(self) -> None:
        """Tell the method about the model, or tell it again."""
        self.plain.zero_grad()
        self.balancer.to(self.accelerator.device).attach(self.model, optimizer=self.plain)

    def look(self, losses: dict[str, float]) -> Record:
        """Evaluate on the validation part, tell the method, and keep the best."""
        self.epoch += 1
        seconds = time.perf_counter() - self._clock
        self.seconds += seconds
        whole = self.epoch_seconds == 0  # no part of it in an earlier sitting
        self.batch, self.samples, self.epoch_seconds = 0, 0, 0.0
        for total in self.sums.values():
            total.zero_()
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
        self.accelerator.log(numbers(record), step=self.epoch)
        if self.compiling.changes(seconds, self.epoch, whole=whole):
            self.attach()
            self.play.start_again()
        return record

    def finished(self) -> bool:
        """Whether patience has run out."""
        patience = self.settings.patience
        return patience is not None and self.epoch - self.best[1] >= patience and self.epoch > 0

    def since_checkpoint(self) -> float:
        """Seconds since the state was last written."""
        return time.perf_counter() - self._saved

    def _patience(self) -> float:
        """Least time between two checkpoints inside an epoch: short ones need none, and writing should cost little."""
        return max(self.checkpoint_seconds, WITHIN_EPOCH, 30 * self._save_seconds)

    def save(self) -> None:
        """Write everything that the rest of the run depends on."""
        if self.folder is None:
            self._saved = time.perf_counter()
            return
        started = time.perf_counter()
        rest = {
            "epoch": self.epoch,
            "seconds": self.seconds,
            "batch": self.batch,
            "samples": self.samples,
            "sums": self.sums,
            "epoch_seconds": started - self._clock if self.batch else 0.0,
            "curves": self.curves,
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "balancer": self.balancer.state_dict(),
            "scaler": None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict(),
            "shuffle": self.shuffle_before if self.batch else self.shuffle.get_state(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if self.accelerator.device.type == "cuda" else [],
        }
        checkpoint.save(self.folder, self.epoch, self.model, rest, batch=self.batch)
        self._saved = time.perf_counter()
        self._save_seconds = self._saved - started

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        rest = checkpoint.load(self.folder, self.model) if self.folder is not None else None
        if rest is None:
            return
        self.epoch, self.seconds, self.curves = rest["epoch"], rest["seconds"], rest["curves"]
        self.best = tuple(rest["best"])
        self.batch, self.samples, self.epoch_seconds = rest["batch"], rest["samples"], rest["epoch_seconds"]
        self.sums = {name: total.to(self.accelerator.device) for name, total in rest["sums"].items()}
        for record in self.curves:  # a tracker may take this sitting for a run of its own
            self.accelerator.log(numbers(record), step=record["epoch"])
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
        path = {"precision": self.precision, "captured": self.play.why_not or "yes", "compiled": self.compiling.told}
        path |= safe_step.learning_rate(self.settings, self.plain)
        return Trained(self.model, self.curves, epoch, self.seconds, str(self.accelerator.device), path)


def _headline(balancer: Balancer, validation: dict[str, float]) -> float:
    """What an epoch is judged by: the fused accuracy, or the mean of the modalities where none is fused."""
    if balancer.needs_fused:
        return validation["fused"]
    alone = [value for name, value in validation.items() if name != "fused"]
    return sum(alone) / len(alone)

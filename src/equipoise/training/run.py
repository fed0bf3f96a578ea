"""A training run: its state, and the verbs that the loop is told in."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.data.feed import Batch, Feed, Piece, epoch_rows, mixed, share_of_rank
from equipoise.data.splits import Splits
from equipoise.methods.agm import ApproximationWarning
from equipoise.models import LateFusion
from equipoise.training import distributed, safe_step
from equipoise.training.cadence import Cadence
from equipoise.training.capture import EARNS, Player
from equipoise.training.compiling import Compiling
from equipoise.training.distributed_model import spread
from equipoise.training.machinery import (
    make_accelerator,
    make_optimizer,
    make_schedule,
    precision_of,
    split,
    to_channels_last,
    why_not_captured,
)
from equipoise.training.resuming import save
from equipoise.training.settings import Settings
from equipoise.training.step import build_model, evaluate, losses_of
from equipoise.training.tracking import Trackers, numbers

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
        steps: Of an epoch.
    """

    model: LateFusion
    curves: list[Record] = field(default_factory=list)
    epoch: int = 0
    seconds: float = 0.0
    device: str = "cpu"
    path: dict[str, str] = field(default_factory=dict)
    steps: int = 0


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
        distributed.check(settings, balancer)
        torch.manual_seed(seed)
        self.settings, self.balancer, self.folder = settings, balancer, folder
        self.accelerator = make_accelerator(settings, trackers, folder)
        device = self.accelerator.device
        place = {"rank": collectives.rank(), "ranks": collectives.size()}
        self.train = Feed(splits.train, device, settings.feed, seed, **place)
        self.validation = Feed(splits.validation, device, settings.feed, **place)
        self.model = build_model(splits, balancer, settings).to(device)
        self.precision = precision_of(settings, device)
        if device.type == "cuda" and not settings.deterministic:
            # Matrix units read channels last; with few channels, batch statistics of the other layout take 3 × as long.
            to_channels_last(self.model)
        self.spread = spread(self.model, settings, device)
        compiles = settings if self.spread.attaches else settings.changed({"compile": False})
        self.compiling = Compiling(self.model, compiles)
        if not self.spread.attaches:
            self.compiling.told = "no: each process holds a piece of the model"
        steps = settings.epochs * (len(self.train) // settings.batch)
        why_not = why_not_captured(settings, device, self.accelerator.num_processes, steps, EARNS)
        self.plain = make_optimizer(self.model, settings, recorded=not why_not)
        # Alone and without a scaler, Accelerate's wrappers only pass on what they are told, which takes time on a CPU.
        bare = self.accelerator.scaler is None and self.accelerator.num_processes == 1
        self.optimizer = self.plain if bare else self.accelerator.prepare_optimizer(self.plain)
        self.backward = torch.Tensor.backward if bare else self.accelerator.backward
        self.schedule = make_schedule(self.plain, settings)
        self.attach()
        self.play = Player(self.step, self.attach, balancer, self.train, settings.batch, why_not)
        self.shuffle = torch.Generator().manual_seed(seed)
        self.shuffle_before = self.shuffle.get_state()  # of the epoch under way
        self.curves: list[Record] = []
        self.best: tuple[float, int, dict[str, Tensor]] = (-1.0, 0, {})
        self.epoch, self.seconds = 0, 0.0
        self.batch, self.samples, self.epoch_seconds = 0, 0, 0.0  # of the epoch under way
        self.sums: dict[str, Tensor] = {}  # of the samples this process has seen
        self.cadence = Cadence(checkpoint_seconds)

    @property
    def leads(self) -> bool:
        """Whether this process is the one that tells and writes."""
        return collectives.rank() == 0

    def epoch_lasted(self) -> float:
        """Seconds of the epoch under way, over all sittings."""
        return time.perf_counter() - self._clock

    def choose_step(self) -> None:
        """Set the learning rate, where the settings leave it to theory: every process to that of the first."""
        if self.settings.step == "given":
            return
        model = self.spread.whole().to(self.accelerator.device)
        with collectives.single_rank():
            safe_step.before_epoch(self.settings, self.epoch, self.batch, model, self.balancer, self.train, self.plain)
        if collectives.size() > 1:
            for group in self.plain.param_groups:
                group["lr"] = distributed.agreed(float(group["lr"]))

    def one_epoch(self) -> Record:
        """Train on every batch once, or on those that were left; what that showed."""
        for left in self.steps():
            if left and self.cadence.due_within(self.batch, self._clock):
                save(self)
        return self.end_epoch()

    def steps(self) -> Iterator[int]:
        """Take the steps of an epoch, or those that were left, each when it is asked for; how many are to come.

        Whoever leaves in the middle goes on from a checkpoint: asked anew, the order of the samples would be another.
        """
        self.model.train()
        self.shuffle_before = self.shuffle.get_state()
        rows = epoch_rows(len(self.train), self.settings.batch, self.shuffle)
        accumulate = self.settings.accumulate
        shares = [
            share_of_rank(each, collectives.rank(), collectives.size(), accumulate) for each in rows[self.batch :]
        ]
        self._whole = self.batch == 0  # no part of it in an earlier sitting
        self._clock = time.perf_counter() - self.epoch_seconds
        self.cadence.new_epoch()
        for pieces, batch in zip(shares, self.train.batches([_together(each) for each in shares]), strict=True):
            self.pieces = pieces
            self.train.seed_views(self.epoch, self.batch)
            if collectives.size() > 1:  # dropout draws differently on each, and does not depend on what came before
                torch.manual_seed(mixed(self.train.seed_of(self.epoch, self.batch), 1))
            with self.compiling.searching(full=len(rows[self.batch]) == self.settings.batch):
                self.play(batch)
            self.samples += len(rows[self.batch])
            self.batch += 1
            yield len(rows) - self.batch

    def step(self, batch: Batch) -> None:
        """Everything one batch does; nothing here waits, and what outlives the step is changed in place."""
        self.spread.share_buffers()
        part = self.train.made(batch)
        for piece, micro in zip(self.pieces, split(part, [len(each.rows) for each in self.pieces]), strict=True):
            with self.spread.meeting(last=piece is self.pieces[-1]):
                with self.accelerator.autocast(), collectives.rank_weight(piece.share):
                    loss, seen = losses_of(self.spread.called, self.balancer, micro)
                self.backward(loss * piece.weight)
            for name, value in seen.items():
                total = value.detach().sum() if piece.weight else torch.zeros_like(value.detach().sum())
                self.sums.setdefault(name, torch.zeros_like(total)).add_(total)
        if self.settings.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def attach(self) -> None:
        """Tell the method about the model, or tell it again."""
        self.plain.zero_grad()
        self.balancer.to(self.accelerator.device)
        if self.spread.attaches:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ApproximationWarning)  # the row says which form was taken
                self.balancer.attach(self.model, optimizer=self.plain)

    def end_epoch(self) -> Record:
        """Move the schedule on, and count from the start again; what training showed: the mean loss per objective."""
        if self.schedule is not None:
            self.schedule.step()
        totals = collectives.total(torch.stack(list(self.sums.values()))).tolist() if self.sums else []
        losses = {name: total / max(self.samples, 1) for name, total in zip(self.sums, totals, strict=True)}
        seconds = distributed.agreed(self.epoch_lasted())
        self.epoch += 1
        self.seconds += seconds
        self.batch, self.samples, self.epoch_seconds = 0, 0, 0.0
        for total in self.sums.values():
            total.zero_()
        return {"epoch": self.epoch, "seconds": seconds, "train": losses}

    def look(self, record: Record) -> Record:
        """Evaluate on the validation part, tell the method, and keep the best; the record of the epoch, filled in."""
        self.spread.share_buffers()
        found = evaluate(self.model, self.validation)
        table = self.balancer.table.numbers()
        self.balancer.end_epoch({name: found[name] for name in self.balancer.modalities if name in found})
        validation = {name: values["accuracy"] for name, values in found.items()}
        if not self.balancer.needs_fused:  # the fused head is as it was drawn: what it says is no result
            validation.pop("fused")
            record["train"].pop("fused", None)
        record |= {"validation": validation, "table": table}
        self.curves.append(record)
        score = _headline(self.balancer, validation)
        if score > self.best[0]:
            keep = self.settings.select == "best"
            weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()} if keep else {}
            self.best = (score, self.epoch, weights)
        self.accelerator.log(numbers(record), step=self.epoch)
        if self.compiling.changes(record["seconds"], self.epoch, whole=self._whole):
            self.attach()
            self.play.start_again()
        return record

    def finished(self) -> bool:
        """Whether patience has run out."""
        patience = self.settings.patience
        return patience is not None and self.epoch - self.best[1] >= patience and self.epoch > 0

    def result(self) -> Trained:
        """The model of the selected epoch."""
        epoch = self.epoch
        if self.settings.select == "best" and self.best[2]:
            self.model.load_state_dict(self.best[2])
            epoch = self.best[1]
        for tracker in self.accelerator.trackers:  # not `end_training`: several processes go on together
            tracker.finish()
        path = {"precision": self.precision, "captured": self.play.why_not or "yes", "compiled": self.compiling.told}
        path |= safe_step.learning_rate(self.settings, self.plain) | self.balancer.remarks
        if collectives.size() > 1:
            path["processes"] = f"{collectives.size()}, {self.spread.told}"
        self.spread.share_buffers()
        model = self.spread.whole().to(self.accelerator.device)
        steps = len(epoch_rows(len(self.train), self.settings.batch, torch.Generator()))
        return Trained(model, self.curves, epoch, self.seconds, str(self.accelerator.device), path, steps)


def _headline(balancer: Balancer, validation: dict[str, float]) -> float:
    """What an epoch is judged by: the fused accuracy, or the mean of the modalities where none is fused."""
    if balancer.needs_fused:
        return validation["fused"]
    alone = [value for name, value in validation.items() if name != "fused"]
    return sum(alone) / len(alone)


def _together(pieces: list[Piece]) -> Tensor:
    return pieces[0].rows if len(pieces) == 1 else torch.cat([each.rows for each in pieces])

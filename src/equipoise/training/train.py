"""The training loop: any method, any data, on Accelerate.

`train` is the loop, `Run` its state, `equipoise.training.step.TrainingStep` the step. The test part is never used here.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.balance.optimum import means_over_ranks
from equipoise.balance.theory import Trajectory
from equipoise.data.feed import Feed, epoch_rows, epoch_steps, micro_batches, mix_seeds
from equipoise.data.splits import Splits
from equipoise.methods.unimodal import Unimodal
from equipoise.models.fusion_model import FusionModel
from equipoise.models.hybrid_fusion import HybridFusion
from equipoise.models.metrics import metric_of
from equipoise.training import launch, optimisers
from equipoise.training.attention import attention_of
from equipoise.training.average import WeightAverage
from equipoise.training.checkpoint import Checkpoints, RunState
from equipoise.training.compile import Compiler
from equipoise.training.components import read_inputs, with_components
from equipoise.training.cuda_graph import CapturedStep, why_not_captured
from equipoise.training.parallel import parallel_model
from equipoise.training.purities import purities
from equipoise.training.recipe import RECIPE, resolved
from equipoise.training.settings import Settings
from equipoise.training.step import Losses, TrainingStep, build_model, evaluate, to_channels_last
from equipoise.training.trackers import Trackers, flat_numbers
from equipoise.training.twin import Twin, check_twin, refer, tracks

Record = dict[str, Any]
"""Results of one epoch: its number, seconds, training losses, the metric on validation, and the balancing table."""


@final
@dataclass
class Trained:
    """Result of a run.

    Args:
        model: With the weights of the selected epoch.
        curves: One record per epoch.
        epoch: The selected epoch, counted from one; 0 where nothing was trained.
        seconds: Time spent training, also before it was resumed.
        device: Where it ran.
        path: How: its precision, and whether steps were "captured" and encoders "compiled", or why not.
        steps: Of an epoch.
        trackers: Those that were left open.
    """

    model: FusionModel
    curves: list[Record] = field(default_factory=list)
    epoch: int = 0
    seconds: float = 0.0
    device: str = "cpu"
    path: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    trackers: Sequence[Any] = ()


def train(
    splits: Splits,
    balancer: Balancer,
    settings: Settings | None = None,
    *,
    seed: int = 0,
    folder: Path | None = None,
    on_epoch: Callable[[Record], None] | None = None,
    checkpoint_seconds: float = 10.0,
    trackers: Trackers | None = None,
    trajectories: Path | None = None,
) -> Trained:
    """Train a model on the training part, watching the validation part.

    Where `torchrun` or `accelerate launch` started this process, all of them train one model together.

    Args:
        splits: The data.
        balancer: The method; a fresh one for each run.
        settings: How to build and train the model; None for the recipe that needs no tuning.
        seed: Of weights, batches and dropout.
        folder: Where to keep checkpoints. A run that finds one there goes on from it, to the same bits on a CPU.
        on_epoch: Called after each epoch with its record; of several processes, in the first alone.
        checkpoint_seconds: Least time between two checkpoints.
        trackers: Where to log every epoch: `Trackers(("tensorboard",))`.
        trajectories: Where uni-modal runs are kept that a method compares with (``optimum="trajectory"``), to be shared
            by runs with the same data and settings; None keeps it in the folder of the run.

    Raises:
        TypeError: If the method is a name or a class.

    Example:
        >>> from equipoise import MIMO
        >>> from equipoise.data.bundled import two_sensors
        >>> result = train(two_sensors(samples=60), MIMO(), Settings(epochs=2, batch=20))
        >>> sorted(result.curves[-1]["validation"])
        ['easy', 'fused', 'hard']
    """
    if not isinstance(balancer, Balancer):
        name = balancer.__name__ if isinstance(balancer, type) else "MIMO"
        raise TypeError(f"train expected a method that was made, such as {name}(); found {balancer!r}.")
    state: launch.SharedState = {}
    with launch.accelerate_state(state):
        chosen = settings or RECIPE
        if trajectories is None and folder is not None:
            trajectories = folder / "trajectories"

        def tell(record: Record) -> None:
            if on_epoch is not None and collectives.rank() == 0:
                with launch.accelerate_state(state):  # of the caller, whose function this is
                    on_epoch(record)

        record_first = partial(record_unimodal, on_epoch=tell)
        refer(balancer, splits, resolved(chosen, len(splits.train)), trajectories, record_first)
        run = Run(splits, balancer, chosen, seed, folder, trackers, checkpoint_seconds)
        run.resume()
        epochs = run.settings.passes
        while run.state.epoch < epochs and not run.out_of_patience():
            tell(run.validate(run.train_epoch()))
            if run.checkpoints.due() or run.state.epoch == epochs:
                run.checkpoints.save()
        return run.result()


def record_unimodal(
    splits: Splits, settings: Settings, folder: Path | None, on_epoch: Callable[[Record], None]
) -> Trajectory:
    """Train every modality alone, and return the losses of each step; resumed from the folder after an interruption.

    Of a run that diverges, the steps until then: f* stays where it was, and the model may do better.
    """
    # Losses are kept on the host's list step by step, which a captured step cannot do.
    run = Run(splits, Unimodal(), settings.changed({"capture": False}), folder=folder, checkpoint_seconds=10.0)
    run.record()
    run.resume()
    while run.state.epoch < settings.passes:
        try:
            record = run.validate(run.train_epoch())
        except FloatingPointError:
            if not run.trajectory.state_dict():
                raise
            break
        on_epoch({**record, "stage": "uni-modal run first", "overall": (run.state.epoch, 2 * settings.passes)})
        if run.checkpoints.due() or run.state.epoch == settings.passes:
            run.checkpoints.save()
    return run.trajectory


def score_of(validation: Mapping[str, float | None]) -> float:
    """Return the score of an epoch: the metric of the fused decision, or the mean of the modalities without one.

    NaN where the metric cannot be told.
    """
    values = [validation["fused"]] if "fused" in validation else list(validation.values())
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


@final
class Run:
    """A run, whose arguments are those of `train`, and the parts of its loop."""

    def __init__(
        self,
        splits: Splits,
        balancer: Balancer,
        settings: Settings,
        seed: int = 0,
        folder: Path | None = None,
        trackers: Trackers | None = None,
        checkpoint_seconds: float = float("inf"),
    ) -> None:
        launch.check_launch(settings, balancer)
        check_twin(balancer, settings)
        settings = resolved(settings, len(splits.train))
        self.metric = metric_of(settings.metric, splits.task)
        torch.manual_seed(seed)
        self.settings, self.state = settings, RunState(torch.Generator().manual_seed(seed))
        self.leaves_open = trackers is not None and trackers.stays_open
        self.accelerator = launch.make_accelerator(settings, trackers or Trackers(), folder)
        device = self.accelerator.device
        ranks: dict[str, Any] = {"rank": collectives.rank(), "ranks": collectives.size()}
        self.model = build_model(splits, balancer, settings)
        given, splits = splits, with_components(self.model, splits)
        self.model.to(device)
        self.feed = Feed(splits.train, device, settings.feed, seed, **ranks, augment=settings.augment == "auto")
        self.validation = Feed(splits.validation, device, settings.feed, **ranks)
        if device.type == "cuda" and not settings.deterministic:
            # Matrix units read channels last; with few channels, batch statistics of the other layout take 3 × as long.
            to_channels_last(self.model)
        model = parallel_model(self.model, settings, device)
        self.compiler = Compiler(self.model, settings, sharded=model.sharded)
        steps = settings.passes * (len(self.feed) // settings.batch)
        why_not = why_not_captured(settings, device, self.accelerator.num_processes, steps)
        optimizer = optimisers.make_optimizer(self.model, settings, captured=not why_not)
        self.average = WeightAverage(self.model, settings.average) if settings.average else None
        self.step = TrainingStep(
            model, balancer, self.feed, optimizer, self.accelerator, settings.clip, self.state.sums, self.average
        )
        self.steps_of_epoch = epoch_steps(len(self.feed), settings.batch)
        self.schedule = optimisers.make_schedule(optimizer, settings, self.steps_of_epoch)
        self.step.attach()
        self.captured = CapturedStep(self.step, settings.batch, why_not)
        self.twin: Twin | None = None
        if (tracking := tracks(balancer)) is not None:
            self.twin = Twin(tracking, given, settings, self.feed, self.accelerator, self.steps_of_epoch, why_not)
        scaler = self.accelerator.scaler
        parts = {"optimizer": optimizer, "schedule": self.schedule, "balancer": balancer, "scaler": scaler}
        self.trajectory = Trajectory()
        parts |= {"average": self.average, "twin": self.twin, "trajectory": self.trajectory}
        self.checkpoints = Checkpoints(folder, checkpoint_seconds, model, self.state, parts)

    def record(self) -> None:
        """Record the losses of every step in `trajectory`."""

        def note(losses: Losses, present: Losses) -> None:
            names = self.step.balancer.modalities
            means, _ = means_over_ranks(losses, present, names)
            self.trajectory.record(dict(zip(names, means.unbind(), strict=True)))

        self.step.on_losses = note

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        self.checkpoints.resume()
        for record in self.state.curves:  # a tracker may take what follows for a run of its own
            self.accelerator.log(flat_numbers(record), step=record["epoch"])

    def train_epoch(self) -> Record:
        """Train on every batch once, or on those that were left, and write checkpoints on the way."""
        for left in self.steps():
            if left and self.checkpoints.due_within():
                self.checkpoints.save()
        return self.end_epoch()

    def steps(self) -> Iterator[int]:
        """Take the steps of an epoch, or those that were left, each when it is asked for; yield how many are to come.

        A run that is left in the middle goes on from a checkpoint: asked anew, the order of the samples is another.
        """
        self._set_safe_rate()
        self.model.train()
        state, ranks = self.state, collectives.size()
        state.shuffle_before = state.shuffle.get_state()
        rows = epoch_rows(len(self.feed), self.settings.batch, state.shuffle)
        micro = self.settings.accumulate
        cuts = [micro_batches(batch, collectives.rank(), ranks, micro) for batch in rows[state.batch :]]
        batches = self.feed.batches([torch.cat([one.rows for one in cut]) for cut in cuts])
        self._whole = state.batch == 0  # no part of it was trained before the run was resumed
        state.started = time.perf_counter() - state.seconds_before
        for cut, batch in zip(cuts, batches, strict=True):
            self.feed.seed_views(state.epoch, state.batch)
            if ranks > 1:  # dropout draws differently on each, and does not depend on what came before
                torch.manual_seed(mix_seeds(self.feed.seed_of(state.epoch, state.batch), 1))
            samples = len(rows[state.batch])
            if self.twin is not None:
                self.twin(batch)
                self.feed.seed_views(state.epoch, state.batch)  # the model sees the samples as its twin did
            with self.compiler.benchmarking(full=samples == self.settings.batch):
                self.captured(batch, cut)
            if self.schedule is not None and self.settings.schedule in optimisers.PER_STEP:
                self.schedule.step()
            state.samples += samples
            state.batch += 1
            yield len(rows) - state.batch

    def _set_safe_rate(self) -> None:
        """Set the learning rate before the first step, where step=safe: every process to that of the first."""
        if self.settings.step == "given" or self.state.epoch or self.state.batch:
            return
        optimizer, count = self.step.optimizer, min(self.settings.batch, len(self.feed))
        rows = torch.linspace(0, len(self.feed) - 1, count).long()  # evenly spaced
        model = self.step.model.full_model().to(self.accelerator.device)
        with collectives.single_rank():
            part = self.feed.make(next(iter(self.feed.batches([rows]))), at_random=False)
            optimisers.set_safe_rate(model, self.step.balancer, part, optimizer, self.settings)
        for group in optimizer.param_groups if collectives.size() > 1 else ():
            group["lr"] = launch.broadcast(float(group["lr"]))

    def end_epoch(self) -> Record:
        """Move the schedule on, count from the start again, and return the mean training loss per objective."""
        if self.schedule is not None and self.settings.schedule not in optimisers.PER_STEP:
            self.schedule.step()
        if self.twin is not None:
            self.twin.end_epoch()
        state = self.state
        totals = collectives.total(torch.stack(list(state.sums.values()))).tolist() if state.sums else []
        losses = {name: total / max(state.samples, 1) for name, total in zip(state.sums, totals, strict=True)}
        seconds = launch.broadcast(time.perf_counter() - state.started)
        state.epoch += 1
        state.seconds += seconds
        state.batch, state.samples, state.seconds_before = 0, 0, 0.0
        for total in state.sums.values():
            total.zero_()
        return {"epoch": state.epoch, "seconds": seconds, "train": losses}

    def validate(self, record: Record) -> Record:
        """Evaluate on the validation part, keep the best, tell the method; return the record, completed."""
        with nullcontext() if self.average is None else self.average.applied():
            results = self._evaluate(record)
        # A method that remembers or changes weights at the end of an epoch does so with those that are trained.
        balancer = self.step.balancer
        if "purity_train" in balancer.metrics_due:
            found = purities(self.model, {"purity_train": self.feed, "purity_validation": self.validation})
            results = {name: {**values, **found.get(name, {})} for name, values in results.items()}
        balancer.end_epoch({name: results[name] for name in balancer.modalities if name in results})
        self.accelerator.log(flat_numbers(record), step=self.state.epoch)
        if self.compiler.update(record["seconds"], self.state.epoch, whole=self._whole):
            self.step.attach()
            self.captured.reset()
        return record

    def _evaluate(self, record: Record) -> dict[str, dict[str, float]]:
        """Complete the record of an epoch, and keep the best weights; return what the method may learn from."""
        balancer, state = self.step.balancer, self.state
        self.step.model.sync_buffers()
        results = evaluate(self.model, self.validation, metric=self.metric)
        table = balancer.table.numbers()
        told = {name: values.pop("metric") for name, values in results.items()}
        losses = {name: values.pop("objective") for name, values in results.items()}
        validation = {name: None if math.isnan(value) else value for name, value in told.items()}
        if not balancer.needs.fused:  # the fused head is untrained: its accuracy is no result
            validation.pop("fused")
            record["train"].pop("fused", None)
        record |= {"validation": validation, "table": table}
        if isinstance(self.model, HybridFusion) and balancer.needs.fused:  # elsewhere no loss trained the trunk
            record["attention"] = attention_of(self.model, self.validation)
        state.curves.append(record)
        if self.settings.select == "loss":
            merit = -score_of({name: losses[name] for name in validation})
        else:
            merit = self.metric.merit(score_of(validation))
        if merit > state.best[0]:
            keep = self.settings.select != "last"
            weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()} if keep else {}
            state.best = (merit, state.epoch, weights)
        return results

    def out_of_patience(self) -> bool:
        """Return whether validation has not improved for as many epochs as the settings allow."""
        patience, epoch = self.settings.patience, self.state.epoch
        return patience is not None and epoch - self.state.best[1] >= patience and epoch > 0

    def result(self) -> Trained:
        """Return the model of the selected epoch, and how it was trained."""
        state, model, settings, device = self.state, self.step.model, self.settings, self.accelerator.device
        _, best, weights = state.best
        if weights:
            self.model.load_state_dict(weights)
        elif self.average is not None:
            self.average.apply()
        for tracker in () if self.leaves_open else self.accelerator.trackers:  # not `end_training`: processes go on
            tracker.finish()
        opened = tuple(self.accelerator.trackers) if self.leaves_open else ()
        path = {"precision": launch.precision_of(settings, device), "captured": self.captured.why_not or "yes"}
        path["compiled"] = self.compiler.outcome
        if settings.step != "given":
            rate = float(self.step.optimizer.param_groups[0]["lr"])
            path["learning rate"] = f"{rate:.4g}, at most 1/L̂ of a batch of {settings.batch}"
        path |= getattr(self.step.balancer, "remarks", {})  # of methods that have something to say
        if collectives.size() > 1:
            path["processes"] = f"{collectives.size()}, {model.kind}"
        model.sync_buffers()
        epoch = best if weights else state.epoch
        whole = model.full_model().to(device)
        read_inputs(whole)
        return Trained(whole, state.curves, epoch, state.seconds, str(device), path, self.steps_of_epoch, opened)

"""The cost of a training step: its pieces by two clocks, beside two baselines; its time in training, and memory.

A step is cut into pieces: reading the data, forward, balance, backward and update. What a method costs is t, the time
after the losses are there: balance and backward. Beside it stand the t of a bare step, the backward pass of the fused
loss as a loop without this library takes it, and that of `MSL().attach(model)`.
"""

import copy
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from equipoise.balance.attach import unwrap_optimizer
from equipoise.balance.balancer import Balancer
from equipoise.data.feed import Feed, micro_batches
from equipoise.data.splits import Part
from equipoise.methods.msl import MSL
from equipoise.models.encoded import check_model
from equipoise.models.fusion_model import FusionModel
from equipoise.training.average import WeightAverage
from equipoise.training.launch import precision_of
from equipoise.training.parallel import parallel_model
from equipoise.training.settings import Settings
from equipoise.training.step import TrainingStep

PIECES = ("data", "forward", "backward", "balance", "update")
OWN, BARE, ATTACHED = "own", "bare", "msl"
BASELINES = {BARE: "a bare step", ATTACHED: "MSL().attach"}
"""What t is compared with, in words: both stand in every table of t."""
WARM_UP = 3
MEBIBYTE = 2**20
WAITED = 0.2  # share of the time without a processor from which a clock on a CPU is not to be trusted
PROTOCOL = (
    "after training, on copies: the step of training in its precision, neither compiled nor recorded, in turns with a "
    "bare step and MSL().attach, waiting for the device after each part"
)
"""The way `step_seconds` measures, for a row of results."""


@final
class Stopwatch:
    """Measures the pieces of one training step; the times of a piece that comes twice are added.

    `seconds` are those that pass, and `computed` those that this process computes in them, on all its threads.

    Args:
        device: The device that the step runs on.
        synchronise: Wait for the device before and after each piece, so that a piece pays for its own work. Otherwise
            only the clocks are read: a piece pays for launching its work, and the first one that waits pays for what
            others have launched.

    Example:
        >>> watch = Stopwatch(torch.device("cpu"))
        >>> with watch("forward"):
        ...     product = torch.ones(3) * 2
        >>> watch.seconds["forward"] > 0
        True
    """

    def __init__(self, device: torch.device, *, synchronise: bool = True) -> None:
        self.device, self.synchronise = device, synchronise
        self.seconds, self.computed = dict.fromkeys(PIECES, 0.0), dict.fromkeys(PIECES, 0.0)

    @contextmanager
    def __call__(self, piece: str) -> Generator[None]:
        """Add the time of the block to a piece."""
        if self.synchronise:
            self.wait()
        computed, start = time.process_time(), time.perf_counter()
        yield
        if self.synchronise:
            self.wait()
        self.seconds[piece] += time.perf_counter() - start
        self.computed[piece] += time.process_time() - computed

    def wait(self) -> None:
        """Wait for the device, outside of any piece."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


@final
class Pieces(NamedTuple):
    """Mean seconds of the pieces of a step.

    Args:
        wall: That passed.
        cpu: That were computed in them.
    """

    wall: dict[str, float]
    cpu: dict[str, float]

    @classmethod
    def of(cls, watches: Sequence[Stopwatch]) -> "Pieces":
        """Take the means over some steps."""
        means = [
            {piece: fmean(clock[piece] for clock in clocks) for piece in PIECES}
            for clocks in ([watch.seconds for watch in watches], [watch.computed for watch in watches])
        ]
        return cls(*means)

    @property
    def after_losses(self) -> dict[str, float]:
        """The time after the losses are there, t, by both clocks: balance and backward."""
        return {name: clock["balance"] + clock["backward"] for name, clock in self._asdict().items()}

    @property
    def update(self) -> dict[str, float]:
        """The time of the update by both clocks."""
        return {name: clock["update"] for name, clock in self._asdict().items()}


@final
class Load(NamedTuple):
    """The other work that there was on the machine while times were taken.

    Args:
        workers: Runs side by side on this machine, this one included; None where that is not known.
        average: The load average of the last minute; None where the system tells none.
        cores: Of the machine.
        waited: The share of the time in which nothing was computed, on a CPU; None elsewhere.
    """

    workers: int | None
    average: float | None
    cores: int
    waited: float | None

    @classmethod
    def during(cls, watches: Iterable[Stopwatch], workers: int | None = None) -> "Load":
        """Look at the machine now, and at the clocks of steps that were taken."""
        passed = computed = 0.0
        on_cpu = True
        for watch in watches:
            on_cpu &= watch.device.type == "cpu"
            passed += sum(watch.seconds.values())
            computed += sum(watch.computed.values())
        waited = max(0.0, 1 - computed / passed) if on_cpu and passed > 0 else None
        average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # not there on Windows
        return cls(workers, average, os.cpu_count() or 1, waited)

    @classmethod
    def worst(cls, loads: Sequence["Load"]) -> "Load":
        """Take the worst of several in each respect."""

        def most(values: Iterable[Any]) -> Any:
            return max((value for value in values if value is not None), default=None)

        return cls(*map(most, zip(*loads, strict=True))) if loads else cls(None, None, 1, None)

    def doubts(self) -> list[str]:
        """Say why times that were taken under it are not to be trusted; nothing where they are.

        Example:
            >>> Load(workers=2, average=25.0, cores=2, waited=0.5).doubts()
            ['2 runs side by side', 'a load average of 25.0 on 2 cores', 'no processor for 50 % of the time']
            >>> Load(workers=1, average=1.5, cores=2, waited=0.01).doubts()
            []
        """
        found = []
        if self.workers is not None and self.workers > 1:
            found.append(f"{self.workers} runs side by side")
        if self.average is not None and self.average > self.cores:
            found.append(f"a load average of {self.average:.1f} on {self.cores} core{'s' if self.cores > 1 else ''}")
        if self.waited is not None and self.waited > WAITED:
            found.append(f"no processor for {100 * self.waited:.0f} % of the time")
        return found


@final
@dataclass(frozen=True)
class StepTimes:
    """The cost of a step of a method, beside a bare step and `MSL().attach`, taken in turns.

    Args:
        own: Of the method.
        bare: Of the bare step, which has no balance.
        msl: Of `MSL().attach`.
        batches: Number of batches that the means are over.
        load: Of the machine meanwhile.
    """

    own: Pieces
    bare: Pieces
    msl: Pieces
    batches: int
    load: Load

    def ratio(self, baseline: Literal["bare", "msl"]) -> float:
        """Give t over that of a baseline."""
        other = self.bare if baseline == BARE else self.msl
        return self.own.after_losses["wall"] / other.after_losses["wall"]

    def as_dict(self) -> dict[str, Any]:
        """Return t and the update of every line by both clocks, and the load, for a row of results."""
        lines = {OWN: self.own, BARE: self.bare, ATTACHED: self.msl}
        return {
            "batches": self.batches,
            "t": {name: pieces.after_losses for name, pieces in lines.items()},
            "update": {name: pieces.update for name, pieces in lines.items()},
            "load": self.load._asdict(),
            "trusted": not self.load.doubts(),
        }


TimedStep = Callable[[Stopwatch, Part], None]
"""A whole training step on a batch, whose pieces run under the stopwatch."""


@final
class _Alone:
    """The part of Accelerate's accelerator that a training step asks for, of one process without scaled gradients."""

    scaler, num_processes = None, 1
    clip_grad_norm_ = staticmethod(nn.utils.clip_grad_norm_)

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.autocast = autocast_of(settings, device)


def autocast_of(settings: Settings, device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the context in which a run with these settings computes its losses."""
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    kind = kinds.get(precision_of(settings, device))
    return nullcontext if kind is None else partial(torch.autocast, device.type, kind)


def timed_step(
    model: FusionModel, balancer: Balancer, optimizer: Optimizer, settings: Settings | None = None
) -> TimedStep:
    """Make the training step of a method, the one that `equipoise.training.train` takes.

    Args:
        model: The model.
        balancer: The method, attached to the model.
        optimizer: The optimiser of the model.
        settings: Of the run: its precision, micro-batches, clipping and average; None for single precision and none of
            these.
    """
    run, device = settings or Settings(precision="fp32"), model.committee.device
    steps: dict[int, TrainingStep] = {}

    def step(watch: Stopwatch, part: Part) -> None:
        if not steps:  # which counts the gaps of the first batch
            average = WeightAverage(model, run.average) if run.average else None
            whole, feed, accelerator = parallel_model(model, run, device), Feed(part, device), _Alone(run, device)
            steps[0] = TrainingStep(whole, balancer, feed, optimizer, accelerator, run.clip, {}, average)
        steps[0].watch = watch
        steps[0].take(part, micro_batches(torch.arange(len(part)), micro=run.accumulate))

    return step


def bare_step(model: FusionModel, optimizer: Optimizer, settings: Settings | None = None) -> TimedStep:
    """Make a step of joint training as one would write it without a library: the fused loss and nothing else.

    Args:
        model: The model.
        optimizer: Of the model.
        settings: Of the run, as for `timed_step`; batches are not cut.
    """
    run, device = settings or Settings(precision="fp32"), model.committee.device
    autocast = autocast_of(run, device)
    average = WeightAverage(model, run.average) if run.average else None

    def step(watch: Stopwatch, part: Part) -> None:
        with watch("forward"), autocast():
            loss = model.known_task().loss(model(part.inputs)["fused"], part.label).mean()
        with watch("backward"):
            loss.backward()
        with watch("update"):
            if run.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), run.clip)
            optimizer.step()
            optimizer.zero_grad()
            if average is not None:
                average.update()

    return step


def backward_and_update(watch: Stopwatch, loss: Tensor, optimizer: Optimizer) -> None:
    """Time the end of a step: the backward pass, and the update with clearing the gradients."""
    with watch("backward"):
        loss.backward()
    with watch("update"):
        optimizer.step()
        optimizer.zero_grad()


def time_steps(
    step: TimedStep, read: Callable[[int], Part], numbers: Iterable[int], device: torch.device, *,
    synchronise: bool = True,
) -> list[Stopwatch]:  # fmt: skip
    """Measure the pieces of some steps; every step begins on an idle device.

    Args:
        step: The step, which trains the model it was made from.
        read: Gives the batch of a step by its number.
        numbers: Of the steps.
        device: The device that the steps run on.
        synchronise: As for `Stopwatch`.
    """
    watches = []
    for number in numbers:
        watch = Stopwatch(device, synchronise=synchronise)
        watch.wait()
        with watch("data"):
            part = read(number)
        step(watch, part)
        watch.wait()
        watches.append(watch)
    return watches


def step_seconds(
    model: FusionModel,
    balancer: Balancer,
    optimizer: Any,
    part: Part,
    batch: int,
    steps: int = 20,
    settings: Settings | None = None,
    workers: int | None = None,
) -> StepTimes:
    """Time training steps on copies: nothing of model, balancer, optimiser or the random state changes.

    In turns with each step of the method, a bare step and one of `MSL().attach` are taken on a second copy, whose
    uni-modal heads learn on detached features. The copies are in training mode, on the device of the model. Those of
    compiled encoders run uncompiled. What trains beside a model, as the twin of PrimalDual, is not timed.

    Args:
        model: The model.
        balancer: The method; the copy is attached to the copied model and optimiser.
        optimizer: The optimiser of the model, bare or wrapped.
        part: The samples to take batches from, in order and round again; moving them to the device is not timed.
        batch: Samples of a step, at most those of the part.
        steps: Steps that are timed, of each line, after a few to warm up.
        settings: Of the run that trained the model, as for `timed_step`.
        workers: Runs side by side on this machine, where that is known.

    Returns:
        Means over the steps, by the wall clock and in seconds of computing.

    Example:
        >>> from equipoise import MIMO, LateFusion
        >>> model = LateFusion({"audio": nn.Linear(3, 4), "video": nn.Linear(5, 4)}, classes=2)
        >>> part = Part({"audio": torch.randn(8, 3), "video": torch.randn(8, 5)}, torch.arange(8) % 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> found = step_seconds(model, MIMO(), optimizer, part, batch=4)
        >>> found.batches, found.ratio("bare") > 0, found.ratio("msl") > 0
        (20, True, True)
    """
    check_model("Measuring", model)
    run, device = settings or Settings(precision="fp32"), model.committee.device

    def stored(number: int) -> Part:
        rows = torch.arange(number * batch, number * batch + min(batch, len(part))) % len(part)
        return part.take(rows.to(part.label.device)).to(device)

    feed = Feed(stored(0), device, "resident", augment=run.augment == "auto")

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # Copied together, so that the copied optimiser moves the copied model.
        kept = unwrap_optimizer(optimizer)
        twin, twin_optimizer, twin_balancer = copy.deepcopy((model, kept, balancer))
        twin_balancer.attach(twin, optimizer=twin_optimizer, group=balancer.group)
        plain, plain_optimizer = copy.deepcopy((model, kept))
        detached: dict[str | None, Literal["detached", "masked_detached"]]
        detached = {"head": "detached", "masked": "masked_detached"}
        plain.unimodal = detached.get(plain.unimodal, plain.unimodal)
        msl = MSL().to(device).attach(plain, group=balancer.group)
        lines = {  # MSL first: a fused optimiser makes its state at once for every tensor that has a gradient
            ATTACHED: timed_step(plain.train(), msl, plain_optimizer, run),
            BARE: bare_step(plain, plain_optimizer, run),
            OWN: timed_step(twin.train(), twin_balancer.train(), twin_optimizer, run),
        }
        taken: dict[str, list[Stopwatch]] = {line: [] for line in lines}
        for number in range(WARM_UP + steps):
            for line, step in lines.items():
                taken[line] += time_steps(step, lambda number: feed.make(stored(number)), [number], device)
    counted = {line: watches[WARM_UP:] for line, watches in taken.items()}
    load = Load.during([watch for watches in counted.values() for watch in watches], workers)
    return StepTimes(**{line: Pieces.of(watches) for line, watches in counted.items()}, batches=steps, load=load)


def trained_step(epochs: Sequence[float], steps: int) -> tuple[float | None, str]:
    """Compute the seconds of a step while the model was trained, and say how that was measured.

    Nothing waits for the device within an epoch, and what compiles, records or warms up does so in the first one.

    Args:
        epochs: Seconds of each epoch by the wall clock, with whatever the loop does: reading batches, checkpoints.
        steps: Of an epoch.

    Example:
        >>> trained_step([9.0, 2.0, 3.0, 4.0], steps=10)
        (0.3, 'wall clock of epochs 2 to 4, median, by 10 steps')
    """
    if not epochs:
        return None, "nothing was trained"
    if len(epochs) == 1:
        return epochs[0] / steps, f"wall clock of the only epoch, with its start, by {steps} steps"
    several = f"epochs 2 to {len(epochs)}, median," if len(epochs) > 2 else "epoch 2"
    return median(epochs[1:]) / steps, f"wall clock of {several} by {steps} steps"


def peak_memory(device: torch.device | str = "cpu") -> float:
    """Give the most memory held so far, in MiB.

    On a GPU that is what tensors took there since `torch.cuda.reset_peak_memory_stats`, or since the start; elsewhere
    the resident set of this process, which only ever grows.

    Args:
        device: The device.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MEBIBYTE
    import resource  # not there on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MEBIBYTE if sys.platform == "darwin" else peak / 1024  # bytes there, KiB elsewhere

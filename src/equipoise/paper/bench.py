"""Time and memory of a training step: whole and in pieces, for every method, any number of modalities and batch sizes.

Whole steps go through `equipoise.training.train`, from prepared data on the device to moved weights. Pieces are timed
apart, waiting for the device before and after each; the time after the losses are there, t, is balance and backward.
Every round measures every line in turn, so that a drifting clock touches all alike; ratios are taken within a round.
Pieces are means over batches, and whole steps and ratios medians over rounds. Beside the methods stand the two
baselines, a bare loop and `MSL().attach`, and TorchJD's MGDA where it is installed.
"""

import gc
import importlib.util
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import linear_regression, median
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from equipoise.balance.balancer import Balancer
from equipoise.data.feed import Feed
from equipoise.data.splits import Part, Splits
from equipoise.measure import timing
from equipoise.measure.timing import PIECES, Load, Pieces, Stopwatch, TimedStep, autocast_of, bare_step
from equipoise.models import LateFusion, SequenceTransformer
from equipoise.models.choose import build_encoders
from equipoise.models.encoded import EncodedModel
from equipoise.study.registry import OR_YOUR_OWN, Method, all_methods, method_of
from equipoise.training.optimisers import make_optimizer
from equipoise.training.settings import Settings
from equipoise.training.step import build_from_encoders, to_channels_last
from equipoise.training.train import train
from equipoise.util.errors import collect, look_up
from equipoise.util.named import is_path

BARE, JOINT, TORCHJD = "bare loop", "msl", "torchjd mgda"
WRITTEN, RECORDED = "as written", "recorded"
CLASSES = 6
NEVER = 10**6  # epochs without a better accuracy: an encoder that stands still would cost less
Makers = dict[str, Callable[[], Balancer]]
Tell = Callable[[str], None]
Autocast = Callable[[], AbstractContextManager[Any]]


class EncoderKind(NamedTuple):
    """A kind of encoder, and the shapes of its inputs.

    Args:
        encoder: As in the settings of a run.
        optimizer: As in the settings of a run.
        shapes: Of one sample of each modality, taken in turn.
        on_cpu: The same, where a CPU would take minutes.
    """

    encoder: str
    optimizer: Literal["sgd", "adamw"]
    shapes: tuple[tuple[int, ...], ...]
    on_cpu: tuple[tuple[int, ...], ...] | None = None


KINDS = {
    "small": EncoderKind("mlp", "sgd", ((64,),)),
    "resnet18": EncoderKind("resnet18", "sgd", ((1, 257, 188), (3, 2, 224, 224)), ((1, 32, 32), (3, 2, 32, 32))),
    "transformer": EncoderKind("equipoise.paper.bench.transformer", "adamw", ((64, 64),), ((8, 32),)),
}


class BenchCase(NamedTuple):
    """One shape of the problem.

    Args:
        encoder: One of `KINDS`.
        modalities: Number of modalities.
        batch: Samples of a step.
    """

    encoder: str
    modalities: int
    batch: int


class BenchRow(NamedTuple):
    """The cost of one line in one case; all times in milliseconds.

    Args:
        case: The case.
        line: A method, or a loop that is not ours.
        whole: A whole step, by the way it runs.
        to_joint: Its ratio to joint training that runs the same way, `MSL().attach`.
        to_bare: Its ratio to the bare loop, which always runs as it is written.
        pieces: The step in pieces.
        memory: MiB that tensors took at once during a step, beyond the model and the state of the optimiser.
        t_to_joint: The ratio of t, the time after the losses are there, to that of joint training.
        t_to_bare: Its ratio to that of the bare loop.
        t_cpu: Milliseconds that were computed in t.
        batches: Number of batches that t and the pieces are means over.
        path: "recorded", or why steps were not.
    """

    case: BenchCase
    line: str
    whole: dict[str, float]
    to_joint: dict[str, float]
    to_bare: dict[str, float]
    pieces: dict[str, float]
    memory: float
    t_to_joint: float
    t_to_bare: float
    t_cpu: float
    batches: int
    path: str = ""

    @property
    def t(self) -> float:
        """The time after the losses are there."""
        return self.pieces["balance"] + self.pieces["backward"]

    @property
    def numbers(self) -> dict[str, float | None]:
        """Every number by the name of its column in a file; None where steps could not be recorded."""
        whole = {"ms": self.whole, "to_bare": self.to_bare, "to_msl": self.to_joint}
        return {
            **{name: ways[WRITTEN] for name, ways in whole.items()},
            **{f"{name}_recorded": ways.get(RECORDED) for name, ways in whole.items()},
            "t_ms": self.t,
            "t_to_bare": self.t_to_bare,
            "t_to_msl": self.t_to_joint,
            "t_cpu_ms": self.t_cpu,
            **{f"ms_{piece}": self.pieces[piece] for piece in PIECES},
            "memory_mib": self.memory,
        }

    def ratios(self, baseline: str) -> dict[str, float]:
        """The ratios of a whole step to that of a baseline, by the way it runs."""
        return self.to_bare if baseline == BARE else self.to_joint

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **self.case._asdict(),
            "optimizer": KINDS[self.case.encoder].optimizer,
            "line": self.line,
            "milliseconds": self.whole,
            "ratio to the bare loop": self.to_bare,
            "ratio to MSL().attach": self.to_joint,
            "t": {
                "milliseconds": self.t,
                "CPU milliseconds": self.t_cpu,
                "ratio to the bare loop": self.t_to_bare,
                "ratio to MSL().attach": self.t_to_joint,
                "batches": self.batches,
            },
            "pieces": self.pieces,
            "pieces together": sum(self.pieces.values()),
            "memory MiB": self.memory,
            "recorded": self.path,
        }


# -- the lines --


def methods() -> Makers:
    """Every method by name, and the variants that decide at features."""
    makers: Makers = {}
    for name, method in all_methods().items():
        if method.finish is not None:  # the ensemble trains as uni-modal training does
            continue
        makers[name] = _maker(method)
        if "at" in method.parameters:
            makers[f"{name}-features"] = partial(method.make, at="features")
    return makers


def _maker(method: Method) -> Callable[[], Balancer]:
    return partial(method.make, patience=NEVER) if "patience" in method.parameters else method.make


def chosen_methods(text: str) -> Makers:
    """The methods of a list with commas, or of "all"; joint training is always among them, since ratios are to it."""
    known = methods()
    asked = [JOINT, *(name.strip() for name in text.split(",") if name.strip())]
    names = list(dict.fromkeys(name for word in asked for name in (known if word == "all" else [word])))

    def maker(name: str) -> Callable[[], Balancer]:
        if name not in known and is_path(name):
            return _maker(method_of(name))
        return look_up("method", name, known, OR_YOUR_OWN)

    return dict(zip(names, collect(*(partial(maker, name) for name in names)), strict=True))


def other_loops(names: Iterable[str]) -> list[str]:
    """Loops that are not ours, to stand beside these methods."""
    torchjd = "mgda" in names and importlib.util.find_spec("torchjd") is not None
    return [BARE, TORCHJD] if torchjd else [BARE]


def torchjd_step(model: EncodedModel, optimizer: Optimizer, autocast: Autocast = nullcontext) -> TimedStep:
    """Make a step of TorchJD's MGDA: on each encoder the fused and its own loss, as our MGDA does; heads on the sum.

    Args:
        model: With a head per modality.
        optimizer: Of the model.
        autocast: Makes the context of the forward pass.
    """
    from torchjd import aggregation
    from torchjd.autojac import backward, jac_to_grad

    aggregator, task = aggregation.MGDA(), model.known_task()
    encoders = {name: list(encoder.parameters()) for name, encoder in model.encoders.items()}
    owned = {id(tensor) for tensors in encoders.values() for tensor in tensors}
    heads = [tensor for tensor in model.parameters() if id(tensor) not in owned]

    def step(watch: Stopwatch, part: Part) -> None:
        with watch("forward"), autocast():
            losses = {name: loss.mean() for name, loss in task.losses(model(part.inputs), part.label).items()}
        with watch("backward"):
            torch.stack(list(losses.values())).sum().backward(inputs=heads, retain_graph=True)
            for name, tensors in encoders.items():
                backward([losses["fused"], losses[name]], inputs=tensors, retain_graph=True)
                jac_to_grad(tensors, aggregator)
        with watch("update"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def transformer(shape: tuple[int, ...], features: int) -> nn.Module:
    """The encoder of sequences [T, D] that `--encoder transformer` takes."""
    return SequenceTransformer(shape[1], features)


# -- measurements --


def measure(
    cases: Sequence[BenchCase], chosen: Makers, device: torch.device, rounds: int, tell: Tell = lambda _: None
) -> tuple[list[BenchRow], Load]:
    """Measure every line in every case, and the load of the machine meanwhile.

    Args:
        cases: The cases.
        chosen: Methods by name; joint training has to be among them.
        device: The device that steps run on.
        rounds: Number of times that every line is measured.
        tell: Called with words on the progress.
    """
    rows: list[BenchRow] = []
    loads: list[Load] = []
    for number, case in enumerate(cases, 1):
        title = f"{case.encoder}, K = {case.modalities}, batch {case.batch} ({number} of {len(cases)})"
        more, load = _CaseBench(case, chosen, device).rows(rounds, lambda words, title=title: tell(f"{title}: {words}"))
        rows += more
        loads.append(load)
        gc.collect()
    return rows, Load.worst(loads)


@final
class _CaseBench:
    """One case: its data, and all measurements on it."""

    def __init__(self, case: BenchCase, chosen: Makers, device: torch.device) -> None:
        self.case, self.device, self.methods = case, device, chosen
        kind, on_gpu = KINDS[case.encoder], device.type == "cuda"
        self.steps = 30 if on_gpu else 8 if case.encoder == "small" else 4
        self.epochs = 3 if on_gpu else 2  # of a measured run; the first warms up
        self.ways = (WRITTEN, RECORDED) if on_gpu else (WRITTEN,)
        shapes = kind.shapes if on_gpu else kind.on_cpu or kind.shapes
        self.splits = _noise(shapes, case.modalities, case.batch * self.steps)
        self.settings = Settings(
            epochs=self.epochs, batch=case.batch, lr=1e-3, encoder=kind.encoder, optimizer=kind.optimizer,
            device=str(device), compile=False, capture=False,
        )  # fmt: skip
        self.paths: dict[str, str] = {}  # by method: "recorded", or why steps were not
        self.feed = Feed(self.splits.train, device)
        self.batches = list(torch.arange(len(self.feed), device=device).split(case.batch))

    def rows(self, rounds: int, tell: Tell) -> tuple[list[BenchRow], Load]:
        first, *others = other_loops(self.methods)
        lines = [first, *self.methods, *others]
        steps = {line: self._step(line) for line in lines}
        whole = {line: {way: [] for way in (self.ways if line in self.methods else (WRITTEN,))} for line in lines}
        watches: dict[str, list[list[Stopwatch]]] = {line: [] for line in lines}  # by round
        for turn in range(rounds):
            for line in lines:
                tell(f"round {turn + 1} of {rounds}, {line}")
                for way, times in whole[line].items():
                    times.append(self._whole(line, way))
                taken = timing.time_steps(steps[line], self._batch, range(len(self.batches)), self.device)
                watches[line].append(taken[timing.WARM_UP if turn == 0 else 1 :])
        t = {line: [Pieces.of(some).after_losses["wall"] for some in own] for line, own in watches.items()}
        every = {line: [watch for some in own for watch in some] for line, own in watches.items()}
        means = {line: Pieces.of(own) for line, own in every.items()}
        rows = [
            BenchRow(
                self.case,
                line,
                whole={way: median(times) for way, times in own.items()},
                to_joint={way: _ratio(times, whole[JOINT][way]) for way, times in own.items()},
                to_bare={way: _ratio(times, whole[BARE][WRITTEN]) for way, times in own.items()},
                pieces={piece: 1e3 * seconds for piece, seconds in means[line].wall.items()},
                memory=self._memory(line),
                t_to_joint=_ratio(t[line], t[JOINT]),
                t_to_bare=_ratio(t[line], t[BARE]),
                t_cpu=1e3 * means[line].after_losses["cpu"],
                batches=len(every[line]),
                path=self.paths.get(line, ""),
            )
            for line, own in whole.items()
        ]
        return rows, Load.during(watch for own in every.values() for watch in own)

    def _batch(self, number: int) -> Part:
        return self.feed.make(self.batches[number])

    def _whole(self, line: str, way: str) -> float:
        """Milliseconds of a whole step, the median over epochs after the first."""
        if line in self.methods:
            settings = self.settings.changed({"capture": way == RECORDED})
            trained = train(self.splits, self.methods[line](), settings)
            self.paths[line] = trained.path["captured"]
            epochs = [epoch["seconds"] for epoch in trained.curves]
        else:
            step, epochs = self._step(line), []
            for _ in range(self.epochs):
                epoch = Stopwatch(self.device)
                with epoch("update"):
                    for number in range(self.steps):
                        step(Stopwatch(self.device, synchronise=False), self._batch(number))
                epochs.append(epoch.seconds["update"])
        return 1e3 * median(epochs[1:]) / self.steps

    def _memory(self, line: str) -> float:
        step, part, watch = self._step(line), self._batch(0), Stopwatch(self.device, synchronise=False)
        step(watch, part)  # makes the state of the optimiser
        return peak_of(lambda: step(watch, part), self.device)

    def _step(self, line: str) -> TimedStep:
        torch.manual_seed(0)
        if line in self.methods:
            balancer = self.methods[line]()
            model = self._prepared(build_from_encoders(self.splits, balancer, self.settings))
            optimizer = make_optimizer(model, self.settings)
            balancer.to(self.device).attach(model, optimizer=optimizer)
            return timing.timed_step(model, balancer, optimizer, self.settings)
        encoders = build_encoders(self.settings.encoder, self.splits.shapes, self.settings.features)
        model = self._prepared(LateFusion(encoders, CLASSES, unimodal=None if line == BARE else "head"))
        optimizer = make_optimizer(model, self.settings)
        if line == BARE:
            return bare_step(model, optimizer, self.settings)
        return torchjd_step(model, optimizer, autocast_of(self.settings, self.device))

    def _prepared(self, model: EncodedModel) -> EncodedModel:
        """Bring a model into the form that `train` gives it: device and memory format."""
        model = model.to(self.device).train()
        if self.device.type == "cuda":
            to_channels_last(model)
        return model


def _noise(shapes: Sequence[tuple[int, ...]], modalities: int, count: int) -> Splits:
    """Draw noise of these shapes, taken in turn, with labels."""
    random = torch.Generator().manual_seed(0)
    inputs = {
        f"sensor {number + 1}": torch.randn(count, *shapes[number % len(shapes)], generator=random)
        for number in range(modalities)
    }
    part = Part(inputs, torch.arange(count) % CLASSES)
    few = part.take(torch.arange(min(count, 32)))
    return Splits("made up", part, few, few, tuple(map(str, range(CLASSES))))


def _ratio(own: Sequence[float], other: Sequence[float]) -> float:
    return median(a / b for a, b in zip(own, other, strict=True))


def growth(rows: Sequence[BenchRow], line: str, way: str = WRITTEN, baseline: str = JOINT) -> float | None:
    """Fit by least squares the share of a baseline's step by which the ratio to it grows with each modality."""
    own = [(row.case.modalities, row.ratios(baseline)) for row in rows if row.line == line]
    points = [(count, ratios[way]) for count, ratios in own if way in ratios]
    counts = [count for count, _ in points]
    return linear_regression(counts, [ratio for _, ratio in points]).slope if len(set(counts)) > 1 else None


# -- memory --


def peak_of(work: Callable[[], Any], device: torch.device) -> float:
    """Measure the MiB that were taken at once during some work, beyond what was taken before it.

    On a GPU its allocator knows. Elsewhere every tensor that an operation makes is counted until it dies: what kernels
    take inside and give back is not seen.

    Args:
        work: Called once.
        device: The device it runs on.

    Example:
        >>> peak_of(lambda: torch.ones(2**20) + torch.ones(2**20), torch.device("cpu"))  # three times four bytes
        12.0
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / timing.MEBIBYTE
    with _MemoryMeter() as meter:
        work()
    return meter.peak / timing.MEBIBYTE


@final
class _MemoryMeter(TorchDispatchMode):
    """Adds up the memory of tensors as operations make them and as they die."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(made):
            if storage._cdata not in given | self._known:  # neither a view nor in place
                self._known.add(storage._cdata)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._remove, storage._cdata, storage.nbytes())
        return made

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]

"""Executors of the runs of a study: processes of this machine, ranks of a launcher, a Ray cluster, or Slurm."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from typing_extensions import Self

from equipoise.study.job import FoldSplits, Job
from equipoise.study.store import Store
from equipoise.training.launch import device_of
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput
from equipoise.util.extras import not_installed

RunFunction = Callable[..., dict[str, Any]]
"""Does a job: (job, splits, folder, on_epoch) → row."""
RunEvent = tuple[Job, str, dict[str, Any]]
"""A job, what happened to it ("epoch", "done", "failed" or "unwritable"), and the record, the row or the reason.

A run that "failed" because its process was killed has "killed" set, and may be tried again."""


class Executor(ABC):
    """Runs jobs. Use it as a context: runs that are not done at its end are stopped; their checkpoints are whole.

    Args:
        run: Does a job.
        splits: The data of each fold.
        store: Knows the folder of each run.
        limit: Runs at once; None for as many as fit.
    """

    def __init__(self, run: RunFunction, splits: FoldSplits, store: Store, limit: int | None = None) -> None:
        self.run, self.splits, self.store, self.limit = run, splits, store, limit
        self.running: dict[str, Job] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for job in list(self.running.values()):
            self.stop(job)

    @property
    def has_room(self) -> bool:
        """True where another run may start."""
        return self.limit is None or len(self.running) < self.limit

    def start(self, job: Job) -> None:
        """Start a run."""
        self.running[job.config] = job
        self._start(job)

    def stop(self, job: Job) -> None:
        """Stop a run before its end."""
        self._stop(self.running.pop(job.config))

    def events(self) -> Iterator[RunEvent]:
        """Wait until something happens to a run, and tell of it."""
        for job, kind, content in self._events():
            if kind != "epoch":
                del self.running[job.config]
            yield job, kind, content

    @abstractmethod
    def _start(self, job: Job) -> None: ...

    @abstractmethod
    def _stop(self, job: Job) -> None: ...

    @abstractmethod
    def _events(self) -> Iterator[RunEvent]: ...


EXPECTED = "expected ray, ray://HOST:10001, slurm, or slurm:partition=NAME,time=MINUTES"


class Cluster(ABC):
    """Machines that do runs."""

    package: ClassVar[str]
    """The package that it needs, an extra of the same name as the cluster."""

    @classmethod
    @abstractmethod
    def parse(cls, rest: str) -> Self | None:
        """Make it from the text after its name and a colon; None where that text cannot be read."""

    @abstractmethod
    def executor(self, run: RunFunction, splits: FoldSplits, store: Store, limit: int | None) -> Executor:
        """Make the executor of its runs, with the arguments of `Executor`."""

    @final
    def device_of(self, settings: Settings) -> str:
        """Return the device of a run with these settings. A GPU that was asked for need not be in this machine."""
        if ":" in settings.device:
            raise BadInput(f"device={settings.device}: a cluster gives a run whichever GPU is free; type device=cuda")
        return settings.device if settings.device == "cuda" else device_of(settings)


@final
@dataclass(frozen=True)
class RayCluster(Cluster):
    """The workers of a Ray cluster.

    Args:
        address: As Ray's client reads it, ``ray://HOST:10001``; None for the cluster that this machine belongs to, or
            that RAY_ADDRESS names, or a new one with this machine alone.
    """

    package = "ray"
    address: str | None = None

    @classmethod
    def parse(cls, rest: str) -> Self | None:
        """Read ``//HOST:10001``, or nothing."""
        return None if rest == "//" else cls(f"ray:{rest}" if rest else None)

    def executor(self, run: RunFunction, splits: FoldSplits, store: Store, limit: int | None) -> Executor:
        """Make runs tasks of Ray."""
        from equipoise.study.executors.ray import RayExecutor

        return RayExecutor(run, splits, store, limit, self.address)


@final
@dataclass(frozen=True)
class SlurmCluster(Cluster):
    """A cluster that Slurm schedules.

    Args:
        options: Of sbatch, by the names submitit has for them.
    """

    package = "submitit"
    options: Mapping[str, int | str] = field(default_factory=dict)

    @classmethod
    def parse(cls, rest: str) -> Self | None:
        """Read ``partition=NAME,time=MINUTES``, or nothing."""
        pairs = [word.partition("=") for word in rest.split(",") if word]
        if any(not (key and sign and value) for key, sign, value in pairs):
            return None
        return cls({key: int(value) if value.isdecimal() else value for key, _, value in pairs})

    def executor(self, run: RunFunction, splits: FoldSplits, store: Store, limit: int | None) -> Executor:
        """Make runs tasks of an array job; each loads the data itself."""
        from equipoise.study.executors.slurm import SlurmExecutor

        return SlurmExecutor(run, splits, store, limit, self.options)


CLUSTERS: dict[str, type[Cluster]] = {"ray": RayCluster, "slurm": SlurmCluster}


def cluster_of(text: str | None) -> Cluster | None:
    """Return the cluster that the text after ``--on`` names; None where there is none.

    Raises:
        BadInput: If it names no cluster.
        NotInstalled: If the package for it is missing; says what to type.
    """
    if text is None:
        return None
    kind, _, rest = text.partition(":")
    cluster = CLUSTERS[kind].parse(rest) if kind in CLUSTERS else None
    if cluster is None:
        raise BadInput(f"--on {text}: {EXPECTED}")
    if importlib.util.find_spec(cluster.package) is None:
        raise not_installed(f"--on {kind}", cluster.package, kind)
    return cluster

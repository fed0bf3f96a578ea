"""What ``--on`` means: where the runs of a study take place, if not on this machine."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from equipoise.data.splits import Splits
from equipoise.study.job import Job
from equipoise.study.store import Store
from equipoise.training.launch import device_of
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput

EXPECTED = "expected ray, ray://HOST:10001, slurm, or slurm:partition=NAME,time=MINUTES"


class Workforce(Protocol):
    """What a study asks of those who do its runs."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether anybody works."""
        ...

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another run may start."""
        ...

    @abstractmethod
    def start(self, job: Job) -> None:
        """Begin a run."""
        ...

    @abstractmethod
    def stop(self, job: Job) -> None:
        """End a run before its time."""
        ...

    @abstractmethod
    def news(self) -> Iterator[tuple[Job, str, dict[str, Any]]]:
        """Wait until somebody says something, and pass it on."""
        ...


class Place(ABC):
    """Where runs take place, if not on this machine."""

    @abstractmethod
    def workforce(
        self, run: Callable[..., dict[str, Any]], splits: dict[int | None, Splits], store: Store, limit: int | None
    ) -> AbstractContextManager[Workforce]:
        """Those who do the runs there.

        Args:
            run: Does a job: (job, splits, folder, on_epoch) → row.
            splits: The data of each fold.
            store: Knows the folder of each run.
            limit: Runs at once; None for as many as fit.
        """

    @final
    def device_of(self, settings: Settings) -> str:
        """Where a run with these settings takes place. A GPU that was asked for need not be in this machine."""
        if ":" in settings.device:
            raise BadInput(f"device={settings.device}: a cluster gives a run whichever GPU is free; type device=cuda")
        return settings.device if settings.device == "cuda" else device_of(settings)


@final
@dataclass(frozen=True)
class OnRay(Place):
    """The workers of a Ray cluster.

    Args:
        address: As Ray's client reads it, ``ray://HOST:10001``; None for the cluster that this machine belongs to, or
            that RAY_ADDRESS names, or a new one with this machine alone.
    """

    address: str | None = None

    def workforce(
        self, run: Callable[..., dict[str, Any]], splits: dict[int | None, Splits], store: Store, limit: int | None
    ) -> AbstractContextManager[Workforce]:
        """Tasks of Ray."""
        from equipoise.study.executors.ray_hands import RayHands

        return RayHands(run, splits, store, limit, self.address)


@final
@dataclass(frozen=True)
class OnSlurm(Place):
    """An array job of Slurm.

    Args:
        options: Of sbatch, by the names submitit has for them.
    """

    options: Mapping[str, int | str] = field(default_factory=dict)

    def workforce(
        self,
        run: Callable[..., dict[str, Any]],
        splits: dict[int | None, Splits],  # noqa: ARG002
        store: Store,
        limit: int | None,
    ) -> AbstractContextManager[Workforce]:
        """Tasks of an array; each loads the data itself."""
        from equipoise.study.executors.slurm_hands import SlurmHands

        return SlurmHands(run, store, limit, self.options)


def place_of(text: str | None) -> Place | None:
    """What somebody typed after ``--on``; None where nobody did.

    Raises:
        BadInput: If it names no place.
        ModuleNotFoundError: If the package for it is missing.
    """
    if text is None:
        return None
    kind, _, rest = text.partition(":")
    if kind == "ray" and (not rest or rest.removeprefix("//")):
        _need("ray", "ray")
        return OnRay(text if rest else None)
    if kind == "slurm":
        _need("slurm", "submitit")
        return OnSlurm(_options(text, rest))
    raise BadInput(f"--on {text}: {EXPECTED}")


def _options(text: str, rest: str) -> dict[str, int | str]:
    pairs = [word.partition("=") for word in rest.split(",") if word]
    if wrong := [key for key, sign, value in pairs if not (key and sign and value)]:
        raise BadInput(f"--on {text}: {EXPECTED}; {', '.join(wrong)} has no value")
    return {key: int(value) if value.isdecimal() else value for key, _, value in pairs}


def _need(extra: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        msg = f"--on {extra} needs {package}, which is not installed; type: pip install 'equipoise[{extra}]'"
        raise ModuleNotFoundError(msg)

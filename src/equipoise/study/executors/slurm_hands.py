"""The runs of a study as an array job of Slurm, submitted by submitit."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, final

import submitit
from submitit.core.utils import DelayedSubmission

from equipoise.study.executors import answer
from equipoise.study.executors.errand import TRIES, Errand
from equipoise.study.job import Job
from equipoise.study.store import Store
from equipoise.util.errors import BadInput
from equipoise.util.files import inside, open_inside

TICK = 1.0  # seconds between two looks
LATE = 15.0  # seconds until what a machine wrote before it ended is seen on all others
USUAL = {"time": 60, "job_name": "equipoise"}  # minutes; whoever needs longer is queued again, and goes on
REQUEUES = 100
EPOCHS, SUBMITTED = "epochs.jsonl", "submitted.jsonl"
NUMBER, PLACE = r"(\d+(_\d+)?)?", r"([0-9a-f]{16})?"
UNDER_WAY = {"PENDING", "RUNNING", "REQUEUED", "COMPLETING", "PREEMPTED", "CONFIGURING", "SUSPENDED"}


@final
@dataclass(frozen=True)
class Task:
    """What one task of the array does.

    Args:
        errand: Its run.
    """

    errand: Errand

    def __call__(self) -> None:
        """Do the run from its newest checkpoint, on data that is loaded here and compared with what was planned on."""
        job, folder = self.errand.job, self.errand.folder
        folder.mkdir(parents=True, exist_ok=True)
        with _appending(folder, EPOCHS) as file:
            outcome = self.errand.do(
                lambda: job.data.load(job.fold), lambda record: print(json.dumps(record), file=file, flush=True)
            )
        answer.give(folder, outcome)

    def checkpoint(self) -> DelayedSubmission:
        """What submitit queues again when time is up or another job goes first: the same, which goes on."""
        return DelayedSubmission(self)


@final
class _Watched:
    """A run somewhere in the queue, and how much of its news was read."""

    def __init__(self, job: Job, task: submitit.Job[None], folder: Path, tries: int) -> None:
        self.job, self.task, self.folder, self.tries = job, task, folder, tries
        epochs = inside(folder, EPOCHS)
        self._read = epochs.stat().st_size if epochs.exists() else 0
        self._ended: float | None = None

    def new_epochs(self) -> list[dict[str, Any]]:
        found, self._read = answer.epochs_after(self.folder, EPOCHS, self._read)
        return found

    def over(self) -> bool:
        """Tell whether it has answered, or ended so long ago that it will not."""
        if answer.is_given(self.folder):
            return True
        if not self.task.done():
            return False
        with suppress(OSError):  # makes a network's disk look again
            self.folder.chmod(self.folder.stat().st_mode)
        self._ended = self._ended or time.monotonic()
        return time.monotonic() - self._ended > LATE


@final
class SlurmHands:
    """Runs jobs as tasks of one array job. Use it as a context: at its end, what still runs is cancelled.

    The folder of the study has to lie where every machine of the cluster sees it, as submitit demands. If this process
    is killed, or the connection to it breaks, the array goes on; the same command finds it again.

    Args:
        run: Does a job: (job, splits, folder, on_epoch) → row.
        store: Knows the folder of each run.
        limit: Runs at once; None for as many as Slurm allows.
        options: Of sbatch, by the names submitit has for them.
        cluster: "slurm", or "local" for processes of this machine.
    """

    def __init__(
        self,
        run: Callable[..., dict[str, Any]],
        store: Store,
        limit: int | None = None,
        options: Mapping[str, int | str] | None = None,
        cluster: str = "slurm",
    ) -> None:
        self._run, self._store, self._limit = run, store, limit
        self._options, self._cluster = dict(options or {}), cluster
        self._folder = inside(store.folder.resolve(), "slurm")
        # Of this sitting: submitit reads pickles here, and nobody can have laid any in a folder of an unknown name.
        self._place = secrets.token_hex(8)
        self._new: list[tuple[Job, int]] = []
        self._watched: dict[str, _Watched] = {}

    def __enter__(self) -> SlurmHands:
        try:
            self._executor(threads=1, gpus=0)
        except (RuntimeError, ValueError, NameError) as found:
            raise BadInput(f"--on slurm: {found}") from None
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._watched.values():
            each.task.cancel(check=False)  # checkpoints are whole at any moment
            self._note(each.job, "")

    @property
    def busy(self) -> bool:
        """Whether anybody works or waits."""
        return bool(self._new or self._watched)

    @property
    def has_room(self) -> bool:
        """Always: the queue is Slurm's."""
        return True

    def start(self, job: Job) -> None:
        """Put a run into the next array, unless an earlier sitting did so and it is still there."""
        number, place = self._submitted().get(job.config, ("", ""))
        if number and place:
            kind = submitit.SlurmJob if self._cluster == "slurm" else submitit.LocalJob
            task: submitit.Job[None] = kind(inside(self._folder, place), number)
            folder = self._store.run_folder(job.config)
            if answer.is_given(folder) or task.state.upper() in UNDER_WAY:
                self._watched[job.config] = _Watched(job, task, folder, tries=1)
                return
        self._new.append((job, 1))

    def stop(self, job: Job) -> None:
        """End a run before its time."""
        self._watched.pop(job.config).task.cancel(check=False)
        self._note(job, "")

    def news(self) -> Iterator[tuple[Job, str, dict[str, Any]]]:
        """Submit what is new as one array, then wait until somebody says something, and pass it on."""
        self._submit()
        told = False
        while not told:
            for config, each in list(self._watched.items()):
                over = each.over()
                for record in each.new_epochs():
                    told = True
                    yield each.job, "epoch", record
                    if config not in self._watched:  # it was stopped for what it showed
                        break
                if over and config in self._watched:
                    told = True
                    del self._watched[config]
                    self._note(each.job, "")
                    yield from self._ended(each)
            if not told:
                time.sleep(TICK)

    def _ended(self, each: _Watched) -> Iterator[tuple[Job, str, dict[str, Any]]]:
        if answer.is_given(each.folder):
            kind, content = answer.take(each.folder, each.job)
            answer.forget(each.folder)
            yield each.job, kind, content
            return
        state = each.task.state  # a task answers with its problems: its machine is gone
        if each.tries < TRIES and not state.upper().startswith("CANCELLED"):
            self._new.append((each.job, each.tries + 1))
            return
        reason = f"Slurm says {state}: task {each.task.job_id} gave no answer; its log: {each.task.paths.stderr}"
        yield each.job, "failed", {"reason": reason, "killed": True}

    def _submit(self) -> None:
        """What is new, in one array for each kind of machine, written down so that another sitting finds it."""
        kinds: dict[tuple[int, int], list[tuple[Job, int]]] = {}
        for job, tries in self._new:
            gpus = 1 if job.facts()["device"].startswith("cuda") else 0
            kinds.setdefault((job.threads, gpus), []).append((job, tries))
        self._new.clear()
        for (threads, gpus), some in kinds.items():
            executor = self._executor(threads, gpus)
            errands = [self._errand(job) for job, _ in some]
            for errand in errands:
                answer.forget(errand.folder)
            with executor.batch():
                tasks = [executor.submit(Task(errand)) for errand in errands]
            for (job, tries), errand, task in zip(some, errands, tasks, strict=True):
                self._note(job, task.job_id)
                self._watched[job.config] = _Watched(job, task, errand.folder, tries)

    def _errand(self, job: Job) -> Errand:
        return Errand(self._run, job, job.facts(), self._store.run_folder(job.config).resolve())

    def _note(self, job: Job, number: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with _appending(self._folder, SUBMITTED) as file:
            print(json.dumps({"config": job.config, "id": number, "place": self._place}), file=file)

    def _submitted(self) -> dict[str, tuple[str, str]]:
        """The number that each run has in the queue, and its place; "" where its answer was taken, or it was cancelled.

        Raises:
            BadInput: If the list holds something else: the numbers become words of Slurm's commands.
        """
        if not inside(self._folder, SUBMITTED).exists():
            return {}
        descriptor = open_inside(self._folder, SUBMITTED, os.O_RDONLY)
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as opened:
            *lines, _ = opened.read(answer.LARGEST).split("\n")  # a kill may leave half a line
        found = {}
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                config, task, place = row["config"], row["id"], row.get("place", "")
                fine = re.fullmatch(NUMBER, task) and re.fullmatch(PLACE, place) and isinstance(config, str)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                fine = None
            if not fine:
                file = self._folder / SUBMITTED
                raise BadInput(
                    f"{file}: expected the number of a task, found {line[:100]!r} in line {number}; remove the file to "
                    "submit all runs anew"
                )
            found[config] = (task, place)
        return found

    def _executor(self, threads: int, gpus: int) -> Any:
        place = inside(self._folder, self._place)
        executor = submitit.AutoExecutor(place, cluster=self._cluster, slurm_max_num_timeout=REQUEUES)
        options = {**USUAL, "cpus_per_task": threads, **({"gpus_per_node": gpus} if gpus else {}), **self._options}
        if self._limit:
            options["array_parallelism"] = self._limit
        executor.update_parameters(**{f"slurm_{name}": value for name, value in options.items()})
        if self._cluster == "local":
            executor.update_parameters(timeout_min=options["time"])
        return executor


def _appending(folder: Path, name: str) -> TextIO:
    return os.fdopen(open_inside(folder, name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8")

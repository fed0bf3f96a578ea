"""The runs of a study as an array job of Slurm, submitted by submitit."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, final

import submitit
from submitit.core.utils import DelayedSubmission

from equipoise.data.splits import Splits
from equipoise.study.executors import Executor, RunEvent, RunFunction
from equipoise.study.executors.remote import (
    LARGEST,
    TRIES,
    RemoteTask,
    has_result,
    read_epochs,
    read_result,
    remove_result,
    write_result,
)
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
class ArrayTask:
    """A run as a task of the array.

    Args:
        task: The run.
    """

    task: RemoteTask

    def __call__(self) -> None:
        """Do the run from its newest checkpoint, on data that is loaded here and compared with what was planned on."""
        job, folder = self.task.job, self.task.folder
        folder.mkdir(parents=True, exist_ok=True)
        with _appending(folder, EPOCHS) as file:
            result = self.task.do(
                lambda: job.data.load(job.fold), lambda record: print(json.dumps(record), file=file, flush=True)
            )
        write_result(folder, result)

    def checkpoint(self) -> DelayedSubmission:
        """Return what submitit queues again when time is up or another job goes first: the same, which goes on."""
        return DelayedSubmission(self)


@final
class _Watched:
    """A run somewhere in the queue, and how many of its epochs were read."""

    def __init__(self, job: Job, task: submitit.Job[None], folder: Path, tries: int) -> None:
        self.job, self.task, self.folder, self.tries = job, task, folder, tries
        epochs = inside(folder, EPOCHS)
        self._read = epochs.stat().st_size if epochs.exists() else 0
        self._ended: float | None = None

    def new_epochs(self) -> list[dict[str, Any]]:
        records, self._read = read_epochs(self.folder, EPOCHS, self._read)
        return records

    def over(self) -> bool:
        """Tell whether it has a result, or ended so long ago that none will come."""
        if has_result(self.folder):
            return True
        if not self.task.done():
            return False
        with suppress(OSError):  # makes a network's disk look again
            self.folder.chmod(self.folder.stat().st_mode)
        self._ended = self._ended or time.monotonic()
        return time.monotonic() - self._ended > LATE


@final
class SlurmExecutor(Executor):
    """Runs jobs as tasks of one array job.

    The folder of the study has to lie where every machine of the cluster sees it, as submitit demands. If this process
    is killed, or the connection to it breaks, the array goes on; the same command finds it again.

    Args:
        run: Does a job.
        splits: The data of each fold; tasks load it themselves.
        store: Knows the folder of each run.
        limit: Runs at once; None for as many as Slurm allows.
        options: Of sbatch, by the names submitit has for them.
        cluster: "slurm", or "local" for processes of this machine.
    """

    def __init__(
        self,
        run: RunFunction,
        splits: dict[int | None, Splits],
        store: Store,
        limit: int | None = None,
        options: Mapping[str, int | str] | None = None,
        cluster: str = "slurm",
    ) -> None:
        super().__init__(run, splits, store, limit)
        self._options, self._cluster = dict(options or {}), cluster
        self._folder = inside(store.folder.resolve(), "slurm")
        # Of this process alone: submitit reads pickles here, and nobody can have laid any in a folder of unknown name.
        self._place = secrets.token_hex(8)
        self._new: list[tuple[Job, int]] = []
        self._watched: dict[str, _Watched] = {}

    def __enter__(self) -> SlurmExecutor:
        try:
            self._submitter(threads=1, gpus=0)
        except (RuntimeError, ValueError, NameError) as error:
            raise BadInput(f"--on slurm: {error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        for watched in list(self._watched.values()):
            self.stop(watched.job)  # checkpoints are whole at any moment

    @property
    def busy(self) -> bool:
        """Whether any run is not done."""
        return bool(self._new or self._watched)

    @property
    def has_room(self) -> bool:
        """Always: the queue is Slurm's."""
        return True

    def start(self, job: Job) -> None:
        """Put a run into the next array, unless an earlier command did so and it is still there."""
        number, place = self._submitted().get(job.config, ("", ""))
        if number and place:
            kind = submitit.SlurmJob if self._cluster == "slurm" else submitit.LocalJob
            task: submitit.Job[None] = kind(inside(self._folder, place), number)
            folder = self.store.run_folder(job.config)
            if has_result(folder) or task.state.upper() in UNDER_WAY:
                self._watched[job.config] = _Watched(job, task, folder, tries=1)
                return
        self._new.append((job, 1))

    def stop(self, job: Job) -> None:
        """Stop a run before its end."""
        self._watched.pop(job.config).task.cancel(check=False)
        self._note(job, "")

    def events(self) -> Iterator[RunEvent]:
        """Submit what is new as one array, then wait until something happens to a run, and tell of it."""
        self._submit()
        told = False
        while not told:
            for config, watched in list(self._watched.items()):
                over = watched.over()
                for record in watched.new_epochs():
                    told = True
                    yield watched.job, "epoch", record
                    if config not in self._watched:  # it was stopped for what it showed
                        break
                if over and config in self._watched:
                    told = True
                    del self._watched[config]
                    self._note(watched.job, "")
                    yield from self._ended(watched)
            if not told:
                time.sleep(TICK)

    def _ended(self, watched: _Watched) -> Iterator[RunEvent]:
        if has_result(watched.folder):
            result = read_result(watched.folder, watched.job)
            remove_result(watched.folder)
            yield watched.job, *result
            return
        state = watched.task.state  # a task returns its problems: its machine is gone
        if watched.tries < TRIES and not state.upper().startswith("CANCELLED"):
            self._new.append((watched.job, watched.tries + 1))
            return
        task = watched.task
        reason = f"Slurm says {state}: task {task.job_id} gave no answer; its log: {task.paths.stderr}"
        yield watched.job, "failed", {"reason": reason, "killed": True}

    def _submit(self) -> None:
        """Submit what is new in one array for each kind of machine, and note it so that another command finds it."""
        kinds: dict[tuple[int, int], list[tuple[Job, int]]] = {}
        for job, tries in self._new:
            gpus = 1 if job.facts()["device"].startswith("cuda") else 0
            kinds.setdefault((job.threads, gpus), []).append((job, tries))
        self._new.clear()
        for (threads, gpus), some in kinds.items():
            submitter = self._submitter(threads, gpus)
            folders = [self.store.run_folder(job.config).resolve() for job, _ in some]
            for folder in folders:
                remove_result(folder)
            with submitter.batch():
                tasks = [
                    submitter.submit(ArrayTask(RemoteTask(self.run, job, job.facts(), folder)))
                    for (job, _), folder in zip(some, folders, strict=True)
                ]
            for (job, tries), folder, task in zip(some, folders, tasks, strict=True):
                self._note(job, task.job_id)
                self._watched[job.config] = _Watched(job, task, folder, tries)

    def _note(self, job: Job, number: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with _appending(self._folder, SUBMITTED) as file:
            print(json.dumps({"config": job.config, "id": number, "place": self._place}), file=file)

    def _submitted(self) -> dict[str, tuple[str, str]]:
        """Return each run's number in the queue and its folder; "" where its result was read, or it was cancelled.

        Raises:
            BadInput: If the list holds something else: the numbers become words of Slurm's commands.
        """
        if not inside(self._folder, SUBMITTED).exists():
            return {}
        descriptor = open_inside(self._folder, SUBMITTED, os.O_RDONLY)
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as opened:
            *lines, _ = opened.read(LARGEST).split("\n")  # a kill may leave half a line
        submitted = {}
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                config, task, place = row["config"], row["id"], row.get("place", "")
                fine = re.fullmatch(NUMBER, task) and re.fullmatch(PLACE, place) and isinstance(config, str)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                fine = None
            if not fine:
                raise BadInput(
                    f"{self._folder / SUBMITTED}: expected the number of a task, found {line[:100]!r} in line {number}"
                    "; remove the file to submit all runs anew"
                )
            submitted[config] = (task, place)
        return submitted

    def _submitter(self, threads: int, gpus: int) -> submitit.AutoExecutor:
        folder = inside(self._folder, self._place)
        submitter = submitit.AutoExecutor(folder, cluster=self._cluster, slurm_max_num_timeout=REQUEUES)
        options = {**USUAL, "cpus_per_task": threads, **({"gpus_per_node": gpus} if gpus else {}), **self._options}
        if self.limit:
            options["array_parallelism"] = self.limit
        submitter.update_parameters(**{f"slurm_{name}": value for name, value in options.items()})
        if self._cluster == "local":
            submitter.update_parameters(timeout_min=options["time"])
        return submitter


def _appending(folder: Path, name: str) -> TextIO:
    return os.fdopen(open_inside(folder, name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8")

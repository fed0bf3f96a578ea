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

from equipoise.study.executors import Executor, RunEvent, RunFunction, remote
from equipoise.study.job import FoldSplits, Job
from equipoise.study.store import Store, read_lines
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

    task: remote.RemoteTask

    def __call__(self) -> None:
        """Do the run from its newest checkpoint, on data that is loaded here and compared with what was planned on."""
        job, folder = self.task.job, self.task.folder
        folder.mkdir(parents=True, exist_ok=True)
        with _appending(folder, EPOCHS) as file:
            result = self.task.do(
                lambda: job.data.load(job.fold), lambda record: print(json.dumps(record), file=file, flush=True)
            )
        remote.write_result(folder, result)

    def checkpoint(self) -> DelayedSubmission:
        """Return what submitit queues again when time is up or another job goes first: the same, which goes on."""
        return DelayedSubmission(self)


@final
@dataclass
class _Watched:
    """A run in the queue: the number of its try, the bytes of its epochs that were read, and when it ended."""

    job: Job
    task: submitit.Job[None]
    folder: Path
    tries: int
    read: int
    ended: float | None = None

    def over(self) -> bool:
        """Tell whether it has a result, or ended so long ago that none will come."""
        if remote.has_result(self.folder):
            return True
        if not self.task.done():
            return False
        with suppress(OSError):  # makes a network's disk look again
            self.folder.chmod(self.folder.stat().st_mode)
        self.ended = self.ended or time.monotonic()
        return time.monotonic() - self.ended > LATE


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
        splits: FoldSplits,
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

    @property
    def has_room(self) -> bool:
        """Always: the queue is Slurm's."""
        return True

    def _start(self, job: Job) -> None:
        """Put a run into the next array, unless an earlier command did so and it is still there."""
        number, place = self._submitted().get(job.config, ("", ""))
        if number and place:
            kind = submitit.SlurmJob if self._cluster == "slurm" else submitit.LocalJob
            task: submitit.Job[None] = kind(inside(self._folder, place), number)
            folder = self.store.run_folder(job.config)
            if remote.has_result(folder) or task.state.upper() in UNDER_WAY:
                self._watch(job, task, folder, tries=1)
                return
        self._new.append((job, 1))

    def _watch(self, job: Job, task: submitit.Job[None], folder: Path, tries: int) -> None:
        epochs = inside(folder, EPOCHS)
        read = epochs.stat().st_size if epochs.exists() else 0
        self._watched[job.config] = _Watched(job, task, folder, tries, read)

    def _stop(self, job: Job) -> None:
        self._new = [new for new in self._new if new[0] is not job]
        if watched := self._watched.pop(job.config, None):
            watched.task.cancel(check=False)
            self._note(job, "")

    def _events(self) -> Iterator[RunEvent]:
        """Submit what is new as one array, then wait until something happens to a run, and tell of it."""
        self._submit()
        told = False
        while not told:
            for config, watched in list(self._watched.items()):
                over = watched.over()
                records, watched.read = remote.read_epochs(watched.folder, EPOCHS, watched.read)
                for record in records:
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
        job, task = watched.job, watched.task
        if remote.has_result(watched.folder):
            result = remote.read_result(watched.folder, job)
            remote.remove_result(watched.folder)
            yield job, *result
        elif watched.tries < remote.TRIES and not task.state.upper().startswith("CANCELLED"):
            self._new.append((job, watched.tries + 1))  # a task returns its problems: its machine is gone
        else:
            reason = f"Slurm says {task.state}: task {task.job_id} gave no answer; its log: {task.paths.stderr}"
            yield job, "failed", {"reason": reason, "killed": True}

    def _submit(self) -> None:
        """Submit what is new in one array for each kind of machine, and note it so that another command finds it."""
        kinds: dict[tuple[int, int], list[tuple[Job, int, Path]]] = {}
        for job, tries in self._new:
            folder, gpus = self.store.run_folder(job.config).resolve(), int(job.facts()["device"].startswith("cuda"))
            kinds.setdefault((job.threads, gpus), []).append((job, tries, folder))
            remote.remove_result(folder)
        self._new.clear()
        for machine, runs in kinds.items():
            submitter = self._submitter(*machine)
            with submitter.batch():
                work = [ArrayTask(remote.RemoteTask(self.run, job, job.facts(), folder)) for job, _, folder in runs]
                tasks = [submitter.submit(one) for one in work]
            for (job, tries, folder), task in zip(runs, tasks, strict=True):
                self._note(job, task.job_id)
                self._watch(job, task, folder, tries)

    def _note(self, job: Job, number: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with _appending(self._folder, SUBMITTED) as file:
            print(json.dumps({"config": job.config, "id": number, "place": self._place}), file=file)

    def _submitted(self) -> dict[str, tuple[str, str]]:
        """Return each run's number in the queue and its folder; "" where its result was read, or it was cancelled.

        Raises:
            BadInput: If the list holds something else: the numbers become words of Slurm's commands.
        """
        if not (file := inside(self._folder, SUBMITTED)).exists():
            return {}
        lines = read_lines(file, _is_submission, expected="the number of a task")
        return {row["config"]: (row["id"], row.get("place", "")) for _, row in lines.values}

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


def _is_submission(row: dict[str, Any]) -> bool:
    parts = ((row.get("config"), ".*"), (row.get("id"), NUMBER), (row.get("place", ""), PLACE))
    return all(isinstance(text, str) and re.fullmatch(pattern, text) for text, pattern in parts)


def _appending(folder: Path, name: str) -> TextIO:
    return os.fdopen(open_inside(folder, name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a", encoding="utf-8")

"""The runs of a study as tasks of a Ray cluster."""

from __future__ import annotations

import logging
import os
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, final

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from equipoise.data.splits import Splits
from equipoise.study.executors.errand import TRIES, Errand, Outcome, unpack
from equipoise.study.executors.mailbox import Mailbox
from equipoise.study.job import Job
from equipoise.study.store import Store
from equipoise.util.errors import BadInput


class _Task(NamedTuple):
    job: Job
    tries: int


@final
class RayHands:
    """Runs jobs as tasks of Ray. Use it as a context: whoever still works at its end is stopped.

    A task that dies with its worker is begun again, from its newest checkpoint where the study's folder lies on a disk
    that workers share, from the beginning elsewhere. Nothing but this process writes rows.

    Args:
        run: Does a job: (job, splits, folder, on_epoch) → row.
        splits: The data of each fold. What lies in memory is sent to the workers; what was prepared they open.
        store: Knows the folder of each run.
        limit: Runs at once; None for as many as the cluster has room for at the moment.
        address: Of the cluster; None for the one of this machine, or a new one.
    """

    def __init__(
        self,
        run: Callable[..., dict[str, Any]],
        splits: dict[int | None, Splits],
        store: Store,
        limit: int | None = None,
        address: str | None = None,
    ) -> None:
        self._run, self._splits, self._store, self._limit, self._address = run, splits, store, limit, address
        self._mark = store.folder.resolve() / f".seen-{uuid.uuid4().hex}"
        self._working: dict[Any, _Task] = {}
        self._sent: dict[int | None, Any] = {}
        self._ours = False

    def __enter__(self) -> RayHands:
        if not ray.is_initialized():
            _join(self._address)
            self._ours = True
        self._mark.touch()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)  # it dies with us
        self._box: Any = ray.remote(num_cpus=0)(Mailbox).options(scheduling_strategy=here).remote()
        self._letters = self._box.take.remote()
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._working:
            ray.cancel(task, force=True)  # checkpoints are whole at any moment
        self._box.put.remote("", {})  # Ray complains of whoever dies while somebody waits for an answer
        ray.wait([self._letters], timeout=1)
        ray.kill(self._box)
        self._mark.unlink(missing_ok=True)
        if self._ours:
            ray.shutdown()

    @property
    def busy(self) -> bool:
        """Whether anybody works."""
        return bool(self._working)

    @property
    def has_room(self) -> bool:
        """Whether another run may start."""
        return len(self._working) < (self._limit or self._room() + 1)  # one waits, so that no worker does

    def start(self, job: Job) -> None:
        """Begin a run."""
        self._begin(job, tries=1)

    def stop(self, job: Job) -> None:
        """End a run before its time."""
        task = next(task for task, (doing, _) in self._working.items() if doing.config == job.config)
        del self._working[task]
        ray.cancel(task, force=True)

    def news(self) -> Iterator[tuple[Job, str, dict[str, Any]]]:
        """Wait until somebody says something, and pass it on."""
        ready, _ = ray.wait([self._letters, *self._working], num_returns=1)
        if self._letters in ready:
            yield from self._epochs()
        for task in [each for each in ready if each in self._working]:
            job, tries = self._working.pop(task)
            try:
                kind, content, files = ray.get(task)
            except RayError as found:  # the task itself answers with its problems: its worker is gone
                if tries < TRIES:
                    self._begin(job, tries + 1)
                    continue
                reason = f"its worker died {tries} times, the last time of: {_first_line(found)}"
                kind, content, files = Outcome("failed", {"reason": reason, "killed": True}, {})
            unpack(files, self._store.run_folder(job.config))
            yield job, kind, content

    def _epochs(self) -> Iterator[tuple[Job, str, dict[str, Any]]]:
        """What is in the mailbox. Only who works is listened to: letters may come late."""
        letters, self._letters = self._letters, self._box.take.remote()
        for config, record in ray.get(letters):
            working = {job.config: job for job, _ in self._working.values()}
            if config in working:
                yield working[config], "epoch", record

    def _begin(self, job: Job, tries: int) -> None:
        facts, data = job.facts(), self._data(job)
        sent = job if data is None else replace(job, data=replace(job.data, load=_sent_along))
        folder = self._store.run_folder(job.config).resolve()
        errand = Errand(self._run, sent, facts, folder, self._mark)
        gpus = 1 if facts["device"].startswith("cuda") else 0
        task = ray.remote(num_cpus=job.threads, num_gpus=gpus, max_retries=0)(_do)
        found = task.options(name=job.name).remote(errand, job.config, [data], self._box)
        self._working[found] = _Task(job, tries)

    def _data(self, job: Job) -> Any:
        """A reference to the data where it lies in memory; None where workers open what was prepared."""
        splits = self._splits[job.fold]
        if splits.source:
            return None
        if job.fold not in self._sent:
            self._sent[job.fold] = ray.put(splits)
        return self._sent[job.fold]

    def _room(self) -> int:
        """How many runs of the kind that is under way the cluster can do at once; machines come and go."""
        there = ray.cluster_resources()
        job = next((job for job, _ in self._working.values()), None)
        if job is None:
            return 1
        if job.facts()["device"].startswith("cuda"):
            if not there.get("GPU"):
                warnings.warn("the Ray cluster has no GPU at the moment: runs wait for one", stacklevel=2)
            return int(there.get("GPU", 0))
        return int(there.get("CPU", 0)) // job.threads


_data_here: dict[str, Splits] = {}
"""In a worker: the data of its last run, which the next one probably shares."""


def _do(errand: Errand, config: str, data: list[Any], box: Any) -> Outcome:
    """What a worker does. The reference to the data comes in a list, so that Ray does not fetch it unasked."""

    def load() -> Splits:
        mark = errand.job.split
        if mark not in _data_here:
            _data_here.clear()
            _data_here[mark] = errand.job.data.load(errand.job.fold) if data[0] is None else ray.get(data[0])
        return _data_here[mark]

    return errand.do(load, lambda record: box.put.remote(config, record))


def _sent_along(fold: int | None) -> NoReturn:
    raise RuntimeError(f"the data of fold {fold} was sent along, and is not loaded again")


def _join(address: str | None) -> None:
    """Join a cluster, without a word where all is well."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody asked the user
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # a run on the CPU sees no GPU
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as found:
        msg = (
            f"no Ray cluster answers at {address or os.environ.get('RAY_ADDRESS', 'this machine')}: "
            f"{_first_line(found)}. Start one with `ray start --head`, and type --on ray on that machine, or "
            "--on ray://HOST:10001 on another; where the cluster asks for a token, set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN"
        )
        raise BadInput(msg) from None


def _first_line(found: Exception) -> str:
    return (str(found).strip() or type(found).__name__).splitlines()[0].rstrip(".")

"""The runs of a study as tasks of a Ray cluster."""

from __future__ import annotations

import logging
import os
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn, final

import ray
from ray.exceptions import RayError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from equipoise.data.splits import Splits
from equipoise.study.executors import Executor, RunEvent, RunFunction
from equipoise.study.executors.remote import TRIES, RemoteResult, RemoteTask, unpack
from equipoise.study.job import FoldSplits, Job
from equipoise.study.store import Store
from equipoise.util.errors import BadInput, first_line


@final
class RayExecutor(Executor):
    """Runs jobs as tasks of Ray.

    A task that dies with its worker is begun again, from its newest checkpoint where the study's folder lies on a disk
    that workers share, from the beginning elsewhere. Nothing but this process writes rows.

    Args:
        run: Does a job.
        splits: The data of each fold. What lies in memory is sent to the workers; what was prepared they open.
        store: Knows the folder of each run.
        limit: Runs at once; None for as many as the cluster has room for at the moment.
        address: Of the cluster; None for the one of this machine, or a new one.
    """

    def __init__(
        self, run: RunFunction, splits: FoldSplits, store: Store, limit: int | None = None, address: str | None = None
    ) -> None:
        super().__init__(run, splits, store, limit)
        self._address = address
        self._mark = store.folder.resolve() / f".seen-{uuid.uuid4().hex}"
        self._tasks: dict[Any, tuple[Job, int]] = {}  # with the number of the try
        self._sent: dict[int | None, Any] = {}
        self._started = False

    def __enter__(self) -> RayExecutor:
        if not ray.is_initialized():
            _connect(self._address)
            self._started = True
        self._mark.touch()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)  # it dies with us
        self._epochs: Any = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here}).actor
        self._next = self._epochs.get.remote()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._epochs.put.remote(("", {}))  # Ray complains of an actor that dies while somebody waits for it
        ray.wait([self._next], timeout=1)
        ray.kill(self._epochs)
        self._mark.unlink(missing_ok=True)
        if self._started:
            ray.shutdown()

    @property
    def has_room(self) -> bool:
        """True where another run may start; one waits, so that no worker does."""
        return len(self.running) < (self.limit or self._room() + 1)

    def _start(self, job: Job) -> None:
        self._begin(job, 1)

    def _stop(self, job: Job) -> None:
        task = next(task for task, (running, _) in self._tasks.items() if running.config == job.config)
        del self._tasks[task]
        ray.cancel(task, force=True)

    def _events(self) -> Iterator[RunEvent]:
        ready, _ = ray.wait([self._next, *self._tasks], num_returns=1)
        if self._next in ready:
            config, record = ray.get(self._next)
            self._next = self._epochs.get.remote()
            if job := self.running.get(config):  # epochs may come late
                yield job, "epoch", record
        for task in [task for task in ready if task in self._tasks]:
            job, tries = self._tasks.pop(task)
            try:
                kind, content, files = ray.get(task)
            except RayError as error:  # the task itself returns its problems: its worker is gone
                if tries < TRIES:
                    self._begin(job, tries + 1)
                    continue
                reason = f"its worker died {tries} times, the last time of: {first_line(error)}"
                kind, content, files = "failed", {"reason": reason, "killed": True}, {}
            unpack(files, self.store.run_folder(job.config))
            yield job, kind, content

    def _begin(self, job: Job, tries: int) -> None:
        facts, data = job.facts(), self._data(job)
        sent = job if data is None else replace(job, data=replace(job.data, load=_sent_along))
        task = RemoteTask(self.run, sent, facts, self.store.run_folder(job.config).resolve(), self._mark)
        gpus = 1 if facts["device"].startswith("cuda") else 0
        remote = ray.remote(num_cpus=job.threads, num_gpus=gpus, max_retries=0)(_do).options(name=job.name)
        self._tasks[remote.remote(task, job.config, [data], self._epochs)] = (job, tries)

    def _data(self, job: Job) -> Any:
        """Return a reference to the data where it lies in memory; None where workers open what was prepared."""
        splits = self.splits[job.fold]
        if not splits.source and job.fold not in self._sent:
            self._sent[job.fold] = ray.put(splits)
        return self._sent.get(job.fold)

    def _room(self) -> int:
        """Return how many runs like those under way the cluster can do at once; machines come and go."""
        if not self.running:
            return 1
        resources, job = ray.cluster_resources(), next(iter(self.running.values()))
        if not job.facts()["device"].startswith("cuda"):
            return int(resources.get("CPU", 0)) // job.threads
        if not resources.get("GPU"):
            warnings.warn("the Ray cluster has no GPU at the moment: runs wait for one", stacklevel=2)
        return int(resources.get("GPU", 0))


_last_data: dict[str, Splits] = {}
"""In a worker: the data of its last run, which the next one probably shares."""


def _do(task: RemoteTask, config: str, data: list[Any], epochs: Any) -> RemoteResult:
    """Do a task in a worker. The reference to the data comes in a list, so that Ray does not fetch it at once."""

    def load() -> Splits:
        mark = task.job.split
        if mark not in _last_data:
            _last_data.clear()
            _last_data[mark] = task.job.data.load(task.job.fold) if data[0] is None else ray.get(data[0])
        return _last_data[mark]

    return task.do(load, lambda record: epochs.put.remote((config, record)))


def _sent_along(fold: int | None) -> NoReturn:
    raise RuntimeError(f"the data of fold {fold} was sent along, and is not loaded again")


def _connect(address: str | None) -> None:
    """Connect to a cluster, silently where all is well."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody asked the user
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # a run on the CPU sees no GPU
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"no Ray cluster answers at {address or os.environ.get('RAY_ADDRESS', 'this machine')}: "
            f"{first_line(error)}. Start one with `ray start --head`, and type --on ray on that machine, or "
            "--on ray://HOST:10001 on another; where the cluster asks for a token, set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN"
        ) from None

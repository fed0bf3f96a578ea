"""The processes that do the runs of a study."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, final

from equipoise.data.splits import Splits
from equipoise.study.executors.sharing import environment_for, touched_a_gpu
from equipoise.study.job import Job, clear_up, keep_traceback, reason_of
from equipoise.study.store import Store, cannot_write, is_of_the_disk
from equipoise.util.processes import exit_with_parent, start_without_sigint

LIBRARIES = ["accelerate", "safetensors.torch", "torch._dynamo"]
"""What every run would spend two seconds on; the optimisers load the last one."""
Message = tuple[str, dict[str, Any]]
"""The message of a process about its run: "epoch", "done", "failed" or "unwritable", and what there is to say.

A run that "failed" because its process was killed is not to blame: it has "killed" set."""


class _Hand(NamedTuple):
    pipe: Connection
    process: mp.Process
    gpu: int | None


@final
class Hands:
    """Runs jobs in processes of their own. Use it as a context: whoever still works at its end is stopped.

    A process is forked, and shares what is imported and loaded. On CPUs each run has one of its own. One that uses a
    GPU takes seconds until it can, and goes on with the next run; where this process has touched a GPU itself, it is
    forked off a server that has not, and loads the data again.

    Args:
        run: Does a job: (job, splits, folder, on_epoch) → row.
        splits: The data of each fold.
        store: Knows the folder of each run.
        limit: Processes at once.
        gpus: GPUs that they are dealt out to; 0 for none.
    """

    def __init__(
        self,
        run: Callable[..., dict[str, Any]],
        splits: dict[int | None, Splits],
        store: Store,
        limit: int,
        gpus: int = 0,
    ) -> None:
        self._run, self._splits, self._store, self._limit, self._gpus = run, splits, store, limit, gpus
        self._copies = not (gpus and touched_a_gpu())
        self._context: Any = mp.get_context("fork" if self._copies else "forkserver")
        if not self._copies:
            self._context.set_forkserver_preload([__name__, *LIBRARIES])
        self._working: dict[Connection, tuple[_Hand, Job]] = {}
        self._resting: list[_Hand] = []

    def __enter__(self) -> Hands:
        return self

    def __exit__(self, *_: object) -> None:
        everyone = [*self._resting, *(hand for hand, _ in self._working.values())]
        for hand in everyone:
            hand.process.kill()  # checkpoints are whole at any moment
        for hand in everyone:
            hand.process.join()

    @property
    def busy(self) -> bool:
        """Whether anybody works."""
        return bool(self._working)

    @property
    def has_room(self) -> bool:
        """Whether another run may start."""
        return len(self._working) < self._limit

    def start(self, job: Job) -> None:
        """Begin a run."""
        folder = self._store.run_folder(job.config)
        hand = self._rested(job, folder) or self._new(job, folder)
        self._working[hand.pipe] = (hand, job)

    def stop(self, job: Job) -> None:
        """End a run before its time."""
        hand = next(hand for hand, doing in self._working.values() if doing.config == job.config)
        del self._working[hand.pipe]
        hand.process.kill()
        hand.process.join()
        hand.pipe.close()

    def news(self) -> Iterator[tuple[Job, str, dict[str, Any]]]:
        """Wait until somebody says something, and pass it on."""
        for ready in wait(list(self._working)):
            hand, job = self._working[ready]  # ty: ignore[invalid-argument-type]
            kind, content = _receive(hand.pipe)
            if kind != "epoch":
                del self._working[hand.pipe]
                if kind == "done" and self._gpus:
                    self._resting.append(hand)
                else:
                    hand.pipe.close()
                    hand.process.join()
            yield job, kind, content

    def _rested(self, job: Job, folder: Path) -> _Hand | None:
        """Somebody who rests, sent on to the next run; None where nobody is left: who rests may be killed, too."""
        while self._resting:
            hand = self._resting.pop()
            try:
                hand.pipe.send((job, folder))
            except OSError:
                hand.pipe.close()
                hand.process.join()
            else:
                return hand
        return None

    def _new(self, job: Job, folder: Path) -> _Hand:
        ours, theirs = self._context.Pipe()
        shared = self._splits if self._copies else None
        gpu = self._least_used() if self._gpus > 1 else None
        told = environment_for(gpu) if self._gpus else None
        process = self._context.Process(target=_work, args=(theirs, self._run, job, folder, shared, told), daemon=True)
        start_without_sigint(process)
        theirs.close()
        return _Hand(ours, process, gpu)

    def _least_used(self) -> int:
        used = [hand.gpu for hand in (*self._resting, *(hand for hand, _ in self._working.values()))]
        return min(range(self._gpus), key=used.count)


def _work(
    pipe: Connection,
    run: Callable[..., dict[str, Any]],
    job: Job,
    folder: Path,
    shared: dict[int | None, Splits] | None,
    for_a_gpu: dict[str, str] | None,
) -> None:
    """A run; with a GPU one after the other, as long as none fails: a GPU may be out of order after that."""
    exit_with_parent(from_server=shared is None)
    os.environ.update(for_a_gpu or {})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends its children
    loaded = {} if shared is None else dict(shared)
    while True:
        try:
            if job.fold not in loaded:
                loaded[job.fold] = job.data.load(job.fold)
            row = run(job, loaded[job.fold], folder, lambda record: pipe.send(("epoch", record)))
        except Exception as found:  # whatever went wrong in a run belongs into the report of the study
            if is_of_the_disk(found, folder):
                pipe.send(("unwritable", {"reason": cannot_write(folder, found)}))
            else:
                keep_traceback(found, folder)
                pipe.send(("failed", {"reason": reason_of(found, folder)}))
            return
        pipe.send(("done", row))
        if for_a_gpu is None:
            return
        del row
        clear_up()
        try:
            job, folder = pipe.recv()
        except EOFError:
            return


def _receive(pipe: Connection) -> Message:
    try:
        return pipe.recv()
    except (EOFError, OSError):  # nothing, or half a message
        reason = "the process of the run ended without a word (out of memory, or killed)"
        return "failed", {"reason": reason, "killed": True}

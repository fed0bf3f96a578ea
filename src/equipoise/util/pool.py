"""A pool of worker processes, each of whose tasks may fail, crash or never end.

Threads would not do: small models spend much of their time in Python, which runs one thread at a time.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing as mp
import pickle
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, final

import torch

from equipoise.util.errors import BadInput
from equipoise.util.processes import cores, exit_reason, exit_with_parent, start_without_sigint

GRACE = 5.0  # seconds to wait for a process that was killed: it may hang in a disk that does not answer
Tell = Callable[[Any], None]
Event = tuple[Any, str, Any]
"""A task, and what became of it: "message" with what it told, "done" with its result, "failed" with its exception,
"died" with how its worker ended, or "late"."""
Result = TypeVar("Result")


@final
@dataclass(eq=False)
class _Task:
    content: Any
    deaths: int = 0


@final
@dataclass(eq=False)
class _Worker:
    process: mp.Process
    pipe: Connection
    slot: int
    tasks: deque[_Task]
    since: float = field(default_factory=time.monotonic)  # when the first of its tasks became that


@final
class Pool:
    """Worker processes. Use it as a context: workers that are still busy at its end are killed, as with the parent.

    Workers are forked, so they share what is imported and loaded here, and nothing but later tasks is pickled.

    Args:
        work: Does a task: (task, tell) → result; `tell` sends a message. Runs in a worker.
        size: Workers at once.
        reuse: Whether a worker goes on with the next task; otherwise each task has a process of its own.
        ahead: Tasks that a worker is given at once while many wait, so that it need not wait for the next.
        tries: Times that a task is begun whose worker dies: it may have died of something else, such as full memory.
        patience: Seconds that a task may take.
        initialize: Called first in a worker with its slot, the smallest number that no other worker has.
        preload: Modules of a server that workers are forked off, where a copy of this process could not work; then
            `work` is pickled, too.
    """

    def __init__(
        self,
        work: Callable[[Any, Tell], Any],
        size: int,
        *,
        reuse: bool = True,
        ahead: int = 1,
        tries: int = 1,
        patience: float = math.inf,
        initialize: Callable[[int], None] | None = None,
        preload: Sequence[str] | None = None,
    ) -> None:
        self.work, self.size, self.reuse, self.ahead = work, size, reuse, ahead
        self.tries, self.patience, self.initialize, self.preload = tries, patience, initialize, preload
        self._context: Any = mp.get_context("fork" if preload is None else "forkserver")
        if preload is not None:
            self._context.set_forkserver_preload(list(preload))
        self._workers: list[_Worker] = []
        self._waiting: deque[_Task] = deque()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in list(self._workers):
            self._remove(worker)

    @property
    def unfinished(self) -> int:
        """Number of tasks that wait or are being done."""
        return len(self._waiting) + sum(len(worker.tasks) for worker in self._workers)

    def submit(self, *tasks: Any) -> None:
        """Add tasks; as many as there are free workers begin at once."""
        self._waiting.extend(map(_Task, tasks))
        self._feed()

    def cancel(self, task: Any) -> None:
        """Kill the worker that does a task."""
        self._kill(next(one for one in self._workers if one.tasks and one.tasks[0].content is task))

    def events(self) -> Iterator[Event]:
        """Wait until something happens, and tell of it."""
        self._feed()
        due = min((worker.since + self.patience for worker in self._workers if worker.tasks), default=math.inf)
        timeout = None if due == math.inf else max(0.0, due - time.monotonic())
        for pipe in wait([worker.pipe for worker in self._workers], timeout):
            if worker := next((worker for worker in self._workers if worker.pipe is pipe), None):
                yield from self._read(worker)
        for worker in [worker for worker in self._workers if worker.tasks and not worker.pipe.poll()]:
            if time.monotonic() - worker.since > self.patience:
                yield self._kill(worker).content, "late", None

    def _read(self, worker: _Worker) -> Iterator[Event]:
        try:
            kind, content = pickle.loads(worker.pipe.recv_bytes())
        except (EOFError, OSError):  # nothing, or half a message
            yield from self._died(worker)
            return
        task = worker.tasks[0]
        if kind == "failed":
            content, text = content
            content.__cause__ = RuntimeError(text)  # a traceback is not pickled
        if kind != "message":
            worker.tasks.popleft()
            worker.since = time.monotonic()
            if kind == "failed" or not self.reuse:
                self._remove(worker)
        yield task.content, kind, content

    def _died(self, worker: _Worker) -> Iterator[Event]:
        """Blame the task that the worker was doing, and begin it again where it has tries left."""
        task = worker.tasks.popleft() if worker.tasks else None
        self._remove(worker)
        if task is None:
            return
        task.deaths += 1
        if task.deaths < self.tries:
            self._waiting.appendleft(task)
        else:
            yield task.content, "died", exit_reason(worker.process.exitcode)

    def _kill(self, worker: _Worker) -> _Task:
        """Kill a worker, and return the task that it was doing."""
        worker.process.kill()
        task = worker.tasks.popleft()
        self._remove(worker)
        return task

    def _remove(self, worker: _Worker) -> None:
        """Part with a worker that is dead or about to end; its other tasks wait again."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join(GRACE)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join(GRACE)
        self._waiting.extendleft(reversed(worker.tasks))

    def _feed(self) -> None:
        while self._waiting:
            ahead = self.ahead if len(self._waiting) > self.size * self.ahead else 1
            worker = min(self._workers, key=lambda worker: len(worker.tasks), default=None)
            if (worker is None or worker.tasks) and len(self._workers) < self.size:
                self._start(self._waiting.popleft())
            elif worker is None or len(worker.tasks) >= ahead:
                return
            else:
                self._send(worker, self._waiting[0])

    def _send(self, worker: _Worker, task: _Task) -> None:
        content = pickle.dumps(task.content)
        try:
            worker.pipe.send_bytes(content)
        except OSError:  # an idle worker was killed
            self._remove(worker)
            return
        if not worker.tasks:
            worker.since = time.monotonic()
        worker.tasks.append(self._waiting.popleft())

    def _start(self, task: _Task) -> None:
        ours, theirs = self._context.Pipe()
        taken = {worker.slot for worker in self._workers}
        slot = next(number for number in range(self.size) if number not in taken)
        # Held open in a worker, they would hide from the others that the parent is gone.
        inherited = [ours, *(worker.pipe for worker in self._workers)] if self.preload is None else []
        setup = (self.preload is not None, inherited, self.initialize, slot, self.reuse)
        process = self._context.Process(target=_serve, args=(theirs, setup, self.work, task.content), daemon=True)
        try:
            start_without_sigint(process)
        except OSError as error:
            raise BadInput(f"cannot start a process: {error.strerror}; use fewer with --workers") from None
        theirs.close()
        self._workers.append(_Worker(process, ours, slot, deque([task])))


def _serve(pipe: Connection, setup: tuple[Any, ...], work: Callable[[Any, Tell], Any], task: Any) -> None:
    """Do tasks in a worker until one fails or the parent closes the pipe."""
    from_server, inherited, initialize, slot, reuse = setup
    exit_with_parent(from_server=from_server)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives Ctrl-C and ends its workers
    for other in inherited:
        other.close()
    torch.set_num_threads(1)  # the other cores are taken; and the parent's pool of threads did not come along
    if initialize is not None:
        initialize(slot)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while _attempt(pipe, work, task) and reuse:
            task = pickle.loads(pipe.recv_bytes())


def _attempt(pipe: Connection, work: Callable[[Any, Tell], Any], task: Any) -> bool:
    def tell(kind: str, content: Any) -> None:
        pipe.send_bytes(pickle.dumps((kind, content)))  # tensors by value: those sent otherwise die with this process

    try:
        tell("done", work(task, lambda message: tell("message", message)))
    except Exception as error:
        text = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # not every exception can be pickled, or made again
            error = RuntimeError(str(error))
        tell("failed", (error, text))
        return False
    return True


def parallel_workers() -> int:
    """Return how many processes pay here: one per core that this one may use, and one alone beside a GPU.

    A process that has touched a GPU cannot be forked; and one that is itself a child may be one of many.
    """
    return 1 if torch.cuda.is_available() or mp.parent_process() is not None else cores()


def run_parallel(works: Sequence[Callable[[Tell], Result]], tell: Tell = lambda _: None) -> list[Result]:
    """Call all functions at the same time, or in turn where that does not pay; return their results in order.

    Args:
        works: Each is given something to call with messages on how far it is. Its result is pickled.
        tell: Called with these messages here.

    Raises:
        Exception: The exception of the first that fails; the others are ended.
        RuntimeError: If a process dies.

    Example:
        >>> run_parallel([lambda tell: 1 + 1, lambda tell: 2 + 2])
        [2, 4]
    """
    if len(works) == 1 or parallel_workers() == 1:
        return [work(tell) for work in works]
    results: dict[int, Result] = {}
    with Pool(lambda number, tell: works[number](tell), len(works), reuse=False) as pool:
        pool.submit(*range(len(works)))
        while pool.unfinished:
            for number, kind, content in pool.events():
                if kind == "message":
                    tell(content)
                elif kind == "failed":
                    raise content
                elif kind == "died":
                    raise RuntimeError(f"a process of the experiment ended without a message ({content})")
                else:
                    results[number] = content
    return [results[number] for number in range(len(works))]

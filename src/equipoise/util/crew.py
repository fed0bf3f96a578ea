"""Processes that work through numbered tasks, each of which may fail, crash or never end.

A worker writes what it has done into the journal, and nothing else counts as done. So whoever reads the journal knows
what a worker has in hand: the first of its tasks that is not written down.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, final

import torch

from equipoise.data.prepare.writer import Journal, Record
from equipoise.util.errors import BadInput
from equipoise.util.processes import exit_reason, exit_with_parent, start_without_sigint

TICK = 0.1  # seconds between two looks at the journal, unless a worker has run out of tasks
AHEAD = 0.5  # seconds of work that a worker is given at once
MOST = 64  # tasks that a worker is given at once
TRIES = 2  # times that a task is begun: a worker may have died of something else, such as full memory
GRACE = 5.0  # seconds until a process that was killed is given up on: it may wait for a disk that does not answer


@final
@dataclass
class _Worker:
    process: mp.Process
    pipe: Connection
    tasks: deque[int] = field(default_factory=deque)
    since: float = 0.0  # when the first of its tasks became that


@final
class Crew:
    """Workers for some tasks. Use it as a context, and `run` it once.

    Args:
        work: Does one task and writes it into the journal; runs in another process.
        journal: Where it writes.
        size: How many work side by side.
        patience: Seconds that one task may take.
    """

    def __init__(self, work: Callable[[int], None], journal: Journal, size: int, patience: float) -> None:
        self.work, self.journal, self.size, self.patience = work, journal, size, patience
        self._workers: list[_Worker] = []
        self._waiting: deque[int] = deque()
        self._deaths: dict[int, int] = {}
        self._news: list[Record] = []
        self._seconds_each = AHEAD  # until it is known

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()  # what it wrote down is whole at any moment
        for worker in self._workers:
            worker.process.join(GRACE)
            worker.pipe.close()
        self._workers.clear()

    def run(self, tasks: Iterable[int]) -> Iterator[list[Record]]:
        """Do the tasks, and tell of them as they are done."""
        self._waiting.extend(tasks)
        started, finished = time.monotonic(), 0
        while self._waiting or any(worker.tasks for worker in self._workers):
            while len(self._workers) < min(self.size, len(self._waiting) + len(self._workers)):
                self._hire()
            for worker in self._workers:
                self._feed(worker)
            for ready in wait([worker.pipe for worker in self._workers], TICK):
                self._listen(next(worker for worker in self._workers if worker.pipe is ready))
            self._read_journal()
            now = time.monotonic()
            for worker in [each for each in self._workers if each.tasks and now - each.since > self.patience]:
                self._let_go(worker, hung=True)
            news, self._news = self._news, []
            if news:
                finished += len(news)
                self._seconds_each = max(1e-6, self.size * (now - started) / finished)
            yield news

    def _hire(self) -> None:
        context: Any = mp.get_context("fork")  # what is open here a worker has too, however large it is
        ours, theirs = context.Pipe()
        inherited = [ours, *(worker.pipe for worker in self._workers)]
        process = context.Process(target=_attend, args=(theirs, inherited, self.work), daemon=True)
        try:
            start_without_sigint(process)
        except OSError as found:
            raise BadInput(f"cannot start a process: {found.strerror}; use fewer with --workers") from None
        theirs.close()
        self._workers.append(_Worker(process, ours))

    def _feed(self, worker: _Worker) -> None:
        share = -(-len(self._waiting) // (2 * self.size))  # ever smaller, so that all come to the end together
        most = min(MOST, share, max(1, int(AHEAD / self._seconds_each)))
        if not self._waiting or len(worker.tasks) > most // 2:
            return
        given = [self._waiting.popleft() for _ in range(most)]
        if not worker.tasks:
            worker.since = time.monotonic()
        worker.tasks.extend(given)
        with contextlib.suppress(OSError):  # it is dead, which its pipe will tell
            worker.pipe.send(given)

    def _listen(self, worker: _Worker) -> None:
        try:
            problem = worker.pipe.recv()
        except (EOFError, OSError):
            self._let_go(worker, hung=False)
            return
        if problem is not None:
            raise problem

    def _read_journal(self) -> None:
        found = self.journal.news()
        self._news += found
        done = {record.clip for record in found}
        for worker in self._workers:
            while worker.tasks and worker.tasks[0] in done:
                worker.tasks.popleft()
                worker.since = time.monotonic()

    def _let_go(self, worker: _Worker, *, hung: bool) -> None:
        """Part with a worker that is dead, or might as well be. What it had in hand is to blame; the rest goes back."""
        in_hand = worker.tasks[0] if hung else None
        if not hung:
            worker.process.join(GRACE)
        worker.process.kill()
        worker.process.join(GRACE)
        self._read_journal()  # it may have come to an end at the last moment
        self._workers.remove(worker)
        worker.pipe.close()
        if worker.tasks and (not hung or worker.tasks[0] == in_hand):
            self._blame(worker.tasks.popleft(), None if hung else exit_reason(worker.process.exitcode))
        self._waiting.extendleft(reversed(worker.tasks))

    def _blame(self, task: int, ending: str | None) -> None:
        """Write down that a task never ended, or how its worker ended; then it is tried again first."""
        self._deaths[task] = self._deaths.get(task, 0) + 1
        if ending is None:
            reason = f"reading it did not end within {self.patience:g} seconds"
        elif self._deaths[task] < TRIES:
            self._waiting.appendleft(task)
            return
        else:
            reason = f"the process that read it died of it ({ending}), {TRIES} times"
        self.journal.add(Record(task, reason=reason))
        self._read_journal()


def _attend(pipe: Connection, inherited: Sequence[Connection], work: Callable[[int], None]) -> None:
    """What a worker does: the tasks it is sent, in their order; it answers when it has none left."""
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in inherited:  # held open here, they would hide from a worker that the parent is gone
        other.close()
    torch.set_num_threads(1)  # there are workers enough; and the parent's pool of threads did not come along
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while True:
            problem = _first_problem(pipe.recv(), work)
            pipe.send(problem)


def _first_problem(tasks: Iterable[int], work: Callable[[int], None]) -> Exception | None:
    """What went wrong that is no task's own fault, in a form that can be sent."""
    try:
        for task in tasks:
            work(task)
    except (OSError, ModuleNotFoundError) as found:
        return found
    except Exception:
        return RuntimeError(traceback.format_exc())
    return None

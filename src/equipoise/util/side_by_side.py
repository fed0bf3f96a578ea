"""Several pieces of work at once, each in a process of its own on one core.

Threads would not do: small models spend much of their time in Python, which runs one thread at a time.
"""

from __future__ import annotations

import multiprocessing as mp
import pickle
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

from equipoise.util.processes import cores, exit_reason, exit_with_parent, start_without_sigint

Tell = Callable[[str], None]
Found = TypeVar("Found")


def at_once() -> int:
    """How many processes pay here: one per core that this one may use, and one alone beside a GPU.

    A process that has touched a GPU cannot be doubled; and one that is itself a child may be one of many.
    """
    if torch.cuda.is_available() or mp.parent_process() is not None:
        return 1
    return cores()


def side_by_side(works: Sequence[Callable[[Tell], Found]], tell: Tell = lambda _: None) -> list[Found]:
    """Do all of it, and give what came out in the order of the works; all at once, or in turn where that does not pay.

    Args:
        works: Each is given something to call with words on how far it is. What it gives back is pickled.
        tell: Called with these words here.

    Raises:
        Exception: What the first work to fail raised; the others are ended.
        RuntimeError: If a process ended without a word.

    Example:
        >>> side_by_side([lambda tell: 1 + 1, lambda tell: 2 + 2])
        [2, 4]
    """
    if len(works) == 1 or at_once() == 1:
        return [work(tell) for work in works]
    context: Any = mp.get_context("fork")  # what is in memory here the children have, too
    running: dict[Any, tuple[int, mp.Process]] = {}
    found: dict[int, Found] = {}
    try:
        for number, work in enumerate(works):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_attend, args=(theirs, work), daemon=True)
            start_without_sigint(process)
            theirs.close()
            running[ours] = (number, process)
        while running:
            for pipe in wait(list(running)):
                kind, content = _received(pipe, running[pipe][1])
                if kind == "words":
                    tell(content)
                elif kind == "failed":
                    raise content
                else:
                    number, process = running.pop(pipe)
                    process.join()
                    found[number] = content
    finally:
        for _, process in running.values():
            process.kill()
        for _, process in running.values():
            process.join()
    return [found[number] for number in range(len(works))]


def _attend(pipe: Connection, work: Callable[[Tell], Any]) -> None:
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends its children
    torch.set_num_threads(1)  # the other cores are taken; and the parent's pool of threads did not come along
    try:
        _send(pipe, "found", work(lambda words: _send(pipe, "words", words)))
    except Exception as problem:
        _send(pipe, "failed", problem)


def _send(pipe: Connection, kind: str, content: Any) -> None:
    pipe.send_bytes(pickle.dumps((kind, content)))  # tensors by value: those sent otherwise die with this process


def _received(pipe: Any, process: mp.Process) -> tuple[str, Any]:
    try:
        return pickle.loads(pipe.recv_bytes())
    except (EOFError, OSError):  # nothing, or half a message
        process.join()
        ending = exit_reason(process.exitcode)
        return "failed", RuntimeError(f"a process of the experiment ended without a word ({ending})")

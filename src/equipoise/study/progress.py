"""Telling a person how far a study is: a live display in a terminal, quiet lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, final

from equipoise.study.job import Job
from equipoise.util.errors import printable


@final
class Progress:
    """Counts runs as they finish. Use it as a context; its `event` is what a study calls.

    Args:
        total: Runs that are to be done.
        title: What they are for.
        quiet: Say nothing at all, for programs that read the output.
    """

    def __init__(self, total: int, title: str, *, quiet: bool = False) -> None:
        self.total, self.title, self.quiet = total, title, quiet
        self.live = not quiet and sys.stderr.isatty()
        self.started, self.finished = time.perf_counter(), 0
        self._running: dict[str, int] = {}
        self._bars: Any = None

    def __enter__(self) -> Progress:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()
            self._all = self._bars.add_task(self.title, total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def event(self, kind: str, job: Job, content: dict[str, Any]) -> None:
        """Show what happened to a run."""
        if kind in ("done", "failed"):
            self.finished += 1
        if self._bars is not None:
            self._show(kind, job, content)
        elif not self.quiet and kind in ("done", "failed"):
            seconds = time.perf_counter() - self.started
            said = f"{self.finished}/{self.total} {job.name}: {_result(kind, content)} ({seconds:.0f} s)"
            print(printable(said), file=sys.stderr)

    def _show(self, kind: str, job: Job, content: dict[str, Any]) -> None:
        epochs = job.entry.settings.epochs
        if kind == "start":
            self._running[job.config] = self._bars.add_task(f"  {job.name}", total=epochs)
        elif kind == "epoch":
            done = content["epoch"]  # a run that goes on begins in the middle
            measuring = ", measuring" if done == epochs else ""
            self._bars.update(self._running[job.config], completed=done, description=f"  {job.name}{measuring}")
        else:
            self._bars.remove_task(self._running.pop(job.config))
            self._bars.advance(self._all)


def _result(kind: str, content: dict[str, Any]) -> str:
    if kind == "failed":
        return content["reason"]
    fused = content["validation"].get("fused")
    return "done" if fused is None else f"validation accuracy {fused:.3f}"

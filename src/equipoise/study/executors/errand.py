"""One run on another machine: whether it is the run that was planned, and what comes back of it."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from equipoise.data.splits import Splits
from equipoise.study.job import ERROR, Job, clear_up, keep_traceback, reason_of, traceback_of
from equipoise.study.store import cannot_write, is_of_the_disk
from equipoise.training.checkpoint import checkpoints
from equipoise.training.launch import device_of
from equipoise.util.files import inside, write_atomic
from equipoise.util.processes import lock_folder

PATIENCE = 60.0  # seconds: whoever was given up on may write a checkpoint before it notices that it is to end
TRIES = 4  # times that a run is begun: machines die, and memory that others fill kills the innocent


class Outcome(NamedTuple):
    """What comes back.

    Args:
        kind: "done", "failed" or "unwritable".
        content: The row, or the reason.
        files: What the run left in its folder, where that is on no shared disk.
    """

    kind: str
    content: dict[str, Any]
    files: dict[str, bytes]


@final
@dataclass(frozen=True)
class Errand:
    """A run as it is sent.

    Args:
        run: Does a job: (job, splits, folder, on_epoch) → row.
        job: What to do.
        facts: All that decides what comes out, as they are where the study was planned.
        folder: Of the run, where the study was planned.
        mark: A file that is seen wherever that folder is; None where it is seen everywhere.
    """

    run: Callable[..., dict[str, Any]]
    job: Job
    facts: dict[str, Any]
    folder: Path
    mark: Path | None = None

    def do(self, load: Callable[[], Splits], on_epoch: Callable[[dict[str, Any]], None]) -> Outcome:
        """Do it here; whatever goes wrong belongs into the report of the study.

        Args:
            load: Gives the data.
            on_epoch: Called after each epoch.
        """
        where = f" (on {socket.gethostname()})"
        shared = self.mark is None or self.mark.exists()
        try:
            self._check()
            splits = _same(load(), self.job.split)
        except Exception as found:
            return self._failed(found, where, shared=shared)
        try:
            return self._in_place(splits, on_epoch) if shared else self._in_scratch(splits, on_epoch)
        except Exception as found:
            if shared and is_of_the_disk(found, self.folder):
                return Outcome("unwritable", {"reason": cannot_write(self.folder, found)}, {})
            place = where if isinstance(found, OSError) else ""
            return self._failed(found, place, shared=shared)
        finally:
            clear_up()

    def _failed(self, found: Exception, where: str, *, shared: bool) -> Outcome:
        """The reason, and the traceback in the folder of the run, or on its way there."""
        if shared:
            keep_traceback(found, self.folder)
        files = {} if shared else {ERROR: traceback_of(found).encode(errors="backslashreplace")}
        return Outcome("failed", {"reason": reason_of(found, self.folder, where)}, files)

    def _check(self) -> None:
        """Refuse to do another run than the one that was planned: other versions, other devices."""
        here = {**self.job.facts(), "device": device_of(self.job.entry.settings)}
        if wrong := [key for key, value in self.facts.items() if here.get(key) != value]:
            expected, found = (", ".join(f"{key} {facts.get(key)}" for key in wrong) for facts in (self.facts, here))
            raise ValueError(f"expected {expected}, as where the study was started, found {found}")

    def _in_place(self, splits: Splits, on_epoch: Callable[[dict[str, Any]], None]) -> Outcome:
        """In the run's own folder, from its newest checkpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(lock_folder(self.folder, "training in", patience=PATIENCE))
            except OSError:  # a disk that knows no locks
                stack.close()
            return Outcome("done", self.run(self.job, splits, self.folder, on_epoch), {})

    def _in_scratch(self, splits: Splits, on_epoch: Callable[[dict[str, Any]], None]) -> Outcome:
        """From the beginning, in a folder of this machine's own."""
        with tempfile.TemporaryDirectory(prefix="equipoise-") as place:
            folder = Path(place)
            row = self.run(self.job, splits, folder, on_epoch)
            passing = checkpoints(folder)
            left = [file for file in folder.rglob("*") if file.is_file() and not passing_part(file, passing)]
            return Outcome("done", row, {str(file.relative_to(folder)): file.read_bytes() for file in left})


def passing_part(file: Path, passing: list[Path]) -> bool:
    """Whether a file is part of a checkpoint."""
    return any(folder in file.parents for folder in passing)


def unpack(files: dict[str, bytes], folder: Path) -> None:
    """Put what a run left elsewhere into its folder here, each file whole or not at all."""
    for name, content in files.items():
        file = inside(folder, *name.split("/"))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file.parent, file.name, content)


def _same(splits: Splits, mark: str) -> Splits:
    if (found := splits.fingerprint()) != mark:
        raise ValueError(f"expected the data {mark[:19]}…, as where the study was started, found {found[:19]}…")
    return splits

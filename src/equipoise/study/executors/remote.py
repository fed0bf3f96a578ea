"""One run on another machine: refused unless it is the run that was planned, and what comes back of it.

A task of an array job leaves its result in the folder of the run as a JSON file, which is read with bounds and checked:
the folder may have been filled by somebody else, so nothing that lies in it is unpickled.
"""

import json
import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, final

from equipoise.data.splits import Splits
from equipoise.study.executors import RunFunction
from equipoise.study.job import Job, clear_up, reason_of, save_traceback
from equipoise.study.store import cannot_write, is_disk_error
from equipoise.training.checkpoint import checkpoints
from equipoise.training.launch import device_of
from equipoise.util.errors import BadInput
from equipoise.util.files import inside, open_inside, write_atomic
from equipoise.util.processes import lock_folder

PATIENCE = 60.0  # seconds: a task that was given up on may write a checkpoint before it notices that it is to end
TRIES = 4  # times that a run is begun: machines fail, and a process may be killed for the memory of another
RESULT = "answer.json"
KINDS = ("done", "failed", "unwritable")
LARGEST = 2**26  # bytes of a result, or of the epochs read at once: a row has some ten thousand
LONGEST = 10_000  # characters of a reason


class RemoteResult(NamedTuple):
    """The result of a run elsewhere.

    Args:
        kind: "done", "failed" or "unwritable".
        content: The row, or the reason.
        files: The files of the run's folder, where that is on no shared disk.
    """

    kind: str
    content: dict[str, Any]
    files: dict[str, bytes]


@final
@dataclass(frozen=True)
class RemoteTask:
    """A run as it is sent.

    Args:
        run: Does a job.
        job: The job.
        facts: All that decides the result, as they are where the study was planned.
        folder: Of the run, where the study was planned.
        mark: A file that is seen wherever that folder is; None where it is seen everywhere.
    """

    run: RunFunction
    job: Job
    facts: dict[str, Any]
    folder: Path
    mark: Path | None = None

    def do(self, load: Callable[[], Splits], on_epoch: Callable[[dict[str, Any]], None]) -> RemoteResult:
        """Do the run here; whatever goes wrong belongs into the report of the study.

        Args:
            load: Gives the data.
            on_epoch: Called after each epoch.
        """
        if self.mark is None or self.mark.exists():
            return RemoteResult(*self._attempt(self.folder, load, on_epoch, shared=True), {})
        with tempfile.TemporaryDirectory(prefix="equipoise-") as name:  # from the beginning
            folder = Path(name)
            kind, content = self._attempt(folder, load, on_epoch, shared=False)
            passing = set(checkpoints(folder))
            files = [file for file in folder.rglob("*") if file.is_file() and passing.isdisjoint(file.parents)]
            sent = {str(file.relative_to(folder)): file.read_bytes() for file in files}
            return RemoteResult(kind, content, sent)

    def _attempt(
        self, folder: Path, load: Callable[[], Splits], on_epoch: Callable[[dict[str, Any]], None], *, shared: bool
    ) -> tuple[str, dict[str, Any]]:
        loaded = False
        try:
            self._check_facts()
            if (mark := (splits := load()).fingerprint()) != self.job.split:
                expected = f"expected the data {self.job.split[:19]}…, as where the study was started"
                raise ValueError(f"{expected}, found {mark[:19]}…")
            loaded = True
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                with suppress(OSError):  # a disk that knows no locks
                    stack.enter_context(lock_folder(folder, "training in", patience=PATIENCE))
                return "done", self.run(self.job, splits, folder, on_epoch)
        except Exception as error:
            if loaded and shared and is_disk_error(error, folder):
                return "unwritable", {"reason": cannot_write(folder, error)}
            save_traceback(error, folder)
            where = "" if loaded and not isinstance(error, OSError) else f" (on {socket.gethostname()})"
            return "failed", {"reason": reason_of(error, self.folder, where)}
        finally:
            clear_up()

    def _check_facts(self) -> None:
        """Refuse to do another run than the one that was planned: other versions, other devices."""
        here = {**self.job.facts(), "device": device_of(self.job.entry.settings)}
        if wrong := [key for key, value in self.facts.items() if here.get(key) != value]:
            expected, found = (", ".join(f"{key} {facts.get(key)}" for key in wrong) for facts in (self.facts, here))
            raise ValueError(f"expected {expected}, as where the study was started, found {found}")


def unpack(files: dict[str, bytes], folder: Path) -> None:
    """Put the files of a run elsewhere into its folder here, each file whole or not at all."""
    for name, content in files.items():
        file = inside(folder, *name.split("/"))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file.parent, file.name, content)


def write_result(folder: Path, result: RemoteResult) -> None:
    """Write a result into the folder of its run, whole or not at all."""
    write_atomic(folder, RESULT, json.dumps({"kind": result.kind, "content": result.content}) + "\n")


def has_result(folder: Path) -> bool:
    """Tell whether there is a result in the folder of a run."""
    return inside(folder, RESULT).exists()


def remove_result(folder: Path) -> None:
    """Remove a result that was read, or that an earlier attempt left."""
    (folder / RESULT).unlink(missing_ok=True)


def read_result(folder: Path, job: Job) -> tuple[str, dict[str, Any]]:
    """Read the result of a job: its kind, and the row or the reason.

    Raises:
        BadInput: If it is no result, or that of another job.
    """
    file = folder / RESULT
    with os.fdopen(open_inside(folder, RESULT, os.O_RDONLY), "rb") as opened:
        result = _parsed(file, opened.read(LARGEST + 1), parse_constant=_refuse)
    kind, content = result.get("kind"), result.get("content")
    if kind not in KINDS or not isinstance(content, dict):
        raise BadInput(f"{file}: expected a kind, {', '.join(KINDS)}, and its content; found {str(result)[:100]}")
    if kind == "done":
        facts = {**json.loads(json.dumps(job.facts())), "config": job.config}
        facts.pop("device")  # the row names the one that it was, such as cuda:0
        wrong = [key for key, value in facts.items() if key not in content or content[key] != value]
        wrong += [key for key in ("validation", "selected", "seconds") if not isinstance(content.get(key), dict)]
        if wrong:
            raise BadInput(f"{file}: expected the row of {job.name}, found another {', '.join(wrong)}")
        return kind, content
    if not isinstance(reason := content.get("reason"), str):
        raise BadInput(f"{file}: expected a reason in words, found {str(reason)[:100]}")
    return kind, {"reason": reason[:LONGEST]}


def read_epochs(folder: Path, name: str, start: int) -> tuple[list[dict[str, Any]], int]:
    """Read the records of epochs from some byte of a file on, and return them with the byte after the last.

    Raises:
        BadInput: If a line holds something else.
    """
    file, records = inside(folder, name), []
    if not file.exists():
        return [], start
    with os.fdopen(open_inside(folder, name, os.O_RDONLY), "rb") as opened:
        opened.seek(start)
        whole, newline, _ = opened.read(LARGEST).rpartition(b"\n")
    for line in whole.splitlines():
        record = _parsed(file, line)
        accuracies = record.get("validation")
        # Methods that train every modality alone have no fused accuracy.
        numbers = isinstance(accuracies, dict) and all(isinstance(value, int | float) for value in accuracies.values())
        if not (isinstance(record.get("epoch"), int) and numbers and accuracies):
            raise BadInput(f"{file}: expected an epoch and its accuracies, found {line[:100]!r}")
        records.append(record)
    return records, start + len(whole) + len(newline)


def _parsed(file: Path, content: bytes, **how: Any) -> dict[str, Any]:
    if len(content) > LARGEST:
        raise BadInput(f"{file}: expected at most {LARGEST:,} bytes, found more")
    try:
        value = json.loads(content, **how)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file}: expected JSON, found damage: {error}") from None
    if not isinstance(value, dict):
        raise BadInput(f"{file}: expected a JSON object, found {type(value).__name__}")
    return value


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")

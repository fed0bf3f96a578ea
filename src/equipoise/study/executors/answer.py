"""The answer of a task of an array: one plain JSON file in the folder of its run, read with bounds and checked.

The folder may have been filled by somebody else, so nothing that lies in it is unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from equipoise.study.executors.errand import Outcome
from equipoise.study.job import Job
from equipoise.util.errors import BadInput
from equipoise.util.files import inside, open_inside, write_atomic

ANSWER = "answer.json"
KINDS = ("done", "failed", "unwritable")
LARGEST = 2**26  # bytes of an answer, or of the epochs read at once: a row has some ten thousand
LONGEST = 10_000  # characters of a reason


def give(folder: Path, outcome: Outcome) -> None:
    """Write an answer, whole or not at all.

    Args:
        folder: Of the run.
        outcome: What came of it.
    """
    write_atomic(folder, ANSWER, json.dumps({"kind": outcome.kind, "content": outcome.content}) + "\n")


def is_given(folder: Path) -> bool:
    """Tell whether there is an answer."""
    return inside(folder, ANSWER).exists()


def forget(folder: Path) -> None:
    """Remove an answer that was taken, or that an earlier attempt left."""
    (folder / ANSWER).unlink(missing_ok=True)


def take(folder: Path, job: Job) -> tuple[str, dict[str, Any]]:
    """Read the answer to a job: its kind, and the row or the reason.

    Args:
        folder: Of the run.
        job: What was to be done.

    Raises:
        BadInput: If it is no answer, or the answer to something else.
    """
    file = folder / ANSWER
    descriptor = open_inside(folder, ANSWER, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as opened:
        found = _plain(file, opened.read(LARGEST + 1), parse_constant=_refuse)
    kind, content = found.get("kind"), found.get("content")
    if kind not in KINDS or not isinstance(content, dict):
        raise BadInput(f"{file}: expected a kind, {', '.join(KINDS)}, and its content; found {str(found)[:100]}")
    if kind == "done":
        facts = {**json.loads(json.dumps(job.facts())), "config": job.config}
        facts.pop("device")  # the row names the one that it was, such as cuda:0
        wrong = [key for key, value in facts.items() if key not in content or content[key] != value]
        wrong += [key for key in ("validation", "selected", "seconds") if not isinstance(content.get(key), dict)]
        if wrong:
            raise BadInput(f"{file}: expected the row of {job.name}, found another {', '.join(wrong)}")
        return kind, content
    reason = content.get("reason")
    if not isinstance(reason, str):
        raise BadInput(f"{file}: expected a reason in words, found {str(reason)[:100]}")
    return kind, {"reason": reason[:LONGEST]}


def epochs_after(folder: Path, name: str, start: int) -> tuple[list[dict[str, Any]], int]:
    """Read what epochs showed from some byte of a file on, and say up to where it was read.

    Args:
        folder: Of the run.
        name: Of the file, with one JSON object a line.
        start: Where to begin.

    Raises:
        BadInput: If a line holds something else.
    """
    file = inside(folder, name)
    if not file.exists():
        return [], start
    with os.fdopen(open_inside(folder, name, os.O_RDONLY), "rb") as opened:
        opened.seek(start)
        whole, newline, _ = opened.read(LARGEST).rpartition(b"\n")
    return list(_records(file, whole)), start + len(whole) + len(newline)


def _records(file: Path, whole: bytes) -> Iterator[dict[str, Any]]:
    for line in whole.splitlines():
        record = _plain(file, line)
        shown = record.get("validation")
        # Methods that train every sensor alone have no fused accuracy.
        numbers = isinstance(shown, dict) and all(isinstance(value, int | float) for value in shown.values())
        if not (isinstance(record.get("epoch"), int) and numbers and shown):
            raise BadInput(f"{file}: expected an epoch and its accuracies, found {line[:100]!r}")
        yield record


def _plain(file: Path, content: bytes, **how: Any) -> dict[str, Any]:
    if len(content) > LARGEST:
        raise BadInput(f"{file}: expected at most {LARGEST:,} bytes, found more")
    try:
        found = json.loads(content, **how)
    except (ValueError, RecursionError) as problem:
        raise BadInput(f"{file}: expected JSON, found damage: {problem}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{file}: expected a JSON object, found {type(found).__name__}")
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")

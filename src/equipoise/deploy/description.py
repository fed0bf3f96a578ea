"""The description of a saved model, checked field by field before anything is built from it."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import torch

from equipoise.data.views import view_of
from equipoise.models.late_fusion import Unimodal
from equipoise.models.metrics import METRICS
from equipoise.models.task import RegressionLoss, TaskKind
from equipoise.study.job import FORMAT, TASK_FORMAT
from equipoise.study.registry import all_methods, automatic_methods
from equipoise.training.settings import Fusion
from equipoise.util.errors import BadInput, name_problems, unknown_name
from equipoise.util.named import is_path
from equipoise.util.schema import (
    ANYTHING,
    FLAG,
    LARGEST,
    NUMBER,
    TEXT,
    at_most,
    every,
    is_number,
    one_of,
    or_null,
    place_of,
    read_json,
    record,
    rule,
    short,
    whole,
)

MEMBERS = 16  # models that are combined in one
TYPES = ("float16", "bfloat16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")
BATCH = 64  # samples that are drawn at once to try a graph


def read_description(folder: Path, name: str, weights: int = 0) -> dict[str, Any]:
    """Read the file of a run, with bounds.

    Args:
        folder: Of the run.
        name: Of the file.
        weights: Bytes of its weights.

    Raises:
        BadInput: If it is no JSON object of this format.
    """
    # One byte more for each byte of the weights: inputs of many numbers have as many scales.
    limit, version_there = LARGEST + min(weights, 2**28), record({"format": ANYTHING})
    content = read_json(folder, name, version_there, "the description of a model", largest=limit)
    version = content["format"]
    if not is_number(version, int) or version not in (FORMAT, TASK_FORMAT):
        known = f"expected format {FORMAT} or {TASK_FORMAT}"
        raise BadInput(f"{folder / name}: {known}, found {short(version)}; open it with the version it is of")
    return content


def problems_in(content: Mapping[str, Any]) -> list[str]:
    """Say everything that is wrong with a description; a model can be built from one where nothing is.

    Args:
        content: As `read_description` gives it.
    """
    if problems := at_most(_CONTENT(content, "")) or list(_task_problems(content)):
        return problems
    row, test = content["row"], content["row"].get("test", {})
    known = {**all_methods(), **automatic_methods()}
    if row["method"] not in known and not is_path(row["method"]):
        problems.append(f"row.method: {unknown_name(row['method'], known)}")
    if (view := test.get("view")) is not None and view in test:
        problems += every(_SCORE)(test[view], f"row.test.{view}")
    if "members" in content:
        problems += _member_problems(content)
    problems += name_problems(content["inputs"])
    for name, plain in content["inputs"].items():
        problems += _input_problems(plain, f"inputs{place_of(name)}")
    return problems


def described_task(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of a description; one that was written before there were others tells classes."""
    return content.get("task") or {"kind": "classes", "names": content["classes"]}


def _task_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Name the contradictions between the task and the other fields."""
    task, kind = described_task(content), content["row"].get("task", "classes")
    if task["names"] != content["classes"]:
        yield f"task.names: expected those of classes, found {short(task['names'])}"
    if (task["kind"] == "classes") != (content["format"] == FORMAT):
        yield f"task.kind: expected classes in format {FORMAT}, and others in {TASK_FORMAT}, found {task['kind']}"
    if kind != task["kind"]:
        yield f"row.task: expected {task['kind']}, found {short(kind)}"
    if task["kind"] == "classes" and len(task["names"]) < 2:
        yield f"classes: expected a list of at least 2, found {short(task['names'])}"
    if (task["kind"] == "regression") != ("loss" in task):
        yield "task.loss: expected it for a regression, and for nothing else"
    ranges = task.get("ranges", [[0, 1]] * len(task["names"]))
    if len(ranges) != len(task["names"]) or any(least > most for least, most in ranges):
        yield f"task.ranges: expected the least and the largest number of each of {len(task['names'])} columns"
    if task.get("positive", task["names"][0]) not in task["names"]:
        yield f"task.positive: expected one of task.names, found {short(task['positive'])}"
    if task.get("positive") != content["row"].get("positive"):
        yield f"row.positive: expected that of task, found {short(content['row'].get('positive'))}"
    metric = content["row"].get("metric", "accuracy")
    if task["kind"] not in METRICS[metric].kinds:
        yield f"row.metric: expected one that fits the task, found {metric}"


def _member_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Name the contradictions between the members of a combined model and the other fields."""
    members, own = content["members"], content["row"]["run"].get("model", "auto")
    expected = members[0]["unimodal"] if len(members) == 1 else "head"
    if content["unimodal"] != expected:
        yield f"unimodal: expected {expected}, as the members have it, found {short(content['unimodal'])}"
    if own != "auto":
        yield f"row.run.model: expected auto beside members, found {short(own)}"


def row_problems(content: Mapping[str, Any]) -> list[str]:
    """Say what is wrong with the row of a description, as far as lists of runs need it."""
    return at_most(record({"row": _ROW})(content, ""))


def _input_problems(plain: Mapping[str, Any], where: str) -> Iterator[str]:
    """Name the contradictions between the fields of an input."""
    read, stored, scales = plain["read"], tuple(plain["stored"]), [key for key in _SCALES if key in plain]
    try:
        seen = stored if plain["view"] is None else view_of(dict(plain["view"])).shape(stored)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):
        seen = ()
    if list(seen) != read:
        yield f"{where}.read: expected what the view makes of {list(stored)}, {list(seen)}, found {read}"
    if len(scales) == 1:
        yield f"{where}: expected mean and deviation, or neither, found {scales[0]}"
    for key in scales:
        if stored and len(plain[key]) != stored[0]:
            yield f"{where}.{key}: expected {stored[0]} numbers, one per channel, found {len(plain[key])}"
    kind = getattr(torch, plain["dtype"])
    if scales and not kind.is_floating_point:
        yield f"{where}.dtype: expected floating-point numbers, which are scaled, found {plain['dtype']}"
    if not kind.is_floating_point and plain.get("most", 0) > (1 if kind is torch.bool else torch.iinfo(kind).max):
        yield f"{where}.most: expected a number of the type {plain['dtype']}, found {plain['most']}"
    if 8 * BATCH * max(math.prod(stored), math.prod(read)) > _memory():
        yield f"{where}: expected samples of which {BATCH} fit into memory, found the shape {list(stored)}"


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_SHARE = or_null(rule("a number from 0 to 1, or null", lambda value: is_number(value) and 0 <= value <= 1))
_SCORE = or_null(rule("a number or null", is_number))
_SCORES = dict.fromkeys(("fused", "committee", "baseline", "fused_width", "committee_width"), _SCORE)
_SHARES = dict.fromkeys(("fused_ece", "committee_ece", "fused_coverage", "committee_coverage"), _SHARE)
_NAMES = dict.fromkeys(("data", "split", "config", "label", "method"), TEXT)
_SHAPE = every(whole(1), list, least=1, most=8)
_FLOAT = rule("a number of at most 1e38", lambda value: is_number(value) and abs(value) <= 1e38)
_SPREAD = rule("a number from 1e-37 to 1e38", lambda value: is_number(value) and 1e-37 <= value <= 1e38)
_SCALES = {"mean": every(_FLOAT, list), "deviation": every(_SPREAD, list)}  # which become 32-bit numbers
_ANSWERS = record({"fused": _SCORE, "committee": _SCORE})
_COLOURS = every(NUMBER, list, least=1, most=16)
_VIEWS = {
    "Scaled": record({"scale": NUMBER}),
    "TimeLast": record({}),
    "Frames": record({"count": whole(1), "size": whole(1), "mean": _COLOURS, "deviation": _COLOURS}),
    "LogSTFT": record({"samples": whole(1), "n_fft": whole(1), "hop": whole(1)}),
}


def _check_view(value: Any, where: str) -> Iterator[str]:
    problems = [*record({"kind": one_of(*_VIEWS)})(value, where)]
    yield from problems or _VIEWS[value["kind"]](value, where)


def _check_faults(value: Any, where: str) -> Iterator[str]:
    if value == {}:  # not measured
        return
    yield from record({"mean": _ANSWERS, "worst": _ANSWERS})(value, where)
    if isinstance(value, dict):
        sensors = {key: faults for key, faults in value.items() if key not in ("mean", "worst")}
        yield from every(every(every(_ANSWERS)))(sensors, where)


_INPUT = record(
    {"read": _SHAPE, "stored": _SHAPE, "dtype": one_of(*TYPES), "view": or_null(_check_view), "ragged": FLAG},
    {"most": whole(0, 2**63 - 1), "axis": one_of("space", "time"), **_SCALES},
)
_COUNTS = {"samples": whole(0), "interval_groups": whole(0), "events": or_null(whole(0))}
_SAMENESS = {
    f"{decision}_{of}": check
    for decision in ("fused", "committee")
    for of, check in (("says", or_null(TEXT)), ("auroc", _SHARE), ("auroc_interval", or_null(every(NUMBER, list))))
}
_TEST = record({}, {**_SCORES, **_COUNTS, **_SHARES, "view": or_null(TEXT), "faults": or_null(_check_faults)})
_VALIDATION = record({}, {"fused": _SCORE, **_SAMENESS})
_MODEL = rule("auto or a dotted path", lambda value: value == "auto" or (isinstance(value, str) and is_path(value)))
_RUN = record(
    {"encoder": TEXT, "features": whole(1), "fusion": one_of(*get_args(Fusion))}, {"model": _MODEL, "positive": TEXT}
)
_TRIED = record({"candidate": TEXT}, {"steps": whole(0), "loss": _SCORE})
_RUNG = record({"steps": TEXT, "epochs": whole(0), "candidates": every(_TRIED, list)})
_PORTFOLIO = record(
    {
        "closed_form": record({}, {"left_out": TEXT, "loss": _SCORE}),
        "rungs": every(_RUNG, list, most=MEMBERS),
        "chosen": every(TEXT, list, least=1, most=MEMBERS),
        "weights": every(every(NUMBER)),
    },
    {"loss": _SCORE, "refit": TEXT},
)
_ROW = record(
    {
        **_NAMES,
        "seed": or_null(whole(-(2**63), 2**64)),
        "fold": or_null(whole(0)),
        "params": every(ANYTHING),
        "run": _RUN,
    },
    {
        "about": TEXT,
        "protocol": TEXT,
        "test": _TEST,
        "validation": _VALIDATION,
        "versions": every(TEXT),
        "task": one_of(*get_args(TaskKind)),
        "metric": one_of(*METRICS),
        "positive": TEXT,
        "portfolio": _PORTFOLIO,
    },
)
_NAMED = every(TEXT, list, least=1)
_RANGES = every(every(NUMBER, list, 2, 2), list, least=1)
_TASK = record(
    {"kind": one_of(*get_args(TaskKind)), "names": _NAMED},
    {"loss": one_of(*get_args(RegressionLoss)), "ranges": _RANGES, "positive": TEXT},
)
_MEMBER = record(
    {"encoder": TEXT, "features": whole(1), "fusion": one_of(*get_args(Fusion)), "unimodal": one_of("head", "detached")}
)
_CONTENT = record(
    {
        "classes": _NAMED,
        "unimodal": one_of(None, *get_args(Unimodal)),
        "inputs": every(_INPUT, least=1),
        "parts": every(every(whole(0, 2**63))),
        "row": _ROW,
    },
    {"task": _TASK, "members": every(_MEMBER, list, least=1, most=MEMBERS)},
)

"""The description of a saved model, checked field by field before anything is built from it."""

import json
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, get_args

import torch

from equipoise.data.views import view_of
from equipoise.models.late_fusion import Unimodal
from equipoise.models.metrics import METRICS
from equipoise.models.task import RegressionLoss, TaskKind
from equipoise.study.job import FORMAT, TASK_FORMAT
from equipoise.study.registry import all_methods, automatic_methods
from equipoise.training.settings import Fusion
from equipoise.util.errors import BadInput, name_problems, unknown_name
from equipoise.util.files import open_inside
from equipoise.util.named import is_path

LARGEST = 2**24  # bytes, beside one for each byte of the weights: inputs of many numbers have as many scales
MOST = 2**31 - 1
LONGEST = 10_000  # characters of a text
MEMBERS = 16  # models that are combined in one
SHOWN = 20  # problems in one message
TYPES = ("float16", "bfloat16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")
BATCH = 64  # samples that are drawn at once to try a graph

Check = Callable[[Any, str], Iterable[str]]
"""Takes a value and where it stands, and says what is wrong with it."""


def read_description(folder: Path, name: str, weights: int = 0) -> dict[str, Any]:
    """Read the file of a run, with bounds.

    Args:
        folder: Of the run.
        name: Of the file.
        weights: Bytes of its weights.

    Raises:
        BadInput: If it is no JSON object of this format.
    """
    file, limit = folder / name, LARGEST + min(weights, 2**28)
    with os.fdopen(open_inside(folder, name, os.O_RDONLY), "rb") as opened:
        text = opened.read(limit + 1)
    if len(text) > limit:
        raise BadInput(f"{file}: expected the description of a model, at most {limit:,} bytes, found more")
    try:
        content = json.loads(text, parse_constant=_refuse)
        version = content["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{file}: expected the description of a model, found damage: {_short(error)}") from None
    if version not in (FORMAT, TASK_FORMAT) or isinstance(version, bool):
        known = f"expected format {FORMAT} or {TASK_FORMAT}"
        raise BadInput(f"{file}: {known}, found {_short(version)}; open it with the version it is of")
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
        problems += _each(_SCORE)(test[view], f"row.test.{view}")
    if "members" in content:
        problems += _member_problems(content)
    problems += name_problems(content["inputs"])
    for name, plain in content["inputs"].items():
        problems += _input_problems(plain, f"inputs{_key(name)}")
    return problems


def described_task(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of a description; one that was written before there were others tells classes."""
    return content.get("task") or {"kind": "classes", "names": content["classes"]}


def _task_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Name the contradictions between the task and the other fields."""
    task, kind = described_task(content), content["row"].get("task", "classes")
    if task["names"] != content["classes"]:
        yield f"task.names: expected those of classes, found {_short(task['names'])}"
    if (task["kind"] == "classes") != (content["format"] == FORMAT):
        yield f"task.kind: expected classes in format {FORMAT}, and others in {TASK_FORMAT}, found {task['kind']}"
    if kind != task["kind"]:
        yield f"row.task: expected {task['kind']}, found {_short(kind)}"
    if task["kind"] == "classes" and len(task["names"]) < 2:
        yield f"classes: expected a list of at least 2, found {_short(task['names'])}"
    if (task["kind"] == "regression") != ("loss" in task):
        yield "task.loss: expected it for a regression, and for nothing else"
    metric = content["row"].get("metric", "accuracy")
    if task["kind"] not in METRICS[metric].kinds:
        yield f"row.metric: expected one that fits the task, found {metric}"


def _member_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Name the contradictions between the members of a combined model and the other fields."""
    members, own = content["members"], content["row"]["run"].get("model", "auto")
    expected = members[0]["unimodal"] if len(members) == 1 else "head"
    if content["unimodal"] != expected:
        yield f"unimodal: expected {expected}, as the members have it, found {_short(content['unimodal'])}"
    if own != "auto":
        yield f"row.run.model: expected auto beside members, found {_short(own)}"


def row_problems(content: Mapping[str, Any]) -> list[str]:
    """Say what is wrong with the row of a description, as far as lists of runs need it."""
    return at_most(_record({"row": _ROW})(content, ""))


def at_most(problems: Iterable[str]) -> list[str]:
    """Keep the first problems of what may be millions, and say that there are more."""
    some = list(islice(problems, SHOWN + 1))
    return some if len(some) <= SHOWN else [*some[:SHOWN], "and more"]


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


def _rule(expected: str, fine: Callable[[Any], bool]) -> Check:
    def check(value: Any, where: str) -> Iterator[str]:
        if not fine(value):
            yield f"{where}: expected {expected}, found {_short(value)}"

    return check


def _one_of(*values: Any) -> Check:
    words = ", ".join("null" if each is None else str(each) for each in values)
    return _rule(f"one of {words}", lambda value: isinstance(value, str | None) and value in values)


def _or_null(check: Check) -> Check:
    return lambda value, where: () if value is None else check(value, where)


def _each(check: Check, kind: type = dict, least: int = 0, most: int = MOST) -> Check:
    """Apply the same check to every value of an object, whatever its keys, or to every item of a list."""
    sizes = (f" of at least {least}" if kind is list else " with entries") if least else ""
    expected = f"{'a list' if kind is list else 'an object'}{sizes}"

    def checked(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, kind) or not least <= len(value) <= most:
            yield f"{where}: expected {expected}, found {_short(value)}"
            return
        places = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in places:
            yield from check(item, f"{where}{_key(key)}")

    return checked


def _record(fields: Mapping[str, Check], may: Mapping[str, Check] | None = None) -> Check:
    """An object with these fields, and perhaps those; others are not looked at."""

    def checked(value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where or 'the file'}: expected an object, found {_short(value)}"
            return
        for key, check in {**fields, **(may or {})}.items():
            place = f"{where}.{key}" if where else key
            if key in value:
                yield from check(value[key], place)
            elif key in fields:
                yield f"{place}: expected it, found no such field"

    return checked


def _is_number(value: Any, kind: Any = int | float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and abs(value) < 1e300


def _whole(least: int, most: int = MOST) -> Check:
    expected = f"a whole number from {least} to {most}"
    return _rule(expected, lambda value: _is_number(value, int) and least <= value <= most)


_TEXT = _rule("a text", lambda value: isinstance(value, str) and len(value) <= LONGEST)
_NUMBER = _rule("a number", _is_number)
_POSITIVE = _rule("a number above zero", lambda value: _is_number(value) and value > 0)
_SHARE = _or_null(_rule("a number from 0 to 1, or null", lambda value: _is_number(value) and 0 <= value <= 1))
_SCORE = _or_null(_rule("a number or null", _is_number))
_SCORES = dict.fromkeys(("fused", "committee", "baseline", "fused_width", "committee_width"), _SCORE)
_SHARES = dict.fromkeys(("fused_ece", "committee_ece", "fused_coverage", "committee_coverage"), _SHARE)
_NAMES = dict.fromkeys(("data", "split", "config", "label", "method"), _TEXT)
_FLAG = _rule("true or false", lambda value: isinstance(value, bool))
_ANY = _rule("anything", lambda _: True)
_SHAPE = _each(_whole(1), list, least=1, most=8)
_SCALES = {"mean": _each(_NUMBER, list), "deviation": _each(_POSITIVE, list)}
_ANSWERS = _record({"fused": _SCORE, "committee": _SCORE})
_COLOURS = _each(_NUMBER, list, least=1, most=16)
_VIEWS = {
    "Scaled": _record({"scale": _NUMBER}),
    "TimeLast": _record({}),
    "Frames": _record({"count": _whole(1), "size": _whole(1), "mean": _COLOURS, "deviation": _COLOURS}),
    "LogSTFT": _record({"samples": _whole(1), "n_fft": _whole(1), "hop": _whole(1)}),
}


def _check_view(value: Any, where: str) -> Iterator[str]:
    problems = [*_record({"kind": _one_of(*_VIEWS)})(value, where)]
    yield from problems or _VIEWS[value["kind"]](value, where)


def _check_faults(value: Any, where: str) -> Iterator[str]:
    if value == {}:  # not measured
        return
    yield from _record({"mean": _ANSWERS, "worst": _ANSWERS})(value, where)
    if isinstance(value, dict):
        sensors = {key: faults for key, faults in value.items() if key not in ("mean", "worst")}
        yield from _each(_each(_each(_ANSWERS)))(sensors, where)


_INPUT = _record(
    {"read": _SHAPE, "stored": _SHAPE, "dtype": _one_of(*TYPES), "view": _or_null(_check_view), "ragged": _FLAG},
    {"most": _whole(0, 2**63 - 1), "axis": _one_of("space", "time"), **_SCALES},
)
_TEST = _record({}, {**_SCORES, **_SHARES, "view": _or_null(_TEXT), "faults": _or_null(_check_faults)})
_VALIDATION = _record({}, {"fused": _SCORE})
_MODEL = _rule("auto or a dotted path", lambda value: value == "auto" or (isinstance(value, str) and is_path(value)))
_RUN = _record({"encoder": _TEXT, "features": _whole(1), "fusion": _one_of(*get_args(Fusion))}, {"model": _MODEL})
_TRIED = _record({"candidate": _TEXT}, {"steps": _whole(0), "loss": _SCORE})
_RUNG = _record({"steps": _TEXT, "epochs": _whole(0), "candidates": _each(_TRIED, list)})
_PORTFOLIO = _record(
    {
        "closed_form": _record({}, {"left_out": _TEXT, "loss": _SCORE}),
        "rungs": _each(_RUNG, list, most=MEMBERS),
        "chosen": _each(_TEXT, list, least=1, most=MEMBERS),
        "weights": _each(_each(_NUMBER)),
    },
    {"loss": _SCORE, "refit": _TEXT},
)
_ROW = _record(
    {
        **_NAMES,
        "seed": _or_null(_whole(-(2**63), 2**64)),
        "fold": _or_null(_whole(0)),
        "params": _each(_ANY),
        "run": _RUN,
    },
    {
        "about": _TEXT,
        "protocol": _TEXT,
        "test": _TEST,
        "validation": _VALIDATION,
        "versions": _each(_TEXT),
        "task": _one_of(*get_args(TaskKind)),
        "metric": _one_of(*METRICS),
        "portfolio": _PORTFOLIO,
    },
)
_NAMED = _each(_TEXT, list, least=1)
_TASK = _record({"kind": _one_of(*get_args(TaskKind)), "names": _NAMED}, {"loss": _one_of(*get_args(RegressionLoss))})
_MEMBER = _record(
    {
        "encoder": _TEXT,
        "features": _whole(1),
        "fusion": _one_of(*get_args(Fusion)),
        "unimodal": _one_of("head", "detached"),
    }
)
_CONTENT = _record(
    {
        "classes": _NAMED,
        "unimodal": _one_of(None, *get_args(Unimodal)),
        "inputs": _each(_INPUT, least=1),
        "parts": _each(_each(_whole(0, 2**63))),
        "row": _ROW,
    },
    {"task": _TASK, "members": _each(_MEMBER, list, least=1, most=MEMBERS)},
)


def _key(name: str | int) -> str:
    """Write a key behind a place; an odd one in quotes, without what a terminal would take for a command."""
    return f".{name}" if isinstance(name, str) and name.isidentifier() and name.isascii() else f"[{_short(name)}]"


_REPR = reprlib.Repr()  # which is short and shallow, whatever there is
_REPR.maxstring = 60


def _short(value: Any) -> str:
    return str(value)[:100] if isinstance(value, Exception) else _REPR.repr(value)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")

"""The answers that models learn: one class per sample, one or several numbers, or several labels that are there or not.

| label | read as |
|---|---|
| [N] of whole numbers, names or truth values | classes |
| [N] or [N, D] of floats | numbers |
| [N, L] of 0 and 1, or truth values | several labels, each there or not |

`task` says it outright where the array does not.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final, get_args

import numpy as np

from equipoise.data.own.columns import (
    VALUE,
    as_numpy,
    distinct_values,
    few,
    first_few,
    is_blank,
    listed,
    read_column,
    unprintable,
)
from equipoise.models.task import TaskKind
from equipoise.util.errors import BadInput
from equipoise.util.processes import memory_problem

TASKS = ("auto", *get_args(TaskKind))
BINS, LEAST = 5, 5  # ranges of a number that parts are drawn within, and the samples that each should have
EXACT = 2**53  # whole numbers up to it are floats without loss
MOST = 20  # samples of a class, on average, where many whole numbers are rather numbers than classes
FEW = 20  # distinct whole numbers that may be classes
WITHIN = {"classes": "within each class", "regression": "within ranges of the label", "labels": "within each label"}
"""The strata of each kind, in words."""
NUMBERS = "if these are numbers to predict, type task=regression"


@final
@dataclass(frozen=True)
class Labels:
    """The answer of each sample.

    Args:
        values: Classes from 0, int64 [N]; numbers, float32 [N, D]; or 0 and 1, float32 [N, L].
        names: Of the classes, in that order, or of the columns.
        kind: The task.
        warnings: What may have been meant otherwise.
    """

    values: np.ndarray
    names: tuple[str, ...]
    kind: TaskKind = "classes"
    warnings: tuple[str, ...] = ()

    @property
    def strata(self) -> np.ndarray:
        """The stratum of each sample, [N], which parts are to have in equal shares.

        Of classes it is the class; of numbers the range between quantiles of the first column; of several labels the
        rarest that a sample has.
        """
        if self.kind == "classes":
            return self.values
        if self.kind == "regression":
            first, count = self.values[:, 0], len(self.values)
            ordered = np.sort(first)  # equal numbers share the middle of their places
            places = np.searchsorted(ordered, first, "left") + np.searchsorted(ordered, first, "right") - 1
            return places * max(1, min(BINS, count // LEAST)) // (2 * count)
        order = np.argsort(self.values.sum(axis=0), kind="stable")
        positive = self.values[:, order] > 0
        return np.where(positive.any(axis=1), positive.argmax(axis=1), len(self.names))

    @property
    def needed(self) -> np.ndarray | None:
        """The values of which training has to see each class or label; None of numbers."""
        return None if self.kind == "regression" else self.values

    def holders(self) -> Iterator[tuple[str, np.ndarray]]:
        """Give the name of each class or label with the samples that have it, booleans [N]; nothing of numbers."""
        if self.kind != "regression":
            for number, name in enumerate(self.names):
                yield name, (self.values == number if self.kind == "classes" else self.values[:, number] > 0)


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def training_problems(kind: TaskKind, names: Sequence[str], values: np.ndarray) -> Iterable[str]:
    """List why nothing can be learnt from the labels of the training part."""
    if not len(values):
        return
    if kind == "classes":
        learnt = set(values.tolist())
        if absent := [name for number, name in enumerate(names) if number not in learnt]:
            advice = f"; {NUMBERS}" if len(names) > FEW and all(map(_is_whole, names)) else ""
            yield f"train: expected samples of every class, found none of {listed(absent)}{advice}"
    elif kind == "labels":
        if absent := [name for name, count in zip(names, values.sum(axis=0), strict=True) if not count]:
            yield f"train: expected samples with every label, found none with {listed(absent)}"
    elif same := [name for at, name in enumerate(names) if (values[:, at] == values[0, at]).all()]:
        yield f"train: expected numbers that differ, found one only in {listed(same)}"


def read_labels(
    given: Any, names: Any, problems: list[str], task: str = "auto", samples: Sequence[str] | None = None
) -> Labels | None:
    """Read the answers.

    Args:
        given: One value per sample, or one row.
        names: Of the classes or columns; None where they have none.
        problems: Collects what is wrong with the names and classes, of which there may be several.
        task: What they are; "auto" to see it from the values.
        samples: Names of the samples, for messages.

    Returns:
        The labels; None where their names are wrong.

    Raises:
        BadInput: If the values cannot be what they should.
    """
    if task not in TASKS:
        raise BadInput(f"task: expected one of {', '.join(TASKS)}, found {task!r}")
    before = len(problems)
    if names is None and len(columns := getattr(given, "columns", ())) > 1:  # of a DataFrame
        names = columns
    titles = None if names is None else tuple(map(str, as_numpy(names).reshape(-1).tolist()))
    if titles is not None:
        if len(set(titles)) < len(titles):
            problems.append(f"classes: expected names, every one another, found {list(titles)}")
        problems += unprintable("classes", titles)
    table = _read_table(given, samples)
    if len(table) == 0:
        raise BadInput("label: expected at least one sample, found none")
    kind = _kind_of(table) if task == "auto" else task
    if len(problems) > before:  # names that are wrong would be found wrong once more
        return None
    read: Callable[..., Labels] = {"classes": _classes, "regression": _numbers, "labels": _several}[kind]
    labels = read(table, titles, problems)
    return replace(labels, warnings=()) if task == kind else labels


def _read_table(given: Any, samples: Sequence[str] | None) -> np.ndarray:
    """Read one value per sample, [N], or one row of numbers for each, [N, D] with D above 1; none of them missing."""
    try:
        table = as_numpy(given)
        if table.dtype == object and table.ndim == 1 and len(table) and all(map(_is_row, table)):
            table = np.stack([as_numpy(row) for row in table])
    except (ValueError, TypeError):
        raise BadInput("label: expected one value per sample, or rows of one length, found rows that differ") from None
    if table.dtype.names:
        fields = f"records with the fields {listed(table.dtype.names)}"
        advice = "give numpy.stack([label[name] for name in label.dtype.names], axis=1)"
        raise BadInput(f"label: expected numbers or names, found {fields}; for several numbers {advice}")
    if table.ndim != 2 or table.shape[1] == 1:
        if table.ndim not in (1, 2):
            expected = "expected one value per sample [N], or one row of numbers [N, D]"
            raise BadInput(f"label: {expected}, found an array of shape {table.shape}")
        return _finite(read_column("label", table, samples), samples)
    if why := memory_problem(VALUE * table.size):
        raise BadInput(f"label: {why}")
    if table.dtype == object:
        rows = [[float("nan") if is_blank(value) else value for value in row] for row in table.tolist()]
        try:
            table = np.array(rows, None if rows else float)
        except (ValueError, TypeError):
            table = np.array(rows, object)
    if table.dtype.kind not in "biuf" or 0 in table.shape[1:]:
        expected = "expected numbers in rows [N, D], or 0 and 1 for each of several labels [N, L]"
        found = f"{'text or objects' if table.dtype.kind in 'OSU' else table.dtype} of shape {table.shape}"
        raise BadInput(f"label: {expected}, found {found}")
    return _finite(table, samples)


def _is_row(value: object) -> bool:
    return isinstance(value, (list, tuple, np.ndarray))


def _finite(table: np.ndarray, samples: Sequence[str] | None) -> np.ndarray:
    if table.dtype.kind != "f" or not len(table):
        return table
    problems = []
    for what, bad in (("a value", np.isnan(table)), ("a finite number", np.isinf(table))):
        if rows := np.flatnonzero(bad.reshape(len(table), -1).any(axis=1)).tolist():
            found = "none" if what == "a value" else "infinity"
            count = f"{len(rows)} of {len(table)} ({first_few(rows, samples)})"
            problems.append(f"label: expected {what} for every sample, found {found} in {count}; leave them out")
    if problems:
        raise BadInput("\n".join(problems))
    return table


def _kind_of(table: np.ndarray) -> TaskKind:
    if table.ndim == 1:
        return "regression" if table.dtype.kind == "f" else "classes"
    if _is_binary(table):
        return "labels"
    if table.dtype.kind == "f":
        return "regression"
    expected = "expected one class per sample [N], 0 and 1 for each of several labels [N, L], or several floats [N, D]"
    found = f"whole numbers from {table.min()} to {table.max()}, {list(table.shape)}"
    raise BadInput(f"label: {expected}; found {found}; {NUMBERS}")


def _is_binary(table: np.ndarray) -> bool:
    return bool(((table == 0) | (table == 1)).all())


def _is_one_hot(table: np.ndarray) -> bool:
    return table.ndim == 2 and _is_binary(table) and bool((table.sum(axis=1) == 1).all())


def _classes(column: np.ndarray, names: tuple[str, ...] | None, problems: list[str]) -> Labels:
    """Number classes: 0 … C − 1 stay as they are; anything else in the order of `names`, or sorted."""
    if names is not None and len(names) < 2:
        raise BadInput(f"classes: expected two names or more, found {list(names)}")
    if column.ndim == 2:
        if not _is_one_hot(column):
            advice = "type task=labels where several may be right" if _is_binary(column) else "type task=regression"
            found = f"rows of shape {list(column.shape)}"
            raise BadInput(f"label: expected one class per sample, or one 1 in each row, found {found}; {advice}")
        names = names or tuple(map(str, range(column.shape[1])))
        column = column.argmax(axis=1)
    if column.dtype.kind == "f":
        if (column != np.round(column)).any() or np.abs(column).max() > EXACT:
            expected = "expected classes, whole numbers or names"
            advice = "type task=regression to predict numbers"
            raise BadInput(f"label: {expected}, found the numbers {distinct_values(column)}; {advice}")
        column = column.astype(np.int64)
    distinct, numbers = np.unique(column, return_inverse=True)
    values = distinct.tolist()
    if names is None:
        names = tuple(map(str, values))
        problems += unprintable("label", names)
    elif column.dtype.kind != "U":  # numbers that say themselves which class they are
        numbers = column.astype(np.int64)
        if outside := [number for number in sorted({*numbers.tolist()}) if not 0 <= number < len(names)]:
            expected = f"label: expected 0 to {len(names) - 1}, since {len(names)} classes are named"
            raise BadInput(f"{expected}, found {few(outside)}")
        if len(values) < 2:
            only = f"found those of {names[numbers[0]]} only"
            problems.append(f"label: expected samples of two classes or more, {only}")
        return Labels(numbers, names)
    elif unknown := sorted({*values} - {*names}):
        raise BadInput(f"label: expected one of the classes {list(names)}, found {few(unknown)}")
    else:
        place = {name: number for number, name in enumerate(names)}
        numbers = np.array([place[value] for value in values])[numbers]
    if len(values) < 2:
        problems.append(f"label: expected two classes or more, found {list(map(str, values))}")
    many = column.dtype.kind in "iu" and len(values) > FEW and len(column) < MOST * len(values)
    warnings = (f"label: {len(values)} whole numbers are read as so many classes; {NUMBERS}",) if many else ()
    return Labels(numbers.astype(np.int64), names, warnings=warnings)


def _numbers(table: np.ndarray, names: tuple[str, ...] | None, problems: list[str]) -> Labels:
    if table.dtype.kind == "U":
        values = few(np.unique(table).tolist())
        raise BadInput(f"label: expected numbers, as task=regression says, found the names {values}")
    with np.errstate(over="ignore"):
        values = table.reshape(len(table), -1).astype(np.float32)
    if not np.isfinite(values).all():
        largest = float(np.abs(table.astype(np.float64)).max())
        raise BadInput(f"label: expected numbers that fit 32 bits, found {largest:g}; give them in another unit")
    columns = _columns(values, names, problems, "label holds classes: task=classes")
    if len(values) > 1 and (same := [name for name, one in zip(columns, values.T, strict=True) if np.ptp(one) == 0]):
        problems.append(f"label: expected numbers that differ, found one only in {listed(same)}")
    distinct, warnings = np.unique(values), ()
    if table.dtype.kind == "f" and len(distinct) <= FEW and (distinct == np.round(distinct)).all():
        warnings = ("label: whole numbers stored as floats are read as numbers; type task=classes for classes",)
    return Labels(values, columns, "regression", warnings)


def _several(table: np.ndarray, names: tuple[str, ...] | None, problems: list[str]) -> Labels:
    if table.ndim == 1 or not _is_binary(table):
        found = "one value per sample" if table.ndim == 1 else f"the numbers {distinct_values(table)}"
        advice = "; for one label that is there or not type task=classes" if table.ndim == 1 else ""
        raise BadInput(f"label: expected 0 and 1 for each of several labels [N, L], found {found}{advice}")
    columns, values = _columns(table, names, problems, "a row per label: transpose it"), table.astype(np.float32)
    if never := [name for name, count in zip(columns, values.sum(axis=0), strict=True) if not count]:
        problems.append(f"label: expected samples with every label, found none with {listed(never)}; leave it out")
    warnings = []
    if _is_one_hot(table):
        advice = "if these are classes, give one number per sample, label.argmax(axis=1), or type task=classes"
        warnings = [f"label: every sample has exactly one label; {advice}"]
    return Labels(values, columns, "labels", tuple(warnings))


def _columns(table: np.ndarray, names: tuple[str, ...] | None, problems: list[str], otherwise: str) -> tuple[str, ...]:
    """Return the names of the columns: as given, or label_0, label_1 and so on."""
    count = 1 if table.ndim == 1 else table.shape[1]
    usual = ("label",) if count == 1 else tuple(f"label_{at}" for at in range(count))
    if names is not None and len(names) != count:
        expected = f"classes: expected {count} name{'s' if count > 1 else ''}, one per column of label"
        problems.append(f"{expected}, found {len(names)}; or {otherwise}")
        return usual
    return names or usual

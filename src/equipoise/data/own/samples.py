"""Samples of a user's own data, and the rules by which they are divided into training, validation and test parts.

Parts are drawn by group, so that no group is in two of them, or within each class; the classes as even as can be.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from equipoise.data.views import View
from equipoise.util.errors import BadInput, printable
from equipoise.util.processes import memory_problem

PARTS = ("train", "validation", "test")
MARKS = {"0": 0, "train": 0, "1": 1, "validation": 1, "val": 1, "valid": 1, "2": 2, "test": 2}
VALUE = 100  # bytes, about, that a Python value takes
NAMED = 5  # of many wrong samples, so many are named
REGRESSION = (
    "the command trains classifiers. For regression keep your own loop and balance its losses, see docs/own-model.md; "
    "for classes give whole numbers or names, such as label.astype(int)"
)
_KINDS = {"text": str, "truth values": (bool, np.bool_), "numbers": (int, float, np.number)}


@final
@dataclass(frozen=True)
class Labels:
    """The class of each sample.

    Args:
        numbers: From 0, [N].
        classes: Their names, in that order.
    """

    numbers: np.ndarray
    classes: tuple[str, ...]


@final
@dataclass(frozen=True)
class Groups:
    """The person, speaker or recording that each sample comes from.

    Args:
        numbers: Indices into the names, [N].
        names: Sorted; whole numbers stay whole numbers.
    """

    numbers: np.ndarray
    names: tuple[Any, ...]

    def in_two_parts(self, marks: np.ndarray) -> list[str]:
        """Return the groups that are in more than one part, each with its parts."""
        there = np.zeros((len(self.names), len(PARTS)), bool)
        there[self.numbers, marks] = True
        return [
            f"{self.names[number]!r} ({', '.join(itertools.compress(PARTS, there[number]))})"
            for number in np.flatnonzero(there.sum(axis=1) > 1)
        ]


def as_numpy(given: Any) -> np.ndarray:
    """Return a tensor, list or array as a numpy array."""
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = (given.float() if given.dtype == torch.bfloat16 else given).numpy()
    return np.asarray(given)


def first_few(numbers: Sequence[int], samples: Sequence[str] | None = None) -> str:
    """Return the first few of many samples, by name."""
    named = ", ".join(str(number) if samples is None else samples[number] for number in numbers[:NAMED])
    return named + (", …" if len(numbers) > NAMED else "")


def read_labels(given: Any, classes: Any, problems: list[str], samples: Sequence[str] | None = None) -> Labels | None:
    """Read classes from whole numbers, names or truth values.

    Whole numbers 0 … C − 1 stay as they are. Anything else is numbered in the order of `classes`, or sorted.

    Args:
        given: One value per sample.
        classes: Their names; None where they have none.
        problems: Collects what is wrong with the classes, of which there may be several.
        samples: Names of the samples, for messages.

    Raises:
        BadInput: If the values cannot be classes.
    """
    names, before = None, len(problems)
    if classes is not None:
        names = tuple(map(str, as_numpy(classes).reshape(-1).tolist()))
        if len(set(names)) < len(names) or len(names) < 2:
            problems.append(f"classes: expected two names or more, every one another, found {list(names)}")
        problems += _unprintable("classes", names)
    column = _read_column("label", given, samples)
    if len(column) == 0:
        raise BadInput("label: expected at least one sample, found none")
    if column.dtype.kind == "f":
        raise BadInput(f"label: expected classes, found the numbers {_distinct(column)}: {REGRESSION}")
    if len(problems) > before:
        return None
    distinct, numbers = np.unique(column, return_inverse=True)
    values = distinct.tolist()
    if names is None:
        names = tuple(map(str, values))
        problems += _unprintable("label", names)
    elif column.dtype.kind != "U":  # numbers that say themselves which class they are
        numbers = column.astype(np.int64)
        if outside := [number for number in sorted({*numbers.tolist()}) if not 0 <= number < len(names)]:
            expected = f"label: expected 0 to {len(names) - 1}, since {len(names)} classes are named"
            raise BadInput(f"{expected}, found {_few(outside)}")
        if len(values) < 2:
            only = f"found those of {names[numbers[0]]} only"
            problems.append(f"label: expected samples of two classes or more, {only}")
        return Labels(numbers, names)
    elif unknown := sorted({*values} - {*names}):
        raise BadInput(f"label: expected one of the classes {list(names)}, found {_few(unknown)}")
    else:
        place = {name: number for number, name in enumerate(names)}
        numbers = np.array([place[value] for value in values])[numbers]
    if len(values) < 2:
        problems.append(f"label: expected two classes or more, found {list(map(str, values))}")
    return Labels(numbers.astype(np.int64), names)


def read_marks(given: Any, samples: Sequence[str] | None = None) -> np.ndarray:
    """Read the part of each sample, 0, 1 or 2.

    Raises:
        BadInput: If there are other values.
    """
    distinct, numbers = np.unique(_read_column("split", given, samples), return_inverse=True)
    values = distinct.tolist()
    whole = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    marks = [MARKS.get(str(value).strip().lower()) for value in whole]
    if unknown := [value for value, mark in zip(values, marks, strict=True) if mark is None]:
        raise BadInput(f"split: expected train, validation or test, or 0, 1, 2 for these; found {_few(unknown)}")
    return np.array(marks, np.int64)[numbers]


def read_groups(given: Any, samples: Sequence[str] | None = None) -> Groups:
    """Read groups from whole numbers or names.

    Raises:
        BadInput: If they are neither.
    """
    column = _read_column("group", given, samples)
    if column.dtype.kind == "f":
        if (column != np.round(column)).any():
            raise BadInput(f"group: expected whole numbers or names, found the numbers {_distinct(column)}")
        column = column.astype(np.int64)
    names, numbers = np.unique(column, return_inverse=True)
    return Groups(numbers, tuple(names.tolist()))


def _read_column(name: str, given: Any, samples: Sequence[str] | None) -> np.ndarray:
    """Read one value per sample: truth values, numbers or text."""
    column = as_numpy(given)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        hint = "; of one-hot rows give array.argmax(axis=1)" if column.ndim == 2 else ""
        raise BadInput(f"{name}: expected one value per sample, [N], found an array of shape {column.shape}{hint}")
    if why := memory_problem(VALUE * column.size):
        raise BadInput(f"{name}: {why}")
    values = column.tolist()
    blank = [value is None or value in ("", b"") or (isinstance(value, float) and value != value) for value in values]
    if missing := np.flatnonzero(blank).tolist():
        count = f"{len(missing)} of {len(values)} ({first_few(missing, samples)})"
        raise BadInput(f"{name}: expected a value for every sample, found none in {count}")
    kinds = sorted({type(value).__name__ for value in values})
    if column.dtype.kind in "OS":
        values = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
        found = {next((kind for kind, types in _KINDS.items() if isinstance(value, types)), "") for value in values}
        if len(found) <= 1 and "" not in found:
            column = np.array(values, dtype=None if values else str)
    if column.dtype.kind not in "biufU":
        raise BadInput(f"{name}: expected whole numbers or names, found values of the types {', '.join(kinds)}")
    return column


def _unprintable(column: str, names: Sequence[str]) -> list[str]:
    """Report names with characters that would command the terminal, or the page, on which they are shown."""
    odd = [name for name in names if printable(name, "") != name]
    return [f"{column}: expected names of letters that can be shown, found {_few(odd)}"] if odd else []


def _few(values: Sequence[Any]) -> str:
    return ", ".join(map(repr, values[:NAMED])) + (", …" if len(values) > NAMED else "")


def _distinct(column: np.ndarray) -> str:
    return _few([float(value) for value in np.unique(column)[: NAMED + 1]])


TRAIN, VALIDATION, TEST = 0, 1, 2
SHARES = (0.6, 0.2, 0.2)
DEALT = (TRAIN, TEST, VALIDATION, TRAIN, TRAIN)  # so a class of three is in every part, and of one in the training part
HELD_OUT = (0, 1, 0, 0)  # every fourth
MOST_FOLDS, FEWEST_FOLDS = 5, 3
TRIES, STEPS = 50, 20_000  # a try takes a step per group
MOST_SHOWN = 20
UNGROUPED = "no groups are given, so samples of one person or recording may be in two parts"


@final
@dataclass(frozen=True)
class Assignment:
    """The part of each sample.

    Args:
        marks: 0, 1 or 2, [N]; None where they cannot be drawn.
        about: One line on how the parts were drawn.
        problems: What is wrong with them.
    """

    marks: np.ndarray | None = None
    about: str = ""
    problems: tuple[str, ...] = ()


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """Arrays as they were read, before they are divided into parts.

    Args:
        name: The name of the data.
        inputs: The modalities that could be read, and lengths of those with ragged time.
        views: Makes the input of an encoder out of a modality as it is stored.
        label: The classes; None where they could not be read.
        marks: The part of each sample as it was given; None where it was not.
        group: The group of each sample; None where none is given.
        notes: What was done to the arrays.
        problems: What is wrong with them.
        names: Names of the samples in messages; their numbers, from 0, where this is None.
        whole: The modalities whose numbers are whole ones.
        spatial: The modalities whose last axis is not time.
    """

    name: str
    inputs: dict[str, Tensor]
    views: Mapping[str, View]
    label: Labels | None
    marks: np.ndarray | None
    group: Groups | None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    names: Sequence[str] | None = None
    whole: frozenset[str] = frozenset()
    spatial: frozenset[str] = frozenset()

    @property
    def folds(self) -> int:
        """The number of folds that can be made. Parts that were given without groups are not torn apart for that."""
        if self.label is None or (self.marks is not None and self.group is None):
            return 0
        return fold_count(len(self.label.numbers), None if self.group is None else len(self.group.names))

    def token_problems(self, tokens: Collection[str]) -> Iterable[str]:
        """List what is wrong with the modalities that are to be read as token numbers."""
        for name in sorted({*tokens} - self.whole):
            there = "numbers of another kind" if name in self.inputs else "no such modality"
            yield f"{name}: expected token numbers, whole ones [N, T], found {there}; store integers, padded with 0"
        for name in sorted({*tokens} & self.whole):
            if (self.inputs[name] < 0).any():
                yield f"{name}: expected token numbers from 0 on, found {int(self.inputs[name].min())}; pad with 0"

    def assign(self, fold: int | None = None, seed: int = 0, folds: int | None = None) -> Assignment:
        """Assign each sample to a part.

        Args:
            fold: Which fold is tested on; None for the parts that were given, or drawn once.
            seed: Of the drawing.
            folds: How many there are; None for `self.folds`.
        """
        columns = (self.label and self.label.numbers, self.marks, self.group and self.group.numbers)
        if len({len(column) for column in columns if column is not None}) > 1:
            return Assignment()
        if self.label is None:
            return Assignment(problems=tuple(self._torn()))
        label, group = self.label.numbers, None if self.group is None else self.group.numbers
        problems: list[str] = []
        if fold is not None:
            if self.folds == 0:
                why = "parts were given without groups" if self.group is None else "there are fewer than three groups"
                problem = f"fold: expected data that can be cut into folds, but {why}; give group"
                return Assignment(problems=(problem,))
            folds = folds or self.folds
            most, each = (len(label), "sample") if self.group is None else (len(self.group.names), "group")
            if not FEWEST_FOLDS <= folds <= most:
                expected = f"expected {FEWEST_FOLDS} to {most}, at most one per {each}"
                return Assignment(problems=(f"folds: {expected}, found {folds}",))
            if not 0 <= fold < folds:
                return Assignment(problems=(f"fold: expected 0 to {folds - 1}, found {fold}",))
            marks = draw_fold(label, group, fold, folds, seed)
            how = f"within each class; {UNGROUPED}" if group is None else f"by group: {self._groups_per_part(marks)}"
            unused = "" if self.marks is None else "; the parts that were given are not used"
            about = f"fold {fold} of {folds} (seed {seed}), drawn {how}{unused}"
        elif self.marks is not None:
            marks, about, problems = self.marks, "parts as given", list(self._torn())
            train = marks == TRAIN
            if not (marks == VALIDATION).any() and train.any():
                held = hold_out(label[train], None if group is None else group[train], seed)
                marks = marks.copy()
                marks[np.flatnonzero(train)[held]] = VALIDATION
                how = f"drawn {'within each class' if group is None else 'by group'} (seed {seed})"
                about += f", and no validation samples among them: a quarter of the training samples {how}"
        elif self.group is not None and (count := len(self.group.names)) < len(PARTS):
            return Assignment(problems=(f"group: expected three groups or more to draw parts from, found {count}",))
        else:
            marks = draw(label, group, seed)
            about = f"drawn at random within each class (seed {seed}); {UNGROUPED}"
            if group is not None:
                about = f"drawn by group (seed {seed}), no group in two parts: {self._groups_per_part(marks)}"
        empty = [part for number, part in enumerate(PARTS) if not (marks == number).any()]
        problems += [f"{part}: expected at least one sample, found none" for part in empty]
        learnt = set(label[marks == TRAIN].tolist())
        absent = [name for number, name in enumerate(self.label.classes) if number not in learnt]
        if absent and learnt:
            problems.append(f"train: expected samples of every class, found none of {_listed(absent)}")
        return Assignment(marks, about, tuple(problems))

    def _torn(self) -> Iterable[str]:
        if self.marks is not None and self.group is not None and (shared := self.group.in_two_parts(self.marks)):
            advice = "cut them by group, or leave out split, and parts are drawn that share none"
            yield f"split: expected no group in two parts, found {len(shared)}: {_listed(shared)}; {advice}"

    def _groups_per_part(self, marks: np.ndarray) -> str:
        assert self.group is not None
        counts = [len(np.unique(self.group.numbers[marks == number])) for number in range(len(PARTS))]
        return "{} train, {} validate, {} test".format(*counts)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_SHOWN]) + (f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else "")


# -- drawing --


def draw(label: np.ndarray, group: np.ndarray | None, seed: int) -> np.ndarray:
    """Draw the part of each sample: about 60 % of them train, 20 % validate, 20 % test.

    Args:
        label: Classes, [N].
        group: Numbers of groups from 0, [N], three of them or more; None to draw within each class instead.
        seed: The same seed draws the same parts.
    """
    if group is None:
        return _stratified(label, DEALT, seed)
    return assign_groups(class_counts(label, group), SHARES, seed)[group]


def draw_fold(label: np.ndarray, group: np.ndarray | None, fold: int, folds: int, seed: int) -> np.ndarray:
    """Draw the part of each sample in one of several folds: it tests, the next one validates, the others train."""
    if group is None:
        place = np.empty(len(label), np.int64)
        place[_by_class(label, seed)] = np.arange(len(label)) % folds
    else:
        place = assign_groups(class_counts(label, group), [1 / folds] * folds, seed)[group]
    return np.select([place == fold, place == (fold + 1) % folds], [TEST, VALIDATION], TRAIN)


def hold_out(label: np.ndarray, group: np.ndarray | None, seed: int) -> np.ndarray:
    """Draw about a quarter of the training samples for validation, whole groups where there are some, as a mask."""
    if group is None:
        return _stratified(label, HELD_OUT, seed).astype(bool)
    present, numbers = np.unique(group, return_inverse=True)
    if len(present) < 2:
        return np.zeros(len(label), bool)
    return assign_groups(class_counts(label, numbers), (0.75, 0.25), seed)[numbers].astype(bool)


def fold_count(samples: int, groups: int | None) -> int:
    """Return the number of folds: five, or one per group where there are fewer; none of fewer than three."""
    folds = min(MOST_FOLDS, samples if groups is None else groups)
    return folds if folds >= FEWEST_FOLDS else 0


def assign_groups(counts: np.ndarray, shares: Sequence[float], seed: int) -> np.ndarray:
    """Assign each group to a part, none of the parts empty.

    Groups are assigned one after the other to the part where they do most good, the largest first, and then again in
    random orders; the outcome with the least `unevenness` counts.

    Args:
        counts: Samples of each class in each group, [groups, classes].
        shares: How much of all samples each part should have.
        seed: The same seed gives the same parts.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    groups = len(counts)
    orders = [np.lexsort((random.random(groups), -counts.sum(axis=1)))]
    orders += [random.random(groups).argsort() for _ in range(min(TRIES, STEPS // groups))]
    outcomes = [_greedy(counts, np.array(shares), order) for order in orders]
    return min(outcomes, key=lambda places: unevenness(counts, shares, places))


def class_counts(label: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Count the samples of each class in each group, [groups, classes]; classes that no sample has are left out."""
    classes, numbers = np.unique(label, return_inverse=True)
    counts = np.zeros((int(group.max()) + 1, len(classes)))
    np.add.at(counts, (group, numbers), 1)
    return counts


def unevenness(counts: np.ndarray, shares: Sequence[float], places: np.ndarray) -> float:
    """Return the distance of parts from their shares: over all samples, and in the mean over the classes; both as χ².

    A class that the largest part lacks, so that it could not be learnt, costs more than all of that.
    """
    wanted = np.array(shares)[:, None]
    held = np.stack([counts[places == part].sum(axis=0) for part in range(len(shares))])
    of_all = held.sum(axis=1, keepdims=True) / counts.sum()
    of_classes = held / counts.sum(axis=0)
    lost = (held[np.argmax(shares)] == 0).sum()
    per_class = ((of_classes - wanted) ** 2 / wanted).sum(0).mean()
    return float(((of_all - wanted) ** 2 / wanted).sum() + per_class + 10 * lost)


def _greedy(counts: np.ndarray, shares: np.ndarray, order: np.ndarray) -> np.ndarray:
    # The size of a group counts as one more class, as heavy as all the others together.
    sizes = counts.sum(axis=1, keepdims=True) / counts.sum()
    weights = np.concatenate([counts / counts.sum(axis=0) / counts.shape[1] ** 0.5, sizes], 1)
    wanted = shares[:, None] * weights.sum(axis=0)
    held = np.zeros_like(wanted)
    taken, places = np.zeros(len(shares), np.int64), np.empty(len(counts), np.int64)
    for assigned, group in enumerate(order):
        worse = ((2 * (held - wanted) + weights[group]) * weights[group]).sum(axis=1) / shares
        if len(order) - assigned <= (taken == 0).sum():  # just enough groups are left for the parts that have none
            worse[taken > 0] = np.inf
        place = places[group] = int(worse.argmin())
        held[place] += weights[group]
        taken[place] += 1
    return places


def _stratified(label: np.ndarray, pattern: Sequence[int], seed: int) -> np.ndarray:
    """Assign the samples of each class, in random order, to parts by a pattern that repeats."""
    marks = np.empty(len(label), np.int64)
    _, sizes = np.unique(label, return_counts=True)
    marks[_by_class(label, seed)] = np.concatenate([np.resize(pattern, size) for size in sizes])
    return marks


def _by_class(label: np.ndarray, seed: int) -> np.ndarray:
    """Return all samples, class by class, in random order within each."""
    random = np.random.Generator(np.random.PCG64(seed))
    return np.lexsort((random.random(len(label)), label))

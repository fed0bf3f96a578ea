"""Samples of a user's own data, before they are divided into training, validation and test parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np
from torch import Tensor

from equipoise.data.own.columns import NAMED, Groups, counted, listed, size_of
from equipoise.data.own.draw import (
    FEWEST_FOLDS,
    PARTS,
    TRAIN,
    VALIDATION,
    draw,
    draw_places,
    fold_count,
    fold_marks,
    hold_out,
    table_problem,
)
from equipoise.data.own.labels import WITHIN, Labels, read_labels, training_problems
from equipoise.data.views import View
from equipoise.util.errors import BadInput

MANY = 1000  # classes: so many are rather numbers
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


class Given(NamedTuple):
    """Labels as they were given, to be read for one task or another, and what was found without them.

    Args:
        label: One value or row per sample; None where there is none.
        classes: Names of classes or columns; None where there are none.
        problems: What is wrong with everything else.
        drawable: Whether parts may be drawn, were the labels known.
    """

    label: Any = None
    classes: Any = None
    problems: tuple[str, ...] = ()
    drawable: bool = True


NO_LABELS = Given()


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """Arrays as they were read, before they are divided into parts.

    Args:
        name: The name of the data.
        inputs: The modalities that could be read, lengths of those with ragged time, and who has those with gaps.
        views: Makes the input of an encoder out of a modality as it is stored.
        label: The answers; None where they could not be read.
        marks: The part of each sample as it was given; None where it was not.
        group: The group of each sample; None where none is given.
        notes: What was done to the arrays.
        problems: What is wrong with them.
        names: Names of the samples in messages; their numbers, from 0, where this is None.
        whole: The modalities whose numbers are whole ones.
        spatial: The modalities whose last axis is not time.
        given: The labels before they were read.
        ids: Names of the samples that came with them; none where there are none.
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
    given: Given = NO_LABELS
    ids: tuple[Any, ...] = ()

    def for_task(self, task: str) -> Samples:
        """Return these samples with their labels read for a task, "auto" to see it from the labels."""
        problems: list[str] = []
        label = None
        if self.given.label is not None:
            try:
                label = read_labels(self.given.label, self.given.classes, problems, task, self.names)
            except BadInput as problem:
                problems += str(problem).splitlines()
        label = label if self.given.drawable else None
        return replace(self, label=label, problems=(*self.given.problems, *problems))

    @property
    def folds(self) -> int:
        """The number of folds that can be made. Parts that were given without groups are not torn apart for that."""
        count = size_of(self.given.label)  # which may be read for another task
        if count is None or not self.given.drawable or (self.marks is not None and self.group is None):
            return 0
        return fold_count(count, None if self.group is None else len(self.group.names))

    def token_problems(self, tokens: Collection[str]) -> Iterable[str]:
        """List what is wrong with the modalities that are to be read as token numbers."""
        for name in sorted({*tokens} - self.whole):
            there = "numbers of another kind" if name in self.inputs else "no such modality"
            yield f"{name}: expected token numbers, whole ones [N, T], found {there}; store integers, padded with 0"
        for name in sorted({*tokens} & self.whole):
            if (self.inputs[name] < 0).any():
                yield f"{name}: expected token numbers from 0 on, found {int(self.inputs[name].min())}; pad with 0"

    def assign(
        self, fold: int | None = None, seed: int = 0, folds: int | None = None, *, tested: bool = True
    ) -> Assignment:
        """Assign each sample to a part.

        Args:
            fold: Which fold is tested on; None for the parts that were given, or drawn once.
            seed: Of the drawing.
            folds: How many there are; None for `self.folds`.
            tested: Whether there has to be a test part.
        """
        columns = (self.label and self.label.values, self.marks, self.group and self.group.numbers)
        if len({len(column) for column in columns if column is not None}) > 1:
            return Assignment()
        if self.label is None:
            return Assignment(problems=tuple(self._torn()))
        label, group = self.label.strata, None if self.group is None else self.group.numbers
        drawn = fold is not None or self.marks is None or not (self.marks == VALIDATION).any()
        if group is not None and drawn and (problem := table_problem(label, group)):
            return Assignment(problems=(problem,))
        within = WITHIN[self.label.kind]
        problems: list[str] = []
        place: np.ndarray | None = None
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
            needed = self.label.needed
            place = draw_places(label, group, folds, seed, spread=needed is not None)
            marks = fold_marks(place, group, fold, folds, needed)
            how = f"{within}; {UNGROUPED}" if group is None else f"by group: {self._groups_per_part(marks)}"
            unused = "" if self.marks is None else "; the parts that were given are not used"
            about = f"fold {fold} of {folds} (seed {seed}), drawn {how}{unused}"
        elif self.marks is not None:
            marks, about, problems = self.marks, "parts as given", list(self._torn())
            train = marks == TRAIN
            if not (marks == VALIDATION).any() and train.any():
                held = hold_out(label[train], None if group is None else group[train], seed)
                marks = marks.copy()
                marks[np.flatnonzero(train)[held]] = VALIDATION
                how = f"drawn {within if group is None else 'by group'} (seed {seed})"
                about += f", and no validation samples among them: a quarter of the training samples {how}"
        elif self.group is not None and (count := len(self.group.names)) < len(PARTS):
            return Assignment(problems=(f"group: expected three groups or more to draw parts from, found {count}",))
        else:
            marks = draw(label, group, seed)
            about = f"drawn at random {within} (seed {seed}); {UNGROUPED}"
            if group is not None:
                about = f"drawn by group (seed {seed}), no group in two parts: {self._groups_per_part(marks)}"
        asked = PARTS if tested else PARTS[:2]
        empty = [part for number, part in enumerate(asked) if not (marks == number).any()]
        problems += [f"{part}: expected at least one sample, found none" for part in empty]
        lacking = [*training_problems(self.label.kind, self.label.names, self.label.values[marks == TRAIN])]
        if place is None or folds is None:
            return Assignment(marks, about, (*problems, *self._never_learnt(marks == TRAIN), *lacking))
        problems += [f"fold {fold} of {folds}, {problem}" for problem in self._never_learnt(marks == TRAIN)]
        lost = self._lost_in_folds(place, folds, marks == TRAIN) if lacking else []
        return Assignment(marks, about, (*problems, *(lost or [f"fold {fold} of {folds}, {one}" for one in lacking])))

    def _lost_in_folds(self, place: np.ndarray, folds: int, train: np.ndarray) -> list[str]:
        """Say of each class that this fold cannot learn where else so, and what to do; nothing of very many."""
        assert self.label is not None
        label, group = self.label, None if self.group is None else self.group.numbers
        lost = [name for name, has in label.holders() if not has[train].any()] if len(label.names) <= MANY else []
        if label.needed is None or len(lost) > NAMED:
            return []
        trained = [fold_marks(place, group, fold, folds, label.needed) == TRAIN for fold in range(folds)]
        problems = []
        for name, has in label.holders():
            if name not in lost:
                continue
            where = listed([str(fold) for fold, those in enumerate(trained) if not has[those].any()])
            count = int(has.sum()) if group is None else len(np.unique(group[has]))
            most = len(place) if self.group is None else len(self.group.names)
            only = f"it occurs in {counted(count, 'sample' if group is None else 'group')} only"
            more = f"try more folds, {folds + 1} to {most}, " if count > 1 and folds < most else ""
            advice = f"{more}merge it with another {'class' if label.kind == 'classes' else 'label'}, leave it out"
            expected = f"expected training samples of {name}, found none"
            problems.append(f"fold {where} of {folds}: {expected}; {only}: {advice}, or leave out folds")
        return problems

    def _never_learnt(self, train: np.ndarray) -> Iterable[str]:
        masks = {name: mask.numpy() for name in self.inputs if (mask := self.inputs.get(f"{name}_present")) is not None}
        never = [name for name, mask in masks.items() if len(mask) == len(train) and not mask[train].any()]
        if never and train.any():
            yield f"train: expected samples that have every sensor, found none with {listed(never)}"

    def _torn(self) -> Iterable[str]:
        if self.marks is not None and self.group is not None and (shared := self.group.in_two_parts(self.marks)):
            advice = "cut them by group, or leave out split, and parts are drawn that share none"
            yield f"split: expected no group in two parts, found {len(shared)}: {listed(shared)}; {advice}"

    def _groups_per_part(self, marks: np.ndarray) -> str:
        assert self.group is not None
        counts = [len(np.unique(self.group.numbers[marks == number])) for number in range(len(PARTS))]
        return "{} train, {} validate, {} test".format(*counts)


def no_samples(name: str, problems: Iterable[str], notes: Iterable[str] = ()) -> Samples:
    """Return data of which nothing could be read, and why."""
    why = tuple(problems)
    given = Given(problems=why, drawable=False)
    return Samples(name, {}, {}, None, None, None, tuple(notes), why, given=given)

"""Samples as they were understood, and how they are cut into parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from equipoise.data.own import cutting
from equipoise.data.own.columns import Groups, Labels
from equipoise.data.splits import PARTS, Part, Splits
from equipoise.data.views import View
from equipoise.util.errors import raise_all

MOST_SHOWN = 20
UNGROUPED = "no groups are given, so samples of one person or recording may be in two parts"


@final
@dataclass(frozen=True)
class Cut:
    """The part of each sample.

    Args:
        marks: 0, 1 or 2, [N]; None where there is none to tell.
        about: One line on how the parts were drawn.
        problems: What is wrong with them.
    """

    marks: np.ndarray | None
    about: str = ""
    problems: tuple[str, ...] = ()


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """Arrays as they were understood, before they are cut.

    Args:
        name: What the data is called.
        inputs: The modalities that could be read, and lengths of those with ragged time.
        views: What makes the input of an encoder out of a modality as it is stored.
        label: The classes; None where they could not be read.
        marks: The part of each sample as it was given; None where it was not.
        group: Who each sample comes from; None where nobody said.
        notes: What was done to the arrays.
        problems: What is wrong with them.
        called: What messages call each sample; its number, from 0, where this is None.
        whole: The modalities whose numbers are whole ones.
    """

    name: str
    inputs: dict[str, Tensor]
    views: dict[str, View]
    label: Labels | None
    marks: np.ndarray | None
    group: Groups | None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    called: Sequence[str] | None = None
    whole: frozenset[str] = frozenset()

    @property
    def folds(self) -> int:
        """How many folds can be made. Parts that were given without groups are not torn apart for that."""
        if self.label is None or (self.marks is not None and self.group is None):
            return 0
        return cutting.folds_of(len(self.label.numbers), None if self.group is None else len(self.group.names))

    def splits(
        self, fold: int | None = None, seed: int = 0, *, standardise: bool = True, tokens: Collection[str] = ()
    ) -> Splits:
        """The parts, or one message with everything that is wrong.

        Args:
            fold: Which fold; None for the one cut.
            seed: Of the drawing.
            standardise: Whether channels are shifted and scaled.
            tokens: Modalities that hold token numbers, which are not.
        """
        cut = self.cut(fold, seed)
        refuse(self.name, [*self.problems, *cut.problems, *self.no_tokens(tokens)])
        parts = self.parts(cut, tokens)
        assert self.label is not None
        about = "; ".join([cut.about, *self.notes])
        made = Splits(self.name, parts["train"], parts["validation"], parts["test"], self.label.classes, about)
        return made.standardised() if standardise else made

    def no_tokens(self, tokens: Collection[str]) -> Iterable[str]:
        """What is wrong with the modalities that are to be read as token numbers."""
        for name in sorted({*tokens} - self.whole):
            there = "numbers of another kind" if name in self.inputs else "no such modality"
            yield f"{name}: expected token numbers, whole ones [N, T], found {there}; store integers, padded with 0"
        for name in sorted({*tokens} & self.whole):
            if (self.inputs[name] < 0).any():
                yield f"{name}: expected token numbers from 0 on, found {int(self.inputs[name].min())}; pad with 0"

    def parts(self, cut: Cut, tokens: Collection[str] = ()) -> dict[str, Part]:
        """What can be told of the parts, with the modalities that have a row for every label."""
        if cut.marks is None or self.label is None:
            return {}
        label = torch.from_numpy(self.label.numbers)
        kept = {name: array.long() if name in tokens else array for name, array in self.inputs.items()}
        fitting = {name: array for name, array in kept.items() if len(array) == len(label)}
        whole = Part(fitting, label, self._group_numbers(), views={n: v for n, v in self.views.items() if n in fitting})
        return {part: whole.take(torch.from_numpy(cut.marks == number)) for number, part in enumerate(PARTS)}

    def cut(self, fold: int | None = None, seed: int = 0) -> Cut:
        """Say which part each sample belongs to."""
        if len({len(column) for column in self._columns()}) > 1:
            return Cut(None)
        if self.label is None:
            return Cut(None, problems=() if self.marks is None else tuple(self._torn(self.marks)))
        label, group = self.label.numbers, None if self.group is None else self.group.numbers
        if fold is not None:
            cut = self._fold(label, group, fold, seed)
        elif self.marks is not None:
            cut = self._given(label, group, self.marks, seed)
        elif self.group is None:
            cut = Cut(cutting.draw(label, None, seed), f"drawn at random within each class (seed {seed}); {UNGROUPED}")
        elif (count := len(self.group.names)) < len(PARTS):
            return Cut(None, problems=(f"group: expected three groups or more to draw parts from, found {count}",))
        else:
            marks = cutting.draw(label, group, seed)
            cut = Cut(marks, f"drawn by group (seed {seed}), no group in two parts: {self._groups_per_part(marks)}")
        return replace(cut, problems=(*cut.problems, *self._missing(cut)))

    def _given(self, label: np.ndarray, group: np.ndarray | None, marks: np.ndarray, seed: int) -> Cut:
        problems, about = tuple(self._torn(marks)), "parts as given"
        train = marks == cutting.TRAIN
        if not (marks == cutting.VALIDATION).any() and train.any():
            held = cutting.hold_out(label[train], None if group is None else group[train], seed)
            marks = marks.copy()
            marks[np.flatnonzero(train)[held]] = cutting.VALIDATION
            how = "within each class" if group is None else "by group"
            about += (
                f", and no validation samples among them: a quarter of the training samples drawn {how} (seed {seed})"
            )
        return Cut(marks, about, problems)

    def _fold(self, label: np.ndarray, group: np.ndarray | None, fold: int, seed: int) -> Cut:
        if self.folds == 0:
            why = "parts were given without groups" if self.group is None else "there are fewer than three groups"
            return Cut(None, problems=(f"fold: expected data that can be cut into folds, but {why}; give group",))
        if not 0 <= fold < self.folds:
            return Cut(None, problems=(f"fold: expected 0 to {self.folds - 1}, found {fold}",))
        marks = cutting.draw_fold(label, group, fold, self.folds, seed)
        how = f"within each class; {UNGROUPED}" if group is None else f"by group: {self._groups_per_part(marks)}"
        unused = "" if self.marks is None else "; the parts that were given are not used"
        return Cut(marks, f"fold {fold} of {self.folds} (seed {seed}), drawn {how}{unused}")

    def _torn(self, marks: np.ndarray) -> Iterable[str]:
        if self.group is not None and (shared := self.group.in_two_parts(marks)):
            yield (
                f"split: expected no group in two parts, found {len(shared)}: {_listed(shared)}; cut them by group, or "
                "leave out split, and parts are drawn that share none"
            )

    def _missing(self, cut: Cut) -> Iterable[str]:
        """Parts without samples, and classes that cannot be learnt."""
        if cut.marks is None or self.label is None:
            return
        for number, part in enumerate(PARTS):
            if not (cut.marks == number).any():
                yield f"{part}: expected at least one sample, found none"
        learnt = set(self.label.numbers[cut.marks == cutting.TRAIN].tolist())
        absent = [name for number, name in enumerate(self.label.classes) if number not in learnt]
        if absent and learnt:
            yield f"train: expected samples of every class, found none of {_listed(absent)}"

    def _columns(self) -> list[np.ndarray]:
        told = (self.label and self.label.numbers, self.marks, self.group and self.group.numbers)
        return [column for column in told if column is not None]

    def _groups_per_part(self, marks: np.ndarray) -> str:
        assert self.group is not None
        counts = [len(np.unique(self.group.numbers[marks == number])) for number in range(len(PARTS))]
        return "{} train, {} validate, {} test".format(*counts)

    def _group_numbers(self) -> Tensor | None:
        """Groups as tensors know them: people that have numbers keep them."""
        if self.group is None:
            return None
        names = np.array(self.group.names)
        return torch.from_numpy(names[self.group.numbers] if names.dtype.kind in "iu" else self.group.numbers).long()


def refuse(name: str, problems: Sequence[str]) -> None:
    """Raise one message with the problems, if there are any; of very many, the first."""
    left = len(problems) - MOST_SHOWN
    more = [f"… and {left} more; all of them: equipoise check --data …"] if left > 1 else problems[MOST_SHOWN:]
    raise_all([*problems[:MOST_SHOWN], *more], f"data {name!r} cannot be trained on:")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_SHOWN]) + (f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else "")

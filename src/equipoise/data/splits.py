"""Data cut into training, validation and test parts that share no group, with a fingerprint to tell them by."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

PARTS = ("train", "validation", "test")


@final
@dataclass(frozen=True)
class Part:
    """Some samples: one tensor per modality, their labels, and who they come from.

    Args:
        inputs: Per modality a tensor [N, …].
        label: Classes, [N].
        group: Person, speaker or video of each sample, [N]; None where there are none.
    """

    inputs: dict[str, Tensor]
    label: Tensor
    group: Tensor | None = None

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: Tensor) -> Part:
        """The samples of these rows."""
        group = None if self.group is None else self.group[rows]
        return Part({name: array[rows] for name, array in self.inputs.items()}, self.label[rows], group)

    def to(self, device: torch.device | str) -> Part:
        """The same samples on another device."""
        group = None if self.group is None else self.group.to(device)
        return Part({name: array.to(device) for name, array in self.inputs.items()}, self.label.to(device), group)


@final
@dataclass(frozen=True)
class Splits:
    """A data set in three parts.

    Args:
        name: What the data set is called.
        train: What models learn from.
        validation: What everything is chosen on.
        test: What is read once, at the end.
        classes: Names of the classes, in the order of the labels.
        about: One line on how the parts were drawn.
    """

    name: str
    train: Part
    validation: Part
    test: Part
    classes: tuple[str, ...]
    about: str = ""

    @property
    def modalities(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self.train.inputs)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one sample of each modality."""
        return {name: tuple(array.shape[1:]) for name, array in self.train.inputs.items()}

    @property
    def parts(self) -> dict[str, Part]:
        """The parts by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def fingerprint(self) -> str:
        """A hash of every number in every part: two runs with the same one saw the same data in the same parts."""
        digest = hashlib.sha256()
        for name, part in self.parts.items():
            digest.update(name.encode())
            columns = {**part.inputs, " label": part.label, " group": part.group}  # no modality starts with a space
            for key, array in sorted(columns.items()):
                if array is not None:
                    digest.update(f"{key} {array.dtype} {tuple(array.shape)}".encode())
                    digest.update(np.ascontiguousarray(array.cpu().numpy()).tobytes())
        return f"sha256:{digest.hexdigest()}"

    def check(self) -> Splits:
        """These splits, if a model can learn from them; otherwise one message with everything that is wrong."""
        problems = [problem for name, part in self.parts.items() for problem in self._problems_of(name, part)]
        if len(self.classes) < 2:
            problems.append(f"expected two classes or more, found {list(self.classes)}")
        missing = sorted(set(range(len(self.classes))) - set(self.train.label.tolist()))
        if missing and len(self.train):
            absent = ", ".join(self.classes[number] for number in missing)
            problems.append(f"train: expected samples of every class, found none of {absent}")
        people = {name: set(part.group.tolist()) for name, part in self.parts.items() if part.group is not None}
        for one, other in itertools.combinations(people, 2):
            if shared := sorted(people[one] & people[other]):
                problems.append(f"{one} and {other}: expected no group in both, found {shared}; cut them by group")
        if problems:
            raise ValueError(
                f"data {self.name!r} cannot be trained on:\n" + "\n".join(f"  {each}" for each in problems)
            )
        return self

    def _problems_of(self, name: str, part: Part) -> Iterable[str]:
        if len(part) == 0:
            yield f"{name}: expected at least one sample, found none"
            return
        outside = sorted(set(part.label.tolist()) - set(range(len(self.classes))))
        if outside:
            yield f"{name}: expected labels from 0 to {len(self.classes) - 1}, found {outside[:5]}"
        if set(part.inputs) != set(self.modalities):
            yield f"{name}: expected the modalities {list(self.modalities)}, found {list(part.inputs)}"
        for key, array in part.inputs.items():
            if len(array) != len(part):
                yield f"{name}, {key}: expected {len(part)} samples, one per label, found {len(array)}"
            elif tuple(array.shape[1:]) != self.shapes.get(key, tuple(array.shape[1:])):
                yield f"{name}, {key}: expected samples of shape {self.shapes[key]}, found {tuple(array.shape[1:])}"
            elif bad := int((~array.isfinite()).reshape(len(array), -1).any(dim=1).sum()):
                yield f"{name}, {key}: expected finite numbers, found NaN or infinity in {bad} of {len(part)} samples"

    def standardised(self) -> Splits:
        """Every channel shifted and scaled to mean 0 and deviation 1 on the training part."""
        statistics = {name: _statistics(array) for name, array in self.train.inputs.items()}

        def apply(part: Part) -> Part:
            inputs = {name: (array - statistics[name][0]) / statistics[name][1] for name, array in part.inputs.items()}
            return replace(part, inputs=inputs)

        return replace(self, train=apply(self.train), validation=apply(self.validation), test=apply(self.test))


def _statistics(array: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel, over samples and everything behind the channel."""
    over = [0, *range(2, array.dim())]
    mean, deviation = array.mean(dim=over, keepdim=True)[0], array.std(dim=over, keepdim=True)[0]
    return mean, torch.where(deviation == 0, 1.0, deviation)


def split_by_group(
    inputs: Mapping[str, Tensor],
    label: Tensor,
    group: Tensor,
    where: Mapping[str, Sequence[int]],
) -> dict[str, Part]:
    """Cut samples into parts by the group they belong to.

    Args:
        inputs: Per modality a tensor [N, …].
        label: Classes, [N].
        group: The group of each sample, [N].
        where: The groups of each part, no group in two of them.
    """
    named = [number for part in PARTS for number in where[part]]
    twice = sorted({number for number in named if named.count(number) > 1})
    if twice:
        msg = f"groups {twice} are in two parts; every group belongs to one"
        raise ValueError(msg)
    whole = Part(dict(inputs), label, group)
    return {part: whole.take(torch.isin(group, torch.tensor(list(where[part])))) for part in PARTS}

"""Data cut into training, validation and test parts that share no group, with a fingerprint to tell them by."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor

from equipoise.data.own.arrays import read_samples
from equipoise.data.own.draw import PARTS
from equipoise.data.own.labels import Labels, training_problems
from equipoise.data.own.recordings import Recording
from equipoise.data.own.samples import Samples
from equipoise.data.own.windows import LabelAt, samples_of_recordings
from equipoise.data.part import PRESENT, Part, channel_statistics, is_beside
from equipoise.models.encoders import real_steps
from equipoise.models.metrics import judged
from equipoise.models.task import Classification, MultiLabel, Regression, Task
from equipoise.util.errors import raise_all

MOST_SHOWN = 20  # problems in one message


@final
@dataclass(frozen=True)
class Splits:
    """A data set in three parts.

    Args:
        name: The name of the data set.
        train: The samples that models learn from.
        validation: The samples that everything is chosen on.
        test: The samples that are read once, at the end.
        classes: Names of the classes in the order of the labels; of the labels of a multi-label task; or of the
            columns of a regression's target.
        about: One line on how the parts were drawn.
        source: Fingerprint of the prepared data the parts were cut from, whose numbers were checked then; "" where the
            parts hold all there is.
        protocol: Name of the way the parts were drawn; "" where there is one only.
        selects_on_test: Whether that is a published way which chooses on the samples it reports.
        scales: Mean and deviation of each modality's channels by which `standardised` scaled them, for deployment.
        task: The task; None for classification. Of two classes the rarer one of all parts becomes its `positive`, where
            it has none; of two that are as frequent, the second.
        groups: Names of the groups, by their numbers in the parts; empty where groups are numbers themselves.
        ids: Names of the samples, by their numbers in the data (`Part.index`); empty where they have none.
    """

    name: str
    train: Part
    validation: Part
    test: Part
    classes: tuple[str, ...]
    about: str = ""
    source: str = ""
    protocol: str = ""
    selects_on_test: bool = False
    scales: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict, kw_only=True)
    task: Task = field(default=cast("Task", None), kw_only=True)
    groups: tuple[str, ...] = field(default=(), kw_only=True)
    ids: tuple[Any, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if self.task is None:
            object.__setattr__(self, "task", Classification(self.classes))
        if self.task.kind == "classes" and self.task.size == 2 and self.task.positive is None:
            # Of all parts, so that it is the same in every fold.
            first, second = (sum(int((part.label == at).sum()) for part in self.parts.values()) for at in range(2))
            object.__setattr__(self, "task", judged(self.task, self.task.names[int(second <= first)]))

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, Any],
        label: Any,
        *,
        split: Any = None,
        group: Any = None,
        classes: Sequence[str] | None = None,
        name: str = "own data",
        lengths: Mapping[str, Any] | None = None,
        seed: int = 0,
        fold: int | None = None,
        standardise: bool = True,
        tokens: Collection[str] = (),
        space: Collection[str] = (),
        folds: int | None = None,
        task: str = "auto",
    ) -> Splits:
        """Cut arrays of your own into training, validation and test parts.

        Args:
            arrays: Per modality an array or tensor with samples first, [N, D], [N, C, T], [N, C, H, W] or
                [N, C, T, H, W]; or N arrays [C, T_i], which are padded and masked. Beside "imu", "imu_length" may hold
                its lengths, and "imu_present" which samples have it; a sample that is all NaN, or None in a list, lacks
                it too. "id" may hold names of the samples, no two the same; answers are given under them.
            label: The answer of each sample. Classes: whole numbers, names or truth values, [N]. Numbers: floats, [N]
                or [N, D]. Several labels: 0 and 1 for each, [N, L].
            split: The part of each sample: train, validation (val, valid) and test, or 0, 1, 2. Without validation
                samples, a quarter of the training samples becomes that.
            group: Person, speaker or recording of each sample, numbers or names. Without `split`, parts are drawn that
                share no group, about 60, 20 and 20 % of the samples, the classes as even as can be; without both, parts
                are drawn within each class.
            classes: Names of the classes, in the order of the labels; or of the columns of `label`.
            name: The name of the data in tables.
            lengths: How many steps of each sample are real, per modality.
            seed: Of the drawing.
            fold: Test on this one of the `folds`, validate on the next one that training can spare.
            standardise: Shift and scale every channel by the statistics of the training part.
            tokens: Modalities that hold token numbers, [N, T]: they stay the whole numbers they are.
            space: Modalities whose last axis is not time, such as the beams of a lidar or the bins of a spectrum,
                [N, C, bins]: "delayed" is not among the faults that are tried on them.
            folds: How many folds there are, three or more; None for five, or as many as there are groups, if fewer.
            task: "classes", "regression" or "labels", where the label does not say it: whole numbers to predict as
                numbers, or classes stored as floats.

        Raises:
            BadInput: With everything that is wrong.

        Example:
            >>> imu, sound = np.zeros((20, 3, 50)), np.ones((20, 8))
            >>> person = np.arange(20) // 4
            >>> Splits.from_arrays({"imu": imu, "sound": sound}, ["walk", "run"] * 10, group=person).shapes
            {'imu': (3, 50), 'sound': (8,)}
        """
        samples = read_samples(
            arrays,
            label,
            split=split,
            group=group,
            classes=classes,
            name=name,
            lengths=lengths or {},
            space=space,
            task=task,
        )
        return cls.from_samples(samples, fold, seed, standardise=standardise, tokens=tokens, folds=folds)

    @classmethod
    def from_recordings(
        cls,
        recordings: Iterable[Recording],
        *,
        window: str | float,
        stride: str | float | None = None,
        label_at: LabelAt = "auto",
        classes: Sequence[str] | None = None,
        name: str = "own data",
        seed: int = 0,
        fold: int | None = None,
        standardise: bool = True,
        space: Iterable[str] = (),
        folds: int | None = None,
        task: str = "auto",
    ) -> Splits:
        """Cut long recordings into windows, and these into training, validation and test parts.

        Every window of a sensor has round(window · rate) steps, whatever the rates of the other sensors. No window
        crosses two recordings, and all windows of a recording, and of a group, are in one part.

        Args:
            recordings: One per person, drive or session.
            window: The length of a sample: "2s", "500ms", "1min", or a number of seconds.
            stride: From the start of a window to that of the next, in the same form; a window where None.
            label_at: The label of a window: "majority", that which covers most of it, half at least; "mean" over the
                part of it that has a label, half at least; "end", the label at its end. "auto" takes the mean of
                floating-point numbers and the majority of anything else. Windows without a label are left out.
            classes: As for `from_arrays`, like all that follow.
            name: The name of the data in tables.
            seed: Of the drawing.
            fold: Test on this one of the `folds`, validate on the next one that training can spare.
            standardise: Shift and scale every channel by the statistics of the training part.
            space: Sensors whose last axis is not time.
            folds: How many folds there are.
            task: "classes", "regression" or "labels", where the label does not say it; numbers to predict are averaged.

        Raises:
            BadInput: With everything that is wrong.

        Example:
            >>> person = lambda: Recording(
            ...     {"imu": np.random.rand(3, 1000), "radar": np.random.rand(400)},
            ...     labels=[(0, 10, "walk"), (10, 20, "run")],
            ...     rates={"imu": 50, "radar": 20},
            ... )
            >>> Splits.from_recordings([person() for _ in range(5)], window="2s", stride="1s").shapes
            {'imu': (3, 100), 'radar': (1, 40)}
        """
        if label_at == "auto" and task == "regression":
            label_at = "mean"
        how: dict[str, Any] = {"window": window, "stride": stride, "label_at": label_at}
        samples = samples_of_recordings(recordings, **how, classes=classes, name=name, task=task, space=space)
        return cls.from_samples(samples, fold, seed, standardise=standardise, folds=folds)

    @classmethod
    def from_samples(
        cls,
        samples: Samples,
        fold: int | None = None,
        seed: int = 0,
        *,
        standardise: bool = True,
        tokens: Collection[str] = (),
        folds: int | None = None,
        tested: bool = True,
    ) -> Splits:
        """Divide samples into parts, or raise one message with everything that is wrong; see `from_arrays`.

        Without a test part (`tested=False`) the validation part stands in its place.
        """
        assignment = samples.assign(fold, seed, folds, tested=tested)
        problems = [*samples.problems, *assignment.problems, *samples.token_problems(tokens)]
        left = len(problems) - MOST_SHOWN
        more = [f"… and {left} more; all of them: equipoise check --data …"] if left > 1 else problems[MOST_SHOWN:]
        raise_all([*problems[:MOST_SHOWN], *more], f"data {samples.name!r} cannot be trained on:")
        parts = parts_of(samples, assignment.marks, tokens)
        assert samples.label is not None
        about = "; ".join([assignment.about, *samples.notes, *samples.label.warnings])
        train, validation, test = (parts[name] for name in (PARTS if tested else (*PARTS[:2], PARTS[1])))
        task = _task(samples.label, train.label)
        named = samples.group is not None and not samples.group.are_numbers
        groups = tuple(map(str, samples.group.names)) if samples.group is not None and named else ()
        splits = cls(
            samples.name, train, validation, test, samples.label.names, about, task=task, groups=groups, ids=samples.ids
        )
        return splits.standardised() if standardise else splits

    @property
    def modalities(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self._stored_shapes)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of one input of each modality, as its encoder reads it."""
        views = self.train.views
        return {name: views[name].shape(one) if name in views else one for name, one in self._stored_shapes.items()}

    @property
    def _stored_shapes(self) -> dict[str, tuple[int, ...]]:
        arrays = self.train.inputs
        return {name: tuple(array.shape[1:]) for name, array in arrays.items() if not is_beside(name, arrays)}

    @property
    def parts(self) -> dict[str, Part]:
        """The parts by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def fingerprint(self) -> str:
        """Return a hash of every number in every part: runs with the same one saw the same data in the same parts."""
        digest = hashlib.sha256(self.source.encode())
        for name, part in self.parts.items():
            digest.update(name.encode())
            inputs = {} if self.source else part.in_memory().inputs  # what was prepared has a fingerprint already
            own = {" label": part.label, " group": part.group, " rows": part.rows if self.source else None}
            columns = {**inputs, **own}  # no modality starts with a space
            for key, array in sorted(columns.items()):
                if array is not None:
                    digest.update(f"{key} {array.dtype} {tuple(array.shape)}".encode())
                    digest.update(np.ascontiguousarray(array.cpu().numpy()).tobytes())
        return f"sha256:{digest.hexdigest()}"

    def check(self) -> Splits:
        """Return these splits if a model can learn from them; otherwise raise one message with all problems."""
        problems = [problem for name, part in self.parts.items() for problem in self._problems_of(name, part)]
        if self.task.kind == "classes" and len(self.classes) < 2:
            problems.append(f"expected two classes or more, found {list(self.classes)}")
        problems += training_problems(self.task.kind, self.classes, self.train.label.cpu().numpy())
        groups = {name: set(part.group.tolist()) for name, part in self.parts.items() if part.group is not None}
        for one, other in itertools.combinations(groups, 2):
            shared = sorted(groups[one] & groups[other])
            if shared and not (self.selects_on_test and one == "validation"):
                problems.append(f"{one} and {other}: expected no group in both, found {shared}; cut them by group")
        raise_all(problems, f"data {self.name!r} cannot be trained on:")
        return self

    def _problems_of(self, name: str, part: Part) -> Iterable[str]:
        if len(part) == 0:
            yield f"{name}: expected at least one sample, found none"
            return
        yield from (f"{name}: {problem}" for problem in self._label_problems(part.label))
        arrays, known = ([key for key in one.inputs if not key.endswith(PRESENT)] for one in (part, self.train))
        if set(arrays) != set(known):
            yield f"{name}: expected the arrays {known}, found {arrays}"
        if name == "train" and (never := [key for key, mask in part.present.items() if not mask.any()]):
            yield f"train: expected samples that have every sensor, found none with {', '.join(never)}"
        shapes = self._stored_shapes
        for key, array in part.inputs.items():
            if len(array) != len(part) and part.rows is None:
                yield f"{name}, {key}: expected {len(part)} samples, one per label, found {len(array)}"
            elif tuple(array.shape[1:]) != shapes.get(key, tuple(array.shape[1:])):
                yield f"{name}, {key}: expected samples of shape {shapes[key]}, found {tuple(array.shape[1:])}"
            elif self.source or not array.is_floating_point():
                continue
            elif bad := int((~array.isfinite()).reshape(len(array), -1).any(dim=1).sum()):
                yield f"{name}, {key}: expected finite numbers, found NaN or infinity in {bad} of {len(part)} samples"

    def _label_problems(self, label: Tensor) -> Iterable[str]:
        count = len(self.classes)
        if self.task.kind == "classes":
            if outside := sorted(set(label.tolist()) - set(range(count))):
                yield f"expected labels from 0 to {count - 1}, found {outside[:5]}"
        elif tuple(label.shape) != (len(label), count) or not label.is_floating_point():
            found = f"{label.dtype} of shape {list(label.shape)}"
            yield f"expected floats as labels, {count} for each of {len(label)} samples, found {found}"
        elif bad := int((~label.isfinite()).any(dim=1).sum()):
            yield f"expected finite numbers as labels, found NaN or infinity in {bad} of {len(label)} samples"
        elif self.task.kind == "labels" and not bool(((label == 0) | (label == 1)).all()):
            yield f"expected labels of 0 and 1, found {label.min():g} to {label.max():g}"

    def standardised(self) -> Splits:
        """Return splits whose channels are shifted and scaled to mean 0 and deviation 1 on the training part.

        Padding behind the end of a ragged series has no say in it, and stays zero, as do samples that lack a modality.
        Whole numbers stay as they are.
        """
        arrays = self.train.inputs
        plain = [name for name in self.modalities if name not in self.train.views and arrays[name].is_floating_point()]
        statistics = {name: channel_statistics(name, self.train) for name in plain}

        def apply(part: Part) -> Part:
            inputs = dict(part.inputs)
            for name, (mean, deviation) in statistics.items():
                scaled = (part.inputs[name] - mean) / deviation
                lengths = part.inputs.get(f"{name}_length")
                scaled = scaled if lengths is None else scaled.where(real_steps(lengths, scaled, 2), 0)
                if name in part.present:
                    scaled[~part.present[name]] = 0
                inputs[name] = scaled
            return replace(part, inputs=inputs)

        parts = {name: apply(part) for name, part in self.parts.items()}
        return replace(self, **parts, scales=statistics)


def _task(label: Labels, train: Tensor) -> Task:
    """Return the task of labels; numbers are scaled by those of the training part."""
    if label.kind == "regression":
        deviation, mean = torch.std_mean(train.double(), dim=0)
        ranges = torch.stack(torch.aminmax(train, dim=0), dim=1).tolist() if len(train) else None
        return Regression(label.names, mean, deviation, ranges=ranges)
    return MultiLabel(label.names) if label.kind == "labels" else Classification(label.names)


def parts_of(samples: Samples, marks: np.ndarray | None, tokens: Collection[str] = ()) -> dict[str, Part]:
    """Return the parts of samples, with the modalities that have a row for every label; none without marks."""
    if marks is None or samples.label is None:
        return {}
    label, group = torch.from_numpy(samples.label.values), None
    if samples.group is not None:  # groups that have numbers keep them
        numbers = samples.group.numbers
        known = np.array(samples.group.names, np.int64)[numbers] if samples.group.are_numbers else numbers
        group = torch.from_numpy(known).long()
    inputs = {
        name: array.long() if name in tokens else array
        for name, array in samples.inputs.items()
        if len(array) == len(label)
    }
    views = {name: view for name, view in samples.views.items() if name in inputs}
    whole = Part(inputs, label, group, views=views, spatial=samples.spatial, index=torch.arange(len(label)))
    return {part: whole.take(torch.from_numpy(marks == number)) for number, part in enumerate(PARTS)}


def split_by_group(
    inputs: Mapping[str, Tensor], label: Tensor, group: Tensor, where: Mapping[str, Sequence[int]]
) -> dict[str, Part]:
    """Cut samples into parts by the group they belong to.

    Args:
        inputs: Per modality a tensor [N, …].
        label: Classes, [N].
        group: The group of each sample, [N].
        where: The groups of each part, no group in two of them.
    """
    named = [number for part in PARTS for number in where[part]]
    if twice := sorted({number for number in named if named.count(number) > 1}):
        msg = f"groups {twice} are in two parts; every group belongs to one"
        raise ValueError(msg)
    whole = Part(dict(inputs), label, group, index=torch.arange(len(label)))
    return {part: whole.take(torch.isin(group, torch.tensor(list(where[part])))) for part in PARTS}

"""Checking a data set before anything is trained on it: all that is wrong, all that is odd, and what there is."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from equipoise.data.own.arrays import COLOURS
from equipoise.data.own.columns import NAMED, counted
from equipoise.data.own.draw import PARTS
from equipoise.data.own.samples import MANY, UNGROUPED, Samples
from equipoise.data.part import Part, is_beside
from equipoise.data.source import data_set, is_file, mark_task, samples_of
from equipoise.data.splits import Splits, parts_of
from equipoise.models.task import TaskKind
from equipoise.util.errors import BadInput

FEW = 50  # samples: one more or less moves the accuracy by two points
UNEVEN = 10  # times as many samples of one class as of another
LONG = 4096  # numbers: what is so long is rarely a vector
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
OUTSIDE = 0.05  # of a part's numbers beyond the range of training that are worth a word
GLANCE = 4096  # bytes from the middle of a sample that tell most samples apart


@final
@dataclass(frozen=True)
class ModalitySummary:
    """The shape and numbers of a modality.

    Args:
        shape: Of one input, as its encoder reads it.
        lengths: The shortest and the longest training sample, where time is ragged; None where it is not.
        numbers: What is done to them before an encoder reads them.
        missing: The samples of each part that lack it; empty where none does.
    """

    shape: tuple[int, ...]
    lengths: tuple[int, int] | None = None
    numbers: str = ""
    missing: dict[str, int] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class NumberSummary:
    """The numbers of one column of the label in one part.

    Args:
        least: The smallest.
        most: The largest.
        mean: Their mean.
        deviation: Their deviation.
        quantiles: At 5, 25, 50, 75 and 95 %.
    """

    least: float
    most: float
    mean: float
    deviation: float
    quantiles: tuple[float, ...]


@final
@dataclass
class DataReport:
    """The result of checking a data set.

    Args:
        data: The name of the data set.
        about: How its parts were drawn.
        errors: What has to be put right: the data would be refused, or its numbers could not be trusted.
        warnings: What is odd.
        samples: Samples of each part.
        groups: Groups of each part; empty where there are none.
        task: The task that its labels are for; "" where they could not be read.
        classes: Per class the samples of each part; of several labels, per label the samples that have it.
        numbers: Per column of numbers what there is in each part.
        baseline: What a model scores that reads no sensor, in words.
        modalities: Shape and numbers of each.
    """

    data: str
    about: str = ""
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    samples: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    task: str = ""
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    numbers: dict[str, dict[str, NumberSummary]] = field(default_factory=dict)
    baseline: str = ""
    modalities: dict[str, ModalitySummary] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def check_data(text: str, split: str | None = None, tokens: Collection[str] = (), task: str = "auto") -> DataReport:
    """Check the data that a text means; what is wrong with it is reported, not raised.

    Args:
        text: As for ``--data``.
        split: The protocol by which prepared data is cut.
        tokens: Modalities of a file whose encoders read token numbers.
        task: What the labels are; "auto" to see it from them.

    Raises:
        BadInput: If there is no such data.
    """
    report = DataReport(text)
    try:
        source = mark_task(data_set(text, split), [task])
        report.data = source.name
        if is_file(text):
            _check_samples(samples_of(text).for_task(task), report, tokens)
        else:
            _check_splits(source.load(None), report)
    except BadInput as problem:
        if not Path(text).exists():
            raise
        report.errors += [line.strip() for line in str(problem).splitlines() if not line.endswith(":")]
    if not sum(report.samples.values()) and not report.errors:
        report.errors.append("expected samples, found none")
    return report


def _check_samples(samples: Samples, report: DataReport, tokens: Collection[str]) -> None:
    assignment = samples.assign()
    report.about = "; ".join(filter(None, [assignment.about, *samples.notes]))
    report.errors += [*samples.problems, *assignment.problems, *samples.token_problems(tokens)]
    if assignment.marks is None or samples.label is None:
        return
    if samples.group is None:
        report.warnings.append(f"{UNGROUPED}; give group where there are persons or recordings")
    names = samples.names
    if names is None or len(names) != len(assignment.marks):
        names = [str(number) for number in range(len(assignment.marks))]
    rows = {part: np.flatnonzero(assignment.marks == number) for number, part in enumerate(PARTS)}
    parts, numbers = parts_of(samples, assignment.marks), dict.fromkeys(samples.inputs, "standardised")
    numbers |= dict.fromkeys(samples.views, "bytes, divided by 255")
    for name in samples.whole:
        least, most = (int(value) for value in samples.inputs[name].aminmax())
        numbers[name] = f"whole, {least} to {most}: {'kept, as token numbers' if name in tokens else 'standardised'}"
    report.warnings += [*samples.label.warnings, *_rare(samples)]
    _count_labels(parts, samples.label.kind, samples.label.names, report)
    _describe(parts, numbers, report)
    _compare(parts, {part: [names[row] for row in rows[part]] for part in rows}, report)


def _rare(samples: Samples) -> Iterable[str]:
    """Report classes and labels that cannot be in every part."""
    assert samples.label is not None
    group, each = (None, "sample") if samples.group is None else (samples.group.numbers, "group")
    holders = samples.label.holders() if len(samples.label.names) <= MANY else ()
    counts = {name: int(has.sum()) if group is None else len(np.unique(group[has])) for name, has in holders}
    if rare := [
        f"{name} occurs in {counted(count, each)} only" for name, count in counts.items() if 0 < count < len(PARTS)
    ]:
        shown = ", ".join(rare[:NAMED]) + (", …" if len(rare) > NAMED else "")
        advice = f"give more {each}s, or merge it with another {'label' if samples.label.kind == 'labels' else 'class'}"
        yield f"{shown}: it takes three to be in train, validation and test; {advice}"


def _check_splits(splits: Splits, report: DataReport) -> None:
    report.about = splits.about
    try:
        splits.check()
    except BadInput as problem:
        report.errors += [line.strip() for line in str(problem).splitlines()[1:]]  # below the line that names the data
    _count_labels(splits.parts, splits.task.kind, splits.classes, report)
    _describe(splits.parts, dict.fromkeys(splits.scales, "standardised"), report)
    _compare(splits.parts, {name: list(map(str, range(len(part)))) for name, part in splits.parts.items()}, report)


def _count_labels(parts: Mapping[str, Part], kind: TaskKind, names: Sequence[str], report: DataReport) -> None:
    """Say how the labels are spread over the parts, and what answers without any sensor are worth."""
    labels = {key: part.label.numpy() for key, part in parts.items()}
    report.task = kind
    if kind == "regression":
        report.numbers = {
            name: {key: _summary(label[:, at]) for key, label in labels.items() if len(label)}
            for at, name in enumerate(names)
        }
    else:
        counts = {
            key: (
                np.bincount(label, minlength=len(names)) if kind == "classes" else label.sum(axis=0).astype(int)
            ).tolist()
            for key, label in labels.items()
        }
        report.classes = {name: {key: counts[key][at] for key in parts} for at, name in enumerate(names)}
    if len(labels["train"]) and len(labels["test"]):
        report.baseline = _baseline(kind, names, labels["train"], labels["test"])


def _summary(values: np.ndarray) -> NumberSummary:
    values = values.astype(np.float64)
    middle = (float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0)
    return NumberSummary(
        float(values.min()), float(values.max()), *middle, tuple(np.quantile(values, QUANTILES).tolist())
    )


def _baseline(kind: TaskKind, names: Sequence[str], train: np.ndarray, test: np.ndarray) -> str:
    if kind == "classes":
        most = int(np.bincount(train).argmax())
        return (
            f"Always saying {names[most]}, as most of train, is right in {100 * (test == most).mean():.0f} % of test."
        )
    if kind == "labels":
        right = 100 * (test == (train.mean(axis=0) > 0.5)).mean()
        return f"Always saying what most of train have, label by label, is right in {right:.0f} % of test."
    errors = np.abs(test - np.median(train, axis=0)).mean(axis=0)
    said = [
        f"{error:.4g}" + (f" in {name}" if len(names) > 1 else "") for name, error in zip(names, errors, strict=True)
    ]
    return f"Always saying the median of train errs by {', '.join(said)} on average in test."


def _describe(parts: Mapping[str, Part], numbers: Mapping[str, str], report: DataReport) -> None:
    """Say how many samples and groups there are, and what each modality holds."""
    report.samples = {name: len(part) for name, part in parts.items()}
    report.groups = {name: len(part.group.unique()) for name, part in parts.items() if part.group is not None}
    train = parts["train"]
    for name, array in train.inputs.items():
        if is_beside(name, train.inputs):
            continue
        view, shape, lengths = train.views.get(name), tuple(array.shape[1:]), None
        steps = train.inputs.get(f"{name}_length")
        if steps is not None and len(train) and not (view is not None and view.takes_lengths):
            steps = steps if train.rows is None else steps[train.rows]
            steps = steps[train.present[name]] if name in train.present else steps
            lengths = (int(steps.min()), int(steps.max()))
        shape = shape if view is None else view.shape(shape)
        missing = {key: int((~part.present[name]).sum()) for key, part in parts.items() if name in part.present}
        report.modalities[name] = ModalitySummary(shape, lengths, numbers.get(name, "as prepared"), missing)


def _compare(parts: Mapping[str, Part], names: Mapping[str, Sequence[str]], report: DataReport) -> None:
    if parts["train"].inputs:  # without any that could be read, all samples are alike
        report.errors += _duplicates(parts, names)
    report.warnings += _oddities(parts, report)


def _duplicates(parts: Mapping[str, Part], names: Mapping[str, Sequence[str]]) -> Iterable[str]:
    """Report samples that are in two parts, found by a hash of all their numbers."""
    # A glance at the middle of each sample leaves few that have to be read whole.
    glances = {name: _hashes(part, range(len(part)), GLANCE) for name, part in parts.items()}
    suspects = {glance for one, other in combinations(parts, 2) for glance in {*glances[one]} & {*glances[other]}}
    whole: dict[str, list[tuple[bytes, int]]] = {}
    for name, part in parts.items():
        rows = [row for row, glance in enumerate(glances[name]) if glance in suspects]
        whole[name] = list(zip(_hashes(part, rows, None), rows, strict=True))
    for one, other in combinations(parts, 2):
        known = dict(whole[one])
        pairs = [(names[one][known[digest]], names[other][row]) for digest, row in whole[other] if digest in known]
        if pairs and not _same_rows(parts[one], parts[other]):
            shown = ", ".join(f"{mine} = {theirs}" for mine, theirs in pairs[:NAMED])
            shown += ", …" if len(pairs) > NAMED else ""
            copies = f"{len(pairs)} of {other} that are in {one} too, number for number ({shown})"
            advice = "remove copies, or give all copies of a sample one group"
            yield f"{one} and {other}: expected different samples, found {copies}; {advice}"


def _same_rows(one: Part, other: Part) -> bool:
    """Return whether a published protocol uses one part twice, which is another matter than copies."""
    return one.rows is not None and other.rows is not None and torch.equal(one.rows, other.rows)


def _hashes(part: Part, rows: Iterable[int], most: int | None) -> list[bytes]:
    digests = []
    for row in rows:
        digest = hashlib.blake2b(digest_size=16)
        for _, array in sorted(part.inputs.items()):
            sample = array[row if part.rows is None else int(part.rows[row])].contiguous().numpy()
            content = sample.reshape(-1).view(np.uint8)
            start = 0 if most is None else max(0, (len(content) - most) // 2)
            digest.update(content[start : None if most is None else start + most].data)
        digests.append(digest.digest())
    return digests


def _oddities(parts: Mapping[str, Part], report: DataReport) -> Iterable[str]:
    if _same_rows(parts["validation"], parts["test"]):
        yield "validation and test are the same samples, as published: what is chosen on them is also reported on them"
    for name in PARTS[1:]:
        if 0 < (count := report.samples[name]) < FEW:
            points = f"one more that is right moves the accuracy by {100 / count:.1f} points"
            points = points if report.task == "classes" else "what is measured on them is uncertain"
            yield f"{name}: {count} samples are few; {points}. Give more, or run every fold: --folds"
        if absent := [label for label, counts in report.classes.items() if not counts[name]]:
            yield f"{name}: no samples of {', '.join(absent[:NAMED])}{', …' if len(absent) > NAMED else ''}"
        yield from _beyond(name, parts, report)
    learnt = {label: counts["train"] for label, counts in report.classes.items() if counts["train"]}
    if learnt and max(learnt.values()) > UNEVEN * min(learnt.values()):
        most, least = max(learnt, key=lambda label: learnt[label]), min(learnt, key=lambda label: learnt[label])
        counts = f"{learnt[most]} training samples of {most}, {learnt[least]} of {least}"
        if report.task == "labels":
            yield f"labels are uneven: {counts}; type class_weight=balanced"
        else:
            share = 100 * learnt[most] / sum(learnt.values())
            advice = "type class_weight=balanced metric=balanced_accuracy"
            yield f"classes are uneven: {counts}; always saying {most} is right in {share:.0f} %; {advice}"
    if len(report.modalities) == 1 and not report.errors:
        yield f"{next(iter(report.modalities))} is the only modality: there is nothing to balance; give another"
    for name, modality in report.modalities.items():
        shape, array = modality.shape, parts["train"].inputs[name]
        array = array[parts["train"].present[name]] if name in parts["train"].present else array
        if len(shape) == 1 and shape[0] > LONG:
            yield f"{name}: vectors of {shape[0]} numbers; if these are series, give them as [N, 1, {shape[0]}]"
        if turned := _turned(name, shape, files=report.data.endswith((".csv", ".parquet"))):
            yield turned
        if shape == (1,) and modality.numbers.startswith("whole"):
            advice = "if it says who a sample comes from, call it group, and if it only counts samples, leave it out"
            yield f"{name}: one whole number per sample, read as a sensor; {advice}"
        if parts["train"].rows is None and len(array) > 1 and bool((array == array[:1]).all()):
            yield f"{name}: all training samples are the same; it says nothing"


def _turned(name: str, shape: tuple[int, ...], *, files: bool) -> str:
    """Say that the axes of a sensor seem to be in another order than they are read in."""
    found, axes = "", ""
    if len(shape) == 2 and shape[0] > 4 * shape[1]:
        found = f"{shape[0]} channels of {shape[1]} steps; time comes last, so if it is the other way round"
        axes = "0, 2, 1"
    elif len(shape) == 3 and shape[2] in COLOURS and shape[0] not in COLOURS:
        found = (
            f"{shape[0]} channels of {shape[1]} × {shape[2]} pixels; colours seem to come last, and belong first: if so"
        )
        axes = "0, 3, 1, 2"
    elif len(shape) == 4 and shape[3] in COLOURS and shape[0] not in COLOURS:
        frames = f"{shape[0]} channels, {shape[1]} frames of {shape[2]} × {shape[3]} pixels"
        found, axes = f"{frames}; colours seem to come last, and belong first: if so", "0, 4, 1, 2, 3"
    elif len(shape) == 4 and shape[1] in COLOURS and shape[0] not in COLOURS:
        found = f"{shape[0]} channels and {shape[1]} frames; colours seem to come second, and belong first: if so"
        axes = "0, 2, 1, 3, 4"
    if not found:
        return ""
    each = ", ".join(str(int(axis) - 1) for axis in axes.split(", ")[1:])  # a file holds one sample or recording
    store = "its transpose" if len(shape) == 2 else f"array.transpose({each})"
    return f"{name}: {found}, {f'store in each file {store}' if files else f'give {name}.transpose({axes})'}"


def _beyond(name: str, parts: Mapping[str, Part], report: DataReport) -> Iterable[str]:
    """Report numbers of a part that lie outside of what training saw."""
    for at, (column, summaries) in enumerate(report.numbers.items()):
        if name in summaries and "train" in summaries:
            known, label = summaries["train"], parts[name].label[:, at]
            share = float(((label < known.least) | (label > known.most)).float().mean())
            if share > OUTSIDE:
                seen = f"{known.least:.4g} to {known.most:.4g}"
                advice = "models seldom answer what they never saw"
                yield f"{name}: {100 * share:.0f} % of {column} lies outside of train, {seen}; {advice}"

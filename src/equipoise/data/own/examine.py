"""Looking a data set over before anything is trained on it: all that is wrong, all that is odd, and what there is."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch

from equipoise.data.own.samples import UNGROUPED, Samples
from equipoise.data.source import data_set, is_file, samples_of
from equipoise.data.splits import PARTS, Part, Splits, is_length
from equipoise.util.errors import BadInput

FEW = 50  # samples: one more or less moves the accuracy by two points
UNEVEN = 10  # times as many samples of one class as of another
LONG = 4096  # numbers: what is so long is rarely a vector
GLANCE = 4096  # bytes from the middle of a sample that tell most samples apart
NAMED = 5


@final
@dataclass(frozen=True)
class Modality:
    """What is known of a modality.

    Args:
        shape: Of one input, as its encoder reads it.
        lengths: The shortest and the longest training sample, where time is ragged; None where it is not.
        numbers: What is done to them before an encoder reads them.
    """

    shape: tuple[int, ...]
    lengths: tuple[int, int] | None = None
    numbers: str = ""


@final
@dataclass
class Examined:
    """What was found.

    Args:
        data: What the data set is called.
        about: How its parts were drawn.
        errors: What has to be put right: the data would be refused, or its numbers could not be trusted.
        warnings: What is odd.
        samples: How many each part has.
        groups: How many groups each part has; empty where there are none.
        classes: Per class how many samples each part has.
        modalities: What there is of each.
    """

    data: str
    about: str = ""
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    samples: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    modalities: dict[str, Modality] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def examine(text: str, split: str | None = None, tokens: Collection[str] = ()) -> Examined:
    """Look over the data that a text means; what is wrong with it is told, not raised.

    Args:
        text: As for ``--data``.
        split: The protocol by which prepared data is cut.
        tokens: Modalities of a file whose encoders read token numbers.

    Raises:
        BadInput: If there is no such data.
    """
    found = Examined(text)
    try:
        source = data_set(text, split)
        found.data = source.name
        seen = _of_file(text, found, tokens) if is_file(text) else _of_splits(source.load(None), found)
    except BadInput as problem:
        if not Path(text).exists():
            raise
        found.errors += [line.strip() for line in str(problem).splitlines() if not line.endswith(":")]
        return found
    if seen.parts:
        _count(seen, found)
        found.errors += _duplicates(seen.parts, seen.names)
        found.warnings += _oddities(seen.parts, found)
    return found


class _Seen(NamedTuple):
    """What could be read: the parts, names of classes and of the samples of each part, and what is done to numbers."""

    parts: dict[str, Part]
    classes: tuple[str, ...]
    names: Mapping[str, Sequence[str]]
    done: Mapping[str, str] = {}


def _of_file(text: str, found: Examined, tokens: Collection[str]) -> _Seen:
    samples = samples_of(text)
    cut = samples.cut()
    found.about = "; ".join(filter(None, [cut.about, *samples.notes]))
    found.errors += [*samples.problems, *cut.problems, *samples.no_tokens(tokens)]
    if cut.marks is None or samples.label is None:
        return _Seen({}, (), {})
    if samples.group is None:
        found.warnings.append(f"{UNGROUPED}; give group where there are persons or recordings")
    called = samples.called or [str(number) for number in range(len(cut.marks))]
    names = {part: [called[row] for row in np.flatnonzero(cut.marks == at)] for at, part in enumerate(PARTS)}
    done = {name: _done_to(samples, name, tokens) for name in samples.inputs}
    return _Seen(samples.parts(cut), samples.label.classes, names, done)


def _done_to(samples: Samples, name: str, tokens: Collection[str]) -> str:
    if name in samples.views:
        return "bytes, divided by 255"
    if name not in samples.whole:
        return "standardised"
    least, most = (int(each) for each in samples.inputs[name].aminmax())
    return f"whole, {least} to {most}: " + ("kept, as token numbers" if name in tokens else "standardised")


def _of_splits(splits: Splits, found: Examined) -> _Seen:
    found.about = splits.about
    try:
        splits.check()
    except BadInput as problem:
        found.errors += [line.strip() for line in str(problem).splitlines()[1:]]  # below the line that names the data
    return _Seen(
        splits.parts,
        splits.classes,
        {name: [str(row) for row in range(len(part))] for name, part in splits.parts.items()},
        dict.fromkeys(splits.scales, "standardised"),
    )


def _count(seen: _Seen, found: Examined) -> None:
    parts, classes = seen.parts, seen.classes
    found.samples = {name: len(part) for name, part in parts.items()}
    counts = {name: torch.bincount(part.label, minlength=len(classes)).tolist() for name, part in parts.items()}
    found.classes = {each: {name: counts[name][at] for name in parts} for at, each in enumerate(classes)}
    found.groups = {name: len(part.group.unique()) for name, part in parts.items() if part.group is not None}
    train = parts["train"]
    for name, array in train.inputs.items():
        if is_length(name, train.inputs):
            continue
        shape = tuple(array.shape[1:])
        view = train.views.get(name)
        steps = train.inputs.get(f"{name}_length")
        if steps is not None and train.rows is not None:
            steps = steps[train.rows]
        ragged = steps is not None and len(steps) and not (view is not None and view.takes_lengths)
        lengths = (int(steps.min()), int(steps.max())) if steps is not None and ragged else None
        shape = shape if view is None else view.shape(shape)
        found.modalities[name] = Modality(shape, lengths, seen.done.get(name, "as prepared"))


def _duplicates(parts: Mapping[str, Part], names: Mapping[str, Sequence[str]]) -> Iterable[str]:
    """Samples that are in two parts, told by a hash of all their numbers."""
    # A glance at the middle of each sample leaves few that have to be read whole.
    glances = {name: _hashes(part, range(len(part)), GLANCE) for name, part in parts.items()}
    suspects = {each for one, other in combinations(parts, 2) for each in {*glances[one]} & {*glances[other]}}
    whole: dict[str, list[tuple[bytes, int]]] = {}
    for name, part in parts.items():
        rows = [row for row, glance in enumerate(glances[name]) if glance in suspects]
        whole[name] = list(zip(_hashes(part, rows, None), rows, strict=True))
    for one, other in combinations(parts, 2):
        if _same_rows(parts[one], parts[other]):
            continue
        known = dict(whole[one])
        if pairs := [(names[one][known[each]], names[other][row]) for each, row in whole[other] if each in known]:
            shown = ", ".join(f"{mine} = {theirs}" for mine, theirs in pairs[:NAMED])
            shown += ", …" if len(pairs) > NAMED else ""
            yield (
                f"{one} and {other}: expected different samples, found {len(pairs)} of {other} that are in {one} too, "
                f"number for number ({shown}); remove copies, or give all copies of a sample one group"
            )


def _same_rows(one: Part, other: Part) -> bool:
    """Whether a published protocol has one part play two roles, which is another matter than copies."""
    return one.rows is not None and other.rows is not None and torch.equal(one.rows, other.rows)


def _hashes(part: Part, rows: Iterable[int], most: int | None) -> list[bytes]:
    found = []
    for row in rows:
        digest = hashlib.blake2b(digest_size=16)
        for _, array in sorted(part.inputs.items()):
            one = array[row if part.rows is None else int(part.rows[row])].contiguous().numpy()
            content = one.reshape(-1).view(np.uint8)
            start = 0 if most is None else max(0, (len(content) - most) // 2)
            digest.update(content[start : None if most is None else start + most].data)
        found.append(digest.digest())
    return found


def _oddities(parts: Mapping[str, Part], found: Examined) -> Iterable[str]:
    if _same_rows(parts["validation"], parts["test"]):
        yield "validation and test are the same samples, as published: what is chosen on them is also reported on them"
    for name in PARTS[1:]:
        if 0 < found.samples[name] < FEW:
            yield (
                f"{name}: {found.samples[name]} samples are few; one more that is right moves the accuracy by "
                f"{100 / found.samples[name]:.1f} points. Give more, or run every fold: --folds"
            )
        if absent := [each for each, counts in found.classes.items() if not counts[name]]:
            yield f"{name}: no samples of {', '.join(absent[:NAMED])}{', …' if len(absent) > NAMED else ''}"
    learnt = {each: counts["train"] for each, counts in found.classes.items() if counts["train"]}
    if learnt and max(learnt.values()) > UNEVEN * min(learnt.values()):
        most, least = max(learnt, key=lambda each: learnt[each]), min(learnt, key=lambda each: learnt[each])
        yield (
            f"classes are uneven: {learnt[most]} training samples of {most}, {learnt[least]} of {least}; always saying "
            f"{most} is right in {100 * learnt[most] / sum(learnt.values()):.0f} %"
        )
    if len(found.modalities) == 1 and not found.errors:
        yield f"{next(iter(found.modalities))} is the only modality: there is nothing to balance; give another"
    for name, modality in found.modalities.items():
        yield from _odd_shape(name, modality.shape)
        if modality.shape == (1,) and modality.numbers.startswith("whole"):
            yield (
                f"{name}: one whole number per sample, read as a sensor; if it says who a sample comes from, call it "
                "group, and if it only counts samples, leave it out"
            )
        array = parts["train"].inputs[name]
        if parts["train"].rows is None and len(array) > 1 and bool((array == array[:1]).all()):
            yield f"{name}: all training samples are the same; it says nothing"


def _odd_shape(name: str, shape: tuple[int, ...]) -> Iterable[str]:
    if len(shape) == 1 and shape[0] > LONG:
        yield f"{name}: vectors of {shape[0]} numbers; if these are series, give them as [N, 1, {shape[0]}]"
    if len(shape) == 2 and shape[0] > 4 * shape[1]:
        yield (
            f"{name}: {shape[0]} channels of {shape[1]} steps; time comes last, so if it is the other way round, give "
            f"{name}.transpose(0, 2, 1)"
        )

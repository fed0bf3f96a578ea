"""From one array per sensor, and a label, to parts that can be trained on; everything that is wrong in one message."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from equipoise.data.own.columns import read_groups, read_labels, read_marks
from equipoise.data.own.layout import as_numpy, lay_out
from equipoise.data.own.samples import Samples
from equipoise.data.splits import Splits
from equipoise.util.errors import printable

MEANT = ("labels", "y", "target", "targets", "class")
"""What labels are often called elsewhere."""
TAKEN = ("fused", "heads", "mean", "worst", "label", "split", "group", "classes")
"""What no modality may be called: outputs, summaries and columns have these names."""


def from_arrays(
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
) -> Splits:
    """Cut arrays into training, validation and test parts.

    Args:
        arrays: Per modality an array or tensor with samples first, [N, D], [N, C, T], [N, C, H, W] or [N, C, T, H, W];
            or N arrays [C, T_i], which are padded and masked. Beside "imu", "imu_length" may hold its lengths.
        label: The class of each sample: whole numbers, names or truth values.
        split: The part of each sample: train, validation (val, valid) and test, or 0, 1, 2. Without validation samples,
            a quarter of the training samples becomes that.
        group: Person, speaker or recording of each sample, numbers or names. Without `split`, parts are drawn that
            share no group, about 60, 20 and 20 % of the samples, the classes as even as can be; without both, parts are
            drawn within each class.
        classes: Names of the classes, in the order of the labels.
        name: What tables call the data.
        lengths: How many steps of each sample are real, per modality.
        seed: Of the drawing.
        fold: Test on this fold of five (as many as there are groups, if fewer), validate on the next one.
        standardise: Shift and scale every channel by the statistics of the training part.
        tokens: Modalities that hold token numbers, [N, T]: they stay the whole numbers they are.

    Raises:
        BadInput: With everything that is wrong.

    Example:
        >>> import numpy as np
        >>> imu, sound = np.zeros((20, 3, 50)), np.ones((20, 8))
        >>> from_arrays({"imu": imu, "sound": sound}, ["walk", "run"] * 10, group=np.arange(20) // 4).shapes
        {'imu': (3, 50), 'sound': (8,)}
    """
    samples = understand(arrays, label, split=split, group=group, classes=classes, name=name, lengths=lengths or {})
    return samples.splits(fold, seed, standardise=standardise, tokens=tokens)


def understand(
    arrays: Mapping[str, Any],
    label: Any,
    *,
    split: Any = None,
    group: Any = None,
    classes: Any = None,
    name: str = "own data",
    lengths: Mapping[str, Any] | None = None,
    problems: Iterable[str] = (),
    notes: Iterable[str] = (),
    samples: Sequence[str] | None = None,
) -> Samples:
    """Read everything that can be read, and write down all that is wrong.

    Args:
        arrays: As for `from_arrays`, like the next six.
        label: None where it is missing.
        split: None where it is not given.
        group: None where it is not given.
        classes: None where they have no names.
        name: What the data is called.
        lengths: Per modality, where time is ragged.
        problems: What was wrong before.
        notes: What was done before.
        samples: What messages call each sample; its number, from 0, where this is None.
    """
    problems, notes = list(problems), list(notes)
    modalities, told = _sorted_out(arrays, lengths or {}, problems)
    if not arrays and not problems:
        problems.append("expected at least one modality, found none; give {'imu': array, …}")
    laid = {key: lay_out(key, given, told.get(key), problems, samples) for key, given in modalities.items()}
    read = {key: one for key, one in laid.items() if one is not None}
    notes += [one.note for one in read.values() if one.note]
    inputs = {key: one.values for key, one in read.items()}
    inputs |= {f"{key}_length": one.lengths for key, one in read.items() if one.lengths is not None}
    found = None
    if label is not None:
        found = read_labels(label, classes, problems, samples)
    elif not any(problem.startswith("label:") for problem in problems):  # why it cannot be read may have been said
        meant = next((f"; rename {key!r}, if that is it" for key in modalities if key.lower() in MEANT), "")
        problems.append(
            f"label: expected the class of each sample, found none; give an array or a column called label{meant}"
        )
    marks = None if split is None else read_marks(split, problems, samples)
    groups = None if group is None else read_groups(group, problems, samples)
    _compare_sizes({**modalities, "label": label, "split": split, "group": group}, problems)
    views = {key: one.view for key, one in read.items() if one.view is not None}
    decides, read_it = (split, marks) if split is not None else (group, groups)
    if decides is not None and read_it is None:
        found = None  # parts would be drawn in another way than was meant
    whole = frozenset(key for key, one in read.items() if one.whole)
    return Samples(name, inputs, views, found, marks, groups, tuple(notes), tuple(problems), samples, whole)


def _name_problem(name: object) -> str:
    """Say what is wrong with the name of a modality; "" where nothing is."""
    if not isinstance(name, str) or not name.strip() or name != name.strip():
        return f"expected names without blanks around them, found {name!r}"
    if printable(name, "") != name:
        return f"expected names of letters that can be shown, found {name!r}"
    if "." in name:
        plain = name.replace(".", "_")
        return f"no modality may be called {name!r}: dots separate modules in PyTorch; rename it {plain!r}"
    if name in TAKEN:
        return f"no modality may be called {name!r}: the word has another meaning in results or in data files"
    return ""


def _sorted_out(
    arrays: Mapping[str, Any], lengths: Mapping[str, Any], problems: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Modalities apart from lengths; only names that a modality may have."""
    modalities, told = {}, dict(lengths)
    for name, given in arrays.items():
        if isinstance(name, str) and name.endswith("_length"):
            of = name.removesuffix("_length")
            if of not in arrays:
                problems.append(f"{name}: expected a modality {of!r} whose lengths these are, found none; rename it")
            else:
                told[of] = given
        elif problem := _name_problem(name):
            problems.append(problem)
        else:
            modalities[name] = given
    problems += [
        f"lengths: expected those of {list(modalities)}, found {name!r}" for name in lengths if name not in arrays
    ]
    return modalities, told


def _compare_sizes(columns: Mapping[str, Any], problems: list[str]) -> None:
    sizes = {name: _size(given) for name, given in columns.items() if given is not None}
    if len({size for size in sizes.values() if size is not None}) > 1:
        found = ", ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
        problems.append(f"expected one entry per sample in every array, found {found}")


def _size(given: Any) -> int | None:
    if isinstance(given, (list, tuple)):
        return len(given)
    array = as_numpy(given)
    return len(array) if array.ndim else None

"""Arrays as users have them, into samples whose tensors encoders read; everything that is wrong in one message.

| given | read as | encoder |
|---|---|---|
| [N], [N, D] | vectors | RegularisedMLP |
| [N, C, T], or N arrays [C, T_i] | series, time last | Inception; CNN1d below 24 steps |
| [N, C, H, W] | images | SmallResNet; CNN2d below 16 × 16 |
| [N, C, T, H, W], or N arrays [C, T_i, H, W] | frames | Video; Frames where short or small |

Numbers become 32-bit floats; which were whole is remembered, since these may be token numbers. Bytes (uint8) with three
axes or more are pictures: they stay bytes until a batch is read, and then are divided by 255; [N, H, W] is grey, and an
axis of 1, 3 or 4 colours that comes last, or after the frames, is moved to where the table has C.

A sample lacks a sensor where all its numbers are NaN, where it is None in a list, or where an array NAME_present says
so.
"""

import difflib
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.data.own.columns import as_numpy, few, first_few, read_groups, read_ids, read_marks, size_of
from equipoise.data.own.samples import Given, Samples
from equipoise.data.views import Rescaled
from equipoise.util.errors import BadInput, name_problems, printable
from equipoise.util.processes import memory_problem

LABEL_NAMES = ("labels", "y", "target", "targets", "class")
"""Names that labels often have elsewhere."""
COLOURS = (1, 3, 4)
TIME = 2  # the axis of a batch of series or frames
EXACT = 2**24  # whole numbers below it are 32-bit floats without loss
LOOKED = 10**7  # numbers that are looked through to say more of a file that is refused
FLOATS = 13  # bytes that a number takes: as a float, in a part, standardised, and whether it is finite
PICTURES = 4  # bytes that one byte of a picture takes: as it was read, moved, in a part
AXES = {2: ("number",), 3: ("channel", "step"), 4: ("channel", "row", "column")}
AXES[5] = ("channel", "frame", "row", "column")
"""Words for the axes behind the samples, by the number of all axes."""
EXPECTED = "[N, D], [N, C, T], [N, C, H, W] or [N, C, T, H, W]"


def read_samples(
    arrays: Mapping[str, Any],
    label: Any,
    *,
    split: Any = None,
    group: Any = None,
    classes: Any = None,
    name: str = "own data",
    lengths: Mapping[str, Any] | None = None,
    task: str = "auto",
    problems: Iterable[str] = (),
    notes: Iterable[str] = (),
    samples: Sequence[str] | None = None,
    space: Iterable[str] = (),
) -> Samples:
    """Read everything that can be read, and collect all that is wrong.

    Args:
        arrays: As for `Splits.from_arrays`, like the next six. One called "id" names the samples.
        label: None where it is missing.
        split: None where it is not given.
        group: None where it is not given.
        classes: None where they have no names.
        name: The name of the data.
        lengths: Per modality, where time is ragged.
        task: What the labels are, see `read_labels`.
        problems: What was wrong before.
        notes: What was done before.
        samples: Names of the samples in messages; their numbers, from 0, where this is None.
        space: Modalities whose last axis is not time, beside those of which an array "NAME_axis" says so.
    """
    problems, notes = list(problems), list(notes)
    spatial, arrays = _spatial(arrays, space, problems)
    given_ids = arrays.pop("id", None)

    def attempt(read: Callable[..., Any], *given: Any) -> Any:
        try:
            return None if given[0] is None else read(*given)
        except BadInput as problem:
            problems.append(str(problem))

    ids = attempt(read_ids, given_ids) or ()
    samples = samples or list(map(str, ids)) or None

    modalities, given_lengths, given_present = _modalities(arrays, lengths or {}, problems)
    if not arrays and not problems:
        problems.append("expected at least one modality, found none; give {'imu': array, …}")
    read: dict[str, Modality] = {
        key: modality
        for key, given in modalities.items()
        if (modality := attempt(read_modality, key, given, given_lengths.get(key), given_present.get(key), samples))
        is not None
    }
    inputs = {key: modality.values for key, modality in read.items()}
    inputs |= {f"{key}_length": one.lengths for key, one in read.items() if one.lengths is not None}
    inputs |= {f"{key}_present": one.present for key, one in read.items() if one.present is not None}
    if label is None and not any(problem.startswith("label:") for problem in problems):  # the reason may be there
        rename = next((f"; rename {key!r}, if that is it" for key in modalities if key.lower() in LABEL_NAMES), "")
        expected = "label: expected the answer of each sample, found none; give an array or a column called label"
        problems.append(expected + rename)
    marks, groups = attempt(read_marks, split, samples), attempt(read_groups, group, samples)
    columns = {**modalities, "label": label, "split": split, "group": group, "id": given_ids}
    sizes = {key: size for key, given in columns.items() if (size := size_of(given)) is not None}
    if len({*sizes.values()}) > 1:
        found = ", ".join(f"{key} {size}" for key, size in sizes.items())
        problems.append(f"expected one entry per sample in every array, found {found}")
    if silent := _without_sensors(modalities, read):
        count = f"{len(silent)} of {size_of(next(iter(modalities.values())))} ({first_few(silent, samples)})"
        problems.append(f"expected at least one sensor in every sample, found none in {count}; leave them out")
    decisive, column = (split, marks) if split is not None else (group, groups)
    drawable = decisive is None or column is not None  # else parts would be drawn in another way than was meant
    notes += [modality.note for modality in read.values() if modality.note]
    views = {key: Rescaled(1 / 255) for key, modality in read.items() if modality.values.dtype == torch.uint8}
    whole = frozenset(key for key, modality in read.items() if modality.whole)
    more: dict[str, Any] = {"whole": whole, "spatial": spatial, "ids": ids}
    more |= {"given": Given(label, classes, tuple(problems), drawable)}
    found = Samples(name, inputs, views, None, marks, groups, tuple(notes), names=samples, **more)
    return found.for_task(task)


def _spatial(
    arrays: Mapping[str, Any], space: Iterable[str], problems: list[str]
) -> tuple[frozenset[str], dict[str, Any]]:
    """Return the modalities whose last axis is not time, and the arrays without those that say so."""
    said = {name: given for name, given in arrays.items() if is_axis(name, arrays)}
    spatial = {space} if isinstance(space, str) else {*space}
    problems += [f"space: expected some of {list(arrays)}, found {name!r}" for name in sorted(spatial - {*arrays})]
    for name, given in said.items():
        words = sorted({*map(str, as_numpy(given).reshape(-1).tolist())})
        if words == ["space"]:
            spatial.add(name.removesuffix("_axis"))
        elif words != ["time"]:
            found = ", ".join(map(repr, words[:5]))
            problems.append(f"{name}: expected the word time or the word space, found {found or 'nothing'}")
    return frozenset(spatial), {name: given for name, given in arrays.items() if name not in said}


def is_axis(name: object, arrays: Container[str]) -> bool:
    """Return whether a name stands for the kind of another modality's last axis."""
    return isinstance(name, str) and name.endswith("_axis") and name.removesuffix("_axis") in arrays


def _modalities(
    arrays: Mapping[str, Any], lengths: Mapping[str, Any], problems: list[str]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Separate modalities from lengths and presence, and refuse names that no modality may have."""
    modalities: dict[str, Any] = {}
    beside: dict[str, dict[str, Any]] = {"_length": dict(lengths), "_present": {}}
    said = {"_length": "whose lengths these are", "_present": "whose samples these mark as there or missing"}
    said["_axis"] = "whose last axis this names"
    for name, given in arrays.items():
        ending = next((each for each in beside if isinstance(name, str) and name.endswith(each)), None)
        if ending is not None:
            of = name.removesuffix(ending)
            if of in arrays:
                beside[ending][of] = given
            else:
                problems.append(_ownerless(name, ending, said[ending], arrays))
        elif isinstance(name, str) and name.endswith("_axis") and _is_text(given):  # of numbers it is a sensor
            problems.append(_ownerless(name, "_axis", said["_axis"], arrays))
        elif not isinstance(name, str) or not name.strip() or name != name.strip():
            problems.append(f"expected names without blanks around them, found {name!r}")
        elif printable(name, "") != name:
            problems.append(f"expected names of letters that can be shown, found {name!r}")
        elif name == "classes":
            problems.append("No modality may be called 'classes': it holds the names of the classes in a data file.")
        elif wrong := name_problems([name]):
            problems += wrong
        else:
            modalities[name] = given
    unknown = [name for name in lengths if name not in arrays]
    problems += [f"lengths: expected those of {list(modalities)}, found {name!r}" for name in unknown]
    return modalities, beside["_length"], beside["_present"]


def _is_text(given: Any) -> bool:
    values = as_numpy(given).reshape(-1)
    return values.dtype.kind in "US" or (values.dtype == object and any(isinstance(value, str) for value in values))


def _ownerless(name: str, ending: str, said: str, arrays: Iterable[str]) -> str:
    """Say that an array belongs to a modality that is not there, and which one may be meant."""
    of = name.removesuffix(ending)
    others = [other for other in arrays if isinstance(other, str) and not other.endswith(ending)]
    near = difflib.get_close_matches(of, others, n=1)
    hint = f"did you mean {near[0]}{ending}?" if near else "rename it"
    return f"{name}: expected a modality {of!r} {said}, found none; {hint}"


def bytes_as_samples(shape: Sequence[int], dtype: np.dtype) -> int:
    """Return the bytes of memory, about, that an array takes until it is cut into parts."""
    return math.prod(shape) * (
        PICTURES if dtype == np.uint8 and len(shape) > 2 else FLOATS + max(0, dtype.itemsize - 4)
    )


class Modality(NamedTuple):
    """One modality, ready to be divided into parts.

    Args:
        values: Samples first, [N, …]; bytes are divided by 255 before an encoder reads them.
        lengths: How many steps of each sample are real, [N]; None where all are.
        note: What was done to the array that its owner may want to know; "" where nothing was.
        whole: Whether the numbers were whole ones, none of them too large to be a float without loss.
        present: Which samples have it, booleans [N], the others hold zeros; None where all have.
    """

    values: Tensor
    lengths: Tensor | None
    note: str
    whole: bool
    present: Tensor | None = None


def read_modality(
    name: str, given: Any, lengths: Any, present: Any = None, samples: Sequence[str] | None = None
) -> Modality:
    """Read one array of samples, or raise a `BadInput` that says what is wrong with it.

    Args:
        name: Of the modality.
        given: Samples first, or a list of them.
        lengths: How many steps of each are real; None where all are.
        present: Which samples have it; None where their numbers say so.
        samples: Names of the samples in messages; their numbers where this is None.
    """
    given, gone = _filled(name, given)
    array, steps, note = _one_array(name, given, samples, series=lengths is not None)
    if why := memory_problem(bytes_as_samples(array.shape, array.dtype)):
        raise BadInput(f"{name}: {why}")
    if lengths is not None and steps is not None:
        expected = "expected no lengths beside samples that differ in length"
        raise BadInput(f"{name}: {expected}, found both; leave them out")
    if lengths is not None:
        steps = _read_lengths(name, lengths, array)
    if steps is not None:  # zeros behind every end, whatever was there: some pad with NaN
        padding = np.arange(array.shape[TIME]) >= steps[:, None]
        array = np.where(padding[(slice(None), None, slice(None), *[None] * (array.ndim - 3))], 0, array)
    if present is not None:
        gone = gone | ~_read_present(name, present, len(array))
    picture = array.dtype == np.uint8 and array.ndim >= 4
    whole = array.dtype.kind in "iu" and steps is None and not picture and bool((np.abs(array) < EXACT).all())
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is infinite, and reported as that
        array = np.ascontiguousarray(array, dtype=np.uint8 if picture else np.float32)
    bad = np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1) & ~gone)
    blank = [
        row for row in bad.tolist() if np.isnan(array[row] if steps is None else array[row, :, : steps[row]]).all()
    ]
    gone[blank] = True
    if scattered := [row for row in bad.tolist() if not gone[row]]:
        raise BadInput(_not_finite(name, array, scattered, samples))
    if gone.all():
        raise BadInput(f"{name}: expected a sample that has it, found none; leave it out")
    if gone.any():
        array = np.where(gone.reshape(-1, *[1] * (array.ndim - 1)), array.dtype.type(0), array)
        steps = None if steps is None else np.where(gone, 1, steps)  # one step of zeros, which every encoder can read
        note = "; ".join(filter(None, [note, f"{name}: missing in {gone.sum():,} of {len(gone):,}"]))
    values = torch.from_numpy(array if array.flags.writeable else array.copy())
    ragged = steps is not None and bool((steps[~gone] < array.shape[TIME]).any())
    there = torch.from_numpy(~gone) if gone.any() else None
    return Modality(values, torch.from_numpy(steps) if ragged else None, note, whole, there)


def _filled(name: str, given: Any) -> tuple[Any, np.ndarray]:
    """Return a list of samples with another one, as zeros, in the place of each None, and which these are."""
    listed = isinstance(given, (list, tuple)) or (isinstance(given, np.ndarray) and given.dtype == object)
    if not listed and 0 in (shape := as_numpy(given).shape)[1:]:  # of which there may be any number in no memory
        raise BadInput(f"{name}: expected {EXPECTED}, found an array of shape {shape}")
    if not listed or not len(given):
        return given, np.zeros(size_of(given) or 0, bool)
    gone = np.array([row is None for row in given])
    if gone.all():
        raise BadInput(f"{name}: expected a sample that has it, found none; leave it out")
    if not gone.any():
        return given, gone
    zeros = np.zeros_like(as_numpy(given[int(gone.argmin())]))
    return [zeros if row is None else row for row in given], gone


def _read_present(name: str, given: Any, count: int) -> np.ndarray:
    marks = as_numpy(given)
    marks = marks[:, 0] if marks.ndim == 2 and marks.shape[1] == 1 else marks
    plain = marks.shape == (count,) and marks.dtype.kind in "biuf" and bool(((marks == 0) | (marks == 1)).all())
    if not plain:
        expected = f"expected true or false (1 or 0) for every sample, {count} in all"
        found = f"{_kind(marks.dtype)} of shape {marks.shape}"
        if marks.shape == (count,) and marks.dtype.kind in "iuf":
            found = f"also {few(np.unique(marks[(marks != 0) & (marks != 1)]).tolist())}"
        raise BadInput(f"{name}_present: {expected}, found {found}")
    return marks.astype(bool)


def _not_finite(name: str, array: np.ndarray, rows: list[int], samples: Sequence[str] | None) -> str:
    """Say where numbers are missing inside of samples."""
    count = f"{len(rows)} of {len(array)} samples ({first_few(rows, samples)})"
    place = np.argwhere(~np.isfinite(array[rows[0]]))[0].tolist()
    where = ", ".join(f"{word} {at}" for word, at in zip(AXES[array.ndim], place, strict=True))
    advice = "fill in what is missing, or make the whole sample NaN where the sensor was off"
    first = f"first in sample {first_few(rows[:1], samples)}, {where}"
    return f"{name}: expected finite numbers, found NaN or infinity in {count}, {first}; {advice}"


def _without_sensors(given: Mapping[str, Any], read: Mapping[str, Modality]) -> list[int]:
    """Return the samples that no modality has; those that could not be read are looked at for NaN and None."""
    masks = [
        modality.present.numpy() if modality.present is not None else np.ones(len(modality.values), bool)
        for modality in read.values()
    ]
    unread = [values for name, values in given.items() if name not in read]
    if any(isinstance(values, (np.ndarray, Tensor)) and math.prod(values.shape) > LOOKED for values in unread):
        return []  # refused for its size, perhaps
    masks += [_there(values) for values in unread]
    if not masks or len({len(mask) for mask in masks}) > 1 or not np.any(masks):
        return []
    return np.flatnonzero(~np.any(masks, axis=0)).tolist()


def _there(given: Any) -> np.ndarray:
    """Return which samples of a modality are neither None nor all NaN."""
    if isinstance(given, (list, tuple)) or (isinstance(given, np.ndarray) and given.dtype == object):
        return np.array([row is not None for row in given], bool) if size_of(given) else np.zeros(0, bool)
    array = as_numpy(given)
    if not array.size:
        return np.zeros(0, bool)
    if array.dtype.kind != "f" or not array.ndim:
        return np.ones(array.shape[:1] or 0, bool)
    return np.asarray((~np.isnan(array)).reshape(len(array), -1).any(axis=1))


def _one_array(
    name: str, given: Any, samples: Sequence[str] | None, *, series: bool
) -> tuple[np.ndarray, np.ndarray | None, str]:
    """Return the samples in one array, the lengths of those that differ in time, and a note."""
    try:
        if isinstance(given, (list, tuple)) or (isinstance(given, np.ndarray) and given.dtype == object):
            rows = [as_numpy(row) for row in given]
            if len({row.shape for row in rows}) > 1:
                return _padded(name, rows, samples)
            array = np.stack(rows) if rows else np.empty(0)
        else:
            array = as_numpy(given)
    except BadInput:
        raise
    except (ValueError, TypeError) as why:
        raise BadInput(
            f"{name}: expected an array of numbers {EXPECTED}, found what numpy cannot read: {why}"
        ) from None
    if array.dtype.kind not in "biuf":
        raise BadInput(f"{name}: expected numbers, found {_kind(array.dtype)}")
    if array.ndim == 0 or array.ndim > 5 or 0 in array.shape[1:]:
        raise BadInput(f"{name}: expected {EXPECTED}, found an array of shape {array.shape}")
    if len(array) == 0:
        raise BadInput(f"{name}: expected at least one sample, found none")
    if array.ndim == 1:
        return array[:, None], None, ""
    if array.dtype == np.uint8 and array.ndim > 2 and not (series and array.ndim == 3):
        return _colours_first(name, array)
    return array, None, ""


def _colours_first(name: str, array: np.ndarray) -> tuple[np.ndarray, None, str]:
    """Move the colours of pictures to the axis where encoders expect them."""
    before = list(array.shape)
    if array.ndim == 3:
        return array[:, None], None, f"{name}: bytes {before} are grey pictures"
    if array.shape[-1] in COLOURS:
        moved = np.moveaxis(array, -1, 1)
    elif array.ndim == 5 and array.shape[2] in COLOURS and array.shape[1] not in COLOURS:
        moved = np.moveaxis(array, 2, 1)
    else:
        return array, None, ""
    return moved, None, f"{name}: colours moved to the front, {before} → {list(moved.shape)}"


def _padded(
    name: str, rows: list[np.ndarray], samples: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray | None, str]:
    """Pad samples of different length with zeros behind their ends."""
    rows = [row[None] if row.ndim == 1 else row for row in rows]
    if all(row.dtype == np.uint8 and row.ndim == 4 for row in rows):
        rows = [_colours_first(name, row[None])[0][0] for row in rows]
    if wrong := sorted({_kind(row.dtype) for row in rows if row.dtype.kind not in "biuf"}):
        raise BadInput(f"{name}: expected numbers, found {', '.join(wrong)}")
    first, fixed = rows[0].shape, {(row.shape[:1], row.shape[2:]) for row in rows}
    if len(fixed) > 1 or len(first) not in (2, 4) or 0 in first[:1] + first[2:]:
        raise BadInput(_shapes_differ(name, rows, samples))
    lengths = np.array([row.shape[1] for row in rows])
    longest = int(lengths.max())
    if not longest:
        raise BadInput(f"{name}: expected series with at least one step, found none")
    if why := memory_problem(FLOATS * len(rows) * math.prod(first) // max(1, first[1]) * longest):
        raise BadInput(f"{name}: padded to {longest:,} steps, as its longest sample has, it {why}")
    array = np.zeros((len(rows), first[0], longest, *first[2:]), np.result_type(*{row.dtype for row in rows}))
    for number, row in enumerate(rows):
        array[number, :, : row.shape[1]] = row
    return array, lengths, f"{name}: series of {lengths.min()} to {longest} steps, padded and masked"


def _shapes_differ(name: str, rows: list[np.ndarray], samples: Sequence[str] | None) -> str:
    shapes = Counter(row.shape for row in rows)
    usual = shapes.most_common(1)[0][0]
    others = [number for number, row in enumerate(rows) if row.shape != usual]
    turned = all(row.ndim == 2 for row in rows) and len({row.shape[1] for row in rows}) == 1
    hint = "; time comes last: give each sample as its transpose" if turned else ""
    return (
        f"{name}: expected samples of one shape, or series [C, T] that differ in T only; found {usual} in "
        f"{shapes[usual]} samples and {len(shapes) - 1} other shapes, such as {rows[others[0]].shape}, in "
        f"{len(others)} ({first_few(others, samples)}){hint}"
    )


def _read_lengths(name: str, given: Any, array: np.ndarray) -> np.ndarray:
    title, lengths = f"{name}_length", as_numpy(given)
    if array.ndim not in (3, 5):
        expected = "expected lengths of series [N, C, T] or frames [N, C, T, H, W] only"
        raise BadInput(f"{title}: {expected}, found {name} of shape {array.shape}; leave them out")
    if lengths.shape != array.shape[:1] or lengths.dtype.kind not in "iu":
        expected = f"expected one whole number per sample, {len(array)} in all"
        raise BadInput(f"{title}: {expected}, found {_kind(lengths.dtype)} of shape {lengths.shape}")
    if lengths.min() < 0 or lengths.max() > array.shape[TIME]:
        found = f"found {lengths.min()} to {lengths.max()}"
        raise BadInput(f"{title}: expected lengths from 0 to {array.shape[TIME]}, {found}")
    return lengths.astype(np.int64)


def _kind(dtype: np.dtype) -> str:
    """Return the kind of values an array holds, in words."""
    words = {"U": "text", "S": "bytes of text", "O": "objects", "V": "records", "M": "dates", "m": "times"}
    return words.get(dtype.kind, f"{dtype} numbers" if dtype.kind in "biufc" else str(dtype))

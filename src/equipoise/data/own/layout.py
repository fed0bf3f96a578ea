"""Arrays as users have them, into tensors as encoders read them, by rules that are stated.

| given | read as | encoder |
|---|---|---|
| [N], [N, D] | vectors | MLP |
| [N, C, T], or N arrays [C, T_i] | series, time last | CNN1d |
| [N, C, H, W] | images | CNN2d |
| [N, C, T, H, W], or N arrays [C, T_i, H, W] | frames | Frames |

Numbers become 32-bit floats; which were whole is remembered, since these may be token numbers. Bytes (uint8) with three
axes or more are pictures: they stay bytes until a batch is read, and then are divided by 255; [N, H, W] is grey, and an
axis of 1, 3 or 4 colours that comes last, or after the frames, is moved to where the table has C.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from equipoise.data.views import Rescaled, View
from equipoise.util.processes import memory_problem

COLOURS = (1, 3, 4)
TIME = 2  # the axis of a batch of series or frames
EXACT = 2**24  # whole numbers below it are 32-bit floats without loss
FLOATS = 9  # bytes that a number takes while it is laid out: as a float, as one in a part, and whether it is finite
NAMED = 5  # of many wrong samples, so many are named
EXPECTED = "[N, D], [N, C, T], [N, C, H, W] or [N, C, T, H, W]"


@final
@dataclass(frozen=True)
class Laid:
    """One modality, ready to be cut into parts.

    Args:
        values: Samples first, [N, …].
        lengths: How many steps of each sample are real, [N]; None where all are.
        view: What an encoder needs between; None where nothing.
        note: What was done to the array that its owner may want to know; "" where nothing was.
        whole: Whether the numbers were whole ones, [N, …], none of them too large to be a float without loss.
    """

    values: Tensor
    lengths: Tensor | None = None
    view: View | None = None
    note: str = ""
    whole: bool = False


def lay_out(
    name: str, given: Any, lengths: Any, problems: list[str], samples: Sequence[str] | None = None
) -> Laid | None:
    """Bring one modality into shape; None where that cannot be done, with the reasons added to `problems`.

    Args:
        name: Of the modality.
        given: An array, a tensor, or one array per sample.
        lengths: How many steps of each sample are real; None where all are, or where samples come one by one.
        problems: Collects what is wrong.
        samples: What messages call each sample; its number, from 0, where this is None.
    """
    before = len(problems)
    array, found, note = _one_array(name, given, problems, samples, series=lengths is not None)
    if array is None:
        return None
    if why := memory_problem(FLOATS * array.size):
        problems.append(f"{name}: {why}")
        return None
    if lengths is not None:
        if found is not None:
            problems.append(
                f"{name}: expected no lengths beside samples that differ in length, found both; leave them out"
            )
        found = _read_lengths(name, lengths, array, problems)
    if len(problems) > before:
        return None
    if found is not None:
        array = _without_padding(array, found)
    picture = array.dtype == np.uint8 and array.ndim >= 4
    whole = array.dtype.kind in "iu" and found is None and not picture and bool((np.abs(array) < EXACT).all())
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is infinite, and reported as that
        array = np.ascontiguousarray(array, dtype=np.uint8 if picture else np.float32)
    if bad := np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1)).tolist():
        problems.append(
            f"{name}: expected finite numbers, found NaN or infinity in {len(bad)} of {len(array)} samples "
            f"({some_of(bad, samples)}); where it is missing, leave the sample out, or fill in its mean"
        )
        return None
    values = torch.from_numpy(array if array.flags.writeable else array.copy())
    ragged = found is not None and bool((found < array.shape[TIME]).any())
    kept = torch.from_numpy(found) if found is not None and ragged else None
    return Laid(values, kept, Rescaled(1 / 255) if picture else None, note, whole)


def as_numpy(given: Any) -> np.ndarray:
    """A tensor, list or array as numpy has it."""
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = (given.float() if given.dtype == torch.bfloat16 else given).numpy()
    return np.asarray(given)


def some_of(numbers: Sequence[int], samples: Sequence[str] | None = None) -> str:
    """The first few of many samples, by name."""
    named = ", ".join(str(number) if samples is None else samples[number] for number in numbers[:NAMED])
    return named + (", …" if len(numbers) > NAMED else "")


def _one_array(
    name: str, given: Any, problems: list[str], samples: Sequence[str] | None, *, series: bool
) -> tuple[np.ndarray | None, np.ndarray | None, str]:
    """The samples in one array, the lengths of those that differ in time, and a note."""
    one_by_one = isinstance(given, (list, tuple)) or (isinstance(given, np.ndarray) and given.dtype == object)
    try:
        rows = [as_numpy(row) for row in given] if one_by_one else None
        array = np.empty(0) if rows is not None else as_numpy(given)
    except (ValueError, TypeError) as found:
        problems.append(f"{name}: expected an array of numbers {EXPECTED}, found what numpy cannot read: {found}")
        return None, None, ""
    if rows is not None and len({row.shape for row in rows}) > 1:
        return _padded(name, rows, problems, samples)
    if rows:
        array = np.stack(rows)
    if array.dtype.kind not in "biuf":
        problems.append(f"{name}: expected numbers, found {_kind(array.dtype)}")
    elif array.ndim == 0 or array.ndim > 5 or 0 in array.shape[1:]:
        problems.append(f"{name}: expected {EXPECTED}, found an array of shape {array.shape}")
    elif len(array) == 0:
        problems.append(f"{name}: expected at least one sample, found none")
    elif array.ndim == 1:
        return array[:, None], None, ""
    elif array.dtype == np.uint8 and not (series and array.ndim == 3):
        return _colours_first(name, array)
    else:
        return array, None, ""
    return None, None, ""


def _colours_first(name: str, array: np.ndarray) -> tuple[np.ndarray, None, str]:
    """Pictures with their colours where encoders look for them."""
    before = list(array.shape)
    if array.ndim == 3:
        return array[:, None], None, f"{name}: bytes {before} are grey pictures"
    if array.ndim < 4 or (array.shape[-1] not in COLOURS and array.shape[1] in COLOURS):
        return array, None, ""
    if array.shape[-1] in COLOURS:
        moved = np.moveaxis(array, -1, 1)
    elif array.ndim == 5 and array.shape[2] in COLOURS:
        moved = np.moveaxis(array, 2, 1)
    else:
        return array, None, ""
    return moved, None, f"{name}: colours moved to the front, {before} → {list(moved.shape)}"


def _padded(
    name: str, rows: list[np.ndarray], problems: list[str], samples: Sequence[str] | None
) -> tuple[np.ndarray | None, np.ndarray | None, str]:
    """Samples of different length, with zeros behind their ends."""
    rows = [row[None] if row.ndim == 1 else row for row in rows]
    if all(row.dtype == np.uint8 and row.ndim == 4 for row in rows):
        rows = [_colours_first(name, row[None])[0][0] for row in rows]
    if wrong := sorted({_kind(row.dtype) for row in rows if row.dtype.kind not in "biuf"}):
        problems.append(f"{name}: expected numbers, found {', '.join(wrong)}")
        return None, None, ""
    fixed = Counter((row.shape[:1], row.shape[2:]) for row in rows)
    if len(fixed) > 1 or rows[0].ndim not in (2, 4) or 0 in rows[0].shape[:1] + rows[0].shape[2:]:
        problems.append(_shapes_differ(name, rows, samples))
        return None, None, ""
    longest = max(row.shape[1] for row in rows)
    first = rows[0]
    if why := memory_problem(FLOATS * len(rows) * math.prod(first.shape) // max(1, first.shape[1]) * longest):
        problems.append(f"{name}: padded to {longest:,} steps, as its longest sample has, it {why}")
        return None, None, ""
    array = np.zeros(
        (len(rows), first.shape[0], longest, *first.shape[2:]), np.result_type(*{row.dtype for row in rows})
    )
    for number, row in enumerate(rows):
        array[number, :, : row.shape[1]] = row
    lengths = np.array([row.shape[1] for row in rows])
    if longest == 0:
        problems.append(f"{name}: expected series with at least one step, found none")
        return None, None, ""
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
        f"{len(others)} ({some_of(others, samples)}){hint}"
    )


def _read_lengths(name: str, lengths: Any, array: np.ndarray, problems: list[str]) -> np.ndarray | None:
    title, found = f"{name}_length", as_numpy(lengths)
    if array.ndim not in (3, 5):
        problems.append(
            f"{title}: expected lengths of series [N, C, T] or frames [N, C, T, H, W] only, found {name} of shape "
            f"{array.shape}; leave them out"
        )
    elif found.shape != array.shape[:1] or found.dtype.kind not in "iu":
        problems.append(
            f"{title}: expected one whole number per sample, {len(array)} in all, found {_kind(found.dtype)} of shape "
            f"{found.shape}"
        )
    elif found.min() < 0 or found.max() > array.shape[TIME]:
        problems.append(
            f"{title}: expected lengths from 0 to {array.shape[TIME]}, found {found.min()} to {found.max()}"
        )
    else:
        return found.astype(np.int64)
    return None


def _without_padding(array: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Zeros behind every end, whatever was there: some pad with NaN."""
    padding = np.arange(array.shape[TIME]) >= lengths[:, None]
    return np.where(padding[(slice(None), None, slice(None), *[None] * (array.ndim - 3))], 0, array)


def _kind(dtype: np.dtype) -> str:
    """What an array holds, in words."""
    return {"U": "text", "S": "bytes of text", "O": "objects", "V": "records", "M": "dates", "m": "times"}.get(
        dtype.kind, f"{dtype} numbers" if dtype.kind in "biufc" else str(dtype)
    )

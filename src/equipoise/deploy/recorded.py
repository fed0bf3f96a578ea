"""Inputs as they were recorded, into what the graph takes: read as training data is, then fitted to the trained shape.

| trained on | one sample | many samples |
|---|---|---|
| vectors | [D]; a number where D is 1 | [N, D] |
| series | [C, T] | [N, C, T]; where time is ragged, also N arrays [C, T_i] |
| pictures as bytes | [H, W, C] or [C, H, W], grey also [H, W]; of any size | one axis more, or N arrays |
| frames as bytes | [T, H, W, C] or [C, T, H, W]; of any size | one axis more, or N arrays |

A sensor is missing where its key is absent or None, or all its numbers are NaN, and from a sample of many where its
entry is None or all NaN, or "NAME_present" says so. None in place of a number is NaN, so that a list of None, as long
as a vector, is one vector that is missing. A sample without any sensor is answered too, alone or among many: its
`sensors` are empty.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.data.own.arrays import COLOURS, read_modality
from equipoise.data.own.columns import as_numpy
from equipoise.data.own.manifest import ManifestColumn, join_vectors
from equipoise.data.views import LogSTFT, TimeLast, VideoFrames
from equipoise.deploy.deployable import LENGTH, VALID, InputSpec
from equipoise.util.errors import BadInput, raise_all, unknown_name
from equipoise.util.processes import memory_problem

PRESENT, AXIS = "_present", "_axis"
PASSED_OVER = ("label", "split", "group", "classes", "id")
"""Names that a file of samples may hold beside its sensors."""


@final
@dataclass(frozen=True, eq=False)
class Recorded:
    """Samples as the graph takes them.

    Args:
        inputs: NAME, NAME_length and NAME_valid of every sensor, the samples first.
        single: Whether one sample was given, and not a list of them.
        ids: Names of the samples, where the data has some: a column `id`, or an index of one's own.
    """

    inputs: dict[str, Tensor]
    single: bool
    ids: list[Any] | None = None

    def __len__(self) -> int:
        return len(next(value for name, value in self.inputs.items() if name.endswith(VALID)))


def read_recorded(
    specs: Mapping[str, InputSpec], given: Any, words: Mapping[str, int] | None = None, *, many: bool = False
) -> Recorded:
    """Read one sample or many.

    Args:
        specs: What each sensor of the model gives.
        given: {sensor: array, tensor, list or None}, or a DataFrame with a row per sample.
        words: How many token numbers the encoder of a sensor knows, where it reads such.
        many: Whether there are many samples, where an array may be read either way.

    Raises:
        BadInput: With everything that is wrong.
    """
    columns, framed = _columns(given)
    problems = list(_unknown(columns, specs))
    rows: dict[str, Any] = {}
    for name in specs:
        if columns.get(name) is not None:
            try:
                rows[name] = _rows(name, columns[name])
            except BadInput as problem:
                problems.append(str(problem))
    forms = {name: _forms(specs[name], value) for name, value in rows.items()}
    wrong = [name for name, form in forms.items() if not any(form)]
    problems += [f"{name}: expected {expected(specs[name])}, found {_found(rows[name])}" for name in wrong]
    forms = {name: form for name, form in forms.items() if any(form)}
    single = not framed and not many and bool(forms) and all(one for one, _ in forms.values())
    if all(_is_nothing(rows[name]) for name in forms):  # [C, T] of None alone is rather N samples without it
        single = single and all(len(specs[name].recorded[0]) == 1 for name in forms)
    if not single and (alone := [name for name, (_, many) in forms.items() if not many]):
        others = [name for name in forms if name not in alone]
        problems.append(f"expected one sample of every sensor, or many; found one of {alone} and many of {others}")
        raise_all(problems)
    lists = {name: _lifted(specs[name], rows[name]) if single else rows[name] for name in forms}
    lists = {name: value for name, value in lists.items() if value is not None}
    sizes = {name: len(value) for name, value in lists.items()}
    if len({*sizes.values()}) > 1:
        found = ", ".join(f"{name} {size}" for name, size in sizes.items())
        problems.append(f"expected one entry per sample of every sensor, found {found}; None stands for a missing one")
    if not {*specs} & {*columns} and (many or framed) and not problems:
        problems.append(f"expected an input of at least one of {', '.join(specs)}; found none")
    inputs: dict[str, Tensor] = {}
    single = single or not (rows or framed or many)  # every sensor is None: one sample that has none
    count = next(iter(sizes.values()), 1)
    needed = sum(count * math.prod(spec.shape) * spec.dtype.itemsize for spec in specs.values())
    needed += sum(rows.size for rows in lists.values() if isinstance(rows, np.ndarray))  # which of them are NaN
    if why := memory_problem(needed):
        problems.append(f"expected samples that fit into memory, found {count:,}, and reading them {why}; give fewer")
        raise_all(problems)
    for name, spec in specs.items():
        try:
            inputs |= _tensors(name, spec, lists.get(name), columns, count, words or {})
        except BadInput as problem:
            problems.append(str(problem))
    raise_all(problems)
    return Recorded(inputs, single, _ids(given, columns, count))


def expected(spec: InputSpec, *, steps: bool = False) -> str:
    """Say how one sample of a sensor looks as it is recorded; or a chunk of any number of its steps."""
    shape, dtype = spec.recorded
    if isinstance(spec.before, LogSTFT):
        return f"[T] of at least {spec.before.samples} samples of 16-bit sound, or many"
    if isinstance(spec.before, VideoFrames):
        return f"bytes [frames, height, width, {shape[1]}], or many"
    if dtype == torch.uint8 and len(shape) >= 3:
        time = f"{'n' if steps else shape[1]}, " if len(shape) == 4 else ""
        more = "n steps" if steps else "or many"
        return f"bytes [{time}height, width, {shape[0]}] or [{shape[0]}, {time}height, width], {more}"
    sizes, time = [str(size) for size in shape], 0 if isinstance(spec.view, TimeLast) else 1
    if steps:
        sizes[time] = "n"
        return f"[{', '.join(sizes)}], n steps in a row, or one step [{sizes[1 - time]}]"
    if spec.ragged and len(shape) > 1:
        sizes[time] = f"up to {shape[time]}"
    one, kind = ", ".join(sizes), "" if dtype.is_floating_point else "whole numbers "
    return f"{kind}[{one}] for one sample or [N, {one}] for many"


# -- reading what was given --


def _columns(given: Any) -> tuple[dict[str, Any], bool]:
    """Return what was given by name, and whether it was a table."""
    if isinstance(given, Mapping):
        return dict(given), False
    if type(given).__module__.partition(".")[0] != "pandas" or not hasattr(given, "columns"):
        raise BadInput(f"expected {{sensor: array, …}} or a DataFrame, found {type(given).__name__}")
    counts = Counter(map(str, given.columns))
    raise_all(f"column {name}: expected one of this name, found {counts[name]}" for name in counts if counts[name] > 1)
    columns, numbers, problems = {}, [], list[str]()
    for name in given.columns:
        values = given[name].to_numpy()
        if values.dtype.kind == "O":
            columns[str(name)] = list(values)
        elif name in PASSED_OVER or str(name).endswith((PRESENT, LENGTH)):
            columns[str(name)] = values
        elif values.dtype.kind not in "biuf":
            problems.append(f"column {name}: expected numbers, found values of type {values.dtype}")
        else:
            numbers.append(ManifestColumn(str(name), "numbers", values))
    joined = join_vectors(numbers, problems)
    counts = Counter([*columns, *(column.name for column in joined)])
    twice = [name for name in counts if counts[name] > 1]
    problems += [f"column {name}: expected it or the columns {name}_0, {name}_1, …; found both" for name in twice]
    raise_all(problems)
    return {**columns, **{column.name: column.values for column in joined}}, True


def _array(name: str, given: Any) -> np.ndarray:
    """Return a column beside the sensors as an array."""
    try:
        return as_numpy(given)
    except (ValueError, TypeError) as why:
        raise BadInput(f"{name}: expected one value per sample, found what numpy cannot read: {why}") from None


def _ids(given: Any, columns: Mapping[str, Any], count: int) -> list[Any] | None:
    """Return the names of the samples, as numbers or text; None where rows are counted only."""
    ids = columns.get("id")
    if ids is None and hasattr(given, "index") and not isinstance(given, Mapping):
        ids = None if list(given.index) == list(range(count)) else list(given.index)
    if ids is None:
        return None
    names = _array("id", ids)
    if names.size != count:
        raise BadInput(f"id: expected a name for each of {count} samples, found {names.size}")
    plain = names.reshape(-1).tolist() if not isinstance(ids, list) else ids
    return [each if isinstance(each, (int, str)) else str(each) for each in plain]


def _unknown(columns: Mapping[str, Any], specs: Mapping[str, InputSpec]) -> Iterable[str]:
    known = {*specs, *(f"{name}{ending}" for name in specs for ending in (PRESENT, LENGTH, AXIS)), *PASSED_OVER}
    for name in columns:
        if name not in known:
            yield f"unknown sensor: {unknown_name(name, specs)}"
        elif str(name).endswith(LENGTH) and name not in specs and not specs[name.removesuffix(LENGTH)].ragged:
            yield f"{name}: expected none, since all samples of this sensor have one length; leave it out"


def _rows(name: str, given: Any) -> Any:
    """Return one array of numbers, or a list of arrays with None where the sensor is missing."""
    try:
        if not isinstance(given, (list, tuple)) and getattr(given, "dtype", None) != np.dtype(object):
            array = as_numpy(given)
        else:
            arrays = [None if row is None else _nulls_as_nan(as_numpy(row)) for row in given]
            shapes = {None if row is None else row.shape for row in arrays}
            if shapes == {None, ()}:  # numbers in a row, and some are not there
                arrays, shapes = [np.array(np.nan) if row is None else row for row in arrays], {()}
            if len(shapes) != 1 or None in shapes:
                return [None if row is None or _blank(row) else row for row in arrays]
            array = np.stack([row for row in arrays if row is not None])
    except OverflowError:
        raise BadInput(f"{name}: expected finite numbers, found one that is too large for 64 bits") from None
    except (ValueError, TypeError) as why:
        raise BadInput(f"{name}: expected numbers, found what numpy cannot read: {why}") from None
    if array.dtype.kind not in "biuf":
        raise BadInput(f"{name}: expected numbers, found values of type {array.dtype}")
    return array


def _nulls_as_nan(row: np.ndarray) -> np.ndarray:
    """Return numbers where some are None, as JSON has them, with NaN there."""
    numbers = row.dtype == object and all(each is None or isinstance(each, (int, float)) for each in row.flat)
    return row.astype(np.float64) if numbers else row


def _blank(row: np.ndarray) -> bool:
    return row.dtype.kind == "f" and row.size > 0 and bool(np.isnan(row).all())


def _forms(spec: InputSpec, rows: Any) -> tuple[bool, bool]:
    """Tell whether what was given may be one sample, and whether it may be many."""
    shape, dtype = spec.recorded
    if isinstance(rows, list):
        return _is_nothing(rows) and len(rows) in shape, len(rows) > 0
    axes = rows.ndim
    if rows.size == 0:
        return False, False
    if dtype == torch.uint8 and len(shape) == 3 and shape[0] == 1 and axes in (2, 3):
        one = axes == 2 or 1 in (rows.shape[0], rows.shape[-1])
        return one, not one
    if shape == (1,) and axes < 2:
        return rows.size == 1, axes == 1
    if len(shape) == 2 and shape[0] == 1 and spec.ragged and axes == 1:
        return True, False
    return axes == len(shape), axes == len(shape) + 1


def _is_nothing(rows: Any) -> bool:
    return isinstance(rows, list) and all(row is None for row in rows)


def _lifted(spec: InputSpec, one: Any) -> Any:
    """Return many samples where one was given; None where nothing of it is there."""
    if isinstance(one, list):
        return None
    (shape, dtype), missing = spec.recorded, len(spec.recorded[0]) - one.ndim
    grey = dtype == torch.uint8 and len(shape) == 3  # an array of grey pictures has no axis of colours
    return one.reshape(1, *[1] * (0 if grey else missing), *one.shape)


def _found(rows: Any) -> str:
    return f"an array of shape {list(rows.shape)}" if isinstance(rows, np.ndarray) else "an empty list"


def _tensors(
    name: str, spec: InputSpec, rows: Any, columns: Mapping[str, Any], count: int, words: Mapping[str, int]
) -> dict[str, Tensor]:
    """Read one sensor of many samples; zeros where it is missing."""
    valid = np.zeros(count, bool) if rows is None else _valid(name, rows, columns.get(f"{name}{PRESENT}"))
    if rows is None or not valid.any():
        tensors = {name: torch.zeros(count, *spec.shape, dtype=spec.dtype)}
        tensors |= {name + LENGTH: torch.ones(count, dtype=torch.int64)} if spec.ragged else {}
        return {**tensors, name + VALID: torch.zeros(count, dtype=torch.bool)}
    if isinstance(rows, list):
        filler = np.zeros_like(next(row for row, here in zip(rows, valid, strict=True) if here))
        rows = [row if here else filler for row, here in zip(rows, valid, strict=True)]
    elif not valid.all():
        rows = np.where(valid.reshape(-1, *[1] * (rows.ndim - 1)), rows, np.zeros((), rows.dtype))
    real = columns.get(name + LENGTH) if spec.ragged else None
    real = None if real is None else _array(name + LENGTH, real)
    values, lengths, there = read_sensor(name, spec, rows, real, words.get(name))
    steps = {} if lengths is None else {name + LENGTH: lengths}
    return {name: values, **steps, name + VALID: torch.from_numpy(valid) & there}


def _valid(name: str, rows: Any, present: Any) -> np.ndarray:
    if isinstance(rows, list):
        valid = np.array([row is not None for row in rows])
    elif rows.dtype.kind == "f":
        valid = ~np.isnan(rows.reshape(len(rows), -1)).all(axis=1)
    else:
        valid = np.ones(len(rows), bool)
    if present is None:
        return valid
    told = _array(f"{name}{PRESENT}", present).reshape(-1)
    if told.dtype.kind not in "bi" or len(told) != len(valid) or not np.isin(told, (0, 1)).all():
        raise BadInput(f"{name}{PRESENT}: expected true or false for each of {len(valid)} samples, found {told[:5]}")
    return valid & told.astype(bool)


# -- fitting it to the trained shape --


def read_sensor(
    name: str, spec: InputSpec, rows: Any, lengths: Any, words: int | None, *, steps: bool = False
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Read the samples of one sensor into what the graph takes, with lengths where it takes them, and which are there.

    Args:
        name: Of the sensor.
        spec: What the model expects of it.
        rows: An array, samples first, or a list of arrays.
        lengths: How many steps of each sample are real; None where all are.
        words: How many token numbers its encoder knows; None where it reads none.
        steps: Take any number of steps, and return these before any view that is not in the graph.

    Raises:
        BadInput: If they cannot be read.
    """
    (shape, dtype), turned = spec.recorded, isinstance(spec.view, TimeLast)
    rows = [_typed(name, row, spec) for row in rows] if isinstance(rows, list) else _typed(name, rows, spec)
    if turned:
        rows = [row.T for row in rows] if isinstance(rows, list) else np.moveaxis(rows, 1, 2)
        shape = shape[::-1]
    read = read_modality(name, rows, lengths, None)
    values, real = read.values, read.lengths
    there = torch.ones(len(values), dtype=torch.bool) if read.present is None else read.present
    if isinstance(spec.before, (VideoFrames, LogSTFT)):
        return _viewed(name, spec, values, real), None, there
    if not dtype.is_floating_point and dtype != torch.uint8 and spec.view is None:
        top = words - 1 if words is not None else torch.iinfo(dtype).max
        if not read.whole or values.min() < 0 or values.max() > top:
            raise BadInput(
                f"{name}: expected whole numbers from 0 to {top}, found {values.min():g} to {values.max():g}"
            )
    if dtype == torch.uint8 and len(shape) >= 3 and values.shape[1] == shape[0] and values.shape[-2:] != shape[-2:]:
        values = _resized(values, shape[-2:])
    if real is not None and not spec.ragged and not steps:  # read one below another, which pads the short ones
        raise BadInput(f"{name}: expected {expected(spec)}, found {_lengths(real)}")
    if len(shape) in (2, 4) and values.dim() == len(shape) + 1 and not steps:
        values, real = _padded(values, real, shape[1], ragged=spec.ragged)
    if tuple(values.shape[1:2] if steps else values.shape[1:]) != (shape[:1] if steps else shape):
        found = f"{'a chunk' if steps else 'samples'} of shape {list(values.shape[1:])}{_hint(values, shape)}"
        raise BadInput(f"{name}: expected {expected(spec, steps=steps)}, found {found}")
    values = (values.transpose(1, 2) if turned else values).to(dtype)
    if not spec.ragged:
        return values, None, there
    return values, torch.full((len(values),), spec.steps) if real is None else real, there


def _typed(name: str, array: np.ndarray, spec: InputSpec) -> np.ndarray:
    """Return numbers of the kind that was trained on: bytes as bytes, others as they are."""
    shape, dtype = spec.recorded
    if dtype == torch.uint8 and len(shape) >= 3 and array.dtype != np.uint8:
        if array.dtype.kind not in "iuf" or not ((array >= 0) & (array <= 255) & (array == np.round(array))).all():
            raise BadInput(
                f"{name}: expected bytes, 0 to 255, as the model was trained on; found {array.dtype} numbers"
            )
        return array.astype(np.uint8)
    if array.dtype == np.uint8 and dtype.is_floating_point:
        if len(shape) >= 3:
            told = "expected floating-point numbers, as the model was trained on; found bytes"
            raise BadInput(f"{name}: {told}. Scale them as for training, e.g. array / 255")
        return array.astype(np.float32)
    return array


def _viewed(name: str, spec: InputSpec, values: Tensor, lengths: Tensor | None) -> Tensor:
    """Apply a view that is not in the graph."""
    view, (shape, _) = spec.before, spec.recorded
    if isinstance(view, VideoFrames) and values.dim() == 5 and values.shape[1] == shape[1]:
        return view(values.transpose(1, 2), lengths, None)
    short = isinstance(view, LogSTFT) and lengths is not None and bool((lengths < view.samples).any())
    if isinstance(view, LogSTFT) and values.dim() == 2 and values.shape[1] >= view.samples and not short:
        return view(values, None, None)
    found = f"samples of shape {list(values.shape[1:])}" if lengths is None else _lengths(lengths)
    raise BadInput(f"{name}: expected {expected(spec)}, found {found}")


def _lengths(real: Tensor) -> str:
    """Say where a sample is shorter than the longest."""
    shortest = int(real.argmin())
    return f"{int(real.max())} steps at most, and {int(real[shortest])} in sample {shortest}"


def _resized(values: Tensor, size: tuple[int, ...]) -> Tensor:
    """Scale pictures or frames to the trained height and width."""
    flat = values.flatten(0, -4).float() if values.dim() > 4 else values.float()
    scaled = F.interpolate(flat, size=size, mode="bilinear", antialias=True)
    return scaled.round().clamp(0, 255).to(torch.uint8).reshape(*values.shape[:-2], *size)


def _padded(values: Tensor, lengths: Tensor | None, steps: int, *, ragged: bool) -> tuple[Tensor, Tensor | None]:
    """Pad series that are shorter than those of training, where these differed in length."""
    there = values.shape[2]
    if not ragged or there >= steps:
        return values, lengths
    padded = values.new_zeros(*values.shape[:2], steps, *values.shape[3:])
    padded[:, :, :there] = values
    return padded, torch.full((len(values),), there) if lengths is None else lengths


def _hint(values: Tensor, shape: tuple[int, ...]) -> str:
    found = tuple(values.shape[1:])
    if len(shape) == 2 and found == shape[::-1]:
        return "; time comes last: give the transpose"
    if len(shape) == 3 and (found[2], *found[:2]) == shape and found[2] in COLOURS:
        return "; channels come first: give np.moveaxis(array, -1, 0)"
    return ""

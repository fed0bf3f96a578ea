"""Functions that a pickle of plain data may call: each checks what it is given, and makes something fresh of it.

They replace functions of numpy that would believe whatever they are told: where memory lies, and what is in it.
"""

import math
import pickle
import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NoReturn, final

import numpy as np

MOST_AXES = 64  # as numpy has it

_NAMES = re.compile(r"b1|[iu][1248]|f(2|4|8|12|16)|c(8|16|24|32)|[SUV]\d{1,9}|O[48]?|[Mm]8")
_UNITS = {"Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"}
_KEYS = (str, bytes, int, float, bool, type(None), np.generic)


def refuse(why: str) -> NoReturn:
    """Raise the one error of these readers."""
    raise pickle.UnpicklingError(f"refused {why}")


def check_values(array: np.ndarray) -> None:
    """Refuse bytes that are no value of their type: numpy relies on truth values being 0 or 1, and text being text."""
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise ValueError("expected truth values, 0 or 1, found other bytes")
    if array.dtype.kind == "U" and array.size and array.itemsize:
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        codes = array.reshape(-1, order=order).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if codes.max() > sys.maxunicode:
            raise ValueError("expected text, found numbers that are no letters")


@final
class Target:
    """A name that a pickle may use.

    Args:
        name: As others know it.
        call: The function of ours that it stands for; None where it may be named, not called.
    """

    def __init__(self, name: str, call: Callable[..., Any] | None = None) -> None:
        self.name, self.call = name, call


@final
class Unbuilt:
    """An array or a type that was called for and has no state yet; nothing else can be done with it.

    Args:
        build: Makes it from its state.
    """

    def __init__(self, build: Callable[[Any], Any]) -> None:
        self.build = build
        self.places: list[int] = []  # in the memo


def _no_bytes() -> bytes:
    """Return no bytes, as protocol 2 writes them; called with a number, `bytes` itself would take any memory."""
    return b""


def _encode(text: Any, encoding: Any) -> bytes:
    """Return the bytes that protocol 2 writes as text."""
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        refuse("to encode: expected text, and latin1")
    return text.encode("latin1")


def _ordered(pairs: Any = ()) -> OrderedDict[Any, Any]:
    plain = isinstance(pairs, (list, tuple)) and all(type(pair) in (list, tuple) for pair in pairs)
    if not plain or any(len(pair) != 2 for pair in pairs):
        refuse("an OrderedDict: expected a list of pairs")
    return OrderedDict((checked_key(key), value) for key, value in pairs)


def _array_without_state(kind: Any, shape: Any, code: Any) -> Unbuilt:
    if kind is not _NDARRAY or type(shape) is not tuple or shape != (0,) or code not in (b"b", "b"):
        refuse("to make an array: expected numpy's own call, with the shape (0,)")
    return Unbuilt(_array)


def _type_without_state(name: Any, align: Any, copy: Any) -> Unbuilt:
    if type(name) is not str or not _NAMES.fullmatch(name) or (align, copy) != (False, True):
        refuse("a type: expected a plain one, such as f8 or U3, found another")
    made = np.dtype(object if name.startswith("O") else name)
    return Unbuilt(lambda state: _type(made, state))


def _type(made: np.dtype, state: Any) -> np.dtype:
    """A type with the order of bytes, and the unit of time, that its state tells. Nothing else may be in a state."""
    plain = type(state) is tuple and len(state) in (8, 9) and state[2:5] == (None, None, None)
    plain = plain and type(state[1]) is str and type(state[5]) is int and state[5] in (-1, made.itemsize)
    if not plain or state[1] not in ("<", ">", "|", "="):
        refuse(f"the state of the type {made}: expected that of a plain one")
    if state[7] != made.flags:
        refuse(f"the state of the type {made}: expected its own flags, {made.flags}, found others")
    if made.kind in "mM" and len(state) == 9:
        made = np.dtype(f"{made.kind}8{_unit(state[8])}")
    return made if state[1] == "|" else made.newbyteorder(state[1])


def _unit(metadata: Any) -> str:
    name, count, *others = metadata[1]
    name = name.decode("ascii") if type(name) is bytes else name
    if name == "generic":
        return ""
    plain = type(name) is str and type(count) is int and others in ([1], [1, 1])
    if not plain or name not in _UNITS or not 0 < count < 2**31:
        refuse("a unit of time: expected one of numpy's")
    return f"[{count}{name}]"


def _array(state: Any) -> np.ndarray:
    if type(state) is not tuple or len(state) != 5:
        refuse("the state of an array: expected its version, shape, type, order and content")
    _, shape, dtype, fortran, content = state
    array = _filled(content, dtype, shape, "F" if fortran else "C")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> np.ndarray:
    """Make an array as protocol 5 writes it. Axes in another order come with the order "K"."""
    if order not in ("C", "F", "K") or not isinstance(content, (bytes, bytearray)):
        refuse("an array from a buffer: expected bytes, and the order C, F or K")
    array = _filled(content, dtype, shape, "F" if order == "F" else "C")
    return array if axes is None else np.array(array.transpose(axes), order="K")


def _scalar(dtype: Any, content: Any) -> Any:
    return _filled(content, dtype, (), "C")[()]


def _filled(content: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    """A fresh array, which has its memory for itself; its shape, type and content have to agree."""
    plain = isinstance(dtype, np.dtype) and type(shape) is tuple and len(shape) <= MOST_AXES
    if not plain or not all(type(size) is int and size >= 0 for size in shape):
        refuse("the state of an array: expected a shape and a type")
    count = math.prod(shape)
    if dtype.kind == "O":
        if type(content) is not list or len(content) != count:
            refuse(f"an array of objects of shape {shape}: expected a list of {count} of them")
        array = np.empty(shape, object, order=order)
        for place, value in zip(np.ndindex(shape), content, strict=True):
            array[place] = value
        return array
    content = content.encode("latin1") if type(content) is str else content  # as Python 2 wrote bytes
    if not isinstance(content, (bytes, bytearray)) or len(content) != count * dtype.itemsize:
        refuse(f"an array of shape {shape} and type {dtype}: expected its shape, type and content to agree")
    if count > 1 and not dtype.itemsize:
        refuse(f"an array of shape {shape} and type {dtype}: expected items that take some memory")
    if not content:
        return np.empty(shape, dtype, order=order) if not count else np.zeros(shape, dtype)
    array = np.array(np.frombuffer(content, dtype).reshape(shape, order=order), order="K")
    check_values(array)
    return array


_NDARRAY = Target("numpy.ndarray")
_TARGETS = {
    target.name: target
    for target in (
        _NDARRAY,
        Target("numpy.dtype", _type_without_state),
        Target("numpy.core.multiarray._reconstruct", _array_without_state),
        Target("numpy.core.multiarray.scalar", _scalar),
        Target("numpy.core.numeric._frombuffer", _from_buffer),
        Target("_codecs.encode", _encode),
        Target("__builtin__.bytes", _no_bytes),
        Target("builtins.bytes", _no_bytes),
        Target("collections.OrderedDict", _ordered),
    )
}


def target_of(module: Any, name: Any) -> Target:
    """Look up what a name stands for; names that stand for anything else are refused."""
    if type(module) is not str or type(name) is not str:
        refuse("to load what has no name")
    # numpy moved its core; a file written before or after must read the same.
    target = _TARGETS.get(f"{re.sub(r'^numpy[.]_core[.]', 'numpy.core.', module)}.{name}")
    if target is None or "." in name:
        expected = "expected a pickle of numpy arrays, numbers, strings and plain containers"
        advice = "A pickle can run any program; if you trust this one, convert it to .npz yourself"
        refuse(f"to load {module}.{name}: {expected}. {advice}")
    return target


def checked_key(value: Any) -> Any:
    """A key of a dictionary, or a member of a set: Python hashes what is nested by recursion, without a limit."""
    if not all(isinstance(part, _KEYS) for part in (value if type(value) is tuple else (value,))):
        refuse(f"a key of the type {type(value).__name__}: expected text, a number, or a tuple of these")
    return value

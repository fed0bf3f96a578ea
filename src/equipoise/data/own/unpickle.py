"""Reading pickles without running them: text, numbers, arrays and plain containers of these, and nothing else.

A pickle is a program. `pickletools` takes it apart, and what an honest one makes is made here, instruction by
instruction: no name in it is looked up, nothing in it is called, and memory is counted before it is taken.
"""

import math
import pickle
import pickletools
import re
import sys
from typing import Any, BinaryIO, Literal, NoReturn, final

import numpy as np

from equipoise.util.processes import free_memory, memory_problem

DEEPEST = 20  # containers in each other
COST = 200  # bytes of memory that an instruction takes, about
NUMBERS = 2**15  # keys that are numbers: unlike those of text, they can be chosen so that a dictionary takes n² steps
MOST_AXES = 64  # as numpy has it

_TYPES = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[SU]\d{1,9}|O8?")
_KNOWN = {
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
    "_codecs.encode",
    "builtins.bytes",
    "__builtin__.bytes",
}
_OTHER = ([], [pickletools.anyobject])
_ATOMS = {each.name for each in pickletools.opcodes if each.arg and each.stack_after not in _OTHER}
_MARK, _UNBUILT = object(), object()


def load_pickle(file: BinaryIO | bytes) -> Any:
    """Read a pickle; raise a `pickle.UnpicklingError` if it holds anything but plain data, is damaged or too large."""
    try:
        return _Machine().run(file)
    except pickle.UnpicklingError:
        raise
    except Exception as why:  # an instruction that got what it cannot use; there are dozens of ways
        raise pickle.UnpicklingError(f"refused a damaged pickle: {type(why).__name__}: {why!s:.200}") from None


def check_values(array: np.ndarray) -> None:
    """Refuse bytes that are no value of their type: numpy relies on truth values being 0 or 1, and text being text."""
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise ValueError("expected truth values, 0 or 1, found other bytes")
    if array.dtype.kind == "U" and array.size and array.itemsize:
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        codes = array.reshape(-1, order=order).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if codes.max() > sys.maxunicode:
            raise ValueError("expected text, found numbers that are no letters")


def _refuse(why: str) -> NoReturn:
    raise pickle.UnpicklingError(f"refused {why}")


@final
class _Box:
    """A value that holds others, and its cost once these are written out as often as it holds them."""

    def __init__(self, value: Any, cost: int = COST, depth: int = 1, *, data: bool = True) -> None:
        self.value, self.cost, self.depth, self.data = value, cost, depth, data
        self.held = False  # by another: from then on nothing is added to it, so that none holds itself


@final
class _Name(str):
    """A name in a pickle."""


@final
class _Machine:
    """Carries out the instructions that plain data needs. Containers, arrays, types and names are boxed."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.room, self.used, self.numbers = free_memory(), 0, 0

    def run(self, file: BinaryIO | bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(file):
            self.take(COST + (len(argument) if isinstance(argument, (str, bytes, bytearray)) else 0))
            self.step(opcode.name, argument)
        value, left = self.packed(1).value[0], self.stack
        return value if not left else _refuse("a pickle with something left over: expected one value")

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self.room:
            _refuse(f"a pickle that {memory_problem(self.used, self.room)}")

    def step(self, name: str, argument: Any) -> None:
        match name:
            case "PROTO" | "FRAME" | "STOP":
                return
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
                return
            case "GET" | "BINGET" | "LONG_BINGET":
                made = self.memo[argument]
            case "MARK" | "NONE" | "NEWTRUE" | "NEWFALSE":
                made = {"MARK": _MARK, "NEWTRUE": True, "NEWFALSE": False}.get(name)
            case "EMPTY_LIST" | "EMPTY_DICT" | "EMPTY_TUPLE":
                made = _Box({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}[name]())
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                made = self.packed(int(name[5:] or 0), only_data=False)
                made.value = tuple(made.value)
            case "LIST":
                made = self.packed()
            case "APPEND" | "APPENDS":
                items, (made,) = self.packed(int(name == "APPEND")), self.pop(1)
                self.extended(made, items, list).extend(items.value)
            case "DICT" | "SETITEM" | "SETITEMS":
                items, made = self.packed(2 * (name == "SETITEM")), _Box({}) if name == "DICT" else self.pop(1)[0]
                keys = list(map(self.key, items.value[::2]))
                self.extended(made, items, dict).update(zip(keys, items.value[1::2], strict=True))
            case "GLOBAL" | "STACK_GLOBAL":
                words = ".".join(argument.split(" ", 1) if argument else self.pop(2))
                made = _Box(_name(words.replace("numpy._core.", "numpy.core.", 1)), data=False)
            case "REDUCE":
                made = _called(*(box.value for box in self.pop(2)))
            case "BUILD":
                made, state = self.pop(2)
                _build(made, state)
            case _ if name in _ATOMS:
                if isinstance(argument, int) and argument.bit_length() > 64:
                    _refuse(f"a number of {argument.bit_length():,} bits: expected at most 64")
                made = argument
            case _:
                _refuse(f"the instruction {name}: expected those of plain data")
        self.stack.append(made)

    def pop(self, count: int) -> list[Any]:
        """Take so many values off the stack; 0 for those above the last mark, and the mark."""
        start = len(self.stack) - count
        if not count:
            start = 1 + next(place for place in reversed(range(len(self.stack))) if self.stack[place] is _MARK)
        values = self.stack[start:]
        if len(values) < count or any(value is _MARK for value in values):
            _refuse("a damaged pickle: expected more on its stack")
        del self.stack[start - (not count) :]
        return values

    def packed(self, count: int = 0, *, only_data: bool = True) -> _Box:
        """Return values off the stack in a box."""
        items = self.pop(count)
        boxes = [item for item in items if type(item) is _Box]
        cost, depth = (
            COST * len(items) + sum(box.cost for box in boxes),
            1 + max((box.depth for box in boxes), default=0),
        )
        data = all(box.data for box in boxes)
        for box in boxes:
            box.held = True
        if only_data and not data:
            _refuse("a name, a type or an unfinished array that stands for nothing: expected plain data")
        if depth > DEEPEST:
            _refuse(f"containers in each other, more than {DEEPEST} deep: expected at most so many")
        if cost > self.room:
            _refuse(f"what {memory_problem(cost, self.room)}, written out")
        return _Box([item.value if type(item) is _Box else item for item in items], cost, depth, data=data)

    def extended(self, box: Any, items: _Box, kind: type) -> Any:
        """Return the content of a box that is to be extended."""
        if type(box) is not _Box or type(box.value) is not kind or box.held:
            _refuse(f"to add to anything but a {kind.__name__} that is being made")
        box.cost, box.depth = box.cost + items.cost, max(box.depth, items.depth)
        return box.value

    def key(self, key: Any) -> Any:
        """Return a key; Python hashes what is nested by recursion, without a limit."""
        if not isinstance(key, (str, bytes, int, float, np.integer, np.floating, type(None))):
            _refuse(f"a key of the type {type(key).__name__}: expected text or a number")
        self.numbers += not isinstance(key, (str, bytes))
        if self.numbers > NUMBERS:
            _refuse(f"more than {NUMBERS:,} keys that are numbers: expected text")
        return key


def _name(words: str) -> _Name:
    if words not in _KNOWN:
        expected = "expected a pickle of numpy arrays, numbers, strings and plain containers"
        advice = "A pickle can run any program; if you trust this one, convert it to .npz yourself"
        _refuse(f"to load {words}: {expected}. {advice}")
    return _Name(words)


def _called(name: object, arguments: Any) -> Any:
    """Return what a call makes that an honest pickle of plain data has in it."""
    match (str(name) if type(name) is _Name else "", *arguments):
        case "numpy.core.multiarray._reconstruct", _Name("numpy.ndarray"), (0,), b"b" | "b":
            return _Box(_UNBUILT, data=False)
        case "numpy.dtype", str(code), *_ if _TYPES.fullmatch(code):
            return _Box(np.dtype(code), data=False)
        case "numpy.core.multiarray.scalar", dtype, content:
            return _Box(_array((), dtype, "C", content)[()], depth=0)
        case "numpy.core.numeric._frombuffer", content, dtype, shape, ("C" | "F") as order:
            array = _array(shape, dtype, order, content)
            return _Box(array, COST + array.nbytes, 0)
        case "_codecs.encode", str(text), "latin1" | "latin-1":
            return text.encode("latin1")
        case (("builtins.bytes" | "__builtin__.bytes"),):
            return b""
    return _refuse(f"to call {name} of {arguments!r:.100}: expected what makes a plain array")


def _build(box: _Box, state: _Box) -> None:
    """Give a type its order of bytes, or an array its content."""
    if isinstance(box.value, np.dtype):
        order = state.value[1]
        box.value = box.value.newbyteorder(order) if order in ("<", ">") else box.value
        return
    if box.value is not _UNBUILT:
        _refuse(f"to change a {type(box.value).__name__}: expected an array or a type that has no content yet")
    _, shape, dtype, fortran, content = state.value
    box.value = _array(shape, dtype, "F" if fortran else "C", content)
    box.depth = state.depth if dtype.hasobject else 0
    box.cost, box.data = state.cost + box.value.nbytes, True


def _array(shape: Any, dtype: Any, order: Literal["C", "F"], content: Any) -> np.ndarray:
    """Make an array; its shape, type and content have to agree."""
    plain = isinstance(dtype, np.dtype) and type(shape) is tuple and len(shape) <= MOST_AXES
    if not plain or not all(type(size) is int and size >= 0 for size in shape):
        _refuse("an array without a shape or a type")
    content = content.encode("latin1") if isinstance(content, str) else content  # as Python 2 wrote bytes
    expected, kind = math.prod(shape) * (1 if dtype.hasobject else dtype.itemsize), list if dtype.hasobject else bytes
    if not isinstance(content, (kind, bytearray)) or len(content) != expected:
        _refuse(f"an array of shape {shape} and type {dtype}: expected its shape, type and content to agree")
    if dtype.hasobject:
        array = np.empty(len(content), object)
        for place, value in enumerate(content):
            array[place] = value
        return array.reshape(shape, order=order)
    native = dtype.newbyteorder("=")
    if not content:
        return np.zeros(shape, native) if dtype.itemsize or math.prod(shape) < 2 else _refuse("items of no size")
    array = np.frombuffer(content, dtype).reshape(shape, order=order)
    check_values(array)
    return array if dtype.isnative else array.astype(native)

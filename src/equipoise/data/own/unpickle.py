"""Reading pickles without running them: text, numbers and arrays of these; those of a data set also hold containers.

Python's reader that is written in Python does the work, with the instructions and names of this page and no others.
What makes arrays is written anew, since numpy's own believes a file that says where in memory an object lies.
"""

import math
import pickle
import pickletools
import re
import sys
from typing import Any, BinaryIO, ClassVar, NoReturn, final

import numpy as np

from equipoise.util.processes import MUCH, free_memory, memory_problem

COST = 200  # bytes of memory that an instruction takes, about
DEEPEST = 20  # containers in each other
LONGEST = MUCH // COST  # instructions for an array of objects
NUMBERS = 2**15  # keys that are numbers: unlike those of text, they can be chosen so that a dictionary takes n² steps
MOST_AXES = 64  # as numpy has it
CONTAINERS = "expected a pickle of numpy arrays, numbers, text and plain containers"
OBJECTS = "expected an array of objects to hold text, numbers, or arrays of numbers"
ADVICE = "save text as labels.astype(str), and lists of different length as arrays or as files with a .csv manifest"

_TYPES = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[SU]\d{1,9}|O8?")
_VALUES = (str, bytes, bytearray, int, float, type(None), np.generic, np.ndarray, list, tuple, dict)
_NAMES = {"EMPTY_DICT": "a dictionary", "DICT": "a dictionary", "EMPTY_SET": "a set", "NEWOBJ": "an object of a class"}
_STEPS = """
PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING
SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_TUPLE
TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL
STACK_GLOBAL REDUCE"""
_CODES = [ord(each.code) for each in pickletools.opcodes if each.name in _STEPS.split()]


def load_pickle(file: BinaryIO, *, containers: bool = True) -> Any:
    """Read a pickle; raise a `pickle.UnpicklingError` if it holds anything but plain data, is damaged or too large.

    Args:
        file: Is read twice, from where it stands.
        containers: Whether lists, tuples and dictionaries may hold each other; else it is one array of objects.
    """
    try:
        return _Reader(file, containers=containers).load()
    except Exception as why:  # an instruction that got what it cannot use; there are dozens of ways
        found = why if type(why) is _RefusedError else f"it damaged: {type(why).__name__}: {why!s:.200}"
        message = f"{CONTAINERS}, found {found}" if containers else f"{OBJECTS}, found {found}; {ADVICE}"
        raise pickle.UnpicklingError(message) from None


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
class _RefusedError(Exception):
    pass


def _refuse(found: str) -> NoReturn:
    raise _RefusedError(found)


def _is_boxed(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


@final
class _Type:
    def __init__(self, code: str, *_: object) -> None:
        self.dtype = np.dtype(code) if _TYPES.fullmatch(code) else _refuse(f"the type {code:.20}")


@final
class _Reader(pickle._Unpickler):  # the one written in C has no table of instructions
    dispatch: ClassVar[dict[int, Any]] = {code: pickle._Unpickler.dispatch[code] for code in _CODES}
    stack: list[Any]
    metastack: list[list[Any]]
    memo: dict[int, Any]

    def __init__(self, file: BinaryIO, *, containers: bool) -> None:
        super().__init__(file, encoding="latin1")  # Python 2 wrote bytes as strings
        self.file, self.room, self.used, self.unfilled = file, free_memory(), 0, dict[int, np.ndarray]()
        self.numbers, self.deepest, self.most = 0, DEEPEST if containers else 1, sys.maxsize if containers else LONGEST
        if containers:
            vars(self)["dispatch"] = {**self.dispatch, **_DICTIONARIES}
        self.makers = {
            "numpy.ndarray": _RefusedError,  # named beside each array, and not called
            "numpy.dtype": _Type,
            "numpy.core.multiarray._reconstruct": self.make_array,
            "numpy.core.multiarray.scalar": lambda kind, content: self.fill(np.empty(0), (), kind, False, content)[()],
            "numpy.core.numeric._frombuffer": lambda content, kind, shape, order: self.fill(
                np.empty(0), shape, kind, order == "F", content
            ),
            "_codecs.encode": self.encode,
            "builtins.bytes": lambda: b"",
            "__builtin__.bytes": lambda: b"",
        }

    def load(self) -> Any:
        start = self.file.tell()
        for count, (step, argument, _) in enumerate(pickletools.genops(self.file)):  # also refuses claims of length
            if ord(step.code) not in self.dispatch:
                _refuse(_NAMES.get(step.name, f"the instruction {step.name}"))
            if isinstance(argument, int) and argument.bit_length() > 64:
                _refuse(f"a number of {argument.bit_length():,} bits")
            self.take(COST + (len(argument) if isinstance(argument, (str, bytes, bytearray)) else 0))
            if count > self.most:
                _refuse(f"more than {self.most:,} instructions")
        self.file.seek(start)
        value = super().load()
        self.memo.clear()  # it holds this reader too
        if self.stack or self.metastack or self.unfilled:
            _refuse("something left over")
        self.check(value)
        return value

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self.room:
            _refuse(f"what {memory_problem(self.used, self.room)}")

    def check(self, value: Any) -> None:
        """Refuse what is no data, and containers without an end, written out as often as others hold them."""
        left = [([value], 0)]
        while left:
            held, depth = left.pop()
            items = held.ravel().tolist() if isinstance(held, np.ndarray) else held
            items = list(items.values()) if isinstance(items, dict) else items
            self.take(COST * len(items))
            if odd := [kind.__name__ for kind in set(map(type, items)) if not issubclass(kind, _VALUES)]:
                _refuse(f"{odd[0]}, which is no value")
            inner = [item for item in items if isinstance(item, (list, tuple, dict)) or _is_boxed(item)]
            if inner and depth == self.deepest:
                _refuse(type(inner[0]).__name__ + (f" inside of {depth} containers" if depth > 1 else ""))
            left += [(item, depth + 1) for item in inner]

    def find_class(self, module: str, name: str) -> Any:
        known = self.makers.get(f"{module}.{name}".replace("numpy._core.", "numpy.core.", 1))
        return known or _refuse(f"{module}.{name}, which is not run")

    def encode(self, text: str, codec: str) -> bytes:
        self.take(len(text))
        return text.encode("latin1") if codec in ("latin1", "latin-1") else _refuse(f"the code {codec:.20}")

    def make_array(self, *_: object) -> np.ndarray:
        array = np.empty(0)
        return self.unfilled.setdefault(id(array), array)

    def build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if type(made) is _Type:
            made.dtype = made.dtype.newbyteorder(state[1]) if state[1] in ("<", ">") else made.dtype
        else:
            self.fill(self.unfilled[id(made)], *state[1:])
            del self.unfilled[id(made)]

    def fill(self, array: np.ndarray, shape: Any, kind: _Type, fortran: object, content: Any) -> np.ndarray:
        dtype = kind.dtype if type(kind) is _Type else _refuse("an array without a type")
        if isinstance(content, (str, bytearray)):
            content = self.encode(content, "latin1") if isinstance(content, str) else bytes(content)
        expected, each = (list, 1) if dtype.hasobject else (bytes, dtype.itemsize)
        fits = type(shape) is tuple and len(shape) <= MOST_AXES and type(content) is expected
        count = math.prod(shape) if fits and all(type(axis) is int and axis >= 0 for axis in shape) else -1
        if count < 0 or len(content) != count * each or (count > 1 and not each):
            _refuse(f"an array of shape {shape!s:.100} and a content that does not fit it")
        if dtype.hasobject and any(id(item) in self.unfilled or _is_boxed(item) for item in content):
            _refuse("arrays of objects inside of each other")  # very deep, they would end the process
        self.take(0 if dtype.isnative else len(content))  # numpy shares the bytes where it can
        state: Any = (1, shape, dtype, bool(fortran), content)
        array.__setstate__(state)
        check_values(array)
        return array

    def put(self, items: list[Any]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.numbers += not isinstance(key, (str, bytes))
            if not isinstance(key, (str, bytes, int, float, np.number, type(None))) or type(self.stack[-1]) is not dict:
                _refuse(f"{type(key).__name__} as a key of {type(self.stack[-1]).__name__}")
            if self.numbers > NUMBERS:
                _refuse(f"more than {NUMBERS:,} keys that are numbers")
            self.stack[-1][key] = value

    dispatch[pickle.BUILD[0]] = build


_DICTIONARIES: dict[int, Any] = {
    pickle.EMPTY_DICT[0]: lambda reader: reader.append({}),
    pickle.DICT[0]: lambda reader: _refuse("the instruction DICT") if reader.pop_mark() else reader.append({}),
    pickle.SETITEM[0]: lambda reader: reader.put([reader.stack.pop(-2), reader.stack.pop()]),
    pickle.SETITEMS[0]: lambda reader: reader.put(reader.pop_mark()),
}

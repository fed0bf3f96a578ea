"""Reading pickles without running them: numpy arrays and plain containers, and nothing else.

A pickle is a program. It is carried out by a machine that knows only the instructions that plain data needs, and the
functions that it may call are those of `rebuild`, never numpy's own.
"""

import io
import itertools
import pickle
import pickletools
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np

from equipoise.data.own.rebuild import Target, Unbuilt, checked_key, refuse, target_of
from equipoise.util.processes import free_memory

DEEPEST = 100  # containers in each other
DEEPEST_ARRAYS = 16  # arrays of objects in each other: numpy frees them by recursion, without a limit
SHARED = 2**30  # bytes by which content may grow when what it holds several times is written out
COST = 100  # bytes of memory that one instruction takes, about
EMPTY_SET_COST = 250
PIECE = 2**24  # bytes that are asked for at once where nobody knows how many there are
LARGE = 2**20  # bytes: content that is let go as soon as it is in an array
LONGEST_NUMBER = 128  # bits

_ESCAPED = {b"\\": b"\\", b"'": b"'", b'"': b'"', b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_MISSING = object()
_LEAVES = (str, bytes, bytearray, int, float, bool, type(None), np.dtype)


def load_pickle(source: str | Path | BinaryIO | bytes) -> Any:
    """Read a pickle that holds numpy arrays and plain containers. Anything else in it is refused, not run.

    Args:
        source: A path, an open file, or the bytes themselves.

    Raises:
        pickle.UnpicklingError: If it holds anything else, is damaged, or needs more memory than is free.
    """
    if isinstance(source, bytes):
        return read_pickle(io.BytesIO(source), len(source))
    if isinstance(source, (str, Path)):
        with Path(source).open("rb") as file:
            return read_pickle(file, Path(source).stat().st_size)
    return read_pickle(source)


def read_pickle(file: BinaryIO, size: int | None = None) -> Any:
    """Read a pickle from an open file.

    Args:
        file: Stands where the pickle begins.
        size: The number of bytes at most; None where it is not known.

    Raises:
        pickle.UnpicklingError: As `load_pickle`.
    """
    try:
        machine = _Machine(file, size, free_memory())
        value = machine.run()
        _measure((value,), {}, set(), min(machine.room, 10 * (machine.room - machine.left) + SHARED))
        return value
    except pickle.UnpicklingError:
        raise
    except Exception as why:  # an instruction that got what it cannot use; there are dozens of ways
        raise pickle.UnpicklingError(f"refused a damaged pickle: {type(why).__name__}: {why!s:.200}") from why


def _measure(value: Any, known: dict[int, tuple[int, int]], around: set[int], most: int) -> tuple[int, int]:
    """Return the size of a value once written out, and the depth of its containers; refuse what is no plain data.

    A list that holds another twice, which holds another twice, and so on, takes no memory until somebody makes an array
    of it.

    Args:
        value: To be measured.
        known: Containers that were measured, by identity.
        around: The containers that hold the value.
        most: The largest size.
    """
    content: Iterable[Any]
    if type(value) in (list, tuple, set, frozenset):
        content = value
    elif type(value) in (dict, OrderedDict):
        content = itertools.chain(value, value.values())
    elif type(value) is np.ndarray and value.dtype.kind == "O":
        content = value.ravel()
    elif type(value) is np.ndarray or isinstance(value, np.generic):
        return COST + value.nbytes, 0
    elif isinstance(value, _LEAVES):
        return COST + (len(value) if isinstance(value, (str, bytes, bytearray)) else 0), 0
    else:
        refuse("a name that stands for nothing: expected plain data")
    if id(value) in around:
        refuse("a container that is part of itself")
    if id(value) not in known:
        around.add(id(value))
        size, depth = COST, 1
        for part in content if len(around) <= DEEPEST else ():
            plain = type(part) in (int, float, bool)  # most are: they need no call
            inner_size, inner_depth = (COST, 0) if plain else _measure(part, known, around, most)
            size, depth = size + inner_size, max(depth, inner_depth + 1)
        if size > most:
            refuse(f"what would be {size / 2**30:,.1f} GiB, written out: expected at most {most / 2**30:,.1f} GiB")
        if max(depth, len(around)) > DEEPEST:
            refuse(f"containers in each other, more than {DEEPEST} deep: expected at most so many")
        around.discard(id(value))
        known[id(value)] = size, depth
    return known[id(value)]


# -- the machine --


@final
class _Machine:
    """Carries out the instructions of a pickle."""

    def __init__(self, file: BinaryIO, size: int | None, room: int) -> None:
        self.file, self.size, self.room, self.left = file, size, room, room
        self.stack: list[Any] = []
        self.marks: list[int] = []  # how long the stack was
        self.memo: dict[int, Any] = {}
        self.levels: dict[int, int] = {}  # of arrays of objects, by identity: how many are in each other
        self.arrays: list[np.ndarray] = []  # keeps identities from being given twice
        self.returnable = 0  # bytes of large content, which are given back once

    def run(self) -> Any:
        while (code := self.file.read(1)) != b".":
            if code not in _INSTRUCTIONS:
                refuse(f"the instruction {code!r}: expected those of plain data" if code else "a pickle cut short")
            self.take(COST)
            argument = _READERS[code](self) if code in _READERS else None
            _INSTRUCTIONS[code](self, argument)
        (value,) = self.values(1)
        if self.stack or self.marks:
            refuse("a pickle with something left over: expected one value")
        return value

    def take(self, size: int) -> None:
        """Count memory before it is taken."""
        self.left -= size
        if self.left < 0:
            needed = f"at least {(self.room - self.left) / 2**30:,.1f} GiB of memory"
            refuse(f"a pickle that needs {needed}: expected at most what is free, {self.room / 2**30:,.1f} GiB")

    def read(self, size: int) -> bytes:
        self.take(size)
        self.returnable += size if size >= LARGE else 0
        if self.size is not None and size > self.size:
            refuse(f"a pickle cut short: it claims {size:,} bytes, and has {self.size:,} in all")
        parts, missing = [], size
        while missing:
            # Some files take all the memory that is asked for before they look what there is.
            part = self.file.read(missing if self.size is not None else min(missing, PIECE))
            if not part:
                refuse(f"a pickle cut short: expected {size:,} bytes, found {size - missing:,}")
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readline(self) -> bytes:
        line = self.file.readline(self.left)
        self.take(len(line))
        if not line.endswith(b"\n"):
            refuse("a pickle cut short, within a line")
        return line

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def values(self, count: int) -> list[Any]:
        """Take values off the stack, down to the last mark at most."""
        start = len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0):
            refuse("a damaged pickle: expected more on its stack")
        taken = self.stack[start:]
        del self.stack[start:]
        if any(type(value) is Unbuilt for value in taken):
            refuse("to use an array or a type before it is complete")
        return taken

    def since_mark(self) -> list[Any]:
        if not self.marks:
            refuse("a damaged pickle: expected a mark on its stack")
        taken = self.values(len(self.stack) - self.marks[-1])
        self.marks.pop()
        return taken

    def top(self, *kinds: type) -> Any:
        """Return the container that content is added to; only a plain one takes any."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0) or type(self.stack[-1]) not in kinds:
            refuse(f"to add to anything but a {kinds[0].__name__}")
        return self.stack[-1]

    def protocol(self, version: int) -> None:
        if version > 5:
            refuse(f"protocol {version}: expected 0 to 5")

    def value(self, value: Any) -> None:
        if type(value) is int and value.bit_length() > LONGEST_NUMBER:
            refuse(f"a number of {value.bit_length():,} bits: expected at most {LONGEST_NUMBER}")
        if type(value) is str:
            self.take(sys.getsizeof(value) - len(value))  # one letter may make the others as wide as itself
        self.push(value)

    def add_items(self, values: list[Any]) -> None:
        target = self.top(dict, OrderedDict)
        if len(values) % 2:
            refuse("a key without a value")
        target.update((checked_key(key), value) for key, value in zip(values[::2], values[1::2], strict=True))

    def extend(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def include(self, values: list[Any]) -> None:
        self.top(set).update(map(checked_key, values))

    def dictionary(self) -> None:
        values = self.since_mark()
        self.push({})
        self.add_items(values)

    def empty_set(self) -> None:
        self.take(EMPTY_SET_COST)
        self.push(set())

    def frozen_set(self) -> None:
        self.take(EMPTY_SET_COST)
        self.push(frozenset(map(checked_key, self.since_mark())))

    def put(self, place: int) -> None:
        if not self.stack or place < 0:
            refuse("a damaged pickle: expected something to keep")
        self.memo[place] = value = self.stack[-1]
        if type(value) is Unbuilt:
            value.places.append(place)

    def get(self, place: int) -> None:
        if self.memo.get(place, _MISSING) is _MISSING:
            refuse(f"a damaged pickle: expected something kept at place {place}")
        self.push(self.memo[place])

    def call(self) -> None:
        target, arguments = self.values(2)
        if type(target) is not Target or target.call is None or type(arguments) is not tuple:
            called = target.name if type(target) is Target else f"a {type(target).__name__}"
            refuse(f"to call {called}: expected one of the functions that rebuild arrays")
        self.made(target.call(*arguments), arguments)

    def build(self) -> None:
        (state,) = self.values(1)
        unbuilt = self.stack.pop() if len(self.stack) > (self.marks[-1] if self.marks else 0) else None
        if type(unbuilt) is not Unbuilt:
            refuse(f"to change a {type(unbuilt).__name__}: expected an array or a type that has no state yet")
        self.made(unbuilt.build(state), state)
        for place in unbuilt.places:
            if self.memo[place] is unbuilt:
                self.memo[place] = self.stack[-1]

    def made(self, value: Any, out_of: tuple[Any, ...]) -> None:
        """Push a new value, count its memory, and drop what it was made of, which the memo would keep."""
        if type(value) is np.ndarray:
            self.take(value.nbytes)
            if value.dtype.kind == "O":
                self.nest(value)
            for content in out_of:
                if type(content) in (bytes, bytearray, str) and len(content) >= LARGE:
                    for place in itertools.islice(reversed(self.memo), 8):
                        if self.memo[place] is content or self.memo[place] is out_of:
                            self.memo[place] = _MISSING
                    back = min(len(content), self.returnable)
                    self.left, self.returnable = self.left + back, self.returnable - back
        self.push(value)

    def nest(self, array: np.ndarray) -> None:
        level = 1 + max((self.levels.get(id(value), 0) for value in array.flat if type(value) is np.ndarray), default=0)
        if level > DEEPEST_ARRAYS:
            refuse(f"arrays of objects in each other: expected at most {DEEPEST_ARRAYS}")
        self.levels[id(array)] = level
        self.arrays.append(array)


def _read_string(machine: _Machine) -> str:
    """Read a string of Python 2, between quotes and with escapes."""
    quoted = machine.readline().strip()
    if len(quoted) < 2 or quoted[:1] not in (b"'", b'"') or quoted[:1] != quoted[-1:]:
        refuse("a string without quotes")

    def plain(match: re.Match[bytes]) -> bytes:
        hexed = match[1][1:]
        return bytes.fromhex(hexed.decode()) if hexed else _ESCAPED[match[1]]

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|.|$)", plain, quoted[1:-1]).decode("latin1")


_READERS: dict[bytes, Callable[[Any], Any]] = {
    **{opcode.code.encode("latin1"): opcode.arg.reader for opcode in pickletools.opcodes if opcode.arg},
    pickle.STRING: _read_string,  # that of pickletools takes ASCII only
}
_INTEGERS = (pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG, pickle.LONG1, pickle.LONG4)
_TEXTS = (pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8)
_STRINGS = (pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING)
_BYTES = (pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8, pickle.BYTEARRAY8)
_VALUES = (*_INTEGERS, *_TEXTS, *_STRINGS, *_BYTES, pickle.FLOAT, pickle.BINFLOAT)
_INSTRUCTIONS: dict[bytes, Callable[[_Machine, Any], object]] = {
    pickle.PROTO: _Machine.protocol,
    pickle.FRAME: lambda _, __: None,  # how much follows; it follows anyway
    pickle.MARK: lambda m, _: m.marks.append(len(m.stack)),
    **dict.fromkeys(_VALUES, _Machine.value),
    pickle.NONE: lambda m, _: m.push(None),
    pickle.NEWTRUE: lambda m, _: m.push(True),
    pickle.NEWFALSE: lambda m, _: m.push(False),
    # containers
    pickle.EMPTY_TUPLE: lambda m, _: m.push(()),
    pickle.TUPLE1: lambda m, _: m.push(tuple(m.values(1))),
    pickle.TUPLE2: lambda m, _: m.push(tuple(m.values(2))),
    pickle.TUPLE3: lambda m, _: m.push(tuple(m.values(3))),
    pickle.TUPLE: lambda m, _: m.push(tuple(m.since_mark())),
    pickle.EMPTY_LIST: lambda m, _: m.push([]),
    pickle.LIST: lambda m, _: m.push(m.since_mark()),
    pickle.APPEND: lambda m, _: m.extend(m.values(1)),
    pickle.APPENDS: lambda m, _: m.extend(m.since_mark()),
    pickle.EMPTY_DICT: lambda m, _: m.push({}),
    pickle.DICT: lambda m, _: m.dictionary(),
    pickle.SETITEM: lambda m, _: m.add_items(m.values(2)),
    pickle.SETITEMS: lambda m, _: m.add_items(m.since_mark()),
    pickle.EMPTY_SET: lambda m, _: m.empty_set(),
    pickle.ADDITEMS: lambda m, _: m.include(m.since_mark()),
    pickle.FROZENSET: lambda m, _: m.frozen_set(),
    # the memo
    **dict.fromkeys((pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT), _Machine.put),
    pickle.MEMOIZE: lambda m, _: m.put(len(m.memo)),
    **dict.fromkeys((pickle.GET, pickle.BINGET, pickle.LONG_BINGET), _Machine.get),
    # arrays
    pickle.GLOBAL: lambda m, names: m.push(target_of(*names.split(" ", 1))),
    pickle.STACK_GLOBAL: lambda m, _: m.push(target_of(*m.values(2))),
    pickle.REDUCE: lambda m, _: m.call(),
    pickle.BUILD: lambda m, _: m.build(),
}

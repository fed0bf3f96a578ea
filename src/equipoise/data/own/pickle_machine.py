"""The machine that pickles are programs for, with those of its instructions that plain data is written with."""

from __future__ import annotations

import itertools
import pickle
import re
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO, final

import numpy as np

from equipoise.data.own.rebuild import Target, Unbuilt, checked_key, refuse, target_of

COST = 100  # bytes of memory that one instruction takes, about
EMPTY_SET_COST = 250
PIECE = 2**24  # bytes that are asked for at once where nobody knows how many there are
LARGE = 2**20  # bytes: content that is let go as soon as it is in an array
LONGEST_NUMBER = 128  # bits
DEEPEST_ARRAYS = 16  # arrays of objects in each other: numpy frees them by recursion, without a limit

_ESCAPED = {b"\\": b"\\", b"'": b"'", b'"': b'"', b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_MISSING = object()


def carry_out(file: BinaryIO, size: int | None, room: int) -> tuple[Any, int]:
    """Carry out a pickle; give its value, and the bytes of memory that were taken for it.

    Args:
        file: Stands where the pickle begins.
        size: How many bytes there are at most; None where nobody knows.
        room: How many bytes of memory may be taken.

    Raises:
        Exception: Of any kind, where the pickle is damaged or refused.
    """
    machine = _Machine(file, size, room)
    return machine.run(), room - machine.left


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
            _INSTRUCTIONS[code](self)
        (found,) = self.values(1)
        if self.stack or self.marks:
            refuse("a pickle with something left over: expected one value")
        return found

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

    def line(self) -> bytes:
        found = self.file.readline(self.left)
        self.take(len(found))
        if not found.endswith(b"\n"):
            refuse("a pickle cut short, within a line")
        return found[:-1]

    def whole(self, layout: str) -> int:
        """A number of a given layout."""
        return struct.unpack(layout, self.read(struct.calcsize(layout)))[0]

    def text(self, content: bytes) -> str:
        self.take(3 * len(content))  # one letter may make the others as wide as itself
        return content.decode("utf-8", "surrogatepass")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def values(self, count: int) -> list[Any]:
        """Take values off the stack, down to the last mark at most."""
        start = len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0):
            refuse("a damaged pickle: expected more on its stack")
        found = self.stack[start:]
        del self.stack[start:]
        if any(type(each) is Unbuilt for each in found):
            refuse("to use an array or a type before it is complete")
        return found

    def since_mark(self) -> list[Any]:
        if not self.marks:
            refuse("a damaged pickle: expected a mark on its stack")
        found = self.values(len(self.stack) - self.marks[-1])
        self.marks.pop()
        return found

    def top(self, *kinds: type) -> Any:
        """Return the container that content is added to; only a plain one takes any."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0) or type(self.stack[-1]) not in kinds:
            refuse(f"to add to anything but a {kinds[0].__name__}")
        return self.stack[-1]

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def protocol(self) -> None:
        if (found := self.read(1)[0]) > 5:
            refuse(f"protocol {found}: expected 0 to 5")

    def integer(self, value: int) -> None:
        if value.bit_length() > LONGEST_NUMBER:
            refuse(f"a number of {value.bit_length():,} bits: expected at most {LONGEST_NUMBER}")
        self.push(value)

    def written_integer(self) -> None:
        found = self.line()
        self.push(found == b"01") if found in (b"00", b"01") else self.integer(int(found))

    def bare_text(self) -> None:
        """A string of Python 2, between quotes and with escapes."""
        found = self.line().strip()
        if len(found) < 2 or found[:1] not in (b"'", b'"') or found[:1] != found[-1:]:
            refuse("a string without quotes")

        def plain(match: re.Match[bytes]) -> bytes:
            hexed = match[1][1:]
            return bytes.fromhex(hexed.decode()) if hexed else _ESCAPED[match[1]]

        self.push(re.sub(rb"\\(x[0-9a-fA-F]{2}|.|$)", plain, found[1:-1]).decode("latin1"))

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

    def named(self) -> None:
        self.push(target_of(*self.values(2)))

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
        """Push what was made, count its memory, and let go of what it was made of, which a memo would keep."""
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
        level = 1 + max((self.levels.get(id(each), 0) for each in array.flat if type(each) is np.ndarray), default=0)
        if level > DEEPEST_ARRAYS:
            refuse(f"arrays of objects in each other: expected at most {DEEPEST_ARRAYS}")
        self.levels[id(array)] = level
        self.arrays.append(array)


_INSTRUCTIONS: dict[bytes, Callable[[_Machine], object]] = {
    pickle.PROTO: _Machine.protocol,
    pickle.FRAME: lambda m: m.read(8),  # how much follows; it follows anyway
    pickle.MARK: _Machine.mark,
    # values
    pickle.NONE: lambda m: m.push(None),
    pickle.NEWTRUE: lambda m: m.push(True),
    pickle.NEWFALSE: lambda m: m.push(False),
    pickle.INT: _Machine.written_integer,
    pickle.LONG: lambda m: m.integer(int(m.line().removesuffix(b"L"))),
    pickle.BININT: lambda m: m.push(m.whole("<i")),
    pickle.BININT1: lambda m: m.push(m.whole("<B")),
    pickle.BININT2: lambda m: m.push(m.whole("<H")),
    pickle.LONG1: lambda m: m.integer(int.from_bytes(m.read(m.whole("<B")), "little", signed=True)),
    pickle.LONG4: lambda m: m.integer(int.from_bytes(m.read(m.whole("<I")), "little", signed=True)),
    pickle.FLOAT: lambda m: m.push(float(m.line())),
    pickle.BINFLOAT: lambda m: m.push(m.whole(">d")),
    pickle.STRING: _Machine.bare_text,
    pickle.BINSTRING: lambda m: m.push(m.read(m.whole("<I")).decode("latin1")),
    pickle.SHORT_BINSTRING: lambda m: m.push(m.read(m.whole("<B")).decode("latin1")),
    pickle.UNICODE: lambda m: m.push(m.line().decode("raw-unicode-escape")),
    pickle.BINUNICODE: lambda m: m.push(m.text(m.read(m.whole("<I")))),
    pickle.SHORT_BINUNICODE: lambda m: m.push(m.text(m.read(m.whole("<B")))),
    pickle.BINUNICODE8: lambda m: m.push(m.text(m.read(m.whole("<Q")))),
    pickle.BINBYTES: lambda m: m.push(m.read(m.whole("<I"))),
    pickle.SHORT_BINBYTES: lambda m: m.push(m.read(m.whole("<B"))),
    pickle.BINBYTES8: lambda m: m.push(m.read(m.whole("<Q"))),
    pickle.BYTEARRAY8: lambda m: m.push(bytearray(m.read(m.whole("<Q")))),
    # containers
    pickle.EMPTY_TUPLE: lambda m: m.push(()),
    pickle.TUPLE1: lambda m: m.push(tuple(m.values(1))),
    pickle.TUPLE2: lambda m: m.push(tuple(m.values(2))),
    pickle.TUPLE3: lambda m: m.push(tuple(m.values(3))),
    pickle.TUPLE: lambda m: m.push(tuple(m.since_mark())),
    pickle.EMPTY_LIST: lambda m: m.push([]),
    pickle.LIST: lambda m: m.push(m.since_mark()),
    pickle.APPEND: lambda m: m.extend(m.values(1)),
    pickle.APPENDS: lambda m: m.extend(m.since_mark()),
    pickle.EMPTY_DICT: lambda m: m.push({}),
    pickle.DICT: _Machine.dictionary,
    pickle.SETITEM: lambda m: m.add_items(m.values(2)),
    pickle.SETITEMS: lambda m: m.add_items(m.since_mark()),
    pickle.EMPTY_SET: _Machine.empty_set,
    pickle.ADDITEMS: lambda m: m.include(m.since_mark()),
    pickle.FROZENSET: _Machine.frozen_set,
    # the memo
    pickle.PUT: lambda m: m.put(int(m.line())),
    pickle.BINPUT: lambda m: m.put(m.whole("<B")),
    pickle.LONG_BINPUT: lambda m: m.put(m.whole("<I")),
    pickle.MEMOIZE: lambda m: m.put(len(m.memo)),
    pickle.GET: lambda m: m.get(int(m.line())),
    pickle.BINGET: lambda m: m.get(m.whole("<B")),
    pickle.LONG_BINGET: lambda m: m.get(m.whole("<I")),
    # arrays
    pickle.GLOBAL: lambda m: m.push(target_of(m.line().decode(), m.line().decode())),
    pickle.STACK_GLOBAL: _Machine.named,
    pickle.REDUCE: _Machine.call,
    pickle.BUILD: _Machine.build,
}

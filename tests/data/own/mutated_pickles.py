"""Pickles with errors, made by chance and by malice: each gives plain data or is refused, and the process lives on.

As a program: `python mutated_pickles.py COUNT SEED` reads so many, in little memory, and says what became of them.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import random
import resource
import struct
import sys
import time
import warnings
from typing import Any

import numpy as np

from equipoise.data.own.unpickle import load_pickle

MEMORY = 6 * 2**30
KINDS = ["f2", "f4", ">f8", "i1", ">i4", "u8", "?", "c8", "S5", "U3", ">U2", "O"]
PLAIN = (type(None), bool, int, float, str, bytes, bytearray, np.dtype, np.generic)


def boxed(*values: Any) -> np.ndarray:
    box = np.empty(len(values), object)
    for number, value in enumerate(values):
        box[number] = value
    return box


def contents() -> list[Any]:
    arrays = [np.arange(6).reshape(2, 3).astype(kind) for kind in KINDS]
    shared = [1, 2.5, "three"]
    return [
        {"X": boxed(np.arange(6.0).reshape(2, 3), np.ones((1, 3))), "y": np.array([0, 1]), "s": np.float32(2.5)},
        {"train": {"id": np.array(["a[0]", "bb[1]"]), "labels": np.zeros((2, 1, 1)), "text": np.ones((2, 3, 4), "f4")}},
        {"a": [1, -(2**40), 1e300], 7: ("x", None, True, b"\x00\xff", b"")},
        [shared, shared, {"again": shared}, {2.5: 2}],
        [np.asfortranarray(np.arange(6).reshape(2, 3))],
        boxed(np.float64(1), "x", None, np.arange(4.0), np.int8(3)),
        boxed("a", None, [np.int8(3)]),
        *arrays,
    ]


PYTHON_2 = [  # as Python 2 wrote it: bytes are strings
    b"(dp0\nS'x'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n(I0\ntp4\nS'b'\np5\ntp6\nRp7\n(I1\n"
    b"(I2\ntp8\ncnumpy\ndtype\np9\n(S'i2'\np10\nI0\nI1\ntp11\nRp12\n(I3\nS'<'\np13\nNNNI-1\nI-1\nI0\ntp14\nbI00\n"
    b"S'\\x01\\x00\\'\\n'\np15\ntp16\nbs.",
    b"\x80\x02}q\x00U\x01xq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85q\x04U\x01bq"
    b"\x05\x87q\x06Rq\x07(K\x01K\x02\x85q\x08cnumpy\ndtype\nq\tU\x02i2q\nK\x00K\x01\x87q\x0bRq\x0c(K\x03U\x01<q\rNNNJ"
    b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x0eb\x89U\x04\x01\x00'\nq\x0ftq\x10bs.",
]
PIECES = [
    b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy._core.multiarray\nscalar\n",
    b"cnumpy._core.numeric\n_frombuffer\n",
    b"ccollections\nOrderedDict\n",
    b"c_codecs\nencode\n",
    b"cbuiltins\nbytes\n",
    b"cposix\nsystem\n",
    b"cnumpy\nndarray\n(K\x01\x85\x8c\x01OtR\x94",
    b"cnumpy\nndarray\n(K\x01\x85\x8c\x01OC\x08" + struct.pack("<Q", 0x414141414140) + b"tR",
    b"cnumpy\ndtype\n\x8c\x01O\x89\x88\x87R(K\x03\x8c\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb",
    b"cnumpy\ndtype\n\x8c\x02f8\x89\x88\x87R(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
    b"(K\x01K\x01\x85h\x00\x89C\x08AAAAAAAAtb",
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR\x94",
    b"\x85" * 50,
    b"]" * 50,
    b"\x8a\xff" + b"\x7f" * 255,
    b"\x8e" + struct.pack("<Q", 2**40),
    b"\x96" + struct.pack("<Q", 2**33),
    b"B\xff\xff\xff\x7f",
    b"X\xff\xff\xff\xff",
    b"r\xff\xff\xff\x7f",
    b"S'\\x4",
    b"I99999999999999999999\n",
    b"V\\ud800\n",
]


def wholes() -> list[bytes]:
    """Pickles that can be read, of every protocol."""
    made = [pickle.dumps(content, protocol) for content in contents() for protocol in range(6)]
    made += [pickle.dumps(bytearray(b"abc"), 5)]
    old = [whole.replace(b"numpy._core", b"numpy.core") for whole in made if b"\ncnumpy._core" in b"\n" + whole]
    return [*made, *old, *PYTHON_2]


def instructions(whole: bytes) -> list[tuple[str, bytes]]:
    """Each instruction of a pickle: what it does to the stack, and its bytes."""
    found = list(pickletools.genops(whole))
    ends = [place for _, _, place in found[1:]] + [len(whole)]
    return [
        (f"{each.stack_before} {each.stack_after}", whole[place:end])
        for (each, _, place), end in zip(found, ends, strict=True)
    ]


def exchanged(whole: bytes, other: bytes, draw: random.Random) -> bytes:
    """Some instructions replaced by others that do the same to the stack: such a pickle gets far."""
    mine, theirs = instructions(whole), instructions(other)
    for _ in range(draw.choice([1, 1, 2, 3])):
        place = draw.randrange(len(mine))
        fitting = [each for each in (*mine, *theirs) if each[0] == mine[place][0]]
        mine[place] = draw.choice(fitting)
    return b"".join(content for _, content in mine)


def mutated(whole: bytes, other: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, left out or doubled, instructions put in or exchanged, or the end that of another pickle."""
    if draw.random() < 0.4:
        return exchanged(whole, other, draw)
    content = bytearray(whole)
    places = [place or 0 for _, _, place in pickletools.genops(whole)]
    for _ in range(draw.choice([1, 1, 1, 1, 2, 4, 12])):
        place, at = draw.randrange(len(content)), min(draw.choice(places), len(content))
        match draw.randrange(9):
            case 0 | 1:
                content[place] = draw.randrange(256)
            case 2 | 3:
                content[place] ^= 1 << draw.randrange(8)
            case 4:
                del content[place : place + draw.randrange(1, 9)]
            case 5:
                start = draw.randrange(len(content))
                content[place:place] = content[start : start + draw.randrange(1, 40)]
            case 6:
                code = draw.choice(pickletools.opcodes).code.encode("latin1")
                content[at:at] = code + draw.randbytes(draw.choice([0, 0, 1, 4]))
            case 7:
                content[at:at] = draw.choice(PIECES)
            case _:
                content[place:] = other[draw.randrange(len(other)) :]
        content = content or bytearray(b".")
    return bytes(content)


def touch(value: Any, deep: int = 0) -> None:
    """Look at everything that was read, each number of each array: memory that is not ours would show."""
    assert deep < 200
    if type(value) is np.ndarray:
        touch(value.tolist(), deep + 1) if value.dtype.kind == "O" else value.copy().tobytes()
        str(value.dtype)
    elif type(value) is dict:
        for key, item in value.items():
            hash(key)
            touch(item, deep + 1)
    elif type(value) in (list, tuple):
        for item in value:
            touch(item, deep + 1)
    else:
        assert isinstance(value, PLAIN), type(value)
        repr(value)


def read_mutated(count: int, seed: int) -> dict[str, int]:
    """Read so many pickles, and say how many were refused and how many gave something.

    Raises:
        AssertionError: If one raises anything else, or gives what is no plain data.
    """
    draw, known, found = random.Random(seed), wholes(), {"refused": 0, "loaded": 0}
    for whole in known:
        touch(load_pickle(io.BytesIO(whole)))
    for _ in range(count):
        content = mutated(draw.choice(known), draw.choice(known), draw)
        containers = draw.random() < 0.7
        try:
            loaded = load_pickle(io.BytesIO(content), containers=containers)
        except pickle.UnpicklingError:
            found["refused"] += 1
            continue
        except Exception as escaped:
            raise AssertionError(f"{content!r} raised {escaped!r}") from escaped
        try:
            touch(loaded)
            if isinstance(loaded, np.ndarray) and not containers:
                assert not any(isinstance(value, (list, tuple, dict)) for value in loaded.ravel().tolist())
        except Exception as escaped:
            raise AssertionError(f"{content!r} gave what is no plain data: {escaped!r}") from escaped
        found["loaded"] += 1
    return found


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("error")
    wanted, first, started = int(sys.argv[1]), int(sys.argv[2]), time.perf_counter()
    print("cases", wanted, "seed", first, read_mutated(wanted, first), f"{time.perf_counter() - started:.1f} s")

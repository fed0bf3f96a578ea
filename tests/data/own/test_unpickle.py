"""A pickle is data here, never a program."""

import builtins
import contextlib
import io
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy._core.multiarray import _reconstruct
from numpy._core.numeric import _frombuffer  # ty: ignore[import-not-found]

from data.own.mutated_pickles import boxed, read_mutated, wholes
from equipoise.data.own import unpickle
from equipoise.data.own.unpickle import load_pickle


def read(content: bytes, *, containers: bool = True) -> Any:
    return load_pickle(io.BytesIO(content), containers=containers)


class Bomb:
    """Unpickles by calling something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class Innocent:
    """A class of someone's own."""


def bombs(mark: Path) -> dict[str, Any]:
    return {
        "os.system": Bomb(os.system, f"touch {mark}"),
        "builtins.eval": Bomb(eval, f"open({str(mark)!r}, 'w')"),
        "builtins.exec": Bomb(exec, f"open({str(mark)!r}, 'w')"),
        "builtins.getattr": Bomb(getattr, np.ndarray, "tofile"),
        "subprocess": Bomb(subprocess.Popen, ["touch", str(mark)]),
        "numpy.load": Bomb(np.load, str(mark)),
        "an array that holds a class": np.array([Bomb(os.system, f"touch {mark}"), 1], dtype=object),
        "deep inside": {"X": [({"y": Bomb(os.system, f"touch {mark}")},)]},
        "a class of someone's own": [Innocent()],
        "builtins themselves": builtins.open,
    }


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("name", bombs(Path("mark")))
def test_nothing_runs_from_a_pickle(name: str, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    content = pickle.dumps(bombs(mark)[name], protocol=protocol)
    for containers, expected in ((True, "expected a pickle of numpy arrays"), (False, "expected an array of objects")):
        with pytest.raises(
            pickle.UnpicklingError,
            match=rf"{expected}.*, found (\S+, which is not run|a dictionary|an object of a class)",
        ):
            read(content, containers=containers)
    assert not mark.exists()


def test_the_bombs_do_go_off_elsewhere(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps(bombs(mark)["os.system"]))
    assert mark.exists()


def test_a_dotted_name_does_not_lead_on_from_an_allowed_one() -> None:
    content = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    with pytest.raises(pickle.UnpicklingError, match=r"found numpy\.ndarray\.tofile, which is not run"):
        read(content)


def rename_module(content: bytes) -> bytes:
    """The same pickle as numpy 1 wrote it: shorter names, with the lengths in front of them put right."""
    for module in ("numeric", "multiarray"):
        new, old = f"numpy._core.{module}".encode(), f"numpy.core.{module}".encode()
        content = content.replace(b"\x8c" + bytes([len(new)]) + new, b"\x8c" + bytes([len(old)]) + old)
        content = content.replace(b"c" + new + b"\n", b"c" + old + b"\n")
    if b"\x95" in content:  # frames carry their length; without them the rest reads the same
        content = content[:2] + content[11:]
    return content


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("renamed", [False, True])
def test_text_in_an_array_of_objects_is_read(protocol: int, renamed: bool) -> None:
    """Python writes text of one letter once: some of these stand in what numpy writes before the values."""
    words = ["b", "|", "O8", "latin1", "", "naïve", "\N{GRINNING FACE}", "x" * 300, None, 2, 2.5, True, np.str_("y")]
    one = np.empty((2, 700), object)
    one[:] = np.array(words, object)[np.random.default_rng(0).integers(0, len(words), one.shape)]
    for given in (one, np.asfortranarray(one), one[:, :1], one[:0], one[0], one[0, :1].reshape(())):
        content = pickle.dumps(given, protocol)
        found = read(rename_module(content) if renamed and protocol >= 2 else content, containers=False)
        assert (found.dtype, found.shape) == (np.dtype(object), given.shape)
        assert_same(found.tolist(), given.tolist())


def test_series_in_an_array_of_objects_are_read() -> None:
    given = boxed(np.arange(6.0).reshape(2, 3), None, np.ones((2, 1), ">f4"), np.zeros((2, 0), np.uint8))
    for protocol in range(6):
        assert_same(read(pickle.dumps(given, protocol), containers=False), given)


NESTED = {"list": [1, 2], "tuple": (1,), "dict": {}, "set": {1}, "array": np.array([None])}


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("kind", NESTED)
def test_containers_in_an_array_of_objects_are_refused_with_what_to_type(kind: str, protocol: int) -> None:
    found = r"(a dictionary|a set|__builtin__\.set|builtins\.set|list|tuple|arrays of objects)"
    with pytest.raises(pickle.UnpicklingError, match=rf"text, numbers, or arrays of numbers, found .*{found}.*; save"):
        read(pickle.dumps(boxed("a", NESTED[kind]), protocol), containers=False)


class Made:
    """Unpickles as told, and then gets a state."""

    def __init__(self, *told: Any) -> None:
        self.told = told

    def __reduce__(self) -> Any:
        return self.told


def array(state: tuple[Any, ...], start: tuple[Any, ...] = (np.ndarray, (0,), b"b")) -> Made:
    return Made(_reconstruct, start, state)


PLAIN = (3, "|", None, None, None, -1, -1)
POINTERS = Made(np.dtype, ("O8", False, True), (*PLAIN, 0))  # says that it holds none
NUMBERS = Made(np.dtype, ("f8", False, True), (*PLAIN, 63))
SHARED = Made(np.dtype, ("f8",), (3, ">", None, None, None, -1, -1, 0))
LONG = Made(np.dtype, ("S5", False, True), (3, "|", None, None, None, 5000, 1, 0))
F8 = np.dtype("f8")
MISFITS = {
    "bytes as pointers": array((1, (1,), POINTERS, False, struct.pack("<Q", 0x4141414141414141))),
    "numbers as pointers": array((1, (1,), NUMBERS, False, [1.0])),
    "a type of numpy's own": SHARED,
    "longer items": LONG,
    "too few bytes": array((1, (1000,), F8, False, bytes(8))),
    "a negative length": array((1, (-1,), F8, False, bytes(8))),
    "objects from bytes": array((1, (1,), np.dtype("O"), False, bytes(8))),
    "too few objects": array((1, (2,), np.dtype("O"), False, [1])),
    "objects inside records": array((1, (1,), np.dtype([("a", "O")]), False, [1])),
    "a buffer's array": Made(_frombuffer, (bytes(8), F8, (1,), "C"), (1, (1,), F8, False, bytes(8))),
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_an_array_is_not_made_of_what_is_none(misfit: str, protocol: int) -> None:
    """With a state of its own a type would let a file choose where in memory an object is said to lie."""
    with pytest.raises(pickle.UnpicklingError, match=r"expected .*, found"):
        read(pickle.dumps(MISFITS[misfit], protocol))
    assert np.dtype("f8").byteorder == "="


@pytest.mark.parametrize("kind", ["f2", "f4", ">f8", "i1", ">i4", "u8", "?", "c8", "S5", "U3", "O"])
def test_arrays_of_every_plain_type_are_read(kind: str) -> None:
    given = np.zeros((2, 3), kind)
    for protocol in range(6):
        for one in (given, np.asfortranarray(given), given[0, 0], given[:0]):
            content = pickle.dumps(one, protocol)
            found, expected = np.asarray(read(content)), np.asarray(pickle.loads(content))
            assert found.dtype == expected.dtype.newbyteorder("=")
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "content",
    [
        b"]r\xff\xff\xff\x0f.",
        b"\x80\x05\x96" + (2**33).to_bytes(8, "little") + b"x.",
        b"\x80\x04\x8e" + (2**33).to_bytes(8, "little") + b"x.",
    ],
    ids=["memo", "bytearray", "bytes"],
)
def test_claims_of_length_take_no_memory(content: bytes) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(Exception):  # whether it is refused is not the question
            read(content)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("whole", range(len(wholes())))
def test_what_is_read_is_what_python_reads(whole: int) -> None:
    content = wholes()[whole]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy has moved what Python 2 and numpy 1 named
        expected = pickle.loads(content, encoding="latin1")
    assert_same(read(content), expected)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype.newbyteorder("="), expected.shape)
        for one, other in zip(found.ravel().tolist(), expected.ravel().tolist(), strict=True):
            assert_same(one, other)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        assert_same(list(found.values()), list(expected.values()))
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR\x94"
TYPE = b"cnumpy\ndtype\n\x8c%c%b\x89\x88\x87R(K\x03\x8c\x01%bNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK%btb"
TYPE_OF_ITEMS = b"cnumpy\ndtype\n\x8c\x02%b\x89\x88\x87R(K\x03\x8c\x01%bNNNK%cK%cK%ctb"
DEEP = b")" + b"\x85" * 200_000  # Python ends with a signal where this is hashed
FLOATS, OBJECTS, TRUTHS = TYPE % (2, b"f8", b"<", b"\0"), TYPE % (1, b"O", b"|", b"?"), TYPE % (2, b"b1", b"|", b"\0")
ONE_FLOAT = b"(K\x01K\x01\x85" + FLOATS + b"\x89C\x08AAAAAAAAtb"
NEST = RECONSTRUCT[:-1] + b"(K\x01)" + OBJECTS + b"\x89]"  # an array of one object, without its content
HOSTILE = {
    "an array over a buffer": b"cnumpy\nndarray\n(K\x01\x85\x8c\x01OC\x08AAAAAAAAtR.",
    "an array over an array": b"cnumpy\nndarray\n(K\x01\x85\x8c\x01OtR\x94K\x00B\x08\0\0\0AAAAAAAAs0.",
    "an item put into an array": b"\x80\x04"
    + RECONSTRUCT
    + b"(K\x01K\x01\x85"
    + FLOATS
    + b"\x89C\x08AAAAAAAAtbK\0K\x01s.",
    "two states for one array": RECONSTRUCT + ONE_FLOAT + ONE_FLOAT + b".",
    "two states for one type": FLOATS + b"(K\x03\x8c\x01>NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb.",
    "a type without a state": b"cnumpy\ndtype\n\x8c\x02f8\x89\x88\x87R.",
    "an array without a state": RECONSTRUCT + b".",
    "an array in a list before it has a state": b"]" + RECONSTRUCT + b"ah\x00.",
    "an array that is its own content": RECONSTRUCT + b"(K\x01K\x01\x85" + OBJECTS + b"\x89]h\x00atb.",
    "a type of a list": b"cnumpy\ndtype\n]\x8c\x01a\x8c\x01O\x86a\x89\x88\x87R.",
    "a type of many": b"cnumpy\ndtype\n\x8c\x04f8,O\x89\x88\x87R.",
    "a type of its own size": b"cnumpy\ndtype\n\x8c\x02O9\x89\x88\x87R.",
    "bytes as truth values": RECONSTRUCT + b"(K\x01K\x02\x85" + TRUTHS + b"\x89C\x02\x00\xfftb.",
    "numbers as letters": RECONSTRUCT
    + b"(K\x01K\x01\x85"
    + TYPE_OF_ITEMS % (b"U1", b"<", 4, 4, 8)
    + b"\x89C\x04\xff\xff\xff\xfftb.",
    "items of no size": RECONSTRUCT
    + b"(K\x01\x8a\x06\0\0\0\0\0\x01\x85"
    + TYPE_OF_ITEMS % (b"S0", b"|", 0, 1, 0)
    + b"\x89C\x00tb.",
    "a key nested very deep": b"}" + DEEP + b"Ns.",
    "a member nested very deep": b"\x8f(" + DEEP + b"\x90.",
    "a size nested very deep": b"cnumpy\ndtype\n\x8c\x02S1\x89\x88\x87R(K\x03\x8c\x01|NNN" + DEEP + b"K\0K\0tb.",
    "a name nested very deep": b"\x8c\x05numpy" + DEEP + b"\x93.",
    "a shape of a million axes": RECONSTRUCT + b"(K\x01(" + b"K\xff" * 10**6 + b"t" + FLOATS + b"\x89C\x00tb.",
    "a set of lists": b"\x8f(]\x90.",
    "arrays nested very deep": NEST * 20_000 + b"N" + b"atb" * 20_000 + b".",
    "arrays and lists nested very deep": (NEST + b"]") * 20_000 + b"atb" + b"aatb" * 19_999 + b".",
    "lists nested very deep": b"]" * 10**5 + b"a" * (10**5 - 1) + b".",
    "a list that holds itself": b"]\x94h\x00a.",
    "a list that holds itself deep inside": b"]\x94(K\x01\x85h\x00\x85h\x00e.",
    "laughs by the billion": b"((K\x01l\x94" + b"".join(b"(h%ch%cl\x94" % (at, at) for at in range(60)) + b"l.",
    "a codec that runs long": b"c_codecs\nencode\n\x8c\x01x\x8c\x04zlib\x86R.",
    "a function as data": b"]cnumpy\ndtype\na.",
    "ndarray as data": b"cnumpy\nndarray\n.",
    "a number of 2,040 bits": b"\x8a\xff" + b"\x7f" * 255 + b".",
    "a state for a dictionary": b"}}b.",
    "below a mark": b"K\x01(\x85l.",
    "nothing": b".",
    "no end": b"K\x01",
    "too much": b"K\x01K\x02.",
    "an escape that is none": b"S'\\z'\n.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_malice_is_refused(name: str) -> None:
    for containers in (True, False):
        with pytest.raises(pickle.UnpicklingError, match=r"^expected .*, found"):
            read(HOSTILE[name], containers=containers)


KNOWN = b"\x80\x95(N\x88\x89ILJKM\x8a\x8bFGSTUVX\x8c\x8dBC\x8e\x96)\x85\x86\x87t]lae}dsupqr\x94ghjc\x93Rb."


@pytest.mark.parametrize("code", sorted({ord(each.code) for each in pickletools.opcodes} - {*KNOWN}))
def test_instructions_that_plain_data_does_not_need_are_refused(code: int) -> None:
    with pytest.raises(
        pickle.UnpicklingError, match=r"found (the instruction|a set|an object of a class|it damaged: ValueError)"
    ):
        read(b"(K\x01K\x01" + bytes([code]) + b"\x01\x01\x01\n\n.")


@pytest.mark.parametrize("content", [b"]" * 10**6, b"}" * 10**6, b"K\x01\x94" * 10**6, b"C\x01x" * 10**6])
def test_a_pickle_that_needs_more_memory_than_is_free_is_refused(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpickle, "free_memory", lambda: 10 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(pickle.UnpicklingError, match=r"found what needs about 0\.0 GiB of memory, and"):
            read(b"(" + content + b"l.")
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


def test_an_array_of_too_many_objects_is_refused_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpickle, "LONGEST", 10_000)
    assert len(read(pickle.dumps(boxed(*range(4_000)), 4), containers=False)) == 4_000
    with pytest.raises(pickle.UnpicklingError, match=r"found more than 10,000 instructions; save text as labels"):
        read(b"(" + b"N" * 11_000 + b"l.", containers=False)


def test_numbers_whose_hashes_meet_take_no_time() -> None:
    """A dictionary whose keys all hash alike takes the square of their number."""
    prime = 2**61 - 1
    keys = [pickle.LONG1 + b"\x0c" + (prime * (number + 1)).to_bytes(12, "little") for number in range(200_000)]
    for start, between, end in ((b"\x8f(", b"", b"\x90"), (b"}(", b"N", b"u")):
        for containers in (True, False):
            with pytest.raises(pickle.UnpicklingError, match=r"found (a set|a dictionary|a number of [67]\d bits)"):
                read(start + b"".join(key + between for key in keys) + end + b".", containers=containers)


def test_only_so_many_keys_are_numbers() -> None:
    """Numbers of 64 bits can be chosen so that each is looked for where all others are."""
    assert len(read(pickle.dumps(dict.fromkeys(range(30_000))))) == 30_000
    with pytest.raises(pickle.UnpicklingError, match="more than 32,768 keys that are numbers"):
        read(pickle.dumps([dict.fromkeys(range(30_000)), dict.fromkeys(np.arange(10_000.0).tolist())]))
    assert len(read(pickle.dumps({str(number): number for number in range(100_000)}))) == 100_000


def test_hundreds_of_mutated_pickles() -> None:
    found = read_mutated(300, seed=0)
    assert min(found.values()) > 30


@pytest.mark.slow
def test_thousands_of_mutated_pickles_end_no_process() -> None:
    program = Path(__file__).parent / "mutated_pickles.py"
    words = [sys.executable, "-X", "faulthandler", str(program), os.environ.get("EQUIPOISE_CASES", "3000"), "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=3000, check=False)
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cases ")

"""A pickle is data here, never a program."""

import builtins
import collections
import contextlib
import io
import os
import pickle
import struct
import subprocess
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy._core.multiarray import _reconstruct
from numpy._core.numeric import _frombuffer  # ty: ignore[import-not-found]

from equipoise.data import load_pickle
from equipoise.data.unpickle import load_object_array


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
    with pytest.raises(pickle.UnpicklingError, match=r"refused to load .*expected a pickle of numpy arrays"):
        load_pickle(content)
    assert not mark.exists()


def test_the_bombs_do_go_off_elsewhere(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps(bombs(mark)["os.system"]))
    assert mark.exists()


def test_a_dotted_name_does_not_lead_on_from_an_allowed_one() -> None:
    content = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    with pytest.raises(pickle.UnpicklingError, match=r"refused to load numpy\.ndarray\.tofile"):
        load_pickle(content)


def test_a_persistent_id_is_refused() -> None:
    with pytest.raises(pickle.UnpicklingError):
        load_pickle(b"Pwhatever\n.")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_arrays_numbers_and_containers_are_read(protocol: int) -> None:
    content = {
        "X": np.array([np.arange(6.0).reshape(2, 3), np.ones((1, 3))], dtype=object),
        "y": np.array([0, 1]),
        "scalar": np.float64(2.5),
        "names": ["a", ("b", None, True)],
        "bytes": b"\x00\xff",
        "ordered": collections.OrderedDict(a=1),
        "fortran": np.asfortranarray(np.arange(4.0).reshape(2, 2)),
    }
    found = load_pickle(pickle.dumps(content, protocol=protocol))
    assert list(found) == list(content)
    assert (found["X"][0] == content["X"][0]).all()
    assert (found["y"] == content["y"]).all()
    assert found["scalar"] == 2.5
    assert (found["names"], found["bytes"], found["ordered"]) == (content["names"], b"\x00\xff", {"a": 1})
    assert (found["fortran"] == content["fortran"]).all()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_files_of_numpy_1_and_2_read_alike(protocol: int) -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    new = pickle.dumps({"x": array, "s": np.float32(1.5)}, protocol=protocol)
    old = rename_module(new)
    assert (b"numpy._core" in new, b"numpy._core" in old) == (True, False)
    for content in (new, old):
        found = load_pickle(content)
        assert found["x"].dtype == np.int16
        assert (found["x"] == array).all()
        assert found["s"] == np.float32(1.5)


def rename_module(content: bytes) -> bytes:
    """The same pickle as numpy 1 wrote it: shorter names, with the lengths in front of them put right."""
    for module in ("numeric", "multiarray"):
        new, old = f"numpy._core.{module}".encode(), f"numpy.core.{module}".encode()
        content = content.replace(b"\x8c" + bytes([len(new)]) + new, b"\x8c" + bytes([len(old)]) + old)
        content = content.replace(b"c" + new + b"\n", b"c" + old + b"\n")
    if b"\x95" in content:  # frames carry their length; without them the rest reads the same
        content = content[:2] + content[11:]
    return content


def test_a_path_an_open_file_and_an_array_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps([1, 2]))
    assert load_pickle(path) == load_pickle(str(path)) == load_pickle(io.BytesIO(path.read_bytes())) == [1, 2]
    np.save(tmp_path / "object.npy", np.array({"a": np.arange(3)}, dtype=object), allow_pickle=True)
    assert load_object_array(tmp_path / "object.npy").tolist()["a"].tolist() == [0, 1, 2]
    np.save(tmp_path / "plain.npy", np.arange(3))
    with pytest.raises(ValueError, match=r"expected an array of objects, found int64; read it with numpy\.load"):
        load_object_array(tmp_path / "plain.npy")


def test_an_array_file_is_no_way_round(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    np.save(tmp_path / "x.npy", np.array([Bomb(os.system, f"touch {mark}")], dtype=object), allow_pickle=True)
    with pytest.raises(pickle.UnpicklingError, match="refused"):
        load_object_array(tmp_path / "x.npy")
    assert not mark.exists()


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
    "an array that holds something": array((1, (1,), F8, False, bytes(8)), (np.ndarray, (3,), b"b")),
    "a buffer's array": Made(_frombuffer, (bytes(8), F8, (1,), "C"), (1, (1,), F8, False, bytes(8))),
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_an_array_is_not_made_of_what_is_none(misfit: str, protocol: int) -> None:
    """With a state of its own a type would let a file choose where in memory an object is said to lie."""
    with pytest.raises(pickle.UnpicklingError, match="refused"):
        load_pickle(pickle.dumps(MISFITS[misfit], protocol))
    assert np.dtype("f8").byteorder == "="


@pytest.mark.parametrize(
    "kind", ["f2", "f4", ">f8", "i1", ">i4", "u8", "?", "c8", "S5", "U3", "V4", "M8[s]", "m8[ms]", "O"]
)
def test_arrays_of_every_plain_type_are_read(kind: str) -> None:
    given = np.zeros((2, 3), kind)
    for protocol in range(6):
        for one in (given, np.asfortranarray(given), given[0, 0], given[:0]):
            content = pickle.dumps(one, protocol)
            found, expected = np.asarray(load_pickle(content)), np.asarray(pickle.loads(content))
            assert found.dtype == expected.dtype
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
            load_pickle(content)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()

"""A pickle is data here, never a program."""

import builtins
import collections
import io
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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

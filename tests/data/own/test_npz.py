"""Files of numpy, read without trusting them."""

import io
import os
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.data.own import npz
from equipoise.data.own.arrays import bytes_as_samples
from equipoise.data.own.npz import read_npy, samples_of_npz
from equipoise.data.splits import Splits
from equipoise.util import processes
from equipoise.util.errors import Unreadable

LABEL = np.arange(30) % 3


class Bomb:
    """Unpickles by writing a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def boxed(values: list[Any]) -> np.ndarray:
    box = np.empty(len(values), object)
    for number, value in enumerate(values):
        box[number] = value
    return box


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def refused(path: Path) -> str:
    with pytest.raises(ValueError, match=r"Expected an \.npz with one array per modality") as found:
        samples_of_npz(path)
    assert str(path) in str(found.value)
    return str(found.value)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def packed(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_every_array_is_read_as_numpy_reads_it(compressed: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "a": random.normal(size=(30, 3, 4)),
        "turned": np.asfortranarray(random.normal(size=(30, 5))),
        "big": random.normal(size=(30, 2)).astype(">f4"),
        "bytes": random.integers(0, 255, (30, 6, 5), dtype=np.uint8),
        "half": random.normal(size=(30, 2)).astype("f2"),
        "number": random.normal(size=30),
        "label": np.array(["x", "y", "z"])[LABEL],
        "group": LABEL // 2,
        "classes": np.array(["x", "y", "z"]),
        "day": np.arange(30).astype("M8[D]"),
        "empty": np.zeros((0, 3)),
        "alone": np.array(2.5),
    }
    (np.savez_compressed if compressed else np.savez)(tmp_path / "a.npz", **arrays)
    found, problems = npz.read_arrays(tmp_path / "a.npz")
    assert problems == []
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_a_file_becomes_parts(tmp_path: Path) -> None:
    label = np.array(["walk", "run", "sit"])[LABEL]
    series = boxed([np.ones((3, 5 + number % 4)) for number in range(30)])
    path = saved(
        tmp_path / "my.npz", imu=series, sound=np.arange(60.0).reshape(30, 2), label=label, group=np.arange(30) // 3
    )
    found = Splits.from_samples(samples_of_npz(path)).check()
    assert (found.name, found.classes) == ("my.npz", ("run", "sit", "walk"))
    assert found.shapes == {"imu": (3, 8), "sound": (2,)}
    assert list(found.train.inputs) == ["imu", "sound", "imu_length"]
    assert [len(part) for part in found.parts.values()] == [18, 6, 6]


def test_what_is_missing_is_said_together(tmp_path: Path) -> None:
    found = samples_of_npz(saved(tmp_path / "my.npz", fused=np.zeros((30, 2)), split=["x"] * 30))
    assert len(found.problems) == 3
    assert any(each.endswith("found none; give an array or a column called label") for each in found.problems)


# -- nothing runs --


@pytest.mark.parametrize("name", ["imu", "label", "group", "split", "classes", "imu_length", "whatever"])
def test_a_pickle_inside_does_not_run(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    arrays: dict[str, Any] = {"imu": np.zeros((3, 2)), "label": [0, 1, 0]}
    path = saved(tmp_path / "bomb.npz", **{**arrays, name: boxed([1, Bomb(mark), 2])})
    found = samples_of_npz(path)
    assert not mark.exists()
    said = f"{name}: cannot be read: expected an array of objects to hold text, numbers, or arrays of numbers, found "
    assert f"{said}posix.system, which is not run; save text as labels.astype(str)" in "\n".join(found.problems)
    with pytest.raises(ValueError, match="which is not run"):
        Splits.from_samples(found)
    np.load(path, allow_pickle=True)[name]
    assert mark.exists(), "the bomb is one"


def test_bare_pickles_do_not_run_either(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    header = npy(boxed([1, 2]))[:128]
    path = packed(tmp_path / "a.npz", x=header + pickle.dumps(Bomb(mark)), label=npy(np.array([0, 1])))
    assert "found posix.system, which is not run" in samples_of_npz(path).problems[0]
    (tmp_path / "x.npy").write_bytes(header + pickle.dumps(Bomb(mark)))
    with pytest.raises(Unreadable, match="which is not run"):
        read_npy(tmp_path / "x.npy")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([1, 2], "list"),
        (np.arange(2), "int64 of shape (2,)"),
        (boxed([1, 2, 3]), "object of shape (3,)"),
        (boxed([1, 2]).reshape(2, 1), "object of shape (2, 1)"),
    ],
)
def test_an_object_that_is_not_what_the_header_says_is_refused(content: Any, found: str, tmp_path: Path) -> None:
    start = npy(boxed([1, 2]))[:128]
    path = packed(tmp_path / "a.npz", x=start + pickle.dumps(content), label=npy(np.array([0, 1])))
    expected = f"x: cannot be read: expected an array of objects of shape (2,), found {found}"
    assert expected in samples_of_npz(path).problems


# -- files that are none --


def test_other_files_are_told_by_how_they_begin(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello, world")
    assert "no zip archive; it begins with b'hello,'" in refused(tmp_path / "text.npz")
    (tmp_path / "one.npz").write_bytes(npy(np.zeros(3)))
    assert "an .npy, one array alone" in refused(tmp_path / "one.npz")
    (tmp_path / "empty.npz").write_bytes(b"")
    assert "empty, 0 bytes" in refused(tmp_path / "empty.npz")
    (tmp_path / "folder.npz").mkdir()
    assert "not a file" in refused(tmp_path / "folder.npz")
    assert "there is no such file" in refused(tmp_path / "none.npz")


def test_a_zip_of_other_things(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
        archive.writestr("x.npy", b"hello")
        archive.writestr("y.npy", npy(np.zeros(3)))
        archive.writestr("y.npy.npy", b"")
    found = samples_of_npz(tmp_path / "a.npz").problems
    assert "readme.txt: expected an array as numpy.savez writes it, found a file of another kind" in found
    assert any(problem.startswith("x: cannot be read: ") for problem in found)
    assert any(problem.startswith("y.npy: cannot be read: ") for problem in found)


@pytest.mark.parametrize("share", [tenth / 10 for tenth in range(1, 10)])
def test_a_file_cut_short_is_refused(share: float, tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole.npz", a=np.zeros((30, 50)), label=LABEL).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: int(share * len(whole))])
    refused(tmp_path / "cut.npz")
    array = npy(np.zeros((30, 50)))
    (tmp_path / "cut.npy").write_bytes(array[: int(share * len(array))])
    with pytest.raises(Unreadable, match=r"cut\.npy"):
        read_npy(tmp_path / "cut.npy")


# -- headers that promise too much --


def header(shape: str, dtype: str = "<f8") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "shape", ["(1000000000000,)", "(3,)", "(-1,)", "(2, -3)", "(9223372036854775807, 2)", "(True,)"]
)
def test_a_header_is_compared_with_what_follows(shape: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(header(shape) + bytes(16))
    with pytest.raises(Unreadable, match=r"a\.npy|promises"):
        read_npy(tmp_path / "a.npy")
    path = packed(tmp_path / "a.npz", a=header(shape) + bytes(16), label=npy(np.array([0, 1])))
    assert samples_of_npz(path).problems[0].startswith("a: ")


@pytest.mark.parametrize("shape", ["(100000000000000, 0)", "(100000000000000, 0, 3)"])
@pytest.mark.parametrize("name", ["a", "b", "label", "group", "split", "classes", "a_length", "a_present", "id"])
def test_any_number_of_samples_without_numbers_is_refused(name: str, shape: str, tmp_path: Path) -> None:
    members = {"a": npy(np.ones((6, 2))), "label": npy(np.arange(6) % 2)}
    path = packed(tmp_path / "my.npz", **{**members, name: header(shape)})
    problems = samples_of_npz(path).problems
    assert any(problem.startswith(f"{name}: expected") for problem in problems)
    assert len(problems) == 1 + any(str(10**14) in one for one in problems if one.startswith("expected one entry"))


def test_an_archive_larger_than_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, a=np.zeros((1000, 1000)), label=np.arange(1000) % 2)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(processes, "free_memory", lambda: 2**20)
    assert "needs about 0.0 GiB of memory, and 0.0 GiB are free" in refused(path)


def bomb(path: Path, gibibytes: int, **members: bytes) -> Path:
    """An archive of zeros, made a piece at a time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("a.npy", "w", force_zip64=True) as file:
            count = gibibytes * 2**30
            file.write(header(f"({count},)", "|u1"))
            for _ in range(gibibytes * 2**10):
                file.write(bytes(2**20))
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.slow
def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    """In a process of its own that may take two gibibytes: once refused for what is free, once for what it may have."""
    path = bomb(tmp_path / "bomb.npz", 2, label=npy(LABEL))
    assert path.stat().st_size < 20 * 2**20
    program = (
        "import resource, sys\n"
        "from equipoise.util import processes\n"
        "from equipoise.data.own.npz import samples_of_npz\n"
        "processes.free_memory = lambda: int(sys.argv[2])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    print(samples_of_npz(sys.argv[1]).problems)\n"
        "except ValueError as found:\n"
        "    print(found)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    for free, most in ((2**30, 50_000), (3 * 2**30, 2_300_000)):
        words = [sys.executable, "-c", program, str(path), str(free)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
        *said, taken = done.stdout.splitlines()
        assert "GiB of memory, and" in "\n".join(said)
        assert int(taken) < most  # kilobytes


def test_laid_out_as_floats_an_array_has_to_fit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "my.npz", a=np.ones((30, 10_000), np.int8), label=LABEL)
    monkeypatch.setattr(processes, "free_memory", lambda: 2**20)
    assert "my.npz: needs about 0.0 GiB of memory, and 0.0 GiB are free; store it in smaller types" in refused(path)
    with pytest.raises(ValueError, match=r"a: needs about 0\.0 GiB of memory, and"):
        Splits.from_arrays({"a": np.ones((30, 10_000), np.int8)}, LABEL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape", "least", "most"),
    [("u1", (200, 50_000), 9, 17), ("f4", (200, 25_000), 9, 17), ("u1", (200, 3, 100, 150), 2, 5)],
)
def test_what_is_counted_is_taken(kind: str, shape: tuple[int, ...], least: int, most: int, tmp_path: Path) -> None:
    """Of a number some thirteen bytes, however small it is in the file; of a byte of a picture some four."""
    numbers = (np.arange(np.prod(shape)) % 251).astype(kind).reshape(shape)
    path = saved(tmp_path / "my.npz", a=numbers, label=np.arange(200) % 3)
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from equipoise.data.own.npz import samples_of_npz\n"
        "from equipoise.data.splits import Splits\n"
        "peak = lambda: int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])\n"
        "before = peak()\n"
        "Splits.from_samples(samples_of_npz(sys.argv[1])).check()\n"
        "print(1024 * (peak() - before))\n"
    )
    words = [sys.executable, "-c", program, str(path)]
    taken = int(subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout)
    assert least < taken / numbers.size < most
    assert 0.6 * taken < bytes_as_samples(shape, np.dtype(kind)) < 2.2 * taken


def test_much_memory_is_announced_before_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "my.npz", a=np.ones((30, 1000), np.uint8), label=LABEL)
    samples_of_npz(path)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(processes, "MUCH", 100_000)
    samples_of_npz(path)
    assert capsys.readouterr().err == "my.npz takes about 0.0 GiB of memory\n"


def test_padding_has_to_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    series = boxed([np.ones((1, 100_000 if number == 7 else 1), np.int8) for number in range(30)])
    path = saved(tmp_path / "my.npz", a=series, label=LABEL)
    monkeypatch.setattr(processes, "free_memory", lambda: 4 * 2**20)
    assert (
        samples_of_npz(path).problems[0].startswith("a: padded to 100,000 steps, as its longest sample has, it needs")
    )


def test_a_column_has_to_fit_as_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "my.npz", a=np.ones((30, 1)), label=np.zeros(70_000, np.int8))
    monkeypatch.setattr(processes, "free_memory", lambda: 2**20)
    assert any(problem.startswith("label: needs about") for problem in samples_of_npz(path).problems)


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packing_that_unpacks_all_at_once_is_refused(packing: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", packing) as archive:
        archive.writestr("a.npy", npy(np.zeros((30, 2))))
        archive.writestr("label.npy", npy(LABEL), zipfile.ZIP_DEFLATED)
    assert "a: expected an array as numpy.savez_compressed packs it" in samples_of_npz(tmp_path / "a.npz").problems[0]


def test_a_directory_that_understates_a_size_is_refused(tmp_path: Path) -> None:
    """Only as much is read as is stated, whatever else would come out."""
    path = packed(tmp_path / "a.npz", a=npy(np.zeros((30, 4_000))), label=npy(LABEL))
    size = len(npy(np.zeros((30, 4_000)))).to_bytes(4, "little")
    less = len(npy(np.zeros((30, 4)))).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, less))
    assert any(problem.startswith("a: ") for problem in samples_of_npz(path).problems)
    path = packed(tmp_path / "b.npz", a=header("(30, 4)") + bytes(10**6), label=npy(LABEL))
    size = (len(header("(30, 4)")) + 10**6).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, less))
    assert any(problem.startswith("a: ") for problem in samples_of_npz(path).problems)


def test_a_header_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    claims = b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little")
    path = packed(tmp_path / "a.npz", a=claims + bytes(30 * 2**20), label=npy(LABEL))
    tracemalloc.start()
    try:
        assert "expected a header of at most 10,000 bytes" in samples_of_npz(path).problems[0]
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


def test_reading_an_array_takes_its_memory_once(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(4 * 2**20))
    tracemalloc.start()
    try:
        npz.read_arrays(tmp_path / "a.npz")
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["|S0", "<U0", "|V0"])
def test_items_without_a_size_are_refused(dtype: str, tmp_path: Path) -> None:
    path = packed(tmp_path / "a.npz", a=npy(np.zeros((2, 1))), label=header("(1000000000000,)", dtype))
    assert samples_of_npz(path).problems[0].startswith("label: cannot be read: expected items that take some memory")


def test_bytes_that_are_no_values_are_refused(tmp_path: Path) -> None:
    path = packed(
        tmp_path / "a.npz",
        a=header("(2,)", "|b1") + b"\x01\xff",
        label=header("(2,)", "<U1") + b"\xff\xff\xff\xffx\0\0\0",
    )
    assert [each[:40] for each in samples_of_npz(path).problems] == [
        "a: cannot be read: expected truth values"[:40],
        "label: cannot be read: expected text, found"[:40],
    ]


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a\u202eb", "a\x07"])
def test_names_that_command_a_terminal_are_refused(name: str, tmp_path: Path) -> None:
    found = samples_of_npz(
        saved(tmp_path / "a.npz", **{name: np.zeros((30, 2))}, label=np.array(["x", "y", name])[LABEL])
    )
    assert len([each for each in found.problems if f"letters that can be shown, found {name!r}" in each]) == 2
    assert not any(name in each for each in found.problems)


def test_many_classes_with_names_are_told_apart_quickly(tmp_path: Path) -> None:
    names = np.array([f"class {number}" for number in range(60_000)])
    found = samples_of_npz(saved(tmp_path / "a.npz", a=np.zeros((60_000, 1)), label=names[::-1], classes=names))
    assert found.label is not None
    assert found.label.values[:2].tolist() == [59_999, 59_998]


def test_a_directory_that_lies_about_sizes_does_not_make_it_read_more(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.npz", a=npy(np.zeros((30, 4))), label=npy(LABEL))
    content = bytearray(path.read_bytes())
    size = len(npy(np.zeros((30, 4)))).to_bytes(4, "little")
    at = content.rindex(size)  # in the directory at the end
    content[at : at + 4] = (2**31).to_bytes(4, "little")
    path.write_bytes(content)
    assert any(problem.startswith("a: ") for problem in samples_of_npz(path).problems)


def test_an_array_of_objects_is_no_array_of_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", boxed([np.zeros(2), np.zeros(3)]))
    with pytest.raises(Unreadable, match="expected numbers, found objects"):
        read_npy(tmp_path / "a.npy")

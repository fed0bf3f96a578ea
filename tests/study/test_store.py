"""One file of results: no row is lost, doubled or torn."""

import errno
import multiprocessing as mp
import os
from pathlib import Path
from typing import Any

import pytest

from equipoise.study import store as stores
from equipoise.study.store import Store, is_disk_error


def row(number: int) -> dict[str, Any]:
    return {"config": f"sha256:{number}", "test": {"fused": number / 7}, "label": "ew at λ/K"}


def test_rows_come_back_as_they_went(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b")
    assert store.rows() == []
    for number in range(3):
        store.append(row(number))
        assert store.rows() == [row(each) for each in range(number + 1)]
    assert Store(tmp_path / "a" / "b").rows() == store.rows()
    assert sorted(path.name for path in store.folder.iterdir()) == ["results.jsonl"]


def test_cut_off_at_any_byte_the_last_row_is_whole_or_no_row(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(row(0))
    start = store.file.stat().st_size
    store.append(row(1))
    whole = store.file.read_bytes()
    for end in range(start, len(whole) + 1):
        store.file.write_bytes(whole[:end])
        found = store.rows()
        assert found == ([row(0), row(1)] if end == len(whole) else [row(0)])
        if len(found) == 1:
            store.append(row(1))
        assert store.file.read_bytes() == whole


def test_a_torn_only_row_is_cut_off(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.file.write_bytes(b"x" * 200_000)  # longer than one block of the search for its start
    assert store.rows() == []
    store.append(row(1))
    assert store.rows() == [row(1)]


def test_a_torn_long_row_is_cut_off(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(row(0))
    with store.file.open("ab") as file:
        file.write(b"y" * 150_000)
    store.append(row(1))
    assert store.rows() == [row(0), row(1)]


@pytest.mark.parametrize("damage", [b"{", b"[1, 2]", b'"text"', b"{}", b"\xff\xfe", b"null"])
def test_damage_in_the_middle_is_named_and_left_alone(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    for number in range(4):
        store.append(row(number))
    lines = store.file.read_bytes().split(b"\n")
    lines[1] = lines[3] = damage
    store.file.write_bytes(b"\n".join(lines))
    before = store.file.read_bytes()
    with pytest.raises(ValueError, match=r"found damage in line 2, 4\. Nothing was changed\..* type: sed") as found:
        store.rows()
    assert store.file.read_bytes() == before
    assert os.system(str(found.value).partition("type: ")[2]) == 0
    assert store.rows() == [row(0), row(2)]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(ValueError, match=r"cannot write to .*choose another folder with --out"):
            Store(place)


def test_a_results_file_that_cannot_be_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.file.mkdir()
    with pytest.raises(ValueError, match=r"cannot write to .*Is a directory; finished runs are safe"):
        store.append(row(0))


@pytest.mark.parametrize("half", [False, True])
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool) -> None:
    store = Store(tmp_path)
    store.append(row(0))
    before, write = store.file.read_bytes(), os.write

    def full(descriptor: int, content: bytes) -> int:
        if half:
            return write(descriptor, content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(ValueError, match=r"No space left on device; finished runs are safe\. Make room"):
            store.append(row(1))
    assert store.file.read_bytes() == before
    store.append(row(1))
    assert store.rows() == [row(0), row(1)]


def test_a_row_is_strict_json(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.append({"config": "x", "loss": float("nan")})
    assert store.rows() == []


def hold(folder: Path, ready: Any, done: Any) -> None:
    with Store(folder).locked():
        ready.set()
        done.wait(20)


def test_two_studies_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = mp.get_context("fork")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, ready, done))
    other.start()
    assert ready.wait(20)
    with monkeypatch.context() as patch:
        patch.setattr(stores, "LOCK_SECONDS", 0.0)
        with pytest.raises(ValueError, match=r"another study is running in .*choose another"), Store(tmp_path).locked():
            pass
    done.set()
    with Store(tmp_path).locked():  # waits a moment for one that is on its way out
        pass
    other.join()


def test_folders_of_runs(tmp_path: Path) -> None:
    config = "sha256:" + "0123456789abcdef" * 4
    assert Store(tmp_path).run_folder(config) == tmp_path / "runs" / "0123456789ab"


@pytest.mark.parametrize(
    ("found", "disk"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EROFS, "Read-only file system", "elsewhere"), True),
        (PermissionError(errno.EACCES, "Permission denied", "runs/one/curves.csv"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "cc"), False),
        (PermissionError(errno.EACCES, "Permission denied", "runs/other"), False),
        (OSError("nothing but words"), False),
        (OSError(f"Error while serializing: File too large (os error {errno.EFBIG})"), True),
        (OSError(f"Error while reading: no such file (os error {errno.ENOENT})"), False),
        (ValueError("no error of the system"), False),
    ],
)
def test_only_errors_of_the_disk_end_a_study(found: Exception, *, disk: bool) -> None:
    assert is_disk_error(found, Path("runs/one")) is disk

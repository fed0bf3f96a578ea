"""Preparing: whatever happens to it, the same folder; and every clip is in it, or listed with the reason."""

import errno
import multiprocessing as mp
import os
import re
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

import equipoise.data.prepare.prepare as preparing
import equipoise.data.prepare.writer as rows
from equipoise.data.prepare.prepare import prepare, reasons, size_text
from equipoise.data.prepare.prepared import Prepared
from equipoise.util.errors import BadInput
from made_up import MadeUp, check_folder, content, make_source, reads, table

UNREADABLE = {
    "c2": ("missing", r"c2.txt: expected a file, found none"),
    "c3": ("crash", r"the process that read it died of it \(SIGSEGV\), 2 times"),
    "c5": ("exit", r"the process that read it died of it \(exit code 0\), 2 times"),
    "c6": ("hang", r"reading it did not end within 0.4 seconds"),
    "c8": ("broken", r"c8.txt: expected sound, found noise"),
    "c9": ("fault", r"KeyError: 'what no reader should raise'"),
    "c11": ("nan", r"tone: expected finite numbers, found NaN or infinity in 1 of 6"),
    "c12": ("infinite", r"tone: expected finite numbers, found NaN or infinity in 6 of 6"),
    "c14": ("shape", r"tone: expected the shape \(2, 3\), found \(2, 2\)"),
    "c15": ("type", r"tone: expected numbers of type float32, found float64"),
    "c17": ("long", r"film: expected the shape \(1 to 5, 2\), found \(6, 2\)"),
    "c18": ("empty", r"film: expected the shape \(1 to 5, 2\), found \(0, 2\)"),
    "c20": ("strange", r"expected the modalities \['film', 'tone'\], found \['film', 'smell', 'tone'\]"),
}


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_are_the_clips_in_their_order(tmp_path: Path, workers: int) -> None:
    source = make_source(tmp_path / "source", 150, happening={"c7": "view"})
    prepared = prepare(MadeUp(), source, tmp_path / "out", workers=workers)
    check_folder(tmp_path / "out", [f"c{number}" for number in range(150)])
    assert set(reads(source).values()) == {1}
    assert (prepared.count, prepared.listed, prepared.skipped) == (150, 150, [])
    assert prepared == Prepared.open(tmp_path / "out")
    assert mp.active_children() == []


def test_what_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", happening={name: what for name, (what, _) in UNREADABLE.items()})
    prepared = prepare(MadeUp(), source, tmp_path / "out", workers=2, patience=0.4)
    check_folder(tmp_path / "out", [f"c{number}" for number in range(24) if f"c{number}" not in UNREADABLE])
    skipped = {line["id"]: line["reason"] for line in table(tmp_path / "out" / "skipped.csv")}
    assert dict(prepared.skipped) == skipped
    assert list(skipped) == list(UNREADABLE)
    for name, (_, reason) in UNREADABLE.items():
        assert re.fullmatch(reason, skipped[name]), (name, skipped[name])
    twice = {name for name, times in reads(source).items() if times > 1}
    assert twice == {"c3", "c5"}  # who dies of a clip may have died of something else
    assert mp.active_children() == []


def test_a_worker_that_dies_once_costs_no_clip(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", happening={"c4": "crash once"})
    prepare(MadeUp(), source, tmp_path / "out", workers=2)
    check_folder(tmp_path / "out", [f"c{number}" for number in range(24)])
    assert {name: times for name, times in reads(source).items() if times > 1} == {"c4": 2}


def test_strict_ends_at_the_first_and_loses_nothing(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", 40, happening={"c5": "broken", "c30": "broken"})
    with pytest.raises(BadInput, match="made-up: this could not be read") as found:
        prepare(MadeUp(), source, tmp_path / "out", workers=1, strict=True)
    assert "  c5: c5.txt: expected sound, found noise" in str(found.value)
    assert mp.active_children() == []
    assert not (tmp_path / "out" / "prepared.json").exists()
    (source / "c5.txt").write_text("fine")
    with pytest.raises(BadInput, match=r"c30: c30.txt"):
        prepare(MadeUp(), source, tmp_path / "out", workers=1, strict=True)
    (source / "c30.txt").write_text("fine")
    prepare(MadeUp(), source, tmp_path / "out", workers=1, strict=True)
    check_folder(tmp_path / "out", [f"c{number}" for number in range(40)])
    assert {name for name, times in reads(source).items() if times > 1} <= {"c5", "c6", "c30", "c31"}  # or in hand


def test_strict_does_not_pass_over_what_was_skipped_before(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", happening={"c5": "broken"})
    prepare(MadeUp(), source, tmp_path / "out", workers=1)
    with pytest.raises(BadInput, match=r"complete but for what could not be read; .* rm -r .*\n  c5: c5.txt"):
        prepare(MadeUp(), source, tmp_path / "out", workers=1, strict=True)


def test_nothing_readable_is_no_data_set(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", 7, happening={f"c{number}": "missing" for number in range(7)})
    with pytest.raises(BadInput, match=r"none of 7 clips could be read\n  c0: c0.txt: expected a file") as found:
        prepare(MadeUp(), source, tmp_path / "out", workers=2)
    assert str(found.value).endswith("\n  and 2 more")
    assert not (tmp_path / "out" / "prepared.json").exists()


def test_a_missing_package_is_no_fault_of_a_clip(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", happening={"c3": "package"})
    with pytest.raises(ModuleNotFoundError, match=r"type: pip install .*\[media\]'"):
        prepare(MadeUp(), source, tmp_path / "out", workers=2)
    assert mp.active_children() == []


# -- disks and folders --


def test_too_many_processes_for_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", no_more)
    with pytest.raises(
        BadInput, match="cannot start a process: Resource temporarily unavailable; use fewer with --work"
    ):
        prepare(MadeUp(), make_source(tmp_path / "source"), tmp_path / "out")


def full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_fills_up_ends_it_with_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = make_source(tmp_path / "source", happening={"c2": "broken"}), tmp_path / "out"
    prepare(MadeUp(), source, tmp_path / "undisturbed", workers=1)
    parent, pwrite, write = os.getpid(), os.pwrite, os.write

    def little_room(file: int, piece: bytes, place: int) -> int:
        if os.getpid() != parent and place > 4096 + 9 * 24:
            return pwrite(file, piece[:3], place) if len(piece) > 7 else full()  # as disks do: first a part, then none
        return pwrite(file, piece, place)

    def less_room(file: int, piece: bytes) -> int:
        return write(file, piece) if os.getpid() == parent or b'"clip": 1' not in piece else full()

    for module, name, scarce in ((rows.os, "pwrite", little_room), (os, "write", less_room)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, scarce)
            with pytest.raises(BadInput, match=r"cannot write to .*out: No space left on device; what is done is kept"):
                prepare(MadeUp(), source, out, workers=1)
        assert mp.active_children() == []
    prepare(MadeUp(), source, out, workers=1)
    assert content(out) == content(tmp_path / "undisturbed")


@pytest.mark.parametrize("at", ["index.csv", "skipped.csv", "prepared.json"])
def test_a_disk_that_fills_up_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    source, out, write = (
        make_source(tmp_path / "source", happening={"c2": "broken"}),
        tmp_path / "out",
        preparing._write_file,
    )
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "_write_file", lambda path, text: full() if path.name == at else write(path, text))
        with pytest.raises(BadInput, match="No space left on device"):
            prepare(MadeUp(), source, out, workers=1)
    prepare(MadeUp(), source, out, workers=1)
    check_folder(out, [f"c{number}" for number in range(24) if number != 2])
    again = {name for name, times in reads(source).items() if times > 1}
    assert again == {"c2"} if at != "prepared.json" else not {"c0", "c1"} & again  # rows that moved are read again


def test_too_little_room_is_said_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = make_source(tmp_path / "source"), tmp_path / "out"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 9_000))
    expected = 2 * 4096 + 24 * (2 * 3 * 4 + 5 * 2)
    assert expected == 9_008
    with pytest.raises(BadInput, match=r"made-up: 24 clips take 9.01 kB, found 9 kB free at .*out; make room"):
        prepare(MadeUp(), source, out)
    assert not reads(source)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 9_008))
    prepare(MadeUp(), source, out)


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    source, file = make_source(tmp_path / "source"), tmp_path / "file"
    file.write_text("here first")
    with pytest.raises(BadInput, match="source and out are both"):
        prepare(MadeUp(), source, tmp_path / "source" / ".." / "source")
    with pytest.raises(BadInput, match=r"cannot write to .*file: .*; what is done is kept"):
        prepare(MadeUp(), source, file)
    with pytest.raises(BadInput, match=r"cannot write to .*below: Not a directory"):
        prepare(MadeUp(), source, file / "below")
    with pytest.raises(BadInput, match=r"files in .*nowhere, found no such folder\nExpected list.txt, and a file"):
        prepare(MadeUp(), tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(BadInput, match=r"made-up: expected .*list.txt, found no file"):
        prepare(MadeUp(), tmp_path, tmp_path / "out")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("the only copy")
    with pytest.raises(BadInput, match=r"expected an empty folder, or one that was being prepared, found thesis.tex"):
        prepare(MadeUp(), source, tmp_path / "used")
    assert content(tmp_path / "used") == {"thesis.tex": b"the only copy"}
    assert not (tmp_path / "out").exists()


def test_a_listing_that_contradicts_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(tmp_path / "source")
    (source / "list.txt").write_text("c0 c1 c1 c2")
    monkeypatch.setattr(MadeUp, "classes", lambda *_: ("no", "yes"))
    with pytest.raises(BadInput, match="made-up: what the source lists cannot be used") as found:
        prepare(MadeUp(), source, tmp_path / "out")
    assert "  expected every clip once, found twice: c1\n" in str(found.value)
    assert "  expected labels from 0 to 1, found others for c1" in str(found.value)
    (source / "list.txt").write_text("")
    with pytest.raises(BadInput, match="expected clips, found none"):
        prepare(MadeUp(), source, tmp_path / "out")


def test_what_is_told(tmp_path: Path) -> None:
    source, events = make_source(tmp_path / "source", happening={"c2": "broken", "c3": "broken"}), []
    prepare(MadeUp(), source, tmp_path / "out", on_event=lambda kind, content: events.append((kind, content)))
    kinds = [kind for kind, _ in events]
    assert list(dict.fromkeys(kinds)) == ["begin", "read", "pack", "sum"]
    assert events[0] == ("begin", {"clips": 24, "bytes": 9_008})
    far = [content for kind, content in events if kind == "read"]
    assert [each["done"] for each in far] == sorted(each["done"] for each in far)
    assert far[-1] == {"done": 24, "total": 24, "skipped": 2}


def test_sizes_size_text_and_reasons_in_lines() -> None:
    assert [size_text(size) for size in (0, 999, 1000, 41_560, 3.1e9, 5e14)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "41.6 kB",
        "3.1 GB",
        "500 TB",
    ]
    assert reasons([("a", "x"), ("b", "y"), ("c", "z")], 2) == "  a: x\n  b: y\n  and 1 more"
    assert reasons([("a", "x"), ("b", "y")], 2) == "  a: x\n  b: y"

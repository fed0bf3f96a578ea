"""Preparing that is stopped at any moment: started again it comes to the same folder, and reads nothing twice."""

import contextlib
import multiprocessing as mp
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

import equipoise.data.prepare.writer as rows
from equipoise.data.prepare.prepare import prepare
from equipoise.data.prepare.writer import PartialDataSet
from equipoise.util.errors import BadInput
from equipoise.util.processes import lock_folder
from made_up import MadeUp, check_folder, content, make_source, reads
from process_group import assert_gone, members


def in_a_session_of_its_own(source: Path, out: Path, began: Any) -> None:
    os.setsid()
    prepare(MadeUp(), source, out, workers=2, on_event=lambda *_: began.set())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_at_ten_random_moments_it_comes_to_the_same_folder(tmp_path: Path, seed: int) -> None:
    moments, context = random.Random(seed), mp.get_context("fork")
    names = {f"c{number}": "broken" for number in (4, 50, 51, 177)}
    source = make_source(tmp_path / "source", 200, pace=0.004, happening=names)
    prepare(MadeUp(), source, tmp_path / "undisturbed", workers=2)
    (source / "reads.log").write_text("")
    kills, folders = 0, 1
    while kills < 10:
        began, out = context.Event(), tmp_path / f"disturbed {folders}"
        process = context.Process(target=in_a_session_of_its_own, args=(source, out, began))
        process.start()
        assert process.pid is not None
        assert began.wait(30)
        if kills % 2:  # half of the kills meet clips that are being read, however slowly the machine starts
            before, until = (source / "reads.log").stat().st_size, time.monotonic() + 30
            while (source / "reads.log").stat().st_size == before and process.is_alive() and time.monotonic() < until:
                time.sleep(0.001)
        process.join(0.15 * moments.random())
        if process.exitcode is not None:  # faster than the killer: the next is to meet another
            assert process.exitcode == 0
            folders += 1
            continue
        if kills % 2:
            os.killpg(process.pid, signal.SIGKILL)
        else:  # the parent alone: its workers must go with it
            process.kill()
        process.join()
        kills += 1
        assert_gone(process.pid)
    prepare(MadeUp(), source, tmp_path / f"disturbed {folders}", workers=2)
    expected = content(tmp_path / "undisturbed")
    for number in range(1, folders + 1):
        assert content(tmp_path / f"disturbed {number}") == expected
    again = sum(times - folders for name, times in reads(source).items() if name not in names)
    assert 0 < again <= 2 * kills  # no more than what the two workers had in hand


@pytest.mark.slow
def test_a_worker_that_hangs_does_not_outlive_its_parent(tmp_path: Path) -> None:
    source, context = make_source(tmp_path / "source", happening={"c0": "hang", "c1": "hang"}), mp.get_context("fork")
    began = context.Event()
    process = context.Process(target=in_a_session_of_its_own, args=(source, tmp_path / "out", began))
    process.start()
    assert process.pid is not None
    deadline = time.monotonic() + 30
    while len(reads(source)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        assert len(members(process.pid)) == 3
        process.kill()
        process.join()
        assert_gone(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Stopped(BaseException):
    """The power is cut."""


@pytest.mark.slow
def test_stopped_at_any_step_of_the_end_it_comes_to_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(tmp_path / "source", 12, happening={"c2": "broken", "c3": "missing", "c7": "broken"})
    prepare(MadeUp(), source, tmp_path / "undisturbed", workers=2)
    expected, steps = content(tmp_path / "undisturbed"), 0

    def unlucky(moment: int) -> Any:
        """A write that stops everything, half done, when it is its turn; all writes of the parent come here."""
        whole, turn = rows._write, iter(range(10_000))

        def write(file: int, piece: memoryview, place: int) -> None:
            if os.getpid() != parent:
                whole(file, piece, place)
            elif next(turn) == moment:
                whole(file, piece[: len(piece) // 2], place)
                raise Stopped
            else:
                whole(file, piece, place)

        return write

    parent = os.getpid()
    while True:
        out = tmp_path / f"stopped {steps}"
        with monkeypatch.context() as patch:
            patch.setattr(rows, "_write", unlucky(steps))
            try:
                prepare(MadeUp(), source, out, workers=2)
            except Stopped:
                steps += 1
            else:
                break
        with monkeypatch.context() as patch:  # and once more, after it went on
            patch.setattr(rows, "_write", unlucky(2 + steps))
            with contextlib.suppress(Stopped):
                prepare(MadeUp(), source, out, workers=2)
        (source / "reads.log").write_text("")
        prepare(MadeUp(), source, out, workers=2)
        assert content(out) == expected
        assert not {"c0", "c1"} & set(reads(source)) or steps <= 2  # rows that did not move are not read again
    assert steps == 2 + 2 * 7 + 2  # two headers, seven of nine rows that move up in two files, and two headers


def stopped(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose clips are all read, and that is not complete."""

    def stop(*_: object) -> NoReturn:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(PartialDataSet, "pack", stop)
        with pytest.raises(Stopped):
            prepare(MadeUp(), source, out, workers=2)
    (source / "reads.log").write_text("")


def test_rows_that_changed_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = make_source(tmp_path / "source"), tmp_path / "out"
    stopped(source, out, monkeypatch)
    damaged = bytearray((out / "tone.safetensors").read_bytes())
    damaged[4096 + 5 * 24] ^= 1  # a bit of c5
    (out / "tone.safetensors").write_bytes(damaged)
    with (out / "film.safetensors").open("r+b") as file:
        file.truncate(4096 + 22 * 10 + 3)  # half of c22, all of c23
    prepare(MadeUp(), source, out, workers=2)
    assert reads(source) == {"c5": 1, "c22": 1, "c23": 1}
    check_folder(out, [f"c{number}" for number in range(24)])


@pytest.mark.parametrize("file", ["tone.safetensors", "film.safetensors", "journal.jsonl"])
def test_a_file_that_is_gone_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    source, out = make_source(tmp_path / "source"), tmp_path / "out"
    stopped(source, out, monkeypatch)
    (out / file).unlink()
    if file == "journal.jsonl":
        with pytest.raises(BadInput, match="expected an empty folder, or one that was being prepared, found film"):
            prepare(MadeUp(), source, out)
        return
    prepare(MadeUp(), source, out, workers=2)
    assert set(reads(source).values()) == {1}
    check_folder(out, [f"c{number}" for number in range(24)])


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda lines: [*lines[:-1], lines[-1][:-9]], id="torn"),
        pytest.param(lambda lines: [*lines[:-1], b"\0" * 60], id="never reached the disk"),
        pytest.param(lambda lines: [*lines[:-1], b'{"clip": "x"}', b"[]", b'"clip"', b'{"clip": 99}'], id="nonsense"),
        pytest.param(lambda lines: [*lines[:-1], b'{"clip": 777, "checksums": {}, "lengths": {}}'], id="not listed"),
        pytest.param(lambda lines: [*lines[:-1], lines[-1].replace(b'"film": ', b'"smell": ')], id="no such modality"),
    ],
)
def test_lines_of_the_journal_that_are_none_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any
) -> None:
    source, out = make_source(tmp_path / "source"), tmp_path / "out"
    stopped(source, out, monkeypatch)
    journal = out / "journal.jsonl"
    lines = [line for line in journal.read_bytes().split(b"\n") if line]
    journal.write_bytes(b"\n".join(damage(lines)))
    prepare(MadeUp(), source, out, workers=2)
    assert list(reads(source).values()) == [1]
    check_folder(out, [f"c{number}" for number in range(24)])


def test_without_a_heading_everything_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = make_source(tmp_path / "source"), tmp_path / "out"
    stopped(source, out, monkeypatch)
    journal = out / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b"heading", b"heathen"))
    prepare(MadeUp(), source, out, workers=2)
    assert set(reads(source).values()) == {1}
    check_folder(out, [f"c{number}" for number in range(24)])


@pytest.mark.parametrize("complete", [True, False])
def test_a_folder_made_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool) -> None:
    source, out = make_source(tmp_path / "source"), tmp_path / "out"
    if complete:
        prepare(MadeUp(), source, out, workers=1)
    else:
        stopped(source, out, monkeypatch)
    before = content(out)
    with pytest.raises(BadInput, match="prepared from something else, or in another way") as found:
        prepare(MadeUp(width=9, flavour="sour"), source, out)
    text = str(found.value)
    assert "  flavour=plain there, flavour=sour is wanted\n  width=3 there, width=9 is wanted\n" in text
    assert text.endswith(f"Choose another folder with --out; or to replace this one, type first: rm -r {out}")
    (source / "list.txt").write_text("c0 c1 c2 c3")
    with pytest.raises(BadInput, match=r"lists other clips, labels or parts .* \(24 clips there, 4 now\)"):
        prepare(MadeUp(), source, out)
    monkeypatch.setattr(MadeUp, "name", "another")
    with pytest.raises(BadInput, match="it holds made-up, and another is wanted"):
        prepare(MadeUp(), source, out)
    assert content(out) == before


def test_what_is_complete_is_opened_and_not_made_again(tmp_path: Path) -> None:
    source, out = make_source(tmp_path / "source", happening={"c3": "broken"}), tmp_path / "out"
    made = prepare(MadeUp(), source, out, workers=2)
    before, events = content(out), []
    (out / "journal.jsonl").write_text("left by a kill at the very end")
    assert prepare(MadeUp(), source, out, on_event=lambda kind, _: events.append(kind)) == made
    assert events == ["already"]
    assert content(out) == before
    shutil.rmtree(source)  # who has prepared needs it no more
    assert prepare(MadeUp(), source, out) == made
    (out / "tone.safetensors").unlink()
    with pytest.raises(BadInput, match=r"is damaged; .*\n  tone.safetensors: expected a file"):
        prepare(MadeUp(), source, out)


def test_what_could_not_be_read_is_tried_again_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = make_source(tmp_path / "source", happening={"c3": "broken", "c9": "broken"}), tmp_path / "out"
    stopped(source, out, monkeypatch)
    (source / "c3.txt").write_text("fine")
    assert [name for name, _ in prepare(MadeUp(), source, out, workers=2).skipped] == ["c9"]
    assert reads(source) == {"c3": 1, "c9": 1}


def test_one_process_at_a_time(tmp_path: Path) -> None:
    source, out = make_source(tmp_path / "source"), tmp_path / "out"
    out.mkdir()
    with lock_folder(out, "preparing"), pytest.raises(BadInput, match=f"another process is preparing {out}; wait"):
        prepare(MadeUp(), source, out)
    prepare(MadeUp(), source, out)

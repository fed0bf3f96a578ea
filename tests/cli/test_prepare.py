"""`equipoise prepare`: what it says, and what it answers to what cannot be meant."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.cli.prepare import original_of, prepare
from equipoise.data.sets import PUBLISHED
from equipoise.util.errors import BadInput
from made_up import MadeUp, content, make_source, reads
from process_group import members

TESTS = Path(__file__).parent.parent
PROGRAM = [sys.executable, str(Path(__file__).parent / "prepare_program.py"), "made-up"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS)}


@pytest.fixture(autouse=True)
def in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PUBLISHED, "made-up", MadeUp)


def test_options_are_those_of_the_data_set() -> None:
    assert original_of("made-up", []) == MadeUp()
    assert original_of("made-up", ["width=5", "flavour=sour"]) == MadeUp(5, "sour")


@pytest.mark.parametrize(
    ("name", "words", "messages"),
    [
        ("made-op", ["width=5"], [r"unknown data set 'made-op'; did you mean 'made-up'\?"]),
        ("made-up", ["widht=5"], [r"unknown option of made-up 'widht'; did you mean 'width'\?"]),
        ("made-up", ["width"], ["'width' should read name=value, an option of made-up; it has width, flavour"]),
        ("made-up", ["width=wide", "sauce=1"], ["made-up: width should be a whole number, found 'wide'", "'sauce'"]),
    ],
)
def test_what_cannot_be_meant_is_answered(name: str, words: list[str], messages: list[str]) -> None:
    for message in messages:  # all of them in one
        with pytest.raises(BadInput, match=message):
            original_of(name, words)


def test_it_says_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = make_source(tmp_path / "source", 100, happening={f"c{number}": "broken" for number in range(10, 17)})
    prepare("made-up", ["width=4"], source=source)
    out, err = capsys.readouterr()
    assert err.startswith("made-up: 100 clips, at most 12.4 kB of disk\n")
    assert "100/100 clips, 7 skipped (" in err
    assert len(err.splitlines()) <= 11
    assert re.match(r"made-up is prepared in data/made-up: 93 clips, 12.1 kB, in \d s\.\n", out)
    assert "7 of 100 listed could not be read; data/made-up/skipped.csv has them all:\n  c10: c10.txt: expected" in out
    assert "  and 2 more\n" in out
    assert "Protocol published: as published, chosen on test\n" in out
    assert out.endswith("type: equipoise train --data data/made-up\n")
    prepare("made-up", ["width=4"], source=source)
    out, err = capsys.readouterr()
    assert out.startswith("made-up is already prepared in data/made-up: 93 clips, 12.1 kB.\n")
    assert err == ""


def test_programs_get_json_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_source(tmp_path / "source", happening={"c3": "broken"})
    prepare("made-up", source=source, out=tmp_path / "out", as_json=True)
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["name"], found["count"], found["listed"]) == ("made-up", 23, 24)
    assert found["skipped"] == [["c3", "c3.txt: expected sound, found noise"]]
    assert found["folder"] == str(tmp_path / "out")
    assert err == ""


@pytest.mark.slow
def test_help_has_an_example() -> None:
    text = subprocess.run([*PROGRAM[:2], "--help"], capture_output=True, text=True, env=ENVIRONMENT, timeout=60).stdout
    assert "Example: equipoise prepare cremad --source" in text
    assert all(word in text for word in ("--source", "--out", "--workers", "--strict", "--json"))


@pytest.mark.slow
def test_ctrl_c_ends_it_within_two_seconds(tmp_path: Path, heard_signals: None) -> None:  # noqa: ARG001
    source, out = make_source(tmp_path / "source", 400, pace=0.02, happening={"c9": "hang"}), tmp_path / "out"
    command = [*PROGRAM, "--source", str(source), "--out", str(out), "--workers", "2"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True)
    deadline = time.monotonic() + 60
    while sum(reads(source).values()) < 40 and time.monotonic() < deadline:
        time.sleep(0.02)
    pressed = time.monotonic()
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does: to the workers too
    while len(members(program.pid)) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert time.monotonic() - pressed < 2  # its workers are gone; its own end is Python's
    program.communicate(timeout=30)
    assert program.returncode == 130
    before = reads(source)
    (source / "c9.txt").write_text("fine")
    prepare("made-up", source=source, out=out, workers=2, as_json=True)
    again = [name for name, times in reads(source).items() if times > 1]
    assert len(again) <= 2, before  # what the two had in hand


@pytest.mark.slow
def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", 60, pace=0.01, happening={"c7": "broken"})
    ours, theirs = pty.openpty()
    command = [*PROGRAM, "--source", str(source), "--out", str(tmp_path / "out"), "--workers", "2"]
    program = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL, env={**ENVIRONMENT, "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert program.wait(timeout=30) == 0
    text = shown.decode()
    assert "made-up: 60 clips" in text
    assert "reading clips, 1 skipped" in text
    assert "60/60" in text
    assert set(content(tmp_path / "out")) >= {"prepared.json"}

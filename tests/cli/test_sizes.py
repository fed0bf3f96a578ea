"""Sizes that no machine has: one message before anything is made."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ended import Ended
from equipoise.cli.options import typed_command

Command = Callable[..., Ended]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    a, b, number = random.normal(size=(60, 4)), random.normal(size=(60, 3)), np.arange(60)
    np.savez(tmp_path / "d.npz", a=a, b=b, label=number % 3, group=number // 5)
    return tmp_path / "d.npz"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "--folds", 10**9], "folds: expected 3 to 12, at most one per group, found 1000000000"),
        (["compare", "--folds", 10**7], "folds: expected 3 to 12, at most one per group, found 10000000"),
        (["compare", "--seeds", 3_000_000], "expected at most 100,000 runs in one study, found 3,000,000"),
        (["compare", "--seeds", 10**21], "--seeds: expected 0 to 1,000,000,000, found 1,000,"),
        (["compare", "--tune", 10**21], "--tune: expected 0 to 1,000,000,000, found 1,000,"),
        (["train", "--seed", 2**64], "--seed: expected 0 to 9,223,372,036,854,775,807, found 18,446,744,073,"),
        (["train", "--seed", -1], "--seed: expected 0 to 9,223,372,036,854,775,807, found -1"),
        (["train", f"batch={2**63}"], f"batch should be a whole number from 1 to 2,147,483,647, found {2**63}"),
        (["train", f"features={10**20}"], f"features should be a whole number from 1 to 65,536, found {10**20}"),
        (["train", f"epochs={10**12}"], f"epochs should be 0 to 1,000,000, or auto, found {10**12}"),
        (["train", f"patience={10**12}"], f"patience should be 1 to 1,000,000 epochs, or none, found {10**12}"),
    ],
)
def test_a_size_typed_is_refused_before_anything_is_made(
    words: list[object], message: str, data: Path, equipoise: Command, tmp_path: Path
) -> None:
    started = time.process_time()
    method = ["--methods", "instant"] if words[0] == "compare" else []
    ended = equipoise(*map(str, words), "--data", data, *method, "--out", tmp_path / "out")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert ended.err.count("\n") <= 2
    assert time.process_time() - started < 20
    assert not (tmp_path / "out" / "results.jsonl").exists()


@pytest.mark.parametrize("command", ["train", "compare", "check", "report"])
def test_folders_nested_without_end_are_refused(command: str, data: Path, equipoise: Command, tmp_path: Path) -> None:
    deep = tmp_path / Path("d/" * 1500)
    words = ["report", deep] if command == "report" else [command, "--data", data, "--out", deep]
    ended = equipoise(*words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("equipoise: ")
    assert "Traceback" not in ended.err


def test_a_card_nested_without_end_is_no_model(equipoise: Command, data: Path, tmp_path: Path) -> None:
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "card.json").write_text("[" * 200_000)
    ended = equipoise("predict", tmp_path / "exported", "--data", data)
    assert (ended.code, ended.out) == (2, "")
    assert "expected the folder of a finished run, found no model.json" in ended.err


def test_pages_hold_no_path_of_the_machine(
    data: Path, equipoise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    out = tmp_path / "here" / "out"
    words = ["--data", data, "--methods", "instant", "--seeds", "1", "--quick", "--out", out]
    assert equipoise("compare", *map(str, words)).code == 0
    (page,) = out.glob("*.html")
    assert "equipoise compare --data d.npz --methods instant --seeds 1 --quick --out out" in page.read_text()
    for file in (page, out / "command.txt"):
        assert str(tmp_path) not in file.read_text()


def test_paths_among_other_words_are_shortened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", f"--data={tmp_path}/a.npz,/elsewhere/b.npz", "a/b.npz", "--on", "ray://host:1", "lr=1e-3", "/"]
    monkeypatch.setattr(sys, "argv", ["/bin/equipoise", *words])
    assert typed_command() == "equipoise train --data=a.npz,b.npz a/b.npz --on ray://host:1 lr=1e-3 /"

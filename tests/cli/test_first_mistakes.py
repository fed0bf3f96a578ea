"""What somebody types wrong on the first day: every message says what to type instead."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ended import Ended

Command = Callable[..., Ended]
QUICK = ["--data", "generated", "--quick", "features=8", "--json"]


def test_nothing_typed_is_answered_with_the_help(equipoise: Command) -> None:
    ended = equipoise()
    assert ended.code == 2
    assert ended.err.startswith("Usage: ")
    assert "equipoise:" not in ended.err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["compare", "--epochs", "3"], ["no such option: --epochs", "type epochs=…"]),
        (["train", "--weight-decay", "0"], ["type weight_decay=…"]),
        (["tune", "--penalty", "3"], ["type penalty=…"]),
        (["compare", "--methods", "MIMO,Ogm"], ["did you mean 'mimo'?", "did you mean 'ogm'?"]),
        (["compare", "--methods", "msl", "mimo"], ["--methods msl,mimo"]),
        (["compare", "my.npz"], ["data is named by --data my.npz"]),
        (["compare", "watch"], ["data is named by --data watch"]),
        (["compare", "--data", "generated", "encoder=resnet81"], ["Did you mean 'resnet18'?", "dotted path"]),
        (["check", "--data", "generated", "encoder=hard:mpl"], ["'mpl' is none of", "Did you mean 'mlp'?"]),
    ],
)
def test_the_message_says_what_to_type(
    words: list[str], parts: list[str], equipoise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.npz").touch()
    ended = equipoise(*words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("equipoise: ")
    for part in parts:
        assert ended.err.count(part) == 1


@pytest.mark.parametrize("words", [["report", "--epochs", "3"], ["compare", "--sedes", "3"], ["compare", "mmi"]])
def test_a_hint_is_given_only_where_it_helps(words: list[str], equipoise: Command) -> None:
    ended = equipoise(*words)
    assert ended.code == 2
    assert "=…" not in ended.err
    assert "named by" not in ended.err


@pytest.mark.parametrize("command", ["tune", "ablate", "landscape", "toy", "bench", "reproduce"])
def test_a_missing_package_for_figures_is_told_before_anything_runs(
    command: str, equipoise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    more = {"toy": [], "bench": [], "reproduce": ["cremad", "--scale", "small"]}
    ended = equipoise(command, *more.get(command, ["--data", "generated"]), "--out", tmp_path / "out")
    assert (ended.code, ended.out) == (2, "")
    told = r"equipoise: a figure needs matplotlib, which is not installed; type: pip install .*\[plot\]'\n"
    assert re.fullmatch(told, ended.err)
    assert not (tmp_path / "out").exists()


def test_of_several_runs_the_best_is_listed_first_with_what_tells_it_apart(equipoise: Command, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for more in (["--methods", "msl,mimo", "epochs=1"], ["--methods", "mimo", "epochs=2"], ["epochs=1", "penalty=3"]):
        methods = more if more[0] == "--methods" else ["--methods", "mimo", *more]
        rows += json.loads(equipoise("compare", *QUICK, "--seeds", "1", "--out", tmp_path, *methods).out)
    ended = equipoise("export", tmp_path)
    assert (ended.code, ended.out) == (2, "")
    first, *lines = ended.err.splitlines()
    best = f"or take the best by `equipoise export {tmp_path} --best`:"
    assert first.endswith(f"holds 4 finished runs; name one of them, {best}")
    told = sorted((f"{100 * row['validation']['committee']:.1f} % on validation data" for row in rows), reverse=True)
    assert [line.rpartition(": ")[2] for line in lines] == [f"committee {one}" for one in told]
    titles = [line.split("  ")[2].rpartition(":")[0] for line in lines]
    assert sorted(titles) == [
        "mimo on generated, seed 0, epochs=1, mimo.penalty=10.0",
        "mimo on generated, seed 0, epochs=1, mimo.penalty=3.0",
        "mimo on generated, seed 0, epochs=2, mimo.penalty=10.0",
        "msl on generated, seed 0, epochs=1",
    ]


def test_a_search_is_no_run(equipoise: Command, tmp_path: Path) -> None:
    (tmp_path / "tune.db").touch()
    ended = equipoise("export", tmp_path)
    assert ended.code == 2
    assert f"the command at the end of {tmp_path / 'tune.md'} trains the best" in ended.err


def test_a_file_that_was_changed_is_another_line_of_the_table(equipoise: Command, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    label = np.arange(90) % 3
    arrays: dict[str, Any] = {"a": random.normal(size=(90, 4)), "b": random.normal(size=(90, 3)), "label": label}
    for shift in (0.0, 5.0):
        arrays["a"][:, 0] += shift * label
        np.savez(tmp_path / "my.npz", **arrays, group=np.arange(90) // 3)
        words = ["--methods", "msl", "--seeds", "2", "--quick", "--json", "epochs=1", "features=4"]
        assert equipoise("compare", "--data", tmp_path / "my.npz", "--out", tmp_path / "out", *words).code == 0
    table = equipoise("report", tmp_path / "out", "--format", "csv").out
    rows = [line.split(",")[0] for line in table.splitlines() if line.startswith("msl")]
    assert len(rows) == 2
    assert all(row.startswith("msl (split ") for row in rows)


@pytest.mark.parametrize(
    "words", [["compare", "--methods", "msl", "metric=mae"], ["train", "--method", "mimo", "encoder=lidar:conv1d"]]
)
def test_a_refused_command_leaves_no_folder(words: list[str], equipoise: Command, tmp_path: Path) -> None:
    ended = equipoise(*words, "--data", "generated", "--out", tmp_path / "out")
    assert (ended.code, ended.out) == (2, "")
    assert not (tmp_path / "out").exists()


def test_the_best_leads_to_predict_and_an_export_to_its_run(equipoise: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    compared = equipoise(
        "compare", "--data", "generated", "--quick", "--methods", "msl,ew", "--seeds", "1", "--out", out, "epochs=1"
    )
    assert "(committee)" in compared.err
    ended = equipoise("export", out, "--best")
    assert ended.code == 0
    command = next(line for line in ended.out.splitlines() if line.startswith("  equipoise predict "))
    run = Path(command.split()[2])
    assert (run / "model.json").is_file()
    told = equipoise("predict", out / "export", "--data", "generated")
    assert told.code == 2
    assert f"holds an exported model, for another runtime; the run that it was made of: {run}" in told.err
    assert equipoise("predict", run, "--data", "generated").code == 0

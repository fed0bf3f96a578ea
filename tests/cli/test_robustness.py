"""`equipoise robustness`: from words to tables, files and JSON, and everything wrong in one message."""

import json
from pathlib import Path
from typing import Any

import pytest

from elsewhere import Elsewhere
from equipoise.cli import robustness as command

QUICK = ["--quick", "--seeds", "1", "--workers", "1", "--preset", "none", "epochs=1", "features=4"]


def test_tables_figures_and_numbers(equipoise: Any, tmp_path: Path) -> None:
    grid = ["--data", "generated", "--methods", "msl,mimo", "--rates", "0.3,3", "--sizes", "0.2,1"]
    code, printed, told = equipoise("robustness", *grid, "--out", tmp_path, *QUICK)
    assert code == 0, told
    assert told.startswith("planned: 8 runs, 8 of them not done yet\n")
    for what in ("fused accuracy in percent over learning rates", "committee accuracy in percent over sizes"):
        assert f"generated: {what}" in " ".join(printed.split())
    assert printed.rstrip().endswith(str(tmp_path))
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    files = {f"robustness.{ending}" for ending in ("md", "tex", "csv", "json")}
    files |= {f"robustness-{axis}.{ending}" for axis in ("rates", "sizes") for ending in ("svg", "png")}
    assert files | {"results.jsonl", "command.txt"} <= names
    again = equipoise("robustness", *grid, "--out", tmp_path, *QUICK, "--json")
    assert again.code == 0
    content = json.loads(again.out)
    assert content == json.loads((tmp_path / "robustness.json").read_text())
    assert len(content["figures"]) == 4
    assert {(one["method"], one["axis"], one["decision"]) for one in content["curves"]} >= {
        ("msl", "rate", "fused"), ("mimo", "size", "committee"),
    }  # fmt: skip
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 8


def test_several_data_sets_and_a_config_file(equipoise: Any, tmp_path: Path) -> None:
    config = tmp_path / "study.yaml"
    config.write_text("methods: msl\nrates: [1, 3]\nseeds: 1\nquick: true\npreset: none\nepochs: 1\nfeatures: 4\n")
    out = tmp_path / "out"
    ended = equipoise("robustness", "--config", config, "--data", "generated,watch", "--out", out, "--json")
    assert ended.code == 0, ended.err
    assert {one["data"] for one in json.loads(ended.out)["curves"]} == {"generated", "watch"}


def test_runs_take_place_where_it_is_said(equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Elsewhere()
    monkeypatch.setattr(command, "cluster_of", {"ray": there, None: None}.__getitem__)
    grid = ["--data", "generated", "--methods", "msl", "--rates", "1,3", "--sizes", "0.2,1"]
    ended = equipoise("robustness", *grid, "--out", tmp_path, *QUICK, "--on", "ray", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert there.asked == [(tmp_path.name, 1)] * 2  # the whole, and a fifth of it
    points = [point["count"] for one in json.loads(ended.out)["curves"] for point in one["points"]]
    assert set(points) == {1}


def test_everything_wrong_is_said_at_once(equipoise: Any, tmp_path: Path) -> None:
    words = ["--data", "generate", "--methods", "mimi", "--rates", "1,x", "--sizes", "0.5,2", "epoch=3"]
    code, printed, told = equipoise("robustness", *words, "--out", tmp_path / "out")
    assert (code, printed) == (2, "")
    for part in ("did you mean 'generated'?", "did you mean 'mimo'?", "--rates", "'x'", "--sizes", "'epochs'"):
        assert part in told
    assert not (tmp_path / "out").exists()


def test_methods_that_have_no_curve_are_refused(equipoise: Any, tmp_path: Path) -> None:
    code, _, told = equipoise("robustness", "--data", "generated", "--methods", "unimodal,mimo", "--out", tmp_path)
    assert code == 2
    assert "expected methods with a fused decision, found unimodal" in told


def test_help_has_an_example(equipoise: Any) -> None:
    ended = equipoise("robustness", "--help")
    assert ended.code == 0
    assert "Example: equipoise robustness --data watch" in ended.out

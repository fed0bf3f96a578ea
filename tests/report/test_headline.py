"""Reports follow the metric of their runs: its direction, its digits, its baseline, and what runs warned of."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.models.metrics import METRICS
from equipoise.report import (
    Difference,
    Results,
    aggregate,
    as_csv,
    as_latex,
    as_markdown,
    overview,
    paired_differences,
    read,
    tables,
    write_page,
)
from equipoise.report.columns import COLUMNS, check_names
from equipoise.report.headline import headline_of
from equipoise.report.table import main_table
from equipoise.util.errors import BadInput
from report.example import make_curves, make_row, write_study

NUMBERS = {"task": "regression", "metric": "mae"}


def as_errors(row: dict[str, Any], scale: float = 20.0) -> dict[str, Any]:
    """The same run as one of regression: an error that is small where the accuracy was high."""

    def turned(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: turned(item, name) for name, item in value.items()}
        return scale * (1 - value) if isinstance(value, float) and not key.endswith(("_ece", "_loss", "_f1")) else value

    test = {key: value for key, value in turned(row["test"]).items() if not key.endswith(("_f1", "_ece"))}
    test["disparity"] = scale * row["test"]["disparity"] if row["test"].get("disparity") else None
    return {**row, **NUMBERS, "test": {**test, "baseline": 0.4 * scale}, "config": f"sha256:{row['config'][7:][::-1]}"}


def numbers_study(folder: Path, labels: tuple[str, ...] = ("msl", "ew", "mimo"), data: str = "drive") -> Path:
    """A study of regression."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.jsonl").open("a") as out:
        for label in labels:
            for seed in range(3):
                row = as_errors(make_row(label, seed, data=data))
                out.write(json.dumps(row) + "\n")
                run = folder / "runs" / row["config"].removeprefix("sha256:")[:12]
                run.mkdir(parents=True)
                (run / "curves.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in make_curves(label, row, 4)))
    return folder


def test_the_lowest_error_is_first_and_bold(tmp_path: Path) -> None:
    results = read(numbers_study(tmp_path))
    (table,) = tables(results)
    lowest = sum(as_errors(make_row("mimo", seed, data="drive"))["test"]["committee"] for seed in range(3)) / 3
    assert table.title == "drive: mean absolute error on the test set, in units of the target, lower is better"
    headings = ["shipped (mae)", "ships", "vs msl (mae)", "fused (mae)"]  # msl has no committee
    assert [column.heading for column in table.columns][:4] == headings
    assert [table.at(label, "ships").main for label in ("mimo", "ew", "msl")] == ["committee", "committee", "fused"]
    assert [label for label in table.labels if table.at(label, "shipped").best] == ["mimo"]
    assert table.at("mimo", "shipped").main == f"{lowest:.2f}"
    assert not any("accuracy" in text or "%" in text.replace("95 %", "") for text in (table.title, *table.notes))
    assert any("(below zero is better)" in note for note in table.notes)


def test_the_answer_without_sensors_is_the_last_line(tmp_path: Path) -> None:
    (table,) = tables(read(numbers_study(tmp_path)))
    assert table.labels[-1] == "median"
    assert table.at("median", "shipped").main == table.at("median", "fused").main == "8.00"
    assert table.at("median", "ships").main == "fused"
    joint = sum(as_errors(make_row("msl", seed, data="drive"))["test"]["fused"] for seed in range(3)) / 3
    assert table.at("median", "difference").value == pytest.approx(8 - joint)
    assert table.at("median", "shipped").aside == ""  # it is one answer, whatever the seeds
    rows = [{**make_row("mimo", seed), "test": {"fused": 0.9, "baseline": 0.25}} for seed in range(2)]
    assert main_table(rows, "watch").labels == ("mimo", "majority class")
    rows = [{**row, "task": "labels", "metric": "macro_f1"} for row in rows]
    assert main_table(rows, "watch").labels == ("mimo", "majority of each label")
    assert main_table(rows, "watch").title == "watch: macro-F1 on the test set"


@pytest.mark.parametrize(("higher", "verdicts"), [(True, ["better", "worse"]), (False, ["worse", "better"])])
def test_a_verdict_follows_the_direction(higher: bool, verdicts: list[str]) -> None:
    ends = [(0.1, 0.3), (-0.3, -0.1), (-0.1, 0.1)]
    found = [Difference("a", "b", (low + high) / 2, low, high, 3, "seeds", higher).verdict for low, high in ends]
    assert found == [*verdicts, "no clear difference"]


def test_differences_of_errors_have_the_opposite_verdict() -> None:
    rows = [make_row(label, seed) for label in ("msl", "mimo", "ew") for seed in range(4)]
    gains = {each.label: each for each in paired_differences(rows)}
    losses = {each.label: each for each in paired_differences([as_errors(row) for row in rows])}
    assert set(gains) == {"mimo", "ew"}
    for label, gain in gains.items():
        assert losses[label].mean == pytest.approx(-20 * gain.mean)
        assert (losses[label].gain, losses[label].verdict) == (pytest.approx(20 * gain.gain), gain.verdict)


@pytest.mark.parametrize("size", [0.00123, 0.5, 4.53, 35.2, 1234.0])
def test_three_digits_of_a_typical_number_are_written(size: float) -> None:
    written = headline_of(NUMBERS, [size, 0.9 * size, 1.1 * size]).written(size)
    assert float(written) == pytest.approx(size, rel=0.005)
    assert len(re.sub(r"^0\.0*|\.", "", written)) in (3, 4)
    assert headline_of({"metric": "r2"}, [-400.0]).written(0.5) == "0.500"
    assert headline_of({}, [0.3]).metric is METRICS["accuracy"]


def test_warnings_are_said_once_with_their_runs() -> None:
    rows = [make_row(label, seed) for label in ("msl", "mimo") for seed in range(3)]
    for row in rows:
        row["warnings"] = [f"only {150 + row['seed']} steps were taken"]
    rows[0]["warnings"].append("says one class only: rest")
    notes = main_table(rows, "watch").notes
    assert sorted(notes[-2:]) == [
        "Warning of every run: only 150 steps were taken (numbers differ between runs)",
        "Warning of msl (1 of 3 runs): says one class only: rest",
    ]


def test_a_single_run_has_its_own_interval() -> None:
    row = make_row("mimo", 0)
    row["test"] |= {"fused": 0.8, "fused_interval": [0.7512, 0.8523]}
    table = main_table([row], "watch")
    assert table.at("mimo", "fused").text == "80.0 [75.1, 85.2]"
    assert any("groups of the test part. " in note for note in table.notes)
    row["test"]["interval_groups"] = 3
    assert "* from 3 groups: too few to tell." in main_table([row], "watch").notes
    row["test"]["interval_groups"] = 30
    assert not any("too few" in note for note in main_table([row], "watch").notes)
    several = main_table([row, {**make_row("mimo", 1), "split": row["split"]}], "watch")
    assert "[" not in several.at("mimo", "fused").text
    row["test"]["fused_interval"] = [0.7, math.nan]
    assert main_table([row], "watch").at("mimo", "fused").text == "80.0"


def test_two_metrics_of_one_data_set_are_two_tables(tmp_path: Path) -> None:
    write_study(tmp_path, ["msl", "mimo"], data="drive", epochs=1)
    numbers_study(tmp_path, ("msl", "mimo"))
    results = read(tmp_path)
    assert list(results.by_data()) == ["drive (classes, accuracy)", "drive (regression, mae)"]
    assert [len(groups) for groups in results.groups.values()] == [2, 2]


def test_the_page_of_a_regression_speaks_of_no_accuracy(tmp_path: Path) -> None:
    text = write_page(numbers_study(tmp_path)).read_text("utf-8")
    body = re.sub(r"<style.*?</style>|<script.*?</script>", "", text, flags=re.DOTALL)
    assert "accurac" not in body.lower()
    assert "mean absolute error" in body
    assert re.findall(r"[^>.;]*points[^<.;]*", body) == []


# -- several data sets --


@pytest.fixture
def several(tmp_path: Path) -> Results:
    write_study(tmp_path, ["msl", "ew", "mimo"], data="watch", epochs=1)
    numbers_study(tmp_path, ("msl", "mimo"))
    return read(tmp_path)


def test_methods_by_data_sets(several: Results) -> None:
    table = overview(several)
    headings = [("drive", "shipped, mae"), ("watch", "shipped, %")]
    assert [(column.title, column.unit) for column in table.columns] == headings
    assert set(table.labels) == {"mimo", "msl", "ew", "median"}
    assert table.labels[0] == "mimo"
    assert table.labels[-1] == "median"
    assert table.at("ew", "drive").main == "–"
    for data, groups in several.groups.items():
        best = min(groups, key=lambda group: -group.merit)
        assert [label for label in table.labels if table.at(label, data).best] == [best.label]
        for group in groups:
            assert group.shipped is not None
            assert table.at(group.label, data).raw == (group.shipped.mean, group.shipped.deviation)
    assert as_csv(table).splitlines()[0] == "label,drive,drive_std,watch,watch_std"
    assert "**" in as_markdown(table)
    assert "\\textbf" in as_latex(table)


def test_columns_are_chosen_by_name(several: Results) -> None:
    first, second = tables(several, columns=["committee", "faults"])
    assert [column.key for column in second.columns] == ["committee", "faults.fused", "faults.committee"]
    table = overview(several, columns=["worst.fused", "fused"])
    assert [column.key for column in table.columns] == [
        f"{data}.{key}" for data in ("drive", "watch") for key in ("worst.fused", "fused")
    ]
    assert first.labels[-1] == "median"
    for names in (["accuracies"], ["fuse"]):
        with pytest.raises(
            BadInput, match=r"unknown column .*; expected some of shipped, ships, difference, fused, committee"
        ):
            tables(several, columns=names)
        with pytest.raises(BadInput, match=r"unknown column"):
            check_names(names)
    keys = [column.key for columns in (["alone"], ["worst"]) for column in tables(several, columns=columns)[1].columns]
    check_names(keys)


def test_every_known_name_is_a_column() -> None:
    rows = [make_row(label, seed) for label in ("msl", "mimo", "ogmge") for seed in range(2)]
    for row in rows:  # of regression
        row["test"] |= {f"{one}_{score}": 0.9 for one in ("fused", "committee") for score in ("coverage", "width")}
    for name in (name for name in COLUMNS if name not in ("pooled", *METRICS)):  # which need the answers of runs
        table = main_table(rows, "watch", columns=[name])
        assert table.columns, name
        assert all(column.key.split(".")[0] == name for column in table.columns)
    assert aggregate(rows)

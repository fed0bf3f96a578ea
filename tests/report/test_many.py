"""A study of very many runs: work that grows with them and no faster, and nothing left out without a word."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from equipoise import report
from equipoise.report import page, paired_differences, results
from equipoise.report.aggregate import RunGroup, aggregate, as_text, settings
from equipoise.report.table import shortened
from report.example import make_row, write_study


def many(count: int, runs: int) -> list[dict[str, Any]]:
    """Rows of three methods on two data sets, in ever other settings; the baseline was run in all of them."""
    rows = []
    for number in range(count):
        line, seed = divmod(number, runs)
        way, place = divmod(line, 6)
        row = make_row(("msl", "ew", "mimo")[place % 3], seed, data=("watch", "room")[place // 3])
        row["run"] |= {"lr": 0.001 * (1 + way), "momentum": (0.0, 0.9)[way % 2]}
        rows.append({**row, "config": f"{number:064x}"})
    return rows


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def calls_of(work: Callable[[], object]) -> int:
    """How many functions of Python and C are called."""
    count = 0

    def add(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(add)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("runs", [2, 50])
def test_work_grows_with_the_number_of_runs_and_no_faster(runs: int, tmp_path: Path) -> None:
    def work(folder: Path) -> None:
        report.write_page(folder)
        report.tables(report.read(folder))

    few, more = (write(tmp_path / str(count), many(count, runs)) for count in (200, 800))
    work(few)  # what is read or computed once for all
    assert calls_of(lambda: work(more)) < 4.4 * calls_of(lambda: work(few))


def test_ordinary_studies_are_shown_whole(tmp_path: Path) -> None:
    text = report.write_page(write_study(tmp_path, epochs=2)).read_text(encoding="utf-8")
    assert "Shown:" not in text
    assert "results.jsonl." not in text


def test_what_a_page_leaves_out_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_LISTED", 10)
    rows = many(120, 2)
    folder = write(tmp_path / "out", [row for row in rows if row["data"] == "watch"])
    text = report.write_page(folder).read_text(encoding="utf-8")
    assert "Tables, differences and settings show 10 of 30 lines, the best." in text
    assert text.count("Shown: 10 of 30 lines, the best.") == 4
    assert "equipoise report FOLDER --format csv" in text
    (table,) = report.tables(report.read(folder))
    assert len(table.labels) == 30
    assert len(report.as_csv(table).splitlines()) == 31
    first = [label for label in table.labels[:10] if f'<th scope="row">{label}</th>' in text]
    assert len(first) == 10


def test_a_table_is_cut_below_its_best_and_keeps_what_one_compares_with() -> None:
    (table,) = report.tables(report.Results(Path(), [make_row(f"m{k}") for k in range(8)], {}))
    assert shortened(table, 8) is table
    short = shortened(table, 3, keep=table.labels[6])
    assert short.labels == (*table.labels[:3], table.labels[6])
    assert short.cells == (*table.cells[:3], table.cells[6])
    assert short.notes[0].startswith("Shown: 4 of 8 lines")
    assert short.notes[1:] == table.notes


def test_curves_of_very_many_runs_are_read_when_they_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_study(tmp_path, ["msl", "mimo"], seeds=8, epochs=3)
    whole = report.read(folder)
    for module in (results, page):
        monkeypatch.setattr(module, "MOST_CURVES", 6)
    found = report.read(folder)
    assert dict(found.curves) == whole.curves
    assert len(found.curves) == 16
    read, healthy = [], results._Curves._epochs
    monkeypatch.setattr(results._Curves, "_epochs", lambda self, config: read.append(config) or healthy(self, config))
    text = report.write_page(folder).read_text(encoding="utf-8")
    assert len(read) == 6
    assert len(set(read)) == 6
    assert "Curves over epochs are those of the first 3 runs of a line." in text


def nearness(base: RunGroup, line: RunGroup) -> tuple[bool, int]:
    """Whether two lines have pairs, and how many settings they share: the definition, one base after the other."""
    runs = [{(row.get("fold"), row.get("seed"), row.get("split")) for row in each.rows} for each in (base, line)]
    ours, theirs = settings(line.rows[0]), settings(base.rows[0])
    shared = sum(name in theirs and as_text(theirs[name]) == as_text(value) for name, value in ours.items())
    return bool(runs[0] & runs[1]), shared


def test_the_nearest_baseline_is_the_one_that_shares_most() -> None:
    rows = [row for row in many(240, 2) if row["data"] == "watch"]
    for number, row in enumerate(rows):
        if number % 7 == 0:
            row["run"]["clip"] = number
        if row["label"] != "msl" and number % 5 == 0:
            row["run"]["lr"] = 0.5  # as no baseline has it
        if row["label"] == "msl" and number % 11 == 0:
            row["split"] = "another"
            del row["run"]["momentum"]
    lines = aggregate(rows)
    bases = [line for line in lines if line.method == "msl"]
    expected = {
        line.label: max(bases, key=lambda base: nearness(base, line)).label for line in lines if line not in bases
    }
    found = {each.label: each.baseline for each in paired_differences(rows)}
    assert len(found) > 20
    assert found == {label: expected[label] for label in found}

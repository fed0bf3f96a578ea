"""t, the time of a step after the losses are there: both baselines in every table of it, and marks under load."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import equipoise.paper
from equipoise.measure.timing import BASELINES
from equipoise.paper import bench_report
from equipoise.report import as_dict, as_markdown, print_table
from equipoise.report.aggregate import RunGroup
from equipoise.report.details import measure_table
from equipoise.report.formats import FORMATS
from equipoise.report.page import write_page
from equipoise.report.results import read
from equipoise.report.step_times import load_of, over
from equipoise.report.table import ResultTable, main_table, tables
from paper import test_bench, test_reproduce
from report.example import make_row

SOURCE = Path(equipoise.__file__).parent


def rows_of(*labels: str, seeds: int = 2) -> list[dict[str, Any]]:
    return [make_row(label, seed) for label in labels for seed in range(seeds)]


def with_times(row: dict[str, Any], own: float, bare: float, msl: float, **load: Any) -> dict[str, Any]:
    times = {line: {"wall": each, "cpu": 2 * each} for line, each in (("own", own), ("bare", bare), ("msl", msl))}
    quiet = {"workers": 1, "average": 0.1, "cores": 2, "waited": 0.0}
    return {**row, "timing": {"workers": 1, "batches": 10, "t": times, "load": quiet, **load}}


# -- both baselines stand in every table --


def compared() -> ResultTable:
    return main_table(rows_of("msl", "mimo"), "watch", columns=["t"])


def detailed() -> ResultTable:
    return measure_table([RunGroup(label, tuple(rows_of(label))) for label in ("msl", "mimo")])


def reproduced(name: str) -> Callable[[], ResultTable]:
    from equipoise.paper.published import TABLES
    from equipoise.paper.reproduce_report import tables as of

    return lambda: of(test_reproduce.outcome(TABLES["ave"]))[name]


TABLES_OF_T = {
    "compare": compared,
    "page, in detail": detailed,
    "reproduce": reproduced("table"),
    "reproduce, time": reproduced("time"),
}


@pytest.mark.parametrize("made", TABLES_OF_T.values(), ids=TABLES_OF_T)
@pytest.mark.parametrize("form", [*FORMATS, "terminal"])
def test_both_baselines_stand_in_every_table_of_t(made: Callable[[], ResultTable], form: str) -> None:
    table = made()
    keys = [column.key for column in table.columns]
    times = [key for key in keys if f"{key}.bare" in keys or f"{key}.msl" in keys]
    assert "t" in times
    for key in times:
        assert {f"{key}.bare", f"{key}.msl"} <= set(keys)
        line = "mimo" if "mimo" in table.labels else "MIMO"
        assert all(table.at(line, f"{key}.{one}").raw for one in BASELINES)
    console = Console(record=True, width=400, file=io.StringIO())
    if form == "terminal":
        print_table(table, console)
    text = console.export_text() if form == "terminal" else FORMATS[form][0](table)
    named = [f"{key}.{one}" for key in times for one in BASELINES] if form == "csv" else ["a bare step", "MSL().attach"]
    assert all(name in text for name in named)


def test_every_ratio_of_a_table_says_what_it_is_to() -> None:
    every = [column for made in TABLES_OF_T.values() for column in made().columns]
    ratios = [column for column in every if "×" in column.heading]
    assert len(ratios) > 8
    for column in ratios:
        assert column.unit in ("× a bare step", "× MSL().attach", "× paper's MSL"), column.key
    assert not [column.key for column in every if column.key.endswith(".ratio") and column.key != "paper.ratio"]


def test_both_baselines_stand_in_the_tables_of_bench() -> None:
    for counts in ([2], [2, 3]):
        rows = test_bench.sampled(counts)
        for title, heads, _ in bench_report.tables(rows):
            assert (heads.count("× bare"), heads.count("× msl")) in ((2, 2), (0, 0))
            assert ("× bare" in heads) != bool(re.search("× (bare|msl)", title))
        titles = " ".join(title for title, *_ in bench_report.tables(rows))
        assert titles.count("× bare") == titles.count("× msl") == (len(counts) > 1)
        content = bench_report.as_dict(rows, test_bench.QUIET, torch.device("cpu"), 5, "equipoise bench")
        both = {"ratio to the bare loop", "ratio to MSL().attach"}
        assert all(both <= set(row) and both <= set(row["t"]) for row in content["rows"])
        header = bench_report.as_csv(rows).splitlines()[0].split(",")
        assert {"to_bare", "to_msl", "t_to_bare", "t_to_msl", "t_cpu_ms"} <= set(header)
        for words in bench_report.notes(rows, test_bench.QUIET):
            assert "× bare is over the bare loop" in words
            assert "× msl over MSL().attach" in words


def strings_of_source() -> Iterator[tuple[Path, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield from ((path, line) for line in path.read_text(encoding="utf-8").splitlines())


def test_no_page_shows_a_ratio_to_joint_training_that_could_be_either() -> None:
    pages = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    assert len(pages) > 20
    assert [page.name for page in pages if "× joint" in page.read_text(encoding="utf-8")] == []


def test_no_source_writes_a_ratio_to_joint_training_that_could_be_either() -> None:
    found = [
        (path.name, line)
        for path, line in strings_of_source()
        if re.search(r"× (joint|\{BASELINE\}|MSL\b(?!\())", line)
    ]
    assert [line for _, line in found if "paper" not in line] == []


# -- what stands there --


def test_ratios_by_hand() -> None:
    """Times of 3 and 8 ms over 2 and 4 of the bare step, and over 6 and 2 of MSL: means of 1.75 and of 2.25."""
    row = make_row("mimo")
    group = RunGroup("mimo", (with_times(row, 0.003, 0.002, 0.006), with_times(row, 0.008, 0.004, 0.002)))
    table = main_table(list(group.rows), "watch", columns=["t"], groups=[group])
    assert [column.heading for column in table.columns] == [
        "t (ms)", "t (× a bare step)", "t (× MSL().attach)", "t (ms of CPU)",
    ]  # fmt: skip
    assert [cell.main for cell in table.cells[0]] == ["5.50", "1.75", "2.25", "11.00"]
    assert table.at("mimo", "t.bare").raw[1] == pytest.approx((0.25**2 + 0.25**2) ** 0.5)  # deviation of 1.5 and 2
    assert any(
        note.startswith("t: the time after the losses are there") and "over 10 batches" in note for note in table.notes
    )


@pytest.mark.parametrize("seed", range(10))
def test_a_ratio_is_taken_within_a_run(seed: int) -> None:
    """A machine that is slower in one run than in the next changes no ratio."""
    draw = random.Random(seed)
    own, bare, msl = (draw.uniform(0.001, 0.01) for _ in range(3))
    speeds = [draw.uniform(0.1, 50) for _ in range(3)]
    rows = tuple(with_times(make_row("mimo"), own * by, bare * by, msl * by) for by in speeds)
    for baseline, other in (("bare", bare), ("msl", msl)):
        found = over(baseline, "timing", "t")(RunGroup("mimo", rows))
        assert found is not None
        assert found.mean == pytest.approx(own / other)
        assert found.deviation == pytest.approx(0, abs=1e-9)


def test_what_is_not_there_is_left_out() -> None:
    whole, none = with_times(make_row("mimo"), 0.003, 0.002, 0.006), make_row("ew")
    none["timing"] = {"step": "wall clock", "workers": 1}
    assert over("bare", "timing", "t")(RunGroup("ew", (none,))) is None
    zero = with_times(make_row("mimo"), 0.003, 0.0, 0.006)
    assert over("bare", "timing", "t")(RunGroup("mimo", (zero,))) is None
    table = main_table([whole, none], "watch")
    assert not [note for note in table.notes if note.startswith("t: ")], "which shows no t"
    for odd in (None, "odd", [], {"load": "odd", "workers": "two"}):
        none["timing"] = odd
        assert load_of([none]).doubts() == []


# -- marks --


LOADS = [
    ({"workers": 2, "load": {"workers": 2, "average": 0.5, "cores": 2, "waited": 0.0}}, "2 runs side by side"),
    ({"load": {"workers": 1, "average": 25.0, "cores": 2, "waited": 0.0}}, "a load average of 25.0 on 2 cores"),
    ({"load": {"workers": 1, "average": 0.5, "cores": 2, "waited": 0.4}}, "no processor for 40 % of the time"),
    ({"load": {"workers": 1, "average": 2.0, "cores": 2, "waited": 0.1}}, ""),
    ({"load": {"workers": None, "average": None, "cores": 2, "waited": None}, "workers": None}, ""),
]


@pytest.mark.parametrize(("load", "words"), LOADS)
def test_a_time_under_load_is_marked_wherever_it_stands(load: dict[str, Any], words: str, tmp_path: Path) -> None:
    busy = with_times(make_row("mimo"), 0.003, 0.002, 0.006, **load)
    quiet = with_times(make_row("msl"), 0.003, 0.002, 0.006)
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (busy, quiet)), encoding="utf-8")
    for columns in ((), ("t", "step", "fused")):
        (table,) = tables(read(tmp_path), columns=columns)
        for column in table.columns:
            cell = table.at("mimo", column.key)
            assert cell.doubted == cell.text.endswith("!") == (column.timed and bool(words)), column.key
            assert not table.at("msl", column.key).doubted
        plain = {line["label"]: line for line in as_dict(table)["lines"]}
        assert plain["mimo"]["step"].get("trusted", True) == (not words)
        assert "trusted" not in plain["msl"]["step"]
        assert "trusted" not in plain["mimo"]["fused"]
        notes = [note for note in table.notes if "NOT TO BE TRUSTED" in note]
        assert len(notes) == bool(words)
        assert all(words in note and "--workers 1" in note for note in notes)
        console = Console(record=True, width=300, file=io.StringIO())
        print_table(table, console)
        for text in (console.export_text(), as_markdown(table)):
            assert ("NOT TO BE TRUSTED" in text) == bool(words)
    page = write_page(tmp_path).read_text(encoding="utf-8")
    assert ("NOT TO BE TRUSTED" in page) == bool(words)


def test_the_worst_run_of_a_line_is_told() -> None:
    rows = [
        with_times(make_row("mimo"), 1, 1, 1, load={"workers": 1, "average": each, "cores": 2, "waited": 0.0})
        for each in (1.0, 9.0, 3.0)
    ]
    table = main_table(rows, "watch")
    (note,) = [note for note in table.notes if "NOT TO BE TRUSTED" in note]
    assert "a load average of 9.0 on 2 cores (the worst of all runs)" in note


def test_only_times_are_marked() -> None:
    marked = {column.key for made in TABLES_OF_T.values() for column in made().columns if column.timed}
    assert {key.partition(".")[0] for key in marked} == {"t", "step", "with backward", "without backward"}

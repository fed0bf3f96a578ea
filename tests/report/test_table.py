"""One table, five ways to write it, the same numbers in all."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from equipoise.report import (
    Cell,
    ResultColumn,
    ResultTable,
    aggregate,
    as_csv,
    as_json,
    as_latex,
    as_markdown,
    print_table,
    read,
    render,
    tables,
)
from equipoise.report.aggregate import MeanStd, modalities
from equipoise.report.details import missing_table, protocol_table
from equipoise.report.markup import html_table
from report.example import make_row, write_study


@pytest.fixture(params=[0, 4], ids=["seeds", "folds"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ResultTable:
    (table,) = tables(read(write_study(tmp_path, folds=request.param, epochs=1)))
    return table


def printed(table: ResultTable, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    print_table(table, console)
    return console.export_text()


def as_written(table: ResultTable) -> list[list[str]]:
    """Every line of the table: its label, then its cells."""
    return [[label, *(cell.text for cell in cells)] for label, cells in zip(table.labels, table.cells, strict=True)]


def test_estimated_shapley_values_are_shown_with_their_standard_error() -> None:
    rows = [make_row("mimo", seed) for seed in range(2)]
    exact = protocol_table(aggregate(rows), modalities(rows))
    assert not any("error" in column.key for column in exact.columns)
    assert exact.notes == ()
    for row, error in zip(rows, (0.02, 0.04), strict=True):
        row["test"]["shapley_error"] = dict.fromkeys(row["test"]["shapley"], error)
    table = protocol_table(aggregate(rows), modalities(rows))
    column = next(each for each in table.columns if each.key == "shapley_error.gyroscope")
    assert column.heading == "gyroscope (± standard error of shapley, %)"
    assert table.at("mimo", column.key).main == "3.0"
    assert [note for note in table.notes if "random orders" in note and "± standard error" in note]
    assert table.at("mimo", "shapley.gyroscope") == exact.at("mimo", "shapley.gyroscope")


# -- the same numbers --


def test_without_a_sensor_filled_inputs_are_judged_by_the_fused_answer_and_absence_by_the_committee() -> None:
    row = make_row("mimo", 0)
    ways = {"zeros": (0.1, 0.2), "mean": (0.3, 0.4), "absent": (0.5, 0.6)}
    missing = {way: {"fused": fused, "committee": committee} for way, (fused, committee) in ways.items()}
    row["test"]["faults"]["accelerometer"] = {"missing": missing}
    columns = {column.key: column for column in missing_table(aggregate([row]), ["accelerometer"]).columns}
    means = {way: columns[f"accelerometer.{way}"].of(aggregate([row])[0]) for way in ways}
    assert {way: mean.mean for way, mean in means.items() if isinstance(mean, MeanStd)} == {
        "zeros": 0.1,
        "mean": 0.3,
        "absent": 0.6,
    }


def test_the_terminal_shows_the_table(table: ResultTable) -> None:
    lines = [re.split(r" {2,}", line.strip()) for line in printed(table, 200).splitlines()]
    for expected in as_written(table):
        assert expected in lines


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_folds_columns_and_cuts_no_number(table: ResultTable, width: int) -> None:
    text = printed(table, width)
    assert max(map(len, text.splitlines())) <= width
    for label, *cells in as_written(table):
        blocks = [line for line in text.splitlines() if line.startswith(label + "  ")]
        assert [cell for line in blocks for cell in re.split(r" {2,}", line.strip())[1:]] == cells


def test_a_very_narrow_terminal_folds_labels_too(table: ResultTable) -> None:
    text = printed(table, 26)
    assert all(cell.text in re.sub(r" +", " ", text) for cells in table.cells for cell in cells)


def test_markdown_shows_the_table(table: ResultTable) -> None:
    text = as_markdown(table).replace("**", "").replace("<u>", "").replace("</u>", "").replace("\\", "")
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")
    ]
    assert rows[0] == ["method", *(column.heading for column in table.columns)]
    assert rows[2:] == as_written(table)


def test_latex_shows_the_table(table: ResultTable) -> None:
    text = as_latex(table)
    body = text[text.index("\\midrule") : text.index("\\bottomrule")].splitlines()[1:]
    body = [re.sub(r"\\textbf\{(.*?)\}|\\underline\{(.*?)\}", r"\1\2", line) for line in body]
    body = [line.replace("{\\tiny $", " ").replace("$}", "").replace("$", "").replace("\\pm", "±") for line in body]
    rows = [[cell.replace("--", "–").strip() for cell in line.removesuffix("\\\\").split("&")] for line in body]
    assert rows == as_written(table)


def test_csv_and_json_hold_every_digit(table: ResultTable) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    lines = json.loads(as_json(table))["lines"]
    assert [row["label"] for row in rows] == [line["label"] for line in lines] == list(table.labels)
    for row, line, cells in zip(rows, lines, table.cells, strict=True):
        for column, cell in zip(table.columns, cells, strict=True):
            key = column.key
            if column.kind == "words":
                assert row[key] == (line[key] or "")
            elif cell.value is None:
                assert (row[key], line[key]) == ("", None)
            else:
                assert float(row[key]) == line[key]["mean"] == cell.value
                more = {"_std": ("std", cell.raw[1])} if column.kind == "mean" else {"_low": ("low", cell.raw[1])}
                for ending, (name, value) in more.items():
                    assert float(row[key + ending]) == line[key][name] == value


class Rows(HTMLParser):
    """The texts of the cells of a table, line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1][-1] += data


def test_html_shows_the_table(table: ResultTable) -> None:
    parser = Rows()
    text = html_table(table)
    parser.feed(text[text.index("<thead") : text.index("</table>")])
    rows = [[" ".join(cell.replace("−", "-").split()) for cell in row] for row in parser.rows]
    assert rows[1:] == as_written(table)


# -- what is in it --


def test_best_is_bold_and_the_fastest_of_the_best_three_underlined(tmp_path: Path) -> None:
    (table,) = tables(read(write_study(tmp_path, ["msl", "ew", "mmpareto", "mimo"], seeds=1, epochs=1)))
    best = {key: [label for label in table.labels if table.at(label, key).best] for key in ("fused", "step")}
    values = {label: table.at(label, "fused").value or 0 for label in table.labels}
    assert best == {"fused": [max(values, key=values.__getitem__)], "step": []}
    top = sorted(values, key=lambda label: -values[label])[:3]
    fastest = min(top, key=lambda label: table.at(label, "step").value or 0)
    assert [label for label in table.labels if table.at(label, "step").fastest] == [fastest]
    assert f"\\underline{{{table.at(fastest, 'step').main}}}" in as_latex(table)


def test_only_lines_of_one_protocol_compete(tmp_path: Path) -> None:
    (table,) = tables(read(write_study(tmp_path, ["msl", "ogmge", "ew", "mimo"], epochs=1)))
    best = [label for label in table.labels if table.at(label, "alone.gyroscope").best]
    assert best == ["mimo"]
    assert [table.at(label, "protocol").main for label in ("msl", "ogmge", "ew")] == ["detached", "split", "head"]


def test_a_protocol_that_all_share_is_in_the_heading(tmp_path: Path) -> None:
    (table,) = tables(read(write_study(tmp_path, ["ew", "mimo"], epochs=1)))
    assert "gyroscope (head, %)" in [column.heading for column in table.columns]
    assert "protocol" not in [column.key for column in table.columns]


def test_the_notes_say_how_it_was_measured(table: ResultTable) -> None:
    notes = "\n".join(table.notes)
    assert "Headline: committee, or fused of " in notes
    assert "by which predict, the server and an exported model answer" in notes
    assert "Each modality alone is measured by detached" in notes
    assert "Epoch selected by: last." in notes
    assert "sha256:" in notes
    assert ("96 runs (4 folds × 3 seeds)." in notes) != ("24 runs (3 seeds)." in notes)
    assert ("over 4 folds, seeds of a fold averaged." in notes) != ("over 3 seeds of one split." in notes)
    assert all(len(note.splitlines()) == 1 for note in table.notes)


def test_selection_on_the_test_set_is_said_aloud(tmp_path: Path) -> None:
    row = make_row("msl") | {"selected": {"epoch": 3, "by": "test"}}
    (tmp_path / "results.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (table,) = tables(read(tmp_path))
    assert any("SELECTED ON THE TEST SET" in note for note in table.notes)


def test_a_nearly_empty_row_shows_dashes(tmp_path: Path) -> None:
    rows = [{"method": "msl", "test": {"fused": 0.5}}, {"method": "ew", "test": None}]
    (tmp_path / "results.jsonl").write_text(
        "".join(f"{json.dumps({'schema': 1, 'config': row['method'], **row})}\n" for row in rows), encoding="utf-8"
    )
    (table,) = tables(read(tmp_path))
    assert as_written(table) == [["msl", "50.0"], ["ew", "–"]]
    assert "Split: no fingerprint recorded." in table.notes


def test_no_number_at_all_still_prints(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"schema": 1, "config": "a", "method": "msl"}\n', encoding="utf-8")
    (table,) = tables(read(tmp_path))
    assert "msl" in printed(table, 60)
    assert as_latex(table).count("tabular") == 2


def test_data_sets_have_a_table_each(tmp_path: Path) -> None:
    write_study(tmp_path, ["msl"], epochs=1, data="watch")
    write_study(tmp_path, ["msl"], epochs=1, data="avmnist")
    assert [table.title.split(":")[0] for table in tables(read(tmp_path))] == ["avmnist", "watch"]


# -- hostile labels --

HOSTILE = r"a|b [bold]c[/bold] <script>alert(1)</script> \input{x} 50% $x_1^2$ ~#&{}"


def test_labels_are_only_text(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps(make_row("msl") | {"label": HOSTILE}) + "\n", encoding="utf-8")
    (table,) = tables(read(tmp_path))
    assert "a|b [bold]c[/bold]" in printed(table, 200)
    markdown = as_markdown(table)
    assert "<script" not in markdown
    assert r"a\|b \[bold\]" in markdown
    latex = as_latex(table)
    assert r"\textbackslash{}input\{x\} 50\% \$x\_1\textasciicircum{}2\$ \textasciitilde{}\#\&\{\}" in latex
    assert next(csv.DictReader(io.StringIO(as_csv(table))))["label"] == HOSTILE
    assert json.loads(as_json(table))["lines"][0]["label"] == HOSTILE
    assert "<script" not in html_table(table)


def test_runs_on_a_gpu_say_how_their_steps_were_done(tmp_path: Path) -> None:
    paths = ["yes", "yes", "its step waits for the device (at encoder.py:3)"]
    rows = [
        {**make_row("mimo", seed), "device": "cuda", "path": {"precision": "bf16", "captured": captured}}
        for seed, captured in enumerate(paths)
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    notes = "\n".join(tables(read(tmp_path))[0].notes)
    assert "On a GPU in bf16, steps played back from a recording; 1 run as written, since its step waits" in notes


def test_the_notes_name_the_form_of_a_method_that_has_several(tmp_path: Path) -> None:
    rows = [{**make_row("agm", seed), "path": {"form": "fast: an approximation"}} for seed in range(2)]
    rows += [make_row("msl", 0)]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (table,) = tables(read(tmp_path))
    assert [note for note in table.notes if "Form" in note] == ["Form of agm: fast: an approximation."]


@pytest.mark.parametrize(
    ("timings", "told"),
    [
        (
            [{"step": "wall clock of epoch 2", "workers": 2}] * 2,
            "first, by their steps; runs on the machine at the same time: 2.",
        ),
        ([{"step": "wall clock of the only epoch", "workers": 1}], "the first, or the only one, by their steps"),
        ([{"step": "wall clock", "workers": 4}, {"step": "wall clock", "workers": 2}], "same time: 2 or 4."),
        ([{"step": "wall clock", "workers": None}], "same time: an unknown number (a cluster)."),
        ([{"step": "wall clock", "workers": []}], "same time: an unknown number (a cluster)."),
        ([None, None], "step, of 2 runs of an earlier version: timed after training, as written."),
        ([{"step": "wall clock", "workers": 2}, "odd"], "same time: 2; of 1 run of an earlier version"),
    ],
)
def test_the_notes_say_how_a_step_was_timed(timings: list[Any], told: str, tmp_path: Path) -> None:
    rows = [{**make_row("mimo", seed), "timing": timing} for seed, timing in enumerate(timings)]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (table,) = tables(read(tmp_path))
    assert "step (ms, as trained)" in [column.heading for column in table.columns]
    assert any(told in note for note in table.notes), table.notes


@pytest.mark.parametrize("label", ["=1+1.npz", "+1", "-1+1", "@SUM(A1)", " =1", "|x", "%x"])
def test_no_cell_of_a_csv_is_a_formula(label: str, tmp_path: Path) -> None:
    rows = [make_row("msl", seed) | {"label": label, "data": label} for seed in range(2)]
    (tmp_path / "results.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    results = read(tmp_path)
    (table,) = tables(results)
    shown = results.rows[0]["label"]
    for text in (as_csv(table), render("csv", {results.rows[0]["data"]: table, "other": table})):
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert f"'{shown}" in cells
        texts = [cell for cell in cells if not re.fullmatch(r"-?[0-9.e-]*", cell)]
        assert not any(cell.lstrip()[0] in "=+-@|%" for cell in texts)


def test_numbers_below_zero_stay_numbers() -> None:
    column = ResultColumn("difference", "vs msl", lambda _: None, kind="difference")
    table = ResultTable("t", (column,), ("ew",), ((Cell("-1.0", raw=(-0.01, -0.02, 0.0)),),))
    assert as_csv(table).splitlines()[1] == "ew,-0.01,-0.02,0.0"

"""Reading a folder of results, whole or damaged."""

import json
from pathlib import Path

import pytest

from equipoise.report import read
from report.example import make_row, write_study


def append(folder: Path, text: str) -> None:
    with (folder / "results.jsonl").open("a", encoding="utf-8") as out:
        out.write(text)


def test_rows_and_curves_are_read(tmp_path: Path) -> None:
    results = read(write_study(tmp_path, ["msl", "mimo"], seeds=2, epochs=4))
    assert [(row["label"], row["seed"]) for row in results.rows] == [("msl", 0), ("msl", 1), ("mimo", 0), ("mimo", 1)]
    assert [epoch["epoch"] for epoch in results.curves[results.rows[0]["config"]]] == [1, 2, 3, 4]
    assert results.warning is None


def test_a_torn_last_line_is_reported_in_one_line(tmp_path: Path) -> None:
    write_study(tmp_path, ["msl"], seeds=2)
    append(tmp_path, json.dumps(make_row("mimo"))[:200])
    results = read(tmp_path)
    assert len(results.rows) == 2
    assert results.warning is not None
    assert "line 3 is torn" in results.warning
    assert "\n" not in results.warning


def test_a_line_torn_inside_a_letter_is_torn(tmp_path: Path) -> None:
    write_study(tmp_path, ["msl"], seeds=1)
    with (tmp_path / "results.jsonl").open("ab") as out:
        out.write('{"label": "λ'.encode()[:-1])
    assert len(read(tmp_path).rows) == 1


def test_other_schemas_unfinished_and_repeated_runs_are_left_out(tmp_path: Path) -> None:
    write_study(tmp_path, ["msl"], seeds=1)
    for change in ({"schema": 2}, {"status": "failed"}, {}):
        append(tmp_path, json.dumps(make_row("msl") | change) + "\n")
    results = read(tmp_path)
    assert len(results.rows) == 1
    assert results.warning is not None
    assert (
        "another schema than 1 (line 2); a run that is not done (line 3); a run written before (line 4)"
        in results.warning
    )


def test_damage_before_the_end_is_an_error_that_says_what_to_type(tmp_path: Path) -> None:
    write_study(tmp_path, ["msl"], seeds=1)
    append(tmp_path, "no JSON\n" + json.dumps(make_row("mimo")) + "\n")
    with pytest.raises(ValueError, match=r"in line 2 of .*type: sed -i '2d'"):
        read(tmp_path)


@pytest.mark.parametrize("content", ["", "\n\n", '{"schema": 2}\n'])
def test_a_file_without_runs_is_an_error(tmp_path: Path, content: str) -> None:
    append(tmp_path, content)
    with pytest.raises(ValueError, match=r"found none.*type: equipoise compare --data watch --out"):
        read(tmp_path)


def test_a_missing_folder_or_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder.*type: equipoise compare"):
        read(tmp_path / "a b")
    with pytest.raises(ValueError, match=r"results.jsonl.*type: equipoise compare"):
        read(tmp_path)


def test_a_row_without_a_name_is_an_error(tmp_path: Path) -> None:
    append(tmp_path, '{"schema": 1, "test": {}}\n')
    with pytest.raises(ValueError, match='expected "label" or "method" in line 1'):
        read(tmp_path)


def test_damaged_curves_cost_the_curves_only(tmp_path: Path) -> None:
    write_study(tmp_path, ["msl", "mimo"], seeds=1, epochs=3)
    torn, damaged = sorted((tmp_path / "runs").iterdir())
    path = torn / "curves.jsonl"
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    (damaged / "curves.jsonl").write_text("?\n{}\n", encoding="utf-8")
    results = read(tmp_path)
    assert [len(curve) for curve in results.curves.values()] == [2]
    assert results.warning is not None
    assert f"curves of run {torn.name} is torn" in results.warning
    assert f"curves of run {damaged.name} are damaged" in results.warning


def test_a_config_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "out" / "runs").mkdir(parents=True)
    (tmp_path / "curves.jsonl").write_text('{"epoch": 1}\n', encoding="utf-8")
    append(tmp_path / "out", json.dumps(make_row("msl") | {"config": "../.."}) + "\n")
    assert read(tmp_path / "out").curves == {}


def test_control_characters_never_reach_a_terminal(tmp_path: Path) -> None:
    append(tmp_path, json.dumps(make_row("msl") | {"label": "\x1b[31mred\nline"}) + "\n")
    assert read(tmp_path).rows[0]["label"] == "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}line"

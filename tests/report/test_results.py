"""Reading a folder of results, whole or damaged."""

import json
import os
from pathlib import Path

import pytest

from equipoise.report import read
from equipoise.study.store import Store
from equipoise.util import processes
from equipoise.util.errors import BadInput
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
    with pytest.raises(ValueError, match=r"results\.jsonl: .*damage in line 2\. .*type: sed -i '2d;'"):
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
    append(tmp_path, '{"schema": 1, "config": "a", "test": {}}\n')
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


def both(folder: Path) -> list[str]:
    """The runs that a study takes for done, which have to be those that a report shows."""
    done = [row["config"] for row in Store(folder).rows()]
    assert [row["config"] for row in read(folder).rows] == done
    return done


ROWS = [json.dumps(make_row("msl", seed)).encode() for seed in range(3)]
CONFIGS = [json.loads(row)["config"] for row in ROWS]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\n".join(ROWS) + b"\n", 3),
        (b"\xef\xbb\xbf" + b"\n".join(ROWS) + b"\n", 3),
        (b"\r\n".join(ROWS) + b"\r\n", 3),
        (b"\n".join(ROWS), 2),  # the last has no end: a kill may have cut off more of it
        (b"\n\n".join(ROWS[:2]) + b"\n  \n", 2),
        (ROWS[0] + b"\n" + ROWS[1][:-5], 1),
        (ROWS[0] + b'\n{"schema": 2}\n' + ROWS[1] + b"\n", 2),
    ],
    ids=["plain", "byte order mark", "of Windows", "no end", "blanks", "torn", "another schema"],
)
def test_a_study_and_a_report_read_the_same_rows(tmp_path: Path, content: bytes, expected: int) -> None:
    (tmp_path / "results.jsonl").write_bytes(content)
    assert both(tmp_path) == CONFIGS[:expected]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[1]",
        b'"text"',
        b"{}",
        b'{"config": null}',
        b'{"config": 3}',
        b'{"config": "a", "seed": [1]}',
        b'{"config": "a", "fold": 1e400}',
        b'{"config": "a", "split": {}}',
        b'{"config": "a", "run": [1]}',
        b'{"config": "a", "params": "none"}',
        b"\xff\xfe",
        b"null",
        b"\xef\xbb\xbf{}",
        ROWS[2].decode().encode("utf-16"),
        b"[" * 100_000,
        b'{"config": ' + b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_study_and_a_report_refuse_the_same_damage(tmp_path: Path, line: bytes, last: bool) -> None:
    after = b"" if last else ROWS[1] + b"\n"
    (tmp_path / "results.jsonl").write_bytes(ROWS[0] + b"\n" + line.replace(b"\n", b"") + b"\n" + after)
    with pytest.raises(BadInput, match=r"damage in line 2\. .*type: sed -i '2d;'") as of_study:
        Store(tmp_path).rows()
    with pytest.raises(BadInput) as of_report:
        read(tmp_path)
    assert str(of_report.value) == str(of_study.value)


def test_what_is_no_file_is_refused_by_both(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for make in (
        lambda: os.mkfifo(path),
        path.mkdir,
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(path),
    ):
        make()
        for ask in (lambda: Store(tmp_path).rows(), lambda: read(tmp_path)):
            with pytest.raises(
                BadInput, match=r"results\.jsonl: expected a file|cannot read .*(symbolic links|Is a dir)"
            ):
                ask()
        path.rmdir() if path.is_dir() else path.unlink()
    assert Store(tmp_path).rows() == []


def test_a_file_larger_than_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "results.jsonl").open("wb") as file:
        file.truncate(2**40)
    monkeypatch.setattr(processes, "free_memory", lambda: 2**30)
    for ask in (Store(tmp_path).rows, lambda: read(tmp_path)):
        with pytest.raises(BadInput, match=r"needs about 1,024\.0 GiB of memory, and 1\.0 GiB are free"):
            ask()

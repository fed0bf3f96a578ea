"""`equipoise bench`: what is measured, against what, and how it is said. No time is tested against another."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from equipoise import MGDA, MIMO, MSL, LateFusion
from equipoise.cli.bench import cases_of, numbers_of
from equipoise.data import Part
from equipoise.measure import timing
from equipoise.measure.timing import PIECES, Load, Stopwatch, TimedStep, bare_step, timed_step
from equipoise.paper import bench, bench_report
from equipoise.paper.bench import (
    BARE,
    JOINT,
    TORCHJD,
    WRITTEN,
    BenchCase,
    BenchRow,
    chosen_methods,
    growth,
    measure,
    methods,
    other_loops,
    peak_of,
    torchjd_step,
)
from equipoise.util.errors import BadInput

CPU = torch.device("cpu")
CASES = [BenchCase("small", 2, 4), BenchCase("small", 3, 4)]
QUIET, BUSY = Load(None, 0.5, 2, 0.0), Load(None, 12.0, 2, 0.6)


@pytest.fixture(scope="module")
def rows() -> list[BenchRow]:
    return measure(CASES, chosen_methods("mimo,mgda,mgda-features"), CPU, 1)[0]


def test_every_line_is_measured_in_every_case(rows: list[BenchRow]) -> None:
    lines = [BARE, JOINT, "mimo", "mgda", "mgda-features", TORCHJD]
    assert [(row.case, row.line) for row in rows] == [(case, line) for case in CASES for line in lines]
    for row in rows:
        assert set(row.whole) == set(row.to_joint) == set(row.to_bare) == {WRITTEN}
        t = [row.t, row.t_to_joint, row.t_to_bare, row.t_cpu]
        numbers = [*row.whole.values(), *row.to_joint.values(), *row.to_bare.values(), *t, row.memory]
        assert all(math.isfinite(number) and number > 0 for number in numbers)
        assert tuple(row.pieces) == PIECES
        assert all(row.pieces[piece] > 0 for piece in PIECES if piece != "balance")
        assert (row.pieces["balance"] > 0) == (row.line not in (BARE, TORCHJD)), "which have no balancer to call"
        assert row.as_dict()["pieces together"] == pytest.approx(sum(row.pieces.values()))
        assert row.path == ("capture=false" if row.line not in (BARE, TORCHJD) else "")


def test_ratios_are_to_joint_training_and_to_the_bare_loop_of_the_same_case(rows: list[BenchRow]) -> None:
    for row in rows:
        if row.line == JOINT:
            assert row.to_joint[WRITTEN] == row.t_to_joint == 1
        if row.line == BARE:
            assert row.to_bare[WRITTEN] == row.t_to_bare == 1


def test_memory_counts_what_a_method_holds(rows: list[BenchRow]) -> None:
    held = {(row.case.modalities, row.line): row.memory for row in rows}
    for count in (2, 3):
        assert held[count, "mgda"] > held[count, "mgda-features"] > 0.9 * held[count, "mimo"]
    assert held[3, "mimo"] > held[2, "mimo"]


def test_a_clock_that_ticks_once_a_look_shows_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece lasts from one look to the next; the other clock, which is looked at before and after, ticks alike."""
    ticks, computed = iter(range(10**6)), iter(range(10**6))
    clocks = {"perf_counter": lambda: float(next(ticks)), "process_time": lambda: float(next(computed))}
    monkeypatch.setattr(timing, "time", SimpleNamespace(**clocks))
    monkeypatch.setattr(timing.os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    monkeypatch.setattr(timing.os, "cpu_count", lambda: 2)
    rows, load = measure(CASES[:1], chosen_methods("mimo,mgda"), CPU, 1)
    found = {row.line: row for row in rows}
    second = 1000.0
    assert found["mimo"].pieces == found["mgda"].pieces == found[JOINT].pieces == dict.fromkeys(PIECES, second)
    assert found[BARE].pieces == found[TORCHJD].pieces == {**dict.fromkeys(PIECES, second), "balance": 0.0}
    # By hand: t is balance and backward, two looks; the bare loop has no balance.
    for line, t in ((BARE, 1), (JOINT, 2), ("mimo", 2), ("mgda", 2), (TORCHJD, 1)):
        row = found[line]
        assert (row.t, row.t_to_bare, row.t_to_joint, row.t_cpu) == (t * second, t, t / 2, t * second)
        assert row.batches == 8 - timing.WARM_UP
    assert load == Load(None, 3.0, 2, 0.0)


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that slows down from round to round changes no ratio."""
    assert bench._ratio([2.0, 4.0, 18.0], [1.0, 2.0, 9.0]) == 2.0
    assert bench._ratio([2.0, 30.0, 4.0], [1.0, 2.0, 2.0]) == 2.0


def row_of(count: int, line: str, ratio: float) -> BenchRow:
    pieces = dict.fromkeys(PIECES, 0.2)
    way = {WRITTEN: 2 * ratio}
    return BenchRow(
        BenchCase("small", count, 8), line, way, {WRITTEN: ratio}, {WRITTEN: 3 * ratio}, pieces, 1.5,
        t_to_joint=5 * ratio, t_to_bare=7 * ratio, t_cpu=0.3, batches=25,
    )  # fmt: skip


def test_growth_by_hand() -> None:
    exact = [row_of(count, "mimo", 1.0 + 0.03 * count) for count in (2, 4, 8)]
    assert growth(exact, "mimo") == pytest.approx(0.03)
    # (2, 1), (4, 2), (6, 1): around K = 4 they go neither up nor down
    assert growth([row_of(2, "ew", 1), row_of(4, "ew", 2), row_of(6, "ew", 1)], "ew") == pytest.approx(0)
    assert growth(exact[:1], "mimo") is None
    assert growth(exact, "mimo", bench.RECORDED) is None
    assert growth(exact, "mimo", baseline=BARE) == pytest.approx(0.09)


# -- what the lines are --


def tiny(unimodal: Any = "head") -> LateFusion:
    torch.manual_seed(0)
    encoders = {
        name: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4)) for name in ("audio", "video", "touch")
    }
    return LateFusion(encoders, 3, unimodal=unimodal)


def moved(model: LateFusion, step: TimedStep) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    inputs = {name: torch.randn(9, 5, generator=random) for name in model.encoders}
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    step(Stopwatch(CPU, synchronise=False), Part(inputs, torch.arange(9) % 3))
    return {name: tensor.detach() - before[name] for name, tensor in model.named_parameters()}


def test_the_loop_beside_mgda_does_the_same_thing() -> None:
    ours, theirs = tiny(), tiny()
    first, second = (torch.optim.SGD(model.parameters(), lr=1.0) for model in (ours, theirs))
    found = moved(ours, timed_step(ours, MGDA().attach(ours), first))
    other = moved(theirs, torchjd_step(theirs, second))
    for name, change in found.items():  # their solver stops at a thousandth
        torch.testing.assert_close(other[name], change, rtol=2e-2, atol=2e-3)


def test_the_bare_loop_moves_encoders_as_joint_training_does() -> None:
    ours, bare = tiny("detached"), tiny(None)
    first, second = (torch.optim.SGD(model.parameters(), lr=1.0) for model in (ours, bare))
    found = moved(ours, timed_step(ours, MSL().attach(ours), first))
    other = moved(bare, bare_step(bare, second))
    assert set(other) < set(found)
    for name, change in other.items():
        torch.testing.assert_close(found[name], change, rtol=1e-5, atol=1e-7)


def test_all_methods_are_there_and_joint_training_always(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"mimo", "mgda", "mgda-features", "mmpareto-features", "ogmge", "unimodal"} < set(methods())
    assert "ensemble" not in methods()
    assert list(chosen_methods("mimo")) == [JOINT, "mimo"]
    assert set(chosen_methods("all")) == set(methods())
    assert chosen_methods("mgda-features")["mgda-features"]().at == "features"
    with pytest.raises(ValueError, match=r"unknown method 'mimoo'; did you mean 'mimo'\?.*\nunknown method 'zzz'"):
        chosen_methods("mimoo,zzz")
    assert other_loops(["mgda"]) == [BARE, TORCHJD]
    assert other_loops(["mimo"]) == [BARE]
    monkeypatch.setitem(sys.modules, "torchjd", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert other_loops(["mgda"]) == [BARE]


def test_memory_by_hand() -> None:
    mebibyte = 2**18  # floats
    kept = torch.ones(mebibyte)
    assert peak_of(lambda: torch.ones(mebibyte) + torch.ones(mebibyte), CPU) == 3
    assert peak_of(lambda: kept.view(-1, 2).mul_(2).t(), CPU) == 0  # views and work in place take nothing
    assert peak_of(lambda: [float((kept + 1)[0]) for _ in range(5)] and None, CPU) == pytest.approx(1, abs=1e-4)
    assert peak_of(lambda: [kept + number for number in range(5)], CPU) == 5


# -- how it is said --


def test_numbers_and_cases() -> None:
    assert numbers_of("modalities", "2..5") == [2, 3, 4, 5]
    assert numbers_of("batch", "16,64,16") == [16, 64]
    for text in ("5..2", "1,2", "two", ""):
        with pytest.raises(ValueError, match=rf"--batch: expected whole numbers above one, .*; found '{text}'"):
            numbers_of("batch", text)
    assert cases_of("resnet18", "2,3", "4") == [BenchCase("resnet18", 2, 4), BenchCase("resnet18", 3, 4)]
    assert cases_of(None, "2", "64") == [BenchCase("small", 2, 64), BenchCase("transformer", 2, 64)]
    assert cases_of(None, "2", "64", quick=True)[-1] == BenchCase("transformer", 2, 16)
    with pytest.raises(BadInput, match=r"(?s)unknown encoder 'smal'; did you mean 'small'.*--modalities.*--batch"):
        cases_of("smal", "1", "x")


def sampled(counts: Sequence[int] = (2, 3, 4)) -> list[BenchRow]:
    lines = (BARE, JOINT, "mimo", "agm", "mgda-features", TORCHJD)
    return [row_of(count, line, 1 + 0.1 * place * count) for count in counts for place, line in enumerate(lines)]


def test_tables_hold_every_case_and_the_cost_against_the_number_of_modalities() -> None:
    rows = sampled()
    found = bench_report.tables(rows)
    assert len(found) == 5, "a table for each case, and one against K for each baseline"
    assert len(bench_report.brief_tables(rows)) == 3
    assert found[0][0].startswith("small encoders, 2 modalities, batch 8")
    assert found[-1][1] == ["line", "K = 2", "K = 3", "K = 4", "per modality"]
    assert ["whole step × bare" in found[-2][0], "whole step × msl" in found[-1][0]] == [True, True]
    assert found[-1][2][2] == ["mimo", "1.40", "1.60", "1.80", "+20.0 %"]
    assert found[-2][2][2] == ["mimo", "4.20", "4.80", "5.40", "+60.0 %"]
    assert found[-1][2][1][0] == JOINT
    heads = ["line", "whole", "× bare", "× msl", "t", "× bare", "× msl", "t CPU", *PIECES, "MiB"]
    assert found[0][1] == heads
    # By hand, of mimo at K = 2, where the ratio is 1.4: t is two pieces of 0.2 ms
    assert found[0][2][2] == ["mimo", "2.80", "4.20", "1.40", "0.40", "9.80", "7.00", "0.30", *["0.20"] * 5, "1.5"]
    for table in found:
        assert all(len(cells) == len(table[1]) for cells in table[2])
        lines = bench_report.as_text(table).splitlines()[2:]
        assert len({len(line) for line in lines}) == 1
        assert bench_report.as_markdown(table).count("\n") == len(table[2]) + 3
    (words,) = bench_report.notes(rows, QUIET)
    assert TORCHJD in words
    assert "mean over 25 batches" in words
    assert len(bench_report.tables(sampled([2]))) == 1


def test_files_hold_the_same_numbers(tmp_path: Path) -> None:
    rows = sampled()
    content = bench_report.as_dict(rows, QUIET, CPU, 5, "equipoise bench")
    bench_report.write(content, rows, QUIET, tmp_path)
    read = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert read == content
    assert read["rows"][2]["milliseconds"] == {WRITTEN: rows[2].whole[WRITTEN]}
    slopes = {(each["line"], each["baseline"]): each["share of its step"] for each in read["growth per modality"]}
    assert slopes["mimo", JOINT] == pytest.approx(0.2)
    assert slopes["mimo", BARE] == pytest.approx(0.6)
    with (tmp_path / "bench.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [float(line["ms"]) for line in table] == [row.whole[WRITTEN] for row in rows]
    assert [float(line["ms_balance"]) for line in table] == [row.pieces["balance"] for row in rows]
    assert {line["ms_recorded"] for line in table} == {""}
    assert [float(line["t_to_bare"]) for line in table] == [row.t_to_bare for row in rows]
    assert [float(line["t_to_msl"]) for line in table] == [row.t_to_joint for row in rows]
    assert (tmp_path / "bench.md").read_text(encoding="utf-8").count("**small encoders") == 5


@pytest.mark.parametrize("load", [QUIET, BUSY])
def test_a_busy_machine_is_told_everywhere(load: Load, tmp_path: Path) -> None:
    rows = sampled([2])
    content = bench_report.as_dict(rows, load, CPU, 5, "equipoise bench")
    bench_report.write(content, rows, load, tmp_path)
    written = (tmp_path / "bench.md").read_text(encoding="utf-8")
    told = "NOT TO BE TRUSTED: these times were taken under a load average of 12.0 on 2 cores, no processor for 60 %"
    assert (told in written) == any(told in note for note in bench_report.notes(rows, load)) == (load is BUSY)
    assert json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["trusted"] == (load is QUIET)


def test_recorded_steps_have_columns_and_panels_of_their_own(tmp_path: Path) -> None:
    rows = sampled()
    for row in rows:
        if row.line != BARE:
            row.whole[bench.RECORDED], row.to_joint[bench.RECORDED], row.to_bare[bench.RECORDED] = 1.0, 0.5, 0.25
    found = bench_report.tables(rows)
    assert len(found) == 7
    assert found[0][1][4:7] == [bench.RECORDED, "× bare", "× msl"]
    assert found[0][2][0][4:7] == ["–", "–", "–"]
    assert found[0][2][1][4:7] == ["1.00", "0.25", "0.50"]
    assert [path.name for path in bench_report.draw(rows, tmp_path, "By hand.")] == ["bench.svg", "bench.png"]
    text = (tmp_path / "bench.svg").read_text(encoding="utf-8")
    assert "By hand. Cost of a whole training step" in text
    assert all(f"× {line}, {way}" in text for line in ("bare", "msl") for way in (WRITTEN, bench.RECORDED))


def test_no_figure_where_the_number_of_modalities_stands_still(tmp_path: Path) -> None:
    assert bench_report.draw(sampled([2]), tmp_path, "By hand.") == []


def test_the_command_prints_json_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.cli import main as cli

    words = [
        "bench",
        "--methods",
        "mimo",
        "--modalities",
        "2..3",
        "--batch",
        "4",
        "--encoder",
        "small",
        "--rounds",
        "1",
    ]
    for more in (["--json"], []):
        monkeypatch.setattr(sys, "argv", ["equipoise", *words, "--device", "cpu", "--out", str(tmp_path), *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        printed = capsys.readouterr()
        if more:
            found = json.loads(printed.out, parse_constant=pytest.fail)
            assert printed.err == ""
    assert [row["line"] for row in found["rows"]] == [BARE, JOINT, "mimo"] * 2
    assert {Path(path).name for path in found["files"]} == {
        f"bench.{ending}" for ending in ("json", "csv", "md", "svg", "png")
    }
    assert all(Path(path).is_file() for path in found["files"])
    assert "2 modalities, batch 4" in printed.out
    assert "3 modalities, batch 4" not in printed.out
    assert MIMO.__name__.lower() in printed.out
    assert "bench: small, K = 3, batch 4 (2 of 2): round 1 of 1, mimo" in printed.err

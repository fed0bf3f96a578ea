"""`equipoise robustness`: which runs it asks for, that none is done twice, and what it refuses."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.study import robustness
from equipoise.study.registry import Entry, entries
from equipoise.study.robustness import check_grid, check_lines, run_robustness
from equipoise.study.store import Store
from equipoise.util.errors import BadInput, FailedRuns
from small_study import DATA

WORDS = ["epochs=1", "features=4"]
ABSURD = 1e30  # a factor at which every loss is infinite after a step


def study(out: Path, *, methods: str = "msl,mimo", seeds: int = 1, **how: Any) -> list[robustness.MethodCurve]:
    lines = entries(methods.split(","), WORDS)
    return run_robustness([(DATA, lines)], range(seeds), out, quick=True, quiet=True, workers=1, **how)


def test_rates_multiply_the_learning_rate_and_sizes_leave_it(tmp_path: Path) -> None:
    curves = study(tmp_path, rates=(0.3, 1, 3), sizes=(0.2, 1))
    assert [(curve.label, curve.axis, list(curve.runs)) for curve in curves] == [
        ("msl", "rate", [0.3, 1.0, 3.0]),
        ("mimo", "rate", [0.3, 1.0, 3.0]),
        ("msl", "size", [0.2, 1.0]),
        ("mimo", "size", [0.2, 1.0]),
    ]
    rows = Store(tmp_path).rows()
    assert sorted(row["label"] for row in rows) == sorted(
        f"{name}{moved}"
        for name in ("msl", "mimo")
        for moved in ("", ", lr × 0.3", ", lr × 3", ", 0.2 of the training samples")
    )
    rates = {at: runs[0].row["run"]["lr"] for at, runs in curves[0].runs.items() if runs[0].row}
    assert rates == {0.3: 0.003, 1.0: 0.01, 3.0: 0.03}
    assert {runs[0].row["run"]["lr"] for runs in curves[2].runs.values() if runs[0].row} == {0.01}
    assert curves[2].runs[1.0] == curves[0].runs[1.0], "all samples at the given rate are one run"
    whole = len(DATA.load(None).train)
    assert dict(curves[2].samples) == {0.2: round(0.2 * whole), 1.0: whole}
    assert {runs[0].constant for runs in curves[0].runs.values() if runs[0].row} == {rows[0]["test"]["baseline"]}


def test_no_run_is_done_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    first = study(tmp_path, methods="msl", rates=(1, 3))
    before = (tmp_path / "results.jsonl").read_bytes()
    monkeypatch.setattr(
        "equipoise.study.study.executor_for", lambda _, jobs, *__: pytest.fail(str(jobs)) if jobs else _none()
    )
    assert study(tmp_path, methods="msl", rates=(1, 3)) == first
    assert (tmp_path / "results.jsonl").read_bytes() == before
    run_robustness([(DATA, entries(["msl"], WORDS))], [0], tmp_path, rates=(1, 3), quick=True, workers=1)
    assert "planned: 2 runs, 0 of them not done yet" in capsys.readouterr().err


def _none() -> Any:
    return nullcontext(SimpleNamespace(running=False))


def test_runs_that_diverge_are_an_answer_and_are_not_tried_again(tmp_path: Path, capsys: Any) -> None:
    curves = study(tmp_path, methods="mimo", rates=(1, ABSURD), seeds=2)
    assert [[run.row is None for run in runs] for runs in curves[0].runs.values()] == [[False, False], [True, True]]
    errors = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/error.txt")}
    assert len(errors) == 2
    again = run_robustness([(DATA, entries(["mimo"], WORDS))], range(2), tmp_path, rates=(1, ABSURD), quick=True)
    assert again == curves
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/error.txt")} == errors
    assert "planned: 4 runs, 0 of them not done yet" in capsys.readouterr().err


def test_nothing_that_finished_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(FailedRuns, match="not a single run was finished"):
        study(tmp_path, methods="mimo", rates=(ABSURD, 2 * ABSURD))


def test_a_run_that_fails_for_another_reason_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = robustness.run_jobs
    monkeypatch.setattr(robustness, "run_jobs", lambda *a, **k: {**healthy(*a, **k), "x": "msl, seed 0: OSError: no"})
    with pytest.raises(FailedRuns, match="msl, seed 0: OSError: no"):
        study(tmp_path, methods="msl", rates=(1, 3))


def test_folds_and_seeds_are_the_same_everywhere(tmp_path: Path) -> None:
    how: dict[str, Any] = {"rates": (1, 3), "sizes": (0.5, 1), "folds": True, "quick": True, "quiet": True}
    curves = run_robustness([(replace(DATA, folds=3), entries(["msl"], WORDS))], range(2), tmp_path, **how)
    wanted = [(fold, seed) for fold in range(3) for seed in range(2)]
    assert {curve.axis: list(curve.runs) for curve in curves} == {"rate": [1, 3], "size": [0.5, 1]}
    for curve in curves:
        for runs in curve.runs.values():
            assert [(run.fold, run.seed) for run in runs] == wanted


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("rates", (), "none"),
        ("rates", (1,), "1"),
        ("rates", (1, 1), "1,1"),
        ("rates", (1, 1.0000001), "1,1"),
        ("rates", (0, 1), "0,1"),
        ("rates", (-1, 1), "-1,1"),
        ("rates", (1, float("inf")), "1,inf"),
        ("rates", (1, float("nan")), "1,nan"),
        ("sizes", (0.5, 1.5), "0.5,1.5"),
        ("sizes", (0.5,), "0.5"),
    ],
)
def test_grids_that_are_no_curve_are_refused(name: str, values: tuple[float, ...], found: str) -> None:
    with pytest.raises(BadInput, match=f"--{name}: expected two different numbers or more above 0.*, found {found}$"):
        check_grid(name, values)


def test_grids_are_ordered_and_sizes_may_be_left_out() -> None:
    assert check_grid("rates", (10, 0.1, 1)) == (0.1, 1.0, 10.0)
    assert check_grid("sizes", ()) == ()


def test_methods_without_a_rate_or_a_fused_decision_are_refused() -> None:
    with pytest.raises(BadInput, match="robustness: expected methods with a fused decision, found unimodal"):
        check_lines(entries(["msl", "unimodal"]))
    with pytest.raises(BadInput, match="robustness: expected one method that is trained"):
        check_lines(entries(["msl", "instant"]))
    with pytest.raises(BadInput, match="step=safe sets the learning rate itself"):
        check_lines(entries(["mimo"], ["step=safe", "momentum=0"]))
    every: list[Entry] = check_lines(entries(["all"]))
    assert "unimodal" not in [entry.label for entry in every]
    assert len(every) == len(entries(["all"])) - 1


def test_all_problems_come_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        run_robustness([(DATA, entries(["unimodal"]))], [0], tmp_path / "out", rates=(1,), sizes=(2, 3))
    assert all(part in str(caught.value) for part in ("--rates", "--sizes", "found unimodal"))
    assert not (tmp_path / "out").exists()

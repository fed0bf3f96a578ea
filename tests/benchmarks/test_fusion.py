"""The study of fusions on made-up data: which runs are planned, what a row says, and the tables' arithmetic."""

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest

from equipoise.data import Splits
from equipoise.data.bundled import two_sensors

ROOT = Path(__file__).parents[2]


def load(name: str) -> Any:
    """Import a program of benchmarks/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module(name)


fusion = load("fusion")
LINES = [("late", "msl"), ("hybrid", "msl"), ("hybrid", "ew"), ("hybrid, heads", "ew"), ("early, samples", "moddrop")]


def made_up(*_: Any) -> Splits:
    return two_sensors(samples=80)


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    monkeypatch.setattr(fusion, "components_of", made_up)
    return argparse.Namespace(steps=3, batch=16, out=tmp_path / "fusion.jsonl")


@pytest.fixture
def jobs() -> list[Any]:
    return [fusion.Job("generated", 0, *line) for line in LINES]


def test_every_line_is_planned_once_and_folds_come_in_order() -> None:
    jobs = fusion.planned(["watch", "folder/utd.npz"], ["watch"], 3, 1)
    assert len(jobs) == len({job.key for job in jobs}) == 2 * 3 * 14 + 2 * 6 + 6
    assert [job.fold for job in jobs] == sorted(job.fold for job in jobs)
    assert {job.key[0] for job in jobs if job.fusion == "early, samples"} == {"watch"}
    assert {job.method for job in jobs if job.fusion == "hybrid, heads"} == {"ew", "mimo"}


def test_a_study_goes_on_where_it_was_and_its_rows_agree_with_themselves(
    given: argparse.Namespace, jobs: list[Any]
) -> None:
    first = list(fusion.work(jobs[:2], given))
    more = list(fusion.work(jobs, given))
    assert [fusion.key_of(row) for row in first + more] == [job.key for job in jobs]
    assert not list(fusion.work(jobs, given))
    rows = {(row["fusion"], row["method"]): row for row in fusion.rows_of(given.out)}
    views = [row["view"] for row in rows.values()]
    assert views == ["detached", "masked_detached", "masked", "head", "masked_detached"]
    for (title, method), row in rows.items():
        easy, hard = row["missing"]
        assert row["missing"][easy] == row["alone"][hard]  # of two sensors
        if row["view"].startswith("masked"):
            assert row["own"] == {name: pytest.approx(one["fused"]) for name, one in row["alone"].items()}
        shares = [sum(one.values()) for one in row["attention"] if one]
        assert len(shares) == (0 if title == "late" else len(row["attention"]))
        assert shares == pytest.approx([1] * len(shares))
        assert len(row["validation"]) == (2 if method == "msl" or title == "early, samples" else 1)
    tuned = rows["hybrid", "msl"]
    assert tuned["lr"] == float(max(tuned["validation"], key=tuned["validation"].get))
    assert rows["hybrid", "ew"]["lr"] == rows["hybrid, heads", "ew"]["lr"] == tuned["lr"]
    text = fusion.table(list(rows.values()))
    assert text.count("\n") == 1 + len(LINES)
    assert fusion.figure(list(rows.values()), given.out.parent).stat().st_size > 1000


def row(fold: int, title: str, method: str, right: float, alone: tuple[float, float]) -> dict[str, Any]:
    first, last = ({"fused": one, "committee": one} for one in alone)
    about = {"data": "made up", "fold": fold, "fusion": title, "method": method, "view": "masked"}
    by_sensor = {"missing": {"a": last, "b": first}, "alone": {"a": first, "b": last}}
    return {**about, "fused": right, "committee": right, "disparity": 0.0, "attention": [None], **by_sensor}


def hybrid(joint: list[dict[str, Any]]) -> dict[str, Any]:
    return {**joint[0], "fusion": "hybrid"}


def test_differences_are_paired_by_fold_whatever_the_order_of_rows() -> None:
    joint = [row(fold, "late", "msl", right, (0.5, 0.3)) for fold, right in enumerate((0.80, 0.90, 0.70))]
    mimo = [row(fold, "hybrid", "mimo", right, (0.6, 0.5)) for fold, right in ((2, 0.72), (0, 0.84))]
    assert fusion.differences(mimo, joint, "fused") == pytest.approx([2, 4])
    assert fusion.differences(mimo, joint, "disparity alone") == pytest.approx([-10, -10])
    assert fusion.differences(mimo, joint, "one missing, fused") == pytest.approx([15, 15])
    assert "| hybrid | MIMO | masked | 10.0 / 0.0 |" in fusion.disparities(joint + mimo)
    assert "| hybrid | MIMO | 2 | 78.0 | 78.0 | 55.0 | 55.0 |" in fusion.table(joint + mimo)
    assert "| hybrid, MIMO − late, joint training | 2 | +3.0 |" in fusion.contrasts([*joint, *mimo, hybrid(joint)])
    # The standard error of 1, 2 and 3 is 0.58, and Student's t with two degrees of freedom 4.30.
    assert fusion.told([1.0, 2.0, 3.0]) == "+2.0 (-0.5 to +4.5)"
    assert fusion.told([2.0]) == "+2.0"
    assert fusion.told([]) == "–"


def test_times_are_relative_to_late_joint_training(given: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"late": 1.0, "hybrid": 3.0, "hybrid, heads": 2.0, "early": 5.0}
    monkeypatch.setattr(fusion, "seconds_of_step", lambda job, *_: seconds[job.fusion] * (2 - (job.method == "msl")))
    given.data = ["generated"]
    text = fusion.times(given)
    assert "| late | joint training | 1.0 |" in text
    assert "| hybrid, heads | MIMO | 4.0 |" in text
    assert "| early | MMPareto | 10.0 |" in text
    assert "| late | joint training, ms | 1000.0 |" in text


def test_every_method_takes_its_timed_steps(given: argparse.Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "WARM_UP", 1)
    monkeypatch.setattr(fusion, "TIMED", 1)
    for method in ("msl", "primaldual"):
        assert fusion.seconds_of_step(fusion.Job("generated", 0, "hybrid", method), made_up(), given) > 0

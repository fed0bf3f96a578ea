"""One run: what decides it, and what its row holds."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise
from equipoise.data.bundled import two_sensors
from equipoise.data.source import DataSet
from equipoise.measure import outputs
from equipoise.measure.timing import PROTOCOL
from equipoise.study.job import Job, finite, run_job, save_traceback
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import plan, run_study
from equipoise.training.step import TrainingStep
from small_study import DATA, SHORT, jobs_of, results

# -- rows --


def test_a_row_holds_everything_the_design_names(whole: tuple[list[Job], list[dict[str, Any]], Path]) -> None:
    jobs, (row, alone), folder = whole
    keys = "schema config status run fold threads selected data method params seed split validation test seconds"
    assert {*keys.split(), "versions", "device"} <= set(row)
    assert (row["schema"], row["status"], row["data"], row["method"], row["seed"]) == (1, "done", "small", "msl", 0)
    assert (row["fold"], row["threads"], row["device"]) == (None, 1, "cpu")
    assert row["selected"] == {"epoch": 2, "by": "last"}
    assert row["run"] == jobs[0].entry.settings.as_dict()
    assert row["config"] == jobs[0].config
    assert row["split"].startswith("sha256:")
    assert 0 < row["seconds"]["cpu"] < 60
    assert {"total", "step", "balance", "forward", "backward", "update"} <= set(row["seconds"])
    assert {"fused", "committee", "detached", "faults", "probe"} <= set(row["test"])
    assert set(row["test"]["detached"]) == {"easy", "hard"}
    assert alone["test"]["fused"] is None
    assert alone["test"]["faults"] is None
    assert set(alone["test"]["head"]) == {"easy", "hard"}
    assert Store(folder).rows() == [row, alone]  # what is given is what is stored, after a round through JSON


def test_a_row_of_another_process_is_the_row_of_this_one(
    whole: tuple[list[Job], list[dict[str, Any]], Path], tmp_path: Path
) -> None:
    jobs, rows, _ = whole
    assert results(run_job(jobs[0], DATA.load(None), tmp_path)) == results(rows[0])


def test_a_run_reads_the_test_part_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the measurements; the predictions that the run keeps are of the same reading."""
    (job,), splits = jobs_of("msl")
    parts, read = [], outputs.batches_of
    monkeypatch.setattr(outputs, "batches_of", lambda part, *how: parts.append(part) or read(part, *how))
    run_job(job, splits[None], tmp_path)
    assert sum(part is splits[None].test for part in parts) == 1
    with np.load(tmp_path / "predictions.npz") as kept:
        expected = equipoise.load(tmp_path).saved.model.predict(splits[None].test.ready().inputs, "committee")
        np.testing.assert_allclose(kept["committee"], expected, atol=1e-6)


def test_a_row_follows_the_metric_and_warns_in_words(tmp_path: Path) -> None:
    words = [*SHORT, "metric=macro_f1", "class_weight=balanced", "select=best"]
    (job,), splits = jobs_of("msl", words=words)
    row = run_job(job, splits[None], tmp_path)
    assert (row["task"], row["metric"], row["selected"]["by"]) == ("classes", "macro_f1", "best macro-F1")
    assert row["validation"]["fused"] == pytest.approx(row["validation"]["fused_f1"])
    assert row["test"]["baseline"] == pytest.approx(0.5 / 3)  # a third of the samples, all said to be of one class
    assert row["warnings"][-1] == "training took 4 steps, fewer than 200: raise epochs, or lower batch"
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_what_does_not_fit_the_task_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="metric=mae: expected one that fits a task of classes") as found:
        jobs_of("msl", words=["metric=mae", "class_weight=1,2"])
    assert "class_weight=1,2: expected 3 numbers, one each for class 0, class 1, class 2; found 2" in str(found.value)


def test_what_json_has_no_number_for_is_none() -> None:
    assert finite({"a": float("nan"), "b": {"c": float("inf"), "d": 1.5, "e": "x"}}) == {
        "a": None,
        "b": {"c": None, "d": 1.5, "e": "x"},
    }


# -- what decides a run --


def test_a_changed_configuration_never_meets_old_rows(tmp_path: Path) -> None:
    store = Store(tmp_path)
    jobs, splits = jobs_of("ew")
    (first,) = run_study(jobs, splits, store, workers=1)
    (label,) = jobs
    same_by_another_name = replace(label, entry=replace(label.entry, label="ew at λ/K"))
    changed = [
        *jobs_of("ew", words=[*SHORT, "weight=2"])[0],
        *jobs_of("ew", words=["epochs=1", "features=8"])[0],
        replace(label, seed=1),
        replace(label, threads=2),
        same_by_another_name,
    ]
    rows = run_study(changed, splits, store, workers=2)
    assert len({row["config"] for row in [first, *rows]}) == 6
    assert len({store.run_folder(row["config"]) for row in [first, *rows]}) == 6
    assert [row["label"] for row in rows] == ["ew"] * 4 + ["ew at λ/K"]
    assert rows[-1]["test"] == first["test"]
    assert rows[0]["test"] != first["test"]
    assert run_study([*jobs, *changed], splits, store) == [first, *rows]
    assert len(store.rows()) == 6


@pytest.mark.parametrize("name", ["data", "split", "fold", "seed", "threads", "measure"])
def test_every_fact_changes_the_configuration(name: str) -> None:
    (job,) = jobs_of("mimo")[0]
    other = {
        "data": replace(DATA, name="other"),
        "split": "sha256:0",
        "fold": 3,
        "seed": 9,
        "threads": 4,
        "measure": "all",
    }[name]
    assert replace(job, **{name: other}).config != job.config == replace(job).config


def test_where_a_run_takes_place_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = jobs_of("mimo")[0]
    config = job.config
    monkeypatch.setattr("equipoise.study.job.device_of", lambda _: "cuda")
    assert job.config != config


def test_equal_jobs_are_run_once(tmp_path: Path) -> None:
    jobs, splits = jobs_of("msl")
    events: list[str] = []
    rows = run_study([*jobs, *jobs], splits, Store(tmp_path), on_event=lambda kind, *_: events.append(kind))
    assert rows[0] == rows[1]
    assert events == ["start", "epoch", "epoch", "done"]
    assert len(Store(tmp_path).rows()) == 1


def test_bad_data_is_refused_before_anything_runs() -> None:
    good = two_sensors(samples=60)
    inputs = {**good.train.inputs, "hard": torch.full_like(good.train.inputs["hard"], torch.nan)}
    bad = replace(good, train=replace(good.train, inputs=inputs), classes=(*good.classes, "never seen"))
    data = DataSet("bad", lambda _: bad, 1, "Bad.")
    with pytest.raises(ValueError, match="cannot be trained on") as found:
        plan(entries(["msl"]), data, [0], [None])
    assert "NaN" in str(found.value)
    assert "never seen" in str(found.value)


# -- times, and heads that nothing trains --


def test_the_time_of_a_step_is_that_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 107 samples of the training part make 4 batches of 32, of which each takes at least 100 ms."""
    step = TrainingStep.__call__

    def slow(self: TrainingStep, *batch: Any) -> None:
        time.sleep(0.1)
        step(self, *batch)

    monkeypatch.setattr(TrainingStep, "__call__", slow)
    jobs, splits = jobs_of("msl", "mimo", words=["epochs=3", "features=8", "batch=32"])
    steps = -(-len(splits[None].train) // 32)
    rows = run_study(jobs, splits, Store(tmp_path), workers=2)
    for row in rows:
        curves = (Store(tmp_path).run_folder(row["config"]) / "curves.jsonl").read_text(encoding="utf-8")
        seconds = [json.loads(line)["seconds"] for line in curves.splitlines()]
        assert row["seconds"]["step"] == pytest.approx(sum(seconds[1:]) / 2 / steps)
        assert row["seconds"]["step"] > 0.1
        parts = sum(row["seconds"][name] for name in ("forward", "backward", "balance", "update"))
        assert parts < 0.1, "which are timed apart"
        timing = row["timing"]
        assert timing["step"] == f"wall clock of epochs 2 to 3, median, by {steps} steps"
        assert timing["parts"] == PROTOCOL
        assert timing["workers"] == timing["load"]["workers"] == 2
        assert timing["trusted"] is False, "two runs slow one another"
        assert timing["batches"] == 10
        assert timing["t"]["own"]["wall"] == pytest.approx(row["seconds"]["balance"] + row["seconds"]["backward"])
        for clocks in (timing["t"], timing["update"]):
            assert list(clocks) == ["own", "bare", "msl"]
            assert all(seconds > 0 for clock in clocks.values() for seconds in clock.values())
    (alone,), splits = jobs_of("ew")
    (row,) = run_study([alone], splits, Store(tmp_path), workers=2)
    assert row["timing"]["workers"] == 1, "there was no other to share with"


@pytest.mark.parametrize("name", ["ensemble", "unimodal"])
def test_a_fused_head_that_nothing_trains_is_in_no_curve(name: str, tmp_path: Path) -> None:
    jobs, splits = jobs_of(name)
    (row,) = run_study(jobs, splits, Store(tmp_path))
    curves = (Store(tmp_path).run_folder(row["config"]) / "curves.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in curves.splitlines()]
    assert records
    for record in records:
        assert set(record["validation"]) == {"easy", "hard"}
        assert set(record["train"]) == {"easy", "hard"}
    for part in ("validation", "test"):
        assert (row[part]["fused"] is None) == (name == "unimodal"), "the vote of an ensemble is a result"


def test_a_link_in_place_of_the_traceback_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("here first")
    (tmp_path / "run" / "error.txt").symlink_to(tmp_path / "precious")
    save_traceback(RuntimeError("no luck: \udcff"), tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "here first"
    assert (tmp_path / "run" / "error.txt").read_text().endswith("RuntimeError: no luck: \\udcff\n")

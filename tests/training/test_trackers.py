"""Trackers: what is logged, under which name, and that nothing comes out differently for it."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.tracking import GeneralTracker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from equipoise import MIMO
from equipoise.data.bundled import two_sensors
from equipoise.data.source import all_data
from equipoise.study.job import run_job
from equipoise.study.registry import entries
from equipoise.study.study import plan
from equipoise.training import trackers
from equipoise.training.settings import Settings
from equipoise.training.trackers import Trackers, flat_numbers, flat_results
from equipoise.training.train import Record, train
from equipoise.util.errors import BadInput

DATA = two_sensors(samples=150)
SHORT = Settings(epochs=3, batch=32, features=8)
BOARD = Trackers(("tensorboard",), run="mimo, seed 0")


class Notebook(GeneralTracker):
    """A tracker that remembers what it is told."""

    name = "notebook"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int | None, dict[str, float]]] = []
        self.configuration: dict[str, str] = {}
        self.final: dict[str, tuple[float, int]] = {}

    @property
    def tracker(self) -> Any:
        return self

    def add_scalar(self, name: str, number: float, step: int) -> None:
        self.final[name] = (number, step)

    def close(self) -> None:
        self.final["closed"] = (1.0, 0)

    def store_init_configuration(self, values: dict[str, str]) -> None:
        self.configuration = values

    def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
        self.told.append((step, values))


@pytest.fixture
def notebooks(monkeypatch: pytest.MonkeyPatch) -> list[Notebook]:
    """One notebook a sitting, in place of TensorBoard."""
    made: list[Notebook] = []

    def make(*_: object) -> list[Notebook]:
        made.append(Notebook())
        return made[-1:]

    monkeypatch.setattr(Trackers, "make", make)
    return made


def board(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve that TensorBoard would draw from a folder."""
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_every_epoch_is_written_for_tensorboard(tmp_path: Path) -> None:
    found = train(DATA, MIMO(), SHORT, folder=tmp_path, trackers=BOARD)
    curves = board(tmp_path / "tensorboard" / "mimo-seed-0")
    for part in ("train", "validation"):
        for name in ("fused", "easy", "hard"):
            expected = [(record["epoch"], pytest.approx(record[part][name])) for record in found.curves]
            assert curves[f"{part}/{name}"] == expected
    expected = [(record["epoch"], pytest.approx(record["table"]["hard"]["own heads"])) for record in found.curves]
    assert curves["table/hard/own heads"] == expected
    assert len(curves) == 3 + 3 + 3 + 2 * 2  # a sensor's loss reaches its own encoder and head alone


def test_what_is_logged_changes_no_bit(tmp_path: Path) -> None:
    plain, logged = train(DATA, MIMO(), SHORT), train(DATA, MIMO(), SHORT, folder=tmp_path, trackers=BOARD)
    weights = logged.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in plain.model.state_dict().items())


def test_a_sitting_is_told_of_the_epochs_before_it(tmp_path: Path, notebooks: list[Notebook]) -> None:
    def stop(record: Record) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"folder": tmp_path, "trackers": BOARD, "checkpoint_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        train(DATA, MIMO(), SHORT, on_epoch=stop, **options)
    found = train(DATA, MIMO(), SHORT, **options)
    first, second = notebooks
    assert [step for step, _ in first.told] == [1, 2]
    assert second.told == [(record["epoch"], flat_numbers(record)) for record in found.curves]


def test_a_run_has_its_name_and_its_facts(tmp_path: Path, notebooks: list[Notebook]) -> None:
    (job,), splits = plan(
        entries(["mimo"], ["epochs=1", "features=8"]), all_data()["generated"], [4], [2], measure="quick"
    )
    job = replace(job, entry=replace(job.entry, label="ew at λ/K"))
    row = run_job(job, splits[2], tmp_path / "plain")
    tracked = run_job(job, splits[2], tmp_path / "tracked", trackers=BOARD)
    told = notebooks[-1].configuration
    assert (told["method"], told["seed"], told["fold"], told["data"]) == ("mimo", "4", "2", "generated")
    assert (told["mimo.penalty"], told["epochs"], told["config"]) == ("10.0", "1", row["config"])
    assert [tracked[key] for key in ("config", "test", "run")] == [row[key] for key in ("config", "test", "run")]
    assert job.name == "ew at λ/K, seed 4, fold 2"
    final = notebooks[-1].final
    assert final.pop("closed") == (1.0, 0)
    assert final == {name: (number, 1) for name, number in flat_results(row["test"]).items()}
    assert final["test/fused"] == (row["test"]["fused"], 1)
    assert final["test/head/easy"] == (row["test"]["head"]["easy"], 1)


def test_any_name_becomes_one_folder(tmp_path: Path) -> None:
    (made,) = replace(BOARD, run="ew at λ/K, seed 4, fold 2").make(tmp_path / "run")
    assert Path(made.logging_dir_param, made.run_name) == tmp_path / "run" / "tensorboard" / "ew-at-λ-K-seed-4-fold-2"


def test_numbers_have_names_that_every_tracker_takes() -> None:
    record = {"epoch": 1, "seconds": 2.0, "train": {"left (ear)": 0.5}, "table": {"fused": {"a:b": 1.0, "ü": 2.0}}}
    assert flat_numbers(record) == {"train/left _ear_": 0.5, "table/fused/a_b": 1.0, "table/fused/ü": 2.0}


def test_what_cannot_be_used_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_installed", lambda name: name == "tensorboard")
    with pytest.raises(ValueError, match="Did you mean 'tensorboard'") as found:
        Trackers(("tensorbord", "wandb", "tensorboard", "mlflow"))
    missing = "expected wandb and mlflow to be installed, found nothing of that name; type: pip install wandb mlflow"
    assert str(found.value).splitlines()[1:] == [f"trackers: {missing}"]


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "left_by_a_tracker").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not trackers._installed("left_by_a_tracker")
    assert not trackers._installed("there_is_none")
    assert trackers._installed("tensorboard")


def test_a_tracker_that_refuses_stops_everything_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    BOARD.try_out()
    monkeypatch.setitem(trackers._PREPARE, "tensorboard", "print('much'); raise SystemExit('a line\\nno key; log in')")
    with pytest.raises(BadInput, match="trackers: tensorboard cannot be used: no key; log in") as found:
        BOARD.try_out()
    assert "leave tensorboard out of --track" in str(found.value)


def test_without_a_folder_a_tracker_has_no_place() -> None:
    with pytest.raises(ValueError, match="folder="):
        train(DATA, MIMO(), SHORT, trackers=BOARD)


def test_a_study_and_its_final_numbers_are_on_the_board(equipoise: Any, tmp_path: Path) -> None:
    words = ["--method", "mimo", "--track", "tensorboard", "epochs=1", "features=8"]
    assert equipoise("train", "--data", "generated", "--out", tmp_path, *words).code == 0
    (run,) = (tmp_path / "runs").iterdir()
    curves = board(run / "tensorboard" / "mimo-seed-0")
    (row,) = (json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines())
    assert curves["test/fused"] == [(1, pytest.approx(row["test"]["fused"]))]
    assert curves["test/faults/worst/committee"] == [(1, pytest.approx(row["test"]["faults"]["worst"]["committee"]))]
    assert not any(name.startswith("test/faults/easy") for name in curves)
    (report,) = (tmp_path / "tensorboard").iterdir()
    text = EventAccumulator(str(report)).Reload()
    (tag,) = text.Tags()["tensors"]
    assert b"| mimo |" in text.Tensors(tag)[0].tensor_proto.string_val[0]


class Calls:
    """A module that remembers what was called, as wandb and mlflow would be."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **named: Any) -> Any:
            self.made.append((name, words, named))
            return self

        return call

    def __enter__(self) -> "Calls":
        return self

    def __exit__(self, *_: object) -> None:
        self.made.append(("end", (), {}))


def test_other_trackers_get_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "report.html"
    page.write_text("page")
    modules = {"wandb": Calls(), "mlflow": Calls()}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(trackers, "_installed", lambda _: True)
    Trackers(("wandb", "mlflow"), run="report of study").publish(tmp_path, "| table |", [page])
    assert [name for name, *_ in modules["wandb"].made] == ["init", "save", "finish"]
    assert [name for name, *_ in modules["mlflow"].made] == ["set_experiment", "start_run", "log_artifact", "end"]
    assert modules["mlflow"].made[2][1] == (str(page),)

"""The command: what it prints, what it refuses, and how it ends."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import pytest
import rich.progress
import torch

import equipoise_command
from ended import Ended
from equipoise.data import Splits
from equipoise.data.bundled import two_sensors
from equipoise.data.source import DataSet, all_data
from equipoise.study import compare as comparison
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import plan, run_progress
from equipoise.training import checkpoint, trackers
from process_group import assert_gone
from report.example import write_study

COMMANDS = [
    "compare",
    "train",
    "report",
    "diagnose",
    "methods",
    "datasets",
    "presets",
    "check",
    "prepare",
    "toy",
    "robustness",
    "landscape",
    "ablate",
    "reproduce",
    "tune",
    "export",
    "monitor",
    "bench",
    "version",
]
QUICK = ["--data", "generated", "epochs=2", "features=8"]

COMMAND = "import equipoise_command; equipoise_command.main()"  # what the script of that name does
NO_SUCH_MODALITIES = ["unimodal.modality=esy", "device=cuda:99"]


def refused(ended: Ended, *parts: str) -> None:
    """One message that says all of it, and nothing else."""
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("equipoise: ")
    assert "Traceback" not in ended.err
    for part in parts:
        assert part in ended.err


def stored(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: row[key] for key in ("config", "test", "validation", "params")} for row in map(json.loads, lines)]


# -- what there is --


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str, equipoise: Any) -> None:
    ended = equipoise(command, "--help")
    assert ended.code == 0
    assert f"Example: equipoise {command}" in ended.out
    assert ended.err == ""


def test_help_names_every_command(equipoise: Any) -> None:
    ended = equipoise("--help")
    assert ended.code == 0
    assert all(command in ended.out for command in COMMANDS)


def test_methods_and_data_sets_are_listed(equipoise: Any) -> None:
    found = equipoise("methods")
    assert "mimo" in found.out
    assert "penalty=10.0" in found.out
    assert json.loads(equipoise("methods", "--json").out)["mimo"]["parameters"]["penalty"] == 10.0
    assert "watch" in equipoise("datasets").out
    assert json.loads(equipoise("datasets", "--json").out)["watch"]["folds"] == 10
    assert equipoise("version").out.strip().count(".") == 2


# -- what it does --


def test_compare_prints_json_and_nothing_else_and_the_same_again(equipoise: Any, tmp_path: Path) -> None:
    words = ["compare", *QUICK, "--methods", "msl,unimodal", "--seeds", "2", "--quick", "--json"]
    first = equipoise(*words, "--out", tmp_path / "one")
    assert first.code == 0
    assert first.err == ""
    rows = json.loads(first.out, parse_constant=pytest.fail)
    assert [(row["method"], row["seed"]) for row in rows] == [("msl", 0), ("unimodal", 0), ("msl", 1), ("unimodal", 1)]
    equipoise(*words, "--out", tmp_path / "two")
    assert sorted(map(str, stored(tmp_path / "one"))) == sorted(map(str, stored(tmp_path / "two")))
    assert json.loads(equipoise(*words, "--out", tmp_path / "one").out) == rows
    assert len(stored(tmp_path / "one")) == 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a small comparison; made by a process of its own, as a user would."""
    folder = tmp_path_factory.mktemp("results") / "out"
    words = ["compare", *QUICK, "--methods", "msl,mimo", "--seeds", "2", "--out", str(folder)]
    done = subprocess.run([sys.executable, "-m", "equipoise.cli", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (folder / "said.json").write_text(json.dumps({"out": done.stdout, "err": done.stderr}))
    return folder


def test_without_a_terminal_progress_is_quiet_lines(folder: Path) -> None:
    said = json.loads((folder / "said.json").read_text())
    lines = said["err"].splitlines()
    assert [line.split()[0] for line in lines] == ["budget:", "1/4", "2/4", "3/4", "4/4"]
    assert all("validation accuracy 0." in line for line in lines[1:])
    assert "\x1b" not in said["err"] + said["out"]
    assert "mimo" in said["out"]
    assert (folder / "report.html").is_file()
    assert "--methods msl,mimo" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("form", "sign"),
    [("terminal", "The page:"), ("markdown", "|"), ("latex", "\\begin{"), ("csv", "label,"), ("json", "{")],
)
def test_report_in_every_format(form: str, sign: str, folder: Path, equipoise: Any) -> None:
    ended = equipoise("report", folder, "--format", form)
    assert ended.code == 0
    assert sign in ended.out
    assert "mimo" in ended.out
    if form == "json":
        assert json.loads(ended.out) == json.loads(equipoise("report", folder, "--json").out)


def test_every_data_set_of_a_folder_is_reported(equipoise: Any, tmp_path: Path) -> None:
    write_study(tmp_path, ["msl", "mimo"], seeds=1, data="watch")
    write_study(tmp_path, ["msl", "ew"], seeds=1, data="boats")
    for form in ("terminal", "markdown", "latex", "csv", "json"):
        said = equipoise("report", tmp_path, "--format", form).out
        assert all(word in said for word in ("watch", "boats", "mimo", "ew"))


def test_a_page_written_again_still_says_how_the_results_were_made(folder: Path, equipoise: Any) -> None:
    equipoise("report", folder)
    assert "--methods msl,mimo" in (folder / "report.html").read_text()


def test_train_says_what_a_model_can_do(equipoise: Any, tmp_path: Path) -> None:
    ended = equipoise("train", *QUICK, "--method", "mimo", "--seed", "3", "penalty=2", "--out", tmp_path)
    assert ended.code == 0
    assert "mimo" in ended.out
    (row,) = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert (row["seed"], row["params"]["penalty"], row["run"]["epochs"]) == (3, 2.0, 2)


def test_every_run_is_tracked_in_its_own_folder_and_is_the_same_run(equipoise: Any, tmp_path: Path) -> None:
    words = ["compare", *QUICK, "--methods", "msl,mimo", "--seeds", "1", "--quick", "--out", tmp_path]
    ended = equipoise(*words, "--track", "tensorboard")
    assert ended.code == 0
    events = {path.parent.relative_to(tmp_path / "runs").parts[1:] for path in tmp_path.glob("runs/*/*/*/events.*")}
    assert events == {("tensorboard", "msl-seed-0"), ("tensorboard", "mimo-seed-0")}
    before = stored(tmp_path)
    assert "1/2" not in equipoise(*words).err  # without trackers they are no other runs
    assert stored(tmp_path) == before


def test_a_missing_tracker_is_told_before_anything_runs(
    equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.training.trackers._installed", lambda _: False)
    for command in ("compare", "train"):
        ended = equipoise(command, *QUICK, "--track", "wandb,mlflow", "--out", tmp_path)
        refused(ended, "expected wandb and mlflow to be installed", "type: pip install wandb mlflow")
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_cannot_be_used_is_told_before_anything_runs(
    equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(trackers._PREPARE, "tensorboard", "raise SystemExit('no room for events')")
    refused(equipoise("train", *QUICK, "--track", "tensorboard", "--out", tmp_path), "no room for events")
    assert list(tmp_path.iterdir()) == []


def test_a_tuning_that_goes_on_counts_what_is_left(equipoise: Any, tmp_path: Path) -> None:
    words = ["compare", *QUICK, "--methods", "ew,msl", "--seeds", "1", "--quick", "--tune", "2", "--out", tmp_path]
    first = equipoise(*words)
    assert [line.split()[0] for line in first.err.splitlines()] == [
        "budget:",
        *("1/4", "2/4", "3/4", "4/4"),
        *("1/2", "2/2"),
    ]
    trials = tmp_path / "tuning" / "results.jsonl"
    trials.write_bytes(b"".join(trials.read_bytes().splitlines(keepends=True)[:3]))
    assert [line.split()[0] for line in equipoise(*words).err.splitlines()] == ["budget:", "1/1"]


def test_diagnose_answers_with_its_evidence(equipoise: Any, tmp_path: Path) -> None:
    words = ["diagnose", *QUICK, "--seeds", "2", "--out", tmp_path]
    ended = equipoise(*words)
    assert ended.code == 0
    assert ended.out.startswith("An imbalance worth treating? ")
    assert "protocol: probe" in ended.out
    assert ended.out.count("95 % interval") == 2
    found = json.loads(equipoise(*words, "--json").out, parse_constant=pytest.fail)
    assert found["answer"] in ("yes", "no", "unclear")
    single = [*words[:5], "--seeds", "1", "--out", tmp_path]
    assert "one run, no interval" in equipoise(*single).out
    found = json.loads(equipoise(*single, "--json").out, parse_constant=pytest.fail)
    assert found["gaps"][0]["low"] is None


def test_controls_and_tuning(equipoise: Any, tmp_path: Path) -> None:
    words = ["compare", *QUICK, "--methods", "mimo", "--seeds", "1", "--quick", "--controls", "--json"]
    rows = json.loads(equipoise(*words, "--tune", "2", "--out", tmp_path).out)
    assert [row["label"] for row in rows] == ["mimo", "ew at λ/K", "moddrop"]
    trials = [json.loads(line) for line in (tmp_path / "tuning" / "results.jsonl").read_text().splitlines()]
    assert sorted(row["label"] for row in trials) == sorted(2 * [row["label"] for row in rows])
    assert not any("test" in row for row in trials)


# -- what it refuses --


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["compare", "--data", "wach"], ["unknown data set 'wach'; did you mean 'watch'?"]),
        (["compare", "--data", "generated", "--methods", "mimmo"], ["unknown method 'mimmo'; did you mean 'mimo'?"]),
        (["train", "--method", "mimmo"], ["did you mean 'mimo'?"]),
        (["train", "--method", "mimo", "penalty=high"], ["mimo.penalty should be a number, found 'high'"]),
        (["train", "penalty=3"], ["unknown setting 'penalty'"]),
        (["train", "refit=3"], ["auto.refit should be true or false, found '3'"]),
        (["train", "step=safe"], ["step=safe: expected one method that is trained"]),
        (["train", "epochs=2.5"], ["epochs should be a whole number or auto, found '2.5'"]),
        (["train", "--data", "wach", "--method", "msll", "epochs=x"], ["'wach'", "'msll'", "epochs should be"]),
        (["compare", "--data", "wach", "--methods", "msl,qq", "lr=0", "batch=0"], ["'wach'", "'qq'", "lr", "batch"]),
        (["diagnose", "--data", "wach", "lr=x"], ["'wach'", "lr should be a number"]),
        (["train", "device=cuda:99"], ["device=cuda:99: expected a GPU", "type device=cpu"]),
        (["train", "device=cpu", "precision=fp16"], ["precision=fp16: expected a GPU"]),
        (["train", "fusion=concatt"], ["did you mean concat?"]),
        (["compare", "--seeds", "0"], ["--seeds"]),
        (["compare", "--seeds", "few"], ["--seeds"]),
        (["compare", "--sedes", "3"], ["--sedes"]),
        (["compere"], ["compere"]),
        (
            [*["compare", "--data", "generated", "--methods", "unimodal,ensemble"], *NO_SUCH_MODALITIES],
            ["Unimodal: unknown modality 'esy' is none of 'easy', 'hard'. Did you mean 'easy'?", "expected a GPU"],
        ),
        (["train", "--method", "ensemble", "modality=easy", "--data", "generated"], ["unknown setting 'modality'"]),
        (["train", "--method", "unimodal", "modality=ear", "device=cuda:99"], ["modality 'ear'", "expected a GPU"]),
        (["train", "--track", "tensorbord"], ["'tensorbord' is none of", "Did you mean 'tensorboard'?"]),
        (["compare", "--track", "tensorboard,,wand", "--data", "wach"], ["'wach'", "Did you mean 'wandb'?"]),
        (["report"], ["folder"]),
        (["report", "nowhere"], ["found no folder 'nowhere'", "type: equipoise compare"]),
        (["report", "nowhere", "--format", "pdf"], ["nowhere", "unknown format 'pdf'"]),
    ],
)
def test_bad_words_are_answered_once(
    words: list[str], parts: list[str], equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(equipoise(*words), *parts)
    assert not list(tmp_path.rglob("results.jsonl"))


def test_an_output_folder_that_cannot_be_written(equipoise: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    refused(equipoise("train", *QUICK, "--out", tmp_path / "file" / "x"), "cannot write to", "--out")
    refused(equipoise("train", *QUICK, "--out", tmp_path / "file"), "cannot write to", "--out")
    assert (tmp_path / "file").read_text() == "precious"


def test_a_full_disk(equipoise: Any, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path / "out")
    before = stored(tmp_path / "out")

    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    words = ["compare", *QUICK, "--methods", "msl,mimo", "--seeds", "3", "--out", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr("equipoise.training.checkpoint._flush", full)
        ended = equipoise(*words)
        assert ended.err.startswith("budget: ")
        ended = ended._replace(err=ended.err.partition("\n")[2])
        refused(ended, "No space left on device", "finished runs are safe", "type the same command again")
    assert stored(tmp_path / "out") == before
    assert equipoise(*words).code == 0
    assert len(stored(tmp_path / "out")) == 6


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """Files beyond some kilobytes are refused by the system itself."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
        "from equipoise.cli.main import main; main()"
    )
    words = ["train", *QUICK, "--quick", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    said = done.stderr.partition("\n")[2] if done.stderr.startswith("budget: ") else done.stderr
    refused(Ended(done.returncode, done.stdout, said), "cannot write to", "File too large")
    again = subprocess.run([sys.executable, "-m", "equipoise.cli", *words], capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stderr


def test_a_damaged_results_file(equipoise: Any, tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "out")
    file = tmp_path / "out" / "results.jsonl"
    lines = file.read_bytes().split(b"\n")
    lines[1] = lines[1][:50]
    file.write_bytes(b"\n".join(lines))
    before = file.read_bytes()
    words = ["compare", *QUICK, "--methods", "msl,mimo", "--seeds", "2", "--out", tmp_path / "out"]
    refused(equipoise(*words), "line 2", "sed -i")
    refused(equipoise("report", tmp_path / "out"), "line 2")
    assert file.read_bytes() == before


def test_damaged_checkpoints_are_all_named_and_nothing_is_lost(equipoise: Any, tmp_path: Path) -> None:
    words = ["compare", *QUICK, "--methods", "msl,mimo,ew", "--seeds", "1", "--quick", "--out", tmp_path]
    equipoise(*words)
    before = stored(tmp_path)
    lines = (tmp_path / "results.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "results.jsonl").write_bytes(lines[0])  # two runs are to go on from their checkpoints
    damaged = []
    for line in lines[1:]:
        folder = Store(tmp_path).run_folder(json.loads(line)["config"])
        damaged.append(checkpoint.checkpoints(folder)[-1])
        path = damaged[-1] / checkpoint.STATE
        path.write_bytes(path.read_bytes()[:-100])
    files = sorted(path for path in (tmp_path / "runs").rglob("*"))
    ended = equipoise(*words)
    refused(ended, *(f"{path / checkpoint.STATE}: expected" for path in damaged), "Nothing was changed")
    assert sorted(path for path in (tmp_path / "runs").rglob("*")) == files
    assert (tmp_path / "results.jsonl").read_bytes() == lines[0]
    for command in re.findall("type: (rm .*)", ended.err):
        subprocess.run(command, shell=True, check=True)
    assert equipoise(*words).code == 0
    assert sorted(map(str, stored(tmp_path))) == sorted(map(str, before))


def bad_data() -> dict[str, tuple[Splits, list[str]]]:
    good = two_sensors(samples=60)
    nan = {**good.train.inputs, "easy": torch.full_like(good.train.inputs["easy"], torch.nan)}
    outside = good.validation.label.clone()
    outside[0] = 7
    one = {name: replace(part, label=torch.zeros_like(part.label)) for name, part in good.parts.items()}
    same = {name: replace(part, group=torch.zeros_like(part.label)) for name, part in good.parts.items()}
    return {
        "NaN": (replace(good, train=replace(good.train, inputs=nan)), ["train, easy: expected finite numbers"]),
        "label": (replace(good, validation=replace(good.validation, label=outside)), ["labels from 0 to 2, found [7]"]),
        "one class": (replace(good, **one, classes=good.classes[:1]), ["expected two classes or more"]),
        "one class in training": (replace(good, **one), ["found none of class 1, class 2"]),
        "one person": (replace(good, **same), ["train and test: expected no group in both"]),
        "two mistakes": (
            replace(good, train=replace(good.train, inputs=nan), validation=replace(good.validation, label=outside)),
            ["train, easy: expected finite numbers", "labels from 0 to 2, found [7]"],
        ),
    }


@pytest.mark.parametrize("name", bad_data())
@pytest.mark.parametrize("command", ["compare", "train", "diagnose"])
def test_data_that_cannot_be_trained_on(
    command: str, name: str, equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits, parts = bad_data()[name]
    own = DataSet("own", lambda _: splits, 1, "Made by a user.")
    monkeypatch.setattr("equipoise.data.source.all_data", lambda: {"own": own})
    refused(equipoise(command, "--data", "own", "--out", tmp_path), "cannot be trained on", *parts)
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_whose_package_is_missing(equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> NoReturn:
        raise ModuleNotFoundError("type: pip install seglearn")

    own = DataSet("own", missing, 1, "Not installed.")
    monkeypatch.setattr("equipoise.data.source.all_data", lambda: {"own": own})
    refused(equipoise("train", "--data", "own", "--out", tmp_path), "pip install seglearn")


def test_failed_runs_end_with_another_code(equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlucky(*_: object) -> NoReturn:
        raise ValueError("no luck")

    monkeypatch.setattr("equipoise.methods.unimodal.Unimodal.weigh", unlucky)
    ended = equipoise("compare", *QUICK, "--methods", "msl,unimodal", "--seeds", "1", "--out", tmp_path)
    assert ended.code == 1
    assert "some runs failed; the others are kept" in ended.err
    assert "unimodal, seed 0: ValueError: no luck" in ended.err
    assert len(stored(tmp_path)) == 1


def test_a_fault_of_the_program_is_no_bad_input(
    equipoise: Any, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has to find it needs to see where it happened."""

    def faulty(*_: object, **__: object) -> NoReturn:
        raise ValueError("not enough values to unpack")

    for place, words in (
        ("equipoise.study.compare.run_study", ["train", *QUICK, "--out", tmp_path]),
        ("equipoise.report.tables", ["report", folder, "--format", "csv"]),
        ("equipoise.report.read", ["report", folder, "--format", "csv"]),
        ("equipoise.cli.options.data_set", ["train", *QUICK, "--out", tmp_path]),
        ("equipoise.study.registry._read_word", ["train", *QUICK, "--out", tmp_path]),
        ("equipoise.study.registry.check_step", ["train", *QUICK, "--out", tmp_path]),
        ("equipoise.data.splits.Splits.check", ["train", *QUICK, "--out", tmp_path]),
        ("equipoise.study.study.device_of", ["train", *QUICK, "--out", tmp_path]),
        ("equipoise.study.study.kinds_of", ["train", *QUICK, "--out", tmp_path]),
        ("equipoise.paper.bench.chosen_methods", ["bench", "--out", tmp_path]),
        ("equipoise.study.tuning._read", ["tune", "--data", "generated", "--out", tmp_path, "lr=0.1,0.2"]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, faulty)
            with pytest.raises(ValueError, match="not enough values to unpack"):
                equipoise(*words)


# -- how it ends --


def test_an_interrupted_command_says_how_to_go_on(
    equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "compare", interrupted)
    ended = equipoise("train", *QUICK, "--out", tmp_path / "a b")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.splitlines()[-2:] == [
        "Stopped. What is finished is kept. To go on, type:",
        f"  equipoise train --data generated epochs=2 features=8 --out '{tmp_path}/a b'",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, 0.5, 1.0])
def test_ctrl_c_while_everything_is_being_loaded(seconds: float, heard_signals: None) -> None:  # noqa: ARG001
    program = [sys.executable, "-c", f"print(1, flush=True); {COMMAND}"]
    words = ["train", *QUICK, "--out", "a b"]
    process = subprocess.Popen([*program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # Python has come up
    time.sleep(seconds)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert time.monotonic() - began < 2
    assert process.returncode == 130
    assert [line for line in err.splitlines() if not line.startswith("budget: ")] == [
        "",
        "Stopped. What is finished is kept. To go on, type:",
        "  equipoise train --data generated epochs=2 features=8 --out 'a b'",
    ]


SWALLOWS = """
import sys, time
from equipoise.study import compare as comparison
import equipoise_command

def swallow(*_, **__):
    try:
        print(1, flush=True)
        time.sleep(20)
    except KeyboardInterrupt:
        time.sleep(20)

comparison.compare = swallow
equipoise_command.main()
"""


@pytest.mark.slow
def test_ctrl_c_that_something_swallows_is_heard_again(heard_signals: None) -> None:  # noqa: ARG001
    """As modules do that are loaded late, one time in a hundred."""
    program = [sys.executable, "-c", SWALLOWS, "train", *QUICK]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=15)
    assert time.monotonic() - began < 2
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "  equipoise train --data generated epochs=2 features=8"


@pytest.mark.slow
def test_ctrl_c_ends_at_once_and_says_how_to_go_on(tmp_path: Path, heard_signals: None) -> None:  # noqa: ARG001
    words = ["compare", *QUICK, "--methods", "msl,mimo", "--seeds", "500", "--out", str(tmp_path / "a b"), "--quick"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("budget: 1,000 trainings")
        assert process.stderr.readline().startswith("1/1000 ")
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the command and all its runs
        _, err = process.communicate(timeout=10)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert time.monotonic() - began < 2
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "Stopped. What is finished is kept. To go on, type:" in err
    assert "equipoise compare --data generated epochs=2 features=8 --methods msl,mimo" in err
    assert f"'{tmp_path}/a b'" in err
    assert len(stored(tmp_path / "a b")) >= 1
    assert_gone(process.pid, buried=True)


def test_progress_in_a_terminal_is_live(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    (job,), _ = plan(entries(["msl"], ["epochs=2"]), all_data()["generated"], [0], [None])
    with run_progress(1, "runs") as tell:
        tell("start", job, {})
        tell("epoch", job, {"epoch": 1})
        tell("done", job, {"validation": {"fused": 0.5}})
    assert capsys.readouterr().out == ""


def test_live_progress_of_a_run_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    (job,), _ = plan(entries(["msl"], ["epochs=5"]), all_data()["generated"], [0], [None])
    shown = []
    update = rich.progress.Progress.update

    def watch(bars: rich.progress.Progress, *args: Any, **options: Any) -> None:
        update(bars, *args, **options)
        shown.append([(task.description.strip(), task.completed) for task in bars.tasks[1:]])

    monkeypatch.setattr(rich.progress.Progress, "update", watch)
    with run_progress(1, "runs") as tell:
        tell("start", job, {})
        for epoch in (4, 5):
            tell("epoch", job, {"epoch": epoch})
    assert shown[-2:] == [[("msl, seed 0", 4)], [("msl, seed 0, measuring", 5)]]


def test_quiet_progress_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    (job,), _ = plan(entries(["unimodal"], ["epochs=2"]), all_data()["generated"], [0], [3])
    for quiet in (True, False):
        with run_progress(2, "runs", quiet=quiet) as tell:
            tell("start", job, {})
            tell("failed", job, {"reason": "no luck"})
            tell("done", job, {"validation": {"fused": None}})
        err = capsys.readouterr().err
        lines = [line.rpartition(" (")[0] for line in err.splitlines()]
        assert lines == (
            [] if quiet else ["1/2 unimodal, seed 0, fold 3: no luck", "2/2 unimodal, seed 0, fold 3: done"]
        )


def test_without_its_packages_the_command_says_what_to_type() -> None:
    program = f"import sys; sys.modules['typer'] = None; {COMMAND}"
    for word, extra in (("train", "train"), ("predict", "predict")):
        done = subprocess.run([sys.executable, "-c", program, word], capture_output=True, text=True, timeout=60)
        refused(Ended(done.returncode, done.stdout, done.stderr), "the command needs typer", f"[{extra}]'")


def test_the_command_of_a_shell_is_the_one_that_hears_ctrl_c() -> None:
    (script,) = entry_points(group="console_scripts", name="equipoise")
    assert script.load() is equipoise_command.main

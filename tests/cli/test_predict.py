"""`equipoise predict`: answers to a file, in a file, and their score where the file knows better."""

import csv
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import equipoise as package
from deploy.shipped_runs import train_on, trained
from equipoise.data.source import data_set
from media.made import make_wav

SAMPLES = 60


def sensors(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {"imu": random.normal(size=(SAMPLES, 2, 6)), "heat": random.normal(20, 5, SAMPLES)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    trained(folder, sensors(), np.array(["walk", "run", "rest"])[np.arange(SAMPLES) % 7 % 3])
    return folder


@pytest.fixture(scope="module")
def number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("number")
    trained(folder, sensors(), sensors()["heat"] * 2 + 1.5)
    return folder


def test_answers_in_every_form(equipoise: Any, run: Path, tmp_path: Path) -> None:
    given = sensors(1)
    given["heat"][:10] = np.nan
    np.savez(tmp_path / "new.npz", **given)  # ty: ignore[invalid-argument-type]
    wanted = package.load(run).predict(given)
    for ending in ("csv", "parquet", "npz"):
        out = tmp_path / "deep" / f"answers.{ending}"
        code, printed, complaint = equipoise("predict", run, "--data", tmp_path / "new.npz", "--out", out)
        assert (code, complaint) == (0, "")
        assert "60 samples answered, by the committee decision. Sensors used: imu in 60, heat in 50." in printed
        assert str(out) in printed
        assert "labels" not in printed
        if ending == "csv":
            with out.open(encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            table = {key: [row[key] for row in rows] for key in rows[0]}
        elif ending == "parquet":
            table = pyarrow.parquet.read_table(out).to_pydict()
        else:
            with np.load(out) as file:
                table = {key: file[key].tolist() for key in file}
        assert list(table) == ["row", "answer", "p_rest", "p_run", "p_walk", "sensors", "unusable"]
        assert table["answer"] == wanted.answer
        np.testing.assert_allclose([float(each) for each in table["p_run"]], wanted.probabilities[:, 1], atol=1e-6)
        assert table["sensors"][9:11] == ["imu", "imu+heat"]
    code, printed, _ = equipoise("predict", run, "--data", tmp_path / "new.npz", "--decision", "fused", "--json")
    assert code == 0
    told = json.loads(printed)
    assert told["answers"]["decision"] == "fused"
    assert told["sensors"] == {"imu": 60, "heat": 50}


def test_labels_are_scored_where_there_are_some(equipoise: Any, run: Path, tmp_path: Path) -> None:
    given = sensors(1)
    said = np.array(package.load(run).predict(given).answer)
    half = np.where(np.arange(SAMPLES) < 30, said, np.where(said == "walk", "run", "walk"))
    np.savez(tmp_path / "new.npz", **given, label=half)  # ty: ignore[invalid-argument-type]
    code, printed, _ = equipoise("predict", run, "--data", tmp_path / "new.npz")
    assert code == 0
    assert "By the labels in the data: accuracy 50.0 %." in printed
    assert "… 50 more; --out answers.csv writes all" in printed
    np.savez(tmp_path / "new.npz", **given, label=np.full(SAMPLES, "other"))  # ty: ignore[invalid-argument-type]
    _, printed, _ = equipoise("predict", run, "--data", tmp_path / "new.npz")
    assert "not those the model was trained on" in printed


def test_numbers_have_intervals_and_a_manifest_is_read(equipoise: Any, number: Path, tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    series = sensors(1)["imu"]
    for row in range(3):
        np.save(tmp_path / f"{row}.npy", series[row])
    file.write_text("imu,heat,label\n" + "".join(f"{row}.npy,{20 + row},40.5\n" for row in range(3)))
    code, printed, complaint = equipoise("predict", number, "--data", file, "--json")
    assert (code, complaint) == (0, "")
    told = json.loads(printed)
    answers = told["answers"]
    assert told["metric"] == "mae"
    assert told["value"] == pytest.approx(np.mean(np.abs(np.array(answers["answer"]) - 40.5)), rel=1e-5)
    for row in range(3):
        assert answers["low"]["label"][row] < answers["answer"][row] < answers["high"]["label"][row]


def test_answers_are_given_where_the_package_for_their_score_is_missing(
    equipoise: Any, number: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "new.npz", **sensors(1), label=np.full(SAMPLES, 40.5))  # ty: ignore[invalid-argument-type]
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    out = tmp_path / "answers.csv"
    code, printed, complaint = equipoise("predict", number, "--data", tmp_path / "new.npz", "--out", out)
    assert (code, complaint) == (0, "")
    assert re.search(
        r"^The answers are not scored: .* needs sklearn, .* pip install .*\[train\]'$", printed, re.MULTILINE
    )
    assert len(out.read_text("utf-8").splitlines()) == SAMPLES + 1


def test_a_manifest_with_names_and_a_series_too_short(equipoise: Any, run: Path, tmp_path: Path) -> None:
    file, series = tmp_path / "new.csv", sensors(1)["imu"]
    for row in range(3):
        np.save(tmp_path / f"{row}.npy", series[row])
    file.write_text("id,imu,heat\na,0.npy,20\nb,1.npy,\nc,,\n")
    code, printed, complaint = equipoise("predict", run, "--data", file, "--out", tmp_path / "answers.csv")
    assert (code, complaint) == (0, "")
    with (tmp_path / "answers.csv").open(encoding="utf-8") as text:
        used = {row["id"]: row["sensors"] for row in csv.DictReader(text)}
    assert used == {"a": "imu+heat", "b": "imu", "c": ""}
    assert "1 sample has no sensor at all" in printed
    np.save(tmp_path / "1.npy", series[1][:, :4])
    code, _, complaint = equipoise("predict", run, "--data", file)
    assert code == 2
    assert "and 4 in sample 1" in complaint


def test_names_stand_in_every_form_and_never_begin_a_formula(equipoise: Any, run: Path, tmp_path: Path) -> None:
    names = ["=cmd|' /C calc'!A0", "@SUM(1)", "+1", "-1", "\t=1", "\r=1", " =1", "plain", "7"]
    given: dict[str, Any] = {name: values[: len(names)] for name, values in sensors(1).items()}
    np.savez(tmp_path / "new.npz", **given, id=np.array(names))
    for ending in ("csv", "parquet", "npz"):
        out = tmp_path / f"answers.{ending}"
        code, _, complaint = equipoise("predict", run, "--data", tmp_path / "new.npz", "--out", out)
        assert (code, complaint) == (0, "")
        if ending == "csv":
            with out.open(encoding="utf-8", newline="") as file:
                found = [row["id"] for row in csv.DictReader(file)]
            assert found == ["'=cmd|' /C calc'!A0", "'@SUM(1)", "'+1", "'-1", "'\t=1", "'\n=1", "' =1", "plain", "7"]
        elif ending == "parquet":
            assert pyarrow.parquet.read_table(out)["id"].to_pylist() == names
        else:
            with np.load(out) as file:
                assert file["id"].tolist() == names
    np.savez(tmp_path / "new.npz", **given, id=np.arange(9) // 2)
    code, _, complaint = equipoise("predict", run, "--data", tmp_path / "new.npz")
    assert code == 2
    assert "id: expected another name for every sample, found again 0, 1, 2, 3" in complaint
    np.savez(tmp_path / "new.npz", **given, id=np.arange(3))
    code, _, complaint = equipoise("predict", run, "--data", tmp_path / "new.npz")
    assert code == 2
    assert "id: expected a name for each of 9 samples, found 3" in complaint


def test_a_label_without_an_axis_is_said_beside_the_rest(equipoise: Any, run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", **sensors(1), label=np.array(3))  # ty: ignore[invalid-argument-type]
    code, printed, complaint = equipoise("predict", run, "--data", tmp_path / "new.npz")
    assert (code, printed) == (2, "")
    assert complaint.count("label: expected one answer per sample, [N], found one without an axis") == 1


def test_what_may_be_wrong_with_answers_is_said(equipoise: Any, number: Path, tmp_path: Path) -> None:
    given = sensors(1)
    np.savez(tmp_path / "fine.npz", **given)  # ty: ignore[invalid-argument-type]
    _, printed, _ = equipoise("predict", number, "--data", tmp_path / "fine.npz")
    assert "counts as missing" not in printed
    assert "unusable" not in printed
    given["imu"][:3, 0, 0] = (1e25, -1e30, 3e38)
    np.savez(tmp_path / "new.npz", **given)  # ty: ignore[invalid-argument-type]
    copy = tmp_path / "run"
    shutil.copytree(number, copy)
    content = json.loads((copy / "model.json").read_text())
    content["task"]["ranges"] = [[-1001, -1000]]
    (copy / "model.json").write_text(json.dumps(content))
    out = tmp_path / "answers.csv"
    code, printed, complaint = equipoise("predict", copy, "--data", tmp_path / "new.npz", "--out", out)
    assert (code, complaint) == (0, "")
    assert "imu counts as missing in 3: its numbers are too large to compute with, or not finite." in printed
    assert "Sensors used: imu in 57, heat in 60." in printed
    assert "label: 60 answers are far outside of the labels of the training part" in printed
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["unusable"] for row in rows] == ["imu"] * 3 + [""] * 57
    assert {row["outside"] for row in rows} == {"label"}
    _, printed, _ = equipoise("predict", copy, "--data", tmp_path / "new.npz", "--json")
    told = json.loads(printed)["answers"]
    assert told["unusable"] == [["imu"]] * 3 + [[]] * 57
    assert told["outside"] == [["label"]] * 60


def test_a_data_set_by_name_is_answered_on_its_test_part(equipoise: Any, tmp_path: Path) -> None:
    words = ["train", "--data", "generated", "--method", "msl", "--out", tmp_path, "epochs=1", "features=4", "--json"]
    code, printed, _ = equipoise(*words)
    assert code == 0
    (row,) = json.loads(printed)
    code, printed, _ = equipoise("predict", tmp_path, "--data", "generated", "--json")
    assert code == 0
    assert json.loads(printed)["value"] == pytest.approx(row["test"]["committee"])


def test_sounds_of_another_rate_are_refused(equipoise: Any, tmp_path: Path) -> None:
    for rate in (8_000, 16_000):
        lines = ["sound,label,split"]
        for at in range(12):
            wave = np.random.default_rng(at).normal(size=rate // 2) / 10
            make_wav(tmp_path / f"{rate}-{at}.wav", rate=rate, wave=wave)
            lines.append(f"{rate}-{at}.wav,{'ab'[at % 2]},{('train', 'validation', 'test')[at % 3]}")
        (tmp_path / f"{rate}.csv").write_text("\n".join(lines) + "\n")
    train_on(data_set(str(tmp_path / "8000.csv")).load(None), tmp_path / "run")
    code, printed, complaint = equipoise("predict", tmp_path / "run", "--data", tmp_path / "8000.csv", "--json")
    assert (code, complaint) == (0, "")
    assert (json.loads(printed)["samples"], json.loads(printed)["seen"]) == (12, {"train": 4, "validation": 4})
    code, _, complaint = equipoise("predict", tmp_path / "run", "--data", tmp_path / "16000.csv")
    assert code == 2
    assert "sound: mono at 16000 Hz, 0.50 s, 64 log mel bands: expected what the model was trained on" in complaint
    assert "mono at 8000 Hz, 0.50 s" in complaint


def test_problems_come_together(equipoise: Any, run: Path, tmp_path: Path) -> None:
    code, printed, complaint = equipoise(
        "predict", run, "--data", tmp_path / "no.npz", "--out", "answers.xlsx", "--decision", "vote"
    )
    assert (code, printed) == (2, "")
    assert "--out: expected a file that ends in .csv, .npz, .parquet" in complaint
    assert "unknown decision 'vote'" in complaint
    code, _, complaint = equipoise("predict", run, "--data", tmp_path / "no.npz")
    assert code == 2
    assert "no such file" in complaint
    np.savez(tmp_path / "new.npz", imu=np.zeros((4, 2, 7)), hat=np.zeros(4))
    code, _, complaint = equipoise("predict", run, "--data", tmp_path / "new.npz")
    assert code == 2
    assert "data 'new.npz' cannot be answered:" in complaint
    assert "Did you mean 'heat'?" in complaint
    assert "imu: expected [2, 6] for one sample or [N, 2, 6] for many, found samples of shape [2, 7]" in complaint

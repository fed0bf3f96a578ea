"""Recordings at three rates through the command: check, compare, train and predict."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.own.test_recorded import PEOPLE, RATES, write

SMALL = ("epochs=1", "features=4", "device=cpu")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("drives"), ".csv")


def test_check_counts_windows_and_gaps(equipoise: Any, manifest: Path) -> None:
    code, printed, _ = equipoise("check", "--data", manifest, "--json")
    found = json.loads(printed)
    assert (code, found["errors"]) == (0, [])
    assert sum(found["samples"].values()) == PEOPLE * 11
    assert {name: found["modalities"][name]["shape"] for name in RATES} == {
        name: [2, 2 * rate] for name, rate in RATES.items()
    }
    assert "windows of 2 s every 1 s of 5 recordings: 55" in found["about"]
    assert "radar: missing in 20 of 55" in found["about"]


@pytest.mark.slow
def test_compare_runs_on_windows(equipoise: Any, manifest: Path, tmp_path: Path) -> None:
    words = ("--methods", "msl,mimo", "--seeds", "1", "--workers", "1", "--out", tmp_path / "out", *SMALL)
    code, printed, _ = equipoise("compare", "--data", manifest, *words)
    assert code == 0
    assert "mimo" in printed
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 2


def test_a_trained_model_answers_for_each_window(equipoise: Any, manifest: Path, tmp_path: Path) -> None:
    code, _, complaint = equipoise("train", "--data", manifest, "--out", tmp_path / "run", *SMALL)
    assert code == 0, complaint
    lines = [line.split(",") for line in manifest.read_text().splitlines()]
    new = tmp_path / "new.csv"  # no labels, and no intervals
    kept = [place for place, name in enumerate(lines[0]) if name not in ("label", "start", "end")]
    rows = [[cell if not cell.endswith(".npy") else str(manifest.parent / cell) for cell in row] for row in lines]
    new.write_text("\n".join(",".join(row[place] for place in kept) for row in rows))
    learnt = json.loads(next(tmp_path.glob("run/runs/*/model.json")).read_text())["parts"]
    for data, count in ((manifest, 55), (new, 55)):
        out = tmp_path / "answers.csv"
        code, printed, complaint = equipoise("predict", tmp_path / "run", "--data", data, "--out", out)
        assert code == 0, complaint
        assert f"Sensors used: imu in {count}, radar in {count - 20}, ecg in {count}." in printed
        assert ("By the labels" in printed) == (data == manifest)
        train, validation = (learnt[part]["samples"] for part in ("train", "validation"))
        seen = f"{train} in its training part and {validation} in its validation part"
        assert f"The model has seen {train + validation} of these samples: {seen}." in printed
        with out.open(encoding="utf-8") as file:
            answers = list(csv.DictReader(file))
        file = "imu0.npy" if data == manifest else str(manifest.parent / "imu0.npy")
        assert [(row["recording"], float(row["start"]), float(row["end"])) for row in answers[:3]] == [
            (file, 0, 2), (file, 1, 3), (file, 2, 4)
        ]  # fmt: skip
        assert answers[2]["id"] == f"{file}, 2 to 4 s"
        code, printed, _ = equipoise("predict", tmp_path / "run", "--data", data, "--json")
        told = json.loads(printed)["answers"]
        assert [told[key][2] for key in ("id", "recording", "start", "end")] == [answers[2]["id"], file, 2, 4]
        off = np.array(["radar" not in row["sensors"] for row in answers[:11]])
        assert np.flatnonzero(off).tolist() == [3, 4, 5, 6]
    column = [place for place, name in enumerate(lines[0]) if name == "window"]
    new.write_text(
        "\n".join(
            ",".join("1s" if number and place in column else cell for place, cell in enumerate(row) if place in kept)
            for number, row in enumerate(rows)
        )
    )
    code, _, complaint = equipoise("predict", tmp_path / "run", "--data", new)
    assert code == 2
    for name in RATES:
        assert f"{name}: expected windows of 2 s, as the model was trained on, found 1 s" in complaint

"""`equipoise export` and `equipoise monitor`, from a trained run to the files beside it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as package
from documentation import assert_in_the_gallery
from equipoise.deploy.monitor_evaluation import STREAM_LEGEND
from equipoise.measure.faults import LEGEND


def test_from_a_run_to_an_exported_model_and_its_monitor(equipoise: Any, tmp_path: Path) -> None:
    words = ["train", "--data", "generated", "--method", "mimo", "--out", tmp_path, "epochs=2", "features=8", "--json"]
    code, printed, _ = equipoise(*words)
    assert code == 0
    (row,) = json.loads(printed)

    code, printed, complaint = equipoise(
        "export", tmp_path, "--to", "torch-export", "--out", tmp_path / "ship", "--json"
    )
    assert (code, complaint) == (0, "")
    told = json.loads(printed)
    assert sorted(each.name for each in (tmp_path / "ship").iterdir()) == ["card.json", "card.md", "model.pt2"]
    assert json.loads((tmp_path / "ship" / "card.json").read_text()) == {
        key: told[key] for key in told if key != "files"
    }
    assert told["verified"]["difference"] <= 1e-5
    assert told["faults"] == row["test"]["faults"]
    page = (tmp_path / "ship" / "card.md").read_text()
    assert f"| easy alone | {100 * row['test']['head']['easy']:.1f} |" in page
    assert row["split"] in page
    assert "| `hard_valid` | batch | bool |" in page
    absent = row["test"]["faults"]["easy"]["missing"]["absent"]
    assert f"| easy | missing | absent | {100 * absent['fused']:.1f} | {100 * absent['committee']:.1f} |" in page

    code, printed, complaint = equipoise("monitor", tmp_path, "--out", tmp_path / "ship", "--json")
    assert (code, complaint) == (0, "")
    told = json.loads(printed)
    assert told["calibration"]["streams"] == 3
    assert (tmp_path / "ship" / "monitor.json").is_file()
    assert "- missing zeros: its input is zero as the encoder reads it: after standardising" in page
    levels = {f"{fault} {level}" for fault, levels in row["test"]["faults"]["easy"].items() for level in levels}
    assert levels == named(LEGEND)
    faults = {each["fault"] for each in told["trial"]["faults"]}
    assert faults == named(STREAM_LEGEND)
    code, printed, _ = equipoise("monitor", tmp_path)
    assert code == 0
    assert "  gain 0.25, 4: the standardised signal, multiplied\n" in printed
    assert f"Total failures found within 10 windows: {100 * told['trial']['total_failures_found']:.1f} %" in printed

    code, printed, complaint = equipoise("monitor", tmp_path, "--data", "watch")
    assert (code, printed) == (2, "")
    assert "Give the same data" in complaint


def named(legend: dict[str, str]) -> set[str]:
    """The faults that a legend explains, each with one level."""
    found = set()
    for words in legend:
        fault, _, levels = words.partition(" ")
        several = re.fullmatch(r"[\d.]+%?(, [\d.]+%?)+", levels)
        found |= {f"{fault} {level}" for level in levels.split(", ")} if several else {words}
    return found


def test_a_monitor_finds_the_file_of_its_run_in_the_working_folder(
    equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    label = np.arange(480) // 8 % 2
    group = np.arange(480) // 40
    arrays = {name: label[:, None] + random.normal(size=(480, 3)) for name in ("wrist", "ankle")}
    np.savez(tmp_path / "drive.npz", label=label, group=group, **arrays)
    monkeypatch.chdir(tmp_path)
    code, _, complaint = equipoise(
        *("train", "--data", "drive.npz", "--method", "msl", "--out", "one", "epochs=2", "features=4")
    )
    assert code == 0, complaint
    code, printed, complaint = equipoise("export", "one", "--to", "torch-export")
    assert code == 0, complaint
    assert "64 samples of the validation part: largest difference" in printed
    with pytest.raises(ValueError, match=r"Make it: equipoise monitor .*one.* --data drive.npz"):
        package.load("one").stream(monitor=True)
    code, printed, complaint = equipoise("monitor", "one")
    assert code == 0, complaint
    assert "The monitor: one/runs/" in printed
    np.savez(tmp_path / "drive.npz", label=label, group=group, **{name: each[::-1] for name, each in arrays.items()})
    code, _, complaint = equipoise("monitor", "one")
    assert code == 2
    assert "in drive.npz. Give the same data" in complaint
    (tmp_path / "drive.npz").unlink()
    code, _, complaint = equipoise("monitor", "one")
    assert code == 2
    assert "trained on 'drive.npz', and there is no such file here; type --data PATH" in complaint
    code, printed, complaint = equipoise("export", "one", "--to", "torch-export")
    assert code == 0, complaint
    assert "No samples of its data were compared: drive.npz is not here; type --data PATH" in printed
    monkeypatch.setattr("equipoise.deploy.exporting.TOLERANCE", -1.0)  # no graph is that close
    code, printed, complaint = equipoise("export", "one", "--to", "torch-export", "--out", "ship")
    assert code == 1
    assert "The card: ship/card.md" in printed
    assert re.search(
        r"the exported graph differs from PyTorch by 0, more than -1, in .* ship/model.pt2 was kept", complaint
    )
    assert Path("ship/model.pt2").is_file()


def test_what_is_no_run_is_refused(equipoise: Any, tmp_path: Path) -> None:
    for command in ("export", "monitor"):
        code, printed, complaint = equipoise(command, tmp_path)
        assert (code, printed) == (2, "")
        assert complaint.startswith("equipoise: ")
        assert "Make one: equipoise train" in complaint


@pytest.mark.slow
def test_the_example_shows_a_hanging_sensor_named_and_its_flag_helping() -> None:
    example = Path(__file__).parents[2] / "examples" / "shipped.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_in_the_gallery("shipped", done.stdout, within=5.0)
    assert re.findall(r"windows: (.*)", done.stdout) == ["all is well", "easy", "all is well"]
    both, hangs, flagged = (float(number) for number in re.findall(r"([\d.]+) %", done.stdout))
    assert both >= flagged > hangs + 20

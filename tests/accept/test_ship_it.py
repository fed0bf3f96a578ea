"""In a clone without an environment: `make demo`, then the commands of "Ship it" as the README has them."""

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.deploy import Predictor, load
from equipoise.deploy.run_data import data_of_run, graph_inputs

pytestmark = pytest.mark.accept
ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-3  # of probabilities
SHOWN = 4000  # characters of an output that failed


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of what is committed, in which `make demo` has been typed."""
    folder = tmp_path_factory.mktemp("clone") / "equipoise"
    subprocess.run(["git", "clone", "--quiet", f"file://{ROOT}", str(folder)], check=True)
    assert not (folder / ".venv").exists()
    typed(folder, "make demo")
    return folder


@pytest.fixture(scope="module")
def shipped(clone: Path) -> Path:
    """The same clone, after the commands of "Ship it"."""
    for command in commands_of("Ship it"):
        typed(clone, command)
    return clone


def typed(folder: Path, command: str) -> None:
    """Type a line into a shell whose environment is that of the folder."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("VIRTUAL_ENV", "PYTHON"))}
    constraints = str(folder / "constraints.txt")
    path = f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**clean, "PATH": path, "PIP_CONSTRAINT": constraints, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout[-SHOWN:]}\n{done.stderr[-SHOWN:]}"


def commands_of(section: str) -> list[str]:
    """The commands that a section of the README shows, without the remarks beside them."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## )", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
    found = re.findall(r"^    ((?:equipoise|pip|make) .*?)(?:\s{2,}#.*)?$", text, re.MULTILINE)
    assert found, f"the README shows no command under {section!r}"
    return found


def test_the_demonstration_leaves_its_table_and_page(clone: Path) -> None:
    page = (clone / "runs" / "watch" / "report.html").read_text("utf-8")
    assert "<script" in page
    assert len((clone / "runs" / "watch" / "results.jsonl").read_text("utf-8").splitlines()) >= 9


def test_ship_it_shows_the_whole_way(shipped: Path) -> None:
    verbs = [shlex.split(command)[:2] for command in commands_of("Ship it")]
    assert [verb for name, verb in verbs if name == "equipoise"] == ["train", "export", "monitor"]
    left = {path.name for path in (shipped / "runs" / "train").rglob("export/*")}
    assert {"model.onnx", "card.md", "card.json", "monitor.json"} <= left


def test_the_exported_file_answers_the_test_part_as_predict_does(shipped: Path) -> None:
    import onnxruntime

    predictor = load(shipped / "runs" / "train")
    inputs = graph_inputs(predictor.saved, data_of_run(predictor.saved).test)
    raw = {name: inputs[name].numpy() for name in predictor.sensors}
    session = onnxruntime.InferenceSession(str(predictor.saved.folder / "export" / "model.onnx"))
    worst = 0.0
    for subset in subsets_of(predictor.sensors):
        given = dict(raw)
        for name in predictor.sensors:
            given[f"{name}_valid"] = np.full(len(raw[name]), name in subset)
        exported = np.asarray(session.run(["committee"], given)[0])
        expected = probabilities(predictor, {name: raw[name] for name in subset})
        worst = max(worst, float(np.abs(exported - expected).max()))
        best = np.sort(expected, axis=1)
        clear = best[:, -1] - best[:, -2] > TOLERANCE
        assert (exported.argmax(1) == expected.argmax(1))[clear].all(), subset
    print(f"largest difference on {len(next(iter(raw.values())))} samples: {worst:.1e}")
    assert worst <= TOLERANCE


def subsets_of(sensors: Sequence[str]) -> list[tuple[str, ...]]:
    return [subset for size in range(1, len(sensors) + 1) for subset in combinations(sensors, size)]


def probabilities(predictor: Predictor, samples: dict[str, np.ndarray]) -> np.ndarray:
    found = predictor.predict({name: torch.from_numpy(array) for name, array in samples.items()}).probabilities
    assert found is not None
    return np.asarray(found)

"""The commands beside figures and numbers, each run in a short form, leave results with the settings of the page.

`tests/test_documents.py` compares what they would run with, before anything is computed; here it is read off what was.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from documentation import ROOT, Command, commands_of, pages
from settled import written

pytestmark = pytest.mark.accept

ABSENT = ("data/avmnist",)
"""Data that is neither here nor made up in a minute."""
SHORTER = {
    "ablate": {"--seeds": "1", "epochs": "1"},
    "compare": {
        "--seeds": "1", "epochs": "1", "--folds": None, "--methods": "mimo", "--controls": None, "--tune": None,
        "--quick": "",
    },
    "control": {
        "--methods": "mimo", "--hybrid": None, "--seeds": "1", "--demonstrations": "6", "--rollouts": "1",
        "--conditions": "clean", "epochs": "1",
    },
    "landscape": {"steps": "5", "--points": "3", "--samples": "20"},
    "robustness": {"--seeds": "1", "--methods": "mimo", "--rates": "0.1,1", "--sizes": None, "epochs": "1"},
    "toy": {"--seeds": "1", "--quick": ""},
    "tune": {"--trials": "1", "epochs": "1"},
}  # fmt: skip
"""What each is cut down to; None leaves an option out. Nothing of it is how a model is trained but its length."""


def short_forms() -> list[Command]:
    """Each documented command with settings once, as far as its data is here."""
    found: dict[tuple[str, ...], Command] = {}
    for page in pages():
        for command in commands_of(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))):
            if command.settings and not {*ABSENT} & {*command.words}:
                found.setdefault(tuple(command.words), command)
    return list(found.values())


def shortened(words: list[str]) -> list[str]:
    """A command that takes seconds; lists of values are cut to two of them."""
    changes, kept = {**SHORTER[words[0]], "--out": "out", "--workers": None}, [words[0]]
    rest = iter(words[1:])
    for word in rest:
        name, sign, text = word.partition("=")
        if word.startswith("--"):
            value = None if word in ("--folds", "--controls", "--scaled-rate", "--quick") else next(rest)
            if word not in changes:
                kept += [word] if value is None else [word, value]
        elif name not in changes:
            kept.append(name + sign + ",".join(text.split(",")[:2]))
    for name, value in changes.items():
        if value is not None:
            kept += [part for part in (name, value) if part] if name.startswith("--") else [f"{name}={value}"]
    return kept


def left_behind(name: str, out: Path) -> dict[str, Any]:
    """The settings, the parameters and the data of what was run, as its files have them."""
    if name == "toy":
        return json.loads((out / "toy.json").read_text("utf-8"))["recipe"]
    if name == "landscape":
        with np.load(out / "landscape.npz") as file:
            about = json.loads(str(file["about"]))
        methods = about["asked"]["methods"]
        params = {f"mimo.{name}": value for name, value in methods["mimo"].items()}
        return {**methods["msl"], **params, **about["asked"]["recipe"], "data": about["facts"]["data"]}
    place = out / "trials" if name == "tune" else out
    rows = [json.loads(line) for line in (place / "results.jsonl").read_text("utf-8").splitlines()]
    row = next(
        (row for row in rows if row.get("label", row.get("line")) == "mimo"), rows[0]
    )  # the base, where some vary
    params = {f"mimo.{name}": value for name, value in row["params"].items()}
    start = (
        {f"start.{name}": value for name, value in {**row["run"], **row["params"]}.items()} if name == "tune" else {}
    )
    return {**row["run"], **params, **start, "data": row.get("data")}


@pytest.mark.parametrize(
    "command", short_forms(), ids=lambda command: f"{command.page}:{command.line} {command.words[0]}"
)
def test_a_short_form_leaves_the_settings_of_the_page(command: Command, tmp_path: Path) -> None:
    assert command.settings is not None
    random = np.random.default_rng(0)
    for name in ("troika_hr.npz", "beijing_pm25.npz"):
        pulse, label = random.normal(size=(60, 2, 40)).astype(np.float32), random.normal(size=60)
        np.savez(tmp_path / name, pulse=pulse, acceleration=pulse[:, :1], label=label, group=np.arange(60) // 6)
    name, *words = shortened(command.words)
    done = subprocess.run(
        [sys.executable, "-m", "equipoise.cli", name, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = {name: written(value) for name, value in left_behind(name, tmp_path / "out").items()}
    told = {key: written(value) for key, value in command.settings.items()}
    cut = {option.lstrip("-") for option in SHORTER[name]} | (
        {"lr", "penalty", "smoothing"} if name == "tune" else set()
    )
    compared = {key: value for key, value in told.items() if key in found and key not in cut}
    if "," in told.get("data", ""):
        compared.pop("data")
    assert {key: found[key] for key in compared} == compared, command.shown
    assert {"lr", "penalty"} <= set(compared) or {"optimizer", "schedule"} <= set(compared), "too little was compared"

"""The examples with other libraries run, and do what they say."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from documentation import assert_in_the_gallery
from equipoise.cli import main as cli

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("accelerate_state"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings(r"ignore:The '\w+_dataloader' does not have many workers:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:.*pin_memory.*:UserWarning"),
]


def printed(name: str) -> str:
    """What an example prints, as the gallery has it. In this process: libraries take longer to load than to run."""
    threads, said = torch.get_num_threads(), io.StringIO()
    try:
        with torch.random.fork_rng(), contextlib.redirect_stdout(said):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    assert_in_the_gallery(Path(name).stem, said.getvalue(), within=5.0)
    return said.getvalue()


def percentages(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) %", text)]


def test_lightning() -> None:
    said = printed("with_lightning.py")
    factors = dict(re.findall(r"^balance/fused/([\w ]+)  ([\d.]+)$", said, re.MULTILINE))
    assert set(factors) == {"easy", "hard", "fused head"}
    assert factors["easy"] != factors["hard"], "each sensor has a rate of its own"
    fused, easy, hard = percentages(said)
    assert min(fused, easy) > 90 > hard > 40


def test_accelerate() -> None:
    said = printed("with_accelerate.py")
    assert re.search(r"^fused +1\.5 +1\.5 +1 +–$", said, re.MULTILINE)
    assert percentages(said)[0] > 90


def test_huggingface() -> None:
    said = printed("with_huggingface.py")
    assert "'balance/image/image': " in said
    fused, text, image = percentages(said)
    assert fused > 75
    assert min(text, image) > 50, "each sensor alone is above chance, a third"


def test_torchjd() -> None:
    said = printed("with_torchjd.py")
    pcgrad, mgda = percentages(said)
    assert pcgrad > 90
    assert mgda > 50


def test_a_study_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "compare",
        "--config",
        EXAMPLES / "study.yaml",
        "--seeds",
        1,
        "--workers",
        1,
        "epochs=1",
        "--out",
        tmp_path,
    ]
    monkeypatch.setattr(sys, "argv", ["equipoise", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    rows = [json.loads(row) for row in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert sorted(row["method"] for row in rows) == ["ew", "mimo", "msl"]
    assert all((row["run"]["epochs"], row["run"]["features"]) == (1, 16) for row in rows), "typed, and from the file"


def test_hydra(tmp_path: Path) -> None:
    words = [str(EXAMPLES / "with_hydra.py"), "run.epochs=1", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\w+), seed 0: [\d.]+ %$", done.stdout, re.MULTILINE) == ["msl", "mimo"]
    assert "- run.epochs=1" in (tmp_path / ".hydra" / "overrides.yaml").read_text()
    assert (tmp_path / "results.jsonl").is_file()

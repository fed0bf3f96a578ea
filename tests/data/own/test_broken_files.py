"""Whatever bytes a file holds, its readers end, refuse it with its name, and run nothing of it."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from data.own.broken_files import KINDS, read_broken


@pytest.mark.parametrize("kind", KINDS)
def test_broken_files_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = read_broken(kind, tmp_path, 250, seed=0)
    assert found["refused"] > 200
    assert found["without its name"] == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"broken{kind}"]


@pytest.mark.slow
def test_thousands_of_broken_files_of_each_kind(tmp_path: Path) -> None:
    program = Path(__file__).parent / "broken_files.py"
    words = [sys.executable, str(program), str(tmp_path), os.environ.get("EQUIPOISE_CASES", "1500"), "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("'without its name': 0") == len(KINDS)

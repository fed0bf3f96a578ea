"""What the pages tell a newcomer to do, with the package that is installed: `python quick_start.py PART…` anywhere.

The parts `library` and `example` need torch and numpy alone, `command` and `shipping` what the extra `train` brings. A
release is walked through with all of them in an environment that was empty; a test does one of each pair with a wheel.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = "import equipoise_command; equipoise_command.main()"


def library() -> None:
    """The blocks of the first two pages; and the command, where it cannot work, says what to type."""
    import equipoise

    assert ROOT not in Path(equipoise.__file__).parents, f"expected an installed package, found {equipoise.__file__}"
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        _run("\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))), page)
    if importlib.util.find_spec("typer") is None:
        told = subprocess.run([sys.executable, "-c", PROGRAM, "--help"], capture_output=True, text=True, check=False)
        assert (told.returncode, "[train]'" in told.stderr) == (2, True), told.stderr


def example() -> None:
    """The example of which the README shows the three lines gives about what the README says."""
    file = ROOT / "examples" / "balanced.py"
    shares = [float(found) for found in re.findall(r"([\d.]+) %", _run(file.read_text(encoding="utf-8"), file))]
    assert len(shares) == 3
    assert min(shares) > 75, shares


def command() -> None:
    """A comparison leaves its rows and its page."""
    equipoise("compare", "--data", "generated", "--methods", "msl,mimo", "--seeds", "1", "--quick", "epochs=2")
    rows = [json.loads(row) for row in Path("runs/compare/results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted(row["method"] for row in rows) == ["mimo", "msl"]
    assert all(0.2 < row["test"]["fused"] <= 1 for row in rows), rows
    page = Path("runs/compare/report.html").read_text(encoding="utf-8")
    assert "<style>" in page
    assert "<script" in page


def shipping() -> None:
    """Train on the data that comes along, and ship: each leaves behind what its page says."""
    equipoise(
        "compare", "--data", "watch", "--methods", "msl,ew,mimo", "--seeds", "1", "--out", "runs/watch", "epochs=3"
    )
    equipoise("train", "--data", "watch", "--method", "mimo", "epochs=3")
    equipoise("export", "runs/train", "--to", "torch-export")
    equipoise("monitor", "runs/train")
    left = {path.name for path in Path("runs/train").rglob("export/*")}
    assert {"card.md", "model.pt2", "monitor.json"} <= left, left


def equipoise(*words: str) -> None:
    """The command, as if it were typed."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"equipoise {' '.join(words)}\n{done.stdout}{done.stderr}"


def _run(code: str, file: Path) -> str:
    """Run what stands in a file, and give what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(file), "exec"), {"__name__": "__main__"})
    return printed.getvalue()


if __name__ == "__main__":
    for part in sys.argv[1:]:
        {"library": library, "example": example, "command": command, "shipping": shipping}[part]()

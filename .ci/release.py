"""What a release has to pass before it is published: `python .ci/release.py [TAG]`. The archives are left in dist/.

It takes `build`, `hatchling`, and pip for an environment of its own, in which nothing else is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
HEADING = re.compile(r"^## \[([^\]]+)\](?: - (.*))?$", re.MULTILINE)
IN_WHEEL = {"equipoise/__init__.py", "equipoise/py.typed", "equipoise/report/page.html", "equipoise_command.py"}
IN_SDIST = {"pyproject.toml", "README.md", "LICENSE", "src/equipoise/__init__.py", "tests/conftest.py", "docs/index.md"}


def main(tag: str | None = None) -> None:
    """Check, build, check what was built, and walk the quick start with it."""
    problems = disagreements(ROOT, tag)
    _end_with(problems)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    wheel, sdist = build(ROOT / "dist")
    _end_with(problems_of_wheel(wheel) + problems_of_sdist(sdist))
    with TemporaryDirectory() as folder:
        walk(wheel, Path(folder))
    print(f"Good to be published: {wheel.name}, {sdist.name}")


def disagreements(root: Path, tag: str | None = None) -> list[str]:
    """What is wrong with the version, the changelog and the tag, one sentence each."""
    version = version_of(root)
    headings = HEADING.findall((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    problems = []
    if not headings or headings[0] != ("Unreleased", ""):
        problems.append("CHANGELOG.md: expected `## [Unreleased]` as its first heading, so that changes have a place")
    newest, date = next((each for each in headings if each[0] != "Unreleased"), ("none", ""))
    if newest != version:
        problems.append(
            f"CHANGELOG.md: expected version {version} of src/equipoise/util/__init__.py, found {newest}; "
            f"type `## [{version}] - YYYY-MM-DD` under Unreleased"
        )
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        problems.append(f"CHANGELOG.md: expected the date of {newest} as YYYY-MM-DD, found {date or 'none'}")
    if tag is not None and tag != f"v{version}":
        problems.append(f"expected the tag v{version}, found {tag}; tag another commit, or change the version first")
    return problems


def version_of(root: Path) -> str:
    """The version, read off the text: nothing has to be installed for it."""
    found = re.search(r'^VERSION = "([^"]+)"$', (root / "src/equipoise/util/__init__.py").read_text(), re.MULTILINE)
    return found[1] if found else "none"


def build(out: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, of which the first is made from the second; any warning ends it."""
    strict = {"PYTHONWARNINGS": "error"}
    # Here and not in an environment of its own: with the hatchling that constraints.txt names.
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT), env=os.environ | strict)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def problems_of_wheel(wheel: Path) -> list[str]:
    """What a wheel lacks, or has and should not have."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = next(name for name in names if name.endswith(".dist-info/METADATA")).removesuffix("METADATA")
        metadata = archive.read(about + "METADATA").decode()
        commands = archive.read(about + "entry_points.txt").decode()
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    wanted = IN_WHEEL | modules | {about + "licenses/LICENSE"}
    strange = [each for each in names if not each.startswith(("equipoise/", about)) and each != "equipoise_command.py"]
    problems = [f"{wheel.name}: lacks {name}" for name in sorted(wanted - names)]
    problems += [f"{wheel.name}: should not have {name}" for name in sorted(strange)]
    problems += [f"{wheel.name}: its metadata lacks {line!r}" for line in _METADATA if f"\n{line}" not in metadata]
    if "equipoise = equipoise_command:main" not in commands:
        problems.append(f"{wheel.name}: lacks the command equipoise")
    if (ROOT / "README.md").read_text(encoding="utf-8").strip() not in metadata:
        problems.append(f"{wheel.name}: its description is not README.md")
    return problems


def problems_of_sdist(sdist: Path) -> list[str]:
    """What an sdist lacks to be built and tested from, or has and should not have."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    left = [name for name in names if re.search(r"(^|/)(__pycache__|\.venv|dist|site|runs)(/|$)", name)]
    return [f"{sdist.name}: lacks {name}" for name in sorted(IN_SDIST - names)] + [
        f"{sdist.name}: should not have {name}" for name in sorted(left)
    ]


def walk(wheel: Path, folder: Path) -> None:
    """Install a wheel where nothing is, without and with what the command needs, and do what the pages say."""
    venv.create(folder / "bare", with_pip=True)
    python = str(folder / "bare" / "bin" / "python")
    alone = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    for extra, parts in (("", ["library", "example"]), ("[train]", ["command", "shipping"])):
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_constraints(), f"{wheel}{extra}"]
        _run(python, *install, env=alone)
        (empty := folder / parts[0]).mkdir()
        _run(python, "-W", "error", str(ROOT / "tests" / "quick_start.py"), *parts, cwd=empty, env=alone)


def _constraints() -> list[str]:
    # The versions that everything was tested with are those of one version of Python.
    return ["-c", str(ROOT / "constraints.txt")] if sys.version_info[:2] == (3, 11) else []


def _run(*words: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    print("+", *words, flush=True)
    subprocess.run(words, cwd=cwd, env=env, check=True)


def _end_with(problems: list[str]) -> None:
    if problems:
        sys.exit("\n".join(problems))


_METADATA = (
    "Name: equipoise",
    "License-Expression: Apache-2.0",
    "Requires-Python: >=3.10",
    "Requires-Dist: torch>=",
    "Provides-Extra: train",
    "Classifier: Typing :: Typed",
    "Description-Content-Type: text/markdown",
)

if __name__ == "__main__":
    main(*sys.argv[1:])

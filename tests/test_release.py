"""A release: what is built, what it says of itself, and that the quick start works where src/ cannot be seen."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import equipoise

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load_release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RELEASE = load_release()

# -- version, changelog, tag --


def test_version_changelog_and_tag_agree() -> None:
    assert RELEASE.version_of(ROOT) == equipoise.__version__
    assert RELEASE.disagreements(ROOT) == []
    assert RELEASE.disagreements(ROOT, f"v{equipoise.__version__}") == []


@pytest.mark.parametrize(
    ("old", "new", "tag", "said"),
    [
        ("", "", equipoise.__version__, "expected the tag v0.1.0, found 0.1.0"),
        ("", "", "v0.2.0", "expected the tag v0.1.0, found v0.2.0"),
        ("## [Unreleased]\n", "", None, "expected `## [Unreleased]` as its first heading"),
        ("[0.1.0] - 2026-11-15", "[0.0.9] - 2026-11-15", None, "expected version 0.1.0 of src/equipoise/util/_"),
        ("[0.1.0] - 2026-11-15", "[0.1.0] - unreleased", None, "expected the date of 0.1.0 as YYYY-MM-DD"),
        ("[0.1.0] - 2026-11-15", "[0.1.0]", None, "expected the date of 0.1.0 as YYYY-MM-DD, found none"),
    ],
)
def test_what_disagrees_is_named(tmp_path: Path, old: str, new: str, tag: str | None, said: str) -> None:
    package = tmp_path / "src" / "equipoise" / "util"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('VERSION = "0.1.0"\n')
    changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-15\n\n### Added\n\n## [0.0.1] - 2026-01-01\n"
    assert old in changelog
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    assert RELEASE.disagreements(tmp_path, "v0.1.0") == []
    (tmp_path / "CHANGELOG.md").write_text(changelog.replace(old, new))
    (problem,) = RELEASE.disagreements(tmp_path, tag)
    assert said in problem


# -- workflows --


def steps_of(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_calls_is_there(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert set(content) == {"name", True, "permissions", "env", "jobs"}  # YAML takes the word "on" for true
    assert content["permissions"] == {"contents": "read"}, "whoever may do more says so himself"
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = " ".join(step["run"] for step in steps_of(workflow) if "run" in step)
    for script in re.findall(r"\.ci/\S+", called):
        assert (ROOT / script).is_file()
        assert script.endswith(".py") or os.access(ROOT / script, os.X_OK), "it can be run"
    assert set(re.findall(r"make (\w+)", called)) <= targets
    for step in steps_of(workflow):
        assert ("run" in step) != ("uses" in step)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(workflow: Path) -> None:
    """A tag can be moved to other code, a commit cannot; the version beside it is for people."""
    text = workflow.read_text(encoding="utf-8")
    used = [step["uses"] for step in steps_of(workflow) if "uses" in step]
    assert used
    assert [each for each in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", each)] == []
    lines = re.findall(r"uses: (\S+)(.*)", text)
    assert [action for action, _ in lines] == used
    assert [action for action, rest in lines if not re.fullmatch(r" # v\d+\.\d+\.\d+", rest)] == []


def test_tests_and_publishing_do_what_they_are_for() -> None:
    called = {each.stem: [step["run"] for step in steps_of(each) if "run" in step] for each in WORKFLOWS}
    assert set(called) == {"publish", "test"}
    assert ".ci/run" in called["test"]
    check = called["publish"].index('python .ci/release.py "$GITHUB_REF_NAME"')
    assert check < len(called["publish"]) - 1, "publishing comes after it"
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "--trusted-publishing always" in jobs["publish"]["steps"][-1]["run"]


def test_every_python_that_is_promised_is_tested() -> None:
    promised = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))["jobs"]
    tested = set(jobs["pythons"]["strategy"]["matrix"]["python"])
    tested.add(jobs["everything"]["steps"][1]["with"]["python-version"])
    assert promised == tested


# -- what is built --


def test_what_an_sdist_lacks_or_should_not_have_is_named(tmp_path: Path) -> None:
    wanted = {*RELEASE.IN_SDIST, "examples/runs.py"}
    for names, said in (
        (wanted, []),
        (wanted - {"LICENSE"}, ["lacks LICENSE"]),
        (wanted | {"docs/site.css", "runs/a.json"}, ["should not have runs/a.json"]),
        (
            wanted | {"tests/__pycache__/a.pyc", "dist/a.whl"},
            [f"should not have {each}" for each in ("dist/a.whl", "tests/__pycache__/a.pyc")],
        ),
    ):
        with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(f"equipoise-0.1.0/{name}"))
        assert RELEASE.problems_of_sdist(tmp_path / "made.tar.gz") == [f"made.tar.gz: {each}" for each in said]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    made, sdist = RELEASE.build(out)
    assert RELEASE.problems_of_wheel(made) == []
    assert RELEASE.problems_of_sdist(sdist) == []
    return made


@pytest.mark.slow
def test_the_quick_start_works_with_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    words = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", str(tmp_path / "there")]
    subprocess.run([sys.executable, "-m", "pip", "install", *words, str(wheel)], check=True, timeout=60)
    # Without site (-S) nobody reads the file that leads from the environment to src/.
    seen = os.pathsep.join([str(tmp_path / "there"), sysconfig.get_path("purelib")])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    (empty := tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-S", "-W", "error", str(ROOT / "tests" / "quick_start.py"), "library", "command"],
        cwd=empty,
        env={**clean, "PYTHONPATH": seen, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_what_a_wheel_lacks_or_should_not_have_is_named(wheel: Path, tmp_path: Path) -> None:
    broken = shutil.copy(wheel, tmp_path / wheel.name)
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(broken, "w") as made:
        for name in whole.namelist():
            if name not in {"equipoise/py.typed", "equipoise/balance/balancer.py"}:
                made.writestr(name, whole.read(name).replace(b"Typing :: Typed", b""))
        made.writestr("tests/test_release.py", "")
    assert RELEASE.problems_of_wheel(Path(broken)) == [
        f"{wheel.name}: lacks equipoise/balance/balancer.py",
        f"{wheel.name}: lacks equipoise/py.typed",
        f"{wheel.name}: should not have tests/test_release.py",
        f"{wheel.name}: its metadata lacks 'Classifier: Typing :: Typed'",
    ]

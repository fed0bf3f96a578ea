"""Whatever is not installed is named together with a line to type that brings it."""

import ast
import json
import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from equipoise.util.extras import NotInstalled, install_line, needs

ROOT = Path(__file__).resolve().parents[2]
ON_AN_INDEX = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""What packages are called on an index, where they are imported by another name."""
WITH_TORCH = {"torch", "numpy", "typing_extensions"}
ASKED_BEFORE = {  # where modules import what `needs` or `reading` has asked for before, and for which extras
    "cli": ("train", "predict"),
    "control": ("control",),
    "data/own": ("media",),
    "data/sets": ("media",),
    "integrations/sklearn_base.py": ("sklearn",),
    "media": ("media",),
    "paper": ("plot",),
    "report": ("plot",),
    "report/formats.py": ("train",),
    "study/executors/ray.py": ("ray",),
    "study/executors/slurm.py": ("slurm",),
    "training/trackers.py": ("train",),
}
LOOKED_FOR = {("paper/bench.py", "torchjd")}  # used where it is installed, and not missed elsewhere


class Import(NamedTuple):
    """An import of a package that may not be installed.

    Args:
        file: Under src/equipoise.
        line: Where it stands there.
        package: As it is imported.
        named: The extras that the message names; none where it names the package itself.
    """

    file: str
    line: int
    package: str
    named: tuple[str, ...]


def brought() -> dict[str, set[str]]:
    """The packages that each extra brings, by the names that an index knows, as pyproject.toml has it."""
    table = (ROOT / "pyproject.toml").read_text("utf-8").partition("\n[project.optional-dependencies]\n")[2]
    entries = re.findall(r"^(\w+) = (\[.*?\])$", table.partition("\n\n[")[0], re.MULTILINE | re.DOTALL)
    lists: dict[str, list[str]] = {name: ast.literal_eval(text) for name, text in entries}

    def packages(extra: str) -> set[str]:
        found = set[str]()
        for each in lists[extra]:
            own = re.fullmatch(r"equipoise\[(.*)\]", each)
            found |= set[str]().union(*map(packages, own[1].split(","))) if own else set(re.findall(r"^[\w-]+", each))
        return found

    return {extra: packages(extra) for extra in lists}


BROUGHT = brought()


def test_what_extras_bring_is_read_off_the_file() -> None:
    assert BROUGHT["predict"] == {"rich", "safetensors", "typer"}
    assert {"torch", "numpy"}.isdisjoint(BROUGHT["train"])
    assert BROUGHT["control"] > BROUGHT["train"] | BROUGHT["plot"]


def imports(path: Path) -> list[Import]:
    """The imports of a file that may fail, each with the extras that are named then."""
    file, found = path.relative_to(ROOT / "src/equipoise").as_posix(), list[Import]()

    def visit(node: ast.AST, named: tuple[str, ...] | None) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.With):
            for call in (item.context_expr for item in node.items):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "needs":
                    words = [each for extra in call.args[1:] for each in ast.walk(extra)]  # one, or one of several
                    texts = [each.value for each in words if isinstance(each, ast.Constant)]
                    named = tuple(text for text in texts if isinstance(text, str) and text in BROUGHT)
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for package in {name.partition(".")[0] for name in names}:
            if package in sys.stdlib_module_names or package in {*WITH_TORCH, "equipoise", "equipoise_command"}:
                continue
            places = [place for place in ASKED_BEFORE if f"{file}/".startswith(f"{place}/")]
            asked = ASKED_BEFORE[max(places, key=len)] if places else None
            before = asked if named is None else named
            if (file, package) not in LOOKED_FOR:
                assert before is not None, (
                    f"{file}:{getattr(node, 'lineno', 0)}: {package} is not imported under `needs`"
                )
                found.append(Import(file, getattr(node, "lineno", 0), package, before))
        for child in ast.iter_child_nodes(node):
            visit(child, named)

    visit(ast.parse(path.read_text("utf-8")), None)
    return found


def test_every_import_that_may_fail_names_an_extra_that_brings_the_package() -> None:
    every = [each for path in (ROOT / "src/equipoise").rglob("*.py") for each in imports(path)]
    assert {"accelerate", "av", "matplotlib", "mujoco", "optuna", "safetensors", "typer"} < {
        each.package for each in every
    }
    wrong = [
        (each, extra)
        for each in every
        for extra in each.named
        if ON_AN_INDEX.get(each.package, each.package) not in BROUGHT[extra]
    ]
    assert wrong == []
    assert {each.package for each in every if not each.named} == {"pandas", "pytest", "timm", "torchvision"}
    used = {extra for each in every for extra in each.named}
    assert used == set(BROUGHT) - {"docs", "dev", "serve"}  # which no module of the package needs


def test_every_extra_is_tried() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "extras.py"))
    assert set(script["TRIALS"]) == set(BROUGHT) - {"docs", "dev"}


def test_every_file_that_is_named_here_is_there() -> None:
    assert [place for place in ASKED_BEFORE if not (ROOT / "src/equipoise" / place).exists()] == []


# -- each feature where nothing but torch is installed --

WITHOUT = """
import json, sys
from importlib import import_module
from pathlib import Path

class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in BLOCKED else self.finder.find_spec(name, *rest)

sys.meta_path = [Without(finder) for finder in sys.meta_path if hasattr(finder, "find_spec")]

def file(name, content):
    Path(name).write_bytes(content)
    return Path(name)

def command(*words):
    sys.argv = ["equipoise", *words]
    sys.modules.pop("equipoise.cli.main", None)
    import_module("equipoise.cli.main")

import torch
import equipoise
from equipoise.control.camera import load_mujoco
from equipoise.control.policy import Policy
from equipoise.data.own.manifest import read_manifest
from equipoise.data.sets.ave import HDF5Array
from equipoise.deploy.answers import WRITERS
from equipoise.deploy.exporting import export, run_onnx
from equipoise.deploy.prediction import Prediction
from equipoise.media.sound import read_sound
from equipoise.media.video import read_frames, read_image
from equipoise.models.clusters import purity
from equipoise.models.metrics import METRICS
from equipoise.models.task import Regression
from equipoise.report import drawing, print_table
from equipoise.report.ranking import critical_difference
from equipoise.study.executors import cluster_of
from equipoise.training.launch import make_accelerator
from equipoise.training.settings import Settings
from equipoise.training.trackers import Trackers

for feature in FEATURES:
    try:
        eval(feature)
        said = ["nothing", ""]
    except BaseException as error:
        said = [type(error).__name__, str(error)]
    print("said:" + json.dumps([feature, *said]))
"""
FEATURES = {  # the package that is missed first, and the extra to be named; none where the package itself is
    "equipoise.load('nowhere')": ("safetensors", "predict"),
    "command('predict', 'runs/one')": ("typer", "predict"),
    "command('export', 'runs/one')": ("typer", "export"),
    "command('tune')": ("typer", "tune"),
    "command('control')": ("typer", "control"),
    "command('train')": ("typer", "train"),
    "command('--help')": ("typer", "train"),
    "make_accelerator(Settings(), Trackers(), None)": ("accelerate", "train"),
    "METRICS['mae'](torch.zeros(4, 1), torch.zeros(4, 1), Regression(('a',)))": ("sklearn", "train"),
    "purity(torch.randn(9, 2), torch.arange(9) % 3, 3)": ("sklearn", "train"),
    "critical_difference(4, 9)": ("scipy", "train"),
    "print_table(None)": ("rich", "train"),
    "drawing.check_ready()": ("matplotlib", "plot"),
    "export(None, 'out')": ("onnx", "export"),
    "run_onnx('model.onnx')": ("onnxruntime", "export"),
    "read_image(file('a.png', bytes(99)))": ("PIL", "media"),
    "read_sound(file('a.wav', b'RIFF' + bytes(4) + b'WAVE' + bytes(99)))": ("soundfile", "media"),
    "read_frames(file('a.avi', bytes(99)), None, 1, 8)": ("av", "media"),
    "read_manifest(file('a.parquet', bytes(99)))": ("pyarrow", "media"),
    "HDF5Array(file('a.h5', bytes(99)), 'a')": ("h5py", "media"),
    "WRITERS['.parquet']({}, Path('a.parquet'))": ("pyarrow", "media"),
    "Prediction.to_frame(None)": ("pandas", None),
    "import_module('equipoise.testing')": ("pytest", None),
    "cluster_of('ray')": ("ray", "ray"),
    "cluster_of('slurm')": ("submitit", "slurm"),
    "load_mujoco()": ("mujoco", "control"),
    "Policy.load(Path('policy'))": ("safetensors", "control"),
    "import_module('equipoise.study.search')": ("optuna", "tune"),
    "import_module('equipoise.integrations.lightning')": ("lightning", "lightning"),
    "import_module('equipoise.integrations.huggingface')": ("transformers", "transformers"),
    "import_module('equipoise.integrations.transformers')": ("transformers", "transformers"),
    "import_module('equipoise.integrations.torchjd')": ("torchjd", "torchjd"),
    "import_module('equipoise.integrations.sklearn')": ("sklearn", "sklearn"),
    "import_module('equipoise.integrations.timm')": ("timm", None),
    "import_module('equipoise.integrations.torchvision')": ("torchvision", None),
}


@pytest.mark.slow
def test_where_only_torch_is_installed_every_feature_says_what_to_type(tmp_path: Path) -> None:
    imported = {name: module for module, name in ON_AN_INDEX.items()}
    blocked = {imported.get(name, name) for name in set[str]().union(*BROUGHT.values())} | {"timm", "torchvision"}
    program = f"BLOCKED, FEATURES = {blocked!r}, {list(FEATURES)!r}\n{WITHOUT}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("said:")]
    assert [feature for feature, _, _ in said] == list(FEATURES)
    for feature, kind, message in said:
        package, extra = FEATURES[feature]
        line = rf"pip install (-e )?'[^']+\[{extra}\]'" if extra else f"pip install {package}"
        expected = rf".+ needs {package}, which is not installed; type: {line}"
        assert re.fullmatch(expected, message), (feature, kind, message)
        assert extra is None or ON_AN_INDEX.get(package, package) in BROUGHT[extra]


# -- the line --


class Installed:
    """A distribution that says where it came from."""

    def __init__(self, origin: object) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


def install_from(origin: object, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(origin))
    return install_line("plot")


def test_the_line_names_the_folder_that_the_package_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my own copy"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    url = f"file://{tmp_path}/my%20own%20copy"
    assert install_from({"url": url, "dir_info": {}}, monkeypatch) == f"pip install '{folder}[plot]'"
    edited = {"url": url, "dir_info": {"editable": True}}
    assert install_from(edited, monkeypatch) == f"pip install -e '{folder}[plot]'"


@pytest.mark.parametrize(
    "origin",
    [
        None,  # from an index
        {"url": "file:///gone/for/good", "dir_info": {}},
        {"url": "file:///dist/equipoise-0.1.0-py3-none-any.whl", "archive_info": {}},
        {"url": "https://example.org/equipoise.git", "vcs_info": {"vcs": "git", "commit_id": "0"}},
    ],
)
def test_without_a_folder_it_names_the_package(origin: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_from(origin, monkeypatch) == "pip install 'equipoise[plot]'"


def test_a_package_that_is_not_installed_at_all_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_line("plot") == "pip install 'equipoise[plot]'"


def test_the_innermost_message_is_kept() -> None:
    with (
        pytest.raises(NotInstalled, match=r"^a wheel needs absent, .* type: pip install absent$"),
        needs("a car", "plot"),
        needs("a wheel"),
    ):
        import absent.rim  # noqa: F401  # ty: ignore[import-not-found]


def test_another_error_is_passed_on() -> None:
    with pytest.raises(ImportError, match="cannot import name") as found, needs("a car", "plot"):
        from math import wheel  # noqa: F401  # ty: ignore[import-not-found]
    assert not isinstance(found.value, NotInstalled)

"""A method and a model of a user's own in one file: compared, loaded, exported; and what is said where one is none."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from documentation import ROOT
from ended import Ended
from equipoise.deploy import load_saved_model
from equipoise.study.store import Store
from equipoise.util.errors import BadInput

Command = Callable[..., Ended]
QUICK = ("--data", "generated", "--seeds", "1", "--quick", "--json", "device=cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with the example's file."""
    shutil.copy(ROOT / "examples" / "my_file.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop("my_file", None)


def test_the_example_is_compared_and_exported(equipoise: Command, folder: Path) -> None:
    words = ("model=my_file.Model", "gap.strength=2", "epochs=2", "features=16")
    ended = equipoise("compare", "--methods", "msl,my_file.Gap", "--out", "out", *QUICK, *words)
    assert (ended.code, ended.err) == (0, "")
    msl, gap = json.loads(ended.out)
    assert (gap["method"], gap["params"], gap["run"]["model"]) == ("my_file.Gap", {"strength": 2.0}, "my_file.Model")
    assert set(gap["code"]) == {"my_file.Gap", "my_file.Model"}
    assert set(msl["code"]) == {"my_file.Model"}
    assert gap["test"]["committee"] > 1 / 3

    run = Store(folder / "out").run_folder(gap["config"])
    del sys.modules["my_file"]
    ended = equipoise("export", run)
    assert (ended.code, ended.out) == (2, "")
    assert "no code runs because a file names it. If it is yours, type --model my_file.Model; " in ended.err
    assert "my_file" not in sys.modules
    for more in (["--model", "my_file.Model"], ["--trust", "--to", "torch-export"]):
        ended = equipoise("export", run, *more)
        assert ended.code == 0, ended.err
        assert "Compared with PyTorch on 3 subsets of the sensors" in ended.out
    kept = load_saved_model(run, model="my_file.Model")
    assert kept.model.known_task().size == 3


def test_a_model_that_does_not_fit_its_weights_is_told(equipoise: Command, folder: Path) -> None:
    (row,) = json.loads(
        equipoise("compare", "--methods", "mimo", "--out", "out", *QUICK, "model=own_models.Early", "epochs=1").out
    )
    run = Store(folder / "out").run_folder(row["config"])
    assert load_saved_model(run, model="own_models.Early").row["config"] == row["config"]
    for path, message in (
        ("my_file.Model", r"expected model\.decide\.weight of shape \[3, 64\], found no such tensor"),
        ("own_models.number", "expected a class of nn.Module"),
        ("own_models.Wants", "cannot be made: TypeError"),
        ("../x", "expected a dotted path"),
    ):
        with pytest.raises(BadInput, match=message):
            load_saved_model(run, model=path)


def test_a_model_that_cannot_be_exported_is_told(equipoise: Command, folder: Path) -> None:
    words = ("model=own_models.Decides", "epochs=1")
    (row,) = json.loads(equipoise("compare", "--methods", "mimo", "--out", "out", *QUICK, *words).out)
    ended = equipoise("export", Store(folder / "out").run_folder(row["config"]), "--trust")
    assert ended.code == 2
    assert "this model of your own cannot be exported to onnx: " in ended.err
    assert "Let its forward decide by tensors" in ended.err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("NoEncoders", "NoEncoders: expected an attribute `encoders` with the part of each sensor, found none; write "),
        ("NoNumbers", "by name, {'fused': …, 'easy': …, 'hard': …}, each of shape [B, 3]; found Tensor"),
        ("TooFew", "found no 'hard', 'fused': [2, 1], for a batch of 2"),
        ("Stumbles", "'own_models.Stumbles' cannot read two samples: KeyError: 'nothing' (own_models.py, line "),
        ("Lazy", "expected layers whose sizes are known, found lazy ones; read them off `shapes`"),
        ("Wants", "it is called with those of shapes, task, features that it has parameters for"),
        ("number", "a function with `-> nn.Module`, found function number"),
        (
            "unsaid",
            "'own_models.unsaid': expected a class of nn.Module, or a function with `-> nn.Module`, found function",
        ),
        ("OtherName", "; its outputs are named 'fused', 'easy', 'hards'; did you mean 'hard' by 'hards'?"),
        ("Apart", "`lengths` at most; found (easy, hard); write def forward(self, inputs), and read inputs['easy']"),
        ("Typo", "has no attribute 'Typo'; it has Same, Early, Ragged, Decides, NoEncoders, "),
        ("Early encoder=mlp", "encoder should be auto with a model of one's own (own_models.Early), found 'mlp'"),
        ("Early dropout=0.5", "dropout should be 0 with a model of one's own"),
    ],
)
def test_a_mistake_is_told_once_before_anything_runs(model: str, message: str, equipoise: Command) -> None:
    words = f"model=own_models.{model}".split()
    ended = equipoise("compare", "--methods", "msl,mimo", "--out", "out", *QUICK, *words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count(message) == 1
    assert not list(Path("out").glob("runs/*/*"))


def test_a_function_that_says_what_it_makes_is_trained_and_loaded(equipoise: Command, folder: Path) -> None:
    words = ("model=own_models.said", "epochs=1")
    (row,) = json.loads(equipoise("compare", "--methods", "mimo", "--out", "out", *QUICK, *words).out)
    run = Store(folder / "out").run_folder(row["config"])
    assert load_saved_model(run, model="own_models.said").row["config"] == row["config"]


METHODS = """
import torch
from equipoise import Coefficients, Weighting


class NoWeigh(Weighting): ...


class Mistyped(Weighting):
    def weigh(self, losses):
        return Coefficients(encoder=torch.ones(3))


class TooMany(Weighting):
    def weigh(self, losses):
        return Coefficients.shared(torch.ones(7))


class Plain(Weighting):
    def weigh(self, losses):
        return torch.ones(3)


class Forgets(Weighting):
    def __init__(self, strength: float = 1.0):
        self.strength = strength

    def weigh(self, losses):
        return Coefficients.shared(torch.ones(3))


class Undefined(Weighting):
    def weigh(self, losses):
        return Coefficients.shared(torch.ones(3) / 0 * 0)


class Fine(Weighting):
    def weigh(self, losses):
        return Coefficients.shared(torch.ones(3))
"""
RETURNS = (
    "weigh: expected it to return equipoise.Coefficients, such as Coefficients.shared(weights) with a tensor of 3 "
    "weights, of fused, easy, hard; found "
)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("NoWeigh", "expected a class that answers `weigh` or `mix`, found an abstract one"),
        ("Mistyped", "unexpected keyword argument 'encoder' (own_methods.py, line 11)"),
        ("TooMany", f"TooMany.{RETURNS}encoders of shape [7], expected [3] or [1] or [3, 2]"),
        ("Plain", f"Plain.{RETURNS}a tensor of shape [3] instead"),
        ("Forgets", "its __init__ should begin with super().__init__(), found none"),
        (
            "Undefined",
            "Undefined.weigh: expected finite weights, found NaN or infinite ones, of losses that are finite",
        ),
    ],
)
def test_a_mistake_in_a_method_is_told_before_anything_runs(
    method: str, message: str, equipoise: Command, folder: Path
) -> None:
    (folder / "own_methods.py").write_text(METHODS)
    methods = f"msl,own_methods.Fine,own_methods.{method}"
    ended = equipoise("compare", "--methods", methods, "--out", "out", *QUICK, "epochs=1")
    sys.modules.pop("own_methods", None)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count(message) == 1, ended.err
    assert ended.err.count(f"method 'own_methods.{method}'") == 1
    assert "Fine'" not in ended.err
    assert not list(Path("out").glob("runs/*/*"))


def test_a_diagnosis_says_what_to_type_instead(equipoise: Command) -> None:
    ended = equipoise("diagnose", "--data", "generated", "--out", "out", "model=my_file.Model")
    assert ended.code == 2
    assert "equipoise compare --data generated --methods msl,unimodal model=my_file.Model" in ended.err

"""When encoders are compiled, and for which batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from equipoise import LateFusion
from equipoise.training.compile import Compiler, pays
from equipoise.training.settings import Settings

SHAPES = {"a": (3,), "b": (5,)}


def model() -> LateFusion:
    return LateFusion({name: nn.Sequential(nn.Linear(*shape, 4), nn.ReLU()) for name, shape in SHAPES.items()}, 2)


def watching(epochs: int) -> tuple[Compiler, list[str]]:
    """What watches a run on a GPU, with a model that notes what is done to it."""
    done: list[str] = []
    found = Compiler(model(), Settings(epochs=epochs))
    found._watches = True
    found._model.compile_encoders = lambda **_: done.append("compiled")
    found._model.uncompile_encoders = lambda: done.append("as written")
    return found, done


def test_it_pays_where_twice_the_cost_is_saved() -> None:
    assert not pays(599.0)  # a fifth of it is less than 120 s
    assert pays(601.0)


def test_short_runs_pay_for_nothing() -> None:
    compiler, done = watching(20)
    for epoch in range(1, 21):
        assert not compiler.update(10.0, epoch, whole=True)  # 200 s in all
    assert done == []
    assert compiler.outcome == "no: 180 s were left, too few to be worth it"  # when it was first measured


def test_a_long_run_compiles_once_and_keeps_what_is_faster() -> None:
    compiler, done = watching(100)
    changed = [compiler.update(s, e, whole=True) for e, s in enumerate([30.0, 10.0, 55.0, 7.0, 7.0, 7.0], start=1)]
    assert changed == [False, True, False, False, False, False]  # the first epoch warms up, the second is the measure
    assert done == ["compiled"]
    assert compiler.outcome == "yes: an epoch takes 0.70 of its time"


def test_what_is_not_faster_is_taken_back_and_not_tried_again() -> None:
    compiler, done = watching(100)
    changed = [compiler.update(s, e, whole=True) for e, s in enumerate([30.0, 10.0, 55.0, 9.9, 9.9], start=1)]
    assert changed == [False, True, False, True, False]
    assert done == ["compiled", "as written"]
    assert compiler.outcome == "no: an epoch took 0.99 of its time"


@pytest.mark.parametrize("ratio", [0.7, 0.99])
def test_no_run_depends_on_what_another_found(ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of one model take the same decisions, and leave nothing in the home folder."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    told = []
    for _ in range(2):
        compiler, done = watching(100)
        for epoch, seconds in enumerate([30.0, 10.0, 55.0, 10.0 * ratio, 10.0 * ratio], start=1):
            compiler.update(seconds, epoch, whole=True)
        told.append((compiler.outcome, done))
    assert told[0] == told[1]
    assert list(tmp_path.iterdir()) == []


def test_half_an_epoch_is_no_measure() -> None:
    compiler, done = watching(100)
    assert not compiler.update(10.0, 2, whole=False)
    assert done == []


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_a_cpu_compiles_only_when_told() -> None:
    assert not Compiler(model(), Settings(epochs=10**6)).update(1e9, 2, whole=True)
    assert Compiler(model(), Settings(compile=False)).outcome == "no: compile=false"
    assert Compiler(model(), Settings(compile=True)).outcome == "yes"


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.slow
def test_only_the_first_training_shape_is_compiled_and_each_encoder_for_itself() -> None:
    compiled: list[list[tuple[int, ...]]] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        compiled.append([tuple(each.shape) for each in inputs if isinstance(each, torch.Tensor)])
        assert all(isinstance(size, int) for shape in compiled[-1] for size in shape)  # none is taken to vary
        return graph.forward

    whole = model()
    twin = model()
    twin.load_state_dict(whole.state_dict())
    names = list(whole.state_dict())
    whole.compile_encoders(steady=True, backend=backend)
    for mode, size in (("train", 6), ("train", 6), ("train", 4), ("eval", 6), ("eval", 9), ("train", 6)):
        inputs = {name: torch.randn(size, *shape) for name, shape in SHAPES.items()}
        for each in (whole, twin):
            each.train(mode == "train")
        found, wanted = whole(inputs), twin(inputs)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value)
    assert len(compiled) == 2
    assert list(whole.state_dict()) == names
    whole.uncompile_encoders()
    whole.train()({name: torch.randn(5, *shape) for name, shape in SHAPES.items()})
    assert len(compiled) == 2


@pytest.mark.parametrize("theirs", [False, True])
def test_convolutions_race_in_full_batches_of_compiled_encoders_alone(theirs: bool) -> None:
    def raced(compiler: Compiler, *, full: bool) -> bool:
        with torch.backends.cudnn.flags(benchmark=theirs):
            with compiler.benchmarking(full=full):
                found = torch.backends.cudnn.benchmark
            assert torch.backends.cudnn.benchmark is theirs  # what somebody chose for themselves stays
        return found

    compiler, _ = watching(100)
    compiler._may_benchmark = True
    assert raced(compiler, full=True) is theirs
    compiler.update(10.0, 2, whole=True)
    assert compiler.outcome == "on trial"
    assert raced(compiler, full=True)
    assert raced(compiler, full=False) is theirs
    compiler.update(55.0, 3, whole=True)
    compiler.update(9.9, 4, whole=True)
    assert compiler.outcome.startswith("no")
    assert raced(compiler, full=True) is theirs
    on_a_cpu = Compiler(model(), Settings(compile=True))
    assert raced(on_a_cpu, full=True) is theirs

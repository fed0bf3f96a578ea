"""A model of one's own: late fusion in such a module is trained, measured, votes and ships as LateFusion does."""

import copy
import warnings
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from equipoise.data import Splits
from equipoise.data.bundled import two_sensors
from equipoise.deploy.deployable import Deployable
from equipoise.measure import measure_run
from equipoise.models import LateFusion, fit_committee
from equipoise.models.choose import build_encoders
from equipoise.models.ensemble import as_ensemble
from equipoise.models.own_model import OwnModel, build_own
from equipoise.models.task import Classification, MultiLabel, Regression, Task
from equipoise.study.registry import all_methods
from equipoise.training.settings import Settings
from equipoise.training.train import train
from equipoise.util.errors import BadInput
from own_models import Early, Ragged, Same

SHAPES: dict[str, tuple[int, ...]] = {"a": (4,), "b": (2, 6), "c": (3,)}
TASKS = {
    "classes": Classification(["x", "y", "z"]),
    "labels": MultiLabel(["x", "y"]),
    "regression": Regression(["x", "y"], torch.tensor([1.0, -2.0]), torch.tensor([3.0, 0.5])),
}


def both(kind: str = "classes") -> tuple[LateFusion, OwnModel]:
    """A LateFusion, and the same in a module of a user's own, with the same weights."""
    torch.manual_seed(0)
    task = TASKS[kind]
    late = LateFusion(build_encoders("auto", SHAPES, 5), task=copy.deepcopy(task), fusion="gated").eval()
    inner = LateFusion(late.encoders, head=lambda _: torch.nn.Identity(), fusion=late.fusion)
    inner.heads = late.heads
    return late, OwnModel(Same(SHAPES, task, 5, inner), SHAPES, copy.deepcopy(task)).eval()


def inputs_of(samples: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(samples, *shape, generator=generator) for name, shape in SHAPES.items()}


def labels_of(task: Task, samples: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    if task.kind == "classes":
        return torch.randint(task.size, (samples,), generator=generator)
    drawn = torch.randn(samples, task.size, generator=generator)
    return (drawn > 0).float() if task.kind == "labels" else drawn


def subsets() -> list[tuple[str, ...]]:
    return [some for size in (1, 2, 3) for some in combinations(SHAPES, size)]


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("decision", ["fused", "committee"])
def test_it_answers_as_late_fusion_does_with_any_sensors(kind: str, decision: Any) -> None:
    late, own = both(kind)
    weights = torch.tensor([0.1, 0.5, 0.3, 0.1])
    late.committee.copy_(weights)
    own.committee.copy_(weights)
    for subset in subsets():
        inputs = {name: x for name, x in inputs_of(7).items() if name in subset}
        assert list(own(inputs)) == ["fused", *subset]
        assert_close(own.predict(inputs, decision), late.predict(inputs, decision))
    gaps = {"a_present": torch.arange(7) % 2 == 0, "c_present": torch.arange(7) % 3 == 0}
    inputs = {**inputs_of(7), **gaps}
    assert_close(own.predict(inputs, decision), late.predict(inputs, decision))


@pytest.mark.parametrize("kind", TASKS)
def test_its_committee_is_fitted_as_that_of_late_fusion(kind: str) -> None:
    late, own = both(kind)
    label = labels_of(late.known_task(), 60)
    fits = [fit_committee(model, (inputs_of(60), label)) for model in (late, own)]
    assert_close(fits[0].weights, fits[1].weights)
    assert_close(own.committee, late.committee)
    if kind == "regression":
        assert_close(own.radii, late.radii)


@pytest.mark.parametrize("kind", TASKS)
def test_its_measurements_are_those_of_late_fusion(kind: str) -> None:
    late, own = both(kind)
    splits = Splits.from_arrays(inputs_of(60), labels_of(late.known_task(), 60), task=late.known_task().kind)
    expected, found = (measure_run(model, splits, seed=0) for model in (late, own))
    for part in ("validation", "test"):
        assert set(expected[part]) - set(found[part]) <= {"probe", "split"}
        assert {"probe", "split"}.isdisjoint(found[part])
        for key, value in found[part].items():
            assert flat(value) == pytest.approx(flat(expected[part][key]), abs=1e-5, nan_ok=True), key
    assert found["test"]["faults"]["a"]["missing"]["absent"] is not None


def flat(value: Any) -> Any:
    """Plain numbers by their path."""
    if isinstance(value, dict):
        return {f"{key}.{inner}": x for key, one in value.items() for inner, x in _entries(flat(one))}
    return value


def _entries(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else [("", value)]


@pytest.mark.parametrize("kind", TASKS)
def test_its_graph_decides_as_that_of_late_fusion(kind: str) -> None:
    late, own = both(kind)
    graphs = [Deployable(model, examples=inputs_of(3)).eval() for model in (late, own)]
    generator = torch.Generator().manual_seed(1)
    given = graphs[0].examples(32, generator)
    for name in SHAPES:
        given[f"{name}_valid"] = torch.rand(32, generator=generator) < 0.5
        given[name][~given[f"{name}_valid"]] = torch.nan
    with torch.no_grad():
        expected, found = (graph(given) for graph in graphs)
    assert list(found) == list(expected) == graphs[1].output_names
    for name, value in expected.items():
        assert_close(found[name], value, equal_nan=True)


def test_an_ensemble_of_its_heads_votes_as_that_of_late_fusion() -> None:
    late, own = both()
    expected, found = as_ensemble(late), as_ensemble(own)
    assert_close(found.predict(inputs_of(9)), expected.predict(inputs_of(9)))


@pytest.mark.parametrize(
    "name", [name for name in all_methods() if name not in ("arl", "dgl", "ensemble", "inforeg", "mcr", "moddrop")]
)
def test_it_is_trained_as_late_fusion_is(name: str) -> None:
    """The heads of the one are detached by the model where those of the other are kept apart by the balancer.

    A gated fusion has no shares: methods that compare shares elsewhere are given the outputs of the heads by both.
    """
    splits, trained = two_sensors(), []
    for model in ("auto", "own_models.Same"):
        settings = Settings(epochs=2, features=6, lr=0.05, fusion="gated", model=model, device="cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trained.append(train(splits, all_methods()[name].make(), settings, seed=3))
    late, own = (one.model for one in trained)
    assert isinstance(own, OwnModel)
    assert own.unimodal == late.unimodal
    found = {key.removeprefix("model.inner."): value for key, value in own.state_dict().items()}
    expected = {key: value for key, value in late.state_dict().items() if key != "committee"}
    assert len(expected) > 8
    for key, value in expected.items():
        assert_close(found[key], value, rtol=1e-4, atol=1e-5, msg=f"{name}: {key}")


@pytest.mark.parametrize("name", ["dgl", "arl", "inforeg"])
def test_methods_of_shares_take_the_outputs_of_the_model_where_there_are_none(name: str) -> None:
    """Late fusion without shares detaches its heads, and is refused; those of a module of one's own reach encoders."""
    settings = Settings(epochs=2, model="own_models.Same", features=6, lr=0.05, device="cpu")
    found = train(two_sensors(), all_methods()[name].make(), settings)
    assert found.curves[-1]["validation"]["easy"] > 0.5


def test_encoders_may_be_named_and_the_module_need_not_know_gaps() -> None:
    task = TASKS["classes"]
    model = OwnModel(Early(SHAPES, task), SHAPES, task).eval()
    assert [type(part) for part in model.encoders.values()] == [torch.nn.Linear] * 3
    some, zeros = inputs_of(4), {name: torch.zeros_like(x) for name, x in inputs_of(4).items()}
    assert_close(model({"b": some["b"]})["fused"], model({**zeros, "b": some["b"]})["fused"])
    assert list(model({"b": some["b"]})) == ["fused", "b"]
    twin = copy.deepcopy(model)
    assert twin.encoders["a"] is twin.model.get_submodule("nets.0")
    assert twin.fusion(inputs_of(2)) is not None
    assert all(key.startswith(("model.", "committee")) for key in model.state_dict())


def test_lengths_reach_a_module_that_asks_for_them() -> None:
    task = TASKS["classes"]
    shapes: dict[str, tuple[int, ...]] = {"a": (2, 6), "b": (3, 5)}
    module = Ragged(shapes, task)
    model = OwnModel(module, shapes, task).eval()
    inputs = {name: torch.randn(4, *shape) for name, shape in shapes.items()}
    lengths = torch.tensor([1, 2, 3, 6])
    found = model({**inputs, "a_length": lengths})
    for row, length in enumerate(lengths.tolist()):
        cut = inputs["a"][row : row + 1, :, :length]
        assert_close(found["a"][row : row + 1], module.encoders["a"](cut.sum(dim=2)))
    assert_close(model(inputs, {"a": lengths})["fused"], found["fused"])
    with pytest.raises(BadInput, match="takes no lengths, and 'a' has some"):
        OwnModel(Early(shapes, task), shapes, task)({**inputs, "a_length": lengths})


def test_inputs_that_are_none_are_told() -> None:
    task = TASKS["classes"]
    model = OwnModel(Early(SHAPES, task), SHAPES, task)
    with pytest.raises(BadInput, match=r"Unknown modality: 'd' is none of(.|\n)*at least one of 'a', 'b', 'c'"):
        model({"d": torch.zeros(1, 2)})


def test_a_module_is_called_with_what_it_asks_for() -> None:
    given = {"shapes": SHAPES, "task": TASKS["classes"], "features": 5}
    assert isinstance(build_own("own_models.Early", given), Early)
    with pytest.raises(BadInput, match=r"expected a class of nn\.Module, or a function"):
        build_own("own_models.number", given)

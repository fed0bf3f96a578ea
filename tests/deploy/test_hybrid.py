"""Hybrid and early fusion as graphs: they say what PyTorch says with every subset of the sensors."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.deploy import Deployable, export
from equipoise.deploy.exporting import run_onnx
from equipoise.models import HybridFusion, fit_committee
from equipoise.models.encoders import MLP, CNN1d
from equipoise.models.inception import Inception
from equipoise.models.sequence import AttentionPooled, Tokens
from equipoise.models.task import Classification, MultiLabel, Regression, Task
from equipoise.models.trunk import Stem

TASKS: dict[str, Any] = {
    "classes": Classification(["a", "b", "c"]),
    "labels": MultiLabel(["cough", "fever"]),
    "angle": Regression(["angle"], torch.tensor([1000.0]), torch.tensor([3.0])),
}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "hybrid": {"words": (6,), "imu": (2, 20), "clinic": (5,), "force": (3, 9)},
    "early": {"camera": (1, 9, 7), "imu": (2, 21), "clinic": (5,), "film": (1, 5, 9, 7)},
}
RAGGED = ("words", "imu")


def encoder_of(fusion: str, name: str) -> nn.Module:
    if fusion == "early":
        return Stem(SHAPES["early"][name], width=8)
    made = {
        "words": lambda: Tokens(50, AttentionPooled(6, 8, 8, 1, 2, 16), 6),
        "imu": lambda: Inception(2, 20, 8),
        "clinic": lambda: MLP(5, 8, (6,)),
        "force": lambda: CNN1d(3, 8, 4),
    }
    return made[name]()


def examples(fusion: str, names: list[str], batch: int) -> dict[str, Tensor]:
    inputs = {}
    for name in names:
        shape = SHAPES[fusion][name]
        inputs[name] = torch.randint(1, 50, (batch, *shape)) if name == "words" else torch.randn(batch, *shape)
        if fusion == "hybrid" and name in RAGGED:
            inputs[f"{name}_length"] = torch.randint(2, shape[-1] + 1, (batch,))
    return inputs


def deployable(fusion: str, count: int, task: Task, unimodal: Any = "masked", depth: int = 2) -> Deployable:
    """A model with vectors of missing sensors that are not zero, and a fitted committee."""
    torch.manual_seed(count)
    names = list(SHAPES[fusion])[:count]
    encoders = {name: encoder_of(fusion, name) for name in names}
    model = HybridFusion(encoders, task=task, unimodal=unimodal, width=8, depth=depth).eval()
    for vector in model.absent:
        nn.init.normal_(vector)
    inputs = examples(fusion, names, 60)
    label: Any = {"classes": torch.arange(60) % 3, "labels": torch.randint(2, (60, 2)).float()}.get(task.kind)
    fit_committee(model, (inputs, 1000 + 3 * torch.randn(60, 1) if label is None else label))
    return Deployable(model, examples=inputs)


def flagged(graph: Deployable, inputs: dict[str, Tensor], subset: tuple[str, ...]) -> dict[str, Tensor]:
    """Inputs of the graph, with rubbish in every sensor that is not there."""
    given = dict(inputs)
    for name in graph.input_specs:
        here = name in subset
        if not here:
            raw = inputs[name]
            given[name] = torch.full_like(raw, torch.nan if raw.is_floating_point() else 10**6)
        given[f"{name}_valid"] = torch.full((len(inputs[name]),), here)
    return given


def agree(graph: Deployable, found: dict[str, Tensor], inputs: dict[str, Tensor], subset: tuple[str, ...]) -> None:
    """The graph's answers are those of `predict`, and what each sensor says alone is its masked pass."""
    model, task = graph.model, graph.model.known_task()
    there = {key: each for key, each in inputs.items() if key.removesuffix("_length") in subset}
    spread = task.deviation if isinstance(task, Regression) else torch.ones(task.size)
    for decision in ("fused", "committee"):
        wanted = model.predict(there, decision)
        assert ((found[decision] - wanted).abs() <= 1e-5 * spread + 1e-7 * wanted.abs()).all()
    for name in subset:
        alone = {key: each for key, each in there.items() if key.removesuffix("_length") == name}
        with torch.no_grad():
            wanted = task.member(model(alone)["fused" if model.unimodal == "masked" else name])
        torch.testing.assert_close(found[f"{name}_head"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("unimodal", ["masked", "head"])
@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("fusion", SHAPES)
def test_the_graph_decides_as_predict_does(fusion: str, count: int, kind: str, unimodal: str) -> None:
    graph = deployable(fusion, count, TASKS[kind], unimodal)
    inputs = examples(fusion, list(graph.input_specs), 4)
    for size in range(1, count + 1):
        for subset in combinations(graph.input_specs, size):
            with torch.no_grad():
                found = graph(flagged(graph, inputs, subset))
            assert list(found) == graph.output_names
            agree(graph, found, inputs, subset)


def test_every_sample_of_a_batch_may_lack_other_sensors() -> None:
    graph = deployable("hybrid", 3, TASKS["classes"])
    names, inputs = list(graph.input_specs), examples("hybrid", list(graph.input_specs), 7)
    patterns = [[name for place, name in enumerate(names) if at >> place & 1] for at in range(1, 8)]
    given = dict(inputs)
    for name in names:
        here = torch.tensor([name in pattern for pattern in patterns])
        rubbish = torch.full_like(inputs[name], torch.nan if inputs[name].is_floating_point() else 10**6)
        given[name] = inputs[name].where(here.reshape(-1, *[1] * (inputs[name].dim() - 1)), rubbish)
        given[f"{name}_valid"] = here
    with torch.no_grad():
        found = graph(given)
    for row, pattern in enumerate(patterns):
        alone = {name: each[row : row + 1] for name, each in inputs.items()}
        agree(graph, {name: each[row : row + 1] for name, each in found.items()}, alone, tuple(pattern))


# Any two of fusion, number of sensors and task meet; all three are above, where nothing is exported. The exporter goes
# from operation to operation: those of encoders and trunk are of the first two, those of the decision of the last two.
# A second layer has those of the first, so one model with two is enough.
EXPORTED = [
    ("hybrid", 2, "classes", 2),
    *(
        pytest.param(fusion, count, kind, 1, marks=pytest.mark.slow)
        for fusion, count, kind in (
            ("early", 3, "classes"),
            ("hybrid", 4, "classes"),
            ("early", 2, "labels"),
            ("hybrid", 3, "labels"),
            ("early", 4, "labels"),
            ("hybrid", 2, "angle"),
            ("hybrid", 3, "angle"),
            ("early", 4, "angle"),
        )
    ),
]


@pytest.mark.parametrize(("fusion", "count", "kind", "depth"), EXPORTED)
def test_onnx_equals_predict_for_every_subset_of_the_sensors(
    fusion: str, count: int, kind: str, depth: int, tmp_path: Path
) -> None:
    graph = deployable(fusion, count, TASKS[kind], depth=depth)
    exported = export(graph, tmp_path, "onnx")
    assert exported.difference is not None
    assert exported.difference <= 1e-5
    run = run_onnx(exported.file)
    for batch in (1, 5):
        inputs = examples(fusion, list(graph.input_specs), batch)
        for size in range(1, count + 1):
            for subset in combinations(graph.input_specs, size):
                agree(graph, run(flagged(graph, inputs, subset)), inputs, subset)

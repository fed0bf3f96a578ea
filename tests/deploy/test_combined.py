"""A combined model is exported like any other: the graph answers as PyTorch does, whichever sensors there are."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from equipoise.deploy import Deployable, export
from equipoise.deploy.exporting import run_onnx
from equipoise.models import MLP, CNN1d, LateFusion, fit_committee
from equipoise.models.combine import combined
from equipoise.models.late_fusion import Decision
from equipoise.models.task import Classification, MultiLabel, Regression, Task

TASKS: dict[str, Task] = {
    "regression": Regression(["x", "y"], torch.tensor([0.0, -50.0]), torch.tensor([1.0, 3.0])),
    "classes": Classification(["a", "b", "c"]),
    "labels": MultiLabel(["cough", "fever"]),
}
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("classes", "labels")]


def drawn(samples: int) -> dict[str, Tensor]:
    return {"a": torch.randn(samples, 3), "b": torch.randn(samples, 2, 6)}


@pytest.mark.parametrize("kind", ["regression", *SLOW])
def test_onnx_equals_predict_on_every_subset_of_the_sensors(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    task = TASKS[kind]
    models = [LateFusion({"a": MLP(3, size), "b": CNN1d(2, 5, 4)}, task=task).eval() for size in (4, 7)]
    weights = torch.rand(6)
    model = combined(models, weights / weights.sum())
    if isinstance(task, Regression):
        fit_committee(model, (drawn(60), task.member(torch.randn(60, 2))), keep="drawn")
    exported = export(Deployable(model, examples=drawn(2)), tmp_path)
    assert exported.difference is not None
    assert exported.difference <= 1e-5
    run, inputs = run_onnx(exported.file), drawn(7)
    decisions: tuple[Decision, Decision] = ("committee", "fused")
    for size, decision in itertools.product((1, 2), decisions):
        for subset in itertools.combinations(inputs, size):
            given: dict[str, Tensor] = {}
            for name, x in inputs.items():
                given[name] = x if name in subset else torch.full_like(x, math.nan)
                given[f"{name}_valid"] = torch.full((len(x),), name in subset)
            wanted = model.predict({name: inputs[name] for name in subset}, decision)
            torch.testing.assert_close(run(given)[decision], wanted, rtol=1e-4, atol=1e-5)

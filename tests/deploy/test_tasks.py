"""Regression and labels, from a run to its files: graph, loaded run and description agree for every task."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise
from deploy.shipped_runs import recorded, rows_of, trained
from equipoise.data.splits import Splits
from equipoise.deploy import Deployable, ExportedModel, Predictor, export, load_saved_model
from equipoise.deploy.card import write_card
from equipoise.deploy.exporting import compare, run_onnx
from equipoise.models import LateFusion, fit_committee
from equipoise.models.encoders import MLP, CNN1d
from equipoise.models.late_fusion import Decision
from equipoise.models.metrics import METRICS
from equipoise.models.task import Classification, MultiLabel, Regression, Task
from equipoise.study.job import DESCRIPTION
from equipoise.util.errors import BadInput

SAMPLES = 150
TASKS: dict[str, Any] = {
    "angle": Regression(["angle"], torch.tensor([1000.0]), torch.tensor([3.0])),
    "place": Regression(["x", "y"], torch.tensor([0.0, -5e4]), torch.tensor([1e-6, 1e3])),
    "labels": MultiLabel(["cough", "fever", "rash"]),
    "classes": Classification(["a", "b", "c"]),
}


def deployable(task: Task, sensors: int = 3) -> Deployable:
    """A model with a fitted committee, and calibrated intervals where the task has some."""
    torch.manual_seed(0)
    encoders: dict[str, nn.Module] = {"a": MLP(3, 5), "b": CNN1d(2, 5, 4)}
    encoders |= {f"c{number}": MLP(2, 4) for number in range(sensors - 2)}
    model = LateFusion(encoders, task=task)
    inputs = examples(sensors, 60)
    answer = {"classes": torch.randint(3, (60,)), "labels": torch.randint(2, (60, task.size)).float()}.get(task.kind)
    if isinstance(task, Regression):
        answer = task.mean + task.deviation * torch.randn(60, task.size)
    assert answer is not None
    fit_committee(model, (inputs, answer))
    return Deployable(model.eval(), examples=inputs)


def examples(sensors: int, batch: int) -> dict[str, Tensor]:
    more = {f"c{number}": torch.randn(batch, 2) for number in range(sensors - 2)}
    return {"a": torch.randn(batch, 3), "b": torch.randn(batch, 2, 6), **more}


def flagged(inputs: dict[str, Tensor], subset: tuple[str, ...]) -> dict[str, Tensor]:
    given = {}
    for name, values in inputs.items():
        given[name] = values if name in subset else torch.full_like(values, torch.nan)
        given[f"{name}_valid"] = torch.full((len(values),), name in subset)
    return given


@pytest.mark.parametrize(
    "name", ["angle", *(pytest.param(name, marks=pytest.mark.slow) for name in ("place", "labels", "classes"))]
)
def test_onnx_equals_predict_for_every_subset_of_the_sensors(name: str, tmp_path: Path) -> None:
    graph, task = deployable(TASKS[name]), TASKS[name]
    exported = export(graph, tmp_path, "onnx")
    assert exported.difference is not None
    assert exported.difference <= 1e-5
    assert exported.outputs == tuple(graph.output_names)
    run = run_onnx(exported.file)
    for batch in (1, 7):
        inputs = examples(3, batch)
        for size in (1, 2, 3):
            for subset in itertools.combinations(inputs, size):
                found = run(flagged(inputs, subset))
                there = {key: inputs[key] for key in subset}
                for place, decision in enumerate(("fused", "committee")):
                    wanted = graph.model.predict(there, decision)  # ty: ignore[invalid-argument-type]
                    spread = task.deviation if isinstance(task, Regression) else torch.ones(task.size)
                    assert ((found[decision] - wanted).abs() <= 1e-5 * spread + 1e-7 * wanted.abs()).all()
                    if task.kind != "regression":
                        assert f"{decision}_low" not in found
                        continue
                    row = sum(2**at for at, sensor in enumerate(inputs) if sensor in subset)
                    radius = graph.model.radii[place, row]
                    assert radius.isfinite().all()
                    for end, sign in (("low", -1), ("high", 1)):
                        off = found[f"{decision}_{end}"] - (wanted + sign * radius)
                        assert (off.abs() <= 1e-5 * spread + 1e-6 * wanted.abs()).all()


@pytest.mark.parametrize("name", TASKS)
def test_without_any_sensor_nothing_is_pretended(name: str) -> None:
    graph, task = deployable(TASKS[name]), TASKS[name]
    with torch.no_grad():
        found = graph(flagged(examples(3, 2), ()))
        full = graph(flagged(examples(3, 2), ("a", "b", "c0")))
    even = torch.full((task.size,), 1 / 3 if task.kind == "classes" else 0.5)
    wanted = task.mean if isinstance(task, Regression) else even
    for decision in ("committee", "fused"):
        torch.testing.assert_close(found[decision], torch.stack([wanted, wanted]))
        if isinstance(task, Regression):
            wide, narrow = (each[f"{decision}_high"] - each[f"{decision}_low"] for each in (found, full))
            assert (wide >= narrow).all()
            # The mean is off by about as much as targets deviate, whatever their distance from zero.
            assert (wide < 6 * task.deviation).all()


def test_intervals_of_many_sensors() -> None:
    graph = deployable(TASKS["angle"], sensors=9)
    inputs, names = examples(9, 1), list(examples(9, 1))
    for subset, row in ((names, 0), (names[1:], 1), (names[:4] + names[5:], 5), (names[2:], 10), (names[:1], 10)):
        with torch.no_grad():
            found = graph(flagged(inputs, tuple(subset)))
        width = found["committee_high"] - found["committee_low"]
        torch.testing.assert_close(width, 2 * graph.model.radii[1, row : row + 1], atol=1e-3, rtol=0)


def test_an_interval_that_is_not_calibrated_has_no_ends_and_is_compared_all_the_same() -> None:
    model = LateFusion({"a": MLP(3, 5), "b": MLP(2, 5)}, task=Regression(["angle"])).eval()
    inputs = {"a": torch.randn(2, 3), "b": torch.randn(2, 2)}
    graph = Deployable(model, examples=inputs)
    with torch.no_grad():
        assert compare(graph, graph).size <= 1e-6
        found = graph(flagged(inputs, ("a", "b")))
    assert (found["committee_low"] == -math.inf).all()
    assert (found["committee_high"] == math.inf).all()


def test_a_model_that_knows_no_task_is_not_shipped() -> None:
    model = LateFusion({"a": MLP(3, 5)}, head=lambda size: nn.Linear(size, 1))
    with pytest.raises(ValueError, match="knows its task"):
        Deployable(model, examples={"a": torch.zeros(1, 3)})


# -- runs --


def answers(kind: str) -> Any:
    random = np.random.default_rng(0)
    if kind == "labels":
        return (random.random((SAMPLES, 3)) < 0.4).astype(int)
    return 50 + 20 * random.normal(size=SAMPLES if kind == "number" else (SAMPLES, 2))


@pytest.fixture(scope="module", params=["number", "numbers", "labels"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Predictor, Splits]:
    folder = tmp_path_factory.mktemp("run")
    splits = trained(folder, recorded(SAMPLES), answers(request.param))
    return request.param, equipoise.load(folder), splits


def test_a_loaded_run_answers_as_the_model_does(run: tuple[str, Predictor, Splits]) -> None:
    kind, predictor, splits = run
    raw = rows_of(recorded(SAMPLES), range(2, SAMPLES, 3))
    inputs = splits.test.ready().inputs
    decisions: tuple[Decision, Decision] = ("committee", "fused")
    for subset in (tuple(raw), ("vector", "speech"), ("camera",)):
        kept = {key: value for key, value in inputs.items() if key.removesuffix("_length") in subset}
        for decision in decisions:
            found = predictor.predict({name: raw[name] for name in subset}, decision)
            wanted = predictor.saved.model.predict(kept, decision).numpy()
            assert found.names == splits.task.names
            if kind == "labels":
                np.testing.assert_allclose(found.probabilities, wanted, atol=1e-6)
                said = [[name for name, value in zip(found.names, row, strict=True) if value > 0.5] for row in wanted]
                assert found.answer == said
                assert found.values is found.low is found.high is None
            else:
                np.testing.assert_allclose(found.values, wanted, atol=1e-4)
                np.testing.assert_allclose((found.high + found.low) / 2, wanted, atol=1e-4)
                assert (found.high > found.low).all()
                assert found.probabilities is None


def test_fewer_sensors_give_wider_intervals(run: tuple[str, Predictor, Splits]) -> None:
    kind, predictor, _ = run
    if kind == "labels":
        pytest.skip("no intervals")
    raw = {name: values[0] for name, values in recorded(SAMPLES).items()}
    every, two, none = (predictor.predict({name: raw.get(name) if name in some else None for name in raw})
                        for some in (tuple(raw), ("vector", "heat"), ("heat",)))  # fmt: skip
    assert (two.high - two.low >= every.high - every.low).all()
    assert (none.high - none.low >= two.high - two.low).all()


def test_the_card_speaks_of_the_task(run: tuple[str, Predictor, Splits], tmp_path: Path) -> None:
    kind, predictor, _ = run
    saved, graph = predictor.saved, predictor.graph
    exported = ExportedModel(tmp_path / "model.onnx", "onnx", 1e-7, "all", (), tuple(graph.output_names))
    _, page = write_card(saved, exported, tmp_path)
    text, plain = page.read_text(), json.loads((tmp_path / "card.json").read_text())
    assert plain["task"] == saved.task.as_dict()
    told = [each["name"] for each in plain["outputs"]]
    if kind == "labels":
        assert "Labels, any number of them at once, in order: label_0, label_1, label_2." in text
        assert "Macro-F1 in % on the test part" in text
        assert "every label has even odds" in text
        assert "committee_low" not in told
    else:
        assert "Numbers, in order: label" in text
        assert "Mean absolute error on the test part" in text
        assert f"| committee | {saved.row['test']['committee']:.4g} [" in text
        assert f"{100 * saved.row['test']['committee_coverage']:.1f} %" in text
        assert "split conformal" in text
        assert {"committee_low", "committee_high", "fused_low", "fused_high"} <= {*told}
    assert "probab" not in text or kind == "labels"
    plainly = [line for line in text.partition("## Made with")[0].splitlines() if not line.startswith("**Warning:**")]
    assert "class" not in "\n".join(plainly)


def test_the_description_says_the_task_and_contradictions_are_refused(
    run: tuple[str, Predictor, Splits], tmp_path: Path
) -> None:
    kind, predictor, _ = run
    folder = predictor.saved.folder
    content = json.loads((folder / DESCRIPTION).read_text())
    assert content["format"] == 2
    assert content["task"]["kind"] == ("labels" if kind == "labels" else "regression")
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    wrong: dict[str, dict[str, Any]] = {
        "task.kind": {"format": 1},
        "task.names": {"classes": ["other"]},
        "row.task": {"row": {**content["row"], "task": "classes"}},
        "row.metric": {"row": {**content["row"], "metric": "auroc" if kind != "labels" else "mae"}},
        "task.loss": {"task": {**content["task"], **({"loss": "mse"} if kind == "labels" else {"loss": "evil"})}},
        "format 1 or 2": {"format": 3},
    }
    for told, change in wrong.items():
        (tmp_path / DESCRIPTION).write_text(json.dumps({**content, **change}))
        with pytest.raises(BadInput, match=told):
            load_saved_model(tmp_path)
    without = {key: value for key, value in content.items() if key != "task"}
    (tmp_path / DESCRIPTION).write_text(json.dumps(without))
    with pytest.raises(BadInput, match=r"task\.kind"):
        load_saved_model(tmp_path)


@pytest.mark.parametrize("kind", ["classes", "number"])
def test_a_run_with_gaps_reaches_its_figures_on_raw_samples(kind: str, tmp_path: Path) -> None:
    arrays = {name: values for name, values in recorded(SAMPLES).items() if name in ("vector", "series", "camera")}
    gone = np.random.default_rng(1).random((3, SAMPLES)) < np.array([[0.3], [0.2], [0.0]])
    arrays["vector"] = np.where(gone[0][:, None], np.nan, arrays["vector"])
    arrays["camera_present"] = ~gone[1]
    label = answers("number") if kind == "number" else np.arange(SAMPLES) % 7 % 3
    splits = trained(tmp_path, arrays, label)
    predictor = equipoise.load(tmp_path)
    test = range(2, SAMPLES, 3)
    found = predictor.predict({name: np.asarray(values)[test] for name, values in arrays.items()})
    there = [[not gone[0, row], True, not gone[1, row]] for row in test]
    assert found.sensors == [tuple(np.array(["vector", "series", "camera"])[row].tolist()) for row in there]
    answer = torch.from_numpy(found.values if kind == "number" else found.probabilities)
    metric = METRICS[predictor.saved.row["metric"]]
    value = metric(answer, splits.test.label, splits.task)
    assert value == pytest.approx(predictor.saved.row["test"]["committee"], rel=1e-5)
    if kind == "number":
        inside = ((found.low <= splits.test.label.numpy()) & (splits.test.label.numpy() <= found.high)).mean()
        assert inside == pytest.approx(predictor.saved.row["test"]["committee_coverage"])

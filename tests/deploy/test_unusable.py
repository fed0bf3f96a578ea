"""Numbers that no model can compute with, weights that are none, and answers far outside of the training labels."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import equipoise
from deploy.shipped_runs import recorded, rows_of, trained
from equipoise.deploy import Deployable, InputSpec, Prediction, Predictor, export, exporting
from equipoise.models import LateFusion
from equipoise.models.own_model import OwnModel
from equipoise.models.task import Regression
from equipoise.util.errors import BadInput

SAMPLES = 60
SENSORS = ("vector", "heat", "series")
HUGE = (1e25, 3e30, 1e38, 3.3e38)


def sensors(seed: int = 0) -> dict[str, Any]:
    return {name: values for name, values in recorded(seed=seed).items() if name in SENSORS}


def labels(kind: str) -> np.ndarray:
    number = np.arange(SAMPLES)
    if kind == "classes":
        return np.array(["walk", "run", "rest"])[number % 7 % 3]
    if kind == "labels":
        return np.stack([number % 2, number // 2 % 2, number // 3 % 2], axis=1)
    return np.linspace(2, 404, SAMPLES)


@pytest.fixture(scope="module", params=["classes", "labels", "number", "closed form"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    kind = "classes" if request.param == "closed form" else request.param
    trained(folder, sensors(), labels(kind), method="instant" if request.param == "closed form" else "mimo")
    return folder


@pytest.fixture
def model(folder: Path) -> Predictor:
    return equipoise.load(folder)


def numbers_of(answer: Prediction) -> np.ndarray:
    return answer.values if answer.probabilities is None else answer.probabilities


@pytest.mark.parametrize("sensor", SENSORS)
@pytest.mark.parametrize("decision", ["committee", "fused"])
def test_a_reading_that_is_too_large_counts_as_missing_and_is_named(
    model: Predictor, sensor: str, decision: Any
) -> None:
    """In a batch in which every sample has another reading, of any size, at any place, of either sign."""
    random = np.random.default_rng(0)
    sizes = np.array([*(10.0 ** np.arange(0, 39)), *HUGE])
    sizes[sizes > 3.4e38] = 3.4e38
    batch = rows_of(sensors(1), np.arange(len(sizes)) % SAMPLES)
    for row, size in enumerate(sizes):
        own = np.array(batch[sensor][row], np.float32)
        own.reshape(-1)[random.integers(own.size)] = random.choice([-1, 1]) * size
        batch[sensor][row] = own
    found = model.predict(batch, decision)
    assert np.isfinite(numbers_of(found)).all()
    if model.kind == "classes":
        np.testing.assert_allclose(numbers_of(found).sum(axis=1), 1, atol=1e-5)
    others = tuple(name for name in SENSORS if name != sensor)
    without = model.predict({**batch, sensor: None}, decision)
    for row, size in enumerate(sizes):
        gone = found.unusable[row] == (sensor,)
        assert found.unusable[row] == ((sensor,) if gone else ())
        assert found.sensors[row] == (others if gone else SENSORS)
        assert gone or size < 1e25
        assert not gone or size > 1e6
        if gone:
            np.testing.assert_allclose(numbers_of(found)[row], numbers_of(without)[row], rtol=1e-5, atol=1e-5)
    one = model.predict({name: values[-1] for name, values in batch.items()}, decision)
    assert (one.sensors, one.unusable) == (others, (sensor,))
    assert one.as_dict()["unusable"] == [sensor]
    assert one.columns()["unusable"] == [sensor]


def test_all_sensors_too_large_is_a_sample_without_any(model: Predictor) -> None:
    huge = {name: np.full_like(np.asarray(values[0], np.float32), 1e30) for name, values in sensors().items()}
    found, nothing = model.predict(huge), model.predict({})
    assert (found.sensors, found.unusable) == ((), SENSORS)
    np.testing.assert_array_equal(numbers_of(found), numbers_of(nothing))
    assert nothing.unusable == ()
    if model.kind == "regression":
        assert np.isclose(numbers_of(nothing), labels("number")[np.arange(SAMPLES) % 3 == 0].mean(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_an_exported_file_answers_as_predict_does(folder: Path, to: str, tmp_path: Path) -> None:
    """Also to NaN under a flag that says that the sensor is there."""
    graph = equipoise.load(folder).saved.deployable().eval()
    written = export(graph, tmp_path, to)
    run = exporting.run_onnx(written.file) if to == "onnx" else torch.export.load(written.file).module()
    inputs = graph.examples(8, torch.Generator().manual_seed(1))
    for row, name in enumerate(SENSORS):
        inputs[name][row].view(-1)[0] = (1e25, math.nan, math.inf)[row]
        inputs[name][3] = 1e30
    inputs["heat_valid"][4] = False
    with torch.no_grad():
        found, expected = run(inputs), graph(inputs)
    used = torch.stack([expected[f"{name}_used"] for name in SENSORS], dim=1)
    wanted = torch.ones(8, 3, dtype=torch.bool)
    wanted[[0, 1, 2, 4], [0, 1, 2, 1]] = False
    wanted[3] = False
    assert torch.equal(used, wanted)
    for name, value in expected.items():
        if value.dtype == torch.bool:
            assert torch.equal(found[name], value)
        else:
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4, equal_nan=False)


class Exploding(nn.Module):
    """Features that are infinite long before the input is."""

    features = 3

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3].exp()


def test_features_that_are_not_finite_are_found_behind_the_encoder() -> None:
    torch.manual_seed(0)
    model = LateFusion({"a": Exploding(), "b": nn.Linear(4, 3)}, classes=3, features={"b": 3}).eval()
    graph = Deployable(model, {"a": InputSpec((4,)), "b": InputSpec((4,))})
    inputs = graph.examples(3, torch.Generator().manual_seed(0))
    inputs["a"][1, 0] = 100.0  # exp(100) is beyond 32 bits
    with torch.no_grad():
        found = graph(inputs)
    assert found["a_used"].tolist() == [True, False, True]
    assert found["b_used"].all()
    for decision in ("fused", "committee"):
        expected = model.predict({"b": inputs["b"][1:2]}, decision)
        torch.testing.assert_close(found[decision][1:2], expected)
        rest = model.predict({"a": inputs["a"][[0, 2]], "b": inputs["b"][[0, 2]]}, decision)
        torch.testing.assert_close(found[decision][[0, 2]], rest)


class Whole(nn.Module):
    """A model of one's own, without a vector per sensor."""

    def __init__(self) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)})

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: self.encoders[name](inputs[name].exp()) for name in ("a", "b")}
        return {"fused": own["a"] * own["b"], **own}


def test_a_model_whose_outputs_are_not_finite_answers_as_without_sensors() -> None:
    torch.manual_seed(0)
    task = Regression(["angle"], torch.tensor([7.0]), torch.tensor([2.0]))
    graph = Deployable(
        OwnModel(Whole(), {"a": (2,), "b": (2,)}, task).eval(), {"a": InputSpec((2,)), "b": InputSpec((2,))}
    )
    inputs = graph.examples(3, torch.Generator().manual_seed(0))
    inputs["a"][0, 0], inputs["a"][1, 0] = 100.0, 1e20
    with torch.no_grad():
        found = graph(inputs)
    assert found["a_used"].tolist() == [False, False, True]
    assert found["b_used"].tolist() == [False, True, True]
    assert found["committee"][0] == 7
    assert found["fused"][0] == 7
    assert all(value.isfinite().all() for name, value in found.items() if not name.endswith(("_low", "_high")))


# -- what is refused when it is loaded --


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(folder: Path, bad: float, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    plain = sorted(key for key, tensor in weights.items() if tensor.is_floating_point() and key != "radii")
    chosen = np.random.default_rng(0).choice(plain, 2, replace=False).tolist()
    place = copied(folder, tmp_path / "run")
    for key in chosen:
        weights[key] = weights[key].clone()
        weights[key].view(-1)[-1] = bad
    save_file(weights, place / "model.safetensors")
    with pytest.raises(BadInput) as caught:
        equipoise.load(place)
    for key in chosen:
        assert f"expected finite numbers in {key}, found NaN or infinity in 1 of {weights[key].numel():,}" in str(
            caught.value
        )


def test_intervals_that_have_no_end_are_no_broken_weights(tmp_path: Path) -> None:
    trained(tmp_path, sensors(), labels("number"))
    weights = load_file(tmp_path / "model.safetensors")
    weights["radii"] = torch.full_like(weights["radii"], math.inf)
    save_file(weights, tmp_path / "model.safetensors")
    assert equipoise.load(tmp_path).predict({}).as_dict()["high"] == {"label": None}
    weights["radii"][0, 0, 0] = math.nan
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match="expected finite numbers in radii"):
        equipoise.load(tmp_path)


def test_weights_with_which_nothing_is_finite_are_refused(tmp_path: Path) -> None:
    trained(tmp_path, sensors(), labels("classes"))
    weights = load_file(tmp_path / "model.safetensors")
    for key, tensor in weights.items():
        if key.startswith("encoders.vector") and tensor.is_floating_point():
            weights[key] = torch.full_like(tensor, 3e38)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match=r"vector: expected .* to give finite answers to ordinary numbers of it"):
        equipoise.load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"), [("mean", 1e299), ("mean", -1e39), ("deviation", 1e299), ("deviation", 1e-60)]
)
def test_scales_that_32_bits_do_not_hold_are_refused(folder: Path, field: str, value: float, tmp_path: Path) -> None:
    place = copied(folder, tmp_path / "run")
    content = json.loads((place / "model.json").read_text())
    content["inputs"]["vector"][field][2] = value
    (place / "model.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=rf"inputs\.vector\.{field}\[2\]: expected a number"):
        equipoise.load(place)


# -- numbers outside of the training labels --


def test_far_is_beyond_the_range_by_half_of_its_width() -> None:
    task = Regression(["angle", "speed"], ranges=[[0, 10], [-1, 1]])
    answers = torch.tensor([[15.0, 2.0], [15.1, 0.0], [-5.1, -2.1], [-5.0, 2.1]])
    assert task.far(answers, 0.5).tolist() == [[False, False], [True, False], [True, True], [False, True]]
    assert not Regression(["angle"]).far(torch.tensor([[1e30]]), 0.5).any()


def test_numbers_far_outside_of_the_training_labels_are_flagged(tmp_path: Path) -> None:
    label, part = labels("number"), np.arange(SAMPLES) % 3
    trained(tmp_path, sensors(), label, method="instant")
    content = json.loads((tmp_path / "model.json").read_text())
    least, most = float(np.float32(label[part == 0].min())), float(np.float32(label[part == 0].max()))
    assert content["task"]["ranges"] == [[least, most]]
    model = equipoise.load(tmp_path)
    near = model.predict(sensors())
    margin = (most - least) / 2
    assert near.outside == [("label",) if not least - margin <= value <= most + margin else () for value in near.answer]
    content["task"]["ranges"] = [[1e6, 1e6 + 1]]
    (tmp_path / "model.json").write_text(json.dumps(content))
    far = equipoise.load(tmp_path).predict(sensors())
    assert far.outside == [("label",)] * SAMPLES
    assert far.columns()["outside"] == ["label"] * SAMPLES
    assert far.as_dict()["outside"] == [["label"]] * SAMPLES
    for ranges in ([[2, 1]], [[1, 2], [1, 2]], [[1]], [["a", 2]], [[1e308, 1e309]]):
        content["task"]["ranges"] = ranges
        (tmp_path / "model.json").write_text(json.dumps(content))
        with pytest.raises(BadInput, match=r"task\.ranges|damage"):
            equipoise.load(tmp_path)


def test_classes_have_no_outside(model: Predictor) -> None:
    found = model.predict({})
    assert (found.outside is None) == (model.kind != "regression")
    assert ("outside" in found.columns()) == (model.kind == "regression")

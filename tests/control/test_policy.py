"""Policies: predictions by hand, sensors left out, folders that are read back to the bit, and temporal ensembling."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from control.made_data import HORIZON, first_rows, made_up_demonstrations, untrained
from equipoise import EW, MSL
from equipoise.control import policy as policy_module
from equipoise.control.cloning import SENSORS
from equipoise.control.demonstrations import Demonstrations
from equipoise.control.policy import DESCRIPTION, KEPT, MONITOR, WEIGHTS, Ensembling, Policy
from equipoise.control.study import METHODS, lines
from equipoise.deploy.monitor import SensorMonitor
from equipoise.study.registry import all_methods
from equipoise.util.errors import BadInput
from mutated_json import mutated_json

LENGTHS = [9, 12, 10, 11, 14]
NUMBERS = 3 * HORIZON


@pytest.fixture(scope="module")
def demonstrations() -> Demonstrations:
    return made_up_demonstrations(LENGTHS)


@pytest.fixture(scope="module")
def policy(demonstrations: Demonstrations) -> Policy:
    made, _ = untrained(demonstrations)
    made.model.committee.copy_(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    made.model.radii.copy_(torch.rand(made.model.radii.shape, generator=torch.Generator().manual_seed(0)))
    return made


def same(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


# -- predictions --


def test_prediction_is_that_of_the_model_by_hand(policy: Policy, demonstrations: Demonstrations) -> None:
    seen, learnt = first_rows(demonstrations, slice(20, 25)), slice(0, sum(LENGTHS[:-2]))
    inputs = {"camera": seen["camera"].float() / 255}
    for name, axes in (("proprioception", 0), ("force", (0, 2))):
        own = torch.from_numpy(getattr(demonstrations, name)[learnt]).double()
        shape = [1, -1, *[1] * (own.dim() - 2)]
        mean, deviation = own.mean(axes).reshape(shape), own.std(axes).reshape(shape)
        inputs[name] = ((seen[name] - mean) / deviation).float()
    model = policy.model
    with torch.no_grad():
        outputs = model(inputs)
    members = {name: model.known_task().member(output) for name, output in outputs.items()}
    predicted = policy.predict(seen)
    assert torch.allclose(predicted.fused, members["fused"], atol=1e-5)
    assert torch.allclose(predicted.heads, torch.stack([members[name] for name in SENSORS], 1), atol=1e-5)
    voted = 0.4 * members["fused"] + 0.3 * members["proprioception"] + 0.2 * members["camera"] + 0.1 * members["force"]
    assert torch.allclose(predicted.committee, voted, atol=1e-5)
    assert torch.equal(predicted.radius, model.radii[1, 0b111].expand(5, NUMBERS))
    assert not predicted.fused.requires_grad
    assert predicted.fused.std(dim=0).min() > 0  # different observations, different actions


def test_predictions_are_in_the_units_of_actions(demonstrations: Demonstrations) -> None:
    """Ten times the actions: the same weights say ten times as much."""
    plain, _ = untrained(demonstrations)
    larger, _ = untrained(made_up_demonstrations(LENGTHS, action=10 * demonstrations.action))
    seen = first_rows(demonstrations, slice(0, 4))
    assert torch.allclose(larger.predict(seen).fused, 10 * plain.predict(seen).fused, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fusion", ["concat", "hybrid"])
@pytest.mark.parametrize("lost", [("camera",), ("force",), ("proprioception", "camera")])
def test_a_missing_sensor_is_left_out_where_it_is_missing(
    demonstrations: Demonstrations, fusion: str, lost: tuple[str, ...]
) -> None:
    policy, _ = untrained(demonstrations, fusion=fusion)
    policy.model.committee.copy_(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    weights, sensors = {"proprioception": 0.3, "camera": 0.2, "force": 0.1}, [*policy.sensors]
    seen, rows = first_rows(demonstrations, slice(0, 4)), torch.tensor([True, False, True, False])
    masks = dict.fromkeys(lost, rows)
    predicted, whole = policy.predict(seen, masks), policy.predict(seen)
    odd = {name: (values.flip(0) if name in lost else values) for name, values in seen.items()}
    assert torch.allclose(predicted.fused[rows], whole.fused[rows], atol=1e-5)
    assert torch.allclose(predicted.committee[rows], whole.committee[rows], atol=1e-5)
    again = policy.predict(odd, masks)
    assert torch.allclose(again.fused[~rows], predicted.fused[~rows], atol=1e-6)
    assert torch.allclose(again.committee[~rows], predicted.committee[~rows], atol=1e-6)
    assert not torch.allclose(predicted.fused[~rows], whole.fused[~rows], atol=1e-3)
    without = policy.model({name: value for name, value in policy.inputs(seen).items() if name not in lost})
    task = policy.model.known_task()
    assert torch.allclose(predicted.fused[~rows], task.member(without["fused"])[~rows], atol=1e-5)
    left = {name: weight for name, weight in weights.items() if name not in lost}
    said = torch.stack([weight * predicted.heads[:, sensors.index(name)] for name, weight in left.items()])
    vote = said.sum(dim=0) / sum(left.values())
    assert torch.allclose(predicted.committee[~rows], vote[~rows], atol=1e-5)


def test_the_radius_is_that_of_the_sensors_at_hand(policy: Policy, demonstrations: Demonstrations) -> None:
    masks = {"camera": torch.tensor([True, False]), "force": torch.tensor([False, False])}
    radius = policy.predict(first_rows(demonstrations, slice(0, 2)), masks).radius
    assert torch.equal(radius, torch.stack([policy.model.radii[1, 0b011], policy.model.radii[1, 0b001]]))


def test_sensors_that_a_policy_does_not_have_are_not_read(demonstrations: Demonstrations) -> None:
    policy, _ = untrained(demonstrations, sensors=("force",))
    seen = first_rows(demonstrations, slice(0, 3))
    nowhere = {"camera": torch.zeros(3, dtype=torch.bool)}
    assert policy.sensors == ("force",)
    assert policy.horizon == HORIZON
    assert same(policy.predict(seen, nowhere), policy.predict({"force": seen["force"]}))


# -- folders --


@pytest.mark.parametrize(
    ("method", "fusion"),
    [*((line.label, "concat") for line in lines(["all"], alone=False, controls=False)), *product(METHODS, ["hybrid"])],
)
def test_a_policy_of_any_method_is_read_back_to_the_bit(
    demonstrations: Demonstrations, tmp_path: Path, method: str, fusion: str
) -> None:
    policy, _ = untrained(demonstrations, balancer=all_methods()[method].make(), fusion=fusion)
    policy.save(tmp_path)
    read, seen = Policy.load(tmp_path), first_rows(demonstrations, slice(0, 6))
    lost = {"camera": torch.arange(6) % 2 == 0}
    assert same(read.predict(seen), policy.predict(seen))
    assert same(read.predict(seen, lost), policy.predict(seen, lost))
    assert read.model.unimodal == policy.model.unimodal
    assert {name: getattr(read.settings, name) for name in KEPT} == {
        name: getattr(policy.settings, name) for name in KEPT
    }


def test_objectives_differ_in_what_is_kept(demonstrations: Demonstrations, tmp_path: Path) -> None:
    kinds = {}
    for fusion, objective, balancer in (
        ("concat", "auto", EW()),
        ("concat", "auto", MSL()),
        ("hybrid", "auto", EW()),
        ("hybrid", "auto", MSL()),
        ("hybrid", "head", EW()),
    ):
        folder = tmp_path / f"{fusion}-{objective}-{balancer}"
        untrained(demonstrations, balancer=balancer, fusion=fusion, objective=objective)[0].save(folder)
        kinds[fusion, objective, type(balancer)] = Policy.load(folder).model.unimodal
    assert kinds == {
        ("concat", "auto", EW): "head",
        ("concat", "auto", MSL): "detached",
        ("hybrid", "auto", EW): "masked",
        ("hybrid", "auto", MSL): "masked_detached",
        ("hybrid", "head", EW): "head",
    }


@pytest.mark.parametrize("sensors", [("camera",), ("proprioception", "force")])
def test_policies_with_fewer_sensors_are_read_back(
    demonstrations: Demonstrations, tmp_path: Path, sensors: tuple[str, ...]
) -> None:
    policy, _ = untrained(demonstrations, sensors=sensors)
    policy.save(tmp_path)
    read, seen = Policy.load(tmp_path), first_rows(demonstrations, slice(0, 6))
    assert read.sensors == sensors
    assert same(read.predict(seen), policy.predict(seen))
    assert read.monitor is None


def test_a_monitor_is_kept_and_leaves_with_its_policy(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = torch.Generator().manual_seed(0)
    heads = {name: torch.randn(60, NUMBERS, generator=random) for name in SENSORS}
    monitor = SensorMonitor.fit(heads, torch.arange(60) // 20, kind="regression")
    policy.watched_by(monitor).save(tmp_path)
    read = Policy.load(tmp_path).monitor
    assert read is not None
    said = {name: values[:7] for name, values in heads.items()}
    assert torch.equal(read.update(said).level, monitor.fresh().update(said).level)

    def killed(_: SensorMonitor, file: Path) -> None:
        file.write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # while the monitor is written: the one before is left
        patch.setattr(SensorMonitor, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            policy.watched_by(monitor).save(tmp_path)
    assert Policy.load(tmp_path).monitor is not None
    policy.save(tmp_path)
    assert Policy.load(tmp_path).monitor is None
    assert Policy.load(tmp_path).to("cpu").monitor is None


def written(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / DESCRIPTION).read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = content
        for parent in parents:
            place = place[parent]
        place[last] = value
    (folder / DESCRIPTION).write_text(json.dumps(content))


@pytest.mark.parametrize(
    "changes",
    [
        {"horizon": HORIZON + 1},
        {"horizon": "many"},
        {"settings__features": 9},
        {"settings__fusion": "magic"},
        {"shapes__force": [6, 11]},
        {"shapes": []},
        {"scales": {"force": [[1.0]]}},
        {"scales": {"force": [[[0.0]], [[0.0]]]}},
        {"scales": {"force": [[[0.0]], [[1e39]]]}},
        {"scales": {"force": [[0.0] * 7, [1.0] * 7]}},
        {"scales": {"force": [None, {}]}},
        {"horizon": 10**6},
        {"horizon": 10**9},
        {"shapes__camera": [3, 60_000, 60_000]},
        {"shapes__camera": [3, 6, 6, 6, 6]},
        {"shapes__force": "six"},
        {"format": 2},
        {"unimodal": None, "settings": {}},
    ],
)
def test_descriptions_that_do_not_fit_are_refused(policy: Policy, tmp_path: Path, changes: dict[str, Any]) -> None:
    policy.save(tmp_path)
    written(tmp_path, **changes)
    with pytest.raises(BadInput, match=r"policy\.(json|safetensors): .*expected") as refused:
        Policy.load(tmp_path)
    assert len(str(refused.value)) < 2_000


def test_sizes_are_compared_before_memory_is_taken(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made on the CPU, where it would take memory, before it is known to fit."""
    policy.save(tmp_path)
    made: list[torch.device] = []
    inner = policy_module.build_model
    monkeypatch.setattr(
        policy_module, "build_model", lambda *given: made.append(torch.empty(0).device) or inner(*given)
    )
    for changes in ({"horizon": HORIZON + 1}, {"horizon": 10**9}, {"shapes__camera": [3, 10**5, 10**5]}):
        before = (tmp_path / DESCRIPTION).read_text()
        written(tmp_path, **changes)
        with pytest.raises(BadInput):
            Policy.load(tmp_path)
        (tmp_path / DESCRIPTION).write_text(before)
    assert {device.type for device in made} <= {"meta"}
    Policy.load(tmp_path)
    assert made[-1].type == "cpu"


def test_numbers_that_are_none_are_refused(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    written(tmp_path, scales__force=[[[float("nan")]] * 6, [[1.0]] * 6])
    with pytest.raises(BadInput, match=r"policy\.json: expected a policy .*NaN is no number"):
        Policy.load(tmp_path)
    for content in ("[" * 200_000, "null", "{}", "1" * 5_000):
        (tmp_path / DESCRIPTION).write_text(content)
        with pytest.raises(BadInput, match=r"policy\.json: expected a policy as Policy\.save writes it, found "):
            Policy.load(tmp_path)


def test_damaged_folders_are_refused(policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="expected a policy"):
        Policy.load(tmp_path)
    policy.save(tmp_path)
    whole = {name: (tmp_path / name).read_bytes() for name in (DESCRIPTION, WEIGHTS)}
    for name, content in whole.items():
        for damaged in (b"", content[: len(content) // 2], b"\xff" + content[1:]):
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(BadInput, match=f"{name}: expected (a policy|the weights)"):
                Policy.load(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(BadInput, match=f"{name}: expected (a policy|the weights)"):
            Policy.load(tmp_path)
        (tmp_path / name).write_bytes(content)
    Policy.load(tmp_path)
    (tmp_path / MONITOR).write_text("{}")
    with pytest.raises(BadInput, match="expected a monitor"):
        Policy.load(tmp_path)


def test_no_code_runs_because_a_file_names_it(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "intruder.py").write_text("import pathlib\npathlib.Path('ran').touch()\nclass Encoder: pass\n")
    policy.save(tmp_path / "policy")
    written(tmp_path / "policy", settings__model="intruder.Encoder")
    assert Policy.load(tmp_path / "policy").settings.model == "auto"
    written(tmp_path / "policy", settings__encoder="intruder.Encoder")
    with pytest.raises(BadInput, match=r"expected an encoder of the package, found 'intruder\.Encoder'"):
        Policy.load(tmp_path / "policy")
    assert not (tmp_path / "ran").exists()


# -- temporal ensembling --


def slow_ensembling(chunks: Tensor, begins: Tensor, decay: float) -> Tensor:
    """The actions of each step, [T, S, 3], from all chunks [T, S, H, 3], by the definition, one number at a time.

    Args:
        chunks: Of each step and episode.
        begins: Whether an episode begins at the step, booleans [T, S].
        decay: Per step of age.
    """
    steps, episodes, horizon, _ = chunks.shape
    actions = torch.zeros(steps, episodes, 3, dtype=torch.float64)
    for now in range(steps):
        for row in range(episodes):
            total, weights, age = torch.zeros(3, dtype=torch.float64), 0.0, 0
            while age < horizon and now - age >= 0:
                total += math.exp(-decay * age) * chunks[now - age, row, age]
                weights += math.exp(-decay * age)
                if begins[now - age, row]:
                    break
                age += 1
            actions[now, row] = total / weights
    return actions


@pytest.mark.parametrize("decay", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("horizon", [1, 2, 8])
def test_ensembling_is_that_of_the_definition(decay: float, horizon: int) -> None:
    random = torch.Generator().manual_seed(horizon)
    chunks = torch.randn(25, 4, horizon, 3, generator=random)
    begins = torch.rand(25, 4, generator=random) < 0.15
    begins[0] = True
    ensembling, actions = Ensembling(4, horizon, decay), []
    for step, now in zip(chunks, begins, strict=True):
        ensembling.reset(now)
        actions.append(ensembling(step.flatten(1)))
    assert torch.allclose(torch.stack(actions).double(), slow_ensembling(chunks, begins, decay), atol=1e-5)


def test_ensembling_by_hand() -> None:
    """Two steps of a horizon of two: the older chunk's second action counts e^−1 beside the newer chunk's first."""
    ensembling = Ensembling(1, 2, decay=1.0)
    first = ensembling(torch.tensor([[1.0, 2.0, 3.0, 10.0, 20.0, 30.0]]))
    second = ensembling(torch.tensor([[0.0, 0.0, 1.0, 7.0, 7.0, 7.0]]))
    assert first.tolist() == [[1.0, 2.0, 3.0]]
    share = math.exp(-1) / (1 + math.exp(-1))
    assert second[0].tolist() == pytest.approx([10 * share, 20 * share, 30 * share + 1 - share])


def test_mutated_policies_are_refused_or_work(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    whole, draw, read = json.loads((tmp_path / DESCRIPTION).read_text()), random.Random(0), 0
    for _ in range(int(os.environ.get("EQUIPOISE_CASES", "150"))):
        (tmp_path / DESCRIPTION).write_bytes(mutated_json(whole, draw))
        with contextlib.suppress(BadInput):
            found = Policy.load(tmp_path)
            seen = {name: torch.zeros(2, *shape) for name, shape in found.shapes.items()}
            assert found.predict(seen).fused.shape == (2, HORIZON * 3)
            read += 1
    assert read >= 5

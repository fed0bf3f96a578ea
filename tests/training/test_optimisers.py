"""Learning rates by depth: every parameter once, deeper is slower, and what a layer is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise import MSL, OGM, LateFusion, encoder_for, layerwise
from equipoise.data.bundled import two_sensors
from equipoise.models import ResNet18
from equipoise.testing import SmallModel, batch, losses_of, names
from equipoise.training.optimisers import check_step, make_optimizer, make_schedule
from equipoise.training.settings import Settings
from equipoise.training.train import Run


def rates(model: nn.Module, decay: float = 0.5, **told: object) -> dict[str, float]:
    """The learning rate of each parameter by name, where heads learn at 1."""
    groups = layerwise(model, 1.0, decay, **told)  # ty: ignore[invalid-argument-type]
    by_identity = {id(tensor): group["lr"] for group in groups for tensor in group["params"]}
    return {name: by_identity[id(tensor)] for name, tensor in model.named_parameters()}


class Ladder(nn.Module):
    """As transformers are built: something first, a list of blocks, a norm, and a map at the end."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.embed = nn.Linear(3, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(blocks))
        self.norm = nn.LayerNorm(4)
        self.out_features = 4


MODELS = {
    "mlp": lambda: LateFusion({"a": encoder_for((3,)), "b": encoder_for((2, 9))}, classes=3),
    "resnet": lambda: LateFusion({"a": ResNet18(1)}, classes=3),
    "ladder": lambda: LateFusion({"a": Ladder(3), "b": Ladder(1)}, classes=3),
    "small": lambda: SmallModel(names(3)),
}


@pytest.mark.parametrize("decay", [0.3, 0.9, 1.0])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_every_parameter_is_in_one_group_and_none_learns_faster_than_the_heads(make: object, decay: float) -> None:
    model = make()  # ty: ignore[call-non-callable]
    groups = layerwise(model, 0.1, decay)
    listed = [id(tensor) for group in groups for tensor in group["params"]]
    assert sorted(listed) == sorted(id(tensor) for tensor in model.parameters())
    assert max(group["lr"] for group in groups) == pytest.approx(0.1)
    assert (min(group["lr"] for group in groups) < 0.1) == (decay < 1)
    decayed = {id(tensor) for group in groups if "weight_decay" not in group for tensor in group["params"]}
    assert decayed == {id(t) for t in model.parameters() if sum(size > 1 for size in t.shape) > 1}
    torch.optim.AdamW(groups, weight_decay=0.05)


def test_a_ladder_has_its_blocks_for_layers() -> None:
    found = rates(LateFusion({"a": Ladder(3)}, classes=3))
    assert found["encoders.a.embed.weight"] == found["encoders.a.token"] == 0.5**4
    assert [found[f"encoders.a.blocks.{number}.0.weight"] for number in range(3)] == [0.5**3, 0.5**2, 0.5]
    assert found["encoders.a.norm.weight"] == found["encoders.a.blocks.2.1.weight"] == 0.5
    assert found["heads.a.weight"] == found["fusion.head.weight"] == 1.0


def test_a_resnet_has_its_blocks_for_layers() -> None:
    found = rates(LateFusion({"a": ResNet18(1)}, classes=3), 0.9)
    assert len({round(rate, 9) for rate in found.values()}) == 1 + 8 + 1


def test_encoders_of_unlike_depth_end_alike() -> None:
    found = rates(LateFusion({"a": Ladder(3), "b": Ladder(1)}, classes=3))
    assert found["encoders.a.blocks.2.0.weight"] == found["encoders.b.blocks.0.0.weight"] == 0.5


def test_a_backbone_with_a_map_behind_it_keeps_its_layers() -> None:
    encoder = nn.Sequential(Ladder(2), nn.Linear(4, 5))
    found = rates(LateFusion({"a": encoder}, classes=3))
    assert found["encoders.a.1.weight"] == 0.5
    assert found["encoders.a.0.blocks.0.0.weight"] == 0.5**3


def test_blocks_of_unlike_parts_are_one_layer_each() -> None:
    def block() -> nn.Module:
        inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 4), nn.LayerNorm(4))
        return nn.ModuleDict({"inner": inner})

    encoder = nn.Sequential(nn.Linear(4, 4), block(), block(), nn.Linear(4, 4))
    found = rates(LateFusion({"a": encoder}, classes=3))
    assert [found[f"encoders.a.{name}.weight"] for name in ("0", "1.inner.0", "1.inner.3", "2.inner.0", "3")] == [
        0.5**4,
        0.5**3,
        0.5**3,
        0.5**2,
        0.5,
    ]


def test_positions_go_with_what_comes_first() -> None:
    encoder = Ladder(2)
    encoder.positions = nn.Parameter(torch.zeros(1, 9, 4))
    found = rates(LateFusion({"a": encoder}, classes=3))
    assert found["encoders.a.positions"] == found["encoders.a.embed.weight"] == 0.5**3


def test_a_shared_layer_learns_as_fast_as_where_it_is_least_deep() -> None:
    shared = nn.Linear(4, 4)
    short, long = nn.Sequential(shared), nn.Sequential(shared, nn.ReLU(), nn.Linear(4, 4))
    found = rates(LateFusion({"a": short, "b": long}, classes=3))
    assert found["encoders.a.0.weight"] == 0.5


def test_encoders_are_told_as_for_attach() -> None:
    model = nn.ModuleDict({"ear": nn.Linear(3, 4), "eye": nn.Linear(3, 4), "decide": nn.Linear(8, 2)})
    assert rates(model, encoders={"sound": model["ear"], "sight": "eye"}) == {
        "ear.weight": 0.5,
        "ear.bias": 0.5,
        "eye.weight": 0.5,
        "eye.bias": 0.5,
        "decide.weight": 1.0,
        "decide.bias": 1.0,
    }
    with pytest.raises(ValueError, match="encoders"):
        layerwise(model, 1.0)


def test_the_rate_may_be_a_tensor() -> None:
    groups = layerwise(SmallModel(names(2)), torch.tensor(0.1), 0.5)
    assert [round(float(group["lr"]), 4) for group in groups] == [0.025, 0.025, 0.05, 0.05, 0.1, 0.1]


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.5])
def test_a_decay_that_is_none_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay should be above zero and at most 1, found {decay}"):
        layerwise(SmallModel(names(2)), 0.1, decay)


def test_updates_are_scaled_group_by_group_under_adam() -> None:
    """A method's factor and the rate of a layer multiply."""
    moved = []
    for decay in (1.0, 0.5):
        model = SmallModel(names(2))
        before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        optimizer = torch.optim.AdamW(layerwise(model, 0.01, decay), weight_decay=0.0)
        balancer = OGM(strength=1.0).attach(model, optimizer=optimizer)
        balancer(losses_of(model, batch(names(2)))).backward()
        optimizer.step()
        moved.append({name: tensor.detach() - before[name] for name, tensor in model.named_parameters()})
    deepest = "encoders.audio.0.weight"
    torch.testing.assert_close(moved[1][deepest], 0.25 * moved[0][deepest])
    assert moved[0][deepest].abs().max() < 0.0099  # of 0.01, had the method not slowed it


# -- the setting --

SLOWED = Settings(layer_decay=0.5, lr=0.1, weight_decay=0.2)


def groups_of(settings: Settings, *, recorded: bool = False) -> dict[str, tuple[float, float]]:
    """Rate and weight decay of every parameter, by name."""
    model = LateFusion({"a": Ladder(2)}, classes=3)
    groups = make_optimizer(model, settings, captured=recorded).param_groups
    found = {id(one): (float(group["lr"]), group["weight_decay"]) for group in groups for one in group["params"]}
    return {name: found[id(one)] for name, one in model.named_parameters()}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_setting_by_hand(optimizer: str, recorded: bool) -> None:
    found = groups_of(SLOWED.changed({"optimizer": optimizer}), recorded=recorded)
    expected = {
        "encoders.a.token": (0.0125, 0.0),
        "encoders.a.embed.weight": (0.0125, 0.2),
        "encoders.a.embed.bias": (0.0125, 0.0),
        "encoders.a.blocks.0.0.weight": (0.025, 0.2),
        "encoders.a.blocks.0.1.weight": (0.025, 0.0),
        "encoders.a.blocks.1.0.weight": (0.05, 0.2),
        "encoders.a.norm.weight": (0.05, 0.0),
        "heads.a.weight": (0.1, 0.2),
        "heads.a.bias": (0.1, 0.0),
        "fusion.head.weight": (0.1, 0.2),
    }
    assert {name: found[name] for name in expected} == {name: pytest.approx(both) for name, both in expected.items()}


def test_without_the_setting_all_is_one_group() -> None:
    assert set(groups_of(SLOWED.changed({"layer_decay": 1.0})).values()) == {(0.1, 0.2)}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(("schedule", "factors"), [("cosine", [1, 0.75, 0.25, 0]), ("step", [1, 1, 0.1, 0.1])])
def test_a_schedule_slows_every_layer_alike(schedule: str, factors: list[float], recorded: bool) -> None:
    settings = SLOWED.changed({"schedule": schedule, "epochs": 3})
    optimizer = make_optimizer(LateFusion({"a": Ladder(2)}, classes=3), settings, captured=recorded)
    moving = make_schedule(optimizer, settings)
    rates = [group["lr"] for group in optimizer.param_groups]
    start = [float(rate) for rate in rates]
    assert sorted(set(start)) == pytest.approx([0.0125, 0.025, 0.05, 0.1])
    for factor in factors:
        now = [float(group["lr"]) for group in optimizer.param_groups]
        assert now == pytest.approx([factor * one for one in start])
        optimizer.step()
        moving.step()
    if recorded:  # a recorded step goes on reading the same tensors
        assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True))


def test_a_step_of_a_run_by_hand() -> None:
    """Without momentum and weight decay, a layer moves by its own rate times the gradient that all would have had."""
    plain = Settings(epochs=1, batch=10**6, lr=0.1, momentum=0.0, weight_decay=0.0, features=8)
    moved = []
    for settings in (plain, plain.changed({"layer_decay": 0.5})):
        run = Run(two_sensors(samples=60), MSL(), settings)
        before = {name: tensor.detach().clone() for name, tensor in run.model.named_parameters()}
        next(run.steps())
        moved.append({name: tensor.detach() - before[name] for name, tensor in run.model.named_parameters()})
    factors = rates(run.model)
    assert len(set(factors.values())) > 2
    for name, factor in factors.items():
        torch.testing.assert_close(moved[1][name], factor * moved[0][name], rtol=1e-3, atol=1e-7)  # weights round


def test_a_safe_step_is_one_for_all_layers() -> None:
    wanted = Settings(step="safe", momentum=0.0, layer_decay=0.8)
    with pytest.raises(ValueError, match=r"plain gradient descent; found layer_decay=0\.8, type layer_decay=1$"):
        check_step(wanted, MSL())

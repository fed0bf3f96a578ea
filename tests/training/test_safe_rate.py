"""The safe step: its constants against dense Hessians, what descends with it, and what has no such step."""

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import equipoise
from equipoise import EW, MIMO, MSL
from equipoise.data import Part
from equipoise.data.bundled import two_sensors
from equipoise.data.feed import Feed
from equipoise.models import MLP, CNN1d, LateFusion
from equipoise.models.late_fusion import Unimodal
from equipoise.study.registry import entries
from equipoise.training import optimisers
from equipoise.training.optimisers import check_step, constants, local_smoothness, safe_rate, set_safe_rate
from equipoise.training.settings import Settings
from equipoise.training.step import losses_of
from equipoise.training.train import Run, train

SAFE = Settings(step="safe", momentum=0.0)


def tiny(seed: int, unimodal: Unimodal = "head") -> tuple[LateFusion, Part]:
    """A model of few enough weights that its Hessian can be written down."""
    torch.manual_seed(seed)
    encoders = {"a": MLP(3, features=2, hidden=(3,)), "b": MLP(2, features=2, hidden=())}
    model = LateFusion(encoders, classes=3, unimodal=unimodal).double()
    for parameter in model.parameters():
        parameter.data.mul_(2)
    inputs = {"a": 2 * torch.randn(12, 3, dtype=torch.float64), "b": torch.randn(12, 2, dtype=torch.float64)}
    return model, Part(inputs, torch.arange(12) % 3)


def dense(model: LateFusion, part: Part, objective: Any) -> Tensor:
    """The Hessian of an objective in all weights, by torch's own means."""
    shapes = {name: value.shape for name, value in model.named_parameters()}
    point = torch.cat([value.detach().flatten() for value in model.parameters()])

    def value(flat: Tensor) -> Tensor:
        pieces = flat.split([shape.numel() for shape in shapes.values()])
        weights = {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
        outputs = functional_call(model, weights, (part.inputs,))
        return objective({name: F.cross_entropy(logits, part.label) for name, logits in outputs.items()})

    return torch.autograd.functional.hessian(value, point)


def spectral(hessian: Tensor) -> float:
    return float(torch.linalg.eigvalsh(hessian).abs().max())


@pytest.mark.parametrize("name", ["fused", "a", "b"])
@pytest.mark.parametrize("seed", range(2))
def test_constants_bound_the_hessian_from_close_by(seed: int, name: str) -> None:
    model, part = tiny(seed)
    top = spectral(dense(model, part, lambda losses: losses[name]))
    bend, slope = constants(model, part, name, model.parameters())
    assert top <= bend <= 1.06 * top
    F.cross_entropy(model(part.inputs)[name], part.label).backward()
    gradient = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    assert slope == pytest.approx(float(gradient.norm()))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("balancer", [MIMO(10, 0.1), MIMO(1, 1, floor=0.5), EW(3)])
def test_the_smoothness_constant_is_the_formula_and_bounds_the_objective(balancer: Any, seed: int) -> None:
    model, part = tiny(seed)
    bends = {name: spectral(dense(model, part, lambda losses, name=name: losses[name])) for name in ("fused", "a", "b")}
    slopes = {name: constants(model, part, name, model.parameters(), rounds=1)[1] for name in ("a", "b")}
    found = local_smoothness(model, balancer, part)
    if isinstance(balancer, EW):
        expected = bends["fused"] + 3 * (bends["a"] + bends["b"])
        top = spectral(dense(model, part, lambda losses: losses["fused"] + 3 * (losses["a"] + losses["b"])))
    else:
        steep = sum(slope**2 for slope in slopes.values()) / balancer.smoothing
        both = bends["a"] + bends["b"]
        expected = bends["fused"] + balancer.penalty * (both + steep) + balancer.floor * both
        top = spectral(dense(model, part, lambda losses: objective_of(balancer, losses)))
    assert expected <= found <= 1.06 * expected
    assert top <= found


def objective_of(balancer: MIMO, losses: dict[str, Tensor]) -> Tensor:
    alone = torch.stack([losses["a"], losses["b"]])
    value = equipoise.mimo_objective(losses["fused"], alone, balancer.penalty, balancer.smoothing)
    return value + balancer.floor * alone.sum()


def test_joint_training_counts_the_heads_beside_it() -> None:
    model, part = tiny(0, unimodal="detached")
    top = spectral(dense(model, part, lambda losses: losses["fused"]))
    assert top <= local_smoothness(model, MSL(), part)
    # Large features bend the losses of the heads; a fused head that hardly reads them, and stays so, bends little.
    for encoder in model.encoders.values():
        list(encoder.parameters())[-2].data.mul_(30)
    for parameter in model.fusion.parameters():
        parameter.data.mul_(1e-3)
        parameter.requires_grad = False
    heads = [constants(model, part, name, model.heads[name].parameters())[0] for name in ("a", "b")]
    assert constants(model, part, "fused", model.parameters())[0] < 0.1 * max(heads)
    assert local_smoothness(model, MSL(), part) == max(heads)


@pytest.mark.parametrize("balancer", [MSL, EW, lambda: MIMO(10, 0.5)])
@pytest.mark.parametrize("seed", [0, 1])
def test_full_batch_steps_never_raise_the_objective(balancer: Any, seed: int) -> None:
    assert rises(balancer(), seed, times=1.0) == 0


def test_steps_ten_times_as_long_do() -> None:
    assert all(rises(MSL(), seed, times=10.0) > 0 for seed in (0, 1))


def test_halving_is_rare_and_happens_where_the_constant_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    model, part = tiny(0)
    plain = 1 / local_smoothness(model, MIMO(), part)
    assert safe_rate(model, MIMO(), part) == plain
    monkeypatch.setattr(optimisers, "local_smoothness", lambda *_: 1 / (1024 * plain))
    halved = safe_rate(model, MIMO(), part)
    assert halved is not None
    assert plain / 2 <= halved < 1024 * plain
    assert math.log2(1024 * plain / halved) == int(math.log2(1024 * plain / halved))


def test_a_flat_loss_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    model, feed = batch_norm_model()
    mover = torch.optim.SGD(model.parameters(), lr=5.0)
    for bend in (0.0, math.inf, math.nan):
        monkeypatch.setattr(optimisers, "local_smoothness", lambda *_, bend=bend: bend)
        set_safe_rate(model, MSL(), feed.part, mover, SAFE.changed({"weight_decay": 0.0}))
        assert mover.param_groups[0]["lr"] == 5.0


def rises(balancer: Any, seed: int, times: float) -> int:
    """In how many of some steps of plain gradient descent the objective rose."""
    model, part = tiny(seed, unimodal="detached" if isinstance(balancer, MSL) else "head")
    mover = torch.optim.SGD(model.parameters(), lr=1.0)
    balancer.attach(model, optimizer=mover)
    values = []
    for _ in range(12):
        rate = safe_rate(model, balancer, part)
        assert rate is not None
        mover.param_groups[0]["lr"] = times * rate
        loss, _ = losses_of(model, balancer, part)
        values.append(float(loss.detach()))
        mover.zero_grad()
        loss.backward()
        mover.step()
    return sum(later > earlier for earlier, later in itertools.pairwise(values))


# -- in the loop --


def batch_norm_model() -> tuple[LateFusion, Feed]:
    torch.manual_seed(0)
    encoders = {"a": CNN1d(2, 3, width=4), "b": MLP(2, features=2, hidden=(3,))}
    model = LateFusion(encoders, classes=3, dropout=0.3)
    inputs = {"a": torch.randn(20, 2, 12), "b": torch.randn(20, 2)}
    return model, Feed(Part(inputs, torch.arange(20) % 3), "cpu")


def test_nothing_but_the_learning_rate_changes() -> None:
    model, feed = batch_norm_model()
    model.encoders["a"].eval()
    mover = torch.optim.SGD(model.parameters(), lr=1.0)
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    chance = torch.get_rng_state()
    set_safe_rate(model, MIMO(), feed.part, mover, SAFE)
    assert 0 < mover.param_groups[0]["lr"] < 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), chance)


def test_running_statistics_have_no_say() -> None:
    model, feed = batch_norm_model()
    first = local_smoothness(model, MIMO(), feed.part)
    for name, value in model.named_buffers():
        if "running_var" in name:
            value.fill_(1e-4)
    assert local_smoothness(model, MIMO(), feed.part) == first


def test_weight_decay_bends_too_and_a_recorded_rate_is_written_in_place() -> None:
    model, feed = batch_norm_model()
    mover = torch.optim.SGD(model.parameters(), lr=torch.tensor(1.0))
    rate = mover.param_groups[0]["lr"]
    set_safe_rate(model, MSL(), feed.part, mover, SAFE.changed({"weight_decay": 7.0}))
    assert mover.param_groups[0]["lr"] is rate
    assert 1 / float(rate) == pytest.approx(local_smoothness(model, MSL(), feed.part) + 7, rel=1e-5)


@pytest.mark.parametrize(
    ("step", "epoch", "batch", "set_anew"),
    [("given", 0, 0, False), ("safe", 0, 0, True), ("safe", 0, 3, False), ("safe", 1, 0, False)],
)
def test_when_the_rate_is_set(step: str, epoch: int, batch: int, set_anew: bool) -> None:
    run = Run(two_sensors(samples=60), MSL(), SAFE.changed({"step": step, "lr": 5.0, "batch": 8}))
    run.state.epoch, run.state.batch = epoch, batch
    next(run.steps())
    assert (run.step.optimizer.param_groups[0]["lr"] != 5.0) == set_anew


def test_a_run_says_what_its_rate_was_and_goes_on_with_it(tmp_path: Path) -> None:
    splits, settings = two_sensors(samples=60), SAFE.changed({"epochs": 3, "batch": 20})
    whole = train(splits, MIMO(), settings)
    assert "1/L̂ of a batch of 20" in whole.path["learning rate"]
    assert "learning rate" not in train(splits, MIMO(), Settings(epochs=1)).path

    def stop(record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(splits, MIMO(), settings, folder=tmp_path, on_epoch=stop, checkpoint_seconds=0)
    resumed = train(splits, MIMO(), settings, folder=tmp_path)
    assert resumed.path == whole.path
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name]), name


# -- what has no such step --


@pytest.mark.parametrize(
    "balancer", [equipoise.AGM(), equipoise.OGMGE(), equipoise.MGDA(), equipoise.MSLR(), equipoise.DGL()]
)
def test_methods_without_a_theorem_are_refused(balancer: equipoise.Balancer) -> None:
    with pytest.raises(ValueError, match=f"step=safe: {type(balancer).__name__} .* choose msl, ew or mimo"):
        check_step(SAFE, balancer)
    check_step(Settings(), balancer)


def test_everything_wrong_is_said_at_once() -> None:
    words = ["step=safe", "smoothing=0", "optimizer=adam", "schedule=cosine"]
    with pytest.raises(ValueError) as found:  # noqa: PT011 (the message is looked at below)
        entries(["mimo"], words)
    for part in (
        "μ > 0",
        "optimizer=adam momentum=0.9 schedule=cosine",
        "type optimizer=sgd momentum=0 schedule=const",
    ):
        assert part in str(found.value)
    with pytest.raises(ValueError, match="heads=scaled"):
        entries(["mimo"], ["step=safe", "momentum=0", "heads=plain"])
    assert entries(["mimo", "msl", "ew"], ["step=safe", "momentum=0"])

"""Accelerate, Fabric and Lightning end where the plain loop ends, to the bit, with every shape of answer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from equipoise import AGM, EW, MLB, MSL, MSLR, OGM, OGMGE, SMP, Balancer
from equipoise.testing import SmallModel, balanced, batch, losses_of, names
from everything import METHODS, MODULATING, SHAPES, Data, assert_same, batches, metrics, parameters_of, taught, train

# Lightning asks torch about leaves of trees in a way that torch no longer likes, and every machine for more workers.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers:UserWarning"),
]
STEPS = 4
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def in_every_way(test: Any) -> Any:
    marks = {"accumulate": [1, 2], "optimizer": OPTIMIZERS, "method": SHAPES}
    for name, values in marks.items():
        test = pytest.mark.parametrize(name, values)(test)
    return test


def plain_loop(method: str, optimizer: str, accumulate: int = 1, steps: int = STEPS) -> dict[str, Tensor]:
    model = SmallModel(names(2))
    chosen = OPTIMIZERS[optimizer](model.parameters())
    balancer = taught(METHODS[method]().attach(model, optimizer=chosen), names(2))
    train(balancer, model, batches(names(2), steps), chosen, accumulate)
    return parameters_of(model)


# -- the plain loop --


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_the_plain_loop_moves_every_block_that_runs(method: str, optimizer: str, accumulate: int) -> None:
    before, after = parameters_of(SmallModel(names(2))), plain_loop(method, optimizer, accumulate)
    still = {name.rpartition(".")[0] for name, tensor in before.items() if torch.equal(after[name], tensor)}
    assert all(bool(tensor.isfinite().all()) for tensor in after.values())
    if method == "mses":
        assert still == {"encoders.audio.0", "encoders.audio.2"}  # stopped by its metrics
    elif method == "smp" and optimizer == "adamw":
        assert still == {"encoders.video.0", "encoders.video.2"}  # it is the turn of audio
    else:
        assert not still  # not even the fused head under Unimodal: both optimisers decay weights


TWINS: dict[str, Balancer] = {
    "ogm": OGM(strength=0),
    "ogmge": OGMGE(strength=0),
    "agm": AGM(strength=0, form="fast"),
    "mslr": MSLR(memory=9),
    "mlb": MLB(strength=0),
    "smp": SMP(start=9),
    "arl": EW(4.0),
    "arl-released": EW(4.0),
    "cggm": MSL(),
}


def test_every_modulating_method_has_a_twin_that_does_not_modulate() -> None:
    assert {*TWINS} == set(MODULATING)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "RMSprop", "Adagrad"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("method", TWINS)
def test_under_adam_the_update_of_an_encoder_is_scaled(method: str, count: int, kind: str) -> None:
    results = []
    for balancer in (METHODS[method](), copy.deepcopy(TWINS[method])):
        model = SmallModel(names(count))
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
        taught(balancer.attach(model, optimizer=optimizer), names(count))
        train(balancer, model, batches(names(count), 1), optimizer)
        results.append((parameters_of(model), balancer.table))
    before = parameters_of(SmallModel(names(count)))
    (scaled, table), (whole, plain_table) = results
    factors = {name: table.at("fused", name) for name in names(count)}
    assert any(abs(float(factor) - 1) > 0.01 for factor in factors.values())
    for name, factor in factors.items():
        assert float(plain_table.at("fused", name)) == 1
        for key in (key for key in before if key.startswith(f"encoders.{name}.")):
            expected = before[key] + factor * (whole[key] - before[key])
            torch.testing.assert_close(scaled[key], expected, rtol=0, atol=1e-12)
            assert not torch.equal(whole[key], before[key])


@pytest.mark.parametrize("method", TWINS)
def test_a_step_over_two_micro_batches_is_scaled_by_the_mean_of_their_factors(method: str) -> None:
    results = []
    for balancer in (METHODS[method](), copy.deepcopy(TWINS[method])):
        model = SmallModel(names(2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        taught(balancer.attach(model, optimizer=optimizer), names(2))
        tables = []
        for data in batches(names(2), 2):
            (balanced(balancer, losses_of(model, data)) / 2).backward()
            tables.append(balancer.table)
        optimizer.step()
        results.append((parameters_of(model), tables))
    before = parameters_of(SmallModel(names(2)))
    (scaled, tables), (whole, _) = results
    for name in names(2):
        factor = torch.stack([table.at("fused", name) for table in tables]).mean()
        for key in (key for key in before if key.startswith(f"encoders.{name}.")):
            expected = before[key] + factor * (whole[key] - before[key])
            torch.testing.assert_close(scaled[key], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", TWINS)
def test_a_loss_that_is_never_differentiated_scales_nothing(method: str) -> None:
    results = []
    for looks_aside in (False, True):
        model = SmallModel(names(2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        balancer = taught(METHODS[method]().attach(model, optimizer=optimizer), names(2))
        if looks_aside:
            balanced(balancer, losses_of(model, batch(names(2), seed=7), factor=3.0))
        train(balancer, model, batches(names(2), 1), optimizer)
        results.append(parameters_of(model))
    assert_same(results[1], results[0])


# -- Accelerate --


@pytest.mark.slow
@pytest.mark.usefixtures("accelerate_state")
@in_every_way
def test_accelerate_ends_where_the_plain_loop_ends(method: str, optimizer: str, accumulate: int) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    bare = SmallModel(names(2))
    model, chosen = accelerator.prepare(bare, OPTIMIZERS[optimizer](bare.parameters()))
    balancer = taught(METHODS[method]().attach(model, optimizer=chosen), names(2))
    for data in batches(names(2), STEPS):
        with accelerator.accumulate(model):
            accelerator.backward(balanced(balancer, losses_of(model, data)))
            chosen.step()
            chosen.zero_grad()
    assert_same(parameters_of(bare), plain_loop(method, optimizer, accumulate))


# -- Fabric --


@pytest.mark.slow
@in_every_way
def test_fabric_ends_where_the_plain_loop_ends(method: str, optimizer: str, accumulate: int) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    bare = SmallModel(names(2))
    model, chosen = fabric.setup(bare, OPTIMIZERS[optimizer](bare.parameters()))
    balancer = taught(METHODS[method]().attach(model, optimizer=chosen), names(2))
    for number, data in enumerate(batches(names(2), STEPS)):
        last = (number + 1) % accumulate == 0
        with fabric.no_backward_sync(model, enabled=not last):
            fabric.backward(balanced(balancer, losses_of(model, data)) / accumulate)
        if last:
            chosen.step()
            chosen.zero_grad()
    assert_same(parameters_of(bare), plain_loop(method, optimizer, accumulate))


# -- Lightning --


def lit(method: str, optimizer: str) -> Any:
    import lightning

    class Lit(lightning.LightningModule):
        """What a user of Lightning would write."""

        def __init__(self) -> None:
            super().__init__()
            self.model = SmallModel(names(2))
            self.balancer = METHODS[method]()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            chosen = OPTIMIZERS[optimizer](self.model.parameters())
            self.balancer.attach(self.model, optimizer=chosen)
            taught(self.balancer, names(2))
            return chosen

        def training_step(self, data: Data, _: int) -> Tensor:
            return balanced(self.balancer, losses_of(self.model, data))

    return Lit()


def fit(module: Any, data: Sequence[Data], accumulate: int = 1) -> None:
    import lightning

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(list(data), batch_size=None))  # ty: ignore[invalid-argument-type]


@pytest.mark.slow
@in_every_way
def test_lightning_ends_where_the_plain_loop_ends(method: str, optimizer: str, accumulate: int) -> None:
    module = lit(method, optimizer)
    fit(module, batches(names(2), STEPS), accumulate)
    assert_same(parameters_of(module.model), plain_loop(method, optimizer, accumulate))


@pytest.mark.slow
@pytest.mark.parametrize("method", SHAPES)
def test_a_balancer_inside_a_lightning_module_registers_nothing_of_the_model(method: str) -> None:
    module = lit(method, "sgd")
    fit(module, batches(names(2), 2))
    own = {name for name, _ in module.model.named_parameters()}
    assert {name for name, _ in module.named_parameters()} == {f"model.{name}" for name in own}
    assert not any(isinstance(part, SmallModel) for part in module.balancer.modules())
    assert len(list(module.parameters())) == len(list(module.model.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("method", [*SHAPES, "mses", "smp", "mslr"])  # and those that learn at the end of an epoch
def test_a_lightning_checkpoint_goes_on_where_it_stopped(method: str, tmp_path: Any) -> None:
    through = lit(method, "sgd")
    fit(through, batches(names(2), 3))
    torch.save(through.state_dict(), tmp_path / "module.pt")
    fresh = lit(method, "sgd")
    assert fresh.balancer.modalities == ()
    fresh.load_state_dict(torch.load(tmp_path / "module.pt", weights_only=True))
    results = []
    for module in (through, fresh):
        optimizer = torch.optim.SGD(module.model.parameters(), lr=0.1)
        module.balancer.attach(module.model, optimizer=optimizer)
        module.zero_grad()  # Lightning leaves the last gradients where they are
        for number, data in enumerate(batches(names(2), 3)):
            train(module.balancer, module.model, [data], optimizer)
            module.balancer.end_epoch(metrics(names(2), 3 + number))
        results.append((parameters_of(module.model), module.balancer.table.numbers()))
    assert results[0][1] == results[1][1]
    assert_same(results[1][0], results[0][0])


def test_a_wrapper_of_an_optimizer_is_seen_through_however_deep() -> None:
    class Wrapper:
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

    encoders = nn.ModuleDict({name: nn.Linear(2, 2) for name in names(2)})
    model = nn.Sequential(encoders)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = OGM().attach(model, encoders=dict(encoders), optimizer=Wrapper(Wrapper(inner)))
    assert balancer.follows_optimizer
    assert balancer.attachment is not None
    assert balancer.attachment.updates == []  # gradients are scaled: it moves with them

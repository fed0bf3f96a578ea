"""What only a GPU can show: numbers are the same there, wherever the data lies."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import equipoise
from equipoise.data import Splits
from equipoise.measure import conflict, faulty_parts, measure_run, peak_memory, step_seconds, training_statistics
from equipoise.training.settings import Settings
from equipoise.training.train import train
from measure.constructed import random_model, random_splits, series_model, series_part
from tasks_made_up import KINDS, splits_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU HERE: measuring on one was not tried")


def close(one: object, other: object) -> bool:
    """Whether two results agree, but for a sample or two that rounding tips over."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(value, other[key]) for key, value in one.items())
    return one == pytest.approx(other, abs=0.06) if type(one) is float else one == other


def on_gpu(splits: Splits) -> Splits:
    train, validation, test = (part.to("cuda") for part in (splits.train, splits.validation, splits.test))
    return replace(splits, train=train, validation=validation, test=test)


@pytest.mark.parametrize("kind", ["vectors", "series"])
def test_measuring_gives_the_same_there(kind: str) -> None:
    if kind == "vectors":
        make, splits = lambda: random_model(2), random_splits(2)
    else:
        splits = Splits("series", series_part(seed=1), series_part(seed=2), series_part(), ("a", "b", "c"))
        make = series_model
    expected = measure_run(make(), splits, seed=0)
    assert close(measure_run(make().cuda(), splits, seed=0), expected)
    assert close(measure_run(make().cuda(), on_gpu(splits), seed=0), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_is_measured_there_with_gaps(kind: str) -> None:
    """A run of a study from training to its row: losses, committee, intervals, protocols, faults, time."""
    splits = splits_of(kind, gaps=0.3)
    settings = Settings(epochs=2, batch=16, device="cuda")
    trained, balancer = train(splits, equipoise.MIMO(), settings), equipoise.MIMO()
    measured = measure_run(trained.model, splits, seed=0)["test"]
    assert all(isinstance(measured[name], float) for name in ("fused", "committee"))
    mover = torch.optim.SGD(trained.model.parameters(), 0.01)
    balancer.attach(trained.model, optimizer=mover)
    assert step_seconds(trained.model, balancer, mover, splits.train, batch=16, steps=3).ratio("bare") > 0
    assert trained.model.predict(splits.test.to("cuda").inputs, "committee").isfinite().all()


def test_faulty_inputs_are_the_same_there() -> None:
    part, moved = series_part(), series_part().to("cuda")
    here = faulty_parts(part, "imu", training_statistics(part))
    there = faulty_parts(moved, "imu", training_statistics(moved))
    for (fault, level, expected), (_, _, found) in zip(here, there, strict=True):
        if level != "absent":
            array: Tensor = found.inputs["imu"]
            assert array.is_cuda
            torch.testing.assert_close(array.cpu(), expected.inputs["imu"], msg=f"{fault} {level}")


@pytest.mark.parametrize("method", [equipoise.EW, equipoise.OGMGE, equipoise.MMPareto])
def test_steps_are_timed_there(method: type[equipoise.Balancer]) -> None:
    model = series_model(method().needs.view, dropout=0.3).cuda()
    mover = torch.optim.Adam(model.parameters())
    chance = torch.cuda.get_rng_state()
    found = step_seconds(model, method().attach(model, optimizer=mover), mover, series_part(), batch=16, steps=3)
    assert all(found.own.wall[piece] > 0 for piece in ("forward", "balance", "backward", "update"))
    assert found.load.waited is None, "while the device works, a processor may wait"
    assert torch.equal(torch.cuda.get_rng_state(), chance)
    assert 0 < peak_memory("cuda") < 1000


def test_conflict_is_found_there() -> None:
    here, there = conflict(series_model(), series_part()), conflict(series_model().cuda(), series_part())
    assert there["cosine"] == pytest.approx(here["cosine"], abs=0.02)

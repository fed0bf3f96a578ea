import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import equipoise
from equipoise.measure import peak_memory, step_seconds, timing
from measure.constructed import random_model, random_part, series_model, series_part

PARTS = ["forward", "backward", "balance", "update"]
METHODS = [
    equipoise.MSL,
    equipoise.EW,
    equipoise.MIMO,
    equipoise.MGDA,
    equipoise.MMPareto,
    equipoise.OGM,
    equipoise.OGMGE,
    equipoise.AGM,
    equipoise.MSLR,
    equipoise.MSES,
    equipoise.DGL,
    equipoise.MLB,
    equipoise.Unimodal,
]


def same(one: Any, other: Any) -> bool:
    """Whether two states hold the same bits."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::equipoise.methods.agm.ApproximationWarning")
def test_every_method_is_timed_and_nothing_changes(
    method: type[equipoise.Balancer], optimizer: Callable[..., torch.optim.Optimizer]
) -> None:
    model = series_model(unimodal=method.unimodal, dropout=0.3)
    part = series_part()
    mover = optimizer(model.parameters(), lr=0.1)
    balancer = method().attach(model, optimizer=mover)
    balancer({n: F.cross_entropy(z, part.label, reduction="none") for n, z in model(part.inputs).items()}).backward()
    mover.step()
    model.eval()

    before = [copy.deepcopy(each.state_dict()) for each in (model, mover, balancer)]
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    table, chance = balancer.table.values, torch.get_rng_state()
    found = step_seconds(model, balancer, mover, part, batch=16, steps=1)

    assert list(found) == [*PARTS, "total"]
    assert all(found[name] > 0 for name in ("forward", "backward", "update", "total"))
    assert found["balance"] >= 0
    for each, state in zip((model, mover, balancer), before, strict=True):
        assert same(each.state_dict(), state)
    assert same([parameter.grad for parameter in model.parameters()], gradients)
    assert torch.equal(balancer.table.values.nan_to_num(-1), table.nan_to_num(-1))
    assert torch.equal(torch.get_rng_state(), chance)
    assert not model.training
    assert balancer.follows_optimizer


def test_the_copy_is_trained_by_the_method() -> None:
    model, part = random_model(2), random_part(2)
    mover = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = equipoise.OGM().attach(model, optimizer=mover)
    twin, twin_mover, twin_balancer = timing._copies(model, balancer, mover)
    timing._step(twin, twin_balancer, twin_mover, part)
    assert all(
        not torch.equal(one, other)
        for one, other in zip(twin.encoders.parameters(), model.encoders.parameters(), strict=True)
        if other.dim() > 1
    )
    assert twin_balancer.table.values.any()
    assert all(parameter.grad is None for parameter in twin.parameters())


@pytest.mark.parametrize(
    ("method", "seconds", "expected"),
    [
        (equipoise.EW, [1, 2, 9, 3], {"forward": 1, "backward": 9, "balance": 2, "update": 3, "total": 15}),
        (equipoise.MGDA, [5, 1, 2, 9, 3], {"forward": 1, "backward": 5, "balance": 6, "update": 3, "total": 15}),
        # A plain pass that happens to be slower than the whole one leaves nothing to subtract.
        (equipoise.MGDA, [9, 1, 2, 4, 3], {"forward": 1, "backward": 4, "balance": 2, "update": 3, "total": 10}),
    ],
)
def test_seconds_are_divided_as_described(
    monkeypatch: pytest.MonkeyPatch, method: type[equipoise.Balancer], seconds: list[int], expected: dict[str, int]
) -> None:
    script = iter(seconds * 7)

    def timed(_: torch.device, work: Callable[[], Any]) -> tuple[Any, float]:
        return work(), next(script)

    monkeypatch.setattr(timing, "_timed", timed)
    model, part = random_model(2, unimodal=method.unimodal), random_part(2)
    mover = torch.optim.SGD(model.parameters(), lr=0.1)
    assert step_seconds(model, method(), mover, part, batch=8, steps=4) == expected


def test_a_batch_larger_than_the_part_is_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    step = timing._step

    def noting(model: Any, balancer: Any, optimizer: Any, part: Any) -> dict[str, float]:
        sizes.append(len(part))
        return step(model, balancer, optimizer, part)

    monkeypatch.setattr(timing, "_step", noting)
    model = random_model(1)
    mover = torch.optim.SGD(model.parameters(), lr=0.1)
    step_seconds(model, equipoise.EW(), mover, random_part(1, samples=10), batch=99, steps=1)
    step_seconds(model, equipoise.EW(), mover, random_part(1, samples=10), batch=4, steps=1)
    assert sizes == [10] * 4 + [4] * 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_is_in_mebibytes() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    assert 0.95 * resident <= peak_memory() < 50 * resident
    assert peak_memory(torch.device("cpu")) >= 0.95 * resident


def test_a_trained_step_by_hand() -> None:
    assert timing.trained_step([], 5) == (None, "nothing was trained")
    assert timing.trained_step([3.0], 6) == (0.5, "wall clock of the only epoch, with its start, by 6 steps")
    assert timing.trained_step([90.0, 3.0], 6) == (0.5, "wall clock of epoch 2 by 6 steps")
    found, how = timing.trained_step([90.0, 7.0, 2.0, 3.0, 50.0], 10)
    assert found == pytest.approx((3.0 + 7.0) / 2 / 10), "neither the first epoch nor a slow one counts"
    assert how == "wall clock of epochs 2 to 5, median, by 10 steps"

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise
from equipoise.data import Part
from equipoise.measure import peak_memory, step_seconds, timing
from equipoise.measure.timing import Stopwatch, TimedStep
from measure.constructed import random_model, random_part, series_model, series_part

CPU = torch.device("cpu")
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
    equipoise.SMP,
    equipoise.InfoReg,
    equipoise.Relearn,
    equipoise.DGL,
    equipoise.MLB,
    equipoise.ARL,
    equipoise.CGGM,
    equipoise.MCR,
    equipoise.PDMP,
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
    balancer(**timing.step_arguments(model, balancer, part)[0]).backward()
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


def test_the_copy_is_trained_by_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Any] = []
    make = timing.timed_step
    monkeypatch.setattr(timing, "timed_step", lambda *given: (copies.extend(given), make(*given))[1])
    model, part = random_model(2), random_part(2)
    mover = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = equipoise.OGM().attach(model, optimizer=mover)
    step_seconds(model, balancer, mover, part, batch=8, steps=1)
    twin, twin_balancer, _ = copies
    assert all(
        not torch.equal(one, other)
        for one, other in zip(twin.encoders.parameters(), model.encoders.parameters(), strict=True)
        if other.dim() > 1
    )
    assert twin_balancer.table.values.any()
    assert all(parameter.grad is None for parameter in twin.parameters())


@pytest.mark.parametrize("method", [equipoise.MSL, equipoise.MIMO, equipoise.OGMGE, equipoise.MGDA])
def test_a_timed_step_trains_as_the_method_does(method: type[equipoise.Balancer]) -> None:
    part, weights = random_part(2), []
    for timed in (True, False):
        model = random_model(2, unimodal=method.unimodal)
        mover = torch.optim.SGD(model.parameters(), lr=0.1)
        balancer = method().attach(model, optimizer=mover)
        if timed:
            timing.timed_step(model, balancer, mover)(Stopwatch(CPU), part)
        else:
            balancer(**timing.step_arguments(model, balancer, part)[0]).backward()
            mover.step()
        weights.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    assert torch.equal(*weights)


class FakeTime:
    """A clock that a test moves, and a device whose work is done when somebody waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.queued, self.waits = 0.0, 0.0, 0
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(Stopwatch, "wait", lambda _: self.wait())

    def launch(self, *, seconds: float, of_work: float) -> None:
        self.now += seconds
        self.queued += of_work

    def wait(self) -> None:
        self.now, self.queued, self.waits = self.now + self.queued, 0.0, self.waits + 1


def step_of(clock: FakeTime, *, balance_waits: bool) -> TimedStep:
    """Every piece takes 1 s to launch; the device then works 10 s forward, 20 s backward and 3 s on the update."""

    def step(watch: Stopwatch, _: Part) -> None:
        with watch("forward"):
            clock.launch(seconds=1, of_work=10)
        with watch("balance"):
            clock.launch(seconds=1, of_work=0)
            if balance_waits:
                clock.wait()
        with watch("backward"):
            clock.launch(seconds=1, of_work=20)
        with watch("update"):
            clock.launch(seconds=1, of_work=3)

    return step


@pytest.mark.parametrize(
    ("synchronise", "balance_waits", "expected"),
    [
        (True, False, [11, 21, 1, 4]),
        (True, True, [11, 21, 1, 4]),
        (False, False, [1, 1, 1, 1]),
        (False, True, [1, 1, 11, 1]),  # who waits first pays for the forward pass
    ],
)
def test_the_two_clocks_book_the_work_of_the_device_as_described(
    monkeypatch: pytest.MonkeyPatch, synchronise: bool, balance_waits: bool, expected: list[int]
) -> None:
    clock = FakeTime(monkeypatch)
    step = step_of(clock, balance_waits=balance_waits)
    found = timing.time_steps(step, lambda _: random_part(1), 4, CPU, synchronise=synchronise)
    assert found == [dict(zip(timing.PIECES, [0, *expected], strict=True))] * 4
    assert clock.queued == 0  # nothing is left for whoever is timed next


def test_what_a_backward_pass_takes_beyond_a_plain_one_is_balancing() -> None:
    watch = Stopwatch(CPU)
    watch.seconds |= {"plain": 5.0, "backward": 9.0, "balance": 2.0, "forward": 1.0}
    assert watch.pieces() == {"data": 0, "forward": 1, "backward": 5, "balance": 6, "update": 0}
    watch.seconds["plain"] = 12.0
    assert watch.pieces() == {"data": 0, "forward": 1, "backward": 9, "balance": 2, "update": 0}


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
    # The clock is looked at before and after each piece; reading the batch comes first, and takes no time.
    looks = iter(look for _ in range(7) for second in [0, *seconds] for look in (0, second))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(looks)))
    model, part = random_model(2, unimodal=method.unimodal), random_part(2)
    mover = torch.optim.SGD(model.parameters(), lr=0.1)
    assert step_seconds(model, method(), mover, part, batch=8, steps=4) == expected


def test_a_batch_larger_than_the_part_is_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    losses = timing.step_arguments

    def noting(model: Any, balancer: Any, part: Part) -> Any:
        sizes.append(len(part))
        return losses(model, balancer, part)

    monkeypatch.setattr(timing, "step_arguments", noting)
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

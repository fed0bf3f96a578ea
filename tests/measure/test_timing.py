import copy
import itertools
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

import equipoise
from equipoise.data import Part
from equipoise.measure import peak_memory, step_seconds, timing
from equipoise.measure.timing import PIECES, Load, Pieces, Stopwatch, TimedStep, bare_step
from equipoise.training.settings import Settings
from equipoise.training.step import step_arguments
from measure.constructed import random_model, random_part, series_model, series_part

CPU = torch.device("cpu")
PARTS = ["forward", "backward", "balance", "update"]
METHODS = [
    equipoise.MSL,
    equipoise.EW,
    equipoise.MIMO,
    equipoise.Barrier,
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
@pytest.mark.filterwarnings("ignore::equipoise.balance.needs.ApproximationWarning")
def test_every_method_is_timed_and_nothing_changes(
    method: type[equipoise.Balancer], optimizer: Callable[..., torch.optim.Optimizer]
) -> None:
    model = series_model(unimodal=method().needs.view, dropout=0.3)
    part = series_part()
    mover = optimizer(model.parameters(), lr=0.1)
    balancer = method().attach(model, optimizer=mover)
    balancer(**step_arguments(model, balancer, part)[0]).backward()
    mover.step()
    model.eval()

    before = [copy.deepcopy(each.state_dict()) for each in (model, mover, balancer)]
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    table, chance = balancer.table.values, torch.get_rng_state()
    found = step_seconds(model, balancer, mover, part, batch=16, steps=1)

    assert found.batches == 1
    for line in (found.own, found.bare, found.msl):
        for clock in line:
            assert all(clock[name] > 0 for name in PARTS if name != "balance")
            assert (clock["balance"] > 0) == (line is not found.bare), "a bare step balances nothing"
    assert found.ratio("bare") > 0
    assert found.ratio("msl") > 0
    for each, state in zip((model, mover, balancer), before, strict=True):
        assert same(each.state_dict(), state)
    assert same([parameter.grad for parameter in model.parameters()], gradients)
    assert torch.equal(balancer.table.values.nan_to_num(-1), table.nan_to_num(-1))
    assert torch.equal(torch.get_rng_state(), chance)
    assert not model.training
    assert balancer.follows_optimizer


def test_the_copies_are_trained_by_the_method_by_msl_and_by_a_bare_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, list[Any]] = {"timed_step": [], "bare_step": []}
    for name, given in made.items():
        make = getattr(timing, name)
        monkeypatch.setattr(timing, name, lambda *some, make=make, given=given: (given.append(some), make(*some))[1])
    model, part = random_model(2), random_part(2)
    mover = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = equipoise.OGM().attach(model, optimizer=mover)
    step_seconds(model, balancer, mover, part, batch=8, steps=1)
    (plain, msl, *_), (twin, twin_balancer, *_) = made["timed_step"]
    assert [type(msl), type(twin_balancer)] == [equipoise.MSL, equipoise.OGM]
    assert made["bare_step"][0][0] is plain, "both baselines move the second copy"
    assert (model.unimodal, twin.unimodal, plain.unimodal) == ("head", "head", "detached"), (
        "MSL trains no encoder by these"
    )
    for copied in (plain, twin):
        assert copied is not model
        assert all(
            not torch.equal(one, other)
            for one, other in zip(copied.encoders.parameters(), model.encoders.parameters(), strict=True)
            if other.dim() > 1
        )
        assert all(parameter.grad is None for parameter in copied.parameters())
    assert twin_balancer.table.values.any()


def weights_after(step: Callable[[Any, Any], TimedStep], part: Part, unimodal: Any) -> torch.Tensor:
    model = random_model(2, unimodal=unimodal)
    mover = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    taken = step(model, mover)
    for _ in range(3):
        taken(Stopwatch(CPU), part)
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.mark.parametrize("method", [equipoise.MSL, equipoise.EW, equipoise.MIMO, equipoise.OGMGE, equipoise.MGDA])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_a_timed_step_trains_as_a_loop_by_hand_does(method: type[equipoise.Balancer], clip: float | None) -> None:
    def by_hand(model: Any, mover: Any) -> TimedStep:
        balancer = method().attach(model, optimizer=mover)

        def step(_: Stopwatch, part: Part) -> None:
            balancer(**step_arguments(model, balancer, part)[0]).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            mover.step()
            mover.zero_grad()

        return step

    def timed(model: Any, mover: Any) -> TimedStep:
        settings = Settings(clip=clip, precision="fp32")
        return timing.timed_step(model, method().attach(model, optimizer=mover), mover, settings)

    part, torch_seed = random_part(2), torch.get_rng_state()
    found = []
    for step in (by_hand, timed):
        torch.set_rng_state(torch_seed)  # OGM-GE draws noise
        found.append(weights_after(step, part, method().needs.view))
    assert torch.equal(*found)


def test_a_bare_step_is_the_fused_loss_and_nothing_else() -> None:
    def by_hand(model: Any, mover: Any) -> TimedStep:
        def step(_: Stopwatch, part: Part) -> None:
            torch.nn.functional.cross_entropy(model(part.inputs)["fused"], part.label).backward()
            mover.step()
            mover.zero_grad()

        return step

    part = random_part(2)
    found = [weights_after(step, part, "detached") for step in (by_hand, bare_step)]
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)


def test_a_timed_step_has_the_precision_of_its_run() -> None:
    def seen(settings: Settings | None) -> set[torch.dtype]:
        model, kinds = random_model(2), set[torch.dtype]()
        mover = torch.optim.SGD(model.parameters(), lr=0.1)
        layer = next(part for part in model.modules() if isinstance(part, torch.nn.Linear))
        layer.register_forward_hook(lambda *given: kinds.add(given[2].dtype))
        for step in (timing.timed_step(model, equipoise.EW(), mover, settings), bare_step(model, mover, settings)):
            step(Stopwatch(CPU), random_part(2))
        return kinds

    assert seen(None) == seen(Settings(precision="fp32")) == {torch.float32}
    assert seen(Settings(precision="bf16")) == {torch.bfloat16}


def test_micro_batches_are_balanced_apart_and_added_up() -> None:
    """Two micro-batches: two calls of forward, balance and backward, and one update."""
    model, watch = random_model(2), Stopwatch(CPU)
    mover = torch.optim.SGD(model.parameters(), lr=0.1)
    calls: list[str] = []
    step = timing.timed_step(model, equipoise.EW().attach(model), mover, Settings(accumulate=2, precision="fp32"))

    def counting(piece: str) -> Any:
        calls.append(piece)
        return watch(piece)

    step(counting, random_part(2))  # ty: ignore[invalid-argument-type]
    assert calls == [*["forward", "balance", "backward"] * 2, "update"]


class FakeTime:
    """A clock that a test moves, and a device whose work is done when somebody waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.queued, self.waits = 0.0, 0.0, 0
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing.time, "process_time", lambda: self.now / 2)
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
    found = timing.time_steps(step, lambda _: random_part(1), range(4), CPU, synchronise=synchronise)
    by_hand = dict(zip(PIECES, [0, *expected], strict=True))
    assert [watch.seconds for watch in found] == [by_hand] * 4
    assert [watch.computed for watch in found] == [{name: each / 2 for name, each in by_hand.items()}] * 4
    assert clock.queued == 0  # nothing is left for whoever is timed next


class Script:
    """An independent clock: it is moved by the model's own calls, and never by looking at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cpu: float = 1.0) -> None:
        self.now = 0.0
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing.time, "process_time", lambda: cpu * self.now)

    def costs(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, seconds: Callable[[Any], float]) -> None:
        usual = getattr(owner, name)

        def slow(*given: Any, **named: Any) -> Any:
            self.now += seconds(given[0])
            return usual(*given, **named)

        monkeypatch.setattr(owner, name, slow)


def test_every_line_is_charged_for_what_it_does_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: calling MSL takes 2 s and EW 5 s, a backward pass 10 s, an update 1 s; half of it is computed."""
    clock = Script(monkeypatch, cpu=0.5)
    for method, cost in ((equipoise.MSL, 2.0), (equipoise.EW, 5.0)):
        clock.costs(monkeypatch, method, "weigh", lambda _, cost=cost: cost)
    clock.costs(monkeypatch, torch.Tensor, "backward", lambda _: 10.0)
    clock.costs(monkeypatch, torch.optim.SGD, "zero_grad", lambda _: 1.0)
    monkeypatch.setattr(timing.os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    model, part = random_model(2), random_part(2)
    mover = torch.optim.SGD(model.parameters(), lr=0.1)
    found = step_seconds(model, equipoise.EW(), mover, part, batch=8, steps=4, workers=1)
    times = {"own": (5.0, 15.0), "bare": (0.0, 10.0), "msl": (2.0, 12.0)}
    for name, (balance, t) in times.items():
        line: Pieces = getattr(found, name)
        assert (line.wall["balance"], line.wall["backward"], line.wall["update"]) == (balance, 10.0, 1.0)
        assert line.after_losses == {"wall": t, "cpu": t / 2}
        assert line.update == {"wall": 1.0, "cpu": 0.5}
    assert found.ratio("bare") == 1.5
    assert found.ratio("msl") == 15 / 12
    row = found.as_dict()
    assert row["batches"] == 4
    assert {name: each["wall"] for name, each in row["t"].items()} == {name: t for name, (_, t) in times.items()}
    assert {name: each["cpu"] for name, each in row["update"].items()} == dict.fromkeys(times, 0.5)
    assert row["load"] == {"workers": 1, "average": 0.5, "cores": os.cpu_count(), "waited": 0.5}
    assert not row["trusted"], "half of the time nothing was computed"


def test_a_time_is_the_mean_over_the_batches_and_no_median(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps that warm up do not count, and a slow one does."""
    clock, draw = Script(monkeypatch), random.Random(5)
    durations = [draw.uniform(1, 9) for _ in range(8)]
    durations[-1] = 500.0
    each = iter([100.0] * timing.WARM_UP + durations)
    clock.costs(monkeypatch, equipoise.EW, "weigh", lambda _: next(each))
    model = random_model(2)
    mover = torch.optim.SGD(model.parameters(), lr=0.1)
    found = step_seconds(model, equipoise.EW(), mover, random_part(2), batch=8, steps=8)
    assert found.own.after_losses["wall"] == pytest.approx(fmean(durations))
    assert found.bare.after_losses["wall"] == 0


@pytest.mark.parametrize("seed", range(20))
def test_means_are_those_of_both_clocks(seed: int) -> None:
    draw = random.Random(seed)
    watches = [Stopwatch(CPU) for _ in range(draw.randint(1, 6))]
    for watch in watches:
        watch.seconds = {piece: draw.random() for piece in PIECES}
        watch.computed = {piece: draw.random() for piece in PIECES}
    found = Pieces.of(watches)
    t = sum(watch.seconds["balance"] + watch.seconds["backward"] for watch in watches) / len(watches)
    assert found.after_losses["wall"] == pytest.approx(t)
    assert found.cpu["update"] == pytest.approx(sum(watch.computed["update"] for watch in watches) / len(watches))


# -- a machine with other work --


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(1, 1.9, 2, 0.1), []),
        (Load(None, None, 1, None), []),
        (Load(1, 2.0, 2, 0.2), []),
        (Load(3, 1.0, 2, 0.0), ["3 runs side by side"]),
        (Load(1, 2.1, 2, None), ["load average of 2.1 on 2 cores"]),
        (Load(1, 1.5, 1, None), ["load average of 1.5 on 1 core"]),
        (Load(1, 0.0, 2, 0.5), ["no processor for 50 % of the time"]),
        (Load(2, 9.0, 2, 0.9), ["2 runs side by side", "load average of 9.0", "no processor for 90 %"]),
    ],
)
def test_what_casts_doubt_on_times(load: Load, words: list[str]) -> None:
    found = load.doubts()
    assert len(found) == len(words)
    assert all(word in doubt for word, doubt in zip(words, found, strict=True))


def test_a_load_is_that_of_the_machine_and_of_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.os, "getloadavg", lambda: (7.5, 1.0, 1.0))
    monkeypatch.setattr(timing.os, "cpu_count", lambda: 4)
    watch, waiting = Stopwatch(CPU), Stopwatch(CPU)
    watch.seconds["forward"], watch.computed["forward"] = 3.0, 4.0  # two threads
    waiting.seconds["update"], waiting.computed["update"] = 5.0, 2.0
    assert Load.during([watch, waiting], workers=2) == Load(2, 7.5, 4, 1 - 6 / 8)
    assert Load.during([watch]).waited == 0
    assert Load.during([]).waited is None
    monkeypatch.delattr(timing.os, "getloadavg")
    assert Load.during([watch]).average is None
    device = Stopwatch(torch.device("meta"), synchronise=False)
    device.seconds["forward"] = 1.0
    assert Load.during([device]).waited is None, "while a GPU works, a processor may wait"


def test_the_worst_load_is_the_worst_in_each_respect() -> None:
    loads = [Load(1, None, 2, 0.5), Load(None, 3.0, 4, 0.1), Load(2, 1.0, 2, None)]
    for some in itertools.permutations(loads):
        assert Load.worst(some) == Load(2, 3.0, 4, 0.5)
    assert Load.worst([]).doubts() == []


def test_a_batch_larger_than_the_part_is_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    forward = torch.nn.Module.__call__

    def noting(module: Any, *given: Any, **named: Any) -> Any:
        if given and isinstance(given[0], dict):
            sizes.append(len(next(iter(given[0].values()))))
        return forward(module, *given, **named)

    monkeypatch.setattr(type(random_model(1)), "__call__", noting)
    model = random_model(1)
    mover = torch.optim.SGD(model.parameters(), lr=0.1)
    step_seconds(model, equipoise.EW(), mover, random_part(1, samples=10), batch=99, steps=1)
    step_seconds(model, equipoise.EW(), mover, random_part(1, samples=10), batch=4, steps=1)
    lines = 3 * (timing.WARM_UP + 1)
    assert sizes == [10] * lines + [4] * lines


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

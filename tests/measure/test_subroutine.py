"""The subroutine time: pieces are booked where they belong, and the imitated codes compute what our methods compute."""

import importlib.util
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import equipoise
from equipoise.data import Part
from equipoise.measure import subroutine
from equipoise.measure.imitation import (
    copied_mmpareto,
    looped_agm,
    looped_log_score,
    looped_ogmge,
    looped_score,
    vectorised_score,
)
from equipoise.measure.subroutine import PIECES, Step, Watch, balanced_step, subroutine_seconds, summary
from equipoise.models import LateFusion
from equipoise.models.shapley import ShapleyResponses
from measure.constructed import random_model, random_part

CPU = torch.device("cpu")
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "subroutine.py"


class FakeTime:
    """A clock that a test moves, and a device whose work is done when somebody waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.queued, self.waits = 0.0, 0.0, 0
        monkeypatch.setattr(subroutine.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(Watch, "wait", lambda _: self.wait())

    def launch(self, *, seconds: float, of_work: float) -> None:
        self.now += seconds
        self.queued += of_work

    def wait(self) -> None:
        self.now, self.queued, self.waits = self.now + self.queued, 0.0, self.waits + 1


def step_of(clock: FakeTime, *, balance_waits: bool) -> Step:
    """Every piece takes 1 s to launch; the device then works 10 s forward, 20 s backward and 3 s on the update."""

    def step(watch: Watch, _: Part) -> None:
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
    ("how", "balance_waits", "expected"),
    [
        ("synchronised", False, [11, 1, 21, 4]),
        ("synchronised", True, [11, 1, 21, 4]),
        ("launched", False, [1, 1, 1, 1]),
        ("launched", True, [1, 11, 1, 1]),  # who waits first pays for the forward pass
    ],
)
def test_the_two_clocks_book_the_work_of_the_device_as_described(
    monkeypatch: pytest.MonkeyPatch, how: subroutine.Clock, balance_waits: bool, expected: list[int]
) -> None:
    clock = FakeTime(monkeypatch)
    found = subroutine_seconds(step_of(clock, balance_waits=balance_waits), [random_part(1)], 4, how)
    assert [found[name] for name in PIECES] == expected
    assert found["subroutine"] == expected[1] + expected[3]
    assert found["with backward"] == found["subroutine"] + expected[2]
    assert found["total"] == sum(expected)
    assert found["spread"] == 0
    assert clock.queued == 0  # nothing is left for whoever is timed next


def test_what_a_backward_pass_takes_beyond_a_plain_one_is_balancing() -> None:
    watch = Watch(CPU, "launched")
    watch.seconds |= {"plain": 5.0, "backward": 9.0, "balance": 2.0, "forward": 1.0}
    assert watch.split() == {"forward": 1, "balance": 6, "backward": 5, "update": 0}
    watch.seconds["plain"] = 12.0
    assert watch.split() == {"forward": 1, "balance": 2, "backward": 9, "update": 0}


def test_the_spread_is_that_of_balance_and_update() -> None:
    quiet = dict.fromkeys(PIECES, 1.0)
    found = summary([quiet | {"balance": 2.0}, quiet | {"update": 4.0}, quiet | {"forward": 9.0}])
    assert found["subroutine"] == pytest.approx((3 + 5 + 2) / 3)
    assert found["spread"] == pytest.approx((((3 - 10 / 3) ** 2 + (5 - 10 / 3) ** 2 + (2 - 10 / 3) ** 2) / 3) ** 0.5)


@pytest.mark.parametrize("method", [equipoise.MSL, equipoise.MIMO, equipoise.OGMGE, equipoise.MGDA])
def test_a_timed_step_trains_as_the_method_does(method: type[equipoise.Balancer]) -> None:
    part, weights = random_part(2), []
    for timed in (True, False):
        model = random_model(2, unimodal=method.unimodal)
        mover = torch.optim.SGD(model.parameters(), lr=0.1)
        balancer = method().attach(model, optimizer=mover)
        if timed:
            balanced_step(model, balancer, mover)(Watch(CPU, "synchronised"), part)
        else:
            losses, beside, _ = subroutine.step_losses(model, balancer, part)
            balancer(losses, extra=beside).backward()
            mover.step()
        weights.append(torch.cat([each.detach().flatten() for each in model.parameters()]))
    assert torch.equal(*weights)


# -- the imitations --


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("samples", [1, 7])
def test_scores_in_a_loop_are_scores(samples: int, classes: int) -> None:
    random = torch.Generator().manual_seed(samples + classes)
    logits = 3 * torch.randn(samples, classes, generator=random, dtype=torch.float64)
    label = torch.randint(classes, (samples,), generator=random)
    right = torch.softmax(logits, dim=1)[range(samples), label]
    assert torch.allclose(looped_score(logits, label), right.sum())
    assert torch.allclose(vectorised_score(logits, label), right.sum())
    assert torch.allclose(looped_log_score(logits, label), -right.log().mean())


def test_a_probability_of_nothing_has_a_score() -> None:
    assert float(looped_log_score(torch.tensor([[0.0, 500.0]]), torch.tensor([0]))) == pytest.approx(18.4207, abs=1e-3)


def doubled(part: Part) -> Part:
    return Part({name: value.double() for name, value in part.inputs.items()}, part.label)


def moved(model: LateFusion, step: Callable[[Part], None], part: Part) -> dict[str, Tensor]:
    """By how much each encoder tensor moves in a step."""
    before = {name: value.detach().clone() for name, value in model.encoders.named_parameters()}
    step(part)
    return {name: value.detach() - before[name] for name, value in model.encoders.named_parameters()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("imitate", "method"),
    [
        (lambda model, mover: looped_ogmge(model, mover, noise=False), equipoise.OGM),
        (copied_mmpareto, equipoise.MMPareto),
    ],
)
def test_imitations_move_encoders_as_our_methods_do(
    imitate: Callable[..., Step], method: type[equipoise.Balancer], seed: int
) -> None:
    part, steps = doubled(random_part(2, seed=seed)), []
    for imitated in (True, False):
        model = random_model(2, seed=seed, unimodal=method.unimodal).double()
        mover = torch.optim.SGD(model.parameters(), lr=0.01)
        if imitated:
            timed = imitate(model, mover)
        else:
            timed = balanced_step(model, method().attach(model, optimizer=mover), mover)
        steps.append(moved(model, lambda some, timed=timed: timed(Watch(CPU, "launched"), some), part))
    for name, change in steps[0].items():
        assert change.abs().max() > 0, name
        assert torch.allclose(change, steps[1][name], rtol=1e-4, atol=1e-9), name


@pytest.mark.parametrize("seed", range(4))
def test_imitated_agm_is_the_exact_form_of_ours(seed: int) -> None:
    parts, steps = [doubled(random_part(2, seed=number, samples=6)) for number in range(seed, seed + 4)], []
    for imitated in (True, False):
        model = random_model(2, seed=seed, unimodal=None).double()
        mover = torch.optim.SGD(model.parameters(), lr=0.1)
        if imitated:
            timed = looped_agm(model, mover)
            step = lambda some, timed=timed: timed(Watch(CPU, "launched"), some)  # noqa: E731
        else:
            wrapped = ShapleyResponses(model, list(parts[0].inputs))
            step = exact_agm(wrapped, equipoise.AGM(responses=wrapped), mover)
        steps.append([moved(model, step, part) for part in parts])  # the history of scores counts from the second on
    for mine, exact in zip(*steps, strict=True):
        for name, change in mine.items():
            assert torch.allclose(change, exact[name], rtol=1e-5, atol=1e-9), name


def exact_agm(
    model: ShapleyResponses, balancer: equipoise.Balancer, mover: torch.optim.Optimizer
) -> Callable[[Part], None]:
    def step(part: Part) -> None:
        outputs = model(part.inputs)
        losses = {name: F.cross_entropy(logits, part.label, reduction="none") for name, logits in outputs.items()}
        balancer(losses).backward()
        mover.step()
        mover.zero_grad()

    return step


def test_noise_is_as_large_as_the_gradient() -> None:
    part, sizes = random_part(2), []
    for noise in (True, False):
        model = random_model(2, unimodal="split")
        mover = torch.optim.SGD(model.parameters(), lr=1.0)
        step = looped_ogmge(model, mover, strength=0.0, noise=noise)  # tanh(0) slows nobody
        torch.manual_seed(0)
        change = moved(model, lambda some, step=step: step(Watch(CPU, "launched"), some), part)
        sizes.append(torch.cat([each.flatten() for each in change.values()]).std())
    assert 1.1 < sizes[0] / sizes[1] < 2.0  # two independent parts of one size: √2


# -- the benchmark --


def load_benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_subroutine", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="takes the large model there")
def test_the_benchmark_prints_every_line_by_both_clocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = load_benchmark()
    monkeypatch.setattr(benchmark.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(benchmark, "SHAPES", {"small": {"audio": (2, 16), "video": (3, 16)}})
    words = ["subroutine.py", "--batch", "4", "--rounds", "1", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--json"])
    benchmark.main()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    lines = {(row["line"], row["clock"]) for row in found["rows"]}
    assert lines == set(itertools.product([*benchmark.OURS, *benchmark.IMITATED], subroutine.CLOCKS))
    for row in found["rows"]:
        assert (row["ratio"] == 1) == (row["line"] == "msl")
        assert row["seconds"]["subroutine"] > 0
    published = {row["line"]: row["published ratio"] for row in found["rows"]}
    assert published["agm, imitated"] == published["agm"] == pytest.approx(0.205 / 0.038)
    assert found["score seconds"]["looped"] > found["score seconds"]["vectorised"] > 0

    monkeypatch.setattr(sys, "argv", words)
    benchmark.main()
    printed = capsys.readouterr().out
    assert all(printed.count(f"\n{name} ") == 2 for name in [*benchmark.OURS, *benchmark.IMITATED])

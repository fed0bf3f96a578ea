"""The subroutine time t(s), and imitations of public code, which compute what our methods compute."""

import importlib
import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import equipoise
from equipoise.data import Part
from equipoise.measure.timing import Stopwatch, TimedStep, timed_step
from equipoise.models import LateFusion, ShapleyResponses, response_losses
from measure.constructed import random_model, random_part

CPU = torch.device("cpu")


def load(name: str) -> Any:
    """Import a program of benchmarks/, which finds the others beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
        return importlib.import_module(name)


imitation, subroutine = load("imitation"), load("subroutine")


def watches_of(*steps: dict[str, float]) -> list[Stopwatch]:
    watches = [Stopwatch(CPU) for _ in steps]
    for watch, seconds in zip(watches, steps, strict=True):
        watch.seconds |= seconds
        watch.computed |= {piece: each / 2 for piece, each in seconds.items()}
    return watches


def test_the_spread_is_that_of_balance_and_backward() -> None:
    quiet = dict.fromkeys(subroutine.PIECES, 1.0)
    steps = watches_of(quiet | {"balance": 2.0}, quiet | {"backward": 4.0}, quiet | {"forward": 9.0})
    found = subroutine.summary(steps)
    assert found["t"] == pytest.approx((3 + 5 + 2) / 3)
    assert found["cpu"] == pytest.approx((3 + 5 + 2) / 6)
    assert found["spread"] == pytest.approx((((3 - 10 / 3) ** 2 + (5 - 10 / 3) ** 2 + (2 - 10 / 3) ** 2) / 3) ** 0.5)
    assert found["waited"] == 0.5


def test_every_reading_stands_over_both_baselines() -> None:
    """By hand: t of 4, 5 and 7 s, updates of 1, 2 and 3 s."""
    times = {"bare": (4.0, 1.0), "msl": (5.0, 2.0), "mimo": (7.0, 3.0)}
    clock = "synchronised"
    rest = {"forward": 1.0, "balance": 1.0, "backward": 3.0, "spread": 0.0, "cpu": 1.0}
    lines = {
        name: {each: {**rest, "t": t, "update": update} for each in subroutine.CLOCKS}
        for name, (t, update) in times.items()
    }
    row = subroutine.row("mimo", clock, lines)
    # t, t and update, and what t takes beyond 4 s with the update: 7, 10 and 6; of MSL 5, 7 and 3; bare 4, 5 and 1
    assert row["over the bare step"] == {"t": 7 / 4, "wide": 10 / 5, "narrow": 6 / 1}
    assert row["over MSL().attach"] == {"t": 7 / 5, "wide": 10 / 7, "narrow": 6 / 3}
    assert set(subroutine.row("bare", clock, lines)["over the bare step"].values()) == {1.0}
    text = subroutine.table([subroutine.row(name, each, lines) for each in subroutine.CLOCKS for name in times])
    for reading in ("t", "wide", "narrow"):
        assert f"{reading} × bare" in text
        assert f"{reading} × msl" in text
    assert text.count(" 1.75 ") == 2, "one for each clock"


# -- the imitations --


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("samples", [1, 7])
def test_scores_in_a_loop_are_scores(samples: int, classes: int) -> None:
    random = torch.Generator().manual_seed(samples + classes)
    logits = 3 * torch.randn(samples, classes, generator=random, dtype=torch.float64)
    label = torch.randint(classes, (samples,), generator=random)
    right = torch.softmax(logits, dim=1)[range(samples), label]
    assert torch.allclose(imitation.looped_score(logits, label), right.sum())
    assert torch.allclose(imitation.vectorised_score(logits, label), right.sum())
    assert torch.allclose(imitation.looped_log_score(logits, label), -right.log().mean())


def test_a_probability_of_nothing_has_a_score() -> None:
    score = imitation.looped_log_score(torch.tensor([[0.0, 500.0]]), torch.tensor([0]))
    assert float(score) == pytest.approx(18.4207, abs=1e-3)


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
    [(partial(imitation.looped_ogmge, noise=False), equipoise.OGM), (imitation.copied_mmpareto, equipoise.MMPareto)],
)
def test_imitations_move_encoders_as_our_methods_do(
    imitate: Callable[..., TimedStep], method: type[equipoise.Balancer], seed: int
) -> None:
    part, steps = doubled(random_part(2, seed=seed)), []
    for imitated in (True, False):
        model = random_model(2, seed=seed, unimodal=method().needs.view).double()
        mover = torch.optim.SGD(model.parameters(), lr=0.01)
        make = imitate if imitated else partial(timed_step, balancer=method().attach(model, optimizer=mover))
        timed = make(model, optimizer=mover)
        steps.append(moved(model, lambda some, timed=timed: timed(Stopwatch(CPU, synchronise=False), some), part))
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
            timed = imitation.looped_agm(model, mover)
            step = lambda some, timed=timed: timed(Stopwatch(CPU, synchronise=False), some)  # noqa: E731
        else:
            wrapped = ShapleyResponses(model, list(parts[0].inputs))
            step = exact_agm(wrapped, equipoise.AGM(form="published"), mover)
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
        responses = {name: logits for name, logits in outputs.items() if name != "fused"}
        balancer(losses, further=response_losses(losses["fused"], responses)).backward()
        mover.step()
        mover.zero_grad()

    return step


def test_noise_is_as_large_as_the_gradient() -> None:
    part, sizes = random_part(2), []
    for noise in (True, False):
        model = random_model(2, unimodal="split")
        mover = torch.optim.SGD(model.parameters(), lr=1.0)
        step = imitation.looped_ogmge(model, mover, strength=0.0, noise=noise)  # tanh(0) slows nobody
        torch.manual_seed(0)
        change = moved(model, lambda some, step=step: step(Stopwatch(CPU, synchronise=False), some), part)
        sizes.append(torch.cat([each.flatten() for each in change.values()]).std())
    assert 1.1 < sizes[0] / sizes[1] < 2.0  # two independent parts of one size: √2


# -- the benchmark --


@pytest.mark.skipif(torch.cuda.is_available(), reason="takes the large model there")
def test_the_benchmark_prints_every_line_by_both_clocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subroutine.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(subroutine, "SHAPES", {"small": {"audio": (2, 16), "video": (3, 16)}})
    words = ["subroutine.py", "--batch", "4", "--rounds", "1", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--json"])
    subroutine.main()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    lines = {(row["line"], row["clock"]) for row in found["rows"]}
    every = ["bare", *subroutine.OURS, *subroutine.IMITATED]
    assert lines == set(itertools.product(every, subroutine.CLOCKS))
    assert found["trusted"] == (not found["doubts"])
    assert found["batches"] == 1
    for row in found["rows"]:
        for line, over in (("bare", "over the bare step"), ("msl", "over MSL().attach")):
            assert (row[over]["t"] == 1) == (row["line"] == line)
        assert row["seconds"]["t"] > 0
    published = {row["line"]: row["published ratio"] for row in found["rows"]}
    assert published["agm, imitated"] == published["agm"] == pytest.approx(0.205 / 0.038)
    assert min(found["score seconds"].values()) > 0  # which of the two is faster is for the benchmark to say

    monkeypatch.setattr(sys, "argv", words)
    subroutine.main()
    printed = capsys.readouterr().out
    assert all(printed.count(f"\n{name} ") == 2 for name in every)
    assert "Means over 1 batches" in printed

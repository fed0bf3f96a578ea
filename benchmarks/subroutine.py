"""The paper's time per batch by two readings, by two clocks, over two baselines, beside imitated public code; one run.

    python benchmarks/subroutine.py --quick            # CREMA-D shapes, two ResNet-18 on a GPU; a small model on a CPU
    python benchmarks/subroutine.py --json > t.json
    python benchmarks/subroutine.py --rounds 1 --steps 10400      # as many batches as the paper's 100 epochs of CREMA-D

Every round times every line once by each clock, in turn. "t" is the time after the losses are there: balance and
backward. The paper's time is "balancing modalities (if any) and updating the model parameters", which can be read in
two ways: "wide" is t and the update; "narrow" leaves the backward pass out, so that balancing is what t takes beyond
that of the bare step. Every ratio stands over both baselines: "bare", the fused loss in a loop without this library,
and "msl", `MSL().attach`. The last column is the ratio to its own MSL that the paper publishes for CREMA-D. Lines with
"imitated" are written here after what public code does; see `imitation.py`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median, pstdev
from typing import Any

import torch
from imitation import copied_mmpareto, looped_agm, looped_ogmge, looped_score, vectorised_score

import equipoise
from equipoise.data import Part
from equipoise.measure.timing import (
    BARE,
    WARM_UP,
    Load,
    Pieces,
    Stopwatch,
    TimedStep,
    bare_step,
    time_steps,
    timed_step,
)
from equipoise.models import CNN1d, LateFusion, ResNet18

CLOCKS = {"synchronised": True, "launched": False}
PIECES = ("forward", "balance", "backward", "update")
PUBLISHED = {  # seconds, CREMA-D, Table 1 of the paper; on other GPUs, so that only ratios compare
    "msl": 0.038,
    "ew": 0.036,
    "mimo": 0.037,
    "ogmge": 0.112,
    "agm": 0.205,
    "mgda": 0.310,
    "mmpareto": 0.309,
}
OURS: dict[str, Callable[[], equipoise.Balancer]] = {
    "msl": equipoise.MSL,
    "ew": equipoise.EW,
    "mimo": equipoise.MIMO,
    "mimo, doubling": partial(equipoise.MIMO, overflow="double"),
    "ogmge": equipoise.OGMGE,
    "agm": lambda: equipoise.AGM(form="fast"),
    "mgda": equipoise.MGDA,
    "mmpareto": equipoise.MMPareto,
}
IMITATED: dict[str, tuple[Callable[..., TimedStep], str | None]] = {
    "ogmge, imitated": (looped_ogmge, "split"),
    "agm, imitated": (looped_agm, None),
    "mmpareto, imitated": (copied_mmpareto, "head"),
}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "cremad": {"audio": (1, 257, 188), "video": (3, 2, 224, 224)},
    "small": {"audio": (2, 100), "video": (3, 100)},
}
CLASSES = 6
MSL = "msl"
READINGS = ("t", "wide", "narrow")


def model_for(shapes: str, unimodal: Any, device: torch.device) -> LateFusion:
    torch.manual_seed(0)
    make = ResNet18 if shapes == "cremad" else CNN1d
    encoders = {name: make(shape[0]) for name, shape in SHAPES[shapes].items()}
    return LateFusion(encoders, CLASSES, unimodal=unimodal).to(device)


def steps_for(shapes: str, device: torch.device) -> dict[str, TimedStep]:
    def mover(model: LateFusion) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)

    plain = model_for(shapes, None, device)
    found: dict[str, TimedStep] = {BARE: bare_step(plain, mover(plain))}
    for name, make in OURS.items():
        balancer = make()
        model = model_for(shapes, balancer.needs.view, device)
        optimizer = mover(model)
        found[name] = timed_step(model, balancer.to(device).attach(model, optimizer=optimizer), optimizer)
    for name, (imitate, unimodal) in IMITATED.items():
        model = model_for(shapes, unimodal, device)
        optimizer = mover(model)
        found[name] = imitate(model, optimizer)
    return found


def subroutine_seconds(
    step: TimedStep, batches: Sequence[Part], steps: int, clock: str = "synchronised"
) -> dict[str, float]:
    """Mean seconds of each piece over a number of steps, after a few to warm up, and t.

    Args:
        step: The step; it trains the model it was made from.
        batches: Taken in turn, already on the device.
        steps: How many are timed.
        clock: "synchronised" waits for the device before and after each piece, so that a piece pays for its own work.
            "launched" reads the wall clock only, as code that never mentions synchronisation does: a piece then pays
            for launching its work, and the first one that waits pays for what others have launched.

    Returns:
        "forward", "balance", "backward" and "update"; "t", balance and backward; "cpu", what was computed in t;
        "spread", the standard deviation of t; and "waited", the share of the time in which nothing was computed.
    """
    device = batches[0].label.device
    read = lambda number: batches[number % len(batches)]  # noqa: E731
    return summary(time_steps(step, read, range(WARM_UP + steps), device, synchronise=CLOCKS[clock])[WARM_UP:])


def summary(watches: Sequence[Stopwatch]) -> dict[str, float]:
    """The means of some steps."""
    means = Pieces.of(watches)
    return {
        **{piece: means.wall[piece] for piece in PIECES},
        "t": means.after_losses["wall"],
        "cpu": means.after_losses["cpu"],
        "spread": pstdev(watch.seconds["balance"] + watch.seconds["backward"] for watch in watches),
        "waited": Load.during(watches).waited or 0.0,
    }


def measured(steps: dict[str, TimedStep], batches: list[Part], rounds: int, count: int) -> dict[str, dict[str, Any]]:
    """Per line and clock the medians over rounds."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {clock: [] for clock in CLOCKS} for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            for clock in CLOCKS:
                found[name][clock].append(subroutine_seconds(step, batches, count, clock))
    return {
        name: {
            clock: {piece: median(one[piece] for one in each) for piece in each[0]} for clock, each in by_clock.items()
        }
        for name, by_clock in found.items()
    }


def score_seconds(batch: int, device: torch.device, repeats: int) -> dict[str, float]:
    """One modality's score of one batch, in a loop over samples and at once."""
    part = Part({}, torch.randint(0, CLASSES, (batch,), device=device))
    logits = torch.randn(batch, CLASSES, device=device)

    def step_with(score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> TimedStep:
        def step(watch: Any, some: Part) -> None:
            with watch("balance"):
                score(logits, some.label)

        return step

    return {
        name: subroutine_seconds(step_with(score), [part], repeats)["balance"]
        for name, score in (("looped", looped_score), ("vectorised", vectorised_score))
    }


def readings(seconds: dict[str, float], bare: dict[str, float]) -> dict[str, float]:
    """t, and the paper's time by both readings."""
    beyond = max(seconds["t"] - bare["t"], 0.0)
    return {"t": seconds["t"], "wide": seconds["t"] + seconds["update"], "narrow": beyond + seconds["update"]}


def row(name: str, clock: str, lines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All numbers of a line by one clock.

    Args:
        name: Of the line.
        clock: One of `CLOCKS`.
        lines: Of every line the seconds by clock.
    """
    method, _, _ = name.partition(",")
    published = PUBLISHED.get(method)
    own, bare, msl = (readings(lines[line][clock], lines[BARE][clock]) for line in (name, BARE, MSL))
    return {
        "line": name,
        "clock": clock,
        "seconds": {**lines[name][clock], **own},
        "over the bare step": {reading: own[reading] / bare[reading] for reading in READINGS},
        "over MSL().attach": {reading: own[reading] / msl[reading] for reading in READINGS},
        "published": published,
        "published ratio": published / PUBLISHED[MSL] if published else None,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """All rows in columns: milliseconds, then each reading over both baselines."""
    heads = [*PIECES, "t", "±", "t CPU", "wide", "narrow"]
    ratios = [f"{reading} × {line}" for reading in READINGS for line in (BARE, MSL)]
    lines = [
        f"{'ms per batch':<20}"
        + "".join(f"{head:>10}" for head in heads)
        + "".join(f"{head:>15}" for head in ratios)
        + "      published × msl"
    ]
    for clock in CLOCKS:
        lines.append(f"-- {clock} --")
        for each in (each for each in rows if each["clock"] == clock):
            names = (*PIECES, "t", "spread", "cpu", "wide", "narrow")
            numbers = "".join(f"{1e3 * each['seconds'][name]:>10.2f}" for name in names)
            over = (each[line][reading] for reading in READINGS for line in ("over the bare step", "over MSL().attach"))
            published = f"{each['published ratio']:>21.2f}" if each["published ratio"] else f"{'-':>21}"
            lines.append(f"{each['line']:<20}{numbers}{''.join(f'{ratio:>15.2f}' for ratio in over)}{published}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=10, help="batches per line, clock and round: the mean is over these"
    )
    parser.add_argument("--shapes", choices=list(SHAPES), help="cremad on a GPU and small elsewhere by default")
    parser.add_argument("--quick", action="store_true", help="one round of five steps")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    rounds, count = (1, 5) if options.quick else (options.rounds, options.steps)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    if device.type == "cpu":
        torch.set_num_threads(1)  # small pieces: more threads mostly wait for each other
    shapes = options.shapes or ("cremad" if device.type == "cuda" else "small")
    random = torch.Generator(device).manual_seed(0)
    batches = [
        Part(
            {
                name: torch.randn(options.batch, *shape, device=device, generator=random)
                for name, shape in SHAPES[shapes].items()
            },
            torch.randint(0, CLASSES, (options.batch,), device=device, generator=random),
        )
        for _ in range(2)
    ]
    found = measured(steps_for(shapes, device), batches, rounds, count)
    rows = [row(name, clock, found) for clock in CLOCKS for name in found]
    waited = max(each["seconds"]["waited"] for each in rows) if device.type == "cpu" else None
    doubts = Load.during([])._replace(waited=waited).doubts()
    scores = score_seconds(options.batch, device, 5 * count)
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    facts = {"device": where, "torch": str(torch.__version__), "batch": options.batch, "shapes": shapes}
    facts |= {"rounds": rounds, "batches": count}
    if options.json:
        print(json.dumps({**facts, "rows": rows, "score seconds": scores, "trusted": not doubts, "doubts": doubts}))
        return
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    print(table(rows))
    print(f"Means over {count} batches, medians of {rounds} such means. bare: a bare step; msl: MSL().attach.")
    if doubts:
        print(f"NOT TO BE TRUSTED: these times were taken under {', '.join(doubts)}. Run it again without other work.")
    looped, at_once = (1e3 * scores[name] for name in ("looped", "vectorised"))
    print(f"\nOne score of one modality: {looped:.2f} ms in a loop, {at_once:.3f} ms at once.")


if __name__ == "__main__":
    main()

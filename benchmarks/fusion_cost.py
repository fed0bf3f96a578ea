"""Time of a training step of hybrid and early fusion by the number of sensors, as ratios within one run.

    python benchmarks/fusion_cost.py                         # series of 3 × 100, on the GPU if there is one
    python benchmarks/fusion_cost.py --sensors 2 --rounds 3  # a quick look

Masked objectives run K + 1 passes through the trunk, and one through each encoder; heads run one through both. Every
round times every line once, in turn, so that a drifting clock speed and the load of others touch all of them alike. The
table gives medians over rounds, and ratios to joint training of the same hybrid model without uni-modal outputs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import EW, MGDA, MIMO, MSL, Balancer, HybridFusion, LateFusion
from equipoise.models.choose import build_encoders

SHAPE, CLASSES = (3, 100), 7
BASE = "hybrid, joint"


class Line(NamedTuple):
    """What is timed.

    Args:
        fusion: "late", "hybrid" or "early".
        unimodal: The source of uni-modal outputs.
        make: Makes the method.
    """

    fusion: str
    unimodal: Any
    make: Callable[[], Balancer]


LINES = {
    "late, joint": Line("late", None, MSL),
    "late, MIMO with heads": Line("late", "head", MIMO),
    BASE: Line("hybrid", None, MSL),
    "hybrid, joint, masked beside": Line("hybrid", "masked_detached", MSL),
    "hybrid, MIMO with heads": Line("hybrid", "head", MIMO),
    "hybrid, MIMO masked": Line("hybrid", "masked", MIMO),
    "hybrid, EW masked": Line("hybrid", "masked", EW),
    "hybrid, MGDA masked": Line("hybrid", "masked", MGDA),
    "early, joint": Line("early", None, MSL),
    "early, MIMO masked": Line("early", "masked", MIMO),
}


class Runner:
    """One model, one optimiser, one method; `step` trains on a batch."""

    def __init__(self, line: Line, sensors: int, encoder: str, width: int, device: torch.device) -> None:
        torch.manual_seed(0)
        shapes = {f"sensor{number}": SHAPE for number in range(sensors)}
        encoders = build_encoders("stem" if line.fusion == "early" else encoder, shapes, width)
        how: dict[str, Any] = {"unimodal": line.unimodal}
        if line.fusion != "late":
            how |= {"width": width, "depth": 4 if line.fusion == "early" else 2}
        self.model = (LateFusion if line.fusion == "late" else HybridFusion)(encoders, CLASSES, **how).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.balancer = line.make().attach(self.model, optimizer=self.optimizer)

    def step(self, inputs: dict[str, Tensor], label: Tensor) -> None:
        outputs = self.model(inputs)
        loss = self.balancer({name: F.cross_entropy(z, label, reduction="none") for name, z in outputs.items()})
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """Measure by the clock on a GPU; on a CPU the seconds of the process, in which others do not count."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def timed(sensors: int, options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Time every line with this many sensors."""
    random = torch.Generator(device).manual_seed(0)
    inputs = {
        f"sensor{number}": torch.randn(options.batch, *SHAPE, device=device, generator=random)
        for number in range(sensors)
    }
    label = torch.randint(0, CLASSES, (options.batch,), device=device, generator=random)
    runners = {name: Runner(line, sensors, options.encoder, options.width, device) for name, line in LINES.items()}
    times: dict[str, list[float]] = {name: [] for name in LINES}
    for runner in runners.values():
        for _ in range(4):  # dependences are looked into at the first calls
            runner.step(inputs, label)
    for _ in range(options.rounds):
        for name, runner in runners.items():

            def work(runner: Runner = runner) -> None:
                for _ in range(options.steps):
                    runner.step(inputs, label)

            times[name].append(seconds(work, device) / options.steps)
    base = statistics.median(times[BASE])
    return [
        {
            "sensors": sensors,
            "line": name,
            "milliseconds": 1e3 * statistics.median(found),
            "ratio": statistics.median(found) / base,
        }
        for name, found in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, nargs="*", default=[1, 2, 3, 4])
    parser.add_argument("--encoder", default="auto", help="as the setting of that name")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps per line and round")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = [row for sensors in options.sensors for row in timed(sensors, options, device)]
    if options.json:
        print(json.dumps(rows))
        return
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} thread(s)"
    load = f", load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores" if hasattr(os, "getloadavg") else ""
    clock = "by the clock" if device.type == "cuda" else "seconds of the process"
    print(f"{where}{load}, {clock}, torch {torch.__version__}, encoder {options.encoder}, batch {options.batch}")
    print(f"{'× ' + BASE:<32}" + "".join(f"{f'K = {sensors}':>10}" for sensors in options.sensors))
    for name in LINES:
        found = [row for row in rows if row["line"] == name]
        print(f"{name:<32}" + "".join(f"{row['ratio']:>10.2f}" for row in found))
    base = [row["milliseconds"] for row in rows if row["line"] == BASE]
    print(f"{f'{BASE}, ms':<32}" + "".join(f"{value:>10.2f}" for value in base))


if __name__ == "__main__":
    main()

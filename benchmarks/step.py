"""Time of a whole training step per method, beside a bare joint-training loop, all in one run.

    python benchmarks/step.py                      # CREMA-D shapes, two ResNet-18, on the GPU if there is one
    python benchmarks/step.py --batch 4 --steps 3  # a quick look on a CPU

Every round times every method once, in turn, so that a drifting clock speed touches all of them alike. The table gives
medians over rounds, and each method's ratio to the bare loop of the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

import equipoise
from equipoise.models import LateFusion, ResNet18

METHODS: dict[str, Callable[[], equipoise.Balancer]] = {
    "msl": equipoise.MSL,
    "ew": equipoise.EW,
    "mimo": equipoise.MIMO,
    "mimo plain heads": lambda: equipoise.MIMO(heads="plain"),
    "ogm": equipoise.OGM,
    "ogmge": equipoise.OGMGE,
    "agm": lambda: equipoise.AGM(form="fast"),
    "mslr": equipoise.MSLR,
    "mses": equipoise.MSES,
    "smp": equipoise.SMP,
    "inforeg": equipoise.InfoReg,
    "relearn": equipoise.Relearn,
    "dgl": equipoise.DGL,
    "mlb": equipoise.MLB,
    "barrier": equipoise.Barrier,
    "mgda": equipoise.MGDA,
    "mmpareto": equipoise.MMPareto,
}


class Runner:
    """One model, one optimiser, one method; `step` trains on a batch."""

    def __init__(self, make: Callable[[], equipoise.Balancer] | None, device: torch.device, classes: int = 6) -> None:
        torch.manual_seed(0)
        balancer = make() if make is not None else None
        view = balancer.needs.view if balancer is not None else None
        encoders = {"audio": ResNet18(1), "video": ResNet18(3)}
        self.model = LateFusion(encoders, classes, unimodal=view).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
        self.balancer = balancer.attach(self.model, optimizer=self.optimizer) if balancer is not None else None

    def step(self, inputs: dict[str, Tensor], label: Tensor) -> None:
        outputs = self.model(inputs)
        if self.balancer is None:
            loss = F.cross_entropy(outputs["fused"], label)
        else:
            loss = self.balancer({name: F.cross_entropy(z, label, reduction="none") for name, z in outputs.items()})
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def seconds(work: Callable[[], None], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps per method and round")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    random = torch.Generator(device).manual_seed(0)
    batches = [
        (
            {
                "audio": torch.randn(options.batch, 1, 257, 188, device=device, generator=random),
                "video": torch.randn(options.batch, 3, 2, 224, 224, device=device, generator=random),
            },
            torch.randint(0, 6, (options.batch,), device=device, generator=random),
        )
        for _ in range(2)
    ]
    chosen = {"bare loop": None, **{name: METHODS[name] for name in options.methods}}
    times: dict[str, list[float]] = {name: [] for name in chosen}
    peaks: dict[str, float] = {}
    runners = {name: Runner(make, device) for name, make in chosen.items()}
    for name, runner in runners.items():
        for _ in range(3 if device.type == "cuda" else 1):
            runner.step(*batches[0])
        if device.type == "cuda":
            runner.optimizer.zero_grad()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            runner.step(*batches[0])
            peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**20
            runner.optimizer.zero_grad()
    for _ in range(options.rounds):
        for name, runner in runners.items():

            def work(runner: Runner = runner) -> None:
                for number in range(options.steps):
                    runner.step(*batches[number % 2])

            times[name].append(seconds(work, device) / options.steps)
            runner.optimizer.zero_grad()
    bare = statistics.median(times["bare loop"])
    rows = [
        {
            "method": name,
            "milliseconds": 1e3 * statistics.median(found),
            "ratio": statistics.median(found) / bare,
            "step memory MiB": peaks.get(name),
        }
        for name, found in times.items()
    ]
    if options.json:
        print(json.dumps(rows))
        return
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, batch {options.batch}")
    print(f"{'method':<18}{'ms/step':>10}{'× bare':>9}{'MiB':>9}")
    for row in rows:
        memory = f"{row['step memory MiB']:>9.0f}" if row["step memory MiB"] is not None else f"{'-':>9}"
        print(f"{row['method']:<18}{row['milliseconds']:>10.2f}{row['ratio']:>9.3f}{memory}")


if __name__ == "__main__":
    main()

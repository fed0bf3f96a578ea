"""Time of a training step in two versions of the library, in turns in one run.

    git worktree add ../before v0.1.0
    python benchmarks/versions.py ../before            # CREMA-D shapes, two ResNet-18
    python benchmarks/versions.py ../before --small    # two layers an encoder: the library's own time shows

Each version runs in a process of its own, with the methods of its own `benchmarks/step.py`. Every round times every
method in both, in an order that changes from round to round. The ratio is the median over rounds of new by old; its
quartiles say how much the machine wavered.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any, final

HERE = Path(__file__).resolve().parent.parent


@final
class Version:
    """A process that takes steps with the library of one tree."""

    def __init__(self, tree: Path, options: argparse.Namespace) -> None:
        asked = {"tree": str(tree), "batch": options.batch, "steps": options.steps, "small": options.small}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.methods: list[str] = json.loads(self._answer())

    def seconds(self, method: str) -> float:
        """Time of some steps."""
        assert self._process.stdin is not None
        print(method, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a version ended before it answered; its error stands above")
        return line


def work(asked: dict[str, Any]) -> None:
    """Take steps as told on the standard input, and print how long they took."""
    tree = Path(asked["tree"])
    sys.path.insert(0, str(tree / "src"))
    warnings.simplefilter("ignore")
    import torch

    import equipoise

    assert Path(equipoise.__file__).is_relative_to(tree), equipoise.__file__
    spec = importlib.util.spec_from_file_location("step", tree / "benchmarks" / "step.py")
    assert spec is not None
    assert spec.loader is not None
    step = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    random = torch.Generator(device).manual_seed(0)
    size = asked["batch"]
    shapes = {"audio": (32,), "video": (64,)} if asked["small"] else {"audio": (1, 257, 188), "video": (3, 2, 224, 224)}
    inputs = {name: torch.randn(size, *shape, device=device, generator=random) for name, shape in shapes.items()}
    label = torch.randint(0, 6, (size,), device=device, generator=random)
    if asked["small"]:
        widths = {1: 32, 3: 64}
        step.ResNet18 = lambda channels: torch.nn.Sequential(
            torch.nn.Linear(widths[channels], 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)
        )
    runners = {name: step.Runner(make, device) for name, make in {"bare loop": None, **step.METHODS}.items()}
    for runner in runners.values():
        for _ in range(3):
            runner.step(inputs, label)
    print(json.dumps(list(runners)), flush=True)

    def several(name: str) -> None:
        for _ in range(asked["steps"]):
            runners[name].step(inputs, label)

    for line in sys.stdin:
        print(step.seconds(partial(several, line.strip()), device) / asked["steps"], flush=True)


def main() -> None:
    """Compare two trees."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", help="the tree of the older version")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=3, help="steps per method and round")
    parser.add_argument("--small", action="store_true", help="small encoders instead of two ResNet-18")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    if options.before is None:
        parser.error("type the folder of the older version: python benchmarks/versions.py ../before")
    versions = [Version(tree.resolve(), options) for tree in (options.before, HERE)]
    methods = [name for name in versions[1].methods if name in versions[0].methods]
    times: dict[str, list[list[float]]] = {name: [[], []] for name in methods}
    for turn in range(options.rounds):
        for name in methods:
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                times[name][which].append(versions[which].seconds(name))
    print(f"{'method':<18}{'old ms':>10}{'new ms':>10}{'new / old':>11}{'quartiles':>16}")
    ratios = []
    for name, (old, new) in times.items():
        paired = [after / before for before, after in zip(old, new, strict=True)]
        low, middle, high = statistics.quantiles(paired, n=4)
        ratios.append(middle)
        print(
            f"{name:<18}{1e3 * statistics.median(old):>10.2f}{1e3 * statistics.median(new):>10.2f}{middle:>11.3f}"
            f"{low:>9.3f}–{high:.3f}"
        )
    print(f"median over methods {statistics.median(ratios):.3f}, largest {max(ratios):.3f}")


if __name__ == "__main__":
    main()

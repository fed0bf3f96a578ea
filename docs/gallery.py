"""The gallery: runs the examples, keeps what they print, and draws what they learn: python docs/gallery.py [NAME …]."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, final

import torch
from figures import ASSETS, DARK, EXAMPLES, LIGHT, style
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from equipoise import Balancer

PRINTED = Path(__file__).parent / "printed"
COMMANDS = {
    "study": ["-m", "equipoise.cli", "compare", "--config", "examples/study.yaml", "--workers", "1", "--out"],
    "with_hydra": ["examples/with_hydra.py"],
}
# What is worth a place on the page, where an example prints more than a few lines.
SHORT = {
    "own_data": re.compile(r"\A.*?\n(?=\n)", re.DOTALL),
    "study": re.compile(r"\A.*?\n(?=\n)", re.DOTALL),
    "with_huggingface": re.compile(r"^ +text.*|^(?:fused|text|image) .*|^\{'eval_fused_accuracy'.*", re.MULTILINE),
}
Colours = dict[str, Any]
Table = dict[str, dict[str, float]]


@final
@dataclass(frozen=True)
class Watched:
    """An example that was run.

    Args:
        printed: All that it printed.
        tables: What its balancers did, one list of tables for each balancer, one table for each step.
    """

    printed: str
    tables: list[list[Table]]

    def percentages(self) -> list[float]:
        """Every number before a % sign, in order."""
        return [float(number) for number in re.findall(r"([\d.]+) %", self.printed)]

    def coefficients(self, run: int, objective: str, block: str) -> list[float]:
        """One cell of the table over the steps of one training run."""
        return [table[objective][block] for table in self.tables[run]]


# -- running --


def watch(name: str) -> Watched:
    """Run an example as it stands; in this process where its balancers can be looked at on the way."""
    if name in COMMANDS:
        return Watched(_command(COMMANDS[name]), [])
    said = io.StringIO()
    with torch.random.fork_rng(), contextlib.redirect_stdout(said), _narrow(), _tables() as tables:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return Watched(said.getvalue(), tables)


def short(name: str, printed: str) -> str:
    """What the page shows of it."""
    if name not in SHORT:
        return printed
    return "\n".join(line.rstrip() for line in SHORT[name].findall(printed)) + "\n"


@contextlib.contextmanager
def _tables() -> Iterator[list[list[Table]]]:
    """The table of every step that an optimiser takes after a balancer was called."""
    found: list[list[Table]] = []
    called: list[Balancer] = []

    def remember(module: nn.Module, *_: object) -> None:
        if isinstance(module, Balancer) and (not called or called[-1] is not module):
            found.append([])
            called.append(module)

    def record(*_: object) -> None:
        if called:
            found[-1].append(called[-1].table.numbers())

    hooks = (register_module_forward_hook(remember), register_optimizer_step_post_hook(record))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _narrow() -> Iterator[None]:
    """A terminal as wide as a card of the page."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "66"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)


def _command(words: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder, _narrow():
        place = [folder] if words[-1] == "--out" else [f"hydra.run.dir={folder}"]
        line = [sys.executable, *words, *place]
        return subprocess.run(line, cwd=EXAMPLES.parent, capture_output=True, text=True, check=True).stdout


# -- drawing --


def sensors_alone(axes: Axes, colours: Colours, plain: Watched, balanced: Watched) -> None:
    """What the two programs print, side by side."""
    for shift, (title, run, shade) in enumerate((("plain.py", plain, 0.45), ("balanced.py", balanced, 1.0))):
        places = [place + 0.38 * shift for place in range(3)]
        bars = axes.bar(places, run.percentages(), 0.34, alpha=shade, label=title,
                        color=[colours[name] for name in ("fused", "audio", "video")])  # fmt: skip
        axes.bar_label(bars, fmt="%.0f", fontsize=9, color=colours["ink"], padding=2)
    axes.set(xticks=[0.19, 1.19, 2.19], xticklabels=["both sensors", "audio alone", "video alone"], ylim=(0, 112))
    axes.set(ylabel="right on unseen data, %", yticks=(0, 25, 50, 75, 100))
    axes.set_title("pale: plain.py, joint training · full: balanced.py, MIMO", loc="left", fontsize=9.5)


def missing(axes: Axes, colours: Colours, run: Watched) -> None:
    """The two decisions for each sensor that is missing."""
    numbers = run.percentages()
    for row, (fused, committee) in enumerate(zip(numbers[::2], numbers[1::2], strict=True)):
        axes.plot([fused, committee], [-row, -row], color=colours["line"], lw=2, zorder=1)
        axes.scatter([fused], [-row], color=colours["fused"], s=55, label="fused head" if row == 0 else None)
        axes.scatter([committee], [-row], color=colours["third"], s=55, label="committee" if row == 0 else None)
    names = re.findall(r"missing: (\w+)", run.printed)
    labels = ["all there" if name == "none" else f"{name} missing" for name in names]
    axes.set(yticks=range(0, -len(names), -1), yticklabels=labels, ylim=(-3.5, 0.5))
    axes.set_xlabel("right on people never met, %")
    axes.legend(loc="lower left", fontsize=9)


def slowed(axes: Axes, colours: Colours, run: Watched) -> None:
    """By what the fused gradient of each encoder is multiplied."""
    for name, colour in (("sound", "audio"), ("motion", "video")):
        axes.plot(run.coefficients(0, "fused", name), color=colours[colour], lw=1.8, label=name)
    axes.axvline(8 * 12, color=colours["line"], lw=1, ls=":")
    axes.set(xlabel="step (dotted: where stop=8 epochs are over)", ylabel="factor on its gradient", ylim=(0, 1.08))
    axes.legend(loc="center right", fontsize=9)


def hanging(axes: Axes, colours: Colours, run: Watched) -> None:
    """Accuracy and the monitor's word in three states."""
    right = run.percentages()
    titles = ["both work", "easy hangs,\nnobody says so", "easy hangs,\nits flag is false"]
    bars = axes.bar(titles, right, 0.6, color=[colours[name] for name in ("fused", "video", "third")])
    verdicts = zip(right, re.findall(r"windows: (.*)", run.printed), strict=True)
    words = [f"{value:.0f} %\nmonitor: {said}" for value, said in verdicts]
    axes.bar_label(bars, words, fontsize=8.5, color=colours["ink"], padding=2)
    axes.set(ylabel="right on test data, %", ylim=(0, 128), yticks=(0, 25, 50, 75, 100))


def shares(axes: Axes, colours: Colours, run: Watched) -> None:
    """Audio's share of the uni-modal weight in the three runs that follow the uni-modal one."""
    found = re.findall(r"^(optimum .*?) +fused +([\d.]+) %", run.printed, re.MULTILINE)
    for number, ((title, right), colour) in enumerate(zip(found, ("video", "audio", "third"), strict=True), start=1):
        audio, video = (run.coefficients(number, name, "own heads") for name in ("audio", "video"))
        values = torch.tensor(audio) / (torch.tensor(audio) + torch.tensor(video))
        smooth = nn.functional.avg_pool1d(values[None], 8, stride=1)[0]
        axes.plot(100 * smooth, color=colours[colour], lw=1.8, label=f"{title}: {right} % right")
    axes.set(xlabel="step", ylabel="audio's share of the weight, %", ylim=(0, 118), yticks=(0, 25, 50, 75, 100))
    axes.legend(loc="upper left", fontsize=8.5, ncols=1)


def methods(axes: Axes, colours: Colours, run: Watched) -> None:
    """The fused accuracy and that of each sensor, for every method of a comparison, with standard deviations."""
    titles, rows = _columns(run.printed)
    for shift, (title, colour) in enumerate(zip(titles, ("fused", "audio", "video"), strict=True)):
        values, errors = zip(*(row[shift] for row in rows.values()), strict=True)
        places = [place + 0.14 * (shift - 1) for place in range(len(rows))]
        axes.errorbar(places, values, errors, fmt="o", color=colours[colour], ms=6, capsize=3, lw=1.5, label=title)
    axes.set(xticks=range(len(rows)), xticklabels=rows, ylabel="right on test people, %", xlim=(-0.4, len(rows) - 0.6))
    axes.set_ylim(0, 108)
    axes.legend(fontsize=9, loc="lower left", ncols=3)


def _columns(printed: str) -> tuple[list[str], dict[str, list[tuple[float, float]]]]:
    """Titles, and mean and deviation of each method, of the columns that say how often the model is right."""
    titles, rows = [], {name: [] for name in ("msl", "ew", "mimo")}
    for table in printed.partition("on the test set\n")[2].partition("\n\nHeadline")[0].split("\n\n"):
        head, *body = table.splitlines()
        found = [name for name in head.replace("vs msl", "").replace("alone by", "").split() if name != "step"]
        wanted = [place for place, name in enumerate(found) if name not in ("committee", "disparity")]
        titles += [found[place] for place in wanted]
        for line in body:
            pairs = [(float(mean), float(error)) for mean, error in re.findall(r"([\d.]+) ± +([\d.]+)", line)]
            if pairs:
                rows[line.split()[0]] += [pairs[place] for place in wanted]
    return titles, rows


def weights(axes: Axes, colours: Colours, run: Watched) -> None:
    """The weights that MIMO gives to words and pictures."""
    for name, colour in (("text", "audio"), ("image", "video")):
        axes.plot(run.coefficients(0, name, name), color=colours[colour], lw=1.8, label=name)
    axes.set(xlabel="step", ylabel="weight of its loss", ylim=(0, 4.9))
    axes.legend(loc="upper right", fontsize=9, ncols=2)


def rates(axes: Axes, colours: Colours, run: Watched) -> None:
    """The factor on the learning rate of each sensor, as validation accuracy moves it."""
    for name, colour in (("easy", "audio"), ("hard", "video")):
        axes.plot(run.coefficients(0, "fused", name), color=colours[colour], lw=1.8, drawstyle="steps-post", label=name)
    axes.set(xlabel="step", ylabel="factor on its learning rate")
    axes.legend(loc="upper left", fontsize=9)


PICTURES: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "balanced": (sensors_alone, ("plain", "balanced")),
    "missing_sensor": (missing, ("missing_sensor",)),
    "own_data": (methods, ("own_data",)),
    "own_model": (slowed, ("own_model",)),
    "shipped": (hanging, ("shipped",)),
    "trajectory": (shares, ("trajectory",)),
    "study": (methods, ("study",)),
    "with_huggingface": (weights, ("with_huggingface",)),
    "with_lightning": (rates, ("with_lightning",)),
}


def draw(picture: str, runs: dict[str, Watched]) -> None:
    """One picture, for light and for dark pages."""
    paint, needs = PICTURES[picture]
    for name, colours in (("light", LIGHT), ("dark", DARK)):
        style(colours)
        figure, axes = plt.subplots(figsize=(4.8, 2.7), layout="constrained")
        paint(axes, colours, *(runs[each] for each in needs))
        figure.savefig(ASSETS / f"gallery-{picture}-{name}.svg", transparent=True, metadata={"Date": None})
        plt.close(figure)


def names() -> list[str]:
    """Every example that is a program and comes to an end."""
    stems = {path.stem for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml")}
    return sorted(stems - {"my_file", "server"})


if __name__ == "__main__":
    PRINTED.mkdir(exist_ok=True)
    wanted = sys.argv[1:] or names()
    # A process each: some libraries change others when they are loaded.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        runs = dict(zip(wanted, processes.map(watch, wanted), strict=True))
    for name, run in runs.items():
        (PRINTED / f"{name}.txt").write_text(short(name, run.printed), encoding="utf-8")
    for picture, (_, needs) in PICTURES.items():
        if set(needs) <= set(runs):
            draw(picture, runs)

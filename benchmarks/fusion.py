"""Late, hybrid and early fusion under several methods: accuracy, missing sensors, attention, and time.

    python benchmarks/fusion.py run --data watch utd.npz phonewatch.npz --out fusion.jsonl
    python benchmarks/fusion.py time --data watch utd.npz phonewatch.npz
    python benchmarks/fusion.py table fusion.jsonl
    python benchmarks/fusion.py figure fusion.jsonl --to docs/assets

Late and hybrid fusion have strong encoders: a small network per sensor on the components of frozen kernels, which are
fitted on the training part of each fold and computed once for all lines (as in balance.py). Early fusion reads the same
components without networks before the trunk, and, where --samples names a data set, the samples themselves. Joint
training of each fusion tries two learning rates on the validation part of the first fold; all methods of the fusion
take the better one, and their own parameters elsewhere. What is done is kept in OUT, one line a run: started again, the
script goes on. `time` measures a step of every line, in processor seconds, in which other programs do not count.
"""

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from components import FOLDS, components_of
from paired import interval

from equipoise.data.feed import epoch_steps
from equipoise.data.part import Part
from equipoise.data.source import data_set
from equipoise.data.splits import Splits
from equipoise.measure import measure_run
from equipoise.measure.outputs import Scorer, decide, read_features, reading
from equipoise.models.fusion_model import FusionModel
from equipoise.report import drawing
from equipoise.study.registry import Entry, entries
from equipoise.training.presets import preset_for
from equipoise.training.train import Run, Trained, train

METHODS = ("msl", "moddrop", "ew", "mimo", "mmpareto", "primaldual")
WITH_HEADS = ("ew", "mimo")
RATES = (0.002, 0.006)
WARM_UP, TIMED = 3, 4
NAMES = {
    "msl": "joint training",
    "moddrop": "modality dropout",
    "ew": "EW",
    "mimo": "MIMO",
    "mmpareto": "MMPareto",
    "primaldual": "PrimalDual",
}
DASHES = {"msl": "-", "mimo": "--", "mmpareto": ":"}
Row = dict[str, Any]


class Fused(NamedTuple):
    """A fusion and what it reads.

    Args:
        title: Its name in tables.
        words: Its settings.
        samples: True where it reads the samples, and not components.
        objective: "auto" or "head".
    """

    title: str
    words: tuple[str, ...]
    samples: bool = False
    objective: str = "auto"

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that it is trained by."""
        return METHODS if self.objective == "auto" else WITH_HEADS


LATE = Fused("late", ("fusion=concat", "encoder=regularised-mlp"))
HYBRID = Fused("hybrid", ("fusion=hybrid", "encoder=regularised-mlp"))
HEADS = Fused("hybrid, heads", (*HYBRID.words, "objective=head"), objective="head")
EARLY = Fused("early", ("fusion=early",))
SAMPLES = Fused("early, samples", EARLY.words, samples=True)
FUSIONS = {one.title: one for one in (LATE, HYBRID, HEADS, EARLY, SAMPLES)}


class Job(NamedTuple):
    """One run: a line of the study on a fold of a data set."""

    path: str
    fold: int
    fusion: str
    method: str

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What tells its row from others."""
        return Path(self.path).stem, self.fold, self.fusion, self.method


def planned(
    data: Sequence[str], samples: Sequence[str], folds: int, early_folds: int, titles: Sequence[str] = tuple(FUSIONS)
) -> list[Job]:
    """Return the runs of some fusions, one fold after the other."""
    jobs = []
    for fold in range(folds):
        for fusion in (FUSIONS[title] for title in titles):
            counted = early_folds if fusion in (EARLY, SAMPLES) else folds
            paths = [path for path in data if not fusion.samples or Path(path).stem in samples]
            if fold < counted:
                jobs += [Job(path, fold, fusion.title, method) for path in paths for method in fusion.methods]
    return jobs


def entry_for(job: Job, samples: int, rate: float, given: argparse.Namespace) -> Entry:
    """Return a line with the recipe's settings, at a learning rate, for so many steps."""
    epochs = max(1, round(given.steps / epoch_steps(samples, given.batch)))
    words = [f"epochs={epochs}", f"batch={given.batch}", f"lr={rate}", "device=cpu", *FUSIONS[job.fusion].words]
    return entries([job.method], words, preset_for("auto", ""))[0]


def without_sensors(model: FusionModel, part: Part) -> dict[str, dict[str, dict[str, float]]]:
    """Measure both decisions with each sensor missing, and with each alone, all others missing."""
    scorer = Scorer.of(model)
    with reading(model):
        features = read_features(model, part)

        def measured(names: Iterable[str]) -> dict[str, float]:
            heard = {name: features[name] for name in names}
            outputs = decide(model, heard, part.label, present=part.present)
            assert outputs.committee is not None
            answers = {"fused": scorer.task.answer(outputs.fused), "committee": outputs.committee}
            return {name: scorer.answer(answer, outputs.label) for name, answer in answers.items()}

        return {
            "missing": {name: measured(other for other in features if other != name) for name in features},
            "alone": {name: measured([name]) for name in features},
        }


def run(job: Job, splits: Splits, rates: Sequence[float], given: argparse.Namespace) -> Row:
    """Train at each rate, take the best on the validation part, and measure that one on the test part."""
    tried: list[tuple[float, float, Trained]] = []
    for rate in rates:
        entry = entry_for(job, len(splits.train), rate, given)
        trained = train(splits, entry.balancer(), entry.settings, seed=0)
        tried.append((trained.curves[-1]["validation"]["fused"], rate, trained))
    _, rate, trained = max(tried, key=lambda one: one[0])
    test = measure_run(trained.model, splits, seed=0, faults=False, protocols=False)["test"]
    facts = dict(zip(("data", "fold", "fusion", "method"), job.key, strict=True))
    numbers = {name: test[name] for name in ("fused", "committee", "view", "disparity")}
    own = {"own": test[test["view"]], "attention": [curve.get("attention") for curve in trained.curves]}
    told = {"lr": rate, "validation": {str(rate): score for score, rate, _ in tried}}
    return {**facts, **told, **numbers, **own, **without_sensors(trained.model, splits.test)}


def rows_of(out: Path) -> list[Row]:
    """Return the rows that are there."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def key_of(row: Row) -> tuple[str, int, str, str]:
    """Return what tells a row from others."""
    return row["data"], row["fold"], row["fusion"], row["method"]


def work(jobs: Sequence[Job], given: argparse.Namespace) -> Iterator[Row]:
    """Run what is missing, and yield each row."""
    rows = {key_of(row): row for row in rows_of(given.out)}
    kept: dict[tuple[str, int, bool], Splits] = {}
    for job in jobs:
        if job.key in rows:
            continue
        fusion, place = FUSIONS[job.fusion], (job.path, job.fold, FUSIONS[job.fusion].samples)
        if place not in kept:
            kept[place] = (
                data_set(job.path).cut_into(FOLDS).load(job.fold) if fusion.samples else components_of(*place[:2])
            )
        first = "hybrid" if fusion is HEADS else fusion.title
        chosen = rows.get((job.key[0], 0, first, "msl"))
        row = run(job, kept[place], RATES if chosen is None else [chosen["lr"]], given)
        rows[job.key] = row
        with given.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        yield row


def start(given: argparse.Namespace) -> None:
    """Run the study, as far as it is not done."""
    torch.set_num_threads(1)
    samples = [Path(path).stem for path in given.samples]
    jobs = planned(given.data, samples, given.folds, given.early_folds, given.fusions)
    done = {key_of(row) for row in rows_of(given.out)}
    print(f"{len(jobs)} runs planned, {sum(job.key not in done for job in jobs)} to do", flush=True)
    began = time.perf_counter()
    for row in work(jobs, given):
        seconds = time.perf_counter() - began
        print(f"{seconds:6.0f} s: {', '.join(map(str, key_of(row)))}: {row['fused']:.3f}, lr {row['lr']}", flush=True)


# -- time --


def seconds_of_step(job: Job, splits: Splits, given: argparse.Namespace) -> float:
    """Return the processor seconds of a training step, the median after some that are not counted."""
    entry = entry_for(job, len(splits.train), RATES[0], given)
    if job.method == "primaldual":  # at a step, f* of a run before is read off a list
        entry = entry.changed({"optimum": "zero"}, {})
    steps = Run(splits, entry.balancer(), entry.settings).steps()
    seconds = []
    for _ in range(WARM_UP + TIMED):
        began = time.process_time()
        next(steps)
        seconds.append(time.process_time() - began)
    return float(np.median(seconds[WARM_UP:]))


def times(given: argparse.Namespace) -> str:
    """Return the time of a step of every line on each data set, relative to late joint training."""
    torch.set_num_threads(1)
    lines = [(fusion, method) for fusion in FUSIONS.values() if not fusion.samples for method in fusion.methods]
    names = [Path(path).stem for path in given.data]
    found = {}
    for path in given.data:
        splits = components_of(path, 0)
        found |= {(path, *line): seconds_of_step(Job(path, 0, line[0].title, line[1]), splits, given) for line in lines}
    text = [f"| fusion | method | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for fusion, method in lines:
        cells = [f"{found[path, fusion, method] / found[path, LATE, 'msl']:.1f}" for path in given.data]
        text.append(f"| {fusion.title} | {NAMES[method]} | {' | '.join(cells)} |")
    milliseconds = [f"{1e3 * found[path, LATE, 'msl']:.1f}" for path in given.data]
    return "\n".join([*text, f"| late | joint training, ms | {' | '.join(milliseconds)} |"])


# -- tables --


def mean_of(found: Mapping[str, Mapping[str, float]], decision: str) -> float:
    """Return the mean over sensors."""
    return float(np.mean([numbers[decision] for numbers in found.values()]))


MEASURES = {
    "fused": lambda row: row["fused"],
    "committee": lambda row: row["committee"],
    "one missing, fused": lambda row: mean_of(row["missing"], "fused"),
    "one missing, committee": lambda row: mean_of(row["missing"], "committee"),
    "one alone, fused": lambda row: mean_of(row["alone"], "fused"),
    "disparity alone": lambda row: np.ptp([one["fused"] for one in row["alone"].values()]),
    "disparity by view": lambda row: row["disparity"],
}


def value(row: Row, measure: str) -> float:
    """Return a measure of a row, in %."""
    return 100 * float(MEASURES[measure](row))


def differences(rows: Sequence[Row], base: Sequence[Row], measure: str) -> list[float]:
    """Return the differences of rows to those of another line, paired by data set and fold."""
    known = {(row["data"], row["fold"]): value(row, measure) for row in base}
    places = ((row, (row["data"], row["fold"])) for row in rows)
    return [value(row, measure) - known[place] for row, place in places if place in known]


def told(found: Sequence[float]) -> str:
    """Return a mean with its interval; without one where one or two pairs say nearly nothing of the spread."""
    if not found:
        return "–"
    return interval(found) if len(found) > 2 else f"{np.mean(found):+.1f}"


def lines_of(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return rows by line, in the order of the study."""
    every = [(fusion.title, method) for fusion in FUSIONS.values() for method in fusion.methods]
    by_line = {line: [row for row in rows if (row["fusion"], row["method"]) == line] for line in every}
    return {line: own for line, own in by_line.items() if own}


def table(rows: Sequence[Row], measures: Sequence[str] = tuple(MEASURES)[:4]) -> str:
    """Return the measures of every line on each data set, the means over its folds."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    columns = [f"{name}: {measure}" for name in names for measure in measures]
    text = [f"| fusion | method | folds | {' | '.join(columns)} |", "|---" * (3 + len(columns)) + "|"]
    for (fusion, method), own in lines_of(rows).items():
        by_data = [[row for row in own if row["data"] == name] for name in names]
        cells = [
            f"{np.mean([value(row, measure) for row in some]):.1f}" if some else ""
            for some in by_data
            for measure in measures
        ]
        folds = "/".join(str(len(some)) for some in by_data)
        text.append(f"| {fusion} | {NAMES[method]} | {folds} | {' | '.join(cells)} |")
    return "\n".join(text)


def contrasts(rows: Sequence[Row], measures: Sequence[str] = tuple(MEASURES)) -> str:
    """Return differences over all data sets: to late joint training, to that within a fusion, and to heads."""
    lines = lines_of(rows)
    late = lines["late", "msl"]
    pairs = {f"{one}, {NAMES[method]} − late, joint training": (own, late) for (one, method), own in lines.items()}
    pairs.pop("late, joint training − late, joint training")
    for (fusion, method), own in lines.items():
        title = "hybrid" if fusion == HEADS.title else fusion
        if method != "msl" and fusion != "late":  # those are there already
            pairs[f"{fusion}: {NAMES[method]} − joint training"] = (own, lines[title, "msl"])
    for method in WITH_HEADS:
        if {("hybrid", method), (HEADS.title, method)} <= lines.keys():
            pairs[f"hybrid: {NAMES[method]}, masked − heads"] = (lines["hybrid", method], lines[HEADS.title, method])
    text = [f"| difference | n | {' | '.join(measures)} |", "|---" * (2 + len(measures)) + "|"]
    for title, (own, base) in pairs.items():
        found = [differences(own, base, measure) for measure in measures]
        text.append(f"| {title} | {len(found[0])} | {' | '.join(map(told, found))} |")
    return "\n".join(text)


def disparities(rows: Sequence[Row]) -> str:
    """Return the difference between the best and the worst sensor, alone and by the view of each line's model."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    text = [f"| fusion | method | view | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for (fusion, method), own in lines_of(rows).items():
        cells = []
        for name in names:
            some = [row for row in own if row["data"] == name]
            found = [np.mean([value(row, f"disparity {way}") for row in some]) for way in ("alone", "by view") if some]
            cells.append(" / ".join(f"{one:.1f}" for one in found))
        view = own[0]["view"].replace("_", " ")
        text.append(f"| {fusion} | {NAMES[method]} | {view} | {' | '.join(cells)} |")
    return "\n".join(text)


def by_sensor(rows: Sequence[Row]) -> str:
    """Return accuracies with each sensor missing, fused and committee, and the last share of attention of each."""
    text = ["| data | fusion | method | sensor | missing: fused | missing: committee | alone: fused | attention |"]
    text.append("|---" * 8 + "|")
    for data in dict.fromkeys(row["data"] for row in rows):
        for (fusion, method), own in lines_of([row for row in rows if row["data"] == data]).items():
            for sensor in own[0]["missing"]:
                found = [[100 * row["missing"][sensor][one] for row in own] for one in ("fused", "committee")]
                found.append([100 * row["alone"][sensor]["fused"] for row in own])
                if own[0]["attention"][-1]:
                    found.append([100 * row["attention"][-1][sensor] for row in own])
                cells = [f"{np.mean(numbers):.1f}" for numbers in found]
                text.append(f"| {data} | {fusion} | {NAMES[method]} | {sensor} | {' | '.join(cells)} |")
    return "\n".join(text)


# -- the figure --


def shares_over_training(rows: Sequence[Row], sensor: str) -> np.ndarray:
    """Return the share of attention of a sensor after every epoch, the mean over folds."""
    return np.mean([[curve[sensor] for curve in row["attention"]] for row in rows], axis=0)


def figure(rows: Sequence[Row], folder: Path) -> Path:
    """Draw the shares of sensors in the attention of hybrid models over training, a panel for each data set."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    with drawing.style():
        canvas = drawing.canvas(3.4 * len(names), 3.2)
        for place, data in enumerate(names):
            axes = canvas.add_subplot(1, len(names), place + 1)
            lines = lines_of([row for row in rows if row["data"] == data])
            for method, dash in DASHES.items():
                own = lines.get(("hybrid", method), [])
                least = min((len(row["attention"]) for row in own), default=0)
                cut = [{**row, "attention": row["attention"][:least]} for row in own]
                for sensor, colour in drawing.modality_colours(own[0]["missing"] if own else ()).items():
                    shares = 100 * shares_over_training(cut, sensor)
                    label = sensor.replace("_", " ") if method == "msl" else None
                    axes.plot(range(1, least + 1), shares, dash, color=colour, label=label)
            sensors = len(next(iter(lines.values()))[0]["missing"])
            axes.axhline(100 / sensors, color=drawing.LINE, linewidth=0.8, zorder=0)
            axes.set(title=data, xlabel="epoch", ylim=(0, 75))
            axes.locator_params(axis="x", integer=True)
            if place == 0:
                axes.set_ylabel("share of attention, %")
                for method, dash in DASHES.items():
                    axes.plot([], [], dash, color=drawing.FAINT, label=NAMES[method])
            axes.legend(loc="best", fontsize=7.5)
        return drawing.save_as(canvas, folder, "fusion-attention", "svg")


def main() -> None:
    """Run the study, time its lines, print its tables, or draw its figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    timer = commands.add_parser("time")
    for command in (runner, timer):
        command.add_argument("--data", nargs="+", required=True)
        command.add_argument("--steps", type=int, default=400)
        command.add_argument("--batch", type=int, default=32)
    runner.add_argument("--samples", nargs="*", default=["watch"], help="data of which early fusion reads samples too")
    runner.add_argument("--fusions", nargs="+", choices=list(FUSIONS), default=list(FUSIONS), help="some alone")
    runner.add_argument("--folds", type=int, default=3, help="of five")
    runner.add_argument("--early-folds", type=int, default=1)
    runner.add_argument("--out", type=Path, default=Path("fusion.jsonl"))
    printer, drawer = commands.add_parser("table"), commands.add_parser("figure")
    for command in (printer, drawer):
        command.add_argument("rows", type=Path)
    drawer.add_argument("--to", type=Path, default=Path())
    given = parser.parse_args()
    if given.command == "run":
        start(given)
    elif given.command == "time":
        print(times(given))
    elif given.command == "table":
        rows = rows_of(given.rows)
        print(table(rows), contrasts(rows), disparities(rows), by_sensor(rows), sep="\n\n")
    else:
        print(figure(rows_of(given.rows), given.to))


if __name__ == "__main__":
    main()

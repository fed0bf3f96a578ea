"""`equipoise monitor`: set up a sensor monitor for a finished run, and put it on trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli import options

if TYPE_CHECKING:
    from equipoise.deploy import MonitorEvaluation, SensorMonitor

EXAMPLE = "Example: equipoise monitor runs/one"


def monitor(
    run: options.RunFolder,
    data: Annotated[
        str | None, typer.Option("--data", help="The data of the run, where it was a file that is not in this folder.")
    ] = None,
    split: options.Split = None,
    false_alarms: Annotated[
        float, typer.Option(help="Share of a healthy stream's stretches in which an alarm may be up.")
    ] = 0.01,
    stretch: Annotated[int, typer.Option(min=1, help="Windows of a stretch.")] = 10,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for monitor.json; RUN/export.")] = None,
    encoder: options.Encoder = None,
    model: options.OwnModelPath = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Calibrate a monitor on healthy validation data, then break every sensor of the test data and see.

    Nothing of the test part has a say in the calibration.
    """
    import torch

    torch.set_num_threads(1)
    from equipoise.deploy import evaluate_monitor, fit_monitor, load_saved_model
    from equipoise.deploy.run_data import data_of_run
    from equipoise.measure import training_statistics
    from equipoise.util.errors import collect
    from equipoise.util.files import inside
    from equipoise.util.progress import status_line

    kept = load_saved_model(run, encoder=encoder, model=model, trust=trust)
    splits = data_of_run(kept, data, split)
    folder = out or inside(kept.folder, "export")
    with status_line("monitor", quiet=as_json) as say:
        say("calibrating on the validation part")
        (made,) = collect(
            lambda: fit_monitor(kept.model, splits.validation, false_alarms=false_alarms, stretch=stretch)
        )
        folder.mkdir(parents=True, exist_ok=True)
        made.save(inside(folder, "monitor.json"))
        say("breaking the sensors of the test part")
        statistics = training_statistics(splits.train)
        (trial,) = collect(lambda: evaluate_monitor(made, kept.model, splits.test, statistics, stretch=stretch))
    if as_json:
        print(json.dumps({"file": str(folder / "monitor.json"), "calibration": made.facts, "trial": trial.as_dict()}))
        return
    _print(made, trial, stretch)
    print(f"\nThe monitor: {folder / 'monitor.json'}")


def _print(made: SensorMonitor, trial: MonitorEvaluation, stretch: int) -> None:
    from equipoise.deploy.monitor_evaluation import STREAM_LEGEND

    facts = made.facts
    print(f"Calibrated on {facts['windows']:,} healthy validation windows in {facts['streams']} streams.")
    print(
        f"{trial.streams} healthy test streams: an alarm was up in {100 * trial.stretches:.2f} % of stretches of "
        f"{stretch} windows ({100 * trial.worst:.2f} % in the worst stream), and in {100 * trial.windows:.2f} % of "
        "windows."
    )
    print(f"Total failures found within {stretch} windows: {100 * trial.dead():.1f} %.\n")
    width = max(map(len, made.modalities)) + 2
    print(f"{'fault':<22}{'sensor':<{width}}{'found, %':>9}{'delay':>8}{'named, %':>10}{'trials':>8}")
    for each in trial.faults:
        delay = "–" if each.delay is None else f"{each.delay:.1f}"
        named = "–" if each.named is None else f"{100 * each.named:.1f}"
        print(f"{each.fault:<22}{each.sensor:<{width}}{100 * each.found:>9.1f}{delay:>8}{named:>10}{each.trials:>8}")
    print("\nThe faults:", *(f"  {fault}: {words}" for fault, words in STREAM_LEGEND.items()), sep="\n")

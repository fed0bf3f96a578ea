"""`equipoise export`: the model of a finished run as one file for another runtime, with its card."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli import options
from equipoise.util.extras import install_line

EXAMPLE = "Example: equipoise export runs/one --to onnx, or equipoise export runs/watch --best"


def export(
    run: options.RunFolder,
    best: Annotated[
        bool, typer.Option("--best", help="Of a folder of several runs: rank the methods, and export the best.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option("--data", help="The data of the run, if the file is not here; with --best, which of several."),
    ] = None,
    split: options.Split = None,
    to: Annotated[str, typer.Option("--to", help="onnx or torch-export.")] = "onnx",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the file and its card; RUN/export, with --best OUT/export.")
    ] = None,
    encoder: options.Encoder = None,
    model: options.OwnModelPath = None,
    trust: options.Trust = False,
    track: Annotated[str, typer.Option("--track", help="Give the card to trackers: tensorboard, wandb, mlflow.")] = "",
    as_json: options.Json = False,
) -> None:
    """Write a trained model as one graph that knows missing sensors, compare it with PyTorch, and write its card."""
    import torch

    torch.set_num_threads(1)
    from equipoise.deploy.card import card, write_card
    from equipoise.deploy.exporting import SAMPLES
    from equipoise.deploy.exporting import export as write
    from equipoise.deploy.run_data import data_of_run, find_data, graph_inputs
    from equipoise.deploy.saved_model import load_saved_model
    from equipoise.util.files import inside
    from equipoise.util.progress import status_line

    trackers = options.trackers_of(track)
    ranked: list[dict[str, Any]] = []
    if best:
        from equipoise import report

        results = report.read(run)
        order = report.ranking(results, data)
        ranked = report.ranking_as_dicts(order)
        if not as_json:
            print(report.ranking_text(order, results))
        run, out = results.run_folder(order[0].row), out or inside(run, "export")
        data = None
    kept = load_saved_model(run, encoder=encoder, model=model, trust=trust)
    folder = out or inside(kept.folder, "export")
    facts = {
        "classes": json.dumps(kept.classes, ensure_ascii=False),
        "task": kept.task.kind,
        "data": kept.row["data"],
        "split": kept.row["split"],
        "config": kept.row["config"],
    }
    with status_line("export", quiet=as_json) as say:
        samples = None
        if data is not None or find_data(kept) is not None:
            say("reading samples of the validation part")
            samples = graph_inputs(kept, data_of_run(kept, data, split).validation, SAMPLES)
        say(f"exporting to {to}, and comparing with PyTorch")
        written = write(kept.deployable(), folder, to, facts=facts, samples=samples)
    files = [written.file, *write_card(kept, written, folder)]
    if trackers.names:
        named = replace(trackers, run=f"card of {kept.row['label']} on {kept.row['data']}")
        named.publish(folder, files[2].read_text("utf-8"), files)
    if as_json:
        chosen = {"ranking": ranked} if ranked else {}
        print(json.dumps({"files": [str(each) for each in files], **chosen, **card(kept, written)}))
        raise typer.Exit(1 if written.problem else 0)
    print(f"{written.file}: inputs {', '.join(written.inputs)}; outputs {', '.join(written.outputs)}.")
    if written.difference is None:
        print(f"Not compared with PyTorch: onnxruntime is not installed; type: {install_line('export')}")
    else:
        print(f"Compared with PyTorch on {written.checked}: largest difference {written.difference:.1e}.")
    if samples is None:
        print(f"No samples of its data were compared: {kept.row['data']} is not here; type --data PATH")
    print(f"The card: {files[2]}")
    if written.problem:
        print(f"equipoise: {written.problem}", file=sys.stderr)
        raise typer.Exit(1)
    if best:
        place = shlex.quote(str(kept.folder))
        print(f"The run: {kept.folder}. To answer new samples with its model, as they were recorded:")
        print(f"  equipoise predict {place} --data new.npz --out answers.csv")
        print(f"  python: equipoise.load({str(kept.folder)!r}).predict(samples)")

"""`equipoise export`: the model of a finished run as one file for another runtime, with its card."""

import json
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli import options

EXAMPLE = "Example: equipoise export runs/one --to onnx"


def export(
    run: options.RunFolder,
    to: Annotated[str, typer.Option("--to", help="onnx or torch-export.")] = "onnx",
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the file and its card; RUN/export.")] = None,
    encoder: options.Encoder = None,
    trust: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Write a trained model as one graph that knows missing sensors, compare it with PyTorch, and write its card."""
    import torch

    torch.set_num_threads(1)
    from equipoise.deploy.exporting import card, write_card
    from equipoise.deploy.exporting import export as write
    from equipoise.deploy.saved_model import load_saved_model
    from equipoise.util.files import inside
    from equipoise.util.progress import status_line

    kept = load_saved_model(run, encoder=encoder, trust=trust)
    folder = out or inside(kept.folder, "export")
    facts = {
        "classes": json.dumps(kept.classes, ensure_ascii=False),
        "data": kept.row["data"],
        "split": kept.row["split"],
        "config": kept.row["config"],
    }
    with status_line("export", quiet=as_json) as say:
        say(f"exporting to {to}, and comparing with PyTorch")
        written = write(kept.deployable(), folder, to, facts=facts)
    files = [written.file, *write_card(kept, written, folder)]
    if as_json:
        print(json.dumps({"files": [str(each) for each in files], **card(kept, written)}))
        return
    print(f"{written.file}: inputs {', '.join(written.inputs)}; outputs {', '.join(written.outputs)}.")
    if written.difference is None:
        print("Not compared with PyTorch: onnxruntime is not installed; type: pip install 'equipoise[export]'")
    else:
        print(f"Compared with PyTorch on {written.checked}: largest difference {written.difference:.1e}.")
    print(f"The card: {files[2]}")

"""The saved model of a finished run: weights and one JSON file, enough to build the model again without its data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from equipoise.data.splits import Splits
from equipoise.models import LateFusion
from equipoise.util.files import inside, write_atomic

FORMAT = 1
DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"


def save_model(folder: Path, model: LateFusion, row: dict[str, Any], splits: Splits) -> None:
    """Write what `deploy.load_saved_model` reads, the description last: a kill leaves no half of a saved model.

    Args:
        folder: Of the run.
        model: As it was measured, so with its committee fitted.
        row: Its results.
        splits: The data it was trained on.
    """
    import safetensors.torch

    content = {
        "format": FORMAT,
        "classes": list(splits.classes),
        "unimodal": model.unimodal,
        "inputs": _inputs(splits),
        "parts": {name: _counts(part) for name, part in splits.parts.items()},
        "row": row,
    }
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = inside(folder, f"{WEIGHTS}.tmp")
    try:
        safetensors.torch.save_model(model, str(unfinished))
    except safetensors.SafetensorError as error:  # raised where the disk is full
        raise OSError(str(error)) from None
    unfinished.replace(inside(folder, WEIGHTS))
    write_atomic(folder, DESCRIPTION, json.dumps(content, indent=1) + "\n")


def _inputs(splits: Splits) -> dict[str, dict[str, Any]]:
    """Shape, type, view and standardisation of each modality's input."""
    inputs: dict[str, dict[str, Any]] = {}
    for name, read in splits.shapes.items():
        array, view = splits.train.inputs[name], splits.train.views.get(name)
        inputs[name] = {
            "read": list(read),
            "stored": list(array.shape[1:]),
            "dtype": str(array.dtype).removeprefix("torch."),
            "view": None if view is None else view.as_dict(),
            "ragged": f"{name}_length" in splits.train.inputs,
        }
        if view is None and not array.is_floating_point():
            inputs[name]["most"] = int(array.max())
        if name in splits.scales:
            mean, deviation = splits.scales[name]
            inputs[name] |= {"mean": mean.flatten().tolist(), "deviation": deviation.flatten().tolist()}
    return inputs


def _counts(part: Any) -> dict[str, int]:
    groups = {} if part.group is None else {"groups": len(part.group.unique())}
    return {"samples": len(part), **groups}

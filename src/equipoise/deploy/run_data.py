"""The data that a saved model was trained on, read again."""

from pathlib import Path

import torch
from torch import Tensor

from equipoise.data.sets import PUBLISHED
from equipoise.data.source import all_data, data_set, mark_task, mark_tokens
from equipoise.data.splits import Part, Splits
from equipoise.deploy.deployable import LENGTH, VALID, InputSpec
from equipoise.deploy.saved_model import SavedModel
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput, collect


def find_data(saved: SavedModel) -> str | None:
    """Return the name or the file that a run was trained on, or None if the file is not here."""
    data = saved.row["data"]
    return data if data in {**all_data(), **PUBLISHED} or Path(data).is_file() else None


def data_of_run(saved: SavedModel, data: str | None = None, split: str | None = None) -> Splits:
    """Read the data of a run, cut as it was.

    Args:
        saved: The model of the run.
        data: The name or the file, if the file is not where it was.
        split: The protocol that cuts prepared data.

    Raises:
        BadInput: If the file is not here, or the samples or the cut are not those of the run.
    """
    if data is None and (data := find_data(saved)) is None:
        raise BadInput(
            f"the run was trained on {saved.row['data']!r}, and there is no such file here; type --data PATH"
        )
    read = Settings().changed({"encoder": saved.encoder, "features": saved.row["run"]["features"]})
    source, fold = data_set(data, split), saved.row["fold"]
    source = source.cut_into(saved.row.get("folds") or source.folds)
    if fold is not None and fold >= source.folds:
        raise BadInput(f"{saved.folder}: expected one of the {source.folds} folds of {source.name}, found fold {fold}")
    source = mark_task(mark_tokens(source, [(read.encoder, read.features)]), [saved.row.get("task", "auto")])
    (splits,) = collect(lambda: source.load(fold))
    if (found := splits.fingerprint()) != saved.row["split"]:
        raise BadInput(
            f"the data of this run has the fingerprint {saved.row['split']}; found {found} in {data}. Give the same "
            "data, cut the same way, with --data and --split"
        )
    return splits


def graph_inputs(saved: SavedModel, part: Part, count: int | None = None) -> dict[str, Tensor]:
    """Return samples of a part as the exported graph takes them, with the flags of the sensors that they have.

    Args:
        saved: The model.
        part: Of the data of its run.
        count: How many samples, evenly spread over the part; all where it is None or more than there are.
    """
    if count is not None and count < len(part):
        part = part.take(torch.linspace(0, len(part) - 1, count).long())
    stored, ready = part.in_memory(), part.ready().in_memory()
    inputs: dict[str, Tensor] = {}
    for name, spec in saved.input_specs.items():
        values = (stored if spec.before is None else ready).inputs[name]
        inputs[name] = _unscaled(values, spec)
        if spec.ragged:
            inputs[name + LENGTH] = stored.inputs[name + LENGTH]
        inputs[name + VALID] = stored.present.get(name, torch.ones(len(part), dtype=torch.bool))
    return inputs


def _unscaled(values: Tensor, spec: InputSpec) -> Tensor:
    if spec.mean is None or spec.deviation is None:
        return values
    return (values * spec.deviation + spec.mean).to(spec.dtype)

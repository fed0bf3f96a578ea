"""Files around `equipoise predict`: samples in, a table of answers out, and their score where labels are given."""

import csv
import io
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from equipoise.data.own.columns import as_numpy, read_ids
from equipoise.data.own.manifest import read_manifest
from equipoise.data.own.npz import read_arrays
from equipoise.data.own.recorded import windows_of_recorded
from equipoise.data.source import data_set, is_file
from equipoise.data.splits import Splits
from equipoise.deploy.prediction import Prediction
from equipoise.deploy.saved_model import SavedModel
from equipoise.models.metrics import Metric, events, metric_of_row
from equipoise.util.errors import BadInput, Unreadable, raise_all
from equipoise.util.extras import needs
from equipoise.util.files import csv_cell, inside, write_atomic

SAME_SPAN = 0.05
"""Windows may differ from those of training by this share: rates that are read off times vary a little."""


class NewData(NamedTuple):
    """Samples that a model is to answer.

    Args:
        name: Of the file or data set.
        inputs: By sensor, as recorded.
        label: The right answers, as they stand there; None where there are none.
        places: The recording, and the seconds of start and end, of each sample that was cut from one; empty elsewhere.
    """

    name: str
    inputs: dict[str, Any]
    label: Any
    places: Mapping[str, list[Any]] = MappingProxyType({})


class Score(NamedTuple):
    """The score of answers whose right ones are known.

    Args:
        metric: The metric that the model was chosen by.
        value: Over the samples that the model has not seen; NaN where there is none, or where they cannot tell.
        samples: How many these are.
        events: How many of these are of the positive class; None where there is no such.
        of_seen: The metric over the others, which flatters.
    """

    metric: Metric
    value: float
    samples: int
    events: int | None
    of_seen: float


def read_new_data(text: str, saved: SavedModel) -> NewData:
    """Read samples for a model: a file of the user's own, or the test part of a data set by name.

    Args:
        text: An ``.npz``, a ``.csv`` or ``.parquet`` manifest, or the name or folder of a data set.
        saved: The model.

    Raises:
        BadInput: If it cannot be read.
    """
    if not is_file(text):
        return _test_part(text, saved)
    places: Mapping[str, list[Any]] = {}
    path = Path(text)
    if not path.is_file():
        raise BadInput(f"no such file: {path}")
    try:
        if path.suffix.lower() == ".npz":
            arrays, problems = read_arrays(path)
            label = arrays.get("label")
        else:
            manifest = read_manifest(path)
            if manifest.recorded:
                cut = windows_of_recorded(manifest.table)
                arrays, label, places = {"id": cut.names, **cut.arrays}, cut.label, cut.places
                problems = [*cut.problems, *_other_windows(cut.notes, saved)]
            else:
                (arrays, problems, notes), (label, _) = manifest.arrays(), manifest.label()
                sounds = [f"{column.name}: " for column in manifest.modalities if column.kind == "sound"]
                problems += _otherwise_read([note for note in notes if note.startswith(tuple(sounds))], saved)
    except Unreadable as why:
        raise BadInput(str(why)) from why
    if label is not None and not as_numpy(label).ndim:
        problems = [*problems, "label: expected one answer per sample, [N], found one without an axis; leave it out"]
    try:
        read_ids(arrays.get("id", ()))
    except BadInput as why:
        problems = [*problems, str(why)]
    raise_all(problems, f"data {path.name!r} cannot be read:")
    return NewData(path.name, arrays, label, places)


def _otherwise_read(notes: list[str], saved: SavedModel) -> list[str]:
    """Name the sounds whose rate or length, which new files decide anew, is not that of the training files."""
    about = saved.row.get("about", "").split("; ")
    trained = {note.partition(": ")[0]: note for note in about}
    return [
        f"{note}: expected what the model was trained on, {trained[name].partition(': ')[2]}; convert the files"
        for note in notes
        if (name := note.partition(": ")[0]) in trained and note not in about
    ]


def _other_windows(notes: list[str], saved: SavedModel) -> list[str]:
    """Name the sensors whose windows span another time than those of training, though they may have as many steps."""
    seconds, trained = _spans(notes), _spans(saved.row.get("about", "").split("; "))
    return [
        f"{name}: expected windows of {trained[name]:.3g} s, as the model was trained on, found {seconds[name]:.3g} s; "
        "give window and rate as for training"
        for name in seconds
        if name in trained and abs(seconds[name] - trained[name]) > SAME_SPAN * trained[name]
    ]


def _spans(notes: list[str]) -> dict[str, float]:
    """Return the seconds of the windows of each sensor, by what cutting them noted."""
    found = (re.match(r"(.+): (\d+) steps at (\S+) Hz", note) for note in notes)
    return {each[1]: int(each[2]) / float(each[3]) for each in found if each}


def _test_part(text: str, saved: SavedModel) -> NewData:
    source, fold = data_set(text), saved.row["fold"]
    splits: Splits = source.load(fold if fold is not None and fold < source.folds else None)
    part, inputs = splits.test.in_memory(), dict[str, Any]()
    for name, array in part.inputs.items():
        inputs[name] = array
        if name in splits.scales:
            mean, deviation = splits.scales[name]
            inputs[name] = array * deviation + mean
    return NewData(f"{source.name}, test part", inputs, part.label)


def score(saved: SavedModel, prediction: Prediction, label: Any) -> Score | None:
    """Score answers by the metric of the run, new samples and those that the model has seen apart.

    None where the labels are not of the model's kind.
    """
    right = _as_trained(prediction, as_numpy(label))
    if right is None:
        return None
    answers = torch.as_tensor(prediction.values if prediction.probabilities is None else prediction.probabilities)
    metric = metric_of_row(saved.row)
    new = torch.tensor([not part for part in prediction.seen or [""] * len(answers)])
    of_new, of_seen = (
        metric(answers[rows], right[rows], saved.task) if rows.any() else math.nan for rows in (new, ~new)
    )
    return Score(metric, of_new, int(new.sum()), events(right[new], saved.task), of_seen)


def _as_trained(prediction: Prediction, label: np.ndarray) -> torch.Tensor | None:
    """Return labels as a part of the data holds them."""
    names, count = prediction.names, len(prediction.sensors)
    if len(label) != count:
        return None
    if prediction.kind != "classes":
        table = label.reshape(count, -1)
        fits = table.dtype.kind in "biuf" and table.shape[1] == len(names) and np.isfinite(table.astype(float)).all()
        return torch.as_tensor(table.astype(np.float32)) if fits else None
    place = {name: number for number, name in enumerate(names)}
    values = label.reshape(-1).tolist()
    if len(values) == count and all(str(value) in place for value in values):
        return torch.tensor([place[str(value)] for value in values])
    numbers = len(values) == count and label.dtype.kind in "iu" and 0 <= label.min() <= label.max() < len(names)
    return torch.tensor(values) if numbers else None


# -- writing --


def _write_csv(columns: dict[str, list[Any]], path: Path) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_cell, columns))
    writer.writerows(map(csv_cell, row) for row in zip(*columns.values(), strict=True))
    write_atomic(path.parent, path.name, text.getvalue())


def _write_npz(columns: dict[str, list[Any]], path: Path) -> None:
    unfinished = inside(path.parent, f"{path.name}.tmp")
    arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
    with unfinished.open("wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(unfinished, path)  # noqa: PTH105 (a link there is replaced, not followed)


def _write_parquet(columns: dict[str, list[Any]], path: Path) -> None:
    with needs("writing .parquet", "media"):
        import pyarrow as pa
        import pyarrow.parquet
    unfinished = inside(path.parent, f"{path.name}.tmp")
    pyarrow.parquet.write_table(pa.table(columns), unfinished)
    os.replace(unfinished, path)  # noqa: PTH105


WRITERS: dict[str, Callable[[dict[str, list[Any]], Path], None]] = {
    ".csv": _write_csv,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
}
"""The writers of answers, by the ending of the file."""


def check_out(path: Path | None) -> None:
    """Refuse a file whose ending is not known, before anything is computed."""
    if path is not None and path.suffix.lower() not in WRITERS:
        raise BadInput(f"--out: expected a file that ends in {', '.join(WRITERS)}, found {path}")


def answer_columns(prediction: Prediction, places: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the table of `Prediction.columns`, with the places of windows of recordings in front, behind "row".

    Where the model has seen some of the samples, the part is under "seen".
    """
    columns = prediction.columns()
    columns |= {"seen": prediction.seen} if prediction.seen and any(prediction.seen) else {}
    return {"row": columns.pop("row"), **places, **columns}


def write_answers(prediction: Prediction, path: Path, places: Mapping[str, list[Any]] = MappingProxyType({})) -> None:
    """Write the table of `answer_columns`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[path.suffix.lower()](answer_columns(prediction, places), path)

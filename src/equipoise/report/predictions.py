"""The answers that runs keep, sample by sample."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from equipoise.measure.predictions import PREDICTIONS
from equipoise.report.results import Results, read
from equipoise.util.errors import BadInput

if TYPE_CHECKING:
    import numpy as np

    from equipoise.report.headline import Row


@final
@dataclass(frozen=True)
class Predictions:
    """The answers of one run on its test part.

    Args:
        run: Its row of results.
        task: The kind of task: "classes", "regression" or "labels".
        names: Of the classes, the labels, or the columns of the target.
        row: The number of each sample in the data, from 0, [N].
        group: The group of each sample, [N]; None where there are none.
        label: The right answers: numbers of classes [N], numbers [N, D], or 0 and 1 [N, L].
        answers: Under "fused", "committee" and "alone.NAME": probabilities or numbers, [N, size].
        present: Of each sensor that some samples lack, which samples have it, [N].
        id: The name of each sample, [N]; None where they have none.
    """

    run: Row
    task: str
    names: tuple[str, ...]
    row: np.ndarray
    group: np.ndarray | None
    label: np.ndarray
    answers: Mapping[str, np.ndarray]
    present: Mapping[str, np.ndarray]
    id: np.ndarray | None = None

    def columns(self) -> dict[str, Sequence[object] | np.ndarray]:
        """Return one column per number, as ``pandas.DataFrame`` takes them, with the run in front.

        Classes are named; "fused" is the likeliest of them, and "fused.NAME" its probability. Other answers are
        "fused.NAME" only.
        """
        count = len(self.row)
        run = {"data": "data", "method": "label", "seed": "seed", "fold": "fold", "config": "config"}
        columns: dict[str, Sequence[object] | np.ndarray] = {
            name: [self.run.get(key)] * count for name, key in run.items()
        }
        named = {"row": self.row, "id": self.id, "group": self.group}
        columns |= {name: values for name, values in named.items() if values is not None}
        classes = self.task == "classes"
        if classes:
            columns["label"] = [self.names[number] for number in self.label]
        else:
            columns |= {f"label.{name}": self.label[:, at] for at, name in enumerate(self.names)}
        for decision, answer in self.answers.items():
            if classes:
                columns[decision] = [self.names[number] for number in answer.argmax(axis=1)]
            columns |= {f"{decision}.{name}": answer[:, at] for at, name in enumerate(self.names)}
        return columns | {f"present.{name}": mask for name, mask in self.present.items()}


def predictions(folder: str | Path | Results) -> list[Predictions]:
    """Read the answers of every finished run of a folder; runs that kept none are left out.

    Args:
        folder: The folder given to ``equipoise compare --out``, or what `read` has read there.

    Raises:
        BadInput: If there are no results, or a file of answers is damaged.
    """
    results = folder if isinstance(folder, Results) else read(folder)
    found = (predictions_of_run(results, row) for row in results.rows)
    return [one for one in found if one is not None]


def predictions_of_run(results: Results, row: Row) -> Predictions | None:
    """Read the answers of one run; None where it kept none."""
    import numpy as np

    path = results.run_folder(row) / PREDICTIONS
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file) as content:  # which reads no pickles
            arrays = {name: content[name] for name in content.files}
        return Predictions(
            row,
            str(arrays["task"]),
            tuple(map(str, arrays["names"])),
            arrays["row"],
            arrays.get("group"),
            arrays["label"],
            {name: one for name, one in arrays.items() if name in ("fused", "committee") or name.startswith("alone.")},
            {name.removeprefix("present."): one for name, one in arrays.items() if name.startswith("present.")},
            arrays.get("id"),
        )
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path}: expected the answers of a run, found a damaged file ({error}); remove it") from None

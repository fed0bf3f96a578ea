"""The answers of a trained model on the test part, sample by sample, as a run keeps them."""

import io

import numpy as np
import torch
from torch import Tensor

from equipoise.data.splits import Splits
from equipoise.measure.outputs import Outputs
from equipoise.models.task import Task

PREDICTIONS = "predictions.npz"
"""The file with them in the folder of a run."""
NO_FOLD = -1


def predictions_of(
    outputs: Outputs, task: Task, splits: Splits, *, fold: int | None = None, fused: bool = True
) -> dict[str, np.ndarray]:
    """Return the answers of a model on the test part, in order.

    Args:
        outputs: Its decisions there, its committee fitted.
        task: Its task.
        splits: The data.
        fold: The number of the fold; None for the data set's own cut.
        fused: Whether the model has a fused decision and a committee that were trained.

    Returns:
        "row" [N], the number of each sample in the data, from 0; "id" [N], its name, where it has one; "group" [N],
        names or numbers, where there are groups; "fold" [N], −1 for the data set's own cut; "label" as the part holds
        it; "fused", "committee" and "alone.NAME" of each modality, probabilities or numbers [N, size]; "present.NAME"
        [N] of modalities that some samples lack; "names" [size], of classes, labels or columns; and "task", its kind.
    """
    part = splits.test
    answers: dict[str, Tensor | None] = {f"alone.{name}": task.answer(one) for name, one in outputs.unimodal.items()}
    if fused:
        answers = {"fused": task.answer(outputs.fused), "committee": outputs.committee, **answers}
    columns: dict[str, Tensor | None] = {
        "row": torch.arange(len(part)) if part.index is None else part.index,
        "group": part.group,
        "fold": torch.full((len(part),), NO_FOLD if fold is None else fold),
        "label": part.label,
        **{name: None if answer is None else answer.float() for name, answer in answers.items()},
        **{f"present.{name}": mask for name, mask in outputs.present.items()},
    }
    arrays = {name: column.cpu().numpy() for name, column in columns.items() if column is not None}
    if splits.groups and part.group is not None:
        arrays["group"] = np.array(splits.groups)[arrays["group"]]
    if splits.ids:
        arrays["id"] = np.array(splits.ids)[arrays["row"]]
    return {**arrays, "names": np.array(task.names), "task": np.array(task.kind)}


def as_npz(arrays: dict[str, np.ndarray]) -> bytes:
    """Return arrays as the content of a compressed ``.npz``."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # ty: ignore[invalid-argument-type]
    return content.getvalue()

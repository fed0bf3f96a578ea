"""What a finished run keeps so that its model can be built again without its data: weights, and one plain file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from equipoise.data.views import view_of
from equipoise.deploy.deployable import IN_THE_GRAPH, Deployable, InputSpec
from equipoise.deploy.description import problems_in, read_description, row_problems
from equipoise.deploy.rebuild import first_line, rebuilt, tensors_in
from equipoise.models import LateFusion
from equipoise.models.choose import KINDS, kinds_of
from equipoise.study.registry import all_methods
from equipoise.study.saved_model import DESCRIPTION, WEIGHTS
from equipoise.util.errors import BadInput, raise_all
from equipoise.util.files import inside

TRAIN = "equipoise train --data watch --method mimo --out runs/one"


@final
@dataclass(frozen=True, eq=False)
class SavedModel:
    """A finished run.

    Args:
        folder: Where it lies.
        model: With its weights, its committee fitted, in evaluation mode.
        row: Its row of results.
        classes: Their names.
        input_specs: What each input of a deployed model is.
        parts: How many samples and groups each part of the data had.
        encoder: The words that its encoders were built from.
    """

    folder: Path
    model: LateFusion
    row: dict[str, Any]
    classes: tuple[str, ...]
    input_specs: dict[str, InputSpec]
    parts: dict[str, dict[str, int]]
    encoder: str = "auto"

    def deployable(self) -> Deployable:
        """The model as it is shipped."""
        return Deployable(self.model, self.input_specs)


def load_saved_model(path: Path | str, *, encoder: str | None = None, trust: bool = False) -> SavedModel:
    """Build the model of a finished run again.

    A file is not believed to name code: from the run's own words only encoders of the package are made. One of the
    user's own has to be named again, or the folder to be trusted; it is checked to make modules before it is called.

    Args:
        path: The folder of a run, `OUT/runs/NAME`, or the folder OUT of a command that made a single one.
        encoder: The encoders as they were named for training, where a dotted path was among them.
        trust: Import what the folder names.

    Raises:
        BadInput: If there is no such run, or several, or its model cannot be built again; with all that is wrong.
    """
    folder = _find(Path(path))
    weights = tensors_in(folder)
    size = (folder / WEIGHTS).stat().st_size if isinstance(weights, dict) else 0
    content = read_description(folder, DESCRIPTION, size)
    problems = [f"{folder / DESCRIPTION}: {each}" for each in problems_in(content)]
    if not problems:
        words = content["row"]["run"]["encoder"] if encoder is None else encoder
        problems += _encoder_problems(folder, content, words, believed=trust or encoder is not None)
    if isinstance(weights, str):
        problems.append(weights)
    if problems or isinstance(weights, str):
        raise BadInput("\n".join(problems))
    row = content["row"]
    method = all_methods()[row["method"]]
    if not method.fused:
        raise BadInput(
            f"{folder}: {row['method']} trains every sensor alone and leaves the fused head as it was drawn, so that "
            "there is no one model to ship; train with --method ensemble, whose sensors vote, or with another method"
        )
    input_specs = {name: _intake(plain) for name, plain in content["inputs"].items()}
    try:
        model = rebuilt(folder, content, words, method, weights, input_specs)
    except BadInput:
        raise
    except (ValueError, RuntimeError, TypeError, OverflowError) as found:
        raise BadInput(f"{folder}: the model of this run cannot be made again: {found}") from None
    _load(model, folder)
    return SavedModel(folder, model.eval(), row, tuple(content["classes"]), input_specs, content["parts"], words)


def _find(path: Path) -> Path:
    if inside(path, DESCRIPTION).is_file():
        return path
    runs = sorted(each.parent for each in path.glob(f"runs/*/{DESCRIPTION}"))
    if len(runs) == 1:
        return inside(path, "runs", runs[0].name)
    if runs:
        raise BadInput(f"{path} holds {len(runs)} finished runs; name one of them:\n" + "\n".join(_listed(runs)))
    if not path.is_dir():
        raise BadInput(f"no such folder: {path}; expected the folder of a finished run. Make one: {TRAIN}")
    if (path / "tune.db").is_file():
        raise BadInput(
            f"{path}: a search keeps no models; the command at the end of {path / 'tune.md'} trains the best"
        )
    old = " (its runs were made before models were kept: train again)" if any(path.glob("**/epoch-*")) else ""
    msg = f"{path}: expected the folder of a finished run, found no {DESCRIPTION} in it{old}. Make one: {TRAIN}"
    raise BadInput(msg)


def _listed(folders: list[Path]) -> list[str]:
    """A line for each run, the best of each data set first, with what tells it from the others."""
    rows, lines, damaged = {}, [], []
    for each in folders:
        try:
            content = read_description(each, DESCRIPTION)
            raise_all(row_problems(content))
            rows[each] = content["row"]
        except ValueError as found:
            damaged.append(f"  {each}  cannot be read: {first_line(found)}")
    words = {each: _words(row) for each, row in rows.items()}
    values: dict[str, set[str]] = {}
    for some in words.values():
        for key, value in some.items():
            values.setdefault(key, set()).add(value)
    for folder in sorted(rows, key=lambda each: (rows[each]["data"], -(_validated(rows[each]) or 0.0))):
        row, accuracy = rows[folder], _validated(rows[folder])
        fold = "" if row["fold"] is None else f", fold {row['fold']}"
        differs = "".join(f", {key}={value}" for key, value in words[folder].items() if len(values[key]) > 1)
        known = "" if accuracy is None else f": {100 * accuracy:.1f} % on validation data"
        lines.append(f"  {folder}  {row['label']} on {row['data']}, seed {row['seed']}{fold}{differs}{known}")
    return [*lines, *damaged]


def _words(row: dict[str, Any]) -> dict[str, str]:
    """Settings and parameters of a run as they would be typed."""
    own = {f"{row['label']}.{key}": value for key, value in row.get("params", {}).items()}
    return {key: str(value) for key, value in {**row["run"], **own}.items()}


def _validated(row: dict[str, Any]) -> float | None:
    return row.get("validation", {}).get("fused")


def _encoder_problems(folder: Path, content: dict[str, Any], words: str, *, believed: bool) -> list[str]:
    kinds, problems = kinds_of(words, content["inputs"])
    if problems or believed:
        return problems
    own = {kind: name for name, kind in kinds.items() if kind not in KINDS}
    typed = shlex.quote("".join(sign for sign in words if sign.isprintable()))
    return [
        f"{folder / DESCRIPTION}: the encoder of {name!r} is {kind!r}, which is no encoder of the package, and no code "
        f"runs because a file names it. If it is yours, type --encoder {typed}; if you know who made the folder, "
        "--trust"
        for kind, name in own.items()
    ]


def _load(model: nn.Module, folder: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    try:
        load_model(model, str(inside(folder, WEIGHTS)))
    except (OSError, SafetensorError, RuntimeError) as found:
        file = folder / WEIGHTS
        raise BadInput(f"{file}: expected the weights of this run's model, found: {first_line(found)}") from None


def _intake(plain: dict[str, Any]) -> InputSpec:
    """What the graph takes: what is stored where the graph can do the rest, or what encoders read."""
    view = None if plain["view"] is None else view_of(plain["view"])
    if view is not None and not isinstance(view, IN_THE_GRAPH):
        return InputSpec(tuple(plain["read"]), ragged=plain["ragged"] and not view.takes_lengths, before=view)
    stored = tuple(plain["stored"])
    per_channel = (-1, *[1] * (len(stored) - 1))
    scales = {key: torch.tensor(plain[key]).reshape(per_channel) for key in ("mean", "deviation") if key in plain}
    mean, deviation = scales.get("mean"), scales.get("deviation")
    known = {"most": plain["most"]} if "most" in plain else {}  # word numbers beyond it may have no vector
    return InputSpec(stored, getattr(torch, plain["dtype"]), plain["ragged"], view, mean, deviation, **known)

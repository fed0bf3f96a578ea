"""Reading the saved model of a finished run: everything is checked before anything is built, and no data names code."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.data.views import IN_THE_GRAPH, view_of
from equipoise.deploy.deployable import USED, Deployable, InputSpec
from equipoise.deploy.description import problems_in, read_description, row_problems
from equipoise.deploy.rebuilding import member_plans, own_rebuilt, rebuilt, stored_tensors, weights_file
from equipoise.models.choose import KINDS, kinds_of, own_encoders
from equipoise.models.fusion_model import FusionModel
from equipoise.models.metrics import Metric, metric_of_row
from equipoise.models.own_model import OWN_VIEWS
from equipoise.models.task import Task
from equipoise.study.job import DESCRIPTION, WEIGHTS, shipped_decision
from equipoise.study.registry import all_methods, automatic_methods
from equipoise.util.errors import BadInput, first_line, raise_all
from equipoise.util.extras import needs
from equipoise.util.files import inside
from equipoise.util.named import is_path
from equipoise.util.schema import TEXT, at_most, read_json, record

TRAIN = "equipoise train --data watch --method mimo --out runs/one"


class SavedModel(NamedTuple):
    """The model of a finished run.

    Args:
        folder: The folder of the run.
        model: With its weights, its committee fitted, in evaluation mode.
        row: Its row of results.
        classes: The names of the classes, of the labels, or of the columns of numbers.
        input_specs: The inputs of a deployed model.
        parts: How many samples and groups each part of the data had.
        encoder: The words that its encoders were built from.
    """

    folder: Path
    model: FusionModel
    row: dict[str, Any]
    classes: tuple[str, ...]
    input_specs: dict[str, InputSpec]
    parts: dict[str, dict[str, int]]
    encoder: str = "auto"

    @property
    def task(self) -> Task:
        """The task, which says what the answers of the model mean."""
        return self.model.known_task()

    def deployable(self) -> Deployable:
        """Return the model as it is shipped."""
        return Deployable(self.model, self.input_specs)


def load_saved_model(
    path: Path | str, *, encoder: str | None = None, model: str | None = None, trust: bool = False
) -> SavedModel:
    """Build the model of a finished run again.

    A file is not believed to name code: from the run's own words only models and encoders of the package are made. One
    of the user's own has to be named again, or the folder to be trusted; it is checked to make modules before it is
    called.

    Args:
        path: The folder of a run, `OUT/runs/NAME`, or the folder OUT of a command that made a single one.
        encoder: The encoders as they were named for training, where a dotted path was among them.
        model: The model as it was named for training, where it was one's own.
        trust: Import what the folder names.

    Raises:
        BadInput: If there is no such run, or several, or its model cannot be built again; with all that is wrong.
    """
    with needs("a saved model", "predict"):
        import safetensors.torch

    folder = _find(Path(path))
    damage, tensors, size = [], {}, 0
    try:
        tensors, size = stored_tensors(folder, WEIGHTS), (folder / WEIGHTS).stat().st_size
    except BadInput as error:
        damage.append(str(error))
    content = read_description(folder, DESCRIPTION, size)
    problems = [f"{folder / DESCRIPTION}: {problem}" for problem in problems_in(content)]
    words, own, plans = "", "auto", []
    if not problems:
        own = content["row"]["run"].get("model", "auto") if model is None else model
        problems += _model_problems(folder, content, own, believed=trust or model is not None)
        words = content["row"]["run"]["encoder"] if encoder is None else encoder
        plans = member_plans(content, encoder)
        for each in dict.fromkeys(plan.encoder for plan in plans):
            problems += _encoder_problems(folder, content, each, believed=trust or encoder is not None)
    raise_all([*problems, *damage])
    row = content["row"]
    known = {**all_methods(), **automatic_methods()}
    method = known.get(row["method"])  # none: a class of the user's own, which trained it and is done
    if not (_has_fused(row) if method is None else method.fused):
        raise BadInput(
            f"{folder}: {row['method']} trains every sensor alone and leaves the fused head untrained, so that "
            "there is no one model to ship; train with --method ensemble, whose sensors vote, or with another method"
        )
    specs = {name: _input_spec(plain) for name, plain in content["inputs"].items()}
    try:
        if own == "auto":
            made = rebuilt(folder, content, plans, method, tensors, specs)
        else:
            made = own_rebuilt(folder, content, own, method, tensors)
    except BadInput:
        raise
    except (ValueError, RuntimeError, TypeError, OverflowError) as error:
        raise BadInput(f"{folder}: the model of this run cannot be made again: {error}") from None
    endless = {key for key, tensor in made.state_dict().items() if tensor.is_floating_point() and tensor.isinf().any()}
    with weights_file(folder, WEIGHTS) as file:
        safetensors.torch.load_model(made, file)
    raise_all(at_most(_not_finite(folder, made.state_dict(), endless)))
    saved = SavedModel(folder, made.eval(), row, tuple(content["classes"]), specs, content["parts"], words)
    if own == "auto" and not any(own_encoders(plan.encoder) for plan in plans):  # those may refuse numbers at random
        raise_all(_useless(saved))
    return saved


def _not_finite(folder: Path, state: Mapping[str, Tensor], endless: Container[str]) -> Iterator[str]:
    """Name the tensors of a model that hold NaN, or infinity where a new model holds none."""
    for key, tensor in state.items():
        bad = tensor.isnan() if key in endless else ~tensor.isfinite()
        if count := int(bad.sum()):
            found = f"found NaN or infinity in {count:,} of {tensor.numel():,}"
            yield f"{folder / WEIGHTS}: expected finite numbers in {key}, {found}; train again, or copy the file again"


def _useless(saved: SavedModel) -> Iterator[str]:
    """Name the sensors with whose ordinary numbers a model cannot compute: its weights or scales make them infinite."""
    graph = saved.deployable().eval()
    try:
        with torch.no_grad():
            outputs = graph(graph.examples(1, torch.Generator().manual_seed(0)))
    except (RuntimeError, ValueError, IndexError) as error:  # of layers that cannot read what the description says
        yield f"{saved.folder / DESCRIPTION}: expected inputs that the model reads, found: {first_line(error)}"
        return
    for name in saved.input_specs:
        if not outputs[name + USED]:
            files = f"{saved.folder / WEIGHTS} and the scales in {DESCRIPTION}"
            yield f"{name}: expected {files} to give finite answers to ordinary numbers of it, found NaN or infinity"


def _has_fused(row: dict[str, Any]) -> bool:
    return row.get("test", {}).get("fused", 0.0) is not None


# -- finding it --


def _find(path: Path) -> Path:
    if inside(path, DESCRIPTION).is_file():
        return path
    runs = sorted(file.parent for file in path.glob(f"runs/*/{DESCRIPTION}"))
    if len(runs) == 1:
        return inside(path, "runs", runs[0].name)
    old = " (a run there is not finished: type its command again)" if any(path.glob("**/epoch-*")) else ""
    problem = f"{path}: expected the folder of a finished run, found no {DESCRIPTION} in it{old}. Make one: {TRAIN}"
    if runs:
        one = f"name one of them, or take the best by `equipoise export {shlex.quote(str(path))} --best`"
        problem = f"{path} holds {len(runs)} finished runs; {one}:\n" + "\n".join(_listed(runs))
    elif run := _exported(path):
        problem = f"{path} holds an exported model, for another runtime; the run that it was made of: {run}"
    elif not path.is_dir():
        problem = f"no such folder: {path}; expected the folder of a finished run. Make one: {TRAIN}"
    elif (path / "tune.db").is_file():
        problem = f"{path}: a search keeps no models; the command at the end of {path / 'tune.md'} trains the best"
    raise BadInput(problem)


def _exported(path: Path) -> Path | None:
    """Return the run that a folder of `equipoise export` was made of; None where there is none beside it."""
    if not (path / "card.json").is_file():
        return None
    places = [path.parent, *sorted(path.parent.glob("runs/*"))]
    runs = [place for place in places if (place / DESCRIPTION).is_file()]
    check = record({"training": record({"config": TEXT})})
    try:
        config = read_json(path, "card.json", check, "a card")["training"]["config"]
        return next((run for run in runs if read_description(run, DESCRIPTION)["row"]["config"] == config), None)
    except (BadInput, KeyError, TypeError):
        return None


def _listed(folders: list[Path]) -> list[str]:
    """Write a line for each run, the best of each data set first, with what tells it from the others."""
    rows, lines, damaged = {}, [], []
    for folder in folders:
        try:
            content = read_description(folder, DESCRIPTION)
            raise_all(row_problems(content))
            rows[folder] = content["row"]
        except ValueError as error:
            damaged.append(f"  {folder}  cannot be read: {first_line(error)}")
    settings = {folder: _settings(row) for folder, row in rows.items()}
    values: defaultdict[str, set[str]] = defaultdict(set)
    for key, value in chain.from_iterable(own.items() for own in settings.values()):
        values[key].add(value)
    metrics = {folder: metric_of_row(row) for folder, row in rows.items()}
    found = {folder: _shipped(row) for folder, row in rows.items()}
    merits = {folder: metrics[folder].merit(value) for folder, (_, value) in found.items()}
    for folder in sorted(rows, key=lambda folder: (rows[folder]["data"], metrics[folder].name, -merits[folder])):
        row, metric = rows[folder], metrics[folder]
        seed, fold = ("" if row[key] is None else f", {key} {row[key]}" for key in ("seed", "fold"))
        differs = "".join(f", {key}={value}" for key, value in settings[folder].items() if len(values[key]) > 1)
        name, value = found[folder]
        known = "" if value is None else f": {name} {shown(metric, value)} on validation data"
        lines.append(f"  {folder}  {row['label']} on {row['data']}{seed}{fold}{differs}{known}")
    return [*lines, *damaged]


def _shipped(row: dict[str, Any]) -> tuple[str, float | None]:
    """Return the decision that is shipped, and its number on validation data."""
    decision = shipped_decision(row)
    value = row.get("validation", {}).get(decision)
    return decision, value if isinstance(value, (int, float)) else None


def shown(metric: Metric, value: float) -> str:
    """Return a value of a metric as it is shown to people; what is no accuracy with its name."""
    name = "" if metric.name == "accuracy" else f"{metric.label} "
    return name + (f"{100 * value:.1f} %" if metric.percent else f"{value:.4g}")


def _settings(row: dict[str, Any]) -> dict[str, str]:
    """Return settings and parameters of a run as they would be typed."""
    own = {f"{row['label']}.{key}": value for key, value in row.get("params", {}).items()}
    return {key: str(value) for key, value in {**row["run"], **own}.items()}


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


def _model_problems(folder: Path, content: dict[str, Any], path: str, *, believed: bool) -> list[str]:
    if path == "auto":
        return []
    place = f"{folder / DESCRIPTION}: "
    problems = [] if is_path(path) else [f"--model {path}: expected a dotted path, such as my_file.Model"]
    if content["unimodal"] not in OWN_VIEWS:
        expected = ", ".join(OWN_VIEWS)
        problems.append(f"{place}unimodal: expected one of {expected} of a model of one's own")
    if not believed:
        problems.append(
            f"{place}the model is {path!r}, which is no model of the package, and no code runs because a file names "
            f"it. If it is yours, type --model {path}; if you know who made the folder, --trust"
        )
    return problems


def _input_spec(plain: dict[str, Any]) -> InputSpec:
    """Return what the graph takes: what is stored where the graph can do the rest, or what encoders read."""
    view = None if plain["view"] is None else view_of(plain["view"])
    if view is not None and not isinstance(view, IN_THE_GRAPH):
        stored = tuple(plain["stored"]), getattr(torch, plain["dtype"])
        ragged = plain["ragged"] and not view.takes_lengths
        return InputSpec(tuple(plain["read"]), ragged=ragged, before=view, stored=stored)
    stored = tuple(plain["stored"])
    per_channel = (-1, *[1] * (len(stored) - 1))
    known: dict[str, Any] = {
        key: torch.tensor(plain[key]).reshape(per_channel) for key in ("mean", "deviation") if key in plain
    }
    known |= {"spatial": True} if plain.get("axis") == "space" else {}
    known |= {"most": plain["most"]} if "most" in plain else {}  # word numbers beyond it may have no vector
    return InputSpec(stored, getattr(torch, plain["dtype"]), plain["ragged"], view, **known)

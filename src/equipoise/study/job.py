"""One run of a study: all that decides its result, its row, and the model it saves."""

import gc
import hashlib
import json
import math
import platform
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch

from equipoise.balance import collectives
from equipoise.data.digests import sample_digests
from equipoise.data.source import DataSet
from equipoise.data.splits import Splits
from equipoise.data.views import IN_THE_GRAPH
from equipoise.measure import measure_run, peak_memory, step_seconds
from equipoise.measure.outputs import Outputs
from equipoise.measure.predictions import PREDICTIONS, as_npz, predictions_of
from equipoise.measure.remarks import warnings_of
from equipoise.measure.timing import PROTOCOL, StepTimes, trained_step
from equipoise.models.fusion_model import FusionModel
from equipoise.models.metrics import judged, metric_of
from equipoise.study.portfolio import Made, make_model
from equipoise.study.registry import Entry
from equipoise.study.store import SCHEMA, Store, cannot_write, is_disk_error
from equipoise.training.checkpoint import damage_in
from equipoise.training.launch import device_of
from equipoise.training.optimisers import make_optimizer
from equipoise.training.settings import Settings
from equipoise.training.step import own_code
from equipoise.training.trackers import Trackers, flat_results
from equipoise.util import VERSION
from equipoise.util.errors import BadInput, raise_all
from equipoise.util.extras import needs
from equipoise.util.files import inside, write_atomic
from equipoise.util.named import fingerprint
from equipoise.util.processes import keep_freed_memory

FORMAT, TASK_FORMAT = 1, 2
"""Of the description of a model that tells classes; and of any other, which readers of the first would take for one."""
DESCRIPTION, WEIGHTS, SEEN = "model.json", "model.safetensors", "seen.safetensors"


def save_model(
    folder: Path, model: FusionModel, row: dict[str, Any], splits: Splits, members: Sequence[dict[str, Any]] = ()
) -> None:
    """Write what `deploy.load_saved_model` reads, the description last: a kill leaves no half of a saved model.

    Args:
        folder: Of the run.
        model: As it was measured, so with its committee fitted.
        row: Its results.
        splits: The data it was trained on.
        members: What each member of a combined model is built from: encoder, features, fusion and unimodal. Of a single
            one the model itself; none where the row's settings say it.
    """
    with needs("saving a model", "train"):
        import safetensors.torch

    content = {
        "format": FORMAT if splits.task.kind == "classes" else TASK_FORMAT,
        "classes": list(splits.classes),
        "task": judged(splits.task, row.get("positive")).as_dict(),
        "unimodal": model.unimodal,
        **({"members": list(members)} if members else {}),
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
    _save_digests(folder, splits, str(row.get("split")))
    write_atomic(folder, DESCRIPTION, json.dumps(content, indent=1) + "\n")


def _save_digests(folder: Path, splits: Splits, key: str) -> None:
    """Write digests of the samples that the model has seen, sorted, so that it knows them again; nothing of them else.

    Sensors whose views are left to the caller do not count: what these compute may differ in the last digits.
    """
    with needs("saving a model", "train"):
        import safetensors.numpy

    views = splits.train.views
    names = [name for name in splits.modalities if name not in views or isinstance(views[name], IN_THE_GRAPH)]
    if names:
        parts = {"train": splits.train, "validation": splits.validation}
        digests = {name: np.sort(sample_digests(part, names, key)) for name, part in parts.items()}
        write_atomic(folder, SEEN, safetensors.numpy.save(digests))


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
        if name in splits.train.spatial:
            inputs[name]["axis"] = "space"
        if view is None and not array.is_floating_point():
            inputs[name]["most"] = int(array.max())
        if name in splits.scales:
            mean, deviation = splits.scales[name]
            inputs[name] |= {"mean": mean.flatten().tolist(), "deviation": deviation.flatten().tolist()}
    return inputs


def _counts(part: Any) -> dict[str, int]:
    groups = {} if part.group is None else {"groups": len(part.group.unique())}
    return {"samples": len(part), **groups}


Measure = Literal["all", "quick", "validation"]
ERROR = "error.txt"
"""The file with the traceback of a failed run, in its folder."""
SEE = "; traceback in "
"""Stands between the reason of a failure and the file with its traceback."""
FoldSplits = dict[int | None, Splits]
"""The data of each fold; None is the data set's own cut."""
DIVERGED = FloatingPointError.__name__
"""The start of the reason of a run whose loss is no number any more."""


@final
@dataclass(frozen=True)
class Job:
    """One run: an entry on one fold with one seed.

    Args:
        entry: Method, parameters and settings.
        data: The data set.
        fold: Which fold; None is the data set's own cut.
        seed: Of everything random; None of a run that leaves nothing to chance (see `trainings_of`), of which there is
            one, whatever the seeds of others. Its faults are drawn as those of seed 0.
        split: Fingerprint of the parts.
        threads: That the run may use.
        measure: "all"; "quick", without sensor faults and the costlier protocols; or "validation", for trials that
            must not see the test part.
        device: Its device on a cluster; "" for the one that this machine chooses by the settings.
    """

    entry: Entry
    data: DataSet
    fold: int | None
    seed: int | None
    split: str
    threads: int = 1
    measure: Measure = "all"
    device: str = ""

    @property
    def name(self) -> str:
        """Its name in messages."""
        places = (("seed", self.seed), ("fold", self.fold))
        return ", ".join([self.entry.label, *(f"{what} {at}" for what, at in places if at is not None)])

    @property
    def draws(self) -> int:
        """The seed of its random numbers."""
        return 0 if self.seed is None else self.seed

    def facts(self) -> dict[str, Any]:
        """Return all that decides the result."""
        return {
            "schema": SCHEMA,
            "data": self.data.name,
            "split": self.split,
            "fold": self.fold,
            "method": self.entry.method.name,
            "label": self.entry.label,
            "params": self.entry.params,
            "run": self.entry.settings.as_dict(),
            "seed": self.seed,
            "threads": self.threads,
            "measure": self.measure,
            "device": self.device or device_of(self.entry.settings),
            "version": VERSION,
            **({"code": code} if (code := self._code()) else {}),
        }

    def _code(self) -> dict[str, str]:
        """Hashes of the files of the user's own that the run is made of: another file, another row."""
        method = self.entry.method
        return own_code(self.entry.settings) | ({method.name: fingerprint(method.name)} if method.own else {})

    @property
    def config(self) -> str:
        """A hash of the facts: another parameter, another version, another row."""
        return f"sha256:{hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode()).hexdigest()}"


def pending(jobs: Sequence[Job], store: Store) -> tuple[dict[str, dict[str, Any]], list[Job]]:
    """Return the rows there are, by config, and the jobs that are not done, each once.

    Raises:
        BadInput: If results or checkpoints are damaged.
    """
    done = {row["config"]: row for row in store.rows()}
    waiting = {job.config: job for job in jobs if job.config not in done}
    raise_all(damage for config in waiting if (damage := damage_in(store.run_folder(config))))
    return done, list(waiting.values())


def reason_of(error: Exception, folder: Path, where: str = "") -> str:
    """Say why a run failed, on which machine if that matters, and in which file its traceback is."""
    kind = "" if isinstance(error, BadInput) else f"{type(error).__name__}: "
    return f"{kind}{error}{where}{SEE}{folder / ERROR}"


def save_traceback(error: Exception, folder: Path, file: str = ERROR) -> None:
    """Write the traceback of a failed run into its folder, in place of an earlier one; a link there is not followed."""
    with suppress(OSError):  # the reason is told all the same
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).unlink(missing_ok=True)
        with (folder / file).open("x", encoding="utf-8", errors="backslashreplace") as written:
            traceback.print_exception(error, file=written)


def failure_of(error: Exception, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return "unwritable" or "failed" with the reason, after saving the traceback of the latter."""
    if is_disk_error(error, folder):
        return "unwritable", {"reason": cannot_write(folder, error)}
    save_traceback(error, folder)
    return "failed", {"reason": reason_of(error, folder)}


def diverged(row: dict[str, Any]) -> bool:
    """Tell whether the fused loss of a finished run is no number."""
    validation = row["validation"]
    return validation.get("fused") is not None and validation.get("fused_loss") is None


def shipped_decision(row: Mapping[str, Any]) -> Literal["committee", "fused"]:
    """Return the decision by which `predict`, the server and an exported graph answer: the committee, if there is one.

    Args:
        row: Of results.
    """
    parts = [row.get(part) for part in ("validation", "test")]
    votes = [part.get("committee") for part in parts if isinstance(part, dict)]
    return "committee" if any(isinstance(vote, int | float) for vote in votes) else "fused"


def clear_up() -> None:
    """Leave nothing of a run to the next one in the same process: its memory, and its settings of torch."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.use_deterministic_algorithms(mode=False)


def run_job(
    job: Job,
    splits: Splits,
    folder: Path,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    checkpoint_seconds: float = 10.0,
    trackers: Trackers | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Train, measure, and return the row of one run; of several ranks the first measures, the others' rows are empty.

    Trackers see it under its own name; they decide nothing, so that they are no fact of it. Nor is the number of runs
    at the same time on the machine, `workers`, None where it is not known: the row has it beside the times.
    """
    torch.set_num_threads(job.threads)
    keep_freed_memory()
    if torch.cuda.is_initialized():  # by an earlier run in this process
        torch.cuda.reset_peak_memory_stats()
    method = job.entry.method.name
    if trackers is not None:
        params = {f"{method}.{name}": value for name, value in job.entry.params.items()}
        about = {"data": job.data.name, "method": method, "seed": job.seed, "fold": job.fold}
        facts = {**about, **params, "config": job.config}
        trackers = replace(trackers, run=job.name, facts=facts, stays_open=job.measure != "validation")
    how: dict[str, Any] = {"seed": job.draws, "checkpoint_seconds": checkpoint_seconds, "trackers": trackers}
    how["trajectories"] = folder.parent.parent / "trajectories"  # shared by the runs of a study
    started = time.process_time()
    made = make_model(job.entry, splits, folder=folder, on_epoch=on_epoch, **how)
    computed = time.process_time() - started
    if collectives.rank() > 0:
        return {}
    row: dict[str, Any] = {}
    try:
        with collectives.single_rank():
            row = _row(job, made, splits, folder, workers, computed)
    finally:
        if trackers is not None and made.trained.trackers:
            trackers.finish(made.trained.trackers, flat_results(row.get("test", {})), len(made.trained.curves))
    (folder / ERROR).unlink(missing_ok=True)  # of an earlier attempt
    return row


def _row(job: Job, made: Made, splits: Splits, folder: Path, workers: int | None, computed: float) -> dict[str, Any]:
    """Measure the model, save it and the curves of its training, and return the row.

    The seconds that processors computed for making the model, `computed`, stand beside those that passed.
    """
    settings, trained = job.entry.settings, made.trained
    step, how = trained_step([record["seconds"] for record in trained.curves], trained.steps)
    times = _step_times(made, splits, settings, workers)
    parts = (
        {} if times is None else {name: times.own.wall[name] for name in ("forward", "backward", "balance", "update")}
    )
    outputs: list[Outputs] = []  # on the test part, which is read once
    measured = _measured(job, made, splits, outputs.append)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder, "curves.jsonl", "".join(json.dumps(record) + "\n" for record in trained.curves))
    published = f" on the test set, as the protocol {splits.protocol} was published" if splits.selects_on_test else ""
    task = judged(splits.task, settings.positive)
    metric = metric_of(settings.metric, task)
    rules = {"best": f"best {metric.label}", "loss": "lowest loss"}
    rule = rules.get(settings.select, settings.select)
    taken = trained.steps * len(trained.curves) if made.evidence is None else 0  # a portfolio knows its own budget
    versions = {"equipoise": VERSION, "torch": str(torch.__version__), "python": platform.python_version()}
    row = {
        **job.facts(),
        "config": job.config,
        "status": "done",
        **({} if job.fold is None else {"folds": job.data.folds}),
        "protocol": splits.protocol,
        "about": splits.about,
        "task": splits.task.kind,
        "metric": metric.name,
        **({} if task.positive is None else {"positive": task.positive}),
        "selected": {"epoch": trained.epoch, "by": rule + published},
        **measured,
        "ships": shipped_decision(measured),
        **({} if made.evidence is None else {"portfolio": made.evidence}),
        "warnings": warnings_of(
            measured["validation"], taken, task, weighted=settings.class_weight != "none", trained=trained.steps > 0
        ),
        "seconds": {**parts, "step": step, "total": trained.seconds, "cpu": computed},
        "timing": {"step": how, "parts": PROTOCOL, "workers": workers, **({} if times is None else times.as_dict())},
        "memory": peak_memory(torch.device(trained.device)),
        "versions": {**versions, "platform": platform.platform()},
        "device": trained.device,
        "path": trained.path,
    }
    row = finite(row)
    if job.measure != "validation":  # trials are many, and nobody ships one
        model = made.refitted or made.model
        save_model(folder, model, row, splits, made.members)
        how_kept: dict[str, Any] = {"fold": job.fold, "fused": job.entry.method.fused}
        answers = predictions_of(outputs[0], model.known_task(), splits, **how_kept)
        write_atomic(folder, PREDICTIONS, as_npz(answers))
    return row


def _step_times(made: Made, splits: Splits, settings: Settings, workers: int | None) -> StepTimes | None:
    """Time the parts of a training step; None where none was taken."""
    if made.trained.steps == 0:
        return None
    model, batch = made.trained.model, min(settings.batch, len(splits.train))
    optimizer = make_optimizer(model, settings)
    return step_seconds(
        model, made.balancer, optimizer, splits.train, batch=batch, steps=10, settings=settings, workers=workers
    )


def _measured(job: Job, made: Made, splits: Splits, on_test: Callable[[Outputs], object]) -> dict[str, Any]:
    whole, on_validation = job.measure == "all", replace(splits, test=splits.validation)
    how: dict[str, Any] = {"seed": job.draws, "protocols": whole, "metric": job.entry.settings.metric}
    if job.measure == "validation":
        measured = measure_run(made.model, on_validation, faults=whole, **how)
    elif made.refitted is None:
        measured = measure_run(made.model, splits, faults=whole, on_test=on_test, **how)
    else:  # of a model that was trained on the validation part, numbers and intervals would be too good there
        before = measure_run(made.model, on_validation, faults=False, **how)
        if splits.task.kind == "regression":
            made.refitted.radii.copy_(made.model.radii)
        after = measure_run(made.refitted, splits, faults=whole, on_test=on_test, **how)
        measured = {**after, "validation": before["validation"]}
    if job.measure == "validation":
        del measured["test"]
    if job.entry.method.fused:
        return measured
    # Uni-modal training leaves the fused head untrained: its output is no result.
    mute = ("fused", "committee", "beats", "faults", "zeroed", "shapley", "split")
    return {
        part: {name: None if name.startswith(mute) else value for name, value in numbers.items()}
        for part, numbers in measured.items()
    }


def finite(value: Any) -> Any:
    """Return the same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""One run of a study: all that decides what comes out, and the row that does."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import platform
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import torch

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.data.source import DataSet
from equipoise.data.splits import Splits
from equipoise.measure import measure_run, peak_memory, step_seconds
from equipoise.measure.timing import PROTOCOL, trained_step
from equipoise.models import LateFusion
from equipoise.study.registry import Entry
from equipoise.study.saved_model import save_model
from equipoise.study.store import SCHEMA
from equipoise.training.launch import device_of
from equipoise.training.optimisers import make_optimizer
from equipoise.training.trackers import Trackers
from equipoise.training.train import Trained, train
from equipoise.util.errors import BadInput
from equipoise.util.files import write_atomic
from equipoise.util.processes import keep_freed_memory
from equipoise.util.version import VERSION

Measure = Literal["all", "quick", "validation"]
ERROR = "error.txt"
"""In the folder of a run: the traceback of what it failed of."""
SEE = "; traceback in "
"""Between the reason of a failure and the file that has more on it."""


@final
@dataclass(frozen=True)
class Job:
    """One run: an entry on one fold with one seed.

    Args:
        entry: Method, parameters and settings.
        data: The data set.
        fold: Which fold; None is the data set's own cut.
        seed: Of everything random.
        split: Fingerprint of the parts.
        threads: That the run may use.
        measure: "all"; "quick", without sensor faults and the costlier protocols; or "validation", for trials that
            must not see the test part.
        device: Where it takes place, if not on this machine; "" for what this machine makes of the settings.
    """

    entry: Entry
    data: DataSet
    fold: int | None
    seed: int
    split: str
    threads: int = 1
    measure: Measure = "all"
    device: str = ""

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.entry.label}, seed {self.seed}" + (f", fold {self.fold}" if self.fold is not None else "")

    def facts(self) -> dict[str, Any]:
        """All that decides what comes out."""
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
        }

    @property
    def config(self) -> str:
        """A hash of the facts: another parameter, another version, another row."""
        text = json.dumps(self.facts(), sort_keys=True)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def reason_of(found: Exception, folder: Path, where: str = "") -> str:
    """Say why a run failed, and in which file its traceback is.

    Args:
        found: What went wrong.
        folder: Of the run.
        where: The machine, if that matters.
    """
    kind = "" if isinstance(found, BadInput) else f"{type(found).__name__}: "
    return f"{kind}{found}{where}{SEE}{folder / ERROR}"


def traceback_of(found: Exception) -> str:
    """The whole traceback, with what the error was caused by."""
    return "".join(traceback.format_exception(type(found), found, found.__traceback__))


def keep_traceback(found: Exception, folder: Path, file: str = ERROR) -> None:
    """Write the traceback of a failed run into its folder, in place of an earlier one; a link there is not followed."""
    with suppress(OSError):  # the reason is told all the same
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).unlink(missing_ok=True)
        with (folder / file).open("x", encoding="utf-8", errors="backslashreplace") as written:
            written.write(traceback_of(found))


def clear_up() -> None:
    """Leave nothing of a run to the next one in the same process: its memory, and what it asked of torch."""
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
    """Train, measure, and give the row of one run; of several processes the first measures, the others' rows are empty.

    Trackers see it under its own name; they decide nothing, so that they are no fact of it. Nor is the number of runs
    side by side on the machine, `workers`, None where it is not known: the row has it beside the times.
    """
    torch.set_num_threads(job.threads)
    keep_freed_memory()
    if torch.cuda.is_initialized():  # by an earlier run in this process
        torch.cuda.reset_peak_memory_stats()
    entry, balancer = job.entry, job.entry.balancer()
    trained = train(
        splits,
        balancer,
        entry.settings,
        seed=job.seed,
        folder=folder,
        on_epoch=on_epoch,
        checkpoint_seconds=checkpoint_seconds,
        trackers=_named(trackers, job),
    )
    if collectives.rank() > 0:
        return {}
    with collectives.single_rank():
        row = _row(job, trained, balancer, splits, folder, workers)
    (folder / ERROR).unlink(missing_ok=True)  # of an earlier attempt
    return row


def _row(
    job: Job, trained: Trained, balancer: Balancer, splits: Splits, folder: Path, workers: int | None
) -> dict[str, Any]:
    """Measure what was trained, and keep it."""
    entry = job.entry
    step, how = trained_step([record["seconds"] for record in trained.curves], trained.steps)
    parts = step_seconds(
        trained.model,
        balancer,
        make_optimizer(trained.model, entry.settings),
        splits.train,
        batch=min(entry.settings.batch, len(splits.train)),
        steps=10,
    )
    model = entry.method.finish(trained.model) if entry.method.finish is not None else trained.model
    measured = _measured(job, model, splits)
    _write_curves(folder, trained)
    row = {
        **job.facts(),
        "config": job.config,
        "status": "done",
        "protocol": splits.protocol,
        "about": splits.about,
        "selected": {"epoch": trained.epoch, "by": _selected_by(entry.settings.select, splits)},
        **measured,
        "seconds": {**parts, "step": step, "total": trained.seconds},
        "timing": {"step": how, "parts": PROTOCOL, "workers": workers},
        "memory": peak_memory(torch.device(trained.device)),
        "versions": _versions(),
        "device": trained.device,
        "path": trained.path,
    }
    row = _finite(row)
    if job.measure != "validation":  # trials are many, and nobody ships one
        save_model(folder, model, row, splits)
    return row


def _named(trackers: Trackers | None, job: Job) -> Trackers | None:
    """The trackers under the name of a run, with what makes it different from others."""
    if trackers is None:
        return None
    params = {f"{job.entry.method.name}.{name}": value for name, value in job.entry.params.items()}
    about = {"data": job.data.name, "method": job.entry.method.name, "seed": job.seed, "fold": job.fold}
    return replace(trackers, run=job.name, facts={**about, **params, "config": job.config})


def _measured(job: Job, model: LateFusion, splits: Splits) -> dict[str, Any]:
    if job.measure == "validation":
        splits = replace(splits, test=splits.validation)
    whole = job.measure == "all"
    measured = measure_run(model, splits, seed=job.seed, with_faults=whole, with_protocols=whole)
    if job.measure == "validation":
        del measured["test"]
    if not job.entry.method.fused:
        measured = {part: _without_fused(numbers) for part, numbers in measured.items()}
    return measured


def _selected_by(rule: str, splits: Splits) -> str:
    published = f" on the test set, as the protocol {splits.protocol} was published" if splits.selects_on_test else ""
    return rule + published


def _without_fused(numbers: dict[str, Any]) -> dict[str, Any]:
    """Uni-modal training leaves the fused head as it was drawn: what it says is no result."""
    mute = ("fused", "committee", "beats", "faults", "zeroed", "shapley", "split")
    return {name: None if name.startswith(mute) else value for name, value in numbers.items()}


def _finite(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _versions() -> dict[str, str]:
    return {
        "equipoise": VERSION,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _write_curves(folder: Path, trained: Trained) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder, "curves.jsonl", "".join(json.dumps(record) + "\n" for record in trained.curves))

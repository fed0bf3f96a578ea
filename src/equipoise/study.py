"""The study: methods × data × seeds × folds, run side by side, resumed after any interruption, collected row by row."""

from __future__ import annotations

import ctypes
import hashlib
import json
import multiprocessing as mp
import os
import platform
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, final

import torch

import equipoise
from equipoise.catalogue import DataSet, Entry
from equipoise.data.splits import Splits
from equipoise.machinery import make_optimizer
from equipoise.measure import measure_run, peak_memory, step_seconds
from equipoise.store import SCHEMA, Store
from equipoise.train import Trained, train

Event = Callable[[str, "Job", dict[str, Any]], None]
"""Called with "start", "epoch", "done" or "failed", the job, and what there is to say."""


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
    """

    entry: Entry
    data: DataSet
    fold: int | None
    seed: int
    split: str
    threads: int = 1

    def facts(self) -> dict[str, Any]:
        """All that decides what comes out."""
        return {
            "schema": SCHEMA,
            "data": self.data.name,
            "split": self.split,
            "fold": self.fold,
            "method": self.entry.method.name,
            "params": self.entry.params,
            "run": self.entry.settings.as_dict(),
            "seed": self.seed,
            "threads": self.threads,
            "version": equipoise.__version__,
        }

    @property
    def config(self) -> str:
        """A hash of the facts: another parameter, another version, another row."""
        text = json.dumps(self.facts(), sort_keys=True)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def plan(
    entries: Sequence[Entry], data: DataSet, seeds: Sequence[int], folds: Sequence[int | None], threads: int = 1
) -> tuple[list[Job], dict[int | None, Splits]]:
    """Every run of a comparison, and the data they share."""
    splits = {fold: data.load(fold) for fold in folds}
    marks = {fold: parts.fingerprint() for fold, parts in splits.items()}
    jobs = [Job(entry, data, fold, seed, marks[fold], threads) for fold in folds for seed in seeds for entry in entries]
    return jobs, splits


def run_study(
    jobs: Sequence[Job],
    splits: dict[int | None, Splits],
    store: Store,
    *,
    workers: int | None = None,
    on_event: Event | None = None,
    checkpoint_seconds: float = 10.0,
    quick: bool = False,
) -> list[dict[str, Any]]:
    """Run what is not done yet, and give the rows of all jobs, in their order.

    Args:
        jobs: What is wanted.
        splits: The data of each fold.
        store: Where rows are kept.
        workers: Runs side by side; None for one per core.
        on_event: Told of everything that happens.
        checkpoint_seconds: Least time between two checkpoints of a run.
        quick: Leave out sensor faults and the costlier protocols.
    """
    tell = on_event or (lambda *_: None)
    with store.locked():
        done = {row["config"]: row for row in store.rows()}
        waiting = list({job.config: job for job in jobs if job.config not in done}.values())
        failures: list[str] = []
        running: dict[Connection, tuple[mp.Process, Job]] = {}
        context: Any = mp.get_context("spawn" if _wants_cuda(jobs) else "fork")
        limit = workers or max(1, (os.cpu_count() or 1) // max((job.threads for job in jobs), default=1))
        try:
            while waiting or running:
                while waiting and len(running) < limit:
                    job = waiting.pop(0)
                    ours, theirs = context.Pipe(duplex=False)
                    arguments = (theirs, job, splits[job.fold], store.run_folder(job.config), checkpoint_seconds, quick)
                    process = context.Process(target=_worker, args=arguments, daemon=True)
                    process.start()
                    theirs.close()
                    running[ours] = (process, job)
                    tell("start", job, {})
                for ready in wait(list(running)):
                    job = running[ready][1]  # ty: ignore[invalid-argument-type]
                    kind, content = _receive(ready)
                    if kind == "epoch":
                        tell("epoch", job, content)
                        continue
                    process, _ = running.pop(ready)  # ty: ignore[invalid-argument-type]
                    process.join()
                    if kind == "done":
                        store.append(content)
                        done[job.config] = content
                    else:
                        failures.append(f"{job.entry.label}, seed {job.seed}, fold {job.fold}: {content['reason']}")
                    tell(kind, job, content)
        finally:
            for process, _ in running.values():
                process.kill()  # checkpoints are whole at any moment
    if failures:
        raise RuntimeError("\n".join(failures))
    return [done[job.config] for job in jobs]


def run_job(
    job: Job,
    splits: Splits,
    folder: Path,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    checkpoint_seconds: float = 10.0,
    *,
    quick: bool = False,
) -> dict[str, Any]:
    """Train, measure, and give the row of one run."""
    torch.set_num_threads(job.threads)
    entry, balancer = job.entry, job.entry.balancer()
    trained = train(
        splits,
        balancer,
        entry.settings,
        seed=job.seed,
        folder=folder,
        on_epoch=on_epoch,
        checkpoint_seconds=checkpoint_seconds,
    )
    timing = step_seconds(
        trained.model,
        balancer,
        make_optimizer(trained.model, entry.settings),
        splits.train,
        batch=min(entry.settings.batch, len(splits.train)),
        steps=10,
    )
    model = entry.method.finish(trained.model) if entry.method.finish is not None else trained.model
    measured = measure_run(model, splits, seed=job.seed, with_faults=not quick, with_protocols=not quick)
    if not entry.method.fused:
        measured = {part: _without_fused(numbers) for part, numbers in measured.items()}
    _write_curves(folder, trained)
    return {
        **job.facts(),
        "config": job.config,
        "status": "done",
        "label": entry.label,
        "selected": {"epoch": trained.epoch, "by": entry.settings.select},
        **measured,
        "seconds": {**timing, "step": timing["total"], "total": trained.seconds},
        "memory": peak_memory(torch.device(trained.device)),
        "versions": _versions(),
        "device": trained.device,
    }


def _worker(pipe: Connection, job: Job, splits: Splits, folder: Path, checkpoint_seconds: float, quick: bool) -> None:
    _die_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends its children
    try:
        row = run_job(job, splits, folder, lambda record: pipe.send(("epoch", record)), checkpoint_seconds, quick=quick)
        pipe.send(("done", row))
    except Exception as found:  # whatever went wrong in a run belongs into the report of the study
        pipe.send(("failed", {"reason": f"{type(found).__name__}: {found}"}))


def _die_with_the_parent() -> None:
    """A killed study must not leave runs behind that write beside the next one."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _receive(pipe: Any) -> tuple[str, dict[str, Any]]:
    try:
        return pipe.recv()
    except EOFError:
        return "failed", {"reason": "the process of the run ended without a word (out of memory, or killed)"}


def _wants_cuda(jobs: Sequence[Job]) -> bool:
    wanted = {job.entry.settings.device for job in jobs}
    return any(device.startswith("cuda") for device in wanted) or ("auto" in wanted and torch.cuda.is_available())


def _without_fused(numbers: dict[str, Any]) -> dict[str, Any]:
    """Uni-modal training leaves the fused head as it was drawn: what it says is no result."""
    mute = ("fused", "committee", "beats", "faults", "zeroed", "shapley", "split")
    return {name: None if name.startswith(mute) else value for name, value in numbers.items()}


def _versions() -> dict[str, str]:
    return {
        "equipoise": equipoise.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _write_curves(folder: Path, trained: Trained) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "curves.tmp"
    unfinished.write_text("".join(json.dumps(record) + "\n" for record in trained.curves), encoding="utf-8")
    unfinished.replace(folder / "curves.jsonl")

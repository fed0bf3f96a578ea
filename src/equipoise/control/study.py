"""Study of policies: every line trained with every seed on the same demonstrations, and rolled out in every condition.

Policies are trained in processes side by side and kept; then they are rolled out one after the other, each with as many
simulators as there are cores. A policy that was trained, and a row that was written, are never made again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from equipoise.control.calibration import with_monitor
from equipoise.control.camera import load_mujoco
from equipoise.control.cloning import SENSORS, SETTINGS, cloning_splits, settings_for
from equipoise.control.conditions import CONDITIONS, Condition
from equipoise.control.demonstrations import MANIFEST, VERSION, Demonstrations, load
from equipoise.control.interventions import measure_interventions
from equipoise.control.policy import DESCRIPTION, Policy, check_encoders
from equipoise.control.rollout import Outcome, RolloutPool
from equipoise.data.splits import Splits
from equipoise.measure.outputs import batches_of
from equipoise.models.committee import fit_committee
from equipoise.study.executors.local import import_libraries, multi_process_service
from equipoise.study.job import finite
from equipoise.study.registry import Entry, all_methods, entries
from equipoise.study.store import SCHEMA, Store
from equipoise.training.launch import device_of, gpus
from equipoise.training.presets import Preset
from equipoise.training.settings import Settings
from equipoise.training.step import problems_of
from equipoise.training.train import train
from equipoise.util import VERSION as PACKAGE
from equipoise.util.errors import BadInput, collect, raise_all
from equipoise.util.files import inside, write_atomic
from equipoise.util.pool import Pool, Tell
from equipoise.util.processes import cores
from equipoise.util.schema import ANYTHING, NUMBER, TEXT, every, or_null, read_json, record

METHODS = ("msl", "moddrop", "ew", "mimo", "primaldual", "mmpareto", "ogmge")
PRESET = Preset("control", "", SETTINGS, {}, "Chosen on validation demonstrations before any method was compared.")
EPISODE_SEEDS = 10**9
"""The first seed of rollouts: far from all seeds of demonstrations."""
TRAINED = "trained.json"
BATCH = 512
"""Samples that a policy reads at a time, where it is measured."""
_MEASURED = record(
    {
        "validation": every(ANYTHING),
        "attention": ANYTHING,
        "committee": every(or_null(NUMBER), list),
        "interventions": every(ANYTHING),
        "seconds": record({"training": NUMBER}),
        "device": TEXT,
        "path": every(ANYTHING),
    }
)
Bar = Callable[[str, int, int], None]
"""Takes what is being done, how much of it is done, and how much there is."""


@final
@dataclass(frozen=True)
class Line:
    """A line of the tables.

    Args:
        label: Its name.
        entry: The method, and how models are built and trained.
        sensors: Those that the policy has.
    """

    label: str
    entry: Entry
    sensors: tuple[str, ...] = SENSORS


@final
@dataclass(frozen=True, eq=False)
class PolicyJob:
    """A policy to train and to roll out.

    Args:
        line: What is trained.
        seed: Of weights and batches.
        source: Fingerprint of the demonstrations.
    """

    line: Line
    seed: int
    source: str

    def facts(self) -> dict[str, Any]:
        """Return everything that decides the policy, in plain values."""
        entry = self.line.entry
        return {
            "line": self.line.label,
            "method": entry.method.name,
            "params": entry.params,
            "run": asdict(entry.settings),
            "sensors": list(self.line.sensors),
            "seed": self.seed,
            "task": {"version": VERSION, "mujoco": load_mujoco().__version__, "demonstrations": self.source},
        }


@final
@dataclass(frozen=True)
class RolloutPlan:
    """The rollouts of every policy.

    Args:
        episodes: Of each condition.
        conditions: Which ones.
        seed: Of the episodes; all policies meet the same ones.
    """

    episodes: int = 100
    conditions: tuple[Condition, ...] = field(default_factory=lambda: tuple(CONDITIONS.values()))
    seed: int = 0

    def of(self, sensors: Sequence[str]) -> list[tuple[Condition, int]]:
        """Return the episodes of a policy with some sensors: condition and seed of each."""
        start = EPISODE_SEEDS + self.seed * 10**6
        suited = [one for one in self.conditions if one.suits(sensors)]
        return [(one, start + number) for one in suited for number in range(self.episodes)]

    def facts(self) -> dict[str, Any]:
        """Return what decides the rollouts, in plain values."""
        return {"episodes": self.episodes, "conditions": [asdict(one) for one in self.conditions], "seed": self.seed}


def lines(
    methods: Iterable[str],
    words: Iterable[str] = (),
    *,
    hybrid: Iterable[str] = (),
    alone: bool = True,
    controls: bool = True,
) -> list[Line]:
    """Make the lines of a study, or raise one message with all problems.

    Args:
        methods: Names, or classes of one's own by dotted path.
        words: Settings and parameters, as ``name=value``.
        hybrid: Those of the methods that are trained with hybrid fusion, too.
        alone: Add a policy of each sensor alone.
        controls: Where MIMO is among the methods, add EW at the weight that its penalty has on average.
    """
    words, methods, hybrid = list(words), list(dict.fromkeys(methods)), list(hybrid)
    strangers = sorted({*hybrid} - {*methods} - ({*all_methods()} if "all" in methods else set()))
    problem = f"--hybrid: expected methods that are named by --methods, found {', '.join(strangers)}"
    made, _ = collect(
        lambda: _checked(entries(methods, words, PRESET)), lambda: raise_all([problem] if strangers else [])
    )
    all_sensors = [Line(entry.label, entry) for entry in made]
    mimo = next((entry for entry in made if entry.method.name == "mimo"), None)
    if controls and mimo is not None:
        weight = {"weight": mimo.params["penalty"] / len(SENSORS)}
        all_sensors.append(Line("ew at λ/K", Entry("ew at λ/K", all_methods()["ew"], weight, mimo.settings)))
    again = [entry for entry in made if entry.method.name in hybrid]
    all_sensors += [Line(f"{entry.label}, hybrid", entry.changed({}, {"fusion": "hybrid"})) for entry in again]
    joint = Entry("msl", all_methods()["msl"], {}, made[0].settings)
    single = [Line(f"{name} alone", joint, (name,)) for name in SENSORS] if alone else []
    return [
        replace(line, entry=replace(line.entry, settings=settings_for(line.sensors, line.entry.settings)))
        for line in (*all_sensors, *single)
    ]


def _checked(made: Sequence[Entry]) -> list[Entry]:
    """Return the methods that can train a policy; raise a BadInput for others that were named one by one."""
    problems = {entry.label: _unsuited(entry) for entry in made}
    named = [f"{entry.label}: {problems[entry.label]}" for entry in made if not entry.by_all and problems[entry.label]]
    raise_all([*_unsuited_settings(made[0].settings), *named])
    return [entry for entry in made if not problems[entry.label]]


def _unsuited(entry: Entry) -> str:
    """Say why a method cannot train a policy; "" where it can."""
    method = entry.method
    if method.way != "trained" or method.finish is not None or not method.fused:
        return "expected a method that trains one model with its fused head, such as mimo"
    return "; ".join(problems_of(entry.balancer(), entry.settings, "regression"))


def _unsuited_settings(settings: Settings) -> list[str]:
    """List the settings by which no policy can be trained, or none that can be read back."""
    problems = []
    if settings.model != "auto":
        problems.append(f"model={settings.model}: expected auto, since policies are read back without code of others")
    if settings.epochs == "auto":
        problems.append("epochs=auto: expected a number, the same for every line, such as epochs=30")
    if settings.task not in ("auto", "regression"):
        problems.append(f"task={settings.task}: expected regression, since actions are numbers")
    try:
        check_encoders(settings.encoder, SENSORS)
    except BadInput as problem:
        problems.append(f"encoder={settings.encoder}: {problem}")
    return problems


class CloningData(NamedTuple):
    """Demonstrations with their fingerprint.

    Args:
        demonstrations: Of the expert.
        source: Fingerprint of the files.
    """

    demonstrations: Demonstrations
    source: str

    @classmethod
    def of(cls, folder: Path) -> CloningData:
        """Read the demonstrations of a folder."""
        demonstrations = load(folder)
        source = f"sha256:{hashlib.sha256(inside(folder, MANIFEST).read_bytes()).hexdigest()}"
        return cls(demonstrations, source)

    def splits(self, sensors: Sequence[str]) -> Splits:
        """Return them as data for policies with some sensors."""
        return cloning_splits(self.demonstrations, sensors, source=self.source)


def train_policy(job: PolicyJob, data: CloningData, folder: Path) -> None:
    """Train a policy and measure its interventions; keep both in a folder, the measurements last.

    Args:
        job: What to train.
        data: What to train it on.
        folder: Of the policy.
    """
    started, entry, sensors = time.perf_counter(), job.line.entry, job.line.sensors
    splits = data.splits(sensors)
    kept = folder.parent / "trajectories"
    trained = train(splits, entry.balancer(), entry.settings, seed=job.seed, trajectories=kept)
    seconds = time.perf_counter() - started
    model = trained.model if entry.method.finish is None else entry.method.finish(trained.model)
    validation = splits.validation
    fit_committee(model, batches_of(validation, model.committee.device, BATCH), groups=validation.group)
    Policy.of(model, entry.settings, splits).save(folder)
    last = trained.curves[-1]
    measured = {
        "validation": last["validation"],
        "attention": last.get("attention"),
        "committee": model.committee.tolist(),
        "interventions": measure_interventions(model, splits, data.demonstrations),
        "seconds": {"training": seconds},
        "device": trained.device,
        "path": trained.path,
    }
    # A policy that has diverged is a result, too, and JSON has no number for what it says.
    write_atomic(folder, TRAINED, json.dumps(finite(measured), allow_nan=False) + "\n")


def run_study(
    chosen: Sequence[Line],
    seeds: Iterable[int],
    demonstrations: Path,
    out: Path,
    plan: RolloutPlan,
    *,
    workers: int | None = None,
    bar: Bar = lambda _what, _done, _all: None,
) -> list[dict[str, Any]]:
    """Train every line with every seed, roll all out, and return their rows.

    Args:
        chosen: The lines.
        seeds: Of training.
        demonstrations: Their folder.
        out: Folder of the results; a study that was interrupted goes on there.
        plan: Of the rollouts.
        workers: Policies that are trained side by side, and processes that simulate; None for one per core.
        bar: Shown what is done.

    Raises:
        BadInput: If the folder of the demonstrations or of the results cannot be used.
        RuntimeError: If a training fails.
    """
    store, workers = Store(out), cores() if workers is None else workers
    shared = gpus() > 0  # counted before anything else looks for GPUs: a process that has touched one cannot be forked
    with store.locked():
        data = CloningData.of(demonstrations)
        jobs = [PolicyJob(line, seed, data.source) for seed in seeds for line in chosen]
        done = {row["config"]: row for row in store.rows()}
        rows = {job: _digest({**job.facts(), "plan": plan.facts()}) for job in jobs}
        missing = [job for job in jobs if rows[job] not in done]
        folders = {job: store.run_folder(_digest(job.facts())) for job in missing}
        untrained = {job: folder for job, folder in folders.items() if not _is_trained(folder)}
        with multi_process_service() if shared and len(untrained) > 1 else nullcontext():
            _train_all(untrained, data, workers, bar)
        renderer = data.demonstrations.renderer
        if missing:
            with RolloutPool(workers, renderer) as pool:  # ty: ignore[invalid-argument-type]
                counts = [len(plan.of(job.line.sensors)) for job in missing]  # a sensor alone has fewer conditions
                for number, job in enumerate(missing):
                    show = partial(_within, bar, sum(counts[:number]), sum(counts))
                    row = _rolled_out(job, folders[job], pool, plan, show)
                    row["task"] |= {"renderer": renderer, "episodes": len(data.demonstrations.seeds)}
                    done[rows[job]] = row | {"config": rows[job]}
                    store.append(done[rows[job]])
    return [done[rows[job]] for job in jobs]


def _within(bar: Bar, before: int, count: int, done: int, _: int) -> None:
    """Show the episodes of one policy as a part of those of all."""
    bar("rolling out", before + done, count)


def _is_trained(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file() and (folder / TRAINED).is_file() and bool(_measured(folder))


def _measured(folder: Path) -> dict[str, Any]:
    """Read what training measured of a policy."""
    advice = f"To train this policy again, remove {folder} and type the same command"
    return read_json(folder, TRAINED, _MEASURED, "what `equipoise control` measures", advice=advice)


def _train_all(folders: Mapping[PolicyJob, Path], data: CloningData, workers: int, bar: Bar) -> None:
    """Train policies side by side, in processes that share the demonstrations."""
    jobs = list(folders)
    if jobs:
        import_libraries()
    bar("training", 0, max(len(jobs), 1))

    def work(number: int, _: Tell) -> None:
        torch.set_num_threads(1)
        train_policy(jobs[number], data, folders[jobs[number]])

    with Pool(work, min(workers, max(len(jobs), 1)), tries=2) as pool:
        pool.submit(*range(len(jobs)))
        while pool.unfinished:
            for number, kind, content in pool.events():
                job = jobs[number]
                if kind == "failed":
                    raise RuntimeError(f"{job.line.label}, seed {job.seed}: training failed: {content}") from content
                if kind == "died":
                    raise RuntimeError(f"{job.line.label}, seed {job.seed}: the process ended ({content})")
                bar("training", len(jobs) - pool.unfinished, len(jobs))


def _rolled_out(
    job: PolicyJob, folder: Path, pool: RolloutPool, plan: RolloutPlan, on_progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Roll a policy out, and return its row."""
    measured = _measured(folder)
    policy, started = Policy.load(folder, device_of(job.line.entry.settings)), time.perf_counter()
    if policy.monitor is None and len(policy.sensors) > 1 and any(one.monitored for one in plan.conditions):
        policy = with_monitor(policy, pool)
        policy.save(folder)
    outcomes = pool.run(policy, plan.of(job.line.sensors), on_progress)
    measured["seconds"]["rollouts"] = time.perf_counter() - started
    versions = {"equipoise": PACKAGE, "torch": torch.__version__, "mujoco": load_mujoco().__version__}
    facts = {"schema": SCHEMA, "status": "done", **job.facts(), **measured, "rollouts": rollouts_as_dict(outcomes)}
    return {**facts, "policy": folder.name, "plan": plan.facts(), "versions": versions}


def rollouts_as_dict(outcomes: Iterable[Outcome]) -> dict[str, dict[str, list[Any]]]:
    """Return outcomes as columns, by condition."""
    columns: dict[str, dict[str, list[Any]]] = {}
    for outcome in outcomes:
        own = columns.setdefault(outcome.condition, {})
        for name in ("seed", "success", "steps", "peak_force", "offset", "radius", "dropped", "dropped_at"):
            value = getattr(outcome, name)
            own.setdefault(name, []).append(round(value, 3) if isinstance(value, float) else value)
    return finite(columns)


def _digest(facts: Mapping[str, Any]) -> str:
    return f"sha256:{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()}"

"""Running a search: Optuna suggests, the study's engine runs, and what falls behind is pruned. It resumes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from equipoise.catalogue import DataSet
from equipoise.clusters import Place, Workforce
from equipoise.comparison import record_command
from equipoise.errors import BadInput, FailedRuns
from equipoise.experiments.tune import Search
from equipoise.experiments.tune_outcome import Outcome, Tried
from equipoise.inside import inside
from equipoise.job import Job
from equipoise.processes import threads
from equipoise.progress import Progress
from equipoise.store import Store
from equipoise.study import crew_for, plan
from equipoise.tuning import headline

try:
    import optuna
    from optuna.trial import FrozenTrial, Trial, TrialState
except ModuleNotFoundError:
    msg = "equipoise tune needs optuna, which is not installed; type: pip install 'equipoise[tune]'"
    raise ModuleNotFoundError(msg) from None

FILE, NAME = "tune.db", "tune"
SIDE_BY_SIDE = 16  # trials at most, unless somebody asks for more: each is chosen without knowing the others
STARTS = 5  # trials that come to their end before any is pruned
GRACE = 3  # the part of its epochs that every trial may train: curves cross early
DIVERGED = FloatingPointError.__name__


@threads(1)  # before data is loaded: processes that share memory must not inherit a pool of threads
def run(
    search: Search,
    source: DataSet,
    trials: int,
    out: Path,
    *,
    seed: int = 0,
    workers: int | None = None,
    on: Place | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> Outcome:
    """Try what was not tried yet, and collect everything.

    Args:
        search: What to look for.
        source: The data; its test part is not read.
        trials: How many, with those of earlier sittings.
        out: Folder for everything that is written.
        seed: Of every run.
        workers: Trials side by side; None for one per core, or as many as the GPUs carry.
        on: Where they take place, if not on this machine.
        quiet: Show no progress.
        command: What was typed, to be recorded beside the results; None where nothing was.

    Raises:
        FailedRuns: If not a single trial was finished.
        BadInput: If the folder holds another search.
    """
    store = Store(inside(out, "trials"))
    (job,), splits = plan([search.base], source, [seed], [None], measure="validation", on=on)
    record_command(out, command)
    with store.locked():
        study = _open(inside(out, FILE), search, job)
        desk = _Desk(study, search, job, store, trials)
        finished = sum(each.state.is_finished() for each in study.get_trials(deepcopy=False))
        left = max(trials - finished, len(desk.interrupted))
        with (
            Progress(left, "trials on validation data", quiet=quiet) as progress,
            crew_for([job] * left, splits, store, workers, on) as crew,
        ):
            desk.work(crew, progress, workers or SIDE_BY_SIDE)
    tried = [_tried(each, search) for each in study.get_trials(deepcopy=False) if each.state.is_finished()]
    if not any(each.state == "finished" for each in tried):
        raise FailedRuns("\n".join(dict.fromkeys(each.reason or each.state for each in tried)))
    own = splits[None]
    return Outcome(search, source.name, own.about, len(own.validation), seed, tried, _importance(study))


@final
class _Desk:
    """Where suggestions go out and news come in."""

    def __init__(self, study: optuna.Study, search: Search, job: Job, store: Store, trials: int) -> None:
        self.study, self.search, self.job, self.store, self.trials = study, search, job, store, trials
        known = study.get_trials(deepcopy=False)
        self.begun = sum(each.state != TrialState.WAITING for each in known)
        self.interrupted = [Trial(study, each._trial_id) for each in known if each.state == TrialState.RUNNING]
        self.judged = {each.user_attrs["config"]: each for each in known if each.state.is_finished()}
        self.rows = {row["config"]: row for row in store.rows()}
        self.running: dict[str, list[Trial]] = {}

    def work(self, crew: Workforce, progress: Progress, most: int) -> None:
        """Until all trials are done."""
        while True:
            while crew.has_room and len(self.running) < most and (trial := self._next()) is not None:
                job = self._job(trial)
                if job.config in self.running:
                    self.running[job.config].append(trial)
                    continue
                progress.event("start", job, {})
                self.running[job.config] = [trial]
                if job.config in self.rows:
                    self._hear(crew, progress, job, "done", self.rows[job.config])
                elif job.config in self.judged:
                    self._again(progress, job)
                else:
                    crew.start(job)
            if not self.running:
                return
            for job, kind, content in crew.news():
                self._hear(crew, progress, job, kind, content)

    def _next(self) -> Trial | None:
        """What an earlier sitting left, then something new; None where there is enough."""
        if self.interrupted:
            return self.interrupted.pop(0)
        if self.begun >= self.trials:
            return None
        # A seed for each trial: a search that was interrupted goes on as it would have.
        self.study.sampler = optuna.samplers.TPESampler(seed=self.begun, constant_liar=True)
        self.begun += 1
        return self.study.ask()

    def _job(self, trial: Trial) -> Job:
        values = self.search.suggest(trial)
        job = replace(self.job, entry=self.search.at(values))
        trial.set_user_attr("values", values)
        trial.set_user_attr("config", job.config)
        return job

    def _hear(self, crew: Workforce, progress: Progress, job: Job, kind: str, content: dict[str, Any]) -> None:
        trials = self.running[job.config]
        if kind == "unwritable":
            raise BadInput(content["reason"])
        if kind == "epoch":
            for trial in trials:
                _report(trial, _score_of(job, content), content["epoch"])
            progress.event(kind, job, content)
            if content["epoch"] < job.entry.settings.epochs and trials[0].should_prune():
                crew.stop(job)
                self._end(progress, job, TrialState.PRUNED, f"pruned after epoch {content['epoch']}")
            return
        if kind == "done":
            if content["config"] not in self.rows:
                self.store.append(content)
                self.rows[content["config"]] = content
            if _diverged(content):
                self._end(progress, job, TrialState.PRUNED, f"{DIVERGED}: the loss is no number")
                return
            for trial in self.running.pop(job.config):
                for record in self._curve(job):  # a run that goes on says nothing of what an earlier sitting heard last
                    _report(trial, _score_of(job, record), record["epoch"])
                self.study.tell(trial, headline(content["validation"]))
            progress.event("done", job, content)
            return
        diverged = content["reason"].startswith(DIVERGED)  # an answer: not here
        self._end(progress, job, TrialState.PRUNED if diverged else TrialState.FAIL, content["reason"])

    def _curve(self, job: Job) -> list[dict[str, Any]]:
        lines = (self.store.run_folder(job.config) / "curves.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def _again(self, progress: Progress, job: Job) -> None:
        """What did not come to its end before does not now."""
        before = self.judged[job.config]
        for step, value in before.intermediate_values.items():
            for trial in self.running[job.config]:
                _report(trial, value, step)
        self._end(progress, job, before.state, before.user_attrs.get("reason", "tried before"))

    def _end(self, progress: Progress, job: Job, state: TrialState, reason: str) -> None:
        for trial in self.running.pop(job.config):
            trial.set_user_attr("reason", reason)
            self.judged[job.config] = self.study.tell(trial, state=state)
        progress.event("failed", job, {"reason": reason})


def _open(file: Path, search: Search, job: Job) -> optuna.Study:
    """The search of a folder, or a new one; another one is refused."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    epochs = job.entry.settings.epochs
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTS, n_warmup_steps=max(2, epochs // GRACE))
    try:
        study = optuna.create_study(
            study_name=NAME,
            storage=f"sqlite:///{file.resolve()}",
            pruner=pruner,
            direction="maximize",
            load_if_exists=True,
        )
    except Exception as found:
        if type(found).__name__ not in {"DatabaseError", "StorageInternalError"}:
            raise
        raise BadInput(f"{file}: expected the trials of a search, found: {found}; choose another --out") from None
    asked = json.loads(json.dumps({**job.facts(), "space": {key: str(each) for key, each in search.space.items()}}))
    before = study.user_attrs.get("asked")
    if before is None:
        study.set_user_attr("asked", asked)
        if (start := search.start()) is not None:
            study.enqueue_trial(start)
    elif before != asked:
        old, new = _flat(before), _flat(asked)
        other = [f"{key} {value}" for key, value in old.items() if value != new.get(key)]
        other += [f"{key} not among it" for key in new if key not in old]
        raise BadInput(f"{file.parent} holds another search ({', '.join(other)}); choose another folder with --out")
    return study


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    """Settings and limits each for itself, so that only those that differ are named."""
    inner = {f"{key} {name}": each for key in ("run", "space") for name, each in facts.get(key, {}).items()}
    return {**{key: value for key, value in facts.items() if key not in ("run", "space")}, **inner}


def _report(trial: Trial, value: float, epoch: int) -> None:
    """Once for each epoch: a run that goes on from a checkpoint repeats some."""
    if epoch not in trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values:
        trial.report(value, epoch)


def _score_of(job: Job, record: dict[str, Any]) -> float:
    """What an epoch is judged by: the fused accuracy, or the mean of the modalities where none is trained."""
    validation = record["validation"]
    if job.entry.balancer().needs_fused:
        return validation["fused"]
    alone = [value for name, value in validation.items() if name != "fused"]
    return sum(alone) / len(alone)


def _diverged(row: dict[str, Any]) -> bool:
    validation = row["validation"]
    return validation.get("fused") is not None and validation.get("fused_loss") is None


def _tried(trial: FrozenTrial, search: Search) -> Tried:
    reason = trial.user_attrs.get("reason", "")
    state = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned"}.get(trial.state, "failed")
    state = "diverged" if reason.startswith(DIVERGED) else state
    epochs = max(trial.intermediate_values, default=0)
    done = search.base.settings.epochs if state == "finished" and not epochs else epochs
    score = None if state in ("diverged", "failed") else trial.value
    return Tried(trial.number, trial.user_attrs.get("values", {}), state, score, done, reason)


def _importance(study: optuna.Study) -> dict[str, float]:
    """Of all that have a score: what was pruned is as good as finished, since only the best decide."""
    scored = [each for each in study.get_trials(deepcopy=False) if each.state.is_finished() and each.value is not None]
    if len(scored) < 2 * STARTS or len({each.value for each in scored}) < 2:
        return {}
    judged = optuna.create_study(direction="maximize")
    judged.add_trials(
        [optuna.create_trial(params=each.params, distributions=each.distributions, value=each.value) for each in scored]
    )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.get_param_importances(judged, evaluator=evaluator)

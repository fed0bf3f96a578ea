"""Running a search: Optuna suggests, the study's engine runs, and what falls behind is pruned. It resumes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from equipoise.data.source import DataSet
from equipoise.study.compare import record_command
from equipoise.study.executors import Place, Workforce
from equipoise.study.executors.errand import TRIES
from equipoise.study.job import Job
from equipoise.study.progress import Progress
from equipoise.study.store import Store
from equipoise.study.study import crew_for, plan
from equipoise.study.tune import Search
from equipoise.study.tune_outcome import Outcome, Tried
from equipoise.study.tune_study import STARTS, open_study
from equipoise.study.tuning import headline
from equipoise.training import checkpoint
from equipoise.util.errors import BadInput, FailedRuns
from equipoise.util.files import inside
from equipoise.util.processes import threads

try:
    import optuna
    from optuna.samplers import TPESampler
    from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
except ModuleNotFoundError:
    msg = "equipoise tune needs optuna, which is not installed; type: pip install 'equipoise[tune]'"
    raise ModuleNotFoundError(msg) from None

FILE = "tune.db"
SIDE_BY_SIDE = 16  # trials at most, unless somebody asks for more: each is chosen without knowing the others
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
        study = open_study(inside(out, FILE), search, job)
        desk = _Desk(study, search, job, store, trials, tries=TRIES if on is None else 1)  # clusters try by themselves
        finished = sum(each.state.is_finished() for each in study.get_trials(deepcopy=False))
        left = max(trials - finished, len(desk.interrupted))
        with (
            Progress(left, "trials on validation data", quiet=quiet) as progress,
            crew_for([job] * left, splits, store, workers, on) as crew,
        ):
            desk.work(crew, progress, workers or SIDE_BY_SIDE)
    tried = [_tried(each, search) for each in study.get_trials(deepcopy=False)]
    if not any(each.state == "finished" for each in tried):
        raise FailedRuns("\n".join(dict.fromkeys(each.reason or each.state for each in tried)))
    own = splits[None]
    return Outcome(search, source.name, own.about, len(own.validation), seed, tried, _importance(study))


@final
class _Desk:
    """Where suggestions go out and news come in.

    Every step of a trial is one transaction: what a kill leaves behind is a trial with all its values, or none.
    """

    def __init__(self, study: optuna.Study, search: Search, job: Job, store: Store, trials: int, tries: int) -> None:
        self.study, self.search, self.job, self.store = study, search, job, store
        self.trials, self.tries = trials, tries
        known = study.get_trials(deepcopy=False)
        self.begun = len(known)
        self.interrupted = [Trial(study, each._trial_id) for each in known if not each.state.is_finished()]
        self.judged = {each.user_attrs["config"]: each for each in known if each.state.is_finished()}
        self.rows = {row["config"]: row for row in store.rows()}
        self.running: dict[str, list[Trial]] = {}
        self.deaths: dict[str, int] = {}

    def work(self, crew: Workforce, progress: Progress, most: int) -> None:
        """Until all trials are done."""
        while True:
            while crew.has_room and len(self.running) < most and (trial := self._next()) is not None:
                job = self._job(trial.user_attrs["values"])
                if job.config in self.running:
                    self.running[job.config].append(trial)
                    continue
                progress.event("start", job, {})
                self.running[job.config] = [trial]
                if job.config in self.rows:
                    self._hear(crew, progress, job, "done", self.rows[job.config])
                elif job.config in self.judged:
                    self._again(progress, job)
                elif not self._pruned_before(progress, job):
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
        self.begun += 1
        return self._new()

    def _new(self) -> Trial:
        """Choose values and write the trial down with them.

        They are chosen in memory, by a sampler whose seed is the trial's number: an interrupted search goes on as it
        would have. First comes the method as it stands.
        """
        known = self.study.get_trials(deepcopy=False)
        sampler = TPESampler(seed=len(known), constant_liar=True)
        choosing = optuna.create_study(sampler=sampler, direction="maximize")
        choosing.add_trials(known)
        if not known and (start := self.search.start()) is not None:
            choosing.enqueue_trial(start)
        chosen = choosing.ask()
        values = self.search.suggest(chosen)
        self.study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=chosen.params,
                distributions=chosen.distributions,
                user_attrs={"values": values, "config": self._job(values).config},
            )
        )
        return Trial(self.study, self.study.get_trials(deepcopy=False)[-1]._trial_id)

    def _job(self, values: dict[str, Any]) -> Job:
        return replace(self.job, entry=self.search.at(values))

    def _hear(self, crew: Workforce, progress: Progress, job: Job, kind: str, content: dict[str, Any]) -> None:
        if kind == "unwritable":
            raise BadInput(content["reason"])
        if kind == "epoch":
            progress.event(kind, job, content)
            if self._falls_behind(job, content):
                crew.stop(job)
                self._prune(progress, job, content)
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
        if content.get("killed"):
            self._begin_again(crew, progress, job, content["reason"])
            return
        diverged = content["reason"].startswith(DIVERGED)  # an answer: not here
        self._end(progress, job, TrialState.PRUNED if diverged else TrialState.FAIL, content["reason"])

    def _falls_behind(self, job: Job, record: dict[str, Any]) -> bool:
        """Write an epoch down; whether the trial is to be pruned there."""
        trials = self.running[job.config]
        for trial in trials:
            _report(trial, _score_of(job, record), record["epoch"])
        # A run that goes on repeats epochs: those before the last one have been decided on.
        latest = record["epoch"] == max(_known_epochs(trials[0]))
        return latest and record["epoch"] < job.entry.settings.epochs and trials[0].should_prune()

    def _pruned_before(self, progress: Progress, job: Job) -> bool:
        """Judge the epochs of the checkpoint that a run would go on from: not all of them may have been heard."""
        for record in checkpoint.curves(self.store.run_folder(job.config)):
            if self._falls_behind(job, record):
                self._prune(progress, job, record)
                return True
        return False

    def _prune(self, progress: Progress, job: Job, record: dict[str, Any]) -> None:
        self._end(progress, job, TrialState.PRUNED, f"pruned after epoch {record['epoch']}")

    def _begin_again(self, crew: Workforce, progress: Progress, job: Job, reason: str) -> None:
        """Begin a run whose process was killed again, a few times; then leave its trials to the next sitting."""
        self.deaths[job.config] = self.deaths.get(job.config, 0) + 1
        if self.deaths[job.config] < self.tries:
            crew.start(job)
            return
        for trial in self.running.pop(job.config):
            trial.set_user_attr("killed", reason)
        progress.event("failed", job, {"reason": reason})

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


def _report(trial: Trial, value: float, epoch: int) -> None:
    """Once for each epoch: a run that goes on from a checkpoint repeats some."""
    if epoch not in _known_epochs(trial):
        trial.report(value, epoch)


def _known_epochs(trial: Trial) -> dict[int, float]:
    return trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values


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
    values, epochs = trial.user_attrs["values"], max(trial.intermediate_values, default=0)
    if not trial.state.is_finished():
        return Tried(trial.number, values, "killed", None, epochs, trial.user_attrs.get("killed", ""))
    if trial.state == TrialState.COMPLETE:
        return Tried(trial.number, values, "finished", trial.value, epochs or search.base.settings.epochs)
    reason = trial.user_attrs.get("reason", "")
    if reason.startswith(DIVERGED):
        return Tried(trial.number, values, "diverged", None, epochs, reason)
    state, score = ("pruned", trial.value) if trial.state == TrialState.PRUNED else ("failed", None)
    return Tried(trial.number, values, state, score, epochs, reason)


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

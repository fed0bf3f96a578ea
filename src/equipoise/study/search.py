"""A search by Optuna: it suggests values, the executor of a study runs them, trials that fall behind are pruned."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from equipoise.data.source import DataSet
from equipoise.models.metrics import Metric, judged, metric_of
from equipoise.study.compare import record_command
from equipoise.study.executors import Cluster, Executor
from equipoise.study.executors.remote import TRIES
from equipoise.study.job import DIVERGED, Job, diverged, run_job
from equipoise.study.store import Store
from equipoise.study.study import OnEvent, executor_for, plan, run_progress
from equipoise.study.tuning import Search, SearchResult, SearchTrial, headline
from equipoise.training import checkpoint
from equipoise.training.train import score_of
from equipoise.util.errors import BadInput, FailedRuns
from equipoise.util.extras import needs
from equipoise.util.files import inside
from equipoise.util.processes import threads

with needs("equipoise tune", "tune"):
    import optuna
    from optuna.samplers import TPESampler
    from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

FILE, NAME = "tune.db", "tune"
STARTS = 5  # trials that come to their end before any is pruned
GRACE = 3  # the part of its epochs that every trial may train: curves cross early
AT_ONCE = 16  # trials at most, unless somebody asks for more: each is chosen without knowing the others


@threads(1)  # before data is loaded: processes that share memory must not inherit a pool of threads
def run_search(
    search: Search,
    source: DataSet,
    trials: int,
    out: Path,
    *,
    seed: int = 0,
    workers: int | None = None,
    on: Cluster | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> SearchResult:
    """Run the trials that are not done yet, and collect all.

    Args:
        search: The space.
        source: The data; its test part is not read.
        trials: How many, with those of earlier commands.
        out: Folder for everything that is written.
        seed: Of every run.
        workers: Trials at the same time; None for one per core, or as many as the GPUs carry.
        on: The cluster, if not this machine.
        quiet: Show no progress.
        command: As it was typed, to be recorded beside the results; None where there is none.

    Raises:
        FailedRuns: If not a single trial was finished.
        BadInput: If the folder holds another search.
    """
    store = Store(inside(out, "trials"))
    (job,), splits = plan([search.base], source, [seed], [None], measure="validation", on=on)
    search = search._replace(base=job.entry)  # with the number of epochs that "auto" stands for
    record_command(out, command)
    with store.locked():
        settings = search.base.settings
        metric = metric_of(settings.metric, judged(splits[None].task, settings.positive))
        study = _open_study(inside(out, FILE), search, job, metric)
        scheduler = _Scheduler(study, search, job, store, trials, tries=TRIES if on is None else 1)  # clusters retry
        finished = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
        left = max(trials - finished, len(scheduler.interrupted))
        with (
            run_progress(left, "trials on validation data", quiet=quiet) as scheduler.tell,
            executor_for(run_job, [job] * left, splits, store, workers, on) as scheduler.executor,
        ):
            scheduler.run(workers or AT_ONCE)
    done = [_search_trial(trial, search) for trial in study.get_trials(deepcopy=False)]
    if not any(trial.state == "finished" for trial in done):
        raise FailedRuns("\n".join(dict.fromkeys(trial.reason or trial.state for trial in done)))
    data = splits[None]
    return SearchResult(search, source.name, data.about, len(data.validation), seed, done, _importance(study), metric)


def _open_study(file: Path, search: Search, job: Job, metric: Metric) -> optuna.Study:
    """Open the search of a folder, or make a new one; another one is refused."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    asked = json.loads(json.dumps({**job.facts(), "space": {key: str(one) for key, one in search.space.items()}}))
    if not file.exists():
        # Under another name first: a kill leaves a whole one or none.
        unfinished = file.with_suffix(".tmp")
        for rest in (unfinished, unfinished.with_name(f"{unfinished.name}-journal")):
            rest.unlink(missing_ok=True)
        storage = optuna.storages.RDBStorage(f"sqlite:///{unfinished.resolve()}")
        direction = "maximize" if metric.higher else "minimize"
        optuna.create_study(study_name=NAME, storage=storage, direction=direction).set_user_attr("asked", asked)
        storage.remove_session()
        storage.engine.dispose()
        unfinished.replace(file)
    warmup = max(2, job.entry.settings.passes // GRACE)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTS, n_warmup_steps=warmup)
    sampler = optuna.samplers.RandomSampler()  # values are chosen elsewhere: it draws nothing at the start of a trial
    try:
        storage = f"sqlite:///{file.resolve()}"
        study = optuna.load_study(study_name=NAME, storage=storage, sampler=sampler, pruner=pruner)
        trials = study.get_trials(deepcopy=False)
    except Exception as error:
        if type(error).__name__ not in {"DatabaseError", "StorageInternalError", "KeyError"}:
            raise
        raise BadInput(f"{file}: expected the trials of a search, found: {error}; choose another --out") from None
    before = study.user_attrs.get("asked", {})
    if before != asked:
        old, new = _flat(before), _flat(asked)
        other = [f"{key} {value}" for key, value in old.items() if value != new.get(key)]
        other += [f"{key} not among it" for key in new if key not in old]
        raise BadInput(f"{file.parent} holds another search ({', '.join(other)}); choose another folder with --out")
    if foreign := [trial.number for trial in trials if not {"values", "config"} <= set(trial.user_attrs)]:
        numbers = ", ".join(map(str, foreign))
        raise BadInput(f"{file}: expected values of each trial, found none in trial {numbers}; choose another --out")
    return study


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    """Put settings and limits beside the other facts, so that only those that differ are named."""
    inner = {f"{key} {name}": value for key in ("run", "space") for name, value in facts.get(key, {}).items()}
    return {**{key: value for key, value in facts.items() if key not in ("run", "space")}, **inner}


@final
class _Scheduler:
    """Starts trials, reports their epochs to Optuna, and prunes them.

    Every step of a trial is one transaction: what a kill leaves behind is a trial with all its values, or none.
    """

    executor: Executor
    tell: OnEvent

    def __init__(self, study: optuna.Study, search: Search, job: Job, store: Store, trials: int, tries: int) -> None:
        self.study, self.search, self.job, self.store = study, search, job, store
        self.trials, self.tries = trials, tries
        known = study.get_trials(deepcopy=False)
        self.begun = len(known)
        self.interrupted = [Trial(study, trial._trial_id) for trial in known if not trial.state.is_finished()]
        self.judged = {trial.user_attrs["config"]: trial for trial in known if trial.state.is_finished()}
        self.rows = {row["config"]: row for row in store.rows()}
        self.running: dict[str, list[Trial]] = {}
        self.deaths: dict[str, int] = {}

    def run(self, most: int) -> None:
        """Run trials, at most some at the same time, until all are done."""
        while True:
            while self.executor.has_room and len(self.running) < most and (trial := self._next()) is not None:
                self._start(trial)
            if not self.running:
                return
            for job, kind, content in self.executor.events():
                self._handle(job, kind, content)

    def _next(self) -> Trial | None:
        """Return a trial that was interrupted, or a new one with values; None where there are enough.

        Values are chosen in memory, by a sampler whose seed is the trial's number: an interrupted search goes on as it
        would have. First come the method's own values.
        """
        if self.interrupted:
            return self.interrupted.pop(0)
        if self.begun >= self.trials:
            return None
        self.begun += 1
        known = self.study.get_trials(deepcopy=False)
        sampler = TPESampler(seed=len(known), constant_liar=True)
        choosing = optuna.create_study(sampler=sampler, direction=self.study.direction)
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
                user_attrs={"values": values, "config": replace(self.job, entry=self.search.at(values)).config},
            )
        )
        return Trial(self.study, self.study.get_trials(deepcopy=False)[-1]._trial_id)

    def _start(self, trial: Trial) -> None:
        job = replace(self.job, entry=self.search.at(trial.user_attrs["values"]))
        if job.config in self.running:
            self.running[job.config].append(trial)
            return
        self.tell("start", job, {})
        self.running[job.config] = [trial]
        if job.config in self.rows:
            self._handle(job, "done", self.rows[job.config])
        elif (before := self.judged.get(job.config)) is not None:  # what did not come to its end before does not now
            for step, value in before.intermediate_values.items():
                _report(trial, value, step)
            self._end(job, before.state, before.user_attrs.get("reason", "tried before"))
        else:
            # The epochs of the checkpoint that a run would go on from: not all of them may have been reported.
            for record in checkpoint.curves(self.store.run_folder(job.config)):
                if self._pruned(job, record):
                    return
            self.executor.start(job)

    def _handle(self, job: Job, kind: str, content: dict[str, Any]) -> None:
        if kind == "unwritable":
            raise BadInput(content["reason"])
        if kind == "epoch":
            self.tell(kind, job, content)
            if self._pruned(job, content):
                self.executor.stop(job)
        elif kind == "done":
            self._done(job, content)
        elif content.get("killed"):
            self._begin_again(job, content["reason"])
        else:
            lost = content["reason"].startswith(DIVERGED)  # a result: these values do not work
            self._end(job, TrialState.PRUNED if lost else TrialState.FAIL, content["reason"])

    def _done(self, job: Job, row: dict[str, Any]) -> None:
        if row["config"] not in self.rows:
            self.store.append(row)
            self.rows[row["config"]] = row
        if diverged(row):
            self._end(job, TrialState.PRUNED, f"{DIVERGED}: the loss is no number")
            return
        score = headline(row["validation"])
        if score is None:
            reason = f"{row.get('metric', 'accuracy')} cannot be told of this validation part; choose another metric"
            self._end(job, TrialState.FAIL, reason)
            return
        curves = (self.store.run_folder(job.config) / "curves.jsonl").read_text(encoding="utf-8").splitlines()
        for trial in self.running.pop(job.config):
            for record in map(json.loads, curves):  # a resumed run does not repeat what was reported before it ended
                _report(trial, score_of(record["validation"]), record["epoch"])
            self.study.tell(trial, score)
        self.tell("done", job, row)

    def _pruned(self, job: Job, record: dict[str, Any]) -> bool:
        """Report an epoch, prune the trial where it falls behind, and tell whether it does."""
        trials = self.running[job.config]
        for trial in trials:
            _report(trial, score_of(record["validation"]), record["epoch"])
        # A resumed run repeats epochs: those before the last one have been decided on.
        epoch, last = record["epoch"], job.entry.settings.passes
        behind = epoch == max(_known_epochs(trials[0])) and epoch < last and trials[0].should_prune()
        if behind:
            self._end(job, TrialState.PRUNED, f"pruned after epoch {epoch}")
        return behind

    def _begin_again(self, job: Job, reason: str) -> None:
        """Begin a run whose process was killed again, a few times; then leave its trials to the next command."""
        self.deaths[job.config] = self.deaths.get(job.config, 0) + 1
        if self.deaths[job.config] < self.tries:
            self.executor.start(job)
            return
        for trial in self.running.pop(job.config):
            trial.set_user_attr("killed", reason)
        self.tell("failed", job, {"reason": reason})

    def _end(self, job: Job, state: TrialState, reason: str) -> None:
        for trial in self.running.pop(job.config):
            trial.set_user_attr("reason", reason)
            self.judged[job.config] = self.study.tell(trial, state=state)
        self.tell("failed", job, {"reason": reason})


def _report(trial: Trial, value: float, epoch: int) -> None:
    """Report an epoch once: a run that goes on from a checkpoint repeats some."""
    if epoch not in _known_epochs(trial):
        trial.report(value, epoch)


def _known_epochs(trial: Trial) -> dict[int, float]:
    return trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values


def _search_trial(trial: FrozenTrial, search: Search) -> SearchTrial:
    values, epochs = trial.user_attrs["values"], max(trial.intermediate_values, default=0)
    if not trial.state.is_finished():
        return SearchTrial(trial.number, values, "killed", None, epochs, trial.user_attrs.get("killed", ""))
    if trial.state == TrialState.COMPLETE:
        return SearchTrial(trial.number, values, "finished", trial.value, epochs or search.base.settings.passes)
    reason = trial.user_attrs.get("reason", "")
    if reason.startswith(DIVERGED):
        return SearchTrial(trial.number, values, "diverged", None, epochs, reason)
    state, score = ("pruned", trial.value) if trial.state == TrialState.PRUNED else ("failed", None)
    return SearchTrial(trial.number, values, state, score, epochs, reason)


def _importance(study: optuna.Study) -> dict[str, float]:
    """Rate parameters by all trials that have a score: pruned ones count as well, since only the best decide."""
    scored = [one for one in study.get_trials(deepcopy=False) if one.state.is_finished() and one.value is not None]
    if len(scored) < 2 * STARTS or len({trial.value for trial in scored}) < 2:
        return {}
    judged = optuna.create_study(direction=study.direction)
    judged.add_trials(
        [create_trial(params=trial.params, distributions=trial.distributions, value=trial.value) for trial in scored]
    )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.get_param_importances(judged, evaluator=evaluator)

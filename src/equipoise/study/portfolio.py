"""The model that is trained where no method is named: closed-form heads, a few methods by successive halving, combined.

Everything is decided by the loss of the combined answer on the validation part; the test part is not read. Every
candidate keeps its checkpoints in a folder of its own, so that one that is finished is not trained again.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.data.part import joined
from equipoise.data.splits import Splits
from equipoise.measure.outputs import batches_of
from equipoise.models.combine import combined, fit_combined
from equipoise.models.committee import CommitteeFit
from equipoise.models.fusion_model import FusionModel
from equipoise.models.late_fusion import LateFusion
from equipoise.models.metrics import metric_of
from equipoise.models.task import TaskKind
from equipoise.models.votes import Votes, read_votes
from equipoise.study.registry import Entry, all_methods
from equipoise.training.closed_form import closed_form, why_not_solved
from equipoise.training.settings import Settings
from equipoise.training.step import problems_of, task_for
from equipoise.training.trackers import Trackers
from equipoise.training.train import Trained, train
from equipoise.util.errors import BadInput

CANDIDATES = ("moddrop", "ew", "mimo", "mmpareto")
SHARES = (8, 4, 1)
"""The rungs: all candidates with an eighth of the steps, the better half with a quarter, the best with all."""
CLOSED_FORM, FROZEN = "closed form", "frozen"
"""The name of the closed-form member in the evidence, and the word of its encoders."""


class Member(NamedTuple):
    """A model that may become part of the answer.

    Args:
        label: Its name in the evidence.
        model: The model.
        plan: What it is built from: encoder, features, fusion and unimodal.
        votes: What its heads say on the validation part.
    """

    label: str
    model: FusionModel
    plan: dict[str, Any]
    votes: Votes


class Trial(NamedTuple):
    """A candidate that was trained.

    Args:
        line: The method.
        member: Its model.
        trained: Its training.
        balancer: Its balancer.
        loss: On the validation part, of the committee of it and the closed form.
    """

    line: Entry
    member: Member
    trained: Trained
    balancer: Balancer
    loss: float


@final
@dataclass
class Made:
    """A model and how it came about.

    Args:
        model: The model that is measured and shipped.
        trained: The longest training of it; one without epochs where nothing was trained.
        balancer: Its method.
        members: What each member is built from; none where the settings of the run say it.
        refitted: The same trained again on train plus validation, where that was asked for.
        evidence: How it was chosen, in plain values.
    """

    model: FusionModel
    trained: Trained
    balancer: Balancer
    members: list[dict[str, Any]] = field(default_factory=list)
    refitted: FusionModel | None = None
    evidence: dict[str, Any] | None = None


def check_fusion(entry: Entry) -> None:
    """Raise a BadInput where an automatic model is asked for with a trunk: only late fusion can be combined."""
    way, settings = entry.method.way, entry.settings
    if way != "trained" and settings.meets_early and settings.model == "auto":
        what = "is late fusion solved in closed form" if way == "instant" else "combines models of late fusion"
        instead = f"type --method mimo fusion={settings.fusion}, or leave fusion=… out"
        raise BadInput(f"{way} {what}, and found fusion={settings.fusion}; {instead}")


def candidates_of(entry: Entry, kind: TaskKind) -> list[Entry]:
    """Return the methods that a portfolio tries, each with its own parameters, as far as they fit the task and model.

    Args:
        entry: The line of the portfolio.
        kind: Of the task.
    """
    known = all_methods()
    lines = [Entry(name, known[name], dict(known[name].parameters), entry.settings) for name in CANDIDATES]
    return [line for line in lines if not problems_of(line.balancer(), line.settings, kind)]


def rungs_of(candidates: int, epochs: int) -> list[tuple[int, int, int]]:
    """Return of each rung how many candidates it trains, the share of the steps that each takes, and their epochs."""
    counts = [candidates, (candidates + 1) // 2, 1]
    return [(n, share, -(-epochs // share)) for n, share in zip(counts, SHARES, strict=True)]


def trainings_of(entry: Entry, kind: TaskKind) -> list[int]:
    """Return the epochs of every training of a line.

    Seeds draw weights, batches and dropout, and so nothing where nothing is trained: such a line is run once, not once
    for each seed.
    """
    epochs = entry.settings.passes
    if entry.method.way == "trained":
        return [epochs]
    if entry.method.way == "instant":
        return []
    if epochs == 0:  # too few steps are affordable: the closed form alone
        return []
    rungs = rungs_of(len(candidates_of(entry, kind)), epochs)
    return [each for count, _, each in rungs for _ in range(count)] + [epochs] * bool(entry.params["refit"])


def make_model(entry: Entry, splits: Splits, **how: Any) -> Made:
    """Make the model of a line, in the way of its method.

    Args:
        entry: The line.
        splits: The data.
        how: Further arguments of `train`.
    """
    check_fusion(entry)
    if entry.method.way == "instant":
        return make_instant(entry, splits)
    if entry.method.way == "auto":
        return Portfolio(entry, splits, **how).make()
    balancer, finish = entry.balancer(), entry.method.finish
    trained = train(splits, balancer, entry.settings, **how)
    return Made(trained.model if finish is None else finish(trained.model), trained, balancer)


def make_instant(entry: Entry, splits: Splits) -> Made:
    """Solve the closed-form heads, and nothing else.

    Raises:
        BadInput: If the data or the settings do not allow it.
    """
    if reason := why_not_solved(splits, entry.settings):
        raise BadInput(f"instant: {reason}; choose a method that is trained, such as mimo")
    started = time.perf_counter()
    solved = closed_form(splits, entry.settings)
    model = _one_model([solved.model], solved.fit.weights, solved.fit.reason)
    trained = _untrained(model, time.perf_counter() - started)
    weights = dict(zip(["fused", *model.encoders], solved.fit.weights.tolist(), strict=True))
    evidence = {
        "closed_form": {"heads": solved.evidence},
        "rungs": [],
        "chosen": [CLOSED_FORM],
        "weights": {CLOSED_FORM: weights},
        "fit": solved.fit.reason,
    }
    return Made(model, trained, entry.balancer(), [_plan_solved(entry.settings)], evidence=evidence)


def _plan_solved(settings: Settings) -> dict[str, Any]:
    return {"encoder": FROZEN, "features": settings.features, "fusion": "concat", "unimodal": "head"}


def _untrained(model: FusionModel, seconds: float) -> Trained:
    return Trained(model, seconds=seconds, device=str(model.committee.device), path={"trained": "in closed form"})


@final
class Portfolio:
    """The making of an automatic model, on the data of one run.

    Args:
        entry: Its settings, and whether to refit.
        splits: The data.
        folder: Of the run; None to keep no checkpoints.
        on_epoch: Called after each epoch of any candidate with its record, the words for it under "stage", and how many
            epochs of how many are done in all under "overall".
        trackers: Where the last training is logged.
        how: Further arguments of `train`.
    """

    def __init__(
        self,
        entry: Entry,
        splits: Splits,
        folder: Path | None = None,
        on_epoch: Callable[[dict[str, Any]], None] | None = None,
        trackers: Trackers | None = None,
        **how: Any,
    ) -> None:
        self.entry, self.settings, self.splits, self.folder = entry, entry.settings, splits, folder
        self.on_epoch, self.trackers, self.how = on_epoch, trackers, how
        self.task = task_for(splits, entry.settings)
        self.metric = metric_of(entry.settings.metric, self.task)
        self.total, self.done = sum(trainings_of(entry, splits.task.kind)), 0
        self.seconds = 0.0
        self.floor: Tensor | None = None  # the committee of the closed form, against which others earn their weight

    def make(self) -> Made:
        """Choose and combine; see the top of this file."""
        closed, told = self._closed_form()
        evidence: dict[str, Any] = {"closed_form": told, "rungs": []}
        lines, trials, failures = candidates_of(self.entry, self.splits.task.kind), [], []
        rungs = rungs_of(len(lines), self.settings.passes) if self.settings.passes or closed is None else []
        for count, share, epochs in rungs:
            numbers, latest = [], []
            for line in lines[:count]:
                try:
                    trial, about = self._try(line, share, epochs, closed)
                except FloatingPointError as error:  # one that diverges has lost, no more
                    failures.append(error)
                    about = {"diverged": str(error)}
                else:
                    latest.append(trial)
                numbers.append({"candidate": line.label, **about})
                self.done += epochs
            evidence["rungs"].append({"steps": f"1/{share}", "epochs": epochs, "candidates": numbers})
            latest.sort(key=lambda trial: trial.loss)
            again = {trial.line.label for trial in latest}
            trials = latest + [trial for trial in trials if trial.line.label not in again]
            lines = [trial.line for trial in trials] or lines
        if closed is None and not trials:
            raise failures[0]
        return self._combined(closed, trials, evidence)

    def _closed_form(self) -> tuple[Member | None, dict[str, Any]]:
        """Solve the closed-form heads, or say why there are none."""
        if reason := why_not_solved(self.splits, self.settings):
            return None, {"left_out": reason}
        started = time.perf_counter()
        solved = closed_form(self.splits, self.settings)
        self.floor = solved.fit.weights
        member = Member(CLOSED_FORM, solved.model, _plan_solved(self.settings), self._votes(solved.model))
        self.seconds += time.perf_counter() - started
        return member, {**self._judge([member])[1], "heads": solved.evidence}

    def _try(self, line: Entry, share: int, epochs: int, closed: Member | None) -> tuple[Trial, dict[str, Any]]:
        """Train a candidate, and judge it together with the closed form."""
        trained, balancer = self._train(line, self.splits, f"{line.label}-{share}", {"epochs": epochs}, share=share)
        self.seconds += trained.seconds
        model = trained.model
        member = Member(line.label, model, self._plan(model), self._votes(model))
        fit, numbers = self._judge([member] if closed is None else [closed, member])
        about = {"steps": trained.steps * len(trained.curves), **numbers}
        return Trial(line, member, trained, balancer, _or_infinite(fit.loss)), about

    def _train(
        self, line: Entry, splits: Splits, name: str, changes: dict[str, Any], share: int = 1
    ) -> tuple[Trained, Balancer]:
        """Train a line in a folder of its own."""
        settings, balancer = self.settings.changed(changes), line.balancer()
        words = f"{line.label}, 1/{share} of the steps" if share > 1 else line.label

        def tell(record: dict[str, Any]) -> None:
            if self.on_epoch is not None:
                overall = (self.done + record["epoch"], self.total)
                self.on_epoch({**record, "stage": f"{words}, epoch {record['epoch']}", "overall": overall})

        trackers = self.trackers if share == 1 and splits is self.splits else None
        how: dict[str, Any] = {
            **self.how,
            "folder": None if self.folder is None else self.folder / name,
            "on_epoch": tell,
            "trackers": trackers,
        }
        return train(splits, balancer, settings, **how), balancer

    def _plan(self, model: FusionModel) -> dict[str, Any]:
        plain = {key: getattr(self.settings, key) for key in ("encoder", "features", "fusion")}
        return {**plain, "unimodal": model.unimodal}

    def _votes(self, model: FusionModel) -> Votes:
        part = self.splits.validation
        return read_votes(model, batches_of(part, model.committee.device, 512), part.group)

    def _judge(self, members: Sequence[Member]) -> tuple[CommitteeFit, dict[str, Any]]:
        """Fit the committee of all heads of some members, and return it with its loss, metric and weights."""
        task, votes = self.task, [member.votes for member in members]
        fit = fit_combined(task, votes, self.floor)
        label = votes[0].label
        value = None
        if len(label):
            heads = torch.cat([vote.members for vote in votes], dim=1)
            value = self.metric(task.pool(heads, fit.weights.to(heads.dtype)), label, task)
        names = ["fused", *members[0].model.encoders]
        table = fit.weights.reshape(len(members), -1).tolist()
        weights = {one.label: dict(zip(names, row, strict=True)) for one, row in zip(members, table, strict=True)}
        return fit, {"loss": fit.loss, self.metric.name: value, "weights": weights}

    def _combined(self, closed: Member | None, trials: Sequence[Trial], evidence: dict[str, Any]) -> Made:
        """Combine the closed form with the best trial, and with the next one, where the loss is lower."""
        best = [trial.member for trial in trials[:2]]
        options = [[closed, *best[:count]] for count in range(len(best) + 1)] if closed is not None else []
        if closed is None:
            options = [best[:1], best] if self.settings.model == "auto" else [best[:1]]
        judged = [(*self._judge(option), option) for option in options]
        fit, numbers, members = min(judged, key=lambda one: _or_infinite(one[0].loss))
        evidence["options"] = [{"members": [member.label for member in option], "loss": each.loss}
                               for each, _, option in judged]  # fmt: skip
        table = fit.weights.reshape(len(members), -1)
        # Where no head knows anything, all weights are 0, and the first member is shipped with them.
        heard = [number for number, row in enumerate(table) if bool(row.sum() > 0)] or [0]
        evidence |= {"chosen": [members[number].label for number in heard], **numbers, "fit": fit.reason}
        device = trials[0].trained.device if trials else "cpu"
        chosen, weights = [members[number] for number in heard], table[heard].flatten()
        model = _one_model([member.model for member in chosen], weights, fit.reason).to(device)
        refitted = None
        if self.entry.params["refit"]:
            again = [self._refit(member, trials) for member in chosen]
            refitted = _one_model(again, weights, fit.reason).to(device)
            evidence["refit"] = "trained again on train and validation parts together; weights are those found before"
        first = trials[0] if trials else None
        balancer = self.entry.balancer() if first is None else first.balancer
        trained = _untrained(model, 0.0) if first is None else first.trained
        trained = replace(trained, seconds=self.seconds)
        plans = [member.plan for member in chosen] if self.settings.model == "auto" else []
        return Made(model, trained, balancer, plans, refitted, evidence)

    def _refit(self, member: Member, trials: Sequence[Trial]) -> FusionModel:
        """Make a member again from the training and the validation part."""
        whole = replace(self.splits, train=joined(self.splits.train, self.splits.validation))
        if member.label == CLOSED_FORM:
            return closed_form(whole, self.settings).model
        trial = next(trial for trial in trials if trial.member is member)
        # The validation part is no judge any more, so nothing is selected by it.
        changes = {"epochs": len(trial.trained.curves), "select": "last", "patience": None}
        trained, _ = self._train(trial.line, whole, f"{member.label}-refit", changes)
        self.done += len(trial.trained.curves)
        self.seconds += trained.seconds
        return trained.model


def _or_infinite(loss: float) -> float:
    """Return a loss; an infinite one where no sample has every sensor, so that the first of several is chosen."""
    return math.inf if math.isnan(loss) else loss


def _one_model(models: Sequence[FusionModel], weights: Tensor, reason: str) -> FusionModel:
    """Make one model of some, whose committee is fitted."""
    if len(models) == 1:
        made = models[0]
        made.committee.copy_(weights)
    else:
        made = combined([model for model in models if isinstance(model, LateFusion)], weights)
    made.fitted = reason
    return made.eval()

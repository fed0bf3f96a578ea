"""One training step, from samples to moved weights, and the evaluation of a part."""

import copy
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, final, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.balance.method import unmet
from equipoise.balance.needs import ApproximationWarning
from equipoise.data.feed import Batch, Feed, MicroBatch
from equipoise.data.source import check_vocabulary
from equipoise.data.splits import Part, Splits
from equipoise.models.assemble import assemble, encoder_words
from equipoise.models.choose import build_encoders, own_encoders
from equipoise.models.encoded import EncodedModel
from equipoise.models.evaluation import evaluating
from equipoise.models.fusion_model import FusionModel, Unimodal
from equipoise.models.metrics import Metric, judged
from equipoise.models.own_model import OwnModel, build_own
from equipoise.models.responses import response_losses
from equipoise.models.task import Classification, Regression, RegressionLoss, Task
from equipoise.models.tcmax import tcmax_loss
from equipoise.training.average import WeightAverage
from equipoise.training.parallel import ParallelModel
from equipoise.training.settings import Settings
from equipoise.training.tcmax import tcmax_problems
from equipoise.training.weights import weighted_task
from equipoise.util.errors import BadInput, raise_all
from equipoise.util.named import fingerprint

Losses = dict[str, Tensor]
"""Losses by objective: "fused" and the modalities."""


@final
@dataclass(eq=False)
class TrainingStep:
    """Everything one batch does: its losses in the precision of the run, balanced, in micro-batches, over all ranks.

    Nothing here waits for the device, and what outlives a step is changed in place, so that a CUDA graph can hold it.

    Args:
        model: The model as the ranks hold it.
        balancer: The method.
        feed: Makes the batches.
        optimizer: Moves the weights.
        accelerator: Accelerate's: precision, gradient scaling, clipping.
        clip: Largest norm of the whole gradient; None for none.
        sums: Where the losses of its samples are added up, by objective.
        average: Follows the weights; None for none.
        on_losses: Called with the losses of the step's samples, detached, and their masks; None for nobody.
        watch: Makes the context that a piece of the step runs in: "forward", "balance", "backward" or "update".
    """

    model: ParallelModel
    balancer: Balancer
    feed: Feed
    optimizer: Optimizer
    accelerator: Any
    clip: float | None
    sums: Losses
    average: WeightAverage | None = None
    on_losses: Callable[[Losses, Losses], None] | None = None
    watch: Callable[[str], AbstractContextManager[object]] = nullcontext

    def __post_init__(self) -> None:
        # Alone and without a scaler, Accelerate's wrappers only pass on calls, which takes time on a CPU.
        alone = self.accelerator.scaler is None and self.accelerator.num_processes == 1
        self._stepper = self.optimizer if alone else self.accelerator.prepare_optimizer(self.optimizer)
        self._backward = Tensor.backward if alone else self.accelerator.backward
        # A batch has few samples without a sensor or many: over an epoch, the share of the training part is right.
        self._shares = {name: max(float(mask.float().mean()), 1e-9) for name, mask in self.feed.part.present.items()}

    def attach(self) -> None:
        """Attach the method to the model and the optimiser, or attach it again."""
        self.optimizer.zero_grad()
        self.balancer.to(self.model.device)
        if not self.model.sharded:
            self.balancer.attach(self.model.model, optimizer=self.optimizer)
            needs = self.balancer.needs
            if needs.further == "response" and not needs.instead:
                raise_all(self.model.model.response_problems(), f"{type(self.balancer).__name__} needs responses:")

    def __call__(self, batch: Batch, micro_batches: Sequence[MicroBatch]) -> None:
        """Take the step.

        Args:
            batch: The samples of this rank.
            micro_batches: Its micro-batches, with their weights among those of all ranks.
        """
        self.model.sync_buffers()
        self.take(self.feed.make(batch), micro_batches)

    def take(self, part: Part, micro_batches: Sequence[MicroBatch]) -> None:
        """Take the step on samples as encoders read them; the arguments are those of a call."""
        sizes = [len(micro.rows) for micro in micro_batches]
        seen: list[tuple[Losses, Losses]] = []
        for micro, samples in zip(micro_batches, split(part, sizes), strict=True):
            with self.model.sync_gradients(last=micro is micro_batches[-1]):
                with self.accelerator.autocast(), collectives.rank_weight(micro.share):
                    with self.watch("forward"):
                        given, losses = step_arguments(self.model.wrapped, self.balancer, samples)
                    with self.watch("balance"), self._quiet():
                        loss = self.balancer(**given)
                with self.watch("backward"):
                    self._backward(loss * micro.weight)
            gaps = samples.present
            for name, value in losses.items():
                value = value.detach()
                if name in gaps:
                    value = value.where(gaps[name], 0) / self._shares[name]
                total = value.sum() if micro.weight else torch.zeros_like(value.sum())
                self.sums.setdefault(name, torch.zeros_like(total)).add_(total)
            if self.on_losses is not None:
                counted = {name: torch.full_like(loss, micro.weight > 0).bool() for name, loss in losses.items()}
                masks = {name: every & gaps[name] if name in gaps else every for name, every in counted.items()}
                seen.append(({name: loss.detach() for name, loss in losses.items()}, masks))
        if self.on_losses is not None:
            joined = [
                {name: torch.cat([one[name] for one in rows]) for name in rows[0]} for rows in zip(*seen, strict=True)
            ]
            self.on_losses(joined[0], joined[1])
        with self.watch("update"):
            if self.clip is not None:
                self.accelerator.clip_grad_norm_(self.model.model.parameters(), self.clip)
            self._stepper.step()
            self._stepper.zero_grad()
            if self.average is not None:
                self.average.update()

    @contextmanager
    def _quiet(self) -> Generator[None]:
        """Leave out the warning of an approximate form: the row of results says which one was taken."""
        with warnings.catch_warnings() if self.balancer.needs.instead else nullcontext():
            if self.balancer.needs.instead:
                warnings.simplefilter("ignore", ApproximationWarning)
            yield


def losses_of(model: FusionModel, balancer: Balancer, part: Part) -> tuple[Tensor, Losses]:
    """Return the balanced loss of a batch, and the losses of its samples by objective."""
    given, losses = step_arguments(model, balancer, part)
    return balancer(**given), losses


def step_arguments(model: FusionModel, balancer: Balancer, part: Part) -> tuple[dict[str, Any], Losses]:
    """Return what a balancer is given for a batch, by argument, and the losses of the outputs.

    A method that compares shares of the fused output gets those; the heads that are measured then learn beside it.
    """
    needs, further = balancer.needs, None
    responds = needs.further == "response" and not model.response_problems()
    shares = fused = None
    if needs.further == "permuted":
        outputs, further = model.with_permuted(part.inputs, needs.draws)
    elif responds:
        outputs, shares = model.with_responses(part.inputs)
    else:
        outputs, shares, fused = _outputs(model, balancer, part)
    # Responses are compared, and do not learn from that: each depends on all encoders, by their answer to zero.
    apart = {name: one.detach() for name, one in (shares or {}).items()} if responds else shares
    compared, extra, losses = _losses(model, part, outputs, apart, fused)
    if responds and shares is not None and torch.is_grad_enabled():
        further = response_losses(losses["fused"], shares)
    gaps = {name: mask for name, mask in part.present.items() if name in compared}
    answers = {name: output.detach() for name, output in {**outputs, **(shares or {})}.items() if name in compared}
    scores = scores_of(model.known_task(), balancer, answers, part)
    given = {"scores": scores, "extra": extra, "present": gaps or None, "further": further}
    return {"losses": compared, **given}, losses


def scores_of(task: Task, balancer: Balancer, answers: Losses, part: Part) -> Losses | None:
    """Return the scores that a method is given beside the losses, by modality; None where it reads them off these.

    Args:
        task: Says what outputs mean.
        balancer: The method.
        answers: The outputs that it compares, without their graph.
        part: The batch.
    """
    modalities = {name: output for name, output in answers.items() if name != "fused"}
    if given := balancer.needs.given_scores:
        kinds = {
            "accuracy": task.hits,
            "entropy": task.entropy,
            "magnitude": lambda output, _: output.abs().mean(dim=1),
        }
        columns = {
            name: [kinds[kind](output.float(), part.label) for kind in given] for name, output in modalities.items()
        }
        return {name: rows[0] if len(rows) == 1 else torch.stack(rows, dim=1) for name, rows in columns.items()}
    smoothed = isinstance(task, Classification) and (task.weight is not None or bool(task.smoothing))
    if smoothed and balancer.needs.logarithmic:
        # What such methods read off a loss is the probability of the right class, which this one does not tell.
        return {name: (-loss).exp() for name, loss in task.losses(answers, part.label, weighted=False).items()}
    return None


def _outputs(model: FusionModel, balancer: Balancer, part: Part) -> tuple[Losses, Losses | None, Tensor | None]:
    """Return the outputs of a model, the shares of the fused one where the method compares those, and its own loss.

    The last is None where the fused loss is that of its output, as every other.
    """
    compares = balancer.needs.unimodal == "share" and model.unimodal == "detached" and model.fusion.additive
    task = model.known_task()
    if not (isinstance(task, Classification) and task.loss_name == "tcmax"):
        outputs, shares = model.with_shares(part.inputs) if compares else (model(part.inputs), None)
        return outputs, shares, None
    outputs, shares = model.with_shares(part.inputs)
    return outputs, shares if compares else None, tcmax_loss(shares, part.label, task.smoothing)


def _losses(
    model: FusionModel, part: Part, outputs: Losses, shares: Losses | None, fused: Tensor | None
) -> tuple[Losses, Losses | None, Losses]:
    task = model.known_task()
    losses = task.losses(outputs, part.label)
    if fused is not None:
        losses["fused"] = fused
    if shares is None:
        return losses, None, losses
    compared = {"fused": losses["fused"], **task.losses(shares, part.label)}
    means = mean_losses({name: loss for name, loss in losses.items() if name != "fused"}, part)
    return compared, {"heads beside": torch.stack(list(means.values())).sum()}, losses


def mean_losses(losses: Losses, part: Part) -> Losses:
    """Return the mean of each loss over the samples of a part that have the sensor; zero where none has it."""
    gaps = part.present
    return {
        name: loss.where(gaps[name], 0).sum() / gaps[name].sum().clamp(min=1) if name in gaps else loss.mean()
        for name, loss in losses.items()
    }


def split(part: Part, sizes: Sequence[int]) -> Iterator[Part]:
    """Cut a batch into micro-batches of these sizes."""
    if len(sizes) == 1:
        yield part
        return
    for rows in torch.arange(len(part), device=part.label.device).split(list(sizes)):
        yield part.take(rows)


def evaluate(
    model: FusionModel, part: Part | Feed, batch: int = 1024, metric: Metric | None = None
) -> dict[str, dict[str, float]]:
    """Return loss and accuracy of the fused decision and of every head, counting each sample that has the sensor once.

    The accuracy of labels and numbers is the mean of `Task.hits`. The processes that share a feed each take a part of
    it, and all return the result of all.

    Args:
        model: The model.
        part: The samples.
        batch: How many are read at a time, by all processes together.
        metric: Computed too, under "metric", where there is one: of all answers at once, since a metric of parts says
            nothing about that of the whole. With it comes the mean of `Task.objective`, under "objective".
    """
    feed, task = part if isinstance(part, Feed) else Feed(part, part.label.device), model.known_task()
    gathers = metric is not None and not metric.is_accuracy(task)
    zeros = partial(torch.zeros, len(feed), task.size, dtype=torch.float64)
    sums: Losses = {}
    answers: dict[str, Tensor] = {}
    with evaluating(model), torch.no_grad():
        for some, counts, numbers in feed.evaluation_batches(batch):
            gaps = some.present
            for name, output in model(some.inputs).items():
                mask = gaps.get(name, torch.ones_like(output[:, 0], dtype=torch.bool))
                rows = [task.loss(output, some.label, weighted=False), task.hits(output, some.label)]
                rows += [task.objective(output, some.label)] if metric is not None else []
                rows.append(mask.to(output))
                sums[name] = sums.get(name, 0) + torch.stack([row.where(mask, 0).sum() for row in rows]) * counts
                if gathers and counts:
                    whole = answers.setdefault(name, zeros(device=output.device))
                    whole[numbers.to(whole.device)] = task.answer(task.member(output)).double()
    totals = torch.stack(list(sums.values()))
    totals = collectives.total(totals) if feed.ranks > 1 else totals
    means = (totals[:, :-1] / totals[:, -1:].clamp(min=1)).tolist()
    kinds = ("loss", "accuracy", "objective")
    results = {name: dict(zip(kinds, values, strict=False)) for name, values in zip(sums, means, strict=True)}
    for name, values in results.items() if metric is not None else ():
        values["metric"] = values["accuracy"]
        if gathers:
            whole, label = answers.get(name, zeros(device=totals.device)), feed.part.label
            if feed.ranks > 1:  # each has the rows of its own samples, and zeros elsewhere
                whole = collectives.total(whole)
            if name in feed.part.present:
                has = feed.part.present[name]
                whole, label = whole[has.to(whole.device)], label[has.to(label.device)]
            values["metric"] = metric(whole, label.to(whole.device), task)
    return results


def task_for(splits: Splits, settings: Settings) -> Task:
    """Return the task of some data for a model of its own: with loss, weights and positive class of the settings."""
    task = weighted_task(copy.deepcopy(judged(splits.task, settings.positive)), settings, splits.train.label)
    known = {"classes": ("auto", "tcmax"), "labels": ("auto",), "regression": ("auto", *get_args(RegressionLoss))}
    if settings.loss not in known[task.kind]:
        expected = " or ".join(known[task.kind])
        raise BadInput(f"loss={settings.loss}: expected {expected} for a task of {task.kind}")
    if isinstance(task, Classification):
        task.smoothing = settings.label_smoothing
        task.loss_name = "tcmax" if settings.loss == "tcmax" else "cross-entropy"
    if isinstance(task, Regression):
        task.loss_name = next((name for name in get_args(RegressionLoss) if name == settings.loss), "huber")
    return task


def problems_of(balancer: Balancer, settings: Settings, kind: str, modalities: Collection[str] = ()) -> list[str]:
    """Return every reason why a method cannot train the model of the settings on some data.

    Args:
        balancer: The method.
        settings: Of the run.
        kind: Of the task.
        modalities: Of the data.
    """
    own = settings.model != "auto"  # what is between the encoders and the fusion of such a model is not known
    found = unmet(
        balancer,
        task=kind,
        modalities=modalities,
        arguments=() if own else ("dropout",),
        further=() if own else ("permuted", "response"),
    )
    return [*found, *tcmax_problems(balancer.needs, settings)]


def check_fits(balancer: Balancer, settings: Settings, kind: str, modalities: Collection[str] = ()) -> None:
    """Raise one BadInput with every reason why a method cannot train; the arguments are those of `problems_of`."""
    raise_all(problems_of(balancer, settings, kind, modalities))


def own_code(settings: Settings) -> dict[str, str]:
    """Return hashes of the files of the user's own that a model is made of, by dotted path."""
    paths = [*own_encoders(settings.encoder), *([] if settings.model == "auto" else [settings.model])]
    return {path: fingerprint(path) for path in paths}


def build_model(splits: Splits, balancer: Balancer, settings: Settings) -> FusionModel:
    """Build the model for this data, whose uni-modal heads learn with the encoders or beside them."""
    check_fits(balancer, settings, splits.task.kind, splits.modalities)
    if settings.model == "auto":
        return build_from_encoders(splits, balancer, settings)
    task = task_for(splits, settings)
    module = build_own(settings.model, {"shapes": splits.shapes, "task": task, "features": settings.features})
    stored, made = splits.train.inputs, splits.train.views
    whole = tuple(name for name in splits.shapes if name not in made and not stored[name].is_floating_point())
    return OwnModel(module, splits.shapes, task, unimodal=view_for(balancer, settings), whole=whole)


def build_from_encoders(splits: Splits, balancer: Balancer, settings: Settings) -> EncodedModel:
    """Build the model for this data, with encoders and fusion by the settings; a method's own dropout comes first."""
    encoders = build_encoders(encoder_words(settings.encoder, settings.fusion), splits.shapes, settings.features)
    check_vocabulary(encoders, splits)
    view, dropout = view_for(balancer, settings), balancer.needs.model.get("dropout", settings.dropout)
    how: dict[str, Any] = {"fusion": settings.fusion, "width": settings.features, "dropout": dropout}
    return assemble(encoders, task_for(splits, settings), unimodal=view, **how)


def view_for(balancer: Balancer, settings: Settings) -> Unimodal:
    """Return the source of uni-modal outputs that a method needs.

    Models that are trained on one modality each, to be compared with, share no trunk: they have heads.
    """
    needs, meets = balancer.needs, settings.meets_early and settings.model == "auto"
    # Where encoders meet early, a method that wants shares of an additive output takes what there is in their place.
    reaches = needs.learns_from_own and (needs.unimodal == "head" or meets)
    if settings.masks and needs.fused:
        return "masked" if reaches else "masked_detached"
    return "head" if reaches else "detached"


def to_channels_last(model: nn.Module) -> None:
    """Lay out the weights of 2-D convolutions with channels last, in place; all others stay as they are.

    `Module.to(memory_format=…)` does the same, and fails where a model has weights of five dimensions as well.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)

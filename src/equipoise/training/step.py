"""One training step, from samples to moved weights, and the evaluation of a part."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.data.feed import Batch, Feed, MicroBatch
from equipoise.data.source import check_vocabulary
from equipoise.data.splits import Part, Splits
from equipoise.methods.agm import ApproximationWarning
from equipoise.models import LateFusion
from equipoise.models.choose import build_encoders
from equipoise.models.evaluation import cross_entropies, evaluating
from equipoise.training.parallel import ParallelModel
from equipoise.training.settings import Settings

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
    """

    model: ParallelModel
    balancer: Balancer
    feed: Feed
    optimizer: Optimizer
    accelerator: Any
    clip: float | None
    sums: Losses

    def __post_init__(self) -> None:
        # Alone and without a scaler, Accelerate's wrappers only pass on calls, which takes time on a CPU.
        alone = self.accelerator.scaler is None and self.accelerator.num_processes == 1
        self._stepper = self.optimizer if alone else self.accelerator.prepare_optimizer(self.optimizer)
        self._backward = Tensor.backward if alone else self.accelerator.backward

    def attach(self) -> None:
        """Attach the method to the model and the optimiser, or attach it again."""
        self.optimizer.zero_grad()
        self.balancer.to(self.model.device)
        if not self.model.sharded:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ApproximationWarning)  # the row says which form was taken
                self.balancer.attach(self.model.model, optimizer=self.optimizer)

    def __call__(self, batch: Batch, micro_batches: Sequence[MicroBatch]) -> None:
        """Take the step.

        Args:
            batch: The samples of this rank.
            micro_batches: Its micro-batches, with their weights among those of all ranks.
        """
        self.model.sync_buffers()
        part = self.feed.make(batch)
        sizes = [len(micro.rows) for micro in micro_batches]
        for micro, samples in zip(micro_batches, split(part, sizes), strict=True):
            with self.model.sync_gradients(last=micro is micro_batches[-1]):
                with self.accelerator.autocast(), collectives.rank_weight(micro.share):
                    loss, losses = losses_of(self.model.wrapped, self.balancer, samples)
                self._backward(loss * micro.weight)
            for name, value in losses.items():
                total = value.detach().sum() if micro.weight else torch.zeros_like(value.detach().sum())
                self.sums.setdefault(name, torch.zeros_like(total)).add_(total)
        if self.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.model.parameters(), self.clip)
        self._stepper.step()
        self._stepper.zero_grad()


def losses_of(model: LateFusion, balancer: Balancer, part: Part) -> tuple[Tensor, Losses]:
    """Return the balanced loss of a batch, and the losses of its samples by objective."""
    compared, extra, losses = step_losses(model, balancer, part)
    return balancer(compared, extra=extra), losses


def step_losses(model: LateFusion, balancer: Balancer, part: Part) -> tuple[Losses, Losses | None, Losses]:
    """Return the losses that a balancer is given for a batch, those that learn beside it, and those of the outputs.

    A method that compares shares of the fused output gets those; the heads that are measured then learn beside it.
    """
    if balancer.unimodal == "split" and model.unimodal == "detached" and model.fusion.additive:
        outputs, shares = model.with_shares(part.inputs)
        losses = cross_entropies(outputs, part.label)
        compared = {"fused": losses["fused"], **cross_entropies(shares, part.label)}
        beside = torch.stack([loss.mean() for name, loss in losses.items() if name != "fused"]).sum()
        return compared, {"heads beside": beside}, losses
    losses = cross_entropies(model(part.inputs), part.label)
    return losses, None, losses


def split(part: Part, sizes: Sequence[int]) -> Iterator[Part]:
    """Cut a batch into micro-batches of these sizes."""
    if len(sizes) == 1:
        yield part
        return
    for rows in torch.arange(len(part), device=part.label.device).split(list(sizes)):
        yield part.take(rows)


def evaluate(model: LateFusion, part: Part | Feed, batch: int = 1024) -> dict[str, dict[str, float]]:
    """Return loss and accuracy of the fused decision and of every head, counting each sample once.

    The processes that share a feed each take a part of it, and all return the result of all.
    """
    feed = part if isinstance(part, Feed) else Feed(part, part.label.device)
    sums: Losses = {}
    with evaluating(model), torch.no_grad():
        for some, counts in feed.evaluation_batches(batch):
            outputs = model(some.inputs)
            for name, loss in cross_entropies(outputs, some.label, "sum").items():
                hits = (outputs[name].argmax(dim=1) == some.label).sum()
                sums[name] = sums.get(name, 0) + torch.stack([loss, hits]) * counts
    totals = torch.stack(list(sums.values()))
    means = ((collectives.total(totals) if feed.ranks > 1 else totals) / len(feed)).tolist()
    return {name: {"loss": loss, "accuracy": hits} for name, (loss, hits) in zip(sums, means, strict=True)}


def build_model(splits: Splits, balancer: Balancer, settings: Settings) -> LateFusion:
    """Build the late-fusion model for this data, whose uni-modal heads learn with the encoders or beside them."""
    encoders = build_encoders(settings.encoder, splits.shapes, settings.features)
    check_vocabulary(encoders, splits)
    view = "head" if balancer.unimodal == "head" else "detached"
    return LateFusion(encoders, len(splits.classes), fusion=settings.fusion, unimodal=view, dropout=settings.dropout)


def to_channels_last(model: nn.Module) -> None:
    """Lay out the weights of 2-D convolutions with channels last, in place; all others stay as they are.

    `Module.to(memory_format=…)` does the same, and fails where a model has weights of five dimensions as well.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)

"""Several models on the same sensors as one: their encoders side by side, their heads and fused outputs pooled.

The result is a `LateFusion`, so that it is measured, exported and watched as any other. The committee over all heads of
all members, one weight each, is the same as a pool within every modality, and within the fused outputs, whose pools
then vote: `factor` turns the one into the other.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.models.committee import FEWEST_GROUPS, CommitteeFit, fit_task
from equipoise.models.encoded import takes_lengths
from equipoise.models.fusion import Fusion, NamedModules
from equipoise.models.late_fusion import LateFusion
from equipoise.models.task import Regression, Task
from equipoise.models.votes import Votes, names_of_groups
from equipoise.util.errors import raise_all

STRETCHES = 10
"""Of the samples of one or two groups, that are left out in turn."""


@final
class SideBySide(nn.Module):
    """The encoders of one modality, whose features are concatenated: [B, …] → [B, sum of sizes].

    Args:
        encoders: One per member.
        sizes: Of their features.
    """

    def __init__(self, encoders: Sequence[nn.Module], sizes: Sequence[int]) -> None:
        super().__init__()
        self.encoders, self.features = nn.ModuleList(encoders), sum(sizes)
        self._ragged = [takes_lengths(encoder) for encoder in encoders]
        self.takes_lengths = any(self._ragged)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode inputs; those members that take `lengths` are given them."""
        given = {} if lengths is None else {"lengths": lengths}
        encoded = [
            encoder(inputs, **(given if ragged else {}))
            for encoder, ragged in zip(self.encoders, self._ragged, strict=True)
        ]
        return torch.cat([features.to(encoded[0].dtype) for features in encoded], dim=1)


def members_of(encoder: nn.Module) -> list[nn.Module]:
    """List the encoders that a modality's encoder is made of: those side by side, or itself alone."""
    return list(encoder.encoders) if isinstance(encoder, SideBySide) else [encoder]


@final
class PooledHead(nn.Module):
    """The heads of one modality, each on its own features, pooled as the task has it: [B, sum of sizes] → [B, size].

    Args:
        heads: One per member.
        sizes: Of their features.
        weights: Of the heads, [M], adding up to one.
        task: Says how outputs are pooled.
    """

    weights: Tensor

    def __init__(self, heads: Sequence[nn.Module], sizes: Sequence[int], weights: Tensor, task: Task) -> None:
        super().__init__()
        self.heads, self.sizes = nn.ModuleList(heads), list(sizes)
        self.register_buffer("weights", weights.detach().clone().float())
        self._task = (task,)  # in a tuple: it belongs to the model, and is not to be saved twice

    def forward(self, features: Tensor) -> Tensor:
        """Give the pooled output."""
        own = features.split(self.sizes, dim=1)
        outputs = [head(feature) for head, feature in zip(self.heads, own, strict=True)]
        return self._task[0].weighted_vote(outputs, self.weights)


@final
class PooledFusion(Fusion):
    """The fused outputs of the members, each on its own features, pooled as the task has it.

    Args:
        fusions: One per member.
        sizes: Of each member's features, by modality.
        weights: Of the members, [M], adding up to one.
        task: Says how outputs are pooled.
    """

    weights: Tensor

    def __init__(
        self, fusions: Sequence[Fusion], sizes: Sequence[Mapping[str, int]], weights: Tensor, task: Task
    ) -> None:
        super().__init__()
        self.fusions, self.sizes = nn.ModuleList(fusions), [dict(own) for own in sizes]
        self.register_buffer("weights", weights.detach().clone().float())
        self._task = (task,)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Give the pooled output."""
        parts = {name: x.split([own[name] for own in self.sizes], dim=1) for name, x in features.items()}
        outputs = [
            fusion({name: own[member] for name, own in parts.items()}) for member, fusion in enumerate(self.fusions)
        ]
        return self._task[0].weighted_vote(outputs, self.weights)


def combined(models: Sequence[LateFusion], weights: Tensor | None = None) -> LateFusion:
    """Make one model of several that read the same modalities for the same task.

    Its modules are those of the members, not copies.

    Args:
        models: The members, each with a head per modality.
        weights: The committee over all of them, [M · (K + 1)]: the fused output and the head of each modality of the
            first member, then those of the second, …; None for equal ones.

    Raises:
        ValueError: If the models or the weights do not fit; the message names all of it.
    """
    raise_all(_problems(models))
    names, count = list(models[0].encoders), len(models)
    outputs = len(names) + 1
    equal = torch.full((count, outputs), 1 / count), torch.full((outputs,), 1 / outputs)
    inner, outer = equal if weights is None else factor(weights, count)
    task = copy.deepcopy(models[0].known_task())
    sizes = {name: [model.sizes[name] for model in models] for name in names}
    encoders = {name: SideBySide([model.encoders[name] for model in models], sizes[name]) for name in names}
    fusion = PooledFusion([model.fusion for model in models], [model.sizes for model in models], inner[:, 0], task)
    made = LateFusion(encoders, task=task, fusion=fusion, unimodal="head", head=_placeholder)
    made.heads = NamedModules(
        {
            name: PooledHead([model.heads[name] for model in models], sizes[name], inner[:, number], task)
            for number, name in enumerate(names, start=1)
        }
    )
    made.committee.copy_(outer)
    return made.to(models[0].committee.device).train(models[0].training)


def factor(weights: Tensor, members: int) -> tuple[Tensor, Tensor]:
    """Divide the weights of a committee over several models into those within each output and those between outputs.

    Pooling with the first and then the second is the same as pooling all at once. Where all weights of an output are
    zero, those within it are equal: with a sensor missing it may have a say.

    Args:
        weights: [M · (K + 1)], as for `combined`.
        members: M.

    Returns:
        The weights of the members within each output, [M, K + 1], whose columns add up to one, and those of the
        outputs, [K + 1].

    Raises:
        ValueError: If they are no such weights.
    """
    fine = weights.dim() == 1 and len(weights) and len(weights) % members == 0 and bool((weights >= 0).all())
    if not fine or not bool(weights.isfinite().all()):
        expected = f"finite weights of at least zero, as many for each of {members} members"
        raise_all([f"factor expected {expected}; found {weights.tolist()}."])
    table = weights.detach().reshape(members, -1).double()
    outer = table.sum(dim=0)
    inner = torch.where(outer > 0, table / outer.clamp(min=torch.finfo(torch.float64).tiny), 1 / members)
    return inner, outer


SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the answer that a further model may earn; the whole only of numbers."""
EARNED = 0.98
"""A further model has to lower the loss at least to this part of it: its epoch was selected on the same samples."""


def fit_combined(task: Task, votes: Sequence[Votes], floor: Tensor | None = None) -> CommitteeFit:
    """Fit the weights of a committee over all heads of several models, [M · (K + 1)], as `combined` takes them.

    With one or two groups, stretches of samples are left out in turn.

    With a floor, each further model earns a share of the answer, or none: a quarter, a half or three quarters, of its
    fused output or of its own committee, whichever has the least loss on the validation part. One number is found for
    each model, so that few groups suffice.

    Args:
        task: Of the models.
        votes: What each model says on the validation part, as `read_votes` reads it.
        floor: The committee of the first model, [K + 1]; None to fit all weights at once.
    """
    members = torch.cat([vote.members for vote in votes], dim=1)
    groups, count = votes[0].groups, len(members)
    if groups is not None and len(np.unique(names_of_groups(groups))) < FEWEST_GROUPS:
        groups = np.arange(count) * STRETCHES // max(count, 1)
    label = votes[0].label
    if floor is None or len(members) == 0:
        prior = None if floor is None else torch.cat([floor, floor.new_zeros(members.shape[1] - len(floor))])
        return fit_task(task, members, label, groups, prior)
    size = len(floor)
    weights = torch.cat([floor.double(), torch.zeros(members.shape[1] - size, dtype=torch.float64)])
    loss, words = _loss(task, members, weights, label), []
    shares = SHARES if isinstance(task, Regression) else SHARES[:-1]
    for number, vote in enumerate(votes[1:], start=1):
        own = fit_task(task, vote.members, label, vote.groups).weights
        fused = torch.eye(size, dtype=torch.float64)[0]
        tried = []
        for share in shares:
            for part, name in ((fused, "fused output"), (own, "committee")):
                candidate = (1 - share) * weights
                candidate[number * size : (number + 1) * size] += share * part
                tried.append((_loss(task, members, candidate, label), candidate, f"{share:.0%} to its {name}"))
        best = min(tried, key=lambda one: one[0])
        earned = best[0] < EARNED * loss
        words.append(best[2] if earned else "none")
        if earned:
            loss, weights = best[0], best[1]
    reason = "the closed form" + "".join(f"; model {number}: {word}" for number, word in enumerate(words, start=2))
    return CommitteeFit(weights, math.nan, f"{reason}, by validation loss", loss)


def _loss(task: Task, members: Tensor, weights: Tensor, label: Tensor) -> float:
    """Return the mean loss of a pool of members, in which classes and labels count as in training."""
    answer = task.pool(members.double(), weights)
    return float(task.member_loss(task.member_of(answer).float(), label, weighted=True).mean())


def _placeholder(size: int) -> nn.Module:  # noqa: ARG001
    """Stand for a head until the members' heads take its place."""
    return nn.Identity()


def _problems(models: Sequence[LateFusion]) -> Iterator[str]:
    """List what keeps models from being combined."""
    if not models:
        yield "combined expected at least one model; found none."
        return
    first = models[0]
    for number, model in enumerate(models):
        if not isinstance(model, LateFusion):
            yield f"combined expected LateFusion models; number {number} is {type(model).__name__}."
            continue
        if model.unimodal not in ("head", "detached"):
            yield f"combined expected a head per modality; number {number} has unimodal={model.unimodal!r}."
        if isinstance(first, LateFusion) and list(model.encoders) != list(first.encoders):
            yield f"combined expected {list(first.encoders)} as modalities; number {number} has {list(model.encoders)}."
        if isinstance(first, LateFusion) and not _same_task(model.task, first.task):
            yield f"combined expected models of one task, with one scale of numbers; number {number} has another."


def _same_task(one: Task | None, other: Task | None) -> bool:
    if one is other:
        return one is not None
    if one is None or other is None or (one.kind, one.names) != (other.kind, other.names):
        return False
    if isinstance(one, Regression) and isinstance(other, Regression):
        scales = (one.mean, other.mean), (one.deviation, other.deviation)
        return all(torch.equal(first.cpu(), second.cpu()) for first, second in scales)
    return True

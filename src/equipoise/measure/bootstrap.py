"""Bootstrap intervals of a metric: what it would be for other persons, or other samples, drawn like those at hand.

Groups are drawn with replacement, since the samples of a person are alike; samples, where there are no groups. Drawing
a group k times is counting its samples k times, so that a draw is a row of counts, and all draws are computed at once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from equipoise.models.metrics import Metric
from equipoise.models.task import Task

DRAWS = 1000
FEW_GROUPS = 10
"""With fewer groups, an interval by bootstrap is much too narrow."""
RANKED_DRAWS, FEWEST = 500, 100  # each of them takes longer
_MANY = 10**6  # answers
_CHUNK = 2**22  # counts that are held at once


def bootstrap_interval(
    metric: Metric,
    answer: Tensor,
    label: Tensor,
    task: Task,
    group: Tensor | None = None,
    *,
    against: Tensor | None = None,
    seed: int = 0,
) -> list[float] | None:
    """Return the 2.5th and the 97.5th percentile of a metric over bootstrap draws.

    Args:
        metric: The metric.
        answer: Probabilities or numbers, [N, size]; or of several trainings, [trainings, N, size], of whose metric the
            mean is taken in each draw.
        label: As a part holds it.
        task: The task.
        group: The group of each sample, [N]; None where there are none.
        against: Other answers to the same samples, in the shape of one of both: the interval is then that of the
            difference to them, both on the same draws.
        seed: Of the draws.

    Returns:
        Low and high of 1,000 draws; for AUROC and AUPRC of 500, or 100 where there are more than a million answers.
        None with fewer than two groups, or where most draws cannot tell.
    """
    sides, label = [one.detach().double().cpu() for one in (answer, against) if one is not None], label.detach().cpu()
    members = torch.arange(len(label)) if group is None else group.cpu().unique(return_inverse=True)[1]
    count = int(members.max()) + 1 if len(members) else 0
    if count < 2 or not all(side.isfinite().all() for side in sides):
        return None
    draws = DRAWS
    if metric.ranks:
        draws = FEWEST if max(side.numel() for side in sides) > _MANY else RANKED_DRAWS
    random = torch.Generator().manual_seed(seed)
    values = []
    width = len(label) if metric.ranks else count
    for some in torch.arange(draws).split(max(1, _CHUNK // width)):
        drawn = torch.randint(count, (len(some), count), generator=random)
        counts = torch.zeros(len(some), count).scatter_add_(1, drawn, torch.ones(drawn.shape))
        means = []
        for side in sides:
            runs = [resampled(metric, one, label, task, members, counts) for one in side.view(-1, *side.shape[-2:])]
            means.append(torch.stack(runs).mean(dim=0))
        values.append(means[0] if against is None else means[0] - means[1])
    told = torch.cat(values)
    told = told[told.isfinite()]
    if len(told) < draws / 2:
        return None
    return torch.quantile(told, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()


def resampled(metric: Metric, answer: Tensor, label: Tensor, task: Task, members: Tensor, counts: Tensor) -> Tensor:
    """Compute a metric of samples that count several times, for many ways of counting at once.

    Args:
        metric: The metric.
        answer: Probabilities or numbers, [N, size], float64.
        label: As a part holds it.
        task: The task.
        members: The number of the group of each sample, [N].
        counts: How often each group counts, [draws, groups].

    Returns:
        The metric of each draw, [draws], float64; NaN where it cannot be told.
    """
    at = metric.column(task)
    columns = slice(None) if at is None else slice(at, at + 1)
    if metric.ranks:
        truths = _one_hot(label, task) if task.kind == "classes" else label > 0.5
        areas = list(_ranked(metric.name, answer[:, columns], truths[:, columns], counts[:, members]))
        return torch.stack(areas, dim=1).nanmean(dim=1)
    terms = _terms(metric, answer, label, task)[:, :, columns]
    sums = torch.zeros(counts.shape[1], *terms.shape[1:], dtype=terms.dtype)
    sums = sums.index_add_(0, members, terms)
    total = (counts.to(sums) @ sums.flatten(1)).view(len(counts), *sums.shape[1:])
    return _of_sums(metric.name, task.kind, total)


def _one_hot(label: Tensor, task: Task) -> Tensor:
    return torch.nn.functional.one_hot(label, task.size).bool()


def _terms(metric: Metric, answer: Tensor, label: Tensor, task: Task) -> Tensor:
    """Return numbers of each sample whose sums tell the metric, [N, kinds of number, columns]."""
    if task.kind == "regression":
        # Centred, so that the difference of two large sums does not lose the digits that count.
        truth, error = label.double() - label.double().mean(dim=0), answer - label.double()
        return torch.stack([torch.ones_like(truth), error.abs(), error.square(), truth, truth.square()], dim=1)
    if task.kind == "classes":
        truth, said = _one_hot(label, task), _one_hot(answer.argmax(dim=1), task)
    else:
        truth, said = label > 0.5, answer > 0.5
    if metric.name == "accuracy":
        right = (truth & said).any(dim=1)[:, None] if task.kind == "classes" else truth == said
        return torch.stack([torch.ones_like(right), right], dim=1).double()
    return torch.stack([torch.ones_like(truth), truth, said, truth & said], dim=1).double()


def _of_sums(name: str, kind: str, sums: Tensor) -> Tensor:
    """Return the metric of each draw from sums [draws, kinds of number, columns]."""
    if name == "accuracy":
        count, right = sums.unbind(1)
        return (right / count).mean(dim=1)
    if name in ("balanced_accuracy", "macro_f1", "recall"):
        count, support, said, hits = sums.unbind(1)
        recall = hits / support  # NaN for what does not occur, which the mean leaves out
        if name == "macro_f1":
            value = torch.where(support > 0, 2 * hits / (support + said), torch.nan)
        elif kind == "classes" or name == "recall":
            value = recall
        else:
            value = (recall + (count - support - said + hits) / (count - support)) / 2
        return value.nanmean(dim=1)
    count, error, square, truth, truth_square = sums.unbind(1)
    if name == "mae":
        return (error / count).mean(dim=1)
    if name == "rmse":
        return (square / count).sqrt().mean(dim=1)
    spread = truth_square - truth.square() / count
    return torch.where(spread > 1e-12 * truth_square, 1 - square / spread, torch.nan).nanmean(dim=1)


def _ranked(name: str, answer: Tensor, truths: Tensor, counts: Tensor) -> Iterator[Tensor]:
    """Give the area under the curve of each column, [draws], with samples that count so often, [draws, N].

    Both areas are sums over the positives, so that beside one running sum over all samples little is left to do.
    """
    by_sample = counts.T.contiguous()
    for scores, truth in zip(answer.T, truths.T, strict=True):
        order = scores.argsort(descending=True)
        ranked, ordered = scores[order], by_sample[order]
        above = torch.cat([torch.zeros_like(ordered[:1]), ordered.cumsum(dim=0)])  # counts among the first k
        true = truth[order].nonzero()[:, 0]
        gained = ordered[true]
        # Samples of one score lie at one point of the curve, behind the last of them.
        first = torch.searchsorted(-ranked, -ranked[true])
        last = torch.searchsorted(-ranked, -ranked[true], right=True)
        positives, negatives = gained.sum(dim=0), above[-1] - gained.sum(dim=0)
        if name == "auprc":
            found = torch.cat([torch.zeros_like(ordered[:1]), gained.cumsum(dim=0)])
            found = found[torch.searchsorted(true, last)]
            area = (gained * found / above[last].clamp(min=1)).sum(dim=0, dtype=torch.float64) / positives
        else:
            # Pairs of a positive and anything above it, half of what is level; less those with another positive.
            pairs = (gained * (above[first] + above[last])).sum(dim=0, dtype=torch.float64) / 2
            wrong = pairs - positives.double().square() / 2
            area = 1 - wrong / (positives.double() * negatives)
        yield torch.where((positives > 0) & (negatives > 0), area, torch.nan)

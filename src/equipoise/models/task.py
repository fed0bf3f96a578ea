"""Tasks: what the outputs of a model mean, how they are scored in training, and how a committee pools them.

| task | output of a head | member of a committee | answer |
|---|---|---|---|
| `Classification` | logits | log-probabilities | softmax of the weighted sum |
| `MultiLabel` | logits | log-odds | sigmoid of the weighted sum |
| `Regression` | standardised numbers | numbers in the units of the target | weighted mean |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.models.evaluation import LEAST_LOG, class_log_probabilities, widened
from equipoise.util.errors import raise_all

TaskKind = Literal["classes", "regression", "labels"]
RegressionLoss = Literal["huber", "mse", "mae"]
ClassLoss = Literal["cross-entropy", "tcmax"]


class Task(nn.Module, ABC):
    """Base of the tasks. Tensors it needs are buffers, so that it moves with the model that holds it.

    Args:
        names: Of the classes, the labels, or the columns of the target.

    Attributes:
        positive: The class or label that AUROC, AUPRC and recall are of; None for the mean over all.
    """

    kind: ClassVar[TaskKind]

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(map(str, names))
        self.positive: str | None = None

    @property
    def size(self) -> int:
        """The size of the output of every head."""
        return len(self.names)

    def losses(self, outputs: Mapping[str, Tensor], label: Tensor, *, weighted: bool = True) -> dict[str, Tensor]:
        """Return the loss of every output of a model, one value per sample, [B].

        Args:
            outputs: Raw outputs [B, size] by name.
            label: As a part of the data holds it.
            weighted: Apply the weights of classes or labels and smooth classes, as far as training does.
        """
        return {name: self.loss(output, label, weighted=weighted) for name, output in outputs.items()}

    @abstractmethod
    def loss(self, output: Tensor, label: Tensor, *, weighted: bool = True) -> Tensor:
        """Return the loss of one output, one value per sample, [B]."""

    def objective(self, output: Tensor, label: Tensor) -> Tensor:
        """Return the loss by which epochs are compared, [B]: that of training, without weights of classes or labels."""
        return self.loss(output, label, weighted=False)

    @abstractmethod
    def hits(self, output: Tensor, label: Tensor) -> Tensor:
        """Return a score of each sample from 0 to 1, [B], which grows as the output gets better.

        Methods that follow a validation accuracy get its mean.
        """

    @abstractmethod
    def entropy(self, output: Tensor, label: Tensor) -> Tensor:
        """Return how unsure each answer is, [B], zero for one without doubt, for methods that compare modalities."""

    @abstractmethod
    def member(self, output: Tensor) -> Tensor:
        """Turn the raw output of a head into what a committee pools, in float32 at least."""

    @abstractmethod
    def pool(self, members: Tensor, weights: Tensor) -> Tensor:
        """Pool the members of a committee into an answer [B, size].

        Args:
            members: [B, M, size].
            weights: Of the members, [M], or of each sample, [B, M].
        """

    @abstractmethod
    def answer(self, member: Tensor) -> Tensor:
        """Return the answer of one member: probabilities, or numbers in the units of the target."""

    @abstractmethod
    def member_of(self, answer: Tensor) -> Tensor:
        """Return the member whose answer this is, finite: the inverse of `answer`."""

    @abstractmethod
    def member_loss(self, member: Tensor, label: Tensor, *, weighted: bool = False) -> Tensor:
        """Return the loss of a member, never smoothed, one value per sample, [B].

        Args:
            member: As `member` gives it.
            label: As a part of the data holds it.
            weighted: Apply the weights of classes or labels.
        """

    def sample_weights(self, label: Tensor) -> Tensor | None:  # noqa: ARG002
        """Return how much each sample counts by its class, [B], or by each of its labels, [B, L]; None: all alike."""
        return None

    @abstractmethod
    def nothing(self, like: Tensor) -> Tensor:
        """Return the member [B, size] that knows nothing, for samples without any sensor; in the form of another."""

    def equal_vote(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the raw output that is the equal vote of several: their mean, of classes that of log-probabilities."""
        return torch.stack(list(outputs)).mean(dim=0)

    def weighted_vote(self, outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Return the raw output that pools several as a committee would, where the weights [M] add up to one."""
        return _weighted_sum(torch.stack(list(outputs), dim=1), weights)

    def problems(self, label: Tensor) -> list[str]:
        """List what is wrong with the labels of a part, for a model with this task."""
        expected = (len(label), self.size)
        if tuple(label.shape) != expected or not label.is_floating_point():
            found = f"{label.dtype} of shape {list(label.shape)}"
            return [f"The model answers {self.size} numbers, so labels are floats {list(expected)}; found {found}."]
        return []

    def as_dict(self) -> dict[str, Any]:
        """Return plain values from which `task_of` makes the task again; its buffers are saved with the weights."""
        named = {} if self.positive is None else {"positive": self.positive}
        return {"kind": self.kind, "names": list(self.names), **named}


@final
class Classification(Task):
    """One class for every sample: cross-entropy. Training may have the fused output learn by TCMax (`loss_name`).

    Args:
        names: Of the classes.
        weight: Factor on the loss of each class, [C]; None for ones.
        smoothing: The share of the target that is spread evenly over all classes.
    """

    kind = "classes"
    weight: Tensor | None

    def __init__(self, names: Sequence[str], weight: Tensor | None = None, smoothing: float = 0.0) -> None:
        super().__init__(names)
        self.smoothing = smoothing
        self.loss_name: ClassLoss = "cross-entropy"
        self.register_buffer("weight", weight, persistent=False)

    def loss(self, output: Tensor, label: Tensor, *, weighted: bool = True) -> Tensor:
        """Return the cross-entropy of each sample, times the weight of its class; smoothed, where weighted."""
        if not weighted:
            return F.cross_entropy(output, label, reduction="none")
        return F.cross_entropy(output, label, self.weight, reduction="none", label_smoothing=self.smoothing)

    def objective(self, output: Tensor, label: Tensor) -> Tensor:
        """Return the smoothed cross-entropy: the plain one grows as soon as smoothing makes a model less sure."""
        return F.cross_entropy(output, label, reduction="none", label_smoothing=self.smoothing)

    def hits(self, output: Tensor, label: Tensor) -> Tensor:
        """Return 1 where the class is right, and 0 elsewhere."""
        return (output.argmax(dim=1) == label).to(output.dtype)

    def entropy(self, output: Tensor, label: Tensor) -> Tensor:  # noqa: ARG002
        """Return the entropy of the distribution over classes."""
        logs = output.log_softmax(dim=1)
        return -(logs.exp() * logs).sum(dim=1)

    def member(self, output: Tensor) -> Tensor:
        """Return log-probabilities."""
        return class_log_probabilities({"output": output})["output"]

    def pool(self, members: Tensor, weights: Tensor) -> Tensor:
        """Return softmax over classes of Σ_j w_j log p_j."""
        return _weighted_sum(members.clamp(min=LEAST_LOG), weights).softmax(dim=-1)

    def answer(self, member: Tensor) -> Tensor:
        """Return probabilities."""
        return member.exp()

    def member_of(self, answer: Tensor) -> Tensor:
        """Return log-probabilities; a class without any chance gets the least there is."""
        return answer.clamp(min=torch.finfo(answer.dtype).tiny).log()

    def member_loss(self, member: Tensor, label: Tensor, *, weighted: bool = False) -> Tensor:
        """Return the negative log-likelihood, times the weight of the class where weighted."""
        loss, weights = -member.gather(1, label[:, None])[:, 0], self.sample_weights(label) if weighted else None
        return loss if weights is None else weights * loss

    def sample_weights(self, label: Tensor) -> Tensor | None:
        """Return the weight of the class of each sample."""
        return None if self.weight is None else self.weight.to(label.device)[label]

    def nothing(self, like: Tensor) -> Tensor:
        """Give every class the same probability."""
        return torch.zeros_like(like).log_softmax(dim=-1)

    def equal_vote(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the mean of log-probabilities."""
        return super().equal_vote([output.log_softmax(dim=1) for output in outputs])

    def weighted_vote(self, outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Return the weighted sum of log-probabilities."""
        return super().weighted_vote([output.log_softmax(dim=1).clamp(min=LEAST_LOG) for output in outputs], weights)

    def problems(self, label: Tensor) -> list[str]:
        """List labels that are none of the classes."""
        if label.dim() != 1 or label.is_floating_point():
            found = f"{label.dtype} of shape {list(label.shape)}"
            return [f"The model has {self.size} classes, so labels are whole numbers [N]; found {found}."]
        lowest, highest = (int(label.min()), int(label.max())) if len(label) else (0, 0)
        if lowest < 0 or highest >= self.size:
            known = f"The model has {self.size} classes, so labels are 0 to {self.size - 1}"
            return [f"{known}; found {lowest} to {highest}."]
        return []


@final
class MultiLabel(Task):
    """Any number of labels for every sample: binary cross-entropy, the mean over labels.

    Args:
        names: Of the labels.
        weight: Factor on the loss of the positives of each label, [L]; None for ones.
    """

    kind = "labels"
    weight: Tensor | None

    def __init__(self, names: Sequence[str], weight: Tensor | None = None) -> None:
        super().__init__(names)
        self.register_buffer("weight", weight, persistent=False)

    def loss(self, output: Tensor, label: Tensor, *, weighted: bool = True) -> Tensor:
        """Return the binary cross-entropy of each sample, the mean over labels."""
        weight = self.weight if weighted else None
        return F.binary_cross_entropy_with_logits(output, label, pos_weight=weight, reduction="none").mean(dim=1)

    def hits(self, output: Tensor, label: Tensor) -> Tensor:
        """Return the share of labels that are right."""
        return ((output > 0) == (label > 0.5)).to(output.dtype).mean(dim=1)

    def entropy(self, output: Tensor, label: Tensor) -> Tensor:  # noqa: ARG002
        """Return the entropy of each label's probability, the mean over labels."""
        return F.binary_cross_entropy_with_logits(output, output.sigmoid(), reduction="none").mean(dim=1)

    def member(self, output: Tensor) -> Tensor:
        """Return log-odds."""
        return widened(output)

    def pool(self, members: Tensor, weights: Tensor) -> Tensor:
        """Return the sigmoid of Σ_j w_j z_j, z_j being log-odds."""
        return _weighted_sum(members.clamp(min=LEAST_LOG, max=-LEAST_LOG), weights).sigmoid()

    def answer(self, member: Tensor) -> Tensor:
        """Return the probability of each label."""
        return member.sigmoid()

    def member_of(self, answer: Tensor) -> Tensor:
        """Return log-odds."""
        return answer.logit(eps=torch.finfo(answer.dtype).eps)

    def member_loss(self, member: Tensor, label: Tensor, *, weighted: bool = False) -> Tensor:
        """Return the binary cross-entropy, the mean over labels."""
        return self.loss(member, label.to(member.dtype), weighted=weighted)

    def sample_weights(self, label: Tensor) -> Tensor | None:
        """Return the weight of each label where it is positive, and one elsewhere."""
        return None if self.weight is None else torch.where(label > 0.5, self.weight.to(label.device), 1.0)

    def nothing(self, like: Tensor) -> Tensor:
        """Give every label even odds."""
        return torch.zeros_like(like)

    def weighted_vote(self, outputs: Sequence[Tensor], weights: Tensor) -> Tensor:
        """Return the weighted sum of log-odds."""
        return super().weighted_vote([output.clamp(min=LEAST_LOG, max=-LEAST_LOG) for output in outputs], weights)


@final
class Regression(Task):
    """Numbers for every sample, one column or several. Heads answer standardised numbers.

    Args:
        names: Of the columns.
        mean: Of each column in the training part, [D]; None for zeros.
        deviation: Of each column in the training part, [D]; None for ones.
        loss: Between standardised numbers, the mean over columns: "huber" (with the bend at one deviation), "mse" or
            "mae".
        ranges: The least and the largest number of each column in the training part; None where they are not known.
    """

    kind = "regression"
    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        names: Sequence[str],
        mean: Tensor | None = None,
        deviation: Tensor | None = None,
        loss: RegressionLoss = "huber",
        ranges: Sequence[Sequence[float]] | None = None,
    ) -> None:
        super().__init__(names)
        if loss not in get_args(RegressionLoss):
            raise_all([f"loss should be one of {', '.join(get_args(RegressionLoss))}, found {loss!r}"])
        self.loss_name: RegressionLoss = loss
        self.ranges = None if ranges is None else [list(map(float, ends)) for ends in ranges]
        self.register_buffer("mean", torch.zeros(self.size) if mean is None else mean.detach().clone().float())
        scale = torch.ones(self.size) if deviation is None else deviation.detach().clone().float()
        self.register_buffer("deviation", scale)

    def loss(self, output: Tensor, label: Tensor, *, weighted: bool = True) -> Tensor:  # noqa: ARG002
        """Return the loss of each sample between standardised numbers, the mean over columns."""
        output = widened(output)  # half of the digits of a target may be lost otherwise
        target = self.standardised(label.to(output.dtype))
        losses = {"huber": F.huber_loss, "mse": F.mse_loss, "mae": F.l1_loss}
        return losses[self.loss_name](output, target, reduction="none").mean(dim=1)

    def standardised(self, label: Tensor) -> Tensor:
        """Return labels with the mean taken off, divided by the deviation."""
        return (label - self.mean) / self.deviation

    def hits(self, output: Tensor, label: Tensor) -> Tensor:
        """Return exp(−loss), an unnormalised likelihood of the target."""
        return (-self.loss(output, label)).exp()

    def entropy(self, output: Tensor, label: Tensor) -> Tensor:
        """Return the loss: a number has no distribution, and its error stands for how far it scatters."""
        return self.loss(output, label)

    def member(self, output: Tensor) -> Tensor:
        """Return numbers in the units of the target."""
        return widened(output) * self.deviation + self.mean

    def pool(self, members: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean; the weights of a committee of numbers add up to one."""
        return _weighted_sum(members, weights)

    def answer(self, member: Tensor) -> Tensor:
        """Return the numbers themselves."""
        return member

    def member_of(self, answer: Tensor) -> Tensor:
        """Return the numbers themselves."""
        return answer

    def member_loss(self, member: Tensor, label: Tensor, *, weighted: bool = False) -> Tensor:  # noqa: ARG002
        """Return the loss between standardised numbers."""
        return self.loss(self.standardised(member), label)

    def nothing(self, like: Tensor) -> Tensor:
        """Answer the mean of the training part."""
        return torch.zeros_like(like) + self.mean

    def far(self, answer: Tensor, share: float) -> Tensor:
        """Return which numbers are outside of their ranges by more than this share of the range's width, [B, D]."""
        if self.ranges is None:
            return torch.zeros_like(answer, dtype=torch.bool)
        least, most = torch.tensor(self.ranges, dtype=torch.float64).T
        margin = share * (most - least)
        return (answer < least - margin) | (answer > most + margin)

    def as_dict(self) -> dict[str, Any]:
        """Return the loss and the ranges too."""
        known = {} if self.ranges is None else {"ranges": self.ranges}
        return {**super().as_dict(), "loss": self.loss_name, **known}


def task_of(plain: Mapping[str, Any]) -> Task:
    """Return the task that `Task.as_dict` described."""
    kinds: dict[str, type[Task]] = {one.kind: one for one in (Classification, MultiLabel, Regression)}
    of_numbers = {key: plain[key] for key in ("loss", "ranges") if key in plain}
    task = kinds[plain["kind"]](plain["names"], **(of_numbers if plain["kind"] == "regression" else {}))
    task.positive = plain.get("positive")
    return task


def _weighted_sum(members: Tensor, weights: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * members).sum(dim=-2)

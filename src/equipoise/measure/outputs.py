"""Outputs of a model on the samples of a part, and their scores: a metric, macro-F1, calibration, likelihood."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from equipoise.data.splits import Part
from equipoise.models.encoded import check_model
from equipoise.models.evaluation import evaluating
from equipoise.models.fusion_model import FusionModel, Unimodal
from equipoise.models.metrics import METRICS, Metric, baseline, metric_of
from equipoise.models.task import Classification, Task
from equipoise.util.errors import raise_all

BINS = 15


class Outputs(NamedTuple):
    """The decisions on the N samples of a part, in double precision, on the model's device.

    Args:
        label: The right answers, as the part holds them.
        fused: The fused head as a member of the committee, [N, size]: log-probabilities, log-odds or numbers.
        unimodal: The same of each modality at hand; empty where the model has no uni-modal outputs.
        committee: The answer of the committee, [N, size]; None where the model has no uni-modal outputs.
        view: The source of the uni-modal outputs: "head", "detached" or "split"; None where there are none.
        present: Of each modality that some samples lack, which samples have it, [N].
    """

    label: Tensor
    fused: Tensor
    unimodal: dict[str, Tensor]
    committee: Tensor | None
    view: Unimodal | None
    present: Mapping[str, Tensor] = {}


@final
@dataclass(frozen=True)
class Scorer:
    """A metric for a task.

    Args:
        metric: The metric.
        task: The task.
    """

    metric: Metric
    task: Task

    @classmethod
    def of(cls, model: FusionModel, metric: str = "auto") -> "Scorer":
        """Return the scorer of a model for the name of a metric."""
        task = model.known_task()
        return cls(metric_of(metric, task), task)

    def answer(self, answer: Tensor, label: Tensor) -> float:
        """Score answers [N, size]."""
        return self.metric(answer, label, self.task)

    def member(self, member: Tensor, label: Tensor, mask: Tensor | None = None) -> float:
        """Score members [N, size] by their answers, under a mask where there is one."""
        if mask is not None:
            member, label = member[mask], label[mask]
        return self.answer(self.task.answer(member), label)

    def output(self, output: Tensor, label: Tensor) -> float:
        """Score raw outputs [N, size]."""
        return self.member(self.task.member(output), label)

    def constant(self, label: Tensor) -> float:
        """Score the best answer that is the same for all samples of a part."""
        return baseline(label, label, self.metric, self.task)


@contextmanager
def reading(model: FusionModel) -> Generator[None]:
    """Put a model into evaluation mode, without gradients, for a while; raise a TypeError if it is no `LateFusion`."""
    check_model("Measuring", model)
    with evaluating(model), torch.no_grad():
        yield


def decisions(model: FusionModel, part: Part, batch: int = 512) -> Outputs:
    """Run a model over a part once, in evaluation mode and without gradients.

    Args:
        model: The model; its committee votes with the weights it has.
        part: The samples. A modality that its inputs lack is a missing sensor.
        batch: Samples that the encoders read at a time.

    Returns:
        The decisions.

    Raises:
        TypeError: If the model is no `LateFusion`.
        ValueError: If the part is empty, or a label is none of the model's classes.
    """
    with reading(model):
        return decide(model, read_features(model, part, batch), part.label, present=part.present)


def read_features(model: FusionModel, part: Part, batch: int = 512, *, silent: bool = False) -> dict[str, Tensor]:
    """Give the features of each modality at hand, [N, size], of a model that is `reading`.

    Args:
        model: The model.
        part: The samples.
        batch: Samples that the encoders read at a time.
        silent: Set every input to zero first. Lengths of ragged time stay.
    """
    features = []
    for inputs, _ in batches_of(part, model.committee.device, batch):
        if silent:
            inputs = {name: torch.zeros_like(x) if name in model.encoders else x for name, x in inputs.items()}
        features.append(model.features(inputs))
    return {name: torch.cat([some[name] for some in features]) for name in features[0]}


def decide(
    model: FusionModel,
    features: Mapping[str, Tensor],
    label: Tensor,
    known: Mapping[str, Tensor] | None = None,
    present: Mapping[str, Tensor] | None = None,
) -> Outputs:
    """Compute the decisions of a model that is `reading` from features, as its forward pass does behind the encoders.

    Encoders are the cost of a model. Where only one modality of a part changes, or none, the others need no second run.

    Args:
        model: The model.
        features: The features of each modality at hand.
        label: The right answers.
        known: Members of modalities whose features were read before; their heads do not run again.
        present: Of modalities that some samples lack, which samples have them.
    """
    task = model.known_task()
    known = {name: member for name, member in (known or {}).items() if name in features}
    outputs = model.outputs_from(features, skip=known)
    members = {**known, **{name: task.member(output).double() for name, output in outputs.items()}}
    members = {name: members[name] for name in ("fused", *features) if name in members}
    device = members["fused"].device
    label = label.to(device)
    raise_all(task.problems(label))
    gaps = {name: mask.to(device) for name, mask in (present or {}).items() if name in features}
    committee = None if model.unimodal is None else model.vote(members, gaps)
    return Outputs(label, members.pop("fused"), members, committee, model.unimodal, gaps)


def batches_of(part: Part, device: torch.device, batch: int) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Give (inputs, labels) of a part in order, on a device, as encoders read them."""
    if len(part) == 0 or batch < 1:
        hint = f"found {len(part)} samples and batch={batch}. Pass a part that holds data, e.g. splits.test."
        raise ValueError(f"Measuring expected at least one sample and batch ≥ 1; {hint}")
    for rows in torch.arange(len(part), device=part.label.device).split(batch):
        some = part.take(rows).to(device).ready()
        yield some.inputs, some.label


def scores(outputs: Outputs, scorer: Scorer | None = None) -> dict[str, dict[str, float] | None]:
    """Score both decisions of a model, never confused with one another.

    Args:
        outputs: As `decisions` gives them.
        scorer: The metric of the headline; None for the accuracy of classes.

    Returns:
        Under "fused" and under "committee": the headline under the name of its metric; "loss", the mean loss without
        weights of classes (of classes the negative log-likelihood); and of classes "f1" (see `macro_f1`) and "ece" (see
        `calibration_error`). "committee" is None where the model has no uni-modal outputs.
    """
    if scorer is None:
        scorer = Scorer(METRICS["accuracy"], Classification(list(map(str, range(outputs.fused.shape[1])))))
    committee = None
    if outputs.committee is not None:
        committee = _score(scorer.task.member_of(outputs.committee), outputs.committee, outputs.label, scorer)
    return {
        "fused": _score(outputs.fused, scorer.task.answer(outputs.fused), outputs.label, scorer),
        "committee": committee,
    }


def accuracy(votes: Tensor, label: Tensor) -> float:
    """Compute the share of samples whose highest vote [N, C] is the right class [N]."""
    return (votes.argmax(dim=1) == label).double().mean().item()


def macro_f1(predicted: Tensor, label: Tensor, classes: int) -> float:
    """Compute the mean over classes of F1 = 2·TP / (2·TP + FP + FN).

    Classes absent from the part, those that no sample belongs to, are left out of the mean: nothing there could be
    found. A sample taken for such a class still is a miss of its own.

    Args:
        predicted: The predicted classes, [N].
        label: The right classes, [N].
        classes: Number of classes.
    """
    counted = (label, predicted, label[predicted == label])
    support, told, hits = (values.bincount(minlength=classes) for values in counted)
    present = support > 0
    return (2 * hits[present].double() / (support + told)[present]).mean().item()


def calibration_error(probabilities: Tensor, label: Tensor) -> float:
    """Compute the expected calibration error: how far confidence is from accuracy, over 15 equal bins of confidence.

    Σ_b n_b/N · |accuracy_b − mean confidence_b|; bin b of confidences (the highest probability of a sample) is the
    interval from b/15, not included, to (b + 1)/15, included.

    Args:
        probabilities: Of the classes, [N, C].
        label: The right classes, [N].
    """
    confidence, predicted = probabilities.double().max(dim=1)
    place = ((confidence * BINS).ceil().long() - 1).clamp(0, BINS - 1)
    excess = (predicted == label).double() - confidence
    # On a CPU, in the order of the samples: a GPU adds as it comes, and differently each time.
    by_bin = torch.zeros(BINS, dtype=torch.float64).index_add(0, place.cpu(), excess.cpu())
    return (by_bin.abs().sum() / len(label)).item()


def _score(member: Tensor, answer: Tensor, label: Tensor, scorer: Scorer) -> dict[str, float]:
    numbers = {scorer.metric.name: scorer.answer(answer, label)}
    if scorer.task.kind == "classes":
        numbers["f1"] = macro_f1(answer.argmax(dim=1), label, answer.shape[1])
        numbers["ece"] = calibration_error(answer, label)
    return {**numbers, "loss": scorer.task.member_loss(member, label).mean().item()}

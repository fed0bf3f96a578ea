"""Losses of a step: checked, averaged over samples and ranks, in a fixed order of modalities."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.util.names import name_problems

FUSED = "fused"


class LossValues(NamedTuple):
    """The losses of a step as plain values: no graph, averaged over samples and ranks.

    Args:
        fused: The fused loss, or zero where none was given.
        unimodal: One loss per modality, zero where none was given.
        scores: One score per modality, as the method's own ``score`` reads them off the samples.
    """

    fused: Tensor
    unimodal: Tensor
    scores: Tensor


def check_losses(
    losses: Mapping[str, Tensor], modalities: Sequence[str], *, needs_fused: bool, needs_unimodal: bool
) -> tuple[str, ...]:
    """Return the modalities of ``losses``, or raise one message with everything that is wrong with them.

    Args:
        losses: What the user passed.
        modalities: The names of earlier calls; empty on the first.
        needs_fused: Whether the method cannot do without the fused loss.
        needs_unimodal: Whether the method cannot do without uni-modal losses.
    """
    if not isinstance(losses, Mapping):
        msg = (
            "expected a mapping from names to losses, such as {'fused': …, 'audio': …, 'video': …}, "
            f"found {type(losses).__name__}"
        )
        raise TypeError(msg)
    names = tuple(name for name in losses if name != FUSED)
    problems = []
    if needs_fused and FUSED not in losses:
        problems.append(f"expected the fused loss under the key 'fused', found keys {list(losses)}")
    if needs_unimodal and not (modalities or names):
        problems.append("expected one loss per modality besides 'fused', found none")
    absent = [name for name in modalities if name not in losses]
    if absent and (names or needs_unimodal):
        problems.append(f"expected losses for {list(modalities)}, found none for {absent}")
    for name in names if modalities else ():
        if name not in modalities:
            near = difflib.get_close_matches(name, modalities, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected only {list(modalities)}"
            problems.append(f"unknown modality {name!r}, {hint}")
    problems += name_problems(names)
    for name, loss in losses.items():
        if not isinstance(loss, Tensor):
            problems.append(f"loss {name!r} should be a tensor, found {type(loss).__name__}")
        elif not loss.is_floating_point():
            problems.append(f"loss {name!r} should hold floating-point numbers, found {loss.dtype}")
        elif loss.numel() == 0:
            problems.append(f"loss {name!r} is empty; skip batches without samples")
    devices = {loss.device for loss in losses.values() if isinstance(loss, Tensor)}
    if len(devices) > 1:
        problems.append(f"losses should live on one device, found {sorted(map(str, devices))}")
    if problems:
        raise ValueError("losses: " + "; ".join(problems))
    return tuple(modalities) or names


def warn_of_scalars(owner: str, losses: Mapping[str, Tensor]) -> bool:
    """Warn that a method compares modalities sample by sample where a uni-modal loss is a scalar; True if it is."""
    if all(name == FUSED or loss.dim() > 0 for name, loss in losses.items()):
        return False
    msg = (
        f"{owner} compares modalities by the mean probability of the right class, which a mean loss does not tell: "
        "pass one value per sample, F.cross_entropy(…, reduction='none'), or scores={…}"
    )
    warnings.warn(msg, UserWarning, stacklevel=6)
    return True


def scalar(loss: Tensor) -> Tensor:
    """Return the mean of a loss over its samples, in single precision at least, with its graph."""
    mean = loss if loss.dim() == 0 else loss.mean()
    return mean.float() if mean.dtype in {torch.float16, torch.bfloat16} else mean


def sum_of_extra(extra: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the losses that belong to no modality, or raise one message with all that is wrong."""
    if not isinstance(extra, Mapping):
        msg = f"extra: expected a mapping from names to losses, {{'penalty': …}}, found {type(extra).__name__}"
        raise TypeError(msg)
    problems = [
        f"{name!r} should be a tensor, found {loss!r}"
        for name, loss in extra.items()
        if not (isinstance(loss, Tensor) and loss.is_floating_point() and loss.numel() > 0)
    ]
    if problems:
        raise ValueError("extra: " + "; ".join(problems) + "; type torch.tensor(…) for a constant")
    return torch.stack([scalar(loss) for loss in extra.values()]).sum()


@torch.no_grad()
def loss_values(
    losses: Mapping[str, Tensor],
    modalities: Sequence[str],
    score: Callable[[Tensor], Tensor],
    given: Mapping[str, Tensor] | None,
    group: collectives.Group,
    *,
    logarithmic: bool,
) -> LossValues:
    """Read the values of a step off its losses, averaged over samples and ranks.

    Args:
        losses: What the user passed.
        modalities: The balancer's order.
        score: Reads a modality's score off the losses of its samples.
        given: Scores the user measured; they replace those read off the losses.
        group: The ranks to average over.
        logarithmic: Scores are logarithms, so their mean over ranks is taken inside.
    """
    absent = [name for name in modalities if given is not None and name not in given]
    if absent:
        msg = f"scores: expected one for each of {list(modalities)}, found none for {absent}"
        raise ValueError(msg)
    wide = torch.float64 if any(loss.dtype == torch.float64 for loss in losses.values()) else torch.float32
    nothing = next(iter(losses.values())).new_zeros(())
    fused, *unimodal = (losses.get(name, nothing).detach().to(wide) for name in (FUSED, *modalities))
    values = collectives.mean(torch.stack([loss.mean() for loss in (fused, *unimodal)]), group)
    if not unimodal:
        return LossValues(values[0], values[1:], values[1:])
    if given is None:
        scores = torch.stack([score(loss) for loss in unimodal])
    else:
        scores = torch.stack([torch.as_tensor(given[name]).to(values).mean() for name in modalities])
        # A score of zero is very far behind; one below zero has no logarithm, and is reported as it is not finite.
        scores = torch.where(scores == 0, torch.finfo(scores.dtype).tiny, scores).log() if logarithmic else scores
    scores = collectives.log_mean_exp(scores, group) if logarithmic else collectives.mean(scores, group)
    return LossValues(values[0], values[1:], scores)


def check_metrics(
    owner: str, metrics: Mapping[str, Mapping[str, float]], needs: Sequence[str], modalities: Sequence[str]
) -> dict[str, Tensor]:
    """Return the metrics of an epoch, one tensor over modalities each, or raise one message for all missing."""
    absent = [f"{name!r}: {need!r}" for need in needs for name in modalities if need not in metrics.get(name, {})]
    if absent or (needs and not modalities):
        example = {name: dict.fromkeys(needs, 0.5) for name in modalities or ("audio",)}
        msg = (
            f"{owner} learns from validation metrics of each modality; found none for {', '.join(absent) or 'any'}. "
            f"Type balancer.end_epoch({example})"
        )
        raise ValueError(msg)
    return {need: torch.tensor([float(metrics[name][need]) for name in modalities]) for need in needs}


@final
class FiniteCheck:
    """Notes on the device which losses and scores were not finite, until `check` is called."""

    def __init__(self, names: tuple[str, ...], device: torch.device) -> None:
        self.names, self.device = names, device
        self._finite = torch.ones(2 * len(self.names) - 1, dtype=torch.bool, device=device)

    def note(self, values: LossValues) -> None:
        """Add the values of a step, and check at once where that costs nothing; elsewhere it would stall the device."""
        self._finite &= torch.cat([values.fused[None], values.unimodal, values.scores]).isfinite()
        if self.device.type == "cpu":
            self.check()

    def check(self) -> None:
        """Raise an error that names the losses that were NaN or infinite, once."""
        finite = self._finite.tolist()
        if all(finite):
            return
        self._finite.fill_(1)
        losses = [name for name, fine in zip(self.names, finite, strict=False) if not fine]
        scores = [name for name, fine in zip(self.names[1:], finite[len(self.names) :], strict=True) if not fine]
        if not losses:
            msg = f"score of {', '.join(map(repr, scores))}: expected finite numbers of zero or more, found others"
            raise ValueError(msg)
        msg = (
            f"loss {', '.join(map(repr, losses))} is NaN or infinite; expected finite losses. Look for a division by "
            "zero, a logarithm of zero, a label outside the classes, or a learning rate that is too large"
        )
        raise FloatingPointError(msg)

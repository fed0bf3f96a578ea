"""What one step shows a balancer: losses checked, averaged over samples and ranks, in a fixed order of modalities."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.table import FUSED
from equipoise.util.names import name_problems


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
    """The modalities of ``losses``, or one message with everything that is wrong with them.

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
    found = tuple(name for name in losses if name != FUSED)
    problems = _missing(losses, found, modalities, needs_fused=needs_fused, needs_unimodal=needs_unimodal)
    problems += name_problems(found)
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
    return tuple(modalities) or found


def _missing(
    losses: Mapping[str, Tensor],
    found: Sequence[str],
    modalities: Sequence[str],
    *,
    needs_fused: bool,
    needs_unimodal: bool,
) -> list[str]:
    problems = []
    if needs_fused and FUSED not in losses:
        problems.append(f"expected the fused loss under the key 'fused', found keys {list(losses)}")
    if not modalities:
        if needs_unimodal and not found:
            problems.append("expected one loss per modality besides 'fused', found none")
        return problems
    absent = [name for name in modalities if name not in losses]
    unknown = [name for name in found if name not in modalities]
    if absent and (found or needs_unimodal):
        problems.append(f"expected losses for {list(modalities)}, found none for {absent}")
    for name in unknown:
        near = difflib.get_close_matches(name, modalities, n=1)
        hint = f", did you mean {near[0]!r}?" if near else f", expected only {list(modalities)}"
        problems.append(f"unknown modality {name!r}{hint}")
    return problems


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
    """The mean of a loss over its samples, in single precision at least, with its graph."""
    mean = loss if loss.dim() == 0 else loss.mean()
    return mean.float() if mean.dtype in {torch.float16, torch.bfloat16} else mean


def extra_scalars(extra: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the losses that belong to no modality as scalars, or one message with all that is wrong with them."""
    if not isinstance(extra, Mapping):
        msg = f"extra: expected a mapping from names to losses, {{'penalty': …}}, found {type(extra).__name__}"
        raise TypeError(msg)
    problems = [f"{name!r} should be a tensor, found {loss!r}" for name, loss in extra.items() if not _is_loss(loss)]
    if problems:
        raise ValueError("extra: " + "; ".join(problems) + "; type torch.tensor(…) for a constant")
    return [scalar(loss) for loss in extra.values()]


def _is_loss(loss: object) -> bool:
    return isinstance(loss, Tensor) and loss.is_floating_point() and loss.numel() > 0


def loss_values(
    losses: Mapping[str, Tensor],
    modalities: Sequence[str],
    score: Callable[[Tensor], Tensor],
    scores: Mapping[str, Tensor] | None,
    group: collectives.Group,
    *,
    logarithmic: bool,
) -> LossValues:
    """Read the values of a step off its losses, averaged over samples and ranks.

    Args:
        losses: What the user passed.
        modalities: The balancer's order.
        score: Reads a modality's score off the losses of its samples.
        scores: Scores the user measured; they replace those read off the losses.
        group: The ranks to average over.
        logarithmic: Scores are logarithms, so their mean over ranks is taken inside.
    """
    absent = [name for name in modalities if scores is not None and name not in scores]
    if absent:
        msg = f"scores: expected one for each of {list(modalities)}, found none for {absent}"
        raise ValueError(msg)
    with torch.no_grad():
        wide = torch.float64 if any(loss.dtype == torch.float64 for loss in losses.values()) else torch.float32
        nothing = next(iter(losses.values())).new_zeros(())
        fused, *unimodal = (losses.get(name, nothing).detach().to(wide) for name in (FUSED, *modalities))
        values = collectives.mean(torch.stack([loss.mean() for loss in (fused, *unimodal)]), group)
        if not unimodal:
            return LossValues(values[0], values[1:], values[1:])
        if scores is None:
            found = torch.stack([score(loss) for loss in unimodal])
        else:
            found = torch.stack([torch.as_tensor(scores[name]).to(values).mean() for name in modalities])
            # A score of zero is very far behind; one below zero has no logarithm, and is reported as it is not finite.
            found = torch.where(found == 0, torch.finfo(found.dtype).tiny, found).log() if logarithmic else found
        found = collectives.log_mean_exp(found, group) if logarithmic else collectives.mean(found, group)
        return LossValues(values[0], values[1:], found)


def check_metrics(
    owner: str, given: Mapping[str, Mapping[str, float]], needs: Sequence[str], modalities: Sequence[str]
) -> dict[str, Tensor]:
    """What an epoch's end was given, one tensor over modalities per metric, or one message for all missing."""
    absent = [f"{name!r}: {need!r}" for need in needs for name in modalities if need not in given.get(name, {})]
    if absent or (needs and not modalities):
        example = {name: dict.fromkeys(needs, 0.5) for name in modalities or ("audio",)}
        msg = (
            f"{owner} learns from validation metrics of each modality; found none for {', '.join(absent) or 'any'}. "
            f"Type balancer.end_epoch({example})"
        )
        raise ValueError(msg)
    return {need: torch.tensor([float(given[name][need]) for name in modalities]) for need in needs}


@final
class FiniteWatch:
    """Remembers, on the device, which losses and scores were not finite, until somebody looks."""

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.names = tuple(names)
        self._finite = torch.ones(2 * len(self.names) - 1, dtype=torch.bool, device=device)

    def serves(self, modalities: Sequence[str], device: torch.device) -> bool:
        """Return True if it still fits: modalities become known, and losses move to another device."""
        return self.names[1:] == tuple(modalities) and self._finite.device == device

    def note(self, values: LossValues) -> None:
        """Look at once where that costs nothing; elsewhere it would stall the device."""
        self._finite &= torch.cat([values.fused[None], values.unimodal, values.scores]).isfinite()
        if self._finite.device.type == "cpu":
            self.check()

    def check(self) -> None:
        """Say which losses were NaN or infinite, once."""
        finite = self._finite.tolist()
        if all(finite):
            return
        self._finite.fill_(1)
        bad = [name for name, fine in zip(self.names, finite, strict=False) if not fine]
        scores = [name for name, fine in zip(self.names[1:], finite[len(self.names) :], strict=True) if not fine]
        if not bad:
            msg = f"score of {', '.join(map(repr, scores))}: expected finite numbers of zero or more, found others"
            raise ValueError(msg)
        msg = (
            f"loss {', '.join(map(repr, bad))} is NaN or infinite; expected finite losses. Look for a division by "
            "zero, a logarithm of zero, a label outside the classes, or a learning rate that is too large"
        )
        raise FloatingPointError(msg)

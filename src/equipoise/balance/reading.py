"""From what a user gives to `Losses`: checked, averaged over samples and ranks, with the scores of modalities."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.coefficients import FUSED, Coefficients, Losses, Tensors
from equipoise.balance.needs import Needs
from equipoise.balance.presence import divisor, masked, masks_of, mean_where, neutral
from equipoise.util.errors import name_problems

_PLAIN = (torch.float32, torch.float64)
_WORST = -math.log(1e-8)  # the bounded loss does not read probabilities below 1e-8


class GivenStep(NamedTuple):
    """The arguments of a step; see `Balancer.forward`."""

    losses: Tensors
    scores: Tensors | None = None
    present: Tensors | None = None
    further: Tensors | None = None


class Reading(NamedTuple):
    """The losses of a step, with and without their graph.

    Args:
        losses: Plain values.
        values: The same, in the order of the table.
        scalars: The mean of each objective in that order, with its graph; None where it was not given.
        stacked: The scalars that were given, as one tensor with its graph.
    """

    losses: Losses
    values: Tensor
    scalars: list[Tensor | None]
    stacked: Tensor


@final
class Reader:
    """Reads the losses of steps.

    Args:
        method: The name of the method's class.
        needs: What it needs.
        modalities: Their names.
        group: The ranks to average over.
    """

    def __init__(self, method: str, needs: Needs, modalities: Sequence[str], group: collectives.Group) -> None:
        self.method, self.needs, self.modalities, self.group = method, needs, tuple(modalities), group
        self.objectives = (FUSED, *self.modalities)

    def read(self, given: GivenStep, window: Tensor | None = None) -> Reading:
        """Average losses over samples and ranks.

        Args:
            given: The step.
            window: The share of samples that have each sensor in all micro-batches of a window; None outside of one.
        """
        is_masked = given.present is not None or window is not None
        present = {} if given.present is None else given.present
        masks = masks_of(present, given.losses, self.modalities) if is_masked else {}
        rows = [masks.get(name) for name in self.modalities]
        pairs = zip(self.objectives, (None, *rows), strict=True)
        known = [_mean(given.losses[name], mask) if name in given.losses else None for name, mask in pairs]
        known += [] if given.further is None else [_mean(given.further[name]) for name in self.modalities]
        stacked, count, presence = _stacked(known), len(self.objectives), None
        values = stacked.detach()
        if len(given.losses) < count:
            left, zero = iter(values.unbind()), values.new_zeros(())
            values = torch.stack([zero if one is None else next(left) for one in known])
        if not is_masked:
            values = collectives.mean(values, self.group)
        else:  # the shares travel with the losses, those of every modality: ranks may name others
            shares = [values.new_ones(()) if mask is None else mask.to(values.dtype).mean() for mask in rows]
            together = collectives.mean(torch.cat([values, torch.stack(shares)]), self.group)
            values, presence = together.split([len(known), len(rows)])
            divisors = divisor(presence if window is None else window)
            values = torch.cat([values[:1], values[1:count] / divisors, values[count:]])
            # The mean over ranks of these, and of their gradients, is that of one process over the samples at hand.
            own = zip(known[1:count], divisors.unbind(), strict=True)
            known[1:count] = [one if one is None else one / share.to(one.dtype) for one, share in own]
            stacked = _stacked(known)
        unimodal, further = values[1:count], None if given.further is None else values[count:]
        losses = Losses(values[0], unimodal, unimodal, presence, further)
        if rows and (self.needs.scores != ("loss",) or given.scores is not None or is_masked):
            losses = losses._replace(scores=self._scores(given, rows, presence, values.dtype))
        if is_masked and window is not None:
            losses = losses._replace(presence=window)
        return Reading(losses, values, known, stacked)

    @torch.no_grad()
    def _scores(
        self, given: GivenStep, rows: Sequence[Tensor | None], presence: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Return the scores of modalities, read off losses or as they were given; means over the samples at hand."""
        logarithmic = self.needs.logarithmic
        if given.scores is not None:
            scores = self._given_scores(given.scores, rows, dtype)
        else:
            zero = next(iter(given.losses.values())).new_zeros(())
            losses = [given.losses.get(name, zero).detach().to(dtype) for name in self.modalities]
            # What a sample without the sensor adds to a mean of losses, and to one of probabilities exp(−f), is zero.
            scores = torch.stack([self._score(one) for one in masked(losses, rows, torch.inf if logarithmic else 0.0)])
        if not logarithmic:
            scores = collectives.mean(scores, self.group)
        else:
            if given.scores is not None:
                # A score of zero is very far behind; one below zero has no logarithm, and is reported as not finite.
                scores = torch.where(scores == 0, torch.finfo(scores.dtype).tiny, scores).log()
            scores = collectives.log_mean_exp(scores, self.group)
        if presence is None:
            return scores
        share = presence if scores.dim() == 1 else presence[:, None]
        return neutral(scores - share.log() if logarithmic else scores / share, presence)

    def _score(self, losses: Tensor) -> Tensor:
        """Return a modality's score from the losses of its samples.

        That of the likelihood is log mean_i exp(−f_i). Of a scalar loss that is −f, the logarithm of the geometric
        mean, which is at most the other.
        """
        if self.needs.logarithmic:
            flat = losses.reshape(-1)
            return torch.logsumexp(-flat, dim=0) - math.log(flat.numel())
        return (losses.clamp(max=_WORST) if self.needs.scores == ("bounded loss",) else losses).mean()

    def _given_scores(self, given: Tensors, rows: Sequence[Tensor | None], dtype: torch.dtype) -> Tensor:
        absent = [name for name in self.modalities if name not in given]
        if absent:
            raise ValueError(f"scores: expected one for each of {list(self.modalities)}, found none for {absent}")
        measured = [torch.as_tensor(given[name]).to(dtype) for name in self.modalities]
        if len(self.needs.scores) > 1:
            return torch.stack([mean_where(row, mask) for row, mask in zip(measured, rows, strict=True)])
        pairs = zip(measured, rows, strict=True)
        known = [row if mask is None or row.shape == mask.shape else row.mean() for row, mask in pairs]
        return torch.stack([row.mean() for row in masked(known, rows, 0.0)])

    def problems_beside(self, given: GivenStep, *, decided: bool) -> list[str]:
        """Return why the scores and further objectives are not what the method needs.

        Args:
            given: The step.
            decided: Whether a window holds the decision, and was given the scores.
        """
        name, needs, problems = self.method, self.needs, []
        if needs.given_scores and given.scores is None and not decided:
            shape = f"[B, {len(needs.given_scores)}]" if len(needs.given_scores) > 1 else "[B]"
            problems.append(
                f"{name} compares modalities by {' and '.join(needs.given_scores)}, which losses do not tell: pass "
                f"scores={{name: …}}, {shape} of each modality"
            )
        if needs.further and given.further is not None:
            absent = [modality for modality in self.modalities if modality not in given.further]
            names = list(self.modalities)
            problems += [f"further: expected one loss for each of {names}, found none for {absent}"] if absent else []
            strangers = [modality for modality in given.further if modality not in self.modalities]
            problems += [f"further: expected one loss for each of {names}, found {strangers}"] if strangers else []
        elif needs.further and not needs.instead and not decided and torch.is_grad_enabled():
            problems.append(f"{name} has one more objective per modality: pass further={{name: loss}}")
        elif given.further is not None:
            problems.append(f"further: {name} has no objectives beyond one per modality; leave them out")
        return problems


def _mean(loss: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of a loss over its samples, zeros where they lack the sensor, in single precision at least."""
    if loss.dtype not in _PLAIN:
        loss = loss.float()
    if mask is not None:
        loss = torch.where(mask, loss, 0.0)
    return loss.mean() if loss.dim() else loss


def _stacked(losses: Sequence[Tensor | None]) -> Tensor:
    return torch.stack([one for one in losses if one is not None])


def check_losses(losses: Tensors, needs: Needs, modalities: Sequence[str]) -> tuple[str, ...]:
    """Return the modalities of some losses, or raise one message with everything that is wrong with them.

    Args:
        losses: As they were given.
        needs: Of the method.
        modalities: Those that are known already; none before the first step.
    """
    if not isinstance(losses, Mapping):
        raise TypeError(
            "expected a mapping from names to losses, such as {'fused': …, 'audio': …, 'video': …}, "
            f"found {type(losses).__name__}"
        )
    names = tuple(name for name in losses if name != FUSED)
    problems = [] if modalities and set(names) == set(modalities) else _name_problems(names, needs, modalities)
    if needs.fused and FUSED not in losses:
        problems.insert(0, f"expected the fused loss under the key 'fused', found keys {list(losses)}")
    if problems or not all(map(_is_loss, losses.values())) or len({loss.device for loss in losses.values()}) > 1:
        raise ValueError("losses: " + "; ".join([*problems, *_loss_problems(losses)]))
    return tuple(modalities) or names


def _is_loss(loss: object) -> bool:
    return isinstance(loss, Tensor) and loss.is_floating_point() and loss.dim() <= 1 and loss.numel() > 0


def _loss_problems(losses: Tensors) -> list[str]:
    problems = []
    for name, loss in losses.items():
        if not isinstance(loss, Tensor):
            problems.append(f"loss {name!r} should be a tensor, found {type(loss).__name__}")
        elif not loss.is_floating_point():
            problems.append(f"loss {name!r} should hold floating-point numbers, found {loss.dtype}")
        elif loss.dim() > 1:
            problems.append(
                f"loss {name!r} should be a scalar or hold one value per sample, found shape {list(loss.shape)}: of "
                "outputs, type F.cross_entropy(…, reduction='none'); of several values per sample, their mean"
            )
        elif loss.numel() == 0:
            problems.append(f"loss {name!r} is empty; skip batches without samples")
    devices = {loss.device for loss in losses.values() if isinstance(loss, Tensor)}
    if len(devices) > 1:
        problems.append(f"losses should live on one device, found {sorted(map(str, devices))}")
    return problems


def _name_problems(names: Sequence[str], needs: Needs, modalities: Sequence[str]) -> list[str]:
    problems = []
    if needs.losses and not (modalities or names):
        problems.append("expected one loss per modality besides 'fused', found none")
    absent = [name for name in modalities if name not in names]
    if absent and (names or needs.losses):
        problems.append(f"expected losses for {list(modalities)}, found none for {absent}")
    for name in names if modalities else ():
        if name not in modalities:
            near = difflib.get_close_matches(name, modalities, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected only {list(modalities)}"
            problems.append(f"unknown modality {name!r}, {hint}")
    return problems + name_problems(names)


def sum_of_extra(extra: Tensors) -> Tensor:
    """Return the sum of the losses that belong to no modality, or raise one message with all that is wrong."""
    if not isinstance(extra, Mapping):
        kind = type(extra).__name__
        raise TypeError(f"extra: expected a mapping from names to losses, {{'penalty': …}}, found {kind}")
    problems = [
        f"{name!r} should be a tensor, found {loss!r}"
        for name, loss in extra.items()
        if not (isinstance(loss, Tensor) and loss.is_floating_point() and loss.numel() > 0)
    ]
    if problems:
        raise ValueError("extra: " + "; ".join(problems) + "; type torch.tensor(…) for a constant")
    return torch.stack([_mean(loss) for loss in extra.values()]).sum()


@final
class FiniteCheck:
    """Notes on the device which losses, scores and coefficients were not finite, until `check` is called.

    On a CPU it checks at once, where that costs little; elsewhere it would stall the device.

    Args:
        objectives: Names of the fused loss, the modalities and further objectives.
        modalities: Their number K.
        device: Of the losses.
        method: The method that weighs them, with its arguments.
    """

    def __init__(self, objectives: Sequence[str], modalities: int, device: torch.device, method: str) -> None:
        self.objectives, self.modalities, self.device, self.method = tuple(objectives), modalities, device, method
        self._losses = torch.ones(len(objectives), dtype=torch.bool, device=device)
        self._scores = torch.ones(modalities, dtype=torch.bool, device=device)
        self._weighed = torch.ones((), dtype=torch.bool, device=device)

    def note(self, reading: Reading) -> None:
        """Add the values of a step."""
        values, losses, scores = reading.values, reading.losses, reading.losses.scores
        if self.device.type == "cpu" and _finite(values) and (scores is losses.unimodal or _finite(scores)):
            return
        scores = scores if scores.dim() == 1 else scores.sum(dim=1)
        self._losses[: len(values)] &= values.isfinite()  # further objectives may not have been given
        self._scores[: len(scores)] &= scores.isfinite()
        if self.device.type == "cpu":
            self.check()

    def note_answer(self, answer: Coefficients) -> None:
        """Add the coefficients of a step, after its losses; where a loss was not finite, they are not to blame."""
        given = answer.parts
        if self.device.type == "cpu":
            if all(map(_finite, given)):
                return
            self._weighed.fill_(0)
            self.check()
        finite = torch.cat([each.reshape(-1) for each in given]).isfinite().all()
        self._weighed &= finite | ~(self._losses.all() & self._scores.all())

    def check(self) -> None:
        """Raise an error that names the losses that were NaN or infinite, or the method whose answer was, once."""
        losses, scores, weighed = self._losses.tolist(), self._scores.tolist(), bool(self._weighed)
        if all(losses) and all(scores) and weighed:
            return
        for noted in (self._losses, self._scores, self._weighed):
            noted.fill_(1)
        if not weighed:  # if losses were not finite either, they were so later
            name = self.method.partition("(")[0]
            raise FloatingPointError(
                f"{name}.weigh: expected finite weights, found NaN or infinite ones, of losses that are finite. Look "
                "for a division by zero, a logarithm of zero, an exponential of a large number, or an argument that "
                f"does not fit losses of this size: {self.method}"
            )
        wrong = [name for name, fine in zip(self.objectives, losses, strict=True) if not fine]
        unscored = [name for name, fine in zip(self.objectives[1:], scores, strict=False) if not fine]
        listed = ", ".join(map(repr, wrong or unscored))
        if not wrong:
            raise ValueError(f"score of {listed}: expected finite numbers of zero or more, found others")
        raise FloatingPointError(
            f"loss {listed} is NaN or infinite; expected finite losses. Look for a division by "
            "zero, a logarithm of zero, a label outside the classes, or a learning rate that is too large"
        )


def _finite(values: Tensor) -> bool:
    """Return True if all numbers of a small tensor on the CPU are finite: in Python sooner than in a kernel."""
    return all(map(math.isfinite, (values if values.dim() == 1 else values.reshape(-1)).tolist()))

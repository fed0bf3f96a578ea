"""Losses of a step: checked and averaged (`LossValues`), weighed (`Weights`), and the table of what they did."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from equipoise.util.errors import BadInput

FUSED = "fused"
TRUNK = "trunk"
Recompute: TypeAlias = "Callable[[Tensor], Tensor]"
Tensors: TypeAlias = "Mapping[str, Tensor]"  # by name


class LossValues(NamedTuple):
    """The losses of a step as plain values: no graph, averaged over samples and ranks.

    Args:
        fused: The fused loss, or zero where none was given.
        unimodal: One loss per modality, zero where none was given.
        scores: One score per modality, as the method's own ``score`` reads them off the samples.
            Of a method that is scored by several numbers, one column each, [K, S].
        presence: The share of samples that have each sensor, where masks were given; None where all have all. A sensor
            that no sample has: its loss is zero, and its score the mean of the others'.
        further: The objectives beyond one per modality; None where none were given.
    """

    fused: Tensor
    unimodal: Tensor
    scores: Tensor
    presence: Tensor | None = None
    further: Tensor | None = None

    @property
    def all(self) -> Tensor:
        """Every objective in the order of the table: the fused loss, one per modality, and those beyond."""
        further = [] if self.further is None else [self.further]
        return torch.cat([self.fused[None], self.unimodal, *further])


class Weights(NamedTuple):
    """A method's answer to `weigh`: encoder b moves along encoders[b] · Σ_i losses[i] · ∇_b f_i.

    n is the number of objectives: K + 1, and more where a method has further ones.

    Args:
        losses: Weight of the fused loss, of each uni-modal one and of each further one, shape [n]; of a method on the
            "table" route a weight for each encoder, shape [n, K].
        encoders: Factor on each encoder's gradient, shape [K]; None means ones.
        heads: Weight of each loss on the heads, shape [n]; None means the same as ``losses``, where that is [n].
        value: The value of the returned scalar; None means Σ_i losses[i] · f_i.
        recompute: Computes ``losses`` from the fused and the uni-modal losses, [K + 1], with their graph, where it
            depends on them; second derivatives are exact with it. None means that ``losses`` is constant.
    """

    losses: Tensor
    encoders: Tensor | None = None
    heads: Tensor | None = None
    value: Tensor | None = None
    recompute: Recompute | None = None

    @staticmethod
    def joint(values: LossValues, encoders: Tensor | None = None) -> Weights:
        """Joint training: encoders learn from the fused loss, times a factor each; heads from every loss at one."""
        losses = torch.cat([torch.ones_like(values.fused)[None], torch.zeros_like(values.unimodal)])
        return Weights(losses, encoders=encoders, heads=torch.ones_like(losses), value=values.fused)

    @property
    def on_heads(self) -> Tensor:
        """The weight of each loss on the heads."""
        return self.losses if self.heads is None else self.heads

    def held(self) -> Weights:
        """The same weights, which depend on losses whose graph is not here, and so refuse second derivatives."""
        return self if self.recompute is None else self._replace(recompute=_refuse)

    def table(self, modalities: int, trunk: Tensor | None = None) -> Tensor:
        """The coefficients c[objective, block] these weights stand for.

        Args:
            modalities: Their number K.
            trunk: The weight of each loss on the trunk; None where there is none.
        """
        factors = self.encoders if self.encoders is not None else self.losses.new_ones(modalities)
        columns = self.losses if self.losses.dim() == 2 else self.losses[:, None]
        shared = [] if trunk is None else [trunk[:, None]]
        return torch.cat([columns * factors, *shared, self.on_heads[:, None]], dim=1)


class Step(NamedTuple):
    """The losses of one step and the method's decision.

    Args:
        losses: The fused scalar, one per modality and the further ones, with their graph; None where not given.
        extra: The sum of losses that belong to no modality.
        values: The values of the losses.
        weights: The method's decision; None for a mixture, which gradients decide.
        value: Of the objective.
        unmasked: The losses of the samples before masks, by objective; None where no masks were given.
        factors: A factor of each sample on the gradient at the output of an encoder, by modality; None for none.
    """

    losses: Sequence[Tensor | None]
    extra: Tensor | None
    values: LossValues
    weights: Weights | None
    value: Tensor
    unmasked: Sequence[Tensor | None] | None = None
    factors: Tensors | None = None


def _refuse(losses: Tensor) -> Tensor:  # noqa: ARG001
    raise RuntimeError(
        "second derivatives: the weights of this step depend on other micro-batches or ranks, whose graph is not here; "
        "found create_graph=True: use mimo_objective on the losses of one batch instead"
    )


class Table(NamedTuple):
    """The coefficients of the last step: block b moved along Σ_i c[i, b] · ∇_b f_i.

    Rows are objectives (the fused loss, then one loss per modality), columns are blocks of parameters (one encoder per
    modality, the trunk where encoders meet in one, then the heads).

    Args:
        objectives: Names of the rows.
        blocks: Names of the columns.
        values: The coefficients c, on the device they were computed on; NaN where a loss does not reach a block.
    """

    objectives: tuple[str, ...]
    blocks: tuple[str, ...]
    values: Tensor

    @staticmethod
    def of(modalities: Sequence[str], values: Tensor, further: Sequence[str] = ()) -> Table:
        """Name the rows and columns of coefficients; rows of further objectives come last."""
        trunk = [TRUNK] if values.shape[1] > len(modalities) + 1 else []
        return Table((FUSED, *modalities, *further), (*modalities, *trunk, "heads"), values)

    def at(self, objective: str, block: str) -> Tensor:
        """Return the coefficient of one objective on one block, still on its device."""
        return self.values[self.objectives.index(objective), self.blocks.index(block)]

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return the table as plain numbers, ``{objective: {block: coefficient}}``, without cells that no loss reaches.

        Waits for the device.
        """
        return {
            objective: {block: value for block, value in zip(self.blocks, row, strict=True) if not math.isnan(value)}
            for objective, row in zip(self.objectives, self.values.tolist(), strict=True)
        }

    def __str__(self) -> str:
        first = max(len(name) for name in self.objectives)
        rows = {"": dict(zip(self.blocks, self.blocks, strict=True))}
        rows |= {name: {block: f"{c:.4g}" for block, c in row.items()} for name, row in self.numbers().items()}
        return "\n".join(
            " ".join([f"{name:<{first}}", *(f"{row.get(block, '–'):>{max(len(block), 9)}}" for block in self.blocks)])
            for name, row in rows.items()
        )


@final
@dataclass
class HeldDecision:
    """One decision for several micro-batches.

    Args:
        values: The losses of the whole window.
        weights: The method's decision; None to let every micro-batch decide for itself.
        advanced: Whether the method's state has moved on for this window.
        scored: Whether scores were given for it.
        lag: Whether it is that of the window before.
        losses: Those of the micro-batches that came by.
        scores: Theirs, where given.
        present: Their masks, None for a micro-batch without.
    """

    values: LossValues | None = None
    weights: Weights | None = None
    advanced: bool = False
    scored: bool = False
    lag: bool = False
    losses: list[Tensors] = field(default_factory=list)
    scores: list[Tensors] = field(default_factory=list)
    present: list[Tensors | None] = field(default_factory=list)

    @property
    def presence(self) -> Tensor | None:
        """The share of samples that have each sensor, over the whole window; None without masks, or where it lags."""
        return None if self.lag or self.values is None else self.values.presence


def check_weights(method: str, weights: object, objectives: Sequence[str], modalities: int, *, table: bool) -> None:
    """Raise an error that says what `weigh` should return, where it returned something else.

    Args:
        method: The name of its class.
        weights: What it returned.
        objectives: The fused loss, the modalities, and further objectives.
        modalities: Their number K.
        table: True for a method that answers with a weight for each encoder.
    """
    count = len(objectives)
    if not isinstance(weights, Weights):
        found = f"a tensor of shape {list(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
        wrong = [f"{found} instead"]
    else:
        sizes = {"losses": [count, modalities] if table else [count], "encoders": [modalities], "heads": [count]}
        given = {name: (value, sizes[name]) for name, value in weights._asdict().items() if name in sizes}
        wrong = [
            f"{name} of shape {list(value.shape)}, expected {shape}"
            if isinstance(value, Tensor)
            else f"{name} of type {type(value).__name__}, expected a tensor"
            for name, (value, shape) in given.items()
            if not ((isinstance(value, Tensor) and list(value.shape) == shape) or (value is None and name != "losses"))
        ]
        wrong += ["heads of None, expected a tensor"] if table and weights.heads is None else []
    if wrong:
        each = f" for each of {modalities} encoders, and heads=…" if table else ""
        expected = f"equipoise.Weights(losses=…), a tensor of {count} weights{each}, of {', '.join(objectives)}"
        raise BadInput(f"{method}.weigh: expected it to return {expected}; found {'; '.join(wrong)}")


def scalar(loss: Tensor) -> Tensor:
    """Return the mean of a loss over its samples, in single precision at least, with its graph."""
    mean = loss if loss.dim() == 0 else loss.mean()
    return mean.float() if mean.dtype in {torch.float16, torch.bfloat16} else mean


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
    return torch.stack([scalar(loss) for loss in extra.values()]).sum()


@final
class FiniteCheck:
    """Notes on the device which losses, scores and weights were not finite, until `check` is called.

    Args:
        names: Of the fused loss and the modalities.
        device: Of the losses.
        method: The method that weighs them, with its arguments.
        further: Names of further objectives.
        scores: What finite scores are expected to be.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        device: torch.device,
        method: str,
        further: tuple[str, ...] = (),
        scores: str = "of zero or more",
    ) -> None:
        self.names, self.device, self.method, self.further, self.scores = names, device, method, further, scores
        self._finite = torch.ones(2 * len(names) - 1 + len(further), dtype=torch.bool, device=device)
        self._weighed = torch.ones((), dtype=torch.bool, device=device)

    def note(self, values: LossValues) -> None:
        """Add the values of a step, and check at once where that costs nothing; elsewhere it would stall the device."""
        scores = values.scores if values.scores.dim() == 1 else values.scores.sum(dim=1)
        known = torch.cat([values.all, scores]).isfinite()
        if len(known) < len(self._finite):  # further objectives were not given: the losses are those of a window
            count = len(self.names)
            known = torch.cat([known[:count], torch.ones_like(self._finite[: len(self.further)]), known[count:]])
        self._finite &= known
        if self.device.type == "cpu":
            self.check()

    def note_weights(self, weights: Weights) -> None:
        """Add the weights of a step, after its losses; where a loss was not finite, its weights are not to blame."""
        given = (weights.losses, weights.encoders, weights.heads)
        finite = torch.cat([each.reshape(-1) for each in given if each is not None]).isfinite().all()
        if self.device.type != "cpu":
            self._weighed &= finite | ~self._finite.all()
        elif not finite:  # the losses were checked when they were noted
            self._weighed.fill_(0)
            self.check()

    def check(self) -> None:
        """Raise an error that names the losses that were NaN or infinite, or the method whose weights were, once."""
        finite, weighed = self._finite.tolist(), bool(self._weighed)
        if all(finite) and weighed:
            return
        self._finite.fill_(1)
        self._weighed.fill_(1)
        if not weighed:  # if losses were not finite either, they were so later
            name = self.method.partition("(")[0]
            raise FloatingPointError(
                f"{name}.weigh: expected finite weights, found NaN or infinite ones, of losses that are finite. Look "
                "for a division by zero, a logarithm of zero, an exponential of a large number, or an argument that "
                f"does not fit losses of this size: {self.method}"
            )
        every = (*self.names, *self.further)
        losses = [name for name, fine in zip(every, finite, strict=False) if not fine]
        scores = [name for name, fine in zip(self.names[1:], finite[len(every) :], strict=True) if not fine]
        listed = ", ".join(map(repr, losses or scores))
        if not losses:
            raise ValueError(f"score of {listed}: expected finite numbers {self.scores}, found others")
        raise FloatingPointError(
            f"loss {listed} is NaN or infinite; expected finite losses. Look for a division by "
            "zero, a logarithm of zero, a label outside the classes, or a learning rate that is too large"
        )


# exp of anything beyond is as good as infinite for a hyperbolic tangent, and still a number.
_LARGEST = 80.0


def ratios(scores: Tensor) -> Tensor:
    """ρ_m = mean over j ≠ m of s_m / s_j, from log scores [K]; one for a single modality."""
    count = len(scores)
    if count == 1:
        return torch.ones_like(scores)
    pairs = (scores[:, None] - scores[None, :]).clamp(-_LARGEST, _LARGEST).exp()
    return (pairs.sum(dim=1) - 1) / (count - 1)  # the diagonal is one


def mean_of_others(values: Tensor) -> Tensor:
    """For each entry the mean of the others; itself where there are none."""
    count = len(values)
    return values if count == 1 else (values.sum() - values) / (count - 1)

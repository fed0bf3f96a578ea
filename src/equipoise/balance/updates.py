"""Factors on what an optimiser does to encoders, where a factor on their gradients would be divided out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.optim import ASGD, SGD, Optimizer

from equipoise.balance.tensors import values_of


class ParameterPart(NamedTuple):
    """A parameter, or some columns of it, that belong to one modality.

    Args:
        tensor: The parameter.
        columns: The columns; None for the whole of it.
    """

    tensor: Tensor
    columns: slice | None = None

    @property
    def key(self) -> tuple[int, int]:
        """The identity of the tensor and the first column."""
        return id(self.tensor), -1 if self.columns is None else self.columns.start

    def of(self, tensor: Tensor) -> Tensor:
        """Return a view of this part of a tensor that is laid out as the parameter: its gradient, or its values."""
        return tensor if self.columns is None else tensor[:, self.columns]


def moves_with_the_gradient(optimizer: Optimizer) -> bool:
    """Return True if a factor on the gradient is a factor on the step. Adam and its variants divide it out again."""
    return isinstance(optimizer, (SGD, ASGD))


def was_taken(optimizer: Optimizer) -> Tensor | int:
    """Return one, or zero where a GradScaler told a fused optimiser, which it calls in any case, to skip the step."""
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    return 1 if found_inf is None else (found_inf == 0).to(torch.int64)


def tensors_held(optimizer: Optimizer) -> list[Tensor]:
    """List every parameter of an optimiser."""
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


class _Note(NamedTuple):
    """The factors of one backward pass.

    Args:
        factors: One per modality.
        finite: Whether the gradients were finite; where they were not, the step is skipped and its factors with it.
        fresh: Whether the gradients had been set to zero before; None where they had something in them for certain.
    """

    factors: Mapping[str, Tensor]
    finite: Tensor
    fresh: Tensor | None


@final
class UpdateScale:
    """Scales what an optimiser does to encoders: p ← p_before + factor · (p_after − p_before).

    Under Adam and its variants this is what a factor on the gradient means elsewhere.

    Args:
        optimizer: The optimiser.
        parts: Lists the parameters per modality that the factors apply to, as they are now.
    """

    def __init__(self, optimizer: Optimizer, parts: Callable[[], Mapping[str, Sequence[ParameterPart]]]) -> None:
        self.optimizer, self._parts = optimizer, parts
        self._notes: list[_Note] = []
        self._before: list[tuple[ParameterPart, Tensor]] = []
        self._handles = [optimizer.register_step_pre_hook(self._save), optimizer.register_step_post_hook(self._blend)]

    def note(self, factors: Mapping[str, Tensor], finite: Tensor) -> None:
        """Take the factors of one backward pass; a step over several of them takes their mean.

        Args:
            factors: One per modality.
            finite: Whether the gradients were finite, on the device.
        """
        # Gradients that were dropped, because a step was skipped, take their factors with them.
        gradients = [values_of(part.tensor.grad) for part in self._scaled() if part.tensor.grad is not None]
        if not gradients:
            self._notes.clear()
        fresh = torch.stack(list(torch._foreach_norm(gradients, 1))).sum() == 0 if gradients and self._notes else None
        self._notes.append(_Note(dict(factors), finite, fresh))

    def remove(self) -> None:
        """Remove the hooks from the optimiser."""
        for handle in self._handles:
            handle.remove()

    def _scaled(self) -> list[ParameterPart]:
        """List every part once that the factors apply to and the optimiser moves."""
        held = {id(tensor) for tensor in tensors_held(self.optimizer)}
        every = (part for parts in self._parts().values() for part in parts)
        return list({part.key: part for part in every if id(part.tensor) in held}.values())

    def _save(self, *_: object) -> None:
        # Factors come later: Lightning runs the model inside the step, in a closure.
        self._before = [(part, part.of(part.tensor.detach()).clone()) for part in self._scaled()]

    @torch.no_grad()
    def _blend(self, *_: object) -> None:
        if self._notes:
            factors = self._factors()
            for part, before in self._before:
                now = part.of(part.tensor.detach())
                # lerp is exact at both ends: a factor of one changes no bit, a factor of zero restores every bit.
                now.copy_(torch.lerp(before, now, factors[part.key].to(now.dtype)))
        self._before, self._notes = [], []

    def _factors(self) -> dict[tuple[int, int], Tensor]:
        """Return the mean over backward passes that were not skipped, and over the owners of a shared tensor."""
        counted: list[Tensor] = []  # on the device: the notes of gradients that this step is made of
        dropped: Tensor | None = None
        for note in reversed(self._notes):
            counted.insert(0, note.finite if dropped is None else note.finite & ~dropped)
            if note.fresh is not None:
                dropped = note.fresh if dropped is None else dropped | note.fresh
        counts = torch.stack(counted)
        owned: dict[tuple[int, int], list[Tensor]] = {}
        for name, parts in self._parts().items():
            noted = torch.stack([note.factors[name] for note in self._notes])
            mean = torch.where(counts, noted, 0).sum() / counts.sum().clamp(min=1)
            for part in parts:
                owned.setdefault(part.key, []).append(mean)
        return {key: torch.stack(means).mean() for key, means in owned.items()}

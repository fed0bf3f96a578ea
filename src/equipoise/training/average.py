"""The average of a model's weights over the steps of a run: validated, selected and returned in their place."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn


@final
class WeightAverage:
    """An exponential moving average of the weights, updated on the device after each step.

    After step t, counted from 0, it is d · average + (1 − d) · weights with d = min(decay, (1 + t) / (10 + t)): at
    first it follows the weights closely, and forgets where they started. Running statistics of batch normalisation
    are averaged alike, since they belong to the weights; all other buffers stay as the model has them.

    Everything is changed in place, so that a CUDA graph can hold the update.

    Args:
        model: As the optimiser moves it; the same tensors all along.
        decay: The largest d.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        running = [one for part in norms for one in (part.running_mean, part.running_var) if one is not None]
        weights = [one.detach() for one in model.parameters() if one.requires_grad]
        self._decay = decay
        self._moving = [*weights, *running]
        self._average = [one.clone() for one in self._moving]
        self._steps = torch.zeros((), device=self._moving[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """Follow the weights after a step. Nothing here waits for the device."""
        decay = ((1 + self._steps) / (10 + self._steps)).clamp(max=self._decay)
        change = torch._foreach_sub(self._moving, self._average)
        torch._foreach_mul_(change, 1 - decay)
        torch._foreach_add_(self._average, change)
        self._steps += 1

    @torch.no_grad()
    def apply(self) -> None:
        """Write the average into the model."""
        torch._foreach_copy_(self._moving, self._average)

    @contextmanager
    def applied(self) -> Generator[None]:
        """Give the model its average for a while; then it has its own weights again, to the bit."""
        held = [one.clone() for one in self._moving]
        self.apply()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._moving, held)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the rest of a run depends on."""
        return {"steps": self._steps, "average": self._average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, in place."""
        own: list[Tensor] = [self._steps, *self._average]
        with torch.no_grad():
            for mine, stored in zip(own, [state["steps"], *state["average"]], strict=True):
                mine.copy_(stored)

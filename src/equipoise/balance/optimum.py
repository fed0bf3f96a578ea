"""Estimates of f*, the loss each modality could reach alone, which the paper's gaps f_k − f*_k need and it never gives.

Zero, and numbers per modality, need no code: ``MIMO(optimum=None)`` and ``MIMO(optimum={"audio": 0.3, "video":
0.1})``. Here are the others. (A running minimum is not offered: it makes every gap zero, and MIMO a plain average.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor


@torch.no_grad()
def least_squares(inputs: Mapping[str, Tensor], target: Tensor, *, intercept: bool = False) -> dict[str, float]:
    """The exact optimum of linear encoders with linear heads under the mean squared error.

    Args:
        inputs: Per modality an array [N, D].
        target: What is regressed on, [N] or [N, outputs].
        intercept: Whether the model has biases.

    Returns:
        Per modality the smallest mean of (target − prediction)² over samples and outputs.

    Example:
        >>> least_squares({"ruler": torch.tensor([[1.0], [2.0]])}, torch.tensor([2.0, 4.0]))["ruler"] < 1e-12
        True
    """
    optimum = {}
    wanted = target.double().reshape(len(target), -1)
    for name, array in inputs.items():
        if array.dim() != 2 or len(array) != len(target):
            msg = f"least_squares: {name!r} should be an array [{len(target)}, D], found {tuple(array.shape)}"
            raise ValueError(msg)
        known = array.double()
        if intercept:
            known = torch.cat([known, torch.ones_like(known[:, :1])], dim=1)
        # The pseudo-inverse gives the optimum for dependent columns too.
        residual = wanted - known @ (torch.linalg.pinv(known) @ wanted)
        optimum[name] = float(residual.square().mean())
    return optimum


@final
class Trajectory:
    """What uni-modal models reached at each step, f*_k(t), so that a hard sensor is not asked for what it cannot give.

    Record it while training uni-modally (`Unimodal`), then give it to MIMO: ``MIMO(optimum=trajectory)``. After its
    last step it stays at its final value. ``final`` gives the numbers at the end, for
    ``MIMO(optimum=trajectory.final())``.

    Args:
        smooth: Losses of single batches are noisy; each value is the mean over this many steps up to it.

    Example:
        >>> trajectory = Trajectory(smooth=2)
        >>> for step in range(3):
        ...     trajectory.record({"audio": torch.tensor(3.0 - step)})
        >>> trajectory.values()["audio"]
        tensor([3.0000, 2.5000, 1.5000])
        >>> trajectory.final()
        {'audio': 1.5}
    """

    def __init__(self, smooth: int = 20) -> None:
        if smooth < 1:
            msg = f"smooth: expected at least one step, found {smooth}"
            raise ValueError(msg)
        self.smooth = smooth
        self._losses: dict[str, list[Tensor]] = {}

    def record(self, losses: Mapping[str, Tensor]) -> None:
        """Note the losses of one step, as given to the balancer. Nothing waits for the device."""
        for name, loss in losses.items():
            if name != "fused":
                self._losses.setdefault(name, []).append(loss.detach().mean().float())

    def values(self) -> dict[str, Tensor]:
        """f*_k(t) per modality, as one tensor of all steps."""
        if not self._losses:
            msg = "trajectory: nothing was recorded; call trajectory.record(losses) in each step of the uni-modal run"
            raise ValueError(msg)
        return {name: _moving_mean(torch.stack(losses), self.smooth) for name, losses in self._losses.items()}

    def final(self) -> dict[str, float]:
        """What each uni-modal model had reached in the end."""
        return {name: float(values[-1]) for name, values in self.values().items()}


def _moving_mean(values: Tensor, width: int) -> Tensor:
    sums = torch.cat([values.new_zeros(1, dtype=torch.float64), values.double().cumsum(0)])
    ends = torch.arange(1, len(values) + 1, device=values.device)
    starts = (ends - width).clamp(min=0)
    return ((sums[ends] - sums[starts]) / (ends - starts)).float()

"""Methods that compare each modality with what it could reach alone, f*, and the sources of that number.

Zero and numbers are known beforehand. A `Trajectory` was recorded in a uni-modal run. A twin is a uni-modal model that
trains beside: `track` tells its losses, and f* is their running mean.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.coefficients import Losses, Tensors
from equipoise.balance.kinds import Weighting
from equipoise.balance.presence import masked
from equipoise.balance.theory import Trajectory
from equipoise.util.annotated import ReadBy
from equipoise.util.errors import BadInput

RECORDED = ("trajectory", "final")
"""Sources that need a uni-modal run before."""
SOURCES = ("zero", "twin", *RECORDED)
EXPECTED = (
    "optimum should be zero, twin, trajectory, final, a number for all modalities, or numbers by modality, such as "
    "audio:0.3,video:0.1"
)


def read_optimum(text: str) -> Any:
    """Read a source of f* from a word: its name, a number, or numbers by modality, ``audio:0.3,video:0.1``."""
    if text.lower() == "none":
        return None
    if text in SOURCES:
        return text
    try:
        if ":" not in text:
            return float(text)
        pairs = [pair.rpartition(":") for pair in text.split(",")]
        return {name.strip(): float(number) for name, _, number in pairs}
    except ValueError:
        raise BadInput(f"{EXPECTED}; found {text!r}") from None


Optimum: TypeAlias = Annotated[Mapping[str, float] | Trajectory | float | str | None, ReadBy(read_optimum)]


@torch.no_grad()
def means_over_ranks(
    losses: Tensors, present: Tensors | None, modalities: Sequence[str], group: collectives.Group = "world"
) -> tuple[Tensor, Tensor]:
    """Return the mean loss of each modality over the samples of all ranks that have it, and their number.

    Args:
        losses: By modality one value per sample, or a scalar.
        present: Masks of samples that have the sensor; a modality without one is complete.
        modalities: Their names, in order.
        group: The ranks.
    """
    rows = [losses[name].detach().float().reshape(-1) for name in modalities]
    masks = [None if present is None or name not in present else present[name].bool() for name in modalities]
    sums = torch.stack([row.sum() for row in masked(rows, masks, 0.0)])
    pairs = zip(rows, masks, strict=True)
    counts = torch.stack([row.new_full((), len(row)) if mask is None else mask.to(row).sum() for row, mask in pairs])
    sums, counts = collectives.total(torch.stack([sums, counts]), group).unbind()
    return sums / counts.clamp(min=1), counts


class OptimumWeighting(Weighting, ABC):
    """Base of the methods that have an optimum f*_k for each modality.

    Args:
        optimum: None or "zero"; a number for all, or numbers by modality; a `Trajectory`; "twin" for a uni-modal model
            beside, whose losses `track` is told; "trajectory" or "final" for a uni-modal run that `refer` is told.
        smooth: Steps over which the losses of a twin are averaged; 1 for a method that averages gaps itself, and takes
            those of a trajectory as they were recorded too: a mean of the past lags behind.
        every: A twin of `equipoise.training.train` trains on every so many samples of each batch.
    """

    optimum: Tensor
    step: Tensor
    tracked: Tensor

    def __init__(self, optimum: Optimum, smooth: int = 10, every: int = 5) -> None:
        super().__init__()
        self.source = optimum if isinstance(optimum, str) else "given" if optimum is not None else "zero"
        self.smooth, self.every = smooth, every
        self._told = self.source in ("zero", "given")
        if isinstance(optimum, Trajectory):
            self.refer(optimum)
        elif isinstance(optimum, Mapping):
            self._give(optimum)
        else:
            self.add_state("optimum", (1,), fill=float(optimum) if isinstance(optimum, (int, float)) else 0.0)
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64))
        self.add_state("tracked")

    @property
    def remarks(self) -> dict[str, str]:
        """A note for a row of results: the source of f*, where it was not given."""
        sources = {"twin": f"a uni-modal twin, on one in {self.every} samples", "trajectory": "a uni-modal run before"}
        sources["final"] = "the end of a uni-modal run before"
        return {"optimum": sources[self.source]} if self.source in sources else {}

    @staticmethod
    def optimum_rule(optimum: Any) -> tuple[bool, str, object]:
        """Return the rule that `check_arguments` needs for the optimum."""
        number = isinstance(optimum, (int, float)) and not isinstance(optimum, bool)
        known = optimum is None or isinstance(optimum, (Mapping, Trajectory)) or number
        known = known or (isinstance(optimum, str) and optimum in SOURCES)
        words = "optimum should be None or 'zero', 'twin', 'trajectory', 'final', a number, numbers by modality, "
        return known, words + "{'audio': 0.3, …}, or a Trajectory", optimum

    def refer(self, trajectory: Trajectory) -> None:
        """Take f* from a uni-modal run: at the same step, or, where ``optimum="final"``, at its end."""
        by_step = trajectory.losses() if self.smooth == 1 else trajectory.values()
        self._give(trajectory.final() if self.source == "final" else by_step)

    def _give(self, rows: Mapping[str, float | Tensor]) -> None:
        known = {name: torch.as_tensor(row, dtype=torch.float64).reshape(-1).cpu() for name, row in rows.items()}
        modalities, device = self.modalities, self.epoch.device
        self.add_given_state("optimum", known)
        if modalities:  # which are settled once: the rows are laid out here
            absent = [name for name in modalities if name not in known]
            if absent:
                raise ValueError(f"optimum: expected one entry for each of {list(modalities)}, found none for {absent}")
            self.optimum = torch.stack([known[name] for name in modalities]).to(device)
        self._told = True

    @torch.no_grad()
    def track(self, losses: Tensors, present: Tensors | None = None) -> None:
        """Take the losses of a uni-modal twin: f* is their running mean. Nothing waits for the device.

        Args:
            losses: Of this step, by modality, one value per sample or scalars; a fused one is left alone.
            present: Masks of samples that have the sensor, as the balancer is given them.
        """
        if not self.modalities:
            names = [name for name in losses if name != "fused"]
            self.settle(names, next(iter(losses.values())).device)
        means, counts = means_over_ranks(losses, present, self.modalities, self.group)
        # A mean of all at first, then one that forgets. A sensor that no sample has stays where it was, and so does one
        # whose twin diverges: the model need not.
        known = (counts > 0) & means.isfinite()
        self.tracked += known
        share = torch.where(known, 1.0 / self.tracked.clamp(min=1, max=self.smooth).to(means.dtype), 0.0)
        means = torch.where(known, means, 0.0)
        self.optimum.copy_(torch.lerp(self.optimum[:, 0].to(means.dtype), means, share)[:, None])
        self._told = True

    def on_backward(self, losses: Losses, finite: Tensor) -> None:  # noqa: ARG002
        """Move along the trajectory with each backward pass, where no optimiser tells of steps."""
        if not self.follows_optimizer:
            self.step += finite

    def on_step(self, taken: Tensor | int) -> None:
        """Move along the trajectory with the optimiser, so that a skipped step does not count."""
        self.step += taken

    def optimum_now(self) -> Tensor:
        """Return f*_k at the present step, one value per modality.

        Raises:
            RuntimeError: If f* was to come from elsewhere and has not been told.
        """
        if not self._told:
            calls = {
                "twin": "balancer.track(losses of a uni-modal model that trains beside, of each step)",
                "trajectory": "balancer.refer(trajectory) before training",
                "final": "balancer.refer(trajectory) before training",
            }
            raise RuntimeError(
                f"{type(self).__name__}(optimum={self.source!r}): `equipoise.training.train` and the command tell it "
                f"by themselves; in a loop of your own, type {calls[self.source]}"
            )
        if self.optimum.shape[1] == 1:
            return self.optimum[:, 0]
        return self.optimum.index_select(1, self.step.clamp(max=self.optimum.shape[1] - 1))[:, 0]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(f"{prefix}optimum")
        if saved is not None and self.optimum.shape[1:] != saved.shape[1:]:  # a trajectory that is not told yet
            self._rows["optimum"] = saved.new_zeros(saved.shape[1:])
            self.optimum = saved.new_zeros(len(self.modalities), *saved.shape[1:])
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._told = self._told or saved is not None

"""Compiling the encoders of a run, where it is long enough to earn the wait back and measures faster."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import final

import torch
from torch.utils._triton import has_triton

from equipoise.models.fusion_model import FusionModel
from equipoise.training.settings import Settings

RATIO = 0.8
"""The expected time of a compiled epoch, as a share of one as written, until it is measured."""
COST = 60.0
"""Seconds that compiling is expected to take."""
KEEPS = 0.97
"""Compiled encoders stay only if an epoch takes less than this part of what it took."""


def pays(left: float) -> bool:
    """Return whether compiling is likely to save twice what it costs in the rest of a run.

    Args:
        left: Seconds the rest would take as written.

    Example:
        >>> pays(300.0), pays(3000.0)
        (False, True)
    """
    return left * (1 - RATIO) > 2 * COST


@final
class Compiler:
    """Watches the epochs of a run, and compiles its encoders when that pays.

    Args:
        model: Whose encoders.
        settings: Of the run: compile=true at once, false never, "auto" on a GPU when it pays.
        sharded: Whether each process holds a shard of the model, which is never compiled.
    """

    def __init__(self, model: FusionModel, settings: Settings, *, sharded: bool = False) -> None:
        self._model, self._epochs = model, settings.passes
        self._may_benchmark = model.committee.is_cuda and not settings.deterministic
        self._plain_seconds, self._tried_at = 0.0, 0
        reasons = {
            "each process holds a piece of the model": sharded,
            "compile=false": settings.compile is False,
            "on a GPU only, unless compile=true": not model.committee.is_cuda,
            "deterministic=true": settings.deterministic,
        }
        why_not = next((why for why, applies in reasons.items() if applies), None)
        if why_not is None:  # which takes a while to find out
            why_not = "" if has_triton() else "triton is not installed"
        self._watches = not why_not and settings.compile == "auto"
        self.outcome = f"no: {why_not or 'not an epoch was left to measure'}"
        if settings.compile is True and not sharded:
            model.compile_encoders(steady=True)
            self.outcome = "yes"

    @contextmanager
    def benchmarking(self, *, full: bool) -> Generator[None]:
        """Let cuDNN time all its convolutions in a step, where encoders are compiled.

        That takes ten seconds for every new shape of batch and saves 3 % of a step: it pays where compiling does.

        Args:
            full: Whether the batch has the size that most have.
        """
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = before or (full and self._may_benchmark and self.outcome[:2] != "no")
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def update(self, seconds: float, epoch: int, *, whole: bool) -> bool:
        """Decide after an epoch whether to compile, or to undo it; return whether the step has changed.

        Args:
            seconds: Duration of the epoch.
            epoch: Its number, from one.
            whole: Whether they are those of a whole epoch.
        """
        if not self._watches or not whole or epoch == 1:  # the first one warms up
            return False
        if not self._tried_at:
            first, self._plain_seconds = not self._plain_seconds, seconds
            left = (self._epochs - epoch) * seconds
            if not pays(left):
                self.outcome = f"no: {left:.0f} s were left, too few to be worth it" if first else self.outcome
                return False
            self._model.compile_encoders(steady=True)
            self.outcome, self._tried_at = "on trial", epoch
            return True
        if epoch == self._tried_at + 1:  # which compiled
            return False
        self._watches = False
        ratio = seconds / self._plain_seconds
        if ratio < KEEPS:
            self.outcome = f"yes: an epoch takes {ratio:.2f} of its time"
            return False
        self._model.uncompile_encoders()
        self.outcome = f"no: an epoch took {ratio:.2f} of its time"
        return True

"""The budget of a portfolio on CPUs, in steps of the optimiser, from the shapes of the data."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from equipoise.data.splits import Splits
from equipoise.models.choose import build_encoders
from equipoise.training.launch import device_of
from equipoise.training.recipe import steps_for
from equipoise.training.settings import Settings

WORTH_TRAINING = 60
"""Steps below which a network learns less than closed-form heads know."""
ALLOWED = 12.0
"""Computing time of all trainings of a portfolio on CPUs, in times that of MiniRocket and ridge regression."""


def affordable_steps(splits: Splits, settings: Settings) -> int:
    """Return the steps of the longest training of a portfolio, two of which it may take in all; 0 where few are left.

    On a GPU it is the budget of any run. On CPUs all trainings together are to take at most about twelve times as long
    as MiniRocket and ridge regression of the same data do on one core; both are estimated from shapes, so that the
    number is the same on every machine.

    Args:
        splits: The data.
        settings: Of the run.
    """
    budget = steps_for(len(splits.train))
    if settings.model != "auto" or device_of(settings) != "cpu":
        return budget
    seconds = ALLOWED * _anchor_seconds(splits) / 2
    steps = int(seconds / _step_seconds(splits, settings))
    return min(budget, steps) if steps >= WORTH_TRAINING else 0


def _anchor_seconds(splits: Splits) -> float:
    """Estimate the seconds of MiniRocket with 4,000 features a sensor, and of ridge regression on all of them."""
    every = sum(map(len, splits.parts.values()))
    series = [shape[1] for shape in splits.shapes.values() if len(shape) > 1]
    transform = sum(every * 4000 * (6e-8 + 6e-10 * steps) for steps in series)
    features = sum(4000 if len(shape) > 1 else shape[0] for shape in splits.shapes.values())
    samples = len(splits.train)
    rank = min(samples, features)
    ridge = (2 * samples * features * rank + 10 * rank**3) / 5e10
    return max(transform + ridge, 0.8)


def _step_seconds(splits: Splits, settings: Settings) -> float:
    """Estimate the seconds of a training step on one core from the operations of its encoders."""
    operations = 0
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        encoders = build_encoders(settings.encoder, splits.shapes, settings.features)
        one = splits.train.take(torch.arange(1)).ready().inputs
        for name, encoder in encoders.items():
            with FlopCounterMode(display=False) as counter:
                encoder.eval()(one[name])
            operations += counter.get_total_flops()
    return 4e-3 * len(encoders) + 3 * settings.batch * operations / 3e10

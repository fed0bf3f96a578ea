"""The recipe that needs no tuning: settings for data of one's own, with a budget in steps of the optimiser.

AdamW with decoupled weight decay, a warm-up and a cosine moved at every step, an average of the weights, label
smoothing, and augmentation by the kind of sensor. The last epoch is kept: where few people validate, the one of the
least loss there came too early (`select=loss` takes it). None of it was chosen by a test part.
"""

from equipoise.data.feed import epoch_steps
from equipoise.training.settings import Settings

RECIPE = Settings(
    epochs="auto",
    batch=64,
    lr=2e-3,
    optimizer="adamw",
    weight_decay=0.05,
    schedule="warmup-cosine",
    average=0.999,
    clip=5.0,
    label_smoothing=0.1,
    augment="auto",
    select="last",
)
LEAST_STEPS, MOST_STEPS = 1_200, 20_000
MOST_EPOCHS = 400
"""Of data so small that a pass takes a step or two: every one is followed by a validation."""


def steps_for(samples: int) -> int:
    """Return the budget of a run in steps of the optimiser, by the number of training samples.

    1,500 · (n / 1,000)^0.4, from 1,200 to 20,000: a thousand times the samples gets sixteen times the steps, and so
    fewer passes.

    Example:
        >>> [steps_for(samples) for samples in (300, 1_000, 10_000, 100_000, 1_000_000)]
        [1200, 1500, 3768, 9464, 20000]
    """
    return min(max(round(1_500 * (samples / 1_000) ** 0.4), LEAST_STEPS), MOST_STEPS)


def epochs_for(samples: int, batch: int) -> int:
    """Return the number of epochs whose steps come nearest to the budget, at least one and at most 400.

    Args:
        samples: Of the training part.
        batch: Samples per step.

    Example:
        >>> [epochs_for(samples, 64) for samples in (300, 1_000, 10_000, 100_000)]
        [240, 94, 24, 6]
    """
    return min(max(round(steps_for(samples) / max(epoch_steps(samples, batch), 1)), 1), MOST_EPOCHS)


def resolved(settings: Settings, samples: int, steps: int | None = None) -> Settings:
    """Return the settings with the number of epochs that "auto" stands for; the same where it is a number.

    Args:
        settings: Of a run.
        samples: Of its training part.
        steps: The budget, where it is not that of `steps_for`.
    """
    if settings.epochs != "auto":
        return settings
    epochs = epochs_for(samples, settings.batch)
    if steps is not None:
        epochs = min(epochs, round(steps / max(epoch_steps(samples, settings.batch), 1)))
    return settings.changed({"epochs": epochs})

"""The one loop: any method, any data, on Accelerate.

`train` is the story; `equipoise.training.run` has its words. The test part is never touched here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from equipoise.balance.balancer import Balancer
from equipoise.data.splits import Splits
from equipoise.training.machinery import SharedState, accelerate_state
from equipoise.training.resuming import resume, save
from equipoise.training.run import Record as Record
from equipoise.training.run import Run
from equipoise.training.run import Trained as Trained
from equipoise.training.settings import Settings
from equipoise.training.step import build_model as build_model
from equipoise.training.step import evaluate as evaluate
from equipoise.training.step import losses_of as losses_of
from equipoise.training.step import step_losses as step_losses
from equipoise.training.tracking import Trackers


def train(
    splits: Splits,
    balancer: Balancer,
    settings: Settings | None = None,
    *,
    seed: int = 0,
    folder: Path | None = None,
    on_epoch: Callable[[Record], None] | None = None,
    checkpoint_seconds: float = 10.0,
    trackers: Trackers | None = None,
) -> Trained:
    """Train a model on the training part, watching the validation part.

    Where `torchrun` or `accelerate launch` started this process, all of them train one model together.

    Args:
        splits: The data.
        balancer: The method; a fresh one for each run.
        settings: How to build and train the model.
        seed: Of weights, batches and dropout.
        folder: Where to keep checkpoints. A run that finds one there goes on from it, to the same bits on a CPU.
        on_epoch: Called after each epoch with what it showed; of several processes, in the first alone.
        checkpoint_seconds: Least time between two checkpoints.
        trackers: Where to log every epoch: `Trackers(("tensorboard",))`.

    Raises:
        TypeError: If the method is a name or a class.

    Example:
        >>> from equipoise import MIMO
        >>> from equipoise.data.sets.generated import two_sensors
        >>> result = train(two_sensors(samples=60), MIMO(), Settings(epochs=2, batch=20))
        >>> sorted(result.curves[-1]["validation"])
        ['easy', 'fused', 'hard']
    """
    if not isinstance(balancer, Balancer):
        name = balancer.__name__ if isinstance(balancer, type) else "MIMO"
        raise TypeError(f"train expected a method that was made, such as {name}(); found {balancer!r}.")
    settings = settings or Settings()
    state: SharedState = {}
    with accelerate_state(state):
        run = Run(splits, balancer, settings, seed, folder, trackers or Trackers(), checkpoint_seconds)
        resume(run)
        while run.epoch < settings.epochs and not run.finished():
            run.choose_step()
            record = run.look(run.one_epoch())
            if on_epoch is not None and run.leads:
                with accelerate_state(state):  # of the caller, whose function this is
                    on_epoch(record)
            if run.cadence.due(checkpoint_seconds) or run.epoch == settings.epochs:
                save(run)
        return run.result()

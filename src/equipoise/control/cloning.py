"""Behaviour cloning: demonstrations as data whose label is the chunk of the next actions.

Parts share no episode. A chunk that reaches beyond the end of its episode repeats the last action.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from equipoise.data.part import Part
from equipoise.data.splits import Splits
from equipoise.data.views import Rescaled
from equipoise.models.task import Regression
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput, raise_all

if TYPE_CHECKING:
    from equipoise.control.demonstrations import Demonstrations

SENSORS = ("proprioception", "camera", "force")
AXES = ("x", "y", "z")
CHUNK = 8
"""Actions that a policy predicts at once, at 20 Hz."""
HELD_OUT = 10
"""One episode of so many is for validation, and one for test."""
ENCODERS = {
    "proprioception": "mlp",
    "camera": "equipoise.control.encoders.SpatialSoftmaxCNN",
    "force": "equipoise.control.encoders.FlatMLP",
}
PIXEL = Rescaled(1 / 255)
SETTINGS = Settings(
    epochs=30,
    batch=256,
    lr=1e-3,
    optimizer="adamw",
    weight_decay=1e-4,
    schedule="warmup-cosine",
    precision="fp32",  # a millimetre is a sixtieth of the range: half precision would lose it
    loss="mse",
    metric="rmse",
    features=64,
)
"""How every policy is trained."""


def settings_for(sensors: Sequence[str], settings: Settings = SETTINGS) -> Settings:
    """Return settings with the encoders of these sensors, but for those that are named."""
    words = [word.strip() for word in settings.encoder.split(",")]
    if settings.encoder != "auto" and ":" not in settings.encoder:
        return settings  # one kind for all
    named = {name: kind for name, _, kind in (word.partition(":") for word in words)}
    kinds = ENCODERS | named
    return settings.changed({"encoder": ",".join(f"{name}:{kinds[name]}" for name in sensors)})


def action_chunks(action: np.ndarray, episode: np.ndarray, horizon: int = CHUNK) -> np.ndarray:
    """Return the next actions from each step on, [N, horizon · axes], the steps of an episode lying together.

    Args:
        action: [N, axes].
        episode: The number of each step's episode, [N].
        horizon: Actions of a chunk.

    Example:
        >>> action_chunks(np.array([[1.0], [2.0], [3.0]]), np.array([0, 0, 1]), horizon=2).tolist()
        [[1.0, 2.0], [2.0, 2.0], [3.0, 3.0]]
    """
    ends = np.append(np.flatnonzero(np.diff(episode)), len(episode) - 1)
    last = np.repeat(ends, np.diff(ends, prepend=-1))
    rows = np.minimum(np.arange(len(action))[:, None] + np.arange(horizon), last[:, None])
    return action[rows].reshape(len(action), -1)


def first_held_out(episode: np.ndarray) -> tuple[int, int]:
    """Return the first step of the episodes for validation, and that of those for test, of steps in order."""
    episodes = np.unique(episode)
    held_out = max(1, len(episodes) // HELD_OUT)
    validation, test = np.searchsorted(episode, episodes[[-2 * held_out, -held_out]])
    return int(validation), int(test)


def cloning_splits(
    demonstrations: "Demonstrations", sensors: Sequence[str] = SENSORS, horizon: int = CHUNK, source: str = ""
) -> Splits:
    """Return demonstrations as data for behaviour cloning, the last episodes for test, those before for validation.

    Numbers are standardised by the training part; pictures stay bytes, and are scaled batch by batch on the device.

    Args:
        demonstrations: Of the expert.
        sensors: Those that the policy has.
        horizon: Actions of a chunk.
        source: A fingerprint of the demonstrations, where there is one.

    Raises:
        BadInput: If a sensor is unknown, or there are too few episodes.
    """
    problems = [f"unknown sensor {name!r}; expected some of {', '.join(SENSORS)}" for name in {*sensors} - {*SENSORS}]
    episodes = np.unique(demonstrations.episode)
    if len(episodes) < 3:
        problems.append(f"demonstrations: expected 3 episodes or more, one for each part, found {len(episodes)}")
    raise_all(problems)
    held_out = max(1, len(episodes) // HELD_OUT)
    if (np.diff(demonstrations.episode) < 0).any():
        raise BadInput("demonstrations: expected episodes in the order of their numbers, found others")
    label = action_chunks(np.asarray(demonstrations.action), demonstrations.episode, horizon)

    def part(start: int, stop: int) -> Part:
        rows = slice(start, stop)
        # Copies, of which no part of a read-only memory map is left.
        inputs = {name: torch.from_numpy(np.array(getattr(demonstrations, name)[rows])) for name in sensors}
        return Part(
            inputs,
            torch.from_numpy(label[rows].astype(np.float32)),
            torch.from_numpy(np.array(demonstrations.episode[rows], dtype=np.int64)),
            views={"camera": PIXEL} if "camera" in sensors else {},
            index=torch.arange(start, stop),
        )

    first, second = first_held_out(demonstrations.episode)
    train, validation, test = part(0, first), part(first, second), part(second, len(label))
    names = tuple(f"{axis}{step}" for step in range(horizon) for axis in AXES)
    deviation, mean = torch.std_mean(train.label.double(), dim=0)
    task = Regression(names, mean, deviation.clamp(min=1e-6))
    about = f"{len(episodes)} episodes, the last {held_out} for test and {held_out} before them for validation"
    splits = Splits("plug", train, validation, test, names, about, task=task).standardised()
    return replace(splits, source=source)

"""Films of single episodes: one policy in one condition, with the force at the wrist, as an animated picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from equipoise.control import worker
from equipoise.control.camera import Renderer
from equipoise.control.conditions import CONDITIONS, Condition
from equipoise.control.controller import Controller
from equipoise.control.lines import titled
from equipoise.control.policy import Policy
from equipoise.control.scene import CONTROL_STEP, FORCE_SAMPLES, JAM_FORCE
from equipoise.control.simulator import Simulator
from equipoise.util.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image

SIZE, SMALLEST = 192, 64  # pixels of a picture, each way
EVERY = 2  # control steps from one picture to the next
PAUSE = 1.5  # seconds for which the end stands still
FULL = 20.0  # N, a full bar
MARGIN, LINE, BAR = 6, 15, 9  # pixels: around a picture, of a line of text, of the force bar
COLOURS = 64
PAPER, INK, QUIET, FAINT = (255, 255, 255), (31, 35, 40), (89, 99, 110), (225, 229, 233)
BLUE, ORANGE, GREEN, RED = (11, 92, 173), (217, 111, 20), (26, 127, 55), (164, 14, 38)
STORY = (("clean", (True,)), ("clean", (False,)), ("camera_lost_committee", (True, False)))
"""The episodes of a film: condition, and the results that will do, the best first.

One that works, one that fails, and one that loses its camera.
"""


@final
@dataclass(frozen=True)
class FilmedEpisode:
    """An episode with its pictures.

    Args:
        line: The policy's name.
        condition: Its name.
        seed: Of the episode.
        frames: uint8 [F, height, width, 3], one every `EVERY` control steps from the start, and the end.
        frame_steps: The control step of each frame.
        force: Size of the force at the wrist in N, `FORCE_SAMPLES` for each control step.
        success: Whether the peg went in.
        failed_at: The control step from which on a sensor was dead or lost; None where none was.
    """

    line: str
    condition: str
    seed: int
    frames: np.ndarray
    frame_steps: tuple[int, ...]
    force: np.ndarray
    success: bool
    failed_at: int | None = None

    @property
    def seconds(self) -> float:
        """Its simulated time."""
        return len(self.force) / FORCE_SAMPLES * CONTROL_STEP

    def force_at(self, frame: int) -> float:
        """Return the largest force since the frame before, in N."""
        until = self.frame_steps[frame] * FORCE_SAMPLES
        since = self.frame_steps[frame - 1] * FORCE_SAMPLES if frame else 0
        return float(self.force[since:until].max(initial=0.0))


def record(
    policy: Policy, condition: Condition, seed: int, *, line: str = "", size: int = SIZE, renderer: Renderer = "auto"
) -> FilmedEpisode:
    """Roll a policy out in one episode of this process, and keep what is to be seen.

    Args:
        policy: Acts.
        condition: Of the episode.
        seed: Of the episode, as in rollouts.
        line: The policy's name.
        size: Of a picture, in pixels each way.
        renderer: That of the policy's demonstrations.

    Raises:
        BadInput: If the condition asks for sensors that the policy has not.
    """
    if not condition.suits(policy.sensors):
        found = ", ".join(policy.sensors)
        raise BadInput(f"condition {condition.name}: expected a policy with its sensors and another, found {found}")
    episode, controller = worker.Episode(Simulator(renderer)), Controller(policy, 1)
    simulator = episode.simulator
    controller.begin(0, condition)
    observed = episode.move(_order(worker.RESET, condition, seed))
    frames, steps, force = [simulator.picture(size, size)], [0], [np.zeros(0)]
    while not simulator.done:
        action = controller.act({name: torch.from_numpy(values[None]) for name, values in observed.items()})[0]
        observed = episode.move(_order(worker.STEP, condition, seed, action))
        # From the simulator itself: what the policy observes may be late or dead.
        force.append(np.linalg.norm(simulator.observe()["force"][:3], axis=0))
        if simulator.steps % EVERY == 0 or simulator.done:
            frames.append(simulator.picture(size, size))
            steps.append(simulator.steps)
    return FilmedEpisode(
        line,
        condition.name,
        seed,
        np.stack(frames),
        tuple(steps),
        np.concatenate(force),
        simulator.success,
        condition.since if condition.dead or condition.lost else None,
    )


def _order(command: int, condition: Condition, seed: int, action: Any = 0.0) -> np.void:
    """Return an order to an episode, as rollouts write it into shared memory."""
    dead = worker.NONE if condition.dead is None else list(worker.SENSORS).index(condition.dead)
    order = (command, seed, condition.holes == "unseen", dead, condition.since, condition.delay, action)
    return np.array([order], worker.ORDER)[0]


def films(policy: Policy, row: Mapping[str, Any]) -> list[FilmedEpisode]:
    """Record the episodes that `choose_episodes` chooses for a policy, by the row of its results.

    A policy alone may differ in the last bit from one that acts in many episodes at once, so that an episode may once
    in a while end otherwise than in the row; a recording says what is to be seen in it.
    """
    renderer = row["task"]["renderer"]
    return [record(policy, *chosen, line=row["line"], renderer=renderer) for chosen in choose_episodes(row)]


def choose_episodes(
    row: Mapping[str, Any], story: Sequence[tuple[str, Sequence[bool]]] = STORY
) -> list[tuple[Condition, int]]:
    """Choose episodes for a film from the rollouts of a policy: of each condition and result, the first.

    Where a sensor is to fail, an episode that lasted until then.

    Args:
        row: Of the policy's results.
        story: Condition of each episode, and the results that will do; what never happened is left out.
    """
    chosen = []
    for name, results in story:
        rolled, condition = row["rollouts"].get(name, {}), CONDITIONS[name]
        ended = list(zip(*(rolled.get(column, ()) for column in ("seed", "success", "steps")), strict=True))
        fits = [
            seed
            for wanted in results
            for seed, success, steps in ended
            if success == wanted and steps > condition.since
        ]
        chosen += [(condition, seed) for seed in fits[:1]]
    return chosen


# -- the animated picture --


def write_gif(recordings: Sequence[FilmedEpisode], path: Path) -> Path:
    """Write episodes side by side as an animated GIF in real time; those that end first stand still.

    Args:
        recordings: With pictures of one size, at the same steps.
        path: Of the file, in a folder that exists.

    Raises:
        BadInput: If there is no recording, or their pictures differ in size or are too small for a caption.
    """
    shapes = sorted({recording.frames.shape[1:] for recording in recordings})
    if len(shapes) != 1 or min(shapes[0][:2]) < SMALLEST:
        found = ", ".join(f"{width} × {height}" for height, width, _ in shapes) or "none"
        expected = f"one or more with pictures of one size, {SMALLEST} pixels each way or more"
        raise BadInput(f"recordings: expected {expected}, found {found}")
    pictures = [_picture(recordings, number) for number in range(max(len(one.frames) for one in recordings))]
    from PIL.Image import Dither

    # One palette for all pictures: what stands still keeps its colours, and costs next to nothing.
    palette = _samples(pictures).quantize(COLOURS)
    first, *rest = (picture.quantize(palette=palette, dither=Dither.NONE) for picture in pictures)
    step = round(1e3 * EVERY * CONTROL_STEP)
    durations = [step] * len(rest) + [round(1e3 * PAUSE)]
    first.save(path, save_all=True, append_images=rest, duration=durations, loop=0, optimize=False)
    return path


def _picture(recordings: Sequence[FilmedEpisode], number: int) -> Image:
    """Draw all episodes at one time, side by side."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = recordings[0].frames.shape[1:3]
    whole = Image.new("RGB", ((width + MARGIN) * len(recordings) + MARGIN, height + 3 * LINE + 4 * MARGIN), PAPER)
    pen, letters = ImageDraw.Draw(whole), ImageFont.load_default(12)
    for place, recording in enumerate(recordings):
        left, at = MARGIN + place * (width + MARGIN), min(number, len(recording.frames) - 1)
        _caption(pen, letters, recording, at, left, width)
        top = 2 * LINE + 2 * MARGIN
        whole.paste(Image.fromarray(recording.frames[at]), (left, top))
        if _has_failed(recording, at):
            pen.rectangle((left, top, left + width - 1, top + height - 1), outline=ORANGE, width=3)
        _force_bar(pen, letters, recording.force_at(at), left, top + height + MARGIN, width)
    return whole


def _caption(pen: Any, letters: Any, recording: FilmedEpisode, at: int, left: int, width: int) -> None:
    """Write the line and the condition, and below them the time and what has happened so far."""
    title = ": ".join(part for part in (recording.line, titled(recording.condition)) if part)
    pen.text((left, MARGIN), _fitted(title, letters, width), fill=INK, font=letters)
    step = recording.frame_steps[at]
    said, colour = "", QUIET
    if at == len(recording.frames) - 1:
        said, colour = ("the peg is in", GREEN) if recording.success else ("not in: out of time", RED)
    elif _has_failed(recording, at):
        about = CONDITIONS[recording.condition]
        said, colour = f"{about.lost or about.dead} {'lost' if about.lost else 'dead'}", ORANGE
    pen.text((left, MARGIN + LINE), f"{step * CONTROL_STEP:.1f} s", fill=QUIET, font=letters)
    pen.text((left + 40, MARGIN + LINE), said, fill=colour, font=letters)


def _has_failed(recording: FilmedEpisode, at: int) -> bool:
    return recording.failed_at is not None and recording.frame_steps[at] >= recording.failed_at


def _fitted(text: str, letters: Any, width: int) -> str:
    """Shorten a text to a width in pixels."""
    whole = text
    while letters.getlength(text) > width:
        whole = whole[:-1]
        text = f"{whole}..."
    return text


def _force_bar(pen: Any, letters: Any, force: float, left: int, top: int, width: int) -> None:
    """Draw the force as a bar, with a mark where a jam begins to give way."""
    right = left + width - 40
    full = (right - left) / FULL
    pen.rectangle((left, top + 3, right, top + 3 + BAR), fill=FAINT)
    colour = ORANGE if force > JAM_FORCE else BLUE
    pen.rectangle((left, top + 3, left + round(min(force, FULL) * full), top + 3 + BAR), fill=colour)
    mark = left + round(JAM_FORCE * full)
    pen.line((mark, top, mark, top + BAR + 6), fill=INK)
    pen.text((right + 5, top), f"{force:.0f} N", fill=QUIET, font=letters)


def _samples(pictures: Sequence[Image]) -> Image:
    """Paste pictures of the whole course below one another."""
    from PIL import Image

    some = [pictures[0], pictures[len(pictures) // 3], pictures[2 * len(pictures) // 3], pictures[-1]]
    width, height = some[0].size
    whole = Image.new("RGB", (width, height * len(some)))
    for place, picture in enumerate(some):
        whole.paste(picture, (0, place * height))
    return whole

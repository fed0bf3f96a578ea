"""A trained model as a policy: observations in, chunks of actions out; and the action that is executed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final, get_args

import torch
from torch import Tensor

from equipoise.control.cloning import AXES, PIXEL
from equipoise.data.part import Part
from equipoise.data.splits import Splits
from equipoise.deploy.monitor import SensorMonitor
from equipoise.deploy.rebuilding import TensorSpec, differences, stored_tensors, weights_file
from equipoise.methods import EW, MSL
from equipoise.models.choose import KINDS, kinds_of
from equipoise.models.fusion_model import FusionModel
from equipoise.models.late_fusion import Unimodal
from equipoise.models.task import Regression
from equipoise.training.settings import Fusion, Settings
from equipoise.training.step import build_model
from equipoise.util.errors import BadInput, first_line, raise_all
from equipoise.util.extras import needs
from equipoise.util.files import inside, write_atomic
from equipoise.util.processes import memory_problem
from equipoise.util.schema import ANYTHING, TEXT, at_most, every, one_of, read_json, record, rule, short, whole

FORMAT = 1
KEPT = ("encoder", "features", "fusion", "objective", "loss")
"""Settings that a model is built by."""
DESCRIPTION, WEIGHTS, MONITOR = "policy.json", "policy.safetensors", "monitor.json"
NUMBER_READ = 512  # bytes that a number of an observation takes on its way through an encoder, about
OWN = "equipoise.control.encoders."
Scales = Mapping[str, tuple[Tensor, Tensor]]


class PredictedChunks(NamedTuple):
    """Chunks for a batch of B observations, in m/s, flat: [B, horizon · axes] each.

    Args:
        fused: Of the fused head.
        committee: Of the heads of the sensors at hand, and of the fused head where all are.
        heads: Of each sensor, [B, K, horizon · axes].
        radius: The radius of the interval around the committee's chunk, [B, horizon · axes].
    """

    fused: Tensor
    committee: Tensor
    heads: Tensor
    radius: Tensor


@final
class Policy:
    """A trained model with the scales of its sensors.

    Args:
        model: A regression of action chunks, with its committee fitted.
        settings: That it was built with.
        shapes: Of one observation of each sensor, as the simulator gives it.
        scales: Mean and deviation of the sensors that are standardised.
        monitor: Calibrated on validation data; None for none.
    """

    def __init__(
        self,
        model: FusionModel,
        settings: Settings,
        shapes: Mapping[str, Sequence[int]],
        scales: Scales,
        monitor: SensorMonitor | None = None,
    ) -> None:
        self.model, self.settings, self.monitor = model.eval(), settings, monitor
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        device = model.committee.device
        self.scales = {name: (mean.to(device), deviation.to(device)) for name, (mean, deviation) in scales.items()}

    @classmethod
    def of(cls, model: FusionModel, settings: Settings, splits: Splits, monitor: SensorMonitor | None = None) -> Policy:
        """Return the policy of a model that was trained on these splits."""
        shapes = {name: tuple(splits.train.inputs[name].shape[1:]) for name in splits.modalities}
        return cls(model, settings, shapes, splits.scales, monitor)

    @property
    def sensors(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self.shapes)

    @property
    def horizon(self) -> int:
        """Actions of a chunk."""
        return self.model.known_task().size // len(AXES)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.committee.device

    def to(self, device: torch.device | str) -> Policy:
        """Return the same policy with its model moved to a device."""
        return Policy(self.model.to(device), self.settings, self.shapes, self.scales, self.monitor)

    def watched_by(self, monitor: SensorMonitor | None) -> Policy:
        """Return the same policy with another monitor, or none."""
        return Policy(self.model, self.settings, self.shapes, self.scales, monitor)

    def inputs(self, observations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return observations [B, …] as the encoders read them; those of other sensors are left out."""
        read = {}
        for name in self.sensors:
            values = observations[name].to(self.device, non_blocking=True)
            if name in self.scales:
                mean, deviation = self.scales[name]
                values = (values - mean) / deviation
            read[name] = PIXEL(values, None, None) if name == "camera" else values
        return read

    @torch.no_grad()
    def predict(
        self, observations: Mapping[str, Tensor], present: Mapping[str, Tensor] | None = None
    ) -> PredictedChunks:
        """Predict the chunks of a batch in one pass.

        Args:
            observations: As the simulator gives them, [B, …] by sensor.
            present: Of sensors that are known to be missing, the rows that have them, booleans [B].
        """
        masks = {name: mask.to(self.device) for name, mask in (present or {}).items() if name in self.shapes}
        inputs = self.inputs(observations)
        outputs = self.model({**inputs, **{f"{name}_present": mask for name, mask in masks.items()}})
        task = self.model.known_task()
        members = {name: task.member(output) for name, output in outputs.items()}
        heads = torch.stack([members[name] for name in self.sensors], dim=1)
        radius = self.model.radius(masks, len(heads))
        return PredictedChunks(members["fused"], self.model.vote(members, masks), heads, radius)

    def save(self, folder: Path) -> None:
        """Write weights and description, the description last: a kill leaves no half of a policy."""
        with needs("a saved policy", "control"):
            import safetensors.torch

        content = {
            "format": FORMAT,
            "settings": {key: getattr(self.settings, key) for key in KEPT},
            "unimodal": self.model.unimodal,
            "horizon": self.horizon,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "scales": {name: [values.cpu().tolist() for values in scale] for name, scale in self.scales.items()},
        }
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = inside(folder, f"{WEIGHTS}.tmp")
        safetensors.torch.save_model(self.model, str(unfinished))
        unfinished.replace(inside(folder, WEIGHTS))
        if self.monitor is None:
            inside(folder, MONITOR).unlink(missing_ok=True)  # of another policy
        else:
            unfinished = inside(folder, f"{MONITOR}.tmp")
            self.monitor.save(unfinished)
            unfinished.replace(inside(folder, MONITOR))
        write_atomic(folder, DESCRIPTION, json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Policy:
        """Read what `save` wrote.

        Raises:
            BadInput: If the folder holds no policy, or one of code that is not of the package.
        """
        with needs("a saved policy", "control"):
            import safetensors.torch

        content = read_json(folder, DESCRIPTION, _check_file, "a policy as Policy.save writes it")
        tensors = stored_tensors(folder, WEIGHTS)
        settings = Settings(**{key: content["settings"][key] for key in KEPT})  # no other: a path would be imported
        shapes = {name: tuple(shape) for name, shape in content["shapes"].items()}
        how, outputs = (settings, shapes, content["horizon"], content["unimodal"]), content["horizon"] * len(AXES)
        if outputs > max((max(each.shape, default=0) for each in tensors.values()), default=0):
            expected = "expected as many actions as the weights are for"
            raise BadInput(f"{folder / DESCRIPTION}: horizon: {expected}, found {content['horizon']:,}")
        try:
            with torch.device("meta"):  # before anything large is made
                state = {key: TensorSpec.of(tensor) for key, tensor in _built(*how).state_dict().items()}
            raise_all(f"{folder / WEIGHTS}: {problem}" for problem in at_most(differences(state, {}, tensors)))
            model = _built(*how)
        except (RuntimeError, TypeError, IndexError, OverflowError) as error:
            raise BadInput(f"{folder}: the policy cannot be made again: {first_line(error)}") from error
        with weights_file(folder, WEIGHTS) as file:
            safetensors.torch.load_model(model, file)
        scales = {name: (torch.tensor(one), torch.tensor(two)) for name, (one, two) in content["scales"].items()}
        monitor = SensorMonitor.load(inside(folder, MONITOR)) if (folder / MONITOR).is_file() else None
        return cls(model.to(device), settings, shapes, scales, monitor)


_SETTINGS = {"encoder": TEXT, "features": whole(1), "fusion": one_of(*get_args(Fusion))}
_SETTINGS |= {"objective": TEXT, "loss": TEXT}
_FILE = record(
    {
        "format": rule(f"{FORMAT}, which this version knows", lambda value: value is not True and value == FORMAT),
        "settings": record(_SETTINGS),
        "unimodal": one_of(*get_args(Unimodal)),
        "horizon": whole(1),
        "shapes": every(every(whole(1), list, least=1, most=4), least=1),
        "scales": every(every(ANYTHING, list, 2, 2)),
    }
)


def _check_file(content: Any, where: str) -> Iterator[str]:
    """Find what is wrong with the file of a policy."""
    if problems := [*_FILE(content, where)]:
        yield from problems
        return
    shapes = {name: tuple(shape) for name, shape in content["shapes"].items()}
    try:
        Settings(**{key: content["settings"][key] for key in KEPT})
        check_encoders(content["settings"]["encoder"], shapes)
    except BadInput as problem:
        yield str(problem)
    for name, shape in shapes.items():
        if why := memory_problem(NUMBER_READ * math.prod(shape)):
            yield f"shapes.{name}: expected an observation that fits into memory, found {list(shape)}, which {why}"
        elif name in content["scales"]:
            yield from _scale_problems(name, shape, content["scales"][name])


def _scale_problems(name: str, shape: tuple[int, ...], scale: Any) -> Iterator[str]:
    try:
        mean, deviation = (torch.tensor(one, dtype=torch.float32) for one in scale)
        fitting = mean.shape == deviation.shape and torch.broadcast_shapes(mean.shape, shape) == shape
        plain = bool(mean.isfinite().all() and deviation.isfinite().all() and (deviation > 0).all())
    except (RuntimeError, TypeError, ValueError, OverflowError, RecursionError):
        fitting = plain = False
    if not (fitting and plain):
        expected = f"means and deviations above zero that fit observations of shape {list(shape)}"
        yield f"scales.{name}: expected {expected}, found {short(scale)}"


def check_encoders(words: str, sensors: Iterable[str]) -> None:
    """Refuse encoders that are not of the package: no code runs because a file names it."""
    kinds, problems = kinds_of(words, sensors)
    others = [kind for kind in kinds.values() if kind not in KINDS and not kind.startswith(OWN)]
    if problems or others:
        raise BadInput(
            "; ".join([*problems, *(f"expected an encoder of the package, found {one!r}" for one in others)])
        )


def _built(settings: Settings, shapes: Mapping[str, Sequence[int]], horizon: int, unimodal: str) -> FusionModel:
    """Build a model without its weights, by data without samples, as training builds it."""
    names = tuple(f"{axis}{step}" for step in range(horizon) for axis in AXES)
    views = {"camera": PIXEL} if "camera" in shapes else {}
    inputs = {name: torch.zeros(0, *shape) for name, shape in shapes.items()}
    empty = Part(inputs, torch.zeros(0, len(names)), views=views)
    splits = Splits("plug", empty, empty, empty, names, task=Regression(names))
    return build_model(splits, EW() if unimodal in ("head", "masked") else MSL(), settings)


@final
class Ensembling:
    """Temporal ensembling over S episodes: an action is the mean of all that chunks predicted for its time.

    A prediction of age i has the weight exp(−decay · i): with a large decay, the newest chunk alone decides. From
    "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (Zhao et al., 2023).

    Args:
        episodes: S.
        horizon: Actions of a chunk.
        decay: Per control step.
        device: Of the chunks.
    """

    def __init__(self, episodes: int, horizon: int, decay: float, device: torch.device | str = "cpu") -> None:
        self._keep = math.exp(-decay)
        self._sums = torch.zeros(episodes, horizon, len(AXES), device=device)
        self._weights = torch.zeros(episodes, horizon, 1, device=device)

    def reset(self, rows: Tensor) -> None:
        """Begin new episodes in these rows, booleans [S]."""
        self._sums[rows] = 0
        self._weights[rows] = 0

    def __call__(self, chunks: Tensor) -> Tensor:
        """Take the chunks of a step, [S, horizon · axes], and return the actions to execute, [S, axes]."""
        for kept, new in ((self._sums, chunks.view_as(self._sums)), (self._weights, torch.ones_like(self._weights))):
            later = torch.cat([kept[:, 1:], torch.zeros_like(kept[:, :1])], dim=1)
            kept.copy_(later * self._keep + new)
        return self._sums[:, 0] / self._weights[:, 0]

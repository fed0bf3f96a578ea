"""The model of a saved run, built again after its weights were found to fit it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from equipoise.deploy.deployable import InputSpec
from equipoise.deploy.description import at_most
from equipoise.models import LateFusion
from equipoise.models.choose import KINDS, build_encoders, kinds_of
from equipoise.models.encoders import features_of
from equipoise.models.late_fusion import takes_lengths
from equipoise.study.registry import Method
from equipoise.study.saved_model import DESCRIPTION, WEIGHTS
from equipoise.util.errors import BadInput, raise_all
from equipoise.util.files import inside

PLAUSIBLE = 2**16  # features that an encoder may be told of, though it need not have as many
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types of tensors, in the words of the format of the weights."""


class TensorSpec(NamedTuple):
    """The description of a tensor in a file of weights.

    Args:
        shape: Its shape.
        dtype: Its type, in the words of the format.
    """

    shape: tuple[int, ...]
    dtype: str


def rebuilt(
    folder: Path,
    content: dict[str, Any],
    words: str,
    method: Method,
    weights: Mapping[str, TensorSpec],
    input_specs: Mapping[str, InputSpec],
) -> LateFusion:
    """Build the model of a run without its weights, once it is certain that they fit: before, nothing large is made.

    Args:
        folder: Of the run.
        content: Its description, checked.
        words: For its encoders.
        method: By which it was trained.
        weights: What `tensors_in` found.
        input_specs: What its inputs are.

    Raises:
        BadInput: With every tensor that does not fit, and every input that no encoder can read.
        RuntimeError: If an encoder cannot be made.
    """
    settings = content["row"]["run"]
    shapes = {name: tuple(plain["read"]) for name, plain in content["inputs"].items()}
    kinds, _ = kinds_of(words, shapes)
    own = [name for name, kind in kinds.items() if kind not in KINDS]
    if own and settings["features"] > max(PLAUSIBLE, sum(math.prod(each.shape) for each in weights.values())):
        raise BadInput(
            f"{folder / DESCRIPTION}: row.run.features: expected at most as many as there are weights, found "
            f"{settings['features']}"
        )
    made = {name: _encoder(kinds[name], name, shapes, settings["features"]) for name in own}

    def assembled(own: Mapping[str, nn.Module]) -> LateFusion:
        encoders = {
            name: own[name] if name in own else _encoder(kind, name, shapes, settings["features"])
            for name, kind in kinds.items()
        }
        classes = len(content["classes"])
        model = LateFusion(encoders, classes, fusion=settings["fusion"], unimodal=content["unimodal"])
        return model if method.finish is None else method.finish(model)

    with torch.device("meta"):
        outline = assembled({name: _Outline(encoder) for name, encoder in made.items()})
    problems = [f"{folder / WEIGHTS}: {each}" for each in at_most(_misfits(outline, made, weights))]
    problems += [f"{folder / DESCRIPTION}: {each}" for each in _unreadable(outline, made, input_specs)]
    raise_all(problems)
    return assembled(made)


def _encoder(kind: str, name: str, shapes: Mapping[str, tuple[int, ...]], features: int) -> nn.Module:
    try:
        return build_encoders(kind, {name: shapes[name]}, features, checked=True)[name]
    except BadInput as found:
        raise RuntimeError(str(found)) from found  # what the folder says is known to be sound: it is the encoder


@final
class _Outline(nn.Module):
    """Stands for an encoder of the user's own where only the size of its output matters."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        size = features_of(encoder)
        if size is None:
            raise ValueError(
                f"the output size of {type(encoder).__name__} cannot be told; give it an integer attribute `features`"
            )
        self.features = size


def _misfits(outline: LateFusion, made: Mapping[str, nn.Module], weights: Mapping[str, TensorSpec]) -> Iterator[str]:
    """Tensors of a file that do not fit those of a model, in words."""
    expected = {key: _stored(tensor) for key, tensor in outline.state_dict().items()}
    optional = set()
    for key, module in outline.encoders.named_children():
        name = next(name for name, each in outline.encoders.items() if each is module)
        own = made[name].state_dict() if name in made else {}
        expected |= {f"encoders.{key}.{inner}": _stored(tensor) for inner, tensor in own.items()}
        optional |= {f"encoders.{key}.{inner}" for inner in own}  # tied weights are stored once
    for key, wanted in expected.items():
        found = weights.get(key)
        if found is None and key not in optional:
            yield f"expected {key} of shape {list(wanted.shape)}, found no such tensor"
        elif found is not None and found != wanted:
            yield (
                f"expected {key} of shape {list(wanted.shape)} and type {wanted.dtype}, found {list(found.shape)} and "
                f"{found.dtype}"
            )
    yield from (f"expected a tensor of the model, found {key[:100]!r}" for key in weights if key not in expected)


def _unreadable(
    outline: LateFusion, made: Mapping[str, nn.Module], input_specs: Mapping[str, InputSpec]
) -> Iterator[str]:
    """Inputs described so that their encoders cannot read them, in words."""
    for name, spec in input_specs.items():
        encoder = made.get(name, outline.encoders[name])
        words = getattr(encoder, "words", None)
        if isinstance(words, int) and not spec.dtype.is_floating_point and spec.most >= words:
            yield f"inputs.{name}.most: expected less than {words}, which its encoder knows, found {spec.most}"
        if spec.ragged and not takes_lengths(encoder):
            yield f"inputs.{name}.ragged: expected false, since its encoder takes no lengths, found true"


def _stored(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), TYPES.get(tensor.dtype, str(tensor.dtype)))


def tensors_in(folder: Path) -> dict[str, TensorSpec] | str:
    """The tensors that a file of weights says it has; or what is wrong with it, in words."""
    from safetensors import SafetensorError, safe_open

    file = inside(folder, WEIGHTS)
    try:
        with safe_open(str(file), framework="pt") as opened:
            slices = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118 (it is no mapping)
            return {key: TensorSpec(tuple(each.get_shape()), each.get_dtype()) for key, each in slices.items()}
    except (OSError, SafetensorError, RuntimeError) as found:
        return f"{file}: expected the weights of this run's model, found: {first_line(found)}"


def first_line(found: Exception) -> str:
    """The first line of what an error says."""
    return (str(found).strip() or type(found).__name__).splitlines()[0]

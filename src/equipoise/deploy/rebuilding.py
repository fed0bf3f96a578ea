"""Building a saved model again: on no device first, so that its weights are compared before anything large is made."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from equipoise.deploy.deployable import InputSpec
from equipoise.deploy.description import described_task
from equipoise.models.assemble import assemble, encoder_words
from equipoise.models.choose import KINDS, build_encoders, kinds_of, own_encoders
from equipoise.models.combine import combined, members_of
from equipoise.models.encoded import EncodedModel, takes_lengths
from equipoise.models.encoders import known_features
from equipoise.models.fusion_model import FusionModel, Unimodal
from equipoise.models.own_model import OwnModel, build_own
from equipoise.models.task import task_of
from equipoise.study.job import DESCRIPTION, WEIGHTS
from equipoise.study.registry import Method
from equipoise.util.errors import BadInput, first_line, raise_all
from equipoise.util.extras import needs
from equipoise.util.files import inside
from equipoise.util.schema import at_most

PLAUSIBLE = 2**16  # features that an encoder may be told of, though it need not have as many


class MemberPlan(NamedTuple):
    """The description that a late-fusion model is built from, beside inputs and task.

    Args:
        encoder: The words of its encoders.
        features: The size of their outputs.
        fusion: The name of its fusion.
        unimodal: The source of a modality's own output.
    """

    encoder: str
    features: int
    fusion: str
    unimodal: Unimodal | None


def member_plans(content: Mapping[str, Any], encoder: str | None = None) -> list[MemberPlan]:
    """Read the models that a description is of: its members where it has some, or else the one that was trained.

    Args:
        content: A description without problems.
        encoder: The words of the encoders as they were named for training, for members with encoders of one's own.
    """
    run = content["row"]["run"]
    one = {"unimodal": content["unimodal"], **{key: run[key] for key in ("encoder", "features", "fusion")}}
    plans = [MemberPlan(**{key: each[key] for key in MemberPlan._fields}) for each in content.get("members", [one])]
    if encoder is None:
        return plans
    typed = [plan for plan in plans if "members" not in content or own_encoders(plan.encoder)]
    return [plan._replace(encoder=encoder) if plan in typed else plan for plan in plans]


class TensorSpec(NamedTuple):
    """The description of a tensor in a file of weights.

    Args:
        shape: Its shape.
        dtype: Its type, in the words of the format.
    """

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """Describe a tensor as its file would: F32, BF16, I64, U8, BOOL."""
        name = str(tensor.dtype).removeprefix("torch.")
        return cls(tuple(tensor.shape), re.sub(r"^(bf|f|i|u)[a-z]*", r"\1", name).upper())


@final
class _Outline(nn.Module):
    """Takes the place of an encoder of the user's own where only the size of its output matters."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.features = known_features("A saved model", encoder)
        self.tokens = getattr(encoder, "tokens", None)


def rebuilt(
    folder: Path,
    content: dict[str, Any],
    plans: Sequence[MemberPlan],
    method: Method | None,
    tensors: Mapping[str, TensorSpec],
    specs: Mapping[str, InputSpec],
) -> FusionModel:
    """Build the model of a run without its weights, once it is certain that they fit: before, nothing large is made.

    Raises:
        BadInput: With every tensor that does not fit, and every input that no encoder can read.
        RuntimeError: If an encoder cannot be made.
    """
    shapes = {name: tuple(plain["read"]) for name, plain in content["inputs"].items()}
    kinds = [kinds_of(encoder_words(plan.encoder, plan.fusion), shapes)[0] for plan in plans]
    places = [(number, name) for number in range(len(plans)) for name in shapes]
    own = [(number, name) for number, name in places if kinds[number][name] not in KINDS]
    for number in {number for number, _ in own}:
        _check_features(folder, plans[number].features, tensors)

    def encoder(number: int, name: str) -> nn.Module:
        try:
            kind, features = kinds[number][name], plans[number].features
            return build_encoders(kind, {name: shapes[name]}, features, checked=True)[name]
        except BadInput as error:
            raise RuntimeError(str(error)) from error  # what the folder says is known to be sound: it is the encoder

    def assembled(own: Mapping[tuple[int, str], nn.Module]) -> EncodedModel:
        task, members = task_of(described_task(content)), list[Any]()
        for number, plan in enumerate(plans):
            mine = {name: (number, name) for name in shapes}
            encoders = {name: own[place] if place in own else encoder(*place) for name, place in mine.items()}
            how: dict[str, Any] = {"fusion": plan.fusion, "unimodal": plan.unimodal, "width": plan.features}
            members.append(assemble(encoders, task, **how))
        return members[0] if len(members) == 1 else combined(members)

    def finished(model: EncodedModel) -> FusionModel:
        return model if method is None or method.finish is None else method.finish(model)

    made = {place: encoder(*place) for place in own}
    with torch.device("meta"):
        outlines = {place: _Outline(module) for place, module in made.items()}
        outline = finished(assembled(outlines))
    of_outline: dict[nn.Module, nn.Module] = {outlines[place]: module for place, module in made.items()}
    problems = [f"{folder / WEIGHTS}: {problem}" for problem in at_most(_misfits(outline, of_outline, tensors))]
    problems += [f"{folder / DESCRIPTION}: {problem}" for problem in _unreadable(outline, of_outline, specs)]
    raise_all(problems)
    return finished(assembled(made))


def own_rebuilt(
    folder: Path, content: dict[str, Any], path: str, method: Method | None, tensors: Mapping[str, TensorSpec]
) -> FusionModel:
    """Build a model of the user's own without its weights, and compare them with those of the file.

    Raises:
        BadInput: With every tensor that does not fit, or if the model cannot be made.
    """
    inputs, task = content["inputs"], task_of(described_task(content))
    shapes = {name: tuple(plain["read"]) for name, plain in inputs.items()}
    _check_features(folder, content["row"]["run"]["features"], tensors)
    module = build_own(path, {"shapes": shapes, "task": task, "features": content["row"]["run"]["features"]})
    whole = [name for name, one in inputs.items() if one["view"] is None and not _kind(one).is_floating_point]
    model: FusionModel = OwnModel(module, shapes, task, unimodal=content["unimodal"], whole=tuple(whole))
    model = model if method is None or method.finish is None else method.finish(model)
    state = model.state_dict()
    expected = {key: TensorSpec.of(tensor) for key, tensor in state.items()}
    places = Counter(tensor.data_ptr() for tensor in state.values())
    tied = {key: expected[key] for key, tensor in state.items() if places[tensor.data_ptr()] > 1}
    raise_all(f"{folder / WEIGHTS}: {problem}" for problem in at_most(differences(expected, tied, tensors)))
    return model


def _kind(plain: Mapping[str, Any]) -> torch.dtype:
    return getattr(torch, plain["dtype"])


def _check_features(folder: Path, features: int, tensors: Mapping[str, TensorSpec]) -> None:
    """Refuse a number of features that code of the user's own is told, and that no such model can have."""
    if features > max(PLAUSIBLE, sum(math.prod(tensor.shape) for tensor in tensors.values())):
        raise BadInput(
            f"{folder / DESCRIPTION}: row.run.features: expected at most as many as there are weights, found {features}"
        )


def _misfits(
    outline: FusionModel, made: Mapping[nn.Module, nn.Module], tensors: Mapping[str, TensorSpec]
) -> Iterator[str]:
    """Name the tensors of a file that do not fit those of a model; `made` are modules by those that stand for them."""
    expected = {key: TensorSpec.of(tensor) for key, tensor in outline.state_dict().items()}
    optional = {}
    for place, module in outline.named_modules():
        own = made[module].state_dict() if module in made else {}
        optional |= {f"{place}.{inner}": TensorSpec.of(tensor) for inner, tensor in own.items()}
    yield from differences(expected, optional, tensors)


def differences(
    expected: Mapping[str, TensorSpec], optional: Mapping[str, TensorSpec], tensors: Mapping[str, TensorSpec]
) -> Iterator[str]:
    """Name the tensors of a file that are not those expected; of the optional ones, some may lack."""
    for key, wanted in {**expected, **optional}.items():
        stored, shape = tensors.get(key), list(wanted.shape)
        if stored is None and key not in optional:  # tied weights of an encoder are stored once
            yield f"expected {key} of shape {shape}, found no such tensor"
        elif stored is not None and stored != wanted:
            both = f"{list(stored.shape)} and {stored.dtype}"
            yield f"expected {key} of shape {shape} and type {wanted.dtype}, found {both}"
    unknown = (key for key in tensors if key not in expected and key not in optional)
    yield from (f"expected a tensor of the model, found {key[:100]!r}" for key in unknown)


def _unreadable(
    outline: FusionModel, made: Mapping[nn.Module, nn.Module], specs: Mapping[str, InputSpec]
) -> Iterator[str]:
    """Name the inputs described so that their encoders cannot read them."""
    for name, spec in specs.items():
        encoders = [made.get(module, module) for module in members_of(outline.encoders[name])]
        counts = [words for one in encoders if isinstance(words := getattr(one, "words", None), int)]
        if counts and not spec.dtype.is_floating_point and spec.most >= min(counts):
            yield f"inputs.{name}.most: expected less than {min(counts)}, which its encoder knows, found {spec.most}"
        if spec.ragged and not any(map(takes_lengths, encoders)):
            yield f"inputs.{name}.ragged: expected false, since its encoder takes no lengths, found true"


@contextmanager
def weights_file(folder: Path, name: str) -> Generator[str]:
    """Give the path of weights; errors while they are read say what the file should have been."""
    with needs("a saved model", "predict"):
        from safetensors import SafetensorError

    try:
        yield str(inside(folder, name))
    except (OSError, SafetensorError, RuntimeError) as error:
        expected = f"{folder / name}: expected the weights of this run's model"
        raise BadInput(f"{expected}, found: {first_line(error)}") from None


def stored_tensors(folder: Path, name: str) -> dict[str, TensorSpec]:
    """Read which tensors a file of weights says it has."""
    with needs("a saved model", "predict"):
        from safetensors import safe_open

    with weights_file(folder, name) as file, safe_open(file, framework="pt") as opened:
        slices = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118 (it is no mapping)
        return {key: TensorSpec(tuple(part.get_shape()), part.get_dtype()) for key, part in slices.items()}

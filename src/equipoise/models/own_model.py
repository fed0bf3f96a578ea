"""A model of the user's own, as training, measuring and shipping need it: outputs by name, sensors that may miss."""

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from equipoise.models.fusion import Fusion
from equipoise.models.fusion_model import FusionModel, Inputs, Lengths, Tensors, Unimodal
from equipoise.models.hybrid_fusion import MASKED, joined, parted
from equipoise.models.task import Task
from equipoise.util.errors import BadInput, raise_all, unknown_name
from equipoise.util.named import imported, told

Shape = tuple[int, ...]
BESIDE = ("lengths", "present")
"""Parameters of a forward besides the inputs."""
OWN_VIEWS = ("head", "detached", *MASKED)
"""The sources of uni-modal outputs that a model of the user's own may have."""
BATCH = 512
"""Samples that a model of the user's own reads at a time, where whole parts are measured."""


@final
class OwnModel(FusionModel):
    """Wraps a module that gives ``{"fused": output, name: output, …}``, each [B, size], from ``{name: input}``.

    The module always gets an input of every sensor. Of one that is missing, from a batch or from some of its samples,
    it gets zeros; where its forward has a parameter `present`, that is ``{name: booleans [B]}``, and where it has a
    parameter `lengths`, that is ``{name: whole numbers [B]}`` of the sensors with ragged time. Its attribute `encoders`
    names the part of every sensor, as `Balancer.attach` reads it: a module, a dotted name, or a list of these; and its
    attribute `trunk`, where it has one, the part in which they meet.

    Under ``unimodal="masked"`` the module needs no outputs of single sensors, and may give the fused output alone: that
    of modality k is its fused output with all other sensors missing, and the K + 1 passes run as one batch. How a
    missing sensor is masked, by a learned token or dropped attention, is the module's own; without `present` it gets
    zeros.

    What is known of features elsewhere is not known here: "features" of this class are inputs, and whatever changes
    one of them runs the whole module again.

    Args:
        model: The module.
        shapes: Of one input of each modality, in their order.
        task: The task.
        unimodal: "head" or "masked"; "detached" or "masked_detached" where the method lets no uni-modal loss reach an
            encoder.
        whole: The modalities that are whole numbers, such as words.

    Raises:
        BadInput: If its encoders are not named.
    """

    encoded = False

    def __init__(
        self,
        model: nn.Module,
        shapes: Mapping[str, Shape],
        task: Task,
        *,
        unimodal: Unimodal = "head",
        whole: tuple[str, ...] = (),
    ) -> None:
        super().__init__(len(shapes), task, unimodal)
        self.model, self.shapes = model, {name: tuple(shape) for name, shape in shapes.items()}
        self._whole, self._votes = set(whole), False
        raise_all(_problems(model, shapes))
        known = inspect.signature(model.forward).parameters
        self._takes = {name for name in BESIDE if name in known}
        given: Any = model.encoders
        # A plain dict: the parts belong to the module, and are not to be counted twice.
        self.encoders = {name: _parts_of(model, given[name]) for name in shapes}
        # A plain list, for the same reason.
        shared = _parts_of(model, getattr(model, "trunk", None))
        self.trunk = None if shared is None else shared if isinstance(shared, list) else [shared]
        self.fusion = _Whole(self)

    def forward(self, inputs: Inputs, lengths: Lengths | None = None) -> Tensors:
        """Give the fused output, then the output of each modality at hand, in their order.

        Args:
            inputs: The modalities by name; one that is absent or None is a missing sensor. Beside "audio",
                "audio_length" may hold its lengths, and "audio_present" the samples that have it, booleans [B].
            lengths: For ragged time, the number of real steps of each sample, [B], by modality.
        """
        return self._run(self.features(inputs, lengths))

    def features(self, inputs: Inputs, lengths: Lengths | None = None) -> Tensors:
        """Give the inputs at hand, zero in samples that lack the sensor, with their lengths and gaps beside them."""
        given = {**inputs, **{f"{name}_length": x for name, x in (lengths or {}).items()}}
        beside = {f"{name}{end}": name for name in self.shapes for end in ("_length", "_present")}
        problems = [
            f"Unknown modality: {unknown_name(key, self.shapes)}"
            for key in given
            if key not in self.shapes and key not in beside
        ]
        at_hand = {name: x for name in self.shapes if (x := given.get(name)) is not None}
        ragged = [name for name in at_hand if given.get(f"{name}_length") is not None]
        if ragged and "lengths" not in self._takes:
            hint = "Give the forward of the model a parameter `lengths`, or leave them out."
            problems.append(f"The model takes no lengths, and {', '.join(map(repr, ragged))} has some. {hint}")
        if not at_hand:
            problems.append(f"Expected an input for at least one of {', '.join(map(repr, self.shapes))}; found none.")
        raise_all(problems)
        present = self.gaps(inputs)
        features = {name: _masked(x, present[name]) if name in present else x for name, x in at_hand.items()}
        extra = {key: x for key, name in beside.items() if name in at_hand and (x := given.get(key)) is not None}
        return features | extra

    def complete(self, features: Mapping[str, Tensor]) -> Tensors:
        """Add an input of zeros for each missing modality, which no sample has."""
        first = next(features[name] for name in self.shapes if name in features)
        full = dict(features)
        for name, shape in self.shapes.items():
            if name not in features:
                kind = torch.int64 if name in self._whole else torch.float32
                full[name] = torch.zeros(1, *shape, dtype=kind, device=first.device).expand(first.shape[0], *shape)
                full[f"{name}_present"] = torch.zeros(first.shape[0], dtype=torch.bool, device=first.device)
                full.pop(f"{name}_length", None)
        return full

    def silenced(self, features: Mapping[str, Tensor], names: set[str]) -> Tensors:
        """Return features as if some modalities were missing."""
        zeros = {name: torch.zeros_like(features[name]) for name in names}
        gone = {
            f"{name}_present": torch.zeros(x.shape[0], dtype=torch.bool, device=x.device) for name, x in zeros.items()
        }
        return {**features, **zeros, **gone}

    def unimodal_outputs(self, features: Mapping[str, Tensor]) -> Tensors:
        """Give the own output of each modality at hand."""
        outputs = self.outputs_from(features) if any(name in features for name in self.shapes) else {}
        return {name: output for name, output in outputs.items() if name != "fused"}

    def outputs_from(
        self,
        features: Mapping[str, Tensor],
        skip: Mapping[str, Any] | None = None,  # noqa: ARG002 (one run gives all)
        batch: int | None = BATCH,
    ) -> Tensors:
        """Give all outputs from features, in batches; no output is skipped: one run gives all, and each may change."""
        if batch is None:
            return self._run(features)
        count = len(next(iter(features.values())))
        rows = [slice(start, start + batch) for start in range(0, count, batch)]
        parts = [self._run({name: x[some] for name, x in features.items()}) for some in rows]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def graph_features(self, name: str, read: Tensor, lengths: Tensor | None, here: Tensor) -> Tensors:
        """Give the input of one modality in a graph, zero where it is not valid."""
        beside = {} if lengths is None else {f"{name}_length": lengths}
        return {name: _masked(read, here), f"{name}_present": here, **beside}

    def equal_vote(self) -> "OwnModel":
        """Let the fused output be the equal vote of the modalities, from now on."""
        self._votes = True
        return self

    def compile_encoders(self, *, steady: bool = False, **options: object) -> None:
        """Do nothing: how the module calls its encoders is not known."""

    def uncompile_encoders(self) -> None:
        """Do nothing."""

    def _run(self, features: Mapping[str, Tensor]) -> Tensors:
        """Run the module on inputs, and give its outputs in order, those of missing modalities left out."""
        full = self.complete(features)
        if self.unimodal in MASKED:
            return self._run_masked(full, [name for name in self.shapes if name in features])
        outputs, first = self._call(full)
        self._check_outputs(outputs, first, ["fused", *self.shapes])
        fused = outputs["fused"]
        if self._votes:
            fused = self.known_task().equal_vote([outputs[name] for name in self.shapes])
        return {"fused": fused, **{name: outputs[name] for name in self.shapes if name in features}}

    def _run_masked(self, full: Tensors, at_hand: list[str]) -> Tensors:
        """Run the module with all sensors at hand, and with each of them alone, as one batch."""
        one = full[next(iter(self.shapes))]
        every = torch.ones(one.shape[0], dtype=torch.bool, device=one.device)
        here = {f"{name}_present": full.get(f"{name}_present", every) for name in self.shapes}
        passes = [full | here, *(self.silenced(full | here, {*self.shapes} - {name}) for name in at_hand)]
        outputs, first = self._call(joined(passes))
        outputs = outputs if isinstance(outputs, Mapping) else {"fused": outputs}
        self._check_outputs(outputs, first, ["fused"])
        return dict(zip(["fused", *at_hand], parted(outputs["fused"], len(passes)), strict=True))

    def _call(self, full: Tensors) -> tuple[Any, Tensor]:
        """Call the module on complete inputs, and return what it gives, and its first input."""
        inputs = {name: full[name] for name in self.shapes}
        first = next(iter(inputs.values()))
        more: dict[str, Tensors] = {}
        if "lengths" in self._takes:
            more["lengths"] = {name: full[key] for name in self.shapes if (key := f"{name}_length") in full}
        if "present" in self._takes:
            every = torch.ones_like(first.flatten(1)[:, 0], dtype=torch.bool)
            more["present"] = {name: full.get(f"{name}_present", every).bool() for name in self.shapes}
        return self.model(inputs, **more), first

    def _check_outputs(self, outputs: object, first: Tensor, names: list[str]) -> None:
        size = self.known_task().size
        expected = f"{{{', '.join(f'{name!r}: …' for name in names)}}}, each of shape [B, {size}]"
        owner = f"{type(self.model).__name__}.forward: expected outputs by name, {expected}"
        if not isinstance(outputs, Mapping):
            masked = "objective=masked, by methods other than unimodal and ensemble"
            raise BadInput(f"{owner}; found {type(outputs).__name__}. For a fused output alone, type {masked}")
        missing = [name for name in names if name not in outputs]
        wrong = [f"no {name!r}" for name in missing]
        wrong += [
            f"{name!r}: {list(x.shape) if isinstance(x, Tensor) else type(x).__name__}"
            for name in names
            if (x := outputs.get(name)) is not None
            and not (isinstance(x, Tensor) and x.dim() == 2 and x.shape[1] == size and x.shape[0] == first.shape[0])
        ]
        if wrong:
            others = [name for name in outputs if name not in names]
            near = [(name, close) for name in missing for close in get_close_matches(name, map(str, others), n=1)]
            hint = "".join(f"; did you mean {name!r} by {close!r}?" for name, close in near)
            named = f"; its outputs are named {', '.join(map(repr, outputs))}{hint}" if missing else ""
            raise BadInput(f"{owner}; found {', '.join(wrong)}, for a batch of {first.shape[0]}{named}")


@final
class _Whole(Fusion):
    """The fused output of a whole module, from inputs in the place of features."""

    def __init__(self, model: OwnModel) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple: the module belongs to the model, and is not to be counted twice

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Run the module."""
        return self._model[0].outputs_from(features)["fused"]


def build_own(path: str, given: Mapping[str, Any]) -> nn.Module:
    """Make the module that a dotted path names.

    Args:
        path: Of a class of modules, or of a function that says it makes one, as `makes_modules` tells without calling
            it; called with those of `given` that it has parameters for.
        given: shapes, task and features.

    Raises:
        BadInput: If it cannot be imported or made, or makes something else.
    """
    from equipoise.models.choose import makes_modules

    try:
        maker = imported(path)
    except BadInput as error:
        raise BadInput(f"model {path!r}: {error}") from error
    if not makes_modules(maker):
        raise BadInput(
            f"model {path!r}: expected a class of nn.Module, or a function with `-> nn.Module`, found "
            f"{type(maker).__name__} {getattr(maker, '__name__', '')}".rstrip()
        )
    try:
        known = inspect.signature(maker).parameters
        made = maker(**{key: value for key, value in given.items() if key in known})
    except Exception as error:  # code of the user's own may raise anything
        names = ", ".join(given)
        raise BadInput(
            f"model {path!r} cannot be made: {told(error)}; it is called with those of "
            f"{names} that it has parameters for"
        ) from error
    if not isinstance(made, nn.Module):
        raise BadInput(f"model {path!r}: expected an nn.Module, found {type(made).__name__}")
    return made


def _problems(model: nn.Module, shapes: Mapping[str, Shape]) -> list[str]:
    owner, encoders = type(model).__name__, getattr(model, "encoders", None)
    names = ", ".join(f"{name!r}: …" for name in shapes)
    hint = f"write self.encoders = nn.ModuleDict({{{names}}})"
    if not isinstance(encoders, (Mapping, nn.ModuleDict)):
        return [f"{owner}: expected an attribute `encoders` with the part of each sensor, found none; {hint}"]
    missing = [name for name in shapes if name not in encoders]
    problems = [f"{owner}: `encoders` has no {', '.join(map(repr, missing))}; {hint}"] if missing else []
    parts: dict[str, Any] = {"encoders": [encoders[name] for name in shapes if name in encoders]}
    parts["trunk"] = getattr(model, "trunk", None)
    known = dict(model.named_modules(remove_duplicate=False))
    absent = [(place, name) for place, part in parts.items() for name in _names_in(part) if name not in known]
    for place, name in absent:
        near = "".join(f"; did you mean {close!r}?" for close in get_close_matches(name, known, n=1))
        problems.append(f"{owner}: `{place}` names {name!r}, which it has not{near}")
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        problems.append(f"{owner}: expected layers whose sizes are known, found lazy ones; read them off `shapes`")
    return problems + _forward_problems(model, shapes)


def _forward_problems(model: nn.Module, shapes: Mapping[str, Shape]) -> list[str]:
    """Say that forward gets one dictionary, where its parameters are others."""
    found = inspect.signature(model.forward).parameters.values()
    many = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    first = [one for one in found if one.kind not in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)]
    needed = [one.name for one in found if one.default is Parameter.empty and one.kind not in many]
    if first and first[0].name not in BESIDE and not set(needed) - {first[0].name, *BESIDE}:
        return []
    names = ", ".join(str(one.replace(annotation=Parameter.empty)) for one in found)
    example = f"write def forward(self, inputs), and read inputs[{next(iter(shapes))!r}]"
    expected = "expected one dictionary with the inputs of all sensors, and besides it `present` or `lengths` at most"
    return [f"{type(model).__name__}.forward: {expected}; found ({names}); {example}"]


def _parts_of(model: nn.Module, part: Any) -> Any:
    """Return the modules that the name of a part stands for, or the part itself."""
    if isinstance(part, str):
        return model.get_submodule(part)
    return [_parts_of(model, each) for each in part] if isinstance(part, (list, tuple)) else part


def _names_in(part: Any) -> list[str]:
    """List the names in what stands for a part of a model."""
    if isinstance(part, (list, tuple)):
        return [name for each in part for name in _names_in(each)]
    return [part] if isinstance(part, str) else []


def _masked(values: Tensor, here: Tensor) -> Tensor:
    """Return values with zeros in the samples that lack them, whatever stands there."""
    return values.where(here.reshape(-1, *[1] * (values.dim() - 1)), torch.zeros((), dtype=values.dtype))

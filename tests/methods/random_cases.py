"""Random cases: a model, a method with its options, and how it is used."""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

import equipoise
from equipoise import Balancer, Trajectory
from equipoise.models import ShapleyResponses
from methods import mixture_rules, rules
from methods.random_models import FORMS, Shape, View, encoders_of, trunk_of

NAMES = ("audio", "video", "text", "depth", "x_1", "touch 2", "keys", "α", "radar-left", "zero")

RULES: dict[str, type[rules.Rule]] = {
    "MSL": rules.MSL,
    "EW": rules.EW,
    "Unimodal": rules.Unimodal,
    "MIMO": rules.MIMO,
    "MGDA": mixture_rules.MGDA,
    "MMPareto": mixture_rules.MMPareto,
    "OGM": rules.OGM,
    "OGMGE": rules.OGM,
    "AGM": rules.AGM,
    "MSLR": rules.MSLR,
    "MSES": rules.MSES,
    "SMP": rules.SMP,
    "InfoReg": rules.InfoReg,
    "Relearn": rules.Relearn,
    "DGL": rules.DGL,
    "MLB": rules.MLB,
    "ARL": rules.ARL,
    "CGGM": rules.CGGM,
    "Barrier": mixture_rules.Barrier,
}
ADDITIVE = ("concat", "sum")
VIEWS: tuple[View, ...] = ("split", "split", "head", "detached")
HYBRID_VIEWS: tuple[View, ...] = ("masked", "masked", "masked_detached", "head", "detached")
LEARNS_FROM_OWN_LOSS = frozenset(
    {"EW", "Unimodal", "MIMO", "MGDA", "MMPareto", "Barrier", "DGL", "MLB", "ARL", "InfoReg"}
)
LEARNS_FROM_FUSED_LOSS = frozenset(
    {"MSL", "MGDA", "MMPareto", "Barrier", "OGM", "OGMGE", "AGM", "MSLR", "MSES", "SMP", "CGGM", "Relearn"}
)


@final
@dataclass(frozen=True)
class Case:
    """One case; equal seeds give equal cases.

    Args:
        seed: Of the case.
        shape: The model.
        method: The balancer's class.
        options: What it is made with; the rule reads them too.
        attach: "none", "model", "modules", "names", "lists", "parameters".
        optimizer: "none", "sgd", "adam".
        form: How the losses come about: "separate", or slices of one tensor.
        scalars: The losses that are given as means.
        given: The losses that are given.
        factors: What losses are multiplied by.
        steps: How many steps are taken.
        micro_batches: How many backward passes a step has.
        epochs: How many epochs end before each step.
        twice: Whether the last backward pass keeps its graph and is followed by another.
        hooked: The share of parameters with a hook that scales their gradient.
        scale: What the scalar is multiplied by.
        extra: The kind of losses that belong to no modality; empty for none.
        scores: Whether scores are given.
        masked: The losses that come with a mask of the samples that have the sensor.
    """

    seed: str
    shape: Shape
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    attach: str = "model"
    optimizer: str = "none"
    form: str = "separate"
    scalars: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    factors: dict[str, float] = field(default_factory=dict)
    steps: int = 1
    micro_batches: int = 1
    epochs: tuple[int, ...] = (0,)
    twice: bool = False
    hooked: float = 0.0
    scale: float = 1.0
    extra: str = ""
    scores: bool = False
    masked: frozenset[str] = frozenset()

    def masks(self, seed: int, size: int) -> dict[str, Tensor]:
        """The samples of a batch that have a sensor, at least one; they differ from batch to batch."""
        random_numbers = torch.Generator().manual_seed(seed)
        found = {name: torch.rand(size, generator=random_numbers) < 0.6 for name in sorted(self.masked)}
        return {name: mask | (torch.arange(size) == 0) for name, mask in found.items()}

    @property
    def traits(self) -> list[str]:
        """What is special about the case, in words, for counting failures by."""
        shape = self.shape
        told = {
            "hooks": self.hooked > 0,
            "slices of one tensor": self.form != "separate",
            "backward twice": self.twice,
            "accumulation": self.micro_batches > 1,
            "several steps": self.steps > 1,
            "adam": self.optimizer == "adam",
            "shared encoders": bool(shape.shared),
            "entangled encoders": bool(shape.entangled),
            "layer for the uni-modal loss": bool(shape.side),
            "hybrid": shape.kind == "hybrid",
            "masked objectives": shape.unimodal == "masked",
            "trunk": self.has_trunk,
            "frozen encoder": bool(shape.frozen) or shape.frozen_stem,
            "fused loss leaves one out": shape.blind,
            "batch normalisation": shape.layers == "norm",
            "unused parameter": shape.spare,
            "extra losses": bool(self.extra),
            "scores": self.scores,
            "masks": bool(self.masked),
            "not attached": self.attach == "none",
            "losses of several magnitudes": bool(self.factors),
        }
        return [word for word, holds in told.items() if holds]

    @property
    def title(self) -> str:
        """The method with its form."""
        return f"AGM {self.options['form']}" if self.method == "AGM" else self.method

    @property
    def has_trunk(self) -> bool:
        """Whether the balancer knows of a trunk: it is told, or the model says so where it is asked for encoders."""
        return self.attach != "none" and (self.shape.trunk or (self.shape.kind == "hybrid" and self.attach == "model"))

    @property
    def sliced(self) -> bool:
        """Whether losses are computed from slices of one tensor, so that each is connected with what others are."""
        return self.form != "separate" or self.shape.unimodal == "masked"

    @property
    def decides_at_features(self) -> bool:
        """Whether encoders' outputs are watched."""
        return self.options.get("at") == "features"

    @property
    def learns_alone(self) -> bool:
        """Whether encoders learn from the fused loss alone, so that what it does not reach counts as an own head."""
        return self.method in LEARNS_FROM_FUSED_LOSS - LEARNS_FROM_OWN_LOSS and self.title not in (
            "AGM published",
            "AGM responses",
        )

    @property
    def needs_encoders(self) -> bool:
        """Whether the method cannot work without a model attached."""
        weighs_alone = self.method in {"MSL", "EW", "Unimodal"} or (
            self.method == "MIMO" and self.options["heads"] == "scaled"
        )
        return not weighs_alone and self.options.get("form") not in ("published", "responses")

    def balancer(self, model: nn.Module) -> tuple[Balancer, nn.Module]:
        """A balancer, and the model to call: the given one, or one that wraps it."""
        options = dict(self.options)
        made: type[Balancer] = getattr(equipoise, self.method)
        if self.options.get("form") == "responses":
            model = ShapleyResponses(model, list(self.shape.modalities))
            options["form"] = "published"
        if self.options.get("form") == "given":
            del options["form"]  # it is what the method does by itself
        elif self.method == "MIMO" and options["optimum"] is not None:
            rows: dict[str, list[float]] = options["optimum"]
            length = len(next(iter(rows.values())))
            options["optimum"] = {name: row[0] for name, row in rows.items()} if length == 1 else _trajectory(rows)
        return made(
            **{name: value for name, value in options.items() if name in inspect.signature(made).parameters}
        ), model

    def told(self, model: nn.Module) -> dict[str, Any] | None:
        """What `attach` is told of the encoders."""
        if self.attach in ("none", "model"):
            return None
        encoders = encoders_of(model, self.shape)
        if self.attach == "modules":
            return encoders
        if self.attach == "parameters":
            return {name: list(encoder.parameters()) for name, encoder in encoders.items()}
        names = {id(module): name for name, module in model.named_modules()}
        if self.attach == "names":
            return {name: names[id(encoder)] for name, encoder in encoders.items()}
        loose = {name: [*encoder._parameters.values()] for name, encoder in encoders.items()}
        parts = {name: list(encoder.children()) for name, encoder in encoders.items()}
        return {name: [names[id(parts[name][0])], *parts[name][1:], *loose[name]] for name in encoders}

    def told_trunk(self, model: nn.Module) -> Any:
        """What `attach` is told of the trunk; None for nothing."""
        return trunk_of(model) if self.shape.trunk else None


def _trajectory(rows: dict[str, list[float]]) -> Trajectory:
    trajectory = Trajectory(smooth=1)
    for values in zip(*rows.values(), strict=True):
        trajectory.record({name: torch.tensor(value) for name, value in zip(rows, values, strict=True)})
    return trajectory


def draw_case(seed: str) -> Case:
    """The case of a seed."""
    draw = random.Random(seed)
    method = draw.choice(list(RULES))
    count = draw.choice((1, 2, 2, 2, 3, 3, 4, 5))
    modalities = tuple(draw.sample(NAMES, count))
    form = draw.choice(("fast", "published", "responses")) if method == "AGM" else ""
    shape = _shape(draw, method, form, modalities[: 4 if form == "published" else 3 if form == "responses" else 5])
    shape = _with_trunk(random.Random(f"{seed} trunk"), method, form, shape)  # drawn apart
    modalities = shape.modalities
    options = _options(draw, method, form, modalities)
    if options.get("parameters") == "kernels" and draw.random() < 0.8:
        shape = shape._replace(layers="conv")
    given = {"fused", *modalities}
    if method == "MSL" and draw.random() < 0.2:
        given = {"fused"}
    elif method == "Unimodal" and draw.random() < 0.3:
        given = set(modalities)
    stacks = given == {"fused", *modalities} and draw.random() < 0.3
    scalars: set[str] = draw.choice((set(), set(given)))
    if not stacks and draw.random() < 0.2:
        scalars = {name for name in sorted(given) if draw.random() < 0.5}
    steps, learns = (
        draw.choice((1, 1, 1, 2, 3)),
        method in ("MSLR", "MSES", "SMP", "InfoReg", "Relearn") or "start" in options,
    )
    steps += learns and draw.random() < 0.5
    optimizer = draw.choice(("none", "none", "sgd", "adam"))
    exact = form in ("published", "responses")  # there factors act on the fused output, whoever reads it
    special = draw.random() < 0.25 and method in ("MGDA", "MMPareto", "Barrier", "EW", "MIMO")
    masks = random.Random(f"{seed} masks")  # drawn apart
    has_to_be_told = (
        method == "CGGM" or options.get("form") == "given" or (form == "published" and shape.unimodal != "split")
    )
    masked = sorted(given - scalars - {"fused"}) if masks.random() < 0.4 else []
    return Case(
        seed,
        shape,
        method,
        options,
        attach=_attach(draw, method, form, shape, options),
        optimizer=optimizer,
        form=draw.choice(FORMS) if stacks else "separate",
        scalars=frozenset(scalars),
        given=frozenset(given),
        factors={name: draw.choice((1.0, 0.1, 1e-3, 1e-5)) for name in sorted(given)} if special else {},
        steps=steps,
        micro_batches=draw.choice((1, 1, 1, 2)),
        epochs=tuple(draw.choice((0, 1, 2, 3) if learns else (0, 0, 1)) for _ in range(steps)),
        twice=draw.random() < 0.1,
        hooked=draw.choice((0.4, 1.0)) if draw.random() < 0.12 else 0.0,
        scale=draw.choice((1.0, 1.0, 2.0 ** draw.randrange(1, 17))),
        extra=draw.choice(("decay", "some", "decay" if exact else "outputs")) if draw.random() < 0.2 else "",
        # The losses of heads are not those of responses: what modalities are compared by has to be told then.
        scores=draw.random() < 0.2 or has_to_be_told,
        masked=frozenset(name for name in masked if masks.random() < 0.7),
    )


def _shape(draw: random.Random, method: str, form: str, modalities: tuple[str, ...]) -> Shape:
    count, several = len(modalities), len(modalities) > 1
    shares, most = several and draw.random() < 0.12, draw.choice((0.5, 0.5, 1.0))
    layers = draw.choice(("linear", "tanh", "tanh", "relu", "conv", "norm"))
    if form in ("published", "responses") and layers == "norm":
        layers = "tanh"
    common: dict[str, Any] = {
        "modalities": modalities,
        "layers": layers,
        "bias": draw.random() < 0.8,
        "shared": draw.choice(("stem", "whole")) if shares else "",
        "frozen": tuple(n for n in range(count) if draw.random() < most) if draw.random() < 0.1 else (),
        "frozen_stem": draw.random() < 0.05,
        "spare": draw.random() < 0.1,
        "seed": draw.randrange(10**6),
    }
    mixes = method in ("MGDA", "MMPareto", "Barrier")
    fits = draw.random() < 0.9  # the others are mostly refused
    if form == "published":
        return Shape(kind="late", fusion=draw.choice(ADDITIVE), unimodal=draw.choice(VIEWS), **common)
    if draw.random() < 0.5:
        fusion = draw.choice(("concat", "sum", "gated", "custom", "film" if several else "concat"))
        views: list[View] = ["head"] if method in LEARNS_FROM_OWN_LOSS and fits else ["head", "detached"]
        views += ["split"] * (fusion in ADDITIVE)
        return Shape(kind="late", fusion=fusion, unimodal=draw.choice(views), **common)
    return Shape(
        kind="own",
        fusion=draw.choice(("linear", "mlp")),
        unimodal="head" if method in LEARNS_FROM_OWN_LOSS and fits else draw.choice(("head", "detached")),
        entangled=draw.choice(("attend", "chain")) if several and draw.random() < (0.4 if mixes else 0.2) else "",
        side=draw.choice(("attached", "detached")) if draw.random() < 0.15 else "",
        blind=several and draw.random() < 0.04,
        **common,
    )


def _with_trunk(draw: random.Random, method: str, form: str, shape: Shape) -> Shape:
    """The shape, or a hybrid one in its place; a balancer may be told what mixes the features of entangled encoders."""
    if form not in ("published", "responses") and draw.random() < 0.3:
        views = HYBRID_VIEWS
        if method in LEARNS_FROM_OWN_LOSS and draw.random() < 0.9:  # the others are mostly refused
            views = ("masked", "masked", "head")
        hybrid = shape._replace(kind="hybrid", fusion="", entangled="", side="", blind=False, spare=False)
        return hybrid._replace(unimodal=draw.choice(views), trunk=draw.random() < 0.3)
    return shape._replace(trunk=bool(shape.entangled) and draw.random() < 0.5)


def _options(draw: random.Random, method: str, form: str, modalities: tuple[str, ...]) -> dict[str, Any]:
    window: dict[str, Any] = {}
    if method in ("OGM", "OGMGE", "AGM", "MSLR", "MLB", "ARL") and draw.random() < 0.3:
        window = {"start": draw.choice((0, 1)), "stop": draw.choice((None, 1, 2))}
    at = draw.choice(("parameters", "parameters", "features"))
    heads = draw.choice(("scaled", "plain"))
    match method:
        case "EW":
            return {"weight": draw.choice((0.0, 0.3, 1.0, 3.0))}
        case "Unimodal":
            return {"modality": draw.choice((None, None, modalities[0]))}
        case "MIMO":
            rows = {name: [draw.randrange(16) / 16 for _ in range(3)] for name in modalities}
            optimum = draw.choice((None, {name: row[:1] for name, row in rows.items()}, rows))
            return {
                "penalty": draw.choice((0.0, 1.0, 10.0, 100.0)),
                "smoothing": draw.choice((0.0, 1e-3, 0.01, 0.1, 1.0)),
                "optimum": optimum,
                "overflow": draw.choice(("stable", "double")),
                "floor": draw.choice((0.0, 0.0, 0.5)),
                "heads": draw.choice(("scaled", "scaled", "plain")),
            }
        case "MGDA":
            return {"at": at}
        case "MMPareto":
            return {"boost": draw.choice((1.0, 1.5)), "rescale": draw.choice(("tensor", "encoder")), "at": at}
        case "OGM" | "OGMGE":
            noise = (
                {"noise": draw.choice(("before", "after")), "seed": draw.randrange(100)} if method == "OGMGE" else {}
            )
            parameters = draw.choice(("all", "all", "all", "kernels"))
            return {"strength": draw.choice((0.1, 0.8, 2.0)), "parameters": parameters, **noise, **window}
        case "AGM":
            return {
                "strength": draw.choice((0.3, 1.0, 2.5)),
                "cap": draw.choice((10.0, None, 0.1)),
                "form": form,
                **window,
            }
        case "MSLR":
            rates = {name: draw.choice((0.7, 0.9, 1.1, 1.4)) for name in modalities}
            return {"rates": draw.choice((None, rates)), "memory": draw.choice((1, 2)), "heads": heads, **window}
        case "MSES":
            smoothing = draw.choice(("two-tap", "recursive"))
            return {"patience": draw.choice((0, 1)), "smoothing": smoothing, "heads": heads}
        case "Relearn":
            return {"strength": draw.choice((0.5, 3.0)), "every": draw.choice((1, 2)), "times": draw.choice((1, 2))}
        case "InfoReg":
            several = {name: draw.choice((0.0, 0.1, 0.95)) for name in modalities}
            return {
                "strength": draw.choice((0.1, 0.95)),
                "strengths": draw.choice((None, several)),
                "threshold": draw.choice((0.05, 0.3)),
                "memory": draw.choice((1, 2)),
                "sharpness": draw.choice((1.0, 64.0)),
            }
        case "SMP":
            order = draw.choice((None, draw.sample(modalities, len(modalities))))
            return {"stage": draw.choice((1, 2)), "order": order, "start": draw.choice((None, 1, 2))}
        case "DGL":
            return {"weight": draw.choice((1.0, 4.0))}
        case "ARL":
            form = draw.choice(("given", "given", "released"))  # "published", whose scores have to be given
            weight, sharpness = draw.choice((0.5, 4.0)), draw.choice((0.0, 1.0, 8.0))
            return {"weight": weight, "sharpness": sharpness, "form": form, **window}
        case "Barrier":
            return {"strength": draw.choice((0.0, 1.0, 5.0)), "smoothing": draw.choice((0.1, 1.0)), "at": "parameters"}
        case "CGGM":
            # The direction term is a second derivative, and compared elsewhere.
            return {"strength": draw.choice((1.0, 1.3)), "direction": 0.0}
        case "MLB":
            return {"strength": draw.choice((0.4, 1.6)), "ceiling": draw.choice((1.0, 1.5, 2.0)), **window}
    return {}


def _attach(draw: random.Random, method: str, form: str, shape: Shape, options: dict[str, Any]) -> str:
    if form == "responses":
        return "none"
    optional = method in ("MSL", "EW", "Unimodal") or options.get("heads") == "scaled"
    if draw.random() < (0.4 if optional else 0.02):
        return "none"
    if form == "published":
        return "model"
    whole = ("model",) * 4 if shape.kind in ("late", "hybrid") else ()
    parts = ("lists", "parameters") if options.get("at") != "features" or draw.random() < 0.1 else ()
    return draw.choice((*whole, "modules", "names", *parts))

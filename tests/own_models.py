"""Models that a user might write, for settings that name one by its dotted path."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.models import LateFusion
from equipoise.models.choose import build_encoders
from equipoise.models.task import Task

Shapes = dict[str, tuple[int, ...]]


class Same(nn.Module):
    """Late fusion in a module of one's own: what is known of a LateFusion is known of it."""

    def __init__(self, shapes: Shapes, task: Task, features: int, inner: LateFusion | None = None) -> None:
        super().__init__()
        self.inner = inner or LateFusion(
            build_encoders("auto", shapes, features), head=_head(task.size), fusion="gated"
        )

    @property
    def encoders(self) -> dict[str, nn.Module]:
        return dict(self.inner.encoders.items())

    def forward(self, inputs: dict[str, Tensor], present: dict[str, Tensor]) -> dict[str, Tensor]:
        features = {name: encoder(inputs[name]) for name, encoder in self.inner.encoders.items()}
        features = {name: feature.where(present[name][:, None], 0) for name, feature in features.items()}
        heads = {name: self.inner.heads[name](feature) for name, feature in features.items()}
        return {"fused": self.inner.fusion(features), **heads}


def _head(size: int):  # noqa: ANN202
    return lambda features: nn.Linear(features, size)


class Early(nn.Module):
    """Fuses early: one network reads all sensors, and is told neither gaps nor lengths."""

    def __init__(self, shapes: Shapes, task: Task) -> None:
        super().__init__()
        sizes = {name: torch.Size(shape).numel() for name, shape in shapes.items()}
        self.nets = nn.ModuleList(nn.Linear(size, 8) for size in sizes.values())
        self.encoders = {name: f"nets.{at}" for at, name in enumerate(shapes)}
        self.body = nn.Sequential(nn.Linear(8 * len(sizes), 8), nn.ReLU(), nn.Linear(8, task.size))
        self.heads = nn.ModuleList(nn.Linear(8, task.size) for _ in shapes)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        read = [net(inputs[name].flatten(1)) for name, net in zip(self.encoders, self.nets, strict=True)]
        own = {name: head(x) for name, head, x in zip(self.encoders, self.heads, read, strict=True)}
        return {"fused": self.body(torch.cat(read, dim=1)), **own}


class Ragged(nn.Module):
    """Means over real steps."""

    def __init__(self, shapes: Shapes, task: Task) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({name: nn.Linear(shape[0], task.size) for name, shape in shapes.items()})

    def forward(self, inputs: dict[str, Tensor], lengths: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = {}
        for name, net in self.encoders.items():
            steps = torch.arange(inputs[name].shape[2])
            real = steps < lengths.get(name, torch.tensor(len(steps))).reshape(-1, 1)
            outputs[name] = net((inputs[name] * real[:, None]).sum(dim=2))
        return {"fused": torch.stack(list(outputs.values())).sum(dim=0), **outputs}


class Decides(Early):
    """Cannot be exported: it looks at values."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = super().forward(inputs)
        return outputs if bool(outputs["fused"].detach().sum() > -1e9) else {name: -x for name, x in outputs.items()}


class NoEncoders(nn.Module): ...


class NoNumbers(Early):
    """Gives its outputs without names."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().forward(inputs)["fused"]  # ty: ignore[invalid-return-type]


class TooFew(Early):
    """Gives one output less, and another of a wrong size."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = super().forward(inputs)
        return {"fused": outputs["fused"][:, :1], "easy": outputs["easy"]}


class Stumbles(Early):
    """Raises."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"fused": inputs["nothing"]}


class OtherName(Early):
    """Gives the output of a sensor another name."""

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = super().forward(inputs)
        return {"fused": outputs["fused"], "easy": outputs["easy"], "hards": outputs["hard"]}


class Apart(Early):
    """Reads each sensor as an argument of its own."""

    def forward(self, easy: Tensor, hard: Tensor) -> dict[str, Tensor]:  # ty: ignore[incompatible-method-override]
        return super().forward({"easy": easy, "hard": hard})


class Lazy(Early):
    """Has a layer of unknown size."""

    def __init__(self, shapes: Shapes, task: Task) -> None:
        super().__init__(shapes, task)
        self.more = nn.LazyLinear(3)


class Wants(nn.Module):
    """Has a parameter that nobody gives."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth


def number() -> int:
    """Is no model."""
    return 3


def unsaid(shapes: Shapes, task: Task):  # noqa: ANN201 (on purpose)
    """Makes a model, and does not say so."""
    return Early(shapes, task)


def said(shapes: Shapes, task: Task) -> nn.Module:
    """Makes a model, and says so."""
    return Early(shapes, task)


class Meets(nn.Module):
    """Cross-attention of a user's own: a token of each sensor, or one that was learnt, and one that reads them all.

    A sensor is hidden from attention too; alone that would multiply its gradient by zero, and leave it connected.
    """

    def __init__(self, shapes: Shapes, task: Task, trunk: str = "mixer", *, shares: bool = False) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Linear(torch.Size(shape).numel(), 8) for shape in shapes.values())
        self.mixer = nn.ModuleDict({"read": nn.Linear(8, 16), "write": nn.Linear(8, 8)})
        self.absent = nn.Parameter(torch.randn(8))
        self.question = nn.Parameter(torch.randn(8))
        self.head = nn.Linear(8, task.size)
        self.trunk = trunk
        self.encoders = {name: [f"nets.{at}"] for at, name in enumerate(shapes)}
        if shares:  # the layer that writes is part of the encoders as well
            self.encoders = {name: [*parts, "mixer.write"] for name, parts in self.encoders.items()}

    def forward(self, inputs: dict[str, Tensor], present: dict[str, Tensor]) -> Tensor:
        tokens = torch.stack([net(inputs[name].flatten(1)) for name, net in zip(inputs, self.nets, strict=True)], dim=1)
        here = torch.stack([present[name] for name in inputs], dim=1)
        tokens = tokens.where(here[:, :, None], self.absent)
        keys, values = self.mixer["read"](tokens.tanh()).chunk(2, dim=2)
        weights = (keys @ self.question).masked_fill(~here, -10.0).softmax(dim=1)
        return self.head(self.mixer["write"]((weights[:, :, None] * values).sum(dim=1)).tanh())

"""A method and a model of one's own, for the command.

equipoise compare --data generated --methods msl,my_file.Gap --out runs/own model=my_file.Model gap.strength=2
"""

from typing import Annotated

import torch
from torch import Tensor, nn

from equipoise import Coefficients, Losses, Needs, Weighting
from equipoise.models.task import Task
from equipoise.util.annotated import Tried


class Gap(Weighting):
    """Weigh each uni-modal loss by how far it lies above the smallest: f_mm + Σ_k (1 + s · (f_k − min_j f_j)) f_k."""

    needs = Needs(encoders=False)

    def __init__(self, strength: Annotated[float, Tried(0.1, 1.0, 10.0)] = 1.0) -> None:
        super().__init__()
        self.strength = strength

    def weigh(self, losses: Losses) -> Coefficients:
        """The fused loss at one, every uni-modal loss by its gap."""
        behind = losses.unimodal - losses.unimodal.min()
        return Coefficients.shared(torch.cat([torch.ones_like(behind[:1]), 1 + self.strength * behind]))


class Model(nn.Module):
    """Every sensor is a token, and tokens attend to each other: no late fusion."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], task: Task, features: int = 64) -> None:
        super().__init__()
        sizes = {name: torch.Size(shape).numel() for name, shape in shapes.items()}
        self.encoders = nn.ModuleDict(
            {name: nn.Sequential(nn.Flatten(), nn.Linear(size, features), nn.ReLU()) for name, size in sizes.items()}
        )
        self.attend = nn.TransformerEncoderLayer(features, 4, 2 * features, dropout=0.0, batch_first=True)
        self.decide = nn.Linear(features, task.size)
        self.heads = nn.ModuleDict({name: nn.Linear(features, task.size) for name in shapes})

    def forward(self, inputs: dict[str, Tensor], present: dict[str, Tensor]) -> dict[str, Tensor]:
        """Outputs by name; a sensor that a sample lacks is a token of zeros."""
        tokens = {name: encoder(inputs[name]) * present[name][:, None] for name, encoder in self.encoders.items()}
        fused = self.decide(self.attend(torch.stack(list(tokens.values()), dim=1)).mean(dim=1))
        return {"fused": fused, **{name: self.heads[name](token) for name, token in tokens.items()}}

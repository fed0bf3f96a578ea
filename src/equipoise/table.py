"""The balancing table: one coefficient per objective and block of parameters."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

FUSED = "fused"
HEADS = "heads"


class Table(NamedTuple):
    """What a method did in the last step: block b moved along Σ_i c[i, b] · ∇_b f_i.

    Rows are objectives (the fused loss, then one loss per modality), columns are blocks of parameters (one encoder per
    modality, then the heads).

    Args:
        objectives: Names of the rows.
        blocks: Names of the columns.
        values: The coefficients c, on the device they were computed on.
    """

    objectives: tuple[str, ...]
    blocks: tuple[str, ...]
    values: Tensor

    def at(self, objective: str, block: str) -> Tensor:
        """The coefficient of one objective on one block, still on its device."""
        return self.values[self.objectives.index(objective), self.blocks.index(block)]

    def numbers(self) -> dict[str, dict[str, float]]:
        """The whole table as plain numbers, ``{objective: {block: coefficient}}``. Waits for the device."""
        rows = self.values.tolist()
        return {
            objective: dict(zip(self.blocks, row, strict=True))
            for objective, row in zip(self.objectives, rows, strict=True)
        }

    def __str__(self) -> str:
        first = max(len(name) for name in self.objectives)
        widths = [max(len(name), 9) for name in self.blocks]
        titles = (f"{name:>{width}}" for name, width in zip(self.blocks, widths, strict=True))
        lines = [" ".join([" " * first, *titles])]
        for objective, row in self.numbers().items():
            cells = (f"{value:>{width}.4g}" for value, width in zip(row.values(), widths, strict=True))
            lines.append(" ".join([f"{objective:<{first}}", *cells]))
        return "\n".join(lines)

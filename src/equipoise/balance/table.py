"""The balancing table: one coefficient per objective and block of parameters."""

from __future__ import annotations

import math
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
        values: The coefficients c, on the device they were computed on; NaN where a loss does not reach a block.
    """

    objectives: tuple[str, ...]
    blocks: tuple[str, ...]
    values: Tensor

    def at(self, objective: str, block: str) -> Tensor:
        """The coefficient of one objective on one block, still on its device."""
        return self.values[self.objectives.index(objective), self.blocks.index(block)]

    def numbers(self) -> dict[str, dict[str, float]]:
        """Return the table as plain numbers, ``{objective: {block: coefficient}}``, without cells that no loss reaches.

        Waits for the device.
        """
        rows = self.values.tolist()
        return {
            objective: {block: value for block, value in zip(self.blocks, row, strict=True) if not math.isnan(value)}
            for objective, row in zip(self.objectives, rows, strict=True)
        }

    def __str__(self) -> str:
        first = max(len(name) for name in self.objectives)
        widths = [max(len(name), 9) for name in self.blocks]
        titles = (f"{name:>{width}}" for name, width in zip(self.blocks, widths, strict=True))
        lines = [" ".join([" " * first, *titles])]
        for objective, row in self.numbers().items():
            shown = [f"{row[block]:.4g}" if block in row else "–" for block in self.blocks]
            cells = (f"{text:>{width}}" for text, width in zip(shown, widths, strict=True))
            lines.append(" ".join([f"{objective:<{first}}", *cells]))
        return "\n".join(lines)

"""Between the flat logs of other trainers and what a balancer says and learns from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from equipoise.balance.balancer import Balancer


def entries_of(balancer: Balancer, prefix: str = "balance/") -> dict[str, Tensor]:
    """The table of the last step as one entry per coefficient, ``balance/objective/block``, still on its device.

    A loss that does not reach a block has no entry.
    """
    table = balancer.table
    reached = table.numbers()
    return {
        f"{prefix}{objective}/{block}": table.at(objective, block)
        for objective, row in reached.items()
        for block in row
    }


def metrics_for(balancer: Balancer, found: Mapping[str, Any], pattern: str) -> dict[str, dict[str, float]]:
    """What the method learns from at the end of an epoch, out of a trainer's metrics.

    Args:
        balancer: Whose method.
        found: The trainer's metrics by name.
        pattern: How it names them, such as "val/{modality}/{metric}".

    Raises:
        ValueError: If the method needs a metric that is not there.
    """
    wanted = {
        (modality, metric): pattern.format(modality=modality, metric=metric)
        for modality in balancer.modalities
        for metric in balancer.needs
    }
    absent = [name for name in wanted.values() if name not in found]
    if absent:
        msg = (
            f"{type(balancer).__name__} learns from validation metrics of each modality; expected {', '.join(absent)}, "
            f"found {', '.join(found) or 'none'}. Log them under these names, or say metrics=… for other names"
        )
        raise ValueError(msg)
    given: dict[str, dict[str, float]] = {}
    for (modality, metric), name in wanted.items():
        given.setdefault(modality, {})[metric] = float(found[name])
    return given

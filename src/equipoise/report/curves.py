"""What happened over the epochs, averaged over the runs of a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from equipoise.report.aggregate import RunGroup, dig, number
from equipoise.report.results import Results


@final
@dataclass(frozen=True)
class EpochCurve:
    """A number over epochs.

    Args:
        epochs: When.
        mean: Mean over the runs that reached the epoch.
        low: The lowest of them.
        high: The highest of them.
    """

    epochs: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def thinned(self, most: int) -> EpochCurve:
        """At most so many epochs, evenly spread, the first and the last among them."""
        count = len(self.epochs)
        if count <= most:
            return self
        kept = sorted({round(step * (count - 1) / (most - 1)) for step in range(most)})
        mean, low, high = (tuple(part[at] for at in kept) for part in (self.mean, self.low, self.high))
        return EpochCurve(tuple(self.epochs[at] for at in kept), mean, low, high)


def over_epochs(results: Results, line: RunGroup, *path: str) -> EpochCurve | None:
    """The number at a path of keys of every epoch; None where no run has it."""
    found: dict[int, list[float]] = {}
    for row in line.rows:
        for epoch in results.curves.get(str(row.get("config")), []):
            value = number(epoch, *path)
            if value is not None:
                found.setdefault(int(epoch["epoch"]), []).append(value)
    if not found:
        return None
    epochs = sorted(found)
    values = [found[epoch] for epoch in epochs]
    return EpochCurve(
        tuple(epochs),
        tuple(sum(each) / len(each) for each in values),
        tuple(min(each) for each in values),
        tuple(max(each) for each in values),
    )


def accuracy_curves(results: Results, line: RunGroup) -> dict[str, EpochCurve]:
    """Validation accuracy of the fused prediction, where the line trains one, and of each modality.

    The sensors of an ensemble are trained alone and vote only afterwards: what runs of earlier versions recorded as
    its fused accuracy is that of a head that nothing trained.
    """
    fused = line.fused is not None and line.method != "ensemble"
    names = [name for name in _keys(results, line, "validation") if fused or name != "fused"]
    found = {name: over_epochs(results, line, "validation", name) for name in names}
    return {name: curve for name, curve in found.items() if curve is not None}


def balancing_curves(results: Results, line: RunGroup) -> dict[tuple[str, str], EpochCurve]:
    """The balancing table c[objective, block] over epochs, under (objective, blocks).

    Blocks on which an objective has the same coefficient all along are put together.
    """
    together: dict[tuple[str, EpochCurve], list[str]] = {}
    for objective in _keys(results, line, "table"):
        blocks = _keys(results, line, "table", objective)
        for block in blocks:
            curve = over_epochs(results, line, "table", objective, block)
            if curve is not None:
                together.setdefault((objective, curve), []).append(block)
    named = {}
    for (objective, curve), blocks in together.items():
        everywhere = len(blocks) > 1 and len(blocks) == len(_keys(results, line, "table", objective))
        named[objective, "every block" if everywhere else ", ".join(blocks)] = curve
    return named


def changes(curve: EpochCurve) -> bool:
    """Whether a number moved at all, between epochs or between runs."""
    return max(curve.high) - min(curve.low) > 1e-6 * max(abs(max(curve.high)), abs(min(curve.low)))


def _keys(results: Results, line: RunGroup, *path: str) -> list[str]:
    found: dict[str, None] = {}
    for row in line.rows:
        for epoch in results.curves.get(str(row.get("config")), []):
            inner = dig(epoch, *path)
            found |= dict.fromkeys(inner if isinstance(inner, dict) else {})
    return list(found)

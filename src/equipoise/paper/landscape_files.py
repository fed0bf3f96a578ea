"""The file of a landscape: everything that was measured, and what it depends on."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.own.npz import read_arrays
from equipoise.paper.landscape import LandscapeResults, LandscapeSettings, LossSurface, SolutionPoint
from equipoise.util.files import write_atomic

GRIDS = ("x", "y", "train", "test")


def save_results(folder: Path, asked: dict[str, Any], results: LandscapeResults) -> Path:
    """Write everything into one `.npz`, since it took minutes to find.

    Args:
        folder: Where to.
        asked: Everything that the results depend on: data, methods, settings, versions.
        results: The results.
    """
    arrays: dict[str, np.ndarray] = {"about": np.array(json.dumps({"asked": asked, "facts": results.as_dict()}))}
    for number, surface in enumerate(results.surfaces):
        arrays |= {f"{number} {name}": getattr(surface, name) for name in GRIDS}
        arrays |= {f"{number} accuracy of {name}": grid for name, grid in surface.accuracy.items()}
    folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # ty: ignore[invalid-argument-type]
    return write_atomic(folder, f"{results.settings.stem}.npz", content.getvalue())


def load_results(folder: Path, stem: str, asked: dict[str, Any]) -> LandscapeResults | None:
    """Read the results for the same question; None where there are none, or those of another one."""
    try:
        arrays, _ = read_arrays(folder / f"{stem}.npz")
        about = json.loads(str(arrays.pop("about")))
        if about["asked"] != json.loads(json.dumps(asked)):
            return None
        content, surfaces = about["facts"], []
        for number, stars in enumerate(content.pop("stars")):
            prefix = f"{number} accuracy of "
            accuracy = {name.removeprefix(prefix): grid for name, grid in arrays.items() if name.startswith(prefix)}
            grids = [arrays[f"{number} {name}"] for name in GRIDS]
            surfaces.append(LossSurface(*grids, accuracy, [SolutionPoint(**star) for star in stars]))
        return LandscapeResults(LandscapeSettings(**content.pop("recipe")), surfaces=surfaces, **content)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):  # not there, or not ours: found anew
        return None

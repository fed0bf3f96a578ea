"""What a landscape took minutes to find, kept in one `.npz`, and found again if nothing it depends on has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.own.npz import read_arrays
from equipoise.paper.landscape import Facts, Recipe, Star, Surface
from equipoise.util.files import inside


def keep(folder: Path, asked: dict[str, Any], facts: Facts) -> Path:
    """Write everything, under what was asked.

    Args:
        folder: Where to.
        asked: Everything that the facts depend on: data, methods, settings, recipe, versions.
        facts: What was found.
    """
    arrays: dict[str, np.ndarray] = {"about": np.array(json.dumps({"asked": asked, "facts": facts.as_dict()}))}
    for number, surface in enumerate(facts.surfaces):
        grids = {name: getattr(surface, name) for name in ("x", "y", "train", "test")}
        grids |= {f"accuracy of {name}": grid for name, grid in surface.accuracy.items()}
        arrays |= {f"{number} {name}": grid for name, grid in grids.items()}
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{facts.recipe.stem}.npz"
    unfinished = inside(folder, f"unfinished-{name}")
    np.savez_compressed(unfinished, **arrays)  # ty: ignore[invalid-argument-type]
    return unfinished.replace(inside(folder, name))  # a kill leaves the old file or the new one


def kept(folder: Path, stem: str, asked: dict[str, Any]) -> Facts | None:
    """What was found for the same question; None where there is nothing, or the answer to another one."""
    try:
        arrays, _ = read_arrays(folder / f"{stem}.npz")
        about = json.loads(str(arrays.pop("about")))
        if about["asked"] != json.loads(json.dumps(asked)):
            return None
        content = about["facts"]
        recipe, stars = Recipe(**content.pop("recipe")), content.pop("stars")
        surfaces = [_surface(arrays, number, own) for number, own in enumerate(stars)]
        return Facts(recipe=recipe, surfaces=surfaces, **content)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):  # not there, or not ours: found anew
        return None


def _surface(arrays: dict[str, np.ndarray], number: int, stars: list[dict[str, Any]]) -> Surface:
    start, alone = f"{number} ", f"{number} accuracy of "
    accuracy = {name.removeprefix(alone): grid for name, grid in arrays.items() if name.startswith(alone)}
    x, y, train, test = (arrays[start + name] for name in ("x", "y", "train", "test"))
    return Surface(x, y, train, test, accuracy, [Star(**star) for star in stars])

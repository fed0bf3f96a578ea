"""Pickles for tests: good ones, and ones that would run something."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


class Bomb:
    """Writes a file when it is unpickled by anything that runs pickles."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


def write_pickle(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content))
    return path


def check_nothing_runs(path: Path, read: Callable[[], object]) -> None:
    """A pickle with a bomb, alone or deep inside of what is there, is refused by name, and does not go off."""
    mark = path.parent / "mark"
    whole = path.read_bytes()
    for content in (Bomb(mark), {"train": [pickle.loads(whole), Bomb(mark)]}, np.array([Bomb(mark)], dtype=object)):
        path.write_bytes(pickle.dumps(content))
        expected = rf"(?s){path.name}: .*expected a pickle of numpy arrays.*, found \S+, which is not run"
        with pytest.raises(ValueError, match=expected):
            read()
        assert not mark.exists()
    pickle.loads(path.read_bytes())
    assert mark.exists()  # so it would have
    mark.unlink()
    path.write_bytes(whole)


def check_broken_pickles(path: Path, read: Callable[[], object], noises: int = 20) -> None:
    """A pickle cut short anywhere, one that is empty, missing, or noise, is reported by name."""
    whole = path.read_bytes()
    noise = np.random.default_rng(0)
    broken = [whole[: len(whole) * tenth // 10] for tenth in range(10)]
    broken += [noise.bytes(int(size)) for size in noise.integers(1, 200, noises)]
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=path.name):
            read()
    path.unlink()
    with pytest.raises(ValueError, match=path.name):
        read()
    path.write_bytes(whole)
    read()

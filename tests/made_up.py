"""A made-up data set for the tests of preparing: each of its files says in a word what happens to who reads it."""

from __future__ import annotations

import csv
import faulthandler
import hashlib
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np
import torch
from safetensors.torch import load_file

from equipoise.data.prepare.original import Clip, Clips, Field, Original, Protocol
from equipoise.data.views import TimeLast
from equipoise.util.errors import BadInput, Unreadable

STEPS = 5
PARTS = ("train", "validation", "test")
READS = "reads.log"


@final
@dataclass(frozen=True)
class MadeUp(Original):
    width: int = 3
    flavour: str = "plain"

    name: ClassVar[str] = "made-up"
    summary: ClassVar[str] = "Numbers from names."
    layout: ClassVar[str] = "Expected list.txt, and a file for each name in it."
    protocols: ClassVar[dict[str, Protocol]] = {
        "official": Protocol("as listed"),
        "published": Protocol("as published, chosen on test", selects_on_test=True),
        "families": Protocol("no family in two parts", by_group=True),
    }

    @property
    def fields(self) -> dict[str, Field]:
        return {"tone": Field((2, self.width)), "film": Field((STEPS, 2), "uint8", ragged=True, view=TimeLast())}

    def open(self, source: Path) -> MadeUpClips:
        if not (source / "list.txt").is_file():
            raise BadInput(f"made-up: expected {source / 'list.txt'}, found no file")
        names = (source / "list.txt").read_text().split()
        return MadeUpClips([clip_of(name, number) for number, name in enumerate(names)], source, self)

    def classes(self, clips: Clips) -> tuple[str, ...]:  # noqa: ARG002
        return ("no", "yes", "perhaps")


@final
class MadeUpClips(Clips):
    def __init__(self, listed: list[Clip], source: Path, original: MadeUp) -> None:
        self.listed, self.source, self.original = listed, source, original

    def read(self, number: int) -> dict[str, np.ndarray]:
        name = self.listed[number].id
        with (self.source / READS).open("a") as file:
            file.write(f"{name}\n")
        time.sleep(float((self.source / "pace").read_text()))
        path = self.source / f"{name}.txt"
        if not path.is_file():
            raise Unreadable(f"{path.name}: expected a file, found none")
        return happens(path.read_text(), path, arrays_of(name, self.original))


def clip_of(name: str, number: int) -> Clip:
    family = f"family {number % 7}"
    parts = {"official": PARTS[number // 3 % 3], "families": PARTS[number % 7 % 3]}
    if number % 4:  # this one uses some of the clips, and has no validation part
        parts["published"] = "train" if number % 4 < 3 else "test"
    return Clip(name, number % 3, family, parts)


def arrays_of(name: str, original: MadeUp) -> dict[str, np.ndarray]:
    """What a clip holds, from its name."""
    seed = int.from_bytes(hashlib.sha256(f"{name} {original.flavour}".encode()).digest()[:4], "big")
    random = np.random.default_rng(seed)
    steps = 1 + seed % STEPS
    return {
        "tone": random.standard_normal((2, original.width)).astype(np.float32),
        "film": random.integers(1, 256, (steps, 2), dtype=np.uint8),
    }


def happens(what: str, path: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tone, film = arrays["tone"], arrays["film"]
    if what == "crash":
        faulthandler.disable()  # a test run would show where
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "crash once":
        path.write_text("fine")
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        os._exit(0)
    if what == "hang":
        time.sleep(1000)
    if what == "broken":
        raise Unreadable(f"{path.name}: expected sound, found noise")
    if what == "fault":
        raise KeyError("what no reader should raise")
    if what == "package":
        raise ModuleNotFoundError("reading this needs a package; type: pip install 'equipoise[media]'")
    changed = {
        "nan": {"tone": np.where(tone == tone.max(), np.nan, tone).astype(np.float32)},
        "infinite": {"tone": np.full_like(tone, -np.inf)},
        "shape": {"tone": tone[:, :-1]},
        "type": {"tone": tone.astype(np.float64)},
        "long": {"film": np.ones((STEPS + 1, 2), np.uint8)},
        "empty": {"film": film[:0]},
        "strange": {"smell": tone},
        "view": {"tone": np.asfortranarray(tone)[::1]},
    }
    return {**arrays, **changed.get(what, {})}


def make_source(
    folder: Path, count: int = 24, *, pace: float = 0.0, happening: Mapping[str, str] | None = None
) -> Path:
    """A source with clips c0, c1, …, where {"c3": "crash"} and the like say what happens to their readers."""
    happening = happening or {}
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"c{number}" for number in range(count)]
    (folder / "list.txt").write_text("\n".join(names))
    (folder / "pace").write_text(str(pace))
    (folder / READS).touch()
    for name in names:
        if happening.get(name) != "missing":
            (folder / f"{name}.txt").write_text(happening.get(name, "fine"))
    return folder


def reads(source: Path) -> Counter[str]:
    """How often each clip was read."""
    return Counter((source / READS).read_text().split())


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def check_folder(folder: Path, names: list[str], original: MadeUp | None = None) -> None:
    """The folder holds these clips, read with somebody else's reader."""
    original = original or MadeUp()
    index = table(folder / "index.csv")
    tone = load_file(folder / "tone.safetensors")["tone"]
    film = load_file(folder / "film.safetensors")["film"]
    assert [line["id"] for line in index] == names
    assert tone.shape == (len(names), 2, original.width)
    assert film.shape == (len(names), STEPS, 2)
    for line, name, heard, seen in zip(index, names, tone, film, strict=True):
        expected, steps = arrays_of(name, original), int(line["film_length"])
        number = int(name[1:])
        assert torch.equal(heard, torch.from_numpy(expected["tone"]))
        assert torch.equal(seen[:steps], torch.from_numpy(expected["film"]))
        assert not seen[steps:].any()
        assert (int(line["label"]), line["group"]) == (number % 3, f"family {number % 7}")
        assert line["official"] == PARTS[number // 3 % 3]
    assert set(content(folder)) == {"prepared.json", "index.csv", "skipped.csv", "tone.safetensors", "film.safetensors"}

"""Demonstrations of the expert: generated in several processes, kept as one compressed file an episode.

A folder holds a manifest and the files of the episodes. The manifest is written first with the settings and once more
at the end with the checksum of every file. An episode depends on its seed alone, so whatever is missing after a kill
is made again to the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, cast, final, get_args

import numpy as np

from equipoise.control import scene
from equipoise.control.camera import Renderer, load_mujoco
from equipoise.control.expert import Expert
from equipoise.control.simulator import Holes, Simulator
from equipoise.data.own.npz import read_arrays
from equipoise.util.errors import BadInput, Unreadable, demand, first_line, raise_all
from equipoise.util.files import inside, write_atomic
from equipoise.util.pool import Pool, Tell
from equipoise.util.processes import cores, lock_folder
from equipoise.util.schema import FLAG, TEXT, every, one_of, read_json, record, short, whole

VERSION = 3  # of the task and the files: demonstrations of another version are not mixed
MANIFEST = "manifest.json"
SEEDS = 1_000_000  # episode i has the seed `seed` × SEEDS + i
MOST_SEED = 2**40
COLUMNS: dict[str, tuple[str, tuple[int, ...]]] = {
    "proprioception": ("f4", (9,)),
    "camera": ("u1", (3, scene.PICTURE, scene.PICTURE)),
    "force": ("f4", (6, scene.FORCE_SAMPLES)),
    "action": ("f4", (3,)),
    "phase": ("i1", ()),
    "step": ("i4", ()),
}
_AGAIN = "delete it and generate once more, by the same command"


@final
@dataclass(frozen=True)
class Demonstrations:
    """Steps of all episodes, one after the other.

    Attributes:
        proprioception: [N, 9].
        camera: uint8 [N, 3, 64, 64].
        force: [N, 6, 10].
        action: Action of the expert without noise [N, 3], in m/s.
        phase: 0 approach, 1 descend, 2 search, 3 insert [N].
        episode: Number of the episode [N]; those that the expert failed are missing.
        hole: Position of the hole [N, 2], in m.
        step: Number of the step in its episode [N].
        renderer: "gl" or "rays".
        seeds: Seed of each episode, by its number.
    """

    proprioception: np.ndarray
    camera: np.ndarray
    force: np.ndarray
    action: np.ndarray
    phase: np.ndarray
    episode: np.ndarray
    hole: np.ndarray
    step: np.ndarray
    renderer: str
    seeds: dict[int, int]


def generate(
    folder: Path,
    episodes: int = 500,
    *,
    seed: int = 0,
    holes: Holes = "seen",
    workers: int | None = None,
    renderer: Renderer = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Let the expert act in many episodes; begun again after a kill, it goes on where it was.

    An episode whose file is missing or damaged is made again.

    Args:
        folder: New, empty, or begun with the same settings.
        episodes: How many to try; those in which the expert fails are left out, and counted in the manifest.
        seed: Of all episodes.
        holes: Where the holes are.
        workers: Processes; one per core unless given. One alone works in this process.
        renderer: How pictures are drawn.
        on_progress: Called with the number of episodes done, and of all.

    Returns:
        The folder.

    Raises:
        BadInput: If an argument cannot be used, or the folder holds something else.
    """
    workers = cores() if workers is None else workers
    demand(
        "generate",
        (0 < episodes <= SEEDS, f"episodes should be 1 to {SEEDS:,}", episodes),
        (0 <= seed <= MOST_SEED, f"seed should be 0 to {MOST_SEED:,}", seed),
        (workers > 0, "workers should be one or more", workers),
        (holes in get_args(Holes), f"holes should be one of {', '.join(get_args(Holes))}", holes),
    )
    settings = {
        "version": VERSION,
        "episodes": episodes,
        "seed": seed,
        "holes": holes,
        "renderer": Simulator(renderer).renderer,
        "mujoco": load_mujoco().__version__,
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, "writing demonstrations to"):
        manifest = _begin(folder, settings)
        for unfinished in folder.glob("episode-*.npz.*.tmp"):  # of a worker that was killed
            unfinished.unlink()
        failed = set(manifest.get("failed", []))
        there = {number for number in range(episodes) if not _read_episode(folder, number)[1]}
        todo = [number for number in range(episodes) if number not in failed | there]
        for done, (number, succeeded) in enumerate(_demonstrate_all(folder, settings, todo, workers), 1):
            if not succeeded:
                failed.add(number)
            if on_progress is not None:
                on_progress(episodes - len(todo) + done, episodes)
        _finish(folder, settings, sorted(failed))
    return folder


def verify(folder: Path) -> list[str]:
    """List everything that is wrong with a folder of demonstrations, one sentence each."""
    folder = Path(folder)
    try:
        manifest = _read_manifest(folder)
    except BadInput as problem:
        return [str(problem)]
    if not manifest["finished"]:
        return [f"{folder}: expected all episodes, found an unfinished manifest; generate once more to go on."]
    problems, files = [], manifest["files"]
    for name, checksum in files.items():
        try:
            content = inside(folder, name).read_bytes()
        except (OSError, BadInput) as problem:
            problems.append(f"{name}: cannot be read ({first_line(problem)}); generate once more to make it again.")
            continue
        if hashlib.sha256(content).hexdigest() != checksum:
            problems.append(f"{name}: the checksum is not that of the manifest; delete it and generate once more.")
    others = sorted(path.name for path in folder.glob("episode-*.npz") if path.name not in files)
    problems += [f"{name}: not in the manifest; delete it." for name in others]
    return problems


def load(folder: Path) -> Demonstrations:
    """Read all demonstrations of a folder into memory.

    Raises:
        BadInput: With everything that is wrong with the folder.
    """
    folder = Path(folder)
    raise_all(verify(folder), f"{folder}: demonstrations cannot be used:")
    manifest = _read_manifest(folder)
    numbers = [int(name[8:14]) for name in manifest["files"]]
    parts, problems = zip(*(_read_episode(folder, number) for number in numbers), strict=True)
    raise_all(filter(None, problems), f"{folder}: demonstrations cannot be used:")
    columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
    lengths = [len(part["step"]) for part in parts]
    return Demonstrations(
        **columns,
        episode=np.repeat(np.array(numbers, np.int32), lengths),
        hole=np.repeat(np.stack([part["hole"] for part in parts]), lengths, axis=0),
        renderer=manifest["settings"]["renderer"],
        seeds={number: _seed(manifest["settings"], number) for number in numbers},
    )


def _begin(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a folder, which is written first where there is none; refuse other settings."""
    if not inside(folder, MANIFEST).exists():
        if names := sorted(path.name for path in folder.iterdir() if not path.name.endswith(".tmp")):
            found = ", ".join(names[:3])
            raise BadInput(f"{folder}: expected an empty folder or demonstrations, found {found}; choose another one")
        write_atomic(folder, MANIFEST, _text({"finished": False, "settings": settings}))
    manifest = _read_manifest(folder)
    old = manifest["settings"]
    different = [name for name in settings if old.get(name) != settings[name]]
    expected = ", ".join(f"{name}={settings[name]}" for name in different)
    found = ", ".join(f"{name}={old.get(name)}" for name in different)
    if different:
        raise BadInput(f"{folder}: expected {expected}, found demonstrations with {found}; choose another folder")
    return manifest


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.is_dir() or not inside(folder, MANIFEST).exists():
        raise BadInput(f"{folder}: expected demonstrations, found no {MANIFEST}; generate some there")
    expected, advice = "a manifest of demonstrations", "Delete the folder and generate once more"
    manifest = read_json(folder, MANIFEST, record({"settings": record({"version": whole(0)})}), expected, advice=advice)
    if (found := manifest["settings"].get("version")) != VERSION:
        again = "generate them again in another folder"
        raise BadInput(f"{folder}: expected version {VERSION}, found {found}; {again}")
    return read_json(folder, MANIFEST, _check_manifest, expected, advice=advice)


_SETTINGS = {"episodes": whole(1, SEEDS), "seed": whole(0, MOST_SEED), "holes": one_of(*get_args(Holes))}
_SETTINGS |= {"renderer": one_of(*get_args(Renderer)), "mujoco": TEXT}
_BEGUN = {"finished": FLAG, "settings": record(_SETTINGS)}
_FINISHED = {"failed": every(whole(0, SEEDS), list), "files": every(TEXT, least=1)}


def _check_manifest(content: Any, where: str) -> Iterator[str]:
    """Find what is wrong with a manifest."""
    problems = [*record(_BEGUN)(content, where)]
    if not problems and content["finished"]:
        problems = [*record(_FINISHED)(content, where)]
    yield from problems
    if not problems and content["finished"]:
        names = {_name(number) for number in range(content["settings"]["episodes"])}
        strange = (name for name in content["files"] if name not in names)
        yield from (f"files: expected names of episodes, found {short(name)}" for name in strange)


def _demonstrate_all(
    folder: Path, settings: Mapping[str, Any], todo: Sequence[int], workers: int
) -> Iterator[tuple[int, bool]]:
    """Write episodes; yield the number of each that is done, and whether the expert succeeded."""
    if workers == 1:
        yield from ((number, _demonstrate(folder, settings, number)) for number in todo)
        return
    # Forked off a server: OpenGL does not work in a copy of a process that has used it.
    with Pool(partial(_work, folder, settings), workers, ahead=2, tries=2, preload=[__name__]) as pool:
        pool.submit(*todo)
        while pool.unfinished:
            for number, kind, content in pool.events():
                if kind == "failed":
                    raise content
                if kind == "died":
                    raise RuntimeError(f"the process of episode {number} ended without a message ({content})")
                yield number, content


def _work(folder: Path, settings: Mapping[str, Any], number: int, _: Tell) -> bool:
    return _demonstrate(folder, settings, number)


def _demonstrate(folder: Path, settings: Mapping[str, Any], number: int) -> bool:
    """Write one episode; return whether the expert succeeded."""
    simulator, seed = _simulator(settings["renderer"]), _seed(settings, number)
    observation = simulator.reset(seed, settings["holes"])
    expert, rows = Expert(simulator, seed), []
    while not simulator.done:
        action, executed, phase = expert.act()
        rows.append(observation | {"action": action, "phase": phase, "step": simulator.steps})
        observation = simulator.step(executed)
    if not simulator.success:
        return False
    columns = {name: np.array([row[name] for row in rows], dtype) for name, (dtype, _) in COLUMNS.items()}
    content = io.BytesIO()
    np.savez_compressed(content, hole=simulator.hole.astype(np.float32), **cast("dict[str, Any]", columns))
    write_atomic(folder, _name(number), content.getvalue())
    return True


@cache
def _simulator(renderer: Renderer) -> Simulator:
    return Simulator(renderer)


def _read_episode(folder: Path, number: int) -> tuple[dict[str, np.ndarray], str]:
    """Read an episode; and say what is wrong with it, "" where nothing is."""
    name, columns = _name(number), {**COLUMNS, "hole": ("f4", (2,))}
    try:
        arrays, problems = read_arrays(inside(folder, name))
    except (BadInput, Unreadable) as problem:
        return {}, f"{problem}; {_AGAIN}"
    count = len(arrays["step"]) if "step" in arrays and arrays["step"].ndim else 0
    for key, (dtype, shape) in columns.items():
        array, expected = arrays.get(key), shape if key == "hole" else (count, *shape)
        if array is None or array.dtype != np.dtype(dtype) or array.shape != expected or not count:
            found = "none" if array is None else f"{array.dtype} {list(array.shape)}"
            problems.append(
                f"{key}: expected {np.dtype(dtype)} {['steps' if key != 'hole' else 2, *shape]}, found {found}"
            )
        elif not np.isfinite(array).all():
            problems.append(f"{key}: expected finite numbers, found NaN or infinity")
    return arrays, f"{name}: {'; '.join(problems)}; {_AGAIN}" if problems else ""


def _finish(folder: Path, settings: Mapping[str, Any], failed: list[int]) -> None:
    names = [_name(number) for number in range(settings["episodes"]) if number not in failed]
    files = {name: hashlib.sha256(inside(folder, name).read_bytes()).hexdigest() for name in names}
    write_atomic(folder, MANIFEST, _text({"finished": True, "settings": settings, "failed": failed, "files": files}))


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"


def _seed(settings: Mapping[str, Any], number: int) -> int:
    return settings["seed"] * SEEDS + number


def _name(number: int) -> str:
    return f"episode-{number:06}.npz"

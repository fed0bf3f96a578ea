"""Demonstrations on disk: generated, resumed, verified and read."""

import contextlib
import hashlib
import json
import multiprocessing as mp
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from equipoise.control import demonstrations
from equipoise.control.demonstrations import MANIFEST, generate, load, verify
from equipoise.control.expert import Expert
from equipoise.control.simulator import Simulator
from equipoise.util.errors import BadInput
from mutated_json import mutated_json

EPISODES = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("made") / "demonstrations", EPISODES, seed=3, workers=1, renderer="rays")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "demonstrations"))


@final
class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_loaded_steps_are_those_of_the_simulator(made: Path) -> None:
    loaded, simulator, row = load(made), Simulator("rays"), 0
    assert loaded.seeds == {number: 3_000_000 + number for number in range(EPISODES)}
    assert loaded.renderer == "rays"
    for number, seed in loaded.seeds.items():
        observation = simulator.reset(seed)
        expert = Expert(simulator, seed)
        while not simulator.done:
            action, executed, phase = expert.act()
            for name, value in observation.items():
                np.testing.assert_array_equal(getattr(loaded, name)[row], value)
            np.testing.assert_array_equal(loaded.action[row], action)
            np.testing.assert_array_equal(loaded.hole[row], simulator.hole.astype(np.float32))
            assert (loaded.phase[row], loaded.step[row], loaded.episode[row]) == (phase, simulator.steps, number)
            observation, row = simulator.step(executed), row + 1
    assert row == len(loaded.action)


def test_types(made: Path) -> None:
    loaded = load(made)
    names = ("proprioception", "camera", "force", "action", "phase", "episode", "hole", "step")
    found = {name: (getattr(loaded, name).dtype.str[1:], getattr(loaded, name).shape[1:]) for name in names}
    assert found == {
        "proprioception": ("f4", (9,)),
        "camera": ("u1", (3, 64, 64)),
        "force": ("f4", (6, 10)),
        "action": ("f4", (3,)),
        "phase": ("i1", ()),
        "episode": ("i4", ()),
        "hole": ("f4", (2,)),
        "step": ("i4", ()),
    }


def test_what_is_missing_is_made_again_to_the_same_bytes(made: Path, folder: Path) -> None:
    for name in ("episode-000001.npz", "episode-000003.npz"):
        (folder / name).unlink()
    seen: list[tuple[int, int]] = []
    generate(folder, EPISODES, seed=3, workers=1, renderer="rays", on_progress=lambda *count: seen.append(count))
    assert seen == [(3, 4), (4, 4)]
    assert contents(folder) == contents(made)
    generate(folder, EPISODES, seed=3, workers=1, renderer="rays", on_progress=lambda *count: seen.append(count))
    assert len(seen) == 2  # nothing was left to do


def test_verify_lists_everything_wrong(made: Path, folder: Path) -> None:
    assert verify(made) == []
    (folder / "episode-000000.npz").unlink()
    content = bytearray((folder / "episode-000002.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "episode-000002.npz").write_bytes(content)
    (folder / "episode-000099.npz").write_bytes(b"")
    problems = verify(folder)
    assert [problem.split(":")[0] for problem in problems] == [f"episode-{n:06}.npz" for n in (0, 2, 99)]
    assert "cannot be read" in problems[0]
    assert "checksum" in problems[1]
    assert "not in the manifest" in problems[2]
    with pytest.raises(BadInput) as caught:
        load(folder)
    assert all(problem in str(caught.value) for problem in problems)


def test_other_settings_are_refused(folder: Path) -> None:
    with pytest.raises(
        BadInput, match=r"expected seed=4, holes=unseen, found demonstrations with seed=3, holes=seen; "
    ):
        generate(folder, EPISODES, seed=4, holes="unseen", workers=1, renderer="rays")


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("Dear Sir")
    with pytest.raises(BadInput, match=r"expected an empty folder or demonstrations, found letters\.txt"):
        generate(tmp_path, EPISODES, workers=1, renderer="rays")
    assert verify(tmp_path) == [f"{tmp_path}: expected demonstrations, found no {MANIFEST}; generate some there"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"finished": true, "settings": {}}', '{"finished": 1, "settings": {}}']
)
def test_broken_manifests_are_reported(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    (problem,) = verify(folder)
    assert MANIFEST in problem
    assert "generate once more" in problem


DAMAGED_MANIFESTS: dict[str, Any] = {
    "failed": [5, [[1]], [-1], "all", None, [0.5]],
    "files": [["episode-000000.npz"], {}, None, {"episode-000099.npz": "0"}, {"../a.npz": "0"}, {"a": 1}],
    "finished": ["yes", 1, None],
    "settings": [None, [], {"version": 3}, {"version": "3"}],
}


@pytest.mark.parametrize("key", DAMAGED_MANIFESTS)
def test_manifests_of_other_types_are_reported(folder: Path, key: str) -> None:
    whole = json.loads((folder / MANIFEST).read_text())
    for value in DAMAGED_MANIFESTS[key]:
        (folder / MANIFEST).write_text(json.dumps(whole | {key: value}))
        for read in (load, lambda path: generate(path, EPISODES, seed=3, workers=1, renderer="rays")):
            with pytest.raises(BadInput, match=rf"{MANIFEST}: expected a manifest of demonstrations, found .*generate"):
                read(folder)
    (folder / MANIFEST).write_text("[" * 200_000)
    with pytest.raises(BadInput, match="maximum recursion depth"):
        load(folder)


def rewritten(folder: Path, number: int, **columns: Any) -> Path:
    """Change columns of an episode, None to leave one out, and state the checksum that the file then has."""
    path = folder / f"episode-{number:06}.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files} | columns
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})
    return checked(path)


def checked(path: Path) -> Path:
    """State the checksum of a file in the manifest beside it."""
    manifest = json.loads((path.parent / MANIFEST).read_text())
    manifest["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (path.parent / MANIFEST).write_text(json.dumps(manifest))
    return path


def damages(count: int) -> dict[str, dict[str, Any]]:
    """Columns that no episode of so many steps has."""
    action = np.zeros((count, 3), "f4")
    return {
        "missing": {"force": None},
        "NaN": {"action": np.where(np.arange(count) == 1, np.nan, 0)[:, None].repeat(3, 1).astype("f4")},
        "infinite": {"action": action + np.inf},
        "text": {"action": np.full((count, 3), "0")},
        "complex": {"action": action.astype("c8")},
        "whole numbers": {"action": action.astype("i4")},
        "no steps": {name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in demonstrations.COLUMNS.items()},
        "one row less": {"action": action[1:]},
        "another shape": {"action": action[:, :2]},
        "no axis": {"step": np.int32(3)},
        "another hole": {"hole": np.zeros(3, "f4")},
        "objects": {"action": action.astype(object)},
    }


@pytest.mark.parametrize("name", damages(2))
def test_columns_that_cannot_be_used_are_refused_and_made_again(made: Path, folder: Path, name: str) -> None:
    with np.load(folder / "episode-000001.npz") as file:
        count = len(file["step"])
    rewritten(folder, 1, **damages(count)[name])
    with pytest.raises(BadInput, match=r"demonstrations cannot be used:\n  episode-000001\.npz: .*generate once more"):
        load(folder)
    generate(folder, EPISODES, seed=3, workers=1, renderer="rays")
    assert contents(folder) == contents(made)


def test_a_pickle_in_an_episode_does_not_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = rewritten(folder, 1, action=np.array([Bomb(mark)], dtype=object))
    with pytest.raises(BadInput, match="which is not run"):
        load(folder)
    assert not mark.exists()
    np.load(path, allow_pickle=True)["action"]
    assert mark.exists(), "so it would have"


@pytest.mark.parametrize("content", [b"", b"junk" * 100, b"PK\x03\x04"])
def test_an_episode_that_a_power_cut_tore_is_refused_and_made_again(made: Path, folder: Path, content: bytes) -> None:
    path = folder / "episode-000002.npz"
    path.write_bytes(content)
    checked(path)
    with pytest.raises(BadInput, match=r"episode-000002\.npz"):
        load(folder)
    generate(folder, EPISODES, seed=3, workers=1, renderer="rays")
    assert contents(folder) == contents(made)


def test_unfinished_folders_and_other_versions_are_not_loaded(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"finished": False}))
    with pytest.raises(BadInput, match="generate once more to go on"):
        load(folder)
    manifest["settings"]["version"] = 0
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="expected version 3, found 0"):
        load(folder)


def test_bad_arguments_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        generate(tmp_path / "new", 0, seed=-1, holes="some", workers=0)  # ty: ignore[invalid-argument-type]
    assert all(word in str(caught.value) for word in ("episodes", "seed", "workers", "holes"))
    assert not (tmp_path / "new").exists()


@final
class _Tired:
    """Gives up in the episode with number 1."""

    def __init__(self, simulator: Simulator, seed: int) -> None:
        self.expert, self.tired = Expert(simulator, seed), seed == 3_000_001

    def act(self) -> tuple[np.ndarray, np.ndarray, int]:
        action, executed, phase = self.expert.act()
        return action, 0 * executed if self.tired else executed, phase


def test_failed_episodes_are_left_out_and_counted(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstrations, "Expert", _Tired)
    folder = generate(tmp_path / "some", EPISODES, seed=3, workers=1, renderer="rays")
    assert json.loads((folder / MANIFEST).read_text())["failed"] == [1]
    assert sorted(load(folder).seeds) == [0, 2, 3]
    assert (folder / "episode-000003.npz").read_bytes() == (made / "episode-000003.npz").read_bytes()
    attempts: list[int] = []
    generate(folder, EPISODES, seed=3, workers=1, renderer="rays", on_progress=lambda done, _: attempts.append(done))
    assert attempts == []


def generate_many(folder: Path, workers: int) -> None:
    generate(folder, 16, seed=1, workers=workers, renderer="rays")


@pytest.mark.slow
def test_a_killed_generator_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = mp.get_context("spawn").Process(target=generate_many, args=(killed, 2))
    process.start()
    while len(list(killed.glob("episode-*.npz"))) < 3:
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    process.close()
    assert not json.loads((killed / MANIFEST).read_text())["finished"]
    (killed / "episode-000015.npz.1.tmp").write_bytes(b"half an episode")
    generate_many(killed, 1)
    generate_many(whole, 1)
    assert contents(killed) == contents(whole)


def test_mutated_manifests_are_refused_or_read(folder: Path) -> None:
    whole, draw, read = json.loads((folder / MANIFEST).read_text()), random.Random(0), 0
    for _ in range(int(os.environ.get("EQUIPOISE_CASES", "150"))):
        (folder / MANIFEST).write_bytes(mutated_json(whole, draw))
        with contextlib.suppress(BadInput):
            assert len(load(folder).action) > 0
            read += 1
    assert read >= 1

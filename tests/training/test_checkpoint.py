"""Checkpoints: whole after any kill; where the disk has damaged one, that is said and nothing is lost."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from equipoise import MIMO, MSL
from equipoise.data.bundled import two_sensors
from equipoise.training import checkpoint
from equipoise.training.settings import Settings
from equipoise.training.train import Record, Trained, train
from equipoise.util.errors import BadInput

DATA = two_sensors(samples=150)
PLAIN = Settings(epochs=4, batch=32, features=8)


def same(one: Trained, other: Trained) -> bool:
    weights = other.model.state_dict()
    return all(torch.equal(tensor, weights[name]) for name, tensor in one.model.state_dict().items())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, "found another"),
        (flip_a_bit, "found another"),
        (Path.unlink, "found: No such file"),
        (replace_by_a_folder, "found: Is a directory"),
    ],
)
@pytest.mark.parametrize("file", [checkpoint.MODEL, checkpoint.STATE, checkpoint.SEAL])
def test_a_damaged_newest_checkpoint_is_named_and_what_to_type_helps(
    damage: Callable[[Path], None], words: str, file: str, tmp_path: Path
) -> None:
    folder = tmp_path / "a run"
    undisturbed = train(DATA, MIMO(), PLAIN, folder=folder, checkpoint_seconds=0)
    kept = checkpoint.checkpoints(folder)
    assert [path.name for path in kept] == ["epoch-00003", "epoch-00004"]
    assert checkpoint.damage_in(folder) == ""
    damage(kept[-1] / file)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(BadInput, match=words) as found:
        train(DATA, MIMO(), PLAIN, folder=folder)
    *problems, last = str(found.value).splitlines()
    if file != checkpoint.SEAL:
        assert [line.partition(": ")[0] for line in problems] == [str(kept[-1] / file)]
    assert last == f"Nothing was changed. To go on from epoch-00003 instead, type: rm -r '{kept[-1]}'"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    subprocess.run(last.partition("type: ")[2], shell=True, check=True)
    seen: list[Record] = []
    again = train(DATA, MIMO(), PLAIN, folder=folder, on_epoch=seen.append)
    assert [record["epoch"] for record in seen] == [4]
    assert same(undisturbed, again)


def test_with_every_checkpoint_damaged_a_run_is_begun_anew_on_request(tmp_path: Path) -> None:
    undisturbed = train(DATA, MIMO(), PLAIN, folder=tmp_path, checkpoint_seconds=0)
    for path in checkpoint.checkpoints(tmp_path):
        cut(path / checkpoint.STATE)
    with pytest.raises(BadInput, match=r"To begin this run anew, type: rm -r .*epoch-00004 .*epoch-00003") as found:
        train(DATA, MIMO(), PLAIN, folder=tmp_path)
    subprocess.run(str(found.value).partition("type: ")[2], shell=True, check=True)
    assert same(undisturbed, train(DATA, MIMO(), PLAIN, folder=tmp_path))


def test_what_is_older_than_the_newest_may_be_damaged(tmp_path: Path) -> None:
    train(DATA, MIMO(), PLAIN, folder=tmp_path, checkpoint_seconds=0)
    cut(checkpoint.checkpoints(tmp_path)[0] / checkpoint.STATE)
    assert checkpoint.damage_in(tmp_path) == ""
    assert len(train(DATA, MIMO(), PLAIN, folder=tmp_path).curves) == 4


def test_a_kill_while_writing_leaves_what_was_there(tmp_path: Path) -> None:
    undisturbed = train(DATA, MIMO(), PLAIN, folder=tmp_path, checkpoint_seconds=0)
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / checkpoint.MODEL).write_bytes(b"half")
    assert checkpoint.damage_in(tmp_path) == ""
    assert same(undisturbed, train(DATA, MIMO(), PLAIN, folder=tmp_path))


def test_a_kill_while_an_old_one_is_removed_leaves_none_by_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def killed(path: Path, *, ignore_errors: bool = False) -> None:
        if not ignore_errors:  # of the old one; the rest of a last kill goes quietly
            names.append(path.name)
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        train(DATA, MSL(), PLAIN, folder=tmp_path, checkpoint_seconds=0)
    assert names == ["unfinished"]
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["epoch-00002", "epoch-00003"]


def test_the_newest_is_the_last_however_many_there_are(tmp_path: Path) -> None:
    names = ["epoch-00003", "epoch-00003-batch-0000010", "epoch-00004", "epoch-99999", "epoch-100000"]
    for name in sorted(names):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == names


def test_the_seal_is_one_that_everybody_can_check(tmp_path: Path) -> None:
    train(DATA, MSL(), PLAIN, folder=tmp_path)
    (newest,) = checkpoint.checkpoints(tmp_path)
    done = subprocess.run(["sha256sum", "--check", checkpoint.SEAL], cwd=newest, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{checkpoint.MODEL}: OK", f"{checkpoint.STATE}: OK"]


def test_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    train(DATA, MSL(), PLAIN.changed({"epochs": 1}), folder=tmp_path)
    (path,) = checkpoint.checkpoints(tmp_path)
    assert torch.load(path / checkpoint.STATE, weights_only=True)["epoch"] == 1

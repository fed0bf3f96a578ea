"""What --data means: names, files and folders, and what is answered where there is nothing."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from equipoise import MIMO
from equipoise.data import source
from equipoise.data.prepare.prepare import prepare
from equipoise.data.sets import PUBLISHED
from equipoise.data.source import all_data, data_set
from equipoise.measure.run import measure_run
from equipoise.training.settings import Settings
from equipoise.training.train import train
from equipoise.util.errors import BadInput
from made_up import MadeUp, make_source


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "my.npz"
    np.savez(path, a=np.arange(60.0).reshape(30, 2), label=np.arange(30) % 3, group=np.arange(30) // 3)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prepared")
    return prepare(MadeUp(), make_source(place / "source", 60), place / "made-up", workers=1).folder


def test_names_are_found() -> None:
    for name, expected in all_data().items():
        assert data_set(name) == expected


def test_a_file_is_a_data_set(own: Path) -> None:
    found = data_set(str(own))
    assert (found.name, found.folds) == ("my.npz", 5)
    assert found.load(None).check().name == "my.npz"
    marks = {found.load(fold).check().fingerprint() for fold in [None, *range(5)]}
    assert len(marks) == 6


def test_a_manifest_is_a_data_set(tmp_path: Path) -> None:
    lines = [f"{'ab'[at % 2]},{at},{at // 2}" for at in range(12)]
    (tmp_path / "my.csv").write_text("\n".join(["label,heat,group", *lines]))
    found = data_set(str(tmp_path / "my.csv"))
    assert (found.name, found.folds) == ("my.csv", 5)
    assert found.load(0).check().shapes == {"heat": (1,)}


def test_endings_may_be_capital(own: Path) -> None:
    assert data_set(str(own.rename(own.with_name("MY.NPZ")))).load(None).name == "MY.NPZ"


def test_a_data_set_travels_to_another_process_and_home_again(
    own: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own.parent)
    for found in (data_set("my.npz"), data_set(str(folder), "families")):
        travelled = pickle.loads(pickle.dumps(found))
        assert travelled == found
        monkeypatch.chdir("/")
        assert travelled.load(None).fingerprint() == found.load(None).fingerprint()
        monkeypatch.chdir(own.parent)


def test_a_file_is_read_once_until_it_changes(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = source.samples_of_npz
    monkeypatch.setattr(source, "samples_of_npz", lambda path: reads.append(path) or real(path))
    found = data_set(str(own))
    first = found.load(None)
    assert found.load(None) is first
    found.load(0)
    assert data_set(str(own)).load(None) is first
    assert len(reads) == 1
    size = own.stat().st_size
    np.savez(own, a=np.arange(60.0)[::-1].reshape(30, 2), label=np.arange(30) % 3, group=np.arange(30) // 3)
    assert own.stat().st_size == size
    os.utime(own, ns=(0, 0))  # clocks of file systems may be coarse
    assert data_set(str(own)).load(None).fingerprint() != first.fingerprint()
    assert len(reads) == 2


def test_parts_given_without_groups_have_no_folds(own: Path) -> None:
    np.savez(own, a=np.zeros((30, 2)), label=np.arange(30) % 3, split=np.repeat([0, 1, 2], 10))
    assert data_set(str(own)).folds == 0


# -- prepared folders --


def test_a_prepared_folder_is_a_data_set(folder: Path) -> None:
    found = data_set(str(folder))
    assert (found.name, found.summary, found.folds) == ("made-up", "Numbers from names.", 5)
    assert found.load(None).protocol == "official"
    assert data_set(str(folder), "families").load(None).check().protocol == "families"
    assert data_set(str(folder), "families").load(2).check().protocol == "families"


def test_an_unknown_protocol_is_answered_with_the_nearest(folder: Path) -> None:
    with pytest.raises(BadInput, match="unknown made-up split 'family'; did you mean 'families'"):
        data_set(str(folder), "family")
    with pytest.raises(BadInput, match="expected one of official, published, families"):
        data_set(str(folder), "qqqq")


def test_what_has_one_cut_has_no_protocols(own: Path) -> None:
    for text in ("watch", str(own)):
        with pytest.raises(BadInput, match="has one way to be cut only; leave out the split 'official'"):
            data_set(text, "official")


def test_benchmarks_are_looked_for_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(PUBLISHED, "made-up", MadeUp)
    monkeypatch.delenv(source.FOLDER_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"'made-up' is not prepared: looked in data/made-up, made-up\.") as found:
        data_set("made-up")
    assert "equipoise prepare made-up --source DIR --out data/made-up" in str(found.value)
    assert "set EQUIPOISE_DATA to the folder that holds made-up/" in str(found.value)
    monkeypatch.setenv(source.FOLDER_VARIABLE, str(folder.parent))
    assert data_set("made-up").load(None).name == "made-up"
    monkeypatch.delenv(source.FOLDER_VARIABLE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "made-up").symlink_to(folder)
    assert data_set("made-up").load(None).name == "made-up"


def test_a_folder_that_was_not_prepared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"expected a folder that `equipoise prepare` made, found no prepared\.json"):
        data_set(str(tmp_path))


# -- nothing there --


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wach", r"unknown data set 'wach'; did you mean 'watch'\?$"),
        ("qqqq", r"unknown data set 'qqqq'; expected one of watch, generated, .*or a file that ends in \.npz, \.csv"),
        ("", r"^no such|unknown data set ''|expected a folder"),
        ("mi.npz", r"no such file or folder: mi\.npz; did you mean my\.npz\?"),
        ("my.nzp", r"no such file or folder: my\.nzp; did you mean my\.npz\?"),
        ("none/my.npz", r"no such file or folder: none/my\.npz$"),
        ("zzzz.csv", r"no such file or folder: zzzz\.csv$"),
        ("note.txt", r"note\.txt: expected a prepared folder, or a file that ends in .*; found a file of another kind"),
    ],
)
def test_what_is_not_there_is_answered_with_what_to_type(
    text: str, message: str, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own.parent)
    Path("note.txt").write_text("hello")
    with pytest.raises(BadInput, match=message):
        data_set(text)


# -- all the way --


def mixed(path: Path) -> Path:
    """Series of different length, pictures in bytes, a number, and frames: 60 samples of twenty people."""
    random = np.random.default_rng(0)
    series = np.empty(60, object)
    series[:] = [random.normal(size=(3, 8 + number % 5)) for number in range(60)]
    np.savez(
        path,
        imu=series,
        cam=random.integers(0, 255, (60, 8, 8, 3), dtype=np.uint8),
        heat=random.normal(size=60),
        film=random.normal(size=(60, 1, 2, 6, 6)),
        label=np.arange(60) % 3,
        group=np.arange(60) // 3,
    )
    return path


def test_whatever_an_array_is_it_can_be_trained_on_and_measured(tmp_path: Path) -> None:
    splits = data_set(str(mixed(tmp_path / "my.npz"))).load(None).check()
    trained = train(splits, MIMO(), Settings(epochs=1, batch=12, features=8, device="cpu"), seed=0)
    assert list(trained.curves[-1]["validation"]) == ["fused", "imu", "cam", "heat", "film"]
    found = measure_run(trained.model, splits, seed=0)
    assert set(found["test"]["faults"]) == {"imu", "cam", "heat", "film", "mean", "worst"}
    assert 0 <= found["test"]["fused"] <= 1


@pytest.mark.slow
def test_the_example_ends_in_a_table() -> None:
    program = Path(__file__).parents[2] / "examples" / "own_data.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "wrong: nothing" in done.stdout
    assert "my.npz: accuracy on the test set" in done.stdout
    assert all(f"\n{name} " in done.stdout for name in ("msl", "ew", "mimo"))

"""Manifests: what each column becomes, by the stated rules; and everything that is wrong with one."""

import csv
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from equipoise.data.own import table as tables
from equipoise.data.own.manifest import read_manifest, samples_of_manifest
from equipoise.data.own.samples import Samples
from equipoise.data.own.stacked import stack_files
from equipoise.data.splits import Splits
from equipoise.media.sound import resample
from equipoise.media.spectrogram import fbank
from equipoise.util.errors import BadInput
from media.made import make_image, make_video, make_wav, tone
from memory_peak import takes_less_than

COUNT = 12
Row = dict[str, Any]


def write_csv(path: Path, rows: list[Row], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: list[Row]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


WRITERS: dict[str, Callable[[Path, list[Row]], Path]] = {".csv": write_csv, ".parquet": write_parquet}


def rows(**columns: Callable[[int], Any]) -> list[Row]:
    told = {"label": lambda at: "ab"[at % 2], "group": lambda at: at // 2, **columns}
    return [{name: value(at) for name, value in told.items()} for at in range(COUNT)]


def read(path: Path, **columns: Callable[[int], Any]) -> Samples:
    return samples_of_manifest(WRITERS[path.suffix](path, rows(**columns)))


def heard(at: int, seconds: float, rate: int) -> np.ndarray:
    """A tone in noise, so that every band has something to hear."""
    noise = np.random.default_rng(at).normal(size=round(seconds * rate))
    return tone(seconds, rate, 300.0 + 200 * (at % 2)) + 0.1 * noise.astype(np.float32)


def bands(wave: np.ndarray) -> torch.Tensor:
    return fbank(torch.from_numpy(wave), 8_000, 64).T


def fine(samples: Samples) -> Samples:
    assert samples.problems == ()
    Splits.from_samples(samples).check()
    return samples


# -- numbers --


@pytest.mark.parametrize("suffix", WRITERS)
def test_numbers_become_vectors_by_their_names(suffix: str, tmp_path: Path) -> None:
    columns: dict[str, Callable[[int], Any]] = {
        "heat": lambda at: 20.5 + at,
        "pose_1": lambda at: at + 100,
        "pose_0": lambda at: at,
        "acc.x": lambda at: 0.5 * at,
        "acc.y": lambda at: -at,
        "count_1": lambda at: 3 * at,
        "count_2": lambda at: 4 * at,
        "acc.z": lambda at: 1e-3 * at,
    }
    found = fine(read(tmp_path / f"a{suffix}", **columns))
    assert {name: array.shape[1] for name, array in found.inputs.items()} == {
        "heat": 1,
        "pose": 2,
        "acc": 3,
        "count": 2,
    }
    assert found.inputs["pose"][5].tolist() == [5, 105]
    assert found.inputs["count"][5].tolist() == [15, 20]
    np.testing.assert_allclose(found.inputs["acc"][5], [2.5, -5, 0.005], rtol=1e-6)


def test_both_forms_of_a_manifest_give_the_same(tmp_path: Path) -> None:
    columns: dict[str, Callable[[int], Any]] = {
        "heat": lambda at: at / 8,
        "pose_0": lambda at: at,
        "pose_1": lambda at: -at,
    }
    marks = {Splits.from_samples(read(tmp_path / f"a{suffix}", **columns)).fingerprint() for suffix in WRITERS}
    assert len(marks) == 1


def test_lists_in_a_parquet_are_vectors_or_series(tmp_path: Path) -> None:
    found = fine(
        read(
            tmp_path / "a.parquet",
            v=lambda at: [at, 1.5],
            s=lambda at: [1.0] * (1 + at),
            m=lambda at: [[at, 1], [2, 3]],
        )
    )
    assert {name: tuple(array.shape[1:]) for name, array in found.inputs.items() if "length" not in name} == {
        "v": (2,),
        "s": (1, 12),
        "m": (2, 2),
    }
    assert found.inputs["s_length"].tolist() == list(range(1, 13))


def test_other_marks_between_columns_and_a_byte_order_mark(tmp_path: Path) -> None:
    one = write_csv(tmp_path / "a.csv", rows(heat=lambda at: at), ";")
    other = write_csv(tmp_path / "b.csv", rows(heat=lambda at: at), "\t")
    third = tmp_path / "c.csv"
    third.write_bytes(b"\xef\xbb\xbf" + write_csv(tmp_path / "d.csv", rows(heat=lambda at: at)).read_bytes())
    assert (
        len({Splits.from_samples(fine(samples_of_manifest(path))).fingerprint() for path in (one, other, third)}) == 1
    )


def test_columns_that_are_none_are_left_out_and_said(tmp_path: Path) -> None:
    found = fine(read(tmp_path / "a.csv", heat=lambda at: at, _note=lambda _: "hello", **{"": lambda at: at}))
    assert list(found.inputs) == ["heat"]
    assert "column _note left out" in Splits.from_samples(found).about


# -- labels, parts and groups --


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        (["0", "1", "2"], ("0", "1", "2")),
        (["1", "2", "10"], ("1", "2", "10")),
        (["01", "1", "10"], ("01", "1", "10")),  # names: as numbers two of them would be one
        (["cat", "dog", "1"], ("1", "cat", "dog")),
        (["1_0", "10", "2"], ("10", "1_0", "2")),
        (["no", "yes", "no"], ("no", "yes")),
    ],
)
def test_labels_by_hand(label: list[str], classes: tuple[str, ...], tmp_path: Path) -> None:
    found = fine(read(tmp_path / "a.csv", heat=lambda at: at, label=lambda at: label[at % 3]))
    assert found.label is not None
    assert found.label.names == classes


def test_parts_are_those_of_the_column(tmp_path: Path) -> None:
    parts = ["train", "train", "val", "test"]
    found = read(tmp_path / "a.csv", heat=lambda at: at, split=lambda at: parts[at // 2 % 4], group=lambda at: at)
    assert [len(part) for part in Splits.from_samples(fine(found)).parts.values()] == [8, 2, 2]


@pytest.mark.parametrize(("groups", "folds"), [(6, 5), (4, 4), (3, 3), (2, 0)])
def test_folds_are_known_before_files_are_read(groups: int, folds: int, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", rows(sound=lambda at: f"{at}.wav", group=lambda at: at % groups))
    assert read_manifest(path).folds == folds


# -- files --


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sounds of two rates and four lengths, pictures of two sizes, short videos, series of growing length."""
    folder = tmp_path_factory.mktemp("files")
    for at in range(COUNT):
        rate = 8_000 if at < 8 else 16_000
        make_wav(folder / f"{at}.wav", rate=rate, wave=heard(at, 0.2 + 0.1 * (at % 4), rate))
        make_image(folder / f"{at}.png", (10, 14) if at % 3 else (12, 12))
        np.save(folder / f"{at}.npy", np.full((2, 5 + at), float(at)))
    for at in range(2):
        make_video(folder / f"{at}.avi", 0.4 + 1.2 * at, 10, 32)
    return folder


def test_sounds_have_one_rate_and_length(folder: Path) -> None:
    found = read(folder / "sounds.csv", sound=lambda at: f"{at}.wav")
    array = fine(found).inputs["sound"]
    # 8 kHz is most common, and nine of ten are no longer than 0.5 s: 4,000 samples, frames of 200 every 80.
    assert array.shape == (COUNT, 1, 64, 1 + (4000 - 200) // 80)
    assert "sound: mono at 8000 Hz, 0.50 s, 64 log mel bands" in found.notes
    repeated = np.resize(heard(1, 0.3, 8_000), 4000)
    torch.testing.assert_close(array[1, 0], bands(repeated), atol=0.01, rtol=0)
    slowed = np.resize(resample(heard(9, 0.3, 16_000), 16_000, 8_000), 4000)
    torch.testing.assert_close(array[9, 0], bands(slowed), atol=0.01, rtol=0)


def test_long_sounds_keep_their_middle(tmp_path: Path) -> None:
    long = heard(0, 1.0, 8_000)
    for at in range(COUNT):
        make_wav(tmp_path / f"{at}.wav", rate=8_000, wave=heard(at, 0.1, 8_000) if at else long)
    found = fine(read(tmp_path / "a.csv", sound=lambda at: f"{at}.wav")).inputs["sound"]
    torch.testing.assert_close(found[0, 0], bands(long[3600:4400]), atol=0.01, rtol=0)
    torch.testing.assert_close(found[5, 0], bands(heard(5, 0.1, 8_000)), atol=0.01, rtol=0)


def test_what_is_usual_is_asked_of_training_rows(folder: Path) -> None:
    marks = {8: "test", 9: "test", 10: "val", 11: "val"}
    columns: dict[str, Callable[[int], Any]] = {"sound": lambda at: f"{at}.wav", "group": lambda at: at}
    marked = read(folder / "marked.csv", **columns, split=lambda at: marks.get(at, "train"))
    assert "mono at 8000 Hz" in marked.notes[0]
    turned = read(
        folder / "turned.csv", **columns, split=lambda at: "train" if at >= 8 else "test" if at % 2 else "val"
    )
    assert "mono at 16000 Hz" in turned.notes[0]


def test_of_two_rates_as_common_the_lower_is_taken(folder: Path) -> None:
    paths = [folder / f"{at}.wav" for at in (10, 11, 1, 2)]
    assert "mono at 8000 Hz" in stack_files("sound", paths, range(4)).note


def test_pictures_have_the_most_common_size(folder: Path) -> None:
    found = read(folder / "pictures.csv", cam=lambda at: f"{at}.png")
    assert fine(found).inputs["cam"].shape == (COUNT, 3, 10, 14)
    assert found.inputs["cam"].dtype == torch.uint8
    assert Splits.from_samples(found).shapes == {"cam": (3, 10, 14)}
    assert "cam: pictures of 10 × 14, in colour" in found.notes


def test_large_pictures_are_reduced_and_grey_ones_stay_grey(tmp_path: Path) -> None:
    for at in range(COUNT):
        make_image(tmp_path / f"{at}.png", pixels=np.full((20, 448), 10 * at, np.uint8))
    found = fine(read(tmp_path / "a.csv", cam=lambda at: f"{at}.png"))
    assert found.inputs["cam"].shape == (COUNT, 1, 10, 224)
    assert found.inputs["cam"][3].unique().tolist() == [30]
    make_image(tmp_path / "3.png", pixels=np.full((20, 448, 3), (200, 30, 0), np.uint8))
    coloured = fine(read(tmp_path / "b.csv", cam=lambda at: f"{at}.png")).inputs["cam"]
    assert coloured.shape == (COUNT, 3, 10, 224)
    assert coloured[3, :, 0, 0].tolist() == [200, 30, 0]


def test_videos_become_eight_frames(folder: Path) -> None:
    found = fine(read(folder / "videos.csv", film=lambda at: f"{at % 2}.avi"))
    assert found.inputs["film"].shape == (COUNT, 3, 8, 112, 112)
    # Four frames are shown twice each; of sixteen the middle of each pair is shown once.
    greys = found.inputs["film"].float().mean(dim=(1, 3, 4))
    four = [round((float(grey) - 16) / 24) for grey in greys[0]]
    assert four == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len({round((float(grey) - 16) / 24) for grey in greys[1]}) >= 5


def test_the_sound_track_of_a_video_is_read_where_the_column_says_so(folder: Path) -> None:
    found = fine(
        read(folder / "both.csv", film=lambda at: f"{at % 2}.avi", **{"talk:sound": lambda at: f"{at % 2}.avi"})
    )
    assert found.inputs["film"].dim() == 5
    assert found.inputs["talk"].shape[1:3] == (1, 64)


def test_arrays_may_differ_in_time(folder: Path) -> None:
    found = fine(read(folder / "arrays.csv", imu=lambda at: f"{at}.npy"))
    assert found.inputs["imu"].shape == (COUNT, 2, 5 + COUNT - 1)
    assert found.inputs["imu_length"].tolist() == [5 + at for at in range(COUNT)]


def test_a_manifest_may_be_read_from_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write_csv(folder / "here.csv", rows(imu=lambda at: f"{at}.npy"))
    monkeypatch.chdir(tmp_path)
    fine(samples_of_manifest(path))
    absolute = write_csv(tmp_path / "there.csv", rows(imu=lambda at: str(folder / f"{at}.npy")))
    fine(samples_of_manifest(absolute))


# -- everything wrong at once --


def test_every_file_that_cannot_be_read_is_named_with_the_reason(folder: Path) -> None:
    (folder / "text.wav").write_text("hello")
    (folder / "text.png").write_text("hello")
    (folder / "empty.npy").write_bytes(b"")
    np.save(folder / "other.npy", np.zeros((3, 4)))
    (folder / "bomb.npy").write_bytes(b"\x93NUMPY\x01\x00" + pickle.dumps(print))
    wrong = {
        "sound": {3: "none.wav", 4: "text.wav"},
        "cam": {5: "text.png", 6: "none.png"},
        "imu": {7: "empty.npy", 8: "bomb.npy"},
    }
    endings = {"sound": "wav", "cam": "png", "imu": "npy"}
    columns: dict[str, Callable[[int], Any]] = {
        name: lambda at, name=name: wrong[name].get(at, f"{at}.{endings[name]}") for name in wrong
    }
    found = read(
        folder / "wrong.csv", **columns, heat=lambda at: "inf" if at == 9 else at, label=lambda at: "a" if at else ""
    )
    for name, which in wrong.items():
        for at, file in which.items():
            (line,) = [problem for problem in found.problems if problem.startswith(f"{name}, line {at + 2}: ")]
            assert str(folder / file) in line
    assert "sound, line 5: " + str(folder / "none.wav") + ": there is no such file" in found.problems
    assert any(
        "heat: expected finite numbers" in each and "1 of 12 samples (line 11)" in each for each in found.problems
    )
    assert "label: expected a value for every sample, found none in 1 of 12 (line 2)" in found.problems
    assert len(found.problems) == 8


def test_shapes_that_differ_are_named_by_row(folder: Path) -> None:
    np.save(folder / "other.npy", np.zeros((3, 4)))
    found = read(folder / "a.csv", imu=lambda at: "other.npy" if at == 4 else f"{at}.npy", id=lambda at: f"clip{at}")
    assert "in 11 (clip1, " in found.problems[0]
    assert "series [C, T] that differ in T only" in found.problems[0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"note": lambda _: "hello"}, "column note: expected numbers, or paths to files that end in one of .avi"),
        ({"cam": lambda at: "1.png" if at else "1.wav"}, "found image and also sound in 1 rows (line 2); put"),
        ({"cam:image": lambda _: ""}, "column cam:image: expected a value in some row, found none in all of them"),
        ({"cam": lambda at: "1.png" if at % 2 else "7"}, "found '7' (line 2, line 4,"),
        ({"cam:picture": lambda _: "1.png"}, "expected one of sound, image, video, array after the colon"),
        ({"pose_0": lambda at: at, "pose_2": lambda at: at}, "pose_1, … without a gap, found the numbers [0, 2]"),
        ({"pose": lambda at: at, "pose_0": lambda at: at}, "column pose: expected one modality of this name, found 2"),
        ({"fused": lambda at: at}, "No modality may be called 'fused'"),
        ({"classes": lambda at: at}, "No modality may be called 'classes'"),
        ({"sepal_length": lambda at: at}, "sepal_length: expected a modality 'sepal' whose lengths these are"),
        ({"id": lambda at: at // 2}, "id: expected another name for every sample, found again '0', '1', '2', '3'"),
        ({"label": lambda _: 0.5}, "label: expected numbers that differ, found one only in label"),
        ({"split": lambda at: "later" if at else "train"}, "split: expected train, validation or test"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_beside_another(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    found = read(tmp_path / "a.csv", heat=lambda at: "inf" if at == 3 else at, **columns)
    assert message in "\n".join(found.problems)
    assert any(problem.startswith("heat: expected finite numbers") for problem in found.problems)
    with pytest.raises(ValueError, match="cannot be trained on"):
        Splits.from_samples(found)


def test_a_manifest_without_modalities_or_rows(tmp_path: Path) -> None:
    assert "expected a column per modality beside label" in read(tmp_path / "a.csv").problems[0]
    (tmp_path / "b.csv").write_text("label,heat\n")
    assert "expected a row per sample, found none below" in samples_of_manifest(tmp_path / "b.csv").problems[0]
    (tmp_path / "c.csv").write_text("heat\n1\n2\n")
    assert "label: expected the answer of each sample" in samples_of_manifest(tmp_path / "c.csv").problems[0]
    (tmp_path / "d.csv").write_text("label,heat,heat\na,1,2\nb,1\n\nb,3,4,5\n")
    found = samples_of_manifest(tmp_path / "d.csv").problems
    assert "column heat: expected one of this name, found several" in found
    assert "line 3: expected 3 values, found 2" in found
    assert "line 5: expected 3 values, found 4" in found


@pytest.mark.parametrize("suffix", WRITERS)
def test_other_files_called_manifests_get_one_message(suffix: str, tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("bytes", bytes(range(256))), ("quote", b'label,"a\nb,c\n')):
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="Expected a manifest: a first line with the names") as found:
            read_manifest(path)
        assert str(path) in str(found.value)
    with pytest.raises(ValueError, match="there is no such file"):
        read_manifest(tmp_path / f"none{suffix}")


def test_a_parquet_with_holes(tmp_path: Path) -> None:
    found = read(
        tmp_path / "a.parquet",
        heat=lambda at: None if at == 2 else at,
        flag=lambda at: at % 2 == 0,
        label=lambda at: None if at == 5 else "ab"[at % 2],
        group=lambda at: None if at == 7 else at,
    )
    assert found.inputs["heat_present"].tolist() == [at != 2 for at in range(12)]
    assert "label: expected a value for every sample, found none in 1 of 12 (row 5)" in found.problems
    assert "group: expected a value for every sample, found none in 1 of 12 (row 7)" in found.problems
    assert found.inputs["flag"][:2].flatten().tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("package", "column", "suffix"),
    [("pyarrow", "heat", ".parquet"), ("soundfile", "wav", ".csv"), ("PIL", "png", ".csv"), ("av", "avi", ".csv")],
)
def test_a_missing_package_is_named_with_what_to_type(
    package: str, column: str, suffix: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = WRITERS[suffix](folder / f"without{suffix}", rows(**{column: lambda at: f"{at % 2}.{column}"}))
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {package}.*, which is not installed; type: pip install"):
        samples_of_manifest(path)


def test_a_value_that_is_written_once_and_stands_in_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of kilobytes whose table would take gigabytes."""
    rows = 4000
    long = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows), pyarrow.array(["x" * 10**6]))
    table = pyarrow.table({"label": ["a", "b"] * (rows // 2), "heat": [1.0] * rows, "long": long})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", store_schema=False)
    assert (tmp_path / "a.parquet").stat().st_size < 10**6
    monkeypatch.setattr(tables, "free_memory", lambda: 2**27)
    said = r"a\.parquet: needs about 0\.\d GiB of memory, and 0\.1 GiB are free; store it"
    with pytest.raises(BadInput, match=said), takes_less_than(300):
        samples_of_manifest(tmp_path / "a.parquet")


def test_more_rows_than_fit_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pyarrow.table({"label": ["a", "b"] * 50_000, "heat": [1.0] * 100_000})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    monkeypatch.setattr(tables, "free_memory", lambda: 2**20)
    with pytest.raises(BadInput, match=r"a\.parquet: needs about"):
        samples_of_manifest(tmp_path / "a.parquet")


def test_a_csv_without_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.csv").open("wb") as file:
        file.truncate(2**42)
    with pytest.raises(
        BadInput, match=r"a\.csv: needs about 40,960\.0 GiB of memory, and .* GiB are free; store it as"
    ):
        samples_of_manifest(tmp_path / "a.csv")

"""AVE second by second: features that are never read at once, one label each, rows that stay in their parts."""

import pickle
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from data.sets.checks import (
    check_arrays,
    check_it_trains,
    check_listing,
    check_reading_draws_nothing,
    check_trains,
    counts,
    groups_in_two_parts,
    write_list,
)
from data.sets.test_ave import HEADER, ROWS
from equipoise.data.prepare.prepare import prepare
from equipoise.data.sets.ave import AVE, EVENTS, HDF5Array
from equipoise.models.encoders import MLP
from equipoise.models.late_fusion import LateFusion
from equipoise.models.sequence import PooledMap
from equipoise.util import processes
from equipoise.util.errors import Unreadable

SEGMENTS = AVE(task="segments")
SHAPES = {"visual_feature.h5": (10, 7, 7, 512), "audio_feature.h5": (10, 128), "right_labels.h5": (10, 29)}
ORDERS = {"train_order.h5": [4, 0, 2], "val_order.h5": [3, 5], "test_order.h5": [1]}


def write_array(path: Path, array: Any, name: str = "avadataset") -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=array)


def write_features(source: Path, count: int = 6) -> dict[str, np.ndarray]:
    """Features that tell their place: channel c of row i, second s, at (h, w) is i + s / 16 + (c + 8 h + w) / 1024."""
    row, second = np.meshgrid(np.arange(count), np.arange(10), indexing="ij")
    place = row + second / 16
    plane = 8 * np.arange(7)[:, None] + np.arange(7)
    within = (np.arange(512) % 16 + plane[:, :, None]) / 1024
    labels = np.zeros((count, 10, 29))
    labels[row, second, (row + second) % 29] = 1
    labels[:, 9] = np.eye(29)[28]
    arrays = {
        "visual_feature.h5": (place[:, :, None, None, None] + within).astype(np.float32),
        "audio_feature.h5": (place[:, :, None] + np.arange(128)).astype(np.float32),
        "right_labels.h5": labels,
    }
    for file, array in arrays.items():
        write_array(source / file, array)
    for file, order in ORDERS.items():
        write_array(source / file, np.array(order), "order")
    return arrays


@pytest.fixture
def features(tmp_path: Path) -> Path:
    write_features(tmp_path)
    return tmp_path


def test_every_second_is_a_sample(features: Path) -> None:
    clips = SEGMENTS.open(features)
    check_listing(SEGMENTS, clips)
    assert len(clips.listed) == 60
    assert SEGMENTS.classes(clips) == (*EVENTS, "background")
    assert [clip.label for clip in clips.listed[:10]] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 28]
    assert [clip.label for clip in clips.listed[30:40]] == [3, 4, 5, 6, 7, 8, 9, 10, 11, 28]
    assert counts(clips.listed, "official") == {"train": 30, "validation": 20, "test": 10}
    assert counts(clips.listed, "agm-valid") == {"train": 30, "validation": 0, "test": 20}
    assert {clip.parts["official"] for clip in clips.listed[30:40]} == {"validation"}
    assert (clips.listed[37].id, clips.listed[37].group) == ("0003/7", "row 0003")
    arrays = clips.read(37)
    check_arrays(SEGMENTS, arrays)
    assert arrays["audio"].tolist() == [3 + 7 / 16 + number for number in range(128)]
    for channel, high, wide in ((0, 0, 0), (5, 6, 2), (500, 3, 3)):
        expected = 3 + 7 / 16 + (channel % 16 + 8 * high + wide) / 1024
        assert arrays["video"][channel, high, wide] == pytest.approx(expected, abs=2e-3)
    view = SEGMENTS.fields["video"].view
    assert view is not None
    seen = view(torch.from_numpy(arrays["video"])[None], None, None)
    assert (seen.dtype, seen.shape) == (torch.float32, (1, 512, 7, 7))
    check_reading_draws_nothing(clips, 11)


def test_rows_of_one_video_stay_together_where_the_list_is_there(features: Path) -> None:
    write_list(features / "Annotations.txt", [HEADER, *ROWS])
    clips = SEGMENTS.open(features).listed
    assert clips[0].group == clips[59].group == "RUhOCu3LNXM"
    assert "official" not in clips[0].parts  # row 0 is in train and row 5, of the same video, in validation
    assert clips[59].parts["official"] == "validation"
    assert groups_in_two_parts(clips, "official") == groups_in_two_parts(clips, "videos") == set()
    write_list(features / "Annotations.txt", [HEADER, *ROWS[1:]])
    with pytest.raises(ValueError, match=r"Annotations\.txt: expected 6 rows as in the features, found 5"):
        SEGMENTS.open(features)


def test_the_publishers_labels_will_do_where_the_corrected_are_not_there(features: Path) -> None:
    (features / "right_labels.h5").rename(features / "labels.h5")
    assert len(SEGMENTS.open(features).listed) == 60
    write_array(features / "right_labels.h5", np.tile(np.eye(29)[5], (6, 10, 1)))
    assert {clip.label for clip in SEGMENTS.open(features).listed} == {5}


def test_a_second_without_one_label_or_with_no_numbers_is_skipped_with_its_reason(tmp_path: Path) -> None:
    arrays = write_features(tmp_path)
    arrays["right_labels.h5"][0, 0] = 0
    arrays["right_labels.h5"][0, 1] = 1
    arrays["visual_feature.h5"][0, 2, 3, 3, 100] = 1e6  # too large for 16 bits
    arrays["audio_feature.h5"][0, 3, 5] = np.nan
    for file, array in arrays.items():
        write_array(tmp_path / file, array)
    clips = SEGMENTS.open(tmp_path)
    for number, reason in enumerate(
        [
            "expected one label, found 0",
            "expected one label, found 29",
            r"visual_feature\.h5, row 0",
            r"audio_feature\.h5, row 0",
        ]
    ):
        with pytest.raises(Unreadable, match=reason):
            clips.read(number)
    clips.read(4)


def test_features_of_the_real_size_are_opened_and_read_one_second_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 4,143 × 10 × 49 × 512 numbers are 4 GB: an empty file of that shape takes no room, but would not fit the memory.
    for file, shape in SHAPES.items():
        with h5py.File(tmp_path / file, "w") as made:
            if file == "right_labels.h5":
                made["avadataset"] = np.broadcast_to(np.eye(29, dtype="f4")[28], (4143, *shape))
            else:
                made.create_dataset("avadataset", (4143, *shape), dtype="f4", chunks=(1, *shape))[4142] = 3
    for file, (first, last) in {
        "train_order.h5": (0, 3339),
        "val_order.h5": (3339, 3741),
        "test_order.h5": (3741, 4143),
    }.items():
        write_array(tmp_path / file, np.arange(first, last), "order")
    asked: list[tuple[str, Any]] = []
    plain = HDF5Array.__getitem__

    def watched(table: HDF5Array, where: Any) -> np.ndarray:
        asked.append((table.path.name, where))
        return plain(table, where)

    monkeypatch.setattr(HDF5Array, "__getitem__", watched)
    clips = SEGMENTS.open(tmp_path)
    assert len(clips.listed) == 41_430
    assert counts(clips.listed, "official") == {"train": 33_390, "validation": 4_020, "test": 4_020}
    assert {name for name, _ in asked} == {"right_labels.h5", *ORDERS}
    asked.clear()
    assert (clips.read(41_429)["video"] == 3).all()
    assert sorted(asked) == [("audio_feature.h5", (4142, 9)), ("visual_feature.h5", (4142, 9))]


def test_everything_wrong_with_the_features_is_said_at_once(features: Path) -> None:
    write_array(features / "visual_feature.h5", np.zeros((6, 10, 512)))
    write_array(features / "audio_feature.h5", np.zeros((5, 10, 128)))
    write_array(features / "right_labels.h5", np.zeros((6, 10, 29)), "labels")
    write_array(features / "train_order.h5", np.array([0, 6, -1]), "order")
    write_array(features / "val_order.h5", np.array([1, 2, 2.5, np.nan]), "order")
    (features / "test_order.h5").write_bytes(b"not an h5 file")
    with pytest.raises(ValueError, match="cannot be read as ave") as caught:
        SEGMENTS.open(features)
    for expected in (
        r"visual_feature\.h5: expected avadataset of shape \[N, 10, 7, 7, 512\], found \[6, 10, 512\]",
        r"expected as many rows in every file, found .*'audio_feature\.h5': 5",
        r"right_labels\.h5: expected an array of numbers called 'avadataset'; found labels",
        r"train_order\.h5: expected whole numbers from 0 to 5, found 6, -1",
        r"val_order\.h5: expected whole numbers from 0 to 5, found 2\.5, nan",
        r"test_order\.h5: ",
    ):
        assert re.search(expected, str(caught.value)), expected


def test_a_row_is_in_one_part(features: Path) -> None:
    write_array(features / "val_order.h5", np.array([3, 0]), "order")
    with pytest.raises(ValueError, match=r"val_order\.h5: expected every row once, found 0 \(also in train\)"):
        SEGMENTS.open(features)
    write_array(features / "val_order.h5", np.array([3, 3]), "order")
    with pytest.raises(ValueError, match=r"val_order\.h5: expected every row once, found some twice"):
        SEGMENTS.open(features)


@pytest.mark.parametrize("file", [*SHAPES, *ORDERS])
def test_broken_files_are_named(file: str, features: Path) -> None:
    path = features / file
    whole = path.read_bytes()
    noise = np.random.default_rng(0)
    broken = [b"", *(noise.bytes(200) for _ in range(10)), whole[:100], whole[: len(whole) // 2]]
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=file):
            SEGMENTS.open(features)
    path.write_bytes(whole)
    with h5py.File(path, "w") as made:
        made.create_dataset("avadataset" if file in SHAPES else "order", data=np.array([b"text"]))
    with pytest.raises(ValueError, match=rf"{file}: expected an array of numbers"):
        SEGMENTS.open(features)


def test_an_open_table_travels_to_another_process(features: Path) -> None:
    table = HDF5Array(features / "audio_feature.h5", "avadataset")
    expected = table[2, 3]
    other = pickle.loads(pickle.dumps(table))
    assert (other[2, 3] == expected).all()
    assert other.shape == (6, 10, 128)


@pytest.mark.slow
def test_segments_prepared_and_trained(features: Path, tmp_path: Path) -> None:
    prepared = prepare(SEGMENTS, features, tmp_path / "out", workers=2)
    splits = prepared.splits()
    assert splits.shapes == {"audio": (128,), "video": (512, 7, 7)}
    assert {part: len(each) for part, each in splits.parts.items()} == {"train": 30, "validation": 20, "test": 10}
    first = splits.train.in_memory().ready()
    assert first.inputs["audio"][0].tolist() == [float(number) for number in range(128)]
    assert first.label[:10].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 28]
    encoders = {"audio": MLP(128, 8, (16,)), "video": PooledMap(512, 8, (16,))}
    check_it_trains(LateFusion(encoders, classes=29), splits.train)
    check_trains(splits, "ave-segments", features=8)


def test_numbers_that_lie_in_another_file_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(80))
    write_array(tmp_path / "other.h5", np.zeros(10))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("outside", (10,), "f8", external=[(str(secret), 0, 80)])
        file["linked"] = h5py.ExternalLink("other.h5", "avadataset")
        file["soft"] = h5py.SoftLink("/own")
        layout = h5py.VirtualLayout((10,), "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "avadataset", (10,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("own", data=np.arange(3.0))
    assert HDF5Array(tmp_path / "a.h5", "own")[...].tolist() == [0, 1, 2]
    for name in ("outside", "linked", "soft", "virtual"):
        with pytest.raises(
            Unreadable, match=r"a\.h5: expected (the numbers of .* in the file itself|an array of numbers)"
        ):
            HDF5Array(tmp_path / "a.h5", name)


def test_rows_that_only_a_header_claims_have_to_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("many", (10**15, 2), "f8", chunks=(10, 2))
        file.create_dataset("wide", (1, 10**6), "f8", chunks=(1, 10))
    with pytest.raises(Unreadable, match="claims 1,000,000,000,000,000 rows; to list them needs about"):
        HDF5Array(tmp_path / "a.h5", "many")
    monkeypatch.setattr(processes, "free_memory", lambda: 2**20)
    with pytest.raises(Unreadable, match=r"'wide' needs about 0\.0 GiB of memory, and 0\.0 GiB are free"):
        HDF5Array(tmp_path / "a.h5", "wide")[...]

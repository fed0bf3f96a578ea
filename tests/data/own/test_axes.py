"""Axes that are not time: said in Python, in an .npz and in a manifest."""

from pathlib import Path

import numpy as np
import pytest

from equipoise.data.own.manifest import samples_of_manifest
from equipoise.data.own.npz import samples_of_npz
from equipoise.data.own.recordings import Recording
from equipoise.data.splits import Splits

COUNT = 30
LABEL = np.arange(COUNT) % 3
SCAN = np.random.default_rng(0).normal(size=(COUNT, 1, 36))
IMU = np.random.default_rng(1).normal(size=(COUNT, 3, 10))


def test_python_says_it_by_a_keyword() -> None:
    splits = Splits.from_arrays({"lidar": SCAN, "imu": IMU}, LABEL, space=("lidar",))
    assert all(part.spatial == {"lidar"} for part in splits.parts.values())
    assert all(not part.spatial for part in Splits.from_arrays({"lidar": SCAN}, LABEL).parts.values())


def test_recordings_say_it_by_a_keyword() -> None:
    drives = [
        Recording({"lidar": SCAN[0].repeat(2, 0), "imu": IMU[number]}, [(0, 2, number % 2)], {"lidar": 10, "imu": 5})
        for number in range(6)
    ]
    splits = Splits.from_recordings(drives, window="1s", space=["lidar"])
    assert splits.train.spatial == {"lidar"}
    with pytest.raises(ValueError, match=r"space: expected some of .* found 'ladar'"):
        Splits.from_recordings(drives, window="1s", space=["ladar"])


@pytest.mark.parametrize(("word", "expected"), [("space", {"lidar"}), ("time", set())])
def test_an_npz_says_it_by_a_word(word: str, expected: set[str], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", lidar=SCAN, imu=IMU, label=LABEL, lidar_axis=word)
    found = samples_of_npz(tmp_path / "a.npz")
    assert not found.problems
    assert found.spatial == expected
    assert list(found.inputs) == ["lidar", "imu"]


def test_a_manifest_says_it_by_a_column(tmp_path: Path) -> None:
    rows = ["label,lidar,imu,lidar_axis"]
    for number in range(COUNT):
        np.save(tmp_path / f"l{number}.npy", SCAN[number])
        np.save(tmp_path / f"i{number}.npy", IMU[number])
        rows.append(f"{LABEL[number]},l{number}.npy,i{number}.npy,space")
    (tmp_path / "a.csv").write_text("\n".join(rows))
    found = samples_of_manifest(tmp_path / "a.csv")
    assert not found.problems
    assert found.spatial == {"lidar"}
    assert list(found.inputs) == ["lidar", "imu"]


def test_all_that_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"space: expected some of .* found 'ladar'"):
        Splits.from_arrays({"lidar": SCAN}, LABEL, space=("ladar",))
    np.savez(tmp_path / "a.npz", lidar=SCAN, label=LABEL, lidar_axis="depth")
    assert samples_of_npz(tmp_path / "a.npz").problems == (
        "lidar_axis: expected the word time or the word space, found 'depth'",
    )


def test_a_word_for_a_sensor_that_is_not_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", lidar=SCAN, label=LABEL, lidr_axis="space", z_axis=IMU)
    found = samples_of_npz(tmp_path / "a.npz")
    assert found.problems == (
        "lidr_axis: expected a modality 'lidr' whose last axis this names, found none; did you mean lidar_axis?",
    )
    assert [*found.inputs] == ["lidar", "z_axis"], "an array of numbers is a sensor"

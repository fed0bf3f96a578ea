"""Manifests of recordings: rows that are intervals of long files, each kind of file, and everything that is wrong."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from equipoise.data.check import check_data
from equipoise.data.own.manifest import read_manifest, samples_of_manifest
from equipoise.data.own.recorded import windows_of_recorded
from equipoise.data.own.recordings import Recording
from equipoise.data.own.windows import Windows, cut_windows
from equipoise.data.source import data_set
from equipoise.media.spectrogram import fbank
from media.made import make_video, make_wav

RATES = {"imu": 50, "radar": 20, "ecg": 200}
SECONDS = 12
PEOPLE = 5


def signals(person: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(person)
    found = {name: random.normal(size=(2, SECONDS * rate)).astype("f4") for name, rate in RATES.items()}
    found["radar"][:, 80:140] = np.nan  # off from 4 to 7 s
    return found


def write(folder: Path, suffix: str, *, intervals: bool = True, **more: Any) -> Path:
    """A manifest of drives with two intervals each; `more` are further columns, or other values of these."""
    rows: list[dict[str, Any]] = []
    for person in range(PEOPLE):
        for name, values in signals(person).items():
            np.save(folder / f"{name}{person}.npy", values)
        for start, end, label in ((0, 5, "walk"), (5, 11, "run")):
            row = {"label": label, "start": start, "end": end, "group": f"person {person}", "window": "2s"}
            row |= {"stride": "1s", **{name: f"{name}{person}.npy" for name in RATES}}
            row |= {f"{name}_rate": rate for name, rate in RATES.items()}
            rows.append(row | {name: value(person) if callable(value) else value for name, value in more.items()})
    if not intervals:
        rows = [{key: value for key, value in row.items() if key not in ("start", "end")} for row in rows[::2]]
    rows = [{key: value for key, value in row.items() if value is not None} for row in rows]
    path = folder / f"drives{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_of_the_same_files_are_one_recording(suffix: str, tmp_path: Path) -> None:
    found = samples_of_manifest(write(tmp_path, suffix))
    labels = [(0, 5, "walk"), (5, 11, "run")]
    drives = [Recording(signals(person), labels, RATES, group=f"person {person}") for person in range(PEOPLE)]
    expected = cut_windows(drives, "2s", "1s", "auto")
    assert found.problems == ()
    assert {name: tuple(found.inputs[name].shape) for name in RATES} == {
        name: (PEOPLE * 11, 2, 2 * rate) for name, rate in RATES.items()
    }
    for name in RATES:
        assert np.array_equal(found.inputs[name].numpy(), expected.arrays[name])
    assert found.group is not None
    assert len(found.group.names) == PEOPLE
    assert np.array_equal(found.inputs["radar_present"].numpy(), expected.arrays["radar_present"])
    assert "radar: 40 steps at 20 Hz" in found.notes
    assert "radar: missing in 20 of 55" in found.notes


def test_a_row_without_an_interval_is_the_whole_recording(tmp_path: Path) -> None:
    found = samples_of_manifest(write(tmp_path, ".csv", intervals=False, label=lambda person: "ab"[person % 2]))
    assert len(found.inputs["imu"]) == PEOPLE * 11


def test_check_shows_what_was_cut(tmp_path: Path) -> None:
    found = check_data(str(write(tmp_path, ".csv")))
    assert "windows of 2 s every 1 s of 5 recordings: 55" in found.about
    assert "radar: missing in 20 of 55" in found.about


def test_folds_are_those_of_the_people(tmp_path: Path) -> None:
    path = write(tmp_path, ".csv")
    assert data_set(str(path)).folds == PEOPLE == read_manifest(path).folds


def test_a_blank_is_a_sensor_that_was_off(tmp_path: Path) -> None:
    found = samples_of_manifest(write(tmp_path, ".csv", ecg=lambda person: "" if person == 2 else f"ecg{person}.npy"))
    assert "ecg: missing in 11 of 55" in found.notes


def test_a_start_is_that_of_the_first_sample(tmp_path: Path) -> None:
    """The same samples with times of their own; and a sensor that begins late is absent before."""
    plain = windows_of_recorded(read_manifest(write(tmp_path, ".csv")).table)
    found = windows_of_recorded(read_manifest(write(tmp_path, ".csv", imu_start=1.7)).table)
    assert found.problems == []
    assert "imu: 100 steps at 50 Hz, begins at 1.7 s" in found.notes
    assert "ecg: 400 steps at 200 Hz" in found.notes
    assert found.places == plain.places
    for window in range(PEOPLE * 11):
        person, start = divmod(window, 11)
        first = round((start - 1.7) * 50)
        assert found.arrays["imu_present"][window] == (start >= 2)
        if start >= 2:
            assert np.array_equal(found.arrays["imu"][window], signals(person)["imu"][:, first : first + 100])
        assert np.array_equal(found.arrays["ecg"][window], plain.arrays["ecg"][window])


def cut_whole(folder: Path, **more: Any) -> Windows:
    """The windows of recordings that have one label each."""
    more |= {"label": lambda person: "ab"[person % 2]}
    return windows_of_recorded(read_manifest(write(folder, ".csv", intervals=False, **more)).table)


def test_files_without_times_may_start_anywhere(tmp_path: Path) -> None:
    """Sounds, videos and tables without times, all two seconds later, or the sound alone by half a second a person."""
    for person in range(PEOPLE):
        make_wav(tmp_path / f"{person}.wav", rate=8000, wave=np.random.default_rng(person).normal(size=8 * 8000) / 10)
        make_video(tmp_path / f"{person}.mp4", 8.0, 5, sound=False)
        x, y = signals(person)["imu"]
        lines = [f"{float(a)!r},{float(b)!r}" for a, b in zip(x, y, strict=True)]
        (tmp_path / f"{person}.csv").write_text("\n".join(["x,y", *lines]))
    files = {"mic": lambda at: f"{at}.wav", "eye": lambda at: f"{at}.mp4", "imu": lambda at: f"{at}.csv"}
    plain = cut_whole(tmp_path, **files)
    later: dict[str, Any] = {"mic_start": 2, "eye_start": 2, "imu_start": 2, "radar_start": 2, "ecg_start": 2}
    moved = cut_whole(tmp_path, **files, **later)
    assert (plain.problems, moved.problems) == ([], [])
    assert moved.places["start"] == [start + 2 for start in plain.places["start"]]
    for name, array in plain.arrays.items():
        assert np.array_equal(moved.arrays[name], array), name
    assert any("mic: 200 steps at 100 Hz, begins at 2 s" in note for note in moved.notes)
    apart = cut_whole(tmp_path, **files, mic_start=lambda at: at / 2)
    assert any("mic: 200 steps at 100 Hz, begins at 0 to 2 s" in note for note in apart.notes)
    first = [number for number, name in enumerate(apart.places["recording"]) if name == apart.places["recording"][-1]]
    own = plain.arrays["mic"][[number for number, name in enumerate(plain.places["recording"]) if name.startswith("4")]]
    there = apart.arrays["mic"][first]
    assert not there[0].any()  # it is off until the second second
    assert np.array_equal(there[2:8], own[:6])


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"mic_start": 1.7}, "column mic_start: expected the start of a sensor, found no column mic"),
        ({"imu_start": "soon"}, "column imu_start: expected seconds, found text"),
        ({"imu_start": "inf"}, "expected its start in seconds, found inf"),
        ({"imu_offset": 1.7}, "column imu_offset: expected files of one kind that have a time, .wav"),
        ({"imu_offset": 1.7}, "found numbers; if it says something of a sensor, call it SENSOR_rate, SENSOR_start"),
        ({"imu_start": lambda at: at, "imu_times": "times.npy", "imu_rate": None}, "found both, the times and 1 s"),
    ],
)
def test_starts_that_are_none_are_told(more: dict[str, Any], told: str, tmp_path: Path) -> None:
    np.save(tmp_path / "times.npy", np.arange(SECONDS * 50) / 50)
    found = "\n".join(windows_of_recorded(read_manifest(write(tmp_path, ".csv", **more)).table).problems)
    assert told in found
    assert "found .7" not in found


def test_recordings_are_called_by_their_first_file_or_their_id(tmp_path: Path) -> None:
    found = windows_of_recorded(read_manifest(write(tmp_path, ".csv")).table)
    assert found.places["recording"][::11] == [f"imu{person}.npy" for person in range(PEOPLE)]
    assert found.names[12] == "imu1.npy, 1 to 3 s"
    named = samples_of_manifest(write(tmp_path, ".csv", id=lambda person: f"drive {person}"))
    assert named.problems == ()
    assert named.ids[12] == "drive 1, 1 to 3 s"


def test_times_stand_in_files_of_their_own(tmp_path: Path) -> None:
    times = np.arange(SECONDS * 50) / 50
    np.save(tmp_path / "times.npy", times)
    found = samples_of_manifest(write(tmp_path, ".csv", imu_rate=None, imu_times="times.npy"))
    plain = samples_of_manifest(write(tmp_path, ".csv"))
    assert torch.allclose(found.inputs["imu"], plain.inputs["imu"], atol=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_of_channels(suffix: str, tmp_path: Path) -> None:
    times = np.arange(SECONDS * 50) / 50
    for person in range(PEOPLE):
        x, y = signals(person)["imu"]
        table = {"time": times, "x": x, "y": y}
        if suffix == ".csv":
            lines = [",".join(map(repr, map(float, row))) for row in zip(*table.values(), strict=True)]
            (tmp_path / f"log{person}.csv").write_text("\n".join(["time,x,y", *lines]))
        else:
            pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / f"log{person}.parquet")
    logs = write(tmp_path, ".csv", imu_rate=None, imu=lambda person: f"log{person}{suffix}")
    found = samples_of_manifest(logs)
    plain = samples_of_manifest(write(tmp_path, ".csv"))
    assert torch.allclose(found.inputs["imu"], plain.inputs["imu"], atol=1e-5)


def test_the_label_may_be_a_signal(tmp_path: Path) -> None:
    for person in range(PEOPLE):
        np.save(tmp_path / f"angle{person}.npy", np.repeat(np.arange(3), 4) % 2)
    path = write(tmp_path, ".csv", intervals=False, label=lambda person: f"angle{person}.npy", label_rate=1)
    found = samples_of_manifest(path)
    assert len(found.inputs["imu"]) == PEOPLE * 11
    assert found.label is not None


def test_several_labels_per_interval(tmp_path: Path) -> None:
    more: dict[str, Any] = {"label": None, "label:fast": lambda at: at % 2, "label:late": lambda at: at // 2 % 2}
    found = samples_of_manifest(write(tmp_path, ".csv", **more))
    assert found.problems == ()
    assert found.label is not None
    assert found.label.names == ("fast", "late")


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_several_targets_over_time_are_files_of_their_own(suffix: str, tmp_path: Path) -> None:
    targets = np.random.default_rng(0).normal(size=(PEOPLE, 2, SECONDS * 10))
    for (person, at), name in zip(np.ndindex(PEOPLE, 2), ["steering", "speed"] * PEOPLE, strict=True):
        if suffix == ".npy":
            np.save(tmp_path / f"{name}{person}.npy", targets[person, at])
        else:
            lines = [f"{step / 10},{value}" for step, value in enumerate(targets[person, at])]
            (tmp_path / f"{name}{person}.csv").write_text("\n".join(["time,value", *lines]))
    more: dict[str, Any] = {"label": None, "label_rate": 10 if suffix == ".npy" else None}
    more |= {f"label:{name}": lambda at, name=name: f"{name}{at}{suffix}" for name in ("steering", "speed")}
    path = write(tmp_path, ".csv", intervals=False, **more)
    found = samples_of_manifest(path)
    assert found.problems == ()
    assert found.label is not None
    assert (found.label.kind, found.label.names) == ("regression", ("steering", "speed"))
    expected = [targets[0, :, at : at + 20].mean(axis=1) for at in range(0, 110, 10)]
    assert np.allclose(found.label.values[:11], expected, atol=1e-5)
    assert check_data(str(path)).errors == []
    if suffix == ".npy":
        np.save(tmp_path / "speed3.npy", targets[3, 1, :-1])
        said = "label, line 5: expected files with one number per step [T], all at the same times, found label:steering"
        assert said in "\n".join(samples_of_manifest(path).problems)


def test_files_and_values_of_labels_do_not_mix(tmp_path: Path) -> None:
    for person in range(PEOPLE):
        np.save(tmp_path / f"speed{person}.npy", np.zeros(SECONDS))
    more: dict[str, Any] = {"label": None, "label_rate": 1, "label:angle": 0.5}
    path = write(tmp_path, ".csv", intervals=False, **more, **{"label:speed": lambda at: f"speed{at}.npy"})
    text = "\n".join(samples_of_manifest(path).problems)
    assert "expected files in all columns label:NAME, or values in all" in text
    assert "found files in label:speed" in text


@pytest.mark.parametrize(("word", "expected"), [("space", {"radar"}), ("time", set())])
def test_a_column_says_that_an_axis_is_not_time(word: str, expected: set[str], tmp_path: Path) -> None:
    path = write(tmp_path, ".csv", radar_axis=word)
    found = samples_of_manifest(path)
    assert (found.problems, found.spatial) == ((), expected)
    assert not windows_of_recorded(read_manifest(path).table).problems


def break_file(folder: Path) -> Path:
    path = write(folder, ".csv")
    (folder / "imu2.npy").unlink()
    return path


WRONG = {
    "imu, line 6: ": break_file,
    "column radr_rate: expected the rate of a sensor, found no column radr; did you mean radar_rate?": lambda folder: (
        write(folder, ".csv", radar_rate=None, radr_rate=20)
    ),
    "column radr_axis: expected the last axis of a sensor, found no column radr; did you mean": lambda folder: write(
        folder, ".csv", radr_axis="space"
    ),
    "column radr_times: expected the times of a sensor, found no column radr; did you mean radar_times?": lambda at: (
        write(at, ".csv", radr_times="times.npy")
    ),
    "column radar_axis: expected the word time or the word space in all rows, found 'beams'": lambda folder: write(
        folder, ".csv", radar_axis="beams"
    ),
    "column radar:film: expected one of sound, video, array, table after the colon, found 'film'": lambda folder: write(
        folder, ".csv", **{"radar": None, "radar_rate": None, "radar:film": "a.mp4"}
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_check_reports_what_training_would_refuse(said: str, tmp_path: Path) -> None:
    path = WRONG[said](tmp_path)
    found = check_data(str(path))
    assert said in "\n".join(found.errors), found.errors
    assert not found.samples
    with pytest.raises(ValueError, match=re.escape(said)):
        data_set(str(path)).load(None)


def test_recordings_without_labels_are_cut_for_predictions(tmp_path: Path) -> None:
    plain = windows_of_recorded(read_manifest(write(tmp_path, ".csv", label=None, start=None, end=None)).table)
    assert (plain.problems, plain.label) == ([], None)
    assert len(plain.names) == PEOPLE * 11
    labelled = windows_of_recorded(read_manifest(write(tmp_path, ".csv")).table)
    assert labelled.label is not None
    assert labelled.arrays["radar_present"].sum() == PEOPLE * 7


def test_sounds_and_videos_have_their_own_rate(tmp_path: Path) -> None:
    waves = []
    for person in range(PEOPLE):
        waves.append(np.random.default_rng(person).uniform(-0.5, 0.5, SECONDS * 8000).astype("f4"))
        make_wav(tmp_path / f"voice{person}.wav", rate=8000, wave=waves[-1])
        make_video(tmp_path / f"film{person}.mp4", seconds=SECONDS, fps=10, sound=False)
    more: dict[str, Any] = {"voice": lambda at: f"voice{at}.wav", "film": lambda at: f"film{at}.mp4"}
    found = samples_of_manifest(write(tmp_path, ".csv", **more))
    assert found.problems == ()
    assert found.inputs["film"].shape == (55, 3, 8, 112, 112)
    assert found.inputs["voice"].shape == (55, 1, 64, 200)
    whole = fbank(torch.from_numpy(waves[0]), 8000, 64).T
    assert torch.allclose(found.inputs["voice"][3, 0], whole[:, 300:500], atol=0.05)
    shades = found.inputs["film"][:11].float().mean(dim=(1, 3, 4))
    assert torch.equal(shades[0, 4:], shades[1, :4]), "a stride of a second is four frames"


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, ".csv", window=lambda person: f"{person}s", note="text", end="soon", radar_rate="fast")
    (tmp_path / "imu3.npy").unlink()
    text = "\n".join(samples_of_manifest(path).problems)
    for part in (
        "column window: expected one duration for all rows, such as 2s, found 0s, 1s, 2s, 3s, 4s",
        "column note: expected files of one kind that have a time",
        "column end: expected seconds",
        "column radar_rate: expected samples per second, found text",
        "imu, line 8: ",
    ):
        assert part in text, text


def test_files_of_one_recording_have_one_group_and_no_other_recording(tmp_path: Path) -> None:
    path = write(tmp_path, ".csv", imu="imu0.npy")
    assert "expected a file of one recording, found imu0.npy" in "\n".join(samples_of_manifest(path).problems)
    lines = write(tmp_path, ".csv").read_text().splitlines()
    lines[1] = lines[1].replace("person 0", "somebody")
    path.write_text("\n".join(lines))
    assert samples_of_manifest(path).problems == (
        "column group: expected one value for the rows of a recording, found another in line 3",
    )


@pytest.mark.parametrize("rate", [None, -1])
def test_rates_that_are_missing_or_wrong(rate: int | None, tmp_path: Path) -> None:
    text = "\n".join(samples_of_manifest(write(tmp_path, ".csv", imu_rate=rate)).problems)
    assert ("expected its rate or its times" if rate is None else "expected a rate above zero") in text


def test_intervals_without_a_window_are_refused(tmp_path: Path) -> None:
    text = "\n".join(samples_of_manifest(write(tmp_path, ".csv", window=None)).problems)
    assert "columns start, end: expected a column window where rows are intervals" in text

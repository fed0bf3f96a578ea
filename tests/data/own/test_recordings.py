"""Recordings into windows: shapes, values, labels and gaps worked out in another way; all that is refused."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from equipoise.data.own.recordings import Recording, seconds_of
from equipoise.data.own.windows import Windows, cut_windows
from equipoise.data.splits import Splits
from equipoise.util.errors import BadInput

RATES = {"imu": 50.0, "radar": 20.0, "ecg": 200.0}
WALK = [(0.0, 10.0, "walk"), (10.0, 20.0, "run")]


def made(seconds: float = 20.0, seed: int = 0, **options: Any) -> Recording:
    random = np.random.default_rng(seed)
    channels = {"imu": 3, "radar": 1, "ecg": 2}
    signals = {name: random.normal(size=(channels[name], round(seconds * rate))) for name, rate in RATES.items()}
    given: dict[str, Any] = {"signals": signals, "labels": WALK, "rates": RATES, **options}
    return Recording(**given)


def cut(*recordings: Recording, window: str | float = 2, stride: str | float | None = 1, **how: Any) -> Windows:
    found = cut_windows(recordings, window, stride, how.get("label_at", "auto"))
    assert found.problems == []
    return found


def labels(*recordings: Recording, **how: Any) -> np.ndarray:
    found = cut(*recordings, **how).label
    assert found is not None
    return found


def problems(*recordings: Recording, window: str | float = 2, stride: str | float | None = 1, **how: Any) -> list[str]:
    return cut_windows(recordings, window, stride, how.get("label_at", "auto")).problems


# -- durations --


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2), ("500ms", 0.5), ("1min", 60), ("0.5 h", 1800), (".25s", 0.25), ("3", 3), (3, 3), (0.5, 0.5)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["2 apples", "", "-1s", "0", 0, -2, "s", "nan", "inf", float("nan"), "1e400s", "2s 3s"]
)
def test_what_is_no_duration(text: str | float) -> None:
    with pytest.raises(BadInput, match="expected a duration such as 2s"):
        seconds_of(text)


# -- windows of sensors that have a rate --


def test_each_sensor_has_its_own_number_of_steps() -> None:
    found = cut(made())
    assert {name: array.shape for name, array in found.arrays.items()} == {
        "imu": (19, 3, 100),
        "radar": (19, 1, 40),
        "ecg": (19, 2, 400),
    }


@pytest.mark.parametrize("seed", range(8))
def test_windows_are_slices_of_the_signal(seed: int) -> None:
    random = np.random.default_rng(seed)
    rate = float(random.choice([10, 12.5, 20, 50, 128]))
    window, stride = float(random.uniform(0.5, 3)), float(random.uniform(0.2, 3))
    signal = random.integers(0, 1000, (2, round(30 * rate)))
    one = Recording({"a": signal}, [(0, 40, 1)], {"a": rate})
    found = cut(one, window=window, stride=stride).arrays["a"]
    steps = round(window * rate)
    assert found.shape[1:] == (2, steps)
    for number, array in enumerate(found):
        first = round(number * stride * rate)
        if first + steps <= signal.shape[1]:
            assert np.array_equal(array, signal[:, first : first + steps])
    assert abs(len(found) - ((30 - window) // stride + 1)) <= 1


def test_a_stride_of_none_is_a_window() -> None:
    assert cut(made(), stride=None).arrays["imu"].shape[0] == 10


def test_one_step_per_window_is_a_vector() -> None:
    one = Recording({"slow": np.arange(60.0).reshape(3, 20)}, WALK, {"slow": 1})
    assert cut(one, window=1).arrays["slow"].shape == (20, 3)
    frames = np.zeros((3, 20, 4, 5), np.uint8)
    assert cut(Recording({"eye": frames}, WALK, {"eye": 1}), window=1).arrays["eye"].shape == (20, 3, 4, 5)


@pytest.mark.parametrize("shape", [(3, 40, 4, 5), (40, 4, 5, 3)])
def test_frames(shape: tuple[int, ...]) -> None:
    frames = np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)
    found = cut(Recording({"eye": frames}, WALK, {"eye": 2}), window=4, stride=4).arrays["eye"]
    first = frames if shape[0] == 3 else np.moveaxis(frames, -1, 0)
    assert np.array_equal(found, np.stack([first[:, at : at + 8] for at in range(0, 40, 8)]))
    grey = cut(Recording({"eye": frames[..., 0] if shape[0] != 3 else frames[0]}, WALK, {"eye": 2}), window=4)
    assert grey.arrays["eye"].shape == (17, 1, 8, 4, 5)


def test_recordings_at_other_rates_are_brought_to_the_most_common() -> None:
    line = {rate: Recording({"a": np.arange(20 * rate) / rate}, WALK, {"a": rate}) for rate in (50, 100)}
    found = cut(line[50], line[50], line[100])
    assert found.arrays["a"].shape == (57, 1, 100)
    np.testing.assert_allclose(found.arrays["a"][:19], found.arrays["a"][38:], atol=1e-5)
    assert "brought to that" in "".join(found.notes)


# -- timestamps --


@pytest.mark.parametrize("seed", range(5))
def test_timestamps_that_jitter_are_interpolated(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.uniform(0, 1e5)
    times = start + (np.arange(1000) + random.uniform(-0.4, 0.4, 1000)) / 50
    values = np.stack([times - start, 3 - 2 * (times - start)])  # lines: interpolation is exact
    found = cut(Recording({"a": values}, [(start - 1, start + 30, 0)], times={"a": times})).arrays["a"]
    assert found.shape[1] == 2
    assert abs(found.shape[2] - 100) <= 3
    for number, window in enumerate(found):
        grid = times[0] - start + number + np.arange(found.shape[2]) * 2 / found.shape[2]
        inside = grid <= times[-1] - start
        np.testing.assert_allclose(window[0][inside], grid[inside], atol=1e-3)
        np.testing.assert_allclose(window[1][inside], 3 - 2 * grid[inside], atol=1e-3)


def test_a_rate_beside_times_says_how_many_steps() -> None:
    times = np.sort(np.random.default_rng(0).uniform(0, 20, 900))
    one = Recording({"a": np.sin(times)}, WALK, {"a": 50}, {"a": times})
    found = cut(one, window=2)
    assert found.arrays["a"].shape[1:] == (1, 100)
    grid = times[0] + np.arange(100) / 50
    np.testing.assert_allclose(found.arrays["a"][0, 0], np.interp(grid, times, np.sin(times)), atol=1e-6)


def test_whole_numbers_take_the_nearest_sample() -> None:
    times = np.arange(200) / 10 + 0.02
    one = Recording({"a": np.arange(200)}, WALK, times={"a": times})
    assert np.array_equal(cut(one).arrays["a"][0, 0], np.arange(20))


# -- labels --


def test_the_label_is_that_of_the_majority() -> None:
    found = cut(made(labels=[(0, 4.4, "a"), (4.4, 9, "b"), (13, 20, "a")]))
    assert found.label is not None
    known = dict(zip(found.places["start"], found.label, strict=True))
    expected = {0: "a", 3: "a", 4: "b", 7: "b", 8: "b", 12: "a", 18: "a"}
    assert {key: known[key] for key in expected} == expected
    assert not {9, 10, 11} & known.keys()
    assert "3 more left out, no label covers half of them" in found.notes[0]


@pytest.mark.parametrize("seed", range(6))
def test_majority_and_mean_agree_with_counting_small_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    edges = np.sort(random.choice(np.arange(1, 400), 12, replace=False)) / 20
    kept = [(a, b, int(random.integers(3))) for a, b in pairwise(edges) if random.random() < 0.8]
    ticks = np.full(400, -1)
    for a, b, value in kept:
        ticks[round(a * 20) : round(b * 20)] = value
    for rule in ("majority", "mean", "end"):
        found = cut(made(labels=kept), label_at=rule)
        assert found.label is not None
        told = dict(zip(found.places["start"], found.label, strict=True))
        for start in range(19):
            own = ticks[start * 20 : (start + 2) * 20]
            counts = np.bincount(own[own >= 0], minlength=3)
            label = told.get(start)
            if rule == "end":
                assert label == (None if own[-1] < 0 else own[-1])
            elif rule == "mean":
                assert (label is None) == (counts.sum() < 20)
                assert label is None or label == pytest.approx(own[own >= 0].mean())
            elif label is None:
                assert counts.max() < 20
            else:
                assert counts.max() >= 20
                assert counts[label] == counts.max()


def test_numbers_are_averaged_and_may_be_a_signal() -> None:
    pulse = np.arange(20.0)
    signals = {**made().signals, "label": pulse}
    one = made(signals=signals, labels=(), rates={**RATES, "label": 1.0})
    np.testing.assert_allclose(labels(one), np.arange(19) + 0.5)
    np.testing.assert_allclose(labels(one, label_at="end"), np.arange(19) + 1)
    gone = made(
        signals={**signals, "label": np.where(pulse < 5, np.nan, pulse)}, labels=(), rates={**RATES, "label": 1}
    )
    assert len(cut(gone).names) == 19 - 4
    pair = made(signals={**signals, "label": np.stack([pulse, -pulse])}, labels=(), rates={**RATES, "label": 1})
    assert labels(pair).shape == (19, 2)


def test_a_class_per_sample() -> None:
    name = np.repeat(["sit", "go"], 10)
    one = made(signals={**made().signals, "label": name}, labels=(), rates={**RATES, "label": 1})
    assert labels(one, stride=2).tolist() == ["sit"] * 5 + ["go"] * 5


def test_several_yes_or_no_labels_each_by_majority() -> None:
    found = labels(made(labels=[(0, 10, [1, 0]), (10, 20, [1, 1])]), stride=2, window=4)
    assert found.tolist() == [[1, 0]] * 4 + [[1, 1]] * 5


def test_whole_numbers_to_predict_are_averaged() -> None:
    whole = [made(seed=at, labels=[(0, 9, 60), (9, 20, 80)]) for at in range(4)]
    label = Splits.from_recordings(whole, window=2, stride=1, task="regression").train.label
    assert sorted({*label.flatten().tolist()}) == [60.0, 70.0, 80.0]
    assert Splits.from_recordings(whole, window=2, stride=1).task.names == ("60", "80")


# -- gaps --


def test_a_sensor_that_is_off_is_absent() -> None:
    one = made()
    signals = {**one.signals, "radar": one.signals["radar"].copy()}
    signals["radar"][:, 100:200] = np.nan  # 5 to 10 s
    found = cut(made(signals=signals))
    present = found.arrays["radar_present"]
    assert np.flatnonzero(~present).tolist() == [4, 5, 6, 7, 8, 9]
    assert not found.arrays["radar"][~present].any()
    assert np.array_equal(found.arrays["radar"][present], cut(one).arrays["radar"][present])
    assert "imu_present" not in found.arrays


def test_a_jump_of_the_timestamps_is_a_gap() -> None:
    times = np.concatenate([np.arange(0, 5, 0.05), np.arange(10, 20, 0.05)])
    one = made(signals={**made().signals, "radar": np.ones(len(times))}, times={"radar": times}, rates=RATES)
    found = cut(one)
    assert np.flatnonzero(~found.arrays["radar_present"]).tolist() == [4, 5, 6, 7, 8, 9]
    np.testing.assert_allclose(found.arrays["radar"][found.arrays["radar_present"]], 1)


def test_a_lost_sample_is_bridged() -> None:
    times = np.delete(np.arange(400) / 20, [50, 51, 200])
    one = made(signals={**made().signals, "radar": times}, times={"radar": times})
    found = cut(one)
    assert "radar_present" not in found.arrays
    np.testing.assert_allclose(found.arrays["radar"][2, 0], np.arange(40) / 20 + 2, atol=1e-6)


def test_sensors_that_begin_late_end_early_or_are_not_there() -> None:
    signals = dict(made().signals)
    signals["radar"] = signals["radar"][:, :200]  # ends after 10 s
    times = 6 + np.arange(2800) / 200
    signals["ecg"] = signals["ecg"][:, :2800]
    late = made(signals=signals, times={"ecg": times}, rates={**RATES})
    none = made(signals={**made().signals, "imu": None})
    found = cut(late, none)
    assert np.flatnonzero(~found.arrays["radar_present"]).tolist() == list(range(9, 19))
    assert np.flatnonzero(~found.arrays["ecg_present"]).tolist() == list(range(6))
    assert np.flatnonzero(~found.arrays["imu_present"]).tolist() == list(range(19, 38))


def test_a_sensor_that_was_off_all_the_time() -> None:
    found = cut(made(signals={**made().signals, "radar": np.full(400, np.nan)}), made())
    assert found.arrays["radar_present"].tolist() == [False] * 19 + [True] * 19


def test_windows_in_which_nothing_is_there_are_left_out() -> None:
    signal = np.ones(1000)
    signal[500:800] = np.nan
    found = cut(Recording({"a": signal}, WALK, {"a": 50}))
    assert len(found.names) == 19 - 7
    assert "7 more left out, no sensor gives anything there" in found.notes[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_scattered_nan_is_an_error_with_its_place(bad: float) -> None:
    one = made(name="drive 7")
    one.signals["imu"][1, 123] = bad
    (found,) = problems(one)
    assert found.startswith("drive 7, imu: expected finite numbers")
    assert "2.46 s" in found
    short = made()
    short.signals["imu"][:, 100:102] = np.nan
    assert len(problems(short)) == 1


# -- groups and parts --


@pytest.mark.parametrize("seed", range(4))
def test_windows_of_one_recording_or_group_stay_in_one_part(seed: int) -> None:
    random = np.random.default_rng(seed)
    people = random.integers(0, 6, 15)
    people[:6] = range(6)
    for group in (None, people):
        whole = [made(seed=at, group=None if group is None else int(group[at])) for at in range(15)]
        parts = Splits.from_recordings(whole, window="2s", stride="500ms", seed=seed, standardise=False).parts
        owners = people if group is not None else np.arange(15)
        seen: dict[int, set[str]] = {}
        for name, part in parts.items():
            for array in part.inputs["imu"].numpy():
                owner = next(at for at, one in enumerate(whole) if _holds(one.signals["imu"], array))
                seen.setdefault(int(owners[owner]), set()).add(name)
        assert all(len(names) == 1 for names in seen.values())
        assert len(seen) == len({*owners.tolist()})


def _holds(signal: np.ndarray, window: np.ndarray) -> bool:
    first = window[0, 0]
    return any(
        np.allclose(signal[:, at : at + window.shape[1]], window)
        for at in np.flatnonzero(signal[0].astype("f4") == first)
    )


def test_parts_as_given() -> None:
    whole = [made(seed=at, part=part) for at, part in enumerate(["train", "train", "validation", "test"])]
    splits = Splits.from_recordings(whole, window=2, stride=1)
    assert [len(part) for part in splits.parts.values()] == [38, 19, 19]
    assert "windows of 2 s every 1 s of 4 recordings: 76" in splits.about


# -- all that is wrong --


def test_windows_beyond_counting_are_refused_before_they_are_cut() -> None:
    slow = made(rates={"imu": 1e-9, "radar": 1e-9, "ecg": 1e-9}, labels=[(0.0, 1e10, "walk")])
    assert any("windows, expected at most 2,000,000; look at its rate" in one for one in problems(slow, window=1))
    several = [made(seed=seed) for seed in range(3)]
    found = problems(*several, window=1, stride="0.000019s")  # a million each
    assert any("windows, found 3,0" in one for one in found), found


def test_everything_wrong_is_said_at_once() -> None:
    times = np.arange(100) / 5
    times[50] = 3
    sensors = {"a": np.zeros(100), "b": np.zeros(100), "c": np.zeros((100, 3)), "d": np.zeros((2, 2, 2)), "e": "text"}
    given = {"a": times, "c": np.arange(100) / 5}
    recordings = [
        Recording(sensors, WALK, {"e": 5, "d": 5, "f": 3}, given, name="one", part="train"),
        Recording({"a": np.zeros(5)}, WALK, {"a": 5}, name="two"),
        made(name="three", labels=[(0, 5, "x"), (4, 8, "y"), (90, 95, "x")]),
        made(name="four", labels=[(5, 3, "x")]),
        made(name="five", rates={**RATES, "imu": -1}),
        made(name="six", labels=[(0, 20, "x")], times={"imu": 1e9 + np.arange(1000) / 50}),
    ]
    found = problems(*recordings)
    text = "\n".join(found)
    for part in (
        "one, a: expected times that increase",
        "one, b: expected its rate or its times, found neither",
        "one, c: expected one time per step",
        "give its transpose",
        "one, d: expected [T], [C, T] or [C, T, H, W], found an array of shape [2, 2, 2]",
        "one, e: expected numbers",
        "one: expected rates, times and starts of its signals, found 'f'",
        "two: expected at least one window of 2 s, found 1 s",
        "three, labels: expected intervals that do not overlap, found 'x' until 5 s and 'y' from 4 s",
        "three, labels: expected intervals within 0 to 20 s, found 1 outside",
        "four, labels: expected (start, end, label)",
        "five, imu: expected a rate above zero",
        "six: expected sensors on one clock",
        "part: expected one for every recording or for none, found none for two, three",
    ):
        assert part in text, text
    with pytest.raises(BadInput, match="cannot be trained on"):
        Splits.from_recordings(recordings, window=2)


def test_misspelt_names_are_suggested_and_no_rate_is_made_up() -> None:
    wave = np.random.default_rng(0).normal(size=(2, 400))
    fine = [Recording({"lidar": wave, "imu": wave}, WALK, {"lidar": 20, "imu": 20}) for _ in range(3)]
    text = "\n".join(
        problems(*fine, Recording({"lidar": wave, "imu": wave}, WALK, {"lidr": 20, "imu": 20}, name="last"))
    )
    assert "last: expected rates, times and starts of its signals, found 'lidr'; did you mean 'lidar'?" in text
    assert "last, lidar: expected its rate or its times, found neither; give rates={'lidar': 20}, as other" in text
    alone = "\n".join(problems(Recording({"lidar": wave}, WALK)))
    assert "found neither; give rates={'lidar': …}; in a manifest it is the column lidar_rate" in alone
    text = "\n".join(
        problems(*fine, Recording({"lidr": wave, "imu": wave}, WALK, {"lidr": 20, "imu": 20}, name="last"))
    )
    assert text == "last: expected 'lidar', as in all other recordings, found 'lidr'; rename it"
    other = Recording({"radar": wave, "imu": wave}, WALK, {"radar": 20, "imu": 20})
    assert not problems(*fine[:1], other), "of two recordings neither is the usual one"
    assert not problems(*fine, Recording({"lidar": None, "gps": wave, "imu": wave}, WALK, {"gps": 20, "imu": 20}))


def test_bad_options_are_said_at_once() -> None:
    found = problems(window="2 apples", stride="0s", label_at="middle")
    assert [line.split(":")[0] for line in found[:3]] == ["window", "stride", "label_at"]
    assert "found none" in found[3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"labels": ()}, "label: expected labels"),
        ({"labels": [(0, 5, ["a", "b"])]}, "found a mixture"),
        ({"times": {"imu": np.arange(1000).astype("M8[ms]")}}, "expected times in seconds, found dates"),
        ({"labels": [(0, 5, "a"), (5, 9, 1)]}, "found a mixture"),
        ({"labels": [(0, 5, [1]), (5, 9, [1, 2])]}, "found a mixture"),
        ({"signals": {"imu": np.zeros((1000, 3))}, "rates": {"imu": 50}}, "give its transpose"),
        ({"signals": {"fused": np.zeros(1000)}, "rates": {"fused": 50}}, "No modality may be called 'fused'"),
        ({"signals": {"imu": np.zeros(20)}, "rates": {"imu": 0.1}}, "one sample at least"),
        ({"signals": {}, "rates": {}}, "expected at least one signal, found none"),
    ],
)
def test_other_mistakes(options: dict[str, Any], expected: str) -> None:
    assert expected in "\n".join(problems(made(**options)))


def test_shapes_that_differ_between_recordings() -> None:
    found = problems(made(), made(signals={**made().signals, "imu": np.zeros((4, 1000))}))
    assert found == ["imu: expected arrays that differ in time only, found [3, 1000] and [4, 1000]"]


@pytest.mark.parametrize("kind", ["jitter", "bursts", "losses"])
def test_a_rate_is_found_from_times(kind: str) -> None:
    random = np.random.default_rng(0)
    times = np.arange(2000) / 50
    if kind == "jitter":
        times = times + random.uniform(-0.009, 0.009, 2000)
    elif kind == "bursts":  # packets of five samples, as a radio delivers them
        times = np.repeat(times[::5], 5) + np.tile(np.arange(5) * 1e-4, 400)
    else:
        times = times[random.random(2000) > 0.03]
    one = Recording({"a": np.zeros(len(times))}, [(0, 40, 1)], times={"a": times})
    found = cut(one).arrays
    assert abs(found["a"].shape[2] - 100) <= 1
    assert "a_present" not in found

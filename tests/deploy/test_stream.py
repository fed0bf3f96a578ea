"""Windows cut from samples as they arrive: any chunks give the same answers, at the rates of the sensors."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise
from deploy.shipped_runs import trained
from equipoise.deploy import Predictor, SensorMonitor, StreamAnswer
from equipoise.util.errors import BadInput

SENSORS = ("wrist", "ankle", "camera", "heat")
RATES = {"wrist": 20, "ankle": 5, "camera": 2.5, "heat": 1}
SECONDS = 12


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """Windows of two seconds of the wrist and of one second of the ankle; a picture, and a number."""
    generator = np.random.default_rng(0)
    arrays = {
        "wrist": generator.normal(2, 3, (60, 3, 40)),
        "ankle": generator.normal(0, 1, (60, 2, 5)),
        "camera": generator.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8),
        "heat": generator.normal(20, 2, 60),
    }
    folder = tmp_path_factory.mktemp("run")
    trained(folder, arrays, np.arange(60) % 7 % 3)
    return equipoise.load(folder)


def recording(seed: int = 1) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        "wrist": generator.normal(2, 3, (3, SECONDS * 20)),
        "ankle": generator.normal(0, 1, (2, SECONDS * 5)),
        "camera": generator.integers(0, 256, (int(SECONDS * 2.5), 6, 6, 3), dtype=np.uint8),
        "heat": generator.normal(20, 2, SECONDS),
    }


def cut(name: str, array: np.ndarray, start: int, end: int) -> np.ndarray:
    return array[:, start:end] if name in ("wrist", "ankle") else array[start:end]


def chunk_of(given: dict[str, Any], second: int) -> dict[str, Any]:
    """What the sensors gave in one second."""
    return {
        name: cut(name, array, int(second * RATES[name]), int((second + 1) * RATES[name]))
        for name, array in given.items()
    }


def chunked(given: dict[str, np.ndarray], draws: random.Random) -> Iterator[dict[str, Any]]:
    """Samples in chunks of random sizes, each sensor at its own pace."""
    at = dict.fromkeys(given, 0)
    total = {name: array.shape[1] if name in ("wrist", "ankle") else len(array) for name, array in given.items()}
    while any(at[name] < total[name] for name in given):
        chunk = {}
        for name in draws.sample(list(given), draws.randint(1, len(given))):
            end = min(total[name], at[name] + draws.choice((0, 1, 2, 7, 100)))
            if end > at[name]:
                chunk[name] = cut(name, given[name], at[name], end)
                at[name] = end
        yield chunk


def same(some: list[StreamAnswer], others: list[StreamAnswer]) -> bool:
    return len(some) == len(others) and all(
        (one.start, one.end, one.failed, one.prediction.sensors)
        == (other.start, other.end, other.failed, other.prediction.sensors)
        and np.array_equal(one.prediction.probabilities, other.prediction.probabilities)
        for one, other in zip(some, others, strict=True)
    )


def test_any_chunks_give_the_same_answers(predictor: Predictor) -> None:
    whole = predictor.stream(rates=RATES, stride=0.5).push(recording())
    assert [answer.end for answer in whole] == [2 + 0.5 * number for number in range(21)]
    for seed in range(15):
        stream = predictor.stream(rates=RATES, stride=0.5)
        pieces = chunked(recording(), random.Random(seed))
        assert same([answer for chunk in pieces for answer in stream.push(chunk)], whole)


@pytest.mark.parametrize("stride", [None, 0.3, 1, 5])
def test_windows_are_those_cut_by_hand(predictor: Predictor, stride: float | None) -> None:
    given = recording()
    answers = predictor.stream(rates=RATES, stride=stride).push(given)
    step = 2 if stride is None else stride
    assert len(answers) == int((SECONDS - 2) / step + 1e-9) + 1
    for number, answer in enumerate(answers):
        end = 2 + number * step
        assert answer.start == pytest.approx(end - 2)
        ends = {name: int(end * rate + 1e-9) for name, rate in RATES.items()}
        sample = {
            "wrist": given["wrist"][:, ends["wrist"] - 40 : ends["wrist"]],
            "ankle": given["ankle"][:, ends["ankle"] - 5 : ends["ankle"]],
            "camera": given["camera"][ends["camera"] - 1],
            "heat": given["heat"][ends["heat"] - 1],
        }
        np.testing.assert_allclose(answer.prediction.probabilities, predictor.predict(sample).probabilities, atol=1e-6)


def test_a_single_step_is_a_chunk(predictor: Predictor) -> None:
    given = recording()
    stream, answers = predictor.stream(rates=RATES), []
    rest = {name: given[name] for name in ("camera", "heat")}
    answers += stream.push(rest)
    for step in range(SECONDS * 20):
        answers += stream.push({"wrist": given["wrist"][:, step]})
        if step % 4 == 0:
            answers += stream.push({"ankle": given["ankle"][:, step // 4]})
    assert same(answers, predictor.stream(rates=RATES).push(given))


def test_a_sensor_that_is_off_is_not_waited_for_and_comes_back_in_time(predictor: Predictor) -> None:
    given, healthy = recording(), predictor.stream(rates=RATES, stride=1).push(recording())
    stream, answers = predictor.stream(rates=RATES, stride=1), []
    for second in range(SECONDS):
        chunk = chunk_of(given, second)
        answers += stream.push({**chunk, "ankle": None} if 4 <= second < 6 else chunk)
    assert [answer.end for answer in answers] == [answer.end for answer in healthy]
    for answer, other in zip(answers, healthy, strict=True):
        if answer.end in (5, 6):
            assert answer.prediction.sensors == ("wrist", "camera", "heat")
        else:
            assert same([answer], [other])


def test_a_sensor_stays_off_until_its_samples_come_again(predictor: Predictor) -> None:
    given, healthy = recording(), predictor.stream(rates=RATES, stride=1).push(recording())
    stream, answers = predictor.stream(rates=RATES, stride=1), []
    for second in range(SECONDS):
        chunk = chunk_of({name: given[name] for name in given if name != "ankle" or second not in (4, 5, 6)}, second)
        answers += stream.push({**chunk, "ankle": None} if second == 4 else chunk)
    assert [answer.end for answer in answers] == [answer.end for answer in healthy]
    used = [answer.end for answer in answers if "ankle" not in answer.prediction.sensors]
    assert used == [5, 6, 7]


def test_a_sensor_that_falls_silent_is_not_waited_for_without_end(predictor: Predictor) -> None:
    """Windows span two seconds, so that after two hundred the others are no longer kept."""
    stream, second = predictor.stream(rates=RATES), {"wrist": np.zeros((3, 20)), "camera": None, "heat": None}
    for number in range(200):
        assert stream.push({**second, "ankle": np.zeros((2, 5))} if number < 1 else second) == []
    sizes = [len(buffer.values) for buffer in stream._buffers.values()]
    assert stream.push(second) == []  # 201 s of the others, one of the ankle
    for _ in range(3):
        with pytest.raises(BadInput) as caught:
            stream.push(second)
        assert "ankle: expected its samples too, found those until 1 s, and others until 202 s" in str(caught.value)
        assert "push this again with 'ankle': None" in str(caught.value)
    assert len(stream._buffers["wrist"].values) == sizes[0] + 20
    answers = stream.push({**second, "ankle": None})
    assert [answer.end for answer in answers] == list(range(2, 204, 2))
    assert all(answer.prediction.sensors == ("wrist",) for answer in answers)
    assert len(stream._buffers["wrist"].values) == 0
    assert stream.push(second) == []
    assert [answer.end for answer in stream.push(second)] == [204]  # it stays off


@pytest.mark.parametrize("lagging", [False, True])
def test_a_gap_takes_no_memory_however_long(predictor: Predictor, lagging: bool) -> None:
    """An hour of a sensor that gives 10^9 steps a second would be 3.6 · 10^12 steps of zeros."""
    stream = predictor.stream(rates={**RATES, "wrist": 10**9}, stride=600)
    hour = {"wrist": None, "camera": None, "heat": np.zeros(3600), "ankle": None}
    answers = [] if lagging else stream.push(hour)
    if lagging:
        assert stream.push({name: chunk for name, chunk in hour.items() if name != "ankle"}) == []
        assert stream.push({"wrist": np.zeros((3, 40)), "camera": None}) == []
        answers = stream.push({"ankle": None})
    assert [(answer.end, answer.prediction.sensors) for answer in answers] == [
        (1 + 600 * number, ("heat",)) for number in range(6)
    ]
    assert len(stream._buffers["wrist"].values) <= 40
    assert stream._buffers["wrist"].count == 3600 * 10**9 + 40 * lagging


def test_strides_are_at_least_a_step(predictor: Predictor) -> None:
    for rates, stride in ((RATES, 1e-5), (RATES, 0.0499), ({}, 0.9)):
        with pytest.raises(BadInput, match=r"^stride: expected at least one step of the fastest sensor, 1 / [^\n]*$"):
            predictor.stream(rates=rates, stride=stride)
    predictor.stream(rates=RATES, stride=0.05)
    for rate in (3, 30, 44100, 48000):
        predictor.stream(rate=rate, stride=1 / rate)
    with pytest.raises(BadInput, match=r"^rates: expected the fastest at most 1,000,000,000 times as fast"):
        predictor.stream(rates={**RATES, "wrist": 1e10})


@pytest.mark.parametrize("odd", [3, 0, [], "wrist", object()])
def test_odd_arguments_of_a_stream_are_refused(predictor: Predictor, odd: Any) -> None:
    with pytest.raises(BadInput, match=r"^rates: expected \{sensor: samples per second"):
        predictor.stream(rates=odd)
    if not isinstance(odd, str):
        with pytest.raises(BadInput, match=r"^monitor: expected a SensorMonitor, its file, True or False; found"):
            predictor.stream(monitor=odd)
    decisions: list[Any] = [odd, None, {}]
    for decision in decisions:
        with pytest.raises(BadInput, match=r"unknown decision .*; expected one of fused, committee"):
            predictor.stream(decision=decision)


def test_a_reading_that_no_model_can_compute_with_is_named(predictor: Predictor) -> None:
    given = recording()
    given["wrist"][0, 50] = 1e25  # at 2.5 s
    answers = predictor.stream(rates=RATES, stride=2).push(given)
    assert [answer.prediction.unusable for answer in answers[:3]] == [(), ("wrist",), ()]
    assert "wrist" not in answers[1].prediction.sensors


def test_samples_that_are_not_there_mask_their_windows(predictor: Predictor) -> None:
    given = recording()
    given["wrist"][1, 85] = np.nan
    used = [answer.prediction.sensors for answer in predictor.stream(rates=RATES, stride=1).push(given)]
    # Sample 85 lies at 4.25 s: in the windows that end after 5 and after 6 seconds.
    assert [number + 2 for number, sensors in enumerate(used) if "wrist" not in sensors] == [5, 6]


def test_without_rates_time_is_counted_in_samples(predictor: Predictor) -> None:
    stream = predictor.stream(stride=10)
    answers = stream.push({"wrist": np.zeros((3, 65)), "ankle": None, "camera": None, "heat": None})
    assert [(answer.start, answer.end) for answer in answers] == [(0, 40), (10, 50), (20, 60)]


def test_a_named_sensor_is_masked_and_streams_do_not_share_state(predictor: Predictor) -> None:
    outputs = predictor.run(predictor.graph.examples(400, torch.Generator().manual_seed(0)))
    monitor = SensorMonitor.fit({name: outputs[f"{name}_head"] for name in SENSORS}, torch.arange(400) // 100)
    monitor.heights[1:] = 1e6  # standing still alone is watched
    stream, other = (predictor.stream(rates=RATES, stride=1, monitor=monitor) for _ in range(2))
    still = recording()
    still["wrist"] = still["wrist"][:, :1].repeat(SECONDS * 20, axis=1)
    named = stream.push(still)
    assert named[-1].failed == "wrist"
    masked = [answer.prediction.sensors for answer in named if answer.failed == "wrist"]
    assert masked
    assert all("wrist" not in sensors for sensors in masked)
    without = predictor.stream(rates=RATES, stride=1).push({**still, "wrist": None})
    np.testing.assert_allclose(named[-1].prediction.probabilities, without[-1].prediction.probabilities, atol=1e-6)
    assert other.push(recording())[0].failed is None


def test_bad_streams_are_refused(predictor: Predictor, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        predictor.stream(rates={"wrst": 1, "wrist": -1}, stride=0)
    told = str(caught.value)
    for part in ("Did you mean 'wrist'?", "rates['wrist']: expected a number above zero", "stride:", "none of 'heat'"):
        assert part in told
    stream = predictor.stream(rates=RATES)
    with pytest.raises(BadInput) as caught:
        stream.push({"wrist": np.zeros((4, 7)), "ankle": np.zeros((1, 2, 5)), "cam": 1})
    told = str(caught.value)
    for part in ("wrist: expected [3, n], n steps in a row, or one step [3], found a chunk of shape [4, 7]", "'cam'"):
        assert part in told
    assert "ankle: expected [2, n], n steps in a row, or one step [2]; found an array of float64 of shape" in told
    assert stream.push({"wrist": np.zeros((3, 0)), "heat": []}) == []
    with pytest.raises(BadInput, match="Make it: equipoise monitor"):
        predictor.stream(rates=RATES, monitor=True)
    (tmp_path / "monitor.json").write_text("{}")
    with pytest.raises(BadInput, match="Make one: equipoise monitor"):
        predictor.stream(rates=RATES, monitor=tmp_path / "monitor.json")


def test_scans_are_taken_one_by_one(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {"wrist": generator.normal(size=(60, 3, 40)), "lidar": generator.normal(size=(60, 1, 36))}
    trained(tmp_path, arrays, np.arange(60) % 7 % 3, space=["lidar"])
    scanner = equipoise.load(tmp_path)
    scans, wrist = generator.normal(size=(10, 1, 36)), generator.normal(size=(3, 40))
    (answer,) = scanner.stream(rates={"wrist": 20, "lidar": 5}).push({"wrist": wrist, "lidar": scans})
    expected = scanner.predict({"wrist": wrist, "lidar": scans[-1]})
    np.testing.assert_allclose(answer.prediction.probabilities, expected.probabilities, atol=1e-6)


ODD_CHUNKS: list[Any] = [
    *(None, [], [[]], "text", b"bytes", True, 3, 2**70, float("nan"), object(), {}, {"a": 1}, [None], [[1], [2, 3]]),
    *(np.zeros(shape) for shape in ((), (0,), (3,), (2,), (3, 4), (2, 5), (3, 0), (4, 7), (3, 4, 5), (1, 6, 6, 3))),
    *(np.zeros((3, 4), kind) for kind in ("c8", "U1", "O", "M8[s]", "?", "i8", "f2", ">f4")),
    *(np.full((3, 4), value) for value in (np.nan, np.inf, 1e30, -1e308)),
    *(torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.bfloat16), np.zeros((2, 6, 6, 3), np.uint8), range(3)),
]


def test_odd_chunks_are_refused_or_answered_and_leave_no_trace(predictor: Predictor) -> None:
    """Whatever is pushed: a BadInput, after which the stream answers as one that never saw it; or answers."""
    draws, counts, given = random.Random(0), {True: 0, False: 0}, recording()
    for _ in range(int(os.environ.get("EQUIPOISE_CASES", "150"))):
        stream, other = predictor.stream(rates=RATES), predictor.stream(rates=RATES)
        names = draws.sample(["wrist", "ankle", "camera", "heat", "else", ""], draws.randrange(1, 4))
        odd = {name: draws.choice(ODD_CHUNKS) for name in names}
        message = ""
        try:
            for answer in stream.push(odd):
                assert len(answer.prediction.sensors) <= 4
        except BadInput as refused:
            message = str(refused)
        counts[not message] += 1
        assert len(message) < 3_000
        if message:
            first = {name: cut(name, array, 0, 2) for name, array in given.items()}
            assert same(stream.push(first), other.push(first))
    assert min(counts.values()) >= 5

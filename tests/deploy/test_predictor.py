"""From raw data to an answer: one sample or many, as recorded, whatever is missing."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import equipoise
from deploy.shipped_runs import SAMPLES, recorded, rows_of, trained
from equipoise.data.splits import Splits
from equipoise.data.views import LogSTFT, TimeLast, VideoFrames
from equipoise.deploy import InputSpec, Prediction, Predictor
from equipoise.deploy.recorded import read_recorded
from equipoise.models.late_fusion import Decision
from equipoise.util.errors import BadInput

NAMES = ("walk", "run", "rest")
TEST = range(2, SAMPLES, 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictor, Splits]:
    folder = tmp_path_factory.mktemp("run")
    splits = trained(folder, recorded(), [NAMES[number % 7 % 3] for number in range(SAMPLES)])
    return equipoise.load(folder), splits


def by_the_model(predictor: Predictor, splits: Splits, subset: Any, decision: Decision = "committee") -> np.ndarray:
    """What the model says of the test part as training prepared it."""
    inputs = splits.test.ready().inputs
    kept = {key: value for key, value in inputs.items() if key.removesuffix("_length") in subset}
    return predictor.saved.model.predict(kept, decision).numpy()


def test_raw_samples_get_the_answers_of_the_prepared_ones(run: tuple[Predictor, Splits]) -> None:
    predictor, splits = run
    raw = rows_of(recorded(), TEST)
    for size in range(1, len(raw) + 1):
        for subset in itertools.combinations(raw, size):
            given = {name: raw[name] if name in subset else None for name in raw}
            for decision in ("committee", "fused"):
                answer = predictor.predict(given, decision)
                wanted = by_the_model(predictor, splits, subset, decision)
                np.testing.assert_allclose(answer.probabilities, wanted, atol=2e-6)
                assert answer.sensors == [tuple(name for name in predictor.sensors if name in subset)] * len(TEST)


def test_a_limit_of_samples_is_kept(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    assert len(predictor.predict({predictor.sensors[0]: [None] * 7}, most=7).answer) == 7
    with pytest.raises(BadInput, match="expected at most 7 samples at once, found 8"):
        predictor.predict({predictor.sensors[0]: [None] * 8}, most=7)


def test_one_sample_is_answered_as_among_many(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    raw = rows_of(recorded(), TEST)
    many = predictor.predict(raw)
    for row in range(0, len(TEST), 5):
        one = predictor.predict({name: values[row] for name, values in raw.items()})
        assert one.single
        np.testing.assert_allclose(one.probabilities, many.probabilities[row], atol=1e-6)
        assert one.answer == many.answer[row]
        assert one.sensors == many.sensors[row]
        assert one.answer == one.names[int(np.argmax(one.probabilities))]


def forms(raw: dict[str, Any]) -> dict[str, Any]:
    """The same samples in every form that users have them in."""
    stacked = {name: values if name == "speech" else np.stack(values) for name, values in raw.items()}
    padded = np.full((len(TEST), 3, 8), np.nan)
    for row, values in enumerate(raw["speech"]):
        padded[row, :, : values.shape[1]] = values
    lengths = np.array([values.shape[1] for values in raw["speech"]])
    numbers = {f"vector_{place}": stacked["vector"][:, place] for place in range(4)}
    cells = {name: raw[name] for name in ("series", "speech", "camera")}
    return {
        "arrays": stacked,
        "tensors": {name: values if name == "speech" else torch.from_numpy(values) for name, values in stacked.items()},
        "plain lists": {name: [np.asarray(value).tolist() for value in values] for name, values in raw.items()},
        "colours first": {**stacked, "camera": stacked["camera"].transpose(0, 3, 1, 2)},
        "padded": {**stacked, "speech": padded, "speech_length": lengths},
        "with labels": {**stacked, "label": np.zeros(len(TEST)), "group": np.zeros(len(TEST))},
        "a table of cells": pd.DataFrame({**raw, "label": 0}),
        "a table of columns": pd.DataFrame({**numbers, "heat": stacked["heat"], **cells}),
    }


def test_every_form_of_the_same_samples_gets_the_same_answers(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    raw = rows_of(recorded(), TEST)
    wanted = predictor.predict(raw).probabilities
    for form, given in forms(raw).items():
        np.testing.assert_allclose(predictor.predict(given).probabilities, wanted, atol=2e-6, err_msg=form)


def test_missing_in_every_way_is_the_same(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    raw = {name: np.stack(values) for name, values in rows_of(recorded(), TEST).items() if name != "speech"}
    gone = np.arange(len(TEST)) % 3 == 1
    listed = {**raw, "series": [None if here else row for row, here in zip(raw["series"], gone, strict=True)]}
    blank = {**raw, "series": np.where(gone[:, None, None], np.nan, raw["series"])}
    flagged = {**raw, "series_present": ~gone}
    whole = {name: values for name, values in raw.items() if name != "series"}
    answers = [
        predictor.predict(given)
        for given in (listed, blank, flagged, pd.DataFrame({name: list(values) for name, values in listed.items()}))
    ]
    without = predictor.predict(whole)
    for answer in answers:
        np.testing.assert_array_equal(answer.probabilities, answers[0].probabilities)
        np.testing.assert_allclose(answer.probabilities[gone], without.probabilities[gone], atol=1e-6)
        assert [("series" in sensors) for sensors in answer.sensors] == (~gone).tolist()
    assert not np.allclose(answers[0].probabilities[~gone], without.probabilities[~gone])


def test_a_padded_series_without_a_real_number_is_missing(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    speech = np.zeros((2, 3, 8))
    speech[1, :, :5] = np.nan  # all that is real of it
    answer = predictor.predict({"heat": [20.0, 21.0], "speech": speech, "speech_length": [5, 5]})
    assert answer.sensors == [("heat", "speech"), ("heat",)]


def test_a_sample_without_any_sensor_gets_even_odds(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    answer = predictor.predict({"vector": [None, np.zeros(4)]})
    np.testing.assert_allclose(answer.probabilities[0], 1 / 3, atol=1e-6)
    assert answer.sensors == [(), ("vector",)]
    for given in ({"vector": None}, {"series": [[None] * 6] * 2}, {"series": None, "vector": [np.nan] * 4}):
        one = predictor.predict(given)
        assert one.single
        assert one.sensors == ()
        np.testing.assert_array_equal(one.probabilities, answer.probabilities[0])


def test_nulls_in_a_row_are_one_sensor_that_is_missing(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    one = {name: values[0] for name, values in rows_of(recorded(), TEST).items()}
    without = predictor.predict({**one, "vector": None}).as_dict()
    for name, nulls in (("vector", [None] * 4), ("vector", (None,) * 4), ("heat", [None]), ("heat", None)):
        expected = without if name == "vector" else predictor.predict({**one, "heat": None}).as_dict()
        assert predictor.predict({**one, name: nulls}).as_dict() == expected
    nulls = {"vector": [None] * 4, "heat": [None], "series": [[None] * 6] * 2}
    nothing = predictor.predict(nulls)
    assert nothing.single
    assert nothing.sensors == ()
    four = predictor.predict({"vector": [None] * 4, "heat": [20.0, 21.0, 22.0, 23.0]})
    assert four.sensors == [("heat",)] * 4  # beside four samples of another sensor, four that lack it
    assert predictor.predict({"vector": [None] * 3}).sensors == [()] * 3
    assert predictor.predict({"series": [None] * 2}).sensors == [()] * 2
    assert predictor.predict({"vector": [None] * 4}, many=True).sensors == [()] * 4
    with pytest.raises(BadInput, match="found one of"):
        predictor.predict({"vector": [None] * 3, "series": one["series"]})


def test_no_sensor_at_all_is_one_sample_without_any(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    for given in ({}, {"label": ["walk"]}, {"vector": None}):
        answer = predictor.predict(given)
        assert answer.single
        assert answer.sensors == ()
        np.testing.assert_allclose(answer.probabilities, 1 / 3, atol=1e-6)
    assert predictor.predict({"id": "left"}).as_dict()["id"] == "left"
    with pytest.raises(BadInput, match="unknown sensor: 'vectr'"):
        predictor.predict({"vectr": None})
    with pytest.raises(BadInput, match="at least one of"):
        predictor.predict({}, many=True)


def test_a_predictor_says_what_it_is(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    told = repr(predictor)
    for part in (str(predictor.saved.folder), *predictor.sensors, *NAMES):
        assert part in told


def test_answers_keep_the_names_of_the_samples(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    numbers = {f"vector_{place}": [0.0, 1.0] for place in range(4)}
    assert "id" not in predictor.predict(pd.DataFrame(numbers)).columns()
    for given in (
        pd.DataFrame(numbers, index=pd.Index(["left", "right"])),
        pd.DataFrame({**numbers, "id": ["left", "right"]}),
        {"vector": np.zeros((2, 4)), "id": np.array(["left", "right"])},
    ):
        answer = predictor.predict(given)
        assert answer.columns()["id"] == ["left", "right"]
        assert answer.as_dict()["id"] == ["left", "right"]
        assert list(answer.to_frame())[:2] == ["row", "id"]
    dates = pd.DataFrame(numbers, index=pd.to_datetime(["2026-01-01", "2026-01-02"]))
    assert predictor.predict(dates).columns()["id"] == ["2026-01-01 00:00:00", "2026-01-02 00:00:00"]
    assert predictor.predict({"vector": np.zeros(4), "id": "left"}).as_dict()["id"] == "left"


def test_pictures_of_another_size_are_resized(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    picture = np.kron(recorded()["camera"][0], np.ones((3, 3, 1), np.uint8))  # each pixel nine times
    small = predictor.predict({"camera": recorded()["camera"][0]})
    np.testing.assert_allclose(predictor.predict({"camera": picture}).probabilities, small.probabilities, atol=0.02)


def test_everything_wrong_is_said_at_once(run: tuple[Predictor, Splits]) -> None:
    predictor, _ = run
    good = recorded()
    with pytest.raises(BadInput) as caught:
        predictor.predict(
            {
                "vectr": good["vector"],
                "series": good["series"].transpose(0, 2, 1),
                "speech": np.zeros((SAMPLES, 3, 9)),
                "camera": good["camera"] / 255,
                "heat": ["warm"] * SAMPLES,
                "series_length": np.full(SAMPLES, 6),
            }
        )
    told = str(caught.value)
    for part in (
        "'vectr'",
        "Did you mean 'vector'?",
        "series: expected [2, 6] for one sample or [N, 2, 6] for many, found samples of shape [6, 2]; time comes last",
        "speech: expected [3, up to 8]",
        "camera: expected bytes, 0 to 255",
        "heat: expected numbers",
        "series_length: expected none",
    ):
        assert part in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"id": ["a", "b"]}, "id: expected a name for each of 1 samples, found 2"),
        ({"vector": np.zeros((3, 4)), "id": ["a", "b"]}, "id: expected a name for each of 3 samples, found 2"),
        (pd.DataFrame({"id": ["a"]}), "at least one of vector, heat, series, speech, camera"),
        ({"vector": [10**400, 0, 0, 0]}, "vector: expected finite numbers, found one that is too large for 64 bits"),
        ({"heat": [10**400]}, "heat: expected finite numbers"),
        ({"series": [[10**400] * 6, [0] * 6]}, "series: expected finite numbers"),
        (
            {"series": np.zeros((0, 2, 6))},
            "series: expected [2, 6] for one sample or [N, 2, 6] for many, found an array",
        ),
        ({"vector": []}, "vector: expected [4] for one sample"),
        ({"series": [np.zeros((2, 6)), np.zeros((2, 4))]}, "many, found 6 steps at most, and 4 in sample 1"),
        ({"series": [np.zeros((2, 6)), None, np.zeros((2, 1))]}, "found 6 steps at most, and 1 in sample 2"),
        ({"vector": [0, 1, None, 2]}, "finite numbers, found NaN or infinity in 1 of 1 samples (0), first in sample 0"),
        ({"vector": [["1", None, "2", "3"]]}, "vector: expected numbers, found values of type object"),
        ({"vector": [0, 1, 1e300, 2]}, "vector: expected finite numbers"),
        (np.zeros(4), "found ndarray"),
        ({"vector": np.zeros(3)}, "vector: expected [4] for one sample or [N, 4] for many, found samples of shape [3]"),
        ({"vector": np.zeros((2, 3, 4, 5))}, "vector: expected [4] for one sample"),
        ({"vector": np.zeros((2, 4)), "heat": np.zeros(3)}, "found vector 2, heat 3"),
        ({"vector": np.zeros((2, 4)), "series": np.zeros((2, 6))}, "found one of ['series'] and many of ['vector']"),
        ({"vector": [[0, 1, np.nan, 2]]}, "vector: expected finite numbers"),
        ({"vector": np.zeros((2, 4)), "vector_present": [1, 2]}, "vector_present: expected true or false"),
        ({"camera": np.zeros((8, 10, 2), np.uint8)}, "camera: expected bytes [height, width, 3]"),
    ],
)
def test_bad_input_is_told_with_what_was_expected(run: tuple[Predictor, Splits], given: Any, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        run[0].predict(given)
    assert told in str(caught.value)
    decision: Any = "comitee"
    with pytest.raises(BadInput, match="unknown decision 'comitee'"):
        run[0].predict({"vector": np.zeros(4)}, decision)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array([1 + 5j, 2]), "complex128"),
        (np.array([2, 3], "m8[ns]"), "timedelta64[ns]"),
        (np.array([2, 3], "M8[ns]"), "datetime64[ns]"),
    ],
)
def test_columns_that_hold_no_numbers_are_refused(run: tuple[Predictor, Splits], values: np.ndarray, kind: str) -> None:
    for others in (values, np.zeros(2)):
        table = pd.DataFrame({"vector_0": values, **{f"vector_{number}": others for number in (1, 2, 3)}})
        with pytest.raises(BadInput) as caught:
            run[0].predict(table)
        lines = [
            f"column vector_{number}: expected numbers, found values of type {kind}"
            for number in range(4 if others is values else 1)
        ]
        assert str(caught.value).splitlines()[: len(lines)] == lines


def test_whole_numbers_and_truth_values_in_columns_are_numbers(run: tuple[Predictor, Splits]) -> None:
    table = pd.DataFrame({"vector_0": [1, 0], "vector_1": [True, False], "vector_2": [0.5, 2], "vector_3": [3, 4]})
    given = np.array([[1, 1, 0.5, 3], [0, 0, 2, 4]])
    np.testing.assert_array_equal(run[0].predict(table).probabilities, run[0].predict({"vector": given}).probabilities)


@pytest.mark.parametrize("whole", [[[0.0] * 4], [9.0]])
def test_one_sensor_in_two_forms_is_refused(run: tuple[Predictor, Splits], whole: list[Any]) -> None:
    table = pd.DataFrame({"vector": whole, **{f"vector_{number}": [9.0] for number in range(4)}})
    for given in (table, table[table.columns[::-1]]):
        with pytest.raises(BadInput) as caught:
            run[0].predict(given)
        assert str(caught.value) == "column vector: expected it or the columns vector_0, vector_1, …; found both"
    twice = pd.DataFrame(np.zeros((1, 5)), columns=["vector_0", "vector_1", "vector_2", "vector_3", "vector_0"])
    with pytest.raises(BadInput, match=r"^column vector_0: expected one of this name, found 2$"):
        run[0].predict(twice)


class Endless:
    """Says that it has very many entries."""

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, number: int) -> float:
        return 0.0


def in_itself() -> list[Any]:
    odd: list[Any] = [True]
    odd.append(odd)
    return odd


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_numpy_cannot_read_is_refused_by_name(run: tuple[Predictor, Splits]) -> None:
    ragged = [torch.zeros(2), torch.zeros(3)]
    odd: list[Any] = [
        Endless(),
        in_itself(),
        torch.nested.nested_tensor(ragged),
        torch.zeros(2, dtype=torch.cfloat).conj(),
    ]
    for each in odd:
        given = {"vector": np.zeros((2, 4)), "speech": np.zeros((2, 3, 8))}
        for name in ("vector", "vector_present", "id", "speech_length"):
            with pytest.raises(BadInput, match=f"^{name}: expected .* found what numpy cannot read: ."):
                run[0].predict({**given, name: each})
        with pytest.raises(BadInput, match="unknown decision"):
            run[0].predict(given, each)


def test_samples_beyond_memory_are_refused_before_they_are_read(run: tuple[Predictor, Splits]) -> None:
    """A broadcast array takes no memory until it is read: 10^12 vectors of 4 floats are 14.6 TiB."""
    for value in (np.float32(1), np.float32("nan"), np.int8(1)):
        with pytest.raises(
            BadInput, match=r"found 1,000,000,000,000, and reading them needs about [\d,.]+ GiB of memory"
        ):
            run[0].predict({"vector": np.broadcast_to(value, (10**12, 4))})


def test_plain_values_and_tables() -> None:
    classes = Prediction("classes", ("a", "b"), [("x", "y")], "committee", probabilities=np.array([[0.25, 0.75]]))
    assert classes.answer == ["b"]
    assert classes.as_dict() == {
        "answer": ["b"],
        "sensors": [["x", "y"]],
        "probabilities": {"a": [0.25], "b": [0.75]},
        "decision": "committee",
    }
    assert classes.to_frame().to_dict("records") == [
        {"row": 0, "answer": "b", "p_a": 0.25, "p_b": 0.75, "sensors": "x+y"}
    ]
    labels = Prediction("labels", ("a", "b"), ("x",), "fused", single=True, probabilities=np.array([0.75, 0.5]))
    assert labels.answer == ["a"]
    assert labels.columns() == {"row": [0], "answer": ["a"], "p_a": [0.75], "p_b": [0.5], "sensors": ["x"]}
    ends: dict[str, Any] = {"low": np.array([1.0]), "high": np.array([np.inf])}
    number = Prediction("regression", ("angle",), ("x",), "committee", single=True, values=np.array([2.0]), **ends)
    assert number.answer == 2.0
    plain = number.as_dict()
    assert (plain["low"], plain["high"]) == ({"angle": 1.0}, {"angle": None})
    assert number.columns() == {"row": [0], "answer": [2.0], "low": [1.0], "high": [np.inf], "sensors": ["x"]}
    several = Prediction("regression", ("u", "v"), [("x",)], "committee", values=np.array([[2.0, 4.0]]))
    assert several.answer[0].tolist() == [2.0, 4.0]
    assert list(several.columns()) == ["row", "answer_u", "answer_v", "sensors"]


def test_loading_is_known_without_what_it_needs() -> None:
    code = (
        "import sys, equipoise; equipoise.load; assert not [m for m in sys.modules if m.startswith('equipoise.deploy')]"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
    with pytest.raises(BadInput, match="no such folder"):
        equipoise.load(Path("nowhere"))


def test_views_that_are_not_in_the_graph_are_applied() -> None:
    """Frames are chosen and sound transformed by the reader, as training data of prepared sets is."""
    sound, film = LogSTFT(200, 64, 32), VideoFrames(2, 8)
    specs = {
        "sound": InputSpec(sound.shape((300,)), before=sound, stored=((300,), torch.int16)),
        "film": InputSpec(film.shape((5, 3, 12, 10)), before=film, stored=((5, 3, 12, 10), torch.uint8)),
        "steps": InputSpec((6, 2), ragged=True, view=TimeLast()),
    }
    random = np.random.default_rng(0)
    wave = random.integers(-3000, 3000, (2, 300)).astype(np.int16)
    frames = random.integers(0, 256, (2, 5, 12, 10, 3), dtype=np.uint8)
    steps = [random.normal(size=(4, 2)), random.normal(size=(6, 2))]
    read = read_recorded(specs, {"sound": wave, "film": frames, "steps": steps}).inputs
    torch.testing.assert_close(read["sound"], sound(torch.from_numpy(wave), None, None))
    stored = torch.from_numpy(frames).permute(0, 1, 4, 2, 3)
    torch.testing.assert_close(read["film"], film(stored, None, None))
    assert read["steps_length"].tolist() == [4, 6]
    np.testing.assert_allclose(read["steps"][0, :4], steps[0], rtol=1e-6)
    assert (read["steps"][0, 4:] == 0).all()
    with pytest.raises(BadInput) as caught:
        read_recorded(specs, {"sound": np.zeros((1, 150)), "film": np.zeros((1, 5, 12, 10, 4), np.uint8)})
    assert "sound: expected [T] of at least 200 samples" in str(caught.value)
    assert "film: expected bytes [frames, height, width, 3]" in str(caught.value)


def test_token_numbers_are_those_that_the_encoder_knows() -> None:
    specs = {"text": InputSpec((4,), torch.int64)}
    read = read_recorded(specs, {"text": [[1, 2, 3, 0], [9, 0, 0, 0]]}, {"text": 10}).inputs["text"]
    assert (read.dtype, read.tolist()) == (torch.int64, [[1, 2, 3, 0], [9, 0, 0, 0]])
    for wrong in ([1, 2, 3, 10], [-1, 0, 0, 0], [0.5, 0, 0, 0]):
        with pytest.raises(BadInput, match="whole numbers from 0 to 9"):
            read_recorded(specs, {"text": wrong}, {"text": 10})

"""From arrays to parts: what each array becomes, and everything that is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data.splits import Part, Splits
from equipoise.util.errors import name_problems

from_arrays = Splits.from_arrays
TAKEN = (
    "fused",
    "fused head",
    "own heads",
    "mean",
    "worst",
    "label",
    "split",
    "group",
    "classes",
    "committee",
    "fused_low",
)
LABEL = np.arange(30) % 3
SPLIT = np.repeat([0, 1, 2], [18, 6, 6])


def some(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return random.normal(size=shape).astype(dtype)
    return random.integers(0, 100, size=shape).astype(dtype)


def refused(*parts: str, arrays: Any = None, label: Any = LABEL, **options: Any) -> str:
    """The one message that says all of it."""
    with pytest.raises(ValueError, match="cannot be trained on:\n") as found:
        from_arrays({"a": some(30, 4)} if arrays is None else arrays, label, **options)
    text = str(found.value)
    for part in parts:
        assert part in text, text
    return text


def whole(splits: Splits, name: str) -> torch.Tensor:
    return torch.cat([part.inputs[name] for part in splits.parts.values()])


# -- any number of sensors, in any order --


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_any_number_of_modalities_in_any_order(count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    shapes = [(5,), (3, 7), (2, 6, 6), (3, 4, 5, 5)]
    arrays = {f"s{at}": some(30, *shapes[at], seed=at) for at in random.permutation(4)[:count]}
    group = random.integers(0, 8, 30)
    found = from_arrays(arrays, LABEL, group=group, seed=seed).check()
    assert found.modalities == tuple(arrays)
    assert found.shapes == {name: array.shape[1:] for name, array in arrays.items()}
    turned = from_arrays(dict(reversed(arrays.items())), LABEL, group=group, seed=seed)
    assert turned.fingerprint() == found.fingerprint()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "uint16", "bool"])
def test_numbers_of_any_type_become_32_bit_floats(dtype: str) -> None:
    given = some(30, 3, 5, dtype=dtype)
    found = whole(from_arrays({"a": given}, LABEL, split=SPLIT, standardise=False), "a")
    assert found.dtype == torch.float32
    assert (found.numpy() == given.astype(np.float32)).all()


def test_arrays_are_standardised_by_the_training_part() -> None:
    given = 5 + 3 * some(30, 2, 8)
    found = from_arrays({"a": given}, LABEL, split=SPLIT)
    train = given[:18].astype(np.float64)
    mean, deviation = train.mean((0, 2), keepdims=True), train.std((0, 2), ddof=1, keepdims=True)
    expected = (given - mean) / deviation
    np.testing.assert_allclose(whole(found, "a").numpy(), expected, atol=1e-5)


def test_what_was_given_is_not_changed() -> None:
    given = some(30, 4)
    before = given.copy()
    found = from_arrays({"a": given}, LABEL, split=SPLIT, standardise=False)
    for part in found.parts.values():
        part.inputs["a"].zero_()
    assert (given == before).all()


def test_tensors_lists_and_frozen_arrays_are_taken() -> None:
    given = some(30, 4)
    frozen = given.copy()
    frozen.flags.writeable = False
    marks = [
        from_arrays({"a": form}, LABEL.tolist(), split=SPLIT.tolist()).fingerprint()
        for form in (given, torch.tensor(given, requires_grad=True), given.tolist(), frozen, np.asfortranarray(given))
    ]
    assert len(set(marks)) == 1
    assert from_arrays({"a": torch.zeros(30, 2, dtype=torch.bfloat16)}, torch.tensor(LABEL)).shapes == {"a": (2,)}


def test_one_number_per_sample_is_a_vector_of_one() -> None:
    assert from_arrays({"heat": np.arange(30)}, LABEL, split=SPLIT).shapes == {"heat": (1,)}


# -- pictures --


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((30, 9, 8), (1, 9, 8)),
        ((30, 9, 8, 3), (3, 9, 8)),
        ((30, 9, 8, 1), (1, 9, 8)),
        ((30, 9, 8, 4), (4, 9, 8)),
        ((30, 3, 9, 8), (3, 9, 8)),
        ((30, 7, 9, 8), (7, 9, 8)),
        ((30, 5, 9, 8, 3), (3, 5, 9, 8)),
        ((30, 3, 9, 8, 3), (3, 3, 9, 8)),  # three frames of three colours, not three colours of nine frames
        ((30, 5, 3, 9, 8), (3, 5, 9, 8)),
        ((30, 3, 5, 9, 8), (3, 5, 9, 8)),
        ((30, 6, 5, 9, 8), (6, 5, 9, 8)),
    ],
)
def test_bytes_are_pictures_with_colours_first(given: tuple[int, ...], expected: tuple[int, ...]) -> None:
    array = some(*given, dtype="uint8")
    found = from_arrays({"cam": array}, LABEL, split=SPLIT)
    assert found.shapes == {"cam": expected}
    assert whole(found, "cam").dtype == torch.uint8
    ready = found.train.ready().inputs["cam"]
    assert ready.dtype == torch.float32
    assert sorted((ready[0] * 255).round().flatten().tolist()) == sorted(array[0].astype(float).flatten().tolist())
    assert ("cam" in found.about) == (len(given) == 3 or given[1:] != expected)


def test_a_pixel_goes_where_its_colour_and_place_say() -> None:
    array = np.zeros((30, 9, 8, 3), np.uint8)
    array[4, 5, 6, 2] = 255
    found = whole(from_arrays({"cam": array}, LABEL, split=SPLIT), "cam")
    assert found.nonzero().tolist() == [[4, 2, 5, 6]]
    video = np.zeros((30, 7, 9, 8, 3), np.uint8)
    video[4, 1, 5, 6, 2] = 255
    assert whole(from_arrays({"v": video}, LABEL, split=SPLIT), "v").nonzero().tolist() == [[4, 2, 1, 5, 6]]


def test_bytes_in_vectors_are_numbers() -> None:
    assert whole(from_arrays({"a": some(30, 4, dtype="uint8")}, LABEL, split=SPLIT), "a").dtype == torch.float32


# -- ragged time --


def series(channels: int = 3, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=(channels, int(length))) for length in random.integers(2, 12, 30)]


@pytest.mark.parametrize("boxed", [False, True])
def test_series_of_different_length_are_padded_and_carry_their_lengths(boxed: bool) -> None:
    given = series()
    if boxed:
        box = np.empty(30, object)
        box[:] = given
    found = from_arrays({"imu": box if boxed else given}, LABEL, split=SPLIT, standardise=False).check()
    values, lengths = whole(found, "imu"), whole(found, "imu_length")
    assert found.modalities == ("imu",)
    assert lengths.tolist() == [each.shape[1] for each in given]
    for row, each in zip(values, given, strict=True):
        np.testing.assert_allclose(row[:, : each.shape[1]], each, rtol=1e-6)
        assert (row[:, each.shape[1] :] == 0).all()


def test_padding_has_no_say_in_the_statistics() -> None:
    given = series()
    found = from_arrays({"imu": given}, LABEL, split=SPLIT).train
    real = np.concatenate(given[:18], axis=1)
    mean, deviation = real.mean(1, keepdims=True), real.std(1, ddof=1, keepdims=True)
    np.testing.assert_allclose(found.inputs["imu"][0, :, : given[0].shape[1]], (given[0] - mean) / deviation, atol=1e-5)


def test_lengths_may_be_given_in_two_ways_and_what_lies_behind_them_does_not_matter() -> None:
    given, lengths = some(30, 3, 10), np.arange(30) % 10 + 1
    behind = np.arange(10) >= lengths[:, None]
    dirty = np.where(behind[:, None], np.nan, given)
    beside = from_arrays({"imu": given, "imu_length": lengths}, LABEL, split=SPLIT)
    apart = from_arrays({"imu": dirty}, LABEL, split=SPLIT, lengths={"imu": lengths})
    assert beside.fingerprint() == apart.fingerprint()
    assert beside.train.inputs["imu_length"].tolist() == lengths[:18].tolist()


def test_bytes_with_lengths_are_a_series() -> None:
    found = from_arrays({"imu": some(30, 3, 10, dtype="uint8"), "imu_length": np.arange(30) % 10}, LABEL, split=SPLIT)
    assert found.shapes == {"imu": (3, 10)}
    assert found.train.inputs["imu"].dtype == torch.float32


def test_samples_of_one_length_need_no_lengths() -> None:
    whole_length = from_arrays({"imu": some(30, 3, 10), "imu_length": [10] * 30}, LABEL, split=SPLIT)
    assert list(whole_length.train.inputs) == ["imu"]
    assert list(from_arrays({"imu": list(some(30, 3, 10))}, LABEL, split=SPLIT).train.inputs) == ["imu"]


def test_a_list_of_plain_sequences_is_one_channel() -> None:
    given = [list(range(1 + number % 4)) for number in range(30)]
    found = from_arrays({"tone": given}, LABEL, split=SPLIT, standardise=False)
    assert found.shapes == {"tone": (1, 4)}
    assert whole(found, "tone")[2].tolist() == [[0.0, 1.0, 2.0, 0.0]]


def test_frames_may_differ_in_number() -> None:
    given = [some(2 + number % 3, 6, 5, 3, dtype="uint8") for number in range(30)]
    found = from_arrays({"cam": given}, LABEL, split=SPLIT)
    assert found.shapes == {"cam": (3, 4, 6, 5)}
    assert whole(found, "cam_length").tolist() == [2 + number % 3 for number in range(30)]
    assert (whole(found, "cam")[1, :, :3].numpy() == np.moveaxis(given[1], -1, 0)).all()


# -- labels --


@pytest.mark.parametrize(
    ("label", "classes", "names", "numbers"),
    [
        ([0, 1, 2], None, ("0", "1", "2"), [0, 1, 2]),
        ([2, 0, 1], None, ("0", "1", "2"), [2, 0, 1]),
        ([7, 3, 5], None, ("3", "5", "7"), [2, 0, 1]),
        ([-1, 1, 10], None, ("-1", "1", "10"), [0, 1, 2]),
        (["b", "c", "a"], None, ("a", "b", "c"), [1, 2, 0]),
        ([b"b", b"c", b"a"], None, ("a", "b", "c"), [1, 2, 0]),
        ([True, False, True], None, ("False", "True"), [1, 0, 1]),
        ([0, 1, 2], ["x", "y", "z"], ("x", "y", "z"), [0, 1, 2]),
        ([0, 2, 2], ["x", "y", "z"], ("x", "y", "z"), [0, 2, 2]),
        (["b", "c", "a"], ["c", "b", "a"], ("c", "b", "a"), [1, 0, 2]),
        ([True, False, True], ["ill", "well"], ("ill", "well"), [1, 0, 1]),
        ([[0], [1], [1]], None, ("0", "1"), [0, 1, 1]),
    ],
)
def test_labels_by_hand(label: list[Any], classes: Any, names: tuple[str, ...], numbers: list[int]) -> None:
    marks = np.repeat([0, 1, 2], 3)
    arrays = {"a": some(9, 2)}
    if set(numbers) != set(range(len(names))):
        with pytest.raises(ValueError, match="train: expected samples of every class, found none of y"):
            from_arrays(arrays, label * 3, split=marks, classes=classes)
        return
    found = from_arrays(arrays, label * 3, split=marks, classes=classes)
    assert found.classes == names
    assert found.train.label.tolist() == numbers
    assert found.train.label.dtype == torch.int64


# -- names --


@pytest.mark.parametrize("name", TAKEN)
def test_names_with_another_meaning_are_refused(name: str) -> None:
    refused(f"No modality may be called {name!r}", arrays={name: some(30, 2)})


def test_names_with_dots_are_refused() -> None:
    assert name_problems(["cam.left"])
    refused("No modality may be called 'cam.left'", "write 'cam_left'", arrays={"cam.left": some(30, 2)})


def test_every_name_that_a_model_refuses_is_refused_here() -> None:
    words = ["fused", "heads", "mean", "worst", "label", "split", "group", "audio", "a_b", "keys", "committee"]
    for word in [*words, *(name for name in TAKEN if name != "classes")]:
        assert bool(name_problems([word])) == (word in TAKEN), word


@pytest.mark.parametrize("name", [" a", "a ", "", 3, None])
def test_names_are_words(name: Any) -> None:
    refused("expected names without blanks around them", arrays={name: some(30, 2)})


# -- everything wrong at once --

RAGGED_IMAGES = [some(3, 5, 5 + number % 2) for number in range(30)]
TURNED = [some(4 + number % 3, 3) for number in range(30)]
NAN = np.where((np.arange(30)[:, None] < 7) & (np.arange(4) == 2), np.nan, some(30, 4))
ODD = np.array([{}] * 30)
ONCE = [1] * 30

SENSORS: dict[str, tuple[Any, Any, str]] = {  # the array, its lengths, and what is said
    "NaN": (NAN, None, "X: expected finite numbers, found NaN or infinity in 7 of 30 samples (0, 1, 2, 3, 4, …)"),
    "too large": (np.full((30, 2), 1e300), None, "X: expected finite numbers, found NaN or infinity in 30 of 30"),
    "text": (np.array(["x"] * 30), None, "X: expected numbers, found text"),
    "complex": (np.ones((30, 2), complex), None, "X: expected numbers, found complex128"),
    "dates": (np.zeros(30, "M8[s]"), None, "X: expected numbers, found dates"),
    "records": (np.zeros(30, "i4,f4"), None, "X: expected numbers, found records"),
    "no axis": (np.float32(3), None, "X: expected [N, D], [N, C, T]"),
    "six axes": (np.zeros((30, 1, 1, 1, 1, 1)), None, "X: expected [N, D], [N, C, T]"),
    "empty axis": (np.zeros((30, 0)), None, "X: expected [N, D], [N, C, T], [N, C, H, W] or [N, C, T, H, W], found an"),
    "objects": (ODD, None, "X: expected numbers, found objects"),
    "lists of nothing": ([[[], [1]]] * 30, None, "X: expected an array of numbers"),
    "shapes": (RAGGED_IMAGES, None, "X: expected samples of one shape, or series [C, T] that differ in T only; found"),
    "turned": (TURNED, None, "in 20 (1, 2, 4, 5, 7, …); time comes last: give each sample as its transpose"),
    "no steps": ([np.zeros((3, 0)) for _ in range(30)], None, "X: expected [N, D], [N, C, T]"),
    "texts of length": ([np.array(["x"] * (1 + at % 2)) for at in range(30)], None, "X: expected numbers, found text"),
    "lengths of vectors": (some(30, 4), ONCE, "X_length: expected lengths of series [N, C, T] or frames"),
    "lengths too long": (some(30, 4, 5), [6] * 30, "X_length: expected lengths from 0 to 5, found 6 to 6"),
    "lengths below 0": (some(30, 4, 5), [-1] * 30, "X_length: expected lengths from 0 to 5, found -1 to -1"),
    "lengths in halves": (some(30, 4, 5), [0.5] * 30, "X_length: expected one whole number per sample, 30 in all"),
    "lengths missing": (some(30, 4, 5), [1] * 29, "X_length: expected one whole number per sample, 30 in all"),
    "lengths twice": (series(), [2] * 30, "X: expected no lengths beside samples that differ in length"),
}
ANSWERS: dict[str, tuple[dict[str, Any], str]] = {
    "no label": ({"label": None}, "found none; give an array or a column called label"),
    "no classes": (
        {"label": np.linspace(0, 1, 30), "task": "classes"},
        "label: expected classes, whole numbers or names, found the numbers 0.0, 0.03",
    ),
    "no numbers": ({"label": ["a", "b"] * 15, "task": "regression"}, "label: expected numbers, as task=regression"),
    "no labels": ({"task": "labels"}, "label: expected 0 and 1 for each of several labels [N, L], found one value"),
    "no task": ({"task": "ranking"}, "task: expected one of auto, classes, regression, labels, found 'ranking'"),
    "one value": ({"label": [0.5] * 30}, "label: expected numbers that differ, found one only in label"),
    "counts": (
        {"label": np.arange(60).reshape(30, 2)},
        "found whole numbers from 0 to 59, [30, 2]; if these are numbers to predict, type task=regression",
    ),
    "gaps": (
        {"label": np.where(np.arange(30) < 7, np.nan, 1.5)},
        "label: expected a value for every sample, found none in 7 of 30 (0, 1, 2, 3, 4, …)",
    ),
    "gaps in rows": (
        {"label": np.where(np.arange(60).reshape(30, 2) == 5, np.nan, 1.5)},
        "label: expected a value for every sample, found none in 1 of 30 (2); leave them out",
    ),
    "infinite": (
        {"label": np.where(np.arange(30) == 7, np.inf, 1.5)},
        "label: expected a finite number for every sample, found infinity in 1 of 30 (7)",
    ),
    "too large": ({"label": np.geomspace(1, 1e300, 30)}, "label: expected numbers that fit 32 bits, found 1e+300"),
    "three axes": ({"label": np.zeros((30, 2, 2))}, "or one row of numbers [N, D], found an array of shape (30, 2, 2)"),
    "ragged": ({"label": [[1.0] * (1 + at % 2) for at in range(30)]}, "label: expected one value per sample, or rows"),
    "texts": ({"label": [["a", "b"]] * 30}, "label: expected numbers in rows [N, D], or 0 and 1 for each of several"),
    "records": ({"label": np.zeros(30, [("x", float), ("y", float)])}, "records with the fields x, y; for several"),
    "several at once": (
        {"label": np.ones((30, 2), int), "task": "classes"},
        "label: expected one class per sample, or one 1 in each row, found rows of shape [30, 2]; type task=labels",
    ),
    "never": ({"label": np.eye(4, 3, dtype=int)[np.arange(30) % 2]}, "found none with label_2"),
    "names of columns": (
        {"label": np.ones((30, 2)) * np.arange(30)[:, None] / 7, "classes": ["steer"]},
        "classes: expected 2 names, one per column of label, found 1",
    ),
    "one class": ({"label": ["x"] * 30}, "label: expected two classes or more, found ['x']"),
    "one number": ({"label": [4] * 30}, "label: expected two classes or more, found ['4']"),
    "one truth": ({"label": [True] * 30}, "label: expected two classes or more, found ['True']"),
    "label missing": (
        {"label": [None, *"ab" * 14, ""]},
        "label: expected a value for every sample, found none in 2 of 30",
    ),
    "mixed": (
        {"label": np.array(["a", 1] * 15, object)},
        "label: expected whole numbers or names, found values of the",
    ),
    "too few names": ({"classes": ["x", "y"]}, "label: expected 0 to 1, since 2 classes are named, found 2"),
    "one is there": (
        {"label": [1] * 30, "classes": ["x", "y"]},
        "label: expected samples of two classes or more, found",
    ),
    "unknown": (
        {"label": ["x"] * 30, "classes": ["a", "b"]},
        "label: expected one of the classes ['a', 'b'], found 'x'",
    ),
    "class twice": ({"classes": ["x", "y", "x"]}, "classes: expected names, every one another"),
}
CUTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown part": ({"split": ["train"] * 29 + ["later"]}, "split: expected train, validation or test, or 0, 1, 2"),
    "part numbers": ({"split": [0] * 29 + [3]}, "found 3"),
    "group in two": (
        {"split": SPLIT, "group": ["x"] * 19 + list("abcdefghijk")},
        "found 1: 'x' (train, validation); cut",
    ),
    "group in three": ({"split": SPLIT, "group": [9] * 30}, "found 1: 9 (train, validation, test); cut them by group"),
    "group halves": ({"group": [0.5] * 30}, "group: expected whole numbers or names, found the numbers 0.5"),
    "group missing": (
        {"group": [None, *ONCE[1:]]},
        "group: expected a value for every sample, found none in 1 of 30 (0)",
    ),
    "lengths": ({"group": ONCE[1:]}, "expected one entry per sample in every array, found"),
}
NEED_LABELS: dict[str, tuple[dict[str, Any], str]] = {
    "no test": ({"split": [0] * 20 + [1] * 10}, "test: expected at least one sample, found none"),
    "no training": ({"split": [1] * 20 + [2] * 10}, "train: expected at least one sample, found none"),
    "not learnt": (
        {"split": np.where(LABEL == 2, 2, SPLIT)},
        "train: expected samples of every class, found none of 2",
    ),
    "two groups": ({"group": [1, 2] * 15}, "group: expected three groups or more to draw parts from, found 2"),
    "fold": ({"fold": 5}, "fold: expected 0 to 4, found 5"),
    "folds of groups": ({"fold": 0, "group": [1, 2] * 15}, "but there are fewer than three groups; give group"),
    "fold of given parts": ({"split": SPLIT, "fold": 0}, "but parts were given without groups; give group"),
}
OPTIONS = {**ANSWERS, **CUTS, **NEED_LABELS}


def sensors(*mistakes: str) -> tuple[dict[str, Any], list[str]]:
    """Arrays with these mistakes, and what is to be said of them."""
    arrays: dict[str, Any] = {}
    said = []
    for name, mistake in zip("xyz", mistakes, strict=False):
        array, lengths, message = SENSORS[mistake]
        arrays |= {name: array} if lengths is None else {name: array, f"{name}_length": lengths}
        said.append(message.replace("X", name))
    return arrays, said


@pytest.mark.parametrize("one", SENSORS)
def test_mistakes_in_two_sensors_are_named_together(one: str) -> None:
    for other in SENSORS:
        arrays, said = sensors(one, other)
        refused(*said, arrays=arrays)


@pytest.mark.parametrize("one", OPTIONS)
def test_a_mistake_is_named_beside_one_in_a_sensor(one: str) -> None:
    options, message = OPTIONS[one]
    refused(message, **options)
    for other in SENSORS:
        arrays, said = sensors(other)
        refused(message, *said, **options, arrays=arrays)


@pytest.mark.parametrize("one", ANSWERS)
def test_a_mistake_in_labels_is_named_beside_one_in_parts(one: str) -> None:
    for options, message in CUTS.values():
        refused(ANSWERS[one][1], message, **ANSWERS[one][0], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arrays": {"a": some(29, 4)}}, "in every array, found a 29, label 30"),
        ({"arrays": {"a": some(30, 4), "b": some(3)}, "split": [0] * 4}, "found a 30, b 3, label 30, split 4"),
        ({"arrays": {"a": np.zeros((0, 3))}, "label": []}, "a: expected at least one sample, found none"),
        ({"arrays": {"a": []}}, "a: expected at least one sample, found none"),
        ({"arrays": {"b_length": ONCE}}, "b_length: expected a modality 'b' whose lengths these are, found none"),
        ({"arrays": {}}, "expected at least one modality, found none"),
        ({"lengths": {"imu": ONCE}}, "lengths: expected those of ['a'], found 'imu'"),
        ({"label": []}, "label: expected at least one sample, found none"),
    ],
)
def test_other_mistakes(options: dict[str, Any], message: str) -> None:
    refused(message, **options)


def test_many_mistakes_at_once() -> None:
    text = refused(
        "fused", "b: expected finite", "c: expected numbers", "label: expected classes", "found 'later'", "found a 29",
        arrays={"fused": some(30, 2), "a": some(29, 2), "b": NAN, "c": np.array(["x"] * 30)},
        label=np.linspace(0, 1, 30),
        task="classes",
        split=["train"] * 29 + ["later"],
    )  # fmt: skip
    assert len(text.splitlines()) == 7


def test_of_very_many_mistakes_some_are_shown() -> None:
    text = refused("… and 10 more; all of them: equipoise check", arrays={f"m{at}": NAN for at in range(30)})
    assert len(text.splitlines()) == 22


# -- what the parts say of themselves --


def test_about_says_how_the_parts_were_drawn() -> None:
    arrays, group = {"a": some(30, 4)}, np.arange(30) // 3
    assert from_arrays(arrays, LABEL, split=SPLIT).about == "parts as given"
    assert "samples of one person or recording may be in two parts" in from_arrays(arrays, LABEL).about
    assert "no group in two parts: 6 train, 2 validate, 2 test" in from_arrays(arrays, LABEL, group=group).about
    assert "fold 1 of 5 (seed 0), drawn by group" in from_arrays(arrays, LABEL, group=group, fold=1).about
    assert "not used" in from_arrays(arrays, LABEL, group=group, split=np.repeat([0, 1, 2], 10)[group], fold=1).about


def test_people_keep_their_numbers_and_names_get_some() -> None:
    numbered = from_arrays({"a": some(30, 4)}, LABEL, group=np.arange(30) // 3 + 100)
    named = from_arrays({"a": some(30, 4)}, LABEL, group=[f"p{each}" for each in np.arange(30) // 3])

    def people(part: Part) -> set[int]:
        assert part.group is not None
        return set(part.group.tolist())

    assert people(numbered.train) == {each + 100 for each in people(named.train)}
    assert min(people(numbered.train)) >= 100

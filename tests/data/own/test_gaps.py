"""Samples that lack a sensor: marked, zeroed, and left out of every statistic."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from equipoise.data.check import check_data
from equipoise.data.own.arrays import read_samples
from equipoise.data.own.manifest import samples_of_manifest
from equipoise.data.splits import Splits
from equipoise.methods import MSL
from equipoise.training.settings import Settings
from equipoise.training.step import build_model

from_arrays = Splits.from_arrays
COUNT = 60
LABEL, GROUP = np.arange(COUNT) % 2, np.arange(COUNT) // 4
SHAPES = {"vector": (3,), "series": (2, 9), "image": (3, 4, 5), "frames": (3, 2, 4, 5)}


def made(seed: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """An array, and which samples have it: some of every part at least."""
    random = np.random.default_rng(seed)
    there = random.random(COUNT) > random.uniform(0.1, 0.6)
    there[::7] = True
    there[1] = False
    return random.normal(3, 2, size=(COUNT, *SHAPES[kind])).astype(np.float32), there


def blank(array: np.ndarray, there: np.ndarray) -> np.ndarray:
    return np.where(there.reshape(-1, *[1] * (array.ndim - 1)), array, np.nan)


def whole(splits: Splits, name: str) -> torch.Tensor:
    return torch.cat([part.inputs[name] for part in splits.parts.values()])


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_a_gap_may_be_told_in_four_ways(kind: str, seed: int) -> None:
    array, there = made(seed, kind)
    other = {"other": np.arange(COUNT)}
    boxed = np.empty(COUNT, object)
    boxed[:] = [row if here else None for row, here in zip(array, there, strict=True)]
    forms: list[dict[str, Any]] = [
        {"a": blank(array, there)},
        {"a": array, "a_present": there},
        {"a": blank(array, there), "a_present": there.astype(int)},
        {"a": [row if here else None for row, here in zip(array, there, strict=True)]},
        {"a": boxed},
        {"a": torch.tensor(blank(array, there)), "a_present": torch.ones(COUNT, 1, dtype=torch.bool)},
    ]
    marks = [from_arrays({**form, **other}, LABEL, group=GROUP).check().fingerprint() for form in forms]
    assert len(set(marks)) == 1
    found = from_arrays({**forms[0], **other}, LABEL, split=np.arange(COUNT) // 20)
    assert found.modalities == ("a", "other")
    assert found.shapes["a"] == SHAPES[kind]
    assert whole(found, "a_present").tolist() == there.tolist()
    assert whole(found, "a_present").dtype == torch.bool
    assert (whole(found, "a")[~torch.tensor(there)] == 0).all()
    assert f"a: missing in {(~there).sum()} of {COUNT}" in found.about
    assert "other_present" not in found.train.inputs


@pytest.mark.parametrize("kind", ["vector", "series"])
@pytest.mark.parametrize("seed", range(3))
def test_gaps_have_no_say_in_the_statistics(kind: str, seed: int) -> None:
    array, there = made(seed, kind)
    found = from_arrays({"a": blank(array, there), "b": array}, LABEL, split=np.arange(COUNT) // 20)
    known = np.moveaxis(array[:20][there[:20]], 1, -1).reshape(-1, array.shape[1])
    scaler = StandardScaler().fit(known)
    mean, deviation = (value.flatten().numpy() for value in found.scales["a"])
    np.testing.assert_allclose(mean, scaler.mean_, rtol=1e-4)
    np.testing.assert_allclose(deviation, scaler.scale_ * (len(known) / (len(known) - 1)) ** 0.5, rtol=1e-4)
    values = whole(found, "a")
    assert (values[~torch.tensor(there)] == 0).all()
    assert (values[torch.tensor(there)] != 0).all()


def test_complete_data_stays_as_it_was() -> None:
    array, _ = made(0, "series")
    plain = from_arrays({"a": array}, LABEL, group=GROUP)
    marked = from_arrays({"a": array, "a_present": np.ones(COUNT, bool)}, LABEL, group=GROUP)
    assert list(marked.train.inputs) == ["a"]
    assert plain.fingerprint() == marked.fingerprint()


def test_what_was_given_is_not_changed() -> None:
    array, there = made(0, "vector")
    before = array.copy()
    from_arrays({"a": array, "a_present": there, "b": LABEL}, LABEL, group=GROUP, standardise=False)
    assert (array == before).all()


def test_gaps_in_ragged_series() -> None:
    random = np.random.default_rng(0)
    there = random.random(COUNT) > 0.3
    given = [random.normal(size=(2, random.integers(3, 12))) if here else None for here in there]
    found = from_arrays({"a": given, "b": LABEL}, LABEL, split=np.arange(COUNT) // 20)
    assert whole(found, "a_length").tolist() == [1 if row is None else row.shape[1] for row in given]
    assert whole(found, "a_present").tolist() == there.tolist()
    padded = np.full((COUNT, 2, 12), np.nan)
    for number, row in enumerate(given):
        if row is not None:
            padded[number, :, : row.shape[1]] = row
    lengths = [12 if row is None else row.shape[1] for row in given]
    again = from_arrays({"a": padded, "a_length": lengths, "b": LABEL}, LABEL, split=np.arange(COUNT) // 20)
    assert (whole(again, "a_present") == whole(found, "a_present")).all()
    longest = whole(found, "a").shape[2]
    torch.testing.assert_close(whole(again, "a")[:, :, :longest], whole(found, "a"))
    full = [np.ones((2, 5)) * number if here else None for number, here in enumerate(there)]
    assert "a_length" not in from_arrays({"a": full, "b": LABEL}, LABEL, group=GROUP).train.inputs


def test_gaps_of_pictures_and_tokens() -> None:
    random, there = np.random.default_rng(0), np.arange(COUNT) % 3 > 0
    pictures, words = random.integers(1, 255, (COUNT, 6, 5, 3), np.uint8), random.integers(1, 9, (COUNT, 4))
    arrays = {"cam": pictures, "cam_present": there, "text": words, "text_present": ~there}
    found = from_arrays(arrays, LABEL, group=GROUP, tokens=["text"]).check()
    train = found.train.ready()
    assert set(train.inputs) == {"cam", "cam_present", "text", "text_present"}
    assert train.inputs["text"].dtype == torch.int64
    assert (train.inputs["cam"].flatten(1).any(dim=1) == train.inputs["cam_present"]).all()
    assert (train.inputs["text"].any(dim=1) == train.inputs["text_present"]).all()
    assert (found.train.take(torch.tensor([3, 1])).present["cam"] == found.train.present["cam"][[3, 1]]).all()
    assert set(found.train.to("cpu").present) == {"cam", "text"}


def test_a_model_reads_gaps() -> None:
    array, there = made(1, "series")
    splits = from_arrays({"a": blank(array, there), "b": np.arange(COUNT)}, LABEL, group=GROUP)
    model = build_model(splits, MSL(), Settings())
    assert list(model.encoders) == ["a", "b"]
    outputs = model(dict(splits.train.inputs))
    assert outputs["fused"].shape == (len(splits.train), 2)


# -- what is refused --


def problems(arrays: dict[str, Any], **options: Any) -> str:
    found = read_samples(arrays, LABEL, **options)
    return "\n".join([*found.problems, *found.assign().problems])


@pytest.mark.parametrize(
    ("kind", "place", "said"),
    [
        ("vector", (5, 2), "sample 5, number 2"),
        ("series", (5, 1, 7), "sample 5, channel 1, step 7"),
        ("image", (5, 2, 3, 4), "sample 5, channel 2, row 3, column 4"),
        ("frames", (5, 2, 1, 3, 4), "sample 5, channel 2, frame 1, row 3, column 4"),
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_missing_inside_is_an_error_with_its_place(
    kind: str, place: tuple[int, ...], said: str, value: float
) -> None:
    array, there = made(0, kind)
    there[5] = True
    array[place] = value
    found = problems({"a": blank(array, there), "b": LABEL})
    assert f"found NaN or infinity in 1 of {COUNT} samples (5), first in {said}; fill in what is missing" in found


def test_a_whole_sample_of_infinity_is_an_error() -> None:
    array, _ = made(0, "vector")
    array[4] = np.inf
    assert "in 1 of 60 samples (4), first in sample 4, number 0" in problems({"a": array, "b": LABEL})


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"a": np.full((COUNT, 2), np.nan), "b": LABEL}, "a: expected a sample that has it, found none; leave it out"),
        ({"a": [None] * COUNT, "b": LABEL}, "a: expected a sample that has it, found none; leave it out"),
        ({"a": LABEL, "a_present": [0] * COUNT, "b": LABEL}, "a: expected a sample that has it, found none"),
        (
            {"a": LABEL, "a_present": np.arange(COUNT) > 2, "b": np.where(np.arange(COUNT) > 1, 1.5, np.nan)},
            "expected at least one sensor in every sample, found none in 2 of 60 (0, 1); leave them out",
        ),
        (
            {"a": LABEL, "a_present": [2] * COUNT},
            "a_present: expected true or false (1 or 0) for every sample, 60 in all",
        ),
        ({"a": LABEL, "a_present": np.arange(COUNT) % 3}, "60 in all, found also 2"),
        ({"b": LABEL, "camra_present": [1] * COUNT, "camera": LABEL}, "found none; did you mean camera_present?"),
        ({"a": LABEL, "a_present": ["yes"] * COUNT}, "a_present: expected true or false (1 or 0) for every sample"),
        ({"a": LABEL, "a_present": [1] * 59}, "60 in all, found int64 numbers of shape (59,)"),
        (
            {"b": LABEL, "a_present": [1] * COUNT},
            "a_present: expected a modality 'a' whose samples these mark as there",
        ),
    ],
)
def test_what_is_refused(arrays: dict[str, Any], said: str) -> None:
    assert said in problems(arrays)


@pytest.mark.parametrize("listed", [False, True])
def test_a_sample_without_sensors_is_named_beside_other_mistakes(listed: bool) -> None:
    holes = np.ones((COUNT, 3))
    holes[7, 1] = np.nan  # an error of its own
    holes[4] = np.nan
    given = [None if at == 4 else row for at, row in enumerate(holes)] if listed else holes
    gone = np.where(np.arange(COUNT) == 4, np.nan, 1.5)
    text = problems({"a": given, "b": gone, "c_present": [1] * COUNT})
    assert "a: expected finite numbers, found NaN or infinity in 1 of 60 samples (7)" in text
    assert "expected at least one sensor in every sample, found none in 1 of 60 (4)" in text
    assert "c_present: expected a modality 'c'" in text


def test_a_sensor_that_training_never_sees_is_refused() -> None:
    split = np.arange(COUNT) // 20
    arrays = {"a": LABEL, "a_present": split > 0, "b": LABEL}
    assert "train: expected samples that have every sensor, found none with a" in problems(arrays, split=split)
    later = {"a": LABEL, "a_present": split == 0, "b": LABEL}
    assert problems(later, split=split) == ""
    splits = from_arrays(later, LABEL, split=split).check()
    assert not splits.test.present["a"].any()


# -- files --


def test_blanks_in_a_manifest(tmp_path: Path) -> None:
    from PIL import Image

    for number in range(30):
        Image.fromarray(np.full((6, 5), 7 * number, np.uint8)).save(tmp_path / f"{number}.png")
    rows = [
        f"{at % 2},{'' if at % 4 == 1 else f'{at}.png'},{'' if at % 5 == 0 else at},{'' if at % 5 == 0 else -at}"
        for at in range(30)
    ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["label,cam,pose.x,pose.y", *rows]))
    found = samples_of_manifest(path)
    assert found.problems == (
        "expected at least one sensor in every sample, found none in 2 of 30 (line 7, line 27); leave them out",
    )
    path.write_text("\n".join(["label,cam,pose.x,pose.y", *[row for at, row in enumerate(rows) if at not in (5, 25)]]))
    found = samples_of_manifest(path)
    assert found.problems == ()
    kept = [at for at in range(30) if at not in (5, 25)]
    assert found.inputs["cam_present"].tolist() == [at % 4 != 1 for at in kept]
    assert found.inputs["pose_present"].tolist() == [at % 5 != 0 for at in kept]
    assert found.inputs["cam"][:, 0, 0, 0].tolist() == [0 if at % 4 == 1 else 7 * at for at in kept]
    path.write_text("\n".join(["label,cam,pose.x,pose.y", "1,1.png,3,", *rows[6:24]]))
    assert "first in sample line 2, number 1; fill in what is missing" in samples_of_manifest(path).problems[0]


def test_lists_that_are_missing_in_a_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    lists = [None if at % 3 == 0 else [float(at), 1.0] for at in range(30)]
    pyarrow.parquet.write_table(
        pyarrow.table({"label": list("ab") * 15, "a": lists, "b": np.arange(30.0)}), tmp_path / "a.parquet"
    )
    found = samples_of_manifest(tmp_path / "a.parquet")
    assert found.problems == ()
    assert found.inputs["a_present"].tolist() == [at % 3 != 0 for at in range(30)]


def test_check_counts_gaps(tmp_path: Path) -> None:
    array, there = made(2, "series")
    split = np.arange(COUNT) // 20
    np.savez(tmp_path / "my.npz", cam=blank(array, there), b=np.arange(COUNT), label=LABEL, split=split)
    found = check_data(str(tmp_path / "my.npz"))
    assert found.errors == []
    gaps = dict(zip(("train", "validation", "test"), (~there).reshape(3, 20).sum(axis=1).tolist(), strict=True))
    assert found.modalities["cam"].missing == gaps
    assert found.modalities["b"].missing == {}
    assert f"cam: missing in {(~there).sum()} of 60" in found.about

"""`equipoise check`: everything wrong at once, what is odd apart from it, and what there is."""

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from equipoise.cli.check import EXAMPLE, check, encoder_name
from equipoise.data import check as examining
from equipoise.data.check import DataReport, check_data
from equipoise.data.prepare.prepare import prepare
from equipoise.data.splits import Part, Splits
from equipoise.models import encoder_for
from equipoise.util.errors import BadInput
from made_up import MadeUp, make_source
from memory_peak import takes_less_than

SIZE = 300
SHORT: dict[str, Any] = {"sound": None, "label": np.arange(60) % 3, "group": np.arange(60) // 5}


class Ended(NamedTuple):
    """How the command ended."""

    code: int
    out: str


def some(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def saved(path: Path, **changes: Any) -> Path:
    """A good file, with changes; None leaves an array out."""
    arrays: dict[str, Any] = {
        "imu": some(SIZE, 3, 20),
        "sound": some(SIZE, 8, seed=1),
        "label": np.array(["sit", "walk", "run"])[np.arange(SIZE) % 3],
        "group": np.arange(SIZE) // 10,
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def run(
    capsys: pytest.CaptureFixture[str], *, data: Path | str, split: str | None = None, as_json: bool = False
) -> Ended:
    code = 0
    try:
        check(str(data), split, as_json)
    except typer.Exit as ended:
        code = ended.exit_code
    out, err = capsys.readouterr()
    assert err == ""
    return Ended(code, out)


def test_a_good_file_is_fine_and_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(capsys, data=saved(tmp_path / "my.npz"))
    assert ended.code == 0
    lines = [line.split() for line in ended.out.splitlines()]
    assert ["imu", "3", "×", "20", "standardised", "CNN1d"] in lines
    assert ["sound", "8", "standardised", "RegularisedMLP"] in lines
    assert ["samples", "180", "60", "60"] in lines
    assert ["groups", "18", "6", "6"] in lines
    assert ended.out.endswith("Nothing is wrong.\n")
    assert "Odd" not in ended.out


def test_words_on_a_command_line_are_understood(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command(epilog=EXAMPLE)(check)
    ended = CliRunner().invoke(app, ["--data", str(saved(tmp_path / "my.npz")), "--json"])
    assert (ended.exit_code, json.loads(ended.output)["fine"]) == (0, True)
    (tmp_path / "my.csv").write_text("label\na\n")
    assert CliRunner().invoke(app, ["--data", str(tmp_path / "my.csv")]).exit_code == 2
    assert "Example: equipoise check --data my.npz" in CliRunner().invoke(app, ["--help"]).output


def test_json_holds_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(capsys, data=saved(tmp_path / "my.npz"), as_json=True)
    found = json.loads(ended.out)
    assert (ended.code, found["fine"], found["errors"], found["warnings"]) == (0, True, [], [])
    assert found["samples"] == {"train": 180, "validation": 60, "test": 60}
    assert found["groups"] == {"train": 18, "validation": 6, "test": 6}
    assert list(found["classes"]) == ["run", "sit", "walk"]
    assert sum(found["classes"]["run"].values()) == 100
    assert found["modalities"] == {
        "imu": {"shape": [3, 20], "lengths": None, "numbers": "standardised", "missing": {}, "encoder": "CNN1d"},
        "sound": {"shape": [8], "lengths": None, "numbers": "standardised", "missing": {}, "encoder": "RegularisedMLP"},
    }


def test_everything_wrong_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = some(SIZE, 8, seed=1)
    sound[[4, 9], 3] = np.nan
    split = np.where(np.arange(SIZE) < 200, "train", "test")
    split[5] = "validation"
    label = np.arange(SIZE) % 3
    label[:200] %= 2
    path = saved(
        tmp_path / "my.npz", sound=sound, split=split, label=label, fused=some(SIZE, 2), extra=some(SIZE - 1, 2)
    )
    ended = run(capsys, data=path, as_json=True)
    found = json.loads(ended.out)
    assert (ended.code, found["fine"]) == (2, False)
    text = "\n".join(found["errors"])
    for part in (
        "No modality may be called 'fused'",
        "sound: expected finite numbers, found NaN or infinity in 2 of 300 samples (4, 9)",
        "expected one entry per sample in every array, found imu 300, sound 300, extra 299, label 300",
        "split: expected no group in two parts, found 1: 0 (train, validation)",
        "train: expected samples of every class, found none of 2",
    ):
        assert part in text
    assert len(found["errors"]) == 5
    assert found["classes"]["2"] == {"train": 0, "validation": 0, "test": 34}  # told although there are mistakes
    assert "Wrong, 5:" in run(capsys, data=path).out


def test_all_files_that_cannot_be_read_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{'ab'[at % 2]},{at}.wav,{at}" for at in range(50)]
    (tmp_path / "my.csv").write_text("\n".join(["label,sound,group", *lines]))
    ended = run(capsys, data=tmp_path / "my.csv")
    assert ended.code == 2
    assert ended.out.count("there is no such file") == 50
    with pytest.raises(BadInput, match="… and 30 more; all of them: equipoise check"):
        Splits.from_samples(examining.samples_of(tmp_path / "my.csv"))


@pytest.mark.parametrize("column", ["imu_rate", "imu_rat", "note"])
def test_recordings_that_cannot_be_read_are_never_fine(
    column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{at % 2},2s,imu{at}.npy,50" for at in range(6)]
    (tmp_path / "a.csv").write_text("\n".join([f"label,window,imu,{column}", *rows]))
    code, out = run(capsys, data=tmp_path / "a.csv")
    assert code == 2
    assert "imu, line 4: " in out
    assert "Nothing is wrong" not in out
    told = json.loads(run(capsys, data=tmp_path / "a.csv", as_json=True).out)
    assert not told["fine"]
    assert told["errors"]


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ((24, 24, 3), "24 channels of 24 × 3 pixels; colours seem to come last, .* give imu.transpose\\(0, 3, 1, 2\\)"),
        ((8, 24, 24, 3), "colours seem to come last, .* give imu.transpose\\(0, 4, 1, 2, 3\\)"),
        ((8, 3, 24, 24), "colours seem to come second, .* give imu.transpose\\(0, 2, 1, 3, 4\\)"),
        ((3, 24, 24), None),
        ((1, 24, 3), None),
        ((3, 8, 24, 24), None),
        ((1, 3, 24, 24), None),
    ],
)
def test_floats_whose_colours_come_last(shape: tuple[int, ...], advice: str | None, tmp_path: Path) -> None:
    found = check_data(str(saved(tmp_path / "a.npz", imu=some(60, *shape), **SHORT)))
    said = [line for line in found.warnings if "transpose" in line]
    assert found.errors == []
    assert len(said) == (advice is not None)
    assert advice is None or re.search(advice, said[0]), said


def test_advice_on_files_is_for_one_sample(tmp_path: Path) -> None:
    rows = ["label,group,imu,film"]
    for at in range(30):
        np.save(tmp_path / f"imu{at}.npy", some(50, 3, seed=at))
        np.save(tmp_path / f"film{at}.npy", some(8, 8, 3, seed=at))
        rows.append(f"{at % 2},{at // 3},imu{at}.npy,film{at}.npy")
    (tmp_path / "a.csv").write_text("\n".join(rows))
    text = "\n".join(check_data(str(tmp_path / "a.csv")).warnings)
    assert "the other way round, store in each file its transpose" in text
    assert "if so, store in each file array.transpose(2, 0, 1)" in text


@pytest.mark.parametrize("changes", [{"split": ["later"] * SIZE}, {"group": [0.5] * SIZE}])
def test_parts_that_cannot_be_told_are_not_made_up(changes: dict[str, Any], tmp_path: Path) -> None:
    found = check_data(str(saved(tmp_path / "my.npz", **changes)))
    assert len(found.errors) == 1
    assert (found.samples, found.classes, found.about) == ({}, {}, "")


def test_a_file_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.npz").write_text("hello")
    ended = run(capsys, data=tmp_path / "my.npz")
    assert ended.code == 2
    assert ended.out.count("\n") == 3
    assert "no zip archive; it begins with b'hello'" in ended.out


def test_what_is_not_there_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match="did you mean 'watch'"):
        run(capsys, data="wach")
    with pytest.raises(BadInput, match="has one way to be cut only"):
        run(capsys, data="watch", split="official")


@pytest.mark.parametrize("name", ["watch", "generated"])
def test_named_sets_are_fine(name: str) -> None:
    assert check_data(name).errors == []


# -- copies --


def copies(tmp_path: Path, one: int, other: int, **changes: Any) -> DataReport:
    """Sample `other` is a copy of sample `one`."""
    arrays = {"imu": some(SIZE, 3, 20), "sound": some(SIZE, 8, seed=1)}
    for array in arrays.values():
        array[other] = array[one]
    split = np.repeat([0, 1, 2], [200, 50, 50])
    return check_data(str(saved(tmp_path / "my.npz", **{**arrays, "split": split, "group": None, **changes})))


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (7, 210, "train and validation: expected different samples, found 1 of validation that are in train too"),
        (7, 290, "train and test: expected different samples, found 1 of test that are in train too"),
        (220, 290, "validation and test: expected different samples, found 1 of test that are in validation too"),
    ],
)
def test_a_copy_in_another_part_is_found(one: int, other: int, said: str, tmp_path: Path) -> None:
    (error,) = copies(tmp_path, one, other).errors
    assert error.startswith(f"{said}, number for number ({one} = {other}); remove")


def test_a_copy_in_the_same_part_or_of_one_sensor_is_none(tmp_path: Path) -> None:
    assert copies(tmp_path, 7, 8).errors == []
    assert copies(tmp_path, 7, 290, sound=some(SIZE, 8, seed=1)).errors == []


def test_samples_that_are_alike_in_the_middle_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "GLANCE", 8)
    alike = np.zeros((SIZE, 1, 30))
    alike[:, 0, -1] = np.arange(SIZE)
    found = copies(tmp_path, 7, 290, imu=alike, sound=None)
    assert found.errors == []
    alike[290] = alike[7]
    assert len(copies(tmp_path, 7, 290, imu=alike, sound=None).errors) == 1


def test_of_many_copies_some_are_named(tmp_path: Path) -> None:
    again = np.concatenate([some(150, 4), some(150, 4)])
    found = check_data(str(saved(tmp_path / "my.npz", imu=again, sound=None, split=np.repeat([0, 2], 150), group=None)))
    assert sum("found" in error for error in found.errors) == 2
    assert any("(0 = 150, " in error or "1 = 151" in error for error in found.errors)
    assert all(", …)" in error for error in found.errors)


# -- what is odd --


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group": None}, "no groups are given, so samples of one person or recording may be in two parts"),
        (
            {"group": np.repeat([0, 1, 2], [260, 20, 20])},
            "validation: 20 samples are few; one more that is right moves",
        ),
        ({"label": (np.arange(SIZE) % 30 == 0).astype(int)}, "classes are uneven: 174 training samples of 0, 6 of 1"),
        ({"imu": some(SIZE, 100, 3)}, "imu: 100 channels of 3 steps; time comes last"),
        ({"imu": some(SIZE, 5000)}, "imu: vectors of 5000 numbers; if these are series, give them as [N, 1, 5000]"),
        ({"subject": np.arange(SIZE) // 10}, "subject: one whole number per sample, read as a sensor; if it says who"),
        ({"imu": None}, "sound is the only modality: there is nothing to balance"),
        ({"sound": np.ones((SIZE, 3))}, "sound: all training samples are the same; it says nothing"),
        (
            {
                "split": np.repeat([0, 1, 2], [180, 60, 60]),
                "label": np.where(np.arange(SIZE) < 180, np.arange(SIZE) % 3, 0),
            },
            "validation: no samples of 1, 2",
        ),
    ],
)
def test_what_is_odd_is_told_and_no_error(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    found = check_data(str(saved(tmp_path / "my.npz", **changes)))
    assert found.errors == []
    assert said in "\n".join(found.warnings)


def test_about_says_where_the_validation_part_comes_from(tmp_path: Path) -> None:
    found = check_data(str(saved(tmp_path / "my.npz", split=np.repeat([0, 2], [240, 60]))))
    assert "no validation samples among them: a quarter of the training samples drawn by group" in found.about


# -- prepared folders --


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prepared")
    return prepare(MadeUp(), make_source(place / "source", 60), place / "out", workers=1).folder


def test_a_prepared_folder_is_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(capsys, data=folder, as_json=True)
    found = json.loads(ended.out)
    assert (ended.code, found["data"], found["errors"]) == (0, "made-up", [])
    assert found["modalities"]["film"] == {
        "shape": [2, 5],
        "lengths": [2, 5],
        "numbers": "as prepared",
        "missing": {},
        "encoder": "CNN1d",
    }
    assert sum(found["samples"].values()) == 60
    assert found["groups"] == {}
    assert run(capsys, data=folder, split="families", as_json=True).code == 0


def test_a_protocol_that_selects_on_test_says_so(folder: Path) -> None:
    found = check_data(str(folder), "published")
    assert found.errors == []
    assert "validation and test are the same samples, as published" in found.warnings[0]


def test_a_damaged_folder_is_told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tone.safetensors").unlink()
    (tmp_path / "index.csv").write_text("hello")
    ended = run(capsys, data=tmp_path)
    assert ended.code == 2
    assert "tone.safetensors: expected a file" in ended.out
    assert "index.csv: its content was changed" in ended.out


# -- encoders --


@pytest.mark.parametrize("shape", [(8,), (3, 20), (3, 40), (1, 9, 9), (1, 28, 28), (3, 2, 9, 9), (3, 4, 16, 16)])
def test_the_encoder_named_is_the_one_that_is_made(shape: tuple[int, ...]) -> None:
    assert encoder_name(shape).startswith(type(encoder_for(shape)).__name__)
    assert next(encoder_for(shape).parameters()).device.type == "cpu"


def test_naming_an_encoder_takes_no_memory() -> None:
    assert encoder_name((10**12,)) == "RegularisedMLP"


def test_hashes_of_parts_that_share_a_map_are_those_of_their_rows() -> None:
    values = torch.randn(10, 3)
    rows = torch.tensor([4, 2])
    shared = Part({"a": values}, torch.zeros(2), rows=rows)
    own = Part({"a": values[rows]}, torch.zeros(2))
    assert examining._hashes(shared, range(2), None) == examining._hashes(own, range(2), None)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet", ""])
def test_what_is_no_file_ends_with_a_message(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe, zeros, circle = (tmp_path / f"{name}{suffix}" for name in ("pipe", "zeros", "circle"))
    os.mkfifo(pipe)
    zeros.symlink_to("/dev/zero")
    circle.symlink_to(circle)
    for path in (pipe, zeros):
        ended = run(capsys, data=path)
        assert (ended.code, "not a file" in ended.out or "a file of another kind" in ended.out) == (2, True)
    with pytest.raises(BadInput, match="found a link that leads nowhere, or in a circle"):
        run(capsys, data=circle)


def test_names_command_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text('label,id,x:sound\n"a\x1b[2J",i\x1b[2J,n.wav\nb,j,"m\x1b]0;t\x07.wav"\n', "utf-8")
    ended = run(capsys, data=tmp_path / "a.csv")
    assert ended.code == 2
    assert not {*map(chr, range(32))} - {"\n"} & {*ended.out}
    assert "expected names of letters that can be shown, found 'a\\x1b[2J'" in ended.out


def test_marked_up_names_are_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = np.array(["[bold]", "[/x]", "=1+1"])[np.arange(SIZE) % 3]
    ended = run(capsys, data=saved(tmp_path / "[red].npz", **{"[/a]": some(SIZE, 2)}, label=label))
    assert ended.code == 0
    assert all(name in ended.out for name in ("[bold]", "[/x]", "=1+1", "[/a]", "[red].npz"))


# -- other tasks, and gaps --


def test_numbers_are_described_part_by_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    label = np.stack([random.normal(5, 2, SIZE), random.normal(0, 1, SIZE)], axis=1).astype(np.float32)
    split = np.repeat([0, 1, 2], SIZE // 3)
    label[split == 2, 0] += 10
    path = saved(tmp_path / "my.npz", label=label, split=split, group=None, classes=["steer", "speed"])
    found = check_data(str(path))
    assert (found.errors, found.task, found.classes) == ([], "regression", {})
    for at, name in enumerate(("steer", "speed")):
        own = label[split == 1, at].astype(np.float64)
        numbers = found.numbers[name]["validation"]
        assert (numbers.least, numbers.most) == (own.min(), own.max())
        assert (numbers.mean, numbers.deviation) == pytest.approx((own.mean(), own.std(ddof=1)))
        assert numbers.quantiles == pytest.approx(np.percentile(own, [5, 25, 50, 75, 95]))
    errors = np.abs(label[split == 2] - np.median(label[split == 0], axis=0)).mean(axis=0)
    said = f"{errors[0]:.4g} in steer, {errors[1]:.4g} in speed"
    assert found.baseline == f"Always saying the median of train errs by {said} on average in test."
    (outside,) = [warning for warning in found.warnings if "outside" in warning]
    assert outside.startswith("test: ")
    assert "% of steer lies outside of train" in outside
    printed = run(capsys, data=path).out
    assert "2 modalities, task=regression" in printed
    assert "steer, mean ± deviation" in printed
    assert json.loads(run(capsys, data=path, as_json=True).out)["numbers"]["speed"]["test"]["quantiles"]


def test_several_labels_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = (np.arange(SIZE)[:, None] % [2, 3, 150] == 0).astype(int)
    split = np.repeat([0, 1, 2], SIZE // 3)
    path = saved(tmp_path / "my.npz", label=label, split=split, group=None, classes=["af", "mi", "hf"])
    found = check_data(str(path))
    assert (found.errors, found.task) == ([], "labels")
    assert found.classes["mi"] == {"train": 34, "validation": 33, "test": 33}
    assert found.classes["hf"] == {"train": 1, "validation": 1, "test": 0}
    assert "test: no samples of hf" in found.warnings
    assert any("labels are uneven: 50 training samples of af, 1 of hf" in warning for warning in found.warnings)
    assert "several of them" in run(capsys, data=path).out


def test_thousands_of_classes_are_counted_in_little_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label, split = np.arange(15_000) // 3, np.tile(["train", "train", "validation", "train", "test", "test"], 2500)
    path = saved(tmp_path / "my.npz", imu=some(15_000, 2), sound=None, label=label, split=split, group=None)
    check_data(str(path))  # what is loaded once is loaded
    with takes_less_than(50):
        found = check_data(str(path))
    pairs = Counter(zip(label.tolist(), split.tolist(), strict=True))
    assert found.classes == {
        str(name): {part: pairs[name, part] for part in ("train", "validation", "test")} for name in range(5000)
    }
    out = run(capsys, data=path).out
    assert re.search(r"^… 4960 more *\nsamples", out, re.MULTILINE)
    assert len(out.splitlines()) < 70


def test_arrays_that_cannot_be_read_make_no_copies(tmp_path: Path) -> None:
    path = saved(tmp_path / "my.npz", imu=np.zeros((SIZE, 0)), sound=None)
    (error,) = check_data(str(path)).errors
    assert (
        error
        == f"imu: expected [N, D], [N, C, T], [N, C, H, W] or [N, C, T, H, W], found an array of shape ({SIZE}, 0)"
    )


def test_a_word_says_the_task(tmp_path: Path) -> None:
    path = str(saved(tmp_path / "my.npz", label=np.arange(SIZE) % 60))
    assert any("60 whole numbers are read as so many classes" in warning for warning in check_data(path).warnings)
    found = check_data(path, task="regression")
    assert (found.task, list(found.numbers), found.errors) == ("regression", ["label"], [])


def test_gaps_are_printed_by_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = np.repeat([0, 1, 2], SIZE // 3)
    there = (np.arange(SIZE) % 5 > 0) | (split == 1)
    path = saved(tmp_path / "my.npz", sound_present=there, split=split, group=None)
    printed = run(capsys, data=path).out
    assert "sound: missing in 40 of 300" in printed
    assert ["sound", "20", "0", "20"] in [line.split() for line in printed.splitlines()]

"""The comparison with anchors, without aeon: what lines are given, how answers are scored, what is not done twice."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from equipoise.data import Splits

ROOT = Path(__file__).parents[2]


def load(name: str) -> Any:
    """Import a program of benchmarks/ or of benchmarks/anchors/."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in ("benchmarks", "benchmarks/anchors"):
            patch.syspath_prepend(ROOT / folder)
        return importlib.import_module(name)


fit, joint, strength, table = load("fit"), load("joint"), load("strength"), load("strength_table")


def made_up(*, numbers: bool = False, groups: int = 10) -> Splits:
    random = np.random.default_rng(0)
    label = np.arange(120) % 3
    arrays = {
        "imu": (4 + label[:, None, None] * np.ones((1, 2, 16)) + 0.3 * random.normal(size=(120, 2, 16))),
        "sound": 5 * label[:, None] + random.normal(size=(120, 4)),
    }
    group = np.arange(120) // 3 % groups
    marks = np.array([0, 0, 0, 0, 0, 0, 1, 1, 2, 2])[group % 10]
    answer = label * 1.5 + 10 if numbers else label
    return Splits.from_arrays(arrays, answer, split=marks, group=group, name="made up")


# -- cases --


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_case_has_the_recorded_samples_and_none_of_a_part_that_must_not_be_read(part: str) -> None:
    splits = made_up()
    arrays = strength.Case("made up", None, splits, part).arrays()
    count = {name: len(one) for name, one in splits.parts.items()}
    found = {mark: int((arrays["split"] == mark).sum()) for mark in (0, 1, 2)}
    expected = {0: count["train"], 1: count["validation"] * (part == "test"), 2: count[part]}
    assert found == expected
    assert not set(arrays["group"]) & {8, 9} or part == "test"
    again = Splits.from_arrays(
        {name: arrays[name] for name in ("imu", "sound")},
        arrays["label"],
        standardise=False,
        split=np.where(arrays["split"] == 1, 0, arrays["split"]),
    )
    for name in splits.modalities:  # as recorded: about 5 on average, not 0
        assert abs(float(again.test.inputs[name].mean()) - 5) < 0.5


@pytest.mark.parametrize("groups", [0, 1, 5])
def test_halves_of_the_validation_part_share_no_sample_and_no_group(groups: int) -> None:
    arrays = {"split": np.repeat([0, 2], 30), "label": np.arange(60) % 3, "imu": np.zeros((60, 4))}
    if groups:
        arrays["group"] = np.where(arrays["split"] == 0, -1, np.arange(60) // 3 % groups)
    both = [arrays | strength.halved(arrays, half) for half in (0, 1)]
    for one in both:
        assert (one["split"][:30] == 0).all()
        assert set(one["split"][30:]) == {1, 2}
        Splits.from_arrays({"imu": one["imu"]}, one["label"], split=one["split"], group=one.get("group"))
    assert ((both[0]["split"] == 1) == (both[1]["split"] == 2))[30:].all()


def test_broken_inputs_are_those_of_the_fault_suite(tmp_path: Path) -> None:
    splits = made_up()
    strength.Case("made up", None, splits, "test").broken(tmp_path, seed=0)
    with np.load(tmp_path / "imu.npz") as file:
        assert {name.split("/")[0] for name in file.files} == {"missing", "noisy", "frozen", "delayed", "bursts"}
        assert "missing/absent" not in file.files
        zeros, mean = file["missing/zeros"], file["missing/mean"]
    raw = 4 + np.arange(3).mean()  # zero as the encoder reads it is the mean of the channel
    assert zeros == pytest.approx(np.full_like(zeros, raw), abs=0.2)
    assert np.ptp(zeros[:, 0]) == pytest.approx(0, abs=1e-5)
    assert mean[:, 0].std(axis=1) == pytest.approx(np.full(len(mean), mean[0, 0].std()), rel=1e-4)


# -- scores --


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_that_of_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    answer, label = random.integers(0, 4, 30), random.integers(0, 5, 30)
    assert table.macro_f1(answer, label) == pytest.approx(100 * f1_score(label, answer, average="macro"))


def test_a_missing_sensor_counts_with_the_better_fill_and_other_sensors_do_no_harm() -> None:
    label = np.array([0, 1, 0, 1])
    right, half, wrong = label, np.zeros(4, int), 1 - label
    found = {
        "all|": right,
        "a|": right,
        "all|a/missing/zeros": wrong,
        "all|a/missing/mean": half,
        "all|b/missing/zeros": half,
        "all|b/missing/mean": right,
        "all|a/noisy/1": right,
        "all|a/noisy/2": half,
        "a|a/missing/zeros": half,
        "a|a/missing/mean": wrong,
        "a|a/noisy/1": half,
        "a|a/noisy/2": half,
        "seconds|all": np.array(2.0),
        "seconds|a": np.array(1.0),
    }
    answers = table.summary(found, label)["answers"]
    assert answers["all"]["fill"] == "mean"
    assert answers["all"]["missing"] == 75
    assert answers["all"]["faults"] == pytest.approx((50 + 100 + 75) / 3)
    assert answers["a"]["fill"] == "zeros"
    assert answers["a"]["missing"] == 75  # b is none of its sensors
    told = table.summary({**found, "all|a/missing/absent": right, "all|b/missing/absent": half}, label)["answers"]
    assert (told["all"]["fill"], told["all"]["missing"], told["a"]["fill"]) == ("absent", 75, "zeros")


def test_a_decision_without_answers_under_faults_has_no_score_there() -> None:
    label = np.array([1.0, 2.0])
    found = {"all|": label + 1, "a|": label - 2, "all|a/missing/zeros": label, "seconds|all": 1.0, "seconds|a": 1.0}
    answers = table.summary(found, label)["answers"]
    assert answers["all"]["score"] == 1
    assert "f1" not in answers["all"]
    assert answers["a"]["score"] == 2
    assert "faults" not in answers["a"]


def record(line: str, value: float, *, fold: int | None = None, seed: int = 0, **more: Any) -> dict[str, Any]:
    one = {"score": value, "f1": value, "faults": value - 10, "missing": value - 20, "seconds": 2.0}
    about = {"part": "test", "set": "made up", "fold": fold, "line": line, "seed": seed, "task": "classes"}
    return {**about, "answers": {"all": one}, **more}


def test_standard_errors_are_over_folds_after_seeds_and_over_seeds_without_folds() -> None:
    folded = [record("minirocket", 80 + 2 * fold + seed, fold=fold, seed=seed) for fold in (0, 1) for seed in (0, 1)]
    assert table.units(folded, "minirocket", "all", "score") == {"fold 0": 80.5, "fold 1": 82.5}
    assert "| minirocket | 81.50 ± 1.00 |" in table.tables(folded)
    seeded = [record("minirocket", value, seed=seed) for seed, value in enumerate((80.0, 82.0, 84.0))]
    assert f"| 82.00 ± {2 / 3**0.5:.2f} |" in table.tables(seeded)
    assert "| 80.00 |" in table.tables(seeded[:1])


def test_ours_stand_beside_the_best_anchor_by_paired_differences() -> None:
    rows = [record("minirocket", value, seed=seed) for seed, value in enumerate((90.0, 94.0))]
    rows += [record("joint", 80.0, seed=seed) for seed in (0, 1)]
    rows += [record("equipoise train", value, seed=seed) for seed, value in enumerate((93.0, 97.0))]
    text = table.tables(rows)
    assert "| equipoise train | made up | 3.00 ± 0.00 (minirocket) |" in text
    assert "5.00 % against 8.00 %: 37.5% fewer" in text
    assert "| joint | 80.00 ± 0.00 | 80.00 ± 0.00 | 70.00 ± 0.00 | 60.00 ± 0.00 | 2.0 | 1.00 |" in text


# -- the anchors' side --


def test_patches_of_a_video_are_channels_over_time() -> None:
    video = np.arange(2 * 1 * 3 * 4 * 4, dtype=np.float32).reshape(2, 1, 3, 4, 4)
    series = fit.patches(video, grid=2)
    assert series.shape == (2, 4, 3)
    assert series[1, 1, 2] == video[1, 0, 2, :2, 2:].mean()
    assert fit.patches(video[:, :, 0], grid=2)[0, 2] == video[0, 0, 0, 2:, :2].mean()


def test_counts_that_are_zero_stay_zero_and_others_are_standardised() -> None:
    counts = np.array([[0.0, 4.0], [1.0, 9.0], [4.0, 16.0]])
    scaled = fit.CountScaler().fit_transform(counts)
    assert scaled[0, 0] == 0
    assert scaled[:, 1] == pytest.approx([-1, 0, 1], abs=1e-6)


def test_the_power_of_a_slow_wave_is_in_the_lowest_band() -> None:
    time = np.arange(64) / 64
    slow, fast = (np.sin(2 * np.pi * beat * time)[None, None] for beat in (1, 28))
    bands = [fit.Summary().features(series.astype(np.float32))[0, 7:] for series in (slow, fast)]
    assert [int(band.argmax()) for band in bands] == [0, fit.BANDS - 1]


@pytest.mark.parametrize("numbers", [False, True])
def test_joint_training_learns_what_is_plain_to_see(*, numbers: bool) -> None:
    splits = made_up(numbers=numbers)
    label = splits.train.label.squeeze(-1).numpy()
    arrays = {part: [one.inputs[name].numpy() for name in splits.modalities] for part, one in splits.parts.items()}
    model = joint.Joint(0, numbers=numbers, steps=60)
    model.fit(arrays["train"], label)
    answer, expected = model.predict(arrays["test"]), splits.test.label.squeeze(-1).numpy()
    assert table.score(answer, expected) < 0.4 if numbers else table.score(answer, expected) > 90
    again = joint.Joint(0, numbers=numbers, steps=60)
    again.fit(arrays["train"], label)
    assert (again.predict(arrays["test"]) == answer).all()


def vectors(tmp_path: Path) -> Any:
    """Write a case of two vectors, the second of no use, with its faults."""
    random = np.random.default_rng(0)
    label = np.arange(150) % 3
    arrays = {"good": 3 * np.eye(3)[label] + 0.1 * random.normal(size=(150, 3)), "idle": random.normal(size=(150, 5))}
    marks = np.repeat([0, 1, 2], 50)
    case = strength.Case("vectors", None, Splits.from_arrays(arrays, label, split=marks), "test")
    np.savez(tmp_path / "case.npz", **case.arrays())
    case.broken(tmp_path, seed=0)
    return case


@pytest.mark.parametrize("line", ["minirocket", "multirocket-hydra"])  # vectors need no kernels, hence no aeon
def test_ridge_answers_by_all_sensors_and_by_each(tmp_path: Path, line: str) -> None:
    case = vectors(tmp_path)
    found = fit.answers(tmp_path / "case.npz", tmp_path, line, seed=0)
    answers = table.summary(found, case.judged.label.numpy())["answers"]
    assert set(answers) == {"all", "good", "idle"}
    assert answers["good"]["score"] == 100
    assert answers["idle"]["score"] < 60
    assert answers["good"]["missing"] < 80 < answers["good"]["score"]
    assert all(one["seconds"] > 0 for one in answers.values())
    with np.load(tmp_path / "good.npz") as file:
        assert {f"good|good/{name}" for name in file.files} <= set(found)
    assert not any(name.startswith("good|idle") for name in found)


# -- all of it --


def test_a_record_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def imitated(_python: Path, line: str, case: Path, faults: Path, seed: int) -> dict[str, np.ndarray]:
        calls.append((line, seed))
        with np.load(case) as file:
            label = file["label"][file["split"] == 2]
        assert (faults / "imu.npz").is_file()
        return {"all|": label, "all|imu/missing/zeros": label, "seconds|all": np.array(1.0)}

    monkeypatch.setattr(strength, "anchor", imitated)
    case = strength.Case("made up", 3, made_up(), "validation")
    first = list(strength.run(case, ["joint", "boosting"], 1, tmp_path, Path("python")))
    assert calls == [("joint", 0), ("boosting", 0)]
    more = list(strength.run(case, ["joint", "boosting"], 2, tmp_path, Path("python")))
    assert calls[2:] == [("joint", 1), ("boosting", 1)]
    assert more[:2] == first
    assert [one["answers"]["all"]["score"] for one in more] == [100.0] * 4
    (kept,) = (tmp_path / "validation" / "made up-3").glob("joint-1.json")
    assert json.loads(kept.read_text())["seed"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("part", ["test"])
def test_ours_answers_every_sample_and_fault(tmp_path: Path, part: str) -> None:
    case = strength.Case("made up", None, made_up(), part)
    case.broken(tmp_path, seed=0)
    found = strength.ours(["--method", "ensemble", "epochs=20"], case.arrays(), tmp_path, seed=0)
    answers = table.summary(found, case.judged.label.numpy())["answers"]
    assert set(answers) == {"all", "imu", "sound"}
    assert answers["all"]["fill"] == "absent"
    assert answers["all"]["score"] > 60
    assert len(found["all|imu/noisy/1"]) == len(case.judged)

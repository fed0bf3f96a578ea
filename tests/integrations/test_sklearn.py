"""scikit-learn: its own checks of an estimator; and sensors, groups and gaps, which these leave out."""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from equipoise import MIMO, MSL
from equipoise.data.splits import Splits
from equipoise.integrations import sklearn_base
from equipoise.integrations.sklearn import Modalities, MultimodalClassifier, MultimodalRegressor

QUICK: dict[str, Any] = {"epochs": 1, "steps": 40, "batch": 20, "lr": 0.02, "random_state": 0, "device": "cpu"}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # few steps, on purpose
COLUMNS = {"near": [0, 1, 2], "far": [3, 4]}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def matrix(samples: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Five columns, of which either modality tells the class by itself; the class; and twelve persons."""
    random = np.random.default_rng(seed)
    y = random.integers(2, size=samples)
    x = random.normal(size=(samples, 5)) + 4 * np.outer(y, [1, 0, 0, 1, 0])
    return x, np.array(["no", "yes"])[y], np.arange(samples) % 12


def by_name(x: np.ndarray) -> dict[str, np.ndarray]:
    return {name: x[:, columns] for name, columns in COLUMNS.items()}


# -- scikit-learn's own checks --


@parametrize_with_checks([MultimodalClassifier(**QUICK), MultimodalRegressor(**QUICK)])
@pytest.mark.filterwarnings("ignore::Warning")  # theirs, on purpose in some checks
def test_passes_the_checks_of_an_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


# -- the container --


@pytest.mark.parametrize("seed", range(5))
def test_modalities_are_cut_as_their_arrays_are(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(3, 20))
    arrays = {
        "a": random.normal(size=(count, 2, 4)),
        "b": torch.randn(count, 3),
        "c": pd.DataFrame({"x": range(count)}),
    }
    ragged = [random.normal(size=(1, size)) for size in random.integers(1, 5, size=count)]
    samples = Modalities({**arrays, "d": ragged, "e": None})
    assert samples.shape == (count,)
    mask = random.random(count) < 0.5
    for rows in (mask, np.flatnonzero(mask), random.permutation(count), slice(1, None, 2)):
        cut, numbers = samples[rows, ...], np.arange(count)[rows]
        assert cut.shape == (len(numbers),)
        np.testing.assert_array_equal(cut["a"], arrays["a"][numbers])
        np.testing.assert_array_equal(cut["b"], arrays["b"].numpy()[numbers])
        assert cut["c"]["x"].tolist() == numbers.tolist()
        assert all(one is ragged[number] for one, number in zip(cut["d"], numbers, strict=True))
        assert cut["e"] is None


def test_modalities_of_different_lengths_have_no_shape() -> None:
    with pytest.raises(ValueError, match=r"expected arrays of one length, found \{'a': 3, 'b': 4\}"):
        _ = Modalities(a=[1, 2, 3], b=[1, 2, 3, 4]).shape


def test_modalities_split_into_training_and_test() -> None:
    x, y, _ = matrix()
    train, test, _, labels = train_test_split(Modalities(by_name(x)), y, random_state=0)
    assert isinstance(train, Modalities)
    assert (train.shape, test.shape) == ((90,), (30,))
    assert MultimodalClassifier(**QUICK).fit(train, _).score(test, labels) > 0.9


# -- what X may be --


def test_a_dict_a_matrix_and_a_dataframe_say_the_same() -> None:
    x, y, _ = matrix()
    names = list("pqrst")
    frame = pd.DataFrame(x, columns=names)
    named = {name: [names[at] for at in columns] for name, columns in COLUMNS.items()}
    of_dict = MultimodalClassifier(**QUICK).fit(by_name(x), y)
    of_matrix: Any = MultimodalClassifier(modalities=COLUMNS, **QUICK).fit(x, y)
    of_frame: Any = MultimodalClassifier(modalities=named, **QUICK).fit(frame, y)
    expected = of_dict.predict_proba(by_name(x))
    np.testing.assert_array_equal(of_matrix.predict_proba(x), expected)
    np.testing.assert_array_equal(of_frame.predict_proba(frame), expected)
    np.testing.assert_array_equal(of_frame.predict_proba(by_name(x)), expected)
    assert (of_matrix.n_features_in_, of_frame.feature_names_in_.tolist()) == (5, names)
    assert not hasattr(of_dict, "n_features_in_")
    assert of_dict.classes_.tolist() == ["no", "yes"]
    assert set(of_dict.predict(by_name(x))) == {"no", "yes"}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
def test_numbers_of_any_width_that_are_equal_give_equal_answers(dtype: Any) -> None:
    x, y, _ = matrix()
    x = np.round(x).astype(dtype)
    x.flags.writeable = False
    narrow, wide = (MultimodalClassifier(modalities=COLUMNS, **QUICK).fit(one, y) for one in (x, x.astype(float)))
    np.testing.assert_array_equal(narrow.predict_proba(x), wide.predict_proba(x.astype(float)))


def test_series_and_vectors_of_the_same_samples() -> None:
    random = np.random.default_rng(0)
    y = np.arange(60) % 2
    arrays = {"imu": random.normal(size=(60, 3, 16)) + y[:, None, None], "vector": random.normal(size=(60, 4))}
    model = MultimodalClassifier(**QUICK).fit(arrays, y)
    assert model.predict_proba(arrays).shape == (60, 2)
    assert model.score(arrays, y) > 0.8


# -- groups --


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[Splits]:
    """The data of every training."""
    found: list[Splits] = []
    original = sklearn_base.train

    def noting(splits: Splits, *given: Any, **named: Any) -> Any:
        found.append(splits)
        return original(splits, *given, **named)

    monkeypatch.setattr(sklearn_base, "train", noting)
    return found


def groups_of(splits: Splits) -> tuple[set[int], set[int]]:
    """The groups that are trained on, and those that are held out."""
    assert splits.train.group is not None
    assert splits.validation.group is not None
    return {*splits.train.group.tolist()}, {*splits.validation.group.tolist()}


def test_cross_validation_by_groups_on_dicts(trained_on: list[Splits]) -> None:
    x, y, groups = matrix()
    cut = {"groups": groups, "cv": GroupKFold(3)}
    results = cross_validate(
        MultimodalClassifier(**QUICK), Modalities(by_name(x)), y, **cut, params={"groups": groups}, error_score="raise"
    )
    assert (results["test_score"] > 0.9).all()
    tested = [{*groups[test].tolist()} for _, test in GroupKFold(3).split(x, y, groups)]
    for splits, test in zip(trained_on, tested, strict=True):
        trained, validated = groups_of(splits)
        assert trained
        assert validated
        assert not trained & validated
        assert trained | validated == {*range(12)} - test


def test_groups_are_routed(trained_on: list[Splits]) -> None:
    x, y, groups = matrix()
    with config_context(enable_metadata_routing=True):
        model = MultimodalClassifier(**QUICK).set_fit_request(groups=True)
        pipeline = make_pipeline(StandardScaler(), model)
        cross_validate(pipeline, x, y, cv=GroupKFold(3), params={"groups": groups}, error_score="raise")
    found = [groups_of(splits) for splits in trained_on]
    assert len(found) == 3
    assert all(trained and validated and not trained & validated for trained, validated in found)


def test_without_groups_a_quarter_of_every_class_is_held_out(trained_on: list[Splits]) -> None:
    x, _, _ = matrix(100)
    MultimodalClassifier(**QUICK).fit(x, np.repeat([0, 1], [80, 20]))
    assert trained_on[0].train.label.bincount().tolist() == [60, 15]
    assert trained_on[0].validation.label.bincount().tolist() == [20, 5]


# -- searching, pipelines, pickles --


def test_grid_search_over_a_method_and_its_parameters() -> None:
    x, y, groups = matrix()
    grid = [{"method": ["msl"]}, {"method": ["mimo"], "method_params": [{"penalty": 1.0}, {"penalty": 10.0}]}]
    search = GridSearchCV(MultimodalClassifier(**QUICK), grid, cv=GroupKFold(2), scoring="balanced_accuracy")
    search.fit(Modalities(by_name(x)), y, groups=groups)
    assert len(search.cv_results_["params"]) == 3
    assert search.best_score_ > 0.9
    assert search.best_estimator_.predict_proba(by_name(x)).shape == (120, 2)


def test_a_pipeline_of_columns() -> None:
    x, y, _ = matrix()
    pipeline = make_pipeline(StandardScaler(), MultimodalClassifier(modalities=COLUMNS, **QUICK)).fit(x, y)
    assert get_scorer("roc_auc")(pipeline, x, y == "yes") > 0.95


def test_a_pickle_answers_the_same() -> None:
    x, y, _ = matrix()
    for method in ("mimo", "agm", "ensemble"):  # agm leaves something in the model while it trains
        model = MultimodalClassifier(method=method, **QUICK).fit(by_name(x), y)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict_proba(by_name(x)), model.predict_proba(by_name(x)))


def global_numbers() -> list[int]:
    """The state of numpy's global generator, which scikit-learn's estimators may draw from."""
    state: Any = np.random.get_state()  # noqa: NPY002
    return state[1].tolist()


def test_a_seed_gives_the_same_model_and_nothing_else_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y, _ = matrix()
    before, numbers = torch.get_rng_state(), global_numbers()
    quick = MultimodalClassifier(**QUICK)
    first, again, other = (clone(quick).set_params(random_state=seed).fit(x, y) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert global_numbers() == numbers
    np.testing.assert_array_equal(first.predict_proba(x), again.predict_proba(x))
    assert not np.array_equal(first.predict_proba(x), other.predict_proba(x))
    assert list(tmp_path.iterdir()) == []


def test_methods_are_named_made_or_classes() -> None:
    x, y, _ = matrix()
    made = MIMO(penalty=3.0)
    settings: dict[str, Any] = {"modalities": COLUMNS, **QUICK}
    one = MultimodalClassifier(method="mimo", method_params={"penalty": 3.0}, **settings)
    others = [
        MultimodalClassifier(method=made, **settings),
        MultimodalClassifier(method=MIMO, method_params={"penalty": 3.0}, **settings),
    ]
    expected = clone(one).fit(x, y).predict_proba(x)
    for other in others:
        np.testing.assert_array_equal(clone(other).fit(x, y).predict_proba(x), expected)
    assert not np.array_equal(MultimodalClassifier(method=MSL, **settings).fit(x, y).predict_proba(x), expected)
    assert not made.modalities  # the one that was given is not attached


# -- sensors that are missing --


def test_a_missing_sensor_is_left_out_of_the_vote() -> None:
    x, y, _ = matrix()
    model = MultimodalClassifier(**QUICK).fit(by_name(x), y)
    near = by_name(x)["near"]
    answers = model.predict_proba({"near": near})
    np.testing.assert_array_equal(model.predict_proba({"near": near, "far": None}), answers)
    spec: Any = model.inputs_["near"]
    scaled = (torch.from_numpy(near).float() - spec.mean) / spec.deviation
    np.testing.assert_allclose(answers, model.model_.predict({"near": scaled}, "committee"), atol=1e-5)
    assert (model.classes_[answers.argmax(axis=1)] == y).mean() > 0.9


def with_gaps(x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A matrix whose rows lack a modality now and then; and which samples have it."""
    gappy = x.copy()
    rows = np.arange(len(x))
    gappy[rows % 3 == 0, 3:] = np.nan
    gappy[rows % 3 == 1, :3] = np.nan
    return gappy, {"near": ~np.isnan(gappy[:, 0]), "far": ~np.isnan(gappy[:, 3])}


def test_gaps_are_nan_in_columns_or_marked() -> None:
    x, y, _ = matrix()
    gappy, present = with_gaps(x)
    of_matrix = MultimodalClassifier(modalities=COLUMNS, **QUICK).fit(gappy, y)
    marked = {**by_name(x), **{f"{name}_present": here for name, here in present.items()}}
    of_dict = MultimodalClassifier(**QUICK).fit(marked, y)
    answers = of_matrix.predict_proba(gappy)
    np.testing.assert_allclose(of_dict.predict_proba(marked), answers, atol=1e-12)
    assert (of_matrix.classes_[answers.argmax(axis=1)] == y)[~present["far"]].mean() > 0.85
    alone = of_matrix.predict_proba({"near": x[~present["far"], :3]})
    np.testing.assert_allclose(answers[~present["far"]], alone, atol=1e-12)


def test_a_number_missing_inside_a_modality_is_an_error() -> None:
    x, y, _ = matrix()
    x[5, 1] = np.nan
    for columns, given in ((COLUMNS, x), (None, by_name(x))):
        with pytest.raises(ValueError, match=r"near: .*5"):
            MultimodalClassifier(modalities=columns, **QUICK).fit(given, y)
    model = MultimodalClassifier(modalities=COLUMNS, **QUICK).fit(np.nan_to_num(x), y)
    with pytest.raises(ValueError, match="near: "):
        model.predict(x)


# -- numbers and labels --


def numbers(samples: int = 200) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Two numbers per sample, of which each modality tells one."""
    x, _, _ = matrix(samples)
    return by_name(x), np.stack([7 + 3 * x[:, 1], 100 - 20 * x[:, 4]], axis=1)


def test_a_regressor_answers_in_the_units_of_its_target() -> None:
    x, y = numbers()
    model = MultimodalRegressor(**QUICK).set_params(steps=100)
    one = clone(model).fit(x, y[:, 0])
    assert one.predict(x).shape == (200,)
    assert one.score(x, y[:, 0]) > 0.9
    slow = clone(model).set_params(lr=0.001)  # rounding grows with every step
    small, large = (clone(slow).fit(x, target).predict(x) for target in (y[:, 0], 1000 * y[:, 0] - 5e4))
    np.testing.assert_allclose(large, 1000 * small - 5e4, atol=0.001 * 1000 * y[:, 0].std())
    both = clone(model).fit(x, y)
    assert both.predict(x).shape == (200, 2)
    assert both.score(x, y) > 0.8
    assert clone(model).fit(x, y[:, :1]).predict(x).shape == (200, 1)
    assert np.isfinite(both.predict({"near": x["near"]})).all()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(both)).predict(x), both.predict(x))


def test_the_loss_of_a_regressor() -> None:
    x, y = numbers()
    model = MultimodalRegressor(**QUICK).set_params(lr=0.01)
    answers = [clone(model).set_params(loss=loss).fit(x, y).predict(x) for loss in ("huber", "mse", "mae", "auto")]
    np.testing.assert_array_equal(answers[0], answers[3])
    assert not np.array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0], answers[2])


def test_numbers_are_cross_validated_by_group() -> None:
    x, y = numbers()
    groups = np.arange(200) % 8
    model = MultimodalRegressor(**QUICK).set_params(steps=100)
    cut: dict[str, Any] = {"groups": groups, "cv": GroupKFold(2), "scoring": "r2", "params": {"groups": groups}}
    assert (cross_validate(model, Modalities(x), y, **cut, error_score="raise")["test_score"] > 0.5).all()


def test_several_labels_of_a_sample() -> None:
    x, y = numbers()
    labels = (y > y.mean(axis=0)).astype(int)
    model = MultimodalClassifier(**QUICK).set_params(steps=100).fit(x, labels)
    probabilities = model.predict_proba(x)
    np.testing.assert_array_equal(model.predict(x), (probabilities > 0.5).astype(int))
    assert (model.predict(x) == labels).mean() > 0.9
    assert probabilities.sum(axis=1).max() > 1.5  # each label by itself
    with pytest.raises(ValueError, match="0 and 1 for each of several labels"):
        model.fit(x, 2 * labels)


def test_class_weights_move_the_answer() -> None:
    random = np.random.default_rng(0)
    x = {name: random.normal(size=(200, 2)) for name in ("a", "b")}
    y = np.repeat(["rare", "usual"], [20, 180])
    # Of noise, the committee may rightly give every head a weight of 0, and then it says nothing of the classes.
    model = MultimodalClassifier(decision="fused", **QUICK)
    shares = [
        (clone(model).set_params(class_weight=weight).fit(x, y).predict(x) == "rare").mean()
        for weight in (None, "balanced", {"rare": 100.0})
    ]
    assert shares[0] < 0.1 < shares[1] < 0.9 < shares[2]


@pytest.mark.parametrize("decision", ["committee", "fused"])
@pytest.mark.parametrize("method", ["instant", "auto"])
def test_class_weights_reach_the_closed_form(method: str, decision: str) -> None:
    random = np.random.default_rng(0)
    y = np.repeat(["rare", "usual"], [30, 270])
    x = {name: random.normal(size=(300, 3)) + 0.6 * (y == "rare")[:, None] for name in ("a", "b")}
    model = MultimodalClassifier(method=method, decision=decision, epochs=2, steps=1, random_state=0)
    found = []
    for weight in (None, {"rare": 3.0}, "balanced", {"rare": 100.0}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found.append((model.set_params(class_weight=weight).fit(x, y).predict(x)[y == "rare"] == "rare").mean())
    assert found == sorted(found)  # the more a class weighs, the more of it is found
    assert found[0] < 0.5 < 0.65 < found[2] < found[3] + 1e-9


def test_the_positive_class_is_named_as_in_y() -> None:
    x, y, _ = matrix()
    columns = np.stack([y == "yes", np.arange(len(y)) % 2 == 0], axis=1).astype(int)
    model = MultimodalClassifier(method="instant", metric="auprc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for positive, label, expected in ((None, y, None), ("yes", y, 1), ("no", y, 0), (1, columns, 1)):
            task = model.set_params(positive=positive).fit(x, label).model_.known_task()
            rarer = int((y == "yes").mean() <= 0.5)
            assert task.positive == task.names[rarer if expected is None else expected]
    with pytest.raises(ValueError, match="positive: expected a class of y, 'no', 'yes', found 'maybe'"):
        model.set_params(positive="maybe").fit(x, y)


# -- what is wrong is said --


@pytest.mark.parametrize(
    ("change", "x", "message"),
    [
        ({"modalities": {"near": [0], "far": [7]}}, None, r"\['far'\]: expected columns of X, found 7 is none"),
        ({"method": "mimosa"}, None, "unknown method 'mimosa'; did you mean 'mimo'"),
        ({"method": "unimodal"}, None, "choose ensemble"),
        ({"method": MIMO(), "method_params": {"penalty": 1.0}}, None, "method_params: expected none"),
        ({"decision": "majority"}, None, "unknown decision 'majority'"),
        ({"validation_fraction": 0.7}, None, "validation_fraction should be above 0 and at most 0.5, found 0.7"),
        ({"settings": {"fusion": "glue"}}, None, "fusion should be one of"),
        ({"settings": {"epochz": 3}}, None, "settings: 'epochz' is none of 'accumulate', "),
        (
            {"settings": {"metric": "mae", "task": "labels"}},
            None,
            r"settings: metric is a parameter of its own; type MultimodalClassifier\(metric='mae'\)\n"
            "settings: task is not to be set; MultimodalClassifier decides it",
        ),
        ({"settings": ["fusion"]}, None, 'settings: expected a dict, such as {"fusion": "sum"}, found list'),
        ({"modalities": ["near", "far"]}, None, "modalities: expected columns by modality, .*, found list"),
        ({"class_weight": {"Yes": 10.0}}, None, "class_weight: expected classes of y, 'no', 'yes', found 'Yes'"),
        ({"class_weight": {"yes": 0}}, None, "class_weight: expected numbers above zero, found 0 for 'yes'"),
        ({"class_weight": [1, 2, 3]}, None, r"weights by class, {'no': 1.0, 'yes': 1.0}, found \[1, 2, 3\]"),
        ({"class_weight": "1,2,3"}, None, "weights by class, {'no': 1.0, 'yes': 1.0}, found '1,2,3'"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], x: Any, message: str) -> None:
    columns, y, _ = matrix()
    with pytest.raises(ValueError, match=message):
        MultimodalClassifier(**QUICK).set_params(**change).fit(columns if x is None else x, y)


def test_an_unknown_parameter_of_a_method_is_named() -> None:
    x, y, _ = matrix()
    with pytest.raises(
        TypeError, match=r"MIMO: got an unexpected keyword argument 'weight'; its parameters are: penalty"
    ):
        MultimodalClassifier(method_params={"weight": 1.0}, **QUICK).fit(x, y)


@pytest.mark.parametrize("kind", [list, lambda y: np.array(y, dtype=object)])
def test_a_class_that_is_none_is_named(kind: Any) -> None:
    x, y, _ = matrix()
    gaps = [None if at in (3, 7) else name for at, name in enumerate(y)]
    with pytest.raises(ValueError, match=r"y: expected a class for every sample, found None in 2 of 120 \(3, 7\)"):
        MultimodalClassifier(**QUICK).fit(x, kind(gaps))


def test_a_weight_may_be_of_a_class_that_a_fold_lacks() -> None:
    x, y, _ = matrix()
    weighted, other = (
        MultimodalClassifier(class_weight=weight, **QUICK).fit(x, y).predict_proba(x)
        for weight in ({"yes": 3.0}, {"no": 1.0, "yes": 3.0, "perhaps": 9.0})
    )
    np.testing.assert_array_equal(weighted, other)


def told_in_fit(model: Any, x: Any, y: Any) -> list[str]:
    """What a fit says, at the line of its caller."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, y)
    assert all(one.category is ConvergenceWarning and one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


def test_a_model_that_always_says_the_same_is_told() -> None:
    random = np.random.default_rng(0)
    x = {name: random.normal(size=(200, 2)) for name in ("a", "b")}
    y = np.repeat(["rare", "usual"], [20, 180])
    long: dict[str, Any] = {**QUICK, "steps": 200}
    (sentence,) = told_in_fit(MultimodalClassifier(**long).set_params(lr=1e-4), x, y)
    assert re.fullmatch(
        "the committee decision says 'usual' for every validation sample, and the probabilities rank them no better "
        r"than chance \(AUROC of rare \d\d.\d %\); try class_weight=balanced, or more epochs",
        sentence,
    )
    nothing = {name: np.ones_like(values) for name, values in x.items()}
    (sentence,) = told_in_fit(MultimodalRegressor(**long, decision="fused"), nothing, 5 + random.random(200))
    assert sentence.startswith("the fused decision says about 5.")
    clear, classes, _ = matrix()
    assert told_in_fit(MultimodalClassifier(**long), clear, classes) == []
    assert told_in_fit(MultimodalClassifier(**QUICK), clear, classes) == [
        "training took 40 steps, fewer than 200: raise epochs, or lower batch"
    ]


def test_a_matrix_for_a_model_of_dicts_is_refused() -> None:
    x, y, _ = matrix()
    model = MultimodalClassifier(**QUICK).fit(by_name(x), y)
    with pytest.raises(ValueError, match="X: expected a dict of near, far, as in fit, found ndarray"):
        model.predict(x)


@pytest.mark.parametrize("method", ["instant", "auto"])
def test_automatic_models_are_estimators_too(method: str) -> None:
    x, y, _ = matrix()
    made = MultimodalClassifier(method=method, epochs=2, steps=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        probabilities = made.fit(x, y).predict_proba(x)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert made.score(x, y) > 0.5
    with pytest.raises(ValueError, match="method_params: 'penalty'"):
        MultimodalClassifier(method=method, method_params={"penalty": 3.0}).fit(x, y)

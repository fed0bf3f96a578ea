"""Training for every task, by every method, on samples that may lack a sensor."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from equipoise.measure import measure_run
from equipoise.study.registry import all_methods
from equipoise.training.settings import Settings
from equipoise.training.step import evaluate, problems_of, task_for
from equipoise.training.train import train
from tasks_made_up import KINDS, splits_of

FAST = Settings(epochs=1, batch=16, lr=0.05, precision="fp32")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", sorted(all_methods()))
def test_every_method_trains_for_every_task_with_gaps_or_says_why_not(method: str, kind: str) -> None:
    splits, entry = splits_of(kind, gaps=0.3), all_methods()[method]
    if problems := problems_of(entry.make(), FAST, kind, splits.modalities):
        with pytest.raises(ValueError, match=problems[0][:30]):
            train(splits, entry.make(), FAST)
        return
    trained = train(splits, entry.make(), FAST)
    model = trained.model if entry.finish is None else entry.finish(trained.model)
    whole = method in ("mimo", "agm")  # measuring all of it takes longer than training
    measured = measure_run(model, splits, seed=0, faults=whole, protocols=whole)["test"]
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert {"near", "far", "plain"} == set(measured[measured["view"]])
    faults = measured["faults"]["mean"] if whole else {}
    assert all(isinstance(value, float) for value in (measured["fused"], measured["committee"], *faults.values()))
    answer = model.predict(splits.test.inputs, "committee")
    if kind == "classes":
        torch.testing.assert_close(answer.sum(dim=1), torch.ones(32))
    elif kind == "labels":
        assert ((answer >= 0) & (answer <= 1)).all()
    else:
        assert (answer - splits.test.label).abs().mean() < 30  # in the units of the target


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_a_gap_does_not_matter(kind: str) -> None:
    from equipoise import MIMO

    weights = []
    for filling in (0.0, 1e6):
        trained = train(splits_of(kind, gaps=0.4, filling=filling), MIMO(), FAST)
        weights.append((trained.model.state_dict(), trained.curves[-1]["train"]))
    (first, losses), (second, others) = weights
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert losses == others


@pytest.mark.parametrize("kind", KINDS)
def test_a_sensor_is_evaluated_on_the_samples_that_have_it(kind: str) -> None:
    from equipoise import MSL

    splits = splits_of(kind, gaps=0.5)
    model = train(splits, MSL(), FAST).model
    there = splits.test.inputs["far_present"]
    whole, some = evaluate(model, splits.test), evaluate(model, splits.test.take(there))
    assert whole["far"] == pytest.approx(some["far"], rel=1e-5)
    assert whole["near"] != pytest.approx(some["near"], rel=1e-5)
    outputs = measure_run(model, splits, seed=0, faults=False)["test"]
    alone = measure_run(model, replace(splits, test=splits.test.take(there)), seed=0, faults=False)["test"]
    assert outputs["detached"]["far"] == pytest.approx(alone["detached"]["far"])


def test_a_regression_learns_in_the_units_of_its_target() -> None:
    from equipoise import MIMO

    splits = splits_of("regression")
    settings = FAST.changed({"epochs": 30, "optimizer": "adam", "lr": 0.01})
    measured = measure_run(train(splits, MIMO(), settings).model, splits, seed=0)["test"]
    spread = (splits.test.label - splits.train.label.median(dim=0).values).abs().mean().item()
    assert measured["fused"] < 0.6 * spread
    assert measured["committee"] < 0.6 * spread
    assert 0.6 <= measured["committee_coverage"] <= 1


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("classes", {"loss": "mse"}, "loss=mse: expected auto or tcmax for a task of classes"),
        ("labels", {"loss": "tcmax"}, "loss=tcmax: expected auto for a task of labels"),
        ("regression", {"loss": "tcmax"}, "loss=tcmax: expected auto or huber or mse or mae for a task of regression"),
        ("regression", {"class_weight": "balanced"}, "a regression has no classes to weigh"),
        ("labels", {"metric": "mae"}, "metric=mae: expected one that fits a task of labels"),
    ],
)
def test_settings_that_do_not_fit_the_task_are_refused_before_training(
    kind: str, words: dict[str, Any], message: str
) -> None:
    from equipoise import MSL

    with pytest.raises(ValueError, match=message):
        train(splits_of(kind), MSL(), FAST.changed(words))


def test_the_loss_of_a_regression_is_the_one_of_the_settings() -> None:
    splits = splits_of("regression")
    task = task_for(splits, FAST.changed({"loss": "mae"}))
    output = torch.zeros(32, 2)
    expected = ((splits.test.label - splits.train.label.mean(dim=0)) / splits.train.label.std(dim=0)).abs().mean(dim=1)
    torch.testing.assert_close(task.loss(output, splits.test.label), expected)
    assert splits.task.as_dict()["loss"] == "huber"  # the data's own task stays as it is

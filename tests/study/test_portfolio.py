"""The automatic model: how it is chosen, combined, resumed, measured, saved and shipped."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor

import equipoise.study.portfolio as module
from equipoise.data.bundled import two_sensors
from equipoise.data.source import DataSet
from equipoise.data.splits import Part, Splits
from equipoise.deploy import ExportedModel, Predictor, export, load_saved_model
from equipoise.deploy.card import write_card
from equipoise.deploy.exporting import run_onnx
from equipoise.models.combine import SideBySide, fit_combined
from equipoise.models.committee import CommitteeFit
from equipoise.models.task import Task
from equipoise.models.votes import Votes
from equipoise.study.budget import budget_line
from equipoise.study.job import DESCRIPTION, Job, run_job
from equipoise.study.portfolio import Portfolio, make_model, rungs_of, trainings_of
from equipoise.study.registry import entries
from equipoise.study.study import plan
from equipoise.training.closed_form import closed_form
from equipoise.training.settings import Settings
from equipoise.util.errors import BadInput
from tasks_made_up import KINDS, splits_of

WORDS = ["epochs=4", "features=6", "batch=16", "device=cpu"]


def job_of(splits: Splits, *words: str, method: str = "auto", measure: Any = "quick") -> Job:
    (entry,) = entries([method], [*WORDS, *words])
    return Job(entry, DataSet("own", lambda _: splits, 0, ""), None, 0, splits.fingerprint(), measure=measure)


def generous(task: Task, votes: Sequence[Votes], prior: Tensor | None = None) -> CommitteeFit:
    """Fit weights of which every member has some, so that all of them are shipped."""
    fit = fit_combined(task, votes, prior)
    return fit._replace(weights=(fit.weights + fit.weights.mean()) / 2, loss=fit.loss - len(votes))


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, splits = tmp_path_factory.mktemp("run"), splits_of(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "fit_combined", generous)
        return folder, splits, run_job(job_of(splits), splits, folder)


# -- the budget --


@pytest.mark.parametrize("epochs", [0, 1, 2, 7, 40])
def test_the_rungs_take_twice_one_run(epochs: int) -> None:
    assert rungs_of(4, 40) == [(4, 8, 5), (2, 4, 10), (1, 1, 40)]
    (entry,) = entries(["auto"], [f"epochs={epochs}"])
    every = trainings_of(entry, "classes")
    assert len(every) == (7 if epochs else 0)
    assert 2 * epochs <= sum(every) <= 2 * epochs + 7
    (entry,) = entries(["auto"], ["epochs=40", "refit=true"])
    assert sum(trainings_of(entry, "classes")) == 120
    (entry,) = entries(["instant"], ["epochs=40"])
    assert trainings_of(entry, "classes") == []


def test_the_budget_is_told_in_trainings_and_steps() -> None:
    splits = splits_of("classes")
    assert "7 trainings" in (line := budget_line([job_of(splits)], {None: splits}))
    assert "at most 40 optimiser steps" in line  # 64 samples in batches of 16, 4 + 2 + 4 epochs
    assert "nothing is chosen on the test part" in line
    one = budget_line([job_of(splits, method="mimo")], {None: splits})
    assert one == "budget: 1 training, at most 16 optimiser steps; nothing is chosen on the test part"
    instant = budget_line([job_of(splits, method="instant")], {None: splits})
    assert instant == "budget: heads in closed form, no training; nothing is chosen on the test part"


# -- the choice --


def test_the_evidence_shows_every_rung_and_the_weights(run: Any) -> None:
    _, splits, row = run
    told = row["portfolio"]
    assert [len(rung["candidates"]) for rung in told["rungs"]] == [4, 2, 1]
    assert [rung["epochs"] for rung in told["rungs"]] == [1, 1, 4]
    metric = row["metric"]
    rungs: list[Any] = [*told["rungs"], None]
    for rung, after in itertools.pairwise(rungs):
        names = {one["candidate"]: one["loss"] for one in rung["candidates"]}
        for one in rung["candidates"]:
            assert one[metric] is not None
            assert one["steps"] == 4 * rung["epochs"]
            assert set(one["weights"]) == {"closed form", one["candidate"]}
            assert set(one["weights"]["closed form"]) == {"fused", *splits.modalities}
        if after is not None:
            best = sorted(names, key=lambda name: names[name])[: len(after["candidates"])]
            assert {one["candidate"] for one in after["candidates"]} == set(best)
    losses = {tuple(one["members"]): one["loss"] for one in told["options"]}
    assert ("closed form",) in losses
    assert told["loss"] == min(losses.values())
    assert told["chosen"][0] == "closed form"
    assert json.loads(json.dumps(row)) == row
    assert not any("steps" in warning for warning in row["warnings"])


def test_members_without_weight_are_left_out(tmp_path: Path) -> None:
    splits = splits_of("regression")
    row = run_job(job_of(splits), splits, tmp_path)
    told, members = row["portfolio"], json.loads((tmp_path / DESCRIPTION).read_text())["members"]
    weights = {name: sum(each.values()) for name, each in told["weights"].items()}
    assert told["chosen"] == [name for name, total in weights.items() if total > 0]
    assert len(members) == len(told["chosen"])


def test_where_no_head_knows_anything_one_member_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(task: Task, votes: Sequence[Votes], prior: Tensor | None = None) -> CommitteeFit:
        fit = fit_combined(task, votes, prior)
        return fit._replace(weights=torch.zeros_like(fit.weights))

    monkeypatch.setattr(module, "fit_combined", nothing)
    splits = splits_of("classes")
    row = run_job(job_of(splits, "epochs=1"), splits, tmp_path)
    assert row["portfolio"]["chosen"] == ["closed form"]
    answers = load_saved_model(tmp_path).model.predict(splits.test.inputs, "committee")
    torch.testing.assert_close(answers.softmax(dim=1), torch.full((32, 3), 1 / 3))


def test_no_test_sample_is_read_before_all_is_chosen(tmp_path: Path) -> None:
    splits = splits_of("classes")
    broken = Part({name: torch.full_like(x, math.nan) for name, x in splits.test.inputs.items()}, splits.test.label)
    (entry,) = entries(["auto"], WORDS)
    made = Portfolio(entry, splits, tmp_path / "one", seed=0).make()
    again = Portfolio(entry, replace(splits, test=broken), tmp_path / "two", seed=0).make()

    def told(evidence: Any) -> Any:
        return {key: evidence[key] for key in ("rungs", "options", "chosen", "weights")}

    assert told(made.evidence) == told(again.evidence)


def test_a_candidate_that_diverges_has_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits, original = splits_of("classes"), module.train

    def broken(splits: Splits, balancer: Any, settings: Any, **how: Any) -> Any:
        if type(balancer).__name__ in ("EW", "MIMO", "MMPareto"):
            raise FloatingPointError("loss 'near' is NaN or infinite")
        return original(splits, balancer, settings, **how)

    monkeypatch.setattr(module, "train", broken)
    told = run_job(job_of(splits), splits, tmp_path / "some")["portfolio"]
    names = [[one["candidate"] for one in rung["candidates"]] for rung in told["rungs"]]
    assert names == [["moddrop", "ew", "mimo", "mmpareto"], ["moddrop"], ["moddrop"]]
    assert "diverged" in told["rungs"][0]["candidates"][1]
    monkeypatch.setattr(module, "CANDIDATES", ("ew", "mimo"))
    row = run_job(job_of(splits), splits, tmp_path / "none")
    assert row["portfolio"]["chosen"] == ["closed form"]
    assert row["seconds"]["step"] is None

    monkeypatch.setattr(module, "why_not_solved", lambda *_: "no such features")
    with pytest.raises(FloatingPointError, match="NaN"):
        run_job(job_of(splits), splits, tmp_path / "nothing")


def test_without_closed_form_heads_the_trained_ones_are_combined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "why_not_solved", lambda *_: "token numbers have no such features")
    splits = splits_of("labels")
    row = run_job(job_of(splits), splits, tmp_path)
    assert row["portfolio"]["closed_form"] == {"left_out": "token numbers have no such features"}
    assert len(row["portfolio"]["options"]) == 2
    assert "closed form" not in row["portfolio"]["chosen"]
    assert load_saved_model(tmp_path).row["method"] == "auto"
    with pytest.raises(BadInput, match="token numbers"):
        run_job(job_of(splits, method="instant"), splits, tmp_path / "instant")


# -- resuming --


class Killed(BaseException):
    """Not an error that anything catches."""


@pytest.mark.parametrize("after", [6, *(pytest.param(after, marks=pytest.mark.slow) for after in (2, 5, 9))])
def test_a_killed_portfolio_goes_on_to_the_same_bits(after: int, tmp_path: Path) -> None:
    splits = splits_of("classes")
    whole = run_job(job_of(splits), splits, tmp_path / "whole", checkpoint_seconds=0)
    seen: list[dict[str, Any]] = []

    def kill(record: dict[str, Any]) -> None:
        seen.append(record)
        if len(seen) == after:
            raise Killed

    with pytest.raises(Killed):
        run_job(job_of(splits), splits, tmp_path / "killed", kill, checkpoint_seconds=0)
    again: list[dict[str, Any]] = []
    row = run_job(job_of(splits), splits, tmp_path / "killed", again.append, checkpoint_seconds=0)
    assert row["test"] == whole["test"]
    assert row["portfolio"]["rungs"] == whole["portfolio"]["rungs"]
    assert 10 - after <= len(again) <= 10 - after + 1  # what was trained is not trained again
    assert [record["overall"] for record in again][-1] == (10, 10)
    assert again[-1]["stage"].endswith("epoch 4")


# -- measuring and saving --


def test_measuring_keeps_the_committee_that_was_fitted(run: Any) -> None:
    folder, _, row = run
    assert row["validation"]["committee_fit"] == row["portfolio"]["fit"]
    model = load_saved_model(folder).model
    weights = row["portfolio"]["weights"]
    outer = [sum(weights[name][output] for name in weights) for output in ("fused", "near", "far", "plain")]
    assert model.committee.tolist() == pytest.approx(outer, abs=1e-6)


def test_a_loaded_model_reaches_the_figures_of_its_row(run: Any, tmp_path: Path) -> None:
    folder, splits, row = run
    saved = load_saved_model(folder)
    part = splits.test
    answer = saved.model.predict(part.inputs, "committee")
    label = part.label
    found = {
        "classes": lambda: (answer.argmax(dim=1) == label).double().mean().item(),
        "regression": lambda: (answer - label).abs().mean().item(),
        "labels": lambda: f1_score(label, answer > 0.5, average="macro"),  # each label has samples here
    }[splits.task.kind]()
    assert found == pytest.approx(row["test"]["committee"], rel=1e-4)
    exported = ExportedModel(tmp_path / "model.onnx", "onnx", 0.0, "", (), tuple(saved.deployable().output_names))
    _, page = write_card(saved, exported, tmp_path)
    plain = json.loads((tmp_path / "card.json").read_text())
    assert plain["portfolio"]["chosen"] == row["portfolio"]["chosen"]
    assert "successive halving" in page.read_text()
    for name in row["portfolio"]["chosen"]:
        assert name in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("run", ["classes"], indirect=True)  # the other tasks: deploy/test_combined.py
def test_onnx_equals_predict_on_every_subset_of_the_sensors(run: Any, tmp_path: Path) -> None:
    folder, splits, _ = run
    saved = load_saved_model(folder)
    exported = export(saved.deployable(), tmp_path)
    assert exported.difference is not None
    assert exported.difference <= 1e-5
    graph, inputs = run_onnx(exported.file), {name: splits.test.inputs[name] for name in splits.modalities}
    for size in (1, 2, 3):
        for subset in itertools.combinations(inputs, size):
            given: dict[str, Tensor] = {}
            for name, x in inputs.items():
                given[name] = x if name in subset else torch.full_like(x, math.nan)
                given[f"{name}_valid"] = torch.full((len(x),), name in subset)
            wanted = saved.model.predict({name: inputs[name] for name in subset}, "committee")
            torch.testing.assert_close(graph(given)["committee"], wanted, rtol=1e-4, atol=1e-4)


def test_a_run_is_loaded_for_prediction(run: Any) -> None:
    folder, splits, _ = run
    predictor = Predictor(load_saved_model(folder))
    found = predictor.predict({name: splits.test.inputs[name].numpy() for name in splits.modalities})
    assert len(found.answer) == len(splits.test)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder", "cProfile.main"),
        ("encoder", "mlp"),
        ("encoder", 3),
        ("features", 4),
        ("features", 2**31 - 1),
        ("features", -1),
        ("fusion", "gated"),
        ("fusion", "eval"),
        ("unimodal", None),
        ("unimodal", "split"),
    ],
)
def test_an_edited_member_is_refused(key: str, value: Any, run: Any, tmp_path: Path) -> None:
    folder, _, _ = run
    for file in (DESCRIPTION, "model.safetensors"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    content = json.loads((folder / DESCRIPTION).read_text())
    content["members"][-1][key] = value
    (tmp_path / DESCRIPTION).write_text(json.dumps(content))
    told = r"members\[2\]|no code runs because a file names it|expected .* of shape|cannot be made"
    with pytest.raises(BadInput, match=told):
        load_saved_model(tmp_path)


@pytest.mark.parametrize("members", [[], None, {}, [{}], "auto", [None] * 3])
def test_a_list_of_members_that_is_none_is_refused(members: Any, run: Any, tmp_path: Path) -> None:
    folder, _, _ = run
    content = json.loads((folder / DESCRIPTION).read_text())
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (tmp_path / DESCRIPTION).write_text(json.dumps({**content, "members": members}))
    with pytest.raises(BadInput, match="members"):
        load_saved_model(tmp_path)


# -- instant and refit --


@pytest.mark.parametrize("kind", KINDS)
def test_instant_takes_the_closed_form_alone(kind: str, tmp_path: Path) -> None:
    splits = splits_of(kind)
    row = run_job(job_of(splits, method="instant"), splits, tmp_path)
    assert row["method"] == "instant"
    assert row["seconds"]["step"] is None
    assert set(row["portfolio"]["closed_form"]["heads"]) == {"fused", *splits.modalities}
    assert row["validation"]["committee_fit"] == row["portfolio"]["fit"]
    model = load_saved_model(tmp_path).model
    assert not any(isinstance(one, SideBySide) for one in model.modules())


@pytest.mark.parametrize("method", ["auto", "instant"])
@pytest.mark.parametrize("fusion", ["hybrid", "early"])
def test_a_trunk_is_refused_with_what_to_type(fusion: str, method: str) -> None:
    (entry,) = entries([method], [f"fusion={fusion}", "epochs=1"])
    with pytest.raises(BadInput, match=f"found fusion={fusion}; type --method mimo fusion={fusion}, or leave fusion=…"):
        make_model(entry, splits_of("classes"))


def test_refit_trains_the_chosen_again_on_both_parts_and_keeps_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = splits_of("regression")
    sizes: list[int] = []

    def counted(data: Splits, settings: Settings) -> Any:
        sizes.append(len(data.train))
        return closed_form(data, settings)

    monkeypatch.setattr(module, "closed_form", counted)
    plain = run_job(job_of(splits), splits, tmp_path / "plain")
    row = run_job(job_of(splits, "refit=true"), splits, tmp_path / "refit")
    assert max(sizes) == len(splits.train) + len(splits.validation) or "closed form" not in row["portfolio"]["chosen"]
    assert row["validation"] == plain["validation"]
    assert row["portfolio"]["weights"] == plain["portfolio"]["weights"]
    assert row["test"]["committee"] != plain["test"]["committee"]
    assert "train and validation" in row["portfolio"]["refit"]
    radii = [load_saved_model(tmp_path / name).model.radii for name in ("plain", "refit")]
    assert torch.equal(*radii)


# -- what cannot work --


def test_what_is_no_single_training_is_not_tuned_and_takes_no_foreign_parameters() -> None:
    from equipoise.study.registry import method_of
    from equipoise.study.tuning import search_of

    with pytest.raises(BadInput, match="tune: expected one method that is trained"):
        search_of("auto", ["lr=0.1,0.2"])
    with pytest.raises(BadInput, match="no single training"):
        method_of("instant")
    with pytest.raises(BadInput, match="'mimo' is not among the chosen methods"):
        entries(["auto"], ["mimo.penalty=3"])
    assert "auto" not in {entry.label for entry in entries(["all"])}


def test_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.training.launch.launched", lambda: True)
    with pytest.raises(BadInput, match="torchrun: expected one method"):
        plan(entries(["auto"], WORDS), DataSet("own", lambda _: two_sensors(samples=60), 0, ""), [0], [None])


def test_a_model_of_ones_own_is_the_best_candidate_alone(tmp_path: Path) -> None:
    splits = two_sensors(samples=60)
    row = run_job(job_of(splits, "model=own_models.Same"), splits, tmp_path)
    told = row["portfolio"]
    assert told["closed_form"] == {"left_out": "a model of one's own has no frozen features"}
    assert "moddrop" not in {one["candidate"] for one in told["rungs"][0]["candidates"]}
    assert len(told["chosen"]) == 1
    assert load_saved_model(tmp_path, model="own_models.Same").row["method"] == "auto"

"""The recipe that needs no tuning: its budget, its schedule, its choice of an epoch, and who takes it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from equipoise import EW, MIMO, MSL, OGM, Unimodal
from equipoise.data.bundled import two_sensors
from equipoise.data.feed import epoch_rows, epoch_steps
from equipoise.data.source import DataSet, all_data
from equipoise.models.evaluation import evaluating
from equipoise.models.fusion_model import FusionModel
from equipoise.models.task import Classification, MultiLabel, Regression
from equipoise.study.registry import entries
from equipoise.study.search import run_search
from equipoise.study.study import plan
from equipoise.study.tuning import search_of
from equipoise.training import recipe
from equipoise.training.launch import check_launch
from equipoise.training.optimisers import make_optimizer, make_schedule, warmup_cosine
from equipoise.training.presets import all_presets, preset_for
from equipoise.training.recipe import RECIPE, epochs_for, resolved, steps_for
from equipoise.training.settings import Settings
from equipoise.training.step import build_model, evaluate, losses_of, task_for
from equipoise.training.train import Run, train

DATA = two_sensors(samples=200)
SHORT = RECIPE.changed({"epochs": 2, "batch": 16, "features": 8})

# -- the budget --


@pytest.mark.parametrize("samples", [300, 323, 494, 960, 1_860, 8_788, 30_000, 100_000, 300_000])
def test_the_budget_from_small_to_large_data(samples: int) -> None:
    epochs = epochs_for(samples, RECIPE.batch)
    steps = epochs * epoch_steps(samples, RECIPE.batch)
    assert 1_000 <= steps <= 20_000
    assert abs(steps - steps_for(samples)) <= epoch_steps(samples, RECIPE.batch) / 2
    assert 1 <= epochs <= 400


def test_more_samples_get_more_steps_and_fewer_passes() -> None:
    sizes = [10, 100, 300, 1_000, 3_000, 10_000, 100_000, 300_000, 10**7]
    assert sorted(map(steps_for, sizes)) == [steps_for(size) for size in sizes]
    passes = [epochs_for(size, 64) for size in sizes]
    assert sorted(passes, reverse=True) == passes
    assert (passes[0], passes[-1]) == (400, 1)


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_steps_of_an_epoch_are_its_batches(size: int) -> None:
    for count in (1, 2, 3, 7, 8, 63, 64, 65, 66, 128, 129):
        assert epoch_steps(count, size) == len(epoch_rows(count, size, torch.Generator()))


def test_auto_becomes_a_number_once_and_numbers_stay() -> None:
    assert resolved(RECIPE, 1_000).epochs == 94
    assert resolved(RECIPE.changed({"batch": 1_000}), 10_000).epochs == 377
    assert resolved(Settings(), 1_000) == Settings()
    with pytest.raises(TypeError, match="epochs=auto: expected a number"):
        _ = RECIPE.passes


def test_the_recipe_by_hand() -> None:
    said: dict[str, Any] = {"batch": 64, "lr": 2e-3, "optimizer": "adamw", "weight_decay": 0.05}
    said |= {"schedule": "warmup-cosine", "average": 0.999, "clip": 5.0, "label_smoothing": 0.1}
    assert Settings(epochs="auto", augment="auto", select="last", **said) == RECIPE


# -- who takes it --


def test_a_run_and_the_jobs_of_a_study_know_their_number() -> None:
    run = Run(DATA, MIMO(), RECIPE.changed({"features": 8}))
    assert run.settings.epochs == epochs_for(len(DATA.train), 64)
    chosen = entries(["mimo", "msl"], ["features=8"], preset_for("auto", "mine.npz"))
    parts = {0: two_sensors(samples=300), 1: two_sensors(samples=3_000)}
    source = DataSet("generated", lambda fold: parts[fold or 0], 2, "")
    jobs, _ = plan(chosen, source, [0], [0, 1])
    assert [job.facts()["run"]["epochs"] for job in jobs] == [
        epochs_for(len(parts[fold].train), 64) for fold in (0, 0, 1, 1)
    ]
    assert len({job.entry.settings.epochs for job in jobs}) == 2


def test_a_search_knows_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "MOST_EPOCHS", 2)
    search = search_of("msl", ["lr=0.001,0.002", "features=8", "batch=500"], preset_for("auto", "generated"))
    parts = two_sensors(samples=90)
    found = run_search(search, DataSet("generated", lambda _: parts, 0, ""), 1, tmp_path, workers=1, quiet=True)
    assert found.search.base.settings.epochs == 2


def test_auto_means_the_published_preset_or_the_recipe() -> None:
    for data in ("mine.npz", "", "watch", "generated", "recipe", "smartwatch"):
        found = preset_for("auto", data)
        assert found is not None
        assert (found.name, found.settings) == ("recipe", RECIPE)
    for name in ("cremad", "ave", "mosei"):
        assert preset_for("auto", name) == all_presets()[name]
    assert preset_for("none", "watch") is None


def test_the_smartwatch_keeps_its_plain_settings() -> None:
    preset = all_presets()["smartwatch"]
    assert (preset.settings, preset.params) == (Settings(encoder="cnn1d"), {})
    assert preset.data in all_data()


def test_published_presets_use_nothing_of_the_recipe() -> None:
    new = {
        "average": 0.0,
        "label_smoothing": 0.0,
        "augment": "none",
        "select": "last",
        "optimizer": "sgd",
        "clip": None,
    }
    for preset in all_presets().values():
        if preset.name != "recipe":
            assert {name: getattr(preset.settings, name) for name in new} == new, preset.name
            assert preset.settings.schedule in ("step", "constant")
            assert isinstance(preset.settings.epochs, int)


def test_training_without_settings_takes_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def stop(*given: Any) -> None:
        taken.append(given[3])
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "__init__", stop)
    with pytest.raises(KeyboardInterrupt):
        train(DATA, MIMO())
    assert taken == [RECIPE]


def test_it_learns() -> None:
    result = train(DATA, EW(), RECIPE.changed({"features": 8, "epochs": 40}))
    assert result.curves[-1]["validation"]["fused"] > 0.9


@pytest.mark.parametrize("task", [MultiLabel(["a", "b"]), Regression(["x", "y"])], ids=["labels", "numbers"])
def test_other_tasks_train_by_it(task: Any) -> None:
    parts = {name: replace(part, label=(part.inputs["easy"][:, :2] > 0).float()) for name, part in DATA.parts.items()}
    result = train(replace(DATA, **parts, classes=task.names, task=task), MIMO(), SHORT)
    assert len(result.curves) == 2


# -- warm-up and cosine --


def test_the_factor_by_hand() -> None:
    factors = [warmup_cosine(step, 100) for step in range(100)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[5:] == pytest.approx([(1 + math.cos(math.pi * k / 96)) / 2 for k in range(1, 96)])
    assert warmup_cosine(100, 100) == pytest.approx(0, abs=1e-12)
    assert warmup_cosine(0, 1) == 1
    assert [warmup_cosine(step, 0) for step in range(1)] == [1]


@pytest.mark.parametrize("recorded", [False, True])
def test_the_rate_moves_at_every_step_in_its_tensor(recorded: bool) -> None:
    settings = Settings(epochs=4, lr=2.0, schedule="warmup-cosine", optimizer="sgd", layer_decay=1.0)
    model = torch.nn.Linear(2, 2)
    optimizer = make_optimizer(model, settings)
    if recorded:
        optimizer.param_groups[0]["lr"] = torch.tensor(2.0)
    held = optimizer.param_groups[0]["lr"]
    schedule, found = make_schedule(optimizer, settings, 10), []
    for _ in range(40):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    assert found == pytest.approx([2 * warmup_cosine(step, 40) for step in range(40)])
    assert not recorded or optimizer.param_groups[0]["lr"] is held


def test_a_run_moves_its_rate_step_by_step_and_not_at_the_end_of_an_epoch() -> None:
    run = Run(DATA, MSL(), Settings(epochs=2, batch=16, lr=0.5, features=8, schedule="warmup-cosine"))
    count, rates = epoch_steps(len(DATA.train), 16), []
    for _ in range(2):
        rates.append(float(run.step.optimizer.param_groups[0]["lr"]))
        rates += [float(run.step.optimizer.param_groups[0]["lr"]) for _ in run.steps()][:-1]
        run.end_epoch()
    assert rates == pytest.approx([0.5 * warmup_cosine(step, 2 * count) for step in range(2 * count)])


# -- label smoothing --


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 5.0])])
def test_smoothing_is_that_of_torch_in_training_alone(weight: torch.Tensor | None) -> None:
    output, label = torch.randn(20, 3), torch.arange(20) % 3
    task = Classification(["a", "b", "c"], weight, smoothing=0.2)
    wanted = F.cross_entropy(output, label, weight, reduction="none", label_smoothing=0.2)
    assert torch.equal(task.loss(output, label), wanted)
    assert torch.equal(task.loss(output, label, weighted=False), F.cross_entropy(output, label, reduction="none"))


def test_the_setting_reaches_training_and_no_evaluation() -> None:
    torch.manual_seed(0)
    smooth = build_model(DATA, MSL(), Settings(features=8, label_smoothing=0.3))
    torch.manual_seed(0)
    plain = build_model(DATA, MSL(), Settings(features=8))
    part = DATA.train
    losses = losses_of(smooth.eval(), MSL(), part)[1]
    for name, output in plain.eval()(part.inputs).items():
        wanted = F.cross_entropy(output, part.label, reduction="none", label_smoothing=0.3)
        torch.testing.assert_close(losses[name], wanted)
    assert evaluate(smooth, DATA.validation) == evaluate(plain, DATA.validation)
    assert vars(DATA.task)["smoothing"] == 0  # the task of the data is as it was


def test_labels_and_numbers_have_no_smoothing() -> None:
    for task in (MultiLabel(["a", "b", "c"]), Regression(["x", "y", "z"])):
        splits = replace(DATA, task=task, train=replace(DATA.train, label=torch.rand(len(DATA.train), 3)))
        made = task_for(splits, Settings(label_smoothing=0.5))
        output = torch.randn(len(DATA.train), 3)
        assert torch.equal(made.loss(output, splits.train.label), task.loss(output, splits.train.label))


def test_methods_that_read_probabilities_off_losses_read_them_unsmoothed() -> None:
    found = {}
    for smoothing in (0.0, 0.4):
        torch.manual_seed(0)
        model, balancer = build_model(DATA, OGM(), Settings(features=8, label_smoothing=smoothing)), OGM()
        balancer.attach(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
        losses_of(model, balancer, DATA.train)
        found[smoothing] = balancer.table.values
    torch.testing.assert_close(found[0.0], found[0.4], equal_nan=True)


# -- the epoch of the least loss --


def smoothed(model: FusionModel, names: list[str]) -> float:
    """The validation loss, by torch."""
    with evaluating(model), torch.no_grad():
        outputs = model(DATA.validation.inputs)
    losses = [F.cross_entropy(outputs[name], DATA.validation.label, label_smoothing=0.2) for name in names]
    return float(torch.stack(losses).mean())


@pytest.mark.parametrize("method", [MSL, Unimodal])
def test_the_epoch_of_the_least_validation_loss_is_kept(method: Any) -> None:
    settings = Settings(epochs=8, batch=16, lr=0.3, features=8, select="loss", label_smoothing=0.2)
    run = Run(DATA, method(), settings)
    losses = []
    while run.state.epoch < 8:
        run.validate(run.train_epoch())
        losses.append(smoothed(run.model, ["fused"] if method is MSL else ["easy", "hard"]))
    found = run.result()
    assert found.epoch == 1 + losses.index(min(losses)) < 8
    kept = smoothed(found.model, ["fused"] if method is MSL else ["easy", "hard"])
    assert kept == pytest.approx(min(losses))


def test_patience_then_counts_by_loss() -> None:
    settings = Settings(epochs=60, batch=16, lr=0.3, features=8, select="loss", patience=3)
    found = train(DATA, MSL(), settings)
    assert len(found.curves) == found.epoch + 3 < 60


# -- refused --


def test_shards_have_no_average(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    settings = RECIPE.changed({"parallel": "fsdp", "device": "cpu"})
    with pytest.raises(ValueError, match=r"parallel=fsdp: expected average=0, found 0.999: .* type average=0"):
        check_launch(settings, MIMO())
    check_launch(settings.changed({"average": 0.0}), MIMO())

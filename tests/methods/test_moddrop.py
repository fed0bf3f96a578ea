"""ModDrop: joint training whose model drops modalities, in a loop, in `train`, by name, and where it is refused."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise import MSL, LateFusion, ModDrop
from equipoise.data.bundled import two_sensors
from equipoise.data.source import all_data
from equipoise.models.encoded import kept_modalities
from equipoise.study.compare import controls
from equipoise.study.job import run_job
from equipoise.study.registry import all_methods, entries
from equipoise.study.study import plan
from equipoise.testing import SmallModel, names
from equipoise.training.settings import Settings
from equipoise.training.step import build_model
from equipoise.training.train import train
from equipoise.util.errors import BadInput

SHORT = Settings(epochs=2, batch=32, lr=0.05, features=8, device="cpu")
OWN = SHORT.changed({"model": "own_models.Same"})


def late_fusion(dropout: float) -> LateFusion:
    torch.manual_seed(0)
    return LateFusion({"a": nn.Linear(3, 4), "b": nn.Linear(5, 4), "c": nn.Linear(2, 4)}, 4, dropout=dropout)


@pytest.mark.parametrize("dropout", [0.1, 0.3, 0.8])
def test_the_gradient_is_that_of_features_of_which_some_are_zeroed(dropout: float) -> None:
    model = late_fusion(dropout)
    balancer, label = ModDrop(dropout).attach(model), torch.arange(40) % 4
    inputs = {name: torch.randn(40, encoder.in_features) for name, encoder in model.encoders.items()}
    torch.manual_seed(7)
    balancer({name: F.cross_entropy(output, label) for name, output in model(inputs).items()}).backward()
    torch.manual_seed(7)
    kept = kept_modalities({name: torch.ones(40, 1) for name in inputs}, dropout)
    features = [kept[name][:, None] * encoder(inputs[name]) for name, encoder in model.encoders.items()]
    fused = F.cross_entropy(model.fusion(dict(zip(inputs, features, strict=True))), label)
    parameters = [*model.encoders.parameters(), *model.fusion.parameters()]
    for parameter, expected in zip(parameters, torch.autograd.grad(fused, parameters), strict=True):
        torch.testing.assert_close(parameter.grad, expected)
    assert 0 < sum(float((one == 0).sum()) for one in kept.values()) < 3 * 40


def test_it_trains_as_joint_training_of_such_a_model_to_the_bit() -> None:
    splits = two_sensors()
    found = train(splits, ModDrop(0.4), SHORT).model.state_dict()
    expected = train(splits, MSL(), SHORT.changed({"dropout": 0.4})).model.state_dict()
    plain = train(splits, MSL(), SHORT).model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert any(not torch.equal(found[name], plain[name]) for name in plain)


def test_its_own_probability_comes_before_that_of_the_run() -> None:
    run = SHORT.changed({"dropout": 0.7})
    assert [build_model(two_sensors(), one, run).dropout for one in (ModDrop(0.2), MSL())] == [0.2, 0.7]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (late_fusion(0.0), "LateFusion with dropout=0.0"),
        (late_fusion(0.5), "LateFusion with dropout=0.5"),
        (SmallModel(names(2)), "SmallModel with dropout=0.0"),
    ],
)
def test_a_model_that_does_not_drop_is_refused(model: nn.Module, found: str) -> None:
    with pytest.raises(BadInput, match=f"^ModDrop: expected a model with dropout=0.3, found {found}$"):
        ModDrop().attach(model)


def test_a_model_of_ones_own_is_refused_with_the_reason_or_left_out_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "ModDrop needs a model that is built with dropout, and this one is not; choose msl, ew or mimo"
    with pytest.raises(BadInput, match=reason):
        train(two_sensors(), ModDrop(), OWN)
    words, data = ["model=own_models.Same", "features=6", "device=cpu"], all_data()["generated"]
    with pytest.raises(BadInput, match=reason):
        plan(entries(["msl", "moddrop"], words), data, [0], [None])
    jobs, _ = plan(entries(["all"], words), data, [0], [None])
    assert {job.entry.label for job in jobs} == set(all_methods()) - {"mcr", "moddrop"}
    assert f"moddrop is left out: {reason}" in capsys.readouterr().err


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_a_probability_is_checked(dropout: float) -> None:
    with pytest.raises(ValueError, match="dropout should be at least 0 and below 1"):
        ModDrop(dropout)


def test_words_and_the_row_of_a_run(tmp_path: Path) -> None:
    (entry,) = entries(["moddrop"], ["moddrop.dropout=0.2", "epochs=1", "device=cpu"])
    (job, *_), splits = plan([entry], all_data()["generated"], [0], [None], measure="quick")
    row = run_job(job, splits[None], tmp_path)
    assert (row["method"], row["params"], row["run"]["dropout"]) == ("moddrop", {"dropout": 0.2}, 0.0)
    with pytest.raises(ValueError, match=r"type run\.dropout=0\.2 or moddrop\.dropout=0\.2"):
        entries(["moddrop"], ["dropout=0.2"])


@pytest.mark.parametrize(("chosen", "added"), [(["mimo"], ["ew at λ/K", "moddrop"]), (["all"], ["ew at λ/K"])])
def test_the_controls_have_it_once(chosen: list[str], added: list[str]) -> None:
    assert [entry.label for entry in controls(entries(chosen), all_data()["generated"])] == added

"""The average of the weights: by hand, in a run, and given back to the bit."""

import copy

import pytest
import torch
from torch import nn

from equipoise import MIMO
from equipoise.data.bundled import two_sensors
from equipoise.training.average import WeightAverage
from equipoise.training.settings import Settings
from equipoise.training.step import evaluate
from equipoise.training.train import Run, train

DATA = two_sensors(samples=200)
SETTINGS = Settings(epochs=3, batch=16, lr=0.05, features=8, average=0.9)


def test_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    average = WeightAverage(model, 0.2)
    expected = 0.0
    for step, (weight, decay) in enumerate(zip((1.0, 5.0, -2.0, 3.0), (1 / 10, 2 / 11, 0.2, 0.2), strict=True)):
        assert decay == min(0.2, (1 + step) / (10 + step))
        with torch.no_grad():
            model.weight.fill_(weight)
        average.update()
        expected = decay * expected + (1 - decay) * weight
        with average.applied():
            assert float(model.weight.detach()) == pytest.approx(expected, rel=1e-6)
        assert float(model.weight.detach()) == weight
    average.apply()
    assert float(model.weight.detach()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_statistics_move_along_and_other_buffers_are_taken(dtype: torch.dtype) -> None:
    norm = nn.BatchNorm1d(4, dtype=dtype)
    model = nn.Sequential(nn.Linear(3, 4, dtype=dtype), norm)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    model.register_parameter("frozen", frozen)
    average, states = WeightAverage(model, 0.99), [copy.deepcopy(model.state_dict())]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        model(torch.randn(8, 3, dtype=dtype)).square().sum().backward()
        optimizer.step()
        average.update()
        states.append(copy.deepcopy(model.state_dict()))
    expected = states[0]
    for step, state in enumerate(states[1:]):
        decay = min(0.99, (1 + step) / (10 + step))
        for name, value in state.items():
            moves = name not in ("mask", "frozen") and "num_batches" not in name
            expected[name] = decay * expected[name] + (1 - decay) * value if moves else value
    before = copy.deepcopy(model.state_dict())
    with average.applied():
        torch.testing.assert_close(dict(model.state_dict()), dict(expected))
        with torch.no_grad():
            norm.get_buffer("running_mean").fill_(7.0)  # as ranks do that take over those of the first
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_state_is_taken_over_in_place() -> None:
    torch.manual_seed(0)
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    average, into = WeightAverage(model, 0.9), WeightAverage(other, 0.9)
    average.update()
    into.load_state_dict(copy.deepcopy(average.state_dict()))
    into.apply()
    assert torch.equal(other.weight, model.weight)
    assert float(into.state_dict()["steps"]) == 1


def test_a_run_validates_and_returns_its_average() -> None:
    run = Run(DATA, MIMO(), SETTINGS)
    mine = copy.deepcopy(run.model)
    seen = []
    for _ in range(SETTINGS.passes):
        seen += [copy.deepcopy(run.model.state_dict()) for _ in run.steps()]
        record = run.validate(run.end_epoch())
        assert all(torch.equal(seen[-1][name], value) for name, value in run.model.state_dict().items())
    expected = mine.state_dict()
    for step, state in enumerate(seen):
        decay = min(0.9, (1 + step) / (10 + step))
        for name, value in state.items():
            expected[name] = decay * expected[name] + (1 - decay) * value if value.is_floating_point() else value
    mine.load_state_dict(expected)
    found = run.result().model
    torch.testing.assert_close(dict(found.state_dict()), dict(expected), rtol=1e-4, atol=1e-5)
    told = {name: values["accuracy"] for name, values in evaluate(found, DATA.validation).items()}
    assert record["validation"] == pytest.approx(told)
    assert any(not torch.equal(seen[-1][name], value) for name, value in found.state_dict().items())


def test_training_itself_is_the_same_to_the_bit() -> None:
    plain, averaged = (train(DATA, MIMO(), SETTINGS.changed({"average": one})) for one in (0.0, 0.9))
    assert [one["train"] for one in plain.curves] == [one["train"] for one in averaged.curves]


def test_the_best_epoch_is_one_of_the_average() -> None:
    result = train(DATA, MIMO(), SETTINGS.changed({"select": "best", "lr": 0.3}))
    best = result.curves[result.epoch - 1]["validation"]
    told = {name: values["accuracy"] for name, values in evaluate(result.model, DATA.validation).items()}
    assert best == pytest.approx(told)

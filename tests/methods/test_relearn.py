"""Relearn: how far encoders are put back by hand, when, what is left alone; purities; and training."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise import LateFusion, Relearn
from equipoise.data.bundled import two_sensors
from equipoise.models import purity
from equipoise.testing import SmallModel, attached, batch, losses_of, names
from equipoise.training import purities as computed
from equipoise.training import train as training
from equipoise.training.settings import Settings
from equipoise.training.train import Run, train
from everything import parameters_of, taught
from tasks_made_up import splits_of


def purities(**gaps: float) -> dict[str, dict[str, float]]:
    return {name: {"purity_train": 0.4 + gap, "purity_validation": 0.4} for name, gap in gaps.items()}


def step(balancer: Relearn, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    optimizer.zero_grad()
    balancer(losses_of(model, batch(names(2), seed=seed))).backward()
    optimizer.step()


def test_by_hand() -> None:
    model = SmallModel(names(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = Relearn(strength=3.0, every=1, times=1).attach(model, optimizer=optimizer)
    initial = parameters_of(model)
    step(balancer, model, optimizer)
    trained = parameters_of(model)
    balancer.end_epoch(purities(audio=0.2, video=-0.1))
    for name, tensor in parameters_of(model).items():
        assert torch.equal(tensor, trained[name])  # nothing happens before the next step
    twin = copy.deepcopy(model)
    plain = torch.optim.SGD(twin.parameters(), lr=0.1)
    losses_of(twin, batch(names(2), seed=1))["fused"].mean().backward()
    plain.step()
    step(balancer, model, optimizer, seed=1)
    amounts = {"audio": math.tanh(0.6), "video": math.tanh(0.3)}
    for name, tensor in twin.named_parameters():
        if name.startswith("heads."):
            continue  # they learn beside
        block = name.split(".")[1]
        amount = amounts[block] if name.startswith("encoders.") else 0.0
        expected = (1 - amount) * tensor.detach() + amount * initial[name]
        torch.testing.assert_close(parameters_of(model)[name], expected, rtol=1e-6, atol=1e-7)
    after = parameters_of(model)
    balancer.end_epoch()  # once is all
    step(balancer, model, torch.optim.SGD(model.parameters(), lr=0.0))
    for name, tensor in after.items():
        assert torch.equal(parameters_of(model)[name], tensor)


def test_without_an_optimiser_it_is_done_at_once() -> None:
    model = SmallModel(names(2))
    balancer = Relearn(strength=1.0, every=1).attach(model)
    initial = parameters_of(model)
    balancer(losses_of(model, batch(names(2)))).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0
    balancer.end_epoch(purities(audio=0.5, video=0.0))
    for name, tensor in parameters_of(model).items():
        put_back = math.tanh(0.5) if name.startswith("encoders.audio") else 0.0
        torch.testing.assert_close(tensor, initial[name] + 1 - put_back, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("every", "times", "asked"), [(1, 2, [1, 2]), (2, 2, [2, 4]), (3, 1, [3]), (2, 0, [])])
def test_purities_are_asked_for_when_they_are_needed(every: int, times: int, asked: list[int]) -> None:
    balancer = attached(Relearn(every=every, times=times), SmallModel(names(2)))
    found = []
    for epoch in range(1, 8):
        if balancer.metrics_due:
            found.append(epoch)
            with pytest.raises(ValueError, match=r"Relearn learns from.*'audio': 'purity_train'"):
                balancer.end_epoch({"audio": {"loss": 1.0}, "video": {"loss": 1.0}})
        balancer.end_epoch(purities(audio=0.1, video=0.1) if balancer.metrics_due else None)
    assert found == asked


def test_batch_statistics_momentum_and_heads_are_left_alone() -> None:
    torch.manual_seed(0)
    encoders = {name: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for name in names(2)}
    model = LateFusion(encoders, 3, unimodal="detached").double()
    states = []
    for strength in (0.0, 100.0):
        twin = copy.deepcopy(model)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
        balancer = Relearn(strength=strength, every=1).attach(twin, optimizer=optimizer)
        step(balancer, twin, optimizer)
        balancer.end_epoch(purities(audio=0.3, video=0.3))
        step(balancer, twin, optimizer, seed=1)
        states.append((twin.state_dict(), optimizer.state_dict()["state"]))
    weights = {name for name, _ in model.encoders.named_parameters(prefix="encoders")}
    for name, tensor in states[0][0].items():
        if name in weights:
            torch.testing.assert_close(states[1][0][name], model.state_dict()[name], rtol=0, atol=1e-6)  # all the way
        else:
            assert torch.equal(states[1][0][name], tensor), name
    for before, after in zip(states[0][1].values(), states[1][1].values(), strict=True):
        assert torch.equal(before["momentum_buffer"], after["momentum_buffer"])


def test_attached_again_it_remembers_the_start_and_another_model_has_its_own() -> None:
    model, other = SmallModel(names(2)), SmallModel(names(2), seed=1)
    balancer = attached(Relearn(strength=100.0, every=1), model)
    initial, theirs = parameters_of(model), parameters_of(other)
    balancer(losses_of(model, batch(names(2))))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    assert isinstance(balancer, Relearn)
    balancer.attach(model, optimizer=optimizer)  # as after compiling
    balancer.end_epoch(purities(audio=0.3, video=0.3))
    step(balancer, model, optimizer)
    for name, tensor in parameters_of(model).items():
        torch.testing.assert_close(tensor, initial[name] + (not name.startswith("encoders.")), rtol=0, atol=1e-6)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.0)
    balancer.attach(other, optimizer=optimizer)
    step(balancer, other, optimizer)
    balancer.end_epoch(purities(audio=0.3, video=0.3))
    step(balancer, other, optimizer)
    for name, tensor in parameters_of(other).items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-6)


def test_a_recorded_step_is_recorded_again_when_encoders_are_put_back() -> None:
    model = SmallModel(names(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = Relearn(every=2).attach(model, optimizer=optimizer)
    step(balancer, model, optimizer)
    assert balancer.host_values() == {"due": (0.0, 0.0)}
    taught(balancer, names(2))
    assert balancer.host_values() == {"due": (1.0, 1.0)}
    step(balancer, model, optimizer)
    assert balancer.host_values() == {"due": (0.0, 0.0)}


def test_a_layer_that_is_frozen_later_does_not_get_weights_of_another() -> None:
    """Where encoders are put back all the way, a tensor is what it was at first, or stands still."""
    torch.manual_seed(0)
    encoders = {name: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 4)) for name in names(2)}
    model = LateFusion(encoders, 3, unimodal="detached", features=dict.fromkeys(names(2), 4)).double()
    initial = parameters_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = Relearn(strength=100.0, every=1).attach(model, optimizer=optimizer)
    step(balancer, model, optimizer)
    frozen = {name for name in initial if name.startswith("encoders.") and ".0." in name}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    trained = parameters_of(model)
    balancer.end_epoch(purities(audio=0.5, video=0.5))
    step(balancer, model, optimizer)
    for name, tensor in parameters_of(model).items():
        if name.startswith("encoders."):
            ends = (trained[name], initial[name]) if name in frozen else (initial[name],)
            assert any(torch.allclose(tensor, end, rtol=0, atol=1e-6) for end in ends), name


# -- purity --


def test_purity_of_classes_that_are_apart_and_of_noise() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    apart = torch.randn(300, 5, generator=random) * 0.01 + torch.nn.functional.one_hot(labels, 5)
    assert purity(apart, labels, 3) == 1.0
    noise = torch.randn(300, 5, generator=random)
    assert 1 / 3 <= purity(noise, labels, 3) < 0.5
    assert purity(torch.ones(300, 5), labels, 3) == pytest.approx(1 / 3)  # one cluster
    assert purity(apart[:2], labels[:2], 3) == 1.0  # fewer samples than clusters
    assert purity(apart[:0], labels[:0], 3) == 0.0


def test_purity_is_that_of_the_authors() -> None:
    from sklearn.cluster import KMeans
    from sklearn.metrics import accuracy_score
    from sklearn.preprocessing import MinMaxScaler

    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 200)
    features = random.normal(size=(200, 6)) + 4.0 * np.eye(6)[labels]
    found = KMeans(n_clusters=4, n_init=10, random_state=0).fit_predict(
        MinMaxScaler(feature_range=(-1, 1)).fit_transform(features)
    )
    voted = np.zeros_like(labels)
    for cluster in np.unique(found):
        voted[found == cluster] = np.bincount(labels[found == cluster]).argmax()
    expected = accuracy_score(labels, voted)
    assert 0.5 < expected < 1
    assert purity(torch.tensor(features), torch.tensor(labels), 4) == pytest.approx(expected)


def test_what_is_wrong_with_features_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"features should be one vector per sample.*labels should be one class"):
        purity(torch.zeros(3, 2, 2), torch.zeros(2), 2)


# -- training --

SETTINGS = Settings(epochs=4, batch=20, lr=0.05, features=8)


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_training_resumes_to_the_same_bits(average: float, tmp_path: Path) -> None:
    splits, settings = two_sensors(samples=90), SETTINGS.changed({"average": average})
    whole = train(splits, Relearn(every=2, strength=30.0), settings)

    def stop(record: dict[str, object]) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(splits, Relearn(every=2, strength=30.0), settings, folder=tmp_path, on_epoch=stop, checkpoint_seconds=0)
    resumed = train(splits, Relearn(every=2, strength=30.0), settings, folder=tmp_path)
    joint = train(splits, Relearn(times=0), settings)
    moved = 0
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name]), name
        moved += not torch.equal(value, joint.model.state_dict()[name])
    assert moved


def test_training_gives_purities_in_the_epochs_that_ask_and_ends_with_what_it_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    splits, balancer = two_sensors(samples=90), Relearn(every=2)
    run = Run(splits, balancer, SETTINGS)

    def noted(*given: Any) -> dict[str, dict[str, float]]:
        asked.append(run.state.epoch)
        return computed.purities(*given)

    monkeypatch.setattr(training, "purities", noted)
    for _ in range(4):
        run.validate(run.train_epoch())
    assert asked == [2, 4]
    joint = Run(splits, Relearn(every=2, strength=0.0), SETTINGS)
    for _ in range(2):
        joint.validate(joint.train_epoch())
    again = Run(splits, Relearn(every=2, strength=30.0), SETTINGS)
    for _ in range(2):
        again.validate(again.train_epoch())
    for name, value in again.result().model.state_dict().items():
        assert torch.equal(value, joint.model.state_dict()[name]), name


def test_samples_without_a_sensor_do_not_count_for_it() -> None:
    splits = splits_of("classes", gaps=0.4)
    run = Run(splits, Relearn(), Settings(epochs=1, batch=16, features=8))
    found = computed.purities(run.model, {"purity_train": run.feed})
    run.model.eval()
    part = splits.train.ready()
    features = run.model.features(part.inputs)
    for name, vectors in features.items():
        here: Tensor = part.present.get(name, torch.ones(len(part), dtype=torch.bool))
        expected = purity(vectors[here], part.label[here], splits.task.size)
        assert found[name]["purity_train"] == pytest.approx(expected, abs=0.02)
    assert set(found) == set(splits.modalities)
    assert any(bool((~mask).any()) for mask in part.present.values())


@pytest.mark.parametrize("kind", ["labels", "regression"])
def test_other_tasks_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="pure clusters of features are in classes"):
        train(splits_of(kind), Relearn(), Settings(epochs=1, batch=16))

"""SMP: whose turn it is by hand, ranks by order and by accuracy, what waiting means under each optimiser, training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from equipoise import SMP, Balancer, LateFusion
from equipoise.data.bundled import two_sensors
from equipoise.testing import SmallModel, attached, batch, losses_of, names
from equipoise.training.settings import Settings
from equipoise.training.train import train


def turns(balancer: Balancer, accuracies: Sequence[Sequence[float]], count: int) -> list[list[float]]:
    """The factors of each epoch, by modality; accuracies of the epochs that end."""
    model = SmallModel(names(count))
    balancer.attach(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    rows = []
    for epoch in accuracies:
        balancer(losses_of(model, batch(names(count)))).backward()
        rows.append([float(balancer.table.at("fused", name)) for name in names(count)])
        metrics = dict(zip(names(count), epoch, strict=True))
        balancer.end_epoch({name: {"accuracy": accuracy} for name, accuracy in metrics.items()})
    return rows


def test_by_hand_with_an_order() -> None:
    balancer = SMP(stage=2, order=["text", "audio", "video"])
    rows = turns(balancer, [[0.5] * 3] * 6, 3)
    text, audio, every = [0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]
    assert rows == [text, text, audio, audio, every, every]


def test_by_hand_ranked_after_two_epochs() -> None:
    accuracies = [[0.1, 0.2, 0.3], [0.6, 0.4, 0.5], [0.0, 0.9, 0.0], [0.0, 0.9, 0.0], [0.9, 0.0, 0.9]]
    rows = turns(SMP(stage=1, start=2), accuracies, 3)
    every, video, text = [1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
    assert rows == [every, every, video, text, every]  # by the second epoch, and by no later one


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("stage", [1, 3])
def test_each_but_the_strongest_leads_once_for_a_stage(count: int, stage: int) -> None:
    random = torch.Generator().manual_seed(count)
    accuracies = torch.rand(2 + stage * count, count, generator=random).tolist()
    rows = turns(SMP(stage=stage), accuracies, count)
    weakest_first = sorted(range(count), key=lambda place: accuracies[0][place])
    for epoch, row in enumerate(rows):
        place = (epoch - 1) // stage
        alone = 0 <= place < count - 1
        assert row == [float(not alone or weakest_first[place] == one) for one in range(count)]


def test_of_equals_the_first_named_is_first() -> None:
    assert turns(SMP(), [[0.5, 0.5], [0.5, 0.5]], 2)[1] == [1.0, 0.0]


def test_accuracies_are_asked_for_once() -> None:
    balancer = SMP(start=2)
    model = SmallModel(names(2))
    balancer.attach(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    balancer.end_epoch()
    with pytest.raises(ValueError, match=r"SMP learns from.*'audio': 'accuracy', 'video': 'accuracy'"):
        balancer.end_epoch()
    balancer.end_epoch({name: {"accuracy": 0.5} for name in names(2)})
    balancer.end_epoch()
    assert balancer.learning == ["audio"]


def test_an_order_asks_for_nothing() -> None:
    balancer = SMP(stage=1, order=["video", "audio"])
    model = SmallModel(names(2))
    balancer.attach(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert balancer.learning == ["video"]
    balancer.end_epoch()
    assert balancer.learning == ["audio", "video"]


def test_orders_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"stage should be at least one epoch.*order should name each modality once"):
        SMP(stage=0, order=["audio", "audio"])
    with pytest.raises(ValueError, match="start should be at least 1, or an order given"):
        SMP(start=0)
    for order, told in (
        (["audio", "vidoe"], r"SMP: unknown modality 'vidoe' is none of 'audio', 'video'\. Did you mean 'video'\?"),
        (["audio"], r"SMP: order should have one entry for each of \['audio', 'video'\], found \['audio'\]"),
    ):
        with pytest.raises(ValueError, match=told):
            attached(SMP(order=order), SmallModel(names(2)))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "plain SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "SGD with momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_what_waiting_means(kind: str) -> None:
    """Weights stand still to the bit but for momentum and decay of SGD; batch statistics follow the data."""
    torch.manual_seed(0)
    encoders = {name: nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4)) for name in names(2)}
    model = LateFusion(encoders, 3, unimodal="detached").double()
    optimizer = OPTIMIZERS[kind](model)
    balancer = SMP(stage=1, order=["video", "audio"], start=1).attach(model, optimizer=optimizer)
    for step in range(2):  # the first together, so that there is momentum
        before = copy.deepcopy(model.state_dict())
        balancer(losses_of(model, batch(names(2), seed=step))).backward()
        optimizer.step()
        optimizer.zero_grad()
        balancer.end_epoch()
    after = model.state_dict()
    still = {key for key in before if key.startswith("encoders.") and torch.equal(before[key], after[key])}
    audio = {f"encoders.audio.{key}" for key in ("0.weight", "1.weight", "1.bias")}
    assert still == (set() if kind == "SGD with momentum" else audio)
    assert "encoders.audio.1.running_mean" not in still


def test_training_ranks_by_the_validation_part_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    splits, settings = two_sensors(samples=90), Settings(epochs=5, batch=20, lr=0.05, optimizer="adamw", features=8)
    whole = train(splits, SMP(stage=2), settings)
    accuracies = whole.curves[0]["validation"]
    weak, strong = sorted(("easy", "hard"), key=lambda name: accuracies[name])
    rows = [record["table"]["fused"] for record in whole.curves]
    assert [row[weak] for row in rows] == [1.0] * 5
    assert [row[strong] for row in rows] == [1.0, 0.0, 0.0, 1.0, 1.0]

    def stop(record: dict[str, object]) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(splits, SMP(stage=2), settings, folder=tmp_path, on_epoch=stop, checkpoint_seconds=0)
    resumed = train(splits, SMP(stage=2), settings, folder=tmp_path)
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name]), name

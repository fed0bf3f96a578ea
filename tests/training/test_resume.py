"""An epoch that is killed half-way goes on from there, to the same bits."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from equipoise import MIMO
from equipoise.data.bundled import two_sensors
from equipoise.data.splits import Part, Splits
from equipoise.training import checkpoint
from equipoise.training.checkpoint import Checkpoints
from equipoise.training.recipe import RECIPE
from equipoise.training.settings import Settings
from equipoise.training.train import Run, train
from killed import Killed, dying

DATA = two_sensors(samples=300)
SETTINGS = Settings(epochs=3, batch=16, features=8, dropout=0.2, optimizer="adamw", select="best")


def _as_series(part: Part) -> Part:
    return replace(
        part, inputs={name: array.repeat_interleave(2, dim=1)[:, None] for name, array in part.inputs.items()}
    )


SERIES = replace(DATA, **{name: _as_series(part) for name, part in DATA.parts.items()})
BY_RECIPE = RECIPE.changed({"epochs": 3, "batch": 16, "features": 8, "dropout": 0.2, "select": "loss"})


@pytest.mark.parametrize(
    ("data", "settings", "after"),
    [
        *((DATA, SETTINGS, after) for after in (1, 5, 11, 12, 17, 30)),
        *((SERIES, BY_RECIPE, after) for after in (5, 12, 30)),  # all of the recipe, with samples that are varied
    ],
)
def test_killed_inside_an_epoch(
    data: Splits, settings: Settings, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = train(data, MIMO(), settings, seed=4)
    monkeypatch.setattr(Checkpoints, "due_within", lambda *_: True)
    dying(monkeypatch, after)
    with pytest.raises(Killed):
        train(data, MIMO(), settings, seed=4, folder=tmp_path, checkpoint_seconds=0)
    steps = -(-len(data.train) // settings.batch)
    epoch, batch = divmod(after, steps)
    expected = f"epoch-{epoch:05d}" + (f"-batch-{batch:07d}" if batch else "")
    assert checkpoint.checkpoints(tmp_path)[-1].name == expected
    torch.manual_seed(99)
    found = train(data, MIMO(), settings, seed=4, folder=tmp_path)
    for name, value in undisturbed.model.state_dict().items():
        assert torch.equal(value, found.model.state_dict()[name]), name
    told = [{key: record[key] for key in ("epoch", "train", "validation", "table")} for record in undisturbed.curves]
    assert [{key: record[key] for key in ("epoch", "train", "validation", "table")} for record in found.curves] == told


def test_an_epoch_lasts_as_long_as_its_sittings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes between two sittings is no training; whoever times epochs is told which of them are torn."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)

    def sitting() -> Run:
        run = Run(DATA, MIMO(), SETTINGS, 4, tmp_path)
        run.resume()
        return run

    first = sitting()
    next(first.steps())
    clock.now += 5
    first.checkpoints.save()
    clock.now += 1000
    run, told = sitting(), []
    monkeypatch.setattr(run.compiler, "update", lambda seconds, epoch, *, whole: told.append((seconds, epoch, whole)))
    records = []
    for _ in range(2):
        for _ in run.steps():
            clock.now += 1
        records.append(run.validate(run.end_epoch()))
    steps = -(-len(DATA.train) // SETTINGS.batch)
    assert [record["seconds"] for record in records] == [5 + steps - 1, steps]
    assert run.state.seconds == 5 + steps - 1 + steps
    assert told == [(5 + steps - 1, 1, False), (steps, 2, True)]

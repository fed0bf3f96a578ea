"""An epoch that is killed half-way goes on from there, to the same bits."""

from pathlib import Path

import pytest
import torch

from equipoise import MIMO, checkpoint
from equipoise.cadence import Cadence
from equipoise.data.feed import Feed
from equipoise.data.generated import two_sensors
from equipoise.settings import Settings
from equipoise.train import train

DATA = two_sensors(samples=300)
SETTINGS = Settings(epochs=3, batch=16, features=8, dropout=0.2, optimizer="adamw", select="best")


class Killed(Exception):  # noqa: N818
    """The end of a sitting."""


def dying(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let training die after so many batches, once."""
    left, healthy = [after], Feed.seed_views

    def seed_views(self: Feed, epoch: int, number: int) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Killed
        healthy(self, epoch, number)

    monkeypatch.setattr(Feed, "seed_views", seed_views)


@pytest.mark.parametrize("after", [1, 5, 11, 12, 17, 30])
def test_killed_inside_an_epoch(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = train(DATA, MIMO(), SETTINGS, seed=4)
    monkeypatch.setattr(Cadence, "due_within", lambda *_: True)
    dying(monkeypatch, after)
    with pytest.raises(Killed):
        train(DATA, MIMO(), SETTINGS, seed=4, folder=tmp_path, checkpoint_seconds=0)
    steps = -(-len(DATA.train) // SETTINGS.batch)
    epoch, batch = divmod(after, steps)
    expected = f"epoch-{epoch:05d}" + (f"-batch-{batch:07d}" if batch else "")
    assert checkpoint.checkpoints(tmp_path)[-1].name == expected
    torch.manual_seed(99)
    found = train(DATA, MIMO(), SETTINGS, seed=4, folder=tmp_path)
    for name, value in undisturbed.model.state_dict().items():
        assert torch.equal(value, found.model.state_dict()[name]), name
    told = [{key: record[key] for key in ("epoch", "train", "validation", "table")} for record in undisturbed.curves]
    assert [{key: record[key] for key in ("epoch", "train", "validation", "table")} for record in found.curves] == told

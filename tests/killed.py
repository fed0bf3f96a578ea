"""A training that dies in the middle, for tests of what is kept."""

import pytest

from equipoise.data.feed import Feed


class Killed(Exception):  # noqa: N818
    """The end of a training that was killed."""


def dying(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let training die at a call of `seed_views`, once: one call a batch, and two where a twin trains beside."""
    left, healthy = [after], Feed.seed_views

    def seed_views(self: Feed, epoch: int, number: int) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Killed
        healthy(self, epoch, number)

    monkeypatch.setattr(Feed, "seed_views", seed_views)

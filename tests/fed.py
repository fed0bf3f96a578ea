"""The batches that training would see, without the training."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from equipoise.data import Part
from equipoise.data.feed import Feed


def training(feed: Feed, rows: Sequence[Tensor], epoch: int = 0, first: int = 0) -> Iterator[Part]:
    """The batches of these rows in random views.

    Args:
        feed: Where they come from.
        rows: Which samples each batch has.
        epoch: Which epoch it is.
        first: How many batches of the epoch are done already; they are passed over.
    """
    for number, batch in enumerate(feed.batches(rows[first:]), first):
        feed.seed_views(epoch, number)
        yield feed.make(batch)

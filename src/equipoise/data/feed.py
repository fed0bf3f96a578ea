"""Bringing batches to the device: from memory there, or streamed from the memory map by threads that read ahead.

Threads and not processes: gathering rows runs outside of Python's lock, and a batch need not pass through a pipe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from equipoise.data.splits import Part

Mode = Literal["auto", "resident", "streamed"]
Batch: TypeAlias = "Tensor | Part"
"""A batch before it is made: the numbers of its rows, where the data is on the device, or its samples as stored."""

READERS = 4
AHEAD = 2  # batches in hand per reader
SHARE = 0.5  # of the device's free memory that data may take: the rest is the model's


def epoch_rows(count: int, size: int, shuffle: torch.Generator) -> list[Tensor]:
    """Every sample once, in a new order, in batches.

    A last batch of one is left out, since it has no batch statistics, unless one is all there is or what was asked for.
    """
    found = list(torch.randperm(count, generator=shuffle).split(size))
    if len(found[-1]) == 1 and count > 1 and size > 1:
        found.pop()
    return found


class Piece(NamedTuple):
    """What one of several processes takes of a micro-batch.

    The mean of a gradient over processes is that of the whole batch where each multiplies its own by `weight`, and the
    mean of a loss that of the whole micro-batch where it counts as `share`: they may have unequal numbers of samples.

    Args:
        rows: Which samples.
        weight: Processes × samples here / samples of the batch.
        share: Processes × samples here / samples of the micro-batch.
    """

    rows: Tensor
    weight: float = 1.0
    share: float = 1.0


def share_of_rank(rows: Tensor, rank: int = 0, ranks: int = 1, micro: int = 1) -> list[Piece]:
    """What one of several processes takes of a batch, in micro-batches: together they take every sample once.

    All have the same number of pieces, and none an empty one, since they meet in every step: where there are fewer
    samples than processes, some take a sample that counts for nothing.

    Args:
        rows: Of the batch, whatever the number of processes.
        rank: Which process.
        ranks: How many there are.
        micro: Micro-batches of the batch.
    """
    pieces = []
    for whole in rows.chunk(micro):
        own = whole.tensor_split(ranks)[rank]
        counted = ranks * len(own)
        pieces.append(Piece(own if len(own) else whole[:1], counted / len(rows), counted / len(whole)))
    return pieces


@final
class Feed:
    """Gives batches of a part on a device, as encoders read them.

    Args:
        part: The samples.
        device: Where batches are wanted.
        mode: "resident": the part is moved to the device once, as it is stored, and batches are gathered there.
            "streamed": it stays where it is, usually on disk. "auto": resident where it fits.
        seed: Of the random views of training: a batch's depend on this, the epoch, its number, and which of several
            processes takes it, and on nothing else.
        rank: Which process this is.
        ranks: How many train together.
    """

    def __init__(
        self, part: Part, device: torch.device | str, mode: Mode = "auto", seed: int = 0, rank: int = 0, ranks: int = 1
    ) -> None:
        self.device, self.seed, self.rank, self.ranks = torch.device(device), seed, rank, ranks
        self.resident = mode == "resident" or (mode == "auto" and fits(part, self.device))
        self.part = part.to(self.device) if self.resident else part
        self.random = torch.Generator(self.device)

    def __len__(self) -> int:
        return len(self.part)

    def fixed(self, batch: int) -> Iterator[Part]:
        """All samples in order, in the fixed view of evaluation."""
        for some in self.batches(list(torch.arange(len(self.part)).split(batch))):
            yield self.made(some, at_random=False)

    def own_fixed(self, batch: int) -> Iterator[tuple[Part, bool]]:
        """What this process takes of all samples, in order, in the fixed view, and whether it counts.

        Args:
            batch: Samples of all processes together.
        """
        pieces = [
            piece
            for rows in torch.arange(len(self.part)).split(batch)
            for piece in share_of_rank(rows, self.rank, self.ranks)
        ]
        found = self.batches([piece.rows for piece in pieces])
        for piece, some in zip(pieces, found, strict=True):
            yield self.made(some, at_random=False), piece.weight > 0

    def batches(self, rows: Sequence[Tensor]) -> Iterator[Batch]:
        """The batches of these rows, each on the device and still to be made."""
        return self._numbers(rows) if self.resident else self._streamed(rows)

    def seed_views(self, epoch: int, number: int) -> None:
        """Let the next batch that is made be number so-and-so of an epoch."""
        self.random.manual_seed(self.seed_of(epoch, number))

    def seed_of(self, epoch: int, number: int) -> int:
        """A seed for one batch of this process."""
        return mixed(self.seed, epoch, number, *([self.rank] if self.rank else []))

    def made(self, batch: Batch, *, at_random: bool = True) -> Part:
        """A batch as encoders read it: gathered where only its rows are known, then viewed."""
        stored = self.part.take(batch) if isinstance(batch, Tensor) else batch
        return stored.ready(self.random if at_random else None)

    def _numbers(self, rows: Sequence[Tensor]) -> Iterator[Tensor]:
        if rows:
            whole = torch.cat(list(rows)).to(self.part.label.device)  # in one go: every such copy waits for the device
            yield from whole.split([len(each) for each in rows])

    def _streamed(self, rows: Sequence[Tensor]) -> Iterator[Part]:
        pinned = self.device.type == "cuda"
        waiting: deque[Future[Part]] = deque()
        with ThreadPoolExecutor(READERS, thread_name_prefix="feed") as readers:
            try:
                for number, each in enumerate(rows):
                    waiting.append(readers.submit(_gathered, self.part, each, pinned))
                    if number >= READERS * AHEAD:
                        yield _sent(waiting.popleft().result(), self.device)
                while waiting:
                    yield _sent(waiting.popleft().result(), self.device)
            finally:  # the loop may end early
                for late in waiting:
                    late.cancel()


def fits(part: Part, device: torch.device) -> bool:
    """Whether a part may stay on a device: on the CPU what is in memory already, on a GPU what half of it can hold."""
    if device.type != "cuda":
        return part.rows is None
    return part.bytes <= SHARE * torch.cuda.mem_get_info(device)[0]


def _gathered(part: Part, rows: Tensor, pinned: bool) -> Part:
    some = part.take(rows)
    if not pinned:
        return some
    group = None if some.group is None else some.group.pin_memory()
    inputs = {name: array.pin_memory() for name, array in some.inputs.items()}
    return Part(inputs, some.label.pin_memory(), group, views=some.views)


def _sent(part: Part, device: torch.device) -> Part:
    group = None if part.group is None else part.group.to(device, non_blocking=True)
    inputs = {name: array.to(device, non_blocking=True) for name, array in part.inputs.items()}
    return Part(inputs, part.label.to(device, non_blocking=True), group, views=part.views)


def mixed(*numbers: int) -> int:
    """One seed from several."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % 2**63
    return seed

"""Batches on the device: gathered there, or streamed from the memory map by threads that read ahead.

Threads and not processes: gathering rows runs outside of Python's lock, and a batch need not pass through a pipe.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, NamedTuple, TypeAlias, final

import torch
from torch import Tensor

from equipoise.data.augment import augmentations_of, augmented
from equipoise.data.splits import Part

Mode = Literal["auto", "resident", "streamed"]
Batch: TypeAlias = "Tensor | Part"
"""A batch before its views: the numbers of its rows, where the data is on the device, or its samples as stored."""

READERS = 4
AHEAD = 2  # batches in hand per reader
SHARE = 0.5  # of the device's free memory that data may take: the rest is the model's


def epoch_rows(count: int, size: int, shuffle: torch.Generator) -> list[Tensor]:
    """Return the rows of every sample once, in a new order, in batches.

    A last batch of one is left out, since it has no batch statistics, unless one is all there is or what was asked for.
    """
    batches = list(torch.randperm(count, generator=shuffle).split(size))
    return batches[:-1] if len(batches[-1]) == 1 and count > 1 and size > 1 else batches


def epoch_steps(count: int, size: int) -> int:
    """Return how many batches `epoch_rows` gives."""
    left_out = count % size == 1 and count > 1 and size > 1
    return -(-count // size) - left_out


class MicroBatch(NamedTuple):
    """The rows of a micro-batch that one of several processes takes.

    The mean of a gradient over processes is that of the whole batch where each multiplies its own by `weight`, and the
    mean of a loss that of the whole micro-batch where it counts as `share`: they may have unequal numbers of samples.

    Args:
        rows: The samples.
        weight: Processes × samples here / samples of the batch.
        share: Processes × samples here / samples of the micro-batch.
    """

    rows: Tensor
    weight: float = 1.0
    share: float = 1.0


def micro_batches(rows: Tensor, rank: int = 0, ranks: int = 1, micro: int = 1) -> list[MicroBatch]:
    """Return the micro-batches that one of several processes takes of a batch: together they take every sample once.

    All have the same number of micro-batches, and none an empty one, since they communicate in every step: where there
    are fewer samples than processes, some take a sample that counts for nothing.

    Args:
        rows: Of the batch, whatever the number of processes.
        rank: Of the process.
        ranks: Number of processes.
        micro: Micro-batches of the batch.
    """
    pieces = []
    for whole in rows.chunk(micro):
        own = whole.tensor_split(ranks)[rank]
        counted = ranks * len(own)
        pieces.append(MicroBatch(own if len(own) else whole[:1], counted / len(rows), counted / len(whole)))
    return pieces


@final
class Feed:
    """Provides batches of a part on a device, as encoders read them.

    Args:
        part: The samples.
        device: The device of the batches.
        mode: "resident": the part is moved to the device once, as it is stored, and batches are gathered there.
            "streamed": it stays where it is, usually on disk. "auto": resident where it fits.
        seed: Of the random views of training: those of a batch depend on this, the epoch, its number, and the process
            that takes it, and on nothing else.
        rank: Of this process.
        ranks: Number of processes that train together.
        augment: Whether training varies its samples at random, by the kind of each sensor.
    """

    def __init__(
        self,
        part: Part,
        device: torch.device | str,
        mode: Mode = "auto",
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        *,
        augment: bool = False,
    ) -> None:
        self.device, self.seed, self.rank, self.ranks = torch.device(device), seed, rank, ranks
        self.resident = mode == "resident" or (mode == "auto" and fits(part, self.device))
        self.part = part.to(self.device) if self.resident else part
        self.random = torch.Generator(self.device)
        self._augmentations = augmentations_of(part) if augment else {}

    def __len__(self) -> int:
        return len(self.part)

    def evaluation_batches(self, batch: int) -> Iterator[tuple[Part, bool, Tensor]]:
        """Yield the batches of this process of all samples, in order, in the fixed view.

        With each comes whether it counts, and the numbers of its samples in the part.

        Args:
            batch: Samples of all processes together.
        """
        batches = torch.arange(len(self.part)).split(batch)
        shares = [share for rows in batches for share in micro_batches(rows, self.rank, self.ranks)]
        for share, stored in zip(shares, self.batches([share.rows for share in shares]), strict=True):
            yield self.make(stored, at_random=False), share.weight > 0, share.rows

    def batches(self, rows: Sequence[Tensor]) -> Iterator[Batch]:
        """Yield the batches of these rows on the device, for `make`."""
        if not self.resident:
            yield from self._streamed(rows)
        elif rows:
            whole = torch.cat(list(rows)).to(self.part.label.device)  # in one go: every such copy waits for the device
            yield from whole.split([len(some) for some in rows])

    def seed_views(self, epoch: int, number: int) -> None:
        """Seed the random views of the next batch by the epoch and its number."""
        self.random.manual_seed(self.seed_of(epoch, number))

    def seed_of(self, epoch: int, number: int) -> int:
        """Return a seed for one batch of this process."""
        return mix_seeds(self.seed, epoch, number, *([self.rank] if self.rank else []))

    def make(self, batch: Batch, *, at_random: bool = True) -> Part:
        """Return a batch as encoders read it: gathered where only its rows are known, then viewed."""
        stored = self.part.take(batch) if isinstance(batch, Tensor) else batch
        part = stored.ready(self.random if at_random else None)
        return augmented(part, self._augmentations, self.random) if at_random and self._augmentations else part

    def _streamed(self, rows: Sequence[Tensor]) -> Iterator[Part]:
        def gather(some: Tensor) -> Part:
            batch = self.part.take(some)
            return batch.apply(Tensor.pin_memory) if self.device.type == "cuda" else batch

        def send(batch: Future[Part]) -> Part:
            return batch.result().apply(lambda array: array.to(self.device, non_blocking=True))

        waiting: deque[Future[Part]] = deque()
        with ThreadPoolExecutor(READERS, thread_name_prefix="feed") as readers:
            try:
                for number, some in enumerate(rows):
                    waiting.append(readers.submit(gather, some))
                    if number >= READERS * AHEAD:
                        yield send(waiting.popleft())
                while waiting:
                    yield send(waiting.popleft())
            finally:  # the loop may end early
                for late in waiting:
                    late.cancel()


def fits(part: Part, device: torch.device) -> bool:
    """Return whether a part may stay on a device: on the CPU if it is in memory, on a GPU if half of that holds it."""
    if device.type != "cuda":
        return part.rows is None
    return part.bytes <= SHARE * torch.cuda.mem_get_info(device)[0]


def mix_seeds(*numbers: int) -> int:
    """Return one seed made of several numbers."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % 2**63
    return seed

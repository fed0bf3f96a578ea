"""Batches from memory or streamed: the same ones, every sample once, whatever the number of processes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.data import Part
from equipoise.data.feed import Feed, MicroBatch, Mode, epoch_rows, micro_batches
from equipoise.data.views import VideoFrames
from fed import training


def mapped(folder: Path, count: int = 40) -> Part:
    """A part with every third row of a memory-mapped file."""
    path = folder / "frames.bin"
    array = np.memmap(path, np.uint8, "w+", shape=(3 * count, 4, 3, 12, 12))
    array[:] = np.random.default_rng(0).integers(0, 256, array.shape)
    array.flush()
    whole = torch.from_numpy(np.memmap(path, np.uint8, "c", shape=array.shape))
    rows = torch.arange(0, 3 * count, 3)
    return Part({"video": whole}, rows.clone(), rows=rows, views={"video": VideoFrames(2, 8)})


@pytest.mark.parametrize("mode", ["resident", "streamed"])
def test_resident_and_streamed_are_the_same(mode: Mode, tmp_path: Path) -> None:
    part = mapped(tmp_path)
    rows = epoch_rows(len(part), 7, torch.Generator().manual_seed(3))
    feed = Feed(part, "cpu", mode, seed=5)
    by_hand = [part.take(each) for each in rows]
    found = list(training(feed, rows, epoch=2))
    assert [each.label.tolist() for each in found] == [each.label.tolist() for each in by_hand]
    other = list(training(Feed(part, "cpu", "resident", seed=5), rows, epoch=2))
    assert all(torch.equal(one.inputs["video"], two.inputs["video"]) for one, two in zip(found, other, strict=True))
    again = list(training(feed, rows, epoch=3))
    assert not torch.equal(found[0].inputs["video"], again[0].inputs["video"])  # another epoch, other crops
    fixed = torch.cat([each.inputs["video"] for each, *_ in feed.evaluation_batches(9)])
    torch.testing.assert_close(fixed, part.in_memory().ready().inputs["video"])


@pytest.mark.parametrize("mode", ["resident", "streamed"])
def test_an_epoch_goes_on_where_it_stopped(mode: Mode, tmp_path: Path) -> None:
    part = mapped(tmp_path)
    rows = epoch_rows(len(part), 6, torch.Generator().manual_seed(3))
    whole = list(training(Feed(part, "cpu", mode, seed=1), rows, epoch=0))
    rest = list(training(Feed(part, "cpu", mode, seed=1), rows, epoch=0, first=4))
    assert len(rest) == len(whole) - 4
    assert all(torch.equal(one.inputs["video"], two.inputs["video"]) for one, two in zip(whole[4:], rest, strict=True))


def test_a_stream_may_be_left_early(tmp_path: Path) -> None:
    part = mapped(tmp_path)
    rows = epoch_rows(len(part), 2, torch.Generator().manual_seed(3))
    stream = training(Feed(part, "cpu", "streamed"), rows, epoch=0)
    assert len(next(stream)) == 2
    stream.close()  # ty: ignore[missing-attribute]


def test_what_breaks_in_a_reader_is_heard(tmp_path: Path) -> None:
    part = mapped(tmp_path)
    with pytest.raises(IndexError):
        list(training(Feed(part, "cpu", "streamed"), [torch.tensor([999])], epoch=0))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 6, 8, 16, 57])
def test_processes_together_take_every_sample_once_and_weigh_alike(count: int, micro: int, ranks: int) -> None:
    rows, values = torch.randperm(count), torch.randn(count, dtype=torch.float64)
    shares = [micro_batches(rows, rank, ranks, micro) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1  # they meet as often
    assert all(len(piece.rows) for share in shares for piece in share)
    taken = [piece.rows for share in shares for piece in share if piece.weight > 0]
    assert sorted(torch.cat(taken).tolist()) == list(range(count))

    def mean(pieces: list[MicroBatch], weights: list[float]) -> float:
        each = [weight * values[piece.rows].mean() for piece, weight in zip(pieces, weights, strict=True)]
        return float(torch.stack(each).sum()) / ranks

    every = [piece for share in shares for piece in share]
    assert mean(every, [piece.weight for piece in every]) == pytest.approx(float(values.mean()))
    for number, whole in enumerate(rows.chunk(micro)):
        pieces = [share[number] for share in shares]
        assert mean(pieces, [piece.share for piece in pieces]) == pytest.approx(float(values[whole].mean()))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_processes_together_look_at_every_sample_once(ranks: int) -> None:
    part = Part({"a": torch.arange(10)}, torch.arange(10))
    found = [list(Feed(part, "cpu", rank=rank, ranks=ranks).evaluation_batches(4)) for rank in range(ranks)]
    assert len({len(each) for each in found}) == 1
    labels = [some.label for each in found for some, counts, _ in each if counts]
    assert sorted(torch.cat(labels).tolist()) == list(range(10))
    assert all(some.label.tolist() == rows.tolist() for each in found for some, _, rows in each)


def test_data_on_disk_is_not_read_whole_on_a_cpu(tmp_path: Path) -> None:
    assert not Feed(mapped(tmp_path), "cpu").resident
    assert Feed(Part({"a": torch.zeros(3, 2)}, torch.zeros(3)), "cpu").resident

"""Batches from memory or streamed: the same ones, every sample once, whatever the number of processes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.data import Part
from equipoise.data.feed import Feed, Mode, epoch_rows, share_of_rank
from equipoise.data.views import Frames


def mapped(folder: Path, count: int = 40) -> Part:
    """A part with every third row of a memory-mapped file."""
    path = folder / "frames.bin"
    array = np.memmap(path, np.uint8, "w+", shape=(3 * count, 4, 3, 12, 12))
    array[:] = np.random.default_rng(0).integers(0, 256, array.shape)
    array.flush()
    whole = torch.from_numpy(np.memmap(path, np.uint8, "c", shape=array.shape))
    rows = torch.arange(0, 3 * count, 3)
    return Part({"video": whole}, rows.clone(), rows=rows, views={"video": Frames(2, 8)})


@pytest.mark.parametrize("mode", ["resident", "streamed"])
def test_resident_and_streamed_are_the_same(mode: Mode, tmp_path: Path) -> None:
    part = mapped(tmp_path)
    rows = epoch_rows(len(part), 7, torch.Generator().manual_seed(3))
    feed = Feed(part, "cpu", mode, seed=5)
    by_hand = [part.take(each) for each in rows]
    found = list(feed.training(rows, epoch=2))
    assert [each.label.tolist() for each in found] == [each.label.tolist() for each in by_hand]
    other = list(Feed(part, "cpu", "resident", seed=5).training(rows, epoch=2))
    assert all(torch.equal(one.inputs["video"], two.inputs["video"]) for one, two in zip(found, other, strict=True))
    again = list(feed.training(rows, epoch=3))
    assert not torch.equal(found[0].inputs["video"], again[0].inputs["video"])  # another epoch, other crops
    fixed = torch.cat([each.inputs["video"] for each in feed.fixed(9)])
    torch.testing.assert_close(fixed, part.solid().ready().inputs["video"])


@pytest.mark.parametrize("mode", ["resident", "streamed"])
def test_an_epoch_goes_on_where_it_stopped(mode: Mode, tmp_path: Path) -> None:
    part = mapped(tmp_path)
    rows = epoch_rows(len(part), 6, torch.Generator().manual_seed(3))
    whole = list(Feed(part, "cpu", mode, seed=1).training(rows, epoch=0))
    rest = list(Feed(part, "cpu", mode, seed=1).training(rows, epoch=0, first=4))
    assert len(rest) == len(whole) - 4
    assert all(torch.equal(one.inputs["video"], two.inputs["video"]) for one, two in zip(whole[4:], rest, strict=True))


def test_a_stream_may_be_left_early(tmp_path: Path) -> None:
    part = mapped(tmp_path)
    rows = epoch_rows(len(part), 2, torch.Generator().manual_seed(3))
    stream = Feed(part, "cpu", "streamed").training(rows, epoch=0)
    assert len(next(stream)) == 2
    stream.close()  # ty: ignore[missing-attribute]


def test_what_breaks_in_a_reader_is_heard(tmp_path: Path) -> None:
    part = mapped(tmp_path)
    with pytest.raises(IndexError):
        list(Feed(part, "cpu", "streamed").training([torch.tensor([999])], epoch=0))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize(("count", "size"), [(100, 10), (101, 10), (57, 16), (30, 7), (8, 8), (50, 64)])
def test_processes_together_take_every_sample_once(count: int, size: int, ranks: int) -> None:
    rows = epoch_rows(count, size, torch.Generator().manual_seed(0))
    shares = [share_of_rank(rows, rank, ranks) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1  # they take the same number of steps
    assert all(len(each) for share in shares for each in share)
    taken = torch.cat([each for share in shares for each in share])
    assert sorted(taken.tolist()) == sorted(torch.cat(rows).tolist())
    assert len(taken) >= count - 1  # at most a last batch of one is left out


def test_data_on_disk_is_not_read_whole_on_a_cpu(tmp_path: Path) -> None:
    assert not Feed(mapped(tmp_path), "cpu").resident
    assert Feed(Part({"a": torch.zeros(3, 2)}, torch.zeros(3)), "cpu").resident

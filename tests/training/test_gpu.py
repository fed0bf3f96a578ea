"""What only a GPU can show: no method waits for the device in a training step."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from equipoise import MIMO, MSL, OGMGE, Balancer, LateFusion, MMPareto
from equipoise.balance.theory import least_norm
from equipoise.data import Part, Splits
from equipoise.data.bundled import two_sensors
from equipoise.data.feed import Feed, epoch_rows
from equipoise.data.source import DataSet
from equipoise.data.views import VideoFrames
from equipoise.models import CNN1d
from equipoise.study.registry import entries
from equipoise.study.store import Store
from equipoise.study.study import plan, run_study
from equipoise.testing import balanced
from equipoise.training.settings import Precision, Settings
from equipoise.training.train import train
from everything import METHODS
from fed import training
from own_encoders import Volumes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU HERE: the test for waits did not run")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_no_step_waits_for_the_device(name: str, gaps: bool) -> None:
    device = torch.device("cuda")
    balancer = METHODS[name]()
    encoders = {"audio": CNN1d(2), "video": CNN1d(3), "text": CNN1d(4)}
    model = LateFusion(encoders, 3, unimodal=balancer.needs.view).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    balancer.attach(model, optimizer=optimizer)
    inputs = {
        name: torch.randn(8, channels, 32, device=device) for name, channels in zip(encoders, (2, 3, 4), strict=True)
    }
    label = torch.randint(0, 3, (8,), device=device)
    present = {name: torch.rand(8, device=device) < 0.5 for name in encoders} if gaps else None
    inputs |= {f"{name}_present": mask for name, mask in (present or {}).items()}
    for step in range(3):
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            losses = {key: F.cross_entropy(z, label, reduction="none") for key, z in model(inputs).items()}
            optimizer.zero_grad()
            balanced(balancer, losses, present=present).backward()
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("count", [2, 3, 9, 10, 20, 32])
@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shortest_mixtures_of_any_number_of_gradients_are_recorded(count: int, blocks: int, dtype: torch.dtype) -> None:
    """In a graph, where nothing may wait; played back with other gradients it gives their mixture."""
    random = torch.Generator().manual_seed(0)
    first, second = (torch.randn(blocks, count, 2 * count, dtype=dtype, generator=random) for _ in range(2))
    place = (first @ first.mT).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            least_norm(place)
        torch.cuda.current_stream().wait_stream(stream)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = least_norm(place)
    for vectors in (first, second):
        gram = vectors @ vectors.mT
        place.copy_(gram)
        graph.replay()
        torch.testing.assert_close(found.cpu(), least_norm(gram), rtol=0, atol=1e-3 if dtype == torch.float32 else 1e-6)


def test_a_nan_is_said_at_the_next_look_and_stalls_nothing_before() -> None:
    balancer = METHODS["mimo"]()
    device = torch.device("cuda")
    losses = {"fused": torch.ones((), device=device), "audio": torch.full((), torch.nan, device=device)}
    balancer(losses)
    with pytest.raises(FloatingPointError, match="'audio' is NaN or infinite"):
        _ = balancer.table
    balancer({"fused": torch.ones((), device=device), "audio": torch.ones((), device=device)})
    assert balancer.table.values.isfinite().all()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_feeding_does_not_wait_for_the_device() -> None:
    """Gathering and augmenting run ahead of the steps; only the order of an epoch is sent over, once."""
    frames = torch.randint(256, (40, 4, 3, 32, 32), dtype=torch.uint8)
    part = Part({"video": frames}, torch.arange(40) % 3, views={"video": VideoFrames(2, 24)})
    feed = Feed(part, "cuda", "resident")
    rows = epoch_rows(40, 8, torch.Generator().manual_seed(0))
    batches = training(feed, rows, epoch=0)
    next(batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert sum(len(each) for each in batches) == 32
    finally:
        torch.cuda.set_sync_debug_mode("default")
    streamed = training(Feed(part, "cuda", "streamed"), rows, epoch=0)
    again = training(feed, rows, epoch=0)
    for one, other in zip(again, streamed, strict=True):
        torch.testing.assert_close(one.inputs["video"], other.inputs["video"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("method", [MSL, MIMO, OGMGE, MMPareto])
def test_weights_of_five_dimensions_train(method: type[Balancer], precision: Precision) -> None:
    inputs = {name: torch.randn(64, 2, 3, 6, 6) for name in ("left", "right")}
    splits = Splits.from_arrays(inputs, torch.arange(64) % 3)
    settings = Settings(
        epochs=2, batch=16, features=4, encoder="own_encoders.Volumes", device="cuda", precision=precision
    )
    encoder = train(splits, method(), settings).model.encoders["left"]
    assert isinstance(encoder, Volumes)
    assert encoder.over_time.weight.is_contiguous()
    assert encoder.of_pictures.weight.is_contiguous(memory_format=torch.channels_last)


def small(_: int | None) -> Splits:
    return two_sensors(samples=60)


def test_runs_with_an_encoder_that_draws_numbers_share_a_gpu(tmp_path: Path) -> None:
    """How many fit is found out by a model without content, which such an encoder cannot be made as."""
    chosen = entries(["msl", "mimo"], ["encoder=own_encoders.Drawing", "epochs=1", "device=cuda"])
    jobs, parts = plan(chosen, DataSet("made up", small, 0, ""), [0], [None], measure="quick")
    assert len(run_study(jobs, parts, Store(tmp_path))) == 2

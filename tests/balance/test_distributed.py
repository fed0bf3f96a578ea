"""Two or four ranks with their parts of each batch do what one process does with the whole of it.

The ranks are started once, by running this file; they try everything and write down what they found for the tests.
Ranks are forked from one process, which imports once the libraries that all of them need.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing import start_processes
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from equipoise import MIMO, MSES, Balancer, LateFusion, Window
from equipoise.balance import collectives
from equipoise.testing import SmallModel, balanced, batch, gradients_of, losses_of, masks_for, names
from equipoise.testing.models import hybrid_model
from everything import (
    METHODS,
    MIXING,
    ONE_SUM,
    SHAPES,
    SUMS,
    WEIGHING,
    Data,
    assert_same,
    batches,
    metrics,
    parameters_of,
    part,
)
from process_group import assert_gone

RANKS = (2, 4)
STEPS = 3
LIMIT_S = 400
TOLERANCE = 1e-5
SCALED, SCALES = [*(name for name in SHAPES if name in MIXING), "mmpareto", "mmpareto-features"], (1e-26, 1e30)
UNEQUAL = {2: (8, 4), 4: (5, 4, 2, 1)}
WAYS: dict[str, dict[str, Any]] = {
    "two modalities": {"count": 2},
    "three modalities": {"count": 3},
    "no_sync": {"count": 2, "accumulate": 2},
    "find_unused_parameters": {"count": 2, "kind": "spare", "options": {"find_unused_parameters": True}},
    "gradient_as_bucket_view": {"count": 3, "options": {"gradient_as_bucket_view": True}},
    "inner module attached": {"count": 3, "inner": True},
    "adamw": {"count": 3, "adaptive": True},
    "masks": {"count": 3, "masks": True},
    "late fusion": {"count": 3, "kind": "late"},
    "hybrid": {"count": 3, "kind": "masked"},
    "hybrid with heads": {"count": 2, "kind": "head"},
    "hybrid with masks": {"count": 3, "kind": "masked", "masks": True, "accumulate": 2},
}

pytestmark = pytest.mark.slow

HIDDEN = [name for name in SHAPES if METHODS[name]().at == "parameters"]
OVERFLOWS = ["agm", "cggm"]  # whose state moves on with a backward pass that takes gradients


# -- what both sides run --


def model_for(count: int, kind: str = "small") -> nn.Module:
    """One with a parameter that nothing uses, where it is spare; with a trunk, where its view is named."""
    if kind in ("masked", "head"):
        return hybrid_model(names(count), kind)
    small = SmallModel(names(count))
    if kind == "late":  # which tells its output layers
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return LateFusion(dict(small.encoders.items()), classes=3).double()
    if kind == "spare":
        small.register_parameter("spare", nn.Parameter(torch.ones(2, 2).double()))
    return small


def ranks_here() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def own(rank: int | None) -> slice:
    """The samples of a rank."""
    return slice(None) if rank is None else slice(rank, None, ranks_here())


def shard(data: Data, rank: int | None) -> Data:
    rows = own(rank)
    return part(data, rows.start or 0, None, rows.step or 1)


def unsynchronised(model: nn.Module) -> AbstractContextManager[Any]:
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def trained(
    method: str,
    rank: int | None,
    count: int,
    *,
    accumulate: int = 1,
    kind: str = "small",
    inner: bool = False,
    adaptive: bool = False,
    masks: bool = False,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    model = model_for(count, kind)
    wrapped = model if rank is None else DistributedDataParallel(model, **(options or {}))
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01) if adaptive else plain
    balancer = METHODS[method]().attach(model if inner else wrapped, optimizer=optimizer)
    tables = []
    for number, data in enumerate(batches(names(count), STEPS * accumulate)):
        last = (number + 1) % accumulate == 0
        with nullcontext() if last else unsynchronised(wrapped):
            present = present_of(count, number, rank) if masks else None
            (balanced(balancer, losses_of(wrapped, shard(data, rank)), present=present) / accumulate).backward()
        tables.append(balancer.table.values.nan_to_num(-1.0))  # -1 where a loss does not reach a block
        if last:
            optimizer.step()
            optimizer.zero_grad()
            shift = 0.0 if rank is None else 0.02 * (rank - (ranks_here() - 1) / 2)
            balancer.end_epoch(metrics(names(count), number, shift))
    return {"parameters": parameters_of(model), "state": saved(balancer), "tables": dict(enumerate(tables))}


def saved(balancer: Balancer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in balancer.state_dict().items()}


def present_of(count: int, step: int, rank: int | None) -> dict[str, Tensor]:
    """Masks that differ between ranks; at first no sample of the odd ranks has video, and none at all has the last."""
    masks = masks_for(names(count), seed=step)
    if step == 0:
        masks["video"][1::2] = False
        masks[names(count)[-1]][:] = False
    return {name: mask[own(rank)] for name, mask in masks.items()}


def unequal(method: str, rank: int | None) -> dict[str, Tensor]:
    """Gradients with masks where ranks have unequal numbers of samples of a batch."""
    model, (inputs, label), masks = model_for(3), batch(names(3)), masks_for(names(3))
    rows, weight = slice(None), 1.0
    if rank is not None:
        sizes = UNEQUAL[ranks_here()]
        rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        weight = ranks_here() * sizes[rank] / len(label)
    wrapped = model if rank is None else DistributedDataParallel(model)
    balancer = METHODS[method]().attach(wrapped, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    balancer.transform = lambda modality, gradient, parts: gradient  # noqa: ARG005
    losses = losses_of(wrapped, ({name: values[rows] for name, values in inputs.items()}, label[rows]))
    with collectives.rank_weight(weight):
        loss = balanced(balancer, losses, present={name: mask[rows] for name, mask in masks.items()})
    (loss * weight).backward()
    return gradients_of(model)


class Stacked(nn.Module):
    """Gives losses that are pieces of one tensor, which connects all of them with all encoders."""

    def __init__(self) -> None:
        super().__init__()
        small = SmallModel(names(2))
        self.encoders, self.heads, self.fused = small.encoders, small.heads, small.fused

    def forward(self, inputs: dict[str, Tensor], label: Tensor, mask: Tensor) -> dict[str, Tensor]:
        features = {name: encoder(inputs[name]) for name, encoder in self.encoders.items()}
        features["video"] = features["video"].where(mask[:, None], 0)
        outputs = [torch.stack([self.fused[name](z) for name, z in features.items()]).sum(0)]
        outputs += [self.heads[name](z) for name, z in features.items()]
        losses = F.cross_entropy(torch.cat(outputs), label.repeat(3), reduction="none")
        return dict(zip(("fused", *features), losses.view(3, -1), strict=True))


def hidden(method: str, rank: int | None) -> dict[str, Any]:
    """Two steps of losses that are pieces of one tensor; in the first, odd ranks have no video to learn from."""
    model = Stacked()
    wrapped = model if rank is None else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = METHODS[method]().attach(wrapped, optimizer=optimizer)
    tables = []
    for step, data in enumerate(batches(names(2), 2)):
        inputs, label = shard(data, rank)
        mask = (torch.arange(12) % (2 if step == 0 else 3) == 0)[own(rank)]
        optimizer.zero_grad()
        balanced(balancer, wrapped(inputs, label, mask), present={"video": mask}).backward()
        tables.append(balancer.table.values.nan_to_num(-1.0))
        optimizer.step()
    return {"parameters": parameters_of(model), "tables": dict(enumerate(tables))}


def opposed(rank: int | None, group: Any, *, rows: slice = slice(None)) -> dict[str, Tensor]:
    """MIMO's gradient where audio is behind on the samples of even ranks and video on those of odd ones."""
    model = model_for(2)
    wrapped = model if rank is None else DistributedDataParallel(model)
    balancer = MIMO(smoothing=0.01).attach(wrapped, group=group)
    inputs, label = batch(names(2), 12)
    tilt = {"audio": torch.tensor([3.0, 1.0]).repeat(6), "video": torch.tensor([1.0, 2.0]).repeat(6)}
    if rank is not None:
        rows = own(rank)
    losses = losses_of(wrapped, ({name: values[rows] for name, values in inputs.items()}, label[rows]))
    losses |= {name: losses[name] * factors[rows] for name, factors in tilt.items()}
    balancer(losses).backward()
    return gradients_of(model)


# -- what the ranks do --


def outcome(attempt: Callable[..., dict[str, Any]], *arguments: Any, **options: Any) -> dict[str, Any]:
    """What an attempt gave or what it said, so that one failure does not hide the others."""
    try:
        return attempt(*arguments, **options)
    except (RuntimeError, ValueError, FloatingPointError) as error:
        return {"said": f"{type(error).__name__}: {error}"}


def nan_on_the_last_rank(method: str, rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(model_for(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = METHODS[method]().attach(model, optimizer=optimizer)
    losses = losses_of(model, batch(names(2), 6, rank))
    if rank == ranks_here() - 1:
        losses["video"] = losses["video"] * torch.nan
    return {"value": balanced(balancer, losses).detach()}


def overflow_on_the_last_rank(method: str, rank: int) -> dict[str, Any]:
    """The state before and after a backward pass that overflows on one rank."""
    model = DistributedDataParallel(model_for(2))
    balancer = METHODS[method]().attach(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    states = [saved(balancer)]
    for scale in (1.0, torch.inf if rank == ranks_here() - 1 else 1.0):
        (balanced(balancer, losses_of(model, batch(names(2), 6, rank))) * scale).backward()
        states.append(saved(balancer))
    return dict(zip(("fresh", "before", "after"), states, strict=True))


def stopping(rank: int) -> list[list[str]]:
    """On their own, even ranks would stop audio and odd ones nobody; their means: video goes first, then audio."""
    balancer = MSES(patience=0)
    model = model_for(2)
    balancer.attach(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    course = [
        {"audio": (1.0, 3.0), "video": (2.0, 2.0)},
        {"audio": (1.5, 1.0), "video": (1.9, 4.0)},
        {"audio": (9.0, 1.0), "video": (1.0, 1.0)},
    ]
    stopped = []
    for epoch in course:
        balancer.end_epoch({name: {"loss": values[rank % 2]} for name, values in epoch.items()})
        stopped.append(sorted(balancer.stopped))
    return stopped


def window_held(rank: int | None, *, masks: bool = False) -> dict[str, Tensor]:
    """MIMO's gradient over a window of two micro-batches at a small smoothing."""
    model = model_for(2)
    wrapped = model if rank is None else DistributedDataParallel(model)
    balancer = MIMO(smoothing=0.01).attach(wrapped)
    micro = [shard(data, rank) for data in batches(names(2), 2)]
    with torch.no_grad():
        ahead = [losses_of(wrapped, data) for data in micro]
    present = [present_of(2, number, rank) if masks else None for number in range(len(micro))]
    with Window(balancer).open(ahead, present=present if masks else None):
        for number, data in enumerate(micro):
            with nullcontext() if number else unsynchronised(wrapped):
                (balanced(balancer, losses_of(wrapped, data), present=present[number]) / len(micro)).backward()
    return gradients_of(model)


def table_at_scale(method: str, rank: int | None, scale: float) -> Tensor:
    """Return the table of gradients in single precision whose squares vanish there, or overflow."""
    model = SmallModel(names(2)).float()
    wrapped = model if rank is None else DistributedDataParallel(model)
    balancer = METHODS[method]().attach(wrapped)
    inputs, label = shard(batch(names(2)), rank)
    outputs = wrapped({name: x.float() for name, x in inputs.items()})
    other = (label + 1) % 3  # so that gradients conflict
    losses = {name: F.cross_entropy(z, label if name == "fused" else other) for name, z in outputs.items()}
    balancer({name: scale * loss for name, loss in losses.items()}).backward()
    return balancer.table.values


def everything(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method, scale in itertools.product(SCALED, SCALES):
        found[f"scale/{scale}/{method}"] = table_at_scale(method, rank, scale)
    for method in SHAPES:
        for way, options in WAYS.items():
            found[f"{way}/{method}"] = outcome(trained, method, rank, **options)
        found[f"nan/{method}"] = outcome(nan_on_the_last_rank, method, rank)
        for inner in (False, True):
            options = {"inner": inner, "options": {"static_graph": True}}
            found[f"static/{inner}/{method}"] = outcome(trained, method, rank, 2, **options)
        if method in HIDDEN:
            found[f"hidden/{method}"] = outcome(hidden, method, rank)
        if method in WEIGHING:
            found[f"unequal/{method}"] = outcome(unequal, method, rank)
    for method in OVERFLOWS:
        found[f"overflow/{method}"] = overflow_on_the_last_rank(method, rank)
    found["averaged"], found["alone"] = opposed(rank, "world"), opposed(rank, None)
    found["stopped"] = stopping(rank)
    found["window"], found["window with masks"] = window_held(rank), window_held(rank, masks=True)
    return found


def one_of_several(rank: int, ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder / f'meeting of {ranks}'}"
    dist.init_process_group("gloo", meeting, timedelta(seconds=60), world_size=ranks, rank=rank)
    torch.save(everything(rank), folder / f"{rank} of {ranks}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> None:
    for ranks in RANKS:
        start_processes(one_of_several, (ranks, folder), ranks, start_method="fork")


# -- what the tests read --


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what all ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    log, paths = folder / "log", {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the helpers of the tests
    with log.open("w") as out:
        command = [sys.executable, __file__, str(folder)]
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=paths, start_new_session=True
        )
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        pytest.fail(f"the ranks ended with {code}:\n{log.read_text()[-12000:]}")
    assert_gone(process.pid)
    return folder


@pytest.fixture(scope="module", params=RANKS)
def ranks(written: Path, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    files = [written / f"{rank} of {request.param}.pt" for rank in range(request.param)]
    return [torch.load(file, weights_only=False) for file in files]


@functools.cache
def whole_of(method: str, way: str) -> dict[str, Any]:
    """What one process does."""
    return trained(method, None, **{key: value for key, value in WAYS[way].items() if key != "options"})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", SHAPES)
def test_ranks_equal_one_process(ranks: list[dict[str, Any]], method: str, way: str) -> None:
    whole, options = whole_of(method, way), WAYS[way]
    before = parameters_of(model_for(options["count"], options.get("kind", "small")))
    moved = [name for name, tensor in before.items() if not torch.equal(tensor, whole["parameters"][name])]
    assert len(moved) >= 6 * options["count"]
    for rank in ranks:
        found = rank[f"{way}/{method}"]
        assert "said" not in found, found["said"]
        assert_same(found["parameters"], whole["parameters"], atol=TOLERANCE)
        assert_same(found["state"], whole["state"], atol=TOLERANCE)
        for step, table in whole["tables"].items():
            torch.testing.assert_close(found["tables"][step], table, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", SHAPES)
def test_ranks_agree_to_the_bit(ranks: list[dict[str, Any]], method: str, way: str) -> None:
    first, *others = (rank[f"{way}/{method}"] for rank in ranks)
    for other, kind in itertools.product(others, ("parameters", "state", "tables")):
        assert_same(other[kind], first[kind], context=kind)


@pytest.mark.parametrize("method", SHAPES)
def test_attaching_the_wrapper_or_the_inner_module_is_the_same(ranks: list[dict[str, Any]], method: str) -> None:
    for rank in ranks:
        wrapper, inner = rank[f"three modalities/{method}"], rank[f"inner module attached/{method}"]
        assert_same(inner["parameters"], wrapper["parameters"])


@pytest.mark.parametrize("method", [name for name in SHAPES if name in WEIGHING])
def test_masks_are_exact_where_ranks_have_unequal_numbers_of_samples(ranks: list[dict[str, Any]], method: str) -> None:
    whole = unequal(method, None)
    for rank in ranks:
        assert_same(rank[f"unequal/{method}"], whole, atol=1e-9)


@pytest.mark.parametrize("method", HIDDEN)
def test_ranks_find_out_together_what_a_loss_depends_on(ranks: list[dict[str, Any]], method: str) -> None:
    whole = hidden(method, None)
    for rank in ranks:
        found = rank[f"hidden/{method}"]
        assert "said" not in found, found["said"]
        assert_same(found["parameters"], whole["parameters"], atol=TOLERANCE)
        for step, table in whole["tables"].items():
            torch.testing.assert_close(found["tables"][step], table, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("method", SCALED)
def test_ranks_mix_gradients_of_any_scale_alike(ranks: list[dict[str, Any]], method: str, scale: float) -> None:
    tables = [rank[f"scale/{scale}/{method}"] for rank in ranks]
    assert all(torch.equal(tables[0].nan_to_num(), other.nan_to_num()) for other in tables[1:])
    torch.testing.assert_close(tables[0], table_at_scale(method, None, 1.0), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_averaging_losses_first_gives_the_gradient_of_the_whole_batch(ranks: list[dict[str, Any]]) -> None:
    whole = opposed(None, "world")
    for rank in ranks:
        assert_same(rank["averaged"], whole, atol=1e-9)


def test_without_averaging_the_gradient_is_wrong_by_its_own_size(ranks: list[dict[str, Any]]) -> None:
    whole = torch.cat([gradient.flatten() for gradient in opposed(None, "world").values()])
    wrong = torch.cat([gradient.flatten() for gradient in ranks[0]["alone"].values()])
    assert float((wrong - whole).norm() / whole.norm()) > 0.5


def test_group_none_decides_on_each_rank_alone(ranks: list[dict[str, Any]]) -> None:
    count = len(ranks)
    apart = [opposed(None, "world", rows=slice(rank, None, count)) for rank in range(count)]
    mean = {name: torch.stack([gradients[name] for gradients in apart]).mean(0) for name in apart[0]}
    for rank in ranks:
        assert_same(rank["alone"], mean, atol=1e-9)


def test_a_window_is_exact_over_ranks_too(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert_same(rank["window"], window_held(None), atol=1e-9)
        assert_same(rank["window with masks"], window_held(None, masks=True), atol=1e-9)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("method", [name for name in SHAPES if name not in ONE_SUM])
def test_static_graph_is_refused_where_gradients_are_taken(
    ranks: list[dict[str, Any]], method: str, inner: bool
) -> None:
    for rank in ranks:
        assert "expected static_graph=False" in rank[f"static/{inner}/{method}"]["said"]


@pytest.mark.parametrize(
    ("method", "inner"),
    [*itertools.product([name for name in SHAPES if name in SUMS], [False, True]), ("inforeg", True)],
)
def test_static_graph_is_fine_for_one_sum_of_losses(ranks: list[dict[str, Any]], method: str, inner: bool) -> None:
    whole = whole_of(method, "two modalities")
    for rank in ranks:
        found = rank[f"static/{inner}/{method}"]
        assert "said" not in found, found["said"]
        assert_same(found["parameters"], whole["parameters"], atol=TOLERANCE)


@pytest.mark.parametrize("method", SHAPES)
def test_a_nan_on_one_rank_is_said_on_all(ranks: list[dict[str, Any]], method: str) -> None:
    for rank in ranks:
        assert rank[f"nan/{method}"]["said"].startswith("FloatingPointError: loss 'video' is NaN")


@pytest.mark.parametrize("method", OVERFLOWS)
def test_an_overflow_on_one_rank_moves_no_state_on_any(ranks: list[dict[str, Any]], method: str) -> None:
    for rank in ranks:
        found = rank[f"overflow/{method}"]
        assert any(not torch.equal(tensor, found["before"][name]) for name, tensor in found["fresh"].items())
        assert_same(found["after"], found["before"])


def test_ranks_stop_alike_from_metrics_that_differ(ranks: list[dict[str, Any]]) -> None:
    # The means are audio 2, 1.25, 5 and video 2, 2.95, 1; smoothed audio 2, 1.7, 2.75 and video 2, 2.38.
    for rank in ranks:
        assert rank["stopped"] == [[], ["video"], ["audio", "video"]]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Two ranks with half of each batch do what one process does with the whole of it.

The ranks are started once, by running this file; they try everything and write down what they found for the tests.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from equipoise import MIMO, MSES, Balancer, Window, methods
from equipoise.balance import collectives
from equipoise.testing import SmallModel, balanced, batch, gradients_of, losses_of, masks_for, names
from equipoise.testing.contract import hybrid_model
from everything import GRADIENT_PATH, LOSS_ROUTE, METHODS, WEIGHING, assert_same, batches, metrics, parameters_of, part

RANKS = 2
STEPS = 3
LIMIT_S = 240
TOLERANCE = 1e-5
MIXING, SCALES = ("mgda", "mgda-features", "mmpareto", "mmpareto-features"), (1e-26, 1e30)
WAYS: dict[str, dict[str, Any]] = {
    "two modalities": {"count": 2},
    "three modalities": {"count": 3},
    "no_sync": {"count": 2, "accumulate": 2},
    "find_unused_parameters": {"count": 2, "spare": True, "options": {"find_unused_parameters": True}},
    "gradient_as_bucket_view": {"count": 3, "options": {"gradient_as_bucket_view": True}},
    "inner module attached": {"count": 3, "inner": True},
    "adamw": {"count": 3, "adaptive": True},
    "masks": {"count": 3, "masks": True},
    "hybrid": {"count": 3, "hybrid": "masked"},
    "hybrid with heads": {"count": 2, "hybrid": "head"},
    "hybrid with masks": {"count": 3, "hybrid": "masked", "masks": True, "accumulate": 2},
}

pytestmark = pytest.mark.slow


# -- what both sides run --


def model_for(count: int, *, spare: bool = False, hybrid: Any = "") -> nn.Module:
    if hybrid:
        return hybrid_model(names(count), hybrid)
    model = SmallModel(names(count))
    if spare:
        model.register_parameter("spare", nn.Parameter(torch.ones(2, 2).double()))
    return model


def shard(data: tuple[dict[str, Tensor], Tensor], rank: int | None) -> tuple[dict[str, Tensor], Tensor]:
    return data if rank is None else part(data, rank, None, RANKS)


def unsynchronised(model: nn.Module) -> AbstractContextManager[Any]:
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def trained(
    method: str,
    rank: int | None,
    count: int,
    *,
    accumulate: int = 1,
    spare: bool = False,
    inner: bool = False,
    adaptive: bool = False,
    masks: bool = False,
    hybrid: str = "",
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    model = model_for(count, spare=spare, hybrid=hybrid)
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
            shift = 0.0 if rank is None else 0.02 * (rank - 0.5)
            balancer.end_epoch(metrics(names(count), number, shift))
    state = {name: tensor.clone() for name, tensor in balancer.named_buffers()}
    return {"parameters": parameters_of(model), "state": state, "tables": dict(enumerate(tables))}


def present_of(count: int, step: int, rank: int | None) -> dict[str, Tensor]:
    """Masks that differ between ranks; at first no sample of rank 1 has video, and no sample at all has the last."""
    masks = masks_for(names(count), seed=step)
    if step == 0:
        masks["video"][1::RANKS] = False
        masks[names(count)[-1]][:] = False
    return {name: mask[slice(rank, None, RANKS if rank is not None else 1)] for name, mask in masks.items()}


def unequal(method: str, rank: int | None) -> dict[str, Tensor]:
    """Gradients with masks where rank 0 has eight samples of a batch and rank 1 the other four."""
    model, (inputs, label), masks = model_for(3), batch(names(3)), masks_for(names(3))
    rows = [slice(0, 8), slice(8, 12), slice(None)][2 if rank is None else rank]
    weight = 1.0 if rank is None else RANKS * len(label[rows]) / len(label)
    wrapped = model if rank is None else DistributedDataParallel(model)
    balancer = METHODS[method]().attach(wrapped, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    balancer.refine = lambda modality, mixed, parts: mixed  # noqa: ARG005
    losses = losses_of(wrapped, ({name: values[rows] for name, values in inputs.items()}, label[rows]))
    with collectives.rank_weight(weight):
        loss = balanced(balancer, losses, present={name: mask[rows] for name, mask in masks.items()})
    (loss * weight).backward()
    return gradients_of(model)


def opposed(rank: int | None, group: Any, *, rows: slice = slice(None)) -> dict[str, Tensor]:
    """MIMO's gradient where audio is behind on the first rank's samples and video on the second's."""
    model = model_for(2)
    wrapped = model if rank is None else DistributedDataParallel(model)
    balancer = MIMO(smoothing=0.01).attach(wrapped, group=group)
    inputs, label = batch(names(2), 12)
    tilt = {"audio": torch.tensor([3.0, 1.0]).repeat(6), "video": torch.tensor([1.0, 2.0]).repeat(6)}
    if rank is not None:
        rows = slice(rank, None, RANKS)
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
    if rank == RANKS - 1:
        losses["video"] = losses["video"] * torch.nan
    return {"value": balanced(balancer, losses).detach()}


def overflow_on_the_last_rank(rank: int) -> dict[str, Any]:
    """AGM's running mean before and after a backward pass that overflows on one rank."""
    model = DistributedDataParallel(model_for(2))
    balancer = METHODS["agm"]().attach(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    states = []
    for scale in (1.0, torch.inf if rank == RANKS - 1 else 1.0):
        (balanced(balancer, losses_of(model, batch(names(2), 6, rank))) * scale).backward()
        states.append({name: tensor.clone() for name, tensor in balancer.named_buffers()})
    return {"before": states[0], "after": states[1]}


def stopping(rank: int) -> list[list[str]]:
    """On its own, rank 0 would stop audio and rank 1 nobody; their means say that video goes first, then audio."""
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
        balancer.end_epoch({name: {"loss": values[rank]} for name, values in epoch.items()})
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
    for method, scale in itertools.product(MIXING, SCALES):
        found[f"scale/{scale}/{method}"] = table_at_scale(method, rank, scale)
    for method in METHODS:
        for way, options in WAYS.items():
            found[f"{way}/{method}"] = outcome(trained, method, rank, **options)
        found[f"nan/{method}"] = outcome(nan_on_the_last_rank, method, rank)
        for inner in (False, True):
            options = {"inner": inner, "options": {"static_graph": True}}
            found[f"static/{inner}/{method}"] = outcome(trained, method, rank, 2, **options)
    for method in WEIGHING:
        found[f"unequal/{method}"] = outcome(unequal, method, rank)
    found["averaged"], found["alone"] = opposed(rank, "world"), opposed(rank, None)
    found["overflow"] = overflow_on_the_last_rank(rank)
    found["stopped"] = stopping(rank)
    found["window"], found["window with masks"] = window_held(rank), window_held(rank, masks=True)
    return found


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder / 'meeting'}", timedelta(seconds=60), world_size=RANKS, rank=rank)
    torch.save(everything(rank), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


# -- what the tests read --


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    logs = [folder / f"{rank}.log" for rank in range(RANKS)]
    started = []
    for rank, log in enumerate(logs):
        with log.open("w") as out:
            command = [sys.executable, __file__, str(rank), str(folder)]
            paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the helpers of the tests
            started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=paths))
    end = time.monotonic() + LIMIT_S
    try:
        # One that failed is not waited for: the other would sit in a collective until the end.
        while time.monotonic() < end and any(p.poll() is None for p in started) and not any(p.poll() for p in started):
            time.sleep(0.1)
    finally:
        codes = [process.poll() for process in started]
        for process in started:
            process.kill()
            process.wait()
    if any(codes) or None in codes:
        pytest.fail(f"ranks ended with {codes}:\n" + "\n".join(log.read_text()[-6000:] for log in logs))
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_equal_one_process(ranks: list[dict[str, Any]], method: str, way: str) -> None:
    options = {key: value for key, value in WAYS[way].items() if key != "options"}
    whole = trained(method, None, **options)
    fresh = parameters_of(
        model_for(options["count"], **{key: options[key] for key in ("spare", "hybrid") if key in options})
    )
    moved = [name for name, tensor in fresh.items() if not torch.equal(tensor, whole["parameters"][name])]
    assert len(moved) >= 6 * options["count"]
    for rank in ranks:
        found = rank[f"{way}/{method}"]
        assert "said" not in found, found["said"]
        assert_same(found["parameters"], whole["parameters"], atol=TOLERANCE)
        assert_same(found["state"], whole["state"], atol=TOLERANCE)
        for step, table in whole["tables"].items():
            torch.testing.assert_close(found["tables"][step], table, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", METHODS)
def test_ranks_agree_to_the_bit(ranks: list[dict[str, Any]], method: str, way: str) -> None:
    first, second = (rank[f"{way}/{method}"] for rank in ranks)
    for kind in ("parameters", "state", "tables"):
        assert_same(second[kind], first[kind], context=kind)


@pytest.mark.parametrize("method", METHODS)
def test_attaching_the_wrapper_or_the_inner_module_is_the_same(ranks: list[dict[str, Any]], method: str) -> None:
    for rank in ranks:
        wrapper, inner = rank[f"three modalities/{method}"], rank[f"inner module attached/{method}"]
        assert_same(inner["parameters"], wrapper["parameters"])


@pytest.mark.parametrize("method", WEIGHING)
def test_masks_are_exact_where_ranks_have_unequal_numbers_of_samples(ranks: list[dict[str, Any]], method: str) -> None:
    for rank in ranks:
        assert_same(rank[f"unequal/{method}"], unequal(method, None), atol=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("method", MIXING)
def test_ranks_mix_gradients_of_any_scale_alike(ranks: list[dict[str, Any]], method: str, scale: float) -> None:
    tables = [rank[f"scale/{scale}/{method}"] for rank in ranks]
    assert torch.equal(tables[0].nan_to_num(), tables[1].nan_to_num())
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
    own = [opposed(None, "world", rows=slice(rank, None, RANKS)) for rank in range(RANKS)]
    mean = {name: torch.stack([gradients[name] for gradients in own]).mean(0) for name in own[0]}
    for rank in ranks:
        assert_same(rank["alone"], mean, atol=1e-9)


def test_a_window_is_exact_over_ranks_too(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert_same(rank["window"], window_held(None), atol=1e-9)
        assert_same(rank["window with masks"], window_held(None, masks=True), atol=1e-9)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("method", GRADIENT_PATH)
def test_static_graph_is_refused_where_gradients_are_taken(
    ranks: list[dict[str, Any]], method: str, inner: bool
) -> None:
    for rank in ranks:
        assert "expected static_graph=False" in rank[f"static/{inner}/{method}"]["said"]


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("method", LOSS_ROUTE)
def test_static_graph_is_fine_where_losses_are_weighed(ranks: list[dict[str, Any]], method: str, inner: bool) -> None:
    whole = trained(method, None, 2)
    for rank in ranks:
        found = rank[f"static/{inner}/{method}"]
        assert "said" not in found, found["said"]
        assert_same(found["parameters"], whole["parameters"], atol=TOLERANCE)


@pytest.mark.parametrize("method", METHODS)
def test_a_nan_on_one_rank_is_said_on_all(ranks: list[dict[str, Any]], method: str) -> None:
    for rank in ranks:
        assert rank[f"nan/{method}"]["said"].startswith("FloatingPointError: loss 'video' is NaN")


def test_an_overflow_on_one_rank_moves_no_state_on_any(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert int(rank["overflow"]["before"]["steps"]) == 1
        assert_same(rank["overflow"]["after"], rank["overflow"]["before"])


def test_ranks_stop_alike_from_metrics_that_differ(ranks: list[dict[str, Any]]) -> None:
    # The means are audio 2, 1.25, 5 and video 2, 2.95, 1; smoothed audio 2, 1.7, 2.75 and video 2, 2.38.
    for rank in ranks:
        assert rank["stopped"] == [[], ["video"], ["audio", "video"]]


def test_every_method_is_tried() -> None:
    tried = {type(make()) for make in METHODS.values()}
    known = {kind for kind in vars(methods).values() if isinstance(kind, type) and issubclass(kind, Balancer)}
    assert tried == known - {methods.ModDrop}  # its gradients are those of MSL; what the model drops is drawn


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

"""Writing down where a run is, and going on from there as if nothing had happened."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.training import checkpoint, distributed
from equipoise.training.tracking import numbers

if TYPE_CHECKING:
    from equipoise.training.run import Run


def save(run: Run) -> None:
    """Write everything that the rest of a run depends on. All its processes have to do so together."""
    if run.folder is None:
        run.cadence.written()
        return
    started = time.perf_counter()
    rest = _state_of(run)
    model = run.spread.whole()
    if run.leads:
        checkpoint.save(run.folder, run.epoch, model, rest, batch=run.batch)
    run.cadence.written(started)


def resume(run: Run) -> None:
    """Go on from the newest checkpoint, if there is one, whatever the number of processes that wrote it."""
    if run.folder is None:
        return
    model = run.spread.whole()
    rest = distributed.agreed(checkpoint.load(run.folder, model) if run.leads else None)
    if rest is None:
        return
    if collectives.size() > 1:
        run.spread.take(distributed.agreed(model.state_dict()))
    for record in rest["curves"]:  # a tracker may take this sitting for a run of its own
        run.accelerator.log(numbers(record), step=record["epoch"])
    _put_back(run, rest)


def _state_of(run: Run) -> dict[str, Any]:
    """All but the weights."""
    return {
        "epoch": run.epoch,
        "seconds": run.seconds,
        "batch": run.batch,
        "samples": run.samples,
        "sums": distributed.gathered(run.sums),
        "epoch_seconds": run.epoch_lasted() if run.batch else 0.0,
        "curves": run.curves,
        "best": run.spread.joined(run.best),
        "optimizer": run.spread.joined(run.optimizer.state_dict()),
        "schedule": None if run.schedule is None else run.schedule.state_dict(),
        "balancer": run.balancer.state_dict(),
        "scaler": None if run.accelerator.scaler is None else run.accelerator.scaler.state_dict(),
        "shuffle": run.shuffle_before if run.batch else run.shuffle.get_state(),
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all() if run.accelerator.device.type == "cuda" else [],
    }


def _put_back(run: Run, rest: dict[str, Any]) -> None:
    run.epoch, run.seconds, run.curves = rest["epoch"], rest["seconds"], rest["curves"]
    score, best, weights = rest["best"]
    run.best = (score, best, dict(run.spread.cut(weights)))
    run.batch, run.samples, run.epoch_seconds = rest["batch"], rest["samples"], rest["epoch_seconds"]
    run.sums = _own_sums(rest["sums"], run.accelerator.device)
    run.optimizer.load_state_dict(run.spread.cut_moments(rest["optimizer"], run.plain))
    if run.schedule is not None:
        run.schedule.load_state_dict(rest["schedule"])
    if run.accelerator.scaler is not None:
        run.accelerator.scaler.load_state_dict(rest["scaler"])
    run.balancer.load_state_dict(rest["balancer"])
    run.shuffle.set_state(rest["shuffle"])
    torch.set_rng_state(rest["random"])
    if rest["random_cuda"]:
        torch.cuda.set_rng_state_all(rest["random_cuda"][: torch.cuda.device_count()])


def _own_sums(kept: list[dict[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
    """The sums of this process; where other processes wrote them, the first takes those of all."""
    if len(kept) == collectives.size():
        return {name: total.to(device) for name, total in kept[collectives.rank()].items()}
    taken = float(collectives.rank() == 0)
    return {name: taken * torch.stack([each[name] for each in kept]).sum(dim=0).to(device) for name in kept[0]}

"""Sources of what each sensor reaches alone: a twin that trains beside the model, or a uni-modal run before it.

A twin is a uni-modal model of the same encoders and settings that takes a step of its own at every batch, on a share of
its samples: as many steps as the model, so that their losses can be compared at any time, at a part of the cost. (One
that trained on every fourth batch would lag behind, and ask too little.) A run before is recorded once, kept in a
folder, and shared by all runs with the same data and settings: other methods, other seeds.
"""

import fcntl
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.balancer import Balancer
from equipoise.balance.optimum import RECORDED, OptimumWeighting
from equipoise.balance.theory import Trajectory
from equipoise.data.feed import Batch, Feed, MicroBatch
from equipoise.data.splits import Splits
from equipoise.methods.unimodal import Unimodal
from equipoise.training import launch
from equipoise.training.checkpoint import checkpoints
from equipoise.training.components import with_components
from equipoise.training.cuda_graph import CapturedStep
from equipoise.training.optimisers import PER_STEP, make_optimizer, make_schedule
from equipoise.training.parallel import parallel_model
from equipoise.training.settings import Settings
from equipoise.training.step import TrainingStep, build_model, own_code, to_channels_last
from equipoise.util import VERSION
from equipoise.util.errors import BadInput
from equipoise.util.files import write_atomic

TRAJECTORY = "trajectory.json"


def tracks(balancer: Balancer) -> OptimumWeighting | None:
    """Return the method if its f* comes from a twin."""
    return balancer if isinstance(balancer, OptimumWeighting) and balancer.source == "twin" else None


def check_twin(balancer: Balancer, settings: Settings) -> None:
    """Raise a BadInput where a twin cannot train beside the model."""
    if tracks(balancer) is not None and settings.parallel == "fsdp":
        raise BadInput("optimum=twin: expected parallel=ddp, found fsdp; type optimum=trajectory, a run of its own")


@final
class Twin:
    """A uni-modal model that trains on every so many samples of a run's batches, and tells the method what it reaches.

    Args:
        balancer: The method of the run.
        splits: The data as the run was given it.
        settings: Of the run.
        feed: Makes the batches of the run.
        accelerator: Of the run.
        steps: Of an epoch.
        why_not: Why the steps of the run are not captured; "" where they are.
    """

    def __init__(
        self,
        balancer: OptimumWeighting,
        splits: Splits,
        settings: Settings,
        feed: Feed,
        accelerator: Any,
        steps: int,
        why_not: str,
    ) -> None:
        self.every, self._settings = balancer.every, settings
        device = accelerator.device
        self.model = build_model(splits, Unimodal(), settings)
        with_components(self.model, splits)
        self.model.to(device)
        if device.type == "cuda" and not settings.deterministic:
            to_channels_last(self.model)
        self.optimizer = make_optimizer(self.model, settings, captured=not why_not)
        self.schedule = make_schedule(self.optimizer, settings, steps)
        self._step = TrainingStep(
            parallel_model(self.model, settings, device),
            Unimodal(),
            feed,
            self.optimizer,
            accelerator,
            settings.clip,
            {},
            on_losses=balancer.track,
        )
        self._step.attach()
        ranks = collectives.size()
        full = min(settings.batch, len(feed)) // ranks
        # Every rank takes as many samples as the others, so that each counts as much.
        alike = (share for share in range(min(self.every, full), 0, -1) if ranks == 1 or full % share == 0)
        self._share = next(alike, 1)
        self._full, self._every_sample = full, torch.arange(0, full, self._share, device=device)
        self._captured = CapturedStep(self._step, len(self._every_sample), why_not)
        self._diverged = False

    def __call__(self, batch: Batch) -> None:
        """Take a step of its own on samples of a batch; one that is not full, the last of an epoch, is left out.

        Args:
            batch: The samples of this rank.
        """
        if len(batch) == self._full and not self._diverged:
            self.model.train()
            rows = self._every_sample
            some = batch if self._share == 1 else batch[rows] if isinstance(batch, Tensor) else batch.take(rows)
            try:
                self._captured(some, [MicroBatch(rows, 1.0, 1.0)])
            except FloatingPointError:  # the model need not diverge with it: f* stays where it was
                self._diverged = True
        if self.schedule is not None and self._settings.schedule in PER_STEP:
            self.schedule.step()

    def end_epoch(self) -> None:
        """Move a schedule on that follows epochs."""
        if self.schedule is not None and self._settings.schedule not in PER_STEP:
            self.schedule.step()

    def state_dict(self) -> dict[str, Any]:
        """Return weights, and the states of optimiser and schedule."""
        schedule = None if self.schedule is None else self.schedule.state_dict()
        weights = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        return {"model": weights, "optimizer": self.optimizer.state_dict(), "schedule": schedule}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])


def refer(
    balancer: Balancer, splits: Splits, settings: Settings, folder: Path | None, record: Callable[..., Trajectory]
) -> None:
    """Give a method the trajectory of a uni-modal run where it asks for one: that of the folder, or a new one.

    Args:
        balancer: The method.
        splits: The data.
        settings: Of the run.
        folder: Where trajectories are kept; None keeps none.
        record: Trains uni-modally and returns a `Trajectory`, given the data, settings and a folder.
    """
    if not (isinstance(balancer, OptimumWeighting) and balancer.source in RECORDED):
        return
    launch.init(launch.device_of(settings))  # several processes train it together, as they do the run
    if folder is None:
        balancer.refer(trajectory_of(_text(record(splits, settings, None))))
        return
    place = folder / _key(splits, settings)
    place.mkdir(parents=True, exist_ok=True)
    file = place / TRAJECTORY
    with (place / "lock").open("w") as lock:
        if collectives.rank() == 0:  # runs at the same time wait for the first
            fcntl.flock(lock, fcntl.LOCK_EX)
        text = launch.broadcast(file.read_text(encoding="utf-8") if file.exists() else "")
        if not text:
            text = _text(record(splits, settings, place))
            if collectives.rank() == 0:
                write_atomic(place, TRAJECTORY, text)
                for finished in checkpoints(place):
                    shutil.rmtree(finished, ignore_errors=True)
    balancer.refer(trajectory_of(text))


def _text(trajectory: Trajectory) -> str:
    rows = {name: _finite(row.tolist()) for name, row in trajectory.losses().items()}
    return json.dumps({"smooth": trajectory.smooth, "losses": rows})


def _finite(losses: Sequence[float]) -> list[float]:
    """Round losses, and let one that diverges stay at its last number: then f* stays there too."""
    kept: list[float] = []
    for loss in losses:
        if math.isfinite(loss) or not kept:
            kept.append(round(loss, 7))
        else:
            kept.append(kept[-1])
    return kept


def trajectory_of(text: str) -> Trajectory:
    """Read a trajectory as `refer` keeps it."""
    content = json.loads(text)
    trajectory = Trajectory(content["smooth"])
    trajectory.load_state_dict({name: torch.tensor(row) for name, row in content["losses"].items()})
    return trajectory


def _key(splits: Splits, settings: Settings) -> str:
    """Name the folder of a uni-modal run by all that decides its losses; its seed is 0, whatever that of the run."""
    facts = {"split": splits.fingerprint(), "run": settings.as_dict(), "version": VERSION, "code": own_code(settings)}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]

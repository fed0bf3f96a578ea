"""A model over several processes: what a run asks of it, and the usual way, a copy in each (DDP)."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from equipoise.balance import collectives
from equipoise.models import LateFusion
from equipoise.training.distributed import way
from equipoise.training.settings import Settings


class Spread(ABC):
    """A model as the ranks of a run have it.

    Args:
        model: Whose parameters the optimiser moves.
    """

    told = ""
    """How it is spread, in a word; "" where it is not."""
    attaches = True
    """Whether a method, or a compiler, may look into the model."""

    def __init__(self, model: LateFusion) -> None:
        self.model = model
        self.called: Any = model
        """What a step calls instead of the model."""

    @abstractmethod
    def share_buffers(self) -> None:
        """Take over the statistics of rank 0, where each rank has its own."""

    @abstractmethod
    def meeting(self, *, last: bool) -> AbstractContextManager[Any]:
        """For a micro-batch: ranks exchange gradients after the last one of a step only."""

    @abstractmethod
    def whole(self) -> LateFusion:
        """The model in one piece, in every process. All ranks have to ask together."""

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights of a whole model."""
        self.model.load_state_dict(self.cut(weights))

    def joined(self, state: Any) -> Any:
        """A nested state with every tensor in one piece. All ranks have to ask together."""
        return state

    def cut(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """This rank's piece of whole weights."""
        return weights

    def cut_moments(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:  # noqa: ARG002
        """This rank's piece of the state of an optimiser."""
        return state


def spread(model: LateFusion, settings: Settings, device: torch.device) -> Spread:
    """A model over all ranks there are, as the settings say."""
    if collectives.size() == 1:
        return Alone(model)
    if way(settings) == "ddp":
        return Copied(model, device)
    from equipoise.training.distributed_shards import Sharded  # which takes most of a second to load

    return Sharded(model, device)


@final
class Alone(Spread):
    """One process has it all."""

    def share_buffers(self) -> None:
        """They are nobody else's."""

    def meeting(self, *, last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        """There is nobody to meet."""
        return nullcontext()

    def whole(self) -> LateFusion:
        """It is."""
        return self.model


class Several(Spread):
    """What both ways have in common. Batch statistics are taken over all ranks where the device can."""

    def __init__(self, model: LateFusion, device: torch.device) -> None:
        self._twin = copy.deepcopy(model).cpu()  # a plain model for checkpoints, and to give away in the end
        self._device = device
        if device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        super().__init__(model)
        synchronised = [part for part in model.modules() if isinstance(part, nn.SyncBatchNorm)]
        alike = {id(model.committee), *(id(buffer) for part in synchronised for buffer in part.buffers())}
        self._own = [name for name, buffer in model.named_buffers() if id(buffer) not in alike]
        collectives.broadcast([*model.parameters(), *model.buffers()])

    def share_buffers(self) -> None:
        """Batch statistics that are not synchronised are those of rank 0, as DDP has it."""
        if self._own:
            buffers = dict(self.model.named_buffers())
            collectives.broadcast([buffers[name] for name in self._own])

    def whole(self) -> LateFusion:
        """The twin, with the weights of this moment."""
        self._twin.load_state_dict(self.joined(self.model.state_dict()))
        self._twin.train(self.model.training)
        return self._twin


@final
class Copied(Several):
    """DDP: every rank has a copy, and gradients are averaged while the backward pass goes on."""

    told = "ddp"

    def __init__(self, model: LateFusion, device: torch.device) -> None:
        super().__init__(model, device)
        self.called = _Called(self.model, device)

    def meeting(self, *, last: bool) -> AbstractContextManager[Any]:
        """Gradients are averaged after the last micro-batch."""
        return nullcontext() if last else self.called.parallel.no_sync()


@final
class _Called:
    """A model whose steps go through DDP, which knows of one way to call it only."""

    def __init__(self, model: LateFusion, device: torch.device) -> None:
        self.unimodal, self.fusion = model.unimodal, model.fusion
        known = signature(DistributedDataParallel).parameters
        syncs = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # an older name
        options: dict[str, Any] = {syncs: False, "gradient_as_bucket_view": True}
        if device.type == "cuda":
            options["device_ids"] = [device.index]
        self.parallel = DistributedDataParallel(_BothWays(model), **options)

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs."""
        return self.parallel(inputs, shares=False)

    def with_shares(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The outputs, and each modality's share of the fused one."""
        return self.parallel(inputs, shares=True)


@final
class _BothWays(nn.Module):
    def __init__(self, model: LateFusion) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Mapping[str, Tensor], *, shares: bool) -> Any:
        return self.model.with_shares(inputs) if shares else self.model(inputs)

"""A model of which every process has a piece (FSDP2), where whole copies with their optimiser would not fit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from equipoise.balance import collectives
from equipoise.models import LateFusion
from equipoise.training.distributed import mapped
from equipoise.training.distributed_model import Several


@final
class Sharded(Several):
    """FSDP2: every rank has a piece of each parameter, and gathers an encoder when it is its turn."""

    told = "fsdp"
    attaches = False

    def __init__(self, model: LateFusion, device: torch.device) -> None:
        super().__init__(model, device)
        mesh = init_device_mesh(device.type, (collectives.size(),))
        for encoder in self.model.encoders.values():
            fully_shard(encoder, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def meeting(self, *, last: bool) -> AbstractContextManager[Any]:
        """Gradients are averaged after the last micro-batch."""
        self.called.set_requires_gradient_sync(last)
        return nullcontext()

    def joined(self, state: Any) -> Any:
        """Gather every piece."""
        return mapped(state, lambda tensor: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)

    def cut(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Parameters in pieces, buffers whole."""
        like = self.model.state_dict()
        return {name: _piece(tensor, like[name]) for name, tensor in weights.items()}

    def cut_moments(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        """What is as large as its parameter in pieces."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        cut = {
            place: {
                name: _piece(one, parameters[place])
                if isinstance(one, Tensor) and one.shape == parameters[place].shape
                else one
                for name, one in moments.items()
            }
            for place, moments in state["state"].items()
        }
        return {**state, "state": cut}


def _piece(whole: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

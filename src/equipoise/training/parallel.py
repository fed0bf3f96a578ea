"""A model over several processes: the whole model in one, a copy in each (DDP), or a shard in each (FSDP2)."""

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
from torch.utils._pytree import tree_map_only

from equipoise.balance import collectives
from equipoise.models.fusion_model import FusionModel
from equipoise.training.launch import parallel_kind
from equipoise.training.settings import Settings


class ParallelModel(ABC):
    """A model as the ranks of a run hold it; what one process has to do is nothing.

    Args:
        model: The model whose parameters the optimiser moves.
    """

    kind = ""
    """"ddp" or "fsdp"; "" for one process."""
    sharded = False
    """True if no process holds whole parameters: then neither a method nor a compiler may look into the model."""

    def __init__(self, model: FusionModel) -> None:
        self.model, self.device = model, model.committee.device
        self.wrapped: Any = model
        """Called in a step instead of the model."""

    def sync_buffers(self) -> None:
        """Take over the batch statistics of rank 0, where each rank has its own."""
        return

    @abstractmethod
    def sync_gradients(self, *, last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch: ranks average gradients after the last one of a step only."""

    def full_model(self) -> FusionModel:
        """Return the whole model in every process. All ranks have to call it together."""
        return self.model

    def gather(self, state: Any) -> Any:
        """Return a nested state with every tensor whole. All ranks have to call it together."""
        return state

    def shard(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return this rank's part of whole weights."""
        return weights

    def shard_optimizer(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:  # noqa: ARG002
        """Return this rank's part of the state of an optimiser."""
        return state


def parallel_model(model: FusionModel, settings: Settings, device: torch.device) -> ParallelModel:
    """Hold a model in all ranks there are, as the settings say."""
    if collectives.size() == 1:
        return _OneProcess(model)
    return (_Replicated if parallel_kind(settings) == "ddp" else _Sharded)(model, device)


@final
class _OneProcess(ParallelModel):
    """A model that one process trains."""

    def sync_gradients(self, *, last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        return nullcontext()


class _SeveralRanks(ParallelModel):
    """Common parts of DDP and FSDP. Batch statistics are taken over all ranks where the device can."""

    def __init__(self, model: FusionModel, device: torch.device) -> None:
        self._twin = copy.deepcopy(model).cpu()  # a plain model for checkpoints, and to give away in the end
        if device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        super().__init__(model)
        synchronised = [part for part in model.modules() if isinstance(part, nn.SyncBatchNorm)]
        alike = {id(model.committee), *(id(buffer) for part in synchronised for buffer in part.buffers())}
        self._own = [name for name, buffer in model.named_buffers() if id(buffer) not in alike]
        collectives.broadcast([*model.parameters(), *model.buffers()])

    def sync_buffers(self) -> None:
        if self._own:
            buffers = dict(self.model.named_buffers())
            collectives.broadcast([buffers[name] for name in self._own])

    def full_model(self) -> FusionModel:
        self._twin.load_state_dict(self.gather(self.model.state_dict()))
        self._twin.train(self.model.training)
        return self._twin


@final
class _Replicated(_SeveralRanks):
    """DDP, which knows of one way to call a model only: gradients are averaged while the backward pass goes on."""

    kind = "ddp"

    def __init__(self, model: FusionModel, device: torch.device) -> None:
        super().__init__(model, device)
        known = signature(DistributedDataParallel).parameters
        syncs = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # an older name
        options: dict[str, Any] = {syncs: False, "gradient_as_bucket_view": True}
        if device.type == "cuda":
            options["device_ids"] = [device.index]
        self.wrapped, self.unimodal, self.fusion = self, self.model.unimodal, self.model.fusion
        self.known_task = self.model.known_task
        self.ddp = DistributedDataParallel(_Forward(self.model), **options)

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.ddp(inputs, shares=False)

    def with_shares(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the outputs, and each modality's share of the fused one."""
        return self.ddp(inputs, shares=True)

    def with_permuted(self, inputs: Mapping[str, Tensor], permutations: int) -> tuple[dict[str, Tensor], ...]:
        """Return the outputs, and what permuted features do to the fused one."""
        return self.ddp(inputs, shares=False, permutations=permutations)

    def with_responses(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the outputs, and each modality's response."""
        return self.ddp(inputs, shares=False, responses=True)

    def response_problems(self) -> list[str]:
        """List why responses are not known."""
        return self.model.response_problems()

    def sync_gradients(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.ddp.no_sync()


@final
class _Forward(nn.Module):
    def __init__(self, model: FusionModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, inputs: Mapping[str, Tensor], *, shares: bool, permutations: int = 0, responses: bool = False
    ) -> Any:
        if permutations:
            return self.model.with_permuted(inputs, permutations)
        if responses:
            return self.model.with_responses(inputs)
        return self.model.with_shares(inputs) if shares else self.model(inputs)


@final
class _Sharded(_SeveralRanks):
    """FSDP2: every rank has a shard of each parameter, and gathers an encoder when it is its turn."""

    kind = "fsdp"
    sharded = True

    def __init__(self, model: FusionModel, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh  # which takes most of a second to load
        from torch.distributed.fsdp import fully_shard

        super().__init__(model, device)
        mesh = init_device_mesh(device.type, (collectives.size(),))
        for module in (*self.model.encoders.values(), self.model):
            fully_shard(module, mesh=mesh)

    def sync_gradients(self, *, last: bool) -> AbstractContextManager[Any]:
        self.wrapped.set_requires_gradient_sync(last)
        return nullcontext()

    def gather(self, state: Any) -> Any:
        return tree_map_only(Tensor, lambda tensor: getattr(tensor, "full_tensor", lambda: tensor)(), state)

    def shard(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        like = self.model.state_dict()  # whose parameters are sharded and whose buffers are whole
        return {name: _shard(tensor, like[name]) for name, tensor in weights.items()}

    def shard_optimizer(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        moments = {
            number: {name: _shard(value, parameters[number]) for name, value in values.items()}
            for number, values in state["state"].items()
        }
        return {**state, "state": moments}


def _shard(whole: Any, like: Tensor) -> Any:
    """Cut a tensor as another of its shape is cut; return anything else as it is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not (isinstance(like, DTensor) and isinstance(whole, Tensor) and whole.shape == like.shape):
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

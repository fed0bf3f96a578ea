"""Planes through the weights of a model, and the model's loss and accuracies at many points of one.

Random directions are filter-normalised (Li et al., "Visualizing the Loss Landscape of Neural Nets", 2018): a filter,
the weights of one output of a layer, moves by as much as it is long, so that weights whose scale is irrelevant do not
decide how sharp a picture looks. Biases and the parameters of normalisation stay where they are, as usual.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.module import register_module_forward_hook

from equipoise.data.splits import Part
from equipoise.models.encoded import EncodedModel
from equipoise.models.evaluation import evaluating
from equipoise.util.pool import Tell, parallel_workers, run_parallel

Weights = dict[str, Tensor]
MEMORY = 2**27  # bytes of activations and weights of one call; more is slower on a CPU, for it leaves the cache
UNBATCHED = (nn.RNNBase, nn.TransformerEncoderLayer)
SHARE = 0.25  # of a GPU's free memory that one call may take


def filter_normalised(weights: Weights, random: torch.Generator) -> Weights:
    """Draw a direction in which every filter is as long as that filter of the weights; vectors are left out.

    Drawn on the CPU, so that one seed gives weights of one shape the same draw everywhere.
    """
    direction = {}
    for name, weight in weights.items():
        if weight.dim() > 1:
            drawn = torch.randn(weight.shape, generator=random).to(weight)
            lengths = weight.flatten(1).norm(dim=1) / drawn.flatten(1).norm(dim=1)
            direction[name] = drawn * lengths.reshape(-1, *[1] * (weight.dim() - 1))
    return direction


class Plane(NamedTuple):
    """θ(x, y) = start + x · right + y · up.

    Args:
        start: Every parameter and buffer at (0, 0).
        right: The change with x, by name.
        up: The change with y.
        drift: The change of buffers, the statistics of batch norm, from x = 0 to x = 1; beyond, they stay.
    """

    start: Weights
    right: Weights
    up: Weights
    drift: Weights

    @classmethod
    def around(cls, model: nn.Module, seed: int) -> Plane:
        """The plane of two filter-normalised random directions through a model: one seed, the same draw for each."""
        random = torch.Generator().manual_seed(seed)
        weights = _copied(model.named_parameters())
        right, up = filter_normalised(weights, random), filter_normalised(weights, random)
        return cls(weights | _copied(model.named_buffers()), right, up, {})

    @classmethod
    def through(cls, one: nn.Module, other: nn.Module, seed: int) -> Plane:
        """The plane with one model at (0, 0), the other at (1, 0), and a filter-normalised direction across."""
        start, end = _copied(one.named_parameters()), dict(other.named_parameters())
        right = {name: end[name].detach() - weight for name, weight in start.items()}
        drawn = filter_normalised(start, torch.Generator().manual_seed(seed))
        share = _inner(drawn, right) / _inner(right, right).clamp(min=torch.finfo(torch.float64).tiny)
        none = torch.zeros((), dtype=torch.float64)
        up = {name: (drawn.get(name, none) - share * along.double()).to(along) for name, along in right.items()}
        before, after = _copied(one.named_buffers()), dict(other.named_buffers())
        drift = {name: after[name] - value for name, value in before.items() if value.is_floating_point()}
        return cls(start | before, right, up, drift)

    def at(self, points: Tensor) -> Weights:
        """Compute the weights that move, at each of several points [P, 2]: stacked, [P, …] by name."""
        x, y = points.unbind(dim=1)
        moved = {}
        for name in {**self.right, **self.up}:
            moved[name] = self.start[name].expand(len(points), *self.start[name].shape)
            for step, direction in ((x, self.right), (y, self.up)):
                if name in direction:
                    moved[name] = moved[name] + _times(step, direction[name])
        for name, change in self.drift.items():
            moved[name] = self.start[name] + _times(x.clamp(0, 1), change)
        return moved


def _copied(tensors: Iterable[tuple[str, Tensor]]) -> Weights:
    return {name: value.detach().clone() for name, value in tensors}


def _times(steps: Tensor, direction: Tensor) -> Tensor:
    return steps.to(direction).reshape(-1, *[1] * direction.dim()) * direction


def _inner(one: Weights, other: Weights) -> Tensor:
    return torch.stack([(one[name].double() * other[name].double()).sum() for name in one]).sum()


class PlaneValues(NamedTuple):
    """Loss and accuracies of a model at P points, on one part.

    Args:
        loss: Mean cross-entropy of the fused output, [P].
        error: Its standard error over samples, [P].
        accuracy: Of the fused output and of each modality, [P] by name.
    """

    loss: Tensor
    error: Tensor
    accuracy: dict[str, Tensor]


def values_at(
    model: EncodedModel, plane: Plane, points: Tensor, part: Part, tell: Tell = lambda _: None
) -> PlaneValues:
    """Evaluate the model at many points of a plane, in evaluation mode.

    Args:
        model: Gives its form only; weights and buffers come from the plane.
        plane: The plane of the points.
        points: x and y of each, [P, 2].
        part: The samples, as encoders read them, on the model's device.
        tell: Called with the number of points after each call.
    """
    device = part.label.device
    batched = batches_well(model, device)
    rows, chunk = _call_size(model, part, len(points), batched=batched)
    chunks = points.to(device, torch.float32).split(chunk)
    workers = min(len(chunks), parallel_workers())

    def share(first: int, tell: Tell) -> list[Tensor]:
        sums = []
        with evaluating(model), torch.no_grad():
            for some in chunks[first::workers]:
                sums.append(_sums(model, plane, some, part, rows, batched=batched).cpu())
                tell(len(some))
        return sums

    shares = run_parallel([partial(share, first) for first in range(workers)], tell)
    sums = torch.cat([shares[number % workers][number // workers] for number in range(len(chunks))])
    count, names = len(part), ["fused", *model.encoders]
    loss = sums[:, 0] / count
    spread = (sums[:, 1] / count - loss.square()).clamp(min=0)
    accuracy = {name: column / count for name, column in zip(names, sums[:, 2:].unbind(dim=1), strict=True)}
    return PlaneValues(loss, (spread / max(count - 1, 1)).sqrt(), accuracy)


def batches_well(model: nn.Module, device: torch.device) -> bool:
    """Tell whether many points in one call pay.

    On a CPU, convolutions with other weights for every point take twice as long as one after the other; and torch
    cannot batch recurrent layers and those of transformers over their weights at all.
    """
    slow = UNBATCHED if device.type == "cuda" else (*UNBATCHED, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return not any(isinstance(module, slow) for module in model.modules())


def _sums(model: EncodedModel, plane: Plane, points: Tensor, part: Part, rows: int, *, batched: bool) -> Tensor:
    """Per point, over all samples: the sum of losses, of their squares, and the hits of every output, [P, …]."""
    moved, task = plane.at(points), model.known_task()
    still = {name: value for name, value in plane.start.items() if name not in moved}

    def evaluate(weights: Weights, inputs: Weights, label: Tensor) -> Tensor:
        outputs = functional_call(model, weights | still, (inputs,))
        loss = task.loss(outputs["fused"], label, weighted=False).double()
        hits = [task.hits(output, label).double().sum() for output in outputs.values()]
        return torch.stack([loss.sum(), loss.square().sum(), *hits])

    def one_by_one(weights: Weights, inputs: Weights, label: Tensor) -> Tensor:
        singles = [{name: value[at] for name, value in weights.items()} for at in range(len(points))]
        return torch.stack([evaluate(single, inputs, label) for single in singles])

    call = vmap(evaluate, in_dims=(0, None, None)) if batched else one_by_one
    total = torch.zeros((), dtype=torch.float64, device=points.device)
    for chosen in torch.arange(len(part), device=part.label.device).split(rows):
        some = part if rows >= len(part) else part.take(chosen)
        total = total + call(moved, some.inputs, some.label)
    return total


def _call_size(model: EncodedModel, part: Part, points: int, *, batched: bool) -> tuple[int, int]:
    """The samples and the points that one call takes: all samples if they fit, and then as many points as fit."""
    device = part.label.device
    room = MEMORY if device.type != "cuda" else int(SHARE * torch.cuda.mem_get_info(device)[0])
    activations = _bytes_of_one(model, part)
    weights = sum(value.nbytes for value in model.parameters())
    rows = max(1, min(len(part), room // max(activations, 1)))
    fit = max(1, room // (activations * rows + weights))
    return rows, min(fit if batched else 8, points)


def _bytes_of_one(model: EncodedModel, part: Part) -> int:
    """The memory of the outputs of all layers for one sample."""
    sizes: list[int] = []

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.nbytes)

    with evaluating(model), torch.no_grad(), register_module_forward_hook(count):
        model(part.take(torch.zeros(1, dtype=torch.long, device=part.label.device)).inputs)
    return sum(sizes)

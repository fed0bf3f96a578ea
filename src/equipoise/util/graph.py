"""Walks over autograd graphs, and gradients that are scaled on their way through one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.graph import Node, get_gradient_edge

DDP_SINK = "_DDPSinkBackward"
_SCALE = "_ScaleGradientBackward"

Edge: TypeAlias = "tuple[Node, int]"
"""An output of a node of the graph, by its number."""


def edges_of(*tensors: Tensor | None) -> list[Edge]:
    """Return the edges that the gradients of some tensors enter the graph by; a tensor without a graph has none."""
    edges = [get_gradient_edge(tensor) for tensor in tensors if tensor is not None and tensor.requires_grad]
    return [(edge.node, edge.output_nr) for edge in edges]


def walk(edges: Iterable[Edge], ends: Callable[[Node, int, str], bool] | None = None) -> Iterator[tuple[Any, int, str]]:
    """Yield some edges and all under them, each once, with the name of its node; nothing below those in `ends`.

    DDP passes every output of a model through one node, of which output i comes from input i alone.
    """
    waiting, met, expanded = list(edges), set(), set()
    while waiting:
        edge = waiting.pop()
        if edge in met:
            continue
        met.add(edge)
        node, index = edge
        name = node.name()
        yield node, index, name
        expansion = edge if name == DDP_SINK else node
        if expansion in expanded or (ends is not None and ends(node, index, name)):
            continue
        expanded.add(expansion)
        following = node.next_functions[index : index + 1] if name == DDP_SINK else node.next_functions
        waiting.extend((below, number) for below, number in following if below is not None)


@final
class _ScaleGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by what its factor holds when the backward pass arrives."""

    @staticmethod
    def forward(ctx: Any, response: Tensor, modality: str) -> Tensor:
        # Kept as it is, not saved: a balancer writes into it between forward and backward.
        wide = torch.promote_types(response.dtype, torch.float32)
        ctx.factor, ctx.modality = torch.ones((), device=response.device, dtype=wide), modality
        return response.view_as(response)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # ty: ignore[incompatible-method-override]
        if torch.is_grad_enabled():
            msg = "AGM: its factors are no part of the graph, so second derivatives are not known; found create_graph"
            raise RuntimeError(msg)
        return gradient * ctx.factor.to(gradient.dtype), None


@_disable_dynamo  # what is written between forward and backward would be lost in a compiled graph
def scale_gradient(response: Tensor, modality: str) -> Tensor:
    """Return the response unchanged; `scaled_responses` finds the factor of its gradient, which is one at first."""
    return _ScaleGradient.apply(response, modality)


class ScaledResponse(NamedTuple):
    """A place in a graph where the gradient of a response is scaled.

    Args:
        modality: Whose response.
        factor: What its gradient will be multiplied by.
        source: The node that computed the response; None where it has no graph.
    """

    modality: str
    factor: Tensor
    source: Node | None

    def enters(self, loss: Tensor) -> bool:
        """Return True if a loss was computed from this response."""
        return any(node is self.source for node, _, _ in walk(edges_of(loss)))


def scaled_responses(output: Tensor) -> list[ScaledResponse]:
    """Find the scaled responses that an output, or a loss of it, was computed from."""
    nodes: list[Any] = [
        node for node, _, name in walk(edges_of(output), lambda *edge: edge[2] == _SCALE) if name == _SCALE
    ]
    return [ScaledResponse(node.modality, node.factor, node.next_functions[0][0]) for node in nodes]

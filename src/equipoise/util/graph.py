"""Walks over autograd graphs, and gradients that are scaled on their way through one."""

from collections.abc import Collection, Iterable, Iterator
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


def walk(
    edges: Iterable[Edge], names: Collection[str], visited: set[Edge], ends: Collection[tuple[Node | None, int]] = ()
) -> Iterator[tuple[Any, str]]:
    """Yield the nodes of some names that edges lead to, with their name; nothing below them is looked at.

    Args:
        edges: Where to start.
        names: Of the nodes.
        visited: Takes every edge that was met.
        ends: Edges beyond which not to look.
    """
    waiting, expanded = list(edges), set()
    while waiting:
        edge = waiting.pop()
        if edge in visited:
            continue
        visited.add(edge)
        if edge in ends:
            continue
        node: Any = edge[0]
        name = node.name()
        if name == DDP_SINK:
            yield node, name
            # DDP passes every output of a model through one node, of which output i comes from input i alone.
            waiting.extend(below for below in node.next_functions[edge[1] : edge[1] + 1] if below[0] is not None)
        elif name in names:
            yield node, name
        elif node not in expanded:
            expanded.add(node)
            waiting.extend([below for below in node.next_functions if below[0] is not None])


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
        source: The edge by which the gradient goes on; its node is None where the response has no graph.
    """

    modality: str
    factor: Tensor
    source: tuple[Node | None, int]

    def enters(self, loss: Tensor) -> bool:
        """Return True if a loss was computed from this response."""
        visited: set[Any] = set()
        for _ in walk(edges_of(loss), (), visited, {self.source}):
            pass
        return self.source in visited


def scaled_responses(output: Tensor) -> list[ScaledResponse]:
    """Find the scaled responses that an output, or a loss of it, was computed from."""
    nodes = [node for node, name in walk(edges_of(output), (_SCALE,), set()) if name == _SCALE]
    return [ScaledResponse(node.modality, node.factor, node.next_functions[0]) for node in nodes]

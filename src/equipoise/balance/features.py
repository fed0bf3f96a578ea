"""The outputs of encoders: hooks that remember their outputs, and the cut through the graph of a step at these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from equipoise.balance.blocks import Blocks
from equipoise.balance.graph import Edge, Scalars, edges_of, leaves_under


@final
class OutputHook:
    """A forward hook that remembers the last outputs of a module, where gradients will be asked for.

    A copy of a watched module gets a hook that remembers nothing: it would never be asked.
    """

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self._active = True

    def __call__(self, module: Any, inputs: Any, output: Any) -> None:  # noqa: ARG002
        """Remember an output."""
        if self._active and torch.is_grad_enabled():
            self.outputs = [tensor for tensor in _tensors_in(output) if tensor.requires_grad]

    def __getstate__(self) -> dict[str, Any]:
        return {"outputs": [], "_active": False}


def _tensors_in(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (list, tuple, Mapping)):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors_in(part)


@final
class FeatureCut:
    """The features where the encoders of one step end: the tensors through which they act on the losses.

    Args:
        losses: Of the step; None where not given.
        outputs: The last outputs of each encoder; empty where it is not the one that was attached.
        blocks: The leaves that belong to each encoder.
    """

    def __init__(self, losses: Scalars, outputs: Sequence[Sequence[Tensor]], blocks: Blocks) -> None:
        self._blocks = blocks
        visited: set[Edge] = set()
        ends = set(edges_of(*(tensor for tensors in outputs for tensor in tensors)))
        above = leaves_under(edges_of(*losses), visited, ends)
        self.features = [[t for t in tensors if edges_of(t)[0] in visited] for tensors in outputs]
        self.tensors = _once(tensor for tensors in self.features for tensor in tensors)
        self._bypassed = {block for key in above for block in blocks.owners.get(key, ())}

    def groups(self) -> list[tuple[list[int], list[Tensor]]]:
        """Return encoders with their features; encoders that share parameters come together."""
        groups = [(group, _once(t for b in group for t in self.features[b])) for group in self._blocks.groups()]
        return [(group, tensors) for group, tensors in groups if tensors]

    def problems(self, modalities: Sequence[str], instead: str) -> list[str]:
        """Return why this step cannot be decided at features.

        Args:
            modalities: Their names, in the order of the outputs.
            instead: Advice for such a model.
        """
        return [
            f"encoder {name!r} acts on the losses otherwise than by what it gave last: was it called twice, replaced "
            "after attaching (then attach again), compiled together with the heads (then compile the encoders alone), "
            f"or is one of its parameters used elsewhere? For such a model, {instead}"
            for block, name in enumerate(modalities)
            if block in self._bypassed
        ] + [
            f"encoder {name!r} reads what another encoder gives, or gives one output that was made of another; for "
            f"such a model, {instead}"
            for name, tensors in zip(modalities, self.features, strict=True)
            if self._chained(tensors)
        ]

    def _chained(self, tensors: Sequence[Tensor]) -> bool:
        """Return True if a feature lies under one of these: its gradient would be counted twice."""
        ends = set(edges_of(*self.tensors))
        for tensor in tensors:
            visited: set[Edge] = set()
            others = ends.difference(edges_of(tensor))
            leaves_under(edges_of(tensor), visited, others)
            if visited & others:
                return True
        return False


def _once(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({edges_of(tensor)[0]: tensor for tensor in tensors}.values())

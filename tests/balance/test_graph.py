"""What is shared between the graphs of losses, held against a search that leaves nothing out."""

import random
from itertools import permutations

import pytest
import torch
from torch import Tensor

from equipoise.balance.graph import Edge, _leaves_of_shared_tensors, edges_of, leaves_under


def drawn_losses(draw: random.Random) -> list[Tensor]:
    """Two to four losses of random graphs, some of which take pieces of one tensor and some of which share nothing."""
    leaves = [torch.randn(4, 4, requires_grad=True) for _ in range(draw.randint(2, 5))]
    made = list(leaves)
    for _ in range(draw.randint(2, 8)):
        one, other = draw.choice(made), draw.choice(made)
        made.append(draw.choice([one @ other, one.tanh(), one.detach() * other, (one + other).relu()]))
    losses = []
    for _ in range(draw.randint(2, 4)):
        own = draw.choice(made)
        row = draw.randrange(4)
        losses.append(draw.choice([own.sum(), own[row].sum(), own.unbind()[row].mean(), own.split(2)[row // 2].sum()]))
    return losses


def shared_by_hand(visited: list[set[Edge]]) -> set[int]:
    """Every leaf below a tensor of which two losses have different pieces, or different outputs."""
    pieces = {"SelectBackward0", "UnbindBackward0", "SplitBackward0"}
    found: set[int] = set()
    count = len(visited)
    neighbours = [(a, b) for a, b in permutations(range(count), 2) if 0 in (a, b) or abs(a - b) == 1]
    for one, other in neighbours:
        theirs = {node for node, _ in visited[other]}
        for node, _ in visited[one] - visited[other]:
            if node in theirs:
                found |= set(leaves_under([(node, 0)]))
            elif node.name() in pieces:
                below = [each for each, _ in node.next_functions if each in theirs]
                found |= set(leaves_under([(each, 0) for each in below]))
    return found


@pytest.mark.parametrize("seed", range(200))
def test_shared_tensors_are_all_found(seed: int) -> None:
    losses = drawn_losses(random.Random(seed))
    visited: list[set[Edge]] = [set() for _ in losses]
    for loss, own in zip(losses, visited, strict=True):
        leaves_under(edges_of(loss), own)
    assert set(_leaves_of_shared_tensors(visited)) == shared_by_hand(visited)


def test_the_draws_have_both_kinds() -> None:
    """Else the comparison above would be of nothing with nothing."""
    found = []
    for seed in range(200):
        losses = drawn_losses(random.Random(seed))
        visited: list[set[Edge]] = [set() for _ in losses]
        for loss, own in zip(losses, visited, strict=True):
            leaves_under(edges_of(loss), own)
        found.append(bool(shared_by_hand(visited)))
    assert 20 < sum(found) < 180

"""Encoders that see each other or share parameters: gradients held against those of every loss by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise import AGM, MGDA, OGM, MMPareto
from equipoise.testing import SmallModel, attached, batch, losses_of, names
from everything import Data


class Attending(nn.Module):
    """Some encoders see what others found: ``looks`` maps a modality to the one it looks at."""

    def __init__(self, looks: dict[str, str], modalities: list[str], seed: int) -> None:
        super().__init__()
        small = SmallModel(modalities, seed=seed)
        self.encoders, self.heads, self.fused, self.looks = small.encoders, small.heads, small.fused, looks

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: encoder(inputs[name]) for name, encoder in self.encoders.items()}
        features = {
            name: own[name] * torch.sigmoid(own[self.looks[name]]) if name in self.looks else own[name] for name in own
        }
        outputs = {"fused": torch.stack([self.fused[name](h) for name, h in features.items()]).sum(0)}
        return outputs | {name: self.heads[name](h) for name, h in features.items()}


Entangled = SmallModel | Attending


def one_looks(count: int, seed: int) -> Attending:
    return Attending({"video": "audio"}, names(count), seed)


def all_look(count: int, seed: int) -> Attending:
    return Attending(dict(zip(names(count), names(count)[1:] + names(count)[:1], strict=True)), names(count), seed)


def two_share(count: int, seed: int) -> SmallModel:
    model = SmallModel(names(count), seed=seed)
    model.encoders["video"][0] = model.encoders["audio"][0]  # ty: ignore[invalid-assignment]
    return model


ENTANGLED: dict[str, Callable[[int, int], Entangled]] = {
    "separate": lambda count, seed: SmallModel(names(count), seed=seed),
    "one looks at another": one_looks,
    "all look at another": all_look,
    "two share a layer": two_share,
}
CASES = pytest.mark.parametrize(
    ("kind", "count", "seed"), [(kind, count, seed) for kind in ENTANGLED for count in (2, 3) for seed in (0, 1, 2)]
)


def warned_of(model: Entangled) -> AbstractContextManager[object]:
    """Where a loss reaches the encoder of another modality, that is said; see test_attach.py."""
    looks = isinstance(model, Attending)
    return pytest.warns(UserWarning, match="reach the encoders of other modalities") if looks else nullcontext()


def blocks_of(model: Entangled) -> list[tuple[list[str], list[Tensor]]]:
    """Encoders that share tensors come together."""
    blocks: list[tuple[list[str], list[Tensor]]] = []
    for name, encoder in model.encoders.items():
        tensors: list[Tensor] = list(encoder.parameters())
        for owners, known in blocks:
            if any(t is k for t in tensors for k in known):
                owners.append(name)
                known.extend(t for t in tensors if not any(t is k for k in known))
                break
        else:
            blocks.append(([name], tensors))
    return blocks


def all_gradients(model: Entangled, data: Data, tensors: list[Tensor]) -> dict[str, list[Tensor]]:
    """One pass per objective; an objective that does not reach these tensors is left out."""
    found = {}
    for name, loss in losses_of(model, data).items():
        gradients = torch.autograd.grad(loss.mean(), tensors, retain_graph=True, allow_unused=True)
        if any(gradient is not None for gradient in gradients):
            found[name] = [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, gradients, strict=True)]
    return found


def shortest_weights(gram: np.ndarray) -> np.ndarray:
    """min wᵀGw over the simplex by accelerated projected gradient descent."""
    count = len(gram)
    step = 1 / max(np.linalg.eigvalsh(gram)[-1], 1e-300)
    weights = ahead = np.full(count, 1 / count)
    momentum = 1.0
    for _ in range(1500):
        moved = ahead - step * gram @ ahead
        ordered = np.sort(moved)[::-1]
        cut = (np.cumsum(ordered) - 1) / np.arange(1, count + 1)
        after = np.maximum(moved - cut[np.nonzero(ordered > cut)[0][-1]], 0)
        faster = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = after + (momentum - 1) / faster * (after - weights)
        weights, momentum = after, faster
    return weights


def mixed_by_hand(parts: dict[str, list[Tensor]], method: str) -> list[Tensor]:
    flat = torch.stack([torch.cat([gradient.flatten() for gradient in part]) for part in parts.values()])
    gram = (flat @ flat.T).numpy()
    count = len(parts)
    weights = shortest_weights(gram)
    if method == "mmpareto":
        agree = (gram[~np.eye(count, dtype=bool)] > 0).all()
        weights = 1.5 * count * (np.full(count, 1 / count) if agree else weights)
    mixed = [
        sum(float(w) * g for w, g in zip(weights, of_tensor, strict=True))
        for of_tensor in zip(*parts.values(), strict=True)
    ]
    if method == "mmpareto":
        plain = [torch.stack(of_tensor).sum(0) for of_tensor in zip(*parts.values(), strict=True)]
        mixed = [m * max(1.0, float(1.5 * p.norm() / m.norm())) for m, p in zip(mixed, plain, strict=True)]
    return mixed


def check_heads(model: Entangled, data: Data) -> None:
    """Here the fused head learns from the fused loss, and the others from their own."""
    losses = losses_of(model, data)
    for objective, loss in losses.items():
        head = model.fused if objective == "fused" else model.heads[objective]
        expected = torch.autograd.grad(loss.mean(), list(head.parameters()), retain_graph=True)
        for parameter, gradient in zip(head.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


@CASES
@pytest.mark.parametrize("method", ["mgda", "mmpareto"])
def test_mixtures_are_those_of_all_gradients(method: str, kind: str, count: int, seed: int) -> None:
    model, data = ENTANGLED[kind](count, seed), batch(names(count), seed=seed)
    balancer = attached(MGDA() if method == "mgda" else MMPareto(), model)
    with warned_of(model):
        balancer(losses_of(model, data)).backward()
    for _, tensors in blocks_of(model):
        expected = mixed_by_hand(all_gradients(model, data, tensors), method)
        assert max(float(gradient.norm()) for gradient in expected) > 1e-6
        for tensor, gradient in zip(tensors, expected, strict=True):
            torch.testing.assert_close(tensor.grad, gradient, rtol=1e-5, atol=1e-7)
    check_heads(model, data)


def ogm_factors(losses: dict[str, Tensor]) -> dict[str, float]:
    likely = {name: float((-loss.detach()).exp().mean()) for name, loss in losses.items() if name != "fused"}
    factors = {}
    for name, own in likely.items():
        ahead = float(np.mean([own / other for key, other in likely.items() if key != name]))
        factors[name] = 1 - math.tanh(0.8 * ahead) if ahead > 1 else 1.0
    return factors


def agm_factors(losses: dict[str, Tensor]) -> dict[str, float]:
    scores = {name: float(loss.detach().mean()) for name, loss in losses.items() if name != "fused"}
    factors = {}
    for name, own in scores.items():
        others = float(np.mean([other for key, other in scores.items() if key != name]))
        factors[name] = math.exp(1.5 * (1 - math.exp(others - own)))
    return factors


@CASES
@pytest.mark.parametrize("method", ["ogm", "agm"])
def test_modulation_is_a_factor_on_the_fused_gradient(method: str, kind: str, count: int, seed: int) -> None:
    model, data = ENTANGLED[kind](count, seed), batch(names(count), seed=seed)
    balancer = attached(OGM() if method == "ogm" else AGM(strength=1.5, form="fast"), model)
    losses = losses_of(model, data)
    with warned_of(model):
        balancer(losses).backward()
    factors = (ogm_factors if method == "ogm" else agm_factors)(losses)
    assert len({round(factor, 6) for factor in factors.values()}) > 1
    for owners, tensors in blocks_of(model):
        factor = float(np.mean([factors[name] for name in owners]))
        for tensor, gradient in zip(tensors, all_gradients(model, data, tensors)["fused"], strict=True):
            torch.testing.assert_close(tensor.grad, factor * gradient, rtol=1e-9, atol=1e-12)
    check_heads(model, data)

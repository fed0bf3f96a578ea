"""Every method of the library under one name each, and the plain loop that other ways to train are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from equipoise import (
    AGM,
    ARL,
    CGGM,
    DGL,
    EW,
    GAP,
    MCR,
    MGDA,
    MIMO,
    MLB,
    MSES,
    MSL,
    MSLR,
    OGM,
    OGMGE,
    PDMP,
    SMP,
    Balancer,
    InfoReg,
    MMPareto,
    PrimalDual,
    Relearn,
    Unimodal,
    Window,
)
from equipoise.testing import balanced, batch, beside, losses_of

Data = tuple[dict[str, Tensor], Tensor]

METHODS: dict[str, Callable[[], Balancer]] = {
    "mimo": MIMO,
    "mimo-hard": lambda: MIMO(smoothing=0.0, floor=0.5),
    "mimo-double": lambda: MIMO(penalty=5.0, smoothing=1e-3, overflow="double"),
    "mimo-plain-heads": lambda: MIMO(smoothing=0.5, heads="plain"),
    "mimo-relative": lambda: MIMO(relative=True, optimum=0.1),
    "primaldual": lambda: PrimalDual(optimum=0.2, rate=0.5),
    "primaldual-scaled-heads": lambda: PrimalDual(optimum="zero", rate=0.5, heads="scaled", memory=2),
    "msl": MSL,
    "ew": lambda: EW(0.5),
    "unimodal": Unimodal,
    "mgda": MGDA,
    "mgda-features": lambda: MGDA(at="features"),
    "mmpareto": MMPareto,
    "mmpareto-encoder": lambda: MMPareto(rescale="encoder"),
    "mmpareto-features": lambda: MMPareto(at="features"),
    "ogm": OGM,
    "ogmge": OGMGE,
    "agm": lambda: AGM(strength=1.5, form="fast"),
    "mslr": lambda: MSLR(memory=1),
    "mses": lambda: MSES(patience=0),
    "smp": lambda: SMP(stage=2),
    "inforeg": InfoReg,
    "relearn": lambda: Relearn(every=2),
    "dgl": DGL,
    "mlb": lambda: MLB(ceiling=1.5),
    "arl": ARL,
    "arl-released": lambda: ARL(form="released"),
    "pdmp": PDMP,
    "cggm": CGGM,
    "gap": lambda: GAP(modality="audio"),
    "gap-released": lambda: GAP(modality="audio", form="released", start=1),
    "mcr": lambda: MCR(penalty=0.5),
    "mcr-collaborative": lambda: MCR(penalty=0.5, game="collaborative", weight=0.3),
}

_ROUTES = {name: make().route for name, make in METHODS.items()}
LOSS_ROUTE = [name for name, route in _ROUTES.items() if route == "loss"]
GRADIENT_PATH = [name for name, route in _ROUTES.items() if route != "loss"]
MIXING = [name for name, route in _ROUTES.items() if route == "gram"]
WEIGHING = [name for name, route in _ROUTES.items() if route != "gram"]
MODULATING = [name for name, make in METHODS.items() if make().modulates]


def metrics(modalities: Sequence[str], epoch: int, shift: float = 0.0) -> dict[str, dict[str, float]]:
    """Validation metrics by which MSES stops the first modality after epoch 1, and MSLR gives each its own rate."""
    return {
        name: {
            "loss": 1.0 + 0.5 * epoch + shift if place == 0 else 1 / (1 + epoch) + shift,
            "accuracy": 0.3 + 0.05 * epoch * (place + 1) + 0.1 * shift,
            "purity_train": 0.7 + 0.02 * epoch,
            "purity_validation": 0.4 + 0.1 * place + 0.1 * shift,
        }
        for place, name in enumerate(modalities)
    }


def taught(balancer: Balancer, modalities: Sequence[str]) -> Balancer:
    """After two epochs, so that the methods that learn from epochs have something to do."""
    for epoch in range(2):
        balancer.end_epoch(metrics(modalities, epoch))
    return balancer


def batches(modalities: Sequence[str], steps: int, size: int = 12) -> list[Data]:
    """One batch per step."""
    return [batch(modalities, size, seed) for seed in range(steps)]


def part(data: Data, start: int, stop: int | None, step: int = 1) -> Data:
    """Some samples of a batch."""
    inputs, label = data
    return {name: values[start:stop:step] for name, values in inputs.items()}, label[start:stop:step]


def train(
    balancer: Balancer, model: nn.Module, data: Sequence[Data], optimizer: torch.optim.Optimizer, accumulate: int = 1
) -> None:
    """The plain loop."""
    for number, one in enumerate(data):
        (balanced(balancer, losses_of(model, one)) / accumulate).backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def opened(window: Window, losses: Sequence[dict[str, Tensor]], **more: Any) -> AbstractContextManager[None]:
    """Open a window on the losses of micro-batches, with scores for a method that needs some."""
    balancer = window.balancer
    scored = balancer.scored_by or balancer.scored_samples
    scores = [beside(balancer, one)["scores"] for one in losses] if scored else None
    return window.open(losses, scores=scores, **more)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], *, atol: float = 0.0, context: Any = "") -> None:
    """The same tensors under the same names; without ``atol``, to the bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=atol, msg=lambda m, n=name: f"{context} {n}: {m}")

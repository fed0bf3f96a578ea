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
    MCR,
    MGDA,
    MIMO,
    MLB,
    MSES,
    MSL,
    MSLR,
    OGM,
    OGMGE,
    SMP,
    Balancer,
    Barrier,
    InfoReg,
    Mixing,
    MMPareto,
    PrimalDual,
    Relearn,
    Unimodal,
    Weighting,
    Window,
)
from equipoise.balance.reading import GivenStep
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
    "barrier": Barrier,
    "mgda": MGDA,
    "mgda-features": lambda: MGDA(at="features"),
    "mmpareto": MMPareto,
    "mmpareto-encoder": lambda: MMPareto(rescale="encoder"),
    "mmpareto-features": lambda: MMPareto(at="features"),
    "ogm": OGM,
    "ogmge": OGMGE,
    "agm": lambda: AGM(strength=1.5, form="fast"),
    "agm-published": lambda: AGM(strength=1.5, form="published"),
    "mslr": lambda: MSLR(memory=1),
    "mses": lambda: MSES(patience=0),
    "smp": lambda: SMP(stage=2),
    "inforeg": InfoReg,
    "relearn": lambda: Relearn(every=2),
    "dgl": DGL,
    "mlb": lambda: MLB(ceiling=1.5),
    "arl": ARL,
    "arl-released": lambda: ARL(form="released"),
    "cggm": CGGM,
    "mcr": lambda: MCR(penalty=0.5),
    "mcr-collaborative": lambda: MCR(penalty=0.5, game="collaborative", weight=0.3),
}

_MADE = {name: make() for name, make in METHODS.items()}
SUMS = [name for name, one in _MADE.items() if not one.needs.takes_gradients]
GRADIENT_PATH = [name for name, one in _MADE.items() if one.needs.takes_gradients]
MIXING = [name for name, one in _MADE.items() if isinstance(one, Mixing)]
WEIGHING = [name for name, one in _MADE.items() if isinstance(one, Weighting)]
MODULATING = [name for name, one in _MADE.items() if one.needs.factors]

# What holds of the engine whatever the method, such as ranks, precision or compilers, is tried with one of each shape
# of answer; test_coefficients.py says if a method has another shape.
SHAPES = [
    "ew",  # one weighted sum, by weights that are known beforehand
    "mimo",  # by weights that follow from the losses, and from a state that each step of an optimiser moves
    "primaldual-scaled-heads",  # by a state that moves on with each backward pass
    "msl",  # the fused loss alone, the other losses on own heads
    "ogm",  # that, times a factor for each encoder
    "mlb",  # a sum times a factor for each encoder, and another for heads
    "dgl",  # a sum without the fused loss, and the fused loss alone for its head
    "mcr",  # a sum for each encoder, of further objectives too
    "agm-published",  # further objectives in the place of the fused loss
    "mgda",  # a mixture of each encoder's gradients that these decide
    "mgda-features",  # decided where encoders end
    "cggm",  # a factor by scores that are given, and a loss of its own, made of gradients
    "inforeg",  # a loss of its own, made of copies of the encoders
    "ogmge",  # a factor, and a change of gradients, by a generator of random numbers
    "relearn",  # a change of encoders after a step, by copies
]
ONE_SUM = [*SUMS, "inforeg"]  # by one plain backward pass


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
    scores = [beside(balancer, one)["scores"] for one in losses] if balancer.needs.given_scores else None
    return window.open(losses, scores=scores, **more)


def factors_of(
    balancer: Balancer, losses: dict[str, Tensor], scores: dict[str, Tensor] | None = None
) -> dict[str, float]:
    """The factors that a method answers to some losses, by modality; no step is taken."""
    with torch.no_grad():
        answer = balancer.decide(balancer.read(GivenStep(losses, scores)).losses)
    assert answer is not None
    assert answer.factors is not None
    return dict(zip(balancer.modalities, answer.factors.tolist(), strict=True))


def score_of(balancer: Balancer, losses: Tensor) -> float:
    """The score of a modality whose samples have these losses."""
    return float(balancer.read(GivenStep({"fused": losses, "audio": losses})).losses.scores)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], *, atol: float = 0.0, context: Any = "") -> None:
    """The same tensors under the same names; without ``atol``, to the bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=atol, msg=lambda m, n=name: f"{context} {n}: {m}")

"""Sources of f* over learning rates, on the generated data of examples/trajectory.py: the table of docs/optimum.md.

    python benchmarks/optimum.py                 # about five minutes on one core; --seeds 1 for a look

Every line trains the same model from the same start. A uni-modal run and a twin have the learning rate of the run that
asks, but for the line with numbers, whose uni-modal run had 0.2, a good rate. Seeds draw data, weights and batches. A
run that diverges counts as one that guesses: 25.
"""

import argparse
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import EW, MIMO, MSL, Balancer, LateFusion, PrimalDual, Trajectory, Unimodal
from equipoise.models import MLP

CLASSES, SIZE, SAMPLES, EPOCHS, BATCH = 4, 40, 2000, 4, 50
NOISE = {"audio": 10.0, "video": 2.0}
SCALE = {"audio": 1.0, "video": 0.2}
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
GOOD = 0.2

Data = tuple[dict[str, Tensor], Tensor]
LINES: dict[str, Callable[[int, float], Balancer]] = {
    "joint training": lambda *_: MSL(),
    "EW": lambda *_: EW(),
    "EW at λ/K": lambda *_: EW(MIMO().penalty / len(NOISE)),
    "MIMO, zero": lambda *_: MIMO(),
    "MIMO, final": lambda seed, rate: MIMO(optimum=alone(seed, rate).final()),
    "MIMO, trajectory": lambda seed, rate: MIMO(optimum=alone(seed, rate)),
    "MIMO, twin": lambda *_: MIMO(optimum="twin"),
    "MIMO, numbers": lambda seed, _: MIMO(optimum=alone(seed, GOOD).final()),
    "PrimalDual, trajectory": lambda seed, rate: PrimalDual(alone(seed, rate)),
    "PrimalDual, twin": lambda *_: PrimalDual("twin"),
    "PrimalDual, numbers": lambda seed, _: PrimalDual(alone(seed, GOOD).final()),
}


@cache
def generated(seed: int) -> tuple[Data, Data]:
    """Draw what is trained on, and as many unseen samples."""
    random = torch.Generator().manual_seed(seed)
    points = {name: torch.randn(CLASSES, SIZE, generator=random) for name in NOISE}

    def measure() -> Data:
        labels = torch.randint(CLASSES, (SAMPLES,), generator=random)
        inputs = {}
        for name, rows in points.items():
            noise = torch.randn(SAMPLES, SIZE, generator=random)
            inputs[name] = SCALE[name] * (rows[labels] + NOISE[name] * noise)
        return inputs, labels

    return measure(), measure()


@cache
def alone(seed: int, rate: float) -> Trajectory:
    """Record a uni-modal run."""
    trajectory = Trajectory()
    train(Unimodal(), seed, rate, trajectory)
    return trajectory


def losses_of(model: LateFusion, inputs: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
    """Return one loss per sample, by objective."""
    return {name: F.cross_entropy(z, labels, reduction="none") for name, z in model(inputs).items()}


def train(balancer: Balancer, seed: int, rate: float, trajectory: Trajectory | None = None) -> float:
    """Train, and return the accuracy of the fused decision on unseen samples, in %."""
    (inputs, labels), (unseen, answers) = generated(seed)
    torch.manual_seed(1000 + seed)
    model, beside = (LateFusion({name: MLP(SIZE) for name in NOISE}, classes=CLASSES) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    balancer.attach(model)
    twin, own = torch.optim.SGD(beside.parameters(), lr=rate), Unimodal().attach(beside)
    for _ in range(EPOCHS):
        for batch in torch.randperm(SAMPLES).split(BATCH):
            if isinstance(balancer, (MIMO, PrimalDual)) and balancer.source == "twin":
                some = batch[:: balancer.every]
                losses = losses_of(beside, {name: x[some] for name, x in inputs.items()}, labels[some])
                balancer.track(losses)
                twin.zero_grad()
                own(losses).backward()
                twin.step()
            losses = losses_of(model, {name: x[batch] for name, x in inputs.items()}, labels[batch])
            if trajectory is not None:
                trajectory.record(losses)
            optimizer.zero_grad()
            balancer(losses if balancer.needs_unimodal else {"fused": losses["fused"]}).backward()
            optimizer.step()
    with torch.no_grad():
        return 100 * (model.predict(unseen).argmax(dim=1) == answers).float().mean().item()


def accuracy(balancer: Balancer, seed: int, rate: float) -> float:
    """Return the accuracy of a run; one that diverges guesses."""
    try:
        return train(balancer, seed, rate)
    except FloatingPointError:
        return 100 / CLASSES


def main() -> None:
    """Print the table, each line as soon as it is measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| | {' | '.join(f'{rate:g}' for rate in RATES)} | mean |\n|---|{'---|' * (len(RATES) + 1)}", flush=True)
    for title, make in LINES.items():
        cells = []
        for rate in RATES:
            found = [accuracy(make(seed, rate), seed, rate) for seed in range(given.seeds)]
            cells.append(sum(found) / len(found))
        cells.append(sum(cells) / len(cells))
        print(f"| {title} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()

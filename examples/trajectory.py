"""Do not ask a hard sensor for what it cannot give: f* from a uni-modal run, step by step."""

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import MIMO, Balancer, LateFusion, Trajectory, Unimodal
from equipoise.models import MLP

torch.set_num_threads(1)
torch.manual_seed(0)

# The data is generated: video shows the class, on a small scale; audio is nearly all noise, so that its loss cannot
# come near zero. To MIMO with f* = 0 audio seems to be behind for ever, and it is given weight that video could use.
CLASSES = 4
POINTS = {"audio": torch.randn(CLASSES, 40), "video": torch.randn(CLASSES, 40)}
NOISE = {"audio": 10.0, "video": 2.0}
SCALE = {"audio": 1.0, "video": 0.2}


def measure(count: int) -> tuple[dict[str, Tensor], Tensor]:
    labels = torch.randint(CLASSES, (count,))
    clean = {name: points[labels] for name, points in POINTS.items()}
    return {name: SCALE[name] * (x + NOISE[name] * torch.randn_like(x)) for name, x in clean.items()}, labels


inputs, labels = measure(2000)
unseen, answers = measure(2000)


def train(balancer: Balancer, rate: float, trajectory: Trajectory | None = None) -> tuple[float, float]:
    """Accuracy on unseen data, and audio's mean share of the uni-modal weight."""
    torch.manual_seed(1)
    model = LateFusion({name: MLP(40) for name in POINTS}, classes=CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    shares = []
    for _ in range(4):
        for batch in torch.randperm(len(labels)).split(50):
            outputs = model({name: x[batch] for name, x in inputs.items()})
            losses = {name: F.cross_entropy(z, labels[batch], reduction="none") for name, z in outputs.items()}
            if trajectory is not None:
                trajectory.record(losses)
            loss = balancer(losses)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            table = balancer.table
            shares.append(table.at("audio", "own heads") / table.values[1:, -1].sum())
    right = model.predict(unseen).argmax(dim=1) == answers
    return 100 * right.float().mean().item(), torch.stack(shares).mean().item()


# The uni-modal run has to be a good one: a sensor that it leaves untrained is one that MIMO will not wait for either.
trajectory = Trajectory()
train(Unimodal(), 0.2, trajectory)
print("a uni-modal run ends at", {name: round(loss, 2) for name, loss in trajectory.final().items()})
for title, balancer in {
    "optimum zero": MIMO(),
    "optimum at the end": MIMO(optimum=trajectory.final()),
    "optimum by step": MIMO(optimum=trajectory),
}.items():
    accuracy, share = train(balancer, 0.02)
    print(f"{title:19s} fused {accuracy:5.1f} %   audio has {100 * share:3.0f} % of the weight")

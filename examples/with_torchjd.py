"""TorchJD: its PCGrad as a balancing method, and our MGDA as one of its aggregators."""

import torch
from torch.nn import functional as F
from torchjd.aggregation import GramianWeightedAggregator, PCGrad
from torchjd.autojac import backward, jac_to_grad

from equipoise import MGDA, LateFusion
from equipoise.data.bundled import two_sensors
from equipoise.integrations.torchjd import ToTorchJD, from_torchjd
from equipoise.models import MLP

torch.manual_seed(0)
torch.set_num_threads(1)
data = two_sensors(samples=300)


def losses_of(model: LateFusion, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    batch = data.train.take(rows)
    return {name: F.cross_entropy(z, batch.label, reduction="none") for name, z in model(batch.inputs).items()}


def percent_right(model: LateFusion) -> float:
    fused = model.predict(data.validation.inputs)
    return 100 * (fused.argmax(dim=1) == data.validation.label).float().mean().item()


def fresh() -> tuple[LateFusion, torch.optim.Optimizer]:
    model = LateFusion({"easy": MLP(8), "hard": MLP(12)}, classes=3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


model, optimizer = fresh()
balancer = from_torchjd(PCGrad()).attach(model)
for _ in range(4):
    for rows in torch.randperm(len(data.train)).split(30):
        optimizer.zero_grad()
        balancer(losses_of(model, rows)).backward()
        optimizer.step()
print(balancer.table)
print(f"PCGrad on each encoder  {percent_right(model):.1f} %")

model, optimizer = fresh()
aggregator = GramianWeightedAggregator(ToTorchJD(MGDA()))
for _ in range(4):
    for rows in torch.randperm(len(data.train)).split(30):
        optimizer.zero_grad()
        backward([loss.mean() for loss in losses_of(model, rows).values()])
        jac_to_grad(list(model.parameters()), aggregator)
        optimizer.step()
print(f"MGDA on all parameters  {percent_right(model):.1f} %")

"""Train a model on two sensors and say how well it reads each. `plain.py` and `balanced.py` differ by three lines."""

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import MIMO, LateFusion
from equipoise.models import MLP

torch.manual_seed(0)
torch.set_num_threads(1)

# The data is generated. Every class is a point in 40 dimensions, which each sensor sees through noise of its own. Audio
# is easy and learnt fast. Video sees more clearly, but on half the scale, and as often as not it shows the mirror image
# of the point: an encoder has to learn what the two have in common, and that takes time.
CLASSES = 4
POINTS = {"audio": torch.randn(CLASSES, 40), "video": torch.randn(CLASSES, 40)}
NOISE = {"audio": 2.5, "video": 1.5}


def measure(count: int) -> tuple[dict[str, Tensor], Tensor]:
    labels = torch.randint(CLASSES, (count,))
    seen = {name: points[labels] + NOISE[name] * torch.randn(count, 40) for name, points in POINTS.items()}
    mirror = torch.randint(2, (count, 1)) * 2 - 1
    return {"audio": seen["audio"], "video": 0.5 * mirror * seen["video"]}, labels


def percent_right(probabilities: Tensor, labels: Tensor) -> float:
    return 100 * (probabilities.argmax(dim=1) == labels).float().mean().item()


inputs, labels = measure(600)
model = LateFusion({name: MLP(40) for name in POINTS}, classes=CLASSES)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
balancer = MIMO(penalty=10.0, smoothing=0.1)

for _ in range(20):
    for batch in torch.randperm(len(labels)).split(50):
        outputs = model({name: x[batch] for name, x in inputs.items()})
        loss = balancer({name: F.cross_entropy(z, labels[batch], reduction="none") for name, z in outputs.items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# On data it has not seen: the fused head with both sensors, then with only one of them working.
unseen, answers = measure(2000)
print(f"both sensors  {percent_right(model.predict(unseen), answers):5.1f} %")
for name, x in unseen.items():
    print(f"{name} alone   {percent_right(model.predict({name: x}), answers):5.1f} %")

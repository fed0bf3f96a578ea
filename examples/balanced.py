"""Train a model on two sensors and say how well it reads each. `plain.py` and `balanced.py` differ by three lines."""

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import MIMO, LateFusion, encoder_for

torch.manual_seed(0)
torch.set_num_threads(1)

# The data is generated. Every class is a point in 40 dimensions, which each sensor sees through noise of its own.
# Video sees more clearly than audio, but on a tenth of the scale: what it knows is learnt ten times more slowly.
CLASSES = 4
POINTS = {"audio": torch.randn(CLASSES, 40), "video": torch.randn(CLASSES, 40)}
NOISE = {"audio": 2.5, "video": 2.0}
SCALE = {"audio": 1.0, "video": 0.1}


def measure(count: int) -> tuple[dict[str, Tensor], Tensor]:
    labels = torch.randint(CLASSES, (count,))
    clean = {name: points[labels] for name, points in POINTS.items()}
    return {name: SCALE[name] * (x + NOISE[name] * torch.randn_like(x)) for name, x in clean.items()}, labels


def percent_right(probabilities: Tensor, labels: Tensor) -> float:
    return 100 * (probabilities.argmax(dim=1) == labels).float().mean().item()


inputs, labels = measure(600)
model = LateFusion({name: encoder_for((40,)) for name in POINTS}, classes=CLASSES)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
balancer = MIMO(penalty=10.0, smoothing=0.1)

for _ in range(20):
    for batch in torch.randperm(len(labels)).split(50):
        outputs = model({name: x[batch] for name, x in inputs.items()})
        loss = balancer({name: F.cross_entropy(logits, labels[batch]) for name, logits in outputs.items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# On data it has not seen: the fused head with both sensors, then with only one of them working.
unseen, answers = measure(2000)
print(f"both sensors  {percent_right(model.predict(unseen), answers):5.1f} %")
for name, x in unseen.items():
    print(f"{name} alone   {percent_right(model.predict({name: x}), answers):5.1f} %")

"""What is left when a sensor fails: the fused head against the committee of all heads."""

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise import MIMO, LateFusion, fit_committee
from equipoise.models import MLP

torch.manual_seed(0)
torch.set_num_threads(1)

# The data is generated: 30 persons perform 5 gestures, each in a way of their own, and three sensors take part.
GESTURES, PERSONS = 5, 30
POINTS = {name: torch.randn(GESTURES, 16) for name in ("wrist", "ankle", "chest")}
HABITS = {name: 0.7 * torch.randn(PERSONS, GESTURES, 16) for name in POINTS}
NOISE = {"wrist": 1.0, "ankle": 1.6, "chest": 2.2}


def perform(persons: range) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    person = torch.tensor(persons).repeat_interleave(40)
    label = torch.randint(GESTURES, (len(person),))
    clean = {name: points[label] + HABITS[name][person, label] for name, points in POINTS.items()}
    return {name: x + NOISE[name] * torch.randn_like(x) for name, x in clean.items()}, label, person


def percent_right(probabilities: Tensor, labels: Tensor) -> float:
    return 100 * (probabilities.argmax(dim=1) == labels).float().mean().item()


# No person is in two of these: what is measured is how well the model reads people it has never met.
inputs, labels, _ = perform(range(16))
validation = perform(range(16, 23))
unseen, answers, _ = perform(range(23, 30))

model = LateFusion({name: MLP(16, features=32) for name in POINTS}, classes=GESTURES)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
balancer = MIMO(penalty=3.0, smoothing=0.1)
for _ in range(30):
    for batch in torch.randperm(len(labels)).split(40):
        outputs = model({name: x[batch] for name, x in inputs.items()})
        loss = balancer({name: F.cross_entropy(z, labels[batch], reduction="none") for name, z in outputs.items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

fit = fit_committee(model, validation)  # inputs, labels and, as groups, the persons
print("weights:", {name: round(w, 2) for name, w in zip(["fused", *POINTS], fit.weights.tolist(), strict=True)})
for missing in (None, *POINTS):
    left = {name: x for name, x in unseen.items() if name != missing}
    fused = percent_right(model.predict(left, decision="fused"), answers)
    committee = percent_right(model.predict(left, decision="committee"), answers)
    print(f"missing: {missing or 'none':6s} fused {fused:5.1f} %   committee {committee:5.1f} %")

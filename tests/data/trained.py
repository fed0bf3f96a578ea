"""Two epochs at small size: that prepared data and the models for it fit together."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from equipoise.data.splits import Part
from equipoise.models.late_fusion import LateFusion


def check_it_trains(model: LateFusion, part: Part) -> None:
    """Two epochs of plain training change the model, and leave it finite."""
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(2):
        ready = part.solid().ready(torch.Generator().manual_seed(epoch))
        outputs = model(ready.inputs)
        loss = torch.stack([F.cross_entropy(logits, ready.label) for logits in outputs.values()]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert parameter.isfinite().all()
        assert parameter.dim() == 1 or not torch.equal(parameter, old)  # a bias may have no say

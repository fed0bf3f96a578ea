"""Accelerate: attach the balancer to what `prepare` gives back, and let the accelerator call `backward`.

Run it alone, or on several processes: accelerate launch --multi_gpu --num_processes 2 examples/with_accelerate.py
"""

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.utils.data import DataLoader, StackDataset

from equipoise import LateFusion, MMPareto
from equipoise.data.bundled import two_sensors
from equipoise.models import MLP

torch.manual_seed(0)
torch.set_num_threads(1)
data = two_sensors(samples=300)
samples = StackDataset(**data.train.inputs, label=data.train.label)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)  # leave cpu out to let it choose
model = LateFusion({"easy": MLP(8), "hard": MLP(12)}, classes=3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(samples, batch_size=15, shuffle=True))
balancer = MMPareto().attach(model, optimizer=optimizer)
accelerator.register_for_checkpointing(balancer)

for _ in range(4):
    for batch in batches:
        label = batch.pop("label")
        with accelerator.accumulate(model):
            losses = {name: F.cross_entropy(logits, label, reduction="none") for name, logits in model(batch).items()}
            accelerator.backward(balancer(losses))
            optimizer.step()
            optimizer.zero_grad()
    balancer.end_epoch()

if accelerator.is_main_process:
    print(balancer.table)
    fused = accelerator.unwrap_model(model).predict(data.validation.inputs)
    print(f"fused  {100 * (fused.argmax(dim=1) == data.validation.label).float().mean():.1f} %")

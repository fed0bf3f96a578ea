"""Lightning: the module keeps the balancer, a callback logs its table and ends its epochs."""

import logging

import lightning
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from equipoise import MSLR, LateFusion
from equipoise.data.bundled import two_sensors
from equipoise.data.splits import Part
from equipoise.integrations.lightning import BalanceCallback
from equipoise.models import MLP

Batch = tuple[dict[str, Tensor], Tensor]

lightning.seed_everything(0, verbose=False)
torch.set_num_threads(1)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
data = two_sensors(samples=300)


def loader(part: Part) -> DataLoader:
    samples = [({name: x[row] for name, x in part.inputs.items()}, part.label[row]) for row in range(len(part))]
    return DataLoader(samples, batch_size=30)


class Module(lightning.LightningModule):
    """What a user of Lightning writes. MSLR sets a learning rate per sensor, from validation accuracy."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LateFusion({"easy": MLP(8), "hard": MLP(12)}, classes=3)
        self.balancer = MSLR(memory=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The balancer is told of the model and the optimiser here, where both are there."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.balancer.attach(self.model, optimizer=optimizer)
        return optimizer

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """The balanced loss; Lightning does the rest."""
        inputs, label = batch
        outputs = self.model(inputs)
        return self.balancer({name: F.cross_entropy(z, label, reduction="none") for name, z in outputs.items()})

    def validation_step(self, batch: Batch, _: int) -> None:
        """What MSLR learns from."""
        inputs, label = batch
        for name, logits in self.model(inputs).items():
            self.log(f"val/{name}/accuracy", (logits.argmax(dim=1) == label).float().mean())


trainer = lightning.Trainer(
    max_epochs=4,
    accelerator="cpu",
    callbacks=[BalanceCallback(metrics="val/{modality}/{metric}")],
    log_every_n_steps=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
module = Module()
trainer.fit(module, loader(data.train), loader(data.validation))
for name, value in trainer.logged_metrics.items():
    if name.startswith("balance/fused/"):
        print(f"{name}  {value:.2f}")
for name in ("fused", "easy", "hard"):
    print(f"{name}  {100 * trainer.callback_metrics[f'val/{name}/accuracy']:.1f} %")

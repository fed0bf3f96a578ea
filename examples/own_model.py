"""Balance a model of your own: name its encoders, hand over the optimiser, keep the loop."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import OGMGE

torch.manual_seed(0)
torch.set_num_threads(1)


class Listener(nn.Module):
    """A model as a user may have it: nothing in it knows of balancing."""

    def __init__(self) -> None:
        super().__init__()
        self.ear = nn.Sequential(nn.Linear(20, 32), nn.ReLU())
        self.eye = nn.Sequential(nn.Conv1d(3, 16, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.decide = nn.Linear(32 + 16, 3)
        self.from_ear, self.from_eye = nn.Linear(32, 3), nn.Linear(16, 3)

    def forward(self, sound: Tensor, motion: Tensor) -> dict[str, Tensor]:
        """Class scores from both sensors, and from each."""
        heard, seen = self.ear(sound), self.eye(motion)
        return {
            "fused": self.decide(torch.cat([heard, seen], dim=1)),
            "sound": self.from_ear(heard.detach()),  # says who is ahead, without teaching the encoder
            "motion": self.from_eye(seen.detach()),
        }


def measure(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Generated data: the class moves the mean of the sound and the pitch of the motion."""
    labels = torch.randint(3, (count,))
    sound = torch.randn(count, 20) + 0.5 * labels[:, None]
    time = torch.arange(50) * (0.2 + 0.2 * labels[:, None]) + 6 * torch.rand(count, 1)
    motion = time.sin()[:, None, :] + 0.5 * torch.randn(count, 3, 50)
    return sound, motion, labels


model = Listener()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
balancer = OGMGE(strength=0.8, stop=8)
balancer.attach(model, encoders={"sound": model.ear, "motion": "eye"}, optimizer=optimizer)

sound, motion, labels = measure(600)
for epoch in range(10):
    for batch in torch.randperm(600).split(50):
        outputs = model(sound[batch], motion[batch])
        # One loss per sample, so that the method can read off how sure each sensor is of the right class.
        losses = {name: F.cross_entropy(z, labels[batch], reduction="none") for name, z in outputs.items()}
        loss = balancer(losses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch == 0:
        print(balancer.table)
    balancer.end_epoch()

with torch.no_grad():
    sound, motion, labels = measure(1000)
    for name, logits in model(sound, motion).items():
        print(f"{name:7s} {100 * (logits.argmax(1) == labels).float().mean():5.1f} %")

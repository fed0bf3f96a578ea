"""A model that is shipped: exported with its missing-sensor rule, then watched while a sensor hangs."""

import tempfile
from pathlib import Path

import torch

from equipoise import MIMO
from equipoise.data.bundled import two_sensors
from equipoise.deploy import Deployable, export, fit_monitor
from equipoise.models import fit_committee
from equipoise.training.settings import Settings
from equipoise.training.train import train

splits = two_sensors(samples=1200, hard=1.0)
model = train(splits, MIMO(), Settings(epochs=5, features=16)).model.eval()
held_out, test = splits.validation, splits.test
fit_committee(model, (held_out.inputs, held_out.label, held_out.group))
monitor = fit_monitor(model, held_out)

file = export(Deployable(model, examples=test.inputs), Path(tempfile.mkdtemp()), to="torch-export").file
robot = torch.export.load(file).module()  # all that the robot has, beside the monitor


def right(flag: bool, hangs: bool) -> float:
    """Accuracy while the easy sensor is flagged missing, or hangs and nobody says so."""
    easy = test.inputs["easy"][:1].expand_as(test.inputs["easy"]) if hangs else test.inputs["easy"]
    there = torch.ones(len(test), dtype=torch.bool)
    inputs = {"easy": easy, "easy_valid": there & flag, "hard": test.inputs["hard"], "hard_valid": there}
    answers = robot(inputs)
    for window in range(10):
        heads = {name: answers[f"{name}_head"][window : window + 1] for name in ("easy", "hard")}
        verdict = monitor.update(heads, valid={"easy": torch.tensor([flag])})
    monitor.reset()
    print(f"the monitor after ten windows: {verdict.names()[0] or 'all is well'}")
    return 100 * (answers["committee"].argmax(dim=1) == test.label).double().mean().item()


print(f"both sensors: {right(flag=True, hangs=False):.1f} % right")
print(f"the easy one hangs: {right(flag=True, hangs=True):.1f} % right")
print(f"and its flag says so: {right(flag=False, hangs=True):.1f} % right")

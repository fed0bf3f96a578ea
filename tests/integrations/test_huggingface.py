"""The balanced Trainer, in Hugging Face's own loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import default_collate

from equipoise import MIMO
from equipoise.testing import SmallModel, batch, names
from everything import METHODS, assert_same, metrics, parameters_of, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("accelerate_state", "quiet")]  # it imports transformers


@pytest.fixture
def quiet() -> Iterator[None]:
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


def samples(count: int = 36) -> list[dict[str, Any]]:
    inputs, label = batch(names(2), count)
    return [{"inputs": {name: x[row] for name, x in inputs.items()}, "labels": label[row]} for row in range(count)]


def by_epoch(trainer: Any) -> Any:
    """Validation metrics that change from epoch to epoch, whatever was predicted."""

    def measured(_: Any) -> dict[str, float]:
        own = metrics(names(2), int(trainer[0].balancer.epoch))
        return {f"{name}_{metric}": value for name, each in own.items() for metric, value in each.items()}

    return measured


def trainer_for(method: str | Any, folder: Path, model: nn.Module | None = None, **options: Any) -> Any:
    from transformers import TrainingArguments

    from equipoise.integrations.huggingface import BalancedTrainer

    own = {name: options.pop(name) for name in ("losses", "encoders") if name in options}
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 12,
        "num_train_epochs": 3,
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        **options,
    }
    held: list[Any] = []
    held.append(
        BalancedTrainer(
            model or SmallModel(names(2)),
            TrainingArguments(**settings),
            balancer=METHODS[method]() if isinstance(method, str) else method,
            data_collator=default_collate,
            train_dataset=samples(),
            eval_dataset=samples(12),
            compute_metrics=by_epoch(held),
            **own,
        )
    )
    return held[0]


def seen_by(model: nn.Module) -> list[tuple[dict[str, Tensor], Tensor]]:
    """The inputs of every training step, as they come."""
    found: list[Any] = []
    known = {tuple(one["inputs"]["audio"].tolist()): one["labels"] for one in samples()}

    def note(module: nn.Module, _: Any, named: dict[str, Any]) -> None:
        if module.training:
            inputs = named["inputs"]
            found.append((inputs, torch.stack([known[tuple(row.tolist())] for row in inputs["audio"]])))

    model.register_forward_pre_hook(note, with_kwargs=True)
    return found


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("method", ["mimo", "mgda", "ogm", "mslr", "mses"])
def test_it_ends_where_the_plain_loop_ends(method: str, accumulate: int, tmp_path: Path) -> None:
    trainer = trainer_for(method, tmp_path, gradient_accumulation_steps=accumulate)
    seen = seen_by(trainer.model)
    trainer.train()
    model = SmallModel(names(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = METHODS[method]().attach(model, optimizer=optimizer)
    assert len(seen) == 9
    for epoch in range(3):
        train(balancer, model, seen[3 * epoch : 3 * epoch + 3], optimizer, accumulate)
        balancer.end_epoch(metrics(names(2), epoch))
    assert_same(parameters_of(trainer.model), parameters_of(model), atol=1e-12)
    assert trainer.balancer.table.numbers() == balancer.table.numbers()


def test_the_table_is_logged_beside_the_loss_and_evaluation_leaves_it(tmp_path: Path) -> None:
    trainer = trainer_for("mimo", tmp_path, num_train_epochs=1)
    trainer.train()
    last = [row for row in trainer.state.log_history if "loss" in row][-1]
    table = trainer.balancer.table
    assert last["balance/audio/own heads"] == pytest.approx(float(table.at("audio", "own heads")))
    assert sum(name.startswith("balance/") for name in last) == 7  # a loss reaches one encoder, and one kind of head
    found = trainer.evaluate()
    outputs = trainer.model({name: torch.stack([one["inputs"][name] for one in samples(12)]) for name in names(2)})
    labels = torch.stack([one["labels"] for one in samples(12)])
    assert found["eval_loss"] == pytest.approx(F.cross_entropy(outputs["fused"], labels).item(), abs=1e-5)
    assert trainer.balancer.table.numbers() == table.numbers()
    evaluations = [row for row in trainer.state.log_history if "eval_loss" in row]
    assert len(evaluations) == 2
    assert not any(name.startswith("balance/") for row in evaluations for name in row)


@pytest.mark.parametrize("how", [True, "path"])
def test_a_checkpoint_goes_on_where_it_stopped(how: Any, tmp_path: Path) -> None:
    through = trainer_for("mslr", tmp_path / "through")
    through.train()
    trainer_for("mslr", tmp_path / "stopped", num_train_epochs=2, save_strategy="epoch").train()
    resumed = trainer_for("mslr", tmp_path / "stopped")
    resumed.train(resume_from_checkpoint=how if how is True else str(tmp_path / "stopped" / "checkpoint-6"))
    assert int(resumed.balancer.epoch) == 3
    assert resumed.balancer.table.numbers() == through.balancer.table.numbers()
    assert_same(parameters_of(resumed.model), parameters_of(through.model), atol=1e-6)  # a checkpoint has floats


def test_metrics_that_are_missing_are_named(tmp_path: Path) -> None:
    trainer = trainer_for("mslr", tmp_path, eval_strategy="no")
    with pytest.raises(
        ValueError, match=r"MSLR learns from.*expected eval_audio_accuracy, eval_video_accuracy, found none"
    ):
        trainer.train()


class Own(nn.Module):
    """A model as a user may have it: flat inputs, outputs of its own kind, encoders under other names."""

    def __init__(self) -> None:
        super().__init__()
        self.ear, self.eye = nn.Linear(3, 4), nn.Linear(3, 4)
        self.both, self.one, self.other = nn.Linear(8, 3), nn.Linear(4, 3), nn.Linear(4, 3)
        self.double()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        heard, seen = self.ear(inputs["audio"]).tanh(), self.eye(inputs["video"]).tanh()
        return {"logits": self.both(torch.cat([heard, seen], 1)), "a": self.one(heard), "v": self.other(seen)}


def test_a_model_of_ones_own_names_its_encoders_and_its_losses(tmp_path: Path) -> None:
    def losses(outputs: Any, labels: Tensor) -> dict[str, Tensor]:
        wanted = {"fused": "logits", "audio": "a", "video": "v"}
        return {name: F.cross_entropy(outputs[key], labels) for name, key in wanted.items()}

    model = Own()
    before = parameters_of(model)
    trainer = trainer_for(
        "mgda", tmp_path, model, num_train_epochs=1, losses=losses, encoders={"audio": "ear", "video": model.eye}
    )
    trainer.train()
    table = trainer.balancer.table
    assert float(table.at("fused", "audio") + table.at("audio", "audio")) == pytest.approx(1)
    assert not any(torch.equal(tensor, before[name]) for name, tensor in parameters_of(model).items())


def test_pieces_fit_together_at_all(tmp_path: Path) -> None:
    """A balancer of another modality than the model has is refused when training starts."""
    balancer = MIMO()
    balancer.settle(["radar", "lidar"], torch.device("cpu"))
    with pytest.raises(ValueError, match="this balancer serves"):
        trainer_for(balancer, tmp_path).train()

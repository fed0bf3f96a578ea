"""The callback for Lightning, in Lightning's own Trainer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from equipoise import MIMO, Balancer
from equipoise.testing import SmallModel, balanced, losses_of, names
from everything import METHODS, Data, assert_same, batches, metrics, parameters_of, train

pytestmark = [
    pytest.mark.slow,  # it imports lightning
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings(r"ignore:The '\w+_dataloader' does not have many workers:UserWarning"),
]
EPOCHS, STEPS = 3, 3


def module_with(balancer: Balancer, *, inside: bool = True, logs: bool = True) -> Any:
    import lightning

    class Module(lightning.LightningModule):
        """What a user of Lightning writes."""

        def __init__(self) -> None:
            super().__init__()
            self.model = SmallModel(names(2))
            self.holder = torch.nn.ModuleDict({"method": balancer}) if inside else torch.nn.ModuleDict()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            balancer.attach(self.model, optimizer=optimizer)
            return optimizer

        def training_step(self, data: Data, _: int) -> Tensor:
            return balanced(balancer, losses_of(self.model, data))

        def validation_step(self, _: Data, __: int) -> None:
            for name, own in metrics(names(2), self.current_epoch).items() if logs else ():
                self.log_dict({f"val/{name}/{metric}": value for metric, value in own.items()})

    return Module()


def loader(data: Sequence[Data]) -> Any:
    return DataLoader(list(data), batch_size=None)  # ty: ignore[invalid-argument-type]


def fit(module: Any, callback: Any, epochs: int = EPOCHS, resume: Path | None = None, **options: Any) -> Any:
    import lightning

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[callback],
        log_every_n_steps=STEPS,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        **options,
    )
    data = batches(names(2), STEPS)
    trainer.fit(module, loader(data), loader(data[:1]), ckpt_path=resume, weights_only=True)
    return trainer


def plain(method: str) -> tuple[Balancer, dict[str, Tensor]]:
    model = SmallModel(names(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    balancer = METHODS[method]().attach(model, optimizer=optimizer)
    for epoch in range(EPOCHS):
        train(balancer, model, batches(names(2), STEPS), optimizer)
        balancer.end_epoch(metrics(names(2), epoch))
    return balancer, parameters_of(model)


@pytest.mark.parametrize("method", ["mimo", "mslr", "mses", "mmpareto"])
def test_epochs_end_with_the_metrics_of_their_validation(method: str) -> None:
    from equipoise.integrations.lightning import BalanceCallback

    balancer, expected = plain(method)
    module = module_with(METHODS[method]())
    callback = BalanceCallback()
    fit(module, callback)
    assert callback.balancer is module.holder["method"]
    assert int(callback.balancer.epoch) == EPOCHS
    assert callback.balancer.table.numbers() == balancer.table.numbers()
    assert_same(parameters_of(module.model), expected)


def test_the_table_is_logged() -> None:
    from equipoise.integrations.lightning import BalanceCallback

    trainer = fit(module_with(MIMO()), callback := BalanceCallback(prefix="c/"))
    logged = {name: float(value) for name, value in trainer.logged_metrics.items() if name.startswith("c/")}
    told = callback.balancer.table.numbers()
    expected = {f"c/{row}/{column}": value for row, own in told.items() for column, value in own.items()}
    assert logged == pytest.approx(expected)
    assert len(logged) == 7  # a loss reaches one encoder


def test_metrics_that_are_not_logged_are_named() -> None:
    from equipoise.integrations.lightning import BalanceCallback

    with pytest.raises(ValueError, match=r"MSLR learns from.*expected val/audio/accuracy, val/video/accuracy, found"):
        fit(module_with(METHODS["mslr"](), logs=False), BalanceCallback(), epochs=1)


def test_a_balancer_outside_the_module_is_saved_with_the_callback(tmp_path: Path) -> None:
    from equipoise.integrations.lightning import BalanceCallback

    _, expected = plain("mslr")
    kept = METHODS["mslr"]()
    first = module_with(kept, inside=False)
    trainer = fit(first, BalanceCallback(kept), epochs=2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    fresh = METHODS["mslr"]()
    second = module_with(fresh, inside=False)
    fit(second, BalanceCallback(fresh), epochs=3, resume=tmp_path / "two.ckpt")
    assert int(fresh.epoch) == 3
    assert_same(parameters_of(second.model), expected)


def test_a_module_without_a_balancer_is_told_what_to_do() -> None:
    from equipoise.integrations.lightning import BalanceCallback

    with pytest.raises(RuntimeError, match=re.escape("expected one balancer in Module, found 0; keep it there")):
        fit(module_with(MIMO(), inside=False), BalanceCallback(), epochs=1)
    with pytest.raises(RuntimeError, match="has not started yet"):
        _ = BalanceCallback().balancer

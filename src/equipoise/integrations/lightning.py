"""Lightning: a callback that logs the balancing table and tells the balancer when an epoch ends."""

from typing import Any, final

from equipoise.balance.balancer import Balancer
from equipoise.integrations import epoch_metrics, table_entries
from equipoise.util.extras import needs

with needs(__name__, "lightning"):
    import lightning


@final
class BalanceCallback(lightning.Callback):
    """Logs the table of a balancer every few steps, and ends its epochs with the validation metrics it needs.

    The balancer is the one in the module, wherever it stands there, and is then saved with the module. One that is
    kept elsewhere is given here, and its state goes into checkpoints with the callback's.

    Args:
        balancer: The balancer; None means the module's own.
        metrics: Names under which the module logs the validation metrics that methods learn from.
        prefix: Of the names under which the table is logged.

    Example:
        >>> balancing = BalanceCallback(metrics="val/{modality}/{metric}")
        >>> trainer = lightning.Trainer(callbacks=[balancing])  # doctest: +SKIP
    """

    def __init__(
        self, balancer: Balancer | None = None, *, metrics: str = "val/{modality}/{metric}", prefix: str = "balance/"
    ) -> None:
        self._given = self._balancer = balancer
        self.metrics, self.prefix = metrics, prefix

    @property
    def balancer(self) -> Balancer:
        """The balancer whose table is logged."""
        if self._balancer is None:
            raise RuntimeError("BalanceCallback finds its balancer when training starts, and it has not started yet")
        return self._balancer

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:  # noqa: ARG002
        """Find the balancer."""
        inside = [module for module in pl_module.modules() if isinstance(module, Balancer)]
        if self._given is None and len(inside) != 1:
            raise RuntimeError(
                f"BalanceCallback expected one balancer in {type(pl_module).__name__}, found {len(inside)}; keep it "
                "there as an attribute (self.balancer = MIMO()), or say which: BalanceCallback(balancer)"
            )
        self._balancer = self._given if self._given is not None else inside[0]
        self._kept_by_module = any(module is self._balancer for module in inside)

    def on_train_batch_end(self, trainer: Any, pl_module: lightning.LightningModule, *_: Any, **__: Any) -> None:
        """Log the table as often as the trainer logs anything: reading it waits for the device."""
        if trainer.global_step % trainer.log_every_n_steps == 0:
            entries = table_entries(self.balancer, self.prefix)
            pl_module.log_dict({name: value.float() for name, value in entries.items()})

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:  # noqa: ARG002
        """End the balancer's epoch. The validation of this epoch has been before."""
        self.balancer.end_epoch(epoch_metrics(self.balancer, trainer.callback_metrics, self.metrics))

    def state_dict(self) -> dict[str, Any]:
        """Give the balancer's state, where no module keeps it."""
        return {} if self._balancer is None or self._kept_by_module else self._balancer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state."""
        if state_dict:
            self.balancer.load_state_dict(state_dict)

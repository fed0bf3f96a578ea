"""Hugging Face's Trainer, with a balancer inside."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from equipoise.balance.attach import Encoder
from equipoise.balance.balancer import Balancer
from equipoise.integrations import epoch_metrics, table_entries
from equipoise.models.evaluation import cross_entropies
from equipoise.util.extras import needs

with needs(__name__, "transformers"):
    import transformers
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

STATE = "balancer.pt"
"""The balancer's state in the folder of a checkpoint."""


@final
class BalancedTrainer(transformers.Trainer):
    """A Trainer whose loss is balanced; everything else is the Trainer's own.

    The balancer is attached to the model and the optimiser when training starts, its table is logged with the loss, its
    epochs end with the Trainer's, and its state is saved in every checkpoint. Evaluation reports the fused loss, which
    means the same for every method.

    Args:
        given: As for `transformers.Trainer`: the model, the arguments, …
        balancer: The method.
        losses: Makes ``{"fused": …, "audio": …, "video": …}`` of the model's outputs and the labels. By default the
            model gives logits under these names, as LateFusion does.
        encoders: As for `Balancer.attach`; a model with a mapping ``encoders``, such as LateFusion, needs no telling.
        metrics: Names under which `compute_metrics` gives the validation metrics that methods learn from, with
            the Trainer's own prefix. They need ``eval_strategy="epoch"``.
        named: As for `transformers.Trainer`.
    """

    loss_is_scaled_for_ga = False  # means over micro-batches: the Trainer is to divide them

    def __init__(
        self,
        *given: Any,
        balancer: Balancer,
        losses: Callable[[Any, Any], Mapping[str, Tensor]] = cross_entropies,
        encoders: Mapping[str, Encoder] | None = None,
        metrics: str = "eval_{modality}_{metric}",
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        self.balancer, self.losses = balancer, losses
        self.label_names = self.label_names or ["labels"]
        self.add_callback(_BalancerCallback(self, encoders, metrics))

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, *_: Any, **__: Any) -> Any:
        """Compute the balanced loss in training, the fused one in evaluation; a mean needs no count of items."""
        outputs = model(**{name: value for name, value in inputs.items() if name not in self.label_names})
        labels = [inputs[name] for name in self.label_names if name in inputs]
        losses = self.losses(outputs, labels[0] if len(labels) == 1 else labels)
        loss = self.balancer(losses) if torch.is_grad_enabled() else losses["fused"].mean()
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *rest: Any, **named: Any) -> None:
        """Log the table beside the loss of training."""
        table = table_entries(self.balancer) if "loss" in logs else {}
        super().log({**logs, **{name: float(value) for name, value in table.items()}}, *rest, **named)

    def train(self, resume_from_checkpoint: str | bool | None = None, *rest: Any, **named: Any) -> Any:
        """Train, with the balancer's state too from the checkpoint to resume from."""
        resumed = resume_from_checkpoint
        folder = get_last_checkpoint(str(self.args.output_dir)) if resumed is True else resumed
        if folder:
            self.balancer.load_state_dict(torch.load(Path(folder) / STATE, map_location="cpu", weights_only=True))
        return super().train(resume_from_checkpoint, *rest, **named)


@final
class _BalancerCallback(transformers.TrainerCallback):
    """Tells a balancer what happens in training."""

    def __init__(self, trainer: BalancedTrainer, encoders: Mapping[str, Encoder] | None, metrics: str) -> None:
        self.trainer, self.encoders, self.metrics = trainer, encoders, metrics
        self._waits = False

    def on_train_begin(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        self.trainer.balancer.attach(self.trainer.model_wrapped, encoders=self.encoders, optimizer=optimizer)

    def on_epoch_end(self, args: Any, state: Any, control: transformers.TrainerControl, **_: Any) -> None:  # noqa: ARG002
        self._waits = control.should_evaluate  # the Trainer evaluates after it has said so
        if not self._waits:
            self._end_epoch({})

    def on_evaluate(self, *_: Any, metrics: Mapping[str, float], **__: Any) -> None:
        if self._waits:
            self._end_epoch(metrics)
        self._waits = False

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            torch.save(self.trainer.balancer.state_dict(), folder / STATE)

    def _end_epoch(self, logged: Mapping[str, float]) -> None:
        balancer = self.trainer.balancer
        balancer.end_epoch(epoch_metrics(balancer, logged, self.metrics))

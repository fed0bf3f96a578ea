"""The one interface: losses in, a scalar out, whose backward pass is the balancing method.

Every method fills one small table c[objective, block] and moves block b of the parameters along Σ_i c[i, b] · ∇_b
f_i. A method answers at most four questions: what the losses weigh (`weigh`), how the gradients of an encoder mix
(`mix`), what is done to them afterwards (`refine`), and what an epoch teaches (`learn`). All the rest is here, once.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from equipoise.balance import collectives
from equipoise.balance.attach import Attachment, Encoder, keep_compiled_buffers
from equipoise.balance.losses import (
    FiniteWatch,
    LossValues,
    check_losses,
    check_metrics,
    extra_scalars,
    loss_values,
    scalar,
    warn_of_scalars,
)
from equipoise.balance.method import MethodHooks
from equipoise.balance.reach import STATIC_GRAPH, Dependence, HiddenGraphError
from equipoise.balance.routes import Held, Step, Weights, weighted_sum
from equipoise.balance.table import FUSED, HEADS, Table
from equipoise.balance.update_scale import Part, UpdateScale, moves_with_the_gradient, taken, tensors_held
from equipoise.util.errors import raise_all
from equipoise.util.names import name_problems

if TYPE_CHECKING:
    from typing_extensions import Self


class Balancer(MethodHooks):
    """Base of every method. Subclasses are final and answer `weigh` or `mix`, and `refine` and `learn` where needed.

    Args:
        start: First epoch in which the method modulates encoders; before it they train jointly.
        stop: First epoch in which it no longer does; None means never.
    """

    epoch: Tensor
    _arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the arguments, for `repr`."""
        made = super().__new__(cls)
        given = inspect.signature(cls.__init__).bind_partial(made, *args, **kwargs)
        given.apply_defaults()
        made.__dict__["_arguments"] = {name: value for name, value in given.arguments.items() if name != "self"}
        return made

    def __init__(self, *, start: int = 0, stop: int | None = None) -> None:
        super().__init__()
        self.start, self.stop = start, stop
        self.group: collectives.Group = "world"
        self._attachment: Attachment | None = None
        self._updates: list[UpdateScale] = []
        self._dependence = Dependence(self.group)
        self._reached: list[list[bool]] = []
        self._hooks: list[Any] = []
        self._held: Held | None = None
        self._checked = self._warned = False
        self._table = torch.zeros(0, 0)
        self._watch: FiniteWatch | None = None
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))

    # -- what a user calls --

    if TYPE_CHECKING:

        def __call__(
            self,
            losses: Mapping[str, Tensor],
            *,
            scores: Mapping[str, Tensor] | None = None,
            extra: Mapping[str, Tensor] | None = None,
        ) -> Tensor:
            """Do what `forward` does."""
            ...

    @final
    def forward(
        self,
        losses: Mapping[str, Tensor],
        *,
        scores: Mapping[str, Tensor] | None = None,
        extra: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Return a scalar to call ``backward`` on.

        Args:
            losses: ``{"fused": …, "audio": …, "video": …}``, each one value per sample, or a scalar. Methods that
                compare modalities by the probability of the right class need one value per sample, or ``scores``.
            scores: One score per modality where the method compares modalities and losses do not say who is ahead.
            extra: Losses that belong to no modality; they count with weight one everywhere.
        """
        held = self._held
        if held is not None and held.weights is not None and scores is not None:
            msg = "scores: a Window holds the decision; expected none here, type Window(…).open(losses, scores=[…])"
            raise ValueError(msg)
        values = self.values_of(losses, scores)
        order = (FUSED, *self.modalities)
        scalars = [scalar(losses[name]) if name in losses else None for name in order]
        rest = torch.stack(extra_scalars(extra)).sum() if extra else None
        if self.route == "gram":
            return self._deliver(scalars, rest, values, None, values.fused + values.unimodal.sum())
        weights = held.weights if held is not None else None
        weights = self.decide(values) if weights is None else weights
        if held is not None or collectives.size(self.group) > 1:
            weights = weights.held()
        if held is not None:
            kept = None if scores is None else dict(scores)
            held.record.append(({name: loss.detach() for name, loss in losses.items()}, kept))
        self.fill(weights.table(len(self.modalities)))
        if torch.is_grad_enabled() and scalars[0] is not None and scalars[0].requires_grad:
            self.act(losses, weights, scored=scores is not None or (held is not None and held.scored))
        value = weights.value
        if value is None:
            value = torch.dot(weights.losses, torch.cat([values.fused[None], values.unimodal]))
        return self._deliver(scalars, rest, values, weights, value)

    @final
    def attach(
        self,
        model: nn.Module | None = None,
        *,
        encoders: Mapping[str, Encoder] | None = None,
        optimizer: Any | None = None,
        group: collectives.Group = "world",
    ) -> Self:
        """Tell the balancer about a model. Nothing of the model is registered, copied or changed.

        A method that decides at features puts a forward hook on each encoder, and AGM asks a `LateFusion` for Shapley
        responses, until they are attached to another model.

        Args:
            model: The model, bare or wrapped (DDP, torch.compile, Accelerate, Fabric).
            encoders: Per modality a module, a dotted name in the model, or a list of these and of parameters. A model
                with a mapping ``encoders``, such as LateFusion, needs no telling.
            optimizer: The optimiser, or a list of all that move the encoders, for methods that cannot do their work by
                gradients alone.
            group: The process group to average over; None where ranks train models of their own.
        """
        attachment = Attachment(model, encoders, optimizer, heads=self.scales_heads)
        names = tuple(attachment.encoders)
        if self.modalities and set(names) != set(self.modalities):
            msg = f"attach: this balancer serves {list(self.modalities)}, found encoders for {list(names)}"
            raise ValueError(msg)
        raise_all(name_problems(names))
        if self.route != "loss" and any(getattr(layer, "static_graph", False) for layer in attachment.layers):
            raise RuntimeError(STATIC_GRAPH)
        for inner in [self._attachment.model if self._attachment is not None else None, attachment.model]:
            release = getattr(inner, "respond", None)
            if hasattr(inner, "response_problems") and callable(release):  # a LateFusion: what AGM asked of it ends
                release(None)
        self.attached(attachment.model)
        self._attachment, self.group, self._checked = attachment, group, False
        self._dependence, self._reached = Dependence(group), []
        if not self.modalities:
            self.settle(names, self.epoch.device)
        self._follow(attachment)
        if self.route != "loss" and attachment.compiled():
            keep_compiled_buffers()
        return self

    @final
    def end_epoch(self, metrics: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Say that an epoch has ended, with validation metrics per modality where the method learns from them.

        Args:
            metrics: ``{"audio": {"loss": 1.2, "accuracy": 0.6}, …}``; other keys are left alone.
        """
        if self._watch is not None:
            self._watch.check()
        found = check_metrics(type(self).__name__, metrics or {}, self.needs, self.modalities)
        self.learn({need: collectives.mean(row.to(self.epoch.device), self.group) for need, row in found.items()})
        self.epoch += 1

    @property
    def table(self) -> Table:
        """The table of the last step. Reading it waits for the device, and says if a loss was not finite.

        A cell is NaN where the loss does not reach the block. Until a model is attached, each uni-modal loss is taken
        to reach its own encoder alone.
        """
        if self._watch is not None:
            self._watch.check()
        if self._table.numel() == 0:
            msg = "table: no step has been taken yet; call the balancer on losses first: balancer(losses)"
            raise RuntimeError(msg)
        count = len(self.modalities)
        rows = self._reached
        if len(rows) != count + 1 or len(rows[0]) != count + 1:
            rows = [[loss in (0, block) for block in range(1, count + 1)] + [True] for loss in range(count + 1)]
        values = self._table.masked_fill(~torch.tensor(rows, device=self._table.device), torch.nan)
        return Table((FUSED, *self.modalities), (*self.modalities, HEADS), values)

    def extra_repr(self) -> str:
        """List the arguments that the balancer was made with."""
        shown = {name: value for name, value in self._arguments.items() if value is not None}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    @property
    def active(self) -> Tensor:
        """Whether the method modulates in this epoch, as a tensor on the device."""
        inside = self.epoch >= self.start
        return inside if self.stop is None else inside & (self.epoch < self.stop)

    # -- how it is done --

    @final
    def values_of(self, losses: Mapping[str, Tensor], scores: Mapping[str, Tensor] | None = None) -> LossValues:
        """The values of a step's losses, checked, and averaged over samples and ranks."""
        modalities = check_losses(
            losses, self.modalities, needs_fused=self.needs_fused, needs_unimodal=self.needs_unimodal
        )
        first = next(iter(losses.values()))
        # What is made here outlives an evaluation.
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            self.settle(modalities, first.device)
            if self._watch is None or not self._watch.serves(self.modalities, first.device):
                self._watch = FiniteWatch((FUSED, *self.modalities), first.device)
        decided = self._held is not None and self._held.weights is not None
        if self.logarithmic_scores and scores is None and not self._warned and not decided:
            self._warned = warn_of_scalars(type(self).__name__, losses)
        values = loss_values(
            losses, self.modalities, self.score, scores, self.group, logarithmic=self.logarithmic_scores
        )
        self._watch.note(values)
        return values

    @final
    def gated(self, factors: Tensor) -> Tensor:
        """Factors in the epochs in which the method is active, ones in the others."""
        return factors if self._always else torch.where(self.active, factors, torch.ones_like(factors))

    @final
    def decide(self, values: LossValues) -> Weights:
        """`weigh`, within the method's epochs."""
        weights = self.weigh(values)
        return weights if weights.encoders is None else weights._replace(encoders=self.gated(weights.encoders))

    @final
    def mixed(self, gram: Tensor) -> Tensor:
        """`mix`, within the method's epochs; in the others encoders learn from the fused loss."""
        mixture = self.mix(gram)
        if self._always:
            return mixture
        joint = torch.zeros_like(mixture)
        joint[..., 0] = 1
        return torch.where(self.active, mixture, joint)

    @final
    def refined(self, modality: str, mixed: list[Tensor], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """`refine`, within the method's epochs."""
        refined = self.refine(modality, mixed, parts)
        if self._always:
            return refined
        return [torch.where(self.active, new, old) for new, old in zip(refined, mixed, strict=True)]

    @final
    def move_on(self, values: LossValues, finite: Tensor) -> None:
        """`advance`, when training, and once for all micro-batches of a window."""
        held = self._held if self._held is not None and self._held.weights is not None else None
        if not self.training or (held is not None and held.advanced):
            return
        if held is not None:
            values, held.advanced = held.values or values, True
        self.advance(values, finite)

    @final
    def fill(self, values: Tensor) -> None:
        """Keep the table of this step, in place."""
        if self._table.shape != values.shape or self._table.device != values.device:
            with torch.inference_mode(False):
                self._table = torch.zeros_like(values)
        self._table.copy_(values)

    @final
    def hold(self, held: Held | None) -> None:
        """Keep one decision for every call until told otherwise: what `Window` does."""
        self._held = held

    @final
    def tensors_of(self, modality: str) -> list[Tensor]:
        """Every parameter and buffer of an attached encoder, and its part of the fused head where that goes with it."""
        return self._attachment.everything(modality, heads=self.scales_heads) if self._attachment is not None else []

    @final
    def head_parts(self) -> list[list[Part]]:
        """Each modality's part of the fused head, in order, where the method scales it with the encoder."""
        if self._attachment is None or not self.scales_heads:
            return []
        parts = self._attachment.head_parts()
        return [parts.get(name, []) for name in self.modalities]

    @property
    def follows_optimizer(self) -> bool:
        """True if an optimiser is attached, so that steps can be counted by it."""
        return self._attachment is not None and bool(self._attachment.optimizers)

    @property
    def scales_updates(self) -> bool:
        """True if factors act on what an attached optimiser does instead of on gradients."""
        return bool(self._updates)

    @final
    def on_updates(self) -> set[int]:
        """The tensors, by identity, whose factor acts on the optimiser's update and not on the gradient."""
        return {id(tensor) for update in self._updates for tensor in tensors_held(update.optimizer)}

    @final
    def note_factors(self, factors: Tensor, finite: Tensor) -> None:
        """Scale the next update by these factors, unless the step will be skipped."""
        for update in self._updates:
            update.note(dict(zip(self.modalities, factors.unbind(), strict=True)), finite)

    def _parts(self) -> dict[str, list[Part]]:
        """The parameters per modality that its factor acts on, as they are now."""
        parts = self._attachment.parts(heads=self.scales_heads) if self._attachment is not None else {}
        return {name: [part for part in own if self.touches(part.tensor)] for name, own in parts.items()}

    @property
    def _always(self) -> bool:
        return self.start == 0 and self.stop is None

    def _deliver(
        self,
        scalars: list[Tensor | None],
        extra: Tensor | None,
        values: LossValues,
        weights: Weights | None,
        value: Tensor,
    ) -> Tensor:
        if not torch.is_grad_enabled():
            return value if extra is None else value + extra
        attachment = self._attachment
        if attachment is None and self.route != "loss" and self.needs_encoders:
            msg = (
                f"{type(self).__name__} shapes the gradients of each encoder and has not been told which they are: "
                "type balancer.attach(model), or balancer.attach(model, encoders={'audio': model.audio_net, …}), once"
            )
            raise RuntimeError(msg)
        alone = not self.needs_encoders and not any(loss is not None and loss.requires_grad for loss in scalars[1:])
        if weights is not None and (self.route == "loss" or alone) and (attachment is None or self._checked):
            return self._sum(scalars, extra, values, weights, value)
        by_name = attachment.parameters() if attachment is not None else {}
        encoders = [by_name[name] for name in self.modalities if name in by_name]
        remembered = attachment.taps() if attachment is not None else {}
        taps = [remembered[name] for name in self.modalities if name in remembered]
        try:
            step = Step(self, scalars, extra, values, weights, encoders, self._dependence, taps)
        except HiddenGraphError:
            if weights is None or self.route != "loss":
                raise
            self._checked = True  # a weighted sum is right whatever the graph; it only cannot be looked into
            return self._sum(scalars, extra, values, weights, value)
        problems = [] if alone else step.problems()
        if problems:
            raise ValueError(f"{type(self).__name__}: " + "; ".join(problems))
        self._checked = True
        if attachment is not None:
            self._reached = step.reach.rows()
        if weights is not None and (self.route == "loss" or not self.needs_encoders):
            if self.route == "loss" or not step.reach.shared_with_fused():
                return self._sum(scalars, extra, values, weights, value)
            if not step.reach.beside:  # the uni-modal losses train nothing
                return self._sum([scalars[0]], extra, values, weights, value)
        return step.scalar(value if extra is None else value + extra.detach())

    def _sum(
        self, scalars: list[Tensor | None], extra: Tensor | None, values: LossValues, weights: Weights, value: Tensor
    ) -> Tensor:
        """The weighted sum of losses, where that is all there is to it."""
        total = weighted_sum(scalars, extra, weights, value)
        if self.advances and total.requires_grad:
            pending = [values]  # for one backward pass, however many there are
            total.register_hook(lambda scale: self.move_on(pending.pop(), scale.isfinite()) if pending else None)
        return total

    def _follow(self, attachment: Attachment) -> None:
        """Watch the optimisers where gradients alone do not decide what happens to an encoder."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._updates = [], []
        if self.at == "features":
            self._hooks += attachment.tap(type(self).__name__)
        if not attachment.optimizers and self.modulates:
            warnings.warn(self.without_optimizer, UserWarning, stacklevel=3)
        for place, optimizer in enumerate(attachment.optimizers):
            # Steps are counted by the first; what has to be put back is put back after each.
            count = taken if place == 0 else (lambda _: 0)
            self._hooks.append(
                optimizer.register_step_post_hook(lambda done, *_, count=count: self.stepped(count(done)))
            )
            if self.modulates and not self.restores and not moves_with_the_gradient(optimizer):
                self._updates.append(UpdateScale(optimizer, self._parts))
        self._hooks += self._updates

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the user's model and optimiser behind."""
        left = {"_attachment": None, "_hooks": [], "_updates": [], "_held": None, "_reached": []}
        return {**self.__dict__, **left, "_dependence": Dependence("world")}

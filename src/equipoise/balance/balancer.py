"""The one interface: losses in, a scalar out, whose backward pass is the balancing method.

Every method fills one small table c[objective, block] and moves block b of the parameters along Σ_i c[i, b] · ∇_b f_i.
A `Weighting` fills it from the values of the losses (`weigh`), a `Mixing` from the inner products of their gradients
(`mix`). What else a method may answer are five events, each with a default: `regulariser`, `transform`, `on_backward`,
`on_step` and `on_epoch`. How coefficients become gradients is the same for all, and stands in `delivery`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from typing_extensions import Self

from equipoise.balance import collectives
from equipoise.balance.attach import Attachment, Encoder, Encoders
from equipoise.balance.blocks import Blocks
from equipoise.balance.coefficients import FUSED, FUSED_HEAD, OWN_HEADS, TRUNK, Coefficients, Losses, Table, Tensors
from equipoise.balance.delivery import Scaled, Step, summed
from equipoise.balance.graph import STATIC_GRAPH, Dependence, HiddenGraphError, Reach
from equipoise.balance.method import BalancingMethod, unmet
from equipoise.balance.mixture import Mixed
from equipoise.balance.needs import ApproximationWarning
from equipoise.balance.reading import FiniteCheck, GivenStep, Reader, Reading, check_losses, sum_of_extra
from equipoise.util.errors import name_problems, raise_all

_MEAN_LOSSES = (
    "{} compares modalities by the mean probability of the right class, which a mean loss does not tell: "
    "pass one value per sample, F.cross_entropy(…, reduction='none'), or scores={{…}}"
)
_NOT_UNIMODAL = (
    "attach: the losses of {} reach the encoders of other modalities: their heads stand behind a part where encoders "
    "meet, so that their numbers are not uni-modal. Put heads on each encoder's own output, or mask the other sensors"
)
_UNKNOWN = "? is known once a model is attached: type balancer.attach(model, encoders={…})"


class Balancer(BalancingMethod, ABC):
    """Base of `Weighting` and `Mixing`, which methods are subclasses of.

    Args:
        start: First epoch in which factors, mixtures and `transform` act; before it encoders train jointly.
        stop: First epoch in which they no longer do; None means never.
    """

    def __init__(self, *, start: int = 0, stop: int | None = None) -> None:
        super().__init__(start=start, stop=stop)
        self._regularises = type(self).regulariser is not BalancingMethod.regulariser
        self._dependence = Dependence(self.group)
        self._reached: list[list[bool]] = []
        self._not_unimodal: list[str] = []
        self._has_trunk = self._looked = self._judged = self._warned = False
        self._reader: Reader | None = None
        self._finite: FiniteCheck | None = None

    # -- what a user calls --

    @final
    def forward(
        self,
        losses: Tensors,
        *,
        scores: Tensors | None = None,
        extra: Tensors | None = None,
        present: Tensors | None = None,
        further: Tensors | None = None,
    ) -> Tensor:
        """Return a scalar to call ``backward`` on.

        Args:
            losses: ``{"fused": …, "audio": …, "video": …}``, each one value per sample, or a scalar. Methods that
                compare modalities by the probability of the right class need one value per sample, or ``scores``.
            scores: One score per modality, or one per sample of each, where the method compares modalities and losses
                do not say which is ahead; [B, S] for a method that needs S kinds of scores.
            extra: Losses that belong to no modality; they count with weight one everywhere.
            present: ``{"camera": mask, …}`` where samples may lack a sensor: one value per sample, True where it has
                it; a modality that is not named is complete. Its loss is the mean over the samples that have it, of all
                ranks, which all give masks or none. What stands in the losses of the others, also NaN, changes
                nothing; their gradient is zero, and the model must not make NaN of that (0 · ∞). A sensor that no
                sample has counts as neither ahead nor behind in this step.
            further: One more loss per modality, for a method that has objectives beyond one per modality.
        """
        held, given = self._held, GivenStep(losses, scores, present, further)
        if held is not None:
            held.check(given)
        reading = self.read(given)
        if self._copied_first and torch.is_grad_enabled():
            self.copy_first()
        decided = reading.losses if held is None else held.decided(reading.losses)
        answer = held.answer if held is not None and held.answer is not None else self.decide(decided)
        if answer is not None:
            if torch.is_grad_enabled():  # an evaluation leaves no trace
                self.answered = answer
            assert self._finite is not None
            self._finite.note_answer(answer)
        if held is not None and torch.is_grad_enabled():
            held.note(given)
        rest, regularised = sum_of_extra(extra) if extra else None, False
        fused = reading.scalars[0]
        if self._regularises and torch.is_grad_enabled() and fused is not None and fused.requires_grad:
            names = (FUSED, *self.modalities)
            means = {name: one for name, one in zip(names, reading.scalars, strict=False) if one is not None}
            own = self.regulariser(means, decided, answer)
            regularised = own is not None
            rest = own if rest is None else rest if own is None else rest + own
        unmasked = None
        if reading.losses.presence is not None:
            every = [losses.get(name) for name in (FUSED, *self.modalities)]
            unmasked = every + ([] if further is None else [further[name] for name in self.modalities])
        value = self._value(answer, reading)
        return self._deliver(Step(reading, decided, answer, value, rest, regularised, held, unmasked))

    if TYPE_CHECKING:
        __call__ = forward

    @final
    def attach(
        self,
        model: nn.Module | None = None,
        *,
        encoders: Encoders | None = None,
        trunk: Encoder | None = None,
        optimizer: Any = None,
        group: collectives.Group = "world",
    ) -> Self:
        """Tell the balancer about a model. Nothing of the model is registered, copied or changed.

        A method that decides at features puts a forward hook on each encoder, until it is attached to another model.
        At the first step a warning names the modalities whose own loss reaches the encoders of others: their heads
        stand behind a part where encoders meet, such as cross-attention, and what they say is not uni-modal.

        Args:
            model: The model, bare or wrapped (DDP, torch.compile, Accelerate, Fabric).
            encoders: Per modality a module, a dotted name in the model, or a list of these and of parameters. A model
                with a mapping ``encoders``, such as LateFusion, needs no telling.
            trunk: The part in which encoders meet before the fused head, in the same form: a block of its own in the
                table. A model with ``encoders`` may name it by an attribute ``trunk``, as HybridFusion does. None: all
                that is no encoder counts as heads.
            optimizer: The optimiser, or a list of all that move the encoders, for methods that cannot do their work by
                gradients alone.
            group: The process group to average over; None where ranks train models of their own.
        """
        attachment = Attachment(model, encoders, optimizer, trunk=trunk, block=self.needs.block)
        before, has_trunk, names = self._attachment, bool(attachment.trunk()), tuple(attachment.encoders)
        if self.modalities and set(names) != set(self.modalities):
            raise ValueError(f"attach: this balancer serves {list(self.modalities)}, found encoders for {list(names)}")
        problems = name_problems(names)
        if has_trunk and TRUNK in names:
            reason = "where a model has a trunk: it is a block of the table"
            problems.append(f"No modality may be called {TRUNK!r} {reason}. Choose another name.")
        raise_all([*problems, *unmet(self, modalities=names, model=attachment.model)])
        takes_gradients = self.needs.takes_gradients
        if takes_gradients and any(getattr(layer, "static_graph", False) for layer in attachment.layers):
            raise RuntimeError(STATIC_GRAPH)
        attachment.follow(self, self.at)
        if before is not None:
            before.release()
        others = before is not None and before.identities() != attachment.identities()
        self._attachment, self.group, self._looked, self._has_trunk = attachment, group, False, has_trunk
        self._dependence, self._reached, self._not_unimodal, self._pending = Dependence(group), [], [], None
        self._judged = False
        if not self.modalities:
            self.settle(names, self.epoch.device)
        if others:  # what another model began with is of no use; where an encoder stands still may be
            self.forget_copies([name for name in self._copies if name in self._copied_first or not self.fit(name)])
        if takes_gradients and attachment.compiled():
            # Two passes run through one compiled backward, which may not hand its buffers away in the first.
            from torch._functorch import config  # a module that torch.compile has loaded by then

            config.donated_buffer = False  # ty: ignore[invalid-assignment]
        return self

    @property
    def metrics_due(self) -> tuple[str, ...]:
        """The metrics of each modality that the end of the present epoch has to be given."""
        needs = self.needs
        return needs.metrics if needs.due is None else needs.metrics_after(int(self.epoch) + 1)

    @final
    def end_epoch(self, metrics: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Say that an epoch has ended, with validation metrics per modality where the method learns from them.

        Args:
            metrics: ``{"audio": {"loss": 1.2, "accuracy": 0.6}, …}``; other keys are left alone.
        """
        if self._finite is not None:
            self._finite.check()
        needs, names, given = self.metrics_due, self.modalities, metrics or {}
        absent = [f"{name!r}: {need!r}" for need in needs for name in names if need not in given.get(name, {})]
        if absent or (needs and not names):
            example = {name: dict.fromkeys(needs, 0.5) for name in names or ("audio",)}
            raise ValueError(
                f"{type(self).__name__} learns from validation metrics of each modality; found none for "
                f"{', '.join(absent) or 'any'}. Type balancer.end_epoch({example})"
            )
        rows = {need: torch.tensor([float(given[name][need]) for name in names]) for need in needs}
        means = {need: collectives.mean(row.to(self.epoch.device), self.group) for need, row in rows.items()}
        with torch.inference_mode(False), torch.no_grad():
            self.on_epoch(means)
        self.epoch += 1
        self.refresh_host()
        self._looked = False  # encoders may have been frozen or unfrozen

    @property
    def table(self) -> Table:
        """The table of the last step. Reading it waits for the device, and says if a loss was not finite.

        A cell is NaN where the loss does not reach the block. Until a model is attached, it is known of heads alone
        which loss reaches them.
        """
        if self._finite is not None:
            self._finite.check()
        answer = self.answer
        if answer is None:
            raise RuntimeError("table: no step has been taken yet; call the balancer on losses first: balancer(losses)")
        count, names = len(self.modalities), (FUSED, *self.modalities, *self.further_names)
        values = answer.table(count, trunk=self._has_trunk)
        blocks = (*self.modalities, *([TRUNK] if self._has_trunk else []), FUSED_HEAD, OWN_HEADS)
        objectives, known = names[: len(values)], bool(self._reached)
        rows = (self._reached + [[False] * len(blocks)] * len(values))[: len(values)]
        if not known:
            own = ((FUSED, FUSED_HEAD), *((name, OWN_HEADS) for name in self.modalities))
            rows = [[(objective, block) in own for block in blocks] for objective in objectives]
        values = values.masked_fill(~torch.tensor(rows, device=values.device), torch.nan)
        return Table(objectives, blocks, values, known, tuple(self._notes(known)))

    @property
    def answer(self) -> Coefficients | None:
        """The coefficients of the last step, on their device; None before the first."""
        answered = self.answered
        return answered if answered is None or isinstance(answered, Coefficients) else answered()

    def _notes(self, known: bool) -> list[str]:
        name = type(self).__name__
        told = {
            _UNKNOWN: not known,
            f"{name} adds a loss of its own, at weight one everywhere": self._regularises,
            f"{name} changes the gradients of encoders after this table": self.transforms,
            "factors act on what the optimiser does with gradients, not on these": self._attachment is not None
            and bool(self._attachment.updates),
            f"not uni-modal, since other encoders are reached: {', '.join(self._not_unimodal)}": self._not_unimodal,
        }
        return [note for note, holds in told.items() if holds]

    # -- how it is done --

    @final
    def read(self, given: GivenStep) -> Reading:
        """Return the losses of a step, checked, and averaged over samples and ranks."""
        losses, held = given.losses, self._held
        modalities = check_losses(losses, self.needs, self.modalities)
        device, reader = next(iter(losses.values())).device, self._reader
        if reader is None or reader.modalities != modalities or reader.group is not self.group:
            reader = None
        if reader is None or self._finite is None or self._finite.device != device:
            # What is made here outlives an evaluation.
            with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
                if modalities and (problems := unmet(self, modalities=modalities)):
                    raise ValueError("; ".join(problems))
                self.settle(modalities, device)
                names, method = (FUSED, *modalities, *self.further_names), type(self).__name__
                self._reader = reader = Reader(method, self.needs, modalities, self.group)
                self._finite = FiniteCheck(names, len(modalities), device, f"{method}({self.extra_repr()})")
        decided, needs = held is not None and held.answer is not None, self.needs
        beside = needs.further or given.further is not None or needs.scores != ("loss",)
        if beside and (problems := reader.problems_beside(given, decided=decided)):
            raise ValueError("; ".join(problems))
        if (needs.logarithmic or needs.instead) and not self._warned and not decided:
            self._warn_once(given)
        reading = reader.read(given, None if held is None else held.presence)
        self._finite.note(reading)
        return reading

    def _warn_once(self, given: GivenStep) -> None:
        """Warn where what is given does not tell what the method would best know."""
        name, needs = type(self).__name__, self.needs
        scalars = any(loss.dim() == 0 for key, loss in given.losses.items() if key != FUSED)
        if needs.logarithmic and given.scores is None and scalars:
            self._warned = True
            warnings.warn(_MEAN_LOSSES.format(name), UserWarning, stacklevel=6)
        if needs.instead and given.further is None and torch.is_grad_enabled():
            self._warned = True
            told = f"takes {needs.instead}: no objectives '{needs.further} …' were given as further={{…}}"
            warnings.warn(f"{name} {told}", ApproximationWarning, stacklevel=6)

    @abstractmethod
    def decide(self, losses: Losses) -> Coefficients | None:
        """Return the coefficients of a step, within the method's epochs; None where gradients decide."""

    @staticmethod
    def _value(answer: Coefficients | None, reading: Reading) -> Tensor:
        if answer is None:
            return reading.losses.fused + reading.losses.unimodal.sum()
        if answer.value is not None:
            return answer.value
        column = answer.encoders if answer.encoders.dim() == 1 else answer.heads()[0]
        return torch.dot(column.to(reading.values.dtype), reading.values[: len(column)])

    def _deliver(self, step: Step) -> Tensor:
        """Return the scalar of a step, by the simplest delivery that does what the answer says."""
        answer, attachment, reading = step.answer, self._attachment, step.reading
        if not torch.is_grad_enabled():
            return step.value if step.extra is None else step.value + step.extra
        alike = answer is not None and answer.moves_alike and not self.transforms
        is_sum = alike and answer is not None and answer.is_sum
        if attachment is None and (self.needs.encoders or not alike):
            raise RuntimeError(
                f"{type(self).__name__} shapes the gradients of each encoder and has not been told which they are: "
                "type balancer.attach(model), or balancer.attach(model, encoders={'audio': model.audio_net, …}), once"
            )
        looked = attachment is None or self._looked
        if is_sum and looked:
            return summed(self, step)
        fused_alone = answer is not None and answer.is_alone
        joint = fused_alone and alike
        others = any(one is not None and one.requires_grad for one in reading.scalars[1:])
        if joint and looked and not others:
            return summed(self, step)
        try:
            reach = Reach(reading.scalars)
        except HiddenGraphError:
            if not is_sum:
                raise
            self._looked = True  # a weighted sum is right whatever the graph; it only cannot be looked into
            return summed(self, step)
        if joint and looked and not reach.overlaps():
            return summed(self, step)
        encoders, trunk = [], []
        if attachment is not None:
            parameters, trunk = attachment.block_tensors(), attachment.trunk()
            encoders = [parameters.get(name, []) for name in self.modalities]
        losses = reading.scalars if step.unmasked is None else step.unmasked
        reach.prune(losses, self._dependence, encoders, reading.losses.presence)
        blocks = Blocks(reach, encoders, trunk, step.extra, fused_alone=fused_alone)
        if attachment is not None:
            self._look(blocks, reading, mixes=answer is None)
        if is_sum or (joint and not reach.overlaps()):
            return summed(self, step)
        if joint and not blocks.own_heads:  # the uni-modal losses train nothing
            assert reading.scalars[0] is not None
            alone = reading._replace(scalars=reading.scalars[:1], stacked=reading.scalars[0][None])
            return summed(self, step._replace(reading=alone))
        delivery = (Mixed if answer is None else Scaled)(self, step, blocks, attachment)
        if problems := delivery.problems():
            raise ValueError(f"{type(self).__name__}: " + "; ".join(problems))
        return delivery.scalar()

    def _look(self, blocks: Blocks, reading: Reading, *, mixes: bool) -> None:
        """Keep which loss reaches which block; refuse a model whose losses cannot teach what the method says."""
        needs = self.needs
        given = any(one is not None and one.requires_grad for one in reading.scalars[1:])
        # Joint training of a model without losses of its own for modalities has nothing that could be wrong.
        looks = given or needs.encoders or needs.learns_from_own
        if looks and (problems := blocks.problems(self.modalities, needs, mixes=mixes)):
            raise ValueError(f"{type(self).__name__}: " + "; ".join(problems))
        self._reached = blocks.rows()
        if not self._judged:
            self._judge(blocks, reading.losses)
        self._looked = self._judged

    def _judge(self, blocks: Blocks, losses: Losses) -> None:
        """Warn of heads behind a part where encoders meet, as soon as a batch tells: one that has every sensor."""
        if losses.presence is not None and losses.presence.device.type != "cpu":
            self._judged = True  # looking at the numbers would stall the device
            return
        if self._dependence.unresolved or (losses.presence is not None and not bool((losses.presence > 0).all())):
            return
        self._judged = True
        # Shares that are responses reach all encoders by their definition.
        responds = self.needs.unimodal == "share" and losses.further is not None
        reaching = [] if responds else blocks.reaching_others()
        self._not_unimodal = [self.modalities[block] for block in reaching]
        if reaching:
            listed = ", ".join(map(repr, self._not_unimodal))
            warnings.warn(_NOT_UNIMODAL.format(listed), UserWarning, stacklevel=7)

    def __getstate__(self) -> dict[str, Any]:
        left = {"_has_trunk": False, "_looked": False, "_judged": False, "_reached": [], "_not_unimodal": []}
        return {**super().__getstate__(), **left, "_dependence": Dependence("world")}

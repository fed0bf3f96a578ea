"""The one interface: losses in, a scalar out, whose backward pass is the balancing method.

Every method fills one small table c[objective, block] and moves block b of the parameters along Σ_i c[i, b] · ∇_b
f_i. A method answers at most four questions: what the losses weigh (`weigh`), how the gradients of an encoder mix
(`mix`), what is done to them afterwards (`refine`), and what an epoch teaches (`learn`). All the rest is here, once.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from typing_extensions import Self

from equipoise.balance import collectives
from equipoise.balance.attach import Attachment, Encoder, Encoders
from equipoise.balance.autograd import weighted_sum
from equipoise.balance.graph import STATIC_GRAPH, Dependence, HiddenGraphError
from equipoise.balance.losses import FUSED, TRUNK, FiniteCheck, LossValues, Step, Table, Tensors, scalar, sum_of_extra
from equipoise.balance.method import ScheduledMethod
from equipoise.balance.presence import divisor, masked, masks_of, mean_where, neutral, scalars_of
from equipoise.balance.routes import route_of
from equipoise.balance.samples import sample_factors, sample_scores
from equipoise.util.errors import name_problems, raise_all

_MEAN_LOSSES = (
    "{} compares modalities by the mean probability of the right class, which a mean loss does not tell: "
    "pass one value per sample, F.cross_entropy(…, reduction='none'), or scores={{…}}"
)


class Balancer(ScheduledMethod):
    """Base of every method. Subclasses are final and answer `weigh` or `mix`, and `refine` and `learn` where needed.

    Args:
        start: First epoch in which the method modulates encoders; before it they train jointly.
        stop: First epoch in which it no longer does; None means never.
    """

    def __init__(self, *, start: int = 0, stop: int | None = None) -> None:
        super().__init__(start=start, stop=stop)
        self._attachment: Attachment | None = None
        self._dependence = Dependence(self.group)
        self._reached: list[list[bool]] = []
        self._checked = self._warned = False
        self._finite: FiniteCheck | None = None

    # -- what a user calls --

    if TYPE_CHECKING:

        def __call__(
            self,
            losses: Tensors,
            *,
            scores: Tensors | None = None,
            extra: Tensors | None = None,
            present: Tensors | None = None,
            further: Tensors | None = None,
        ) -> Tensor:
            """Do what `forward` does."""
            ...

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
                do not say who is ahead; [B, S] for a method that is scored by S numbers (its ``scored_by``). A method
                with a factor per sample (GAP) reads one score per sample, of its ``scored_samples`` alone.
            extra: Losses that belong to no modality; they count with weight one everywhere.
            present: ``{"camera": mask, …}`` where samples may lack a sensor: one value per sample, True where it has
                it; a modality that is not named is complete. Its loss is the mean over the samples that have it, of all
                ranks, which all give masks or none. What stands in the losses of the others, also NaN, changes
                nothing; their gradient is zero, and the model must not make NaN of that (0 · ∞). A sensor that no
                sample has counts as neither ahead nor behind in this step.
            further: One more loss per modality, for a method that has objectives beyond one per modality (MCR).
        """
        held = self._held
        if held is not None and held.weights is not None and not held.lag:
            decided = {"scores": None if self.scored_samples else scores}
            decided["present"] = present if held.presence is None else None
            for name, given in decided.items():
                if given is not None:
                    instead = f"type Window(…).open(losses, {name}=[…])"
                    raise ValueError(f"{name}: a Window holds the decision; expected none here, {instead}")
        values = self.values_of(losses, scores, present, further)
        scalars = scalars_of(losses, self.objectives, present, values.presence)
        unmasked = None if values.presence is None else [losses.get(name) for name in self.objectives]
        if further is not None:
            beyond = [further[name] for name in self.modalities]
            scalars += [scalar(loss) for loss in beyond]
            unmasked = None if unmasked is None else [*unmasked, *beyond]
        rest = sum_of_extra(extra) if extra else None
        if self.route == "gram":
            return self._deliver(Step(scalars, rest, values, None, values.fused + values.unimodal.sum(), unmasked))
        weights = held.weights if held is not None else None
        weights = self.decide(values) if weights is None else weights
        if self._finite is not None:
            self._finite.note_weights(weights)
        if held is not None or collectives.size(self.group) > 1:
            weights = weights.held()
        if held is not None:
            held.losses.append({name: loss.detach() for name, loss in losses.items()})
            held.scores += [] if scores is None else [dict(scores)]
            held.present.append(present)
        self.fill_weights(weights)
        if torch.is_grad_enabled() and scalars[0] is not None and scalars[0].requires_grad:
            means = {name: one for name, one in zip(self.objectives, scalars, strict=False) if one is not None}
            own = self.act(means, weights, scored=scores is not None or (held is not None and held.scored))
            rest = own if rest is None else rest if own is None else rest + own
        value = weights.value
        if value is None:
            value = torch.dot(weights.losses if weights.losses.dim() == 1 else weights.on_heads, values.all)
        factors = sample_factors(self, values, scores, present) if self.scored_samples else None
        return self._deliver(Step(scalars, rest, values, weights, value, unmasked, factors))

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

        A method that decides at features puts a forward hook on each encoder, and AGM asks a `LateFusion` for Shapley
        responses, until they are attached to another model.

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
        attachment = Attachment(model, encoders, optimizer, trunk=trunk, heads=self.scales_heads)
        before, has_trunk = self._attachment, bool(attachment.trunk())
        names = tuple(attachment.encoders)
        if self.modalities and set(names) != set(self.modalities):
            raise ValueError(f"attach: this balancer serves {list(self.modalities)}, found encoders for {list(names)}")
        taken = [f"No modality may be called {TRUNK!r} where a model has a trunk: it is a block of the table. Choose "]
        raise_all([*name_problems(names), *(f"{one}another name." for one in taken if has_trunk and TRUNK in names)])
        if self.route != "loss" and any(getattr(layer, "static_graph", False) for layer in attachment.layers):
            raise RuntimeError(STATIC_GRAPH)
        models: list[Any] = [before.model if before is not None else None, attachment.model]
        for inner in models:
            if hasattr(inner, "response_problems"):  # what AGM asked of a LateFusion ends
                inner.respond(None)
        self.attached(attachment.model)
        self._attachment, self.group, self._checked, self._has_trunk = attachment, group, False, has_trunk
        self._dependence, self._reached = Dependence(group), []
        if not self.modalities:
            self.settle(names, self.epoch.device)
        if before is not None:
            before.release()
        attachment.follow(self)
        if self.route != "loss" and attachment.compiled():
            # Two passes run through one compiled backward, which may not hand its buffers away in the first.
            from torch._functorch import config  # a module that torch.compile has loaded by then

            config.donated_buffer = False  # ty: ignore[invalid-assignment]
        return self

    @final
    def end_epoch(self, metrics: Mapping[str, Mapping[str, float]] | None = None) -> None:
        """Say that an epoch has ended, with validation metrics per modality where the method learns from them.

        Args:
            metrics: ``{"audio": {"loss": 1.2, "accuracy": 0.6}, …}``; other keys are left alone.
        """
        if self._finite is not None:
            self._finite.check()
        needs, names, given = self.needs_now, self.modalities, metrics or {}
        absent = [f"{name!r}: {need!r}" for need in needs for name in names if need not in given.get(name, {})]
        if absent or (needs and not names):
            example = {name: dict.fromkeys(needs, 0.5) for name in names or ("audio",)}
            raise ValueError(
                f"{type(self).__name__} learns from validation metrics of each modality; found none for "
                f"{', '.join(absent) or 'any'}. Type balancer.end_epoch({example})"
            )
        rows = {need: torch.tensor([float(given[name][need]) for name in names]) for need in needs}
        self.learn({need: collectives.mean(row.to(self.epoch.device), self.group) for need, row in rows.items()})
        self.epoch += 1

    @property
    def table(self) -> Table:
        """The table of the last step. Reading it waits for the device, and says if a loss was not finite.

        A cell is NaN where the loss does not reach the block. Until a model is attached, each uni-modal loss is taken
        to reach its own encoder alone.
        """
        if self._finite is not None:
            self._finite.check()
        if self._table.numel() == 0:
            raise RuntimeError("table: no step has been taken yet; call the balancer on losses first: balancer(losses)")
        count, rows = len(self.modalities), self._reached
        objectives, columns = self._table.shape
        if len(rows) != objectives or len(rows[0]) != columns:
            alone, others = range(1, count + 1), [True] * (columns - count)
            rows = [[loss not in alone or loss == block for block in alone] + others for loss in range(objectives)]
        values = self._table.masked_fill(~torch.tensor(rows, device=self._table.device), torch.nan)
        return Table.of(self.modalities, values, self.further_names)

    # -- how it is done --

    @final
    def values_of(
        self,
        losses: Tensors,
        scores: Tensors | None = None,
        present: Tensors | None = None,
        further: Tensors | None = None,
    ) -> LossValues:
        """Return the values of a step's losses, checked, and averaged over samples and ranks."""
        modalities = self._check(losses)
        device = next(iter(losses.values())).device
        # What is made here outlives an evaluation.
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            self.settle(modalities, device)
            if self._finite is None or (self._finite.names, self._finite.device) != (self.objectives, device):
                kind = {"scores": "from 0 to 1"} if self.scored_samples else {}
                method = f"{type(self).__name__}({self.extra_repr()})"
                self._finite = FiniteCheck(self.objectives, device, method, self.further_names, **kind)
        decided = self.held_decision is not None
        self._check_beside(scores, further, decided=decided)
        if self.logarithmic_scores and scores is None and not self._warned and not decided:
            self._warned = any(losses[name].dim() == 0 for name in self.modalities if name in losses)
            if self._warned:
                warnings.warn(_MEAN_LOSSES.format(type(self).__name__), UserWarning, stacklevel=5)
        held = self._held.presence if self._held is not None else None
        masks = None
        if present is not None or held is not None:
            masks = masks_of({} if present is None else present, losses, self.modalities)
        values = self._read(losses, scores, masks, held)
        if further is not None:
            means = torch.stack([further[name].detach().to(values.fused).mean() for name in self.modalities])
            values = values._replace(further=collectives.mean(means, self.group))
        self._finite.note(values)
        return values

    def _check_beside(self, scores: Tensors | None, further: Tensors | None, *, decided: bool) -> None:
        """Raise one message where scores or further objectives that the method needs are missing, or are too many."""
        name, problems = type(self).__name__, []
        if self.scored_by and scores is None and not decided:
            shape = f"[B, {len(self.scored_by)}]" if len(self.scored_by) > 1 else "[B]"
            problems.append(
                f"{name} compares modalities by {' and '.join(self.scored_by)}, which losses do not tell: pass "
                f"scores={{name: …}}, {shape} of each modality"
            )
        unscored = [modality for modality in self.scored_samples if modality not in (scores or {})]
        if unscored:
            example = ", ".join(f"{modality!r}: …" for modality in unscored)
            problems.append(
                f"{name} multiplies the gradient of each sample by a factor of its own: pass scores={{{example}}}, "
                "one number from 0 to 1 per sample"
            )
        absent = [modality for modality in self.modalities if modality not in (further or {})]
        if self.further and further is not None and absent:
            problems.append(f"further: expected one loss for each of {list(self.modalities)}, found none for {absent}")
        if self.further and further is None and torch.is_grad_enabled() and self._held is None:
            problems.append(f"{name} has one more objective per modality: pass further={{name: loss}}")
        if not self.further and further is not None:
            problems.append(f"further: {name} has no objectives beyond one per modality; leave them out")
        if problems:
            raise ValueError("; ".join(problems))

    @torch.no_grad()
    def _read(self, losses: Tensors, given: Tensors | None, masks: Tensors | None, held: Tensor | None) -> LossValues:
        """Average losses over samples and ranks; scores that the user measured replace those read off the losses."""
        if given is not None and self.scored_samples:
            given = sample_scores(self, given)
        absent = [name for name in self.modalities if given is not None and name not in given]
        if absent:
            raise ValueError(f"scores: expected one for each of {list(self.modalities)}, found none for {absent}")
        wide = torch.float64 if any(loss.dtype == torch.float64 for loss in losses.values()) else torch.float32
        nothing = next(iter(losses.values())).new_zeros(())
        fused, *unimodal = (losses.get(name, nothing).detach().to(wide) for name in self.objectives)
        rows, presence = [None if masks is None else masks.get(name) for name in self.modalities], None
        means = [loss.mean() for loss in (fused, *masked(unimodal, rows, 0.0))]
        if masks is not None:  # the shares travel with the losses, those of every modality: ranks may name others
            means += [fused.new_ones(()) if mask is None else mask.to(wide).mean() for mask in rows]
        values = collectives.mean(torch.stack(means), self.group)
        if masks is not None:
            values, presence = values.split([len(self.objectives), len(self.modalities)])
            values = torch.cat([values[:1], values[1:] / divisor(presence if held is None else held)])
        if not unimodal:
            return LossValues(values[0], values[1:], values[1:])
        if given is None:
            # What a sample without the sensor adds to a mean of losses, and to one of probabilities exp(−f), is zero.
            at_hand = masked(unimodal, rows, torch.inf if self.logarithmic_scores else 0.0)
            scores = torch.stack([self.score(loss) for loss in at_hand])
        else:
            measured = [torch.as_tensor(given[name]).to(values) for name in self.modalities]
            if len(self.scored_by) > 1:
                scores = torch.stack([mean_where(row, mask) for row, mask in zip(measured, rows, strict=True)])
            else:
                pairs = zip(measured, rows, strict=True)
                known = [row if mask is None or row.shape == mask.shape else row.mean() for row, mask in pairs]
                scores = torch.stack([row.mean() for row in masked(known, rows, 0.0)])
        if not self.logarithmic_scores:
            scores = collectives.mean(scores, self.group)
        else:
            if given is not None:
                # A score of zero is very far behind; one below zero has no logarithm, and is reported as not finite.
                scores = torch.where(scores == 0, torch.finfo(scores.dtype).tiny, scores).log()
            scores = collectives.log_mean_exp(scores, self.group)
        if presence is None:
            return LossValues(values[0], values[1:], scores)
        share = presence if scores.dim() == 1 else presence[:, None]
        scores = scores - share.log() if self.logarithmic_scores else scores / share
        return LossValues(values[0], values[1:], neutral(scores, presence), presence if held is None else held)

    def _check(self, losses: Tensors) -> tuple[str, ...]:
        """Return the modalities of the losses, or raise one message with everything that is wrong with them."""
        if not isinstance(losses, Mapping):
            raise TypeError(
                "expected a mapping from names to losses, such as {'fused': …, 'audio': …, 'video': …}, "
                f"found {type(losses).__name__}"
            )
        modalities, names = self.modalities, tuple(name for name in losses if name != FUSED)
        problems = []
        if self.needs_fused and FUSED not in losses:
            problems.append(f"expected the fused loss under the key 'fused', found keys {list(losses)}")
        if self.needs_unimodal and not (modalities or names):
            problems.append("expected one loss per modality besides 'fused', found none")
        absent = [name for name in modalities if name not in losses]
        if absent and (names or self.needs_unimodal):
            problems.append(f"expected losses for {list(modalities)}, found none for {absent}")
        for name in names if modalities else ():
            if name not in modalities:
                near = difflib.get_close_matches(name, modalities, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"expected only {list(modalities)}"
                problems.append(f"unknown modality {name!r}, {hint}")
        problems += name_problems(names)
        for name, loss in losses.items():
            if not isinstance(loss, Tensor):
                problems.append(f"loss {name!r} should be a tensor, found {type(loss).__name__}")
            elif not loss.is_floating_point():
                problems.append(f"loss {name!r} should hold floating-point numbers, found {loss.dtype}")
            elif loss.numel() == 0:
                problems.append(f"loss {name!r} is empty; skip batches without samples")
        devices = {loss.device for loss in losses.values() if isinstance(loss, Tensor)}
        if len(devices) > 1:
            problems.append(f"losses should live on one device, found {sorted(map(str, devices))}")
        if problems:
            raise ValueError("losses: " + "; ".join(problems))
        return modalities or names

    @final
    def encoder_parameters(self) -> dict[str, list[Tensor]]:
        """Every trainable parameter of each attached encoder, as they are now; nothing until a model is attached."""
        return self._attachment.parameters() if self._attachment is not None else {}

    @final
    def tensors_of(self, modality: str) -> list[Tensor]:
        """Every parameter and buffer of an attached encoder, and its part of the fused head where that goes with it."""
        return self._attachment.everything(modality) if self._attachment is not None else []

    @property
    def follows_optimizer(self) -> bool:
        """True if an optimiser is attached, so that steps can be counted by it."""
        return self._attachment is not None and bool(self._attachment.optimizers)

    @property
    def scales_updates(self) -> bool:
        """True if factors act on what an attached optimiser does instead of on gradients."""
        return self._attachment is not None and bool(self._attachment.updates)

    def _deliver(self, step: Step) -> Tensor:
        """Return the scalar of a step: by the method's route, or by a plain sum where that is all there is to it."""
        if not torch.is_grad_enabled():
            return step.value if step.extra is None else step.value + step.extra
        attachment = self._attachment
        if attachment is None and self.route != "loss" and self.needs_encoders:
            raise RuntimeError(
                f"{type(self).__name__} shapes the gradients of each encoder and has not been told which they are: "
                "type balancer.attach(model), or balancer.attach(model, encoders={'audio': model.audio_net, …}), once"
            )
        alone = not self.needs_encoders and not any(loss is not None and loss.requires_grad for loss in step.losses[1:])
        if (self.route == "loss" or (alone and step.weights is not None)) and (attachment is None or self._checked):
            return self._sum(step)
        try:
            route = route_of(self)(self, attachment, step, self._dependence)
        except HiddenGraphError:
            if self.route != "loss":
                raise
            self._checked = True  # a weighted sum is right whatever the graph; it only cannot be looked into
            return self._sum(step)
        problems = [] if alone else route.problems()
        if problems:
            raise ValueError(f"{type(self).__name__}: " + "; ".join(problems))
        self._checked = True
        if attachment is not None:
            self._reached = route.reach.rows()
        if self.route == "loss" or (step.weights is not None and not self.needs_encoders):
            if self.route == "loss" or not route.reach.shared_with_fused():
                return self._sum(step)
            if not route.reach.beside:  # the uni-modal losses train nothing
                return self._sum(step._replace(losses=step.losses[:1]))
        return route.scalar()

    def _sum(self, step: Step) -> Tensor:
        total = weighted_sum(step)
        if self.advances and total.requires_grad:
            pending = [step.values]  # for one backward pass, however many there are
            total.register_hook(lambda scale: self.advance_once(pending.pop(), scale.isfinite()) if pending else None)
        return total

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the user's model and optimiser behind."""
        left = {
            "_attachment": None,
            "_has_trunk": False,
            "_held": None,
            "_reached": [],
            "_dependence": Dependence("world"),
        }
        return {**self.__dict__, **left}

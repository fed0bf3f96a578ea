"""A method: what it may answer, what it uses, and the epochs in which it acts."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor

from equipoise.balance import collectives
from equipoise.balance.attach import Attachment
from equipoise.balance.coefficients import Coefficients, Losses, Tensors
from equipoise.balance.held import HeldDecision
from equipoise.balance.needs import Needs
from equipoise.balance.state import Copied, State
from equipoise.util.errors import unknown_name


class BalancingMethod(State, ABC):
    """The part of a balancer that deliveries and attached optimisers speak to.

    Args:
        start: First epoch in which factors, mixtures and `transform` act.
        stop: First epoch in which it no longer does; None means never.
    """

    needs: Needs = Needs()
    """All that has to be known of the method before it answers."""
    at: Literal["parameters", "features"] = "parameters"
    """Where the gradients are taken that a `Mixing` decides by: at encoders' parameters, or at their outputs."""

    def __init__(self, *, start: int = 0, stop: int | None = None) -> None:
        super().__init__()
        self.start, self.stop = start, stop
        self.group: collectives.Group = "world"
        self.transforms = type(self).transform is not BalancingMethod.transform
        self.answered: Coefficients | Callable[[], Coefficients] | None = None
        """The coefficients of the last step, or what makes them."""
        self._notes_backward = type(self).on_backward is not BalancingMethod.on_backward
        self._attachment: Attachment | None = None
        self._held: HeldDecision | None = None
        # Of a backward pass that an optimiser has to tell about.
        self._pending: tuple[Losses, HeldDecision | None] | None = None

    # -- what a method may answer, besides `weigh` or `mix` --

    def regulariser(self, scalars: Tensors, losses: Losses, answer: Coefficients | None) -> Tensor | None:  # noqa: ARG002
        """Return a loss of the method's own, a scalar with its graph, which counts at weight one everywhere.

        Args:
            scalars: The mean of each loss, with its graph.
            losses: Those that the step is decided by.
            answer: The coefficients of the step.
        """
        return None

    def transform(self, modality: str, gradient: list[Tensor], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:  # noqa: ARG002
        """Return the gradient of one encoder, tensor by tensor, after a last change.

        Args:
            modality: Whose encoder it is.
            gradient: What the table gives.
            parts: The gradients it was made of, one list of tensors per objective.
        """
        return gradient

    def on_backward(self, losses: Losses, finite: Tensor) -> None:
        """Move the state on after a backward pass: in training, once for each call, or once for a window.

        It runs without gradients. State is in single precision; cast it to the losses' where it meets them.

        Args:
            losses: Those that the step was decided by.
            finite: Whether the gradients were finite, so that the step will be taken, on the device. Those of a plain
                sum are not seen: an attached optimiser tells then, once a step, of the last call; without one, it is
                whether the factor from above is finite.
        """

    def on_step(self, taken: Tensor | int) -> None:
        """Take note of a step of an attached optimiser.

        Args:
            taken: One where it counts, zero where it was skipped, and for all optimisers but the first.
        """

    def on_epoch(self, metrics: Mapping[str, Tensor]) -> None:
        """Take note of the end of an epoch. ``metrics`` holds what `needs` named, one value per modality."""

    # -- what a method uses --

    @property
    def active(self) -> Tensor:
        """True in the epochs in which the method modulates, as a tensor on the device."""
        inside = self.epoch >= self.start
        return inside if self.stop is None else inside & (self.epoch < self.stop)

    @property
    def always_active(self) -> bool:
        """True if the method modulates in every epoch."""
        return self.start == 0 and self.stop is None

    @final
    def gated(self, factors: Tensor) -> Tensor:
        """Return factors in the epochs in which the method is active, ones in the others."""
        return factors if self.always_active else torch.where(self.active, factors, torch.ones_like(factors))

    @property
    def further_names(self) -> tuple[str, ...]:
        """The names of the further objectives, in the order of the modalities."""
        return tuple(f"{self.needs.further} {name}" for name in self.modalities) if self.needs.further else ()

    @property
    def attachment(self) -> Attachment | None:
        """The model that is attached."""
        return self._attachment

    @property
    def follows_optimizer(self) -> bool:
        """True if an optimiser is attached, so that steps can be counted by it."""
        return self._attachment is not None and bool(self._attachment.optimizers)

    @final
    def tensors_of(self, modality: str, of: Copied) -> list[Tensor]:
        """List the tensors of an attached encoder, as they are now; nothing until a model is attached."""
        if self._attachment is None:
            return []
        if of == "everything":
            return self._attachment.everything(modality)
        return self._attachment.every_parameter(modality)

    @final
    def beside_copies(self, name: str, modality: str) -> tuple[list[Tensor], list[Tensor]]:
        """Return the trainable tensors of an encoder that has a copy, and their copies."""
        tensors, kept = self.tensors_of(modality, "parameters"), self.copied(name, modality)
        if [one.shape for one in kept] != [one.shape for one in tensors]:  # it was replaced
            self.copy_encoder(name, modality)
            kept = self.copied(name, modality)
        trained = [place for place, tensor in enumerate(tensors) if tensor.requires_grad]
        return [tensors[place] for place in trained], [kept[place] for place in trained]

    @property
    def held(self) -> HeldDecision | None:
        """The decision that a `Window` holds; None outside of one."""
        return self._held

    @final
    def sees_backward(self, held: HeldDecision | None) -> bool:
        """Return True if the method is to be told of the backward pass of a step, which a window may have decided."""
        return self._notes_backward and self.training and (held is None or not held.advanced)

    @final
    @torch.no_grad()
    def backward_done(self, losses: Losses, finite: Tensor, held: HeldDecision | None) -> None:
        """Tell the method of a backward pass, once for all micro-batches of a window."""
        if held is not None:
            held.advanced = True
        self.on_backward(losses, finite)

    @final
    def backward_of_sum(self, losses: Losses, scale: Tensor, held: HeldDecision | None) -> None:
        """Tell the method of a backward pass whose gradients were not seen: an optimiser says whether they count."""
        if self.follows_optimizer:
            self._pending = losses, held
        else:
            self.backward_done(losses, scale.isfinite(), held)

    @final
    @torch.no_grad()
    def stepped(self, taken: Tensor | int, *, counts: bool) -> None:
        """Take note of a step of an attached optimiser.

        Args:
            taken: One, or zero where a GradScaler told a fused optimiser to skip the step inside.
            counts: Whether it is the first of the optimisers, by which steps are counted.
        """
        if counts and self._pending is not None:
            (losses, held), self._pending = self._pending, None
            known = isinstance(taken, Tensor)
            counted = taken > 0 if known else torch.full_like(self.epoch, taken, dtype=torch.bool)
            self.backward_done(losses, counted, held)
        self.on_step(taken if counts else 0)

    @final
    def transformed(self, modality: str, gradient: list[Tensor], parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Call `transform`, within the method's epochs."""
        if not self.transforms:
            return gradient
        changed = self.transform(modality, gradient, parts)
        if self.always_active:
            return changed
        return [torch.where(self.active, new, old) for new, old in zip(changed, gradient, strict=True)]

    @final
    def hold(self, decision: HeldDecision | None) -> None:
        """Keep one decision for every call until told otherwise: what `Window` does."""
        self._held = decision

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the user's model and optimiser behind."""
        return {**super().__getstate__(), "_attachment": None, "_held": None, "_pending": None}


def unmet(
    balancer: BalancingMethod,
    *,
    task: str = "",
    modalities: Collection[str] = (),
    model: Any = None,
    arguments: Collection[str] | None = None,
    further: Collection[str] | None = None,
) -> list[str]:
    """Return every reason why a method cannot be used, as far as is told.

    Args:
        balancer: The method.
        task: The kind of the task.
        modalities: The names of the modalities.
        model: The model that is attached.
        arguments: Arguments that the model can be built with; None where it is built already.
        further: Prefixes of the further objectives that the trainer can compute for the model; None: the user does.
    """
    method, needs = type(balancer).__name__, balancer.needs
    found = [needs.tasks[task]] if task in needs.tasks else []
    if modalities:
        strangers = (unknown_name(name, modalities) for name in needs.modalities if name not in modalities)
        found += [f"{method}: unknown modality {text}" for text in strangers]
        found += balancer.row_problems(modalities)
    for name, wanted in needs.model.items() if model is not None else ():
        if (value := getattr(model, name, 0.0)) != wanted:
            kind = type(model).__name__
            found.append(f"{method}: expected a model with {name}={wanted:g}, found {kind} with {name}={value}")
    instead = "choose msl, ew or mimo, which need no more than losses"
    if lacking := [name for name in needs.model if arguments is not None and name not in arguments]:
        found.append(f"{method} needs a model that is built with {', '.join(lacking)}, and this one is not; {instead}")
    if further is not None and needs.further and needs.further not in further and not needs.instead:
        found.append(
            f"{method} needs the objectives '{needs.further} …' of each modality, which are not known of this model or "
            f"loss; {instead}"
        )
    return found

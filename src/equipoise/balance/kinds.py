"""The two kinds of methods: those that weigh losses by their values, and those that mix gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from equipoise.balance.balancer import Balancer
from equipoise.balance.coefficients import FUSED, Coefficients, Losses, check_answer
from equipoise.balance.mixture import Gram
from equipoise.balance.passes import SECOND_DERIVATIVES
from equipoise.util.errors import BadInput


class Weighting(Balancer, ABC):
    """Base of the methods that weigh losses by their values."""

    @abstractmethod
    def weigh(self, losses: Losses) -> Coefficients:
        """Return the answer to the losses of a step.

        It is pure: state moves in events alone. Where second derivatives are wanted it is asked once more, of losses
        that have a graph.
        """

    @final
    def decide(self, losses: Losses) -> Coefficients:
        """Call `weigh`, and check what it answers."""
        names, answer = (FUSED, *self.modalities), self.weigh(losses)
        # An answer may have rows for further objectives that are given later.
        if self.needs.further and (losses.further is not None or answer.encoders.shape[0] > len(names)):
            names += self.further_names
        answer = check_answer(type(self).__name__, answer, names, len(self.modalities))
        return answer if answer.factors is None else answer._replace(factors=self.gated(answer.factors))

    @final
    def weigh_again(self, losses: Losses, values: Tensor) -> Coefficients:
        """Return the answer to the same losses with their graph, for second derivatives.

        Args:
            losses: As they were.
            values: Of every objective, with a graph.
        """
        count = 1 + len(self.modalities)
        values = values.to(losses.fused.dtype)
        again = losses._replace(fused=values[0], unimodal=values[1:count])
        again = again if losses.further is None else again._replace(further=values[count:])
        if losses.scores is losses.unimodal:
            return self.weigh(again._replace(scores=again.unimodal))
        # The graph of scores is not here: an answer that depends on them cannot be differentiated.
        unknown = self.weigh(losses._replace(scores=losses.scores.clone().requires_grad_()))
        if any(part.requires_grad for part in unknown.parts):
            raise RuntimeError(SECOND_DERIVATIVES)
        return self.weigh(again)


class Mixing(Balancer, ABC):
    """Base of the methods that mix the gradients of each encoder."""

    @abstractmethod
    def mix(self, gram: Gram, losses: Losses) -> Tensor:
        """Return the coefficients of the gradients of each block, [blocks, n].

        Args:
            gram: The inner products of the gradients of each block.
            losses: Of the step.
        """

    @final
    def decide(self, losses: Losses) -> None:
        """Leave it to the gradients."""

    @final
    def mixed(self, gram: Gram, losses: Losses) -> Tensor:
        """Call `mix`, within the method's epochs; in the others encoders learn from the fused loss."""
        mixture, wanted = self.mix(gram, losses), gram.products.shape[:2]
        if not isinstance(mixture, Tensor) or mixture.shape != wanted:
            found = list(mixture.shape) if isinstance(mixture, Tensor) else type(mixture).__name__
            raise BadInput(f"{type(self).__name__}.mix: expected coefficients of shape {list(wanted)}, found {found}")
        if self.always_active:
            return mixture
        joint = torch.zeros_like(mixture)
        joint[..., 0] = 1
        return torch.where(self.active, mixture, joint)

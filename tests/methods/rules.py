"""The published rules of methods that weigh losses, as sums of plain gradients: what each parameter should get."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from methods.expected import FUSED, Layout, Plain, Total

Scores = Mapping[str, Tensor] | None

EXACT = 1e-9
MIXED = 1e-7  # inner products square the condition of the gradients they are taken of
SINGLE = 1e-6  # a factor that is kept in single precision
HISTORY = 2e-5  # an exponential of differences of running means that are kept in single precision


class Delivered(NamedTuple):
    """What a balancer should give for one batch, at a scale of one and without losses that belong to no modality.

    Args:
        total: The gradients.
        unmodulated: The gradients before factors on encoders, for an optimiser whose updates are scaled instead.
        factors: The factor on each parameter's gradient, or on its update.
        noise: The standard deviation of the noise that is added to a parameter's gradient.
        tolerance: By how much, relative to the terms of a sum, numbers may differ.
        linear: Whether the table alone says what encoders got.
        value: The scalar, where its formula is documented.
        untouched: Parameters that got something else than the table says of their block.
        own: The gradient of a loss of the method's own, which counts at weight one everywhere.
        own_value: That loss.
    """

    total: Total
    unmodulated: Total
    factors: dict[str, float | Tensor]
    noise: Mapping[str, Tensor] = MappingProxyType({})
    tolerance: float = EXACT
    linear: bool = True
    value: float | None = None
    untouched: frozenset[str] = frozenset()
    own: Mapping[str, Tensor] = MappingProxyType({})
    own_value: float = 0.0


class Rule(ABC):
    """A method's rule, with what it remembers.

    Args:
        layout: Which parameters belong to which encoder.
        options: Of the method.
    """

    def __init__(self, layout: Layout, options: Mapping[str, Any]) -> None:
        self.layout, self.options, self.epoch, self.optimizer_steps, self.calls = layout, options, 0, 0, 0
        self.names = layout.modalities
        self.parameters: Mapping[str, Tensor] = {}
        """Of the copy of the model, which moves as the model does."""
        self.follows = False
        """Whether an optimiser is attached."""
        self.amounts: dict[str, float] = {}
        """How far the next step puts an encoder back to what it began with."""
        self.initial: dict[str, Tensor] = {}

    def stepped(self, gradients: Mapping[str, Tensor]) -> None:  # noqa: B027
        """An optimiser took a step with these gradients."""

    def put_back(self, name: str, parameter: Tensor) -> Tensor:
        """A parameter after a step, put back towards what it began with by each encoder that it belongs to."""
        for modality, amount in self.amounts.items():
            if name in self.layout.blocks[modality]:
                parameter = (1 - amount) * parameter + amount * self.initial[name]
        return parameter

    @abstractmethod
    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:
        """What one backward pass gives, and what is remembered of it.

        Args:
            plain: The batch.
            scores: What the user measured.
            counts_steps: Whether an optimiser is attached, so that its steps count instead of calls.
        """

    def end_epoch(self, metrics: Mapping[str, Mapping[str, float]]) -> None:  # noqa: ARG002
        """An epoch ends."""
        self.epoch += 1

    @property
    def active(self) -> bool:
        """Whether the method modulates in this epoch."""
        stop = self.options.get("stop")
        return self.options.get("start", 0) <= self.epoch and (stop is None or self.epoch < stop)

    def others(self, name: str) -> list[str]:
        """The other modalities; itself where there are none."""
        return [other for other in self.names if other != name] or [name]

    def combined(
        self,
        plain: Plain,
        encoders: Mapping[str, float],
        heads: Mapping[str, float],
        *,
        own_heads: bool = False,
        factors: Mapping[str, float] | None = None,
        kernels: bool = False,
        scales_heads: bool = False,
        beside: bool = False,
        **more: Any,
    ) -> Delivered:
        """Encoders move along a weighted sum times a factor, heads along another sum.

        Args:
            plain: The batch.
            encoders: The weight of each loss on encoders.
            heads: The weight of each loss on heads.
            own_heads: A head that the fused loss reaches learns from that loss alone.
            factors: One per encoder; encoders that share parameters get the mean of theirs.
            kernels: The factor applies to kernels of convolutions only.
            scales_heads: The factor of a modality applies to its part of an additive fused head too.
            beside: A parameter of an encoder that the fused loss does not reach is as good as a head.
            more: Other fields of the answer.
        """
        total, unmodulated, applied = Total(), Total(), {}
        means = self.layout.means(factors or dict.fromkeys(self.names, 1.0))
        for name, group in self.layout.groups_of.items():
            applied[name] = means[group[0]] if not kernels or name in self.layout.kernels else 1.0
        untouched = set(applied) - self.layout.kernels if kernels else set()
        for loss, gradients in plain.gradients.items():
            for name, gradient in gradients.items():
                from_fused = name in plain.gradients.get(FUSED, {})
                if name not in self.layout.groups_of:
                    if own_heads and from_fused and loss != FUSED:
                        continue
                    weight = heads[loss]
                    if scales_heads and name in self.layout.heads:
                        applied[name] = self.layout.on_head(name, means, gradient.shape[-1])
                        untouched.add(name)
                elif beside and not from_fused:
                    untouched.add(name)
                    unmodulated.add(name, gradient, heads[loss])
                    total.add(name, gradient, heads[loss])
                    continue
                else:
                    weight = encoders[loss]
                unmodulated.add(name, gradient, weight)
                total.add(name, gradient, weight * applied.get(name, 1.0))
        return Delivered(total, unmodulated, applied, untouched=frozenset(untouched), **more)

    def joint(self, plain: Plain, factors: Mapping[str, float] | None = None, **more: Any) -> Delivered:
        """Encoders learn from the fused loss times a factor; a parameter that it does not reach from its own loss."""
        encoders, heads = {name: float(name == FUSED) for name in plain.losses}, dict.fromkeys(plain.losses, 1.0)
        return self.combined(plain, encoders, heads, own_heads=True, beside=True, factors=factors, **more)

    def likelihoods(self, plain: Plain, scores: Scores) -> dict[str, float]:
        """The mean probability of the right class per modality, or what the user measured."""
        if scores is not None:
            return {name: float(scores[name].mean()) for name in self.names}
        return {name: float((-plain.losses[name]).exp().mean()) for name in self.names}


@final
class MSL(Rule):
    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        return self.joint(plain, value=float(plain.losses[FUSED].mean()))


class Weighted(Rule):
    """A scalar: one weighted sum for all parameters."""

    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        weights, value = self.weights({name: float(loss.mean()) for name, loss in plain.losses.items()}, counts_steps)
        heads = dict.fromkeys(weights, 1.0) if self.options.get("heads") == "plain" else weights
        return self.combined(plain, weights, heads, value=value)

    @abstractmethod
    def weights(self, losses: Mapping[str, float], counts_steps: bool) -> tuple[dict[str, float], float]:
        """The weight of each loss, and the objective."""


@final
class EW(Weighted):
    def weights(self, losses: Mapping[str, float], counts_steps: bool) -> tuple[dict[str, float], float]:  # noqa: ARG002
        weights = {name: 1.0 if name == FUSED else self.options["weight"] for name in losses}
        return weights, sum(weights[name] * losses[name] for name in losses)


@final
class Unimodal(Weighted):
    def weights(self, losses: Mapping[str, float], counts_steps: bool) -> tuple[dict[str, float], float]:  # noqa: ARG002
        weights = {name: float(name != FUSED and self.options["modality"] in (None, name)) for name in losses}
        return weights, sum(weights[name] * losses[name] for name in losses)


@final
class MIMO(Weighted):
    def weights(self, losses: Mapping[str, float], counts_steps: bool) -> tuple[dict[str, float], float]:
        taken = self.optimizer_steps if counts_steps else self.calls
        self.calls += 1
        optimum = {name: [0.0] for name in self.names} if self.options["optimum"] is None else self.options["optimum"]
        gaps = {name: losses[name] - optimum[name][min(taken, len(optimum[name]) - 1)] for name in self.names}
        smoothing, furthest = self.options["smoothing"], max(gaps.values())
        while (
            smoothing
            and self.options["overflow"] == "double"
            and furthest / smoothing > math.log(1.7976931348623157e308)
        ):
            smoothing *= 2
        if smoothing == 0:
            parts, smooth = {name: float(gap == furthest) for name, gap in gaps.items()}, furthest
        else:
            parts = {name: math.exp((gap - furthest) / smoothing) for name, gap in gaps.items()}
            smooth = furthest + smoothing * math.log(sum(parts.values()))
        penalty, floor = self.options["penalty"], self.options["floor"]
        weights = {name: penalty * parts[name] / sum(parts.values()) + floor for name in self.names}
        value = losses[FUSED] + penalty * smooth + floor * sum(losses[name] for name in self.names)
        return {FUSED: 1.0, **weights}, value


@final
class DGL(Rule):
    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        encoders = {name: 0.0 if name == FUSED else self.options["weight"] for name in plain.losses}
        return self.combined(plain, encoders, dict.fromkeys(plain.losses, 1.0), own_heads=True)


@final
class MLB(Rule):
    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        likely, factors = self.likelihoods(plain, scores), {}
        for name in self.names:
            ratio = float(np.mean([likely[other] / likely[name] for other in self.others(name)]))
            rise = math.tanh(self.options["strength"] * (ratio - 1))
            factors[name] = 1 + (rise * (self.options["ceiling"] - 1) if rise > 0 else rise) if self.active else 1.0
        heads = {FUSED: 1.0, **factors}
        return self.combined(plain, dict.fromkeys(plain.losses, 1.0), heads, factors=factors)


@final
class ARL(Rule):
    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        count = len(self.names)
        factors = dict.fromkeys(self.names, 1.0 if count == 1 or not self.active else 1.5)
        if self.options["form"] == "given" and count > 1 and self.active:
            assert scores is not None
            entropy, magnitude = ({n: float(s.reshape(-1, 2)[:, i].mean()) for n, s in scores.items()} for i in (0, 1))
            inverse = {n: 1 / max(entropy[n] / sum(entropy.values()), 0.6 / count) for n in self.names}
            powers = {}
            for name in self.names:
                others = sum(magnitude[other] for other in self.others(name)) / sum(magnitude.values()) / (count - 1)
                product = others * inverse[name] / sum(inverse.values())
                powers[name] = math.exp(self.options["sharpness"] * product * (count / 2) ** 2)
            factors = {name: 1 + count / 2 * powers[name] / sum(powers.values()) for name in self.names}
        weight = self.options["weight"] if self.active else 1.0
        weights = {name: 1.0 if name == FUSED else weight for name in plain.losses}
        value = sum(weights[name] * float(loss.mean()) for name, loss in plain.losses.items())
        return self.combined(plain, weights, weights, factors=factors, value=value)


@final
class CGGM(Rule):
    def __init__(self, layout: Layout, options: Mapping[str, Any]) -> None:
        super().__init__(layout, options)
        self.before = dict.fromkeys(self.names, 0.0)

    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        assert scores is not None
        now = {name: float(scores[name].mean()) for name in self.names}
        rises = {name: max(now[name] - self.before[name], 0.0) for name in self.names}
        self.before = now
        count, total = len(self.names), sum(rises.values())
        shares = {name: rises[name] / total if total else 1 / count for name in self.names}
        factors = {name: 1.0 if count == 1 else self.options["strength"] * (1 - shares[name]) for name in self.names}
        answer = self.joint(plain, factors, tolerance=HISTORY)
        for name, size in answer.unmodulated.sizes.items():  # a small factor is a difference of numbers near one
            answer.total.sizes[name] = max(answer.total.sizes[name], 0.01 * size)
        return answer


@final
class OGM(Rule):
    """OGM, and OGM-GE where the options speak of noise."""

    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        likely, factors = self.likelihoods(plain, scores), {}
        for name in self.names:
            ratio = float(np.mean([likely[name] / likely[other] for other in self.others(name)]))
            slowed = self.active and ratio > 1
            factors[name] = 1 - math.tanh(self.options["strength"] * ratio) if slowed else 1.0
        kernels = self.options["parameters"] == "kernels"
        answer = self.joint(plain, factors, kernels=kernels)
        if "noise" not in self.options or not self.active:
            return answer
        source = answer.unmodulated if self.options["noise"] == "before" else answer.total
        noise = {
            name: source.values[name].std() if source.values[name].numel() > 1 else torch.zeros(())
            for name in plain.gradients[FUSED].keys() & self.layout.groups_of.keys()
            if not kernels or name in self.layout.kernels
        }
        return answer._replace(noise=noise)


@final
class AGM(Rule):
    """AGM in all its forms: on encoders ("fast"), on responses ("published", and "responses" with a wrapped model)."""

    def __init__(self, layout: Layout, options: Mapping[str, Any]) -> None:
        super().__init__(layout, options)
        self.history: list[dict[str, float]] = []

    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        exact = self.options["form"] != "fast"
        losses = plain.response_losses if exact else plain.losses
        if scores is None:
            now = {name: float(losses[name].clamp(max=-math.log(1e-8)).mean()) for name in self.names}
        else:
            now = {name: float(scores[name].mean()) for name in self.names}
        usual = {name: float(np.mean([past[name] for past in self.history])) if self.history else 0.0 for name in now}
        factors = {}
        for name in self.names:
            apart = self._ahead(usual, name) - self._ahead(now, name)
            cap = math.inf if self.options["cap"] is None else self.options["cap"]
            factors[name] = math.exp(self.options["strength"] * min(apart, cap)) if self.active else 1.0
        tolerance = HISTORY if self.history else SINGLE if exact else EXACT
        self.history.append(now)
        if not exact:
            return self.joint(plain, factors, tolerance=tolerance)
        total = Total()
        if self.options["form"] == "published":  # a wrapped model has no heads beside
            total.add_all(
                {
                    name: each
                    for name, each in self.joint(plain).total.values.items()
                    if name not in plain.gradients[FUSED]
                }
            )
        for name, gradients in plain.responses.items():
            total.add_all(gradients, factors[name])
        for name in total.sizes:  # a response is a difference of outputs that are several times as large
            total.sizes[name] *= 2 ** len(self.names)
        # Responses to zero input depend on encoders with biases, so that a factor per encoder does not say it all.
        return Delivered(total, total, {}, tolerance=tolerance, linear=False)

    def _ahead(self, values: Mapping[str, float], name: str) -> float:
        return math.exp(float(np.mean([values[other] for other in self.others(name)])) - values[name])


@final
class MSLR(Rule):
    def __init__(self, layout: Layout, options: Mapping[str, Any]) -> None:
        super().__init__(layout, options)
        self.fixed = options["rates"] or dict.fromkeys(self.names, 1.0)
        self.rate = dict(self.fixed)
        self.seen: dict[str, list[float]] = {name: [] for name in self.names}

    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        factors = self.rate if self.active else dict.fromkeys(self.names, 1.0)
        return self.joint(plain, factors, tolerance=SINGLE, scales_heads=self.options["heads"] == "scaled")

    def end_epoch(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        super().end_epoch(metrics)
        for name, before in self.seen.items():
            known, now = before[-self.options["memory"] :], metrics[name]["accuracy"]
            self.rate[name] = self.fixed[name]
            if len(known) == self.options["memory"]:
                self.rate[name] *= now / float(np.mean(known))
            before.append(now)


@final
class MSES(Rule):
    def __init__(self, layout: Layout, options: Mapping[str, Any]) -> None:
        super().__init__(layout, options)
        self.before: dict[str, float] = {}
        self.best = dict.fromkeys(self.names, (math.inf, 0))
        self.stopped: set[str] = set()

    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        factors = {name: float(name not in self.stopped) for name in self.names}
        return self.joint(plain, factors, scales_heads=self.options["heads"] == "scaled")

    def end_epoch(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        super().end_epoch(metrics)
        for name in self.names:
            now = metrics[name]["loss"]
            smooth = 0.6 * self.before[name] + 0.4 * now if name in self.before else now
            self.before[name] = now if self.options["smoothing"] == "two-tap" else smooth
            if name not in self.stopped and smooth < self.best[name][0]:
                self.best[name] = (smooth, self.epoch)
            if self.epoch - self.best[name][1] > self.options["patience"]:
                self.stopped.add(name)


@final
class SMP(Rule):
    def __init__(self, layout: Layout, options: Mapping[str, Any]) -> None:
        super().__init__(layout, options)
        self.order = options["order"]
        self.first = options["start"] if options["start"] is not None else int(self.order is None)

    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        factors = dict.fromkeys(self.names, 1.0)
        alone = [name for name in (self.order or self.names)[:-1] for _ in range(self.options["stage"])]
        if 0 <= self.epoch - self.first < len(alone):
            factors = {name: float(name == alone[self.epoch - self.first]) for name in self.names}
        return self.joint(plain, factors)

    def end_epoch(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        super().end_epoch(metrics)
        if self.order is None and self.epoch == self.first:
            self.order = sorted(self.names, key=lambda name: metrics[name]["accuracy"])


@final
class InfoReg(Rule):
    def __init__(self, layout: Layout, options: Mapping[str, Any]) -> None:
        super().__init__(layout, options)
        self.start: dict[str, Tensor] = {}
        self.traces: dict[str, list[float]] = {name: [] for name in self.names}
        self.now = dict.fromkeys(self.names, 0.0)
        self.open = dict.fromkeys(self.names, True)

    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        self.start = self.start or {name: tensor.detach().clone() for name, tensor in self.parameters.items()}
        likely, own, value = self.likelihoods(plain, scores), {}, 0.0
        for name in self.names:
            lead = likely[name] - float(np.mean([likely[other] for other in self.others(name)]))
            if not self.open[name] or not lead > 1e-12:  # which for a single modality is rounding
                continue
            strength = (self.options["strengths"] or dict.fromkeys(self.names, self.options["strength"]))[name]
            strength *= math.exp(math.tanh(self.options["sharpness"] * lead))
            for key in self.layout.blocks.get(name, ()):
                apart = self.parameters[key].detach() - self.start[key]
                own[key] = own.get(key, 0) + strength * apart
                value += strength * float(apart.square().sum()) / 2
        ones = dict.fromkeys(plain.losses, 1.0)
        total = sum(float(loss.mean()) for loss in plain.losses.values())
        return self.combined(plain, ones, ones, tolerance=SINGLE, own=own, own_value=value, value=total)

    def stepped(self, gradients: Mapping[str, Tensor]) -> None:
        for name, block in self.layout.blocks.items():
            weights = [gradients[key] for key in block if key in gradients and gradients[key].dim() > 1]
            self.now[name] += sum(float(gradient.square().mean()) for gradient in weights)

    def end_epoch(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        super().end_epoch(metrics)
        for name, before in self.traces.items():
            before.append(self.now[name])
            padded = [0.0] * (self.options["memory"] + 1) + before
            now, last = sum(padded[-self.options["memory"] :]), sum(padded[-self.options["memory"] - 1 : -1])
            self.open[name] = now == 0 or (now - last) / now > self.options["threshold"]
        self.now = dict.fromkeys(self.names, 0.0)
        self.start = {name: tensor.detach().clone() for name, tensor in self.parameters.items()}


@final
class Relearn(Rule):
    def deliver(self, plain: Plain, scores: Scores, *, counts_steps: bool) -> Delivered:  # noqa: ARG002
        self.initial = self.initial or {name: tensor.detach().clone() for name, tensor in self.parameters.items()}
        return self.joint(plain)

    def end_epoch(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        super().end_epoch(metrics)
        if self.epoch not in [self.options["every"] * (time + 1) for time in range(self.options["times"])]:
            return
        for name in self.names:
            gap = abs(metrics[name]["purity_train"] - metrics[name]["purity_validation"])
            self.amounts[name] = math.tanh(self.options["strength"] * gap)
        if not self.follows and self.initial:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(self.put_back(name, parameter))
        if not self.follows:
            self.amounts = {}

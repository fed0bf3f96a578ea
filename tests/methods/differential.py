"""Runs random cases through a balancer and beside it through plain torch, and compares what arrives in `.grad`."""

from __future__ import annotations

import copy
import math
import random
import re
import warnings
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from equipoise import Balancer, LateFusion
from equipoise.models import response_losses
from methods import rules
from methods.expected import FUSED, Gradients, Layout, Plain, Question, measure
from methods.random_cases import LEARNS_FROM_FUSED_LOSS, LEARNS_FROM_OWN_LOSS, RULES, Case, draw_case
from methods.random_models import batch, build, encoders_of, extra_of, losses_of, trunk_of

MODULATES = frozenset({"OGM", "OGMGE", "AGM fast", "MSLR", "MLB", "ARL", "SMP", "CGGM"})
"""Methods whose factors act on updates where the optimiser is Adam."""
HOOK, RATE, EPSILON = 0.1, 0.05, 1e-3


@final
class DifferenceError(AssertionError):
    """Something other than was expected; ``kind`` is for counting."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class Refusals(NamedTuple):
    """The messages that a case may be refused with, as patterns, and whether it has to be refused."""

    patterns: list[str]
    required: bool


def layout_of(plain: nn.Module, case: Case) -> Layout:
    """Which parameters belong to which encoder, as the balancer is told."""
    names = {id(parameter): name for name, parameter in plain.named_parameters()}
    encoders = encoders_of(plain, case.shape)
    blocks = {
        name: frozenset(names[id(each)] for each in encoder.parameters() if each.requires_grad)
        for name, encoder in encoders.items()
    }
    kernels = frozenset(name for name, parameter in plain.named_parameters() if parameter.dim() >= 3)
    heads: dict[str, dict[str, slice | None]] = {}
    if isinstance(plain, LateFusion) and case.shape.fusion == "concat":
        ends = list(accumulate(encoder.features for encoder in encoders.values()))
        starts = dict(zip(encoders, [0, *ends], strict=False))
        heads["fusion.head.weight"] = {name: slice(starts[name], end) for name, end in zip(encoders, ends, strict=True)}
    elif isinstance(plain, LateFusion) and case.shape.fusion == "sum":
        for name, head in zip(encoders, plain.fusion.get_submodule("heads").children(), strict=True):
            heads |= {names[id(parameter)]: {name: None} for parameter in head.parameters()}
    trunk = set()
    if case.has_trunk:
        parts = [list(part.parameters()) if isinstance(part, nn.Module) else [part] for part in trunk_of(plain)]
        owned = {names[id(each)] for encoder in encoders.values() for each in encoder.parameters()}
        trunk = {names[id(tensor)] for part in parts for tensor in part} - owned
    return Layout(case.shape.modalities, {} if case.attach == "none" else blocks, kernels, heads, frozenset(trunk))


def refusals(case: Case, plain: Plain, layout: Layout) -> Refusals:
    """What the case may or has to be refused with: every permitted refusal is listed here."""
    if case.attach == "none":
        return Refusals(["has not been told which they are"] * case.needs_encoders, case.needs_encoders)
    sliced = case.sliced  # a slice is connected with all: such a case is right, or refused
    found: list[tuple[str, bool]] = []
    for name in (name for name, block in layout.blocks.items() if block):
        if case.method in LEARNS_FROM_OWN_LOSS and not layout.reached(plain.gradients[name], name):
            found.append((f"loss {name!r} sends no gradient to encoder {name!r}", not sliced))
        if case.method in LEARNS_FROM_FUSED_LOSS and not layout.reached(plain.gradients[FUSED], name):
            found.append((f"the fused loss sends no gradient to encoder {name!r}", not sliced and case.method != "MSL"))
        reached = {key for each in (*plain.gradients.values(), plain.extra) for key in each} & layout.blocks[name]
        if case.options.get("parameters") == "kernels" and not reached & layout.kernels:
            found.append(("has no tensor that this method modulates", True))  # one message names all
    if case.decides_at_features:
        found += [(pattern, True) for pattern in _refusals_at_features(case, layout)]
    return Refusals([re.escape(text) for text, _ in found], any(required for _, required in found))


def _refusals_at_features(case: Case, layout: Layout) -> Iterator[str]:
    names, shape = case.shape.modalities, case.shape
    if case.attach in ("lists", "parameters"):
        yield "found bare parameters or several parts for"
    if shape.entangled == "chain" and (layout.blocks[names[0]] or len(names) > 2):
        yield "reads what another encoder gives"
    if (shape.shared == "whole" and layout.blocks[names[0]]) or (shape.side and any(layout.blocks.values())):
        yield "acts on the losses otherwise than by what it gave last"


@final
class Run:
    """One case on its way.

    Args:
        case: What to run.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.draw = case, random.Random(f"{case.seed} run")
        self.model = build(case.shape)
        self.copy = copy.deepcopy(self.model)  # before anything is attached to the model, or hooked
        self.layout = layout_of(self.copy, case)
        self.rule = RULES[case.method](self.layout, case.options)
        self.rule.parameters = dict(self.copy.named_parameters())
        self.rule.follows = case.optimizer != "none"
        self.noise: list[Tensor] = []
        self.parameters = dict(self.model.named_parameters())
        trainable = [name for name, parameter in self.parameters.items() if parameter.requires_grad]
        self.hooked = {name for name in trainable if self.draw.random() < case.hooked}
        for name in self.hooked:
            self.parameters[name].register_hook(lambda gradient: HOOK * gradient)
        self.optimizer = _optimizer(case, self.model)
        self.plain_optimizer = _optimizer(case, self.copy)
        self._next: Plain | None = None
        self.from_fused: Collection[str] = ()
        self.factors: list[dict[str, float | Tensor]] = []  # of the backward passes of one step

    def __call__(self) -> str:
        """Run the case; says "equal", or what it was refused with.

        Raises:
            DifferenceError: If gradients, the table, an update or a refusal are other than expected.
        """
        case = self.case
        self._next = self._measured(self._seed(0, 0))
        allowed = refusals(case, self._next, self.layout)
        try:
            balancer, called = case.balancer(self.model)
            if case.attach != "none":
                told = {"encoders": case.told(self.model), "trunk": case.told_trunk(self.model)}
                balancer.attach(self.model, optimizer=self.optimizer, **told)
            for step in range(case.steps):
                self._step(balancer, called, step, allowed)
        except (ValueError, RuntimeError) as error:
            for pattern in allowed.patterns:
                if re.search(pattern, str(error)):
                    return "refused"
            raise DifferenceError("unexpected refusal", f"{type(error).__name__}: {error}") from error
        return "equal"

    def _seed(self, step: int, part: int) -> int:
        return self.case.shape.seed + 10 * step + part

    def _measured(self, seed: int) -> Plain:
        case = self.case
        exact = case.options.get("form") in ("published", "responses")
        data = batch(case.shape, seed)
        masks = case.masks(seed, len(data.labels))
        question = Question(case.given, case.scalars, case.factors, case.extra, exact, masks)
        return measure(self.copy, case.shape, data, question)

    def _step(self, balancer: Balancer, called: nn.Module, step: int, allowed: Refusals) -> None:
        case = self.case
        for _ in range(case.epochs[step] if balancer.modalities else 0):
            metrics = {
                name: {
                    "loss": self.draw.uniform(0.5, 2),
                    "accuracy": self.draw.uniform(0.2, 0.9),
                    "purity_train": self.draw.uniform(0.2, 0.9),
                    "purity_validation": self.draw.uniform(0.2, 0.9),
                }
                for name in case.shape.modalities
            }
            balancer.end_epoch(metrics)
            self.rule.end_epoch(metrics)
        self.model.zero_grad()
        self.factors = []
        for part in range(case.micro_batches):
            last = step + 1 == case.steps and part + 1 == case.micro_batches
            self._backward(balancer, called, self._seed(step, part), allowed, twice=case.twice and last)
        if self.optimizer is not None:
            self._update(self.optimizer)

    def _backward(self, balancer: Balancer, called: nn.Module, seed: int, allowed: Refusals, *, twice: bool) -> None:
        case, data = self.case, batch(self.case.shape, seed)
        plain, self._next = self._next or self._measured(seed), None
        scores = None
        if case.scores:
            columns = (2,) if case.options.get("form") == "given" else ()
            shapes = {name: (*self.draw.choice(((), (3,))), *columns) for name in case.shape.modalities}
            random_numbers = torch.Generator().manual_seed(seed)
            scores = {
                name: torch.rand(shape, generator=random_numbers, dtype=torch.float64) + 0.1
                for name, shape in shapes.items()
            }
        outputs, further = called(data.inputs), None
        if case.options.get("form") == "published":
            assert isinstance(self.model, LateFusion)
            outputs, responses = self.model.with_responses(data.inputs)
        elif case.options.get("form") == "responses":
            responses = {name: outputs[name] for name in case.shape.modalities}
        every = losses_of(outputs, data.labels, case.scalars, case.factors, case.form)
        losses = {name: every[name] for name in self.draw.sample(sorted(case.given), len(case.given))}
        if case.options.get("form") in ("published", "responses"):
            further = response_losses(losses[FUSED], responses)
        extra = extra_of(self.model, outputs, case.extra) if case.extra else None
        before = self._gradients()
        masks = case.masks(seed, len(data.labels))
        losses |= {
            name: torch.where(masks[name], losses[name], torch.nan) for name in masks if self.draw.random() < 0.5
        }
        result = balancer(losses, scores=scores, extra=extra, present=masks or None, further=further)
        (case.scale * result).backward(retain_graph=twice)
        if allowed.required:
            raise DifferenceError("no refusal", f"expected one of {allowed.patterns}")
        delivered = self.rule.deliver(plain, scores, counts_steps=case.attach != "none" and self.optimizer is not None)
        plain = _with_own_loss(plain, delivered)
        self._compare(before, delivered, plain)
        self.factors.append(dict(delivered.factors))
        if delivered.value is not None:
            _close("value", float(result.detach()), delivered.value + plain.extra_value)
        self._compare_table(balancer, delivered, plain)
        if twice:
            before = self._gradients()
            (case.scale * result).backward()
            self._compare(before, delivered, plain)

    @property
    def _scales_updates(self) -> bool:
        case = self.case
        return case.optimizer == "adam" and case.attach != "none" and case.title in MODULATES

    def _gradients(self) -> Gradients:
        return {name: p.grad.clone() for name, p in self.parameters.items() if p.grad is not None}

    def _compare(self, before: Gradients, delivered: rules.Delivered, plain: Plain) -> None:
        """What one backward pass added to `.grad` with what it should have added."""
        core = delivered.unmodulated if self._scales_updates else delivered.total
        self.from_fused = plain.gradients.get(FUSED, {}).keys()
        now = self._gradients()
        largest = max([*core.sizes.values(), *(float(each.abs().max()) for each in plain.extra.values())])
        wrong = []
        for name in {*now, *core.values, *plain.extra}:
            wanted, size = torch.zeros_like(self.parameters[name]), core.sizes.get(name, 0.0)
            for term in (core.values.get(name), plain.extra.get(name)):
                wanted = wanted if term is None else wanted + term
            size += float(plain.extra[name].abs().max()) if name in plain.extra else 0.0
            factor = self.case.scale * (HOOK if name in self.hooked else 1.0)
            held = before[name] if name in before else torch.zeros_like(wanted)
            found = ((now[name] - held) / factor) if name in now else torch.zeros_like(wanted)
            deviation = delivered.noise.get(name)
            if deviation is not None and self._scales_updates:
                deviation = core.values[name].std() if core.values[name].numel() > 1 else torch.zeros(())
            if deviation is not None and float(deviation) > 1e-9 * largest:
                self._note_noise(((found - wanted) / deviation).flatten(), name)
                continue
            off = float((found - wanted).abs().max())
            size += float(held.abs().max()) / factor  # what was there before is subtracted again
            noise = 0.0 if deviation is None else 7 * float(deviation)
            if not off <= delivered.tolerance * (size + 1e-6 * largest) + noise:
                wrong.append(f"{name} is off by {off:.2e} at a size of {size:.2e}")
        if wrong:
            raise DifferenceError("gradient", "; ".join(sorted(wrong)))

    def _note_noise(self, noise: Tensor, name: str) -> None:
        if not float(noise.abs().max()) < 7:
            raise DifferenceError("noise", f"{name} got {noise.tolist()} standard deviations")
        if any(len(past) == len(noise) and len(noise) > 1 and bool((past == noise).all()) for past in self.noise):
            raise DifferenceError("noise", f"{name} got noise that was there before")
        self.noise.append(noise)

    def _compare_table(self, balancer: Balancer, delivered: rules.Delivered, plain: Plain) -> None:
        """A cell is empty where a loss does not reach the block; the others give what encoders got."""
        found = balancer.table
        rows = found.values.tolist()
        table = {
            loss: dict(zip(found.blocks, row, strict=True)) for loss, row in zip(found.objectives, rows, strict=True)
        }
        for modality in table[FUSED].keys() - {"fused head", "own heads"}:
            for loss in plain.gradients:
                empty = math.isnan(table[loss][modality])
                if self.case.attach == "none":  # it is known of heads alone
                    reached, known = False, True
                else:
                    reached = self._reached(plain, loss, modality)
                    known = reached or not self.case.sliced
                if self.case.options.get("form") in ("published", "responses"):
                    continue  # the losses of responses reach whatever these were computed from
                if empty == reached and known:
                    wanted = "a number" if reached else "an empty cell"
                    raise DifferenceError("table cells", f"expected {wanted} at {loss} → {modality}, found {table}")
        if self.case.attach == "none":
            return
        if not delivered.linear:
            return
        largest = max(delivered.total.sizes.values())
        if ("trunk" in found.blocks) != bool(self.layout.trunk):
            raise DifferenceError("table cells", f"expected the trunk {sorted(self.layout.trunk)}, found {table}")
        for name in delivered.total.values.keys() - delivered.untouched:
            reaching = [loss for loss in plain.gradients if name in plain.gradients[loss]]
            columns = [modality for modality, block in self.layout.blocks.items() if name in block]
            columns += ["trunk"] * (name in self.layout.trunk)
            for column in columns or ["fused head" if FUSED in reaching else "own heads"]:
                cells = {loss: table[loss][column] for loss in reaching}
                terms = [cell * plain.gradients[loss][name] for loss, cell in cells.items() if cell == cell]
                told = sum(terms, torch.zeros_like(delivered.total.values[name]))
                off = float((told - delivered.total.values[name]).abs().max())
                if not off <= delivered.tolerance * (delivered.total.sizes[name] + 1e-6 * largest):
                    raise DifferenceError("table factors", f"{column}: {name} is off by {off:.2e} with {cells}")

    def _reached(self, plain: Plain, loss: str, block: str) -> bool:
        """Whether a loss sends a gradient to the parameters that a column of the table means."""
        names = self.layout.trunk if block == "trunk" else self.layout.blocks[block]
        if self.case.options.get("parameters") == "kernels" and block != "trunk":
            names = names & self.layout.kernels
        if self.case.learns_alone:
            names = names & plain.gradients[FUSED].keys()
        return not names.isdisjoint(plain.gradients[loss])

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        """What a step of the optimiser did with what it should have done; the copy follows."""
        before = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        optimizer.step()
        self.rule.optimizer_steps += 1
        self.rule.stepped({name: p.grad for name, p in self.parameters.items() if p.grad is not None})
        assert self.plain_optimizer is not None
        for name, parameter in self.copy.named_parameters():
            parameter.grad = self.parameters[name].grad
        self.plain_optimizer.step()
        tolerance = rules.HISTORY if self.case.method in ("AGM", "CGGM") else rules.SINGLE
        with torch.no_grad():
            for name, parameter in self.copy.named_parameters():
                offs = []
                for factor in self._factors_on_update(name, parameter.shape[-1]):
                    wanted = before[name] + factor * (parameter - before[name])
                    wanted = self.rule.put_back(name, wanted)
                    limit = tolerance * RATE * max(1.0, float(torch.as_tensor(factor).max()))
                    offs.append(float((wanted - self.parameters[name]).abs().max()) / limit)
                if not min(offs) <= 1 + 1e-12 / RATE / tolerance * float(before[name].abs().max()):
                    raise DifferenceError("update", f"{name} is off by {min(offs):.2e} times what is allowed")
                parameter.copy_(self.parameters[name])
                parameter.grad = None
        self.rule.amounts = {}

    def _factors_on_update(self, name: str, size: int) -> list[float | Tensor]:
        """What the update of a parameter may be multiplied by."""
        if isinstance(self.rule, rules.MSES):
            runs = {modality: float(modality not in self.rule.stopped) for modality in self.layout.modalities}
            if name in self.layout.groups_of:
                return [min(runs[modality] for modality, block in self.layout.blocks.items() if name in block)]
            scales = self.case.options["heads"] == "scaled" and self.case.attach != "none"
            return [self.layout.on_head(name, runs, size) if scales else 1.0]
        if not self._scales_updates:
            return [1.0]
        mean = sum(factors.get(name, 1.0) for factors in self.factors) / len(self.factors)
        # A layer that the fused loss does not reach may be taken for part of the encoder, or for a head.
        return [mean, 1.0] if name in self.layout.groups_of and name not in self.from_fused else [mean]


def _with_own_loss(plain: Plain, delivered: rules.Delivered) -> Plain:
    """The batch, with a loss of the method's own beside those that belong to no modality."""
    extra = dict(plain.extra)
    for name, gradient in delivered.own.items():
        extra[name] = extra[name] + gradient if name in extra else gradient
    return plain._replace(extra=extra, extra_value=plain.extra_value + delivered.own_value)


def _optimizer(case: Case, model: nn.Module) -> torch.optim.Optimizer | None:
    match case.optimizer:
        case "sgd":
            return torch.optim.SGD(model.parameters(), lr=RATE / case.scale)
        case "adam":  # a large ε keeps rounding small where a gradient is next to nothing
            return torch.optim.Adam(model.parameters(), lr=RATE, eps=EPSILON)
    return None


def _close(kind: str, found: float, wanted: float) -> None:
    if not abs(found - wanted) <= 1e-9 * max(1.0, abs(wanted)):
        raise DifferenceError(kind, f"expected {wanted!r}, found {found!r}")


def run_case(seed: str) -> tuple[str, list[Tensor]]:
    """Run the case of a seed: what came of it, and the noise it met.

    Raises:
        DifferenceError: If something was other than expected; the message holds the case and how to run it again.
    """
    case = draw_case(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that optimisers are missing, and losses are scalars
        run = Run(case)
        try:
            return run(), run.noise
        except Exception as error:
            kind, text = (error.kind, error.text) if isinstance(error, DifferenceError) else ("error", repr(error))
            again = f"EQUIPOISE_CASE='{seed}' python -m pytest tests/methods/test_differential.py"
            raise DifferenceError(kind, f"{text}\n{case}\nOnce more: {again}") from error

"""The contract: tests that hold for every method."""

import copy
import io
import math
import pickle
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.balance.balancer import Balancer
from equipoise.balance.losses import Table
from equipoise.models.evaluation import cross_entropies
from equipoise.models.hybrid_fusion import HybridFusion
from equipoise.util.extras import needs

with needs("equipoise.testing"):
    import pytest

Batch: TypeAlias = "tuple[dict[str, Tensor], Tensor]"  # inputs by modality, and labels


def names(count: int) -> list[str]:
    """Names for any number of modalities."""
    return ["audio", "video", "text", "depth", "touch", "radar", "lidar", "pulse"][:count]


@final
class SmallModel(nn.Module):
    """Separate encoders, a head each, and a fused head on all features: small, smooth, in double precision.

    Args:
        modalities: Their names.
        detached: Put the uni-modal heads on detached features.
        seed: Of the weights.
    """

    def __init__(self, modalities: Sequence[str], *, detached: bool = False, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            # One seed per name, so that the order of modalities does not decide who gets which weights.
            self.encoders = nn.ModuleDict({name: _seeded(name, seed) for name in modalities})
            torch.manual_seed(seed)
            self.heads = nn.ModuleDict({name: nn.Linear(4, 3) for name in sorted(modalities)})
            self.fused = nn.ModuleDict({name: nn.Linear(4, 3) for name in sorted(modalities)})
        self.detached = detached
        self.double()

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Logits by name, fused first."""
        features = {name: encoder(inputs[name]) for name, encoder in self.encoders.items()}
        outputs = {"fused": torch.stack([self.fused[name](h) for name, h in features.items()]).sum(0)}
        for name, feature in features.items():
            outputs[name] = self.heads[name](feature.detach() if self.detached else feature)
        return outputs


def _seeded(name: str, seed: int) -> nn.Sequential:
    torch.manual_seed(sum(map(ord, name)) + seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))


def hybrid_model(modalities: Sequence[str], unimodal: Literal["masked", "head"]) -> HybridFusion:
    """Encoders that meet in a small trunk, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(len(modalities))
        encoders = {name: _seeded(name, 0) for name in modalities}
        model = HybridFusion(encoders, classes=3, unimodal=unimodal, width=4, depth=1)
        for vector in model.absent:  # they start as zeros
            nn.init.normal_(vector)
    return model.double()


def batch(modalities: Sequence[str], size: int = 12, seed: int = 0) -> Batch:
    """Inputs in which the first name says more about the label than the last."""
    random = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (size,), generator=random)
    inputs = {}
    for rank, name in enumerate(sorted(modalities), start=1):
        own = torch.Generator().manual_seed(sum(map(ord, name)) + seed)
        inputs[name] = torch.randn(size, 3, generator=own, dtype=torch.float64) + 1 / rank * F.one_hot(label, 3)
    return inputs, label


def losses_of(model: nn.Module, data: Batch, factor: float = 1.0) -> dict[str, Tensor]:
    """Cross-entropies per sample, by name."""
    inputs, label = data
    return {name: factor * loss for name, loss in cross_entropies(model(inputs), label).items()}


def masks_for(modalities: Sequence[str], size: int = 12, seed: int = 0) -> dict[str, Tensor]:
    """Masks under which some samples lack a sensor, by modality; at least one has it, and at least one does not."""
    masks = {}
    for name in modalities:
        random = torch.Generator().manual_seed(sum(map(ord, name)) + seed)
        masks[name] = torch.rand(size, generator=random) < 0.6
        masks[name][:2] = torch.tensor([True, False])
    return masks


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """The gradients by parameter name; zeros where there is none."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def beside(balancer: Balancer, losses: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Scores and further objectives made up from losses, for a method that has to be given some: arguments by name."""
    given: dict[str, dict[str, Tensor]] = {}
    modalities = sorted(name for name in losses if name != "fused")
    held = balancer.held_decision
    if balancer.scored_by and (held is None or held.lag):  # a window was given the scores
        columns = range(1, len(balancer.scored_by) + 1)
        scores = {name: [(-losses[name].detach() / place).exp() for place in columns] for name in modalities}
        given["scores"] = {n: rows[0] if len(rows) == 1 else torch.stack(rows, dim=-1) for n, rows in scores.items()}
    if balancer.scored_samples:  # one score for all, so that the table tells the gradient
        given["scores"] = {name: torch.full_like(losses["fused"], 0.25).detach() for name in balancer.scored_samples}
    if balancer.further and torch.is_grad_enabled():
        given["further"] = {n: -(losses["fused"] * place).tanh() for place, n in enumerate(modalities, start=2)}
    return given


def balanced(balancer: Balancer, losses: Mapping[str, Tensor], **more: Any) -> Tensor:
    """Call a balancer on losses, and give it besides them what it needs."""
    return balancer(losses, **{**beside(balancer, losses), **more})


def objectives_of(balancer: Balancer, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The losses by the names that they have in the table, with those made up beside them."""
    further = beside(balancer, losses).get("further", {})
    return {**losses, **{f"{balancer.further} {name}": loss for name, loss in further.items()}}


def block_of(parameter: str, table: Table) -> str:
    """The column of a table that a parameter of a model made here belongs to, by its name."""
    if parameter.startswith("encoders."):
        return parameter.split(".")[1]
    below_head = parameter.startswith("fusion.") and not parameter.startswith("fusion.head.")
    return "trunk" if below_head and "trunk" in table.blocks else "heads"


def told_by(table: Table, model: nn.Module, data: Batch, balancer: Balancer | None = None) -> dict[str, Tensor]:
    """The gradients that a table says were delivered: of each objective its own, times its coefficient, summed.

    NaN where an objective does reach a block that the table says it does not.
    """
    told = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    losses = losses_of(model, data)
    losses = losses if balancer is None else objectives_of(balancer, losses)
    for objective, loss in losses.items():
        model.zero_grad()
        loss.mean().backward(retain_graph=True)
        for name, gradient in gradients_of(model).items():
            block = block_of(name, table)
            if gradient.any():
                told[name] += table.at(objective, block).double() * gradient
    return told


def attached(balancer: Balancer, model: nn.Module, optimizer: Any | None = None) -> Balancer:
    """Attach with a plain SGD optimiser, so that modulation acts on gradients."""
    return balancer.attach(model, optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=0.1))


COUNTS = (1, 2, 3, 6)


def _unrefined(modality: str, mixed: list[Tensor], parts: object) -> list[Tensor]:  # noqa: ARG001
    return mixed


def _step(balancer: Balancer, model: SmallModel, data: Batch, factor: float = 1.0) -> dict[str, Tensor]:
    """Return the gradients of one step from zero."""
    model.zero_grad()
    balanced(balancer, losses_of(model, data, factor)).backward()
    return gradients_of(model)


class BalancerContract(ABC):
    """Tests that hold for every method; subclass it, and `make` the method."""

    @abstractmethod
    def make(self) -> Balancer:
        """A fresh balancer of the method under test."""

    def ready(self, count: int, **options: Any) -> tuple[Balancer, SmallModel, Batch]:
        """A balancer attached to a small model, and a batch."""
        model = SmallModel(names(count), **options)
        return attached(self.make(), model), model, batch(names(count))

    def epoch_metrics(self, count: int, epoch: int) -> dict[str, dict[str, float]]:
        """Validation metrics that differ between modalities and epochs."""
        return {
            name: {
                "loss": 1.0 / (1 + epoch) + 0.1 * place,
                "accuracy": 0.3 + 0.05 * epoch + 0.02 * place,
                "purity_train": 0.5 + 0.05 * epoch,
                "purity_validation": 0.4 + 0.05 * place,
            }
            for place, name in enumerate(names(count))
        }

    @pytest.mark.parametrize("count", COUNTS)
    def test_the_table_is_the_gradient_delivered(self, count: int) -> None:
        balancer, model, data = self.ready(count)
        balancer.refine = _unrefined
        delivered = _step(balancer, model, data)
        expected = told_by(balancer.table, model, data, balancer)
        torch.testing.assert_close(delivered, expected, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("count", [1, 2, 4])
    @pytest.mark.parametrize("unimodal", ["masked", "head"])
    def test_the_table_is_the_gradient_delivered_where_encoders_meet(
        self, unimodal: Literal["masked", "head"], count: int
    ) -> None:
        model, data = hybrid_model(names(count), unimodal), batch(names(count))
        balancer = attached(self.make(), model)
        balancer.refine = _unrefined
        losses = losses_of(model, data)
        balanced(balancer, losses).backward()
        delivered = gradients_of(model)
        assert balancer.table.blocks == (*names(count), "trunk", "heads")
        expected = told_by(balancer.table, model, data, balancer)
        # Of a head that all losses reach, methods on the "fused" route leave all but the fused loss out.
        below = [name for name in expected if block_of(name, balancer.table) != "heads"]
        for name in below if unimodal == "masked" else expected:
            torch.testing.assert_close(delivered[name], expected[name], rtol=1e-9, atol=1e-12, msg=name)

    @pytest.mark.parametrize("count", COUNTS)
    @pytest.mark.parametrize("factor", [1e-8, 1e-4, 1.0, 1e4, 1e8])
    def test_finite_at_every_scale(self, count: int, factor: float) -> None:
        balancer, model, data = self.ready(count)
        for _ in range(2):
            loss = balanced(balancer, losses_of(model, data, factor))
            loss.backward()
        assert bool(loss.detach().isfinite())
        assert all(math.isfinite(cell) for row in balancer.table.numbers().values() for cell in row.values())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients_of(model).values())

    @pytest.mark.parametrize("count", [2, 3, 5])
    def test_permuting_modalities_permutes_the_table(self, count: int) -> None:
        forth, back = names(count), names(count)[::-1]
        tables = []
        for order in (forth, back):
            model = SmallModel(order)
            balancer = attached(self.make(), model)
            balanced(balancer, losses_of(model, batch(order))).backward()
            assert balancer.table.blocks == (*order, "heads")
            tables.append(balancer.table.numbers())
        for objective, row in tables[0].items():
            assert tables[1][objective] == pytest.approx(row, rel=1e-9)

    @pytest.mark.parametrize("count", COUNTS)
    def test_with_masks_a_loss_is_that_of_the_samples_at_hand(self, count: int) -> None:
        masks = masks_for(names(count), seed=count)
        found = []
        for masked in (False, True):
            balancer, model, data = self.ready(count)
            for factor in (1.0, 2.0):  # the second step has a history
                losses = losses_of(model, data, factor)
                for name, mask in masks.items():
                    loss = losses[name]
                    losses[name] = torch.where(mask, loss, torch.nan) if masked else loss[mask]
                model.zero_grad()
                value = balanced(balancer, losses, present=masks if masked else None)
                value.backward()
            found.append((value.detach(), balancer.table.values, gradients_of(model)))
        torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12, equal_nan=True)

    def test_permuting_modalities_permutes_the_table_with_masks(self) -> None:
        tables = []
        for order in (names(3), names(3)[::-1]):
            model = SmallModel(order)
            balancer = attached(self.make(), model)
            balanced(balancer, losses_of(model, batch(order)), present=masks_for(order)).backward()
            tables.append(balancer.table.numbers())
        for objective, row in tables[0].items():
            assert tables[1][objective] == pytest.approx(row, rel=1e-9)

    @pytest.mark.parametrize(("count", "every"), [(1, True), (2, False), (3, False), (3, True)])
    def test_finite_where_no_sample_has_a_sensor(self, count: int, every: bool) -> None:
        balancer, model, data = self.ready(count)
        gone = names(count) if every else names(1)
        for _ in range(2):
            losses = losses_of(model, data)
            losses |= {name: torch.where(torch.tensor(False), losses[name], torch.nan) for name in gone}
            model.zero_grad()
            loss = balanced(balancer, losses, present={name: torch.zeros(12, dtype=torch.bool) for name in gone})
            loss.backward()
        assert bool(loss.detach().isfinite())
        assert all(math.isfinite(cell) for row in balancer.table.numbers().values() for cell in row.values())
        gradients = gradients_of(model)
        assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())
        for name, gradient in gradients.items():
            if any(name.startswith(f"heads.{one}.") for one in gone):
                assert not gradient.any()

    @pytest.mark.parametrize("count", COUNTS)
    def test_key_order_may_change_between_calls(self, count: int) -> None:
        results = []
        for flip in (False, True):
            balancer, model, data = self.ready(count)
            for step in range(2):
                losses = losses_of(model, data)
                if flip and step:
                    losses = dict(reversed(losses.items()))
                model.zero_grad()
                balanced(balancer, losses).backward()
            results.append(gradients_of(model))
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)

    def trained(self, count: int) -> tuple[Balancer, SmallModel, Batch]:
        """A balancer that has seen seven epochs of one step."""
        balancer, model, data = self.ready(count)
        for epoch in range(7):
            balanced(balancer, losses_of(model, data, 1 + epoch)).backward()
            balancer.end_epoch(self.epoch_metrics(count, epoch))
        return balancer, model, data

    @pytest.mark.parametrize("count", COUNTS)
    def test_state_round_trip(self, count: int) -> None:
        first, model, data = self.trained(count)
        saved = io.BytesIO()
        torch.save(first.state_dict(), saved)
        saved.seek(0)
        second = self.make()
        second.load_state_dict(torch.load(saved, weights_only=True))
        attached(second, model)
        expected = _step(first, model, data, 3.0)
        torch.testing.assert_close(_step(second, model, data, 3.0), expected, rtol=0, atol=0)
        assert second.table.numbers() == first.table.numbers()

    def test_state_follows_names_not_positions(self) -> None:
        first, model, data = self.trained(3)
        turned = SmallModel(names(3)[::-1])
        turned.load_state_dict(model.state_dict())
        second = attached(self.make(), turned)
        second.load_state_dict(first.state_dict())
        for balancer, owner in ((first, model), (second, turned)):
            _step(balancer, owner, data)
        for objective, row in first.table.numbers().items():
            assert second.table.numbers()[objective] == pytest.approx(row, rel=1e-6)

    @pytest.mark.parametrize("count", COUNTS)
    def test_the_factor_from_above_scales_every_gradient(self, count: int) -> None:
        results = []
        for scale in (1.0, 1024.0):
            balancer, model, data = self.ready(count)
            (balanced(balancer, losses_of(model, data)) * scale).backward()
            results.append({name: gradient / scale for name, gradient in gradients_of(model).items()})
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("count", COUNTS)
    def test_gradients_accumulate(self, count: int) -> None:
        balancer, model, data = self.ready(count)
        twin = copy.deepcopy(model)
        other = attached(self.make(), twin)
        balancer.refine = other.refine = _unrefined
        sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for factor in (1.0, 2.0):
            balanced(balancer, losses_of(model, data, factor)).backward()
            gradients = _step(other, twin, data, factor)
            sums = {name: total + gradients[name] for name, total in sums.items()}
        torch.testing.assert_close(gradients_of(model), sums, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("count", COUNTS)
    def test_extra_losses_count_at_weight_one(self, count: int) -> None:
        results = []
        for with_extra in (False, True):
            balancer, model, data = self.ready(count)
            penalty = torch.stack([p.square().sum() for p in model.parameters()]).sum()
            loss = balanced(balancer, losses_of(model, data), extra={"decay": penalty} if with_extra else None)
            loss.backward()
            results.append((gradients_of(model), float(loss.detach()), float(penalty.detach())))
        (plain, value, _), (more, larger, penalty) = results
        assert larger == pytest.approx(value + penalty)
        expected = {name: plain[name] + 2 * parameter.detach() for name, parameter in model.named_parameters()}
        torch.testing.assert_close(more, expected, rtol=1e-9, atol=1e-12)

    def test_a_skipped_step_moves_no_state(self) -> None:
        balancer, model, data = self.ready(2)
        balanced(balancer, losses_of(model, data)).backward()
        before = copy.deepcopy(dict(balancer.named_buffers()))
        (balanced(balancer, losses_of(model, data, 2.0)) * torch.inf).backward()
        assert not all(bool(gradient.isfinite().all()) for gradient in gradients_of(model).values())
        if balancer.route != "loss":
            torch.testing.assert_close(dict(balancer.named_buffers()), before, rtol=0, atol=0, equal_nan=True)

    def test_evaluation_leaves_no_trace(self) -> None:
        balancer, model, data = self.ready(2)
        balanced(balancer, losses_of(model, data)).backward()
        before = copy.deepcopy(dict(balancer.named_buffers()))
        with torch.no_grad():
            value = balanced(balancer, losses_of(model, data, 2.0))
        assert not value.requires_grad
        torch.testing.assert_close(dict(balancer.named_buffers()), before, rtol=0, atol=0, equal_nan=True)

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_says_which_loss_is_not_finite(self, bad: float) -> None:
        balancer, model, data = self.ready(2)
        losses = losses_of(model, data)
        losses["video"] = losses["video"] * bad
        with pytest.raises(FloatingPointError, match="loss 'video' is NaN or infinite"):
            balanced(balancer, losses)

    def test_wrong_keys_get_one_message(self) -> None:
        balancer, model, data = self.ready(2)
        losses = losses_of(model, data)
        losses["vidoe"] = losses.pop("video")
        with pytest.raises(ValueError, match=r"found none for \['video'\].*modality 'vidoe', did you mean 'video'"):
            balanced(balancer, losses)
        with pytest.raises(TypeError, match="expected a mapping from names to losses"):
            balancer(cast("dict[str, Tensor]", losses["audio"]))

    def test_says_when_it_needs_to_know_the_encoders(self) -> None:
        balancer = self.make()
        model = SmallModel(names(2))
        if balancer.route == "loss" or not balancer.needs_encoders:
            balanced(balancer, losses_of(model, batch(names(2)))).backward()
        else:
            with pytest.raises(RuntimeError, match=r"balancer\.attach\(model"):
                balanced(balancer, losses_of(model, batch(names(2))))

    def test_a_copy_leaves_the_model_behind(self) -> None:
        balancer, model, _ = self.ready(2)
        theirs = {id(p) for p in model.parameters()}
        assert not any(id(t) in theirs for t in (*balancer.parameters(), *balancer.buffers()))
        assert not list(balancer.parameters())
        for twin in (copy.deepcopy(balancer), pickle.loads(pickle.dumps(balancer))):
            assert twin.tensors_of("audio") == []
            assert set(twin.state_dict()) == set(balancer.state_dict())

    def test_warns_when_it_cannot_see_the_optimiser(self) -> None:
        balancer, model = self.make(), SmallModel(names(2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            balancer.attach(model)
        assert bool(caught) == balancer.modulates

"""The contract: tests that hold for every method."""

import copy
import io
import math
import pickle
import warnings
from abc import ABC, abstractmethod
from typing import Any, cast

import torch
from torch import Tensor, nn

from equipoise.balance.balancer import Balancer
from equipoise.balance.coefficients import Coefficients, Losses, Tensors
from equipoise.testing.models import (
    MODELS,
    Batch,
    SmallModel,
    attached,
    balanced,
    batch,
    gradients_of,
    losses_of,
    masks_for,
    names,
    told_by,
)
from equipoise.util.extras import needs

with needs("equipoise.testing"):
    import pytest

COUNTS = (1, 2, 3, 6)


def _step(balancer: Balancer, model: nn.Module, data: Batch, factor: float = 1.0) -> dict[str, Tensor]:
    """Return the gradients of one step from zero."""
    model.zero_grad()
    balanced(balancer, losses_of(model, data, factor)).backward()
    return gradients_of(model)


def _buffers(balancer: Balancer) -> dict[str, Tensor]:
    return copy.deepcopy(dict(balancer.named_buffers()))


def as_in_the_table(balancer: Balancer) -> list[Tensor]:
    """Leave out what a method does to gradients after the table; collect the losses of its own, in their order."""
    own: list[Tensor] = []
    regulariser = balancer.regulariser

    def kept(scalars: Tensors, losses: Losses, answer: Coefficients | None) -> Tensor | None:
        found = regulariser(scalars, losses, answer)
        own.extend([] if found is None else [found])
        return found

    balancer.regulariser = kept
    balancer.transform = lambda modality, gradient, parts: gradient  # noqa: ARG005
    return own


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

    @pytest.mark.parametrize("count", [1, 3, 6])
    @pytest.mark.parametrize("kind", MODELS)
    def test_the_table_is_the_gradient_delivered(self, kind: str, count: int) -> None:
        """Over real steps of an optimiser: with masks, one skipped, and a sensor that is absent for ten batches."""
        model = MODELS[kind](names(count))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        balancer = attached(self.make(), model, optimizer)
        own = as_in_the_table(balancer)
        for step in range(16):
            data, masks = batch(names(count), seed=step), masks_for(names(count), seed=step)
            if 3 <= step < 13:
                masks[names(count)[0]] = torch.zeros(12, dtype=torch.bool)
            given = {"present": masks} if step else {}
            own.clear()
            optimizer.zero_grad()
            losses = losses_of(model, data)
            if step == 2:  # an overflow: the optimiser takes no step, and nothing is learnt
                before = _buffers(balancer)
                (balanced(balancer, losses, **given) * torch.inf).backward()
                torch.testing.assert_close(_buffers(balancer), before, rtol=0, atol=0, equal_nan=True)
                continue
            balanced(balancer, losses, **given).backward(retain_graph=True)
            told = told_by(balancer, model, losses, given.get("present"))
            for loss in own:
                every = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
                for name, gradient in zip(told, every, strict=True):
                    told[name] += 0 if gradient is None else gradient
            largest = max(1.0, *(float(one.abs().max()) for one in told.values()))
            torch.testing.assert_close(gradients_of(model), told, rtol=1e-12, atol=1e-12 * largest)
            optimizer.step()
            if step % 4 == 3:
                balancer.end_epoch(self.epoch_metrics(count, step // 4))

    def test_the_table_says_what_it_leaves_out(self) -> None:
        balancer, model, data = self.ready(2)
        _step(balancer, model, data)
        notes = "; ".join(balancer.table.notes)
        assert ("changes the gradients" in notes) == (type(balancer).transform is not Balancer.transform)
        assert ("a loss of its own" in notes) == (type(balancer).regulariser is not Balancer.regulariser)
        moved = self.make().attach(model, optimizer=torch.optim.Adam(model.parameters()))
        _step(moved, model, data)
        assert ("what the optimiser does" in "; ".join(moved.table.notes)) == balancer.needs.factors

    @pytest.mark.parametrize("count", COUNTS)
    def test_finite_at_every_scale(self, count: int) -> None:
        for factor in (1e-8, 1e-4, 1.0, 1e4, 1e8):
            balancer, model, data = self.ready(count)
            for _ in range(2):
                loss = balanced(balancer, losses_of(model, data, factor))
                loss.backward()
            assert bool(loss.detach().isfinite())
            assert all(math.isfinite(cell) for row in balancer.table.numbers().values() for cell in row.values())
            assert all(bool(gradient.isfinite().all()) for gradient in gradients_of(model).values())

    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("count", [2, 3, 5])
    def test_permuting_modalities_permutes_the_table(self, count: int, masked: bool) -> None:
        forth, back = names(count), names(count)[::-1]
        tables = []
        for order in (forth, back):
            model = SmallModel(order)
            balancer = attached(self.make(), model)
            balanced(balancer, losses_of(model, batch(order)), present=masks_for(order) if masked else None).backward()
            assert balancer.table.blocks == (*order, "fused head", "own heads")
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

    def test_key_order_may_change_between_calls(self) -> None:
        results = []
        for flip in (False, True):
            balancer, model, data = self.ready(3)
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
        model = SmallModel(names(count))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        balancer, data = attached(self.make(), model, optimizer), batch(names(count))
        for epoch in range(7):
            _step(balancer, model, data, 1 + epoch)
            optimizer.step()
            balancer.end_epoch(self.epoch_metrics(count, epoch))
        return balancer, model, data

    @pytest.mark.parametrize("count", COUNTS)
    def test_state_round_trip(self, count: int) -> None:
        first, model, data = self.trained(count)
        assert all(isinstance(value, Tensor) for value in first.state_dict().values())
        saved = io.BytesIO()
        torch.save(first.state_dict(), saved)
        saved.seek(0)
        second, twin = self.make(), copy.deepcopy(model)
        second.load_state_dict(torch.load(saved, weights_only=True))
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, twin)]
        attached(first, model, optimizers[0])
        attached(second, twin, optimizers[1])
        for step in range(2):
            expected, found = (_step(one, of, data, 3.0) for one, of in ((first, model), (second, twin)))
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            assert second.table.numbers() == first.table.numbers()
            for one, optimizer in zip((first, second), optimizers, strict=True):
                optimizer.step()
                one.end_epoch(self.epoch_metrics(count, 7 + step))
        torch.testing.assert_close(dict(twin.named_parameters()), dict(model.named_parameters()), rtol=0, atol=0)

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

    @pytest.mark.parametrize("count", [1, 3])
    def test_the_factor_from_above_scales_every_gradient(self, count: int) -> None:
        results = []
        for scale in (1.0, 1024.0):
            balancer, model, data = self.ready(count)
            (balanced(balancer, losses_of(model, data)) * scale).backward()
            results.append({name: gradient / scale for name, gradient in gradients_of(model).items()})
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-12)

    def test_gradients_accumulate(self) -> None:
        balancer, model, data = self.ready(3)
        twin = copy.deepcopy(model)
        other = attached(self.make(), twin)
        for one in (balancer, other):
            as_in_the_table(one)
        sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for factor in (1.0, 2.0):
            balanced(balancer, losses_of(model, data, factor)).backward()
            gradients = _step(other, twin, data, factor)
            sums = {name: total + gradients[name] for name, total in sums.items()}
        torch.testing.assert_close(gradients_of(model), sums, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("count", [1, 3])
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

    def test_evaluation_leaves_no_trace(self) -> None:
        balancer, model, data = self.ready(2)
        balanced(balancer, losses_of(model, data)).backward()
        before = _buffers(balancer)
        with torch.no_grad():
            value = balanced(balancer, losses_of(model, data, 2.0))
        assert not value.requires_grad
        torch.testing.assert_close(_buffers(balancer), before, rtol=0, atol=0, equal_nan=True)

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
        if balancer.needs.encoders:
            with pytest.raises(RuntimeError, match=r"balancer\.attach\(model"):
                balanced(balancer, losses_of(model, batch(names(2))))
        else:
            balanced(balancer, losses_of(model, batch(names(2)))).backward()

    def test_a_copy_leaves_the_model_behind(self) -> None:
        balancer, model, data = self.ready(2)
        _step(balancer, model, data)
        theirs = {id(p) for p in model.parameters()}
        assert not any(id(t) in theirs for t in (*balancer.parameters(), *balancer.buffers()))
        assert not list(balancer.parameters())
        for twin in (copy.deepcopy(balancer), pickle.loads(pickle.dumps(balancer))):
            assert twin.attachment is None
            assert set(twin.state_dict()) == set(balancer.state_dict())

    def test_warns_when_it_cannot_see_the_optimiser(self) -> None:
        balancer, model = self.make(), SmallModel(names(2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            balancer.attach(model)
        assert bool(caught) == bool(balancer.needs.warning)

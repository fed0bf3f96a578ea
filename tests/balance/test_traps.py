"""Ways to train in which a balancer could give a wrong gradient without a word: it gives the right one, or says so."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from equipoise import AGM, MGDA, MIMO, OGM, OGMGE, Balancer, MMPareto, Window
from equipoise.testing import SmallModel, attached, balanced, batch, gradients_of, losses_of, names
from equipoise.testing.contract import objectives_of
from everything import (
    GRADIENT_PATH,
    LOSS_ROUTE,
    METHODS,
    MIXING,
    WEIGHING,
    Data,
    assert_same,
    batches,
    opened,
    part,
    taught,
)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, *, use_reentrant: bool) -> None:
        super().__init__()
        self.inner, self.use_reentrant = inner, use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        # Reentrant checkpointing gives no gradient at all unless an input wants one.
        return checkpoint(self.inner, x.detach().requires_grad_(), use_reentrant=self.use_reentrant)


def checkpointed(count: int, *, use_reentrant: bool) -> SmallModel:
    model = SmallModel(names(count))
    for name in names(count):
        model.encoders[name] = Checkpointed(model.encoders[name], use_reentrant=use_reentrant)
    return model


def gradients_under(method: str, model: SmallModel, data: Data) -> dict[str, Tensor]:
    balancer = taught(attached(METHODS[method](), model), list(model.encoders))
    balanced(balancer, losses_of(model, data)).backward()
    return {name.replace(".inner", ""): gradient for name, gradient in gradients_of(model).items()}


def without_noise(balancer: Balancer) -> Balancer:
    if isinstance(balancer, OGMGE):
        balancer.refine = lambda modality, mixed, parts: mixed  # noqa: ARG005
    return balancer


# -- activation checkpointing --


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_non_reentrant_checkpointing_changes_nothing(method: str, count: int) -> None:
    data = batch(names(count))
    plain = gradients_under(method, SmallModel(names(count)), data)
    saved = gradients_under(method, checkpointed(count, use_reentrant=False), data)
    assert_same(saved, plain, atol=1e-12)


@pytest.mark.parametrize("method", GRADIENT_PATH)
def test_reentrant_checkpointing_is_refused_where_gradients_are_taken(method: str) -> None:
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        gradients_under(method, checkpointed(2, use_reentrant=True), batch(names(2)))


@pytest.mark.parametrize("method", GRADIENT_PATH)
def test_one_checkpointed_encoder_is_enough_to_refuse(method: str) -> None:
    model = SmallModel(names(3))
    model.encoders["text"] = Checkpointed(model.encoders["text"], use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        gradients_under(method, model, batch(names(3)))


@pytest.mark.parametrize("method", LOSS_ROUTE)
def test_reentrant_checkpointing_is_fine_where_losses_are_weighed(method: str) -> None:
    data = batch(names(2))
    plain = gradients_under(method, SmallModel(names(2)), data)
    saved = gradients_under(method, checkpointed(2, use_reentrant=True), data)
    assert_same(saved, plain, atol=1e-12)


# -- entangled encoders --


class Attending(nn.Module):
    """Some encoders see what others found: ``looks`` maps a modality to the one it looks at."""

    def __init__(self, looks: dict[str, str], modalities: list[str], seed: int) -> None:
        super().__init__()
        small = SmallModel(modalities, seed=seed)
        self.encoders, self.heads, self.fused, self.looks = small.encoders, small.heads, small.fused, looks

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: encoder(inputs[name]) for name, encoder in self.encoders.items()}
        features = {
            name: own[name] * torch.sigmoid(own[self.looks[name]]) if name in self.looks else own[name] for name in own
        }
        outputs = {"fused": torch.stack([self.fused[name](h) for name, h in features.items()]).sum(0)}
        return outputs | {name: self.heads[name](h) for name, h in features.items()}


Entangled = SmallModel | Attending


def one_looks(count: int, seed: int) -> Attending:
    return Attending({"video": "audio"}, names(count), seed)


def all_look(count: int, seed: int) -> Attending:
    return Attending(dict(zip(names(count), names(count)[1:] + names(count)[:1], strict=True)), names(count), seed)


def two_share(count: int, seed: int) -> SmallModel:
    model = SmallModel(names(count), seed=seed)
    model.encoders["video"][0] = model.encoders["audio"][0]  # ty: ignore[invalid-assignment]
    return model


ENTANGLED: dict[str, Callable[[int, int], Entangled]] = {
    "separate": lambda count, seed: SmallModel(names(count), seed=seed),
    "one looks at another": one_looks,
    "all look at another": all_look,
    "two share a layer": two_share,
}
CASES = pytest.mark.parametrize(
    ("kind", "count", "seed"), [(kind, count, seed) for kind in ENTANGLED for count in (2, 3) for seed in (0, 1, 2)]
)


def blocks_of(model: Entangled) -> list[tuple[list[str], list[Tensor]]]:
    """Encoders that share tensors come together."""
    blocks: list[tuple[list[str], list[Tensor]]] = []
    for name, encoder in model.encoders.items():
        tensors: list[Tensor] = list(encoder.parameters())
        for owners, known in blocks:
            if any(t is k for t in tensors for k in known):
                owners.append(name)
                known.extend(t for t in tensors if not any(t is k for k in known))
                break
        else:
            blocks.append(([name], tensors))
    return blocks


def all_gradients(model: Entangled, data: Data, tensors: list[Tensor]) -> dict[str, list[Tensor]]:
    """One pass per objective; an objective that does not reach these tensors is left out."""
    found = {}
    for name, loss in losses_of(model, data).items():
        gradients = torch.autograd.grad(loss.mean(), tensors, retain_graph=True, allow_unused=True)
        if any(gradient is not None for gradient in gradients):
            found[name] = [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, gradients, strict=True)]
    return found


def shortest_weights(gram: np.ndarray) -> np.ndarray:
    """min wᵀGw over the simplex by accelerated projected gradient descent."""
    count = len(gram)
    step = 1 / max(np.linalg.eigvalsh(gram)[-1], 1e-300)
    weights = ahead = np.full(count, 1 / count)
    momentum = 1.0
    for _ in range(1500):
        moved = ahead - step * gram @ ahead
        ordered = np.sort(moved)[::-1]
        cut = (np.cumsum(ordered) - 1) / np.arange(1, count + 1)
        after = np.maximum(moved - cut[np.nonzero(ordered > cut)[0][-1]], 0)
        faster = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = after + (momentum - 1) / faster * (after - weights)
        weights, momentum = after, faster
    return weights


def mixed_by_hand(parts: dict[str, list[Tensor]], method: str) -> list[Tensor]:
    flat = torch.stack([torch.cat([gradient.flatten() for gradient in part]) for part in parts.values()])
    gram = (flat @ flat.T).numpy()
    count = len(parts)
    weights = shortest_weights(gram)
    if method == "mmpareto":
        agree = (gram[~np.eye(count, dtype=bool)] > 0).all()
        weights = 1.5 * count * (np.full(count, 1 / count) if agree else weights)
    mixed = [
        sum(float(w) * g for w, g in zip(weights, of_tensor, strict=True))
        for of_tensor in zip(*parts.values(), strict=True)
    ]
    if method == "mmpareto":
        plain = [torch.stack(of_tensor).sum(0) for of_tensor in zip(*parts.values(), strict=True)]
        mixed = [m * max(1.0, float(1.5 * p.norm() / m.norm())) for m, p in zip(mixed, plain, strict=True)]
    return mixed


def check_heads(model: Entangled, data: Data) -> None:
    """Here the fused head learns from the fused loss, and the others from their own."""
    losses = losses_of(model, data)
    for objective, loss in losses.items():
        head = model.fused if objective == "fused" else model.heads[objective]
        expected = torch.autograd.grad(loss.mean(), list(head.parameters()), retain_graph=True)
        for parameter, gradient in zip(head.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


@CASES
@pytest.mark.parametrize("method", ["mgda", "mmpareto"])
def test_mixtures_are_those_of_all_gradients(method: str, kind: str, count: int, seed: int) -> None:
    model, data = ENTANGLED[kind](count, seed), batch(names(count), seed=seed)
    balancer = attached(MGDA() if method == "mgda" else MMPareto(), model)
    balanced(balancer, losses_of(model, data)).backward()
    for _, tensors in blocks_of(model):
        expected = mixed_by_hand(all_gradients(model, data, tensors), method)
        assert max(float(gradient.norm()) for gradient in expected) > 1e-6
        for tensor, gradient in zip(tensors, expected, strict=True):
            torch.testing.assert_close(tensor.grad, gradient, rtol=1e-5, atol=1e-7)
    check_heads(model, data)


def ogm_factors(losses: dict[str, Tensor]) -> dict[str, float]:
    likely = {name: float((-loss.detach()).exp().mean()) for name, loss in losses.items() if name != "fused"}
    factors = {}
    for name, own in likely.items():
        ahead = float(np.mean([own / other for key, other in likely.items() if key != name]))
        factors[name] = 1 - math.tanh(0.8 * ahead) if ahead > 1 else 1.0
    return factors


def agm_factors(losses: dict[str, Tensor]) -> dict[str, float]:
    scores = {name: float(loss.detach().mean()) for name, loss in losses.items() if name != "fused"}
    factors = {}
    for name, own in scores.items():
        others = float(np.mean([other for key, other in scores.items() if key != name]))
        factors[name] = math.exp(1.5 * (1 - math.exp(others - own)))
    return factors


@CASES
@pytest.mark.parametrize("method", ["ogm", "agm"])
def test_modulation_is_a_factor_on_the_fused_gradient(method: str, kind: str, count: int, seed: int) -> None:
    model, data = ENTANGLED[kind](count, seed), batch(names(count), seed=seed)
    balancer = attached(OGM() if method == "ogm" else AGM(strength=1.5, form="fast"), model)
    losses = losses_of(model, data)
    balancer(losses).backward()
    factors = (ogm_factors if method == "ogm" else agm_factors)(losses)
    assert len({round(factor, 6) for factor in factors.values()}) > 1
    for owners, tensors in blocks_of(model):
        factor = float(np.mean([factors[name] for name in owners]))
        for tensor, gradient in zip(tensors, all_gradients(model, data, tensors)["fused"], strict=True):
            torch.testing.assert_close(tensor.grad, factor * gradient, rtol=1e-9, atol=1e-12)
    check_heads(model, data)


# -- accumulation --


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", WEIGHING)
def test_a_window_gives_the_gradient_of_the_whole(method: str, count: int) -> None:
    results = []
    for pieces in (1, 3):
        model = SmallModel(names(count))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        balancer = without_noise(taught(attached(METHODS[method](), model, optimizer), names(count)))
        window, found = Window(balancer), []
        assert window.exact
        for data in batches(names(count), 2, size=12):
            micro = [part(data, start, start + 12 // pieces) for start in range(0, 12, 12 // pieces)]
            optimizer.zero_grad()
            if pieces == 1:
                balanced(balancer, losses_of(model, data)).backward()
            else:
                with torch.no_grad():
                    ahead = [losses_of(model, one) for one in micro]
                with opened(window, ahead):
                    for one in micro:
                        (balanced(balancer, losses_of(model, one)) / pieces).backward()
            found.append(gradients_of(model))
            optimizer.step()
        results.append((found, {name: buffer.clone() for name, buffer in balancer.named_buffers()}))
    (whole, state), (pieced, pieced_state) = results
    assert_same(pieced[0], whole[0], atol=1e-9)
    assert_same(pieced[1], whole[1], atol=1e-6)  # state is kept in single precision
    for name, buffer in state.items():
        torch.testing.assert_close(pieced_state[name], buffer, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("method", MIXING)
def test_a_window_over_mixed_gradients_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match="decides by gradients"):
        Window(METHODS[method]())


def tilted(model: SmallModel, data: Data, lead: float) -> list[dict[str, Tensor]]:
    """Two micro-batches, audio behind in one and video in the other; over both of them audio is behind by ``lead``."""
    halves = [losses_of(model, part(data, 0, 6)), losses_of(model, part(data, 6, 12))]
    for half, (audio, video) in zip(halves, ((1.3, 0.7), (0.7, 1.3)), strict=True):
        half["audio"], half["video"] = audio * half["audio"], video * half["video"]
    means = {name: float(torch.stack([half[name].detach().mean() for half in halves]).mean()) for name in halves[0]}
    for half in halves:
        half["video"] = half["video"] * (means["audio"] - lead) / means["video"]
    return halves


def direction(model: nn.Module) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients_of(model).values()])


def test_lagged_weights_are_not_exact_and_weights_per_micro_batch_are_worse() -> None:
    cosines: dict[str, list[float]] = {"lag": [], "each": [], "exact": []}
    for seed in range(5):
        model, data = SmallModel(names(2), seed=seed), batch(names(2), seed=seed)
        directions = {}
        for way in ("whole", "exact", "lag", "each"):
            balancer = MIMO(smoothing=0.01)
            model.zero_grad()
            if way == "whole":
                halves = tilted(model, data, 0.01)
                balancer({name: torch.cat([half[name] for half in halves]) for name in halves[0]}).backward()
            elif way == "exact":
                with torch.no_grad():
                    ahead = tilted(model, data, 0.01)
                with Window(balancer).open(ahead):
                    for half in tilted(model, data, 0.01):
                        (balancer(half) / 2).backward()
            elif way == "lag":
                window = Window(balancer, lag=True)
                assert not window.exact
                for lead in (0.004, 0.01):
                    model.zero_grad()
                    with window.open():
                        for half in tilted(model, data, lead):
                            (balancer(half) / 2).backward()
            else:
                for half in tilted(model, data, 0.01):
                    (balancer(half) / 2).backward()
            directions[way] = direction(model)
        for way, found in cosines.items():
            found.append(float(F.cosine_similarity(directions[way], directions["whole"], dim=0)))
    assert min(cosines["exact"]) > 1 - 1e-12
    assert max(cosines["lag"]) < 0.999
    assert np.mean(cosines["each"]) < np.mean(cosines["lag"])


# -- what else can happen to a graph --


@pytest.mark.parametrize("method", GRADIENT_PATH)
def test_a_second_backward_says_what_to_do(method: str) -> None:
    model = SmallModel(names(2))
    loss = balanced(attached(METHODS[method](), model), losses_of(model, batch(names(2))))
    loss.backward()
    with pytest.raises(RuntimeError, match="call the balancer again on fresh losses"):
        loss.backward()


@pytest.mark.parametrize("method", LOSS_ROUTE)
def test_a_second_backward_where_losses_are_weighed_is_torchs_own_affair(method: str) -> None:
    model = SmallModel(names(2))
    loss = balanced(attached(METHODS[method](), model), losses_of(model, batch(names(2))))
    loss.backward(retain_graph=True)
    once = gradients_of(model)
    loss.backward()
    assert_same(gradients_of(model), {name: 2 * gradient for name, gradient in once.items()}, atol=1e-12)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_parameters_outside_the_model_learn_too(method: str, count: int) -> None:
    model, data = SmallModel(names(count)), batch(names(count))
    warmth, own_warmth = nn.Parameter(torch.tensor(0.7).double()), nn.Parameter(torch.tensor(1.3).double())
    optimizer = torch.optim.SGD([*model.parameters(), warmth, own_warmth], lr=0.1)

    def losses() -> dict[str, Tensor]:
        inputs, label = data
        warm = {name: warmth if name == "fused" else own_warmth for name in ("fused", *names(count))}
        return {
            name: F.cross_entropy(logits / warm[name], label, reduction="none")
            for name, logits in model(inputs).items()
        }

    balancer = attached(METHODS[method](), model, optimizer)
    balanced(balancer, losses()).backward()
    table = balancer.table
    for parameter in (warmth, own_warmth):
        expected = torch.zeros(()).double()
        for objective, loss in objectives_of(balancer, losses()).items():
            (gradient,) = torch.autograd.grad(loss.mean(), parameter, retain_graph=True, allow_unused=True)
            if gradient is not None:
                expected += table.at(objective, "heads") * gradient
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-12)
    if method != "unimodal":
        assert warmth.grad is not None
        assert float(warmth.grad.abs()) > 0


@pytest.mark.parametrize("method", METHODS)
def test_an_encoder_that_did_not_run_is_named(method: str) -> None:
    model, stranger = SmallModel(names(2)), SmallModel(names(2))
    encoders = {"audio": model.encoders["audio"], "video": stranger.encoders["video"]}
    optimizer = torch.optim.SGD([*model.parameters(), *stranger.parameters()], lr=0.1)
    balancer = METHODS[method]().attach(model, encoders=encoders, optimizer=optimizer)
    with pytest.raises(ValueError, match="no gradient to encoder 'video'"):
        balanced(balancer, losses_of(model, batch(names(2))))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_frozen_encoder_stays_and_the_rest_learns_as_before(method: str, count: int) -> None:
    data, results = batch(names(count)), []
    for frozen in (False, True):
        model = SmallModel(names(count))
        model.encoders["audio"].requires_grad_(not frozen)
        balancer = without_noise(taught(attached(METHODS[method](), model), names(count)))
        balanced(balancer, losses_of(model, data)).backward()
        results.append({name: p.grad for name, p in model.named_parameters() if "encoders.audio" not in name})
        assert all((p.grad is None) == frozen for p in model.encoders["audio"].parameters())
    assert_same(results[1], results[0], atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_with_every_encoder_frozen_the_heads_still_learn(method: str) -> None:
    data, results = batch(names(2)), []
    for frozen in (False, True):
        model = SmallModel(names(2))
        model.encoders.requires_grad_(not frozen)
        balancer = taught(attached(METHODS[method](), model), names(2))
        balanced(balancer, losses_of(model, data)).backward()
        results.append({name: p.grad for name, p in model.named_parameters() if "encoders" not in name})
        assert balancer.table.at("fused", "heads") == (0 if method == "unimodal" else 1)
    assert_same(results[1], results[0], atol=1e-12)


@pytest.mark.parametrize("method", ["mimo", "mimo-hard", "mimo-double", "mimo-plain-heads", "ew", "mgda", "mmpareto"])
def test_detached_heads_are_refused_where_encoders_learn_from_them(method: str) -> None:
    model = SmallModel(names(2), detached=True)
    with pytest.raises(ValueError, match=r"not on detached ones \(LateFusion\(…, unimodal='head'\)\)"):
        balanced(attached(METHODS[method](), model), losses_of(model, batch(names(2))))


@pytest.mark.parametrize("method", ["msl", "ogm", "ogmge", "agm", "mslr", "mses", "smp", "relearn"])
def test_detached_heads_are_fine_where_encoders_learn_from_the_fused_loss(method: str) -> None:
    found = []
    for detached in (False, True):
        model = SmallModel(names(2), detached=detached)
        balancer = taught(attached(METHODS[method](), model), names(2))
        balanced(balancer, losses_of(model, batch(names(2)))).backward()
        found.append(gradients_of(model))
    assert_same(found[1], found[0], atol=1e-12)

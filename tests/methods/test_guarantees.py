"""What a user may rely on around a step: hooks, cut losses, kept graphs, second derivatives, optimisers, windows."""

from __future__ import annotations

import copy
import itertools
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast, final

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import (
    EW,
    MGDA,
    MIMO,
    MLB,
    MSES,
    MSL,
    MSLR,
    OGM,
    Balancer,
    Gram,
    LateFusion,
    Losses,
    Mixing,
    Window,
    mimo_objective,
)
from equipoise.balance import collectives
from equipoise.balance.theory import relative_smoothing
from equipoise.testing import SmallModel, attached, balanced, batch, gradients_of, losses_of, masks_for, names
from equipoise.testing.models import blocks_of, objectives_of, shares_model
from everything import METHODS, SHAPES, WEIGHING, assert_same, factors_of, opened, taught

DETERMINISTIC = [name for name in SHAPES if name != "ogmge"]  # whose noise is drawn anew in every pass


def ready(method: str, count: int = 2, **options: Any) -> tuple[Balancer, SmallModel]:
    model = SmallModel(names(count), **options)
    return taught(attached(METHODS[method](), model), names(count)), model


def begun(method: str) -> tuple[Balancer, SmallModel]:
    """A method that has seen a step, so that copies of encoders are apart from these."""
    balancer, model = ready(method)
    balanced(balancer, losses_of(model, batch(names(2), seed=1))).backward()
    model.zero_grad()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    return balancer, model


# -- hooks of parameters --


@pytest.mark.parametrize("method", DETERMINISTIC)
def test_a_tensor_hook_acts_once(method: str) -> None:
    found = []
    for hooked in (False, True):
        balancer, model = begun(method)
        calls: list[int] = []
        for place, parameter in enumerate(model.parameters() if hooked else ()):
            parameter.register_hook(lambda gradient, place=place, calls=calls: calls.append(place) or 0.1 * gradient)
        balanced(balancer, losses_of(model, batch(names(2)))).backward()
        found.append(gradients_of(model))
        assert len(calls) == len(set(calls))
        assert bool(calls) == hooked
    assert_same(found[1], {name: 0.1 * gradient for name, gradient in found[0].items()}, atol=1e-14)


def test_hooks_are_all_there_after_a_step_that_failed() -> None:
    balancer, model = ready("mgda")
    weight = model.encoders["audio"].get_parameter("0.weight")
    handles = [weight.register_hook(lambda gradient, k=k: k * gradient) for k in (2.0, 3.0)]
    model.encoders["audio"].get_submodule("1").register_full_backward_hook(_fail)
    with pytest.raises(ZeroDivisionError):
        balanced(balancer, losses_of(model, batch(names(2)))).backward()
    handles[0].remove()
    (weight.sum()).backward()
    assert weight.grad is not None
    assert float(weight.grad[0, 0]) == 3.0


def _fail(*_: Any) -> None:
    raise ZeroDivisionError


# -- losses that are cut from one tensor --


def cut(model: nn.Module, data: tuple[dict[str, Tensor], Tensor]) -> dict[str, Tensor]:
    """Cross-entropies per sample as rows of one tensor."""
    inputs, label = data
    outputs = model(inputs)
    logits = torch.stack(list(outputs.values()))
    rows = F.cross_entropy(logits.flatten(0, 1), label.repeat(len(outputs)), reduction="none").view(len(outputs), -1)
    return dict(zip(outputs, rows, strict=True))


@final
class Broadcast(torch.autograd.Function):
    """Hands every parameter through one node, as DataParallel does."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        return gradients


def through_one_node(model: nn.Module, data: tuple[dict[str, Tensor], Tensor]) -> dict[str, Tensor]:
    """Cross-entropies of a model whose parameters all pass through one node of the graph."""
    own = dict(model.named_parameters())
    copies = dict(zip(own, Broadcast.apply(*own.values()), strict=True))
    outputs = torch.func.functional_call(model, copies, (data[0],))
    return {name: F.cross_entropy(logits, data[1], reduction="none") for name, logits in outputs.items()}


@pytest.mark.parametrize("cutting", [cut, through_one_node])
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", [name for name in DETERMINISTIC if "features" not in name])
def test_losses_that_share_a_node_train_what_separate_ones_train(
    method: str, count: int, detached: bool, cutting: Callable[..., dict[str, Tensor]]
) -> None:
    if detached and METHODS[method]().needs.learns_from_own:
        return  # these methods refuse uni-modal losses that do not reach the encoders
    found = []
    for make in (losses_of, cutting):
        balancer, model = ready(method, count, detached=detached)
        for step in range(2):
            model.zero_grad()
            balanced(balancer, make(model, batch(names(count), seed=step))).backward()
        found.append((gradients_of(model), balancer.table.numbers()))
    assert_same(found[1][0], found[0][0], atol=1e-12)
    if count > 1:  # one modality has no other whose loss could show that the connection is not its own
        assert found[1][1] == {objective: pytest.approx(row) for objective, row in found[0][1].items()}


def test_a_weight_of_zero_hides_no_dependence() -> None:
    """A head that starts at zero sends its encoder a gradient of zero, and is not taken to be unconnected."""
    model = LateFusion({name: nn.Linear(3, 4) for name in names(2)}, 3, unimodal="split")
    nn.init.zeros_(cast("nn.Linear", model.fusion.get_submodule("head")).weight)
    balancer, data = attached(OGM(), model), batch(names(2))
    inputs = {name: value.float() for name, value in data[0].items()}
    balanced(balancer, cut(model, (inputs, data[1]))).backward()
    assert set(balancer.table.numbers()["fused"]) == {"audio", "video", "fused head"}


def masked(model: SmallModel, data: tuple[dict[str, Tensor], Tensor], present: bool) -> dict[str, Tensor]:
    """Losses cut from one tensor, where a mask hides the first sensor of all samples."""
    inputs, label = data
    features = {name: encoder(inputs[name]) for name, encoder in model.encoders.items()}
    mask = torch.full((len(label), 1), present)
    features["audio"] = torch.where(mask, features["audio"], torch.zeros((), dtype=torch.float64))
    fused = torch.stack([model.fused[name](feature) for name, feature in features.items()]).sum(0)
    logits = [fused, *(model.heads[name](feature.detach()) for name, feature in features.items())]
    rows = F.cross_entropy(torch.cat(logits), label.repeat(3), reduction="none").view(3, -1)
    weight = torch.where(mask[:, 0], 1.0, 0.0)
    return {"fused": rows[0], "audio": torch.where(weight > 0, rows[1], 0.0), "video": rows[2]}


@pytest.mark.parametrize("method", ["msl", "ogm"])
def test_a_sensor_missing_from_the_first_batch_is_not_forgotten(method: str) -> None:
    found = []
    for first_present in (True, False):
        balancer, model = ready(method)
        for present in (first_present, True, True):
            model.zero_grad()
            balanced(balancer, masked(model, batch(names(2)), present)).backward()
        found.append(gradients_of(model))
    assert bool(found[0]["heads.audio.weight"].any())
    assert_same(found[1], found[0], atol=1e-12)


def test_what_the_first_batch_drops_does_not_change_who_learns_from_what() -> None:
    """Modality dropout zeroes a sensor of a whole small batch; being connected is enough where nothing was cut."""
    found = []
    for seed in range(8):
        torch.manual_seed(0)
        model = LateFusion({name: nn.Linear(3, 4) for name in names(2)}, 3, dropout=0.5).double()
        balancer = MSL()
        torch.manual_seed(seed)
        balanced(balancer, losses_of(model, batch(names(2), size=2))).backward()
        model.zero_grad()
        torch.manual_seed(0)
        balanced(balancer, losses_of(model, batch(names(2)))).backward()
        found.append(gradients_of(model))
    for other in found[1:]:
        assert_same(other, found[0])


def test_inputs_that_want_gradients_are_asked_about_by_nobody() -> None:
    balancer, model = ready("ogm")
    inputs, label = batch(names(2))
    for _ in range(3):
        fresh = {name: value.clone().requires_grad_() for name, value in inputs.items()}
        balanced(balancer, cut(model, (fresh, label))).backward()
    own = {id(parameter) for parameter in model.parameters()}
    assert {key for _, key in balancer._dependence._known} <= own
    assert balancer._dependence._known


@pytest.mark.parametrize("at", ["parameters", "features"])
def test_a_hook_on_what_an_encoder_gives_acts_once(at: Any) -> None:
    lengths = []
    for hooked in (False, True):
        model = SmallModel(names(2))
        balancer = attached(MGDA(at=at), model)
        if hooked:
            model.encoders["audio"].register_forward_hook(_scaled_by_a_tenth)
        balanced(balancer, losses_of(model, batch(names(2)))).backward()
        lengths.append(gradients_of(model)["encoders.audio.0.weight"].norm())
    assert float(lengths[1] / lengths[0]) == pytest.approx(0.1)


def _scaled_by_a_tenth(module: nn.Module, inputs: Any, output: Tensor) -> None:  # noqa: ARG001
    output.register_hook(lambda gradient: 0.1 * gradient)


# -- graphs that are kept --


@pytest.mark.parametrize("method", DETERMINISTIC)
def test_a_graph_that_is_kept_can_be_used_again(method: str) -> None:
    balancer, model = begun(method)
    loss = balanced(balancer, losses_of(model, batch(names(2))))
    loss.backward(retain_graph=True)
    once = gradients_of(model)
    state = copy.deepcopy(balancer.state_dict())
    loss.backward()
    assert_same(gradients_of(model), {name: 2 * gradient for name, gradient in once.items()}, atol=1e-12)
    # The state moves on once for each call of the balancer.
    torch.testing.assert_close(balancer.state_dict(), state, rtol=0, atol=0, equal_nan=True)


# -- second derivatives --


def penalty_gradient(objective: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of the squared length of an objective's gradient."""
    first = torch.autograd.grad(objective, parameters, create_graph=True, materialize_grads=True)
    squared = torch.stack([each.square().sum() for each in first]).sum()
    return list(torch.autograd.grad(squared, parameters, materialize_grads=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("attach", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_second_derivatives_of_mimo_are_those_of_its_objective(count: int, attach: bool, smoothing: float) -> None:
    model, data = SmallModel(names(count)), batch(names(count))
    parameters = list(model.parameters())
    optimum = {name: 0.1 * (place + 1) for place, name in enumerate(names(count))}
    balancer = MIMO(3.0, smoothing, optimum=optimum)
    if attach:
        attached(balancer, model)
    found = penalty_gradient(balanced(balancer, losses_of(model, data)), parameters)
    losses = {name: loss.mean() for name, loss in losses_of(model, data).items()}
    unimodal = torch.stack([losses[name] for name in names(count)])
    least = torch.tensor(list(optimum.values()), dtype=torch.float64)
    expected = penalty_gradient(mimo_objective(losses["fused"], unimodal, 3.0, smoothing, least), parameters)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["own heads", "shares", "both"])
def test_second_derivatives_of_joint_training_and_equal_weights_are_exact(kind: str) -> None:
    model, data = SmallModel(names(2), detached=kind == "own heads"), batch(names(2))
    if kind == "shares":
        model.heads = model.fused
    parameters = list(model.parameters())
    heads = [p for name, p in model.named_parameters() if name.startswith("heads.")] if kind == "both" else []
    trunk = [p for p in parameters if not any(p is head for head in heads)]
    equal = [EW(0.5), attached(EW(0.5), model)] if kind != "own heads" else []
    for method in (MSL(), attached(MSL(), model), *equal):
        found = penalty_gradient(method(losses_of(model, data)), parameters)
        losses = {name: loss.mean() for name, loss in losses_of(model, data).items()}
        if isinstance(method, EW):
            expected = penalty_gradient(losses["fused"] + 0.5 * (losses["audio"] + losses["video"]), parameters)
        elif kind == "both":  # heads learn from their own losses, everything else from the fused one
            first = torch.autograd.grad(losses["fused"], trunk, create_graph=True)
            own = torch.autograd.grad(losses["audio"] + losses["video"], heads, create_graph=True)
            squared = torch.stack([each.square().sum() for each in (*first, *own)]).sum()
            expected = list(torch.autograd.grad(squared, parameters, materialize_grads=True))
        else:
            total = losses["fused"] + (losses["audio"] + losses["video"] if kind == "own heads" else 0)
            expected = penalty_gradient(total, parameters)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


EXACT = {"mimo", "mimo-hard", "mimo-double", "primaldual-scaled-heads", "msl", "ew", "unimodal", "relearn"}
"""Methods that move all parameters along one sum, or what the fused loss reaches along it alone."""
CONSTANT = {"mimo-relative"}
"""Methods that say that they take something for a constant in derivatives."""


@pytest.mark.parametrize("kind", ["separate heads", "shares", "masks", "not attached"])
@pytest.mark.parametrize("method", [name for name in METHODS if name not in CONSTANT])
def test_second_derivatives_are_difference_quotients_or_refused(method: str, kind: str) -> None:
    """Of half the squared length of what parameters move along, in a random direction, from the middle of training."""
    start = METHODS[method]()
    if kind == "not attached" and (start.needs.encoders or method not in EXACT):
        return
    model = shares_model(names(2)) if kind == "shares" else SmallModel(names(2))
    parameters, data = list(model.parameters()), batch(names(2))
    given = {"present": masks_for(names(2))} if kind == "masks" else {}
    if kind != "not attached":
        taught(attached(start, model), names(2))
    for seed in (5, 6):
        balanced(start, losses_of(model, batch(names(2), seed=seed)), **given).backward()

    def squared(*, graph: bool) -> Tensor:
        """Half of the squared length, of a copy that is where `start` is."""
        balancer = copy.deepcopy(start)
        if kind != "not attached":
            attached(balancer, model)
        loss = balanced(balancer, losses_of(model, data), **given)
        first = torch.autograd.grad(loss, parameters, create_graph=graph, materialize_grads=True, allow_unused=True)
        return torch.stack([each.square().sum() for each in first]).sum() / 2

    random = torch.Generator().manual_seed(0)
    along = [torch.randn(p.shape, generator=random, dtype=p.dtype) for p in parameters]
    _move(parameters, along, 0.1)
    refused: list[RuntimeError] = []
    try:
        second = torch.autograd.grad(squared(graph=True), parameters, materialize_grads=True, allow_unused=True)
    except RuntimeError as error:
        refused.append(error)
    if refused:
        assert method not in EXACT
        assert re.search(r"found create_graph=True.*choose mimo, ew or msl|differentiate twice", str(refused[0]))
        return
    found = torch.stack([(slope * one).sum() for slope, one in zip(second, along, strict=True)]).sum()
    values, size = [], 1e-6
    for step in (size, -size):
        _move(parameters, along, step)
        values.append(squared(graph=False))
        _move(parameters, along, -step)
    expected = (values[0] - values[1]) / (2 * size)
    assert float(expected.abs()) > 1e-4
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@torch.no_grad()
def _move(parameters: Sequence[Tensor], along: Sequence[Tensor], size: float) -> None:
    for parameter, one in zip(parameters, along, strict=True):
        parameter += size * one


def test_a_smoothing_that_is_a_share_of_the_gaps_is_a_constant_in_second_derivatives() -> None:
    model, data = SmallModel(names(3)), batch(names(3))
    parameters = list(model.parameters())
    found = penalty_gradient(attached(MIMO(3.0, 0.2, relative=True), model)(losses_of(model, data)), parameters)
    losses = {name: loss.mean() for name, loss in losses_of(model, data).items()}
    unimodal = torch.stack([losses[name] for name in names(3)])
    smoothing = float(relative_smoothing(unimodal.detach(), 0.2))
    expected = penalty_gradient(mimo_objective(losses["fused"], unimodal, 3.0, smoothing), parameters)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_second_derivatives_are_refused_in_a_window() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer = MIMO()
    with torch.no_grad():
        measured = [losses_of(model, data)]
    with Window(balancer).open(measured):
        loss = balanced(balancer, losses_of(model, data))
    with pytest.raises(RuntimeError, match="depend on other micro-batches or ranks"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


# -- optimisers --


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimiser_for_each_encoder_does_what_one_for_all_does(kind: Callable[..., torch.optim.Optimizer]) -> None:
    results = []
    for several in (False, True):
        model = SmallModel(names(2))
        audio = list(model.encoders["audio"].parameters())
        rest = [p for p in model.parameters() if not any(p is own for own in audio)]
        groups = [rest, audio] if several else [list(model.parameters())]
        optimizers = [kind(group, 0.05) for group in groups]
        balancer = OGM().attach(model, optimizer=optimizers if several else optimizers[0])
        for step in range(3):
            balanced(balancer, losses_of(model, batch(names(2), seed=step))).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        results.append({name: p.detach().clone() for name, p in model.named_parameters()})
    assert_same(results[1], results[0], atol=1e-14)


def test_an_adam_and_an_sgd_are_scaled_each_in_its_own_way() -> None:
    moves = []
    for method in (MSL, OGM):
        model = SmallModel(names(2))
        audio, video = (list(model.encoders[name].parameters()) for name in names(2))
        optimizers = [torch.optim.Adam(audio, 0.01), torch.optim.SGD(video, 0.01)]
        balancer = method().attach(model, optimizer=optimizers)
        before = [p.detach().clone() for p in (*audio, *video)]
        losses = losses_of(model, batch(names(2)))
        ahead = {"audio": torch.tensor(0.6), "video": torch.tensor(0.6)}
        balancer(losses, scores=ahead | ({"audio": torch.tensor(0.9)} if method is OGM else {})).backward()
        for optimizer in optimizers:
            optimizer.step()
        moves.append([p.detach() - old for p, old in zip((*audio, *video), before, strict=True)])
        factors = [float(balancer.table.at("fused", name)) for name in names(2)]
    assert factors[0] < 0.5
    assert factors[1] == 1.0
    for place, (plain, slowed) in enumerate(zip(*moves, strict=True)):
        factor = factors[0] if place < len(audio) else factors[1]
        torch.testing.assert_close(slowed, factor * plain, rtol=1e-6, atol=1e-12)


def test_an_optimiser_that_does_not_hold_an_encoder_is_refused() -> None:
    model = SmallModel(names(2))
    some = torch.optim.Adam(
        [*model.encoders["audio"].parameters(), model.encoders["video"].get_parameter("0.bias")], 0.1
    )
    with pytest.raises(ValueError, match=r"3 of 4 of encoder 'video' are held by none.*optimizer=\[first, second"):
        OGM().attach(model, optimizer=some)
    with pytest.raises(ValueError, match=r"optimizer=\[\] holds no optimiser"):
        OGM().attach(model, optimizer=[])
    model.encoders["video"].requires_grad_(False)
    OGM().attach(model, optimizer=some)  # what stands still needs no optimiser


@pytest.mark.parametrize("set_to_none", [False, True])
def test_factors_of_a_step_that_was_not_taken_do_not_enter_the_next(set_to_none: bool) -> None:
    moves = []
    for skipped in (False, True):
        model = SmallModel(names(2))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        balancer = OGM().attach(model, optimizer=optimizer)

        def backward(audio: float, balancer: Balancer = balancer, model: nn.Module = model) -> None:
            scores = {"audio": torch.tensor(audio), "video": torch.tensor(0.3)}
            balanced(balancer, losses_of(model, batch(names(2))), scores=scores).backward()

        for audio in (0.35, 0.2):  # one step with a history, so that there are gradients to be set to zero
            if skipped or audio == 0.35:
                backward(audio)
            if audio == 0.35:
                optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)  # somebody else decided not to step
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        backward(0.6)
        backward(0.4)
        optimizer.step()
        moves.append({name: p.detach() - before[name] for name, p in model.named_parameters()})
    assert_same(moves[1], moves[0], atol=1e-14)


@pytest.mark.parametrize("method", SHAPES)
def test_a_gradient_of_a_head_that_is_not_finite_moves_no_state(method: str) -> None:
    """Nobody takes such a step: a GradScaler leaves it out."""
    model = SmallModel(names(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = taught(attached(METHODS[method](), model, optimizer), names(2))
    before = copy.deepcopy(dict(balancer.named_buffers()))
    head = model.fused["audio"].get_parameter("bias")
    loss = balanced(
        balancer, losses_of(model, batch(names(2))), extra={"burst": (head * torch.inf).sum() * 0 + head.sum() / 0}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss.backward()
    assert head.grad is not None
    assert not bool(head.grad.isfinite().all())
    after = {name: value for name, value in balancer.named_buffers() if name in before}  # copies are new
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("method", [*SHAPES, "agm"])
def test_a_step_that_a_scaler_skips_moves_no_state(method: str, fused: bool) -> None:
    """Gradients overflow, though the factor from above is finite; a fused optimiser is told to skip inside."""
    model = SmallModel(names(2)).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    balancer = attached(METHODS[method](), model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    inputs, label = batch(names(2))
    seen = []
    for size, scale in ((1.0, 2.0**126), (1e4, 1.0), (1.0, 1.0)):
        data = ({name: values.float() for name, values in inputs.items()}, label)
        optimizer.zero_grad()
        scaler.scale(balanced(balancer, losses_of(model, data, size))).backward()
        scaler.step(optimizer)
        scaler.update(scale)
        seen.append(copy.deepcopy((dict(model.state_dict()), dict(balancer.named_buffers()))))
    torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=0, equal_nan=True)
    assert any(not torch.equal(value, seen[1][0][name]) for name, value in seen[2][0].items())  # that one was taken


# -- windows, evaluation, scores --


@pytest.mark.parametrize("method", [OGM, MLB])
def test_a_window_decides_by_the_scores_it_is_given(method: type[Balancer]) -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer = attached(method(), model)
    halves = [{"audio": torch.tensor(a), "video": torch.tensor(0.1)} for a in (0.9, 0.5)]
    mean = {"audio": torch.tensor(0.7), "video": torch.tensor(0.1)}
    balanced(balancer, losses_of(model, data), scores=mean)
    expected = balancer.table.numbers()
    with torch.no_grad():
        measured = [losses_of(model, data)] * 2
    with Window(balancer).open(measured, scores=halves):
        balanced(balancer, losses_of(model, data))
        assert balancer.table.numbers() == {key: pytest.approx(row) for key, row in expected.items()}
        with pytest.raises(ValueError, match=r"a Window holds the decision.*open\(losses, scores="):
            balanced(balancer, losses_of(model, data), scores=mean)
    with (
        pytest.raises(ValueError, match="scores for each of 2 micro-batches, found 1"),
        Window(balancer).open(measured, scores=halves[:1]),
    ):
        pass


@pytest.mark.parametrize("method", [name for name in SHAPES if name in WEIGHING and name != "ogmge"])
def test_a_backward_pass_after_the_end_of_a_window_is_one_inside_it(method: str) -> None:
    """One pass over the sum of micro-batches: gradients are by the decision of the window, and the state moves once."""
    found = []
    for inside in (True, False):
        balancer, model = begun(method)
        micro = [batch(names(2), seed=seed) for seed in range(3)]
        with torch.no_grad():
            measured = [losses_of(model, one) for one in micro]
        with opened(Window(balancer), measured):
            total = torch.stack([balanced(balancer, losses_of(model, one)) for one in micro]).sum() / 3
            if inside:
                total.backward()
        if not inside:
            total.backward()
        found.append((gradients_of(model), dict(balancer.named_buffers())))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0, equal_nan=True)


def test_a_window_that_lags_keeps_the_scores_of_the_window_before() -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer = attached(OGM(), model)
    window = Window(balancer, lag=True)
    scores = {"audio": torch.tensor(0.9), "video": torch.tensor(0.3)}
    with window.open():
        balanced(balancer, losses_of(model, data), scores=scores)
    expected = balancer.table.numbers()
    with window.open():
        balanced(balancer, losses_of(model, data))
        assert balancer.table.numbers() == {key: pytest.approx(row) for key, row in expected.items()}


@pytest.mark.parametrize("method", SHAPES)
def test_a_first_call_in_inference_mode_leaves_training_alone(method: str) -> None:
    found = []
    for evaluates in (False, True):
        model, data = SmallModel(names(2)), batch(names(2))
        balancer = attached(METHODS[method](), model)
        if evaluates:
            with torch.inference_mode():
                balanced(balancer, losses_of(model, data))
        balanced(balancer, losses_of(model, data)).backward()
        found.append(gradients_of(model))
    assert_same(found[1], found[0])
    unattached = MIMO()
    with torch.inference_mode():
        unattached({"fused": torch.tensor(1.0), "a": torch.tensor(1.0)})
    unattached({"fused": torch.tensor(1.0), "a": torch.tensor(1.0)})


def test_means_of_losses_can_slow_the_wrong_modality() -> None:
    """The reason for the warning: five samples known well and three not at all, against eight known a little."""
    model = SmallModel(names(2))
    well, little = torch.tensor([0.05] * 5 + [6.0] * 3), torch.full((8,), 1.2)
    balancer, losses = attached(OGM(), model), {"fused": well, "audio": well, "video": little}
    by_sample = factors_of(balancer, losses)
    assert by_sample["audio"] < 1.0
    assert by_sample["video"] == 1.0
    with pytest.warns(UserWarning, match="pass one value per sample"):
        by_mean = factors_of(balancer, {name: loss.mean() for name, loss in losses.items()})
    assert by_mean["audio"] == 1.0
    assert by_mean["video"] < 1.0


def test_where_scores_are_zero_nobody_is_ahead() -> None:
    balancer, model = ready("ogm")
    nothing = {name: torch.tensor(0.0) for name in names(2)}
    balancer(losses_of(model, batch(names(2))), scores=nothing)
    assert balancer.table.numbers()["fused"] == {"audio": 1.0, "video": 1.0, "fused head": 1.0}


# -- the table --


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", SHAPES)
def test_a_loss_that_does_not_reach_a_block_has_no_coefficient_there(method: str, count: int) -> None:
    balancer, model = ready(method, count)
    losses = losses_of(model, batch(names(count)))
    balanced(balancer, losses).backward(retain_graph=True)
    tensors = dict(model.named_parameters())
    blocks: dict[str, list[Tensor]] = {}
    for name, block in blocks_of(balancer, model, losses["fused"]).items():
        blocks.setdefault(block, []).append(tensors[name])
    objectives, rows = objectives_of(balancer, losses), balancer.table.numbers()
    assert set(rows) == set(objectives)
    assert set(balancer.table.blocks) == set(blocks)
    for (objective, loss), (block, own) in itertools.product(objectives.items(), blocks.items()):
        given = torch.autograd.grad(loss.mean(), own, retain_graph=True, allow_unused=True)
        assert (block in rows[objective]) == any(each is not None for each in given)
    lines = str(balancer.table).splitlines()
    for objective, line in zip(objectives, lines[1:], strict=False):
        assert line.count("–") == len(blocks) - len(rows[objective])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize(("method", "weight"), [("ogm", 0.0), ("cggm", 0.0), ("mlb", 1.0)])
def test_encoders_that_share_a_tensor_move_by_the_factor_of_the_table(
    method: str, weight: float, kind: Callable[..., torch.optim.Optimizer]
) -> None:
    moves = []
    for make in (MSL, METHODS[method]):
        model = SmallModel(names(3))
        model.encoders["video"] = model.encoders["audio"]
        optimizer = kind(model.parameters(), 0.01)
        balancer = make().attach(model, optimizer=optimizer)
        shared = model.encoders["audio"].get_parameter("0.weight")
        before = shared.detach().clone()
        losses = losses_of(model, batch(names(3)))
        if make is MSL:  # with what the method's sum has of uni-modal losses
            others = torch.stack([loss for name, loss in losses.items() if name != "fused"])
            losses["fused"] = losses["fused"] + weight * others.sum(0)
        balanced(balancer, losses).backward()
        optimizer.step()
        moves.append(shared.detach() - before)
    row = balancer.table.numbers()["fused"]
    assert row["audio"] == row["video"]
    assert row["audio"] != pytest.approx(row["text"])
    torch.testing.assert_close(moves[1], row["audio"] * moves[0], rtol=1e-6, atol=1e-12)


# -- mixtures --


@final
class Counted(Mixing):
    """Halves of both gradients; counts the steps that were taken."""

    taken: Tensor

    def __init__(self, start: int = 0, stop: int | None = None) -> None:
        super().__init__(start=start, stop=stop)
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))

    def mix(self, gram: Gram, losses: Losses) -> Tensor:  # noqa: ARG002
        return torch.full_like(gram.products[..., 0], 0.5)

    def on_backward(self, losses: Losses, finite: Tensor) -> None:  # noqa: ARG002
        self.taken += finite


def test_methods_that_mix_gradients_have_epochs_and_state_too() -> None:
    balancer, model = Counted(start=1, stop=2), SmallModel(names(2))
    attached(balancer, model)
    rows = []
    for _ in range(3):
        balanced(balancer, losses_of(model, batch(names(2)))).backward()
        rows.append([balancer.table.numbers()[objective]["audio"] for objective in ("fused", "audio")])
        balancer.end_epoch()
    assert rows == [[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]]
    assert int(balancer.taken) == 3
    (balanced(balancer, losses_of(model, batch(names(2)))) * torch.inf).backward()
    assert int(balancer.taken) == 3


# -- what a balancer says of itself and of its arguments --


def test_a_balancer_shows_its_arguments() -> None:
    assert repr(MIMO(penalty=100.0)).startswith("MIMO(penalty=100.0, smoothing=0.1")
    assert "rates={'audio': 0.9}" in repr(MSLR({"audio": 0.9}))
    assert repr(copy.deepcopy(EW(3.0))) == "EW(weight=3.0)"
    assert repr(MGDA()) == "MGDA(at='parameters')"


def test_arguments_that_make_no_sense_are_refused() -> None:
    for smoothing in (math.inf, 1e-40, -1.0, math.nan):
        with pytest.raises(ValueError, match="MIMO: smoothing should be zero, or between 1e-30 and any finite number"):
            MIMO(smoothing=smoothing)
    with pytest.raises(ValueError, match=r"optimum should be None or 'zero', .* found \[0\.3\]"):
        MIMO(optimum=cast("dict[str, float]", [0.3]))
    with pytest.raises(ValueError, match="penalty should be a finite number"):
        MIMO(penalty=math.inf)
    with pytest.raises(RuntimeError, match="no step has been taken yet"):
        _ = MIMO().table
    losses = {"fused": torch.tensor(1.0), "a": torch.tensor(1.0)}
    with pytest.raises(TypeError, match="extra: expected a mapping from names to losses"):
        MIMO()(losses, extra=cast("dict[str, Tensor]", torch.tensor(1.0)))
    with pytest.raises(ValueError, match=r"extra: 'decay' should be a tensor, found 0\.1; 'more' should be a tensor"):
        MIMO()(losses, extra=cast("dict[str, Tensor]", {"decay": 0.1, "more": "x"}))


def test_an_encoder_under_two_names_can_be_named_by_both() -> None:
    model = nn.Module()
    model.left = nn.Linear(2, 2)
    model.right = model.left
    balancer = MGDA().attach(model, encoders={"l": "left", "r": "right"})
    assert [id(tensor) for tensor in balancer.tensors_of("r", "parameters")] == [id(p) for p in model.parameters()]


# -- parts of an additive fused head --


@pytest.mark.parametrize("fusion", ["concat", "sum"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("heads", ["scaled", "plain"])
def test_mslr_scales_the_head_of_a_modality_with_its_encoder(
    fusion: str, kind: Callable[..., torch.optim.Optimizer], heads: Any
) -> None:
    moves = []
    rates = {"audio": 0.25, "video": 2.0}
    for make in (MSL, lambda: MSLR(rates, heads=heads)):
        torch.manual_seed(0)
        model = LateFusion({name: nn.Linear(3, 4) for name in names(2)}, 3, unimodal="detached", fusion=fusion).double()
        optimizer = kind(model.parameters(), 0.01)
        balancer = make().attach(model, optimizer=optimizer)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        balanced(balancer, losses_of(model, batch(names(2)))).backward()
        optimizer.step()
        moves.append({name: p.detach() - before[name] for name, p in model.named_parameters()})
    plain, scaled = moves
    for name, move in plain.items():
        factor: Tensor | float = 1.0
        if name.startswith("encoders."):
            factor = rates[name.split(".")[1]]
        elif heads == "scaled" and name.startswith("fusion.heads."):
            factor = rates[name.split(".")[2]]
        elif heads == "scaled" and name == "fusion.head.weight":
            factor = torch.tensor([0.25] * 4 + [2.0] * 4)
        torch.testing.assert_close(scaled[name], factor * move, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("fusion", ["concat", "sum"])
@pytest.mark.parametrize("heads", ["scaled", "plain"])
def test_mses_stops_the_head_of_a_modality_with_its_encoder(fusion: str, heads: Any) -> None:
    torch.manual_seed(0)
    model = LateFusion({name: nn.Linear(3, 4) for name in names(2)}, 3, unimodal="detached", fusion=fusion).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    balancer = MSES(patience=0, heads=heads).attach(model, optimizer=optimizer)
    seen = []
    for epoch in range(4):
        balanced(balancer, losses_of(model, batch(names(2), seed=epoch))).backward()
        optimizer.step()
        optimizer.zero_grad()
        balancer.end_epoch({"audio": {"loss": 1.0 + epoch}, "video": {"loss": 1.0 / (1 + epoch)}})
        parts = model.fused_head_parts()
        seen.append({name: torch.cat([_columns(*part) for part in own]) for name, own in parts.items()})
    assert balancer.stopped == ["audio"]
    assert torch.equal(seen[3]["audio"], seen[1]["audio"]) == (heads == "scaled")  # it stopped after the second epoch
    assert not torch.equal(seen[3]["video"], seen[2]["video"])


def _columns(tensor: Tensor, columns: slice | None) -> Tensor:
    return (tensor if columns is None else tensor[:, columns]).detach().clone().flatten()


def test_a_parameter_of_an_encoder_that_only_its_own_loss_reaches_learns_from_it() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {name: nn.Linear(4, 5) for name in ("f", "u")} | {"h": nn.Linear(5, 3), "hu": nn.Linear(5, 3)}
    )
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    found = []
    for attach in (False, True):
        model.zero_grad()
        balancer = MSL()
        if attach:
            balancer.attach(model, encoders={"a": [model["f"], model["u"]]})
        outputs = {"fused": model["h"](model["f"](x)), "a": model["hu"](model["u"](x))}
        balancer({name: F.cross_entropy(z, y, reduction="none") for name, z in outputs.items()}).backward()
        found.append(gradients_of(model))
    assert bool(found[0]["u.weight"].any())
    assert_same(found[1], found[0])


@pytest.mark.parametrize("method", [MSLR, MSES])
def test_the_optimiser_of_a_head_that_is_scaled_has_to_be_attached(method: Callable[..., Balancer]) -> None:
    model = LateFusion({name: nn.Linear(3, 4) for name in names(2)}, 3, unimodal="detached")
    encoders, rest = list(model.encoders.parameters()), [*model.fusion.parameters(), *model.heads.parameters()]
    first, second = torch.optim.Adam(encoders, 0.1), torch.optim.Adam(rest, 0.1)
    with pytest.raises(ValueError, match="1 of 3 of encoder 'audio'"):
        method().attach(model, optimizer=first)
    method().attach(model, optimizer=[first, second])
    method(heads="plain").attach(model, optimizer=first)


def test_a_head_that_is_computed_from_other_parameters_cannot_be_scaled() -> None:
    model = LateFusion({name: nn.Linear(3, 4) for name in names(2)}, 3, unimodal="detached")
    nn.utils.parametrizations.weight_norm(cast("nn.Linear", model.fusion.get_submodule("head")))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match=r"computed from other parameters.*heads='plain'"):
        MSLR().attach(model, optimizer=optimizer)
    MSLR(heads="plain").attach(model, optimizer=optimizer)


def test_a_fused_head_that_is_named_with_its_encoders_is_scaled_once() -> None:
    moves = []
    for make in (MSL, lambda: MSLR({"audio": 0.5, "video": 0.5})):
        torch.manual_seed(0)
        model = LateFusion({name: nn.Linear(3, 4) for name in names(2)}, 3, unimodal="detached").double()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        blocks = {name: [encoder, model.fusion] for name, encoder in model.encoders.items()}
        balancer = make().attach(model, encoders=blocks, optimizer=optimizer)
        weight = model.fusion.get_parameter("head.weight")
        before = weight.detach().clone()
        balanced(balancer, losses_of(model, batch(names(2)))).backward()
        optimizer.step()
        moves.append(weight.detach() - before)
    torch.testing.assert_close(moves[1], 0.5 * moves[0])


# -- ranks --


def test_ranks_average_dtypes_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of a set differs between processes, which would then add up messages of different dtypes."""
    for order in itertools.permutations([torch.float32, torch.bfloat16, torch.float64, torch.float16]):
        sent: list[torch.dtype] = []
        monkeypatch.setattr(collectives, "size", lambda *_: 2)
        monkeypatch.setattr(collectives.dist, "all_reduce", lambda flat, sent=sent, **_: sent.append(flat.dtype))
        tensors = [torch.full((2, place + 1), 4.0, dtype=dtype) for place, dtype in enumerate(2 * order)]
        found = collectives.mean_of_each(tensors, "world")
        assert tuple(sent) == order
        for given, mean in zip(tensors, found, strict=True):
            assert torch.equal(mean, given / 2)
            assert mean.dtype == given.dtype

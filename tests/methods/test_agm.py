"""AGM: the published update, in closed form and by 2^K forward passes, beside plain torch; its fast form; its state."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import AGM, MSL, Balancer, LateFusion, Window
from equipoise.balance.needs import ApproximationWarning
from equipoise.models import ShapleyResponses, response_losses
from equipoise.testing import SmallModel, attached, batch, gradients_of, losses_of, masks_for, names

Tensors = Mapping[str, Tensor]


def deep(size: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(size, 6), nn.Tanh(), nn.Linear(6, 4))


def late_fusion(count: int, **options: Any) -> LateFusion:
    torch.manual_seed(count)
    settings: dict[str, Any] = {"unimodal": "split", **options}
    return LateFusion({name: deep() for name in names(count)}, 3, **settings).double()


def losses(outputs: Tensors, label: Tensor) -> dict[str, Tensor]:
    return {name: F.cross_entropy(logits, label, reduction="none") for name, logits in outputs.items()}


def published(balancer: AGM, responses: Tensors, label: Tensor, **more: Any) -> Tensor:
    """The balanced loss of responses whose sum is the fused output."""
    given = losses({"fused": torch.stack(list(responses.values())).sum(0), **responses}, label)
    return balancer(given, further=response_losses(given["fused"], responses), **more)


def kappas(balancer: Balancer) -> list[float]:
    """The factors of the responses in the last step, or in the fast form of the encoders."""
    answer = balancer.answer
    assert answer is not None
    column = answer.encoders[-len(balancer.modalities) :] if answer.factors is None else answer.factors
    return column.tolist()


# -- the published form --


class Scaled(torch.autograd.Function):
    """Gives a response as it is, and multiplies its gradient."""

    @staticmethod
    def forward(ctx, response: Tensor, factor: float) -> Tensor:  # noqa: ANN001 (torch's)
        ctx.factor = factor
        return response.view_as(response)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN001
        return ctx.factor * gradients[0], None


def authors_factors(history: list[list[float]], now: list[float], strength: float, cap: float) -> list[float]:
    """κ of each response, from the losses of responses in each step before and in this one."""
    usual = [sum(step[m] for step in history) / len(history) if history else 0.0 for m in range(len(now))]

    def ahead(scores: list[float], m: int) -> float:
        others = [score for place, score in enumerate(scores) if place != m]
        return math.exp(sum(others) / len(others) - scores[m]) if others else 1.0

    return [math.exp(strength * min(ahead(usual, m) - ahead(now, m), cap)) for m in range(len(now))]


@pytest.mark.parametrize("cap", [math.inf, 0.05])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_gradient_that_each_response_receives_is_multiplied(count: int, cap: float) -> None:
    """Beside plain torch, where each response of 2^K forward passes ends in a function that scales its gradient."""
    ours, theirs = (late_fusion(count) for _ in range(2))
    optimizers = [torch.optim.SGD(model.parameters(), 0.5) for model in (ours, theirs)]
    balancer, history, seen = AGM(2.5, cap=cap, form="published"), list[list[float]](), list[list[float]]()
    for step in range(5):
        inputs, label = batch(names(count), seed=step)
        inputs = {name: (1 + 2 * place) * value for place, (name, value) in enumerate(inputs.items())}
        for optimizer in optimizers:
            optimizer.zero_grad()
        value = published(balancer, ours.with_responses(inputs)[1], label)
        value.backward()
        responses = ShapleyResponses(theirs, names(count))(inputs)
        now = [float(F.cross_entropy(responses[name], label).detach()) for name in names(count)]
        factors = authors_factors(history, now, 2.5, cap)
        scaled = [Scaled.apply(responses[name], factor) for name, factor in zip(names(count), factors, strict=True)]
        fused = F.cross_entropy(torch.stack(scaled).sum(0), label)
        fused.backward()
        assert float(value.detach()) == pytest.approx(float(fused.detach()))
        assert kappas(balancer) == pytest.approx(factors, rel=1e-5)
        for optimizer in optimizers:
            optimizer.step()
        history.append(now)
        seen.append(factors)
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6, msg=name)  # its mean is in single precision
    assert count == 1 or max(abs(factor - 1) for row in seen for factor in row) > 1e-3


@pytest.mark.parametrize("fusion", ["concat", "sum"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_closed_form_is_that_of_all_forward_passes(count: int, fusion: str) -> None:
    ours, theirs = (late_fusion(count, fusion=fusion) for _ in range(2))
    wrapped = ShapleyResponses(theirs, names(count)).double()
    optimizers = [torch.optim.SGD(model.parameters(), 0.5) for model in (ours, theirs)]
    balancers = [AGM(2.5, cap=None, form="published") for _ in range(2)]
    for step in range(5):
        inputs, label = batch(names(count), seed=step)
        inputs = {name: (1 + 2 * place) * value for place, (name, value) in enumerate(inputs.items())}
        answers = ours.with_responses(inputs)[1], {n: z for n, z in wrapped(inputs).items() if n != "fused"}
        for responses, balancer, optimizer in zip(answers, balancers, optimizers, strict=True):
            optimizer.zero_grad()
            published(balancer, responses, label).backward()
            optimizer.step()
        found, expected = (kappas(balancer) for balancer in balancers)
        assert found == pytest.approx(expected)
        assert count == 1 or max(abs(factor - 1) for factor in found) > 1e-3
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12, msg=name)
    assert [balancer.remarks for balancer in balancers] == [{"form": "published"}] * 2


@pytest.mark.parametrize("kind", ["closed form", "all forward passes"])
def test_attached_or_not_the_update_is_the_published_one_and_the_table_tells_it(kind: str) -> None:
    """Responses reach every encoder, by what these give for zero input; that is no mistake to warn of."""
    found = []
    for attach in (False, True):
        model, (inputs, label) = late_fusion(2), batch(names(2))
        wrapped = ShapleyResponses(model, names(2))
        responses = model.with_responses(inputs)[1] if kind == "closed form" else wrapped(inputs)
        balancer = AGM(2.5, form="published")
        if attach:
            attached(balancer, model)
        published(balancer, {name: responses[name] for name in names(2)}, label).backward()
        found.append(gradients_of(model))
    torch.testing.assert_close(found[1], found[0])
    table = balancer.table.numbers()
    for name, factor in zip(names(2), kappas(balancer), strict=True):
        assert table[f"response {name}"] == {**dict.fromkeys(names(2), factor), "fused head": factor}
    assert table["fused"] == {**dict.fromkeys(names(2), 0.0), "fused head": 0.0}


def test_heads_beside_and_shares_get_the_same_update() -> None:
    """Training measures heads of their own, beside; what the model learns does not depend on them."""
    plain, beside = late_fusion(2), late_fusion(2, unimodal="detached")
    beside.load_state_dict(plain.state_dict(), strict=False)
    inputs, label = batch(names(2))
    published(AGM(2.0, form="published"), plain.with_responses(inputs)[1], label).backward()
    outputs, responses = beside.with_responses(inputs)
    published(AGM(2.0, form="published"), responses, label, extra={"heads": losses(outputs, label)["audio"]}).backward()
    found = gradients_of(beside)
    for name, gradient in gradients_of(plain).items():
        torch.testing.assert_close(found[name], gradient)
    assert bool(found["heads.audio.weight"].any())


def test_losses_of_other_heads_train_these_at_weight_one() -> None:
    """Where the losses that compare modalities are those of own heads, they teach nothing but these."""
    model, (inputs, label) = late_fusion(2, unimodal="detached"), batch(names(2))
    outputs, responses = model.with_responses(inputs)
    given = losses(outputs, label)
    further = response_losses(given["fused"], responses)
    balancer = AGM(2.0, form="published")
    balancer(given, further=further).backward(retain_graph=True)
    total = torch.stack([factor * further[n] for n, factor in zip(names(2), kappas(balancer), strict=True)]).sum()
    found = gradients_of(model)
    for name, parameter in model.named_parameters():
        wanted = given[name.split(".")[1]].mean() if name.startswith("heads.") else total
        torch.testing.assert_close(found[name], torch.autograd.grad(wanted, parameter, retain_graph=True)[0])


def test_ragged_inputs_are_compared_with_zeros_of_their_own_lengths() -> None:
    class Mean(nn.Module):
        features = 4

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            inside = torch.arange(x.shape[2]) < lengths[:, None]
            return torch.tanh((self.layer(x.transpose(1, 2)) * inside[:, :, None]).sum(1))  # zeros count by number

    ours, theirs = (LateFusion({"a": Mean(), "b": deep()}, 3, unimodal="split").double() for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    inputs = {"a": torch.randn(8, 3, 5).double(), "b": torch.randn(8, 3).double(), "a_length": torch.arange(8) % 5 + 1}
    label = torch.arange(8) % 3

    class Told(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = theirs

        def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
            return self.model({**given, "a_length": inputs["a_length"]})

    passes = ShapleyResponses(Told(), ["a", "b"])({"a": inputs["a"], "b": inputs["b"]})
    published(AGM(2.0, form="published"), ours.with_responses(inputs)[1], label).backward()
    published(AGM(2.0, form="published"), {name: passes[name] for name in "ab"}, label).backward()
    for (name, mine), other in zip(gradients_of(ours).items(), gradients_of(theirs).values(), strict=True):
        torch.testing.assert_close(mine, other, msg=name)


def one_published_step(model: LateFusion, inputs: dict[str, Tensor], label: Tensor) -> dict[str, Tensor]:
    """The gradients of one published step from the start."""
    twin = copy.deepcopy(model)
    published(AGM(2.5, form="published"), twin.with_responses(inputs)[1], label).backward()
    return gradients_of(twin)


def assert_gradients(model: nn.Module, expected: dict[str, Tensor]) -> None:
    for name, gradient in gradients_of(model).items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def test_a_window_holds_the_published_factors_for_every_forward_pass() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    expected = one_published_step(model, inputs, label)
    balancer = AGM(2.5, form="published")
    halves = [({name: x[rows] for name, x in inputs.items()}, label[rows]) for rows in (slice(6), slice(6, 12))]
    measured = []
    with torch.no_grad():
        for some, labels in halves:
            outputs, responses = model.with_responses(some)
            measured.append(losses({"fused": outputs["fused"], **responses}, labels))
    with Window(balancer).open(measured):
        for some, labels in halves:
            (published(balancer, model.with_responses(some)[1], labels) / 2).backward()
    assert_gradients(model, expected)
    assert balancer.seen.tolist() == [1, 1]


def test_a_window_of_a_form_that_is_not_named_is_the_fast_one_and_says_so() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    balancer = AGM(2.5)
    outputs, responses = model.with_responses(inputs)
    given = losses({"fused": outputs["fused"], **responses}, label)
    measured = {name: loss.detach() for name, loss in given.items()}
    further = response_losses(given["fused"], responses)
    with Window(balancer).open([measured]), pytest.raises(ValueError, match="the Window decided without these"):
        balancer(given, further=further)


def test_the_factors_belong_to_the_graph_of_their_own_loss() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    other, other_label = batch(names(2), seed=1)
    expected = one_published_step(model, inputs, label)
    balancer = AGM(2.5, form="published")
    loss = published(balancer, model.with_responses(inputs)[1], label)
    published(balancer, model.with_responses(other)[1], other_label)  # measures, and changes nothing
    loss.backward()
    assert_gradients(model, expected)


def test_a_copy_of_the_balancer_goes_on_by_itself() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    balancer = AGM(2.5, form="published")
    published(balancer, model.with_responses(batch(names(2), seed=1)[0])[1], label).backward()
    found = []
    for one in (copy.deepcopy(balancer), balancer):
        model.zero_grad()
        published(one, model.with_responses(inputs)[1], label).backward()
        found.append((gradients_of(model), kappas(one), dict(one.named_buffers())))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert found[0][1] != pytest.approx([1.0, 1.0], abs=1e-3)


def test_the_model_is_left_as_it_is() -> None:
    """Another balancer gets plain gradients from it, and so does a loss without one; its shares are what they were."""
    model, (inputs, label) = late_fusion(2), batch(names(2))
    before = model(inputs)
    twin = copy.deepcopy(model)
    F.cross_entropy(twin(inputs)["fused"], label).backward()
    balancer = AGM(2.5, form="published")
    published(balancer, model.with_responses(inputs)[1], label).backward()
    assert kappas(balancer) != pytest.approx([1.0, 1.0], abs=1e-3)
    for after in (model(inputs), model.eval()(inputs), model.train()(inputs)):
        torch.testing.assert_close(after, before, rtol=0, atol=0)
    torch.testing.assert_close(model.with_responses(inputs)[0]["fused"], before["fused"])
    for loss in (F.cross_entropy(model(inputs)["fused"], label), MSL().attach(model)(losses(model(inputs), label))):
        model.zero_grad()
        loss.backward()
        assert_gradients(model, gradients_of(twin))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's tracer
@pytest.mark.parametrize("compiled", ["encoders", "all forward passes"])
def test_a_compiled_model_gets_the_published_update(compiled: str) -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    expected = one_published_step(model, inputs, label)
    if compiled == "encoders":
        for encoder in model.encoders.values():
            encoder.compile(backend="aot_eager")
        responses = model.with_responses(inputs)[1]
    else:
        wrapped = ShapleyResponses(model, names(2))
        wrapped.compile(backend="aot_eager")
        responses = {name: response for name, response in wrapped(inputs).items() if name != "fused"}
    published(AGM(2.5, form="published"), responses, label).backward()
    assert_gradients(model, expected)


def test_second_derivatives_are_refused() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    loss = published(AGM(form="published"), model.with_responses(inputs)[1], label)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


# -- which form --


@pytest.mark.parametrize(
    ("options", "encoder", "why"),
    [
        ({"fusion": "gated", "unimodal": "head"}, deep, "no sum over modalities"),
        ({"dropout": 0.3}, deep, "drops modalities"),
        ({}, lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "BatchNorm1d"),
        ({}, lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 4)), "Dropout"),
    ],
)
def test_where_responses_are_not_known_it_is_said(options: dict[str, Any], encoder: Any, why: str) -> None:
    settings: dict[str, Any] = {"unimodal": "split", "features": dict.fromkeys(names(2), 4), **options}
    model = LateFusion({name: encoder() for name in names(2)}, 3, **settings).double()
    inputs, label = batch(names(2))
    assert any(why in problem for problem in model.response_problems())
    with pytest.raises(ValueError, match=f"Shapley responses in closed form: .*{why}"):
        model.with_responses(inputs)
    with pytest.raises(ValueError, match=r"AGM has one more objective per modality: pass further="):
        attached(AGM(form="published"), model)(losses(model(inputs), label))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("view", ["head", "detached", "split"])
def test_without_responses_it_takes_the_fast_form_and_warns_once(
    view: str, kind: Callable[..., torch.optim.Optimizer]
) -> None:
    moved = []
    for form in ("fast", None):
        model = late_fusion(2, unimodal=view)
        optimizer = kind(model.parameters(), 0.1)
        balancer = AGM(2.0, form=form).attach(model, optimizer=optimizer)
        for step in range(2):  # where a warning is an error, but for the first
            inputs, label = batch(names(2), seed=step)
            given = losses(model(inputs), label)
            if form is None and step == 0:
                told = r"AGM takes its approximate form: no objectives 'response …' were given as further=\{…\}"
                with pytest.warns(ApproximationWarning, match=told) as caught:
                    loss = balancer(given)
                assert [one.filename for one in caught] == [__file__]
            else:
                loss = balancer(given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert balancer.remarks["form"].startswith("fast: an approximation without")
        assert balancer.table.numbers()["fused"]["audio"] != pytest.approx(1.0, abs=1e-3)
        moved.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
    torch.testing.assert_close(moved[1], moved[0], rtol=0, atol=0)


def test_the_form_that_is_not_named_is_that_of_what_is_given() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    expected = one_published_step(model, inputs, label)
    responses = model.with_responses(inputs)[1]
    given = losses({"fused": torch.stack(list(responses.values())).sum(0)}, label)
    further = response_losses(given["fused"], responses)
    given |= losses({name: one.detach() for name, one in responses.items()}, label)
    balancer = attached(AGM(2.5), model)
    balancer(given, further=further).backward(retain_graph=True)  # where a warning is an error
    assert balancer.remarks == {"form": "published"}
    assert_gradients(model, expected)
    with pytest.raises(ValueError, match="further: AGM has no objectives beyond one per modality"):
        attached(AGM(form="fast"), model)(given, further=further)
    with pytest.raises(ValueError, match="form should be 'published', 'fast' or None, found 'exact'"):
        AGM(form="exact")  # ty: ignore[invalid-argument-type]


# -- its state --


@pytest.mark.parametrize("form", ["published", "fast"])
def test_steps_that_are_not_taken_do_not_count(form: Any) -> None:
    model, data = SmallModel(names(2)), batch(names(2))
    balancer = attached(AGM(form=form), model)

    def loss() -> Tensor:
        given = losses_of(model, data)
        further = {name: given["fused"].mean() for name in names(2)} if form == "published" else None
        return balancer(given, further=further)

    loss()  # without a backward pass
    (loss() * torch.inf).backward()
    assert balancer.get_buffer("seen").tolist() == balancer.get_buffer("mean_score").tolist() == [0, 0]
    kept = loss()
    kept.backward(retain_graph=True)
    kept.backward()
    assert balancer.get_buffer("seen").tolist() == [1, 1]


@pytest.mark.parametrize("form", ["published", "fast"])
def test_a_step_that_a_scaler_skips_moves_no_state(form: Any) -> None:
    """Gradients overflow by large inputs; with the optimiser attached, and without."""
    for follows in (False, True):
        torch.manual_seed(0)
        model = LateFusion({"audio": nn.Linear(3, 4), "video": nn.Linear(5, 4)}, 2, unimodal="split")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        balancer, scaler = AGM(form=form), torch.amp.GradScaler("cpu", init_scale=3e38)
        if form == "fast" or follows:
            balancer.attach(model, optimizer=optimizer)
        sizes = {"audio": 3, "video": 5}
        inputs, label = {name: 1e6 * torch.randn(8, size) for name, size in sizes.items()}, torch.arange(8) % 2
        before = copy.deepcopy(model.state_dict())
        responses = model.with_responses(inputs)[1]
        fused = losses({"fused": torch.stack(list(responses.values())).sum(0)}, label)["fused"]
        given = {"fused": fused, **losses({name: one.detach() for name, one in responses.items()}, label)}
        further = response_losses(fused, responses) if form == "published" else None
        scaler.scale(balancer(given, further=further)).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
        assert balancer.get_buffer("seen").tolist() == balancer.get_buffer("mean_score").tolist() == [0, 0]


@pytest.mark.parametrize("form", ["published", "fast"])
@pytest.mark.parametrize("absent", [0, 10, 100])
def test_batches_without_a_sensor_change_nothing_of_its_history(absent: int, form: Any) -> None:
    model = SmallModel(names(2))
    balancer = attached(AGM(form=form), model)

    def step(*, here: bool) -> None:
        outputs = model(batch(names(2), size=8)[0])
        level = {"fused": 1.0, "audio": 1.0, "video": 3.0}
        given = {name: value + outputs[name].sum(1) * 0 for name, value in level.items()}
        further = dict.fromkeys(names(2), given["fused"].sum() * 0) if form == "published" else None
        balancer(given, further=further, present={"audio": torch.full((8,), here)}).backward()

    for _ in range(10):
        step(here=True)
    assert balancer.get_buffer("mean_score").tolist() == pytest.approx([1.0, 3.0])
    for _ in range(absent):
        step(here=False)
    assert balancer.get_buffer("mean_score").tolist() == pytest.approx([1.0, 3.0])
    assert balancer.get_buffer("seen").tolist() == [10, 10 + absent]
    step(here=True)
    assert kappas(balancer) == pytest.approx([1.0, 1.0], abs=1e-5)  # it is as far ahead as it always was


def test_the_history_is_the_mean_of_the_samples_that_have_the_sensor() -> None:
    model, rows = SmallModel(names(2)), []
    balancer = attached(AGM(form="fast"), model)
    for step in range(4):
        given, masks = losses_of(model, batch(names(2), seed=step)), masks_for(names(2), seed=step)
        balancer(given, present=masks).backward()
        rows.append([float(given[name][masks[name]].detach().mean()) for name in names(2)])
    expected = torch.tensor(rows).mean(dim=0)
    torch.testing.assert_close(balancer.get_buffer("mean_score"), expected, rtol=1e-5, atol=1e-6)

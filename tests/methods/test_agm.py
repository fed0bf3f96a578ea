"""AGM's published update, known in closed form, against its 2^K forward passes; and when it is not known."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import AGM, EW, MSL, LateFusion, Window
from equipoise.methods.agm import ApproximationWarning
from equipoise.models import ShapleyResponses
from equipoise.testing import batch, gradients_of, names

Encoders = Mapping[str, nn.Module]


def deep(size: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(size, 6), nn.Tanh(), nn.Linear(6, 4))


def late_fusion(count: int, **options: Any) -> LateFusion:
    torch.manual_seed(count)
    settings: dict[str, Any] = {"unimodal": "split", **options}
    return LateFusion({name: deep() for name in names(count)}, 3, **settings).double()


def losses(outputs: Mapping[str, Tensor], label: Tensor) -> dict[str, Tensor]:
    return {name: F.cross_entropy(logits, label, reduction="none") for name, logits in outputs.items()}


@pytest.mark.parametrize("fusion", ["concat", "sum"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_closed_form_is_the_published_update(count: int, fusion: str) -> None:
    ours, theirs = (late_fusion(count, fusion=fusion) for _ in range(2))
    wrapped = ShapleyResponses(theirs, names(count)).double()
    optimizers = [torch.optim.SGD(model.parameters(), 0.5) for model in (ours, theirs)]
    balancers = AGM(2.5, cap=None).attach(ours), AGM(2.5, cap=None, responses=wrapped)
    assert balancers[0].remarks == {"form": "published"}
    for step in range(5):
        inputs, label = batch(names(count), seed=step)
        inputs = {name: (1 + 2 * place) * value for place, (name, value) in enumerate(inputs.items())}
        for model, balancer, optimizer in zip((ours, wrapped), balancers, optimizers, strict=True):
            optimizer.zero_grad()
            balancer(losses(model(inputs), label)).backward()
            optimizer.step()
        found, expected = (each.table.numbers()["fused"] for each in balancers)
        assert found == pytest.approx(expected)
        assert count == 1 or max(abs(found[name] - 1) for name in names(count)) > 1e-3
        for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12, msg=name)


def test_heads_beside_the_model_and_shares_get_the_same_update() -> None:
    """Training measures heads of their own, beside; what the model learns does not depend on them."""
    plain, beside = late_fusion(2), late_fusion(2, unimodal="detached")
    beside.load_state_dict(plain.state_dict(), strict=False)
    inputs, label = batch(names(2))
    AGM(2.0).attach(plain)(losses(plain(inputs), label)).backward()
    balancer = AGM(2.0).attach(beside)
    outputs, shares = beside.with_shares(inputs)
    given = losses({"fused": outputs["fused"], **shares}, label)
    balancer(given, extra={"heads": losses(outputs, label)["audio"]}).backward()
    found = gradients_of(beside)
    for name, gradient in gradients_of(plain).items():
        torch.testing.assert_close(found[name], gradient)
    assert bool(found["heads.audio.weight"].any())


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

    wrapped = ShapleyResponses(Told(), ["a", "b"])
    AGM(2.0).attach(ours)(losses(ours(inputs), label)).backward()
    AGM(2.0, responses=wrapped)(losses(wrapped({"a": inputs["a"], "b": inputs["b"]}), label)).backward()
    for (name, mine), other in zip(gradients_of(ours).items(), gradients_of(theirs).values(), strict=True):
        torch.testing.assert_close(mine, other, msg=name)


@pytest.mark.parametrize(
    ("options", "encoder", "why"),
    [
        ({"fusion": "gated", "unimodal": "head"}, deep, "no sum over modalities"),
        ({"dropout": 0.3}, deep, "drops modalities"),
        ({}, lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "BatchNorm1d"),
        ({}, lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 4)), "Dropout"),
    ],
)
def test_where_responses_are_not_known_it_says_so(options: dict[str, Any], encoder: Any, why: str) -> None:
    settings: dict[str, Any] = {"unimodal": "split", "features": dict.fromkeys(names(2), 4), **options}
    model = LateFusion({name: encoder() for name in names(2)}, 3, **settings)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match=rf"AGM: the published update needs.*{why}.*AGM\(form='fast'\)"):
        AGM(form="published").attach(model, optimizer=optimizer)
    with pytest.warns(ApproximationWarning, match=why):
        balancer = AGM().attach(model, optimizer=optimizer)
    assert balancer.form == "fast"
    assert balancer.remarks["form"].startswith("fast: an approximation without")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AGM(form="fast").attach(model, optimizer=optimizer)
    with pytest.raises(ValueError, match="form should not be 'fast' where responses are given"):
        AGM(responses=ShapleyResponses(model, names(2)), form="fast")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("view", ["head", "detached"])
def test_losses_of_other_heads_make_it_take_the_fast_form(
    view: str, kind: Callable[..., torch.optim.Optimizer]
) -> None:
    moved = []
    for form in ("fast", None):
        model, (inputs, label) = late_fusion(2, unimodal=view), batch(names(2))
        optimizer = kind(model.parameters(), 0.1)
        balancer = AGM(2.0, form=form).attach(model, optimizer=optimizer)
        given = losses(model(inputs), label)
        if form is None:
            with pytest.warns(ApproximationWarning, match=r"losses of .* were not computed from responses"):
                balancer(given).backward()
        else:
            balancer(given).backward()
        optimizer.step()
        assert balancer.form == "fast"
        assert not model.responds
        assert balancer.table.numbers()["fused"]["audio"] != pytest.approx(1.0, abs=1e-3)
        moved.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
    for name, parameter in moved[0].items():
        torch.testing.assert_close(moved[1][name], parameter, msg=name)
    model = late_fusion(2, unimodal=view)
    balancer = AGM(form="published").attach(model)
    with pytest.raises(RuntimeError, match=r"not computed from responses.*AGM\(form='fast'\)"):
        balancer(losses(model(inputs), label))
    scores = {"audio": torch.tensor(0.5), "video": torch.tensor(1.0)}
    balancer(losses(model(inputs), label), scores=scores).backward()
    outputs, shares = model.with_shares(inputs)
    balancer(losses({"fused": outputs["fused"], **shares}, label)).backward()


def test_another_balancer_gets_plain_gradients_and_the_first_notices() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    plain = copy.deepcopy(model)
    first = AGM(2.5).attach(model)
    first(losses(model(inputs), label)).backward()
    for user in (model, copy.deepcopy(model)):  # a copy is nobody's
        user.zero_grad()
        if user is model:
            MSL().attach(model)
        F.cross_entropy(user(inputs)["fused"], label).backward()
        plain.zero_grad()
        F.cross_entropy(plain(inputs)["fused"], label).backward()
        found = gradients_of(user)
        for name, gradient in gradients_of(plain).items():
            torch.testing.assert_close(found[name], gradient)
    with pytest.raises(RuntimeError, match=r"not computed from responses.*another balancer was attached"):
        first(losses(model(inputs), label))


def test_without_the_balancer_a_step_is_that_of_joint_training() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    balancer = AGM(2.5).attach(model)
    balancer(losses(model(inputs), label)).backward()
    model.zero_grad()
    F.cross_entropy(model(inputs)["fused"], label).backward()
    found = gradients_of(model)
    twin = copy.deepcopy(model)
    twin.zero_grad()
    F.cross_entropy(twin(inputs)["fused"], label).backward()
    for name, gradient in gradients_of(twin).items():
        torch.testing.assert_close(found[name], gradient)


def published(model: LateFusion, inputs: dict[str, Tensor], label: Tensor) -> dict[str, Tensor]:
    """The gradients of one published step from the start."""
    twin = copy.deepcopy(model)
    AGM(2.5).attach(twin)(losses(twin(inputs), label)).backward()
    return gradients_of(twin)


def assert_published(model: LateFusion, expected: dict[str, Tensor]) -> None:
    for name, gradient in gradients_of(model).items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def test_a_window_holds_the_published_factors_for_every_forward_pass() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    expected = published(model, inputs, label)
    balancer = AGM(2.5).attach(model)
    with torch.no_grad():
        measured = [losses(model(inputs), label)]
    with Window(balancer).open(measured):
        balancer(losses(model(inputs), label)).backward()
    assert_published(model, expected)


def test_the_factors_belong_to_the_graph_of_their_own_loss() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    other, other_label = batch(names(2), seed=1)
    expected = published(model, inputs, label)
    balancer = AGM(2.5).attach(model)
    first = losses(model(inputs), label)
    later = losses(model(other), other_label)
    loss = balancer(first)
    with torch.no_grad():
        balancer(later)  # measures, and changes nothing
    loss.backward()
    assert_published(model, expected)


def test_a_copy_of_the_balancer_serves_the_model_and_a_copy_of_the_model_is_refused() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    expected = published(model, inputs, label)
    balancer = AGM(2.5).attach(model)
    copy.deepcopy(balancer)(losses(model(inputs), label)).backward()
    assert_published(model, expected)
    both = copy.deepcopy(nn.ModuleDict({"model": model, "balancer": balancer}))
    with pytest.raises(RuntimeError, match="not computed from responses"):
        both["balancer"](losses(both["model"](inputs), label))


def test_a_model_gives_shares_again_once_the_balancer_is_gone() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    twin = copy.deepcopy(model)
    balancer = AGM().attach(model)
    assert model.responds
    del balancer
    for each in (model, twin):
        EW()(losses(each(inputs), label)).backward()
    assert_published(model, gradients_of(twin))


def test_steps_that_are_not_taken_do_not_count() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    balancer = AGM().attach(model)
    balancer(losses(model(inputs), label))  # without a backward pass
    (balancer(losses(model(inputs), label)) * torch.inf).backward()
    assert int(balancer.steps) == 0
    loss = balancer(losses(model(inputs), label))
    loss.backward(retain_graph=True)
    loss.backward()
    assert int(balancer.steps) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's tracer
def test_a_compiled_model_gets_the_published_update() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    expected = published(model, inputs, label)
    whole: Any = torch.compile(model, backend="aot_eager")
    AGM(2.5).attach(whole)(losses(whole(inputs), label)).backward()
    assert_published(model, expected)


def test_evaluation_gives_shares() -> None:
    model, (inputs, _) = late_fusion(2), batch(names(2))
    before = model.eval()(inputs)
    AGM().attach(model)
    for after in (model(inputs), model.train()(inputs)):
        torch.testing.assert_close(after["fused"], before["fused"])
    torch.testing.assert_close(model.eval()(inputs)["audio"], before["audio"], rtol=0, atol=0)


def test_second_derivatives_are_refused() -> None:
    model, (inputs, label) = late_fusion(2), batch(names(2))
    loss = AGM().attach(model)(losses(model(inputs), label))
    with pytest.raises(RuntimeError, match="second derivatives are not known"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)

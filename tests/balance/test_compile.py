"""Compiled encoders give what eager ones give, with a method of every shape of answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from equipoise import LateFusion
from equipoise.testing import balanced, gradients_of, losses_of, masks_for, names
from everything import GRADIENT_PATH, METHODS, SHAPES, Data, assert_same, batches, parameters_of, taught, train

pytestmark = [
    pytest.mark.slow,
    # Importing inductor makes torch warn about itself.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

COUNT = 2
INDUCTOR = ["mimo", "mmpareto", "ogmge"]
TOLERANCE = 1e-5
# A model compiled as a whole is one node of the graph. These methods need not know where in it an encoder ends.
WHOLE = [name for name in SHAPES if METHODS[name]().at == "parameters" and name != "cggm"]


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    from torch._functorch import config

    donated = config.donated_buffer
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    config.donated_buffer = donated


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def fusion(compiled: Callable[[nn.Module], Any] = lambda encoder: encoder) -> LateFusion:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoders = {name: Encoder() for name in names(COUNT)}
        sizes = dict.fromkeys(encoders, 4)
        return LateFusion({name: compiled(encoder) for name, encoder in encoders.items()}, 3, features=sizes)


def data() -> list[Data]:
    return [({name: x.float() for name, x in inputs.items()}, label) for inputs, label in batches(names(COUNT), 3)]


def trained(method: str, model: LateFusion, whole: nn.Module | None = None) -> dict[str, Tensor]:
    runs = model if whole is None else whole
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = taught(METHODS[method]().attach(runs, optimizer=optimizer), names(COUNT))
    train(balancer, runs, data(), optimizer)
    return {name.replace("._orig_mod", ""): tensor for name, tensor in parameters_of(model).items()}


def in_place(backend: Any) -> LateFusion:
    model = fusion()
    model.compile_encoders(backend=backend)
    return model


def wrapped(backend: Any) -> LateFusion:
    return fusion(lambda encoder: torch.compile(encoder, backend=backend))


def compiled_whole(model: LateFusion, backend: Any) -> nn.Module:
    whole = torch.compile(model, backend=backend)
    assert isinstance(whole, nn.Module)
    return whole


WAYS = {"in place": in_place, "wrapped": wrapped}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", SHAPES)
def test_compiled_encoders_give_the_eager_result(method: str, way: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    found = trained(method, WAYS[way](counter))
    assert counter.frame_count > 0
    assert_same(found, trained(method, fusion()), atol=TOLERANCE)


def test_compiling_in_place_reaches_modules_of_torchs_own_too() -> None:
    model = LateFusion({name: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)) for name in names(COUNT)}, 3)
    state = list(model.state_dict())
    counter = CompileCounterWithBackend("aot_eager")
    model.compile_encoders(backend=counter)
    model(data()[0][0])
    assert counter.frame_count > 0
    assert list(model.state_dict()) == state


@pytest.mark.parametrize("method", INDUCTOR)
@pytest.mark.parametrize("way", WAYS)
def test_inductor_gives_the_eager_result(method: str, way: str) -> None:
    counter = CompileCounterWithBackend("inductor")
    found = trained(method, WAYS[way](counter))
    assert counter.frame_count > 0
    assert_same(found, trained(method, fusion()), atol=TOLERANCE)


@pytest.mark.parametrize("method", SHAPES)
def test_a_model_compiled_as_a_whole_gives_the_eager_result_or_is_refused(method: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    model = fusion()
    whole = compiled_whole(model, counter)
    if method in WHOLE:
        assert_same(trained(method, model, whole), trained(method, fusion()), atol=TOLERANCE)
        assert counter.frame_count > 0
    else:
        with pytest.raises(ValueError, match="compile the encoders alone"):
            trained(method, model, whole)


@pytest.mark.parametrize("method", ["mimo", "dgl", "mgda"])
def test_a_model_compiled_as_a_whole_learns_from_masked_losses(method: str) -> None:
    masks = masks_for(names(COUNT))
    found = []
    for compiled in (False, True):
        model = fusion()
        runs = compiled_whole(model, "aot_eager") if compiled else model
        balancer = METHODS[method]().attach(runs)
        for present in (masks | {"video": torch.zeros(12)}, masks):  # at first no sample has video
            model.zero_grad()
            balanced(balancer, losses_of(runs, data()[0]), present=present).backward()
        found.append(gradients_of(model))
    assert_same(found[1], found[0], atol=TOLERANCE)


@pytest.mark.parametrize("way", [*WAYS, "whole"])
@pytest.mark.parametrize("method", [name for name in WHOLE if name in GRADIENT_PATH])
def test_buffers_are_kept_for_several_passes_after_a_plain_one(method: str, way: str) -> None:
    # The first backward decides: compiled for one pass, it gives its buffers away, and one that keeps the graph fails.
    model = fusion() if way == "whole" else WAYS[way]("aot_eager")
    runs = compiled_whole(model, "aot_eager") if way == "whole" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    balancer = METHODS[method]().attach(runs, optimizer=optimizer)
    torch.stack([loss.mean() for loss in losses_of(runs, data()[0]).values()]).sum().backward()
    optimizer.zero_grad()
    train(balancer, runs, data(), optimizer)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@pytest.mark.parametrize("method", SHAPES)
def test_an_extra_loss_goes_through_compiled_encoders_besides(method: str) -> None:
    found = []
    for model in (fusion(), in_place("aot_eager")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        balancer = METHODS[method]().attach(model, optimizer=optimizer)
        inputs, label = data()[0]
        model(inputs)["fused"].sum().backward()
        optimizer.zero_grad()
        outputs = model(inputs)
        losses = {name: F.cross_entropy(logits, label, reduction="none") for name, logits in outputs.items()}
        balanced(balancer, losses, extra={"small": outputs["fused"].square().mean()}).backward()
        found.append(gradients_of(model))
    assert_same(found[1], found[0], atol=TOLERANCE)

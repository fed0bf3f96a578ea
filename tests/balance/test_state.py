"""A method's state: tensors alone, which any format of weights holds, and another process goes on with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import final

import pytest
import torch
from safetensors.torch import load_file, load_model, save_model
from torch import Tensor, nn

from equipoise import MIMO, MSLR, OGMGE, Balancer, Weighting
from equipoise.balance.coefficients import Coefficients, Losses
from equipoise.testing import SmallModel, balanced, gradients_of, losses_of, names
from everything import METHODS, assert_same, batches, metrics


@final
class Trained(nn.Module):
    """A model with its method, as a user would save them in one file."""

    def __init__(self, balancer: Balancer) -> None:
        super().__init__()
        self.model, self.balancer = SmallModel(names(3)), balancer

    def epoch(self, number: int, optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
        """Train on some batches; return the gradients of each step."""
        found = []
        for data in batches(names(3), 2, 8):
            optimizer.zero_grad()
            balanced(self.balancer, losses_of(self.model, data)).backward()
            found.append(gradients_of(self.model))
            optimizer.step()
        self.balancer.end_epoch(metrics(names(3), number))
        return found

    def attached(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.balancer.attach(self.model, optimizer=optimizer)
        return optimizer


def trained(method: str) -> tuple[Trained, torch.optim.Optimizer]:
    whole = Trained(METHODS[method]())
    optimizer = whole.attached()
    for number in range(3):
        whole.epoch(number, optimizer)
    return whole, optimizer


@pytest.mark.parametrize("when", ["before attach", "after attach"])
@pytest.mark.parametrize("method", METHODS)
def test_state_is_saved_with_the_model_by_safetensors_and_training_goes_on(
    method: str, when: str, tmp_path: Path
) -> None:
    whole, optimizer = trained(method)
    save_model(whole, str(tmp_path / "whole.safetensors"))
    resumed = Trained(METHODS[method]())
    again = resumed.attached() if when == "after attach" else None
    load_model(resumed, tmp_path / "whole.safetensors", strict=True)
    assert_same(dict(resumed.state_dict()), dict(whole.state_dict()))
    again = resumed.attached() if again is None else again
    for number in (3, 4):
        expected, found = whole.epoch(number, optimizer), resumed.epoch(number, again)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert_same(dict(resumed.state_dict()), dict(whole.state_dict()))


@pytest.mark.parametrize("method", METHODS)
def test_a_state_dict_is_tensors_by_plain_names(method: str) -> None:
    whole, _ = trained(method)
    state = whole.balancer.state_dict()
    assert all(isinstance(value, Tensor) for value in state.values())
    assert bytes(state["modality_names"].tolist()).decode().split("\n") == names(3)
    assert int(state["epoch"]) == 3
    parameters = {id(parameter) for parameter in whole.model.parameters()}
    assert not any(id(value) in parameters for value in state.values())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_module_that_holds_a_method_moves_it_and_keeps_its_precision(device: str) -> None:
    whole, _ = trained("mslr")
    whole.half().to(device)
    assert {parameter.dtype for parameter in whole.model.parameters()} == {torch.float16}
    assert {buffer.dtype for buffer in whole.balancer.buffers()} == {torch.float32, torch.int64, torch.uint8}
    assert {buffer.device.type for buffer in whole.balancer.buffers()} == {device}


def test_names_of_any_alphabet_are_kept(tmp_path: Path) -> None:
    losses = {"fused": torch.tensor(1.0), "Kamera 左": torch.tensor(2.0), "вид": torch.tensor(3.0)}
    first, second = MIMO(optimum={"вид": 0.5, "Kamera 左": 0.25}), MIMO(optimum={"вид": 9.0, "Kamera 左": 9.0})
    first(losses)
    save_model(first, str(tmp_path / "method.safetensors"))
    load_model(second, tmp_path / "method.safetensors", strict=True)
    assert second.modalities == ("Kamera 左", "вид")
    assert float(second(losses)) == float(first(losses))


@final
class Counted(Weighting):
    """Joint training that counts steps by modality, and keeps what a user gave."""

    def __init__(self, given: dict[str, float] | None = None) -> None:
        super().__init__()
        self.add_state("seen", (2,), fill=3.0)
        if given is not None:
            self.add_given_state("given", given)

    def weigh(self, losses: Losses) -> Coefficients:
        return Coefficients.shared(losses.weights(1.0, 1.0))


def test_rows_are_filled_where_modalities_are_first_known_and_follow_their_names() -> None:
    order = ["b", "a", "c"]
    first = Counted({"a": 1.0, "b": 2.0, "c": 3.0})
    assert first.get_buffer("seen").shape == (0, 2)
    first.attach(encoders={name: nn.Linear(2, 2) for name in order})
    assert first.get_buffer("given").tolist() == [2.0, 1.0, 3.0]
    assert first.get_buffer("seen").tolist() == [[3.0, 3.0]] * 3
    first.get_buffer("seen").copy_(torch.arange(6.0).view(3, 2))
    second = Counted({"a": 0.0, "b": 0.0, "c": 0.0})
    second.attach(encoders={name: nn.Linear(2, 2) for name in sorted(order)})
    second.load_state_dict(first.state_dict())
    assert second.get_buffer("seen").tolist() == [[2.0, 3.0], [0.0, 1.0], [4.0, 5.0]]
    assert second.get_buffer("given").tolist() == [1.0, 2.0, 3.0]
    assert second.modalities == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"Counted: given should have one entry for each of \['a'\], found"):
        Counted({"a": 1.0, "b": 2.0}).attach(encoders={"a": nn.Linear(2, 2)})


def test_a_state_of_other_modalities_is_refused() -> None:
    first, second = (Counted().attach(encoders={name: nn.Linear(2, 2) for name in order}) for order in ("ab", "ac"))
    before = copy.deepcopy(second.state_dict())
    with pytest.raises(RuntimeError, match=r"saved for modalities \['a', 'b'\], but this balancer serves \['a', 'c'\]"):
        second.load_state_dict(first.state_dict())
    assert_same(dict(second.state_dict()), dict(before))


def test_a_file_without_a_state_is_refused_strictly(tmp_path: Path) -> None:
    whole, _ = trained("mslr")
    save_model(whole, str(tmp_path / "whole.safetensors"))
    state = load_file(tmp_path / "whole.safetensors")
    with pytest.raises(RuntimeError, match=r"Missing key.*balancer\.rate"):
        Trained(MSLR(memory=1)).load_state_dict({k: v for k, v in state.items() if k != "balancer.rate"})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*balancer\.stranger"):
        Trained(MSLR(memory=1)).load_state_dict({**state, "balancer.stranger": torch.zeros(1)})


def test_random_numbers_go_on_where_they_were() -> None:
    model, data = SmallModel(names(2)), batches(names(2), 3)

    def step(balancer: Balancer, number: int) -> dict[str, Tensor]:
        model.zero_grad()
        balancer(losses_of(model, data[number])).backward()
        return gradients_of(model)

    first = OGMGE(seed=3).attach(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    step(first, 0)
    second = OGMGE(seed=9).attach(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    fresh = step(second, 1)
    second.load_state_dict(first.state_dict())
    third = copy.deepcopy(first).attach(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    expected = step(first, 1)
    for other in (second, third):
        assert_same(step(other, 1), expected)
    assert any(not torch.equal(fresh[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("method", [name for name, make in METHODS.items() if make()._copies])
def test_copies_are_of_the_model_that_is_attached(method: str) -> None:
    whole, optimizer = trained(method)
    balancer, copies = whole.balancer, list(whole.balancer._copies)

    def copied() -> dict[str, Tensor]:
        return {key: one.clone() for key, one in balancer.named_buffers() if key.split("%")[0] in copies}

    before = copied()
    balancer.attach(whole.model, optimizer=optimizer)  # the same again
    assert_same(copied(), before)
    other = SmallModel(names(3), seed=1)
    for name in names(3):
        other.encoders[name] = nn.Linear(3, 4).double()
    balancer.attach(other, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    assert copied() == {}
    balanced(balancer, losses_of(other, batches(names(3), 1)[0])).backward()
    shapes = {tensor.shape for tensor in copied().values()}
    assert shapes <= {tensor.shape for tensor in other.encoders.parameters()}
    assert bool(shapes) == (len(balancer._copied_first) > 0)

"""InfoReg: pull and window by hand, the authors' loop beside it, and what survives scaling, saving and averaging."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import InfoReg, LateFusion, Window
from equipoise.data.bundled import two_sensors
from equipoise.testing import SmallModel, attached, batch, gradients_of, losses_of, names
from equipoise.training.settings import Settings
from equipoise.training.train import Run, train
from everything import assert_same, batches, part


def pulled(balancer: InfoReg, model: SmallModel, scores: dict[str, float]) -> dict[str, float]:
    """The pull on each encoder: its gradient at a distance of one from the start, beside that without any pull."""
    data, found = batch(list(model.encoders)), {}
    plain = copy.deepcopy(model)
    torch.stack([loss.mean() for loss in losses_of(plain, data).values()]).sum().backward()
    model.zero_grad()
    balancer(losses_of(model, data), scores={name: torch.tensor(score) for name, score in scores.items()}).backward()
    for name in scores:
        difference = gradients_of(model)[f"encoders.{name}.0.bias"] - gradients_of(plain)[f"encoders.{name}.0.bias"]
        assert float(difference.std()) == pytest.approx(0.0, abs=1e-6)
        found[name] = float(difference.mean())
    return found


def moved(model: SmallModel) -> None:
    with torch.no_grad():
        for parameter in model.encoders.parameters():
            parameter += 1.0


def test_pull_by_hand() -> None:
    model = SmallModel(names(2))
    balancer = attached(InfoReg(strength=0.5, sharpness=10.0), model)
    assert isinstance(balancer, InfoReg)
    assert pulled(balancer, model, {"audio": 0.6, "video": 0.4}) == {"audio": 0.0, "video": 0.0}  # nobody has moved
    moved(model)
    found = pulled(balancer, model, {"audio": 0.6, "video": 0.4})
    assert found == {"audio": pytest.approx(0.5 * math.exp(math.tanh(2.0)), rel=1e-5), "video": 0.0}
    found = pulled(balancer, model, {"audio": 0.4, "video": 0.45})
    assert found == {"audio": 0.0, "video": pytest.approx(0.5 * math.exp(math.tanh(0.5)), rel=1e-5)}
    assert pulled(balancer, model, {"audio": 0.4, "video": 0.4}) == {"audio": 0.0, "video": 0.0}
    balancer.end_epoch()
    assert pulled(balancer, model, {"audio": 0.6, "video": 0.4}) == {"audio": 0.0, "video": 0.0}  # a new start


def test_of_three_each_is_compared_with_the_mean_of_the_others() -> None:
    model = SmallModel(names(3))
    balancer = InfoReg(strengths={"audio": 1.0, "video": 2.0, "text": 3.0}, sharpness=1.0)
    attached(balancer, model)
    pulled(balancer, model, {"audio": 0.2, "video": 0.5, "text": 0.4})
    moved(model)
    found = pulled(balancer, model, {"audio": 0.2, "video": 0.5, "text": 0.4})
    video, text = 2 * math.exp(math.tanh(0.5 - 0.3)), 3 * math.exp(math.tanh(0.4 - 0.35))
    assert found == {"audio": 0.0, "video": pytest.approx(video, rel=1e-5), "text": pytest.approx(text, rel=1e-5)}


def test_the_value_holds_the_distance() -> None:
    model = SmallModel(names(2))
    balancer = attached(InfoReg(strength=0.5, sharpness=10.0), model)
    scores = {"audio": torch.tensor(0.6), "video": torch.tensor(0.4)}
    balancer(losses_of(model, batch(names(2))), scores=scores)
    moved(model)
    losses = losses_of(model, batch(names(2)))
    size = sum(parameter.numel() for parameter in model.encoders["audio"].parameters())
    expected = sum(float(loss.detach().mean()) for loss in losses.values()) + 0.25 * math.exp(math.tanh(2.0)) * size
    assert float(balancer(losses, scores=scores).detach()) == pytest.approx(expected, rel=1e-6)


def test_window_by_hand() -> None:
    """Traces 1, 2, 3, 3, 2, 8 over two epochs have the means ½, 1.5, 2.5, 3, 2.5, 5."""
    model = SmallModel(names(1))
    weights = [tensor for tensor in model.encoders["audio"].parameters() if tensor.dim() > 1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    balancer = InfoReg(memory=2, threshold=0.45).attach(model, optimizer=optimizer)
    balancer.on_host("open")  # as a step asks: then a recorded step is recorded anew where windows open or close
    found = []
    for trace in (1, 2, 3, 3, 2, 8):
        for _ in range(2):  # half of it in each of two steps, half of that in each of two weights
            for tensor in weights:
                tensor.grad = torch.full_like(tensor, math.sqrt(trace / 4))
            optimizer.step()
        balancer.end_epoch()
        assert balancer.host_values() == {"open": tuple(balancer.open.tolist())}
        found.append(bool(balancer.open))
    # growth: 1, (1.5 − 0.5)/1.5 = 0.67, 1/2.5 = 0.4, 0.5/3, −0.5/2.5, 2.5/5 = 0.5
    assert found == [True, True, False, False, False, True]


def test_biases_and_scales_are_not_counted() -> None:
    model = SmallModel(names(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    balancer = InfoReg().attach(model, optimizer=optimizer)
    for tensor in model.encoders["audio"].parameters():
        tensor.grad = torch.ones_like(tensor)
    optimizer.step()
    assert balancer.trace.tolist() == [2.0]  # of six tensors two are matrices


def authors_loop(model: LateFusion, data: list[list[Any]], beta: dict[str, float]) -> list[list[float]]:
    """Two modalities, one epoch after the other, as the authors' code does it, but with a window each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    lists: dict[str, list[float]] = {name: [0.0] * 10 for name in names(2)}
    growths = []
    for number, epoch in enumerate(data):
        start, fisher, growth = copy.deepcopy(model), {name: {} for name in names(2)}, {}
        for name, traces in lists.items():
            now, before = sum(traces[-10:]) / 10, sum(traces[-11:-1]) / 10
            growth[name] = 1.0 if number == 0 else (now - before) / now
        growths.append(list(growth.values()))
        for inputs, label in epoch:
            optimizer.zero_grad()
            outputs = model(inputs)
            for output in outputs.values():
                F.cross_entropy(output, label).backward(retain_graph=True)
            score = {name: sum(outputs[name].softmax(1)[i][label[i]] for i in range(len(label))) for name in names(2)}
            ahead, behind = ("audio", "video") if score["audio"] > score["video"] else ("video", "audio")
            if growth[ahead] > 0.05:
                strength = beta[ahead] * torch.exp(torch.tanh(score[ahead] - score[behind])).detach()
                pairs = zip(model.encoders[ahead].parameters(), start.encoders[ahead].parameters(), strict=True)
                for parameter, old in pairs:
                    parameter.grad += strength * (parameter.detach() - old.detach())
            for name in names(2):
                for key, module in model.encoders[name].named_modules():
                    if isinstance(module, nn.Linear):
                        square = module.weight.grad * module.weight.grad
                        fisher[name][key] = fisher[name].get(key, 0) + square
            optimizer.step()
        for name in names(2):
            lists[name].append(sum(float(square.mean()) for square in fisher[name].values()))
    return growths


def test_against_the_authors_loop() -> None:
    torch.manual_seed(0)
    encoders = {name: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)) for name in names(2)}
    model = LateFusion(encoders, 3, unimodal="split").double()
    twin = copy.deepcopy(model)
    data = [batches(names(2), 3, size=16) for _ in range(18)]
    beta = {"audio": 0.95, "video": 0.1}
    growths = authors_loop(twin, data, beta)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    balancer = InfoReg(strengths=beta, sharpness=16.0).attach(model, optimizer=optimizer)
    for epoch, growth in zip(data, growths, strict=True):
        assert balancer.open.tolist() == [float(one > 0.05) for one in growth]
        for one in epoch:
            optimizer.zero_grad()
            balancer(losses_of(model, one)).backward()
            optimizer.step()
        balancer.end_epoch()
    assert_same(model.state_dict(), dict(twin.state_dict()), atol=1e-6)
    assert {min(growth) > 0.05 for growth in growths} == {True, False}  # some windows closed


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_loss_leaves_pull_and_traces_alone(fused: bool) -> None:
    found: list[tuple[dict[str, Tensor], list[float]]] = []
    for scale in (1.0, 1024.0):
        model = SmallModel(names(2)).float()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        balancer = InfoReg(strength=0.5).attach(model, optimizer=optimizer)
        for step in range(3):
            inputs, label = batch(names(2), seed=step)
            data = {name: values.float() for name, values in inputs.items()}, label
            scaler.scale(balancer(losses_of(model, data))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        found.append((gradients_of(model) | dict(model.named_parameters()), balancer.trace.tolist()))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-6)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-4)
    assert min(found[0][1]) > 0


def test_a_step_that_a_fused_optimiser_skips_adds_no_trace() -> None:
    model = SmallModel(names(2)).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    balancer = InfoReg().attach(model, optimizer=optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    inputs, label = batch(names(2))
    losses = losses_of(model, ({name: values.float() for name, values in inputs.items()}, label), 1e4)
    scaler.scale(balancer(losses)).backward()
    scaler.step(optimizer)
    assert balancer.trace.tolist() == [0.0, 0.0]


def test_a_window_of_micro_batches_is_pulled_once() -> None:
    found = []
    for pieces in (1, 3):
        model = SmallModel(names(2))
        balancer = attached(InfoReg(), model)
        balancer(losses_of(model, batch(names(2))))
        moved(model)
        micro = [part(batch(names(2)), start, start + 12 // pieces) for start in range(0, 12, 12 // pieces)]
        with torch.no_grad():
            ahead = [losses_of(model, one) for one in micro]
        with Window(balancer).open(ahead):
            for one in micro:
                (balancer(losses_of(model, one)) / pieces).backward()
        found.append(gradients_of(model))
    assert_same(found[1], found[0], atol=1e-9)


def test_second_derivatives_of_the_distance_are_refused() -> None:
    model = SmallModel(names(2))
    loss = attached(InfoReg(), model)(losses_of(model, batch(names(2))))
    with pytest.raises(RuntimeError, match=r"create_graph=True|differentiate twice"):
        differentiated_twice(loss, list(model.parameters()))


def differentiated_twice(loss: Tensor, parameters: list[nn.Parameter]) -> None:
    first = torch.autograd.grad(loss, parameters, create_graph=True)
    torch.stack([each.square().sum() for each in first]).sum().backward()


def test_a_layer_that_is_frozen_later_is_pulled_no_more_and_the_others_as_before() -> None:
    scores = {"audio": torch.tensor(0.9), "video": torch.tensor(0.1)}
    values = []
    for frozen in (False, True):
        model = SmallModel(names(2))
        balancer = attached(InfoReg(), model)
        balancer(losses_of(model, batch(names(2))), scores=scores)
        balancer.end_epoch()
        for encoder in model.encoders.values() if frozen else ():
            encoder.get_submodule("0").requires_grad_(False)
        with torch.no_grad():
            for encoder in model.encoders.values():
                encoder.get_parameter("2.weight").add_(1.0)
        values.append(float(balancer(losses_of(model, batch(names(2))), scores=scores).detach()))
    assert values[1] == pytest.approx(values[0])


def test_without_an_optimiser_it_says_that_the_window_stays_open() -> None:
    with pytest.warns(UserWarning, match=r"its window never closes; type balancer\.attach\(…, optimizer=optimizer\)"):
        balancer = InfoReg().attach(SmallModel(names(2)))
    for _ in range(3):
        balancer.end_epoch()
    assert balancer.open.tolist() == [1.0, 1.0]


def test_another_model_has_another_start_and_the_same_one_keeps_it() -> None:
    first, second = SmallModel(names(2)), SmallModel(names(2), seed=1)
    balancer = attached(InfoReg(), first)
    balancer(losses_of(first, batch(names(2))))
    moved(first)
    attached(balancer, first)  # again, as after compiling
    with torch.no_grad():
        sums = [sum(float(x.mean()) for x in losses_of(one, batch(names(2))).values()) for one in (first, second)]
    assert float(balancer(losses_of(first, batch(names(2)))).detach()) > sums[0] + 1
    attached(balancer, second)
    assert float(balancer(losses_of(second, batch(names(2)))).detach()) == pytest.approx(sums[1])


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_training_starts_each_epoch_where_it_is_and_resumes_to_the_same_bits(average: float, tmp_path: Path) -> None:
    splits = two_sensors(samples=90)
    settings = Settings(epochs=4, batch=20, lr=0.05, features=8, average=average)
    whole = train(splits, InfoReg(memory=2), settings)

    def stop(record: dict[str, object]) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(splits, InfoReg(memory=2), settings, folder=tmp_path, on_epoch=stop, checkpoint_seconds=0)
    resumed = train(splits, InfoReg(memory=2), settings, folder=tmp_path)
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name]), name

    balancer = InfoReg()
    run = Run(splits, balancer, settings)
    run.validate(run.train_epoch())
    for name in balancer.modalities:
        now = balancer.tensors_of(name, "parameters")
        assert now
        for anchor, parameter in zip(balancer.copied("anchor", name), now, strict=True):
            assert torch.equal(anchor, parameter)

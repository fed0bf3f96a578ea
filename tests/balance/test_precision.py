"""Half precision: gradients stay close to single precision, and a step that a GradScaler skips leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise import MIMO, Balancer, Trajectory
from equipoise.testing import SmallModel, balanced, batch, gradients_of, losses_of, names
from everything import METHODS, SHAPES, assert_same, parameters_of, taught

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}
OVERFLOWS, FITS = 2.0**60, 2.0**10


def single(count: int, seed: int = 0) -> SmallModel:
    return SmallModel(names(count), seed=seed).float()


def half_losses(model: nn.Module, dtype: torch.dtype | None, seed: int = 0) -> dict[str, Tensor]:
    """Losses of a batch in which video is clearly behind, so that rounding decides no maximum."""
    inputs, label = batch(list(model.encoders), 24, seed)  # ty: ignore[invalid-argument-type]
    data = ({name: values.float() for name, values in inputs.items()}, label)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        losses = losses_of(model, data)
    return losses | {name: 1.3 * losses[name] for name in ("video",) if name in losses}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", SHAPES)
def test_autocast_gives_nearly_the_same_gradient(method: str, count: int, dtype: torch.dtype) -> None:
    found = []
    for precision in (None, dtype):
        model = single(count)
        balancer = METHODS[method]().attach(model, optimizer=OPTIMIZERS["sgd"](model))
        taught(balancer, names(count))
        scale = FITS if precision == torch.float16 else 1.0
        (scale * balanced(balancer, half_losses(model, precision))).backward()
        found.append(gradients_of(model))
    for block in (*(f"encoders.{name}." for name in names(count)), "heads.", "fused."):
        exact, half = (
            torch.cat([gradient.flatten() for name, gradient in one.items() if name.startswith(block)]) for one in found
        )
        assert bool(half.isfinite().all())
        assert all(gradient.dtype == torch.float32 for gradient in found[1].values())
        if bool(exact.any()):
            assert float(F.cosine_similarity(exact, half, dim=0)) > 0.99
        else:
            assert not bool(half.any())


def scaled_step(balancer: Balancer, model: nn.Module, optimizer: Any, scaler: torch.amp.GradScaler, seed: int) -> None:
    optimizer.zero_grad()
    scaler.scale(balanced(balancer, half_losses(model, torch.float16, seed))).backward()
    scaler.step(optimizer)
    scaler.update()


def scaled_run(method: str, optimizer_name: str, *, overflow: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model = single(2)
    optimizer = OPTIMIZERS[optimizer_name](model)
    balancer = taught(METHODS[method]().attach(model, optimizer=optimizer), names(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=FITS, backoff_factor=FITS / OVERFLOWS, growth_interval=10**6)
    for seed in range(3):
        if overflow and seed == 1:
            before, state = parameters_of(model), {name: tensor.clone() for name, tensor in balancer.named_buffers()}
            scaler.update(OVERFLOWS)
            scaled_step(balancer, model, optimizer, scaler, seed=99)
            assert_same(parameters_of(model), before)
            assert_same(dict(balancer.named_buffers()), state)
            assert scaler.get_scale() == FITS
        before = parameters_of(model)
        scaled_step(balancer, model, optimizer, scaler, seed)
        after = parameters_of(model)
        assert all(bool(tensor.isfinite().all()) for tensor in after.values())
        assert any(not torch.equal(after[name], tensor) for name, tensor in before.items())
    return parameters_of(model), {name: tensor.clone() for name, tensor in balancer.named_buffers()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", SHAPES)
def test_a_skipped_step_leaves_no_trace(method: str, optimizer: str) -> None:
    parameters, state = scaled_run(method, optimizer, overflow=True)
    expected, expected_state = scaled_run(method, optimizer, overflow=False)
    assert_same(state, expected_state)
    if method != "ogmge":  # the skipped step has used up its noise
        assert_same(parameters, expected)


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_does_not_move_along_the_trajectory(fused: bool) -> None:
    trajectory = Trajectory(smooth=1)
    for step in range(9):
        trajectory.record({name: torch.tensor(1.0 / (1 + step)) for name in names(2)})
    model = single(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    balancer = MIMO(optimum=trajectory).attach(model, optimizer=optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=OVERFLOWS, backoff_factor=FITS / OVERFLOWS)
    for seed, taken in enumerate([0, 1, 2]):
        scaled_step(balancer, model, optimizer, scaler, seed)
        assert int(balancer.step) == taken


@pytest.mark.parametrize("method", SHAPES)
def test_state_stays_in_single_precision_when_the_model_does_not(method: str) -> None:
    model = single(2).bfloat16()
    balancer = METHODS[method]().attach(model, optimizer=OPTIMIZERS["sgd"](model))
    taught(balancer.bfloat16(), names(2))
    inputs, label = batch(names(2))
    data = ({name: values.bfloat16() for name, values in inputs.items()}, label)
    balanced(balancer, losses_of(model, data)).backward()
    for name, tensor in balancer.bfloat16().named_buffers():
        copied, kinds = "%" in name, {torch.uint8} if name == "modality_names" else {torch.float32, torch.int64}
        assert tensor.dtype in ({torch.bfloat16} if copied else kinds), name  # a copy of an encoder is as it is
    gradients = gradients_of(model)
    assert all(gradient.dtype == torch.bfloat16 for gradient in gradients.values())
    assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())
    assert any(bool(gradient.any()) for gradient in gradients.values())

"""Directions and planes through the weights of a model, and many points of them at once."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.data.splits import Part
from equipoise.models import LateFusion
from equipoise.models.choose import build_encoders
from equipoise.paper import landscape_plane
from equipoise.paper.landscape_plane import Plane, batches_well, filter_normalised, values_at

PLACES = torch.tensor([[0.0, 0.0], [0.7, -0.3], [-1.0, 1.0], [0.2, 0.9], [1.3, 0.1]])


def used(encoder: str, shape: tuple[int, ...], seed: int = 0, view: Any = "split") -> LateFusion:
    """A model whose batch norm has seen something."""
    torch.manual_seed(seed)
    shapes = {"one": shape, "two": (4,)}
    model = LateFusion(build_encoders(f"one:{encoder}", shapes, 8), 3, fusion="sum", unimodal=view)
    model({name: 2 * torch.randn(16, *size) + 1 for name, size in shapes.items()})
    return model.eval()


def samples(shape: tuple[int, ...], count: int = 11, *, ragged: bool = False) -> Part:
    torch.manual_seed(5)
    inputs = {"one": torch.randn(count, *shape), "two": torch.randn(count, 4)}
    if ragged:
        inputs["one_length"] = torch.randint(1, shape[-1] + 1, (count,))
    return Part(inputs, torch.arange(count) % 3)


def by_hand(model: LateFusion, plane: Plane, place: Tensor, part: Part) -> dict[str, Tensor]:
    """The outputs at a place, by putting its weights into a copy of the model."""
    moved = {name: values[0] for name, values in plane.at(place[None]).items()}
    there = copy.deepcopy(model)
    there.load_state_dict({**plane.start, **moved})
    with torch.no_grad():
        return there(part.inputs)


# -- directions and planes --


def test_every_filter_moves_by_its_own_length_and_vectors_stay() -> None:
    model = used("cnn1d", (2, 8))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    direction = filter_normalised(weights, torch.Generator().manual_seed(1))
    assert set(direction) == {name for name, weight in weights.items() if weight.dim() > 1}
    for name, moved in direction.items():
        torch.testing.assert_close(moved.flatten(1).norm(dim=1), weights[name].flatten(1).norm(dim=1))


def test_a_filter_of_zeros_stays_zero() -> None:
    weight = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    direction = filter_normalised({"weight": weight}, torch.Generator().manual_seed(0))["weight"]
    assert direction[0].tolist() == [0.0, 0.0]
    assert float(direction[1].norm()) == pytest.approx(5.0)


def test_both_models_move_along_the_same_draw() -> None:
    one, other = (Plane.around(used("cnn1d", (2, 8), seed=seed), seed=3) for seed in (0, 1))
    for name in one.right:
        for ours, theirs in ((one.right, other.right), (one.up, other.up)):
            likeness = F.cosine_similarity(ours[name].flatten(1), theirs[name].flatten(1))
            torch.testing.assert_close(likeness, torch.ones_like(likeness))
    assert any(not torch.equal(one.right[name], other.right[name]) for name in one.right), "lengths are their own"


def test_the_plane_through_both_has_both_and_is_orthogonal() -> None:
    one, other = used("cnn1d", (2, 8), seed=0), used("cnn1d", (2, 8), seed=1)
    plane = Plane.through(one, other, seed=0)
    ends = plane.at(torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.5, 0.0]]))
    for number, model in ((0, one), (1, other)):
        for name, value in model.state_dict().items():
            if name in ends:
                torch.testing.assert_close(ends[name][number], value)
    inner = sum(float((plane.right[name] * plane.up[name]).sum()) for name in plane.up)
    length = sum(float(plane.right[name].square().sum()) for name in plane.up) ** 0.5
    assert abs(inner) / length < 1e-4
    statistics = [name for name in ends if "running" in name]
    assert statistics
    for name in statistics:
        torch.testing.assert_close(ends[name][2], ends[name][1], msg="beyond a solution its statistics stay")


# -- many places at once --


@pytest.mark.parametrize(
    ("encoder", "shape", "ragged", "batched"),
    [
        ("mlp", (6,), False, True),
        ("cnn1d", (2, 8), True, False),
        ("cnn2d", (1, 6, 6), False, False),
        ("frames", (1, 2, 6, 6), False, False),
        ("pooled-map", (4, 3, 3), False, True),
    ],
)
def test_batched_is_one_by_one(
    encoder: str, shape: tuple[int, ...], ragged: bool, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other, part = used(encoder, shape), used(encoder, shape, seed=1), samples(shape, ragged=ragged)
    assert batches_well(model, torch.device("cpu")) == batched
    for plane in (Plane.around(model, 0), Plane.through(model, other, 0)):
        outputs = [by_hand(model, plane, place, part) for place in PLACES]
        loss = torch.stack([F.cross_entropy(each["fused"], part.label) for each in outputs])
        for together in (True, False):
            monkeypatch.setattr(landscape_plane, "batches_well", lambda *_, together=together: together)
            found = values_at(model, plane, PLACES, part)
            torch.testing.assert_close(found.loss.float(), loss, atol=1e-5, rtol=1e-5)
            for name, column in found.accuracy.items():
                right = [float((each[name].argmax(dim=1) == part.label).double().mean()) for each in outputs]
                assert column.tolist() == pytest.approx(right)


@pytest.mark.parametrize("encoder", ["lstm-attention", "attention", "first-step"])
def test_what_cannot_be_batched_goes_one_by_one(encoder: str) -> None:
    torch.manual_seed(0)
    model = LateFusion({"one": build_encoders(encoder, {"one": (5, 6)}, 64)["one"]}, 3, fusion="sum", unimodal="split")
    part = Part({"one": torch.randn(5, 5, 6)}, torch.arange(5) % 3)
    model.eval()
    plane = Plane.around(model, 0)
    found = values_at(model, plane, PLACES[:2], part)
    loss = [float(F.cross_entropy(by_hand(model, plane, place, part)["fused"], part.label)) for place in PLACES[:2]]
    assert found.loss.tolist() == pytest.approx(loss, abs=1e-5)


def test_little_memory_gives_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    model, part = used("mlp", (6,)), samples((6,), count=23)
    plane = Plane.around(model, 0)
    roomy = values_at(model, plane, PLACES, part)
    sizes: list[int] = []
    monkeypatch.setattr(landscape_plane, "MEMORY", 5_000)
    tight = values_at(model, plane, PLACES, part, tell=sizes.append)
    torch.testing.assert_close(tight.loss, roomy.loss, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tight.error, roomy.error, atol=1e-6, rtol=1e-6)
    assert len(sizes) > 1
    assert sum(sizes) == len(PLACES)


def test_the_standard_error_is_that_of_a_mean() -> None:
    model, part = used("mlp", (6,)), samples((6,))
    with torch.no_grad():
        losses = F.cross_entropy(model(part.inputs)["fused"], part.label, reduction="none")
    found = values_at(model, Plane.around(model, 0), PLACES[:1], part)
    assert float(found.error[0]) == pytest.approx(float(losses.std() / len(losses) ** 0.5), rel=1e-4)


def test_judging_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model, part = used("cnn1d", (2, 8)), samples((2, 8))
    model.train()
    before = copy.deepcopy(model.state_dict())
    for together in (True, False):
        monkeypatch.setattr(landscape_plane, "batches_well", lambda *_, together=together: together)
        values_at(model, Plane.around(model, 0), PLACES, part)
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), f"{name}: batch norm must not learn from being looked at"


def test_heads_are_moved_where_they_are_read() -> None:
    with_heads = Plane.around(used("mlp", (6,), view="head"), 0)
    assert any(name.startswith("heads.") for name in with_heads.right)
    shares = Plane.around(used("mlp", (6,), view="split"), 0)
    assert not any(name.startswith("heads.") for name in shares.right)


def test_modules_are_what_the_model_is_made_of() -> None:
    assert not batches_well(nn.Sequential(nn.Conv1d(1, 1, 1)), torch.device("cpu"))
    assert batches_well(nn.Sequential(nn.Conv1d(1, 1, 1)), torch.device("cuda"))
    assert not batches_well(nn.LSTM(2, 2), torch.device("cuda"))

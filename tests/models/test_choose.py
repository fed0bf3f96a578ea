"""Encoders by name: for all modalities, for some, by dotted path; and everything wrong at once."""

import sys
import types

import pytest
import torch
from torch import nn

from equipoise.models import Inception, RegularisedMLP, ResNet18
from equipoise.models.choose import KINDS, build_encoders, reads_tokens

SHAPES = {"sound": (1, 20, 30), "pose": (12,), "motion": (3, 40)}


def test_the_shape_decides_where_nothing_is_said() -> None:
    found = build_encoders("auto", SHAPES, 16)
    assert [type(each).__name__ for each in found.values()] == ["SmallResNet", "RegularisedMLP", "Inception"]
    for name, encoder in found.items():
        assert encoder(torch.randn(2, *SHAPES[name])).shape == (2, 16)


def test_some_can_be_named_and_the_others_follow_their_shape() -> None:
    found = build_encoders("sound:resnet18", SHAPES, 16)
    assert isinstance(found["sound"], ResNet18)
    assert found["sound"](torch.randn(2, 1, 32, 32)).shape == (2, 512)
    assert isinstance(found["pose"], RegularisedMLP)
    assert isinstance(found["motion"], Inception)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("mlp", (7,)),
        ("cnn1d", (2, 30)),
        ("regularised-mlp", (7,)),
        ("inception", (2, 30)),
        ("log-mel", (1, 500)),
        ("cnn2d", (3, 20, 20)),
        ("small-resnet", (3, 20, 20)),
        ("video", (3, 4, 20, 20)),
        ("frames", (3, 4, 20, 20)),
        ("resnet18", (1, 33, 33)),
        ("lenet", (1, 28, 28)),
        ("lenet", (1, 112, 112)),
        ("first-step", (12, 9)),
        ("lstm-attention", (12, 9)),
        ("attention", (12, 9)),
        ("words", (9,)),
        ("pooled-map", (12, 4, 4)),
    ],
)
def test_every_kind_reads_its_shape(kind: str, shape: tuple[int, ...]) -> None:
    encoder = build_encoders(kind, {"one": shape}, 12)["one"].eval()
    found = encoder(torch.randn(3, *shape).abs())
    assert found.shape == (3, encoder.features)
    assert kind in KINDS


class Own(nn.Module):
    def __init__(self, shape: tuple[int, ...], features: int, spare: int = 3) -> None:
        super().__init__()
        self.features, self.spare = features, spare
        self.layer = nn.Linear(shape[0], features)


def test_a_dotted_path_is_called_with_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("somebodys_module")
    module.Own = Own  # ty: ignore[missing-attribute]
    module.plain = lambda: nn.Linear(12, 5)  # ty: ignore[missing-attribute]
    module.number = lambda: 3  # ty: ignore[missing-attribute]
    monkeypatch.setitem(sys.modules, "somebodys_module", module)
    found = build_encoders("pose:somebodys_module.Own", {"pose": (12,)}, 9)["pose"]
    assert isinstance(found, Own)
    assert (found.layer.in_features, found.layer.out_features, found.spare) == (12, 9, 3)
    assert isinstance(build_encoders("somebodys_module.plain", {"pose": (12,)}, 9)["pose"], nn.Linear)
    with pytest.raises(ValueError, match=r"expected an nn\.Module, found int"):
        build_encoders("somebodys_module.number", {"pose": (12,)}, 9)


@pytest.mark.parametrize("kind", [OSError, RuntimeError, KeyError, AssertionError])
def test_whatever_keeps_an_encoder_from_being_made_is_told_of_it(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlucky() -> nn.Module:
        raise kind("no weights found")

    module = types.ModuleType("somebodys_module")
    module.unlucky = unlucky  # ty: ignore[missing-attribute]
    monkeypatch.setitem(sys.modules, "somebodys_module", module)
    with pytest.raises(ValueError, match=r"encoder of 'pose', 'somebodys_module\.unlucky', .*no weights found"):
        build_encoders("somebodys_module.unlucky", {"pose": (12,)}, 9)
    assert not reads_tokens("somebodys_module.unlucky", (12,), 9)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="encoder") as found:
        build_encoders("sond:cnn2d,pose:rensnet18,motion:no.such.module,mlp", SHAPES, 16)
    for part in ("sound", "resnet18", "No module named 'no'", "'mlp' among several"):
        assert part in str(found.value)


AUTOMATIC = {
    "regularised-mlp": (7,),
    "inception": (2, 30),
    "log-mel": (1, 900),
    "small-resnet": (1, 20, 20),
    "video": (1, 5, 20, 20),
}


@pytest.mark.parametrize(("kind", "shape"), AUTOMATIC.items())
def test_a_seed_leads_to_the_same_weights_and_draws(kind: str, shape: tuple[int, ...]) -> None:
    def outputs() -> torch.Tensor:
        torch.manual_seed(3)
        encoder = KINDS[kind](shape, 16)
        return encoder(torch.randn(4, *shape))

    assert torch.equal(outputs(), outputs())


@pytest.mark.parametrize(("kind", "shape"), AUTOMATIC.items())
def test_training_in_bfloat16_is_one_graph_with_finite_gradients(kind: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    encoder = KINDS[kind](shape, 16)
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = compiled(torch.randn(4, *shape))
    outputs.float().square().mean().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in encoder.parameters())
    inputs = torch.randn(4, *shape)
    plain = encoder.eval()(inputs).detach()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(encoder(inputs).float(), plain, rtol=0.1, atol=0.02)


@pytest.mark.parametrize(("kind", "shape"), AUTOMATIC.items())
def test_a_single_sample_of_zeros_is_read_in_training(kind: str, shape: tuple[int, ...]) -> None:
    assert KINDS[kind](shape, 16)(torch.zeros(1, *shape)).isfinite().all()

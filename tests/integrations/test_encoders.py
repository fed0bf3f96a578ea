"""Backbones as encoders: transformers with random weights, timm and torchvision where they import."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise import MGDA, MIMO, LateFusion, layerwise
from equipoise.data import Splits
from equipoise.models.choose import build_encoders
from equipoise.models.encoders import features_of
from equipoise.training.settings import Settings

pytestmark = pytest.mark.slow  # it imports transformers

TEXT, IMAGE = "equipoise.integrations.transformers.Text", "equipoise.integrations.transformers.image"


@pytest.fixture(autouse=True)
def one_seed() -> None:
    torch.manual_seed(0)


def pair() -> dict[str, nn.Module]:
    return build_encoders(f"text:{TEXT},sight:{IMAGE}", {"text": (6,), "sight": (1, 8, 8)}, 32)


def inputs(count: int = 4) -> dict[str, Tensor]:
    return {"text": torch.randint(1, 50, (count, 6)), "sight": torch.randn(count, 1, 8, 8)}


# -- transformers --


def test_a_dotted_path_makes_encoders_of_the_size_asked_for() -> None:
    for name, encoder in pair().items():
        assert features_of(encoder) == 32
        assert encoder(inputs()[name]).shape == (4, 32)


def test_every_parameter_learns_and_is_in_a_layer() -> None:
    model = LateFusion(pair(), classes=3)
    outputs = model(inputs())
    MGDA().attach(model)({name: logits.square().mean() for name, logits in outputs.items()}).backward()
    assert [name for name, tensor in model.named_parameters() if tensor.grad is None] == []
    rates = {id(tensor): group["lr"] for group in layerwise(model, 1.0, 0.5) for tensor in group["params"]}
    named = {name: rates[id(tensor)] for name, tensor in model.named_parameters()}
    assert named["encoders.text.model.embeddings.word_embeddings.weight"] == 0.5**3
    assert named["encoders.text.model.encoder.layer.0.output.dense.weight"] == 0.5**2
    assert named["encoders.text.model.encoder.layer.1.output.dense.weight"] == 0.5
    assert set(named.values()) == {1.0, 0.5, 0.25, 0.125}


def test_what_lies_behind_the_end_of_a_text_changes_nothing() -> None:
    encoder = pair()["text"].eval()
    tokens, lengths = torch.randint(1, 50, (5, 6)), torch.tensor([6, 3, 1, 4, 0])
    changed = torch.where(torch.arange(6) < lengths[:, None], tokens, torch.randint(1, 50, (5, 6)))
    found = encoder(tokens, lengths=lengths)
    torch.testing.assert_close(encoder(changed, lengths=lengths)[:4], found[:4])
    for row in range(4):
        alone = encoder(tokens[row : row + 1, : lengths[row]])
        torch.testing.assert_close(alone[0], found[row], rtol=1e-4, atol=1e-5)
    assert found.isfinite().all()


def test_no_text_is_so_empty_that_attention_has_nothing_to_look_at() -> None:
    encoder, masks = pair()["text"].eval(), []
    model = encoder.get_submodule("model")
    model.register_forward_pre_hook(lambda *given: masks.append(given[2]["attention_mask"]), with_kwargs=True)
    encoder(torch.zeros(2, 6))
    encoder(torch.ones(2, 6), lengths=torch.tensor([0, 3]))
    assert [mask.sum(dim=1).tolist() for mask in masks] == [[1, 1], [1, 3]]


def test_without_lengths_the_padding_at_the_end_is_none() -> None:
    encoder = pair()["text"].eval()
    padded = torch.tensor([[5, 8, 0, 2, 0, 0]])  # a zero between tokens is one of them
    torch.testing.assert_close(encoder(padded), encoder(padded, lengths=torch.tensor([4])))
    assert not torch.allclose(encoder(padded), encoder(padded, lengths=torch.tensor([2])), atol=1e-4)


def test_the_first_token_or_the_mean() -> None:
    from equipoise.integrations.transformers import Text

    mean = Text(features=16).eval()
    first = Text(mean.model, pooling="first").eval()
    tokens = torch.randint(1, 50, (3, 6))
    steps = mean.model(input_ids=tokens)[0]
    torch.testing.assert_close(mean(tokens), steps.mean(dim=1))
    torch.testing.assert_close(first(tokens), steps[:, 0])
    with pytest.raises(ValueError, match="'mean' or 'first'; found 'last'"):
        Text(pooling="last")  # ty: ignore[invalid-argument-type]
    with pytest.raises(ValueError, match=r"token numbers \[B, T\]; found \[3, 6, 2\]"):
        mean(torch.zeros(3, 6, 2))


def test_a_folder_with_weights_is_loaded(tmp_path: Path) -> None:
    from equipoise.integrations.transformers import Text

    kept = Text(features=16).eval()
    kept.model.save_pretrained(tmp_path)
    tokens = torch.randint(1, 50, (3, 6))
    torch.testing.assert_close(Text(str(tmp_path)).eval()(tokens), kept(tokens))


def test_a_convolutional_model_by_its_configuration_and_video_frame_by_frame() -> None:
    from transformers import ResNetConfig

    from equipoise.integrations.transformers import image

    small = ResNetConfig(num_channels=1, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    encoder = image(model=small).eval()
    video = torch.randn(3, 1, 4, 16, 16)
    assert features_of(encoder) == 16
    frames = torch.stack([encoder(video[:, :, step]) for step in range(4)])
    torch.testing.assert_close(encoder(video), frames.mean(dim=0))
    torch.testing.assert_close(encoder(video, lengths=torch.tensor([1, 1, 1])), frames[0])


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"encoder of 'sight'.*expected images \(C, H, W\).*found \(5,\)"):
        build_encoders(IMAGE, {"sight": (5,)}, 32)
    from equipoise.integrations.transformers import image

    with pytest.raises(ValueError, match="expected the shape of one input, or a model"):
        image()


@pytest.mark.usefixtures("accelerate_state")
def test_the_loop_of_the_command_trains_them() -> None:
    from equipoise.training.train import train

    random = np.random.default_rng(0)
    label = np.arange(60) % 3
    arrays = {
        "text": 10 * label[:, None] + random.integers(1, 10, (60, 6)),
        "sight": random.normal(size=(60, 1, 8, 8)).astype(np.float32),
    }
    # Token numbers are numbers of something, and stay what they are.
    splits = Splits.from_arrays(arrays, label, split=np.arange(60) // 3 % 3, standardise=False)
    chosen = Settings(epochs=6, batch=10, lr=3e-3, optimizer="adamw", encoder=f"text:{TEXT},sight:{IMAGE}", features=16)
    result = train(splits, MIMO(), chosen.changed({"device": "cpu"}), seed=0)
    assert result.curves[-1]["validation"]["text"] > 0.6


# -- timm and torchvision --


def library(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"equipoise.integrations.{name}")
    except (ImportError, RuntimeError) as found:  # torchvision built for another torch says so by RuntimeError
        pytest.skip(f"{name} does not import here: {found}")


@pytest.mark.parametrize("name", ["timm", "torchvision"])
def test_a_model_by_its_name_for_any_number_of_channels(name: str) -> None:
    make: Any = library(name).image
    for channels in (1, 3, 4):
        encoder = make((channels, 64, 64))
        assert features_of(encoder) == 512
        assert encoder(torch.randn(2, channels, 64, 64)).shape == (2, 512)
    assert make((1, 3, 64, 64))(torch.randn(2, 1, 3, 64, 64)).shape == (2, 512)


@pytest.mark.parametrize(("name", "model"), [("timm", "vit_tiny_patch16_224"), ("torchvision", "efficientnet_b0")])
def test_another_model(name: str, model: str) -> None:
    encoder: nn.Module = library(name).image(name=model)
    assert encoder(torch.randn(1, 3, 224, 224)).shape == (1, features_of(encoder))

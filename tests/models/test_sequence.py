"""The encoders of the papers for sequences: what padding may change (nothing), sizes, and what they are made of."""

import pytest
import torch
from torch import Tensor, nn

from equipoise.models.encoders import MLP
from equipoise.models.late_fusion import LateFusion
from equipoise.models.sequence import AttentionPooled, FirstStepTransformer, PooledMap, Tokens

SMALL = {"layers": 2, "heads": 2, "feedforward": 16}


def first_step(channels: int = 3, *, masked: bool = True) -> FirstStepTransformer:
    return FirstStepTransformer(channels, features=8, masked=masked, **SMALL)


def pooled(channels: int = 3, start: str = "lstm") -> AttentionPooled:
    return AttentionPooled(channels, features=6, width=8, start=start, **SMALL)  # ty: ignore[invalid-argument-type]


def tokens() -> Tokens:
    return Tokens(20, pooled(5), width=5)


def some(encoder: nn.Module, batch: int, steps: int) -> Tensor:
    """Samples of the encoder's kind, with garbage behind every end."""
    if isinstance(encoder, Tokens):
        return torch.randint(0, 20, (batch, steps), dtype=torch.int16)
    return torch.randn(batch, 3, steps) * 10


MAKERS = {"first step": first_step, "lstm": pooled, "linear": lambda: pooled(start="linear"), "tokens": tokens}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("with_gradients", [True, False])  # torch has a fast path of its own without
def test_padding_changes_nothing(maker: str, with_gradients: bool) -> None:
    encoder = MAKERS[maker]().eval()
    samples = some(encoder, 9, 9)
    lengths = torch.arange(1, 10)
    with torch.set_grad_enabled(with_gradients):
        together = encoder(samples, lengths)
        alone = [encoder(sample[..., :length].unsqueeze(0)) for length, sample in enumerate(samples, start=1)]
        longer = torch.cat([samples, some(encoder, 9, 4)], dim=-1)
        torch.testing.assert_close(encoder(longer, lengths), together, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("maker", MAKERS)
def test_padding_gets_no_gradient_and_gives_none(maker: str) -> None:
    encoder = MAKERS[maker]()
    if isinstance(encoder, Tokens):
        samples = some(encoder, 4, 6).clamp(min=1)
        samples[:, 3:] = 19  # a word that is only said behind the ends
        samples[:, :3].clamp_(max=18)
        encoder(samples, torch.tensor([3, 3, 3, 3])).sum().backward()
        gradient = encoder.vectors.weight.grad
        assert gradient is not None
        assert (gradient[19] == 0).all()
        assert (gradient != 0).any()
        return
    samples = some(encoder, 4, 6).requires_grad_()
    encoder(samples, torch.tensor([3, 1, 6, 2])).square().sum().backward()
    assert samples.grad is not None
    for gradient, length in zip(samples.grad, (3, 1, 6, 2), strict=True):
        assert (gradient[:, length:] == 0).all()
        assert (gradient[:, :length] != 0).any()


@pytest.mark.parametrize("maker", MAKERS)
def test_lengths_beyond_the_tensor_mean_no_padding_and_zero_is_finite(maker: str) -> None:
    encoder = MAKERS[maker]().eval()
    samples = some(encoder, 2, 7)
    torch.testing.assert_close(encoder(samples, torch.tensor([7, 99])), encoder(samples))
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert encoder(samples, torch.tensor([0, 4])).isfinite().all()
    empty = encoder(samples, torch.tensor([0, 0]))
    torch.testing.assert_close(empty[0], empty[1])  # whatever lies behind the end


def test_the_published_transformer_sees_padding() -> None:
    encoder = first_step(masked=False).eval()
    sample = torch.randn(1, 3, 4)
    padded = nn.functional.pad(sample, (0, 3))
    length = torch.tensor([4])
    assert not torch.allclose(encoder(sample, length), encoder(padded, length), atol=1e-4)
    masked = first_step().eval()
    masked.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(masked(padded, length), encoder(sample), rtol=1e-4, atol=1e-5)


def test_the_first_step_is_read_and_the_others_have_no_order() -> None:
    encoder = first_step().eval()
    samples = torch.randn(3, 3, 6)
    swapped = samples[:, :, [0, 3, 1, 5, 4, 2]]
    torch.testing.assert_close(encoder(swapped), encoder(samples), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(encoder(samples.flip(2)), encoder(samples), atol=1e-3)


def test_the_papers_sizes() -> None:
    encoder = FirstStepTransformer(371)
    layer = encoder.layers.layers[0]
    assert encoder.features == 768
    assert (encoder.project.weight.shape, encoder.project.bias) == ((768, 371, 1), None)
    assert len(encoder.layers.layers) == 8
    assert (layer.self_attn.num_heads, layer.linear1.out_features, layer.dropout.p) == (4, 2048, 0.1)
    assert layer.norm_first is False
    assert encoder.layers.norm is None
    # Per layer: attention 4 · 768 · 769, the two linear maps, two norms.
    per_layer = 4 * 768 * 769 + 2048 * 769 + 768 * 2049 + 4 * 768
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 768 * 371 + 8 * per_layer
    words = AttentionPooled(300)
    assert isinstance(words.start, nn.LSTM)
    assert (words.start.input_size, words.start.hidden_size, words.features) == (300, 512, 1024)
    assert len(words.layers.layers) == 6
    assert words.layers.layers[0].linear1.out_features == 1024


def test_pooling_by_hand() -> None:
    encoder = pooled(start="linear").eval()
    samples = torch.randn(2, 3, 5)
    steps = encoder.layers(encoder.start(samples.transpose(1, 2)))
    for row, length in enumerate((5, 2)):
        own = encoder.layers(encoder.start(samples[row : row + 1, :, :length].transpose(1, 2)))[0]
        weights = torch.exp(encoder.score(own)[:, 0])
        mean = (weights[:, None] * own).sum(dim=0) / weights.sum()
        found = encoder(samples, torch.tensor([5, 2]))[row]
        torch.testing.assert_close(found, encoder.project(mean), rtol=1e-4, atol=1e-5)
    assert steps.shape == (2, 5, 8)


def test_numbers_of_any_type_are_words_and_zero_is_silent() -> None:
    encoder = tokens().eval()
    numbers = torch.randint(1, 20, (3, 6))
    expected = encoder(numbers)
    for dtype in (torch.int16, torch.int32, torch.float32):
        torch.testing.assert_close(encoder(numbers.to(dtype)), expected)
    assert (encoder.vectors.weight[0] == 0).all()
    assert encoder.features == 6
    with pytest.raises(ValueError, match=r"Tokens expected the encoder to tell its output size; ReLU does not"):
        Tokens(20, nn.ReLU())


def test_maps_are_averaged_over_the_plane() -> None:
    encoder = PooledMap(4, features=6, hidden=(5,))
    maps = torch.randn(3, 4, 7, 7)
    torch.testing.assert_close(encoder(maps), encoder.layers(maps.flatten(2).mean(dim=2)))
    assert isinstance(encoder.layers, MLP)
    paper = PooledMap()
    assert paper(torch.randn(2, 512, 7, 7)).shape == (2, 128) == (2, paper.features)


@pytest.mark.parametrize(
    ("encoder", "wrong", "message"),
    [
        (
            first_step(),
            torch.zeros(2, 4, 9),
            r"FirstStepTransformer expected \[B, C, T\] with C = 3; found \[2, 4, 9\]",
        ),
        (pooled(), torch.zeros(2, 3), r"AttentionPooled expected \[B, C, T\] with C = 3"),
        (tokens(), torch.zeros(2, 3, 4), r"Tokens expected \[B, T\]; found"),
        (PooledMap(3), torch.zeros(2, 4, 7, 7), r"PooledMap expected \[B, C, H, W\] with C = 3"),
    ],
)
def test_a_wrong_shape_is_named(encoder: nn.Module, wrong: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(wrong)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match=r"features=10, heads=4\. Write features=12 or heads=1"):
        FirstStepTransformer(3, features=10)
    with pytest.raises(ValueError, match=r"(?s)width=10, heads=4.*start to be 'lstm' or 'linear'; found 'gru'"):
        AttentionPooled(3, width=10, start="gru")  # ty: ignore[invalid-argument-type]


def test_late_fusion_gives_them_lengths() -> None:
    encoders = {"text": tokens(), "audio": pooled(start="linear"), "vision": first_step()}
    model = LateFusion(encoders, classes=2).eval()
    inputs = {
        "text": some(encoders["text"], 4, 6),
        "audio": some(encoders["audio"], 4, 9),
        "vision": some(encoders["vision"], 4, 9),
        "text_length": torch.tensor([1, 6, 3, 2]),
        "audio_length": torch.tensor([9, 2, 3, 4]),
        "vision_length": torch.tensor([4, 9, 1, 5]),
    }
    outputs = model(inputs)
    assert {name: tuple(logits.shape) for name, logits in outputs.items()} == dict.fromkeys(
        ["fused", "text", "audio", "vision"], (4, 2)
    )
    changed = {**inputs, "vision": inputs["vision"].index_fill(2, torch.tensor([6, 7, 8]), 1e3)}
    rows = [0, 2, 3]  # all but the one that is nine steps long
    torch.testing.assert_close(model(changed)["fused"][rows], outputs["fused"][rows], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(changed)["fused"][1], outputs["fused"][1])

"""The trunk beside torch's own transformer layer, and stems: the pieces of an input, its padding, and their tokens."""

import math

import pytest
import torch
from torch import nn

from equipoise.models.trunk import PIECES, TOKENS, AttentionBlock, Stem, Trunk


def layer_like(block: AttentionBlock, width: int, heads: int) -> nn.TransformerEncoderLayer:
    """Torch's layer with the weights of a block."""
    layer = nn.TransformerEncoderLayer(
        width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    pairs = {
        "self_attn.in_proj_weight": block.read.weight,
        "self_attn.in_proj_bias": block.read.bias,
        "self_attn.out_proj.weight": block.write.weight,
        "self_attn.out_proj.bias": block.write.bias,
        "norm1.weight": block.before.weight,
        "norm1.bias": block.before.bias,
        "norm2.weight": block.between.weight,
        "norm2.bias": block.between.bias,
        **{f"linear{number}.{key}": value for number in (1, 2) for key, value in _linear(block, number).items()},
    }
    layer.load_state_dict({name: value.detach() for name, value in pairs.items()})
    return layer


def _linear(block: AttentionBlock, number: int) -> dict[str, torch.Tensor]:
    linear = block.perceptron[2 * (number - 1)]
    assert isinstance(linear, nn.Linear)
    return {"weight": linear.weight, "bias": linear.bias}


def stirred(module: nn.Module) -> nn.Module:
    """A module none of whose parameters is still zero or one."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


# -- attention --


@pytest.mark.parametrize(("width", "heads"), [(8, 4), (6, 2), (3, 1)])
def test_a_block_is_torchs_pre_norm_layer(width: int, heads: int) -> None:
    torch.manual_seed(width)
    block, tokens = AttentionBlock(width, heads), torch.randn(5, 7, width)
    stirred(block)
    layer = layer_like(block, width, heads)
    found, weights = block(tokens)
    torch.testing.assert_close(found, layer(tokens), rtol=1e-4, atol=1e-5)
    normed = layer.norm1(tokens)
    wanted = layer.self_attn(normed, normed, normed, average_attn_weights=True)[1][:, 0]
    torch.testing.assert_close(weights, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_shares_of_attention(count: int, depth: int) -> None:
    torch.manual_seed(count)
    sizes = {name: 3 + place for place, name in enumerate("abcd"[:count])}
    tokens = {"b": 2} if count > 1 else {}
    sizes |= {"b": 12} if count > 1 else {}
    trunk = Trunk(sizes, tokens, lambda size: nn.Linear(size, 3), width=8, depth=depth)
    stirred(trunk)
    features = {name: torch.randn(6, size) for name, size in sizes.items()}
    shares = trunk.attention_shares(features)
    assert list(shares) == list(sizes)
    torch.testing.assert_close(torch.stack(list(shares.values())).sum(dim=0), torch.ones(6))
    # The same by torch's layers: what the first token pays to each, the mean over layers, without what it keeps.
    laid = [trunk.embeddings[name](features[name]).unflatten(1, (trunk.counts[name], 8)) for name in sizes]
    state, paid = torch.cat([torch.zeros(6, 1, 8), *laid], dim=1) + trunk.places, torch.zeros(6, len(trunk.places))
    for block in trunk.blocks:
        assert isinstance(block, AttentionBlock)
        layer = layer_like(block, 8, 4)
        normed = layer.norm1(state)
        paid = paid + layer.self_attn(normed, normed, normed)[1][:, 0] / depth
        state = layer(state)
    start = 1
    for name, share in shares.items():
        end = start + trunk.counts[name]
        wanted = paid[:, start:end].sum(dim=1) / paid[:, 1:].sum(dim=1)
        torch.testing.assert_close(share, wanted, rtol=1e-4, atol=1e-5)
        start = end
    torch.testing.assert_close(trunk(features), trunk.head(trunk.norm(state[:, 0])), rtol=1e-4, atol=1e-5)


def test_equal_tokens_share_alike_by_hand() -> None:
    """Where nothing is told apart, attention is even over tokens: of 1 + 2 + 4, the sensors have 2/6 and 4/6."""
    trunk = Trunk({"a": 16, "b": 5}, {"a": 2}, lambda size: nn.Linear(size, 2), width=8, depth=2)
    for parameter in trunk.blocks.parameters():
        nn.init.zeros_(parameter)
    shares = trunk.attention_shares({"a": torch.randn(3, 16), "b": torch.randn(3, 5)})
    torch.testing.assert_close(shares, {"a": torch.full((3,), 1 / 3), "b": torch.full((3,), 2 / 3)})


def test_tokens_of_an_encoder_are_cut_from_its_vector() -> None:
    trunk = Trunk({"same": 16, "other": 6, "none": 5}, {"same": 2, "other": 3}, lambda size: nn.Linear(size, 2), 8)
    vector = torch.randn(4, 16)
    assert torch.equal(trunk.embeddings["same"](vector), vector)  # of the width of the trunk already
    piece = trunk.embeddings["other"]
    first, second = torch.randn(2, 4, 6)
    first[:, 2:4] = second[:, 2:4]  # the second token of both is the same
    found = [piece(vector).unflatten(1, (3, 8)) for vector in (first, second)]
    torch.testing.assert_close(found[0][:, 1], found[1][:, 1])
    assert not torch.isclose(found[0][:, 0], found[1][:, 0]).all()
    assert piece(first).shape == (4, 24)
    assert trunk.embeddings["none"](torch.randn(4, 5)).shape == (4, TOKENS * 8)


def test_a_vector_that_does_not_hold_its_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="gives 3 tokens was expected to give a multiple of it; found 16"):
        Trunk({"a": 16}, {"a": 3}, lambda size: nn.Linear(size, 2), 8)


def test_the_parameters_below_the_head() -> None:
    trunk = Trunk({"a": 3}, {}, lambda size: nn.Linear(size, 2), 8)
    below, every = trunk.parameters_below_head(), list(trunk.parameters())
    assert {id(one) for one in every} - {id(one) for one in below} == {id(one) for one in trunk.head.parameters()}


# -- stems --


def pieces_of(inputs: torch.Tensor, cut: list[tuple[int, int]]) -> torch.Tensor:
    """The pieces of an input, one token after another, written out with loops: [B, tokens, C · sizes]."""
    batch, channels = inputs.shape[:2]
    full = torch.zeros(batch, channels, *(count * size for count, size in cut))
    full[(slice(None), slice(None), *(slice(length) for length in inputs.shape[2:]))] = inputs
    tokens = []
    for number in range(math.prod(count for count, _ in cut)):
        place, where = number, []
        for count, size in reversed(cut):
            place, here = divmod(place, count)
            where.insert(0, slice(here * size, (here + 1) * size))
        tokens.append(full[(slice(None), slice(None), *where)].flatten(1))
    return torch.stack(tokens, dim=1)


SHAPES = [(2, 16), (3, 17), (1, 5), (6, 100), (3, 8, 8), (1, 7, 30), (2, 2, 3), (2, 4, 4, 4), (1, 6, 5, 9)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_stem_embeds_every_piece_by_one_layer(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    stem, inputs = Stem(shape, width=6), torch.randn(3, *shape)
    assert len(stem.cut) == len(shape) - 1
    for length, most, (count, size) in zip(shape[1:], PIECES[len(shape)], stem.cut, strict=True):
        assert count <= most
        assert (count - 1) * size < length <= count * size  # the last piece holds something
    wanted = nn.functional.linear(pieces_of(inputs, stem.cut), stem.embed.weight, stem.embed.bias)
    found = stem(inputs)
    assert found.shape == (3, stem.features) == (3, stem.tokens * 6)
    torch.testing.assert_close(found.unflatten(1, (stem.tokens, 6)), wanted, rtol=1e-4, atol=1e-5)


def test_a_vector_becomes_tokens() -> None:
    stem, inputs = Stem((5,), width=6), torch.randn(3, 5)
    assert (stem.tokens, stem.features) == (TOKENS, TOKENS * 6)
    torch.testing.assert_close(stem(inputs), inputs @ stem.embed.weight.T + stem.embed.bias)


@pytest.mark.parametrize(
    ("shape", "cut"),
    [((3, 128), [(16, 8)]), ((3, 100), [(15, 7)]), ((3, 10), [(10, 1)]), ((1, 28, 28), [(4, 7), (4, 7)]),
     ((1, 9, 2), [(3, 3), (2, 1)]), ((3, 8, 32, 32), [(4, 2), (4, 8), (4, 8)])],
)  # fmt: skip
def test_cuts_by_hand(shape: tuple[int, ...], cut: list[tuple[int, int]]) -> None:
    assert Stem(shape).cut == cut


def test_padding_says_nothing() -> None:
    """An input and the same with zeros where the stem would pad it have the same tokens."""
    torch.manual_seed(0)
    short, whole = Stem((2, 100)), Stem((2, 105))
    whole.load_state_dict(short.state_dict())
    inputs = torch.randn(3, 2, 100)
    torch.testing.assert_close(short(inputs), whole(nn.functional.pad(inputs, (0, 5))))

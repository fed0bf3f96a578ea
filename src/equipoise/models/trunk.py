"""The trunk of hybrid and early fusion: attention over the tokens of all sensors."""

import math
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from equipoise.models.fusion import Fusion, HeadMaker, NamedModules

PIECES = {1: (), 2: (16,), 3: (4, 4), 4: (4, 4, 4)}
"""The most pieces along each axis behind the channels that a `Stem` cuts an input into, by its number of axes."""
TOKENS = 4
"""Tokens that a sensor's feature vector becomes, where its encoder does not say how many it holds."""


@final
class AttentionBlock(nn.Module):
    """One pre-norm transformer layer: attention among all tokens, then a perceptron on each.

    Args:
        width: Size of a token.
        heads: Attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.write = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Give the tokens [B, T, width], and the attention that the first one pays to each, [B, T]."""
        parts = self.read(self.before(tokens)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        # Written out, and not a fused kernel: the weights are asked for, and so are second derivatives.
        weights = ((query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)).softmax(dim=-1)
        tokens = tokens + self.write((weights @ value).transpose(1, 2).flatten(2))
        return tokens + self.perceptron(self.between(tokens)), weights[:, :, 0].mean(dim=1)


@final
class Trunk(Fusion):
    """Attention over the tokens of all sensors and one token of its own, off which the fused head reads.

    The feature vector of a sensor, [B, size], becomes some tokens of equal width: by a Linear, or, where its encoder
    has an integer attribute `tokens`, by cutting the vector into so many. Each token gets a learned embedding of its
    sensor and place.

    Args:
        sizes: The size of each modality's feature vector.
        tokens: How many tokens each vector holds; a modality that is not named gets `TOKENS` by a Linear.
        head: Makes a head from a feature size.
        width: Size of a token.
        depth: Layers.
    """

    def __init__(
        self, sizes: Mapping[str, int], tokens: Mapping[str, int], head: HeadMaker, width: int = 64, depth: int = 2
    ) -> None:
        super().__init__()
        self.width = width
        self.counts = {name: tokens.get(name, TOKENS) for name in sizes}
        self.embeddings = NamedModules({name: _embedding(sizes[name], tokens.get(name), width) for name in sizes})
        self.places = nn.Parameter(0.02 * torch.randn(1 + sum(self.counts.values()), width))
        heads = next(count for count in (4, 2, 1) if width % count == 0)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = head(width)

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Give the fused output."""
        return self.head(self.run(features)[0])

    def run(self, features: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Give the vector that the fused head reads, [B, width], and its attention to each token, [B, 1 + tokens].

        The attention is the mean over heads and layers.
        """
        embedded = [
            self.embeddings[name](features[name]).unflatten(1, (count, self.width))
            for name, count in self.counts.items()
        ]
        own = torch.zeros_like(embedded[0][:, :1])
        tokens, shares = torch.cat([own, *embedded], dim=1) + self.places, []
        for block in self.blocks:
            tokens, share = block(tokens)
            shares.append(share)
        return self.norm(tokens[:, 0]), torch.stack(shares).mean(dim=0)

    def attention_shares(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give the share of each sensor in the attention of the fused head's token, [B]; they add up to one."""
        paid = self.run(features)[1][:, 1:].split(list(self.counts.values()), dim=1)
        sums = torch.stack([part.sum(dim=1) for part in paid])
        return dict(zip(self.counts, (sums / sums.sum(dim=0)).unbind(), strict=True))

    def parameters_below_head(self) -> list[Tensor]:
        """List the parameters of the trunk, without those of the fused head."""
        of_head = {id(parameter) for parameter in self.head.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in of_head]


def _embedding(size: int, tokens: int | None, width: int) -> nn.Module:
    """Make the layer that turns a feature vector into tokens laid side by side."""
    if tokens is None:
        return nn.Linear(size, TOKENS * width)
    if size == tokens * width:
        return nn.Identity()
    if size % tokens:
        raise ValueError(f"An encoder that gives {tokens} tokens was expected to give a multiple of it; found {size}.")
    return nn.Sequential(nn.Unflatten(1, (tokens, size // tokens)), nn.Linear(size // tokens, width), nn.Flatten())


@final
class Stem(nn.Module):
    """Cuts an input into pieces and embeds each by one Linear, for early fusion: [B, …] → [B, tokens · width].

    A vector becomes `TOKENS` tokens; a series at most 16 pieces of equal length; a picture at most 4 × 4; of a video
    each of at most 4 spans of frames is cut so. The end of an axis that no whole piece covers is padded with zeros.

    Args:
        shape: Of one sample, (D,), (C, T), (C, H, W) or (C, T, H, W).
        width: Size of a token.
    """

    def __init__(self, shape: tuple[int, ...], width: int = 64) -> None:
        super().__init__()
        axes = shape[1:]
        sizes = [-(-length // most) for length, most in zip(axes, PIECES[len(shape)], strict=True)]
        counts = [-(-length // size) for length, size in zip(axes, sizes, strict=True)]
        self.cut = list(zip(counts, sizes, strict=True))
        self.padding = [
            pad
            for length, (count, size) in reversed(list(zip(axes, self.cut, strict=True)))
            for pad in (0, count * size - length)
        ]
        self.tokens = math.prod(counts) if self.cut else TOKENS
        self.features = self.tokens * width
        self.embed = nn.Linear(shape[0] * math.prod(sizes), width if self.cut else self.features)

    def forward(self, inputs: Tensor) -> Tensor:
        """Give the tokens, side by side."""
        if not self.cut:
            return self.embed(inputs)
        pieces = nn.functional.pad(inputs, self.padding)
        for axis, (count, size) in reversed(list(enumerate(self.cut))):
            pieces = pieces.unflatten(2 + axis, (count, size))
        axes = len(self.cut)  # [B, C, count, size, count, size, …] → [B, counts, C, sizes]
        order = [0, *range(2, 2 + 2 * axes, 2), 1, *range(3, 3 + 2 * axes, 2)]
        return self.embed(pieces.permute(order).flatten(axes + 1).flatten(1, axes)).flatten(1)

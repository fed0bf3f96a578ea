"""Encoders of sequences, and of features that another network has computed; each turns [B, …] into [B, features].

Padding behind the end of a sample never changes its output, unless an encoder is asked to be as it was published.
"""

from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor, nn

from equipoise.models.encoders import MLP, check_shape, known_features, mean_over_time, real_steps, zero_padding
from equipoise.util.errors import raise_all


@final
class SequenceTransformer(nn.Module):
    """A small transformer for sequences of vectors: [B, T, D] → [B, features], any T ≥ 1.

    A linear layer, sinusoids for the positions, pre-norm transformer layers, and the average over the real steps.

    Args:
        inputs: D.
        features: The width of the transformer, and the size of the output vector; a multiple of `heads`.
        layers: Number of transformer layers.
        heads: Attention heads of each.
        dropout: Of every layer.

    Raises:
        ValueError: If `features` is no multiple of `heads`.
    """

    def __init__(self, inputs: int, features: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        raise_all(_head_problems(self, "features", features, heads))
        self.features, self._inputs = features, inputs
        self.embed = nn.Linear(inputs, features)
        self.layers = _transformer(features, layers, heads, 4 * features, dropout, pre_norm=True)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode sequences [B, T, D]; with `lengths` [B], what lies behind the end of each is ignored."""
        check_shape(self, sequences, "[B, T, D]", self._inputs, axis=2)
        sequences, padding = _without_padding(sequences.transpose(1, 2), lengths)
        embedded = self.embed(sequences.transpose(1, 2))
        embedded = embedded + _sinusoids(embedded.shape[1], self.features, embedded)
        return mean_over_time(self.layers(embedded, src_key_padding_mask=padding), lengths)


@final
class FirstStepTransformer(nn.Module):
    """A transformer that is read out at its first step: [B, C, T] → [B, features], any T ≥ 1.

    The encoder of UR-FUNNY in Li et al., "Boosting Multi-modal Model Performance with Adaptive Gradient Modulation"
    (ICCV 2023): a convolution of width 1 without bias, then post-norm layers, without positions. The order of steps is
    told by nothing but which one is first.

    Args:
        channels: C.
        features: The width of the transformer, and the size of the output vector; a multiple of `heads`.
        layers: Number of transformer layers.
        heads: Attention heads of each.
        feedforward: The width between the two linear maps of a layer.
        dropout: Of every layer.
        masked: Hide padding from attention. The published code does not, so that there an output depends on how much
            padding a batch has.
    """

    def __init__(
        self,
        channels: int,
        features: int = 768,
        layers: int = 8,
        heads: int = 4,
        feedforward: int = 2048,
        dropout: float = 0.1,
        masked: bool = True,
    ) -> None:
        super().__init__()
        raise_all(_head_problems(self, "features", features, heads))
        self.features, self.masked, self._channels = features, masked, channels
        self.project = nn.Conv1d(channels, features, 1, bias=False)
        self.layers = _transformer(features, layers, heads, feedforward, dropout)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode sequences [B, C, T]; with `lengths` [B], what lies behind the end of each is ignored."""
        check_shape(self, sequences, "[B, C, T]", self._channels)
        sequences, padding = _without_padding(sequences, lengths)
        steps = self.project(sequences).transpose(1, 2)
        return self.layers(steps, src_key_padding_mask=padding if self.masked else None)[:, 0]


@final
class AttentionPooled(nn.Module):
    """Self-attention over a sequence, pooled by attention: [B, C, T] → [B, features], any T ≥ 1.

    One branch of the network that Li et al. (ICCV 2023) train on CMU-MOSEI (of "A Transformer-based joint-encoding for
    Emotion Recognition and Sentiment Analysis", Delbrouck et al., 2020), without the attention of sound to text: so it
    can be fused late. Words start with an LSTM, sound with a linear map; then post-norm layers; then the steps are
    summed with weights softmax over time of a small network's scores, and mapped to the output.

    Args:
        channels: C.
        features: The size of the output vector.
        width: Of the transformer; a multiple of `heads`.
        layers: Number of transformer layers.
        heads: Attention heads of each.
        feedforward: The width between the two linear maps of a layer.
        dropout: Of every layer.
        start: "lstm", as for words, or "linear", as for sound.
    """

    def __init__(
        self,
        channels: int,
        features: int = 1024,
        width: int = 512,
        layers: int = 6,
        heads: int = 4,
        feedforward: int = 1024,
        dropout: float = 0.1,
        start: Literal["lstm", "linear"] = "lstm",
    ) -> None:
        super().__init__()
        problems = _head_problems(self, "width", width, heads)
        if start not in ("lstm", "linear"):
            problems.append(f"AttentionPooled expected start to be 'lstm' or 'linear'; found {start!r}.")
        raise_all(problems)
        self.features, self._channels = features, channels
        self.start = nn.LSTM(channels, width, batch_first=True) if start == "lstm" else nn.Linear(channels, width)
        self.layers = _transformer(width, layers, heads, feedforward, dropout)
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 1))
        self.project = nn.Linear(width, features)

    def forward(self, sequences: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode sequences [B, C, T]; with `lengths` [B], what lies behind the end of each is ignored."""
        check_shape(self, sequences, "[B, C, T]", self._channels)
        sequences, padding = _without_padding(sequences, lengths)
        # An LSTM runs forward, so the steps before the end know nothing of the padding behind it.
        started = self.start(sequences.transpose(1, 2))
        steps = self.layers(started[0] if isinstance(started, tuple) else started, src_key_padding_mask=padding)
        scores = self.score(steps)
        if padding is not None:
            scores = scores.masked_fill(padding.unsqueeze(2), -torch.inf)
            steps = steps.masked_fill(padding.unsqueeze(2), 0)
        return self.project((scores.softmax(dim=1) * steps).sum(dim=1))


@final
class Tokens(nn.Module):
    """Word numbers through vectors that are learnt: [B, T] → [B, features].

    Number 0 is padding, and its vector stays zero.

    Args:
        words: How many numbers there are.
        encoder: Turns [B, width, T], and lengths, into [B, features].
        width: Of a word vector.

    Raises:
        ValueError: If the encoder does not tell its output size.
    """

    reads_tokens = True

    def __init__(self, words: int, encoder: nn.Module, width: int = 300) -> None:
        super().__init__()
        self.features, self.words = known_features("Tokens", encoder), words
        self.vectors = nn.Embedding(words, width, padding_idx=0)
        self.encoder = encoder

    def forward(self, numbers: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode word numbers [B, T] of any type; with `lengths` [B], what lies behind the end of each is ignored."""
        check_shape(self, numbers, "[B, T]")
        vectors = self.vectors(numbers.long()).transpose(1, 2)
        return self.encoder(vectors) if lengths is None else self.encoder(vectors, lengths=lengths)


@final
class PooledMap(nn.Module):
    """A feature map averaged over the plane, then fully connected layers: [B, C, H, W] → [B, features].

    For features that a large network has taken from an image already, such as those of AVE's seconds.

    Args:
        channels: C.
        features: The size of the output vector.
        hidden: The sizes of the layers between.
    """

    def __init__(self, channels: int = 512, features: int = 128, hidden: Sequence[int] = (256,)) -> None:
        super().__init__()
        self.features, self._channels = features, channels
        self.layers = MLP(channels, features, hidden)

    def forward(self, maps: Tensor) -> Tensor:
        """Encode feature maps [B, C, H, W]."""
        check_shape(self, maps, "[B, C, H, W]", self._channels)
        return self.layers(maps.mean(dim=(2, 3)))


def _transformer(
    width: int, layers: int, heads: int, feedforward: int, dropout: float, *, pre_norm: bool = False
) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(width, heads, feedforward, dropout, batch_first=True, norm_first=pre_norm)
    # Nested tensors would drop the padding's columns from the output, and with them the shape.
    return nn.TransformerEncoder(layer, layers, nn.LayerNorm(width) if pre_norm else None, enable_nested_tensor=False)


def _without_padding(sequences: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Give sequences [B, C, T] with zeros in place of padding, and the padding that attention skips, [B, T].

    Attention to nothing at all is NaN, so even an empty sequence keeps one step, of zeros.
    """
    if lengths is None:
        return sequences, None
    return zero_padding(sequences, lengths), ~real_steps(lengths.clamp(min=1), sequences, 2).squeeze(1)


def _head_problems(encoder: nn.Module, what: str, width: int, heads: int) -> list[str]:
    if heads >= 1 and width % heads == 0:
        return []
    wider = (width // max(heads, 1) + 1) * max(heads, 1)
    hint = f"found {what}={width}, heads={heads}. Write {what}={wider} or heads=1."
    return [f"{type(encoder).__name__} expected {what} to be a multiple of heads; {hint}"]


def _sinusoids(steps: int, width: int, like: Tensor) -> Tensor:
    """Positions as sines and cosines of geometrically falling frequency, [steps, width], alternating."""
    position = torch.arange(steps, device=like.device, dtype=torch.float32).unsqueeze(1)
    exponent = torch.arange(0, width, 2, device=like.device, dtype=torch.float32) / width
    angle = position * 10_000.0**-exponent
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)[:, :width].to(like.dtype)

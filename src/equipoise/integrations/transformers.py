"""transformers: its models as encoders of text and of pictures, with published or random weights."""

from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn

from equipoise.integrations import ImageEncoder, channels_of
from equipoise.models.encoders import mean_over_time, real_steps
from equipoise.util.extras import needs

with needs(__name__, "transformers"):
    from transformers import AutoModel, BertConfig, PreTrainedConfig, PreTrainedModel, ViTConfig

Source: TypeAlias = str | PreTrainedConfig | PreTrainedModel
"""A name or folder of a model, a configuration, or a model."""
WORDS = 2**15  # what 16 bits hold, as in the encoder "words"


@final
class Text(nn.Module):
    """A language model over token numbers: [B, T] → [B, features].

    Args:
        model: A name or a folder for `AutoModel.from_pretrained`, a configuration (random weights), or a model. None is
            a BERT of two layers with random weights.
        features: The width of that small BERT. Other models have widths of their own.
        pooling: The "mean" over the real tokens, or the "first" one.
        padding: The token number that is no token, where no lengths are given.

    Example:
        >>> encoder = Text(features=32).eval()
        >>> encoder(torch.tensor([[5, 8, 2, 0], [7, 0, 0, 0]])).shape
        torch.Size([2, 32])
    """

    reads_tokens = True

    def __init__(
        self,
        model: Source | None = None,
        features: int = 64,
        pooling: Literal["mean", "first"] = "mean",
        padding: int = 0,
    ) -> None:
        super().__init__()
        if pooling not in ("mean", "first"):
            raise ValueError(f"Text expected pooling to be 'mean' or 'first'; found {pooling!r}.")
        self.model = _loaded(model or BertConfig(vocab_size=WORDS, **_small(features)))
        self.features: int = self.model.config.hidden_size
        self.words: int | None = getattr(self.model.config, "vocab_size", None)
        self.pooling, self.padding = pooling, padding

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Encode token numbers [B, T] of any type; with `lengths` [B], what lies behind the end of each is ignored."""
        if tokens.dim() != 2:
            raise ValueError(f"Text expected token numbers [B, T]; found {list(tokens.shape)}.")
        tokens = tokens.long()
        if lengths is None:
            lengths = ((tokens != self.padding) * torch.arange(1, tokens.shape[1] + 1, device=tokens.device)).amax(1)
        lengths = lengths.to(tokens.device).clamp(min=1)  # attention to nothing at all is NaN
        mask = real_steps(lengths, tokens, 1)
        steps = self.model(input_ids=tokens.masked_fill(~mask, self.padding), attention_mask=mask.long())[0]
        return steps[:, 0] if self.pooling == "first" else mean_over_time(steps, lengths)


def image(shape: tuple[int, ...] | None = None, model: Source | None = None, features: int = 64) -> nn.Module:
    """Make a vision model over images [B, C, H, W] or video [B, C, T, H, W], averaged over its patches or its plane.

    Args:
        shape: Of one input.
        model: A name or a folder for `AutoModel.from_pretrained`, a configuration (random weights), or a model. None is
            a ViT of two layers with random weights, made for the shape.
        features: The width of that small ViT. Other models have widths of their own.

    Example:
        >>> image((1, 28, 28), features=32)(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 32])
    """
    backbone = _loaded(model or _small_vit(shape, features))
    config: Any = backbone.config
    width = config.hidden_sizes[-1] if hasattr(config, "hidden_sizes") else config.hidden_size
    return ImageEncoder(backbone, width, _pooled)


def _loaded(model: Source) -> Any:
    """Load a model without its pooler, which would learn from nothing here."""
    loaded: Any = model
    if isinstance(model, PreTrainedConfig):
        loaded = AutoModel.from_config(model)
    elif not isinstance(model, PreTrainedModel):
        loaded = AutoModel.from_pretrained(model)
    pooler = getattr(loaded, "pooler", None)
    if isinstance(pooler, nn.Module) and list(pooler.parameters()):
        loaded.pooler = None
    return loaded


def _pooled(outputs: Any) -> Tensor:
    """Average over patches [B, N, F] or over the plane [B, F, h, w]."""
    return outputs[0].mean(dim=1) if outputs[0].dim() == 3 else outputs[0].mean(dim=(2, 3))


def _small(features: int) -> dict[str, Any]:
    """Give the sizes of a model of two layers, with as many attention heads as divide the width, up to four."""
    heads = next(heads for heads in (4, 2, 1) if features % heads == 0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": heads, "intermediate_size": 2 * features}
    return {"hidden_size": features, **sizes}


def _small_vit(shape: tuple[int, ...] | None, features: int) -> PreTrainedConfig:
    if shape is None:
        raise ValueError("image expected the shape of one input, or a model; type image((3, 224, 224))")
    channels, size = channels_of(shape), (shape[-2], shape[-1])
    return ViTConfig(image_size=size, patch_size=max(1, min(size) // 7), num_channels=channels, **_small(features))

"""Reading a model: evaluation mode for a while, and outputs as class probabilities."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from equipoise.util.errors import raise_all


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode for a while; then every part goes back to the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:  # set directly: train() would reach the parts below, and may do more
            module.training = mode


def class_log_probabilities(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read outputs as class scores [B, C] and normalise them, in float32 at least."""
    raise_all(
        f"Class probabilities expected outputs [B, C] for at least two classes; {name!r} has {list(output.shape)}. "
        "For other tasks call the model itself: model(inputs)['fused']."
        for name, output in outputs.items()
        if output.dim() != 2 or output.shape[1] < 2
    )
    wide = {name: output if output.dtype == torch.float64 else output.float() for name, output in outputs.items()}
    return {name: output.log_softmax(dim=1) for name, output in wide.items()}

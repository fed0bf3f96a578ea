"""Encoders compiled one by one, in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn


def compiled_call(encoder: nn.Module, name: str, options: Mapping[str, Any], *, steady: bool) -> Callable[..., Tensor]:
    """What to call instead of an encoder.

    `encoder.compile()` does nothing to modules of torch's own, such as nn.Sequential, whose frames are skipped.

    Args:
        encoder: What runs.
        name: What its code is called.
        options: Of `torch.compile`.
        steady: Compile for the shape of the first training batch alone; everything else runs as it is written.
    """

    def call(*args: Any, **kwargs: Any) -> Tensor:
        return encoder._call_impl(*args, **kwargs)

    # Code of its own for each: what was compiled is kept by code, and a second shape of one code is taken to vary.
    own = FunctionType(call.__code__.replace(co_name=f"encoder_{name}"), globals(), name, None, call.__closure__)
    chosen_options: dict[str, Any] = {**({"dynamic": False} if steady else {}), **options}
    quick = torch.compile(own, **chosen_options)
    if not steady:
        return quick
    first: list[torch.Size] = []

    def chosen(inputs: Tensor, **kwargs: Any) -> Tensor:
        if not (encoder.training and torch.is_grad_enabled()):
            return call(inputs, **kwargs)
        if not first:
            first.append(inputs.shape)
        return quick(inputs, **kwargs) if inputs.shape == first[0] else call(inputs, **kwargs)

    return chosen

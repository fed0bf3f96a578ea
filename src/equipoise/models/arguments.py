"""What can be wrong with the arguments of a late-fusion model."""

from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Literal, get_args

from torch import nn

from equipoise.models.fusion import HeadMaker
from equipoise.util.names import name_problems, unknown_name

Unimodal = Literal["head", "detached", "split"]
"""Where a modality's own output comes from."""


def modules_in(encoders: Mapping[str, object]) -> list[tuple[str, nn.Module]]:
    """The encoders that are modules."""
    return [(name, encoder) for name, encoder in encoders.items() if isinstance(encoder, nn.Module)]


def encoder_problems(
    encoders: Mapping[str, object], features: Mapping[str, int], told: Mapping[str, int | None]
) -> Iterator[str]:
    """What is wrong with the encoders, and with what is said of their sizes."""
    if not encoders:
        yield "LateFusion expected at least one encoder; found none. Write LateFusion({'audio': encoder}, classes=…)."
    yield from name_problems(encoders)
    for name, encoder in encoders.items():
        if not isinstance(encoder, nn.Module):
            yield f"The encoder of {name!r} must be an nn.Module, found {type(encoder).__name__}."
        elif told[name] is None:
            yield (
                f"The output size of the encoder of {name!r}, {type(encoder).__name__}, could not be told. "
                f"Write features={{{name!r}: …}}."
            )
    for name, size in features.items():
        if name not in encoders:
            yield f"features names an unknown modality: {unknown_name(name, encoders)}"
        if not isinstance(size, Integral) or size < 1:
            yield f"features[{name!r}] must be a whole number of at least 1, found {size!r}."


def head_problems(classes: int | None, head: HeadMaker | None) -> Iterator[str]:
    """What is wrong with the number of classes, or with the maker of heads."""
    if (classes is None) == (head is None):
        found = "neither" if head is None else "both"
        yield f"LateFusion expected either classes or head; found {found}. Write classes=… alone for classification."
    elif classes is not None and (not isinstance(classes, Integral) or classes < 2):
        yield (
            f"classes must be a whole number of at least 2, found {classes!r}. "
            "For a single output write head=lambda size: nn.Linear(size, 1)."
        )


def option_problems(unimodal: str | None, dropout: float) -> Iterator[str]:
    """What is wrong with the remaining options."""
    if unimodal is not None and unimodal not in get_args(Unimodal):
        yield f"Unknown unimodal: {unknown_name(unimodal, get_args(Unimodal))} None means no uni-modal outputs."
    if not 0 <= dropout < 1:
        yield f"dropout must be at least 0 and less than 1, found {dropout!r}. Write dropout=0.0 for none."

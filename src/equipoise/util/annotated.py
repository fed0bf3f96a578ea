"""Annotations of parameters, `Annotated[float, Tried(1.0, 10.0)]`, and their reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, final, get_args, get_type_hints

Kind = TypeVar("Kind")


@final
@dataclass(frozen=True, init=False)
class Tried:
    """Values of a parameter that are worth trying, for tuning that gives every method the same number of trials."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        object.__setattr__(self, "values", values)


@final
@dataclass(frozen=True)
class ReadBy:
    """The reader of a parameter whose values a plain word cannot express, for `name=value` on a command line."""

    read: Callable[[str], Any]


def annotations_of(function: Callable[..., Any], kind: type[Kind]) -> dict[str, Kind]:
    """Return the annotations of one kind by parameter.

    Example:
        >>> from typing import Annotated
        >>> def scale(by: Annotated[float, Tried(1.0, 2.0)], of: float = 1.0) -> None: ...
        >>> annotations_of(scale, Tried)["by"].values
        (1.0, 2.0)
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception:  # annotations of the user's own may not resolve
        return {}
    # Before Python 3.11 a default of None wraps the whole annotation in Optional.
    known = {name: [part for one in (hint, *get_args(hint)) for part in _metadata(one)] for name, hint in hints.items()}
    found = {name: [one for one in parts if isinstance(one, kind)] for name, parts in known.items()}
    return {name: parts[0] for name, parts in found.items() if parts}


def _metadata(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())

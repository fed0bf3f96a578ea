"""One message for everything that is wrong with a set of arguments."""

from __future__ import annotations

from equipoise.util.errors import BadInput


def demand(owner: str, *rules: tuple[bool, str, object]) -> None:
    """Raise one `BadInput` that lists every rule that does not hold.

    Args:
        owner: Whose arguments they are.
        rules: Whether the rule holds, what was expected in words, and what was found.

    Example:
        >>> demand("EW", (-1.0 >= 0, "weight should be zero or more", -1.0))
        Traceback (most recent call last):
        equipoise.util.errors.BadInput: EW: weight should be zero or more, found -1.0
    """
    broken = [f"{expected}, found {found!r}" for holds, expected, found in rules if not holds]
    if broken:
        raise BadInput(f"{owner}: " + "; ".join(broken))

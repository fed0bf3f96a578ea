"""Cuts that depend on names alone: not on which files exist, nor on the order in which they are listed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping


def cut(key: str, shares: Mapping[str, float], salt: str = "") -> str:
    """The part that a sample, or the group it belongs to, falls into.

    The first 64 bits of sha256("salt/key") are a point in [0, 1), where the shares lie side by side in their order.

    Args:
        key: Name of the sample or of the group: whatever must not be torn apart.
        shares: How much of the whole each part gets; they add up to one.
        salt: Names the cut, so that two cuts of the same keys are independent.

    Example:
        >>> cut("actor 1001", {"train": 0.8, "validation": 0.1, "test": 0.1})
        'train'
    """
    if not shares or min(shares.values()) < 0 or not math.isclose(math.fsum(shares.values()), 1.0):
        raise ValueError(f"Shares must be at least 0 and add up to 1; found {dict(shares)}.")
    point = (
        int.from_bytes(hashlib.sha256(f"{salt}/{key}".encode("utf-8", "surrogateescape")).digest()[:8], "big") / 2**64
    )
    end = 0.0
    for part, share in shares.items():
        end += share
        if point < end:
            return part
    return [part for part, share in shares.items() if share > 0][-1]  # only rounding of the sum comes here

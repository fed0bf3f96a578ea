"""How a command ended that ran in the process of its test."""

from typing import NamedTuple


class Ended(NamedTuple):
    """Its exit code, and what it said."""

    code: int
    out: str
    err: str

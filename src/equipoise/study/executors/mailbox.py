"""Where runs on other machines leave word of their epochs."""

from __future__ import annotations

import asyncio
from typing import Any, final

Letter = tuple[str, dict[str, Any]]
"""The config of a run, and what an epoch showed."""


@final
class Mailbox:
    """Holds letters until somebody takes them."""

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._any = asyncio.Event()

    async def put(self, config: str, record: dict[str, Any]) -> None:
        """Leave a letter."""
        self._letters.append((config, record))
        self._any.set()

    async def take(self) -> list[Letter]:
        """Wait for letters, and take them all."""
        await self._any.wait()
        self._any.clear()
        found, self._letters = self._letters, []
        return found

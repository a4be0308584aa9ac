"""Things that the workers of one node use together, such as one connection pool per sink URL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

CLOSE_S = 3.0


@dataclass(slots=True)
class _Thing:
    value: asyncio.Future[Any]
    users: int = 0


class SharedThings:
    """Made on first use, closed with the last user."""

    def __init__(self) -> None:
        self._things: dict[str, _Thing] = {}

    async def get(self, key: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """The thing for this key. If making it fails, everyone who waits for it gets the error."""
        thing = self._things.get(key)
        if thing is None:
            thing = self._things[key] = _Thing(asyncio.ensure_future(make()))
        thing.users += 1
        try:
            return await asyncio.shield(thing.value)
        except BaseException:
            await self.give_back(key)
            raise

    async def give_back(self, key: str) -> None:
        """One user less; the last one closes it."""
        thing = self._things.get(key)
        if thing is None:
            return
        thing.users -= 1
        if thing.users == 0:
            del self._things[key]
            if thing.value.done() and not thing.value.cancelled() and thing.value.exception() is None:
                await _close(thing.value.result())


async def _close(value: Any) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await value.close()
    except TimeoutError:
        value.terminate()

"""Things that the workers of one node use together, such as one connection pool per sink URL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

CLOSE_S = 3.0


@dataclass(slots=True)
class _Thing:
    making: asyncio.Future[Any]
    users: int = 0


class SharedThings:
    """Made on first use, closed with the last user."""

    def __init__(self) -> None:
        self._things: dict[str, _Thing] = {}
        self._endings: set[asyncio.Task[None]] = set()

    async def get(self, key: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """The thing for this key. If making it fails, everyone who waits for it gets the error."""
        thing = self._things.get(key)
        if thing is None:
            thing = self._things[key] = _Thing(asyncio.ensure_future(make()))
        thing.users += 1
        try:
            return await asyncio.shield(thing.making)
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
            # Its own task: the caller may be cancelled meanwhile, and the thing must be closed all the same.
            ending = asyncio.create_task(_end(thing.making), name="end a shared thing")
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)
            await asyncio.shield(ending)


async def _end(making: asyncio.Future[Any]) -> None:
    """Close what was made, or stop making it. What is made in spite of that is closed."""
    if not making.done():
        making.cancel()
        await asyncio.wait([making])
    if making.cancelled() or making.exception() is not None:
        return
    value = making.result()
    try:
        async with asyncio.timeout(CLOSE_S):
            await value.close()
    except TimeoutError:
        value.terminate()

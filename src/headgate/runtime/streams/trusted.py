"""How long a write may last: as long as this node may act."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

RENEW_S = 0.1


class while_trusted:
    """Let something last as long as this node may act, and cut it off when it may no longer.

    Trust is renewed every second, so a long write goes on while beats are answered. Every write has one of these, so it
    is one timer, and nothing is left behind that refers to itself.
    """

    __slots__ = ("_limit", "_timer", "_trust_left_s")

    def __init__(self, trust_left_s: Callable[[], float], left_s: float) -> None:
        self._trust_left_s = trust_left_s
        self._limit = asyncio.timeout(None)
        self._timer = asyncio.get_running_loop().call_later(_until_next_look(left_s), self._look)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _look(self) -> None:
        left_s, loop = self._trust_left_s(), asyncio.get_running_loop()
        if left_s > 0.0:
            self._timer = loop.call_later(_until_next_look(left_s), self._look)
        else:
            self._limit.reschedule(loop.time())


def _until_next_look(left_s: float) -> float:
    """Half of what is left, so that a renewal is seen in time; the whole when it is little."""
    return max(left_s / 2, min(left_s, RENEW_S))

"""Long work in slices: whatever is made for one caller, others have the event loop in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
Made = TypeVar("Made")

SLICE = 50  # Datasources or streams in one go: a few milliseconds on a slow machine.


async def sliced(items: Sequence[T], size: int) -> AsyncIterator[Sequence[T]]:
    """These items, a slice at a time."""
    for begin in range(0, len(items), size):
        if begin:
            await asyncio.sleep(0)
        yield items[begin : begin + size]


async def made_of(items: Sequence[T], make: Callable[[T], Made]) -> list[Made]:
    """What is made of each of these items."""
    return [make(one) async for some in sliced(items, SLICE) for one in some]

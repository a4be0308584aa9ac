"""Whether a database that took no writes takes them again: it is tried, because reads go on and prove nothing."""

from __future__ import annotations

import asyncio
import contextlib

from headgate.errors import StoreError
from headgate.store.database import Database

LOOK_S = 1.0


async def until_writes_are_taken(database: Database) -> None:
    """Try while it takes none, until cancelled."""
    while True:
        if database.refusal is not None:
            with contextlib.suppress(StoreError):
                await database.try_to_write()
        await asyncio.sleep(LOOK_S)

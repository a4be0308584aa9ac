"""Watches whether the registry is the one that it was, and begins a new era if this node is a witness that it is not.

`store.lineage` refuses every session of a registry that went back in time or is a copy. So meanwhile this node has no
trust, grants nothing, and answers no webhook with 202; all that is left to do is here.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import structlog

from headgate.clock import boot_s
from headgate.core.lineage import Displacement, WentBack
from headgate.errors import Displaced, HeadgateError, StoreError
from headgate.store.database import POOL_SIZE, Database, connect
from headgate.store.lineage import Witness, displaced, remember, settle

LOOK_S = 0.5
LAST_S = 1.0
REMEMBER_S = 5.0  # How much of the log may be lost unnoticed, if a volume is set back under our feet.

log = structlog.get_logger()


class LineageWatch:
    """This node as a witness."""

    def __init__(self, url: str, home: Path) -> None:
        self._url = url
        self._witness = Witness(home)
        self.check = self._witness.check  # Of every new session.
        self._told: Displacement | None = None

    async def open(self, size: int = POOL_SIZE) -> Database:
        """Connect. If the database is not what it was, do what is ours to do; the next time may be better."""
        try:
            return await Database.open(self._url, size=size, check=self.check)
        except Displaced:
            await self._settle()
            raise

    @property
    def problem(self) -> str | None:
        """Why nothing can be done with the database that answers."""
        finding = self._witness.finding
        return None if finding is None else displaced(finding).message

    async def run(self, database: Database) -> None:
        """Watch until cancelled. What a node has seen when it stops, its home remembers."""
        remembered_s = boot_s()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if self._witness.finding is not None:
                    await self._settle()
                elif boot_s() - remembered_s >= REMEMBER_S:
                    remembered_s = boot_s()
                    with contextlib.suppress(StoreError):
                        await remember(database, self._witness)
        finally:
            with contextlib.suppress(HeadgateError, TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await remember(database, self._witness)

    async def _settle(self) -> None:
        """Begin a new era if that is ours to do; else say once what a person has to do."""
        finding = self._witness.finding
        if finding is not None and finding != self._told and not isinstance(finding, WentBack):
            error = displaced(finding)
            log.error("this node waits", error=error.message, hint=error.hint)
        self._told = finding
        with contextlib.suppress(HeadgateError, OSError, TimeoutError):
            session = await connect(self._url)
            try:
                settled = await settle(session, self._witness)
            finally:
                session.terminate()
            if settled is not None:
                log.warning(
                    "the database went back in time: a new era begins",
                    era=settled.era,
                    before=settled.before,
                    lineage=settled.lineage,
                )

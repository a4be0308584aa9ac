"""Discards what it is given and counts it: for measuring a source, and for trying out backpressure."""

from __future__ import annotations

import asyncio

from pydantic import Field

from headgate.connectors.api import Connector, Context, Grant, Options, Outgoing, Progress, SinkKind


class BlackholeOptions(Options):
    """How slow to be."""

    delay_s: float = Field(0, ge=0, allow_inf_nan=False, description="How long each write takes, in seconds.")


class Blackhole:
    """The sink. `written` is the number of records that fell in."""

    def __init__(self, options: BlackholeOptions, context: Context) -> None:
        self.written = 0
        self._delay_s = options.delay_s

    async def check(self) -> None:
        """A black hole is always there."""

    async def open(self, grant: Grant) -> Progress | None:
        return None

    async def write(self, batch: Outgoing) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        self.written += len(batch.records)

    async def close(self) -> None:
        """Nothing is held."""


CONNECTOR = Connector(
    name="blackhole",
    summary="Discards records and counts them",
    sink=SinkKind(options=BlackholeOptions, build=Blackhole, promise="none: it keeps nothing"),
)

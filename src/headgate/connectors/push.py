"""Push source: programs push records over a WebSocket (`/push`), each stream in order, and learn what is durable.

The session (`runtime.push.listener`) keeps what has come in and is not durable yet; this source only reads it. The
position is the id of the last record handled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from headgate.connectors.api import Backlog, Batch, Connector, Context, Feed, Options, Position, SourceKind
from headgate.connectors.moves import tell_numbers
from headgate.core.push import PUSH
from headgate.errors import Cause, ConnectorError


class PushOptions(Options):
    """Options of the push source."""

    format: Literal["json", "text"] = Field("json", description="json: the payload is the record. text: {body: …}.")


class PushSource:
    """Reads what a program pushes."""

    def __init__(self, options: PushOptions, context: Context) -> None:
        self._feed = context.feed

    async def check(self) -> None:
        """Nothing can be missing: programs connect by themselves."""

    async def parts(self) -> Sequence[str]:
        """One: each stream is a program's own."""
        return [""]

    async def open(self, position: Position) -> None:
        """Continue after this record."""
        if position is not None and (type(position) is not int or position < 0):
            raise ConnectorError(f"position {position!r} is not the id of a record", cause=Cause.CONFIG)
        self._source().rewind(position)

    async def read(self) -> Batch:
        """Wait for records."""
        return await self._source().read()

    async def ack(self, position: Position) -> None:
        """The session tells its program once the registry knows it too."""

    async def backlog(self) -> Backlog | None:
        """What the session has taken and no run has read."""
        return self._source().backlog()

    async def close(self) -> None:
        """Nothing is held."""

    def _source(self) -> Feed:
        assert self._feed is not None, "the runtime hands this source its feed"
        return self._feed


def _tell_move(before: Position, after: Position) -> str:
    """What was read once is at its program, if it is anywhere."""
    told = tell_numbers(before, after, "record")
    return f"{told}, if the program sends them" if told.endswith("read again") else told


CONNECTOR = Connector(
    name=PUSH,
    summary="Take records that programs push over a WebSocket, and tell them what is durable",
    source=SourceKind(
        PushOptions,
        PushSource,
        knows_backlog=True,
        tell_move=_tell_move,
        promise="exactly once into a transactional sink, if the program sends again what is not durable",
    ),
)

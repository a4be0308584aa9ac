"""A sink that lives in a process.

Records go there in slices, with turns for others in between. Of what a batch knows by functions, the hashes of keys go
with it where letters are superseded, and the places of records when the sink asks for one. How long the node may act is
a moment on the clock that both processes have, and is renewed while a call lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from headgate.clock import boot_s
from headgate.connectors.api import Grant, KeyKind, Letter, LetterOutcome, Outgoing, Progress
from headgate.errors import Bad, BadRecords
from headgate.runtime.apart import values
from headgate.runtime.apart.process import Process
from headgate.runtime.apart.remote import Remote, Side
from headgate.runtime.apart.wire import Trust, WireGrant, WireOutgoing

RENEW_S = 0.5


def _none_left() -> float:
    return 0.0


class RemoteSink(Remote):
    """Seen as any other sink, whatever it can."""

    _side: Side = "sink"

    def __init__(self, process: Process, part: str = "") -> None:
        super().__init__(process, part)
        self._trust_left_s: Callable[[], float] = _none_left

    async def open(self, grant: Grant) -> Progress | None:
        """As the connector's."""
        self._trust_left_s = grant.trust_left_s
        ids = (grant.installation, grant.datasource, grant.stream)
        found: Progress | None = await self._trusted("open", WireGrant(*ids, grant.name, grant.epoch, grant.progress))
        return found

    async def write(self, batch: Outgoing) -> None:
        """As the connector's."""
        await self._send("write", batch)

    async def rehearse(self, batch: Outgoing) -> None:
        """As the connector's."""
        await self._send("rehearse", batch)

    async def outcomes(self) -> dict[UUID, LetterOutcome]:
        """As the connector's."""
        found: dict[UUID, LetterOutcome] = await self._ask("outcomes")
        return found

    async def letters(self, ids: Sequence[UUID]) -> list[Letter]:
        """As the connector's."""
        found: list[Letter] = await self._ask("letters", list(ids))
        return found

    async def resolve(self, ids: Sequence[UUID], outcome: LetterOutcome) -> None:
        """As the connector's."""
        await self._ask("resolve", list(ids), outcome)

    async def rewrite(self, changed: Sequence[Letter]) -> None:
        """As the connector's."""
        await self._ask("rewrite", list(changed))

    async def key_kinds(self, key: Sequence[str]) -> Sequence[KeyKind]:
        """As the connector's."""
        found: list[KeyKind] = await self._ask("key_kinds", list(key))
        return found

    async def columns(self) -> Sequence[str]:
        """As the connector's."""
        found: list[str] = await self._ask("columns")
        return found

    async def forget(self, installation: UUID, streams: Sequence[UUID]) -> None:
        """As the connector's."""
        await self._ask("forget", installation, list(streams))

    async def _send(self, method: str, batch: Outgoing) -> None:
        records, supersedes = batch.records, batch.supersedes
        slices = []
        try:
            for one in values.in_slices(records):
                slices.append(one)
                await asyncio.sleep(0)
        except values.UnsendableError:
            bad = values.unsendable(records)
            raise BadRecords([Bad(index, None, values.UNSENDABLE) for index in bad]) from None
        outgoing = WireOutgoing(
            batch.progress,
            list(batch.key),
            list(batch.deletes),
            list(batch.letters),
            list(batch.replays),
            None if supersedes is None else [supersedes(record) for record in records],
            has_places=batch.places is not None,
        )
        await self._trusted(method, outgoing, slices=slices, records=len(records), places=batch.places)

    async def _trusted(self, method: str, *args: Any, **more: Any) -> Any:
        """A call that may last as long as this node may act."""
        await self._process.start()  # It takes seconds on a busy machine; what is said of trust is said afterwards.
        call = self._call(method, *args, trust_until_s=boot_s() + self._trust_left_s())
        answer = await self._process.request(call, **more)
        try:
            while not answer.done():
                await asyncio.wait({answer}, timeout=RENEW_S)
                if not answer.done():
                    self._process.send(Trust(self._number, boot_s() + self._trust_left_s()))
        except asyncio.CancelledError:
            self._process.cancel(call)
            raise
        return self._result(answer.result()[0], method)

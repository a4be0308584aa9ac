"""Reads a stream by the ids of its entries. The position is the last id; no consumer group is involved, because the
grant says already who reads.

Entries can be removed before they are read: a stream has a length that its writers keep. What was trimmed leaves no
trace but the number of all entries ever added. A position therefore carries that number for its entry, and if all that
is left lies after it, the difference says how many are missing. Both are asked for in one transaction with the read,
because a writer may trim between two commands. Somebody who deletes single entries means it, so holes between entries
that are there are no loss.

An empty stream is waited for with a read that blocks. What it returns only says that there is something: it is read
again, with the numbers.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import hiredis

from headgate.connectors.api import Backlog, Batch, Context, Position
from headgate.connectors.payloads import KEPT_BYTES
from headgate.connectors.redis import ids
from headgate.connectors.redis.entries import Cut, records_of
from headgate.connectors.redis.errors import Answered, steering
from headgate.connectors.redis.ids import START, Id, Place, shown
from headgate.connectors.redis.options import RedisSourceOptions
from headgate.connectors.redis.scripts import ENTRY
from headgate.connectors.redis.session import ANSWER_S, Session, TooMuch, address_of
from headgate.errors import Cause, ConnectorError
from headgate.text import counted

WAIT_S = 5.0  # A read that blocks is asked again this often, so that a server that is gone is noticed.
MOST_LOOKS = 10  # For a similar name, at a thousand keys each.


@dataclass(frozen=True, slots=True)
class Info:
    """How a stream stands."""

    length: int
    last: Id  # The highest id that was ever given.
    first: Id | None  # Of the entries that are there.
    added: int | None  # How many there ever were. None: an old server, which does not count.

    @classmethod
    def of(cls, reply: Sequence[Any]) -> Info:
        """From XINFO STREAM."""
        found = dict(zip(reply[::2], reply[1::2], strict=False))
        first = found.get(b"first-entry")
        return cls(
            found[b"length"],
            ids.parse(found[b"last-generated-id"].decode()),
            ids.parse(first[0].decode()) if first else None,
            found.get(b"entries-added"),
        )

    @property
    def removed(self) -> int | None:
        """How many entries are gone."""
        return None if self.added is None else self.added - self.length


class Absent(ConnectorError):
    """There is no such stream."""


class RedisStreamSource:
    """Reads one stream."""

    def __init__(self, options: RedisSourceOptions, context: Context) -> None:
        assert options.stream is not None
        self._options = options
        self._key = options.stream
        self._context = context
        address = address_of(options.url.get_secret_value())
        self._session = Session(address, context.guard)
        self._other = Session(address, context.guard)  # For questions, while a read waits on the first.
        self._format = options.format or "fields"
        self._place = Place()
        self._count = options.batch  # Entries to ask for, so that their bytes stay within bounds.

    async def check(self) -> None:
        """The stream is there, or may come later."""
        await self._info(self._session)

    async def parts(self) -> Sequence[str]:
        """One."""
        return [""]

    async def open(self, position: Position) -> None:
        """Continue after this entry."""
        try:
            self._place = ids.place_of(position)
        except ValueError:
            raise ConnectorError("the position is not the id of an entry", cause=Cause.CONFIG) from None
        info = await self._info(self._session)
        if info is not None:
            self._place = self._judged(self._place, info)

    async def read(self) -> Batch:
        """Wait for entries."""
        while True:
            try:
                place, entries, size_bytes = await self._read_some()
            except TooMuch:
                place, entries, size_bytes = await self._read_one()
            if entries:
                break
            self._place = place
            await self._wait()
        return await self._batch(place, entries, size_bytes)

    async def backlog(self) -> Backlog | None:
        """How many entries wait, where the numbers tell."""
        place, info = self._place, await self._info(self._other)
        if info is None or info.last <= place.id:
            return Backlog(0)
        if place.id == START or (info.first is not None and info.first > place.id):
            return Backlog(info.length)
        if place.added is None or info.added is None:
            return None
        return Backlog(max(0, min(info.length, info.added - place.added)))

    async def ack(self, position: Position) -> None:
        """Nobody needs to know: entries stay until their writers trim the stream."""

    async def close(self) -> None:
        """End the connections."""
        await self._session.close()
        await self._other.close()

    # Reading.

    async def _read_some(self) -> tuple[Place, list[Any], int]:
        """Where we stand, the entries after it, and their bytes."""
        options = self._options
        last = shown(self._place.id)
        commands = (
            ("MULTI",),
            ("XINFO", "STREAM", self._key),
            ("XREAD", "COUNT", self._count, "STREAMS", self._key, last),
            ("EXEC",),
        )
        *_, replies = await self._session.calls(
            commands, most_bytes=2 * options.batch_bytes + 2 * options.max_message_bytes
        )
        info = self._found(replies[0])
        if isinstance(replies[1], hiredis.ReplyError):
            raise steering(Answered.of(replies[1]), self._session.name)
        place = self._place if info is None else self._judged(self._place, info)
        if place.id != self._place.id:  # It starts over, and what was asked for was after another id.
            return place, [], 0
        entries = replies[1][0][1] if replies[1] else []
        size_bytes = sum(sum(map(len, fields)) for _, fields in entries)
        if entries:
            average = max(1, size_bytes // len(entries))
            self._count = min(options.batch, max(1, options.batch_bytes // average))
        return place, entries, size_bytes

    async def _read_one(self) -> tuple[Place, list[Any], int]:
        """The same for one entry, of which only the beginning comes if it is too large."""
        most = self._options.max_message_bytes
        found = await ENTRY.run(self._session, [self._key], shown(self._place.id), most, KEPT_BYTES)
        info, size_bytes, *entry = found
        place = self._judged(self._place, Info.of(info))
        if place.id != self._place.id or not entry:
            return place, [], 0
        self._count = max(1, min(self._options.batch, self._options.batch_bytes // max(1, size_bytes)))
        if size_bytes > most:
            entry = [(entry[0][0], Cut(entry[0][1], size_bytes))]
        return place, entry, size_bytes

    async def _wait(self) -> None:
        """Until there is an entry, or for a while. Whatever comes is read again."""
        wait = ("XREAD", "COUNT", 1, "BLOCK", int(WAIT_S * 1000), "STREAMS", self._key, shown(self._place.id))
        try:
            await self._session.call(*wait, within_s=WAIT_S + ANSWER_S)
        except TooMuch:
            return

    async def _batch(self, place: Place, entries: list[Any], size_bytes: int) -> Batch:
        options, key = self._options, self._key
        found = [ids.parse(id.decode()) for id, _ in entries]
        fields = [one for _, one in entries]
        records = await records_of(fields, self._format, options.field, options.max_message_bytes)
        added = None if place.added is None else place.added + len(entries)
        self._place = Place(found[-1], added)
        return Batch(
            records,
            position=ids.position_of(self._place),
            size_bytes=min(size_bytes, len(entries) * options.max_message_bytes),
            event_time_s=ids.time_s(found[-1]),
            meta=[{"stream": key, "id": shown(id)} for id in found],
            place=lambda index: f"stream {key}, entry {shown(found[index])}",
        )

    # Whether something is missing.

    async def _info(self, session: Session) -> Info | None:
        try:
            (reply,) = await session.answers([("XINFO", "STREAM", self._key)])
        except TooMuch:  # It has whole entries in it.
            reply = (await ENTRY.run(session, [self._key], shown(START), 0, 0))[0]
        try:
            return self._found(reply)
        except Absent as absent:
            near = difflib.get_close_matches(self._key, await _streams(session), n=3)
            if near:
                absent.hint = f"did you mean {' or '.join(near)}?"
            raise

    def _found(self, reply: Any) -> Info | None:
        """None: there is no stream, and that is as it should be."""
        if not isinstance(reply, hiredis.ReplyError):
            return Info.of(reply)
        answer = Answered.of(reply)
        if "no such key" not in answer.text:
            raise steering(answer, self._session.name)
        if self._options.missing == "fail":
            raise Absent(
                f"{self._session.name} has no stream {self._key!r}",
                cause=Cause.CONFIG,
                hint="missing: go_on waits until somebody adds an entry",
            )
        return None

    def _judged(self, place: Place, info: Info) -> Place:
        """Where we stand. Raises if entries after it are gone and nobody said that this may be."""
        if place.id == START:
            return Place(START, info.removed)
        if info.last < place.id:
            self._missing(f"the stream was made again since entry {shown(place.id)}")
            return Place(START, info.removed)
        if info.first is not None and info.first <= place.id:
            return place
        # All that is left lies after the position.
        if place.added is not None and info.added is not None:
            missing = info.added - place.added - info.length
            if missing > 0:
                what = counted(missing, "entry", "entries")
                self._missing(f"{what} after {shown(place.id)} gone: removed before being read")
        elif info.last > place.id and info.removed != 0:
            self._missing(f"entries after {shown(place.id)} may be gone: removed before being read")
        return replace(place, added=info.removed)

    def _missing(self, what: str) -> None:
        if self._options.missing == "fail":
            hint = "missing: go_on continues with what is there"
            raise ConnectorError(f"stream {self._key}: {what}", cause=Cause.CONFIG, hint=hint)
        self._context.log.warning("entries are missing", what=what)


async def _streams(session: Session) -> list[str]:
    """The names of some streams."""
    found: list[str] = []
    cursor: bytes = b"0"
    for _ in range(MOST_LOOKS):
        cursor, some = await session.call("SCAN", cursor, "COUNT", 1000, "TYPE", "stream")
        found += [name.decode("utf-8", "replace") for name in some]
        if cursor == b"0":
            break
    return found

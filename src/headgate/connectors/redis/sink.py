"""Writes a batch and its position in one script, which the server runs whole or not at all.

The position of a stream is a hash next to the data: its epoch, and its progress. `open` raises the epoch, unless it is
as high already or our trust is over by the server's own clock; `write` compares it. A run that was stopped, or whose
words arrive late, finds a higher epoch and changes nothing. What was done and not heard of is in the progress that the
next `open` returns.

It lasts as long as the server's memory does: without an append-only file a crash of the server takes back the last
seconds, position and data together, and the stream goes on from there as far as its source can.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec

from headgate.connectors.api import Context, Grant, Outgoing, Progress
from headgate.connectors.payloads import encoded
from headgate.connectors.progress import progress_of, values_of
from headgate.connectors.redis.entries import packed_body, packed_fields
from headgate.connectors.redis.options import RedisSinkOptions, next_to, tag_of
from headgate.connectors.redis.scripts import OPEN, WRITE
from headgate.connectors.redis.session import Session, address_of
from headgate.errors import Bad, BadRecords, Cause, ConnectorError, Fenced, NotConnected

VALUE_BYTES = 512 * 2**20 - 1024  # The most that a server takes for one value, if nobody has changed that.

NOTHING = b"\x90"  # An empty list, packed.


class RedisSink:
    """Writes one stream into a stream, a list, or keys."""

    def __init__(self, options: RedisSinkOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._session = Session(address_of(options.url.get_secret_value()), context.guard)
        target = options.stream or options.list
        self._target = target
        self._near = target if target is not None else options.keys or ""  # Positions are next to it.
        self._shape = options.format or ("fields" if options.stream is not None else "json")
        self._grant: Grant | None = None

    async def check(self) -> None:
        """What is there is of the kind that is written, and the server keeps it."""
        hello = await self._session.call("HELLO")
        about = dict(zip(hello[::2], hello[1::2], strict=False))
        if self._target is None and about.get(b"mode") == b"cluster" and tag_of(self._near) == self._near:
            raise ConnectorError(
                f"{self._session.name} is a cluster, and keys that begin with {self._near!r} are on many of its nodes",
                cause=Cause.CONFIG,
                hint="put what they share in braces, as in {orders}:, so that a batch can be written at once",
            )
        if self._target is not None:
            kind = (await self._session.call("TYPE", self._target)).decode()
            wanted = "stream" if self._options.stream is not None else "list"
            if kind not in ("none", wanted):
                why = f"{self._session.name}: {self._target!r} is no {wanted}, but a {kind}"
                raise ConnectorError(why, cause=Cause.CONFIG, hint="name another key")

    async def open(self, grant: Grant) -> Progress | None:
        """Fence every older run; return where the data stand."""
        await self.check()
        key = [self._position_key(grant.installation, grant.stream)]
        _, now_us, epoch, _ = await OPEN.run(self._session, key, grant.epoch)
        until_us = int(now_us) + int(grant.trust_left_s() * 1e6)  # In this order: what happens in between shortens it.
        if epoch is not None and int(epoch) >= grant.epoch:
            raise Fenced(f"epoch {grant.epoch} is fenced by epoch {int(epoch)}")
        word, *rest = await OPEN.run(self._session, key, grant.epoch, until_us)
        if word == b"LATE":
            raise NotConnected("our trust ended before the sink was open")
        if word == b"FENCED":
            raise Fenced(f"epoch {grant.epoch} is fenced by epoch {int(rest[0])}")
        self._grant = grant
        await self._warn()
        return progress_of(None if rest[2] is None else msgspec.json.decode(rest[2]), grant)

    async def write(self, batch: Outgoing) -> None:
        """Records and position, at once."""
        grant, options = self._grant, self._options
        assert grant is not None, "the sink is open"
        own = self._position_key(grant.installation, grant.stream)
        keys, kind, values = self._prepared(batch)
        _check_sizes(values)
        await WRITE.run(
            self._session,
            [own, *keys],
            grant.epoch,
            msgspec.json.encode(values_of(batch.progress)),
            kind,
            options.max_length or 0,
            *values,
        )

    async def _warn(self) -> None:
        """Say what a crash of the server would take back, if it tells and somebody should know."""
        with suppress(ConnectorError):  # INFO may be denied.
            text = (await self._session.call("INFO", "persistence")) + (await self._session.call("INFO", "memory"))
            about = dict(line.split(b":", 1) for line in text.splitlines() if b":" in line)
            if about.get(b"aof_enabled") == b"0":
                self._context.log.warning("the server has no append-only file: a crash takes back what it wrote last")
            if about.get(b"maxmemory") != b"0" and about.get(b"maxmemory_policy", b"").startswith(b"allkeys"):
                self._context.log.warning("the server may evict positions: set maxmemory-policy to noeviction")

    async def forget(self, installation: UUID, streams: Sequence[UUID]) -> None:
        """Remove positions of streams that are gone. It need not be open."""
        for stream in streams:
            await self._session.call("DEL", self._position_key(installation, stream))

    async def close(self) -> None:
        """End the connection."""
        await self._session.close()

    def _position_key(self, installation: UUID, stream: UUID) -> str:
        return next_to(self._near, f"position:{installation}:{stream}")

    def _prepared(self, batch: Outgoing) -> tuple[list[str], str, Sequence[bytes]]:
        """The keys, what to do with them, and the values."""
        options, shape = self._options, self._shape
        if options.stream is not None:
            return [options.stream], "stream", self._packed(batch.records, options.field)
        if options.list is not None:
            assert shape != "fields"
            return [options.list], "list", encoded(batch.records, shape)
        return self._keyed(batch)

    def _keyed(self, batch: Outgoing) -> tuple[list[str], str, Sequence[bytes]]:
        prefix, shape, gone = self._options.keys or "", self._shape, set(batch.deletes)
        keys, bad = [], []
        for index, record in enumerate(batch.records):
            try:
                keys.append(prefix + key_text(record, batch.key))
            except ValueError as error:
                bad.append(Bad(index, None, str(error)))
        if bad:
            raise BadRecords(bad)
        kept = [index for index in range(len(batch.records)) if index not in gone]
        values = [NOTHING] * len(batch.records)
        try:
            made = self._packed([batch.records[index] for index in kept])
        except BadRecords as error:
            raise BadRecords([Bad(kept[one.index], one.field, one.reason) for one in error.bad]) from None
        for index, value in zip(kept, made, strict=True):
            values[index] = value
        return keys, "hash" if shape == "fields" else "string", values

    def _packed(self, records: Sequence[dict[str, Any]], *before: str) -> list[bytes]:
        if self._shape == "fields":
            return packed_fields(records)
        return [packed_body(body, *before) for body in encoded(records, self._shape)]


def key_text(record: dict[str, Any], key: Sequence[str]) -> str:
    """The values of a record's key in one text; `a\\:b` for a colon within one of several."""
    texts = []
    for name in key:
        value = record.get(name)
        if isinstance(value, str):
            texts.append(value if len(key) == 1 else value.replace("\\", "\\\\").replace(":", "\\:"))
        elif isinstance(value, bool | int | float):
            texts.append(msgspec.json.encode(value).decode())
        else:
            raise ValueError(f"{name} of its key is {'missing' if value is None else 'no text or number'}")  # noqa: TRY004
    return ":".join(texts)


def _check_sizes(values: Sequence[bytes]) -> None:
    bad = [Bad(index, None, "it is larger than 512 MB") for index, one in enumerate(values) if len(one) > VALUE_BYTES]
    if bad:
        raise BadRecords(bad)

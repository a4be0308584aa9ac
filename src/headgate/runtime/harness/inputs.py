"""The inputs of a test as a source hands them on: decoded from bodies, read from the real source, or as they are.

A source that receives gets its bodies one at a time, through an inbox or a feed that is only here. Nothing is ever
acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from headgate.connectors.api import INBOX_IDENTITY, Batch, Context, Position, Received, Sink, Source
from headgate.core.figures import Backlog
from headgate.core.harness.payloads import MOST_INPUTS, bodies_in
from headgate.core.harness.results import Given
from headgate.core.push import PUSH
from headgate.core.records import Unreadable
from headgate.datasources.prepared import Prepared
from headgate.errors import ConfigError, ConnectorError, EndOfStream, RetryLater
from headgate.runtime.harness.safe import safe
from headgate.runtime.streams import parts, sides

CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Item:
    """One input and the record that it is."""

    given: Given
    record: Any
    meta: Any
    index: int = 0  # Of the input.


@dataclass(frozen=True, slots=True)
class _Body:
    """One payload in the inbox of a test."""

    id: int
    received_at_s: float
    headers: dict[str, str]
    body: bytes


class OneByOne:
    """An inbox and a feed that has what was put into it last, once."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[_Body] = asyncio.Queue()

    def put(self, number: int, given: Given) -> None:
        """The next one."""
        self._waiting.put_nowait(_Body(number, given.at_s, given.headers, given.body or b""))

    async def after(self, id: int, limit: int) -> Sequence[Received]:
        """What was put in; waits for it."""
        return [await self._waiting.get()]

    async def ack(self, id: int) -> None:
        """Nothing is removed."""

    async def close(self) -> None:
        """Nothing is held."""

    def rewind(self, position: Position) -> None:
        """There is one position only."""

    def backlog(self) -> Backlog:
        """Nothing waits: it is handed over one by one."""
        return Backlog(0, 0)

    async def read(self) -> Batch:
        """Not used: a program's records are decoded before its feed has them."""
        raise EndOfStream("nothing more is pushed")


def takes_bodies(prepared: Prepared) -> bool:
    """Whether what the source reads was sent to it."""
    return prepared.source.name == PUSH or prepared.source_identity == INBOX_IDENTITY


def from_payload(prepared: Prepared, payload: bytes, at_s: float) -> list[Given]:
    """A payload as the inputs that it holds."""
    is_text = takes_bodies(prepared) and getattr(prepared.source_options, "format", "") == "text"
    bodies = bodies_in(payload, is_text=is_text)
    if len(bodies) > MOST_INPUTS:
        raise ConfigError(f"the payload has {len(bodies)} records; {MOST_INPUTS} may be tested at once")
    headers = {"content-type": "text/plain" if is_text else "application/json"}
    return [Given(body=body, headers=headers, at_s=at_s) for body in bodies]


async def from_given(prepared: Prepared, context: Context, given: Sequence[Given]) -> AsyncIterator[Item]:
    """What was handed in, as the source of this version would hand it on."""
    of_inbox = prepared.source_identity == INBOX_IDENTITY
    inbox = OneByOne()
    source = sides.build_source(prepared, replace(context, inbox=inbox)) if of_inbox else None
    if source is not None:
        await source.open(None)
    for number, one in enumerate(given, 1):
        if one.unreadable:
            yield Item(one, Unreadable(one.body or b"", one.unreadable), one.meta, number - 1)
        elif one.body is None:
            yield Item(one, one.record, one.meta, number - 1)
        elif source is not None:
            inbox.put(number, one)
            for item in await _read_body(source, one):
                yield replace(item, index=number - 1)
        else:
            record, meta = _named(prepared, _decoded(prepared, one.body), one.meta)
            yield Item(one, record, meta, number - 1)


async def _read_body(source: Source, given: Given) -> list[Item]:
    try:
        batch = await source.read()
    except ConnectorError:
        raise
    except ValueError as error:  # A source that does not say `Unreadable` itself. Its words may repeat the body.
        return [Item(given, Unreadable(given.body or b"", f"the source raised {type(error).__name__}"), given.meta)]
    metas = batch.meta or [None] * len(batch.records)
    return [Item(given, record, meta) for record, meta in zip(batch.records, metas, strict=True)]


def _named(prepared: Prepared, found: Any, meta: Any) -> tuple[Any, Any]:
    """The record and its `meta`: where each stream is written apart, a payload may say which one its record is of, as a
    tap says it."""
    match found:
        case {"stream": str(stream), "record": record} if prepared.splits:
            return record, {"stream": stream, "key": found.get("key") or found.get("key_properties") or []}
    return found, meta


def _decoded(prepared: Prepared, body: bytes) -> Any:
    """As the door for programs that push does it; for other sources a payload is JSON."""
    if prepared.source.name == PUSH and prepared.source_options.format == "text":
        return {"body": body.decode("utf-8", "replace")}
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return Unreadable(body, "the payload is not JSON")


async def from_source(prepared: Prepared, context: Context, most: int) -> AsyncIterator[Item]:
    """The first records that the real source has. It is opened at its beginning, and nothing is acknowledged."""
    source = await _build(prepared, context)
    try:
        await source.open(None)
        left, index = most, 0
        while left > 0:
            try:
                batch = await source.read()
            except EndOfStream:
                return
            except RetryLater as later:
                await asyncio.sleep(later.after_s)
                continue
            metas = batch.meta or [None] * len(batch.records)
            for record, meta in list(zip(batch.records, metas, strict=False))[:left]:
                yield Item(_given(record, meta), record, meta, index)
                index += 1
            left -= len(batch.records)
    finally:
        await close(source)


async def _build(prepared: Prepared, context: Context) -> Source:
    if prepared.source_kind.in_parts:
        return await parts.take(lambda part: sides.build_source(prepared, context, part), parts.Share())
    return sides.build_source(prepared, context)


def _given(record: Any, meta: Any) -> Given:
    if isinstance(record, Unreadable):
        return Given(body=record.body, unreadable=record.reason, meta=safe(meta))
    return Given(record=safe(record), meta=safe(meta))


async def close(side: Source | Sink) -> None:
    """A test that has its results has nothing more to lose."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_S):
            await side.close()

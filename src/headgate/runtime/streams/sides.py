"""The two sides of a version: built, checked and closed; what their errors mean, and what they wait for."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar, cast

import structlog

from headgate.clock import unix_s
from headgate.connectors import plugins
from headgate.connectors.api import Connector, Context, Marked, Sink, SinkKind, Source, SourceKind
from headgate.connectors.guard import Guard
from headgate.core.lifecycle import Failure
from headgate.core.reach import Kind
from headgate.datasources.prepared import Prepared, SinkSide
from headgate.errors import Cause, ConfigError, ConnectorError, HeadgateError, NotConnected, StoreError
from headgate.hidden import hide
from headgate.runtime.apart.process import Process
from headgate.runtime.apart.remote import Prober, process_of
from headgate.runtime.apart.sink import RemoteSink
from headgate.runtime.apart.source import RemoteSource
from headgate.runtime.streams.hosting import Threaded, awaitable
from headgate.runtime.streams.shared import SharedThings
from headgate.text import error_line

CLOSE_S = 2.0
CHECK_S = 30.0

T = TypeVar("T")

Side: TypeAlias = Literal["source", "sink"]

_KEY = secrets.token_bytes(16)  # What a URL names may be a piece of a password: no key of a target tells it.


def build_source(prepared: Prepared, context: Context, part: str = "") -> Source:
    """The source, or that of one part, made awaitable if its methods block."""
    return source_builder(prepared, context)(part)


def source_builder(prepared: Prepared, context: Context) -> Callable[[str], Source]:
    """Builds sources of parts. If they have their own process, it is one for all that live at the same time."""
    connector, kind, options = prepared.source, prepared.source_kind, prepared.source_options
    context = replace(context, guard=prepared.source_guard)
    process: Process | None = None

    def build(part: str) -> Source:
        nonlocal process
        prepared.source_guard.check(kind.reaches(options))
        if _is_apart(connector, context):
            if process is None or process.is_over:
                process = process_of(connector, "source", prepared.source_given, context)
            return RemoteSource(process, part)
        source = plugins.built(connector, lambda: kind.build(options, replace(context, part=part)))
        return _awaitable(connector, source, context)

    return build


def build_sink(prepared: Prepared, context: Context) -> Sink:
    """The sink of a version."""
    return build_sink_side(prepared.sink_side, context)


def build_sink_side(side: SinkSide, context: Context) -> Sink:
    """A sink by itself, made awaitable if its methods block."""
    side.guard.check(side.kind.reaches(side.options))
    context = replace(context, guard=side.guard, field_types=side.field_types)
    if _is_apart(side.connector, context):
        return RemoteSink(process_of(side.connector, "sink", side.given, context))
    sink = plugins.built(side.connector, lambda: side.kind.build(side.options, context))
    return _awaitable(side.connector, sink, context)


def _is_apart(connector: Connector, context: Context) -> bool:
    """Whether it has its own process. That of a test is one already."""
    return connector.runs == "process" and not context.is_rehearsal


def _awaitable(connector: Connector, built: T, context: Context) -> T:
    if connector.runs == "process":
        return cast(T, awaitable(built, context.stream))
    return cast(T, Threaded(built, context.stream)) if connector.runs == "thread" else built


async def check(prepared: Prepared, context: Context) -> None:
    """Whether this version could be opened, without taking anything that a running one holds."""
    source, sink = build_source(prepared, context), build_sink(prepared, context)
    await asyncio.gather(check_one(source), check_one(sink))


async def check_one(side: Source | Sink) -> None:
    """The same for one of them."""
    try:
        async with asyncio.timeout(CHECK_S):
            await side.check()
    except TimeoutError:
        raise NotConnected(f"the check took longer than {CHECK_S:.0f} s") from None
    finally:
        await close(side)


async def marks(prepared: Prepared, context: Context) -> tuple[str, str]:
    """What the data of both sides say that they are; empty: nothing, or they cannot tell."""
    source = build_source(prepared, context) if prepared.source_kind.is_marked else None
    sink = build_sink(prepared, context) if prepared.sink_kind.is_marked else None
    said = await asyncio.gather(*(_mark_of(side) if side is not None else _nothing() for side in (source, sink)))
    return said[0], said[1]


async def _mark_of(side: Source | Sink) -> str:
    try:
        async with asyncio.timeout(CHECK_S):
            return await cast(Marked, side).mark() or ""
    except TimeoutError:
        raise NotConnected(f"the question which data these are took longer than {CHECK_S:.0f} s") from None
    finally:
        await close(side)


async def _nothing() -> str:
    return ""


def failure_of(error: BaseException) -> Failure:
    """What to write down about an error, without any secret, and what it means for the next try."""
    found = _failure_of(error)
    # A file name that is not UTF-8, or a NUL in a message, must not keep anything from being written down.
    text = found.message.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return Failure(found.cause, hide(text))


def _failure_of(error: BaseException) -> Failure:
    match error:
        case ConnectorError():
            return Failure(error.cause, error_line(error))
        case ConfigError():
            return Failure(Cause.CONFIG, error.message)
        case StoreError():
            return Failure(Cause.NETWORK, error.message)
        case HeadgateError():
            return Failure(Cause.CONFIG, error.message)
        case OSError():
            return Failure(Cause.NETWORK, error_line(error))
        case _:
            return Failure(Cause.BUG, error_line(error))


# What a stream waits for.


@dataclass(frozen=True, slots=True)
class Awaited:
    """A target (`core.awaited`), and how to ask whether it answers."""

    key: str
    probe: Callable[[], Awaitable[None]] | None = None  # None: somebody asks it all the time.


REGISTRY = Awaited("registry")


def awaited_of(prepared: Prepared | None, side: Side | None, error: BaseException) -> Awaited | None:
    """What has to come back after this error, if that can be told. Without a side to blame it is the registry, which
    gives a stream its epoch and a node its trust."""
    if _failure_of(error).cause is not Cause.NETWORK:
        return None
    if prepared is None or side is None or isinstance(error, StoreError):
        return REGISTRY
    return _target(prepared, side)


def targets_of(prepared: Prepared) -> list[str]:
    """What a version reaches that can be waited for."""
    sides: tuple[Side, Side] = ("source", "sink")
    return [found.key for side in sides if (found := _target(prepared, side)) is not None]


def _target(prepared: Prepared, side: Side) -> Awaited | None:
    kind: SourceKind | SinkKind
    if side == "source":
        kind, options, guard = prepared.source_kind, prepared.source_options, prepared.source_guard
    else:
        kind, options, guard = prepared.sink_kind, prepared.sink_options, prepared.sink_guard
    places, own = list(kind.reaches(options)), kind.probe
    addresses = [place for place in places if place.kind is Kind.ADDRESS and place.port]
    if own is None and not addresses:
        return None
    named = str(sorted(map(str, places))).encode("utf-8", "surrogatepass")
    key = hashlib.blake2b(named, key=_KEY, digest_size=16).hexdigest()
    return Awaited(key, (lambda: guard.knock(addresses)) if own is None else _own_probe(prepared, side, own))


def _own_probe(
    prepared: Prepared, side: Side, probe: Callable[[Any, Guard], Awaitable[None]]
) -> Callable[[], Awaitable[None]]:
    """The connector's question, asked in a process if that is where it lives."""
    if side == "source":
        connector, options, given = prepared.source, prepared.source_options, prepared.source_given
        guard = prepared.source_guard
    else:
        connector, options, given = prepared.sink, prepared.sink_options, prepared.sink_given
        guard = prepared.sink_guard
    if connector.runs != "process":
        return lambda: probe(options, guard)
    context = Context("probe", structlog.get_logger("headgate.probe"), unix_s, SharedThings(), guard=guard)
    return Prober(lambda: process_of(connector, side, given, context))


async def close(*sides: Source | Sink) -> None:
    """Close both. If one hangs or fails, the other is closed all the same."""
    for side in sides:
        await quietly(side.close())


async def quietly(closing: Awaitable[T], within_s: float = CLOSE_S) -> None:
    """Wait for the end of something that nobody needs any more, but not long, and whether it fails or not."""
    try:
        async with asyncio.timeout(within_s):
            await closing
    except Exception as error:  # A run that has ended has nothing more to lose.
        del error

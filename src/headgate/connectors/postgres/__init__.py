"""PostgreSQL: a sink that writes each record exactly once, and bulk sessions at the speed of COPY."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.connectors.api import (
    Connector,
    Landing,
    LocalSocket,
    Reader,
    ReaderKind,
    SinkKind,
    Writer,
    WriterKind,
)

if TYPE_CHECKING:
    from headgate.connectors.api import Context, Sink
    from headgate.connectors.guard import Guard
    from headgate.connectors.postgres.options import PostgresOptions


def _options() -> type[PostgresOptions]:
    from headgate.connectors.postgres.options import PostgresOptions

    return PostgresOptions


def _sink(options: PostgresOptions, context: Context) -> Sink:
    from headgate.connectors.postgres.sink import PostgresSink

    return PostgresSink(options, context)


async def _probe(options: PostgresOptions, guard: Guard) -> None:
    from headgate.connectors.postgres.session import probe

    await probe(options.url.get_secret_value(), guard)


def _reader(url: str, snapshot: str | None) -> Reader:
    from headgate.connectors.postgres.reader import PostgresReader

    return PostgresReader(url, snapshot)


def _writer(url: str) -> Writer:
    from headgate.connectors.postgres.writer import PostgresWriter

    return PostgresWriter(url)


def _landing(options: PostgresOptions) -> Landing | None:
    from headgate.connectors.postgres.catalog import quoted_path

    if options.mode != "upsert" or _by_stream(options):
        return None
    return Landing(options.url.get_secret_value(), quoted_path(options.table))


def _by_stream(options: PostgresOptions) -> str:
    from headgate.connectors.postgres.names import has_streams

    # Where a secret stands that may not stand there, that is said elsewhere.
    return "table" if isinstance(options.table, str) and has_streams(options.table) else ""


def _sockets(options: PostgresOptions) -> Sequence[LocalSocket]:
    from headgate.connectors.postgres.startup import sockets_of

    return sockets_of(options.url.get_secret_value())


CONNECTOR = Connector(
    name="postgres",
    summary="Write rows into a PostgreSQL table, exactly once",
    sink=SinkKind(
        _options,
        _sink,
        transactional=True,
        keeps_letters=True,
        forgets=True,
        is_marked=True,
        needs_key=lambda options: options.mode == "upsert",
        can_delete=lambda options: options.mode == "upsert",
        by_stream=_by_stream,
        probe=_probe,
        sockets=_sockets,
        promise="exactly once",
    ),
    reader=ReaderKind(_reader),
    writer=WriterKind(_writer, of_sink=_landing),
    schemes=("postgresql", "postgres"),
)

"""SQLite, in bulk."""

from __future__ import annotations

from headgate.connectors.api import Connector, Reader, ReaderKind, Writer, WriterKind


def _reader(url: str, snapshot: str | None) -> Reader:
    from headgate.connectors.sqlite.reader import SqliteReader

    return SqliteReader(url)


def _writer(url: str) -> Writer:
    from headgate.connectors.sqlite.writer import SqliteWriter

    return SqliteWriter(url)


CONNECTOR = Connector(
    name="sqlite",
    summary="Copy tables from and to SQLite files",
    reader=ReaderKind(_reader),
    writer=WriterKind(_writer),
    schemes=("sqlite",),
    is_local=True,
    endings={".db": "sqlite", ".sqlite": "sqlite", ".sqlite3": "sqlite"},
)

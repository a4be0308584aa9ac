"""MySQL and MariaDB, in bulk."""

from __future__ import annotations

from headgate.connectors.api import Connector, Reader, ReaderKind, Writer, WriterKind


def _reader(url: str, snapshot: str | None) -> Reader:
    from headgate.connectors.mysql.reader import MysqlReader

    return MysqlReader(url)


def _writer(url: str) -> Writer:
    from headgate.connectors.mysql.writer import MysqlWriter

    return MysqlWriter(url)


CONNECTOR = Connector(
    name="mysql",
    summary="Copy tables from and to MySQL and MariaDB",
    reader=ReaderKind(_reader),
    writer=WriterKind(_writer),
    schemes=("mysql", "mariadb"),
)

"""MongoDB, in bulk."""

from __future__ import annotations

from headgate.connectors.api import Connector, Reader, ReaderKind, Writer, WriterKind


def _reader(url: str, snapshot: str | None) -> Reader:
    from headgate.connectors.mongodb.reader import MongoReader

    return MongoReader(url)


def _writer(url: str) -> Writer:
    from headgate.connectors.mongodb.writer import MongoWriter

    return MongoWriter(url)


CONNECTOR = Connector(
    name="mongodb",
    summary="Copy collections from and to MongoDB",
    reader=ReaderKind(_reader),
    writer=WriterKind(_writer),
    schemes=("mongodb", "mongodb+srv"),
)

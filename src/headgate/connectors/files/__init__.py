"""Files: JSON Lines as a source and a sink; CSV, JSON, JSON Lines and Parquet in bulk, a file or a folder per table."""

from __future__ import annotations

from headgate.connectors.api import (
    Connector,
    Context,
    Position,
    Reader,
    ReaderKind,
    Sink,
    SinkKind,
    Source,
    SourceKind,
    Writer,
    WriterKind,
)
from headgate.connectors.files.options import FilesSinkOptions, FilesSourceOptions
from headgate.connectors.places import place_of_path
from headgate.connectors.urls import scheme_of


def _source(options: FilesSourceOptions, context: Context) -> Source:
    from headgate.connectors.files.source import FilesSource

    return FilesSource(options, context)


def _sink(options: FilesSinkOptions, context: Context) -> Sink:
    from headgate.connectors.files.sink import FilesSink

    return FilesSink(options, context)


def _reader(url: str, snapshot: str | None) -> Reader:
    match scheme_of(url):
        case "csv":
            from headgate.connectors.files.csv import CsvReader

            return CsvReader(url)
        case "json":
            from headgate.connectors.files.json_array import JsonReader

            return JsonReader(url)
        case "parquet":
            from headgate.connectors.files.parquet import ParquetReader

            return ParquetReader(url)
        case _:
            from headgate.connectors.files.jsonl import JsonlReader

            return JsonlReader(url)


def _writer(url: str) -> Writer:
    match scheme_of(url):
        case "csv":
            from headgate.connectors.files.csv import CsvWriter

            return CsvWriter(url)
        case "json":
            from headgate.connectors.files.json_array import JsonWriter

            return JsonWriter(url)
        case "parquet":
            from headgate.connectors.files.parquet import ParquetWriter

            return ParquetWriter(url)
        case _:
            from headgate.connectors.files.jsonl import JsonlWriter

            return JsonlWriter(url)


def _tell_move(before: Position, after: Position) -> str:
    from headgate.connectors.files.source import tell_move

    return tell_move(before, after)


CONNECTOR = Connector(
    name="files",
    summary="Reads and appends JSON Lines",
    source=SourceKind(
        FilesSourceOptions,
        _source,
        knows_backlog=True,
        tell_move=_tell_move,
        reaches=lambda options: [place_of_path(options.path, "path")],
        promise="exactly once into a transactional sink",
    ),
    sink=SinkKind(
        FilesSinkOptions,
        _sink,
        reaches=lambda options: [place_of_path(options.path, "path")],
        promise="at least once",
    ),
    reader=ReaderKind(_reader),
    writer=WriterKind(_writer),
    schemes=("csv", "json", "jsonl", "parquet"),
    is_local=True,
    endings={".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"},
)

"""Parquet files, as Arrow batches.

A table is cut between row groups: several small ones are one chunk, and a large one is one chunk, read batch
by batch. Every type of other writers becomes the kind that holds each of its values, or is refused with the column's
name: a duration, and times in nanoseconds that microseconds do not hold. Nested types become JSON text.

What is written names the kind of each column in the file's own metadata, so that UUID, NUMERIC and JSON, which are text
in an Arrow batch, come back as what they were.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate.connectors.api.bulk import By, Column, Csv, Job, Language, Piece, Pieces, StorageError, Table
from headgate.connectors.files.errors import translate_errors
from headgate.connectors.files.manifest import Manifest
from headgate.connectors.files.reader import Description, FileReader, Span, check_unchanged
from headgate.connectors.files.writer import FileWriter
from headgate.connectors.values.arrow import arrow_type
from headgate.connectors.values.convert import cannot_hold, json_text
from headgate.connectors.values.kinds import Kind, Type, decimal_type, type_from_text
from headgate.errors import Refused
from headgate.text import one_line

FAMILY = "parquet"
ENDINGS = (".parquet",)
BATCH = 16_384  # Rows that are read at once.
GROUP = 131_072  # Rows of a row group that is written:
GROUP_BYTES = 64 << 20  # fewer, if they are large.
SHORT = 1000  # Characters of a text whose least and greatest values a file tells.
COMPRESSION = "zstd"
COMPRESSION_LEVEL = 1  # As quick as snappy, and files of three quarters the size.
_KIND = b"headgate"  # The key in a column's metadata.


class ParquetReader(FileReader):
    """Reads Parquet."""

    languages: Sequence[Language] = (Language.ARROW,)
    endings = ENDINGS
    by = By.OFFSET
    family = FAMILY

    def inspect(self, paths: list[Path], manifest: Manifest | None) -> Description:
        """The schema, which all files share, and their row groups."""
        columns: tuple[Column, ...] | None = None
        parts, rows = [], 0
        for path in paths:
            with _opened(path) as file:
                found = columns_of(file.schema_arrow, path)
                if columns is not None and [(c.name, c.type) for c in found] != [(c.name, c.type) for c in columns]:
                    raise Refused(f"{path} has other columns than the files before it", code="columns_differ")
                columns = columns or found
                parts.append(self.part_of(path, path.stat(), 0, file.metadata.num_row_groups))
                rows += file.metadata.num_rows
        if columns is None:  # An empty table has no files, but a manifest.
            columns = manifest.types() if manifest else ()
        return Description(columns, parts, rows=rows)

    def ahead(self, span: Span, rows: int) -> tuple[int, int]:
        """As many whole row groups; one at least."""
        with self._unchanged(span) as file:
            at = span.begin
            while at < span.end and rows > 0:
                rows -= file.metadata.row_group(at).num_rows
                at += 1
            return at, max(0, rows)

    async def read(self, table: Table, span: Span, language: Language, csv: Csv) -> Pieces:
        """The span's row groups."""
        file = await asyncio.to_thread(self._unchanged, span)
        with file:
            names = [column.name for column in table.columns]
            batches = file.iter_batches(BATCH, row_groups=list(range(span.begin, span.end)), columns=names)
            schema = pa.schema([pa.field(column.name, arrow_type(column.type)) for column in table.columns])
            while (batch := await asyncio.to_thread(self._next, span, table, batches, schema)) is not None:
                yield Piece(batch, batch.nbytes, batch.num_rows)

    def _next(
        self, span: Span, table: Table, batches: Iterator[pa.RecordBatch], schema: pa.Schema
    ) -> pa.RecordBatch | None:
        with translate_errors(span.path), _translate_arrow_errors(span.path):
            batch = next(batches, None)
            if batch is None:
                return None
            arrays = [canonical_array(batch.column(column.name), column) for column in table.columns]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _unchanged(self, span: Span) -> pq.ParquetFile:
        with translate_errors(span.path):
            check_unchanged(span, os.stat(span.path))
        return _opened(span.path)


@contextmanager
def _translate_arrow_errors(path: Path) -> Iterator[None]:
    """Arrow's errors as ours."""
    try:
        yield
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise StorageError(f"{path}: {one_line(error, 300)}") from None


def _opened(path: Path) -> pq.ParquetFile:
    with translate_errors(path), _translate_arrow_errors(path):
        return pq.ParquetFile(path)


# Types.


def columns_of(schema: pa.Schema, path: Path) -> tuple[Column, ...]:
    """The columns of a file."""
    columns = []
    for field in schema:
        type = type_of(field)
        if type is None:
            raise Refused(f"{path}: column {field.name!r} is {field.type}, which no storage holds", code="no_type")
        columns.append(Column(field.name, type, field.nullable, str(field.type)))
    names = [column.name for column in columns]
    if len(set(names)) < len(names):
        raise Refused(f"{path} has two columns of the same name", code="bad_header")
    return tuple(columns)


_KINDS: list[tuple[Callable[[pa.DataType], bool], Kind]] = [
    (pa.types.is_boolean, Kind.BOOL),
    (lambda one: pa.types.is_int8(one) or pa.types.is_int16(one) or pa.types.is_uint8(one), Kind.INT16),
    (lambda one: pa.types.is_int32(one) or pa.types.is_uint16(one), Kind.INT32),
    (lambda one: pa.types.is_int64(one) or pa.types.is_uint32(one), Kind.INT64),
    (lambda one: pa.types.is_float16(one) or pa.types.is_float32(one), Kind.FLOAT32),
    (pa.types.is_float64, Kind.FLOAT64),
    (lambda one: pa.types.is_string(one) or pa.types.is_large_string(one) or pa.types.is_string_view(one), Kind.TEXT),
    (lambda one: pa.types.is_binary(one) or pa.types.is_large_binary(one) or pa.types.is_binary_view(one), Kind.BYTES),
    (pa.types.is_fixed_size_binary, Kind.BYTES),
    (pa.types.is_date, Kind.DATE),
    (pa.types.is_time, Kind.TIME),
    (pa.types.is_nested, Kind.JSON),
    (pa.types.is_null, Kind.TEXT),
]


def type_of(field: pa.Field) -> Type | None:
    """The type that holds each value of a field. None: there is none."""
    arrow = field.type
    named = (field.metadata or {}).get(_KIND)
    if named is not None:
        type = type_from_text(named.decode())
        if arrow_type(type) == arrow:
            return type
    if isinstance(arrow, pa.BaseExtensionType):
        if arrow.extension_name == "arrow.uuid":
            return Type(Kind.UUID)
        if arrow.extension_name == "arrow.json":
            return Type(Kind.JSON)
        arrow = arrow.storage_type
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if pa.types.is_uint64(arrow):
        return decimal_type(20, 0)
    if pa.types.is_decimal(arrow):
        return decimal_type(arrow.precision, arrow.scale)
    if pa.types.is_timestamp(arrow):
        return Type(Kind.TIMESTAMP if arrow.tz is None else Kind.TIMESTAMPTZ)
    return next((Type(kind) for is_it, kind in _KINDS if is_it(arrow)), None)


def canonical_array(array: pa.Array, column: Column) -> pa.Array:
    """The values with the Arrow type of their kind; one that it does not hold ends the chunk."""
    wanted = arrow_type(column.type)
    if isinstance(array, pa.ExtensionArray):
        is_uuid = array.type.extension_name == "arrow.uuid"
        array = array.storage
        if is_uuid:
            texts = [None if one is None else str(UUID(bytes=one)) for one in array.to_pylist()]
            return pa.array(texts, pa.string())
    if array.type == wanted:
        return array
    try:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_nested(array.type):
            return pa.array([None if one is None else json_text(_plain(one)) for one in array.to_pylist()], wanted)
        if column.type.kind is Kind.NUMERIC:
            return pa.array([None if one is None else format(one, "f") for one in array.to_pylist()], wanted)
        if pa.types.is_float16(array.type):
            return array.cast(pa.float32())
        if pa.types.is_timestamp(array.type) and array.type.tz is not None:
            array = array.cast(pa.timestamp(array.type.unit, "UTC"))
        if pa.types.is_date64(array.type):
            return _days(array)
        return array.cast(wanted)
    except (pa.ArrowException, OverflowError):
        raise cannot_hold(column) from None
    except ValueError as error:
        raise cannot_hold(column, error) from None


def _days(array: pa.Array) -> pa.Array:
    days = array.cast(pa.date32())
    if pc.all(pc.equal(days.cast(pa.date64()), array)).as_py() not in (True, None):
        raise ValueError("a date with a time of day")
    return days


def _plain(value: object) -> object:
    """A nested value without Arrow's own types: a map is a list of pairs."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


# Writing.


class ParquetWriter(FileWriter):
    """Writes Parquet."""

    languages: Sequence[Language] = (Language.ARROW,)
    family = FAMILY
    endings = ENDINGS

    async def fill(self, file: BinaryIO, job: Job, pieces: Pieces) -> int:
        """Batches, gathered into row groups."""
        schema = schema_of(job.source.columns)
        held: list[pa.RecordBatch] = []
        rows = count = size = 0
        with _writer(file, job.source.columns) as out:
            async for piece in pieces:
                held.append(piece.data)
                count, size, rows = count + piece.data.num_rows, size + piece.data.nbytes, rows + piece.data.num_rows
                if count >= GROUP or size >= GROUP_BYTES:
                    await asyncio.to_thread(_write_group, out, held, schema)
                    held, count, size = [], 0, 0
            if count:
                await asyncio.to_thread(_write_group, out, held, schema)
        return rows

    def join(self, old: Path | None, parts: list[Path], job: Job, out: BinaryIO) -> None:
        """All row groups, one after the other."""
        schema = schema_of(job.source.columns)
        with _writer(out, job.source.columns) as joined:
            for path in [*([old] if old else []), *parts]:
                with _opened(path) as file:
                    columns = columns_of(file.schema_arrow, path)
                    if path is old and [(c.name, c.type) for c in columns] != [
                        (c.name, c.type) for c in job.source.columns
                    ]:
                        raise Refused(f"{path} has other columns", code="columns_differ")
                    for number in range(file.metadata.num_row_groups):
                        for batch in file.iter_batches(GROUP, row_groups=[number]):
                            arrays = [canonical_array(batch.column(column.name), column) for column in columns]
                            _write_group(joined, [pa.RecordBatch.from_arrays(arrays, schema=schema)], schema)

    def columns_of(self, path: Path) -> list[str] | None:
        """The names in the schema of a file."""
        if not path.stat().st_size:
            return None
        with _opened(path) as file:
            return list(file.schema_arrow.names)


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """The schema with the kinds in its metadata."""
    return pa.schema(
        [
            pa.field(column.name, arrow_type(column.type), metadata={_KIND: str(column.type).encode()})
            for column in columns
        ]
    )


def _writer(file: BinaryIO, columns: Sequence[Column]) -> pq.ParquetWriter:
    # Without dictionaries: with them the same million rows take twice as long, and half as much room again. Without the
    # least and the greatest of texts that may be of any length: of a value of 200 MB these took 1.2 GB.
    return pq.ParquetWriter(
        file,
        schema_of(columns),
        compression=COMPRESSION,
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=False,
        write_statistics=[column.name for column in columns if _is_short(column)],
    )


def _is_short(column: Column) -> bool:
    is_text = column.type.kind in (Kind.TEXT, Kind.BYTES, Kind.JSON, Kind.NUMERIC)
    return not is_text or 0 < column.type.length <= SHORT


def _write_group(out: pq.ParquetWriter, batches: list[pa.RecordBatch], schema: pa.Schema) -> None:
    table = pa.Table.from_batches([batch.cast(schema) if batch.schema != schema else batch for batch in batches])
    out.write_table(table.cast(schema) if table.schema != schema else table, row_group_size=max(1, table.num_rows))

"""Arrow batches: their types, and the way between them, canonical CSV and Python values.

This is the one door to pyarrow. It is imported on the event loop by the first module that needs a batch, and all of
pyarrow with it: threads that import parts of it at the same time would see it half loaded. Everything here may run in
threads.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from headgate.connectors.api.bulk import PLAIN, Column, Csv, StorageError
from headgate.connectors.values.convert import Buffer, bytes_of, cannot_hold, fitted
from headgate.connectors.values.kinds import Kind, Type, canonical
from headgate.connectors.values.long_bytes import LongBytes

Numbers: TypeAlias = np.ndarray[Any, Any]

with suppress(NotImplementedError):  # Not all builds have this allocator. The usual one keeps half as much again.
    pa.set_memory_pool(pa.jemalloc_memory_pool())


def arrow_type(type: Type) -> pa.DataType:
    """How a column of this type looks in an Arrow batch. NUMERIC, UUID and JSON are their text."""
    if type.kind is Kind.DECIMAL:
        return (pa.decimal128 if type.precision <= 38 else pa.decimal256)(type.precision, type.scale)
    return {
        Kind.BOOL: pa.bool_(),
        Kind.INT16: pa.int16(),
        Kind.INT32: pa.int32(),
        Kind.INT64: pa.int64(),
        Kind.FLOAT32: pa.float32(),
        Kind.FLOAT64: pa.float64(),
        Kind.BYTES: pa.binary(),
        Kind.DATE: pa.date32(),
        Kind.TIME: pa.time64("us"),
        Kind.TIMESTAMP: pa.timestamp("us"),
        Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    }.get(type.kind, pa.string())


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema of a batch with these columns."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])


def raw(array: pa.Array, type: str) -> Numbers:
    """The values of an array as they lie in memory, for numpy; what lies there for a NULL means nothing."""
    return np.frombuffer(array.buffers()[1], type)[array.offset : array.offset + len(array)]


def csv_parser(columns: Sequence[Column]) -> Callable[[Buffer], pa.RecordBatch]:
    """A function that reads whole records of canonical CSV into one batch."""
    schema = arrow_schema(columns)
    has_bytes = any(column.type.kind is Kind.BYTES for column in columns)
    names = [str(place) for place in range(len(columns))]  # Names may repeat in a file's header; places do not.
    convert = arrow_csv.ConvertOptions(
        column_types={name: _parsed_type(column) for name, column in zip(names, columns, strict=True)},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
        true_values=["1"],
        false_values=["0"],
    )
    # Where there is one column, an empty line is a NULL.
    parse = arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(columns) > 1)

    def read(data: Buffer) -> pa.RecordBatch:
        if has_bytes and (long := LongBytes(memoryview(data))) and (batch := lifted(long)) is not None:
            return batch
        arrays = [_from_text(array, column) for array, column in zip(parsed(data), columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def lifted(long: LongBytes) -> pa.RecordBatch | None:
        """The batch, whose long values are left out while it is parsed. None: one of them is no value of bytes."""
        arrays = list(zip(columns, parsed(long.rest), strict=True))
        if not long.are_in([array for column, array in arrays if column.type.kind is Kind.BYTES]):
            return None
        whole = [
            long.array(array.to_pylist(), column) if column.type.kind is Kind.BYTES else _from_text(array, column)
            for column, array in arrays
        ]
        return pa.RecordBatch.from_arrays(whole, schema=schema)

    def parsed(data: Buffer) -> list[pa.Array]:
        options = arrow_csv.ReadOptions(column_names=names, use_threads=False, block_size=max(len(data) + 1, 1024))
        try:
            table = arrow_csv.read_csv(pa.py_buffer(data), options, parse, convert)
        except pa.ArrowInvalid as error:
            raise _explained(str(error), columns) from None
        return [_one_array(table.column(place)) for place in range(len(columns))]

    return read


def _one_array(array: pa.ChunkedArray) -> pa.Array:
    array = array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    return array


def _parsed_type(column: Column) -> pa.DataType:
    """What Arrow reads from text by itself; the rest is made of that by `_from_text`."""
    if column.type.kind is Kind.TIMESTAMPTZ:
        return pa.timestamp("us")
    if column.type.kind is Kind.BYTES or _is_long(column):
        return pa.string()
    return arrow_type(column.type)


def _is_long(column: Column) -> bool:
    """Whether it is a decimal that Arrow cannot read from text."""
    return column.type.kind is Kind.DECIMAL and column.type.precision > 38


def _from_text(array: pa.Array, column: Column) -> pa.Array:
    if column.type.kind is Kind.TIMESTAMPTZ:
        return array.cast(pa.timestamp("us", "UTC"))
    if _is_long(column):
        try:
            return _array([None if one is None else Decimal(one) for one in array.to_pylist()], column)
        except InvalidOperation as error:
            raise cannot_hold(column, error) from None
    if column.type.kind is Kind.BYTES:
        return pa.array([None if one is None else bytes_of(one, column) for one in array.to_pylist()], pa.binary())
    return array


def _explained(message: str, columns: Sequence[Column]) -> StorageError:
    """What Arrow says about a column that it knows by its place, in our words."""
    found = re.search(r"In CSV column #(\d+): ", message)
    return StorageError(message.splitlines()[0]) if found is None else cannot_hold(columns[int(found[1])])


def csv_bytes(batch: pa.RecordBatch, columns: Sequence[Column], csv: Csv = PLAIN) -> bytes:
    """One batch as canonical CSV."""
    arrays = [_to_text(batch.column(place), column) for place, column in enumerate(columns)]
    plain = pa.RecordBatch.from_arrays(arrays, names=[str(place) for place in range(len(columns))])
    if (csv.null, csv.delimiter) == (PLAIN.null, PLAIN.delimiter):
        out = pa.BufferOutputStream()
        arrow_csv.write_csv(plain, out, arrow_csv.WriteOptions(include_header=False))
        return bytes(out.getvalue())
    if len(csv.delimiter.encode()) != 1 or _holds(plain, csv.delimiter):
        return _written_slowly(plain, csv)
    out = pa.BufferOutputStream()
    arrow_csv.write_csv(plain, out, arrow_csv.WriteOptions(include_header=False, delimiter=csv.delimiter))
    return with_null(bytes(out.getvalue()), csv)


def with_null(data: bytes, csv: Csv) -> bytes:
    """Fields that are empty get the word for NULL. The delimiter must occur in no value, and values with a newline
    must have quotes."""
    mark, null = csv.delimiter.encode(), csv.null.encode()
    for _ in range(2):  # A field between two delimiters shares each with its neighbour.
        data = data.replace(mark + mark, mark + null + mark)
    data = data.replace(b"\n" + mark, b"\n" + null + mark).replace(mark + b"\n", mark + null + b"\n")
    if mark not in data:  # One column: an empty line is an empty field, unless it is a value's.
        return re.sub(rb'(?m)"[^"]*"|^(?=\n)', lambda found: found[0] or null, data)
    return null + data if data.startswith(mark) else data


def _holds(batch: pa.RecordBatch, delimiter: str) -> bool:
    """Whether the delimiter occurs in a value, or a lone column makes an empty field look like an empty line."""
    if batch.num_columns == 1:
        return True
    texts = [column for column in batch.columns if pa.types.is_string(column.type)]
    return any(pc.any(pc.match_substring(column, delimiter)).as_py() for column in texts)


def _written_slowly(batch: pa.RecordBatch, csv: Csv) -> bytes:
    out = io.StringIO()
    # Python knows no short floats, and would write one with the digits of a long one.
    texts = [column.cast(pa.string()) if pa.types.is_floating(column.type) else column for column in batch.columns]
    for row in zip(*(column.to_pylist() for column in texts), strict=True):
        fields = (csv.null if value is None else '"' + str(canonical(value)).replace('"', '""') + '"' for value in row)
        out.write(csv.delimiter.join(fields) + "\n")
    return out.getvalue().encode()


def _to_text(array: pa.Array, column: Column) -> pa.Array:
    """An array that Arrow's own writer renders canonically."""
    kind = column.type.kind
    if kind is Kind.BOOL:
        return array.cast(pa.int8())
    if kind in (Kind.FLOAT32, Kind.FLOAT64):
        return _floats(array)
    if kind is Kind.DECIMAL and column.type.scale > 6:  # Arrow writes the very small ones as 1E-10.
        texts = [None if one is None else format(one, "f") for one in array.to_pylist()]
        return pa.array(texts, pa.string())
    if kind is Kind.TIMESTAMPTZ:
        return array.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    if kind is Kind.BYTES:
        return pa.array([None if one is None else "\\x" + one.hex() for one in array.to_pylist()], pa.string())
    return array


def _floats(array: pa.Array) -> pa.Array:
    """Arrow's words for what is no number are not ours."""
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return array
    texts = array.cast(pa.string())
    return pc.replace_substring(pc.replace_substring(texts, "nan", "NaN"), "inf", "Infinity")


def values_of(array: pa.Array, column: Column, read: Callable[[str], object] | None) -> list[object]:
    """One column of a batch as Python values."""
    try:
        if column.type.kind is Kind.TIMESTAMPTZ:  # Arrow's own way over a time zone takes ten times as long.
            plain = array.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).to_pylist()
            return [None if value is None else value.replace(tzinfo=UTC) for value in plain]
        values: list[Any] = array.to_pylist()
        return values if read is None else [None if value is None else read(value) for value in values]
    except (ValueError, OverflowError, InvalidOperation) as error:  # A year past 9999, or what is not JSON.
        raise cannot_hold(column, error) from None


def batch_of(rows: Sequence[Mapping[str, object]], columns: Sequence[Column]) -> pa.RecordBatch:
    """One batch of these rows. A field that is absent is NULL; one that is not a column ends the chunk."""
    known = {column.name for column in columns}
    for row in rows:
        if not row.keys() <= known:
            field = next(name for name in row if name not in known)
            raise StorageError(
                f"field {field!r} is new: the first records do not have it",
                hint="read more of them with ?sample=N in the URL, or name its type with --column",
            )
    arrays = [_array([row.get(column.name) for row in rows], column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _array(values: Sequence[object], column: Column) -> pa.Array:
    try:
        return pa.array([fitted(value, column) for value in values], arrow_type(column.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError):
        raise cannot_hold(column) from None
    except (ValueError, InvalidOperation) as error:
        raise cannot_hold(column, error) from None

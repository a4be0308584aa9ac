"""Translation between the languages of storages.

    CSV ◀──▶ ARROW ◀──▶ ROWS

Each step works piece by piece, off the event loop where it is worth it, and keeps no more than one piece. Reading text
into Arrow is strict: a value that the column's type cannot hold ends the chunk with the column's name. COPY is not
translated; it is either understood or not offered.
"""

from __future__ import annotations

import asyncio
import csv as text_csv
import io
import math
import re
import sys
from binascii import unhexlify
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from headgate.connectors.api.bulk import PLAIN, Column, Csv, Language, Piece, Pieces, StorageError
from headgate.connectors.values.kinds import Kind, arrow_schema, arrow_type, canonical
from headgate.text import one_line

BLOCK = 2 << 20  # Bytes of CSV that become one Arrow batch.
ROWS = 10_000  # Rows in a list.
PIECE = 4 << 20  # Bytes of CSV in a piece that is written.
GREATEST_FLOAT32 = 3.4028235677973366e38  # What is above becomes infinite.

Buffer: TypeAlias = bytes | memoryview

_CHAIN = (Language.CSV, Language.ARROW, Language.ROWS)


def spare_memory() -> None:
    """Have Arrow, where it is in use, give back what it needs no more: its usual allocator keeps half as much again."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        with suppress(NotImplementedError):  # Not all builds have this one.
            arrow.set_memory_pool(arrow.jemalloc_memory_pool())


def raw(array: Any, type: str) -> Any:
    """The values of an array as they lie in memory, for numpy; what lies there for a NULL means nothing."""
    import numpy as np

    return np.frombuffer(array.buffers()[1], type)[array.offset : array.offset + len(array)]


class Normalizes:
    """The `normalize` of a storage: whatever comes is put into the nearest language that it speaks."""

    languages: Sequence[Language]
    csv: Csv = PLAIN
    attempt: int = 1
    keeps_ledger: bool = True

    def normalize(self, pieces: Pieces, language: Language, columns: Sequence[Column]) -> tuple[Language, Pieces]:
        """The same data in a language of ours."""
        if language in self.languages:
            return language, pieces
        if language not in _CHAIN:
            raise StorageError(f"{language} cannot be translated")
        speaks = [one for one in _CHAIN if one in self.languages]
        if not speaks:
            raise StorageError(f"{language} is not understood")
        wanted = min(speaks, key=lambda one: abs(_CHAIN.index(one) - _CHAIN.index(language)))
        return wanted, translated(pieces, language, wanted, columns, self.csv)


def translated(
    pieces: Pieces, language: Language, wanted: Language, columns: Sequence[Column], csv: Csv = PLAIN
) -> Pieces:
    """The pieces in another language. `csv` is how CSV is to be written."""
    at, end = _CHAIN.index(language), _CHAIN.index(wanted)
    while at < end:
        pieces = (csv_to_arrow if at == 0 else arrow_to_rows)(pieces, columns)
        at += 1
    while at > end:
        pieces = arrow_to_csv(pieces, columns, csv) if at == 1 else rows_to_arrow(pieces, columns)
        at -= 1
    return pieces


def common(reads: Sequence[Language], writes: Sequence[Language]) -> Language:
    """The language that a source should speak to a target."""
    for language in reads:
        if language in writes:
            return language
    return next(language for language in reads if language is not Language.COPY)


# CSV to Arrow.


async def csv_to_arrow(pieces: Pieces, columns: Sequence[Column]) -> Pieces:
    """Whole records of canonical CSV become batches."""
    parse = csv_parser(columns)
    held: list[bytes] = []
    size, enough = 0, BLOCK
    async for piece in pieces:
        held.append(piece.data)
        size += len(piece.data)
        if size < enough:
            continue
        data = b"".join(held)
        end = end_of_records(data)
        held, size = [data[end:]], len(data) - end
        enough = max(BLOCK, 2 * size)  # A record of many blocks is not looked through again for each of them.
        if end:
            yield await _parsed(parse, memoryview(data)[:end])
    if size:
        yield await _parsed(parse, b"".join(held))


async def _parsed(parse: Callable[[Buffer], Any], data: Buffer) -> Piece:
    batch = await asyncio.to_thread(parse, data)
    return Piece(batch, len(data), batch.num_rows)


def end_of_records(data: bytes) -> int:
    """Where the last whole record ends. The data begins with a record, and a newline in quotes ends none."""
    end = data.rfind(b"\n")
    quotes = data.count(b'"', 0, max(end, 0))
    while end >= 0 and quotes % 2:
        before = data.rfind(b"\n", 0, end)
        quotes -= data.count(b'"', max(before, 0), end)
        end = before
    return end + 1


def csv_parser(columns: Sequence[Column]) -> Callable[[Buffer], Any]:
    """A function that reads whole records of canonical CSV into one batch."""
    import pyarrow as pa
    import pyarrow.csv as pc

    schema = arrow_schema(list(columns))
    names = [str(place) for place in range(len(columns))]  # Names may repeat in a file's header; places do not.
    convert = pc.ConvertOptions(
        column_types={name: _parsed_type(column) for name, column in zip(names, columns, strict=True)},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
        true_values=["1"],
        false_values=["0"],
    )
    # Where there is one column, an empty line is a NULL.
    parse = pc.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(columns) > 1)

    def read(data: Buffer) -> Any:
        options = pc.ReadOptions(column_names=names, use_threads=False, block_size=max(len(data) + 1, 1024))
        try:
            table = pc.read_csv(pa.py_buffer(data), read_options=options, parse_options=parse, convert_options=convert)
        except pa.ArrowInvalid as error:
            raise StorageError(_told(str(error), columns)) from None
        arrays = [_from_text(table.column(place).combine_chunks(), column) for place, column in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return read


def _parsed_type(column: Column) -> Any:
    """What Arrow reads from text by itself; the rest is made of that by `_from_text`."""
    import pyarrow as pa

    if column.type.kind is Kind.TIMESTAMPTZ:
        return pa.timestamp("us")
    if column.type.kind is Kind.BYTES or _is_long(column):
        return pa.string()
    return arrow_type(column.type)


def _is_long(column: Column) -> bool:
    """Whether it is a decimal that Arrow cannot read from text."""
    return column.type.kind is Kind.DECIMAL and column.type.precision > 38


def _from_text(array: Any, column: Column) -> Any:
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if column.type.kind is Kind.TIMESTAMPTZ:
        return array.cast(pa.timestamp("us", "UTC"))
    if _is_long(column):
        try:
            return _array([None if one is None else Decimal(one) for one in array.to_pylist()], column)
        except InvalidOperation as error:
            raise _cannot_hold(column, error) from None
    if column.type.kind is Kind.BYTES:
        return pa.array([None if one is None else bytes_of(one, column) for one in array.to_pylist()], pa.binary())
    return array


def bytes_of(text: str, column: Column) -> bytes:
    """The bytes of their canonical text."""
    try:
        if text.startswith("\\x"):
            return unhexlify(text[2:])
    except ValueError:
        pass
    raise _cannot_hold(column, ValueError(f"{text[:40]!r} is not \\x and digits"))


def _told(message: str, columns: Sequence[Column]) -> str:
    """What Arrow says about a column that it knows by its place."""
    found = re.search(r"In CSV column #(\d+): (?:CSV conversion error to )?(.*)", message.splitlines()[0])
    if found is None:
        return message.splitlines()[0]
    column = columns[int(found[1])]
    return f"column {column.name!r} ({column.type}) cannot hold a value: {found[2]}"


# Arrow to CSV.


async def arrow_to_csv(pieces: Pieces, columns: Sequence[Column], csv: Csv = PLAIN) -> Pieces:
    """Batches become canonical CSV."""
    async for piece in pieces:
        data = await asyncio.to_thread(csv_bytes, piece.data, columns, csv)
        for at in range(0, len(data), PIECE):
            yield Piece(data[at : at + PIECE], min(PIECE, len(data) - at), piece.rows if at == 0 else 0)


def csv_bytes(batch: Any, columns: Sequence[Column], csv: Csv = PLAIN) -> bytes:
    """One batch as canonical CSV."""
    import pyarrow as pa
    import pyarrow.csv as pc

    arrays = [_to_text(batch.column(place), column) for place, column in enumerate(columns)]
    plain = pa.RecordBatch.from_arrays(arrays, names=[str(place) for place in range(len(columns))])
    if (csv.null, csv.delimiter) == (PLAIN.null, PLAIN.delimiter):
        out = pa.BufferOutputStream()
        pc.write_csv(plain, out, pc.WriteOptions(include_header=False))
        return bytes(out.getvalue())
    if len(csv.delimiter.encode()) != 1 or _holds(plain, csv.delimiter):
        return _written_slowly(plain, csv)
    out = pa.BufferOutputStream()
    pc.write_csv(plain, out, pc.WriteOptions(include_header=False, delimiter=csv.delimiter))
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


def _holds(batch: Any, delimiter: str) -> bool:
    """Whether the delimiter occurs in a value, or a lone column makes an empty field look like an empty line."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if batch.num_columns == 1:
        return True
    texts = [column for column in batch.columns if pa.types.is_string(column.type)]
    return any(pc.any(pc.match_substring(column, delimiter)).as_py() for column in texts)


def _written_slowly(batch: Any, csv: Csv) -> bytes:
    import pyarrow as pa

    out = io.StringIO()
    # Python knows no short floats, and would write one with the digits of a long one.
    texts = [column.cast(pa.string()) if pa.types.is_floating(column.type) else column for column in batch.columns]
    for row in zip(*(column.to_pylist() for column in texts), strict=True):
        fields = (csv.null if value is None else '"' + canonical(value).replace('"', '""') + '"' for value in row)
        out.write(csv.delimiter.join(fields) + "\n")
    return out.getvalue().encode()


def _to_text(array: Any, column: Column) -> Any:
    """An array that Arrow's own writer renders canonically."""
    import pyarrow as pa

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


def _floats(array: Any) -> Any:
    """Arrow's words for what is no number are not ours."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.all(pc.is_finite(array)).as_py() is not False:
        return array
    texts = array.cast(pa.string())
    return pc.replace_substring(pc.replace_substring(texts, "nan", "NaN"), "inf", "Infinity")


# Arrow and rows.


async def arrow_to_rows(pieces: Pieces, columns: Sequence[Column]) -> Pieces:
    """Batches become lists of dicts, a few thousand at a time."""
    names = [column.name for column in columns]
    reads = [value_reader(column) for column in columns]
    async for piece in pieces:
        batch = piece.data
        for at in range(0, batch.num_rows, ROWS):
            some = batch.slice(at, ROWS)
            values = [
                values_of(some.column(place), column, read)
                for place, (column, read) in enumerate(zip(columns, reads, strict=True))
            ]
            rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
            yield Piece(rows, piece.size * len(rows) // max(1, batch.num_rows), len(rows))
            await asyncio.sleep(0)


def values_of(array: Any, column: Column, read: Callable[[Any], Any] | None) -> list[Any]:
    """One column of a batch as Python values."""
    import pyarrow as pa

    try:
        if column.type.kind is Kind.TIMESTAMPTZ:  # Arrow's own way over a time zone takes ten times as long.
            plain = array.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).to_pylist()
            return [None if value is None else value.replace(tzinfo=UTC) for value in plain]
        values: list[Any] = array.to_pylist()
        return values if read is None else [None if value is None else read(value) for value in values]
    except (ValueError, OverflowError, InvalidOperation) as error:  # A year past 9999, or what is not JSON.
        raise _cannot_hold(column, error) from None


def value_reader(column: Column) -> Callable[[Any], Any] | None:
    """What makes a Python value of the text that a batch holds. None: the value is what it should be."""
    readers: dict[Kind, Callable[[Any], Any]] = {
        Kind.NUMERIC: Decimal,
        Kind.UUID: UUID,
        Kind.JSON: msgspec.json.Decoder(float_hook=Decimal).decode,
    }
    return readers.get(column.type.kind)


async def rows_to_arrow(pieces: Pieces, columns: Sequence[Column]) -> Pieces:
    """Lists of dicts become batches."""
    async for piece in pieces:
        batch = await asyncio.to_thread(batch_of, piece.data, columns)
        yield Piece(batch, piece.size, batch.num_rows)


def batch_of(rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> Any:
    """One batch of these rows. A field that is absent is NULL; one that is not a column ends the chunk."""
    import pyarrow as pa

    known = {column.name for column in columns}
    for row in rows:
        if not row.keys() <= known:
            field = next(name for name in row if name not in known)
            raise StorageError(
                f"a record has the field {field!r}, and the first ones had not",
                hint="look at more of them (--sample), or name its type (--column)",
            )
    arrays = [_array([row.get(column.name) for row in rows], column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(list(columns)))


def _array(values: list[Any], column: Column) -> Any:
    import pyarrow as pa

    try:
        return pa.array([fitted(value, column) for value in values], arrow_type(column.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError, InvalidOperation) as error:
        raise _cannot_hold(column, error) from None


def _cannot_hold(column: Column, error: Exception) -> StorageError:
    told = one_line(error, 200)
    return StorageError(f"column {column.name!r} ({column.type}) cannot hold a value: {told}")


def fitted(value: Any, column: Column) -> Any:
    """A Python value as the column's kind wants it, unchanged in meaning. Raises ValueError if there is no such."""
    if value is None:
        return None
    kind = column.type.kind
    match kind, value:
        case Kind.BOOL, bool():
            return value
        case Kind.JSON, _:
            return value if isinstance(value, _RawJson) else json_text(value)
        case _, bool():
            pass
        case ((Kind.INT16 | Kind.INT32 | Kind.INT64), int()):
            return value
        case ((Kind.INT16 | Kind.INT32 | Kind.INT64), (float() | Decimal())):
            if value != int(value):
                raise ValueError(f"{value!r} is not a whole number")
            return int(value)
        case ((Kind.FLOAT32 | Kind.FLOAT64), int()):
            if int(float(value)) != value:
                raise ValueError(f"{value!r} would be rounded")
            return float(value)
        case Kind.FLOAT32, float():
            if math.isfinite(value) and abs(value) > GREATEST_FLOAT32:
                raise ValueError(f"{value!r} is too large")
            return value
        case Kind.FLOAT64, float():
            return value
        case Kind.DECIMAL, (int() | Decimal()):
            return Decimal(value)
        case Kind.NUMERIC, (int() | Decimal() | str()):
            return canonical(Decimal(value))
        case Kind.NUMERIC, float():
            return canonical(Decimal(repr(value)))
        case Kind.UUID, (UUID() | str()):
            return str(UUID(str(value)))
        case Kind.TEXT, str():
            return value
        case Kind.BYTES, (bytes() | bytearray() | memoryview()):
            return bytes(value)
        case ((Kind.TIMESTAMP | Kind.TIMESTAMPTZ), datetime()):
            if (value.tzinfo is None) != (kind is Kind.TIMESTAMP):
                raise ValueError("with and without a time zone do not mix")
            return value
        case Kind.DATE, date() if not isinstance(value, datetime):
            return value
        case Kind.TIME, time() if value.tzinfo is None:
            return value
        case ((Kind.DATE | Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMPTZ), str()):
            return moment_of(value, kind)
    raise ValueError(f"{type(value).__name__} {str(value)[:40]!r} is not a {kind}")


def fine(text: str) -> str:
    """The text of a time. Raises ValueError if it is finer than microseconds: Python would cut that off."""
    if re.search(r"[.,]\d{6}\d*[1-9]", text):
        raise ValueError(f"{text!r} is finer than microseconds")
    return text


def moment_of(text: str, kind: Kind) -> date | time | datetime:
    """A date, a time or a moment from its text, in full. A moment with a zone that is not named is in UTC."""
    if kind is Kind.DATE:
        return date.fromisoformat(text)
    text = fine(text)
    if kind is Kind.TIME:
        found = time.fromisoformat(text)
        if found.tzinfo is not None:
            raise ValueError(f"{text!r} has a time zone")
        return found
    moment = datetime.fromisoformat(text)
    if kind is Kind.TIMESTAMPTZ:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    if moment.tzinfo is not None:
        raise ValueError(f"{text!r} has a time zone")
    return moment


class _RawJson(str):
    """JSON that is text already, exactly as its source had it."""


def raw_json(text: str) -> str:
    """Mark text as JSON that is not to be encoded again."""
    return _RawJson(text)


def json_text(value: Any) -> str:
    """A value as a JSON document. What JSON has no word for is text: bytes in base64, times in ISO 8601. Raises
    ValueError for NaN and Infinity, which it cannot say at all."""
    text: str = _ENCODER.encode(value).decode()
    if ("null" in text or "NaN" in text or "Infinity" in text) and not is_finite(value):
        raise ValueError("JSON has no NaN and no Infinity")
    return text


def is_finite(value: Any) -> bool:
    """Whether each number in a document is one."""
    match value:
        case float():
            return math.isfinite(value)
        case Decimal():
            return value.is_finite()
        case dict():
            return all(map(is_finite, value.values()))
        case list() | tuple():
            return all(map(is_finite, value))
    return True


_ENCODER = msgspec.json.Encoder(enc_hook=canonical, decimal_format="number", uuid_format="canonical")


def only_text(columns: Iterable[Column]) -> bool:
    """Whether no column needs more than its text: such a file needs no Arrow to be copied."""
    return all(column.type.kind is Kind.TEXT for column in columns)


def csv_rows(data: bytes) -> list[list[str]]:
    """Whole records of CSV as lists of text; for headers and samples."""
    return list(text_csv.reader(io.StringIO(data.decode("utf-8", "strict"), newline="")))

"""Translation between the languages of storages.

    CSV ◀──▶ ARROW ◀──▶ ROWS

Each step works piece by piece, off the event loop where it is worth it, and keeps no more than one piece. Reading text
into Arrow is strict: a value that the column's type cannot hold ends the chunk with the column's name. COPY is not
translated; it is either understood or not offered.
"""

from __future__ import annotations

import asyncio
import math
import re
from binascii import unhexlify
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

import msgspec

from headgate.connectors.api.bulk import PLAIN, Column, Csv, Language, Piece, Pieces, StorageError
from headgate.connectors.values.kinds import JSON_NULL, Kind, canonical
from headgate.text import one_line

if TYPE_CHECKING:
    from pyarrow import RecordBatch

BLOCK = 2 << 20  # Bytes of CSV that become one Arrow batch.
LARGE = 16 << 20  # Bytes of a piece that are not copied if that can be helped.
ROWS = 10_000  # Rows in a list.
PIECE = 4 << 20  # Bytes of CSV in a piece that is written.
GREATEST_FLOAT32 = 3.4028235677973366e38  # What is above becomes infinite.

Buffer: TypeAlias = bytes | memoryview

_CHAIN = (Language.CSV, Language.ARROW, Language.ROWS)
_DOCUMENTS = msgspec.json.Decoder(float_hook=Decimal)
_ON_ONE_LINE = str.maketrans("\r\n", "  ")


class Normalizes:
    """The `normalize` of a storage: whatever comes is put into the nearest language that it speaks."""

    languages: Sequence[Language]
    csv: Csv = PLAIN
    attempt: int = 1
    keeps_ledger: bool = True
    documents: bool = False  # Rows have JSON as its text (`msgspec.Raw`), in which no key and no digit is lost.

    def normalize(self, pieces: Pieces, language: Language, columns: Sequence[Column]) -> tuple[Language, Pieces]:
        """The same data in a language that this writer speaks."""
        if language in self.languages:
            return language, pieces
        if language not in _CHAIN:
            raise StorageError(f"language {language} cannot be translated")
        speaks = [one for one in _CHAIN if one in self.languages]
        if not speaks:
            raise StorageError(f"language {language} is not understood")
        wanted = min(speaks, key=lambda one: abs(_CHAIN.index(one) - _CHAIN.index(language)))
        return wanted, translated(pieces, language, wanted, columns, self.csv, documents=self.documents)


def translated(
    pieces: Pieces,
    language: Language,
    wanted: Language,
    columns: Sequence[Column],
    csv: Csv = PLAIN,
    *,
    documents: bool = False,
) -> Pieces:
    """The pieces in another language. `csv` is how CSV is to be written; `documents`: JSON in rows is its text."""
    at, end = _CHAIN.index(language), _CHAIN.index(wanted)
    while at < end:
        pieces = csv_to_arrow(pieces, columns) if at == 0 else arrow_to_rows(pieces, columns, documents=documents)
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
    from headgate.connectors.values.arrow import csv_parser

    parse = csv_parser(columns)
    held, enough = bytearray(), BLOCK  # It grows in place: parts that are joined would be there twice.
    async for piece in pieces:
        data: bytes | bytearray = piece.data
        del piece  # A value may be large: nothing else may hold it.
        if held and len(data) > LARGE and (end := end_of_records(held)):
            yield await _parsed(parse, memoryview(held)[:end])
            held = held[end:]
        if held or len(data) < enough:
            held += data
            if len(held) < enough:
                continue
            data = held
        end = end_of_records(data)
        held = bytearray(memoryview(data)[end:])
        enough = max(BLOCK, 2 * len(held))  # So that a record of many blocks is not scanned again for each of them.
        if end:
            parsed = await _parsed(parse, memoryview(data)[:end])
            del data
            yield parsed
            del parsed
    if held:
        parsed = await _parsed(parse, memoryview(held))
        held = bytearray()
        yield parsed


async def _parsed(parse: Callable[[Buffer], RecordBatch], data: Buffer) -> Piece:
    batch = await asyncio.to_thread(parse, data)
    return Piece(batch, len(data), batch.num_rows)


def end_of_records(data: bytes | bytearray) -> int:
    """Where the last whole record ends. The data begins with a record, and a newline in quotes ends none."""
    end = data.rfind(b"\n")
    quotes = data.count(b'"', 0, max(end, 0))
    while end >= 0 and quotes % 2:
        before = data.rfind(b"\n", 0, end)
        quotes -= data.count(b'"', max(before, 0), end)
        end = before
    return end + 1


def bytes_of(text: str | memoryview, column: Column) -> bytes:
    """The bytes of their canonical text."""
    try:
        if text[:2] in ("\\x", b"\\x"):
            return unhexlify(text[2:])
    except ValueError:
        pass
    raise cannot_hold(column, ValueError("a value is not \\x and digits"))


# Arrow to CSV.


async def arrow_to_csv(pieces: Pieces, columns: Sequence[Column], csv: Csv = PLAIN) -> Pieces:
    """Batches become canonical CSV."""
    from headgate.connectors.values.arrow import csv_bytes

    async for piece in pieces:
        data = await asyncio.to_thread(csv_bytes, piece.data, columns, csv)
        for at in range(0, len(data), PIECE):
            yield Piece(data[at : at + PIECE], min(PIECE, len(data) - at), piece.rows if at == 0 else 0)


# Arrow and rows.


async def arrow_to_rows(pieces: Pieces, columns: Sequence[Column], *, documents: bool = False) -> Pieces:
    """Batches become lists of dicts, a few thousand at a time."""
    from headgate.connectors.values.arrow import values_of

    names = [column.name for column in columns]
    reads = [value_reader(column, documents=documents) for column in columns]
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


def value_reader(column: Column, *, documents: bool = False) -> Callable[[str], object] | None:
    """What makes a Python value of the text that a batch holds. None: the value is what it should be."""
    readers: dict[Kind, Callable[[str], object]] = {
        Kind.NUMERIC: Decimal,
        Kind.UUID: UUID,
        Kind.JSON: _raw_document if documents else _document,
    }
    return readers.get(column.type.kind)


def _document(text: str) -> object:
    found = _DOCUMENTS.decode(text)
    return JSON_NULL if found is None else found


def _raw_document(text: str) -> msgspec.Raw:
    """The document as it is written, on one line. Strings in it have no newlines: JSON escapes them."""
    _DOCUMENTS.decode(text)  # Raises what is wrong with it.
    return msgspec.Raw(text.translate(_ON_ONE_LINE).encode())


async def rows_to_arrow(pieces: Pieces, columns: Sequence[Column]) -> Pieces:
    """Lists of dicts become batches."""
    from headgate.connectors.values.arrow import batch_of

    async for piece in pieces:
        batch = await asyncio.to_thread(batch_of, piece.data, columns)
        yield Piece(batch, piece.size, batch.num_rows)


def cannot_hold(column: Column, error: Exception | None = None) -> StorageError:
    """What to say of a value that is not of its column's kind. Without an error of ours, that is all that is known."""
    why = f": {one_line(error, 200)}" if error is not None else ""
    return StorageError(
        f"column {column.name!r} ({column.type}) cannot hold one of its values{why}",
        hint=f"--column {column.name}=text" if column.type.kind is not Kind.TEXT else "",
    )


def fitted(value: object, column: Column) -> object:
    """A Python value as the column's kind wants it, unchanged in meaning. Raises ValueError if there is no such."""
    if value is None:
        return None
    kind = column.type.kind
    match kind, value:
        case Kind.BOOL, bool():
            return value
        case Kind.JSON, _:
            return json_text(value)
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
                raise ValueError("times with and without a time zone do not mix")
            return value
        case Kind.DATE, date() if not isinstance(value, datetime):
            return value
        case Kind.TIME, time() if value.tzinfo is None:
            return value
        case ((Kind.DATE | Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMPTZ), str()):
            return moment_of(value, kind)
    raise ValueError(f"{type(value).__name__} {str(value)[:40]!r} is not a {kind}")


def at_most_micros(text: str) -> str:
    """The text of a time. Raises ValueError if it is finer than microseconds: Python would drop the rest."""
    if re.search(r"[.,]\d{6}\d*[1-9]", text):
        raise ValueError(f"{text!r} is finer than microseconds")
    return text


def moment_of(text: str, kind: Kind) -> date | time | datetime:
    """A date, a time or a moment from its text, in full. A moment with a zone that is not named is in UTC."""
    if kind is Kind.DATE:
        return date.fromisoformat(text)
    text = at_most_micros(text)
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


def json_text(value: object) -> str:
    """A value as a JSON document. What JSON has no word for is text: bytes in base64, times in ISO 8601. Raises
    ValueError for NaN and Infinity, which it cannot say at all."""
    text: str = _ENCODER.encode(value).decode()
    if ("null" in text or "NaN" in text or "Infinity" in text) and not is_finite(value):
        raise ValueError("NaN and Infinity are not JSON")
    return text


def is_finite(value: object) -> bool:
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

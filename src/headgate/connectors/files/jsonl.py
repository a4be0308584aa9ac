"""JSON Lines: one object per line.

Types come from the manifest; without one from the first records (`?sample=N`, 10,000 unless told), and a later record
that does not fit ends its chunk with its line and field. Numbers keep all of their digits: one with a fraction is a
FLOAT64 if the nearest float says the same number, and a NUMERIC if not. Nested objects and arrays are JSON columns, and
so is a field with values of several sorts; `?nested=flatten` makes columns of nested objects (`user.email`). A field
that is absent is NULL.

Written are numbers as numbers, JSON columns as documents, NULL as null, an instant in ISO 8601 with Z, and everything
else in its canonical text. NaN and Infinity are refused: JSON has no word for them.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from uuid import UUID

import msgspec

from headgate.connectors.api.bulk import Column, Csv, Job, Language, Piece, Pieces, StorageError, Table
from headgate.connectors.files.reader import (
    BLOCK,
    BOM,
    FileReader,
    Looked,
    Manifest,
    Span,
    line_number,
    telling,
    text_ahead,
    unchanged,
)
from headgate.connectors.files.writer import FileWriter
from headgate.connectors.values.convert import ROWS, bytes_of, fine, is_finite
from headgate.connectors.values.infer import inferred
from headgate.connectors.values.kinds import Kind, Type, canonical, type_of_value
from headgate.errors import ConfigError
from headgate.text import one_line

FAMILY = "jsonl"
ENDINGS = (".jsonl", ".ndjson")
SAMPLED = 10_000
_NOT_JSON = (ValueError, RecursionError, msgspec.MsgspecError)
_FLOATS = (Kind.FLOAT32, Kind.FLOAT64)


def number(text: str) -> float | Decimal:
    """A number with a fraction or an exponent: a float only if that is written with the same digits."""
    found = float(text)
    return found if repr(found) == text else Decimal(text)


_decode = msgspec.json.Decoder(float_hook=number)


def record(line: bytes) -> dict[str, Any]:
    """One line. Raises ValueError if it is no object."""
    found = _decode.decode(line)
    if type(found) is dict:
        return found
    raise ValueError(f"a record is an object, and this is {_sort(found)}")


class JsonlReader(FileReader):
    """Reads JSON Lines."""

    languages: Sequence[Language] = (Language.ROWS,)
    endings = ENDINGS
    known = ("sample", "nested")
    family = FAMILY

    def __init__(self, url: str) -> None:
        super().__init__(url)
        sample, nested = self.options.get("sample", str(SAMPLED)), self.options.get("nested", "json")
        if not sample.isdigit() or sample == "0":
            raise ConfigError(f"sample is a number of records, and not {sample!r}")
        if nested not in ("json", "flatten"):
            raise ConfigError(f"nested is json or flatten, and not {nested!r}")
        self._sample, self._flattens = int(sample), nested == "flatten"

    def look(self, paths: list[Path], manifest: Manifest | None) -> Looked:
        """Where each file begins and ends, and the columns of the first records."""
        parts = []
        for path in paths:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                start = len(BOM) if file.read(len(BOM)) == BOM else 0
            parts.append(self.part_of(path, state, start, state.st_size))
        columns = manifest.types() if manifest and not self._flattens else ()
        is_sampled = not columns
        if is_sampled:
            columns = inferred(self._first(paths), _type_of)
        names = [column.name for column in columns]
        return Looked(columns, parts, sampled=is_sampled, details={"fields": names})

    def _first(self, paths: list[Path]) -> Iterator[dict[str, Any]]:
        left = self._sample
        for path in paths:
            with path.open("rb") as file:
                for place, line in enumerate(file, 1):
                    if left <= 0:
                        return
                    if not (line := line.removeprefix(BOM) if place == 1 else line).strip():
                        continue
                    try:
                        yield flat(record(line)) if self._flattens else record(line)
                    except _NOT_JSON as error:
                        raise StorageError(f"{path}, line {place}: {_told(error)}") from None
                    left -= 1

    def ahead(self, span: Span, rows: int) -> tuple[int, int]:
        """The next newline."""
        with unchanged(span) as descriptor:
            at, left = text_ahead(descriptor, span, rows)
            if at >= span.end:
                return span.end, left
            at -= 1
            while at < span.end and (data := os.pread(descriptor, min(BLOCK, span.end - at), at)):
                end = data.find(b"\n")
                if end >= 0:
                    return at + end + 1, left
                at += len(data)
            return span.end, left

    async def read(self, table: Table, span: Span, language: Language, csv: Csv) -> Pieces:
        """The span's records."""
        shape = Shape(table, self._flattens)
        with unchanged(span) as descriptor:
            held, at, size = b"", span.begin, BLOCK
            while at < span.end:
                data = await asyncio.to_thread(os.pread, descriptor, min(size, span.end - at), at)
                if not data:
                    raise StorageError(f"{span.path} ends before byte {span.end}")
                begin, block = at - len(held), held + data
                at += len(data)
                end = block.rfind(b"\n") + 1 if at < span.end else len(block)
                held, size = block[end:], max(BLOCK, len(block) - end)
                if not end:
                    continue
                rows = await asyncio.to_thread(self._rows, shape, span, begin, block[:end])
                for some in range(0, len(rows), ROWS):
                    few = rows[some : some + ROWS]
                    yield Piece(few, end * len(few) // len(rows), len(few))

    def _rows(self, shape: Shape, span: Span, begin: int, data: bytes) -> list[dict[str, Any]]:
        try:
            rows: list[Any] = _decode.decode_lines(data)
            if not all(type(row) is dict for row in rows):
                raise ValueError("a record is no object")
            return shape.fitted(rows)
        except _NOT_JSON:
            self._find(shape, span, begin, data)

    def _find(self, shape: Shape, span: Span, begin: int, data: bytes) -> NoReturn:
        """Say which line it is that does not fit."""
        at = begin
        for line in data.split(b"\n"):
            try:
                if line.strip():
                    shape.fitted([record(line)])
            except _NOT_JSON as error:
                with telling(span.path):
                    where = f"{span.path}, line {line_number(span.path, at)}"
                raise StorageError(f"{where}: {_told(error)}") from None
            at += len(line) + 1
        raise StorageError(f"{span.path}, near byte {begin}: a record is not JSON")


class Shape:
    """What the records of a table must look like."""

    def __init__(self, table: Table, flattens: bool) -> None:
        self.flattens = flattens
        self._fields = frozenset(table.details["fields"])
        self._names = [column.name for column in table.columns]
        self._all = set(self._names) == self._fields
        self._reads = [
            (column.name, *_reading(column)) for column in table.columns if column.type.kind is not Kind.JSON
        ]

    def fitted(self, rows: list[Any]) -> list[dict[str, Any]]:
        """The records with the values of their columns. Raises ValueError with the field that does not fit."""
        if self.flattens:
            rows = [flat(row) for row in rows]
        fields = self._fields
        for row in rows:
            if not row.keys() <= fields:
                name = next(name for name in row if name not in fields)
                raise ValueError(f"the field {name!r} is new: the first records had none (look at more with ?sample=)")
        if not self._all:
            rows = [{name: row[name] for name in self._names if name in row} for row in rows]
        for name, plain, read in self._reads:
            kinds = {type(row.get(name)) for row in rows}
            kinds.discard(type(None))
            if not kinds <= plain:
                _read(rows, name, read)
            elif int in kinds:
                numbers = [value for row in rows if (value := row.get(name)) is not None]
                if max(numbers) > 2**63 - 1 or min(numbers) < -(2**63):
                    _read(rows, name, read)
        return rows


def _read(rows: list[dict[str, Any]], name: str, read: Callable[[Any], Any]) -> None:
    for row in rows:
        value = row.get(name)
        if value is not None:
            try:
                row[name] = read(value)
            except (ValueError, ArithmeticError, StorageError) as error:
                raise ValueError(f"field {name!r}: {error}") from None


_RANGES = {Kind.INT16: 2**15, Kind.INT32: 2**31, Kind.INT64: 2**63}


def _reading(column: Column) -> tuple[set[type], Callable[[Any], Any]]:
    """The types that are right as they come from JSON, and what reads the others."""
    kind = column.type.kind

    def whole(value: Any) -> int:
        if type(value) is int and -_RANGES[kind] <= value < _RANGES[kind]:
            return value
        raise _unfit(value, column)

    def float_of(value: Any) -> Any:
        if type(value) is float:
            return value
        if type(value) is int and int(float(value)) == value:
            return value
        if type(value) is Decimal and Decimal(repr(float(value))) == value:
            return float(value)
        raise _unfit(value, column)

    def decimal_of(value: Any) -> Decimal:
        if type(value) in (int, float, Decimal):
            return Decimal(repr(value)) if type(value) is float else Decimal(value)
        raise _unfit(value, column)

    def text_of(read: Callable[[str], Any]) -> Callable[[Any], Any]:
        def of(value: Any) -> Any:
            if type(value) is str:
                return read(value)
            raise _unfit(value, column)

        return of

    def refuse(value: Any) -> Any:
        if type(value) in plain:
            return value
        raise _unfit(value, column)

    types: dict[Kind, type] = {Kind.BOOL: bool, Kind.TEXT: str, Kind.INT64: int, Kind.FLOAT64: float}
    plain = {types[kind]} if kind in types else set()
    texts: dict[Kind, Callable[[str], Any]] = {
        Kind.BYTES: lambda text: bytes_of(text, column),
        Kind.DATE: date.fromisoformat,
        Kind.TIME: _time,
        Kind.TIMESTAMP: lambda text: _instant(text, is_zoned=False),
        Kind.TIMESTAMPTZ: lambda text: _instant(text, is_zoned=True),
        Kind.UUID: UUID,
    }
    if kind in texts:
        return set(), text_of(texts[kind])
    if kind in _RANGES:
        return plain, whole
    if kind in _FLOATS:
        return plain, float_of
    return (set(), decimal_of) if kind in (Kind.DECIMAL, Kind.NUMERIC) else (plain, refuse)


def _time(text: str) -> time:
    found = time.fromisoformat(fine(text))
    if found.tzinfo is not None:
        raise ValueError(f"{text!r} is with a time zone")
    return found


def _instant(text: str, is_zoned: bool) -> datetime:
    found = datetime.fromisoformat(fine(text))
    if (found.tzinfo is not None) != is_zoned:
        raise ValueError(f"{text!r} is {'without' if is_zoned else 'with'} a time zone")
    return found.astimezone(UTC) if is_zoned and found.tzinfo is not UTC else found


def _unfit(value: Any, column: Column) -> ValueError:
    return ValueError(f"{str(value)[:40]!r} is {_sort(value)}, and the column is {column.type}")


def _sort(value: Any) -> str:
    names: dict[type, str] = {dict: "an object", list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _told(error: BaseException) -> str:
    told = one_line(error, 300)
    return f"not JSON: {told}" if isinstance(error, msgspec.MsgspecError | UnicodeError | RecursionError) else told


def flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as fields of their own: `user.email`. Raises ValueError if two get the same name."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        some = flat(value, f"{prefix}{name}.") if type(value) is dict else {f"{prefix}{name}": value}
        if not found.keys().isdisjoint(some):
            raise ValueError(f"{next(name for name in some if name in found)!r} is there twice")
        found |= some
    return found


def _type_of(value: Any) -> Type | None:
    if type(value) is Decimal and Decimal(repr(float(value))) == value:
        return Type(Kind.FLOAT64)
    return type_of_value(value)


class JsonlWriter(FileWriter):
    """Writes JSON Lines."""

    languages: Sequence[Language] = (Language.ROWS,)
    family = FAMILY
    endings = ENDINGS

    async def fill(self, file: BinaryIO, job: Job, pieces: Pieces) -> int:
        """A line for each row."""
        lines, rows = Lines(job.source.columns), 0
        async for piece in pieces:
            await asyncio.to_thread(lambda: file.write(lines.encoded(piece.data)))  # noqa: B023
            rows += len(piece.data)
        return rows

    def join(self, old: Path | None, parts: list[Path], job: Job, out: BinaryIO) -> None:
        """All lines, one file after the other."""
        for path in [*([old] if old else []), *parts]:
            last = b"\n"
            with path.open("rb") as file:
                while data := file.read(BLOCK):
                    out.write(data)
                    last = data[-1:]
            if last != b"\n":
                out.write(b"\n")

    def columns_of(self, path: Path) -> list[str] | None:
        """Records tell no columns."""
        return None


class Lines:
    """Rows as lines of JSON."""

    def __init__(self, columns: Sequence[Column]) -> None:
        says: dict[Kind, Callable[[Any], Any]] = {
            Kind.BYTES: canonical,
            Kind.TIMESTAMP: str,
            Kind.TIMESTAMPTZ: lambda value: value if value.tzinfo is UTC else value.astimezone(UTC),
            Kind.FLOAT32: _finite,
            Kind.FLOAT64: _finite,
            Kind.DECIMAL: _finite,
            Kind.NUMERIC: _finite,
            Kind.JSON: _document,
        }
        self._says = [(column, says[column.type.kind]) for column in columns if column.type.kind in says]
        self._encode = msgspec.json.Encoder(enc_hook=canonical, decimal_format="number").encode_lines

    def encoded(self, rows: list[dict[str, Any]]) -> bytes:
        """These rows."""
        if self._says:
            rows = [dict(row) for row in rows]  # They may be somebody else's.
        for column, say in self._says:
            name = column.name
            try:
                for row in rows:
                    value = row.get(name)
                    if value is not None:
                        row[name] = say(value)
            except ValueError as error:
                raise StorageError(f"column {name!r} ({column.type}): {error}") from None
        return self._encode(rows)


def _finite(value: Any) -> Any:
    is_number = math.isfinite(value) if type(value) is float else is_finite(value)
    if not is_number:
        raise ValueError(f"JSON has no {value}")
    return value


def _document(value: Any) -> Any:
    if type(value) not in (str, dict, list) and isinstance(value, str):
        return msgspec.Raw(value.encode())  # JSON that is text already.
    return _finite(value)

"""CSV files: RFC 4180 in UTF-8 with a header; NULL is an empty field without quotes, and "" is the empty string.

That is also how CSV travels between storages, so a file of this kind is passed on as it is, after a look at its shape:
quotes where quotes may be, and as many fields in each record as there are columns. Carriage returns, empty lines and
other dialects are rewritten on the way. A URL may say how a file that is read differs:

    csv:orders.csv?delimiter=;&null=\\N&encoding=latin-1&header=false&sample=0

Columns have the types that the manifest tells; without one, those that the first records have (`files.guesses`). How
many records are looked at is `?sample=N`; 0 leaves each column as text.
"""

from __future__ import annotations

import asyncio
import codecs
import csv as text_csv
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from headgate.connectors.api.bulk import PLAIN, Column, Csv, Job, Language, Piece, Pieces, StorageError, Table
from headgate.connectors.files.guesses import first_other, guessed
from headgate.connectors.files.manifest import Manifest
from headgate.connectors.files.reader import (
    BLOCK,
    BOM,
    Description,
    FileReader,
    Part,
    Span,
    line_number,
    open_unchanged,
)
from headgate.connectors.files.writer import FileWriter
from headgate.connectors.values.arrow import Numbers, csv_bytes
from headgate.connectors.values.convert import end_of_records
from headgate.connectors.values.kinds import TEXT, Type
from headgate.errors import ConfigError, Refused
from headgate.text import counted

FAMILY = "csv"
ENDINGS = (".csv",)
SAMPLED = 10_000  # Records that are looked at, as long as they are within the first block.
MOST_HEADER = 16 << 20  # A header that does not end within this many bytes is none.
_NO_WORDS = {"false": False, "no": False, "0": False, "true": True, "yes": True, "1": True}


class CsvReader(FileReader):
    """Reads CSV."""

    languages: Sequence[Language] = (Language.CSV,)
    endings = ENDINGS
    known = ("delimiter", "header", "null", "encoding", "sample")
    family = FAMILY

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._dialect = Csv(self.options.get("null", ""), _delimiter(self.options.get("delimiter", ",")))
        self._encoding = _encoding(self.options.get("encoding", "utf-8"))
        header = self.options.get("header", "true").lower()
        if header not in _NO_WORDS:
            raise ConfigError(f"header={header} is not true or false")
        self._has_header = _NO_WORDS[header]
        sample = self.options.get("sample", str(SAMPLED))
        if not sample.isdigit():
            raise ConfigError(f"sample={sample} is not a number of records")
        self._sample = int(sample)
        self._shape = _shape(self._dialect.delimiter)

    def inspect(self, paths: list[Path], manifest: Manifest | None) -> Description:
        """The header of each file; all must be equal."""
        names: list[str] | None = None
        parts = []
        for path in paths:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                header, start = self.header(path, file)
            if header and names is not None and header != names:
                raise Refused(f"{path} has other columns than the files before it", code="columns_differ")
            names = header or names
            parts.append(self.part_of(path, state, start, state.st_size))
        known = manifest.types() if manifest and not self.options else ()
        names = [column.name for column in known] if names is None else names  # An empty table has no files.
        if [column.name for column in known] == names:
            return Description(known, parts, details={"header": names})
        types = self._guessed(paths, parts, names) if self._sample else {}
        columns = tuple(Column(name, types.get(name, TEXT)) for name in names)
        guesses = [column.name for column in columns if column.type is not TEXT]
        return Description(columns, parts, sampled=bool(guesses), details={"header": names, "guessed": guesses})

    def _guessed(self, paths: list[Path], parts: list[Part], names: list[str]) -> dict[str, Type]:
        """The types that the first records have. Where these cannot be read, the copy of them says why."""
        for path, part in zip(paths, parts, strict=True):
            with path.open("rb") as file:
                file.seek(part.start)
                data = file.read(BLOCK)
            data = data if len(data) < BLOCK else data[: end_of_records(data)]
            if not data.strip(b"\r\n"):
                continue
            places = [str(place) for place in range(len(names))]
            try:
                found = self._parsed(data.decode(self._encoding).encode(), len(names), places).slice(0, self._sample)
            except (UnicodeDecodeError, pa.ArrowInvalid):
                return {}
            return {name: guessed(found.column(place)) for name, place in zip(names, places, strict=True)}
        return {}

    def header(self, path: Path, file: BinaryIO) -> tuple[list[str], int]:
        """The names of the columns, and where the records begin."""
        data = file.read(BLOCK)
        bom = len(BOM) if data.startswith(BOM) else 0
        while (end := _end_of_record(data, bom)) is None:
            more = file.read(BLOCK)
            if not more or len(data) > MOST_HEADER:
                break
            data += more
        if len(data) == bom:
            return [], bom
        end = len(data) if end is None else end
        try:
            text = data[bom:end].decode(self._encoding)
            [names] = text_csv.reader(io.StringIO(text, newline=""), delimiter=self._dialect.delimiter, strict=True)
        except (ValueError, text_csv.Error) as error:
            raise StorageError(f"{path}, line 1: the header cannot be read: {error}") from None
        if not self._has_header:
            return [f"c{number}" for number in range(1, max(1, len(names)) + 1)], bom
        if not names:
            raise Refused(f"{path} begins with an empty line", code="bad_header", hint="remove it")
        for name in names:
            if not name or names.count(name) > 1:
                what = f"the column {name!r} twice" if name else "a column without a name"
                raise Refused(f"{path} has {what}", code="bad_header", hint="correct it, or read with ?header=false")
        return names, end

    def ahead(self, span: Span, rows: int) -> tuple[int, int]:
        """The end of that many records: newlines outside quotes, which are counted from the beginning, where there is
        none."""
        with open_unchanged(span) as descriptor:
            at, is_open, is_ended = span.begin, False, True
            while at < span.end and (data := os.pread(descriptor, min(BLOCK, span.end - at), at)):
                if b'"' not in data and not is_open and (found := data.count(b"\n")) < rows:
                    rows -= found
                else:
                    ends, is_open = _ends_of_records(data, is_open)
                    if len(ends) >= rows:
                        return at + int(ends[rows - 1]) + 1, 0
                    rows -= len(ends)
                at += len(data)
                is_ended = data.endswith(b"\n") and not is_open
            return span.end, max(0, rows - (not is_ended))

    async def read(self, table: Table, span: Span, language: Language, csv: Csv) -> Pieces:
        """The span's records."""
        with open_unchanged(span) as descriptor:
            held = b""
            at, size = span.begin, BLOCK
            while at < span.end:
                data = await asyncio.to_thread(os.pread, descriptor, min(size, span.end - at), at)
                if not data:
                    raise StorageError(f"{span.path} ends before byte {span.end}")
                begin, block = at - len(held), held + data
                at += len(data)
                end = end_of_records(block) if at < span.end else len(block)
                held = block[end:]
                size = max(BLOCK, len(held))  # So that a record of many blocks is not scanned again for each of them.
                if end:
                    piece = await asyncio.to_thread(self._piece, table, span, begin, block[:end], csv)
                    if piece is not None:
                        yield piece

    def _piece(self, table: Table, span: Span, begin: int, data: bytes, csv: Csv) -> Piece | None:
        """Whole records as canonical CSV."""
        size = len(data)
        try:
            data = data.decode(self._encoding).encode() if self._encoding != "utf-8" else _checked(data)
        except UnicodeDecodeError as error:
            where = f"{span.path}, byte {begin + error.start}"
            raise StorageError(
                f"{where}: the text is not {self._encoding}", hint="name another with ?encoding="
            ) from None
        header = list(table.details["header"])
        if not data.endswith(b"\n"):
            data += b"\n"
        if len(header) > 1 and not data.strip(b"\r\n"):
            return None
        if b'"' in data:
            good = self._shape.match(data)
            end = good.end() if good else 0
            if b'"' in data[end:]:
                place = begin + data.index(b'"', end) if self._encoding == "utf-8" else begin
                line = line_number(span.path, place)
                raise StorageError(f"{span.path}, line {line} (byte {place}): a quote is not allowed here")
        names = [column.name for column in table.columns]
        is_plain = (
            (self._dialect.null, self._dialect.delimiter) == (csv.null, csv.delimiter) == (PLAIN.null, PLAIN.delimiter)
            and names == header
            and b"\r" not in data
            and (len(header) == 1 or not (data.startswith(b"\n") or b"\n\n" in data))
        )
        wanted = [str(header.index(name)) for name in names]
        guesses = set(table.details.get("guessed", ()))
        held = {str(header.index(one.name)): one for one in table.columns if one.name in guesses}
        try:
            found = self._parsed(data, len(header), (list(held) or wanted[:1]) if is_plain else wanted)
        except pa.ArrowInvalid as error:
            raise self._explained(span, begin, data, len(header), str(error)) from None
        for number, column in held.items():
            if (row := first_other(found.column(number), column.type.kind)) is not None:
                raise self._other(span, begin, data, row, column)
        if not is_plain:
            batch = found.select(wanted).combine_chunks().to_batches()
            texts = [Column(name, TEXT) for name in names]
            data = b"".join(csv_bytes(one, texts, csv) for one in batch)
        return Piece(data, size, found.num_rows)

    def _parsed(self, data: bytes, count: int, wanted: list[str]) -> pa.Table:
        names = [str(place) for place in range(count)]
        return pc.read_csv(
            pa.py_buffer(data),
            read_options=pc.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1024),
            parse_options=pc.ParseOptions(
                delimiter=self._dialect.delimiter, newlines_in_values=True, ignore_empty_lines=count > 1
            ),
            convert_options=pc.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[self._dialect.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    def _other(self, span: Span, begin: int, data: bytes, row: int, column: Column) -> StorageError:
        """Which record has a value that is not what the first ones have."""
        records = text_csv.reader(io.StringIO(data.decode(), newline=""), delimiter=self._dialect.delimiter)
        for record in records:
            row -= bool(record)  # An empty line is no record where there are several columns.
            if row < 0:
                break
        line = line_number(span.path, begin) + records.line_num - 1
        return StorageError(
            f"{span.path}, line {line}: column {column.name!r} is {column.type} in the first records, and not here",
            hint=f"--column {column.name}=text",
        )

    def _explained(self, span: Span, begin: int, data: bytes, count: int, message: str) -> StorageError:
        """Which record has too many fields, or too few."""
        records = text_csv.reader(io.StringIO(data.decode(), newline=""), delimiter=self._dialect.delimiter)
        line = 0
        for record in records:
            if len(record) != count and (record or count == 1):
                number = line_number(span.path, begin) + line
                return StorageError(
                    f"{span.path}, line {number}: {counted(len(record), 'field')} for {counted(count, 'column')}"
                )
            line = records.line_num
        return StorageError(f"{span.path}, near byte {begin}: {message.splitlines()[0]}")


def _checked(data: bytes) -> bytes:
    data.decode()
    return data


def _shape(delimiter: str) -> re.Pattern[bytes]:
    """What a file with quotes looks like, up to its last quote: they open after a delimiter and close before one."""
    mark = re.escape(delimiter.encode())
    return re.compile(
        rb'(?:[^"]*+(?<![^%s\r\n])"[^"]*+(?:""[^"]*+)*+"(?![^%s\r\n]))*+' % (mark, mark),
    )


def _end_of_record(data: bytes, start: int, is_open: bool = False) -> int | None:
    """Where the first record after `start` ends. `is_open`: the data begins inside quotes."""
    end = data.find(b"\n", start)
    at = start
    while end >= 0:
        is_open ^= data.count(b'"', at, end) % 2 == 1
        if not is_open:
            return end + 1
        at, end = end, data.find(b"\n", end + 1)
    return None


def _ends_of_records(data: bytes, is_open: bool) -> tuple[Numbers, bool]:
    """The places of newlines outside quotes, and whether the data ends inside quotes."""
    marks = np.frombuffer(data, "u1")
    newlines, quotes = np.flatnonzero(marks == 0x0A), np.flatnonzero(marks == 0x22)
    before = np.searchsorted(quotes, newlines) + is_open
    return newlines[before % 2 == 0], bool((len(quotes) + is_open) % 2)


def _delimiter(text: str) -> str:
    text = {"tab": "\t", "\\t": "\t"}.get(text.lower(), text)
    if len(text) != 1 or not text.isascii() or text in '"\r\n':
        raise ConfigError(f"{text!r} is not a delimiter", hint="one character, such as ; or tab")
    return text


def _encoding(text: str) -> str:
    try:
        name = codecs.lookup(text).name
        if '"\n,'.encode(name) != b'"\n,':
            raise ConfigError(f"files in {text} cannot be cut", hint="convert it to UTF-8 first")
    except LookupError:
        raise ConfigError(f"{text!r} is not an encoding") from None
    return "utf-8" if name in ("utf-8", "utf-8-sig", "ascii") else name


class CsvWriter(FileWriter):
    """Writes CSV: each part has a header."""

    languages: Sequence[Language] = (Language.CSV,)
    family = FAMILY
    endings = ENDINGS

    async def fill(self, file: BinaryIO, job: Job, pieces: Pieces) -> int:
        """The header and the records."""
        file.write(header_of(job.source.columns))
        rows, last = 0, b"\n"
        async for piece in pieces:
            if piece.data:
                await asyncio.to_thread(file.write, piece.data)
                last = piece.data[-1:]
            rows += piece.rows
        if last != b"\n":
            file.write(b"\n")
        return rows

    def join(self, old: Path | None, parts: list[Path], job: Job, out: BinaryIO) -> None:
        """One header, and all records."""
        header = header_of(job.source.columns)
        out.write(header)
        for path in [*([old] if old else []), *parts]:
            with path.open("rb") as file:
                file.seek(header_in(path, file)[1] if path is old else len(header))
                last = b"\n"
                while data := file.read(BLOCK):
                    out.write(data)
                    last = data[-1:]
                if last != b"\n":
                    out.write(b"\n")

    def columns_of(self, path: Path) -> list[str] | None:
        """The names in the header of a file; None: it is empty."""
        with path.open("rb") as file:
            return header_in(path, file)[0] or None


def header_in(path: Path, file: BinaryIO) -> tuple[list[str], int]:
    """The names in the header of a file in our own dialect, and where it ends."""
    return CsvReader("csv:").header(path, file)


def header_of(columns: Sequence[Column]) -> bytes:
    """The header for these columns."""
    out = io.StringIO()
    text_csv.writer(out, lineterminator="\n").writerow([column.name for column in columns])
    return out.getvalue().encode()

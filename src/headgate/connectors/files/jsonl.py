"""JSON Lines: one object per line.

Types come from the manifest; without one from the first records (`?sample=N`; default 10,000), and a later record
that does not fit ends its chunk with its line and field. `?nested=flatten` makes columns of nested objects
(`user.email`). How values are read and written is said in `headgate.connectors.files.records`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from headgate.connectors.api.bulk import Csv, Job, Language, Piece, Pieces, Row, StorageError, Table
from headgate.connectors.files.errors import translate_errors
from headgate.connectors.files.manifest import Manifest
from headgate.connectors.files.reader import (
    BLOCK,
    BOM,
    Description,
    FileReader,
    Span,
    line_number,
    open_unchanged,
)
from headgate.connectors.files.records import (
    DECODER,
    NOT_JSON,
    Lines,
    Shape,
    flat,
    reason_of,
    record,
    refuse_twice,
    type_of,
)
from headgate.connectors.files.writer import FileWriter
from headgate.connectors.values.convert import ROWS
from headgate.connectors.values.infer import inferred
from headgate.errors import ConfigError

FAMILY = "jsonl"
ENDINGS = (".jsonl", ".ndjson")
SAMPLED = 10_000
_MAY_BE_EMPTY = (b"\n\n", b"\n\r", b"\n ", b"\n\t")


class JsonlReader(FileReader):
    """Reads JSON Lines."""

    languages: Sequence[Language] = (Language.ROWS,)
    endings: Sequence[str] = ENDINGS
    known = ("sample", "nested")
    family = FAMILY

    def __init__(self, url: str) -> None:
        super().__init__(url)
        sample, nested = self.options.get("sample", str(SAMPLED)), self.options.get("nested", "json")
        if not sample.isdigit() or sample == "0":
            raise ConfigError(f"sample={sample} is not a number of records")
        if nested not in ("json", "flatten"):
            raise ConfigError(f"nested={nested} is neither json nor flatten")
        self._sample, self.flattens = int(sample), nested == "flatten"

    def inspect(self, paths: list[Path], manifest: Manifest | None) -> Description:
        """Where each file begins and ends, and the columns of the first records."""
        parts = []
        for path in paths:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                parts.append(self.part_of(path, state, *self.places(path, file, state.st_size)))
        columns = manifest.types() if manifest and not self.flattens else ()
        is_sampled = not columns
        if is_sampled:
            columns = inferred(islice(chain.from_iterable(map(self.sample, paths)), self._sample), type_of)
        names = [column.name for column in columns]
        details = {"fields": names, "absent": manifest is not None and manifest.absent and not is_sampled}
        return Description(columns, parts, sampled=is_sampled, details=details)

    def places(self, path: Path, file: BinaryIO, size: int) -> tuple[int, int]:
        """Where the records of a file begin and end."""
        file.seek(0)
        return len(BOM) if file.read(len(BOM)) == BOM else 0, size

    def sample(self, path: Path) -> Iterator[Row]:
        """The first records of a file."""
        with path.open("rb") as file:
            for place, line in enumerate(file, 1):
                if not (line := line.removeprefix(BOM) if place == 1 else line).strip():
                    continue
                try:
                    found = record(line)
                    refuse_twice(line, [found])
                    yield flat(found) if self.flattens else found
                except NOT_JSON as error:
                    raise StorageError(f"{path}, line {place}: {reason_of(error)}") from None

    def ahead(self, span: Span, rows: int) -> tuple[int, int]:
        """The end of that many lines. Empty ones are no records."""
        with open_unchanged(span) as descriptor:
            at, held = span.begin, b""
            while at < span.end and (data := os.pread(descriptor, min(BLOCK, span.end - at), at)):
                begin, data = at - len(held), held + data
                at = begin + len(data)
                end, rows = past_lines(data, rows)
                if not rows:
                    return begin + end, 0
                held = data[end:]
            return span.end, max(0, rows - bool(held.strip()))

    async def read(self, table: Table, span: Span, language: Language, csv: Csv) -> Pieces:
        """The span's records."""
        shape = Shape(table, self.flattens)
        with open_unchanged(span) as descriptor:
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

    def _rows(self, shape: Shape, span: Span, begin: int, data: bytes) -> list[Row]:
        try:
            rows: list[Any] = DECODER.decode_lines(data)
            if not all(type(row) is dict for row in rows):
                raise ValueError("a record is not an object")
            refuse_twice(data, rows)
            return shape.fitted(rows)
        except NOT_JSON:
            self._find(shape, span, begin, data)

    def _find(self, shape: Shape, span: Span, begin: int, data: bytes) -> NoReturn:
        """Say which line it is that does not fit."""
        at = begin
        for line in data.split(b"\n"):
            try:
                if line.strip():
                    found = record(line)
                    refuse_twice(line, [found])
                    shape.fitted([found])
            except NOT_JSON as error:
                with translate_errors(span.path):
                    where = f"{span.path}, line {line_number(span.path, at)}"
                raise StorageError(f"{where}: {reason_of(error)}") from None
            at += len(line) + 1
        raise StorageError(f"{span.path}, near byte {begin}: a record is not JSON")


class JsonlWriter(FileWriter):
    """Writes JSON Lines."""

    languages: Sequence[Language] = (Language.ROWS,)
    family = FAMILY
    endings = ENDINGS
    documents = True

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
        """Records do not name columns."""
        return None


def past_lines(data: bytes, lines: int) -> tuple[int, int]:
    """Where that many lines end that are not empty, or the last whole one; and how many are left then."""
    whole = data.rfind(b"\n") + 1
    has_empty = data[:1].isspace() or any(two in data for two in _MAY_BE_EMPTY)
    if not has_empty and (found := data.count(b"\n")) < lines:
        return whole, lines - found  # A whole block at a time, where no line has to be examined.
    at = 0
    while lines and (end := data.find(b"\n", at)) >= 0:
        lines -= not data[at:end].isspace() and end > at
        at = end + 1
    return at, lines

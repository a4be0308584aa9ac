"""JSON files: one array of objects, `[{…}, {…}]`; or JSON Lines, which many files of that ending hold.

An array is cut between two of its elements. Where these are is found by looking for strings and brackets only, block by
block, so no more of a file is in memory than a few elements. What is written is an array with an element per line.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from headgate.connectors.api.bulk import Csv, Job, Language, Piece, Pieces, Row, StorageError, Table
from headgate.connectors.files.errors import translate_errors
from headgate.connectors.files.jsonl import JsonlReader
from headgate.connectors.files.reader import BLOCK, BOM, Part, Span, line_number, unchanged
from headgate.connectors.files.records import DECODER, NOT_JSON, Lines, Shape, flat, told
from headgate.connectors.files.writer import FileWriter
from headgate.connectors.values.convert import ROWS

FAMILY = "json"
ENDINGS = (".json",)
_SPACE = b" \t\r\n"
_BETWEEN = _SPACE + b","
# A string, whose end may be missing, or a bracket. Nothing else tells where an element ends.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{}]', re.DOTALL)


class Elements:
    """Finds the ends of an array's elements in blocks that follow each other."""

    def __init__(self) -> None:
        self._depth = 0  # Below the array itself.

    def ends(self, data: bytes) -> Iterator[int]:
        """Where each object or array that is an element ends. The block must begin between two tokens; `rest` tells
        where the next one begins."""
        self.rest = len(data)
        for found in _TOKEN.finditer(data):
            token = data[found.start()]
            if token == 0x22:  # A quote.
                if not found[1]:
                    self.rest = found.start()
                    return
            elif token in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    yield found.end()


def is_array(descriptor: int, part: Part) -> bool:
    """Whether a file is an array: its first place is after the bracket."""
    return part.start > 0 and os.pread(descriptor, 1, part.start - 1) == b"["


class JsonReader(JsonlReader):
    """Reads arrays, and JSON Lines."""

    endings = ENDINGS
    family = FAMILY

    def places(self, path: Path, file: BinaryIO, size: int) -> tuple[int, int]:
        """The places after the first bracket, and after the last element."""
        begin = _first(file, len(BOM) if file.read(len(BOM)) == BOM else 0)
        file.seek(begin)
        if file.read(1) != b"[":
            return super().places(path, file, size)
        end = _last(file, size)
        file.seek(end)
        if end <= begin or file.read(1) != b"]":
            raise StorageError(f"{path} begins with [ and does not end with ]", hint="the file is not whole")
        return begin + 1, _last(file, end) + 1

    def sample(self, path: Path) -> Iterator[Row]:
        """The first elements."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin, end = self.places(path, file, size)
            if not is_array(file.fileno(), Part("", size, 0, begin, end)):
                yield from super().sample(path)
                return
            for at, data in _blocks(file.fileno(), begin, end):
                try:
                    for row in _decoded(data):
                        yield flat(row) if self.flattens else row
                except NOT_JSON as error:
                    raise _bad(path, data, at, _decoded, error) from None

    def ahead(self, span: Span, rows: int) -> tuple[int, int]:
        """The end of so many elements."""
        with unchanged(span) as descriptor:
            if is_array(descriptor, span.part):
                elements, at, held = Elements(), span.begin, b""
                while at < span.end and (data := os.pread(descriptor, min(BLOCK, span.end - at), at)):
                    begin, data = at - len(held), held + data
                    at = begin + len(data)
                    for end in elements.ends(data):
                        rows -= 1
                        if not rows:
                            return begin + end, 0
                    held = data[elements.rest :]
                return span.end, rows
        return super().ahead(span, rows)

    async def read(self, table: Table, span: Span, language: Language, csv: Csv) -> Pieces:
        """The span's elements."""
        with unchanged(span) as descriptor:
            if is_array(descriptor, span.part):
                shape = Shape(table, self.flattens)
                blocks = _blocks(descriptor, span.begin, span.end)
                while (block := await asyncio.to_thread(next, blocks, None)) is not None:
                    rows = await asyncio.to_thread(_fitted, shape, span, *block)
                    for some in range(0, len(rows), ROWS):
                        few = rows[some : some + ROWS]
                        yield Piece(few, len(block[1]) * len(few) // len(rows), len(few))
                return
        async for piece in super().read(table, span, language, csv):
            yield piece


def _first(file: BinaryIO, at: int) -> int:
    """The first byte that is no space."""
    file.seek(at)
    while data := file.read(BLOCK):
        if rest := data.lstrip(_SPACE):
            return at + len(data) - len(rest)
        at += len(data)
    return at


def _last(file: BinaryIO, at: int) -> int:
    """The last byte before that one that is no space."""
    while at > 0:
        begin = max(0, at - BLOCK)
        file.seek(begin)
        if rest := file.read(at - begin).rstrip(_SPACE):
            return begin + len(rest) - 1
        at = begin
    return 0


def _blocks(descriptor: int, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Whole elements with what is between them, some at a time, and where they begin."""
    elements, held, scanned = Elements(), b"", 0
    while at < end:
        data = os.pread(descriptor, min(BLOCK, end - at), at)
        if not data:
            raise StorageError(f"a file ends before byte {end}")
        begin, data = at - len(held), held + data
        at, whole = begin + len(data), 0
        for place in elements.ends(data[scanned:]):
            whole = scanned + place
        scanned += elements.rest
        if at >= end:
            whole = len(data)
        if whole:
            yield begin, data[:whole]
        held, scanned = data[whole:], max(0, scanned - whole)


def _decoded(data: bytes) -> list[Row]:
    """The elements of a piece of an array. Raises ValueError if one is no object."""
    inner = data.strip(_BETWEEN)
    rows: list[Any] = DECODER.decode(b"[" + inner + b"]")
    if not all(type(row) is dict for row in rows):
        raise ValueError("an element is no object")
    return rows


def _fitted(shape: Shape, span: Span, at: int, data: bytes) -> list[Row]:
    try:
        return shape.fitted(_decoded(data))
    except NOT_JSON as error:
        raise _bad(span.path, data, at, lambda some: shape.fitted(_decoded(some)), error) from None


def _bad(path: Path, data: bytes, at: int, check: Callable[[bytes], object], error: BaseException) -> StorageError:
    """Say which element it is that does not fit."""
    begin = 0
    for end in Elements().ends(data):
        try:
            check(data[begin:end])
        except NOT_JSON as found:
            error = found
            break
        begin = end
    some = data[begin:]
    place = at + begin + len(some) - len(some.lstrip(_BETWEEN))
    with translate_errors(path):
        return StorageError(f"{path}, line {line_number(path, place)} (byte {place}): {told(error)}")


class JsonWriter(FileWriter):
    """Writes arrays."""

    languages: Sequence[Language] = (Language.ROWS,)
    family = FAMILY
    endings = ENDINGS

    async def fill(self, file: BinaryIO, job: Job, pieces: Pieces) -> int:
        """An element for each row."""
        lines, rows = Lines(job.source.columns), 0
        file.write(b"[")
        async for piece in pieces:
            await asyncio.to_thread(_write, file, lines.elements(piece.data), rows == 0)
            rows += len(piece.data)
        file.write(b"\n]\n")
        return rows

    def join(self, old: Path | None, parts: list[Path], job: Job, out: BinaryIO) -> None:
        """The elements of all files in one array."""
        is_first = True
        out.write(b"[")
        for path in [*([old] if old else []), *parts]:
            with path.open("rb") as file:
                for some in filter(None, _elements_in(path, file)):
                    _write(out, some, is_first)
                    is_first = False
        out.write(b"\n]\n")

    def columns_of(self, path: Path) -> list[str] | None:
        """Records tell no columns."""
        return None


def _write(file: BinaryIO, elements: bytes, is_first: bool) -> None:
    """Elements, with commas between them, after those that are there."""
    if elements:
        file.write(b"\n" if is_first else b",\n")
        file.write(elements)


def _elements_in(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """What is between the brackets of a file, some elements at a time; or its lines."""
    size = os.fstat(file.fileno()).st_size
    begin, end = JsonReader("json:").places(path, file, size)
    if is_array(file.fileno(), Part("", size, 0, begin, end)):
        for _, data in _blocks(file.fileno(), begin, end):
            yield data.strip(_BETWEEN)
        return
    file.seek(begin)
    for line in file:
        yield line.strip()

"""JSON files: one array of objects, `[{…}, {…}]`; or JSON Lines, which many files of that ending hold.

An array is cut between two of its elements. Their ends are found by looking for strings and brackets only, block by
block, so memory never holds more of a file than one block and one element. What is written is an array with an element
per line.
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
from headgate.connectors.files.reader import BLOCK, BOM, Part, Span, line_number, open_unchanged
from headgate.connectors.files.records import DECODER, NOT_JSON, Lines, Shape, flat, reason_of, refuse_twice
from headgate.connectors.files.writer import FileWriter
from headgate.connectors.values.convert import ROWS

FAMILY = "json"
ENDINGS = (".json",)
_SPACE = b" \t\r\n"
_BETWEEN = _SPACE + b","
NOT_AN_OBJECT = "an element is not an object"
# A string, whose end may be in a later block, or a bracket. Nothing else decides where an element ends.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{}]', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)


class Elements:
    """Finds the ends of an array's elements in blocks that follow each other, and checks what is between them.

    Only objects with one comma between two of them are let through. Anything else is refused where it begins, so that
    no more than one element has to be kept until its end is found.
    """

    def __init__(self, path: Path, at: int, *, is_first: bool) -> None:
        self._path = path
        self._at = at  # Where the next block begins.
        self._depth = 0  # Below the array itself.
        self._is_in_string = False
        self._is_escaped = False  # The last block ended with the backslash of an escape.
        self._may_open = is_first  # Nothing is missing before the next element.
        self._may_end = True  # The last sign was not a comma.

    @property
    def is_between(self) -> bool:
        """Whether the last block ended outside of any element."""
        return self._depth == 0

    def ends(self, data: bytes) -> Iterator[int]:
        """Where in this block elements end."""
        last = 0
        for found in _TOKEN.finditer(data, self._skip_string(data)):
            token = data[found.start()]
            if self._depth == 0:
                self._check_between(data, last, found.start())
                self._open(token, found.start())
            elif token == 0x22:  # A quote.
                self._is_in_string = not found[1]
                self._is_escaped = not found[1] and found.end() < len(data)
            elif token in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    last = found.end()
                    self._may_open, self._may_end = False, True
                    yield last
        if self._depth == 0:
            self._check_between(data, last, len(data))
        self._at += len(data)

    def finish(self) -> None:
        """There are no more blocks."""
        if self._depth:
            raise self._error(0, "the last element does not end")
        if not self._may_end:
            raise self._error(0, "no element follows the last comma")

    def _skip_string(self, data: bytes) -> int:
        """Where the string ends that the last block began."""
        if not self._is_in_string:
            return 0
        found = _REST_OF_STRING.match(data, int(self._is_escaped))
        if found is None:
            return len(data)
        self._is_in_string = not found[1]
        self._is_escaped = not found[1] and found.end() < len(data)
        return found.end() if found[1] else len(data)

    def _check_between(self, data: bytes, begin: int, end: int) -> None:
        between = data[begin:end]
        signs = between.strip(_SPACE)
        if not signs:
            return
        place = begin + between.index(signs)
        if signs[:1] != b",":
            raise self._error(place, NOT_AN_OBJECT)
        if self._may_open or not self._may_end:
            raise self._error(place, "no element precedes this comma")
        self._may_open, self._may_end = True, False
        if rest := signs[1:].lstrip(_SPACE):
            reason = "no element precedes this comma" if rest[:1] == b"," else NOT_AN_OBJECT
            raise self._error(place + len(signs) - len(rest), reason)

    def _open(self, token: int, place: int) -> None:
        if token != 0x7B:  # An opening brace.
            raise self._error(place, NOT_AN_OBJECT)
        if not self._may_open:
            raise self._error(place, "a comma is missing before this element")
        self._depth = 1

    def _error(self, place: int, reason: str) -> StorageError:
        return _error_at(self._path, self._at + place, reason)


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
            raise StorageError(f"{path} begins with [ and does not end with ]", hint="the file is incomplete")
        return begin + 1, _last(file, end) + 1

    def sample(self, path: Path) -> Iterator[Row]:
        """The first elements."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin, end = self.places(path, file, size)
            if not is_array(file.fileno(), Part("", size, 0, begin, end)):
                yield from super().sample(path)
                return
            for at, data in _blocks(file.fileno(), begin, end, Elements(path, begin, is_first=True)):
                try:
                    for row in _decoded(data):
                        yield flat(row) if self.flattens else row
                except NOT_JSON as error:
                    raise _bad(path, data, at, _decoded, error) from None

    def ahead(self, span: Span, rows: int) -> tuple[int, int]:
        """The end of that many elements."""
        with open_unchanged(span) as descriptor:
            if is_array(descriptor, span.part):
                at, elements = span.begin, _elements_of(span)
                while at < span.end and (data := os.pread(descriptor, min(BLOCK, span.end - at), at)):
                    for end in elements.ends(data):
                        rows -= 1
                        if not rows:
                            return at + end, 0
                    at += len(data)
                return span.end, rows
        return super().ahead(span, rows)

    async def read(self, table: Table, span: Span, language: Language, csv: Csv) -> Pieces:
        """The span's elements."""
        with open_unchanged(span) as descriptor:
            if is_array(descriptor, span.part):
                shape = Shape(table, self.flattens)
                blocks = _blocks(descriptor, span.begin, span.end, _elements_of(span))
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


def _elements_of(span: Span) -> Elements:
    """A span that does not begin the array begins with the comma after the element before it."""
    return Elements(span.path, span.begin, is_first=span.begin == span.part.start)


def _blocks(descriptor: int, at: int, end: int, elements: Elements) -> Iterator[tuple[int, bytes]]:
    """Whole elements with what is between them, some at a time, and where they begin."""
    held: list[bytes] = []  # Of an element whose end is not found yet.
    begin = at
    while at < end:
        data = os.pread(descriptor, min(BLOCK, end - at), at)
        if not data:
            raise StorageError(f"a file ends before byte {end}")
        at += len(data)
        whole = max(elements.ends(data), default=0)
        if elements.is_between:
            whole = len(data)
        if at >= end:
            elements.finish()
        if whole:
            yield begin, b"".join([*held, data[:whole]])
            held, begin = [data[whole:]], at - len(data) + whole
        else:
            held.append(data)


def _decoded(data: bytes) -> list[Row]:
    """The elements of a piece of an array. Raises ValueError if one is not an object."""
    inner = data.strip(_BETWEEN)
    rows: list[Any] = DECODER.decode(b"[" + inner + b"]")
    if not all(type(row) is dict for row in rows):
        raise ValueError(NOT_AN_OBJECT)
    refuse_twice(b"[" + inner.replace(b"\n", b" ") + b"]", rows)
    return rows


def _fitted(shape: Shape, span: Span, at: int, data: bytes) -> list[Row]:
    try:
        return shape.fitted(_decoded(data))
    except NOT_JSON as error:
        raise _bad(span.path, data, at, lambda some: shape.fitted(_decoded(some)), error) from None


def _bad(path: Path, data: bytes, at: int, check: Callable[[bytes], object], error: BaseException) -> StorageError:
    """Say which element it is that does not fit."""
    begin = 0
    for end in Elements(path, at, is_first=not data.lstrip(_SPACE).startswith(b",")).ends(data):
        try:
            check(data[begin:end])
        except NOT_JSON as found:
            error = found
            break
        begin = end
    some = data[begin:]
    return _error_at(path, at + begin + len(some) - len(some.lstrip(_BETWEEN)), reason_of(error))


def _error_at(path: Path, place: int, reason: str) -> StorageError:
    with translate_errors(path):
        return StorageError(f"{path}, line {line_number(path, place)} (byte {place}): {reason}")


class JsonWriter(FileWriter):
    """Writes arrays."""

    languages: Sequence[Language] = (Language.ROWS,)
    family = FAMILY
    endings = ENDINGS
    documents = True

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
        """Records do not name columns."""
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
        for _, data in _blocks(file.fileno(), begin, end, Elements(path, begin, is_first=True)):
            yield data.strip(_BETWEEN)
        return
    file.seek(begin)
    for line in file:
        yield line.strip()

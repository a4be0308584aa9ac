"""What the readers of files have in common: which files are a table, and where a chunk of them ends.

A URL names a file, which is one table and called by its stem; or a folder, in which each file `name.ext` and each
folder `name/` with parts is a table; or a pattern (`logs-*.csv`), whose files are one table. A folder with a manifest
is one table, too. Names that begin with a dot or an underscore are ignored.

A table is cut by places in its files: bytes, or row groups. A bound is one number if there is one file, and the file's
number and the place if there are several, in the order of their names. What the files were when they were described
(name, size, time of the last change) travels with the table, and a file that has changed since is not read: its
places would mean something else.
"""

from __future__ import annotations

import asyncio
import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.connectors.api.bulk import (
    Bound,
    By,
    Column,
    Csv,
    Language,
    Pieces,
    Range,
    Table,
)
from headgate.connectors.files.errors import translate_errors
from headgate.connectors.files.manifest import MANIFEST, Manifest, manifest_of, sidecar_of
from headgate.connectors.guard import present
from headgate.connectors.places import place_of_path
from headgate.connectors.urls import path_and_options
from headgate.errors import NotFound, Refused

BLOCK = 4 << 20  # Bytes that are read at once.
BOM = b"\xef\xbb\xbf"


# Which files are a table.


def tables_at(path: Path, endings: Sequence[str]) -> dict[str, list[Path]]:
    """The tables of a path, each with its files in the order of their names."""
    if path.is_file():
        return {path.stem: [path]}
    if path.is_dir():
        if (path / MANIFEST).exists():
            return {path.resolve().name: parts_in(path, endings)}
        tables: dict[str, list[Path]] = {}
        for one in sorted(path.iterdir()):
            if one.name.startswith((".", "_")):
                continue
            files = parts_in(one, endings) if one.is_dir() else [one] if one.suffix.lower() in endings else []
            if not files and not (one / MANIFEST).exists():
                continue
            name = one.name if one.is_dir() else one.stem
            if name in tables:
                raise Refused(f"{path} has the table {name!r} twice", hint="name one file or folder of the two")
            tables[name] = files
        return tables
    found = [Path(one) for one in sorted(glob.glob(str(path), recursive=True)) if os.path.isfile(one)]
    if not found:
        raise NotFound(f"{path} does not exist")
    return {
        re.sub(r"[^\w]+$|^[^\w]+", "", re.sub(r"[*?\[].*", "", path.name))
        or folder_of_pattern(path).resolve().name: found
    }


def folder_of_pattern(path: Path) -> Path:
    """The last folder of a path that no pattern is part of."""
    parts = path.parent.parts
    magic = next((place for place, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return Path(*parts[:magic])


def parts_in(folder: Path, endings: Sequence[str]) -> list[Path]:
    """The parts of one table. Those of a dump that is not finished do not count yet."""
    found = [
        one
        for one in sorted(folder.iterdir())
        if one.suffix.lower() in endings and not one.name.startswith((".", "_")) and one.is_file()
    ]
    if not any(sidecar_of(one).exists() for one in found):
        return found
    manifest = manifest_of(folder) or Manifest()
    listed = {line.name for line in manifest.parts}
    return [one for one in found if one.name in listed or not sidecar_of(one).exists()]


# Reading.


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a table, as it was when it was described."""

    name: str
    size: int
    mtime_ns: int
    start: int  # The first place: after a header.
    end: int  # The last one.


@dataclass(frozen=True, slots=True)
class Span:
    """Some of one file."""

    path: Path
    part: Part
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Description:
    """What a kind of file finds out about a table's files."""

    columns: tuple[Column, ...]
    parts: list[Part]
    rows: int | None = None
    sampled: bool = False
    details: dict[str, Any] = field(default_factory=dict)


class FileReader:
    """One session that reads files. What a place is, and what lies between two, is said by the kind of file."""

    languages: Sequence[Language]
    endings: Sequence[str]
    known: Sequence[str] = ()  # Options of the URL.
    by = By.BYTES
    family: str

    def __init__(self, url: str) -> None:
        self._path, self.options = path_and_options(url, self.known)
        self._guard = present()

    # What a kind of file says.

    def inspect(self, paths: list[Path], manifest: Manifest | None) -> Description:
        """The columns, and where each file begins and ends."""
        raise NotImplementedError

    def ahead(self, span: Span, rows: int) -> tuple[int, int]:
        """The place that ends that many rows from the span's beginning, and how many are left if its end is nearer."""
        raise NotImplementedError

    def read(self, table: Table, span: Span, language: Language, csv: Csv) -> Pieces:
        """The rows of some of one file."""
        raise NotImplementedError

    # The contract.

    async def tables(self) -> list[str]:
        """The names of all tables that can be copied."""
        return list(await asyncio.to_thread(self._tables))

    def _tables(self) -> dict[str, list[Path]]:
        self._guard.check([place_of_path(str(self._path))])
        with translate_errors(self._path):
            found = tables_at(self._path, self.endings)
        for path in (path for files in found.values() for path in files):
            self._guard.path(path)
        return found

    async def name_of(self, target: str) -> str:
        """What was written into a single file is called by the name of that file."""
        return self._path.stem if await asyncio.to_thread(self._path.is_file) else target

    async def describe(self, table: str) -> Table:
        """What the files of the table look like now."""
        return await asyncio.to_thread(self._describe, table)

    def _describe(self, table: str) -> Table:
        files = self._tables().get(table)
        if files is None:
            raise NotFound(f"{self._path} has no table {table!r}")
        with translate_errors(self._path):
            manifest = self._manifest(table, files)
            found = self.inspect(files, manifest)
        rows = sum(line.rows for line in manifest.parts) if manifest and manifest.columns else found.rows
        places = [[part.name, part.size, part.mtime_ns, part.start, part.end] for part in found.parts]
        return Table(
            table,
            found.columns,
            by=self.by,
            rows=rows,
            size=sum(part.size for part in found.parts),
            family=self.family,
            details={"files": places, **found.details},
            sampled=found.sampled,
        )

    def _manifest(self, table: str, files: list[Path]) -> Manifest | None:
        if self._path.is_dir():
            folder = self._path if (self._path / MANIFEST).exists() else self._path / table
            if folder.is_dir():
                return manifest_of(folder)
        return manifest_of(files[0]) if len(files) == 1 else None

    @property
    def root(self) -> Path:
        """Where the names of files begin."""
        if self._path.is_dir():
            return self._path
        return self._path.parent if self._path.is_file() else folder_of_pattern(self._path)

    def _at(self, part: Part) -> Path:
        """Where a part is; its name comes from a plan, and may be any."""
        return Path(self._guard.path(self.root / part.name))

    def part_of(self, path: Path, state: os.stat_result, start: int, end: int) -> Part:
        """The part that this file is now."""
        return Part(os.path.relpath(path, self.root), state.st_size, state.st_mtime_ns, start, end)

    async def begin(self) -> str | None:
        """Files have no snapshots: one that changes is noticed."""
        return None

    async def top(self, table: Table) -> Bound | None:
        """The end of the last file with anything in it."""
        parts = parts_of(table)
        for number in range(len(parts) - 1, -1, -1):
            if parts[number].end > parts[number].start:
                return _bound(parts, number, parts[number].end)
        return None

    async def cut(self, table: Table, after: Bound | None, top: Bound, rows: int) -> Bound:
        """That many rows further, at the end of a record."""
        parts, left = parts_of(table), max(1, rows)
        number, at = _place(after)
        last, stop = _place(top)
        while number < last or (number == last and at < stop):
            part = parts[number]
            end = stop if number == last else part.end
            at = max(at, part.start)
            if at < end:
                span = Span(self._at(part), part, at, end)
                at, left = await asyncio.to_thread(self._ahead, span, left)
            if left <= 0 or at < end:
                return _bound(parts, number, at)
            number, at = number + 1, 0
        return top

    def _ahead(self, span: Span, rows: int) -> tuple[int, int]:
        with translate_errors(span.path):
            return self.ahead(span, rows)

    async def query(self, table: Table, range: Range, language: Language, csv: Csv) -> Pieces:
        """The rows of one range, file by file."""
        for span in self.spans(table, range):
            async for piece in self.read(table, span, language, csv):
                yield piece

    def spans(self, table: Table, range: Range) -> list[Span]:
        """The range, file by file."""
        parts = parts_of(table)
        first, begin = _place(range.lo)
        last, end = _place(range.hi)
        spans = []
        for number, part in enumerate(parts[first : last + 1], first):
            start = max(part.start, begin if number == first else 0)
            stop = end if number == last else part.end
            if start < stop:
                spans.append(Span(self._at(part), part, start, stop))
        return spans

    async def close(self) -> None:
        """No file is held open."""


def parts_of(table: Table) -> list[Part]:
    """The files of a table, from its details."""
    return [Part(*one) for one in table.details["files"]]


def _place(bound: Bound | None) -> tuple[int, int]:
    if bound is None:
        return 0, 0
    return (0, int(bound[0])) if len(bound) == 1 else (int(bound[0]), int(bound[1]))


def _bound(parts: list[Part], number: int, at: int) -> Bound:
    return (str(at),) if len(parts) == 1 else (str(number), str(at))


@contextmanager
def open_unchanged(span: Span) -> Iterator[int]:
    """The file of a span, open, if it is still the one that was described."""
    with translate_errors(span.path):
        descriptor = os.open(span.path, os.O_RDONLY)
        try:
            check_unchanged(span, os.fstat(descriptor))
            yield descriptor
        finally:
            os.close(descriptor)


def check_unchanged(span: Span, state: os.stat_result) -> None:
    """Refuse a file that is not what it was."""
    if (state.st_size, state.st_mtime_ns) != (span.part.size, span.part.mtime_ns):
        raise Refused(
            f"{span.path} has changed since the dump began", code="changed", hint="begin a new dump of the table"
        )


def line_number(path: Path, offset: int) -> int:
    """The line of a file at this byte; for messages."""
    number = 1
    with path.open("rb") as file:
        while offset > 0 and (data := file.read(min(BLOCK, offset))):
            number += data.count(b"\n")
            offset -= len(data)
    return number

"""What the storages of files have in common: which files are a table, where a chunk of them ends, and the manifest.

A URL names a file, which is one table and called by its stem; or a folder, in which each file `name.ext` and each
folder `name/` with parts is a table; or a pattern (`logs-*.csv`), whose files are one table. A folder with a manifest
of its own is one table, too. Names that begin with a dot or an underscore are nobody's data.

A table is cut by places in its files: bytes, or row groups. A bound is one number if there is one file, and the file's
number and the place if there are several, in the order of their names. What the files were when they were described
(name, size, time of the last change) travels with the table, and a file that is not the same any more is not read: its
places would mean something else.

The manifest, `_headgate.json`, is written when a dump is finished: the types of the columns, which CSV and JSON do not
know, and the parts with their rows. For a single file it lies beside, hidden, and counts only as long as the file is
the one that was written.
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
from urllib.parse import unquote

import msgspec

from headgate.connectors.api.bulk import (
    Bound,
    By,
    Column,
    Csv,
    Language,
    Pieces,
    Range,
    StorageError,
    StorageGone,
    Table,
)
from headgate.connectors.urls import path_of
from headgate.connectors.values.kinds import type_from_text
from headgate.errors import ConfigError, NotFound, Refused

MANIFEST = "_headgate.json"
SAMPLE = 1 << 18  # Bytes that tell how long a record is.
BLOCK = 4 << 20  # Bytes that are read at once.
BOM = b"\xef\xbb\xbf"


class Line(msgspec.Struct, frozen=True):
    """One part of a table: the ledger's line of its chunk."""

    name: str
    dump: str
    lo: str
    hi: str
    rows: int


class Field(msgspec.Struct, frozen=True):
    """One column in a manifest."""

    name: str
    type: str
    nullable: bool = True


class Manifest(msgspec.Struct):
    """What is known of a table that a dump wrote."""

    columns: list[Field] = []
    parts: list[Line] = []
    finished: list[str] = []  # Dumps.
    size: int = 0  # Of a single file: what it was when it was written,
    mtime_ns: int = 0  # and when.

    def types(self) -> tuple[Column, ...]:
        """The columns."""
        return tuple(Column(one.name, type_from_text(one.type), one.nullable) for one in self.columns)


def fields_of(columns: Sequence[Column]) -> list[Field]:
    """The columns as a manifest keeps them."""
    return [Field(column.name, str(column.type), column.nullable) for column in columns]


def manifest_of(path: Path) -> Manifest | None:
    """The manifest of a folder or of a file; None: there is none, or it speaks of another file."""
    try:
        if path.is_dir():
            return msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
        found = msgspec.json.decode(beside_file(path).read_bytes(), type=Manifest)
        state = path.stat()
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, ValueError) as error:
        raise StorageError(f"the manifest of {path} is broken: {error}", hint="remove it, or bring it back") from None
    return found if (found.size, found.mtime_ns) == (state.st_size, state.st_mtime_ns) else None


def beside_file(path: Path) -> Path:
    """Where the manifest of a single file lies."""
    return path.with_name(f".{path.name}.headgate.json")


def sidecar_of(part: Path) -> Path:
    """Where the line of a part lies until its dump is finished."""
    return part.with_name(f".{part.name}.json")


def path_and_options(url: str, known: Sequence[str]) -> tuple[Path, dict[str, str]]:
    """The path of a URL, and its options. A question mark without a name and `=` after it is part of a pattern."""
    found = re.fullmatch(r"(.*?)\?([a-z_]+=.*)", url, re.DOTALL)
    if found is None:
        return path_of(url), {}
    options = dict(one.split("=", 1) for one in found[2].split("&") if "=" in one)
    for name in options:
        if name not in known:
            hint = f"known: {', '.join(known)}" if known else "this kind of file has no options"
            raise ConfigError(f"{name!r} is not an option of {found[1]}", hint=hint)
    return path_of(found[1]), {name: unquote(value) for name, value in options.items()}


@contextmanager
def telling(what: Path | str) -> Iterator[None]:
    """Errors of the file system as ours. One that others will meet too means that the storage is gone."""
    try:
        yield
    except FileNotFoundError as error:
        raise StorageGone(f"{error.filename or what} is not there any more") from None
    except OSError as error:
        raise StorageError(f"{what}: {error.strerror or error}") from None


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
        raise NotFound(f"there is nothing at {path}")
    return {re.sub(r"[^\w]+$|^[^\w]+", "", re.sub(r"[*?\[].*", "", path.name)) or fixed(path).resolve().name: found}


def fixed(path: Path) -> Path:
    """The folder from which a pattern goes on."""
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
class Looked:
    """What a kind of file tells of a table's files."""

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

    # What a kind of file says.

    def look(self, paths: list[Path], manifest: Manifest | None) -> Looked:
        """The columns, and where each file begins and ends."""
        raise NotImplementedError

    def ahead(self, span: Span, rows: int) -> tuple[int, int]:
        """The place that ends so many rows from the span's beginning, and how many are left when its end is nearer."""
        raise NotImplementedError

    def read(self, table: Table, span: Span, language: Language, csv: Csv) -> Pieces:
        """The rows of some of one file."""
        raise NotImplementedError

    # The contract.

    async def tables(self) -> list[str]:
        """The names of all there is to copy."""
        return list(await asyncio.to_thread(self._tables))

    def _tables(self) -> dict[str, list[Path]]:
        with telling(self._path):
            return tables_at(self._path, self.endings)

    async def describe(self, table: str) -> Table:
        """What the files of the table look like now."""
        return await asyncio.to_thread(self._describe, table)

    def _describe(self, table: str) -> Table:
        files = self._tables().get(table)
        if files is None:
            raise NotFound(f"{self._path} has no table {table!r}")
        with telling(self._path):
            manifest = self._manifest(table, files)
            looked = self.look(files, manifest)
        rows = sum(line.rows for line in manifest.parts) if manifest and manifest.columns else looked.rows
        places = [[part.name, part.size, part.mtime_ns, part.start, part.end] for part in looked.parts]
        return Table(
            table,
            looked.columns,
            by=self.by,
            rows=rows,
            size=sum(part.size for part in looked.parts),
            family=self.family,
            details={"files": places, **looked.details},
            sampled=looked.sampled,
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
        return self._path.parent if self._path.is_file() else fixed(self._path)

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
        """About so many rows further, at the end of a record."""
        parts, left = parts_of(table), max(1, rows)
        number, at = _place(after)
        last, stop = _place(top)
        while number < last or (number == last and at < stop):
            part = parts[number]
            end = stop if number == last else part.end
            at = max(at, part.start)
            if at < end:
                span = Span(self.root / part.name, part, at, end)
                at, left = await asyncio.to_thread(self._ahead, span, left)
            if left <= 0 or at < end:
                return _bound(parts, number, at)
            number, at = number + 1, 0
        return top

    def _ahead(self, span: Span, rows: int) -> tuple[int, int]:
        with telling(span.path):
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
                spans.append(Span(self.root / part.name, part, start, stop))
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
def unchanged(span: Span) -> Iterator[int]:
    """The file of a span, open, if it is still the one that was described."""
    with telling(span.path):
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


def text_ahead(descriptor: int, span: Span, rows: int) -> tuple[int, int]:
    """The byte that is about so many lines further, and the rows that are left if the span ends before."""
    sample = os.pread(descriptor, min(SAMPLE, span.end - span.begin), span.begin)
    length = len(sample) / max(1, sample.count(b"\n"))
    wanted = span.begin + max(1, int(rows * length))
    if wanted < span.end:
        return wanted, 0
    return span.end, max(0, rows - int((span.end - span.begin) / length))

"""Writing files: one part for each chunk, written under another name and renamed: a part is either whole or absent.

In a folder a table is a folder of parts, `<table>/<dump>-<key>.ext`. Next to each part lies, hidden, the ledger's line
of its chunk: written before the part gets its name, so a part without a line is not ours, and a line without its part
says nothing. At the end the lines go into the manifest, and the parts begin to count for readers. `replace` builds
`.<table>.hg_<dump>/` and puts it in place with two renames; which of these folders are there tells how far a swap came.

Into a single file (`orders.csv`) the parts are built in `.orders.csv.hg_<dump>/` and joined at the end, in the order of
the source: each chunk begins where another ended. The joined file takes the place of the old one with one rename, and
the number of its inode, written down before, tells whether that has happened.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from uuid import UUID

import msgspec

from headgate.connectors.api.bulk import (
    PLAIN,
    AlreadyWritten,
    Column,
    Job,
    Language,
    Mode,
    Pieces,
    Range,
    StorageError,
    Table,
    bad_name,
)
from headgate.connectors.files.durable import locked, put, sync, sync_folder
from headgate.connectors.files.errors import translate_errors
from headgate.connectors.files.manifest import (
    MANIFEST,
    Line,
    Manifest,
    fields_of,
    manifest_of,
    manifest_path,
    sidecar_of,
)
from headgate.connectors.guard import present
from headgate.connectors.sql import ledger
from headgate.connectors.urls import path_and_options
from headgate.connectors.values.convert import Normalizes
from headgate.connectors.values.kinds import TEXT, Kind
from headgate.errors import Refused
from headgate.text import counted

T = TypeVar("T")
_JOINED = "joined"
_STATE = "state.json"
CANNOT = " cannot be written"
LONGEST = 230  # Bytes of a table's name: what file systems allow, less what is added while it is built.


class Joining(msgspec.Struct):
    """Written before a joined file takes its place."""

    inode: int
    manifest: Manifest


class FileWriter(Normalizes):
    """One session that writes files. How rows become bytes is said by the kind of file."""

    languages: Sequence[Language]
    csv = PLAIN
    transactional = False
    family: str
    endings: Sequence[str]

    def __init__(self, url: str) -> None:
        self._guard = present()
        self._path, _ = path_and_options(url, ())
        self._is_file = self._path.is_file() or (self._path.suffix.lower() in self.endings and not self._path.is_dir())

    # What a kind of file says.

    async def fill(self, file: BinaryIO, job: Job, pieces: Pieces) -> int:
        """Write one part. Returns its rows."""
        raise NotImplementedError

    def join(self, old: Path | None, parts: list[Path], job: Job, out: BinaryIO) -> None:
        """Write what the old file has, and the parts, as one file."""
        raise NotImplementedError

    def columns_of(self, path: Path) -> list[str] | None:
        """The names of a file's columns. None: the file does not name them."""
        raise NotImplementedError

    # Where things are.

    def _place(self, target: str) -> Path:
        """Where a table is, judged each time: a symlink may have come to be there."""
        place = self._named(target)
        self._guard.path(place)
        return place

    def _named(self, target: str) -> Path:
        if self._is_file:
            return self._path
        is_long = len(os.fsencode(target)) > LONGEST
        if not target or target.startswith((".", "_")) or "/" in target or "\0" in target or is_long:
            raise bad_name(target, "a folder")
        return self._path / target

    def _apart(self, job: Job) -> Path:
        place = self._place(job.target)
        apart = place.with_name(f".{place.name}.hg_{job.dump.hex[:8]}")
        self._guard.path(apart)
        return apart

    def _folder(self, job: Job) -> Path:
        """Where this job's parts go."""
        return self._apart(job) if (self._is_file or job.is_apart) else self._place(job.target)

    def _part(self, job: Job, range: Range) -> Path:
        return self._folder(job) / f"{job.dump.hex[:8]}-{ledger.key_of(range)}{self.endings[0]}"

    def _parts(self, folder: Path) -> list[Path]:
        if not folder.is_dir():
            return []
        return [
            one
            for one in sorted(folder.iterdir())
            if one.suffix.lower() in self.endings and not one.name.startswith((".", "_"))
        ]

    def _lines(self, folder: Path) -> dict[str, Line]:
        """The lines of the parts that are there and not in a manifest yet."""
        found = {}
        for part in self._parts(folder):
            with suppress(FileNotFoundError):
                found[part.name] = msgspec.json.decode(sidecar_of(part).read_bytes(), type=Line)
        return found

    # The contract.

    def name_for(self, plain: str) -> str:
        """The same."""
        return plain

    async def place_of(self, table: str) -> str:
        """The path. Folders whose names differ in the case of letters, or in how those are encoded, would be one folder
        on many machines that they are copied to."""
        return unicodedata.normalize("NFC", str(self._named(table))).casefold()

    async def look(self, table: str) -> Table | None:
        """The table as it is now."""
        return await self._run(table, self._look, table)

    def _look(self, table: str) -> Table | None:
        place = self._place(table)
        if not place.exists():
            return None
        manifest = manifest_of(place)
        parts = [place] if self._is_file else self._parts(place)
        names = next(filter(None, map(self.columns_of, parts)), None) if manifest is None else None
        columns = manifest.types() if manifest else tuple(Column(name, TEXT) for name in names or ())
        return Table(table, columns, rows=self._rows(place, parts, manifest), family=self.family)

    def _rows(self, place: Path, parts: list[Path], manifest: Manifest | None) -> int | None:
        if not any(part.stat().st_size for part in parts):
            return 0
        if self._is_file:
            return sum(line.rows for line in manifest.parts) if manifest and manifest.columns else None
        known = {line.name: line.rows for line in manifest.parts} if manifest else {}
        known |= {name: line.rows for name, line in self._lines(place).items()}
        return sum(known[part.name] for part in parts) if all(part.name in known for part in parts) else None

    async def prepare(self, job: Job) -> Table:
        """The folder that parts go into."""
        return await self._run(job.target, self._prepare, job)

    def _prepare(self, job: Job) -> Table:
        if job.mode in (Mode.UPSERT, Mode.ABSENT):
            raise Refused(f"mode {job.mode} needs a key, and files have none", hint="use append or replace")
        place = self._place(job.target)
        table = Table(job.target, job.source.columns, rows=None, family=self.family)
        if self._is_finished(job):
            return table
        if job.mode is Mode.REPLACE:
            self._refuse_strangers(place)
        else:
            self._refuse_others(job, place)
        folder = self._folder(job)
        folder.mkdir(parents=True, exist_ok=True)
        if self._is_file:
            held = folder / "target"
            if held.exists() and held.read_text() != job.target:
                raise Refused(f"{place} already holds the table {held.read_text()}", hint="name a folder")
            held.write_text(job.target)
        return table

    def _refuse_strangers(self, place: Path) -> None:
        """A folder that is to be replaced must hold nothing but a table."""
        if self._is_file or not place.exists():
            return
        ours = {MANIFEST, *(part.name for part in self._parts(place))}
        for one in place.iterdir() if place.is_dir() else [place]:
            is_ours = one.name in ours or one.suffix == ".part" or one.name[1:].removesuffix(".json") in ours
            if not is_ours:
                raise Refused(f"{place} has {one.name}, which would be lost", hint="replace another folder, or move it")

    def _refuse_others(self, job: Job, place: Path) -> None:
        """What is appended to must have the same columns."""
        manifest = manifest_of(place)
        wanted = fields_of(job.source.columns)
        if manifest is not None and manifest.columns:
            same = [(one.name, one.type) for one in manifest.columns] == [(one.name, one.type) for one in wanted]
            has_documents = any(one.type == str(Kind.JSON) for one in wanted)
            same = same and (manifest.absent == self.documents or not has_documents or not manifest.parts)
        else:
            parts = [place] if self._is_file else self._parts(place)
            names = next((found for part in parts if part.exists() and (found := self.columns_of(part))), None)
            same = names is None or names == [one.name for one in wanted]
        if not same:
            raise Refused(f"{place} has other columns", code="columns_differ", hint="replace it, or name another")

    def _is_finished(self, job: Job) -> bool:
        manifest = manifest_of(self._place(job.target))
        return manifest is not None and str(job.dump) in manifest.finished

    async def done(self, job: Job) -> dict[Range, int]:
        """The chunks whose parts are there."""
        return await self._run(job.target, self._done, job)

    def _done(self, job: Job) -> dict[Range, int]:
        place, folder = self._place(job.target), self._folder(job)
        lines: dict[str, Line] = {}
        for one in dict.fromkeys([place, folder]):
            lines |= {line.name: line for line in (manifest_of(one) or Manifest()).parts} | self._lines(one)
        own = [line for line in lines.values() if line.dump == str(job.dump)]
        return {ledger.range_of(line.lo, line.hi): line.rows for line in own}

    async def unfinished(self, target: str) -> list[UUID]:
        """Dumps of this table that are not finished."""
        return await self._run(target, self._unfinished, target)

    def _unfinished(self, target: str) -> list[UUID]:
        place = self._place(target)
        finished = set((manifest_of(place) or Manifest()).finished)
        apart = sorted(place.parent.glob(f".{_escaped(place.name)}.hg_????????")) if place.parent.is_dir() else []
        found = {line.dump for folder in [place, *apart] for line in self._lines(folder).values()}
        for folder in apart:  # All its parts are in its manifest, but it has not replaced the table yet.
            found |= set((manifest_of(folder) or Manifest()).finished)
        return [UUID(dump) for dump in sorted(found - finished)]

    def accepts(self, table: Table, job: Job) -> Sequence[Language]:
        """The languages of a file."""
        return self.languages

    async def write(
        self, job: Job, table: Table, range: Range, language: Language, pieces: Pieces, *, again: bool = False
    ) -> int:
        """One part: written under another name; then its line; then its name."""
        part = self._part(job, range)
        if await self._run(job.target, self._has, job, range):
            if not again:
                raise AlreadyWritten(f"{job.target} already has this chunk ({part.name})")
            if self._is_file and self._is_finished(job):
                raise Refused(f"{self._path} is one file: a part of it cannot be written again", hint="dump it again")
            if self._is_finished(job):
                part = self._place(job.target) / part.name
        stray = part.with_name(f".{part.name}.{secrets.token_hex(4)}.part")
        try:
            with translate_errors(part, CANNOT), stray.open("xb") as file:
                rows = await self.fill(file, job, pieces)
                await asyncio.to_thread(sync, file)
            line = Line(part.name, str(job.dump), *ledger.line_of(range)[1:], rows)
            await self._run(job.target, self._publish, stray, part, line, again)
        except BaseException:
            with suppress(OSError):
                stray.unlink(missing_ok=True)
            raise
        return rows

    def _has(self, job: Job, range: Range) -> bool:
        return self._part(job, range).exists() or (self._is_finished(job) and range in self._done(job))

    def _publish(self, stray: Path, part: Path, line: Line, again: bool) -> None:
        with locked(part.parent):
            if part.exists() and not again:
                raise AlreadyWritten(f"{part.parent} already has this chunk ({part.name})")
            put(sidecar_of(part), msgspec.json.encode(line))
            stray.rename(part)
            sync_folder(part.parent)

    async def undo(self, job: Job, table: Table, range: Range) -> None:
        """Remove what a worker left that died while it wrote."""
        await self._run(job.target, self._undo, self._part(job, range))

    def _undo(self, part: Path) -> None:
        for stray in part.parent.glob(f".{_escaped(part.name)}.*.part"):
            stray.unlink(missing_ok=True)

    async def finish(self, job: Job) -> None:
        """The parts begin to count; what was built apart takes its place."""
        await self._run(job.target, self._finish_file if self._is_file else self._finish_folder, job)

    def _finish_folder(self, job: Job) -> None:
        place, apart = self._place(job.target), self._apart(job)
        old = apart.with_name(f"{apart.name}.old")
        if not (self._is_file or job.is_apart):
            self._fold(place, job)
        elif apart.exists() and job.mode is not Mode.REPLACE and place.exists():
            for part in self._parts(apart):
                with suppress(FileNotFoundError):  # It was moved before a crash, and its part was not.
                    sidecar_of(part).rename(sidecar_of(place / part.name))
                part.rename(place / part.name)
            self._fold(place, job)
            shutil.rmtree(apart)
        elif apart.exists():
            self._fold(apart, job)
            if place.exists():
                place.rename(old)
            apart.rename(place)
            sync_folder(place.parent)
        elif not self._is_finished(job):
            raise StorageError(f"{apart} no longer exists", hint="dump the table again")
        if old.exists():
            shutil.rmtree(old)

    def _fold(self, folder: Path, job: Job) -> None:
        """Put the lines of this dump into the manifest. One that is in both counts once."""
        with locked(folder):
            manifest = manifest_of(folder) or Manifest()
            own = {name: line for name, line in self._lines(folder).items() if line.dump == str(job.dump)}
            manifest.parts = [line for line in manifest.parts if line.name not in own] + list(own.values())
            manifest.columns = manifest.columns or fields_of(job.source.columns)
            manifest.absent = self.documents
            if str(job.dump) not in manifest.finished:
                manifest.finished.append(str(job.dump))
            put(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
            for stray in folder.glob(f".{job.dump.hex[:8]}-*"):
                stray.unlink(missing_ok=True)

    def _finish_file(self, job: Job) -> None:
        place, folder = self._path, self._apart(job)
        if self._is_finished(job) or not folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
            return
        state, joined = folder / _STATE, folder / _JOINED
        if not state.exists():
            lines = _chained(list(self._lines(folder).values()))
            old = place if job.mode is not Mode.REPLACE and place.exists() and place.stat().st_size else None
            before = (manifest_of(place) if old else None) or Manifest()
            with joined.open("wb") as out:
                self.join(old, [folder / line.name for line in lines], job, out)
                sync(out)
                size, mtime_ns = os.fstat(out.fileno()).st_size, os.fstat(out.fileno()).st_mtime_ns
            known = before.parts if before.parts or old is None else None
            parts = [*(known or []), *lines]
            columns = fields_of(job.source.columns) if known is not None else []
            finished = [*before.finished, str(job.dump)]
            joining = Joining(joined.stat().st_ino, Manifest(columns, parts, finished, size, mtime_ns, self.documents))
            put(state, msgspec.json.encode(joining))
        joining = msgspec.json.decode(state.read_bytes(), type=Joining)
        if joined.exists():
            if joined.stat().st_ino != joining.inode:
                raise StorageError(f"{joined} is not what was written", hint=f"remove {folder} and dump again")
            joined.replace(place)
            sync_folder(place.parent)
        put(manifest_path(place), msgspec.json.encode(joining.manifest))
        shutil.rmtree(folder)

    async def drop(self, job: Job) -> None:
        """Remove what was built apart."""
        await self._run(job.target, self._drop, job)

    def _drop(self, job: Job) -> None:
        if (self._is_file or job.is_apart) and not self._is_finished(job):
            shutil.rmtree(self._apart(job), ignore_errors=True)

    async def clean(self, dump: UUID, targets: Sequence[str]) -> None:
        """Remove what is hidden next to the tables: their files are then like any others, and tell no types."""
        for target in targets:
            await self._run(target, self._clean, dump, target)

    def _clean(self, dump: UUID, target: str) -> None:
        place = self._place(target)
        path = manifest_path(place) if self._is_file else place / MANIFEST
        for stray in place.glob(f".{dump.hex[:8]}-*") if place.is_dir() else ():
            stray.unlink(missing_ok=True)
        manifest = manifest_of(place)
        if manifest is None or set(manifest.finished) <= {str(dump)}:
            path.unlink(missing_ok=True)  # Also one that speaks of another file.
            return
        manifest.finished = [one for one in manifest.finished if one != str(dump)]
        put(path, msgspec.json.encode(manifest))

    async def close(self) -> None:
        """No file is held open."""

    async def _run(self, target: str, work: Callable[..., T], *args: Any) -> T:
        def run() -> T:
            with translate_errors(self._place(target), CANNOT):
                return work(*args)

        return await asyncio.to_thread(run)


def _chained(lines: list[Line]) -> list[Line]:
    """The lines in the order of the source: each begins where another ended."""
    after = {line.lo: line for line in lines}
    chain = []
    at = ledger.text_of(None)
    while at in after:
        line = after.pop(at)
        chain.append(line)
        at = line.hi
    if after or len(chain) != len(lines):
        raise StorageError(
            f"{counted(len(lines) - len(chain), 'part')} cannot be joined: an earlier chunk is missing",
            hint="resume the dump",
        )
    return chain


def _escaped(name: str) -> str:
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)

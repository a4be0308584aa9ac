"""Reads JSON Lines: files with one JSON value per line.

No file is kept open between calls: each read does its work in a thread, from open to close. A cancelled call leaves
nothing behind, and a file that was replaced in between is noticed.

The position is a file, the offset after the last line handled, and a mark: a hash of the bytes just before that offset.
If they are no longer there, this is not the file that was read, and the source says so. Unlike an inode number, a mark
survives a copy or a restored backup, and notices a file that was truncated and written again.
"""

from __future__ import annotations

import asyncio
import functools
import glob
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Annotated

import msgspec

from headgate.connectors import api
from headgate.connectors.files.lines import NOT_JSON, decode, opened
from headgate.connectors.files.options import FilesSourceOptions
from headgate.connectors.moves import NO_POSITION, both_of
from headgate.connectors.places import place_of_path
from headgate.errors import Cause, ConnectorError, EndOfStream, NotConnected
from headgate.text import counted

MARK_BYTES = 1024  # Enough to tell one file from another.
PIECE_BYTES = 1 << 20  # Of a line that is too long, which is passed over.
KEPT_BYTES = 1 << 16  # Of such a line.
# A read asks for a little more than the last one used, so that little is read and not used; or for twice as much, if
# that was less than a batch.
LEAST_READ_BYTES = 1 << 18


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position: where the last line handled ends."""

    file: str
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    mark: str = ""  # Absent at a file's beginning, and where an operator set the position.


class Taken(msgspec.Struct, frozen=True):
    """What one read of the files returned."""

    place: Place  # Where to continue.
    records: list[object]
    size_bytes: int = 0
    offsets: Callable[[], Sequence[int]] = tuple  # Of the records, in the file. Only a bad record is asked for its own.

    def batch(self) -> api.Batch:
        """As the runtime gets it."""
        meta: list[object] = [{"file": self.place.file}] * len(self.records)
        place = msgspec.to_builtins(self.place)
        return api.Batch(self.records, place, self.size_bytes, None, meta, self._place)

    def _place(self, index: int) -> str:
        return f"{self.place.file}, offset {self.offsets()[index]}"


class FilesSource:
    """Reads lines in order. A line that is not JSON comes as it is, for the dead letters."""

    def __init__(self, options: FilesSourceOptions, context: api.Context) -> None:
        self._options = options
        self._guard = context.guard
        self._place: Place | None = None
        self._most_bytes = min(options.batch_bytes, options.max_line_bytes + 1)
        self._read_bytes = min(LEAST_READ_BYTES, self._most_bytes)

    async def check(self) -> None:
        with opened(self._files()[0], self._guard):
            pass

    async def parts(self) -> Sequence[str]:
        return [""]

    async def open(self, position: api.Position) -> None:
        try:
            self._place = msgspec.convert(position, Place | None)
        except msgspec.ValidationError as error:
            raise ConnectorError(
                f"position {position!r} is not a place in a file: {error}", cause=Cause.CONFIG
            ) from error
        place = self._place or Place(self._files()[0])
        with opened(place.file, self._guard) as descriptor:
            _read_on(descriptor, place, 0)

    async def read(self) -> api.Batch:
        while True:
            before = self._place
            taken = await asyncio.to_thread(self._take, before)
            self._place = taken.place
            wanted = taken.size_bytes * (9 if len(taken.records) >= self._options.batch else 16) // 8
            self._read_bytes = min(self._most_bytes, max(wanted, LEAST_READ_BYTES))
            if taken.records:
                return taken.batch()
            if taken.place != before:
                continue
            if not self._options.follow:
                raise EndOfStream(f"all of {self._options.path} was read")
            await asyncio.sleep(self._options.poll_s)

    async def backlog(self) -> api.Backlog | None:
        """The bytes that follow, in this file and in those after it. How many records that are, nobody has counted."""
        return api.Backlog(bytes=await asyncio.to_thread(self._unread, self._place))

    async def ack(self, position: api.Position) -> None:
        """Files stay as they are."""

    async def close(self) -> None:
        """No file is held open."""

    def _files(self) -> list[str]:
        """The files there are now, in the order of their names."""
        path = self._options.path
        self._guard.check([place_of_path(path)])
        found = [path] if os.path.isfile(path) else sorted(filter(os.path.isfile, glob.glob(path, recursive=True)))
        if not found and self._options.follow:
            raise NotConnected(f"no file matches {path} yet")
        if not found:
            raise ConnectorError(f"no file matches {path}", cause=Cause.CONFIG, hint="correct `path`, or set `follow`")
        return found

    def _unread(self, place: Place | None) -> int:
        files = self._files()
        place = place or Place(files[0])
        sizes = ((file, os.path.getsize(file)) for file in files if file >= place.file)
        return sum(max(0, size - place.offset) if file == place.file else size for file, size in sizes)

    def _take(self, place: Place | None) -> Taken:
        """The next lines, or the beginning of the next file. Changes nothing: the reader may have been cancelled."""
        # Listed before reading: if a later file is there already, this one has all of its lines.
        files = self._files()
        place = place or Place(files[0])
        later = next((file for file in files if file > place.file), None)
        taken = self._take_lines(place, has_ended=later is not None or not self._options.follow)
        return Taken(Place(later), []) if later and not taken.size_bytes else taken

    def _take_lines(self, place: Place, has_ended: bool) -> Taken:
        """The next lines of one file. Its last line may lack the line feed only if the file has ended."""
        most, size = self._options.batch, self._read_bytes
        with opened(place.file, self._guard) as descriptor:
            before, data = _read_on(descriptor, place, size)
            while len(data) == size and b"\n" not in data:
                if size > self._options.max_line_bytes:
                    return self._pass_over(descriptor, place, has_ended)
                size = min(2 * size, self._options.max_line_bytes + 1)
                before, data = _read_on(descriptor, place, size)
        *lines, rest = data.split(b"\n", most)
        if rest and has_ended and len(data) < size and len(lines) < most:
            lines.append(rest)
        used = min(len(data), sum(map(len, lines)) + len(lines))  # The last one may lack its line feed.
        mark = _mark((before + data[max(0, used - MARK_BYTES) : used])[-MARK_BYTES:])
        offsets = functools.cache(functools.partial(_offsets, lines, place.offset))
        return Taken(Place(place.file, place.offset + used, mark), _decoded(lines), used, offsets)

    def _pass_over(self, descriptor: int, place: Place, has_ended: bool) -> Taken:
        """A line that is too long, with as much of it as is kept; nothing while its end has not been written."""
        at, piece = place.offset, b""
        while b"\n" not in piece:
            at += len(piece)
            piece = os.pread(descriptor, PIECE_BYTES, at)
            if not piece:
                break
        if not piece and not has_ended:
            return Taken(place, [])
        end = at + piece.find(b"\n") + 1
        mark = _mark(os.pread(descriptor, min(MARK_BYTES, end), end - min(MARK_BYTES, end)))
        kept = os.pread(descriptor, KEPT_BYTES, place.offset)
        reason = f"the line has more than {self._options.max_line_bytes:,} bytes (the first {KEPT_BYTES:,} are kept)"
        return Taken(
            Place(place.file, end, mark), [api.Unreadable(kept, reason)], end - place.offset, lambda: [place.offset]
        )


def tell_move(before: api.Position, after: api.Position) -> str:
    """What is skipped or read again. Files are read in the order of their names."""
    if (both := both_of(before, after, Place)) is None:
        return NO_POSITION
    stood, stands = both
    if (stood and stood.file, stood and stood.offset) == (stands and stands.file, stands and stands.offset):
        return "nothing changes"
    if stands is None:
        return "all files are read again from the beginning"
    if stood is not None and stood.file == stands.file:
        apart = stands.offset - stood.offset
        verb = "is" if abs(apart) == 1 else "are"
        done = "skipped" if apart > 0 else "read again"
        return f"{counted(abs(apart), 'byte')} of {stands.file} {verb} {done}"
    if stood is None or stood.file < stands.file:
        return f"what lies before byte {stands.offset:,} of {stands.file} is skipped"
    return f"what lies after byte {stands.offset:,} of {stands.file} is read again"


def _read_on(descriptor: int, place: Place, size: int) -> tuple[bytes, bytes]:
    """The bytes before the place, which its mark vouches for, and at most `size` after it."""
    back = min(MARK_BYTES, place.offset)
    data = os.pread(descriptor, back + size, place.offset - back)
    if len(data) < back or (place.mark and place.mark != _mark(data[:back])):
        message = f"{place.file} was truncated or replaced: what was read before offset {place.offset} is gone"
        hint = "bring the file back, or set the position to null to begin again"
        raise ConnectorError(message, cause=Cause.CONFIG, hint=hint)
    return data[:back], data[back:]


def _mark(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


def _decoded(lines: list[bytes]) -> list[object]:
    """Their records. Nearly always all of them are JSON, and then no line needs a look."""
    try:
        return list(map(decode, lines))
    except NOT_JSON:
        return [_record(line) for line in lines if not _is_empty(line)]


def _record(line: bytes) -> object:
    try:
        return decode(line)
    except NOT_JSON:
        return api.Unreadable(line, "the line is not JSON")


def _offsets(lines: list[bytes], start: int) -> list[int]:
    """Where in the file each record begins."""
    starts = accumulate((len(line) + 1 for line in lines), initial=start)
    return [at for at, line in zip(starts, lines, strict=False) if not _is_empty(line)]


def _is_empty(line: bytes) -> bool:
    return not line or line.isspace()

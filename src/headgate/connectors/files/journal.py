"""What a sink is about to append, kept next to the file while it does so.

A sink that is killed in the middle leaves half a line. Only what it wrote itself may it remove, and the file alone does
not say who wrote its end. So the sink first writes down the piece that it is about to append, where, and to which
file: `.NAME.headgate`. The sink that appends next finds it, and takes back what stands at the end of the file
only if it is, byte by byte, the beginning of that piece, in the same file, at the same place. The journal is removed
with the append.

It is not synced. After a loss of power it may be missing, and then nothing is taken back: the half line is ended
instead, as any line is that somebody else left without its end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from headgate.connectors.guard import Guard

MAGIC = b"\0headgate journal\n"  # No JSON Lines begin like this: no other sink can write a journal.
_HEAD = struct.Struct("<QQQ")  # Device, inode, offset.
PIECE_BYTES = 1 << 18

Journal: TypeAlias = int | None
"""The open journal. None: the folder takes none, and nothing will be taken back."""


def path_of_journal(path: str) -> str:
    """Where the journal of a file lies."""
    place = Path(path)
    return str(place.with_name(f".{place.name}.headgate"))


@contextmanager
def kept(path: str, guard: Guard) -> Iterator[Journal]:
    """The journal of a file that is locked, until all is appended. It stays if that fails."""
    place = path_of_journal(guard.path(path))
    descriptor: Journal = None
    with suppress(OSError):  # A symlink, or a folder that may not be written.
        descriptor = guard.open(place, os.O_RDWR | os.O_CREAT, 0o600, follow=False)
        if os.fstat(descriptor).st_size and os.pread(descriptor, len(MAGIC), 0) != MAGIC:
            os.close(descriptor)
            descriptor = None
    try:
        yield descriptor
        if descriptor is not None:
            with suppress(OSError):
                os.unlink(place)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def note(journal: Journal, descriptor: int, offset: int, piece: bytes) -> None:
    """Write down what is about to be appended."""
    if journal is None:
        return
    state = os.fstat(descriptor)
    data = MAGIC + _HEAD.pack(state.st_dev, state.st_ino, offset) + piece
    os.ftruncate(journal, 0)
    at = 0
    while at < len(data):
        at += os.pwrite(journal, data[at:], at)


def half_written(journal: Journal, descriptor: int) -> tuple[int, bytes, bytes] | None:
    """What an append that was broken off has left at the end of the file: from where, what, and what is missing.
    None: nothing that is ours."""
    if journal is None:
        return None
    data = os.pread(journal, os.fstat(journal).st_size, 0)
    if len(data) < len(MAGIC) + _HEAD.size:
        return None
    device, inode, offset = _HEAD.unpack_from(data, len(MAGIC))
    piece = data[len(MAGIC) + _HEAD.size :]
    state = os.fstat(descriptor)
    if (state.st_dev, state.st_ino) != (device, inode) or not offset <= state.st_size < offset + len(piece):
        return None
    found = os.pread(descriptor, len(piece), offset)
    return (offset, found, piece[len(found) :]) if piece.startswith(found) else None


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Lines in pieces of about the same size, each of whole lines."""
    at = 0
    while at < len(data):
        end = data.rfind(b"\n", at, at + PIECE_BYTES) + 1 or data.find(b"\n", at) + 1
        yield data[at:end]
        at = end

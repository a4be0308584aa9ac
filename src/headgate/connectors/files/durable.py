"""Files that survive a crash: written under another name, synced, renamed, and only then there."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def sync(file: BinaryIO) -> None:
    """Wait until the disk has what was written."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in this folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put(path: Path, data: bytes) -> None:
    """Write a small file, whole or not at all."""
    stray = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with stray.open("xb") as file:
            file.write(data)
            sync(file)
        stray.replace(path)
    except BaseException:
        stray.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time gives files of this folder their names."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

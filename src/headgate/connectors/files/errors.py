"""What the file system's errors mean to a dump and to a stream."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.connectors.api.bulk import StorageError, StorageGone
from headgate.errors import Cause, ConnectorError, NotConnected

# The file or the folder is not as configured, and will not be until somebody changes it.
LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def translate_errors(what: Path | str, fails: str = "") -> Iterator[None]:
    """For a dump. An error that others will meet too means that the storage is gone."""
    try:
        yield
    except FileNotFoundError as error:
        raise StorageGone(f"{error.filename or what} no longer exists") from None
    except OSError as error:
        hint = "make room and resume" if error.errno in FULL else ""
        raise StorageError(f"{what}{fails}: {error.strerror or error}", hint=hint) from None


@contextmanager
def steer_worker(path: str) -> Iterator[None]:
    """For a stream. A full disk is waited for: somebody will make room."""
    try:
        yield
    except OSError as error:
        if error.errno in LASTING:
            raise ConnectorError(f"{path}: {error.strerror}", cause=Cause.CONFIG) from error
        raise NotConnected(f"{path}: {error.strerror}") from error

"""A short path to a folder whose own path is too long for the address of a socket.

A socket address holds about a hundred bytes. Where the path of a folder does not fit, a symlink with a short name leads
there: `/tmp/headgate-UID/HASH`, where HASH is that of the folder's path. So the same folder has the same short path
each time, and what was written down yesterday, such as a URL in a secret, is right today.

`/tmp` is everybody's. The folder `headgate-UID` must be this user's own and closed to all others, and `/tmp` itself
must keep people from renaming what is not theirs. So nobody else can have put the symlink there, nor exchange it. If
any of that is not so, there is no short path, and the caller does without. A short path leads nowhere that its user
could not go by the long one: who may pass the last folder, that folder decides.

Programs that clean `/tmp` leave a folder alone that somebody has locked, so it stays locked for as long as it is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

EVERYBODYS = Path(os.path.realpath("/tmp"))  # Whatever TMPDIR says: it may say something else tomorrow.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def short_path(folder: Path, held: ExitStack) -> Path | None:
    """The short path of an absolute one, made if need be; None if it cannot be had safely. It is in use until `held`
    is closed."""
    with suppress(OSError), ExitStack() as holding:
        with suppress(FileExistsError):
            _room().mkdir(mode=0o700)
        room = _own_room(holding)
        if room is None:
            return None
        name = _name_of(folder)
        if _target_of(name, room) != str(folder):
            draft = f"{name}.{secrets.token_hex(4)}"
            os.symlink(folder, draft, dir_fd=room)
            os.rename(draft, name, src_dir_fd=room, dst_dir_fd=room)
        fcntl.flock(room, fcntl.LOCK_SH)
        held.push(holding.pop_all())
        return _room() / name
    return None


def forget(folder: Path) -> None:
    """Nobody uses its short path any more."""
    with suppress(OSError), ExitStack() as holding:
        room = _own_room(holding)
        if room is not None and _target_of(name := _name_of(folder), room) == str(folder):
            os.unlink(name, dir_fd=room)


def _room() -> Path:
    return EVERYBODYS / f"headgate-{os.geteuid()}"


def _own_room(held: ExitStack) -> int | None:
    """This user's folder in `/tmp`, open; None if it is somebody else's, or may be by the next moment."""
    outer, room = (_opened(path, held) for path in (EVERYBODYS, _room()))
    around, inside = os.fstat(outer), os.fstat(room)
    is_kept = around.st_uid in (0, os.geteuid()) and (around.st_mode & stat.S_ISVTX or not around.st_mode & 0o022)
    is_ours = inside.st_uid == os.geteuid() and not inside.st_mode & 0o077
    return room if is_kept and is_ours else None


def _opened(path: Path, held: ExitStack) -> int:
    descriptor = os.open(path, _FOLDER)
    held.callback(os.close, descriptor)
    return descriptor


def _name_of(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]


def _target_of(name: str, room: int) -> str | None:
    with suppress(OSError):
        return os.readlink(name, dir_fd=room)
    return None

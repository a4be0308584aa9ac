"""What is taken from the process of a test before it runs anything of a connector: rights, room and time.

Everything here is Linux. Where the kernel does not have it, or does not allow it, the process goes without: `separate`
says what it got.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import resource
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.runtime.harness.wire import Limits

_NEWUSER, _NEWPID, _NEWNET, _NEWIPC = 0x10000000, 0x20000000, 0x40000000, 0x08000000
_PDEATHSIG, _SUBREAPER, _NO_NEW_PRIVS = 1, 36, 38
_FILE_BYTES = 16 * 1024 * 1024  # Of a file that it writes.
_UNKNOWN_ID = 65534  # Of `nobody`, where no such user is listed.

# Loaded before anything is forked: a process that may read nothing any more cannot load it.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def separate(*, has_network: bool) -> list[str]:
    """Have what this process starts see no process of others, and no network. Returns what was possible."""
    if _libc is None:
        return []
    wanted = _NEWPID | _NEWIPC | (0 if has_network else _NEWNET)
    names = ["pid", "ipc"] + ([] if has_network else ["net"])
    if _libc.unshare(wanted) == 0:
        return names
    if os.getuid() != 0:  # Anybody may be root in a namespace, where the machine allows that.
        uid, gid = os.getuid(), os.getgid()
        if _libc.unshare(wanted | _NEWUSER) == 0:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
            return ["user", *names]
    return []


def keep_orphans() -> None:
    """What a process below leaves behind becomes our child, so that it can be found and killed."""
    if _libc is not None:
        _libc.prctl(_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Nobody may be left behind who has nobody to watch him."""
    if _libc is not None:
        _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def ids_of(user: str) -> tuple[int, int]:
    """Of a user by name or number; of `nobody`, if there is none of this name."""
    try:
        found = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        number = int(user) if user.isdecimal() else _UNKNOWN_ID
        return number, number
    return found.pw_uid, found.pw_gid


def confine(limits: Limits, user: str) -> bool:
    """Take everything away that can be taken. Returns whether the process has become another user."""
    uid, gid = ids_of(user)
    changes = os.getuid() == 0 and uid != 0
    _limit(limits, uid if changes else os.getuid())
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # If memory is short, this one goes first.
    if changes:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if _libc is not None:
        _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    die_with_parent()  # A change of the user has undone it.
    return changes


def _limit(limits: Limits, uid: int) -> None:
    room = limits.memory_bytes + _address_space()
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1),
        (resource.RLIMIT_FSIZE, _FILE_BYTES, _FILE_BYTES),
        (resource.RLIMIT_NOFILE, limits.files, limits.files),
        (resource.RLIMIT_AS, room, room),
        # It counts all that the user runs, here and elsewhere on the machine.
        (resource.RLIMIT_NPROC, _tasks_of(uid) + limits.tasks, _tasks_of(uid) + limits.tasks),
    ):
        with contextlib.suppress(ValueError, OSError):  # A lower limit is in force already.
            resource.setrlimit(kind, (soft, hard))


def _address_space() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _tasks_of(uid: int) -> int:
    """How many processes and threads a user has now."""
    found = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    found += len(os.listdir(f"/proc/{name}/task"))
    return found

"""Starts one program of somebody else and ends it with the node. A script: it runs without Headgate, and without what
is installed.

`python -I -S launcher.py ALIVE FOLDER ENVIRONMENT MEMORY COMMAND…`

The node holds the other end of the pipe ALIVE and never writes to it. When that end is closed, because the node wants
the program to end or because the node is gone, however it went, the program is asked to end and a moment later killed,
with all that it has started. Should this process itself be killed, the kernel kills the program.

FOLDER is the program's working directory and has its secrets in it. It is removed when the program has ended. While it
runs, FOLDER and the folder ENVIRONMENT are locked: what is not locked is nobody's any more, and may be removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator

GRACE_S = 1.0  # From being asked to end to being killed.
_PDEATHSIG, _SUBREAPER = 1, 36


def main(alive: int, folder: str, environment: str, memory_bytes: int, command: list[str]) -> int:
    """The program's exit code; of one that a signal has ended, minus its number."""
    locks = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (folder, environment)]
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_SH)
    _prctl(_SUBREAPER, 1)
    bell, ringing = os.pipe()
    os.set_blocking(ringing, False)
    signal.set_wakeup_fd(ringing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)  # The pipe says when it is over.
    os.set_inheritable(alive, False)
    this = os.getpid()
    program = os.fork()
    if program == 0:
        _become(this, folder, memory_bytes, command)
    os.close(1)  # Else nobody would learn that the program has closed it.
    code = _wait(program, alive, bell)
    _end_all(program)
    shutil.rmtree(folder, ignore_errors=True)
    return code


def _become(launcher: int, folder: str, memory_bytes: int, command: list[str]) -> None:
    """Turn into the program. Never returns."""
    try:
        os.setpgid(0, 0)
        _prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # It died before that.
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # If memory is short, this one goes before the node does.
        for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, memory_bytes)):
            with contextlib.suppress(ValueError, OSError):  # A lower limit is in force already.
                resource.setrlimit(kind, (most, most))
        os.chdir(folder)
        os.closerange(3, 1024)
        os.execv(command[0], command)
    except BaseException as error:
        os.write(2, f"{command[0]} cannot be started: {error}\n".encode(errors="replace"))
    os._exit(127)


def _wait(program: int, alive: int, bell: int) -> int:
    """Until the program has ended, by itself or because nobody needs it any more."""
    deadline_s: float | None = None
    while True:
        if (code := _reaped(program)) is not None:
            return code
        left_s = None if deadline_s is None else deadline_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            _signal(program, signal.SIGKILL)
            left_s = GRACE_S
        ready = _readable([bell] if deadline_s is not None else [bell, alive], left_s)
        if bell in ready:
            os.read(bell, 4096)
        if alive in ready:
            deadline_s = time.monotonic() + GRACE_S
            _signal(program, signal.SIGTERM)
            _signal(program, signal.SIGCONT)  # One that was stopped would not hear it.


def _readable(descriptors: list[int], within_s: float | None) -> list[int]:
    """Not by `select`: that of a node with many streams may have a number that it does not know."""
    poll = select.poll()
    for one in descriptors:
        poll.register(one, select.POLLIN)
    return [one for one, _ in poll.poll(None if within_s is None else int(within_s * 1000) + 1)]


def _reaped(program: int) -> int | None:
    """Take in all that has ended. The program's exit code if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == program:
                found = os.waitstatus_to_exitcode(status)
    return found


def _end_all(program: int) -> None:
    """Kill what the program has left behind: all of it is ours now."""
    _signal(program, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


def _children() -> Iterator[int]:
    this = str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[1].decode() == this:
                    yield int(name)


def _signal(program: int, number: int) -> None:
    """To all of the program's group, and to the program if it has no group yet."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(program, number)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    ended = main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])
    if ended < 0:
        with contextlib.suppress(ValueError, OSError):
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    os._exit(ended & 0xFF)

"""Processes that descend from one: which there are, what they hold, and how to end them all.

A process that watches others uses this, and such a process should be small: nothing else of Headgate is imported here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator


def below(pid: int) -> list[int]:
    """All processes that descend from this one."""
    found, waiting = [], [pid]
    while waiting:
        inner = list(children(waiting.pop()))
        found += inner
        waiting += inner
    return found


def own_bytes(pid: int) -> int:
    """What it holds that it shares with no file."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/statm", "rb") as file:
            pages = file.read().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
    return 0


def kill_all(first: int) -> None:
    """End it, and whatever else descends from this process. The first is left to be waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(first, signal.SIGKILL)
    own = os.getpid()
    for _ in range(1000):  # Each round kills all that are there; what forks faster than that has no more room.
        left = [pid for pid in below(own) if pid != first]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap(but=first)
        time.sleep(0.001)


def reap(but: int = 0) -> None:
    """Let go of those that have ended."""
    for pid in list(children(os.getpid())):
        if pid != but:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def children(pid: int) -> Iterator[int]:
    """The processes that it has started and that live."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                yield from map(int, file.read().split())

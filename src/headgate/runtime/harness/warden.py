"""Watches the process of one test: it ends in time, within its memory, and with everything that it has started.

The warden is a fork of the zygote and runs nothing of a connector. Where the kernel allows it, the process lives in a
namespace whose first process is ours: when that one ends, the kernel kills all others in it. Elsewhere the warden
takes in what the process leaves behind, and kills until nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable

import msgspec

from headgate.awaited import readable
from headgate.runtime.descent import below, kill_all, own_bytes, reap
from headgate.runtime.harness import limits
from headgate.runtime.harness.wire import Ended, Limits, Request

LOOK_S = 0.1


def watch(request: Request, status: socket.socket, work: Callable[[], None]) -> None:
    """Run `work` in a process, within limits, and say on `status` how that ended."""
    os.setsid()
    limits.keep_orphans()
    apart = limits.separate(has_network=request.has_network)
    read_end, write_end = os.pipe()
    began = time.monotonic()
    first = os.fork()
    if first == 0:
        os.close(read_end)
        limits.die_with_parent()
        status.close()
        if "pid" in apart:
            _be_first(work, write_end)
        os.close(write_end)
        work()
        os._exit(0)
    os.close(write_end)
    how = _wait(first, request.limits, status, began)
    kill_all(first)
    ended = _ended(first, read_end, how, apart)
    with contextlib.suppress(OSError):
        status.send(msgspec.msgpack.encode(ended))
    os._exit(0)


def _be_first(work: Callable[[], None], write_end: int) -> None:
    """The first process of the namespace: start the work, tell what became of it, and end with all the others."""
    job = os.fork()
    if job == 0:
        os.close(write_end)
        work()
        os._exit(0)
    while True:
        with contextlib.suppress(InterruptedError):
            pid, code = os.wait()
            if pid == job:
                break
    os.write(write_end, str(code).encode())
    os._exit(0)


def _wait(first: int, limits: Limits, status: socket.socket, began: float) -> str:
    """Until it has ended, or must."""
    descriptor, shared = os.pidfd_open(first), own_bytes(os.getpid())
    try:
        while True:
            left_s = began + limits.wall_s - time.monotonic()
            if left_s <= 0:
                return "wall"
            ready = readable([descriptor, status.fileno()], min(LOOK_S, left_s))
            if descriptor in ready:
                return "exit"
            if ready:
                return _told(status)
            if _memory(first, shared) > limits.memory_bytes:
                return "memory"
    finally:
        os.close(descriptor)


def _told(status: socket.socket) -> str:
    """What the node says: why it should end. Nothing: the node is gone."""
    with contextlib.suppress(OSError):
        return status.recv(64).decode("ascii", "replace") or "abandoned"
    return "abandoned"


def _ended(first: int, read_end: int, how: str, apart: list[str]) -> Ended:
    _, code, used = os.wait4(first, 0)
    if "pid" in apart and (told := os.read(read_end, 32)):
        code = int(told)
    reap()
    cpu_s, peak_bytes = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    if how != "exit":
        return Ended(how, 0, cpu_s, peak_bytes, apart)
    if os.WIFSIGNALED(code):
        return Ended("signal", os.WTERMSIG(code), cpu_s, peak_bytes, apart)
    return Ended("exit", os.waitstatus_to_exitcode(code), cpu_s, peak_bytes, apart)


def _memory(first: int, shared: int) -> int:
    """What it and all below it hold. What was there before the fork is shared, and counts for nobody."""
    return sum(max(0, own_bytes(pid) - shared) for pid in [first, *below(first)])

"""`python -m headgate.runtime.apart.warden WIRE STATUS MEMORY_BYTES FILES`: watches the process of one connector.

It is started by a node, forks the process that the connector runs in, and imports nothing of a connector itself. It
ends that process, and everything that it has started, when the process has ended or holds too much memory, and when the
node is gone: then `STATUS`, a socket, has no other end any more. What a process leaves behind becomes the warden's, so
that it can be found. Before it ends, the warden says on `STATUS` how the process did.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys

from headgate.awaited import readable
from headgate.runtime import descent
from headgate.runtime.harness import limits

LOOK_S = 0.25
MOST_PROCESSES = 64  # That a connector may have started.
_SPARE_BYTES = 2 << 30  # Of address space, for what libraries reserve and never use.


def main(wire: int, status: socket.socket, memory_bytes: int, files: int) -> None:
    """Start it, watch it, end it."""
    limits.keep_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The node decides.
    warden = os.getpid()
    process = os.fork()
    if process == 0:
        _become(warden, status, memory_bytes, files)
        from headgate.runtime.apart import child

        child.main(socket.socket(fileno=wire))
        os._exit(0)
    os.close(wire)
    told = _watch(process, status, memory_bytes)
    descent.kill_all(process)
    _, code = os.waitpid(process, 0)
    with contextlib.suppress(OSError):
        status.send((told or _ending(code)).encode())
    os._exit(0)


def _become(warden: int, status: socket.socket, memory_bytes: int, files: int) -> None:
    """Be the process of the connector: with limits, and with nobody to outlive."""
    limits.die_with_parent()
    if os.getppid() != warden:
        os._exit(1)
    status.close()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    room = 2 * memory_bytes + _SPARE_BYTES  # Against one leap; the warden looks at what is really held.
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_AS, room),
    ):
        with contextlib.suppress(ValueError, OSError):  # A lower limit is in force already.
            resource.setrlimit(kind, (most, most))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # If memory is short, it goes before the node does.


def _watch(process: int, status: socket.socket, memory_bytes: int) -> str:
    """Until it has ended (empty), or must: why."""
    descriptor = os.pidfd_open(process)
    while True:
        ready = readable([descriptor, status.fileno()], LOOK_S)
        if descriptor in ready:
            return ""
        if ready:
            return "abandoned 0"
        found = [process, *descent.below(process)]
        if sum(map(descent.own_bytes, found)) > memory_bytes:
            return "memory 0"
        if len(found) > MOST_PROCESSES:
            return f"processes {MOST_PROCESSES}"


def _ending(code: int) -> str:
    if os.WIFSIGNALED(code):
        return f"signal {os.WTERMSIG(code)}"
    return f"exit {os.waitstatus_to_exitcode(code)}"


if __name__ == "__main__":
    main(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4]))

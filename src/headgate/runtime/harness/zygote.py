"""`python -m headgate.runtime.harness.zygote FD`: a process that has imported Headgate and forks the others from it.

It pays for the imports once, so that a test begins within milliseconds. It has one thread, no event loop and no secret:
a fork finds nothing in it that belongs to another test. Its requests come through one socket, with the descriptors that
the new process gets. When the node closes that socket, or dies, the zygote ends; and also when nobody has wanted a test
for a while.

It imports as the user who started the node, because an installation below `/root` is readable for root alone. What is
forked gives that right up before it runs anything of a connector, and can import little from then on.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys

import msgspec

from headgate.awaited import readable
from headgate.connectors import plugins
from headgate.runtime.harness import child, warden
from headgate.runtime.harness.wire import Request

IDLE_S = 600.0
MOST_REQUEST_BYTES = 4096
READY = b"."  # What the node hears once everything is imported.

# What the standard library imports only when it is first needed.
_LATE = (
    *("_strptime", "concurrent.futures.thread", "encodings.idna", "encodings.ascii", "encodings.latin_1"),
    *("encodings.utf_16", "getpass", "hmac", "logging.handlers", "netrc", "ssl", "stringprep", "unicodedata"),
    *("zoneinfo", "decimal", "fractions", "multiprocessing", "subprocess", "textwrap", "traceback", "uuid"),
)
_SIDES = ("source", "sink")


def main(descriptor: int) -> None:
    """Import, then fork until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for wardens: they tell the node themselves.
    _import()
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=descriptor)
    with contextlib.suppress(OSError):  # The node may be gone.
        requests.send(READY)
    while readable([descriptor], IDLE_S):
        data, descriptors, _, _ = socket.recv_fds(requests, MOST_REQUEST_BYTES, 4)
        if not data:
            return
        if os.fork() == 0:
            requests.close()
            _become(msgspec.msgpack.decode(data, type=Request), descriptors)
        for one in descriptors:
            os.close(one)


def _import() -> None:
    for name in _LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in plugins.names():
        if (module := plugins.module_of(name)).startswith("headgate."):
            import_connector(module)


def import_connector(module: str) -> None:
    """A connector's module and, where it has them, those of its source and its sink."""
    for name in (module, *(f"{module}.{side}" for side in _SIDES)):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _become(request: Request, descriptors: list[int]) -> None:
    """Be the warden of a process, and never return."""
    job, output, status, doorways = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        warden.watch(request, socket.socket(fileno=status), lambda: child.begin(request, job, output, doorways))
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))

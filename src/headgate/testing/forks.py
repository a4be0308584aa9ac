"""Processes that start fast: a fork server has imported Headgate once, and each process is a fork of it.

A node imports a thousand modules before its first line runs, and that is most of what its start costs. Tests start
hundreds of nodes. The fork server (`python -m headgate.testing.forks FD`) pays for the imports once. It has one thread
and never an event loop, a connection or a random seed, so that a fork finds nothing that two processes must not share.

*A fork is a process like any other.* It has its own pid, session, arguments, environment, folder and
standard streams; it can be stopped and killed. SIGINT has its default action in it: a shell that starts tests in the
background ignores the signal, and processes inherit that.

*The wire.* Requests go through one socket, a datagram each, with the descriptors that the process gets: standard input,
output and error, and a socket on which the server answers with the pid and later with the exit code. When the tests
close the request socket, or die, the server kills what still runs and ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

REQUEST_BYTES_MAX = 150_000  # An environment and a command; the kernel's limit for a datagram is above 200,000.
FORKS_EXIST = hasattr(os, "pidfd_open")  # Elsewhere than on Linux, processes are started in the usual way.

# What a node or a command loads. Without pyarrow: it starts a thread, and threads do not survive a fork.
_MODULES = (
    "headgate.cli.processes",
    "headgate.cli.dumping",
    "headgate.runtime.node",
    "headgate.web.server",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)


class Forked:
    """A process that the fork server started, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, args: Sequence[str], status: socket.socket) -> None:
        self.args = args
        self.returncode: int | None = None
        self._status = status
        self._reading = threading.Lock()
        self.pid = self._read(None)

    def _read(self, timeout_s: float | None) -> int:
        self._status.settimeout(timeout_s)
        answer = self._status.recv(32)
        if not answer:
            raise RuntimeError("the fork server is gone")
        return int(answer)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended; returns the exit code, or the negative number of the signal that killed it."""
        with self._reading:
            if self.returncode is None:
                try:
                    self.returncode = self._read(timeout)
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
                self._status.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Tell it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as the kernel does."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """The fork server, as tests hold it; it begins with the first process. Any thread may start processes."""

    def __init__(self) -> None:
        self._requests, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * REQUEST_BYTES_MAX)
        self._server: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()

    def _ensure_server(self) -> None:
        with self._starting:
            if self._server is None:
                fd = self._theirs.fileno()
                command = [sys.executable, "-P", "-m", "headgate.testing.forks", str(fd)]
                self._server = subprocess.Popen(command, pass_fds=[fd], start_new_session=True)
                self._theirs.close()

    def start(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any],
        stderr: int | IO[Any],
    ) -> Forked:
        """Run `headgate` with these arguments."""
        self._ensure_server()
        request = json.dumps({"arguments": list(arguments), "env": dict(env), "cwd": str(cwd)}).encode()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(os.devnull, "r+b") as nothing:
            streams = [nothing if stream == subprocess.DEVNULL else stream for stream in (stdin, stdout, stderr)]
            numbers = [stream if isinstance(stream, int) else stream.fileno() for stream in streams]
            socket.send_fds(self._requests, [request], [*numbers, theirs.fileno()])
        return Forked(["headgate", *arguments], ours)

    def close(self) -> None:
        """End the server and what it still runs."""
        self._requests.close()
        self._theirs.close()
        if self._server is not None:
            self._server.wait()


# The server.


def _serve(requests: socket.socket) -> Mapping[str, Any]:
    """Fork for each request. Returns in a forked child, with its request; the server itself exits here."""
    running: dict[int, tuple[int, socket.socket]] = {}  # By pidfd: the pid, and where its end is reported.
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    while True:
        for fd, _ in waiting.poll():
            if fd != requests.fileno():
                waiting.unregister(fd)
                _report_end(fd, *running.pop(fd))
                continue
            request, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
            if not request:
                for fd, (pid, status) in running.items():
                    os.kill(pid, signal.SIGKILL)
                    _report_end(fd, pid, status)
                raise SystemExit(0)
            pid = os.fork()
            if pid == 0:
                requests.close()
                for other, (_, status) in running.items():
                    os.close(other)
                    status.close()
                return {**json.loads(request), "fds": fds}
            *streams, answers = fds
            for stream in streams:
                os.close(stream)
            pidfd, status = os.pidfd_open(pid), socket.socket(fileno=answers)
            running[pidfd] = pid, status
            waiting.register(pidfd, select.POLLIN)
            _tell(status, pid)


def _report_end(pidfd: int, pid: int, status: socket.socket) -> None:
    _tell(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    status.close()
    os.close(pidfd)


def _tell(status: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # Tests need not wait for it.
        status.send(str(number).encode())


def _become(request: Mapping[str, Any]) -> None:
    """Be the process that was asked for."""
    os.setsid()
    *streams, status = request["fds"]
    os.close(status)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    for fd in set(streams) - {0, 1, 2}:
        os.close(fd)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        how: Any = "r" if number == 0 else "w"
        line_by_line = number == 2 or (number == 1 and os.isatty(1))
        errors = "backslashreplace" if number == 2 else "strict"
        setattr(sys, name, open(number, how, 1 if line_by_line else -1, "utf-8", errors, closefd=False))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    importlib.invalidate_caches()
    sys.argv = ["headgate", *request["arguments"]]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for module in _MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=int(sys.argv[1]))
    _become(_serve(requests))
    from headgate.cli import main

    main()


if __name__ == "__main__":
    _run()

"""An installation's functions, in processes that are theirs: whatever one does, it does to its own process.

A node calls such a function for each record (`headgate.core.mapping.python`), from a thread. The call goes to a process
that has imported the module, and waits for the answer there. A process has one call at a time, so one that crashes or
hangs has one record in hand, and that record fails alone. A record may have met a process that somebody else has
killed, or one that has just ended because nobody wanted it: so it is tried once more, in a new one.

Processes are started when they are needed, kept for the next call, and end by themselves when none comes for a while,
and with the node. They have the node's user and path, but none of its settings: the master key is not in their
environment.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from typing import Any

from headgate.awaited import readable
from headgate.core.letters import packed, unpacked
from headgate.core.mapping.python import FunctionFailedError, FunctionUnavailableError
from headgate.datasources.function_process import FAILED, LONGEST_BYTES, PROBLEM, READY, frame, receive, send
from headgate.errors import ConfigError
from headgate.hidden import hide

START_S = 60.0  # To import a module may take long.
CALL_S = 10.0  # A record that takes longer fails.
TRIES = 2
INSTALL = "install it where every node runs; it is imported by its name"


class Hosted:
    """One function, as the node calls it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, record: dict[str, Any], meta: Any) -> object:
        try:
            request = frame(packed((record, meta)))
        except (RecursionError, UnicodeEncodeError):
            raise FunctionFailedError("the record is nested too deeply, or has text that is none") from None
        ended = ""
        for tried in range(TRIES):
            process = _processes.take(self.name) if not tried else _started(self.name)
            try:
                kind, body = process.call(request, CALL_S)
            except TimeoutError:
                process.kill()
                raise FunctionFailedError(f"the function did not return within {CALL_S:.0f} s") from None
            except (OSError, ValueError):
                ended = process.kill()
                continue
            _processes.give_back(process)
            if kind == FAILED:
                raise FunctionFailedError(body.decode("utf-8", "replace")[:500])
            return unpacked(body)
        raise FunctionFailedError(f"the function ended its process: {ended}")


def check(name: str) -> None:
    """Raise ConfigError if there is no such function, or it cannot be called. What was started for this is kept."""
    try:
        _processes.give_back(_processes.take(name))
    except FunctionUnavailableError as error:
        raise ConfigError(hide(error.said), hint=error.hint) from None


class _Process:
    """A process with a function in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._wire, theirs = socket.socketpair()
        # Nothing is ever written to it: it ends when this process does, whatever the function is doing then.
        alive, self._alive = os.pipe()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-P", "-m", "headgate.datasources.function_process"]
        nothing = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                [*command, name, str(theirs.fileno()), str(alive)],
                env=environment,
                pass_fds=[theirs.fileno(), alive],
                stdin=nothing,
                stdout=nothing,  # What it prints may have records in it.
                stderr=nothing,
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(alive)

    def call(self, request: bytes, within_s: float) -> tuple[bytes, bytes]:
        """What it answers. Raises TimeoutError, or another OSError if it has ended."""
        self._wire.settimeout(within_s)
        send(self._wire, request)
        return self.answer(within_s)

    def answer(self, within_s: float) -> tuple[bytes, bytes]:
        deadline_s = time.monotonic() + within_s

        def wait() -> None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not readable([self._wire.fileno()], left_s):
                raise TimeoutError

        found = receive(self._wire, LONGEST_BYTES, wait)
        if not found:
            raise ConnectionResetError("it has ended")
        return found[:1], found[1:]

    def kill(self) -> str:
        """End it, and say how it had ended before."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        code = self._process.poll()
        self._process.kill()
        self._process.wait()
        self._wire.close()
        os.close(self._alive)
        if code is None:
            return "it said what nobody understands"
        return f"exit code {code}" if code >= 0 else f"signal {-code}"


class _Processes:
    """All of this process, by the name of their function."""

    def __init__(self) -> None:
        self._idle: defaultdict[str, list[_Process]] = defaultdict(list)
        self._lock = threading.Lock()

    def take(self, name: str) -> _Process:
        """One that nobody uses, or a new one."""
        with self._lock:
            if self._idle[name]:
                return self._idle[name].pop()
        return _started(name)

    def give_back(self, process: _Process) -> None:
        """It may be used again."""
        with self._lock:
            self._idle[process.name].append(process)


def _started(name: str) -> _Process:
    """A new one, once it has imported its module."""
    module = name.partition(":")[0]
    try:
        process = _Process(name)
    except OSError as error:
        raise FunctionUnavailableError(f"no process can be started for {module}: {error.strerror}", "") from None
    try:
        kind, body = process.answer(START_S)
    except TimeoutError:
        process.kill()
        said = f"{module} cannot be imported: it took longer than {START_S:.0f} s"
        raise FunctionUnavailableError(said, INSTALL) from None
    except (OSError, ValueError):
        said = f"{module} cannot be imported: it ended its process: {process.kill()}"
        raise FunctionUnavailableError(said, INSTALL) from None
    if kind == READY:
        return process
    process.kill()
    said, _, hint = body.decode("utf-8", "replace").partition("\n")
    raise FunctionUnavailableError(said if kind == PROBLEM else f"{module} cannot be imported", hint or INSTALL)


_processes = _Processes()

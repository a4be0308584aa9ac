"""A program of somebody else, as a child of this process: started, read line by line, and ended.

It has its own session and an environment with nothing of the node's settings in it. What it reads, its configuration
with secrets among it, lies in a folder that only this user can open and that is gone when the program is. It ends with
the node, however that ends: see `launcher`.

Its standard output is read when it is wanted. What nobody has taken yet is bounded: beyond that, the program waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
import time
from asyncio import transports
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

from headgate.connectors.bridges.lines import Lines, TooLong
from headgate.connectors.bridges.said import Said
from headgate.errors import Cause, ConnectorError

AHEAD_BYTES = 8 << 20  # What may wait here to be taken: a program goes on while a large batch is written.
AT_ONCE_BYTES = 256 * 1024  # What is taken in one go: decoding it must not hold up others.
YOUNG_S = 60.0  # A folder that is younger may be about to be locked.
END_S = 1.8  # How long an end is waited for. The launcher kills before that.

# What of the node's environment a program sees: where things are, and how to get out. No settings of the node.
_PASSED = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_LAUNCHER = str(Path(__file__).with_name("launcher.py"))


@dataclass(frozen=True, slots=True)
class Program:
    """What to start, and with what."""

    name: str  # For people.
    command: Sequence[str]
    environment: Path  # The folder that it is installed in.
    files: Mapping[str, bytes]  # What lies in its folder. In the command, `{name}` of one stands for its path.
    memory_mb: int = 2048
    most_line_bytes: int = 8 * 1024 * 1024
    variables: Mapping[str, str] | None = None  # Its environment variables; the usual few if absent.


def environment_of(folder: str) -> dict[str, str]:
    """For a program that works in this folder."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith(("LC_", "SSL_CERT_")) or name.lower().endswith("_proxy")
    }
    # Line by line: a program that waits for the next record has said the last one.
    return {**found, "HOME": folder, "TMPDIR": folder, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class Child(asyncio.SubprocessProtocol):
    """One program while it runs."""

    def __init__(self, said: Said, most_line_bytes: int) -> None:
        self.said = said
        self.exit_code: int | None = None
        self._lines = Lines(most_line_bytes)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_paused = False
        self._has_ended = False  # Nothing more comes.
        self._bell = asyncio.Event()
        self._gone = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._alive = -1
        self._folder = ""
        self._lock = -1

    @classmethod
    async def start(cls, program: Program, runs: Path, log: Any) -> Child:
        """Start it. Its folder is made in `runs`."""
        self = cls(Said(log, program.name), program.most_line_bytes)
        try:
            await self._start(program, runs)
        except OSError as error:
            await self.close()
            said = f"{program.name} cannot be started: {error.strerror or error}"
            raise ConnectorError(said, cause=Cause.CONFIG) from None
        except BaseException:
            await self.close()
            raise
        return self

    async def _start(self, program: Program, runs: Path) -> None:
        self._folder = mkdtemp(dir=runs)  # For this user only.
        self._lock = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        paths = {name: write_privately(self._folder, name, content) for name, content in program.files.items()}
        command = [_with_paths(part, paths) for part in program.command]
        theirs, self._alive = os.pipe()
        try:
            more = [theirs, self._folder, program.environment, program.memory_mb << 20, *command]
            loop = asyncio.get_running_loop()
            await loop.subprocess_exec(
                lambda: self,
                *[sys.executable, "-I", "-S", _LAUNCHER, *map(str, more)],
                stdin=asyncio.subprocess.DEVNULL,
                env=dict(program.variables or environment_of(self._folder)),
                pass_fds=[theirs],
                start_new_session=True,
            )
        finally:
            os.close(theirs)

    # Called by the loop.

    def connection_made(self, transport: transports.BaseTransport) -> None:
        """It runs."""
        self._transport = cast(asyncio.SubprocessTransport, transport)  # Other loops have their own classes.

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """It says something."""
        if fd == 2:
            self.said.feed(data)
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._pause(self._waiting_bytes > AHEAD_BYTES)
        self._bell.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """It has closed its output."""
        if fd == 1:
            self._has_ended = True
            self._bell.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and all that it said is here."""
        if self._transport is not None:
            self.exit_code = self._transport.get_returncode()
        self.said.end()
        self._has_ended = True
        self._bell.set()
        self._gone.set()

    def _pause(self, wanted: bool) -> None:
        if wanted == self._is_paused or self._transport is None:
            return
        pipe = cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))
        with contextlib.suppress(RuntimeError):  # It is closed, or closing.
            (pipe.pause_reading if wanted else pipe.resume_reading)()
            self._is_paused = wanted

    # Reading.

    async def lines(self, within_s: float | None = None) -> list[bytes | TooLong] | None:
        """Those that have come, some at a time; none if nothing comes within this time. None: that was all."""
        if not self._waiting and not self._has_ended:
            self._bell.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._bell.wait()
        if not self._waiting:
            return (self._lines.end() or None) if self._has_ended else []
        taken = 0
        data = []
        while self._waiting and taken < AT_ONCE_BYTES:
            data.append(self._waiting.pop(0))
            taken += len(data[-1])
        self._waiting_bytes -= taken
        self._pause(self._waiting_bytes > AHEAD_BYTES)
        return self._lines.feed(b"".join(data))

    @property
    def has_more(self) -> bool:
        """Whether something has come that was not taken."""
        return bool(self._waiting)

    # Ending.

    async def ended(self) -> int:
        """Wait until it has ended by itself. Its exit code; of one that a signal has ended, minus its number."""
        await self._gone.wait()
        return self.exit_code if self.exit_code is not None else -1

    async def close(self) -> None:
        """End it, with all that it has started, and remove its folder. May be called more than once."""
        alive, self._alive = self._alive, -1
        if alive >= 0:
            os.close(alive)  # The launcher ends it.
        transport = self._transport
        try:
            if transport is not None and not self._gone.is_set():
                self._waiting, self._waiting_bytes = [], 0
                self._pause(False)  # Its end is told only when all was read.
                async with asyncio.timeout(END_S):
                    await self._gone.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                assert transport is not None
                transport.kill()  # The kernel kills the program with its launcher.
        finally:
            if transport is not None:
                transport.close()
            lock, self._lock = self._lock, -1
            if lock >= 0:
                shutil.rmtree(self._folder, ignore_errors=True)
                os.close(lock)


def write_privately(folder: str, name: str, content: bytes) -> str:
    """A file that only this user can open. Returns its path."""
    path = os.path.join(folder, name)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return path


def _with_paths(part: str, paths: Mapping[str, str]) -> str:
    return paths.get(part[1:-1], part) if part.startswith("{") and part.endswith("}") else part


async def output_of(
    program: Program, runs: Path, log: Any, within_s: float, most_bytes: int
) -> tuple[int, list[bytes], Said]:
    """Run a program to its end: its exit code, the lines that it wrote, and what it said. Raises TimeoutError."""
    child = await Child.start(program, runs, log)
    found: list[bytes] = []
    taken = 0
    try:
        async with asyncio.timeout(within_s):
            while (lines := await child.lines()) is not None:
                for line in lines:
                    if isinstance(line, TooLong) or taken > most_bytes:
                        raise ConnectorError(f"{program.name} answers with more than is taken", cause=Cause.CONFIG)
                    taken += len(line)
                    found.append(line)
            return await child.ended(), found, child.said
    finally:
        await child.close()


def sweep(runs: Path) -> None:
    """Remove the folders of programs that are gone, and whose launchers were killed."""
    for path in runs.iterdir() if runs.is_dir() else ():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > YOUNG_S:
                remove_if_free(path)


def remove_if_free(path: Path) -> bool:
    """Remove a folder that nobody has locked."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(lock)

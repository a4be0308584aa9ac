"""The processes of tests, as the node sees them: it asks the zygote for one, sends the job, and reads until the end.

A few tests run at a time, and a few more wait; beyond that the answer is `busy`. Whatever the process does, there is an
ending: its own, or that of the warden, which watches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field

import msgspec

from headgate.core.harness import endings
from headgate.core.harness.endings import Ending
from headgate.errors import Busy, HeadgateError
from headgate.hidden import hide
from headgate.runtime.harness.doorways import Doorways
from headgate.runtime.harness.limits import ids_of
from headgate.runtime.harness.wire import (
    Ended,
    Finished,
    Job,
    Limits,
    Message,
    Outcome,
    Request,
    Said,
    Stage,
    Trouble,
    Unpacker,
    pack_job,
)

AT_ONCE = 2  # Tests of a node: each may take a core.
WAITING = 8
WAIT_S = 30.0
SHOWN_BYTES = 16 * 1024  # Of what it wrote to its standard output.
START_S = 60.0  # For the zygote's imports, which take a second on a machine that is not busy.
GRACE_S = 30.0  # Beyond its time, for the warden to kill it and say so. A warden that ended is noticed at once.
END_S = 5.0  # For the zygote to end by itself.
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME")  # Of the environment.

_KINDS = (socket.SOCK_STREAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_SEQPACKET)

LOST = Ending("lost")


@dataclass(slots=True)
class Ran:
    """All that a process said, and how it ended."""

    messages: list[Message] = field(default_factory=list)
    output: bytes = b""
    output_bytes: int = 0
    frame_bytes: int = 0
    ending: Ending = LOST
    apart: list[str] = field(default_factory=list)
    trouble: str = ""  # How it ended, in one line; empty: as it should.

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of the inputs, in their order."""
        return [one for one in self.messages if isinstance(one, Outcome)]

    @property
    def lines(self) -> list[Said]:
        """What was logged."""
        return [one for one in self.messages if isinstance(one, Said)]

    @property
    def troubles(self) -> list[Trouble]:
        """What kept it from going on."""
        return [one for one in self.messages if isinstance(one, Trouble)]

    @property
    def finished(self) -> Finished | None:
        """Whether it got to its end."""
        return next((one for one in self.messages if isinstance(one, Finished)), None)


class Children:
    """Starts processes for tests. The zygote begins with the first test."""

    def __init__(self, user: str) -> None:
        self._user = user
        self._zygote: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._is_ready = False
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._starting = asyncio.Lock()

    async def run(self, job: Job, limits: Limits, *, has_network: bool, doorways: Doorways | None = None) -> Ran:
        """Run a job to its end, whatever that is. `doorways`: what it reaches through this node."""
        if self._waiting >= WAITING:
            raise Busy("too many tests wait on this node", hint="try again in some seconds")
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_S):
                await self._slots.acquire()
        except TimeoutError:
            raise Busy("other tests run on this node", hint="try again in some seconds") from None
        finally:
            self._waiting -= 1
        try:
            return await self._run(job, limits, doorways, has_network=has_network)
        finally:
            self._slots.release()

    async def close(self) -> None:
        """End the zygote. What it has forked ends with its answer's reader."""
        if self._requests is not None:
            self._requests.close()
        if self._zygote is not None:
            await asyncio.to_thread(_reap, self._zygote)

    async def warm(self) -> None:
        """Have the zygote ready."""
        async with self._starting:
            await self._ensure()

    @property
    def changes_user(self) -> bool:
        """Whether processes have another user than this node, and fewer rights."""
        return os.getuid() == 0 and ids_of(self._user)[0] != 0

    async def _run(self, job: Job, limits: Limits, doorways: Doorways | None, *, has_network: bool) -> Ran:
        if doorways is not None:
            job = msgspec.structs.replace(job, doorways=doorways.paths)
        ran, request, sent = Ran(), Request(limits, self._user, has_network), pack_job(job)
        wire, output, status, asked = await self._fork(request)
        serving = [] if doorways is None else [asyncio.create_task(doorways.serve(asked))]
        watching = asyncio.create_task(self._watch(ran, status, limits))
        reading = [
            asyncio.create_task(self._converse(ran, wire, status, sent, limits)),
            asyncio.create_task(self._read_output(ran, output, status, limits)),
        ]
        try:
            await watching
            await asyncio.wait(reading, timeout=GRACE_S)  # What it said before its end is on its way.
        finally:
            for task in (watching, *reading, *serving):
                task.cancel()
            await asyncio.gather(watching, *reading, *serving, return_exceptions=True)
            for one in (wire, output, status, asked):
                one.close()  # The warden ends the process when nobody listens to it.
        ran.trouble = _trouble(ran, limits)
        return ran

    # The zygote.

    async def _fork(self, request: Request) -> tuple[socket.socket, ...]:
        """A process: the sockets for its job, for its output, for how it ends, and for doorways."""
        for _ in range(2):  # It may have ended because nobody wanted it, in this very moment.
            async with self._starting:
                requests = await self._ensure()
            pairs = [socket.socketpair(type=kind) for kind in _KINDS]
            ours, theirs = [one for one, _ in pairs], [one for _, one in pairs]
            try:
                socket.send_fds(requests, [msgspec.msgpack.encode(request)], [one.fileno() for one in theirs])
            except OSError:
                for one in ours:
                    one.close()
                self._forget()
                continue
            finally:
                for one in theirs:
                    one.close()
            for one in ours:
                one.setblocking(False)
            return tuple(ours)
        raise _unstarted()

    async def _ensure(self) -> socket.socket:
        if self._zygote is not None and self._zygote.poll() is not None:
            self._forget()
        if self._requests is None:
            requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            environment = {name: value for name in _KEPT if (value := os.environ.get(name)) is not None}
            environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
            command = [sys.executable, "-P", "-m", "headgate.runtime.harness.zygote", str(theirs.fileno())]
            self._zygote = await asyncio.to_thread(_start, command, environment, theirs)
            self._requests = requests
        if not self._is_ready:
            await self._until_ready(self._requests)
        return self._requests

    async def _until_ready(self, requests: socket.socket) -> None:
        """The zygote's imports are no part of a test's time: on a busy machine they alone may take longer."""
        requests.setblocking(False)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(START_S):
                self._is_ready = bool(await asyncio.get_running_loop().sock_recv(requests, 1))
        if not self._is_ready:
            if self._zygote is not None:
                self._zygote.kill()
            self._forget()
            raise _unstarted()
        requests.setblocking(True)

    def _forget(self) -> None:
        if self._requests is not None:
            self._requests.close()
        self._requests = self._zygote = None
        self._is_ready = False

    # A process.

    async def _converse(self, ran: Ran, wire: socket.socket, status: socket.socket, job: bytes, limits: Limits) -> None:
        loop, unpacker = asyncio.get_running_loop(), Unpacker()
        with contextlib.suppress(ConnectionError):
            await loop.sock_sendall(wire, job)
            while data := await loop.sock_recv(wire, 1 << 18):
                ran.frame_bytes += len(data)
                if ran.frame_bytes > limits.output_bytes:
                    _end(status, "output")
                    return
                try:
                    ran.messages += unpacker.feed(data)
                except (ValueError, RecursionError):
                    _end(status, "frame")
                    return

    async def _read_output(self, ran: Ran, output: socket.socket, status: socket.socket, limits: Limits) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(output, 1 << 16):
                ran.output_bytes += len(data)
                ran.output += data[: max(0, SHOWN_BYTES - len(ran.output))]
                if ran.output_bytes > limits.output_bytes:
                    _end(status, "output")
                    return

    async def _watch(self, ran: Ran, status: socket.socket, limits: Limits) -> None:
        """Until the warden says how it ended."""
        with contextlib.suppress(TimeoutError, ConnectionError, msgspec.DecodeError):
            async with asyncio.timeout(limits.wall_s + GRACE_S):
                data = await asyncio.get_running_loop().sock_recv(status, 4096)
                if data:
                    ended = msgspec.msgpack.decode(data, type=Ended)
                    how = ended.how if ended.how in endings.ALL else "lost"
                    ran.ending = Ending(how, ended.number, ended.cpu_s, ended.peak_bytes)
                    ran.apart = ended.apart


def _unstarted() -> HeadgateError:
    return HeadgateError("the process that starts tests does not start", hint="the node's log says more")


def _start(command: list[str], environment: dict[str, str], theirs: socket.socket) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    with theirs:
        return subprocess.Popen(
            command, env=environment, pass_fds=[theirs.fileno()], stdin=nothing, stdout=nothing, start_new_session=True
        )


def _reap(zygote: subprocess.Popen[bytes]) -> None:
    """It ends by itself, unless somebody has stopped it."""
    try:
        zygote.wait(END_S)
    except subprocess.TimeoutExpired:
        zygote.kill()
        zygote.wait()


def _end(status: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        status.send(why.encode())


def _trouble(ran: Ran, limits: Limits) -> str:
    """How it ended, unless it did all that it was asked."""
    if ran.finished is not None and ran.ending.how in ("exit", "signal"):
        return ""
    bound = endings.Bound(limits.wall_s, limits.cpu_s, limits.memory_bytes, limits.output_bytes)
    stages = [one.name for one in ran.messages if isinstance(one, Stage)]
    return hide(endings.said(ran.ending, bound, stages[-1] if stages else "starting", len(ran.outcomes)))

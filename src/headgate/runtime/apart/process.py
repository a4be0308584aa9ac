"""The process of one side of a stream, as the node sees it: it is started when it is first needed, asked, and ended.

Several sources, the parts that a stream reads, may live in one process; it ends with the last of them. Whatever it
does, a call ends: with its answer, or with how the process did. What it says is held to types and sizes; a process that
says what makes no sense is killed, and so is one that says too much.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from headgate.connectors.api import Context
from headgate.errors import ConnectorError, HeadgateError, NotConnected
from headgate.runtime.apart.failures import CANCELLED, NONSENSE, ending_of, from_wire
from headgate.runtime.apart.protocol import WireProtocol
from headgate.runtime.apart.surroundings import MOST_FIELD, MOST_FIELDS, MOST_TEXT, Bucket
from headgate.runtime.apart.wire import (
    Answer,
    Batched,
    Begin,
    Call,
    Cancel,
    Failed,
    FromProcess,
    NonsenseError,
    Noted,
    Places,
    Ready,
    Resolved,
    Said,
    ToProcess,
    WantPlaces,
    framed,
)
from headgate.text import one_line

START_S = 60.0  # To start Python and import the connector.
STARTING = 4  # At a time: each takes a core for a while,
SLOT_S = 15.0  # but no longer: a connector that hangs while it is imported holds up no other.
ENDING_S = 3.0  # For its warden to end it, and to say how it ended.
FILES = 1024  # That it may have open.
SAID, SAID_PER_S = 2000, 100.0  # Messages that are no answers. One that keeps to its own limits says far fewer.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_RESERVED = {"event", "exc_info", "stack_info", "stream", "stream_id", "datasource", "node", "level", "timestamp"}

Answered: TypeAlias = tuple[Answer | Batched, list[bytes]]

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
_endings: set[asyncio.Task[None]] = set()  # asyncio itself does not keep tasks alive.


@dataclass(slots=True)
class _Waiting:
    """A call whose answer has not come."""

    answer: asyncio.Future[Answered]
    records: int = 0
    places: Callable[[int], str] | None = None


class Process:
    """One process. It is of no use any more once it `is_over`."""

    def __init__(self, begin: Begin, context: Context) -> None:
        self._begin = begin
        self._context = context
        self._ids = itertools.count(1)
        self._objects = itertools.count(1)
        self._users = 0
        self._waiting: dict[int, _Waiting] = {}
        self._forgotten: set[int] = set()  # Calls whose answers nobody wants.
        self._starting: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._status: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._bucket = Bucket(SAID, SAID_PER_S)
        self._error: Callable[[], HeadgateError] | None = None
        self.is_over = False

    # Who uses it.

    def join(self) -> int:
        """The number of one more source or sink."""
        self._users += 1
        return next(self._objects)

    def leave(self) -> None:
        """One less. With the last of them, it ends."""
        self._users -= 1
        if self._users == 0:
            self.end()

    @property
    def is_started(self) -> bool:
        """Whether somebody has needed it."""
        return self._starting is not None

    # Calls.

    async def call(self, call: Call, **more: Any) -> Answered:
        """The answer to a call. Raises what the method raised, or how the process ended."""
        answer = await self.request(call, **more)
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancel(call)
            raise

    async def request(
        self,
        call: Call,
        slices: Sequence[bytes] = (),
        records: int = 0,
        places: Callable[[int], str] | None = None,
    ) -> asyncio.Future[Answered]:
        """Begin a call. The future gets its answer."""
        await self.start()
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = _Waiting(answer, records, places)
        self.send(call, slices)
        return answer

    def cancel(self, call: Call) -> None:
        """Nobody waits for this call any more."""
        if self._waiting.pop(call.id, None) is not None and not self.is_over:
            self._forgotten.add(call.id)
            self.send(Cancel(call.id))

    def next_id(self) -> int:
        """For a call."""
        return next(self._ids)

    def send(self, message: ToProcess, slices: Sequence[bytes] = ()) -> None:
        """Say something."""
        if self._transport is not None and not self.is_over:
            self._transport.writelines(framed(message, slices))

    def _check(self) -> None:
        if self.is_over:
            raise self._error() if self._error is not None else ConnectorError("the connector's process has ended")

    # Its beginning.

    async def start(self) -> None:
        """Have it ready. Raises why it is not."""
        if self._starting is None and not self.is_over:
            self._starting = asyncio.ensure_future(self._start())
            self._starting.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._starting is not None:
            await asyncio.shield(self._starting)
        self._check()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        async with _slots.setdefault(loop, asyncio.Semaphore(STARTING)):
            if self.is_over:
                return
            try:
                await self._connect(loop)
            except OSError as error:
                said = f"no process can be started for the connector: {error.strerror}"
                self.end(lambda: NotConnected(said))  # Who keeps it for the next time needs another.
                self._check()
            if self.is_over:  # Somebody has ended it meanwhile.
                self._let_go()
                return
            assert self._ready is not None
            self.send(self._begin)
            await asyncio.wait({self._ready}, timeout=SLOT_S)
        try:
            async with asyncio.timeout(START_S - SLOT_S):
                await self._ready
        except TimeoutError:
            self.end(lambda: ConnectorError(f"the connector's process did not start within {START_S:.0f} s"))
            self._check()

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start its warden, and hold the other ends of its sockets. Raises OSError."""
        with contextlib.ExitStack() as ours_if_it_fails, contextlib.ExitStack() as theirs_in_any_case:
            ours, theirs = socket.socketpair()
            ours_if_it_fails.enter_context(ours)
            theirs_in_any_case.enter_context(theirs)
            status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours_if_it_fails.enter_context(status)
            theirs_in_any_case.enter_context(their_status)
            status.setblocking(False)
            command = [theirs.fileno(), their_status.fileno(), self._begin.memory_mb * 1024 * 1024, FILES]
            self._popen = await asyncio.to_thread(_launch, [str(one) for one in command], command[:2])
            ours_if_it_fails.pop_all()
        self._status, self._ready = status, loop.create_future()
        protocol = WireProtocol(self._take, self._lost)
        self._transport, _ = await loop.create_unix_connection(lambda: protocol, sock=ours)

    # What it says.

    def _take(self, message: FromProcess, slices: list[bytes]) -> None:
        if self.is_over:
            return
        try:
            match message:
                case Answer() | Batched() | Failed():
                    self._answered(message, slices)
                case Ready():
                    self._begun(None)
                case WantPlaces():
                    self._tell_places(message.id)
                case _:
                    self._said(message)
        except NonsenseError as error:
            self._lost(str(error))

    def _answered(self, message: Answer | Batched | Failed, slices: list[bytes]) -> None:
        if message.id == 0 and isinstance(message, Failed):
            self._begun(from_wire(message.error, 0, self._begin.memory_mb))
            return
        if message.id in self._forgotten:
            self._forgotten.discard(message.id)
            return
        waiting = self._waiting.get(message.id)
        if waiting is None:
            raise NonsenseError("it answers what nobody asked")
        error = None
        if isinstance(message, Failed) and message.error.kind != CANCELLED:
            error = from_wire(message.error, waiting.records, self._begin.memory_mb)
        del self._waiting[message.id]  # Only now: had it made no sense, this call would fail as all others do.
        if waiting.answer.done():
            return
        if isinstance(message, Answer | Batched):
            waiting.answer.set_result((message, slices))
        elif error is not None:
            _fail(waiting.answer, error)
        else:
            waiting.answer.cancel()

    def _begun(self, error: HeadgateError | None) -> None:
        if self._ready is None or self._ready.done():
            raise NonsenseError("it begins twice")
        if error is None:
            self._ready.set_result(None)
            return
        _fail(self._ready, error)
        self.end(lambda: error)

    def _tell_places(self, id: int) -> None:
        waiting = self._waiting.get(id)
        if waiting is None or waiting.places is None:
            if id not in self._forgotten:
                raise NonsenseError("it asks for places that are not there")
            self.send(Places(id, []))
            return
        self.send(Places(id, [waiting.places(index) for index in range(waiting.records)]))

    def _said(self, message: FromProcess) -> None:
        if not self._bucket.take():
            raise NonsenseError("it says too much")
        match message:
            case Said(level, text, fields) if level in ("debug", "info", "warning", "error", "critical"):
                getattr(self._context.log, level)(one_line(text, MOST_TEXT), **_named(fields))
            case Noted(name, payload) if _NAME.fullmatch(name):
                self._context.note(name, **_named(payload))
            case Resolved():
                self._context.letters_resolved()
            case _:
                raise NonsenseError("a line or an event has no such kind")

    # Its end.

    def _lost(self, nonsense: str) -> None:
        """The wire has closed, or what comes through it makes no sense."""
        if nonsense:
            self.end(lambda: ConnectorError(f"the connector's process ended: {NONSENSE}", hint=nonsense))
        elif not self.is_over:
            _keep(self._find_out())

    async def _find_out(self) -> None:
        """It has ended by itself: its warden says how."""
        told = b""
        if self._status is not None:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(ENDING_S):
                    told = await asyncio.get_running_loop().sock_recv(self._status, 64)
        self.end(lambda: ending_of(told.decode("ascii", "replace"), self._begin.memory_mb))

    def end(self, error: Callable[[], HeadgateError] | None = None) -> None:
        """End it now, with all that it has started. Calls that wait get this error."""
        if self.is_over:
            return
        self.is_over, self._error = True, error
        waiting: list[asyncio.Future[Any]] = [one.answer for one in self._waiting.values()]
        for future in [*waiting, *([] if self._ready is None else [self._ready])]:
            if not future.done():
                _fail(future, error() if error is not None else ConnectorError("the connector's process was ended"))
        self._waiting.clear()
        self._let_go()

    def _let_go(self) -> None:
        """Its warden ends it when nobody is at the other end of the status."""
        if self._transport is not None:
            self._transport.abort()
        if self._status is not None:
            self._status.close()
        if self._popen is not None and self._transport is not None:
            popen, self._popen = self._popen, None
            _keep(asyncio.to_thread(_reap, popen))


def _fail(future: asyncio.Future[Any], error: HeadgateError) -> None:
    future.set_exception(error)
    future.exception()  # Perhaps nobody waits for it: then asyncio need not complain.


def _keep(work: Any) -> None:
    task = asyncio.ensure_future(work)
    _endings.add(task)
    task.add_done_callback(_endings.discard)


def _named(fields: dict[str, str]) -> dict[str, str]:
    """What it may add to a line: nothing that tells whose line it is."""
    kept = [name for name in fields if _NAME.fullmatch(name) and name not in _RESERVED][:MOST_FIELDS]
    return {name: one_line(fields[name], MOST_FIELD) for name in kept}


def _launch(arguments: list[str], descriptors: list[int]) -> subprocess.Popen[bytes]:
    """Its warden, by exec: a node has threads, connections and secrets that nobody should inherit."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    environment.setdefault("MALLOC_ARENA_MAX", "2")  # Else each thread reserves address space, which is limited.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "headgate.runtime.apart.warden", *arguments],
        env=environment,
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # What it prints may have records in it.
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _reap(popen: subprocess.Popen[bytes]) -> None:
    """The warden ends by itself, unless somebody has stopped it."""
    try:
        popen.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()

"""The process of a connector: builds its sources or its sink, and answers what the node asks, call by call.

One thread reads what the node says and one writes the answers; the connector's own code runs in the main thread, in an
event loop, and in a thread for methods that block. So a connector that hangs keeps nobody from seeing that the node is
gone: then the process ends at once.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast, get_origin

from headgate.clock import boot_s
from headgate.connectors import plugins
from headgate.connectors.api import Batch, Connector, Grant, Outgoing, Unreadable
from headgate.core.letters import unpacked
from headgate.errors import Cause, ConnectorError
from headgate.runtime.apart import surroundings, values, wire
from headgate.runtime.apart.failures import CANCELLED, to_wire
from headgate.runtime.apart.wall import raise_wall
from headgate.runtime.apart.wire import (
    FRAME,
    MOST_BATCH_BYTES,
    SIGNATURES,
    Answer,
    Batched,
    Begin,
    Call,
    Cancel,
    Failed,
    Places,
    Ready,
    ToProcess,
    Trust,
    Unframer,
    WantPlaces,
    WireError,
    WireGrant,
    WireOutgoing,
    framed,
)
from headgate.runtime.streams.hosting import awaitable
from headgate.text import size


def main(ours: socket.socket) -> None:
    """Answer until the node is gone."""
    inbox, outbox = _Inbox(ours), _Outbox(ours)
    begin, _ = inbox.take()
    assert isinstance(begin, Begin)
    service = _Service(begin, inbox, outbox)
    try:
        service.load()
    except BaseException as error:  # What is imported is somebody else's, and runs.
        outbox.send(Failed(0, to_wire(error)))
    else:
        outbox.send(Ready())
    service.run()


class _Outbox:
    """What is said to the node, by a thread that may be held up."""

    def __init__(self, ours: socket.socket) -> None:
        self._wire = ours
        self._waiting: queue.SimpleQueue[list[bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def send(self, message: wire.FromProcess, slices: Sequence[bytes] = ()) -> None:
        self._waiting.put(framed(message, slices))

    def _serve(self) -> None:
        try:
            while True:
                self._wire.sendall(b"".join(self._waiting.get()))
        except OSError:
            os._exit(0)  # Nobody listens.


class _Inbox:
    """What the node says."""

    def __init__(self, ours: socket.socket) -> None:
        self._wire = ours
        self._unframer = Unframer(ToProcess, is_bounded=False)

    def take(self) -> tuple[ToProcess, list[bytes]]:
        """The next message. Ends this process when there will be none."""
        while True:
            length, kind = FRAME.unpack(self._exactly(FRAME.size))
            self._unframer.check(length, kind)
            if (found := self._unframer.frame(kind, self._exactly(length))) is not None:
                return found

    def _exactly(self, length: int) -> bytes:
        found = bytearray(length)
        view, at = memoryview(found), 0
        while at < length:
            try:
                count = self._wire.recv_into(view[at:])
            except OSError:
                count = 0
            if not count:
                os._exit(0)
            at += count
        return bytes(found)


class _Object:
    """A source or a sink, once it is built, and the calls that it has in hand."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._built: Any = None
        self.trust_until_s = 0.0  # How long its grant is good.
        self.running: set[asyncio.Task[None]] = set()
        self.cancelled: set[asyncio.Task[None]] = set()

    @property
    def is_built(self) -> bool:
        return self._built is not None

    @property
    def built(self) -> Any:
        if self._built is None:
            self._built = self._build()
        return self._built

    async def wait_for_cancelled(self, *, is_last: bool) -> None:
        """A call that was cancelled unwinds before the next one begins; the last call cancels all others."""
        own = asyncio.current_task()
        if is_last:
            for task in self.running - {own}:
                task.cancel()
                self.cancelled.add(task)
        while waiting := [task for task in self.cancelled if not task.done() and task is not own]:
            await asyncio.wait(waiting)
        self.cancelled.clear()


class _Service:
    """Answers calls."""

    def __init__(self, begin: Begin, inbox: _Inbox, outbox: _Outbox) -> None:
        self._begin = begin
        self._inbox = inbox
        self._outbox = outbox
        self._guard = raise_wall(begin.guard.guard())
        self._log = surroundings.logger(outbox.send)
        self._objects: dict[int, _Object] = {}
        self._calls: dict[int, tuple[_Object, asyncio.Task[None]]] = {}
        self._places: queue.SimpleQueue[Places] = queue.SimpleQueue()

    def load(self) -> None:
        """Import the connector; raise what is wrong with it."""
        plugins.get(self._begin.connector)

    def run(self) -> None:
        """Never returns."""
        # A loop that is not written in Python connects past the wall.
        loop = asyncio.new_event_loop() if self._guard.judges_addresses else surroundings.fast_loop()
        asyncio.set_event_loop(loop)
        threading.Thread(target=self._listen, args=(loop,), daemon=True).start()
        loop.run_forever()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            message, slices = self._inbox.take()
            if isinstance(message, Places):
                self._places.put(message)  # Somebody waits for it in the loop's own thread.
            else:
                loop.call_soon_threadsafe(self._take, message, slices)

    def _take(self, message: ToProcess, slices: list[bytes]) -> None:
        match message:
            case Call():
                of = self._objects.setdefault(message.object, _Object(lambda: self._build(message.part)))
                of.trust_until_s = message.trust_until_s or of.trust_until_s
                task = asyncio.get_running_loop().create_task(self._answer(message, of, slices))
                self._calls[message.id] = (of, task)
                of.running.add(task)
            case Cancel() if message.id in self._calls:
                of, task = self._calls[message.id]
                of.cancelled.add(task)
                task.cancel()
            case Trust() if message.object in self._objects:
                self._objects[message.object].trust_until_s = message.until_s

    async def _answer(self, call: Call, of: _Object, slices: list[bytes]) -> None:
        try:
            await of.wait_for_cancelled(is_last=call.method == "close")
            if call.method == "read":
                await self._read(call, of)
            else:
                self._outbox.send(Answer(call.id, await self._call(call, of, slices)))
        except asyncio.CancelledError:
            self._outbox.send(Failed(call.id, WireError(CANCELLED, "")))
        except BaseException as error:  # Whatever it is, SystemExit too: it is told, and the node decides.
            self._outbox.send(Failed(call.id, to_wire(error)))
        finally:
            del self._calls[call.id]
            of.running.discard(cast(asyncio.Task[None], asyncio.current_task()))

    # Building.

    def _build(self, part: str) -> Any:
        connector, kind, options = self._found()
        context = surroundings.context(self._begin, part, self._guard, self._log, self._outbox.send)
        return awaitable(plugins.built(connector, lambda: kind.build(options, context)), context.stream)

    def _found(self) -> tuple[Connector, Any, Any]:
        connector = plugins.get(self._begin.connector)
        kind: Any = connector.source if self._begin.side == "source" else connector.sink
        return connector, kind, kind.model.model_validate(unpacked(self._begin.options))

    # Calling.

    async def _call(self, call: Call, of: _Object, slices: list[bytes]) -> bytes:
        takes, returns = SIGNATURES[self._begin.side, call.method]
        args: Sequence[Any] = wire.decoded(call.args, tuple.__class_getitem__(takes)) if takes else ()
        kind: Any
        match call.method:
            case "close" if not of.is_built:
                return wire.encoded(None)
            case "probe":
                _, kind, options = self._found()
                return wire.encoded(await kind.probe(options, self._guard))
            case "tell_move":
                kind = plugins.get(self._begin.connector).source
                return wire.encoded(str(kind.tell_move(*args)))
            case "open" if self._begin.side == "sink":
                args = [_granted(args[0], of)]
            case "write" | "rehearse":
                args = [await self._outgoing(call.id, args[0], slices)]
        value = await getattr(of.built, call.method)(*args)
        return wire.encoded(list(value) if get_origin(returns) is list else value)

    async def _read(self, call: Call, of: _Object) -> None:
        batch: Batch = await of.built.read()
        records, meta = batch.records, batch.meta
        try:
            slices = await _sliced(values.in_slices(records, meta))
        except values.UnsendableError:
            bad = set(values.unsendable(records, meta))
            records = [_unreadable(one) if index in bad else one for index, one in enumerate(records)]
            meta = None if meta is None else [None if index in bad else one for index, one in enumerate(meta)]
            slices = await _sliced(values.in_slices(records, meta))
        if (length := sum(map(len, slices))) > MOST_BATCH_BYTES:
            said = f"a batch has {size(length)}, more than the {size(MOST_BATCH_BYTES)} that a process may send"
            raise ConnectorError(said, cause=Cause.CONFIG, hint="choose smaller batches")
        place, number = batch.place, len(records)
        places = None if place is None else wire.encoded([place(index) for index in range(number)])
        event_time_s = None if batch.event_time_s is None else float(batch.event_time_s)
        self._outbox.send(Batched(call.id, batch.position, int(batch.size_bytes), event_time_s, places), slices)

    async def _outgoing(self, call: int, found: WireOutgoing, slices: list[bytes]) -> Outgoing:
        records: list[Any] = []
        for one in slices:
            records += values.from_slice(one)[0]
            await asyncio.sleep(0)
        keys = None if found.keys is None else {id(one): key for one, key in zip(records, found.keys, strict=True)}
        return Outgoing(
            records,
            found.progress,
            tuple(found.key),
            found.deletes,
            found.letters,
            found.replays,
            supersedes=None if keys is None else lambda record: keys[id(record)],
            places=_Places(call, self._outbox, self._places) if found.has_places else None,
        )


def _granted(found: WireGrant, of: _Object) -> Grant:
    return Grant(
        found.installation,
        found.datasource,
        found.stream,
        found.name,
        found.epoch,
        found.progress,
        trust_left_s=lambda: of.trust_until_s - boot_s(),
    )


class _Places:
    """What the source calls the records of one write, asked for when the sink wants the first of them."""

    def __init__(self, call: int, outbox: _Outbox, answers: queue.SimpleQueue[Places]) -> None:
        self._call = call
        self._outbox = outbox
        self._answers = answers
        self._found: list[str] | None = None

    def __call__(self, index: int) -> str:
        if self._found is None:
            self._outbox.send(WantPlaces(self._call))
            while (answer := self._answers.get()).id != self._call:
                pass  # Of a write that was cancelled.
            self._found = answer.places
        return self._found[index]


async def _sliced(slices: Any) -> list[bytes]:
    """All of them, with turns for other calls in between."""
    found = []
    for one in slices:
        found.append(one)
        await asyncio.sleep(0)
    return found


def _unreadable(record: Any) -> Unreadable:
    try:
        shown = ascii(record)
    except RecursionError:
        shown = f"a {type(record).__name__} that cannot be shown"
    return Unreadable(shown[:100_000].encode(), values.UNSENDABLE)

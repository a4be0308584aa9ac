"""The push door: one WebSocket is one session of a program that pushes records.

Frames are decoded here, credits are counted here, and what a frame says goes to the session (`runtime.push.session`).
A mistake of a program ends its own connection, with an error frame that names the mistake, and no other. Payloads are
decoded on arrival: a mistake in one is refused while its sender still has the record and can correct it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from headgate.clock import unix_s
from headgate.connectors.push import PushOptions
from headgate.core import frames
from headgate.core.access import Caller, OfDatasource
from headgate.core.frames import HelloFrame, Message
from headgate.core.payloads import is_costly
from headgate.core.push.notifier import Reason
from headgate.core.reconcile import Entry
from headgate.errors import HeadgateError, StoreError
from headgate.runtime.node import Node
from headgate.runtime.push.feed import Piece
from headgate.runtime.push.session import Peer, Session
from headgate.telemetry.metrics import PushFigures
from headgate.text import counted
from headgate.web.auth import Gate
from headgate.web.doors.asgi import Scope
from headgate.web.doors.sockets import (
    HELLO_S,
    Connection,
    check_token,
    check_trust,
    check_version,
    needs_database,
)
from headgate.web.doors.wire import Over, SocketProtocol

RECORDS_AT_ONCE = 256
BYTES_AT_ONCE = 64 * 1024


class _Connection(Connection, Peer):
    """One program: what it may send, and what it is sent."""

    def __init__(self, socket: SocketProtocol) -> None:
        super().__init__(socket)
        self.credits = frames.WINDOW

    def accepted(self, stream: str, epoch: int, position: int | None) -> None:
        """It may push this stream."""
        self.say(frames.NotifyAckFrame(stream, True, position, epoch))

    def refused(self, stream: str, reason: Reason, retry_after_ms: int) -> None:
        """It may not."""
        self.say(frames.NotifyAckFrame(stream, False, None, None, reason, retry_after_ms))

    def acked(self, credits: int, positions: list[tuple[str, int | None]]) -> None:
        """Records up to these positions are durable, and this many more may come."""
        self.credits += credits
        self.say(frames.AckFrame(credits, positions))

    def closed(self, stream: str, position: int | None) -> None:
        """The end of the stream is durable."""
        self.say(frames.ClosedFrame(stream, position))

    def restart(self, stream: str | None, address: str | None, reason: str) -> None:
        """Ask again."""
        self.say(frames.RestartFrame(stream, address, reason))


class PushDoor:
    """Everything that connects to /push."""

    def __init__(self, node: Node, gate: Gate) -> None:
        self._node = node
        self._gate = gate
        self._json = msgspec.json.Decoder().decode
        self.ends: Counter[str] = Counter()  # How sessions ended, by code.
        self.records = 0

    def figures(self) -> PushFigures:
        """For metrics."""
        return PushFigures(len(self._node.push.sessions), self.records, self.ends)

    async def __call__(self, socket: SocketProtocol) -> None:
        """One connection."""
        connection = _Connection(socket)
        self.ends[await connection.serve(self._serve(connection))] += 1

    async def _serve(self, connection: _Connection) -> None:
        hello = await _next(connection.socket, HELLO_S)
        if hello is None:
            return
        if not isinstance(hello, HelloFrame):
            raise Over("unexpected", "the first frame must be hello")
        caller, entry, options, nodes = await self._admit(hello, connection.socket.scope)
        with self._gate.hold(caller, connection.token_ended):
            await self._converse(connection, entry, options, nodes)

    async def _converse(self, connection: _Connection, entry: Entry, options: PushOptions, nodes: list[str]) -> None:
        connection.socket.admit(frames.MAX_FRAME_BYTES)
        connection.say(frames.OkFrame(frames.WINDOW, frames.MAX_FRAME_BYTES, frames.HEARTBEAT_S, nodes))
        session = self._node.push.open(connection, entry.datasource)
        try:
            while not connection.has_failed:
                frame = await _next(connection.socket, frames.HEARTBEAT_S * frames.MISSED_BEATS)
                if frame is None:
                    return
                await self._handle(frame, session, connection, options)
        finally:
            session.close()

    async def _handle(
        self, frame: frames.FromClient, session: Session, connection: _Connection, options: PushOptions
    ) -> None:
        match frame:
            case frames.MessagesFrame(stream=stream, messages=messages):
                connection.credits -= len(messages)
                if connection.credits < 0:
                    raise Over("overdraft", f"{counted(-connection.credits, 'record')} more than credits")
                if not messages:
                    connection.socket.count_idle()
                self.records += len(messages)
                session.received(stream, await self._piece(messages, options, connection.socket))
            case frames.NotifyFrame(stream=stream, name=name):
                if self._node.registry.entry_of(session.datasource) is None:
                    await self._look()
                if self._node.registry.entry_of(session.datasource) is None:
                    raise Over("not_found", "the datasource has been deleted")
                session.notify(stream, name or stream)
            case frames.EosFrame(stream=stream):
                session.ended(stream)
            case frames.BeatFrame():
                connection.socket.count_idle()
                if self._node.trust_left_s() > 0.0:
                    connection.say(frame)
            case HelloFrame():
                raise Over("unexpected", "a second hello")
            case frames.ErrorFrame():
                raise Over("closed", "the program has given up")

    async def _piece(self, messages: list[Message], options: PushOptions, socket: SocketProtocol) -> Piece:
        """The records of a frame, decoded in as many turns as that takes."""
        decode = self._json if options.format == "json" else _text
        records: list[Any] = []
        meta: list[dict[str, Any]] = []
        size_bytes = 0
        for some, some_bytes in _slices(messages):
            if options.format == "json" and len(some) == 1 and is_costly(some[0].payload or b""):
                raise Over("bad_payload", "a payload has too many values; split it into several records")
            try:
                records += [{} if m.payload is None else decode(m.payload) for m in some]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise Over("bad_payload", f"a payload is not {options.format}") from None
            meta += [
                {"id": m.id, "event_time": None if m.event_time is None else m.event_time / 1e6, "key": _key(m.key)}
                for m in some
            ]
            size_bytes += some_bytes
            await socket.breathe()
        newest = messages[-1].event_time if messages else None
        event_time_s = unix_s() if newest is None else newest / 1e6
        return Piece([m.id for m in messages], records, meta, size_bytes, event_time_s)

    async def _admit(self, hello: HelloFrame, scope: Scope) -> tuple[Caller, Entry, PushOptions, list[str]]:
        """Who this is, what it may push to, and where else it could."""
        check_version(hello.version)
        caller = await check_token(self._gate, scope, hello.token, OfDatasource(hello.datasource))
        with needs_database():
            entry = await self._entry(hello.datasource)
            check_trust(self._node.trust_left_s())
            return caller, entry, await self._options(entry), await self._node.incarnations.addresses()

    async def _entry(self, name: str) -> Entry:
        entry = self._node.registry.entry(name)
        if entry is None or entry.wanted is None or not entry.is_pushed:
            await self._look()  # Perhaps it was published after the last one.
            entry = self._node.registry.entry(name)
        if entry is None or not entry.is_pushed or not self._node.lists(name):
            raise Over("not_found", "this datasource does not exist, or takes no pushed records")
        return entry

    async def _look(self) -> None:
        """Read the registry once more. A node that starts over has forgotten what there is, and does not know yet."""
        manager = self._node.manager
        if manager is not None:
            with needs_database():
                await manager.look()
        if manager is None or manager is not self._node.manager:
            raise Over("not_ready", "this node starts over")

    async def _options(self, entry: Entry) -> PushOptions:
        target = entry.wanted.target if entry.wanted is not None else None
        try:
            if target is not None:
                config = await self._node.registry.get_datasource_config(entry.datasource, target)
                assert isinstance(config.prepared.source_options, PushOptions)
                return config.prepared.source_options
        except StoreError:
            raise
        except HeadgateError:
            pass
        raise Over("not_ready", "the datasource cannot be run here now")


async def _next(socket: SocketProtocol, within_s: float) -> frames.FromClient | None:
    """The next frame; None when the program has hung up."""
    data = await socket.receive(within_s)
    return None if data is None else frames.decode_from_client(data)


def _slices(messages: list[Message]) -> Iterator[tuple[list[Message], int]]:
    """Records that are decoded in one go, and how many bytes they have: a few hundred small ones, or a large one."""
    for start in range(0, len(messages), RECORDS_AT_ONCE):
        some = messages[start : start + RECORDS_AT_ONCE]
        size_bytes = sum(len(m.payload) for m in some if m.payload is not None)
        if size_bytes <= BYTES_AT_ONCE and not is_costly(b" ".join([m.payload for m in some if m.payload is not None])):
            yield some, size_bytes
        else:
            yield from (([m], len(m.payload or b"")) for m in some)


def _text(payload: bytes) -> dict[str, str]:
    return {"body": payload.decode("utf-8")}


def _key(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "backslashreplace")

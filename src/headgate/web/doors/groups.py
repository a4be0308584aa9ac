"""The groups door: one WebSocket is one connection of a program that takes turns with others.

Frames are decoded here, and what they say goes to the listener (`runtime.groups.listener`). A mistake of a program ends
its own connection, with an error frame that names the mistake, and no other.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from uuid import UUID

from headgate.core import frames
from headgate.core.access import OfGroup
from headgate.core.frames import JoinFrame
from headgate.core.groups.delivery import LEASE_S
from headgate.errors import Refused
from headgate.ids import as_id
from headgate.runtime.groups.listener import Session
from headgate.runtime.node import Node
from headgate.store import worker_groups
from headgate.web.auth import Gate
from headgate.web.doors.sockets import (
    HELLO_S,
    Connection,
    check_token,
    check_trust,
    check_version,
    needs_database,
)
from headgate.web.doors.wire import Over, SocketProtocol

MOST_CONSUMERS = 1000  # Of one connection.


class _Consumer(Connection):
    """One program."""

    def __init__(self, socket: SocketProtocol) -> None:
        super().__init__(socket)
        self.callers: set[UUID | None] = set()  # The tokens that its consumers have joined with,
        self.held = ExitStack()  # and what ends the connection when one of them ends.

    def active(self, consumer: UUID, incarnation: int, epoch: int, partition: int | None) -> None:
        """It is active."""
        self.say(frames.ActiveFrame(str(consumer), incarnation, epoch, partition))

    def step_down(self, consumer: UUID, incarnation: int, epoch: int) -> None:
        """It should finish, and confirm."""
        self.say(frames.StepDownFrame(str(consumer), incarnation, epoch))


class GroupDoor:
    """Everything that connects to /groups."""

    def __init__(self, node: Node, gate: Gate) -> None:
        self._node = node
        self._gate = gate
        self.open = 0
        self.ends: Counter[str] = Counter()  # How connections ended, by code.

    async def __call__(self, socket: SocketProtocol) -> None:
        """One connection."""
        connection = _Consumer(socket)
        session = Session(connection)
        self.open += 1
        try:
            self.ends[await connection.serve(self._serve(connection, session))] += 1
        finally:
            self.open -= 1
            connection.held.close()
            self._node.groups.closed(session, is_own=socket.has_left)

    async def _serve(self, connection: _Consumer, session: Session) -> None:
        within_s, has_joined = HELLO_S, False
        while (data := await connection.socket.receive(within_s)) is not None:
            frame = frames.decode_group_from_client(data)
            within_s = max(session.lease_s, LEASE_S)
            match frame:
                case JoinFrame():
                    await self._join(frame, connection, session)
                    has_joined = True
                case _ if not has_joined:
                    raise Over("unexpected", "the first frame must be join")
                case frames.BeatFrame():
                    connection.socket.count_idle()
                    if self._node.groups.may_echo(session):
                        connection.say(frame)
                case frames.ConfirmFrame(consumer=consumer, epoch=epoch, what=what):
                    id = _known(session, consumer)
                    await self._node.groups.confirm(session, id, epoch, is_active=what == "active")
                case frames.LeaveFrame(consumer=consumer):
                    await self._node.groups.leave(session, _known(session, consumer))
                case frames.ErrorFrame():
                    raise Over("closed", "the program has given up")

    async def _join(self, frame: JoinFrame, connection: _Consumer, session: Session) -> None:
        check_version(frame.version)
        scope = connection.socket.scope
        caller = await check_token(self._gate, scope, frame.token, OfGroup(frame.stream, frame.group))
        if caller.id not in connection.callers:
            connection.callers.add(caller.id)
            connection.held.enter_context(self._gate.hold(caller, connection.token_ended))
        if frame.group == worker_groups.NAME:
            raise Over("forbidden", f"the name {worker_groups.NAME!r} is for the nodes that run Headgate's own streams")
        check_trust(self._node.trust_left_s())
        if len(session.consumers) >= MOST_CONSUMERS:
            raise Over("too_many", f"one connection carries at most {MOST_CONSUMERS} consumers")
        try:
            with needs_database():
                nodes = await self._node.incarnations.addresses()
                joined = await self._node.groups.join(
                    session,
                    frame.stream,
                    frame.group,
                    frame.partition,
                    frame.label or "",
                    frame.consumer,
                    frame.lease_s,
                    is_fenced=bool(frame.fenced),
                )
        except Refused as error:
            raise Over(error.code, error.message) from None
        connection.socket.admit(frames.MAX_GROUP_FRAME_BYTES)
        # Nothing is awaited between joining and this: an order to be active is sent after the answer to join.
        connection.say(frames.JoinedFrame(str(joined.consumer), joined.incarnation, joined.lease_s, nodes))


def _known(session: Session, consumer: str) -> UUID:
    id = as_id(consumer)
    if id is None or id not in session.consumers:
        raise Over("not_joined", "this consumer has not joined on this connection")
    return id

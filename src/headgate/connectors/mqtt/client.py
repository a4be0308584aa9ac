"""A connection to an MQTT broker, version 5 or 3.1.1.

Messages that came wait in `arrived` until somebody takes them. If they are more than `HELD_BYTES`, the connection is
not read until half of them are gone. Of one that is larger than `max_message_bytes` only the beginning is kept, while
it comes.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.connectors.guard import Guard
from headgate.connectors.mqtt import packets
from headgate.connectors.mqtt.packets import (
    CONNACK,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Published,
    packet,
)
from headgate.connectors.payloads import KEPT_BYTES
from headgate.connectors.wire import Address, Wire, connect
from headgate.errors import Cause, ConnectorError, NotConnected

KEEP_S = 20  # A broker that is silent for two of these is gone.
HELD_BYTES = 64 * 2**20
_HEAD_BYTES = 2 * 65_535 + 64  # The topic and the properties of a message that is too large must be among these.

_AUTH = {4, 5, 0x86, 0x87, 0x8A, 0x8C}
_CONFIG = {1, 2, 0x84, 0x85, 0x90, 0x8F, 0x9A, 0x9B, 0x9E, 0xA1, 0xA2}
_TEXTS = {
    1: "the broker does not speak this version",
    2: "the broker refuses the client id",
    4: "user or password is wrong",
    5: "this user may not do that",
    0x84: "the broker does not speak this version",
    0x85: "the broker refuses the client id",
    0x86: "user or password is wrong",
    0x87: "this user may not do that",
    0x8E: "another client with the same id has taken over",
    0x8F: "the filter is refused",
    0x97: "a quota is exceeded",
    0x9E: "the broker has no shared subscriptions",
}


def error_of(name: str, code: int, what: str) -> ConnectorError:
    """The broker has answered with this code."""
    said = f"{name}: {what}: {_TEXTS.get(code, f'refused with code {code}')}"
    if code in _AUTH:
        return ConnectorError(said, cause=Cause.AUTH)
    if code in _CONFIG:
        hint = "version: 3.1.1, or 5" if code in (1, 0x84) else ""
        return ConnectorError(said, cause=Cause.CONFIG, hint=hint)
    return NotConnected(said)


@dataclass(frozen=True, slots=True)
class Login:
    """How a client presents itself."""

    client_id: str
    is_5: bool
    is_clean: bool  # Without a session that outlives the connection.
    session_expiry_s: int = 0
    receive_maximum: int = 65_535
    max_message_bytes: int = 0


class Mqtt(Wire):
    """A connection."""

    def __init__(self, address: Address, login: Login) -> None:
        super().__init__(f"the MQTT broker at {address.name}")
        self._address = address
        self._login = login
        self.is_5 = login.is_5
        self.has_session = False  # The broker had one of this client.
        self.limits: dict[int, Any] = {}  # What the broker said of itself.
        self.arrived: deque[Published] = deque()
        self.held_bytes = 0
        self.confirmed: Callable[[int, int], None] = lambda id, code: None
        self._next_id = 0
        self._skip = 0  # Bytes of a message that is too large.

    async def greet(self) -> None:
        """Log in."""
        login = self._login
        properties = b""
        if not login.is_clean:
            properties = struct.pack(">BI", packets.SESSION_EXPIRY, login.session_expiry_s)
        properties += struct.pack(">BH", packets.RECEIVE_MAXIMUM, login.receive_maximum)
        try:
            first = packets.login(
                login.client_id,
                self._address.user,
                self._address.password,
                is_5=self.is_5,
                is_clean=login.is_clean,
                keep_s=KEEP_S,
                properties=properties,
            )
        except ValueError as error:
            raise ConnectorError(f"client id, user or password {error}", cause=Cause.CONFIG) from None
        self.send(first)
        payload: bytes = await self.answer(CONNACK)
        code = payload[1]
        if code:
            refusal = error_of(self.name, code, "login")
            self.fail(refusal)
            raise refusal
        self.has_session = bool(payload[0] & 1)
        if self.is_5:
            self.limits, _ = packets.properties_at(payload, 2)
        self.begin_beats(KEEP_S)
        self.is_ready = True

    async def subscribe(self, filters: Sequence[str], qos: int) -> None:
        """In version 5, what the broker has retained comes only with a new subscription, not with each run."""
        options = bytes([qos | (0x10 if self.is_5 else 0)])
        request = b"".join(packets.text(one) + options for one in filters)
        codes = await self._ask(SUBSCRIBE, SUBACK, request)
        for one, code in zip(filters, codes, strict=True):
            if code >= 0x80:
                # 3.1.1 says only that it is refused.
                raise error_of(self.name, code if self.is_5 else 0x87, f"subscription to {one[:200]}")

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Whether there was such a subscription or not."""
        await self._ask(UNSUBSCRIBE, UNSUBACK, b"".join(map(packets.text, filters)))

    async def _ask(self, kind: int, answer: int, request: bytes) -> bytes:
        id = self.next_id()
        self.send(packet(kind, 2, struct.pack(">H", id) + (b"\0" if self.is_5 else b"") + request))
        payload: bytes = await self.answer((answer, id))
        return payload[packets.properties_at(payload, 2)[1] if self.is_5 else 2 :]

    def next_id(self) -> int:
        """From 1 to 65,535, round and round."""
        self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    def acknowledge(self, message: Published) -> None:
        """The sink has it. Of quality 2 the broker then says that it has forgotten it, and is told that we have too."""
        if message.qos:
            self.send(packet(PUBACK if message.qos == 1 else PUBREC, 0, struct.pack(">H", message.id)))

    def taken(self, messages: Sequence[Published]) -> None:
        """These, the first of `arrived`, are somebody else's now."""
        for message in messages:
            assert self.arrived.popleft() is message
            self.held_bytes -= len(message.body)
        if self.held_bytes < HELD_BYTES // 2:
            self.hold(False)

    # What comes in.

    def beat(self) -> bytes:
        """A question whether the broker is there."""
        return packet(PINGREQ, 0, b"")

    def farewell(self) -> bytes:
        """The broker closes the connection when it has this. The session stays for as long as was agreed."""
        return packet(DISCONNECT, 0, b"")

    def take(self, data: bytes) -> tuple[int, int]:
        """Packets."""
        at, end = min(self._skip, len(data)), len(data)
        self._skip -= at
        while end - at >= 2:
            length = packets.length_at(data, at + 1)
            if length is None:
                return at, end - at + 1
            size, start = length
            kind, flags = data[at] >> 4, data[at] & 0xF
            if kind != PUBLISH and size > _HEAD_BYTES:
                raise NotConnected(f"{self.name} sent a packet of {size:,} bytes")
            is_large = kind == PUBLISH and size > self._login.max_message_bytes + _HEAD_BYTES
            wanted = start + (min(size, _HEAD_BYTES + KEPT_BYTES) if is_large else size)
            if wanted > end:
                return at, wanted - at
            self._on_packet(kind, flags, data[start:wanted], size)
            at = min(start + size, end)
            self._skip = start + size - at
        return at, 2

    def _on_packet(self, kind: int, flags: int, payload: bytes, size: int) -> None:
        if kind == PUBLISH:
            message = packets.published(flags, payload, size, is_5=self.is_5)
            if message.size_bytes > self._login.max_message_bytes:
                message = message._replace(body=message.body[:KEPT_BYTES])
            self.arrived.append(message)
            self.held_bytes += len(message.body)
            if self.held_bytes > HELD_BYTES:
                self.hold(True)
            self.arrive()
        elif kind in (PUBACK, PUBCOMP):
            self._on_confirmed(payload)
        elif kind == PUBREC:
            if len(payload) > 2 and payload[2] >= 0x80:
                self._on_confirmed(payload)
            else:
                self.send(packet(PUBREL, 2, payload[:2]))
        elif kind == PUBREL:
            self.send(packet(PUBCOMP, 0, payload[:2]))
        elif kind == DISCONNECT:
            self.fail(error_of(self.name, payload[0] if payload else 0x80, "the broker ended the connection"))
        elif kind == CONNACK:
            self.give(CONNACK, payload)
        elif kind in (SUBACK, UNSUBACK):
            self.give((kind, int.from_bytes(payload[:2], "big")), payload)

    def _on_confirmed(self, payload: bytes) -> None:
        self.confirmed(int.from_bytes(payload[:2], "big"), payload[2] if len(payload) > 2 else 0)
        self.arrive()


async def connected(address: Address, guard: Guard, login: Login) -> Mqtt:
    """A connection that is ready."""
    return await connect(address, guard, lambda: Mqtt(address, login))

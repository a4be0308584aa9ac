"""One stream's way out: what a program hands in on one side, and what a session sends on the other.

The stream outlives connections. On each of them it is *asking* until the node grants it, and *open* from then on. What
it was granted ends with the connection, or with the node's word; then everything that is not durable counts as not
sent, and the stream asks again. It is *ended* once the node has closed it after its end was announced.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, TypeAlias

import msgspec

from headgate.client.buffer import OVERHEAD_BYTES, Buffer
from headgate.client.errors import PushError
from headgate.core import frames
from headgate.core.frames import Message, MessagesFrame

Payload: TypeAlias = Any  # Bytes as they are, or whatever can be JSON.
Key: TypeAlias = bytes | str | None
EventTime: TypeAlias = int | datetime | None

MAX_ID = 2**63 - 1
HEADER_BYTES = 18  # What a frame of messages takes in addition to its stream's name and its records, at most.

_MIN, _MAX = -(2**63), 2**63 - 1
_RAW = (bytes, bytearray, memoryview)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_to_json = msgspec.json.Encoder().encode


class Phase(Enum):
    """How a stream stands with the node."""

    ASKING = auto()
    OPEN = auto()
    ENDED = auto()


class Room:
    """How many records of all streams are not durable yet. Adding one to a full room waits."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._freed = asyncio.Event()

    def free(self, records: int) -> None:
        """This many records are durable now."""
        self.held -= records
        if self.held < self.limit:
            self.wake()

    def wake(self) -> None:
        """Wake all waiting calls."""
        self._freed.set()
        self._freed.clear()

    async def changed(self) -> None:
        """Wait until it is worth looking again."""
        await self._freed.wait()


class Outgoing:
    """One stream, as the client and its sessions know it."""

    def __init__(self, name: str, room: Room) -> None:
        self.name = name
        self.room = room
        self.buffer = Buffer()
        self.phase = Phase.ASKING
        self.position: int | None = None
        self.failure: PushError | None = None
        self.was_granted = False
        self.askers = 0  # Calls that wait for the first grant; without them, nobody wants the stream.
        self.is_ending = False
        self.is_eos_sent = False
        self.is_idle = False  # Open, and the session does not know of anything to send.
        self.on_work: Callable[[Outgoing], None] = _nobody
        self.last_id = -1  # The last one that the program handed in.
        self._skip_to = -1  # Up to here the node has everything.
        self._max_frame = 0
        self._limit_bytes = 0
        self._changed = asyncio.Event()

    # What the program does.

    def add(self, id: int, payload: Payload, key: Key = None, event_time: EventTime = None) -> bool:
        """Take one record in. Whether a batch is full by that: it is time to let the session send."""
        if self.failure is not None or self.is_ending:
            raise self._over()
        if type(id) is not int:
            id = _plain_id(id)
        if not self.last_id < id <= MAX_ID:
            raise ValueError(f"id {id} of stream {self.name!r}: ids rise strictly, from 0 to {MAX_ID}")
        if id <= self._skip_to:
            self.last_id = id
            return False
        if type(payload) is not bytes:
            payload = _plain_payload(payload)
        size_bytes = OVERHEAD_BYTES + len(payload) if payload is not None else OVERHEAD_BYTES
        if key is not None:
            key = key if type(key) is bytes else _plain_key(key)
            size_bytes += len(key)
        if event_time is not None:
            event_time = _microseconds(event_time)
        message = Message(id, event_time, key, payload)
        if size_bytes > self._limit_bytes:
            self._check_size(message)
        self.last_id = id
        self.room.held += 1
        is_full = self.buffer.add(message, size_bytes, self._limit_bytes)
        if self.is_idle:
            self.is_idle = False
            self.on_work(self)
        return is_full

    def end(self) -> None:
        """There will be no more."""
        self.is_ending = True
        if self.is_idle:
            self.is_idle = False
            self.on_work(self)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until this is true; raises if the stream has failed."""
        while self.failure is None:
            if is_so():
                return
            await self._changed.wait()
        raise self.failure.again()

    # What a session does.

    def grant(self, position: int | None, max_frame: int, on_work: Callable[[Outgoing], None]) -> None:
        """The node takes this stream, and has everything up to this position."""
        self.phase = Phase.OPEN
        self.was_granted = True
        self.on_work = on_work
        self._max_frame = max_frame
        self._limit_bytes = max_frame - HEADER_BYTES - len(self.name.encode())
        self._skip_to = -1 if position is None else position
        self.position = position
        self.room.free(self.buffer.trim(position))
        self.is_idle = not (self.buffer.waiting or self.is_ending)
        self.wake()
        if not self.is_idle:
            on_work(self)

    def revoke(self) -> None:
        """What was granted is over: everything that is not durable is to be sent again."""
        self.phase = Phase.ASKING
        self.is_idle = False
        self.is_eos_sent = False
        self.on_work = _nobody
        self.buffer.rewind()

    def acknowledge(self, position: int | None) -> None:
        """Everything up to here is durable."""
        if self.failure is None and position is not None and (self.position is None or position > self.position):
            self.position = position
            self.room.free(self.buffer.trim(position))
            self.wake()

    def close(self) -> None:
        """The node has closed the stream after its end."""
        self.phase = Phase.ENDED
        self.wake()

    def fail(self, failure: PushError) -> None:
        """The stream has failed. What it holds stays, so that nobody takes it for durable."""
        if self.failure is None:
            self.failure = failure
            self.is_idle = False
            self.room.free(self.buffer.records)
            self.room.wake()  # A caller may wait for room that others would take first.
            self.wake()

    def take(self, credits: int) -> list[Message]:
        """The next records to send."""
        return self.buffer.take(credits, self._limit_bytes)

    def wake(self) -> None:
        """Wake all waiting calls."""
        self._changed.set()
        self._changed.clear()

    def _over(self) -> Exception:
        return self.failure.again() if self.failure else RuntimeError(f"stream {self.name!r} is finished")

    def _check_size(self, message: Message) -> None:
        size_bytes = len(frames.encode(MessagesFrame(self.name, [message])))
        if size_bytes > self._max_frame:
            raise ValueError(
                f"id {message.id} of stream {self.name!r} makes a frame of {size_bytes:,} bytes;"
                f" the node takes {self._max_frame:,}"
            )


def _nobody(outgoing: Outgoing) -> None:
    """Nobody sends while the stream is not granted."""


def _plain_id(id: Any) -> int:
    """An integer of another type (an enum, one of numpy) is as good; a boolean is a mistake."""
    if isinstance(id, bool):
        raise TypeError("an id must be an integer")
    return int(operator.index(id))


def _plain_key(key: Any) -> bytes:
    if isinstance(key, _RAW):
        return bytes(key)
    if isinstance(key, str):
        return key.encode()
    raise TypeError("a key must be bytes or text")


def _plain_payload(payload: Payload) -> bytes | None:
    if payload is None:
        return None
    if isinstance(payload, _RAW):
        return bytes(payload)
    return _to_json(payload)


def _microseconds(event_time: int | datetime) -> int:
    if isinstance(event_time, datetime):
        if event_time.tzinfo is None:
            raise ValueError("an event time must have a time zone")
        return (event_time - _EPOCH) // _MICROSECOND
    if not _MIN <= event_time <= _MAX:
        raise ValueError("an event time must be microseconds since 1970, in 64 bits")
    return int(operator.index(event_time))

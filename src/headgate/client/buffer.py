"""What a stream has sent and not yet seen durable, and what waits to be sent.

Records are kept in the batches in which they go out, so that nothing that happens to a frame (being sent, becoming
durable, being sent again) costs a step per record. A batch is cut only where credits, a smaller frame or a position
fall inside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import attrgetter

from headgate.core.frames import Message

BATCH = 1000  # Records in a frame: enough that its cost is spread thin, and little to send again.
OVERHEAD_BYTES = 29  # What a record takes on the wire in addition to its key and payload, at most.

_id = attrgetter("id")


def size_of(message: Message) -> int:
    """How many bytes of a frame this takes, at most."""
    return OVERHEAD_BYTES + len(message.payload or b"") + len(message.key or b"")


class Batch:
    """Records that go out together."""

    __slots__ = ("messages", "size_bytes")

    def __init__(self, messages: list[Message], size_bytes: int) -> None:
        self.messages = messages
        self.size_bytes = size_bytes


class Buffer:
    """The records of one stream, in order; those that were sent come before those that wait."""

    def __init__(self) -> None:
        self.waiting: deque[Batch] = deque()
        self.sent: deque[Batch] = deque()

    def add(self, message: Message, size_bytes: int, limit_bytes: int) -> bool:
        """Put this record after the others. Whether a batch is full by that: it is time to send."""
        if not self.waiting:
            self.waiting.append(Batch([message], size_bytes))
            return False
        last = self.waiting[-1]
        if len(last.messages) >= BATCH or last.size_bytes + size_bytes > limit_bytes:
            self.waiting.append(Batch([message], size_bytes))
            return last.size_bytes + size_bytes > limit_bytes
        last.messages.append(message)
        last.size_bytes += size_bytes
        return len(last.messages) == BATCH

    def take(self, records: int, limit_bytes: int) -> list[Message]:
        """The next batch, to be sent now: at most this many records and, unless it is one record, this many bytes."""
        batch = self.waiting.popleft()
        if len(batch.messages) > records or batch.size_bytes > limit_bytes:
            batch, rest = _cut(batch, records, limit_bytes)
            if rest.messages:
                self.waiting.appendleft(rest)
        self.sent.append(batch)
        return batch.messages

    def trim(self, position: int | None) -> int:
        """Everything up to here is durable: forget it. How many records that were."""
        if position is None:
            return 0
        return _trim(self.sent, position) + (0 if self.sent else _trim(self.waiting, position))

    def rewind(self) -> None:
        """Nothing counts as sent any more."""
        self.waiting.extendleft(reversed(self.sent))
        self.sent.clear()

    @property
    def records(self) -> int:
        """How many are not durable."""
        return sum(len(batch.messages) for batch in (*self.sent, *self.waiting))

    @property
    def first_id(self) -> int | None:
        """The first record that is not durable."""
        batches = self.sent or self.waiting
        return batches[0].messages[0].id if batches else None


def _cut(batch: Batch, records: int, limit_bytes: int) -> tuple[Batch, Batch]:
    size_bytes = size_of(batch.messages[0])
    at = 1
    for message in batch.messages[1:records]:
        if size_bytes + size_of(message) > limit_bytes:
            break
        size_bytes += size_of(message)
        at += 1
    return Batch(batch.messages[:at], size_bytes), Batch(batch.messages[at:], batch.size_bytes - size_bytes)


def _trim(batches: deque[Batch], position: int) -> int:
    trimmed = 0
    while batches and batches[0].messages[-1].id <= position:
        trimmed += len(batches.popleft().messages)
    if batches and batches[0].messages[0].id <= position:
        batch = batches[0]
        at = bisect_right(batch.messages, position, key=_id)
        batch.size_bytes -= sum(map(size_of, batch.messages[:at]))
        del batch.messages[:at]
        trimmed += at
    return trimmed

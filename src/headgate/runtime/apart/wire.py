"""What a node and the process of a connector say to each other: frames of MessagePack.

A message is its slices, if it has records, and then its head. Each frame is a length, a kind and a body. The process
may have become anything, so what it sends is held to types and sizes before it is used, and nothing of it is run.
What it is sent is all that it gets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from headgate.connectors.api.streaming import Backlog, KeyKind, Letter, LetterOutcome, Progress
from headgate.connectors.bounds import WireGuard

MOST_HEAD_BYTES = 4 * 1024 * 1024
MOST_BATCH_BYTES = 32 * 1024 * 1024
FRAME = struct.Struct(">IB")
HEAD, SLICE = 0, 1


# To the process.


class Begin(msgspec.Struct, frozen=True, tag=True):
    """What it is for, said once: one side of a connector, with its options."""

    connector: str
    side: str  # source or sink.
    options: bytes  # As the document has them, with secrets in their places; packed.
    stream: str
    guard: WireGuard
    field_types: dict[str, str]
    is_rehearsal: bool
    memory_mb: int


class Call(msgspec.Struct, frozen=True, tag=True):
    """Call a method. The answer has the same id. Records of a `write` are the slices before it."""

    id: int
    object: int  # A source or a sink. The first call of its number makes it.
    part: str
    method: str
    args: bytes
    trust_until_s: float = 0.0  # Until when the node may act, on the clock that both have.


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for this call any more."""

    id: int


class Trust(msgspec.Struct, frozen=True, tag=True):
    """The node may act until then."""

    object: int
    until_s: float


class Places(msgspec.Struct, frozen=True, tag=True):
    """What the source calls the places of the records of this call."""

    id: int
    places: list[str]


class WireGrant(msgspec.Struct, frozen=True):
    """A grant, whose trust comes with each call."""

    installation: UUID
    datasource: UUID
    stream: UUID
    name: str
    epoch: int
    progress: Progress


class WireOutgoing(msgspec.Struct, frozen=True):
    """What is to be written, besides its records."""

    progress: Progress
    key: list[str]
    deletes: list[int]
    letters: list[Letter]
    replays: list[UUID]
    keys: list[bytes | None] | None  # For each record, the hash of its key, if letters are superseded.
    has_places: bool


# From the process.


class Ready(msgspec.Struct, frozen=True, tag=True):
    """It has begun."""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """What a method returned."""

    id: int
    value: bytes


class Batched(msgspec.Struct, frozen=True, tag=True):
    """What `read` returned. The records are the slices before it."""

    id: int
    position: Any
    size_bytes: int = 0
    event_time_s: float | None = None
    places: bytes | None = None  # A list of texts. Few ask for one.


class WireError(msgspec.Struct, frozen=True):
    """An error: what kind it is, and all that it says."""

    kind: str
    message: str
    hint: str = ""
    cause: str = "bug"
    after_s: float = 0.0
    bad: list[tuple[int, str | None, str]] = []
    problems: list[tuple[str, str, str]] = []


class Failed(msgspec.Struct, frozen=True, tag=True):
    """What a method raised."""

    id: int
    error: WireError


class Said(msgspec.Struct, frozen=True, tag=True):
    """A line for the log."""

    level: str
    text: str
    fields: dict[str, str]


class Noted(msgspec.Struct, frozen=True, tag=True):
    """An event."""

    name: str
    payload: dict[str, str]


class Resolved(msgspec.Struct, frozen=True, tag=True):
    """A write has superseded letters."""


class WantPlaces(msgspec.Struct, frozen=True, tag=True):
    """The sink asks what the source calls the records of this call."""

    id: int


ToProcess: TypeAlias = Begin | Call | Cancel | Trust | Places
FromProcess: TypeAlias = Ready | Answer | Batched | Failed | Said | Noted | Resolved | WantPlaces


def framed(message: ToProcess | FromProcess, slices: Sequence[bytes] = ()) -> list[bytes]:
    """A message as the pieces that are sent."""
    head = msgspec.msgpack.encode(message)
    pieces = []
    for kind, body in [*((SLICE, one) for one in slices), (HEAD, head)]:
        pieces += [FRAME.pack(len(body), kind), body]
    return pieces


class NonsenseError(Exception):
    """What came is no message."""


class Unframer:
    """Puts messages together from frames. `is_bounded`: what comes is held to sizes."""

    def __init__(self, kinds: Any, *, is_bounded: bool) -> None:
        self._decoder = msgspec.msgpack.Decoder(kinds)
        self._is_bounded = is_bounded
        self._slices: list[bytes] = []
        self._bytes = 0

    def check(self, length: int, kind: int) -> None:
        """Whether such a frame may come now. Raises NonsenseError."""
        if kind not in (HEAD, SLICE):
            raise NonsenseError("a frame is of no kind")
        self._bytes += length if kind == SLICE else 0
        if self._is_bounded and (length > MOST_HEAD_BYTES if kind == HEAD else self._bytes > MOST_BATCH_BYTES):
            raise NonsenseError("a message is too long")

    def frame(self, kind: int, body: bytes) -> tuple[Any, list[bytes]] | None:
        """The message that this frame completes, and its slices. Raises NonsenseError."""
        if kind == SLICE:
            self._slices.append(body)
            return None
        try:
            head = self._decoder.decode(body)
        except (ValueError, RecursionError):
            raise NonsenseError("a head is no message") from None
        slices, self._slices, self._bytes = self._slices, [], 0
        return head, slices


def encoded(value: Any) -> bytes:
    """What a method takes or returns."""
    return msgspec.msgpack.encode(value)


def decoded(data: bytes, kind: Any) -> Any:
    """It again, if it is what it should be. Raises NonsenseError."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (ValueError, RecursionError):
        raise NonsenseError("a value is not of its type") from None


def shown(said: object, most: int) -> str:
    """As text that can be sent: a file's name, say, may have bytes in it that are none."""
    return str(said)[:most].encode("utf-8", "backslashreplace").decode()


# What methods take and return. What comes back is held to this.

SIGNATURES: dict[tuple[str, str], tuple[tuple[Any, ...], Any]] = {
    ("source", "open"): ((Any,), None),
    ("source", "parts"): ((), list[str]),
    ("source", "ack"): ((Any,), None),
    ("source", "backlog"): ((), Backlog | None),
    ("source", "tell_move"): ((Any, Any), str),
    ("sink", "open"): ((WireGrant,), Progress | None),
    ("sink", "write"): ((WireOutgoing,), None),
    ("sink", "rehearse"): ((WireOutgoing,), None),
    ("sink", "outcomes"): ((), dict[UUID, LetterOutcome]),
    ("sink", "letters"): ((list[UUID],), list[Letter]),
    ("sink", "resolve"): ((list[UUID], LetterOutcome), None),
    ("sink", "rewrite"): ((list[Letter],), None),
    ("sink", "key_kinds"): ((list[str],), list[KeyKind]),
    ("sink", "columns"): ((), list[str]),
    ("sink", "forget"): ((UUID, list[UUID]), None),
    **{(side, method): ((), None) for side in ("source", "sink") for method in ("check", "close", "probe")},
    **{(side, "mark"): ((), str | None) for side in ("source", "sink")},
}

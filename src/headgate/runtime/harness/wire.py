"""What a node and the process of a test say to each other: frames of JSON, each after its length.

The process may have become anything, so what it sends is held to types and sizes, and nothing of it is run. What it is
sent is all that it gets.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import msgspec

from headgate.connectors.bounds import WireGuard
from headgate.core.harness.results import Given, Result
from headgate.core.payloads import is_costly
from headgate.errors import ConfigError
from headgate.store.datasources import Content

MOST_FRAME_BYTES = 1024 * 1024  # From the process: a frame is decoded in one go, and nothing else happens meanwhile.
MOST_JOB_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class Limits(msgspec.Struct, frozen=True):
    """What a test may take."""

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_bytes: int = 512 * 1024 * 1024  # Beyond what the process has when it begins, and of all it starts together.
    files: int = 256
    tasks: int = 32  # Processes and threads.
    output_bytes: int = 16 * 1024 * 1024  # Of frames; and as much to its standard output.
    results: int = 10_000


class Request(msgspec.Struct, frozen=True):
    """What the zygote is asked: a process with these limits."""

    limits: Limits
    user: str
    has_network: bool = False


class Ended(msgspec.Struct, frozen=True):
    """What the warden says when the process has ended."""

    how: str
    number: int = 0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    apart: list[str] = msgspec.field(default_factory=list)  # The namespaces that it had for itself.


# To the process.


class Case(msgspec.Struct, frozen=True):
    """Inputs that belong together: as they are, in a payload that is taken apart first, or read from the source."""

    given: list[Given] = msgspec.field(default_factory=list)
    payload: bytes | None = None
    at_s: float = 0.0  # When the payload is said to have come.
    fetch: int = 0  # How many to read.


class Job(msgspec.Struct, frozen=True):
    """What to run: a version, all that it needs, and what to do with it."""

    name: str
    content: Content
    secrets: dict[str, str]
    guard: WireGuard  # Of what the document names: the module of the mapping's function.
    source_guard: WireGuard
    sink_guard: WireGuard
    cases: list[Case] = msgspec.field(default_factory=list)
    published_mapping: dict[str, Any] | None = None  # Of the version to compare with,
    is_compared: bool = False  # if there is one.
    is_repeated: bool = False  # Run twice, to see what differs by itself.
    is_rehearsed: bool = False  # Written by the sink, and rolled back.
    doorways: list[str] = msgspec.field(default_factory=list)  # Sockets that its sink asks the node for.
    results: int = 10_000


# From the process.


class Stage(msgspec.Struct, frozen=True, tag=True):
    """What it does now, for whom it is killed in the middle of it."""

    name: str


class Said(msgspec.Struct, frozen=True, tag=True):
    """A line that the connector logged."""

    level: str
    text: str
    fields: dict[str, str]


class Outcome(msgspec.Struct, frozen=True, tag=True):
    """What became of one input."""

    case: int
    index: int  # Of the input. A source may make several records of one body.
    given: Given
    before: Any
    results: list[Result]
    again: list[Result]  # The second time, if it was asked for.
    published: list[Result]
    took_s: float
    size_bytes: int
    is_bare: bool = False  # Too large to be told: it has neither inputs nor values.


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """It could not go on, or one side could not be reached."""

    side: str  # source, mapping, sink; or empty.
    cause: str
    message: str
    hint: str = ""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """All of it was done."""

    columns: list[str] | None = None  # Of the sink's table, if it can tell.
    is_cut: bool = False  # There was more than may be answered.


Message: TypeAlias = Stage | Said | Outcome | Trouble | Finished


def pack(message: Message) -> bytes:
    """A frame for the node. Raises ValueError for one that it would not take."""
    body = msgspec.json.encode(message)
    _check(body)
    return _LENGTH.pack(len(body)) + body


def pack_job(job: Job) -> bytes:
    """A frame for the process."""
    body = msgspec.json.encode(job)
    if len(body) > MOST_JOB_BYTES:
        raise ConfigError("the inputs of this test are too large", hint="test with fewer or smaller records")
    return _LENGTH.pack(len(body)) + body


def _check(body: bytes) -> None:
    if len(body) > MOST_FRAME_BYTES or is_costly(body):
        raise ValueError("the frame is too long, or would take too long to decode")


class Unpacker:
    """Takes frames out of what has arrived."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._decoder = msgspec.json.Decoder(Message)

    def feed(self, data: bytes) -> list[Message]:
        """The frames that are whole by now. Raises ValueError for what is none."""
        self._buffer += data
        found: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MOST_FRAME_BYTES:
                raise ValueError("a frame is too long")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[_LENGTH.size : end])
            _check(body)
            found.append(self._decoder.decode(body))
            del self._buffer[:end]
        return found


def length_of(head: bytes) -> int:
    """How long the frame is that begins with this."""
    (length,) = _LENGTH.unpack(head)
    return int(length)


HEAD_BYTES = _LENGTH.size

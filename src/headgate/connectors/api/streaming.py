"""What a connector is: the public contract between Headgate and the code that speaks one protocol.

A connector is one module with one constant, `CONNECTOR`. It says its name, the options of its source and of its sink,
and how to build them. The runtime owns everything else: retry, backoff, batching, mapping, metrics, checkpoints.

A `Source` holds no state of its own. Everything it needs to go on comes in `open(position)`, where `position` is the
value it put into the last batch that became durable, or None for "nothing yet". A position names the last record
handled, inclusive, and is any JSON value. `read` waits until there is something to read; it may be cancelled at any
await, and what it had read but not returned is read again later. A source that can be read in parts (`in_parts`)
is built once to list them, and once for each part that a stream reads, with its name in `Context.part`.

A `Sink` writes batches. `write` returns when the batch is durable, and only then. A transactional sink also keeps the
stream's position: `open` raises the epoch and returns what it holds, `write` commits data and position together, and a
stale epoch raises `Fenced` and changes nothing.

Errors steer the worker: see `headgate.errors`. Anything else that is raised counts as a bug of the connector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import msgspec
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from headgate.core.streams import Position, Progress

__all__ = [
    "PUSH",
    "Batch",
    "Connector",
    "Context",
    "Feed",
    "Grant",
    "History",
    "Inbox",
    "Options",
    "Outgoing",
    "Position",
    "Progress",
    "Received",
    "Shared",
    "Sink",
    "SinkKind",
    "Source",
    "SourceKind",
    "identity",
    "identity_of",
]


PUSH = "push"  # The type of source whose streams programs make, by pushing them.


class Options(BaseModel):
    """The options of one side of a connector: frozen, and nothing unknown gets in."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def identity(default: Any = ..., *, is_new: bool = False, **kwargs: Any) -> Any:
    """An option that says *which* data this is. Another identity means that an old position is worth nothing.

    An option that a later release adds is new: with its default it adds nothing, so that older positions keep theirs.
    """
    return Field(default, json_schema_extra={"identity": "new" if is_new else True}, **kwargs)


def identity_of(connector: str, options: Options) -> str:
    """A hash of the options that say which data this is, without user and password."""
    marked = {
        name: _bare(value)
        for name, info in sorted(type(options).model_fields.items())
        if isinstance(info.json_schema_extra, dict)
        and (kind := info.json_schema_extra.get("identity"))
        and ((value := getattr(options, name)) != info.default or kind != "new")
    }
    text = msgspec.json.encode([connector, marked], order="sorted", enc_hook=str)
    return hashlib.sha256(text).hexdigest()[:16]


def _bare(value: Any) -> Any:
    """The value as plain text, credentials removed from URLs."""
    plain = value.get_secret_value() if isinstance(value, SecretStr) else value
    if isinstance(plain, str) and "://" in plain:
        parts = urlsplit(plain)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return plain


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that a source read together, and the position of the last of them."""

    records: list[Any]  # Payloads: usually dicts.
    position: Position  # Of the last record, inclusive.
    size_bytes: int = 0  # As received, for the rate in bytes.
    event_time_s: float | None = None  # When the newest record happened, in Unix time; for lag.
    meta: list[Any] | None = None  # Beside each record: what the mapping sees as `meta`.


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to write one stream, for one run."""

    installation: UUID
    stream: UUID
    name: str  # For people; never a key.
    epoch: int
    progress: Progress  # What the registry knows.
    trust_left_s: Callable[[], float]  # How long this node may still act. A write must not last longer.


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Mapped records to write, and where the stream stands once they are durable."""

    records: list[dict[str, Any]]
    progress: Progress
    key: tuple[str, ...] = ()  # The fields that identify a record; empty if the mapping names none.


class Source(Protocol):
    """Reads records from somewhere."""

    async def check(self) -> None:
        """Raise if this source could not be opened. Take nothing that a running source holds."""

    async def parts(self) -> Sequence[str]:
        """The names of the parts that can be read apart, in an order that never changes: new ones come at the end.

        One unnamed part, `[""]`, if it cannot be read in parts. Which of the two it is, its identity decides.
        """

    async def open(self, position: Position) -> None:
        """Get ready to read what follows `position`."""

    async def read(self) -> Batch:
        """Wait for records and return them. `EndOfStream` when there will never be more."""

    async def ack(self, position: Position) -> None:
        """Everything up to `position` is durable in the sink."""

    async def close(self) -> None:
        """Let go of everything. Called once, also after a failure."""


class Sink(Protocol):
    """Writes records somewhere."""

    async def check(self) -> None:
        """Raise if this sink could not be opened. Change nothing."""

    async def open(self, grant: Grant) -> Progress | None:
        """Get ready to write under this grant. A transactional sink fences older epochs and says what it holds."""

    async def write(self, batch: Outgoing) -> None:
        """Make the batch durable."""

    async def close(self) -> None:
        """Let go of everything. Called once, also after a failure."""


@dataclass(frozen=True, slots=True)
class Received:
    """One payload in a webhook's inbox."""

    id: int
    received_at_s: float
    headers: dict[str, str]
    body: bytes


class Inbox(Protocol):
    """Payloads that were accepted durably and wait to be read, in order."""

    async def after(self, id: int, limit: int) -> list[Received]:
        """The oldest payloads after `id`, at most `limit`; waits until there is one."""


class Feed(Protocol):
    """Records that a connected program pushes. What is not durable yet is kept, and can be read again."""

    def rewind(self, position: Position) -> None:
        """Go on after this record."""

    async def read(self) -> Batch:
        """The records that have come in since; waits until there are some."""


class Shared(Protocol):
    """Things that many connectors of one node use together, such as one pool per database."""

    async def get(self, key: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """The thing for this key, made on first use and kept until the last user gives it back."""

    async def give_back(self, key: str) -> None:
        """This user is done with it."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the runtime hands to a connector."""

    stream: str  # The stream's name, for messages.
    log: Any  # A structured logger, already bound to the stream.
    now_s: Callable[[], float]  # Unix time.
    shared: Shared
    inbox: Inbox | None = None  # For sources that receive by HTTP.
    feed: Feed | None = None  # For the source that programs push to.
    part: str = ""  # The part that this source is to read, if it can be read in parts.


class History(Protocol):
    """All records that a source has ever had, by their number: what a backfill reads."""

    size: int

    def query(self, offset: int, limit: int) -> list[Any]:
        """Records from number `offset` on."""


@dataclass(frozen=True, slots=True)
class SourceKind:
    """How to build a source."""

    options: type[Options]
    build: Callable[[Any, Context], Source]
    in_parts: bool = False  # Can be read in parts: it is asked for its `parts`, and built once for each.
    history: Callable[[Any], History | None] = field(
        default=lambda options: None
    )  # From the options; None: it has none.


@dataclass(frozen=True, slots=True)
class SinkKind:
    """How to build a sink."""

    options: type[Options]
    build: Callable[[Any, Context], Sink]
    transactional: bool = False  # Keeps the position with the data.
    needs_key: Callable[[Any], bool] = field(default=lambda options: False)  # Whether the mapping must name a key.
    # The URL and the table that a backfill writes into beside the live stream. None: it cannot.
    storage: Callable[[Any], tuple[str, str] | None] = field(default=lambda options: None)


@dataclass(frozen=True, slots=True)
class Connector:
    """One protocol, as a source, a sink, or both."""

    name: str
    summary: str
    source: SourceKind | None = None
    sink: SinkKind | None = None
    runs: Literal["async", "thread"] = "async"  # A connector whose methods block says "thread".

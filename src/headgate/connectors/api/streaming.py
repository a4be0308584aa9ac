"""Moving records: the contract of sources and sinks. The runtime owns everything else: retry, backoff, mapping,
metrics, checkpoints.

A `Source` holds no state between runs. Everything it needs comes in `open(position)`, where `position` is the
value it put into the last batch that became durable, or None for "nothing yet". A position names the last record
handled, inclusive, and is any JSON value. `read` waits until there is something to read; it may be cancelled at any
await, and what it had read but not returned is read again later. A source that can be read in parts (`in_parts`)
is built once to list them, and once for each part that a stream reads, with its name in `Context.part`.

A source that *knows its backlog* (`SourceKind.knows_backlog`, see `BacklogSource`) says how much waits to be read.

A `Sink` writes batches. `write` returns when the batch is durable, and only then. A transactional sink also keeps the
stream's position: `open` raises the epoch and returns what it holds, `write` commits data and position together, and a
stale epoch raises `Fenced` and changes nothing. Nothing of a batch is written when `write` raises `BadRecords`, which
names the records that cannot be written, or `BatchRefused`, which says that there is one: the worker then finds it by
halves, and the others are written without it.

A sink that *keeps letters* (`SinkKind.keeps_letters`, see `LetterSink`) commits dead letters with the position that
passes them, and a replayed record with the outcome of its letter.

A source may *name streams* (`SourceKind.names_streams`): the `meta` of each record says in `stream`, `key` and perhaps
`namespace` which one it is of, and what identifies it there. A sink that *splits* (`SinkKind.by_stream`) gets them with
the records.

A sink that *forgets* (`SinkKind.forgets`, see `ForgettingSink`) removes what it has kept of streams that are gone. With
its position a stream loses its fence. Therefore `open` of a transactional sink raises, and keeps nothing, once the
grant has no trust left: the node that had the stream last has none by the time that it is forgotten, so an old run that
wakes cannot bring it back.

`close` releases everything. It may be called at any time and more than once: after a failure, after a cancelled call,
and on a source or sink that was never opened.

Errors steer the worker: see `headgate.errors`. Anything else that is raised counts as a bug of the connector.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from headgate.connectors.api.options import Options, identity_of
from headgate.connectors.guard import OPEN, Guard
from headgate.core.figures import Backlog
from headgate.core.letter_keys import KeyKind
from headgate.core.letters import Letter, LetterOutcome
from headgate.core.records import Totals, Unreadable
from headgate.core.source_streams import SourceStream
from headgate.core.streams import Position, Progress

__all__ = [
    "INBOX_IDENTITY",
    "Backlog",
    "BacklogSource",
    "Batch",
    "Context",
    "Feed",
    "ForgettingSink",
    "Grant",
    "HasColumns",
    "Inbox",
    "KeyKind",
    "Letter",
    "LetterOutcome",
    "LetterSink",
    "Marked",
    "Outgoing",
    "Position",
    "Progress",
    "Received",
    "Shared",
    "Sink",
    "Source",
    "SourceStream",
    "Totals",
    "Unreadable",
]


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that a source read together, and the position of the last of them."""

    records: list[Any]  # Payloads: usually dicts. `Unreadable` for one that could not be decoded.
    position: Position  # Of the last record, inclusive.
    size_bytes: int = 0  # As received, for the rate in bytes.
    event_time_s: float | None = None  # When the newest record happened, in Unix time; for lag.
    meta: list[Any] | None = None  # For each record, what the mapping sees as `meta`.
    place: Callable[[int], str] | None = None  # What the source calls the place of the record with this index.
    streams: Sequence[SourceStream] = ()  # What a source that names streams knows of them; `meta` says which is whose.


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to write one stream, for one run."""

    installation: UUID
    datasource: UUID
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
    deletes: Sequence[int] = ()  # Which of the records are deletions of what has their key, rising.
    letters: Sequence[Letter] = ()  # To be kept with this position; only for a sink that keeps letters.
    replays: Sequence[UUID] = ()  # For each record, the letter that it replays; empty if this is no replay.
    # The hash of a record's key, in an upsert. Where there are `streams`, it is given the record's stream, too.
    supersedes: Callable[..., bytes | None] | None = None
    # What the source calls the place of the record with this index: the same when it is read again, however batches are
    # cut, if the source has such places. For keys by which a repeat is known.
    places: Callable[[int], str] | None = None
    # For each record, the stream that the source says it is of, with the stream's key; only for a sink that splits by
    # them (`SinkKind.by_stream`).
    streams: Sequence[SourceStream] = ()


class Source(Protocol):
    """Reads records from somewhere."""

    async def check(self) -> None:
        """Raise if this source could not be opened. Take nothing that a running source holds."""

    async def parts(self) -> Sequence[str]:
        """The names of the parts that can be read apart, in an order that never changes: new ones come at the end.

        One unnamed part, `[""]`, if it cannot be read in parts. The source's identity decides which of the two it is.
        """

    async def open(self, position: Position) -> None:
        """Get ready to read what follows `position`.

        The run before this one may still live somewhere, cut off, and hold what only one can hold at the source: a
        replication slot, a client's id. This run is the rightful one, so it ends the other there.
        """

    async def read(self) -> Batch:
        """Wait for records and return them. `EndOfStream` when there will never be more."""

    async def ack(self, position: Position) -> None:
        """Everything up to `position` is durable in the sink."""

    async def close(self) -> None:
        """Release everything. May be called at any time, and more than once."""


class BacklogSource(Source, Protocol):
    """A source that can say how much waits to be read."""

    async def backlog(self) -> Backlog | None:
        """What waits and has not been returned by `read`; None: that cannot be said now.

        It is asked every few seconds while `read` waits, and must be cheap. An answer that takes longer than a second
        is not waited for, and one that fails is none.
        """


class Sink(Protocol):
    """Writes records somewhere."""

    async def check(self) -> None:
        """Raise if this sink could not be opened. Change nothing."""

    async def open(self, grant: Grant) -> Progress | None:
        """Get ready to write under this grant. A transactional sink fences older epochs and says what it holds."""

    async def write(self, batch: Outgoing) -> None:
        """Make the batch durable."""

    async def close(self) -> None:
        """Release everything. May be called at any time, and more than once."""


class LetterSink(Sink, Protocol):
    """A transactional sink that keeps dead letters next to the data.

    `write` commits `batch.letters` with the position. Records of a batch with `replays` are written only if their
    letter is still open, and its outcome becomes `replayed` with them; the position stays. The `letters` of such a
    batch are some that it replays and that were kept elsewhere: they are kept before it looks. Where `batch.supersedes`
    is given, every open letter of the datasource whose key is the key of a record that is written becomes `superseded`
    in the same transaction; in a replay, only those that are older than the letter of the record.
    """

    async def rehearse(self, batch: Outgoing) -> None:
        """Do what `write` does, raise what it would raise, and take everything back."""

    async def outcomes(self) -> dict[UUID, LetterOutcome]:
        """Of all letters of this stream that it still knows."""

    async def letters(self, ids: Sequence[UUID]) -> list[Letter]:
        """Those of these that it still knows. One that is not open has its remains as its content."""

    async def resolve(self, ids: Sequence[UUID], outcome: LetterOutcome) -> None:
        """Those of these that are open have had this outcome. Their remains take the place of their content."""

    async def rewrite(self, changed: Sequence[Letter]) -> None:
        """Those of these that are open get this content: the same record, encrypted under another key. Nothing else of
        them changes, and their place among the others does not."""

    async def key_kinds(self, key: Sequence[str], stream: SourceStream | None = None) -> Sequence[KeyKind]:
        """What it keeps the fields of a key in, so that the runtime can tell which records have one key for it. Empty:
        that is not known. It is asked before each write, and must be cheap. A sink that splits by streams is asked for
        each of them."""


class ForgettingSink(Sink, Protocol):
    """A sink that can remove what it has kept of streams that are gone. It need not be open."""

    async def forget(self, installation: UUID, streams: Sequence[UUID]) -> None:
        """Remove the positions and the dead letters of these streams, and nothing else. Records stay.

        What is not there is no error: this may be asked again. A run that still has such a stream open is fenced.
        """


class Marked(Protocol):
    """A source or sink whose data keep a mark: an id that moves with them, whatever the address is.

    A stream goes on where it stands behind another address with the same mark. Its name, a hash of the options that say
    which data these are, need not be the same then.
    """

    async def mark(self) -> str | None:
        """The id; None: the data have none yet. It need not be open; a sink that was opened has one."""


@runtime_checkable
class HasColumns(Protocol):
    """A sink that writes into a table, and can say which columns it has."""

    async def columns(self) -> Sequence[str]:
        """Their names; none if there is no table yet. It need not be open."""


class Received(Protocol):
    """One payload in a webhook's inbox."""

    @property
    def id(self) -> int:
        """Its place in the inbox."""

    @property
    def received_at_s(self) -> float:
        """When it came, in Unix time."""

    @property
    def headers(self) -> dict[str, str]:
        """By their names in lower case."""

    @property
    def body(self) -> bytes:
        """As it was sent."""


INBOX_IDENTITY = identity_of("webhook", Options())
"""Of every source that reads an inbox: no option says which data these are, the datasource does."""


class Inbox(Protocol):
    """Payloads that were accepted durably and wait to be read, in order."""

    async def after(self, id: int, limit: int) -> Sequence[Received]:
        """The oldest payloads after `id`, at most `limit`; waits until there is one."""

    async def ack(self, id: int) -> None:
        """Everything up to `id` is durable in the sink, and need not be read again."""

    async def close(self) -> None:
        """The source is closed. What it has acknowledged may be read again, by another node."""


class Feed(Protocol):
    """Records that a connected program pushes. What is not durable yet is kept, and can be read again."""

    def rewind(self, position: Position) -> None:
        """Continue after this record."""

    async def read(self) -> Batch:
        """The records that have come in since; waits until there are some."""

    def backlog(self) -> Backlog:
        """What has come in and was not read yet."""


class Shared(Protocol):
    """Resources that many connectors of one node share, such as one pool per database."""

    async def get(self, key: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """The resource for this key, made on first use and kept until the last user gives it back."""

    async def give_back(self, key: str) -> None:
        """This user is done with it."""


def _nothing() -> None:
    """Nobody needs to know."""


def _note_nothing(type: str, **payload: str) -> None:
    """Nobody is interested."""


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
    guard: Guard = OPEN  # What it may reach: files are opened and connections are made through it.
    field_types: Mapping[str, str] = field(
        default_factory=dict
    )  # Of records, as far as the mapping tells: `int`, `date`.
    note: Callable[..., None] = _note_nothing  # An event: its type, and by name what else it says. Never a value.
    letters_resolved: Callable[[], None] = _nothing  # Said by a sink whose write has superseded letters.
    is_rehearsal: bool = False  # Somebody tries out a draft: a source leaves everything where it is.
    memory_mb: int = 512  # What its process may hold, if it has its own.

"""What a connector is to Headgate: a name, options, and how to build whichever of the four sides it has.

A connector is one constant, `CONNECTOR`, that an entry point of the group `headgate.connectors` leads to. Those that
come with Headgate use the same door. It may have a *source* and a *sink*, which move records one stream at a time
(`api.streaming`), and a *reader* and a *writer*, which copy whole tables in chunks (`api.bulk`). A document names a
connector by its name; a dump finds it by the scheme of a URL, or by the ending of a file's name.

The module that the entry point names is imported whenever connectors are listed, so it should be light: import
the client library inside the functions that build.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from headgate.connectors.places import Place, places_in

if TYPE_CHECKING:
    from headgate.connectors.api.options import Options
    from headgate.connectors.api.streaming import Context, Position, Sink, Source
    from headgate.connectors.guard import Guard

    # The model of the options, or a function that imports it: who copies tables has no use for it.
    OptionsModel: TypeAlias = type[Options] | Callable[[], type[Options]]

__all__ = ["Connector", "Landing", "LocalSocket", "ReaderKind", "SinkKind", "SourceKind", "WriterKind"]


@dataclass(frozen=True, slots=True)
class SourceKind:
    """How to build a source."""

    options: OptionsModel
    build: Callable[[Any, Context], Source]
    knows_backlog: bool = False  # Is a `BacklogSource`: says how much waits to be read.
    names_streams: bool = False  # The `meta` of each record says which of the source's streams it is of.
    in_parts: bool = False  # Can be read in parts: it is asked for its `parts`, and built once for each.
    is_marked: bool = False  # Is `Marked`: its data keep an id by which they are known.
    # In one line, what it means to continue after the second position in place of the first: what is skipped, or read
    # again; or that the second is no position of such a source. Asked before somebody edits one; it must touch nothing.
    tell_move: Callable[[Position, Position], str] | None = None
    # The hosts and files that options name. Not needed for those in URLs, which are found in any option.
    reaches: Callable[[Any], Sequence[Place]] = places_in
    # Whether what these options name answers, asked every second while streams wait for it: cheap, and takes nothing
    # that a running source holds. Raises `NotConnected` while it is away; whatever else it raises is an answer. None:
    # it answers if one of its addresses accepts a connection.
    probe: Callable[[Any, Guard], Awaitable[None]] | None = None
    # How often a record that it has arrives, in a few words that are true with any options: "exactly once into a
    # transactional sink", if it can be read again after each position; "at least once".
    promise: str = ""

    @property
    def model(self) -> type[Options]:
        """The model of its options."""
        return _model(self.options)


@dataclass(frozen=True, slots=True)
class LocalSocket:
    """A socket in a folder, and how a conversation through it begins."""

    path: str
    # Whether these first bytes of a client are those of a session that the options mean; None: there must be more.
    admits: Callable[[bytes], bool | None]


@dataclass(frozen=True, slots=True)
class SinkKind:
    """How to build a sink."""

    options: OptionsModel
    build: Callable[[Any, Context], Sink]
    transactional: bool = False  # Keeps the position with the data, and refuses older epochs,
    transactional_with: Callable[[Any], bool] = field(default=lambda options: True)  # if it has these options.
    keeps_letters: bool = False  # Is a `LetterSink`: keeps dead letters with them, too.
    forgets: bool = False  # Is a `ForgettingSink`: removes what it kept of streams that are gone.
    is_marked: bool = False  # Is `Marked`, as a source may be.
    needs_key: Callable[[Any], bool] = field(default=lambda options: False)  # Whether the mapping must name a key.
    can_delete: Callable[[Any], bool] = field(default=lambda options: False)  # Whether the mapping may have `delete`.
    # The option that asks for each stream that the source names to be written apart: `table`; empty, if these options
    # do not ask for it. None: it cannot do that.
    by_stream: Callable[[Any], str] | None = None
    reaches: Callable[[Any], Sequence[Place]] = places_in  # As of a source,
    probe: Callable[[Any, Guard], Awaitable[None]] | None = None  # and this, too.
    # The sockets in folders that options name. The process of a test may not be able to open them by itself.
    sockets: Callable[[Any], Sequence[LocalSocket]] = field(default=lambda options: ())
    # How often a record is there, in a few words that are true with any options: "exactly once", "deduplicated …",
    # "at least once".
    promise: str = ""

    def with_options(self, options: Any) -> SinkKind:
        """The same, and transactional only if it is so with these options."""
        return (
            self if not self.transactional or self.transactional_with(options) else replace(self, transactional=False)
        )

    @property
    def model(self) -> type[Options]:
        """The model of its options."""
        return _model(self.options)


@dataclass(frozen=True, slots=True)
class ReaderKind:
    """How to open a session that reads in bulk. Opening connects to nothing; the first use does."""

    # From a URL, and the name of a snapshot that `Reader.begin` gave. An object that has only `query(offset, limit)`
    # will do, see `headgate.connectors.own`. None: this connector reads only what a source's options describe.
    open: Callable[[str, str | None], Any] | None = None
    # What a backfill reads: everything that a source with these options has ever had. None: it keeps nothing.
    of_source: Callable[[Any], Any | None] = field(default=lambda options: None)


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a backfill writes, next to the live stream."""

    url: str
    table: str


@dataclass(frozen=True, slots=True)
class WriterKind:
    """How to open a session that writes in bulk."""

    open: Callable[[str], Any]  # From a URL. An object that has only `write(rows)` will do.
    # Where a backfill of a datasource with such a sink writes. None: it cannot, because rows are not found by a key.
    of_sink: Callable[[Any], Landing | None] = field(default=lambda options: None)


@dataclass(frozen=True, slots=True)
class Connector:
    """One system: whichever it has of source, sink, reader and writer."""

    name: str
    summary: str
    source: SourceKind | None = None
    sink: SinkKind | None = None
    reader: ReaderKind | None = None
    writer: WriterKind | None = None
    schemes: tuple[str, ...] = ()  # Of the URLs that reader and writer understand: `postgresql`.
    is_local: bool = False  # Its URLs are paths: they mean something on this machine, and relative to a folder.
    endings: dict[str, str] = field(default_factory=dict)  # Of files, with the scheme that each stands for: `.csv`.
    # Where its source and sink run. "async": in the node's event loop. "thread": each in its own thread, because their
    # methods block. "process": in a process that has limits and can be killed; their methods may be either kind.
    runs: Literal["async", "thread", "process"] = "async"


def _model(options: OptionsModel) -> type[Options]:
    return options if isinstance(options, type) else options()

"""Bodies about datasources and the registry as a whole."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, field

from headgate.core.figures import Figures, LastFailure
from headgate.web.bodies import Answer, Json, Object, Request
from headgate.web.bodies.letters import LetterNumbers


class Version(Answer):
    """One version, with its document."""

    number: int
    status: str  # draft, published, superseded or rejected.
    hash: str  # Of the document; an author names the one that was seen.
    author: str
    reason: str | None  # Why it was rejected.
    created_at: datetime
    document: Object  # As its author wrote it.


class StreamState(Answer):
    """One stream's state."""

    stream: str
    index: int | None  # Of a stream that nodes run;
    label: str | None  # or of one that a program pushes.
    worker_status: str
    detail: str
    node: str | None  # Its name; None: the node is gone.
    heartbeat: int | None
    version: int | None
    epoch: int
    metrics: Figures
    reading_since_s: float | None  # Since when the source has been asked for more, in Unix time.
    writing_since_s: float | None  # Since when a batch is being written.
    error: LastFailure | None
    changed_at: datetime


class Summary(Answer, kw_only=True):
    """A datasource in one line."""

    id: str
    name: str
    enabled: bool
    paused: bool  # Nobody reads it, and its doors are open; `enabled` is true then.
    health: str
    why: str  # Why it is so, in one line; empty: there is nothing to say.
    worker_status: str
    detail: str
    published_version: int | None
    running_version: int | None
    published_status: str | None
    has_draft: bool
    source_type: str | None
    sink_type: str | None
    metrics: Figures  # Of all its streams together, those of programs that have gone among them.
    error: LastFailure | None
    node: str | None
    quarantine: str | None  # Why it is quarantined.
    reason: str | None  # Why its published version was rejected.
    labels: list[str] = field(default_factory=list)  # As published.


class Datasource(Summary):
    """A datasource, with its draft, its published version and the states of its streams."""

    draft: Version | None
    published: Version | None
    states: list[StreamState]
    letters: LetterNumbers = field(default_factory=LetterNumbers)  # What became of its dead letters.


class Datasources(Answer):
    """All datasources."""

    items: list[Summary]
    notices: list[str] = field(default_factory=list)  # What is wrong apart from them: a registry file.


class Versions(Answer):
    """All versions of a datasource, oldest first."""

    items: list[Version]


class States(Answer):
    """What a datasource's streams do."""

    health: str
    states: list[StreamState]


class Explanation(Answer):
    """Why a datasource is as it is."""

    name: str
    health: str
    lines: list[str]  # The most telling first.


class Done(Answer):
    """What was done to a datasource."""

    name: str
    action: str


class Deletion(Answer):
    """What a delete of a datasource would lose."""

    name: str
    payloads: int  # Answered 202, and not known to be in the sink.
    letters: int  # Open ones.
    dumps: list[str]  # Those that are not over.


class BackfillBegun(Done):
    """A backfill, and the dump that it is."""

    dump: str


class Difference(Answer):
    """A place at which two documents differ."""

    path: str
    before: Json
    after: Json


class Differences(Answer):
    """How two versions differ."""

    before: int = field(name="from")
    after: int = field(name="to")
    changes: list[Difference]


class Change(Answer):
    """What applying a document does to one datasource."""

    name: str
    action: str  # create, update, enable, disable, delete or keep.
    changes: list[Difference]


class Changes(Answer):
    """What applying a document does."""

    changes: list[Change]


class Problem(Answer):
    """Something that is wrong with a document or a body."""

    path: str
    message: str
    hint: str = ""


class Problems(Answer):
    """Everything that is wrong with a document."""

    problems: list[Problem]


class Event(Answer):
    """Something that happened."""

    id: int
    name: str | None  # The datasource's.
    type: str
    payload: Object
    actor: str
    at: datetime


class Events(Answer):
    """Events, oldest first."""

    items: list[Event]


class EventPage(Answer):
    """Events of any datasource, oldest first."""

    items: list[Event]
    before: int | None = None  # Leads to the page before this one. None: there is none.


class Line(Answer):
    """A log line of a stream."""

    id: int
    at: datetime
    level: str
    text: str
    fields: Object


class Lines(Answer):
    """Log lines, oldest first."""

    items: list[Line]


class NamedLine(Line):
    """A log line, with the datasource that it is of."""

    name: str


class LinePage(Answer):
    """Log lines of several datasources, oldest first."""

    items: list[NamedLine]
    before: int | None = None  # Leads to the page before this one. None: there is none.


class Share(Answer):
    """How many streams a node has."""

    name: str
    streams: int
    registry_problem: str | None = None  # What is wrong with its registry file.


class Overview(Answer):
    """What the console's first page shows, or what has changed of it."""

    datasources: list[Summary]
    nodes: list[Share]
    at_s: float  # When it was read, in Unix time.
    is_whole: bool = True  # False: `datasources` are those that changed since the event before, with what changed.
    gone: list[str] = field(default_factory=list)  # The names of those that were there in the event before.


class OverviewRows(Answer):
    """What a page of the console shows, or what has changed of it."""

    rows: list[Object]  # Datasources as in an overview: whole where they are new here, else what has changed.
    order: list[str] | None  # The names of all rows; None: as in the event before.
    matching: int  # How many fit; no more than `limit` are shown.
    counts: dict[str, int]  # By health, of all that the caller sees.
    written_per_s: float  # Of all that the caller sees.
    nodes: list[Share]
    at_s: float


class Connector(Answer):
    """A connector in one line."""

    name: str
    summary: str
    sides: list[str]  # Of source, sink, reader and writer, those it has; empty if it cannot be loaded.
    promises: dict[str, str] = field(default_factory=dict)  # Of source and sink: how often a record arrives.
    install: str = ""  # The command that brings what it needs and this node does not have.


class Connectors(Answer):
    """All connectors."""

    items: list[Connector]


class ConnectorOptions(Answer, omit_defaults=True):
    """A connector with the JSON Schema of its options."""

    name: str
    summary: str
    runs: str
    source: Object | None = None
    sink: Object | None = None
    transactional: bool | None = None
    schemes: list[str] | None = None  # Of the URLs that a dump opens with it.
    promises: dict[str, str] = field(default_factory=dict)  # Of source and sink: how often a record arrives.
    install: str = ""  # The command that brings what it needs and this node does not have.


class Publish(Request):
    """Publish the draft, if it is the one that was seen."""

    hash: str | None = None
    accept: bool = False  # Even if it changes what its fixtures expect, which then expect what it gives.
    connect: bool = False  # Only if its source and its sink can be reached.


class Rollback(Request):
    """Publish an old version again."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Backfill(Request):
    """Send old records through a datasource."""

    source: str | None = field(name="from", default=None)  # The URL of a storage; default: the source's own history.
    table: str | None = None
    workers: int | None = None
    chunk_rows: int | None = None
    rate: str | None = None

"""Bodies of requests about dumps. What a node answers is in `runtime/dumps/views.py`: commands show the same."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from headgate.web.bodies import Request


class BeginDump(Request):
    """A new dump, as in `headgate dump`. URLs are as the nodes see them."""

    source: str
    target: str
    tables: tuple[str, ...] = ()  # Empty: all. `name=target` renames.
    mode: Literal["append", "replace", "upsert"] = "append"
    workers: int = 2
    chunk_rows: int | None = None  # None: as many as take about three seconds.
    rate: str | None = None
    source_timeout_s: float | None = None  # None: as the node's settings say.
    key: tuple[str, ...] = ()
    include: tuple[str, ...] = ()  # Only these tables and schemas, by patterns.
    exclude: tuple[str, ...] = ()  # What stays behind: tables and schemas, by patterns, or columns.
    schema_only: bool = False  # Everything but the rows.
    data_only: bool = False  # Only the rows, into tables that are there.
    owners: bool = True  # Objects belong to whom they belong at the source.
    privileges: bool = True  # Grants are copied.
    columns: dict[str, str] = field(default_factory=dict)  # Types of columns.
    since: tuple[str, ...] = ()  # Only rows after this key.
    yes: bool = False  # Append to tables that have rows.
    spread: bool = False  # All nodes work on it.


class Retry(Request):
    """Which chunks are tried again."""

    chunks: str  # Such as `3,7-9`.
    table: str | None = None  # Needed if the dump has several.


class SetRate(Request):
    """How fast a dump may go."""

    rate: str | None  # None: as fast as it goes.


class Verify(Request):
    """How a dump is compared."""

    repair: bool = False  # Copy again what differs.

"""Datasources and their versions. Every change takes the next revision first, which also puts changes in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from headgate.core.lifecycle import Wanted
from headgate.core.parts import with_new
from headgate.core.push import PUSH
from headgate.core.reconcile import Entry
from headgate.core.removals import LEFT_ALONE_S
from headgate.ids import as_id, new_id, stream_id
from headgate.slices import made_of
from headgate.store.database import Database, Horizon, Row, Session, sql
from headgate.store.events import Event, append

LEFT_ALONE = timedelta(seconds=LEFT_ALONE_S)

Section: TypeAlias = dict[str, Any]
"""One section of a document, as its author wrote it: JSON that the connector's options give a type."""


@dataclass(frozen=True, slots=True)
class Content:
    """What an author writes: the part of a datasource that has versions."""

    source: Section
    mapping: Section | None
    sink: Section
    options: Section
    secrets: tuple[str, ...]  # The names it refers to.
    hash: str


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a datasource."""

    datasource: UUID
    number: int
    status: str
    content: Content
    author: str
    reason: str | None  # Why it was rejected.
    created_at: datetime
    is_trusted: bool = False  # An admin published it: what is written in it may be reached.


@dataclass(frozen=True, slots=True)
class Datasource:
    """One row of the registry."""

    id: UUID
    name: str
    enabled: bool
    published_version: int | None
    running_version: int | None
    revision: int
    restarts: int
    quarantine: str | None
    created_at: datetime
    streams: int = 1  # How many streams should read it,
    dealt: int = 1  # and how many do.
    dealing: bool = False  # They are stopping, so that there can be more or fewer.
    paused: bool = False  # Nobody reads it; its doors are open. What is stopped is not paused.


@dataclass(frozen=True, slots=True)
class AtRest:
    """Why the streams that nodes run for a datasource do nothing, if they do nothing."""

    finished: bool  # The sources of all of them have ended.
    quarantined: bool  # At least one of them is.


@dataclass(frozen=True, slots=True)
class Stake:
    """What would be lost with a datasource."""

    payloads: int  # That were answered 202, and that its sink is not known to have.
    letters: int  # Open ones.
    dumps: list[UUID]  # That are not over.

    def __bool__(self) -> bool:
        return bool(self.payloads or self.letters or self.dumps)


@dataclass(frozen=True, slots=True)
class SecretUser:
    """A version that refers to a secret; or a deleted datasource whose sink is yet to be cleaned with it."""

    datasource: UUID
    name: str
    version: int
    status: str  # Of the version: draft, published, superseded, rejected; or `deleted`, which is the datasource.
    is_running: bool  # A node runs it now.


class Change:
    """One transaction on the registry, under one revision, with its events."""

    def __init__(self, connection: Session, revision: int, actor: str) -> None:
        self._connection = connection
        self._events: list[Event] = []
        self._actor = actor
        self.revision = revision

    def event(self, datasource: Datasource | None, type: str, **payload: object) -> None:
        """Record what happened; written last, in the same transaction."""
        id, name = (datasource.id, datasource.name) if datasource else (None, None)
        self._events.append(Event(id, name, type, payload, self._actor))

    async def finish(self) -> None:
        """Write the events."""
        await append(self._connection, self._events)

    async def create(self, name: str, enabled: bool) -> Datasource:
        """A new datasource with one stream and no version."""
        id = new_id()
        await self._connection.execute(sql("datasources/insert"), id, name, enabled, self.revision)
        await self._connection.execute(sql("streams/insert"), stream_id(id, 0), id, 0)
        found = await self.find(name)
        assert found is not None
        return found

    async def find(self, name: str) -> Datasource | None:
        """The datasource as it is now; the revision's lock keeps it so until we commit."""
        row = await self._connection.fetchrow(sql("datasources/find"), name)
        return _datasource(row) if row else None

    async def find_by_id(self, id: UUID) -> Datasource | None:
        """The same, by id."""
        row = await self._connection.fetchrow(sql("datasources/find_by_id"), id)
        return _datasource(row) if row else None

    async def draft(self, datasource: UUID) -> Version | None:
        """The draft, if there is one."""
        row = await self._connection.fetchrow(sql("versions/find_draft"), datasource)
        return _version(row) if row else None

    async def version(self, datasource: UUID, number: int | None) -> Version | None:
        """One version."""
        row = await self._connection.fetchrow(sql("versions/find"), datasource, number)
        return _version(row) if row else None

    async def put_draft(self, datasource: UUID, content: Content, author: str) -> int:
        """Write the draft, in place of the one there may be. Returns its number."""
        fields = _fields(content)
        number = await self._connection.fetchval(sql("versions/rewrite_draft"), datasource, *fields, author)
        if number is None:
            number = await self._connection.fetchval(sql("versions/insert"), datasource, "draft", *fields, author)
        return int(number)

    async def publish_draft(self, datasource: UUID, number: int, *, is_trusted: bool = False) -> None:
        """The draft becomes the published version."""
        await self._connection.execute(sql("versions/supersede"), datasource)
        await self._connection.execute(sql("versions/set_status"), datasource, number, "published", None)
        await self._connection.execute(sql("versions/trust"), datasource, number, is_trusted)
        await self._connection.execute(sql("datasources/set_published"), datasource, number, self.revision)

    async def publish_content(
        self, datasource: UUID, content: Content, author: str, *, is_trusted: bool = False
    ) -> int:
        """Publish this content under a new number; a draft there may be stays."""
        await self._connection.execute(sql("versions/supersede"), datasource)
        fields = _fields(content)
        number = await self._connection.fetchval(sql("versions/insert"), datasource, "published", *fields, author)
        await self._connection.execute(sql("versions/trust"), datasource, number, is_trusted)
        await self._connection.execute(sql("datasources/set_published"), datasource, number, self.revision)
        return int(number)

    async def reject(self, datasource: UUID, number: int, reason: str) -> bool:
        """Horizon a published version as tried and failed. False if it is not the published one any more."""
        status = await self._connection.execute(sql("versions/reject"), datasource, number, reason)
        await self._touch(datasource)
        return bool(status != "UPDATE 0")

    async def set_running(self, datasource: UUID, number: int) -> bool:
        """Write down which version has proved itself. False if that was known."""
        status = await self._connection.execute(sql("datasources/set_running"), datasource, number, self.revision)
        return bool(status != "UPDATE 0")

    async def set_enabled(self, datasource: UUID, enabled: bool) -> None:
        """Whether it should run. A pause ends either way."""
        await self._connection.execute(sql("datasources/set_enabled"), datasource, enabled, self.revision)
        if enabled:
            await self._connection.execute(sql("streams/begin_again"), datasource)

    async def pause(self, datasource: UUID) -> None:
        """Nobody reads it from now on, and its doors are open."""
        await self._connection.execute(sql("datasources/pause"), datasource, self.revision)

    async def at_rest(self, datasource: UUID) -> AtRest:
        """Whether its streams have nothing left to do, or may not do it."""
        (row,) = await self._connection.fetch(sql("streams/at_rest"), datasource)
        return AtRest(row["finished"], row["quarantined"])

    async def restart(self, datasources: list[UUID]) -> None:
        """Have these start over; a rejected version gets another chance, and a quarantine ends."""
        await self._connection.execute(sql("datasources/restart"), datasources, self.revision)
        await self._connection.execute(sql("versions/forgive"), datasources)

    async def quarantine(self, datasource: UUID, reason: str) -> None:
        """Quarantine it on all nodes."""
        await self._connection.execute(sql("datasources/quarantine"), datasource, reason, self.revision)

    async def stake(self, datasource: UUID, webhook: str) -> Stake:
        """What a delete would lose. `webhook` is the source identity of every webhook."""
        return _stake(await self._connection.fetch(sql("datasources/stake"), datasource, webhook))

    async def delete(self, datasource: UUID) -> None:
        """Delete; its name is free at once, its streams go when nobody holds them, and its dumps are given up."""
        await self._connection.execute(sql("datasources/delete"), datasource, self.revision)
        await self._connection.execute(sql("dumps/abandon"), datasource)

    async def using_secret(self, name: str) -> list[UUID]:
        """The datasources whose versions refer to a secret."""
        return [row["id"] for row in await self._connection.fetch(sql("datasources/using_secret"), name)]

    async def secret_users(self, name: str) -> list[SecretUser]:
        """Everything that refers to a secret: drafts, too, and what is yet to be removed from sinks."""
        rows = await self._connection.fetch(sql("versions/using_secret"), name)
        return [SecretUser(row["id"], row["name"], row["number"], row["status"], row["is_running"]) for row in rows]

    async def execute(self, verb: str, *args: object) -> int:
        """Another noun's statement in this same transaction. Returns how many rows it returned."""
        return len(await self._connection.fetch(sql(verb), *args))

    async def _touch(self, datasource: UUID) -> None:
        await self._connection.execute(
            "UPDATE headgate.datasource SET revision = $2 WHERE id = $1", datasource, self.revision
        )


class Datasources:
    """Reads, and the door to changes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def change(self, actor: str) -> AsyncIterator[Change]:
        """One change of the registry: one transaction, one revision."""
        async with self._database.transaction() as connection:
            revision = await connection.fetchval(sql("registry/take_revision"))
            change = Change(connection, revision, actor)
            yield change
            await change.finish()

    async def connectors(self) -> list[str]:
        """The names of the connectors that datasources use."""
        return [row["name"] for row in await self._database.fetch(sql("datasources/connectors")) if row["name"]]

    async def installation(self) -> UUID:
        """The id that tells this registry from all others."""
        (row,) = await self._database.fetch(sql("registry/read"))
        found: UUID = row["installation"]
        return found

    async def moment(self) -> tuple[int, Horizon]:
        """The revision of the last change of any datasource; and a mark, for `changed`."""
        (row,) = await self._database.fetch(sql("registry/moment"))
        return row["revision"], Horizon(row["lineage"], row["xid"])

    async def find(self, name: str) -> Datasource | None:
        """By name, or by id as text."""
        row = await self._database.fetchrow(sql("datasources/find"), name)
        if row is None and (id := as_id(name)) is not None:
            row = await self._database.fetchrow(sql("datasources/find_by_id"), id)
        return _datasource(row) if row else None

    async def all(self) -> list[Datasource]:
        """All, by name."""
        return await made_of(await self._database.fetch(sql("datasources/list")), _datasource)

    async def changed(self, mark: Horizon) -> tuple[list[Datasource], set[UUID]]:
        """Those that have changed since a mark, they or what is published of them; and which have been deleted. It may
        be too many, if a transaction takes long, and never is too few."""
        rows = await self._database.fetch(sql("datasources/changed"), mark.xid)
        there = [row for row in rows if not row["deleted"]]
        return await made_of(there, _datasource), {row["id"] for row in rows if row["deleted"]}

    async def entries_since(self, revision: int) -> list[Entry]:
        """What changed after this revision, for reconciling; deleted ones included."""
        return [_entry(row) for row in await self._database.fetch(sql("datasources/entries_since"), revision)]

    async def version(self, datasource: UUID, number: int | None) -> Version | None:
        """One version."""
        row = await self._database.fetchrow(sql("versions/find"), datasource, number)
        return _version(row) if row else None

    async def draft(self, datasource: UUID) -> Version | None:
        """The draft, if there is one."""
        row = await self._database.fetchrow(sql("versions/find_draft"), datasource)
        return _version(row) if row else None

    async def versions(self, datasource: UUID) -> list[Version]:
        """All versions, oldest first."""
        return [_version(row) for row in await self._database.fetch(sql("versions/list"), datasource)]

    async def published(self, datasources: Sequence[UUID] | None = None) -> dict[UUID, Version]:
        """The published version of every datasource, or of each of these."""
        found = await made_of(await self._database.fetch(sql("versions/list_published"), datasources), _version)
        return {version.datasource: version for version in found}

    async def with_draft(self) -> set[UUID]:
        """Those that have a draft."""
        return {row["datasource"] for row in await self._database.fetch(sql("versions/list_drafts"))}

    async def stake(self, datasource: UUID, webhook: str) -> Stake:
        """What a delete would lose now. `webhook` is the source identity of every webhook."""
        return _stake(await self._database.fetch(sql("datasources/stake"), datasource, webhook))

    async def list_parts(self, datasource: UUID, found: Sequence[str]) -> list[str]:
        """The parts of a datasource's source in the order of first sight, with those that were found just now."""
        known = _parts(await self._database.fetchval(sql("datasources/read_parts"), datasource))
        if set(found) <= set(known):
            return known
        async with self._database.transaction() as connection:
            known = _parts(await connection.fetchval(sql("datasources/lock_parts"), datasource))
            listed = with_new(known, found)
            await connection.execute(sql("datasources/set_parts"), datasource, msgspec.json.encode(listed).decode())
        return listed

    async def purge(self) -> int:
        """Remove what deleted datasources left behind, and note what is to be removed from their sinks."""
        return int(await self._database.fetchval(sql("datasources/purge_streams"), LEFT_ALONE))


def _stake(rows: Sequence[Row]) -> Stake:
    return Stake(rows[0]["payloads"], rows[0]["letters"], rows[0]["dumps"])


def _parts(text: str | None) -> list[str]:
    return [] if text is None else msgspec.json.decode(text, type=list[str])


def _fields(content: Content) -> tuple[object, ...]:
    def text(value: object) -> str:
        return msgspec.json.encode(value).decode()

    mapping = None if content.mapping is None else text(content.mapping)
    parts = (text(content.source), mapping, text(content.sink), text(content.options))
    return (*parts, list(content.secrets), content.hash)


def _datasource(row: Row) -> Datasource:
    return Datasource(**{name: row[name] for name in Datasource.__slots__})


def _version(row: Row) -> Version:
    decode = msgspec.json.decode
    content = Content(
        source=decode(row["source"]),
        mapping=None if row["mapping"] is None else decode(row["mapping"]),
        sink=decode(row["sink"]),
        options=decode(row["options"]),
        secrets=tuple(row["secrets"]),
        hash=row["hash"],
    )
    return Version(
        row["datasource"],
        row["number"],
        row["status"],
        content,
        row["author"],
        row["reason"],
        row["created_at"],
        row["is_trusted"],
    )


def _entry(row: Row) -> Entry:
    wanted = None
    if row["published_version"] is not None:
        rejected = row["published_status"] == "rejected"
        wanted = Wanted(row["published_version"], row["running_version"], row["restarts"], rejected)
    return Entry(
        row["id"],
        row["name"],
        row["revision"],
        row["enabled"],
        row["deleted"],
        wanted,
        is_to_run=row["is_to_run"],
        is_pushed=row["source_type"] == PUSH,
        dealt=row["dealt"],
        is_dealing=row["dealing"],
        is_paused=row["paused"],
    )

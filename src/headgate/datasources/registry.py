"""The registry as the rest of Headgate sees it: what should run, and everything that people may do to it.

Reads that a running node needs are cached by revision: `sync` asks for what changed since the last revision it saw, so
it costs the same with ten datasources or ten thousand. Writes are one transaction each, validated as a whole before it
begins, recorded with their actor, and followed by a wake-up.
"""

from __future__ import annotations

import bisect
import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from headgate.clock import boot_s
from headgate.connectors.api import INBOX_IDENTITY
from headgate.core.reach import Kind
from headgate.core.reconcile import Entry
from headgate.datasources import functions
from headgate.datasources.documents import MOST_PROBLEMS, Document, Documents, apart
from headgate.datasources.listing import Listing
from headgate.datasources.planned import PlannedChange, planned
from headgate.datasources.prepared import (
    Prepared,
    SinkSide,
    check,
    prepare,
    prepare_sink,
    sink_kind_of,
    written_out,
)
from headgate.datasources.reaching import NodeReach, Reaching, checked
from headgate.datasources.references import Secrets as Values
from headgate.datasources.references import Unread
from headgate.datasources.stakes import counts_of, refused_deletes, refused_secret
from headgate.errors import ConfigError, NotFound, Problem, Refused
from headgate.hidden import remember
from headgate.ids import as_id, is_name
from headgate.store.allowed import Allowed
from headgate.store.database import Database
from headgate.store.datasources import Change, Content, Datasource, Datasources, SecretUser, Stake, Version
from headgate.store.events import Event, Events
from headgate.store.secrets import Secrets
from headgate.store.states import State, States
from headgate.store.wake import Waker

SYSTEM = "headgate"  # The actor of what Headgate does by itself.
PROOFS = 200  # In one transaction: others wait for it.
REACHING_S = 1.0  # How long the lists of what may be reached are taken as read: a thousand streams start at once.
MOST_COMPARED = 100  # Names, for one that is close to a mistyped one: each takes up to 0.1 ms.


@dataclass(frozen=True, slots=True)
class Config:
    """A version that can be run, secrets included. It never leaves this process."""

    datasource: UUID
    name: str
    version: int
    prepared: Prepared


class Registry:
    """Datasources, versions, secrets, state and events."""

    def __init__(
        self, database: Database, secrets: Secrets, waker: Waker, *, read_only: str = "", node: NodeReach | None = None
    ) -> None:
        self.datasources = Datasources(database)
        self.listing = Listing(self.datasources)
        self.allowed = Allowed(database)
        self._node = node or NodeReach()  # What the settings of this node leave of the lists.
        self._reaching: tuple[float, Reaching] | None = None  # Until when.
        self.secrets = secrets
        self.events = Events(database)
        self.states = States(database)
        self.waker = waker
        self._read_only = read_only  # Why the registry takes no writes, if it takes none.
        self._entries: dict[UUID, Entry] = {}
        self._by_name: dict[str, UUID] = {}
        self._revision = 0

    # What a node needs.

    async def sync(self) -> list[Entry]:
        """What changed since the last call; the cache follows."""
        changed = await self.datasources.entries_since(self._revision)
        for entry in changed:
            self._revision = max(self._revision, entry.revision)
            if entry.deleted:
                self._entries.pop(entry.datasource, None)
                if self._by_name.get(entry.name) == entry.datasource:
                    del self._by_name[entry.name]
            else:
                self._entries[entry.datasource] = entry
                self._by_name[entry.name] = entry.datasource
        return changed

    def forget(self) -> None:
        """Forget everything: the next sync reads it all again."""
        self._entries, self._by_name = {}, {}
        self._revision = 0
        self.listing.forget()

    def list_active_datasources(self) -> list[Entry]:
        """Those that should run, as of the last sync."""
        return [entry for entry in self._entries.values() if entry.is_to_run]

    @property
    def revision(self) -> int:
        """Of the last sync."""
        return self._revision

    def names(self) -> Collection[str]:
        """Of all datasources, as of the last sync."""
        return self._by_name.keys()

    def entry(self, name: str) -> Entry | None:
        """One by name, as of the last sync."""
        id = self._by_name.get(name)
        return None if id is None else self._entries.get(id)

    def entry_of(self, datasource: UUID) -> Entry | None:
        """One by id, as of the last sync."""
        return self._entries.get(datasource)

    async def get_datasource_config(self, id: UUID, version: int) -> Config:
        """A version to run, with its secrets decrypted. Raises ConfigError if it cannot be run here."""
        found = await self.datasources.version(id, version)
        if found is None:
            raise NotFound(f"version {version} is gone")
        entry = self._entries.get(id)
        values = await self.secrets.read(list(found.content.secrets))
        reaching = await self.reaching()
        guard = reaching.guard(is_trusted=found.is_trusted)
        if "python" in (found.content.mapping or {}):  # To import a module may take long.
            await functions.import_early([(found.content.mapping, guard)])
            prepared = await apart(prepare, found.content, values, "", guard)
        else:
            prepared = prepare(found.content, values, "", guard)
        prepared = reaching.guarded(prepared, found.content, is_trusted=found.is_trusted)
        return Config(id, entry.name if entry else str(id), version, prepared)

    async def get_forgetting_sink(self, id: UUID, version: int) -> SinkSide | None:
        """The sink of a version, of a deleted datasource too; None: it keeps nothing that it could forget. Raises
        ConfigError if it cannot be built here."""
        found = await self.datasources.version(id, version)
        if found is None:
            raise NotFound(f"version {version} is gone")
        kind = sink_kind_of(found.content)
        if kind is not None and not kind.forgets:
            return None
        sink = prepare_sink(found.content, await self.secrets.read(list(found.content.secrets)))
        return (await self.reaching()).guarded_sink(sink, found.content, is_trusted=found.is_trusted)

    async def reaching(self) -> Reaching:
        """What documents may reach from this node. A change of the lists is known within a second."""
        if self._reaching is None or self._reaching[0] <= boot_s():
            self._reaching = boot_s() + REACHING_S, Reaching.of(await self.allowed.all(), self._node)
        return self._reaching[1]

    async def list_parts(self, id: UUID, found: Sequence[str]) -> list[str]:
        """The parts of a source in the order of first sight, with those that a run has found just now."""
        return await self.datasources.list_parts(id, found)

    async def update_state(self, node: UUID, states: list[State]) -> set[UUID]:
        """What the streams of this node do. Returns those whose state was taken: a stale holder's is not."""
        taken = await self.states.save(node, states)
        self.waker.wake("states")
        return taken

    async def record_event(self, id: UUID, type: str, payload: Mapping[str, object], actor: str = SYSTEM) -> None:
        """Something happened to a datasource."""
        await self.record_events([(id, type, payload)], actor)

    async def record_events(
        self, events: Iterable[tuple[UUID, str, Mapping[str, object]]], actor: str = SYSTEM
    ) -> None:
        """The same for many, in one transaction."""
        names = self._entries
        await self.events.record(
            [Event(id, names[id].name if id in names else None, type, load, actor) for id, type, load in events]
        )
        self.waker.wake("events")

    async def prove(self, proofs: dict[UUID, int]) -> None:
        """These versions have proved themselves: many at once, as when a thousand datasources are new."""
        left = list(proofs.items())
        while left:
            some, left = left[:PROOFS], left[PROOFS:]
            async with self.datasources.change(SYSTEM) as change:
                for id, version in some:
                    if await change.set_running(id, version):
                        change.event(await change.find_by_id(id), "proved", version=version)
            self._woken(change)

    async def reject(self, id: UUID, version: int, reason: str) -> None:
        """This version was tried and failed."""
        async with self.datasources.change(SYSTEM) as change:
            if await change.reject(id, version, reason):
                change.event(await change.find_by_id(id), "rejected", version=version, reason=reason)
        self._woken(change)

    # What people do.

    async def get(self, name: str) -> Datasource:
        """By name or id."""
        found = await self.datasources.find(name)
        if found is None:
            raise _no_datasource(name, self._by_name)
        return found

    async def create(self, document: Document, actor: str) -> Datasource:
        """A new datasource with a draft. Its problems, if any, come up at `validate` and `publish`; but a password is
        never stored."""
        self._writable()
        _refuse_written_out(document.content)
        async with self.datasources.change(actor) as change:
            if await change.find(document.name) is not None:
                raise Refused(f"datasource {document.name!r} exists", code="exists", hint="edit its draft instead")
            created = await change.create(document.name, document.enabled)
            number = await change.put_draft(created.id, document.content, actor)
            change.event(created, "created", version=number, hash=document.content.hash)
        self._woken(change)
        return created

    async def put_draft(self, name: str, content: Content, actor: str, expected_hash: str | None = None) -> Version:
        """Write the draft. `expected_hash` is what the author saw: the draft, or the published version without one."""
        self._writable()
        _refuse_written_out(content)
        async with self.datasources.change(actor) as change:
            found = await self._locked(change, name)
            seen = await change.draft(found.id) or await change.version(found.id, found.published_version)
            _compare(expected_hash, seen.content.hash if seen else None)
            number = await change.put_draft(found.id, content, actor)
            change.event(found, "drafted", version=number, hash=content.hash)
            draft = await change.version(found.id, number)
        self._woken(change)
        assert draft is not None
        return draft

    async def problems(self, content: Content, *, reads_secrets: bool = True, is_admin: bool) -> list[Problem]:
        """Everything that is wrong with this content. Without `reads_secrets` no value is looked at. For others than
        admins, it is wrong to name what is on no list."""
        values = await self._values(content.secrets, reads_secrets=reads_secrets)
        return await _found_problems({"": content}, values, await self.reaching(), is_admin)

    async def publish(self, name: str, actor: str, expected_hash: str | None = None, *, is_admin: bool) -> Version:
        """Validate the draft as a whole and make it the published version."""
        self._writable()
        found = await self.get(name)
        draft = await self.datasources.draft(found.id)
        if draft is None:
            raise Refused(f"datasource {found.name!r} has no draft", code="no_draft", hint="write one first")
        _compare(expected_hash, draft.content.hash)
        if problems := await self.problems(draft.content, is_admin=is_admin):
            raise ConfigError(problems)
        async with self.datasources.change(actor) as change:
            current = await change.draft(found.id)
            _compare(draft.content.hash, current.content.hash if current else None)
            await change.publish_draft(found.id, draft.number, is_trusted=is_admin)
            change.event(found, "published", version=draft.number, hash=draft.content.hash)
        self._woken(change)
        return replace(draft, status="published")

    async def rollback(self, name: str, number: int, actor: str, *, is_admin: bool) -> Version:
        """Publish an old version's content under a new number, so that history stays a line. What an admin published
        once may be published again by others."""
        self._writable()
        found = await self.get(name)
        old = await self.datasources.version(found.id, number)
        if old is None or old.status == "draft":
            raise NotFound(f"datasource {found.name!r} has no published version {number}", hint="headgate ds show NAME")
        is_trusted = is_admin or old.is_trusted
        if problems := await self.problems(old.content, is_admin=is_trusted):
            raise ConfigError(problems)
        async with self.datasources.change(actor) as change:
            new = await change.publish_content(found.id, old.content, actor, is_trusted=is_trusted)
            change.event(found, "rolled_back", version=new, to=number, hash=old.content.hash)
            version = await change.version(found.id, new)
        self._woken(change)
        assert version is not None
        return version

    async def set_enabled(self, name: str, enabled: bool, actor: str) -> Datasource:
        """Start or stop. Doing it twice changes nothing; nor does enabling what is paused, which only a start ends."""
        self._writable()
        async with self.datasources.change(actor) as change:
            found = await self._locked(change, name)
            if found.enabled != enabled:
                await change.set_enabled(found.id, enabled)
                change.event(found, "started" if enabled else "stopped")
        self._woken(change)
        return found if found.enabled == enabled else replace(found, enabled=enabled, paused=False)

    async def start(self, name: str, actor: str) -> Datasource:
        """Have it run. A pause and a quarantine end; what cannot run says why. Starting what runs changes nothing."""
        self._writable()
        async with self.datasources.change(actor) as change:
            found = await self._locked(change, name)
            if found.published_version is None:
                reason = f"datasource {found.name!r} has no published version"
                raise Refused(reason, code="unpublished", hint=f"headgate ds publish {found.name}")
            rest = await change.at_rest(found.id)
            is_on = found.enabled and not found.paused
            if is_on and rest.finished:
                again = f"headgate streams set-position {found.name}:0 null reads it again from the beginning"
                again += f"; headgate ds restart {found.name} looks for more"
                reason = f"datasource {found.name!r} is finished: its source has ended"
                raise Refused(reason, code="finished", hint=again)
            if not is_on:
                await change.set_enabled(found.id, True)
                change.event(found, "started")
            if found.quarantine is not None or rest.quarantined:
                await change.restart([found.id])
                change.event(found, "restarted")
        self._woken(change)
        return replace(found, enabled=True, paused=False, quarantine=None)

    async def pause(self, name: str, actor: str) -> Datasource:
        """Have nobody read it while its doors take what comes; from a stop, too. Pausing it twice changes nothing."""
        self._writable()
        async with self.datasources.change(actor) as change:
            found = await self._locked(change, name)
            if not found.paused:
                await change.pause(found.id)
                change.event(found, "paused")
        self._woken(change)
        return replace(found, enabled=True, paused=True)

    async def restart(self, name: str, actor: str) -> Datasource:
        """Restart. A quarantine ends, and a rejected version gets another chance."""
        async with self.datasources.change(actor) as change:
            found = await self._locked(change, name)
            await change.restart([found.id])
            change.event(found, "restarted")
        self._woken(change)
        return found

    async def reload(self, name: str, actor: str) -> Datasource:
        """Have all nodes read this datasource's configuration now."""
        found = await self.get(name)
        await self.events.record([Event(found.id, found.name, "reloaded", {}, actor)])
        self.waker.wake("registry")
        self.waker.wake("events")
        return found

    async def stake(self, name: str) -> tuple[Datasource, Stake]:
        """What a delete would lose."""
        found = await self.get(name)
        return found, await self.datasources.stake(found.id, INBOX_IDENTITY)

    async def delete(self, name: str, actor: str, *, yes: bool = False) -> None:
        """Delete a datasource; its streams go when they have stopped. `yes`: even if that loses something."""
        self._writable()
        async with self.datasources.change(actor) as change:
            await self._delete(change, [await self._locked(change, name)], yes=yes)
        self._woken(change)

    async def _delete(self, change: Change, doomed: Sequence[Datasource], *, yes: bool) -> None:
        stakes = {one.name: await change.stake(one.id, INBOX_IDENTITY) for one in doomed}
        if not yes and any(stakes.values()):
            raise refused_deletes({name: stake for name, stake in stakes.items() if stake})
        for one in doomed:
            await change.delete(one.id)
            change.event(one, "deleted", **{what: n for what, n in counts_of(stakes[one.name]).items() if n})

    async def quarantine(self, id: UUID, reason: str) -> None:
        """Quarantine it on all nodes until somebody acts."""
        async with self.datasources.change(SYSTEM) as change:
            await change.quarantine(id, reason)
            change.event(await change.find_by_id(id), "quarantined", reason=reason)
        self._woken(change)

    # Many at once.

    async def export(self) -> list[Document]:
        """Every published datasource, as it would be imported."""
        published = await self.datasources.published()
        return [
            Document(found.name, found.enabled, published[found.id].content)
            for found in await self.datasources.all()
            if found.id in published
        ]

    async def plan(
        self,
        documents: dict[str, Document],
        *,
        prune: bool = False,
        reads_secrets: bool = True,
        is_admin: bool,
    ) -> list[PlannedChange]:
        """What applying would do. Raises all problems of all documents."""
        names = {name for document in documents.values() for name in document.content.secrets}
        values = await self._values(names, reads_secrets=reads_secrets)
        present = {document.name: document for document in await self.export()}
        contents = {f"datasources.{name}": document.content for name, document in documents.items()}
        # What stays as it is was published before, by whom it may.
        kept = {
            f"datasources.{name}"
            for name, document in documents.items()
            if name in present and present[name].content.hash == document.content.hash
        }
        reaching = await self.reaching()
        problems = await _found_problems(contents, values, reaching, is_admin, kept)
        if isinstance(documents, Documents):
            problems = await apart(documents.all_problems, problems)
        if problems:
            raise ConfigError(problems)
        existing = {found.name for found in await self.datasources.all()}
        changes = [
            planned(present.get(name), document, exists=name in existing) for name, document in documents.items()
        ]
        if prune:
            changes += [PlannedChange(name, "delete", []) for name in sorted(existing - set(documents))]
        return changes

    async def apply(
        self, documents: dict[str, Document], actor: str, *, prune: bool = False, yes: bool = False, is_admin: bool
    ) -> list[PlannedChange]:
        """Do it, all in one transaction. `yes`: even if what it deletes loses something."""
        self._writable()
        return await self.adopt(documents, actor, prune=prune, yes=yes, is_admin=is_admin)

    async def adopt(
        self, documents: dict[str, Document], actor: str, *, prune: bool = False, yes: bool = False, is_admin: bool
    ) -> list[PlannedChange]:
        """The same for a registry that is a file, and takes no other writes. Who writes that file is an admin."""
        changes = await self.plan(documents, prune=prune, is_admin=is_admin)
        if all(planned.action == "keep" for planned in changes):
            return changes
        async with self.datasources.change(actor) as change:
            doomed = [await self._locked(change, one.name) for one in changes if one.action == "delete"]
            await self._delete(change, doomed, yes=yes)
            for planned in changes:
                if planned.action not in ("delete", "keep"):
                    await self._apply_one(change, documents[planned.name], actor, is_admin)
        self._woken(change)
        return changes

    async def _apply_one(self, change: Change, document: Document, actor: str, is_admin: bool) -> None:
        found = await change.find(document.name)
        if found is None:
            found = await change.create(document.name, document.enabled)
            change.event(found, "created")
        elif found.enabled != document.enabled:
            await change.set_enabled(found.id, document.enabled)
            change.event(found, "started" if document.enabled else "stopped")
        published = await change.version(found.id, found.published_version)
        if published is None or published.content.hash != document.content.hash:
            number = await change.publish_content(found.id, document.content, actor, is_trusted=is_admin)
            change.event(found, "published", version=number, hash=document.content.hash)

    # What may be reached.

    async def allow(self, kind: Kind, value: str, actor: str) -> str:
        """Add a line to the lists of what documents may reach. Returns it as it is kept."""
        line = checked(kind, value)
        async with self.datasources.change(actor) as change:
            if await change.execute("allowed/add", kind, line, actor):
                change.event(None, "allowed", kind=kind, value=line)
        self._reaching = None
        self._woken(change)
        return line

    async def disallow(self, kind: Kind, value: str, actor: str) -> None:
        """Remove a line. What runs goes on; it is judged again when it starts next."""
        async with self.datasources.change(actor) as change:
            # A value with a zero byte cannot be on it, and cannot be asked for either.
            if "\0" in value or not await change.execute("allowed/remove", kind, value):
                raise NotFound(f"{kind} {value[:200]!r} is not on the list", hint="headgate allow list")
            change.event(None, "disallowed", kind=kind, value=value)
        self._reaching = None
        self._woken(change)

    # Secrets.

    async def set_secret(self, name: str, value: str, actor: str) -> list[UUID]:
        """Write a secret. The workers that use it restart. Returns their datasources."""
        if not is_name(name):
            raise ConfigError([Problem("name", f"{name!r} is not a name", "lower case, digits, - and _")])
        if self.secrets.keyring is None:
            raise ConfigError("the master key is not set", hint="set HEADGATE_MASTER_KEY")
        remember(value)
        sealed = self.secrets.keyring.seal(name, value)
        async with self.datasources.change(actor) as change:
            await change.execute("secrets/put", name, *sealed, actor)
            users = await change.using_secret(name)
            if users:
                await change.restart(users)
            change.event(None, "secret_changed", secret=name)
        self._woken(change)
        return users

    async def delete_secret(self, name: str, actor: str, *, yes: bool = False) -> list[SecretUser]:
        """Delete a secret that nothing uses; with `yes`, one that something uses. Returns who does.

        What runs goes on with the value that it has. It fails when it starts next, so its events say why.
        """
        async with self.datasources.change(actor) as change:
            users = await change.secret_users(name)
            if not await change.execute("secrets/delete", name):
                raise NotFound(f"secret {name!r} does not exist", hint="headgate secrets list")
            is_told_with = bool(await change.execute("notifications/naming", name))
            if (users or is_told_with) and not yes:
                raise refused_secret(name, users, is_told_with=is_told_with)
            change.event(None, "secret_deleted", secret=name)
            for id in dict.fromkeys(user.datasource for user in users if user.status != "deleted"):
                change.event(await change.find_by_id(id), "secret_deleted", secret=name)
        self._woken(change)
        return users

    # Inside.

    async def _values(self, names: Iterable[str], *, reads_secrets: bool) -> Values:
        if reads_secrets:
            return await self.secrets.read(sorted(names))
        return {name: Unread() for name in await self.secrets.known(sorted(names))}

    async def _locked(self, change: Change, name: str) -> Datasource:
        found = await change.find(name)
        if found is None and (id := as_id(name)) is not None:
            found = await change.find_by_id(id)
        if found is None:
            raise _no_datasource(name, self._by_name)
        return found

    def _writable(self) -> None:
        if self._read_only:
            raise Refused(self._read_only, code="read_only")

    def _woken(self, change: Change) -> None:
        self.waker.wake("registry", change.revision)
        self.waker.wake("events")


def _no_datasource(name: str, names: Collection[str]) -> NotFound:
    """With a name that is close to it. Comparing takes long, so of many names only those around it are compared."""
    compared: Sequence[str] = sorted(names)
    if len(compared) > MOST_COMPARED:
        at = bisect.bisect(compared, name)
        compared = compared[max(0, at - MOST_COMPARED // 2) : at + MOST_COMPARED // 2]
    near = difflib.get_close_matches(name, compared, 1)
    hint = f"did you mean {near[0]!r}?" if near else "headgate ds list"
    return NotFound(f"datasource {name!r} does not exist", hint=hint)


async def _found_problems(
    contents: Mapping[str, Content],
    values: Values,
    reaching: Reaching,
    is_admin: bool,
    trusted: Collection[str] = (),
) -> list[Problem]:
    guards = {is_trusted: reaching.guard(is_trusted=is_trusted) for is_trusted in (True, False)}
    named = [(content.mapping, guards[is_admin or path in trusted]) for path, content in contents.items()]
    await functions.import_early(named)
    return await apart(_problems, contents, values, reaching, is_admin, trusted)


def _problems(
    contents: Mapping[str, Content],
    values: Values,
    reaching: Reaching,
    is_admin: bool,
    trusted: Collection[str] = (),
) -> list[Problem]:
    """Everything that is wrong, by the path of each. A large file takes seconds: not on the event loop."""
    problems: list[Problem] = []
    for path, content in contents.items():
        is_trusted = is_admin or path in trusted
        found = check(content, values, path, reaching.guard(is_trusted=is_trusted))
        problems += found.problems + reaching.problems(found, content, path, is_trusted=is_trusted)
        if len(problems) >= MOST_PROBLEMS:
            break
    return problems[:MOST_PROBLEMS]


def _refuse_written_out(content: Content) -> None:
    if problems := written_out(content):
        raise ConfigError(problems)


def _compare(expected: str | None, actual: str | None) -> None:
    if expected is not None and expected != actual:
        raise Refused(
            "the datasource has changed since it was read", code="conflict", hint="read it again, then decide"
        )

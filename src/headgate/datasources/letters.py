"""What people do to the dead letters of a datasource: have them replayed, discard them, edit one.

A replay is the work of the stream's own run; what is written here is the wish. In a sink that keeps one row for each
key, a letter whose key is not known may be older than the row that it would overwrite, so that needs a word more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from headgate.core.letter_keys import key_hash
from headgate.core.replays import Waiting, why_waiting
from headgate.core.source_streams import SourceStreams
from headgate.datasources.prepared import Prepared
from headgate.datasources.registry import Registry
from headgate.errors import ConfigError, NotFound, Refused
from headgate.store.datasources import Datasource
from headgate.store.letters import Filter, Kept, Letters, Numbers


@dataclass(frozen=True, slots=True)
class Replay:
    """A wish to have letters replayed."""

    which: Filter
    with_version: int | None = None  # With the mapping of this version; None: with the present one.
    overwrite: bool = False  # Also those that may be older than the row of their key.


@dataclass(frozen=True, slots=True)
class Asked:
    """What comes of such a wish."""

    letters: int  # They are replayed.
    keyless: int  # Left alone: they may be older than the rows that they would overwrite.
    not_open: int  # Left alone: named, and not open, or not of this datasource.
    waits: str | None  # What stands in the way now.
    before: Numbers  # What had become of all letters when the wish was made.


class LetterBox:
    """The dead letters, as people handle them."""

    def __init__(self, letters: Letters, registry: Registry, installation: UUID) -> None:
        self._letters = letters
        self._registry = registry
        self._installation = installation

    async def replay(self, found: Datasource, wish: Replay, actor: str, *, is_dry: bool = False) -> Asked:
        """Have letters replayed, as soon as a run of their stream can; or, dry, only say how many that would be."""
        if wish.with_version is not None:
            await self._check_version(found, wish.with_version)
        which, any_key = replace(wish.which, datasources=[found.id]), not await self.is_upsert(found)
        before = await self._letters.numbers(found.id)
        open_, keyless = await self._letters.count(which)
        left_alone = 0 if any_key or wish.overwrite else keyless
        if is_dry:
            asked = open_ - left_alone
        else:
            asked = await self._letters.ask(
                which, wish.with_version, overwrite=wish.overwrite, any_key=any_key, actor=actor, name=found.name
            )
            self._wake()
        not_open = 0 if which.ids is None else len(set(which.ids)) - open_
        waits = await self.why_waiting(found) if asked else None
        return Asked(asked, left_alone, not_open, waits, before)

    async def why_waiting(self, found: Datasource) -> str | None:
        """What stands between letters that are to be replayed and their replay; None: nothing does."""
        streams = [Waiting(one.name, one.is_used, one.is_quarantined) for one in await self._letters.waiting(found.id)]
        quarantined = found.quarantine is not None
        return why_waiting(
            found.name,
            is_enabled=found.enabled,
            is_paused=found.paused,
            is_quarantined=quarantined,
            streams=streams,
        )

    async def discard(self, found: Datasource, which: Filter, actor: str, *, everything: bool = False) -> int:
        """Letters that nobody needs. Returns how many. All of them only if that was said."""
        if which.is_empty and not everything:
            hint = "name some by id, stage, field, reason, version or time, or say `all`"
            raise Refused("nothing says which letters are meant", code="which_letters", hint=hint)
        done = await self._letters.discard(replace(which, datasources=[found.id]), actor, found.name)
        self._wake()
        return done

    async def edit(self, id: str, payload: Any, actor: str) -> Kept:
        """Another payload in place of the one that was read."""
        kept, contents = await self._letters.read(id)
        if contents is None:
            raise Refused(f"letter {kept.id} is {kept.outcome}", code="not_open", hint="only open letters are edited")
        prepared = await self._prepared(await self._registry.get(str(kept.datasource)))
        fields = SourceStreams().of(contents.meta).key if prepared.splits else ()
        before, after = (prepared.mapping.key_of(one, contents.meta, fields) for one in (contents.payload, payload))
        key = key_hash(before, self._installation)
        is_same_key = key is not None and key == key_hash(after, self._installation)
        edited = type(contents)(payload, contents.meta, None, contents.only)
        await self._letters.edit(kept, edited, actor, is_same_key=is_same_key)
        self._registry.waker.wake("events")
        return await self._letters.find(str(kept.id))

    async def is_upsert(self, found: Datasource) -> bool:
        """Whether its sink keeps one row for each key, so that an old letter could overwrite a newer row."""
        prepared = await self._prepared(found)
        return prepared.sink_kind.needs_key(prepared.sink_options)

    async def present(self, found: Datasource) -> int:
        """The version that runs, or would run."""
        published = await self._registry.datasources.version(found.id, found.published_version)
        if published is None:
            hint = f"headgate ds publish {found.name}"
            raise Refused(f"datasource {found.name!r} has no published version", code="unpublished", hint=hint)
        is_rejected = published.status == "rejected" and found.running_version is not None
        number = found.running_version if is_rejected else published.number
        assert number is not None
        return number

    async def _prepared(self, found: Datasource) -> Prepared:
        number = await self.present(found)
        try:
            return (await self._registry.get_datasource_config(found.id, number)).prepared
        except ConfigError as error:
            text = f"version {number} of {found.name!r} cannot be used now: {error.message}"
            raise Refused(text, code="unusable", hint=error.hint) from None

    async def _check_version(self, found: Datasource, number: int) -> None:
        version = await self._registry.datasources.version(found.id, number)
        if version is None or version.status == "draft":
            hint = f"headgate ds show {found.name}"
            raise NotFound(f"datasource {found.name!r} has no published version {number}", hint=hint)

    def _wake(self) -> None:
        self._registry.waker.wake("letters")
        self._registry.waker.wake("events")

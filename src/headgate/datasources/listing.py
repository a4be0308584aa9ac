"""All datasources, as lists, metrics and the console show them.

While somebody looks they are asked for once a second, and most of the time nobody has changed anything since. So they
are read again only if the registry has another revision, which every change takes: a publish, a draft, a proof, a stop.
Then those are read that have changed, since one of many thousands may change at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from headgate.store.database import Horizon
from headgate.store.datasources import Datasource, Datasources, Version


@dataclass(frozen=True, slots=True)
class Listed:
    """A datasource in the registry, apart from what its streams do. One that has not changed is the same object."""

    datasource: Datasource
    published: Version | None
    has_draft: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """All of them, as of a moment."""

    revision: int
    mark: Horizon
    drafts: set[UUID]
    by_id: Mapping[UUID, Listed]
    items: Sequence[Listed]  # By name.


class Listing:
    """Remembers them with their revision."""

    def __init__(self, datasources: Datasources) -> None:
        self._datasources = datasources
        self._known: _Known | None = None
        self._forgotten = 0

    async def all(self) -> Sequence[Listed]:
        """By name."""
        revision, mark = await self._datasources.moment()  # First: what changes meanwhile is read once more.
        known, forgotten = self._known, self._forgotten
        if known is not None and known.mark.lineage != mark.lineage:
            known = None  # Of another history.
        if known is None or known.revision != revision:
            drafts = await self._datasources.with_draft()
            by_id = await self._all(drafts) if known is None else await self._changed(known, drafts)
            items = sorted(by_id.values(), key=lambda one: one.datasource.name)
            known = _Known(revision, mark, drafts, by_id, items)
            if self._forgotten == forgotten:
                self._known = known
        return known.items

    async def _all(self, drafts: set[UUID]) -> dict[UUID, Listed]:
        published = await self._datasources.published()
        return {one.id: Listed(one, published.get(one.id), one.id in drafts) for one in await self._datasources.all()}

    async def _changed(self, known: _Known, drafts: set[UUID]) -> dict[UUID, Listed]:
        changed, deleted = await self._datasources.changed(known.mark)
        published = await self._datasources.published([one.id for one in changed])
        found = {id: one for id, one in known.by_id.items() if id not in deleted}
        for id in (known.drafts ^ drafts) & found.keys():
            found[id] = replace(found[id], has_draft=id in drafts)
        return found | {one.id: Listed(one, published.get(one.id), one.id in drafts) for one in changed}

    def forget(self) -> None:
        """The registry may be another one than it was."""
        self._known = None
        self._forgotten += 1

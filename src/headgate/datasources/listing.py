"""All datasources, as lists, metrics and the console show them.

While somebody looks they are asked for once a second, and most of the time nobody has changed anything since. So they
are read again only if the registry has another revision, which every change takes: a publish, a draft, a proof, a stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.store.datasources import Datasource, Datasources, Version


@dataclass(frozen=True, slots=True)
class Listed:
    """A datasource in the registry, apart from what its streams do."""

    datasource: Datasource
    published: Version | None
    has_draft: bool


class Listing:
    """Remembers them with their revision."""

    def __init__(self, datasources: Datasources) -> None:
        self._datasources = datasources
        self._known: tuple[int, Sequence[Listed]] | None = None

    async def all(self) -> Sequence[Listed]:
        """By name."""
        revision = await self._datasources.revision()  # First: what changes while they are read is read once more.
        if self._known is None or self._known[0] != revision:
            published, drafts = await self._datasources.published(), await self._datasources.with_draft()
            found = [Listed(one, published.get(one.id), one.id in drafts) for one in await self._datasources.all()]
            self._known = revision, found
        return self._known[1]

    def forget(self) -> None:
        """The registry may be another one than it was."""
        self._known = None

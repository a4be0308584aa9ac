"""Datasources, as the registry's database has them: versions, what has proved itself, and how many streams there are.

A value for each datasource, replaced as a whole by every change; what should run is asked of `core.reconcile`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias
from uuid import UUID

from headgate.core.lifecycle import Wanted
from headgate.core.reconcile import Entry

Flaw: TypeAlias = Literal["check", "open"]
"""What is wrong with a version: a check finds it, or only the attempt to open it does."""


@dataclass(frozen=True, slots=True)
class Version:
    """What an author has published."""

    source: str = "source"
    sink: str = "plain"
    streams: int = 1
    flaw: Flaw | None = None


@dataclass(frozen=True, slots=True)
class Datasource:
    """One row, and its versions, of which the last is the published one."""

    id: UUID
    name: str
    versions: tuple[Version, ...]
    is_pushed: bool = False
    is_enabled: bool = True
    is_paused: bool = False  # Only one that is enabled is.
    running: int | None = None  # The version that has proved itself.
    is_rejected: bool = False
    restarts: int = 0
    streams: int = 1  # How many are wanted: what the proved version says; until there is one, the published one.
    dealt: int = 1
    is_dealing: bool = False
    deal_after_s: float = 0.0
    parts: tuple[str, ...] = ()  # Names, in the order of first sight.

    @property
    def published(self) -> int:
        """The number of the last version."""
        return len(self.versions)

    @property
    def target(self) -> Version:
        """What should run in the end."""
        return self.version(self.running if self.is_rejected and self.running else self.published)

    def version(self, number: int) -> Version:
        """One of its versions."""
        return self.versions[number - 1]

    def entry(self) -> Entry:
        """What a node knows of it."""
        wanted = Wanted(self.published, self.running, self.restarts, self.is_rejected)
        return Entry(
            self.id,
            self.name,
            0,
            self.is_enabled,
            False,
            wanted,
            self.is_enabled and not self.is_paused and not self.is_dealing,
            is_pushed=self.is_pushed,
            dealt=self.dealt,
            is_dealing=self.is_dealing,
            is_paused=self.is_paused,
        )

    # Changes.

    def with_version(self, version: Version) -> Datasource:
        """Another version is published."""
        streams = version.streams if self.running is None else self.streams
        return replace(self, versions=(*self.versions, version), is_rejected=False, streams=streams)

    def proved(self, number: int) -> Datasource:
        """This version has proved itself. Versions only rise: a late proof of an older one says nothing."""
        if number <= (self.running or 0):
            return self
        return replace(self, running=number, streams=self.version(number).streams)

    def rejected(self, number: int) -> Datasource:
        """This version was tried and failed, and the fault is its own."""
        return replace(self, is_rejected=True) if number == self.published else self

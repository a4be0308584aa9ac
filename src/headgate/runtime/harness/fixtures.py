"""The fixtures of datasources: kept encrypted, read to be run, and written again when a change is accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from headgate.core.harness import fixtures
from headgate.core.harness.fixtures import MOST_FIXTURES, Fixture, FixtureChange
from headgate.core.harness.results import Given, Result
from headgate.errors import ConfigError, NotFound, Problem, Refused
from headgate.ids import is_name
from headgate.runtime.harness.wire import Outcome
from headgate.store.datasources import Datasource
from headgate.store.events import Event
from headgate.store.fixtures import FixtureName, Fixtures


class FixtureShelf:
    """Where fixtures are kept."""

    Held: TypeAlias = Mapping[str, Fixture]

    def __init__(self, store: Fixtures) -> None:
        self._store = store

    async def names(self, datasource: Datasource) -> list[FixtureName]:
        """All of a datasource."""
        return await self._store.names(datasource.id)

    async def all(self, datasource: Datasource) -> dict[str, Fixture]:
        """All of a datasource, decrypted. Raises if one cannot be."""
        found = {}
        for name, text in (await self._store.read(datasource.id)).items():
            if text is None:
                raise Refused(
                    f"the fixture {name!r} of {datasource.name!r} cannot be decrypted here",
                    code="no_master_key",
                    hint="is HEADGATE_MASTER_KEY the right one?",
                )
            found[name] = msgspec.json.decode(text, type=Fixture)
        return found

    async def one(self, datasource: Datasource | None, of: str, name: str) -> Fixture:
        """One by name."""
        held = await self.all(datasource) if datasource is not None else {}
        if name not in held:
            raise NotFound(f"fixture {name[:100]!r} does not exist", hint=f"headgate fixtures list {of}")
        return held[name]

    async def exist(self) -> set[object]:
        """The ids of the datasources that have some."""
        return set(await self._store.datasources())

    def check_writable(self, datasource: Datasource | None, *names: str) -> None:
        """Raise unless fixtures of these names could be kept."""
        if wrong := [name for name in names if not is_name(name)]:
            raise ConfigError([Problem("save", f"{wrong[0][:100]!r} is not a name", "lower case, digits, - and _")])
        if datasource is None:
            raise Refused("a fixture belongs to a datasource, and there is none of this name", hint="create it first")
        self.check_key()

    def check_key(self) -> None:
        """Raise unless there is a key to encrypt with."""
        if self._store.keyring is None:
            raise Refused(
                "fixtures are encrypted, and the master key is not set",
                code="no_master_key",
                hint="set HEADGATE_MASTER_KEY",
            )

    async def save(
        self, datasource: Datasource, name: str, given: Sequence[Given], outcomes: Sequence[Outcome], actor: str
    ) -> None:
        """Keep what a test was given, with what became of it."""
        made = fixtures.made(given, *_by_input(outcomes, 0, len(given)))
        if (reason := fixtures.too_large(made)) is not None:
            raise ConfigError([Problem("save", reason, "test with fewer or smaller records")])
        there = {one.name for one in await self.names(datasource)}
        if len(there | {name}) > MOST_FIXTURES:
            raise Refused(f"a datasource has at most {MOST_FIXTURES} fixtures", hint="delete one first")
        await self.put(datasource, {name: made}, actor, "fixture_saved")

    async def put(self, datasource: Datasource, made: Held, actor: str, type: str) -> None:
        """Write these."""
        texts = {name: (len(one.given), msgspec.json.encode(one).decode()) for name, one in made.items()}
        event = Event(datasource.id, datasource.name, type, {"fixtures": sorted(made)}, actor)
        await self._store.put(datasource.id, texts, event)

    async def delete(self, datasource: Datasource, name: str, actor: str) -> None:
        """Delete one."""
        event = Event(datasource.id, datasource.name, "fixture_deleted", {"fixture": name}, actor)
        if not await self._store.delete(datasource.id, name, event):
            raise NotFound(f"fixture {name[:100]!r} does not exist", hint=f"headgate fixtures list {datasource.name}")


def compared(held: FixtureShelf.Held, outcomes: Sequence[Outcome]) -> tuple[list[FixtureChange], dict[str, Fixture]]:
    """What a version gives that its fixtures do not expect, and these fixtures as they would be if it were right."""
    found: list[FixtureChange] = []
    renewed: dict[str, Fixture] = {}
    for number, (name, fixture) in enumerate(held.items()):
        first, second = _by_input(outcomes, number, len(fixture.given))
        if changes := fixtures.changes(name, fixture, first, second):
            found += changes
            renewed[name] = fixtures.made(fixture.given, first, second)
    return found, renewed


def _by_input(outcomes: Sequence[Outcome], case: int, inputs: int) -> tuple[list[list[Result]], list[list[Result]]]:
    """The results of each input, of both runs."""
    first: list[list[Result]] = [[] for _ in range(inputs)]
    second: list[list[Result]] = [[] for _ in range(inputs)]
    for one in outcomes:
        if one.case == case and one.index < inputs:
            first[one.index] += one.results
            second[one.index] += one.again
    return first, second

"""What a version must pass before it is published: its fixtures, and, if that is asked for, its connections.

A publish and an apply come this way; a rollback does not, because it goes back to what ran before, in a hurry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from headgate.core.harness.fixtures import Fixture, FixtureChange
from headgate.datasources.documents import Document
from headgate.datasources.planned import PlannedChange
from headgate.datasources.registry import Registry
from headgate.errors import Problem, Refused
from headgate.runtime.harness.fixtures import compared
from headgate.runtime.harness.harness import Harness, Subject
from headgate.store.datasources import Datasource
from headgate.text import counted

MOST_CHECKED = 100  # Datasources of one file whose connections are tried.
SHOWN_CHARACTERS = 80  # Of a value.


@dataclass(frozen=True, slots=True)
class Passed:
    """What was found on the way: fixtures to write once the version is published."""

    renewed: Mapping[str, Fixture] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Applying:
    """How a file is applied."""

    prune: bool = False
    connect: bool = False
    accept: bool = False
    is_admin: bool = False
    yes: bool = False  # Even if what it deletes loses something.


class Gate:
    """Holds versions to what was agreed."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    async def fixture_problems(self, subject: Subject, more: Mapping[str, Fixture] | None = None) -> list[Problem]:
        """What this version would change of what its fixtures expect."""
        changes, _, trouble = await self._run(subject, more or {})
        return trouble or [problem_of(one) for one in changes]

    async def judge(
        self,
        subject: Subject,
        *,
        accept: bool = False,
        connect: bool = False,
        more: Mapping[str, Fixture] | None = None,
    ) -> Passed:
        """Refuse the version unless it may be published. `more`: fixtures that come with it."""
        if connect and (problems := await self._harness.check(subject)):
            raise refused_connections([(subject.name, one) for one in problems])
        changes, renewed, trouble = await self._run(subject, more or {})
        if trouble:
            raise Refused(
                f"the fixtures of {subject.name!r} cannot be run",
                code="fixtures_failed",
                hint=f"headgate ds test {subject.name} --fixture NAME says more",
                problems=trouble,
            )
        if changes and not accept:
            raise Refused(
                f"{subject.name!r} would no longer give what {counted(len(renewed), 'fixture')} expects",
                code="fixtures_changed",
                hint="if that is meant, say --accept",
                problems=[problem_of(one) for one in changes],
            )
        return Passed({**(more or {}), **renewed})

    async def keep(self, datasource: Datasource, passed: Passed, actor: str) -> None:
        """Write what was accepted, or came with the version."""
        if passed.renewed:
            self._harness.shelf.check_writable(datasource, *passed.renewed)
            await self._harness.shelf.put(datasource, passed.renewed, actor, "fixtures_accepted")

    # Files.

    async def apply(
        self, registry: Registry, documents: dict[str, Document], actor: str, how: Applying
    ) -> list[PlannedChange]:
        """Apply a file whose versions pass. Fixtures that come with it, and those that were accepted, are kept then."""
        passed: dict[str, Passed] = {}
        has_fixtures = any(document.fixtures for document in documents.values())
        if how.connect or has_fixtures or await self._harness.shelf.exist():
            planned = await registry.plan(documents, prune=how.prune, is_admin=how.is_admin)
            passed = await self._judge_all(documents, planned, how)
        changes = await registry.apply(documents, actor, prune=how.prune, yes=how.yes, is_admin=how.is_admin)
        for name, one in passed.items():
            await self.keep(await registry.get(name), one, actor)
        return changes

    async def with_fixtures(
        self, registry: Registry, documents: Sequence[Document], may_see: Callable[[str], bool]
    ) -> list[Document]:
        """The documents with their fixtures, where records may be seen."""
        having, found = await self._harness.shelf.exist(), []
        for document in documents:
            kept = document
            if having and may_see(document.name):
                datasource = await registry.get(document.name)
                if datasource.id in having:
                    kept = replace(document, fixtures=await self._harness.shelf.all(datasource))
            found.append(kept)
        return found

    async def _judge_all(
        self, documents: Mapping[str, Document], changes: Sequence[PlannedChange], how: Applying
    ) -> dict[str, Passed]:
        """Whatever the file would change. Those that cannot be reached are all named."""
        harness, subjects, unreachable = self._harness, [], []
        for change in changes:
            document = documents.get(change.name)
            is_new = change.action in ("create", "update")
            if document is None or not (is_new or document.fixtures):
                continue
            subject = await harness.subject(change.name, document.content, None, is_admin=how.is_admin)
            subjects.append((subject, document, how.connect and is_new and document.enabled and _reaches_out(subject)))
        if sum(checked for _, _, checked in subjects) > MOST_CHECKED:
            raise Refused(
                f"more than {MOST_CHECKED} datasources would have to be connected to",
                code="too_many",
                hint="apply them in several files, or say --no-connect",
            )
        for subject, _, checked in subjects:
            if checked:
                unreachable += [(subject.name, one) for one in await harness.check(subject)]
        if unreachable:
            raise refused_connections(unreachable)
        passed = {}
        for subject, document, _ in subjects:
            if document.fixtures:
                harness.shelf.check_key()
            passed[subject.name] = await self.judge(subject, accept=how.accept, more=document.fixtures)
        return passed

    async def _run(
        self, subject: Subject, more: Mapping[str, Fixture]
    ) -> tuple[list[FixtureChange], dict[str, Fixture], list[Problem]]:
        stored = {} if subject.datasource is None else await self._harness.shelf.all(subject.datasource)
        held = {**stored, **more}
        if not held:
            return [], {}, []
        ran = await self._harness.run_fixtures(subject, held)
        if ran.trouble or ran.troubles:
            said = ran.trouble or ran.troubles[0].message
            return [], {}, [Problem("fixtures", said)]
        changes, renewed = compared(held, ran.outcomes)
        return changes, renewed, []


def _reaches_out(subject: Subject) -> bool:
    """Whether there is anything to connect to."""
    prepared = subject.prepared
    return bool(
        prepared.source_kind.reaches(prepared.source_options) or prepared.sink_kind.reaches(prepared.sink_options)
    )


def refused_connections(found: Sequence[tuple[str, Problem]]) -> Refused:
    """Which source or sink cannot be reached."""
    problems = [Problem(f"{name}.{one.path}" if one.path else name, one.message, one.hint) for name, one in found]
    first = problems[0]
    return Refused(
        f"{first.path} cannot be reached: {first.message}",
        code="unreachable",
        hint="mend it, or publish without --connect (apply and import: --no-connect)",
        problems=problems,
    )


def problem_of(change: FixtureChange) -> Problem:
    """In one line."""
    one = change.difference
    path = f"fixtures.{change.fixture}.{change.record}.{one.place}"
    return Problem(path, f"is {_shown(one.after)}, and was {_shown(one.before)}")


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"

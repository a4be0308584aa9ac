"""What people ask of the harness: test a version, check what it connects to, and hold it to its fixtures.

The command line, the API and the console all come through here. A test changes nothing but the list of
events, and a fixture if one is to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
import structlog

from headgate.clock import unix_s
from headgate.config import Settings
from headgate.connectors.api import INBOX_IDENTITY, Context
from headgate.connectors.bounds import WireGuard
from headgate.connectors.guard import Guard
from headgate.core.harness.payloads import MOST_INPUTS, MOST_PAYLOAD_BYTES
from headgate.core.harness.results import Difference, Given, Result, differences, totals_of
from headgate.core.harness.warnings import Caution, Tried, warnings
from headgate.core.letters import Contents
from headgate.core.records import Totals, Unreadable
from headgate.datasources.documents import apart
from headgate.datasources.prepared import Prepared, prepare
from headgate.datasources.registry import Registry
from headgate.errors import ConfigError, NotFound, Problem, Refused
from headgate.hidden import hide
from headgate.runtime.harness.children import Children, Ran
from headgate.runtime.harness.doorways import Doorways
from headgate.runtime.harness.fixtures import FixtureShelf
from headgate.runtime.harness.inputs import OneByOne, takes_bodies
from headgate.runtime.harness.safe import safe
from headgate.runtime.harness.wire import Case, Job, Limits, Outcome, Said
from headgate.runtime.streams import sides
from headgate.runtime.streams.shared import SharedThings
from headgate.store.datasources import Content, Datasource, Version
from headgate.store.events import Event
from headgate.store.inbox import InboxTable
from headgate.store.letters import Letters

MOST_FETCHED = 1000
LONGEST_S = 60.0
SinkUse = Literal["none", "rollback"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What to test, and with what. One of the inputs is given."""

    name: str
    content: Content | None = None  # A document that is not in the registry; else the draft,
    version: int | None = None  # or this version.
    payload: bytes | None = None
    fetch: int | None = None
    inbox: int | None = None
    letter: str | None = None
    fixture: str | None = None
    sink: SinkUse = "none"
    save: str | None = None  # Keep it as a fixture of this name.
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One input, before and after."""

    before: object
    results: Sequence[Result]
    changes: Sequence[Difference]  # Next to what the published version makes of it.
    took_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a test found out."""

    name: str
    version: int | None  # None: a document that has none.
    compared: int | None  # The version that `changes` are next to.
    totals: Totals
    records: Sequence[Record]
    warnings: Sequence[Caution]
    lines: Sequence[Said]
    output: str
    trouble: str  # What kept it from its end, in one line; empty: nothing.
    hint: str
    took_s: float
    cpu_s: float
    peak_bytes: int
    is_cut: bool
    apart: Sequence[str] = field(default_factory=list)
    saved: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A version that is to be tested, ready to be sent."""

    name: str
    datasource: Datasource | None
    version: Version | None
    content: Content
    prepared: Prepared
    secrets: dict[str, str]
    guard: Guard

    def job(self, cases: Sequence[Case] = (), **more: object) -> Job:
        """A job with all that this version needs."""
        source, sink = WireGuard.of(self.prepared.source_guard), WireGuard.of(self.prepared.sink_guard)
        job = Job(self.name, self.content, self.secrets, WireGuard.of(self.guard), source, sink, list(cases))
        return msgspec.structs.replace(job, **more)


class Harness:
    """Tests of one node."""

    def __init__(
        self,
        registry: Registry,
        inbox: InboxTable,
        shelf: FixtureShelf,
        letters: Letters,
        settings: Settings,
    ) -> None:
        self.shelf = shelf
        self._registry = registry
        self._inbox = inbox
        self._letters = letters
        self._children = Children(settings.harness_user)
        self._connector_memory_mb = settings.connector_memory_mb
        self._limits = Limits(settings.harness_timeout_s, memory_bytes=settings.harness_memory_mb * 1024 * 1024)

    async def close(self) -> None:
        """No more tests."""
        await self._children.close()

    # Test.

    async def test(self, asked: Asked, actor: str, *, is_admin: bool) -> Report:
        """Run it once, as it would run, and tell everything."""
        _check(asked)
        subject = await self.subject(asked.name, asked.content, asked.version, is_admin=is_admin)
        if asked.save is not None:
            self.shelf.check_writable(subject.datasource, asked.save)
        _check_sink(asked, subject.prepared)
        case = await self._case(asked, subject)
        published = await self._published(subject)
        job = subject.job(
            [case],
            is_rehearsed=asked.sink == "rollback",
            is_compared=published is not None,
            published_mapping=None if published is None else published.content.mapping,
        )
        has_network = bool(case.fetch) or asked.sink == "rollback"
        began = unix_s()
        limits, doorways = self._limits_of(asked.timeout_s), self._doorways(subject, job)
        ran = await self._children.run(job, limits, has_network=has_network, doorways=doorways)
        report = _report(subject, published, ran, unix_s() - began)
        if asked.save is not None and not report.trouble:
            await self._save(subject, asked.save, ran.outcomes, actor)
            report = replace(report, saved=asked.save)
        await self._record(subject, asked, report, actor)
        return report

    async def subject(self, name: str, content: Content | None, number: int | None, *, is_admin: bool) -> Subject:
        """The version that is meant, checked and with its secrets. Raises everything that is wrong with it."""
        registry = self._registry
        found = await registry.datasources.find(name)
        version = None
        if content is None:
            found = await registry.get(name)
            version = await self._version(found, number)
            content = version.content
        is_trusted = is_admin or (version is not None and version.is_trusted)
        if problems := await registry.problems(content, is_admin=is_trusted):
            raise ConfigError(problems)
        values = await registry.secrets.read(list(content.secrets))
        reaching = await registry.reaching()
        guard = reaching.guard(is_trusted=is_trusted)
        prepared = await apart(prepare, content, values, "", guard)
        prepared = reaching.guarded(prepared, content, is_trusted=is_trusted)
        secrets = {name: value for name, value in values.items() if value is not None}
        return Subject(found.name if found else name, found, version, content, prepared, secrets, guard)

    async def _version(self, found: Datasource, number: int | None) -> Version:
        datasources = self._registry.datasources
        if number is not None:
            version = await datasources.version(found.id, number)
        else:
            version = await datasources.draft(found.id) or await datasources.version(found.id, found.published_version)
        if version is None:
            which = "no version" if number is None else f"no version {number}"
            raise NotFound(f"datasource {found.name!r} has {which}", hint=f"headgate ds show {found.name}")
        return version

    async def _published(self, subject: Subject) -> Version | None:
        """The version to compare with, if there is another one."""
        found = subject.datasource
        if found is None or found.published_version is None:
            return None
        if subject.version is not None and subject.version.number == found.published_version:
            return None
        return await self._registry.datasources.version(found.id, found.published_version)

    async def _case(self, asked: Asked, subject: Subject) -> Case:
        if asked.payload is not None:
            return Case(payload=asked.payload, at_s=unix_s())
        if asked.fetch is not None:
            if takes_bodies(subject.prepared):
                name = subject.prepared.source.name
                raise Refused(f"{name} is sent its records, so none can be fetched", hint="use --payload or --inbox")
            return Case(fetch=asked.fetch)
        if asked.letter is not None:
            return Case([await self._of_letter(subject, asked.letter)])
        if asked.fixture is not None:
            return Case((await self.shelf.one(subject.datasource, subject.name, asked.fixture)).given)
        assert asked.inbox is not None
        if subject.datasource is None or subject.prepared.source_identity != INBOX_IDENTITY:
            raise Refused("this source has no inbox", hint="use --payload or --fetch")
        payloads = await self._inbox.last(subject.datasource.id, asked.inbox)
        if not payloads:
            raise Refused("the inbox is empty", code="nothing", hint="use --payload")
        return Case([Given(body=one.body, headers=one.headers, at_s=one.received_at_s) for one in payloads])

    async def _of_letter(self, subject: Subject, id: str) -> Given:
        """The record of a dead letter of this datasource, as it was read."""
        kept, contents = await self._letters.read(id)
        if subject.datasource is None or kept.datasource != subject.datasource.id:
            raise NotFound(f"dead letter {id[:40]!r} does not exist", hint=f"headgate dlq list {subject.name}")
        if contents is None:
            raise Refused(f"letter {kept.id} is {kept.outcome}: its record is gone", code="not_open")
        return given_of(contents)

    async def run_given(self, subject: Subject, given: Sequence[Given], *, is_rehearsed: bool) -> Ran:
        """Run these inputs through a version; the sink, if it can, writes them and takes everything back."""
        job = subject.job([Case(list(given))], is_rehearsed=is_rehearsed)
        doorways = self._doorways(subject, job)
        return await self._children.run(job, self._limits, has_network=is_rehearsed, doorways=doorways)

    def _doorways(self, subject: Subject, job: Job) -> Doorways | None:
        """The ways to sockets that this node may open and a test's process may not."""
        if not job.is_rehearsed or not self._children.changes_user:
            return None
        prepared = subject.prepared
        return Doorways(prepared.sink_kind.sockets(prepared.sink_options), prepared.sink_guard)

    def _limits_of(self, timeout_s: float | None) -> Limits:
        if timeout_s is None:
            return self._limits
        return Limits(min(timeout_s, LONGEST_S), self._limits.cpu_s, self._limits.memory_bytes)

    async def _record(self, subject: Subject, asked: Asked, report: Report, actor: str) -> None:
        """Who tested what, and how many records had which outcome. No value."""
        totals = report.totals
        payload = {
            "version": report.version,
            "input": _input_of(asked),
            "sink": asked.sink,
            "read": totals.read,
            "written": totals.written,
            "filtered": totals.filtered,
            "dead_lettered": totals.dead_lettered,
            "ended": not report.trouble,
        }
        id = subject.datasource.id if subject.datasource else None
        await self._registry.events.record([Event(id, subject.name, "tested", payload, actor)])
        self._registry.waker.wake("events")

    # Fixtures.

    async def _save(self, subject: Subject, name: str, outcomes: Sequence[Outcome], actor: str) -> None:
        """Keep the inputs with what becomes of them as they are kept: what was fetched may have had other types."""
        assert subject.datasource is not None
        if not outcomes or any(one.is_bare for one in outcomes):
            what = "a record is too large" if outcomes else "there is no record"
            raise ConfigError([Problem("save", f"{what} for a fixture", "test with others")])
        given = list({one.index: one.given for one in outcomes}.values())
        ran = await self._children.run(subject.job([Case(given)], is_repeated=True), self._limits, has_network=False)
        if ran.trouble or ran.troubles:
            raise Refused(f"the fixture cannot be made: {ran.trouble or ran.troubles[0].message}")
        await self.shelf.save(subject.datasource, name, given, ran.outcomes, actor)

    async def run_fixtures(self, subject: Subject, shelf: FixtureShelf.Held) -> Ran:
        """Run the inputs of all fixtures through a version, twice."""
        cases = [Case(fixture.given) for fixture in shelf.values()]
        return await self._children.run(subject.job(cases, is_repeated=True), self._limits, has_network=False)

    # Connections.

    async def check(self, subject: Subject) -> list[Problem]:
        """Whether its source and its sink can be reached; which one cannot, and why. The node itself connects, as it
        does when the version is to run: what a test may reach is less."""
        feed = OneByOne()
        log = structlog.get_logger("headgate.check").bind(datasource=subject.name)
        name, memory_mb = f"{subject.name}:check", self._connector_memory_mb
        context = Context(name, log, unix_s, SharedThings(), inbox=feed, feed=feed, memory_mb=memory_mb)
        found = []
        for side, build in (("source", sides.build_source), ("sink", sides.build_sink)):
            try:
                await sides.check_one(build(subject.prepared, context))
            except Exception as error:
                failure = sides.failure_of(error)
                found.append(Problem(side, f"{failure.cause}: {failure.message}"))
        return found


def given_of(contents: Contents) -> Given:
    """The record of a dead letter as an input."""
    if isinstance(contents.payload, Unreadable):
        unread = contents.payload
        return Given(body=unread.body, unreadable=unread.reason, meta=safe(contents.meta))
    return Given(record=safe(contents.payload), meta=safe(contents.meta))


def _check(asked: Asked) -> None:
    """Raise what is wrong with the question."""
    inputs = [asked.payload, asked.fetch, asked.inbox, asked.letter, asked.fixture]
    if sum(one is not None for one in inputs) != 1:
        raise ConfigError("a test needs one input", hint="one of payload, fetch, inbox, dead_letter and fixture")
    for name, number, most in (("fetch", asked.fetch, MOST_FETCHED), ("inbox", asked.inbox, MOST_INPUTS)):
        if number is not None and not 1 <= number <= most:
            raise ConfigError([Problem(name, f"must be between 1 and {most}")])
    if asked.payload is not None and len(asked.payload) > MOST_PAYLOAD_BYTES:
        raise ConfigError([Problem("payload", f"has more than {MOST_PAYLOAD_BYTES // 1024 // 1024} MB")])


def _check_sink(asked: Asked, prepared: Prepared) -> None:
    if asked.sink == "rollback" and not prepared.sink_kind.keeps_letters:
        raise Refused(
            f"{prepared.sink.name} cannot take back what it has written", code="no_rollback", hint="leave --sink out"
        )


def _input_of(asked: Asked) -> str:
    names = ("payload", "fetch", "inbox", "letter", "fixture")
    return next(name for name in names if getattr(asked, name) is not None)


def _report(subject: Subject, published: Version | None, ran: Ran, took_s: float) -> Report:
    records = [
        Record(
            one.before,
            one.results,
            differences(one.published, one.results) if published is not None else [],
            one.took_s,
            one.size_bytes,
        )
        for one in ran.outcomes
    ]
    results = [result for one in records for result in one.results]
    trouble = ran.troubles[0] if ran.troubles else None
    finished = ran.finished
    return Report(
        name=subject.name,
        version=None if subject.version is None else subject.version.number,
        compared=None if published is None else published.number,
        totals=totals_of(results),
        records=records,
        warnings=warnings(
            subject.content.mapping,
            subject.prepared.mapping.key,
            [Tried(one.before, one.results) for one in records],
            None if finished is None else finished.columns,
        ),
        lines=ran.lines,
        output=hide(ran.output.decode("utf-8", "replace")),
        trouble=hide(trouble.message) if trouble is not None else ran.trouble,
        hint="" if trouble is None else trouble.hint,
        took_s=took_s,
        cpu_s=ran.ending.cpu_s,
        peak_bytes=ran.ending.peak_bytes,
        is_cut=finished is not None and finished.is_cut,
        apart=ran.apart,
    )

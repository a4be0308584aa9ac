"""Tests, fixtures, and what a version must pass before it is published."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from litestar import delete, get, post

from headgate.core.access import OfDatasource, may
from headgate.core.harness.results import Difference, Given, Result
from headgate.datasources.documents import Document, gather_one, read_one, together
from headgate.errors import ConfigError, NotFound, Problem
from headgate.runtime.harness.harness import Asked, Report
from headgate.runtime.node import Node
from headgate.store.datasources import Version
from headgate.web import subjects
from headgate.web.api import views
from headgate.web.auth import Needs, Req
from headgate.web.bodies import Object, datasources
from headgate.web.bodies import harness as bodies

SEE, OPERATE = [Needs("see", subjects.datasource)], [Needs("operate", subjects.datasource)]
RUNS_TESTS: dict[str, Any] = {"runs_tests": True}  # It may have to wait for other tests, or be refused because of them.


@post(
    "/api/datasources/{name:str}/test",
    guards=OPERATE,
    status_code=200,
    tags=["tests"],
    summary="Run a version once, apart from the node, and tell what would become of each record",
    opt=RUNS_TESTS,
)
async def try_version(node: Node, request: Req, name: str, data: bodies.TestAsked) -> bodies.Tested:
    """Nothing is acknowledged, no position moves and nothing is written, unless the sink takes it back at once. A
    connector that hangs or dies is an answer too: `trouble` says what happened."""
    is_admin = may(request.user, "administer")
    report = await node.harness.test(_asked(name, data), request.user.name, is_admin=is_admin)
    return _tested(report)


@get("/api/datasources/{name:str}/fixtures", guards=SEE, tags=["tests"], summary="The fixtures of a datasource")
async def list_fixtures(node: Node, name: str) -> bodies.FixturesListed:
    """Names and sizes; nothing of their records."""
    rows = await node.harness.shelf.names(await node.registry.get(name))
    items = [
        bodies.FixtureListed(
            name=one.name, inputs=one.inputs, size_bytes=one.size_bytes, author=one.author, changed_at=one.changed_at
        )
        for one in rows
    ]
    return bodies.FixturesListed(items=items)


@get("/api/datasources/{name:str}/fixtures/{fixture:str}", guards=OPERATE, tags=["tests"], summary="One fixture")
async def show_fixture(node: Node, name: str, fixture: str) -> bodies.FixtureShown:
    """With its records, so it needs an operator."""
    found = await node.registry.get(name)
    held = await node.harness.shelf.one(found, found.name, fixture)
    inputs = [
        bodies.FixtureInput(given=_given(given), expected=[_result(one) for one in expected])
        for given, expected in zip(held.given, held.expected, strict=True)
    ]
    return bodies.FixtureShown(name=fixture, inputs=inputs, masked=held.masked)


@delete(
    "/api/datasources/{name:str}/fixtures/{fixture:str}", guards=OPERATE, tags=["tests"], summary="Delete a fixture"
)
async def delete_fixture(node: Node, request: Req, name: str, fixture: str) -> None:
    """What it expected no longer holds a publish up."""
    await node.harness.shelf.delete(await node.registry.get(name), fixture, request.user.name)
    node.waker.wake("events")


ROUTES = [try_version, list_fixtures, show_fixture, delete_fixture]


# What other routes ask.


async def problems(node: Node, request: Req, name: str, data: Object | None, *, connect: bool) -> Sequence[Problem]:
    """Everything that is wrong with a document, or with the draft."""
    document, of_shape = (None, []) if data is None else gather_one(name, _unnamed(data))
    if data is not None and document is None:
        return of_shape
    content = document.content if document is not None else (await _draft(node, name)).content
    if connect:
        subjects.check_each(request, "operate", [await _name_of(node, name)])
    found = together(of_shape, await node.registry.problems(content, **views.sees_as(request.user)))
    if found or not may(request.user, "operate", OfDatasource(await _name_of(node, name))):
        return found
    is_admin = may(request.user, "administer")
    subject = await node.harness.subject(name, content, None, is_admin=is_admin)
    found = await node.gate.fixture_problems(subject, document.fixtures if document is not None else {})
    return [*found, *(await node.harness.check(subject))] if connect else found


async def publish(node: Node, request: Req, name: str, data: datasources.Publish) -> Version:
    """Publish the draft that passes. What was judged is what is published: its hash says so."""
    is_admin, actor = may(request.user, "administer"), request.user.name
    found = await node.registry.get(name)
    draft = await node.registry.datasources.draft(found.id)
    needs_judging = data.connect or bool(await node.harness.shelf.names(found))
    if draft is None or not needs_judging or data.hash not in (None, draft.content.hash):
        return await node.registry.publish(name, actor, data.hash, is_admin=is_admin)
    subject = await node.harness.subject(name, draft.content, None, is_admin=is_admin)
    passed = await node.gate.judge(subject, accept=data.accept, connect=data.connect)
    version = await node.registry.publish(name, actor, draft.content.hash, is_admin=is_admin)
    await node.gate.keep(found, passed, actor)
    return version


async def with_fixtures(node: Node, request: Req, documents: Sequence[Document]) -> list[Document]:
    """The documents with their fixtures, where the caller may see records."""

    def may_see(name: str) -> bool:
        return may(request.user, "operate", OfDatasource(name))

    return await node.gate.with_fixtures(node.registry, documents, may_see)


async def _draft(node: Node, name: str) -> Version:
    found = await node.registry.get(name)
    draft = await node.registry.datasources.draft(found.id)
    if draft is None:
        raise NotFound(f"datasource {found.name!r} has no version draft", hint=f"headgate ds show {found.name}")
    return draft


async def _name_of(node: Node, name: str) -> str:
    found = await node.registry.datasources.find(name)
    return name if found is None else found.name


def _document(name: str, data: Object) -> Document:
    return read_one(name, _unnamed(data))


def _unnamed(data: Object) -> Object:
    return {key: value for key, value in data.items() if key != "name"}


# Bodies.


def _asked(name: str, data: bodies.TestAsked) -> Asked:
    if data.document is not None and data.version is not None:
        raise ConfigError([Problem("version", "does not go with a document")])
    content = None if data.document is None else _document(name, data.document).content
    payload = None if data.payload is None else data.payload.encode("utf-8", "surrogatepass")
    if data.payload_base64 is not None:
        if payload is not None:
            raise ConfigError([Problem("payload_base64", "does not go with payload")])
        try:
            payload = base64.b64decode(data.payload_base64, validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError([Problem("payload_base64", "is not base64")]) from None
    return Asked(
        name,
        content,
        data.version,
        payload,
        data.fetch,
        data.inbox,
        data.dead_letter,
        data.fixture,
        data.sink,
        data.save,
        data.timeout_s,
    )


def _tested(report: Report) -> bodies.Tested:
    totals, records = report.totals, report.records
    mapped_s = sum(one.took_s for one in records)
    return bodies.Tested(
        name=report.name,
        version=report.version,
        compared_with=report.compared,
        read=totals.read,
        written=totals.written,
        filtered=totals.filtered,
        dead_lettered=totals.dead_lettered,
        records=[
            bodies.TestRecord(
                before=one.before,
                results=[_result(result) for result in one.results],
                changes=[_change(change) for change in one.changes],
                took_us=round(one.took_s * 1e6, 1),
                size_bytes=one.size_bytes,
            )
            for one in records
        ],
        warnings=[bodies.TestCaution(code=one.code, place=one.place, message=one.message) for one in report.warnings],
        logs=[bodies.TestLine(level=one.level, text=one.text, fields=one.fields) for one in report.lines],
        output=report.output,
        trouble=report.trouble,
        hint=report.hint,
        figures=bodies.TestFigures(
            took_ms=round(report.took_s * 1000, 1),
            cpu_ms=round(report.cpu_s * 1000, 1),
            memory_bytes=report.peak_bytes,
            per_record_us=round(mapped_s / max(1, len(records)) * 1e6, 1),
            bytes_in=sum(one.size_bytes for one in records),
            apart=list(report.apart),
        ),
        is_cut=report.is_cut,
        saved=report.saved,
    )


def _result(one: Result) -> bodies.TestResult:
    return bodies.TestResult(
        outcome=one.outcome,
        after=one.after,
        is_delete=one.is_delete,
        stage=one.stage,
        field=one.field,
        reason=one.reason,
    )


def _change(one: Difference) -> bodies.ResultChange:
    return bodies.ResultChange(place=one.place, before=one.before, after=one.after)


def _given(one: Given) -> object:
    return one.record if one.body is None else one.body.decode("utf-8", "replace")

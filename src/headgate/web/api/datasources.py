"""Datasources: create, edit, publish, act, and see what they do."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from litestar import Controller, Response, delete, get, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from headgate.connectors.api.bulk import StorageError
from headgate.connectors.guard import OutOfReach
from headgate.core.access import may
from headgate.datasources.documents import Document, read_one
from headgate.datasources.health import explain, health
from headgate.datasources.planned import diff
from headgate.errors import ConfigError, NotFound, Problem, Refused
from headgate.runtime.dumps import backfill
from headgate.runtime.node import Node
from headgate.store.datasources import Version
from headgate.web import sse, subjects
from headgate.web.api import documents, harness, views
from headgate.web.api.harness import RUNS_TESTS
from headgate.web.auth import Needs, Req
from headgate.web.bodies import Object, datasources
from headgate.web.feeds import Feeds

SEE, OPERATE = [Needs("see", subjects.datasource)], [Needs("operate", subjects.datasource)]


def _document(name: object, data: Object) -> Document:
    return read_one(name, {key: value for key, value in data.items() if key != "name"})


def _alone(name: object, data: Object) -> Document:
    """A document that is written by itself. Its fixtures are kept by tests, or come with a file."""
    document = _document(name, data)
    if document.fixtures:
        raise ConfigError([Problem("fixtures", "come with apply and import only", "headgate apply FILE")])
    return document


def _wish(data: datasources.Backfill) -> backfill.Wish:
    wish = backfill.Wish(data.source, data.table, rows=data.chunk_rows, rate=data.rate)
    return wish if data.workers is None else replace(wish, workers=data.workers)


LINES = {
    200: ResponseSpec(datasources.Lines, description="The lines; live, an event for each.", generate_examples=False)
}


class DatasourcesApi(Controller):
    """`/api/datasources`."""

    path = "/api/datasources"
    tags = ("datasources",)

    @get("/", guards=[Needs("list")], summary="All datasources, with their health")
    async def list_all(self, node: Node, request: Req) -> datasources.Datasources:
        """All datasources."""
        notices = await views.notices(node, request.user)
        return datasources.Datasources(items=await views.summaries(node, request.user), notices=notices)

    @post("/", guards=[Needs("operate_listed")], summary="Create a datasource with a draft")
    async def create(self, node: Node, request: Req, data: documents.NamedDocument) -> datasources.Datasource:
        """A new datasource. Its draft runs once it is published."""
        document = _alone(data.get("name", ""), data)
        subjects.check_each(request, "operate", [document.name])
        await node.registry.create(document, request.user.name)
        return await views.whole(node, str(data["name"]))

    @get("/{name:str}", guards=SEE, summary="One datasource, with its versions and states")
    async def show(self, node: Node, name: str) -> datasources.Datasource:
        """One datasource."""
        return await views.whole(node, name)

    @put("/{name:str}", guards=OPERATE, summary="Create a datasource, or replace its draft")
    async def replace(self, node: Node, request: Req, name: str, data: documents.Document) -> datasources.Datasource:
        """Idempotent: the same call twice leaves the same draft."""
        document = _alone(name, data)
        if await node.registry.datasources.find(name) is None:
            await node.registry.create(document, request.user.name)
        else:
            await node.registry.put_draft(name, document.content, request.user.name)
            if "enabled" in data:
                await node.registry.set_enabled(name, document.enabled, request.user.name)
        return await views.whole(node, name)

    @delete("/{name:str}", guards=OPERATE, summary="Delete a datasource")
    async def remove(self, node: Node, request: Req, name: str, yes: bool = False) -> None:
        """Its name is free at once; its streams go when they have stopped, and what they left in the sink some minutes
        later. A 409 with `counts` if something would be lost, unless `yes` is true."""
        await node.registry.delete(name, request.user.name, yes=yes)

    @get("/{name:str}/deletion", guards=SEE, summary="What a delete would lose")
    async def deletion(self, node: Node, name: str) -> datasources.Deletion:
        """Payloads that were answered 202 and are not known to be in the sink, open dead letters, and dumps that are
        not over."""
        found, stake = await node.registry.stake(name)
        return datasources.Deletion(
            name=found.name, payloads=stake.payloads, letters=stake.letters, dumps=[str(id) for id in stake.dumps]
        )

    @put("/{name:str}/draft", guards=OPERATE, summary="Write the draft")
    async def draft(
        self, node: Node, request: Req, name: str, data: documents.Document, expected_hash: str | None = None
    ) -> datasources.Version:
        """`expected_hash` is the hash of what the author saw; another one is a 409."""
        content = _alone(name, data).content
        return views.version(await node.registry.put_draft(name, content, request.user.name, expected_hash))

    @post(
        "/{name:str}/validate",
        guards=SEE,
        status_code=200,
        summary="Everything that is wrong with a document",
        opt=RUNS_TESTS,
    )
    async def validate(
        self, node: Node, request: Req, name: str, data: documents.Document | None = None, connect: bool = False
    ) -> datasources.Problems:
        """The document in the body, or the draft if there is none. What a viewer is told does not depend on the values
        of secrets. For an operator its fixtures are run, and with `connect` its source and its sink are reached."""
        try:
            problems = await harness.problems(node, request, name, data, connect=connect)
        except ConfigError as error:
            problems = error.problems
        return datasources.Problems(
            problems=[datasources.Problem(path=p.path, message=p.message, hint=p.hint) for p in problems]
        )

    @post("/{name:str}/publish", guards=OPERATE, status_code=200, summary="Publish the draft", opt=RUNS_TESTS)
    async def publish(
        self, node: Node, request: Req, name: str, data: datasources.Publish | None = None
    ) -> datasources.Version:
        """`hash`, if given, must be the draft's. Its fixtures are run first: what changes an expected result is refused
        unless `accept` is true."""
        return views.version(await harness.publish(node, request, name, data or datasources.Publish()))

    @post("/{name:str}/rollback", guards=OPERATE, status_code=200, summary="Publish an old version again")
    async def rollback(self, node: Node, request: Req, name: str, data: datasources.Rollback) -> datasources.Version:
        """Under a new number, so that history stays a line."""
        is_admin = may(request.user, "administer")
        done = await node.registry.rollback(name, data.version, request.user.name, is_admin=is_admin)
        return views.version(done)

    @post("/{name:str}/start", guards=OPERATE, status_code=200, summary="Start")
    async def start(self, node: Node, request: Req, name: str) -> datasources.Done:
        """Ends a pause or a quarantine. Starting what runs changes nothing; what is finished, or unpublished, is a
        409."""
        await node.registry.start(name, request.user.name)
        return datasources.Done(name=name, action="start")

    @post("/{name:str}/stop", guards=OPERATE, status_code=200, summary="Stop gracefully")
    async def stop(self, node: Node, request: Req, name: str) -> datasources.Done:
        """Over within its deadline, whatever the connector does."""
        await node.registry.set_enabled(name, False, request.user.name)
        return datasources.Done(name=name, action="stop")

    @post("/{name:str}/pause", guards=OPERATE, status_code=200, summary="Pause: stop reading, and go on accepting")
    async def pause(self, node: Node, request: Req, name: str) -> datasources.Done:
        """Webhooks are answered 202 and wait in the inbox; programs that push stay connected and keep their records.
        A start ends it."""
        await node.registry.pause(name, request.user.name)
        return datasources.Done(name=name, action="pause")

    @post("/{name:str}/restart", guards=OPERATE, status_code=200, summary="Restart")
    async def restart(self, node: Node, request: Req, name: str) -> datasources.Done:
        """Also ends a quarantine, and gives a rejected version another chance."""
        await node.registry.restart(name, request.user.name)
        return datasources.Done(name=name, action="restart")

    @post("/{name:str}/reload", guards=OPERATE, status_code=200, summary="Read the configuration now")
    async def reload(self, node: Node, request: Req, name: str) -> datasources.Done:
        """What a wake-up does by itself."""
        await node.registry.reload(name, request.user.name)
        return datasources.Done(name=name, action="reload")

    @post("/{name:str}/backfill", guards=OPERATE, status_code=201, summary="Send old records through it")
    async def backfill(
        self, node: Node, request: Req, name: str, data: datasources.Backfill | None = None
    ) -> datasources.BackfillBegun:
        """`from` is the URL of a storage that holds them (default: the source's own history), `table` one of it. Nodes
        run it as a dump; the live stream goes on, and its records win. Who is no admin may name only what is allowed.
        """
        found = await node.registry.get(name)
        wish = replace(_wish(data or datasources.Backfill()), is_bounded=not may(request.user, "administer"))
        guard = (await node.registry.reaching()).guard(is_trusted=not wish.is_bounded)
        _, prepared = await backfill.running_version(node.registry, found.id)
        try:
            dump = await backfill.create(node.dumps, found.id, found.name, prepared, wish, request.user.name, guard)
        except (StorageError, OutOfReach) as error:  # The node is well; what it was sent to is not.
            raise Refused(error.message, code=error.code, hint=error.hint) from None
        await node.registry.record_event(found.id, "backfill_begun", {"dump": str(dump)}, request.user.name)
        return datasources.BackfillBegun(name=found.name, action="backfill", dump=str(dump))

    @get("/{name:str}/versions", guards=SEE, summary="All versions")
    async def versions(self, node: Node, name: str) -> datasources.Versions:
        """Oldest first."""
        found = await node.registry.get(name)
        all_versions = await node.registry.datasources.versions(found.id)
        return datasources.Versions(items=[views.version(one) for one in all_versions])

    @get("/{name:str}/versions/{number:int}", guards=SEE, summary="One version")
    async def one_version(self, node: Node, name: str, number: int) -> datasources.Version:
        """By number."""
        return views.version(await _version(node, name, str(number)))

    @get("/{name:str}/diff", guards=SEE, summary="How two versions differ")
    async def difference(
        self,
        node: Node,
        name: str,
        before: Annotated[str, Parameter(query="from")] = "published",
        after: Annotated[str, Parameter(query="to")] = "draft",
    ) -> datasources.Differences:
        """Numbers, or `published` and `draft`."""
        old, new = await _version(node, name, before), await _version(node, name, after)
        changes = [views.difference(one) for one in diff(views.document(old), views.document(new))]
        return datasources.Differences(before=old.number, after=new.number, changes=changes)

    @get("/{name:str}/state", guards=SEE, summary="What its streams do")
    async def state(self, node: Node, name: str) -> datasources.States:
        """Health and each stream's state."""
        facts = await views.one_facts(node, await node.registry.get(name))
        return datasources.States(health=health(facts), states=[views.state(row, facts) for row in facts.states])

    @get("/{name:str}/explain", guards=SEE, summary="Why it is not moving, in plain words")
    async def explanation(self, node: Node, name: str) -> datasources.Explanation:
        """Sentences, the most telling first."""
        found = await node.registry.get(name)
        facts = await views.one_facts(node, found)
        return datasources.Explanation(name=found.name, health=health(facts), lines=explain(facts))

    @get("/{name:str}/events", guards=SEE, summary="What happened to it")
    async def events(self, node: Node, name: str, after: sse.AfterOrNow = None, limit: int = 100) -> datasources.Events:
        """The latest, or those after an id."""
        found = await node.registry.get(name)
        limit = max(1, min(limit, 1000))
        if after is None:
            rows = await node.registry.events.last(found.id, limit)
        else:
            rows = await node.registry.events.after(found.id, after, limit)
        return datasources.Events(items=[views.event(row) for row in rows])

    @get("/{name:str}/events/stream", guards=SEE, summary="The same, live (SSE)", responses=sse.spec(datasources.Event))
    async def events_live(self, node: Node, request: Req, name: str, after: sse.After = 0) -> sse.Live:
        """Each event once, in order."""
        id = (await node.registry.get(name)).id
        feeds: Feeds = request.app.state.feeds
        events = feeds.events.follow(
            sse.resumed(request, after),
            lambda after: node.registry.events.after(id, after),
            lambda row: row.datasource == id,
        )
        return sse.live(request, events)

    @get(
        "/{name:str}/logs",
        guards=SEE,
        summary="The last log lines of its streams; live (SSE) unless follow=false",
        responses=LINES,
    )
    async def logs(
        self, node: Node, request: Req, name: str, follow: bool = True, after: sse.After = 0
    ) -> Response[datasources.Lines] | sse.Live:
        """From any node, whichever runs it."""
        id = (await node.registry.get(name)).id
        if not follow:
            return Response(datasources.Lines(items=[views.line(row) for row in await node.logs.after(id, after)]))
        feeds: Feeds = request.app.state.feeds
        lines = feeds.lines(id).follow(
            sse.resumed(request, after), lambda after: node.logs.after(id, after), lambda line: True
        )
        return sse.live(request, lines)


async def _version(node: Node, name: str, which: str) -> Version:
    found = await node.registry.get(name)
    if which == "draft":
        version = await node.registry.datasources.draft(found.id)
    elif which == "published":
        version = await node.registry.datasources.version(found.id, found.published_version)
    else:
        number = int(which) if which.isdecimal() and len(which) < 10 else 0
        version = await node.registry.datasources.version(found.id, number)
    if version is None:
        raise NotFound(f"datasource {found.name!r} has no version {which}", hint=f"headgate ds show {found.name}")
    return version

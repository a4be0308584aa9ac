"""Dumps: begin one, look at it, and have it wait, go on or end.

To begin a dump is to have a node open addresses and files, and read or write what is there. An operator may name those
that an admin has allowed, an admin may name any, and the nodes that run it judge it again. To pause, resume, retry,
slow down, cancel and verify what has begun reaches nothing new.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from uuid import UUID

import msgspec
import structlog
from litestar import delete, get, post, put

from headgate.connectors.api.bulk import Mode, StorageError
from headgate.connectors.guard import OutOfReach
from headgate.core.access import Caller, may
from headgate.errors import ConfigError, HeadgateError, Problem, Refused
from headgate.hidden import hide
from headgate.runtime.dumps import control, plan, views
from headgate.runtime.dumps.addresses import Addresses
from headgate.runtime.dumps.verdicts import VerifyDone, VerifyFailed, VerifyRunning
from headgate.runtime.dumps.verify import verify, view
from headgate.runtime.dumps.views import (
    AttemptList,
    ChunkList,
    DumpList,
    DumpSummary,
    DumpView,
    VerifiedDump,
)
from headgate.runtime.node import Node
from headgate.web import subjects
from headgate.web.auth import Needs, Req
from headgate.web.bodies import dumps as bodies

SEE, OPERATE = [Needs("see", subjects.dump)], [Needs("operate", subjects.dump)]

PATH = "/api/dumps/{id:str}"
LIMIT, MOST = 100, 10_000

log = structlog.get_logger()


class Verifications:
    """What this node compares, and what it found. Kept in memory: it is cheap to do again."""

    def __init__(self) -> None:
        self._found: dict[UUID, VerifyRunning | VerifyDone | VerifyFailed] = {}
        self._tasks: dict[UUID, asyncio.Task[None]] = {}

    def of(self, dump: UUID) -> VerifyRunning | VerifyDone | VerifyFailed | None:
        """The comparison of one dump."""
        return self._found.get(dump)

    async def begin(self, node: Node, id: str, *, repair: bool) -> None:
        """In the background. Refused while the same is under way."""
        row = await node.dumps.find(id)
        dump = row.id
        if row.datasource_id is not None:
            raise Refused("a backfill leaves rows as they are; there is nothing to compare", code="backfill")
        storages = await control.storages_of(node.dumps, row, addresses=Addresses(node.registry))
        if (task := self._tasks.get(dump)) is not None and not task.done():
            raise Refused("this dump is being verified", code="verifying", hint="look again in a while")
        self._found[dump] = VerifyRunning(repair=repair)
        self._tasks[dump] = asyncio.create_task(self._run(node, dump, storages, repair), name=f"verify {dump}")

    async def _run(self, node: Node, dump: UUID, storages: plan.Storages, repair: bool) -> None:
        def on_progress(table: str, done: int, chunks: int) -> None:
            self._found[dump] = VerifyRunning(repair=repair, table=table, chunks_done=done, chunks=chunks)

        try:
            found = view(await verify(node.dumps, dump, storages, repair=repair, notify=on_progress))
            self._found[dump] = VerifyDone(**{**msgspec.structs.asdict(found), "repair": repair})
        except HeadgateError as error:
            self._found[dump] = VerifyFailed(repair=repair, error=hide(error.message), hint=hide(error.hint))
        except Exception as error:
            log.error("a verification failed in an unexpected way", dump=str(dump), exc_info=error)
            text = "this should not have happened; the node's log says more"
            self._found[dump] = VerifyFailed(repair=repair, error=text, hint="")
        finally:
            self._tasks.pop(dump, None)


@get("/api/dumps", guards=[Needs("list")], tags=["dumps"], summary="All dumps, the newest first")
async def list_dumps(node: Node, request: Req, limit: int = LIMIT) -> DumpList:
    """Without their tables. Passwords are in no answer."""
    return DumpList(await seen_dumps(node, request.user, max(1, min(limit, MOST))))


@post("/api/dumps", guards=[Needs("operate_all")], tags=["dumps"], summary="Begin a dump that nodes run")
async def begin_dump(node: Node, request: Req, data: bodies.BeginDump) -> DumpView:
    """`source` and `target` are URLs as a node sees them, or `${secret:NAME}`; the rest is as in `headgate dump`. Who
    is no admin may name only what is allowed, and secrets where a datasource could use them."""
    asked = _request(data, request.user)
    if node.registry.secrets.keyring is None:
        raise Refused(
            "nodes cannot read the URLs of a dump without a master key",
            code="no_master_key",
            hint="set HEADGATE_MASTER_KEY, the same on all nodes",
        )
    addresses = Addresses(node.registry)
    try:
        sides = await addresses.both(asked.source, asked.target, is_trusted=not asked.options.is_bounded)
        made = await plan.create(node.dumps, asked, *sides)
    except (StorageError, OutOfReach) as error:  # The node is well; what it was sent to is not.
        raise Refused(error.message, code=error.code, hint=error.hint) from None
    return await views.describe(node.dumps, str(made))


@get(PATH, guards=SEE, tags=["dumps"], summary="One dump with its tables")
async def show_dump(node: Node, request: Req, id: str) -> VerifiedDump:
    """By its id, or the beginning of it. `verify` is what this node has compared."""
    return _with_verification(request, await views.describe(node.dumps, id))


@get(f"{PATH}/chunks", guards=SEE, tags=["dumps"], summary="The chunks of a dump")
async def dump_chunks(node: Node, id: str, table: str | None = None) -> ChunkList:
    """As far as they are planned, in the order of the plan; `?table=` those of one table."""
    return ChunkList(await views.chunks(node.dumps, id, table))


@get(f"{PATH}/history", guards=SEE, tags=["dumps"], summary="Every attempt of every chunk")
async def dump_history(node: Node, id: str, after: int = 0, limit: int = 1000) -> AttemptList:
    """Oldest first; `?after=` those after this attempt's id."""
    return AttemptList(await views.history(node.dumps, id, max(0, after), max(1, min(limit, MOST))))


@post(f"{PATH}/pause", guards=OPERATE, status_code=200, tags=["dumps"], summary="Have a dump wait")
async def pause_dump(node: Node, id: str) -> DumpView:
    """Chunks under way are finished. Refused if no process runs it."""
    return await control.pause(node.dumps, id)


@post(f"{PATH}/resume", guards=OPERATE, status_code=200, tags=["dumps"], summary="Have a dump go on")
async def resume_dump(node: Node, id: str) -> DumpView:
    """One that waits, or that nodes run. One that was begun on somebody's machine is resumed there."""
    return await control.resume(node.dumps, id)


@post(f"{PATH}/retry", guards=OPERATE, status_code=200, tags=["dumps"], summary="Copy only some chunks of a dump")
async def retry_dump(node: Node, id: str, data: bodies.Retry) -> DumpView:
    """`chunks` is text such as `3,7-9`, by the numbers of the history; `table` is needed if there are several."""
    return await control.retry(node.dumps, id, data.chunks, data.table)


@post(f"{PATH}/cancel", guards=OPERATE, status_code=200, tags=["dumps"], summary="Give a dump up")
async def cancel_dump(node: Node, id: str) -> DumpView:
    """Tables that it was building are removed; rows that it appended stay."""
    return await control.cancel(node.dumps, id, Addresses(node.registry))


@post(f"{PATH}/clean", guards=OPERATE, status_code=200, tags=["dumps"], summary="Remove what a dump left for itself")
async def clean_dump(node: Node, id: str) -> DumpView:
    """At the target: its ledger, or hidden files. What it copied stays. Refused unless it is completed or cancelled."""
    return await control.clean(node.dumps, id, addresses=Addresses(node.registry))


@delete(PATH, guards=OPERATE, tags=["dumps"], summary="Forget a dump that is over")
async def delete_dump(node: Node, id: str) -> None:
    """With its plan and its history. What it copied stays. Refused unless it is completed or cancelled."""
    await control.delete(node.dumps, id, node.settings.home)


@put(f"{PATH}/rate", guards=OPERATE, tags=["dumps"], summary="Have a dump go faster or slower")
async def set_dump_rate(node: Node, id: str, data: bodies.SetRate) -> DumpView:
    """`rate` is text such as `5000`, `20k` or `20MB`, a second; null or `max` is as fast as it goes."""
    return await control.set_rate(node.dumps, id, data.rate)


@post(f"{PATH}/verify", guards=OPERATE, status_code=202, tags=["dumps"], summary="Compare the target with the source")
async def verify_dump(node: Node, request: Req, id: str, data: bodies.Verify | None = None) -> VerifiedDump:
    """In the background; how it goes is in the dump's `verify`. With `repair`, chunks that differ are copied again."""
    await request.app.state.verifications.begin(node, id, repair=data is not None and data.repair)
    return _with_verification(request, await views.describe(node.dumps, id))


async def seen_dumps(node: Node, caller: Caller, limit: int) -> list[DumpSummary]:
    """The newest dumps that this caller sees: with a token that names datasources, the backfills of those."""
    if caller.bounds is None:
        return await views.listed(node.dumps, limit)
    found = await views.listed(node.dumps, MOST)
    return [one for one in found if one.datasource is not None and subjects.sees(caller, one.datasource)][:limit]


def _with_verification(request: Req, found: DumpView) -> VerifiedDump:
    known = request.app.state.verifications.of(UUID(found.id))
    return VerifiedDump(**{**msgspec.structs.asdict(found), "verify": known})


def _request(body: bodies.BeginDump, caller: Caller) -> plan.Request:
    names = (body.tables, body.key, body.include, body.exclude, body.columns, body.since)
    texts = [body.source, body.target, *chain.from_iterable(names)]
    if any("\0" in text for text in texts):
        raise ConfigError([Problem("", "no text may have a zero byte")])
    return plan.Request(
        body.source,
        body.target,
        tables=body.tables,
        options=plan.Options(
            Mode(body.mode),
            body.workers,
            source_timeout_s=body.source_timeout_s,
            is_bounded=not may(caller, "administer"),
        ),
        rows=body.chunk_rows,
        rate=body.rate,
        key=body.key,
        include=body.include,
        exclude=body.exclude,
        schema_only=body.schema_only,
        data_only=body.data_only,
        owners=body.owners,
        privileges=body.privileges,
        columns=body.columns,
        since=body.since,
        yes=body.yes,
        spread=body.spread,
        place="nodes",
        actor=caller.name,
    )


ROUTES = [
    list_dumps,
    begin_dump,
    show_dump,
    dump_chunks,
    dump_history,
    pause_dump,
    resume_dump,
    retry_dump,
    cancel_dump,
    clean_dump,
    delete_dump,
    set_dump_rate,
    verify_dump,
]

"""What a node's metrics are made from: streams of this node, and those at rest that it reports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

from headgate.clock import unix_s
from headgate.core import lifecycle
from headgate.core.figures import InboxBacklog, figures, lag_s
from headgate.datasources.health import health, status_at_rest
from headgate.ids import stream_name
from headgate.runtime.node import Node
from headgate.runtime.streams.handle import Handle
from headgate.slices import SLICE, made_of, sliced
from headgate.store.states import Resting
from headgate.telemetry.metrics import (
    COUNTERS,
    DatasourceFigures,
    DumpFigures,
    GroupFigures,
    NodeCollector,
    StreamFigures,
)
from headgate.web.api import views
from headgate.web.doors.groups import GroupDoor
from headgate.web.doors.push import PushDoor
from headgate.web.doors.webhooks import WebhookDoor

MOST_RESTING = 10_000  # Streams at rest that a node reports: a scrape must stay small. Failed ones come first.


def collector_of(node: Node, webhooks: WebhookDoor, push: PushDoor, groups: GroupDoor) -> NodeCollector:
    """All metrics of a node and of its doors."""

    async def group_figures() -> dict[str, int]:
        return {**await node.group_rows.figures(), "moving": await node.worker_groups.moving()}

    async def dump_figures() -> dict[str, int]:
        return {**await node.dumps.figures(), **await node.dumps.totals()}

    inboxes: dict[UUID, InboxBacklog] = {}
    at_rest: dict[UUID, str] = {}  # The names of the streams at rest.

    async def resting() -> list[StreamFigures]:
        found = await node.registry.states.resting(node.incarnation, MOST_RESTING)
        inboxes.clear()
        inboxes.update(await node.inbox.unread(node.inboxes.acked))
        at_rest.clear()
        at_rest.update({one.stream: stream_name(one.datasource, one.part) for one in found})
        return await made_of(found, lambda one: _at_rest(one, inboxes.get(one.datasource_id)))

    async def taken() -> set[str]:
        ids = await node.registry.states.taken(list(at_rest)) if at_rest else ()
        return {at_rest[id] for id in ids}

    async def here() -> AsyncIterator[StreamFigures]:
        async for some in sliced(node.manager.handles() if node.manager else [], SLICE):
            for handle in some:
                if not _is_lost(handle):
                    yield _here(handle, inboxes.get(handle.datasource) if handle.share.index == 0 else None)

    return NodeCollector(
        here,
        resting,
        taken,
        lambda: _datasources(node),
        lambda: node.registry_problem is not None if node.has_registry_file else None,
        lambda: len(node.registry.list_active_datasources()),
        node.trust_left_s,
        lambda: node.sign.delay_s,
        webhooks.figures,
        push.figures,
        GroupFigures(group_figures, node.groups.handed_over_s, lambda: groups.open, groups.ends),
        DumpFigures(dump_figures),
    )


async def _datasources(node: Node) -> DatasourceFigures:
    """What the oldest node reports of all datasources."""
    nodes = [one for one in await node.nodes.all() if not one.ended]
    if not nodes or nodes[0].id != node.incarnation:
        return DatasourceFigures()
    healths, rejected = [], []
    async for facts, _ in views.all_facts(node):
        name = facts.datasource.name
        healths.append((name, health(facts)))
        if facts.published is not None and facts.published.status == "rejected":
            rejected.append(name)
    return DatasourceFigures(healths, rejected, await node.registry.states.pushed(node.incarnation))


def _is_lost(handle: Handle) -> bool:
    """Whether its grant has ended, though its run may not have: another node may have it by now, and reports it."""
    return handle.holding.epoch is None and handle.holding.last_epoch is not None


def _here(handle: Handle, inbox: InboxBacklog | None) -> StreamFigures:
    totals, reported = handle.totals, handle.stats.reported(handle.totals)
    found = figures(totals, reported, unix_s(), moves=True, inbox=inbox)
    return StreamFigures(
        handle.name.partition(":")[0],
        handle.name,
        lifecycle.status(handle.state)[0],
        {name: getattr(reported, name) for name in COUNTERS},
        totals if handle.pusher is None else None,
        found.lag_s,
        found.last_event_delay_s,
        found.backlog_records,
        found.backlog_bytes,
        found.last_write_s,
        found.last_record_at_s,
    )


def _at_rest(stream: Resting, inbox: InboxBacklog | None) -> StreamFigures:
    """Its counters stay as they were. Its silence is no news, but what waits for it is."""
    name = stream_name(stream.datasource, stream.part)
    counts = {name: getattr(stream.reported, name) for name in COUNTERS}
    status = status_at_rest(stream) if stream.is_dealt else None
    found = StreamFigures(stream.datasource, name, status, counts, None if stream.is_pushed else stream.totals)
    if inbox is None or stream.is_pushed or stream.part != "0":
        return found
    behind_s = lag_s(stream.totals, stream.reported, unix_s(), inbox)
    return replace(found, lag_s=behind_s, backlog_records=inbox.records, backlog_bytes=inbox.bytes)

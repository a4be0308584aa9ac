"""What a node's metrics are made from: streams of this node, and those at rest that it reports."""

from __future__ import annotations

from collections.abc import AsyncIterator

from headgate.core import lifecycle
from headgate.datasources.health import status_at_rest
from headgate.ids import stream_name
from headgate.runtime.node import Node
from headgate.runtime.streams.handle import Handle
from headgate.store.states import Resting
from headgate.telemetry.metrics import COUNTERS, DumpFigures, GroupFigures, NodeCollector, StreamFigures
from headgate.web.doors.groups import GroupDoor
from headgate.web.doors.push import PushDoor
from headgate.web.doors.webhooks import WebhookDoor
from headgate.web.slices import SLICE, sliced

MOST_RESTING = 10_000  # Streams at rest that a node reports: a scrape must stay small. Failed ones come first.


def collector_of(node: Node, webhooks: WebhookDoor, push: PushDoor, groups: GroupDoor) -> NodeCollector:
    """All metrics of a node and of its doors."""

    async def group_figures() -> dict[str, int]:
        return {**await node.group_rows.figures(), "moving": await node.worker_groups.moving()}

    async def dump_figures() -> dict[str, int]:
        return {**await node.dumps.figures(), **await node.dumps.totals()}

    async def resting() -> list[StreamFigures]:
        return [_at_rest(one) for one in await node.registry.states.resting(node.incarnation, MOST_RESTING)]

    async def here() -> AsyncIterator[StreamFigures]:
        async for some in sliced(node.manager.handles() if node.manager else [], SLICE):
            for handle in some:
                yield _here(handle)

    return NodeCollector(
        here,
        resting,
        lambda: len(node.registry.list_active_datasources()),
        node.trust_left_s,
        lambda: node.sign.delay_s,
        webhooks.figures,
        push.figures,
        GroupFigures(group_figures, node.groups.handed_over_s, lambda: groups.open, groups.ends),
        DumpFigures(dump_figures),
    )


def _here(handle: Handle) -> StreamFigures:
    stats = handle.stats
    return StreamFigures(
        handle.name.partition(":")[0],
        handle.name,
        lifecycle.status(handle.state)[0],
        {name: getattr(stats, name) for name in COUNTERS},
        stats.lag_s,
        stats.last_write_s,
        stats.last_record_at_s,
    )


def _at_rest(stream: Resting) -> StreamFigures:
    """Its counters stay as they were. It has no lag, and its silence is no news."""
    name = stream_name(stream.datasource, stream.part)
    counts = {name: getattr(stream.metrics, name) for name in COUNTERS}
    return StreamFigures(stream.datasource, name, status_at_rest(stream), counts)

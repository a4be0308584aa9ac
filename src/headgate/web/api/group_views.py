"""How groups look in answers: those of programs outside, and the streams that nodes run, each with its explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from headgate.core.access import Caller, names
from headgate.core.groups import explain as explain_group
from headgate.core.groups import machine as groups
from headgate.core.groups.explain import Outside, SeenConsumer, SeenNode, Workers
from headgate.core.groups.roster import name_of
from headgate.core.lease import SILENT_S
from headgate.errors import NotFound
from headgate.runtime.node import Node
from headgate.store.groups import LATELY, ConsumerRow, GroupRow
from headgate.store.listed import HistoryLine
from headgate.store.nodes import Node as NodeRow
from headgate.store.worker_groups import NAME as WORKERS
from headgate.store.worker_groups import WorkerGroup
from headgate.web.bodies import groups as bodies
from headgate.web.subjects import of_group

MOST_BOUND = 10_001  # Groups among which those are looked for that a token names.


@dataclass(frozen=True, slots=True)
class Explained:
    """A group, and the sentences that explain it."""

    group: bodies.GroupDetails
    lines: list[str]


async def all_groups(node: Node, caller: Caller, stream: str | None, limit: int) -> tuple[list[bodies.Group], bool]:
    """A page of the groups that this caller sees, by their names, each in one line; and whether there are more."""
    if "\0" in (stream or ""):  # No name has one, and the database takes none.
        return [], False
    most = limit + 1 if caller.bounds is None else MOST_BOUND
    outside = [_outside(node, row) for row in await node.group_rows.all(stream, limit=most)]
    rows, nodes = await node.worker_groups.all(stream, most), await node.nodes.all()
    found = [one.group for one in outside + [_workers(node, row, nodes, []) for row in rows]]
    found = [one for one in found if names(caller, of_group(one.stream, one.name))]
    found.sort(key=lambda one: (one.stream, one.name))
    return [_line_of(one) for one in found[:limit]], len(found) > limit


def _line_of(found: bodies.GroupDetails) -> bodies.Group:
    return bodies.Group(**{field: getattr(found, field) for field in bodies.Group.__struct_fields__})


async def one_group(node: Node, stream: str, name: str) -> Explained:
    """One group with its members, the sentences that explain it, and its last transitions."""
    if "\0" in stream + name:
        raise NotFound(f"group {name!r} of {stream!r} does not exist", hint="headgate groups list")
    if name == WORKERS and (rows := await node.worker_groups.all(stream, 1)):
        lately = [_transition(row) for row in reversed(await node.streams.history(rows[0].id, LATELY))]
        return _workers(node, rows[0], await node.nodes.all(), lately)
    return _outside(node, await node.groups.find(stream, name))


async def is_of_workers(node: Node, stream: str, name: str) -> bool:
    """Whether nodes are its members."""
    return name == WORKERS and bool(await node.worker_groups.all(stream, 1))


# Programs outside.


def _outside(node: Node, row: GroupRow) -> Explained:
    waits_s = {
        one.id: node.groups.waits_s(one, row) for one in row.members if one.connectivity != "connected" or one.muted
    }
    members = {str(one.id): _consumer(one, waits_s.get(one.id, 0.0)) for one in row.members}
    wanted = groups.wanted(row.group)
    next_one = None if wanted is None else members[wanted.id]
    group = Outside(tuple(members.values()), row.partition, row.ignored, next_one, row.fenced)
    active = next((one for one in row.members if members[str(one.id)].is_holder and one.activity == "active"), None)
    details = bodies.GroupDetails(
        kind="outside",
        stream=row.stream,
        name=row.name,
        partition=row.partition,
        status=explain_group.outside_status(group),
        active=None if active is None else members[str(active.id)].name,
        epoch=row.epoch,
        since=None if active is None else active.since.isoformat(),
        consumers=len(row.members),
        members=[_member(one, waits_s.get(one.id)) for one in row.members],
        lately=[bodies.Transition(at=one.at, what=one.what, who=one.who, told=list(one.told)) for one in row.lately],
        lease_s=row.lease_s,
        ignored=row.ignored,
        fenced=row.fenced,
    )
    return Explained(details, explain_group.explain_outside(group))


def _member(one: ConsumerRow, waits_s: float | None) -> bodies.Consumer:
    return bodies.Consumer(
        id=str(one.id),
        label=name_of(one.label, one.id),
        node=one.node,
        connectivity=one.connectivity,
        activity="waiting" if one.connectivity == "forgotten" else one.activity,  # What it was, it is no more.
        epoch=one.epoch,
        node_id=one.node_id,
        incarnation=one.incarnation,
        answered=one.answered,
        muted=one.muted,
        trust_s=one.trust_s,
        since=one.since.isoformat(),
        waits_s=None if waits_s is None else round(waits_s, 1),
    )


def _consumer(one: ConsumerRow, waits_s: float) -> SeenConsumer:
    return SeenConsumer(
        name_of(one.label, one.id),
        one.connectivity,
        one.activity,
        one.epoch,
        _age_s(one.since),
        one.node,
        one.answered,
        one.muted,
        waits_s,
    )


# Streams that nodes run.


def _workers(node: Node, row: WorkerGroup, nodes: Sequence[NodeRow], lately: list[bodies.Transition]) -> Explained:
    names = _names(nodes)
    candidates = {one.id: _candidate(node, one, names, row.unable) for one in nodes}
    gone = SeenNode("a node that is gone")
    owner = candidates.get(row.owner, gone) if row.owner else None
    takes_in_s = node.ticker.takes_in_s(row.id, row.epoch, owner.lease_s) if owner and row.stepping else None
    group = Workers(
        row.stream,
        tuple(candidates.values()),
        row.epoch,
        owner,
        is_begun=row.run is not None,
        for_s=_age_s(row.since) if row.since else None,
        preferred=candidates.get(row.preferred, gone) if row.preferred else None,
        is_pinned=row.pinned,
        is_stepping=row.stepping,
        takes_in_s=takes_in_s,
        is_modulo=row.is_modulo,
        stopped=_stopped(node, row),
    )
    details = bodies.GroupDetails(
        kind="workers",
        stream=row.stream,
        name=WORKERS,
        partition=row.index if row.is_modulo else None,
        status=explain_group.workers_status(group),
        active=owner.name if owner else None,
        epoch=row.epoch,
        since=row.since.isoformat() if owner and row.since else None,
        consumers=len(candidates),
        members=[_seat(id, one, row) for id, one in candidates.items()],
        lately=lately,
        preferred=group.preferred.name if group.preferred else None,
        is_pinned=row.pinned,
        takes_in_s=None if takes_in_s is None else round(takes_in_s, 1),
    )
    return Explained(details, explain_group.explain_workers(group))


def _candidate(node: Node, row: NodeRow, names: Mapping[UUID, str], unable: Mapping[UUID, str]) -> SeenNode:
    silent_s = node.watcher.silent_s(row.id)
    is_silent = silent_s > SILENT_S
    reason = unable.get(row.id, "")
    return SeenNode(names[row.id], row.draining, is_silent, silent_s, row.lease_s, reason, row.ended)


def _seat(id: UUID, one: SeenNode, row: WorkerGroup) -> bodies.Consumer:
    activity = "waiting" if id != row.owner else "deactivating" if row.stepping else "active"
    return bodies.Consumer(
        id=str(id),
        label=one.name,
        node=one.name,
        connectivity="disconnected" if one.is_silent else "connected",
        activity=activity,
        epoch=row.epoch if activity != "waiting" else 0,
        why_not=one.why_not,
    )


def _stopped(node: Node, row: WorkerGroup) -> str:
    """Why a stream should not run. Empty: it should."""
    if not node.lists(row.datasource):
        return "the registry file does not name its datasource"
    if row.published_version is None:
        return "nothing has been published"
    if not row.enabled:
        return "its datasource is stopped"
    if row.paused:
        return "its datasource is paused"
    if row.quarantine is not None:
        return f"its datasource is quarantined: {row.quarantine}"
    if row.dealing:
        return "the parts of its source are dealt to another number of streams"
    if row.is_surplus:
        return "its datasource has fewer streams now"
    return "its source has ended" if row.rests else ""


def _names(nodes: Sequence[NodeRow]) -> dict[UUID, str]:
    """What to call the nodes: those that share a name are told apart by their ids."""
    count = Counter(one.name for one in nodes)
    return {one.id: one.name if count[one.name] == 1 else f"{one.name} ({str(one.id)[:8]})" for one in nodes}


def _transition(row: HistoryLine) -> bodies.Transition:
    """A line of a stream's history, in the form that the transitions of other groups have."""
    told: list[bodies.Order] = [("active", row.actor, row.epoch)] if row.kind == "granted" else []
    return bodies.Transition(at=row.at.isoformat(), what=row.kind, who=row.actor, told=told)


def _age_s(at: datetime) -> float:
    return max(0.0, (datetime.now(UTC) - at).total_seconds())

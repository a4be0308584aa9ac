"""How datasources look in answers, made from what the store returns. Nothing secret passes through here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from headgate.core.access import Caller, may
from headgate.datasources.documents import Document
from headgate.datasources.health import Facts, judged
from headgate.datasources.planned import Difference
from headgate.runtime.facts import all_facts as all_facts
from headgate.runtime.facts import all_figures, stream_figures
from headgate.runtime.facts import one_facts as one_facts
from headgate.runtime.node import Node
from headgate.store import events, logs
from headgate.store.datasources import Version
from headgate.store.letters import Numbers
from headgate.store.nodes import Node as NodeRow
from headgate.store.states import StreamState
from headgate.web import bodies
from headgate.web.bodies import datasources, letters
from headgate.web.subjects import sees

TELLING = ("ERROR", "STARTING", "RUNNING", "INIT", "STOPPED")  # Which stream's state speaks for all of them.


def reads_secrets(caller: Caller) -> bool:
    """Whether an answer may depend on the values of secrets: who may publish sees what runs do with them anyway."""
    return may(caller, "operate_listed")


class Seeing(TypedDict):
    """As whom a document is checked."""

    reads_secrets: bool
    is_admin: bool


def sees_as(caller: Caller) -> Seeing:
    """What the answer to this caller may depend on, and what the caller may name."""
    return {"reads_secrets": reads_secrets(caller), "is_admin": may(caller, "administer")}


def version(found: Version) -> datasources.Version:
    """A version, with its document."""
    return datasources.Version(
        number=found.number,
        status=found.status,
        hash=found.content.hash,
        author=found.author,
        reason=found.reason,
        created_at=found.created_at,
        document=document(found),
    )


def document(found: Version) -> bodies.Object:
    """A version as its author wrote it."""
    plain = Document("", True, found.content).plain()
    del plain["enabled"]
    return plain


def state(row: StreamState, facts: Facts) -> datasources.StreamState:
    """One stream's state."""
    return datasources.StreamState(
        stream=str(row.stream),
        index=row.index,
        label=row.label,
        worker_status=row.worker_status,
        detail=row.detail,
        node=row.node_name,
        heartbeat=row.heartbeat,
        version=row.version,
        epoch=row.epoch,
        metrics=stream_figures(row, facts),
        reading_since_s=row.reported.reading_since_s,
        writing_since_s=row.reported.writing_since_s,
        error=row.error,
        changed_at=row.changed_at,
    )


def summary(facts: Facts, *, has_draft: bool) -> datasources.Summary:
    """A datasource in one line."""
    found, published, verdict = facts.datasource, facts.published, judged(facts)
    first = min(facts.states, key=lambda state: TELLING.index(state.worker_status), default=None)
    return datasources.Summary(
        id=str(found.id),
        name=found.name,
        enabled=found.enabled,
        paused=found.paused,
        health=verdict.health,
        why=verdict.why,
        worker_status=first.worker_status if first else "INIT",
        detail=first.detail if first else "not started",
        published_version=found.published_version,
        running_version=found.running_version,
        published_status=published.status if published else None,
        has_draft=has_draft,
        source_type=published.content.source.get("type") if published else None,
        sink_type=published.content.sink.get("type") if published else None,
        metrics=all_figures(facts),
        error=first.error if first else None,
        node=first.node_name if first else None,
        quarantine=found.quarantine,
        reason=published.reason if published else None,
        labels=_labels(published),
    )


def _labels(published: Version | None) -> list[str]:
    found = published.content.options.get("labels") if published is not None else None
    return list(found) if isinstance(found, list) else []


async def summaries(node: Node, caller: Caller, nodes: Sequence[NodeRow] | None = None) -> list[datasources.Summary]:
    """Every datasource that this caller sees in one line, by name. `nodes` are those that were just read."""
    found: list[datasources.Summary] = []
    async for facts, has_draft in all_facts(node, nodes):
        if sees(caller, facts.datasource.name):
            found.append(summary(facts, has_draft=has_draft))
    return found


async def notices(node: Node, caller: Caller) -> list[str]:
    """What is wrong apart from datasources, for those who may see it."""
    return notices_of(await node.nodes.all()) if may(caller, "see_all") else []


def notices_of(nodes: Sequence[NodeRow]) -> list[str]:
    """What is wrong with these nodes."""
    found = [(one.name, one.registry_problem) for one in nodes if one.registry_problem]
    return [f"the registry file of {name} is not usable; what runs goes on: {problem}" for name, problem in found]


async def whole(node: Node, name: str) -> datasources.Datasource:
    """A datasource with its draft, its published version and its streams' states."""
    found = await node.registry.get(name)
    facts = await one_facts(node, found)
    draft = await node.registry.datasources.draft(found.id)
    line = summary(facts, has_draft=draft is not None)
    return datasources.Datasource(
        **{field: getattr(line, field) for field in line.__struct_fields__},
        draft=None if draft is None else version(draft),
        published=None if facts.published is None else version(facts.published),
        states=[state(row, facts) for row in facts.states],
        letters=letter_numbers(await node.letters.numbers(found.id)),
    )


def letter_numbers(found: Numbers) -> letters.LetterNumbers:
    """What became of dead letters."""
    return letters.LetterNumbers(**{name: getattr(found, name) for name in found.__slots__})


def event(row: events.Recorded) -> datasources.Event:
    """Something that happened."""
    return datasources.Event(id=row.id, name=row.name, type=row.type, payload=row.payload, actor=row.actor, at=row.at)


def line(row: logs.Kept) -> datasources.Line:
    """A log line."""
    found = row.line
    return datasources.Line(id=row.id, at=found.at, level=found.level, text=found.text, fields=dict(found.fields))


def named_line(row: logs.Named) -> datasources.NamedLine:
    """A log line, with whose it is."""
    found = row.line
    fields = dict(found.fields)
    return datasources.NamedLine(
        id=row.id, at=found.at, level=found.level, text=found.text, fields=fields, name=row.name
    )


def difference(found: Difference) -> datasources.Difference:
    """A place at which two documents differ."""
    return datasources.Difference(path=found.path, before=found.before, after=found.after)

"""The pages of one datasource: how it is and why, its records as they flow, its log lines, and what happened to it.

Each is a tab with its address. What changes something is a call of the API (`acts.py`), and each has its command.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from litestar import Response, get

from headgate.clock import unix_s
from headgate.core.access import Caller, OfDatasource, may
from headgate.datasources.health import explain
from headgate.demo import EXAMPLES
from headgate.runtime.node import Node
from headgate.store.datasources import Datasource
from headgate.text import counted
from headgate.web import subjects
from headgate.web.api import views
from headgate.web.auth import Needs
from headgate.web.bodies.datasources import StreamState, Summary
from headgate.web.console import words
from headgate.web.console.acts import Act, command
from headgate.web.console.events import said
from headgate.web.console.frame import framed
from headgate.web.console.session import Req, signed_in

EVENTS = 100
MOST_STREAMS = 100
SEE, OPERATE = Needs("see", subjects.datasource), Needs("operate", subjects.datasource)
TABS = (
    ("State", ""),
    ("Live records", "records"),
    ("Logs", "logs"),
    ("Events", "events"),
    ("Versions", "versions"),
    ("Edit and test", "draft"),
)
OPERATED = ("records", "draft")  # They show records, or change something.
MARKS = {"RUNNING": "ok", "ERROR": "error", "STARTING": "starting", "INIT": "starting", "STOPPED": "stopped"}


@get("/datasources/{name:str}", include_in_schema=False, needs=SEE)
async def state_page(node: Node, request: Req, name: str) -> Response[Any]:
    """How it is, and why."""
    return await signed_in(request, lambda holder: _state(node, request, holder, name))


@get("/datasources/{name:str}/records", include_in_schema=False, needs=OPERATE)
async def records_page(node: Node, request: Req, name: str) -> Response[Any]:
    """Its records as they flow."""
    return await signed_in(request, lambda holder: shown(node, holder, name, "records.html", tab="records"))


@get("/datasources/{name:str}/logs", include_in_schema=False, needs=SEE)
async def logs_page(node: Node, request: Req, name: str) -> Response[Any]:
    """Its log lines."""
    return await signed_in(request, lambda holder: shown(node, holder, name, "logs.html", tab="logs"))


@get("/datasources/{name:str}/events", include_in_schema=False, needs=SEE)
async def events_page(node: Node, request: Req, name: str) -> Response[Any]:
    """What happened to it."""
    return await signed_in(request, lambda holder: _events(node, holder, name))


# What all of them show.


async def shown(node: Node, holder: Caller, name: str, template: str, *, tab: str, **values: Any) -> Response[str]:
    """A page of this datasource, with its head."""
    found = await node.registry.get(name)
    facts = await views.one_facts(node, found)
    has_draft = await node.registry.datasources.draft(found.id) is not None
    summary = views.summary(facts, has_draft=has_draft)
    operates = may(holder, "operate", OfDatasource(found.name))
    acts = _acts(found, summary) if operates else []
    return framed(
        holder,
        template,
        at="overview",
        name=found.name,
        at_name=f"/datasources/{quote(found.name)}",
        summary=summary,
        health=words.HEALTH_WORDS.get(summary.health, summary.health),
        route=words.route(summary),
        tabs=_tabs(found.name, tab, operates=operates),
        acts=acts,
        delete=_delete(found) if operates else None,
        operates=operates,
        **values,
    )


def _tabs(name: str, current: str, *, operates: bool) -> list[tuple[str, str, bool]]:
    tabs = [
        ("State", ""),
        ("Live records", "records"),
        ("Logs", "logs"),
        ("Events", "events"),
        ("Versions", "versions"),
    ]
    if operates:
        tabs.append(("Edit and test", "draft"))
    else:
        tabs.remove(("Live records", "records"))
    at = f"/datasources/{quote(name)}"
    return [(label, f"{at}/{path}" if path else at, path == current) for label, path in tabs]


def _acts(found: Datasource, summary: Summary) -> list[Act]:
    """What makes sense now."""
    runs = found.enabled and not found.paused
    is_over = summary.health in ("ended", "unpublished")
    verbs = [
        ("start", "Go on" if found.paused else "Start", not runs and not is_over),
        ("pause", "Pause", runs and not is_over),
        ("restart", "Restart", runs and summary.health != "unpublished"),
        ("stop", "Stop", found.enabled and summary.health != "unpublished"),
    ]
    at = f"/api/datasources/{quote(found.name)}"
    asks = {"stop": f"Stop {found.name}? Webhooks are refused until it starts again; a pause would take them."}
    return [
        Act(label, f"POST {at}/{verb}", command("ds", verb, found.name), ask=asks.get(verb, ""), done=f"{label}: asked")
        for verb, label, makes_sense in verbs
        if makes_sense
    ]


def _delete(found: Datasource) -> Act:
    return Act(
        "Delete",
        f"DELETE /api/datasources/{quote(found.name)}",
        command("ds", "delete", found.name),
        ask=f"Delete {found.name}? Its versions, logs and dead letters go with it; what it has written stays.",
        done="Deleted.",
        then="/",
        grave=True,
    )


# The tabs.


async def _state(node: Node, request: Req, holder: Caller, name: str) -> Response[str]:
    whole = await views.whole(node, name)
    facts = await views.one_facts(node, await node.registry.get(name))
    step = words.next_step(whole)
    document = whole.published.document if whole.published is not None else {}
    return await shown(
        node,
        holder,
        name,
        "datasource.html",
        tab="",
        lines=explain(facts),
        why=words.why(whole),
        step=step,
        facts=_facts(whole),
        streams=[_stream(whole.name, state) for state in whole.states[:MOST_STREAMS]],
        more=max(0, len(whole.states) - MOST_STREAMS),
        hook=_hook(request, whole.name, document) if whole.source_type == "webhook" else None,
        sends=may(holder, "send", OfDatasource(whole.name)),
        description=document.get("description", ""),
        backfill=_backfill(whole.name),
    )


def _facts(one: Summary) -> list[tuple[str, str]]:
    metrics = one.metrics
    last_s = metrics.last_record_at_s
    backlog = words.count(metrics.backlog_records)
    if metrics.backlog_bytes:
        backlog += f" ({words.size(metrics.backlog_bytes)})"
    return [
        ("Records/s", words.rate(words.rate_of(one))),
        ("Written", words.count(metrics.records_written)),
        ("Filtered", words.count(metrics.records_filtered)),
        ("Dead letters", words.count(metrics.records_dead_lettered)),
        ("Backlog", backlog),
        ("Lag", words.lag(metrics.lag_s)),
        ("Last record", words.ago(None if last_s is None else unix_s() - last_s)),
        ("Errors", words.count(metrics.errors)),
        ("Version", " ".join(filter(None, (words.version(one), words.other_version(one))))),
    ]


def _stream(name: str, state: StreamState) -> dict[str, object]:
    part = state.label if state.index is None else str(state.index)
    return {
        "name": f"{name}:{part}",
        "address": f"/streams/{state.stream}",
        "status": state.worker_status.lower(),
        "mark": MARKS[state.worker_status],
        "detail": state.detail,
        "node": state.node or words.NOTHING,
        "version": f"v{state.version}" if state.version else words.NOTHING,
        "epoch": words.count(state.epoch),
        "written": words.count(state.metrics.records_written),
        "lag": words.lag(state.metrics.lag_s),
        "error": "" if state.error is None else f"{state.error.cause}: {state.error.message}",
    }


@dataclass(frozen=True, slots=True)
class _Hook:
    """How a webhook is called."""

    path: str
    begin: str  # Of the command, up to the record.
    example: str
    is_signed: bool  # Then only who has the key can call it.

    @property
    def command(self) -> str:
        return self.begin + shlex.quote(self.example)


def _hook(request: Req, name: str, document: Mapping[str, Any]) -> _Hook:
    """A call that can be tried at once. Its token is the caller's to fill in."""
    path = f"/hooks/{name}"
    begin = f"curl -X POST {str(request.base_url).rstrip('/')}{path} -H 'Authorization: Bearer TOKEN' -d "
    is_signed = bool(document.get("source", {}).get("signature"))
    return _Hook(path, begin, EXAMPLES.get(name, '{"id": 1}'), is_signed)


def _backfill(name: str) -> Act:
    return Act(
        "Begin",
        f"POST /api/datasources/{quote(name)}/backfill",
        command("ds", "backfill", name),
        done="The backfill has begun; the dumps show how far it is.",
    )


async def _events(node: Node, holder: Caller, name: str) -> Response[str]:
    found = await node.registry.get(name)
    rows = [views.event(row) for row in await node.registry.events.last(found.id, EVENTS)]
    lines = [
        {
            "at": row.at.isoformat(timespec="seconds"),
            "ago": words.since(row.at.isoformat()),
            "type": row.type,
            "text": said(row.payload),
            "actor": row.actor,
        }
        for row in reversed(rows)
    ]
    return await shown(
        node,
        holder,
        name,
        "datasource_events.html",
        tab="events",
        lines=lines,
        all_at=f"/events?datasource={quote(name)}",
        count=counted(len(lines), "event"),
        events_command=command("ds", "events", found.name),
    )

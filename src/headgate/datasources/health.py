"""How a datasource is, in one word and in plain sentences.

The worker's status is what a worker says of itself. Health is what a person wants to know: a worker that runs but has
been silent for longer than expected is not healthy, nor is a datasource whose published version was rejected while an
older one goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from headgate.core.push import PUSH
from headgate.datasources.prepared import DatasourceOptions
from headgate.store.datasources import Datasource, Version
from headgate.store.listed import Unable
from headgate.store.nodes import Node
from headgate.store.states import Resting, StreamState
from headgate.text import counted, parse_duration, roughly

MOST_EXPLAINED = 10  # Of the streams that programs push.

# Worst first.
HEALTHS = ("error", "degraded", "starting", "stopped", "ok")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one datasource."""

    datasource: Datasource
    published: Version | None
    states: Sequence[StreamState]
    nodes: Sequence[Node]  # All of them.
    now_s: float
    unable: Sequence[Unable] = ()  # Which nodes cannot run which of its streams, and why.


def health(facts: Facts) -> str:
    """One of HEALTHS."""
    found = facts.datasource
    if not found.enabled:
        return "stopped"
    if found.quarantine is not None or (facts.published and facts.published.status == "rejected"):
        return "error"
    if found.published_version is None:
        return "stopped"
    # Programs come and go: of their streams only those count that are in use. And of several streams that nodes run,
    # those that have nothing to read count only if all are so.
    states = [state for state in facts.states if not (is_pushed(facts) and state.worker_status == "STOPPED")]
    words = [_word(state) for state in states if state.detail != "finished"] or [_word(state) for state in states]
    words = words or ["ok" if is_pushed(facts) else "starting"]
    worst = min(words, key=HEALTHS.index)
    if worst == "ok" and unmet(facts):
        return "degraded"
    return worst


def is_pushed(facts: Facts) -> bool:
    """Whether programs push its streams."""
    return facts.published is not None and facts.published.content.source.get("type") == PUSH


def _word(state: StreamState) -> str:
    return {"RUNNING": "ok", "ERROR": "error", "STOPPED": "stopped"}.get(state.worker_status, "starting")


def status_at_rest(stream: Resting) -> str:
    """The status of a stream that no node runs. What its last node said may have been overtaken."""
    if not stream.enabled:
        return "STOPPED"
    if stream.is_quarantined:
        return "ERROR"
    if stream.worker_status == "ERROR" or stream.detail == "finished":
        return stream.worker_status
    return "STARTING"  # Its last node is gone or gave it away: another should take it over.


def unmet(facts: Facts) -> list[str]:
    """The expectations that are not met now."""
    if facts.published is None:
        return []
    expect = DatasourceOptions.model_validate(facts.published.content.options).expect
    if expect is None:
        return []
    found = []
    last_s = max((s.metrics.last_record_at_s or 0.0 for s in facts.states), default=0.0)
    began_s = max((s.changed_at.timestamp() for s in facts.states), default=facts.now_s)
    if expect.fresh_within is not None:
        silent_s = facts.now_s - (last_s or began_s)
        if silent_s > parse_duration(expect.fresh_within):
            found.append(f"no record for {roughly(silent_s)}; expected one within {expect.fresh_within}")
    # Volume can be judged only of a worker that has run for the whole hour.
    if expect.min_per_hour is not None and facts.now_s - began_s >= 3600:
        number = sum(s.metrics.last_hour for s in facts.states)
        if number < expect.min_per_hour:
            found.append(f"{counted(number, 'record')} in the last hour; expected {expect.min_per_hour}")
    return found


def explain(facts: Facts) -> list[str]:
    """Why it is not moving, or that it is: sentences, the most telling first."""
    found, published = facts.datasource, facts.published
    lines = []
    if not found.enabled:
        lines.append(f"It is stopped. Start it with: headgate ds start {found.name}")
    if published is None:
        lines.append(f"Nothing has been published. Publish its draft with: headgate ds publish {found.name}")
    if found.quarantine is not None:
        lines.append(
            f"It is quarantined: {found.quarantine}. A publish, a changed secret, a start or a restart tries it again."
        )
    if published is not None and published.status == "rejected":
        lines.append(
            f"Version {published.number} was tried and rejected: {published.reason}."
            + (f" Version {found.running_version} goes on meanwhile." if found.running_version else "")
        )
    if not facts.nodes:
        lines.append("No node is running. Start one with: headgate up")
    if found.dealing:
        lines.append(f"Its streams stop, so that there can be {found.streams} in place of {found.dealt}.")
    elif found.streams != found.dealt:
        lines.append(
            f"{counted(found.streams, 'stream')} should read it and {found.dealt} do: that changes once each "
            "of them runs, or has stopped in good order."
        )
    if found.enabled and published is not None and found.quarantine is None:
        lines += _explain_pushed(facts) if is_pushed(facts) else _explain_streams(facts)
    lines += [f"Not as expected: {text}." for text in unmet(facts)]
    return lines


def _explain_pushed(facts: Facts) -> list[str]:
    """What the streams in use do; of the others, how many there are."""
    used = [state for state in facts.states if state.worker_status != "STOPPED"]
    lines = [f"{state.label}: {_explain_state(state, facts)}" for state in used[:MOST_EXPLAINED]]
    lines += [f"{len(used) - MOST_EXPLAINED} more are in use."] if len(used) > MOST_EXPLAINED else []
    if not facts.states:
        return ["No program has pushed anything yet."]
    return lines or [f"No program pushes now; {counted(len(facts.states), 'stream')} known so far."]


def _explain_streams(facts: Facts) -> list[str]:
    """What each stream does; and of those that nobody has, why nobody takes them."""
    if not facts.states:
        streams: list[UUID | None] = [*{row.stream for row in facts.unable}] or [None]
        waiting = [_why_waiting(stream, facts) for stream in streams]
        return ["No node has taken it up yet.", *filter(None, waiting)]
    lines = []
    for state in facts.states:
        name = f"{state.index}: " if len(facts.states) > 1 else ""
        lines.append(name + _explain_state(state, facts))
        if _is_free(state, facts) and (line := _why_waiting(state.stream, facts)):
            lines.append(name + line)
    return lines


def _is_free(state: StreamState, facts: Facts) -> bool:
    """Whether nobody has the stream, and its last state does not already say why."""
    if state.detail == "quarantined":
        return len(facts.nodes) > 1  # The state is that of the last node that tried.
    if state.detail == "finished":
        return False
    return state.worker_status in ("STOPPED", "INIT") or state.heartbeat is None


def _why_waiting(stream: UUID | None, facts: Facts) -> str:
    """What keeps every node from taking a free stream. Empty if one can."""
    reasons = {row.id: row.reason for row in facts.unable if row.stream == stream}
    takers = [node for node in facts.nodes if not node.draining and node.id not in reasons]
    if takers or not facts.nodes:
        return ""
    if not reasons:
        return "It waits for a node: all are draining. End that with: headgate nodes undrain NODE"
    why = "; ".join(f"{node.name}: {reasons.get(node.id, 'draining')}" for node in facts.nodes)
    return f"It waits for a node that can run it. {why}. A publish, a changed secret or a restart tries it again."


def _explain_state(state: StreamState, facts: Facts) -> str:
    node = state.node_name or "a node that is gone"
    where = f"version {state.version} on {node}" if state.version else f"on {node}"
    cause, message = (state.error.cause, state.error.message) if state.error else ("unknown", "it did not say why")
    match state.worker_status, state.detail:
        case "RUNNING", detail:
            last_s = state.metrics.last_record_at_s
            written = counted(state.metrics.records_out, "record")
            text = f"It is running ({detail}), {where}; {written} written by this node"
            if last_s is None:
                return f"{text}, none yet: the source has had nothing."
            return f"{text}, the last {roughly(facts.now_s - last_s)} ago."
        case "ERROR", "backing off":
            return f"It failed ({cause}) and is being tried again, {where}: {message}"
        case "ERROR", _:
            return (
                f"It failed ({cause}) and is not tried again by itself, {where}: {message}. "
                f"Fix it and publish, or run: headgate ds restart {facts.datasource.name}"
            )
        case "STOPPED", "finished":
            return f"Its source has ended, {where}. Nothing more will come."
        case "STOPPED", _:
            return f"No node has it; {node} had it last."
        case _, detail:
            return f"It is {state.worker_status.lower()} ({detail}), {where}."

"""How a datasource is, in one word and in plain sentences.

The worker's status is what a worker says of itself. Health is what a person wants to know: a worker that runs but has
been silent for longer than expected is not healthy, nor is a datasource whose published version was rejected while an
older one goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headgate.runtime.documents import DatasourceOptions, seconds
from headgate.store.datasources import Datasource, Version

# Worst first.
HEALTHS = ("error", "degraded", "starting", "stopped", "ok")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one datasource."""

    datasource: Datasource
    published: Version | None
    states: list[dict[str, Any]]  # As the state table has them.
    nodes: int
    now_s: float


def health(facts: Facts) -> str:
    """One of HEALTHS."""
    found = facts.datasource
    if not found.enabled:
        return "stopped"
    if found.quarantine is not None or (facts.published and facts.published.status == "rejected"):
        return "error"
    if found.published_version is None:
        return "stopped"
    words = [_word(state) for state in facts.states] or ["starting"]
    worst = min(words, key=HEALTHS.index)
    if worst == "ok" and unmet(facts):
        return "degraded"
    return worst


def _word(state: dict[str, Any]) -> str:
    return {"RUNNING": "ok", "ERROR": "error", "STOPPED": "stopped"}.get(state["worker_status"], "starting")


def unmet(facts: Facts) -> list[str]:
    """The expectations that are not met now."""
    if facts.published is None:
        return []
    expect = DatasourceOptions.model_validate(facts.published.content.options).expect
    if expect is None:
        return []
    found = []
    last_s = max((s["metrics"].get("last_record_at_s") or 0.0 for s in facts.states), default=0.0)
    began_s = max((s["changed_at"].timestamp() for s in facts.states), default=facts.now_s)
    if expect.fresh_within is not None:
        silent_s = facts.now_s - (last_s or began_s)
        if silent_s > seconds(expect.fresh_within):
            found.append(f"no record for {_duration(silent_s)}; expected one within {expect.fresh_within}")
    # Volume can be judged only of a worker that has run for the whole hour.
    if expect.min_per_hour is not None and facts.now_s - began_s >= 3600:
        number = sum(s["metrics"].get("last_hour", 0) for s in facts.states)
        if number < expect.min_per_hour:
            found.append(f"{number} records in the last hour; expected {expect.min_per_hour}")
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
        lines.append(f"It is set aside: {found.quarantine}. A publish, a changed secret or a restart tries it again.")
    if published is not None and published.status == "rejected":
        lines.append(
            f"Version {published.number} was tried and rejected: {published.reason}."
            + (f" Version {found.running_version} goes on meanwhile." if found.running_version else "")
        )
    if facts.nodes == 0:
        lines.append("No node is running. Start one with: headgate up")
    if found.enabled and published is not None and found.quarantine is None:
        lines += [_explain_state(state, facts) for state in facts.states] or ["No node has taken it up yet."]
    lines += [f"Not as expected: {text}." for text in unmet(facts)]
    return lines


def _explain_state(state: dict[str, Any], facts: Facts) -> str:
    node = state["node_name"] or "a node that is gone"
    where = f"version {state['version']} on {node}" if state["version"] else f"on {node}"
    error = state["error"]
    match state["worker_status"], state["detail"]:
        case "RUNNING", detail:
            metrics = state["metrics"]
            last_s = metrics.get("last_record_at_s")
            text = f"It is running ({detail}), {where}; {metrics.get('records_out', 0)} records written by this node"
            if last_s is None:
                return f"{text}, none yet: the source has had nothing."
            return f"{text}, the last {_duration(facts.now_s - last_s)} ago."
        case "ERROR", "backing off":
            return f"It failed ({error['cause']}) and is being tried again, {where}: {error['message']}"
        case "ERROR", _:
            return (
                f"It failed ({error['cause']}) and is not tried again by itself, {where}: {error['message']}. "
                f"Fix it and publish, or run: headgate ds restart {facts.datasource.name}"
            )
        case "STOPPED", "finished":
            return f"Its source has ended, {where}. Nothing more will come."
        case _, detail:
            return f"It is {state['worker_status'].lower()} ({detail}), {where}."


def _duration(span_s: float) -> str:
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if span_s >= 2 * size_s:
            return f"{span_s / size_s:.0f} {unit}"
    return f"{span_s:.0f} s"

"""How figures and a datasource's state are put into words. `format.js` says the same in the browser."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from headgate import text
from headgate.clock import unix_s
from headgate.core.figures import Figures
from headgate.datasources.health import ALARMING
from headgate.web.bodies.datasources import Summary

NOTHING = "–"
# What people read for a health whose name is not a word.
HEALTH_WORDS = {"no_node": "no node", "unpublished": "not published"}
RESTING = ("paused", "stopped", "unpublished", "ended", "no_node")


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next about a datasource: a button that acts, or a link."""

    label: str
    act: str = ""  # The last part of the API's path.
    href: str = ""


def next_step(summary: Summary) -> Step | None:
    """What helps most. None: nothing has to be done. `format.js` says the same."""
    match summary.health:
        case "error" if summary.published_status == "rejected":
            return Step("See versions", href=f"/datasources/{summary.name}/versions")
        case "error":
            return Step("Restart" if summary.quarantine else "Try now", act="restart")
        case "no_node" | "degraded":
            return Step("See why", href=f"/datasources/{summary.name}")
        case "stopped":
            return Step("Start", act="start")
        case "paused":
            return Step("Go on", act="start")
        case "unpublished":
            return Step("Edit and publish", href=f"/datasources/{summary.name}/draft")
    return None


def count(number: float | None) -> str:
    """1,234,567"""
    return NOTHING if number is None else f"{number:,.0f}"


def span(span_s: float | None) -> str:
    """A duration in one figure."""
    return NOTHING if span_s is None else text.duration(span_s)


def size(size_bytes: float | None) -> str:
    """12.3 MB"""
    return NOTHING if size_bytes is None else text.size(size_bytes)


def ago(span_s: float | None) -> str:
    """How long since something happened."""
    return NOTHING if span_s is None else text.ago(span_s)


def since(at: str | None) -> str:
    """How long since a moment that is written in ISO."""
    return ago(None if at is None else (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds())


def route(summary: Summary) -> str:
    """From where to where, as published."""
    return f"{summary.source_type} → {summary.sink_type}" if summary.source_type else ""


def version(summary: Summary) -> str:
    """The published version."""
    number = summary.published_version
    return f"v{number}" if number else NOTHING


def other_version(summary: Summary) -> str:
    """What runs, if that is not what is published."""
    running = summary.running_version
    if running and running != summary.published_version:
        return f"v{running} running"
    return ""


def detail(summary: Summary) -> str:
    """What the worker is about, where that says more than the health does."""
    found = "" if summary.health in ("unpublished", "ended", "stopped", "paused") else summary.detail
    return "" if found in ("running", "stopped", "not started", summary.health) else found


def why(summary: Summary) -> str:
    """Why it is as it is, and when the next try comes."""
    if summary.error is None or (at_s := summary.error.next_try_at_s) is None:
        return summary.why
    again = text.tries_again(at_s - unix_s(), awaits_return=summary.error.awaits_return)
    return f"{summary.why}; {again}"


def rate_of(summary: Summary) -> float | None:
    """Records written in a second. Of what does not run there is none to tell."""
    return None if summary.health in RESTING else summary.metrics.written_per_s


def rate(per_s: float | None) -> str:
    """Small ones with a digit more."""
    if per_s is None:
        return NOTHING
    return f"{max(per_s, 0.1):.1f}".removesuffix(".0") if 0 < per_s < 10 else f"{per_s:,.0f}"


def read(metrics: Figures) -> str:
    """How many were read, where that is not how many were written."""
    return "" if metrics.records_read == metrics.records_written else f"{count(metrics.records_read)} read"


def filtered(metrics: Figures) -> str:
    """How many were left out, if any."""
    return f"{count(metrics.records_filtered)} filtered" if metrics.records_filtered else ""


def backlog_bytes(metrics: Figures) -> str:
    """How large what waits is, if anything does."""
    return size(metrics.backlog_bytes) if metrics.backlog_bytes else ""


def lag(span_s: float) -> str:
    """How old the oldest record is that is not durable."""
    return span(span_s) if span_s else NOTHING


def headline(counts: dict[str, int]) -> str:
    """How everything is, in one sentence."""
    total, wrong = sum(counts.values()), sum(counts[health] for health in ALARMING)
    if not total:
        return "Nothing to run yet"
    if wrong:
        return f"{wrong:,} of {total:,} {'needs' if wrong == 1 else 'need'} attention"
    if counts["starting"]:
        return f"{counts['starting']:,} of {total:,} starting"
    return "All is well" if counts["ok"] else "Nothing runs"

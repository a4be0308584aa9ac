"""How figures and a datasource's state are put into words. `format.js` says the same in the browser."""

from __future__ import annotations

from datetime import UTC, datetime

from headgate import text
from headgate.web.bodies.datasources import Summary

NOTHING = "–"


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
    found = "" if summary.published_version is None else summary.detail
    return "" if found in ("running", "stopped", "not started", summary.health) else found


def why(summary: Summary) -> str:
    """What is wrong, in one line."""
    error, number = summary.error, summary.published_version
    if summary.quarantine:
        return f"Quarantined: {summary.quarantine}"
    if summary.health == "stopped":
        return "" if number else "Nothing has been published yet."
    if error:
        return f"{error.cause}: {error.message}"
    if summary.published_status == "rejected":
        return f"Version {number} was tried and rejected."
    if summary.health == "degraded":
        return "It runs, but no record came within the expected time."
    return ""


def headline(counts: dict[str, int]) -> str:
    """How everything is, in one sentence."""
    total, wrong = sum(counts.values()), counts["error"] + counts["degraded"]
    if not total:
        return "Nothing to run yet"
    if wrong:
        return f"{wrong:,} of {total:,} {'needs' if wrong == 1 else 'need'} attention"
    if counts["starting"]:
        return f"{counts['starting']:,} of {total:,} starting"
    return "All is well" if counts["ok"] else "All is stopped"

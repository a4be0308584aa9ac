"""How figures and a datasource's state are put into words. `format.js` says the same in the browser."""

from __future__ import annotations

from typing import Any

NOTHING = "–"


def count(number: float | None) -> str:
    """1,234,567"""
    return NOTHING if number is None else f"{number:,.0f}"


def span(span_s: float | None) -> str:
    """A stretch of time in one figure: 12 ms, 3.4 s, 5 min, 2 h, 9 d."""
    if span_s is None:
        return NOTHING
    if span_s < 0.9995:
        return f"{max(span_s, 0) * 1000:.0f} ms"
    return f"{span_s:.1f} s" if span_s < 9.95 else _whole(span_s)


def size(number: float | None) -> str:
    """12.3 MB"""
    if number is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def ago(span_s: float | None) -> str:
    """How long since something happened. Clocks differ, so a moment ahead is now."""
    if span_s is None:
        return NOTHING
    return "just now" if span_s < 1.5 else f"{_whole(span_s)} ago"


def _whole(span_s: float) -> str:
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if span_s >= 2 * size_s:
            return f"{span_s / size_s:.0f} {unit}"
    return f"{span_s:.0f} s"


def route(summary: dict[str, Any]) -> str:
    """From where to where, as published."""
    return f"{summary['source_type']} → {summary['sink_type']}" if summary["source_type"] else ""


def version(summary: dict[str, Any]) -> str:
    """The published version."""
    number = summary["published_version"]
    return f"v{number}" if number else NOTHING


def other_version(summary: dict[str, Any]) -> str:
    """What runs, if that is not what is published."""
    running = summary["running_version"]
    if running and running != summary["published_version"]:
        return f"v{running} running"
    return ""


def detail(summary: dict[str, Any]) -> str:
    """What the worker is about, where that says more than the health does."""
    found = "" if summary["published_version"] is None else str(summary["detail"] or "")
    return "" if found in ("running", "stopped", "not started", summary["health"]) else found


def why(summary: dict[str, Any]) -> str:
    """What is wrong, in one line."""
    error, number = summary["error"], summary["published_version"]
    if summary["quarantine"]:
        return f"Quarantined: {summary['quarantine']}"
    if summary["health"] == "stopped":
        return "" if number else "Nothing has been published yet."
    if error:
        return f"{error['cause']}: {error['message']}"
    if summary["published_status"] == "rejected":
        return f"Version {number} was tried and rejected."
    if summary["health"] == "degraded":
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

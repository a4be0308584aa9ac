"""A stream's progress as plain values, for sinks that keep it in a text of their own making."""

from __future__ import annotations

from typing import Any, TypeAlias

from headgate.connectors.api import Grant, Progress, Totals

Values: TypeAlias = tuple[int, int, Any, list[int]]
"""Generation, commits, position and totals."""


def values_of(progress: Progress) -> Values:
    """What is kept."""
    totals = progress.totals
    counts = [totals.read, totals.written, totals.filtered, totals.dead_lettered, totals.skipped]
    return progress.generation, progress.commits, progress.position, counts


def progress_of(kept: Values | None, grant: Grant) -> Progress:
    """What was kept of the stream of this grant. One that is new to the sink has a lower generation than any registry
    has, which decides."""
    return Progress(-1, 0, None, grant.progress.totals) if kept is None else progress_from(kept)


def progress_from(kept: Values) -> Progress:
    """What was kept."""
    generation, commits, position, counts = kept
    return Progress(generation, commits, position, Totals(*counts))

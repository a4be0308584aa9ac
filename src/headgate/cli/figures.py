"""What became of a datasource's records, and what waits, as a command shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headgate.clock import unix_s
from headgate.text import ago, counted, duration, size

if TYPE_CHECKING:
    from headgate.core.figures import Figures
    from headgate.web.bodies.letters import LetterNumbers


def lines(found: Figures) -> Iterator[tuple[str, str | None]]:
    """Names and values; None: not known."""
    yield "records", records(found)
    yield "rate", _rates(found)
    yield "backlog", backlog(found)
    yield "lag", duration(found.lag_s) if found.lag_s else None
    yield "last record", _last(found)


def records(found: Figures) -> str:
    """`12 read: 10 written, 2 dead-lettered`. What there is none of is not named."""
    became = {"filtered": found.records_filtered, "dead-lettered": found.records_dead_lettered}
    words = [f"{found.records_written:,} written", *(f"{number:,} {word}" for word, number in became.items() if number)]
    skipped = f" ({found.records_skipped:,} of them skipped)" if found.records_skipped else ""
    return f"{found.records_read:,} read: {', '.join(words)}{skipped}"


def letters(found: LetterNumbers) -> str | None:
    """`2 open, 1 replayed`: what became of the dead letters."""
    became = {"open": found.open, "replayed": found.replayed, "superseded": found.superseded}
    became |= {"discarded": found.discarded, "expired": found.expired}
    return ", ".join(f"{number:,} {word}" for word, number in became.items() if number) or None


def backlog(found: Figures) -> str | None:
    """What waits at the source."""
    number, size_bytes = found.backlog_records, found.backlog_bytes
    known = ["" if number is None else counted(number, "record"), "" if size_bytes is None else size(size_bytes)]
    return ", ".join(filter(None, known)) or None


def _rates(found: Figures) -> str | None:
    if found.read_per_s is None or found.written_per_s is None:
        return None
    return f"{found.read_per_s:,.1f} read and {found.written_per_s:,.1f} written in a second"


def _last(found: Figures) -> str | None:
    if found.last_record_at_s is None:
        return None
    delay_s = found.last_event_delay_s
    late = "" if delay_s is None else f", {duration(delay_s)} after it happened"
    return f"{ago(unix_s() - found.last_record_at_s)}{late}"

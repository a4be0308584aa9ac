"""What a test is given, what becomes of it, and where two results differ.

A record that is tested has an outcome, as every record has: it is written, filtered or dead-lettered. `unnest` makes
several of one, so each input has a list of results. Values are JSON: what a sink would get that JSON cannot say is
shown as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from headgate.core.records import Stage, Totals

ResultKind: TypeAlias = Literal["written", "filtered", "dead_lettered"]
"""What would become of the record."""

MOST_DIFFERENCES = 200  # That anybody is told of at once.


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input: a body as a caller would send it, or a record as a source would read it."""

    body: bytes | None = None  # Decoded by the source, if it receives bodies.
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    record: Any = None
    meta: Any = None
    unreadable: str = ""  # Why the source could not read it; then `body` has what it got.
    at_s: float = 0.0  # When it came, in Unix time.


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """What becomes of one record."""

    outcome: ResultKind
    after: Any = None  # As the sink would get it; also of a record that the sink refuses.
    is_delete: bool = False
    stage: Stage | None = None  # Of a dead letter: where it failed,
    field: str | None = None  # on which field,
    reason: str | None = None  # and why. It repeats no value.


class Difference(msgspec.Struct, frozen=True):
    """A place at which two results differ."""

    place: str  # `0.total`: of the first result, the field `total`. `0.outcome`, `length` likewise.
    before: Any
    after: Any


def totals_of(results: Sequence[Result]) -> Totals:
    """How many of each."""
    kinds = [one.outcome for one in results]
    return Totals(len(kinds), kinds.count("written"), kinds.count("filtered"), kinds.count("dead_lettered"))


def differences(before: Sequence[Result], after: Sequence[Result], masked: Sequence[str] = ()) -> list[Difference]:
    """Where the results of one input differ. The words of a reason may change; fields that are masked, too."""
    hidden = frozenset(masked)
    return [one for one in _differences(before, after) if mask_of(one.place) not in hidden]


def _differences(before: Sequence[Result], after: Sequence[Result]) -> Iterator[Difference]:
    if len(before) != len(after):
        yield Difference("length", len(before), len(after))
    for number, (one, other) in enumerate(zip(before, after, strict=False)):
        for name in ("outcome", "stage", "field", "is_delete"):
            old, new = getattr(one, name), getattr(other, name)
            if old != new:
                yield Difference(f"{number}.{name}", old, new)
        if one.outcome == other.outcome:
            yield from _in_values(one.after, other.after, f"{number}")


def _in_values(before: Any, after: Any, path: str) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from _in_values(before.get(key), after.get(key), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _in_values(one, other, f"{path}.{number}")
    elif type(before) is not type(after) or before != after:
        yield Difference(path, before, after)


def mask_of(place: str) -> str:
    """The place without its numbers: what differs in one element of a list may differ in all."""
    first, *rest = place.split(".")
    return ".".join("*" if part.isdigit() else part for part in rest) if rest else first


def varying(runs: Sequence[tuple[Sequence[Result], Sequence[Result]]]) -> list[str]:
    """The fields that differ between two runs over the same inputs: they say what the time is, or are drawn."""
    return sorted({mask_of(one.place) for first, second in runs for one in _differences(first, second)})

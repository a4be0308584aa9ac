"""Fixtures: inputs of a datasource with the results that they should have.

A version that is to be published is tested with them first. What differs from run to run (the time, something drawn)
says nothing about the version: it is found by running twice, and masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headgate.core.harness.results import MOST_DIFFERENCES, Difference, Given, Result, differences, varying

MOST_FIXTURES = 50  # Of one datasource.
MOST_FIXTURE_BYTES = 256 * 1024  # Of one, inputs and results together.
MOST_FIXTURE_INPUTS = 100


class Fixture(msgspec.Struct, frozen=True):
    """Inputs, and for each of them the results that it should have."""

    given: list[Given]
    expected: list[list[Result]]
    masked: list[str] = msgspec.field(default_factory=list)  # Fields that differ from run to run.


class FixtureChange(msgspec.Struct, frozen=True):
    """A result that is not what a fixture expects."""

    fixture: str
    record: int  # Which of its inputs, from 0 on.
    difference: Difference


def made(given: Sequence[Given], first: Sequence[list[Result]], second: Sequence[list[Result]]) -> Fixture:
    """A fixture of two runs over the same inputs."""
    return Fixture(list(given), list(first), varying(list(zip(first, second, strict=True))))


def changes(
    name: str, fixture: Fixture, first: Sequence[list[Result]], second: Sequence[list[Result]]
) -> list[FixtureChange]:
    """What two runs of another version over its inputs give that is not expected."""
    masked = {*fixture.masked, *varying(list(zip(first, second, strict=True)))}
    found = [
        FixtureChange(name, number, one)
        for number, (before, after) in enumerate(zip(fixture.expected, first, strict=False))
        for one in differences(before, after, sorted(masked))
    ]
    return found[:MOST_DIFFERENCES]


# As text. A fixture travels in a file of datasources: each input and each list of results is one line of JSON, because
# YAML has other rules for numbers, dates and zero bytes.


def plain(fixture: Fixture) -> dict[str, Any]:
    """As it stands in a file."""
    found: dict[str, Any] = {
        "given": [msgspec.json.encode(one).decode() for one in fixture.given],
        "expected": [msgspec.json.encode(one).decode() for one in fixture.expected],
    }
    return {**found, "masked": fixture.masked} if fixture.masked else found


def from_plain(found: object) -> Fixture:
    """From a file. Raises ValueError with what is wrong."""
    if not isinstance(found, Mapping) or set(found) - {"given", "expected", "masked"}:
        raise ValueError("must have `given`, `expected` and, if need be, `masked`")
    lines = {name: found.get(name, []) for name in ("given", "expected", "masked")}
    for name, value in lines.items():
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"`{name}` must be a list of texts")
    if len(lines["given"]) != len(lines["expected"]) or not lines["given"]:
        raise ValueError("`given` and `expected` must have as many lines, and one at least")
    try:
        given = [msgspec.json.decode(line, type=Given) for line in lines["given"]]
        expected = [msgspec.json.decode(line, type=list[Result]) for line in lines["expected"]]
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"a line is not what `headgate export` writes: {error}") from None
    fixture = Fixture(given, expected, list(lines["masked"]))
    if (reason := too_large(fixture)) is not None:
        raise ValueError(reason)
    return fixture


def too_large(fixture: Fixture) -> str | None:
    """Why this is too much for a fixture; None: it is not."""
    if len(fixture.given) > MOST_FIXTURE_INPUTS:
        return f"a fixture has at most {MOST_FIXTURE_INPUTS} inputs"
    if len(msgspec.json.encode(fixture)) > MOST_FIXTURE_BYTES:
        return f"a fixture has at most {MOST_FIXTURE_BYTES // 1024} KB"
    return None

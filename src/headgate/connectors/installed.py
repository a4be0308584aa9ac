"""What is installed, one line for each connector: its sides, what each promises, and what is missing for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, version

from headgate.connectors import plugins
from headgate.connectors.api import Connector
from headgate.errors import HeadgateError

SIDES = ("source", "sink", "reader", "writer")
UNKNOWN = "its connector does not say"

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True, slots=True)
class Line:
    """A connector."""

    name: str
    summary: str
    sides: tuple[str, ...]  # Those that it has; none if it cannot be loaded.
    promises: dict[str, str] = field(default_factory=dict)  # Of its source and its sink.
    install: str = ""  # The command that brings what it needs and is not here.


def lines() -> list[Line]:
    """All connectors, in the order of their names. One that cannot be loaded says why."""
    return [_line(name) for name in plugins.names()]


def promises_of(connector: Connector) -> dict[str, str]:
    """How often a record arrives: from its source, and in its sink."""
    found = {}
    if connector.source is not None:
        found["source"] = connector.source.promise or UNKNOWN
    if connector.sink is not None:
        found["sink"] = connector.sink.promise or UNKNOWN
    return found


def _line(name: str) -> Line:
    try:
        found = plugins.get(name)
    except HeadgateError as error:
        return Line(name, error.message, (), install=missing(name) or _command(error.hint))
    sides = tuple(side for side in SIDES if getattr(found, side) is not None)
    return Line(name, found.summary, sides, promises_of(found), missing(name))


def missing(name: str) -> str:
    """The command that installs what a connector needs and is not here; empty: all is here."""
    distribution = plugins.distribution_of(name)
    if distribution is None or all(_is_here(one) for one in _needs(distribution, name, set())):
        return ""
    return f"pip install '{distribution.name}[{name}]'"


def _command(hint: str) -> str:
    return hint if hint.startswith("pip ") else ""


def _needs(distribution: Distribution, extra: str, seen: set[str]) -> list[str]:
    """The packages that an extra brings, and those of the extras that it names."""
    found: list[str] = []
    for line in distribution.requires or []:
        text, _, marker = line.partition(";")
        matched, wanted = _REQUIREMENT.match(text.strip()), _EXTRA.search(marker)
        if matched is None or wanted is None or wanted[1] != extra:
            continue
        if matched[1].lower() != distribution.name.lower():
            found.append(matched[1])
            continue
        for inner in filter(None, (one.strip() for one in (matched[2] or "").split(","))):
            if inner not in seen:
                seen.add(inner)
                found += _needs(distribution, inner, seen)
    return found


def _is_here(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True

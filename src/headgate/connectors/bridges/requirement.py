"""What may be installed: `KIND:PACKAGE==VERSION`, by name and version alone.

pip takes much more for a requirement: options, paths, URLs, files. None of that gets through: a name is what PEP 508
calls one, a version is a plain one, and what is handed to pip is put together from these parts again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from headgate.errors import ConfigError, Problem

Kind: TypeAlias = Literal["singer", "airbyte", "dlt"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_WITH = 20

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME})"
    rf"(?:\[(?P<extras>{_NAME}(?:,{_NAME}){{0,9}})\])?"
    r"(?:==(?P<version>[0-9][A-Za-z0-9.+!-]{0,60}))?"
)
_FORM = "such as singer:tap-github==1.7.0, airbyte:airbyte-source-faker or dlt:dlt"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package, perhaps at a version."""

    name: str  # In lower case, with hyphens: one name has one spelling.
    extras: tuple[str, ...] = ()
    version: str = ""

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{'==' if self.version else ''}{self.version}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be installed: a package of this kind, and others into the same environment."""

    kind: Kind
    package: Requirement
    extra: tuple[Requirement, ...] = ()


def requirement_from_text(text: str) -> Requirement:
    """`tap-github`, `dlt[duckdb]==1.4.0`. Raises ValueError."""
    found = _REQUIREMENT.fullmatch(text) if text.isascii() else None
    if found is None:
        raise ValueError("is not the name of a package, with or without ==VERSION")
    extras = tuple(one.lower() for one in (found["extras"] or "").split(",") if one)
    return Requirement(normalized(found["name"]), extras, found["version"] or "")


def wanted_from_texts(text: str, extra: list[str]) -> Wanted:
    """What a caller wants to have. Raises ConfigError."""
    problems = []
    kind, colon, package = text.partition(":")
    found = None
    if not colon or kind not in KINDS:
        problems.append(Problem("package", "must begin with its kind: singer:, airbyte: or dlt:", _FORM))
    else:
        try:
            found = requirement_from_text(package)
        except ValueError as error:
            problems.append(Problem("package", str(error), _FORM))
    if len(extra) > MOST_WITH:
        problems.append(Problem("with", f"are more than {MOST_WITH}"))
    others = []
    for index, one in enumerate(extra[:MOST_WITH]):
        try:
            others.append(requirement_from_text(one))
        except ValueError as error:
            problems.append(Problem(f"with.{index}", str(error), "such as psycopg2-binary==2.9.9"))
    if problems or found is None:
        raise ConfigError(problems)
    return Wanted(cast(Kind, kind), found, tuple(others))


def normalized(name: str) -> str:
    """As PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()

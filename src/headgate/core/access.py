"""Who may do what. This table is the only place that says it; every route and every door asks here.

A *role* says what a token is for. A viewer sees; an operator sees and runs what exists; an admin also decides what the
outside world is: secrets, tokens, what documents may reach. A sender is none of these: it hands records over and
takes turns in groups, and sees nothing.

*Bounds* are the datasources and groups that a token names, by patterns. A token with bounds sees and touches what it
names and nothing else: lists have only that, anything else is forbidden whether it exists or not, and what spans
everything needs a token without bounds. A sender always has bounds; an admin never has.

What a route does is an *action*. A rule says which roles may do it, and what bounds mean for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Literal, TypeAlias
from urllib.parse import unquote
from uuid import UUID

Role: TypeAlias = Literal["viewer", "sender", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "sender", "operator", "admin")

MOST_PATTERNS = 100
MOST_PATTERN = 500  # Characters of one.
_DATASOURCE_PATTERN = re.compile(r"[a-z0-9_*-]{1,100}")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a token names. A pattern is a name in which `*` stands for any text."""

    datasources: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # `STREAM/GROUP`, each quoted as in a URL where it has a slash, a star or a percent.


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    id: UUID | None  # The token's. None on a node that asks for no token.
    name: str
    role: Role
    bounds: Bounds | None = None  # None: everything.
    session: UUID | None = None  # Of a browser that has signed in with the token.


@dataclass(frozen=True, slots=True)
class OfDatasource:
    """What is asked for is a datasource, or belongs to it."""

    name: str


@dataclass(frozen=True, slots=True)
class OfGroup:
    """What is asked for is a group of programs outside."""

    stream: str
    group: str


Subject: TypeAlias = OfDatasource | OfGroup

ANYONE = Caller(None, "anyone", "admin")  # With --no-auth, on loopback.


class Scope(Enum):
    """What the bounds of a token mean for an action."""

    NONE = "It tells nothing of any datasource or group, so bounds do not matter."
    LIST = "It shows, or takes, only what the token names."
    ONE = "It is about one thing, which the token must name."
    ALL = "It spans everything, so a token with bounds may not do it."


@dataclass(frozen=True, slots=True)
class Rule:
    """Which roles may do it, and with which bounds."""

    roles: tuple[Role, ...]
    scope: Scope


_VIEWERS: tuple[Role, ...] = ("viewer", "operator", "admin")
_SENDERS: tuple[Role, ...] = ("sender", "operator", "admin")
_OPERATORS: tuple[Role, ...] = ("operator", "admin")
_ADMINS: tuple[Role, ...] = ("admin",)

Action: TypeAlias = Literal[
    "learn",
    "sign_in",
    "list",
    "see",
    "see_all",
    "send",
    "operate",
    "operate_listed",
    "operate_all",
    "administer",
]

RULES: Mapping[Action, Rule] = {
    "learn": Rule(_VIEWERS, Scope.NONE),  # What this release can do: its connectors, its API.
    "sign_in": Rule(_VIEWERS, Scope.NONE),  # To the console, whose pages are judged one by one.
    "list": Rule(_VIEWERS, Scope.LIST),
    "see": Rule(_VIEWERS, Scope.ONE),
    "see_all": Rule(_VIEWERS, Scope.ALL),
    "send": Rule(_SENDERS, Scope.ONE),  # Push, call a hook, join a group.
    "operate": Rule(_OPERATORS, Scope.ONE),
    "operate_listed": Rule(_OPERATORS, Scope.LIST),  # A document of several datasources; each is judged.
    "operate_all": Rule(_OPERATORS, Scope.ALL),
    "administer": Rule(_ADMINS, Scope.ALL),
}


def may(caller: Caller, action: Action, subject: Subject | None = None) -> bool:
    """Whether it is allowed."""
    return refusal(caller, action, subject) is None


def refusal(caller: Caller, action: Action, subject: Subject | None = None) -> str | None:
    """Why it is not allowed, in words that repeat nothing of what was asked. None: it is."""
    rule = RULES[action]
    if caller.role not in rule.roles:
        return f"the token {caller.name!r} has the role {caller.role}; this needs {rule.roles[0]}"
    if caller.bounds is None or rule.scope in (Scope.NONE, Scope.LIST):
        return None
    if rule.scope is Scope.ONE and subject is not None and names(caller, subject):
        return None
    match subject:
        case OfDatasource():
            return f"the token {caller.name!r} does not name this datasource"
        case OfGroup():
            return f"the token {caller.name!r} does not name this group"
        case None:
            return f"the token {caller.name!r} is bound to what it names; this needs one without bounds"


def names(caller: Caller, subject: Subject) -> bool:
    """Whether the token names this. One without bounds names everything."""
    if caller.bounds is None:
        return True
    match subject:
        case OfDatasource(name=name):
            whole, beginnings, others = _sorted(caller.bounds.datasources)
            return name in whole or name.startswith(beginnings) or any(_matches(pieces, name) for pieces in others)
        case OfGroup(stream=stream, group=group):
            return any(_names_group(pattern, stream, group) for pattern in caller.bounds.groups)


def matches(pattern: str, text: str) -> bool:
    """Whether a text is what a pattern says, in which `*` stands for any text."""
    return _matches(_pieces(pattern), text)


def _names_group(pattern: str, stream: str, group: str) -> bool:
    of_stream, _, of_group = pattern.partition("/")
    return _matches(_pieces(of_stream), stream) and _matches(_pieces(of_group), group)


@lru_cache(maxsize=256)
def _sorted(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Whole names, beginnings of names, and the pieces of the others. A list of thousands is held against a hundred
    patterns, most of which are one of the first two: those cost the same however many they are."""
    pieces = [_pieces(pattern) for pattern in patterns]
    whole = [one[0] for one in pieces if len(one) == 1]
    beginnings = [one[0] for one in pieces if len(one) == 2 and not one[1]]
    others = [one for one in pieces if len(one) > 2 or (len(one) == 2 and one[1])]
    return frozenset(whole), tuple(beginnings), tuple(others)


@lru_cache(maxsize=1024)
def _pieces(pattern: str) -> tuple[str, ...]:
    """The texts between the stars, unquoted."""
    return tuple(unquote(piece) for piece in pattern.split("*"))


def _matches(pieces: Sequence[str], text: str) -> bool:
    """Each piece in its place, one after another: the time is that of a search, however many stars there are."""
    first, *rest = pieces
    if not rest:
        return text == first
    *inner, last = rest
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in inner:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


# What an admin may create and end.


def problems(role: Role, bounds: Bounds) -> list[tuple[str, str]]:
    """What is wrong with a new token: fields and messages."""
    found = []
    for pattern in bounds.datasources:
        if _DATASOURCE_PATTERN.fullmatch(pattern) is None:
            found.append(("datasources", f"{pattern!r} must be a datasource's name, in which * stands for any text"))
    for pattern in bounds.groups:
        if pattern.count("/") != 1 or pattern.startswith("/") or pattern.endswith("/") or not pattern.isprintable():
            found.append(("groups", f"{pattern!r} must be STREAM/GROUP; * stands for any text, %2F for a slash"))
        elif len(pattern) > MOST_PATTERN:
            found.append(("groups", f"a pattern has at most {MOST_PATTERN} characters"))
    for field, patterns in (("datasources", bounds.datasources), ("groups", bounds.groups)):
        if len(patterns) > MOST_PATTERNS:
            found.append((field, f"a token names at most {MOST_PATTERNS}"))
    is_bound = bool(bounds.datasources or bounds.groups)
    if role == "sender" and not is_bound:
        found.append(("role", "a sender names the datasources or groups that it sends to"))
    if role == "admin" and is_bound:
        found.append(("role", "an admin decides about everything, so its token names nothing"))
    return found


@dataclass(frozen=True, slots=True)
class AdminToken:
    """An admin's token that works now."""

    id: UUID
    ends: bool  # By itself, at a time.


def locks_out(admins: Sequence[AdminToken], revoked: UUID) -> bool:
    """Whether revoking this token leaves nobody who can make another, now or once the others have ended.

    As an admin's token without an end is never revoked unasked, the end of others alone leaves nobody locked out.
    """
    left = [one for one in admins if one.id != revoked]
    ended = next((one for one in admins if one.id == revoked), None)
    if ended is None:
        return False
    return not left or (not ended.ends and all(one.ends for one in left))

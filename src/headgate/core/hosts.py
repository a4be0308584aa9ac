"""Which of a database's hosts to use: the newest that takes writes.

A URL may name several hosts: a primary and its standbys, in whatever roles they are just now. Their order says nothing.
All are asked at once, and each says what it is. A server that was promoted begins a *timeline* with a higher number, so
of two that take writes the one with the higher number is the primary, and the other one an old primary that somebody
forgot to stop. One that has a lower number than was ever seen of its system is not used, even if it is alone: what it
lacks would be taken for lost, and what it is told would be. (The registry can tell whether a person wants to go back:
it asks for the older one if there is no other, and judges it by its lineage. See `core.lineage`.)

What is not there does not hold up what is. The host that was used last is asked alone for a moment; if it is still the
one, nobody else is needed. Else, once one fits, the others have a short time to say that they are newer. One that says
so later is believed too, and sessions with the older one are ended (`headgate.hosts`).

Timelines are compared within one system (PostgreSQL's system identifier, which a standby shares with its primary). Of
two systems the one that is known wins, and if both or none are, again the higher number. A server that does not tell
its timeline has the number 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never
from urllib.parse import parse_qsl, urlencode

from headgate.text import counted, one_line

MOST_HOSTS = 16  # All are asked at once.
HEAD_START_S = 0.25  # A server that answers at all does so within this time; one that was used last is asked alone.
GRACE_S = 0.3  # The same, for those that might be newer than the first that fits.

_URL = re.compile(r"([a-z]+://)([^/?#]*)([^?#]*)(?:\?([^#]*))?(.*)", re.DOTALL | re.IGNORECASE)
LOCAL = "localhost"  # Or a socket: the driver looks for one if no host is named.


@dataclass(frozen=True, slots=True)
class Host:
    """One of those that a URL names."""

    name: str  # For people: `db1.example.com:5432`.
    url: str = field(repr=False)  # The same URL with this host alone.


# What a host says.


@dataclass(frozen=True, slots=True)
class Writable:
    """It takes writes."""

    system: int
    timeline: int


@dataclass(frozen=True, slots=True)
class Standby:
    """It replays what another one writes."""


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """It was told to take no writes."""


@dataclass(frozen=True, slots=True)
class Away:
    """There is nothing, or it does not let anybody in now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Denied:
    """It refuses the connection, and will not change its mind by itself."""

    reason: str


Answer: TypeAlias = Writable | Standby | ReadOnly | Away | Denied


@dataclass(frozen=True, slots=True)
class Said:
    """What a host has said, and when, in seconds since all began."""

    at_s: float
    answer: Answer


# What to do.


@dataclass(frozen=True, slots=True)
class UseHost:
    """Take this one."""

    index: int


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Wait for another answer until then; and ask `everyone`, or only the one that was used last."""

    until_s: float
    everyone: bool


@dataclass(frozen=True, slots=True)
class NoneFits:
    """Give up. `lines` has one for each host."""

    lines: tuple[str, ...]
    are_all_denied: bool  # Waiting does not help.


Decision: TypeAlias = UseHost | WaitFor | NoneFits


def decide(
    hosts: Sequence[Host],
    said: Sequence[Said | None],
    newest: Mapping[int, int],
    *,
    waited_s: float,
    within_s: float,
    last: int | None = None,
    refuses_older: bool = True,
) -> Decision:
    """What to do, `waited_s` after the beginning. `newest` is the highest timeline seen of each system, and `last` the
    host that was used last. `refuses_older`: a server of an older timeline than was seen is not even a last resort."""
    seen = _seen(said, newest)
    fitting = [index for index, one in enumerate(said) if one is not None and fits(one.answer, seen)]
    if last is not None and last in fitting:
        return UseHost(last)
    if last is not None and said[last] is None and waited_s < min(HEAD_START_S, within_s):
        return WaitFor(min(HEAD_START_S, within_s), everyone=False)
    is_over = all(one is not None for one in said)
    if not fitting:
        if is_over or waited_s >= within_s:
            older = [index for index, one in enumerate(said) if one is not None and isinstance(one.answer, Writable)]
            if older and not refuses_older:
                return UseHost(max(older, key=lambda index: _rank(said[index], newest, index)))
            answers = [one.answer if one else None for one in said]
            lines = [f"{host.name} {described(one, seen)}" for host, one in zip(hosts, answers, strict=True)]
            return NoneFits(tuple(lines), _are_all_denied(said))
        return WaitFor(within_s, everyone=True)
    until_s = min(within_s, min(one.at_s for index in fitting if (one := said[index])) + GRACE_S)
    if is_over or waited_s >= until_s:
        return UseHost(max(fitting, key=lambda index: _rank(said[index], newest, index)))
    return WaitFor(until_s, everyone=True)


def fits(answer: Answer, newest: Mapping[int, int]) -> bool:
    """Whether this host takes writes, and is not older than what was seen."""
    return isinstance(answer, Writable) and answer.timeline >= newest.get(answer.system, 0)


def _seen(said: Sequence[Said | None], newest: Mapping[int, int]) -> Mapping[int, int]:
    """The highest timelines, with those that were said just now."""
    seen = dict(newest)
    for one in said:
        if one is not None and isinstance(one.answer, Writable):
            seen[one.answer.system] = max(one.answer.timeline, seen.get(one.answer.system, 0))
    return seen


def _rank(said: Said | None, newest: Mapping[int, int], index: int) -> tuple[bool, int, int]:
    assert said is not None
    assert isinstance(said.answer, Writable)
    return said.answer.system in newest, said.answer.timeline, -index


def _are_all_denied(said: Sequence[Said | None]) -> bool:
    return all(one is not None and isinstance(one.answer, Denied) for one in said)


def described(answer: Answer | None, newest: Mapping[int, int]) -> str:
    """Why a host is not used, as the rest of a sentence that begins with its name."""
    match answer:
        case None:
            return "does not answer"
        case Writable():
            return f"is timeline {answer.timeline}, older than {newest.get(answer.system, 0)}"
        case Standby():
            return "is a standby"
        case ReadOnly():
            return "is read-only"
        case Away():
            return f"is away ({answer.reason})"
        case Denied():
            return f"cannot be used ({answer.reason})"
        case _:
            assert_never(answer)


def survey(answers: Mapping[Host, Answer]) -> tuple[str, str]:
    """For people: what each host is, and what is wrong with all of them together; empty: nothing."""
    writable = [answer for answer in answers.values() if isinstance(answer, Writable)]
    lines = [
        f"{host.name} is the primary, timeline {answer.timeline}"
        if isinstance(answer, Writable)
        else f"{host.name} {described(answer, {})}"
        for host, answer in answers.items()
    ]
    if len({(answer.system, answer.timeline) for answer in writable}) > 1:
        wrong = "more than one takes writes: stop the older one"
    elif any(isinstance(answer, Away | Denied) for answer in answers.values()):
        wrong = "a failover may find nobody there"
    else:
        wrong = "" if writable else "none takes writes"
    return " · ".join(lines), wrong


# The hosts of a URL.


def hosts_of(url: str) -> tuple[Host, ...]:
    """Those that a URL names: `//a:1,b:2/db`, or in the query, `?host=/run/a,/run/b&port=1,2`.

    The URL of a single host is passed on as it is. ValueError if the lists do not fit together, or are too long; its
    text repeats nothing of the URL.
    """
    found = _URL.fullmatch(url)
    if found is None:
        return (Host(LOCAL, url),)
    scheme, authority, path, query, rest = found.groups(default="")
    user, at, listed = authority.rpartition("@")
    if listed:
        hosts = _apart(listed)
        if len(hosts) == 1 and "," not in listed:
            return (Host(_shown(listed), url),)
        behind = path + (f"?{query}" if query else "") + rest
        return tuple(Host(_shown(host), f"{scheme}{user}{at}{host}{behind}") for host in hosts)
    pairs = parse_qsl(query, keep_blank_values=True)
    named = dict(pairs)
    places = _places(named.get("host", ""), named.get("port", ""))
    if len(places) == 1 and "," not in named.get("host", ""):
        return (Host(_name(*places[0]), url),)
    others = [pair for pair in pairs if pair[0] not in ("host", "port")]
    return tuple(
        Host(_name(host, port), f"{scheme}{authority}{path}?{_encoded([*others, *_pairs(host, port)])}{rest}")
        for host, port in places
    )


def _apart(listed: str) -> list[str]:
    hosts = list(dict.fromkeys(one for one in listed.split(",") if one))
    if len(hosts) > MOST_HOSTS:
        raise ValueError(f"a URL may name {MOST_HOSTS} hosts, and this one names {len(hosts)}")
    if not hosts:
        raise ValueError("a URL has a list of hosts with no host in it")
    return hosts


def _places(host: str, port: str) -> list[tuple[str, str]]:
    """Hosts of a query with their ports: one for all, or one for each."""
    if not host:
        return [(LOCAL, port)]
    hosts, ports = [one for one in host.split(",") if one], port.split(",")
    if len(ports) not in (1, len(hosts)):
        raise ValueError(f"a URL names {counted(len(hosts), 'host')} and {counted(len(ports), 'port')}")
    _apart(host)
    return list(dict.fromkeys(zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=True)))


def _pairs(host: str, port: str) -> list[tuple[str, str]]:
    return [("host", host), *([("port", port)] if port else [])]


def _encoded(pairs: Sequence[tuple[str, str]]) -> str:
    return urlencode(pairs, safe="/:")


def _name(host: str, port: str) -> str:
    return _shown(f"{host}:{port}" if port else host)


def _shown(text: str) -> str:
    return one_line(text, 100)

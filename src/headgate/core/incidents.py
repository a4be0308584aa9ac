"""What is wrong, and whom to tell of it: once when it begins, and once when it is over.

`troubles` compares rules with what is seen at one moment; each *trouble* is a rule and the datasource or node for which
it holds. `step` compares the troubles with the *incidents* that are known and says what to tell.

An incident begins with a trouble. It is told when it has held for as long as its rule says (`for`), so that what heals
by itself is not told. One that was told is over when the trouble has been away for as long, so that what comes and goes
is one incident and not many. One that was never told ends without a word. If its rule is gone, it is over at once.

All that a rule tells at one moment is one message: a sink that is away is news, and not a thousand of them.

The node that sends keeps incidents and messages in one transaction. So a restart, or another node that goes on, tells
nothing twice; a message itself is sent until its target has taken it, and may arrive twice if a node dies in between.
Clocks may go back: then everything just takes longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from headgate.core.access import matches

When: TypeAlias = Literal["health", "dead_letters", "lag", "rejected", "node_lost"]

MOST_NAMED = 100  # Incidents that one message lists.


@dataclass(frozen=True, slots=True)
class IncidentRule:
    """Of what to tell, and whom."""

    name: str
    when: When
    targets: tuple[str, ...]
    for_s: float
    datasources: tuple[str, ...] = ("*",)  # Patterns.
    labels: tuple[str, ...] = ()  # One of which a datasource must have. None: it needs no label.
    healths: tuple[str, ...] = ()
    above: float = 0.0  # Letters, or seconds.


@dataclass(frozen=True, slots=True)
class Seen:
    """A datasource at one moment."""

    name: str
    health: str
    why: str
    lag_s: float = 0.0
    open_letters: int = 0
    rejected_version: int | None = None  # The published version, if it was tried and rejected.
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trouble:
    """A rule holds for this datasource or node now."""

    rule: str
    subject: str
    why: str


@dataclass(frozen=True, slots=True)
class Incident:
    """A trouble through time."""

    rule: str
    subject: str
    why: str
    since_s: float
    told_at_s: float | None = None
    told_to: tuple[str, ...] = ()
    better_since_s: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same incident."""
        return self.rule, self.subject


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell these targets: it has begun, or it is over."""

    rule: str
    target: str
    is_over: bool
    incidents: tuple[Incident, ...]


@dataclass(frozen=True, slots=True)
class Reckoned:
    """What is known after a look, and what to tell."""

    incidents: tuple[Incident, ...]
    tells: tuple[Tell, ...]


# What is seen.


def troubles(rules: Iterable[IncidentRule], seen: Sequence[Seen], lost_nodes: Sequence[str]) -> list[Trouble]:
    """All that is wrong by these rules."""
    return [trouble for rule in rules for trouble in _troubles(rule, seen, lost_nodes)]


def _troubles(rule: IncidentRule, seen: Sequence[Seen], lost_nodes: Sequence[str]) -> Iterator[Trouble]:
    if rule.when == "node_lost":
        for node in lost_nodes:
            yield Trouble(rule.name, node, "the node was found dead, and has not come back")
        return
    for one in seen:
        if _is_about(rule, one) and (why := _why(rule, one)) is not None:
            yield Trouble(rule.name, one.name, why)


def _is_about(rule: IncidentRule, one: Seen) -> bool:
    has_label = not rule.labels or not set(rule.labels).isdisjoint(one.labels)
    return has_label and any(matches(pattern, one.name) for pattern in rule.datasources)


def _why(rule: IncidentRule, one: Seen) -> str | None:
    """Why a rule holds for a datasource. None: it does not."""
    match rule.when:
        case "health" if one.health in rule.healths:
            return f"{one.health}: {one.why}" if one.why else one.health
        case "dead_letters" if one.open_letters > rule.above:
            return f"{one.open_letters:,} open dead letters"
        case "lag" if one.lag_s > rule.above:
            return f"{one.lag_s:,.0f} s behind"
        case "rejected" if one.rejected_version is not None:
            return f"version {one.rejected_version} was tried and rejected; the one before it goes on"
        case _:
            return None


# What becomes of it.


def step(
    known: Iterable[Incident], rules: Mapping[str, IncidentRule], found: Iterable[Trouble], now_s: float
) -> Reckoned:
    """The incidents after a look at what is wrong now, and what to tell."""
    before = {one.key: one for one in known}
    present = {(one.rule, one.subject): one for one in found}
    kept: list[Incident] = []
    begun: list[Incident] = []
    over: list[Incident] = []
    for key in sorted(before.keys() | present.keys()):
        incident, trouble, rule = before.get(key), present.get(key), rules.get(key[0])
        if trouble is not None and rule is not None:
            now = _holds(incident, trouble, rule, now_s)
            begun += [now] if now.told_at_s == now_s and (incident is None or incident.told_at_s is None) else []
            kept.append(now)
        elif incident is not None and incident.told_at_s is not None:
            better_since_s = now_s if incident.better_since_s is None else incident.better_since_s
            if rule is None or now_s - better_since_s >= rule.for_s:
                over.append(incident)
            else:
                kept.append(replace(incident, better_since_s=better_since_s))
    return Reckoned(tuple(kept), (*_tells(begun, is_over=False), *_tells(over, is_over=True)))


def _holds(incident: Incident | None, trouble: Trouble, rule: IncidentRule, now_s: float) -> Incident:
    """The incident of a trouble that is there now."""
    if incident is None:
        incident = Incident(rule.name, trouble.subject, trouble.why, now_s)
    if incident.told_at_s is not None:
        return replace(incident, better_since_s=None)
    incident = replace(incident, why=trouble.why)
    if now_s - incident.since_s >= rule.for_s:
        return replace(incident, told_at_s=now_s, told_to=rule.targets)
    return incident


def _tells(incidents: Sequence[Incident], *, is_over: bool) -> Iterator[Tell]:
    together: dict[tuple[str, str], list[Incident]] = {}
    for one in incidents:
        for target in one.told_to:
            together.setdefault((one.rule, target), []).append(one)
    for (rule, target), some in together.items():
        yield Tell(rule, target, is_over, tuple(some))


# How often a message is tried.

FIRST_S = 5.0
LONGEST_S = 600.0
GIVEN_UP_S = 86400.0


def again_in_s(attempts: int, age_s: float) -> float | None:
    """When to try a message again that has failed this often. None: it is too old to be news."""
    return None if age_s >= GIVEN_UP_S else min(LONGEST_S, FIRST_S * 2.0 ** min(attempts, 16))

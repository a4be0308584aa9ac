"""Which faults a storm has, and when: drawn from a seed, before anything runs.

Real processes are not deterministic, but their troubles are: the same seed and the same datasources give the same
faults, on the same targets, at the same seconds, for as long. Kinds are drawn as cards from a deck that has each kind
as often as it weighs, and which is shuffled again when it is used up. So a short storm has many kinds, and a long one
has them in proportion.

One node, the *steady* one, is never killed and never stopped, so that its memory can be watched from the beginning to
the end: it is drained, and cut off from the registry. What a node holds follows the most that it ever had to do. So in
a storm whose memory is judged the others are killed at once a few times before it is first looked at: what grows later
has grown, and is not the day on which the steady node was alone for the first time.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, TypeAlias

from tests.storm.verdict import JUDGED_AFTER_S

STEADY, OTHERS = "a", ("b", "c")
REGISTRY, SINK = "registry", "sink"
ALONE_AT_S = (150.0, 300.0, 450.0)  # When the steady node is left alone with all streams,
ALONE_S = 25.0  # for so long,
BEHIND_S = 8.0  # of which the sinks are away for some, so that it has to catch up.

Standby: TypeAlias = Literal["none", "sync", "async"]
"""Whether the registry has a standby that is promoted now and then, and whether commits wait for it."""

Where: TypeAlias = Literal["other", "steady", "node", "registry", "sink", "datasource", "program"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: how often it is in the deck, what it befalls, and for how long."""

    name: str
    weight: int
    where: Where
    least_s: float = 0.0
    most_s: float = 0.0
    in_leases: bool = False  # The seconds are leases.
    needs_standby: bool = False
    is_asked_for: bool = False  # Left out unless somebody names it.


KINDS = (
    Kind("kill", 6, "other", 0.0, 8.0),
    Kind("restart", 3, "other"),
    Kind("freeze-short", 3, "other", 0.1, 0.6, in_leases=True),
    Kind("freeze-long", 4, "other", 1.2, 3.0, in_leases=True),
    Kind("cut-short", 2, "steady", 0.1, 0.6, in_leases=True),
    Kind("cut-long", 2, "steady", 1.2, 3.0, in_leases=True),
    Kind("drain", 3, "node", 1.0, 10.0),
    Kind("registry-pause", 2, "registry", 0.3, 8.0),
    Kind("registry-restart", 2, "registry", 0.0, 1.0),
    Kind("registry-kill", 2, "registry", 0.0, 8.0),
    Kind("promotion", 3, "registry", 0.0, 6.0, needs_standby=True),
    Kind("old-primary-returns", 1, "registry", 1.0, 5.0, needs_standby=True),
    Kind("standby-pause", 1, "registry", 0.3, 6.0, needs_standby=True),
    Kind("sink-pause", 2, "sink", 0.3, 8.0),
    Kind("sink-restart", 2, "sink", 0.0, 1.0),
    Kind("sink-kill", 2, "sink", 0.0, 8.0),
    Kind("publish", 6, "datasource"),
    Kind("publish-bad", 3, "datasource"),
    Kind("publish-elsewhere", 1, "datasource", is_asked_for=True),
    Kind("publish-invalid", 1, "datasource"),
    Kind("move", 4, "datasource", 1.0, 10.0),
    Kind("stop", 3, "datasource", 0.5, 8.0),
    Kind("datasource-restart", 2, "datasource"),
    Kind("replay", 5, "datasource"),
    Kind("program-kill", 3, "program"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong, or that an operator does."""

    at_s: float  # After the beginning of the storm.
    kind: str
    target: str  # A node, a server, a datasource or a program.
    hold_s: float  # How long it lasts.
    draw: int  # Decides what depends on how things stand then.

    def __str__(self) -> str:
        lasts = f" for {self.hold_s:.1f} s" if self.hold_s else ""
        return f"{self.kind} {self.target}{lasts}"


def plan(
    seed: int,
    *,
    seconds: float,
    gap_s: float,
    lease_s: float,
    standby: Standby,
    named: Collection[str] = (),
    datasources: Sequence[str],
    programs: Sequence[str],
) -> Iterator[Fault]:
    """The faults of this seed, in order. `gap_s` is the mean time between two of them; `named` are kinds that are left
    out otherwise."""
    drawn = _drawn(seed, seconds, gap_s, lease_s, standby, named, datasources, programs)
    return heapq.merge(drawn, _alone() if seconds >= JUDGED_AFTER_S else (), key=attrgetter("at_s"))


def _alone() -> Iterator[Fault]:
    for at_s in ALONE_AT_S:
        yield from (Fault(at_s, "kill", name, ALONE_S, 0) for name in OTHERS)
        yield Fault(at_s + BEHIND_S, "sink-pause", SINK, BEHIND_S, 0)


def _drawn(
    seed: int,
    seconds: float,
    gap_s: float,
    lease_s: float,
    standby: Standby,
    named: Collection[str],
    datasources: Sequence[str],
    programs: Sequence[str],
) -> Iterator[Fault]:
    chance = random.Random(seed)
    targets: dict[Where, Sequence[str]] = {
        "other": OTHERS,
        "steady": (STEADY,),
        "node": (STEADY, *OTHERS),
        "registry": (REGISTRY,),
        "sink": (SINK,),
        "datasource": datasources,
        "program": programs,
    }
    kinds = [
        kind
        for kind in KINDS
        if targets[kind.where]
        and (standby != "none" or not kind.needs_standby)
        and (kind.name in named or not kind.is_asked_for)
    ]
    at_s = 0.0
    while True:
        deck = [kind for kind in kinds for _ in range(kind.weight)]
        chance.shuffle(deck)
        for kind in deck:
            at_s += chance.expovariate(1.0 / gap_s)
            if at_s >= seconds:
                return
            hold_s = chance.uniform(kind.least_s, kind.most_s) * (lease_s if kind.in_leases else 1.0)
            target = chance.choice(targets[kind.where])
            yield Fault(round(at_s, 3), kind.name, target, round(hold_s, 3), chance.randrange(1 << 30))

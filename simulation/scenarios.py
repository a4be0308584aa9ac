"""The kinds of runs: how large a world is, what goes wrong in it, and what its operators do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from simulation.network import FAIR, Weather


@dataclass(frozen=True, slots=True)
class Kind:
    """What a run is made of. Rates are means; what happens is drawn from the seed."""

    name: str
    nodes: tuple[int, int] = (2, 4)
    streams: tuple[int, int] = (1, 3)  # Datasources that nodes read.
    parts: tuple[int, ...] = (0,)  # How many each may have; 0: it cannot be read in parts.
    clients: tuple[int, int] = (0, 0)  # Each with its own stream, some with a rival.
    groups: tuple[int, int] = (0, 0)  # Of programs outside, with two to four in each.
    fenced: float = 0.0  # The share of groups that are fenced,
    odd: float = 0.0  # and of programs that say something else of it than the others.
    weather: Weather = FAIR
    faults: Mapping[str, float] = field(default_factory=dict)  # Which, and how often compared with the others.
    fault_every_s: float = 4.0
    operations: Mapping[str, float] = field(default_factory=dict)
    operation_every_s: float = 6.0
    stumble_every: int = 0  # Steps of a process, about, until one of them is its last or is followed by a pause.
    kills: float = 0.0  # The share of stumbles that kill.
    active_s: float = 30.0
    recover_s: float = 20.0  # Once faults have stopped, everything moves again by then.
    records_every_s: float = 0.5
    slowest_sink_s: float = 0.08  # For one request.
    sinks: tuple[str, ...] = ("plain", "table", "store")
    is_cooperative: bool = False  # Nothing goes wrong.
    pooled: float = 0.1  # The share of nodes behind a pooler.
    idle: float = 0.0  # The share of datasources that nodes read and that have nothing to read.


MOVES = {"drain": 2.0, "restart": 2.0, "move": 3.0, "toggle": 1.0, "pause": 1.0, "swap": 1.0, "again": 0.5}
EDITS = {"edit": 3.0, "swap_sink": 1.0, "swap_source": 1.0, "toggle": 1.0}
NETWORK = {
    "cut_database": 3.0,
    "cut_sink": 1.0,
    "isolate": 3.0,
    "bad_line": 3.0,
    "database_away": 2.0,
    "sink_away": 1.0,
    "storm": 2.0,
    "drop_session": 1.0,
}
LOSSY = Weather(slow=0.05, slowest_s=3.0, loss=0.02, amnesia=0.05)
SLUGGISH = Weather(slow=0.1, slowest_s=14.5)  # Longer than a stop waits for a run.
FORGETFUL = Weather(slow=0.05, slowest_s=2.0, loss=0.06, amnesia=0.12)

GROUPS = Kind(
    "groups",
    nodes=(2, 3),
    streams=(0, 0),
    groups=(2, 3),
    faults={
        "pause_program": 4.0,
        "kill_program": 2.0,
        "cut_program": 4.0,
        "kill": 1.0,
        "pause": 1.0,
        "cut_database": 1.0,
        "isolate": 1.0,
        "database_away": 0.5,
        "bad_line": 1.0,
    },
    fault_every_s=1.2,
    operations={"restart": 1.0},
    operation_every_s=8.0,
    weather=Weather(slow=0.05, slowest_s=2.0, loss=0.02, amnesia=0.05),
    active_s=60.0,
    recover_s=45.0,
)

KINDS: tuple[Kind, ...] = (
    Kind(
        "cooperative",
        clients=(0, 2),
        operations={**MOVES, **EDITS, "deal": 2.0, "blunder": 1.0},
        operation_every_s=2.0,
        parts=(0, 3, 5),
        is_cooperative=True,
    ),
    Kind("crash", nodes=(3, 5), clients=(0, 1), faults={"kill": 1.0}, fault_every_s=9.0, active_s=35.0),
    Kind("pause", faults={"pause": 1.0}, fault_every_s=6.0, stumble_every=800, streams=(1, 4)),
    Kind("network", faults=NETWORK, weather=LOSSY, clients=(0, 1), fault_every_s=3.0),
    Kind(
        "lease",
        nodes=(2, 4),
        streams=(2, 4),
        faults={"cut_database": 2.0, "isolate": 1.0, "doze": 2.0},
        fault_every_s=4.0,
        weather=Weather(slow=0.2, slowest_s=2.0),
    ),
    Kind(
        "zombie",
        nodes=(2, 3),
        streams=(3, 4),
        faults={"isolate": 1.0},
        fault_every_s=6.0,
        sinks=("store", "store", "plain"),
        active_s=35.0,
    ),
    Kind(
        "takeover",
        nodes=(2, 4),
        streams=(3, 5),
        clients=(0, 1),
        idle=0.2,
        pooled=0.15,
        faults={"kill": 3.0, "drop_session": 4.0, "keep_from_beating": 4.0, "cut_sink": 1.0, "pause": 1.0},
        fault_every_s=4.0,
        operations={"swap_sink": 1.0, "swap": 1.0},
        active_s=35.0,
        stumble_every=3000,
    ),
    Kind("outage", faults={"database_away": 1.0}, fault_every_s=8.0, active_s=35.0),
    Kind(
        "push",
        clients=(1, 3),
        streams=(0, 1),
        faults={
            "cut_client": 3.0,
            "cut_asking": 6.0,
            "bad_line": 2.0,
            "pause": 1.0,
            "kill": 1.0,
            "cut_database": 1.0,
            "sink_away": 1.0,
            "storm": 1.0,
        },
        fault_every_s=1.0,
        operations={"swap": 4.0, "drain": 1.0, "restart": 1.0, "pause": 1.0},
        operation_every_s=1.5,
        weather=FORGETFUL,
        stumble_every=3000,
        kills=0.2,
    ),
    Kind(
        "upgrade",
        nodes=(3, 4),
        clients=(1, 3),
        faults={"leave_placed": 1.0},
        fault_every_s=5.0,
        operations={"swap": 3.0, "restart": 1.0},
        operation_every_s=0.5,
        weather=Weather(slow=0.1, slowest_s=1.0),
        active_s=22.0,
    ),
    Kind(
        "restless",
        idle=0.25,
        clients=(0, 2),
        faults={"bad_line": 4.0, "storm": 1.0, "cut_sink": 2.0, "kill": 1.0, "pause": 1.0, "cut_client": 1.0},
        fault_every_s=3.0,
        operations={**EDITS, "drain": 1.0, "restart": 1.5, "swap": 8.0, "take": 2.0},
        operation_every_s=0.7,
        weather=FORGETFUL,
    ),
    Kind(
        "slow",
        nodes=(2, 3),
        streams=(1, 3),
        clients=(2, 4),
        faults={"cut_asking": 2.0, "cut_client": 1.0},
        fault_every_s=0.7,
        operations={"again": 2.0, "swap": 2.0, "toggle": 1.0, "move": 2.0},
        operation_every_s=0.5,
        weather=SLUGGISH,
        active_s=40.0,
    ),
    Kind(
        "parts",
        nodes=(2, 4),
        streams=(1, 2),
        parts=(1, 3, 5),
        faults={"kill": 2.0, "pause": 2.0, "bad_line": 3.0, "cut_sink": 2.0, "isolate": 1.0, "sink_away": 1.0},
        fault_every_s=4.0,
        operations={"deal": 6.0, "edit": 1.0, "drain": 1.0, "restart": 1.0, "toggle": 0.5, "swap_sink": 0.3},
        operation_every_s=3.0,
        weather=LOSSY,
        recover_s=40.0,
    ),
    Kind(
        "trial",
        faults={"kill": 1.0, "bad_line": 2.0, "cut_sink": 2.0, "sink_away": 2.0, "database_away": 1.0},
        fault_every_s=5.0,
        operations={"blunder": 4.0, "swap": 3.0, "swap_sink": 1.0, "swap_source": 1.0, "again": 2.0},
        operation_every_s=2.0,
        weather=LOSSY,
    ),
    Kind(
        "failover",
        nodes=(2, 4),
        streams=(1, 4),
        faults={"fail_over": 3.0, "kill": 1.0, "pause": 1.0, "bad_line": 1.0, "isolate": 1.0},
        fault_every_s=4.0,
        operations={"restart": 1.0, "drain": 1.0, "move": 1.0},
        operation_every_s=4.0,
        weather=LOSSY,
        sinks=("table", "table", "store", "plain"),
        active_s=40.0,
        recover_s=40.0,
    ),
    GROUPS,
    replace(GROUPS, name="fenced", fenced=0.8, odd=0.35, active_s=40.0),
    Kind(
        "chaos",
        nodes=(2, 5),
        clients=(0, 2),
        streams=(1, 4),
        faults={**NETWORK, "kill": 2.0, "pause": 3.0, "cut_client": 2.0},
        fault_every_s=2.0,
        operations={**MOVES, **EDITS, "deal": 1.0, "blunder": 1.0},
        parts=(0, 0, 4),
        weather=LOSSY,
        recover_s=40.0,
        stumble_every=2500,
        kills=0.3,
    ),
)

CROWD = Kind(
    "crowd",
    nodes=(30, 30),
    streams=(100, 100),
    clients=(2, 4),
    faults={"kill": 2.0, "pause": 2.0, "cut_database": 1.0, "database_away": 0.3, "cut_client": 1.0},
    fault_every_s=1.5,
    operations=MOVES,
    operation_every_s=3.0,
    stumble_every=20000,
    kills=0.5,
    active_s=20.0,
    records_every_s=3.0,
)
CROWD_EVERY = 100  # One seed in this many is a crowd: it costs as much as fifty others.

NAMES = (*(kind.name for kind in KINDS), CROWD.name)


def kind_of(seed: int) -> Kind:
    """What a seed is about. A seed is always the same run, so that a number is enough to repeat it."""
    return CROWD if seed % CROWD_EVERY == 0 else KINDS[seed % len(KINDS)]

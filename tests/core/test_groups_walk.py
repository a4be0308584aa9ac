"""Groups in a world that knows who believes to be active: an exhaustive walk, and long random histories.

The walk meets the states of three consumers that can be reached, nearest first, up to a number of states that
`HEADGATE_TEST_WALK_STATES` raises; of two consumers it meets all. In each it tries everything that can happen, and
looks whether the group ends well if nothing more goes wrong: with everyone back, and with whoever is cut off silent
for good.
"""

from __future__ import annotations

import os
from collections import deque

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.core.group_world import Broken, Key, Setting

LIMIT = int(os.environ.get("HEADGATE_TEST_WALK_STATES", "20000")) // 16  # For each setting; in seconds, all together.
EXAMPLES = LIMIT // 4
CHOICES = st.lists(st.integers(0, 10_000), min_size=20, max_size=100)  # One for each step of a history.

BACK = ("a joins", "b joins", "cut c0", "notice c0", "c0 is back")
FORGOTTEN = ("a joins", "cut c0", "notice c0", "the lease of c0 ends", "deadline of c0")
RETURNED = (*FORGOTTEN, "b joins", "c0 returns")  # Far from the beginning; most goes wrong there.
WALKS = [
    Setting("simple", (0, 1, 2), most=2),
    Setting("partition", (0, 1, 2), partition=1),
    Setting("one message", (0, 1, 2), partition=2, most=1),
    Setting("shared connection", (0, 0, 1), partition=1, most=2),
    Setting("sticky", (0, 1, 2), is_sticky=True, has_wishes=True, most=1),
    Setting("back in time", (0, 1, 2), most=1, opening=BACK),
    Setting("fenced", (0, 1, 2), most=2, is_fenced=True),
    Setting("returned", (0, 1, 2), partition=5, most=2, opening=RETURNED),
]
HISTORIES = [
    Setting("histories, simple", (0, 1, 2, 2, 3), most=6, has_wishes=True),
    Setting("histories, partition", (0, 1, 2, 2, 3), partition=3, most=6, has_wishes=True),
    Setting("histories, fenced", (0, 1, 2, 3), partition=3, most=6, has_wishes=True, is_fenced=True),
    Setting("histories, sticky", (0, 1, 2, 3, 3, 4), is_sticky=True, most=8, has_wishes=True),
]


def walk(setting: Setting, limit: int) -> int:
    """All states up to a limit, nearest first; how many there were. A violation is told with its story."""
    start = setting.start()
    origins: dict[Key, tuple[Key, str] | None] = {setting.key(start): None}
    frontier = deque([(start, setting.key(start))])
    known: dict[bool, set[Key]] = {True: set(), False: set()}
    while frontier:
        state, origin = frontier.popleft()
        for label, move in setting.moves(state):
            try:
                following = move()
                if following is state:
                    continue
                setting.check(following)
                key = setting.key(following)
                if key in origins or len(origins) >= limit:
                    continue
                origins[key] = origin, label
                frontier.append((following, key))
                for heals in (True, False):
                    setting.ends_well(following, heals, known[heals])
            except Broken as broken:
                raise Broken(f"{broken}, after: {story(origins, origin, label)}") from broken
    return len(origins)


def story(origins: dict[Key, tuple[Key, str] | None], key: Key, last: str) -> str:
    labels = [last]
    while (origin := origins[key]) is not None:
        key, label = origin
        labels.append(label)
    return ", ".join(reversed(labels))


def live_through(setting: Setting, choices: list[int]) -> None:
    """One history, chosen by these numbers; then nothing more goes wrong."""
    state = setting.start()
    for choice in choices:
        moves = list(setting.moves(state))
        label, move = moves[choice % len(moves)]
        note(label)
        state = move()
        setting.check(state)
    for heals in (True, False):
        setting.ends_well(state, heals, set())


@pytest.mark.parametrize("setting", WALKS, ids=lambda setting: setting.name)
def test_never_two_believers_and_never_stuck_in_any_history(setting: Setting) -> None:
    assert walk(setting, LIMIT) >= min(LIMIT, 1000)


def test_a_walk_of_two_consumers_meets_every_state_there_is() -> None:
    assert 1000 < walk(Setting("two", (0, 1), partition=1, most=1), 10_000) < 10_000


@pytest.mark.parametrize("setting", HISTORIES, ids=lambda setting: setting.name)
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink]
)
@given(choices=CHOICES)
def test_never_two_believers_and_never_stuck_in_long_histories_of_many(setting: Setting, choices: list[int]) -> None:
    live_through(setting, choices)

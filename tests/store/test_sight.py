"""What is said of a database that goes and comes back: a line each, whoever sees what first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from headgate.store import sight as module
from headgate.store.sight import MOMENT_S, Sight, sight_of


class Clock:
    """The time that a sight sees."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "boot_s", clock)
    return clock


@pytest.fixture
def said() -> Iterator[Callable[[], list[str]]]:
    """The lines so far."""
    with capture_logs() as lines:
        yield lambda: [line["event"] for line in lines]


def test_an_outage_is_two_lines_however_many_fail(clock: Clock, said: Callable[[], list[str]]) -> None:
    sight = Sight()
    sight.answered(1000.0)
    for second in range(1001, 1031):
        clock.now_s = float(second)
        sight.failed(second - 0.5, "refused")
    assert said() == ["database away"]
    clock.now_s = 1033.0
    sight.answered(1032.0)
    sight.answered(1032.5)
    assert said() == ["database away", "database back"]


def test_a_server_that_ends_its_sessions_one_after_another_goes_once(
    clock: Clock, said: Callable[[], list[str]]
) -> None:
    sight = Sight()
    sight.failed(1000.0, "terminated")
    sight.answered(1000.0)
    clock.now_s = 1000.0 + MOMENT_S / 2
    sight.answered(clock.now_s)
    sight.failed(clock.now_s, "terminated")
    assert said() == ["database away"]


def test_what_hung_while_it_was_away_does_not_make_it_go_again(clock: Clock, said: Callable[[], list[str]]) -> None:
    sight = Sight()
    sight.failed(1000.0, "timeout")
    clock.now_s = 1005.0
    sight.answered(1004.0)
    clock.now_s = 1006.0
    sight.failed(1001.0, "timeout")
    assert said() == ["database away", "database back"]


def test_that_it_takes_no_writes_is_said_once_and_no_answer_ends_it(
    clock: Clock, said: Callable[[], list[str]]
) -> None:
    sight = Sight()
    for _ in range(10):
        sight.refused("No space left on device")
        sight.answered(clock.now_s)
    assert said() == ["database takes no writes"]
    assert sight.refusal == "No space left on device"
    sight.took_a_write()
    sight.took_a_write()
    assert sight.refusal is None
    assert said() == ["database takes no writes", "database takes writes again"]


def test_all_sessions_of_a_database_see_the_same() -> None:
    one = sight_of("postgresql://one")
    assert sight_of("postgresql://one") is one
    assert sight_of("postgresql://two") is not one

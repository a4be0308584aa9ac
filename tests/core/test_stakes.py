"""What a delete would lose, in words."""

from __future__ import annotations

import pytest

from headgate.core.stakes import losses

DUMPS = [f"01928f3e-7c{number:02}-7000-8000-000000000001" for number in range(7)]


@pytest.mark.parametrize(
    ("payloads", "letters", "dumps", "said"),
    [
        (0, 0, [], []),
        (1, 0, [], ["1 accepted payload waits"]),
        (1200, 1, [], ["1,200 accepted payloads wait", "1 dead letter is open"]),
        (0, 3, DUMPS[:1], ["3 dead letters are open", "dump 01928f3e-7c00 is not over"]),
        (0, 0, DUMPS[:2], ["dumps 01928f3e-7c00, 01928f3e-7c01 are not over"]),
    ],
)
def test_everything_that_is_lost_is_named(payloads: int, letters: int, dumps: list[str], said: list[str]) -> None:
    assert losses(payloads, letters, dumps) == said


def test_of_many_dumps_a_few_are_named() -> None:
    assert losses(0, 0, DUMPS)[0].endswith("01928f3e-7c04 and 2 more are not over")

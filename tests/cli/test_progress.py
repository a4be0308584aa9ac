"""What is seen of a dump while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.cli import progress


class Seen:
    """A table of a dump, as views show it."""

    name, target, rows, bytes, expected_rows, expected_bytes = "orders", "orders", 1000, 100_000, 1000, 100_000

    def __init__(self, state: str) -> None:
        self.state = state


@pytest.fixture
def table() -> progress.Table:
    return progress.Table(Seen("copying"))  # type: ignore[arg-type]


def test_a_table_whose_indexes_are_built_shows_that_and_no_time_that_is_left(
    table: progress.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    lines = progress.Lines()
    monkeypatch.setattr(lines, "say", said.append)
    monkeypatch.setattr(progress, "LINES_S", -1.0)
    for state, building in (("copying", ""), ("finishing", "builds an index, scanning table, 45 %"), ("finishing", "")):
        seen: Any = Seen(state)
        table.learn(seen, 0)
        table.building = building
        lines.show([table])
    assert said[1] == "0 of 1 table, 1,000 rows, orders builds an index, scanning table, 45 %"
    assert said[2] == "0 of 1 table, 1,000 rows, orders is being finished"
    assert not any("left" in one for one in said)
    table.building = "builds an index, scanning table, 45 %"
    assert table.figures() == "1,000 rows  builds an index, scanning table, 45 %"

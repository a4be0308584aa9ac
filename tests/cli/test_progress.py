"""What is seen of a dump while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.cli import progress


class Row:
    """A table of a dump, as the database has it."""

    number, name, target, rows, bytes = 0, "orders", "orders", 1000, 100_000

    def __init__(self, state: str) -> None:
        self.state = state


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> progress.Table:
    class Plan:
        since = ()

        class job:
            class source:
                rows, size = 1000, 100_000

    monkeypatch.setattr("headgate.runtime.dumps.plan.plan_of", lambda row: Plan)
    return progress.Table(Row("copying"))  # type: ignore[arg-type]


def test_a_table_whose_indexes_are_built_shows_that_and_no_time_that_is_left(
    table: progress.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    lines = progress.Lines()
    monkeypatch.setattr(lines, "say", said.append)
    monkeypatch.setattr(progress, "LINES_S", -1.0)
    for state, building in (("copying", ""), ("finishing", "builds an index, scanning table, 45 %"), ("finishing", "")):
        row: Any = Row(state)
        table.learn(row, 0)
        table.building = building
        lines.show([table])
    assert said[1] == "0 of 1 table, 1,000 rows, orders builds an index, scanning table, 45 %"
    assert said[2] == "0 of 1 table, 1,000 rows, orders is being finished"
    assert not any("left" in one for one in said)
    table.building = "builds an index, scanning table, 45 %"
    assert table.figures() == "1,000 rows  builds an index, scanning table, 45 %"

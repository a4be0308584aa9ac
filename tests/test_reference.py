"""The generated pages are what the code says now."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.testing import reference

FOLDER = Path(__file__).parent.parent / "docs" / "reference"


@pytest.mark.parametrize("path", reference.pages(FOLDER), ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == reference.pages(FOLDER)[path], "run: make docs"


def test_the_diagram_shows_every_phase_and_a_longer_walk_finds_nothing_new() -> None:
    found = reference.transitions()
    assert {name for pair in found for name in pair} == {
        phase.__name__
        for phase in reference.machine.Phase.__args__  # type: ignore[attr-defined]
    }
    assert reference.transitions(reference.DEPTH + 2) == found


def test_a_page_keeps_what_stands_around_its_diagram() -> None:
    page = f"before\n{reference.BEGIN}\nold\n{reference.END}\nafter\n"
    drawn = reference.with_diagram(page, "new\n")
    assert drawn == f"before\n{reference.BEGIN}\n```mermaid\nnew\n```\n{reference.END}\nafter\n"
    assert reference.with_diagram(drawn, "new\n") == drawn


def test_the_diagram_of_a_consumer_shows_every_status_and_a_third_member_adds_nothing() -> None:
    found = reference.group_transitions()
    assert len({status for pair in found for status in pair if status}) == 9
    assert reference.group_transitions("abc") == found

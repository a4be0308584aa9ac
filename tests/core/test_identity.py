"""Whether data are the same: by their name, by their mark, and by the names that they had before there were marks."""

from __future__ import annotations

import itertools

import pytest

from headgate.core.identity import UNMARKED, Marks, Sameness, compare, kept

A, B, BOTH = "name of a", "name of b", "name of a,b"


@pytest.mark.parametrize(
    ("name", "mark", "given", "marks", "sameness"),
    [
        (None, None, A, UNMARKED, "same"),  # A new row.
        (A, None, A, UNMARKED, "same"),
        (A, None, B, UNMARKED, "other"),
        (A, "m", A, Marks(None), "same"),  # Nobody needs to be asked.
        (A, "m", B, Marks(None), "unclear"),
        (A, "m", B, Marks("m"), "same"),
        (A, "m", B, Marks("n"), "other"),
        (A, "m", B, Marks(""), "other"),  # It has no mark, or a connector that knows none has taken its place.
        (A, None, BOTH, Marks(None, (A, B)), "same"),  # A row of an older release, and a host that is new.
        (BOTH, None, A, Marks(None), "other"),
        (A, "m", BOTH, Marks(None, (A, B)), "unclear"),  # A mark tells more than a name.
        (A, "m", BOTH, Marks("n", (A, B)), "other"),
    ],
)
def test_data_are_compared(name: str | None, mark: str | None, given: str, marks: Marks, sameness: Sameness) -> None:
    assert compare(name, mark, given, marks) == sameness


def test_the_mark_of_the_row_stays_with_the_same_data_until_they_say_another() -> None:
    assert kept("same", "m", UNMARKED) == "m"
    assert kept("same", "m", Marks(None)) == "m"
    assert kept("same", "m", Marks("n")) == "n"
    assert kept("other", "m", UNMARKED) is None
    assert kept("other", "m", Marks("n")) == "n"


def test_asked_for_its_mark_everything_is_clear() -> None:
    names, marks = (None, A, B), (None, "m", "n")
    for name, mark, given, said in itertools.product(names, marks, (A, B), ("", "m", "n")):
        assert compare(name, mark, given, Marks(said, (A,))) != "unclear"

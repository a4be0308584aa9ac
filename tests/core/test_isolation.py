"""The search for bad records: every set of bad records in every small batch, and what a search may cost."""

from __future__ import annotations

from itertools import combinations

import pytest

from headgate.core.isolation import accepted, begin, refused


def searched(number: int, bad: set[int], most: int = 0) -> tuple[list[int], list[int], int]:
    """The records found, those written, and the number of trials."""
    search, written, trials = begin(number, most), [], 0
    while (tried := search.next) is not None:
        trials += 1
        if bad & set(range(*tried)):
            search = refused(search)
        else:
            written += range(*tried)
            search = accepted(search)
    return list(search.bad), written, trials


@pytest.mark.parametrize("most", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("number", range(9))
def test_every_set_of_bad_records_is_found_and_every_other_record_is_written_once(number: int, most: int) -> None:
    for size in range(number + 1):
        for chosen in combinations(range(number), size):
            bad, written, trials = searched(number, set(chosen), most)
            assert bad == list(chosen)
            assert written == [one for one in range(number) if one not in chosen]
            assert trials <= 2 * number


@pytest.mark.parametrize("place", [0, 1, 2_500, 4_999])
def test_one_bad_record_of_thousands_costs_two_dozen_trials(place: int) -> None:
    bad, written, trials = searched(5_000, {place})
    assert (bad, len(written)) == ([place], 4_999)
    assert trials <= 26


def test_a_record_that_contradicts_an_earlier_one_is_the_one_at_fault() -> None:
    """What was accepted stays: of two equal keys the second is refused, wherever the two are."""
    for first, second in combinations(range(7), 2):
        keys = [7 + one for one in range(7)]
        keys[second] = keys[first]
        search, held = begin(7), list[int]()
        while (tried := search.next) is not None:
            some = keys[slice(*tried)]
            if len({*held, *some}) == len(held) + len(some):
                held += some
                search = accepted(search)
            else:
                search = refused(search)
        assert search.bad == (second,)


def test_a_refusal_that_does_not_come_again_makes_no_record_bad() -> None:
    search = begin(6)
    while search.next is not None:
        search = accepted(search)
    assert search.bad == ()

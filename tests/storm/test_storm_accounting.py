"""The accounts of a storm see what they are there to see: a record that is lost, repeated, out of order, or twice."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.storm.accounting import Balance, Fate, Lane, Letters, Totals, check_totals, settle

FILTERED, BAD, UNTOLD = 3, 5, 7  # Records of these numbers.


def fate(id: int) -> Fate:
    return {FILTERED: Fate.NOTHING, BAD: Fate.EITHER, UNTOLD: Fate.PERHAPS}.get(id, Fate.ROW)


def balance(rows: Iterable[int], last: int = 9, letters: Letters | None = None, **options: object) -> Balance:
    lane = Lane(fate, **options)  # type: ignore[arg-type]
    for id in rows:
        lane.arrive(id)
    return settle(lane, last, letters or Letters(open=[BAD]))


GOOD = [0, 1, 2, 4, 6, 8, 9]


def test_rows_letters_and_what_was_filtered_are_all_that_was_sent() -> None:
    found = balance(GOOD)
    assert found == Balance(sent=10, rows=7, letters=1, filtered=1, repeats=0, lost=0, problems=())


@pytest.mark.parametrize("lost", [0, 4, 9])
def test_a_record_that_is_lost_is_seen_at_the_beginning_in_the_middle_and_at_the_end(lost: int) -> None:
    found = balance([id for id in GOOD if id != lost])
    assert found.problems == (f"1 lost: {lost}",)
    assert found.lost == 1


def test_a_bad_record_that_is_neither_a_row_nor_a_letter_is_lost() -> None:
    assert balance(GOOD, letters=Letters()).problems == (f"1 lost: {BAD}",)


def test_a_letter_whose_place_a_newer_row_has_taken_is_not_lost() -> None:
    assert balance(GOOD, letters=Letters(superseded=[BAD])).problems == ()


def test_a_letter_that_is_replayed_later_is_in_order() -> None:
    found = balance([*GOOD, BAD], letters=Letters())
    assert (found.rows, found.problems) == (8, ())


def test_a_record_that_is_a_row_and_an_open_letter_is_seen() -> None:
    assert balance([*GOOD, BAD]).problems == (f"1 written and a letter too: {BAD}",)


def test_a_good_record_that_became_a_letter_is_seen() -> None:
    found = balance([id for id in GOOD if id != 4], letters=Letters(open=[4, BAD]))
    assert found.problems == ("1 a letter though nothing is wrong with it: 4",)


def test_what_nobody_was_told_about_may_be_there_or_not_and_at_any_place() -> None:
    assert balance([*GOOD, UNTOLD]).problems == ()
    assert balance([*GOOD, UNTOLD, UNTOLD]).problems == ("1 repeated: 1 times",)


def test_a_record_that_is_repeated_is_seen() -> None:
    found = balance([0, 1, 2, 2, 4, 6, 8, 9, 0])
    assert (found.repeats, found.problems) == (2, ("1 repeated: 2 times",))


def test_a_sink_that_is_not_transactional_may_repeat_and_may_not_lose() -> None:
    found = balance([0, 1, 2, 4, 2, 4, 6, 8, 9], is_exact=False)
    assert (found.repeats, found.problems) == (2, ())
    assert balance([0, 1, 2, 1, 2, 6, 8, 9], is_exact=False).problems == ("1 lost: 4",)


def test_what_only_the_registry_had_may_be_lost_with_it_and_is_counted() -> None:
    everything = frozenset({Fate.ROW, Fate.EITHER})
    found = balance([0, 1, 2, 6, 8, 9], letters=Letters(), forgives=everything)
    assert (found.lost, found.problems) == (2, ())
    letters_only = frozenset({Fate.EITHER})
    assert balance([0, 1, 2, 6, 8, 9], letters=Letters(), forgives=letters_only).problems == ("1 lost: 4",)


def test_a_record_that_is_out_of_order_is_seen() -> None:
    found = balance([0, 2, 1, 4, 6, 8, 9])
    assert (found.lost, found.problems) == (0, ("1 out of order: 1",))


def test_a_row_that_the_mapping_filters_is_seen() -> None:
    assert balance([0, 1, 2, FILTERED, 4, 6, 8, 9]).problems == (f"1 written though filtered: {FILTERED}",)


def test_rows_and_letters_beyond_the_position_are_seen() -> None:
    assert balance([*GOOD, 10]).problems == ("1 handled beyond the position: 10",)


def test_an_old_record_in_the_place_of_a_newer_one_is_seen() -> None:
    assert balance([*GOOD, BAD], letters=Letters(), keys=3).problems == (f"1 written over a newer row: {BAD}",)
    assert balance([*GOOD, BAD], letters=Letters(), keys=6).problems == ()


def test_what_was_acknowledged_is_owed_until_it_is_there() -> None:
    lane = Lane(fate)
    assert not lane.owes(-1)
    assert lane.owes(0)
    for id in (0, 1, 2, 4):
        lane.arrive(id)
    assert not lane.owes(BAD)
    assert lane.owes(BAD + 1)
    lane.arrive(8)
    assert lane.owes(4), "what is missing in between is owed whatever is asked for"


def test_totals_that_do_not_add_up_are_seen() -> None:
    good = Totals(read=10, written=7, filtered=1, dead_lettered=2, letters=2, replayed=1)
    assert check_totals(good, sent=10, rows=8) == []
    assert check_totals(good, sent=None, rows=None) == []
    wrong = Totals(read=11, written=7, filtered=1, dead_lettered=2, letters=3, replayed=1)
    assert check_totals(wrong, sent=10, rows=9) == [
        "read is not written + filtered + dead-lettered: 11 and 10",
        "dead-lettered is not the sum of the letters: 2 and 3",
        "read is not what was sent: 11 and 10",
        "written + replayed is not what arrived: 8 and 9",
    ]

"""What a worker on this node should run."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from headgate.core.lifecycle import Wanted
from headgate.core.reconcile import Entry, Place, wanted_here, why_given_back

WANTED = Wanted(published=1, running=None, restarts=0)
ENTRY = Entry(UUID(int=1), "orders", revision=1, enabled=True, deleted=False, wanted=WANTED, is_to_run=True)
either_kind = pytest.mark.parametrize("is_pushed", [False, True], ids=["worker stream", "pushed stream"])


def here(entry: Entry | None, place: Place | None = None, *, is_pushed: bool = False, index: int = 0) -> Wanted | None:
    return wanted_here(entry, place or Place(), is_pushed=is_pushed, index=index)


# What is wanted.


@pytest.mark.parametrize(
    "wanted",
    [
        WANTED,
        replace(WANTED, published=2),
        replace(WANTED, running=1),
        replace(WANTED, restarts=1),
        replace(WANTED, rejected=True),
    ],
    ids=["new", "published", "proved", "marked", "rejected"],
)
def test_what_should_run_is_told_whole(wanted: Wanted) -> None:
    assert here(replace(ENTRY, wanted=wanted)) is wanted


@either_kind
def test_what_should_not_run_is_not_wanted(is_pushed: bool) -> None:
    entry = replace(ENTRY, is_to_run=False, is_pushed=is_pushed)
    assert here(entry, is_pushed=is_pushed) is None


PAUSED = replace(ENTRY, is_to_run=False, is_paused=True)
STOPPED = replace(ENTRY, is_to_run=False, enabled=False)


@either_kind
def test_of_what_is_paused_nothing_is_wanted_and_its_doors_are_open(is_pushed: bool) -> None:
    entry = replace(PAUSED, is_pushed=is_pushed)
    assert here(entry, is_pushed=is_pushed) is None
    assert entry.is_open


@pytest.mark.parametrize(
    ("entry", "is_open"),
    [(ENTRY, True), (PAUSED, True), (STOPPED, False), (replace(STOPPED, deleted=True), False)],
    ids=["runs", "paused", "stopped", "deleted"],
)
def test_only_a_stop_or_a_delete_closes_the_doors(entry: Entry, is_open: bool) -> None:
    assert entry.is_open is is_open


@pytest.mark.parametrize(
    ("entry", "place", "why"),
    [
        (PAUSED, Place(), "paused"),
        (STOPPED, Place(), "stopped"),
        (None, Place(), "stopped"),
        (ENTRY, Place(is_draining=True), "draining"),
        (PAUSED, Place(is_draining=True), "draining"),
    ],
)
def test_a_program_is_told_why_its_stream_ended(entry: Entry | None, place: Place, why: str) -> None:
    assert why_given_back(entry, place) == why


@either_kind
def test_what_the_registry_does_not_know_is_not_wanted(is_pushed: bool) -> None:
    assert here(None, is_pushed=is_pushed) is None


@pytest.mark.parametrize(
    "place",
    [Place(is_draining=True), Place(lists=False), Place(is_draining=True, lists=False)],
    ids=["draining", "not in its file", "both"],
)
@either_kind
def test_a_node_that_drains_or_does_not_list_it_runs_nothing_of_it(place: Place, is_pushed: bool) -> None:
    assert here(replace(ENTRY, is_pushed=is_pushed), place, is_pushed=is_pushed) is None
    assert ENTRY.is_to_run  # Elsewhere it should.


def test_a_worker_serves_the_kind_of_stream_that_the_version_has() -> None:
    """A publish may turn a datasource that is read into one that is pushed, and back: the old kind's worker ends."""
    pushed = replace(ENTRY, is_pushed=True)
    assert here(ENTRY, is_pushed=True) is None
    assert here(pushed, is_pushed=False) is None
    assert here(pushed, is_pushed=True) is WANTED


def test_a_revision_alone_changes_nothing() -> None:
    assert here(replace(ENTRY, revision=9)) == here(ENTRY)


# Several streams.


def test_the_first_stream_proves_a_version_and_the_others_follow() -> None:
    trial = replace(ENTRY, dealt=3, wanted=Wanted(published=2, running=1, restarts=7))
    assert here(trial, index=0) == Wanted(published=2, running=1, restarts=7)
    assert here(trial, index=2) == Wanted(published=1, running=1, restarts=7)
    proved = replace(trial, wanted=Wanted(published=2, running=2, restarts=7))
    assert here(proved, index=0) == here(proved, index=2) == Wanted(published=2, running=2, restarts=7)


def test_until_a_version_has_proved_itself_all_streams_run_the_published_one() -> None:
    fresh = replace(ENTRY, dealt=3, wanted=Wanted(published=1, running=None, restarts=0))
    assert here(fresh, index=2) == here(fresh, index=0) == fresh.wanted


def test_the_others_are_not_concerned_by_a_version_that_is_rejected() -> None:
    rejected = replace(ENTRY, dealt=2, wanted=Wanted(published=2, running=1, restarts=0, rejected=True))
    assert here(rejected, index=1) == Wanted(published=1, running=1, restarts=0)


def test_a_stream_that_is_too_many_is_wanted_nowhere() -> None:
    assert here(replace(ENTRY, dealt=2), index=1) is not None
    assert here(replace(ENTRY, dealt=2), index=2) is None


def test_the_key_of_the_others_is_named_by_what_they_run() -> None:
    """One that has come to its end rests until the version that it follows changes, and then begins again."""
    before = replace(ENTRY, dealt=2, wanted=Wanted(published=1, running=1, restarts=0))
    trial = replace(before, wanted=Wanted(published=2, running=1, restarts=0))
    proved = replace(before, wanted=Wanted(published=2, running=2, restarts=0))
    assert [entry.wanted_key_of(1) for entry in (before, trial, proved)] == ["1/0", "1/0", "2/0"]
    assert [entry.wanted_key_of(0) for entry in (before, trial, proved)] == ["1/0", "2/0", "2/0"]


# The key of what is wanted.


@pytest.mark.parametrize(
    "other",
    [replace(WANTED, published=2), replace(WANTED, restarts=1)],
    ids=["a publish", "a restart or a changed secret"],
)
def test_whatever_else_is_wanted_has_another_key(other: Wanted) -> None:
    assert replace(ENTRY, wanted=other).wanted_key_of(0) != ENTRY.wanted_key_of(0)


@pytest.mark.parametrize(
    "entry",
    [
        replace(ENTRY, wanted=replace(WANTED, running=1)),
        replace(ENTRY, wanted=replace(WANTED, rejected=True)),
        replace(ENTRY, enabled=False),
        replace(ENTRY, is_to_run=False),
        PAUSED,
        replace(ENTRY, revision=9),
        replace(ENTRY, name="renamed"),
    ],
    ids=["a proof", "a rejection", "a stop", "a quarantine", "a pause", "a revision", "a name"],
)
def test_what_becomes_of_it_does_not_change_the_key(entry: Entry) -> None:
    """A finished stream rests, and a node stays unable, for as long as this name."""
    assert entry.wanted_key_of(0) == ENTRY.wanted_key_of(0)


def test_two_keys_are_never_the_same() -> None:
    found = [
        replace(WANTED, published=published, restarts=restarts) for published in range(15) for restarts in range(15)
    ]
    assert len({replace(ENTRY, wanted=one).wanted_key_of(0) for one in found}) == len(found)


def test_where_nothing_was_published_the_key_is_empty() -> None:
    assert replace(ENTRY, wanted=None).wanted_key_of(0) == ""


@pytest.mark.parametrize("dealt", [1, 3])
def test_nothing_is_wanted_of_a_worker_that_began_under_another_deal(dealt: int) -> None:
    """It would read parts that are another stream's by now."""
    entry = replace(ENTRY, dealt=2)
    assert wanted_here(entry, Place(), is_pushed=False, index=0, dealt=2) is WANTED
    assert wanted_here(entry, Place(), is_pushed=False, index=0, dealt=dealt) is None

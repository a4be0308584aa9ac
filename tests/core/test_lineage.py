"""What a registry is to somebody who knew it: the same, older, a copy, or set back in time."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest

from headgate.core.lineage import (
    LAST_ERA,
    Kept,
    Known,
    Lineage,
    Outdated,
    Same,
    Server,
    Stranger,
    Unclaimed,
    WentBack,
    era_of,
    first_epoch,
    judge,
    next_generation,
    remember,
)
from headgate.core.streams import Edit, Grant, Progress, Stream, agree, step
from headgate.errors import Refused

ME, OTHER, NODE = UUID(int=1), UUID(int=2), UUID(int=3)
HOME = Lineage("7001", 1, 16384, 16400)
PROMOTED = replace(HOME, timeline=2)
RESTORED = replace(HOME, system="7002")


def found(server: Lineage, kept: Kept, known: Known | None, flushed: int = 100) -> object:
    """What is judged, without what is to be remembered."""
    finding = judge(Server(server, flushed), kept, known)
    return Same if isinstance(finding, Same) else finding


def test_the_registry_that_it_was_is_the_same_with_and_without_a_memory_of_it() -> None:
    kept = Kept(ME, 3, HOME)
    assert found(HOME, kept, None) is Same
    assert found(HOME, kept, Known(ME, 3, HOME, 90)) is Same
    assert found(HOME, kept, Known(ME, 3, HOME, 100)) is Same


def test_what_is_remembered_is_what_was_seen_now() -> None:
    finding = judge(Server(HOME, 100), Kept(ME, 3, HOME), Known(ME, 3, HOME, 90))
    assert finding == Same(Known(ME, 3, HOME, 100))


def test_a_registry_that_nobody_has_worked_with_is_at_home_wherever_it_is() -> None:
    assert found(HOME, Kept(ME, 0, None), None) == Unclaimed()


def test_one_that_lost_its_home_since_somebody_worked_with_it_went_back() -> None:
    assert found(HOME, Kept(ME, 0, None), Known(ME, 0, HOME, 90)) == WentBack(1)


@pytest.mark.parametrize("server", [PROMOTED, RESTORED, replace(HOME, database=9), replace(HOME, table=9)])
def test_a_failover_and_a_clone_look_the_same_and_only_a_witness_settles_it(server: Lineage) -> None:
    kept = Kept(ME, 3, HOME)
    assert found(server, kept, None) == Stranger()
    assert found(server, kept, Known(OTHER, 3, HOME, 90)) == Stranger()
    assert found(server, kept, Known(ME, 2, HOME, 90)) == Stranger()  # It does not know this era.
    assert found(server, kept, Known(ME, 3, HOME, 90)) == WentBack(4)


def test_an_era_that_others_began_is_accepted() -> None:
    assert found(PROMOTED, Kept(ME, 4, PROMOTED), Known(ME, 3, HOME, 90)) is Same


def test_an_old_primary_that_is_back_is_refused_whatever_its_registry_says() -> None:
    assert found(HOME, Kept(ME, 3, HOME), Known(ME, 4, PROMOTED, 90)) == Outdated(1, 2)
    assert found(HOME, Kept(ME, 4, PROMOTED), Known(ME, 4, PROMOTED, 90)) == Outdated(1, 2)


def test_an_old_primary_that_a_person_adopted_is_accepted() -> None:
    assert found(HOME, Kept(ME, 5, HOME), Known(ME, 4, PROMOTED, 90)) is Same


def test_a_volume_that_was_set_back_has_the_lineage_that_it_had_but_a_shorter_log() -> None:
    assert found(HOME, Kept(ME, 3, HOME), Known(ME, 3, HOME, 101)) == WentBack(4)
    assert found(HOME, Kept(ME, 2, HOME), Known(ME, 3, HOME, 90)) == WentBack(4)


def test_two_copies_that_began_the_same_era_apart_are_not_mixed_up() -> None:
    assert found(RESTORED, Kept(ME, 3, RESTORED), Known(ME, 3, HOME, 90)) == WentBack(4)


def test_whoever_settles_it_makes_it_the_same_for_everyone() -> None:
    """Over every combination: after the era has begun, nobody who knew any of it finds anything else."""
    lineages = (HOME, PROMOTED, RESTORED)
    for server, kept_era, kept, era, known, flushed in product(
        lineages, range(3), lineages, range(3), lineages, (9, 11)
    ):
        memory = Known(ME, era, known, flushed)
        finding = judge(Server(server, 10), Kept(ME, kept_era, kept), memory)
        if not isinstance(finding, WentBack):
            continue
        assert finding.era > max(kept_era, era)
        settled = Kept(ME, finding.era, server)
        for witness in (None, memory, Known(ME, kept_era, kept, 0), Known(ME, finding.era, server, 10)):
            assert isinstance(judge(Server(server, 10), settled, witness), Same)


def test_the_memory_of_the_later_era_or_moment_is_kept() -> None:
    old, new = Known(ME, 1, HOME, 50), Known(ME, 2, PROMOTED, 10)
    assert remember(None, old) == old
    assert remember(old, new) == remember(new, old) == new
    assert remember(old, replace(old, flushed=60)).flushed == 60
    assert remember(old, replace(old, flushed=40)).flushed == 50
    assert remember(old, replace(old, lineage=PROMOTED)) == old  # Two histories of one era: the first one counts.


def test_what_is_drawn_in_an_era_is_above_all_that_was_drawn_before() -> None:
    assert first_epoch(0) == 0
    assert first_epoch(1) > 10**12
    assert all(era_of(first_epoch(era)) == era for era in (0, 1, 2, LAST_ERA))
    assert first_epoch(LAST_ERA + 1) <= 2**53  # JSON keeps it exactly.


def test_a_generation_rises_into_the_era_with_the_next_edit() -> None:
    assert next_generation(5, first_epoch(0) + 7) == 6
    assert next_generation(5, first_epoch(3) + 7) == 3 << 20
    assert next_generation((3 << 20) + 1, first_epoch(3)) == (3 << 20) + 2
    assert next_generation(0, first_epoch(LAST_ERA)) < 2**31  # Sinks keep it in 32 bits.


def test_a_sink_that_is_ahead_within_a_generation_is_right_after_the_registry_went_back() -> None:
    stream = Stream(ME, epoch=first_epoch(1), progress=Progress(0, 10, 10))
    granted = step(stream, Grant(NODE)).stream
    assert agree(granted.progress, Progress(0, 25, 25)).position == 25


def test_an_edit_in_the_new_era_outranks_every_edit_of_the_time_that_was_lost() -> None:
    stream = Stream(ME, epoch=first_epoch(1), progress=Progress(2, 10, 10))
    edited = step(stream, Edit(7)).stream
    assert agree(edited.progress, Progress(9, 25, 25)).position == 7


def test_a_position_whose_meaning_was_lost_is_not_guessed() -> None:
    with pytest.raises(Refused, match="generation 1, and the registry, which was set back, at 0"):
        agree(Progress(0, 10, 10), Progress(1, 25, 25))


def test_a_lineage_is_the_same_after_it_was_written_down() -> None:
    assert Lineage.of(str(HOME)) == HOME

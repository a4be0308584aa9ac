"""A stream's row: each command in each situation, and what holds whatever comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from headgate.core.identity import Marks
from headgate.core.streams import (
    Acquire,
    Busy,
    Checkpoint,
    Command,
    Deal,
    Done,
    Edit,
    Fenced,
    Grant,
    Granted,
    IdentityChanged,
    IdentityUnclear,
    Mark,
    Progress,
    Release,
    Reply,
    Revoke,
    Step,
    Stream,
    TakeOver,
    Why,
    agree,
    step,
)

ME, OTHER, RUN, NEXT_RUN = (UUID(int=n) for n in range(1, 5))
FREE = Stream(UUID(int=9))
ACQUIRE = Acquire(ME, RUN, version=1, source_identity="source", sink_identity="sink")
CLAIM = replace(ACQUIRE, claims=True)
MINE = Stream(
    FREE.id,
    owner=ME,
    run=RUN,
    epoch=5,
    progress=Progress(generation=2, commits=7, position="g"),
    version=1,
    source_identity="source",
    sink_identity="sink",
    settled=False,
)
LEFT = structs.replace(MINE, owner=None, run=None)
THEIRS = structs.replace(MINE, owner=OTHER)
RESTING = structs.replace(LEFT, rests="version 1")
CHECKPOINT = Checkpoint(ME, 5, 8, "h")
RELEASE = Release(ME, 5, 8, "h")


def after(stream: Stream, *commands: Command) -> Stream:
    """The row after these commands, all of which were carried out."""
    for command in commands:
        done = step(stream, command)
        assert isinstance(done.reply, Granted | Done), f"{command} was answered {done.reply}"
        stream = done.stream
    return stream


def answers(stream: Stream, command: Command) -> Reply:
    """The answer to a command that changes nothing."""
    done = step(stream, command)
    assert done.stream == stream, f"{command} changed the row"
    return done.reply


# Grant.


@pytest.mark.parametrize("stream", [FREE, LEFT], ids=["new", "left"])
def test_a_free_stream_is_granted_under_a_higher_epoch_and_waits_for_its_run(stream: Stream) -> None:
    assert step(stream, Grant(ME)) == Step(structs.replace(stream, owner=ME, epoch=stream.epoch + 1), Granted())


@pytest.mark.parametrize("stream", [MINE, THEIRS], ids=["mine", "theirs"])
def test_a_stream_that_somebody_has_is_granted_to_nobody(stream: Stream) -> None:
    assert answers(stream, Grant(ME)) == Busy(stream.owner)


def test_of_two_grants_the_first_wins() -> None:
    assert answers(after(LEFT, Grant(OTHER)), Grant(ME)) == Busy(OTHER)


# Acquire.


def test_a_node_acquires_what_it_was_granted_for_its_first_run() -> None:
    assert after(FREE, Grant(ME), ACQUIRE) == Stream(
        FREE.id, ME, RUN, 2, Progress(0, 0, None), 1, "source", "sink", settled=False
    )


@pytest.mark.parametrize("stream", [FREE, LEFT], ids=["new", "left"])
def test_a_free_stream_has_to_be_granted_first(stream: Stream) -> None:
    assert answers(stream, ACQUIRE) == Busy(None)


def test_a_claim_of_a_new_stream_begins_with_nothing_yet() -> None:
    claimed = step(FREE, CLAIM)
    assert claimed.reply == Granted(resets_position=False)
    assert claimed.stream == Stream(FREE.id, ME, RUN, 1, Progress(0, 0, None), 1, "source", "sink", settled=False)


def test_a_claim_of_a_free_stream_goes_on_at_its_position_under_a_higher_epoch() -> None:
    assert step(LEFT, CLAIM) == Step(structs.replace(MINE, epoch=6), Granted())


@pytest.mark.parametrize("command", [ACQUIRE, CLAIM], ids=["acquire", "claim"])
def test_an_owner_is_granted_its_stream_again_for_its_next_run(command: Acquire) -> None:
    again = step(MINE, replace(command, run=NEXT_RUN, version=2))
    assert again == Step(structs.replace(MINE, epoch=6, run=NEXT_RUN, version=2), Granted())


@pytest.mark.parametrize("command", [ACQUIRE, CLAIM], ids=["acquire", "claim"])
def test_a_stream_of_another_is_busy_and_unchanged(command: Acquire) -> None:
    assert answers(THEIRS, command) == Busy(OTHER)


def test_two_nodes_race_for_a_claim_and_one_wins() -> None:
    won = after(LEFT, replace(CLAIM, owner=OTHER))
    assert answers(won, CLAIM) == Busy(OTHER)
    assert won.epoch == 6


def test_the_loser_of_a_race_may_claim_when_the_winner_lets_go() -> None:
    let_go = after(LEFT, replace(CLAIM, owner=OTHER), Release(OTHER, 6, 8, "h"))
    assert after(let_go, CLAIM) == structs.replace(MINE, epoch=7, progress=Progress(2, 8, "h"))


@pytest.mark.parametrize("stream", [LEFT, MINE], ids=["free", "mine"])
def test_a_new_version_that_reads_another_source_starts_anew(stream: Stream) -> None:
    anew = step(stream, replace(CLAIM, version=2, source_identity="another"))
    assert anew.reply == Granted(resets_position=True)
    assert anew.stream == structs.replace(
        MINE, epoch=6, version=2, source_identity="another", progress=Progress(generation=3, commits=7, position=None)
    )


@pytest.mark.parametrize("stream", [LEFT, MINE], ids=["free", "mine"])
def test_a_secret_alone_may_not_make_it_another_source(stream: Stream) -> None:
    assert answers(stream, replace(CLAIM, source_identity="another")) == IdentityChanged()


@pytest.mark.parametrize("stream", [LEFT, MINE], ids=["free", "mine"])
def test_an_older_version_may_not_go_back_to_the_source_it_read(stream: Stream) -> None:
    """Its position is gone: it would read everything again."""
    moved = after(stream, replace(CLAIM, version=2, source_identity="another"))
    assert answers(moved, CLAIM) == IdentityChanged()


def test_a_newer_version_may_go_back_to_the_source_and_starts_anew_as_well() -> None:
    moved = after(MINE, replace(ACQUIRE, version=2, source_identity="another"))
    back = step(moved, replace(ACQUIRE, version=3))
    assert back.reply == Granted(resets_position=True)
    assert back.stream.progress == Progress(generation=4, commits=7, position=None)


def test_an_older_version_may_go_on_with_the_same_source() -> None:
    assert after(MINE, replace(ACQUIRE, version=2), ACQUIRE) == structs.replace(MINE, epoch=7)


def test_a_row_that_tells_no_version_may_read_another_source() -> None:
    """Nothing says that it is the same version with another secret."""
    anew = step(structs.replace(LEFT, version=None), replace(CLAIM, source_identity="another"))
    assert anew.reply == Granted(resets_position=True)


def test_another_sink_keeps_the_position_and_counts_as_an_edit() -> None:
    moved = step(LEFT, replace(CLAIM, sink_identity="another"))
    assert moved == Step(
        structs.replace(
            MINE, epoch=6, sink_identity="another", progress=Progress(generation=3, commits=7, position="g")
        ),
        Granted(),
    )


def test_another_source_and_another_sink_are_one_edit() -> None:
    moved = step(LEFT, replace(CLAIM, version=2, source_identity="another", sink_identity="another"))
    assert moved.stream.progress == Progress(generation=3, commits=7, position=None)


MOVED = replace(CLAIM, version=2, source_identity="another", sink_identity="another")
KNOWN = structs.replace(LEFT, source_mark="s", sink_mark="t")


def test_data_that_have_moved_are_known_by_their_marks_and_nothing_begins_anew() -> None:
    found = step(KNOWN, replace(MOVED, source_marks=Marks("s"), sink_marks=Marks("t")))
    assert found.reply == Granted()
    assert found.stream == structs.replace(
        KNOWN, owner=ME, run=RUN, epoch=6, version=2, source_identity="another", sink_identity="another", settled=False
    )


@pytest.mark.parametrize(
    ("source", "sink", "progress", "reply"),
    [
        ("s", "x", Progress(3, 7, "g"), Granted()),
        ("x", "t", Progress(3, 7, None), Granted(resets_position=True)),
        ("x", "x", Progress(3, 7, None), Granted(resets_position=True)),
    ],
)
def test_data_with_other_marks_are_other_data(source: str, sink: str, progress: Progress, reply: Reply) -> None:
    found = step(KNOWN, replace(MOVED, source_marks=Marks(source), sink_marks=Marks(sink)))
    assert (found.stream.progress, found.reply) == (progress, reply)
    assert (found.stream.source_mark, found.stream.sink_mark) == (source, sink)


@pytest.mark.parametrize("side", ["source", "sink"])
def test_as_long_as_a_mark_was_not_asked_for_nothing_changes(side: str) -> None:
    unasked = replace(CLAIM, **{f"{side}_identity": "another", f"{side}_marks": Marks(None)})
    assert step(KNOWN, unasked) == Step(KNOWN, IdentityUnclear())
    assert answers(THEIRS, unasked) == Busy(OTHER)


def test_a_row_of_an_older_release_knows_a_list_of_hosts_by_each_of_them() -> None:
    found = step(LEFT, replace(CLAIM, sink_identity="a,b", sink_marks=Marks(None, ("a", "sink"))))
    assert (found.reply, found.stream.sink_identity, found.stream.progress) == (Granted(), "a,b", LEFT.progress)


def test_marks_are_noted_by_who_has_the_stream_and_stay_until_there_are_others() -> None:
    marked = after(MINE, Mark(ME, 5, "s", None), Mark(ME, 5, None, "t"))
    assert marked == structs.replace(MINE, source_mark="s", sink_mark="t")
    assert step(marked, Mark(ME, 5, "s", "t")).stream is marked
    assert answers(MINE, Mark(ME, 4, "s", "t")) == Fenced()
    assert answers(THEIRS, Mark(ME, 5, "s", "t")) == Fenced("owned_by_other")
    moved = after(marked, CHECKPOINT, RELEASE, Grant(OTHER), replace(ACQUIRE, owner=OTHER), Revoke(OTHER), Edit("x"))
    assert (moved.source_mark, moved.sink_mark) == ("s", "t")


def test_a_datasource_deleted_and_made_again_is_a_new_row() -> None:
    """Of the same name, and with another id: what the first left in a sink is kept under the first one's id."""
    again = after(Stream(UUID(int=10)), CLAIM)
    assert again.id != MINE.id
    assert (again.epoch, again.progress) == (1, Progress(0, 0, None))


# Checkpoint.


def test_a_checkpoint_moves_the_position_forward() -> None:
    assert step(MINE, CHECKPOINT) == Step(structs.replace(MINE, progress=Progress(2, 8, "h")), Done())


@pytest.mark.parametrize("n", [6, 7])
def test_a_checkpoint_that_was_overtaken_is_done_already(n: int) -> None:
    assert answers(MINE, Checkpoint(ME, 5, n, "late")) == Done()


def test_a_retried_checkpoint_overtaken_by_a_newer_one_takes_nothing_back() -> None:
    """Its answer was lost; while it was sent again, the next one was saved."""
    moved = after(MINE, CHECKPOINT, Checkpoint(ME, 5, 9, "i"))
    assert answers(moved, CHECKPOINT) == Done()
    assert moved.progress == Progress(2, 9, "i")


def test_a_checkpoint_is_taken_before_the_run_has_begun() -> None:
    """A grant is enough: the row does not ask which run it is that commits under its epoch."""
    assert step(structs.replace(MINE, run=None), CHECKPOINT).reply == Done()


# Release.


def test_a_release_saves_the_last_position_and_frees_the_stream() -> None:
    assert step(MINE, RELEASE) == Step(structs.replace(LEFT, progress=Progress(2, 8, "h")), Done())


@pytest.mark.parametrize("n", [6, 7])
def test_a_release_with_nothing_new_keeps_the_position(n: int) -> None:
    assert step(MINE, Release(ME, 5, n, "late")) == Step(LEFT, Done())


def test_a_grant_may_be_released_without_a_run() -> None:
    granted = after(LEFT, Grant(ME))
    assert step(granted, Release(ME, 6, 0, None, "unable", "version 1", "no driver")) == Step(
        structs.replace(LEFT, epoch=6), Done()
    )


def test_a_finished_stream_rests_for_its_wish() -> None:
    released = step(MINE, replace(RELEASE, outcome="finished", wanted_key="version 1"))
    assert released == Step(structs.replace(RESTING, progress=Progress(2, 8, "h")), Done())


@pytest.mark.parametrize("outcome", ["stopped", "unable"])
def test_a_stream_that_is_not_finished_does_not_rest(outcome: str) -> None:
    left = step(MINE, replace(RELEASE, outcome=outcome, wanted_key="version 1"))  # type: ignore[arg-type]
    assert left.stream.rests is None


def test_a_run_ends_the_rest() -> None:
    assert after(RESTING, Grant(ME), ACQUIRE).rests is None
    assert after(RESTING, CLAIM).rests is None


def test_an_edit_ends_the_rest() -> None:
    assert after(RESTING, Edit("a")).rests is None


def test_a_stream_that_finished_before_and_is_stopped_now_does_not_rest() -> None:
    finished = after(MINE, replace(RELEASE, outcome="finished", wanted_key="version 1"))
    stopped = after(finished, Grant(ME), Release(ME, 6, 8, "h"))
    assert stopped.rests is None


# Whoever does not hold the stream changes nothing, and is told why.

NACKED: dict[str, tuple[Stream, int, Why]] = {
    "released": (LEFT, 5, "already_inactive"),
    "revoked": (structs.replace(LEFT, epoch=6), 5, "stale"),
    "released and edited": (structs.replace(LEFT, epoch=6, progress=Progress(3, 7, "a")), 5, "stale"),
    "an epoch from nowhere, nobody's": (LEFT, 6, "stale"),
    "granted to me again": (structs.replace(MINE, epoch=6), 5, "stale"),
    "an epoch from nowhere, mine": (MINE, 6, "stale"),
    "another's under the same epoch": (THEIRS, 5, "owned_by_other"),
    "another's under a higher epoch": (structs.replace(THEIRS, epoch=6), 5, "owned_by_other"),
    "another's under a lower epoch": (structs.replace(THEIRS, epoch=4), 5, "owned_by_other"),
}
nacked = pytest.mark.parametrize(("stream", "epoch", "why"), NACKED.values(), ids=NACKED.keys())


@nacked
def test_a_late_checkpoint_changes_nothing_and_is_told_why(stream: Stream, epoch: int, why: Why) -> None:
    assert answers(stream, Checkpoint(ME, epoch, 99, "zombie")) == Fenced(why)


@nacked
def test_a_late_release_changes_nothing_and_is_told_why(stream: Stream, epoch: int, why: Why) -> None:
    assert answers(stream, Release(ME, epoch, 99, "zombie", "finished", "version 1")) == Fenced(why)


def test_every_reason_to_be_fenced_is_met_here() -> None:
    assert {why for _, _, why in NACKED.values()} == set(get_args(Why))


def test_a_release_whose_answer_was_lost_is_sent_again_and_told_that_it_is_done() -> None:
    assert answers(after(MINE, RELEASE), RELEASE) == Fenced("already_inactive")


def test_a_release_that_arrives_twice_is_carried_out_once() -> None:
    """The second finds the stream free, and does not add what it carries."""
    assert answers(after(MINE, RELEASE), replace(RELEASE, commits=9, position="i")) == Fenced("already_inactive")


def test_a_release_that_comes_after_a_regrant_does_not_end_the_next_run() -> None:
    assert answers(after(MINE, replace(ACQUIRE, run=NEXT_RUN)), RELEASE) == Fenced("stale")


def test_a_release_that_comes_after_a_revoke_saves_nothing() -> None:
    assert answers(after(MINE, Revoke(ME)), RELEASE) == Fenced("stale")


def test_a_release_that_comes_after_another_has_it_does_not_take_it_away() -> None:
    theirs = after(MINE, Revoke(ME), replace(CLAIM, owner=OTHER))
    assert answers(theirs, RELEASE) == Fenced("owned_by_other")


def test_a_release_that_comes_after_another_has_had_it_is_stale() -> None:
    left = after(MINE, Revoke(ME), replace(CLAIM, owner=OTHER), Release(OTHER, 7, 8, "h"))
    assert answers(left, RELEASE) == Fenced("stale")


def test_a_stream_moved_away_does_not_hear_the_late_checkpoint_of_its_first_node() -> None:
    moved = after(MINE, RELEASE, Grant(OTHER), replace(ACQUIRE, owner=OTHER))
    assert answers(moved, Checkpoint(ME, 5, 99, "late")) == Fenced("owned_by_other")


def test_a_late_checkpoint_of_the_grant_before_changes_nothing() -> None:
    """Moved from one node to another and back: the epoch tells the two grants of the same node apart."""
    back = after(MINE, RELEASE, replace(CLAIM, owner=OTHER), Release(OTHER, 6, 9, "i"), CLAIM)
    assert back.epoch == 7
    assert answers(back, Checkpoint(ME, 5, 99, "late")) == Fenced("stale")


# Revoke.


def test_a_revoke_frees_the_stream_fences_its_run_and_keeps_the_position() -> None:
    revoked = step(MINE, Revoke(ME))
    assert revoked == Step(structs.replace(LEFT, epoch=6), Done())
    assert answers(revoked.stream, CHECKPOINT) == Fenced("stale")


@pytest.mark.parametrize("epoch", [None, 5], ids=["any grant", "this grant"])
@pytest.mark.parametrize("stream", [THEIRS, LEFT, FREE], ids=["another's", "nobody's", "new"])
def test_a_revoke_of_somebody_elses_stream_changes_nothing(stream: Stream, epoch: int | None) -> None:
    assert answers(stream, Revoke(ME, epoch)) == Done()


def test_a_revoke_that_comes_late_does_not_touch_a_later_grant() -> None:
    """The abandoned run's revoke is retried, and meanwhile its node has been granted the stream again."""
    again = structs.replace(MINE, epoch=6)
    assert answers(again, Revoke(ME, 5)) == Done()
    assert after(again, Revoke(ME, 6)) == structs.replace(LEFT, epoch=7)


def test_a_revoke_that_arrives_twice_is_carried_out_once() -> None:
    assert answers(after(MINE, Revoke(ME)), Revoke(ME)) == Done()


def test_the_revoke_of_a_node_reaches_whatever_it_was_granted() -> None:
    assert after(structs.replace(MINE, run=None, epoch=6), Revoke(ME)) == structs.replace(LEFT, epoch=7)


# Take over.


FENCED = structs.replace(MINE, transactional=True)


def test_what_a_sink_fences_is_taken_over_like_a_revoked_stream() -> None:
    assert step(FENCED, TakeOver(ME)) == step(FENCED, Revoke(ME))


def test_what_no_sink_fences_stays_with_its_owner() -> None:
    assert answers(MINE, TakeOver(ME)) == Busy(ME)


def test_a_stream_of_which_no_run_has_begun_is_taken_over_whatever_its_sink() -> None:
    assert after(structs.replace(MINE, run=None), TakeOver(ME)) == structs.replace(LEFT, epoch=6)


@pytest.mark.parametrize("stream", [THEIRS, LEFT, FREE, structs.replace(FENCED, owner=OTHER)])
def test_a_takeover_from_somebody_else_changes_nothing(stream: Stream) -> None:
    assert answers(stream, TakeOver(ME)) == Done()


def test_the_last_run_says_whether_its_sink_fences() -> None:
    """It stays with the row through grants and revocations, until another run says something else."""
    fenced = after(FREE, replace(CLAIM, transactional=True))
    assert fenced.transactional
    assert after(fenced, Revoke(ME), Grant(OTHER)).transactional
    assert not after(fenced, replace(ACQUIRE, run=NEXT_RUN, version=2)).transactional


# Edit.


def test_an_edit_sets_the_position_of_a_free_stream_and_fences_whoever_is_still_at_work() -> None:
    edited = step(LEFT, Edit("a"))
    assert edited == Step(
        structs.replace(LEFT, epoch=6, progress=Progress(generation=3, commits=7, position="a")), Done()
    )
    assert answers(edited.stream, CHECKPOINT) == Fenced("stale")


@pytest.mark.parametrize("stream", [MINE, THEIRS], ids=["mine", "theirs"])
def test_an_edit_is_refused_while_somebody_has_the_stream(stream: Stream) -> None:
    assert answers(stream, Edit("a")) == Busy(stream.owner)


def test_an_edit_is_undone_by_another() -> None:
    assert after(LEFT, Edit("a"), Edit("g")) == structs.replace(
        LEFT, epoch=7, progress=Progress(generation=4, commits=7, position="g")
    )


def test_an_edit_outranks_a_sink_that_is_ahead() -> None:
    """The sink committed n = 9, its checkpoint never came, and then an operator had the last word."""
    sink = Progress(generation=2, commits=9, position="i")
    assert agree(LEFT.progress, sink) == sink
    assert agree(after(LEFT, Edit("a")).progress, sink) == Progress(generation=3, commits=9, position="a")


def test_a_sink_that_has_taken_an_edit_over_is_right_again() -> None:
    """It keeps the generation that its run began with, so the next run goes on from what it wrote since."""
    begins = agree(after(LEFT, Edit("a")).progress, Progress(generation=2, commits=9, position="i"))
    sink = replace(begins, commits=begins.commits + 1, position="b")
    assert agree(after(LEFT, Edit("a")).progress, sink) == Progress(generation=3, commits=10, position="b")


def test_a_sink_that_is_written_to_again_does_not_bring_its_old_position_back() -> None:
    """A, then B, then A again: what A kept from the first time has a lower generation than the registry by now."""
    first = after(FREE, CLAIM, Checkpoint(ME, 1, 5, "e"))
    kept_in_a = first.progress
    second = after(first, replace(ACQUIRE, sink_identity="b"), Checkpoint(ME, 2, 8, "h"))
    third = after(second, ACQUIRE)
    assert third.progress == Progress(generation=2, commits=8, position="h")
    assert agree(third.progress, kept_in_a) == third.progress


# Settled, and dealt.


def test_a_stream_settles_with_a_run_that_knows_what_became_of_its_last_write() -> None:
    assert FREE.settled
    assert not after(FREE, Grant(ME), ACQUIRE).settled
    assert not after(MINE, CHECKPOINT).settled
    assert after(MINE, replace(RELEASE, is_settled=True)).settled
    assert not after(MINE, RELEASE).settled
    assert not after(MINE, Revoke(ME)).settled


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("end", [Release(ME, 6, 0, None), Release(ME, 6, 0, None, is_settled=True), Revoke(ME)])
def test_a_grant_that_no_run_came_of_changes_nothing_about_it(end: Command, settled: bool) -> None:
    assert after(structs.replace(LEFT, settled=settled), Grant(ME), end).settled == settled
    assert after(structs.replace(LEFT, settled=settled), Grant(ME), end).progress == LEFT.progress


def test_an_edit_does_not_settle_a_stream() -> None:
    """Whoever had it may still be about to write: a run has to open the sink first."""
    assert not after(LEFT, Edit("a")).settled
    assert after(structs.replace(LEFT, settled=True), Edit("a")).settled


def test_a_release_that_settles_has_the_position_that_the_sink_has() -> None:
    """A sink that was restored from a backup is right, and its run may have had nothing to commit."""
    assert after(MINE, Release(ME, 5, 7, "c", is_settled=True)).progress == Progress(2, 7, "c")


def test_a_dealt_stream_outranks_its_sink_and_fences_whoever_had_it() -> None:
    free = structs.replace(RESTING, settled=True)
    dealt = after(free, Deal({"a": 1}, 3, "another"))
    assert dealt == Stream(
        free.id, None, None, 6, Progress(3, 7, {"a": 1}), 3, source_identity="another", sink_identity="sink"
    )
    assert agree(dealt.progress, Progress(2, 9, "i")).position == {"a": 1}
    assert answers(dealt, CHECKPOINT) == Fenced("stale")


def test_a_stream_that_somebody_has_is_not_dealt() -> None:
    assert answers(THEIRS, Deal(None)) == Busy(OTHER)


# Where a run begins.


@pytest.mark.parametrize(
    ("registry", "sink", "begins"),
    [
        (Progress(1, 4, "r"), None, Progress(1, 4, "r")),
        (Progress(2, 4, "r"), Progress(1, 9, "s"), Progress(2, 9, "r")),
        (Progress(2, 9, "r"), Progress(1, 4, "s"), Progress(2, 9, "r")),
        (Progress(1, 4, "r"), Progress(1, 9, "s"), Progress(1, 9, "s")),
        (Progress(1, 9, "r"), Progress(1, 4, "s"), Progress(1, 9, "s")),
        (Progress(3, 9, None), Progress(2, 9, "s"), Progress(3, 9, None)),
    ],
    ids=[
        "no transactional sink",
        "edited, sink ahead",
        "edited, sink behind",
        "sink ahead",
        "sink behind",
        "edited to nothing yet",
    ],
)
def test_the_higher_edits_wins_then_the_sink_and_n_never_falls(
    registry: Progress, sink: Progress | None, begins: Progress
) -> None:
    assert agree(registry, sink) == begins


# Whatever comes.


def keeps_the_rules(before: Stream, command: Command) -> Step:
    """One step, with everything asserted that is true of every step."""
    done = step(before, command)
    after = done.stream
    assert after.id == before.id
    assert after.progress.commits >= before.progress.commits
    assert after.progress.generation in (before.progress.generation, before.progress.generation + 1)
    assert after.run is None or after.owner is not None, "a run of nobody"
    is_revoked = isinstance(command, Revoke | TakeOver) and before.owner == command.owner and after.owner is None
    is_edited = isinstance(command, Edit | Deal) and done.reply == Done()
    is_released = isinstance(command, Release) and done.reply == Done()
    raises_epoch = isinstance(done.reply, Granted) or is_revoked or is_edited
    assert after.epoch == before.epoch + raises_epoch
    if after.progress.position != before.progress.position:
        is_another = after.source_identity != before.source_identity
        is_settled = is_released and after.settled
        is_later = after.progress.commits > before.progress.commits or (
            after.progress.generation > before.progress.generation and (is_edited or is_another)
        )
        assert is_later or is_settled
    if after.settled and not before.settled:
        assert (is_released and command.is_settled) or isinstance(command, Deal)  # type: ignore[union-attr]
    if before.settled and not after.settled:
        assert isinstance(command, Acquire), "only a run can write what the registry does not know"
    if before.owner is not None:
        assert after.owner in (None, before.owner), "taken from its owner for another"
    if isinstance(command, TakeOver) and after != before:
        assert before.run is None or before.transactional, "taken before its lease, and nobody fences it"
    if after.transactional != before.transactional:
        assert isinstance(command, Acquire)
    if isinstance(done.reply, Fenced | Busy | IdentityChanged | IdentityUnclear):
        assert after == before
    if (after.source_mark, after.sink_mark) != (before.source_mark, before.sink_mark):
        assert isinstance(command, Acquire | Mark | Deal)
    if isinstance(command, Checkpoint | Release):
        assert isinstance(done.reply, Fenced) == ((before.owner, before.epoch) != (command.owner, command.epoch))
    if isinstance(command, Acquire | Edit | Deal) and after != before:
        assert after.rests is None
    if after.rests not in (None, before.rests):
        assert isinstance(command, Release)
        assert (command.outcome, command.wanted_key) == ("finished", after.rests), "rests, and has not come to its end"
    return done


EPOCHS = range(5)


def commands() -> Iterator[Command]:
    """Every command over small values; every position is told apart by who wrote it."""
    yield Edit("edited")
    yield Deal("dealt", 2, "source")
    for owner in (ME, OTHER):
        yield Grant(owner)
        yield Revoke(owner)
        yield TakeOver(owner)
        for epoch in EPOCHS:
            yield Revoke(owner, epoch)
            for n in (0, 1, 2):
                yield Checkpoint(owner, epoch, n, f"{owner.int}:{n}")
                yield Release(owner, epoch, n, f"{owner.int}:{n}")
                yield Release(owner, epoch, n, f"{owner.int}:{n}", is_settled=True)
            yield Release(owner, epoch, 0, None, "finished", "wish")
            yield Mark(owner, epoch, sink="t")
        for claims in (False, True):
            yield Acquire(owner, RUN, 1, "source", "sink", claims)
            yield Acquire(owner, RUN, 1, "source", "sink", claims, transactional=True)
            yield Acquire(owner, NEXT_RUN, 2, "another", "sink", claims)
            yield Acquire(owner, NEXT_RUN, 2, "another", "sink b", claims)
            yield Acquire(
                owner, NEXT_RUN, 2, "another", "sink b", claims, source_marks=Marks("s"), sink_marks=Marks(None)
            )


def test_every_order_of_commands_keeps_the_rules() -> None:
    """All rows that can be reached within a few epochs, and every command in each of them."""
    every = list(commands())
    seen, frontier = {FREE}, [FREE]
    while frontier:
        row = frontier.pop()
        for command in every:
            following = keeps_the_rules(row, command).stream
            if following not in seen and following.epoch < len(EPOCHS):
                seen.add(following)
                frontier.append(following)
    assert len(seen) > 1000
    assert {row.owner for row in seen} == {None, ME, OTHER}
    assert {row.progress.commits for row in seen} == {0, 1, 2}


nodes = st.sampled_from([ME, OTHER, UUID(int=8)])
numbers = st.integers(min_value=0, max_value=12)
positions = st.one_of(st.none(), st.integers(), st.text(max_size=3))


class Row(RuleBasedStateMachine):
    """Any commands in any order, from owners that know the epoch and from some that guess it."""

    def __init__(self) -> None:
        super().__init__()
        self.row = FREE
        self.grants: list[tuple[UUID, int]] = []
        self.live: tuple[UUID, int] | None = None

    def apply(self, command: Command) -> Step:
        done = keeps_the_rules(self.row, command)
        self.row = done.stream
        return done

    def granted(self, owner: UUID) -> None:
        assert self.live is None or self.live[0] == owner
        assert all(self.row.epoch > epoch for _, epoch in self.grants)
        self.live = (owner, self.row.epoch)
        self.grants.append(self.live)

    @rule(owner=nodes)
    def grant(self, owner: UUID) -> None:
        is_free = self.row.owner is None
        if self.apply(Grant(owner)).reply == Granted():
            assert is_free
            self.granted(owner)

    @rule(
        owner=nodes,
        version=st.integers(1, 3),
        source=st.sampled_from("ab"),
        sink=st.sampled_from("xy"),
        claims=st.booleans(),
        transactional=st.booleans(),
    )
    def acquire(self, owner: UUID, version: int, source: str, sink: str, claims: bool, transactional: bool) -> None:
        is_free = self.row.owner is None
        done = self.apply(Acquire(owner, RUN, version, source, sink, claims, transactional))
        if isinstance(done.reply, Granted):
            assert claims or not is_free
            self.granted(owner)

    @rule(data=st.data(), n=numbers, position=positions, release=st.booleans())
    def save(self, data: st.DataObject, n: int, position: object, release: bool) -> None:
        guess = st.tuples(nodes, numbers)
        owner, epoch = data.draw(st.one_of(st.sampled_from(self.grants), guess) if self.grants else guess)
        done = self.apply((Release if release else Checkpoint)(owner, epoch, n, position))
        assert (done.reply == Done()) == ((owner, epoch) == self.live)
        if release and done.reply == Done():
            self.live = None

    @rule(owner=nodes, data=st.data())
    def revoke(self, owner: UUID, data: st.DataObject) -> None:
        epoch = data.draw(st.one_of(st.none(), st.sampled_from([epoch for _, epoch in self.grants] or [0])))
        self.apply(Revoke(owner, epoch))
        if self.live is not None and self.live[0] == owner and (epoch is None or epoch >= self.live[1]):
            assert self.row.epoch > self.live[1]
            self.live = None

    @rule(owner=nodes)
    def take_over(self, owner: UUID) -> None:
        if self.apply(TakeOver(owner)).reply == Done() and self.live is not None and self.live[0] == owner:
            assert self.row.epoch > self.live[1]
            self.live = None

    @rule(position=positions)
    def edit(self, position: object) -> None:
        done = self.apply(Edit(position))
        assert (done.reply == Done()) == (self.live is None)
        if done.reply == Done():
            assert self.row.progress.position == position

    @invariant()
    def the_row_names_the_one_live_grant(self) -> None:
        assert self.live == (None if self.row.owner is None else (self.row.owner, self.row.epoch))


Row.TestCase.settings = settings(max_examples=200, deadline=None)
TestEveryOrderOfCommands = Row.TestCase

"""A stream's row: each command in each situation, and what holds whatever comes."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headgate.core.streams import (
    Acquire,
    Busy,
    Checkpoint,
    Command,
    Done,
    Fenced,
    Granted,
    Held,
    IdentityChanged,
    Release,
    Revoke,
    Step,
    Stream,
    agree,
    step,
)

ME, OTHER, RUN, NEXT_RUN = (UUID(int=n) for n in range(1, 5))
FREE = Stream(UUID(int=9))
CLAIM = Acquire(ME, RUN, version=1, source_identity="source", sink_identity="sink")
MINE = Stream(
    FREE.id,
    owner=ME,
    run=RUN,
    epoch=5,
    held=Held(edits=2, n=7, position="g"),
    version=1,
    source_identity="source",
    sink_identity="sink",
)
LEFT = replace(MINE, owner=None, run=None)
THEIRS = replace(MINE, owner=OTHER)


# Acquire.


def test_a_new_stream_is_granted_with_nothing_yet() -> None:
    granted = step(FREE, CLAIM)
    assert granted.reply == Granted(starts_anew=False)
    assert granted.stream == Stream(FREE.id, ME, RUN, 1, Held(0, 0, None), 1, "source", "sink")


def test_a_free_stream_is_granted_at_its_position_under_a_higher_epoch() -> None:
    assert step(LEFT, CLAIM) == Step(replace(MINE, epoch=6), Granted())


def test_an_owner_is_granted_its_stream_again_for_its_next_run() -> None:
    again = step(MINE, replace(CLAIM, run=NEXT_RUN, version=2))
    assert again == Step(replace(MINE, epoch=6, run=NEXT_RUN, version=2), Granted())


def test_a_stream_of_another_is_busy_and_unchanged() -> None:
    assert step(THEIRS, CLAIM) == Step(THEIRS, Busy(OTHER))


@pytest.mark.parametrize("stream", [LEFT, MINE], ids=["free", "mine"])
def test_a_new_version_that_reads_another_source_starts_anew(stream: Stream) -> None:
    anew = step(stream, replace(CLAIM, version=2, source_identity="another"))
    assert anew.reply == Granted(starts_anew=True)
    assert anew.stream == replace(
        MINE, epoch=6, version=2, source_identity="another", held=Held(edits=3, n=7, position=None)
    )


@pytest.mark.parametrize("stream", [LEFT, MINE], ids=["free", "mine"])
def test_a_secret_alone_may_not_make_it_another_source(stream: Stream) -> None:
    assert step(stream, replace(CLAIM, source_identity="another")) == Step(stream, IdentityChanged())


@pytest.mark.parametrize("stream", [LEFT, MINE], ids=["free", "mine"])
def test_an_older_version_may_not_go_back_to_the_source_it_read(stream: Stream) -> None:
    """Its position is gone: it would read everything again."""
    moved = step(stream, replace(CLAIM, version=2, source_identity="another")).stream
    assert step(moved, CLAIM) == Step(moved, IdentityChanged())


def test_an_older_version_may_go_on_with_the_same_source() -> None:
    swapped = step(MINE, replace(CLAIM, version=2)).stream
    assert step(swapped, CLAIM) == Step(replace(MINE, epoch=7), Granted())


def test_another_sink_keeps_the_position_and_counts_as_an_edit() -> None:
    moved = step(LEFT, replace(CLAIM, sink_identity="another"))
    assert moved == Step(
        replace(MINE, epoch=6, sink_identity="another", held=Held(edits=3, n=7, position="g")), Granted()
    )


def test_another_source_and_another_sink_are_one_edit() -> None:
    moved = step(LEFT, replace(CLAIM, version=2, source_identity="another", sink_identity="another"))
    assert moved.stream.held == Held(edits=3, n=7, position=None)


# Checkpoint, release, revoke.


def test_a_checkpoint_moves_the_position_forward() -> None:
    moved = step(MINE, Checkpoint(ME, 5, 8, "h"))
    assert moved == Step(replace(MINE, held=Held(2, 8, "h")), Done())


@pytest.mark.parametrize("n", [6, 7])
def test_a_checkpoint_that_was_overtaken_is_done_already(n: int) -> None:
    assert step(MINE, Checkpoint(ME, 5, n, "late")) == Step(MINE, Done())


def test_a_release_saves_the_last_position_and_frees_the_stream() -> None:
    assert step(MINE, Release(ME, 5, 8, "h")) == Step(replace(LEFT, held=Held(2, 8, "h")), Done())


@pytest.mark.parametrize("n", [6, 7])
def test_a_release_with_nothing_new_keeps_the_position(n: int) -> None:
    assert step(MINE, Release(ME, 5, n, "late")) == Step(LEFT, Done())


@pytest.mark.parametrize("command", [Checkpoint, Release])
@pytest.mark.parametrize(
    ("stream", "epoch"),
    [(MINE, 4), (MINE, 6), (THEIRS, 5), (LEFT, 5)],
    ids=["older epoch", "epoch from nowhere", "another's", "nobody's"],
)
def test_who_does_not_hold_the_stream_changes_nothing(
    command: type[Checkpoint] | type[Release], stream: Stream, epoch: int
) -> None:
    assert step(stream, command(ME, epoch, 99, "zombie")) == Step(stream, Fenced())


def test_a_revoke_frees_the_stream_fences_its_run_and_keeps_the_position() -> None:
    revoked = step(MINE, Revoke(ME))
    assert revoked == Step(replace(LEFT, epoch=6), Done())
    assert step(revoked.stream, Checkpoint(ME, 5, 8, "h")).reply == Fenced()


@pytest.mark.parametrize("stream", [THEIRS, LEFT, FREE], ids=["another's", "nobody's", "new"])
def test_a_revoke_of_somebody_elses_stream_changes_nothing(stream: Stream) -> None:
    assert step(stream, Revoke(ME)) == Step(stream, Done())


def test_a_revoke_that_comes_late_does_not_touch_a_later_grant() -> None:
    """The abandoned run's revoke is retried, and meanwhile its node has been granted the stream again."""
    again = replace(MINE, epoch=MINE.epoch + 1)
    assert step(again, Revoke(ME, MINE.epoch)) == Step(again, Done())
    assert step(MINE, Revoke(ME, MINE.epoch)).stream.owner is None


def test_a_late_checkpoint_of_the_one_before_changes_nothing() -> None:
    """Moved from one node to another and back: the epoch tells the two grants of the same node apart."""
    away = step(step(MINE, Release(ME, 5, 8, "h")).stream, replace(CLAIM, owner=OTHER)).stream
    back = step(step(away, Release(OTHER, 6, 9, "i")).stream, CLAIM).stream
    assert back.epoch == 7
    assert step(back, Checkpoint(ME, 5, 99, "late")) == Step(back, Fenced())


# Where a run begins.


@pytest.mark.parametrize(
    ("registry", "sink", "begins"),
    [
        (Held(1, 4, "r"), None, Held(1, 4, "r")),
        (Held(2, 4, "r"), Held(1, 9, "s"), Held(2, 9, "r")),
        (Held(2, 9, "r"), Held(1, 4, "s"), Held(2, 9, "r")),
        (Held(1, 4, "r"), Held(1, 9, "s"), Held(1, 9, "s")),
        (Held(1, 9, "r"), Held(1, 4, "s"), Held(1, 9, "s")),
        (Held(1, 9, "r"), Held(2, 4, "s"), Held(2, 9, "s")),
        (Held(3, 9, None), Held(2, 9, "s"), Held(3, 9, None)),
    ],
    ids=[
        "no transactional sink",
        "edited, sink ahead",
        "edited, sink behind",
        "sink ahead",
        "sink behind",
        "registry restored from a backup",
        "edited to nothing yet",
    ],
)
def test_the_higher_edits_wins_then_the_sink_and_n_never_falls(registry: Held, sink: Held | None, begins: Held) -> None:
    assert agree(registry, sink) == begins


# Whatever comes.

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
        before, done = self.row, step(self.row, command)
        after = self.row = done.stream
        assert after.id == before.id
        assert after.epoch >= before.epoch
        assert after.held.n >= before.held.n
        assert after.held.edits >= before.held.edits
        if after.held.position != before.held.position:
            is_another = after.source_identity != before.source_identity
            assert after.held.n > before.held.n or (is_another and after.held.edits > before.held.edits)
        if isinstance(done.reply, Fenced | Busy | IdentityChanged):
            assert after == before
        return done

    @rule(owner=nodes, version=st.integers(1, 3), source=st.sampled_from("ab"), sink=st.sampled_from("xy"))
    def acquire(self, owner: UUID, version: int, source: str, sink: str) -> None:
        done = self.apply(Acquire(owner, RUN, version, source, sink))
        if isinstance(done.reply, Granted):
            assert self.live is None or self.live[0] == owner
            assert all(self.row.epoch > epoch for _, epoch in self.grants)
            self.live = (owner, self.row.epoch)
            self.grants.append(self.live)

    @rule(data=st.data(), n=numbers, position=positions, release=st.booleans())
    def save(self, data: st.DataObject, n: int, position: object, release: bool) -> None:
        guess = st.tuples(nodes, numbers)
        owner, epoch = data.draw(st.one_of(st.sampled_from(self.grants), guess) if self.grants else guess)
        done = self.apply((Release if release else Checkpoint)(owner, epoch, n, position))
        assert (done.reply == Done()) == ((owner, epoch) == self.live)
        if release and done.reply == Done():
            self.live = None

    @rule(owner=nodes)
    def revoke(self, owner: UUID) -> None:
        self.apply(Revoke(owner))
        if self.live is not None and self.live[0] == owner:
            assert self.row.epoch > self.live[1]
            self.live = None

    @invariant()
    def the_row_names_the_one_live_grant(self) -> None:
        assert self.live == (None if self.row.owner is None else (self.row.owner, self.row.epoch))
        assert (self.row.run is None) == (self.row.owner is None)


Row.TestCase.settings = settings(max_examples=200, deadline=None)
TestEveryOrderOfCommands = Row.TestCase

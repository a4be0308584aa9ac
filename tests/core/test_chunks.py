"""Chunks: a table is covered without gap or overlap, each row once, whatever happens to those who copy it."""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import cycle, islice

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headgate.core.chunks import Range, locks
from headgate.core.chunks import offsets as planning
from headgate.core.chunks.locks import ATTEMPTS, LEASE_S, LOST, Chunk, State
from headgate.core.chunks.offsets import (
    FIRST_ROWS,
    GROWTH,
    LEAST_ROWS,
    LONG_S,
    MOST_ROWS,
    SHORT_S,
    Cut,
    Offsets,
)
from headgate.errors import Refused
from tests.core.chunk_walk import walk, walk_plans
from tests.core.chunk_world import ALPHABET, HIGHEST, KINDS, MOVES, Kind, Source, World

SEEDS = int(os.environ.get("HEADGATE_TEST_WALK_STATES", "20000")) // 100
EXAMPLES = SEEDS // 4
STEPS = 150  # At most; a world that is stopped earlier ends in the midst of things.
CHOICES = st.lists(st.integers(0, 100_000), min_size=20, max_size=100)  # One for each step of a history.
NUMBERS = KINDS[0]


def plan(offsets: Offsets, source: Source, sizes: Iterable[int]) -> list[Chunk]:
    """All chunks of what is left, of these sizes in turn."""
    made: list[Chunk] = []
    for size in sizes:
        offsets, found = planning.next_chunk(offsets if offsets.fixed else replace(offsets, rows=size))
        if isinstance(found, Cut):
            hi = source.cut(found.after, offsets.top or (), found.rows)
            offsets, found = planning.planned(offsets, hi)
        if found is None:
            assert offsets.ended
            return made
        made.append(Chunk(len(made) + 1, found))
    raise AssertionError("it does not end")


def table(rows: int, kind: Kind = NUMBERS) -> Source:
    return Source(kind, range(rows))


def held(epoch: int = 1, attempts: int = 0, now_s: float = 0.0) -> Chunk:
    """A chunk that somebody has had before, if its epoch says so, and that `b` has now."""
    chunk = Chunk(1, Range(None, ("9",)), epoch=epoch - 1, attempts=attempts)
    return locks.lease(chunk, "b", now_s)


# The example: 1000 rows, chunks of 100, 5 workers.


def test_a_thousand_rows_in_chunks_of_a_hundred_by_five_workers() -> None:
    source = table(1000)
    offsets = planning.from_start(source.top(), 100)
    rows = plan(offsets, source, [0] * 11)
    offsets = replace(offsets, at=rows[-1].range.hi, ended=True)
    assert [len(source.read(row.range.lo, row.range.hi)) for row in rows] == [100] * 10
    assert planning.is_covered(source.top(), rows)

    for first, last in ((0, 5), (5, 10)):
        rows[first:last] = [locks.lease(row, f"worker {n}", 0.0) for n, row in enumerate(rows[first:last])]
        assert Counter(row.state for row in rows)[State.LEASED] == 5
        assert not planning.is_complete(offsets, rows)
        assert not planning.is_stuck(offsets, rows)
        for place in range(first, last):
            done = locks.finish(rows[place], rows[place].epoch, 100)
            assert done is not None
            rows[place] = done
    assert planning.is_complete(offsets, rows)
    assert not planning.is_stuck(offsets, rows)
    assert sum(row.rows for row in rows) == 1000


def test_an_offset_of_0_is_the_whole_table_and_a_list_is_those_that_failed() -> None:
    source = table(1000)
    whole = [row.range for row in plan(planning.from_start(source.top(), 100), source, [0] * 11)]
    failed = [whole[1], whole[2], whole[7]]
    offsets = planning.from_list(failed)
    handed: list[Range | Cut | None] = []
    for _ in range(4):
        assert planning.is_complete(offsets, []) == (len(handed) >= 3)
        assert not planning.is_stuck(offsets, [])
        offsets, found = planning.next_chunk(offsets)
        handed.append(found)
    assert handed == [*failed, None]
    assert planning.recut(offsets, [Chunk(1, failed[0])]) == (offsets, [])


def test_no_failed_chunks_are_nothing_to_do() -> None:
    assert planning.next_chunk(planning.from_list([])) == (planning.from_list([]), None)
    assert planning.is_complete(planning.from_list([]), [])


# The plan.


def test_an_empty_table_is_complete_without_a_chunk() -> None:
    offsets = planning.from_start(None)
    assert planning.next_chunk(offsets) == (offsets, None)
    assert planning.is_complete(offsets, [])
    assert planning.is_covered(None, [])


@pytest.mark.parametrize(
    ("size", "left", "workers", "cut"),
    [
        (1_000_000, 10_000_000, 2, 1_000_000),
        (1_000_000, 2_000_000, 2, 500_000),
        (1_000_000, 2_000_000, 1, 1_000_000),  # Nobody else has to wait for the last one.
        (1_000_000, 2_000_000, 4, 250_000),
        (1_000_000, 1000, 2, planning.FIRST_ROWS),
        (1000, 2000, 2, 1000),
        (1_000_000, 0, 2, 1_000_000),  # The table is larger than was thought.
        (1_000_000, -5, 2, 1_000_000),
        (1_000_000, None, 2, 1_000_000),
    ],
)
def test_chunks_become_smaller_towards_the_end(size: int, left: int | None, workers: int, cut: int) -> None:
    offsets = replace(planning.from_start(("9",)), rows=size)
    assert planning.next_chunk(offsets, left, workers) == (offsets, Cut(None, cut))
    chosen = planning.from_start(("9",), size)
    assert planning.next_chunk(chosen, left, workers) == (chosen, Cut(None, size))


def test_all_workers_have_something_to_do_until_the_end() -> None:
    """However many there are, the last chunk of each is a small part of what all of them copied."""
    for workers in (2, 3, 8):
        left, sizes = 100_000_000, []
        while left > 0:
            _, found = planning.next_chunk(replace(planning.from_start(("9",)), rows=5_000_000), left, workers)
            assert isinstance(found, Cut)
            sizes.append(min(found.rows, left))
            left -= found.rows
        assert sizes == sorted(sizes, reverse=True)
        assert max(sizes[-workers:]) <= planning.FIRST_ROWS * 2
        assert len(sizes) < 20 + 20 * workers


def test_a_source_that_makes_no_progress_is_refused() -> None:
    offsets, _ = planning.planned(planning.from_start(("9",)), ("5",))
    with pytest.raises(Refused, match="cannot end at"):
        planning.planned(offsets, ("5",))


def test_nothing_is_planned_after_the_top() -> None:
    offsets, _ = planning.planned(planning.from_start(("9",)), ("9",))
    with pytest.raises(Refused, match="cannot end at"):
        planning.planned(offsets, ("99",))


def test_a_table_that_lost_its_last_rows_is_planned_up_to_the_top_all_the_same() -> None:
    source = table(10)
    top = source.top()
    offsets, _ = planning.planned(planning.from_start(top), source.cut(None, top or (), 4))
    source.keys = {key for key in source.keys if int(key[0]) < -17}
    assert planning.planned(offsets, source.cut(offsets.at, top or (), 4))[0].ended


NOT_COVERED: dict[str, list[tuple[str | None, str]]] = {
    "begins late": [("1", "5"), ("5", "9")],
    "gap": [(None, "5"), ("6", "9")],
    "overlap": [(None, "5"), ("4", "9")],
    "ends early": [(None, "5"), ("5", "8")],
    "another order": [("5", "9"), (None, "5")],
    "nothing": [],
}


@pytest.mark.parametrize("ranges", NOT_COVERED.values(), ids=list(NOT_COVERED))
def test_what_is_not_covered_is_seen(ranges: list[tuple[str | None, str]]) -> None:
    rows = [Chunk(n, Range((lo,) if lo else None, (hi,))) for n, (lo, hi) in enumerate(ranges)]
    assert not planning.is_covered(("9",), rows)


def test_texts_have_an_order_that_is_not_that_of_code_points() -> None:
    made = [KINDS[1].make(n) for n in range(HIGHEST)]
    assert made == sorted(made, key=KINDS[1].rank)
    assert made != sorted(made)
    assert sorted(ALPHABET) != list(ALPHABET)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_dump_from_a_point_has_what_comes_after_it_and_nothing_else(kind: Kind) -> None:
    """A dump is stopped after any of its chunks, and another, with chunks of other sizes, goes on from there."""
    source = table(40, kind)
    start = planning.from_start(source.top())
    before = plan(start, source, cycle([3, 1, 6]))
    for place, last in enumerate(before):
        after = plan(planning.from_point(start, last.range.hi), source, cycle([2, 5]))
        assert planning.is_covered(source.top(), after, last.range.hi)
        copied = [key for row in (*before[: place + 1], *after) for key in source.read(row.range.lo, row.range.hi)]
        assert copied == sorted(source.keys, key=kind.rank)


def test_what_is_taken_back_after_a_point_begins_at_the_point_again() -> None:
    source = table(10)
    start = planning.from_point(planning.from_start(source.top()), NUMBERS.make(3))
    rows = plan(start, source, cycle([2]))
    offsets, tail = planning.recut(replace(start, at=source.top(), ended=True), rows)
    assert (offsets, tail) == (start, rows[::-1])


def test_a_plan_that_is_older_than_the_ledger_is_not_gone_on_with() -> None:
    """The registry is restored from a backup: it has the first chunk, and the target has the second."""
    source = table(10)
    rows = plan(planning.from_start(source.top()), source, [3, 3, 9, 9])
    ledger = {rows[0].range: 3, rows[1].range: 3}
    assert planning.unplanned(rows, ledger) == []
    assert planning.unplanned(rows[:1], ledger) == [rows[1].range]
    again = plan(planning.from_point(planning.from_start(source.top()), rows[0].range.hi), source, [2, 9, 9])
    assert planning.unplanned([rows[0], *again], ledger) == [rows[1].range]
    copied = Counter(
        key for found in {*ledger, *(row.range for row in again)} for key in source.read(found.lo, found.hi)
    )
    assert max(copied.values()) == 2, "rows that would be there twice, had it gone on"


def test_only_chunks_that_are_far_too_large_are_cut_anew() -> None:
    slow = planning.observed(planning.from_start(("z",)), rows=planning.FIRST_ROWS, seconds=60.0)
    fast = planning.observed(planning.from_start(("z",)), rows=planning.FIRST_ROWS, seconds=0.1)
    assert slow.rows < planning.FIRST_ROWS < fast.rows
    assert planning.is_recut(slow, planning.FIRST_ROWS)
    assert not planning.is_recut(slow, slow.rows)
    assert not planning.is_recut(fast, planning.FIRST_ROWS)  # Those that wait are few, and soon done.


def test_a_plan_goes_on_after_its_last_chunk_whatever_its_row_says() -> None:
    """The row may be older than the chunks, and chunks at the end may have been taken back."""
    source = table(10)
    rows = plan(planning.from_start(source.top()), source, cycle([3]))
    kept = Offsets(source.top(), source.top(), ended=True)
    assert planning.from_plan(kept, rows) == kept
    assert planning.from_plan(kept, rows[:2]) == replace(kept, at=rows[1].range.hi, ended=False)
    older = Offsets(source.top(), rows[0].range.hi)
    assert planning.from_plan(older, rows[:2]).at == rows[1].range.hi
    assert planning.from_plan(older, rows).ended
    endless = Offsets(("999",), rows[1].range.hi, ended=True)
    assert planning.from_plan(endless, rows[:2]).ended, "a source without a size has said that it ended"


def test_a_few_more_chunks_wait_than_there_are_workers() -> None:
    open_, ended = planning.from_start(("9",)), planning.from_start(None)
    assert [planning.is_wanted(open_, waiting, 2) for waiting in (0, 3, 4)] == [True, True, False]
    assert not planning.is_wanted(ended, 0, 2)
    assert planning.is_wanted(planning.from_list([Range(None, ("1",))]), 0, 2)
    assert not planning.is_wanted(planning.from_list([Range(None, ("1",))]), 4, 2)


# A chunk's life.


def test_a_chunk_that_failed_waits_longer_each_time() -> None:
    chunk, waits = Chunk(1, Range(None, ("9",))), []
    for _ in range(ATTEMPTS - 1):
        found = locks.fail(locks.lease(chunk, "a", 100.0), chunk.epoch + 1, "no", 100.0)
        assert found is not None
        waits.append(found.until_s - 100.0)
        with pytest.raises(Refused) as refused:
            locks.lease(found, "b", found.until_s - 0.01)
        assert refused.value.code == "waiting"
        assert locks.lease(found, "b", found.until_s).state is State.LEASED
        chunk = replace(found, until_s=0.0)
    assert waits == sorted(waits)
    assert min(waits) >= 0.5
    assert max(waits) > 1.2 * min(waits)


def test_chunks_that_failed_together_are_not_tried_again_together() -> None:
    waits = {round(locks.wait_s(Chunk(number, Range(None, ("9",)))), 2) for number in range(1, 11)}
    assert len(waits) == 10


def test_what_a_dead_process_had_is_free_and_what_others_have_is_not() -> None:
    own, other = replace(held(), worker="host:1:2/a.0"), replace(held(), worker="host:1:23/a.0")
    assert locks.free(own, "host:1:2") == replace(own, state=State.PLANNED, worker=None, until_s=0.0)
    assert locks.free(other, "host:1:2") == other
    done = replace(own, state=State.DONE)
    assert locks.free(done, "host:1:2") == done


def test_a_ledger_that_does_not_decide_takes_nothing_back() -> None:
    done = replace(held(), state=State.DONE, worker=None, until_s=0.0, rows=7)
    assert locks.reconcile(done, 7, decides=True) == done
    assert locks.reconcile(done, None, decides=False) == done
    lost = locks.reconcile(done, None, decides=True)
    assert (lost.state, lost.rows) == (State.PLANNED, 0)
    assert locks.reconcile(held(), None, decides=True) == held()
    assert locks.reconcile(held(), 7, decides=False).state is State.DONE


def test_a_chunk_that_is_leased_done_or_left_is_not_leased() -> None:
    chunk = held()
    for other in (chunk, replace(chunk, state=State.DONE), replace(chunk, state=State.FAILED)):
        with pytest.raises(Refused) as refused:
            locks.lease(other, "a", LEASE_S - 1)
        assert refused.value.code == other.state


def test_a_lease_runs_out_at_its_deadline_and_not_before() -> None:
    chunk = held(now_s=10.0)
    assert locks.run_out(chunk, 10.0 + LEASE_S - 0.1) is None
    free = locks.run_out(chunk, 10.0 + LEASE_S)
    assert free == replace(chunk, state=State.PLANNED, worker=None, until_s=0.0, attempts=1, error=LOST)
    assert locks.lease(free, "a", 30.0) == replace(free, state=State.LEASED, worker="a", epoch=2, until_s=45.0)


def test_a_chunk_that_kills_one_worker_after_another_is_left() -> None:
    chunk: Chunk | None = Chunk(1, Range(None, ("9",)))
    for _ in range(ATTEMPTS):
        assert chunk is not None
        chunk = locks.run_out(locks.lease(chunk, "a", 0.0), LEASE_S)
    assert chunk is not None
    assert (chunk.state, chunk.error) == (State.FAILED, LOST)


def test_a_renewed_lease_lasts_from_then_on() -> None:
    renewed = locks.renew(held(), 1, 20.0)
    assert renewed is not None
    assert renewed.until_s == 20.0 + LEASE_S
    assert renewed.worker == "b"


def test_a_worker_that_is_late_may_go_on_as_long_as_nobody_else_has_the_chunk() -> None:
    assert locks.renew(held(), 1, 1000.0) is not None


@pytest.mark.parametrize("epoch", [1, 3], ids=["older", "newer"])
def test_what_is_said_under_another_epoch_changes_nothing(epoch: int) -> None:
    chunk = held(epoch=2)
    assert locks.renew(chunk, epoch, 0.0) is None
    assert locks.finish(chunk, epoch, 1) is None
    assert locks.fail(chunk, epoch, "no", 0.0) is None
    assert locks.give_back(chunk, epoch) is None


def test_a_chunk_is_left_after_some_failures_and_an_operator_has_it_tried_again() -> None:
    chunk = Chunk(1, Range(None, ("9",)))
    for attempt in range(1, ATTEMPTS + 1):
        now_s = chunk.until_s
        found = locks.fail(locks.lease(chunk, "a", now_s), chunk.epoch + 1, f"no {attempt}", now_s)
        assert found is not None
        chunk = found
        assert (chunk.attempts, chunk.error) == (attempt, f"no {attempt}")
        assert chunk.state is (State.FAILED if attempt == ATTEMPTS else State.PLANNED)
    again = locks.retry(chunk)
    assert (again.state, again.attempts, again.epoch) == (State.PLANNED, 0, ATTEMPTS)
    assert locks.retry(again) == again


def test_only_a_failure_counts_as_one() -> None:
    chunk = held(attempts=1)
    for found in (locks.give_back(chunk, 1), locks.renew(chunk, 1, 1.0)):
        assert found is not None
        assert found.attempts == 1


@pytest.mark.parametrize("state", State)
def test_what_the_ledger_has_is_done_whatever_was_thought_of_it(state: State) -> None:
    chunk = replace(held(attempts=2), state=state, error="no")
    done = locks.settle(chunk, 7)
    assert done == Chunk(1, chunk.range, State.DONE, epoch=1, rows=7)


def test_what_failed_is_stuck_only_when_nothing_else_is_left() -> None:
    ended = Offsets(("9",), ("9",), ended=True)
    chunk = held()
    done, failed = replace(chunk, state=State.DONE), replace(chunk, state=State.FAILED)
    assert planning.is_stuck(ended, [done, failed])
    assert not planning.is_complete(ended, [done, failed])
    for more in (chunk, replace(chunk, state=State.PLANNED)):
        assert not planning.is_stuck(ended, [done, failed, more])
    assert not planning.is_stuck(replace(ended, ended=False), [failed])
    assert not planning.is_stuck(replace(ended, again=(chunk.range,)), [failed])
    assert not planning.is_complete(replace(ended, ended=False), [done])
    assert not planning.is_complete(replace(ended, again=(chunk.range,)), [done])


# Sizes.


Took = list[tuple[int, float]]  # Rows and seconds of chunks, one after another.


def follow(took: Took, fixed: int | None = None) -> None:
    offsets = planning.from_start(("9",), fixed)
    assert offsets.rows == (fixed or FIRST_ROWS)
    for rows, seconds in took:
        before, offsets = offsets.rows, planning.observed(offsets, rows, seconds)
        if fixed:
            assert offsets.rows == fixed
            continue
        assert LEAST_ROWS <= offsets.rows <= MOST_ROWS
        assert before / GROWTH - 1 <= offsets.rows <= before * GROWTH + 1
        if SHORT_S <= seconds <= LONG_S or rows <= 0:
            assert offsets.rows == before


def converge(rows_per_s: float, ahead: int) -> None:
    """Each chunk is cut some chunks before it is copied, when less was known."""
    offsets = planning.from_start(("9",))
    cut = [offsets.rows] * (ahead + 1)
    for _ in range(4 * (ahead + 1)):
        rows = cut.pop(0)
        offsets = planning.observed(offsets, rows, rows / rows_per_s)
        cut.append(offsets.rows)
    assert SHORT_S <= offsets.rows / rows_per_s <= LONG_S
    assert planning.observed(offsets, offsets.rows, offsets.rows / rows_per_s) == offsets


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    took=st.lists(st.tuples(st.integers(-1, 2 * MOST_ROWS), st.floats(0, 1e6)), max_size=20),
    fixed=st.none() | st.integers(1, 10 * MOST_ROWS),
)
def test_a_size_stays_within_its_limits_and_changes_by_no_more_than_a_factor(took: Took, fixed: int | None) -> None:
    follow(took, fixed)


@settings(max_examples=EXAMPLES, deadline=None)
@given(rows_per_s=st.floats(1.05 * LEAST_ROWS / LONG_S, 0.95 * MOST_ROWS / SHORT_S), ahead=st.integers(0, 6))
def test_at_a_constant_speed_chunks_soon_take_between_one_second_and_five(rows_per_s: float, ahead: int) -> None:
    converge(rows_per_s, ahead)


@pytest.mark.parametrize(("rows_per_s", "size"), [(1.0, LEAST_ROWS), (1e9, MOST_ROWS)], ids=["slow", "fast"])
def test_a_source_of_another_world_has_the_least_or_the_greatest_size(rows_per_s: float, size: int) -> None:
    offsets = planning.from_start(("9",))
    for _ in range(10):
        offsets = planning.observed(offsets, offsets.rows, offsets.rows / rows_per_s)
    assert offsets.rows == size


def test_a_small_last_chunk_does_not_change_the_size_because_it_was_quick() -> None:
    offsets = planning.from_start(("9",))
    assert planning.observed(offsets, FIRST_ROWS // 2 - 1, 0.01) == offsets
    assert planning.observed(offsets, FIRST_ROWS // 2, 0.5).rows == FIRST_ROWS // 2 * planning.AIM_S / 0.5


def test_a_small_last_chunk_that_waited_for_a_lock_does_not_make_the_others_tiny() -> None:
    assert planning.observed(planning.from_start(("9",)), 3, 60.0).rows == FIRST_ROWS / GROWTH


# Everything that can happen.


def test_no_interleaving_of_two_workers_and_three_chunks_leases_one_twice_or_leaves_one_behind() -> None:
    assert walk(3, under_way=1) > 200_000


def test_no_interleaving_of_two_workers_and_three_messages_about_a_chunk_does_either() -> None:
    assert walk(1, under_way=3) > 1_000


def test_no_plan_of_five_keys_has_a_gap_however_it_is_cut_and_cut_anew() -> None:
    assert walk_plans(5) == 5**5


def world_of(seed: int) -> World:
    """A world that has lived; what becomes of it is up to the caller."""
    chance = random.Random(seed)
    numbers = chance.sample(range(HIGHEST), chance.randint(0, 40))
    world = World(KINDS[seed % 3], numbers, chance.choice([None, None, 1, 3, 10]))
    world.live(chance.randrange(100_000) for _ in range(chance.randint(0, STEPS)))
    return world


def live_in(seeds: Iterable[int]) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = world_of(seed)
            world.end(seed)
            happened += world.happened
        except BaseException as error:
            error.add_note(f"replay with live_in([{seed}])")
            raise
    return happened


EVERYTHING = {
    "already written",
    "begun anew",
    "cut anew",
    "only the failed",
    "ran out",
    "restarted",
    "stale",
    "stuck",
    "tried again",
}


def test_each_row_below_the_top_is_copied_once_in_worlds_where_all_goes_wrong() -> None:
    assert set(live_in(range(SEEDS))) >= EVERYTHING, "a world in which too little goes wrong proves nothing"


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink]
)
@given(
    kind=st.sampled_from(KINDS),
    numbers=st.sets(st.integers(0, HIGHEST - 1), max_size=30),
    size=st.none() | st.integers(1, 12),
    choices=CHOICES,
    last=st.integers(0, 100),
)
def test_each_row_below_the_top_is_copied_once(
    kind: Kind, numbers: set[int], size: int | None, choices: list[int], last: int
) -> None:
    world = World(kind, numbers, size)
    world.live(choices)
    world.end(last)


def quiet(seed: int) -> Iterator[int]:
    """Choices in which the table stays as it is and nobody restarts the dump."""
    chance = random.Random(seed)
    loud = {World.insert, World.delete, World.restart}
    return (
        choice for choice in iter(lambda: chance.randrange(100_000), None) if MOVES[choice % len(MOVES)] not in loud
    )


def resume_everywhere(kind: Kind, seed: int) -> int:
    """From every state that the registry ever had, with what the target has now, the same rows come out."""
    world = World(kind, range(0, HIGHEST, 2))
    world.live(islice(quiet(seed), 100))
    moments = len(world.saved)
    for moment in range(moments):
        again = copy.deepcopy(world)
        again.restart(2 * moment + 1)
        again.end(moment)
        assert set(again.target) == world.lasting
    return moments


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_resume_from_any_moment_gives_the_same_rows(kind: Kind) -> None:
    assert resume_everywhere(kind, 1) > 20

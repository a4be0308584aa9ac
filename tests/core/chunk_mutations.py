"""Planted bugs of chunks: each breaks one decision, and something has to find it.

`exposed_by` is a run that does: a walk over all states of one chunk (`walk`) or over all plans of a few keys
(`plans`), worlds in which everything goes wrong (`worlds`), a resume from every moment (`resume`), the sizes, or the
plain tests (`rules`). A mutation that none of them finds says that a rule is missing; one that is harmless does not
belong here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headgate.core.chunks import Range, locks, outcome
from headgate.core.chunks import offsets as planning
from headgate.core.chunks.locks import Chunk, State
from headgate.core.chunks.offsets import Cut, Offsets
from simulation.mutations import Mutation, instead

Function = Callable[..., Any]


def _given(name: str, exposed_by: str, function: str, change: Callable[[Chunk], Chunk]) -> Mutation:
    """A function of a chunk sees another chunk."""

    def mutate(original: Function) -> Function:
        return lambda chunk, *more: original(change(chunk), *more)

    return Mutation(name, exposed_by, locks, function, mutate)


def _left(name: str, exposed_by: str, function: str, change: Callable[[Chunk, Chunk], Chunk]) -> Mutation:
    """What a function leaves of a chunk is something else; from the chunk before and after."""

    def mutate(original: Function) -> Function:
        def planted(chunk: Chunk, *more: Any) -> Chunk | None:
            found = original(chunk, *more)
            return None if found is None else change(chunk, found)

        return planted

    return Mutation(name, exposed_by, locks, function, mutate)


def _as(state: State, *states: State) -> Callable[[Chunk], Chunk]:
    """Chunks of these states are seen in that one."""
    return lambda chunk: replace(chunk, state=state) if chunk.state in states else chunk


def _counted(before: Chunk, after: Chunk) -> Chunk:
    return replace(after, attempts=before.attempts + 1)


def _still_leased(before: Chunk, after: Chunk) -> Chunk:
    return replace(after, state=before.state, worker=before.worker, until_s=before.until_s)


LEASES = (
    _given("a_lease_that_runs_is_given_to_another", "walk", "lease", _as(State.PLANNED, State.LEASED)),
    _given("a_chunk_that_is_done_is_leased", "walk", "lease", _as(State.PLANNED, State.DONE)),
    _given("a_chunk_that_was_left_is_leased", "walk", "lease", _as(State.PLANNED, State.FAILED)),
    _left("a_lease_keeps_the_epoch", "walk", "lease", lambda before, after: replace(after, epoch=before.epoch)),
    _left("a_lease_has_one_epoch_for_all", "walk", "lease", lambda before, after: replace(after, epoch=1)),
    _left("a_lease_forgets_failures", "worlds", "lease", lambda before, after: replace(after, attempts=0)),
    _left("a_lease_ends_at_once", "worlds", "lease", lambda before, after: replace(after, until_s=0.0)),
    instead("any_epoch_counts", "walk", locks, "_holds", lambda chunk, epoch: chunk.state is State.LEASED),
    instead(
        "an_older_epoch_counts",
        "walk",
        locks,
        "_holds",
        lambda chunk, epoch: chunk.state is State.LEASED and epoch <= chunk.epoch,
    ),
    instead("an_epoch_counts_after_its_end", "walk", locks, "_holds", lambda chunk, epoch: chunk.epoch == epoch),
    _given("a_newer_epoch_counts", "rules", "renew", lambda c: replace(c, epoch=c.epoch + 1)),
    _left("a_renewed_lease_is_no_longer", "worlds", "renew", lambda before, after: before),
    _left("a_renewed_lease_is_another", "walk", "renew", lambda before, after: replace(after, epoch=after.epoch + 1)),
    _left("a_chunk_that_is_done_stays_leased", "walk", "finish", _still_leased),
    _left("what_is_done_has_failed", "walk", "finish", lambda before, after: replace(after, attempts=before.attempts)),
    _left("what_is_done_has_no_rows", "worlds", "finish", lambda before, after: replace(after, rows=0)),
    _left("a_failure_keeps_the_lease", "walk", "fail", _still_leased),
    _left("a_failure_is_not_counted", "walk", "fail", lambda before, after: replace(after, attempts=before.attempts)),
    _left(
        "a_chunk_that_fails_is_never_left", "walk", "fail", lambda before, after: _as(State.PLANNED, after.state)(after)
    ),
    _left(
        "a_chunk_that_fails_is_left_at_once",
        "walk",
        "fail",
        lambda before, after: _as(State.FAILED, after.state)(after),
    ),
    _given("a_chunk_is_left_an_attempt_too_late", "walk", "fail", lambda c: replace(c, attempts=c.attempts - 1)),
    _left("an_error_is_not_kept", "rules", "fail", lambda before, after: replace(after, error="")),
    _left("what_failed_is_tried_again_at_once", "walk", "fail", lambda before, after: replace(after, until_s=0.0)),
    _left("what_failed_waits_for_ever", "worlds", "fail", lambda before, after: replace(after, until_s=1e12)),
    _given("what_waits_is_leased", "walk", "lease", lambda c: replace(c, until_s=0.0)),
    instead("waits_do_not_grow", "rules", locks, "wait_s", lambda chunk: 1.0),
    instead("a_dead_process_keeps_its_chunks", "rules", locks, "free", lambda chunk, dead: chunk),
    instead(
        "what_others_have_is_freed",
        "rules",
        locks,
        "free",
        lambda chunk, dead: replace(chunk, state=State.PLANNED, worker=None, until_s=0.0),
    ),
    Mutation(
        "every_ledger_decides",
        "rules",
        locks,
        "reconcile",
        lambda original: lambda chunk, rows, *, decides: original(chunk, rows, decides=True),
    ),
    Mutation(
        "no_ledger_decides",
        "rules",
        locks,
        "reconcile",
        lambda original: lambda chunk, rows, *, decides: original(chunk, rows, decides=False),
    ),
    _left("what_is_given_back_has_failed", "walk", "give_back", _counted),
    _left("what_is_given_back_stays_leased", "walk", "give_back", _still_leased),
    _left("what_is_given_back_was_never_leased", "worlds", "give_back", lambda before, after: replace(after, epoch=0)),
    _left("what_ran_out_has_not_failed", "walk", "run_out", lambda before, after: replace(after, attempts=0)),
    _left(
        "a_chunk_that_kills_its_workers_is_never_left",
        "walk",
        "run_out",
        lambda before, after: _as(State.PLANNED, after.state)(after),
    ),
    _left("nobody_says_that_a_worker_was_lost", "rules", "run_out", lambda before, after: replace(after, error="")),
    _left("what_ran_out_was_never_leased", "worlds", "run_out", lambda before, after: replace(after, epoch=0)),
    _given("a_lease_runs_out_at_any_time", "walk", "run_out", lambda c: replace(c, until_s=0.0)),
    _given(
        "a_lease_does_not_run_out_at_its_deadline", "walk", "run_out", lambda c: replace(c, until_s=c.until_s + 0.5)
    ),
    instead("a_lease_never_runs_out", "walk", locks, "run_out", lambda chunk, *more: None),
    instead("the_ledger_does_not_decide", "resume", locks, "settle", lambda chunk, rows: chunk),
    _left("what_the_ledger_has_stays_leased", "walk", "settle", _still_leased),
    _left("what_the_ledger_has_has_no_rows", "worlds", "settle", lambda before, after: replace(after, rows=0)),
    _left(
        "a_retry_keeps_the_failures", "walk", "retry", lambda before, after: replace(after, attempts=before.attempts)
    ),
    _left("a_retry_makes_the_chunk_new", "worlds", "retry", lambda before, after: replace(after, epoch=0)),
    _given("a_retry_takes_what_is_done", "walk", "retry", _as(State.FAILED, State.DONE)),
    _given("a_retry_takes_what_is_leased", "walk", "retry", _as(State.FAILED, State.LEASED)),
    instead("nothing_is_tried_again", "worlds", locks, "retry", lambda chunk: chunk),
)


# The plan.


def _planned(change: Callable[[Offsets, Offsets, Range], tuple[Offsets, Range]]) -> Function:
    def mutate(original: Function) -> Function:
        return lambda offsets, hi: change(offsets, *original(offsets, hi))

    return mutate


def _cut_anew(is_free: Callable[[Chunk], bool]) -> Function:
    """Other chunks than those that nobody ever had are taken back."""

    def planted(offsets: Offsets, rows: Any) -> tuple[Offsets, list[Chunk]]:
        tail: list[Chunk] = []
        for chunk in reversed(rows):
            if not is_free(chunk) or chunk.range.hi != offsets.at:
                break
            tail.append(chunk)
            offsets = replace(offsets, at=chunk.range.lo, ended=False)
        return offsets, tail

    return planted


def _any_tail(offsets: Offsets, rows: Any) -> tuple[Offsets, list[Chunk]]:
    """Whatever is free is taken back, also what is not at the end of the plan."""
    tail = [chunk for chunk in reversed(rows) if chunk.state is State.PLANNED and chunk.epoch == 0]
    return (replace(offsets, at=tail[-1].range.lo, ended=False), tail) if tail else (offsets, tail)


def _recut(change: Callable[[Offsets, Offsets], Offsets]) -> Function:
    def mutate(original: Function) -> Function:
        def planted(offsets: Offsets, rows: Any) -> tuple[Offsets, list[Chunk]]:
            following, tail = original(offsets, rows)
            return change(offsets, following), tail

        return planted

    return mutate


def _whole_list(original: Function) -> Function:
    """What was handed out stays in the list."""
    return lambda offsets: (offsets, original(offsets)[1])


def _no_list(original: Function) -> Function:
    return lambda offsets: original(replace(offsets, again=()))


def _from_the_beginning(original: Function) -> Function:
    def planted(offsets: Offsets) -> tuple[Offsets, Range | Cut | None]:
        following, found = original(offsets)
        return following, replace(found, after=None) if isinstance(found, Cut) else found

    return planted


def _free(chunk: Chunk) -> bool:
    return chunk.state is State.PLANNED and chunk.epoch == 0


PLAN = (
    Mutation(
        "a_chunk_begins_at_the_beginning",
        "plans",
        planning,
        "planned",
        _planned(lambda a, b, r: (b, Range(None, r.hi))),
    ),
    Mutation("planning_goes_nowhere", "plans", planning, "planned", _planned(lambda a, b, r: (replace(b, at=a.at), r))),
    Mutation(
        "planning_never_ends", "plans", planning, "planned", _planned(lambda a, b, r: (replace(b, ended=False), r))
    ),
    Mutation(
        "planning_ends_at_once", "plans", planning, "planned", _planned(lambda a, b, r: (replace(b, ended=True), r))
    ),
    instead(
        "a_chunk_may_be_empty",
        "rules",
        planning,
        "planned",
        lambda o, hi: (replace(o, at=hi, ended=o.ended or hi == o.top), Range(o.at, hi)),
    ),
    Mutation("a_cut_is_asked_from_the_beginning", "worlds", planning, "next_chunk", _from_the_beginning),
    Mutation("a_failed_chunk_is_handed_out_for_ever", "rules", planning, "next_chunk", _whole_list),
    Mutation("failed_chunks_are_not_handed_out", "rules", planning, "next_chunk", _no_list),
    instead(
        "a_list_forgets_its_last",
        "worlds",
        planning,
        "from_list",
        lambda ranges: Offsets(None, again=tuple(ranges)[:-1], ended=True),
    ),
    instead("a_list_is_not_the_end", "rules", planning, "from_list", lambda ranges: Offsets(None, again=tuple(ranges))),
    instead("a_point_is_passed_over", "rules", planning, "from_point", lambda offsets, at: offsets),
    instead(
        "a_point_at_the_top_is_not_the_end",
        "rules",
        planning,
        "from_point",
        lambda offsets, at: replace(offsets, at=at),
    ),
    instead("an_empty_table_is_planned", "rules", planning, "from_start", lambda top, rows=None: Offsets(top)),
    instead(
        "what_was_given_back_is_cut_anew", "plans", planning, "recut", _cut_anew(lambda c: c.state is State.PLANNED)
    ),
    instead("what_is_leased_is_cut_anew", "plans", planning, "recut", _cut_anew(lambda c: c.state is not State.DONE)),
    instead(
        "what_is_done_is_cut_anew", "plans", planning, "recut", _cut_anew(lambda c: _free(c) or c.state is State.DONE)
    ),
    instead("the_midst_of_a_plan_is_cut_anew", "plans", planning, "recut", _any_tail),
    instead("nothing_is_cut_anew", "plans", planning, "recut", lambda offsets, rows: (offsets, [])),
    Mutation("a_cut_anew_begins_too_late", "plans", planning, "recut", _recut(lambda a, b: replace(b, at=a.at))),
    Mutation(
        "a_cut_anew_leaves_the_plan_ended", "plans", planning, "recut", _recut(lambda a, b: replace(b, ended=a.ended))
    ),
    instead("a_plan_goes_on_where_its_row_says", "rules", planning, "from_plan", lambda offsets, rows: offsets),
    instead(
        "a_plan_that_goes_on_never_ends",
        "rules",
        planning,
        "from_plan",
        lambda offsets, rows: replace(offsets, at=rows[-1].range.hi, ended=False),
    ),
    instead("chunks_are_planned_without_end", "rules", planning, "is_wanted", lambda o, waiting, workers: not o.ended),
    Mutation(
        "a_list_is_not_handed_out",
        "rules",
        planning,
        "is_wanted",
        lambda original: lambda o, waiting, workers: original(replace(o, again=()), waiting, workers),
    ),
    instead("an_old_plan_is_gone_on_with", "resume", planning, "unplanned", lambda rows, ledger: []),
)


# Completion.


def _asked(change: Callable[[Offsets, list[Chunk]], tuple[Offsets, list[Chunk]]]) -> Function:
    """The question is answered for another plan, or for other chunks."""

    def mutate(original: Function) -> Function:
        return lambda offsets, rows: original(*change(offsets, list(rows)))

    return mutate


def _seen(state: State, *states: State) -> Function:
    return _asked(lambda offsets, rows: (offsets, [_as(state, *states)(row) for row in rows]))


def _without(**changes: Any) -> Function:
    return _asked(lambda offsets, rows: (replace(offsets, **changes), rows))


END = (
    Mutation("complete_before_planning_has_ended", "plans", planning, "is_complete", _without(ended=True)),
    Mutation("complete_before_the_list_has_ended", "rules", planning, "is_complete", _without(again=())),
    Mutation("complete_with_failed_chunks", "walk", planning, "is_complete", _seen(State.DONE, State.FAILED)),
    Mutation("complete_with_leased_chunks", "plans", planning, "is_complete", _seen(State.DONE, State.LEASED)),
    Mutation("complete_with_planned_chunks", "plans", planning, "is_complete", _seen(State.DONE, State.PLANNED)),
    Mutation("stuck_before_planning_has_ended", "rules", planning, "is_stuck", _without(ended=True)),
    Mutation("stuck_before_the_list_has_ended", "rules", planning, "is_stuck", _without(again=())),
    Mutation("stuck_with_planned_chunks", "rules", planning, "is_stuck", _seen(State.DONE, State.PLANNED)),
    Mutation("stuck_with_leased_chunks", "rules", planning, "is_stuck", _seen(State.DONE, State.LEASED)),
    Mutation("stuck_when_all_is_done", "walk", planning, "is_stuck", _seen(State.FAILED, State.DONE)),
    Mutation("stuck_only_when_all_has_failed", "rules", planning, "is_stuck", _seen(State.LEASED, State.DONE)),
    instead("never_stuck", "walk", planning, "is_stuck", lambda offsets, rows: False),
    instead(
        "a_gap_is_covered",
        "rules",
        planning,
        "is_covered",
        lambda top, rows, after=None: bool(rows) and rows[-1].range.hi == top,
    ),
    Mutation(
        "a_late_beginning_is_covered",
        "rules",
        planning,
        "is_covered",
        lambda original: lambda top, rows, after=None: original(top, rows, rows[0].range.lo if rows else None),
    ),
    Mutation(
        "an_early_end_is_covered",
        "rules",
        planning,
        "is_covered",
        lambda original: lambda top, rows, after=None: original(rows[-1].range.hi if rows else top, rows, after),
    ),
)


# Sizes.


def _observed(change: Callable[[Offsets, int, float], tuple[Offsets, int, float]]) -> Function:
    def mutate(original: Function) -> Function:
        def planted(offsets: Offsets, rows: int, seconds: float) -> Offsets:
            return replace(offsets, rows=original(*change(offsets, rows, seconds)).rows)

        return planted

    return mutate


def _never(is_greater: bool) -> Function:
    def mutate(original: Function) -> Function:
        def planted(offsets: Offsets, rows: int, seconds: float) -> Offsets:
            found = original(offsets, rows, seconds)
            return offsets if (found.rows > offsets.rows) == is_greater else found

        return planted

    return mutate


def _as_it_took(offsets: Offsets, rows: int, seconds: float) -> Offsets:
    """The size follows the last chunk alone."""
    if offsets.fixed or rows <= 0 or planning.SHORT_S <= seconds <= planning.LONG_S:
        return offsets
    wanted = round(rows * planning.AIM_S / max(seconds, 0.001))
    return replace(offsets, rows=min(planning.MOST_ROWS, max(planning.LEAST_ROWS, wanted)))


SIZES = (
    Mutation(
        "a_fixed_size_changes",
        "sizes",
        planning,
        "observed",
        _observed(lambda o, r, s: (replace(o, fixed=False), r, s)),
    ),
    Mutation("no_size_changes", "sizes", planning, "observed", _observed(lambda o, r, s: (o, 0, s))),
    Mutation("a_size_never_grows", "sizes", planning, "observed", _never(True)),
    Mutation("a_size_never_shrinks", "sizes", planning, "observed", _never(False)),
    Mutation(
        "a_small_chunk_counts_like_a_whole_one",
        "sizes",
        planning,
        "observed",
        _observed(lambda o, r, s: (o, max(r, o.rows), s)),
    ),
    instead("one_chunk_decides", "sizes", planning, "observed", _as_it_took),
    instead("there_is_no_least_size", "sizes", planning, "LEAST_ROWS", 1),
    instead("there_is_no_greatest_size", "sizes", planning, "MOST_ROWS", 10**9),
    instead("chunks_take_ten_seconds", "sizes", planning, "AIM_S", 10.0),
    instead("a_size_changes_at_any_time", "sizes", planning, "SHORT_S", 2.5),
    instead("a_size_changes_by_any_factor", "sizes", planning, "GROWTH", 1000.0),
    instead("a_size_hardly_changes", "sizes", planning, "GROWTH", 1.1),
)

# Tables and dumps.


def _verdict(change: Callable[..., tuple[Any, ...]]) -> Function:
    def mutate(original: Function) -> Function:
        return lambda whole, rows, listed=None, numbers=(): original(*change(whole, rows, listed, numbers))

    return mutate


def _status(**changes: Any) -> Function:
    def mutate(original: Function) -> Function:
        return lambda kept, error, wanted, **facts: original(kept, error, wanted, **{**facts, **changes})

    return mutate


OUTCOMES = (
    Mutation("a_list_is_the_whole_table", "outcomes", outcome, "verdict", _verdict(lambda w, r, a, n: (w, r))),
    Mutation("a_list_waits_for_more", "outcomes", outcome, "verdict", _verdict(lambda w, r, a, n: (w, r, a, (2, 3)))),
    Mutation(
        "a_table_is_finished_with_its_list",
        "outcomes",
        outcome,
        "verdict",
        lambda original: (
            lambda whole, rows, listed=None, numbers=(): (
                outcome.Complete()
                if listed is not None and not listed.again and all(r.state is State.DONE for r in rows if r.number == 3)
                else original(whole, rows, listed, numbers)
            )
        ),
    ),
    instead("no_table_is_given_up", "outcomes", outcome, "is_stuck", lambda offsets, rows: False),
    instead("a_list_may_have_anything", "outcomes", outcome, "check_list", lambda rows, numbers: None),
    instead("nothing_ends_a_source", "outcomes", outcome, "notice", lambda rows, is_sized: outcome.Notice.COMPLETED),
    instead(
        "an_empty_chunk_ends_any_source",
        "outcomes",
        outcome,
        "notice",
        lambda rows, is_sized: outcome.Notice.COMPLETED if rows else outcome.Notice.END,
    ),
    instead("a_source_is_never_silent", "outcomes", outcome, "is_silent", lambda asked_s, now_s, timeout_s: False),
    instead(
        "a_source_that_was_not_asked_is_silent",
        "outcomes",
        outcome,
        "is_silent",
        lambda asked_s, now_s, timeout_s: now_s - (asked_s or 0.0) > timeout_s,
    ),
    instead("every_dump_is_completed", "outcomes", outcome, "ended", lambda tables: (outcome.Status.COMPLETED, "")),
    Mutation("a_dead_process_goes_on", "outcomes", outcome, "status", _status(is_run=True)),
    Mutation("every_dump_waits_for_nodes", "outcomes", outcome, "status", _status(is_for_nodes=True)),
    instead("an_interrupted_dump_has_failed", "outcomes", outcome, "INTERRUPTED", "nothing"),
    instead("workers_go_on_without_a_plan", "outcomes", outcome, "takes_part", lambda kept, wanted, is_run: True),
    instead("a_node_takes_what_another_runs", "outcomes", outcome, "is_for_me", lambda is_run, is_spread: True),
)

ALL = (*LEASES, *PLAN, *END, *SIZES, *OUTCOMES)

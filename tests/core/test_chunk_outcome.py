"""What becomes of a table and of a dump, and what may be asked of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.core.chunks import Range, outcome
from headgate.core.chunks.locks import Chunk, State
from headgate.core.chunks.offsets import Offsets, from_list
from headgate.core.chunks.outcome import ALLOWED, Complete, DumpWanted, GivenUp, Notice, Status, TableState
from headgate.errors import NotFound, Refused

ENDED = Offsets(("9",), ("9",), ended=True)


def chunks(*states: State) -> list[Chunk]:
    return [
        Chunk(n, Range((str(n - 1),) if n > 1 else None, (str(n),)), state, error="no" if state is State.FAILED else "")
        for n, state in enumerate(states, 1)
    ]


# Of a table.


def test_a_table_is_complete_when_all_of_it_is_planned_and_done() -> None:
    assert outcome.verdict(ENDED, chunks(State.DONE, State.DONE)) == Complete()
    assert outcome.verdict(replace(ENDED, ended=False), chunks(State.DONE)) is None
    assert outcome.verdict(ENDED, []) == Complete()


def test_a_table_is_given_up_when_only_failed_chunks_are_left() -> None:
    assert outcome.verdict(ENDED, chunks(State.FAILED, State.DONE, State.LEASED)) is None
    assert outcome.verdict(ENDED, chunks(State.FAILED, State.DONE, State.PLANNED)) is None
    assert outcome.verdict(ENDED, chunks(State.FAILED, State.DONE)) == GivenUp("1 of 2 chunks failed: no")
    assert outcome.verdict(ENDED, chunks(State.FAILED)) == GivenUp("1 of 1 chunk failed: no")


def test_a_run_over_a_list_ends_with_its_chunks_whatever_else_is_left() -> None:
    there = chunks(State.DONE, State.PLANNED, State.FAILED)
    ranges = [there[2].range]
    assert outcome.verdict(ENDED, there, from_list(ranges), {3}) is None, "the chunk is not handed out yet"
    open_ = chunks(State.DONE, State.PLANNED, State.LEASED)
    assert outcome.verdict(ENDED, open_, from_list([]), {3}) is None
    failed = outcome.verdict(ENDED, there, from_list([]), {3})
    assert failed == GivenUp("1 of 3 chunks failed: no")
    done = chunks(State.DONE, State.PLANNED, State.DONE)
    left = outcome.verdict(ENDED, done, from_list([]), {3})
    assert left == GivenUp("only the chunks of a list were copied, 1 of 3 chunks are left")
    assert outcome.verdict(ENDED, chunks(State.DONE, State.DONE, State.DONE), from_list([]), {3}) == Complete()


def test_a_list_has_chunks_of_the_plan_that_are_not_done() -> None:
    there = chunks(State.DONE, State.FAILED, State.PLANNED)
    outcome.check_list(there, [2, 3])
    with pytest.raises(NotFound, match="chunk 4 is not in the plan"):
        outcome.check_list(there, [4])
    with pytest.raises(Refused, match="chunk 1 is done"):
        outcome.check_list(there, [2, 1])


# Of a chunk.


def test_a_source_without_a_size_ends_with_a_chunk_that_has_no_rows() -> None:
    assert outcome.notice(0, is_sized=False) is Notice.END
    assert outcome.notice(0, is_sized=True) is Notice.COMPLETED
    assert outcome.notice(5, is_sized=False) is Notice.COMPLETED


def test_a_source_is_silent_only_after_it_was_asked() -> None:
    assert not outcome.is_silent(None, 1000.0, 60.0)
    assert not outcome.is_silent(940.0, 1000.0, 60.0)
    assert outcome.is_silent(939.9, 1000.0, 60.0)


# Of a dump.


def test_a_dump_is_completed_with_all_its_tables_and_incomplete_with_the_first_that_is_not_done() -> None:
    done, failed = ("a", TableState.DONE, ""), ("b", TableState.FAILED, "no")
    assert outcome.ended([done, done]) == (Status.COMPLETED, "")
    assert outcome.ended([done, failed]) == (Status.INCOMPLETE, "b: no")
    assert outcome.ended([("c", TableState.COPYING, ""), failed]) == (Status.INCOMPLETE, "c: not copied yet")


def test_what_is_over_cannot_be_changed_and_only_what_is_over_can_be_cleaned_and_deleted() -> None:
    for action, allowed in ALLOWED.items():
        assert (Status.COMPLETED in allowed) == (action in ("cleaned", "deleted")), action
        assert (Status.RUNNING in allowed) == (action in ("paused", "given a rate", "cancelled")), action
        assert (Status.INCOMPLETE in allowed) == (action in ("resumed", "retried", "given a rate", "cancelled")), action


def test_workers_elsewhere_take_part_while_a_process_plans() -> None:
    assert outcome.takes_part(Status.RUNNING, DumpWanted.PAUSE, is_run=True)
    assert not outcome.takes_part(Status.RUNNING, DumpWanted.RUN, is_run=False)
    assert not outcome.takes_part(Status.RUNNING, DumpWanted.CANCEL, is_run=True)
    assert not outcome.takes_part(Status.COMPLETED, DumpWanted.RUN, is_run=True)


def test_a_node_takes_what_no_process_runs_and_what_all_work_on() -> None:
    assert outcome.is_for_me(is_run=False, is_spread=False)
    assert outcome.is_for_me(is_run=True, is_spread=True)
    assert not outcome.is_for_me(is_run=True, is_spread=False)


def test_a_dump_that_no_process_runs_waits_for_a_node_or_is_interrupted() -> None:
    def status(*, is_run: bool, is_for_nodes: bool, error: str = "", kept: Status = Status.RUNNING) -> Status:
        return outcome.status(kept, error, DumpWanted.RUN, is_run=is_run, is_for_nodes=is_for_nodes)

    assert status(is_run=True, is_for_nodes=False) is Status.RUNNING
    assert status(is_run=False, is_for_nodes=True) is Status.WAITING
    assert status(is_run=False, is_for_nodes=False) is Status.INTERRUPTED
    assert status(is_run=False, is_for_nodes=False, kept=Status.FAILED, error="gone") is Status.FAILED
    assert status(is_run=False, is_for_nodes=False, kept=Status.FAILED, error="interrupted") is Status.INTERRUPTED

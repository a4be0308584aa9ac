"""Stream rows on a real PostgreSQL: many at once, in any order, with their history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from headgate.core.identity import Marks
from headgate.core.push import PUSH
from headgate.core.streams import (
    Acquire,
    Busy,
    Checkpoint,
    Command,
    Done,
    Fenced,
    Grant,
    Granted,
    IdentityUnclear,
    Mark,
    Progress,
    Release,
    Reply,
    Revoke,
    Step,
    Stream,
)
from headgate.errors import NotFound, Refused, StoreError
from headgate.ids import new_id
from headgate.store import streams as store
from headgate.store.database import sql
from tests.store.conftest import ME, Pause, Rows, session


def claim(node: UUID) -> Acquire:
    return Acquire(node, new_id(), 1, "source", "sink", claims=True)


# Many at once.


async def test_a_thousand_streams_are_claimed_saved_and_given_back_in_a_transaction_each(rows: Rows) -> None:
    node = await rows.node()
    streams = await rows.many([f"ds-{number}" for number in range(1000)])

    async def apply(commands: dict[UUID, Command]) -> set[object]:
        steps = await rows.streams.apply(node, commands)
        assert set(steps) == set(streams)
        written_by = await rows.database.fetch("SELECT DISTINCT xmin::text FROM headgate.stream")
        assert len(written_by) == 1, "all rows were written by one transaction"
        return {type(step.reply) for step in steps.values()}

    assert await apply({stream: claim(node) for stream in streams}) == {Granted}
    assert await apply({s: Checkpoint(node, 1, 1, {"file": f"{i}"}) for i, s in enumerate(streams)}) == {Done}
    assert await apply({s: Release(node, 1, 2, {"file": f"{i}b"}) for i, s in enumerate(streams)}) == {Done}
    for number in (0, 500, 999):
        row = await rows.row(streams[number])
        assert (row.owner, row.progress) == (None, Progress(0, 2, {"file": f"{number}b"}))
    assert await rows.database.fetchval("SELECT count(*) FROM headgate.stream_history") == 2000


async def test_marks_are_saved_with_the_stream_and_decide_when_a_name_changes(rows: Rows) -> None:
    node = await rows.node()
    streams = await rows.many(["left", "right"])
    await rows.streams.apply(node, {stream: claim(node) for stream in streams})
    answers = await rows.streams.apply(node, {stream: Mark(node, 1, sink="t") for stream in streams})
    assert {step.reply for step in answers.values()} == {Done()}
    moved = replace(claim(node), version=2, sink_identity="elsewhere", sink_marks=Marks(None))
    found = await rows.streams.apply(node, {streams[0]: moved, streams[1]: replace(moved, sink_marks=Marks("u"))})
    assert [found[stream].reply for stream in streams] == [IdentityUnclear(), Granted()]
    found = await rows.streams.apply(node, {streams[0]: replace(moved, sink_marks=Marks("t"))})
    kept, other = [await rows.row(stream) for stream in streams]
    assert (kept.sink_identity, kept.sink_mark, kept.progress.generation) == ("elsewhere", "t", 0)
    assert (other.sink_identity, other.sink_mark, other.progress.generation) == ("elsewhere", "u", 1)


async def test_no_commands_ask_nothing_of_the_database(rows: Rows) -> None:
    await rows.database.close()
    assert await rows.streams.apply(new_id(), {}) == {}


async def test_a_stream_that_is_gone_has_no_answer_and_harms_no_other(rows: Rows) -> None:
    node, stream, gone = await rows.node(), await rows.stream(), new_id()
    steps = await rows.streams.apply(node, {gone: claim(node), stream: claim(node)})
    assert list(steps) == [stream]
    assert steps[stream].reply == Granted()


async def test_each_stream_of_a_batch_gets_its_own_answer(rows: Rows) -> None:
    left, right = await rows.node("left"), await rows.node("right")
    free, ours, theirs = await rows.many(["free", "ours", "theirs"])
    epoch = await rows.acquire(left, ours)
    await rows.acquire(right, theirs)
    steps = await rows.streams.apply(
        left, {theirs: claim(left), ours: Checkpoint(left, epoch, 3, 30), free: Checkpoint(left, 9, 1, 1)}
    )
    assert steps[theirs].reply == Busy(right)
    assert steps[ours].reply == Done()
    assert steps[free].reply == Fenced("stale")
    assert (await rows.row(ours)).progress == Progress(0, 3, 30)
    assert await rows.history(theirs) == [("acquired", "right")]


async def test_batches_over_the_same_streams_in_opposite_orders_do_not_deadlock(rows: Rows, others: Rows) -> None:
    left, right = await rows.node("left"), await rows.node("right")
    streams = await rows.many([f"ds-{number}" for number in range(200)])

    async def apply(store: Rows, node: UUID, commands: dict[UUID, Command]) -> dict[UUID, Step]:
        """On a busy machine the server may end a session that stood still in its transaction: then it is done again."""
        while True:
            try:
                return await store.streams.apply(node, commands)
            except StoreError as error:
                if "deadlock" in error.message:
                    raise

    async def hammer(store: Rows, node: UUID, order: list[UUID]) -> None:
        for n in range(10):
            steps = await apply(store, node, {stream: claim(node) for stream in order})
            epochs = {s: step.stream.epoch for s, step in steps.items() if step.reply == Granted()}
            await apply(store, node, {s: Release(node, epochs[s], n, n) for s in order if s in epochs})

    await asyncio.gather(
        *(
            hammer(store, node, order)
            for store, node in ((rows, left), (others, right))
            for order in (streams, streams[::-1])
        )
    )
    assert set((await rows.owners()).values()) == {None}


# Read, and saved if nothing has changed.


async def interrupted(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, node: UUID, stream: UUID, command: Command, by: Awaitable[Any]
) -> Reply:
    """The answer to a command when something else happens to its row between the reading and the saving."""
    pause = Pause()
    monkeypatch.setattr(store, "step_and_save", pause.before(store.step_and_save))
    telling = asyncio.create_task(rows.tell(node, stream, command))
    await pause.reached.wait()
    await by
    pause.go_on.set()
    return await telling


async def test_of_two_that_claim_a_stream_at_once_one_has_it(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    overtaking = others.acquire(right, stream)
    assert await interrupted(rows, monkeypatch, left, stream, claim(left), overtaking) == Busy(right)
    assert (await rows.row(stream)).owner == right
    assert await rows.history(stream) == [("acquired", "right")]


@pytest.mark.parametrize("what", ["checkpoint", "release"])
async def test_what_a_node_says_of_a_stream_that_is_taken_from_it_meanwhile_changes_nothing(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    epoch = await rows.acquire(left, stream)
    commands = {
        "checkpoint": Checkpoint(left, epoch, 7, 70),
        "release": Release(left, epoch, 7, 70, "unable", "1/0", "no driver"),
    }

    async def taking() -> None:
        await others.tell(left, stream, Revoke(left))
        await others.acquire(right, stream)

    reply = await interrupted(rows, monkeypatch, left, stream, commands[what], taking())
    assert reply == Fenced("owned_by_other")
    row = await rows.row(stream)
    assert (row.owner, row.progress) == (right, Progress())
    assert await unable(rows) == {}


async def test_a_checkpoint_that_is_overtaken_by_a_later_one_takes_nothing_back(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, stream = await rows.node(), await rows.stream()
    epoch = await rows.acquire(node, stream)
    late, later = Checkpoint(node, epoch, 7, 70), Checkpoint(node, epoch, 8, 80)
    assert await interrupted(rows, monkeypatch, node, stream, late, others.tell(node, stream, later)) == Done()
    assert (await rows.row(stream)).progress == Progress(0, 8, 80)


async def test_a_claim_sees_the_position_that_was_edited_meanwhile(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, stream = await rows.node(), await rows.stream()
    editing = others.streams.edit("orders:0", 40, "ada")
    assert await interrupted(rows, monkeypatch, node, stream, claim(node), editing) == Granted()
    row = await rows.row(stream)
    assert (row.owner, row.progress, row.epoch) == (node, Progress(1, 0, 40), 2)


async def test_one_changed_row_does_not_cost_the_others_their_commands(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = await rows.node("left"), await rows.node("right")
    first, second, third = await rows.many(["a", "b", "c"])
    pause = Pause()
    monkeypatch.setattr(store, "step_and_save", pause.before(store.step_and_save))
    commands: dict[UUID, Command] = {stream: claim(left) for stream in (first, second, third)}
    claiming = asyncio.create_task(rows.streams.apply(left, commands))
    await pause.reached.wait()
    await others.acquire(right, second)
    pause.go_on.set()
    assert {stream: step.reply for stream, step in (await claiming).items()} == {
        first: Granted(),
        second: Busy(right),
        third: Granted(),
    }
    assert await rows.owners() == {first: left, second: right, third: left}
    assert [await rows.history(stream) for stream in (first, second, third)] == [
        [("acquired", "left")],
        [("acquired", "right")],
        [("acquired", "left")],
    ]


# Checkpoints, of which there are many.


async def test_checkpoints_of_many_streams_are_saved_together(rows: Rows) -> None:
    node = await rows.node()
    streams = await rows.many([f"ds-{number}" for number in range(100)])
    epoch = await rows.acquire(node, *streams)
    replies = await rows.streams.checkpoint(node, {s: Checkpoint(node, epoch, 1, i) for i, s in enumerate(streams)})
    assert replies == dict.fromkeys(streams, Done())
    assert [(await rows.row(stream)).progress for stream in streams] == [
        Progress(0, 1, number) for number in range(100)
    ]


async def test_among_many_checkpoints_each_gets_its_own_answer(rows: Rows) -> None:
    left, right = await rows.node("left"), await rows.node("right")
    fresh, known, regranted, theirs, free = await rows.many(["a", "b", "c", "d", "e"])
    epoch = await rows.acquire(left, fresh, known, regranted, theirs, free)
    await rows.tell(left, known, Checkpoint(left, epoch, 9, 90))
    await rows.acquire(left, regranted)
    for stream in (theirs, free):
        await rows.tell(left, stream, Release(left, epoch, 1, 10))
    await rows.acquire(right, theirs)
    replies = await rows.streams.checkpoint(
        left, {s: Checkpoint(left, epoch, 5, 50) for s in (fresh, known, regranted, theirs, free, new_id())}
    )
    assert replies == {
        fresh: Done(),
        known: Done(),
        regranted: Fenced("stale"),
        theirs: Fenced("owned_by_other"),
        free: Fenced("already_inactive"),
    }
    positions = [(await rows.row(stream)).progress.position for stream in (fresh, known, regranted, theirs, free)]
    assert positions == [50, 90, None, 10, 10]


async def test_a_checkpoint_of_an_ended_incarnation_is_fenced(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    epoch = await rows.acquire(node, stream)
    await rows.nodes.end(node)
    # Even a row that still seems to be its own.
    await rows.database.execute("UPDATE headgate.stream SET owner = $1, epoch = $2", node, epoch)
    replies = await rows.streams.checkpoint(node, {stream: Checkpoint(node, epoch, 1, 10)})
    assert isinstance(replies[stream], Fenced)
    assert (await rows.row(stream)).progress == Progress()


async def test_a_row_of_any_position_comes_back_as_it_was(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    epoch = await rows.acquire(node, stream)
    for n, position in enumerate([0, "", False, [], {}, {"é": [1.5, None]}, "\\u2028", 2**63, None], 1):
        assert await rows.tell(node, stream, Checkpoint(node, epoch, n, position)) == Done()
        assert (await rows.row(stream)).progress == Progress(0, n, position)


# An incarnation that has ended.


async def test_an_ended_incarnation_claims_nothing(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    await rows.nodes.end(node)
    assert await rows.tell(node, stream, claim(node)) == Fenced()
    assert await rows.row(stream) == Stream(stream)
    assert await rows.history(stream) == []


async def test_an_ended_incarnation_saves_nothing(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    epoch = await rows.acquire(node, stream)
    await rows.nodes.end(node)
    after = await rows.row(stream)
    unable = Release(node, epoch, 5, 5, "unable", await rows.wanted_key(), "no driver")
    for command in (Checkpoint(node, epoch, 5, 5), unable, Revoke(node)):
        assert isinstance(await rows.tell(node, stream, command), Fenced)
    assert await rows.row(stream) == after
    assert not await rows.database.fetch("SELECT FROM headgate.unable")


async def test_an_incarnation_that_ends_during_a_claim_takes_the_claim_down_with_it(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, stream = await rows.node(), await rows.stream()
    pause = Pause()
    monkeypatch.setattr(store, "step_and_save", pause.before(store.step_and_save))
    claiming = asyncio.create_task(rows.tell(node, stream, claim(node)))
    await pause.reached.wait()
    ending = asyncio.create_task(others.nodes.end(node))
    await others.until_somebody_waits()
    pause.go_on.set()
    assert await claiming == Granted()
    assert await ending == [stream]
    assert (await rows.row(stream)).owner is None


async def test_a_claim_that_finds_its_incarnation_ending_waits_and_claims_nothing(rows: Rows, url: str) -> None:
    node, stream = await rows.node(), await rows.stream()
    async with session(url) as connection:
        await connection.execute("BEGIN")
        await connection.execute(sql("nodes/delete"), node)
        claiming = asyncio.create_task(rows.tell(node, stream, claim(node)))
        await rows.until_somebody_waits()
        await connection.execute("COMMIT")
    assert await claiming == Fenced()
    assert (await rows.row(stream)).owner is None


# Streams that programs push.


async def test_each_label_is_one_stream_however_many_ask_for_it_at_once(rows: Rows, others: Rows) -> None:
    await rows.many(["clicks", "views"], source=PUSH)
    pairs = [(await rows.datasource(name), f"host-{number}") for name in ("clicks", "views") for number in range(20)]
    asked = [pairs, pairs[::-1], pairs[:25], pairs[15:]] * 3
    found = await asyncio.gather(
        *((rows, others)[number % 2].streams.label(labels) for number, labels in enumerate(asked))
    )
    known = {pair: stream for one in found for pair, stream in one.items()}
    for labels, streams in zip(asked, found, strict=True):
        assert streams == {pair: known[pair] for pair in labels}
    assert len(set(known.values())) == 40
    assert await rows.database.fetchval("SELECT count(*) FROM headgate.stream WHERE label IS NOT NULL") == 40


async def test_a_label_that_is_asked_for_twice_in_one_question_is_one_stream(rows: Rows) -> None:
    await rows.stream("clicks", source=PUSH)
    pair = await rows.datasource("clicks"), "host-7"
    found = await rows.streams.label([pair, pair])
    assert list(found) == [pair]
    assert await rows.streams.label([]) == {}


async def test_a_stream_has_an_index_or_a_label(rows: Rows) -> None:
    await rows.stream()
    datasource = await rows.datasource()
    insert = "INSERT INTO headgate.stream (id, datasource, index, label) VALUES (gen_random_uuid(), $1, $2, $3)"
    for index, label in ((1, "one"), (None, None)):
        with pytest.raises(asyncpg.CheckViolationError, match="numbered_or_labelled"):
            await rows.database.execute(insert, datasource, index, label)


async def test_a_labelled_stream_is_no_offer(rows: Rows) -> None:
    node = await rows.node()
    await rows.stream("clicks", source=PUSH)
    (labelled,) = (await rows.streams.label([(await rows.datasource("clicks"), "a")])).values()
    await rows.database.execute("UPDATE headgate.stream SET owner = $1 WHERE id = $2", node, labelled)
    assert await rows.streams.granted(node) == []


# History.


async def test_every_change_of_hands_leaves_a_line_with_the_nodes_name(rows: Rows) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    epoch = await rows.acquire(left, stream)
    await rows.tell(left, stream, Release(left, epoch, 3, 30))
    await rows.acquire(right, stream)
    await rows.tell(right, stream, Revoke(right))
    await rows.streams.edit("orders:0", 10, "ada")
    lines = list(reversed(await rows.streams.history(stream, 10)))
    assert [(line.kind, line.actor) for line in lines] == [
        ("acquired", "left"),
        ("released", "left"),
        ("acquired", "right"),
        ("revoked", "right"),
        ("edited", "ada"),
    ]
    assert [(line.epoch, line.generation, line.commits, line.position) for line in lines] == [
        (1, 0, 0, None),
        (1, 0, 3, 30),
        (2, 0, 3, 30),
        (3, 0, 3, 30),
        (4, 1, 3, 10),
    ]
    assert [line.before for line in lines] == [None, None, None, None, 30]


async def test_the_latest_line_of_history_comes_first_and_a_limit_holds(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    await rows.acquire(node, stream)
    await rows.tell(node, stream, Revoke(node))
    assert [line.kind for line in await rows.streams.history(stream, 1)] == ["revoked"]


async def test_what_a_dead_node_had_is_revoked_by_headgate(rows: Rows) -> None:
    node, stream = await rows.node("left"), await rows.stream()
    await rows.acquire(node, stream)
    await rows.nodes.end(node)
    assert await rows.history(stream) == [("acquired", "left"), ("revoked", "headgate")]


async def test_a_grant_leaves_a_line_with_the_name_of_the_node_that_gets_it(rows: Rows) -> None:
    left, stream = await rows.node("left"), await rows.stream()
    assert await rows.placement.grant([]) == {stream: left}
    await rows.acquire(left, stream)
    assert await rows.history(stream) == [("granted", "left"), ("acquired", "left")]


async def test_checkpoints_and_refusals_leave_no_line(rows: Rows) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    epoch = await rows.acquire(left, stream)
    await rows.tell(left, stream, Checkpoint(left, epoch, 1, 1))
    await rows.tell(right, stream, claim(right))
    await rows.tell(right, stream, Release(right, epoch, 9, 9))
    await rows.tell(right, stream, Revoke(right))
    await rows.tell(left, stream, Grant(right))
    assert await rows.history(stream) == [("acquired", "left")]


async def test_history_goes_with_its_stream(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    await rows.acquire(node, stream)
    await rows.tell(node, stream, Revoke(node))
    async with rows.datasources.change(ME) as change:
        await change.delete(await rows.datasource())
    assert await rows.datasources.purge() == 1
    assert not await rows.database.fetch("SELECT FROM headgate.stream_history")


async def test_old_history_is_forgotten_but_for_the_last_lines_of_each_stream(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KEEP_LINES", 3)
    long, short, young = await rows.many(["a", "b", "c"])
    old, new = 2 * store.KEEP_HISTORY, store.KEEP_HISTORY / 2
    lines = (
        "INSERT INTO headgate.stream_history (stream, at, kind, actor, epoch, generation, commits)"
        " SELECT $1, now() - $2::interval, 'edited', 'ada', g, 0, 0 FROM generate_series(1, $3) AS g"
    )
    for stream, age, number in ((long, old, 9), (short, old, 2), (young, new, 9)):
        await rows.database.execute(lines, stream, age, number)
    await rows.streams.trim_history()

    async def kept(stream: UUID) -> list[int]:
        return [line.epoch for line in reversed(await rows.streams.history(stream, 99))]

    assert await kept(long) == [7, 8, 9]
    assert await kept(short) == [1, 2]
    assert await kept(young) == list(range(1, 10))


# What an operator does.


async def test_an_edit_moves_the_stream_and_is_written_down(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    epoch = await rows.acquire(node, stream)
    await rows.tell(node, stream, Release(node, epoch, 8, 80, "finished", await rows.wanted_key()))
    edited = await rows.streams.edit("orders:0", 40, "ada")
    assert (edited.stream.name, edited.stream.position, edited.before, edited.stream.generation) == (
        "orders:0",
        40,
        80,
        1,
    )
    row = await rows.row(stream)
    assert (row.progress, row.epoch, row.rests) == (Progress(1, 8, 40), epoch + 1, None)
    (event,) = await rows.database.fetch("SELECT * FROM headgate.datasource_events WHERE type = 'position_edited'")
    assert (event["name"], event["actor"]) == ("orders", "ada")
    assert event["payload"] == '{"stream":"orders:0","before":80,"after":40}'


async def test_an_edit_fences_whoever_may_still_be_at_work(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    epoch = await rows.acquire(node, stream)
    await rows.tell(node, stream, Release(node, epoch, 1, 1))
    await rows.streams.edit("orders:0", 40, "ada")
    assert await rows.tell(node, stream, Checkpoint(node, epoch, 2, 2)) == Fenced("stale")
    assert (await rows.row(stream)).progress.position == 40


async def test_an_edit_is_undone_and_undoing_twice_is_doing_it_again(rows: Rows) -> None:
    await rows.stream()
    positions: list[Any] = []
    await rows.streams.edit("orders:0", 40, "ada")
    for _ in range(4):
        positions.append((await rows.streams.undo_edit("orders:0", "ada")).stream.position)
    assert positions == [None, 40, None, 40]


async def test_an_undo_leads_to_what_the_last_edit_replaced_wherever_it_ran_to_since(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    for position in (30, 40):
        await rows.streams.edit("orders:0", position, "ada")
    epoch = await rows.acquire(node, stream)
    await rows.tell(node, stream, Release(node, epoch, 5, 90))
    undone = await rows.streams.undo_edit("orders:0", "ada")
    assert (undone.before, undone.stream.position, undone.stream.generation) == (90, 30, 3)


async def test_every_line_of_history_can_be_gone_back_to(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    epoch = await rows.acquire(node, stream)
    await rows.tell(node, stream, Release(node, epoch, 1, 10))
    await rows.streams.edit("orders:0", {"at": 20}, "ada")
    for line in reversed(await rows.streams.history(stream, 100)):
        done = await rows.streams.restore("orders:0", line.id, "ada")
        assert done.stream.position == line.position
        assert (await rows.row(stream)).progress.position == line.position
    assert (await rows.history(stream))[-1] == ("edited", "ada")
    for other in (0, 10**18):
        with pytest.raises(NotFound, match=f"has no line {other}"):
            await rows.streams.restore("orders:0", other, "ada")


async def test_a_line_of_another_stream_is_none_of_this_one(rows: Rows) -> None:
    await rows.stream()
    other = await rows.stream("clicks")
    await rows.streams.edit("clicks:0", 7, "ada")
    (line,) = await rows.streams.history(other, 1)
    with pytest.raises(NotFound):
        await rows.streams.restore("orders:0", line.id, "ada")


async def test_after_a_deal_only_the_parts_that_are_still_its_own_go_back(rows: Rows) -> None:
    stream = await rows.stream()
    await rows.database.execute('UPDATE headgate.datasource SET parts = \'["a", "b", "c"]\'')
    await rows.streams.edit("orders:0", {"a": 1, "b": 2, "c": 3}, "ada")
    (line,) = await rows.streams.history(stream, 1)
    await rows.database.execute(
        "INSERT INTO headgate.stream_history (stream, kind, actor, epoch, generation, commits) SELECT id, 'dealt',"
        " 'headgate', 0, 0, 0 FROM headgate.stream; UPDATE headgate.datasource SET dealt = 2, streams = 2;"
        ' UPDATE headgate.stream SET position = \'{"a": 8, "c": 9}\''
    )
    done = await rows.streams.restore("orders:0", line.id, "ada", is_dry=True)
    assert (done.before, done.stream.position) == ({"a": 8, "c": 9}, {"a": 1, "c": 3})


async def test_a_dry_edit_changes_nothing_and_says_what_would_be(rows: Rows) -> None:
    stream = await rows.stream()
    await rows.streams.edit("orders:0", 40, "ada")
    before, lines = await rows.row(stream), await rows.history(stream)
    for act, position in (
        (rows.streams.edit("orders:0", 50, "ada", is_dry=True), 50),
        (rows.streams.undo_edit("orders:0", "ada", is_dry=True), None),
    ):
        done = await act
        assert (done.before, done.stream.position) == (40, position)
    assert (await rows.row(stream), await rows.history(stream)) == (before, lines)


async def test_what_was_never_edited_cannot_be_undone(rows: Rows) -> None:
    stream = await rows.stream()
    with pytest.raises(Refused, match="never edited") as refused:
        await rows.streams.undo_edit("orders:0", "ada")
    assert refused.value.code == "nothing_to_undo"
    assert (await rows.row(stream)).epoch == 0


@pytest.mark.parametrize("is_acquired", [True, False], ids=["running", "granted"])
async def test_an_edit_is_refused_while_somebody_has_the_stream(rows: Rows, is_acquired: bool) -> None:
    node, stream = await rows.node("left"), await rows.stream()
    await rows.placement.grant([])
    if is_acquired:
        await rows.acquire(node, stream)
    before, lines = await rows.row(stream), await rows.history(stream)
    for act in (rows.streams.edit("orders:0", 40, "ada"), rows.streams.edit(str(stream), 40, "ada")):
        with pytest.raises(Refused, match="orders:0 is running on left") as refused:
            await act
        assert (refused.value.code, refused.value.hint) == (
            "active",
            "headgate ds pause orders first",
        )
    assert await rows.row(stream) == before
    assert await rows.history(stream) == lines
    assert not await rows.database.fetch("SELECT FROM headgate.datasource_events WHERE type = 'position_edited'")


async def test_an_edit_and_a_grant_at_once_come_one_after_the_other(rows: Rows, url: str) -> None:
    """Whoever is first is right: the stream is edited and then granted, or it is granted and the edit is refused."""
    node, stream = await rows.node("left"), await rows.stream()
    async with session(url) as connection:
        await connection.execute("BEGIN")
        await connection.execute("UPDATE headgate.stream SET owner = $1, epoch = 1", node)
        editing = asyncio.create_task(rows.streams.edit("orders:0", 40, "ada"))
        await rows.until_somebody_waits()
        await connection.execute("COMMIT")
    with pytest.raises(Refused, match="is running on"):
        await editing
    assert (await rows.row(stream)).progress == Progress()


# Finding one.


async def test_a_stream_is_found_by_its_name_and_by_its_id(rows: Rows) -> None:
    node, stream = await rows.node("left"), await rows.stream()
    await rows.stream("clicks", source=PUSH)
    (labelled,) = (await rows.streams.label([(await rows.datasource("clicks"), "host:7")])).values()
    await rows.acquire(node, stream)
    by_name = await rows.streams.find("orders:0")
    assert by_name == await rows.streams.find(str(stream))
    assert (by_name.id, by_name.name, by_name.node, by_name.rests) == (stream, "orders:0", "left", False)
    assert (await rows.streams.find("clicks:host:7")).id == labelled
    assert (await rows.streams.find(str(labelled))).name == "clicks:host:7"
    assert [one.name for one in await rows.streams.all()] == ["clicks:host:7", "orders:0"]


@pytest.mark.parametrize("name", ["orders", "orders:", "orders:1", "other:0", "", ":", "no stream", str(UUID(int=7))])
async def test_a_stream_that_does_not_exist_is_not_found(rows: Rows, name: str) -> None:
    await rows.stream()
    for act in (rows.streams.find(name), rows.streams.edit(name, 1, "ada"), rows.streams.undo_edit(name, "ada")):
        with pytest.raises(NotFound, match="does not exist"):
            await act


async def test_a_stream_of_a_deleted_datasource_is_not_found(rows: Rows) -> None:
    stream = await rows.stream()
    async with rows.datasources.change(ME) as change:
        await change.delete(await rows.datasource())
    for name in ("orders:0", str(stream)):
        with pytest.raises(NotFound):
            await rows.streams.find(name)
    assert await rows.streams.all() == []


async def test_a_name_that_means_two_streams_is_refused_with_their_ids(rows: Rows) -> None:
    """A datasource that was read and is pushed now may have a stream 0 of each kind."""
    numbered = await rows.stream("clicks", source=PUSH)
    (labelled,) = (await rows.streams.label([(await rows.datasource("clicks"), "0")])).values()
    with pytest.raises(Refused, match="stream 'clicks:0' is ambiguous: two have this name") as refused:
        await rows.streams.find("clicks:0")
    assert refused.value.code == "ambiguous"
    assert str(numbered) in refused.value.hint
    assert str(labelled) in refused.value.hint
    assert (await rows.streams.edit(str(labelled), 5, "ada")).stream.position == 5
    assert (await rows.row(numbered)).progress.position is None


# Nodes that cannot run a stream.


async def unable(rows: Rows) -> dict[tuple[UUID, UUID], tuple[str, str]]:
    """Which node cannot run which stream, for which key, and why."""
    found = await rows.database.fetch("SELECT stream, node, wanted_key, reason FROM headgate.unable")
    return {(row["stream"], row["node"]): (row["wanted_key"], row["reason"]) for row in found}


async def test_who_cannot_run_a_datasource_as_it_is_wished_now_can_be_asked(rows: Rows) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    for node, wanted_key, reason in ((left, "0/0", "long ago"), (right, await rows.wanted_key(), "no driver")):
        epoch = await rows.acquire(node, stream)
        await rows.tell(node, stream, Release(node, epoch, 0, None, "unable", wanted_key, reason))
    (found,) = await rows.streams.unable(await rows.datasource())
    assert (found.stream, found.id, found.node, found.reason) == (stream, right, "right", "no driver")


async def test_a_node_that_gives_streams_back_as_unable_is_remembered_for_each(rows: Rows) -> None:
    node = await rows.node()
    first, second, third, stopped = await rows.many(["a", "b", "c", "d"])
    epoch = await rows.acquire(node, first, second, third, stopped)
    commands: dict[UUID, Command] = {
        second: Release(node, epoch, 0, None, "unable", "1/0", "no driver"),
        first: Release(node, epoch, 0, None, "unable", "1/7", "no secret"),
        third: Release(node, epoch, 0, None, "finished", "1/0"),
        stopped: Release(node, epoch, 0, None),
    }
    await rows.streams.apply(node, commands)
    assert await unable(rows) == {(first, node): ("1/7", "no secret"), (second, node): ("1/0", "no driver")}
    assert [(await rows.row(stream)).rests for stream in (first, second, third, stopped)] == [None, None, "1/0", None]


async def test_the_last_key_that_a_node_could_not_run_counts(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    for wanted_key, reason in (("1/0", "no driver"), ("2/0", "no secret")):
        epoch = await rows.acquire(node, stream)
        await rows.tell(node, stream, Release(node, epoch, 0, None, "unable", wanted_key, reason))
    assert await unable(rows) == {(stream, node): ("2/0", "no secret")}


async def test_a_node_that_had_lost_the_stream_says_nothing_about_it(rows: Rows) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    epoch = await rows.acquire(left, stream)
    await rows.tell(left, stream, Revoke(left))
    await rows.acquire(right, stream)
    late = Release(left, epoch, 0, None, "unable", "1/0", "no driver")
    assert await rows.tell(left, stream, late) == Fenced("owned_by_other")
    assert await unable(rows) == {}


async def test_what_a_node_could_not_run_is_forgotten_with_the_node_and_with_the_stream(rows: Rows) -> None:
    left, right = await rows.node("left"), await rows.node("right")
    first, second = await rows.many(["a", "b"])
    for node, stream in ((left, first), (right, first), (right, second)):
        epoch = await rows.acquire(node, stream)
        await rows.tell(node, stream, Release(node, epoch, 0, None, "unable", "1/0", "no driver"))
    await rows.nodes.end(left)
    assert set(await unable(rows)) == {(first, right), (second, right)}
    await rows.database.execute("DELETE FROM headgate.stream WHERE id = $1", first)
    assert set(await unable(rows)) == {(second, right)}

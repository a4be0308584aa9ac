"""Beats and the lock that goes with them, and the end of an incarnation before its lease is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from headgate.core.lease import Expired, Quiet
from headgate.core.streams import Acquire, Busy, Checkpoint, Fenced
from headgate.errors import NotFound
from headgate.ids import new_id
from headgate.store import nodes as nodes_module
from headgate.store.beats import BeatSession, lock_of
from headgate.store.database import sql
from tests.store.conftest import Pause, Rows, session, unchecked

WITHIN_S = 120.0


class Beating(Rows):
    """Nodes that beat."""

    def __init__(self, rows: Rows, url: str) -> None:
        super().__init__(rows.database)
        self.url = url
        self.sessions: dict[UUID, BeatSession] = {}

    async def beating(self, name: str = "left") -> UUID:
        """A node that has beaten once."""
        node = await self.node(name)
        self.sessions[node] = await BeatSession.open(self.url, unchecked, node)
        assert await self.sessions[node].beat()
        return node

    async def quiet(self, node: UUID) -> Quiet:
        """What an observer that has waited long enough says of it."""
        (found,) = [row for row in (await self.nodes.observe())[0] if row.node == node]
        return Quiet(node, found.beat)

    async def die(self, node: UUID) -> None:
        """Its sessions end, as those of a killed process do."""
        self.sessions.pop(node).close()
        async with session(self.url) as other:
            while not await other.fetchval("SELECT pg_try_advisory_lock($1)", lock_of(node)):
                await asyncio.sleep(0.005)
            await other.execute("SELECT pg_advisory_unlock($1)", lock_of(node))

    async def is_locked(self, node: UUID) -> bool:
        """Whether its row says that it has its lock."""
        found: bool = await self.database.fetchval("SELECT locked FROM headgate.node WHERE id = $1", node)
        return found

    async def run(self, node: UUID, stream: UUID, *, transactional: bool) -> int:
        """Have a run of this node begin. Returns its epoch."""
        command = Acquire(node, new_id(), 1, "source", "sink", claims=True, transactional=transactional)
        return (await self.streams.apply(node, {stream: command}))[stream].stream.epoch


@pytest.fixture
async def beats(rows: Rows, url: str) -> AsyncIterator[Beating]:
    found = Beating(rows, url)
    yield found
    for one in found.sessions.values():
        one.close()


async def backends(beats: Beating, node: UUID) -> list[int]:
    """The server's processes that hold the lock of an incarnation."""
    held = """SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
              AND (classid::bigint << 32) | objid::bigint = $1 AND database =
              (SELECT oid FROM pg_database WHERE datname = current_database())"""
    return [row["pid"] for row in await beats.database.fetch(held, lock_of(node))]


# Beats.


async def test_a_beat_takes_the_lock_and_says_so(beats: Beating, url: str) -> None:
    node = await beats.beating()
    assert await beats.is_locked(node)
    assert len(await backends(beats, node)) == 1
    assert await beats.sessions[node].beat()
    await beats.die(node)
    assert await backends(beats, node) == []


async def test_the_server_notices_soon_that_the_session_is_gone(beats: Beating) -> None:
    """While it works on a statement, too; a socket of the file system has no user timeout."""
    node = await beats.beating()
    asked = beats.sessions[node]._session
    assert await asked.fetchval("SHOW client_connection_check_interval") == "250ms"
    assert await asked.fetchval("SHOW tcp_user_timeout") in ("3s", "0")


async def test_a_session_that_the_server_ends_is_known_to_be_broken_at_once(beats: Beating) -> None:
    node = await beats.beating()
    (pid,) = await backends(beats, node)
    await beats.database.execute("SELECT pg_terminate_backend($1)", pid)
    async with asyncio.timeout(WITHIN_S):
        await beats.sessions[node].broken.wait()
    again = beats.sessions[node] = await BeatSession.open(beats.url, unchecked, node)
    assert await again.beat()
    assert await beats.is_locked(node)


async def test_while_another_session_has_the_lock_the_row_says_that_this_one_does_not(beats: Beating) -> None:
    """One of our own, perhaps, of which the server has not noticed yet that it is dead."""
    node = await beats.node()
    older = await BeatSession.open(beats.url, unchecked, node)
    assert await older.beat()
    beats.sessions[node] = await BeatSession.open(beats.url, unchecked, node)
    assert await beats.sessions[node].beat()
    assert not await beats.is_locked(node)
    beats.sessions[node], newer = older, beats.sessions[node]
    await beats.die(node)
    beats.sessions[node] = newer
    assert await newer.beat()
    assert await beats.is_locked(node)


async def test_behind_a_pooler_no_lock_is_taken(beats: Beating) -> None:
    beats.url += "&pooler=transaction"
    node = await beats.beating()
    assert not await beats.is_locked(node)
    assert await backends(beats, node) == []
    assert await beats.sessions[node].beat()


async def test_a_lock_that_another_backend_took_does_not_count(beats: Beating) -> None:
    """A pooler that nobody told us of leads each statement to another server's session."""
    node = await beats.beating()
    async with session(beats.url) as other:
        beats.sessions[node]._locked_by = await other.fetchval("SELECT pg_backend_pid()")
    assert await beats.sessions[node].beat()
    assert not await beats.is_locked(node)


# The end of an incarnation before its lease is over.


async def test_a_node_that_is_gone_leaves_what_is_fenced_and_keeps_the_rest_until_its_lease_ends(
    beats: Beating,
) -> None:
    node, other = await beats.beating(), await beats.beating("right")
    fenced, plain, offered = await beats.many(["fenced", "plain", "offered"])
    epochs = {stream: await beats.run(node, stream, transactional=stream == fenced) for stream in (fenced, plain)}
    await beats.nodes.set_draining(other, True)
    assert await beats.placement.grant([]) == {offered: node}
    quiet = await beats.quiet(node)
    await beats.die(node)
    taken = await beats.nodes.end_early(quiet)
    assert taken is not None
    assert set(taken) == {fenced, offered}
    assert await beats.owners() == {fenced: None, offered: None, plain: node}
    assert (await beats.row(fenced)).epoch == epochs[fenced] + 1
    assert (await beats.row(plain)).epoch == epochs[plain]
    assert await beats.nodes.end_early(quiet) is None
    assert await beats.nodes.expire(Expired(node, quiet.beat)) == [plain]
    assert await beats.owners() == dict.fromkeys((fenced, offered, plain))


async def test_nothing_is_granted_to_an_ended_incarnation_nor_taken_from_it(beats: Beating) -> None:
    node, other = await beats.beating(), await beats.beating("right")
    plain, free = await beats.many(["plain", "free"])
    epoch = await beats.run(node, plain, transactional=False)
    quiet = await beats.quiet(node)
    await beats.die(node)
    assert await beats.nodes.end_early(quiet) == []
    late = await BeatSession.open(beats.url, unchecked, node)
    assert not await late.beat()
    late.close()
    assert await beats.placement.grant([]) == {free: other}
    assert await beats.tell(node, plain, Checkpoint(node, epoch, 1, 1)) == Fenced()
    assert await beats.tell(node, plain, Acquire(node, new_id(), 1, "source", "sink", claims=True)) == Fenced()
    assert await beats.tell(other, plain, Acquire(other, new_id(), 1, "source", "sink", claims=True)) == Busy(node)
    found, target = await beats.streams.find("plain:0"), await beats.nodes.find(str(node))
    assert target.ended
    with pytest.raises(NotFound, match="has left"):
        await beats.placement.move(found, target, "tester")


@pytest.mark.parametrize("has_beaten", [False, True])
async def test_a_node_that_lives_is_not_ended(beats: Beating, has_beaten: bool) -> None:
    """Its lock is taken; or its beat is not the one at which an observer saw it stop."""
    node = await beats.beating()
    quiet = await beats.quiet(node)
    if has_beaten:
        assert await beats.sessions[node].beat()
        await beats.die(node)
    assert await beats.nodes.end_early(quiet) is None
    assert not (await beats.nodes.find(str(node))).ended


async def test_where_no_lock_is_held_a_free_one_proves_nothing(beats: Beating) -> None:
    beats.url += "&pooler=transaction"
    node = await beats.beating()
    assert await beats.nodes.end_early(await beats.quiet(node)) is None


async def test_what_a_new_version_writes_into_decides(beats: Beating) -> None:
    node, stream = await beats.beating(), await beats.stream()
    await beats.run(node, stream, transactional=True)
    await beats.run(node, stream, transactional=False)
    quiet = await beats.quiet(node)
    await beats.die(node)
    assert await beats.nodes.end_early(quiet) == []


async def test_a_return_is_held_off_while_the_incarnation_is_being_ended(
    beats: Beating, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await beats.beating()
    quiet = await beats.quiet(node)
    await beats.die(node)
    pause = Pause()
    monkeypatch.setattr(nodes_module, "step_owned", pause.before(nodes_module.step_owned))
    ending = asyncio.create_task(beats.nodes.end_early(quiet))
    await pause.reached.wait()
    beats.sessions[node] = await BeatSession.open(beats.url, unchecked, node)
    returning = asyncio.create_task(beats.sessions[node].beat())
    await beats.until_somebody_waits()
    pause.go_on.set()
    assert await ending == []
    assert not await returning


async def test_a_node_that_returns_first_is_not_ended(beats: Beating, url: str) -> None:
    """Its beat is under way: the row is locked, and nobody waits for that."""
    node = await beats.beating()
    quiet = await beats.quiet(node)
    await beats.die(node)
    async with session(url) as connection:
        await connection.execute("BEGIN")
        await connection.fetchval(sql("nodes/beat"), node, None)
        assert await beats.nodes.end_early(quiet) is None
        await connection.execute("COMMIT")
    assert await beats.nodes.end_early(quiet) is None


async def test_a_claim_that_is_under_way_ends_with_its_incarnation(
    beats: Beating, others: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either the claim is first, and is taken with the rest; or it finds that its incarnation is over."""
    node, stream = await beats.beating(), await beats.stream()
    await beats.die(node)
    quiet = await beats.quiet(node)
    pause = Pause()
    monkeypatch.setattr(nodes_module, "step_owned", pause.before(nodes_module.step_owned))
    ending = asyncio.create_task(beats.nodes.end_early(quiet))
    await pause.reached.wait()
    command = Acquire(node, new_id(), 1, "source", "sink", claims=True, transactional=True)
    claiming = asyncio.create_task(others.tell(node, stream, command))
    await beats.until_somebody_waits()
    pause.go_on.set()
    assert await ending == []
    assert await claiming == Fenced()
    assert await beats.owners() == {stream: None}


async def test_a_node_that_was_started_again_is_meant_by_its_name(beats: Beating) -> None:
    node = await beats.beating()
    quiet = await beats.quiet(node)
    await beats.die(node)
    assert await beats.nodes.end_early(quiet) == []
    assert (await beats.nodes.find("left")).id == node
    again = await beats.node()
    assert (await beats.nodes.find("left")).id == again


async def test_its_own_word_ends_an_incarnation_at_once(beats: Beating) -> None:
    node, stream = await beats.beating(), await beats.stream()
    await beats.run(node, stream, transactional=False)
    quiet = await beats.quiet(node)
    await beats.die(node)
    assert await beats.nodes.end_early(quiet) == []
    assert await beats.nodes.end(node) == [stream]
    assert await beats.nodes.end(node) is None

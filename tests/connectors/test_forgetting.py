"""The PostgreSQL sink forgets streams that are gone: nothing of them stays, and nothing of them comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from headgate.connectors.api import Letter, Outgoing, Progress
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.errors import Cause, ConnectorError, Fenced
from headgate.testing.contract import ForgettingSinkContract
from headgate.testing.factories import INSTALLATION, make_context, make_grant
from tests.connectors.stopped_opener import TRUST_S
from tests.waiting import wait_until

NOBODY = UUID(int=0)  # Whose row of positions is the mark of the table.


def make_sink(url: str, table: str = "target", **options: Any) -> PostgresSink:
    return PostgresSink(PostgresOptions(url=url, table=table, **options), make_context())


async def rows(url: str, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(query)
    finally:
        await connection.close()


async def number(url: str, table: str) -> int:
    streams = "WHERE epoch > 0" if table == "headgate_position" else ""  # Without the mark of the table.
    return int((await rows(url, f"SELECT count(*) AS n FROM {table} {streams}"))[0]["n"])


class TestPostgresSink(ForgettingSinkContract):
    """The public contract."""

    @pytest.fixture(autouse=True)
    async def table(self, empty_url: str) -> None:
        self.url = empty_url
        await rows(empty_url, "CREATE TABLE target (id bigint NOT NULL, text text)")

    def make_sink(self) -> PostgresSink:
        return make_sink(self.url)

    async def read_back(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await rows(self.url, "SELECT id, text FROM target ORDER BY id")]


async def test_letters_go_with_the_position_and_those_of_others_stay(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id bigint)")
    grants = [make_grant("gone"), make_grant("stays"), make_grant("gone", installation=UUID(int=7))]
    for grant in grants:
        sink = make_sink(empty_url)
        await sink.open(grant)
        letters = [Letter(uuid4(), b"content", key) for key in (None, b"key")]
        await sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1), letters=letters))
        await sink.close()
    await make_sink(empty_url).forget(INSTALLATION, [grants[0].stream, uuid4()])
    left = {(grant.installation, grant.stream) for grant in grants[1:]}
    for table in ("headgate_position", "headgate_dead_letter"):
        found = await rows(empty_url, f"SELECT installation, stream FROM {table}")
        assert {(row["installation"], row["stream"]) for row in found} - {(NOBODY, NOBODY)} == left
    assert await number(empty_url, "headgate_dead_letter") == 4
    assert await number(empty_url, "target") == 3


async def test_a_database_that_never_had_a_position_has_nothing_to_forget(empty_url: str) -> None:
    await make_sink(empty_url).forget(INSTALLATION, [uuid4()])
    assert (await rows(empty_url, "SELECT to_regclass('headgate_position') AS found"))[0]["found"] is None


async def test_a_user_who_may_not_delete_is_told_so(empty_url: str) -> None:
    """The table of an older release may be somebody else's, who granted what a write needs and no more."""
    sink = make_sink(empty_url)
    await sink.open(make_grant())
    await sink.close()
    user = f"u{uuid4().hex[:12]}"
    await rows(empty_url, f"CREATE ROLE {user} LOGIN")
    await rows(empty_url, f"GRANT SELECT, INSERT, UPDATE ON headgate_position TO {user}")
    try:
        _, _, rest = empty_url.partition("@")
        other = make_sink(f"postgresql://{user}@{rest}")  # The server takes local connections without a password.
        with pytest.raises(ConnectorError, match="permission denied") as error:
            await other.forget(INSTALLATION, [make_grant().stream])
        assert error.value.cause == Cause.AUTH
    finally:
        await rows(empty_url, f"DROP OWNED BY {user}")
        await rows(empty_url, f"DROP ROLE {user}")
    assert await number(empty_url, "headgate_position") == 1


async def test_a_write_under_way_when_its_stream_is_forgotten_is_taken_back(empty_url: str) -> None:
    """It has written its rows and waits for the position's row, which the delete holds: it finds that gone."""
    await rows(empty_url, "CREATE TABLE target (id bigint)")
    grant, sink = make_grant(), make_sink(empty_url)
    await sink.open(grant)
    holder = await asyncpg.connect(empty_url)
    await holder.execute("BEGIN; DELETE FROM headgate_position")
    writing = asyncio.create_task(sink.write(Outgoing([{"id": 1}, {"id": 2}], Progress(0, 1, 2))))
    waits = "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while not (await rows(empty_url, waits))[0]["n"]:
        await asyncio.sleep(0.01)
    await holder.execute("COMMIT")
    await holder.close()
    with pytest.raises(Fenced):
        await writing
    await sink.close()
    assert (await number(empty_url, "target"), await number(empty_url, "headgate_position")) == (0, 0)


# Somebody is stopped.

MOMENTS = [(name, moment) for name in ("read", "raise") for moment in ("before", "inside", "after")]


async def test_a_run_stopped_anywhere_in_its_open_does_not_bring_a_forgotten_stream_back(empty_url: str) -> None:
    """For each moment: the run stops, its node's trust ends, its stream is forgotten, and the run wakes."""
    warm_up = make_sink(empty_url, "warm_up")
    await warm_up.open(make_grant(epoch=1, stream=uuid4()))  # So that all find the position table.
    await warm_up.close()
    said = await asyncio.gather(*(stop_one(empty_url, *moment) for moment in MOMENTS))
    *others, last = said
    assert others == ["NotConnected"] * len(others)  # Of the last one the row was there, and is gone when it writes.
    assert last in ("Fenced", "NotConnected")


async def stop_one(url: str, name: str, moment: str) -> str:
    """Returns how the run ended. Asserts that it has left nothing."""
    stream, table = uuid4(), f"t_{name}_{moment}"
    await rows(url, f"CREATE TABLE {table} (id bigint)")
    script = Path(__file__).with_name("stopped_opener.py")
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    run = await asyncio.create_subprocess_exec(
        sys.executable, str(script), url, table, str(stream), name, moment,
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    await asyncio.to_thread(wait_until, lambda: _is_stopped(run.pid))
    await asyncio.sleep(TRUST_S)  # Nothing happens meanwhile: that is how trust ends.
    await make_sink(url, table).forget(INSTALLATION, [stream])
    os.kill(run.pid, signal.SIGCONT)
    said = (await run.communicate())[0].decode().strip()
    kept = await rows(url, f"SELECT FROM headgate_position WHERE stream = '{stream}'")
    assert (len(kept), await number(url, table)) == (0, 0), f"{name} {moment}: the run said {said}"
    return said


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

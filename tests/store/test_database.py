"""The store against a real PostgreSQL that is away, restarting, frozen, or behind a pooler."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
from pathlib import Path

import asyncpg
import pytest

from headgate.errors import ConfigError, Refused, StoreError
from headgate.store import wake
from headgate.store.database import Database, connect, is_undone
from headgate.store.embedded import EmbeddedServer
from headgate.store.migrate import migrate, migrations
from headgate.store.wake import Listener, Waker
from tests.pooler import needs_pooler, pooled
from tests.proxy import proxied
from tests.waiting import until, wait_until

# Migrations.


async def test_ten_nodes_that_start_at_once_migrate_once(empty_url: str) -> None:
    databases = await asyncio.gather(*(Database.open(empty_url, size=1) for _ in range(10)))
    applied = await asyncio.gather(*(migrate(database) for database in databases))
    assert sorted(len(names) for names in applied) == [0] * 9 + [len(migrations())]
    await asyncio.gather(*(database.close() for database in databases))


async def test_a_schema_from_a_newer_headgate_is_refused(database: Database) -> None:
    await database.execute("INSERT INTO headgate.migration (number, name) VALUES (9999, 'from_the_future')")
    with pytest.raises(Refused, match="newer Headgate"):
        await migrate(database)


async def test_a_migration_that_fails_leaves_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [*migrations(), (9000, "broken", "CREATE TABLE headgate.half (id int); SELECT 1/0")]
    monkeypatch.setattr("headgate.store.migrate.migrations", lambda: broken)
    database = await Database.open(empty_url)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(database)
    assert await database.fetchval("SELECT to_regclass('headgate.datasource')") is None
    await database.close()


async def test_a_wrong_password_or_database_is_told_at_once(server: EmbeddedServer) -> None:
    with pytest.raises(ConfigError, match="refuses the connection"):
        await Database.open(server.url.replace("/headgate?", "/no_such_database?"))
    with pytest.raises(ConfigError, match="postgresql://"):
        await Database.open("mysql://nowhere")


async def test_events_are_append_only(database: Database) -> None:
    await database.execute("INSERT INTO headgate.datasource_events (type, actor) VALUES ('made', 'me')")
    with pytest.raises(asyncpg.RaiseError, match="append only"):
        await database.execute("DELETE FROM headgate.datasource_events")
    with pytest.raises(asyncpg.RaiseError, match="append only"):
        await database.execute("UPDATE headgate.datasource_events SET actor = 'you'")


# Locks.


async def test_a_process_stopped_between_lock_and_save_holds_nobody_up_for_long(url: str) -> None:
    """SIGSTOP inside a transaction that holds the registry's row: the next writer waits a little and goes on."""
    script = textwrap.dedent("""
        import asyncio, sys
        from headgate.store.database import Database
        from headgate.store.datasources import Datasources
        async def main():
            database = await Database.open(sys.argv[1])
            async with Datasources(database).change("stopped one") as change:
                print("locked", flush=True)
                await asyncio.sleep(60)
        asyncio.run(main())
    """)
    holder = subprocess.Popen([sys.executable, "-c", script, url], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == b"locked\n"
        holder.send_signal(signal.SIGSTOP)
        database = await Database.open(url)
        async with database.transaction() as connection:
            assert await connection.fetchval("UPDATE headgate.registry SET revision = revision + 1 RETURNING revision")
        await database.close()
    finally:
        holder.kill()
        holder.wait()


async def test_a_process_stopped_between_the_two_halves_of_a_command_is_ended_by_whoever_waits(
    url: str, database: Database
) -> None:
    """Prepared and not sent: to the server that session is not idle, and no limit of its own ends it."""
    stopped = await connect(url)
    await stopped.execute("BEGIN")
    await stopped.execute("SELECT FROM headgate.migration FOR UPDATE")
    await stopped.prepare("SELECT 'the second half never comes'")

    async def lock() -> None:
        async with database.transaction("; SET LOCAL lock_timeout = 2500") as connection:
            await connection.execute("SELECT FROM headgate.migration FOR UPDATE")

    with pytest.raises(StoreError, match="lock timeout"):
        await lock()
    await lock()
    await until(stopped.is_closed)


async def test_a_process_that_stood_still_in_a_transaction_is_told_so_and_may_try_again(database: Database) -> None:
    """The answer to one statement and the farewell of the server arrive together, before the next one is sent."""
    with pytest.raises(StoreError, match="ended the session before it was asked") as caught:
        async with database.transaction() as session:
            backend = await session.fetchval("SELECT pg_backend_pid()")
            asking = asyncio.create_task(session.execute("CREATE TABLE kept (id int)"))
            await asyncio.sleep(0)  # It is sent, and then nothing in this process goes on.
            wait_until(lambda: not Path(f"/proc/{backend}").exists())
            await asking
            await session.execute("SELECT 1")
    assert is_undone(caught.value)
    assert await database.fetchval("SELECT to_regclass('kept')") is None


async def test_an_error_inside_a_transaction_rolls_it_back_and_frees_the_session(database: Database) -> None:
    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            async with database.transaction() as connection:
                await connection.execute("UPDATE headgate.registry SET revision = 999")
                raise ZeroDivisionError
    assert await database.fetchval("SELECT revision FROM headgate.registry") == 0


async def test_a_cancelled_transaction_leaves_no_lock(database: Database) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        async with database.transaction() as connection:
            await connection.execute("UPDATE headgate.registry SET revision = 999")
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    await entered.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await database.fetchval("UPDATE headgate.registry SET revision = 1 RETURNING revision") == 1


# Wake-ups.


async def test_a_wake_up_reaches_every_listener_with_its_number(url: str, database: Database) -> None:
    heard: list[int] = []
    listener = Listener(url)
    listener.on("registry", heard.append)
    task = asyncio.create_task(listener.run())
    await listener.connected.wait()
    Waker(database).wake("registry", 17)
    await until(lambda: 17 in heard)
    task.cancel()


async def test_wake_ups_are_coalesced(database: Database) -> None:
    sent: list[tuple[object, ...]] = []
    real = database.execute

    async def counting(query: str, *args: object) -> str:
        sent.append(args)
        return await real(query, *args)

    database.execute = counting  # type: ignore[method-assign]
    waker = Waker(database)
    for number in range(1000):
        waker.wake("registry", number)
    await waker.close()
    assert len(sent) == 1
    assert sent[0][1] == ["registry 999"]


async def test_a_half_open_listen_connection_recovers_by_itself(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network swallows everything and tells nobody: the ping finds out, and wake-ups arrive again."""
    monkeypatch.setattr(wake, "PING_S", 0.2)
    monkeypatch.setattr(wake, "ANSWER_S", 0.5)
    async with proxied(url) as (proxy, through):
        heard: list[int] = []
        listener = Listener(through)
        listener.on("registry", heard.append)
        task = asyncio.create_task(listener.run())
        await listener.connected.wait()
        proxy.freeze()
        await until(lambda: not listener.connected.is_set())
        proxy.cut()
        proxy.thaw()
        await listener.connected.wait()
        Waker(database).wake("registry", 5)
        await until(lambda: 5 in heard)
        task.cancel()


async def test_whoever_reconnects_looks_again_at_everything(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "PING_S", 0.1)
    async with proxied(url) as (proxy, through):
        heard: list[int] = []
        listener = Listener(through)
        listener.on("registry", heard.append)
        task = asyncio.create_task(listener.run())
        await until(lambda: heard == [0])
        proxy.cut()
        await until(lambda: heard == [0, 0])
        task.cancel()


async def test_the_listen_session_holds_no_old_snapshot(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old snapshot would keep vacuum from cleaning anywhere in the database."""
    monkeypatch.setattr(wake, "PING_S", 0.05)
    listener = Listener(url)
    task = asyncio.create_task(listener.run())
    await listener.connected.wait()
    for _ in range(20):
        rows = await database.fetch(
            "SELECT state, backend_xmin FROM pg_stat_activity WHERE datname = current_database()"
            " AND query IN ('LISTEN \"headgate\"', 'LISTEN headgate', 'SELECT 1') AND pid <> pg_backend_pid()"
        )
        assert rows
        assert all(row["backend_xmin"] is None for row in rows if row["state"] == "idle")
        assert all(row["state"] != "idle in transaction" for row in rows)
        await asyncio.sleep(0.02)
    task.cancel()


# Away.


async def test_a_restarting_database_causes_a_quiet_wait_and_no_storm(tmp_path: Path) -> None:
    """While the server is away and then starts up, a loop that polls connects about as often as it polls."""
    from headgate.store.nodes import Nodes

    server = await asyncio.to_thread(EmbeddedServer.join, tmp_path / "own")
    try:
        async with proxied(server.url) as (proxy, through):
            database = await Database.open(through)
            await migrate(database)
            nodes = Nodes(database)
            pid = int((tmp_path / "own/postgres/data/postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGQUIT)  # Immediate: the next start is in recovery.
            proxy.cut()
            before, failures = proxy.accepted, 0
            for _ in range(10):
                try:
                    await nodes.observe()
                except StoreError:
                    failures += 1
                await asyncio.sleep(0.05)
            assert failures == 10
            assert proxy.accepted - before <= 20
            again = await asyncio.to_thread(EmbeddedServer.join, tmp_path / "own")

            async def answers() -> bool:
                try:
                    return await nodes.observe() == ([], set())
                except StoreError:
                    return False

            await until(answers)
            again.leave()
            await database.close()
    finally:
        server.leave()


async def test_a_database_that_refuses_everything_is_a_store_error(url: str) -> None:
    async with proxied(url) as (proxy, through):
        database = await Database.open(through)
        proxy.refuse = True
        proxy.cut()
        for _ in range(3):
            with pytest.raises(StoreError, match="did not answer"):
                await database.fetch("SELECT 1")
        proxy.refuse = False
        assert await database.fetchval("SELECT 1") == 1
        await database.close()


# A pooler.


@needs_pooler
async def test_a_pooler_that_cannot_listen_still_works_by_polling(url: str, tmp_path: Path) -> None:
    """Behind pgbouncer in transaction mode LISTEN hears nothing; reads and changes work, and polling finds them."""
    from headgate.store.datasources import Datasources

    async with pooled(url, tmp_path) as through:
        database = await Database.open(through)
        assert await migrate(database) == []
        store = Datasources(database)
        async with store.change("me") as change:
            await change.create("orders", True)
        entries = await store.entries_since(0)
        assert [entry.name for entry in entries] == ["orders"]
        await asyncio.gather(*(store.entries_since(0) for _ in range(50)))
        await database.close()


async def test_a_session_that_cannot_be_had_leaves_nothing_for_the_collector() -> None:
    """Each held a TLS context in a circle of frames and errors: a node whose database was away grew by megabytes."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://u@127.0.0.1:{nobody.getsockname()[1]}/x"
        gc.collect()
        gc.disable()
        try:
            before = _tls_contexts()
            for _ in range(3):
                with pytest.raises(StoreError):
                    await connect(url)
            assert _tls_contexts() == before
        finally:
            gc.enable()


def _tls_contexts() -> int:
    return sum(isinstance(one, ssl.SSLContext) for one in gc.get_objects())

"""The registry at several hosts: real primaries and standbys, killed, promoted, left alive by mistake, and silent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headgate.core.hosts import survey
from headgate.errors import ConfigError, StoreError
from headgate.store import hosts, wake
from headgate.store.database import Database, connect
from headgate.store.lineage import Witness
from headgate.store.migrate import migrate
from headgate.store.wake import Listener, Waker
from headgate.testing.servers import Server, Servers, black_hole, free_port, url_of
from tests.waiting import until

PORT = "SELECT current_setting('port')::int"
SLEEPERS = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'"
AWAY = "127.0.0.1:{}"


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


@pytest.fixture(scope="module")
def pair(servers: Servers) -> tuple[Server, Server]:
    """A primary and a standby that stay what they are."""
    primary = servers.make()
    return primary, servers.standby_of(primary)


@pytest.fixture
def primary(servers: Servers) -> Iterator[Server]:
    primary = servers.make()
    yield primary
    primary.kill()


@pytest.fixture
def standby(servers: Servers, primary: Server) -> Iterator[Server]:
    standby = servers.standby_of(primary)
    yield standby
    standby.kill()


async def port_of(url: str) -> int:
    """Where a new session ends up."""
    session = await connect(url)
    try:
        return int(await session.fetchval(PORT))
    finally:
        session.terminate()


async def goes_on_at(database: Database, server: Server) -> None:
    """Until the pool's next statement is answered by this server; sessions with another one may have to end first."""

    async def is_there() -> bool:
        try:
            return bool(await database.fetchval(PORT) == server.port)
        except StoreError:
            return False

    await until(is_there)


async def refusal(database: Database) -> str:
    """What the pool says when it finds no server; the first statement may only find that its session has ended."""
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            await database.fetchval(PORT)
    return caught.value.message


# Which host is used.


async def test_a_standby_a_dead_host_and_a_silent_one_do_not_hold_up_the_primary(
    pair: tuple[Server, Server],
) -> None:
    primary, standby = pair
    with black_hole() as silent:
        url = url_of(standby, silent, AWAY.format(free_port()), primary)
        database = await Database.open(url)
        assert await asyncio.gather(*(database.fetchval(PORT) for _ in range(8))) == [primary.port] * 8
        await database.close()
        assert await port_of(url) == primary.port


async def test_the_servers_tell_what_they_are(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    database = await Database.open(url_of(standby, primary))
    lines, wrong = survey(await database.survey_hosts())
    assert lines == f"{standby.address} is a standby · {primary.address} is the primary, timeline 1"
    assert not wrong
    await database.close()


async def test_when_the_primary_dies_the_pool_and_the_listener_go_on_with_the_promoted_one(
    primary: Server, standby: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "PING_S", 0.1)
    url, heard = url_of(primary, standby), asyncio.Event()
    database, listener = await Database.open(url), Listener(url)
    listener.on("registry", lambda number: heard.set())
    listening = asyncio.create_task(listener.run())
    await listener.connected.wait()
    await asyncio.to_thread(primary.kill)
    assert f"{primary.address} is away (refused) · {standby.address} is a standby" in await refusal(database)
    await asyncio.to_thread(standby.promote)
    assert await database.fetchval(PORT) == standby.port
    await until(listener.connected.is_set)
    heard.clear()
    Waker(database).wake("registry")
    await heard.wait()
    listening.cancel()
    await database.close()


async def test_sessions_that_hang_at_an_old_primary_end_when_another_session_meets_the_new_one(
    primary: Server, standby: Server
) -> None:
    url = url_of(primary, standby)
    database = await Database.open(url)
    hanging = asyncio.create_task(database.fetchval("SELECT pg_sleep(60)"))
    await until(
        lambda: (
            primary.query("SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep' AND state = 'active'") != "1"
        )
    )
    primary.pause()
    await asyncio.to_thread(standby.promote)
    assert await port_of(url) == standby.port
    with pytest.raises(StoreError):
        await hanging
    assert await database.fetchval(PORT) == standby.port
    primary.go_on()
    await database.close()


async def test_a_watch_finds_a_newer_primary_while_the_old_one_still_answers(
    primary: Server, standby: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "LOOK_S", 0.05)
    url = url_of(primary, standby)
    database = await Database.open(url)
    assert database.has_several_hosts
    watching = asyncio.create_task(database.watch_hosts())
    assert await database.fetchval(PORT) == primary.port
    await asyncio.to_thread(standby.promote)

    await goes_on_at(database, standby)
    watching.cancel()
    await database.close()


# Which is refused.


async def test_an_old_primary_that_lives_on_is_not_used_next_to_a_promoted_one_nor_when_that_is_gone(
    primary: Server, standby: Server
) -> None:
    url, witness = url_of(primary, standby), Witness()
    database = await Database.open(primary.url)
    await migrate(database)
    await database.close()
    standby.wait_until_caught_up(primary)
    standby.promote()
    for either in (url, url_of(standby, primary)):
        assert await port_of(either) == standby.port
    standby.execute("UPDATE headgate.registry SET lineage = headgate.lineage()")
    database = await Database.open(url, check=witness.check)
    assert await database.fetchval(PORT) == standby.port
    standby.kill()
    assert "the database is on timeline 1, and 2 has been seen" in await refusal(database)
    await database.close()


async def test_without_a_host_that_fits_each_has_its_line_and_no_password_is_in_it(
    pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "CHOOSE_S", 3.0)  # The others have that long, on a busy machine.
    primary, standby = pair
    primary.execute("CREATE ROLE reader LOGIN; ALTER ROLE reader SET default_transaction_read_only = on")
    standby.wait_until_caught_up(primary)
    with black_hole() as silent:
        dead = AWAY.format(free_port())
        url = url_of(dead, silent, primary, standby, "no.such.host.invalid", user="reader:pass-word")
        with pytest.raises(StoreError) as caught:
            await connect(url)
    first, *lines, last = caught.value.message.split(" · ")
    assert first.endswith(f"{dead} is away (refused)")
    assert lines == [f"{silent} does not answer", f"{primary.address} is read-only", f"{standby.address} is a standby"]
    assert last.startswith("no.such.host.invalid is away (")
    assert "pass-word" not in caught.value.message


async def test_a_database_that_no_host_has_is_told_as_a_mistake_in_the_url(pair: tuple[Server, Server]) -> None:
    with pytest.raises(ConfigError, match="no_such"):
        await connect(url_of(*pair, database="no_such"))
    with pytest.raises(ConfigError, match="no_such"):
        await Database.open(url_of(*pair, database="no_such"))
    with pytest.raises(ConfigError, match="17"):
        await connect(url_of(*[f"h{number}" for number in range(17)]))


# Other ways to write it, and other servers.


async def test_of_two_installations_the_higher_timeline_is_used(servers: Servers, pair: tuple[Server, Server]) -> None:
    other = servers.make()
    promoted = servers.restore(servers.back_up(other))
    for url in (url_of(pair[0], promoted), url_of(promoted, pair[0])):
        assert await port_of(url) == promoted.port


async def test_hosts_may_stand_in_the_query_and_be_sockets(pair: tuple[Server, Server]) -> None:
    query = f"host=/nowhere,127.0.0.1,127.0.0.1&port=5432,{free_port()},{pair[0].port}"
    assert await port_of(f"postgresql://headgate@/headgate?{query}") == pair[0].port


async def test_a_user_without_rights_can_tell_and_a_server_that_does_not_tell_is_used_all_the_same(
    pair: tuple[Server, Server],
) -> None:
    primary, standby = pair
    primary.execute("CREATE ROLE plain LOGIN")
    primary.execute("CREATE DATABASE silent")
    standby.wait_until_caught_up(primary)
    url, alone = (url_of(*some, database="silent", user="plain") for some in ([standby, primary], [primary]))
    assert await port_of(url) == await port_of(alone) == primary.port
    primary.execute("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC", "silent")
    assert await port_of(url) == await port_of(alone) == primary.port
    assert await port_of(f"{url}?application_name=nothing_is_known_of") == primary.port

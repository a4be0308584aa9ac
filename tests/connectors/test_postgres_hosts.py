"""PostgreSQL sinks, readers and writers with several hosts, and how a database is known wherever it moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from headgate.connectors.api import Outgoing, Progress, identity_of, mark_of, other_names
from headgate.connectors.api.bulk import StorageGone
from headgate.connectors.guard import Bound, Guard, OutOfReach
from headgate.connectors.plugins import open_reader, open_writer
from headgate.connectors.postgres.session import address_of, where_is
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.core.reach import Reach, rule_from_text
from headgate.errors import NotConnected
from headgate.testing.factories import make_context, make_grant
from headgate.testing.servers import Server, Servers, black_hole, free_port, url_of


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


@pytest.fixture(scope="module")
def pair(servers: Servers) -> tuple[Server, Server]:
    """A primary and a standby that stay what they are."""
    primary = servers.make()
    standby = servers.standby_of(primary)
    primary.execute("CREATE TABLE numbers AS SELECT id FROM generate_series(1, 100) id")
    return primary, standby


def sink_at(url: str, table: str = "target", guard: Guard | None = None) -> PostgresSink:
    options = PostgresOptions(url=url, table=table)
    return PostgresSink(options, make_context(guard=guard) if guard else make_context())


def batch(first: int, commits: int) -> Outgoing:
    return Outgoing([{"id": id} for id in range(first, first + 5)], Progress(0, commits, first + 4))


# Several hosts.


async def test_a_sink_goes_on_at_the_promoted_standby_where_it_stood(servers: Servers) -> None:
    primary = servers.make()
    standby = servers.standby_of(primary, synchronous=True)
    sink = sink_at(url := url_of(standby, primary))
    await sink.open(make_grant(epoch=1))
    await sink.write(batch(1, 1))
    mark = await sink.mark()
    await asyncio.to_thread(primary.kill)
    with pytest.raises(NotConnected):
        await sink.write(batch(6, 2))
    with pytest.raises(NotConnected, match=r"is a standby · .* is away \(refused\)"):
        await sink.write(batch(6, 2))
    await sink.close()
    await asyncio.to_thread(standby.promote)
    successor = sink_at(url)
    assert await successor.open(make_grant(epoch=2)) == Progress(0, 1, 5)
    await successor.write(batch(6, 2))
    assert await successor.mark() == mark
    await successor.close()
    assert standby.query("SELECT string_agg(id::text, ' ' ORDER BY id) FROM target") == "1 2 3 4 5 6 7 8 9 10"
    await asyncio.to_thread(primary.start)  # It has come back, and does not know that its time is over.
    late = sink_at(url)
    assert await late.open(make_grant(epoch=3)) == Progress(0, 2, 10)
    await late.close()
    await asyncio.to_thread(standby.kill)
    with pytest.raises(NotConnected, match=r"is away \(refused\) · .* is timeline 1, older than 2"):
        await sink_at(url).check()
    primary.kill()


async def test_a_reader_and_a_writer_find_the_primary(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    with black_hole() as silent:
        url = url_of(silent, standby, primary)
        reader, writer = open_reader(url), open_writer(url)
        assert "numbers" in await reader.tables()
        assert await writer.look("numbers") is not None
        await reader.close()
        await writer.close()


async def test_a_reader_says_of_each_host_why_it_is_not_used(pair: tuple[Server, Server]) -> None:
    dead = f"127.0.0.1:{free_port()}"
    reader = open_reader(url_of(dead, pair[1], user="headgate:pass-word"))
    with pytest.raises(StorageGone) as caught:
        await reader.tables()
    assert f"{dead} is away (refused) · {pair[1].address} is a standby" in caught.value.message
    assert "pass-word" not in caught.value.message


async def test_every_host_goes_past_the_guard(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    url = url_of(standby, primary)

    def guard(*servers: Server) -> Guard:
        return Guard((Bound(Reach((), tuple(rule_from_text(one.address) for one in servers), ())),))

    await sink_at(url, guard=guard(primary)).check()
    with pytest.raises(NotConnected, match=r"is a standby .* no address that may be reached"):
        await sink_at(f"{url}?application_name=b", guard=guard(standby)).check()
    with pytest.raises(OutOfReach):
        await sink_at(f"{url}?application_name=c", guard=guard()).check()


async def test_a_copy_with_a_newer_timeline_that_another_url_names_has_nothing_to_do_with_it(
    servers: Servers, pair: tuple[Server, Server]
) -> None:
    """It has the system identifier of its original."""
    primary, standby = pair
    copy = servers.restore(servers.back_up(primary))
    assert (copy.timeline, primary.timeline) == (2, 1)
    await sink_at(url_of(copy, f"127.0.0.1:{free_port()}")).check()
    await sink_at(f"{url_of(standby, primary)}?application_name=d").check()


def test_people_are_told_the_hosts_and_nothing_else_of_the_url() -> None:
    url = "postgresql://ada:pass-word@a:1,b/db?sslmode=require"
    assert (where_is(url), address_of(url)) == ("a:1,b/db", "a:1,b")


@pytest.mark.parametrize("url", ["a:1,b:x", "a:1,b:pass/word@c", ",", ",".join(f"h{n}" for n in range(17))])
def test_a_list_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PostgresOptions(url=f"postgresql://ada:pass-word@{url}/db", table="t")
    assert "pass" not in str(caught.value).replace("in a password as", "")


# What a database is known by.


async def test_a_database_keeps_one_mark_however_many_open_it_at_once(empty_url: str) -> None:
    sinks = [sink_at(empty_url) for _ in range(8)]
    assert await sinks[0].mark() is None
    await asyncio.gather(*(sink.open(make_grant(f"s{number}")) for number, sink in enumerate(sinks)))
    marks = {await sink.mark() for sink in sinks}
    assert len(marks) == 1
    assert None not in marks
    await asyncio.gather(*(sink.close() for sink in sinks))


async def test_to_ask_for_the_mark_makes_nothing_and_keeps_nothing(empty_url: str) -> None:
    sink = sink_at(empty_url)
    assert await sink.mark() is None
    await sink.check()
    assert await sink.mark() is None


def options(url: str, table: str = "t", **more: Any) -> PostgresOptions:
    return PostgresOptions(url=url, table=table, **more)


def test_a_list_of_hosts_has_the_names_of_each_host_and_its_mark_does_not_depend_on_them() -> None:
    both = options("postgresql://u:p@a:1,b/db?sslmode=require")
    each = [options(f"postgresql://u:p@{host}/db?sslmode=require") for host in ("a:1", "b")]
    assert other_names("postgres", both) == tuple(identity_of("postgres", one) for one in each)
    assert [other_names("postgres", one) for one in each] == [(), ()]
    assert len({mark_of("postgres", one, "id") for one in (both, *each)}) == 1
    assert mark_of("postgres", both, "id") != mark_of("postgres", both, "other")
    assert mark_of("postgres", both, "id") != mark_of("postgres", options("postgresql://a/db", "u"), "id")


def test_names_are_what_they_were_in_earlier_releases() -> None:
    """Rows have them. A name that changes begins a source anew."""
    assert identity_of("postgres", options("postgresql://u:p@db.example.org/db", "orders")) == "7f1e53972ce0f1ec"

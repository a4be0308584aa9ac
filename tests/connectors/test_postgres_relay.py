"""COPY that is passed on without being looked at: whole whatever the rows are, or an error."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import uvloop

from headgate.connectors.api.bulk import PLAIN, Language, Pieces, StorageError, StorageGone
from headgate.connectors.postgres import relay
from headgate.connectors.postgres.relay import copy_in, copy_out
from headgate.connectors.postgres.session import connect
from headgate.core.chunks import Range
from headgate.store.embedded import EmbeddedServer
from tests.connectors.mariadb import make_certificate
from tests.connectors.postgres_copy import Side, emptied, job_for, make_databases, reading, writing
from tests.proxy import proxied
from tests.waiting import until

INTO = "COPY t (id, v) FROM STDIN (FORMAT binary)"
SHAPE = "CREATE TABLE t (id bigint PRIMARY KEY, v bytea)"
HASHED = "SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM t"
END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the")


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    """Each has transports of its own."""
    return request.param()


@pytest.fixture(scope="module")
def urls(server: EmbeddedServer) -> list[str]:
    return asyncio.run(make_databases(server.url))


@pytest.fixture
async def source(urls: list[str]) -> AsyncIterator[Side]:
    async with emptied(urls[0]) as side:
        await side.sql.execute(SHAPE)
        yield side


@pytest.fixture
async def target(urls: list[str]) -> AsyncIterator[Side]:
    async with emptied(urls[1]) as side:
        await side.sql.execute(SHAPE)
        yield side


class Sessions:
    """One that reads and one that writes, as a worker has them."""

    def __init__(self, reads: Any, writes: Any) -> None:
        self.reads = reads
        self.writes = writes

    async def copy(self, query: str = "SELECT id, v FROM t") -> int:
        """From the one to the other."""
        async with copy_out(self.reads, query) as pieces:
            return await copy_in(self.writes, INTO, pieces, in_messages=True)


@pytest.fixture
async def sessions(source: Side, target: Side) -> AsyncIterator[Sessions]:
    both = Sessions(await connect(source.url), await connect(target.url))
    yield both
    for each in (both.reads, both.writes):
        each.terminate()


async def fill(side: Side, rows: int, size: int = 100) -> None:
    """Rows of about this many bytes."""
    value = f"decode(repeat(md5(n::text), {max(1, size // 16)}), 'hex')"
    await side.sql.execute(f"INSERT INTO t SELECT n, {value} FROM generate_series(1, {rows}) AS n")


# What arrives.


@pytest.mark.parametrize(("rows", "size"), [(0, 0), (1, 16), (3, 100), (50_000, 100), (300, 100_000), (2, 20_000_000)])
async def test_all_rows_arrive_and_both_sessions_go_on(
    sessions: Sessions, source: Side, target: Side, rows: int, size: int
) -> None:
    await fill(source, rows, size)
    assert await sessions.copy() == rows
    assert await target.rows(HASHED) == await source.rows(HASHED)
    assert await sessions.reads.fetchval("SELECT count(*) FROM t") == rows
    await sessions.writes.execute("TRUNCATE t")
    assert await sessions.copy() == rows


async def test_rows_that_look_like_the_end_of_a_copy_are_rows(
    sessions: Sessions, source: Side, target: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "QUIET_S", 0.2)  # Other rows follow well before.
    error = b"E\x00\x00\x00\x0eSERROR\x00\x00"
    ends = [b"c\x00\x00\x00\x04", b"c\x00\x00\x00\x04C\x00\x00\x00\x0bCOPY 5\x00", b"Z\x00\x00\x00\x05T", error]
    values = [*ends, b"".join(ends), error + ends[2], *(bytes(1000 * n) + error + ends[2] for n in range(200))]
    await source.sql.executemany("INSERT INTO t VALUES ($1, $2)", list(enumerate(values)))
    assert await sessions.copy() == len(values)
    assert await target.rows(HASHED) == await source.rows(HASHED)


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


class Wire(asyncio.Transport):
    """A connection whose server is the test."""

    def __init__(self) -> None:
        super().__init__()
        self._transport = self
        self.protocol: Any = asyncio.Protocol()
        self.is_reading_now = True
        self.ended = False

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def terminate(self) -> None:
        self.ended = True


async def played(stream: list[bytes], monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, int]:
    """What comes out if the server's bytes arrive in these parts."""
    monkeypatch.setattr(relay.secrets, "token_hex", lambda size: "f" * 2 * size)
    wire, taken, rows = Wire(), [], 0
    async with copy_out(wire, "SELECT") as pieces:
        for part in stream:
            wire.protocol.data_received(part)
        async for piece in pieces:
            taken += piece.data
            rows += piece.rows
    assert wire.is_reading_now
    assert not wire.ended
    return b"".join(taken), rows


async def test_it_does_not_matter_where_reads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HELD", 200)
    word = b"f" * 32
    rows = b"".join(message(b"d", bytes([n % 256]) * (n * 7 % 90)) for n in range(60))
    answer = message(b"T", b"\x00\x01?column?\x00" + bytes(18)) + message(b"D", b"\x00\x01\x00\x00\x00\x20" + word)
    stream = message(b"N", b"SNOTICE\x00\x00") + message(b"H", b"\x01\x00\x02\x00\x01\x00\x01") + rows + message(b"c")
    stream += message(b"C", b"COPY 60\x00") + answer + message(b"C", b"SELECT 1\x00") + message(b"Z", b"T")
    for at in range(len(stream)):
        assert await played([stream[:at], stream[at:]], monkeypatch) == (rows, 60)
    for seed in range(50):
        places = sorted(random.Random(seed).sample(range(len(stream)), 20))
        parts = [stream[begin:end] for begin, end in zip([0, *places], [*places, len(stream)], strict=True)]
        assert await played(parts, monkeypatch) == (rows, 60), seed


async def test_a_reader_waits_for_whoever_writes(source: Side, sessions: Sessions) -> None:
    await fill(source, 200, 100_000)
    async with copy_out(sessions.reads, "SELECT id, v FROM t") as pieces:
        first = await anext(pieces)
        await asyncio.sleep(0.2)
        waiting = sessions.reads._transport.get_protocol()._ready
        assert len(waiting) <= relay.AHEAD
        size = first.size + sum(piece.size for piece in waiting)
        assert size < 4_000_000, "most of the table is still at the server"
        assert size + sum([piece.size async for piece in pieces]) > 20_000_000


async def test_a_copy_may_go_through_tcp_and_tls(source: Side, target: Side, tmp_path: Path) -> None:
    make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    await fill(source, 20_000)
    for tls in (None, context):
        async with proxied(source.url, tls) as (_, from_url), proxied(target.url, tls) as (_, to_url):
            both = Sessions(await connect(from_url), await connect(to_url))
            assert await both.copy() == 20_000
            assert await target.rows(HASHED) == await source.rows(HASHED)
            await both.writes.execute("TRUNCATE t")
            await asyncio.gather(both.reads.close(), both.writes.close())


# What goes wrong.


async def test_a_source_that_gives_up_says_why_and_nothing_is_written(
    sessions: Sessions, source: Side, target: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "QUIET_S", 0.1)
    await fill(source, 20_000)
    late, early = (f"SELECT id + 0 / (id - {last}), v FROM t" for last in (15_000, 1))
    for query in ("SELECT id, v FROM nothing", late, early):
        both = Sessions(await connect(source.url), await connect(target.url))
        await both.writes.execute("BEGIN")
        with pytest.raises(asyncpg.PostgresError, match=r'division by zero|"nothing" does not exist'):
            await both.copy(query)
        assert both.reads.is_closed()
        assert both.writes.is_closed()
    assert await target.values("SELECT count(*) FROM t") == [0]


async def test_a_target_that_refuses_a_row_says_why(sessions: Sessions, source: Side, target: Side) -> None:
    await fill(source, 20_000)
    await target.sql.execute("INSERT INTO t VALUES (15000)")
    with pytest.raises(asyncpg.UniqueViolationError, match="t_pkey"):
        await sessions.copy()
    assert sessions.writes.is_closed()
    assert await target.values("SELECT count(*) FROM t") == [1]


async def test_a_copy_that_is_not_accepted_says_why(sessions: Sessions) -> None:
    async def nothing() -> Pieces:
        raise AssertionError("nobody asks for rows")
        yield

    with pytest.raises(asyncpg.UndefinedColumnError):
        await copy_in(sessions.writes, "COPY t (x) FROM STDIN", nothing(), in_messages=False)


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_server_that_ends_the_session_is_gone(side: str, source: Side, target: Side) -> None:
    await fill(source, 100, 1_000_000)
    job = await job_for(source, "t", target)
    async with reading(source) as reader, writing(target) as writer:
        into = await writer.prepare(job)
        ended = source if side == "source" else target
        chunk = Range(None, ("100",))

        async def cut_off() -> Pieces:
            count = 0
            async for piece in rows:
                yield piece
                if (count := count + 1) == 3:
                    await ended.sql.execute(END_OTHERS)

        async with aclosing(reader.query(job.source, chunk, Language.COPY, PLAIN)) as rows:  # type: ignore[type-var]
            with pytest.raises(StorageGone, match=r"administrator|broke off|closed|reset|Broken pipe"):
                await writer.write(job, into, chunk, Language.COPY, cut_off())
        assert await target.values("SELECT count(*) FROM t") == [0]
        pieces = reader.query(job.source, chunk, Language.COPY, PLAIN)
        assert await writer.write(job, into, chunk, Language.COPY, pieces) == 100


async def test_a_connection_that_is_cut_is_gone(source: Side, target: Side) -> None:
    await fill(source, 100, 1_000_000)
    for cut_source in (True, False):
        async with proxied(source.url) as (first, from_url), proxied(target.url) as (second, to_url):
            both = Sessions(await connect(from_url), await connect(to_url))
            proxy = first if cut_source else second
            copying = asyncio.ensure_future(both.copy())
            query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%'"
            await until(lambda query=query: source.values(query), "a copy runs")
            proxy.cut()
            with pytest.raises((OSError, asyncpg.PostgresError)):
                await copying
    assert await target.values("SELECT count(*) FROM t") == [0]


async def test_pieces_that_fail_leave_nothing_at_the_target(sessions: Sessions, target: Side) -> None:
    async def broken() -> Pieces:
        raise StorageError("the source is broken")
        yield

    with pytest.raises(StorageError, match="broken"):
        await copy_in(sessions.writes, INTO, broken(), in_messages=False)
    assert sessions.writes.is_closed()
    assert await target.values("SELECT count(*) FROM t") == [0]


async def test_a_session_that_has_ended_is_not_waited_for(sessions: Sessions) -> None:
    sessions.reads.terminate()
    with pytest.raises(OSError, match="closed"):
        await sessions.copy()


def test_the_last_error_is_found_by_its_length() -> None:
    said = message(b"E", b"SFATAL\x00C57P01\x00Mterminating\x00\x00")
    for before in (b"", b"E", b"EEEE\x00\x00\x00", b"E" * 100 + bytes(9)):
        data = before + said
        assert isinstance(relay._last_error(data, len(data)), asyncpg.AdminShutdownError)
    assert isinstance(relay._last_error(b"E" * 40, 40), OSError)
    assert re.search("broke off", str(relay._last_error(b"", 0)))

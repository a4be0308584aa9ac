"""Redis: streams and lists are read without a gap, batches are written with their position, whatever is in the way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import msgspec
import pytest
import yaml

from headgate.connectors import plugins
from headgate.connectors.api import Batch, Outgoing, Position, Progress, Unreadable
from headgate.connectors.guard import Bound, Guard, OutOfReach
from headgate.connectors.redis import stream_source
from headgate.connectors.redis.ids import tell_move
from headgate.connectors.redis.list_source import RedisListSource
from headgate.connectors.redis.options import RedisSinkOptions, RedisSourceOptions, next_to, tag_of
from headgate.connectors.redis.session import probe
from headgate.connectors.redis.sink import RedisSink
from headgate.connectors.redis.stream_source import RedisStreamSource
from headgate.core.reach import Reach
from headgate.errors import BadRecords, Cause, ConfigError, ConnectorError, Fenced, NotConnected, RetryLater
from headgate.testing.contract import ForgettingSinkContract, SourceContract
from headgate.testing.contract.patience import soon
from headgate.testing.factories import INSTALLATION, make_context, make_grant
from headgate.testing.servers import free_port
from tests.connectors.mariadb import make_certificate
from tests.connectors.redis_server import RedisServer
from tests.proxy import Proxy


@pytest.fixture(scope="module")
def broker() -> Iterator[RedisServer]:
    made = RedisServer()
    yield made
    made.stop()


def make_source(broker: RedisServer, **options: Any) -> Any:
    context = make_context()
    made = RedisSourceOptions(**{"url": broker.url, **options})
    return plugins.get("redis").source.build(made, context)  # type: ignore[union-attr]


def make_sink(broker: RedisServer, **options: Any) -> RedisSink:
    return RedisSink(RedisSinkOptions(**{"url": broker.url, **options}), make_context())


@asynccontextmanager
async def opened(source: Any, position: Position = None) -> AsyncIterator[Any]:
    try:
        await soon(source.open(position))
        yield source
    finally:
        await source.close()


async def read(source: Any, count: int) -> list[Any]:
    """This many records, at least."""
    found: list[Any] = []
    while len(found) < count:
        found += (await soon(source.read())).records
    return found


def add(broker: RedisServer, key: str, *numbers: int) -> None:
    with broker.client() as client, client.pipeline() as pipe:
        for number in numbers:
            pipe.xadd(key, {"n": number}, id=f"{number}-0")
        pipe.execute()


def numbers_of(records: list[Any]) -> list[int]:
    return [int(record["n"]) for record in records]


# The contract.


class TestRedisStreamSource(SourceContract):
    """Entries with fields, seven at a time."""

    ends = False
    options: ClassVar[dict[str, Any]] = {"batch": 7}

    @pytest.fixture(autouse=True)
    def data(self, broker: RedisServer) -> None:
        self.server, self.key = broker, broker.key("s")
        with broker.client() as client, client.pipeline() as pipe:
            for record in self.expected():
                pipe.xadd(self.key, record)
            pipe.execute()

    def make_source(self) -> Any:
        return make_source(self.server, stream=self.key, **self.options)

    def expected(self) -> list[Any]:
        return [{"id": str(i), "text": "x" * (i * 37 % 300)} for i in range(40)]


class TestRedisSmallSource(TestRedisStreamSource):
    """The same where the reply to a whole batch is larger than what is taken: each read is cut off and made again."""

    options: ClassVar[dict[str, Any]] = {"batch": 40, "batch_bytes": 100, "max_message_bytes": 400}

    def expected(self) -> list[Any]:
        return super().expected()[:9]


class TestRedisListSource(SourceContract):
    """Elements of JSON, seven at a time."""

    ends = False

    @pytest.fixture(autouse=True)
    def data(self, broker: RedisServer) -> None:
        self.server, self.key = broker, broker.key("l")
        self._fill()

    def _fill(self) -> None:
        with self.server.client() as client:
            client.delete(self.key, *client.keys(f"headgate:{{{self.key}}}:*"))
            client.rpush(self.key, *(msgspec.json.encode(record) for record in self.expected()))

    def make_source(self) -> Any:
        return make_source(self.server, list=self.key, batch=7)

    def expected(self) -> list[Any]:
        return [{"id": i, "text": "x" * (i * 37 % 300)} for i in range(40)]


class TestRedisSink(ForgettingSinkContract):
    """Into a stream."""

    @pytest.fixture(autouse=True)
    def place(self, broker: RedisServer) -> None:
        self.server, self.key = broker, broker.key("out")

    def make_sink(self) -> RedisSink:
        return make_sink(self.server, stream=self.key, format="json")

    def make_refused_records(self) -> list[dict[str, Any]] | None:
        return [*self.make_records(10, 9), {"id": 19, "text": "\ud800"}]

    async def read_back(self) -> list[dict[str, Any]] | None:
        with self.server.client() as client:
            found = [msgspec.json.decode(fields[b"body"]) for _, fields in client.xrange(self.key)]
        return sorted(found, key=lambda record: record["id"])


class TestRedisListSink(TestRedisSink):
    """Into a list."""

    def make_sink(self) -> RedisSink:
        return make_sink(self.server, list=self.key)

    async def read_back(self) -> list[dict[str, Any]] | None:
        with self.server.client() as client:
            return [msgspec.json.decode(one) for one in client.lrange(self.key, 0, -1)]


class TestRedisKeysSink(TestRedisSink):
    """One hash for each record."""

    def make_sink(self) -> RedisSink:
        return make_sink(self.server, keys=f"{self.key}:", format="fields")

    async def read_back(self) -> list[dict[str, Any]] | None:
        with self.server.client() as client:
            found = [client.hgetall(key) for key in client.keys(f"{self.key}:*")]
        return sorted(
            ({"id": int(one[b"id"]), "text": one[b"text"].decode()} for one in found), key=lambda record: record["id"]
        )


# Streams.


async def test_a_position_is_an_id_and_may_be_set_by_hand(broker: RedisServer) -> None:
    key = broker.key()
    add(broker, key, *range(1, 10))
    async with opened(make_source(broker, stream=key), "7-0") as source:
        batch: Batch = await soon(source.read())
        assert numbers_of(batch.records) == [8, 9]
        assert batch.position == {"id": "9-0", "added": 9} or batch.position == {"id": "9-0"}
        assert batch.meta == [{"stream": key, "id": "8-0"}, {"stream": key, "id": "9-0"}]
        assert batch.place is not None
        assert batch.place(1) == f"stream {key}, entry 9-0"
    for wrong in ("7", 7, {"id": "x"}, {"id": "7-0", "added": -1}):
        with pytest.raises(ConnectorError) as error:
            await make_source(broker, stream=key).open(wrong)
        assert error.value.cause is Cause.CONFIG


async def test_entries_removed_before_they_were_read_stop_the_stream(broker: RedisServer) -> None:
    key = broker.key()
    add(broker, key, *range(1, 21))
    async with opened(make_source(broker, stream=key, batch=5)) as source:
        position = (await soon(source.read())).position
    with broker.client() as client:
        client.xtrim(key, minid="6-0", approximate=False)
        async with opened(make_source(broker, stream=key, batch=5), position) as source:
            assert numbers_of((await soon(source.read())).records) == [6, 7, 8, 9, 10]  # Nothing was lost so far.
            client.xtrim(key, minid="14-0", approximate=False)  # While it is open.
            with pytest.raises(ConnectorError, match="3 entries after 10-0 gone: removed before being read") as error:
                await soon(source.read())
            assert error.value.cause is Cause.CONFIG
            assert "go_on" in error.value.hint
    async with opened(make_source(broker, stream=key, missing="go_on"), position) as source:
        assert numbers_of(await read(source, 7)) == list(range(14, 21))


async def test_a_stream_that_was_read_to_its_end_may_be_emptied(broker: RedisServer) -> None:
    key = broker.key()
    add(broker, key, 1, 2, 3)
    async with opened(make_source(broker, stream=key)) as source:
        position = (await soon(source.read())).position
    with broker.client() as client:
        client.xtrim(key, maxlen=0, approximate=False)
        async with opened(make_source(broker, stream=key), position) as source:
            add(broker, key, 4)
            assert numbers_of(await read(source, 1)) == [4]
        add(broker, key, 5)
        client.xtrim(key, maxlen=0, approximate=False)
    with pytest.raises(ConnectorError, match="2 entries after 3-0 gone"):
        await make_source(broker, stream=key).open(position)


async def test_a_position_without_a_number_is_not_trusted_after_a_trim(broker: RedisServer) -> None:
    key = broker.key()
    add(broker, key, *range(1, 11))
    with broker.client() as client:
        client.xtrim(key, minid="5-0", approximate=False)
    with pytest.raises(ConnectorError, match="may be gone"):
        await make_source(broker, stream=key).open("3-0")
    async with opened(make_source(broker, stream=key), "5-0") as source:
        assert numbers_of(await read(source, 5)) == [6, 7, 8, 9, 10]


async def test_a_stream_that_was_made_again_is_read_from_its_beginning_if_somebody_said_so(broker: RedisServer) -> None:
    key = broker.key()
    add(broker, key, 1, 2)
    with pytest.raises(ConnectorError, match="made again since entry 9-0"):
        await make_source(broker, stream=key).open("9-0")
    async with opened(make_source(broker, stream=key, missing="go_on"), "9-0") as source:
        assert numbers_of(await read(source, 2)) == [1, 2]


async def test_an_unknown_stream_is_named_with_one_that_is_like_it(broker: RedisServer) -> None:
    key = broker.key("shipments")
    add(broker, key, 1)
    with pytest.raises(ConnectorError, match="has no stream") as error:
        await make_source(broker, stream=key[:-1] + "x").check()
    assert error.value.cause is Cause.CONFIG
    assert key in error.value.hint
    async with opened(make_source(broker, stream=(absent := broker.key()), missing="go_on")) as source:
        reading = asyncio.create_task(source.read())
        await asyncio.sleep(0)
        add(broker, absent, 1)
        assert numbers_of((await soon(reading)).records) == [1]


async def test_what_cannot_be_read_is_put_aside_and_the_rest_goes_on(broker: RedisServer) -> None:
    key = broker.key()
    with broker.client() as client:
        for fields in (
            {"body": '{"n": 1}'},
            {"body": "{"},
            {"other": "x"},
            {"a": "1", "body": '{"n": 2}'},
            {"body": ""},
        ):
            client.xadd(key, fields)
        client.xadd(key, {"body": "x" * 5000})
        client.xadd(key, {"body": '{"n": 3}'})
    async with opened(make_source(broker, stream=key, format="json", max_message_bytes=1000)) as source:
        records = await read(source, 7)
    reasons = [record.reason if isinstance(record, Unreadable) else record for record in records]
    assert reasons == [
        {"n": 1}, "the body is not JSON", "there is no field 'body'", {"n": 2}, "the body is not JSON",
        "the message has 5,000 bytes, and at most 1,000 are taken", {"n": 3},
    ]  # fmt: skip
    with broker.client() as client:
        client.xadd(binary := broker.key(), {"a": b"\xff"})
    async with opened(make_source(broker, stream=binary)) as source:
        (found,) = await read(source, 1)
    assert found.reason == "a field is not UTF-8"


async def test_an_entry_that_is_too_large_is_not_sent_whole(broker: RedisServer) -> None:
    key = broker.key()
    with broker.client() as client:
        client.xadd(key, {"a": "1"})
        client.xadd(key, {"big": "x" * 3_000_000})
        client.xadd(key, {"a": "2"})
    options = {"batch_bytes": 1000, "max_message_bytes": 100_000}
    async with opened(make_source(broker, stream=key, **options)) as source:
        first, large, last = await read(source, 3)
    assert (first, last) == ({"a": "1"}, {"a": "2"})
    assert large.reason == "the message has 3,000,003 bytes, and at most 100,000 are taken"
    assert len(large.body) <= 64 * 1024


async def test_the_backlog_is_what_waits(broker: RedisServer) -> None:
    key = broker.key()
    add(broker, key, *range(1, 11))
    async with opened(make_source(broker, stream=key, batch=4)) as source:
        assert (await source.backlog()).records == 10
        await source.read()
        assert (await source.backlog()).records == 6
        await read(source, 6)
        assert (await source.backlog()).records == 0


def test_a_move_is_told_in_ids() -> None:
    assert tell_move({"id": "5-0", "added": 5}, "9-0") == "entries after 5-0 up to 9-0 are skipped"
    assert tell_move("9-0", None) == "entries up to 9-0 are read again"
    assert tell_move("9-0", {"id": "9-0"}) == "nothing changes"
    assert "no position" in tell_move(None, [1])


# Lists.


async def test_elements_stay_until_they_are_acknowledged(broker: RedisServer) -> None:
    key = broker.key("l")
    with broker.client() as client:
        client.rpush(key, *(f'{{"n": {n}}}' for n in range(10)))
        taken = f"headgate:{{{key}}}:taken:test"
        async with opened(make_source(broker, list=key, batch=4)) as source:
            batch = await soon(source.read())
            await soon(source.read())
            assert (client.llen(key), client.llen(taken)) == (2, 8)
            await source.ack(batch.position)
            await source.ack(batch.position)
            assert client.llen(taken) == 4
            assert (await source.backlog()).records == 2
        async with opened(make_source(broker, list=key), None) as source:  # A sink that does not know where it stands.
            assert numbers_of(await read(source, 6)) == [4, 5, 6, 7, 8, 9]


async def test_a_position_that_is_ahead_of_the_acknowledgement_repeats_nothing(broker: RedisServer) -> None:
    """The sink has committed, and the run ended before it could say so."""
    key = broker.key("l")
    with broker.client() as client:
        client.rpush(key, *(f'{{"n": {n}}}' for n in range(10)))
    async with opened(make_source(broker, list=key, batch=4)) as source:
        position = (await soon(source.read())).position
        await soon(source.read())
    async with opened(make_source(broker, list=key), position) as source:
        assert numbers_of(await read(source, 6)) == [4, 5, 6, 7, 8, 9]


async def test_a_position_of_another_history_skips_nothing(broker: RedisServer) -> None:
    """The server has lost its data, and other elements have the old numbers now."""
    key = broker.key("l")
    with broker.client() as client:
        client.rpush(key, *(f'{{"n": {n}}}' for n in range(10)))
        async with opened(make_source(broker, list=key)) as source:
            position = (await soon(source.read())).position
        client.delete(*client.keys(f"headgate:{{{key}}}:*"))
        client.rpush(key, *(f'{{"n": {n}}}' for n in range(20, 25)))
        async with opened(make_source(broker, list=key), position) as source:
            assert numbers_of(await read(source, 5)) == [20, 21, 22, 23, 24]


async def test_a_run_that_was_replaced_loses_nothing_that_it_still_takes(broker: RedisServer) -> None:
    key = broker.key("l")
    with broker.client() as client:
        client.rpush(key, *(f'{{"n": {n}}}' for n in range(4)))
        old, new = make_source(broker, list=key, batch=4), make_source(broker, list=key, batch=4)
        async with opened(old) as old:
            batch = await soon(old.read())
            async with opened(new, batch.position) as new:
                reading = asyncio.create_task(new.read())
                client.rpush(key, '{"n": 4}')
                late = asyncio.create_task(old.read())  # It moves what the other one waits for, or waits for it, too.
                assert numbers_of((await soon(reading)).records) == [4]
                late.cancel()
            await old.ack({"history": "another", "number": 9})  # Of no history: nothing follows.
            assert client.llen(f"headgate:{{{key}}}:taken:test") == 1
            async with opened(make_source(broker, list=key)):  # Another history begins.
                with pytest.raises(Fenced):
                    await soon(old.read())


async def test_a_rehearsal_takes_nothing_from_a_list(broker: RedisServer) -> None:
    key = broker.key("l")
    with broker.client() as client:
        client.rpush(key, *(f'{{"n": {n}}}' for n in range(3)))
        options = RedisSourceOptions(url=broker.url, list=key)  # type: ignore[arg-type]
        async with opened(RedisListSource(options, make_context(is_rehearsal=True))) as source:
            assert numbers_of(await read(source, 3)) == [0, 1, 2]
        assert client.llen(key) == 3
        assert client.keys(f"headgate:{{{key}}}:*") == []


async def test_an_element_that_is_too_large_is_put_aside(broker: RedisServer) -> None:
    key = broker.key("l")
    with broker.client() as client:
        client.rpush(key, '{"n": 1}', "x" * 3_000_000, '{"n": 2}')
    async with opened(make_source(broker, list=key, max_message_bytes=1000, batch_bytes=100)) as source:
        first, large, last = await read(source, 3)
    assert (first, last) == ({"n": 1}, {"n": 2})
    assert large.reason == "the message has 3,000,000 bytes, and at most 1,000 are taken"
    with broker.client() as client:
        client.rpush(waited := broker.key("l"), b"{}")
        client.delete(waited)
        async with opened(make_source(broker, list=waited, max_message_bytes=1000)) as source:
            reading = asyncio.create_task(source.read())
            while not client.client_list(_type="normal") or client.info("clients")["blocked_clients"] == 0:
                await asyncio.sleep(0.01)
            client.rpush(waited, "x" * 100_000)
            assert isinstance((await soon(reading)).records[0], Unreadable)


async def test_a_key_of_another_kind_is_a_mistake(broker: RedisServer) -> None:
    key = broker.key()
    add(broker, key, 1)
    for side in (make_source(broker, list=key), make_sink(broker, list=key)):
        with pytest.raises(ConnectorError, match="is no list, but a stream") as error:
            await side.check()
        assert error.value.cause is Cause.CONFIG
        await side.close()


# Writing.


async def test_a_key_has_what_was_written_last_and_a_deletion_removes_it(broker: RedisServer) -> None:
    prefix = broker.key("o") + ":"
    sink = make_sink(broker, keys=prefix)
    await sink.open(make_grant())
    records = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"}, {"id": 2}, {"id": "x:y"}]
    await sink.write(Outgoing(records, Progress(0, 1, 1), key=("id",), deletes=[3]))
    with pytest.raises(BadRecords) as error:
        await sink.write(Outgoing([{"id": 3}, {"id": None}, {"id": [1]}], Progress(0, 2, 2), key=("id",)))
    assert [bad.index for bad in error.value.bad] == [1, 2]
    await sink.write(Outgoing([{"id": "a:b", "n": "c"}], Progress(0, 2, 2), key=("id", "n")))
    await sink.close()
    with broker.client() as client:
        found = {key.decode().removeprefix(prefix): client.get(key) for key in client.keys(f"{prefix}*")}
    assert found == {"1": b'{"id":1,"v":"c"}', "x:y": b'{"id":"x:y"}', "a\\:b:c": b'{"id":"a:b","n":"c"}'}


async def test_fields_are_texts_and_a_record_needs_one(broker: RedisServer) -> None:
    key = broker.key("out")
    sink = make_sink(broker, stream=key)
    await sink.open(make_grant())
    record = {"t": "x", "i": 17, "f": 1.5, "b": True, "none": None, "l": [1, "a"], "long": "y" * 70_000}
    await sink.write(Outgoing([record], Progress(0, 1, 1)))
    for bad in ({"none": None}, {f"f{n}": 1 for n in range(3001)}, {"t": "\ud800"}):
        with pytest.raises(BadRecords) as error:
            await sink.write(Outgoing([record, bad], Progress(0, 2, 2)))
        assert [one.index for one in error.value.bad] == [1]
    await sink.close()
    with broker.client() as client:
        ((_, fields),) = client.xrange(key)
    assert fields == {b"t": b"x", b"i": b"17", b"f": b"1.5", b"b": b"true", b"l": b'[1,"a"]', b"long": b"y" * 70_000}


async def test_bytes_come_back_as_they_were(broker: RedisServer) -> None:
    key = broker.key("out")
    sink = make_sink(broker, stream=key, format="bytes", max_length=1000)
    await sink.open(make_grant())
    await sink.write(Outgoing([{"body": "/wAB"}], Progress(0, 1, 1)))
    await sink.close()
    with broker.client() as client:
        assert client.xrange(key)[0][1] == {b"body": b"\xff\x00\x01"}
    async with opened(make_source(broker, stream=key, format="bytes")) as source:
        assert await read(source, 1) == [{"body": "/wAB"}]


async def test_a_target_of_another_kind_leaves_the_position(broker: RedisServer) -> None:
    key = broker.key("out")
    sink = make_sink(broker, stream=key)
    await sink.open(make_grant(epoch=1))
    with broker.client() as client:
        client.set(key, "somebody else's")
        with pytest.raises(ConnectorError, match="WRONGTYPE") as error:
            await sink.write(Outgoing([{"a": 1}], Progress(0, 1, 1)))
        assert error.value.cause is Cause.CONFIG
        client.delete(key)
    assert await sink.open(make_grant(epoch=2)) == Progress(-1, 0, None)
    await sink.close()


async def test_a_script_that_the_server_has_forgotten_is_sent_again(broker: RedisServer) -> None:
    key = broker.key("out")
    sink = make_sink(broker, stream=key)
    await sink.open(make_grant())
    with broker.client() as client:
        client.script_flush()
        await sink.write(Outgoing([{"a": 1}], Progress(0, 1, 1)))
        assert client.xlen(key) == 1
    await sink.close()


# Somebody is stopped.


async def stopped(*arguments: str) -> asyncio.subprocess.Process:
    script = Path(__file__).with_name("stopped_redis.py")
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    run = await asyncio.create_subprocess_exec(
        sys.executable, str(script), *arguments, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    while Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        await asyncio.sleep(0.01)
    return run


async def woken(run: asyncio.subprocess.Process) -> str:
    os.kill(run.pid, signal.SIGCONT)
    return (await run.communicate())[0].decode().strip()


@pytest.mark.parametrize("moment", ["before", "inside", "after"])
async def test_a_writer_stopped_in_its_write_changes_nothing_later(broker: RedisServer, moment: str) -> None:
    key, stream = broker.key("out"), uuid4()
    writer = await stopped(broker.url, key, str(stream), "write", moment)
    successor = make_sink(broker, stream=key)
    progress = await successor.open(make_grant(epoch=2, stream=stream))
    assert progress is not None
    assert progress.commits == (0 if moment == "before" else 1)
    await successor.write(Outgoing([{"writer": 2}] * 5, Progress(0, progress.commits + 1, 5)))
    said = await woken(writer)
    with broker.client() as client:
        writers = [fields[b"writer"] for _, fields in client.xrange(key)]
    assert (writers.count(b"1"), writers.count(b"2")) == (10 * progress.commits, 5), said
    assert said == ("Fenced" if moment == "before" else "written")
    await successor.close()


@pytest.mark.parametrize("call", ["read", "raise"])
async def test_a_run_stopped_in_its_open_does_not_bring_a_forgotten_stream_back(broker: RedisServer, call: str) -> None:
    key, stream = broker.key("out"), uuid4()
    run = await stopped(broker.url, key, str(stream), call, "before" if call == "raise" else "after")
    await asyncio.sleep(1.1)  # Nothing happens meanwhile: that is how trust ends.
    sink = make_sink(broker, stream=key)
    await sink.forget(INSTALLATION, [stream])
    assert await woken(run) == "NotConnected"
    with broker.client() as client:
        assert client.keys(f"headgate:{{{key}}}:*") == []
    await sink.close()


# Faults.


async def test_a_server_that_dies_takes_nothing_back_and_everything_goes_on() -> None:
    broker = RedisServer()
    try:
        key, out, listed = broker.key(), broker.key("out"), broker.key("l")
        add(broker, key, *range(1, 101))
        with broker.client() as client:
            client.rpush(listed, *(f'{{"n": {n}}}' for n in range(100)))
        source, elements = make_source(broker, stream=key, batch=40), make_source(broker, list=listed, batch=40)
        sink = make_sink(broker, stream=out)
        await sink.open(make_grant(epoch=1))
        async with opened(source), opened(elements):
            batch, taken = await soon(source.read()), await soon(elements.read())
            await sink.write(Outgoing(batch.records, Progress(0, 1, batch.position)))
            broker.kill()
            for call in (source.read(), elements.read(), sink.write(Outgoing([{"a": 1}], Progress(0, 2, None)))):
                with pytest.raises(NotConnected):
                    await soon(call)
            with pytest.raises(NotConnected):
                await probe(broker.url, Guard())
            broker.start()
            await probe(broker.url, Guard())
        await sink.close()
        again = make_sink(broker, stream=out)
        progress = await again.open(make_grant(epoch=2))
        await again.close()
        assert progress is not None
        assert progress.position == batch.position
        async with opened(make_source(broker, stream=key), progress.position) as source:
            assert numbers_of(await read(source, 60)) == list(range(41, 101))
        async with opened(make_source(broker, list=listed), taken.position) as source:
            assert numbers_of(await read(source, 60)) == list(range(40, 100))
    finally:
        broker.stop()


async def test_a_server_that_is_away_at_the_start_is_not_connected() -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    options = RedisSourceOptions(url=url, stream="s")  # type: ignore[arg-type]
    for call in (
        RedisStreamSource(options, make_context()).check(),
        RedisStreamSource(options, make_context()).open(None),
        RedisSink(RedisSinkOptions(url=url, stream="s"), make_context()).open(make_grant()),  # type: ignore[arg-type]
    ):
        with pytest.raises(NotConnected):
            await soon(call)


async def test_a_connection_that_is_cut_or_silent_is_lost_and_the_next_one_goes_on(
    broker: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = broker.key()
    add(broker, key, *range(1, 11))
    proxy = Proxy(f"127.0.0.1:{broker.port}")
    listening = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        async with opened(make_source(broker, url=url, stream=key, batch=5)) as source:
            assert numbers_of((await soon(source.read())).records) == [1, 2, 3, 4, 5]
            proxy.cut()
            with pytest.raises(NotConnected):
                await soon(source.read())
            assert numbers_of((await soon(source.read())).records) == [6, 7, 8, 9, 10]
            proxy.freeze()
            monkeypatch.setattr(stream_source, "WAIT_S", 0.05)
            monkeypatch.setattr(stream_source, "ANSWER_S", 0.05)
            monkeypatch.setattr("headgate.connectors.redis.session.ANSWER_S", 0.05)
            waiting = asyncio.create_task(source._wait())
            with pytest.raises(NotConnected, match="has not answered"):
                await soon(waiting)
            proxy.thaw()
    finally:
        proxy.cut()
        listening.close()


async def test_a_password_is_needed_where_one_is_set_and_stands_in_no_error(broker: RedisServer) -> None:
    guarded = RedisServer("--requirepass", "s3cret_word")
    try:
        for user in ("", ":wrong_word@", "nobody:wrong_word@"):
            url = f"redis://{user}127.0.0.1:{guarded.port}"
            with pytest.raises(ConnectorError) as error:
                await make_source(guarded, url=url, stream="s").check()
            assert error.value.cause is Cause.AUTH
            assert "_word" not in str(error.value)
        url = f"redis://:s3cret_word@127.0.0.1:{guarded.port}/3"
        async with opened(make_source(guarded, url=url, stream="s", missing="go_on")):
            pass
    finally:
        guarded.stop()


async def test_a_certificate_is_checked(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    files = ["--tls-cert-file", str(tmp_path / "server.pem"), "--tls-key-file", str(tmp_path / "server.key")]
    port = free_port()
    server = RedisServer(
        "--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-dir", str(tmp_path), *files
    )
    try:
        add(server, "s", 1)
        url = f"rediss://localhost:{port}"
        async with opened(make_source(server, url=f"{url}?ssl_ca_certs={tmp_path}/server.pem", stream="s")) as source:
            assert numbers_of(await read(source, 1)) == [1]
        for wrong, said in ((url, "not trusted"), (f"{url}?ssl_ca_certs={tmp_path}/none.pem", "cannot be used")):
            with pytest.raises(ConnectorError, match=said) as error:
                await make_source(server, url=wrong, stream="s").check()
            assert error.value.cause is Cause.CONFIG
    finally:
        server.stop()


async def test_a_server_that_is_full_asks_for_patience(broker: RedisServer) -> None:
    sink = make_sink(broker, stream=broker.key("out"))
    await sink.open(make_grant())
    with broker.client() as client:
        client.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(RetryLater):
                await sink.write(Outgoing([{"a": 1}], Progress(0, 1, 1)))
        finally:
            client.config_set("maxmemory", "0")
    await sink.write(Outgoing([{"a": 1}], Progress(0, 1, 1)))
    await sink.close()


async def test_an_address_that_may_not_be_reached_is_not_connected_to(broker: RedisServer) -> None:
    guard = Guard((Bound(Reach(addresses=())),))
    options = RedisSourceOptions(url=broker.url, stream="s")  # type: ignore[arg-type]
    with pytest.raises(OutOfReach):
        await RedisStreamSource(options, make_context(guard=guard)).check()
    with pytest.raises(OutOfReach):
        await probe(broker.url, guard)


# A cluster.


async def test_in_a_cluster_a_session_goes_where_its_keys_are_and_a_batch_is_in_one_place() -> None:
    buses = [free_port(), free_port()]
    nodes = [RedisServer("--cluster-enabled", "yes", "--cluster-port", str(bus)) for bus in buses]
    try:
        with nodes[0].client() as one, nodes[1].client() as two:
            one.execute_command("CLUSTER ADDSLOTSRANGE", 0, 8191)
            two.execute_command("CLUSTER ADDSLOTSRANGE", 8192, 16383)
            one.execute_command("CLUSTER MEET", "127.0.0.1", nodes[1].port, buses[1])
            for client in (one, two):
                while client.execute_command("CLUSTER INFO").get("cluster_state") != "ok":
                    await asyncio.sleep(0.02)
            slots = {name: one.execute_command("CLUSTER KEYSLOT", name) for name in ("a", "b", "c", "d", "e", "f")}
        for name in (min(slots, key=lambda name: slots[name]), max(slots, key=lambda name: slots[name])):
            for node in nodes:
                sink = make_sink(node, stream=name)
                epoch = 1 + nodes.index(node)
                await sink.open(make_grant(epoch=epoch))
                await sink.write(Outgoing([{"n": epoch}], Progress(0, epoch, epoch)))
                await sink.close()
                async with opened(make_source(node, stream=name)) as source:
                    assert numbers_of(await read(source, epoch)) == [*range(1, epoch + 1)]
        spread = make_sink(nodes[0], keys="order:")
        with pytest.raises(ConnectorError, match="is a cluster") as error:
            await spread.check()
        assert error.value.cause is Cause.CONFIG
        assert "braces" in error.value.hint
        await spread.close()
        together = make_sink(nodes[0], keys="{order}:")
        await together.open(make_grant(epoch=1))
        await together.write(Outgoing([{"id": n} for n in range(20)], Progress(0, 1, 1), key=("id",)))
        await together.close()
    finally:
        for node in nodes:
            node.stop()


def test_what_is_ours_lies_next_to_a_key() -> None:
    assert next_to("orders", "x") == "headgate:{orders}:x"
    assert next_to("{shop}orders", "x") == "headgate:{shop}:x"
    assert [tag_of(key) for key in ("a{}b", "a{b", "a{b}c{d}")] == ["a{}b", "a{b", "b"]


@pytest.mark.parametrize(
    "options",
    [
        {"url": "http://x", "stream": "s"},
        {"url": "redis://x/name", "stream": "s"},
        {"url": "redis://x?timeout=1", "stream": "s"},
        {"url": "redis://x"},
        {"url": "redis://x", "stream": "s", "list": "l"},
        {"url": "redis://x", "list": "l", "format": "fields"},
        {"url": "redis://x", "list": "l", "processing": "l"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        RedisSourceOptions(**options)


async def test_the_example_of_the_page_runs(broker: RedisServer, start_node: Any) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/redis.md").read_text()
    document = yaml.safe_load(page.partition("```yaml")[2].partition("```")[0])["datasources"]
    with broker.client() as client:
        client.xadd("orders", {"body": '{"id": 17, "total": 12.5}'})
        node = start_node()
        node.call("PUT", "/api/secrets/redis", {"value": broker.url})
        node.apply(document)
        node.wait_for("orders", lambda found: found["metrics"].get("records_written", 0) == 1)
        assert client.hgetall("order:17") == {b"id": b"17", b"cents": b"1250"}


def test_a_parser_that_is_not_installed_is_named_with_what_installs_it() -> None:
    def build() -> None:
        raise ImportError("No module named 'hiredis'", name="hiredis")

    with pytest.raises(ConfigError, match="connector 'redis' cannot be loaded: No module named 'hiredis'") as error:
        plugins.built(plugins.get("redis"), build)
    assert error.value.hint == "pip install 'headgate[redis]'"

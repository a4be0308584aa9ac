"""NATS: streams are read by sequence without a gap, batches are written with their position, whatever is in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
import yaml
from pydantic import SecretStr

from headgate.connectors.api import Batch, Outgoing, Position, Progress, Unreadable
from headgate.connectors.guard import Bound, Guard, OutOfReach
from headgate.connectors.nats import CONNECTOR, sink, source
from headgate.connectors.nats.address import addresses_of
from headgate.connectors.nats.nkeys import Credentials
from headgate.connectors.nats.options import NatsSinkOptions, NatsSourceOptions
from headgate.connectors.nats.publishing import Letterbox
from headgate.connectors.nats.session import matches, probe
from headgate.connectors.nats.sink import NatsSink
from headgate.connectors.nats.source import NatsSource
from headgate.connectors.nats.wire import Message, Wire
from headgate.core.reach import Reach
from headgate.errors import BadRecords, Cause, ConnectorError, Fenced, NotConnected, RetryLater
from headgate.testing.contract import ForgettingSinkContract, SinkContract, SourceContract
from headgate.testing.contract.patience import soon
from headgate.testing.factories import INSTALLATION, make_context, make_grant
from tests.connectors.mariadb import make_certificate
from tests.connectors.nats_server import Jet, NatsServer, looking
from tests.proxy import Proxy


@pytest.fixture(scope="module")
def broker() -> Iterator[NatsServer]:
    made = NatsServer()
    yield made
    made.stop()


@pytest.fixture
async def jet(broker: NatsServer) -> AsyncIterator[Jet]:
    async with looking(broker) as jet:
        yield jet


def make_source(broker: NatsServer, stream: str, **options: Any) -> NatsSource:
    made = NatsSourceOptions(**{"url": broker.url, "stream": stream, **options})
    return NatsSource(made, make_context())


def make_sink(broker: NatsServer, stream: str, **options: Any) -> NatsSink:
    made = {"url": broker.url, "stream": stream, "subject": f"{stream}.out", **options}
    return NatsSink(NatsSinkOptions(**made), make_context())


@asynccontextmanager
async def opened(source: NatsSource, position: Position = None) -> AsyncIterator[NatsSource]:
    try:
        await soon(source.open(position))
        yield source
    finally:
        await source.close()


async def read(source: NatsSource, count: int) -> list[Any]:
    """This many records, at least."""
    found: list[Any] = []
    while len(found) < count:
        found += (await soon(source.read())).records
    return found


def numbered(*numbers: int) -> list[str]:
    return [f'{{"n": {n}}}' for n in numbers]


def numbers_of(records: list[Any]) -> list[int]:
    return [record["n"] for record in records]


async def written(jet: Jet, stream: str, subject: str = "") -> list[Any]:
    return [json.loads(body) for body in await jet.messages(stream, subject)]


# The contract.


class TestNatsSource(SourceContract):
    """Messages of JSON, seven at a time."""

    ends = False
    options: ClassVar[dict[str, Any]] = {"batch": 7}

    @pytest.fixture(autouse=True)
    async def data(self, broker: NatsServer, jet: Jet) -> None:
        self.server, self.stream = broker, await jet.make()
        for number, record in enumerate(self.expected()):
            await jet.put(f"{self.stream}.a.{number % 3}", json.dumps(record))
            if number % 5 == 0:
                await jet.put(f"{self.stream}.b", "{}")
        if "subjects" not in self.options:
            await jet.ask(f"STREAM.PURGE.{self.stream}", filter=f"{self.stream}.b")

    def make_source(self) -> NatsSource:
        subjects = [f"{self.stream}.{one}" for one in self.options.get("subjects", [])]
        return make_source(self.server, self.stream, **{**self.options, "subjects": subjects})

    def expected(self) -> list[Any]:
        return [{"id": i, "text": "x" * (i * 37 % 300)} for i in range(40)]


class TestNatsFilteredSource(TestNatsSource):
    """The same, where other messages lie between them, and each batch is bounded by its bytes."""

    options: ClassVar[dict[str, Any]] = {"batch": 30, "batch_bytes": 500, "subjects": ["a.0", "a.1", "a.2"]}


class TestNatsSink(ForgettingSinkContract):
    """In atomic batches."""

    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    async def place(self, broker: NatsServer, jet: Jet) -> None:
        self.server, self.jet, self.stream = broker, jet, await jet.make(**self.config)

    def make_sink(self) -> NatsSink:
        return make_sink(self.server, self.stream, **self.options)

    def make_refused_records(self) -> list[dict[str, Any]] | None:
        return [*self.make_records(10, 9), {"id": 19, "text": "x" * 2_000_000}]

    async def read_back(self) -> list[dict[str, Any]] | None:
        return sorted(await written(self.jet, self.stream), key=lambda record: int(record["id"]))


class TestNatsInPartsSink(TestNatsSink):
    """In atomic batches of four messages, so that every write has several."""

    config: ClassVar[dict[str, Any]] = {"allow_rollup_hdrs": True, "allow_msg_ttl": True}

    @pytest.fixture(autouse=True)
    def parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sink, "PART", 4)


class TestNatsAtLeastOnceSink(SinkContract):
    """Into a stream that takes no atomic batches."""

    @pytest.fixture(autouse=True)
    async def place(self, broker: NatsServer, jet: Jet) -> None:
        self.server, self.jet, self.stream = broker, jet, await jet.make(allow_atomic=False)

    def make_sink(self) -> NatsSink:
        return make_sink(self.server, self.stream, exactly_once=False)

    async def read_back(self) -> list[dict[str, Any]] | None:
        return sorted(await written(self.jet, self.stream), key=lambda record: int(record["id"]))


# Reading.


async def test_a_message_has_its_place_its_subject_and_its_headers(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    await jet.put(f"{stream}.new", *numbered(1, 2), headers={"Trace": "abc: d"})
    await jet.put(f"{stream}.new", b"\xff", *numbered(4))
    async with opened(make_source(broker, stream, batch=4), 1) as source:
        batch: Batch = await soon(source.read())
    assert batch.position == 4
    assert batch.records[0] == {"n": 2}
    assert isinstance(batch.records[1], Unreadable)
    assert batch.meta is not None
    assert batch.meta[0]["headers"] == {"Trace": "abc: d"}
    assert (batch.meta[0]["stream"], batch.meta[0]["subject"], batch.meta[0]["sequence"]) == (
        stream,
        f"{stream}.new",
        2,
    )
    assert batch.place is not None
    assert batch.place(1) == f"stream {stream}, message 3"
    assert batch.event_time_s == batch.meta[2]["time"] > 1.7e9
    for wrong in ("7", -1, {"id": 1}):
        with pytest.raises(ConnectorError) as error:
            await make_source(broker, stream).open(wrong)
        assert error.value.cause is Cause.CONFIG


async def test_messages_removed_before_they_were_read_stop_the_stream(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    await jet.put(f"{stream}.a", *numbered(*range(1, 21)))
    await jet.ask(f"STREAM.PURGE.{stream}", seq=6)
    async with opened(make_source(broker, stream, batch=5), 5) as source:  # Nothing was lost so far.
        assert numbers_of((await soon(source.read())).records) == [6, 7, 8, 9, 10]
    await jet.ask(f"STREAM.PURGE.{stream}", seq=14)
    with pytest.raises(ConnectorError, match="3 messages after 10 gone: removed before being read") as error:
        await make_source(broker, stream).open(10)
    assert error.value.cause is Cause.CONFIG
    with pytest.raises(ConnectorError, match="3 messages after 10 may be gone"):
        await make_source(broker, stream, subjects=[f"{stream}.a"]).open(10)
    with pytest.raises(ConnectorError, match="made again since message 99"):
        await make_source(broker, stream).open(99)
    async with opened(make_source(broker, stream, missing="go_on"), 10) as source:
        assert numbers_of(await read(source, 7)) == list(range(14, 21))


async def test_messages_removed_while_the_stream_is_open_stop_it(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    await jet.put(f"{stream}.a", *numbered(*range(1, 21)))
    async with opened(make_source(broker, stream, batch=5)) as source:
        await soon(source.read())
        await jet.ask(f"STREAM.PURGE.{stream}", seq=9)
        with pytest.raises(ConnectorError, match="3 messages after 5 gone"):
            await soon(source.read())


async def test_a_hole_between_messages_that_are_there_is_no_loss(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    await jet.put(f"{stream}.a", *numbered(1, 2, 3, 4, 5))
    await jet.ask(f"STREAM.MSG.DELETE.{stream}", seq=3)
    async with opened(make_source(broker, stream, batch=2)) as source:
        assert numbers_of(await read(source, 4)) == [1, 2, 4, 5]


async def test_a_consumer_that_was_removed_is_made_again_where_it_was(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    await jet.put(f"{stream}.a", *numbered(*range(1, 11)))
    async with opened(make_source(broker, stream, batch=4)) as source:
        assert numbers_of((await soon(source.read())).records) == [1, 2, 3, 4]
        await jet.ask(f"CONSUMER.DELETE.{stream}.{source._consumer}")
        assert numbers_of(await read(source, 6)) == [5, 6, 7, 8, 9, 10]
        reading = asyncio.create_task(source.read())  # One is removed while a pull waits.
        while not (await jet.ask(f"CONSUMER.INFO.{stream}.{source._consumer}")).get("num_waiting"):
            await asyncio.sleep(0.01)
        await jet.ask(f"CONSUMER.DELETE.{stream}.{source._consumer}")
        await jet.put(f"{stream}.a", *numbered(11))
        assert numbers_of((await soon(reading)).records) == [11]
    assert (await jet.ask(f"CONSUMER.NAMES.{stream}"))["consumers"] in (None, [])  # None is left behind.


async def test_a_stream_that_cannot_be_read_is_named_with_one_that_is_like_it(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    for side in (make_source(broker, f"{stream}x"), make_sink(broker, f"{stream}x")):
        with pytest.raises(ConnectorError, match="has no stream") as error:
            await side.check()
        assert error.value.cause is Cause.CONFIG
        assert stream in error.value.hint
        await side.close()
    queue = await jet.make(retention="workqueue")
    with pytest.raises(ConnectorError, match="work queue") as error:
        await make_source(broker, queue).check()
    assert error.value.cause is Cause.CONFIG


async def test_the_backlog_is_what_was_not_read(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    await jet.put(f"{stream}.a", *numbered(*range(1, 11)))
    async with opened(make_source(broker, stream, batch=4)) as source:
        assert (found := await source.backlog()) is not None
        assert found.records == 10
        await source.read()
        assert (found := await source.backlog()) is not None
        assert found.records == 6


async def test_a_message_that_is_too_large_is_put_aside(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    await jet.put(f"{stream}.a", *numbered(1), b"x" * 900_000, *numbered(3))
    async with opened(make_source(broker, stream, max_message_bytes=1000, batch_bytes=1000)) as source:
        first, large, last = await read(source, 3)
    assert (first, last) == ({"n": 1}, {"n": 3})
    assert large.reason == "the message has 900,000 bytes, and at most 1,000 are taken"


def test_a_move_is_told_in_sequences() -> None:
    assert CONNECTOR.source is not None
    assert CONNECTOR.source.tell_move is not None
    assert CONNECTOR.source.tell_move(5, 9) == "messages 6 to 9 are skipped"
    assert CONNECTOR.source.tell_move(2, None) == "messages 1 to 2 are read again"


async def test_messages_that_come_in_any_pieces_are_whole() -> None:
    found: list[Message] = []
    data = b'INFO {"a":1}\r\nMSG a.b 7 reply 3\r\na\r\n\r\nHMSG c 7 12 14\r\nNATS/1.0\r\n\r\nhi\r\n'
    data += b"PING\r\nMSG d 7 0\r\n\r\n"
    for size in range(1, len(data)):
        wire, sent = Wire(), []
        wire.send = sent.append  # type: ignore[method-assign]
        wire.subscribe(b"x", found.append)
        wire._receivers[b"7"] = found.append
        found.clear()
        for start in range(0, len(data), size):
            wire.data_received(data[start : start + size])
        assert [(one.subject, one.reply, one.headers, one.body) for one in found] == [
            (b"a.b", b"reply", b"", b"a\r\n"), (b"c", b"", b"NATS/1.0\r\n\r\n", b"hi"), (b"d", b"", b"", b""),
        ]  # fmt: skip
        assert wire.info == {"a": 1}
        assert sent[-1] == b"PONG\r\n"
    for wrong in (
        b"what\r\n",
        b"MSG a 7 -5\r\n",
        b"MSG a 7 99999999999\r\n",
        b"HMSG a\r\n",
        b"INFO {\r\n",
        b"x" * 2**21,
    ):
        wire = Wire()
        wire.data_received(wrong)
        assert isinstance(wire.gone, ConnectionError)


# Writing.


async def test_a_large_batch_is_written_in_parts_and_once(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make(allow_rollup_hdrs=True)
    target = make_sink(broker, stream)
    await target.open(make_grant())
    await target.write(Outgoing([{"id": i} for i in range(2500)], Progress(0, 1, 1)))
    await target.write(Outgoing([{"id": 2500}], Progress(0, 2, 2)))
    await target.close()
    state = (await jet.ask(f"STREAM.INFO.{stream}"))["state"]
    assert state["messages"] == 2502  # One of them is the position: it replaces the one before.
    async with opened(make_source(broker, stream, subjects=[f"{stream}.out"])) as source:
        assert [record["id"] for record in await read(source, 2501)] == list(range(2501))


CALLS = [(call, moment) for call in range(3) for moment in ("before", "inside", "after")]


@pytest.mark.parametrize("again", [12, 5, 1], ids=lambda size: f"then {size} at a time")
async def test_a_writer_stopped_at_any_call_changes_nothing_later(
    broker: NatsServer, jet: Jet, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """Twelve records in three parts. Somebody else goes on from the position, and then the first one wakes."""
    monkeypatch.setattr(sink, "PART", 4)
    stream = await jet.make()
    for call, moment in CALLS:
        subject, id = f"{stream}.{call}.{moment}", uuid4()
        old, new = (make_sink(broker, stream, subject=subject) for _ in range(2))
        await old.open(make_grant(epoch=1, stream=id))
        woken, stopped = stop_at(old, call, moment)
        writing = asyncio.create_task(old.write(Outgoing([{"n": n} for n in range(12)], Progress(0, 1, 11))))
        await soon(stopped.wait())
        progress = await new.open(make_grant(epoch=2, stream=id))
        assert progress is not None
        commits = max(0, progress.commits)
        for first in range(0 if progress.position is None else progress.position + 1, 15, again):
            last = min(first + again, 15) - 1
            commits += 1
            records = [{"n": n} for n in range(first, last + 1)]
            await new.write(Outgoing(records, Progress(0, commits, last)))
        woken.set()
        ended = (await asyncio.gather(writing, return_exceptions=True))[0]
        is_done = call == 2 and moment != "before"  # Its last part was on its way, and the other run has seen it.
        assert ended is None if is_done else isinstance(ended, Fenced), f"{call} {moment}: {ended!r}"
        assert numbers_of(await written(jet, stream, subject)) == list(range(15)), f"{call} {moment}"
        await old.close()
        await new.close()


def stop_at(target: NatsSink, call: int, moment: str) -> tuple[asyncio.Event, asyncio.Event]:
    """From now on, its n-th batch stops there until somebody wakes it."""
    woken, stopped, calls = asyncio.Event(), asyncio.Event(), iter(range(100))

    class Stopping(Letterbox):
        async def send_at_once(self, posts: Any) -> int:
            mine = next(calls) == call
            if mine and moment == "before":
                stopped.set()
                await woken.wait()
            task = asyncio.ensure_future(super().send_at_once(posts))
            if mine and moment == "inside":
                for _ in range(3):
                    await asyncio.sleep(0)  # The batch is sent; its answer is not read.
                stopped.set()
                await woken.wait()
            answer = await task
            if mine and moment == "after":
                stopped.set()
                await woken.wait()
            return answer

    target._post = Stopping(target._session)
    return woken, stopped


async def test_records_that_are_others_the_second_time_are_written(
    broker: NatsServer, jet: Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written before is recognised by what it is: nothing that is new is taken for it."""
    monkeypatch.setattr(sink, "PART", 4)
    stream, id = await jet.make(), uuid4()
    old, new = make_sink(broker, stream), make_sink(broker, stream)
    await old.open(make_grant(epoch=1, stream=id))
    _, stopped = stop_at(old, 2, "before")
    writing = asyncio.create_task(old.write(Outgoing([{"n": n} for n in range(12)], Progress(0, 1, 11))))
    await soon(stopped.wait())
    await new.open(make_grant(epoch=2, stream=id))
    await new.write(Outgoing([{"n": n} for n in (50, 51)], Progress(0, 1, 11)))
    await new.write(Outgoing([{"n": n} for n in range(4, 6)], Progress(0, 2, 12)))
    writing.cancel()
    assert numbers_of(await written(jet, stream)) == [*range(8), 50, 51, 4, 5]
    await old.close()
    await new.close()


async def test_replayed_letters_between_two_halves_are_no_part_of_them(
    broker: NatsServer, jet: Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "PART", 4)
    stream, id = await jet.make(), uuid4()
    old, new = make_sink(broker, stream), make_sink(broker, stream)
    await old.open(make_grant(epoch=1, stream=id))
    await old.write(Outgoing([{"n": 0}], Progress(0, 1, 0)))
    _, stopped = stop_at(old, 2, "before")
    writing = asyncio.create_task(old.write(Outgoing([{"n": n} for n in range(1, 13)], Progress(0, 2, 12))))
    await soon(stopped.wait())
    await new.open(make_grant(epoch=2, stream=id))
    await new.write(Outgoing([{"n": 99}], Progress(0, 2, 0)))  # The position stays.
    await new.write(Outgoing([{"n": n} for n in range(1, 13)], Progress(0, 3, 12)))
    writing.cancel()
    assert numbers_of(await written(jet, stream)) == [*range(9), 99, *range(9, 13)]
    await old.close()
    await new.close()


async def test_a_run_stopped_in_its_open_does_not_bring_a_forgotten_stream_back(broker: NatsServer, jet: Jet) -> None:
    """It has looked, and found nothing; meanwhile others came, went and were forgotten."""
    stream, id = await jet.make(), uuid4()
    late, other = make_sink(broker, stream), make_sink(broker, stream)
    trust = [10.0]
    look, looked, woken = late._look, asyncio.Event(), asyncio.Event()

    async def stopping(subject: bytes) -> Any:
        found = await look(subject)
        if not looked.is_set():
            trusted = grant.trust_left_s()
            assert trusted > 0
        return found

    send = late._post.send

    async def send_late(post: Any) -> int:
        looked.set()
        await woken.wait()
        return await send(post)

    grant = make_grant(epoch=7, stream=id, trust_left_s=lambda: trust[0])
    late._look, late._post.send = stopping, send_late  # type: ignore[method-assign]
    opening = asyncio.create_task(late.open(grant))
    await soon(looked.wait())
    await other.open(make_grant(epoch=8, stream=id))
    trust[0] = 0.0
    await other.forget(INSTALLATION, [id])
    woken.set()
    with pytest.raises(NotConnected, match="trust"):
        await soon(opening)
    assert await other.open(make_grant(epoch=1, stream=id)) == Progress(-1, 0, None)
    await late.close()
    await other.close()


async def test_a_position_that_the_limits_removed_is_written_again(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    target = make_sink(broker, stream)
    await target.open(make_grant(epoch=1))
    await jet.ask(f"STREAM.PURGE.{stream}")
    with pytest.raises(NotConnected, match="removed by the limits"):
        await target.write(Outgoing([{"n": 1}], Progress(0, 1, 1)))
    await target.open(make_grant(epoch=2))
    await target.write(Outgoing([{"n": 1}], Progress(0, 1, 1)))
    await target.close()
    assert numbers_of(await written(jet, stream)) == [1]


async def test_a_message_that_is_sent_again_is_recognised_within_the_window(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make(allow_atomic=False)
    batch = Outgoing([{"n": n} for n in range(5)], Progress(0, 1, 4))
    for epoch in (1, 2):
        target = make_sink(broker, stream, exactly_once=False)
        assert await target.open(make_grant(epoch=epoch)) is None
        await target.write(batch)
        await target.write(Outgoing([{"n": 7}], Progress(0, 2, 5)))
        await target.close()
    assert numbers_of(await written(jet, stream)) == [0, 1, 2, 3, 4, 7]
    assert CONNECTOR.sink is not None
    options = NatsSinkOptions(url=broker.url, stream="S", subject="s", exactly_once=False)  # type: ignore[arg-type]
    assert not CONNECTOR.sink.with_options(options).transactional


async def test_a_stream_that_cannot_keep_the_promise_is_refused_with_what_helps(broker: NatsServer, jet: Jet) -> None:
    plain, narrow = await jet.make(allow_atomic=False), await jet.make(subjects=[f"only.{uuid4().hex}"])
    for target, said, hint in (
        (make_sink(broker, plain), "takes no atomic batches", "--allow-batch"),
        (make_sink(broker, narrow), "does not take", "add this one"),
        (make_sink(broker, plain, subject="elsewhere.x"), "does not take elsewhere.x", "add this one"),
    ):
        with pytest.raises(ConnectorError, match=said) as error:
            await target.check()
        assert error.value.cause is Cause.CONFIG
        assert hint in error.value.hint
        await target.close()
    without = await jet.make(subjects=["w.>"])
    with pytest.raises(ConnectorError, match="where positions are kept"):
        await make_sink(broker, without, subject="w.out").check()
    inside = make_sink(broker, without, subject="w.out", positions="w.positions")
    await inside.open(make_grant())
    await inside.write(Outgoing([{"n": 1}], Progress(0, 1, 1)))
    await inside.close()


async def test_a_subject_may_have_the_value_of_a_field(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    target = make_sink(broker, stream, subject=f"{stream}.{{region}}.new")
    await target.open(make_grant())
    await target.write(Outgoing([{"region": "eu", "n": 1}, {"region": 7, "n": 2}], Progress(0, 1, 1)))
    for wrong in ("a.b", "", None, "a b", ">", "*", "a\r\nPUB x 0"):
        with pytest.raises(BadRecords) as error:
            await target.write(Outgoing([{"region": "eu"}, {"region": wrong}], Progress(0, 2, 2)))
        assert [bad.index for bad in error.value.bad] == [1]
    await target.close()
    assert [record["n"] for record in await written(jet, stream, f"{stream}.eu.new")] == [1]
    assert [record["n"] for record in await written(jet, stream, f"{stream}.7.new")] == [2]


async def test_a_stream_that_is_full_asks_for_patience(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make(max_msgs=3, discard="new")
    target = make_sink(broker, stream, exactly_once=False)
    await target.open(make_grant())
    with pytest.raises(RetryLater):
        await target.write(Outgoing([{"n": n} for n in range(5)], Progress(0, 1, 1)))
    await target.close()


# Faults.


async def test_a_server_that_dies_takes_nothing_back_and_everything_goes_on() -> None:
    server = NatsServer()
    try:
        async with looking(server) as jet:
            stream = await jet.make()
            await jet.put(f"{stream}.in", *numbered(*range(1, 101)))
        reader, target = make_source(server, stream, batch=40, subjects=[f"{stream}.in"]), make_sink(server, stream)
        await target.open(make_grant(epoch=1))
        async with opened(reader):
            batch = await soon(reader.read())
            await target.write(Outgoing(batch.records, Progress(0, 1, batch.position)))
            server.kill()
            for call in (
                target.write(Outgoing([{"n": 1}], Progress(0, 2, None))),
                target.check(),
                probe(SecretStr(server.url), None, Guard()),
                make_source(server, stream).open(None),
            ):
                with pytest.raises(NotConnected):
                    await soon(call)
            server.start()
            found: list[int] = []
            while len(found) < 60:  # It reads what has come, notices the loss, and goes on where it was.
                try:
                    found += numbers_of((await soon(reader.read())).records)
                except NotConnected:
                    await asyncio.sleep(0.05)
            assert found == list(range(41, 101))
        await target.close()
        again = make_sink(server, stream)
        progress = await again.open(make_grant(epoch=2))
        await again.close()
        assert progress is not None
        assert progress.position == batch.position
    finally:
        server.stop()


async def test_a_connection_that_is_cut_or_silent_is_lost_and_the_next_one_goes_on(
    broker: NatsServer, jet: Jet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await jet.make()
    await jet.put(f"{stream}.a", *numbered(*range(1, 11)))
    proxy = Proxy(f"127.0.0.1:{broker.port}")
    listening = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        async with opened(make_source(broker, stream, url=url, batch=5)) as reader:
            assert numbers_of((await soon(reader.read())).records) == [1, 2, 3, 4, 5]
            reading = asyncio.create_task(reader.read())
            assert numbers_of((await soon(reading)).records) == [6, 7, 8, 9, 10]
            reading = asyncio.create_task(reader.read())
            await asyncio.sleep(0.05)
            proxy.cut()
            with pytest.raises(NotConnected):
                await soon(reading)
            await jet.put(f"{stream}.a", *numbered(11))
            assert numbers_of((await soon(reader.read())).records) == [11]
            monkeypatch.setattr(source, "PULL_S", 0.05)
            monkeypatch.setattr(source, "ANSWER_S", 0.05)
            proxy.freeze()
            with pytest.raises(NotConnected, match="has not answered"):
                await soon(reader.read())
            proxy.thaw()
            monkeypatch.undo()
            await jet.put(f"{stream}.a", *numbered(12))
            assert numbers_of((await soon(reader.read())).records) == [12]
    finally:
        proxy.cut()
        listening.close()


async def test_of_several_servers_one_that_answers_is_enough(broker: NatsServer, jet: Jet) -> None:
    stream = await jet.make()
    await jet.put(f"{stream}.a", *numbered(1))
    url = f"nats://127.0.0.1:1,127.0.0.1:{broker.port}"
    async with opened(make_source(broker, stream, url=url)) as reader:
        assert numbers_of(await read(reader, 1)) == [1]


async def test_a_password_or_a_token_is_needed_where_one_is_set_and_stands_in_no_error() -> None:
    for config, right in (
        ('authorization { user: ada, password: "s3cret-word" }', "ada:s3cret-word@"),
        ('authorization { token: "s3cret-word" }', "s3cret-word@"),
    ):
        server = NatsServer(config)
        try:
            for access in ("", "ada:wrong-word@", "wrong-word@"):
                url = f"nats://{access}127.0.0.1:{server.port}"
                with pytest.raises(ConnectorError) as error:
                    await make_source(server, "S", url=url).check()
                assert error.value.cause is Cause.AUTH
                assert "word" not in str(error.value)
            with pytest.raises(ConnectorError, match="has no stream"):
                await make_source(server, "S", url=f"nats://{right}127.0.0.1:{server.port}").check()
        finally:
            server.stop()


async def test_a_certificate_is_checked(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    server = NatsServer(f"tls {{ cert_file: '{tmp_path}/server.pem', key_file: '{tmp_path}/server.key' }}")
    try:
        for scheme in ("tls", "nats"):  # The server insists on it, whatever the URL says.
            url = f"{scheme}://localhost:{server.port}"
            with pytest.raises(ConnectorError, match="has no stream"):
                await make_source(server, "S", url=f"{url}?ssl_ca_certs={tmp_path}/server.pem").check()
            with pytest.raises(ConnectorError, match="not trusted") as error:
                await make_source(server, "S", url=url).check()
            assert error.value.cause is Cause.CONFIG
    finally:
        server.stop()


SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
CREDS = """-----BEGIN NATS USER JWT-----
a.b.c
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y
------END USER NKEY SEED------
"""


async def test_who_has_the_seed_signs_what_the_server_says() -> None:
    server = NatsServer(f"authorization {{ users: [ {{ nkey: {Credentials(SEED).public} }} ] }}")
    try:
        with pytest.raises(ConnectorError, match="has no stream"):
            await make_source(server, "S", credentials=SEED).check()
        with pytest.raises(ConnectorError) as error:
            await make_source(server, "S").check()
        assert error.value.cause is Cause.AUTH
    finally:
        server.stop()


def test_a_file_of_credentials_has_a_token_and_a_seed() -> None:
    assert Credentials(CREDS).answer("nonce")["jwt"] == "a.b.c"
    assert Credentials(SEED).answer("nonce")["nkey"].startswith("U")
    for wrong in ("", "secret", SEED[:-1], SEED[:-1] + "A", "S" * 58, CREDS.replace("SUAA", "SUAB")):
        with pytest.raises(ValueError):
            Credentials(wrong)


async def test_an_address_that_may_not_be_reached_is_not_connected_to(broker: NatsServer) -> None:
    guard = Guard((Bound(Reach(addresses=())),))
    options = NatsSourceOptions(url=broker.url, stream="S")  # type: ignore[arg-type]
    with pytest.raises(OutOfReach):
        await NatsSource(options, make_context(guard=guard)).check()
    with pytest.raises(OutOfReach):
        await probe(SecretStr(broker.url), None, guard)


def test_a_url_names_servers_and_who_we_are() -> None:
    one, two = addresses_of("tls://ada:pass%40word@[::1]:4333,b?ssl_ca_certs=/ca.pem")
    assert (one.host, one.port, two.host, two.port, one.is_tls) == ("::1", 4333, "b", 4222, True)
    assert two.credentials == {"user": "ada", "pass": "pass@word"}
    assert "word" not in repr(one)
    assert addresses_of("nats://token@a")[0].credentials == {"auth_token": "token"}


@pytest.mark.parametrize(
    ("subject", "pattern", "expected"),
    [
        ("a.b", "a.b", True), ("a.b", "a.*", True), ("a.b", "a.>", True), ("a", "a.>", False), ("a.b", ">", True),
        ("a.b.c", "a.*", False), ("a.>", "a.>", True), ("a.>", "a.*", False), ("a.b.>", "a.>", True),
        ("a.>", "a.b.>", False),
    ],
)  # fmt: skip
def test_a_stream_takes_what_one_of_its_subjects_covers(subject: str, pattern: str, expected: bool) -> None:
    assert matches(subject.split("."), pattern.split(".")) is expected


@pytest.mark.parametrize(
    "options",
    [
        {"url": "http://x"},
        {"url": "nats://x/path"},
        {"url": "nats://x:port"},
        {"url": "nats://x?timeout=1"},
        {"url": "nats://x", "stream": "a.b"},
        {"url": "nats://x", "stream": "a b"},
        {"url": "nats://x", "subjects": ["a..b"]},
        {"url": "nats://x", "subjects": ["a.>.b"]},
        {"url": "nats://x", "subjects": ["a b"]},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        NatsSourceOptions(**{"stream": "S", **options})


async def test_the_example_of_the_page_runs(broker: NatsServer, jet: Jet, start_node: Any) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/nats.md").read_text()
    document = yaml.safe_load(page.partition("```yaml")[2].partition("```")[0])["datasources"]
    for name, subjects in (("ORDERS", ["orders.>"]), ("BILLS", ["bills.>", "headgate.position.BILLS.>"])):
        await jet.ask(f"STREAM.CREATE.{name}", name=name, subjects=subjects, allow_atomic=True)
    await jet.put("orders.new", '{"id": 17, "total": 12.5, "region": "eu"}')
    node = await asyncio.to_thread(start_node)
    node.call("PUT", "/api/secrets/nats", {"value": broker.url})
    node.apply(document)
    await asyncio.to_thread(node.wait_for, "bills", lambda found: found["metrics"].get("records_written", 0) == 1)
    assert await written(jet, "BILLS", "bills.eu") == [{"id": 17, "cents": 1250, "region": "eu"}]

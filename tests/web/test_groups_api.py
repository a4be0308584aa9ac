"""Groups over HTTP: programs that take turns at a real node, spoken to by hand; and what operators see and do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect

from headgate.connectors import plugins as connectors
from headgate.core.groups.explain import STATUSES
from tests.web.pushing import LONG_S, Gate, House, house, numbers
from tests.web_node import BLACKHOLE, GENERATOR, Databases

pytestmark = pytest.mark.asyncio(loop_scope="module")

STRANGE = ["a/b", "/", "..", ".", "a b?c=d#e", "%2F", "straße:0", "-"]


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> str:
    return databases.make()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """The node of this module; every test has groups of its own."""
    async with house(database_url, tmp_path_factory.mktemp("groups") / "home", node_name="alpha") as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(here: House) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {here.token}"}
    async with httpx.AsyncClient(base_url=here.url, headers=headers, timeout=LONG_S) as client:
        yield client


@pytest.fixture
def stream() -> str:
    return f"jobs-{next(numbers)}"


class Taker:
    """A program that takes turns, and answers only when its test says so."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.consumer = ""

    async def say(self, *frame: Any) -> None:
        await self.socket.send(msgspec.msgpack.encode(frame))

    async def hear(self, kind: str) -> list[Any]:
        """The next frame of this kind."""
        async with asyncio.timeout(LONG_S):
            while True:
                frame = msgspec.msgpack.decode(await self.socket.recv())
                if frame[0] == kind:
                    return list(frame[1:])

    async def confirm(self, epoch: int, what: str = "active") -> None:
        await self.say("confirm", self.consumer, epoch, what)

    async def take(self) -> int:
        """Until it is active, and has said so; returns the epoch."""
        epoch: int = (await self.hear("active"))[2]
        await self.confirm(epoch)
        return epoch

    def cut(self) -> None:
        """Be gone without a word."""
        self.socket.transport.abort()


@asynccontextmanager
async def joined(
    here: House, stream: str, label: str, *, group: str = "g", partition: int | None = None, lease_s: float = 60.0
) -> AsyncIterator[Taker]:
    """A consumer, for the time of a block."""
    async with connect(here.url.replace("http", "ws") + "/groups", compression=None, close_timeout=1) as socket:
        taker = Taker(socket)
        await taker.say("join", 1, here.token, stream, group, partition, label, None, lease_s)
        taker.consumer = (await taker.hear("joined"))[0]
        yield taker
        if not socket.transport.is_closing():
            await taker.say("leave", taker.consumer)


def path(stream: str, group: str = "g", rest: str = "") -> str:
    def quoted(name: str) -> str:
        return quote(name, safe="").replace(".", "%2E")

    return f"/api/groups/{quoted(stream)}/{quoted(group)}" + (f"/{rest}" if rest else "")


async def shown(http: httpx.AsyncClient, stream: str, group: str = "g", rest: str = "") -> dict[str, Any]:
    answer = await http.get(path(stream, group, rest))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def until(here: House, http: httpx.AsyncClient, stream: str, status: str, group: str = "g") -> dict[str, Any]:
    """Until the group is like this; returns its explanation."""
    return await here.until(lambda: shown(http, stream, group, "explain"), lambda found: found["status"] == status)


# Looking.


async def test_a_group_is_listed_and_shown_with_its_consumers(
    here: House, http: httpx.AsyncClient, stream: str
) -> None:
    async with joined(here, stream, "one") as one, joined(here, stream, "two"):
        epoch = await one.take()
        explained = await until(here, http, stream, "active")
        found = await shown(http, stream)
        listed = (await http.get("/api/groups", params={"stream": stream})).json()
    assert explained["lines"][0].startswith(f"one on alpha is active under epoch {epoch}, for ")
    assert [(one["what"], one["who"]) for one in explained["lately"]] == [("register", "one"), ("register", "two")]
    assert explained["lately"][0]["told"] == [["active", "one", epoch]]
    assert (found["kind"], found["status"], found["active"], found["epoch"]) == ("outside", "active", "one", epoch)
    assert [(one["label"], one["activity"], one["node"]) for one in found["members"]] == [
        ("one", "active", "alpha"),
        ("two", "waiting", "alpha"),
    ]
    assert "lines" not in found
    (item,) = listed["items"]
    assert item == {key: found[key] for key in item}
    assert item["consumers"] == 2
    assert listed["more"] is False


async def test_an_order_that_is_not_answered_yet_is_said(here: House, http: httpx.AsyncClient, stream: str) -> None:
    async with joined(here, stream, "one") as one:
        epoch = (await one.hear("active"))[2]
        explained = await until(here, http, stream, "starting")
        assert "has not answered yet" in explained["lines"][0]
        await one.confirm(epoch + 5)
        await one.confirm(epoch)
        explained = await until(here, http, stream, "active")
    assert "1 confirmation was ignored" in explained["lines"][-1]


async def test_a_hand_over_names_who_has_not_confirmed_and_who_is_next(
    here: House, http: httpx.AsyncClient, stream: str
) -> None:
    async with joined(here, stream, "zero", partition=1) as zero:
        epoch = await zero.take()
        async with joined(here, stream, "one", partition=1) as one:
            await zero.hear("step_down")
            explained = await until(here, http, stream, "handing over")
            assert "zero on alpha was told" in explained["lines"][0]
            assert explained["lines"][1] == "one is next."
            assert "Its partition is 1" in explained["lines"][2]
            await zero.confirm(epoch, "stepped_down")
            assert await one.take() == epoch + 1


async def test_who_is_out_of_touch_blocks_its_group_until_an_operator_says_yes(
    here: House, http: httpx.AsyncClient, stream: str
) -> None:
    async with joined(here, stream, "one") as one, joined(here, stream, "two") as two:
        epoch = await one.take()
        one.cut()
        explained = await until(here, http, stream, "blocked")
        assert "It may still believe so, and is waited for" in explained["lines"][0]
        member = (await shown(http, stream))["members"][0]
        assert 30.0 < member["waits_s"] <= 60.0

        answer = await http.post(path(stream, rest="evaluate"))
        assert (answer.status_code, answer.json()["code"]) == (409, "may_believe")
        assert "one for up to " in answer.json()["detail"]
        done = await http.post(path(stream, rest="evaluate"), json={"yes": True})
        assert done.json() == {"stream": stream, "name": "g", "dropped": ["one"], "consumers": 1}
        assert await two.take() == epoch + 1
        await until(here, http, stream, "active")
    (event,) = await here.sql(
        "SELECT actor, payload FROM headgate.datasource_events"
        " WHERE type = 'group_evaluated' AND payload ->> 'stream' = $1",
        stream,
    )
    assert event["actor"].startswith("tester")


async def test_a_group_whose_last_consumer_is_dropped_is_gone(
    here: House, http: httpx.AsyncClient, stream: str
) -> None:
    async with joined(here, stream, "one") as one:
        await one.take()
        one.cut()
        await until(here, http, stream, "blocked")
        done = await http.post(path(stream, rest="evaluate"), json={"yes": True})
        assert (done.json()["dropped"], done.json()["consumers"]) == (["one"], 0)
    assert (await http.get(path(stream))).status_code == 404


async def test_who_lost_touch_for_a_lease_is_forgotten_and_named(
    here: House, http: httpx.AsyncClient, stream: str
) -> None:
    async with joined(here, stream, "one", lease_s=2.0) as one:
        epoch = await one.take()
        one.cut()
        explained = await until(here, http, stream, "vacant")
    assert explained["lines"][0] == "Nobody is active, and nobody can be: all its consumers are out of touch."
    assert "one is forgotten" in explained["lines"][1]
    assert f"steps down from epoch {epoch} first" in explained["lines"][1]
    (member,) = (await shown(http, stream))["members"]
    assert (member["connectivity"], member["activity"]) == ("forgotten", "waiting"), "what it was, it is no more"
    done = await http.post(path(stream, rest="evaluate"))  # Nobody believes anything: no yes is needed.
    assert done.json()["dropped"] == ["one"]


async def test_a_consumer_without_a_label_is_named_by_its_id_wherever_it_is_shown(
    here: House, http: httpx.AsyncClient, stream: str
) -> None:
    async with joined(here, stream, "") as one:
        epoch = await one.take()
        name = f"consumer {one.consumer[:8]}"
        found = await shown(http, stream)
        assert (found["active"], found["members"][0]["label"]) == (name, name)
        assert found["lately"][0]["who"] == name
        assert found["lately"][0]["told"] == [["active", name, epoch]]
        one.cut()
        await until(here, http, stream, "blocked")
        refused = await http.post(path(stream, rest="evaluate"))
        assert name in refused.json()["detail"]
        done = await http.post(path(stream, rest="evaluate"), json={"yes": True})
        assert done.json()["dropped"] == [name]


@pytest.mark.parametrize("name", STRANGE)
async def test_names_may_have_any_character(here: House, http: httpx.AsyncClient, stream: str, name: str) -> None:
    for one, group in ((f"{stream}{name}", "g"), (stream, name)):
        async with joined(here, one, "x", group=group) as taker:
            await taker.take()
            found = await shown(http, one, group)
            assert (found["stream"], found["name"], found["active"]) == (one, group, "x")
            assert (await shown(http, one, group, "explain"))["lines"]
            listed = (await http.get("/api/groups", params={"stream": one})).json()["items"]
            assert [item["name"] for item in listed] == [group]
            assert (await http.post(path(one, group, "evaluate"), json={})).json()["dropped"] == []


async def test_a_stream_of_dots_is_found(here: House, http: httpx.AsyncClient) -> None:
    async with joined(here, "..", "x", group=".") as taker:
        await taker.take()
        assert (await shown(http, "..", "."))["stream"] == ".."


@pytest.mark.parametrize("name", ["nobody", "a%2Fb", "%FF", "%00", "é", "x" * 300])
async def test_an_unknown_group_is_not_found_on_every_path(http: httpx.AsyncClient, name: str) -> None:
    for method, rest in (("GET", ""), ("GET", "/explain"), ("POST", "/evaluate")):
        for group in ("g", "workers"):
            assert (await http.request(method, f"/api/groups/{name}/{group}{rest}")).status_code == 404
    assert (await http.get(f"/api/groups?stream={name}")).json()["items"] == []


@pytest.mark.parametrize("body", [{"yes": "true"}, {"no": True}, {"yes": True, "more": 1}])
async def test_a_body_that_is_no_yes_is_told_so(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert (await http.post(path("nobody", rest="evaluate"), json=body)).status_code == 422


async def test_so_many_groups_are_listed_and_no_more(here: House, http: httpx.AsyncClient, stream: str) -> None:
    async with joined(here, stream, "x", group="a"), joined(here, stream, "x", group="b"):
        found = (await http.get("/api/groups", params={"stream": stream, "limit": 1})).json()
        assert ([one["name"] for one in found["items"]], found["more"]) == (["a"], True)
        found = (await http.get("/api/groups", params={"stream": stream, "limit": 2})).json()
        assert ([one["name"] for one in found["items"]], found["more"]) == (["a", "b"], False)
        for limit in ("0", "-5", "999999"):
            assert (await http.get("/api/groups", params={"limit": limit})).status_code == 200


async def test_a_viewer_may_look_and_not_act(here: House, http: httpx.AsyncClient, stream: str) -> None:
    _, token = await here.node.tokens.create(f"viewer {stream}", "viewer")
    headers = {"Authorization": f"Bearer {token}"}
    async with joined(here, stream, "x"):
        for rest in ("", "explain"):
            assert (await http.get(path(stream, rest=rest), headers=headers)).status_code == 200
        assert (await http.get("/api/groups", headers=headers)).status_code == 200
        assert (await http.post(path(stream, rest="evaluate"), headers=headers)).status_code == 403
        for rest in ("", "explain"):
            nobody = await http.get(path(stream, rest=rest), headers={"Authorization": "Bearer hg_wrong"})
            assert nobody.status_code == 401


# Streams that nodes run.


async def test_a_stream_that_nodes_run_is_a_group_too(here: House, http: httpx.AsyncClient) -> None:
    name = await here.publish(source=GENERATOR, sink=BLACKHOLE, mapping=None)
    explained = await until(here, http, f"{name}:0", "active", "workers")
    assert explained["lines"][0].startswith("alpha has it under epoch ")
    assert [one["what"] for one in explained["lately"]] == ["granted", "acquired"]
    found = await shown(http, f"{name}:0", "workers")
    assert (found["kind"], found["active"], found["preferred"]) == ("workers", "alpha", None)
    (member,) = found["members"]
    assert (member["label"], member["activity"], member["why_not"]) == ("alpha", "active", "")
    (item,) = (await http.get("/api/groups", params={"stream": f"{name}:0"})).json()["items"]
    assert (item["name"], item["status"], item["active"]) == ("workers", "active", "alpha")
    answer = await http.post(path(f"{name}:0", "workers", "evaluate"), json={"yes": True})
    assert (answer.status_code, answer.json()["code"]) == (409, "workers")

    await http.post(f"/api/datasources/{name}/stop")
    explained = await until(here, http, f"{name}:0", "stopped", "workers")
    assert explained["lines"] == ["No node has it, and none should: its datasource is stopped."]


async def test_a_stream_that_no_node_can_run_says_why(here: House, http: httpx.AsyncClient) -> None:
    sink = {"type": "files", "path": "/no/such/folder/at/all"}
    name = await here.publish(source=GENERATOR, sink=sink, mapping=None)
    explained = await here.until(
        lambda: shown(http, f"{name}:0", "workers", "explain"), lambda found: "all are unable" in found["lines"][0]
    )
    assert explained["status"] == "vacant"
    assert explained["lines"][1].startswith("alpha is unable: ")


async def test_what_programs_push_is_no_group_of_nodes(here: House, http: httpx.AsyncClient) -> None:
    name = await here.publish()
    assert (await http.get(path(f"{name}:0", "workers"))).status_code == 404
    assert (await http.get("/api/groups", params={"stream": f"{name}:0"})).json()["items"] == []


# Moving.


async def test_a_stream_is_moved_once_and_left_alone_again(here: House, http: httpx.AsyncClient) -> None:
    name = await here.publish(source=GENERATOR, sink=BLACKHOLE, mapping=None)
    await until(here, http, f"{name}:0", "active", "workers")
    where = f"/api/streams/{name}:0/move"
    id = str(here.node.incarnation)
    for target, is_new in (("alpha", True), (id, False), (id[:8], False)):
        done = (await http.post(where, json={"node": target})).json()
        assert (done["is_new"], done["wish"]) == (is_new, {"id": id, "node": "alpha", "by": "operator"})
    assert (await http.get(f"/api/streams/{name}:0")).json()["wish"]["by"] == "operator"
    lines = (await shown(http, f"{name}:0", "workers", "explain"))["lines"]
    assert lines[1].startswith("An operator wants it on alpha, where it is.")
    for is_new in (True, False):
        done = (await http.post(where, json={"node": None})).json()
        assert (done["is_new"], done["wish"]) == (is_new, None)
    events = (await http.get(f"/api/datasources/{name}/events?limit=100")).json()["items"]
    moves = [event["type"] for event in events if event["type"].startswith("stream_")]
    assert moves == ["stream_moved", "stream_unpinned"]


async def test_what_cannot_be_moved_is_refused(here: House, http: httpx.AsyncClient) -> None:
    sticky = await here.publish(source=GENERATOR, sink=BLACKHOLE, mapping=None)
    modulo = await here.publish(source=GENERATOR, sink=BLACKHOLE, mapping=None, assignment="modulo")
    pushed = await here.publish()
    async with here.connected(pushed) as program:
        await program.have("host")
    await here.sql(
        "INSERT INTO headgate.node (id, name, lease_s, version, draining)"
        " VALUES (gen_random_uuid(), 'drained', 3600, '0', true)"
    )
    try:
        for stream, node, status, code in (
            (f"{modulo}:0", "alpha", 409, "modulo"),
            (f"{pushed}:host", "alpha", 409, "pushed"),
            (f"{pushed}:0", "alpha", 409, "pushed"),
            (f"{sticky}:0", "drained", 409, "draining"),
            (f"{sticky}:0", "nobody", 404, "not_found"),
            ("nobody:0", "alpha", 404, "not_found"),
        ):
            answer = await http.post(f"/api/streams/{stream}/move", json={"node": node})
            assert (answer.status_code, answer.json()["code"]) == (status, code), stream
        explained = await shown(http, f"{sticky}:0", "workers", "explain")
        assert "drained gets nothing new: draining." in explained["lines"]
        found = await until(here, http, f"{modulo}:0", "active", "workers")
        assert "It is placed by its number (assignment: modulo)." in found["lines"]
    finally:
        await here.sql("DELETE FROM headgate.node WHERE name = 'drained'")
    for body in ({}, {"node": 5}, {"node": "alpha", "more": 1}, {"node": "al\0pha"}):
        assert (await http.post(f"/api/streams/{sticky}:0/move", json=body)).status_code == 422
    _, token = await here.node.tokens.create(f"viewer {sticky}", "viewer")
    headers = {"Authorization": f"Bearer {token}"}
    answer = await http.post(f"/api/streams/{sticky}:0/move", json={"node": "alpha"}, headers=headers)
    assert answer.status_code == 403


async def test_assignment_does_not_go_with_push(http: httpx.AsyncClient) -> None:
    document = {"source": {"type": "push"}, "sink": BLACKHOLE, "assignment": "modulo"}
    answer = await http.post("/api/plan", json={"datasources": {"no": document}})
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["path"] == "datasources.no.assignment"


# Metrics.


async def figure(http: httpx.AsyncClient, name: str) -> float | None:
    lines = (await http.get("/metrics")).text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), None)


async def test_groups_are_counted(
    here: House, http: httpx.AsyncClient, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.telemetry.metrics.FRESH_S", 0.0)
    monkeypatch.setattr("headgate.telemetry.metrics.SHARE", 0.0)
    ended = await figure(http, 'headgate_group_ends_total{code="unauthorized"}') or 0.0

    async def read() -> list[float | None]:
        names = ("headgate_groups", "headgate_groups_inactive", "headgate_group_connections")
        return [await figure(http, name) for name in names]

    before = await here.until(read, lambda found: found[2] == 0.0 and None not in found)
    counted = await figure(http, "headgate_group_handover_seconds_count") or 0.0
    async with joined(here, stream, "zero", partition=1) as zero:
        epoch = await zero.take()
        await until(here, http, stream, "active")
        assert await read() == [(before[0] or 0.0) + 1, before[1], 1.0]
        async with joined(here, stream, "one", partition=1) as one:
            await zero.hear("step_down")
            await zero.confirm(epoch, "stepped_down")
            assert await one.take() == epoch + 1
        await here.until(
            lambda: figure(http, "headgate_group_handover_seconds_count"), lambda found: found == counted + 1
        )
    async with connect(here.url.replace("http", "ws") + "/groups", compression=None) as socket:
        taker = Taker(socket)
        await taker.say("join", 1, "hg_wrong", stream, "g", None, "x", None, None)
        await taker.hear("error")
    await here.until(
        lambda: figure(http, 'headgate_group_ends_total{code="unauthorized"}'), lambda found: found == ended + 1
    )
    assert await figure(http, "headgate_streams_moving") == 0.0
    assert await figure(http, 'headgate_group_consumers{connectivity="forgotten"}') is not None


async def test_the_figures_of_the_installation_are_not_asked_for_at_every_scrape(
    here: House, http: httpx.AsyncClient, stream: str
) -> None:
    await http.get("/metrics")
    before = await figure(http, "headgate_groups")
    async with joined(here, stream, "one"):
        assert await figure(http, "headgate_groups") == before


async def test_every_status_is_one_that_is_known(http: httpx.AsyncClient) -> None:
    items = (await http.get("/api/groups")).json()["items"]
    assert items
    assert {one["status"] for one in items} <= set(STATUSES)


async def test_a_holder_that_does_not_step_down_is_named_with_its_deadline(
    here: House, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sink does not end a write; the node that should have the stream exists in its row only."""
    gate, real = Gate(), connectors.get
    monkeypatch.setattr(connectors, "get", lambda name: gate.connector if name == "gate" else real(name))
    gate.is_stubborn = True
    gate.may_write.clear()
    name = await here.publish(source=GENERATOR, sink={"type": "gate"}, mapping=None)
    async with asyncio.timeout(LONG_S):
        await gate.writing.acquire()
    await here.sql(
        "INSERT INTO headgate.node (id, name, lease_s, version) VALUES (gen_random_uuid(), 'ghost', 3600, '0')"
    )
    try:
        done = await http.post(f"/api/streams/{name}:0/move", json={"node": "ghost"})
        assert done.status_code == 200
        explained = await here.until(
            lambda: shown(http, f"{name}:0", "workers", "explain"), lambda found: "This node would" in str(found)
        )
        assert explained["status"] == "handing over"
        assert explained["lines"][1].startswith("alpha was told to step down and has not yet. This node would take the")
        assert explained["lines"][2].startswith("An operator wants it on ghost.")
        assert 0.0 < (await shown(http, f"{name}:0", "workers"))["takes_in_s"] <= 70.0
    finally:
        gate.may_write.set()
        await here.sql("DELETE FROM headgate.node WHERE name = 'ghost'")

"""The webhook door of a real node: what it takes, what it refuses and how, and that nothing taken is lost."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from headgate.connectors.api import INBOX_IDENTITY
from headgate.store.database import Database, connect, sql
from headgate.store.inbox import InboxTable, Limit, Payload
from headgate.web.origin import HEADER
from tests.waiting import LONG_S
from tests.web_node import Web, bearer, session_cookie

KEY = "whsec-recognisable"
ORDER = b'{"id": 1, "name": "caf\xc3\xa9"}'


def sign(signed: bytes, key: str = KEY) -> str:
    return hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()


def signed_headers(scheme: str, body: bytes, key: str = KEY, at_s: int | None = None) -> dict[str, str]:
    at_s = int(time.time()) if at_s is None else at_s
    match scheme:
        case "github":
            return {"X-Hub-Signature-256": "sha256=" + sign(body, key), "X-GitHub-Delivery": str(uuid4())}
        case "stripe":
            return {"Stripe-Signature": f"t={at_s},v1={sign(f'{at_s}.'.encode() + body, key)}"}
        case "slack":
            signature = "v0=" + sign(f"v0:{at_s}:".encode() + body, key)
            return {"X-Slack-Request-Timestamp": str(at_s), "X-Slack-Signature": signature}
        case _:
            return {"X-Sent-At": str(at_s), "X-Signature": sign(f"{at_s}.".encode() + body, key)}


every_layout = pytest.mark.parametrize("scheme", ["github", "stripe", "slack", "generic"])


def signature(scheme: str) -> dict[str, Any]:
    options: dict[str, Any] = {"scheme": scheme, "secret": {"$secret": "hook"}}
    return options | ({"timestamp_header": "X-Sent-At"} if scheme == "generic" else {})


@pytest.fixture(autouse=True, scope="module")
def _secrets(web: Web) -> None:
    web.call("PUT", "/api/secrets/hook", {"value": KEY})
    web.call("PUT", "/api/secrets/warehouse", {"value": web.database})


def hook(web: Web, name: str, sink: dict[str, Any] | None = None, **options: Any) -> str:
    """Publish a webhook; returns its path."""
    web.publish(name, source={"type": "webhook", **options}, sink=sink or {"type": "blackhole"})
    return f"/hooks/{name}"


def table(name: str) -> dict[str, Any]:
    """A sink that keeps what it gets in a table of this name."""
    return {"type": "postgres", "url": {"$secret": "warehouse"}, "table": name.replace("-", "_"), "create": True}


def inbox(web: Web, name: str) -> list[Any]:
    """What was made durable."""
    query = "SELECT i.* FROM headgate.inbox i JOIN headgate.datasource d ON d.id = i.datasource WHERE d.name = $1"
    return web.rows(f"{query} AND NOT d.deleted ORDER BY i.id", name)


# What is taken.


def test_a_call_with_a_token_is_durable_when_it_is_answered_and_ends_in_the_sink(web: Web, name: str) -> None:
    path = hook(web, name, table(name))
    answer = web.ask("POST", path, content=ORDER)
    assert (answer.status_code, answer.json()) == (202, {"status": "accepted"})
    assert [row["body"] for row in inbox(web, name)] == [ORDER]
    web.wait_for(name, lambda d: d["metrics"].get("records_written") == 1)
    assert [tuple(row) for row in web.rows(f"SELECT id, name FROM {name.replace('-', '_')}")] == [(1, "café")]
    assert web.counted(name, 202) == 1


@every_layout
def test_a_signed_call_needs_no_token(web: Web, name: str, scheme: str) -> None:
    path = hook(web, name, signature=signature(scheme))
    answer = httpx.post(web.node.url + path, content=ORDER, headers=signed_headers(scheme, ORDER))
    assert answer.status_code == 202, answer.text
    assert len(inbox(web, name)) == 1


@every_layout
def test_the_same_signed_message_twice_is_answered_202_twice_and_is_one_row(web: Web, name: str, scheme: str) -> None:
    path = hook(web, name, signature=signature(scheme))
    headers = signed_headers(scheme, ORDER)
    assert [web.ask("POST", path, content=ORDER, headers=headers).status_code for _ in range(2)] == [202, 202]
    assert len(inbox(web, name)) == 1
    other = ORDER.replace(b"1", b"2")
    assert web.ask("POST", path, content=other, headers=signed_headers(scheme, other)).status_code == 202
    assert len(inbox(web, name)) == 2


def test_a_worthless_signature_beside_the_good_one_does_not_get_a_replay_through(web: Web, name: str) -> None:
    path = hook(web, name, signature=signature("stripe"))
    headers = signed_headers("stripe", ORDER)
    web.ask("POST", path, content=ORDER, headers=headers)
    headers["Stripe-Signature"] += ",v1=00"
    assert web.ask("POST", path, content=ORDER, headers=headers).status_code == 202
    assert len(inbox(web, name)) == 1


def test_a_delivery_number_of_any_length_is_answered(web: Web, name: str) -> None:
    """An index takes 2,700 bytes; a longer key would fail the commit, and all who wait for it."""
    path = hook(web, name, signature=signature("github"))
    long = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(100))
    headers = signed_headers("github", ORDER) | {"X-GitHub-Delivery": long}
    assert [web.ask("POST", path, content=ORDER, headers=headers).status_code for _ in range(2)] == [202, 202]
    assert len(inbox(web, name)) == 1


def test_text_is_taken_as_it_is_where_the_format_is_text(web: Web, name: str) -> None:
    path = hook(web, name, table(name), format="text")
    assert web.ask("POST", path, content=b"not JSON: \xff").status_code == 202
    web.wait_for(name, lambda d: d["metrics"].get("records_written") == 1)
    assert [row["body"] for row in web.rows(f"SELECT body FROM {name.replace('-', '_')}")] == ["not JSON: \ufffd"]


def test_headers_are_kept_but_credentials_and_signatures_are_not(web: Web, name: str) -> None:
    path = hook(web, name, signature=signature("github"))
    headers = signed_headers("github", ORDER) | {"X-Kind": "order", "Cookie": "a=b"} | bearer("hg_not_to_be_kept")
    web.ask("POST", path, content=ORDER, headers=headers)
    (row,) = inbox(web, name)
    kept = json.loads(row["headers"])
    assert kept["x-kind"] == "order"
    assert kept.keys().isdisjoint({"authorization", "cookie", "x-hub-signature-256", "host"})


def test_a_datasource_in_error_still_takes_what_comes(web: Web, name: str) -> None:
    web.execute(f"CREATE TABLE {name.replace('-', '_')} (other int)")
    path = hook(web, name, {**table(name), "schema": {"new_fields": "fail"}})
    assert web.ask("POST", path, content=ORDER).status_code == 202
    web.until(lambda: web.events(name), lambda types: "worker_quarantined" in types)
    assert web.ask("POST", path, content=ORDER).status_code == 202
    web.execute(f"ALTER TABLE {name.replace('-', '_')} ADD id int, ADD name text")
    web.call("POST", f"/api/datasources/{name}/restart")
    web.wait_for(name, lambda d: d["metrics"].get("records_written") == 2)


# What is refused.


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem that the answer is."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    return found


@every_layout
def test_a_badly_signed_call_gets_401_without_a_word_and_is_counted(web: Web, name: str, scheme: str) -> None:
    path = hook(web, name, signature=signature(scheme))
    good = signed_headers(scheme, ORDER)
    attempts: list[dict[str, str]] = [
        {},
        signed_headers(scheme, ORDER, key="another"),
        signed_headers(scheme, ORDER + b" "),
        dict.fromkeys(good, "garbage"),
        dict.fromkeys(good, "é=ÿ, t=²,v1=é"),
        {header: value + "é" for header, value in good.items()},
        dict.fromkeys(good, "," * 3000),
    ]
    if scheme != "github":
        attempts += [signed_headers(scheme, ORDER, at_s=int(time.time()) + off_s) for off_s in (-1000, 1000)]
    for headers in attempts:
        raw = [(header.encode(), value.encode("latin-1")) for header, value in headers.items()]
        found = refused(web.ask("POST", path, content=ORDER, headers=raw), 401)
        assert found.keys() == {"type", "title", "status"}
    assert inbox(web, name) == []
    assert web.counted(name, 401) == len(attempts)


def test_without_a_signature_a_token_that_may_send_is_needed(web: Web, name: str) -> None:
    path = hook(web, name)
    for headers in (
        {"Authorization": ""},
        bearer("wrong"),
        {"Authorization": "Basic eDp5"},
    ):
        assert refused(web.ask("POST", path, content=ORDER, headers=headers), 401).keys() == {"type", "title", "status"}
    raw = [(b"Authorization", b"Bearer \xe9\xff")]
    refused(web.ask("POST", path, content=ORDER, headers=raw), 401)
    for token in (web.token("viewer"), web.token("sender", datasources=[f"{name}-not"])):
        refused(web.ask("POST", path, content=ORDER, headers=bearer(token)), 403)
    for token in (web.token("operator"), web.token("sender", datasources=[name])):
        assert web.ask("POST", path, content=ORDER, headers=bearer(token)).status_code == 202


def test_a_session_sends_to_a_webhook_only_what_a_script_of_our_own_pages_sends(web: Web, name: str) -> None:
    path, ours = hook(web, name), {HEADER: "1", "Origin": web.node.url}
    cookie = {"Authorization": "", "Cookie": session_cookie(web)}
    elsewhere = {**ours, "Origin": "http://evil.example"}
    for headers in ({}, {"Origin": web.node.url}, {HEADER: "1"}, elsewhere, {**ours, "Sec-Fetch-Site": "cross-site"}):
        refused(web.ask("POST", path, content=ORDER, headers={**cookie, **headers}), 401)
    assert web.ask("POST", path, content=ORDER, headers={**cookie, **ours}).status_code == 202
    viewer = {"Authorization": "", "Cookie": session_cookie(web, web.token("viewer"))}
    refused(web.ask("POST", path, content=ORDER, headers={**viewer, **ours}), 403)


def chunks(number: int) -> Iterator[bytes]:
    """A body whose length is not said before."""
    for _ in range(number):
        yield b"x" * 64


def test_an_oversize_body_gets_413_with_its_length_said_or_not_and_is_counted(web: Web, name: str) -> None:
    path = hook(web, name, max_body_bytes=100)
    assert web.ask("POST", path, content=b'"' + b"x" * 98 + b'"').status_code == 202
    assert "100 bytes" in refused(web.ask("POST", path, content=b"x" * 101), 413)["detail"]
    refused(web.ask("POST", path, content=chunks(2)), 413)
    refused(web.ask("POST", path, content=chunks(5000)), 413)
    assert len(inbox(web, name)) == 1
    assert web.counted(name, 413) == 3


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"1e308," * 1_000 + b"1]",
        b"[" + b"1," * 210_000 + b"1]",
        b"[" + b"1," * 700_000 + b"1]",
        b"[" + b'"a",' * 700_000 + b"1]",
        b'"' + b"x" * 11_000_000 + b'"',
    ],
    ids=["huge numbers", "many values", "very many", "many texts", "a long text"],
)
def test_json_that_would_hold_the_node_up_gets_413_and_is_taken_as_text(web: Web, name: str, body: bytes) -> None:
    path = hook(web, name, table(name), max_body_bytes=16 * 1024 * 1024)
    assert "costs too much" in refused(web.ask("POST", path, content=body), 413)["detail"]
    assert inbox(web, name) == []
    path = hook(web, name, table(name), max_body_bytes=16 * 1024 * 1024, format="text")
    assert web.ask("POST", path, content=body).status_code == 202
    web.wait_for(name, lambda found: found["metrics"].get("records_written") == 1)


def test_a_large_body_of_cheap_json_is_taken(web: Web, name: str) -> None:
    path = hook(web, name, table(name), max_body_bytes=16 * 1024 * 1024)
    assert web.ask("POST", path, content=b'{"a":"' + b"1,[{1e308:" * 500_000 + b'"}').status_code == 202
    web.wait_for(name, lambda found: found["metrics"].get("records_written") == 1)
    assert "not JSON" in refused(web.ask("POST", path, content=b'{"a":"' + b"1," * 1_000_000), 400)["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b"{}{}",
        b"nan",
        b'"\xff"',
        b'{"\xff": 1}',
        b"1e999",
        b'"\\ud800"',
        b"[" * 100_000,
        b"'x'",
    ],
)
def test_a_body_that_cannot_be_read_later_gets_400_now(web: Web, body: bytes) -> None:
    """What is answered 202 and cannot be decoded would stop the datasource for good."""
    if not web.ask("GET", "/api/datasources/for-json").is_success:
        hook(web, "for-json")
    assert "not JSON" in refused(web.ask("POST", "/hooks/for-json", content=body), 400)["detail"]
    assert inbox(web, "for-json") == []


def test_a_json_body_that_is_no_object_is_taken_and_does_not_stop_the_datasource(web: Web, name: str) -> None:
    web.publish(name, source={"type": "webhook"}, mapping={"set": {"id": "id"}}, on_error="skip")
    for body in (b"5", b"[1]", b"null", b'"x"', b'{"id": 1}'):
        assert web.ask("POST", f"/hooks/{name}", content=body).status_code == 202
    web.wait_for(name, lambda d: d["metrics"].get("records_read") == 5)


def test_a_stopped_one_gets_503_with_when_to_come_back(web: Web, name: str) -> None:
    path = hook(web, name)
    web.call("POST", f"/api/datasources/{name}/stop")
    web.until(lambda: web.ask("POST", path, content=ORDER), lambda answer: answer.status_code == 503)
    answer = web.ask("POST", path, content=ORDER)
    assert "stopped" in refused(answer, 503)["detail"]
    assert answer.headers["retry-after"] == "2"
    web.call("POST", f"/api/datasources/{name}/start")
    web.until(lambda: web.ask("POST", path, content=ORDER), lambda answer: answer.status_code == 202)


def test_a_full_inbox_gets_503_until_there_is_room(web: Web, name: str) -> None:
    broken = {"type": "files", "path": f"/nowhere/{name}"}
    path = hook(web, name, broken, inbox_limit_rows=3)
    answers = [web.ask("POST", path, content=ORDER) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [202, 202, 202, 503]
    assert "full" in refused(answers[3], 503)["detail"]
    assert answers[3].headers["retry-after"] == "2"
    assert len(inbox(web, name)) == 3
    assert web.counted(name, 503) == 1
    limit = {"type": "webhook", "inbox_limit_bytes": 10}
    web.publish(name, source=limit, sink=broken)
    refused(web.until(lambda: web.ask("POST", path, content=ORDER), lambda answer: answer.status_code == 503), 503)


@pytest.mark.parametrize(
    "path", ["nobody", "", "a/b", "%2e%2e", "a%00b", "%FF", "caf%C3%A9", "UPPER", "x" * 5000, "a%2Fb", "nobody/"]
)
def test_an_unknown_one_gets_404(web: Web, path: str) -> None:
    with httpx.Client() as plain:
        raw = httpx.URL(web.node.url).copy_with(raw_path=f"/hooks/{path}".encode())
        refused(plain.post(raw, content=ORDER), 404)


def test_what_is_no_webhook_is_not_found_and_no_name_of_a_stranger_is_remembered(web: Web, name: str) -> None:
    web.publish(name)
    refused(web.ask("POST", f"/hooks/{name}", content=ORDER), 404)
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "PATCH"):
        answer = web.ask(method, "/hooks/stranger-9")
        refused(answer, 405)
        assert answer.headers["allow"] == "POST"
    assert web.ask("HEAD", "/hooks/stranger-9").status_code == 405
    web.ask("POST", "/hooks/stranger-9")
    assert "stranger-9" not in web.ask("GET", "/metrics").text
    assert web.counted("", 405) >= 5
    assert web.counted("", 404) >= 2


def test_a_draft_is_no_webhook_yet_and_a_deleted_one_is_none_any_more(web: Web, name: str) -> None:
    web.call("PUT", f"/api/datasources/{name}", {"source": {"type": "webhook"}, "sink": {"type": "blackhole"}})
    refused(web.ask("POST", f"/hooks/{name}", content=ORDER), 404)
    web.call("POST", f"/api/datasources/{name}/publish")
    assert web.ask("POST", f"/hooks/{name}", content=ORDER).status_code == 202
    web.call("DELETE", f"/api/datasources/{name}?yes=true")
    web.until(lambda: web.ask("POST", f"/hooks/{name}", content=ORDER), lambda answer: answer.status_code == 404)
    assert web.counted(name, 202) == 0.0


def test_too_many_headers_are_refused(web: Web, name: str) -> None:
    path = hook(web, name)
    refused(web.ask("POST", path, content=ORDER, headers={"X-Long": "x" * 9000}), 431)
    assert inbox(web, name) == []


def test_a_changed_key_counts_at_once_and_the_old_one_no_longer(web: Web, name: str) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": "first"})
    path = hook(web, name, signature={"scheme": "github", "secret": {"$secret": name}})
    assert web.ask("POST", path, content=ORDER, headers=signed_headers("github", ORDER, "first")).status_code == 202
    web.call("PUT", f"/api/secrets/{name}", {"value": "second"})

    def status(key: str) -> int:
        return web.ask("POST", path, content=ORDER, headers=signed_headers("github", ORDER, key)).status_code

    web.until(lambda: status("second"), lambda found: found == 202)
    assert status("first") == 401


# Order, and that nothing is lost.


async def test_of_two_thousand_calls_at_once_each_ends_in_the_sink_exactly_once(web: Web, name: str) -> None:
    path = await asyncio.to_thread(hook, web, name, table(name))
    url = httpx.URL(web.node.url)

    async def caller(first: int) -> set[bytes]:
        """Forty calls over one connection, written by hand: a client library would be the slowest part."""
        reader, writer = await asyncio.open_connection(url.host, url.port)
        answers = set()
        for n in range(first, first + 40):
            body = json.dumps({"id": n})
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {web.node.token}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            answers.add((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
            await reader.readexactly(len(b'{"status":"accepted"}'))
        writer.close()
        return answers

    assert set().union(*await asyncio.gather(*map(caller, range(0, 2000, 40)))) == {b"HTTP/1.1 202 Accepted"}

    def check() -> None:
        web.wait_for(name, lambda d: d["metrics"].get("records_written") == 2000)
        rows = web.rows(f"SELECT id FROM {name.replace('-', '_')}")
        assert sorted(row["id"] for row in rows) == list(range(2000))

    await asyncio.to_thread(check)


async def test_a_reader_misses_no_id_while_the_commits_of_two_writers_overlap(url: str) -> None:
    """The second writer must not draw its ids before the first has committed, or a reader could pass over them."""
    datasource = uuid4()
    first, second = await connect(url), await connect(url)
    database = await Database.open(url)
    reader = InboxTable(database, INBOX_IDENTITY)

    def append(connection: Any, body: bytes) -> Any:
        limits = ([datasource], [1000], [10**6])
        return connection.fetchval(sql("inbox/append"), *limits, [datasource], ["{}"], [body], [None], "")

    try:
        await first.execute("BEGIN")
        await append(first, b"first")
        waiting = asyncio.ensure_future(append(second, b"second"))
        pid = second.get_server_pid()
        while not await database.fetchval("SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted", pid):
            await asyncio.sleep(0.01)
        assert await reader.after(datasource, 0, 10) == []
        await first.execute("COMMIT")
        await waiting
        found = await reader.after(datasource, 0, 10)
        assert [received.body for received in found] == [b"first", b"second"]
        assert found[0].id < found[1].id
    finally:
        for connection in (first, second):
            await connection.close()
        await database.close()


async def test_a_reader_beside_two_busy_writers_sees_every_payload_in_order(url: str) -> None:
    datasource, one, two = uuid4(), await Database.open(url, size=2), await Database.open(url, size=2)
    limits = {datasource: Limit()}

    async def write(database: Database, mark: str) -> None:
        table = InboxTable(database, INBOX_IDENTITY)
        for n in range(100):
            await table.append([Payload(datasource, "{}", f"{mark}{n}".encode())] * 1, limits)

    async def read() -> list[bytes]:
        table, last, bodies = InboxTable(one, INBOX_IDENTITY), 0, []
        while len(bodies) < 200:
            for received in await table.after(datasource, last, 7):
                assert received.id > last
                last = received.id
                bodies.append(received.body)
        return bodies

    try:
        async with asyncio.timeout(LONG_S):
            bodies, _, _ = await asyncio.gather(read(), write(one, "a"), write(two, "b"))
        for mark in ("a", "b"):
            own = [body for body in bodies if body.startswith(mark.encode())]
            assert own == [f"{mark}{n}".encode() for n in range(100)]
        assert await InboxTable(one, INBOX_IDENTITY).size(datasource) == (200, sum(map(len, bodies)))
    finally:
        await one.close()
        await two.close()

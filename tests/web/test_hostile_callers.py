"""Strangers at the doors of a real node. Beside them a lawful sender calls a signed webhook all the time: each of its
calls is answered 202 and is one row, and the node is the same process at the end."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import socket
import threading
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.waiting import wait_until
from tests.web_node import Databases, Web, bearer, started

KEY = "whsec-of-the-lawful-one"
LAWFUL = "lawful"
ACCEPTED = b'{"status":"accepted"}'


def signed(body: bytes, key: str = KEY) -> str:
    return hmac.new(key.encode(), body, hashlib.sha256).hexdigest()


@pytest.fixture(scope="module")
def web(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """A node with few connections for one address, a webhook that needs a signature and one that needs a token."""
    few = {"HEADGATE_MAX_CONNECTIONS": "700", "HEADGATE_MAX_CONNECTIONS_PER_ADDRESS": "600"}
    with started(tmp_path_factory.mktemp("node"), databases.make(), **few) as node:
        node.call("PUT", "/api/secrets/hook", {"value": KEY})
        node.call("PUT", "/api/secrets/warehouse", {"value": node.database})
        signature = {"scheme": "generic", "secret": {"$secret": "hook"}}
        sink = {"type": "postgres", "url": {"$secret": "warehouse"}, "table": LAWFUL, "create": True}
        node.publish(LAWFUL, source={"type": "webhook", "signature": signature}, sink=sink)
        node.publish("with-token", source={"type": "webhook", "max_body_bytes": 64 * 1024 * 1024})
        node.running(LAWFUL)
        yield node


class Sender:
    """Calls the webhook until it is told to stop, one call after the other, over one connection."""

    _numbers = itertools.count()

    def __init__(self, web: Web) -> None:
        self._web = web
        self._stop = threading.Event()
        self.answers: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with httpx.Client(base_url=self._web.node.url, timeout=60) as client:
            while not self._stop.is_set():
                number = next(self._numbers)
                body = json.dumps({"id": number}).encode()
                answer = client.post(f"/hooks/{LAWFUL}", content=body, headers={"X-Signature": signed(body)})
                self.answers[number] = answer.status_code

    def goes_on(self) -> None:
        """Wait until some more calls were answered."""
        before = len(self.answers)
        wait_until(lambda: len(self.answers) > before + 5 or not self._thread.is_alive())
        assert self._thread.is_alive()

    def end(self) -> None:
        """Stop, and count: answers and rows."""
        self._stop.set()
        self._thread.join()
        assert set(self.answers.values()) == {202}
        wait_until(lambda: set(self.answers) <= set(self._rows()))
        found = self._rows()
        assert len(found) == len(set(found))

    def _rows(self) -> list[int]:
        return [row["id"] for row in self._web.rows(f"SELECT id FROM {LAWFUL}")]


@pytest.fixture
def sender(web: Web) -> Iterator[Sender]:
    """The lawful one, beside whatever the test does."""
    process = psutil.Process(web.node.process.pid)
    before = process.create_time()
    sending = Sender(web)
    sending.goes_on()
    try:
        yield sending
        sending.goes_on()
    finally:
        sending.end()
    assert psutil.Process(web.node.process.pid).create_time() == before


def connect(web: Web) -> socket.socket:
    """A plain connection."""
    url = httpx.URL(web.node.url)
    return socket.create_connection((url.host, url.port), timeout=60)


def rest(sock: socket.socket) -> bytes:
    """All that comes until the node closes."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(1 << 16):
            found += data
    return bytes(found)


def pour(sock: socket.socket, data: bytes, most: int) -> int:
    """Send this again and again until the node has had enough; returns how many bytes it took."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most:
            sent += sock.send(data)
    return sent


def memory(web: Web) -> int:
    return int(psutil.Process(web.node.process.pid).memory_info().rss)


def exchange(web: Web, request: bytes) -> bytes:
    """What is answered to these bytes, until the node closes."""
    with connect(web) as sock:
        sock.sendall(request)
        return rest(sock)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


MB = 1024 * 1024


@pytest.mark.parametrize("path", ["/hooks/lawful", "/api/datasources", "/push"])
def test_an_endless_header_is_refused_after_64_kb(web: Web, sender: Sender, path: str) -> None:
    with connect(web) as sock:
        sock.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Long: ".encode())
        assert pour(sock, b"x" * MB, 80 * MB) < 80 * MB
        answer = rest(sock)
        assert not answer or (status(answer) == 431 and b"65536" in answer)


def test_many_headers_are_refused(web: Web, sender: Sender) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    assert status(exchange(web, head + b"a:\r\n" * 10_000 + b"\r\n")) == 431


def test_a_body_without_a_token_is_not_taken(web: Web, sender: Sender) -> None:
    before = memory(web)
    for path in ("/hooks/with-token", "/api/apply", "/api/datasources/x"):
        for head in (b"Content-Length: 67108864\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
            with connect(web) as sock:
                sock.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + head)
                chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
                assert pour(sock, chunk, 64 * MB) < 64 * MB
    assert memory(web) - before < 32 * MB


def test_a_refused_body_does_not_lose_the_answer(web: Web, sender: Sender) -> None:
    """The caller still sends when it is refused; a reset would take the answer with it."""
    large = b"x" * (4 * MB)
    for path in ("/hooks/lawful", "/hooks/with-token", "/hooks/nobody", "/api/apply"):
        answer = httpx.post(web.node.url + path, content=large)
        assert answer.status_code in (401, 404, 413), path


def test_a_body_that_is_announced_with_a_wish_to_continue_is_asked_for_only_if_it_is_wanted(web: Web) -> None:
    body = b'{"id": -1}'

    def ask(headers: str) -> tuple[bytes, bytes]:
        with connect(web) as sock:
            head = f"POST /hooks/with-token HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}"
            sock.sendall(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
            first = sock.recv(25)
            if status(first) == 100:
                sock.sendall(body)
            return first, rest(sock)

    first, last = ask(f"Authorization: Bearer {web.node.token}\r\n")
    assert (status(first), status(last)) == (100, 202)
    assert status(ask("Authorization: Bearer wrong\r\n")[0]) == 401


def test_silent_and_half_connections_do_nothing(web: Web, sender: Sender) -> None:
    halves = [
        b"",
        b"P",
        b"POST /hooks/lawful HTTP/1.1\r\n",
        b"POST /hooks/lawful HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
    ]
    with contextlib.ExitStack() as stack:
        for number in range(500):
            sock = stack.enter_context(connect(web))
            sock.sendall(halves[number % len(halves)])
        sender.goes_on()
        assert web.ask("GET", "/api/datasources").is_success


def test_an_address_has_only_so_many_connections_and_gets_them_back(web: Web, sender: Sender) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(web)) for _ in range(650)]
        late = rest(socks[-1])
        assert not late or (status(late) == 503 and b"connections already" in late)
        sender.goes_on()

    def has_room() -> bool:
        try:
            return httpx.get(f"{web.node.url}/healthz").is_success
        except httpx.HTTPError:
            return False

    wait_until(has_room)


@pytest.mark.parametrize("path", ["/api/connectors", "/hooks/x"])
def test_a_reader_that_reads_nothing_holds_nobody_up(web: Web, sender: Sender, path: str) -> None:
    """It asks again and again and takes no answer: the node stops reading from it."""
    ask = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {web.node.token}\r\n\r\n".encode()
    before = memory(web)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(connect(web))
            sock.settimeout(0.2)
            with contextlib.suppress(TimeoutError, ConnectionError):
                pour(sock, ask * 100, 4 * MB)
        sender.goes_on()
        assert memory(web) - before < 64 * MB


def test_strangers_names_cost_no_query_each(web: Web, sender: Sender) -> None:
    """A thousand names that nobody has, over fifty connections."""

    def queries() -> int:
        """How often the table of datasources was looked into, by index or not."""
        query = "SELECT seq_scan + coalesce(idx_scan, 0) AS n FROM pg_stat_user_tables"
        return int(web.rows(f"{query} WHERE schemaname = 'headgate' AND relname = 'datasource'")[0]["n"])

    def flood(first: int) -> None:
        with connect(web) as sock:
            file = sock.makefile("rb")
            for number in range(first, first + 20):
                head = f"POST /hooks/stranger-{number} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"
                sock.sendall(head.encode())
                statuses.append(answer_of(file)[0])

    statuses: list[int] = []
    before = queries()
    threads = [threading.Thread(target=flood, args=(first,)) for first in range(0, 1000, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [404] * 1000
    assert queries() - before < 700  # The node's own looks, for other reasons, are among them.


def answer_of(file: object) -> tuple[int, bytes]:
    """The next answer on a connection that is kept."""
    line = file.readline()  # type: ignore[attr-defined]
    length = 0
    while header := file.readline().strip():  # type: ignore[attr-defined]
        if header.lower().startswith(b"content-length:"):
            length = int(header.split(b":")[1])
    return status(line), file.read(length)  # type: ignore[attr-defined]


def test_one_connection_may_mix_webhooks_and_everything_else_and_answers_come_in_order(web: Web) -> None:
    token = f"Authorization: Bearer {web.node.token}\r\n"
    hook = f"POST /hooks/with-token HTTP/1.1\r\nHost: x\r\n{token}".encode()
    asks = [
        hook + b"Content-Length: 2\r\n\r\n{}",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        hook + b"Transfer-Encoding: chunked\r\n\r\n1;x=y\r\n{\r\n1\r\n}\r\n0\r\nAuthorization: no\r\n\r\n",
        b"POST /hooks/nobody HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        f"GET /api/datasources/with-token HTTP/1.1\r\nHost: x\r\n{token}\r\n".encode(),
        b"POST http://somewhere/hooks/with-token?a=b HTTP/1.1\r\nHost: x\r\n"
        + token.encode()
        + b"Content-Length: 1\r\n\r\n1",
        b"GET /hooks/with-token HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    with connect(web) as sock:
        sock.sendall(b"".join(asks))
        file = sock.makefile("rb")
        found = [answer_of(file) for _ in asks]
    assert [status for status, _ in found] == [202, 200, 202, 404, 200, 202, 405]
    assert found[0][1] == ACCEPTED
    assert json.loads(found[4][1])["name"] == "with-token"


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 2\r\nContent-Length: 2\r\n",
        "Content-Length: 2\r\nContent-Length: 9\r\n",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: +2\r\n",
        "Content-Length: 0x2\r\n",
        "Content-Length: 2\n",
        "X: a\r\n b\r\nContent-Length: 2\r\n",
        "Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n",
    ],
)
@pytest.mark.parametrize("path", ["/hooks/with-token", "/api/apply"])
def test_what_two_readers_could_read_differently_is_refused_and_what_follows_is_not_read(
    web: Web, path: str, head: str
) -> None:
    token = f"Authorization: Bearer {web.node.token}\r\n"
    second = f"POST /hooks/with-token HTTP/1.1\r\nHost: x\r\n{token}Content-Length: 2\r\n\r\n{{}}"
    before = web.counted("with-token", 202)
    answer = exchange(web, f"POST {path} HTTP/1.1\r\nHost: x\r\n{token}{head}\r\n{{}}{second}".encode())
    assert status(answer) in (400, 501)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert web.counted("with-token", 202) == before


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"1;" + b"x" * MB, 413),
        (b"0\r\n" + b"X-Trailer: y\r\n" * 100_000, 413),
        (b"0\r\nX-Trailer: " + b"x" * MB, 413),
        (b"zz\r\n{}\r\n0\r\n\r\n", 400),
        (b"ffffffffffffffffff\r\n", 400),
    ],
)
def test_endless_framing_is_refused(web: Web, sender: Sender, body: bytes, expected: int) -> None:
    head = f"POST /hooks/with-token HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {web.node.token}\r\n"
    with connect(web) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        assert status(rest(sock)) == expected


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET /healthz HTTP/1.1\n\n", 400),
        (b"GET /healthz HTTP/2.0\r\n\r\n", 505),
        (b"GET /healthz\r\n\r\n", 505),
        (b"CONNECT somewhere:80 HTTP/1.1\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nExpect: more\r\n\r\n", 417),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"\r\n\r\nGET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", 200),
        (b"HEAD /hooks/x HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
        (b"GET /healthz HTTP/1.1\r\nConnection: upgrade, close\r\nUpgrade: h2c\r\n\r\n", 200),
    ],
)
def test_what_is_odd_is_answered_once_and_closed(web: Web, request_: bytes, expected: int) -> None:
    answer = exchange(web, request_)
    assert status(answer) == expected
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_flood_of_cheap_requests_on_one_connection_leaves_turns_to_others(web: Web, sender: Sender) -> None:
    """Sent all at once they wait for each other; everybody else goes on meanwhile."""
    with connect(web) as sock:
        taking = threading.Thread(target=rest, args=(sock,))
        taking.start()
        sock.sendall(b"GET /hooks/x HTTP/1.1\r\n\r\n" * 20_000)
        sender.goes_on()
        sock.shutdown(socket.SHUT_WR)
        taking.join()


def test_a_large_signed_body_is_taken_whole_in_pieces_and_chunks(web: Web, sender: Sender) -> None:
    large = b'"' + b"x" * (900 * 1024) + b'"'
    name = "large-ones"
    signature = {"scheme": "generic", "secret": {"$secret": "hook"}}
    web.publish(name, source={"type": "webhook", "signature": signature})

    def pieces() -> Iterator[bytes]:
        for first in range(0, len(large), 1000):
            yield large[first : first + 1000]

    for content in (large, pieces()):
        answer = httpx.post(f"{web.node.url}/hooks/{name}", content=content, headers={"X-Signature": signed(large)})
        assert answer.status_code == 202
    query = "SELECT i.body FROM headgate.inbox i JOIN headgate.datasource d ON d.id = i.datasource WHERE d.name = $1"
    assert [row["body"] for row in web.rows(query, name)] == [large, large]


def test_a_websocket_is_let_through_and_counts_as_a_connection(web: Web) -> None:
    head = "GET /push HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
    with connect(web) as sock:
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + (head + key).encode())
        file = sock.makefile("rb")
        assert answer_of(file)[0] == 200
        assert status(file.readline()) == 101


def test_unauthorized_calls_leave_the_token_webhook_as_it_was(web: Web, sender: Sender) -> None:
    for text in ("wrong", "hg_" + "x" * 43, "x" * 60_000):
        answer = httpx.post(f"{web.node.url}/hooks/with-token", content=b"{}", headers=bearer(text))
        assert answer.status_code == 401

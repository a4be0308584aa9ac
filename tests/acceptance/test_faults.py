"""Real processes, really killed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import os
import signal
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S, wait_until


def fetch(url: str, query: str) -> list[Any]:
    async def run() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()

    return asyncio.run(run())


def ids(url: str, table: str = "target") -> list[int]:
    if not fetch(url, f"SELECT to_regclass('{table}') AS t")[0]["t"]:
        return []
    return [row["id"] for row in fetch(url, f"SELECT id FROM {table} ORDER BY id")]


def counting(url: str, **options: Any) -> dict[str, Any]:
    return {
        "source": {"type": "generator", "rate": 2000, **options},
        "mapping": {"set": {"id": "id"}},
        "sink": {"type": "postgres", "url": url, "table": "target"},
    }


def test_killed_nine_times_nothing_is_lost_and_nothing_is_repeated(url: str, start_node: Any) -> None:
    """kill -9 in the middle of writing, again and again, into a transactional sink."""
    node = start_node(environment={"HEADGATE_LEASE_S": "3"})
    node.apply({"orders": counting(url)})
    for _ in range(4):
        before = len(ids(url))
        wait_until(lambda before=before: len(ids(url)) > before + 200)
        node.end(signal.SIGKILL)
        node = start_node(environment={"HEADGATE_LEASE_S": "3"})
    before = len(ids(url))
    wait_until(lambda: len(ids(url)) > before + 200)
    assert node.end(signal.SIGTERM) == 0
    found = ids(url)
    assert found == list(range(found[0], found[0] + len(found)))
    assert found[0] in (0, 1)


def test_a_stopped_node_that_wakes_after_another_took_over_changes_nothing(url: str, start_node: Any) -> None:
    """SIGSTOP past the lease; the other node takes the stream; SIGCONT."""
    environment = {"HEADGATE_LEASE_S": "3"}
    first = start_node("first", environment=environment)
    first.apply({"orders": counting(url)})
    wait_until(lambda: len(ids(url)) > 100)
    second = start_node("second", environment=environment)
    first.process.send_signal(signal.SIGSTOP)
    before = len(ids(url))
    wait_until(lambda: len(ids(url)) > before + 500)
    first.process.send_signal(signal.SIGCONT)
    wait_until(lambda: len(second_nodes(second)) == 2)  # It came back, as another incarnation.
    before = len(ids(url))
    wait_until(lambda: len(ids(url)) > before + 500)
    found = ids(url)
    assert found == list(range(found[0], found[0] + len(found)))


def second_nodes(node: NodeProcess) -> list[Any]:
    return list(node.call("GET", "/api/nodes")["items"])


def test_a_drained_node_hands_its_stream_over_without_a_repeat_into_a_plain_sink(
    url: str, start_node: Any, tmp_path: Path
) -> None:
    """SIGTERM is a cooperative move: even a sink that cannot take part in a transaction sees each record once."""
    target = tmp_path / "out.jsonl"
    document = {"source": {"type": "generator", "rate": 500}, "sink": {"type": "files", "path": str(target)}}
    node = start_node()
    node.apply({"orders": document})
    for _ in range(2):
        size = target.stat().st_size if target.exists() else 0
        wait_until(lambda size=size: target.exists() and target.stat().st_size > size + 5000)
        assert node.end(signal.SIGTERM) == 0
        node = start_node()
    size = target.stat().st_size
    wait_until(lambda: target.stat().st_size > size + 5000)
    node.end(signal.SIGTERM)
    import msgspec

    found = [msgspec.json.decode(line)["id"] for line in target.read_bytes().splitlines()]
    assert found == list(range(found[0], found[0] + len(found)))


def test_no_webhook_that_was_answered_202_is_lost_when_the_node_is_killed_under_load(url: str, start_node: Any) -> None:
    """Signed calls over many connections, written by hand so that the node is the slower side. What is on its way when
    the node is killed may be there or not; what was answered is there, and nothing is there twice."""
    node = start_node()
    node.call("PUT", "/api/secrets/hooks", {"value": "a key"})
    signature = {"scheme": "generic", "secret": {"$secret": "hooks"}}
    document = {
        "source": {"type": "webhook", "signature": signature},
        "sink": {"type": "postgres", "url": url, "table": "target"},
    }
    node.apply({"hooks": document})
    node.wait_for("hooks", lambda found: found["worker_status"] == "RUNNING")
    accepted: list[int] = []
    numbers = itertools.count()

    async def call() -> None:
        address = httpx.URL(node.url)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            while True:
                number = next(numbers)
                body = b'{"id": %d}' % number
                signed = hmac.new(b"a key", body, hashlib.sha256).hexdigest()
                head = f"POST /hooks/hooks HTTP/1.1\r\nX-Signature: {signed}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 202 ")
                await reader.readexactly(len('{"status":"accepted"}'))
                accepted.append(number)

    async def load() -> None:
        await asyncio.gather(*(call() for _ in range(32)))

    thread = threading.Thread(target=lambda: asyncio.run(load()))
    thread.start()
    wait_until(lambda: len(accepted) > 2000)
    node.end(signal.SIGKILL)
    thread.join()
    start_node(environment={"HEADGATE_LEASE_S": "5"})
    wait_until(lambda: set(accepted) <= set(ids(url)))
    found = ids(url)
    assert len(found) == len(set(found))


def test_the_embedded_database_survives_its_node_and_a_second_node_joins_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = NodeProcess.start(home, flags=("--demo",), environment={"HEADGATE_LEASE_S": "3"})
    try:
        first.wait_for("demo-clicks", lambda found: found["metrics"].get("records_written", 0) > 10)
        first.end(signal.SIGKILL)
        # Without the demo, which would say again where the database is: the secret of the last time still leads there.
        first = NodeProcess.start(home, environment={"HEADGATE_LEASE_S": "3"})
        found = first.wait_for("demo-clicks", lambda found: found["worker_status"] == "RUNNING")
        assert found["published_version"] == 1
        second = NodeProcess.start(home, environment={"HEADGATE_LEASE_S": "3"})
        try:
            assert second.url != first.url
            wait_until(lambda: len(second_nodes(second)) == 2)  # The killed one has been found out.
        finally:
            second.end(signal.SIGTERM)
        assert first.call("GET", "/healthz") == {"status": "ok"}
    finally:
        first.end(signal.SIGTERM)
    assert not postgres_runs_in(home)


def test_an_embedded_database_that_is_killed_is_started_again(tmp_path: Path) -> None:
    node = NodeProcess.start(tmp_path / "home", flags=("--demo",))
    try:
        node.wait_for("demo-clicks", lambda found: found["metrics"].get("records_written", 0) > 10)
        os.kill(int((tmp_path / "home/postgres/data/postmaster.pid").read_text().split()[0]), signal.SIGKILL)

        def goes_on() -> bool:
            answer = node.request("GET", "/api/datasources/demo-clicks")
            return answer.status_code == 200 and answer.json()["worker_status"] == "RUNNING"

        wait_until(lambda: node.request("GET", "/readyz").status_code == 503)
        wait_until(goes_on)
    finally:
        node.end(signal.SIGTERM)


def postgres_runs_in(home: Path) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(process / "cwd")).is_relative_to(home):
                return True
        except OSError:
            continue
    return False


BLOCKING_NODE = textwrap.dedent("""
    import sys, time
    from headgate.connectors import plugins
    from headgate.connectors.api import Connector, Options, SourceKind
    class Nothing(Options): pass
    class Blocks:
        def __init__(self, options, context): pass
        async def check(self): pass
        async def parts(self): return [""]
        async def open(self, position): pass
        async def read(self): time.sleep(600)
        async def ack(self, position): pass
        async def close(self): pass
    real = plugins.get
    blocks = Connector("blocks", "blocks", source=SourceKind(Nothing, Blocks))
    plugins.get = lambda name: blocks if name == "blocks" else real(name)
    from headgate.cli import main
    sys.argv = ["headgate", "up", "--port", "0"]
    main()
""")


def test_a_connector_that_blocks_the_loop_is_quarantined_and_does_not_kill_the_next_node(
    start_node: Any, tmp_path: Path
) -> None:
    """The node ends itself, names the culprit in the registry, and the next one runs everything else."""
    script = tmp_path / "node.py"
    script.write_text(BLOCKING_NODE)
    environment = {"HEADGATE_LEASE_S": "3"}
    node = start_node("one", environment=environment, program=[str(script)])
    node.apply({"good": {"source": {"type": "generator", "rate": 10}, "sink": {"type": "blackhole"}}})
    with contextlib.suppress(httpx.HTTPError):  # It may block before it has answered; what it committed stays.
        node.apply({"bad": {"source": {"type": "blocks"}, "sink": {"type": "blackhole"}}})
    assert node.process.wait(LONG_S) == 70
    node = start_node("two", environment=environment, program=[str(script)])
    node.wait_for("good", lambda found: found["worker_status"] == "RUNNING")
    bad = node.wait_for("bad", lambda found: found["quarantine"] is not None)
    assert "blocked the event loop" in bad["quarantine"]
    assert bad["health"] == "error"
    lines = node.call("GET", "/api/datasources/bad/explain")["lines"]
    assert any("quarantined" in line for line in lines)
    time.sleep(1.0)
    assert node.process.poll() is None

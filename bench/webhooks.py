"""Webhooks made durable, with HMAC: wrk against one node, PostgreSQL and wrk on the same machine.

    python -m bench.webhooks

Each round is followed by one of a bare loop (`bench.bare`), which does the least that a receiver must: the ratio says
what the door costs on a machine that is busy with other things too. Then again with the node killed -9 under load:
every call that wrk saw answered must be in the sink after a restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from bench.rig import SINK, cpu_s, report, running
from bench.scale import fetch
from headgate.testing.processes import NodeProcess

SECONDS = 8
ROUNDS = 5  # The median is reported.
CONNECTIONS = 96
KEY = "a key that only this benchmark knows"
BODY = '{"id": 1, "kind": "order", "user": {"email": "ada@example.org"}, "total": 9.5}'


def document() -> dict[str, Any]:
    """A signed webhook into a table."""
    return {
        "source": {"type": "webhook", "signature": {"scheme": "generic", "secret": {"$secret": "hooks"}}},
        "mapping": {"set": {"id": "id", "inbox_id": "meta.id"}},
        "sink": {"type": "postgres", "url": SINK, "table": "hooks"},
    }


@contextlib.contextmanager
def bare_loop(url: str) -> Iterator[tuple[str, int]]:
    """The address and the process of a bare loop on the same database."""
    command = [sys.executable, "-m", "bench.bare", url, KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}", process.pid
        finally:
            process.kill()


def load(address: str, seconds: int, header: tuple[str, str] | None = None) -> str:
    """What wrk prints. Calls are signed, unless another header is given."""
    name, value = header or ("X-Signature", hmac.digest(KEY.encode(), BODY.encode(), hashlib.sha256).hex())
    script = (
        f"wrk.method = 'POST'\nwrk.body = '{BODY}'\n"
        f"wrk.headers['{name}'] = '{value}'\nwrk.headers['Content-Type'] = 'application/json'\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = ["wrk", "-t", "1", "-c", str(CONNECTIONS), "-d", f"{seconds}s", "--latency", "--timeout", "5s"]
        return subprocess.run(
            [*command, "-s", file.name, f"{address}/hooks/hooks"], capture_output=True, text=True, check=False
        ).stdout


def number(pattern: str, text: str) -> float:
    """The first number that matches, in milliseconds where wrk gives a unit."""
    match = re.search(pattern, text)
    assert match, text
    value = float(match[1])
    unit = match[2] if match.re.groups > 1 else ""
    return value * {"us": 0.001, "ms": 1.0, "s": 1000.0}.get(unit, 1.0)


def refused(text: str) -> int:
    """How many calls were answered with something else than yes."""
    found = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return int(found[1]) if found else 0


def wait_for_rows(url: str, at_least: int, table: str = "hooks") -> int:
    """Until the sink has them; how many it has."""
    deadline = time.monotonic() + 120
    while (rows := fetch(url, f"SELECT count(*) AS n FROM {table}")[0]["n"]) < at_least and time.monotonic() < deadline:
        time.sleep(0.2)
    return int(rows)


def killed_under_load(node: NodeProcess, url: str) -> tuple[int, int, int]:
    """Answered by wrk's count, found in the sink after a restart, and repeated there."""
    before = fetch(url, "SELECT count(*) AS n FROM hooks")[0]["n"]
    threading.Timer(4.0, lambda: node.end(signal.SIGKILL)).start()
    text = load(node.url, 6)
    answered = int(number(r"(\d+) requests in", text)) - refused(text)
    again = NodeProcess.start(node.home)
    try:
        rows = wait_for_rows(url, before + answered)
        repeated = fetch(url, "SELECT count(*) - count(DISTINCT inbox_id) AS n FROM hooks")[0]["n"]
    finally:
        again.end(signal.SIGTERM)
    return answered, rows - before, repeated


def measured(address: str, pid: int, header: tuple[str, str] | None = None) -> dict[str, float]:
    """One round: what wrk says, and how much of a processor each call took in this process."""
    before = cpu_s(pid)
    text = load(address, SECONDS, header)
    return {
        "calls": number(r"(\d+) requests in", text),
        "refused": refused(text),
        "rate": number(r"Requests/sec:\s+([\d.]+)", text),
        "p50": number(r"50%\s+([\d.]+)(us|ms|s)", text),
        "p99": number(r"99%\s+([\d.]+)(us|ms|s)", text),
        "us": (cpu_s(pid) - before) / number(r"(\d+) requests in", text) * 1e6,
    }


def main() -> dict[str, float]:
    """Run and print."""
    assert shutil.which("wrk"), "wrk is not installed: apt-get install wrk"
    with running() as rig:
        node, url = rig.node, rig.sink
        node.call("PUT", "/api/secrets/hooks", {"value": KEY})
        node.apply({"hooks": document()})
        node.wait_for("hooks", lambda found: found["worker_status"] == "RUNNING")
        load(node.url, 2)
        rounds, bare = [], []
        with bare_loop(url) as (address, pid):
            for _ in range(ROUNDS):
                rounds.append(measured(node.url, node.process.pid))
                wait_for_rows(url, int(fetch(rig.own, "SELECT rows FROM headgate.inbox_size")[0]["rows"]))
                bare.append(measured(address, pid))
        answered, found, repeated = killed_under_load(node, url)

    def median(of: list[dict[str, float]], name: str) -> float:
        return statistics.median(one[name] for one in of)

    ratios = [one["rate"] / other["rate"] for one, other in zip(rounds, bare, strict=True)]
    return report(
        "webhooks made durable, with HMAC, wrk on the same two cores (python -m bench.webhooks)",
        {
            f"calls/s, {CONNECTIONS} connections, median of {ROUNDS}": median(rounds, "rate"),
            "calls/s, slowest round": min(one["rate"] for one in rounds),
            "p50, ms, median": median(rounds, "p50"),
            "p99, ms, median": median(rounds, "p99"),
            "processor time of the node per call, sink included, us": median(rounds, "us"),
            "bare loop: calls/s, median": median(bare, "rate"),
            "bare loop: p99, ms, median": median(bare, "p99"),
            "bare loop: processor time per call, us": median(bare, "us"),
            "calls/s of the node for each of the bare loop, median": statistics.median(ratios),
            "killed -9 under load: answered 202": answered,
            "killed -9 under load: in the sink after a restart": found,
            "killed -9 under load: lost": max(0, answered - found),
            "killed -9 under load: repeated": repeated,
        },
    )


if __name__ == "__main__":
    main()

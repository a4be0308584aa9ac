"""The console's first page with many datasources, and what open pages cost.

    python -m bench console

Shares of a core are processor time, so that a busy machine changes them little. Times of the page are those of the node
and of the machine that runs both.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx

from bench.rest import share_of_core
from bench.rig import report, running
from headgate.testing.processes import NodeProcess

MANY = (1000, 10_000)
CONSOLES = 50
CHUNK = 250  # Datasources in one apply.
SPAN_S = 20.0
ROUNDS = 20
EVENTS = 5
ROWS = "/api/overview/rows?order=rate"  # Those that move, so that every snapshot differs from the last.
QUIET_S = 45.0  # After this the overview is read now and then only, and has been since the last change.


def document(number: int) -> dict[str, Any]:
    """One in ten moves all the time; the others are stopped, as most of many are quiet."""
    if number % 10 == 0:
        return {"source": {"type": "generator", "rate": 1}, "sink": {"type": "blackhole"}}
    return {"enabled": False, "source": {"type": "webhook"}, "sink": {"type": "blackhole"}}


def signed_in(node: NodeProcess) -> httpx.Client:
    """A browser, as far as it goes."""
    client = httpx.Client(base_url=node.url, timeout=60.0, headers={"Sec-Fetch-Site": "same-origin"})
    assert client.post("/login", data={"token": node.token}).status_code == 303
    return client


def page(client: httpx.Client) -> tuple[float, int]:
    """How long the first page takes, in milliseconds, and how large it is."""
    began = time.monotonic()
    answer = client.get("/").raise_for_status()
    return (time.monotonic() - began) * 1000, len(answer.content)


@contextlib.contextmanager
def consoles(node: NodeProcess, number: int, path: str = ROWS) -> Iterator[list[int]]:
    """This many open pages, each of which reads all that comes; yields how many bytes each has read."""
    read, over = [0] * number, threading.Event()

    def follow(index: int) -> None:
        headers = {"Authorization": f"Bearer {node.token}", "Accept": "text/event-stream"}
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", f"{node.url}{path}", headers=headers, timeout=20.0) as answer,
        ):
            for piece in answer.iter_raw():
                read[index] += len(piece)
                if over.is_set():
                    return

    threads = [threading.Thread(target=follow, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield read
    finally:
        over.set()
        for thread in threads:
            thread.join()


def until_seen_ms(node: NodeProcess, round: int) -> float:
    """How long it takes from the call that does something to its event on an open page of events."""
    headers = {"Authorization": f"Bearer {node.token}"}
    with httpx.stream("GET", f"{node.url}/api/events", headers=headers, timeout=60.0) as answer:
        lines = answer.iter_lines()
        next(lines)  # It follows.
        began = time.monotonic()
        node.call("POST", "/api/tokens", {"name": f"round {round}", "role": "viewer"})
        while f"round {round}" not in next(lines):
            pass
        return (time.monotonic() - began) * 1000


def measured(many: int) -> dict[str, float]:
    """One node with this many datasources."""
    with running() as rig:
        node = rig.node
        for begin in range(0, many, CHUNK):
            node.apply({f"ds-{number:05}": document(number) for number in range(begin, min(begin + CHUNK, many))})
        time.sleep(QUIET_S)
        client = signed_in(node)
        first_ms, _ = page(client)
        time.sleep(2.0)
        found = [page(client) for _ in range(ROUNDS)]
        time.sleep(QUIET_S)
        alone = share_of_core(node, SPAN_S)
        with consoles(node, CONSOLES) as read:
            time.sleep(3.0)
            begun = sum(read)
            together = share_of_core(node, SPAN_S)
            each_kb = (sum(read) - begun) / CONSOLES / SPAN_S / 1000
        time.sleep(QUIET_S)
        with consoles(node, CONSOLES, "/streams"):
            time.sleep(3.0)
            streams = share_of_core(node, SPAN_S)
        seen = [until_seen_ms(node, round) for round in range(EVENTS)]
    return {
        f"first page with {many:,} datasources, KB": max(size for _, size in found) / 1000,
        "after a quiet time, ms": first_ms,
        "median of the next, ms": statistics.median(ms for ms, _ in found),
        "slowest of the next, ms": max(ms for ms, _ in found),
        f"{CONSOLES} open pages, % of one core more": together - alone,
        "each open page reads, KB/s": each_kb,
        f"{CONSOLES} open pages of streams, % of one core more": streams - alone,
        "an event is on an open page after, ms (median)": statistics.median(seen),
    }


def main() -> dict[str, float]:
    """Run and print."""
    found: dict[str, float] = {}
    for many in MANY:
        found |= report(f"The console, {many:,} datasources (python -m bench console)", measured(many))
    return found


if __name__ == "__main__":
    main()

"""A node whose database has two hosts: the primary dies, or is cut off and lives on, and a standby takes its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from headgate.testing.processes import NodeProcess
from headgate.testing.servers import Server, Servers, black_hole, url_of
from tests.acceptance.test_back_in_time import Place, rows
from tests.waiting import LONG_S, wait_until


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


class Caller:
    """Calls a webhook without a pause, and remembers what was accepted."""

    def __init__(self, node: NodeProcess) -> None:
        self.accepted: list[int] = []
        self._node = node
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        headers = {"Authorization": f"Bearer {self._node.token}"}
        with httpx.Client(base_url=self._node.url, headers=headers, timeout=LONG_S) as client:
            while not self._is_over.is_set():
                number += 1
                with suppress(httpx.TransportError):
                    if client.post("/hooks/calls", json={"id": number}).status_code == 202:
                        self.accepted.append(number)

    def more(self, count: int) -> None:
        """Until this many more were accepted."""
        begun = len(self.accepted)
        wait_until(lambda: len(self.accepted) >= begun + count)

    def end(self) -> list[int]:
        """What was accepted in all."""
        self._is_over.set()
        self._thread.join()
        return self.accepted


def goes_on(place: Place, caller: Caller) -> None:
    """All that was accepted reaches the sink, once, and so does every number."""
    caller.more(20)
    place.grows("numbers", 500)
    accepted = caller.end()
    wait_until(lambda: set(accepted) <= set(place.rows("calls")))
    found = rows(place.sink, "calls")
    assert len(found) == len(set(found)), "a payload came twice"
    place.has_no_gap_and_no_repetition()
    place.node.end()
    assert "a bug" not in place.node.log()


def started(primary: Server, url: str, tmp_path: Path, sink: str) -> tuple[Place, Caller]:
    place = Place(primary, tmp_path / "home", sink, url)
    place.begin()
    caller = Caller(place.node)
    caller.more(20)
    return place, caller


def test_the_primary_is_killed_and_nothing_is_lost_with_a_synchronous_standby(
    servers: Servers, tmp_path: Path, empty_url: str
) -> None:
    primary = servers.make()
    standby = servers.standby_of(primary, synchronous=True)
    with black_hole() as silent:
        place, caller = started(primary, url_of(silent, standby, primary), tmp_path, empty_url)
        primary.kill()
        standby.promote()
        goes_on(place, caller)


def test_the_primary_hangs_and_its_sessions_do_not_keep_the_node_from_the_promoted_one(
    servers: Servers, tmp_path: Path, empty_url: str
) -> None:
    """Nothing tells the node that it is gone: connections stay open, and nobody answers. Then it is back, too late."""
    primary = servers.make()
    standby = servers.standby_of(primary, synchronous=True)
    place, caller = started(primary, url_of(primary, standby), tmp_path, empty_url)
    primary.pause()
    standby.promote()
    caller.more(20)
    primary.go_on()
    goes_on(place, caller)

"""The servers that tests of failover use do what they say."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headgate.testing.servers import Server, Servers, black_hole, url_of

INSERT = "INSERT INTO seen VALUES ({})"
COUNT = "SELECT count(*) FROM seen"
SYSTEM = "SELECT system_identifier FROM pg_control_system()"


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


@pytest.fixture
def primary(servers: Servers) -> Server:
    primary = servers.make()
    primary.execute("CREATE TABLE seen (id bigint)")
    return primary


def test_a_synchronous_standby_has_all_and_takes_over_with_the_next_timeline(servers: Servers, primary: Server) -> None:
    standby = servers.standby_of(primary, synchronous=True)
    assert (primary.timeline, standby.timeline, standby.is_standby) == (1, 1, True)
    primary.execute(INSERT.format(1))
    primary.kill()
    with pytest.raises(RuntimeError, match="refused"):
        primary.query("SELECT 1")
    standby.promote()
    standby.execute(INSERT.format(2))
    assert (standby.query(COUNT), standby.timeline) == ("2", 2)
    primary.start()  # It knows nothing of the other, and takes writes on its own timeline; nobody confirms them.
    assert (primary.query(COUNT), primary.timeline, primary.is_standby) == ("1", 1, False)
    assert primary.query(SYSTEM) == standby.query(SYSTEM)


def test_an_asynchronous_standby_that_left_loses_what_came_after(servers: Servers, primary: Server) -> None:
    standby = servers.standby_of(primary)
    primary.execute(INSERT.format(1))
    standby.wait_until_caught_up(primary)
    standby.leave()
    primary.execute(INSERT.format(2))
    standby.follow(primary)
    standby.wait_until_caught_up(primary)
    assert standby.query(COUNT) == "2"
    standby.leave()
    primary.execute(INSERT.format(3))
    primary.kill()
    standby.promote()
    assert standby.query(COUNT) == "2"


def test_a_backup_is_restored_as_a_new_timeline_or_as_the_server_it_was(servers: Servers, primary: Server) -> None:
    backup = servers.back_up(primary)
    primary.execute(INSERT.format(1))
    restored, snapshot = servers.restore(backup), servers.restore(backup, recovers=False)
    assert [server.query(COUNT) for server in (primary, restored, snapshot)] == ["1", "0", "0"]
    assert [server.timeline for server in (primary, restored, snapshot)] == [1, 2, 1]
    assert len({server.query(SYSTEM) for server in (primary, restored, snapshot)}) == 1


def test_a_paused_server_accepts_and_does_not_answer(primary: Server) -> None:
    primary.pause()
    with socket.create_connection(("127.0.0.1", primary.port), 60.0) as client:
        client.sendall(bytes.fromhex("0000000804d2162f"))  # Whether there is TLS.
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        primary.go_on()
        client.settimeout(60.0)
        assert client.recv(1) == b"N"


def test_a_black_hole_is_a_host_of_a_url() -> None:
    with black_hole() as address, socket.create_connection(("127.0.0.1", int(address.partition(":")[2]))):
        assert url_of(address, "b:2", query="pooler=transaction") == (
            f"postgresql://headgate@{address},b:2/headgate?pooler=transaction"
        )

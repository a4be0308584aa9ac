"""A token ends: on its own node, on others, on open connections, and after a restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from headgate.core import frames
from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S
from tests.web_node import Databases, Web, bearer, numbers, started

NOW = "UPDATE headgate.token SET expires_at = now() WHERE name = '{name}'"


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> str:
    return databases.make()


@pytest.fixture(scope="module")
def web(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with started(tmp_path_factory.mktemp("here"), database_url) as node:
        yield node


@pytest.fixture(scope="module")
def there(web: Web, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Another node of the same installation."""
    node = NodeProcess.start(tmp_path_factory.mktemp("there"), database=web.database, token=web.node.token)
    yield node
    node.end()


def created(web: Web, role: str, **more: Any) -> dict[str, Any]:
    body = {"name": f"{role} {next(numbers)}", "role": role, **more}
    found: dict[str, Any] = web.call("POST", "/api/tokens", body)
    return found


def last_error(socket: ClientConnection) -> str:
    """The code of the error frame with which a socket is closed; beats are sent meanwhile, as programs do."""
    while True:
        try:
            found = msgspec.msgpack.decode(socket.recv(timeout=1))
        except TimeoutError:
            socket.send(frames.encode(frames.BeatFrame(1)))
            continue
        if found[0] == "error":
            with pytest.raises(ConnectionClosed):
                socket.recv(timeout=LONG_S)
            return str(found[1])


@pytest.mark.parametrize("end", ["revoke", "expire"])
def test_sockets_of_another_node_are_closed_when_their_token_ends(web: Web, there: NodeProcess, end: str) -> None:
    name = f"pushed-{next(numbers)}"
    web.publish(name, source={"type": "push"})
    token = created(web, "sender", datasources=[name], groups=["turns/*"], expires_at="2099-01-01T00:00:00Z")
    stays = created(web, "sender", groups=["turns/*"])
    hello = frames.HelloFrame(frames.VERSION, token["token"], name)
    join = frames.JoinFrame(frames.VERSION, token["token"], "turns", name)
    address = there.url.replace("http", "ws")
    with (
        connect(f"{address}/push") as push,
        connect(f"{address}/groups") as group,
        connect(f"{address}/groups") as other,
    ):
        for socket, frame in ((push, hello), (group, join)):
            socket.send(frames.encode(frame))
            assert msgspec.msgpack.decode(socket.recv(timeout=LONG_S))[0] in ("ok", "joined")
        other.send(frames.encode(frames.JoinFrame(frames.VERSION, stays["token"], "turns", "stays")))
        assert msgspec.msgpack.decode(other.recv(timeout=LONG_S))[0] == "joined"
        if end == "revoke":
            web.call("DELETE", f"/api/tokens/{token['id']}")
        else:
            web.execute(NOW.format(name=token["name"]))
        assert [last_error(push), last_error(group)] == ["unauthorized", "unauthorized"]
        other.send(frames.encode(frames.BeatFrame(1)))
        while msgspec.msgpack.decode(other.recv(timeout=LONG_S))[0] != "beat":
            pass


@pytest.mark.parametrize("path", ["/api/events", "/api/logs", "/api/overview"])
def test_a_stream_of_events_of_another_node_ends_with_its_token(web: Web, there: NodeProcess, path: str) -> None:
    token = created(web, "viewer")
    with httpx.stream("GET", there.url + path, headers=bearer(token["token"]), timeout=LONG_S) as stream:
        assert stream.status_code == 200
        ended = threading.Event()

        def read() -> None:
            for _ in stream.iter_raw():
                pass
            ended.set()

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        web.call("DELETE", f"/api/tokens/{token['id']}")
        assert ended.wait(LONG_S)


def test_a_token_that_ended_is_refused_by_every_node_soon_and_by_its_own_at_once(web: Web, there: NodeProcess) -> None:
    token = created(web, "viewer")
    headers = bearer(token["token"])
    assert httpx.get(f"{there.url}/api/nodes", headers=headers).is_success  # It works there at once, too.
    web.call("DELETE", f"/api/tokens/{token['id']}")
    assert web.ask("GET", "/api/nodes", headers=headers).status_code == 401
    web.until(lambda: httpx.get(f"{there.url}/api/nodes", headers=headers).status_code, lambda status: status == 401)


def test_uses_ends_and_failures_are_events(web: Web) -> None:
    token = created(web, "viewer", expires_at="2099-01-01T00:00:00Z")
    assert web.ask("GET", "/api/nodes", headers=bearer(token["token"])).is_success
    assert web.ask("GET", "/api/nodes", headers=bearer("hg_" + "w" * 43)).status_code == 401
    web.execute(NOW.format(name=token["name"]))
    created(web, "viewer")  # Whatever has expired is noted then, and by housekeeping.

    def types() -> set[str]:
        query = "SELECT type, payload->>'token' AS token FROM headgate.datasource_events"
        return {row["type"] for row in web.rows(query) if row["token"] in (token["name"], None)}

    wanted = {"token_created", "token_used", "token_expired", "tokens_refused"}
    web.until(types, lambda found: found >= wanted, timeout_s=60)
    recorded = str(web.rows("SELECT e::text FROM headgate.datasource_events e"))
    assert token["token"] not in recorded
    assert "hg_" not in recorded
    listed = [one for one in web.call("GET", "/api/tokens")["items"] if one["name"] == "first"]
    assert listed[0]["used_at"] is not None


def test_the_last_admin_token_is_revoked_only_with_yes(web: Web) -> None:
    first = next(one for one in web.call("GET", "/api/tokens")["items"] if one["name"] == "first")
    ends = created(web, "admin", expires_at="2099-01-01T00:00:00Z")
    answer = web.ask("DELETE", f"/api/tokens/{first['id']}", headers=bearer(ends["token"]))
    assert (answer.status_code, answer.json()["code"]) == (409, "last_admin")
    assert web.ask("GET", "/api/nodes").is_success
    other = created(web, "admin")
    web.call("DELETE", f"/api/tokens/{other['id']}")
    web.call("DELETE", f"/api/tokens/{ends['id']}")


def test_a_token_that_was_revoked_stays_revoked_when_the_node_starts_again(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The home still has it. A new one in its place would be an admin for everybody who can read that home."""
    home, url = tmp_path_factory.mktemp("again"), databases.make()
    with started(home, url) as node:
        first = node.node.token
        admin = node.token("admin")
        id = next(one["id"] for one in node.call("GET", "/api/tokens")["items"] if one["name"] == "first")
        node.call("DELETE", f"/api/tokens/{id}", headers=bearer(admin))
    with started(home, url) as node:
        assert node.ask("GET", "/api/nodes", headers=bearer(first)).status_code == 401
        assert (home / "token").read_text().strip() == first  # Nobody has put another there.
        listed = node.call("GET", "/api/tokens", headers=bearer(admin))["items"]
        assert [one["name"] for one in listed if one["role"] == "admin"] == ["admin " + listed[0]["name"].split()[1]]
        assert "tokens recover" in node.node.log()

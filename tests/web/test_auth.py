"""Who may do what, on a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from headgate.core import frames
from headgate.errors import Refused
from headgate.testing.processes import NodeProcess
from headgate.web.auth import check_no_auth
from tests.waiting import LONG_S
from tests.web_node import BLACKHOLE, GENERATOR, Databases, Web, bearer, session_cookie

DOCUMENT = {"source": GENERATOR, "sink": BLACKHOLE}
ID = "00000000-0000-0000-0000-000000000000"

# What each role may do, and what only the next one may. A role may do what those before it may.
VIEWER = [
    ("GET", "/api/datasources", None),
    ("GET", "/api/datasources/for-roles", None),
    ("GET", "/api/datasources/for-roles/versions", None),
    ("GET", "/api/datasources/for-roles/versions/1", None),
    ("GET", "/api/datasources/for-roles/diff?from=1&to=1", None),
    ("GET", "/api/datasources/for-roles/state", None),
    ("GET", "/api/datasources/for-roles/explain", None),
    ("GET", "/api/datasources/for-roles/events", None),
    ("GET", "/api/datasources/for-roles/logs?follow=false", None),
    ("POST", "/api/datasources/for-roles/validate", DOCUMENT),
    ("POST", "/api/plan", {"datasources": {"for-roles": DOCUMENT}}),
    ("GET", "/api/export", None),
    ("GET", "/api/nodes", None),
    ("GET", "/api/streams", None),
    ("GET", "/api/groups", None),
    ("GET", "/api/connectors", None),
    ("GET", "/api/connectors/webhook", None),
    ("GET", "/api/documents/schema", None),
    ("GET", "/api/schema", None),
    ("GET", "/metrics", None),
]
OPERATOR = [
    ("POST", "/api/datasources", {"name": "for-roles", **DOCUMENT}),
    ("PUT", "/api/datasources/for-roles", DOCUMENT),
    ("PUT", "/api/datasources/for-roles/draft", DOCUMENT),
    ("POST", "/api/datasources/for-roles/publish", None),
    ("POST", "/api/datasources/for-roles/rollback", {"version": 1}),
    ("POST", "/api/datasources/for-roles/start", None),
    ("POST", "/api/datasources/for-roles/stop", None),
    ("POST", "/api/datasources/for-roles/restart", None),
    ("POST", "/api/datasources/for-roles/reload", None),
    ("POST", "/registry/reload/for-roles", None),
    ("POST", "/api/apply", {"datasources": {"for-roles": DOCUMENT}}),
    ("GET", "/api/secrets", None),
    ("DELETE", "/api/datasources/for-roles", None),
]
ADMIN = [
    ("PUT", "/api/secrets/for-roles", {"value": "x"}),
    ("DELETE", "/api/secrets/for-roles", None),
    ("POST", "/api/secrets/rotate", None),
    ("GET", "/api/tokens", None),
    ("POST", "/api/tokens", {"name": "x", "role": "viewer"}),
    ("DELETE", f"/api/tokens/{ID}", None),
]
STREAMS = [("GET", f"/api/{path}", None) for path in ("events", "overview", "datasources/for-roles/events/stream")]

every_call = pytest.mark.parametrize(("method", "path", "body"), [*VIEWER, *OPERATOR, *ADMIN, *STREAMS])


@pytest.fixture(scope="module")
def tokens(web: Web) -> dict[str, str]:
    """A token of each role."""
    return {role: web.token(role, name=f"a {role}") for role in ("viewer", "operator", "admin")}


@pytest.fixture(autouse=True)
def _datasource(web: Web) -> None:
    """It is there at the beginning of each test, whatever the last one did."""
    if not web.ask("GET", "/api/datasources/for-roles").is_success:
        web.publish("for-roles")


@every_call
def test_without_a_valid_token_the_answer_is_401_and_nothing_more(web: Web, method: str, path: str, body: Any) -> None:
    for credentials in (
        "",
        "Bearer",
        "Bearer hg_wrong",
        f"Basic {web.node.token}",
        web.node.token,
        "Bearer é",
    ):
        raw = [(b"Authorization", credentials.encode("latin-1"))]
        answer = web.ask(method, path, json=body, headers=raw)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json() == {"type": "about:blank", "title": "Unauthorized", "status": 401}
    assert httpx.request(method, web.node.url + path, json=body).status_code == 401


@pytest.mark.parametrize(("method", "path", "body"), VIEWER)
def test_a_viewer_may_look(web: Web, tokens: dict[str, str], method: str, path: str, body: Any) -> None:
    assert web.ask(method, path, json=body, headers=bearer(tokens["viewer"])).is_success


@pytest.mark.parametrize(("method", "path", "body"), [*OPERATOR, *ADMIN])
def test_a_viewer_may_not_operate(web: Web, tokens: dict[str, str], method: str, path: str, body: Any) -> None:
    before = web.rows("SELECT count(*) FROM headgate.datasource_events WHERE actor = 'a viewer'")
    answer = web.ask(method, path, json=body, headers=bearer(tokens["viewer"]))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "the token 'a viewer' has the role viewer" in answer.json()["detail"]
    assert web.rows("SELECT count(*) FROM headgate.datasource_events WHERE actor = 'a viewer'") == before


@pytest.mark.parametrize(("method", "path", "body"), OPERATOR)
def test_an_operator_may_operate(web: Web, tokens: dict[str, str], method: str, path: str, body: Any) -> None:
    answer = web.ask(method, path, json=body, headers=bearer(tokens["operator"]))
    assert answer.is_success or answer.status_code == 409, answer.text


@pytest.mark.parametrize(("method", "path", "body"), ADMIN)
def test_only_an_admin_may_touch_secrets_and_tokens(
    web: Web, tokens: dict[str, str], method: str, path: str, body: Any
) -> None:
    assert web.ask(method, path, json=body, headers=bearer(tokens["operator"])).status_code == 403
    assert web.ask(method, path, json=body, headers=bearer(tokens["admin"])).status_code in (200, 201, 204, 404)


def test_a_wrong_token_learns_nothing_about_what_exists_or_what_it_sent(web: Web) -> None:
    for path in ("/api/datasources/for-roles", "/api/datasources/nobody"):
        assert web.ask("GET", path, headers=bearer("wrong")).status_code == 401
    answer = web.ask("POST", "/api/apply", content=b"not json", headers=bearer("wrong"))
    assert answer.status_code == 401


def test_what_is_open_is_the_status_alone(web: Web) -> None:
    for path in ("/healthz", "/readyz"):
        assert httpx.get(web.node.url + path).json() == {"status": "ok"}
        assert web.ask("GET", path, headers=bearer("wrong")).json() == {"status": "ok"}


def test_the_word_bearer_may_be_written_in_any_case(web: Web) -> None:
    assert web.ask("GET", "/api/nodes", headers={"Authorization": f"bEaReR   {web.node.token}"}).is_success


def test_a_cookie_may_read_and_nothing_else(web: Web) -> None:
    cookie = {"Authorization": "", "Cookie": session_cookie(web)}
    assert web.ask("GET", "/api/datasources", headers=cookie).is_success
    assert web.ask("POST", "/api/datasources/for-roles/stop", headers=cookie).status_code == 401
    assert web.ask("DELETE", "/api/datasources/for-roles", headers=cookie).status_code == 401
    name, _, text = cookie["Cookie"].partition("=")
    token = web.node.token
    for broken in (name, f'{name}="', "=;;=", f"{name}=hgs_wrong", f"{name}={token}", f"x={text}", "a" * 5000):
        answer = web.ask("GET", "/api/datasources", headers={"Authorization": "", "Cookie": broken})
        assert answer.status_code == 401


# Tokens.


def test_a_token_is_shown_once_and_its_text_is_kept_nowhere(web: Web) -> None:
    created = web.call("POST", "/api/tokens", {"name": "ci", "role": "operator"})
    assert (created["name"], created["role"]) == ("ci", "operator")
    listed = next(item for item in web.call("GET", "/api/tokens")["items"] if item["id"] == created["id"])
    assert "token" not in listed
    assert created["token"] not in str(web.rows("SELECT t::text FROM headgate.token t"))
    assert created["token"] not in web.node.log()


def test_a_revoked_token_is_worth_nothing_at_once(web: Web) -> None:
    created = web.call("POST", "/api/tokens", {"name": "short-lived"})
    headers = bearer(created["token"])
    assert web.ask("GET", "/api/nodes", headers=headers).is_success
    assert web.ask("DELETE", f"/api/tokens/{created['id']}").status_code == 204
    assert web.ask("GET", "/api/nodes", headers=headers).status_code == 401
    assert web.ask("POST", "/hooks/for-roles", headers=headers).status_code in (401, 404)
    assert web.ask("DELETE", f"/api/tokens/{created['id']}").status_code == 404
    assert created["id"] not in [item["id"] for item in web.call("GET", "/api/tokens")["items"]]


def test_a_token_that_is_revoked_elsewhere_is_worth_nothing_soon(web: Web) -> None:
    created = web.call("POST", "/api/tokens", {"name": "elsewhere"})
    assert web.ask("GET", "/api/nodes", headers=bearer(created["token"])).is_success
    web.execute("UPDATE headgate.token SET ended_at = now() WHERE name = 'elsewhere'")
    web.until(
        lambda: web.ask("GET", "/api/nodes", headers=bearer(created["token"])), lambda answer: answer.status_code == 401
    )


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ({}, ["name"]),
        ({"name": ""}, ["name"]),
        ({"name": " "}, ["name"]),
        ({"name": 5}, ["name"]),
        ({"name": "a\0"}, ["name"]),
        ({"name": "x" * 101}, ["name"]),
        ({"name": "x", "role": "root"}, ["role"]),
        ({"name": "x", "role": None}, ["role"]),
        ({"name": None, "role": ["admin"]}, ["name", "role"]),
    ],
)
def test_a_token_without_a_name_or_with_a_role_that_is_none_is_refused(web: Web, body: Any, paths: list[str]) -> None:
    answer = web.ask("POST", "/api/tokens", json=body)
    assert answer.status_code == 422
    assert [problem["path"] for problem in answer.json()["problems"]] == paths


def test_a_token_is_not_an_id_and_an_unknown_id_is_not_found(web: Web) -> None:
    for id in (ID, "x", "%00"):
        assert web.ask("DELETE", f"/api/tokens/{id}").status_code == 404


def test_what_a_token_does_is_recorded_under_its_name(web: Web, tokens: dict[str, str], name: str) -> None:
    web.publish(name)
    web.call("POST", f"/api/datasources/{name}/stop", headers=bearer(tokens["operator"]))
    items = web.call("GET", f"/api/datasources/{name}/events")["items"]
    assert [item["actor"] for item in items if item["type"] == "stopped"] == ["a operator"]


# Without tokens.


@pytest.fixture(scope="module")
def open_node(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that asks for no token."""
    home = tmp_path_factory.mktemp("open")
    node = NodeProcess.start(home, database=databases.make(), flags=("--no-auth",))
    yield node
    node.end()


def test_without_auth_anyone_on_this_machine_may_do_anything(open_node: NodeProcess) -> None:
    assert httpx.get(f"{open_node.url}/api/datasources").json()["items"] == []
    assert httpx.post(f"{open_node.url}/api/apply", json={"datasources": {"a": DOCUMENT}}).is_success
    assert httpx.get(f"{open_node.url}/api/datasources", headers={"Host": "localhost:1"}).is_success


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", "", "[::2]:80", "::2", "é"]
)
def test_without_auth_a_page_that_resolves_to_us_does_not_get_in(open_node: NodeProcess, host: str) -> None:
    """A browser may be led here under another name; then the host says so."""
    raw = [(b"Host", host.encode("latin-1"))]
    assert httpx.get(f"{open_node.url}/api/datasources", headers=raw).status_code in (400, 401)


@pytest.mark.parametrize("path", ["/push", "/groups"])
def test_without_auth_a_page_of_another_site_opens_no_socket(open_node: NodeProcess, path: str) -> None:
    """Browsers ask nobody before they open a socket to another site; the origin says who opened it."""
    hello, join = frames.HelloFrame(frames.VERSION, "", "a"), frames.JoinFrame(frames.VERSION, "", "s", "g")
    for origin, is_refused in ((Origin("https://evil.example"), True), (None, False)):
        with connect(open_node.url.replace("http", "ws") + path, origin=origin) as socket:
            socket.send(frames.encode(hello if path == "/push" else join))
            found = msgspec.msgpack.decode(socket.recv(timeout=LONG_S))
            assert (found[:2] == ["error", "unauthorized"]) == is_refused


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_without_auth_a_page_of_another_site_drives_nothing(open_node: NodeProcess, method: str) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        path = "/api/datasources" if method in ("GET", "POST") else "/api/datasources/a"
        assert httpx.request(method, open_node.url + path, headers=headers, json=None).status_code == 401
        assert httpx.post(f"{open_node.url}/hooks/a", headers=headers, content=b"{}").status_code in (401, 404)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_no_auth_is_refused_beyond_loopback(host: str) -> None:
    with pytest.raises(Refused, match="--no-auth is refused"):
        check_no_auth(host)


def test_a_node_without_auth_does_not_start_beyond_loopback(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="--no-auth is refused on"):
        NodeProcess.start(tmp_path, database="postgresql://x/y", flags=("--no-auth", "--host", "0.0.0.0"))

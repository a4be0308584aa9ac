"""Who may do what: every path and every door, asked by every kind of caller. The paths are those that the node serves,
so a new one without a rule fails here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import httpx
import msgspec
import pytest
from websockets.sync.client import connect

from headgate.core import frames
from headgate.core.access import RULES, Role, Rule, Scope
from headgate.testing.roles import DOORS, OPEN, Line, lines
from headgate.web.origin import HEADER
from tests.waiting import LONG_S, wait_until
from tests.web_node import Web, bearer

LINES = list(lines())
PATTERNS = {"datasources": ["inside-*"], "groups": ["inside-*/*"]}
NOBODY = "00000000-0000-0000-0000-000000000000"
DUMPS = "/dumps/{id}"

LISTS = {
    ("GET", "/"),
    ("GET", "/api/datasources"),
    ("GET", "/api/dead-letters"),
    ("GET", "/api/dead-letters/summary"),
    ("POST", "/api/datasources"),
    ("GET", "/api/dumps"),
    ("GET", "/api/events"),
    ("GET", "/api/export"),
    ("GET", "/api/groups"),
    ("GET", "/api/history"),
    ("GET", "/api/logs"),
    ("GET", "/api/overview"),
    ("GET", "/api/overview/rows"),
    ("GET", "/api/streams"),
    ("POST", "/api/apply"),
    ("POST", "/api/plan"),
    ("GET", "/dumps"),
    ("GET", "/groups"),
    ("GET", "/letters"),
    ("GET", "/new"),  # What it makes is judged by its name.
    ("GET", "/streams"),
    ("GET", "/events"),
}

# Each caller: its role, and whether it has bounds. None: whoever it was, it is nobody now.
CALLERS: dict[str, tuple[Role, bool] | None] = {
    "nobody": None,
    "wrong": None,
    "expired": None,
    "revoked": None,
    "viewer": ("viewer", False),
    "sender": ("sender", True),
    "operator": ("operator", False),
    "admin": ("admin", False),
    "bound viewer": ("viewer", True),
    "bound operator": ("operator", True),
}


@pytest.fixture(scope="module")
def callers(web: Web) -> dict[str, dict[str, str]]:
    """The header of each caller. All were admins that are nobody now."""
    headers = {"nobody": {"Authorization": ""}, "wrong": bearer("hg_" + "x" * 43)}
    for name, known in CALLERS.items():
        if known is not None:
            role, is_bound = known
            headers[name] = bearer(web.token(role, **(PATTERNS if is_bound else {})))
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    headers["expired"] = bearer(web.token("admin", name="expired", expires_at=soon))
    web.execute("UPDATE headgate.token SET expires_at = now() - interval '1 s' WHERE name = 'expired'")
    revoked = web.call("POST", "/api/tokens", {"name": "revoked", "role": "admin"})
    web.call("DELETE", f"/api/tokens/{revoked['id']}")
    headers["revoked"] = bearer(revoked["token"])
    return headers


def test_no_body_is_taken_before_it_is_known_who_sends_it() -> None:
    """A guard asks before the framework reads a body for `data`; a handler that asks by itself reads it later, and
    what it takes is small."""
    for line in LINES:
        if not line.handler.resolve_guards() and line.method in ("POST", "PUT", "PATCH", "DELETE"):
            assert "data" not in line.handler.parsed_fn_signature.parameters, f"{line.method} {line.path}"
            assert line.path == "/logout" or line.handler.resolve_request_max_body_size() <= 4096, line.path


def expected(rule: Rule, caller: str, *, is_inside: bool) -> int | None:
    """The status that refuses it; None: it is allowed."""
    known = CALLERS[caller]
    if known is None:
        return 401
    role, is_bound = known
    if role not in rule.roles:
        return 403
    if not is_bound or rule.scope in (Scope.NONE, Scope.LIST):
        return None
    return None if rule.scope is Scope.ONE and is_inside else 403


def filled(path: str, place: str) -> str:
    """The path of something that is not there; a bound token names it, or does not."""
    if path.startswith(("/api/streams", "/streams", "/registry")):
        path = path.replace("{id}", f"{place}-none:0" if "streams" in path else f"{place}-none")
    if path.startswith("/api/secrets"):
        path = path.replace("{name}", "none")
    names = {"name": f"{place}-none", "stream": f"{place}-none", "id": NOBODY, "number": "1", "path": "x"}
    names |= {"fixture": "none", "kind": "singer"}
    return path.format_map(names) + (f"?stream={place}-none&name=none" if path == "/groups/one" else "")


def status(web: Web, line: Line, path: str, headers: Mapping[str, str]) -> int:
    """Of one request; a stream of events is left at once."""
    body = {"json": {}} if line.method in ("POST", "PUT") else {}
    with web.client.stream(line.method, path, headers={**headers, HEADER: "1"}, **body) as answer:
        return answer.status_code


def test_every_path_has_a_rule_or_is_known_to_be_open() -> None:
    assert {(line.method, line.path) for line in LINES if line.rule is None} == OPEN


@pytest.mark.parametrize("caller", CALLERS)
def test_every_path_answers_every_caller_as_the_table_says(
    web: Web, callers: dict[str, dict[str, str]], caller: str
) -> None:
    wrong = []
    for line in LINES:
        for place in ("inside", "foreign"):
            found = status(web, line, filled(line.path, place), callers[caller])
            # No token names a dump that is no backfill, nor a letter that is not there.
            is_inside = place == "inside" and not re.search("/(dumps|dead-letters|letters)/{id}", line.path)
            refused = None if line.rule is None else expected(line.rule, caller, is_inside=is_inside)
            if (found if found in (401, 403) else None) != refused and (line.method, line.path) not in OPEN:
                wrong.append(
                    f"{line.method} {filled(line.path, place)}: {found}, expected {refused or 'to be allowed'}"
                )
            assert found < 500, f"{line.method} {line.path}: {found}"
    assert not wrong


@pytest.mark.parametrize("caller", CALLERS)
def test_every_door_answers_every_caller_as_the_table_says(
    web: Web, callers: dict[str, dict[str, str]], caller: str
) -> None:
    assert set(DOORS.values()) == {"send"}
    for place in ("inside", "foreign"):
        if web.ask("GET", f"/api/datasources/{place}-hook").status_code == 404:
            web.publish(f"{place}-hook", source={"type": "webhook"})
            web.publish(f"{place}-push", source={"type": "push"})
        refused = expected(RULES["send"], caller, is_inside=place == "inside")
        answer = web.ask("POST", f"/hooks/{place}-hook", content=b"{}", headers=callers[caller])
        assert answer.status_code == (refused or 202)
        token = callers[caller]["Authorization"].removeprefix("Bearer ")
        code = {401: "unauthorized", 403: "forbidden", None: ""}[refused]
        assert said(web, "/push", frames.HelloFrame(frames.VERSION, token, f"{place}-push")) == code
        assert said(web, "/groups", frames.JoinFrame(frames.VERSION, token, f"{place}-s", caller)) == code


def said(web: Web, path: str, frame: frames.HelloFrame | frames.JoinFrame) -> str:
    """The code of the error that a first frame is answered with."""
    with connect(web.node.url.replace("http", "ws") + path) as socket:
        socket.send(frames.encode(frame))
        found = msgspec.msgpack.decode(socket.recv(timeout=LONG_S))
        return str(found[1]) if found[0] == "error" else ""


# What a token with bounds sees.


@pytest.fixture(scope="module")
def bound(web: Web) -> httpx.Client:
    """A viewer of what is called inside."""
    for name in ("inside-1", "foreign-1"):
        web.publish(name)
        web.running(name)
    return httpx.Client(base_url=web.node.url, headers=bearer(web.token("viewer", **PATTERNS)), timeout=LONG_S)


@pytest.mark.parametrize(
    "path", ["/api/datasources", "/api/streams", "/api/groups", "/api/export", "/readyz", "/", "/groups", "/dumps"]
)
def test_lists_have_only_what_the_token_names(web: Web, bound: httpx.Client, path: str) -> None:
    answer = bound.get(path)
    assert answer.status_code == 200
    if path == "/":  # One picture a second serves all who look.
        wait_until(lambda: "inside-1" in bound.get(path).text)
        answer = bound.get(path)
    assert "foreign" not in answer.text
    assert ("inside-1" in answer.text) == (path not in ("/readyz", "/dumps"))


def test_a_session_of_the_console_has_the_bounds_of_its_token(web: Web, bound: httpx.Client) -> None:
    token = bound.headers["Authorization"].removeprefix("Bearer ")
    with httpx.Client(base_url=web.node.url, timeout=LONG_S) as browser:
        browser.post("/login", data={"token": token}, headers={"Origin": web.node.url})
        wait_until(lambda: "inside-1" in browser.get("/", headers={"Sec-Fetch-Site": "same-origin"}).text)
        for path in ("/", "/groups", "/api/datasources", "/api/export"):
            answer = browser.get(path, headers={"Sec-Fetch-Site": "same-origin"})
            assert (answer.status_code, "inside-1" in answer.text, "foreign" in answer.text) == (200, True, False)
        hidden = browser.get("/groups/one?stream=foreign-1:0&name=workers", headers={"Sec-Fetch-Site": "same-origin"})
        assert (hidden.status_code, "foreign" in hidden.text) == (403, False)


def test_events_and_the_overview_tell_nothing_of_others(web: Web, bound: httpx.Client) -> None:
    """Also when there are more events of others than are read at once."""
    last = web.rows("SELECT max(id) AS last FROM headgate.datasource_events")[0]["last"]
    web.execute(
        "INSERT INTO headgate.datasource_events (name, type, payload, actor)"
        " SELECT 'foreign-1', 'reloaded', '{}', 'x' FROM generate_series(1, 1200)"
    )
    web.call("POST", "/api/datasources/inside-1/reload")
    with bound.stream("GET", f"/api/events?after={last}") as stream:
        assert next(line for line in stream.iter_lines() if line.startswith("data:")).count("inside-1") == 1
    wait_until(lambda: "inside-1" in bound.get("/").text)
    with bound.stream("GET", "/api/overview") as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert "inside-1" in line
    assert "foreign" not in line
    assert '"nodes":[]' in line


def test_what_a_token_does_not_name_is_refused_by_name_and_by_id_alike(web: Web, bound: httpx.Client) -> None:
    hidden = {web.show("foreign-1")["id"], "foreign-1", "foreign-none", NOBODY}
    answers = {bound.get(f"/api/datasources/{one}").text for one in hidden}
    assert len(answers) == 1
    assert "does not name" in answers.pop()
    streams = [one for one in web.call("GET", "/api/streams")["items"] if one["datasource"] == "foreign-1"]
    for one in (streams[0]["id"], streams[0]["name"], "foreign-none:0", NOBODY):
        assert bound.get(f"/api/streams/{one}").status_code == 403
    assert bound.get(f"/api/datasources/{web.show('inside-1')['id']}").status_code == 200
    assert bound.get("/api/groups/foreign-1%3A0/workers").status_code == 403
    assert bound.get("/api/groups/inside-1%3A0/workers").status_code == 200


def test_no_hint_names_what_a_token_does_not_name(web: Web, bound: httpx.Client) -> None:
    web.publish("nside-secret-plan")
    web.until(
        lambda: web.ask("GET", "/api/datasources/inside-secret-plan").json()["hint"],
        lambda hint: hint == "did you mean 'nside-secret-plan'?",
    )
    answer = bound.get("/api/datasources/inside-secret-plan")
    assert (answer.status_code, "nside-secret-plan'?" in answer.text) == (404, False)


def test_every_list_is_one_that_these_tests_have_looked_at() -> None:
    """A list that forgets to leave others out would show them to tokens that do not name them."""
    found = {(line.method, line.path) for line in LINES if line.rule is not None and line.rule.scope is Scope.LIST}
    assert found == LISTS


def test_a_document_is_refused_for_each_datasource_that_the_token_does_not_name(web: Web, bound: httpx.Client) -> None:
    document = {"source": {"type": "generator"}, "sink": {"type": "blackhole"}}
    operator = bearer(web.token("operator", **PATTERNS))
    both = {"datasources": {"inside-2": document, "foreign-2": document}}
    for path in ("/api/plan", "/api/apply"):
        assert web.ask("POST", path, json=both, headers=operator).status_code == 403
        assert web.ask("POST", f"{path}?prune=true", json={"datasources": {}}, headers=operator).status_code == 403
    body = {"name": "foreign-2", **document}
    assert web.ask("POST", "/api/datasources", json=body, headers=operator).status_code == 403
    assert web.ask("GET", "/api/datasources/foreign-2").status_code == 404
    one = {"datasources": {"inside-2": document}}
    assert web.ask("POST", "/api/apply", json=one, headers=operator).status_code == 200


def test_a_sender_sees_nothing_not_even_whether_something_is_degraded(
    web: Web, callers: dict[str, dict[str, str]]
) -> None:
    assert web.ask("GET", "/readyz", headers=callers["sender"]).json() == {"status": "ok"}
    assert web.ask("GET", "/api/datasources", headers=callers["sender"]).status_code == 403


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ({"role": "sender"}, ["role"]),
        ({"role": "admin", "datasources": ["*"]}, ["role"]),
        ({"role": "sender", "datasources": ["Orders"]}, ["datasources"]),
        ({"role": "sender", "datasources": ["a/b"]}, ["datasources"]),
        ({"role": "sender", "datasources": [""]}, ["datasources"]),
        ({"role": "sender", "groups": ["billing"]}, ["groups"]),
        ({"role": "sender", "groups": ["a/b/c"]}, ["groups"]),
        ({"role": "sender", "groups": ["a/\0"]}, ["groups"]),
        ({"role": "sender", "groups": ["a/" + "b" * 600]}, ["groups"]),
        ({"role": "viewer", "datasources": ["a"] * 101}, ["datasources"]),
        ({"role": "viewer", "expires_at": "2020-01-01T00:00:00Z"}, ["expires_at"]),
        ({"role": "viewer", "expires_at": "2030-01-01T00:00:00"}, ["expires_at"]),
        ({"role": "viewer", "name": "headgate"}, ["name"]),
        ({"role": "viewer", "name": "yaml:x.yaml"}, ["name"]),
        ({"role": "viewer", "name": "root (recover)"}, ["name"]),
        ({"role": "viewer", "name": "a\u202eb"}, ["name"]),
        ({"role": "viewer", "name": " a"}, ["name"]),
    ],
)
def test_a_token_that_says_too_little_or_too_much_is_refused(
    web: Web, body: dict[str, object], paths: list[str]
) -> None:
    answer = web.ask("POST", "/api/tokens", json={"name": "hostile", **body})
    assert answer.status_code == 422, answer.text
    assert [problem["path"] for problem in answer.json()["problems"]] == paths

"""Notifications over HTTP and by command: who decides, what is refused, what is sent, and that no secret shows."""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.commands import headgate
from tests.receivers import MailServer, Receiver, mail_server, receiver
from tests.web_node import Web, bearer

KEY, PASSWORD = "a-key-that-nobody-sees", "a-password-that-nobody-sees"


@pytest.fixture(scope="module")
def hook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture(scope="module")
def post_office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MailServer, Path]]:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    pair = authority.sign("mail", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with mail_server(MailServer(context, login=("ada", PASSWORD))) as found:
        yield found, authority.file


@pytest.fixture(scope="module")
def document(web: Web, hook: Receiver, post_office: tuple[MailServer, Path]) -> dict[str, Any]:
    """Every kind of target and of rule."""
    for name, value in {"hook-key": KEY, "mail-password": PASSWORD, "chat-url": hook.url}.items():
        web.call("PUT", f"/api/secrets/{name}", {"value": value})
    mail, authority = post_office
    email = {"type": "email", "host": "localhost", "port": mail.port, "user": "ada", "ca_file": str(authority)}
    email |= {"password": {"$secret": "mail-password"}, "from": "headgate@example.com", "to": ["ops@example.com"]}
    return {
        "targets": {
            "hook": {"type": "webhook", "url": hook.url, "secret": {"$secret": "hook-key"}},
            "chat": {"type": "slack", "url": {"$secret": "chat-url"}},
            "mail": email,
        },
        "rules": {
            "broken": {"when": "health", "datasources": ["told-*"], "for": "0s", "to": ["hook", "mail"]},
            "rejected": {"when": "rejected", "for": "0s", "to": ["chat"]},
            "letters": {"when": "dead_letters", "above": 2, "for": "0s", "labels": ["told", "none"], "to": ["hook"]},
            "late": {"when": "lag", "above": "1h", "to": ["hook"]},
            "nodes": {"when": "node_lost", "to": ["hook"]},
        },
    }


def without(document: dict[str, Any], *path: str, **changed: Any) -> dict[str, Any]:
    """A copy with other fields at this place."""
    found = json.loads(json.dumps(document))
    place = found
    for part in path:
        place = place[part]
    place.update(changed)
    return dict(found)


def test_what_is_wrong_is_told_all_at_once_and_nothing_is_kept(web: Web, document: dict[str, Any]) -> None:
    def problems(body: Any) -> dict[str, str]:
        answer = web.ask("PUT", "/api/notifications", json=body)
        assert answer.status_code == 422, answer.text
        return {one["path"]: one["message"] for one in answer.json()["problems"]}

    before = web.call("GET", "/api/notifications")
    chat = without(document, "targets", "chat", url="https://hooks.example.com/services/T0/B0/XXXX")
    assert "notifications.targets.chat.url" in problems(chat)
    spread = without(document, "targets", "hook", secret="written-out-key", url="https://u:p@example.com/")
    assert {"notifications.targets.hook.secret", "notifications.targets.hook.url"} <= set(problems(spread))
    for target, changed in (
        ("hook", {"url": "ftp://example.com/"}),
        ("hook", {"secret": {"$secret": "none-of-this-name"}}),
        ("hook", {"verify": False}),
        ("mail", {"to": ["ops@example.com\r\nBcc: evil@example.com"]}),
        ("mail", {"to": []}),
        ("mail", {"tls": "none"}),
        ("mail", {"from": {"$secret": "mail-password"}}),
        ("mail", {"type": "pigeon"}),
    ):
        found = problems(without(document, "targets", target, **changed))
        assert all(path.startswith(f"notifications.targets.{target}") for path in found), found
    for rule, changed in (
        ("broken", {"to": ["nobody"]}),
        ("broken", {"for": "2y"}),
        ("broken", {"health": ["ok"]}),
        ("broken", {"datasources": ["<script>"]}),
        ("late", {"above": {"$secret": "mail-password"}}),
        ("nodes", {"datasources": ["*"]}),
    ):
        found = problems(without(document, "rules", rule, **changed))
        assert all(path.startswith(f"notifications.rules.{rule}") for path in found), found
    assert problems({"target": {}, "rules": {"A B": {}}})
    assert problems({"rules": {"x": {"when": "node_lost", "to": ["\0"]}}})
    assert web.call("GET", "/api/notifications") == before
    assert KEY not in web.ask("PUT", "/api/notifications", json=spread).text


def test_what_somebody_else_has_changed_meanwhile_is_not_overwritten(web: Web, document: dict[str, Any]) -> None:
    version = web.call("PUT", "/api/notifications", document)["version"]
    assert web.call("PUT", f"/api/notifications?over={version}", document)["version"] == version + 1
    for method, body in (("PUT", document), ("DELETE", None)):
        late = web.ask(method, f"/api/notifications?over={version}", json=body)
        assert (late.status_code, late.json()["code"]) == (409, "conflict")
    assert web.call("GET", "/api/notifications")["version"] == version + 1


def test_an_admin_decides_an_operator_sees_and_no_secret_shows(web: Web, document: dict[str, Any]) -> None:
    version = web.call("PUT", "/api/notifications", document)["version"]
    operator, viewer = bearer(web.token("operator")), bearer(web.token("viewer"))
    used = {one["name"]: one["used_by"] for one in web.call("GET", "/api/secrets")["items"]}
    assert used["chat-url"] == ["notifications.targets.chat"]
    assert used["mail-password"] == ["notifications.targets.mail"]
    seen = web.ask("GET", "/api/notifications", headers=operator)
    assert (seen.json()["document"], seen.json()["version"]) == (document, version)
    assert not any(secret in seen.text for secret in (KEY, PASSWORD))
    assert web.ask("GET", "/api/notifications", headers=viewer).status_code == 403
    for method, path, body in (
        ("PUT", "/api/notifications", document),
        ("DELETE", "/api/notifications", None),
        ("POST", "/api/notifications/test", {"target": "hook"}),
    ):
        assert web.ask(method, path, json=body, headers=operator).status_code == 403
    refused = web.ask("DELETE", "/api/secrets/mail-password")
    assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
    assert refused.json()["problems"][0]["path"] == "notifications"
    events = web.call("GET", "/api/events?follow=false&type=notifications_set")["items"]
    assert events[-1]["payload"] == {"version": version}


def test_a_test_reaches_each_kind_of_target_signed_and_in_words(
    web: Web, document: dict[str, Any], hook: Receiver, post_office: tuple[MailServer, Path]
) -> None:
    mail, _ = post_office
    web.call("PUT", "/api/notifications", document)
    hook.calls.clear()
    for target in ("hook", "chat", "mail"):
        assert web.call("POST", "/api/notifications/test", {"target": target}) == {"target": target}
    (headers, body), (_, chat) = hook.calls
    signed = hmac.new(KEY.encode(), headers["x-headgate-timestamp"].encode() + b"." + body, hashlib.sha256)
    assert headers["x-headgate-signature"] == signed.hexdigest()
    assert json.loads(body)["kind"] == "test"
    assert json.loads(body)["id"] == headers["x-headgate-message"]
    signature = {"header": "x-headgate-signature", "timestamp_header": "x-headgate-timestamp"}
    signature |= {"secret": {"$secret": "hook-key"}}
    web.publish("told-us", source={"type": "webhook", "signature": signature})  # A webhook of our own understands it.
    web.opened("told-us")
    kept = {name: value for name, value in headers.items() if name.startswith("x-headgate-")}
    assert web.ask("POST", "/hooks/told-us", content=body, headers=kept).status_code == 202
    assert web.ask("POST", "/hooks/told-us", content=body + b" ", headers=kept).status_code == 401
    assert set(json.loads(chat)) == {"text"}
    assert mail.messages[-1]["To"] == "ops@example.com"
    assert "[headgate]" in mail.messages[-1]["Subject"]
    answer = web.ask("POST", "/api/notifications/test", json={"target": "none"})
    assert answer.status_code == 404


def test_a_redirect_is_not_followed_and_what_is_not_taken_says_why(
    web: Web, document: dict[str, Any], hook: Receiver
) -> None:
    web.call("PUT", "/api/notifications", document)
    with receiver() as inside:
        hook.calls.clear()
        hook.status, hook.location = 307, inside.url
        answer = web.ask("POST", "/api/notifications/test", json={"target": "chat"})
        hook.status, hook.location = 200, ""
        assert (answer.status_code, answer.json()["code"]) == (409, "not_sent")
        assert "answered 307" in answer.json()["detail"]
        assert "/told" not in answer.text  # The path of a chat's URL is what gets one in.
        assert inside.calls == []
    away = without(document, "targets", "hook", url="http://127.0.0.1:1/")
    web.call("PUT", "/api/notifications", away)
    assert web.ask("POST", "/api/notifications/test", json={"target": "hook"}).json()["code"] == "not_sent"


def test_datasources_that_fail_are_told_once_and_once_when_they_are_well(
    web: Web, document: dict[str, Any], hook: Receiver, post_office: tuple[MailServer, Path]
) -> None:
    mail, _ = post_office
    web.call("PUT", "/api/notifications", document)
    mail.raw.clear()
    hook.calls.clear()
    nowhere = {"type": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none", "table": "t"}
    letters = {"source": {"type": "generator", "count": 5}, "mapping": {"set": {"id": "int('x')"}}}
    hook.status = 503  # It is away at first; nothing is lost, and nothing comes twice.
    web.publish("told-broken", sink=nowhere)
    web.publish("told-letters", labels=["told"], **letters)
    web.publish("untold-letters", **letters)
    web.until(lambda: hook.refused, lambda found: found > 0)
    waiting = web.until(lambda: web.call("GET", "/api/notifications")["waiting"], lambda found: bool(found))
    assert waiting[0]["target"] == "hook"
    hook.status = 200
    web.execute("UPDATE headgate.message SET due_at = now()")
    (opened,) = web.until(lambda: hook.bodies(rule="broken", kind="opened"), lambda found: len(found) > 0)
    assert [one["subject"] for one in opened["incidents"]] == ["told-broken"]
    web.until(lambda: hook.bodies(rule="letters", kind="opened"), lambda found: len(found) > 0)
    web.until(lambda: mail.messages, lambda found: len(found) == 1)
    assert "told-broken" in mail.messages[0]["Subject"]
    incidents = web.call("GET", "/api/notifications")["incidents"]
    assert {one["subject"] for one in incidents} == {"told-broken", "told-letters"}

    web.publish("told-broken")
    web.call("POST", "/api/datasources/told-letters/dead-letters/discard", {"all": True})
    web.until(lambda: hook.bodies(kind="over"), lambda found: len(found) == 2)
    web.until(lambda: mail.messages, lambda found: len(found) == 2)
    assert "over: told-broken" in mail.messages[1]["Subject"]
    assert len({one["id"] for one in hook.bodies()}) == len(hook.bodies()) == 4
    types = [one["type"] for one in web.call("GET", "/api/events?follow=false&limit=1000")["items"]]
    assert types.count("incident_opened") == types.count("incident_over") == 2
    web.stop_all("told-")
    web.stop_all("untold-")


def test_the_same_by_command(web: Web, document: dict[str, Any], tmp_path: Path, hook: Receiver) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        where = ("--url", web.node.url)
        done = headgate(web.node.home, "notifications", *arguments, *where, HEADGATE_TOKEN=web.node.token)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    file = tmp_path / "notifications.yaml"
    file.write_text(json.dumps({"notifications": document}))
    assert "5 rules, 3 targets" in run("set", str(file))
    listed = run("list")
    assert all(word in listed for word in ("broken", "told-*", "hook", "webhook", "node_lost"))
    assert "$secret: mail-password" in run("list", "--yaml")
    assert "has taken a test message" in run("test", "hook")
    assert "no target" in run("test", "none", code=3)
    run("delete", "--yes")
    assert web.call("GET", "/api/notifications")["document"] is None
    assert web.ask("DELETE", "/api/notifications").status_code == 404

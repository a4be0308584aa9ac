"""Every answer says that nothing is to be guessed, framed or kept: also those to HEAD and OPTIONS, and errors."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest

from tests.waiting import LONG_S
from tests.web_node import Web

ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/healthz", {}),
    ("HEAD", "/healthz", {}),
    ("GET", "/readyz", {}),
    ("GET", "/api/installation", {}),
    ("GET", "/api/datasources", {}),
    ("HEAD", "/api/datasources", {}),
    ("OPTIONS", "/api/datasources", {}),
    ("PATCH", "/api/datasources", {}),
    ("TRACE", "/api/datasources", {}),
    ("GET", "/api/datasources/nobody", {}),
    ("GET", "/api/nothing", {}),
    ("GET", "/api/schema", {}),
    ("GET", "/api/export", {}),
    ("GET", "/metrics", {}),
    ("POST", "/api/apply", {"content": b"not json"}),
    ("POST", "/api/apply", {"content": b"x" * 17_000_000}),
    ("GET", "/api/datasources", {"headers": {"Authorization": "Bearer wrong"}}),
    ("GET", "/", {}),
    ("HEAD", "/", {}),
    ("GET", "/dumps", {}),
    ("POST", "/login", {"data": {"token": "hg_wrong"}}),
    ("POST", "/logout", {}),
    ("POST", "/hooks/nobody", {"content": b"{}"}),
    ("GET", "/hooks/nobody", {}),
    ("OPTIONS", "/hooks/nobody", {}),
    ("GET", "/%00", {}),
    ("GET", "/api/groups/a/b", {}),
]


@pytest.mark.parametrize(("method", "path", "more"), ASKED, ids=[f"{one[0]} {one[1]!a}" for one in ASKED])
def test_an_answer_is_not_guessed_framed_or_kept(web: Web, method: str, path: str, more: dict[str, Any]) -> None:
    found = web.ask(method, path, **more).headers
    for name, value in (
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
        ("x-frame-options", "DENY"),
        ("cross-origin-resource-policy", "same-origin"),
    ):
        assert found.get_list(name) == [value]
    assert len(found.get_list("content-security-policy")) <= 1
    assert len(found.get_list("referrer-policy")) == 1


def test_a_stream_is_not_kept_either(web: Web) -> None:
    with web.client.stream("GET", "/api/overview") as answer:
        assert answer.headers.get_list("cache-control") == ["no-store"]
        assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("sent", [b"NONSENSE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n"])
def test_what_is_not_http_is_answered_with_the_same_headers(web: Web, sent: bytes) -> None:
    """Below the applications."""
    url = httpx.URL(web.node.url)
    with socket.create_connection((url.host, url.port), timeout=LONG_S) as connection:
        connection.sendall(sent)
        answer = b""
        while more := connection.recv(65536):
            answer += more
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert b" 400 " in head.split(b"\r\n")[0] or b" 505 " in head.split(b"\r\n")[0]
    assert b"x-content-type-options: nosniff" in head


def test_pages_run_no_script_but_ours_and_static_files_may_be_kept_by_their_mark(web: Web) -> None:
    policy = web.ask("GET", "/").headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in web.ask("GET", "/api/datasources").headers["content-security-policy"]
    style = web.ask("GET", "/static/console.css").headers
    assert style.get_list("cache-control") == ["no-cache"]
    assert style.get_list("x-content-type-options") == ["nosniff"]

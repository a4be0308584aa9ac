"""Signing in to the console in a real browser: by a link, from another site, over plain HTTP on a network, over TLS."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from headgate.testing.processes import NodeProcess
from tests.certificates import Authority
from tests.web.browser import WAIT_MS, needs_chromium, sign_in_link
from tests.web_node import Databases

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def database(databases: Databases) -> str:
    return databases.make()


@pytest.fixture(scope="module")
def node(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """It listens on all addresses, so that a browser can come by one that is not loopback."""
    node = NodeProcess.start(tmp_path_factory.mktemp("node"), database=database, flags=("--host", "0.0.0.0"))
    yield node
    node.end(signal.SIGKILL)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(ignore_https_errors=True)
    context.set_default_timeout(WAIT_MS)
    yield context.new_page()
    context.close()


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Nothing is sent.
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def test_a_link_leads_to_the_console_and_nothing_of_it_stays_in_the_address(node: NodeProcess, page: Page) -> None:
    page.goto(sign_in_link(node))
    expect(page.locator("#link")).to_have_text("live")
    assert page.url == f"{node.url}/"
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
    assert page.evaluate("document.cookie") == ""
    page.go_back()
    assert "code=" not in page.url


def test_a_link_on_a_page_of_another_site_signs_nobody_in(node: NodeProcess, page: Page) -> None:
    link = sign_in_link(node)
    page.route("http://evil.example/", lambda route: route.fulfill(body=f"<a href='{link}'>look</a>"))
    page.goto("http://evil.example/")
    page.get_by_role("link").click()
    expect(page.get_by_role("alert")).to_contain_text("opened from another site")
    assert page.context.cookies() == []
    page.goto(link)
    expect(page.locator("#link")).to_have_text("live")


@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_a_form_of_another_site_changes_nothing(node: NodeProcess, page: Page, path: str) -> None:
    page.goto(sign_in_link(node))
    expect(page.locator("#link")).to_have_text("live")
    before = page.context.cookies()
    form = (
        f"<form method=post action='{node.url}{path}'><input name=token value='{node.token}'><button>go</button></form>"
    )
    page.route("http://evil.example/", lambda route: route.fulfill(body=form, content_type="text/html"))
    page.goto("http://evil.example/")
    page.get_by_role("button").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert page.context.cookies() == before
    page.goto(node.url)
    expect(page.locator("#link")).to_have_text("live")


def test_over_plain_http_on_a_network_a_link_takes_a_click_and_forms_work(node: NodeProcess, page: Page) -> None:
    """There a browser does not say who led it here, and says of a form only its origin."""
    here = node.url.replace("127.0.0.1", own_address())
    page.goto(sign_in_link(node).replace(node.url, here))
    page.get_by_role("button", name="Sign in by this link").click()
    expect(page.locator("#link")).to_have_text("live")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies() == []
    page.get_by_label("Token").fill(node.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#link")).to_have_text("live")


def test_over_tls_the_console_is_live_and_its_cookie_is_bound_to_the_host(
    database: str, node: NodeProcess, page: Page, tmp_path: Path
) -> None:
    """With a token of the same installation, made elsewhere."""
    authority = Authority(tmp_path)
    pair = authority.sign("node", "127.0.0.1")
    flags = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    secure = NodeProcess.start(tmp_path / "secure", database=database, flags=flags, token=node.token)
    try:
        page.goto(sign_in_link(node).replace(node.url, secure.url))
        expect(page.locator("#link")).to_have_text("live")
        (cookie,) = page.context.cookies()
        assert cookie["name"].startswith("__Host-headgate_")
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", True)
        assert httpx.get(secure.url, verify=False).status_code == 401
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        assert page.context.cookies() == []
    finally:
        secure.end(signal.SIGKILL)


def test_a_page_whose_session_ends_asks_to_sign_in_again(node: NodeProcess, page: Page) -> None:
    made = node.call("POST", "/api/tokens", {"name": "for a while", "role": "viewer"})
    page.goto(sign_in_link(node, made["token"]))
    expect(page.locator("#link")).to_have_text("live")
    node.call("DELETE", f"/api/tokens/{made['id']}")
    expect(page.get_by_label("Token")).to_be_visible()

"""A browser that has signed in has a session of its own: not the token, not for other sites, and not forever."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from headgate.core.access import Caller
from headgate.runtime.access import Access
from headgate.store.tokens import SESSION, Found, hash_of
from headgate.testing.processes import NodeProcess
from headgate.web.auth import Gate
from headgate.web.cookies import Cookies
from headgate.web.origin import is_direct, is_foreign, is_own
from tests.waiting import LONG_S
from tests.web_node import Databases, Web, bearer, numbers, session_cookie, started

HOST = "node.example:8470"
DIRECT = {"Sec-Fetch-Site": "none"}
FOREIGN: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Referer": "https://evil.example/page"},
]


@pytest.fixture
def anonymous(web: Web) -> Iterator[httpx.Client]:
    """A browser, as far as it goes: it keeps cookies and follows nothing."""
    with httpx.Client(base_url=web.node.url, timeout=LONG_S) as client:
        yield client


def new_token(web: Web, role: str = "viewer", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = web.call("POST", "/api/tokens", {"name": f"s{next(numbers)}", "role": role, **more})
    return found


def with_cookie(cookie: str, **more: str) -> dict[str, str]:
    return {"Authorization": "", "Cookie": cookie, **more}


def link(web: Web, token: str = "") -> str:
    headers = bearer(token) if token else {}
    return str(web.call("POST", "/api/sign-in", headers=headers)["path"])


def is_signed_in(web: Web, cookie: str) -> bool:
    return web.ask("GET", "/api/datasources", headers=with_cookie(cookie)).is_success


# What the browser keeps.


def test_the_cookie_is_not_the_token_and_the_database_has_only_its_hash(web: Web) -> None:
    answer = httpx.post(f"{web.node.url}/login", data={"token": web.node.token}, headers={"Origin": web.node.url})
    (cookie,) = answer.headers.get_list("set-cookie")
    name, _, text = cookie.partition(";")[0].partition("=")
    assert web.node.token not in cookie
    assert name.startswith("headgate_")
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    kept = str(web.rows("SELECT s::text FROM headgate.session s"))
    assert kept
    assert text not in kept
    assert text not in web.node.log()
    assert is_signed_in(web, f"{name}={text}")


def test_a_session_is_no_token_and_a_token_is_no_session(web: Web) -> None:
    name, _, text = session_cookie(web).partition("=")
    code = link(web).partition("=")[2]
    for wrong in (text, code):
        assert web.ask("GET", "/api/datasources", headers=bearer(wrong)).status_code == 401
    for wrong in (web.node.token, code, text[:-1], text + "x", f"{text}; {name}={text[::-1]}"):
        assert not is_signed_in(web, f"{name}={wrong}")
    assert is_signed_in(web, f"{name}={text}")


def test_signing_in_makes_a_new_session_and_ends_the_one_before(web: Web, anonymous: httpx.Client) -> None:
    """Whoever has planted a session in a browser has nothing of it."""
    planted = session_cookie(web)
    headers = {"Origin": web.node.url, "Cookie": planted}
    answer = anonymous.post("/login", data={"token": web.node.token}, headers=headers)
    fresh = answer.headers["set-cookie"].partition(";")[0]
    assert fresh != planted
    assert is_signed_in(web, fresh)
    assert not is_signed_in(web, planted)


# How it ends.


def test_signing_out_ends_the_session_on_the_node_too(web: Web, anonymous: httpx.Client) -> None:
    cookie = session_cookie(web)
    assert is_signed_in(web, cookie)
    answer = anonymous.post("/logout", headers={"Origin": web.node.url, "Cookie": cookie})
    assert answer.status_code == 303
    assert all("Max-Age=0" in one for one in answer.headers.get_list("set-cookie"))
    assert not is_signed_in(web, cookie)
    assert web.ask("GET", "/api/datasources").is_success


@pytest.mark.parametrize("way", ["revoked", "expired", "idle", "too old"])
def test_a_session_ends_with_its_token_and_by_itself(web: Web, way: str) -> None:
    token = new_token(web)
    cookie = session_cookie(web, token["token"])
    assert is_signed_in(web, cookie)
    match way:
        case "revoked":
            web.call("DELETE", f"/api/tokens/{token['id']}")
        case "expired":
            web.execute(f"UPDATE headgate.token SET expires_at = now() WHERE id = '{token['id']}'")
        case "idle":
            web.execute(f"UPDATE headgate.session SET idle_at = now() WHERE token = '{token['id']}'")
        case "too old":
            web.execute(f"UPDATE headgate.session SET expires_at = now() WHERE token = '{token['id']}'")
    web.until(lambda: is_signed_in(web, cookie), lambda found: not found)


@pytest.mark.parametrize("way", ["sign-out", "revoke"])
def test_a_page_that_is_open_ends_with_its_session(web: Web, anonymous: httpx.Client, way: str) -> None:
    """A stream that began before does not go on."""
    token = new_token(web)
    cookie = session_cookie(web, token["token"])
    with web.client.stream("GET", "/api/overview", headers=with_cookie(cookie)) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        if way == "revoke":
            web.node.call("DELETE", f"/api/tokens/{token['id']}")
        else:
            anonymous.post("/logout", headers={"Origin": web.node.url, "Cookie": cookie})
        for _ in lines:  # It ends, or the client's timeout does.
            pass


def test_a_session_works_on_every_node_and_ends_on_all(web: Web, tmp_path: Path) -> None:
    other = NodeProcess.start(tmp_path / "other", database=web.database, token=web.node.token)
    try:
        cookie = session_cookie(web)

        def status() -> int:
            return httpx.get(f"{other.url}/api/datasources", headers={"Cookie": cookie}).status_code

        assert status() == 200
        assert httpx.post(f"{other.url}/logout", headers={"Origin": other.url, "Cookie": cookie}).status_code == 303
        web.until(lambda: is_signed_in(web, cookie), lambda found: not found)
        code = link(web)
        assert httpx.get(other.url + code, headers=DIRECT).status_code == 303
        assert httpx.get(web.node.url + code, headers=DIRECT).status_code == 401
    finally:
        other.end(signal.SIGKILL)


def test_the_codes_of_one_token_are_limited(web: Web) -> None:
    token = new_token(web)
    for _ in range(12):
        link(web, token["token"])
    query = "SELECT count(*) AS n FROM headgate.session WHERE is_code AND token = $1"
    assert web.rows(query, token["id"])[0]["n"] == 10


async def test_requests_with_a_known_session_share_one_query() -> None:
    """As those with a token do."""
    text = SESSION + "x" * 43
    caller = Caller(UUID(int=1), "ada", "viewer", None, UUID(int=2))
    asked: list[list[bytes]] = []

    class Table:
        async def find(self, hashes: list[bytes]) -> list[Found]:
            asked.append(list(hashes))
            return [Found(caller, hash_of(text), has_ended=False)]

    table: Any = Table()
    gate = Gate(Access(table, table, "node"), Cookies(UUID(int=3), is_tls=False), auth=True)
    (cookie,) = gate.cookies.write(text, {})
    headers = {"cookie": f"other=1; {cookie.key}={cookie.value}"}
    for _ in range(100):
        assert await gate.identify(headers, "127.0.0.1", cookie_allowed=True) is caller
    assert asked == [[hash_of(text)]]


# Links.


def test_a_link_signs_in_once_and_is_no_token(web: Web, anonymous: httpx.Client) -> None:
    path = link(web)
    assert web.node.token not in path
    answer = anonymous.get(path, headers=DIRECT)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert anonymous.get("/").status_code == 200
    again = httpx.get(web.node.url + path, headers=DIRECT)
    assert again.status_code == 401
    assert "set-cookie" not in again.headers


def test_a_link_that_is_too_old_signs_nobody_in(web: Web, anonymous: httpx.Client) -> None:
    path = link(web)
    web.execute("UPDATE headgate.session SET expires_at = now() WHERE is_code")
    answer = anonymous.get(path, headers=DIRECT)
    assert (answer.status_code, is_cookie_set(answer)) == (401, False)


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_link_from_another_site_signs_nobody_in_and_stays_good(
    web: Web, anonymous: httpx.Client, headers: dict[str, str]
) -> None:
    path = link(web)
    answer = anonymous.get(path, headers=headers)
    assert "set-cookie" not in answer.headers
    assert 'name="code"' not in answer.text
    assert anonymous.get(path, headers=DIRECT).status_code == 303


def test_a_browser_that_looks_ahead_does_not_use_a_link_up(web: Web, anonymous: httpx.Client) -> None:
    path = link(web)
    assert "set-cookie" not in anonymous.get(path, headers={**DIRECT, "Sec-Purpose": "prefetch;prerender"}).headers
    assert anonymous.get(path, headers=DIRECT).status_code == 303


def test_where_the_browser_does_not_say_who_led_it_here_a_button_has_to_be_pressed(
    web: Web, anonymous: httpx.Client
) -> None:
    path = link(web)
    page = anonymous.get(path)
    assert page.status_code == 200
    assert "set-cookie" not in page.headers
    code = path.partition("=")[2]
    assert f'name="code" value="{code}"' in page.text
    answer = anonymous.post("/login", data={"code": code}, headers={"Origin": web.node.url})
    assert answer.status_code == 303
    assert anonymous.get("/").status_code == 200


def test_a_token_in_the_address_is_nothing(web: Web, anonymous: httpx.Client) -> None:
    answer = anonymous.get("/", params={"token": web.node.token}, headers=DIRECT)
    assert (answer.status_code, is_cookie_set(answer)) == (401, False)
    answer = anonymous.get("/", params={"code": web.node.token}, headers=DIRECT)
    assert (answer.status_code, is_cookie_set(answer)) == (401, False)


def is_cookie_set(answer: httpx.Response) -> bool:
    return "set-cookie" in answer.headers


def test_a_session_makes_no_links_and_a_sender_does_not_sign_in(web: Web, anonymous: httpx.Client) -> None:
    """A session that could make links would outlive itself."""
    cookie = session_cookie(web)
    assert web.ask("POST", "/api/sign-in", headers=with_cookie(cookie, Origin=web.node.url)).status_code == 401
    sender = new_token(web, "sender", datasources=["a"])
    assert web.ask("POST", "/api/sign-in", headers=bearer(sender["token"])).status_code == 403
    answer = anonymous.post("/login", data={"token": sender["token"]}, headers={"Origin": web.node.url})
    assert (answer.status_code, is_cookie_set(answer)) == (403, False)


# Other sites.


@pytest.mark.parametrize("headers", [*FOREIGN, {}], ids=str)
def test_only_our_own_pages_sign_in_and_out(web: Web, anonymous: httpx.Client, headers: dict[str, str]) -> None:
    answer = anonymous.post("/login", data={"token": web.node.token}, headers=headers)
    assert (answer.status_code, is_cookie_set(answer)) == (403, False)
    code = link(web).partition("=")[2]
    answer = anonymous.post("/login", data={"code": code}, headers=headers)
    assert (answer.status_code, is_cookie_set(answer)) == (403, False)
    cookie = session_cookie(web)
    answer = anonymous.post("/logout", headers={**headers, "Cookie": cookie})
    assert (answer.status_code, is_cookie_set(answer)) == (403, False)
    assert is_signed_in(web, cookie)


@pytest.mark.parametrize("headers", [*FOREIGN, {}], ids=str)
def test_only_our_own_pages_change_something(web: Web, headers: dict[str, str]) -> None:
    """Also with the header that the console's scripts send."""
    more = with_cookie(session_cookie(web), **{**headers, "x-headgate-console": "1"})
    assert web.ask("POST", "/api/dumps/ffffffff/pause", headers=more).status_code == 401
    own = {**more, "Origin": web.node.url, "Sec-Fetch-Site": "same-origin"}
    assert web.ask("POST", "/api/dumps/ffffffff/pause", headers=own).status_code == 404


def test_a_form_that_is_too_large_is_refused_before_it_is_read(anonymous: httpx.Client, web: Web) -> None:
    answer = anonymous.post("/login", data={"token": "x" * 100_000}, headers={"Origin": web.node.url})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("headers", "own", "foreign", "direct"),
    [
        ({}, False, False, False),
        ({"sec-fetch-site": "same-origin"}, True, False, True),
        ({"sec-fetch-site": "none"}, False, False, True),
        ({"sec-fetch-site": "same-site"}, False, True, False),
        ({"sec-fetch-site": "cross-site"}, False, True, False),
        ({"sec-fetch-site": "cross-site", "origin": f"http://{HOST}"}, False, True, False),
        ({"origin": f"http://{HOST}"}, True, False, False),
        ({"origin": f"https://{HOST}"}, True, False, False),
        ({"origin": "null"}, False, True, False),
        ({"origin": "http://node.example"}, False, True, False),
        ({"origin": f"http://{HOST}.evil.example"}, False, True, False),
        ({"origin": f"http://evil.example@{HOST}"}, False, True, False),
        ({"origin": f"javascript://{HOST}"}, False, True, False),
        ({"origin": "http://["}, False, True, False),
        ({"referer": f"http://{HOST}/page"}, False, False, False),
        ({"referer": "http://evil.example/"}, False, True, False),
        ({"sec-fetch-site": "none", "sec-purpose": "prefetch"}, False, False, False),
    ],
)
def test_who_led_a_browser_here(headers: dict[str, str], own: bool, foreign: bool, direct: bool) -> None:
    said = {"host": HOST, **headers}
    assert (is_own(said), is_foreign(said), is_direct(said)) == (own, foreign, direct)


def test_over_tls_the_cookie_is_bound_to_the_host(databases: Databases, tmp_path: Path) -> None:
    from tests.certificates import Authority

    pair = Authority(tmp_path).sign("node", "127.0.0.1")
    settings = {"HEADGATE_TLS_CERT": str(pair.cert), "HEADGATE_TLS_KEY": str(pair.key)}
    with started(tmp_path / "home", databases.make(), **settings) as secure:
        headers = {"Origin": secure.node.url}
        answer = httpx.post(
            f"{secure.node.url}/login", data={"token": secure.node.token}, headers=headers, verify=False
        )
        (cookie,) = answer.headers.get_list("set-cookie")
        assert cookie.startswith("__Host-headgate_")
        assert "secure" in cookie.lower()
        pairs = cookie.partition(";")[0]
        for sent, status in ((pairs, 200), (pairs.removeprefix("__Host-"), 401)):
            found = httpx.get(f"{secure.node.url}/api/datasources", headers={"Cookie": sent}, verify=False)
            assert found.status_code == status

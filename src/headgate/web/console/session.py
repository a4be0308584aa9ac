"""Signing in and out. The browser keeps a session in a cookie that scripts cannot read and other sites cannot send.

*The form* takes a token. *A link* has a code, which works once and soon, and is no token. A link of another site signs
nobody in: its code could be that of somebody who waits for what the reader does under that name. Where the browser does
not say who led it here, as over plain HTTP on a network, the reader has to press a button.

What changes something is taken only from our own pages, signing in and out included. A new session is made for each
time somebody signs in, and the one before ends; so nobody can know its text beforehand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

from litestar import Request, Response, post
from litestar.response import Redirect

from headgate.core.access import ANYONE, Caller, may
from headgate.errors import Forbidden, NotFound, StoreError
from headgate.runtime.node import Node
from headgate.store.tokens import CODE
from headgate.web import sse
from headgate.web.auth import Gate, Needs, address_of
from headgate.web.console.frame import missing
from headgate.web.console.live import LivePages, View
from headgate.web.console.pages import HEADERS, database_away, page
from headgate.web.headers import takes_gzip
from headgate.web.origin import is_direct, is_foreign, is_own

MOST_FORM_BYTES = 4096
READING = ("GET", "HEAD")

Req = Request[Any, Any, Any]


async def holder(request: Req) -> Caller | None:
    """Who looks at the page, or sends something from it."""
    gate: Gate = request.app.state.gate
    is_trusted = request.method in READING or is_own(request.headers)
    return await gate.identify(request.headers, address_of(request.scope), cookie_allowed=is_trusted)


Show: TypeAlias = Callable[[Caller], Awaitable[Response[str]]]


async def signed_in(request: Req, show: Show, *, is_own: bool = False) -> Response[Any]:
    """The page, live if it is asked for as events; or the way to it. `is_own`: it says which token its reader has."""
    try:
        found = await holder(request)
        if found is not None:
            await check(request, found)
            if sse.MEDIA_TYPE in request.headers.get("accept", ""):
                return await _live(request, found, show, is_own=is_own)
            return await _shown(found, show)
    except StoreError:
        return database_away()
    except Forbidden as error:
        return page(
            "notice.html", status=403, again_s=30, again_at="/", title="Not with this token", text=error.message
        )
    if is_foreign(request.headers):
        # The cookie stayed behind. When our own page asks, it is sent.
        query = request.scope["query_string"].decode("latin-1")
        again_at = request.url.path + (f"?{query}" if query else "")
        return page("notice.html", again_s=0, again_at=again_at, title="One moment", text="Opening the console.")
    return sign_in_page()


async def _shown(holder: Caller, show: Callable[[Caller], Awaitable[Response[str]]]) -> Response[str]:
    """The page, or that there is none."""
    try:
        return await show(holder)
    except NotFound as error:
        return missing(holder, at="", title="It is not there", text=f"{error.message}.")


async def _live(request: Req, holder: Caller, show: Show, *, is_own: bool) -> Response[Any]:
    """The page as it changes, for as long as the session lasts."""
    pages: LivePages = request.app.state.live_pages
    query = request.scope["query_string"].decode("latin-1")
    token = holder.id if is_own else None
    view = View(str(request.base_url), f"{request.url.path}?{query}", holder.role, holder.bounds, token)
    zipped = takes_gzip(request.headers.get("accept-encoding", ""))
    events = pages.events(view, lambda: _shown(holder, show), zipped=zipped)
    first = await anext(events)  # Or what is wrong, while that can still be the answer.
    request.scope["user"] = holder
    return sse.live(request, _all_of(first, events), zipped=zipped)


async def _all_of(first: bytes, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for event in events:
        yield event


async def check(request: Req, holder: Caller) -> None:
    """Refuse what the reader of this page may not see, by the rule that its handler names."""
    needs: Needs = request.route_handler.opt["needs"]
    await needs.check(request, holder)


async def follow_link(node: Node, request: Req, code: str) -> Response[Any]:
    """A link that signs in was opened. A token is not taken from an address: it would stay in histories and logs."""
    if not code.startswith(CODE):
        return sign_in_page("This link is not valid.")
    if is_direct(request.headers):
        return await _enter(node, request, code)
    if is_foreign(request.headers):
        return sign_in_page("This link was opened from another site. Paste it into the address bar instead.")
    return page("link.html", code=code)


def sign_in_page(problem: str = "", status: int = 401) -> Response[str]:
    """The form."""
    return page("sign_in.html", status=status, problem=problem)


@post("/login", include_in_schema=False, status_code=200, request_max_body_size=MOST_FORM_BYTES)
async def sign_in(node: Node, request: Req) -> Response[Any]:
    """The form, or the button of a link."""
    if not is_own(request.headers):
        return sign_in_page("Please sign in from this page.", status=403)
    form = await request.form()
    text = form.get("code") or form.get("token") or ""
    try:
        return await _enter(node, request, text.strip() if isinstance(text, str) else "")
    except StoreError:
        return database_away(again_at="/")


@post("/logout", include_in_schema=False, status_code=200)
async def sign_out(node: Node, request: Req) -> Response[Any]:
    """End the session; the token stays valid."""
    if not is_own(request.headers):
        return sign_in_page("Please sign out from this page.", status=403)
    gate: Gate = request.app.state.gate
    text = gate.cookies.read(request.headers)
    try:
        if await gate.reader(request.headers, address_of(request.scope)) is not None:
            await node.sessions.end(text)
            gate.drop(text)
            node.waker.wake("tokens")
    except StoreError:
        return database_away(again_at="/")
    return Redirect("/", status_code=303, headers=HEADERS, cookies=gate.cookies.clear())


async def _enter(node: Node, request: Req, text: str) -> Response[Any]:
    """To the console with this token or code, or to the form with one line that says why not."""
    gate: Gate = request.app.state.gate
    kind = "link" if text.startswith(CODE) else "token"
    caller = await gate.signer(text, request.headers, address_of(request.scope))
    if caller is ANYONE:
        return Redirect("/", status_code=303, headers=HEADERS)
    if caller is None or caller.id is None:
        again = " Links work once, for ten minutes; `headgate console` makes another." if kind == "link" else ""
        return sign_in_page(f"This {kind} is not valid.{again}")
    if not may(caller, "sign_in"):
        return sign_in_page(f"The token {caller.name} is for sending; the console needs another one.", status=403)
    before = gate.cookies.read(request.headers)
    if kind == "link":
        session = await node.sessions.redeem(text, instead_of=before)
    else:
        session = await node.sessions.begin(caller.id, instead_of=before)
    if session is None:
        return sign_in_page(f"This {kind} is not valid any more.")
    gate.drop(before)
    cookies = gate.cookies.write(session, request.headers)
    return Redirect("/", status_code=303, headers=HEADERS, cookies=cookies)

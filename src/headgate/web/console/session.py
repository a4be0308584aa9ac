"""Signing in and out. The browser keeps the token in a cookie that scripts cannot read and other sites cannot send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import Request, Response, post
from litestar.datastructures import Cookie
from litestar.response import Redirect

from headgate.core.access import ANYONE, Caller
from headgate.errors import Forbidden, StoreError
from headgate.web.auth import COOKIE, Gate, Needs, address_of
from headgate.web.console.pages import HEADERS, database_away, page

KEEP_S = 30 * 24 * 3600

Req = Request[Any, Any, Any]


async def holder(request: Req) -> Caller | None:
    """Who looks at the page."""
    gate: Gate = request.app.state.gate
    return await gate.identify(request.headers, address_of(request.scope), cookie_allowed=True)


def name_of(holder: Caller) -> str:
    """What the page calls its reader. Without tokens nobody has a name."""
    return "" if holder is ANYONE else holder.name


async def signed_in(request: Req, show: Callable[[Caller], Awaitable[Response[str]]]) -> Response[Any]:
    """The page, or the way to it."""
    try:
        found = await holder(request)
        if found is not None:
            await check(request, found)
            return await show(found)
    except StoreError:
        return database_away()
    except Forbidden as error:
        return page(
            "notice.html", status=403, again_s=30, again_at="/", title="Not with this token", text=error.message
        )
    if came_from_elsewhere(request):
        query = request.scope["query_string"].decode("latin-1")
        again_at = request.url.path + (f"?{query}" if query else "")
        return page("notice.html", again_s=0, again_at=again_at, title="One moment", text="Opening the console.")
    return sign_in_page()


async def check(request: Req, holder: Caller) -> None:
    """Refuse what the reader of this page may not see, by the rule that its handler names."""
    needs: Needs = request.route_handler.opt["needs"]
    await needs.check(request, holder)


async def enter(request: Req, text: str) -> Response[Any]:
    """To the console with this token, or to the sign-in page with one line that says why not."""
    gate: Gate = request.app.state.gate
    shown = {"host": request.headers.get("host", ""), "authorization": f"Bearer {text}"}
    if await gate.identify(shown, address_of(request.scope), cookie_allowed=False) is None:
        return sign_in_page(problem="This token is not valid.")
    return _home(request, text, KEEP_S)


def sign_in_page(problem: str = "", status: int = 401) -> Response[str]:
    """The form."""
    return page("sign_in.html", status=status, problem=problem)


def came_from_elsewhere(request: Req) -> bool:
    """Whether another site led the browser here; it then kept our cookie to itself."""
    return request.headers.get("sec-fetch-site", "") in ("cross-site", "same-site")


@post("/login", include_in_schema=False, status_code=200)
async def sign_in(request: Req) -> Response[Any]:
    """The form was sent."""
    if came_from_elsewhere(request):
        return sign_in_page(problem="Please sign in from this page.")
    text = (await request.form()).get("token", "")
    try:
        return await enter(request, text.strip() if isinstance(text, str) else "")
    except StoreError:
        return database_away(again_at="/")


@post("/logout", include_in_schema=False, status_code=200, sync_to_thread=False)
def sign_out(request: Req) -> Response[Any]:
    """Forget the token here; it stays valid elsewhere."""
    return sign_in_page() if came_from_elsewhere(request) else _home(request, "", 0)


def _home(request: Req, text: str, keep_s: int) -> Response[Any]:
    cookie = Cookie(
        key=COOKIE,
        value=text,
        max_age=keep_s,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return Redirect("/", status_code=303, headers=HEADERS, cookies=[cookie])

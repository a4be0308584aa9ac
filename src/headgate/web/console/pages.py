"""How a page is answered: from a template, with headers that let nothing in from elsewhere."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import MediaType, Response
from litestar.exceptions import NotFoundException

from headgate import __version__
from headgate.web.console import words
from headgate.web.problems import http_error

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
}

_templates = Environment(
    loader=PackageLoader("headgate.web.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals["release"] = __version__
_templates.filters["count"] = words.count


def page(template: str, *, status: int = 200, **values: Any) -> Response[str]:
    """A whole page."""
    text = _templates.get_template(template).render(values)
    return Response(text, media_type=MediaType.HTML, status_code=status, headers=HEADERS)


def database_away(again_at: str = "") -> Response[str]:
    """The node lives, but knows nothing at the moment. Without another address, the browser asks for the same again."""
    return page(
        "notice.html",
        status=503,
        again_s=3,
        again_at=again_at,
        title="The database does not answer",
        text="This node cannot reach its database and keeps trying. This page tries again by itself.",
    )


def lost(request: Any, error: NotFoundException) -> Response[Any]:
    """For an address that leads nowhere: a browser that somebody reads gets a page, a program a problem."""
    reads = request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", "")
    is_page = not request.url.path.startswith(("/api/", "/static/"))
    return page("lost.html", status=404) if reads and is_page else http_error(request, error)

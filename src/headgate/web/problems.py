"""Errors as RFC 9457 problems."""

from __future__ import annotations

import http
import re
from collections.abc import Iterable, Mapping

import msgspec
import structlog
from litestar import Response
from litestar.exceptions import HTTPException, SerializationException
from litestar.types import ExceptionHandlersMap

from headgate.core.access import Caller
from headgate.errors import (
    Busy,
    ConfigError,
    Forbidden,
    HeadgateError,
    NotFound,
    Problem,
    Refused,
    StoreError,
    Unauthorized,
)
from headgate.hidden import hide
from headgate.text import one_line
from headgate.web.auth import Req
from headgate.web.bodies import datasources as bodies
from headgate.web.bodies.problems import ProblemDetails

STATUS: list[tuple[type[HeadgateError], int]] = [
    (ConfigError, 422),
    (NotFound, 404),
    (Refused, 409),
    (Unauthorized, 401),
    (Forbidden, 403),
    (Busy, 429),
    (StoreError, 503),
]

MEDIA_TYPE = "application/problem+json"

_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`")

log = structlog.get_logger()


def status_of(error: HeadgateError) -> int:
    """The status that says what the caller should do."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def problem(
    status: int,
    detail: str = "",
    *,
    code: str = "",
    hint: str = "",
    problems: Iterable[Problem] = (),
    counts: Mapping[str, int] | None = None,
) -> ProblemDetails:
    """The body of a problem."""
    return ProblemDetails(
        type="about:blank",
        title=http.HTTPStatus(status).phrase,
        status=status,
        detail=hide(detail),
        code=code,
        hint=hide(hint),
        problems=tuple(bodies.Problem(path=one.path, message=hide(one.message), hint=one.hint) for one in problems),
        counts=dict(counts or {}),
    )


def encode(body: ProblemDetails) -> bytes:
    """For doors that speak plain ASGI."""
    return msgspec.json.encode(body)


def _respond(body: ProblemDetails, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    headers = dict(headers or {})
    if body.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if body.status in (429, 503):
        headers["Retry-After"] = "2"
    return Response(encode(body), media_type=MEDIA_TYPE, status_code=body.status, headers=headers)


def headgate_error(request: Req, error: HeadgateError) -> Response[bytes]:
    """One of ours. A missing or wrong token learns nothing more."""
    if isinstance(error, Unauthorized):
        return _respond(problem(401))
    problems = error.problems if isinstance(error, ConfigError | Refused) else ()
    # A hint may name what is close to what was asked for; a caller with bounds may not know that it exists.
    hint = "" if isinstance(error, NotFound) and _has_bounds(request) else error.hint
    counts = error.counts if isinstance(error, Refused) else None
    body = problem(status_of(error), error.message, code=error.code, hint=hint, problems=problems, counts=counts)
    return _respond(body)


def _has_bounds(request: Req) -> bool:
    caller = request.scope.get("user")
    return isinstance(caller, Caller) and caller.bounds is not None


def http_error(request: Req, error: HTTPException) -> Response[bytes]:
    """One of the framework's: no such path, another method, a parameter of the wrong type, and the like."""
    extra = error.extra if isinstance(error.extra, list) else []
    problems = [Problem(str(item.get("key", "")), str(item.get("message", ""))) for item in extra]
    if any(item.get("source") == "body" for item in extra):  # It is JSON, and not what is asked for.
        return headgate_error(request, ConfigError([body_problem(_path(one.path), one.message) for one in problems]))
    return _respond(problem(error.status_code, one_line(error.detail), problems=problems), error.headers)


def _path(key: str) -> str:
    return "" if key == "data" else key.removeprefix("data.")


def body_problem(path: str, message: str) -> Problem:
    """What is wrong with a body, at the field that it is wrong with."""
    if (match := _FIELD.fullmatch(message)) is None:
        return Problem(path, message)
    return Problem(f"{path}.{match[2]}".lstrip("."), "is missing" if match[1] == "missing required" else "is unknown")


def not_json(request: Req, error: Exception) -> Response[bytes]:
    """What decoding a body raises besides the framework's own errors: not UTF-8, nested too deeply, not JSON at all."""
    return _respond(problem(400, f"the body is not JSON: {one_line(error)}"))


def unknown_error(request: Req, error: Exception) -> Response[bytes]:
    """A bug of ours: the log has the stack, the caller does not."""
    log.error("a request failed", method=request.method, path=request.url.path, exc_info=error)
    return _respond(problem(500, "this should not have happened; the node's log says more"))


HANDLERS: ExceptionHandlersMap = {
    HeadgateError: headgate_error,
    HTTPException: http_error,
    SerializationException: not_json,
    UnicodeDecodeError: not_json,
    RecursionError: not_json,
    Exception: unknown_error,
}

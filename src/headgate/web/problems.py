"""Errors as RFC 9457 problems."""

from __future__ import annotations

import http
from typing import Any

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, SerializationException

from headgate.errors import ConfigError, Forbidden, HeadgateError, NotFound, Problem, Refused, StoreError, Unauthorized
from headgate.text import one_line

STATUS: list[tuple[type[HeadgateError], int]] = [
    (ConfigError, 422),
    (NotFound, 404),
    (Refused, 409),
    (Unauthorized, 401),
    (Forbidden, 403),
    (StoreError, 503),
]

log = structlog.get_logger()


def status_of(error: HeadgateError) -> int:
    """The status that says what the caller should do."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def problem(status: int, detail: str = "", *, code: str = "", hint: str = "", problems: Any = ()) -> dict[str, Any]:
    """The body of a problem."""
    found: dict[str, Any] = {"type": "about:blank", "title": http.HTTPStatus(status).phrase, "status": status}
    if detail:
        found["detail"] = detail
    if code:
        found["code"] = code
    if hint:
        found["hint"] = hint
    if problems:
        found["problems"] = [{"path": p.path, "message": p.message, "hint": p.hint} for p in problems]
    return found


def encode(body: dict[str, Any]) -> bytes:
    """For doors that speak plain ASGI."""
    return msgspec.json.encode(body)


def _respond(body: dict[str, Any]) -> Response[bytes]:
    headers = {"WWW-Authenticate": "Bearer"} if body["status"] == 401 else {}
    if body["status"] == 503:
        headers["Retry-After"] = "2"
    return Response(encode(body), media_type="application/problem+json", status_code=body["status"], headers=headers)


def headgate_error(request: Request[Any, Any, Any], error: HeadgateError) -> Response[bytes]:
    """One of ours. A missing or wrong token learns nothing more."""
    if isinstance(error, Unauthorized):
        return _respond(problem(401))
    problems = error.problems if isinstance(error, ConfigError) else ()
    return _respond(problem(status_of(error), error.message, code=error.code, hint=error.hint, problems=problems))


def http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """One of the framework's: no such path, a parameter of the wrong type, and the like."""
    extra = error.extra if isinstance(error.extra, list) else []
    problems = [Problem(str(item.get("key", "")), str(item.get("message", ""))) for item in extra]
    return _respond(problem(error.status_code, one_line(error.detail), problems=problems))


def not_json(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """What decoding a body raises beside the framework's own errors: not UTF-8, nested too deeply, not JSON at all."""
    return _respond(problem(400, f"the body is not JSON: {one_line(error)}"))


def unknown_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A bug of ours: the log has the stack, the caller does not."""
    log.error("a request failed", method=request.method, path=request.url.path, exc_info=error)
    return _respond(problem(500, "this should not have happened; the node's log says more"))


HANDLERS: Any = {
    HeadgateError: headgate_error,
    HTTPException: http_error,
    SerializationException: not_json,
    UnicodeDecodeError: not_json,
    RecursionError: not_json,
    Exception: unknown_error,
}

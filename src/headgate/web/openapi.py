"""What the OpenAPI document says beyond the handlers' types: which problems an operation may answer with, and why."""

from __future__ import annotations

from collections.abc import Iterable

from litestar import Controller
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec

from headgate.web.bodies.problems import ProblemDetails
from headgate.web.problems import MEDIA_TYPE

_WHY = {
    400: "A parameter has a wrong type, or the body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The token's role does not allow this.",
    404: "What the path names does not exist.",
    409: "This is refused now. `code` and `hint` say why and what to do.",
    413: "The body is too large.",
    422: "The body is wrong. `problems` says where.",
    503: "The database does not answer now; try again later.",
}


def describe_problems(handlers: Iterable[HTTPRouteHandler | type[Controller]]) -> None:
    """Have each handler say in the OpenAPI document which problems it may answer with."""
    for found in handlers:
        if isinstance(found, HTTPRouteHandler):
            _describe(found)
        else:
            for value in vars(found).values():
                if isinstance(value, HTTPRouteHandler):
                    _describe(value)


def _describe(handler: HTTPRouteHandler) -> None:
    if not handler.guards or not handler.include_in_schema:
        return  # Open to anyone: it answers even while the database is away.
    changes = handler.http_methods != {"GET"}
    takes_body = "data" in handler.fn.__annotations__
    statuses = {400, 401, 503}
    statuses |= {404} if any("{" in path for path in handler.paths) else set()
    statuses |= {403, 409} if changes else {403}
    statuses |= {413, 422} if takes_body else set()
    problems = {
        status: ResponseSpec(ProblemDetails, description=_WHY[status], media_type=MEDIA_TYPE, generate_examples=False)
        for status in sorted(statuses)
    }
    handler.responses = {**problems, **(handler.responses or {})}

"""What the OpenAPI document says beyond the handlers' types: which bodies may be left out, which problems an operation
may answer with, and why."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass

from litestar import Controller
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIType, Operation, RequestBody, Schema

from headgate.web.bodies.problems import ProblemDetails
from headgate.web.problems import MEDIA_TYPE

_WHY = {
    400: "A parameter has a wrong type, or the body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The token's role does not allow this.",
    404: "What is named does not exist.",
    409: "This is refused now. `code` and `hint` say why and what to do.",
    413: "The body is too large.",
    422: "The body is wrong. `problems` says where.",
    429: "Too much is under way; try again soon.",
    503: "The database does not answer now; try again later.",
}


@dataclass
class OptionalBody(Operation):
    """An operation whose body may be left out. The framework writes "a body or null", and that it is required; null is
    refused, and some generators of clients fail on it."""

    def __post_init__(self) -> None:
        """Say that the body may be left out, and what it is otherwise."""
        assert isinstance(self.request_body, RequestBody)
        self.request_body.required = False
        for content in self.request_body.content.values():
            assert isinstance(content.schema, Schema)
            (content.schema,) = [
                one
                for one in content.schema.one_of or [content.schema]
                if not isinstance(one, Schema) or one.type is not OpenAPIType.NULL
            ]


def describe(handlers: Iterable[HTTPRouteHandler | type[Controller]]) -> None:
    """Have each handler say in the OpenAPI document what its types do not."""
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
    names = any("{" in path for path in handler.paths) or handler.http_methods == {"DELETE"}
    statuses |= {404} if names else set()
    statuses |= {403, 409} if changes else {403}
    statuses |= {413, 422} if takes_body else set()
    statuses |= {429} if handler.opt.get("runs_tests") else set()
    if takes_body and inspect.signature(handler.fn).parameters["data"].default is None:
        handler.operation_class = OptionalBody
    problems = {
        status: ResponseSpec(ProblemDetails, description=_WHY[status], media_type=MEDIA_TYPE, generate_examples=False)
        for status in sorted(statuses)
    }
    handler.responses = {**problems, **(handler.responses or {})}

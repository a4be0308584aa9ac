"""Taps: live records of a datasource, for operators. Nothing of them is logged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from litestar import get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter

from headgate.core.tap import MOST_SAMPLE, At, Tap
from headgate.errors import ConfigError, Problem
from headgate.ids import new_id
from headgate.runtime.node import Node
from headgate.runtime.taps.hub import View
from headgate.text import parse_duration
from headgate.web import sse, subjects
from headgate.web.auth import Needs, Req
from headgate.web.bodies.problems import ProblemDetails
from headgate.web.bodies.taps import Tapped
from headgate.web.problems import MEDIA_TYPE

LONGEST_S = 3600.0
MOST_RECORDS = 1_000_000

Where = Annotated[str, Parameter(max_length=2000)]
Sample = Annotated[int, Parameter(ge=1, le=MOST_SAMPLE)]
Limit = Annotated[int | None, Parameter(ge=1, le=MOST_RECORDS)]
For = Annotated[str, Parameter(query="for", max_length=20)]

PROBLEMS = {
    status: ResponseSpec(ProblemDetails, description=why, media_type=MEDIA_TYPE, generate_examples=False)
    for status, why in {409: "Too many taps are open.", 422: "The expression or the duration is wrong."}.items()
}


@get(
    "/api/datasources/{name:str}/tap",
    guards=[Needs("operate", subjects.datasource)],
    tags=["datasources"],
    summary="Its records as they flow, live (SSE)",
    responses={**sse.spec(Tapped), **PROBLEMS},
)
async def tap(
    node: Node,
    request: Req,
    name: str,
    at: At = "source",
    where: Where = "",
    sample: Sample = 1,
    limit: Limit = None,
    lasts: For = "1h",
) -> sse.Live:
    """From whichever node runs it: `at` is `source`, `mapped`, `written` or `dead`; `where` an expression; `sample` one
    in how many; it ends after `limit` records, or `for` so long (`30s`; at most an hour). What is too much is dropped
    and counted."""
    found = await node.registry.get(name)
    for_s = _seconds(lasts)
    view = await node.taps.open(Tap(new_id(), found.id, at, where, sample), limit, for_s)
    try:
        told = {"at": at, "has_condition": bool(where.strip()), "sample": sample}
        await node.registry.record_event(found.id, "tapped", told, request.user.name)
    except BaseException:
        view.close()  # Nobody looks unless it is written down.
        raise
    return sse.live(request, _steps(view))


def _seconds(text: str) -> float:
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise ConfigError([Problem("for", str(error))]) from None
    if not 1 <= found <= LONGEST_S:
        raise ConfigError([Problem("for", "must be between 1s and 1h")])
    return found


async def _steps(view: View) -> AsyncIterator[bytes]:
    try:
        while True:
            found = await view.look(sse.ALIVE_S)
            if found.dropped:
                yield sse.event(msgspec.json.encode(Tapped(dropped=found.dropped)))
            for record in found.records:
                yield sse.event(msgspec.json.encode({"shown": msgspec.Raw(record), "dropped": 0, "ended": None}))
            if found.ended is not None:
                yield sse.event(msgspec.json.encode(Tapped(ended=found.ended)))
                return
            if not found.records:
                yield sse.ALIVE
    finally:
        view.close()


ROUTES = [tap]

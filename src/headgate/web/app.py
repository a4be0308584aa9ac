"""What answers at a node: webhooks and WebSockets have their own doors, the rest is Litestar's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from headgate import __version__
from headgate.runtime.node import Node
from headgate.spans import spans
from headgate.web.api import (
    allowed,
    connectors,
    dumps,
    editing,
    events,
    groups,
    harness,
    health,
    history,
    installed,
    letters,
    logs,
    nodes,
    notifications,
    registry,
    secrets,
    streams,
    support,
    taps,
    tokens,
)
from headgate.web.api.datasources import DatasourcesApi
from headgate.web.auth import Gate, Needs
from headgate.web.console import ERRORS
from headgate.web.console import ROUTES as CONSOLE
from headgate.web.console.live import LivePages
from headgate.web.cookies import Cookies
from headgate.web.doors.asgi import Receive, Scope, Send, impatient
from headgate.web.doors.commits import Commits
from headgate.web.doors.groups import GroupDoor
from headgate.web.doors.hooks import Hooks
from headgate.web.doors.push import PushDoor
from headgate.web.doors.turns import Turns
from headgate.web.doors.webhooks import WebhookDoor
from headgate.web.doors.wire import SocketProtocol
from headgate.web.feeds import Feeds
from headgate.web.figures import collector_of
from headgate.web.headers import Guarded
from headgate.web.lines import Lines
from headgate.web.openapi import describe
from headgate.web.overview import Overviews
from headgate.web.problems import HANDLERS, MEDIA_TYPE, encode, problem
from headgate.web.strict import StrictRequest
from headgate.web.traced import Traced

PROBLEM = MEDIA_TYPE.encode()
MOST_BODY_BYTES = 16 * 1024 * 1024

log = structlog.get_logger()


class App:
    """What uvicorn calls. Webhooks do not come this way: `door` is for the connections themselves."""

    def __init__(self, node: Node, *, auth: bool, is_tls: bool = False) -> None:
        gate = Gate(node.access, Cookies(node.installation, is_tls=is_tls), auth=auth)
        hooks = Hooks(node.registry, node.lists)
        self.door = WebhookDoor(hooks, Commits(node.inbox, node.inboxes, node.waker), gate, node.trust_left_s)
        self.push = PushDoor(node, gate)
        self.groups = GroupDoor(node, gate)
        self.turns = Turns()
        self.doors: dict[str, Callable[[SocketProtocol], Awaitable[None]]] = {
            "/push": self.push,
            "/groups": self.groups,
        }

        self.collector = collector_of(node, self.door, self.push, self.groups)
        self.overviews = Overviews(Lines(node).overview)
        state = {
            "node": node,
            "gate": gate,
            "collector": self.collector,
            "overviews": self.overviews,
            "feeds": Feeds(node),
            "live_pages": LivePages(),
            "verifications": dumps.Verifications(),
        }
        self.api = make_api(node, State(state))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        outward = impatient(send)
        answer = Guarded(scope["path"], Traced(scope, outward) if spans.is_on else outward)
        try:
            await self._answer(scope, receive, answer)
        except Exception:
            if answer.has_begun:
                raise
            log.exception("a request failed")
            await answer({"type": "http.response.start", "status": 500, "headers": [(b"content-type", PROBLEM)]})
            await answer({"type": "http.response.body", "body": encode(problem(500, "a fault of this node"))})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "\0" in scope["path"]:  # No name has one, and the database takes none.
            await self.api({**scope, "path": "/404"}, receive, send)  # type: ignore[arg-type]
        elif scope["path"].startswith("/api/groups/"):
            # Names in it may have slashes, so it is taken apart as it came.
            path = scope["raw_path"].decode("ascii", "replace")
            await self.api({**scope, "path": path}, receive, send)  # type: ignore[arg-type]
        else:
            await self.api(scope, receive, send)  # type: ignore[arg-type]


def make_api(node: Any, state: State) -> Litestar:
    """Everything but webhooks. `node` may be None to write down the schema."""

    def provide_node() -> Any:
        return node

    routes = [
        DatasourcesApi,
        *harness.ROUTES,
        *editing.ROUTES,
        *registry.ROUTES,
        *history.ROUTES,
        *events.ROUTES,
        *logs.ROUTES,
        *nodes.ROUTES,
        *streams.ROUTES,
        *taps.ROUTES,
        *letters.ROUTES,
        *groups.ROUTES,
        *dumps.ROUTES,
        *secrets.ROUTES,
        *allowed.ROUTES,
        *notifications.ROUTES,
        *tokens.ROUTES,
        *connectors.ROUTES,
        *installed.ROUTES,
        *health.ROUTES,
        *support.ROUTES,
        *CONSOLE,
    ]
    describe(routes)
    return Litestar(
        route_handlers=routes,
        request_class=StrictRequest,
        dependencies={"node": Provide(provide_node, sync_to_thread=False)},
        signature_namespace={"Node": Node},
        exception_handlers={**HANDLERS, **ERRORS},
        state=state,
        request_max_body_size=MOST_BODY_BYTES,
        openapi_config=OpenAPIConfig(
            title="Headgate",
            version=__version__,
            path="/api/schema",
            openapi_router=Router("/api/schema", route_handlers=[], guards=[Needs("learn")], include_in_schema=False),
            use_handler_docstrings=True,
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}],
            render_plugins=[JsonRenderPlugin(path="/")],
        ),
        logging_config=None,
    )

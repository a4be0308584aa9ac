"""What answers at a node: webhooks and WebSockets have their own doors, the rest is Litestar's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from headgate import __version__
from headgate.runtime.node import Node
from headgate.web.api import connectors, dumps, groups, health, nodes, registry, secrets, streams
from headgate.web.api.datasources import DatasourcesApi
from headgate.web.auth import Gate, needs
from headgate.web.console import ROUTES as CONSOLE
from headgate.web.doors.asgi import Receive, Scope, Send
from headgate.web.doors.commits import Commits
from headgate.web.doors.groups import GroupDoor
from headgate.web.doors.hooks import Hooks
from headgate.web.doors.push import PushDoor
from headgate.web.doors.sockets import refuse
from headgate.web.doors.webhooks import WebhookDoor
from headgate.web.figures import collector_of
from headgate.web.openapi import describe
from headgate.web.problems import HANDLERS
from headgate.web.strict import StrictRequest

MOST_BODY_BYTES = 16 * 1024 * 1024


class App:
    """What uvicorn calls. Webhooks do not come this way: `door` is for the connections themselves."""

    def __init__(self, node: Node, *, auth: bool) -> None:
        gate = Gate(node.tokens, auth=auth)
        hooks = Hooks(node.registry, node.lists)
        self.door = WebhookDoor(hooks, Commits(node.inbox, node.inboxes, node.waker), gate, node.trust_left_s)
        self.push = PushDoor(node, gate)
        self.groups = GroupDoor(node, gate)
        self._doors: dict[str, Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            "/push": self.push,
            "/groups": self.groups,
        }

        collector = collector_of(node, self.door, self.push, self.groups)
        self.api = make_api(node, State({"gate": gate, "collector": collector, "verifications": dumps.Verifications()}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":
            await self._doors.get(scope["path"], refuse)(scope, receive, send)
        elif scope["type"] == "http" and "\0" in scope["path"]:  # No name has one, and the database takes none.
            await self.api({**scope, "path": "/404"}, receive, send)  # type: ignore[arg-type]
        elif scope["type"] == "http" and scope["path"].startswith("/api/groups/"):
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
        *registry.ROUTES,
        *nodes.ROUTES,
        *streams.ROUTES,
        *groups.ROUTES,
        *dumps.ROUTES,
        *secrets.ROUTES,
        *connectors.ROUTES,
        *health.ROUTES,
        *CONSOLE,
    ]
    describe(routes)
    return Litestar(
        route_handlers=routes,
        request_class=StrictRequest,
        dependencies={"node": Provide(provide_node, sync_to_thread=False)},
        signature_namespace={"Node": Node},
        exception_handlers=HANDLERS,
        state=state,
        request_max_body_size=MOST_BODY_BYTES,
        openapi_config=OpenAPIConfig(
            title="Headgate",
            version=__version__,
            path="/api/schema",
            openapi_router=Router("/api/schema", route_handlers=[], guards=[needs("viewer")], include_in_schema=False),
            use_handler_docstrings=True,
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}],
            render_plugins=[JsonRenderPlugin(path="/")],
        ),
        logging_config=None,
    )

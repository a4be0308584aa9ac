"""What documents may reach: folders, addresses and Python modules. Operators see the lists, admins change them."""

from __future__ import annotations

from litestar import delete, get, post

from headgate.core.reach import Kind
from headgate.runtime.node import Node
from headgate.web.auth import Needs, Req
from headgate.web.bodies import access as bodies

ADMIN = [Needs("administer")]


@get("/api/allowed", guards=[Needs("operate_all")], tags=["allowed"], summary="What documents may reach")
async def list_allowed(node: Node) -> bodies.Allowed:
    """By kind. A node's settings may narrow it for that node."""
    lines = await node.registry.allowed.all()
    return bodies.Allowed(
        items=[
            bodies.AllowedLine(kind=line.kind.value, value=line.value, author=line.author, created_at=line.created_at)
            for line in lines
        ]
    )


@post("/api/allowed", guards=ADMIN, tags=["allowed"], summary="Allow a folder, an address or a Python module")
async def allow(node: Node, request: Req, data: bodies.Allow) -> bodies.Allow:
    """What is on the list already stays there."""
    value = await node.registry.allow(Kind(data.kind), data.value, request.user.name)
    return bodies.Allow(kind=data.kind, value=value)


@delete("/api/allowed", guards=ADMIN, tags=["allowed"], summary="Take one off the list")
async def disallow(node: Node, request: Req, kind: bodies.Reachable, value: str) -> None:
    """What runs goes on; it is judged again when it starts next."""
    await node.registry.disallow(Kind(kind), value, request.user.name)


ROUTES = [list_allowed, allow, disallow]

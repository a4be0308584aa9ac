"""What a support bundle has of a node's installation, for admins."""

from __future__ import annotations

import msgspec
from litestar import get

from headgate.runtime import support
from headgate.runtime.node import Node
from headgate.web.auth import Needs
from headgate.web.bodies.support import Support


@get("/api/support", guards=[Needs("administer")], tags=["health"], summary="What a support bundle has")
async def bundle(node: Node) -> Support:
    """Versions, settings, the database, nodes, streams, events and logs, without secrets, records and positions."""
    return msgspec.convert(await support.collect(node.database, node.settings), Support)


ROUTES = [bundle]

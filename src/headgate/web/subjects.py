"""What a path is about, for callers whose tokens name what they may see: the datasource or group that it leads to.

What does not exist has no subject, or the name that the path has: either way such a caller learns the same of it as of
what it may not see.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

from headgate.core.access import Action, Caller, OfDatasource, OfGroup, Subject, names
from headgate.errors import NotFound, Refused
from headgate.runtime.node import Node
from headgate.store.worker_groups import NAME as WORKERS
from headgate.web.auth import Connection, Req, address_of


async def datasource(connection: Connection) -> Subject | None:
    """By its name or id."""
    path = connection.path_params
    name = path["name"] if "name" in path else path["id"]
    found = await _node(connection).registry.datasources.find(name)
    return OfDatasource(name if found is None else found.name)


async def stream(connection: Connection) -> Subject | None:
    """By its name or id: the datasource that it belongs to."""
    id = connection.path_params["id"]
    try:
        return OfDatasource((await _node(connection).streams.find(id)).datasource)
    except (NotFound, Refused):
        return OfDatasource(id.partition(":")[0])


async def group(connection: Connection) -> Subject | None:
    """By the quoted names of stream and group."""
    path = connection.path_params
    return of_group(unquote(path["stream"]), unquote(path["name"]))


async def group_of_page(connection: Connection) -> Subject | None:
    """The same for the console, where the names are in the query."""
    query = connection.query_params
    return of_group(query.get("stream", ""), query.get("name", ""))


def of_group(stream: str, name: str) -> Subject:
    """A group of programs; or the datasource whose stream nodes run."""
    return OfDatasource(stream.partition(":")[0]) if name == WORKERS else OfGroup(stream, name)


async def dump(connection: Connection) -> Subject | None:
    """A backfill belongs to its datasource. Any other dump is of places outside, which no token names."""
    node = _node(connection)
    try:
        found = await node.dumps.find(connection.path_params["id"])
    except (NotFound, Refused):
        return None
    if found.datasource_id is None:
        return None
    named = await node.registry.datasources.find(str(found.datasource_id))
    return None if named is None else OfDatasource(named.name)


async def letter(connection: Connection) -> Subject | None:
    """By its id, or the first characters of it: the datasource whose record could not be handled."""
    try:
        return OfDatasource((await _node(connection).letters.find(connection.path_params["id"])).name)
    except (NotFound, Refused):
        return None


def _node(connection: Connection) -> Node:
    found: Node = connection.app.state.node
    return found


def check_each(request: Req, action: Action, datasources: Iterable[str]) -> None:
    """Refuse unless the caller may do this to each of these."""
    for name in datasources:
        request.app.state.gate.check(request.user, action, OfDatasource(name), address_of(request.scope))


def sees(caller: Caller, datasource: str) -> bool:
    """Whether a list has this datasource for this caller."""
    return names(caller, OfDatasource(datasource))

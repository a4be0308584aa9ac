"""What a support bundle has. People read it; programs should not, since it tells what is worth telling in a release."""

from __future__ import annotations

from headgate.web.bodies import Answer, Object


class Support(Answer):
    """An installation as somebody elsewhere may see it."""

    about: Object
    settings: Object
    server: Object
    migrations: list[Object]
    tables: list[Object]
    nodes: list[Object]
    datasources: list[Object]
    streams: list[Object]
    events: list[Object]
    logs: list[Object]

"""Connectors in words: what each can do, and what it promises."""

from __future__ import annotations

from functools import cache

from headgate.connectors import plugins
from headgate.connectors.api import Connector
from headgate.errors import HeadgateError


@cache
def connector_rows() -> list[dict[str, object]]:
    """All that this node has, by name. Made once: what is installed stays until the node starts again."""
    return [_row(name) for name in plugins.names()]


def _row(name: str) -> dict[str, object]:
    try:
        found = plugins.get(name)
    except HeadgateError as error:
        return {"name": name, "summary": error.message, "can": [], "promises": [], "schemes": "", "is_broken": True}
    can = [
        ("reads streams", found.source),
        ("writes streams", found.sink),
        ("dumps from", found.reader),
        ("dumps into", found.writer),
    ]
    return {
        "name": name,
        "summary": found.summary,
        "can": [word for word, side in can if side is not None],
        "promises": promises(found),
        "schemes": ", ".join(found.schemes) if found.reader or found.writer else "",
        "is_broken": False,
    }


def promises(found: Connector) -> list[str]:
    """What somebody can rely on."""
    lines = []
    if found.sink is not None and found.sink.transactional:
        lines.append("exactly once: the position commits with the data")
    elif found.sink is not None:
        lines.append("at least once: after a crash the last second may be written again")
    if found.sink is not None and found.sink.keeps_letters:
        lines.append("keeps dead letters next to the data")
    if found.source is not None and found.source.in_parts:
        lines.append("read in parallel, in parts")
    if found.source is not None and found.source.knows_backlog:
        lines.append("knows how much waits")
    return lines

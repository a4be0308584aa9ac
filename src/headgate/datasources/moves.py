"""What an edit of a position would skip or read again, in words, as far as anybody can know it.

The source's connector says what the two positions mean. Of a webhook the inbox knows more: how many payloads lie
between them. Nothing is opened, and nothing outside is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from headgate.connectors import plugins
from headgate.connectors.api import Connector
from headgate.connectors.webhook import CONNECTOR as WEBHOOK
from headgate.core.streams import Position
from headgate.datasources.registry import Registry
from headgate.errors import HeadgateError, Refused
from headgate.store.inbox import InboxTable
from headgate.store.listed import Edited
from headgate.text import counted, one_line

UNKNOWN = "its source does not say what that skips or reads again"
MOST_PARTS = 5  # That are told one by one.
SHOWN = 200  # Characters of a position.

Tell: TypeAlias = Callable[[Connector, Position, Position], Awaitable[str]]
"""How a connector is asked: some of them live in a process."""
Line: TypeAlias = Callable[[Position, Position], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Move:
    """What a stream would skip or read again."""

    text: str
    counts: dict[str, int] = field(default_factory=dict)  # `skipped` or `read_again`, where that is known.


async def told(registry: Registry, inbox: InboxTable, wish: Edited, tell: Tell) -> Move:
    """What this edit would do."""
    found, before, after = wish.stream, wish.before, wish.stream.position
    datasource = await registry.get(str(found.datasource_id))
    number = datasource.running_version or datasource.published_version
    version = await registry.datasources.version(datasource.id, number)
    type = str(version.content.source.get("type")) if version is not None else ""
    connector = _connector(type)
    if connector is None or connector.source is None or connector.source.tell_move is None:
        return Move(UNKNOWN)

    async def line(before: Position, after: Position) -> str:
        """What a connector says: somebody else's code, and somebody else's values."""
        try:
            return one_line(await tell(connector, before, after), 300)
        except Exception:  # Whatever it stumbles over, the edit is the operator's to decide.
            return UNKNOWN

    if connector.source.in_parts and isinstance(after if before is None else before, Mapping):
        return Move(await _told_of_parts(line, _map(before), _map(after)))
    text = await line(before, after)
    if type == WEBHOOK.name and found.index == 0 and (after is None or _is_id(after)):
        stood, stands = before if _is_id(before) else 0, after or 0
        payloads = await inbox.between(datasource.id, min(stood, stands), max(stood, stands))
        return _of_inbox(payloads, is_forward=stands > stood)
    return Move(text)


def unconfirmed(wish: Edited, move: Move) -> Refused:
    """An edit that nobody has said yes to."""
    shown = " → ".join(_shown(one) for one in (wish.before, wish.stream.position))
    return Refused(
        f"{wish.stream.name}: {shown}: {move.text}",
        code="unconfirmed",
        hint="if that is meant, say --yes; it can be undone",
        counts=move.counts,
    )


def _connector(type: str) -> Connector | None:
    try:
        return plugins.get(type)
    except HeadgateError:
        return None


def _of_inbox(payloads: int, *, is_forward: bool) -> Move:
    verb = "is" if payloads == 1 else "are"
    if is_forward:
        return Move(f"{counted(payloads, 'payload')} of the inbox {verb} skipped", {"skipped": payloads})
    text = f"{counted(payloads, 'payload')} that the inbox still has {verb} read again"
    return Move(text, {"read_again": payloads})


async def _told_of_parts(line: Line, before: Mapping[str, Position], after: Mapping[str, Position]) -> str:
    changed = [part for part in dict.fromkeys([*before, *after]) if before.get(part) != after.get(part)]
    lines = [f"part {part}: {await line(before.get(part), after.get(part))}" for part in changed[:MOST_PARTS]]
    if len(changed) > MOST_PARTS:
        lines.append(f"and {len(changed) - MOST_PARTS} more parts")
    return "; ".join(lines) or "nothing changes"


def _map(position: Position) -> Mapping[str, Position]:
    return position if isinstance(position, Mapping) else {}


def _is_id(position: Position) -> bool:
    return type(position) is int and 0 <= position < 2**63


def _shown(position: Position) -> str:
    text = msgspec.json.encode(position).decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"

"""What the runtime hands to a connector, made for tests, with defaults for everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from uuid import UUID, uuid5

import structlog

from headgate.connectors.api import Context, Grant, Inbox, Progress, Shared
from headgate.connectors.guard import OPEN, Guard
from headgate.runtime.streams.shared import SharedThings

INSTALLATION = UUID("6f1c2c0e-2f0b-4d6e-9a53-0d5c1b7f8e21")


def make_context(
    stream: str = "test",
    *,
    now_s: Callable[[], float] = time.time,
    shared: Shared | None = None,
    inbox: Inbox | None = None,
    part: str = "",
    guard: Guard = OPEN,
    field_types: Mapping[str, str] | None = None,
    note: Callable[..., None] = lambda type, **payload: None,
    is_rehearsal: bool = False,
) -> Context:
    """A context whose logger writes through structlog and whose shared things live as long as it does."""
    log = structlog.get_logger().bind(stream=stream)
    return Context(
        stream=stream,
        log=log,
        now_s=now_s,
        shared=shared or SharedThings(),
        inbox=inbox,
        part=part,
        guard=guard,
        field_types=field_types or {},
        note=note,
        is_rehearsal=is_rehearsal,
    )


def make_grant(
    name: str = "test",
    *,
    epoch: int = 1,
    progress: Progress | None = None,
    trust_left_s: float | Callable[[], float] = 30.0,
    installation: UUID = INSTALLATION,
    stream: UUID | None = None,
) -> Grant:
    """A grant. The same name makes the same stream, so that two grants of one name differ only in their epoch."""
    return Grant(
        installation=installation,
        datasource=uuid5(installation, name.partition(":")[0]),
        stream=stream or uuid5(installation, name),
        name=name,
        epoch=epoch,
        progress=progress or Progress(),
        trust_left_s=trust_left_s if callable(trust_left_s) else lambda: trust_left_s,
    )

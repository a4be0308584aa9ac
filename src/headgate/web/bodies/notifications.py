"""Bodies about notifications."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from headgate.web.bodies import Answer, Object, Request


class IncidentLine(Answer):
    """What is wrong now, or was a moment ago."""

    rule: str
    subject: str  # A datasource or a node, by name.
    why: str
    since: datetime
    told_at: datetime | None  # Null: it has not held for long enough.
    better_since: datetime | None  # Null: it is still so.


class WaitingLine(Answer):
    """What a target has not taken yet."""

    target: str
    messages: int
    attempts: int  # Of the oldest,
    reason: str | None  # and why the last one failed.
    due_at: datetime


class NotificationsAnswer(Answer):
    """Who is told of what, and what is open."""

    document: Object | None  # As its author wrote it, with secrets by name. Null: nobody is told of anything.
    version: int
    author: str | None
    changed_at: datetime | None
    incidents: list[IncidentLine]
    waiting: list[WaitingLine]


class NotificationsWritten(Answer):
    """The document was written, or deleted."""

    version: int


class TestMessage(Request):
    """A message that says that it is a test."""

    target: Annotated[str, Meta(min_length=1, max_length=100)]


class TestSent(Answer):
    """The target has taken it."""

    target: str

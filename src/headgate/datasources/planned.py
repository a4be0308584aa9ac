"""What applying a document would change, place by place."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.datasources.documents import Document


@dataclass(frozen=True, slots=True)
class Difference:
    """A place at which two documents differ."""

    path: str  # `sink.table`; empty for the whole document.
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """What applying a document would do to one datasource."""

    name: str
    action: str  # create, update, enable, disable, delete, keep
    changes: list[Difference]


def planned(present: Document | None, document: Document, *, exists: bool) -> PlannedChange:
    """What applying this document would do, next to what is present."""
    if present is None:
        return PlannedChange(document.name, "update" if exists else "create", diff({}, document.plain()))
    changes = diff(present.plain(), document.plain())
    if present.content.hash != document.content.hash:
        return PlannedChange(document.name, "update", changes)
    if present.enabled != document.enabled:
        return PlannedChange(document.name, "enable" if document.enabled else "disable", changes)
    return PlannedChange(document.name, "keep", [])


def diff(before: object, after: object, path: str = "") -> list[Difference]:
    """The places at which two documents differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        found: list[Difference] = []
        for key in dict.fromkeys([*before, *after]):
            where = f"{path}.{key}" if path else str(key)
            found += diff(before.get(key), after.get(key), where)
        return found
    return [] if before == after else [Difference(path, before, after)]

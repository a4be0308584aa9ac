"""What documents may reach, as admins have listed it. It is changed through a change of the registry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from headgate.core.reach import Kind
from headgate.store.database import Database, sql


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the lists."""

    kind: Kind
    value: str
    author: str  # The name of the token that added it.
    created_at: datetime


class Allowed:
    """Reads the lists."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[Line]:
        """Every line, by its kind."""
        rows = await self._database.fetch(sql("allowed/list"))
        return [Line(Kind(row["kind"]), row["value"], row["author"], row["created_at"]) for row in rows]

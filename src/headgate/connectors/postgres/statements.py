"""The statements that put rows into a stream's table, or take them out. Their rows are one JSON text.

PostgreSQL converts what is in the text to the columns' types by its own rules. As with COPY, values of identity columns
are taken as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.connectors.postgres.catalog import quoted_path
from headgate.connectors.sql.quoting import quoted


@dataclass(frozen=True, slots=True)
class Statements:
    """Of one batch: its table, its columns, and its key if rows with the same key are to be replaced."""

    table: str
    columns: Sequence[str]
    key: Sequence[str] = ()

    @property
    def path(self) -> str:
        """The table's name as SQL."""
        return quoted_path(self.table)

    def insert(self, rows: str = "$1::json", where: str = "") -> str:
        """Insert the rows that are JSON in `rows`, or replace those of their keys."""
        names = ", ".join(map(quoted, self.columns))
        source = f"json_populate_recordset(NULL::{self.path}, {rows})"
        return f"{self._into} SELECT {names} FROM {source}{where}{self._conflict}"

    def insert_each(self, elements: str) -> str:
        """The same with rows that are a set of JSON objects `u.r`."""
        names = ", ".join(f"p.{quoted(column)}" for column in self.columns)
        source = f"{elements} CROSS JOIN LATERAL json_populate_record(NULL::{self.path}, u.r) AS p"
        return f"{self._into} SELECT {names} FROM {source}{self._conflict}"

    def delete(self, rows: str = "$1::json") -> str:
        """Delete the rows that have the keys which are JSON in `rows`."""
        return f"{self._delete} (SELECT {self._key} FROM json_populate_recordset(NULL::{self.path}, {rows}))"

    def delete_each(self, elements: str) -> str:
        """The same with keys that are a set of JSON objects `u.r`."""
        names = ", ".join(f"p.{quoted(field)}" for field in self.key)
        source = f"{elements} CROSS JOIN LATERAL json_populate_record(NULL::{self.path}, u.r) AS p"
        return f"{self._delete} (SELECT {names} FROM {source})"

    @property
    def _into(self) -> str:
        return f"INSERT INTO {self.path} ({', '.join(map(quoted, self.columns))}) OVERRIDING SYSTEM VALUE"

    @property
    def _key(self) -> str:
        return ", ".join(map(quoted, self.key))

    @property
    def _delete(self) -> str:
        return f"DELETE FROM {self.path} WHERE ({self._key}) IN"

    @property
    def _conflict(self) -> str:
        if not self.key:
            return ""
        others = [f"{quoted(c)} = excluded.{quoted(c)}" for c in self.columns if c not in self.key]
        action = f"UPDATE SET {', '.join(others)}" if others else "NOTHING"
        return f" ON CONFLICT ({self._key}) DO {action}"

"""Which entries of an archive are wanted, when somebody has named schemas and tables.

`include` keeps the named tables, whatever they need (types, functions, sequences, parents), and whatever belongs to
them (keys, indexes, triggers, grants, partitions). `exclude` removes the named ones and what belongs to them; whatever
else needs them is left out, too, and said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headgate.connectors.api.whole import Wanted
from headgate.connectors.postgres.archive import Entry
from headgate.connectors.sql.patterns import is_meant, is_schema_meant

TABLES = ("TABLE", "FOREIGN TABLE", "VIEW", "MATERIALIZED VIEW")
RELATIONS = (*TABLES, "SEQUENCE")
# What belongs to a table, and is nothing without it.
_BELONGING = {
    "ACL",
    "CHECK CONSTRAINT",
    "COMMENT",
    "CONSTRAINT",
    "DEFAULT",
    "FK CONSTRAINT",
    "INDEX",
    "INDEX ATTACH",
    "MATERIALIZED VIEW DATA",
    "POLICY",
    "PUBLICATION TABLE",
    "ROW SECURITY",
    "RULE",
    "SECURITY LABEL",
    "SEQUENCE",
    "SEQUENCE OWNED BY",
    "STATISTICS",
    "TABLE ATTACH",
    "TRIGGER",
}


def chosen(entries: Sequence[Entry], wanted: Wanted) -> tuple[list[Entry], list[tuple[Entry, str]]]:
    """The entries that are wanted, in their order; and those that are left out because they need an excluded one, with
    why."""
    if not wanted.include and not wanted.exclude:
        return list(entries), []
    choice = _Choice(entries)
    kept = choice.included(wanted.include) if wanted.include else set(choice.by_number)
    removed = choice.excluded(wanted.exclude) if wanted.exclude else set()
    left = choice.broken(kept, removed, is_partial=bool(wanted.include))
    kept -= removed | left.keys()
    return [one for one in entries if one.number in kept], [
        (choice.by_number[number], why) for number, why in left.items()
    ]


class _Choice:
    """All entries, and how they hang together."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.by_number = {one.number: one for one in entries}
        self._parts: dict[int, set[int]] = defaultdict(set)  # Partitions of each table.
        self._owned: dict[int, int] = {}  # The table of a sequence.
        for one in entries:
            needed = [number for number in one.needs if number in self.by_number]
            tables = [number for number in needed if self.by_number[number].kind in TABLES]
            if one.kind == "TABLE ATTACH" and len(tables) == 2:
                parent = next((number for number in tables if self.by_number[number].tag != one.tag), tables[0])
                self._parts[parent].update(number for number in tables if number != parent)
            if one.kind == "SEQUENCE OWNED BY" and tables:
                self._owned.update(
                    {number: tables[0] for number in needed if self.by_number[number].kind == "SEQUENCE"}
                )

    def included(self, patterns: Sequence[str]) -> set[int]:
        """What is named, what it needs, and what belongs to it."""
        kept: set[int] = set()
        for one in self.entries:
            if (one.kind in RELATIONS and is_meant(patterns, one.schema, one.tag)) or is_schema_meant(
                patterns, one.schema or (one.tag if one.kind == "SCHEMA" else "")
            ):
                self._keep(one.number, kept)
        for number in self._with_parts({number for number in kept if self.by_number[number].kind in TABLES}):
            self._keep(number, kept)
        for one in self.entries:  # What belongs to something comes after it.
            if one.number not in kept and one.kind in _BELONGING and self._belongs(one, kept):
                self._keep(one.number, kept)
        return kept

    def _belongs(self, one: Entry, kept: set[int]) -> bool:
        tables = [number for number in one.needs if number in self.by_number and self.by_number[number].kind in TABLES]
        if tables:
            return kept.issuperset(tables)
        return bool(one.needs) and any(number in kept for number in one.needs)

    def _keep(self, number: int, kept: set[int]) -> None:
        following = [number]
        while following:
            number = following.pop()
            if number in self.by_number and number not in kept:
                kept.add(number)
                following += self.by_number[number].needs

    def _with_parts(self, tables: set[int]) -> set[int]:
        found, following = set(tables), list(tables)
        while following:
            new = self._parts[following.pop()] - found
            found |= new
            following += new
        return found

    def excluded(self, patterns: Sequence[str]) -> set[int]:
        """What is named, and what belongs to it alone."""
        named = {
            one.number for one in self.entries if one.kind in RELATIONS and is_meant(patterns, one.schema, one.tag)
        }
        removed = self._with_parts(named)
        removed |= {
            one.number
            for one in self.entries
            if is_schema_meant(patterns, one.schema or (one.tag if one.kind == "SCHEMA" else ""))
        }
        removed |= {sequence for sequence, table in self._owned.items() if table in removed}
        for one in self.entries:
            if one.kind in _BELONGING and one.needs and self._is_lost(one, removed):
                removed.add(one.number)
        return removed

    def _is_lost(self, one: Entry, removed: set[int]) -> bool:
        """Whether the object that it belongs to is removed. A foreign key belongs to the table that has it."""
        gone = [self.by_number[number] for number in one.needs if number in removed]
        if one.kind in ("FK CONSTRAINT", "TRIGGER", "POLICY", "RULE", "DEFAULT"):
            return any(one.tag.startswith(f"{each.tag} ") and one.schema == each.schema for each in gone)
        return bool(gone)

    def broken(self, kept: set[int], removed: set[int], *, is_partial: bool) -> dict[int, str]:
        """What is kept and needs something that is not, with what that is. In a copy of a part, also the foreign keys
        that lead out of it."""
        left: dict[int, str] = {}
        for one in self.entries:
            if one.number in removed or (one.number not in kept and not (is_partial and one.kind == "FK CONSTRAINT")):
                continue
            gone = [number for number in one.needs if number in removed or number in left or self._is_out(number, kept)]
            if one.number not in kept and not any(
                number in kept and one.tag.startswith(f"{self.by_number[number].tag} ") for number in one.needs
            ):
                continue  # A foreign key of a table that was not named.
            if gone:
                left[one.number] = f"needs {self.by_number[gone[0]].tag}"
        return left

    def _is_out(self, number: int, kept: set[int]) -> bool:
        return number in self.by_number and number not in kept

"""Ranges of keys in SQL: the rows after `lo` up to and including `hi`, and which databases agree on their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.connectors.api.bulk import Bound, Range, Table
from headgate.connectors.values.kinds import Kind

PLAIN_ORDER = "plain"  # The name of the order that all SQL databases share.

WHOLE = frozenset({Kind.INT16, Kind.INT32, Kind.INT64})
# Kinds that every SQL database puts in the same order.
ALIKE = WHOLE | {Kind.BOOL, Kind.DECIMAL, Kind.NUMERIC, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}


def other_kinds(table: Table, alike: frozenset[Kind] = ALIKE) -> set[Kind] | None:
    """The kinds of key columns whose order may differ between databases. None: there is no key among the columns."""
    kinds = {column.name: column.type.kind for column in table.columns}
    if not table.key or not set(table.key) <= kinds.keys():
        return None
    return {kinds[name] for name in table.key} - alike


def plain_order(table: Table, alike: frozenset[Kind] = ALIKE) -> str | None:
    """The order that all SQL databases share, if the table's key is of such kinds."""
    return PLAIN_ORDER if other_kinds(table, alike) == set() else None


def between(range: Range, compared: Callable[[str, Bound], str]) -> str:
    """The condition for a range. `compared(operator, bound)` compares the key with one bound."""
    last = compared("<=", range.hi)
    return last if range.lo is None else f"{compared('>', range.lo)} AND {last}"


def row_of(parts: Sequence[str]) -> str:
    """Names or values as one row, so that keys of several columns are compared in the order of their index."""
    return f"({', '.join(parts)})"

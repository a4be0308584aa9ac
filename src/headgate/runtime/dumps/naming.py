"""What tables are called at the target: as at the source, letter by letter, or refused before anything is written.

Two tables of the source never meet in one table of the target. Only the target knows when that would be: names that
differ in the case of a letter are one name to some storages, and a single file is one table whatever comes.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.connectors.api.bulk import Named, Table, Writer
from headgate.errors import ConfigError


def target_name(table: Table, writer: Writer) -> str:
    """What a table is called at the target: the same, without a schema where there are none."""
    if table.family == writer.family:
        return table.name
    plain = table.plain or table.name
    return writer.name_for(plain) if isinstance(writer, Named) else plain


async def place_of(writer: Writer, target: str) -> str:
    """What tells a table of the target from the others. Raises `Refused` for a name that no table there can have."""
    return await writer.place_of(target) if isinstance(writer, Named) else target


def refuse_meeting(tables: Iterable[tuple[str, str, str]]) -> None:
    """Refuse two tables (name, target, place) that would go into one place."""
    taken: dict[str, tuple[str, str]] = {}
    for name, target, place in tables:
        if place in taken:
            other, other_target = taken[place]
            raise ConfigError(
                f"{other} and {name} would both go into {target}"
                + (f", which is the same as {other_target} there" if other_target != target else ""),
                hint="rename one: --table name=target; where a file is named, which holds one table, name a folder",
            )
        taken[place] = (name, target)

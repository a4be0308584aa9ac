"""Rows into tables that are there, with all that hangs on them: triggers stay silent, and foreign keys hold at the end.

Where the user may, sessions write as a replica does (`session_replication_role`): no trigger fires, which includes
those that check foreign keys, so each foreign key is checked once all rows are there. Where the user may not, triggers
of users would fire: that is refused. Without any, tables are filled in the order of their foreign keys. Foreign keys in
a circle are dropped before and made again after.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from asyncpg import Connection, InsufficientPrivilegeError, Record

from headgate.connectors.api.whole import Around, Definition, Moment
from headgate.connectors.sql.quoting import literal, quoted
from headgate.core.chunks.order import Reference, ordered
from headgate.errors import Refused

_PROPER = """(SELECT quote_ident(n.nspname) || '.' || quote_ident(k.relname) FROM pg_class k
    JOIN pg_namespace n ON n.oid = k.relnamespace WHERE k.oid = {oid})"""
_LEAVES = "array(SELECT {proper} FROM (SELECT {oid}::oid UNION SELECT relid FROM pg_partition_tree({oid})) l (oid))"


def _leaves(oid: str) -> str:
    return _LEAVES.format(proper=_PROPER.format(oid="l.oid"), oid=oid)


# Foreign keys as they were declared, with the tables of both sides, their partitions among them.
_FOREIGN = f"""
SELECT c.oid::text AS key, c.conname AS name, {_PROPER.format(oid="c.conrelid")} AS of,
       {_PROPER.format(oid="c.confrelid")} AS refers, {_leaves("c.conrelid")} AS children,
       {_leaves("c.confrelid")} AS parents, pg_get_constraintdef(c.oid) AS definition, c.confmatchtype::text AS match,
       array(
    SELECT a.attname::text FROM unnest(c.conkey) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum ORDER BY k.place
) AS columns, array(
    SELECT a.attname::text FROM unnest(c.confkey) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.attnum ORDER BY k.place
) AS refers_to, array(
    SELECT format('OPERATOR(%I.%s)', n.nspname, o.oprname) FROM unnest(c.conpfeqop) WITH ORDINALITY AS k (oid, place)
    JOIN pg_operator o ON o.oid = k.oid JOIN pg_namespace n ON n.oid = o.oprnamespace ORDER BY k.place
) AS operators
FROM pg_constraint c WHERE c.contype = 'f' AND c.conparentid = 0 AND c.convalidated ORDER BY 3, 2
"""
# Triggers of users that fire in these ways.
_TRIGGERS = """
SELECT 'trigger ' || t.tgname || ' of ' || t.tgrelid::regclass AS what FROM pg_trigger t
WHERE NOT t.tgisinternal AND t.tgenabled::text = ANY ($2::text[])
  AND t.tgrelid IN (SELECT to_regclass(n)::oid FROM unnest($1::text[]) n) ORDER BY 1
"""


async def around(connection: Connection, tables: Sequence[str]) -> Around:
    """What must happen around the rows, and in which order tables are filled. Raises `Refused`."""
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = ''")  # All names are said in full.
        rows = await connection.fetch(_FOREIGN)
    foreign = [row for row in rows if not set(row["children"]).isdisjoint(tables)]
    references = [
        Reference(row["key"], child, parent)
        for row in foreign
        for child in row["children"]
        for parent in row["parents"]
    ]
    order = ordered(tables, references)
    if await _is_hushed(connection):
        _refuse(await connection.fetch(_TRIGGERS, list(tables), ["A", "R"]), "it fires for replicas, too")
        checks = [_check(number, row, tables) for number, row in enumerate(foreign, 1)]
        return Around(order.tables, {}, tuple(checks), quiet=True)
    _refuse(
        await connection.fetch(_TRIGGERS, list(tables), ["O", "A"]),
        "the user may not set session_replication_role, which silences it",
    )
    circular = [row for row in foreign if row["key"] in order.circular]
    made = [one for number, row in enumerate(circular) for one in _made_again(2 * number + 1, row)]
    return Around(order.tables, {name: tuple(some) for name, some in order.after.items()}, tuple(made), quiet=False)


async def _is_hushed(connection: Connection) -> bool:
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
    except InsufficientPrivilegeError:
        return False
    return True


def _refuse(found: Collection[Record], why: str) -> None:
    if found:
        names = [row["what"] for row in found]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise Refused(
            f"rows would be seen by {', '.join(names[:3])}{more}: {why}",
            code="triggers",
            hint="disable it first; or let a superuser do it",
        )


def _check(number: int, row: Record, tables: Collection[str]) -> Definition:
    """That a foreign key holds, for all rows."""
    columns = [f"c.{quoted(name)}" for name in row["columns"]]
    pairs = zip(row["refers_to"], row["operators"], columns, strict=True)
    joined = " AND ".join(f"p.{quoted(to)} {operator} {column}" for to, operator, column in pairs)
    some = " OR ".join(f"{column} IS NOT NULL" for column in columns)
    where = f"({some})" if row["match"] == "f" else " AND ".join(f"{column} IS NOT NULL" for column in columns)
    query = f"SELECT FROM {row['of']} c WHERE {where} AND NOT EXISTS (SELECT FROM {row['refers']} p WHERE {joined})"
    block = f"BEGIN IF EXISTS ({query}) THEN RAISE EXCEPTION 'rows refer to rows that are not there'; END IF; END"
    about = tuple(name for name in row["children"] if name in tables)
    return Definition(number, "foreign key", row["name"], row["of"], Moment.AFTER, f"DO {literal(block)}", (), about)


def _made_again(number: int, row: Record) -> list[Definition]:
    """Two definitions: one that drops a foreign key, one that makes it."""
    name, of = quoted(row["name"]), row["of"]
    drop = f"ALTER TABLE {of} DROP CONSTRAINT {name}"
    add = f"ALTER TABLE {of} ADD CONSTRAINT {name} {row['definition']}"
    return [
        Definition(number, "foreign key", row["name"], of, Moment.BEFORE, drop),
        Definition(number + 1, "foreign key", row["name"], of, Moment.AFTER, add, (), (), alone=True),
    ]

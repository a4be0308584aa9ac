"""What no sink, source or dump may touch in a database: Headgate's own schema, and the server's.

A URL does not tell whether its database holds a registry: the same server has many names, and a search path hides a
schema. So the session is asked. A schema is a registry if it is called `headgate`, or has the tables that make a
registry. A relation is out of reach if it lies in one, or leads into one: through a view, a rule, a partition or
inheritance. What decides is the relation that the server finds by the name, not the name.

A session's search path has no registry on it, so that a table without a schema is never made in one. A name is judged
once in each session, because each session may have met another server. What a trigger or a function does is not seen
here: who makes those in a database has rights of their own in it.
"""

from __future__ import annotations

from typing import Any

from asyncpg import Connection

from headgate.connectors.sql import ledger
from headgate.errors import Refused

POSITIONS = "headgate_position"
LETTERS = "headgate_dead_letter"

# The four tables that every registry has had since its first version.
REGISTRIES = """
SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'headgate' OR 4 = (
    SELECT count(*) FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r'
    AND c.relname IN ('registry', 'token', 'secret', 'migration'))
"""
_JUDGE = f"""
WITH RECURSIVE registries AS ({REGISTRIES}),
named AS (SELECT to_regclass($1)::oid AS oid, parse_ident($1) AS parts),
reached (oid) AS (
    SELECT oid FROM named WHERE oid IS NOT NULL
    UNION SELECT next.oid FROM reached r CROSS JOIN LATERAL (
        SELECT inhrelid FROM pg_inherits WHERE inhparent = r.oid
        UNION ALL SELECT inhparent FROM pg_inherits WHERE inhrelid = r.oid
        UNION ALL SELECT d.refobjid FROM pg_rewrite w JOIN pg_depend d ON d.objid = w.oid
            AND d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass WHERE w.ev_class = r.oid
    ) next (oid)
),
place AS (
    SELECT coalesce(
        (SELECT relnamespace FROM pg_class c JOIN named USING (oid)),
        CASE WHEN cardinality(parts) > 1 THEN to_regnamespace(quote_ident(parts[cardinality(parts) - 1]))::oid
             ELSE current_schema()::regnamespace::oid END) AS oid, parts[cardinality(parts)] AS name
    FROM named
)
SELECT (SELECT p.oid IS NULL AND cardinality(parts) = 1 FROM place p, named) AS has_no_place,
       EXISTS (SELECT FROM reached JOIN pg_class c USING (oid) JOIN registries g ON g.oid = c.relnamespace)
           OR EXISTS (SELECT FROM place JOIN registries USING (oid)) AS is_ours,
       EXISTS (SELECT FROM place JOIN pg_namespace n USING (oid)
               WHERE n.nspname ~ '^pg_' OR n.nspname = 'information_schema') AS is_servers,
       (SELECT name = ANY ($2) FROM place) AS is_kept
"""


_LEAVE = f"""
WITH registries AS ({REGISTRIES}), path AS (
    SELECT n.nspname AS name, place, n.oid IN (SELECT oid FROM registries) AS is_ours
    FROM unnest(current_schemas(false)) WITH ORDINALITY p (name, place) JOIN pg_namespace n ON n.nspname = p.name
)
SELECT set_config('search_path', coalesce(string_agg(quote_ident(name), ', ' ORDER BY place) FILTER (WHERE NOT is_ours),
                                          '""'), false) FROM path HAVING bool_or(is_ours)
"""


class WalledSession(Connection):  # type: ignore[misc]
    """A session that remembers what it was asked: which names have been judged in it, who its user is, and where the
    ledger is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.judged: set[str] = set()
        self.user = ""
        self.ledger = ""


async def leave_own_schema(connection: Connection) -> None:
    """Take Headgate's schema off the search path. It is on it wherever the database's user is called `headgate`."""
    await connection.execute(_LEAVE)


async def keep_out(connection: Connection, table: str) -> None:
    """Refuse a table, by its proper name, that is Headgate's own or the server's, or that would be made there."""
    judged: set[str] = connection.judged
    if table in judged:
        return
    found = await connection.fetchrow(_JUDGE, table, [POSITIONS, LETTERS, ledger.TABLE])
    hint = "name another table, in another schema"
    if found["has_no_place"]:
        raise Refused(
            f"{table} has no place: the search path leads nowhere but into Headgate's own schema",
            code="own_schema",
            hint="name the table with its schema: public.orders",
        )
    if found["is_ours"]:
        raise Refused(f"{table} is in Headgate's own schema, or leads into it", code="own_schema", hint=hint)
    if found["is_kept"]:
        raise Refused(
            f"{table} is Headgate's own: positions, dead letters and ledgers are kept there",
            code="own_schema",
            hint=hint,
        )
    if found["is_servers"]:
        raise Refused(f"{table} is in the server's own schema", code="own_schema", hint=hint)
    judged.add(table)

"""What a PostgreSQL database has that a copy of its tables, one by one, does not have.

Two inventories are compared when such a copy has ended: what the source has and the target has not was left behind.
Keys, indexes, checks and defaults are not here: the code that makes them says which cannot be made.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpg import Connection

from headgate.connectors.api.bulk import Left

_OF_TABLES = """
WITH asked AS (SELECT n AS name, to_regclass(n)::oid AS oid FROM unnest($1::text[]) n)
SELECT kind, what, a.name AS of FROM asked a JOIN pg_class c ON c.oid = a.oid CROSS JOIN LATERAL (
    SELECT 'trigger' AS kind, tgname::text AS what FROM pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal
    UNION ALL SELECT 'policy', polname FROM pg_policy WHERE polrelid = c.oid
    UNION ALL SELECT 'rule', rulename FROM pg_rewrite WHERE ev_class = c.oid AND rulename <> '_RETURN'
    UNION ALL SELECT 'row security', '' WHERE c.relrowsecurity
    UNION ALL SELECT 'partitioning', '' WHERE c.relkind = 'p'
    UNION ALL SELECT 'inheritance', inhparent::regclass::text FROM pg_inherits WHERE inhrelid = c.oid
    UNION ALL SELECT 'extended statistics', stxname FROM pg_statistic_ext WHERE stxrelid = c.oid
    UNION ALL SELECT 'comment', coalesce(attname, '') FROM pg_description d LEFT JOIN pg_attribute t
              ON t.attrelid = c.oid AND t.attnum = d.objsubid AND d.objsubid > 0
              WHERE d.classoid = 'pg_class'::regclass AND d.objoid = c.oid
    UNION ALL SELECT DISTINCT 'privileges', pg_get_userbyid(g.grantee) FROM aclexplode(c.relacl) g
              WHERE g.grantee NOT IN (0, c.relowner)
    UNION ALL SELECT 'storage option', o FROM unnest(c.reloptions) o
    UNION ALL SELECT 'being unlogged', '' WHERE c.relpersistence = 'u'
    UNION ALL SELECT 'replica identity', '' WHERE c.relreplident <> 'd'
    UNION ALL SELECT 'publication', pubname FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
              WHERE r.prrelid = c.oid
) AS had
ORDER BY 3, 1, 2
"""
_OF_DATABASE = """
WITH own AS (
    SELECT oid FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'headgate')
),
brought AS (SELECT classid, objid FROM pg_depend WHERE deptype = 'e')
SELECT kind, what FROM (
    SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table'
                        ELSE 'sequence' END AS kind, c.oid::regclass::text AS what, 'pg_class'::regclass AS class, c.oid
    FROM pg_class c JOIN own ON own.oid = relnamespace
    WHERE relkind IN ('v', 'm', 'f') OR relkind = 'S' AND NOT EXISTS (
        SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype IN ('a', 'i'))
    UNION ALL SELECT CASE prokind WHEN 'p' THEN 'procedure' WHEN 'a' THEN 'aggregate' ELSE 'function' END,
                     p.oid::regprocedure::text, 'pg_proc'::regclass, p.oid
              FROM pg_proc p JOIN own ON own.oid = pronamespace
    UNION ALL SELECT CASE typtype WHEN 'd' THEN 'domain' WHEN 'e' THEN 'enumeration' WHEN 'r' THEN 'range type'
                                  ELSE 'composite type' END, t.oid::regtype::text, 'pg_type'::regclass, t.oid
              FROM pg_type t JOIN own ON own.oid = typnamespace LEFT JOIN pg_class c ON c.oid = t.typrelid
              WHERE typtype IN ('d', 'e', 'r') OR c.relkind = 'c'
    UNION ALL SELECT 'operator', o.oid::regoperator::text, 'pg_operator'::regclass, o.oid
              FROM pg_operator o JOIN own ON own.oid = oprnamespace
    UNION ALL SELECT 'collation', collname, 'pg_collation'::regclass, c.oid
              FROM pg_collation c JOIN own ON own.oid = collnamespace
    UNION ALL SELECT 'text search configuration', cfgname, 'pg_ts_config'::regclass, c.oid
              FROM pg_ts_config c JOIN own ON own.oid = cfgnamespace
    UNION ALL SELECT 'cast', castsource::regtype || ' to ' || casttarget::regtype, 'pg_cast'::regclass, oid
              FROM pg_cast WHERE oid >= 16384
    UNION ALL SELECT 'extension', extname, 'pg_extension'::regclass, oid FROM pg_extension
    UNION ALL SELECT 'event trigger', evtname, 'pg_event_trigger'::regclass, oid FROM pg_event_trigger
    UNION ALL SELECT 'foreign server', srvname, 'pg_foreign_server'::regclass, oid FROM pg_foreign_server
    UNION ALL SELECT 'publication', pubname, 'pg_publication'::regclass, oid FROM pg_publication
    UNION ALL SELECT 'large object', oid::text, 'pg_largeobject'::regclass, oid FROM pg_largeobject_metadata
    UNION ALL SELECT 'default privileges', pg_get_userbyid(defaclrole), 'pg_default_acl'::regclass, oid
              FROM pg_default_acl
) AS had WHERE (class::oid, had.oid) NOT IN (SELECT classid, objid FROM brought)
ORDER BY 1, 2
"""


async def inventory(connection: Connection, tables: Sequence[str], *, is_whole: bool) -> list[Left]:
    """What belongs to these tables, by the names that are given for them; and what belongs to the database."""
    rows = await connection.fetch(_OF_TABLES, list(tables))
    found = [Left(row["kind"], row["what"], row["of"]) for row in rows]
    if is_whole:
        found += [Left(row["kind"], row["what"]) for row in await connection.fetch(_OF_DATABASE)]
    return found

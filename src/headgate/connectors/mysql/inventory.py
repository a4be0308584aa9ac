"""What a database of MySQL or MariaDB has that a copy of its tables does not have.

Keys, plain indexes and defaults are not here: the code that makes them says which cannot be made.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.connectors.api.bulk import Left
from headgate.connectors.mysql.catalog import ask, name_for
from headgate.connectors.mysql.session import Session
from headgate.connectors.sql.quoting import escaped_literal

# MariaDB makes a check of its own for each column of JSON, with the column's name.
_OF_TABLE = """
SELECT 'trigger', TRIGGER_NAME FROM information_schema.TRIGGERS
 WHERE EVENT_OBJECT_SCHEMA = {schema} AND EVENT_OBJECT_TABLE = {name}
UNION ALL SELECT 'check', CONSTRAINT_NAME FROM information_schema.TABLE_CONSTRAINTS
 WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name} AND CONSTRAINT_TYPE = 'CHECK' AND CONSTRAINT_NAME NOT IN
 (SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name})
UNION ALL SELECT DISTINCT 'partitioning', '' FROM information_schema.PARTITIONS
 WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name} AND PARTITION_NAME IS NOT NULL
UNION ALL SELECT 'history of rows', '' FROM information_schema.TABLES
 WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name} AND TABLE_TYPE = 'SYSTEM VERSIONED'
UNION ALL SELECT 'comment', '' FROM information_schema.TABLES
 WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name} AND TABLE_COMMENT <> ''
UNION ALL SELECT 'comment', COLUMN_NAME FROM information_schema.COLUMNS
 WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name} AND COLUMN_COMMENT <> ''
ORDER BY 1, 2
"""
_OF_DATABASE = """
SELECT LOWER(TABLE_TYPE), TABLE_NAME FROM information_schema.TABLES
 WHERE TABLE_SCHEMA = {schema} AND TABLE_TYPE IN ('VIEW', 'SEQUENCE')
UNION ALL SELECT LOWER(ROUTINE_TYPE), ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = {schema}
UNION ALL SELECT 'event', EVENT_NAME FROM information_schema.EVENTS WHERE EVENT_SCHEMA = {schema}
ORDER BY 1, 2
"""


def inventory(session: Session, tables: Sequence[str], *, is_whole: bool) -> list[Left]:
    """What belongs to these tables, by the names that are given for them; and what belongs to the database."""
    found = [Left(kind, name, table) for table in tables for kind, name in ask(session, _OF_TABLE, table)]
    if is_whole:
        rows = session.rows(_OF_DATABASE.format(schema=escaped_literal(session.where.database)))
        found += [Left(kind, name_for(name)) for kind, name in rows]
    return found

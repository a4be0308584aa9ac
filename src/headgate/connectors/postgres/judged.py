"""SQL that another server's catalog has: defaults, checks, indexes, constraints. It runs here only if it is harmless.

The source of a dump may be anybody's. What its catalog says is text, and a copy of the table wants it as SQL of the
target. So two things are asked of it.

*Is it one piece?* Its tokens must be those that PostgreSQL itself writes, with brackets that match, and outside of
brackets only the few words that such a definition has. It then ends where we end it, and nothing follows it.

*What does it call?* The target parses it, on an empty temporary table that is rolled back, and says by its own catalog
which functions and operators that is. Those of PostgreSQL itself and of extensions are fine if they are immutable, and
so are a few that tell the time or make an id. Anything else (`query_to_xml` runs a statement, `pg_read_file` reads a
file, a function of the target's users does what it does) is left out of the copy, and said.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from asyncpg import Connection

from headgate.connectors.postgres.errors import error_text, is_missing

NOT_SQL = "its definition is not what PostgreSQL writes"
TRIAL = "headgate_trial"

_TOKEN = re.compile(
    r"""\s+ | (?P<escaped> [eE]'(?:[^'\\\0]|''|\\[^\0])*' ) | (?P<text> '(?:[^'\0]|'')*' )
      | (?P<quoted> "(?:[^"\0]|"")+" ) | (?P<word> [^\W\d][\w]* ) | \d[\w.]* | (?P<open> [(\[] ) | (?P<close> [)\]] )
      | (?P<comma> , ) | ::? | \. | (?P<operator> [-+*/<>=~!@\#%^&|`?]+ )""",
    re.VERBOSE,
)
_PAIRS = {")": "(", "]": "["}
# What may stand outside of brackets, besides the names after USING and REFERENCES.
_INDEX_WORDS = frozenset({"using", "include", "nulls", "not", "distinct", "with", "where"})
_CONSTRAINT_WORDS = frozenset(
    re.findall(
        r"\w+",
        """primary key unique nulls not distinct include deferrable initially deferred check no inherit valid
        exclude using where foreign references match full simple on update delete cascade restrict set null
        default action with enforced""",
    )
)
_BEFORE_NAMES = ("using", "references")
# Functions that are not immutable, and only tell the time, make a value, or convert by the session's settings.
_HARMLESS = re.findall(
    r"\w+",
    """now clock_timestamp statement_timestamp transaction_timestamp timeofday random random_normal gen_random_uuid
    uuidv4 uuidv7 uuid_generate_v1 uuid_generate_v1mc uuid_generate_v4 nextval to_char to_date to_timestamp
    to_number date_trunc date_part extract timezone age make_timestamptz timestamptz timestamp date time timetz
    interval text concat concat_ws format array_to_string array_to_json row_to_json to_json to_jsonb
    json_build_object json_build_array jsonb_build_object jsonb_build_array to_tsvector unaccent
    current_database current_schema""",
)
_TREES = """
SELECT concat_ws(' ', c.trees, i.trees) FROM
    (SELECT string_agg(conbin::text, ' ') AS trees FROM pg_constraint WHERE conrelid = to_regclass($1)) c,
    (SELECT string_agg(concat_ws(' ', indexprs::text, indpred::text), ' ') AS trees FROM pg_index
     WHERE indrelid = to_regclass($1)) i
"""
# In a stored expression the numbers of functions and operators follow these words; texts in it are bytes.
_FUNCTION = re.compile(r":(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)")
_OPERATOR = re.compile(r":opno (\d+)|:opnos \(o((?: \d+)+)\)")
_DOUBTFUL = """
SELECT p.oid::regprocedure::text AS name
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE p.oid IN (SELECT unnest($1::oid[]) UNION SELECT oprcode FROM pg_operator WHERE oid = ANY ($2::oid[]))
  AND NOT ((p.provolatile = 'i' OR p.proname = ANY ($3::text[])
            OR (p.provolatile = 's' AND EXISTS (SELECT FROM pg_operator WHERE oprcode = p.oid)))
       AND (n.nspname = 'pg_catalog' OR EXISTS (
            SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')))
ORDER BY 1
"""


# Is it one piece?


def is_expression(text: str) -> bool:
    """Whether a text, put in brackets, is one expression and nothing else."""
    return _outside(text) is not None


def is_index(text: str) -> bool:
    """Whether a text is what follows the table's name in CREATE INDEX."""
    return _is_definition(text, _INDEX_WORDS)


def is_constraint(text: str) -> bool:
    """Whether a text is what follows the name in ADD CONSTRAINT."""
    return _is_definition(text, _CONSTRAINT_WORDS)


def _is_definition(text: str, allowed: frozenset[str]) -> bool:
    outside = _outside(text)
    if outside is None:
        return False
    is_named = False  # A name may stand here.
    for kind, token in outside:
        word = token.lower()
        if kind == "word" and word in allowed:
            is_named = word in _BEFORE_NAMES
        elif kind == "open":
            is_named = False
        elif not is_named or kind not in (".", "word", "quoted"):
            return False
    return True


def _outside(text: str) -> list[tuple[str, str]] | None:
    """The tokens that stand outside of brackets. None: the text is not what a server writes."""
    opened: list[str] = []
    outside: list[tuple[str, str]] = []
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            return None
        kind, token, place = found.lastgroup or "", found[0], found.end()
        match kind:
            case "open":
                if not opened:
                    outside.append((kind, token))
                opened.append(token)
            case "close":
                if not opened or opened.pop() != _PAIRS[token]:
                    return None
            case "operator" if "--" in token or "/*" in token:
                return None
            case "word" if (token + text[place : place + 2]).lower().startswith(("u&'", 'u&"', "e'")):
                return None  # A text with escapes that is not whole, or with escapes that servers do not write.
            case "comma" if not opened:
                return None
            case _ if not opened and not token.isspace():
                outside.append((kind or token, token))
    return None if opened else outside


# What does it call?


async def why_not_expression(connection: Connection, table: str, text: str) -> str:
    """Why an expression over a table's columns may not be run here; nothing if it may."""
    if not is_expression(text):
        return NOT_SQL
    return await _tried(connection, table, f"ADD CONSTRAINT trial CHECK (({text}) IS NULL) NOT VALID")


async def why_not_index(connection: Connection, table: str, rest: str) -> str:
    """Why an index may not be made here; nothing if it may."""
    if not is_index(rest):
        return NOT_SQL
    return await _tried(connection, table, "", f"CREATE INDEX ON pg_temp.{TRIAL} {rest}")


async def why_not_constraint(connection: Connection, table: str, definition: str) -> str:
    """Why a constraint may not be made here; nothing if it may. Of keys, which are names only, the words decide."""
    if not is_constraint(definition):
        return NOT_SQL
    sort = definition.split(maxsplit=1)[0].upper()
    if sort not in ("CHECK", "EXCLUDE"):
        return ""
    rest = " NOT VALID" if sort == "CHECK" and not definition.endswith("NOT VALID") else ""
    return await _tried(connection, table, f"ADD CONSTRAINT trial {definition}{rest}")


async def _tried(connection: Connection, table: str, change: str, statement: str = "") -> str:
    async with _undone(connection):
        try:
            await connection.execute(f"CREATE TEMP TABLE {TRIAL} (LIKE {table})")
            await connection.execute(statement or f"ALTER TABLE pg_temp.{TRIAL} {change}")
            trees = await connection.fetchval(_TREES, f"pg_temp.{TRIAL}") or ""
            return await _doubts(connection, trees)
        except (asyncpg.SyntaxOrAccessError, asyncpg.DataError, asyncpg.FeatureNotSupportedError) as error:
            return f"{error_text(error)}: create it there, then make this" if is_missing(error) else error_text(error)


async def _doubts(connection: Connection, trees: str) -> str:
    functions = [int(number) for number in _FUNCTION.findall(trees)]
    operators = [int(number) for one, some in _OPERATOR.findall(trees) for number in (one or some).split()]
    found = await connection.fetch(_DOUBTFUL, functions, operators, _HARMLESS)
    return f"it calls {', '.join(row['name'] for row in found)}" if found else ""


@asynccontextmanager
async def _undone(connection: Connection) -> AsyncIterator[None]:
    """Whatever is done inside is rolled back."""
    is_inside = connection.is_in_transaction()
    await connection.execute("SAVEPOINT trial" if is_inside else "BEGIN")
    try:
        yield
    finally:
        await connection.execute("ROLLBACK TO SAVEPOINT trial; RELEASE SAVEPOINT trial" if is_inside else "ROLLBACK")


# What is not SQL at all.

_COUNTING = re.compile(
    r"INCREMENT BY -?\d+ MINVALUE -?\d+ MAXVALUE -?\d+ START WITH -?\d+ CACHE \d+ (?:NO )?CYCLE", re.ASCII
)


def is_counting(options: str, type: str) -> bool:
    """Whether these are options of a sequence, and its type is one that counts."""
    return _COUNTING.fullmatch(options) is not None and type in ("smallint", "integer", "bigint")

"""Types of PostgreSQL that somebody wrote down: in a document, or in another server's catalog.

Such a text never becomes part of a statement. It is parsed by a small grammar into a `Declared`, the server is asked by
a bound parameter which of its types that is, and the statement gets the catalog's own name of it, quoted.

    type      = name [ "(" modifier { "," modifier } ")" ] [ words ] { "[" [ digits ] "]" }
    name      = words of SQL (`double precision`), or [ schema "." ] name, each plain or in double quotes
    modifier  = a whole number, or a plain word
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from asyncpg import Connection

from headgate.connectors.sql.quoting import literal, quoted

LONGEST = 1000  # Characters of a declaration.
MOST_DIMENSIONS = 6  # Of an array: as many as PostgreSQL has.

# Types whose names in SQL are not those of the catalog.
_SQL_NAMES = {
    "smallint": "int2",
    "int": "int4",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "float": "float8",
    "double precision": "float8",
    "decimal": "numeric",
    "dec": "numeric",
    "numeric": "numeric",
    "boolean": "bool",
    "char": "bpchar",
    "character": "bpchar",
    "char varying": "varchar",
    "character varying": "varchar",
    "varchar": "varchar",
    "bit": "bit",
    "bit varying": "varbit",
    "time": "time",
    "time without time zone": "time",
    "time with time zone": "timetz",
    "timestamp": "timestamp",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
}
_ONE_LONG = ("char", "character", "bit")  # Without a length SQL means one character. `bpchar` is of any length.
_FIELDS = ("year", "month", "day", "hour", "minute", "second")
_INTERVALS = {"interval", *(f"interval {one}" for one in _FIELDS)} | {
    f"interval {first} to {last}"
    for place, first in enumerate(_FIELDS)
    for last in _FIELDS[place + 1 :]
    if (first in ("year", "month")) == (last in ("year", "month"))
}
_TOKEN = re.compile(
    r"""\s*(?: (?P<quoted> "(?:[^"\0]|"")+" ) | (?P<word> [^\W\d][\w$]* ) | (?P<number> -?\d{1,10}(?!\w) )
             | (?P<sign> [(),.\[\]] ) | (?P<end> $ ) )""",
    re.VERBOSE,
)
_RESOLVE = """
SELECT n.nspname AS schema, t.typname AS name, t.typmodin <> 0 AS is_sized, t.typtype = 'p' AS is_pseudo
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = to_regtype($1)
"""


@dataclass(frozen=True, slots=True)
class Declared:
    """A type as it was written, taken apart."""

    path: tuple[str, ...]  # The name, after that of its schema if it was given.
    modifiers: tuple[int | str, ...] = ()
    dimensions: int = 0  # Of an array; 0: it is none.
    interval: str = ""  # An interval's words, which are its name and its fields.


def parse_type(text: str) -> Declared:
    """Take a declaration apart. Raises ValueError, with a message for a person, if it is anything but a type."""
    if len(text) > LONGEST:
        raise ValueError("is too long for a type")
    return _Parser(text).declared()


async def resolve(connection: Connection, declared: Declared) -> str | None:
    """The type as SQL, by the name that the server's catalog has for it. None: the server has no such type, or the type
    has no size."""
    if declared.interval:
        return f"{declared.interval}{_sizes(declared)}{'[]' * declared.dimensions}"
    found = await connection.fetchrow(_RESOLVE, ".".join(map(quoted, declared.path)))
    if found is None or found["is_pseudo"] or (declared.modifiers and not found["is_sized"]):
        return None
    return f"{quoted(found['schema'])}.{quoted(found['name'])}{_sizes(declared)}{'[]' * declared.dimensions}"


def _sizes(declared: Declared) -> str:
    sizes = [str(one) if isinstance(one, int) else literal(one) for one in declared.modifiers]
    return f"({', '.join(sizes)})" if sizes else ""


class _Parser:
    """Reads one declaration from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._kind, self._token = "", ""
        self._next()

    def declared(self) -> Declared:
        name = [self._name()]
        is_plain = name[0][1]
        if self._is_sign("."):
            self._next()
            name.append(self._name())
            is_plain = False
        words = [name[0][0], *self._words()] if is_plain else []
        modifiers = self._modifiers()
        if is_plain:
            words += self._words()
        modifiers = modifiers or self._modifiers()  # An interval's digits follow its fields.
        dimensions = self._dimensions()
        if self._kind != "end":
            raise self._wrong()
        if not is_plain:
            return Declared(tuple(one for one, _ in name), modifiers, dimensions)
        return self._sql_type(" ".join(words), modifiers, dimensions)

    def _sql_type(self, words: str, modifiers: tuple[int | str, ...], dimensions: int) -> Declared:
        if words in _INTERVALS:
            if len(modifiers) > 1 or not all(isinstance(one, int) for one in modifiers):
                raise self._wrong()
            return Declared(("interval",), modifiers, dimensions, words)
        if " " in words and words not in _SQL_NAMES:
            raise self._wrong()
        name = _SQL_NAMES.get(words, words)
        if words in _ONE_LONG and not modifiers:
            modifiers = (1,)
        if words == "float" and modifiers:
            name, modifiers = _float_of(modifiers), ()
        # What SQL has a word for is meant, whatever else the search path may find under that name.
        return Declared(("pg_catalog", name) if words in _SQL_NAMES else (name,), modifiers, dimensions)

    def _next(self) -> None:
        found = _TOKEN.match(self._text, self._place)
        if found is None:
            raise self._wrong()
        self._place = found.end()
        self._kind = found.lastgroup or ""
        self._token = found[self._kind]

    def _name(self) -> tuple[str, bool]:
        """A name, and whether it is plain: then it is folded, and may be one of SQL's words."""
        kind, token = self._kind, self._token
        if kind not in ("word", "quoted"):
            raise self._wrong()
        self._next()
        return (token.lower(), True) if kind == "word" else (token[1:-1].replace('""', '"'), False)

    def _words(self) -> list[str]:
        words = []
        while self._kind == "word":
            words.append(self._token.lower())
            self._next()
        return words

    def _modifiers(self) -> tuple[int | str, ...]:
        found: list[int | str] = []
        if not self._is_sign("("):
            return ()
        while not self._is_sign(")") or not found:
            self._next()
            if self._kind not in ("number", "word"):
                raise self._wrong()
            found.append(int(self._token) if self._kind == "number" else self._token)
            self._next()
            if not (self._is_sign(",") or self._is_sign(")")):
                raise self._wrong()
        self._next()
        return tuple(found)

    def _dimensions(self) -> int:
        dimensions = 0
        while self._is_sign("["):
            self._next()
            if self._kind == "number":
                self._next()
            if not self._is_sign("]") or dimensions == MOST_DIMENSIONS:
                raise self._wrong()
            self._next()
            dimensions += 1
        return dimensions

    def _is_sign(self, sign: str) -> bool:
        return self._kind == "sign" and self._token == sign

    def _wrong(self) -> ValueError:
        return ValueError("is not a type, such as numeric(10,2) or text[]")


def _float_of(modifiers: tuple[int | str, ...]) -> str:
    match modifiers:
        case (int(bits),) if 1 <= bits <= 53:
            return "float4" if bits <= 24 else "float8"
    raise ValueError("is not a type: a float has 1 to 53 bits")

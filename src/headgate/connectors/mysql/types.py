"""Types of MySQL and MariaDB: what they are in a dump, how the server renders them, and what is made for other kinds.

    tinyint smallint mediumint int bigint   the integer that holds them; `bigint unsigned` is decimal(20,0)
    tinyint(1)                              int16, since it holds 2 to 127, too; bool with `?tinyint1=bool`
    bit(1); bit(n)                          bool; int64, and decimal(20,0) for bit(64)
    decimal float double year               decimal, float32, float64, int16
    date datetime timestamp                 date, timestamp, timestamptz: sessions run in UTC
    time                                    text: it goes beyond a day, and below zero
    char varchar text enum set inet6        text
    binary varbinary blob, geometries       bytes; a geometry in the server's own form, SRID and WKB
    json uuid                               json, uuid. MariaDB's json is a longtext with a check

A float is rendered with the digits of its double, which is the same number: the server's own text has six digits.
Zero dates (`0000-00-00`, `2020-00-01`) are no dates anywhere else and are refused, or NULL with `?zero_dates=null`.
The server knows no negative zero.

What a dump makes for other kinds: text is longtext, or varchar where it has a length or is in the key, in the collation
utf8mb4_bin, so that keys which differ only in case stay two rows. A timestamptz is a datetime(6) in UTC: `timestamp`
ends in 2038. Numbers without bounds are refused, because the widest decimal has 30 digits after the point, and rounds.
"""

from __future__ import annotations

import re
from functools import partial

from headgate.connectors.api.bulk import Bound, By, Column, Csv, Range, StorageError, Table
from headgate.connectors.sql.keys import between
from headgate.connectors.sql.quoting import backquoted as quoted
from headgate.connectors.sql.quoting import escaped_literal as text_literal
from headgate.connectors.values.kinds import TEXT, Kind, Type, decimal_type, holds
from headgate.errors import Refused

FAMILY = "mysql"
COLLATION = "utf8mb4_bin"

_WHOLE = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "bigint": 8}
_DATES = {"date": Kind.DATE, "datetime": Kind.TIMESTAMP, "timestamp": Kind.TIMESTAMPTZ}
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json"}
_BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"}
_GEOMETRIES = {
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
    "geomcollection",
}
_PLAIN = {"time", "uuid", "inet4", "inet6"}  # Text without a quote in it.
_ORDERED = {Kind.BOOL, *_DATES.values(), Kind.INT16, Kind.INT32, Kind.INT64, Kind.DECIMAL, Kind.BYTES}

_MADE = {
    Kind.BOOL: "tinyint(1)",
    Kind.INT16: "smallint",
    Kind.INT32: "int",
    Kind.INT64: "bigint",
    Kind.FLOAT32: "float",
    Kind.FLOAT64: "double",
    Kind.TEXT: "longtext",
    Kind.BYTES: "longblob",
    Kind.DATE: "date",
    Kind.TIME: "time(6)",
    Kind.TIMESTAMP: "datetime(6)",
    Kind.TIMESTAMPTZ: "datetime(6)",
    Kind.JSON: "json",
}
_SHORT = 2000  # Bytes of text in which to replace quotes one by one is the faster way.
_LONGEST = 1000  # A varchar beyond is a longtext: all varchars of a row share 64 KiB.


def base_of(native: str) -> str:
    """The first word of a type."""
    found = re.match(r"[a-z0-9_]+", native.lower())
    return found[0] if found else ""


def size_of(native: str) -> int:
    """The number in a type's brackets; 0: there is none."""
    found = re.match(r"[a-z0-9_]+\((\d+)", native.lower())
    return int(found[1]) if found else 0


# What the server has.


def type_of(native: str, length: int | None, precision: int | None, scale: int | None, is_bool: bool) -> Type | None:
    """The type of a column. None: there is none for it."""
    base, unsigned = base_of(native), "unsigned" in native.lower()
    if base in _WHOLE:
        if base == "bigint" and unsigned:
            return Type(Kind.DECIMAL, 20, 0)
        if is_bool and native.lower().startswith("tinyint(1)") and not unsigned:
            return Type(Kind.BOOL)
        size = _WHOLE[base]
        if size == 1 or (size == 2 and not unsigned):
            return Type(Kind.INT16)
        return Type(Kind.INT32 if size < 4 or (size == 4 and not unsigned) else Kind.INT64)
    if base == "bit":
        bits = size_of(native)
        return Type(Kind.BOOL) if bits <= 1 else Type(Kind.INT64) if bits < 64 else Type(Kind.DECIMAL, 20, 0)
    if base in ("decimal", "numeric"):
        return decimal_type(precision or 0, scale or 0)
    if base in _DATES:
        return Type(_DATES[base])
    if base in ("char", "varchar"):
        return Type(Kind.TEXT, length=length or 0)
    if base in _BYTES or base in _GEOMETRIES:
        return Type(Kind.BYTES)
    kinds = {"float": Kind.FLOAT32, "double": Kind.FLOAT64, "year": Kind.INT16, "json": Kind.JSON, "uuid": Kind.UUID}
    if base in kinds:
        return Type(kinds[base])
    return TEXT if base in _TEXTS or base in _PLAIN else None


# What a dump reads.


def rendered(column: Column, collation: str, csv: Csv, null_dates: bool, is_mariadb: bool) -> str:
    """The SQL for a column's canonical text. It is NULL, and so is the line, only for what may not be copied."""
    base, name, null = base_of(column.native), quoted(column.name), text_literal(csv.null)
    if base in _TEXTS or base in _BYTES or base in _GEOMETRIES:
        if base in _TEXTS:
            text = name if collation.startswith("utf8mb4") else f"CONVERT({name} USING utf8mb4)"
            value = f"""CONCAT('"', {_doubled(text, is_mariadb)}, '"')"""
        else:
            value = f"CONCAT('\\\\x', LOWER(HEX({name})))"
        # A value too long for the server's buffer is NULL: that must not pass for a NULL of the table.
        return f"IF({name} IS NULL, {null}, {value})" if column.nullable else value
    value = number(column.native, name)
    if csv.alike and base in _DATES and size_of(column.native):
        value = f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {value}))"  # Others write no zeros at the end.
    value = f"IFNULL({value}, {null})" if column.nullable else value
    if base in _DATES:
        return f"IF({is_zero_date(name)}, {null if null_dates else 'NULL'}, {value})"
    if column.type.kind is Kind.BOOL and base != "bit":
        return f"IF({name} NOT IN (0, 1), NULL, {value})"
    return value


def _doubled(text: str, is_mariadb: bool) -> str:
    """Text with each quote doubled.

    MariaDB's REPLACE moves the rest of the text for each quote that it finds: a document of 64 KB takes a second. Its
    regular expressions do not, as long as they look at bytes, but are slower for text that is short."""
    short = f"""REPLACE({text} COLLATE {COLLATION}, '"', '""')"""
    if not is_mariadb:
        return short
    return f"""IF(LENGTH({text}) < {_SHORT}, {short}, REGEXP_REPLACE(CAST({text} AS BINARY), '"', '""'))"""


def number(native: str, name: str) -> str:
    """A column so that its text has every digit, and no zeros in front."""
    base = base_of(native)
    if base in ("float", "double"):
        return f"{name} * 1e0"
    if base in _PLAIN:
        return f"CAST({name} AS CHAR)"  # Or the word for NULL would be taken for one of them.
    return f"{name} + 0" if base in ("bit", "year") or "zerofill" in native.lower() else name


def is_zero_date(name: str) -> str:
    """Whether a date has no day, or no month."""
    return f"DAYOFMONTH({name}) = 0 OR MONTH({name}) = 0"


def line(table: Table, csv: Csv, null_dates: bool, is_mariadb: bool) -> str:
    """The SQL for a row as one line of CSV."""
    collations: dict[str, str] = table.details.get("collations", {})
    parts = [rendered(column, collations.get(column.name, ""), csv, null_dates, is_mariadb) for column in table.columns]
    return f"CONCAT({f', {text_literal(csv.delimiter)}, '.join(parts)})"


def refused_columns(table: Table, null_dates: bool) -> list[tuple[Column, str, str]]:
    """Columns that may hold what is not copied, the condition that finds it, and what can be done about it."""
    found = []
    for column in table.columns:
        name, base = quoted(column.name), base_of(column.native)
        if base in _DATES and not null_dates:
            found.append((column, is_zero_date(name), "correct it, or read such dates as NULL: ?zero_dates=null"))
        elif column.type.kind is Kind.BOOL and base != "bit":
            found.append((column, f"{name} NOT IN (0, 1)", "it is a number: leave out ?tinyint1=bool"))
    return found


# Bounds.


def bound_text(native: str, name: str) -> str:
    """The SQL for a key column's text, as a bound."""
    base, name = base_of(native), quoted(name)
    if base in _BYTES:
        return f"CONCAT('\\\\x', LOWER(HEX({name})))"
    if base in ("enum", "set"):
        return f"CAST({name} + 0 AS CHAR)"  # They are ordered by their number, and text is compared as text.
    return f"CONVERT({name} USING utf8mb4)" if base in _TEXTS else f"CAST({number(native, name)} AS CHAR)"


def bound_literal(native: str, text: str) -> str:
    """A bound of such a column, in a statement."""
    base = base_of(native)
    if base in _BYTES:
        return f"X'{bytes.fromhex(text.removeprefix(chr(92) + 'x')).hex()}'"
    if base in ("float", "double") and re.fullmatch(r"-?[0-9.]+(e-?[0-9]+)?", text):
        return text if "e" in text else f"{text}e0"
    is_number = base in _WHOLE or base in ("bit", "decimal", "numeric", "year", "enum", "set")
    return text if is_number and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) else text_literal(text)


def condition(table: Table, range: Range) -> str:
    """The rows of a range, in SQL. A compound key is spelled out: only so is its index used on both ends."""
    if table.by is not By.KEY:
        return "TRUE"
    return between(range, partial(_compared, table))


def _compared(table: Table, operator: str, bound: Bound) -> str:
    natives = table.details["key_types"]
    names = [quoted(name) for name in table.key]
    values = [bound_literal(natives[name], text) for name, text in zip(table.key, bound, strict=True)]
    if len(names) == 1:
        return f"{names[0]} {operator} {values[0]}"
    cases = []
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        last = operator if place == len(names) - 1 else operator[0]
        equal = [f"{names[before]} = {values[before]}" for before in range(place)]
        cases.append("(" + " AND ".join([*equal, f"{name} {last} {value}"]) + ")")
    return f"{names[0]} {operator[0]}= {values[0]} AND ({' OR '.join(cases)})"


def has_order(source: Table, target: Table) -> bool:
    """Whether the target orders the source's key as the source does, so that a range means the same rows."""
    there = {column.name: column for column in target.columns}
    for name in source.key:
        native = source.details.get("key_types", {}).get(name, "")
        own = source.family == FAMILY and native == there[name].native
        collations = [table.details.get("collations", {}).get(name) for table in (source, target)]
        if own and collations[0] == collations[1]:
            continue
        if there[name].type.kind not in _ORDERED or base_of(native) in ("enum", "set"):
            return False
    return True


# What a dump makes and writes.


def made_type(column: Column, in_key: int, has_uuid: bool) -> str:
    """The type for a column of another family. `in_key`: how many columns the key has, if this is one; else 0."""
    kind, length = column.type.kind, column.type.length
    if kind is Kind.DECIMAL and column.type.precision <= 65 and column.type.scale <= 30:
        return f"decimal({column.type.precision},{column.type.scale})"
    if kind in (Kind.DECIMAL, Kind.NUMERIC):
        raise Refused(
            f"column {column.name!r} ({column.type}) has more digits than a MySQL decimal can hold",
            code="cannot_hold",
            hint=f"say how many there are: --column {column.name}=decimal(20,6)",
        )
    if kind is Kind.UUID:
        return "uuid" if has_uuid else "char(36)"
    if in_key and kind in (Kind.TEXT, Kind.BYTES):
        most = 255 if in_key <= 3 else 764 // in_key  # A key has 3072 bytes.
        return f"varchar({min(length or most, most)})" if kind is Kind.TEXT else f"varbinary({most})"
    if kind is Kind.TEXT and 0 < length <= _LONGEST:
        return f"varchar({length})"
    return _MADE[kind]


def takes(target: Column, source: Column, is_own: bool) -> bool:
    """Whether the target's column keeps each value of the source's, or the server refuses it with an error."""
    if is_own and source.native == target.native:
        return True
    kind, given = target.type.kind, source.type.kind
    if (given, kind) in (
        (Kind.NUMERIC, Kind.DECIMAL),
        (Kind.DECIMAL, Kind.DECIMAL),
        (Kind.TIMESTAMPTZ, Kind.TIMESTAMP),
    ):
        return True  # A digit that is cut is a warning here, and a warning ends the chunk.
    if given is Kind.TEXT and kind is Kind.FLOAT32:
        return False
    return holds(target.type, source.type) and not (base_of(target.native) == "binary" and given is Kind.BYTES)


def written(target: Column, source: Column, value: str, is_own: bool) -> str | None:
    """The SQL that makes the column's value from the text that comes. None: the text is the value.

    Where the server would change a value without a word, it gets one that it refuses, and that says why.
    """
    base, kind = base_of(target.native), source.type.kind
    if kind is Kind.BYTES and (base in _BYTES or base in _GEOMETRIES):
        return f"UNHEX(SUBSTR({value}, 3))"
    if base == "bit":
        return f"CAST({value} AS UNSIGNED)"
    if base == "year":
        return f"LPAD({value}, 4, '0')"  # The text 0 is the year 2000, and 0000 is not.
    if base == "timestamp" and not target.nullable:
        value = f"IFNULL({value}, 'NULL in a column that has none')"  # It would become the present time.
    elif is_own and source.native == target.native:
        return None
    digits = size_of(target.native)
    if base in ("datetime", "timestamp", "time") and digits < 6:
        rest = f"SUBSTR({value}, INSTR({value}, '.') + {1 + digits})"
        is_whole = f"INSTR({value}, '.') = 0 OR TRIM(TRAILING '0' FROM {rest}) = ''"
        return f"IF({is_whole} OR {value} IS NULL, {value}, CONCAT({value}, ' would be cut'))"
    if kind is Kind.TEXT and base in _WHOLE:
        return f"IF({value} IS NULL OR {value} RLIKE '^-?[0-9]+$', {value}, CONCAT({value}, ' is not whole'))"
    if kind is Kind.TEXT and base == "char":
        cut = f"CONCAT({value}, REPEAT('.', 256))"
        return f"IF({value} LIKE '% ', {cut}, {value})"  # Spaces at the end would be lost.
    return value if base == "timestamp" and not target.nullable else None


def refusal(column: str, native: str) -> StorageError:
    """The error for a type that is unknown here."""
    return StorageError(
        f"column {column!r} has the type {native}, which is unknown", hint="leave it out with --exclude"
    )

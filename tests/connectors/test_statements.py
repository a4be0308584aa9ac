"""How statements are put together: a value that comes from elsewhere goes into one through a function that quotes it.

Local names are not followed; what they hold is what `test_hostile_catalogs` and `test_pairs` feed them.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOMS = Path(__file__).parents[2] / "src" / "headgate" / "connectors"
MODULES = sorted(path for room in ("postgres", "mysql", "sqlite", "sql") for path in (ROOMS / room).glob("*.py"))
STATEMENT = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|SET|COPY|LOCK|GRANT|REVOKE|TRUNCATE|LOAD|RENAME|ANALYZE|PRAGMA|BEGIN"
    r"|KILL|EXPLAIN|WITH|SAVEPOINT)\b"
)
# Fields and items that are SQL already, and why.
KNOWN = {
    "self.path": "a table's name, from `quoted_path`",
    "self._key": "names of columns, each quoted",
    "letters.PURGE": "our own statement",
    "letters.TABLE": "our own table",
    "table.name": "a proper name, from `catalog.proper`",
    "source.word": "our own random word",
    "CSV.delimiter": "our own constant",
    "ledger.TABLE": "our own table",
    "ledger.KEY": "our own column",
    "row['of']": "quote_ident, as this server writes it",
    "row['refers']": "quote_ident, as this server writes it",
    "row['proper']": "quote_ident, as this server writes it",
    "row['definition']": "of a foreign key that this server has, as it writes it",
    "row['refers_from']": "regclass, as this server writes it",
    "row['other']": "regclass, as this server writes it",
    "row['condition']": "an extension's own, asked of the server that has it, as pg_dump does",
    "counter['name']": "regclass, as this server writes it",
    "row['sequence']": "regclass, as this server writes it",
    "row['name']": "quote_ident, as this server writes it",
    "shape['owner']": "quote_ident, as this server writes it",
    "row['counts']": "judged by `is_counting`",
    "index['rest']": "judged by `why_not_index`, or from this server",
    "one['definition']": "judged by `why_not_constraint`",
    "sql[found.end():]": "the rest of an index of a file, under a beginning that is ours",
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_field_or_item_goes_into_a_statement_as_it_is(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr) and _is_statement(node):
            for part in node.values:
                if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Attribute | ast.Subscript):
                    text = ast.unparse(part.value)
                    assert text in KNOWN, f"line {node.lineno}: {text} needs quoted, literal or a judgement"


def _is_statement(node: ast.JoinedStr) -> bool:
    first = node.values[0]
    return isinstance(first, ast.Constant) and STATEMENT.match(str(first.value)) is not None

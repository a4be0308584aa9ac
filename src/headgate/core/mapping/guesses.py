"""Where an expression is wrong, and what its author may have meant.

People who write mappings know other languages. What those write differently (`=`, `&&`, `!x`, `a ? b : c`, `null`) is
rewritten, outside of quotes, and if the whole then is an expression, it is the guess. A guess is only ever shown.
"""

from __future__ import annotations

import ast
import difflib
import keyword
import re
from collections.abc import Callable

from headgate.core.mapping.functions import FUNCTIONS

NEAR_LIMIT = 24
GUESS_LIMIT = 200
_LISTED = "see the list of functions in docs/reference/mapping.md"

# What other languages call our functions.
_SYNONYMS = {
    "bool": "types: {…: bool}",
    "concat": 'f"{a}{b}"',
    "datetime": "timestamp",
    "ifnull": "coalesce",
    "includes": "contains",
    "isnull": "is None",
    "len": "length",
    "nvl": "coalesce",
    "parse": "parse_json",
    "size": "length",
    "str": "text",
    "string": "text",
    "strftime": "format_time",
    "stringify": "to_json",
    "substr": "substring",
    "to_char": "format_time",
    "to_date": "date",
    "to_timestamp": "timestamp",
    "tojson": "to_json",
    "tolower": "lower",
    "tolowercase": "lower",
    "toupper": "upper",
    "touppercase": "upper",
    "trim": "strip",
}
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_KEPT = re.compile("\ue000(\\d+)\ue001")
_WORDS = {"AND": "and", "OR": "or", "NOT": "not", "IS": "is", "IN": "in"} | dict.fromkeys(("null", "NULL"), "None")
_WORDS |= {"true": "True", "TRUE": "True", "false": "False", "FALSE": "False"}
_WORD = re.compile(rf"(?<![\w.])({'|'.join(_WORDS)})(?!\w)")
_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"^\s*\$\{(.*)\}\s*$", re.DOTALL), r"\1"),
    (re.compile(r"(?<![\w.])\$?\.(?=[A-Za-z_])"), ""),
    (re.compile(r"===?"), "=="),
    (re.compile(r"!==|<>"), "!="),
    (re.compile(r"\s*&&\s*"), " and "),
    (re.compile(r"\s*\|\|\s*"), " or "),
    (re.compile(r"!(?!=)\s*"), "not "),
    (re.compile(r"\s*(?<![=!<>:])=(?!=)\s*"), " == "),
    (_WORD, lambda found: _WORDS[found[1]]),
)
_CONDITION = re.compile(r"([^?]+)\?([^?:]+):(.+)", re.DOTALL)


def place(source: str, line: int, column: int) -> str:
    """Where in an expression something stands, in words: its column, from 1, and what is there."""
    lines = source.splitlines() or [""]
    line = min(max(line, 1), len(lines))
    near = lines[line - 1][max(column - 1, 0) :].strip()
    shown = f"{near[:NEAR_LIMIT]}…" if len(near) > NEAR_LIMIT else near
    where = f"column {column}" if len(lines) == 1 else f"line {line}, column {column}"
    return f" at {where}, near `{shown}`" if shown else f" at {where}, at its end"


def column_of(source: str, node: ast.expr) -> int:
    """The column of a node, from 1. Python counts the bytes before it."""
    lines = source.splitlines()
    if not 1 <= node.lineno <= len(lines):
        return 1
    return len(lines[node.lineno - 1].encode("utf-8", "replace")[: node.col_offset].decode("utf-8", "ignore")) + 1


def guess(source: str) -> str:
    """What to write instead of an expression that cannot be read; empty if there is no telling."""
    quoted: list[str] = []

    def keep(found: re.Match[str]) -> str:
        quoted.append(found[0])
        return f"\ue000{len(quoted) - 1}\ue001"

    bare = _QUOTED.sub(keep, source.strip())
    if "'" in bare or '"' in bare:
        return "a quote is not closed, or stands in a text: that one is written \\' or \\\""
    for pattern, new in _REWRITES:
        bare = pattern.sub(new, bare)
    written = _KEPT.sub(lambda found: quoted[int(found[1])], _with_conditions(_coalesced(bare))).strip()
    if written != source.strip() and len(written) <= GUESS_LIMIT and _is_expression(written):
        return f"did you mean `{written}`?"
    return _keyword(bare)


def guess_function(name: str) -> str:
    """Which function was meant."""
    if (known := _SYNONYMS.get(name.lower().replace("_", "")) or _SYNONYMS.get(name.lower())) is not None:
        return f"write {known}"
    near = difflib.get_close_matches(name, FUNCTIONS, n=3) or difflib.get_close_matches(name.lower(), FUNCTIONS, n=3)
    return f"did you mean {', '.join(near)}?" if near else _LISTED


def guess_method(node: ast.Attribute, arguments: list[ast.expr]) -> str:
    """What to write instead of a call of a method: the function, with what it was called on."""
    name = node.attr
    known = name if name in FUNCTIONS else _SYNONYMS.get(name.lower(), "")
    if not known:
        known = next(iter(difflib.get_close_matches(name, FUNCTIONS, n=1, cutoff=0.8)), "")
    if known not in FUNCTIONS:
        return _LISTED
    written = f"{known}({', '.join(map(ast.unparse, [node.value, *arguments]))})"
    return f"write {written}" if len(written) <= GUESS_LIMIT else f"write {known}(…)"


def said(error: SyntaxError) -> str:
    """Python's own words, without its guesses, which are about programs."""
    text = error.msg.partition(". ")[0].partition(" (")[0]
    return "not an expression" if text == "invalid syntax" or "assign to" in text else text


def _coalesced(text: str) -> str:
    parts = [part.strip() for part in text.split("??")]
    return f"coalesce({', '.join(parts)})" if len(parts) > 1 and all(parts) else text


def _with_conditions(text: str) -> str:
    """`a ? b : c`, as Python writes it. What stands in brackets is not looked at."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        return text
    test, then, other = (part.strip() for part in found.groups())
    return f"{then} if {test} else {_with_conditions(other)}"


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _keyword(source: str) -> str:
    words = [word for word in source.replace(".", " ").replace("(", " ").split() if keyword.iskeyword(word)]
    field = next((word for word in words if word not in ("and", "or", "not", "if", "else", "in", "is", "for")), "")
    return f'a field named {field} is written record["{field}"]' if field else ""

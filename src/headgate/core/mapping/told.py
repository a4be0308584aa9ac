"""What a mapping tells of the types of its output fields, for a sink that makes columns.

`types` says it outright. An expression of `set` tells by its outermost function, if that always gives one type. All
others are not told: then the values decide.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

_OF_FUNCTIONS = {
    **dict.fromkeys(("text", "lower", "upper", "strip", "replace", "join", "substring", "format_time"), "text"),
    **dict.fromkeys(("sha256", "md5", "to_json"), "text"),
    **dict.fromkeys(("int", "length", "count", "crc32"), "int"),
    **dict.fromkeys(("starts_with", "ends_with", "contains"), "bool"),
    **dict.fromkeys(("split", "sort", "unique"), "json"),
    "float": "float",
    "decimal": "decimal",
    "timestamp": "timestamp",
    "date": "date",
}


def field_types(document: Mapping[str, object] | None) -> dict[str, str]:
    """The type of each output field of which a mapping tells it, by the names that `types` has for types."""
    parts = document or {}
    renamed = _dict(parts.get("rename"))
    found = {
        str(renamed.get(field, field)): type
        for field, source in _dict(parts.get("set")).items()
        if (type := _of_expression(source)) is not None
    }
    return {**found, **{field: str(type) for field, type in _dict(parts.get("types")).items()}}


def _of_expression(source: object) -> str | None:
    if not isinstance(source, str):
        return None
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # Somebody else tells that.
        return None
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        return _OF_FUNCTIONS.get(tree.func.id)
    return "text" if isinstance(tree, ast.JoinedStr) else None


def _dict(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}

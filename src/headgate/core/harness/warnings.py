"""What is worth a warning in the results of a test: they are lawful, and yet hardly what the author meant."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from headgate.core.harness.results import Result
from headgate.text import counted

Steps: TypeAlias = tuple[str, ...]
"""The way to a field: `customer.name`."""

_OWN = ("record", "meta", "item")
_COMPARED, _NAMES = 10, 100  # Records and names, for one that is close to a mistyped one: each takes up to 0.1 ms.
_LEAST_TO_COMPARE = 2  # One record says nothing about what varies or always holds.


@dataclass(frozen=True, slots=True)
class Caution:
    """Something to look at."""

    code: str
    place: str  # In the document: `mapping.set.total`; or an output field.
    message: str


@dataclass(frozen=True, slots=True)
class Tried:
    """A record as it was read, and what became of it."""

    before: Any
    results: Sequence[Result]


def warnings(
    mapping: Mapping[str, Any] | None,
    key: Sequence[str],
    tested: Sequence[Tried],
    columns: Iterable[str] | None = None,
) -> list[Caution]:
    """All of them. `columns`: those of the sink's table, if it can tell."""
    if not tested:
        return []
    document = mapping or {}
    results = [result for one in tested for result in one.results]
    found = [*_never_present(document, [one.before for one in tested]), *_of_where(document, results)]
    found += [*_always_failing(results), *_of_fields(document, results), *_of_key(key, results)]
    if columns is not None:
        found += _lacking(columns, results)
    return found


# Inputs.


def _never_present(document: Mapping[str, Any], records: Sequence[Any]) -> Iterator[Caution]:
    for place, expression in _expressions(document):
        for steps in sorted(fields_in(expression)):
            if not any(_has(record, steps) for record in records):
                where = "not in the record" if len(records) == 1 else f"in none of {counted(len(records), 'record')}"
                message = f"the field {'.'.join(steps)} is {where}{_meant(steps[0], records)}"
                yield Caution("never_present", f"mapping.{place}", message)


def _meant(name: str, records: Sequence[Any]) -> str:
    """A field of the first records that is spelled almost like this one."""
    known = {field for record in records[:_COMPARED] if isinstance(record, dict) for field in record}
    near = [] if name in known else difflib.get_close_matches(name, sorted(known)[:_NAMES], 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _expressions(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in ("unnest", "where", "delete"):
        if isinstance(text := document.get(part), str):
            yield part, text
    fields = document.get("set")
    for name, text in (fields if isinstance(fields, dict) else {}).items():
        if isinstance(text, str):
            yield f"set.{name}", text


def fields_in(expression: str) -> set[Steps]:
    """The fields of a record that an expression names. Those of `item` and `meta` are not of the record."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return set()
    bound = {
        name.id
        for loop in ast.walk(tree)
        if isinstance(loop, ast.comprehension)
        for name in ast.walk(loop.target)
        if isinstance(name, ast.Name)
    }
    called = {id(call.func) for call in ast.walk(tree) if isinstance(call, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Subscript)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and id(node) not in called | inner:
            steps = _steps(node)
            if steps and steps[0] not in bound:
                found.add(steps)
    return {steps[1:] if steps[0] == "record" else steps for steps in found if steps[0] not in _OWN[1:]} - {()}


def _steps(node: ast.expr) -> Steps:
    """The chain `a.b["c"]`, up to the first step that is not a name."""
    steps: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            steps.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            steps = [*steps, key] if isinstance(key, str) else []
            node = node.value
        else:
            return ()
    return (node.id, *reversed(steps))


def _has(record: Any, steps: Steps) -> bool:
    for step in steps:
        if not isinstance(record, dict) or step not in record:
            return False
        record = record[step]
    return True


# Outcomes.


def _of_where(document: Mapping[str, Any], results: Sequence[Result]) -> Iterator[Caution]:
    if not isinstance(document.get("where"), str):
        return
    filtered = sum(one.outcome == "filtered" for one in results)
    if results and filtered == len(results):
        yield Caution("where_never", "mapping.where", f"matched none of {counted(len(results), 'record')}")
    elif not filtered and len(results) >= _LEAST_TO_COMPARE:
        yield Caution("where_always", "mapping.where", f"matched all of {counted(len(results), 'record')}")


def _always_failing(results: Sequence[Result]) -> Iterator[Caution]:
    judged = [one for one in results if one.outcome != "filtered"]
    failed = [one for one in judged if one.stage == "mapping" and one.field]
    if judged and len(failed) == len(judged):
        for name in sorted({one.field for one in failed if one.field}):
            of_field = [one for one in failed if one.field == name]
            if len(of_field) == len(judged):
                message = f"fails for all of {counted(len(judged), 'record')}: {of_field[0].reason}"
                yield Caution("always_fails", f"mapping.{name}", message)


def _of_fields(document: Mapping[str, Any], results: Sequence[Result]) -> Iterator[Caution]:
    rows = [one.after for one in results if isinstance(one.after, dict)]
    computed = document.get("set")
    for name in dict.fromkeys(field for row in rows for field in row):
        values = [row.get(name) for row in rows]
        if isinstance(computed, dict) and name in computed and all(value is None for value in values):
            where = "the only record" if len(rows) == 1 else f"all of {counted(len(rows), 'record')}"
            yield Caution("always_null", f"mapping.set.{name}", f"is null in {where}")
        kinds = sorted({kind_of(value) for value in values if value is not None})
        if len(kinds) > 1:
            yield Caution("varying_types", name, f"is {' in some records and '.join(kinds)} in others")


def kind_of(value: Any) -> str:
    """In one word. Whole numbers and others are all numbers."""
    match value:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"
    return "something else"


def _of_key(key: Sequence[str], results: Sequence[Result]) -> Iterator[Caution]:
    rows = [one.after for one in results if one.outcome == "written" and isinstance(one.after, dict)]
    if not key or not rows:
        return
    named, keys = ", ".join(key), [tuple(repr(row.get(name)) for name in key) for row in rows]
    without = sum(any(row.get(name) is None for name in key) for row in rows)
    if without:
        yield Caution("key_null", "mapping.key", f"{named} is null in {counted(without, 'record')}")
    repeated = len(keys) - len(set(keys))
    if repeated:
        yield Caution("key_repeated", "mapping.key", f"{named} is that of an earlier record in {repeated}")


def _lacking(columns: Iterable[str], results: Sequence[Result]) -> Iterator[Caution]:
    there = set(columns)
    named = {name for one in results if isinstance(one.after, dict) for name in one.after}
    for name in sorted(named - there):
        yield Caution("no_column", name, "is no column of the sink's table")

"""Checks a configuration against the JSON Schema that a connector of others says for it.

This is the part of JSON Schema that such specs use. What it does not know it lets pass: the connector itself has the
last word when it runs. Where a secret will stand, whatever the spec wants there is taken for granted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from headgate.core.mapping.patterns import compile_pattern

Path: TypeAlias = tuple[str | int, ...]
Finding: TypeAlias = tuple[Path, str]

DEEPEST = 30
LONGEST = 1_000  # Characters that are matched with a pattern.
MOST_LOOKS = 20_000  # At a part of a configuration: alternatives that name each other have no end.
MOST_HINTS = 200  # Each costs a look at all names.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_A = {"integer": "a whole number", "object": "a mapping", "array": "a list", "null": "null", "string": "text"}
_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|credential|api_?key|access_?key|private_?key|token$|pwd$", re.IGNORECASE
)


class Secret:
    """In a configuration, the place of a value that is not looked at."""


SECRET = Secret()


@dataclass(slots=True)
class _Root:
    """The whole of a spec, and what may still be spent on it. What is not looked at passes."""

    schema: Mapping[str, object]
    looks: int = MOST_LOOKS
    hints: int = MOST_HINTS

    def near(self, name: str, known: Iterable[object]) -> list[str]:
        """What may have been meant."""
        self.hints -= 1
        return difflib.get_close_matches(name, map(str, known), 1) if self.hints >= 0 and len(name) <= 100 else []


def problems(schema: Mapping[str, object], config: object) -> list[Finding]:
    """What the spec does not allow, and where."""
    return list(_judge(schema, config, (), 0, _Root(schema)))


def written_out(schema: Mapping[str, object] | None, config: Mapping[str, object]) -> list[Path]:
    """Where a value stands in the configuration that should be a secret: the spec says so, or its name does."""
    return list(_secrets(schema or {}, config, (), 0))


def _judge(schema: object, value: object, path: Path, depth: int, root: _Root) -> Iterator[Finding]:
    if not isinstance(schema, dict) or depth > DEEPEST or isinstance(value, Secret):
        return
    root.looks -= 1
    if root.looks < 0:
        return
    if isinstance(ref := schema.get("$ref"), str):
        yield from _judge(_referred(root, ref), value, path, depth + 1, root)
        return
    types = schema.get("type")
    wanted = [str(one) for one in (types if isinstance(types, list) else [types] if types else [])]
    if wanted and not any(_is_of(value, one) for one in wanted):
        yield path, f"must be {' or '.join(_A.get(one, f'a {one}') for one in wanted)}"
        return
    yield from ((path, said) for said in _of_scalar(schema, value, root))
    for word in ("oneOf", "anyOf"):
        if isinstance(several := schema.get(word), list) and several:
            yield from _one_of(several, value, path, depth, root)
    for one in _list(schema.get("allOf")):
        yield from _judge(one, value, path, depth + 1, root)
    if isinstance(value, dict):
        yield from _of_object(schema, value, path, depth, root)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _judge(schema.get("items"), item, (*path, index), depth + 1, root)


def _of_scalar(schema: Mapping[str, object], value: object, root: _Root) -> Iterator[str]:
    if "const" in schema and value != schema["const"]:
        yield f"must be {schema['const']!r}"
    if (known := _list(schema.get("enum"))) and value not in known:
        near = root.near(str(value), known)
        yield f"must be one of {', '.join(map(str, known[:20]))}" + (f"; did you mean {near[0]}?" if near else "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        least, most = schema.get("minimum"), schema.get("maximum")
        if isinstance(least, int | float) and value < least:
            yield f"must be at least {least}"
        if isinstance(most, int | float) and value > most:
            yield f"must be at most {most}"
    if isinstance(value, str):
        shortest, pattern = schema.get("minLength"), schema.get("pattern")
        if isinstance(shortest, int) and len(value) < shortest:
            yield "is too short"
        if isinstance(pattern, str) and len(value) <= LONGEST and not _matches(pattern, value):
            yield f"does not match {pattern}"


def _matches(pattern: str, value: str) -> bool:
    try:
        found = compile_pattern(pattern)
    except ValueError:  # A pattern of another language, or one that could take forever.
        return True
    return len(value) > found.text_limit or found.compiled.search(value) is not None


def _one_of(several: list[object], value: object, path: Path, depth: int, root: _Root) -> Iterator[Finding]:
    """It is one of these; else what is wrong with the one that comes nearest."""
    found = [list(_judge(one, value, path, depth + 1, root)) for one in several]
    if all(found):
        # An alternative whose constants fit is the one that is meant, and its mistakes are the deepest.
        meant = min(found, key=lambda ones: (any(said.startswith("must be '") for _, said in ones), len(ones)))
        yield from meant


def _of_object(
    schema: Mapping[str, object], value: Mapping[str, object], path: Path, depth: int, root: _Root
) -> Iterator[Finding]:
    properties = schema.get("properties")
    known: Mapping[str, object] = properties if isinstance(properties, dict) else {}
    for name in _list(schema.get("required")):
        if name not in value:
            yield (*path, str(name)), "is missing"
    for name, inner in value.items():
        if name in known:
            yield from _judge(known[name], inner, (*path, name), depth + 1, root)
        elif near := root.near(name, known):
            yield (*path, name), f"is nothing that the connector knows; did you mean {near[0]}?"
        elif schema.get("additionalProperties") is False:
            yield (*path, name), f"is nothing that the connector knows; it knows {', '.join(list(known)[:20])}"


def _secrets(schema: object, value: object, path: Path, depth: int) -> Iterator[Path]:
    if depth > DEEPEST or isinstance(value, Secret):
        return
    spec: Mapping[str, object] = schema if isinstance(schema, dict) else {}
    inner = [spec, *(one for word in ("oneOf", "anyOf", "allOf") for one in _list(spec.get(word)))]
    if isinstance(value, dict):
        for name, one in value.items():
            below = [found for part in inner if isinstance(part, dict) and (found := _property(part, name)) is not None]
            is_named = isinstance(one, str) and bool(one) and _SECRET_NAME.search(name) is not None
            if any(_is_secret(part) for part in below) or (is_named and not below):
                if not isinstance(one, Secret):
                    yield (*path, name)
            else:
                for part in below or [{}]:
                    yield from _secrets(part, one, (*path, name), depth + 1)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _secrets(spec.get("items"), one, (*path, index), depth + 1)


def _property(schema: Mapping[str, object], name: str) -> object:
    properties = schema.get("properties")
    return properties.get(name) if isinstance(properties, dict) else None


def _is_secret(schema: object) -> bool:
    words = ("airbyte_secret", "secret", "writeOnly")
    return isinstance(schema, dict) and any(schema.get(word) is True for word in words)


def _is_of(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _referred(root: _Root, ref: str) -> object:
    found: object = root.schema
    for part in ref.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []

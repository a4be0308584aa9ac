"""Where in a YAML text each problem is: `orders.yaml:12:5: datasources.orders.sink.tabel`.

A problem has a path into the document. The text is read once more, as nodes that know their places, and the path is
walked as far as it goes: what is missing is reported where it should be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import yaml

from headgate.errors import Problem

Pairs: TypeAlias = dict[str, tuple[Any, Any]]
_MERGE = "tag:yaml.org,2002:merge"
_DEEPEST_MERGE = 10


def located(problems: Iterable[Problem], text: str, file: str, prefix: str = "") -> list[Problem]:
    """The problems with their places, in the order of the text. `prefix`: where in the text their paths begin."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return list(problems)
    known: dict[int, Pairs] = {}
    found = []
    for problem in problems:
        mark = _mark(root, ".".join(part for part in (prefix, problem.path) if part), known)
        where = f"{file or 'YAML'}:{mark.line + 1}:{mark.column + 1}"
        path = f"{where}: {problem.path}" if problem.path else where
        found.append((mark.line, mark.column, replace(problem, path=path)))
    return [problem for _, _, problem in sorted(found, key=lambda one: one[:2])]


def _mark(node: Any, path: str, known: dict[int, Pairs]) -> Any:
    """Of the last step that is there."""
    mark, parts = node.start_mark, path.split(".") if path else []
    while parts:
        if isinstance(node, yaml.SequenceNode):
            number = int(parts[0]) if parts[0].isdecimal() and len(parts[0]) < 10 else len(node.value)
            if number >= len(node.value):
                break
            node, taken = node.value[number], 1
            mark = node.start_mark
        elif isinstance(node, yaml.MappingNode):
            pairs = known.setdefault(id(node), _pairs(node)) if id(node) not in known else known[id(node)]
            # A key may have dots in it: the longest that fits is meant.
            taken = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in pairs), 0)
            if not taken:
                break
            key, node = pairs[".".join(parts[:taken])]
            mark = key.start_mark
        else:
            break
        parts = parts[taken:]
    return mark


def _pairs(node: Any, depth: int = 0) -> Pairs:
    """What a mapping has, by its keys; what `<<` puts in counts, too."""
    found: Pairs = {}
    for key, value in node.value:
        if key.tag == _MERGE and depth < _DEEPEST_MERGE:
            for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(one, yaml.MappingNode):
                    found = _pairs(one, depth + 1) | found
    return found | {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}

"""Datasource documents: read from YAML or JSON, and written again as their authors wrote them.

Only their shape is checked here; `prepared` checks what they say. Every problem has a path into the document
(`datasources.orders.sink.url`) and, where there is something to do, a hint.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec
import yaml

from headgate.core.harness import fixtures
from headgate.core.harness.fixtures import MOST_FIXTURES, Fixture
from headgate.datasources.lines import located
from headgate.datasources.prepared import shown
from headgate.datasources.references import REFERENCE, is_reference, secret_names
from headgate.errors import ConfigError, Problem
from headgate.ids import is_name
from headgate.store.datasources import Content
from headgate.text import one_line

PARTS = ("enabled", "source", "mapping", "sink", "fixtures")
MOST_VALUES = 100_000  # A few lines of YAML aliases can stand for billions.
DEEPEST = 64
MOST_PROBLEMS = 1000  # That anybody is told of at once.
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="documents")
_HALVES = re.compile("[\ud800-\udfff]")
_QUOTE = "quote it; no zero bytes"
MOST_BITS = 1024  # Of a whole number: those of thousands of digits cannot be written down again.
_TOO_LARGE = "is too large, or nested too deeply"
_STRANGE = object()
_TOO_MANY, _WRITE_OUT = "aliases stand for too many values", "write them out"


@dataclass(frozen=True, slots=True)
class Document:
    """One datasource as its author writes it."""

    name: str
    enabled: bool
    content: Content
    fixtures: Mapping[str, Fixture] = field(default_factory=dict)  # They travel in files, and have no versions.

    def plain(self) -> dict[str, Any]:
        """As it is shown and exported: what was written, in its order; without a password that it may have in it."""
        content = shown(self.content)
        found: dict[str, Any] = {"enabled": self.enabled, "source": content.source}
        if content.mapping is not None:
            found["mapping"] = content.mapping
        return {**found, "sink": content.sink, **content.options}


class Documents(dict[str, Document]):
    """The datasources of a file, as far as their shape allows. What is wrong with it is among the `problems`, and what
    has no place in a document is left out, so that the rest is checked all the same. They cannot be applied."""

    def __init__(self, found: dict[str, Document], problems: list[Problem], text: str = "", file: str = "") -> None:
        super().__init__(found)
        self.problems = problems
        self._text, self._file = text, file

    def all_problems(self, others: list[Problem]) -> list[Problem]:
        """These problems and those of the shape, each once and with its place in the text, if there is one."""
        problems = together(self.problems, others)[:MOST_PROBLEMS]
        return located(problems, self._text, self._file) if self._text else problems


def together(of_shape: list[Problem], others: list[Problem]) -> list[Problem]:
    """All problems. Of what has the wrong shape nothing else is said."""
    wrong = {problem.path for problem in of_shape}
    return of_shape + [one for one in others if not any(path in wrong for path in _above(one.path))]


def _above(path: str) -> list[str]:
    """A path, and all those that it is below of."""
    parts = path.split(".")
    return [".".join(parts[:number]) for number in range(1, len(parts) + 1)]


P = ParamSpec("P")
T = TypeVar("T")


async def apart(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do what many documents at once need. It takes seconds, so it has its own threads: neither the event loop nor
    the threads of connectors wait for it."""
    run = partial(copy_context().run, work, *args, **kwargs)  # What the task has set holds in the thread, too.
    return await asyncio.get_running_loop().run_in_executor(_THREADS, run)


# Reading.


def read_yaml(text: str, file: str = "") -> Documents:
    """The datasources of a YAML file. Raises what is wrong with their shape."""
    return _lawful(gather_yaml(text, file))


def gather_yaml(text: str, file: str = "") -> Documents:
    """The same, for somebody who finds more problems."""
    found = gather_all(parse_yaml(text, file))
    return Documents(found, found.problems, text, file)


def _lawful(found: Documents) -> Documents:
    if found.problems:
        raise ConfigError(found.all_problems([]))
    return found


def parse_yaml(text: str, file: str = "") -> Any:
    """YAML as plain data. A broken file is reported with its line and column."""
    try:
        loader = _Loader(text)
        try:
            found = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{file or 'YAML'}:{mark.line + 1}:{mark.column + 1}" if mark else file
        said = error.problem or "not YAML"
        raise ConfigError([Problem(where, said, _hint_for(said, error.context or ""))]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem(file, one_line(error))]) from None
    except RecursionError:
        raise ConfigError([Problem(file, "is nested too deeply")]) from None
    except (ValueError, LookupError) as error:  # `!!int abc` and the like.
        raise ConfigError([Problem(file, f"a value does not fit its tag: {error}", "leave the tag out")]) from None
    if _stands_for_more(found, _most_values(text)):
        raise ConfigError([Problem(file, _TOO_MANY, _WRITE_OUT)])
    return found


def _hint_for(said: str, context: str) -> str:
    """What to do about YAML that cannot be read: most often an expression should have been quoted."""
    if "flow mapping" in context or "flow sequence" in context:
        return "within { } and [ ], quote a value that has , : [ ] { or } in it, as in total: 'a[0]'"
    hints = {
        "mapping values are not allowed": "quote a value that has a colon in it",
        "expected <block end>": "check the indentation; quote a value that begins with a quote and goes on after it",
        "could not determine a constructor": "quote a value that begins with !; in an expression, write not",
        "found undefined alias": "quote a value that begins with *",
        "found character '\\t'": "indent with spaces",
        "found character": "quote the value",
    }
    return next((hint for begins, hint in hints.items() if said.startswith(begins)), "")


def _most_values(text: str) -> int:
    """How many values a file may stand for. Without aliases each takes a character at least, so that none is lost."""
    return max(MOST_VALUES, len(text))


def _stands_for_more(found: Any, most: int) -> bool:
    """Whether there are more values than this, with each alias in full: one that holds itself never ends."""
    waiting, taken = [found], 0
    while waiting:
        value = waiting.pop()
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        taken += len(inside)
        if taken > most:
            return True
        waiting += inside
    return False


def write_yaml(documents: list[Document]) -> str:
    """The same, as text."""
    return plain_yaml({"datasources": {document.name: _with_fixtures(document) for document in documents}})


def plain_yaml(plain: Mapping[str, Any]) -> str:
    """Plain data, as people write it."""
    return str(yaml.dump(dict(plain), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


def write_plain(document: Mapping[str, Any]) -> str:
    """One datasource, without its name, as text."""
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _with_fixtures(document: Document) -> dict[str, Any]:
    kept = {name: fixtures.plain(one) for name, one in document.fixtures.items()}
    return {**document.plain(), "fixtures": kept} if kept else document.plain()


def read_all(found: Any) -> Documents:
    """Many datasources: `{"datasources": {name: document}}`. Raises what is wrong with their shape."""
    return _lawful(gather_all(found))


def gather_all(found: Any) -> Documents:
    """The same, for somebody who finds more problems."""
    if not isinstance(found, dict) or not isinstance(found.get("datasources"), dict):
        raise ConfigError([Problem("", "`datasources` is missing at the top", "datasources: {name: {…}}")])
    problems = [Problem(str(key), "unknown key", "only `datasources`") for key in found if key != "datasources"]
    documents: dict[str, Document] = {}
    for name, raw in found["datasources"].items():
        document, wrong = gather_one(name, raw, f"datasources.{name}")
        if document is not None:
            documents[str(name)] = document
        problems += wrong
        if len(problems) >= MOST_PROBLEMS:
            break
    return Documents(documents, problems[:MOST_PROBLEMS])


def read_one(name: Any, raw: Any, path: str = "") -> Document:
    """One datasource. Only its shape is checked here; `prepare` checks what it says."""
    document, problems = gather_one(name, raw, path)
    if problems:
        raise ConfigError(problems)
    assert document is not None
    return document


def gather_one(name: Any, raw: Any, path: str = "") -> tuple[Document | None, list[Problem]]:
    """One datasource without what has the wrong shape, and what that is; nothing if it is wrong as a whole."""
    at = f"{path}." if path else ""
    problems = []
    if not is_name(name):
        problems.append(Problem(path or "name", f"{name!r} is not a name", "lower case, digits, - and _; 100 at most"))
    if not isinstance(raw, dict):
        return None, [*problems, Problem(path, "must be a mapping of source, sink and so on")]
    for part in ("source", "sink"):
        if not isinstance(raw.get(part), dict):
            problems.append(Problem(f"{at}{part}", "is missing" if part not in raw else "must be a mapping", "type: …"))
    if not isinstance(raw.get("mapping", {}), dict):
        problems.append(Problem(f"{at}mapping", "must be a mapping"))
    if not isinstance(raw.get("enabled", True), bool):
        problems.append(Problem(f"{at}enabled", "must be true or false"))
    strange = _strange(raw, path)
    kept = _fixtures(raw.get("fixtures", {}), f"{at}fixtures", problems)
    if any(problem.message == _TOO_LARGE for problem in strange):
        return None, problems + strange
    if strange:
        raw = _pruned(raw)
    options = {key: value for key, value in raw.items() if key not in PARTS}
    source, mapping, sink = (one if isinstance(one := raw.get(part), dict) else None for part in PARTS[1:4])
    content = content_of(source or {}, mapping, sink or {}, options)
    return Document(str(name), raw.get("enabled", True) is True, content, kept), problems + strange


def _pruned(value: Any) -> Any:
    """A value without what JSON cannot express."""
    if isinstance(value, dict):
        kept = {key: _pruned(one) for key, one in value.items() if _is_text(key)}
        return {key: one for key, one in kept.items() if one is not _STRANGE}
    if isinstance(value, list):
        return [one for one in map(_pruned, value) if one is not _STRANGE]
    is_number = isinstance(value, bool | None) or (isinstance(value, int) and value.bit_length() <= MOST_BITS)
    is_number |= isinstance(value, float) and math.isfinite(value)
    return value if is_number or _is_text(value) else _STRANGE


def _fixtures(raw: Any, path: str, problems: list[Problem]) -> dict[str, Fixture]:
    if not isinstance(raw, dict) or len(raw) > MOST_FIXTURES:
        problems.append(Problem(path, f"must be a mapping of at most {MOST_FIXTURES} fixtures by name"))
        return {}
    found = {}
    for name, one in raw.items():
        try:
            found[str(name)] = fixtures.from_plain(one)
        except ValueError as error:
            problems.append(Problem(f"{path}.{name}", str(error), "headgate export writes it"))
        if not is_name(name):
            problems.append(Problem(f"{path}.{name}", "is not a name", "lower case, digits, - and _"))
    return found


def _strange(raw: dict[str, Any], path: str) -> list[Problem]:
    """Values that JSON cannot express: the database would lose or change them."""
    problems: list[Problem] = []
    waiting: list[tuple[str, Any, int]] = [(path, raw, 0)]
    taken = 0
    while waiting:
        where, value, depth = waiting.pop()
        taken += 1
        if taken > MOST_VALUES or depth > DEEPEST:
            return [Problem(path, _TOO_LARGE, f"{MOST_VALUES} values, {DEEPEST} levels")]
        at = f"{where}." if where else ""
        if isinstance(value, dict):
            if is_reference(value):
                if not is_name(value[REFERENCE]):
                    said, hint = "is not the name of a secret", "lower case, digits, - and _"
                    problems.append(Problem(f"{at}$secret", said, hint))
                continue
            if REFERENCE in value:
                problems.append(Problem(f"{at}$secret", "must stand alone", "{$secret: NAME}"))
            problems += [Problem(f"{at}{key}", "a key must be text", _QUOTE) for key in value if not _is_text(key)]
            waiting += [(f"{at}{key}", item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{at}{index}", item, depth + 1) for index, item in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            problems.append(Problem(where, "must be a finite number"))
        elif isinstance(value, int) and value.bit_length() > MOST_BITS:
            problems.append(Problem(where, f"must be a number of at most {MOST_BITS} bits"))
        elif not isinstance(value, bool | int | float | None) and not _is_text(value):
            problems.append(Problem(where, "must be text, a number, true, false, a list or a mapping", _QUOTE))
    return problems


def _is_text(value: Any) -> bool:
    """Whether this is text that can be written down: half a surrogate pair cannot, nor a zero byte in PostgreSQL, where
    one in any document would break the questions about all."""
    return isinstance(value, str) and "\0" not in value and (value.isascii() or not _HALVES.search(value))


def content_of(
    source: dict[str, Any], mapping: dict[str, Any] | None, sink: dict[str, Any], options: dict[str, Any]
) -> Content:
    """The parts that have versions, with their hash and the secrets they name."""
    plain = [source, mapping, sink, options]
    digest = hashlib.sha256(msgspec.json.encode(plain, order="sorted", enc_hook=str)).hexdigest()
    return Content(source, mapping, sink, options, tuple(sorted(secret_names(plain))), digest[:16])


class _Loader(yaml.SafeLoader):
    """Plain data, and no key twice. Dates stay text: what is exported is what was written."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._left = _most_values(text)  # Pairs that `<<` may put in: a few lines of it, too, can stand for billions.

    def flatten_mapping(self, node: Any) -> None:
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                self._count(value.value if isinstance(value, yaml.SequenceNode) else [value])
        super().flatten_mapping(node)

    def _count(self, merged: list[Any]) -> None:
        for one in merged:
            if isinstance(one, yaml.MappingNode):
                self.flatten_mapping(one)
                self._left -= len(one.value)
                if self._left < 0:
                    raise yaml.constructor.ConstructorError(None, None, _TOO_MANY, one.start_mark)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} appears twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """Block style without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> Any:
    """In double quotes where a character counts as a line break: any other style would fold it away."""
    style = '"' if any(character in text for character in "\x85\u2028\u2029\ufeff") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)

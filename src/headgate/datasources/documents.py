"""Datasource documents: read, checked as a whole, and made ready to run.

Checking never stops at the first mistake. Every problem has a path into the document (`datasources.orders.sink.url`)
and, where there is something to do, a hint.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import yaml
from pydantic import Field, SecretStr, ValidationError, field_validator

from headgate.connectors import plugins as connectors
from headgate.connectors.api import Connector, Options, SinkKind, SourceKind, identity_of
from headgate.core.mapping.document import Mapping as CompiledMapping
from headgate.core.mapping.document import compile_mapping
from headgate.core.push import PUSH
from headgate.errors import ConfigError, HeadgateError, Problem
from headgate.ids import is_name
from headgate.store.datasources import Content
from headgate.text import one_line, parse_duration

PARTS = ("enabled", "source", "mapping", "sink")
OF_NODES = ("streams", "assignment")  # Options about streams that nodes run.
RENAMED = {"partitions": "streams"}  # Options that had another name.
MOST_VALUES = 100_000  # A few lines of YAML aliases can stand for billions.
DEEPEST = 64


class Expect(Options):
    """What a healthy datasource does."""

    fresh_within: str | None = Field(None, description="A record at least this often: 30s, 10m, 2h, 1d.")
    min_per_hour: int | None = Field(None, ge=1, description="At least this many records in the last hour.")

    @field_validator("fresh_within")
    @classmethod
    def _duration(cls, value: str | None) -> str | None:
        if value is not None:
            parse_duration(value)
        return value


class DatasourceOptions(Options):
    """What a document says besides source, mapping and sink."""

    streams: int = Field(
        1, ge=1, le=1000, strict=True, description="How many streams read the source, if it can be read in parts."
    )
    assignment: Literal["sticky", "modulo"] = Field(
        "sticky",
        description=(
            "Which node runs which stream. sticky: spread by load, and moved as little as possible. "
            "modulo: number p goes to number p mod n of n nodes, in the order of their joining."
        ),
    )
    expect: Expect | None = Field(None, description="Freshness and volume that count as healthy.")
    description: str = Field("", description="For people.")


@dataclass(frozen=True, slots=True)
class Document:
    """One datasource as its author writes it."""

    name: str
    enabled: bool
    content: Content

    def plain(self) -> dict[str, Any]:
        """As it is exported: what was written, in its order."""
        content = self.content
        found: dict[str, Any] = {"enabled": self.enabled, "source": content.source}
        if content.mapping is not None:
            found["mapping"] = content.mapping
        return {**found, "sink": content.sink, **content.options}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version that is ready to run: options checked, secrets in place, mapping compiled."""

    source: Connector
    source_options: Any
    sink: Connector
    sink_options: Any
    mapping: CompiledMapping
    options: DatasourceOptions

    @property
    def source_kind(self) -> SourceKind:
        """How to build the source."""
        assert self.source.source is not None
        return self.source.source

    @property
    def sink_kind(self) -> SinkKind:
        """How to build the sink."""
        assert self.sink.sink is not None
        return self.sink.sink

    @property
    def source_identity(self) -> str:
        """Which data are read."""
        return identity_of(self.source.name, self.source_options)

    @property
    def sink_identity(self) -> str:
        """Where they are written."""
        return identity_of(self.sink.name, self.sink_options)


# Reading.


def read_yaml(text: str, file: str = "") -> dict[str, Document]:
    """The datasources of a YAML file."""
    return read_all(parse_yaml(text, file))


def parse_yaml(text: str, file: str = "") -> Any:
    """YAML as plain data. A broken file is reported with its line and column."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{file or 'YAML'}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise ConfigError([Problem(where, error.problem or "not YAML")]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem(file, one_line(error))]) from None
    except RecursionError:
        raise ConfigError([Problem(file, "is nested too deeply")]) from None
    except (ValueError, LookupError) as error:  # `!!int abc` and the like.
        raise ConfigError([Problem(file, f"a value does not fit its tag: {error}", "leave the tag out")]) from None


def write_yaml(documents: list[Document]) -> str:
    """The same, as text."""
    plain = {"datasources": {document.name: document.plain() for document in documents}}
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def read_all(found: Any) -> dict[str, Document]:
    """Many datasources: `{"datasources": {name: document}}`."""
    if not isinstance(found, dict) or not isinstance(found.get("datasources"), dict):
        raise ConfigError([Problem("", "`datasources` is missing at the top", "datasources: {name: {…}}")])
    problems = [Problem(str(key), "unknown key", "only `datasources`") for key in found if key != "datasources"]
    documents: dict[str, Document] = {}
    for name, raw in found["datasources"].items():
        try:
            documents[str(name)] = read_one(name, raw, f"datasources.{name}")
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return documents


def read_one(name: Any, raw: Any, path: str = "") -> Document:
    """One datasource. Only its shape is checked here; `prepare` checks what it says."""
    at = f"{path}." if path else ""
    problems = []
    if not is_name(name):
        problems.append(Problem(path or "name", f"{name!r} is not a name", "lower case, digits, - and _; 100 at most"))
    if not isinstance(raw, dict):
        raise ConfigError([*problems, Problem(path, "must be a mapping of source, sink and so on")])
    for part in ("source", "sink"):
        if not isinstance(raw.get(part), dict):
            problems.append(Problem(f"{at}{part}", "is missing" if part not in raw else "must be a mapping", "type: …"))
    if not isinstance(raw.get("mapping", {}), dict):
        problems.append(Problem(f"{at}mapping", "must be a mapping"))
    if not isinstance(raw.get("enabled", True), bool):
        problems.append(Problem(f"{at}enabled", "must be true or false"))
    problems += _strange(raw, path)
    if problems:
        raise ConfigError(problems)
    options = {key: value for key, value in raw.items() if key not in PARTS}
    return Document(
        str(name),
        raw.get("enabled", True),
        content_of(raw["source"], raw.get("mapping"), raw["sink"], options),
    )


def _strange(raw: dict[str, Any], path: str) -> list[Problem]:
    """Values that JSON cannot express: the database would lose or change them."""
    problems: list[Problem] = []
    waiting: list[tuple[str, Any, int]] = [(path, raw, 0)]
    taken = 0
    while waiting:
        where, value, depth = waiting.pop()
        taken += 1
        if taken > MOST_VALUES or depth > DEEPEST:
            return [Problem(path, "is too large, or nested too deeply", f"{MOST_VALUES} values, {DEEPEST} levels")]
        at = f"{where}." if where else ""
        if isinstance(value, dict):
            if set(value) == {"$secret"} and not is_name(value["$secret"]):
                problems.append(Problem(f"{at}$secret", "is not the name of a secret", "lower case, digits, - and _"))
            problems += [Problem(f"{at}{key}", "a key must be text", "quote it") for key in value if not _is_text(key)]
            waiting += [(f"{at}{key}", item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{at}{index}", item, depth + 1) for index, item in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            problems.append(Problem(where, "must be a finite number"))
        elif not isinstance(value, bool | int | float | None) and not _is_text(value):
            problems.append(Problem(where, "must be text, a number, true, false, a list or a mapping", "quote it"))
    return problems


def _is_text(value: Any) -> bool:
    """Whether this is text that can be written down: half a surrogate pair cannot."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def content_of(
    source: dict[str, Any], mapping: dict[str, Any] | None, sink: dict[str, Any], options: dict[str, Any]
) -> Content:
    """The parts that have versions, with their hash and the secrets they name."""
    plain = [source, mapping, sink, options]
    digest = hashlib.sha256(msgspec.json.encode(plain, order="sorted", enc_hook=str)).hexdigest()
    return Content(source, mapping, sink, options, tuple(sorted(secret_names(plain))), digest[:16])


class _Loader(yaml.SafeLoader):
    """Plain data, and no key twice. Dates stay text: what is exported is what was written."""

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


# Secrets.


def secret_names(value: Any) -> set[str]:
    """The names that a document refers to as `{"$secret": name}`."""
    if isinstance(value, dict):
        if set(value) == {"$secret"}:
            return {str(value["$secret"])}
        return set().union(*(secret_names(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(secret_names(item) for item in value))
    return set()


def _resolve(value: Any, secrets: Mapping[str, str | None], path: str, problems: list[Problem]) -> Any:
    """The document with secrets in place of their names. What cannot be resolved is a problem."""
    if isinstance(value, dict):
        if set(value) == {"$secret"}:
            name = str(value["$secret"])
            if name not in secrets:
                near = difflib.get_close_matches(name, secrets, 1)
                hint = f"headgate secrets set {name}" + (f"; or did you mean {near[0]}?" if near else "")
                problems.append(Problem(path, f"secret {name!r} does not exist", hint))
            elif secrets[name] is None:
                problems.append(
                    Problem(path, f"secret {name!r} cannot be decrypted here", "is HEADGATE_MASTER_KEY the right one?")
                )
            return secrets.get(name) or ""
        return {key: _resolve(item, secrets, f"{path}.{key}", problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, secrets, f"{path}.{index}", problems) for index, item in enumerate(value)]
    return value


# Checking.


def prepare(content: Content, secrets: Mapping[str, str | None], path: str = "") -> Prepared:
    """Check everything that can be checked without touching the outside; raise all problems at once."""
    at = f"{path}." if path else ""
    problems: list[Problem] = []
    source, source_options = _side("source", content.source, secrets, f"{at}source", problems)
    sink, sink_options = _side("sink", content.sink, secrets, f"{at}sink", problems)
    given = {key: value for key, value in content.options.items() if key not in RENAMED}
    problems += [
        Problem(f"{at}{old}", f"`{old}` is now called `{new}`", f"{new}: {content.options[old]}")
        for old, new in RENAMED.items()
        if old in content.options
    ]
    options = _model(DatasourceOptions, given, path, problems)
    mapping = None
    try:
        mapping = compile_mapping(content.mapping, f"{at}mapping")
    except ConfigError as error:
        problems += [replace(p, hint=p.hint or "docs/reference/mapping.md says how") for p in error.problems]
    if mapping is not None and sink is not None and sink_options is not None:
        assert sink.sink is not None
        if sink.sink.needs_key(sink_options) and not mapping.key:
            problems.append(Problem(f"{at}mapping.key", "is missing: this sink identifies records by key", "key: id"))
    if content.source.get("type") == PUSH:
        said, hint = "does not go with push: programs make its streams", "leave it out"
        problems += [Problem(f"{at}{name}", said, hint) for name in OF_NODES if name in content.options]
    if options is not None and options.streams > 1 and source is not None:
        problems += _not_in_parts(source, f"{at}streams")
    if problems:
        raise ConfigError(problems)
    assert source is not None
    assert sink is not None
    assert mapping is not None
    assert options is not None
    return Prepared(source, source_options, sink, sink_options, mapping, options)


def _not_in_parts(source: Connector, path: str) -> list[Problem]:
    """Why several streams cannot read this source."""
    assert source.source is not None
    if source.source.in_parts or source.name == PUSH:
        return []
    return [Problem(path, f"{source.name} cannot be read in parts: one stream reads it", "leave it out")]


def _side(
    side: str, raw: dict[str, Any], secrets: Mapping[str, str | None], path: str, problems: list[Problem]
) -> tuple[Connector | None, Any]:
    """One side's connector and options, or what is wrong with them."""
    name = raw.get("type")
    if not isinstance(name, str):
        problems.append(Problem(f"{path}.type", "is missing", "headgate connectors list"))
        return None, None
    try:
        connector = connectors.get(name)
    except HeadgateError as error:
        problems.append(Problem(f"{path}.type", error.message, error.hint))
        return None, None
    kind = connector.source if side == "source" else connector.sink
    if kind is None:
        problems.append(Problem(f"{path}.type", f"{name} is not a {side}", f"headgate connectors show {name}"))
        return None, None
    before = len(problems)
    resolved = _resolve({key: value for key, value in raw.items() if key != "type"}, secrets, path, problems)
    unresolved = {problem.path for problem in problems[before:]}
    options = _model(kind.options, resolved, path, problems, unresolved)
    if options is not None:
        problems += _written_out(options, raw, path)
    return connector, options


def _written_out(options: Any, raw: Any, path: str) -> list[Problem]:
    """Secrets that stand in the document itself, where every reader of the registry would see them."""
    if isinstance(options, SecretStr):
        if isinstance(raw, str) and not _is_public(raw):
            return [Problem(path, "must not be written out here", "headgate secrets set NAME, then {$secret: NAME}")]
        return []
    if isinstance(options, list) and isinstance(raw, list):
        pairs = [(str(index), *pair) for index, pair in enumerate(zip(options, raw, strict=False))]
    elif isinstance(options, Options) and isinstance(raw, dict):
        pairs = [(name, getattr(options, name), raw.get(name)) for name in type(options).model_fields]
    else:
        return []
    return [problem for name, one, written in pairs for problem in _written_out(one, written, f"{path}.{name}")]


def _is_public(text: str) -> bool:
    """A URL without a password says where, not how to get in."""
    return "://" in text and urlsplit(text).password is None and "password=" not in text


def _model(
    model: type[Options], raw: dict[str, Any], path: str, problems: list[Problem], skip: set[str] | None = None
) -> Any:
    """The options as a model. `skip`: paths that have a problem already."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            where = ".".join([*([path] if path else []), *map(str, item["loc"])])
            if skip and any(where == known or where.startswith(f"{known}.") for known in skip):
                continue
            problems.append(_problem(where, item, model))
        return None


def _problem(where: str, item: Any, model: type[Options]) -> Problem:
    """One of pydantic's findings, in our words. Values are left out: they may be secret."""
    name = str(item["loc"][-1]) if item["loc"] else ""
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, model.model_fields, 1)
        known = ", ".join(sorted(model.model_fields)) or "none"
        return Problem(where, "unknown option", f"did you mean {near[0]}?" if near else f"options: {known}")
    if item["type"] == "missing":
        return Problem(where, "is missing", "required")
    text = item["msg"].removeprefix("Value error, ")
    about = model.model_fields.get(str(item["loc"][0])) if item["loc"] else None
    return Problem(where, text[0].lower() + text[1:], (about.description or "") if about else "")

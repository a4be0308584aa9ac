"""A document's version, checked as a whole and made ready to run.

Checking never stops at the first mistake. Every problem has a path into the document (`datasources.orders.sink.url`)
and, where there is something to do, a hint.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from collections.abc import Mapping as TypeMapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field, StringConstraints, ValidationError, field_validator

from headgate.connectors import plugins as connectors
from headgate.connectors.api import Connector, Options, SinkKind, SourceKind, identity_of, mark_of, other_names
from headgate.connectors.guard import OPEN, Guard
from headgate.core.identity import Marks
from headgate.core.letters import StopAfter, parse_stop_after
from headgate.core.mapping.document import Mapping as CompiledMapping
from headgate.core.mapping.document import compile_mapping
from headgate.core.mapping.python import Function
from headgate.core.mapping.told import field_types
from headgate.core.push import PUSH
from headgate.core.records import OnError
from headgate.datasources import functions
from headgate.datasources.references import UNREAD, Examined, Secrets, Unread, examine, resolve
from headgate.errors import ConfigError, HeadgateError, Problem
from headgate.hidden import error_said, hide
from headgate.store.datasources import Content
from headgate.text import parse_duration

Load: TypeAlias = Callable[[str, Guard], Function]
"""Finds the function that a mapping names, if it may be reached."""

T = TypeVar("T")

STREAM = "{stream}"  # In the name of a table: one for each stream that the source names.
OF_NODES = ("streams", "assignment")  # Options about streams that nodes run.
RENAMED = {"partitions": "streams"}  # Options that had another name.
KEPT_S = (3600, 3650 * 86400)  # How long letters may be kept.


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


class DeadLetters(Options):
    """When there are too many dead letters, and how long they are kept."""

    stop_after: str = Field(
        "1000 in 10m", description="The datasource stops in error after this many in that time: 1000 in 10m, or never."
    )
    keep: str = Field("30d", description="How long a letter is kept: 12h, 30d; at least 1h, at most 3650d.")

    @field_validator("stop_after")
    @classmethod
    def _limit(cls, value: str) -> str:
        parse_stop_after(value)
        return value

    @field_validator("keep")
    @classmethod
    def _kept(cls, value: str) -> str:
        if not KEPT_S[0] <= parse_duration(value) <= KEPT_S[1]:
            raise ValueError("must be between 1h and 3650d")
        return value


Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.:/_-]{0,61}[A-Za-z0-9])?$")]


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
    on_error: OnError = Field(
        "dead_letter",
        description=(
            "What becomes of a record that cannot be mapped or written. dead_letter: it is kept, and can be replayed. "
            "skip: it is counted and discarded. fail: the stream stops and names it."
        ),
    )
    dead_letters: DeadLetters | None = Field(
        None, description="When dead letters are too many, and how long they stay."
    )
    expect: Expect | None = Field(None, description="Freshness and volume that count as healthy.")
    description: str = Field("", description="For people.")
    labels: list[Label] = Field(
        default_factory=list,
        max_length=20,
        description="Words to find it by in the console and the API: letters, digits, and . : / _ - within.",
    )


@dataclass(frozen=True, slots=True)
class SinkSide:
    """A version's sink, by itself."""

    connector: Connector
    options: Any
    guard: Guard = OPEN  # What it may reach.
    field_types: TypeMapping[str, str] = field(default_factory=dict)
    given: TypeMapping[str, Any] = field(default_factory=dict, repr=False)  # Its options as written, with secrets.

    @property
    def kind(self) -> SinkKind:
        """How to build it."""
        assert self.connector.sink is not None
        return self.connector.sink.with_options(self.options)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version that is ready to run: options checked, secrets in place, mapping compiled."""

    source: Connector
    source_options: Any
    sink: Connector
    sink_options: Any
    mapping: CompiledMapping
    options: DatasourceOptions
    source_guard: Guard = OPEN  # What each side may reach.
    sink_guard: Guard = OPEN
    field_types: TypeMapping[str, str] = field(default_factory=dict)  # Of records, as far as the mapping tells.
    # The options of each side as they are written, with secrets in their places: for another process.
    source_given: TypeMapping[str, Any] = field(default_factory=dict, repr=False)
    sink_given: TypeMapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def source_kind(self) -> SourceKind:
        """How to build the source."""
        assert self.source.source is not None
        return self.source.source

    @property
    def sink_kind(self) -> SinkKind:
        """How to build the sink."""
        return self.sink_side.kind

    @property
    def sink_side(self) -> SinkSide:
        """The sink by itself."""
        return SinkSide(self.sink, self.sink_options, self.sink_guard, self.field_types, self.sink_given)

    @property
    def splits(self) -> bool:
        """Whether the sink writes each stream that the source names apart."""
        by_stream = self.sink_kind.by_stream
        return by_stream is not None and bool(by_stream(self.sink_options))

    @property
    def stop_after(self) -> StopAfter:
        """How many dead letters are too many."""
        letters = self.options.dead_letters
        return StopAfter() if letters is None else parse_stop_after(letters.stop_after)

    @property
    def source_identity(self) -> str:
        """Which data are read."""
        return identity_of(self.source.name, self.source_options)

    @property
    def sink_identity(self) -> str:
        """Where they are written."""
        return identity_of(self.sink.name, self.sink_options)

    def source_marks(self, said: str | None = "") -> Marks:
        """What else is known of the data that are read. `said`: their own mark; None: they were not asked."""
        return _marks(self.source.name, self.source_options, said if self.source_kind.is_marked else "")

    def sink_marks(self, said: str | None = "") -> Marks:
        """The same of where they are written."""
        return _marks(self.sink.name, self.sink_options, said if self.sink_kind.is_marked else "")


def _marks(connector: str, options: Options, said: str | None) -> Marks:
    return Marks(said and mark_of(connector, options, said), other_names(connector, options))


# Checking.


@dataclass(frozen=True, slots=True)
class Checked:
    """What is known of a version. What is wrong is None, and named among the problems."""

    source: Connector | None
    source_options: Any
    sink: Connector | None
    sink_options: Any
    mapping: CompiledMapping | None
    options: DatasourceOptions | None
    problems: list[Problem]
    source_given: TypeMapping[str, Any] = field(default_factory=dict, repr=False)
    sink_given: TypeMapping[str, Any] = field(default_factory=dict, repr=False)


def prepare(
    content: Content, secrets: Secrets, path: str = "", guard: Guard | None = None, load: Load = functions.load
) -> Prepared:
    """A version that is ready to run; raise all problems at once."""
    found = check(content, secrets, path, guard, load)
    if found.problems:
        raise ConfigError(found.problems)
    assert found.source is not None
    assert found.sink is not None
    assert found.mapping is not None
    assert found.options is not None
    sides = (found.source, found.source_options, found.sink, found.sink_options)
    return Prepared(
        *sides,
        found.mapping,
        found.options,
        field_types=field_types(content.mapping),
        source_given=found.source_given,
        sink_given=found.sink_given,
    )


def sink_kind_of(content: Content) -> SinkKind | None:
    """What kind of sink a version has, without its options; None: its connector is not here, or is no sink."""
    try:
        return connectors.get(str(content.sink.get("type"))).sink
    except HeadgateError:
        return None


def prepare_sink(content: Content, secrets: Secrets) -> SinkSide:
    """The sink alone, whatever has become of the rest; raise all that is wrong with it."""
    problems: list[Problem] = []
    connector, options, given = _side("sink", content.sink, secrets, "sink", problems)
    if problems:
        raise ConfigError(problems)
    assert connector is not None
    return SinkSide(connector, options, given=given)


def check(
    content: Content, secrets: Secrets, path: str = "", guard: Guard | None = None, load: Load = functions.load
) -> Checked:
    """Check everything that can be checked without touching the outside. `guard` judges the Python module that the
    mapping names, before `load` imports it; without one there is none that may be."""
    at = f"{path}." if path else ""
    problems: list[Problem] = []
    source, source_options, source_given = _side("source", content.source, secrets, f"{at}source", problems)
    sink, sink_options, sink_given = _side("sink", content.sink, secrets, f"{at}sink", problems)
    options = _own_options(content, path, problems)
    mapping = _mapping(content, f"{at}mapping", problems, guard, load)
    splits = _splits(sink, sink_options, secrets)
    if mapping is not None and not mapping.key and not splits and _needs_key(sink, sink_options, secrets):
        problems.append(Problem(f"{at}mapping.key", "is missing: this sink identifies records by key", "key: id"))
    if mapping is not None and mapping.can_delete and not _can_delete(sink, sink_options, secrets):
        problems.append(Problem(f"{at}mapping.delete", "this sink cannot delete records", "leave it out"))
    problems += _not_split(source, sink, splits, content.sink, f"{at}sink")
    if content.source.get("type") == PUSH:
        said, hint = "does not go with push: programs make its streams", "leave it out"
        problems += [Problem(f"{at}{name}", said, hint) for name in OF_NODES if name in content.options]
    if options is not None and options.streams > 1 and source is not None:
        problems += _not_in_parts(source, f"{at}streams")
    return Checked(source, source_options, sink, sink_options, mapping, options, problems, source_given, sink_given)


def written_out(content: Content, path: str = "") -> list[Problem]:
    """The passwords and keys that stand in this document, which must not be stored."""
    return [problem for part in _examined(content, path).values() for problem in part.written_out_problems()]


def shown(content: Content) -> Content:
    """The document for people: an older one may have a password in it."""
    parts = {name: part.shown for name, part in _examined(content, "").items()}
    return replace(content, **parts)


def _examined(content: Content, path: str) -> dict[str, Examined]:
    at = f"{path}." if path else ""
    return {
        "source": examine(content.source, f"{at}source", _options_model("source", content.source)),
        "sink": examine(content.sink, f"{at}sink", _options_model("sink", content.sink)),
        "mapping": examine(content.mapping, f"{at}mapping", None, in_prose=True),
        "options": examine(content.options, path, None, in_prose=True),
    }


def _options_model(side: str, raw: dict[str, Any]) -> type[Options] | None:
    """The model of one side's options, if its connector is here."""
    try:
        connector = connectors.get(str(raw.get("type")))
    except HeadgateError:
        return None
    kind = connector.source if side == "source" else connector.sink
    return kind.model if kind is not None else None


def _own_options(content: Content, path: str, problems: list[Problem]) -> DatasourceOptions | None:
    """What a document says besides source, mapping and sink."""
    at = f"{path}." if path else ""
    found = examine(content.options, path, None, in_prose=True)
    problems += found.misplaced_problems(None) + found.written_out_problems()
    given = {key: value for key, value in content.options.items() if key not in RENAMED}
    problems += [
        Problem(f"{at}{old}", f"`{old}` is now called `{new}`", f"{new}: {content.options[old]}")
        for old, new in RENAMED.items()
        if old in content.options
    ]
    model: DatasourceOptions | None = _model(DatasourceOptions, given, path, problems, set(found.misplaced))
    return model


def _mapping(
    content: Content, path: str, problems: list[Problem], guard: Guard | None, load: Load
) -> CompiledMapping | None:
    found = examine(content.mapping, path, None, in_prose=True)
    problems += found.misplaced_problems(None) + found.written_out_problems()
    if found.misplaced:
        return None
    try:
        if guard is None:
            return compile_mapping(content.mapping, path)
        return compile_mapping(content.mapping, path, lambda name: load(name, guard))
    except ConfigError as error:
        problems += [replace(p, hint=p.hint or "docs/reference/mapping.md says how") for p in error.problems]
        return None


def _needs_key(sink: Connector | None, options: Any, secrets: Secrets) -> bool:
    return sink is not None and sink.sink is not None and _asked(sink.sink.needs_key, options, secrets, unknown=False)


def _can_delete(sink: Connector | None, options: Any, secrets: Secrets) -> bool:
    return sink is None or sink.sink is None or _asked(sink.sink.can_delete, options, secrets, unknown=True)


def _splits(sink: Connector | None, options: Any, secrets: Secrets) -> str:
    """The option that asks for each stream that the source names to be written apart; empty: none does."""
    by_stream = None if sink is None or sink.sink is None else sink.sink.by_stream
    return "" if by_stream is None else _asked(by_stream, options, secrets, unknown="")


def _not_split(
    source: Connector | None, sink: Connector | None, splits: str, given: TypeMapping[str, Any], path: str
) -> list[Problem]:
    """Why records cannot be written stream by stream, if that is asked for."""
    names = source is not None and source.source is not None and source.source.names_streams
    if splits and source is not None and not names:
        return [Problem(f"{path}.{splits}", f"has {STREAM}, and {source.name} names no streams", "name one table")]
    if sink is None or sink.sink is None or not names or STREAM not in str(given.get("table")):
        return []
    if sink.sink.by_stream is not None and sink.runs != "process":
        return []
    return [Problem(f"{path}.table", f"has {STREAM}, and {sink.name} cannot write streams apart", "name one table")]


def _asked(question: Callable[[Any], T], options: Any, secrets: Secrets, *, unknown: T) -> T:
    """What a sink says of its options; `unknown` where they are not known."""
    if options is None:
        return unknown
    try:
        return question(options)
    except (AttributeError, TypeError, ValueError):
        if not any(isinstance(value, Unread) for value in secrets.values()):
            raise
        return unknown  # Without values the options are as they were written, and not as their model makes them.


def _not_in_parts(source: Connector, path: str) -> list[Problem]:
    """Why several streams cannot read this source."""
    assert source.source is not None
    if source.source.in_parts or source.name == PUSH:
        return []
    return [Problem(path, f"{source.name} cannot be read in parts: one stream reads it", "leave it out")]


def _side(
    side: str, raw: dict[str, Any], secrets: Secrets, path: str, problems: list[Problem]
) -> tuple[Connector | None, Any, TypeMapping[str, Any]]:
    """One side's connector and options, also as they are written; or what is wrong with them."""
    name = raw.get("type")
    if not isinstance(name, str):
        problems.append(Problem(f"{path}.type", "is missing", "headgate connectors list"))
        return None, None, {}
    try:
        connector = connectors.get(name)
    except HeadgateError as error:
        problems.append(Problem(f"{path}.type", error.message, error.hint))
        return None, None, {}
    kind = connector.source if side == "source" else connector.sink
    if kind is None:
        problems.append(Problem(f"{path}.type", f"{name} is not a {side}", f"headgate connectors show {name}"))
        return None, None, {}
    return connector, *_resolved_options(kind.model, raw, secrets, path, problems)


def options_of(
    model: type[Options], raw: dict[str, Any], secrets: Secrets, path: str, problems: list[Problem]
) -> Options | None:
    """Options with secrets in the places that take one."""
    return _resolved_options(model, raw, secrets, path, problems)[0]


def _resolved_options(
    model: type[Options], raw: dict[str, Any], secrets: Secrets, path: str, problems: list[Problem]
) -> tuple[Options | None, TypeMapping[str, Any]]:
    """One side's options, with secrets in the places that take one, as a model and as they are written."""
    given = {key: value for key, value in raw.items() if key != "type"}
    found = examine(given, path, model)
    problems += found.misplaced_problems(model) + found.written_out_problems()
    resolved = resolve(given, secrets, path, found.misplaced)
    problems += resolved.problems
    before = len(problems)
    options: Options | None = _model(model, resolved.options, path, problems, resolved.unread)
    if options is None and resolved.unread and len(problems) == before:
        # All that failed is what asks for a value.
        return model.model_construct(**resolved.options), resolved.options
    return options, resolved.options


def _model(
    model: type[Options], raw: dict[str, Any], path: str, problems: list[Problem], skip: Collection[str] = ()
) -> Any:
    """The options as a model. `skip`: paths that have a problem already, or no value that could have one."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            where = ".".join([*([path] if path else []), *map(str, item["loc"])])
            if item["type"] == UNREAD or any(where == known or where.startswith(f"{known}.") for known in skip):
                continue
            problems.append(_problem(where, item, model))
        return None
    except Exception as error:  # A validator of somebody else's; without a value it may not know what to do.
        if not skip:
            problems.append(Problem(path, f"the connector cannot check these options: {error_said(error)}"))
        return None


def _problem(where: str, item: Any, model: type[Options]) -> Problem:
    """One of pydantic's findings, in our words and without values, which may be secret."""
    name = str(item["loc"][-1]) if item["loc"] else ""
    options = {info.alias or own: info for own, info in model.model_fields.items()}
    if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
        near = difflib.get_close_matches(name, options, 1)
        known = ", ".join(sorted(options)) or "none"
        return Problem(where, "unknown option", f"did you mean {near[0]}?" if near else f"options: {known}")
    if item["type"] == "extra_forbidden":
        return Problem(where, "unknown option")
    if item["type"] == "missing":
        return Problem(where, "is missing", "required")
    text = hide(item["msg"].removeprefix("Value error, "))
    about = options.get(str(item["loc"][0])) if item["loc"] else None
    return Problem(where, text[0].lower() + text[1:], (about.description or "") if about else "")

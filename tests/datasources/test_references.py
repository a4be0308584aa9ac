"""`{$secret: NAME}`: where it may stand, what nobody learns from it, and what must not be written out in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel, SecretStr, field_validator, model_validator

from headgate.connectors import plugins
from headgate.connectors.api import Connector, Options, SinkKind, SourceKind
from headgate.connectors.blackhole import Blackhole
from headgate.datasources import references
from headgate.datasources.documents import Document, content_of, read_all, write_yaml
from headgate.datasources.prepared import prepare, shown, written_out
from headgate.datasources.references import Unread, examine
from headgate.datasources.registry import Registry
from headgate.datasources.spots import secret_options
from headgate.errors import ConfigError, Problem
from headgate.hidden import hide, remember
from headgate.store.database import Database
from headgate.store.datasources import Content
from headgate.store.secrets import Keyring, Secrets, new_master_key
from headgate.store.wake import Waker

VALUE = "postgresql://u:Recognisable-hunter2@127.0.0.1/db"
HERE = {"$secret": "s"}
MISPLACED = "no secret may stand here"
SOURCE = {"type": "generator"}
SINK = {"type": "blackhole"}


class Untouched(dict[str, str]):
    """Secrets whose values must not be read."""

    def __getitem__(self, name: str) -> str:
        raise AssertionError(f"the value of {name} was read")


def content(
    source: dict[str, Any] = SOURCE, sink: dict[str, Any] = SINK, mapping: Any = None, **options: Any
) -> Content:
    return content_of(source, mapping, sink, options)


def problems_of(found: Content, secrets: Any = None) -> list[Problem]:
    try:
        prepare(found, {"s": VALUE} if secrets is None else secrets)
    except ConfigError as error:
        return error.problems
    return []


def misplaced(found: Content, secrets: Any = None) -> list[str]:
    return [problem.path for problem in problems_of(found, secrets) if problem.message == MISPLACED]


# Every option of every connector.


def places(
    schema: dict[str, Any], root: dict[str, Any], depth: int = 0
) -> Iterator[tuple[tuple[str | int, ...], bool]]:
    """Every place below a JSON Schema, with whether it is secret; and places that no schema knows."""
    if "$ref" in schema:
        schema = {**root["$defs"][schema["$ref"].rpartition("/")[2]]}
    if depth > 6:
        return
    kinds = [inner for word in ("anyOf", "oneOf", "allOf") for inner in schema.get(word, ())]
    yield (), schema.get("format") == "password"
    for kind in kinds:
        yield from places(kind, root, depth + 1)
    for name, inner in schema.get("properties", {}).items():
        yield from (((name, *path), is_secret) for path, is_secret in places(inner, root, depth + 1))
    if isinstance(schema.get("additionalProperties"), dict):
        inner = schema["additionalProperties"]
        yield from ((("any", *path), is_secret) for path, is_secret in places(inner, root, depth + 1))
    if isinstance(schema.get("items"), dict):
        yield from (((0, *path), is_secret) for path, is_secret in places(schema["items"], root, depth + 1))


def nested(path: tuple[str | int, ...], value: Any) -> Any:
    for step in reversed(path):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def every_place() -> Iterator[Any]:
    for connector in plugins.all():
        for side, kind in (("source", connector.source), ("sink", connector.sink)):
            if kind is None:
                continue
            schema = kind.model.model_json_schema()
            found: dict[tuple[str | int, ...], bool] = {}
            for path, is_secret in places(schema, schema):
                found[path] = found.get(path, False) or is_secret
            for path, is_secret in list(found.items()):
                is_any = found.get((*path, "any"), False)  # Whatever its names are, the values are secret.
                found |= {
                    (*path, step): is_any and step == "unknown"
                    for step in ("unknown", 0)
                    if (*path, step) not in found and not is_secret
                }
            del found[()]
            found = {path: is_secret for path, is_secret in found.items() if isinstance(path[0], str)}
            for path, is_secret in found.items():
                name = ".".join(map(str, path))
                yield pytest.param(side, connector.name, path, is_secret, id=f"{connector.name}-{side}-{name}")


@pytest.mark.parametrize(("side", "connector", "path", "is_secret"), list(every_place()))
def test_a_secret_may_stand_where_an_option_is_secret_and_nowhere_else(
    side: str, connector: str, path: tuple[str | int, ...], is_secret: bool
) -> None:
    """Made from the option models: another option, or another connector, is looked at too."""
    found = content(**{side: {"type": connector, **nested(path, HERE)}})
    at = ".".join([side, *map(str, path)])
    assert misplaced(found, None if is_secret else Untouched(s="")) == ([] if is_secret else [at])
    assert "Recognisable" not in str(problems_of(found))


def test_options_that_are_secret_are_there_to_be_found() -> None:
    """The walk above would say nothing if the models had none."""
    found = {one.id: one.values[3] for one in every_place()}
    assert found["postgres-sink-url"]
    assert found["webhook-source-signature.secret"]
    assert found["webhook-source-signature.secret.0"]
    assert not found["generator-source-fields.any"]
    assert not found["generator-source-fields.any.0"]
    assert not found["files-source-path"]
    assert not found["postgres-sink-table"]


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"source": {"type": HERE}}, "source.type"),
        ({"source": {"type": "generator", "fields": {"a": [HERE]}}}, "source.fields.a.0"),
        ({"source": {"type": "generator", "fields": {"a": [[{"b": HERE}]]}}}, "source.fields.a.0.0.b"),
        ({"mapping": {"set": {"a": HERE}}}, "mapping.set.a"),
        ({"mapping": {"where": HERE}}, "mapping.where"),
        ({"mapping": {"key": [HERE]}}, "mapping.key.0"),
        ({"mapping": HERE}, "mapping"),
        ({"description": HERE}, "description"),
        ({"streams": HERE}, "streams"),
        ({"expect": HERE}, "expect"),
        ({"expect": {"fresh_within": HERE}}, "expect.fresh_within"),
        ({"anything": {"else": [HERE]}}, "anything.else.0"),
        ({"backfill": {"from": HERE}}, "backfill.from"),
    ],
)
def test_what_is_no_option_of_a_connector_takes_no_secret(parts: dict[str, Any], path: str) -> None:
    found = content(**parts)
    assert path in [problem.path for problem in problems_of(found, Untouched(s=""))]
    if path != "source.type":
        assert misplaced(found, Untouched(s="")) == [path]


def test_the_hint_names_the_options_that_take_a_secret() -> None:
    sink = {"type": "postgres", "url": HERE, "table": HERE}
    (problem,) = problems_of(content(sink=sink))
    assert problem == Problem("sink.table", MISPLACED, "only these options take one: url")
    (problem,) = problems_of(content({"type": "files", "path": HERE}))
    assert problem.hint == "no option of this connector takes one"


def test_a_reference_stands_alone() -> None:
    with pytest.raises(ConfigError, match="must stand alone"):
        read_all({"datasources": {"a": {"source": {**SOURCE, "fields": {**HERE, "x": 1}}, "sink": SINK}}})


# Models of all kinds.


class Inner(Options):
    key: SecretStr | None = None
    name: str = ""


class ByKey(Options):
    kind: Literal["key"]
    value: SecretStr


class ByName(Options):
    kind: Literal["name"]
    value: str


class Wrapped(RootModel[SecretStr | None]):
    pass


class NastyOptions(Options):
    """Secrets in every way that a model can have them."""

    plain: SecretStr | None = None
    annotated: Annotated[SecretStr | None, Field(description="x")] = None
    listed: list[SecretStr] = Field([])
    pair: tuple[SecretStr, str] | None = None
    endless: tuple[SecretStr, ...] = ()
    by_name: dict[str, SecretStr] = Field({})
    deep: dict[str, list[Inner]] = Field({})
    inner: Inner | None = None
    either: Annotated[ByKey | ByName, Field(discriminator="kind")] | None = None
    open: Any = None
    objects: dict[str, Any] = Field({})
    other_name: SecretStr | None = Field(None, alias="otherName")
    wrapped: Wrapped | None = None
    mode: Literal["none"] | SecretStr = "none"

    @field_validator("plain")
    @classmethod
    def _tells(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and value.get_secret_value().startswith("bad"):
            raise ValueError(f"{value.get_secret_value()} is not good")
        return value

    @field_validator("annotated", mode="before")
    @classmethod
    def _fails(cls, value: Any) -> Any:
        if isinstance(value, SecretStr) and value.get_secret_value().startswith("bug"):
            raise KeyError(value.get_secret_value())
        return value

    @model_validator(mode="after")
    def _tells_too(self) -> NastyOptions:
        if self.inner is not None and self.inner.key is not None and self.inner.key.get_secret_value() == VALUE:
            raise ValueError(f"not with {VALUE}")
        return self


@pytest.fixture
def nasty(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(options: Any, context: Any) -> Any:
        raise NotImplementedError

    connector = Connector(
        "nasty",
        "Has secrets everywhere",
        source=SourceKind(NastyOptions, nothing),
        sink=SinkKind(NastyOptions, Blackhole, needs_key=lambda options: options.mode == "none"),
    )
    real = plugins.get
    monkeypatch.setattr(plugins, "get", lambda name: connector if name == "nasty" else real(name))


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"plain": HERE}, []),
        ({"annotated": HERE}, []),
        ({"listed": [HERE, HERE]}, []),
        ({"listed": HERE}, ["listed"]),
        ({"pair": [HERE, "x"]}, []),
        ({"pair": ["x", HERE]}, ["pair.1"]),
        ({"endless": [HERE, HERE, HERE]}, []),
        ({"by_name": {"a": HERE}}, []),
        ({"by_name": {"a": [HERE]}}, ["by_name.a.0"]),
        ({"deep": {"a": [{"key": HERE}]}}, []),
        ({"deep": {"a": [{"name": HERE}, {"key": HERE}]}}, ["deep.a.0.name"]),
        ({"inner": {"name": HERE}}, ["inner.name"]),
        ({"either": {"kind": "key", "value": HERE}}, []),
        ({"either": {"kind": "name", "value": HERE}}, ["either.value"]),
        ({"either": {"kind": HERE, "value": "x"}}, ["either.kind"]),
        ({"open": HERE}, ["open"]),
        ({"open": {"key": HERE}}, ["open.key"]),
        ({"open": [HERE]}, ["open.0"]),
        ({"objects": {"a": HERE}}, ["objects.a"]),
        ({"otherName": HERE}, []),
        ({"wrapped": HERE}, []),
        ({"mode": HERE}, []),
    ],
)
def test_models_inside_models_are_judged_by_their_own_types(
    nasty: None, options: dict[str, Any], refused: list[str]
) -> None:
    found = content({"type": "nasty", **options})
    assert misplaced(found) == [f"source.{path}" for path in refused]
    assert problems_of(found) == [] or refused
    if not refused:
        made = prepare(found, {"s": VALUE}).source_options
        assert "Recognisable" not in repr(made) + str(made) + made.model_dump_json()


def test_the_options_that_take_a_secret_are_named_by_their_paths() -> None:
    assert secret_options(NastyOptions) == [
        "plain",
        "annotated",
        "listed",
        "pair",
        "endless",
        "by_name",
        "deep.key",
        "inner.key",
        "either.value",
        "other_name",
        "otherName",
        "wrapped",
        "mode",
    ]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"plain": "hunter2"}, "plain"),
        ({"plain": 12345}, "plain"),
        ({"listed": ["hunter2"]}, "listed.0"),
        ({"by_name": {"a": "hunter2"}}, "by_name.a"),
        ({"deep": {"a": [{"key": "hunter2"}]}}, "deep.a.0.key"),
        ({"inner": {"key": "hunter2"}}, "inner.key"),
        ({"either": {"kind": "key", "value": "hunter2"}}, "either.value"),
        ({"otherName": "hunter2"}, "otherName"),
        ({"mode": "hunter2"}, "mode"),
        ({"open": "https://h/?token=hunter2"}, "open"),
        ({"open": {"a": ["host=h password=hunter2"]}}, "open.a.0"),
        ({"objects": {"postgresql://u:hunter2@h": 1}}, "objects.postgresql://u:***@h"),
        ({"inner": {"name": "postgresql://h/?pass%77ord=hunter2"}}, "inner.name"),
    ],
)
def test_a_secret_that_is_written_out_is_refused_and_hidden(nasty: None, options: dict[str, Any], path: str) -> None:
    found = content({"type": "nasty", **options})
    assert [problem.path for problem in written_out(found)] == [f"source.{path}"]
    assert [one.path for one in problems_of(found) if "written out" in one.message] == [f"source.{path}"]
    text = write_yaml([Document("a", True, found)])
    assert "hunter2" not in text
    assert "12345" not in text
    assert "***" in text


@pytest.mark.parametrize(
    "options",
    [{"mode": "none"}, {"either": {"kind": "name", "value": "x"}}, {"plain": "postgresql://h/db"}, {"open": 1}],
)
def test_what_is_no_secret_may_be_written(nasty: None, options: dict[str, Any]) -> None:
    found = content({"type": "nasty", **options})
    assert written_out(found) == []
    assert shown(found) == found


@pytest.mark.parametrize(
    "parts",
    [
        {"source": {"type": "files", "path": "https://u:hunter2@h/x"}},
        {"sink": {"type": "postgres", "url": "postgresql://h/db?PASSWORD=hunter2", "table": "t"}},
        {"sink": {"type": "postgres", "url": "postgresql://h/db?pass%77ord=hunter2", "table": "t"}},
        {"sink": {"type": "postgres", "url": "postgresql://u%3Ahunter2@h/db", "table": "t"}},
        {"sink": {"type": "postgres", "url": "postgresql://h/db?sslpassword=hunter2", "table": "t"}},
        {"sink": {"type": "postgres", "url": "postgresql://u:hunter2@h1,h2/db", "table": "t"}},
        {"sink": {"type": "postgres", "url": {"postgresql": "hunter2"}, "table": "t"}},
        {"sink": {"type": "postgres", "url": ["hunter2"], "table": "t"}},
        {"source": {"type": "webhook", "signature": {"secret": "hunter2"}}},
        {"source": {"type": "webhook", "signature": {"secret": [HERE, "hunter2"]}}},
        {"source": {"type": "no-such-connector", "url": "amqp://u:hunter2@h"}},
        {"mapping": {"set": {"a": "'https://u:hunter2@h'"}}},
        {"description": "like postgresql://u:hunter2@h/db"},
        {"anything": {"else": ["redis://:hunter2@h"]}},
    ],
)
def test_a_password_is_found_and_hidden_wherever_it_stands_in_a_document(parts: dict[str, Any]) -> None:
    found = content(**parts)
    assert problems_of(found)
    assert "hunter2" not in str(problems_of(found))
    assert "hunter2" not in str(shown(found))


# Values.


def test_a_model_that_says_a_value_is_not_repeated(nasty: None) -> None:
    """A secret that was read is remembered; the problem has `***` in its place."""
    value = "bad-Quixotic-4711"
    assert hide(value) == value, "another test has remembered it"
    remember(value)
    (problem,) = problems_of(content({"type": "nasty", "plain": HERE}), {"s": value})
    assert problem == Problem("source.plain", "*** is not good")


def test_a_model_that_fails_by_a_bug_is_a_problem_without_the_value(nasty: None) -> None:
    remember("bug-Recognisable-hunter2")
    found = content({"type": "nasty", "annotated": HERE})
    (problem,) = problems_of(found, {"s": "bug-Recognisable-hunter2"})
    assert problem == Problem("source", "the connector cannot check these options: KeyError: '***'")
    assert problems_of(found, {"s": Unread()}) == []


@pytest.mark.parametrize("options", [{"plain": HERE}, {"inner": {"key": HERE}}, {"plain": HERE, "open": 1}])
def test_what_needs_a_value_is_not_judged_when_values_are_not_read(nasty: None, options: dict[str, Any]) -> None:
    found = content({"type": "nasty", **options}, {"type": "nasty", **options})
    (problem,) = problems_of(found, {"s": Unread()})
    assert problem.path == "mapping.key"  # All that the document itself says is judged.
    (problem,) = problems_of(content({"type": "nasty", **options, "pair": 5}), {"s": Unread()})
    assert problem.path == "source.pair"


def test_a_secret_that_is_not_read_shows_nothing() -> None:
    for ask in (Unread.get_secret_value, len, hash):
        with pytest.raises(ValueError, match="not read"):
            ask(Unread())
    assert str(Unread()) == ""


# In the registry.


@pytest.fixture
async def registry(database: Database) -> AsyncIterator[Registry]:
    waker = Waker(database)
    yield Registry(database, Secrets(database, Keyring.load(new_master_key(), None)), waker)
    await waker.close()


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"source": {"type": "generator", "fields": {"a": [HERE]}}}, "source.fields.a.0"),
        ({"source": {"type": "files", "path": HERE}}, "source.path"),
        ({"mapping": {"set": {"a": HERE}}}, "mapping.set.a"),
    ],
)
async def test_a_version_that_was_published_before_is_refused_when_it_is_to_run(
    registry: Registry, parts: dict[str, Any], path: str
) -> None:
    await registry.set_secret("s", VALUE, "a test")
    async with registry.datasources.change("a test") as change:
        created = await change.create("orders", True)
        number = await change.publish_content(created.id, content(**parts), "a test")
    with pytest.raises(ConfigError) as caught:
        await registry.get_datasource_config(created.id, number)
    assert [(problem.path, problem.message) for problem in caught.value.problems] == [(path, MISPLACED)]
    with pytest.raises(ConfigError, match=MISPLACED):
        await registry.rollback("orders", number, "a test", is_admin=True)


async def test_a_draft_with_a_password_is_not_stored(registry: Registry, database: Database) -> None:
    bad = Document(
        "orders", True, content(sink={"type": "postgres", "url": "postgresql://u:hunter2@h/d", "table": "t"})
    )
    with pytest.raises(ConfigError, match="must not be written out"):
        await registry.create(bad, "a test")
    await registry.create(Document("orders", True, content()), "a test")
    with pytest.raises(ConfigError, match="must not be written out"):
        await registry.put_draft("orders", bad.content, "a test")
    assert "hunter2" not in str(await database.fetch("SELECT * FROM headgate.datasource_version"))


@pytest.mark.parametrize("value", [VALUE, "mysql://x", "", "x" * 5000, "postgresql://h:notaport/d"])
async def test_without_reading_secrets_all_values_are_judged_alike(registry: Registry, value: str) -> None:
    await registry.set_secret("s", value, "a test")
    found = content(sink={"type": "postgres", "url": HERE, "table": "t", "mode": "upsert"})
    problems = await registry.problems(found, reads_secrets=False, is_admin=True)
    assert [problem.path for problem in problems] == ["mapping.key"]
    documents = {"orders": Document("orders", True, content(sink={"type": "postgres", "url": HERE, "table": "t"}))}
    (planned,) = await registry.plan(documents, reads_secrets=False, is_admin=True)
    assert planned.action == "create"
    absent = content(sink={"type": "postgres", "url": {"$secret": "absent"}, "table": "t"})
    (problem,) = await registry.problems(absent, reads_secrets=False, is_admin=True)
    assert "does not exist" in problem.message


def test_a_model_that_is_no_options_model_is_walked_too() -> None:
    class Plain(BaseModel):
        key: SecretStr

    assert examine({"key": HERE, "x": HERE}, "a", Plain).misplaced == ["a.x"]


def test_a_near_name_is_told_only_to_those_who_may_read_secrets() -> None:
    raw = {"url": {"$secret": "warehous"}}
    (told,) = references.resolve(raw, {"warehouse": "postgresql://x"}, "sink", []).problems
    (untold,) = references.resolve(raw, {"warehouse": references.Unread()}, "sink", []).problems
    assert "did you mean warehouse?" in told.hint
    assert untold.hint == "headgate secrets set warehous"

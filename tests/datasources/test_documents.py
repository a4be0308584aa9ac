"""Datasource documents: what is exported is what was written, and what is wrong is said with its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors import plugins
from headgate.connectors.api import Options
from headgate.core.letters import StopAfter
from headgate.datasources.documents import (
    MOST_PROBLEMS,
    Document,
    content_of,
    read_all,
    read_yaml,
    write_yaml,
)
from headgate.datasources.prepared import check, prepare
from headgate.datasources.references import Unread
from headgate.errors import ConfigError, Problem
from headgate.store.database import Database
from headgate.store.datasources import Datasources
from headgate.text import parse_duration

SOURCE = {"type": "generator", "rate": 1}
SINK = {"type": "blackhole"}


def problems_of(text: str, file: str = "orders.yaml") -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        read_yaml(text, file)
    return caught.value.problems


def with_option(text: str) -> str:
    return f"datasources:\n  orders:\n    source: {{type: generator, {text}}}\n    sink: {{type: blackhole}}\n"


def problems_with(content: dict[str, Any], secrets: dict[str, str | None] | None = None) -> dict[str, Problem]:
    document = read_all({"datasources": {"orders": content}})["orders"]
    with pytest.raises(ConfigError) as caught:
        prepare(document.content, secrets or {}, "datasources.orders")
    return {problem.path: problem for problem in caught.value.problems}


# There and back.

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
DATES_AND_NUMBERS = ["2024-01-01", "2024-01-01T12:00:00Z", "12:30:00", "1_000", "0x1f", "1e3", ".inf"]
WORDS_AND_SIGNS = ["yes", "NO", "null", "~", "", "=", "<<", "- a", "a: b", "#x", "'", '"', "\\", "\t", " x ", "😀"]
BREAKS = ["\n\n", "\r", "\u2028", "\x85", "\ufeff"]
tricky = st.sampled_from(DATES_AND_NUMBERS + WORDS_AND_SIGNS + BREAKS)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64) | words | tricky
scalars |= st.floats(allow_nan=False, allow_infinity=False)
keys = (words | tricky).filter(lambda key: key != "$secret")  # What follows that must be a name.
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
parts = st.dictionaries(keys, values, max_size=4)
options = parts.map(lambda found: {k: v for k, v in found.items() if k not in ("enabled", "source", "mapping", "sink")})
names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,12}", fullmatch=True)


@st.composite
def documents(draw: Any) -> Document:
    content = content_of(draw(parts), draw(st.none() | parts), draw(parts), draw(options))
    return Document(draw(names), draw(st.booleans()), content)


def in_order(value: Any) -> Any:
    """A form in which the order of keys counts, and 1, 1.0 and true are three things."""
    if isinstance(value, dict):
        return [(key, in_order(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [in_order(item) for item in value]
    return type(value).__name__, repr(value)


@given(documents())
@settings(max_examples=100, deadline=None)
def test_what_is_exported_is_read_back_as_it_was_written(document: Document) -> None:
    """Order of keys, unicode, text that looks like a date or a number, and numbers."""
    (found,) = read_yaml(write_yaml([document])).values()
    assert (found.name, found.enabled, found.content.hash) == (document.name, document.enabled, document.content.hash)
    assert in_order(found.plain()) == in_order(document.plain())


async def test_the_database_gives_back_a_document_as_it_was_written(database: Database) -> None:
    strange = {"z": 1, "a": {"β": "2024-01-01", "\n": [1.0, 1, True, None, 2**64, "\u2028", "😀"], "": -0.0}}
    content = content_of({"type": "generator", **strange}, {"set": strange}, SINK, {"expect": strange})
    datasources = Datasources(database)
    async with datasources.change("a test") as change:
        created = await change.create("orders", True)
        await change.publish_content(created.id, content, "a test", is_trusted=False)
    stored = (await datasources.published())[created.id].content
    assert in_order(Document("orders", True, stored).plain()) == in_order(Document("orders", True, content).plain())
    assert stored == content


def test_dates_stay_text() -> None:
    source = read_yaml(with_option("since: 2024-01-01, at: 2024-01-01T10:00:00Z"))["orders"].content.source
    assert source == {"type": "generator", "since": "2024-01-01", "at": "2024-01-01T10:00:00Z"}


def test_the_order_of_keys_does_not_make_another_version() -> None:
    one = read_yaml(with_option("a: 1, b: {c: 2, d: 3}"))["orders"].content
    other = read_yaml(with_option("b: {d: 3, c: 2}, a: 1"))["orders"].content
    assert one.hash == other.hash


def test_merge_keys_and_anchors_may_be_used() -> None:
    text = "datasources:\n  a: &a {source: {type: generator}, sink: {type: blackhole}}\n"
    text += "  b: &b {<<: *a, sink: {type: stdout}}\n  c: {<<: *b, enabled: false}\n"
    found = read_yaml(text)
    assert [document.content.sink["type"] for document in found.values()] == ["blackhole", "stdout", "stdout"]
    assert not found["c"].enabled


# What is wrong with a file.


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("datasources:\n  orders: {source: {type: generator\n", "orders.yaml:3:1"),
        ("datasources:\n\torders: {}\n", "orders.yaml:2:1"),
        ("datasources:\n  orders: [\n  }\n", "orders.yaml:3:3"),
        ("datasources: *nowhere\n", "orders.yaml:1:14"),
        ("datasources: !!python/object:os.system {}\n", "orders.yaml:1:14"),
        ("a: 1\n---\nb: 2\n", "orders.yaml:2:1"),
        ("datasources:\n  orders: {? [a] : b}\n", "orders.yaml:2:14"),
    ],
)
def test_broken_yaml_is_reported_with_file_line_and_column(text: str, place: str) -> None:
    (problem,) = problems_of(text)
    assert problem.path == place
    assert problem.message


def test_a_key_that_is_there_twice_is_reported_where_it_is_there_again() -> None:
    text = "datasources:\n  orders: {source: {type: generator}, sink: {type: blackhole}}\n  orders: {}\n"
    (problem,) = problems_of(text)
    assert problem == Problem("orders.yaml:3:3", "the key 'orders' appears twice")
    assert "twice" in problems_of(with_option("rate: 1, rate: 2"))[0].message


@pytest.mark.parametrize("text", ["\0", "\x07", "datasources: \ud800"])
def test_characters_that_yaml_does_not_know_are_a_problem_of_the_file(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.path == "orders.yaml"


@pytest.mark.parametrize("text", ["", "5", "[]", "orders: {}", "datasources:", "datasources: [1]", "datasources: x"])
def test_a_file_without_datasources_says_so(text: str) -> None:
    assert "`datasources` is missing" in problems_of(text)[0].message


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("x: .inf", "datasources.orders.source.x"),
        ("x: [1, .nan]", "datasources.orders.source.x.1"),
        ("x: !!timestamp 2024-01-01", "datasources.orders.source.x"),
        ("x: !!binary aGk=", "datasources.orders.source.x"),
        ("x: !!set {a}", "datasources.orders.source.x"),
        ('x: "\\ud800"', "datasources.orders.source.x"),
        ("1: x", "datasources.orders.source.1"),
        ("on: x", "datasources.orders.source.True"),
        ("~: x", "datasources.orders.source.None"),
        ('x: {$secret: "\\0"}', "datasources.orders.source.x.$secret"),
        ("x: {$secret: [1]}", "datasources.orders.source.x.$secret"),
    ],
)
def test_what_json_has_no_word_for_is_a_problem_and_not_changed_in_silence(text: str, path: str) -> None:
    assert [problem.path.partition(": ")[2] for problem in problems_of(with_option(text))] == [path]


@pytest.mark.parametrize("text", ["x: !!int abc", "x: !!float abc", "x: !!bool abc", 'x: !!int ""', "!!bool z: 1"])
def test_a_value_that_does_not_fit_its_tag_is_a_problem_of_the_file(text: str) -> None:
    assert problems_of(with_option(text))[0].path == "orders.yaml"


@pytest.mark.parametrize("text", ["x: &a [*a]", "x: &a {a: *a}", "x: " + "[" * 200 + "]" * 200, "x: " + "[" * 2000])
def test_a_document_without_end_or_without_measure_is_a_problem(text: str) -> None:
    assert problems_of(with_option(text))


def test_a_few_lines_of_merged_mappings_cannot_stand_for_billions_of_values() -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"] + [
        f"a{level}: &a{level} {{<<: [*a{level - 1}, *a{level - 1}]}}" for level in range(1, 40)
    ]
    (problem,) = problems_of("\n".join(lines))
    assert problem.message == "aliases stand for too many values"


def test_many_datasources_that_are_one_alias_cannot_stand_for_billions_of_values() -> None:
    large = "{source: {type: generator, fields: [" + "1, " * 20_000 + "1]}, sink: {type: blackhole}}"
    lines = ["datasources:", f"  a: &a {large}", *(f"  a{number}: *a" for number in range(5_000))]
    (problem,) = problems_of("\n".join(lines))
    assert problem.message == "aliases stand for too many values"


def test_merged_mappings_are_taken_as_they_always_were() -> None:
    text = """
datasources:
  a: &a {source: &s {type: generator, rate: 1}, sink: {type: blackhole}}
  b: {<<: *a, source: {<<: [*s], rate: 2}}
"""
    assert read_yaml(text)["b"].content.source == {"type": "generator", "rate": 2}


def test_a_whole_number_of_thousands_of_digits_is_a_problem_of_the_document() -> None:
    (problem,) = problems_of(f"datasources: {{a: {{source: {{type: generator, rate: 0x{'f' * 6000}}}, sink: {{}}}}}}")
    assert (problem.path, problem.message) == (
        "orders.yaml:1:45: datasources.a.source.rate",
        "must be a number of at most 1024 bits",
    )


@pytest.mark.parametrize(
    "part",
    [{"description": "a\0b"}, {"source": {**SOURCE, "a\0b": 1}}, {"mapping": {"set": {"a": ["\0"]}}}],
)
def test_a_zero_byte_is_a_problem_because_postgresql_could_not_read_what_it_was_given(part: dict[str, Any]) -> None:
    """One in any published document ended every tick of every node, and with it all grants of streams."""
    with pytest.raises(ConfigError) as raised:
        read_all({"datasources": {"orders": {"source": SOURCE, "sink": SINK, **part}}})
    assert [problem.hint for problem in raised.value.problems] == ["quote it; no zero bytes"]


def test_of_many_problems_the_first_are_told() -> None:
    with pytest.raises(ConfigError) as raised:
        read_all({"datasources": {f"d{number}": 1 for number in range(MOST_PROBLEMS + 5)}})
    assert len(raised.value.problems) == MOST_PROBLEMS


def test_a_few_lines_of_aliases_cannot_stand_for_billions_of_values() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    (problem,) = problems_of(with_option(", ".join(lines)))
    assert problem.message == "aliases stand for too many values"


def test_every_datasource_of_a_file_is_looked_at_before_it_is_refused() -> None:
    text = "datasources:\n  A: {}\n  b: 5\n  c: {source: x, sink: {}, mapping: [], enabled: 1}\nmore: 1\n"
    paths = [problem.path for problem in problems_of(text)]
    assert paths == [
        "orders.yaml:2:3: datasources.A",
        "orders.yaml:2:3: datasources.A.source",
        "orders.yaml:2:3: datasources.A.sink",
        "orders.yaml:3:3: datasources.b",
        "orders.yaml:4:7: datasources.c.source",
        "orders.yaml:4:28: datasources.c.mapping",
        "orders.yaml:4:41: datasources.c.enabled",
        "orders.yaml:5:1: more",
    ]


@pytest.mark.parametrize("name", ["", "A", "a b", "é", "-a", "a/b", "..", "a" * 101, 5, True, None, "a\n"])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="is not a name"):
        read_all({"datasources": {name: {"source": SOURCE, "sink": SINK}}})


# What is wrong with what it says.


def test_all_problems_are_found_at_once_each_with_its_place_and_a_hint() -> None:
    found = problems_with(
        {
            "source": {"type": "generator", "rte": 5, "batch": "many"},
            "sink": {"type": "postgres", "url": {"$secret": "warehouse"}, "mode": "upsert"},
            "mapping": {"set": {"id": "lower("}},
            "expect": {"fresh_within": "soon"},
            "streams": 0,
        }
    )
    assert found["datasources.orders.source.rte"].hint == "did you mean rate?"
    assert "headgate secrets set warehouse" in found["datasources.orders.sink.url"].hint
    assert found["datasources.orders.sink.table"] == Problem("datasources.orders.sink.table", "is missing", "required")
    expected = {"source.rte", "source.batch", "sink.url", "sink.table", "mapping.set.id"}
    expected |= {"expect.fresh_within", "streams"}
    assert {f"datasources.orders.{path}" for path in expected} == set(found)


@pytest.mark.parametrize("streams", [0, 1001, 2.0, "2", True, None])
def test_the_number_of_streams_is_a_whole_number_up_to_a_thousand(streams: Any) -> None:
    found = problems_with({"source": SOURCE, "sink": SINK, "streams": streams})
    assert set(found) == {"datasources.orders.streams"}
    assert found["datasources.orders.streams"].hint


def test_several_streams_need_a_source_that_can_be_read_in_parts() -> None:
    parted = {"source": {"type": "generator", "parts": 8}, "sink": SINK, "streams": 1000}
    assert prepare(read_all({"datasources": {"orders": parted}})["orders"].content, {}).options.streams == 1000
    whole = {**parted, "source": {"type": "files", "path": "/data/*.jsonl"}}
    found = problems_with({**whole, "streams": 2})
    assert found["datasources.orders.streams"].message == "files cannot be read in parts: one stream reads it"
    assert found["datasources.orders.streams"].hint == "leave it out"
    prepare(read_all({"datasources": {"orders": {**whole, "streams": 1}}})["orders"].content, {})


def test_an_option_that_had_another_name_is_refused_with_the_new_one() -> None:
    found = problems_with({"source": {"type": "generator", "parts": 8}, "sink": SINK, "partitions": 4})
    problem = Problem("datasources.orders.partitions", "`partitions` is now called `streams`", "streams: 4")
    assert found == {"datasources.orders.partitions": problem}


def test_an_unknown_connector_is_named_with_those_that_are_meant() -> None:
    found = problems_with({"source": {"type": "genrator"}, "sink": {"type": "webhook"}})
    assert "generator" in found["datasources.orders.source.type"].hint
    assert found["datasources.orders.sink.type"].message == "webhook is not a sink"
    assert found["datasources.orders.sink.type"].hint == "headgate connectors show webhook"


def test_a_sink_that_needs_a_key_asks_for_one() -> None:
    sink = {"type": "postgres", "url": "postgresql://x/y", "table": "t", "mode": "upsert"}
    assert problems_with({"source": SOURCE, "sink": sink})["datasources.orders.mapping.key"].hint == "key: id"


def test_a_table_for_each_stream_needs_a_source_that_names_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = {"type": "postgres", "url": "postgresql://x/y", "table": "raw.{stream}", "mode": "upsert"}
    found = problems_with({"source": SOURCE, "sink": sink})
    hint = "name one table"
    said = f"has {{stream}}, and {SOURCE['type']} names no streams"
    assert found == {"datasources.orders.sink.table": Problem("datasources.orders.sink.table", said, hint)}
    monkeypatch.setattr("headgate.connectors.bridges.installed._home", None)
    tap = {"type": "singer", "tap": "tap-test"}
    document = read_all({"datasources": {"orders": {"source": tap, "sink": sink}}})["orders"]
    assert prepare(document.content, {}).splits  # No key: each stream has its own.
    assert not prepare(replace(document.content, sink={**sink, "table": "t"}, mapping={"key": "id"}), {}).splits
    secret = {**document.content.sink, "url": {"$secret": "warehouse"}}
    assert check(replace(document.content, sink=secret), {"warehouse": Unread()}).problems == []
    blackhole = plugins.get("blackhole")
    assert blackhole.sink is not None
    other = replace(blackhole, sink=replace(blackhole.sink, options=_WithTable))
    real = plugins.get
    monkeypatch.setattr(plugins, "get", lambda name: other if name == "blackhole" else real(name))
    found = problems_with({"source": tap, "sink": {"type": "blackhole", "table": "{stream}"}})
    assert found["datasources.orders.sink.table"].message == "has {stream}, and blackhole cannot write streams apart"


class _WithTable(Options):
    table: str


def test_a_sink_that_cannot_delete_refuses_a_mapping_that_asks_it_to(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"source": SOURCE, "sink": SINK, "mapping": {"delete": "gone", "key": "id"}}
    assert problems_with(content)["datasources.orders.mapping.delete"].message == "this sink cannot delete records"
    blackhole = plugins.get("blackhole")
    assert blackhole.sink is not None
    willing = replace(blackhole, sink=replace(blackhole.sink, can_delete=lambda options: True))
    monkeypatch.setattr(plugins, "get", lambda name: willing if name == "blackhole" else get(name))
    prepare(read_all({"datasources": {"orders": content}})["orders"].content, {})


get = plugins.get


def test_a_mapping_says_where_on_error_stands_now() -> None:
    found = problems_with({"source": SOURCE, "sink": SINK, "mapping": {"on_error": "skip"}})
    assert "at the top of the document" in found["datasources.orders.mapping.on_error"].message
    assert found["datasources.orders.mapping.on_error"].hint.startswith("on_error: skip")


@pytest.mark.parametrize(
    ("letters", "rule", "keep"),
    [
        ({}, StopAfter(1000, 600.0), "30d"),
        ({"stop_after": "5 in 30s", "keep": "1h"}, StopAfter(5, 30.0), "1h"),
        ({"stop_after": "never", "keep": "3650d"}, StopAfter(None), "3650d"),
    ],
)
def test_a_document_says_when_dead_letters_are_too_many_and_how_long_they_stay(
    letters: dict[str, str], rule: StopAfter, keep: str
) -> None:
    content = {"source": SOURCE, "sink": SINK, "on_error": "skip", "dead_letters": letters}
    prepared = prepare(read_all({"datasources": {"orders": content}})["orders"].content, {})
    assert prepared.options.on_error == "skip"
    assert prepared.options.dead_letters is not None
    assert (prepared.stop_after, prepared.options.dead_letters.keep) == (rule, keep)


@pytest.mark.parametrize(
    ("letters", "path"),
    [
        ({"stop_after": "many"}, "dead_letters.stop_after"),
        ({"stop_after": "0 in 10m"}, "dead_letters.stop_after"),
        ({"stop_after": "10 in soon"}, "dead_letters.stop_after"),
        ({"stop_after": "10 in 8d"}, "dead_letters.stop_after"),
        ({"stop_after": 1000}, "dead_letters.stop_after"),
        ({"keep": "59m"}, "dead_letters.keep"),
        ({"keep": "3651d"}, "dead_letters.keep"),
        ({"keep": "ever"}, "dead_letters.keep"),
        ({"kep": "1d"}, "dead_letters.kep"),
    ],
)
def test_what_is_said_of_dead_letters_is_checked(letters: dict[str, Any], path: str) -> None:
    assert set(problems_with({"source": SOURCE, "sink": SINK, "dead_letters": letters})) == {
        f"datasources.orders.{path}"
    }
    assert set(problems_with({"source": SOURCE, "sink": SINK, "on_error": "stop"})) == {"datasources.orders.on_error"}


def test_a_secret_that_cannot_be_decrypted_is_told_from_one_that_is_not_there() -> None:
    sink = {"type": "postgres", "url": {"$secret": "warehouse"}, "table": "t"}
    absent = problems_with({"source": SOURCE, "sink": sink}, {})["datasources.orders.sink.url"]
    sealed = problems_with({"source": SOURCE, "sink": sink}, {"warehouse": None})["datasources.orders.sink.url"]
    assert "does not exist" in absent.message
    assert "cannot be decrypted" in sealed.message
    assert "HEADGATE_MASTER_KEY" in sealed.hint


def test_a_problem_never_shows_the_value_of_a_secret() -> None:
    sink = {"type": "postgres", "url": {"$secret": "warehouse"}, "table": "t"}
    found = problems_with({"source": SOURCE, "sink": sink}, {"warehouse": "mysql://root:hunter2@x"})
    assert "hunter2" not in str(found)
    assert found["datasources.orders.sink.url"].message == "must begin with postgresql://"


def test_secrets_are_put_in_place_also_inside_lists() -> None:
    source = {"type": "webhook", "signature": {"secret": [{"$secret": "new"}, {"$secret": "old"}]}}
    content = read_all({"datasources": {"orders": {"source": source, "sink": SINK}}})["orders"].content
    assert content.secrets == ("new", "old")
    prepared = prepare(content, {"new": "n", "old": "o"})
    assert prepared.source_options.signature.keys == [b"n", b"o"]
    assert "$secret" in yaml.safe_dump(content.source)


@pytest.mark.parametrize(("text", "expected_s"), [("30s", 30), ("10m", 600), ("1.5 h", 5400), ("2d", 172800)])
def test_durations_are_written_as_people_write_them(text: str, expected_s: float) -> None:
    assert parse_duration(text) == expected_s


@pytest.mark.parametrize("text", ["", "10", "m", "-1s", "10 min", "1e3s", "10ms"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(text)

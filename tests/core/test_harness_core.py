"""What the harness decides: payloads, differences, masks, warnings, endings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headgate.core.harness import fixtures
from headgate.core.harness.endings import Bound, Ending, said
from headgate.core.harness.fixtures import Fixture
from headgate.core.harness.payloads import bodies_in
from headgate.core.harness.results import Difference, Given, Result, differences, totals_of, varying
from headgate.core.harness.warnings import Caution, Tried, fields_in, warnings
from headgate.core.records import Totals

BOUND = Bound(10.0, 10.0, 512_000_000, 32_000_000)


def written(**after: Any) -> Result:
    return Result("written", after)


# Payloads.


@pytest.mark.parametrize(
    ("payload", "bodies"),
    [
        (b'{"a": 1}', [b'{"a": 1}']),
        (b'[{"a": 1}, 2]', [b'{"a": 1}', b"2"]),
        (b"[[1, 2]]", [b"[1, 2]"]),
        (b'{"a": 1}\n\n{"a": 2}\n', [b'{"a": 1}', b'{"a": 2}']),
        (b'{"a": 1}\n{broken\n', [b'{"a": 1}', b"{broken"]),
        (b"{broken", [b"{broken"]),
        (b"first line\nsecond line", [b"first line\nsecond line"]),
        (b"\xff\xfe", [b"\xff\xfe"]),
        (b"[]", []),
        (b"", [b""]),
        (b"[" * 100_000, [b"[" * 100_000]),
    ],
)
def test_a_payload_is_taken_apart(payload: bytes, bodies: list[bytes]) -> None:
    assert bodies_in(payload) == bodies


def test_a_source_of_texts_takes_a_payload_as_it_is() -> None:
    assert bodies_in(b"[1, 2]", is_text=True) == [b"[1, 2]"]


# Results.


def test_results_are_counted_by_their_outcome() -> None:
    results = [written(), Result("filtered"), Result("dead_lettered"), written()]
    assert totals_of(results) == Totals(4, 2, 1, 1)
    assert totals_of(results).is_lawful


def test_two_results_differ_where_their_values_do() -> None:
    before = [written(id=1, a={"b": [1, 2]}, gone=1)]
    after = [written(id=1, a={"b": [1, 3]}, new=1)]
    assert differences(before, after) == [
        Difference("0.a.b.1", 2, 3),
        Difference("0.gone", 1, None),
        Difference("0.new", None, 1),
    ]
    assert differences(before, before) == []


def test_a_number_is_not_the_boolean_or_the_text_that_equals_it() -> None:
    assert differences([written(a=1)], [written(a=True)]) == [Difference("0.a", 1, True)]
    assert differences([written(a=1)], [written(a=1.0)]) == [Difference("0.a", 1, 1.0)]


def test_another_outcome_is_one_difference_and_another_reason_is_none() -> None:
    dead = Result("dead_lettered", None, False, "mapping", "set.a", "is too large")
    assert differences([written(a=1)], [dead]) == [
        Difference("0.outcome", "written", "dead_lettered"),
        Difference("0.stage", None, "mapping"),
        Difference("0.field", None, "set.a"),
    ]
    assert differences([dead], [msgspec.structs.replace(dead, reason="is far too large")]) == []
    assert differences([dead], []) == [Difference("length", 1, 0)]


def test_what_varies_between_two_runs_is_masked_in_all_elements() -> None:
    first = [written(id=1, at=[{"t": 1}, {"t": 2}])]
    second = [written(id=1, at=[{"t": 3}, {"t": 2}])]
    assert varying([(first, second)]) == ["at.*.t"]
    assert differences(first, [written(id=1, at=[{"t": 9}, {"t": 8}])], ["at.*.t"]) == []
    assert differences(first, [written(id=2, at=[{"t": 9}, {"t": 8}])], ["at.*.t"]) == [Difference("0.id", 1, 2)]


# Fixtures.


def test_a_fixture_finds_what_a_version_changes_and_nothing_that_varies_by_itself() -> None:
    given = [Given(record={"id": 1})]
    made = fixtures.made(given, [[written(id=1, now=1)]], [[written(id=1, now=2)]])
    assert made.masked == ["now"]
    assert fixtures.changes("basic", made, [[written(id=1, now=5)]], [[written(id=1, now=6)]]) == []
    (found,) = fixtures.changes("basic", made, [[written(id=2, now=5)]], [[written(id=2, now=6)]])
    assert (found.fixture, found.record, found.difference) == ("basic", 0, Difference("0.id", 1, 2))


def test_a_field_that_varies_only_in_the_new_version_is_no_change_either() -> None:
    made = fixtures.made([Given()], [[written(a=1)]], [[written(a=1)]])
    assert fixtures.changes("basic", made, [[written(a=2)]], [[written(a=3)]]) == []


def test_a_fixture_survives_a_file() -> None:
    given = [Given(body=b"\0\xff", headers={"a": "b"}, at_s=1.5), Given(record={"n": 2**70, "s": "\0"}, meta=[1])]
    made = Fixture(given, [[written(a="\0")], [Result("filtered")]], ["at"])
    found = fixtures.plain(made)
    assert "\0" not in str(found)
    assert fixtures.from_plain(found) == made


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (1, "must have"),
        ({"given": [], "expected": []}, "one at least"),
        ({"given": ["{}"], "expected": []}, "as many lines"),
        ({"given": [1], "expected": ["[]"]}, "`given` must be a list of texts"),
        ({"given": ["{"], "expected": ["[]"]}, "not what `headgate export` writes"),
        ({"given": ["{}"], "expected": ['[{"outcome": "lost"}]']}, "not what `headgate export` writes"),
        ({"given": ["{}"], "expected": ["[]"], "more": []}, "must have"),
        ({"given": ["{}"] * 101, "expected": ["[]"] * 101}, "at most 100 inputs"),
        ({"given": ['{"record": "%s"}' % ("x" * 300_000)], "expected": ["[]"]}, "at most 256 KB"),
    ],
)
def test_what_is_no_fixture_in_a_file_is_told(found: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fixtures.from_plain(found)


# Warnings.


@pytest.mark.parametrize(
    ("expression", "fields"),
    [
        ("total * 100", {("total",)}),
        ("record.a.b + a['c d']", {("a", "b"), ("a", "c d")}),
        ("lower(name)", {("name",)}),
        ("[x.n for x in lines if x.n > least]", {("lines",), ("least",)}),
        ("meta.id + item.n", set()),
        ("f'{a} {b.c}'", {("a",), ("b", "c")}),
        ("'text'", set()),
        ("lines[0].n", {("lines",)}),
        ("not python(", set()),
    ],
)
def test_the_fields_of_an_expression_are_found(expression: str, fields: set[tuple[str, ...]]) -> None:
    assert fields_in(expression) == fields


def codes(mapping: dict[str, Any], tried: list[Tried], key: tuple[str, ...] = (), **more: Any) -> set[tuple[str, str]]:
    return {(one.code, one.place) for one in warnings(mapping, key, tried, **more)}


def test_a_field_that_no_record_has_is_told_and_one_that_some_have_is_not() -> None:
    tried = [Tried({"a": 1}, [written(x=1)]), Tried({"a": 1, "b": {"c": None}}, [written(x=1)])]
    found = codes({"set": {"x": "a + b.c", "y": "z"}}, tried)
    assert found == {("never_present", "mapping.set.y")}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"email": 1}], "the field emial is not in the record (did you mean email?)"),
        ([{"email": 1}, {"b": 2}], "the field emial is in none of 2 records (did you mean email?)"),
        ([{"total": 1}], "the field emial is not in the record"),
        (["text"], "the field emial is not in the record"),
    ],
)
def test_a_field_that_is_mistyped_is_told_with_the_one_that_was_meant(records: list[Any], message: str) -> None:
    tried = [Tried(record, [written(x=1)]) for record in records]
    assert [one.message for one in warnings({"set": {"x": "emial"}}, (), tried)] == [message]


def test_a_where_that_decides_nothing_is_told() -> None:
    no, yes = Tried({"a": 1}, [Result("filtered")]), Tried({"a": 1}, [written()])
    assert codes({"where": "a"}, [no]) == {("where_never", "mapping.where")}
    assert codes({"where": "a"}, [yes, yes]) == {("where_always", "mapping.where")}
    assert codes({"where": "a"}, [yes]) == set()
    assert codes({"where": "a"}, [yes, no]) == set()


def test_an_expression_that_always_fails_or_gives_null_is_told() -> None:
    dead = Tried({"a": 1}, [Result("dead_lettered", None, False, "mapping", "set.x", "why")])
    assert codes({"set": {"x": "a"}}, [dead, dead]) == {("always_fails", "mapping.set.x")}
    assert codes({"set": {"x": "a"}}, [Tried({"a": 1}, [written(x=None)])]) == {("always_null", "mapping.set.x")}
    assert codes({"set": {"x": "a"}}, [dead, Tried({"a": 1}, [written(x=1)])]) == set()


def test_types_keys_and_columns_are_looked_at() -> None:
    tried = [Tried({}, [written(id=1, x=1)]), Tried({}, [written(id=1, x="a")]), Tried({}, [written(id=None, x=1.5)])]
    assert codes({}, tried, ("id",), columns=["id"]) == {
        ("varying_types", "x"),
        ("key_null", "mapping.key"),
        ("key_repeated", "mapping.key"),
        ("no_column", "x"),
    }
    assert warnings({}, (), []) == []
    assert isinstance(warnings({}, ("id",), tried)[0], Caution)


# Endings.


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (Ending("wall"), "it took longer than 10 s and was killed, while reading, after 1 record"),
        (Ending("memory"), "it took more than 512.0 MB of memory and was killed, while reading, after 1 record"),
        (Ending("exit", 3), "the process exited with code 3, while reading, after 1 record"),
        (Ending("signal", 9), "the process ended with signal 9: it was killed, while reading, after 1 record"),
        (Ending("signal", 64), "the process ended with signal 64: unknown, while reading, after 1 record"),
        (Ending("lost"), "the process that watched it was killed, while reading, after 1 record"),
    ],
)
def test_every_ending_is_one_line(ending: Ending, text: str) -> None:
    assert said(ending, BOUND, "reading", 1) == text

"""A mapping's own function in Python: what it is given, what it may give, and that it cannot break anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headgate.core.mapping.document import FailedRecord, Mapped, Mapping, compile_mapping
from headgate.errors import ConfigError


def mapping(function: Callable[..., object], document: dict[str, Any] | None = None) -> Mapping:
    return compile_mapping({"python": "shop.cleaning:clean", **(document or {})}, load=lambda name: function)


def test_it_is_called_last_with_the_record_and_its_metadata() -> None:
    seen: list[Any] = []

    def clean(record: dict[str, Any], meta: Any) -> dict[str, Any]:
        seen.append((record, meta))
        return {**record, "more": 1}

    document = {"where": "a > 1", "set": {"b": "a"}, "rename": {"b": "c"}, "types": {"c": "text"}}
    mapped = mapping(clean, document).apply([{"a": 1}, {"a": 2}], ["m", {"n": 1}])

    assert seen == [({"c": "2"}, {"n": 1})]
    assert mapped.records == [{"c": "2", "more": 1}]
    assert (mapped.filtered, mapped.read, mapped.origins) == ([0], 2, [(1, None)])


def test_it_may_leave_records_out_and_make_several_of_one() -> None:
    def split(record: dict[str, Any], meta: Any) -> object:
        return [{"n": number} for number in range(record["n"])] if record["n"] >= 0 else None

    mapped = mapping(split).apply([{"n": 2}, {"n": 0}, {"n": -1}, {"n": 3}])

    assert mapped.records == [{"n": 0}, {"n": 1}, {"n": 0}, {"n": 1}, {"n": 2}]
    assert [mapped.origin(number) for number in range(5)] == [(0, 0), (0, 1), (3, 0), (3, 1), (3, 2)]
    assert (mapped.filtered, mapped.read) == ([1, 2], 7)
    assert mapped.is_lawful


def test_with_unnest_it_is_called_for_each_element() -> None:
    def odd(record: dict[str, Any], meta: Any) -> object:
        return record if record["n"] % 2 else None

    unnested = mapping(odd, {"unnest": "xs", "set": {"n": "item"}})
    mapped = unnested.apply([{"xs": [1, 2, 3]}, {"xs": ["x"]}])

    assert mapped.records == [{"n": 1}, {"n": 3}]
    assert mapped.origins == [(0, 0), (0, 2)]
    assert (mapped.filtered, mapped.read) == ([0], 4)
    assert mapped.failed == [FailedRecord(1, 0, "mapping", "python", "the function raised TypeError")]
    assert (
        "does not go with unnest"
        in mapping(lambda record, meta: [record], {"unnest": "xs"}).apply([{"xs": [1]}]).failed[0].reason
    )


@pytest.mark.parametrize(
    "error",
    [ValueError("SEKRIT"), KeyError("SEKRIT"), SystemExit("SEKRIT"), KeyboardInterrupt(), asyncio.CancelledError()],
)
def test_an_error_fails_the_record_and_is_named_by_its_type_alone(error: BaseException) -> None:
    def fail(record: dict[str, Any], meta: Any) -> dict[str, Any]:
        if record["a"]:
            raise error
        return record

    mapped = mapping(fail).apply([{"a": 0}, {"a": 1}, {"a": 0}])

    assert mapped.failed == [FailedRecord(1, None, "mapping", "python", f"the function raised {type(error).__name__}")]
    assert len(mapped.records) == 2


@pytest.mark.parametrize(
    "made",
    ["SEKRIT", 5, True, ("SEKRIT",), {1: "SEKRIT"}, {"": 1}, ["SEKRIT"], [{}, None], {"a": object()}, {"a": [{1, 2}]}],
)
def test_anything_but_records_fails_the_record_without_a_value(made: object) -> None:
    [failed] = mapping(lambda record, meta: made).apply([{}]).failed

    assert failed.field == "python"
    assert "the function gave" in failed.reason
    assert "SEKRIT" not in failed.reason


def test_what_holds_itself_fails_the_record() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless

    assert len(mapping(lambda record, meta: endless).apply([{}, {}]).failed) == 2


def test_it_cannot_change_the_record_that_was_read() -> None:
    def spoil(record: dict[str, Any], meta: Any) -> dict[str, Any]:
        record["a"]["b"].append(2)
        meta["x"].clear()
        return record

    record: dict[str, Any] = {"a": {"b": [1]}}
    meta = {"x": {"y": 1}}
    mapped = mapping(spoil).apply([record], [meta])

    assert mapped.records == [{"a": {"b": [1, 2]}}]
    assert record == {"a": {"b": [1]}}
    assert meta == {"x": {"y": 1}}


def test_a_deletion_does_not_reach_it() -> None:
    def fail(record: dict[str, Any], meta: Any) -> None:
        raise ValueError

    mapped = mapping(fail, {"delete": "gone", "key": "id"}).apply([{"id": 1, "gone": True}])

    assert mapped == Mapped([{"id": 1}], [], [], [0], 1, [(0, None)])


def test_it_may_make_the_key_and_then_nobody_else_can_tell_it() -> None:
    made = mapping(lambda record, meta: {"id": 5}, {"set": {"a": "a"}, "key": "id"})

    assert made.calls_python
    assert made.apply([{}]).records == [{"id": 5}]
    assert made.key_of({"id": 5}) is None
    with pytest.raises(ConfigError, match=r"mapping\.key: id is not an output field"):
        mapping(lambda record, meta: {"id": 5}, {"set": {"a": "a"}, "key": "id", "delete": "a"})


def test_without_a_loader_none_may_be_named() -> None:
    with pytest.raises(ConfigError, match=r"mapping\.python: Python functions cannot be used here"):
        compile_mapping({"python": "os:getcwd"})


def test_what_cannot_be_loaded_is_a_problem_among_the_others() -> None:
    def refuse(name: str) -> Any:
        raise ConfigError("shop cannot be imported", hint="install it")

    with pytest.raises(ConfigError) as caught:
        compile_mapping({"python": "shop:clean", "where": "("}, load=refuse)
    assert [problem.path for problem in caught.value.problems] == ["mapping.python", "mapping.where"]
    assert caught.value.problems[0].hint == "install it"

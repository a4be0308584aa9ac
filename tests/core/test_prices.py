"""What records may cost: every function's price grows with what it is given, and nothing dear happens in a slice."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from headgate.core.mapping.document import NODES_AT_ONCE, FailedRecord, Mapped, compile_mapping
from headgate.core.mapping.functions import FUNCTIONS, PRICED_TYPES, RUN, TYPES, sort, unique
from headgate.core.mapping.prices import BUDGET, MOST_AT_ONCE, SLICE, Budget, TooExpensiveError
from headgate.errors import ConfigError

# For each function that is paid for: a call, and a record in which it has `n` times as much to do.
PRICED: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    **{
        name: (f"{name}(s)", lambda n: {"s": "a b" * n})
        for name in ("lower", "upper", "strip", "split", "text", "sha256", "md5", "crc32")
    },
    "replace": ('replace(s, "a", "bb")', lambda n: {"s": "ab" * n}),
    "substring": ("substring(s, 1)", lambda n: {"s": "ab" * n}),
    "starts_with": ("starts_with(s, s)", lambda n: {"s": "ab" * n}),
    "ends_with": ("ends_with(s, s)", lambda n: {"s": "ab" * n}),
    "match": ('match(s, "a*b")', lambda n: {"s": "a" * n}),
    "parse_json": ("parse_json(s)", lambda n: {"s": str([1] * n)}),
    "get": ("get(a, s)", lambda n: {"a": {}, "s": "a." * n}),
    "contains": ("contains(xs, 0)", lambda n: {"xs": [1] * n}),
    **{
        name: (f"{name}(xs)", lambda n: {"xs": [[1, 2], [3]] * n})
        for name in ("join", "min", "max", "to_json", "sort", "unique")
    },
    "sum": ("sum(xs)", lambda n: {"xs": [1.5] * n}),
}
# What else costs more the more it is given.
OTHERS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "add": ("s + s", lambda n: {"s": "ab" * n}),
    "add lists": ("xs + xs", lambda n: {"xs": [1] * n}),
    "multiply": ("s * 3", lambda n: {"s": "ab" * n}),
    "repeat": ('"ab" * n', lambda n: {"n": n}),
    "equal": ("xs == ys", lambda n: {"xs": [1] * n, "ys": [1] * n}),
    "not_equal": ("xs != ys", lambda n: {"xs": [1] * n, "ys": [1] * n}),
    "less": ("xs < ys", lambda n: {"xs": [1] * n, "ys": [1] * n}),
    "in": ("0 in xs", lambda n: {"xs": [1] * n}),
    "not in": ("0 not in xs", lambda n: {"xs": [1] * n}),
    "chain": ("xs < ys < ys", lambda n: {"xs": [1] * n, "ys": [1] * n}),
    "f-string": ('f"{s} {xs}"', lambda n: {"s": "ab" * n, "xs": [1] * n}),
    "loop": ("[x for x in xs]", lambda n: {"xs": [1] * n}),
    "loops": ("[1 for x in xs for y in xs]", lambda n: {"xs": [1] * n}),
    "loop of fixed": ("[int(x) for x in xs]", lambda n: {"xs": ["1"] * n}),
    "powers": ("[d ** x for x in xs]", lambda n: {"d": Decimal("1.5"), "xs": [0.5] * n}),
}


def units(document: dict[str, Any], record: dict[str, Any]) -> int:
    """What a record costs."""
    budget = Budget(10**12)
    mapped = Mapped()
    compile_mapping(document)._run([record], None, 0, mapped, budget, False)
    return 10**12 - budget.left


def test_each_function_has_a_fixed_price_or_one_that_is_tested() -> None:
    fixed = {name for name, function in FUNCTIONS.items() if function.fixed}
    assert fixed | PRICED.keys() == FUNCTIONS.keys()
    assert not fixed & PRICED.keys()


@pytest.mark.parametrize("name", [*PRICED, *OTHERS])
def test_the_price_grows_with_what_is_given(name: str) -> None:
    expression, record = (PRICED | OTHERS)[name]
    few, many = (units({"set": {"a": expression}}, record(n)) for n in (1_000, 4_000))
    assert many >= 3 * few > 0


@pytest.mark.parametrize("name", [name for name, function in FUNCTIONS.items() if function.fixed])
def test_a_function_with_a_fixed_price_takes_long_values_as_easily_as_short_ones(name: str) -> None:
    """They look at the length, at one end, or at so many characters as a number has."""
    call: Any = FUNCTIONS[name].call
    wide = "9" * 10**6
    for value in (wide, [wide], 10**1000, Decimal("1e1000"), {"a": wide}):
        arguments = (value, "%Y") if name == "format_time" else (value,)
        try:
            answer = call(*arguments)
        except Exception as error:
            answer = len(str(error)) < 500  # Nothing is spelt out, not even to complain.
        assert answer is value or answer is wide or not isinstance(answer, str | list | dict)
        assert answer is not False


@pytest.mark.parametrize("name", TYPES)
def test_a_conversion_has_a_fixed_price_or_one_that_grows(name: str) -> None:
    few, many = (units({"types": {"a": name}}, {"a": [1] * n}) for n in (1_000, 4_000))
    assert (many >= 3 * few) is (name in PRICED_TYPES)


def test_an_unnested_record_pays_for_each_element_all_that_its_expressions_have() -> None:
    few = {"unnest": "xs", "set": {"a": "item"}}
    many = {"unnest": "xs", "set": {f"a{n}": "item * 2 + 1" for n in range(20)}}
    record = {"xs": list(range(1_000))}
    assert units(many, record) > 20 * units(few, record)


def test_a_record_that_a_slice_does_not_cover_ends_it_and_is_mapped_apart() -> None:
    mapping = compile_mapping({"set": {"n": "count([x for x in xs])"}})
    cheap, dear = {"xs": [1]}, {"xs": [1] * 60_000}
    records, mapped = [cheap, dear, cheap], Mapped()
    assert units({"set": {"n": "count([x for x in xs])"}}, dear) > SLICE
    assert mapping.slice(records, None, 0, mapped) == 1
    assert mapping.slice(records, None, 1, mapped) == 1
    assert mapping.apart(records, None, 1, mapped) == 2
    assert mapping.slice(records, None, 2, mapped) == 3
    assert [record["n"] for record in mapped.records] == [1, 60_000, 1]
    assert mapped.failed == []
    assert (mapped.filtered, mapped.read) == ([], 3)


def test_records_share_what_a_slice_may_cost() -> None:
    mapping = compile_mapping({"where": "keep", "set": {"n": "[x for x in xs]", "m": "meta"}})
    record = {"keep": True, "xs": [1] * 5_000}
    price = units({"where": "keep", "set": {"n": "[x for x in xs]", "m": "meta"}}, record)
    records, mapped = [record, {"keep": False}] * 50, Mapped()
    done, ends = 0, []
    while done < len(records):
        done = mapping.slice(records, list(range(100)), done, mapped)
        ends.append(done)
    assert len(ends) > 1
    assert ends[0] // 2 <= SLICE // price + 1
    assert [one["m"] for one in mapped.records] == list(range(0, 100, 2))
    assert mapped.filtered == list(range(1, 100, 2))
    assert mapped.read == 100


def test_what_an_unnested_record_had_made_before_its_slice_ended_is_made_once() -> None:
    mapping = compile_mapping({"unnest": "xs", "where": "item > 0", "set": {"a": "lower(s * item)"}})
    record = {"xs": [0, 1, 2, 3], "s": "a" * 100_000}
    records, mapped = [record] * 3, Mapped()
    done = 0
    while done < len(records):
        before, done = done, mapping.slice(records, None, done, mapped)
        done = mapping.apart(records, None, done, mapped) if done == before else done
    assert (len(mapped.records), mapped.filtered, mapped.failed) == (9, [0, 1, 2], [])
    assert mapped.read == 12
    assert mapped.origins == [(index, element) for index in range(3) for element in (1, 2, 3)]


def test_what_became_of_a_dear_records_elements_before_its_slice_ended_is_forgotten_with_them() -> None:
    document = {"unnest": "xs", "where": "item.n > 0", "delete": "item.gone", "set": {"a": "lower(item.s)"}, "key": "a"}
    cheap = [{"n": 0}, {"n": 1, "s": 5}, {"n": 1, "gone": True, "s": "D"}, {"n": 1, "s": "A"}]
    dear = {"xs": [*cheap, {"n": 1, "s": "B" * (SLICE - 1_000)}]}
    mapping, mapped = compile_mapping(document), Mapped()
    records = [{"xs": cheap}, dear]
    assert mapping.slice(records, None, 0, mapped) == 1
    first = Mapped(
        [{"a": "d"}, {"a": "a"}],
        [FailedRecord(0, 1, "mapping", "set.a", "expects text, not int")],
        [0],
        [0],
        4,
        [(0, 2), (0, 3)],
    )
    assert mapped == first
    assert mapping.slice(records, None, 1, mapped) == 1
    assert mapped == first
    assert mapping.apart(records, None, 1, mapped) == 2
    assert [len(record["a"]) for record in mapped.records] == [1, 1, 1, 1, SLICE - 1_000]
    assert (mapped.filtered, mapped.deletes, mapped.read) == ([0, 1], [0, 2], 9)
    assert mapped.is_lawful


def test_an_element_that_is_too_dear_leaves_enough_for_its_neighbours() -> None:
    mapping = compile_mapping({"unnest": "xs", "set": {"n": "count([x for x in item])"}})
    mapped = mapping.apply([{"xs": [[1], [1] * 1_000_000, [1, 2]]}])
    assert mapped.records == [{"n": 1}, {"n": 2}]
    assert [(failed.element, failed.field) for failed in mapped.failed] == [(1, "set.n")]


def test_a_long_mapping_takes_fewer_records_at_once() -> None:
    long = compile_mapping({"set": {f"f{number}": "a + b * c" for number in range(1_000)}})
    assert 1 <= long.records_at_once * 5_000 <= NODES_AT_ONCE
    assert compile_mapping({"set": {"a": "a"}}).records_at_once == 500


@pytest.mark.parametrize(
    ("expression", "record"),
    [
        ("[x + y for x in xs for y in xs]", {"xs": list(range(3_000))}),
        ("[d ** x for x in xs]", {"d": Decimal("1.0000001"), "xs": [0.7] * 60_000}),
        ("[s * 300 for x in xs]", {"s": "x" * 1_000, "xs": [1] * 60_000}),
        ("[xs == ys for x in xs]", {"xs": [1] * 3_000, "ys": [1] * 3_000}),
        ("[match(s, 'a*b') for x in xs]", {"s": "a" * 2_000, "xs": [1] * 60_000}),
    ],
)
def test_a_record_beyond_its_budget_is_too_expensive(expression: str, record: dict[str, Any]) -> None:
    mapped = compile_mapping({"set": {"a": expression}}).apply([record])
    assert [str(failed) for failed in mapped.failed] == [
        "set.a: too expensive: the record costs too much work or memory"
    ]


@pytest.mark.parametrize(
    ("expression", "record"),
    [
        ("s * 300000", {"s": "x" * 50}),
        ("xs * 300000", {"xs": [1] * 50}),
        ("lower(s)", {"s": "é" * (MOST_AT_ONCE + 1)}),
        ("split(s, ',')", {"s": "," * 1_000_000}),
        ("split(s)", {"s": " " * 1_000_000}),
        ("parse_json(s)", {"s": "[" + "[]," * 300_000 + "[]]"}),
        ("strip(s, t)", {"s": "a" * 500_000, "t": "b" * 500_000 + "a"}),
        ("replace(s, 'a', t)", {"s": "a" * 100_000, "t": "b" * 1_000}),
        ("join(xs, s)", {"s": "a" * 100_000, "xs": ["a"] * 1_000}),
        ("match(s, 'a*b')", {"s": "a" * 10_000}),
        ("d ** d", {"d": Decimal("9" * 400)}),
    ],
)
def test_no_single_call_reads_or_makes_more_than_fits_a_moment(expression: str, record: dict[str, Any]) -> None:
    assert compile_mapping({"set": {"a": expression}}).apply([record]).failed
    assert units({"set": {"a": expression}}, record) < BUDGET


def test_numbers_whose_hashes_are_equal_are_told_apart_by_their_digits() -> None:
    prime = 2**61 - 1
    same = [prime * number for number in range(2, 5_000)]
    assert len({hash(one) for one in same}) == 1
    assert unique([*same, *same]) == same
    assert unique([2**70, 2.0**70, Decimal(2**70), 1, 1.0, Decimal(1), Decimal("0.5"), 0.5]) == [
        2**70,
        1,
        Decimal("0.5"),
    ]


@pytest.mark.parametrize("descending", [False, True])
def test_a_long_list_is_sorted_in_runs_as_it_would_be_at_once(descending: bool) -> None:
    values = [(number * 7919) % 10_007 for number in range(3 * RUN)]
    assert sort([*values, None], descending) == [*sorted(values, reverse=descending), None]


def test_paying_stops_at_the_first_unit_that_is_not_there() -> None:
    budget = Budget(10)
    budget.charge(10)
    with pytest.raises(TooExpensiveError):
        budget.charge(1)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"set": {f"f{number}": "a" for number in range(1_601)}}, "mapping.set: names more than 1600 fields"),
        ({"drop": [f"f{number}" for number in range(1_601)]}, "mapping.drop: names more than 1600 fields"),
        ({"set": {f"f{number}": "[" + "a," * 200 + "a]" for number in range(200)}}, "has more than 20000 nodes in all"),
    ],
)
def test_a_mapping_that_takes_long_to_compile_is_refused(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        compile_mapping(document)

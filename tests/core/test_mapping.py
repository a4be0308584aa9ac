"""Mappings: what expressions give, what they refuse, and that no record and no text can break the node."""

from __future__ import annotations

import ast
import contextlib
import types
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.core.mapping import functions
from headgate.core.mapping.document import PARTS, FailedRecord, Mapped, Mapping, compile_mapping
from headgate.core.mapping.expressions import DEPTH_LIMIT
from headgate.core.mapping.functions import FUNCTIONS
from headgate.core.mapping.prices import BUDGET
from headgate.core.records import Unreadable
from headgate.errors import ConfigError, Problem

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "mapping.md"

RECORD: dict[str, Any] = {
    "id": 7,
    "user": {"email": "Ada@Example.com", "tags": ["a", "b"], "x y": 1},
    "total": 12.5,
    "cents": 1250,
    "name": " Ada ",
    "word": "Hello",
    "yes": True,
    "nothing": None,
    "ts": "2026-03-01T10:11:12Z",
    "numbers": [3, 1, None, 2, 3],
    "lines": [{"sku": "x", "qty": 2}, {"sku": "y", "qty": 3}],
    "json": '{"a": [1, 2]}',
    "price": Decimal("1.10"),
    "date": "a field, not the function",
    "grüße": "hi",
}
MOMENT = datetime(2026, 3, 1, 10, 11, 12, tzinfo=UTC)


def field(expression: object, document: dict[str, Any] | None = None) -> Mapping:
    return compile_mapping({"set": {"out": expression}, **(document or {})})


def run(expression: object, record: Any = None, meta: Any = None) -> Mapped:
    return field(expression).apply([RECORD if record is None else record], None if meta is None else [meta])


def value(expression: object, record: Any = None, meta: Any = None) -> Any:
    mapped = run(expression, record, meta)
    assert mapped.failed == []
    return mapped.records[0]["out"]


def failure(expression: str, record: Any = None) -> str:
    mapped = run(expression, record)
    assert mapped.records == []
    [failed] = mapped.failed
    assert (failed.index, failed.element, failed.stage) == (0, None, "mapping")
    return str(failed)


def texts(mapped: Mapped) -> list[tuple[int, str]]:
    return [(failed.index, str(failed)) for failed in mapped.failed]


def problems(document: Any) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        compile_mapping(document)
    return caught.value.problems


# What expressions give.

VALUES: list[tuple[Any, Any]] = [
    # Literals and displays.
    ("1", 1),
    ("-1.5", -1.5),
    ("'a'", "a"),
    ("True", True),
    ("None", None),
    (5, 5),
    (True, True),
    (None, None),
    ("[1, id, 'x']", [1, 7, "x"]),
    ("(1, 2)", [1, 2]),
    ("{'a': id, 'b': {'c': 1}}", {"a": 7, "b": {"c": 1}}),
    # Names and paths.
    ("id", 7),
    ("absent", None),
    ("grüße", "hi"),
    ("lower", None),
    ("budget.left", None),
    ("date", "a field, not the function"),
    ("user.email", "Ada@Example.com"),
    ("user.absent.deeper.still", None),
    ("id.email", None),
    ("absent.email", None),
    ("user['email']", "Ada@Example.com"),
    ("user['x y']", 1),
    ("user.tags[0]", "a"),
    ("user.tags[-1]", "b"),
    ("user.tags[9]", None),
    ("user.tags['a']", None),
    ("user.tags[nothing]", None),
    ("user.tags[id - 6]", "b"),
    ("user[user.tags]", None),
    ("lines[0].sku", "x"),
    ("word[0]", "H"),
    ("record.id", 7),
    ("record['id']", 7),
    ("count(lines) == length(record.lines)", True),
    ("(1).x", None),
    ("'a'.x", None),
    ("[1, 2][1]", 2),
    ("{'a': 1}.a", 1),
    # Arithmetic.
    ("1 + 2 * 3", 7),
    ("id + 1", 8),
    ("id - 1.5", 5.5),
    ("cents * 2", 2500),
    ("total * 100", 1250.0),
    ("id / 2", 3.5),
    ("id // 2", 3),
    ("id % 4", 3),
    ("id ** 2", 49),
    ("-id", -7),
    ("+id", 7),
    ("- 2 ** 2", -4),
    ("(-2) ** 2", 4),
    ("2 - -3", 5),
    ("yes + 1", 2),
    ("price * 2", Decimal("2.20")),
    ("price + 0.1", Decimal("1.20")),
    ("0.1 + price", Decimal("1.20")),
    ("word + '!'", "Hello!"),
    ("'ab' * 2", "abab"),
    ("2 * word", "HelloHello"),
    ("word * -1", ""),
    ("user.tags + ['c']", ["a", "b", "c"]),
    ("[0] * 3", [0, 0, 0]),
    ("timestamp(ts) - timestamp('2026-03-01T10:11:02Z')", 10.0),
    ("timestamp(ts) + 8", datetime(2026, 3, 1, 10, 11, 20, tzinfo=UTC)),
    ("timestamp(ts) - 12", datetime(2026, 3, 1, 10, 11, 0, tzinfo=UTC)),
    # Comparisons and logic.
    ("id == 7", True),
    ("id != 7", False),
    ("id > 6", True),
    ("id >= 8", False),
    ("id < cents", True),
    ("6 < id", True),
    ("word <= 'Z'", True),
    ("1 < id < 10", True),
    ("1 < id < 5", False),
    ("1 < id == 7 != 8", True),
    ("price > 1", True),
    ("timestamp(ts) > timestamp(0)", True),
    ("id in [1, 7]", True),
    ("id in (1, 2)", False),
    ("id not in [1, 7]", False),
    ("'a' in user.tags", True),
    ("'z' not in user.tags", True),
    ("'ell' in word", True),
    ("'email' in user", True),
    ("id and word", "Hello"),
    ("absent or 'x'", "x"),
    ("not yes", False),
    ("'big' if total > 10 else 'small'", "big"),
    ("absent is None", True),
    ("id is not None", True),
    # f-strings.
    ("f'{id}-{word}'", "7-Hello"),
    ("f'{total:.2f}'", "12.50"),
    ("f'{id:04d}|{word:>7}|{total:,.1f}'", "0007|  Hello|12.5"),
    ("f'<{absent}>'", "<>"),
    ("f'{yes} {user.tags}'", 'true ["a","b"]'),
    ("f''", ""),
    # Comprehensions.
    ("[line.qty for line in lines]", [2, 3]),
    ("[line.qty * 2 for line in lines if line.qty > 2]", [6]),
    ("sum([line.qty for line in lines])", 5),
    ("[id for line in lines]", [7, 7]),
    ("[id for id in user.tags]", ["a", "b"]),
    ("[[id for id in user.tags], id]", [["a", "b"], 7]),
    ("[record for record in [1]]", [1]),
    ("[t + l.sku for l in lines for t in user.tags]", ["ax", "bx", "ay", "by"]),
    ("[[n + l.qty for n in [1]] for l in lines]", [[3], [4]]),
    ("[x for x in absent]", []),
    ("[coalesce(x, 0) for x in numbers]", [3, 1, 0, 2, 3]),
    ("[lower(x) for x in ['A', None]]", ["a", None]),
    ("[f'{x}!' for x in user.tags]", ["a!", "b!"]),
    ("[x for x in numbers if 1 < x < 3]", [2]),
    ("[x for x in user.tags if x in ['a']]", ["a"]),
    ("[match(x.sku, '^x$') for x in lines]", ["x", None]),
    ("[x['sku'] if x.qty == 2 else -x.qty for x in lines]", ["x", -3]),
    # Text.
    ("lower(user.email)", "ada@example.com"),
    ("upper(word)", "HELLO"),
    ("strip(name)", "Ada"),
    ("strip(word, 'Ho')", "ell"),
    ("replace(word, 'l', 'L')", "HeLLo"),
    ("replace('ab', '', '-')", "-a-b-"),
    ("split(user.email, '@')", ["Ada", "Example.com"]),
    ("split(' a  b ')", ["a", "b"]),
    ("join(user.tags, ', ')", "a, b"),
    ("join(numbers)", "3123"),
    ("substring(word, 1)", "ello"),
    ("substring(word, 1, 2)", "el"),
    ("substring(word, -3, 2)", "ll"),
    ("substring(word, 0, -1)", ""),
    ("substring(word, -99)", "Hello"),
    ("length(word)", 5),
    ("length(numbers)", 5),
    ("text(id)", "7"),
    ("text(yes)", "true"),
    ("text(price)", "1.10"),
    ("text(timestamp(ts))", "2026-03-01T10:11:12+00:00"),
    ("text(user.tags)", '["a","b"]'),
    ("starts_with(word, 'He')", True),
    ("ends_with(word, 'He')", False),
    ("contains(word, 'ell')", True),
    ("contains(user.tags, 'b')", True),
    ("match(user.email, '@(.+)$')", "Example.com"),
    ("match(word, 'l+')", "ll"),
    ("match(word, 'z')", None),
    (r"match(ts, '^\\d{4}')", "2026"),
    # Numbers.
    ("round(total * 100)", 1250),
    ("round(2.5)", 2),
    ("round(12.345, 1)", 12.3),
    ("round(price)", 1),
    ("round(id)", 7),
    ("int('12')", 12),
    ("int(total)", 12),
    ("int(yes)", 1),
    ("float('1.5')", 1.5),
    ("float(id)", 7.0),
    ("decimal(0.1)", Decimal("0.1")),
    ("decimal('1.10')", Decimal("1.10")),
    ("decimal(id)", Decimal(7)),
    ("abs(-id)", 7),
    ("min(numbers)", 1),
    ("max(3, absent, 4)", 4),
    ("min(absent)", None),
    ("min([])", None),
    ("sum(numbers)", 9),
    ("sum([])", 0),
    ("sum([price, 0.1])", Decimal("1.20")),
    ("floor(-1.5)", -2),
    ("ceil(1.2)", 2),
    # Time.
    ("timestamp(ts)", MOMENT),
    ("timestamp('2026-03-01 10:11:12')", MOMENT),
    ("timestamp('2026-03-01T12:11:12+02:00') == timestamp(ts)", True),
    ("timestamp(1772359872)", MOMENT),
    ("timestamp(1772359872000)", MOMENT),
    ("timestamp(1772359872.5) - timestamp(ts)", 0.5),
    ("timestamp(timestamp(ts))", MOMENT),
    ("timestamp(record.date_only)", None),
    ("date(ts)", date(2026, 3, 1)),
    ("date(date(ts))", date(2026, 3, 1)),
    ("timestamp(date(ts))", datetime(2026, 3, 1, tzinfo=UTC)),
    ("unix(ts)", 1772359872.0),
    ("format_time(ts, '%Y/%m/%d %H:%M 100%%')", "2026/03/01 10:11 100%"),
    # Hashes.
    ("sha256('')", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    ("md5('')", "d41d8cd98f00b204e9800998ecf8427e"),
    ("crc32('abc')", 891568578),
    ("sha256(id) == sha256('7')", True),
    # JSON and lists.
    ("parse_json(json).a[1]", 2),
    ("to_json(lines[0])", '{"sku":"x","qty":2}'),
    ("first(numbers)", 3),
    ("last(user.tags)", "b"),
    ("first([])", None),
    ("count(lines)", 2),
    ("count(absent)", 0),
    ("sort(numbers)", [1, 2, 3, 3, None]),
    ("sort(numbers, True)", [3, 3, 2, 1, None]),
    ("unique(numbers)", [3, 1, None, 2]),
    ("unique([{'a': 1}, {'a': 1}, [1]])", [{"a": 1}, [1]]),
    ("coalesce(absent, nothing, id)", 7),
    ("coalesce(id)", 7),
    ("coalesce(absent, nothing, absent, nothing, absent, nothing, 'z')", "z"),
    ("get(user, 'tags.1')", "b"),
    ("get(record, 'lines.-1.sku')", "y"),
    ("get(user, 'no.way', 'd')", "d"),
    ("get(absent, 'a')", None),
]


@pytest.mark.parametrize(("expression", "expected"), VALUES, ids=[str(expression) for expression, _ in VALUES])
def test_an_expression_gives_its_value(expression: Any, expected: Any) -> None:
    found = value(expression)

    assert found == expected
    assert type(found) is type(expected)


def test_every_function_has_a_row_in_the_table_of_values() -> None:
    used = {
        node.func.id
        for expression, _ in VALUES
        if isinstance(expression, str)
        for node in ast.walk(ast.parse(expression))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert set(FUNCTIONS) - used == set()


def test_meta_is_what_lies_beside_the_record() -> None:
    assert value("meta.headers['x-id']", {}, {"headers": {"x-id": "9"}}) == "9"
    assert value("meta.headers", {}) is None


def test_a_subclass_of_dict_is_walked_like_a_dict() -> None:
    class Special(dict[str, Any]):
        pass

    assert value("a.b", Special(a=Special(b=1))) == 1


def test_a_plain_number_and_a_huge_one_are_multiplied_alike() -> None:
    assert value("a * b", {"a": 2**70, "b": 3}) == 3 * 2**70
    assert value("a * 3", {"a": 2**63}) == 3 * 2**63


# None.


@pytest.mark.parametrize(
    "expression",
    [
        *(f"absent {sign} 1" for sign in ("+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=")),
        *(f"id {sign} absent" for sign in ("+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=")),
        "-absent",
        "'x' + absent",
        "absent + 'x'",
        "1 < absent < 3",
        "'a' in absent",
        "'a' not in absent",
        "absent in word",
        "[x > 1 for x in [None]][0]",
        "[x + 1 for x in [None]][0]",
        *(
            f"{name}({', '.join(['absent', *['1'] * (function.least - 1)])})"
            for name, function in FUNCTIONS.items()
            if not function.takes_none and name != "match"
        ),
        "match(absent, 'a')",
    ],
)
def test_none_in_gives_none_out(expression: str) -> None:
    assert value(expression) is None


def test_equality_with_none_is_true_or_false_as_in_python() -> None:
    assert value("absent == None") is True
    assert value("absent == 1") is False
    assert value("absent != 1") is True


def test_where_takes_none_as_not_kept() -> None:
    mapped = compile_mapping({"where": "age > 18"}).apply([{"age": 19}, {"age": 3}, {}])

    assert mapped == Mapped([{"age": 19}], [], [1, 2], read=3)


# Mistakes in records.


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("word + 1", "set.out: cannot add text and int"),
        ("word - 1", "set.out: cannot subtract text and int"),
        ("word % 'x'", "set.out: cannot divide text and text"),
        ("-word", "set.out: cannot negate text"),
        ("word > 1", "set.out: cannot compare text and int"),
        ("id > 'a'", "set.out: cannot compare int and text"),
        ("date(ts) > timestamp(ts)", "set.out: cannot compare a date and a timestamp"),
        ("1 in word", "set.out: cannot look for int in text"),
        ("1 in id", "set.out: cannot look for int in int"),
        ("id / 0", "set.out: division by zero"),
        ("lower(id)", "set.out: expects text, not int"),
        ("match(id, 'a')", "set.out: expects text, not int"),
        ("sum(word)", "set.out: expects a list, not text"),
        ("sort(['a', id])", "set.out: cannot compare values of these kinds with each other"),
        ("[x for x in word]", "set.out: a comprehension expects a list, not text"),
        ("int('x')", "set.out: cannot read text as an int"),
        ("decimal('x')", "set.out: cannot read text as a decimal"),
        ("timestamp(word)", "set.out: cannot read text as a timestamp"),
        ("date(word)", "set.out: cannot read text as a timestamp"),
        ("timestamp(user)", "set.out: expects ISO 8601 text or a unix time, not dict"),
        ("f'{word:d}'", "set.out: the format d is not one of text"),
        ("f'{user:5}'", "set.out: expects text or a number to format, not dict"),
        ("(0 - id) ** 0.5", "set.out: a fractional power of a negative number"),
    ],
)
def test_a_mistake_fails_the_record_in_one_line_that_names_the_field(expression: str, message: str) -> None:
    assert failure(expression) == message


def test_only_the_records_that_are_wrong_fail() -> None:
    mapped = field("lower(a)").apply([{"a": "X"}, {"a": 1}, {"a": "Y"}, {"a": []}])

    assert mapped.records == [{"out": "x"}, {"out": "y"}]
    assert texts(mapped) == [(1, "set.out: expects text, not int"), (3, "set.out: expects text, not list")]
    assert [mapped.origin(number) for number in range(2)] == [(0, None), (2, None)]


def test_the_message_names_the_part_that_failed() -> None:
    document = {"where": "a > 1", "set": {"first": "b + 1", "second": "c + 1"}, "types": {"second": "bool"}}

    mapped = compile_mapping(document).apply(
        [{"a": "x"}, {"a": 2, "b": "x"}, {"a": 2, "c": "x"}, {"a": 2, "c": 9}, {"a": 2, "c": 0}]
    )

    assert [failed.field for failed in mapped.failed] == ["where", "set.first", "set.second", "set.second"]
    assert mapped.records == [{"first": None, "second": True}]


def test_a_message_is_one_short_line_however_long_the_value() -> None:
    message = failure("int(a)", {"a": "x\n" * 10_000})

    assert "\n" not in message
    assert len(message) < 250


# What is refused.


@pytest.mark.parametrize(
    "expression",
    [
        "lambda: 1",
        "(x := 1)",
        "x.lower()",
        "''.join([])",
        "__import__('os')",
        "__builtins__",
        "user.__class__",
        "().__class__.__bases__[0]",
        "(1).__class__",
        "open('/etc/passwd')",
        "eval('1')",
        "exec('1')",
        "getattr(user, 'x')",
        "type(id)",
        "lower(x)(y)",
        "[f for f in [1]][0]()",
        "{1, 2}",
        "{x for x in a}",
        "{x: 1 for x in a}",
        "sum(x for x in a)",
        "[*a]",
        "{**a}",
        "{a: 1}",
        "lower(*a)",
        "lower(text=a)",
        "get(a, **b)",
        "a[1:2]",
        "a[1:2, 3]",
        "a @ b",
        "a | b",
        "a & b",
        "a ^ b",
        "a << 1",
        "a >> 1",
        "~a",
        "a is 1",
        "a is b is None",
        "await a",
        "yield a",
        "[x async for x in a]",
        "[x for x, y in a]",
        "[x for x.y in a]",
        "[__x for __x in a]",
        "b'a'",
        "1j",
        "...",
        "1e999",
        "true",
        "null",
        "f'{a!r}'",
        "f'{a:{b}}'",
        "f'{a:%Y}'",
        "match(a, b)",
        "match(a, '(')",
        "lower()",
        "lower(a, b)",
        "a; b",
        "a = 1",
        "import os",
        "",
        "   ",
        "a b",
        "a\nb",
        "'\0'",
        "1 / 0",
        "1 + 'a'",
        "-'a'",
        "[[[[w for w in a] for x in a] for y in a] for z in a]",
        ["a"],
        {"a": 1},
        float("nan"),
    ],
)
def test_a_construct_outside_the_subset_is_refused(expression: Any) -> None:
    [problem, *_] = problems({"set": {"out": expression}})

    assert problem.path == "mapping.set.out"


# Bombs.


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "2**5000",
        "(-9)**9**9",
        "'a'*10**9",
        "10**9*'a'",
        "[0]*10**9",
        "'a'*1000*1000*1000*1000",
        "1<<10**9",
        "1e308*10",
        f"f'{{a:{10**9}}}'",
        f"f'{{a:.{10**9}f}}'",
        "9" * 1_500,
        "9" * 5_000,
        "a+" * 900 + "a",
        "(" * 400 + "a" + ")" * 400,
        "-" * 1_900 + "1",
        "not " * 400 + "a",
        "[" * 150 + "]" * 150,
        "a" + "[0]" * 400,
        "a" + ".b" * 600,
        "match(a, '(a+)+$')",
        "match(a, '(a|a)*$')",
        "match(a, '(a|b|ab)*c')",
        "match(a, '(a?){500}a{500}')",
        "match(a, '(.*)(.*)(.*)(.*)(.*)(.*)x')",
        "match(a, '((a{1,9}){1,9}){1,9}b')",
        "match(a, '(?:){1000000}')",
        "match(a, 'a{100000}')",
        r"match(a, '(a*)\\1\\1')",
        "match(a, '(?=.*a)(?=.*b)')",
        f"match(a, '{'a' * 300}')",
    ],
    ids=lambda expression: expression[:30],
)
def test_a_bomb_is_refused_when_it_is_compiled(expression: str) -> None:
    assert problems({"set": {"out": expression}})


LONG = {
    "n": 10**9,
    "short": "a" * 2_000,
    "text": "a" * 10_000,
    "list": list(range(10_000)),
    "texts": ["a" * 1_000] * 1_000,
    "huge": 2**4000,
}


@pytest.mark.parametrize(
    "expression",
    [
        "n ** n",
        "n * text",
        "text * n",
        "list * n",
        "huge * huge",
        "huge ** 2",
        "replace(text, '', text)",
        "join(list, text)",
        "[[y for y in list] for x in list]",
        "[x for x in list for y in list]",
        "[text + text for x in list]",
        "[f'{text}{x}' for x in list]",
        "[upper(text) for x in list]",
        "[sha256(text) for x in list]",
        "[to_json(record) for x in list]",
        "[list == record.list for x in list]",
        "[text in text for x in list]",
        "[sort(list) for x in list]",
        "[{'a': [y for y in list]} for x in list]",
        "decimal('1e999') * decimal('1e999')",
        "int(decimal('1e9999'))",
        "int(text)",
        "int(replace(text, 'a', '9'))",
        "float(replace(text, 'a', '9'))",
        "round(1, n)",
        "round(1, 0 - n)",
        "format_time(0, '%99999999Y')",
        "match(text, '^a+a+b')",
        "[match(short, 'a*b') for x in list]",
        "timestamp(n * n * n)",
        "timestamp('1' + text)",
    ],
)
def test_a_bomb_in_the_data_fails_the_record_and_not_the_node(expression: str) -> None:
    assert failure(expression, LONG).startswith("set.out: ")


def test_a_decimal_from_a_source_is_not_spelt_out_when_it_is_gigantic() -> None:
    gigantic = {"a": Decimal("1e999999")}

    for expression in ("int(a)", "floor(a)", "ceil(a)", "round(a)", "round(a, 2)", "text(a)", "f'{a:f}'", "a + 1"):
        failure(expression, gigantic)


def test_the_budget_is_filled_again_for_each_record() -> None:
    record = {"texts": ["a" * 1_000] * (BUDGET // 10_000)}

    mapped = field("[x + x for x in texts]").apply([record] * 5)

    assert mapped.failed == []
    assert len(mapped.records) == 5


def test_the_budget_covers_all_fields_of_a_record_together() -> None:
    loop = "[x + x for x in texts]"
    record = {"texts": ["a" * 1_000] * (BUDGET // 10_000)}

    mapped = compile_mapping({"set": {f"f{number}": loop for number in range(9)}}).apply([record])

    assert texts(mapped) == [(0, "set.f2: too expensive: the record costs too much work or memory")]


@pytest.mark.parametrize(
    "wrap",
    [
        "({} + a)",
        "({} * a)",
        "(a - {})",
        "-{}",
        "not {}",
        "({} and a)",
        "({} < 1)",
        "(1 < {} < 2)",
        "({} in a)",
        "lower({})",
        "timestamp({})",
        "coalesce(a, b, c, d, {})",
        "coalesce({}, a)",
        "text({})",
        "[{}]",
        "{{'a': {}}}",
        "{}.b",
        "{}[0]",
        "(a if {} else b)",
        "({} if a else b)",
        "get({}, 'a')",
    ],
)
def test_the_deepest_expression_that_is_allowed_can_be_run(wrap: str) -> None:
    expression = "a"
    while True:
        deeper = wrap.format(expression)
        tree = ast.parse(deeper, mode="eval")
        if _depth(tree.body) > DEPTH_LIMIT:
            break
        expression = deeper

    mapped = run(expression, {})

    assert len(mapped.records) + len(mapped.failed) == 1


def _depth(node: ast.AST) -> int:
    children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr | ast.comprehension)]
    return 1 + max(map(_depth, children), default=0)


# The parts of a document.


def test_without_a_document_records_pass_as_they_are() -> None:
    record = {"a": 1}

    mapped = compile_mapping(None).apply([record, 5, "x", None, [1]])

    assert mapped.records == [{"a": 1}, {"value": 5}, {"value": "x"}, {"value": None}, {"value": [1]}]
    assert mapped.records[0] is record
    assert compile_mapping(None).key == ()


def test_where_counts_what_it_does_not_keep() -> None:
    mapped = compile_mapping({"where": "id in [1, 3]", "set": {"n": "id"}}).apply([{"id": id_} for id_ in range(5)])

    assert mapped == Mapped([{"n": 1}, {"n": 3}], [], [0, 2, 4], read=5)
    assert [mapped.origin(number) for number in range(2)] == [(1, None), (3, None)]


def test_a_constant_where_is_allowed() -> None:
    assert compile_mapping({"where": True}).apply([{}]).filtered == []
    assert compile_mapping({"where": False}).apply([{}]).filtered == [0]


def test_set_keeps_the_order_of_its_fields() -> None:
    mapped = compile_mapping({"set": {"z": "1", "a": "2", "m n": "3"}}).apply([{}])

    assert list(mapped.records[0].items()) == [("z", 1), ("a", 2), ("m n", 3)]


def test_drop_rename_and_types_change_a_record_that_passes_whole() -> None:
    record = {"a": "1", "b": 2, "c": 3}
    mapped = compile_mapping({"drop": ["c", "absent"], "rename": {"b": "n", "x": "y"}, "types": {"a": "int"}}).apply(
        [record, {"a": None}]
    )

    assert mapped.records == [{"a": 1, "n": 2}, {"a": None}]
    assert record == {"a": "1", "b": 2, "c": 3}


def test_two_fields_may_change_places() -> None:
    assert compile_mapping({"rename": {"a": "b", "b": "a"}}).apply([{"a": 1, "b": 2}]).records == [{"b": 1, "a": 2}]
    document = {"set": {"a": "1", "b": "2"}, "rename": {"a": "b", "b": "a"}}
    assert compile_mapping(document).apply([{}]).records == [{"b": 1, "a": 2}]


def test_drop_rename_and_types_work_on_the_fields_of_set() -> None:
    document = {
        "set": {"a": "x", "b": "y", "c": "z"},
        "drop": ["c"],
        "rename": {"a": "n"},
        "types": {"n": "int"},
        "key": ["n", "b"],
    }
    mapping = compile_mapping(document)

    assert mapping.apply([{"x": "5", "y": 1}, {}]).records == [{"n": 5, "b": 1}, {"n": None, "b": None}]
    assert mapping.key == ("n", "b")


@pytest.mark.parametrize(
    ("name", "given_value", "expected"),
    [
        ("text", 5, "5"),
        ("text", False, "false"),
        ("int", "5", 5),
        ("float", "1.5", 1.5),
        ("decimal", 0.1, Decimal("0.1")),
        ("bool", "Yes", True),
        ("bool", 0, False),
        ("bool", True, True),
        ("timestamp", "2026-03-01T10:11:12Z", MOMENT),
        ("date", "2026-03-01", date(2026, 3, 1)),
        ("json", "[1]", [1]),
        ("json", {"a": 1}, {"a": 1}),
    ],
)
def test_a_type_converts(name: str, given_value: Any, expected: Any) -> None:
    for document in ({"types": {"a": name}}, {"set": {"a": "a"}, "types": {"a": name}}):
        found = compile_mapping(document).apply([{"a": given_value}]).records[0]["a"]
        assert found == expected
        assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "given_value", "message"),
    [
        ("int", "x", "types.a: cannot read text as an int"),
        ("bool", "maybe", "types.a: cannot read text as a bool"),
        ("bool", 2, "types.a: cannot read int as a bool"),
        ("json", "{", "types.a: cannot read text as JSON"),
        ("int", [], "types.a: expects a number, not list"),
    ],
)
def test_a_value_that_does_not_convert_fails_the_record(name: str, given_value: Any, message: str) -> None:
    assert texts(compile_mapping({"types": {"a": name}}).apply([{"a": given_value}])) == [(0, message)]


def test_unnest_gives_one_record_per_element_with_set() -> None:
    mapped = compile_mapping({"unnest": "lines", "set": {"order": "id", "sku": "item.sku"}}).apply([RECORD])

    assert mapped.records == [{"order": 7, "sku": "x"}, {"order": 7, "sku": "y"}]


def test_unnest_without_set_merges_the_element_into_the_record() -> None:
    record: dict[str, Any] = {"id": 1, "lines": [{"sku": "x"}, {"sku": "y", "id": 9}]}
    mapped = compile_mapping({"unnest": "lines"}).apply([record])

    assert mapped.records == [{"id": 1, "sku": "x"}, {"id": 9, "sku": "y"}]
    assert len(record["lines"]) == 2


def test_unnest_puts_a_plain_element_in_the_place_of_its_list() -> None:
    mapped = compile_mapping({"unnest": "tags"}).apply([{"id": 1, "tags": ["a", "b"]}])

    assert mapped.records == [{"id": 1, "tags": "a"}, {"id": 1, "tags": "b"}]


@pytest.mark.parametrize("path", ["order['the lines']", "record.order['the lines']"])
def test_unnest_follows_a_path_and_leaves_the_input_as_it_is(path: str) -> None:
    record = {"order": {"no": 5, "the lines": [{"sku": "x"}]}}
    mapped = compile_mapping({"unnest": path}).apply([record])

    assert mapped.records == [{"order": {"no": 5}, "sku": "x"}]
    assert record == {"order": {"no": 5, "the lines": [{"sku": "x"}]}}


def test_where_sees_each_element_of_an_unnested_list() -> None:
    document = {"unnest": "lines", "where": "item.qty > 2", "set": {"sku": "item.sku"}}

    assert compile_mapping(document).apply([RECORD]) == Mapped([{"sku": "y"}], [], [0], read=2, origins=[(0, 1)])


def test_a_record_without_elements_counts_as_one_that_was_filtered() -> None:
    mapped = compile_mapping({"unnest": "a"}).apply([{}, {"a": []}, {"a": None}])

    assert mapped == Mapped([], [], [0, 1, 2], read=3, origins=[])


@pytest.mark.parametrize("path", ["a", "o['l']"])
def test_an_element_that_fails_fails_alone_and_is_kept_with_the_rest_of_its_record(path: str) -> None:
    def record(values: list[Any]) -> dict[str, Any]:
        return {"id": 1, "a": values} if path == "a" else {"id": 1, "o": {"l": values, "n": 2}}

    mapping = compile_mapping({"unnest": path, "where": "item != 0", "set": {"n": "item + id"}, "key": "n"})
    records = [record([1]), record([0, 1, "x", 2]), record([2])]
    mapped = mapping.apply(records)

    assert mapped.records == [{"n": 2}, {"n": 2}, {"n": 3}, {"n": 3}]
    assert mapped.failed == [FailedRecord(1, 2, "mapping", "set.n", "cannot add text and int")]
    assert (mapped.filtered, mapped.read) == ([1], 6)
    assert [mapped.origin(number) for number in range(4)] == [(0, 0), (1, 1), (1, 3), (2, 0)]
    alone = mapping.alone(records[1], 2)
    assert alone == record(["x"])
    assert records[1] == record([0, 1, "x", 2])
    assert mapping.apply([alone]).failed == [FailedRecord(0, 0, "mapping", "set.n", "cannot add text and int")]
    assert mapping.key_of(alone) is None
    assert mapping.key_of(mapping.alone(records[1], 3)) == (3,)
    assert mapping.key_of(records[1]) is None


def test_a_record_that_is_a_list_is_cut_down_to_one_element_too() -> None:
    mapping = compile_mapping({"unnest": "value"})

    assert mapping.apply([[5, 6]]).records == [{"value": 5}, {"value": 6}]
    assert mapping.apply([mapping.alone([5, 6], 1)]).records == [{"value": 6}]


def test_without_unnest_a_record_alone_is_the_record_itself() -> None:
    assert compile_mapping({}).alone([1], None) == [1]
    assert compile_mapping({"unnest": "a"}).alone({"a": 5}, None) == {"a": 5}


def test_unnest_of_something_else_fails_the_record() -> None:
    mapped = compile_mapping({"unnest": "a"}).apply([{"a": 5}])

    assert mapped.failed == [FailedRecord(0, None, "mapping", "unnest", "expects a list, not int")]
    assert mapped.read == 1


# What cannot be read.


@pytest.mark.parametrize("document", [None, {"set": {"a": "b"}}, {"unnest": "a"}, {"where": "value", "key": "a"}])
def test_a_payload_that_could_not_be_read_fails_at_the_source_and_its_neighbours_pass(document: Any) -> None:
    mapping = compile_mapping(document)
    unreadable = Unreadable(b"{", "is not JSON")
    mapped = mapping.apply([{"a": [1], "value": 1}, unreadable, {"a": [2], "value": 1}])

    assert mapped.failed == [FailedRecord(1, None, "source", None, "is not JSON")]
    assert (len(mapped.records), mapped.read) == (2, 3)
    assert mapping.alone(unreadable, None) is unreadable
    assert mapping.key_of(unreadable) is None


# Deletions.


def test_a_deletion_is_mapped_to_its_key_alone() -> None:
    document = {
        "where": "op != 'noop'",
        "delete": "op == 'd'",
        "set": {"id": "id", "total": "int(total)", "shop": "shop"},
        "rename": {"id": "no"},
        "types": {"no": "text"},
        "key": ["shop", "no"],
    }
    mapped = compile_mapping(document).apply(
        [
            {"op": "c", "id": 1, "shop": "a", "total": "5"},
            {"op": "noop"},
            {"op": "d", "id": 2, "shop": "b", "total": "unreadable"},
            {"op": "c", "id": 3, "shop": "b", "total": "unreadable"},
            {"op": "d", "id": 4, "shop": "c"},
        ]
    )

    assert mapped.records == [
        {"no": "1", "total": 5, "shop": "a"},
        {"no": "2", "shop": "b"},
        {"no": "4", "shop": "c"},
    ]
    assert mapped.deletes == [1, 2]
    assert [mapped.origin(number) for number in range(3)] == [(0, None), (2, None), (4, None)]
    assert mapped.is_lawful


@pytest.mark.parametrize("unnest", [{}, {"unnest": "xs"}])
def test_a_deletion_of_a_record_that_passes_whole_has_its_renamed_and_converted_key(unnest: dict[str, Any]) -> None:
    document = {
        "delete": "gone",
        "rename": {"n": "id"},
        "types": {"id": "int", "at": "timestamp"},
        "key": "id",
        **unnest,
    }
    record = {"n": "5", "at": "never", "gone": True, "xs": [{"y": 1}]}
    mapping = compile_mapping(document)
    mapped = mapping.apply([record, {**record, "n": "x"}])

    assert mapped.records == [{"id": 5}]
    assert mapped.deletes == [0]
    assert [failed.field for failed in mapped.failed] == ["types.id"]
    assert mapping.key_of(record) == (5,)


def test_delete_needs_a_key() -> None:
    assert [problem.path for problem in problems({"delete": "gone"})] == ["mapping.delete"]
    assert compile_mapping({"delete": "gone", "key": "id"}).can_delete
    assert not compile_mapping({"key": "id"}).can_delete


# Keys of records that failed elsewhere.


@pytest.mark.parametrize(
    ("document", "record", "expected"),
    [
        ({"set": {"id": "n + 1", "x": "int(y)"}, "key": "id"}, {"n": 1, "y": "no number"}, (2,)),
        ({"set": {"a": "a", "b": "meta"}, "key": ["b", "a"]}, {"a": 1}, ("m", 1)),
        ({"set": {"id": "n"}, "rename": {"id": "no"}, "types": {"no": "text"}, "key": "no"}, {"n": 1}, ("1",)),
        ({"rename": {"n": "id"}, "types": {"id": "text", "y": "int"}, "key": "id"}, {"n": 1, "y": "z"}, ("1",)),
        ({"where": "False", "key": "id"}, {"id": 1}, (1,)),
        ({"key": "id"}, {}, None),
        ({"key": ["id", "x"]}, {"id": 1}, None),
        ({"set": {"id": "n + 1"}, "key": "id"}, {"n": "x"}, None),
        ({"set": {"id": "n"}}, {"n": "x"}, None),
        ({"key": "value"}, 5, (5,)),
        ({"set": {"id": "[x for x in xs for y in xs]"}, "key": "id"}, {"xs": [1] * 3_000}, None),
    ],
)
def test_the_key_of_a_record_is_told_by_the_key_fields_alone(document: Any, record: Any, expected: Any) -> None:
    assert compile_mapping(document).key_of(record, "m") == expected


def test_unnest_pays_for_the_copies_that_it_makes() -> None:
    wide = {f"f{number}": number for number in range(5_000)} | {"list": list(range(5_000))}

    assert compile_mapping({"unnest": "list"}).apply([wide]).failed != []


def test_item_is_a_field_where_nothing_is_unnested() -> None:
    assert value("item", {"item": 5}) == 5


@pytest.mark.parametrize("key", ["out", ["out"]])
def test_a_key_is_one_field_or_several(key: Any) -> None:
    assert field("1", {"key": key}).key == ("out",)


@pytest.mark.parametrize("answer", ["fail", "skip", None, 5])
def test_on_error_is_said_to_stand_elsewhere_now(answer: Any) -> None:
    [problem] = problems({"on_error": answer})

    assert problem.path == "mapping.on_error"
    assert "next to `mapping`" in problem.message
    assert "on_error: " in problem.hint


# Problems.


def test_all_problems_are_listed_at_once_with_their_places_and_hints() -> None:
    found = problems(
        {
            "where": "kind = 1",
            "set": {"email": "lowr(user.email)", "both": "true + x.lower()", "ok": "id"},
            "drop": ["emial"],
            "types": {"ok": "integer"},
            "unnest": "a + b",
            "key": ["ok", "idd"],
            "wehre": "x",
            "python": "a.b.c",
        }
    )

    assert [problem.path for problem in found] == [
        "mapping.wehre",
        "mapping.python",
        "mapping.types.ok",
        "mapping.drop.emial",
        "mapping.key",
        "mapping.unnest",
        "mapping.where",
        "mapping.set.email",
        "mapping.set.both",
        "mapping.set.both",
    ]
    hints = {problem.path: problem.hint for problem in found}
    assert hints["mapping.wehre"] == "did you mean where?"
    assert hints["mapping.drop.emial"] == "did you mean email?"
    assert hints["mapping.set.both"] == "write lower(x)"
    assert "lower" in hints["mapping.set.email"]
    assert all(problem.message for problem in found)


def test_a_syntax_error_says_its_column() -> None:
    [problem] = problems({"set": {"a": "id + + * 2"}})

    assert "at column 8" in problem.message


def test_a_field_named_like_a_keyword_gets_a_hint() -> None:
    [problem] = problems({"set": {"a": "from"}})

    assert problem.hint == 'a field named from is written record["from"]'
    assert value('record["from"]', {"from": 1}) == 1


def test_the_path_of_the_caller_is_in_every_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        compile_mapping({"set": {"a": "("}, "x": 1}, "datasources.orders.mapping")

    assert [problem.path for problem in caught.value.problems] == [
        "datasources.orders.mapping.x",
        "datasources.orders.mapping.set.a",
    ]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ([], "mapping"),
        ("text", "mapping"),
        ({"set": []}, "mapping.set"),
        ({"set": {}}, "mapping.set"),
        ({"set": {1: "a"}}, "mapping.set.1"),
        ({"set": {"": "a"}}, "mapping.set."),
        ({"where": []}, "mapping.where"),
        ({"drop": "a"}, "mapping.drop"),
        ({"drop": [1]}, "mapping.drop"),
        ({"drop": ["a", "a"]}, "mapping.drop"),
        ({"rename": {"a": 1}}, "mapping.rename.a"),
        ({"rename": {"a": []}}, "mapping.rename.a"),
        ({"rename": {"a": "c", "b": "c"}}, "mapping.rename.a"),
        ({"rename": {"a": "b"}, "drop": ["a"]}, "mapping.rename.a"),
        ({"rename": {"a": "b"}, "set": {"a": "1", "b": "2"}}, "mapping.rename"),
        ({"rename": {"x": "b"}, "set": {"a": "1"}}, "mapping.rename.x"),
        ({"types": {"a": "number"}}, "mapping.types.a"),
        ({"types": {"a": []}}, "mapping.types.a"),
        ({"types": {"b": "int"}, "set": {"a": "1"}}, "mapping.types.b"),
        ({"unnest": 5}, "mapping.unnest"),
        ({"unnest": "a[0]"}, "mapping.unnest"),
        ({"unnest": "("}, "mapping.unnest"),
        ({"unnest": "record"}, "mapping.unnest"),
        ({"unnest": ""}, "mapping.unnest"),
        ({"key": 5}, "mapping.key"),
        ({"key": ""}, "mapping.key"),
        ({"key": ["a", "a"]}, "mapping.key"),
        ({"python": 5}, "mapping.python"),
        ({"python": "shop"}, "mapping.python"),
        ({"python": "shop:clean()"}, "mapping.python"),
        ({"python": "shop:cleaning.clean"}, "mapping.python"),
        ({"delete": []}, "mapping.delete"),
        ({"delete": "(", "key": "id"}, "mapping.delete"),
    ],
)
def test_a_part_of_the_wrong_shape_is_a_problem(document: Any, path: str) -> None:
    assert path in [problem.path for problem in problems(document)]


# No text and no record can break it.

ATOMS = st.sampled_from(
    ["id", "a.b", "record", "meta", "item", "1", "0", "-1", "2.5", "'x'", "None", "True", "[1, 2]", "xs", "user['k']"]
)
SHAPES = [
    "({} + {})", "({} * {})", "({} ** {})", "({} - {})", "({} / {})", "({} % {})", "({} < {})", "({} == {})",
    "({} in {})", "({} and {})", "({} if {} else 1)", "(not {})", "-{}", "[{}, {}]", "{{'k': {}}}", "{}[{}]",
    "({}).k", "f'{{{}}}'",
    "[x for x in {}]", "[{} for id in {}]", "[{} for x in xs if {}]", "({}).__class__", "({}).lower()",
    "(y := {})", "lambda: {}",
    *(f"{name}({', '.join(['{}'] * max(1, function.least))})" for name, function in FUNCTIONS.items()),
    "open({})", "__import__({})",
]  # fmt: skip


def _grown(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(SHAPES).flatmap(
        lambda shape: st.lists(children, min_size=3, max_size=3).map(lambda parts: shape.format(*parts))
    )


EXPRESSIONS = st.recursive(ATOMS, _grown, max_leaves=12)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.decimals() | st.datetimes(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(["b", "k", "x"]), children),
    max_leaves=6,
)
RECORDS = st.dictionaries(st.sampled_from(["id", "a", "xs", "user", "x"]), VALUE) | VALUE

ALLOWED_NAMES = (
    {f"f_{name}" for name in (*FUNCTIONS, "format_parts")}
    | {f"o_{name}" for name in ("add", "subtract", "multiply", "divide", "floor_divide", "modulo", "power", "negate")}
    | {
        f"o_{name}"
        for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "chain", "item")
    }
    | {"o_is_in", "o_is_not_in", "NUMBERS", "append", "enumerate", "type", "dict", "str", "float", "int"}
    | {"len", "round", "fromisoformat", "tzinfo", "get", "lower", "upper", "strip", "as_record", "Exception"}
    | {"call", "call_deep", "guard", "guard_deep", "each", "find", "power"}
    | {"PLAIN", "TooExpensiveError", "records", "failed", "filtered", "read"}
)


def names_in(code: types.CodeType) -> set[str]:
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def compiled(expression: str) -> Mapping | None:
    try:
        return field(expression)
    except ConfigError:
        return None


@settings(deadline=None)
@given(st.text(max_size=60) | EXPRESSIONS)
@example("a" + "\ud800")
@example("\x00")
@example("'\\N{DIGIT ONE}'")
def test_any_text_compiles_to_known_names_or_is_a_config_error(text: str) -> None:
    mapping = compiled(text)

    if mapping is not None:
        code = mapping._run.__code__
        names = {name for name in names_in(code) if not (name[0] == "p" and name[1:].isdigit())}
        assert names <= ALLOWED_NAMES
        assert mapping._run.__globals__["__builtins__"] == {}


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, st.lists(RECORDS, max_size=4))
def test_a_compiled_expression_never_raises_for_a_record(expression: str, records: list[Any]) -> None:
    mapping = compiled(expression)

    if mapping is not None:
        mapped = mapping.apply(records)
        assert len(mapped.records) + len(mapped.failed) == mapped.read == len(records)
        assert all("\n" not in failed.reason for failed in mapped.failed)


DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "where": EXPRESSIONS,
        "set": st.dictionaries(st.sampled_from(["id", "a", "n"]), EXPRESSIONS, min_size=1),
        "drop": st.lists(st.sampled_from(["id", "a", "n"]), unique=True),
        "rename": st.dictionaries(st.sampled_from(["id", "a"]), st.sampled_from(["id", "b"]), min_size=1),
        "types": st.dictionaries(st.sampled_from(["id", "a"]), st.sampled_from(sorted(functions.TYPES)), min_size=1),
        "unnest": st.sampled_from(["xs", "user.k", "record.a"]),
        "key": st.sampled_from(["id", "a"]),
        "delete": EXPRESSIONS,
    },
)


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, st.lists(RECORDS, max_size=3))
def test_a_compiled_mapping_never_raises(document: dict[str, Any], records: list[Any]) -> None:
    try:
        mapping = compile_mapping(document)
    except ConfigError:
        return
    mapped = mapping.apply(records, [{"m": 1}] * len(records))

    assert all(isinstance(record, dict) for record in mapped.records)
    places = [(failed.index, -1 if failed.element is None else failed.element) for failed in mapped.failed]
    assert places == sorted(set(places))
    assert mapped.is_lawful
    assert mapped.read == sum(units_of(document, record, mapped, index) for index, record in enumerate(records))
    assert [mapped.origin(number)[0] for number in mapped.deletes] == sorted(
        mapped.origin(number)[0] for number in mapped.deletes
    )
    for number, made in enumerate(mapped.records):
        index, element = mapped.origin(number)
        again = mapping.apply([mapping.alone(records[index], element)], [{"m": 1}])
        assert repr(again.records) == repr([made])
        assert mapping.key_of(mapping.alone(records[index], element), {"m": 1}) in (None, key_in(mapping, made))


def units_of(document: dict[str, Any], record: Any, mapped: Mapped, index: int) -> int:
    """How many records an input stands for, counted by hand."""
    if "unnest" not in document or any((one.index, one.element) == (index, None) for one in mapped.failed):
        return 1
    found = record if isinstance(record, dict) else {"value": record}
    for step in document["unnest"].removeprefix("record.").split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return len(found) if isinstance(found, list) and found else 1


def key_in(mapping: Mapping, record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in mapping.key)


@settings(deadline=None)
@given(st.recursive(st.none() | st.text(max_size=5) | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3) | st.sampled_from(PARTS), inner)))  # fmt: skip  # noqa: E501
def test_any_document_compiles_or_is_a_config_error(document: Any) -> None:
    with contextlib.suppress(ConfigError):
        assert compile_mapping(document).apply([{}]).is_lawful


# The reference.


def test_every_function_is_documented_with_its_arguments() -> None:
    reference = REFERENCE.read_text()

    assert [name for name, function in FUNCTIONS.items() if f"| `{function.signature}` |" not in reference] == []


def test_every_part_and_every_type_is_documented() -> None:
    reference = REFERENCE.read_text()

    assert [name for name in (*PARTS, *functions.TYPES) if f"| `{name}` |" not in reference] == []

"""All mistakes of a file come at once, whatever stage they are of, each with its line and column."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.connectors import plugins
from headgate.core.reach import Kind
from headgate.datasources.documents import Documents, gather_all, gather_yaml, read_yaml, together
from headgate.datasources.lines import located
from headgate.datasources.registry import Registry
from headgate.errors import ConfigError, Problem
from headgate.store.database import Database
from headgate.store.secrets import Keyring, Secrets, new_master_key
from headgate.store.wake import Waker

FILE = """\
# Everything is wrong with it.
datasources:
  shape:
    source: generator
    mapping:
      set: {total: round(a, 2)}
    sink: {type: postgres, url: {$secret: nowhere}, tabel: t}
    streams: 0
  numbers:
    source: {type: generator, rate: .nan, rte: 1}
    sink: {type: blackhole}
    mapping:
      where: kind = "order"
      on_error: skip
  reach:
    source: {type: files, path: /etc/passwd}
    mapping:
      python: shop.cleaning:clean
      where: a &&
        b
    sink: {type: blackholes}
  well:
    source: {type: generator}
    sink: {type: blackhole}
extra: 1
"""


@pytest.fixture
async def registry(database: Database) -> Registry:
    return Registry(database, Secrets(database, Keyring.load(new_master_key(), None)), Waker(database))


async def problems_of(registry: Registry, documents: Documents, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        await registry.plan(documents, is_admin=False, **more)
    return [str(problem) for problem in caught.value.problems]


async def test_mistakes_of_all_stages_come_at_once_with_their_places(registry: Registry) -> None:
    found = await problems_of(registry, gather_yaml(FILE, "orders.yaml"))
    places = [line.split(": ")[:2] for line in found]
    assert places == [
        ["orders.yaml:4:5", "datasources.shape.source"],
        ["orders.yaml:6:13", "datasources.shape.mapping.set.total"],
        ["orders.yaml:7:5", "datasources.shape.sink.table"],
        ["orders.yaml:7:28", "datasources.shape.sink.url"],
        ["orders.yaml:7:53", "datasources.shape.sink.tabel"],
        ["orders.yaml:8:5", "datasources.shape.streams"],
        ["orders.yaml:10:31", "datasources.numbers.source.rate"],
        ["orders.yaml:10:43", "datasources.numbers.source.rte"],
        ["orders.yaml:13:7", "datasources.numbers.mapping.where"],
        ["orders.yaml:14:7", "datasources.numbers.mapping.on_error"],
        ["orders.yaml:16:27", "datasources.reach.source.path"],
        ["orders.yaml:18:7", "datasources.reach.mapping.python"],
        ["orders.yaml:19:7", "datasources.reach.mapping.where"],
        ["orders.yaml:21:12", "datasources.reach.sink.type"],
        ["orders.yaml:25:1", "extra"],
    ]
    said = dict(zip((place[1].removeprefix("datasources.") for place in places), found, strict=True))
    assert "did you mean table?" in said["shape.sink.tabel"]
    assert "quote the expression: total: 'round(a, 2)'" in said["shape.mapping.set.total"]
    assert "headgate secrets set nowhere" in said["shape.sink.url"]
    assert 'did you mean `kind == "order"`?' in said["numbers.mapping.where"]
    assert "headgate allow add folder" in said["reach.source.path"]
    assert "headgate allow add module shop.cleaning" in said["reach.mapping.python"]
    assert "did you mean" in said["reach.sink.type"]


async def test_what_is_wrong_is_not_applied(registry: Registry) -> None:
    documents = gather_yaml("datasources:\n  a: {source: {type: generator}, sink: {type: blackhole}}\n  b: 5\n")
    assert list(documents) == ["a"]
    with pytest.raises(ConfigError, match=r"YAML:3:3: datasources\.b: must be a mapping"):
        await registry.apply(documents, "tester", is_admin=True)
    assert await registry.export() == []


async def test_a_body_without_a_text_has_no_lines(registry: Registry) -> None:
    document = {"source": {"type": "generator", "rte": 1}, "sink": 5}
    found = await problems_of(registry, gather_all({"datasources": {"orders": document}}))
    assert [line.partition(": ")[0] for line in found] == ["datasources.orders.sink", "datasources.orders.source.rte"]


async def test_allowed_modules_are_allowed_to_mappings(registry: Registry) -> None:
    await registry.allow(Kind.MODULE, "shop_that_is_not_there", "admin")
    text = "datasources:\n  a:\n    source: {type: generator}\n    sink: {type: blackhole}\n"
    text += "    mapping: {python: shop_that_is_not_there:clean}\n"
    [found] = await problems_of(registry, gather_yaml(text, "a.yaml"))
    assert found.startswith("a.yaml:5:15: datasources.a.mapping.python: shop_that_is_not_there cannot be imported")


def test_of_what_has_the_wrong_shape_nothing_else_is_said() -> None:
    shape = [Problem("a.source", "must be a mapping")]
    others = [Problem("a.source.type", "is missing"), Problem("a.sources", "unknown"), Problem("a.source", "is wrong")]
    assert together(shape, others) == [shape[0], others[1]]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("", "a.yaml:1:1"),
        ("top.a.b.x", "a.yaml:2:9: top.a.b.x"),
        ("top.list.1", "a.yaml:3:13: top.list.1"),
        ("top.list.1.k", "a.yaml:3:14: top.list.1.k"),
        ("top.list.9", "a.yaml:3:3: top.list.9"),
        ("top.merged.y", "a.yaml:4:16: top.merged.y"),
        ("top.merged.z", "a.yaml:5:3: top.merged.z"),
        ("nowhere.at.all", "a.yaml:1:1: nowhere.at.all"),
    ],
)
def test_a_path_is_followed_as_far_as_it_goes(path: str, place: str) -> None:
    text = "top:\n  a.b: {x: 1}\n  list: [1, {k: 2}]\n  base: &base {y: 1}\n  merged: {<<: *base}\n"
    assert [problem.path for problem in located([Problem(path, "m")], text, "a.yaml")] == [place]


def test_a_text_that_is_no_yaml_has_no_places() -> None:
    assert located([Problem("a", "m")], "{", "a.yaml") == [Problem("a", "m")]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("mapping: {set: {sku: lines[0].sku}}", "within { } and [ ], quote"),
        ('mapping: {set: {name: f"{first}"}}', "within { } and [ ], quote"),
        ("mapping: {where: a in [1], set: {b: c}, drop: [x}", "within { } and [ ], quote"),
        ('mapping:\n      where: "a" == kind', "begins with a quote"),
        ("mapping:\n      where: a if b else c: d", "has a colon in it"),
        ("mapping:\n      where: !done", "write not"),
        ("mapping:\n      where: *a", "begins with *"),
        ("mapping:\n      where: `a`", "quote the value"),
        ("mapping:\n\twhere: a", "indent with spaces"),
    ],
)
def test_yaml_that_an_expression_breaks_gets_a_hint(line: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(f"datasources:\n  a:\n    {line}\n", "a.yaml")
    assert hint in caught.value.problems[0].hint
    assert caught.value.problems[0].path.startswith("a.yaml:")


SIDES = [(one.name, side) for one in plugins.all() for side in ("source", "sink") if getattr(one, side) is not None]


@pytest.mark.parametrize(("name", "side"), SIDES)
async def test_every_connector_can_be_asked_what_wrong_options_reach(registry: Registry, name: str, side: str) -> None:
    raw = {"source": {"type": "generator"}, "sink": {"type": "blackhole"}}
    raw[side] = {"type": name, "nope": "1", "url": {"$secret": "nowhere"}, "path": {"$secret": "nowhere"}}  # type: ignore[dict-item]
    found = await problems_of(registry, gather_all({"datasources": {"a": raw}}))
    assert any(f"datasources.a.{side}.nope: unknown option" in line for line in found)

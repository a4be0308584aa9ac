"""What a window shows is made of what it showed before and of what has changed: the same as if all were sorted, sifted
and counted again."""

from __future__ import annotations

import json
import random
from typing import get_args

import msgspec

from headgate.core.access import ANYONE, Bounds, Caller
from headgate.core.figures import HEALTHS, Figures
from headgate.web.bodies.datasources import Overview, Share, Summary
from headgate.web.overview import Snapshot
from headgate.web.windows import Order, Window
from tests.web.test_overview import summary

CALLERS = (
    ANYONE,
    Caller(None, "one", "viewer", Bounds(("a-*",))),
    Caller(None, "other", "operator", Bounds(("b-*", "a-1*", "*-7"))),
    Caller(None, "none", "viewer", Bounds(("orders",))),
)
WINDOWS = tuple(
    Window(search, health, order, limit)
    for order in get_args(Order)
    for search, health, limit in (("", "", 5), ("", "error", 3), ("alpha", "", 1000), ("a- team:x", "", 4))
)
ROUNDS = 60


def changed(one: Summary, dice: random.Random) -> Summary:
    """The same datasource a moment later."""
    figures = Figures(
        records_written=dice.choice((0, 5, 900)),
        records_dead_lettered=dice.choice((0, 1, 2)),
        written_per_s=dice.choice((None, 0.0, 0.07, 3.33, 12.5)),
        backlog_records=dice.choice((None, 0, 4)),
        lag_s=dice.choice((0.0, 1.5)),
        last_record_at_s=dice.choice((None, 5.0, 6.0)),
    )
    return msgspec.structs.replace(
        one,
        metrics=figures,
        health=dice.choice((one.health, one.health, dice.choice(HEALTHS))),
        node=dice.choice(("alpha", "beta", None)),
        labels=dice.choice(([], ["team:x"])),
    )


def later(lines: dict[str, Summary], dice: random.Random) -> dict[str, Summary]:
    """What there is a moment later: some have changed, some have come, some are gone."""
    found = {name: one for name, one in lines.items() if dice.random() > 0.03}
    for name in dice.sample(sorted(found), dice.randint(0, len(found) // 3)):
        found[name] = changed(found[name], dice)
    for _ in range(dice.randint(0, 3)):
        name = f"{dice.choice('ab')}-{dice.randint(0, 60)}"
        found[name] = changed(summary(name), dice)
    return dict(sorted(found.items()))


def overview(lines: dict[str, Summary], dice: random.Random) -> Overview:
    nodes = [Share(name="alpha", streams=dice.randint(0, 1))]
    return Overview(datasources=list(lines.values()), nodes=nodes, at_s=1.0)


class Page:
    """What an open page has drawn, by nothing but what it was sent."""

    def __init__(self, caller: Caller, window: Window) -> None:
        self.caller, self.window, self.seen = caller, window, 0
        self.rows: dict[str, dict[str, object]] = {}
        self.order: list[str] = []
        self.said: dict[str, object] = {}

    def take(self, snapshot: Snapshot) -> None:
        """As `overview.js` does."""
        event = snapshot.windows.event(self.caller, self.window, is_next=self.seen == snapshot.number - 1)
        self.seen = snapshot.number
        if not event.startswith(b"data: "):
            return
        said = json.loads(event.removeprefix(b"data: "))
        for row in said["rows"]:
            old = self.rows.get(row["name"], {})
            self.rows[row["name"]] = {**old, **row, "metrics": {**old.get("metrics", {}), **row.get("metrics", {})}}
        self.order = self.order if said["order"] is None else said["order"]
        self.rows = {name: self.rows[name] for name in self.order}
        self.said = {name: said[name] for name in ("matching", "counts", "written_per_s", "nodes")}


async def test_after_any_changes_each_page_shows_what_a_reading_of_all_would() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # Repeats it.
    dice = random.Random(seed)
    lines = later({}, dice)
    pages = [Page(caller, window) for caller in CALLERS for window in WINDOWS]
    snapshot = None
    for _ in range(ROUNDS):
        whole = overview(lines, dice)
        snapshot = await Snapshot.take(whole, snapshot)
        plain = await Snapshot.take(msgspec.json.decode(msgspec.json.encode(whole), type=Overview), None)
        for page in pages:
            if dice.random() < 0.2:
                continue  # It is slow, and gets all of it the next time.
            page.take(snapshot)
            wanted = json.loads(plain.windows.text(page.caller, page.window))
            assert page.order == wanted["order"]
            assert list(page.rows.values()) == wanted["rows"]
            assert page.said == {name: wanted[name] for name in page.said}
        for caller in CALLERS:
            assert snapshot.windows.counts(caller) == plain.windows.counts(caller)
            assert json.loads(snapshot.whole(caller)) == json.loads(plain.whole(caller))
        lines = later(lines, dice)


async def test_what_is_the_same_object_is_not_looked_at() -> None:
    first = await Snapshot.take(Overview(datasources=[summary("a"), summary("b")], nodes=[], at_s=1.0), None)
    same = first._lines["a"]
    second = await Snapshot.take(Overview(datasources=[same, summary("b", 3)], nodes=[], at_s=2.0), first)
    assert second._rows["a"] is first._rows["a"]
    assert set(second._news.texts) == {"b"}

"""The orders that bring this node in line with the registry."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from headgate.core.lifecycle import Wanted
from headgate.core.reconcile import Entry, Forget, Halt, Order, Run, reconcile

ONE, TWO = UUID(int=1), UUID(int=2)
WANTED = Wanted(published=1, running=None, mark=0)
ENTRY = Entry(ONE, "orders", revision=1, enabled=True, deleted=False, wanted=WANTED)
NOT_TO_RUN = {
    "disabled": replace(ENTRY, enabled=False),
    "not published": replace(ENTRY, wanted=None),
    "set aside": replace(ENTRY, quarantine="it blocks"),
}
not_to_run = pytest.mark.parametrize("entry", NOT_TO_RUN.values(), ids=NOT_TO_RUN.keys())


def test_a_new_datasource_is_run() -> None:
    assert reconcile([ENTRY], {}) == [Run(ONE, WANTED)]


def test_a_datasource_that_is_told_already_costs_nothing() -> None:
    assert reconcile([replace(ENTRY, revision=9)], {ONE: WANTED}) == []


@pytest.mark.parametrize(
    "wish",
    [replace(WANTED, published=2), replace(WANTED, running=1), replace(WANTED, mark=1), replace(WANTED, rejected=True)],
    ids=["published", "proved", "marked", "rejected"],
)
def test_any_change_of_the_wish_is_told(wish: Wanted) -> None:
    assert reconcile([replace(ENTRY, wanted=wish)], {ONE: WANTED}) == [Run(ONE, wish)]


def test_a_halted_datasource_is_run_when_it_is_enabled_again() -> None:
    assert reconcile([ENTRY], {ONE: None}) == [Run(ONE, WANTED)]


@not_to_run
def test_what_should_not_run_is_halted_once(entry: Entry) -> None:
    assert not entry.is_to_run
    assert reconcile([entry], {ONE: WANTED}) == [Halt(ONE)]
    assert reconcile([entry], {ONE: None}) == []
    assert reconcile([entry], {}) == []


@pytest.mark.parametrize("told", [WANTED, None], ids=["running", "halted"])
def test_a_deleted_datasource_is_forgotten_whatever_else_is_said_of_it(told: Wanted | None) -> None:
    gone = replace(ENTRY, deleted=True)
    assert not gone.is_to_run
    assert reconcile([gone], {ONE: told}) == [Forget(ONE)]
    assert reconcile([replace(gone, enabled=False)], {ONE: told}) == [Forget(ONE)]
    assert reconcile([gone], {}) == []


def test_only_what_changed_gets_orders_and_each_its_own() -> None:
    other = replace(ENTRY, datasource=TWO, enabled=False)
    told: dict[UUID, Wanted | None] = {TWO: WANTED, UUID(int=3): WANTED}
    orders: list[Order] = [Run(ONE, WANTED), Halt(TWO)]
    assert reconcile([ENTRY, other], told) == orders


def test_giving_the_orders_leaves_nothing_to_order() -> None:
    entries = [ENTRY, replace(ENTRY, datasource=TWO, enabled=False)]
    told: dict[UUID, Wanted | None] = {TWO: WANTED}
    for order in reconcile(entries, told):
        told[order.datasource] = order.wanted if isinstance(order, Run) else None
    assert reconcile(entries, told) == []

"""How a datasource is, in one word, with the reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from headgate.core.figures import HEALTHS, Backlog, InboxBacklog, LastFailure, Reported
from headgate.core.records import Totals
from headgate.datasources.health import Facts, Verdict, explain, judged
from headgate.store.datasources import Content, Datasource, Version
from headgate.store.listed import Unable
from headgate.store.nodes import Node
from headgate.store.states import Others, StreamState

NOW_S = 1_000_000.0
AT = datetime.fromtimestamp(NOW_S - 7200, UTC)
ID, STREAM, ALPHA = UUID(int=1), UUID(int=2), UUID(int=3)
FOUND = Datasource(ID, "orders", True, 1, 1, 1, 0, None, AT)


def published(source: str = "generator", **options: Any) -> Version:
    content = Content({"type": source}, None, {"type": "blackhole"}, options, (), "hash")
    return Version(ID, 1, "published", content, "ada", None, AT)


def node(**changes: Any) -> Node:
    return replace(Node(ALPHA, "alpha", 5, 5.0, None, "1", AT, False, None, 1, None, False), **changes)


def stream(status: str = "RUNNING", detail: str = "running", **changes: Any) -> StreamState:
    state = StreamState(
        STREAM, ID, 0, None, status, detail, ALPHA, "alpha", 5, 1, 1, Totals(5, 5), Reported(), None, AT
    )
    return replace(state, **changes)


def facts(*states: StreamState, **changes: Any) -> Facts:
    return replace(Facts(FOUND, published(), states, [node()], NOW_S), **changes)


PAUSED = replace(FOUND, paused=True)


def failed(next_try_at_s: float | None) -> StreamState:
    detail = "quarantined" if next_try_at_s is None else "backing off"
    return stream("ERROR", detail, error=LastFailure("network", "refused", next_try_at_s))


def test_what_is_tried_when_something_is_back_says_so() -> None:
    error = LastFailure("network", "refused", NOW_S + 12.0, awaits_return=True)
    found = facts(stream("ERROR", "backing off", error=error))
    assert any("tries again in 12 s, or when that is back" in line for line in explain(found))


NO_VERSION = replace(FOUND, published_version=None, running_version=None)
REJECTED = replace(published(), status="rejected", reason="config: no such column")
UNABLE = Unable(ID, STREAM, ALPHA, "alpha", "no driver", AT)


@pytest.mark.parametrize(
    ("found", "health", "why"),
    [
        (facts(stream()), "ok", ""),
        (facts(datasource=NO_VERSION, published=None), "unpublished", "nothing has been published"),
        (facts(stream(), datasource=replace(FOUND, enabled=False)), "stopped", "somebody stopped it"),
        (facts(stream(), datasource=PAUSED), "paused", "somebody paused it"),
        (facts(failed(None), datasource=replace(PAUSED, quarantine="it hung")), "paused", "somebody paused it"),
        (facts(nodes=[], datasource=PAUSED), "paused", "somebody paused it"),
        (facts(stream("STOPPED", "finished")), "ended", "its source has ended"),
        (facts(stream(), stream("STOPPED", "finished")), "ok", ""),
        (facts(), "starting", "no node has taken it up yet"),
        (facts(stream("STARTING", "opening")), "starting", "opening"),
        (facts(stream("STOPPED", "stopped")), "starting", "another node takes it over"),
        (facts(stream("STOPPED", "stopped"), nodes=[node(draining=True)]), "no_node", "all nodes are draining"),
        (facts(nodes=[node(draining=True)]), "no_node", "all nodes are draining"),
        (facts(stream("STARTING", "gone", heartbeat=None), unable=[UNABLE]), "no_node", "alpha: no driver"),
        (facts(unable=[UNABLE]), "no_node", "alpha: no driver"),
        (facts(unable=[UNABLE], nodes=[node(), node(id=ID)]), "starting", "no node has taken it up yet"),
        (facts(nodes=[]), "no_node", "no node is running"),
        (facts(datasource=replace(FOUND, quarantine="it hung")), "error", "quarantined: it hung"),
        (facts(stream(), published=REJECTED), "error", "version 1 was tried and rejected: config: no such column"),
        (facts(published=published("push")), "ok", ""),
        (facts(stream("STOPPED", "stopped", label="a"), published=published("push")), "ok", ""),
    ],
)  # fmt: skip
def test_a_datasource_is_what_a_person_would_say_with_the_reason(found: Facts, health: str, why: str) -> None:
    assert judged(found) == Verdict(health, why)
    assert health in HEALTHS


@pytest.mark.parametrize(
    ("source", "inbox", "meanwhile"),
    [
        ("generator", None, "What its source has stays there."),
        ("webhook", InboxBacklog(0, 0, None), "Webhooks are still taken: none waits yet."),
        ("webhook", InboxBacklog(1, 9, NOW_S), "Webhooks are still taken: 1 payload waits."),
        ("webhook", InboxBacklog(1200, 9, NOW_S), "Webhooks are still taken: 1,200 payloads wait."),
        ("push", None, "Programs that push to it stay connected and keep their records."),
    ],
)
def test_of_a_pause_it_is_told_what_becomes_of_records_meanwhile(
    source: str, inbox: InboxBacklog | None, meanwhile: str
) -> None:
    found = facts(stream("STOPPED", "stopped"), datasource=PAUSED, published=published(source), inbox=inbox)
    said = f"It is paused: nothing is read. {meanwhile} Go on with: headgate ds start orders"
    assert explain(found) == [said]


@pytest.mark.parametrize(
    ("next_try_at_s", "why", "explained"),
    [
        (NOW_S + 12.0, "network: refused", "It failed (network) and tries again in 12 s,"),
        (NOW_S - 1.0, "network: refused", "It failed (network) and tries again now,"),
        (None, "network: refused", "It failed (network) and is not tried again by itself,"),
    ],
)  # fmt: skip
def test_the_next_try_is_told(next_try_at_s: float | None, why: str, explained: str) -> None:
    found = facts(failed(next_try_at_s))
    assert judged(found) == Verdict("error", why)
    assert explain(found)[0].startswith(explained)


def test_while_it_is_being_tried_again_it_is_not_said_to_be_starting() -> None:
    found = facts(stream("STARTING", "opening", error=LastFailure("network", "refused")))
    assert judged(found) == Verdict("error", "network: refused")
    assert explain(found)[0].startswith("It failed (network) and is being tried again (opening), ")


# Hanging.

READING = Reported(reading_since_s=NOW_S - 180.0)


def test_a_read_that_finds_nothing_although_payloads_wait_hangs() -> None:
    found = facts(stream(reported=READING), inbox=InboxBacklog(1200, 9000, NOW_S - 170.0))
    why = "it has not read for 3 min although 1,200 payloads wait"
    assert judged(found) == Verdict("degraded", why)
    assert f"Something hangs: {why}." in explain(found)


@pytest.mark.parametrize(
    "found",
    [
        facts(stream(reported=READING)),  # It waits for its source.
        facts(stream(reported=READING), inbox=InboxBacklog(0, 0, None)),
        facts(stream(reported=READING), inbox=InboxBacklog(1, 10, NOW_S - 0.5)),  # It has just come.
        facts(stream(reported=Reported()), inbox=InboxBacklog(9, 10, NOW_S - 170.0)),  # It is far behind, and reads.
        facts(stream(reported=replace(READING, backlog=Backlog(None, 500), backlog_since_s=None))),
        facts(stream("STOPPED", "stopped", reported=READING), datasource=replace(FOUND, enabled=False)),
    ],
)
def test_what_may_be_waiting_for_its_source_is_not_said_to_hang(found: Facts) -> None:
    assert judged(found).health in ("ok", "stopped")


def test_a_source_that_knows_its_backlog_and_does_not_return_it_hangs() -> None:
    reported = replace(READING, backlog=Backlog(1), backlog_since_s=NOW_S - 90.0)
    assert judged(facts(stream(reported=reported))).why == "it has not read for 90 s although 1 record waits"


def test_a_batch_that_does_not_get_written_hangs_until_it_is_durable() -> None:
    reported = Reported(writing_since_s=NOW_S - 600.0, waiting_since_s=NOW_S - 700.0, waiting_above=5)
    assert judged(facts(stream(reported=reported))).why == "it has been writing one batch for 10 min"
    assert judged(facts(stream(reported=reported, totals=Totals(6, 6)))).health == "ok"


def test_explain_says_since_when_it_waits_for_its_source_and_what_became_of_its_records() -> None:
    totals = Totals(12, 9, 2, 1)
    (line,) = explain(facts(stream(reported=READING, totals=totals)))
    assert line.endswith(
        "12 records read: 9 written, 2 filtered, 1 dead-lettered. It has waited for its source for 3 min."
    )


# Expectations.


def test_what_programs_that_have_gone_have_pushed_counts_as_fresh() -> None:
    expecting = published("push", expect={"fresh_within": "10m"})
    silent = facts(stream(label="a", index=None), published=expecting)
    assert judged(silent).health == "degraded"
    assert judged(replace(silent, others=Others(last_record_at_s=NOW_S - 60.0))).health == "ok"

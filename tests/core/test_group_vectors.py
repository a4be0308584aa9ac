"""Groups against 40 scenarios with the answers of a well-known broker.

`group_vectors.json` has them as data. Our machine answers 30 exactly as the broker does, as far as the scenario says
anything; the other ten differ on purpose, in five ways only, and our whole answer to each is here. What the broker does
beside (monitors, checks of connections, an index) is its own affair; that a lost connection begins a deadline is not.

Its `activate_consumer` names nobody. Here every consumer that is stepping down confirms; where nobody is, the rule
runs once more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headgate.core.groups import machine as groups
from headgate.core.groups.machine import (
    Command,
    Confirm,
    ConnectionDisconnected,
    ConnectionDown,
    ConnectionReconnected,
    Consumer,
    DisconnectedTimeout,
    Effect,
    Evaluate,
    Group,
    Ok,
    Prefer,
    Refused,
    Register,
    Reply,
    StartDeadline,
    TellActive,
    TellStepDown,
    Unregister,
)

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("group_vectors.json").read_text("utf-8"))
PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "groups.md"

WAYS = {
    "a": "A group with someone eligible is never left all waiting.",
    "b": "The order of registration never changes.",
    "c": "A consumer that was told to step down may still be at work: it keeps `deactivating`, and holds, until "
    "it confirms or is forgotten.",
    "d": "A consumer that was forgotten while active steps down when it returns; the present active one stays unless "
    "another is wanted.",
    "e": "A silent consumer keeps its place in the count until it is forgotten, so a short silence moves nothing.",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one step leaves, consumers in order, and who is told what."""

    state: str
    told: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """Which of the five ways, and our answer to each step."""

    way: str
    answers: tuple[Answer, ...]


DIFFERENCES = {
    "handle_connection_down_super_stream_no_active_removed_or_present": Difference(
        "a", (Answer("c1/2 connected waiting, c1/3 connected active", "c1/3 active"),)
    ),
    "connection_reconnected_simple_active_should_be_first": Difference(
        "b", (Answer("c0/0 connected waiting, c1/1 connected active, c2/2 connected waiting"),)
    ),
    "activate_consumer_super_stream_unblock_ignore_disconnected": Difference(
        "e",
        (
            Answer(
                "c0/0 disconnected waiting, c0/1 connected active, c0/2 connected waiting, c0/3 connected waiting",
                "c0/1 active",
            ),
        ),
    ),
    "handle_connection_node_disconnected_simple_deactivating_triggers_rebalance": Difference(
        "c", (Answer("c0/0 connected waiting, c1/1 disconnected deactivating, c2/2 connected waiting"),)
    ),
    "handle_connection_node_disconnected_multiple_one_deactivating": Difference(
        "c", (Answer("c0/0 disconnected deactivating, c0/1 disconnected waiting, c1/2 connected waiting"),)
    ),
    "handle_connection_node_disconnected_deactivating_then_reconnect": Difference(
        "c",
        (
            Answer("c0/0 connected waiting, c1/1 disconnected deactivating, c2/2 connected waiting"),
            Answer("c0/0 connected waiting, c1/1 connected deactivating, c2/2 connected waiting"),
            Answer("c0/0 connected waiting, c1/1 connected active, c2/2 connected waiting", "c1/1 active"),
        ),
    ),
    "connection_reconnected_simple_disconn_active_blocks_rebalancing": Difference(
        "b", (Answer("c0/0 connected waiting, c1/0 disconnected active, c2/0 connected waiting"),)
    ),
    "connection_reconnected_simple_forgotten_active_should_trigger_rebalancing": Difference(
        "d",
        (
            Answer(
                "c0/0 connected deactivating, c1/0 connected active, c2/0 connected waiting",
                "c0/0 step down",
            ),
            Answer("c0/0 connected waiting, c1/0 connected active, c2/0 connected waiting"),
            Answer("c0/0 connected waiting, c1/0 connected active, c2/0 connected waiting"),
        ),
    ),
    "connection_reconnected_super_stream_forgotten_active_should_trigger_rebalancing": Difference(
        "d",
        (
            Answer(
                "c0/0 connected deactivating, c1/0 connected waiting, c2/0 connected deactivating",
                "c0/0 step down, c2/0 step down",
            ),
            Answer("c0/0 connected waiting, c1/0 connected active, c2/0 connected waiting", "c1/0 active"),
            Answer("c0/0 connected waiting, c1/0 connected active, c2/0 connected waiting"),
        ),
    ),
    "disconnected_timeout_super_stream_deactivating_triggers_rebalance": Difference(
        "c",
        (Answer("c0/0 connected waiting, c1/1 forgotten deactivating, c2/2 connected active", "c2/2 active"),),
    ),
}


# A scenario's groups, and its steps as commands.


def id_of(consumer: dict[str, Any]) -> str:
    return f"{consumer['connection']}/{consumer['subscription']}"


def partition_of(index: int) -> int | None:
    return None if index < 0 else index


def group_of(partition_index: int, consumers: list[dict[str, Any]]) -> Group | None:
    """Whoever was told active has an epoch of its own; a forgotten one had it before the others."""
    if not consumers:
        return None
    told = sorted((c for c in consumers if c["status"][1] != "waiting"), key=lambda c: c["status"][0] != "forgotten")
    epochs = {id_of(c): n for n, c in enumerate(told, start=1)}
    lost = int(any(c["status"][0] != "connected" for c in consumers))
    members = tuple(
        Consumer(
            id_of(c),
            c["connection"],
            c["owner"],
            *c["status"],
            epoch=epochs.get(id_of(c), 0),
            incarnation=int(c["status"][0] != "connected"),
        )
        for c in consumers
    )
    return Group(partition_of(partition_index), members, epoch=len(told), incarnation=lost)


def commands_of(step: dict[str, Any], group: Group | None) -> list[Command]:
    match step["command"]:
        case "register_consumer":
            partition = partition_of(step["partition_index"])
            return [Register(id_of(step), step["connection"], partition, step["owner"])]
        case "unregister_consumer":
            return [Unregister(id_of(step))]
        case "activate_consumer":
            stepping = [c for c in group.consumers if c.activity == "deactivating"] if group else []
            return [Confirm(c.id, c.epoch) for c in stepping] or [Prefer(None)]
        case "connection_down" if step["reason"] == "noconnection":
            return [ConnectionDisconnected(step["connection"])]
        case "connection_down":
            return [ConnectionDown(step["connection"])]
        case "connection_reconnected":
            return [ConnectionReconnected(step["connection"])]
        case "disconnected_timeout":
            return [DisconnectedTimeout(step["connection"])]
        case "evaluate_group":
            return [Evaluate(frozenset(step["dead_connections"]))]
        case "node_up":  # The connections of the node are asked whether they are still there; nothing changes yet.
            return []
        case other:
            pytest.fail(f"a scenario has an unknown command: {other}")


def played(group: Group | None, step: dict[str, Any]) -> tuple[Group | None, Reply | None, list[Effect]]:
    """One step of a scenario in one group; the reply is that of the last command."""
    reply: Reply | None = None
    effects: list[Effect] = []
    for command in commands_of(step, group):
        done = groups.step(group, command)
        group, reply = done.group, done.reply
        effects += done.effects
    return group, reply, effects


# What followed, in the words of the scenarios.


def state_of(group: Group | None) -> list[tuple[str, str, str, str]]:
    members = group.consumers if group else ()
    return [(c.id, c.owner, c.connectivity, c.activity) for c in members]


def expected_state(consumers: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [(id_of(c), c["owner"], *c["status"]) for c in consumers]


def orders_of(effects: list[Effect]) -> list[tuple[str, bool]]:
    return [(e.consumer, isinstance(e, TellActive)) for e in effects if isinstance(e, TellActive | TellStepDown)]


def expected_orders(effects: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    orders = []
    for effect in effects:
        if effect["type"] == "send" and effect["message"]["kind"] == "consumer_update":
            message = effect["message"]
            assert message["active"] or message["stepping_down"]
            orders.append((f"{effect['to']}/{message['subscription']}", message["active"]))
    return orders


def expected_reply(reply: dict[str, Any]) -> Reply:
    return Ok(reply.get("active", False)) if "ok" in reply else Refused(reply["error"])


def deadlines_of(effects: list[Effect]) -> set[str]:
    return {effect.connection for effect in effects if isinstance(effect, StartDeadline)}


def run(vector: dict[str, Any]) -> None:
    """Play a scenario, and assert whatever it says."""
    parts = vector.get("initial_groups")
    if parts is None:
        parts = [
            {"group": vector["group"], "partition_index": vector["partition_index"], "consumers": vector["initial"]}
        ]
    state = {part["group"]["stream"]: group_of(part["partition_index"], part["consumers"]) for part in parts}
    state = state or {vector["target"]["stream"]: None}
    ours = DIFFERENCES.get(vector["name"])
    for number, step in enumerate(vector["steps"]):
        replies, effects = [], []
        for stream, group in state.items():
            state[stream], reply, more = played(group, step)
            replies.append(reply)
            effects += more
        if "expect_reply" in step:
            assert set(replies) == {expected_reply(step["expect_reply"])}
        if "expect_effects" in step:
            assert deadlines_of(effects) == {e["connection"] for e in step["expect_effects"] if e["type"] == "timer"}
        if ours is not None:
            assert answered(state, effects) == ours.answers[number]
        else:
            agrees(step, state, effects)


def answered(state: dict[str, Group | None], effects: list[Effect]) -> Answer:
    (group,) = state.values()
    told = (f"{consumer} {'active' if is_active else 'step down'}" for consumer, is_active in orders_of(effects))
    return Answer(", ".join(f"{id} {where} {what}" for id, _, where, what in state_of(group)), ", ".join(told))


def agrees(step: dict[str, Any], state: dict[str, Group | None], effects: list[Effect]) -> None:
    if "expect_state" in step:
        (group,) = state.values()
        assert state_of(group) == expected_state(step["expect_state"])
    for part in step.get("expect_groups", ()):
        assert state_of(state[part["group"]["stream"]]) == expected_state(part["consumers"])
    if "expect_group_count" in step:
        assert sum(group is not None for group in state.values()) == step["expect_group_count"]
    orders, expected = orders_of(effects), expected_orders(step.get("expect_effects", []))
    match step.get("effects_match"):
        case "exact":
            assert orders == expected
        case "exact_unordered":
            assert sorted(orders) == sorted(expected)
        case "contains":
            assert set(expected) <= set(orders)
        case None:
            assert "expect_effects" not in step


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_scenario_is_answered_as_the_broker_does_or_differs_as_written_down(vector: dict[str, Any]) -> None:
    run(vector)


def test_30_scenarios_agree_and_10_differ() -> None:
    names = [vector["name"] for vector in VECTORS]
    assert (len(names), len(set(names)), len(DIFFERENCES)) == (40, 40, 10)
    assert set(DIFFERENCES) < set(names)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_is_written_down_as_a_difference_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(DIFFERENCES, name)
    with pytest.raises(AssertionError):
        run(next(vector for vector in VECTORS if vector["name"] == name))


def test_the_page_has_a_row_for_each_difference() -> None:
    page = PAGE.read_text("utf-8")
    for name, difference in DIFFERENCES.items():
        answers = "; then ".join(f"{answer.state} (told: {answer.told or 'nobody'})" for answer in difference.answers)
        assert f"| `{name}` | {answers} | {difference.way} | {WAYS[difference.way]} |\n" in page
    assert page.count("(told: ") == sum(len(difference.answers) for difference in DIFFERENCES.values())


def test_a_repeated_join_adds_no_second_place_and_the_page_says_so() -> None:
    joined = groups.step(Group(), Register("c0/0", "c0")).group
    assert joined is not None
    assert groups.step(joined, Register("c0/0", "c0")) == groups.Step(joined, Refused("already_registered"))
    assert "| a repeated join, in no scenario | refused as already registered, and nothing changes;" in PAGE.read_text()

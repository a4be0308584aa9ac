"""Incidents: told once when they have held, and once when they are over, whatever comes and goes in between."""

from __future__ import annotations

import random
from dataclasses import replace

from headgate.core.incidents import (
    FIRST_S,
    GIVEN_UP_S,
    LONGEST_S,
    Incident,
    IncidentRule,
    Reckoned,
    Seen,
    Trouble,
    again_in_s,
    step,
    troubles,
)

BROKEN = IncidentRule("broken", "health", ("ops", "mail"), 60.0, healths=("error",))
RULES = {"broken": BROKEN}


def trouble(subject: str = "orders", why: str = "error: away", rule: str = "broken") -> Trouble:
    return Trouble(rule, subject, why)


def told(reckoned: Reckoned) -> list[tuple[str, bool, list[str]]]:
    return [(tell.target, tell.is_over, [one.subject for one in tell.incidents]) for tell in reckoned.tells]


class World:
    """Looks, one after another."""

    def __init__(self, rules: dict[str, IncidentRule] = RULES) -> None:
        self.rules = rules
        self.incidents: tuple[Incident, ...] = ()

    def look(self, now_s: float, *found: Trouble) -> list[tuple[str, bool, list[str]]]:
        reckoned = step(self.incidents, self.rules, found, now_s)
        self.incidents = reckoned.incidents
        return told(reckoned)


def test_what_holds_is_told_once_and_once_when_it_is_over() -> None:
    world = World()
    assert world.look(0.0, trouble()) == []
    assert world.look(59.0, trouble()) == []
    assert world.look(60.0, trouble()) == [("ops", False, ["orders"]), ("mail", False, ["orders"])]
    assert world.look(70.0, trouble(why="error: another")) == []
    assert world.look(100.0) == []
    assert world.look(159.0) == []
    assert world.look(160.0) == [("ops", True, ["orders"]), ("mail", True, ["orders"])]
    assert world.incidents == ()


def test_what_heals_by_itself_is_not_told_and_what_comes_and_goes_is_one_incident() -> None:
    world = World()
    for at_s in range(0, 600, 20):  # Away and back, never for a minute.
        assert world.look(float(at_s), *([trouble()] if at_s % 40 else [])) == []
    for at_s in (1000.0, 1060.0):
        world.look(at_s, trouble())
    for at_s in range(1080, 2000, 20):
        assert world.look(float(at_s), *([trouble()] if at_s % 40 else [])) == []
    assert len(world.incidents) == 1


def test_what_begins_together_is_one_message_and_each_incident_ends_for_itself() -> None:
    world = World({"broken": replace(BROKEN, for_s=0.0, targets=("ops",))})
    assert world.look(1.0, trouble("a"), trouble("b"), trouble("c")) == [("ops", False, ["a", "b", "c"])]
    assert world.look(2.0, trouble("a"), trouble("d")) == [("ops", False, ["d"]), ("ops", True, ["b", "c"])]


def test_without_its_rule_an_incident_is_over_at_once_for_those_who_were_told() -> None:
    world = World()
    world.look(0.0, trouble(), trouble("untold"))
    world.look(60.0, trouble())
    world.rules = {"broken": replace(BROKEN, targets=("pager",))}
    assert world.look(61.0, trouble()) == []  # Who is told is asked when it is told.
    world.rules = {}
    assert world.look(62.0) == [("ops", True, ["orders"]), ("mail", True, ["orders"])]


def test_a_clock_that_goes_back_delays_and_repeats_nothing() -> None:
    world = World()
    world.look(1000.0, trouble())
    assert world.look(500.0, trouble()) == []
    assert len(world.look(1060.0, trouble())) == 2
    assert world.look(10.0, trouble()) == []
    assert world.look(20.0) == []


def test_over_any_course_of_events_each_target_hears_begin_and_over_in_turn() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        world = World({"broken": replace(BROKEN, for_s=dice.choice([0.0, 5.0, 30.0]))})
        heard: dict[tuple[str, str], bool] = {}
        now_s = 0.0
        for _ in range(60):
            now_s += dice.choice([1.0, 5.0, 40.0])
            found = [trouble(name) for name in "abc" if dice.random() < 0.6]
            for target, is_over, subjects in world.look(now_s, *found):
                for subject in subjects:
                    assert heard.get((target, subject), True) is not is_over, f"seed {seed}"
                    heard[target, subject] = is_over


def test_rules_hold_for_what_they_name() -> None:
    seen = [
        Seen("orders", "error", "network: away", lag_s=400.0, open_letters=5),
        Seen("orders-eu", "ok", "", rejected_version=3),
        Seen("clicks", "no_node", "no node runs", labels=("web", "eu")),
    ]

    def found(rule: IncidentRule) -> list[tuple[str, str]]:
        return [(one.subject, one.why) for one in troubles([rule], seen, ["left"])]

    rule = IncidentRule("r", "health", ("ops",), 0.0, ("orders*",), (), ("error", "no_node"))
    assert found(replace(rule, datasources=("*",), labels=("eu", "us"))) == [("clicks", "no_node: no node runs")]
    assert found(replace(rule, labels=("eu",))) == []
    assert found(rule) == [("orders", "error: network: away")]
    assert found(replace(rule, when="dead_letters", above=5)) == []
    assert found(replace(rule, when="dead_letters", above=4)) == [("orders", "5 open dead letters")]
    assert found(replace(rule, when="lag", above=300)) == [("orders", "400 s behind")]
    assert [subject for subject, _ in found(replace(rule, when="rejected"))] == ["orders-eu"]
    assert [subject for subject, _ in found(replace(rule, when="node_lost", datasources=("none",)))] == ["left"]


def test_a_message_is_tried_ever_more_seldom_and_not_forever() -> None:
    waits = [again_in_s(attempts, 0.0) for attempts in range(20)]
    assert waits[0] == FIRST_S
    assert waits[-1] == LONGEST_S
    assert again_in_s(3, GIVEN_UP_S) is None

"""Which host of a URL is used: every combination of answers, and every way to write a list."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import pytest

from headgate.core.hosts import (
    GRACE_S,
    HEAD_START_S,
    MOST_HOSTS,
    Answer,
    Away,
    Decision,
    Denied,
    Host,
    NoneFits,
    ReadOnly,
    Said,
    Standby,
    UseHost,
    WaitFor,
    Writable,
    decide,
    hosts_of,
    survey,
)

WITHIN_S = 5.0
HOSTS = tuple(Host(name, f"postgresql://{name}/db") for name in ("a:1", "b:2", "c:3"))
OLD, NEW, OTHER = Writable(7, 1), Writable(7, 2), Writable(8, 1)
ANSWERS: tuple[Answer | None, ...] = (None, OLD, NEW, OTHER, Standby(), ReadOnly(), Away("refused"), Denied("no"))
SEEN: tuple[Mapping[int, int], ...] = ({}, {7: 1}, {7: 2}, {7: 3}, {8: 1})


def at(
    waited_s: float, *answers: Answer | None, newest: Mapping[int, int] | None = None, last: int | None = None
) -> Decision:
    said = [None if one is None else Said(0.0, one) for one in answers]
    hosts = HOSTS[: len(said)]
    return decide(hosts, said, newest or {}, waited_s=waited_s, within_s=WITHIN_S, last=last)


def at_last(waited_s: float, *answers: Answer | None, newest: Mapping[int, int]) -> Decision:
    """The same, where an older one is better than none."""
    said = [None if one is None else Said(0.0, one) for one in answers]
    return decide(HOSTS[: len(said)], said, newest, waited_s=waited_s, within_s=WITHIN_S, refuses_older=False)


# The choice.


def test_of_two_that_take_writes_the_one_with_the_newer_timeline_is_used_wherever_it_stands() -> None:
    assert at(0.01, OLD, NEW) == UseHost(1)
    assert at(0.01, NEW, OLD) == UseHost(0)
    assert at(0.01, Away("refused"), OLD, NEW, last=1) == UseHost(2)


def test_nobody_waits_for_the_dead_and_the_silent_once_the_time_of_grace_is_over() -> None:
    assert at(0.01, None, NEW) == WaitFor(GRACE_S, everyone=True)
    assert at(GRACE_S, None, NEW) == UseHost(1)
    assert at(0.01, Away("refused"), NEW) == UseHost(1)
    assert at(0.01, Standby(), NEW) == UseHost(1)


def test_the_host_that_was_used_last_is_asked_alone_and_if_it_is_still_the_one_nobody_else_is() -> None:
    assert at(0.0, None, None, last=1) == WaitFor(HEAD_START_S, everyone=False)
    assert at(0.01, None, NEW, last=1, newest={7: 2}) == UseHost(1)
    assert at(HEAD_START_S, None, None, last=1) == WaitFor(WITHIN_S, everyone=True)
    assert at(0.01, None, Standby(), last=1) == WaitFor(WITHIN_S, everyone=True)
    assert at(0.01, None, OLD, last=1, newest={7: 2}) == WaitFor(WITHIN_S, everyone=True)


def test_a_server_of_an_older_timeline_than_was_seen_is_never_used() -> None:
    assert at(0.01, OLD, newest={7: 2}) == NoneFits(("a:1 is timeline 1, older than 2",), are_all_denied=False)
    assert at(WITHIN_S, OLD, None, newest={7: 2}) == NoneFits(
        ("a:1 is timeline 1, older than 2", "b:2 does not answer"), are_all_denied=False
    )


def test_where_an_older_one_is_better_than_none_it_is_the_last_resort() -> None:
    assert at_last(0.01, OLD, None, newest={7: 2}) == WaitFor(WITHIN_S, everyone=True)
    assert at_last(WITHIN_S, OLD, None, newest={7: 2}) == UseHost(0)
    assert at_last(0.01, Away("refused"), OLD, NEW, newest={7: 3}) == UseHost(2)
    assert at_last(0.01, OLD, NEW, newest={7: 2}) == UseHost(1)
    assert isinstance(at_last(0.01, Standby(), Away("refused"), newest={7: 2}), NoneFits)


def test_timelines_of_different_systems_are_compared_only_if_neither_is_known() -> None:
    assert at(0.01, OTHER, NEW) == UseHost(1)
    assert at(0.01, OTHER, NEW, newest={8: 1}) == UseHost(0)
    assert at(0.01, OTHER, Away("refused"), newest={7: 2}) == UseHost(0)


def test_each_host_that_does_not_fit_has_its_line() -> None:
    found = at(1.0, Away("refused"), Standby(), OLD, newest={7: 3})
    assert found == NoneFits(
        ("a:1 is away (refused)", "b:2 is a standby", "c:3 is timeline 1, older than 3"), are_all_denied=False
    )
    found = at(1.0, ReadOnly(), Denied("no such user"))
    assert found == NoneFits(("a:1 is read-only", "b:2 cannot be used (no such user)"), are_all_denied=False)


def test_only_if_all_refuse_us_waiting_does_not_help() -> None:
    assert at(1.0, Denied("no"), Denied("no")) == NoneFits(("a:1 cannot be used (no)", "b:2 cannot be used (no)"), True)
    assert isinstance(at(1.0, Denied("no"), None), WaitFor)


def test_servers_that_do_not_tell_their_timeline_are_used_in_the_order_of_the_url() -> None:
    assert at(0.01, Standby(), Writable(0, 0), Writable(0, 0)) == UseHost(1)


@pytest.mark.parametrize(
    ("answers", "lines", "wrong"),
    [
        ((NEW, Standby()), "a:1 is the primary, timeline 2 · b:2 is a standby", ""),
        ((NEW, NEW), "a:1 is the primary, timeline 2 · b:2 is the primary, timeline 2", ""),  # Two ways to one server.
        (
            (OLD, NEW),
            "a:1 is the primary, timeline 1 · b:2 is the primary, timeline 2",
            "more than one takes writes: stop the older one",
        ),
        (
            (NEW, Away("refused")),
            "a:1 is the primary, timeline 2 · b:2 is away (refused)",
            "a failover may find nobody there",
        ),
        ((Standby(), ReadOnly()), "a:1 is a standby · b:2 is read-only", "none takes writes"),
    ],
)
def test_the_doctor_tells_what_each_host_is_and_what_is_wrong(
    answers: Sequence[Answer], lines: str, wrong: str
) -> None:
    assert survey(dict(zip(HOSTS, answers, strict=False))) == (lines, wrong)


# Every combination.


def situations() -> Iterator[tuple[list[Said | None], Mapping[int, int], float, int | None, Decision]]:
    times = (0.0, 0.1, HEAD_START_S, GRACE_S, 0.6, WITHIN_S)
    for answers in itertools.product(ANSWERS, repeat=3):
        for newest, waited_s, last in itertools.product(SEEN, times, (None, 0, 2)):
            said = [None if one is None else Said(min(0.1 * i, waited_s), one) for i, one in enumerate(answers)]
            decision = decide(HOSTS, said, newest, waited_s=waited_s, within_s=WITHIN_S, last=last)
            yield said, newest, waited_s, last, decision


def fitting(said: Sequence[Said | None], newest: Mapping[int, int]) -> list[int]:
    """Those that take writes, and are older neither than what was seen nor than another."""
    heard = [(i, one.answer) for i, one in enumerate(said) if one and isinstance(one.answer, Writable)]
    return [
        index
        for index, answer in heard
        if answer.timeline >= newest.get(answer.system, 0)
        and not any(answer.system == other.system and answer.timeline < other.timeline for _, other in heard)
    ]


def test_whatever_was_said_the_decision_is_right() -> None:
    for said, newest, waited_s, last, decision in situations():
        fit = fitting(said, newest)
        are_all_heard = all(said)
        match decision:
            case UseHost(index):
                assert index in fit
                first_s = min(one.at_s for i in fit if (one := said[i]))
                assert index == last or are_all_heard or waited_s >= first_s + GRACE_S
            case NoneFits(lines, are_all_denied):
                assert not fit
                assert are_all_heard or waited_s >= WITHIN_S
                assert [line.split()[0] for line in lines] == [host.name for host in HOSTS]
                assert are_all_denied == all(one and isinstance(one.answer, Denied) for one in said)
            case WaitFor(until_s, everyone):
                assert waited_s < until_s <= WITHIN_S  # It goes on.
                assert not are_all_heard if everyone else last is not None and said[last] is None
                assert everyone or not fit or until_s <= HEAD_START_S


def test_the_order_of_the_hosts_decides_only_between_equals() -> None:
    def used(order: Sequence[Answer | None], newest: Mapping[int, int]) -> int | None:
        decision = at(1.0, *order, newest=newest)
        answer = order[decision.index] if isinstance(decision, UseHost) else None
        return answer.timeline if isinstance(answer, Writable) else None

    for answers in itertools.product(ANSWERS[1:], repeat=3):
        for newest in SEEN:
            assert len({used(order, newest) for order in itertools.permutations(answers)}) == 1


# URLs.


def test_a_url_with_one_host_is_passed_on_as_it_is() -> None:
    for url, name in (
        ("postgresql://u:p@db.example.org/headgate", "db.example.org"),
        ("postgres://u:p@db:5433/headgate?sslmode=verify-full", "db:5433"),
        ("postgresql://u:p@[::1]:5433/headgate", "[::1]:5433"),
        ("postgresql://u@/headgate?host=/run/pg&port=5433", "/run/pg:5433"),
        ("postgresql:///headgate", "localhost"),
        ("postgresql://", "localhost"),
        ("postgresql://u:a%2Cb,c@db/headgate", "db"),
    ):
        assert hosts_of(url) == (Host(name, url),)


def test_each_host_of_a_list_gets_the_rest_of_the_url() -> None:
    found = hosts_of("postgresql://u:p,w@a:1,[::1]:2,c/db?sslmode=require&application_name=x,y")
    assert [host.name for host in found] == ["a:1", "[::1]:2", "c"]
    rest = "/db?sslmode=require&application_name=x,y"
    assert [host.url for host in found] == [f"postgresql://u:p,w@{host.name}{rest}" for host in found]


def test_hosts_in_the_query_have_one_port_each_or_one_for_all() -> None:
    found = hosts_of("postgresql://u@/db?host=/run/a,b&port=1,2&sslmode=prefer")
    assert [(host.name, host.url) for host in found] == [
        ("/run/a:1", "postgresql://u@/db?sslmode=prefer&host=/run/a&port=1"),
        ("b:2", "postgresql://u@/db?sslmode=prefer&host=b&port=2"),
    ]
    assert [host.name for host in hosts_of("postgresql:///db?host=a,b&port=7")] == ["a:7", "b:7"]
    assert [host.name for host in hosts_of("postgresql:///db?host=a,b")] == ["a", "b"]
    with pytest.raises(ValueError, match="2 hosts and 3 ports"):
        hosts_of("postgresql:///db?host=a,b&port=1,2,3")


def test_a_host_that_is_named_twice_counts_once_and_an_empty_one_not_at_all() -> None:
    assert [host.url for host in hosts_of("postgresql://a,,b,a/db")] == ["postgresql://a/db", "postgresql://b/db"]
    assert [host.url for host in hosts_of("postgresql://a,/db")] == ["postgresql://a/db"]
    for empty in ("postgresql://,/db", "postgresql:///db?host=,"):
        with pytest.raises(ValueError, match="no host"):
            hosts_of(empty)


def test_a_list_has_an_end() -> None:
    many = ",".join(f"h{number}" for number in range(MOST_HOSTS + 1))
    assert len(hosts_of(f"postgresql://{many.rpartition(',')[0]}/db")) == MOST_HOSTS
    for url in (f"postgresql://u:secret@{many}/db", f"postgresql://u:secret@/db?host={many}"):
        with pytest.raises(ValueError, match="16 hosts") as caught:
            hosts_of(url)
        assert "secret" not in str(caught.value)


def test_no_password_is_in_what_people_see_of_a_host() -> None:
    for host in hosts_of("postgresql://u:secret@a:1,b:2/db?password=secret"):
        assert "secret" not in f"{host.name} {host!r}"
        assert "secret" in host.url

"""A loop that is blocked ends its process; one that gets no CPU does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.core.watchdog import SILENT_S, Sign, Verdict, Watch, look, signed, silent_s

BEGIN = Watch(Sign(100.0, waited_s=7.0), looked_at_s=100.0)


def looked(watch: Watch, *moments: tuple[float, float], trust_left_s: float = 0.0) -> list[Verdict]:
    """The verdicts at these moments: the time, and how long the loop's thread has waited for a CPU."""
    verdicts = []
    for at_s, waited_s in moments:
        watch, verdict = look(watch, Sign(at_s, waited_s), trust_left_s)
        verdicts.append(verdict)
    return verdicts


@pytest.mark.parametrize(
    ("name", "moments", "verdicts"),
    [
        ("signs came", [(101.0, 7.0), (102.0, 7.0)], ["beat", "beat"]),
        (
            "blocked: in a system call, or on the CPU",
            [(101.0, 7.0), (102.0, 7.0), (103.0, 7.0)],
            ["beat", "beat", "end"],
        ),
        ("starved", [(101.0, 7.9), (102.0, 8.8), (103.0, 9.7), (104.0, 10.6)], ["beat"] * 4),
        (
            "blocked on a busy machine",
            [(101.0, 7.5), (102.5, 8.2), (104.0, 8.9), (105.5, 9.6)],
            ["beat", "beat", "end", "end"],
        ),
        ("stopped as a whole", [(101.0, 7.0), (160.0, 7.0)], ["beat", "beat"]),
        (
            "stopped, then blocked",
            [(160.0, 7.0), (161.0, 7.0), (162.0, 7.0), (163.0, 7.0)],
            ["beat", "beat", "beat", "end"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_done_about_a_loop_that_gives_no_sign(
    name: str, moments: list[tuple[float, float]], verdicts: list[Verdict]
) -> None:
    assert looked(BEGIN, *moments) == verdicts


def test_while_the_node_is_trusted_a_silent_loop_only_holds_the_beat() -> None:
    moments = [(101.0, 7.0), (102.0, 7.0), (103.0, 7.0)]
    assert looked(BEGIN, *moments, trust_left_s=0.5) == ["beat", "beat", "hold"]


def test_a_sign_begins_the_count_again() -> None:
    watch = signed(BEGIN, Sign(102.0, 7.5))
    assert silent_s(watch, Sign(104.0, 7.5)) == SILENT_S
    assert looked(replace(watch, looked_at_s=103.5), (104.0, 7.5), (104.5, 7.5)) == ["beat", "end"]


def test_a_sign_that_was_overtaken_changes_nothing() -> None:
    """The looking thread has begun the count again, since it was stopped, before an old sign was written."""
    assert signed(BEGIN, Sign(99.0, 6.0)) == BEGIN


def test_a_counter_that_falls_proves_nothing() -> None:
    assert silent_s(BEGIN, Sign(103.0, 0.0)) == 3.0

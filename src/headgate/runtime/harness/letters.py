"""A replay that changes nothing: dead letters are run through a version in the harness, to see what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.core.harness.payloads import MOST_INPUTS, MOST_PAYLOAD_BYTES
from headgate.core.harness.results import Result
from headgate.hidden import hide
from headgate.runtime.harness.harness import Harness, given_of
from headgate.store.letters import Filter, Kept, Letters, pieces


@dataclass(frozen=True, slots=True)
class Tried:
    """What would become of one letter."""

    letter: Kept
    result: Result


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What would become of letters."""

    version: int
    is_rehearsed: bool  # The sink has tried them.
    is_cut: bool  # There are more.
    tried: Sequence[Tried]
    trouble: str


async def rehearse(
    harness: Harness, letters: Letters, name: str, which: Filter, version: int, *, any_key: bool, is_admin: bool
) -> Rehearsal:
    """Run the latest of these letters through a version, as many as a test takes."""
    page = await letters.page(which, "open", MOST_INPUTS + 1)
    meant = [one for one in page[:MOST_INPUTS] if any_key or one.has_key]
    chosen: list[Kept] = []
    left = MOST_PAYLOAD_BYTES
    for one in meant:
        left -= one.size_bytes
        if left >= 0:
            chosen.append(one)
    contents = {}
    for some in pieces(chosen):
        contents.update(await letters.contents(some))
    chosen = [one for one in chosen if one.id in contents]
    subject = await harness.subject(name, None, version, is_admin=is_admin)
    can_rehearse = subject.prepared.sink_kind.keeps_letters
    is_cut = len(page) > MOST_INPUTS or len(chosen) < len(meant)
    if not chosen:
        return Rehearsal(version, can_rehearse, is_cut, [], "")
    given = [given_of(contents[one.id]) for one in chosen]
    ran = await harness.run_given(subject, given, is_rehearsed=can_rehearse)
    results: dict[int, list[Result]] = {}
    for outcome in ran.outcomes:
        results.setdefault(outcome.index, []).extend(outcome.results)
    tried = [Tried(chosen[index], _worst(found)) for index, found in sorted(results.items()) if index < len(chosen)]
    trouble = hide(ran.troubles[0].message) if ran.troubles else ran.trouble
    return Rehearsal(version, can_rehearse, is_cut, tried, trouble)


def _worst(results: Sequence[Result]) -> Result:
    """Of several records of one payload: a letter is done only when none of them fails."""
    order = {"dead_lettered": 0, "written": 1, "filtered": 2}
    return min(results, key=lambda one: order[one.outcome], default=Result("filtered"))

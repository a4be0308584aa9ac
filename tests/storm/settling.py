"""After a storm: everything moves again, comes to rest, and is balanced.

Nothing here mends anything. What a fault broke, the fault itself has healed; the rest is up to Headgate.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tests.storm.accounting import Letters, Totals, check_totals, settle
from tests.storm.journal import Journal
from tests.storm.operating import Refused, Unanswered
from tests.storm.scene import Scene
from tests.storm.senders import Caller, Program
from tests.storm.verdict import Report
from tests.storm.workload import ENDS_AFTER, Datasource

MOVES_S = 120.0  # After the last fault, everything moves within this.
SETTLES_S = 120.0  # After the last record, everything has arrived within this.
LOOK_S = 0.5
MOST_RUNS = 5
OUTCOMES = ("open", "replayed", "superseded", "discarded", "expired")


class Settling:
    """Looks at the datasources of a storm that is over."""

    def __init__(self, journal: Journal, report: Report, scene: Scene, *, may_lose: bool) -> None:
        self._journal = journal
        self._report = report
        self._operator = scene.operator
        self._auditor = scene.auditor
        self._datasources = list(scene.datasources.values())
        self._senders = scene.senders
        self._may_lose = may_lose

    async def repeat_orders(self) -> None:
        """A registry that lost what it committed last may have lost an operator's word that ended a fault."""
        for one in self._datasources:
            with contextlib.suppress(Refused):  # What has finished is not started.
                await self._operator.call("POST", f"/api/datasources/{one.name}/start")

    async def wait_until_all_move(self) -> None:
        """Something comes in every lane, unless its source has ended."""
        began_s = time.monotonic()
        arrived_at_s = self._auditor.arrived_at_s
        endless = [one for one in self._datasources if one.kind != "ended"]
        waiting = {(one.name, lane) for one in endless for lane in range(one.lanes)}
        slowest_s = 0.0
        while waiting and time.monotonic() < began_s + MOVES_S:
            await asyncio.sleep(LOOK_S)
            for place in [one for one in waiting if arrived_at_s.get(one, 0.0) > began_s]:
                slowest_s = max(slowest_s, arrived_at_s[place] - began_s)
                waiting.discard(place)
        self._report.figures["after the last fault all streams moved within"] = f"{slowest_s:.1f} s"
        for name in sorted({name for name, _ in waiting}):
            await self._explain(name, f"stuck, since nothing came in {MOVES_S:.0f} s after the last fault")

    async def _explain(self, name: str, problem: str) -> None:
        try:
            told = await self._operator.call("GET", f"/api/datasources/{name}/explain", patience_s=30.0)
            why = " ".join(told["lines"])
        except Unanswered as error:
            why = str(error)
        self._journal.fail(f"{name} is {problem}. {why}")

    # Coming to rest.

    async def end_senders(self, sending: Collection[asyncio.Task[None]]) -> None:
        """Nothing is sent any more, and what was sent arrives."""
        for one in self._senders:
            one.is_ending = True
        if sending:
            for late in (await asyncio.wait(sending, timeout=SETTLES_S))[1]:
                self._journal.fail(f"{late.get_name()} could not finish in {SETTLES_S:.0f} s")
        for one in self._senders:
            if isinstance(one, Program) and one.final is not None and one.final != one.last:
                self._journal.fail(f"{one.name} has sent {one.last}, and its stream ended at {one.final}")
        deadline_s = time.monotonic() + SETTLES_S
        while self._owing() and time.monotonic() < deadline_s:
            await asyncio.sleep(LOOK_S)
        for one in self._senders:
            if self._may_lose and isinstance(one, Caller):
                await self._reaches(one.datasource.name, lambda found: found["metrics"]["backlog_records"] == 0)
        for name in self._owing():
            await self._explain(name, f"behind: not everything that was sent has arrived after {SETTLES_S:.0f} s")

    def _owing(self) -> list[str]:
        lanes = self._auditor.lanes
        return [one.datasource.name for one in self._senders if lanes[one.datasource.name, one.lane].owes(one.last)]

    async def stop_all(self) -> None:
        """Nothing runs any more."""
        await asyncio.gather(*(self._stop(one) for one in self._datasources))

    async def _stop(self, datasource: Datasource) -> None:
        """A run that ends gives the registry two seconds to take its last letters and its last position. If they do not
        suffice, or its node is taken for dead meanwhile, the next run hands them over. So it is started again then."""
        name = datasource.name
        if datasource.kind == "ended" and not await self._reaches(name, lambda found: found["health"] == "ended"):
            await self._explain(name, "not at its end")
        for _ in range(MOST_RUNS):
            await self._operator.call("POST", f"/api/datasources/{name}/stop")
            if not await self._reaches(name, _rests):
                await self._explain(name, "not stopped")
            if (missing := await self._left_out(datasource)) is None:
                break
            self._journal.count(f"(a datasource was run again: {missing})")
            self._journal.note(f"{name}: {await self._totals(name)}")
            await self._operator.call("POST", f"/api/datasources/{name}/start")
            await self._reaches(name, _runs)

    async def _left_out(self, datasource: Datasource) -> str | None:
        """What the last runs could not hand over, if anything."""
        totals = await self._totals(datasource.name)
        if totals.dead_lettered != totals.letters:
            return "its last letters"
        for state in (await self._operator.datasource(datasource.name))["states"]:
            path = f"/api/streams/{state['stream']}/history?limit=1"
            last = (await self._operator.call("GET", path))["items"]
            if last and last[0]["kind"] == "revoked" and datasource.kind != "ended":
                return "a position that was revoked"
        return None

    async def _reaches(self, name: str, is_so: Any) -> bool:
        deadline_s = time.monotonic() + SETTLES_S
        while not is_so(await self._operator.datasource(name)):
            if time.monotonic() > deadline_s:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    # The balance.

    async def balance(self) -> None:
        """Every lane, and what Headgate says of every datasource."""
        if not await self._auditor.look():
            self._journal.fail("what arrived last could not be read")
        positions: dict[str, list[Any]] = {one.name: [] for one in self._datasources}
        for stream in (await self._operator.call("GET", "/api/streams"))["items"]:
            positions[stream["datasource"]].append(stream["position"])
            if stream["owner"] is not None:
                self._journal.fail(f"{stream['name']} has still an owner, {stream['node']}, after its stop")
        for one in self._datasources:
            await self._balance(one, positions[one.name])

    async def _balance(self, datasource: Datasource, positions: Sequence[Any]) -> None:
        name = datasource.name
        letters, totals = await self._letters(datasource), await self._totals(name)
        sent = rows = 0
        for number in range(datasource.lanes):
            last = self._last(datasource, number, positions)
            balance = settle(self._auditor.lanes[name, number], last, letters.get(number, Letters()))
            self._report.balances[datasource.kind].append(balance)
            for problem in balance.problems:
                self._journal.fail(f"{name}, lane {number}: {problem}")
            sent, rows = sent + balance.sent, rows + balance.rows
        is_sent_known = not any(isinstance(one, Caller) for one in self._senders if one.datasource == datasource)
        for problem in check_totals(
            totals, sent=sent if is_sent_known else None, rows=rows if datasource.is_exact else None
        ):
            self._journal.fail(f"{name}: {problem}")

    def _last(self, datasource: Datasource, number: int, positions: Sequence[Any]) -> int:
        """The last record of a lane: of those who send by what they know, of generators by where they stand."""
        for one in self._senders:
            if (one.datasource, one.lane) == (datasource, number):
                return one.last
        last = max((datasource.last_of(position, number) for position in positions), default=-1)
        if datasource.kind == "ended" and (last + 1) % ENDS_AFTER:
            self._journal.fail(f"{datasource.name} ended at {last}")
        return last

    async def keep_stories(self, folder: Path) -> None:
        """For those who look for the reason: what Headgate knows of each datasource with which something is wrong."""
        for one in self._datasources:
            if any(one.name in problem for problem in self._journal.wrong):
                story: dict[str, Any] = {"datasource": await self._operator.datasource(one.name)}
                events = f"/api/datasources/{one.name}/events?limit=1000"
                story["events"] = (await self._operator.call("GET", events))["items"]
                for state in story["datasource"]["states"]:
                    path = f"/api/streams/{state['stream']}/history?limit=1000"
                    story[state["stream"]] = (await self._operator.call("GET", path))["items"]
                (folder / f"{one.name}.json").write_text(json.dumps(story, indent=1))

    async def _letters(self, datasource: Datasource) -> dict[int, Letters]:
        path = f"/api/datasources/{datasource.name}/dead-letters/export?outcome=all"
        found: dict[int, Letters] = {}
        for letter in map(json.loads, (await self._operator.call("GET", path)).splitlines()):
            if letter["outcome"] in ("open", "superseded") and (record := datasource.record_of(letter)) is not None:
                box = found.setdefault(record[0], Letters())
                (box.open if letter["outcome"] == "open" else box.superseded).append(record[1])
        return found

    async def _totals(self, name: str) -> Totals:
        found = await self._operator.datasource(name)
        figures, letters = found["metrics"], found["letters"]
        return Totals(
            read=figures["records_read"],
            written=figures["records_written"],
            filtered=figures["records_filtered"],
            dead_lettered=figures["records_dead_lettered"],
            letters=sum(letters[outcome] for outcome in OUTCOMES),
            replayed=letters["replayed"],
        )


def _runs(found: dict[str, Any]) -> bool:
    return any(state["worker_status"] == "RUNNING" for state in found["states"]) or found["health"] == "ended"


def _rests(found: dict[str, Any]) -> bool:
    return all(state["worker_status"] in ("STOPPED", "INIT") for state in found["states"])

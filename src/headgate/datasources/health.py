"""How a datasource is, in one word and in plain sentences.

The worker's status is what a worker says of itself. Health is what a person wants to know: a worker that runs but has
been silent for longer than expected is not healthy, nor is a datasource whose published version was rejected while an
older one goes on, nor one whose source has something that is not read. `judged` says the word and the reason together,
in one line, for every view; `explain` says all there is to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from headgate.core.figures import HEALTHS, InboxBacklog, is_steady
from headgate.core.push import PUSH
from headgate.datasources.prepared import DatasourceOptions
from headgate.store.datasources import Datasource, Version
from headgate.store.listed import Unable
from headgate.store.nodes import Node
from headgate.store.states import NO_OTHERS, Others, Resting, StreamState
from headgate.text import counted, parse_duration, roughly, tries_again

MOST_EXPLAINED = 10  # Of the streams that programs push.
STUCK_S = 60.0  # A read that finds nothing although something waits, or a write, that takes this long is worth a look.
WAITED_S = 5.0  # A source that is quiet for less is not worth a word.

ALARMING = ("error", "no_node", "degraded")  # What somebody should do something about.


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one datasource."""

    datasource: Datasource
    published: Version | None
    states: Sequence[StreamState]
    nodes: Sequence[Node]  # All of them.
    now_s: float
    unable: Sequence[Unable] = ()  # Which nodes cannot run which of its streams, and why.
    others: Others = field(default=NO_OTHERS)  # Its streams that are not among the states.
    inbox: InboxBacklog | None = None  # What waits in the database, if it is a webhook.


@dataclass(frozen=True, slots=True)
class Verdict:
    """A datasource in one word, and why, in a line that begins in lower case. Empty: there is nothing to say."""

    health: str  # One of HEALTHS.
    why: str = ""


def health(facts: Facts) -> str:
    """One of HEALTHS."""
    return judged(facts).health


def judged(facts: Facts) -> Verdict:
    """The word, and the reason for it."""
    found, published = facts.datasource, facts.published
    if found.published_version is None or published is None:
        return Verdict("unpublished", "nothing has been published")
    if not found.enabled:
        return Verdict("stopped", "somebody stopped it")
    if found.paused:
        return Verdict("paused", "somebody paused it")
    if found.quarantine is not None:
        return Verdict("error", f"quarantined: {found.quarantine}")
    if published.status == "rejected":
        return Verdict("error", f"version {published.number} was tried and rejected: {published.reason}")
    worst = _worst(facts)
    if worst.health == "ok" and (missing := stuck(facts) + unmet(facts)):
        return Verdict("degraded", missing[0])
    return worst


def _worst(facts: Facts) -> Verdict:
    """That of the stream that is worst off.

    Programs come and go: of their streams only those count that are in use. And of several streams that nodes run,
    those that have nothing to read count only if all are so.
    """
    states = [state for state in facts.states if not (is_pushed(facts) and state.worker_status == "STOPPED")]
    verdicts = [_verdict(state, facts) for state in states]
    verdicts = [one for one in verdicts if one.health != "ended"] or verdicts
    if verdicts:
        return min(verdicts, key=lambda one: HEALTHS.index(one.health))
    if is_pushed(facts):
        return Verdict("ok")
    streams: list[UUID | None] = [row.stream for row in facts.unable] or [None]
    whys = (_refusals(stream, facts) for stream in streams)
    if why := next(filter(None, whys), ""):
        return Verdict("no_node", why)
    return Verdict("starting", "no node has taken it up yet")


def _verdict(state: StreamState, facts: Facts) -> Verdict:
    match state.worker_status, state.detail:
        case "RUNNING", _:
            return Verdict("ok")
        case "ERROR", _ if state.error is None:
            return Verdict("error", state.detail)
        case "ERROR", _:
            assert state.error is not None
            return Verdict("error", f"{state.error.cause}: {state.error.message}")
        case "STOPPED", "finished":
            return Verdict("ended", "its source has ended")
        case "STARTING", "acquiring" | "opening" if state.error is not None:
            return Verdict("error", f"{state.error.cause}: {state.error.message}")
    if _is_free(state, facts):
        why = _refusals(state.stream, facts)
        return Verdict("no_node", why) if why else Verdict("starting", "another node takes it over")
    return Verdict("starting", state.detail)


def is_pushed(facts: Facts) -> bool:
    """Whether programs push its streams."""
    return facts.published is not None and facts.published.content.source.get("type") == PUSH


def status_at_rest(stream: Resting) -> str:
    """The status of a stream that no node runs. What its last node said may have been overtaken."""
    if not stream.is_on:
        return "STOPPED"
    if stream.is_quarantined:
        return "ERROR"
    if stream.worker_status == "ERROR" or stream.detail == "finished":
        return stream.worker_status
    return "STARTING"  # Its last node is gone or gave it away: another should take it over.


def stuck(facts: Facts) -> list[str]:
    """Which streams have not read although something waits, or do not get a batch written."""
    found = []
    for state in facts.states:
        if state.worker_status == "RUNNING" and (line := _stuck(state, facts)):
            found.append(f"{_name(state)}: {line}" if len(facts.states) > 1 else line)
    return found


def _stuck(state: StreamState, facts: Facts) -> str:
    reported, now_s = state.reported, facts.now_s
    since_s = reported.writing_since_s
    if since_s is not None and now_s - since_s >= STUCK_S and state.totals.read <= reported.waiting_above:
        return f"it has been writing one batch for {roughly(now_s - since_s)}"
    if reported.reading_since_s is None:
        return ""
    inbox = facts.inbox if state.index == 0 else None
    if inbox is not None and inbox.oldest_at_s is not None:
        number, noun, there_s = inbox.records, "payload", inbox.oldest_at_s
    elif reported.backlog is not None and reported.backlog_since_s is not None:
        number, noun, there_s = reported.backlog.records or 0, "record", reported.backlog_since_s
    else:
        return ""
    # What came in while the source was quiet has to have waited for as long.
    idle_s = now_s - max(reported.reading_since_s, there_s)
    if idle_s < STUCK_S:
        return ""
    return (
        f"it has not read for {roughly(idle_s)} although {counted(number, noun)} {'waits' if number == 1 else 'wait'}"
    )


def _name(state: StreamState) -> str:
    return str(state.index) if state.label is None else state.label


def is_settled(facts: Facts) -> bool:
    """Whether neither health nor figures change by the passing of time alone."""
    if facts.published is not None and "expect" in facts.published.content.options:
        return False
    if facts.inbox is not None and facts.inbox.oldest_at_s is not None:
        return False
    return all(
        is_steady(one.totals, one.reported, facts.now_s, moves=one.worker_status == "RUNNING") for one in facts.states
    )


def unmet(facts: Facts) -> list[str]:
    """The expectations that are not met now."""
    if facts.published is None:
        return []
    if "expect" not in facts.published.content.options:  # All are asked once a second, and hardly any has it.
        return []
    expect = DatasourceOptions.model_validate(facts.published.content.options).expect
    if expect is None:
        return []
    found = []
    times_s = [s.reported.last_record_at_s for s in facts.states] + [facts.others.last_record_at_s]
    last_s = max(at_s or 0.0 for at_s in times_s)
    began_s = max((s.changed_at.timestamp() for s in facts.states), default=facts.now_s)
    if expect.fresh_within is not None:
        silent_s = facts.now_s - (last_s or began_s)
        if silent_s > parse_duration(expect.fresh_within):
            found.append(f"no record for {roughly(silent_s)}; expected one within {expect.fresh_within}")
    # Volume can be judged only of a worker that has run for the whole hour.
    if expect.min_per_hour is not None and facts.now_s - began_s >= 3600:
        number = sum((s.reported.last_hour for s in facts.states), facts.others.last_hour)
        if number < expect.min_per_hour:
            found.append(f"{counted(number, 'record')} in the last hour; expected {expect.min_per_hour}")
    return found


def explain(facts: Facts) -> list[str]:
    """Why it is not moving, or that it is: sentences, the most telling first."""
    found, published = facts.datasource, facts.published
    lines = []
    if not found.enabled:
        lines.append(f"It is stopped. Start it with: headgate ds start {found.name}")
    if found.paused:
        lines.append(f"It is paused: nothing is read. {_meanwhile(facts)} Go on with: headgate ds start {found.name}")
    if published is None:
        lines.append(f"Nothing has been published. Publish its draft with: headgate ds publish {found.name}")
    if found.quarantine is not None:
        lines.append(
            f"It is quarantined: {found.quarantine}. A publish, a changed secret, a start or a restart tries it again."
        )
    if published is not None and published.status == "rejected":
        lines.append(
            f"Version {published.number} was tried and rejected: {published.reason}."
            + (f" Version {found.running_version} goes on meanwhile." if found.running_version else "")
        )
    if not facts.nodes:
        lines.append("No node is running. Start one with: headgate up")
    if found.dealing:
        lines.append(f"Its streams stop, so that there can be {found.streams} in place of {found.dealt}.")
    elif found.streams != found.dealt:
        lines.append(
            f"{counted(found.streams, 'stream')} should read it and {found.dealt} do: that changes once each "
            "of them runs, or has stopped in good order."
        )
    is_on = found.enabled and not found.paused and found.quarantine is None
    if is_on and published is not None:
        lines += _explain_pushed(facts) if is_pushed(facts) else _explain_streams(facts)
    if is_on:
        lines += [f"Something hangs: {text}." for text in stuck(facts)]
    lines += [f"Not as expected: {text}." for text in unmet(facts)]
    return lines


def _meanwhile(facts: Facts) -> str:
    """What becomes of records while it is paused."""
    if is_pushed(facts):
        return "Programs that push to it stay connected and keep their records."
    if facts.inbox is None:
        return "What its source has stays there."
    number = facts.inbox.records
    waiting = f"{counted(number, 'payload')} {'waits' if number == 1 else 'wait'}" if number else "none waits yet"
    return f"Webhooks are still taken: {waiting}."


def _explain_pushed(facts: Facts) -> list[str]:
    """What the streams in use do; of the others, how many there are."""
    used = [state for state in facts.states if state.worker_status != "STOPPED"]
    lines = [f"{state.label}: {_explain_state(state, facts)}" for state in used[:MOST_EXPLAINED]]
    lines += [f"{len(used) - MOST_EXPLAINED} more are in use."] if len(used) > MOST_EXPLAINED else []
    if not facts.states:
        return ["No program has pushed anything yet."]
    return lines or [f"No program pushes now; {counted(len(facts.states), 'stream')} known so far."]


def _explain_streams(facts: Facts) -> list[str]:
    """What each stream does; and of those that nobody has, why nobody takes them."""
    if not facts.states:
        streams: list[UUID | None] = [*{row.stream for row in facts.unable}] or [None]
        waiting = [_why_waiting(stream, facts) for stream in streams]
        return ["No node has taken it up yet.", *filter(None, waiting)]
    lines = []
    for state in facts.states:
        name = f"{state.index}: " if len(facts.states) > 1 else ""
        lines.append(name + _explain_state(state, facts))
        if _is_free(state, facts) and (line := _why_waiting(state.stream, facts)):
            lines.append(name + line)
    return lines


def _is_free(state: StreamState, facts: Facts) -> bool:
    """Whether nobody has the stream, and its last state does not already say why."""
    if state.detail == "quarantined":
        return len(facts.nodes) > 1  # The state is that of the last node that tried.
    if state.detail == "finished":
        return False
    return state.worker_status in ("STOPPED", "INIT") or state.heartbeat is None


def _refusals(stream: UUID | None, facts: Facts) -> str:
    """What keeps every node from taking a free stream. Empty if one can."""
    reasons = {row.id: row.reason for row in facts.unable if row.stream == stream}
    if any(not node.draining and node.id not in reasons for node in facts.nodes):
        return ""
    if not reasons:
        return "all nodes are draining" if facts.nodes else "no node is running"
    return "; ".join(f"{node.name}: {reasons.get(node.id, 'draining')}" for node in facts.nodes)


def _why_waiting(stream: UUID | None, facts: Facts) -> str:
    """The same as sentences, with what to do about it."""
    why = _refusals(stream, facts)
    if not why or not facts.nodes:
        return ""
    if not any(row.stream == stream for row in facts.unable):
        return "It waits for a node: all are draining. End that with: headgate nodes undrain NODE"
    return f"It waits for a node that can run it. {why}. A publish, a changed secret or a restart tries it again."


def _explain_records(state: StreamState, facts: Facts) -> str:
    """What became of its records, and what it is about."""
    totals, reported, now_s = state.totals, state.reported, facts.now_s
    last_s, reading_s = reported.last_record_at_s, reported.reading_since_s
    waited_s = 0.0 if reading_s is None else now_s - reading_s
    waiting = f" It has waited for its source for {roughly(waited_s)}." if waited_s >= WAITED_S else ""
    if not totals.read:
        return f"the source has had nothing yet.{waiting}"
    counts = {"written": totals.written, "filtered": totals.filtered, "dead-lettered": totals.dead_lettered}
    became = ", ".join(f"{number:,} {word}" for word, number in counts.items() if number)
    last = "" if last_s is None else f", the last {roughly(now_s - last_s)} ago"
    return f"{counted(totals.read, 'record')} read: {became}{last}.{waiting}"


def _explain_state(state: StreamState, facts: Facts) -> str:
    node = state.node_name or "a node that is gone"
    where = f"version {state.version} on {node}" if state.version else f"on {node}"
    cause, message = (state.error.cause, state.error.message) if state.error else ("unknown", "it did not say why")
    match state.worker_status, state.detail:
        case "RUNNING", "running":
            return f"It is running, {where}; {_explain_records(state, facts)}"
        case "RUNNING", detail:
            return f"It is running ({detail}), {where}; {_explain_records(state, facts)}"
        case "ERROR", "backing off":
            again = "is being tried again"
            if state.error is not None and (at_s := state.error.next_try_at_s) is not None:
                again = tries_again(at_s - facts.now_s, awaits_return=state.error.awaits_return)
            return f"It failed ({cause}) and {again}, {where}: {message}"
        case "ERROR", _:
            return (
                f"It failed ({cause}) and is not tried again by itself, {where}: {message}. "
                f"Fix it and publish, or run: headgate ds restart {facts.datasource.name}"
            )
        case "STOPPED", "finished":
            return f"Its source has ended, {where}. Nothing more will come."
        case "STOPPED", _:
            return f"No node has it; {node} had it last."
        case "STARTING", detail if state.error is not None:
            return f"It failed ({cause}) and is being tried again ({detail}), {where}: {message}"
        case _, detail:
            return f"It is {state.worker_status.lower()} ({detail}), {where}."

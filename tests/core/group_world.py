"""A world around the group machine, in which it is known who really believes to be active.

The machine sees commands. The world has what is behind them: for each consumer what it believes, for each connection
whether it works and whether its lease still runs, and the messages under way. Any of them may be late, overtake
another, arrive twice (a delivery leaves the message where it is) or never; an unanswered order is sent again at any
time. A connection that is cut off, or whose program is paused, goes on reading what is in its buffers, and believes
until its lease has ended; then no more, whatever it reads. It comes back before that, or joins anew, or returns to
where it was forgotten. What the machine is told of this keeps to the design: a connection is down only on proof, and
the deadline of a silence passes only after the lease.

A deadline of an earlier silence, though, may pass at any moment, and so may a confirmation of an earlier epoch.

In a fenced group a connection that is cut off may also be taken for one that its program has ended: then it is down,
although its program may believe for as long as its lease runs. So two may believe there. What they write to has a
*fence*, the highest epoch that it has seen, and whoever begins to believe raises it first; what must hold is that the
fence lets only one of them pass.

`Setting` is one such world; its states are values, so that a walk can meet each of them once. What must hold is checked
at every step, and `ends_well` says whether the world comes to rest as it should once nothing more goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from headgate.core.groups import machine as groups
from headgate.core.groups.machine import (
    Able,
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
    Purge,
    Refused,
    Register,
    StartDeadline,
    TellActive,
    TellStepDown,
    Unregister,
)

IDS = "abcdefgh"
QUIET_WITHIN = 80  # Steps. A world of three that is left alone needs about twenty.


class Client(NamedTuple):
    """The program of one consumer."""

    belief: int = 0  # The epoch under which it believes to be active; 0: it does not.
    stepped: int = 0  # The highest epoch that it has stepped down from.


class Link(NamedTuple):
    """One connection. A paused program is one that is cut off."""

    state: Literal["up", "cut", "ended"] = "up"  # Ended: cut off, and its lease is over.
    deadline: int = 0  # The silence that is being timed; 0: none.
    late: int = 0  # An earlier one, whose end nobody has cancelled.


class Message(NamedTuple):
    """An order to a consumer, or the confirmation of one."""

    kind: Literal["active", "step down", "confirm"]
    slot: int
    epoch: int


class State(NamedTuple):
    """Everything there is."""

    group: Group  # Without consumers: it does not exist. Its numbers are kept.
    clients: tuple[Client, ...]
    links: tuple[Link, ...]
    wire: frozenset[Message] = frozenset()
    fence: int = 0  # The highest epoch under which anybody has believed.


Move: TypeAlias = tuple[str, Callable[[], State]]
Key: TypeAlias = tuple[object, ...]


class Broken(AssertionError):
    """Something that must hold does not."""


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def holds(consumer: Consumer) -> bool:
    """Whether it may believe to be active, as far as the group can know."""
    return consumer.connectivity != "forgotten" and consumer.activity != "waiting"


def rightful(group: Group) -> str | None:
    """Who should be active: the design's words, said apart from the code."""
    eligible = {c.id: c for c in group.consumers if c.connectivity == "connected" and c.is_able}
    names = list(eligible)
    active = [name for name in names if eligible[name].activity == "active"]
    if not names:
        return None
    if group.is_sticky:
        wishes = [group.preferred, *active, group.fallback, names[0]]
    elif group.partition is None:
        wishes = [*active, names[0]]
    else:
        counted = [c.id for c in group.consumers if c.connectivity != "forgotten"]
        chosen = counted[group.partition % len(counted)]
        wishes = [chosen, *active, names[group.partition % len(names)]]
    return next(name for name in wishes if name in eligible)


@dataclass(frozen=True)
class Setting:
    """How many consumers there are, on which connections, and how many messages may be under way."""

    name: str
    homes: tuple[int, ...]  # For each consumer, its connection.
    partition: int | None = None
    most: int = 3  # Messages under way; what is sent beyond them is lost.
    is_sticky: bool = False
    has_wishes: bool = False  # Consumers become able and unable, planners prefer one or another.
    is_fenced: bool = False
    opening: tuple[str, ...] = ()  # What has happened before everything else.

    def start(self) -> State:
        group = Group(self.partition, is_sticky=self.is_sticky, is_fenced=self.is_fenced)
        links = tuple(Link() for _ in range(max(self.homes) + 1))
        state = State(group, tuple(Client() for _ in self.homes), links)
        for label in self.opening:
            state = dict(self.moves(state))[label]()
        return state

    def slots_on(self, link: int) -> list[int]:
        return [slot for slot, home in enumerate(self.homes) if home == link]

    # What can happen.

    def moves(self, state: State) -> Iterator[Move]:
        present = {c.id: c for c in state.group.consumers}
        for slot, home in enumerate(self.homes):
            if state.links[home].state != "up":
                continue
            consumer = present.get(IDS[slot])
            if consumer is None:
                yield f"{IDS[slot]} joins", partial(self.join, state, slot)
                if self.has_wishes and present:
                    other = Register(IDS[slot], f"c{home}", 7, is_fenced=self.is_fenced)
                    yield f"{IDS[slot]} joins for another partition", partial(self.apply, state, other)
                    other = Register(IDS[slot], f"c{home}", self.partition, is_fenced=not self.is_fenced)
                    yield f"{IDS[slot]} joins with another fence", partial(self.apply, state, other)
                continue
            yield f"{IDS[slot]} leaves", partial(self.leave, state, slot)
            if self.has_wishes:
                again = Register(consumer.id, consumer.connection, self.partition, is_fenced=self.is_fenced)
                yield f"{consumer.id} joins again", partial(self.apply, state, again)
            if (order := order_for(consumer)) is not None and order not in state.wire:
                yield f"send again: {order}", partial(self.send, state, order)
        for message in sorted(state.wire):
            yield f"deliver {message}", partial(self.deliver, state, message)
            yield f"lose {message}", partial(without, state, message)
        for number, link in enumerate(state.links):
            yield from self.link_moves(state, number, link)
        yield from self.operator_moves(state)

    def link_moves(self, state: State, number: int, link: Link) -> Iterator[Move]:
        hanging = [c for c in state.group.consumers if c.connection == f"c{number}"]
        if link.late:
            yield f"late deadline of c{number}", partial(self.late_deadline, state, number)
        if link.state == "up":
            yield f"cut c{number}", partial(relink, state, number, state="cut")
            return
        if any(c.connectivity == "connected" for c in hanging):
            yield f"notice c{number}", partial(self.notice, state, number)
        if link.state == "cut":
            if self.is_fenced and hanging:
                yield f"c{number} ends itself", partial(self.found_dead, state, number)
            yield f"c{number} is back", partial(self.heal, state, number)
            yield f"the lease of c{number} ends", partial(self.end_lease, state, number)
            return
        if link.deadline:
            yield f"deadline of c{number}", partial(self.deadline, state, number)
        if hanging:
            yield f"c{number} is found dead", partial(self.found_dead, state, number)
        yield f"c{number} begins anew", partial(self.begin_anew, state, number)
        if not any(c.activity == "active" and c.connectivity != "forgotten" for c in hanging):
            yield f"c{number} returns", partial(self.come_back, state, number)

    def operator_moves(self, state: State) -> Iterator[Move]:
        if not state.group.consumers:
            return
        is_over = {f"c{number}": link.state == "ended" for number, link in enumerate(state.links)}
        if all(c.connectivity == "connected" or is_over[c.connection] for c in state.group.consumers):
            yield "evaluate", partial(self.apply, state, Evaluate())
            dead = frozenset(c.connection for c in state.group.consumers if is_over[c.connection])
            if dead:
                yield "evaluate with the dead", partial(self.apply, state, Evaluate(dead))
        if not self.has_wishes:
            return
        able = frozenset(c.id for c in state.group.consumers if c.is_able)
        for consumer in state.group.consumers:
            yield f"able: {consumer.id} or not", partial(self.apply, state, Able(able ^ {consumer.id}))
            if consumer.id != state.group.preferred:
                other = state.group.consumers[0].id
                yield f"prefer {consumer.id}", partial(self.apply, state, Prefer(consumer.id, other))
        yield "prefer nobody", partial(self.apply, state, Prefer(None, state.group.consumers[-1].id))
        purged = frozenset(connection for connection, over in is_over.items() if over)
        yield "purge", partial(self.apply, state, Purge(purged))

    # Consumers.

    def join(self, state: State, slot: int) -> State:
        """It is another incarnation: what was on its way to the one before is not for this one."""
        state = forget_orders(state, [slot])._replace(clients=put(state.clients, slot, Client()))
        command = Register(IDS[slot], f"c{self.homes[slot]}", self.partition, is_fenced=self.is_fenced)
        return self.apply(state, command)

    def leave(self, state: State, slot: int) -> State:
        state = forget_orders(state, [slot])._replace(clients=put(state.clients, slot, Client()))
        return self.apply(state, Unregister(IDS[slot]))

    def send(self, state: State, message: Message) -> State:
        return state._replace(wire=state.wire | {message}) if len(state.wire) < self.most else state

    def deliver(self, state: State, message: Message) -> State:
        if message.kind == "confirm":
            return self.apply(state, Confirm(IDS[message.slot], message.epoch)) if state.group.consumers else state
        client = state.clients[message.slot]
        is_over = state.links[self.homes[message.slot]].state == "ended"
        if message.kind == "active":
            if is_over or message.epoch <= max(client):
                return state
            believing = put(state.clients, message.slot, client._replace(belief=message.epoch))
            return state._replace(clients=believing, fence=max(state.fence, message.epoch))
        belief = 0 if client.belief <= message.epoch else client.belief
        client = Client(belief, max(client.stepped, message.epoch))
        state = state._replace(clients=put(state.clients, message.slot, client))
        return self.send(state, Message("confirm", message.slot, message.epoch))

    # Connections.

    def notice(self, state: State, number: int) -> State:
        return self.apply(state, ConnectionDisconnected(f"c{number}"))

    def heal(self, state: State, number: int) -> State:
        """Back in time. If nobody has noticed that it was away, nobody is told. Who is unknown believes nothing."""
        link, known = state.links[number], {c.id for c in state.group.consumers}
        for slot in self.slots_on(number):
            if IDS[slot] not in known:
                state = forget_orders(state, [slot])._replace(clients=put(state.clients, slot, Client()))
        state = relink(state, number, state="up", deadline=0, late=link.deadline or link.late)
        return self.apply(state, ConnectionReconnected(f"c{number}")) if state.group.consumers else state

    def end_lease(self, state: State, number: int) -> State:
        clients = list(state.clients)
        for slot in self.slots_on(number):
            clients[slot] = clients[slot]._replace(belief=0)
        return relink(state, number, state="ended")._replace(clients=tuple(clients))

    def deadline(self, state: State, number: int) -> State:
        command = DisconnectedTimeout(f"c{number}", state.links[number].deadline)
        state = relink(state, number, deadline=0)
        return self.apply(state, command) if state.group.consumers else state

    def late_deadline(self, state: State, number: int) -> State:
        command = DisconnectedTimeout(f"c{number}", state.links[number].late)
        state = relink(state, number, late=0)
        if not state.group.consumers:
            return state
        following = self.apply(state, command)
        must(following.group == state.group, "a deadline of an earlier silence has changed something")
        return following

    def found_dead(self, state: State, number: int) -> State:
        return self.apply(state, ConnectionDown(f"c{number}"))

    def begin_anew(self, state: State, number: int) -> State:
        """The program has closed: what it had is gone, and its consumers may join again, under a new connection."""
        if any(c.connection == f"c{number}" for c in state.group.consumers):
            state = self.found_dead(state, number)
        return relink(forget_orders(state, self.slots_on(number)), number, state="up", deadline=0, late=0)

    def come_back(self, state: State, number: int) -> State:
        """To where it was: as another incarnation, which believes nothing."""
        link = state.links[number]
        state = forget_orders(state, self.slots_on(number))
        state = relink(state, number, state="up", deadline=0, late=link.deadline or link.late)
        return self.apply(state, ConnectionReconnected(f"c{number}")) if state.group.consumers else state

    # The machine.

    def apply(self, state: State, command: Command) -> State:
        before = state.group
        done = groups.step(before, command)
        after = replace(before, consumers=()) if done.group is None else done.group
        keeps_the_rules(before, command, done, after)
        state = state._replace(group=after)
        for effect in done.effects:
            match effect:
                case StartDeadline(connection=connection, incarnation=incarnation):
                    state = relink(state, int(connection[1:]), deadline=incarnation)
                case TellActive(consumer=consumer, epoch=epoch):
                    state = self.send(state, Message("active", IDS.index(consumer), epoch))
                case TellStepDown(consumer=consumer, epoch=epoch):
                    state = self.send(state, Message("step down", IDS.index(consumer), epoch))
        return state

    # What must hold, at every moment and in the end.

    def check(self, state: State) -> None:
        """Never two believers; and whoever believes is known to hold. Where a fence guards, one of them passes it."""
        believers = [slot for slot, client in enumerate(state.clients) if client.belief]
        if self.is_fenced:
            passing = [slot for slot in believers if state.clients[slot].belief >= state.fence]
            must(len(passing) <= 1, "two pass the fence")
            return
        must(len(believers) <= 1, "two believe to be active")
        for slot in believers:
            consumer = next((c for c in state.group.consumers if c.id == IDS[slot]), None)
            if consumer is None:
                raise Broken("one believes to be active that the group does not have")
            must(holds(consumer), "one believes to be active that the group does not count")
            must(consumer.epoch == state.clients[slot].belief, "one believes in an epoch that is not its own")

    def calmer(self, state: State, heals: bool) -> State | None:
        """The next thing that happens when nothing more goes wrong; None when nothing is left to happen.

        What is cut off comes back, or else is silent for good and is forgotten.
        """
        for number, link in enumerate(state.links):
            moves = dict(self.link_moves(state, number, link))
            order = ("is back", "returns", "begins anew") if heals else ("lease", "notice", "deadline of", "late")
            for wanted in () if link.state == "up" else order:
                for label, move in moves.items():
                    if wanted in label:
                        return move()
        for message in state.wire:
            return self.deliver(without(state, message), message)
        for consumer in state.group.consumers:
            slot = IDS.index(consumer.id)
            order_again = order_for(consumer)
            is_answered = consumer.activity == "active" and state.clients[slot].belief == consumer.epoch
            if order_again is not None and not is_answered and consumer.connectivity == "connected":
                return self.send(state, order_again)
        return None

    def ends_well(self, state: State, heals: bool, known: set[Key]) -> None:
        """Left alone, the world comes to rest with exactly the rightful one active and believing.

        What has been found to end well is remembered in `known`.
        """
        seen = []
        while (key := self.key(state)) not in known:
            must(len(seen) < QUIET_WITHIN, "the group does not come to rest")
            seen.append(key)
            following = self.calmer(state, heals)
            if following is None:
                self.is_at_rest(state)
                break
            self.check(following)
            state = following
        known.update(seen)

    def is_at_rest(self, state: State) -> None:
        name = rightful(state.group)
        believers = [(IDS[slot], client.belief) for slot, client in enumerate(state.clients) if client.belief]
        holders = [(c.id, c.epoch) for c in state.group.consumers if holds(c)]
        expected = [] if name is None else [(name, state.group.epoch)]
        must(holders == expected, f"stuck: {name} should be active, and {holders} hold")
        must(believers == expected, f"stuck: {name} should be active, and {believers} believe")

    def key(self, state: State) -> Key:
        """The same for states that differ in names and numbers only, or in what makes no difference any more.

        Epochs and incarnation are compared for one consumer at a time, so only their order there counts. Consumers and
        connections are named by the order of registration.
        """
        present = {IDS.index(c.id): c for c in state.group.consumers}
        slots = [*present, *(slot for slot in range(len(self.homes)) if slot not in present)]
        homes = list(dict.fromkeys(self.homes[slot] for slot in slots))
        wire: dict[int, list[Message]] = {}
        for message in state.wire:
            if message.kind == "confirm" or state.links[self.homes[message.slot]].state != "ended":
                wire.setdefault(message.slot, []).append(message)
        blocks = [self._slot_key(state, slot, present.get(slot), wire.get(slot, [])) for slot in slots]
        names = [homes.index(self.homes[slot]) for slot in slots]
        there, absent = len(present), sorted(zip(names[len(present) :], blocks[len(present) :], strict=True))
        in_use = {self.homes[slot] for slot in present}
        links = [
            (link.state if home in in_use else "up", link.deadline != 0 and home in in_use, link.late != 0)
            for home, link in ((home, state.links[home]) for home in homes)
        ]
        return tuple(zip(names[:there], blocks[:there], strict=True)), tuple(absent), tuple(links)

    def _slot_key(self, state: State, slot: int, consumer: Consumer | None, wire: list[Message]) -> tuple[object, ...]:
        belief, stepped = state.clients[slot]
        if not any(m.kind == "active" and m.epoch <= stepped for m in wire):
            stepped = 0
        own = 0 if consumer is None or consumer.activity == "waiting" else consumer.epoch
        others = sorted({belief, stepped, *(m.epoch for m in wire)} - {0, own})
        rank = {0: 0, own: -1 if own else 0} | {epoch: n for n, epoch in enumerate(others, start=1)}
        found: tuple[object, ...] = ()
        if consumer is not None:
            link = state.links[self.homes[slot]]
            is_lost = consumer.connectivity == "disconnected"
            is_timed = is_lost and consumer.incarnation == link.deadline, is_lost and consumer.incarnation == link.late
            found = (consumer.connectivity, consumer.activity, consumer.is_able, is_timed)
        wishes = IDS[slot] == state.group.preferred, IDS[slot] == state.group.fallback
        passes = self.is_fenced and belief == state.fence
        return found, rank[belief], rank[stepped], tuple(sorted((m.kind, rank[m.epoch]) for m in wire)), wishes, passes


# What a step may do.


def keeps_the_rules(before: Group, command: Command, done: groups.Step, after: Group) -> None:
    """The rules of every single step, whatever the history."""
    _keeps_the_members(before, command, done, after)
    if isinstance(done.reply, Refused):
        must(replace(after, ignored=before.ignored) == before, "a refusal has changed something")
        must(not done.effects, "a refusal has effects")
    is_stale = isinstance(command, Confirm) and done.reply == Refused("stale")
    must(after.ignored == before.ignored + is_stale, "what is ignored is not counted")
    members = {c.id: c for c in after.consumers}
    active = [c for c in after.consumers if c.activity == "active" and c.connectivity != "forgotten"]
    must(len(active) <= 1, "two are active")
    told = [effect for effect in done.effects if isinstance(effect, TellActive)]
    must(after.epoch == before.epoch + len(told) and len(told) <= 1, "an epoch is not of one grant")
    for effect in told:
        must(effect.epoch == after.epoch, "a grant is told under another epoch")
        untold = tuple(replace(c, activity="waiting") if c.id == effect.consumer else c for c in after.consumers)
        name = rightful(replace(after, consumers=untold))
        must(effect.consumer == name, "another one than the rightful is told active")
    for effect in done.effects:
        if isinstance(effect, TellStepDown):
            consumer = members[effect.consumer]
            status = consumer.connectivity, consumer.activity, consumer.epoch
            must(status == ("connected", "deactivating", effect.epoch), "a step-down of another grant")
            _is_called_for(before, after, consumer)
    _keeps_time(before, command, done.effects, after)


def _keeps_the_members(before: Group, command: Command, done: groups.Step, after: Group) -> None:
    """Whoever is named leaves, nobody else does, and the others keep their order and what they are."""
    stay = [c.id for c in before.consumers if not _leaves(c, command)]
    if isinstance(command, Register):
        if command.partition != before.partition:
            must(done.reply == Refused("partition_index_conflict"), "a group has two partitions")
        elif command.is_fenced != before.is_fenced:
            must(done.reply == Refused("fenced_conflict"), "some of a group are fenced, and some are not")
        elif command.consumer in stay:
            must(done.reply == Refused("already_registered"), "a consumer is there twice")
        else:
            stay.append(command.consumer)
            is_active = after.consumers[-1].activity == "active"
            must(done.reply == Ok(is_active), "a consumer is told wrongly whether it is active")
    must([c.id for c in after.consumers] == stay, "another one has left, or the order has changed")
    must((done.group is None) == (not stay), "an empty group is there, or one that is not empty is gone")


def _leaves(consumer: Consumer, command: Command) -> bool:
    match command:
        case Unregister(consumer=name):
            return consumer.id == name
        case ConnectionDown(connection=connection):
            return consumer.connection == connection
        case Purge(connections=connections):
            return consumer.connection in connections
        case Evaluate(dead=dead):
            return consumer.connectivity != "connected" or consumer.connection in dead
        case _:
            return False


def _is_called_for(before: Group, after: Group, consumer: Consumer) -> None:
    """Nobody steps down who is wanted or whom nobody can follow, but for one that was forgotten and is back."""
    former = {c.id: c for c in before.consumers}.get(consumer.id)
    is_returned = former is not None and former.connectivity == "forgotten"
    members = tuple(replace(c, activity="active") if c.id == consumer.id else c for c in after.consumers)
    is_rightful = rightful(replace(after, consumers=members)) == consumer.id
    is_blocked = any(c.connectivity == "disconnected" and holds(c) for c in after.consumers)
    must(is_returned or not is_rightful, "the rightful one steps down")
    must(is_returned or not is_blocked, "one steps down whom nobody can follow yet")


def _keeps_time(before: Group, command: Command, effects: tuple[Effect, ...], after: Group) -> None:
    """A silence begins a deadline with a number of its own; nothing else does."""
    lost: list[str] = []
    if isinstance(command, ConnectionDisconnected):
        lost = [c.id for c in before.consumers if c.connection == command.connection and c.connectivity == "connected"]
    begun = [effect for effect in effects if isinstance(effect, StartDeadline)]
    must(len(begun) == bool(lost), "a silence begins one deadline")
    for effect in begun:
        numbers = {c.incarnation for c in after.consumers if c.id in lost}
        must(
            numbers == {effect.incarnation} and effect.incarnation > before.incarnation,
            "a deadline is not of this silence",
        )


# Small changes.


def order_for(consumer: Consumer) -> Message | None:
    """The order that a consumer may not have answered."""
    if consumer.connectivity != "connected" or consumer.activity == "waiting":
        return None
    kind: Literal["active", "step down"] = "active" if consumer.activity == "active" else "step down"
    return Message(kind, IDS.index(consumer.id), consumer.epoch)


def put(clients: tuple[Client, ...], slot: int, client: Client) -> tuple[Client, ...]:
    return (*clients[:slot], client, *clients[slot + 1 :])


def relink(state: State, number: int, /, **changes: object) -> State:
    link = state.links[number]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(links=(*state.links[:number], link, *state.links[number + 1 :]))


def without(state: State, message: Message) -> State:
    return state._replace(wire=state.wire - {message})


def forget_orders(state: State, slots: list[int]) -> State:
    """What is on its way to these consumers does not reach them any more; what they have sent may arrive."""
    return state._replace(wire=frozenset(m for m in state.wire if m.kind == "confirm" or m.slot not in slots))

"""The notifier: one node looks every few seconds at what is wrong, and sends what is to be told.

Which node that is, is a claim in the database: one whose node has ended is void, so another goes on within seconds.
Incidents and messages are saved together (`store.notifications`), by what `core.incidents` says. A message is taken off
the list once its target has it. Between the two a node may die; then it is sent once more, under the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog

from headgate.clock import boot_s, unix_s
from headgate.core import incidents
from headgate.core.incidents import Incident, IncidentRule, Reckoned, Seen, Tell, again_in_s
from headgate.datasources import notifications as documents
from headgate.datasources.health import judged
from headgate.datasources.registry import SYSTEM
from headgate.errors import HeadgateError, NotFound, Refused, StoreError
from headgate.hidden import hide
from headgate.ids import new_id
from headgate.runtime.facts import all_facts, all_figures
from headgate.runtime.notifications import messages
from headgate.runtime.notifications.messages import Body
from headgate.runtime.notifications.sending import send
from headgate.store.notifications import Message, Notifications, Written
from headgate.text import one_line

if TYPE_CHECKING:
    from headgate.runtime.node import Node

LOOK_S = 2.0
SHARE = 20.0  # The next look waits for this many times what the last one took: thousands are looked at less often.
LONGEST_S = 30.0
ROUNDS = 20  # Messages for one target that are sent in a row, before the next look.
MOST_REASON = 300

log = structlog.get_logger()


class Notifier:
    """This node's part in telling people."""

    def __init__(self, table: Notifications, node: Node) -> None:
        self._table = table
        self._node = node

    # What people do.

    async def set(self, document: Any, actor: str, *, over: int | None = None) -> int:
        """Write the document, if nothing is wrong with it; in place of the version `over`, or of any. Returns its
        version."""
        registry = self._node.registry
        values = await registry.secrets.read(documents.names_in(document))
        documents.check(document, values, (await registry.reaching()).guard(is_trusted=True))
        return await self._write(document, actor, over)

    async def delete(self, actor: str, *, over: int | None = None) -> int:
        """Tell nobody anything any more; if given, only in place of the version `over`. What is open is over."""
        if (await self._table.read()).document is None:
            raise NotFound("there are no notifications", hint="headgate notifications set FILE")
        return await self._write(None, actor, over)

    async def _write(self, document: Any, actor: str, over: int | None) -> int:
        version = await self._table.write(document, actor, over=over)
        if version is None:
            text = "the notifications have changed since they were read"
            raise Refused(text, code="conflict", hint="read them again, then decide")
        self._node.registry.waker.wake("events")
        return version

    async def test(self, target: str) -> None:
        """Send a message that says so to a target, from this node, now. Raises ConnectorError if it is not taken."""
        written = await self._table.read()
        await self._send(written, target, messages.trial_body(new_id(), unix_s(), self._node.installation))

    # The loop.

    async def run(self) -> None:
        """Look and send until cancelled."""
        while True:
            began_s = boot_s()
            with contextlib.suppress(StoreError):
                await self._turn()
            await asyncio.sleep(min(LONGEST_S, max(LOOK_S, SHARE * (boot_s() - began_s))))

    async def _turn(self) -> None:
        node = self._node
        if node.trust_left_s() <= 0.0 or (written := await self._table.claim(node.incarnation)) is None:
            return
        await self._look(written)
        began_s = boot_s()
        for _ in range(ROUNDS):
            due = await self._table.due()
            if not due:
                break
            # All are awaited, whatever fails: one that is still on its way must not be sent once more by the next turn.
            ended = await asyncio.gather(*(self._deliver(written, one) for one in due), return_exceptions=True)
            if failed := next((one for one in ended if one is not None), None):
                raise failed
            still = await self._table.claim(node.incarnation)  # With the document as it is by now.
            if still is None or boot_s() - began_s > LONGEST_S:
                break
            written = still

    async def _look(self, written: Written) -> None:
        """Compare what is seen with the rules. Nothing is decided while something cannot be seen."""
        rules = {} if written.document is None else documents.rules_of(written.document)
        seen = await self._seen(rules.values()) if rules else []
        lost = await self._table.lost_nodes() if any(rule.when == "node_lost" for rule in rules.values()) else []
        found = incidents.troubles(rules.values(), seen, lost)

        def step(known: Sequence[Incident], now_s: float) -> Reckoned:
            return incidents.step(known, rules, found, now_s)

        def body(tell: Tell, id: UUID, now_s: float) -> Body:
            return messages.body_of(tell, id, now_s, self._node.installation)

        if await self._table.reckon(self._node.incarnation, written.version, step, body):
            self._node.waker.wake("events")

    async def _seen(self, rules: Iterable[IncidentRule]) -> list[Seen]:
        """All datasources, if a rule is about them."""
        whens = {rule.when for rule in rules}
        if whens <= {"node_lost"}:
            return []
        letters = await self._node.letters.open_numbers() if "dead_letters" in whens else {}
        found = []
        async for facts, _ in all_facts(self._node):
            verdict, published = judged(facts), facts.published
            is_rejected = published is not None and published.status == "rejected"
            found.append(
                Seen(
                    facts.datasource.name,
                    verdict.health,
                    hide(verdict.why),
                    all_figures(facts).lag_s,
                    letters.get(facts.datasource.id, 0),
                    published.number if published is not None and is_rejected else None,
                    () if published is None else tuple(published.content.options.get("labels") or ()),
                )
            )
        return found

    # Sending.

    async def _deliver(self, written: Written, message: Message) -> None:
        """One message: it is sent, or tried again later, or given up."""
        try:
            await self._send(written, message.target, message.body)
        except StoreError:
            raise
        except NotFound:  # An admin has removed the target; or has added it since, and this node has slept.
            if message.target not in _targets(await self._table.read()):
                await self._table.remove(message)
        except HeadgateError as error:
            await self._failed(message, hide(one_line(error.message, MOST_REASON)))
        except Exception:  # A mistake of ours, or a target's strange file: it must not hold up the other targets.
            log.exception("a notification could not be sent", target=message.target)
            await self._failed(message, "an unexpected error; the log of the node that sends has it")
        else:
            await self._table.remove(message)

    async def _failed(self, message: Message, reason: str) -> None:
        again_s = again_in_s(message.attempts, message.age_s)
        if again_s is None:
            log.warning("a notification is given up", target=message.target, reason=reason)
            await self._table.give_up(message, reason, SYSTEM)
        else:
            log.warning("a notification was not taken", target=message.target, reason=reason, again_s=again_s)
            await self._table.postpone(message, again_s, reason)

    async def _send(self, written: Written, name: str, body: Body) -> None:
        registry = self._node.registry
        values = await registry.secrets.read(documents.names_in(_targets(written).get(name)))
        target = documents.target_of(written.document, name, values)
        await send(target, body, (await registry.reaching()).guard(is_trusted=True))


def _targets(written: Written) -> dict[str, Any]:
    found: dict[str, Any] = written.document.get("targets", {}) if isinstance(written.document, dict) else {}
    return found

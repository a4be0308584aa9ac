"""What this node knows of tokens: whose a text is, which ones were used and from where, and which connections end.

*Looking up.* A text that could be no token is no token. Others are looked up by their hash, and the answer holds for a
moment. Lookups gather: those that come while one is under way, or just after it, go together into the next query. So
neither many callers nor a flood of wrong tokens costs a query each, and a caller waits for a moment at the most. A text
that no token had is remembered longer, because nobody can have a token that was guessed before it was made.

*Ends.* A token that was revoked or has expired works nowhere after `KNOWN_S`, and at once where the wake-up arrives.
Connections that stay open are held here: one query in `LOOK_S` asks for the tokens of all of them, and those whose
token has ended are closed.

*Uses and failures* are counted here and written down now and then, many at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import TypeVar
from uuid import UUID

from headgate.clock import boot_s
from headgate.core import failures
from headgate.core.access import Caller
from headgate.core.failures import Tally
from headgate.errors import StoreError
from headgate.store.sessions import Sessions
from headgate.store.tokens import USED_EVERY_S, Found, Tokens, hash_of, is_text

KNOWN_S = 2.0  # A token that has ended works no longer than this.
WRONG_S = 60.0
GATHER_S = 0.05  # Between two queries that look tokens up.
LOOK_S = 2.0  # How often the tokens of open connections are looked at.
MOST_KNOWN = 10_000
MOST_AT_ONCE = 1000  # Hashes in one query.
MOST_USES = 10_000  # Pairs of token and address that are remembered.
MOST_PLACES = 1000  # Addresses whose failures are counted apart.
SHOWN_PLACES = 5
PAUSE_S = 0.2  # Between two looks, whatever happens meanwhile.

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Known:
    """What a lookup has found, and until when that holds."""

    until_s: float
    found: Found


@dataclass(frozen=True, slots=True)
class _Use:
    """A token and an address, and what is still to be written down of it."""

    written_s: float = -math.inf
    is_new: bool = True

    def is_due(self, now_s: float) -> bool:
        """Whether to write it down now: the first use at once, the others once in a while."""
        return self.is_new and now_s - self.written_s >= USED_EVERY_S


class Access:
    """The tokens of an installation, as one node sees them."""

    def __init__(self, tokens: Tokens, sessions: Sessions, name: str) -> None:
        self._tokens = tokens
        self._sessions = sessions
        self._name = name  # The node's.
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._wrong: OrderedDict[bytes, float] = OrderedDict()  # By hash: anyone may send any text. Until when.
        self._asked: dict[bytes, asyncio.Future[Found | None]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._changes = 0  # How often something was forgotten.
        self._held: dict[object, tuple[Caller, Callable[[], None]]] = {}
        self._uses: OrderedDict[tuple[UUID, str], _Use] = OrderedDict()
        self._seen: set[UUID] = set()  # Sessions that were used since that was last written down,
        self._seen_written_s = -math.inf  # which was then.
        self._failures: Counter[str] = Counter()  # By what was wrong.
        self._failed_at: Counter[str] = Counter()  # By address.
        self._tally = Tally()
        self._news = asyncio.Event()

    # Who is who.

    async def find(self, text: str) -> Found | None:
        """The token that reads so; also one that has ended."""
        if not is_text(text):
            return None
        key = hash_of(text)
        now_s, known = boot_s(), self._known.get(key)
        if known is not None and known.until_s > now_s:
            return known.found
        if self._wrong.get(key, 0.0) > now_s:
            return None
        waiting = self._asked.get(key)
        if waiting is None:
            waiting = self._asked[key] = asyncio.get_running_loop().create_future()
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask(), name="tokens")
        return await asyncio.shield(waiting)

    def drop(self, text: str) -> None:
        """What reads so has ended: ask again, and look at open connections."""
        self._changes += 1
        self._known.pop(hash_of(text), None)
        self._news.set()

    def forget(self) -> None:
        """A token was made or has ended: ask again, and look at open connections."""
        self._changes += 1
        self._known.clear()
        self._wrong.clear()
        self._news.set()

    async def _ask(self) -> None:
        while self._asked:
            keys = list(self._asked)[:MOST_AT_ONCE]
            batch, changes = {key: self._asked.pop(key) for key in keys}, self._changes
            try:
                found = {one.hash: one for one in await self._tokens.find(keys)}
            except Exception as error:  # Whatever it is, nobody may wait for an answer that never comes.
                for future in batch.values():
                    future.set_exception(error)
                    future.exception()  # Those who asked may be gone; then nobody misses it.
            else:
                for key, future in batch.items():
                    one = _same(found.get(key), key)
                    if changes == self._changes:  # Else this may be how it was before.
                        self._remember(key, one)
                    future.set_result(one)
            await asyncio.sleep(GATHER_S)

    def _remember(self, key: bytes, found: Found | None) -> None:
        """Two tables, each bounded: wrong texts push no token out."""
        if found is None:
            _put(self._wrong, key, boot_s() + WRONG_S, MOST_KNOWN)
        else:
            _put(self._known, key, _Known(boot_s() + KNOWN_S, found), MOST_KNOWN)

    # Connections that stay open.

    @contextmanager
    def hold(self, caller: Caller, end: Callable[[], None]) -> Iterator[None]:
        """Call `end`, once, if the token or the session of a connection ends while the body runs."""
        if caller.id is None:
            yield
            return
        key = object()
        self._held[key] = (caller, end)
        try:
            yield
        finally:
            self._held.pop(key, None)

    async def _look(self) -> None:
        held = {_what_ends(caller) for caller, _ in self._held.values()}
        if not held:
            return
        live = set(await self._tokens.live(sorted(held)))
        for key, (caller, end) in list(self._held.items()):
            if _what_ends(caller) in live:
                self._see(caller)
            elif _what_ends(caller) in held and self._held.pop(key, None) is not None:
                end()

    # Uses and failures.

    def used(self, caller: Caller, address: str) -> None:
        """A token was used from this address."""
        if caller.id is None:
            return
        self._see(caller)
        use = (caller.id, network_of(address))
        known = self._uses.get(use)
        if known is None or not known.is_new:
            _put(self._uses, use, _Use() if known is None else _Use(known.written_s), MOST_USES)
            if known is None:
                self._news.set()

    def failed(self, what: str, address: str) -> None:
        """A token was wrong (`unknown`), had ended (`ended`), or was not enough (`forbidden`)."""
        self._tally = failures.failed(self._tally, boot_s())
        self._failures[what] += 1
        place = network_of(address)
        if place in self._failed_at or len(self._failed_at) < MOST_PLACES:
            self._failed_at[place] += 1

    async def _write_uses(self) -> bool:
        """Write down what was used since; says whether there is an event of it."""
        now_s = boot_s()
        due = [use for use, one in self._uses.items() if one.is_due(now_s)][:MOST_AT_ONCE]
        if not due:
            return False
        for use in due:
            self._uses[use] = _Use(now_s, is_new=False)
        try:
            return await self._tokens.note_uses(due) > 0
        except StoreError:
            self._uses.update(dict.fromkeys(due, _Use()))
            raise

    def _see(self, caller: Caller) -> None:
        if caller.session is not None:
            self._seen.add(caller.session)

    async def _write_sessions(self) -> None:
        """A page that is open uses its session; one that nobody uses ends some day."""
        if self._seen and boot_s() - self._seen_written_s >= USED_EVERY_S:
            self._seen_written_s = boot_s()
            seen, self._seen = self._seen, set()
            await self._sessions.touch(sorted(seen))

    async def _write_failures(self) -> bool:
        due_s = self._tally.due_s
        if due_s is None or due_s > boot_s():
            return False
        counts, places = self._failures.copy(), dict(self._failed_at.most_common(SHOWN_PLACES))
        await self._tokens.note_failures(counts, places, self._name)
        self._failures -= counts  # What came meanwhile is for the next time.
        self._failed_at.clear()
        self._tally = failures.written(self._tally, boot_s())
        return True

    async def run(self, on_event: Callable[[], None]) -> None:
        """Keep the books until cancelled. `on_event` is called when something was recorded."""
        while True:
            self._news.clear()
            with contextlib.suppress(StoreError):
                await self._look()
                await self._write_sessions()
                is_new = await self._write_uses()
                if await self._write_failures() or is_new:
                    on_event()
            await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()


def _what_ends(caller: Caller) -> UUID:
    """What a connection hangs on: the session of a browser, else the token."""
    found = caller.session or caller.id
    assert found is not None
    return found


def _put(table: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """The newest is last; the oldest goes when there are too many."""
    table[key] = value
    table.move_to_end(key)
    while len(table) > most:
        table.popitem(last=False)


def _same(found: Found | None, key: bytes) -> Found | None:
    """The database compared hashes; this comparison takes as long for any of them."""
    return found if found is not None and hmac.compare_digest(found.hash, key) else None


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Where a caller is. A machine has many addresses of IPv6 and takes new ones by itself, so they count as one."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> 64 << 64)}/64"

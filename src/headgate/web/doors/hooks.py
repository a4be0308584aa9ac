"""Which webhooks there are. What strangers ask for costs neither memory nor a query each.

The registry of this node knows all that is published, up to half a second late. A name that it does not know may have
been published just now: all callers that ask for such names share one look into the database, and there are only so
many looks in a second. What a look finds is the answer for those who waited for it; nothing of it is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from headgate.clock import boot_s
from headgate.connectors.webhook import Verifier, WebhookOptions
from headgate.core.reconcile import Entry
from headgate.datasources.registry import Registry
from headgate.errors import HeadgateError, NotFound, Refused, StoreError
from headgate.store.inbox import Limit

LOOK_EVERY_S = 0.1
FAILED_S = 1.0  # How long a webhook that cannot be loaded is not tried again.


@dataclass(frozen=True, slots=True)
class Hook:
    """What the door knows of one webhook."""

    name: str
    datasource: UUID
    revision: int
    options: WebhookOptions
    verifier: Verifier | None  # None: callers need a token.
    signed_header: str  # The one with the signature, in lower case.
    limit: Limit


@dataclass(frozen=True, slots=True)
class _NoHook:
    """A datasource that callers cannot use, as of its revision."""

    revision: int
    error: HeadgateError
    until_s: float


class Hooks:
    """Finds webhooks by name."""

    def __init__(self, registry: Registry, lists: Callable[[str], bool]) -> None:
        self._registry = registry
        self._lists = lists  # Whether the registry in use names this datasource.
        self._known: dict[str, Hook | _NoHook] = {}  # Of datasources that exist.
        self._loading: dict[str, asyncio.Task[Hook | _NoHook]] = {}
        self._next_look: asyncio.Task[Mapping[str, Entry]] | None = None
        self._last_look_s = 0.0

    def known(self, name: str) -> Hook | None:
        """The webhook, if nothing needs to be asked for it."""
        entry = self._registry.entry(name)
        hook = self._known.get(name)
        if entry is None or type(hook) is not Hook or hook.revision != entry.revision:
            return None
        return hook if entry.is_open and self._lists(name) else None

    def exists(self, name: str) -> bool:
        """Whether it has not been deleted; one that was published just now may be known here only."""
        found = self._known.get(name)
        return self._registry.entry(name) is not None or (
            found is not None and found.revision > self._registry.revision
        )

    async def find(self, name: str) -> Hook:
        """The webhook; raises what keeps callers from using it."""
        entry = self._registry.entry(name)
        if entry is None or entry.wanted is None:
            entry = (await self._look()).get(name) or self._registry.entry(name)  # Which may have looked meanwhile.
        if entry is None or entry.deleted or entry.wanted is None or entry.wanted.target is None:
            self._known.pop(name, None)
            raise _absent(name)
        found = self._known.get(name)
        if found is None or found.revision != entry.revision or _is_over(found):
            found = await self._load(entry, entry.wanted.target)
        if isinstance(found, _NoHook):
            raise found.error
        if not entry.is_open or not self._lists(name):
            raise Refused(f"the webhook {name!r} is stopped")
        return found

    async def _look(self) -> Mapping[str, Entry]:
        """What has changed since this node's registry looked last. A look that has begun is too early for us."""
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_once(), name="a look for new webhooks")
        return await asyncio.shield(self._next_look)

    async def _look_once(self) -> Mapping[str, Entry]:
        await asyncio.sleep(self._last_look_s + LOOK_EVERY_S - boot_s())
        self._last_look_s = boot_s()
        self._next_look = None
        found = await self._registry.datasources.entries_since(self._registry.revision)
        return {entry.name: entry for entry in found}

    async def _load(self, entry: Entry, version: int) -> Hook | _NoHook:
        """Once for all callers that wait for it."""
        loading = self._loading.get(entry.name)
        if loading is None:
            loading = asyncio.create_task(self._load_once(entry, version), name="a webhook's options")
            self._loading[entry.name] = loading
            loading.add_done_callback(lambda _: self._loading.pop(entry.name, None))
        return await asyncio.shield(loading)

    async def _load_once(self, entry: Entry, version: int) -> Hook | _NoHook:
        found: Hook | _NoHook
        try:
            config = await self._registry.get_datasource_config(entry.datasource, version)
            options = config.prepared.source_options
            if isinstance(options, WebhookOptions):
                found = _hook(entry, options)
            else:
                found = _NoHook(entry.revision, _absent(entry.name), float("inf"))
        except StoreError:
            raise
        except HeadgateError:
            reason = Refused(f"the webhook {entry.name!r} is not ready")
            found = _NoHook(entry.revision, reason, boot_s() + FAILED_S)
        self._forget_deleted()
        self._known[entry.name] = found
        return found

    def _forget_deleted(self) -> None:
        """Names that come and go must not add up."""
        if len(self._known) > 2 * len(self._registry.names()) + 100:
            names = self._registry.names()
            self._known = {name: found for name, found in self._known.items() if name in names}


def _absent(name: str) -> NotFound:
    """A datasource that is no webhook is none that a stranger should learn of."""
    return NotFound(f"webhook {name!r} does not exist")


def _hook(entry: Entry, options: WebhookOptions) -> Hook:
    verifier, header = None, ""
    if options.signature is not None:
        verifier, header = Verifier(options.signature), options.signature.header.lower()
    limit = Limit(options.inbox_limit_rows, options.inbox_limit_bytes)
    return Hook(entry.name, entry.datasource, entry.revision, options, verifier, header, limit)


def _is_over(found: Hook | _NoHook) -> bool:
    return isinstance(found, _NoHook) and found.until_s < boot_s()

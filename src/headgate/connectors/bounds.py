"""What a guard knows, as values that can be sent to another process."""

from __future__ import annotations

from ipaddress import ip_network

import msgspec

from headgate.connectors.guard import Bound, Guard
from headgate.core.reach import AddressRule, Reach


class WireRule(msgspec.Struct, frozen=True):
    """An address rule."""

    host: str
    network: str | None
    port: int | None
    is_trusted: bool


class WireBound(msgspec.Struct, frozen=True):
    """A bound of a guard."""

    folders: list[str] | None
    addresses: list[WireRule] | None
    modules: list[str] | None
    is_nodes: bool


class WireGuard(msgspec.Struct, frozen=True):
    """A guard."""

    bounds: list[WireBound]
    never: list[str]

    @classmethod
    def of(cls, guard: Guard) -> WireGuard:
        """For the wire."""
        return cls([_bound(one) for one in guard.bounds], list(guard.never))

    def guard(self) -> Guard:
        """For use."""
        return Guard(tuple(_from_bound(one) for one in self.bounds), tuple(self.never))


def _bound(bound: Bound) -> WireBound:
    found, rules = bound.reach, bound.reach.addresses
    return WireBound(
        None if found.folders is None else list(found.folders),
        None
        if rules is None
        else [
            WireRule(one.host, None if one.network is None else str(one.network), one.port, one.is_trusted)
            for one in rules
        ],
        None if found.modules is None else list(found.modules),
        bound.is_nodes,
    )


def _from_bound(found: WireBound) -> Bound:
    rules = None
    if found.addresses is not None:
        rules = tuple(
            AddressRule(one.host, None if one.network is None else ip_network(one.network), one.port, one.is_trusted)
            for one in found.addresses
        )
    folders = None if found.folders is None else tuple(found.folders)
    return Bound(Reach(folders, rules, None if found.modules is None else tuple(found.modules)), found.is_nodes)

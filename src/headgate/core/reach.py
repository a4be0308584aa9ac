"""What a document may reach: folders, addresses and Python modules, judged without touching any of them.

An admin keeps lists. A path must be resolved before it is judged, so that `..` and symlinks have had their say. An
address is judged twice: as it is written, when a document is checked, and as it was resolved, when a connection is
made. The written name may be on the list, or its resolved address may be. A name on the list stands for what it
resolves to, but not for this machine or its network's services (loopback, link-local, metadata): those must be listed
as addresses, because the owner of a name decides where it points.

One address has many spellings, so all are brought to one before they are compared: IPv4 within IPv6 (mapped, NAT64,
6to4) counts as IPv4, and numbers may be decimal, octal or hexadecimal, with parts left out, as clients read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import PurePosixPath
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

LOCALHOST = "localhost"
_IN_IPV6 = (IPv6Network("64:ff9b::/96"), IPv6Network("::ffff:0:0/96"), IPv6Network("::/96"))
_METADATA = {ip_address(one) for one in ("100.100.100.200", "fd00:ec2::254", "168.63.129.16")}
_LARGEST = (0xFFFFFFFF, 0xFFFFFF, 0xFFFF, 0xFF)  # Of the last part of a number's spelling, by the parts before it.


class Kind(StrEnum):
    """Of what is reached."""

    FOLDER = "folder"
    ADDRESS = "address"
    MODULE = "module"


class Verdict(StrEnum):
    """Of an address that is not resolved yet."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    OPEN = "open"  # Its resolved address decides, when a connection is made.


@dataclass(frozen=True, slots=True)
class AddressRule:
    """One line of the list of addresses: a name, or a range, and a port."""

    host: str = ""  # In lower case; `*.example.com` is every name below.
    network: Network | None = None
    port: int | None = None  # None: any.
    is_trusted: bool = False  # An admin wrote this very address for this use: whatever it resolves to is meant.

    def is_named(self, host: str, port: int) -> bool:
        """Whether a written name is this one."""
        name = host.lower().rstrip(".")
        below = self.host.startswith("*.") and name.endswith(self.host[1:])
        return bool(self.host) and (name == self.host or below) and self.port in (None, port)

    def holds(self, address: Address, port: int) -> bool:
        """Whether an address is in this range."""
        return self.network is not None and address in self.network and self.port in (None, port)


@dataclass(frozen=True, slots=True)
class Reach:
    """What may be reached. None: everything of that kind."""

    folders: tuple[str, ...] | None = None  # Absolute and resolved.
    addresses: tuple[AddressRule, ...] | None = None
    modules: tuple[str, ...] | None = None


# Judging.


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder, or lies in it. Both are absolute and resolved."""
    return PurePosixPath(path).is_relative_to(PurePosixPath(folder))


def allows_path(reach: Reach, path: str) -> bool:
    """Whether a resolved path may be opened."""
    return reach.folders is None or any(is_within(path, folder) for folder in reach.folders)


def judge_written(reach: Reach, host: str, port: int) -> Verdict:
    """An address as a document has it. A number in any spelling is judged at once; a name may have to be resolved."""
    if reach.addresses is None:
        return Verdict.ALLOWED
    if (address := address_of(host)) is not None:
        return Verdict.ALLOWED if allows_address(reach, host, address, port) else Verdict.REFUSED
    if any(rule.is_named(host, port) for rule in reach.addresses):
        return Verdict.ALLOWED
    has_ranges = any(rule.network is not None and rule.port in (None, port) for rule in reach.addresses)
    return Verdict.OPEN if has_ranges else Verdict.REFUSED


def allows_address(reach: Reach, host: str, address: Address, port: int) -> bool:
    """Whether a connection may be made to this address, to which the name was resolved."""
    if reach.addresses is None:
        return True
    plain = plain_of(address)
    named = [rule for rule in reach.addresses if rule.is_named(host, port)]
    is_meant = not is_special(plain) or (plain.is_loopback and host.lower().rstrip(".") == LOCALHOST)
    return any(rule.is_trusted or is_meant for rule in named) or any(
        rule.holds(plain, port) for rule in reach.addresses
    )


def allows_module(reach: Reach, name: str) -> bool:
    """Whether a Python module may be imported: it is on the list, or in a package that is."""
    return reach.modules is None or any(name == one or name.startswith(f"{one}.") for one in reach.modules)


def is_special(address: Address) -> bool:
    """Whether this is the machine itself, or a service of its network that no name should lead to unasked."""
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        or address in _METADATA
        or (address.version == 4 and address in IPv4Network("0.0.0.0/8"))
    )


# Spellings.


def plain_of(address: Address) -> Address:
    """The address that a packet comes to: IPv4 within IPv6 is IPv4."""
    if isinstance(address, IPv4Address):
        return address
    if address.sixtofour is not None:
        return address.sixtofour
    if int(address) > 1 and any(address in network for network in _IN_IPV6):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return IPv6Address(int(address))  # Without a zone.


def address_of(host: str) -> Address | None:
    """The address that a host's text spells in numbers. None: it is a name."""
    text = host.strip("[]")
    try:
        return plain_of(ip_address(text))
    except ValueError:
        pass
    parts = text.rstrip(".").split(".")
    numbers = [_number(part) for part in parts]
    if len(parts) > 4 or any(number is None for number in numbers):
        return None
    *first, last = [number for number in numbers if number is not None]
    if any(number > 0xFF for number in first) or last > _LARGEST[len(first)]:
        return None
    return IPv4Address(sum(number << 8 * (3 - place) for place, number in enumerate(first)) + last)


def _number(text: str) -> int | None:
    """A number as C writes it: 10, 012, 0xa."""
    if not text.isascii() or not text.isalnum() or len(text) > 20:
        return None
    try:
        if text[:2] in ("0x", "0X"):
            return int(text[2:] or "0", 16)
        return int(text, 8) if text.startswith("0") else int(text)
    except ValueError:
        return None


def network_of(address: Address) -> Network:
    """The range that has only this address."""
    return ip_network(address)


# The lists.


def rule_from_text(text: str) -> AddressRule:
    """`db.example.com:5432`, `*.example.com:443`, `10.0.0.0/8:5432`, `[fd00::]/8:*`. Raises ValueError."""
    host, colon, port_text = text.strip().rpartition(":")
    if not colon or not host or (":" in host and not host.startswith("[")):
        raise ValueError("is not an address with a port")
    port = None if port_text == "*" else int(port_text) if port_text.isascii() and port_text.isdigit() else 0
    if port is not None and not 1 <= port <= 65535:
        raise ValueError("has no port between 1 and 65535, and no *")
    if "/" in host or host.startswith("["):
        try:
            network = ip_network(host.replace("[", "").replace("]", ""))
        except ValueError:
            raise ValueError("is not a range of addresses") from None
        return AddressRule(network=_plain_network(network), port=port)
    if (address := address_of(host)) is not None:
        return AddressRule(network=ip_network(address), port=port)
    name = host.lower().rstrip(".")
    labels = name.removeprefix("*.").split(".")
    if not all(label and label.replace("-", "").replace("_", "").isalnum() for label in labels) or len(name) > 253:
        raise ValueError("is not the name of a host")
    return AddressRule(host=name, port=port)


def _plain_network(network: Network) -> Network:
    """A range of mapped addresses as the range of IPv4 that it stands for."""
    for outer in _IN_IPV6[:2]:
        if isinstance(network, IPv6Network) and network.prefixlen >= 96 and network.subnet_of(outer):
            return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


def module_from_text(text: str) -> str:
    """`mypackage`, `mypackage.storages`. Raises ValueError."""
    if not text or not all(part.isidentifier() for part in text.split(".")):
        raise ValueError("is not the name of a Python module")
    return text


def folder_from_text(text: str) -> str:
    """A folder; a relative one, such as `.`, counts from where each node was started. Raises ValueError."""
    if not text or "\0" in text or not text.isprintable():
        raise ValueError("is not the path of a folder")
    return str(PurePosixPath(text))

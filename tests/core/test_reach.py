"""What a document may reach, in every spelling."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from headgate.core.reach import (
    Reach,
    Verdict,
    address_of,
    allows_address,
    allows_module,
    allows_path,
    folder_from_text,
    is_special,
    judge_written,
    module_from_text,
    plain_of,
    rule_from_text,
)

LOOPBACK = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0X7F.1",
    "017700000001",
    "0177.0.0.1",
    "0x7f.0.0.0x1",
    "127.0.0.1.",
    "::ffff:127.0.0.1",
    "[::ffff:127.0.0.1]",
    "::ffff:7f00:1",
    "0:0:0:0:0:ffff:7f00:1",
    "64:ff9b::7f00:1",
    "64:ff9b::127.0.0.1",
    "2002:7f00:1::",
    "::127.0.0.1",
]


def reach_of(*rules: str) -> Reach:
    return Reach((), tuple(map(rule_from_text, rules)), ())


@pytest.mark.parametrize("text", LOOPBACK)
def test_every_spelling_of_an_address_is_that_address(text: str) -> None:
    assert str(address_of(text)) == "127.0.0.1"
    assert judge_written(reach_of("127.0.0.1:5432"), text, 5432) is Verdict.ALLOWED
    for rules in ([], ["127.0.0.2:5432"], ["127.0.0.1:5433"], ["10.0.0.0/8:*"], ["db:5432"]):
        assert judge_written(reach_of(*rules), text, 5432) is Verdict.REFUSED


@pytest.mark.parametrize(
    "text",
    ["", "localhost", "db", "127.0.0.1.example.com", "256.0.0.1", "1.2.3.4.5", "0x", "1e3", "08", "-1", "4294967296"],
)
def test_what_is_no_number_is_a_name(text: str) -> None:
    found = address_of(text)
    assert found is None or text == "0x"  # C reads a bare 0x as zero.


def test_ipv6_stays_what_it_is() -> None:
    assert address_of("::1") == ip_address("::1")
    assert address_of("fe80::1%eth0") == ip_address("fe80::1")
    assert address_of("[fd00::5]") == ip_address("fd00::5")
    assert plain_of(ip_address("::")) == ip_address("::")


SPECIAL = ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "fd00:ec2::254", "0.1.2.3"]


@pytest.mark.parametrize("text", SPECIAL)
def test_a_name_does_not_lead_to_the_machine_itself_or_its_metadata(text: str) -> None:
    """Its owner decides where it points, and may do so between two questions."""
    address = ip_address(text)
    assert is_special(plain_of(address))
    assert not allows_address(reach_of("db.example.com:80"), "db.example.com", address, 80)
    assert allows_address(reach_of("db.example.com:80", f"[{text}]:80"), "db.example.com", address, 80)


def test_a_name_on_the_list_stands_for_what_it_resolves_to() -> None:
    reach = reach_of("db:5432", "*.example.com:443", "localhost:6432")
    for host, address, port, is_allowed in (
        ("db", "172.18.0.2", 5432, True),
        ("DB.", "172.18.0.2", 5432, True),
        ("db", "172.18.0.2", 5433, False),
        ("db", "::ffff:169.254.169.254", 5432, False),
        ("other", "172.18.0.2", 5432, False),
        ("api.example.com", "203.0.113.5", 443, True),
        ("example.com", "203.0.113.5", 443, False),
        ("evilexample.com", "203.0.113.5", 443, False),
        ("localhost", "127.0.0.1", 6432, True),
        ("localhost", "169.254.169.254", 6432, False),
    ):
        assert allows_address(reach, host, ip_address(address), port) is is_allowed, (host, address, port)


def test_a_name_that_is_on_no_list_is_left_to_its_address_only_where_ranges_are() -> None:
    assert judge_written(reach_of("10.0.0.0/8:5432"), "db", 5432) is Verdict.OPEN
    assert judge_written(reach_of("10.0.0.0/8:5432"), "db", 5433) is Verdict.REFUSED
    assert judge_written(reach_of("other:5432"), "db", 5432) is Verdict.REFUSED
    assert judge_written(reach_of("db:*"), "db", 1) is Verdict.ALLOWED
    assert judge_written(Reach(), "anywhere", 1) is Verdict.ALLOWED


def test_ranges_are_compared_as_what_they_stand_for() -> None:
    reach = reach_of("[::ffff:10.0.0.0]/104:5432", "[fd00::]/8:*")
    assert allows_address(reach, "", ip_address("10.9.8.7"), 5432)
    assert allows_address(reach, "", ip_address("::ffff:10.9.8.7"), 5432)
    assert allows_address(reach, "", ip_address("fd12::1"), 9)
    assert not allows_address(reach, "", ip_address("fe80::1"), 9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "db",
        ":5432",
        "db:",
        "db:0",
        "db:65536",
        "db:x",
        "10.0.0.1/8:5432",
        "a b:1",
        "::1:5432",
        "db/x:1",
        "*:1",
        "-",
    ],
)
def test_a_line_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is not|has no)"):
        rule_from_text(text)


@pytest.mark.parametrize(
    ("path", "is_allowed"),
    [
        ("/data", True),
        ("/data/orders.jsonl", True),
        ("/data2/orders.jsonl", False),
        ("/dat", False),
        ("/", False),
        ("/etc/passwd", False),
        ("//data/x", False),  # POSIX leaves open what two slashes mean.
    ],
)
def test_a_path_is_in_a_folder_or_it_is_not(path: str, is_allowed: bool) -> None:
    assert allows_path(Reach(("/data",)), path) is is_allowed
    assert allows_path(Reach(), path)
    assert not allows_path(Reach(()), path)


def test_a_module_is_on_the_list_or_in_a_package_that_is() -> None:
    reach = Reach(modules=("mine", "other.storages"))
    assert all(allows_module(reach, name) for name in ("mine", "mine.orders", "other.storages", "other.storages.a"))
    assert not any(allows_module(reach, name) for name in ("os", "minefield", "other", "other.storage", ""))


@pytest.mark.parametrize("text", ["", "a b", "a..b", "a.", "/x.py", "os;"])
def test_what_is_no_module_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a Python module"):
        module_from_text(text)


def test_a_folder_may_be_relative() -> None:
    assert folder_from_text("./data/") == "data"
    with pytest.raises(ValueError, match="is not the path"):
        folder_from_text("a\0b")

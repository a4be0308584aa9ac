"""A MySQL server that asks the client for files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from headgate.connectors.mysql import session


class Asking(session._Connection):
    """A connection whose server answers every statement by asking for a file."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self._local_infile = True
        self.sent: list[bytes] = []

    def write_packet(self, payload: bytes) -> None:
        self.sent.append(payload)

    def _read_bytes(self, *args: Any) -> bytes:
        raise AssertionError("nothing more is read")


@pytest.mark.parametrize("offered", [None, "/dev/fd/9"])
def test_a_server_gets_no_file_that_it_was_not_offered(monkeypatch: pytest.MonkeyPatch, offered: str | None) -> None:
    packet = SimpleNamespace(
        is_ok_packet=lambda: False, is_load_local_packet=lambda: True, get_all_data=lambda: b"\xfb/etc/passwd"
    )
    monkeypatch.setattr(pymysql.connections.Connection, "_read_packet", lambda self: packet)
    connection = Asking("/etc/passwd")
    connection.sends = offered
    with pytest.raises((pymysql.OperationalError, RuntimeError), match=r"not offered|local_infile option is false"):
        connection._read_query_result()
    assert connection.sent == []

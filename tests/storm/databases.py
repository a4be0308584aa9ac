"""The two databases of a storm: the registry, perhaps with a standby, and the one that sinks write into."""

from __future__ import annotations

import time

from headgate.testing.servers import Server, Servers
from tests.storm.plan import Standby

LAGS_S = 2.0  # What an asynchronous standby has not heard of when its primary dies.
SETTINGS = {"max_connections": "100", "max_wal_size": "128MB", "wal_keep_size": "64MB", "max_wal_senders": "6"}


class Database:
    """One server. All calls block; each returns when the server is well again."""

    def __init__(self, servers: Servers) -> None:
        self.primary = servers.make()

    def pause(self, hold_s: float) -> None:
        """Stop all its processes for a while."""
        self.primary.pause()
        try:
            time.sleep(hold_s)
        finally:
            self.primary.go_on()

    def restart(self, hold_s: float) -> None:
        """Shut it down in good order, and start it again after a while."""
        self.primary.stop()
        time.sleep(hold_s)
        self.primary.start()

    def kill(self, hold_s: float) -> None:
        """End it with SIGKILL, and start it again after a while."""
        self.primary.kill()
        time.sleep(hold_s)
        self.primary.start()


class Registry(Database):
    """The primary and its standby change places with each promotion; their addresses stay what they are."""

    def __init__(self, servers: Servers, standby: Standby) -> None:
        super().__init__(servers)
        self._servers = servers
        self._is_synchronous = standby == "sync"
        self.standby: Server | None = None
        if standby != "none":
            self.standby = servers.standby_of(self.primary, synchronous=self._is_synchronous)
        self.hosts = [self.primary] if self.standby is None else [self.primary, self.standby]

    def promote(self, hold_s: float, *, returns_for_s: float = 0.0) -> None:
        """Kill the primary, promote the standby after a while, and make the old primary its standby. Before that, the
        old primary may come back as what it was, for a while."""
        assert self.standby is not None
        old, new = self.primary, self.standby
        if not self._is_synchronous:  # On one machine it would hardly lag.
            new.leave()
            time.sleep(LAGS_S)
        old.kill()
        time.sleep(hold_s)
        new.promote()
        self.primary, self.standby = new, old
        if returns_for_s:
            old.start()
            time.sleep(returns_for_s)
            old.kill()
        self._servers.remake(old, new, synchronous=self._is_synchronous)

    def pause_standby(self, hold_s: float) -> None:
        """Stop the standby for a while: if it is synchronous, commits wait for it."""
        assert self.standby is not None
        self.standby.pause()
        try:
            time.sleep(hold_s)
        finally:
            self.standby.go_on()

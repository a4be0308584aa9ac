"""A connection between a client and a node. It may be slow or cut, and never reorders: it is TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from simulation.kernel import Process

if TYPE_CHECKING:
    from simulation.network import Network

NOTICE_S = 4.0  # A node that hears nothing of a client closes after three missed beats, about.


class Client(Protocol):
    """The program's end."""

    def received(self, pipe: Pipe, frame: Any) -> None:
        """The node says something."""

    def lost(self, pipe: Pipe) -> None:
        """The connection has broken."""


class Session(Protocol):
    """The node's end."""

    def received(self, frame: Any) -> None:
        """The program says something."""


class Host(Protocol):
    """Who has the sessions of a node."""

    def connected(self, pipe: Pipe) -> Any:
        """A program has connected: its session."""

    def closed(self, session: Any, *, is_own: bool = False) -> None:
        """The connection of a session is lost. `is_own`: by a reset, or because the program closed it or died."""


class Pipe:
    """Two ends; each learns of a cut in its own time."""

    def __init__(self, network: Network, client: Client, host: Host, process: Process) -> None:
        self.is_open = True
        self._network = network
        self._client = client
        self._host = host
        self._process = process
        self._there_at_s = 0.0  # When the last message reaches the node.
        self._back_at_s = 0.0
        self._session: Session = host.connected(self)

    def to_node(self, frame: Any) -> None:
        """The client sends."""
        if self.is_open:
            self._there_at_s = max(self._there_at_s, self._network.loop.now_s + self._latency_s())
            self._network.loop.at(self._there_at_s, self._deliver, frame)

    def to_client(self, frame: Any) -> None:
        """The node sends."""
        if self.is_open:
            self._back_at_s = max(self._back_at_s, self._network.loop.now_s + self._latency_s())
            self._network.loop.at(self._back_at_s, self._client.received, self, frame)

    def cut(self, notice_s: float | None = None) -> None:
        """The connection breaks. What is under way is lost; the node may notice late. If it notices soon, it was reset,
        and nobody can see by whom."""
        if self.is_open:
            self.is_open = False
            random = self._network.random
            is_own = random.random() >= 0.5
            if notice_s is None:
                notice_s = 0.05 if is_own else NOTICE_S
            self._network.loop.after(random.random() * notice_s, self._process.run, lambda: self._close(is_own))
            self._network.loop.after(random.random() * 0.1, self._client.lost, self)

    def _close(self, is_own: bool) -> None:
        self._host.closed(self._session, is_own=is_own)

    def close_by_node(self) -> None:
        """The node closes, after what it has sent."""
        delay_s = max(0.0, self._back_at_s - self._network.loop.now_s) + 0.001
        self._network.loop.after(delay_s, self._closed)

    def close_by_client(self) -> None:
        """The client closes, after what it has sent."""
        delay_s = max(0.0, self._there_at_s - self._network.loop.now_s) + 0.001
        self._network.loop.after(delay_s, self._process.run, lambda: self._close(True))
        self._network.loop.after(delay_s, self._shut)

    def _shut(self) -> None:
        self.is_open = False

    def _closed(self) -> None:
        if self.is_open:
            self.is_open = False
            self._client.lost(self)

    def _deliver(self, frame: Any) -> None:
        if self.is_open:
            self._process.run(lambda: self._session.received(frame))

    def _latency_s(self) -> float:
        return self._network.delay_s() + self._network.slowness_s(self._network.weather)

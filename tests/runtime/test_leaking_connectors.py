"""Connectors that put a secret into everything they say: nothing of it reaches people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from headgate.connectors.api import Connector, Context, Grant, Options, Outgoing, Progress, SinkKind
from headgate.errors import Bad, BadRecords, Cause, ConfigError, ConnectorError, NotConnected, Refused
from headgate.telemetry import logs
from tests.runtime.conftest import Harness, generator

PASSWORD = "Recognisable-hunter2"
URL = f"leak://ada:{PASSWORD}@db.internal/orders"


class LeakOptions(Options):
    """Where, and when to say it."""

    url: SecretStr
    fails: str = ""


class DriverError(Exception):
    """What a driver raises: its text has the whole URL."""


class Leak:
    """A sink that logs its URL, and fails with it."""

    def __init__(self, options: LeakOptions, context: Context) -> None:
        self._url = options.url.get_secret_value()
        self._fails = options.fails
        self._log = context.log
        context.log.warning(f"made for {self._url}", url=self._url, more={"urls": [self._url]})

    async def check(self) -> None:
        if self._fails == "check":
            raise ConnectorError(f"cannot check {self._url}", cause=Cause.CONFIG, hint=f"try {self._url}")

    async def open(self, grant: Grant) -> Progress | None:
        match self._fails:
            case "driver":
                raise DriverError("cannot connect", {"dsn": self._url, "password": PASSWORD})
            case "chain":
                try:
                    raise DriverError(self._url)
                except DriverError as error:
                    raise KeyError(PASSWORD) from error
            case "config":
                raise ConfigError(f"{self._url} is wrong", hint=PASSWORD)
            case "refused":
                self._log.error("refused", error=DriverError(self._url), pair=(PASSWORD, 1))
                raise Refused(f"not with {PASSWORD}")
            case "gone":
                raise NotConnected(f"{self._url}\nis gone")
        return None

    async def write(self, batch: Outgoing) -> None:
        if self._fails == "write":
            raise BadRecords([Bad(0, PASSWORD, f"password {PASSWORD} of record 0")])

    async def close(self) -> None:
        """Nothing is held."""


@pytest.fixture(params=["json", "console"])
def lines(request: pytest.FixtureRequest, hg: Harness) -> Iterator[list[str]]:
    """Every line that the process logs, as it is written."""
    written: list[str] = []

    class Writer:
        def __getattr__(self, level: str) -> Callable[[str], None]:
            return written.append

    logs.configure(request.param, hg.node.shipper.keep)
    structlog.configure(logger_factory=lambda *args: Writer())
    yield written
    structlog.reset_defaults()


@pytest.mark.parametrize("fails", ["check", "driver", "chain", "config", "refused", "gone", "write"])
async def test_nothing_that_a_connector_says_shows_a_secret(
    hg: Harness, plug: Callable[..., None], lines: list[str], fails: str
) -> None:
    plug(Connector("leak", "Says too much", sink=SinkKind(LeakOptions, Leak)))
    await hg.node.registry.set_secret("s", URL, "tester")
    sink = {"type": "leak", "url": {"$secret": "s"}}
    if fails == "check":  # A version is checked while another one runs.
        await hg.apply(orders={"source": generator(), "sink": sink})
        await hg.until("orders", status="RUNNING", running=1)
    await hg.apply(orders={"source": generator(), "sink": {**sink, "fails": fails}})

    async def failed() -> bool:
        kept = await hg.sql("SELECT FROM headgate.log_line")
        return bool(kept) and not {"worker_failed", "worker_quarantined", "rejected"}.isdisjoint(
            await hg.events("orders")
        )

    await hg.until_true(failed)
    said: dict[str, Any] = {"lines": lines, "state": await hg.state("orders")}
    for table in ("datasource_events", "datasource_state", "log_line", "datasource_version", "stream"):
        said[table] = [dict(row) for row in await hg.sql(f"SELECT * FROM headgate.{table}")]
    assert any("***" in line for line in lines)
    assert {where: found for where, found in said.items() if PASSWORD in str(found)} == {}

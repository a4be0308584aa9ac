"""One request with a body, for what tells and does not move: nothing is followed, and little of the answer is read."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.connectors.guard import Guard
from headgate.connectors.http.client import Client, Limits, Request
from headgate.connectors.http.targets import target_of
from headgate.errors import Cause, ConnectorError

ANSWER_BYTES = 4096  # What was done stands in the status; the rest is not read.


async def post(
    url: str, headers: Mapping[str, str], body: bytes, guard: Guard, timeout_s: float, ca_file: str | None = None
) -> None:
    """Send it. Raises ConnectorError unless the answer says that it was taken. A redirect is no such answer."""
    try:
        target = target_of(url)
    except ValueError as error:
        raise ConnectorError(f"the URL {error}", cause=Cause.CONFIG) from None
    client = Client(target, guard, Limits(timeout_s, ANSWER_BYTES), ca_file)
    try:
        request = Request(target, "POST", tuple(headers.items()), body, truncates=True, follows=False)
        answer = await client.send(request)
    finally:
        await client.close()
    if not 200 <= answer.status < 300:
        raise ConnectorError(f"{target.origin} answered {answer.status}", cause=Cause.CONFIG)

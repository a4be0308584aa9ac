"""Notifications: who is told of what, what is open, and a test. Operators see them, admins decide."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from litestar import delete, get, post, put
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.params import Body

from headgate.core.incidents import Incident
from headgate.errors import ConnectorError, Refused
from headgate.hidden import hide
from headgate.runtime.node import Node
from headgate.web.auth import Needs, Req
from headgate.web.bodies import Object
from headgate.web.bodies import notifications as bodies
from headgate.web.bodies.problems import ProblemDetails
from headgate.web.problems import MEDIA_TYPE

ADMIN = [Needs("administer")]
MOST_SHOWN = 1000

NO_TARGET = {
    404: ResponseSpec(
        ProblemDetails, description="There is no such target.", media_type=MEDIA_TYPE, generate_examples=False
    )
}
_BY_NAME = Schema(
    type=OpenAPIType.OBJECT, additional_properties=Schema(type=OpenAPIType.OBJECT, additional_properties=True)
)
Document = Annotated[
    Object,
    Body(
        title="NotificationsDocument",
        description="Targets and rules, each by name (docs/operating/notifications.md).",
        schema_extra={"properties": {"targets": _BY_NAME, "rules": _BY_NAME}, "additional_properties": False},
    ),
]


@get(
    "/api/notifications",
    guards=[Needs("operate_all")],
    tags=["notifications"],
    summary="Who is told of what, and what is open",
)
async def show_notifications(node: Node) -> bodies.NotificationsAnswer:
    """The document as it was written, the incidents that are known, and what targets have not taken yet."""
    written = await node.notifications.read()
    incidents = await node.notifications.incidents()
    return bodies.NotificationsAnswer(
        document=written.document,
        version=written.version,
        author=written.author,
        changed_at=written.changed_at,
        incidents=[_incident(one) for one in incidents[:MOST_SHOWN]],
        waiting=[
            bodies.WaitingLine(**{name: getattr(one, name) for name in one.__slots__})
            for one in await node.notifications.waiting()
        ],
    )


@put("/api/notifications", guards=ADMIN, tags=["notifications"], summary="Decide who is told of what")
async def put_notifications(
    node: Node, request: Req, data: Document, over: int | None = None
) -> bodies.NotificationsWritten:
    """In place of what was decided before; with `over`, only in place of that version. An incident whose rule is gone
    is over, and that is told."""
    return bodies.NotificationsWritten(version=await node.notifier.set(data, request.user.name, over=over))


@delete(
    "/api/notifications",
    guards=ADMIN,
    status_code=200,
    tags=["notifications"],
    summary="Tell nobody anything any more",
)
async def delete_notifications(node: Node, request: Req, over: int | None = None) -> bodies.NotificationsWritten:
    """What has not been sent yet is not sent any more. With `over`, only that version is deleted."""
    return bodies.NotificationsWritten(version=await node.notifier.delete(request.user.name, over=over))


@post(
    "/api/notifications/test",
    guards=ADMIN,
    status_code=200,
    responses=NO_TARGET,
    tags=["notifications"],
    summary="Send a target a message that says that it is a test",
)
async def test_notifications(node: Node, data: bodies.TestMessage) -> bodies.TestSent:
    """From this node, now. A 409 says why the target has not taken it."""
    try:
        await node.notifier.test(data.target)
    except ConnectorError as error:
        raise Refused(hide(error.message), code="not_sent", hint=error.hint) from None
    return bodies.TestSent(target=data.target)


def _incident(one: Incident) -> bodies.IncidentLine:
    return bodies.IncidentLine(
        rule=one.rule,
        subject=one.subject,
        why=one.why,
        since=datetime.fromtimestamp(one.since_s, UTC),
        told_at=_moment(one.told_at_s),
        better_since=_moment(one.better_since_s),
    )


def _moment(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)


ROUTES = [show_notifications, put_notifications, delete_notifications, test_notifications]

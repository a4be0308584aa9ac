"""Connectors of others: everybody sees which are installed, admins install and remove them."""

from __future__ import annotations

from datetime import UTC, datetime

from litestar import delete, get, post

from headgate.connectors.bridges import Installed, Work
from headgate.runtime.node import Node
from headgate.web.auth import Needs, Req
from headgate.web.bodies import installed as bodies

ADMIN = [Needs("administer")]
LEARN = [Needs("learn")]
PATH = "/api/connectors/installed"


@get(PATH, guards=LEARN, tags=["connectors"], summary="The connectors of others that are installed")
async def list_installed(node: Node) -> bodies.InstalledConnectors:
    """In the home of this node, with the installation that is under way."""
    work = node.installs.work
    return bodies.InstalledConnectors(
        items=[_line(one) for one in node.installs.all()], installing=None if work is None else _work(work)
    )


@post(PATH, guards=ADMIN, status_code=202, tags=["connectors"], summary="Install a connector of others")
async def install(node: Node, request: Req, data: bodies.Install) -> bodies.Installing:
    """It goes on in the background, and takes minutes: the list says how it goes."""
    return _work(node.installs.begin(data.package, data.extra, request.user.name))


@get(f"{PATH}/{{kind:str}}/{{name:str}}", guards=LEARN, tags=["connectors"], summary="One that is installed")
async def show_installed(node: Node, kind: str, name: str) -> bodies.InstalledConnector:
    """With all that was installed with it, and the schema of its configuration."""
    one = node.installs.get(kind, name)
    return bodies.InstalledConnector(
        kind=one.kind,
        name=one.name,
        version=one.version,
        program=one.executable,
        installed_at=_time(one.installed_at_s),
        python=one.python,
        packages=one.frozen,
        spec=one.spec,
    )


@delete(f"{PATH}/{{kind:str}}/{{name:str}}", guards=ADMIN, tags=["connectors"], summary="Remove one")
async def remove(node: Node, request: Req, kind: str, name: str, yes: bool = False) -> None:
    """A 409 that names its users while a datasource reads with it, unless `yes` is true. What runs goes on until it
    ends."""
    await node.installs.remove(kind, name, request.user.name, yes=yes)


def _line(one: Installed) -> bodies.InstalledLine:
    return bodies.InstalledLine(
        kind=one.kind,
        name=one.name,
        version=one.version,
        program=one.executable,
        installed_at=_time(one.installed_at_s),
    )


def _work(work: Work) -> bodies.Installing:
    return bodies.Installing(
        package=f"{work.wanted.kind}:{work.wanted.package}",
        began_at=_time(work.began_s),
        step=work.step,
        said=work.said,
        error=work.error or None,
    )


def _time(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


ROUTES = [list_installed, install, show_installed, remove]

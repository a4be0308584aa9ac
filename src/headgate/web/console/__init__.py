"""The console: server-rendered pages, live by SSE, with nothing from elsewhere."""

from __future__ import annotations

from typing import Any

from headgate.web.console import assets, groups, overview, session

ROUTES: list[Any] = [
    overview.overview_page,
    groups.groups_page,
    groups.group_page,
    session.sign_in,
    session.sign_out,
    assets.asset,
]

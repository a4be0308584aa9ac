"""The console: server-rendered pages, live by SSE, with nothing from elsewhere."""

from __future__ import annotations

from typing import Any

from litestar.exceptions import NotFoundException
from litestar.types import ExceptionHandlersMap

from headgate.web.console import (
    assets,
    datasource,
    drafts,
    dumps,
    events,
    groups,
    letters,
    nodes,
    overview,
    pages,
    session,
    settings,
    stream,
    streams,
    versions,
)

ROUTES: list[Any] = [
    overview.overview_page,
    drafts.new_page,
    datasource.state_page,
    datasource.records_page,
    datasource.logs_page,
    datasource.events_page,
    versions.versions_page,
    drafts.draft_page,
    streams.streams_page,
    stream.stream_page,
    nodes.nodes_page,
    events.events_page,
    settings.settings_page,
    settings.secrets_page,
    settings.tokens_page,
    settings.allowed_page,
    settings.connectors_page,
    settings.notifications_page,
    settings.installation_page,
    groups.groups_page,
    groups.group_page,
    dumps.dumps_page,
    dumps.dump_page,
    dumps.new_dump_page,
    letters.letters_page,
    letters.letter_page,
    session.sign_in,
    session.sign_out,
    assets.asset,
]

ERRORS: ExceptionHandlersMap = {NotFoundException: pages.lost}

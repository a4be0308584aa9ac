"""The console: server-rendered pages, live by SSE, with nothing from elsewhere."""

from __future__ import annotations

from typing import Any

from headgate.web.console import assets, dumps, groups, letters, overview, session

ROUTES: list[Any] = [
    overview.overview_page,
    groups.groups_page,
    groups.group_page,
    dumps.dumps_page,
    dumps.dump_page,
    dumps.act,
    letters.letters_page,
    letters.letter_page,
    letters.act_on_all,
    letters.act_on_one,
    session.sign_in,
    session.sign_out,
    assets.asset,
]

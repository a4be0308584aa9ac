"""The history of datasources over HTTP: what is shown, to whom, and how much of it at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web_node import Web, bearer

LINES = """
INSERT INTO headgate.minute (datasource, minute, read, written, dead_lettered, bytes, backlog, lag_s)
SELECT d.id, date_trunc('minute', now()) - n * interval '1 minute', (7 - n) * 60, (7 - n) * 50, 7 - n, 600, n, n
FROM headgate.datasource d, generate_series(2, 6) AS n WHERE d.name LIKE 'history-%-busy'
UNION ALL
SELECT '00000000-0000-0000-0000-000000000000', date_trunc('minute', now()) - n * interval '1 minute',
       0, 0, 0, 0, NULL, 0
FROM generate_series(2, 9) AS n
ON CONFLICT DO NOTHING
"""
YESTERDAY = "SELECT headgate.make_day_of_minutes((now() AT TIME ZONE 'UTC')::date - 1)"


@pytest.fixture(scope="module")
def seen(web: Web) -> Web:
    """Two datasources that moved and one that did not, all of them at rest."""
    for name in ("history-a-busy", "history-b-busy", "history-c-idle"):
        web.publish(name, source={"type": "generator", "count": 0})
    web.execute(YESTERDAY)
    web.execute(LINES)
    return web


def test_the_figures_of_a_datasource_stand_at_their_minutes(seen: Web) -> None:
    found = seen.call("GET", "/api/datasources/history-a-busy/history?range=1h")
    assert (found["range"], found["step_s"], found["points"], found["name"]) == ("1h", 60, 60, "history-a-busy")
    figures = ("read", "written", "filtered", "dead_lettered", "bytes", "backlog", "lag_s")
    assert {len(found[name]) for name in figures} == {60}
    first = next(at for at, value in enumerate(found["read"]) if value)
    assert found["read"][first : first + 5] == [60] * 5
    assert found["filtered"][first : first + 5] == [9] * 5
    assert found["backlog"][first : first + 5] == [6, 5, 4, 3, 2]
    assert found["lag_s"][first : first + 5] == [6.0, 5.0, 4.0, 3.0, 2.0]
    assert found["read"][first - 3 : first] == [0, 0, 0]  # Reported, and nothing moved.
    assert found["read"][first - 4] is None  # Nobody was there.
    for name, points, step_s in (("24h", 144, 600), ("7d", 168, 3600)):
        longer = seen.call("GET", f"/api/datasources/history-a-busy/history?range={name}")
        assert (longer["points"], longer["step_s"], len(longer["written"])) == (points, step_s, points)
        assert sum(value or 0 for value in longer["written"]) == 250
        assert max(value or 0 for value in longer["lag_s"]) == 6.0


def test_all_of_them_come_page_by_page_and_what_rests_costs_nothing(seen: Web) -> None:
    page = seen.call("GET", "/api/history?names=history-a-busy,history-b-busy,history-c-idle,none")
    assert [one["name"] for one in page["items"]] == ["history-a-busy", "history-b-busy"]
    assert page["after"] is None
    names: list[str] = []
    after = ""
    while after is not None:
        page = seen.call("GET", f"/api/history?range=24h&limit=1&after={after}")
        names += [one["name"] for one in page["items"]]
        after = page["after"]
    assert [name for name in names if name.startswith("history-")] == ["history-a-busy", "history-b-busy"]


def test_a_token_sees_the_history_of_what_it_names(seen: Web) -> None:
    bound = bearer(seen.token("viewer", datasources=["history-a-*"]))

    def ask(path: str) -> Any:
        return seen.ask("GET", path, headers=bound)

    assert [one["name"] for one in ask("/api/history").json()["items"]] == ["history-a-busy"]
    assert ask("/api/history?names=history-b-busy").json()["items"] == []
    assert ask("/api/datasources/history-a-busy/history").status_code == 200
    assert ask("/api/datasources/history-b-busy/history").status_code == 403
    assert ask("/api/datasources/none/history").status_code == 403


def test_what_is_asked_for_is_bounded(seen: Web) -> None:
    wrong = ("range=1y", "range=7d", "limit=0", "limit=201", f"names={'x' * 30000}", "after=" + "x" * 101)
    for query in wrong:
        assert seen.ask("GET", f"/api/history?{query}").status_code in (400, 414), query
    assert seen.ask("GET", "/api/datasources/none/history").status_code == 404

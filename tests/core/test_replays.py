"""Why letters that somebody wants replayed are not replayed now."""

from __future__ import annotations

import pytest

from headgate.core.replays import Waiting, why_waiting

WELL = Waiting("orders:0", is_used=True, is_quarantined=False)


@pytest.mark.parametrize(
    ("enabled", "quarantined", "streams", "said"),
    [
        ("paused", False, [WELL], "orders is paused: they are replayed when it is started"),
        (True, False, [WELL], None),
        (True, False, [], None),
        (False, False, [WELL], "orders is stopped: they are replayed when it is started"),
        (False, True, [WELL], "orders is stopped: they are replayed when it is started"),
        (True, True, [WELL], "orders is quarantined: they are replayed when orders is restarted"),
        (True, False, [WELL, Waiting("orders:1", True, True)], "orders:1 is quarantined"),
        (True, False, [Waiting("orders:7", False, False), WELL], "orders:7 is not run any more"),
    ],
)
def test_the_first_thing_that_stands_in_the_way_is_named(
    enabled: bool | str, quarantined: bool, streams: list[Waiting], said: str | None
) -> None:
    found = why_waiting(
        "orders",
        is_enabled=bool(enabled),
        is_paused=enabled == "paused",
        is_quarantined=quarantined,
        streams=streams,
    )
    assert (found is None) == (said is None)
    assert found is None or (said is not None and found.startswith(said))

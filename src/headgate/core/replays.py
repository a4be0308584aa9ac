"""What stands between letters that somebody wants replayed and their replay, in words.

Only a run of the stream replays its letters. A stream whose source has ended is granted again for it, and one whose
program is away is run by a node for as long as it takes; so what is left are streams that may not run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stream with letters to replay."""

    name: str
    is_used: bool  # Its datasource still has a stream of this number, or programs still push it.
    is_quarantined: bool


def why_waiting(
    name: str, *, is_enabled: bool, is_quarantined: bool, streams: list[Waiting], is_paused: bool = False
) -> str | None:
    """Why some of these letters are not replayed now; None: nothing stands in the way."""
    if not is_enabled or is_paused:
        return f"{name} is {'paused' if is_paused else 'stopped'}: they are replayed when it is started"
    stuck = next((one.name for one in streams if one.is_quarantined), name if is_quarantined else None)
    if stuck is not None:
        return f"{stuck} is quarantined: they are replayed when {name} is restarted, or another version published"
    unused = next((one.name for one in streams if not one.is_used), None)
    if unused is not None:
        return f"{unused} is not run any more: its letters can be exported or discarded, not replayed"
    return None

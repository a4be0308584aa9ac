"""Quarantines that a node could not write down, because the database was away: files that its next start reads."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec

from headgate.datasources.registry import Registry

FOLDER = "quarantined"
OLD_FOLDER = "set-aside"  # Its name in older versions: a node may be upgraded between writing and reading.


def leave(home: Path, datasource: UUID, reason: str) -> None:
    """Leave word for the next start that this datasource blocked the node."""
    folder = home / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{datasource}.json").write_bytes(msgspec.json.encode({"reason": reason}))


async def hand_over(home: Path, registry: Registry) -> None:
    """Quarantine the datasources that blocked this node last time; the registry keeps them from now on."""
    for folder in (home / OLD_FOLDER, home / FOLDER):
        for file in sorted(folder.glob("*.json")):
            await registry.quarantine(UUID(file.stem), str(msgspec.json.decode(file.read_bytes())["reason"]))
            file.unlink(missing_ok=True)

"""Taps, and records on their way from the nodes that run a stream to the node that somebody asked.

Nothing here is kept: a tap ends by itself when nobody renews it, records are removed as they are read, and they are
encrypted if there is a master key, as payloads of dead letters are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import msgspec

from headgate.core.tap import MOST_TAPS, Tap
from headgate.ids import lock_key
from headgate.store.database import Database, Row, sql
from headgate.store.secrets import Keyring

LIVES = timedelta(seconds=8)  # Without being renewed.
_LOCK = lock_key("taps")


@dataclass(frozen=True, slots=True)
class Parcel:
    """Records of one tap on their way."""

    tap: UUID
    records: Sequence[bytes]  # Each as JSON.
    dropped: int  # How many others are not shown.


class TapTable:
    """All taps of the installation."""

    def __init__(self, database: Database, keyring: Keyring | None) -> None:
        self._database = database
        self._keyring = keyring

    async def open(self, tap: Tap) -> bool:
        """Begin a tap. False: there are too many."""
        async with self._database.transaction() as connection:
            await connection.execute(sql("taps/lock"), _LOCK)
            values = (tap.id, tap.datasource, tap.at, tap.where, tap.sample)
            return await connection.fetchval(sql("taps/insert"), *values, LIVES, MOST_TAPS) is not None

    async def renew(self, taps: Sequence[Tap]) -> None:
        """Somebody still looks at these."""
        await self._database.execute(
            sql("taps/renew"),
            [tap.id for tap in taps],
            [tap.datasource for tap in taps],
            [tap.at for tap in taps],
            [tap.where for tap in taps],
            [tap.sample for tap in taps],
            LIVES,
        )

    async def all(self) -> list[Tap]:
        """Those that somebody looks at."""
        rows = await self._database.fetch(sql("taps/list"))
        return [Tap(row["id"], row["datasource"], row["at"], row["condition"], row["sample"]) for row in rows]

    async def close(self, taps: Sequence[UUID]) -> None:
        """Nobody looks at these any more."""
        await self._database.execute(sql("taps/delete"), list(taps))

    async def send(self, parcels: Sequence[Parcel]) -> None:
        """Hand records to the nodes that asked for them."""
        sealed = [self._seal(parcel) for parcel in parcels]
        await self._database.execute(
            sql("taps/send"),
            [parcel.tap for parcel in parcels],
            [len(parcel.records) for parcel in parcels],
            [parcel.dropped for parcel in parcels],
            [key_id for key_id, _ in sealed],
            [body for _, body in sealed],
        )

    async def take(self, taps: Sequence[UUID]) -> list[Parcel]:
        """What has come for these, in order."""
        rows = await self._database.fetch(sql("taps/take"), list(taps))
        return [self._parcel(row) for row in sorted(rows, key=lambda row: int(row["id"]))]

    def _seal(self, parcel: Parcel) -> tuple[str | None, bytes]:
        packed = msgspec.msgpack.encode(parcel.records)
        if self._keyring is None:
            return None, packed
        key_id, wrapped, ciphertext = self._keyring.seal_bytes(_name(parcel.tap), packed)
        return key_id, msgspec.msgpack.encode((wrapped, ciphertext))

    def _parcel(self, row: Row) -> Parcel:
        """As it was sent; records that no key fits count as dropped."""
        packed: bytes | None = row["body"]
        if row["key_id"] is not None:
            wrapped, ciphertext = msgspec.msgpack.decode(row["body"], type=tuple[bytes, bytes])
            keyring = self._keyring
            packed = keyring.unseal_bytes(_name(row["tap"]), row["key_id"], wrapped, ciphertext) if keyring else None
        if packed is None:
            return Parcel(row["tap"], (), row["dropped"] + row["records"])
        return Parcel(row["tap"], msgspec.msgpack.decode(packed, type=list[bytes]), row["dropped"])


def _name(tap: UUID) -> str:
    """What binds records to their tap."""
    return f"tap {tap}"

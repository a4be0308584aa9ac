"""What messages carry: keys and values become what mappings see.

With a registry of schemas, a value begins with a zero byte and the id of its schema in four. Avro is read with the
schema that it was written with. Of JSON Schema only the prefix is taken off: the producer has checked the value.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headgate.connectors.kafka.options import KafkaSourceOptions
from headgate.connectors.kafka.schemas import SchemaError, Schemas
from headgate.connectors.payloads import BYTES_AT_ONCE, decoded, too_large
from headgate.core.records import Unreadable

PREFIX = 5
NO_PREFIX = "the message does not begin with the id of a schema"

_NOTHING: dict[str, str] = {}
_decode_json = msgspec.json.Decoder().decode


class Bodies:
    """Decodes the messages of one source."""

    def __init__(self, options: KafkaSourceOptions, schemas: Schemas) -> None:
        self._options = options
        self._schemas = schemas
        self._key = _KEYS.get(options.key_format)

    async def records(self, values: Sequence[bytes | None], keys: Sequence[Any]) -> list[Any]:
        """A record for each value, or an `Unreadable`; of a tombstone what the options say."""
        if None not in values:
            return await self._decoded(values)  # type: ignore[arg-type]
        found = iter(await self._decoded([value for value in values if value is not None]))
        by_key = self._options.tombstones == "key"
        return [
            next(found) if value is not None else _of_key(key) if by_key else None
            for value, key in zip(values, keys, strict=True)
        ]

    async def keys(self, bodies: Sequence[bytes | None]) -> list[Any]:
        """What `meta.key` is for each message; None: it has none, or one that is not what the options say."""
        if self._key is not None:
            return [None if body is None else self._key(body) for body in bodies]
        read = await self._avro([body or b"" for body in bodies])
        return [None if isinstance(one, Unreadable) else one for one in read]

    async def _decoded(self, values: Sequence[bytes]) -> list[Any]:
        format, most = self._options.format, self._options.max_message_bytes
        if format == "avro":
            return await self._avro(values)
        if format == "json_schema":
            plain = await decoded([value[PREFIX:] if value[:1] == b"\0" else value for value in values], "json", most)
            return [
                one if value[:1] == b"\0" or isinstance(one, Unreadable) else Unreadable(value, NO_PREFIX)
                for one, value in zip(plain, values, strict=True)
            ]
        return await decoded(values, format, most)

    async def _avro(self, bodies: Sequence[bytes]) -> list[Any]:
        records, size_bytes, most = [], 0, self._options.max_message_bytes
        for body in bodies:
            records.append(too_large(body, len(body), most) if len(body) > most else await self._one_avro(body))
            size_bytes += len(body)
            if size_bytes > BYTES_AT_ONCE:
                size_bytes = 0
                await asyncio.sleep(0)
        return records

    async def _one_avro(self, body: bytes) -> Any:
        import fastavro

        if len(body) < PREFIX or body[0] != 0:
            return Unreadable(body, NO_PREFIX)
        try:
            schema = await self._schemas.get(int.from_bytes(body[1:PREFIX]))
            read = fastavro.schemaless_reader(io.BytesIO(body[PREFIX:]), schema, None)
            return msgspec.to_builtins(read)  # Times, decimals and bytes become what they are in JSON.
        except SchemaError as error:
            return Unreadable(body, str(error))
        except Exception:  # Whatever the reader stumbles over is in the message.
            return Unreadable(body, "the message is not what its schema says")


def _of_key(key: Any) -> Any:
    return key if isinstance(key, dict) else {"key": key}


def text(body: bytes) -> str:
    """As text, whatever it is."""
    return body.decode("utf-8", "replace")


def _json_key(body: bytes) -> Any:
    try:
        return _decode_json(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


_KEYS: dict[str, Callable[[bytes], Any]] = {
    "text": text,
    "json": _json_key,
    "bytes": lambda body: base64.b64encode(body).decode(),
}


def headers_of(headers: Any) -> dict[str, str]:
    """Each by its name; of one that is there twice, the last."""
    if not headers:
        return _NOTHING
    return {name: text(value) if value is not None else "" for name, value in headers}

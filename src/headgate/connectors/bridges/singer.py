"""Taps: programs that speak Singer, <https://hub.meltano.com/singer/spec>.

A tap is started with a configuration, a catalog that says which of its streams are wanted, and the last state that it
said. It says SCHEMA before the records of a stream, RECORD for each, and STATE when it could go on from there. A schema
is taken for what it is worth: types come from it, and no record is refused because of it.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headgate.connectors.api import Context, SourceStream
from headgate.connectors.bridges.child import Program, output_of
from headgate.connectors.bridges.gathered import Gathered
from headgate.connectors.bridges.messages import Shape, Shapes, catalog_in, decoded, encoded_catalog
from headgate.connectors.bridges.options import SingerOptions, StreamChoice
from headgate.connectors.bridges.running import DISCOVER_S, Failed, failed, place_of
from headgate.connectors.bridges.said import Said
from headgate.errors import Cause, ConnectorError

CATALOG_BYTES = 64 * 1024 * 1024  # The most of a catalog.
METHODS = {"full": "FULL_TABLE", "incremental": "INCREMENTAL", "log": "LOG_BASED"}


class Message(msgspec.Struct):
    """One line of a tap."""

    type: str
    stream: str = ""
    record: msgspec.Raw = msgspec.Raw(b"")
    schema: msgspec.Raw = msgspec.Raw(b"")
    value: msgspec.Raw = msgspec.Raw(b"")
    key_properties: list[str] | None = None
    time_extracted: str | None = None
    version: int | None = None


_MESSAGE = msgspec.json.Decoder(Message)


class Speech:
    """What the lines of a tap mean."""

    def __init__(self, tap: str) -> None:
        self._tap = tap
        self._shapes = Shapes[str]()

    @property
    def streams(self) -> list[SourceStream]:
        """Those that it has named."""
        return self._shapes.streams

    def take(self, line: bytes, into: Gathered, said: Said) -> None:
        """One line."""
        try:
            message = _MESSAGE.decode(line)
        except (msgspec.MsgspecError, UnicodeError):
            self._take_other(line, into, said)
            return
        match message.type:
            case "RECORD":
                self._take_record(message, line, into)
            case "STATE":
                into.mark(self._state(message))
            case "SCHEMA":
                self._take_schema(message, said)
            case "ACTIVATE_VERSION":
                said.note(f"{message.stream} is at version {message.version}: rows of others are old".encode())
            case _:
                said.note(line[:1000])

    def _take_record(self, message: Message, line: bytes, into: Gathered) -> None:
        shape = self._shapes.get(message.stream)
        if shape is None:  # A tap must say the schema first. One that does not is understood all the same.
            shape = self._shapes[message.stream] = Shape(None, {"stream": message.stream, "key": []})
        try:
            record = shape.record(message.record)
        except (ValueError, RecursionError):
            into.add_unreadable(line, "the record is not JSON", len(line))
            return
        meta = shape.meta
        if message.time_extracted is not None or message.version is not None:
            meta = {**meta, "extracted_at": message.time_extracted, "version": message.version}
        into.add(record, meta, len(line))

    def _take_schema(self, message: Message, said: Said) -> None:
        try:
            schema = decoded(message.schema)
        except (ValueError, RecursionError):
            said.note(f"the schema of {message.stream} is not JSON".encode())
            schema = None
        self._shapes[message.stream] = Shape(schema, {"stream": message.stream, "key": message.key_properties or []})

    def _state(self, message: Message) -> Any:
        try:
            return decoded(message.value)
        except (ValueError, RecursionError):
            raise Failed(f"{self._tap} says a state that is not JSON", cause=Cause.BUG) from None

    def _take_other(self, line: bytes, into: Gathered, said: Said) -> None:
        """A line that is no message. One that looks like a broken record is kept as a dead letter."""
        stripped = line.strip()
        if stripped.startswith(b"{") and b'"RECORD"' in stripped[:200]:
            into.add_unreadable(line, "the line is not JSON", len(line))
        elif stripped:
            said.note(stripped[:1000])


class Tap(Speech):
    """A tap that is installed here."""

    def __init__(self, options: SingerOptions, context: Context) -> None:
        super().__init__(options.tap)
        self._options = options
        self._log = context.log
        self._context = context
        self._place = place_of(options, context)

    @property
    def runs(self) -> Path:
        """Where programs have their folders."""
        return self._place.runs

    async def check(self) -> None:
        """See whether it finds the streams that are wanted."""
        if self._options.discover:
            await self._catalog()

    async def program(self, state: Any) -> Program:
        """With the streams that it has now."""
        self._place = place_of(self._options, self._context)  # Another version may have taken its place since.
        files = {"config": msgspec.json.encode(self._options.whole())}
        command = [self._place.executable, "--config", "{config}"]
        if self._options.discover:
            files["catalog"] = await encoded_catalog(await self._catalog())
            command += [f"--{self._options.catalog}", "{catalog}"]
        if state is not None:
            files["state"] = msgspec.json.encode(state)
            command += ["--state", "{state}"]
        return self._made(command, files)

    def _made(self, command: list[str], files: Mapping[str, bytes]) -> Program:
        options, environment = self._options, self._place.environment
        return Program(options.tap, command, environment, files, options.memory_mb, options.max_line_bytes)

    async def _catalog(self) -> Any:
        """The tap's streams, with those selected that are wanted."""
        program = self._made(
            [self._place.executable, "--config", "{config}", "--discover"],
            {"config": msgspec.json.encode(self._options.whole())},
        )
        try:
            code, lines, said = await output_of(program, self.runs, self._log, DISCOVER_S, CATALOG_BYTES)
        except TimeoutError:
            raise ConnectorError(f"{self._options.tap} did not say its streams", cause=Cause.NETWORK) from None
        if code != 0:
            raise failed(self._options.tap, code, said)
        return await selected(await _catalog_in(lines, self._options.tap), self._options.choices, self._options.tap)


async def _catalog_in(lines: list[bytes], tap: str) -> dict[str, Any]:
    """The catalog among what a tap has printed."""
    text = b"\n".join(lines)
    start = text.find(b"{")
    try:
        return await catalog_in(text[start:] if start >= 0 else b"")
    except (ValueError, RecursionError):
        hint = "discover: false, if it has none"
        raise ConnectorError(f"{tap} says no catalog", cause=Cause.CONFIG, hint=hint) from None


async def selected(catalog: dict[str, Any], choices: Mapping[str, StreamChoice] | None, tap: str) -> dict[str, Any]:
    """The catalog with the streams that are wanted. Raises ConnectorError if it does not have them all."""
    streams = [one for one in catalog["streams"] if isinstance(one, dict)]
    names = [_name_of(one) for one in streams]
    refuse_absent(tap, choices, names)
    for stream, name in zip(streams, names, strict=True):
        choice = None if choices is None else choices.get(name) or choices.get(str(stream.get("tap_stream_id")))
        _select(stream, choice, is_wanted=choices is None or choice is not None)
        await asyncio.sleep(0)  # There may be thousands, of thousands of columns.
    return {**catalog, "streams": streams}


def refuse_absent(connector: str, choices: Mapping[str, StreamChoice] | None, names: list[str]) -> None:
    """A stream that is wanted and that the connector does not have is a mistake of the document."""
    known = set(names)
    for name in choices or {}:
        if name not in known:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(names)[:20]) or 'none'}"
            raise ConnectorError(f"{connector} has no stream {name!r}", cause=Cause.CONFIG, hint=hint)


def _name_of(stream: Mapping[str, Any]) -> str:
    return str(stream.get("tap_stream_id") or stream.get("stream") or "")


def _select(stream: dict[str, Any], choice: StreamChoice | None, *, is_wanted: bool) -> None:
    """As today's taps read it, in the metadata, and as old ones do."""
    metadata = [one for one in stream.get("metadata") or [] if isinstance(one, dict)]
    own = next((one for one in metadata if not one.get("breadcrumb")), None)
    if own is None:
        own = {"breadcrumb": [], "metadata": {}}
        metadata.append(own)
    values = own.setdefault("metadata", {})
    stream["selected"] = values["selected"] = is_wanted
    if choice is not None and choice.replication is not None:
        values["replication-method"] = stream["replication_method"] = METHODS[choice.replication]
        values["forced-replication-method"] = METHODS[choice.replication]
    if choice is not None and choice.cursor is not None:
        values["replication-key"] = stream["replication_key"] = choice.cursor
    stream["metadata"] = metadata

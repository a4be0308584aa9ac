"""A source built on Airbyte's CDK, as its authors write them: two streams, one of them with a cursor."""

from __future__ import annotations

import sys
from typing import Any

from airbyte_cdk.entrypoint import launch
from airbyte_cdk.models import ConnectorSpecification
from airbyte_cdk.sources import AbstractSource
from airbyte_cdk.sources.streams import CheckpointMixin, Stream

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time", "airbyte_type": "timestamp_with_timezone"},
    },
}


class Users(Stream):
    primary_key = "id"

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def get_json_schema(self) -> Any:
        return SCHEMA

    def read_records(self, *given: Any, **more: Any) -> Any:
        for id in range(self._count):
            yield {"id": id, "at": f"2024-05-01T00:00:{id:02}Z"}


class Orders(Users, CheckpointMixin):
    cursor_field = "id"
    state_checkpoint_interval = 5
    is_resumable = True

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        self._state = value

    def read_records(self, *given: Any, **more: Any) -> Any:
        first = (getattr(self, "_state", None) or {}).get("id", -1) + 1
        for id in range(first, self._count):
            self._state = {"id": id}
            yield {"id": id, "at": f"2024-05-01T00:00:{id:02}Z"}


class Source(AbstractSource):
    def spec(self, *given: Any, **more: Any) -> Any:
        return ConnectorSpecification(connectionSpecification={"type": "object", "properties": {}})

    def check_connection(self, logger: Any, config: Any) -> Any:
        return (True, None) if config.get("count") else (False, "count is missing")

    def streams(self, config: Any) -> Any:
        return [Orders(config["count"]), Users(config["count"])]


if __name__ == "__main__":
    launch(Source(), sys.argv[1:])

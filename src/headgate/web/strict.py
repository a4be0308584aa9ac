"""Bodies are read strictly: `"true"` is not true and `"1"` is not 1, though the framework would have it so."""

from __future__ import annotations

import msgspec
from litestar import Request
from litestar.datastructures import State

from headgate.errors import ConfigError, Problem
from headgate.store.tokens import Token
from headgate.web.problems import body_problem


class StrictRequest(Request[Token, None, State]):
    """A request whose JSON must have the very types that its handler names."""

    async def json(self) -> object:
        """The body, if it is what the handler asks for."""
        found: object = await super().json()
        field = self.route_handler.parsed_data_field
        if field is not None and found is None and await self.body():
            raise ConfigError([Problem("", "the body must be a JSON object")])  # It may be left out, but not be null.
        if field is not None and found is not None:
            try:
                msgspec.convert(found, field.annotation)
            except msgspec.ValidationError as error:
                message, _, path = str(error).partition(" - at `$")
                raise ConfigError([body_problem(path.strip("`."), message)]) from None
        return found

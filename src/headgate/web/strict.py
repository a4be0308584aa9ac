"""Bodies are read strictly: `"true"` is not true and `"1"` is not 1, though the framework would have it so."""

from __future__ import annotations

import re

import msgspec
from litestar import Request
from litestar.datastructures import State

from headgate.core.access import Caller
from headgate.errors import ConfigError, Problem
from headgate.web.problems import body_problem


class StrictRequest(Request[Caller, None, State]):
    """A request whose JSON must have the very types that its handler names."""

    async def json(self) -> object:
        """The body, if it is what the handler asks for."""
        found: object = await super().json()
        field = self.route_handler.parsed_data_field
        if field is not None and found is None and await self.body():
            raise ConfigError([Problem("", "the body must be a JSON object")])  # It may be left out, but not be null.
        if field is not None and found is not None and (problems := _problems(found, field.annotation)):
            raise ConfigError(problems)
        return found


def _problems(found: object, wanted: type) -> list[Problem]:
    """Everything that is wrong with a body. The decoder stops at the first mistake, so the body is read again without
    the field that it named, until nothing more is wrong but what is missing because of that."""
    problems: dict[str, Problem] = {}
    left = dict(found) if isinstance(found, dict) else found
    while True:
        try:
            msgspec.convert(left, wanted)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$")
            path = path.strip("`.")
            problem = body_problem(path, message)
            name = re.split(r"[.\[]", problem.path)[0]
            if name in problems or not isinstance(left, dict):
                return list(problems.values()) or [problem]
            problems[name] = problem
            if name not in left:
                return list(problems.values())
            del left[name]
        else:
            return list(problems.values())

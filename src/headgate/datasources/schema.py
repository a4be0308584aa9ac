"""The JSON Schema of a file of datasources, so that an editor completes it and marks mistakes while it is written.

It has every installed connector's options, as `documents` checks them. What only a node can know (whether a secret
exists, whether an expression compiles) stays with `headgate plan`.
"""

from __future__ import annotations

from typing import Any

from headgate.connectors import plugins as connectors
from headgate.connectors.api import Options
from headgate.core.mapping.functions import TYPES
from headgate.core.mapping.parts import FUNCTION
from headgate.datasources.prepared import DatasourceOptions
from headgate.ids import NAME

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_NAME = f"^{NAME.pattern}$"
_SECRET = {
    "type": "object",
    "description": "The name of a secret, which `headgate secrets set` has stored.",
    "properties": {"$secret": {"type": "string", "pattern": _NAME}},
    "required": ["$secret"],
    "additionalProperties": False,
}
# What our models and pydantic add for other readers. Below `properties` such a key would be an option, and a dict.
_OURS = {("title", str), ("identity", str), ("identity", bool)}
_FIELDS = {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True}
_MAPPING = {
    "type": "object",
    "description": "What happens to a record on its way, in this order: unnest, where, delete, set, drop, "
    "rename, types, python.",
    "additionalProperties": False,
    "properties": {
        "unnest": {"type": "string", "description": "The path to a list: each of its elements becomes a record."},
        "where": {"type": ["string", "boolean"], "description": "An expression: only records of which it holds pass."},
        "delete": {
            "type": ["string", "boolean"],
            "description": "An expression: a record of which it holds says that the row with its key is to be deleted.",
        },
        "set": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            "description": "The output fields, each with an expression. Without it records pass whole.",
        },
        "drop": _FIELDS | {"description": "Fields to leave out."},
        "rename": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": "string", "minLength": 1},
            "description": "Fields with their new names.",
        },
        "types": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"enum": list(TYPES)},
            "description": "Fields with the types that they are converted to.",
        },
        "python": {
            "type": "string",
            "pattern": FUNCTION.pattern,
            "description": "module:function, called with each record and its metadata. It gives a record, a list of "
            "records, or None to leave the record out.",
        },
        "key": {
            "anyOf": [{"type": "string", "minLength": 1}, _FIELDS],
            "description": "The output fields that identify a record.",
        },
    },
}

_LINES = {"type": "array", "items": {"type": "string"}}
_FIXTURE = {
    "type": "object",
    "required": ["given", "expected"],
    "additionalProperties": False,
    "properties": {
        "given": _LINES | {"description": "Inputs, each a line of JSON."},
        "expected": _LINES | {"description": "For each input the list of its results, as JSON."},
        "masked": _LINES | {"description": "Fields that differ from run to run."},
    },
}


def file_schema() -> dict[str, Any]:
    """Of a file with `datasources:` at its top."""
    return {
        "$schema": DIALECT,
        "title": "Headgate datasources",
        "type": "object",
        "required": ["datasources"],
        "additionalProperties": False,
        "properties": {
            "datasources": {
                "type": "object",
                "description": "Datasources by name.",
                "propertyNames": {"pattern": _NAME},
                "additionalProperties": {"$ref": "#/$defs/datasource"},
            }
        },
        "$defs": _definitions(),
    }


def document_schema() -> dict[str, Any]:
    """Of one datasource without its name, as `--file` of the commands under `ds` takes it."""
    return {"$schema": DIALECT, "title": "A Headgate datasource", "$ref": "#/$defs/datasource", "$defs": _definitions()}


def _definitions() -> dict[str, Any]:
    found: dict[str, Any] = {"secret": _SECRET, "mapping": _MAPPING, "fixture": _FIXTURE}
    options = _options(found, "datasource", DatasourceOptions)
    found["datasource"] = options | {
        "required": ["source", "sink"],
        "properties": {
            "enabled": {"type": "boolean", "default": True, "description": "Whether it should run."},
            "source": {"$ref": "#/$defs/source"},
            "mapping": {"anyOf": [{"$ref": "#/$defs/mapping"}, {"type": "null"}]},
            "sink": {"$ref": "#/$defs/sink"},
            "fixtures": {
                "type": "object",
                "description": "Inputs and the results that they should have, as `headgate export` writes them.",
                "propertyNames": {"pattern": _NAME},
                "additionalProperties": {"$ref": "#/$defs/fixture"},
            },
            **options["properties"],
        },
    }
    for side in ("source", "sink"):
        found[side] = _side(found, side)
    return found


def _side(definitions: dict[str, Any], side: str) -> dict[str, Any]:
    """Whichever connector `type` names, with its options."""
    cases, types = [], []
    for connector in connectors.all():
        kind = connector.source if side == "source" else connector.sink
        if kind is None:
            continue
        name = f"{side}-{connector.name}"
        definitions[name] = _options(definitions, name, kind.model)
        definitions[name]["properties"]["type"] = {"const": connector.name}
        types.append({"const": connector.name, "description": connector.summary})
        named = {"properties": {"type": {"const": connector.name}}, "required": ["type"]}
        cases.append({"if": named, "then": {"$ref": f"#/$defs/{name}"}})
    return {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"oneOf": types, "description": "The connector."}},
        "allOf": cases,
    }


def _options(definitions: dict[str, Any], name: str, model: type[Options]) -> dict[str, Any]:
    """A model's schema. Its own definitions move to the others, under names that no other model has."""
    schema = model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
    for inner, one in schema.pop("$defs", {}).items():
        definitions[f"{name}.{inner}"] = _with_secrets(one)
    schema.setdefault("properties", {})
    found: dict[str, Any] = _with_secrets(schema)
    return found


def _with_secrets(schema: Any) -> Any:
    """The schema, with a secret's name in place of what must not be written out."""
    if isinstance(schema, list):
        return [_with_secrets(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "password":
        kept = {key: value for key, value in schema.items() if key not in ("type", "format", "writeOnly")}
        # A URL without a password may be written out.
        return kept | {"anyOf": [{"$ref": "#/$defs/secret"}, {"type": "string"}]}
    return {key: _with_secrets(one) for key, one in schema.items() if (key, type(one)) not in _OURS}
